//! `hvdctl disconnect`.

use crate::cluster::each_node::NodeResults;
use crate::commands::Outcome;
use crate::commands::shared::context::{Context, node_rows};
use crate::document::NodeEntry;
use crate::error::Error;
use crate::inventory::Pool;
use crate::transport::ssh;
use schemars::JsonSchema;
use serde::Serialize;

/// The connections to a node that `disconnect` found.
#[derive(Debug, Clone, Serialize, JsonSchema)]
pub struct DisconnectNode {
    /// True if there was a connection, which is now closed.
    pub closed: bool,
}

/// `disconnect`. Contacts no node. The connection to the pool's machine is closed, too.
pub async fn run(context: &Context) -> Result<Outcome, Error> {
    let mut nodes = Vec::new();
    let pool = context.target.inventory.pool.as_ref().and_then(Pool::machine);
    for node in context.target.nodes().into_iter().chain(pool) {
        let closed = ssh::disconnect(&node).await?;
        nodes.push(NodeEntry::new(&node.name, true, DisconnectNode { closed }));
    }
    Ok(outcome(nodes))
}

pub(in crate::commands) fn outcome(nodes: Vec<NodeEntry<DisconnectNode>>) -> Outcome {
    let text = node_rows(&nodes, |node| if node.closed { "closed" } else { "none" }.to_owned());
    Outcome::of_nodes(text, NodeResults { ok: nodes, failed: Vec::new() }, &[])
}
