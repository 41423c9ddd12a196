//! Output of login shells that precedes the output of a program.
//!
//! sshd starts every program by the login's shell, which reads start-up files first (`~/.bashrc`). What those print
//! would precede Docker's answers, leases and archives. So each program is started by a shell of ours that first prints
//! a mark on both streams, and the text before the mark is only used in error messages.
//!
//! A program that runs as root is marked once more: what sudo, PAM or `docker run` print before it starts is not its
//! own.

use crate::text::failure;
use futures_util::stream::{self, TryStreamExt};
use std::io;
use std::sync::{Arc, OnceLock};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncReadExt};
use tokio::time::{Instant, timeout_at};
use tokio_util::io::{ReaderStream, StreamReader};

/// The marks of `access/begin.sh`.
const MARK: &[u8] = b"\nhvdctl-begins\n";
const MARK_STDERR: &[u8] = b"\nhvdctl-begins-stderr\n";

/// The most bytes that may precede a mark. Start-up files that print more may not end at all.
const MAX_PRELUDE: usize = 64 << 10;

/// Bytes that are read from a program at once.
const BLOCK: usize = 64 << 10;

/// The output of a program's login shell.
#[derive(Debug, Default, Clone)]
pub(super) struct Prelude {
    /// All of standard output, if it had no mark: the program was not started.
    pub(super) unmarked: Arc<OnceLock<String>>,
    /// The text before the mark of the first program of the node that had any.
    pub(super) noise: Arc<OnceLock<String>>,
}

/// A login that cannot start programs.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub(super) struct LoginError {
    message: String,
    pub(super) hint: &'static str,
}

impl LoginError {
    /// The shell ended before the program (`nologin`, ForceCommand) and printed this.
    pub(super) fn ended(output: &str) -> io::Error {
        let hint = "the user has no shell, or the shell exited before it ran the program: check the shell (chsh -s \
                    /bin/bash), ForceCommand in sshd_config and command= in authorized_keys, an expired password, and \
                    what the shell's start-up file does";
        io::Error::other(LoginError { message: output.to_owned(), hint })
    }

    fn timed_out() -> io::Error {
        let message = "the login shell did not start the program in time".to_owned();
        let hint = "check whether the start-up file (~/.bashrc, ~/.zshenv) waits, or reads standard input; if the node \
                    is slow, raise cluster.command_timeout_s";
        io::Error::other(LoginError { message, hint })
    }

    fn floods(text: &[u8]) -> io::Error {
        let text = String::from_utf8_lossy(text);
        let line: String = text.lines().find(|line| !line.is_empty()).unwrap_or_default().chars().take(200).collect();
        let message = format!("the login shell keeps printing and never starts the program: {line}");
        let hint = "check what the start-up file (~/.bashrc, ~/.zshenv) prints, and make it return early without a \
                    terminal: [ -t 0 ] || return";
        io::Error::other(LoginError { message, hint })
    }
}

/// Returns a note on what a login shell prints before every program.
pub(super) fn note(noise: &str, shell: &str) -> String {
    let file = match shell.rsplit('/').next().unwrap_or_default() {
        "bash" | "sh" | "dash" => "~/.bashrc",
        "zsh" => "~/.zshenv",
        "fish" => "~/.config/fish/config.fish",
        "csh" | "tcsh" => "~/.cshrc",
        _ => "its start-up file",
    };
    let first = console::strip_ansi_codes(noise.lines().next().unwrap_or_default());
    format!(
        "the login shell prints text before every command: {first}; hvdctl skips it\n  hint: in {file} there, print \
         only at a \
         terminal: [ -t 0 ] && …"
    )
}

/// Returns standard output from its mark on, which has to come within the limit.
pub(super) fn stdout(inner: impl AsyncRead + Unpin, prelude: Prelude, limit: Duration) -> impl AsyncRead {
    after_mark(inner, MARK, prelude, Some(Instant::now() + limit))
}

/// Returns both streams of a program from the marks on that it prints once it runs as root, and where all of standard
/// output is put if it has no mark: the program was not started, and the streams are those of what should have started
/// it.
pub(super) fn as_root(
    stdout: impl AsyncRead + Unpin,
    stderr: impl AsyncRead + Unpin,
) -> (impl AsyncRead, impl AsyncRead, Arc<OnceLock<String>>) {
    let prelude = Prelude::default();
    let unmarked = Arc::clone(&prelude.unmarked);
    (after_mark(stdout, MARK, prelude, None), after_mark(stderr, MARK_STDERR, Prelude::default(), None), unmarked)
}

/// Returns standard error from its mark on.
pub(super) fn stderr(inner: impl AsyncRead + Unpin, noise: Arc<OnceLock<String>>) -> impl AsyncRead {
    after_mark(inner, MARK_STDERR, Prelude { noise, ..Prelude::default() }, None)
}

