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

/// The variable by which NVIDIA's runtime gives GPUs to a container; hvdctl sets it itself.
pub const VISIBLE_DEVICES: &str = "NVIDIA_VISIBLE_DEVICES";

/// Variables that an engine's runtime for accelerators reads when it creates a container, and that have no effect on a
/// program later (NVIDIA Container Toolkit, AMD Container Toolkit, Habana's and Ascend's runtimes).
const OF_RUNTIMES: &[&str] = &[
    VISIBLE_DEVICES,
    "NVIDIA_DRIVER_CAPABILITIES",
    "NVIDIA_DISABLE_REQUIRE",
    "NVIDIA_GDRCOPY",
    "NVIDIA_GDS",
    "NVIDIA_IMEX_CHANNELS",
    "NVIDIA_MIG_CONFIG_DEVICES",
    "NVIDIA_MIG_MONITOR_DEVICES",
    "NVIDIA_MOFED",
    "NVIDIA_NVSWITCH",
    "AMD_VISIBLE_DEVICES",
    "ASCEND_VISIBLE_DEVICES",
    "ASCEND_RUNTIME_OPTIONS",
    "HABANA_VISIBLE_DEVICES",
];

/// Returns true for a variable that has an effect only on the creation of a container.
pub fn is_of_runtime(variable: &str) -> bool {
    OF_RUNTIMES.contains(&variable) || variable.starts_with("NVIDIA_REQUIRE_")
}
