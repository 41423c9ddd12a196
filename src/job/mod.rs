//! A job from its request to its record.
//!
//! `request` says what is asked, `capacity` what the nodes have left, `plan` decides, `cores` shows its cores; `prepare` and `start` carry the plan out, `watch`
//! follows the job with the state machine in `supervision`, and `cleanup` leaves nothing behind. `join` adds nodes to a running elastic job. What a job is remembered by is in
//! `record`, `frames` and `list`; `manage`, `logs` and `fetch` work on jobs that somebody started.

pub mod allocation;
pub mod capacity;
pub mod cleanup;
pub mod cores;
mod directory;
pub mod fetch;
mod follow;
pub mod frames;
pub mod join;
pub mod launcher_check;
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
pub mod watch;
