//! Observed against desired: the operations that make a node's worker what it should be.
//!
//! `up`, `up --dry-run`, `status`, `train` and `down` all read from here, so that a dry run cannot lie.

use crate::core::spec::{
    Desired, LABEL_CLUSTER, LABEL_JOB, LABEL_ROLE, LABEL_SPEC, LABEL_SPEC_FULL, LABEL_WORKSPACE, Role,
};
use serde::Serialize;
use std::collections::BTreeMap;
use std::fmt;

/// A container as an engine lists it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Seen {
    /// Its name, without Docker's leading slash.
    pub name: String,
    /// Its full id.
    pub id: String,
    /// The id of the image that it was made from.
    pub image_id: String,
    /// Whether it runs.
    pub running: bool,
    /// Its labels.
    pub labels: BTreeMap<String, String>,
}

impl Seen {
    /// The value of a label.
    pub fn label(&self, name: &str) -> Option<&str> {
        self.labels.get(name).map(String::as_str)
    }

    /// Whether hvdctl works as root in it (where there is no sudo); it removes itself when that is done.
    pub fn is_helper(&self) -> bool {
        self.is(Role::Helper)
    }

    /// Whether it is this cluster's.
    pub fn belongs_to(&self, cluster: &str) -> bool {
        self.label(LABEL_CLUSTER) == Some(cluster)
    }

    /// Whether it is of this role.
    pub fn is(&self, role: Role) -> bool {
        self.label(LABEL_ROLE) == Some(role.as_str())
    }

    /// The run that it serves.
    pub fn job(&self) -> Option<&str> {
        self.label(LABEL_JOB)
    }
}

/// What the workspace of a worker has to be.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Workspace {
    /// Whatever was mounted last; `up` does not care.
    Any,
    /// Exactly what the desired container says.
    AsDesired,
    /// The same, and its folder was made anew, so that an old mount shows nothing of it.
    Renewed,
}

/// One step on one node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Operation {
    /// Remove a container of ours.
    Remove {
        /// Its name, for people.
        name: String,
        /// Its id, which is what is removed.
        id: String,
        /// Why.
        why: Vec<String>,
    },
    /// Get the image from its registry. It is done before the rest is planned, because only then its id is known.
    Pull {
        /// Its reference.
        image: String,
    },
    /// Make the desired container and start it.
    Create(Box<Desired>),
    /// Start one that is there.
    Start {
        /// Its name.
        name: String,
    },
}

impl fmt::Display for Operation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Operation::Remove { name, why, .. } => write!(f, "remove {name} ({})", why.join(", ")),
            Operation::Pull { image } => write!(f, "pull {image}"),
            Operation::Create(desired) => match &desired.workspace {
                Some(workspace) => write!(f, "start {} with {workspace}", desired.name),
                None => write!(f, "start {}", desired.name),
            },
            Operation::Start { name } => write!(f, "start {name} again"),
        }
    }
}

/// A container that has the name we need and is not ours.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("a container named {name} is there already and {}", match .cluster {
    Some(cluster) => format!("belongs to the cluster {cluster}"),
    None => "was not made by hvdctl".to_owned(),
})]
pub struct Foreign {
    /// The name that is taken.
    pub name: String,
    /// Another hvdctl cluster that it belongs to.
    pub cluster: Option<String>,
}

/// The operations that bring a node's worker to the desired state; empty when it is there.
///
/// # Errors
/// [`Foreign`] when the name is taken by a container that is not this cluster's; nothing may be done then.
pub fn worker(
    desired: &Desired,
    image_id: &str,
    workspace: &Workspace,
    seen: &[Seen],
) -> Result<Vec<Operation>, Foreign> {
    let mut operations = Vec::new();
    let mut there = false;
    for container in seen {
        let ours = container.belongs_to(&desired.cluster);
        if container.name == desired.name {
            if !ours {
                return Err(Foreign {
                    name: container.name.clone(),
                    cluster: container.label(LABEL_CLUSTER).map(str::to_owned),
                });
            }
            let why = differences(desired, image_id, workspace, container);
            if why.is_empty() {
                there = true;
                if !container.running {
                    operations.push(Operation::Start { name: container.name.clone() });
                }
            } else {
                operations.push(remove(container, why));
            }
        } else if ours && container.is(Role::Worker) {
            // the inventory gave the worker another name since
            operations.push(remove(container, vec!["renamed".into()]));
        }
    }
    if !there {
        operations.push(Operation::Create(Box::new(desired.clone())));
    }
    Ok(operations)
}

