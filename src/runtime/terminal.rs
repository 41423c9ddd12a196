//! A program on a node between its terminal there and the operator's.

use crate::error::{Error, NodeError};
use crate::terminal::Raw;
use crate::transport::node::Process;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::signal::unix::{SignalKind, signal};

/// The most bytes of a frame of what was typed.
const MOST: usize = 4096;

/// Shows a program that `scripts/process/terminal.py` runs on the operator's terminal, which is in raw mode meanwhile,
/// and returns its exit code.
///
/// # Errors
/// When the connection is lost, or the terminal cannot be used.
pub(super) async fn run(node: &str, mut process: Process) -> Result<i64, Error> {
    let terminal = Raw::new().map_err(terminal_error)?;
    let mut input = process.take_stdin();
    let output = std::mem::replace(&mut process.stdout, Box::pin(tokio::io::empty()));
    let ended = tokio::select! {
        ended = show(node, output, &terminal) => ended,
        ended = send_frames(&terminal, &mut input) => ended,
    };
    drop((terminal, input));
    ended?;
    let failed = |cause: &dyn std::fmt::Display| NodeError::failed(node, "open a shell", cause);
    let ended = process.finish(b"").await.map_err(|error| failed(&error))?;
    match ended.complaint().trim() {
        "" => Ok(ended.code.into()),
        said => Err(failed(&said).into()),
    }
}

/// Sends what is typed and the size of the terminal, now and at each change. Returns only an error: whether the program
/// has ended is seen from its output.
async fn send_frames(terminal: &Raw, input: &mut (impl AsyncWrite + Unpin)) -> Result<(), Error> {
    let mut changes = signal(SignalKind::window_change()).map_err(terminal_error)?;
    let mut buffer = vec![0; MOST];
    let mut frame = size(terminal);
    loop {
        if input.write_all(&frame).await.is_err() || input.flush().await.is_err() {
            return std::future::pending().await;
        }
        frame = tokio::select! {
            typed = terminal.read(&mut buffer) => typed_frame(typed, &buffer)?,
            _ = changes.recv() => size(terminal),
        };
    }
}

/// Returns the frame of the terminal's rows and columns.
fn size(terminal: &Raw) -> Vec<u8> {
    let (rows, columns) = terminal.size();
    [&b"s"[..], &rows.to_be_bytes(), &columns.to_be_bytes()].concat()
}

/// Returns the frame of what was read into the buffer.
fn typed_frame(typed: std::io::Result<usize>, buffer: &[u8]) -> Result<Vec<u8>, Error> {
    match typed.map_err(terminal_error)? {
        0 => Err(terminal_error(std::io::Error::other("the terminal was closed"))),
        n => Ok([&b"d"[..], &(n as u16).to_be_bytes(), &buffer[..n]].concat()),
    }
}

/// Shows what a program writes until its terminal is closed.
pub(super) async fn show(node: &str, mut output: impl AsyncRead + Unpin, terminal: &Raw) -> Result<(), Error> {
    let mut buffer = vec![0; 64 * 1024];
    loop {
        let lost = |e| NodeError::failed(node, "read the shell's output", e);
        match output.read(&mut buffer).await.map_err(lost)? {
            0 => return Ok(()),
            n => terminal.write(&buffer[..n]).await.map_err(terminal_error)?,
        }
    }
}

/// Sends what is typed. Returns only an error: whether the program has ended is seen from its output.
pub(super) async fn send_keys(terminal: &Raw, mut input: impl AsyncWrite + Unpin) -> Result<(), Error> {
    let mut buffer = vec![0; MOST];
    loop {
        let typed = match terminal.read(&mut buffer).await.map_err(terminal_error)? {
            0 => return Err(terminal_error(std::io::Error::other("the terminal was closed"))),
            n => &buffer[..n],
        };
        if input.write_all(typed).await.is_err() || input.flush().await.is_err() {
            return std::future::pending().await;
        }
    }
}

pub(super) fn terminal_error(error: std::io::Error) -> Error {
    Error::Local(format!("cannot use the terminal: {error}"))
}
