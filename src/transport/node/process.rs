//! A program under way on a node: its streams, fed and read side by side, to its end.

use super::connections::Place;
use super::prelude::{Fault, Prelude};
use openssh::Session;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::sync::{Notify, OwnedSemaphorePermit, mpsc};
use tokio::task::JoinHandle;
use tokio::time::{sleep, timeout};

/// What is said of a program that did nothing for too long while it was fed.
pub const STUCK: &str = "nothing went on for";

/// What a program said and how it ended.
#[derive(Debug, Clone)]
pub struct Output {
    /// Its exit code; 127 where there was no such program.
    pub code: i32,
    /// Standard output.
    pub stdout: Vec<u8>,
    /// Standard error.
    pub stderr: Vec<u8>,
}

impl Output {
    /// Standard error as text.
    pub fn complaint(&self) -> String {
        String::from_utf8_lossy(&self.stderr).into_owned()
    }
}

/// A program that is running on a node. Dropping it closes its streams.
pub struct Process {
    /// Its standard input.
    pub stdin: Pin<Box<dyn AsyncWrite + Send>>,
    /// Its standard output.
    pub stdout: Pin<Box<dyn AsyncRead + Send>>,
    /// Its standard error.
    pub stderr: Pin<Box<dyn AsyncRead + Send>>,
    /// Bytes of an answer that are held in memory.
    pub(super) longest: usize,
    /// What its login shell printed first, where one started it.
    pub(super) prelude: Option<Prelude>,
    pub(super) child: Child,
    pub(super) _permit: OwnedSemaphorePermit,
    // dropped last: its connection may be the last thing that holds the ssh masters' directory
    pub(super) _place: Option<Place>,
}

pub(super) enum Child {
    Ssh(openssh::Child<Arc<Session>>),
    Local(tokio::process::Child),
    #[cfg(test)]
    Scripted(tokio::sync::oneshot::Receiver<i32>),
}

impl Process {
    /// A program with its streams: standard input, output and error.
    pub(super) fn new(
        (stdin, stdout, stderr): (
            impl AsyncWrite + Send + 'static,
            impl AsyncRead + Send + 'static,
            impl AsyncRead + Send + 'static,
        ),
        child: Child,
        permit: OwnedSemaphorePermit,
    ) -> Process {
        Process {
            stdin: Box::pin(stdin),
            stdout: Box::pin(stdout),
            stderr: Box::pin(stderr),
            longest: LONGEST_REPLY,
            prelude: None,
            child,
            _permit: permit,
            _place: None,
        }
    }

    /// Writes the input, reads both outputs to their ends and waits.
    ///
    /// # Errors
    /// When a stream breaks, or the session does.
    pub async fn finish(mut self, input: &[u8]) -> Result<Output, std::io::Error> {
        let mut stdin = self.take_stdin();
        let write = async move {
            // a program that ends without reading all is no failure of ours: its exit code and words tell
            let _ = stdin.write_all(input).await;
            let _ = stdin.shutdown().await;
            Ok(Ok(()))
        };
        self.exchange(write).await
    }

    /// Writes pieces to standard input as they come, and waits as [`Process::finish`] does. `limits` are the longest times that the
    /// program may take to read a piece, and to end after the last one. `sent` is called with the number of bytes written so far.
    ///
    /// # Errors
    /// As [`Process::finish`], the error of a piece, and if a limit is exceeded.
    pub async fn feed(
        mut self,
        mut pieces: mpsc::Receiver<std::io::Result<Vec<u8>>>,
        limits: (Duration, Duration),
        mut sent: impl FnMut(u64),
    ) -> Result<Output, std::io::Error> {
        let mut stdin = self.take_stdin();
        let is_fed = Notify::new();
        let stuck = |limit: Duration| std::io::Error::other(format!("{STUCK} {} s", limit.as_secs()));
        let write = async {
            let mut bytes = 0;
            let mut result = Ok(());
            while let Some(piece) = pieces.recv().await {
                match piece {
                    Ok(piece) => match timeout(limits.0, stdin.write_all(&piece)).await {
                        Ok(Ok(())) => bytes += piece.len() as u64,
                        // the program's exit code and standard error say why it reads no more
                        Ok(Err(_)) => break,
                        Err(_) => return Err(stuck(limits.0)),
                    },
                    Err(error) => result = Err(error),
                }
                sent(bytes);
            }
            let _ = stdin.shutdown().await;
            drop(stdin);
            is_fed.notify_one();
            Ok(result)
        };
        let late = async {
            is_fed.notified().await;
            sleep(limits.1).await;
        };
        tokio::select! {
            output = self.exchange(write) => output,
            () = late => Err(stuck(limits.1)),
        }
    }

