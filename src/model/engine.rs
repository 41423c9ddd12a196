//! The container engines that hvdctl uses.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// The engine of a node.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
#[schemars(rename = "Engine")]
pub enum EngineName {
    /// Docker Engine.
    #[default]
    Docker,
    /// Podman.
    Podman,
}

impl EngineName {
    /// Returns its product name.
    pub fn product(self) -> &'static str {
        match self {
            EngineName::Docker => "Docker",
            EngineName::Podman => "Podman",
        }
    }

    /// Returns its name with an article where it needs one, for messages.
    pub fn noun(self) -> &'static str {
        match self {
            EngineName::Docker => "the Docker Engine",
            EngineName::Podman => "Podman",
        }
    }

    /// Returns it with its version, e.g. `Podman 4.3.1`.
    pub fn with(self, version: &str) -> String {
        format!("{} {version}", self.product())
    }

    /// Returns its command.
    pub fn command(self) -> &'static str {
        match self {
            EngineName::Docker => "docker",
            EngineName::Podman => "podman",
        }
    }
}

/// The engine that the inventory asks for.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum EngineChoice {
    /// Docker where it is installed, else Podman.
    #[default]
    Auto,
    /// Docker.
    Docker,
    /// Podman.
    Podman,
}

/// The runtime of the ranks on the nodes of a cluster.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum RuntimeChoice {
    /// Containers of the nodes' engine.
    #[default]
    Container,
    /// Processes of the login, without an engine or root.
    Process,
    /// Processes of the login that Slurm starts. An inventory selects it by its table `[slurm]`.
    Slurm,
}
