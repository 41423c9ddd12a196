//! The edges: each outside thing is spoken to in exactly one module.
//!
//! `link` runs programs on a node (over `ssh`, or here), `docker` is the only user of bollard, `keys` of ssh-key,
//! `tree` of the file system of a project. The scripts that run on the nodes are files in `scripts/`.

pub mod docker;
pub mod keys;
pub mod link;
pub mod ssh;
pub mod tree;
