//! What a login shell prints before the program that was asked for.
//!
//! sshd has the login's shell start every program, and that reads start-up files first (`~/.bashrc`). What those print would come in
//! front of Docker's answers, leases and archives. So the program's own shell prints a mark on both streams before it does anything
//! else, and all that stands before the mark is kept apart.

use std::io;
use std::pin::Pin;
use std::sync::{Arc, OnceLock};
use std::task::{Context, Poll, ready};
use std::time::Duration;
use tokio::io::{AsyncRead, ReadBuf};
use tokio::time::{Sleep, sleep};

/// Prints a mark on each stream, that of standard output last: where a start-up file has made one stream of both, all of it comes
/// before that. The marks are put together there, so that a shell that repeats what it is asked (`set -x`) does not print them.
const BEGIN: &str = include_str!("../../scripts/begin.sh");
const MARK: &[u8] = b"\nhvdctl-begins\n";
const MARK_STDERR: &[u8] = b"\nhvdctl-begins-stderr\n";

/// Bytes that may come before the mark. Start-up files that print more may not end at all.
const MOST: usize = 64 << 10;

/// The arguments of a program whose shell prints the mark first.
pub(super) fn marked(argv: &[String]) -> Vec<String> {
    if let [shell, option, script, rest @ ..] = argv
        && (shell.as_str(), option.as_str()) == ("sh", "-c")
    {
        return [shell.clone(), option.clone(), format!("{BEGIN}{script}")]
            .into_iter()
            .chain(rest.iter().cloned())
            .collect();
    }
    let shell = ["sh", "-c", &format!("{BEGIN}exec \"$@\""), "sh"].map(str::to_owned);
    shell.into_iter().chain(argv.iter().cloned()).collect()
}

/// What one stream had before the mark.
#[derive(Debug, Default, Clone)]
pub(super) struct Prelude {
    /// All that there was, where no mark came.
    unmarked: Arc<OnceLock<String>>,
    /// What some stream of this node had before its mark.
    noise: Arc<OnceLock<String>>,
}

impl Prelude {
    /// For a stream of a node, whose first noise goes there.
    pub(super) fn new(noise: &Arc<OnceLock<String>>) -> Prelude {
        Prelude { unmarked: Arc::default(), noise: Arc::clone(noise) }
    }

    fn found(&self, text: &[u8], marked: bool) {
        let text = String::from_utf8_lossy(text);
        // the shell's own warnings, of a locale that the node lacks for example, are no start-up file's
        let own = |line: &str| line.contains("warning: setlocale") || line == "hvdctl-begins-stderr";
        let lines = text.lines().filter(|line| !marked || !own(line));
        let text = lines.collect::<Vec<_>>().join("\n").trim().to_owned();
        let _ = match marked {
            true if text.is_empty() => Ok(()),
            true => self.noise.set(text),
            false => self.unmarked.set(text),
        };
    }

    /// The text of a stream that ended without a mark.
    pub(super) fn unmarked(&self) -> Option<String> {
        self.unmarked.get().cloned()
    }
}

/// Text that a login shell prints before every program.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Noise {
    /// Its first line.
    pub first: String,
    /// The start-up file that prints it, as far as the shell tells.
    pub file: &'static str,
}

impl Noise {
    /// The text of a login whose shell this is.
    pub(super) fn new(text: &str, shell: &str) -> Noise {
        let first = text.lines().next().unwrap_or_default();
        let file = match shell.rsplit('/').next().unwrap_or_default() {
            "bash" | "sh" | "dash" => "~/.bashrc",
            "zsh" => "~/.zshenv",
            "fish" => "~/.config/fish/config.fish",
            "csh" | "tcsh" => "~/.cshrc",
            _ => "its start-up file",
        };
        Noise { first: console::strip_ansi_codes(first).into_owned(), file }
    }

    /// What was seen.
    pub fn seen(&self) -> String {
        format!("its login shell prints text before every command: {}", self.first)
    }

    /// What stops it.
    pub fn cure(&self) -> String {
        format!("in {} there, print only at a terminal: [ -t 0 ] && …", self.file)
    }
}

