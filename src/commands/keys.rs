//! `hvdctl keys`.

use super::{Context, Outcome};
use crate::error::Error;
use crate::ops::fleet::{connect_all, split};
use crate::ops::trust;
use serde_json::json;

/// `keys push`.
pub async fn push(context: Context) -> Result<Outcome, Error> {
    let members = connect_all(&context.target, &context.events).await?;
    let results = trust::push(&context.target.inventory, &members, &context.events).await?;
    let (pushed, failed) = split(&context.events, results);
    let mut text = String::new();
    let mut changed = 0;
    let mut nodes = Vec::new();
    for node in &pushed {
        let same = node.changes.is_empty();
        changed += usize::from(!same);
        let what = if same { "unchanged".to_owned() } else { node.changes.to_string() };
        text.push_str(&format!("{}: {what}\n", node.node));
        nodes.push(json!({ "node": node.node, "ok": true, "changed": !same, "what": what }));
    }
    if changed == 0 && failed.is_empty() {
        text.push_str("nothing to do: every node has the keys it should have\n");
    }
    Ok(Outcome::of_nodes(text, nodes, failed))
}
