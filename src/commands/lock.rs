//! `hvdctl lock`.

use super::output::{LockReleaseNode, LockStatusNode, NodeEntry};
use super::{Context, Outcome, failed_row, unless_signalled};
use crate::cluster::node_lock;
use crate::cluster::nodes::{Member, connect, for_each_node, split};
use crate::error::{Error, NodeError};
use crate::model::lease::{Lease, holders};
use crate::render::table::table;
use crate::text::nodeset;

/// A node, and its lease where it has one that holds.
type Seen = (Member, Option<Lease>);

/// `lock status`.
pub async fn status(context: Context) -> Result<Outcome, Error> {
    let (seen, failed) = unless_signalled(&context.cancel, look(&context)).await?;
    let seen: Vec<(String, Option<Lease>)> = seen.into_iter().map(|(m, lease)| (m.node.name.clone(), lease)).collect();
    Ok(holding(&seen, failed))
}

pub(super) fn holding(seen: &[(String, Option<Lease>)], failed: Vec<NodeError>) -> Outcome {
    let none = || "–".to_owned();
    let mut rows: Vec<Vec<String>> = Vec::new();
    for (node, lease) in seen {
        rows.push(match lease {
            Some(lease) => {
                vec![node.clone(), lease.holder.clone(), lease.purpose.clone(), lease.pid.to_string(), lease.since()]
            }
            None => vec![node.clone(), "nobody".into(), none(), none(), none()],
        });
    }
    rows.extend(failed.iter().map(failed_row));
    let text = table(&["NODE", "HOLDER", "COMMAND", "PROCESS", "SINCE"], &rows);
    let nodes = seen.iter().map(|(node, lease)| NodeEntry::seen(node, true, LockStatusNode { lease: lease.clone() }));
    Outcome::of_nodes(text, nodes.collect(), failed)
}

/// `lock release`.
pub async fn release(context: Context) -> Result<Outcome, Error> {
    unless_signalled(&context.cancel, async {
        let Context { target, events, .. } = &context;
        let (seen, mut failed) = look(&context).await?;
        let held: Vec<(String, Lease)> =
            seen.iter().filter_map(|(m, lease)| Some((m.node.name.clone(), lease.clone()?))).collect();
        if !held.is_empty() {
            let held: String =
                holders(&held).iter().map(|(nodes, by)| format!("{}: {by}\n", nodeset::fold(nodes))).collect();
            let question = "release these nodes? A command that is still at work there stops after its step";
            context.confirm(&format!("{held}{question}")).await?;
        }
        let released = for_each_node(seen, async |(member, lease): Seen| {
            let gone = match &lease {
                // this very one: another command may have the node by now
                Some(lease) => node_lock::release(&member.transport, &target.cluster().name, lease).await?,
                None => false,
            };
            Ok((member.node.name, lease.filter(|_| gone)))
        });
        let (released, bad) = split(events, released.await);
        failed.extend(bad);
        Ok(freed(&released, failed))
    })
    .await
}

pub(super) fn freed(released: &[(String, Option<Lease>)], failed: Vec<NodeError>) -> Outcome {
    let gone: Vec<(String, Lease)> =
        released.iter().filter_map(|(node, lease)| Some((node.clone(), lease.clone()?))).collect();
    let mut text: String = holders(&gone)
        .iter()
        .map(|(nodes, lease)| format!("{}: released, it was that of {lease}\n", nodeset::fold(nodes)))
        .collect();
    if gone.is_empty() && failed.is_empty() {
        text.push_str("nothing to do: nobody holds these nodes\n");
    }
    let nodes =
        released.iter().map(|(node, lease)| NodeEntry::new(node, true, LockReleaseNode { released: lease.clone() }));
    Outcome::of_nodes(text, nodes.collect(), failed)
}

/// The leases of all nodes that answer, without those that have expired.
async fn look(context: &Context) -> Result<(Vec<Seen>, Vec<NodeError>), Error> {
    let Context { target, events, .. } = context;
    let (members, mut failed) = split(events, connect(target, events).await?);
    let seen = for_each_node(members, async |member: Member| {
        let lease = node_lock::current(&member.transport, &target.cluster().name).await?;
        Ok((member, lease.filter(|lease| !lease.is_expired())))
    });
    let (seen, bad) = split(events, seen.await);
    failed.extend(bad);
    Ok((seen, failed))
}
