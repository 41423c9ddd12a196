//! A job from its request to its record.
//!
//! `request` is what was asked for, `capacity` what is unallocated on the nodes, and `plan` the decision; `in_worker` asks the
//! workers that are up. `prepare` and `start` carry the plan out, `watch` follows the job with the state machine in `supervision`, and
//! `cleanup` removes what it left. `join` adds nodes to a running elastic job. `record`, `frames` and `list` read what is stored of a
//! job; `manage`, `logs` and `fetch` work on jobs that were started earlier.

pub mod capacity;
pub mod cleanup;
mod directory;
pub mod fetch;
mod follow;
pub mod frames;
pub mod in_worker;
pub mod join;
pub mod list;
pub mod logs;
pub mod manage;
pub mod monitor;
mod node_log;
pub mod outcome;
pub mod plan;
mod prepare;
pub mod record;
pub mod request;
pub mod restart;
pub mod start;
pub mod supervision;
mod waits;
pub mod watch;
