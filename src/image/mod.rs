//! Images: their archives, names and platforms, what of them nodes have, and images that are built.
//!
//! The image of a push comes from an archive ([`archive`]), which is read in place; what is compressed is spooled first
//! ([`mod@file`]). `delivery` brings it to the nodes.
//!
//! What a project needs besides the cluster's image is its [`setup`], or a Dockerfile ([`dockerfile`]) instead of that
//! image, of which [`build`] makes an image on one node. [`names`] are those that hvdctl gives, [`status`] compares
//! what nodes have, and [`unused`] images may go.

pub mod archive;
pub mod build;
pub mod dockerfile;
pub mod file;
pub mod names;
pub mod setup;
pub mod status;
pub mod unused;
