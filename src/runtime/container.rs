//! Containers as the engine lists them.

use super::spec::{LABEL_CLUSTER, LABEL_FORMAT, LABEL_JOB, LABEL_NAME, LABEL_ROLE, LABEL_SPEC_FULL, Role};
use crate::inventory::Cluster;
use crate::model::format::{self, NewerFormat};
use crate::model::queue::QueueEntry;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// The state of a container, as in `docker ps -a --format '{{.State}}'`. Podman has further ones.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ContainerState {
    /// Created and never started: its start failed, or the command that created it was killed.
    Created,
    /// Running.
    Running,
    /// Its processes are frozen.
    Paused,
    /// It exited, and the engine is about to start it again.
    Restarting,
    /// It exited.
    Exited,
    /// It is being removed.
    Removing,
    /// It could not be removed completely.
    Dead,
    /// Its processes are being ended.
    Stopping,
    /// A scheduler has it in its queue.
    Queued,
    /// The engine does not know its state, or reports one that hvdctl does not know.
    #[serde(other)]
    Unknown,
}

impl ContainerState {
    /// Returns the state that an engine reports.
    pub fn parse(state: &str) -> ContainerState {
        match state {
            // Podman's names for one without processes that it has not cleaned up, and for one whose start was prepared
            "stopped" => ContainerState::Exited,
            "initialized" | "configured" => ContainerState::Created,
            other => serde_json::from_value(other.into()).unwrap_or(ContainerState::Unknown),
        }
    }

    /// Returns whether it has processes, or may have some, or the engine will start some by itself.
    pub fn is_up(self) -> bool {
        use ContainerState::{Paused, Queued, Restarting, Running, Stopping, Unknown};
        matches!(self, Running | Paused | Queued | Restarting | Stopping | Unknown)
    }

    /// Returns why a worker in this state has to be recreated, if it has to. hvdctl sets no restart policy; a
    /// restarting container was modified by another program, and keeps exiting.
    pub fn defect(self) -> Option<&'static str> {
        match self {
            ContainerState::Created => Some("never started"),
            ContainerState::Restarting => Some("restarting"),
            ContainerState::Removing => Some("half removed"),
            ContainerState::Dead => Some("dead"),
            ContainerState::Stopping => Some("stopping"),
            ContainerState::Unknown => Some("in an unknown state"),
            ContainerState::Queued | ContainerState::Running | ContainerState::Paused | ContainerState::Exited => None,
        }
    }
}

/// A container as the engine lists it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct ContainerSummary {
    /// Its name, without Docker's leading slash.
    pub name: String,
    /// Its full id.
    pub id: String,
    /// The image that it was created from, as it was named then; its id if it has another name since.
    pub image: String,
    /// The id of the image that it was created from.
    pub image_id: String,
    /// Its state.
    pub state: ContainerState,
    /// Its labels.
    pub labels: BTreeMap<String, String>,
    /// The time of its creation, in seconds since the epoch by the node's clock, if known.
    pub created: Option<i64>,
    /// Slurm's report about it.
    #[serde(skip)]
    pub queue: Option<QueueEntry>,
}

impl ContainerSummary {
    /// Returns the value of a label.
    pub fn label(&self, name: &str) -> Option<&str> {
        self.labels.get(name).map(String::as_str)
    }

    /// Returns whether hvdctl created it, and not a user from an image that was committed from such a container, and
    /// that has its labels. Earlier versions did not label it with its name: it must have the image that it was made
    /// from.
    fn is_hvdctls(&self) -> bool {
        match self.label(LABEL_NAME) {
            // the engine names them, and labels come from their command line
            _ if self.is(Role::Helper) => true,
            Some(name) => name == self.name,
            None => self.spec_image().is_none_or(|image| image == self.image || self.image.starts_with("sha256:")),
        }
    }

    /// Returns the name of the image that it was created from, if its labels say that.
    pub fn spec_image(&self) -> Option<String> {
        let spec: serde_json::Value = serde_json::from_str(self.label(LABEL_SPEC_FULL)?).ok()?;
        spec["image"].as_str().map(str::to_owned)
    }

    /// Returns whether it belongs to this cluster.
    pub fn belongs_to(&self, cluster: &str) -> bool {
        self.label(LABEL_CLUSTER) == Some(cluster) && self.is_hvdctls()
    }

