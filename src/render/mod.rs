//! Shows events as rows on a terminal, as plain lines elsewhere, or as JSON lines.
//!
//! Standard output carries results and the ranks' standard output; everything else goes to standard error.

mod board;
pub mod colours;
pub mod json;
mod messages;
mod plain;
mod rows;
#[cfg(test)]
mod tests;

use crate::event::{Event, EventReceiver, Stream};
use crate::model::role::RankOfRole;
use crate::text::units::human;
use crate::text::visible::visible_lines;
use console::style;
use std::borrow::Cow;
use std::io::{self, IsTerminal, Write};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::RecvTimeoutError;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// Interval at which the rows are drawn.
const INTERVAL: Duration = Duration::from_millis(100);

/// Options of a renderer.
#[derive(Debug, Clone, Copy)]
pub struct Options {
    /// JSON instead of text.
    pub json: bool,
    /// Results and errors only.
    pub quiet: bool,
    /// From 1 on, every step.
    pub verbose: u8,
    /// Set if a terminal may show rows: the lines of `trace` would come between them.
    pub has_rows: bool,
    /// Set if the command shows ranks' lines, so that its result does not name the actions on each node.
    pub streams_output: bool,
}

/// Something that shows events.
trait Renderer {
    /// Shows an event.
    fn show(&mut self, event: Event, now: Instant);
    /// Redraws the rows, if it is time. Called every [`INTERVAL`].
    fn tick(&mut self, _now: Instant) {}
    /// Clears the rows until the next tick.
    fn hide(&mut self) {}
    /// Clears the rows for good.
    fn finish(&mut self) {}
}

/// Shows events until the last sender is dropped. Runs on a separate thread, so that a slow terminal delays nothing
/// else.
pub fn run(events: EventReceiver, options: Options) {
    let mut renderer: Box<dyn Renderer> = if options.json {
        Box::new(json::Json(options))
    } else if io::stderr().is_terminal() && !console::is_dumb() && !options.quiet && options.has_rows {
        Box::new(rows::Rows::stderr(options))
    } else {
        Box::new(plain::Plain::new(options))
    };
    loop {
        match events.receive(INTERVAL) {
            Ok(Event::Suspend { cleared, over }) => {
                renderer.hide();
                let _ = cleared.send(());
                // blocks this thread until the other end is dropped
                let _ = over.recv();
            }
            Ok(event) => renderer.show(event, Instant::now()),
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => break,
        }
        renderer.tick(Instant::now());
    }
    renderer.finish();
}

/// Set if control sequences from ranks and nodes reach the terminal (`--raw`).
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

/// Keeps the first error for [`finish`]. A closed pipe (`| head`) is no error.
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

/// Writes a line to standard error, without the control sequences that output of remote programs and file names may
/// have.
pub fn err(text: &str) {
    let _ = writeln!(io::stderr().lock(), "{}", printable(text));
}

fn printable(text: &str) -> Cow<'_, str> {
    if is_raw() { text.into() } else { visible_lines(text).into() }
}

/// Formats the progress of a transfer: `1.0 GiB of 3.0 GiB, 5.0 MiB/s`.
fn progress(done: u64, total: u64, rate: u64) -> String {
    let rate = if rate > 0 { format!(", {}/s", human(rate)) } else { String::new() };
    format!("{} of {}{rate}", human(done), human(total))
}

/// Writes an error message to standard error.
pub fn error(text: &str) {
    err(&format!("{} {text}", style("error:").red().bold().for_stderr()));
}

/// Writes a line of a rank.
fn output_line(rank: u32, role: Option<&RankOfRole>, node: &str, stream: Stream, line: &[u8]) {
    let whole = messages::rank_line(rank, role, node, stream, line);
    match stream {
        Stream::Stdout => keep_error(io::stdout().lock().write_all(&whole)),
        Stream::Stderr => drop(io::stderr().lock().write_all(&whole)),
    }
}
