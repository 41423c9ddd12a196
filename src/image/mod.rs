//! Images without a registry: what of an image is where, and its distribution.
//!
//! For a push hvdctl is a read-only registry ([`registry`]) of one image. A port of each node's 127.0.0.1, where engines ask for no
//! TLS, leads to it over an SSH connection, and the node's own engine pulls from there ([`push`]): it asks only for layers that it does
//! not have, and verifies each by its digest. The image comes from an archive ([`archive`]) that is read in place; what is
//! compressed ([`mod@file`]) and the image of an engine ([`source`]) is spooled first.
//!
//! Where several nodes need it, or a node has it, each node runs a [`relay`], so that this process sends it once or not at all.
//!
//! What a project needs besides the cluster's image is its [`setup`], or a Dockerfile ([`dockerfile`]) in place of that image, of which
//! [`build`] makes an image on one node.

pub mod archive;
pub mod build;
pub mod dockerfile;
pub mod file;
pub mod incoming;
pub mod manifest;
pub mod names;
pub mod push;
pub mod registry;
pub mod relay;
pub mod setup;
pub mod source;
pub mod status;
