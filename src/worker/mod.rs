//! The worker of each node: what it should be, the plan that makes it so, its keys, its execution, and whether it is
//! ready for ranks.

pub mod apply;
pub mod directories;
pub mod image;
pub mod keys;
pub mod logins;
pub mod names;
pub mod plan;
pub mod ready;
pub mod spec;
