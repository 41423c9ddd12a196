//! The project: what belongs to it, how it reaches the nodes, and how outputs come back.

pub mod download;
pub mod files;
pub mod manifest;
pub mod outputs;
pub mod project;
pub mod upload;
