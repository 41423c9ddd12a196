//! A program that runs on a node: its streams, written and read concurrently to its end.

use super::connections::Slot;
use super::prelude::{self, LoginError, Prelude};
use crate::text::failure;
use crate::trace;
use std::io;
use std::pin::{Pin, pin};
use std::sync::{Arc, OnceLock};
use std::time::Duration;
use tokio::io::{AsyncBufReadExt, AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, BufReader};
use tokio::sync::mpsc;
use tokio::task::JoinHandle;
use tokio::time::{sleep, timeout};

/// The most bytes of an answer that are held in memory.
pub(super) const MAX_REPLY: u64 = 24 << 20;
/// The most bytes of standard error that are kept.
const MAX_ERRORS: u64 = 1 << 20;

/// The longest line that is handed on as a whole.
const MAX_LINE: u64 = 64 << 10;

/// Time limit for a program to end after its standard input has been closed: 5 s on the node, and the network.
const STOP_LIMIT: Duration = Duration::from_secs(15);

/// The output of a program and its exit code.
#[derive(Debug, Clone)]
pub struct Output {
    /// Its exit code; 127 where there was no such program.
    pub code: i32,
    /// Standard output.
    pub stdout: Vec<u8>,
    /// Standard error.
    pub stderr: Vec<u8>,
    /// Set if the program was started as root, so that the exit code is not that of a sudo that refused.
    pub is_from_root: bool,
}

impl Output {
    /// Returns standard error as text, without what sudo adds to that of a program that it has started.
    pub fn complaint(&self) -> String {
        let text = String::from_utf8_lossy(&self.stderr);
        if self.is_from_root && text.lines().any(failure::is_from_sudo) {
            return text.split_inclusive('\n').filter(|line| !failure::is_from_sudo(line)).collect();
        }
        text.into_owned()
    }
}

/// The beginning of what a program wrote.
#[derive(Debug)]
pub struct Collected {
    /// The part of the output that was kept, and the exit code.
    pub output: Output,
    /// Number of bytes that were not kept.
    pub left_out: u64,
    /// Set if the program was ended at its time limit.
    pub timed_out: bool,
}

/// A program that runs on a node. Dropping it closes its streams; the program may keep running.
pub struct Process {
    /// Its standard input.
    pub stdin: Pin<Box<dyn AsyncWrite + Send>>,
    /// Its standard output.
    pub stdout: Pin<Box<dyn AsyncRead + Send>>,
    /// Its standard error.
    pub stderr: Pin<Box<dyn AsyncRead + Send>>,
    /// The output of the login shell, if one started the program.
    pub(super) prelude: Prelude,
    /// All that what should have run it as root printed, where one did not start it; `None` for what runs as the login.
    pub(super) not_as_root: Option<Arc<OnceLock<String>>>,
    /// Waits for its exit code.
    pub(super) exit: Pin<Box<dyn Future<Output = io::Result<i32>> + Send>>,
    /// Writes how it ended.
    pub(super) trace: trace::TracedProgram,
    // dropped last: its connection may be the last thing that keeps the directory of the ssh masters
    pub(super) _slot: Option<Slot>,
}

impl Process {
    /// A program that was started with these streams. `exit` waits for its exit code.
    ///
    /// # Errors
    /// When a stream is missing.
    pub(super) fn new(
        stdin: Option<impl AsyncWrite + Send + 'static>,
        stdout: Option<impl AsyncRead + Send + 'static>,
        stderr: Option<impl AsyncRead + Send + 'static>,
        exit: impl Future<Output = io::Result<i32>> + Send + 'static,
        trace: trace::TracedProgram,
    ) -> io::Result<Process> {
        let missing = || io::Error::other("the program has no streams");
        Ok(Process {
            stdin: Box::pin(stdin.ok_or_else(missing)?),
            stdout: Box::pin(stdout.ok_or_else(missing)?),
            stderr: Box::pin(stderr.ok_or_else(missing)?),
            prelude: Prelude::default(),
            not_as_root: None,
            exit: Box::pin(exit),
            trace,
            _slot: None,
        })
    }

    /// Separates what sudo and its kind print before the program starts.
    pub(super) fn after_root_marks(self) -> Process {
        let (stdout, stderr, unmarked) = prelude::as_root(self.stdout, self.stderr);
        Process { stdout: Box::pin(stdout), stderr: Box::pin(stderr), not_as_root: Some(unmarked), ..self }
    }

