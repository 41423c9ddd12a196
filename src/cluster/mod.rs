//! Many nodes at once: connecting, observing, and the locks that a command holds.

pub mod cancellation;
pub mod exec;
pub mod fleet;
pub mod lock_set;
pub mod node_lock;
pub mod nodes;
pub mod session;
pub mod shared;
