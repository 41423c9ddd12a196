//! A program under way on a node: its streams, fed and read side by side, to its end.

use super::connections::Place;
use super::prelude::{Fault, Prelude};
use super::window::{Taking, Window};
use openssh::Session;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::sync::{OwnedSemaphorePermit, mpsc};
use tokio::task::JoinHandle;
use tokio::time::Instant;

/// What is said of a program that did nothing for too long while it was fed.
pub const STUCK: &str = "nothing went on for";

/// How long a wide pipe that was full is left to ssh: in this time it takes a good part of what is there.
const PAUSE: Duration = Duration::from_millis(1);

/// sudo's word that the password was not taken (in the C locale): it would read another one, and wait for it.
const REFUSED: &[u8] = b"try again";

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
    /// Whether the pipe to it takes a lot.
    pub(super) wide: bool,
    /// Its standard output.
    pub stdout: Pin<Box<dyn AsyncRead + Send>>,
    /// Its standard error.
    pub stderr: Pin<Box<dyn AsyncRead + Send>>,
    /// What was read of standard error so far.
    pub(super) complaint: Vec<u8>,
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
    /// A program with its streams (standard input, output and error), which takes little at once.
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
            wide: false,
            stdout: Box::pin(stdout),
            stderr: Box::pin(stderr),
            complaint: Vec::new(),
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
            Ok(())
        };
        self.exchange(write, &Window::new(None)).await
    }

    /// Reads standard output up to a mark, which nothing follows before the program is told more; or else to its end. Gives what
    /// was before the mark, and whether there was one.
    ///
    /// # Errors
    /// When a stream breaks; `TimedOut` when the time is over, with the last words on standard error.
    pub(super) async fn hear_until(&mut self, mark: &[u8], limit: Duration) -> Result<(Vec<u8>, bool), std::io::Error> {
        let (mut said, mut complains) = (Vec::new(), true);
        let late = tokio::time::sleep(limit);
        tokio::pin!(late);
        loop {
            if said.len() > LONGEST_LIST {
                return Err(too_long(LONGEST_LIST));
            }
            tokio::select! {
                read = self.stdout.read_buf(&mut said) => match read? {
                    0 => return Ok((said, false)),
                    _ if said.ends_with(mark) => {
                        said.truncate(said.len() - mark.len());
                        // what comes now is about something else
                        self.complaint.clear();
                        return Ok((said, true));
                    }
                    _ => {}
                },
                // who complains much would wait for us
                read = self.stderr.read_buf(&mut self.complaint), if complains => {
                    complains = read? > 0;
                    self.complaint.truncate(LONGEST_COMPLAINT);
                    if said.is_empty() && self.complaint.windows(REFUSED.len()).any(|words| words == REFUSED) {
                        self.close_stdin();
                    }
                }
                () = &mut late => {
                    let complaint = String::from_utf8_lossy(&self.complaint);
                    let last = complaint.lines().rfind(|line| !line.trim().is_empty());
                    let last = last.map(|line| format!("; its last words: {line}")).unwrap_or_default();
                    let late = format!("no end within {} s{last}", limit.as_secs());
                    return Err(std::io::Error::new(std::io::ErrorKind::TimedOut, late));
                }
            }
        }
    }

    /// Writes a head and then pieces to standard input as they come, and waits as [`Process::finish`] does. `limits` are the
    /// longest that it may take to take a piece, and to end after the last. Where the program says what it takes, it gets no more
    /// than it can. `sent` is told the pieces' bytes so far.
    ///
    /// # Errors
    /// As there, the error of a piece, and where a limit is over.
    pub async fn feed(
        mut self,
        head: &[u8],
        mut pieces: mpsc::Receiver<std::io::Result<Arc<Vec<u8>>>>,
        limits: (Duration, Duration),
        taking: Option<Taking>,
        mut sent: impl FnMut(u64),
    ) -> Result<Output, std::io::Error> {
        let (mut stdin, wide) = (self.take_stdin(), self.wide);
        // until when it has to do something
        let deadline = Mutex::new(None);
        let expect = |within: Option<Duration>| {
            *deadline.lock().unwrap_or_else(PoisonError::into_inner) =
                within.map(|limit| (Instant::now() + limit, limit));
        };
        let window = Window::new(taking);
        let write = async {
            // a pipe has room for it; and where nobody reads any more, the pieces find out
            let _ = stdin.write_all(head).await;
            let mut bytes = 0;
            while let Some(piece) = pieces.recv().await {
                let piece = piece.inspect_err(|_| expect(Some(limits.1)))?;
                expect(Some(limits.0));
                bytes += piece.len() as u64;
                window.room(bytes).await;
                if write_piece(&mut stdin, &piece, wide).await.is_err() {
                    break;
                }
                // others who are fed the same may be slower
                expect(None);
                window.wrote(bytes);
                sent(bytes);
            }
            let _ = stdin.shutdown().await;
            drop(stdin);
            expect(Some(limits.1));
            Ok(())
        };
        let late = async {
            loop {
                tokio::time::sleep(limits.0.min(Duration::from_secs(1))).await;
                let deadline = *deadline.lock().unwrap_or_else(PoisonError::into_inner);
                if let Some((_, limit)) = deadline.filter(|(at, _)| *at < Instant::now()) {
                    return std::io::Error::other(format!("{STUCK} {} s", limit.as_secs()));
                }
            }
        };
        tokio::select! {
            output = self.exchange(write, &window) => output,
            error = late => Err(error),
        }
    }

    /// Reads while it writes: a program that complains much while it is fed would wait for us as we for it.
    async fn exchange(
        mut self,
        write: impl Future<Output = Result<(), std::io::Error>>,
        window: &Window,
    ) -> Result<Output, std::io::Error> {
        let (mut stdout, mut stderr) = (Vec::new(), std::mem::take(&mut self.complaint));
        let write = async { Ok::<_, std::io::Error>(write.await) };
        // a stream that floods ends all of it at once
        let read = async {
            tokio::try_join!(
                write,
                window.listen(&mut self.stdout, &mut stdout, self.longest),
                complaints(&mut self.stderr, &mut stderr)
            )
        };
        let (written, (), ()) = read.await?;
        written?;
        let code = wait(self.child).await?;
        was_started(self.prelude.as_ref(), code, &stderr)?;
        Ok(Output { code, stdout, stderr })
    }

    pub(super) fn take_stdin(&mut self) -> Pin<Box<dyn AsyncWrite + Send>> {
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
pub(super) fn too_long(most: usize) -> std::io::Error {
    std::io::Error::other(format!("its answer is longer than {} MiB", most >> 20))
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

/// Writes all of it. Whoever waits for room in a pipe is woken for each packet that ssh takes out of it, and one thread after the
/// other runs for 32 KiB; so a wide one is left alone for a moment when it is full.
async fn write_piece(stdin: &mut (impl AsyncWrite + Unpin), mut piece: &[u8], wide: bool) -> std::io::Result<()> {
    while !piece.is_empty() {
        match stdin.write(piece).await? {
            0 => return Err(std::io::ErrorKind::WriteZero.into()),
            n => piece = &piece[n..],
        }
        if wide && !piece.is_empty() {
            tokio::time::sleep(PAUSE).await;
        }
    }
    Ok(())
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