    /// Writes the input, reads both outputs to their ends and waits.
    ///
    /// # Errors
    /// When a stream breaks, the session is lost, or the program was never started.
    pub async fn finish(self, input: &[u8]) -> io::Result<Output> {
        self.finish_within(input, MAX_REPLY).await
    }

    /// [`Process::finish`] for an answer of at most `max_reply` bytes.
    ///
    /// # Errors
    /// As [`Process::finish`].
    pub async fn finish_within(mut self, input: &[u8], max_reply: u64) -> io::Result<Output> {
        let mut stdin = self.take_stdin();
        let write = async move {
            // the exit code and standard error of a program that does not read all of it say why
            let _ = stdin.write_all(input).await;
            let _ = stdin.shutdown().await;
            drop(stdin);
            std::future::pending().await
        };
        self.exchange(write, max_reply).await
    }

    /// Writes pieces to standard input as they come, and waits as [`Process::finish`] does. `limits` are the longest
    /// times that the program may take to read a piece, and to end after the last one. `sent` is called with the number
    /// of bytes written so far.
    ///
    /// # Errors
    /// As [`Process::finish`], the error of a piece, and if a limit is exceeded.
    pub async fn feed(
        mut self,
        mut pieces: mpsc::Receiver<io::Result<Vec<u8>>>,
        limits: (Duration, Duration),
        mut sent: impl FnMut(u64),
    ) -> io::Result<Output> {
        let mut stdin = self.take_stdin();
        let late = |limit: Duration| format!("no progress for {} s", limit.as_secs());
        let stuck = |limit| io::Error::new(io::ErrorKind::TimedOut, late(limit));
        let (mut bytes, mut failed) = (0, None);
        let write = async {
            while let Some(piece) = pieces.recv().await {
                match piece {
                    Ok(piece) => match timeout(limits.0, stdin.write_all(&piece)).await {
                        Ok(Ok(())) => bytes += piece.len() as u64,
                        // the program's exit code and standard error say why it reads no more
                        Ok(Err(_)) => break,
                        Err(_) => return stuck(limits.0),
                    },
                    Err(error) => failed = Some(error),
                }
                sent(bytes);
            }
            let _ = stdin.shutdown().await;
            drop(stdin);
            sleep(limits.1).await;
            stuck(limits.1)
        };
        let output = self.exchange(write, MAX_REPLY).await?;
        failed.map_or(Ok(output), Err)
    }

    /// Reads both outputs to their ends while it writes, because a program may wait for its errors to be read. `write`
    /// goes on until the program has ended, or returns why the exchange fails.
    async fn exchange(mut self, write: impl Future<Output = io::Error>, max_reply: u64) -> io::Result<Output> {
        let answer = async {
            let mut answer = Vec::new();
            // one byte more shows that it is too long
            (&mut self.stdout).take(max_reply + 1).read_to_end(&mut answer).await?;
            let too_long = || io::Error::other(format!("the output is longer than {} MiB", max_reply >> 20));
            if answer.len() as u64 > max_reply { Err(too_long()) } else { Ok(answer) }
        };
        let read = async { tokio::try_join!(answer, beginning(&mut self.stderr, MAX_ERRORS)) };
        let (stdout, (stderr, _)) = tokio::select! {
            biased;
            read = read => read?,
            error = write => return Err(error),
        };
        self.end(stdout, stderr).await
    }

    /// Reads both outputs to their ends and keeps at most `max` bytes of each. When the time is over standard input is
    /// closed, which ends a program that reads it.
    ///
    /// # Errors
    /// When a stream breaks, or the program does not end.
    pub async fn collect(mut self, max: u64, limit: Option<Duration>) -> io::Result<Collected> {
        let stdin = self.take_stdin();
        let (read, timed_out) = {
            let read = async { tokio::try_join!(beginning(&mut self.stdout, max), beginning(&mut self.stderr, max)) };
            let mut read = pin!(read);
            match timeout(limit.unwrap_or(Duration::MAX), &mut read).await {
                Ok(read) => (read?, false),
                Err(_) => {
                    drop(stdin);
                    let stubborn = |_| Err(io::Error::other("the program did not stop"));
                    (timeout(STOP_LIMIT, read).await.unwrap_or_else(stubborn)?, true)
                }
            }
        };
        let ((stdout, more_output), (stderr, more_errors)) = read;
        let output = self.end(stdout, stderr).await?;
        Ok(Collected { output, left_out: more_output + more_errors, timed_out })
    }

