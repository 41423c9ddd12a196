//! Receives a tar stream from a node, and unpacks it here as it arrives.

use crate::error::NodeError;
use crate::transport::node::{Output, RunAs, Transport};
use std::io::Read;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::task::{JoinError, JoinSet, spawn_blocking};
use tokio_util::io::SyncIoBridge;

/// Bytes that are read at once.
const PIECE: usize = 256 * 1024;

/// Runs a program as root on a node, and passes its output to `unpack`, which may block. Returns what `unpack` returned, and whether the
/// program succeeded; an `unpack` that returns before the end of the output is not the program's failure. `received` is called with the
/// number of bytes so far.
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
