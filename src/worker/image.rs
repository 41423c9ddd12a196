//! The cluster's image on a node: when it is pulled, and pulling it.

use crate::cluster::member::Member;
use crate::error::NodeError;
use crate::event::{Events, Step};
use crate::inventory::{Cluster, Pull};
use crate::runtime::Image;
use crate::runtime::credentials::RegistryLogin;

/// Returns what stands for an image that is not pulled yet. No container was created from it.
pub fn to_be_pulled() -> Image {
    Image { id: "to be pulled".into(), ..Image::default() }
}

/// Returns whether a node has to pull the cluster's image, given whether it has one. An image that is named by its id
/// is known to no registry.
pub fn is_wanted(cluster: &Cluster, is_present: bool) -> bool {
    is_wanted_by(cluster.pull, &cluster.image, is_present)
}

/// Returns the same for another image and policy.
pub fn is_wanted_by(pull: Pull, image: &str, is_present: bool) -> bool {
    let by_policy = match pull {
        Pull::Always => true,
        Pull::Missing | Pull::Peers => !is_present,
        Pull::Never => false,
    };
    by_policy && !image.starts_with("sha256:")
}

/// Returns an image's name as the engine's pull needs it: without a tag it would pull all of them.
fn reference(image: &str) -> String {
    let last = image.rsplit('/').next().unwrap_or(image);
    if last.contains([':', '@']) { image.to_owned() } else { format!("{image}:latest") }
}

/// Returns the step of a pull.
pub fn step(image: &str) -> Step {
    Step::transfer(format!("pulling {}", reference(image)))
}

/// Lets the engine of a node pull an image with the operator's login to its registry.
///
/// # Errors
/// If the registry cannot be reached, refuses the image or does not have it, with the engine's message.
pub async fn pull(image: &str, login: &RegistryLogin, member: &Member, events: &Events) -> Result<(), NodeError> {
    let engine = member.engine().await?;
    engine.pull_with(&reference(image), login, events).await.map_err(|error| {
        error.hint(format!(
            "without a registry: hvdctl image push {image} copies it from a node that has it, or docker save {image} | \
             ssh {} sudo {} load; pull = \"peers\" in [cluster] lets `up` do so, \"never\" disables pulling",
            member.node.host,
            engine.name.command()
        ))
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::inventory::Inventory;

    #[test]
    fn the_policy_decides_whether_an_image_is_pulled() {
        let mut cluster = Inventory::local("here", "image").cluster;
        let mut wanted = |policy, image: &str| {
            (cluster.pull, cluster.image) = (policy, image.to_owned());
            (is_wanted(&cluster, false), is_wanted(&cluster, true))
        };
        assert_eq!(wanted(Pull::Missing, "x:1"), (true, false));
        assert_eq!(wanted(Pull::Always, "x:1"), (true, true));
        assert_eq!(wanted(Pull::Peers, "x:1"), (true, false));
        assert_eq!(wanted(Pull::Never, "x:1"), (false, false));
        assert_eq!(wanted(Pull::Always, "sha256:00"), (false, false));
    }

    #[test]
    fn one_tag_is_pulled_and_not_all() {
        for (image, expected) in [
            ("horovod/horovod", "horovod/horovod:latest"),
            ("horovod/horovod:0.28", "horovod/horovod:0.28"),
            ("localhost:5000/x", "localhost:5000/x:latest"),
            ("localhost:5000/x:1", "localhost:5000/x:1"),
            ("x@sha256:00", "x@sha256:00"),
        ] {
            assert_eq!(reference(image), expected, "{image}");
        }
    }
}
