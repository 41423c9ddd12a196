//! The terminal: rows that say what the nodes are doing, below what stays there. They are written over each other line by
//! line and in one piece, so nothing flickers, and never beyond the terminal's last line or column, so nothing scrolls
//! or wraps.

use super::board::Board;
use super::{Options, Renderer, is_raw, output_line};
use crate::event::Event;
use crate::job::record::State;
use crate::text::nodeset;
use crate::text::visible::visible_lines;
use console::{Term, measure_text_width, style};
use std::io::{self, IsTerminal, Write};
use std::time::{Duration, Instant};

/// So often the rows are drawn.
const BEAT: Duration = Duration::from_millis(100);
/// So long nothing is drawn after a line of a rank: between lines that follow each other nothing moves.
const REST: Duration = Duration::from_secs(2);
/// A terminal that knows these two shows what stands between them at once; others ignore them.
const BEGIN: &str = "\x1b[?2026h";
const END: &str = "\x1b[?2026l";

/// A terminal, as far as the rows need one.
pub trait Terminal {
    /// Its rows and columns at this moment.
    fn size(&self) -> (usize, usize);
    /// Writes all of it at once.
    fn write(&mut self, text: &str);
    /// Whether what goes to standard output is seen there too.
    fn shows_output(&self) -> bool;
}

/// Standard error.
pub struct Screen(Term);

impl Screen {
    /// The terminal at standard error.
    pub fn new() -> Screen {
        Screen(Term::stderr())
    }
}

impl Terminal for Screen {
    fn size(&self) -> (usize, usize) {
        let (rows, columns) = self.0.size();
        (rows.into(), columns.into())
    }

    fn write(&mut self, text: &str) {
        let _ = io::stderr().lock().write_all(text.as_bytes());
    }

    fn shows_output(&self) -> bool {
        io::stdout().is_terminal()
    }
}

/// Draws rows.
pub struct Rows<T> {
    options: Options,
    terminal: T,
    board: Board,
    /// How wide each of the rows is that stand on the terminal; the cursor is in the line below them.
    drawn: Vec<usize>,
    last: Option<Instant>,
    /// Until then nothing is drawn, because ranks write.
    still: Option<Instant>,
    /// The run that is being prepared.
    job: Option<String>,
}

impl<T: Terminal> Rows<T> {
    /// A renderer.
    pub fn new(terminal: T, options: Options) -> Rows<T> {
        Rows { options, terminal, board: Board::default(), drawn: Vec::new(), last: None, still: None, job: None }
    }

    /// Back to the first of the rows that are there. Where the terminal has become narrower, it has folded them.
    fn back(&self, rows: usize, columns: usize) -> String {
        let lines: usize = self.drawn.iter().map(|width| width.div_ceil(columns.max(1)).max(1)).sum();
        match lines.min(rows.saturating_sub(1)) {
            0 => "\r".to_owned(),
            lines => format!("\r\x1b[{lines}A"),
        }
    }

    fn draw(&mut self, now: Instant) {
        let (rows, columns) = self.terminal.size();
        let back = self.back(rows, columns);
        // the cursor needs the line below, and a row that ends in the last column may wrap
        let lines = self.board.rows(now, rows.saturating_sub(1), columns.saturating_sub(1));
        if lines.is_empty() && self.drawn.is_empty() {
            return;
        }
        let folded = self.drawn.iter().any(|width| *width > columns);
        let mut text = format!("{BEGIN}{back}");
        // what was folded is not written over line by line
        if folded {
            text.push_str("\x1b[J");
        }
        for line in &lines {
            text.push_str(line);
            text.push_str("\x1b[K\r\n");
        }
        text.push_str("\x1b[J");
        text.push_str(END);
        self.terminal.write(&text);
        self.drawn = lines.iter().map(|line| measure_text_width(line)).collect();
        self.last = Some(now);
    }

    /// Writes what stays above the rows.
    fn line(&mut self, text: &str, now: Instant) {
        let text = if is_raw() { text.to_owned() } else { visible_lines(text) };
        if self.drawn.is_empty() {
            self.terminal.write(&format!("{text}\r\n"));
            return;
        }
        let (rows, columns) = self.terminal.size();
        let back = self.back(rows, columns);
        self.terminal.write(&format!("{BEGIN}{back}\x1b[J{text}\r\n"));
        self.drawn.clear();
        self.draw(now);
    }

    /// The nodes have done their part, and the terminal belongs to what the ranks write; the first may do so before the
    /// last has started.
    fn under_way(&mut self, now: Instant) {
        if let Some(id) = self.job.take() {
            self.settle(now);
            self.board.see(&Event::Phase(format!("the run {id} is under way")), now);
        }
    }

    /// The rows go; what was done stays, where nothing else will say it.
    fn settle(&mut self, now: Instant) {
        self.hide();
        if !self.options.result_names_nodes {
            let sign = style("✔").green().for_stderr();
            let nodes = |names: &[String]| style(nodeset::fold(names)).bold().for_stderr();
            let done = self.board.done();
            let lines: Vec<String> =
                done.iter().map(|(what, names)| format!("{sign} {} {what}", nodes(names))).collect();
            lines.iter().for_each(|line| self.line(line, now));
        }
        self.board.clear();
    }
}

impl<T: Terminal> Renderer for Rows<T> {
    fn show(&mut self, event: Event, now: Instant) {
        self.board.see(&event, now);
        match event {
            Event::Note(text) => self.line(&text, now),
            Event::Warning(text) | Event::Restart(text) => {
                self.line(&format!("{} {text}", style("warning:").yellow().bold().for_stderr()), now)
            }
            Event::Launcher(line) => self.line(&format!("{} {line}", style("[launcher]").dim().for_stderr()), now),
            Event::Output { rank, node, stderr, line } => {
                self.under_way(now);
                if stderr || self.terminal.shows_output() {
                    self.hide();
                    self.still = Some(now + REST);
                }
                output_line(rank, &node, stderr, &line);
            }
            Event::Job { id, state: State::Starting } => self.job = Some(id),
            Event::Job { state: State::Running, .. } => self.under_way(now),
            Event::Job { .. } => self.settle(now),
            _ => {}
        }
    }

    fn patience(&self) -> Option<Duration> {
        (!self.board.is_empty()).then_some(BEAT)
    }

    fn tick(&mut self, now: Instant) {
        let due = self.last.is_none_or(|last| now.saturating_duration_since(last) >= BEAT);
        let still = self.still.is_some_and(|until| now < until);
        if due && !still && !self.board.is_empty() {
            self.draw(now);
        }
    }

    fn hide(&mut self) {
        if !self.drawn.is_empty() {
            let (rows, columns) = self.terminal.size();
            let back = self.back(rows, columns);
            self.terminal.write(&format!("{back}\x1b[J"));
            self.drawn.clear();
        }
    }

    fn finish(&mut self) {
        self.settle(Instant::now());
    }
}

#[cfg(test)]
mod tests;
