//! How a job begins.
//!
//! `request` is what was asked for, `liveness` which other jobs go on, `capacity` what these leave of the nodes, and
//! `plan` the decision; `availability` is why a job cannot have a node, and `in_worker` asks the workers that are up.
//! `prepare` and `execute` carry the plan out, and `imports` seeks a script's modules meanwhile; `queued` is for a job in the queue of the
//! cluster's own Slurm, and `slurm` submits a job to another one. `join` adds nodes to a running elastic job.
//! `by_hand` says how a program of a job starts ranks of its own.

pub mod availability;
mod by_hand;
pub mod capacity;
mod directory;
pub mod execute;
mod imports;
pub mod in_worker;
pub mod join;
pub mod liveness;
pub mod plan;
mod prepare;
pub mod queued;
pub mod request;
pub mod slurm;
