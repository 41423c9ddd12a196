//! Lets the engines of nodes pull an image from its registry.

use crate::cluster::each_node::NodeResults;
use crate::cluster::member::Member;
use crate::cluster::site::Site;
use crate::error::{Error, NodeError};
use crate::inventory::Node;
use crate::runtime::Image;
use crate::runtime::credentials::RegistryLogin;
use crate::text::nodeset;
use crate::worker::image;

/// An image that a node has pulled.
pub struct PulledImage {
    /// The name of the node.
    pub node: String,
    /// Set if the node did not have this image before.
    pub is_new: bool,
    /// The image.
    pub image: Image,
}

/// Lets nodes that are locked pull an image.
///
/// # Errors
/// If the command is cancelled.
pub async fn pull(name: &str, nodes: NodeResults<Member>, site: Site<'_>) -> Result<NodeResults<PulledImage>, Error> {
    let Site { session, events, .. } = site;
    let login = login(name, nodes.ok.iter().map(|member| &member.node), site).await?;
    let pull = async |member: Member| {
        let node = member.node.name.clone();
        let login = login.for_node(member.node.owner.as_deref());
        let _step = events.begin(&node, image::step(name));
        let engine = member.engine().await?;
        let before = engine.image(name).await?;
        image::pull(name, &login, &member, events).await?;
        let missing = || {
            NodeError::failed(&node, &format!("pull the image {name}"), "the engine does not have it after the pull")
        };
        let image = engine.image(name).await?.ok_or_else(missing)?;
        session.progress.record(&node, format!("pulled {name}"));
        session.progress.done(&node);
        events.done(&node, format!("has {name}"));
        Ok(PulledImage { is_new: before.is_none_or(|before| before.id != image.id), node, image })
    };
    // a pull ends when its request is dropped
    let results = session.cancellation.run(async { Ok(nodes.then(events, pull).await) }).await?;
    session.progress.failed(&results.failed);
    Ok(results)
}

/// Finds the operator's login to the registry of an image, which these nodes pull. Without one the pull may still
/// succeed. Nodes of other owners do not get it: see [`RegistryLogin::for_node`].
///
/// # Errors
/// If the command is cancelled.
pub async fn login<'a>(
    image: &str,
    nodes: impl Iterator<Item = &'a Node>,
    site: Site<'_>,
) -> Result<RegistryLogin, Error> {
    let Site { session, events, .. } = site;
    let login = session.cancellation.run(async { Ok(RegistryLogin::find(image).await) }).await?;
    if let Some(fault) = &login.fault {
        events.warn(format!("pulling {image} without a login: {fault}"));
    }
    let others: Vec<&str> = nodes.filter(|node| node.owner.is_some()).map(|node| node.name.as_str()).collect();
    if login.credentials.is_some() && !others.is_empty() {
        let others = nodeset::fold(&others);
        events.note(format!(
            "{others}: pulling {image} without your login to the registry, which other owners' nodes do not get"
        ));
    }
    Ok(login)
}
