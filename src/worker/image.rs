//! Sees to it that a node has the cluster's image, as far as the inventory lets hvdctl get it.

use crate::cluster::nodes::Observed;
use crate::error::NodeError;
use crate::event::Events;
use crate::inventory::Cluster;
use crate::runtime::pull;
use crate::worker::plan::Operation;

/// What stands for the id of an image that a dry run does not get.
const TO_COME: &str = "to be pulled";

/// Gets the image from its registry where the policy wants it, and looks again at what the node has then. The operation
/// comes back where something has changed, or would change. In a dry run nothing is got.
///
/// # Errors
/// With the engine's words: no registry in reach, no such image in it.
pub async fn provide(
    cluster: &Cluster,
    seen: &mut Observed,
    dry_run: bool,
    events: &Events,
) -> Result<Option<Operation>, NodeError> {
    let before = seen.docker.image_id.clone();
    let Some(reference) = pull::reference(&cluster.image).filter(|_| pull::is_wanted(cluster.pull, before.is_some()))
    else {
        return Ok(None);
    };
    let operation = Operation::Pull { image: cluster.image.clone() };
    if dry_run {
        // whether the registry has a newer one is not known without getting it
        if before.is_some() {
            return Ok(None);
        }
        seen.docker.image_id = Some(TO_COME.into());
        return Ok(Some(operation));
    }
    let engine = &seen.docker.engine;
    let pulled = engine.pull(&reference, events).await.map_err(|error| {
        error.hint(format!(
            "load it there: docker login and docker pull {0} on the node, or docker save {0} | ssh {1} sudo docker load; \
             pull = \"never\" in [cluster] asks no registry",
            cluster.image, seen.member.node.host
        ))
    });
    events.told(pulled)?;
    seen.docker.image_id = engine.image_id(&cluster.image).await?;
    Ok((seen.docker.image_id != before).then_some(operation))
}
