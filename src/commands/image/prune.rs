//! `hvdctl image prune`.

use crate::cli;
use crate::cluster::each_node::NodeResults;
use crate::cluster::member::Member;
use crate::commands::Outcome;
use crate::commands::context::Context;
use crate::delivery::relay::deployment;
use crate::document::NodeEntry;
use crate::error::Error;
use crate::event::Message;
use crate::image::build::remove_containers;
use crate::image::unused::UnusedImages;
use crate::text::units::count;
use schemars::JsonSchema;
use serde::Serialize;

/// The result of `image prune` on a node.
#[derive(Debug, Serialize, JsonSchema)]
pub struct ImagePruneNode {
    /// The names of the images that were removed.
    pub removed: Vec<String>,
}

/// `image prune`.
pub async fn run(options: &cli::ImagePrune, context: &Context) -> Result<Outcome, Error> {
    let nodes = context.connect_or_skip(false).await?.nodes;
    let nodes = context.lock_each(nodes).await?;
    let cluster = context.target.cluster();
    let remove = async |member: Member| {
        let engine = member.engine().await?;
        remove_containers(&engine, cluster).await?;
        deployment::remove(&member.runtime().await?, &cluster.name).await?;
        let unused = UnusedImages::find(&engine, cluster).await?;
        if !unused.unknown.is_empty() {
            let (images, names) = (count(unused.unknown.len(), "image"), unused.unknown.join(" "));
            let text = format!("{images} of an earlier hvdctl stay, because they may belong to another cluster");
            let hint = format!("if they do not, run on the node: {} rmi {names}", engine.name.command());
            context.events.note(Message::of(&member.node.name, text).hint(hint));
        }
        let removed = unused.remove(&engine, options.all).await?;
        Ok(NodeEntry::new(&member.node.name, true, ImagePruneNode { removed }))
    };
    let pruned = context.session.cancellation.run(async { Ok(nodes.then(&context.events, remove).await) }).await?;
    Ok(outcome(pruned))
}

pub(crate) fn outcome(nodes: NodeResults<NodeEntry<ImagePruneNode>>) -> Outcome {
    let removed = |node: &NodeEntry<ImagePruneNode>| node.result.as_ref().map_or(0, |result| result.removed.len());
    let lines = nodes.ok.iter().map(|node| format!("{}: removed {}\n", node.node, count(removed(node), "image")));
    let text: String = lines.collect();
    Outcome::of_nodes(text, nodes, &[])
}