    /// Reads while it writes: a program that complains much while it is fed would wait for us as we for it. An error of `write`
    /// ends the exchange at once; the result within is returned when the program has ended.
    async fn exchange(
        mut self,
        write: impl Future<Output = std::io::Result<std::io::Result<()>>>,
    ) -> Result<Output, std::io::Error> {
        let (mut stdout, mut stderr) = (Vec::new(), Vec::new());
        // a stream that floods ends all of it at once
        let read = async {
            tokio::try_join!(
                write,
                answer(&mut self.stdout, &mut stdout, self.longest),
                complaints(&mut self.stderr, &mut stderr)
            )
        };
        let (written, (), ()) = read.await?;
        written?;
        let code = wait(self.child).await?;
        was_started(self.prelude.as_ref(), code, &stderr)?;
        Ok(Output { code, stdout, stderr })
    }

    /// Takes its standard input, which ends when it is dropped.
    pub fn take_stdin(&mut self) -> Pin<Box<dyn AsyncWrite + Send>> {
        std::mem::replace(&mut self.stdin, Box::pin(tokio::io::sink()))
    }

    /// Ends its standard input. Over a session only the end of the stream itself does that, not its shutdown.
    pub fn close_stdin(&mut self) {
        drop(self.take_stdin());
    }

    /// Reads standard error to its end beside whatever else is done with the process, and gives at most 4 KiB of it.
    pub fn collect_stderr(&mut self) -> JoinHandle<String> {
        let mut stderr = std::mem::replace(&mut self.stderr, Box::pin(tokio::io::empty()));
        tokio::spawn(async move {
            let mut text = Vec::new();
            let mut buffer = [0; 1024];
            while let Ok(n @ 1..) = stderr.read(&mut buffer).await {
                if text.len() < 4096 {
                    text.extend_from_slice(&buffer[..n]);
                }
            }
            String::from_utf8_lossy(&text).into_owned()
        })
    }
}

/// Bytes of an answer that are held in memory; of one that lists all files of a project, which may be hundreds of thousands; and of
/// what a program complains of, the rest of which is dropped.
pub(super) const LONGEST_REPLY: usize = 24 << 20;
pub(super) const LONGEST_LIST: usize = 512 << 20;
const LONGEST_COMPLAINT: usize = 1 << 20;

/// The error for an answer that is longer.
fn too_long(most: usize) -> std::io::Error {
    std::io::Error::other(format!("its answer is longer than {} MiB", most >> 20))
}

/// Reads standard output to its end.
async fn answer(stream: &mut (impl AsyncRead + Unpin), kept: &mut Vec<u8>, most: usize) -> std::io::Result<()> {
    while stream.read_buf(kept).await? > 0 {
        if kept.len() > most {
            return Err(too_long(most));
        }
    }
    Ok(())
}

/// Reads what a program complains of to its end, and keeps the beginning.
async fn complaints(stream: &mut (impl AsyncRead + Unpin), kept: &mut Vec<u8>) -> std::io::Result<()> {
    while stream.read_buf(kept).await? > 0 {
        kept.truncate(LONGEST_COMPLAINT);
    }
    Ok(())
}

/// Makes an error of a program that its login shell never started.
pub(super) fn was_started(prelude: Option<&Prelude>, code: i32, stderr: &[u8]) -> std::io::Result<()> {
    let Some(said) = prelude.and_then(Prelude::unmarked) else { return Ok(()) };
    let complaint = String::from_utf8_lossy(stderr);
    let words = [said.as_str(), complaint.trim()].into_iter().filter(|words| !words.is_empty());
    let words = words.collect::<Vec<_>>().join("\n");
    let words = if words.is_empty() { format!("it ended with exit code {code} and said nothing") } else { words };
    Err(std::io::Error::other(Fault::NoShell(words)))
}

pub(super) async fn wait(child: Child) -> Result<i32, std::io::Error> {
    match child {
        Child::Ssh(child) => match child.wait().await {
            Ok(status) => Ok(status.code().unwrap_or(255)),
            // the crate takes 127 for an error of its own; it is the shell's "not found"
            Err(openssh::Error::Remote(e)) if e.kind() == std::io::ErrorKind::NotFound => Ok(127),
            Err(e) => Err(std::io::Error::other(e)),
        },
        Child::Local(mut child) => Ok(child.wait().await?.code().unwrap_or(255)),
        #[cfg(test)]
        Child::Scripted(code) => Ok(code.await.unwrap_or(255)),
    }
}
