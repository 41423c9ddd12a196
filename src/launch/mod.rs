//! Which rank runs where, and what the launcher is given.

pub mod env_file;
pub mod horovodrun;
pub mod placement;
