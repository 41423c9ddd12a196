//! Copies a job's project from one of its nodes, so that it can be uploaded to another one.

use crate::error::NodeError;
use crate::sync::NodeProject;
use crate::transport::node::{Output, RunAs};
use std::io::{self, Read};
use std::path::Path;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::task::spawn_blocking;
use tokio_util::io::SyncIoBridge;

const COPY: &str = concat!(include_str!("../scripts/upload_common.sh"), include_str!("../scripts/project_copy.sh"));

/// Bytes that are read at once.
const PIECE: usize = 256 * 1024;

/// The operation, for messages.
const OPERATION: &str = "copy the job's project";

impl NodeProject<'_> {
    /// Copies the files that were uploaded for the job into a directory here.
    ///
    /// # Errors
    /// If a file was removed or is being changed, or the directory cannot be written.
    pub async fn copy(&self, directory: &Path) -> Result<(), NodeError> {
        let transport = self.transport;
        let limit = transport.limit();
        let (mut pipe, stream) = tokio::io::duplex(4 * PIECE);
        let (stream, directory) = (SyncIoBridge::new(stream), directory.to_owned());
        let unpacking = spawn_blocking(move || unpack(stream, &directory));
        let mut process = transport.spawn(RunAs::Root, &self.argv(COPY, &[self.job]), OPERATION).await?;
        let stderr = process.collect_stderr();
        let mut buffer = vec![0; PIECE];
        loop {
            let n = transport.within(process.stdout.read(&mut buffer), OPERATION, limit).await?;
            // if unpacking failed, its error is reported below
            if n == 0 || pipe.write_all(&buffer[..n]).await.is_err() {
                break;
            }
        }
        drop(pipe);
        let unpacked = unpacking.await.unwrap_or_else(|e| Err(io::Error::other(e)));
        unpacked.map_err(|e| NodeError::failed(transport.node(), OPERATION, e))?;
        let ended = transport.within(process.finish(&[]), OPERATION, limit).await?;
        match ended.code {
            0 => Ok(()),
            _ => {
                let stderr = stderr.await.unwrap_or_default().into_bytes();
                Err(transport.failed(&Output { stderr, ..ended }, OPERATION))
            }
        }
    }
}

/// Unpacks a tar stream, with the modes of its files and directories.
fn unpack(mut stream: impl Read, directory: &Path) -> io::Result<()> {
    let mut archive = tar::Archive::new(&mut stream);
    archive.set_preserve_permissions(true);
    archive.unpack(directory)?;
    // bytes after the end of the archive
    io::copy(&mut stream, &mut io::sink()).map(drop)
}
