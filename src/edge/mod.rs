//! The edges: each outside thing is spoken to in exactly one module.
//!
//! `link` runs programs on a node (over `ssh`, or here) with the words of `access` and the password of `sudo`, `docker` is
//! the only user of bollard, `lease` holds a node's lease, `keys` of ssh-key, `tree` of the file system of a project,
//! `fetched` of a folder that is fetched into. `terminal` asks the operator,
//! `ssh_aliases` reads the operator's ssh configuration, `draft_file` writes an inventory. The scripts that run on the
//! nodes are files in `scripts/`.

pub mod access;
pub mod docker;
pub mod draft_file;
pub mod env_file;
pub mod fetched;
pub mod keys;
pub mod lease;
pub mod link;
pub mod ssh;
pub mod ssh_aliases;
pub mod sudo;
pub mod terminal;
pub mod tree;