fn remove(container: &Seen, why: Vec<String>) -> Operation {
    Operation::Remove { name: container.name.clone(), id: container.id.clone(), why }
}

/// In what a worker of ours differs from the desired one.
pub fn differences(desired: &Desired, image_id: &str, workspace: &Workspace, seen: &Seen) -> Vec<String> {
    let mut why = Vec::new();
    if seen.label(LABEL_SPEC) != Some(desired.spec.hash().as_str()) {
        why = desired.spec.differences(seen.label(LABEL_SPEC_FULL).unwrap_or_default());
        if why.is_empty() {
            why.push("spec".into());
        }
    }
    if seen.image_id != image_id && !why.iter().any(|w| w == "image") {
        why.push("image".into());
    }
    if !seen.is(desired.role) {
        why.push("role".into());
    }
    let same = match workspace {
        Workspace::Any => true,
        Workspace::AsDesired => seen.label(LABEL_WORKSPACE) == desired.workspace.as_deref(),
        Workspace::Renewed => false,
    };
    if !same {
        why.push("workspace".into());
    }
    why
}

/// The run whose launcher is up among these containers.
pub fn running_job<'a>(cluster: &str, seen: &'a [Seen]) -> Option<&'a str> {
    let master = seen.iter().find(|c| c.belongs_to(cluster) && c.is(Role::Master) && c.running)?;
    Some(master.job().unwrap_or("unknown"))
}