    /// Writes the input, and hands on the lines of standard output as they come: of one that a program draws over again
    /// what it ends with. Returns how the program ended, without these lines.
    ///
    /// # Errors
    /// As [`Process::finish`].
    pub async fn lines(mut self, input: &[u8], mut take: impl FnMut(&str)) -> io::Result<Output> {
        let mut stdin = self.take_stdin();
        let _ = stdin.write_all(input).await;
        let _ = stdin.shutdown().await;
        drop(stdin);
        let lines = async {
            let mut reader = BufReader::new(&mut self.stdout);
            let mut line = Vec::new();
            while (&mut reader).take(MAX_LINE).read_until(b'\n', &mut line).await? > 0 {
                let text = String::from_utf8_lossy(&line);
                take(text.trim_end().rsplit('\r').next().unwrap_or_default());
                line.clear();
            }
            Ok(())
        };
        let ((), (stderr, _)) = tokio::try_join!(lines, beginning(&mut self.stderr, MAX_ERRORS))?;
        self.end(Vec::new(), stderr).await
    }

    /// Hands on what is written to standard output in records that are ended by NUL, one by one, without the NUL.
    /// Returns how the program ended, without these.
    ///
    /// # Errors
    /// As [`Process::finish`], if a record is longer than any name and its hash, and those of `take`.
    pub async fn records(mut self, mut take: impl FnMut(&[u8]) -> io::Result<()>) -> io::Result<Output> {
        drop(self.take_stdin());
        let records = async {
            let mut reader = BufReader::with_capacity(MAX_LINE as usize, &mut self.stdout);
            let mut record = Vec::new();
            while (&mut reader).take(MAX_LINE).read_until(0, &mut record).await? > 0 {
                let whole = record.strip_suffix(&[0]).ok_or_else(|| io::Error::other("a record has no end"))?;
                take(whole)?;
                record.clear();
            }
            Ok(())
        };
        let ((), (stderr, _)) = tokio::try_join!(records, beginning(&mut self.stderr, MAX_ERRORS))?;
        self.end(Vec::new(), stderr).await
    }

    /// Takes its standard input, which ends when it is dropped.
    pub fn take_stdin(&mut self) -> Pin<Box<dyn AsyncWrite + Send>> {
        std::mem::replace(&mut self.stdin, Box::pin(tokio::io::sink()))
    }

    /// Reads standard error to its end in the background, and returns at most 4 KiB of it.
    pub fn collect_stderr(&mut self) -> JoinHandle<String> {
        let mut stderr = std::mem::replace(&mut self.stderr, Box::pin(tokio::io::empty()));
        tokio::spawn(async move {
            let (text, _) = beginning(&mut stderr, 4096).await.unwrap_or_default();
            String::from_utf8_lossy(&text).into_owned()
        })
    }

    /// Waits for the exit code of a program whose outputs have ended.
    async fn end(mut self, stdout: Vec<u8>, stderr: Vec<u8>) -> io::Result<Output> {
        let code = self.exit.await?;
        self.trace.exited(code);
        let Some(printed) = self.prelude.unmarked.get() else {
            let is_from_root = self.not_as_root.is_some_and(|printed| printed.get().is_none());
            return Ok(Output { code, stdout, stderr, is_from_root });
        };
        let message = format!("{printed}\n{}", String::from_utf8_lossy(&stderr).trim());
        Err(match message.trim() {
            "" => LoginError::ended(&format!("the login shell exited with code {code} and printed nothing")),
            message => LoginError::ended(message),
        })
    }
}

/// Reads a stream to its end. Returns its first `max` bytes, and how many bytes followed.
async fn beginning(stream: &mut (impl AsyncRead + Unpin), max: u64) -> io::Result<(Vec<u8>, u64)> {
    let mut kept = Vec::new();
    (&mut *stream).take(max).read_to_end(&mut kept).await?;
    let rest = tokio::io::copy(stream, &mut tokio::io::sink()).await?;
    Ok((kept, rest))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn what_is_left_out_is_counted() {
        let text = vec![b'x'; 100_000];
        let (kept, more) = beginning(&mut text.as_slice(), 70_000).await.unwrap();
        assert_eq!((kept.len(), more), (70_000, 30_000));
        assert_eq!(beginning(&mut &b"abc"[..], 3).await.unwrap(), (b"abc".to_vec(), 0));
    }
}
