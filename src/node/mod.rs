//! The observed state of a node: its system, addresses and GPUs.

pub mod accelerators;
pub mod cdi;
pub mod differing;
pub mod facts;
pub mod gpus;
pub mod interfaces;
pub mod jobs;
pub mod key_directory;
pub mod lines;
pub mod mesh;
pub mod names;
pub mod network;
pub mod permissions;
pub mod reading;
pub mod storage;
