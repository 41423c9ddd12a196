//! Programs that live as long as their standard input is open: never killed from here, and never left behind.

use super::process::{wait, was_started};
use super::{AtDrop, Output, Process, Transport};
use crate::error::NodeError;
use crate::transport::privileges::Start;
use std::io;
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncReadExt};
use tokio::time::timeout;

/// What a program that is told its end takes for it, at most: 5 s, and the way there and back.
const GRACE: Duration = Duration::from_secs(15);

/// As whom a program runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Who {
    /// The login itself.
    Login,
    /// Root.
    Root,
    /// Whoever may use the engine; the program is `docker`, and only its arguments are given.
    Docker,
}

/// What a program wrote that was read to its end.
#[derive(Debug)]
pub struct Heard {
    /// What was kept of it, and its exit code.
    pub output: Output,
    /// Bytes that were not kept.
    pub left_out: u64,
    /// Whether it was told to end, because the time was over.
    pub late: bool,
}

impl Transport {
    /// Starts a program whose life is that of its standard input.
    ///
    /// # Errors
    /// [`NodeError`] when the session is gone.
    pub async fn hold(&self, who: Who, argv: &[&str], tried: &str) -> Result<Process, NodeError> {
        let start = match who {
            Who::Login => Start { argv: argv.iter().map(|word| (*word).to_owned()).collect(), ..Start::default() },
            Who::Root => self.access.as_root(argv),
            Who::Docker => self.access.docker(argv),
        };
        let started = timeout(self.limit, self.start(&start, AtDrop::Closes)).await;
        let late = || io::Error::other(format!("it did not start within {} s", self.limit.as_secs()));
        started.unwrap_or_else(|_| Err(late())).map_err(|e| NodeError::failed(&self.node, tried, e))
    }
}

impl Process {
    /// Reads both outputs to their ends, and keeps at most `most` bytes of each. When the time is over its standard input is
    /// closed, which tells it to end.
    ///
    /// # Errors
    /// When a stream breaks, or it does not end after all.
    pub async fn hear(mut self, most: usize, limit: Option<Duration>) -> io::Result<Heard> {
        let stdin = self.take_stdin();
        let mut late = false;
        let read = {
            let both = async { tokio::try_join!(keep(&mut self.stdout, most), keep(&mut self.stderr, most)) };
            let mut both = std::pin::pin!(both);
            let in_time = match limit {
                Some(limit) => timeout(limit, &mut both).await.ok(),
                None => Some((&mut both).await),
            };
            match in_time {
                Some(read) => read,
                None => {
                    late = true;
                    drop(stdin);
                    timeout(GRACE, both).await.unwrap_or_else(|_| Err(io::Error::other("it could not be ended")))
                }
            }
        };
        let ((stdout, more), (stderr, even_more)) = read?;
        let code = wait(self.child).await?;
        was_started(self.prelude.as_ref(), code, &stderr)?;
        Ok(Heard { output: Output { code, stdout, stderr }, left_out: more + even_more, late })
    }
}

/// Reads a stream to its end: its first bytes, and how many there were behind them.
async fn keep(stream: &mut (impl AsyncRead + Unpin), most: usize) -> io::Result<(Vec<u8>, u64)> {
    let (mut kept, mut more) = (Vec::new(), 0);
    let mut buffer = vec![0; 16 * 1024];
    loop {
        let n = stream.read(&mut buffer).await?;
        if n == 0 {
            return Ok((kept, more));
        }
        let room = n.min(most - kept.len());
        kept.extend_from_slice(&buffer[..room]);
        more += (n - room) as u64;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn what_is_too_much_is_counted() {
        let text = vec![b'x'; 100_000];
        let (kept, more) = keep(&mut text.as_slice(), 70_000).await.unwrap();
        assert_eq!((kept.len(), more), (70_000, 30_000));
        assert_eq!(keep(&mut &b"abc"[..], 3).await.unwrap(), (b"abc".to_vec(), 0));
    }
}
