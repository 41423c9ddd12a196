//! The worker of each node: what it should be, the plan that makes it so, and its execution.

pub mod apply;
pub mod image;
pub mod names;
pub mod plan;
