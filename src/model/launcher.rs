//! What starts and connects the ranks of a job.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::fmt;

/// The program that starts the ranks of a job.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
#[schemars(rename = "Launcher")]
pub enum LauncherName {
    /// Horovod's.
    #[default]
    Horovodrun,
    /// PyTorch's, one agent on each node.
    Torchrun,
    /// Open MPI's.
    Mpirun,
    /// None: hvdctl starts every rank, with the environment that frameworks read.
    Env,
}

impl LauncherName {
    /// All of them, by name.
    pub const ALL: [(&str, LauncherName); 4] = [
        ("horovodrun", LauncherName::Horovodrun),
        ("torchrun", LauncherName::Torchrun),
        ("mpirun", LauncherName::Mpirun),
        ("env", LauncherName::Env),
    ];
}

impl fmt::Display for LauncherName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = LauncherName::ALL.iter().find(|(_, launcher)| launcher == self);
        f.write_str(name.map_or("", |(name, _)| name))
    }
}

/// Horovod's controller, which connects the ranks of `horovodrun`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Controller {
    /// Horovod's own, over ssh.
    Gloo,
    /// `mpirun` of the image.
    Mpi,
}
