//! `hvdctl keys push`.

use super::distribution;
use crate::cli::KeysPush;
use crate::cluster::each_node::NodeResults;
use crate::commands::Outcome;
use crate::commands::context::Context;
use crate::document::NodeEntry;
use crate::error::Error;
use crate::keys::files::WrongMode;
use crate::keys::first_login;
use crate::keys::push::PushResult;
use schemars::JsonSchema;
use serde::Serialize;

/// The result of `keys push` on a node.
#[derive(Debug, Serialize, JsonSchema)]
pub struct KeysPushNode {
    /// True if anything was written.
    pub changed: bool,
    /// The files that were written.
    pub written: Vec<String>,
    /// The files that were removed.
    pub removed: Vec<String>,
    /// The files and directories with a wrong owner or mode, as they were before.
    pub repaired: Vec<WrongMode>,
}

/// `keys push`.
pub async fn run(options: &KeysPush, context: &Context) -> Result<Outcome, Error> {
    let session = &context.session;
    if options.first_login {
        session.cancellation.run(first_login::install(&context.target, &context.fleet, &context.events)).await?;
    }
    let members = context.connect_and_lock().await?;
    let distribution = distribution(context);
    let results = distribution.push(distribution.observe(&members).await?).await?;
    results.ok.iter().for_each(|node| session.progress.done(&node.node));
    session.progress.failed(&results.failed);
    session.cancellation.check()?;
    Ok(outcome(results))
}

pub(in crate::commands) fn outcome(NodeResults { ok, failed }: NodeResults<PushResult>) -> Outcome {
    let (mut text, mut nodes) = (String::new(), Vec::new());
    for PushResult { node, changes } in &ok {
        let what = if changes.is_empty() { "unchanged".to_owned() } else { changes.to_string() };
        text.push_str(&format!("{node}: {what}\n"));
        let written = changes.puts.iter().map(|put| put.name.clone()).collect();
        let (removed, repaired) = (changes.removes.clone(), changes.repairs.clone());
        let details = KeysPushNode { changed: !changes.is_empty(), written, removed, repaired };
        nodes.push(NodeEntry::new(node, true, details));
    }
    if failed.is_empty() && ok.iter().all(|node| node.changes.is_empty()) {
        text.push_str("nothing to do: the keys on all nodes are correct\n");
    }
    Outcome::of_nodes(text, NodeResults { ok: nodes, failed }, &[])
}
