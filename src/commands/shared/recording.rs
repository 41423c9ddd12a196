//! The records that commands write to the ledgers of the nodes after their work is done. A failure to write them is a
//! warning.

use crate::cluster::each_node::for_each_node;
use crate::cluster::member::Member;
use crate::cluster::operator::now;
use crate::commands::Context;
use crate::diagnosis::outcome::JobOutcome;
use crate::event::{Events, Message};
use crate::grade::evidence::NodeEvents;
use crate::grade::evidence::jobs::EndedJob;
use crate::grade::storage as ledger;

/// Adds these events to the ledgers of their nodes, in one script on each. Nothing is recorded once the command is
/// cancelled.
pub async fn record(context: &Context, found: NodeEvents) {
    if found.is_empty() {
        return;
    }
    let Context { target, fleet, events, session, .. } = context;
    let recording = async {
        // a connection that was lost meanwhile is a warning here
        let (quiet, _) = Events::channel();
        let members = fleet.members(&target.only(found.keys().cloned()), &quiet).await?;
        members.failed.iter().for_each(|error| events.warn(unrecorded(&error.node, &error.message)));
        for_each_node(members.ok, async |member: Member| {
            let name = &member.node.name;
            let own = found.get(name).map_or(&[][..], Vec::as_slice);
            if let Err(error) = ledger::append(target.cluster(), &member, own, events).await {
                events.warn(unrecorded(name, &error.message));
            }
        })
        .await;
        Ok(())
    };
    // a command that is cancelled says so by itself
    let _ = session.cancellation.run(recording).await;
}

/// Records a job that began then, in seconds since the epoch, and was watched to its end, on the nodes that answered.
/// `hvdctl grade` records the others.
pub async fn record_job(context: &Context, ended: &JobOutcome, began: f64) {
    let Some(job) = EndedJob::watched(ended, began, now()) else { return };
    let mut found = job.events();
    found.retain(|node, _| {
        !ended.silent.contains(node) && context.target.inventory.nodes.iter().any(|n| n.name == *node)
    });
    record(context, found).await;
}

fn unrecorded(node: &str, why: &str) -> Message {
    Message::of(node, format!("nothing was recorded in its ledger: {why}"))
}