fn after_mark(
    mut inner: impl AsyncRead + Unpin,
    mark: &'static [u8],
    prelude: Prelude,
    deadline: Option<Instant>,
) -> impl AsyncRead {
    let skipped = async move {
        let mut text = Vec::new();
        loop {
            let read = inner.read_buf(&mut text);
            let count = match deadline {
                // data that has arrived counts, because this process may have been suspended
                Some(deadline) => timeout_at(deadline, read).await.unwrap_or_else(|_| Err(LoginError::timed_out()))?,
                None => read.await?,
            };
            if let Some(at) = text.windows(mark.len()).position(|bytes| bytes == mark) {
                let noise = without_own(&String::from_utf8_lossy(&text[..at]));
                if !noise.is_empty() {
                    let _ = prelude.noise.set(noise);
                }
                text.drain(..at + mark.len());
                break;
            }
            if count == 0 {
                let _ = prelude.unmarked.set(String::from_utf8_lossy(&text).trim().to_owned());
                break;
            }
            if text.len() > MAX_PRELUDE {
                return Err(LoginError::floods(&text));
            }
        }
        Ok(ReaderStream::with_capacity(io::Cursor::new(text).chain(inner), BLOCK))
    };
    StreamReader::new(stream::once(skipped).try_flatten())
}

/// Removes what no start-up file prints: the shell's warnings about a locale that the node lacks, and the mark of the
/// other stream.
fn without_own(text: &str) -> String {
    let is_own = |line: &str| failure::is_locale_warning(line) || line == "hvdctl-begins-stderr";
    text.lines().filter(|line| !is_own(line)).collect::<Vec<_>>().join("\n").trim().to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::transport::privileges::{BEGIN, REMOVED_VARIABLES, marked};

    async fn read(pieces: &[&[u8]]) -> (io::Result<String>, Prelude) {
        let (mut writer, reader) = tokio::io::duplex(1 << 20);
        let prelude = Prelude::default();
        let mut stream = Box::pin(stdout(reader, prelude.clone(), Duration::from_secs(60)));
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

    fn hint(error: &io::Error) -> &'static str {
        error.get_ref().unwrap().downcast_ref::<LoginError>().unwrap().hint
    }

    #[tokio::test]
    async fn what_precedes_the_mark_is_kept_apart_however_the_stream_is_cut() {
        let text = b"Welcome\nto gpu1\nhvdctl-begins\nthe answer\n";
        for cut in 0..text.len() {
            let (said, prelude) = read(&[&text[..cut], &text[cut..]]).await;
            assert_eq!(said.unwrap(), "the answer\n", "cut at {cut}");
            assert_eq!(prelude.noise.get().unwrap(), "Welcome\nto gpu1");
        }
        // a start-up file that joined the streams
        let (said, prelude) = read(&[b"x", MARK_STDERR, MARK, b"y"]).await;
        assert_eq!((said.unwrap().as_str(), prelude.noise.get().unwrap().as_str()), ("y", "x"));
        let (said, prelude) = read(&[MARK]).await;
        assert_eq!((said.unwrap().as_str(), prelude.noise.get(), prelude.unmarked.get()), ("", None, None));
    }

    #[tokio::test]
    async fn a_login_without_a_shell_or_with_endless_output() {
        let (said, prelude) = read(&[b"This account is currently not available.\n"]).await;
        assert!(said.unwrap().starts_with("This account"));
        assert_eq!(prelude.unmarked.get().unwrap(), "This account is currently not available.");
        let (said, _) = read(&[&b"y\n".repeat(1 << 18)]).await;
        assert!(said.unwrap_err().to_string().ends_with("keeps printing and never starts the program: y"));
    }

    #[tokio::test(start_paused = true)]
    async fn a_shell_that_waits_is_an_error_unless_its_mark_has_arrived_meanwhile() {
        let limit = Duration::from_secs(60);
        let (_waits, reader) = tokio::io::duplex(100);
        let mut stream = Box::pin(stdout(reader, Prelude::default(), limit));
        assert!(hint(&stream.read_u8().await.unwrap_err()).contains("cluster.command_timeout_s"));
        let (mut writer, reader) = tokio::io::duplex(100);
        let mut stream = Box::pin(stdout(reader, Prelude::default(), limit));
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
        let removed: String = REMOVED_VARIABLES.iter().map(|name| format!(" -u {name}")).collect();
        assert!(BEGIN.ends_with(&format!("exec env{removed} \"$@\"\n")), "{BEGIN}");
        let argv = marked(&["env".to_owned()]);
        // bash cannot unset two of them
        for shell in ["sh", "bash"] {
            let mut shell = std::process::Command::new(shell);
            shell.args(&argv[1..]).envs(REMOVED_VARIABLES.map(|name| (name, "1"))).env("KEPT", "1");
            // not every machine has it
            let Ok(output) = shell.output() else { continue };
            let environment = String::from_utf8(output.stdout).unwrap();
            assert!(environment.contains("\nKEPT=1\n"), "{environment}");
            for name in REMOVED_VARIABLES {
                assert!(!environment.contains(&format!("\n{name}=")), "{environment}");
            }
        }
    }
}
