//! What people and scripts see: events become rows on a terminal, plain lines elsewhere, or JSON lines.
//!
//! Standard output carries results and what ranks write to theirs; everything else goes to standard error.

mod board;
pub mod colours;
pub mod findings;
mod json;
mod plain;
mod rows;
pub mod table;

#[cfg(test)]
pub(crate) use json::line;

use crate::event::{Event, Received, Receiver};
use crate::text::visible::{visible, visible_lines};
use console::style;
use std::io::{self, IsTerminal, Write};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// How to show.
#[derive(Debug, Clone, Copy)]
pub struct Options {
    /// JSON instead of text.
    pub json: bool,
    /// Results and errors only.
    pub quiet: bool,
    /// 0: what matters; 1: every step.
    pub verbose: u8,
    /// Whether the command itself says at its end what became of each node.
    pub result_names_nodes: bool,
}

/// Something that shows events.
trait Renderer {
    /// Shows one.
    fn show(&mut self, event: Event, now: Instant);
    /// Returns how often it wants a tick, or `None` if nothing of it moves.
    fn interval(&self) -> Option<Duration> {
        None
    }
    /// Moves what moves, where it is time.
    fn tick(&mut self, _now: Instant) {}
    /// Clears what moves from the terminal, until the next tick.
    fn hide(&mut self) {}
    /// Clears what is not meant to stay.
    fn finish(&mut self) {}
}

/// Shows events until the last sender is gone. Runs on a thread of its own, so that a slow terminal holds up nothing.
pub fn run(mut events: Receiver, options: Options) {
    let mut renderer: Box<dyn Renderer> = if options.json {
        Box::new(json::Json::new(options))
    } else if io::stderr().is_terminal() && !console::is_dumb() && !options.quiet {
        Box::new(rows::Rows::stderr(options))
    } else {
        Box::new(plain::Plain::new(options))
    };
    loop {
        match events.receive(renderer.interval()) {
            Received::Event(Event::Suspend(suspension)) => {
                renderer.hide();
                suspension.wait();
            }
            Received::Event(event) => renderer.show(event, Instant::now()),
            Received::TimedOut => {}
            Received::Closed => break,
        }
        renderer.tick(Instant::now());
    }
    renderer.finish();
}

/// Whether what ranks and nodes write goes to the terminal as it is (`--raw`).
static RAW: AtomicBool = AtomicBool::new(false);

/// Why something could not be written to standard output.
static FAILED: Mutex<Option<io::Error>> = Mutex::new(None);

/// Lets control sequences of ranks and nodes through to the terminal, or not.
pub fn set_raw(raw: bool) {
    RAW.store(raw, Ordering::Relaxed);
}

fn is_raw() -> bool {
    RAW.load(Ordering::Relaxed)
}

/// Keeps the first failure for [`finish`]. A reader that has gone (`| head`) ends nothing but the writing.
fn written(result: io::Result<()>) {
    if let Err(error) = result
        && error.kind() != io::ErrorKind::BrokenPipe
    {
        FAILED.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(error);
    }
}

/// Writes to standard output what is left to write.
///
/// # Errors
/// When something could not be written since the start, a full disk for example.
pub fn finish() -> io::Result<()> {
    written(io::stdout().lock().flush());
    FAILED.lock().unwrap_or_else(PoisonError::into_inner).take().map_or(Ok(()), Err)
}

/// Writes to standard output. To a terminal only what it can show goes there.
pub fn out(text: &str) {
    let mut stdout = io::stdout().lock();
    written(if stdout.is_terminal() && !is_raw() {
        stdout.write_all(visible_lines(text).as_bytes())
    } else {
        stdout.write_all(text.as_bytes())
    });
}

/// Writes a line to standard error. What remote programs say of themselves, and names of files, may have control characters.
pub fn err(text: &str) {
    let _ = match is_raw() {
        true => writeln!(io::stderr().lock(), "{text}"),
        false => writeln!(io::stderr().lock(), "{}", visible_lines(text)),
    };
}

/// An error as users see it.
pub fn error(text: &str) {
    err(&format!("{} {text}", style("error:").red().bold().for_stderr()));
}

/// A line of a rank: `[RANK NODE] text`, byte for byte behind the bracket unless it goes to a terminal. The colour tells ranks apart.
fn output_line(rank: u32, node: &str, stderr: bool, line: &[u8]) {
    let bracket = format!("[{rank} {node}]");
    let bracket = style(bracket).color256(COLOURS[rank as usize % COLOURS.len()]);
    let bracket = if stderr { bracket.for_stderr() } else { bracket.for_stdout() };
    let mut whole = format!("{bracket} ").into_bytes();
    let terminal = if stderr { io::stderr().is_terminal() } else { io::stdout().is_terminal() };
    if terminal && !is_raw() {
        whole.extend(visible(line));
    } else {
        whole.extend_from_slice(line);
    }
    whole.push(b'\n');
    if stderr {
        let _ = io::stderr().lock().write_all(&whole);
    } else {
        written(io::stdout().lock().write_all(&whole));
    }
}

/// Colours of the 256 that are readable on dark and light grounds.
const COLOURS: [u8; 8] = [33, 166, 64, 127, 37, 160, 136, 98];
