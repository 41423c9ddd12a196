//! `hvdctl up`.

use super::{Context, Outcome, Reached, connect_or_skip};
use crate::cli::Up;
use crate::core::facts::Facts;
use crate::core::hostset;
use crate::core::plan::{self, Operation, Workspace};
use crate::core::trust::{AUTHORIZED_KEYS, HOST_KEY};
use crate::error::{Error, NodeError};
use crate::event::Event;
use crate::ops::fleet::{Member, Observed, each, observe, split};
use crate::ops::{doctor, image, trust, workers};
use serde_json::{Value, json};

/// `up`.
pub async fn run(options: &Up, context: Context) -> Result<Outcome, Error> {
    let Context { target, events, .. } = context;
    let cluster = target.cluster();
    let Reached { members, offline, refused } = connect_or_skip(&target, &events, options.skip_offline).await?;

    let planned = each(members, async |member| {
        let mut seen = observe(cluster, member, &events).await?;
        let pulled = image::provide(cluster, &mut seen, options.dry_run, &events).await?;
        let desired = workers::desired(&target.inventory, &seen)?;
        let operations = workers::plan(cluster, &seen, &desired, &Workspace::Any)?;
        Ok((seen, pulled.into_iter().chain(operations).collect::<Vec<_>>()))
    })
    .await;
    let (mut planned, mut failed) = split(&events, planned);
    failed.extend(refused);
    let looked: Vec<_> = planned.iter().map(|(seen, _)| (seen, true)).collect();
    let stopped = doctor::stops(&doctor::before(&target.inventory, &looked), &events);
    planned.retain(|(seen, _)| stopped.iter().all(|error| error.node != seen.name()));
    failed.extend(stopped);

    let endangered = workers::endangered(cluster, &mut planned, options.force);
    if !endangered.is_empty() && !options.force {
        let refusal = workers::under_way(&endangered);
        if !options.dry_run {
            return Err(refusal);
        }
        events.send(Event::Warning(refusal.to_string()));
    }

    let nodes: Vec<_> = planned.iter().map(|(seen, _)| (&seen.member.node, &seen.facts)).collect();
    let pending = trust::pending(&target.inventory, &nodes);
    let mut master = nodes.iter().any(|(node, _)| node.master);
    if !pending.is_empty() && options.dry_run {
        events.note(format!("keys would be pushed to {}", hostset::fold(&pending)));
    } else if !pending.is_empty() && master {
        events.note(format!("keys are missing or differ on {}: pushing them first", hostset::fold(&pending)));
        let members: Vec<Member> = planned.iter().map(|(seen, _)| seen.member.clone()).collect();
        let bad = match trust::push(&target.inventory, &members, &events).await {
            Ok(pushed) => split(&events, pushed).1,
            Err(Error::Nodes { failed, .. }) => {
                master = false;
                failed
            }
            Err(error) => return Err(error),
        };
        planned.retain(|(seen, _)| bad.iter().all(|e| e.node != seen.name()));
        failed.extend(bad);
    }
    if !pending.is_empty() && !options.dry_run && !master {
        // the pair comes from the master: without it only those go on that have their keys
        let has_keys = |seen: &Observed| !worker_lacks_keys(&seen.facts);
        for (seen, _) in planned.iter().filter(|(seen, _)| !has_keys(seen)) {
            let why = format!("the keys come from the master {}, which is not at hand", target.inventory.master().name);
            let left_out = !target.selected.contains(&target.inventory.master().name);
            let next = if left_out { "add the master to --on" } else { "mend the master first, then hvdctl up" };
            let error = NodeError::failed(seen.name(), "push its keys", why).hint(next);
            events.send(Event::Failed(error.clone()));
            failed.push(error);
        }
        planned.retain(|(seen, _)| has_keys(seen));
    }

    if !options.dry_run {
        let (good, bad) = split(&events, workers::end_runs(cluster, planned, &events).await);
        planned = good;
        failed.extend(bad);
    }
    let results = each(planned, async |(seen, operations): (Observed, Vec<Operation>)| {
        if !options.dry_run {
            workers::apply(&target.inventory, &seen, &operations, &events).await?;
        }
        events.done(seen.name(), plan::words(&operations));
        Ok((seen.name().to_owned(), operations))
    })
    .await;
    let (done, bad) = split(&events, results);
    failed.extend(bad);
    Ok(outcome(options.dry_run, &done, failed).skipping(&offline))
}

/// Whether a worker could not even start its sshd, or let nobody in.
fn worker_lacks_keys(facts: &Facts) -> bool {
    [HOST_KEY, AUTHORIZED_KEYS].iter().any(|name| !facts.key_files.contains_key(*name))
}

pub(super) fn outcome(dry_run: bool, done: &[(String, Vec<Operation>)], failed: Vec<NodeError>) -> Outcome {
    let mut text = hostset::rows(done.iter().map(|(node, operations)| (node.clone(), plan::words(operations))));
    let mut nodes: Vec<Value> = Vec::new();
    for (node, operations) in done {
        let list: Vec<String> = operations.iter().map(ToString::to_string).collect();
        nodes.push(json!({ "node": node, "ok": true, "changed": !operations.is_empty(), "operations": list }));
    }
    let changed = done.iter().filter(|(_, o)| !o.is_empty()).count();
    if changed == 0 && failed.is_empty() {
        text.push_str("nothing to do: every worker is as it should be\n");
    } else if dry_run && !done.is_empty() {
        text.push_str(&format!("dry run: {changed} of {} nodes would be changed\n", done.len()));
    }
    Outcome::of_nodes(text, nodes, failed)
}
