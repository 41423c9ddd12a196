//! `hvdctl lock`.

use crate::cluster::each_node::NodeResults;
use crate::cluster::member::Member;
use crate::cluster::node_lock;
use crate::commands::Outcome;
use crate::commands::shared::context::{Context, node_table};
use crate::document::{NodeEntry, Nodes, entries};
use crate::error::{Error, NodeError, Verdict};
use crate::model::lease::{Lease, holders};
use crate::text::nodeset;
use crate::text::table::{cell, key, text};
use schemars::JsonSchema;
use serde::Serialize;

/// The lease of a node.
#[derive(Debug, Serialize, JsonSchema)]
pub struct LockStatusNode {
    /// The lease, or null.
    pub lease: Option<Lease>,
}

/// The lease that was released on a node.
#[derive(Debug, Serialize, JsonSchema)]
pub struct LockReleaseNode {
    /// The lease that was released, or null.
    pub released: Option<Lease>,
}

/// `lock status`.
pub async fn status(context: &Context) -> Result<Outcome, Error> {
    let NodeResults { ok, failed } = leases(context).await?;
    let leases = ok.into_iter().map(|(member, lease)| (member.node.name, lease));
    Ok(status_outcome(leases.collect(), &failed))
}

pub(in crate::commands) fn status_outcome(leases: Vec<(String, Option<Lease>)>, failed: &[NodeError]) -> Outcome {
    let done = leases.len();
    let leases = leases.into_iter().map(|(node, lease)| NodeEntry::reached(&node, true, LockStatusNode { lease }));
    let nodes = entries(leases, failed);
    let header = [key("NODE"), text("HOLDER"), text("COMMAND"), key("PROCESS"), key("SINCE")];
    let text = node_table(header, &nodes, |node, LockStatusNode { lease }| {
        let lease = lease.as_ref();
        vec![
            node.to_owned(),
            cell(lease.map(|lease| &lease.holder)),
            cell(lease.map(|lease| &lease.purpose)),
            cell(lease.map(|lease| lease.pid)),
            cell(lease.map(Lease::since)),
        ]
    });
    Outcome::new(Verdict::Nodes { done, failed }, text, Nodes { nodes })
}

/// `lock release`.
pub async fn release(context: &Context) -> Result<Outcome, Error> {
    let Context { target, events, .. } = context;
    let leases = leases(context).await?;
    let held: Vec<(String, Lease)> =
        leases.ok.iter().filter_map(|(member, lease)| Some((member.node.name.clone(), lease.clone()?))).collect();
    if !held.is_empty() {
        let held: String =
            holders(&held).iter().map(|(nodes, by)| format!("{}: {by}\n", nodeset::fold(nodes))).collect();
        let question = "release the locks of these nodes? A command that is still running stops after its current step";
        context.confirm(&format!("{held}{question}")).await?;
    }
    let release = async |(member, lease): (Member, Option<Lease>)| {
        let is_released = match &lease {
            // only this lease: another command may have locked the node meanwhile
            Some(lease) => node_lock::release(&member.transport, &target.cluster().name, lease).await?,
            None => false,
        };
        Ok(NodeEntry::new(&member.node.name, true, LockReleaseNode { released: lease.filter(|_| is_released) }))
    };
    Ok(released(leases.then(events, release).await))
}

pub(in crate::commands) fn released(nodes: NodeResults<NodeEntry<LockReleaseNode>>) -> Outcome {
    let lease =
        |entry: &NodeEntry<LockReleaseNode>| Some((entry.node.clone(), entry.result.as_ref()?.released.clone()?));
    let released: Vec<(String, Lease)> = nodes.ok.iter().filter_map(lease).collect();
    let line =
        |(nodes, lease): &(Vec<String>, &Lease)| format!("{}: released the lock of {lease}\n", nodeset::fold(nodes));
    let mut text: String = holders(&released).iter().map(line).collect();
    if released.is_empty() && nodes.failed.is_empty() {
        text.push_str("nothing to do: no node is locked\n");
    }
    Outcome::of_nodes(text, nodes, &[])
}

/// Returns the leases of all nodes that answer.
async fn leases(context: &Context) -> Result<NodeResults<(Member, Option<Lease>)>, Error> {
    let Context { target, events, .. } = context;
    let read = async |member: Member| {
        let lease = node_lock::current(&member.transport, &target.cluster().name).await?;
        Ok((member, lease))
    };
    Ok(context.connect().await?.then(events, read).await)
}
