//! The cluster's image on a node: when it is pulled, and pulling it.

use crate::cluster::nodes::Observed;
use crate::error::NodeError;
use crate::event::{Events, Step};
use crate::inventory::Cluster;
use crate::runtime::pull;

/// What a dry run takes for the id of an image that is yet to be pulled.
pub const TO_BE_PULLED: &str = "to be pulled";

/// Returns whether the node's image has to be pulled. What a registry has that the node has not is only known after pulling.
pub fn is_wanted(cluster: &Cluster, observed: &Observed) -> bool {
    pull::reference(&cluster.image).is_some() && pull::is_wanted(cluster.pull, observed.docker.image_id.is_some())
}

/// Pulls the cluster's image and observes again what the node has. Returns whether that changed.
///
/// # Errors
/// With the engine's words: the registry cannot be reached, or has no such image.
pub async fn pull(cluster: &Cluster, observed: &mut Observed, events: &Events) -> Result<bool, NodeError> {
    let Some(reference) = pull::reference(&cluster.image) else { return Ok(false) };
    let before = observed.docker.image_id.clone();
    let engine = &observed.docker.engine;
    let pulling = async {
        engine.pull(&reference, events).await.map_err(|error| {
            error.hint(format!(
                "load it there: docker login and docker pull {0} on the node, or docker save {0} | ssh {1} sudo docker load; \
                 pull = \"never\" in [cluster] asks no registry",
                cluster.image, observed.member.node.host
            ))
        })
    };
    events.step(observed.name(), Step::PullingImage(reference.clone()), pulling).await?;
    observed.docker.image_id = engine.image_id(&cluster.image).await?;
    Ok(observed.docker.image_id != before)
}
