//! `hvdctl up`.

use super::{Context, Outcome};
use crate::cli::Up;
use crate::core::hostset;
use crate::core::plan::{Operation, Workspace};
use crate::error::{Error, NodeError};
use crate::event::Event;
use crate::ops::fleet::{Member, Observed, connect, each, observe, split};
use crate::ops::{trust, workers};
use serde_json::{Value, json};

/// `up`.
pub async fn run(options: &Up, context: Context) -> Result<Outcome, Error> {
    let Context { target, events, .. } = context;
    let cluster = target.cluster();
    let (members, offline) = split(&events, connect(&target, &events).await?);
    if !offline.is_empty() && (!options.skip_offline || members.is_empty()) {
        return Err(Error::Unreachable(offline));
    }
    for error in &offline {
        events.send(Event::Warning(error.to_string()));
    }

    let planned = each(members, async |member| {
        let seen = observe(cluster, member, &events).await?;
        let desired = workers::desired(cluster, &seen);
        let operations = workers::plan(cluster, &seen, &desired, &Workspace::Any)?;
        Ok((seen, operations))
    })
    .await;
    let (mut planned, mut failed) = split(&events, planned);

    let without = workers::without_keys(cluster, planned.iter().map(|(seen, _)| seen));
    if !without.is_empty() && options.dry_run {
        events.note(format!("keys would be pushed to {}", hostset::fold(&without)));
    } else if !without.is_empty() {
        events.note(format!("no keys on {}: pushing them first", hostset::fold(&without)));
        let members: Vec<Member> = planned.iter().map(|(seen, _)| seen.member.clone()).collect();
        let (_, bad) = split(&events, trust::push(&target.inventory, &members, &events).await?);
        planned.retain(|(seen, _)| bad.iter().all(|e| e.node != seen.name()));
        failed.extend(bad);
    }

    let results = each(planned, async |(seen, operations): (Observed, Vec<Operation>)| {
        if !options.dry_run {
            workers::apply(cluster, &seen, &operations, &events).await?;
        }
        events.done(seen.name(), words(&operations));
        Ok((seen.name().to_owned(), operations))
    })
    .await;
    let (done, bad) = split(&events, results);
    failed.extend(bad);
    Ok(outcome(options.dry_run, &done, failed))
}

fn words(operations: &[Operation]) -> String {
    if operations.is_empty() {
        return "unchanged".into();
    }
    operations.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ")
}

fn outcome(dry_run: bool, done: &[(String, Vec<Operation>)], failed: Vec<NodeError>) -> Outcome {
    let mut text = String::new();
    let mut nodes: Vec<Value> = Vec::new();
    for (node, operations) in done {
        text.push_str(&format!("{node}: {}\n", words(operations)));
        let list: Vec<String> = operations.iter().map(ToString::to_string).collect();
        nodes.push(json!({ "node": node, "ok": true, "changed": !operations.is_empty(), "operations": list }));
    }
    let changed = done.iter().filter(|(_, o)| !o.is_empty()).count();
    if changed == 0 && failed.is_empty() {
        text.push_str("nothing to do: every worker is as it should be\n");
    } else if dry_run {
        text.push_str(&format!("dry run: {changed} of {} nodes would be changed\n", done.len()));
    }
    Outcome::of_nodes(text, nodes, failed)
}
