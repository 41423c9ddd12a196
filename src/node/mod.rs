//! The observed state of a node: its system, addresses, GPUs and their health.

pub mod accelerators;
pub mod facts;
pub mod gpus;
pub mod health;
pub mod interfaces;
pub mod jobs;
pub mod key_directory;
pub mod lines;
pub mod names;
pub mod network;
pub mod permissions;
pub mod storage;
