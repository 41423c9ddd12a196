//! Many nodes at once: connecting, observing, and the locks that a command holds.

pub mod exec;
pub mod node_lock;
pub mod nodes;
pub mod turn;
