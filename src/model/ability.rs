//! The abilities of clusters: how one differs from another by what runs its ranks.

use super::engine::RuntimeChoice;

/// The abilities of hvdctl on the nodes of a cluster, and how messages call what is there. Code asks for an ability by its
/// name, and not for the runtime that has it.
#[derive(Debug)]
pub struct Abilities {
    /// The nodes have a container engine, and with it images and containers.
    pub images: bool,
    /// hvdctl mounts directories where programs look for them, with paths of its own.
    pub mounts: bool,
    /// hvdctl and ranks are root on the nodes, or in the containers there.
    pub root: bool,
    /// Ranks run in workers that are up between jobs.
    pub workers: bool,
    /// All nodes share the directories of hvdctl, and are reached through the login node.
    pub shared_directory: bool,
    /// hvdctl knows the nodes and chooses those of a job; otherwise it submits the job to what chooses them.
    pub choose_nodes: bool,
    /// The environment of ranks, as messages call it.
    pub surroundings: &'static str,
}

const CONTAINERS: Abilities = Abilities {
    images: true,
    mounts: true,
    root: true,
    workers: true,
    shared_directory: false,
    choose_nodes: true,
    surroundings: "the image",
};

const PROCESSES: Abilities =
    Abilities { images: false, mounts: false, root: false, surroundings: "the environment of ranks", ..CONTAINERS };

const BATCH_JOBS: Abilities = Abilities { workers: false, shared_directory: true, choose_nodes: false, ..PROCESSES };

impl RuntimeChoice {
    /// Returns what hvdctl can do with ranks that run in this way.
    pub const fn abilities(self) -> &'static Abilities {
        match self {
            RuntimeChoice::Container => &CONTAINERS,
            RuntimeChoice::Process => &PROCESSES,
            RuntimeChoice::Slurm => &BATCH_JOBS,
        }
    }
}
