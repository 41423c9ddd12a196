//! A job from its placement to its record: capacity, start, supervision, logs, end, cleanup.

pub mod allocation;
pub mod fetch;
pub mod frames;
pub mod list;
pub mod log_order;
pub mod manage;
pub mod record;
pub mod run;
pub mod tails;
