//! A job that exists: it is watched, ended, listed, and its logs and outputs are read.
//!
//! `watch` follows the logs of its nodes with the state machine in `supervision`, and `cleanup` ends what it left.
//! `manage` finds the jobs of a cluster, `logs`, `history`, `fetch` and `from_container` work on those that were started earlier.

pub mod cleanup;
pub mod fetch;
pub mod follow;
pub mod from_container;
pub mod history;
pub mod logs;
pub mod manage;
pub mod node_log;
pub mod py_spy;
pub mod queue;
pub mod roles;
pub mod stack;
pub mod supervision;
pub mod watch;
