//! The programs that start and connect the ranks of a job.

use clap::ValueEnum;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::fmt;

/// The program that starts the ranks of a job.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema, ValueEnum)]
#[serde(rename_all = "lowercase")]
#[schemars(rename = "Launcher")]
pub enum LauncherName {
    /// Horovod's launcher
    #[default]
    Horovodrun,
    /// PyTorch's: an agent on each node
    Torchrun,
    /// Open MPI's launcher
    Mpirun,
    /// No launcher: hvdctl starts every rank and sets its variables
    Env,
    /// Slurm's own, for jobs under Slurm: MPI of any kind
    Srun,
}

impl LauncherName {
    /// Returns whether a [`Controller`] can be chosen for it.
    pub fn has_controller(self) -> bool {
        self == LauncherName::Horovodrun
    }
}

impl fmt::Display for LauncherName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.serialize(f)
    }
}

/// Which cores the ranks of a node are bound to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema, ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum Bind {
    /// To the cores of its GPU's NUMA node
    Numa,
    /// To an equal share of the cores; ranks share cores only if there are more ranks than cores
    Core,
    /// Not at all
    None,
}

impl fmt::Display for Bind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.serialize(f)
    }
}

/// The behaviour of the ranks of an elastic job when nodes leave or join.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema, ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub enum ElasticMode {
    /// The ranks that are left continue from their last commit in memory (hvd.elastic, with Gloo)
    InPlace,
    /// All ranks are started again, and load what they saved
    Restart,
}

impl fmt::Display for ElasticMode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.serialize(f)
    }
}

/// Horovod's controller, which connects the ranks of `horovodrun`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema, ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum Controller {
    /// horovodrun --gloo
    Gloo,
    /// horovodrun --mpi
    Mpi,
}

/// Variables that hvdctl or a launcher sets for every rank, and that have no other use; `*` stands for any end of a
/// name. An inventory and `-e` cannot set them under any launcher. `launch::Launcher` has the variables of each
/// launcher.
pub const RESERVED_VARIABLES: [&str; 12] = [
    "HVDCTL_*",
    "HOROVOD_RANK",
    "HOROVOD_SIZE",
    "HOROVOD_LOCAL_*",
    "HOROVOD_CROSS_*",
    "HOROVOD_HOSTNAME",
    "HOROVOD_CONTROLLER",
    "HOROVOD_GLOO_RENDEZVOUS_*",
    "OMPI_COMM_WORLD_*",
    "PMI_*",
    "PMIX_RANK",
    "MPI_LOCALRANKID",
];

/// Returns whether a variable is one of [`RESERVED_VARIABLES`].
pub fn is_reserved(variable: &str) -> bool {
    RESERVED_VARIABLES.iter().any(|reserved| match reserved.strip_suffix('*') {
        Some(start) => variable.starts_with(start),
        None => variable == *reserved,
    })
}
