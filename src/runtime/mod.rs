//! The runtime: what starts, inspects, enters and ends the containers in which ranks live.
//!
//! [`Runtime`] is one node's runtime, [`spec::ContainerSpec`] a desired container and [`container::ContainerSummary`]
//! an observed one; hvdctl keeps no state but the containers' labels (in [`spec`]). Docker and Podman implement it in
//! `docker/`, the only user of bollard; `transport` knows of them only how the engine, and root through it, are reached
//! on a node. A runtime without containers would be another directory, with `Runtime` as an enum of the two.

pub mod container;
pub mod credentials;
mod docker;
pub mod progress;
pub mod spec;

pub use docker::{
    DockerfileBuild, EXPORT_SILENCE, EngineInfo, Image, ListedImage, RootArchive, Runtime, image_content,
};
