//! Many nodes at once: connecting, observing, and the locks that a command holds.

pub mod cancellation;
pub mod each_node;
pub mod exec;
pub mod fleet;
pub mod lock_set;
pub mod member;
pub mod node_lock;
pub mod observation;
pub mod operator;
pub mod session;
pub mod shared;
pub mod site;
pub mod target;