/// The operations of `down`: everything that this cluster's label is on, and nothing else.
pub fn down(cluster: &str, seen: &[Seen]) -> Vec<Operation> {
    seen.iter().filter(|c| c.belongs_to(cluster)).map(|c| remove(c, vec!["down".into()])).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::core::inventory::Inventory;
    use crate::core::spec::GpuRequest;
    use proptest::prelude::*;

    /// What an engine would hold after the operations: the model that the properties check against.
    fn apply(seen: &[Seen], operations: &[Operation], image_id: &str) -> Vec<Seen> {
        let mut after = seen.to_vec();
        for operation in operations {
            match operation {
                Operation::Pull { .. } => {}
                Operation::Remove { id, .. } => after.retain(|c| c.id != *id),
                Operation::Start { name } => {
                    let container = after.iter_mut().find(|c| c.name == *name).expect("starts what is there");
                    container.running = true;
                }
                Operation::Create(desired) => {
                    assert!(after.iter().all(|c| c.name != desired.name), "name clash");
                    after.push(Seen {
                        name: desired.name.clone(),
                        id: format!("new-{}", desired.name),
                        image_id: image_id.into(),
                        running: true,
                        labels: desired.labels(),
                    });
                }
            }
        }
        after
    }

    fn desired(port: u16, gpus: bool, workspace: Option<&str>) -> Desired {
        let Inventory { mut cluster, nodes, .. } = Inventory::local("here", "image");
        let gpus = if gpus { GpuRequest::All } else { GpuRequest::None };
        cluster.name = "lab".into();
        cluster.port = port;
        Desired {
            workspace: workspace.map(str::to_owned),
            ..Desired::worker(&cluster, &nodes[0], gpus, [10, 0, 0, 1].into())
        }
    }

    fn seen(desired: &Desired, image_id: &str, running: bool) -> Seen {
        Seen {
            name: desired.name.clone(),
            id: "1".into(),
            image_id: image_id.into(),
            running,
            labels: desired.labels(),
        }
    }

    fn words(operations: &[Operation]) -> Vec<String> {
        operations.iter().map(ToString::to_string).collect()
    }

    #[test]
    fn table() {
        let want = desired(12345, true, None);
        let plan = |seen: &[Seen]| worker(&want, "img", &Workspace::Any, seen).map(|o| words(&o));
        assert_eq!(plan(&[]).unwrap(), ["start hworker"]);
        assert_eq!(plan(&[seen(&want, "img", true)]).unwrap(), Vec::<String>::new());
        assert_eq!(plan(&[seen(&want, "img", false)]).unwrap(), ["start hworker again"]);
        assert_eq!(plan(&[seen(&want, "old", true)]).unwrap(), ["remove hworker (image)", "start hworker"]);
        let other = desired(22, false, None);
        assert_eq!(plan(&[seen(&other, "img", true)]).unwrap(), ["remove hworker (gpus, port)", "start hworker"]);
        let mut foreign = seen(&want, "img", true);
        foreign.labels.clear();
        let error = plan(std::slice::from_ref(&foreign)).unwrap_err().to_string();
        assert_eq!(error, "a container named hworker is there already and was not made by hvdctl");
        foreign.labels.insert(LABEL_CLUSTER.into(), "other".into());
        let error = plan(&[foreign]).unwrap_err().to_string();
        assert_eq!(error, "a container named hworker is there already and belongs to the cluster other");
    }

    #[test]
    fn a_workspace_matters_only_to_a_run() {
        let plain = desired(12345, true, None);
        let with = desired(12345, true, Some("/opt/horovod/projects/a"));
        let there = [seen(&with, "img", true)];
        assert!(worker(&plain, "img", &Workspace::Any, &there).unwrap().is_empty());
        assert!(worker(&with, "img", &Workspace::AsDesired, &there).unwrap().is_empty());
        let other = desired(12345, true, Some("/opt/horovod/projects/b"));
        let plan = worker(&other, "img", &Workspace::AsDesired, &there).unwrap();
        assert_eq!(words(&plan), ["remove hworker (workspace)", "start hworker with /opt/horovod/projects/b"]);
    }

    fn any_seen() -> impl Strategy<Value = Seen> {
        (
            prop::sample::select(vec!["hworker", "hmaster", "old-worker", "postgres"]),
            prop::option::of(prop::sample::select(vec!["lab", "other"])),
            prop::sample::select(vec![Role::Worker, Role::Master]),
            prop::sample::select(vec!["img", "old"]),
            any::<bool>(),
            (prop::sample::select(vec![22u16, 12345]), any::<bool>()),
            prop::option::of(prop::sample::select(vec!["/a", "/b"])),
        )
            .prop_map(|(name, cluster, role, image, running, (port, gpus), workspace)| {
                let mut labels = BTreeMap::new();
                if let Some(cluster) = cluster {
                    labels = desired(port, gpus, workspace).labels();
                    labels.insert(LABEL_CLUSTER.into(), cluster.into());
                    labels.insert(LABEL_ROLE.into(), role.as_str().into());
                }
                Seen { name: name.into(), id: String::new(), image_id: image.into(), running, labels }
            })
    }

    proptest! {
        #[test]
        fn plan_after_apply_is_empty_and_others_stay(
            containers in prop::collection::vec(any_seen(), 0..5),
            exact in any::<bool>(),
        ) {
            // an engine never holds two containers of one name
            let mut containers = containers;
            containers.sort_by(|a, b| a.name.cmp(&b.name));
            containers.dedup_by(|a, b| a.name == b.name);
            for (i, c) in containers.iter_mut().enumerate() { c.id = i.to_string(); }

            let want = desired(12345, true, Some("/a"));
            let workspace = if exact { Workspace::AsDesired } else { Workspace::Any };
            if let Ok(operations) = worker(&want, "img", &workspace, &containers) {
                let after = apply(&containers, &operations, "img");
                prop_assert!(worker(&want, "img", &workspace, &after).unwrap().is_empty());
                prop_assert!(after.iter().any(|c| c.name == "hworker" && c.running));
                for c in containers.iter().filter(|c| !c.belongs_to("lab") || c.is(Role::Master) && c.name != "hworker") {
                    prop_assert!(after.contains(c), "{} was touched", c.name);
                }
                let none = apply(&after, &down("lab", &after), "img");
                prop_assert!(none.iter().all(|c| !c.belongs_to("lab")));
                prop_assert!(down("lab", &none).is_empty());
            } else {
                prop_assert!(containers.iter().any(|c| c.name == "hworker" && !c.belongs_to("lab")));
            }
        }
    }
}
