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

pub use json::{Line, line};

use crate::event::{Event, Received, Receiver};
use crate::text::visible::{visible, visible_lines};
use console::style;
use std::io::{self, IsTerminal, Write};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// What a renderer shows.
#[derive(Debug, Clone, Copy)]
pub struct Options {
    /// JSON instead of text.
    pub json: bool,
    /// Results and errors only.
    pub quiet: bool,
    /// From 1 on, every step.
    pub verbose: u8,
    /// Whether the command's result names what was done on each node.
    pub result_names_nodes: bool,
}

/// Something that shows events.
trait Renderer {
    /// Shows an event.
    fn show(&mut self, event: Event, now: Instant);
    /// Returns how often it wants a tick, or `None` if nothing of it moves.
    fn interval(&self) -> Option<Duration> {
        None
    }
    /// Redraws what moves, if it is time.
    fn tick(&mut self, _now: Instant) {}
    /// Clears what moves until the next tick.
    fn hide(&mut self) {}
    /// Clears what is not meant to stay.
    fn finish(&mut self) {}
}

/// Shows events until the last sender is gone. Runs on a thread of its own, so that a slow terminal delays nothing else.
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

/// Whether control sequences from ranks and nodes reach the terminal (`--raw`).
static RAW: AtomicBool = AtomicBool::new(false);

/// The first error of writing to standard output.
static FAILED: Mutex<Option<io::Error>> = Mutex::new(None);

/// Sets whether control sequences from ranks and nodes reach the terminal.
pub fn set_raw(raw: bool) {
    RAW.store(raw, Ordering::Relaxed);
}

fn is_raw() -> bool {
    RAW.load(Ordering::Relaxed)
}

/// Keeps the first error for [`finish`]. A reader that has gone (`| head`) is none.
fn keep_error(result: io::Result<()>) {
    if let Err(error) = result
        && error.kind() != io::ErrorKind::BrokenPipe
    {
        FAILED.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(error);
    }
}

/// Flushes standard output.
///
/// # Errors
/// The first error of writing to it since the start, for example a full disk.
pub fn finish() -> io::Result<()> {
    keep_error(io::stdout().lock().flush());
    FAILED.lock().unwrap_or_else(PoisonError::into_inner).take().map_or(Ok(()), Err)
}

/// Writes to standard output, without control sequences if that is a terminal.
pub fn out(text: &str) {
    let mut stdout = io::stdout().lock();
    keep_error(if stdout.is_terminal() && !is_raw() {
        stdout.write_all(visible_lines(text).as_bytes())
    } else {
        stdout.write_all(text.as_bytes())
    });
}

/// Writes a line to standard error, without the control sequences that output of remote programs and file names may have.
pub fn err(text: &str) {
    let _ = match is_raw() {
        true => writeln!(io::stderr().lock(), "{text}"),
        false => writeln!(io::stderr().lock(), "{}", visible_lines(text)),
    };
}

/// Writes an error message to standard error.
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
        keep_error(io::stdout().lock().write_all(&whole));
    }
}

/// Colours of the 256 that are readable on dark and light backgrounds.
const COLOURS: [u8; 8] = [33, 166, 64, 127, 37, 160, 136, 98];
