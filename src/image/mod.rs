//! Images: their archives, names and platforms, the parts of them that nodes have, and images that are built.
//!
//! The image of a push comes from an archive ([`archive`]), which is read in place; a compressed one is spooled first
//! ([`mod@file`]). `delivery` brings it to the nodes.
//!
//! A project's additions to the cluster's image are its [`setup`], or a Dockerfile ([`dockerfile`]) that replaces that
//! image; [`build`] makes an image of them on one node. [`names`] are those that hvdctl gives, [`status`] compares the
//! images of nodes, and [`unused`] images may be removed.

pub mod archive;
pub mod build;
pub mod dockerfile;
pub mod file;
pub mod names;
pub mod setup;
pub mod status;
pub mod unused;