    /// Returns whether it has this role.
    pub fn is(&self, role: Role) -> bool {
        self.label(LABEL_ROLE) == Some(role.as_str())
    }

    /// Checks that an hvdctl of this form of labels created it, or none.
    ///
    /// # Errors
    /// If a newer one did, whose labels may mean something else.
    pub fn check_format(&self) -> Result<(), NewerFormat> {
        self.label(LABEL_FORMAT).map_or(Ok(()), |found| format::check(found, format::LABELS))
    }

    /// Returns the job that it serves.
    pub fn job(&self) -> Option<&str> {
        self.label(LABEL_JOB)
    }
}

/// Returns the cluster's worker among a node's containers, if it is running.
pub fn running_worker<'a>(cluster: &Cluster, all: &'a [ContainerSummary]) -> Option<&'a ContainerSummary> {
    let is_worker = |c: &&ContainerSummary| {
        c.name == cluster.worker
            && c.belongs_to(&cluster.name)
            && c.is(Role::Worker)
            && c.state == ContainerState::Running
    };
    all.iter().find(is_worker)
}

/// The name of the container with the daemons of the cluster's queue.
pub const SLURM: &str = "hslurm";

/// The name of the container that starts and ends the containers of jobs for them.
pub const SLURM_AGENT: &str = "hslurm-agent";

/// Returns a node's container with the daemons of the cluster's queue, whatever its state.
pub fn of_slurm<'a>(cluster: &Cluster, all: &'a [ContainerSummary]) -> Option<&'a ContainerSummary> {
    with_role(cluster, all, Role::Slurm)
}

/// Returns a node's container of a role among those of the cluster, whatever its state.
pub fn with_role<'a>(cluster: &Cluster, all: &'a [ContainerSummary], role: Role) -> Option<&'a ContainerSummary> {
    all.iter().find(|container| container.belongs_to(&cluster.name) && container.is(role))
}

/// Returns the containers of a cluster's launchers among these, whether they are up or not.
pub fn launchers<'a>(cluster: &'a str, all: &'a [ContainerSummary]) -> impl Iterator<Item = &'a ContainerSummary> {
    all.iter().filter(move |container| container.belongs_to(cluster) && container.is(Role::Master))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::inventory::Inventory;
    use crate::runtime::spec::ContainerSpec;

    /// A container as the engine lists it, with these labels.
    fn listed(name: &str, image: &str, labels: BTreeMap<String, String>) -> ContainerSummary {
        ContainerSummary {
            name: name.into(),
            id: "1".into(),
            image: image.into(),
            image_id: "sha256:1".into(),
            state: ContainerState::Running,
            labels,
            created: None,
            queue: None,
        }
    }

    #[test]
    fn only_what_hvdctl_has_created_is_its_own() {
        let Inventory { cluster, nodes, .. } = Inventory::local("here", "img:1");
        let names = [
            (Role::Worker, "hworker"),
            (Role::Worker, "of another inventory"),
            (Role::Master, "hmaster"),
            (Role::Shell, "hmaster-shell-1f0c"),
            (Role::Setup, "hvdctl-setup-local-1f0c"),
            (Role::Relay, "hvdctl-relay-local-1f0c"),
        ];
        for (role, name) in names {
            let labels = ContainerSpec::new(&cluster, &nodes[0], role, name.into()).labels();
            let is_own = |name: &str, image: &str, labels: &BTreeMap<String, String>| {
                listed(name, image, labels.clone()).belongs_to("local")
            };
            assert!(is_own(name, "img:1", &labels) && is_own(name, "sha256:1", &labels), "{name}");
            // of a user, from an image that was committed from it
            assert!(!is_own("mine", "saved:1", &labels) && !is_own("mine", "sha256:2", &labels), "{name}");
            // created by an hvdctl that did not label it with its name
            let mut older = labels.clone();
            older.remove(LABEL_NAME);
            assert!(is_own(name, "img:1", &older) && is_own(name, "sha256:1", &older), "{name}");
            assert!(!is_own("mine", "saved:1", &older), "{name}");
        }
        // the name of a helper is the engine's choice, and its image may be one that was committed from a worker
        let mut labels = ContainerSpec::new(&cluster, &nodes[0], Role::Worker, "hworker".into()).labels();
        labels.insert(LABEL_ROLE.into(), Role::Helper.as_str().into());
        assert!(listed("happy_turing", "saved:1", labels).belongs_to("local"));
    }
}
