//! Transfer of projects and outputs.
//!
//! Upload: [`files`] reads the project here, [`manifest`] compares it with what a node has, [`upload`] sends the difference and has
//! it proven. Download: [`outputs`] decides what goes where, [`download`] brings it, [`target`] puts it in its place. [`project`] has
//! the project's name and command.

pub mod download;
pub mod files;
pub mod manifest;
pub mod outputs;
pub mod project;
pub mod target;
pub mod upload;