/// Why a login is of no use.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Fault {
    /// It does something else than to start the program (`nologin`, ForceCommand); its words.
    #[error("{0}")]
    NoShell(String),
    /// Its start-up files take longer than a program may.
    #[error("its login shell has not started the program in time")]
    Waits,
    /// Its start-up files print without end; the first line.
    #[error("its login shell prints without end before it starts the program: {0}")]
    Floods(String),
}

impl Fault {
    /// The fault in an error of a stream.
    pub(crate) fn of(error: &io::Error) -> Option<&Fault> {
        error.get_ref()?.downcast_ref()
    }

    /// The next step.
    pub(crate) fn hint(&self) -> &'static str {
        match self {
            Fault::NoShell(_) => {
                "this login runs no shell, or its shell ended before the program: see its shell (chsh -s /bin/bash), ForceCommand \
                 in sshd_config and command= in authorized_keys, an expired password, and what its start-up file does"
            }
            Fault::Waits => {
                "see whether its start-up file (~/.bashrc, ~/.zshenv) waits, or reads standard input; if the node is slow, raise \
                 cluster.command_timeout_s"
            }
            Fault::Floods(_) => {
                "see what its start-up file prints (~/.bashrc, ~/.zshenv), and let it end early where no one is at a terminal: \
                 [ -t 0 ] || return"
            }
        }
    }
}

/// A stream from its mark on.
pub(super) struct AfterMark<R> {
    inner: R,
    mark: &'static [u8],
    state: State,
    prelude: Prelude,
    /// When the mark has to be there.
    late: Pin<Box<Sleep>>,
}

enum State {
    /// What has come so far.
    Before(Vec<u8>),
    /// What came with the mark and is not read yet, from this byte on.
    Behind(Vec<u8>, usize),
    Through,
}

impl<R> AfterMark<R> {
    /// Standard output, whose mark has to come within the limit.
    pub(super) fn stdout(inner: R, prelude: Prelude, limit: Duration) -> AfterMark<R> {
        AfterMark { inner, mark: MARK, state: State::Before(Vec::new()), prelude, late: Box::pin(sleep(limit)) }
    }

    /// Standard error.
    pub(super) fn stderr(inner: R, prelude: Prelude, limit: Duration) -> AfterMark<R> {
        AfterMark { mark: MARK_STDERR, ..AfterMark::stdout(inner, prelude, limit) }
    }
}

