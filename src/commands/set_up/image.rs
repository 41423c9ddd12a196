//! `hvdctl image`. This file has `image pull` and `image prune`, and what the subcommands have in common.

pub mod build;
pub mod push;
pub mod status;

use crate::cli::{Image, ImagePrune, ImagePull};
use crate::cluster::each_node::NodeResults;
use crate::cluster::member::Member;
use crate::cluster::target::Target;
use crate::commands::Outcome;
use crate::commands::shared::context::{ConnectedNodes, Context, node_rows};
use crate::delivery::pull::{self as registry, PulledImage};
use crate::delivery::relay::deployment;
use crate::document::NodeEntry;
use crate::error::{Error, NodeError};
use crate::event::Message;
use crate::image::build::remove_containers;
use crate::image::unused::UnusedImages;
use crate::inventory::IMAGE;
use crate::runtime::spec::is_setup_image;
use crate::text::nodeset;
use crate::text::units::count;
use schemars::JsonSchema;
use serde::Serialize;

/// `image`.
pub async fn run(command: &Image, context: &Context) -> Result<Outcome, Error> {
    if !context.target.cluster().can().images {
        let hint = "what ranks need is installed on the nodes; hvdctl env create makes one virtualenv on all of them";
        return Err(Error::check("the cluster has `runtime = \"process\"`, without containers and images", hint));
    }
    match command {
        Image::Status(options) => status::run(options, context).await,
        Image::Push(options) => push::run(options, context).await,
        Image::Pull(options) => pull(options, context).await,
        Image::Build(options) => build::run(options, context).await,
        Image::Prune(options) => prune(options, context).await,
    }
}

/// Returns the image that was named, or that of the cluster.
///
/// # Errors
/// If no image can have this name.
fn image_name<'a>(named: Option<&'a str>, target: &'a Target) -> Result<&'a str, Error> {
    let Some(image) = named else { return Ok(&target.cluster().image) };
    IMAGE.read(image).map_err(|why| {
        let message = format!("{} is not a valid image name: {why}", nodeset::printable(image));
        Error::usage(message, "use a name that docker images shows")
    })?;
    Ok(image)
}

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
async fn pull(options: &ImagePull, context: &Context) -> Result<Outcome, Error> {
    let name = image_name(options.name.as_deref(), &context.target)?;
    if name.starts_with("sha256:") || is_setup_image(name) {
        let message = format!("no registry has {name}, which is an id or was built by hvdctl");
        return Err(Error::usage(message, "hvdctl image push copies it from a node that has it"));
    }
    let ConnectedNodes { nodes, offline } = context.connect_or_skip(options.skip_offline).await?;
    let nodes = context.lock_each(nodes).await?;
    let NodeResults { ok, failed } = registry::pull(name, nodes, context.site()).await?;
    let entry = |PulledImage { node, is_new: changed, image }: PulledImage| {
        NodeEntry::new(&node, true, ImagePullNode { changed, id: image.id, content: image.content })
    };
    Ok(pulled(NodeResults { ok: ok.into_iter().map(entry).collect(), failed }, &offline))
}

pub(crate) fn pulled(nodes: NodeResults<NodeEntry<ImagePullNode>>, offline: &[NodeError]) -> Outcome {
    let mut text = node_rows(&nodes.ok, |node| if node.changed { "pulled" } else { "unchanged" }.to_owned());
    let contents = || nodes.ok.iter().filter_map(|node| node.result.as_ref()).map(|node| &node.content);
    if contents().zip(contents().skip(1)).any(|(one, other)| one != other) {
        text.push_str("the registry gave the nodes different images of this name: run the command again\n");
    }
    Outcome::of_nodes(text, nodes, offline)
}

/// The result of `image prune` on a node.
#[derive(Debug, Serialize, JsonSchema)]
pub struct ImagePruneNode {
    /// The names of the images that were removed.
    pub removed: Vec<String>,
}

/// `image prune`.
async fn prune(options: &ImagePrune, context: &Context) -> Result<Outcome, Error> {
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
    let nodes = context.session.cancellation.run(async { Ok(nodes.then(&context.events, remove).await) }).await?;
    Ok(pruned(nodes))
}

pub(crate) fn pruned(nodes: NodeResults<NodeEntry<ImagePruneNode>>) -> Outcome {
    let removed = |node: &NodeEntry<ImagePruneNode>| node.result.as_ref().map_or(0, |result| result.removed.len());
    let lines = nodes.ok.iter().map(|node| format!("{}: removed {}\n", node.node, count(removed(node), "image")));
    let text: String = lines.collect();
    Outcome::of_nodes(text, nodes, &[])
}
