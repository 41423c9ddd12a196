//! A conversation with a program on a node: a line to it, lines from it.

use super::Process;
use std::pin::Pin;
use std::time::Duration;
use tokio::io::{AsyncBufReadExt, AsyncRead, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::time::timeout;

/// The most bytes of a line: the configuration of an image is in one.
const LONGEST: u64 = 64 << 20;

/// A program that answers lines on its standard input with lines on its standard output, and ends with its standard
/// input: when this is dropped.
pub struct Dialogue {
    process: Process,
    answers: BufReader<Pin<Box<dyn AsyncRead + Send>>>,
}

impl Dialogue {
    /// Talks to this program.
    pub fn new(mut process: Process) -> Dialogue {
        let answers = BufReader::new(std::mem::replace(&mut process.stdout, Box::pin(tokio::io::empty())));
        Dialogue { process, answers }
    }

    /// Writes a line. Hands each line that the program writes to `is_last`, until that returns true.
    ///
    /// # Errors
    /// Returns what the program printed if it ended, or a message if the last line did not arrive within the limit.
    pub async fn ask(
        &mut self,
        request: &str,
        limit: Duration,
        mut is_last: impl FnMut(&str) -> bool,
    ) -> Result<(), String> {
        let asked = async {
            self.process.stdin.write_all(format!("{request}\n").as_bytes()).await?;
            self.process.stdin.flush().await?;
            let mut line = String::new();
            loop {
                line.clear();
                let bytes = (&mut self.answers).take(LONGEST).read_line(&mut line).await?;
                if bytes as u64 == LONGEST && !line.ends_with('\n') {
                    return Err(std::io::Error::other("the program prints an endless line"));
                }
                if bytes == 0 || is_last(line.trim_end()) {
                    return Ok::<usize, std::io::Error>(bytes);
                }
            }
        };
        let ended = match timeout(limit, asked).await {
            Ok(Ok(1..)) => return Ok(()),
            Ok(Ok(0)) => "the program ended without an answer".to_owned(),
            Ok(Err(error)) => error.to_string(),
            Err(_) => return Err(format!("no answer within {} s", limit.as_secs())),
        };
        let printed = timeout(limit, self.process.collect_stderr()).await;
        let printed = printed.ok().and_then(Result::ok).unwrap_or_default();
        Err(match printed.trim() {
            "" => ended,
            traceback if traceback.starts_with("Traceback") => traceback.lines().next_back().unwrap_or_default().into(),
            message => message.to_owned(),
        })
    }

    /// Closes the program's standard input and waits until it has ended, at most this long.
    pub async fn end(self, limit: Duration) {
        drop(timeout(limit, self.process.finish(b"")).await);
    }
}
