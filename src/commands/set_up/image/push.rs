//! `hvdctl image push`.

use super::image_name;
use crate::cli::ImagePush;
use crate::cluster::each_node::NodeResults;
use crate::commands::Outcome;
use crate::commands::shared::context::{ConnectedNodes, Context, node_rows};
use crate::delivery::image::give;
use crate::delivery::origin::SourceChoice;
use crate::document::NodeEntry;
use crate::error::{Error, NodeError};
use crate::image::names::repository_and_tag;
use crate::text::units::human;
use schemars::JsonSchema;
use serde::Serialize;

/// The result of `image push` on a node.
#[derive(Debug, Serialize, JsonSchema)]
pub struct ImagePushNode {
    /// True if the node did not have the image before.
    pub changed: bool,
    /// The number of its bytes that were sent to the node.
    pub sent: u64,
}

/// `image push`.
pub async fn run(options: &ImagePush, context: &Context) -> Result<Outcome, Error> {
    let target = &context.target;
    let image = image_name(options.name.as_deref(), target)?;
    if repository_and_tag(image).is_none() {
        return Err(Error::usage(
            format!("{image} has no tag, so nodes would have no name for it"),
            match image.split_once('@') {
                Some((name, _)) => format!(
                    "push it under its tag (hvdctl image push {name}), and use the tag in the inventory; only images \
                     from a registry have digests: hvdctl image pull"
                ),
                None => "give the image a name (docker tag), and push that".to_owned(),
            },
        ));
    }
    // before any node is locked: to unpack takes a while
    let opening = SourceChoice::open(options.from.as_deref(), &target.inventory, &context.events);
    let from = context.session.cancellation.run(opening).await?;
    let ConnectedNodes { nodes, offline } = context.connect_or_skip(options.skip_offline).await?;
    let nodes = context.lock_each(nodes).await?;
    let NodeResults { ok, failed } = give(&from, image, nodes, context.site()).await?;
    let entry = |(node, sent): (String, Option<u64>)| {
        let details = ImagePushNode { changed: sent.is_some(), sent: sent.unwrap_or(0) };
        NodeEntry::new(&node, true, details)
    };
    Ok(outcome(NodeResults { ok: ok.into_iter().map(entry).collect(), failed }, &offline))
}

pub(crate) fn outcome(nodes: NodeResults<NodeEntry<ImagePushNode>>, offline: &[NodeError]) -> Outcome {
    let mut text = node_rows(&nodes.ok, |node| match node.changed {
        true if node.sent == 0 => "named: it had the image under another name".to_owned(),
        true => format!("pushed, {} sent", human(node.sent)),
        false => "unchanged".to_owned(),
    });
    let changed = nodes.ok.iter().filter_map(|node| node.result.as_ref()).filter(|node| node.changed).count();
    if changed == 0 && nodes.failed.is_empty() {
        text.push_str("nothing to do: every node has this image\n");
    }
    Outcome::of_nodes(text, nodes, offline)
}
