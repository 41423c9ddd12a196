//! Containers as the engine lists them.

use super::spec::{LABEL_CLUSTER, LABEL_FORMAT, LABEL_JOB, LABEL_ROLE, LABEL_SPEC_FULL, Role};
use crate::inventory::Cluster;
use crate::model::format::{self, NewerFormat};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// The state of a container, as in `docker ps -a --format '{{.State}}'`.
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
}

impl ContainerState {
    /// Returns whether it has processes, or the engine will start some by itself.
    pub fn is_up(self) -> bool {
        matches!(self, ContainerState::Running | ContainerState::Paused | ContainerState::Restarting)
    }

    /// Returns why a worker in this state has to be recreated, if it has to. hvdctl sets no restart policy; a
    /// restarting container was modified by another program, and keeps exiting.
    pub fn defect(self) -> Option<&'static str> {
        match self {
            ContainerState::Created => Some("never started"),
            ContainerState::Restarting => Some("restarting"),
            ContainerState::Removing => Some("half removed"),
            ContainerState::Dead => Some("dead"),
            ContainerState::Running | ContainerState::Paused | ContainerState::Exited => None,
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
    /// The id of the image that it was created from.
    pub image_id: String,
    /// Its state.
    pub state: ContainerState,
    /// Its labels.
    pub labels: BTreeMap<String, String>,
    /// When it was created, in seconds since the epoch by the node's clock, if known.
    pub created: Option<i64>,
}

impl ContainerSummary {
    /// Returns the value of a label.
    pub fn label(&self, name: &str) -> Option<&str> {
        self.labels.get(name).map(String::as_str)
    }

    /// Returns the name of the image that it was created from, if its labels say that.
    pub fn spec_image(&self) -> Option<String> {
        let spec: serde_json::Value = serde_json::from_str(self.label(LABEL_SPEC_FULL)?).ok()?;
        spec["image"].as_str().map(str::to_owned)
    }

    /// Returns whether it belongs to this cluster.
    pub fn belongs_to(&self, cluster: &str) -> bool {
        self.label(LABEL_CLUSTER) == Some(cluster)
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

/// Returns the containers of a cluster's launchers among these, whether they are up or not.
pub fn launchers<'a>(cluster: &'a str, all: &'a [ContainerSummary]) -> impl Iterator<Item = &'a ContainerSummary> {
    all.iter().filter(move |container| container.belongs_to(cluster) && container.is(Role::Master))
}
