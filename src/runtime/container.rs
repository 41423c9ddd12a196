//! Containers as the engine lists them.

use super::spec::{LABEL_CLUSTER, LABEL_JOB, LABEL_ROLE, Role};
use serde::Serialize;
use std::collections::BTreeMap;

/// What a container is doing, in the engine's words (`docker ps -a --format '{{.ContainerState}}'`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum ContainerState {
    /// Made and never started: its start failed, or whoever made it did not live to start it.
    Created,
    /// It runs.
    Running,
    /// Its processes are frozen.
    Paused,
    /// It ended, and the engine is about to start it again.
    Restarting,
    /// It ended.
    Exited,
    /// It is on its way out.
    Removing,
    /// It could not be removed as a whole.
    Dead,
}

impl ContainerState {
    /// Whether it has processes, or will have some without anybody's doing.
    pub fn is_up(self) -> bool {
        matches!(self, ContainerState::Running | ContainerState::Paused | ContainerState::Restarting)
    }

    /// Why it cannot become a running worker again; none where it can. hvdctl's containers have no restart policy, so one
    /// that restarts was changed by somebody, and keeps ending.
    pub fn broken(self) -> Option<&'static str> {
        match self {
            ContainerState::Created => Some("never started"),
            ContainerState::Restarting => Some("restarting"),
            ContainerState::Removing => Some("half removed"),
            ContainerState::Dead => Some("dead"),
            ContainerState::Running | ContainerState::Paused | ContainerState::Exited => None,
        }
    }
}

/// A container as an engine lists it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct ContainerSummary {
    /// Its name, without Docker's leading slash.
    pub name: String,
    /// Its full id.
    pub id: String,
    /// The id of the image that it was made from.
    pub image_id: String,
    /// What it is doing.
    pub state: ContainerState,
    /// Its labels.
    pub labels: BTreeMap<String, String>,
    /// When it was made, in whole seconds since the epoch by its node's clock; none where the engine does not say.
    pub created: Option<i64>,
}

impl ContainerSummary {
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

    /// The job that it serves.
    pub fn job(&self) -> Option<&str> {
        self.label(LABEL_JOB)
    }
}

/// Returns the containers of a cluster's launchers among these, whether they are up or not.
pub fn launchers<'a>(cluster: &'a str, all: &'a [ContainerSummary]) -> impl Iterator<Item = &'a ContainerSummary> {
    all.iter().filter(move |container| container.belongs_to(cluster) && container.is(Role::Master))
}
