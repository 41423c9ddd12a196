//! Images of projects that no container uses.

use crate::error::NodeError;
use crate::inventory::Cluster;
use crate::runtime::ContainerEngine;
use crate::runtime::spec::is_setup_image;
use std::collections::BTreeMap;

/// The images of projects on a node that no container uses.
pub struct UnusedImages {
    /// The images of the cluster by repository, each with the time of its build.
    found: BTreeMap<String, Vec<(String, String)>>,
    /// The names of those of which no cluster is known.
    pub unknown: Vec<String>,
}

impl UnusedImages {
    /// Finds those of a node.
    ///
    /// # Errors
    /// With the engine's message.
    pub async fn find(engine: &ContainerEngine, cluster: &Cluster) -> Result<UnusedImages, NodeError> {
        let used: Vec<String> = engine.containers().await?.into_iter().map(|container| container.image_id).collect();
        let (mut found, mut unknown) = (BTreeMap::<String, Vec<_>>::new(), Vec::new());
        for listed in engine.images().await?.into_iter().filter(|listed| !used.contains(&listed.id)) {
            // the cluster's own is not made again by any job
            let of_project = |name: &String| is_setup_image(name) && !name.contains('@') && *name != cluster.image;
            for name in listed.names.into_iter().filter(of_project) {
                let Some((repository, _)) = name.rsplit_once(':') else { continue };
                let Some(image) = engine.image(&name).await? else { continue };
                match image.built_for {
                    Some(owner) if owner == cluster.name => {
                        let created = image.created.unwrap_or_default();
                        found.entry(repository.to_owned()).or_default().push((created, name));
                    }
                    Some(_) => {}
                    None => unknown.push(name),
                }
            }
        }
        Ok(UnusedImages { found, unknown })
    }

    /// Removes those of the cluster, except the newest one of each project unless it is to remove all. Returns their
    /// names.
    ///
    /// # Errors
    /// With the engine's message.
    pub async fn remove(self, engine: &ContainerEngine, all: bool) -> Result<Vec<String>, NodeError> {
        let mut removed = Vec::new();
        for mut images in self.found.into_values() {
            images.sort();
            for (_, name) in images.into_iter().rev().skip(usize::from(!all)) {
                engine.remove_name(&name).await?;
                removed.push(name);
            }
        }
        Ok(removed)
    }
}
