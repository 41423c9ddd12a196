//! The delivery of an image or data to nodes, from this machine or from each other.
//!
//! [`image`] and [`data`] say what is delivered and how one node gets it; `run` is common to both. If several nodes
//! need the same content, or a node has it, each node runs a [`relay`], so that this process sends it once or not at
//! all.
//!
//! For an image hvdctl is a read-only registry ([`registry`]). A port of each node's 127.0.0.1, where engines ask for
//! no TLS, leads to it over an SSH connection, and the node's own engine pulls from there ([`push`]): it asks only for
//! layers that it does not have, and verifies each by its digest. The image comes from an archive that is read in
//! place, or from an engine ([`source`]); [`origin`] finds out which machine has it.
//!
//! Nodes may also [`mod@pull`] an image from its registry. [`worker_image`] does so before workers are created, and
//! falls back to another source if a node cannot. The image of a [`project`] is built by its [`recipe`] on one node,
//! and given to the others.

pub mod data;
pub mod image;
pub mod incoming;
pub mod manifest;
pub mod origin;
pub mod project;
pub mod pull;
pub mod push;
pub mod recipe;
pub mod registry;
pub mod relay;
mod run;
pub mod source;
pub mod worker_image;
