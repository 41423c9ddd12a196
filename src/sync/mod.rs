//! Transfer of projects and outputs.
//!
//! Upload: [`files`] reads the project here, without what `ignored` leaves out, and [`contents`] keeps what was hashed
//! until it is sent; [`manifest`] compares it with what a node has, which [`difference`] does once for nodes that have
//! the same, [`upload`] sends the difference and checks the node's proof. The room `data` pushes directories of data in
//! the same way. `build_context` selects what the build of a Dockerfile may read.
//!
//! Download: [`outputs`] decides what goes where, [`download`] receives it, [`target`] puts it in its place.
//!
//! [`project`] has the project's directory here, its name and command, [`commit`] its state in git. [`program`] finds
//! what would keep its command from starting, [`setup_files`] what its setup reads.

mod build_context;
pub mod commit;
pub mod contents;
pub mod difference;
pub mod download;
pub mod files;
mod ignored;
pub mod manifest;
pub mod outputs;
pub mod program;
pub mod project;
mod receive;
pub mod setup_files;
pub mod target;
pub mod text_files;
mod tree;
pub mod upload;

use crate::error::NodeError;
use crate::inventory::Cluster;
use crate::transport::node::{Output, RunAs, Transport};
use std::time::Duration;

/// The most bytes of a list of all files of a project, which may be hundreds of thousands.
const MAX_LIST: u64 = 512 << 20;

/// A job's project on one node.
#[derive(Debug, Clone, Copy)]
pub struct NodeProject<'a> {
    /// The cluster.
    pub cluster: &'a Cluster,
    /// The node.
    pub transport: &'a Transport,
    /// The project's name on the nodes.
    pub name: &'a str,
    /// The job's id.
    pub job: &'a str,
}

impl<'a> NodeProject<'a> {
    /// Returns the argv of a script that begins with `upload/common.sh`. Its standard input is free for the project's
    /// files.
    fn argv(&self, script: &'a str, arguments: &[&'a str]) -> Vec<&'a str> {
        [&["sh", "-c", script, "sh", &self.cluster.projects_dir, self.name, &self.cluster.name], arguments].concat()
    }

    /// See [`limit`].
    fn limit(&self, bytes: u64) -> Duration {
        limit(self.transport, bytes)
    }

    /// See [`run`].
    async fn run(&self, argv: &[&str], input: &[u8], operation: &str, bytes: u64) -> Result<Output, NodeError> {
        run(self.transport, argv, input, operation, bytes).await
    }
}

/// Returns why so many files and directories cannot be sent to a node, if its file system has room for fewer.
pub(crate) fn too_many(they: &str, needed: u64, free: Option<u64>, directory: &str) -> Option<String> {
    let free = free.filter(|free| needed > *free)?;
    let missing = needed - free;
    Some(format!(
        "{they} {needed} files and directories, and {directory} has room for {free} more: {missing} are missing"
    ))
}

/// Returns the time limit for a script that reads this many bytes, also from a slow disk.
pub(crate) fn limit(transport: &Transport, bytes: u64) -> Duration {
    /// Bytes per second.
    const SLOWEST_DISK: u64 = 20 << 20;
    transport.limit() + Duration::from_secs(bytes / SLOWEST_DISK)
}

/// Runs a script that reads this many bytes and may list all files of a project.
pub(crate) async fn run(
    transport: &Transport,
    argv: &[&str],
    input: &[u8],
    operation: &str,
    bytes: u64,
) -> Result<Output, NodeError> {
    let run = async { transport.start(RunAs::Root, argv).await?.finish_within(input, MAX_LIST).await };
    transport.succeeded(transport.within(run, operation, limit(transport, bytes)).await?, operation)
}

#[cfg(test)]
pub mod tests;
