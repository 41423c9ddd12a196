//! `hvdctl up`.

use super::output::{NodeEntry, UpNode};
use super::{Context, Outcome, Reached, connect_or_skip, in_turn};
use crate::checks::preflight;
use crate::cli::Up;
use crate::cluster::nodes::{Member, Observed, each, observe, split};
use crate::cluster::turn::Turn;
use crate::error::{Error, NodeError};
use crate::event::Event;
use crate::job::run::end_runs;
use crate::job::run::settle;
use crate::keys::files::AUTHORIZED_KEYS;
use crate::keys::push;
use crate::node::facts::Facts;
use crate::paths::HOST_KEY;
use crate::text::nodeset;
use crate::worker::apply;
use crate::worker::image;
use crate::worker::plan::{self, Operation, Workspace};

/// `up`.
pub async fn run(options: &Up, context: Context) -> Result<Outcome, Error> {
    let turn = context.turn("hvdctl up", options.waiting);
    let nodes = context.target.selected.clone();
    in_turn(turn, nodes, async |turn| work(options, turn, context).await).await
}

async fn work(options: &Up, turn: &Turn, context: Context) -> Result<Outcome, Error> {
    let Context { target, events, .. } = context;
    let cluster = target.cluster();
    let reached = turn.unless_stopped(connect_or_skip(&target, &events, options.skip_offline)).await?;
    let Reached { members, offline, refused } = reached;

    let look = async || each(members.clone(), async |member| observe(cluster, member, &events).await).await;
    let (unleased, mut looked) = match options.dry_run {
        true => turn.unless_stopped(async { Ok((Vec::new(), look().await)) }).await?,
        false => turn.unless_stopped(turn.take_and_look(&members, look)).await?,
    };
    let mut seen: Vec<&mut Observed> = looked.iter_mut().filter_map(|seen| seen.as_mut().ok()).collect();
    turn.unless_stopped(settle(&target, &mut seen, &events)).await?;
    let planned = each(looked, async |seen| {
        let mut seen: Observed = seen?;
        // what cannot be locked is not changed
        if let Some(error) = unleased.iter().find(|error| error.node == seen.name()) {
            return Err(error.clone());
        }
        let pulled = image::provide(cluster, &mut seen, options.dry_run, &events).await?;
        if let Some(pull) = pulled.as_ref().filter(|_| !options.dry_run) {
            turn.did(seen.name(), pull.to_string());
        }
        let desired = apply::desired(&target.inventory, &seen)?;
        let operations = apply::plan(cluster, &seen, &desired, &Workspace::Any)?;
        Ok((seen, pulled.into_iter().chain(operations).collect::<Vec<_>>()))
    });
    // a pull ends with us, and the rest of it changes nothing
    let (mut planned, mut failed) = split(&events, turn.unless_stopped(async { Ok(planned.await) }).await?);
    failed.extend(refused);
    let looked: Vec<_> = planned.iter().map(|(seen, _)| (seen, true)).collect();
    let stopped = preflight::stops(&preflight::before(&target.inventory, &looked), &events);
    planned.retain(|(seen, _)| stopped.iter().all(|error| error.node != seen.name()));
    failed.extend(stopped);

    let endangered = apply::endangered(cluster, &mut planned, options.force);
    if !endangered.is_empty() && !options.force {
        let refusal = apply::under_way(&endangered);
        if !options.dry_run {
            return Err(refusal);
        }
        events.send(Event::Warning(refusal.to_string()));
    }

    let nodes: Vec<_> = planned.iter().map(|(seen, _)| (&seen.member.node, &seen.facts)).collect();
    let pending = push::pending(&target.inventory, &nodes);
    let mut master = nodes.iter().any(|(node, _)| node.master);
    if !pending.is_empty() && options.dry_run {
        events.note(format!("keys would be pushed to {}", nodeset::fold(&pending)));
    } else if !pending.is_empty() && master {
        events.note(format!("keys are missing or differ on {}: pushing them first", nodeset::fold(&pending)));
        let members: Vec<Member> = planned.iter().map(|(seen, _)| seen.member.clone()).collect();
        let bad = match push::push(&target.inventory, &members, turn, &events).await {
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
        // the push of the keys may have been the last step
        turn.failed(&failed);
        turn.check()?;
        let (good, bad) = split(&events, end_runs(cluster, planned, &events).await);
        planned = good;
        failed.extend(bad);
    }
    let results = each(planned, async |(seen, operations): (Observed, Vec<Operation>)| {
        if !options.dry_run {
            let goes_on = || turn.check().is_ok();
            let did = |operation: &Operation| match operation {
                Operation::Pull { .. } => {}
                operation => turn.did(seen.name(), operation.to_string()),
            };
            if !apply::apply_while(&target.inventory, &seen, &operations, &events, goes_on, did).await? {
                return Ok(None);
            }
            turn.done(seen.name());
        }
        events.done(seen.name(), plan::words(&operations));
        Ok(Some((seen.name().to_owned(), operations)))
    })
    .await;
    let (done, bad) = split(&events, results);
    failed.extend(bad);
    turn.failed(&failed);
    turn.check()?;
    let done: Vec<_> = done.into_iter().flatten().collect();
    Ok(outcome(options.dry_run, &done, failed).skipping(&offline))
}

/// Whether a worker could not even start its sshd, or let nobody in.
fn worker_lacks_keys(facts: &Facts) -> bool {
    [HOST_KEY, AUTHORIZED_KEYS].iter().any(|name| !facts.key_files.contains_key(*name))
}

pub(super) fn outcome(dry_run: bool, done: &[(String, Vec<Operation>)], failed: Vec<NodeError>) -> Outcome {
    let mut text = nodeset::rows(done.iter().map(|(node, operations)| (node.clone(), plan::words(operations))));
    let mut nodes = Vec::new();
    for (node, operations) in done {
        let list: Vec<String> = operations.iter().map(ToString::to_string).collect();
        nodes.push(NodeEntry::new(node, true, UpNode { changed: !operations.is_empty(), operations: list }));
    }
    let changed = done.iter().filter(|(_, o)| !o.is_empty()).count();
    if changed == 0 && failed.is_empty() {
        text.push_str("nothing to do: every worker is as it should be\n");
    } else if dry_run && !done.is_empty() {
        text.push_str(&format!("dry run: {changed} of {} nodes would be changed\n", done.len()));
    }
    Outcome::of_nodes(text, nodes, failed)
}
