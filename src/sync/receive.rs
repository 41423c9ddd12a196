//! Receives a tar stream from a node, and unpacks it here as it arrives.

use crate::error::NodeError;
use crate::sync::contents::KEPT_MODE;
use crate::transport::node::{Output, RunAs, Transport};
use std::cell::Cell;
use std::io::{self, ErrorKind, Read};
use std::iter;
use std::rc::Rc;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::task::{JoinError, JoinSet, spawn_blocking};
use tokio_util::io::SyncIoBridge;

/// Bytes that are read at once.
const PIECE: usize = 256 * 1024;

/// The most bytes of headers and names before the contents of an entry, which are kept in memory.
const MAX_HEAD: u64 = 64 << 10;

/// The tar stream of a node, which may be hostile: it can neither fill this machine's memory nor give a file modes of
/// its choice.
pub(super) struct TarStream<R: Read> {
    archive: tar::Archive<Limited<R>>,
    /// The bytes that may be read.
    left: Rc<Cell<u64>>,
}

/// A stream of which so many bytes may be read.
pub(super) struct Limited<R> {
    inner: R,
    left: Rc<Cell<u64>>,
}

impl<R: Read> TarStream<R> {
    pub(super) fn new(stream: R) -> TarStream<R> {
        let left = Rc::new(Cell::new(0));
        let mut archive = tar::Archive::new(Limited { inner: stream, left: Rc::clone(&left) });
        archive.set_preserve_permissions(true);
        archive.set_mask(!KEPT_MODE);
        // `fetch/below.sh` sends one archive after the other
        archive.set_ignore_zeros(true);
        TarStream { archive, left }
    }

    /// Returns its entries. Each has to be read to its end before the next one.
    ///
    /// # Errors
    /// [`ErrorKind::FileTooLarge`] if an entry has too long a name; others if the stream breaks.
    pub(super) fn entries(
        &mut self,
    ) -> io::Result<impl Iterator<Item = io::Result<tar::Entry<'_, Limited<R>>>> + use<'_, R>> {
        let (mut entries, left) = (self.archive.entries()?, &self.left);
        Ok(iter::from_fn(move || {
            left.set(MAX_HEAD);
            let entry = entries.next();
            left.set(u64::MAX);
            entry
        }))
    }
}

impl<R: Read> Read for Limited<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let left = self.left.get();
        if left == 0 {
            return Err(io::Error::new(ErrorKind::FileTooLarge, "the node sends a name that is too long"));
        }
        let most = usize::try_from(left).map_or(buffer.len(), |left| left.min(buffer.len()));
        let count = self.inner.read(&mut buffer[..most])?;
        self.left.set(left - count as u64);
        Ok(count)
    }
}

/// Runs a program as root on a node, and passes its output to `unpack`, which may block. Returns what `unpack`
/// returned, and whether the program succeeded; an `unpack` that returns before the end of the output is not the
/// program's failure. `received` is called with the number of bytes so far.
pub(super) async fn receive<T: Send + 'static>(
    transport: &Transport,
    argv: &[&str],
    input: Vec<u8>,
    operation: &str,
    unpack: impl FnOnce(&mut dyn Read) -> T + Send + 'static,
    mut received: impl FnMut(u64),
) -> (Result<T, JoinError>, Result<(), NodeError>) {
    let (mut pipe, stream) = tokio::io::duplex(4 * PIECE);
    let mut stream = SyncIoBridge::new(stream);
    let unpacking = spawn_blocking(move || unpack(&mut stream));
    let receiving = async move {
        let mut process = transport.spawn(RunAs::Root, argv, operation).await?;
        let stderr = process.collect_stderr();
        let mut stdin = process.take_stdin();
        // it may write before it has read all of its input
        let mut feeding = JoinSet::new();
        feeding.spawn(async move {
            let _ = stdin.write_all(&input).await;
            let _ = stdin.shutdown().await;
        });
        let (mut buffer, mut bytes, limit) = (vec![0; PIECE], 0, transport.limit());
        loop {
            let n = transport.within(process.stdout.read(&mut buffer), operation, limit).await?;
            if n == 0 {
                break;
            }
            if pipe.write_all(&buffer[..n]).await.is_err() {
                return Ok(());
            }
            bytes += n as u64;
            received(bytes);
        }
        let ended = transport.within(process.finish(&[]), operation, limit).await?;
        let stderr = stderr.await.unwrap_or_default().into_bytes();
        transport.succeeded(Output { stderr, ..ended }, operation).map(drop)
    };
    let received = receiving.await;
    (unpacking.await, received)
}
