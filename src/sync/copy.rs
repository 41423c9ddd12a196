//! Copies a job's project from one of its nodes, so that it can be uploaded to another one.

use crate::error::NodeError;
use crate::sync::NodeProject;
use crate::sync::receive::receive;
use std::io::{self, Read};
use std::path::Path;

const COPY: &str = concat!(include_str!("../scripts/upload_common.sh"), include_str!("../scripts/project_copy.sh"));

/// The operation, for messages.
const OPERATION: &str = "copy the job's project";

impl NodeProject<'_> {
    /// Copies the files that were uploaded for the job into a directory here.
    ///
    /// # Errors
    /// If a file was removed or is being changed, or the directory cannot be written.
    pub async fn copy(&self, directory: &Path) -> Result<(), NodeError> {
        let (argv, directory) = (self.argv(COPY, &[self.job]), directory.to_owned());
        let unpack = move |stream: &mut dyn Read| unpack(stream, &directory);
        let (unpacked, received) = receive(self.transport, &argv, Vec::new(), OPERATION, unpack, |_| {}).await;
        received?;
        let unpacked = unpacked.unwrap_or_else(|e| Err(io::Error::other(e)));
        unpacked.map_err(|e| NodeError::failed(self.transport.node(), OPERATION, e))
    }
}

/// Unpacks a tar stream, with the modes of its files and directories.
fn unpack(mut stream: &mut dyn Read, directory: &Path) -> io::Result<()> {
    let mut archive = tar::Archive::new(&mut stream);
    archive.set_preserve_permissions(true);
    archive.unpack(directory)?;
    // bytes after the end of the archive
    io::copy(&mut stream, &mut io::sink()).map(drop)
}
