//! The runtime: what starts, inspects, enters and ends the containers in which ranks live.
//!
//! [`Runtime`] is one node's runtime, [`spec::ContainerSpec`] a desired container and [`container::ContainerSummary`]
//! an observed one; hvdctl keeps no state but the containers' labels (in [`spec`]). Docker implements it in `docker/`,
//! the only user of bollard; `transport` knows of Docker only how its engine, and root through it, are reached on a
//! node. A second runtime would be another directory, with `Runtime` as an enum of the two.

pub mod container;
pub mod credentials;
mod docker;
pub mod progress;
pub mod spec;

pub use docker::{
    DockerfileBuild, EXPORT_SILENCE, EngineInfo, Image, ListedImage, RootArchive, Runtime, image_content,
};
