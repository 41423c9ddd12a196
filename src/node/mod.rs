//! The observed state of a node: its system, addresses, GPUs.

pub mod facts;
pub mod gpus;
pub mod names;
pub mod network;
