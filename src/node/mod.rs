//! What one look at a node found: its system, addresses, GPUs.

pub mod facts;
pub mod gpus;
pub mod network;
