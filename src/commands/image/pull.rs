//! `hvdctl image pull`.

use super::image_name;
use crate::cli;
use crate::cluster::each_node::NodeResults;
use crate::commands::Outcome;
use crate::commands::context::{ConnectedNodes, Context, node_rows};
use crate::delivery::pull::{PulledImage, pull};
use crate::document::NodeEntry;
use crate::error::{Error, NodeError};
use crate::runtime::spec::is_setup_image;
use schemars::JsonSchema;
use serde::Serialize;

/// The result of `image pull` on a node.
#[derive(Debug, Serialize, JsonSchema)]
pub struct ImagePullNode {
    /// True if the node did not have this image before.
    pub changed: bool,
    /// Its id on the node.
    pub id: String,
    /// The hash of its layers and environment, which is the same on all nodes that have the same image.
    pub content: Option<String>,
}

/// `image pull`.
pub async fn run(options: &cli::ImagePull, context: &Context) -> Result<Outcome, Error> {
    let name = image_name(options.name.as_deref(), &context.target)?;
    if name.starts_with("sha256:") || is_setup_image(name) {
        let message = format!("no registry has {name}, which is an id or was built by hvdctl");
        return Err(Error::usage(message, "hvdctl image push copies it from a node that has it"));
    }
    let ConnectedNodes { nodes, offline } = context.connect_or_skip(options.skip_offline).await?;
    let nodes = context.lock_each(nodes).await?;
    let NodeResults { ok, failed } = pull(name, nodes, context.site()).await?;
    let entry = |PulledImage { node, is_new: changed, image }: PulledImage| {
        NodeEntry::new(&node, true, ImagePullNode { changed, id: image.id, content: image.content })
    };
    Ok(outcome(NodeResults { ok: ok.into_iter().map(entry).collect(), failed }, &offline))
}

pub(crate) fn outcome(nodes: NodeResults<NodeEntry<ImagePullNode>>, offline: &[NodeError]) -> Outcome {
    let mut text = node_rows(&nodes.ok, |node| if node.changed { "pulled" } else { "unchanged" }.to_owned());
    let contents = || nodes.ok.iter().filter_map(|node| node.result.as_ref()).map(|node| &node.content);
    if contents().zip(contents().skip(1)).any(|(one, other)| one != other) {
        text.push_str("the registry gave the nodes different images of this name: run the command again\n");
    }
    Outcome::of_nodes(text, nodes, offline)
}
