//! Transfer of projects and outputs.
//!
//! Upload: [`files`] reads the project here, [`manifest`] compares it with what a node has, [`upload`] sends the difference and checks
//! the node's proof. Download: [`outputs`] decides what goes where, [`download`] receives it, [`target`] puts it in its place.
//! [`project`] has the project's name and command.

pub mod download;
pub mod files;
pub mod manifest;
pub mod outputs;
pub mod project;
pub mod target;
pub mod upload;

use crate::inventory::Cluster;
use crate::transport::node::Transport;
use std::time::Duration;

/// Returns the argv of a script that begins with `upload_common.sh`. Its standard input is free for the project's files.
fn script<'a>(script: &'a str, cluster: &'a Cluster, project: &'a str, arguments: &[&'a str]) -> Vec<&'a str> {
    [&["sh", "-c", script, "sh", &cluster.projects_dir, project, &cluster.name], arguments].concat()
}

/// Returns the time limit for a script that reads this many bytes, also from a slow disk.
fn reading_limit(transport: &Transport, bytes: u64) -> Duration {
    /// Bytes per second.
    const SLOWEST_DISK: u64 = 20 << 20;
    transport.limit() + Duration::from_secs(bytes / SLOWEST_DISK)
}