impl<R: AsyncRead + Unpin> AsyncRead for AfterMark<R> {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, out: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        loop {
            match &mut this.state {
                State::Through => return Pin::new(&mut this.inner).poll_read(cx, out),
                State::Behind(rest, from) => {
                    let n = out.remaining().min(rest.len() - *from);
                    out.put_slice(&rest[*from..*from + n]);
                    *from += n;
                    if *from == rest.len() {
                        this.state = State::Through;
                    }
                    // no byte at all would read as the end
                    if n > 0 {
                        return Poll::Ready(Ok(()));
                    }
                }
                State::Before(seen) => {
                    let mark = this.mark;
                    let mut bytes = [0; 8 << 10];
                    let mut read = ReadBuf::new(&mut bytes);
                    let polled = Pin::new(&mut this.inner).poll_read(cx, &mut read);
                    // only where nothing has come: an hvdctl that was stopped itself finds the mark waiting
                    if polled.is_pending() && mark == MARK && this.late.as_mut().poll(cx).is_ready() {
                        return Poll::Ready(Err(io::Error::other(Fault::Waits)));
                    }
                    ready!(polled)?;
                    let start = seen.len().saturating_sub(mark.len());
                    seen.extend_from_slice(read.filled());
                    let at = seen[start..].windows(mark.len()).position(|bytes| bytes == mark).map(|at| start + at);
                    if let Some(at) = at {
                        this.prelude.found(&seen[..at], true);
                        this.state = State::Behind(std::mem::take(seen), at + mark.len());
                    } else if read.filled().is_empty() {
                        this.prelude.found(seen, false);
                        this.state = State::Behind(std::mem::take(seen), 0);
                    } else if seen.len() > MOST {
                        let line = seen.split(|byte| *byte == b'\n').find(|line| !line.is_empty()).unwrap_or_default();
                        let line = String::from_utf8_lossy(&line[..line.len().min(200)]).into_owned();
                        return Poll::Ready(Err(io::Error::other(Fault::Floods(line))));
                    }
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::io::AsyncReadExt;

    async fn read(pieces: &[&[u8]]) -> (io::Result<String>, Prelude) {
        let (mut writer, reader) = tokio::io::duplex(1 << 20);
        let prelude = Prelude::default();
        let mut stream = AfterMark::stdout(reader, prelude.clone(), Duration::from_secs(60));
        let pieces: Vec<Vec<u8>> = pieces.iter().map(|piece| piece.to_vec()).collect();
        let feed = tokio::spawn(async move {
            for piece in pieces {
                tokio::io::AsyncWriteExt::write_all(&mut writer, &piece).await.unwrap();
                tokio::task::yield_now().await;
            }
        });
        let mut text = String::new();
        let end = stream.read_to_string(&mut text).await.map(|_| text);
        feed.abort();
        (end, prelude)
    }

    #[tokio::test]
    async fn what_stands_before_the_mark_is_kept_apart_wherever_it_is_cut() {
        let text = b"Welcome\nto gpu1\nhvdctl-begins\nthe answer\n";
        for cut in 0..text.len() {
            let (said, prelude) = read(&[&text[..cut], &text[cut..]]).await;
            assert_eq!(said.unwrap(), "the answer\n", "cut at {cut}");
            assert_eq!(prelude.noise.get().unwrap(), "Welcome\nto gpu1");
        }
        // a start-up file that made one stream of both
        let (said, prelude) = read(&[b"x", MARK_STDERR, MARK, b"y"]).await;
        assert_eq!((said.unwrap().as_str(), prelude.noise.get().unwrap().as_str()), ("y", "x"));
        let (said, prelude) = read(&[MARK]).await;
        assert_eq!((said.unwrap().as_str(), prelude.noise.get(), prelude.unmarked()), ("", None, None));
    }

    #[tokio::test]
    async fn a_login_without_a_shell_or_without_end_is_told() {
        let (said, prelude) = read(&[b"This account is currently not available.\n"]).await;
        assert!(said.unwrap().starts_with("This account"));
        assert_eq!(prelude.unmarked().unwrap(), "This account is currently not available.");
        let (said, _) = read(&[&b"y\n".repeat(1 << 18)]).await;
        let error = said.unwrap_err();
        assert_eq!(Fault::of(&error), Some(&Fault::Floods("y".into())));
    }

    #[tokio::test(start_paused = true)]
    async fn a_shell_that_waits_is_given_up_unless_its_mark_has_come_meanwhile() {
        let limit = Duration::from_secs(60);
        let (_waits, reader) = tokio::io::duplex(100);
        let mut stream = AfterMark::stdout(reader, Prelude::default(), limit);
        let error = stream.read_u8().await.unwrap_err();
        assert_eq!(Fault::of(&error), Some(&Fault::Waits));
        let (mut writer, reader) = tokio::io::duplex(100);
        let mut stream = AfterMark::stdout(reader, Prelude::default(), limit);
        tokio::io::AsyncWriteExt::write_all(&mut writer, &[MARK, b"x"].concat()).await.unwrap();
        tokio::time::sleep(2 * limit).await;
        assert_eq!(stream.read_u8().await.unwrap(), b'x', "it was this hvdctl that was stopped");
    }

    #[test]
    fn a_shell_prints_the_mark_before_it_does_anything() {
        for argv in [&["sh", "-c", "echo \"$1\"; echo words >&2", "sh", "it's"][..], &["echo", "it's"]] {
            let argv = marked(&argv.iter().map(|word| (*word).to_owned()).collect::<Vec<_>>());
            let output = std::process::Command::new(&argv[0]).args(&argv[1..]).output().unwrap();
            assert_eq!(output.stdout, [MARK, b"it's\n"].concat());
            assert!(output.stderr.starts_with(MARK_STDERR));
            // a shell that repeats what it is asked for does not print the mark by that
            assert!(argv.iter().all(|word| !word.as_bytes().windows(MARK.len()).any(|bytes| bytes == MARK)));
        }
        crate::text::quote::shellcheck(BEGIN);
    }
}
