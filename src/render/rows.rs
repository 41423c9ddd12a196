//! Rows on a terminal, drawn by indicatif below the lines that stay: the phase, the nodes that the board has chosen,
//! and the count of the others.

use super::board::{Board, BoardRow, RowState, ShownTransfer};
use super::messages::message;
use super::{INTERVAL, Options, Renderer, output_line, printable};
use crate::event::{Event, Phase, Stream};
use crate::model::job_state;
use crate::text::nodeset;
use console::{Term, style};
use indicatif::{MultiProgress, ProgressBar, ProgressDrawTarget, ProgressStyle, TermLike};
use std::io::{self, IsTerminal};
use std::time::{Duration, Instant};

/// Time after a rank's line in which nothing is drawn, so that nothing moves between lines in close succession.
const REST: Duration = Duration::from_secs(2);
/// From this width on a transfer shows a bar, bytes, rate and time left; below, only the percentage.
const WIDE: u16 = 72;

/// Shows a row in a bar.
fn show(bar: &ProgressBar, row: BoardRow, width: u16) {
    let (signs, colour) = match row.state {
        None => ("  ", "dim"),
        Some(RowState::Waiting) => ("··", "dim"),
        Some(RowState::Busy) => ("⠋⠙⠹⠸⠼⠴⠦⠧⠇⠏⠏", "cyan"),
        Some(RowState::Done) => ("✔✔", "green"),
        Some(RowState::Failed) => ("✘✘", "red"),
    };
    let transfer = match row.transfer {
        None => "",
        Some(_) if width < WIDE => " {percent:>3}%",
        Some(_) => " {bar:10}  {prefix}",
    };
    let template = format!("{{spinner:.{colour}}} {{wide_msg}}{transfer}");
    let style = ProgressStyle::with_template(&template).unwrap_or_else(|_| ProgressStyle::default_spinner());
    bar.set_style(style.tick_chars(signs));
    bar.set_message(row.text);
    if let Some(ShownTransfer { done, total, text }) = row.transfer {
        bar.set_length(total);
        bar.set_position(done);
        bar.set_prefix(text);
    }
    bar.tick();
}

/// Draws rows.
pub struct Rows {
    options: Options,
    term: Box<dyn TermLike>,
    /// Set if standard output goes to the same terminal.
    shows_output: bool,
    board: Board,
    multi: MultiProgress,
    /// One for each row that is drawn.
    bars: Vec<ProgressBar>,
    /// The terminal's width when the rows were drawn, or `None` if none are on it.
    drawn: Option<u16>,
    last: Option<Instant>,
    /// Time until which nothing is drawn, because ranks are writing.
    still: Option<Instant>,
    /// The job that is being prepared.
    job: Option<String>,
}

impl Rows {
    /// Returns a renderer on standard error.
    pub fn stderr(options: Options) -> Rows {
        // `draw` forces one draw of all rows; those of each bar's change are left out
        let target = ProgressDrawTarget::stderr_with_hz(1);
        Rows::new(target, Box::new(Term::stderr()), io::stdout().is_terminal(), options)
    }

    /// Returns a renderer whose bars are drawn on `target` and whose lines are written to `term`, the same terminal.
    fn new(target: ProgressDrawTarget, term: Box<dyn TermLike>, shows_output: bool, options: Options) -> Rows {
        Rows {
            options,
            term,
            shows_output,
            board: Board::default(),
            multi: MultiProgress::with_draw_target(target),
            bars: Vec::new(),
            drawn: None,
            last: None,
            still: None,
            job: None,
        }
    }

    /// Returns a renderer on a terminal in memory, which has both streams.
    #[cfg(test)]
    pub(super) fn on(terminal: &super::tests::terminal::Terminal, options: Options) -> Rows {
        let target = ProgressDrawTarget::term_like(Box::new(terminal.clone()));
        Rows::new(target, Box::new(terminal.clone()), true, options)
    }

    fn draw(&mut self, now: Instant) {
        let (height, width) = (self.term.height(), self.term.width());
        if self.drawn.is_some_and(|before| width < before) {
            self.clear_wrapped(height, width);
        }
        // the cursor needs the line below
        let rows = self.board.rows(now, usize::from(height).saturating_sub(1), usize::from(width));
        for bar in self.bars.drain(rows.len().min(self.bars.len())..) {
            self.multi.remove(&bar);
        }
        for (i, row) in rows.into_iter().enumerate() {
            if i == self.bars.len() {
                self.bars.push(self.multi.add(ProgressBar::hidden()));
            }
            show(&self.bars[i], row, width);
        }
        match self.bars.last() {
            Some(last) => {
                last.force_draw();
                self.drawn = Some(width);
            }
            None => self.hide(),
        }
        self.last = Some(now);
    }

    /// Clears rows that a terminal has wrapped because it became narrower; indicatif would clear only as many lines as
    /// it drew.
    fn clear_wrapped(&mut self, height: u16, width: u16) {
        let Some(before) = self.drawn else { return };
        let added = wrapped(self.bars.len(), before, width).min(usize::from(height)).saturating_sub(self.bars.len());
        let _ = self.term.move_cursor_up(added);
        self.hide();
        let _ = self.term.write_str("\x1b[J").and_then(|()| self.term.flush());
    }

    /// Writes a line that stays, above the rows.
    fn line(&mut self, text: &str) {
        let text = printable(text);
        let write = || {
            let _ = self.term.write_line(&text).and_then(|()| self.term.flush());
        };
        match self.drawn {
            Some(_) => self.multi.suspend(write),
            None => write(),
        }
    }

    /// Clears the nodes' rows once ranks run; the first may write before the last has started.
    fn leave_to_ranks(&mut self, now: Instant) {
        if let Some(id) = self.job.take() {
            self.settle();
            self.board.update(&Event::Phase(Phase::RunningJob { job: id }), now);
        }
    }

    /// Clears the rows; what was done stays as lines if the result does not name it.
    fn settle(&mut self) {
        self.hide();
        if self.options.streams_output {
            let sign = style("✔").green().for_stderr();
            let nodes = |names: &[String]| style(nodeset::fold(names)).bold().for_stderr();
            let done = self.board.done();
            let lines: Vec<String> =
                done.iter().map(|(what, names)| format!("{sign} {} {what}", nodes(names))).collect();
            lines.iter().for_each(|line| self.line(line));
        }
        self.board.clear();
    }
}

/// Returns how many lines so many full ones take on a terminal that has become narrower. indicatif writes them without
/// line ends, so for the terminal they are one long line.
fn wrapped(lines: usize, before: u16, now: u16) -> usize {
    (lines * usize::from(before)).div_ceil(usize::from(now.max(1)))
}

impl Renderer for Rows {
    fn show(&mut self, event: Event, now: Instant) {
        self.board.update(&event, now);
        if let Some(text) = message(&event) {
            self.line(&text);
        }
        match event {
            Event::Output { rank, role, node, stream, line } => {
                self.leave_to_ranks(now);
                if stream == Stream::Stderr || self.shows_output {
                    self.hide();
                    self.still = Some(now + REST);
                }
                output_line(rank, role.as_ref(), &node, stream, &line);
            }
            Event::Job { id, state: job_state::JobState::Starting } => self.job = Some(id),
            Event::Job { state: job_state::JobState::Running, .. } => self.leave_to_ranks(now),
            Event::Job { .. } => self.settle(),
            _ => {}
        }
    }

    fn tick(&mut self, now: Instant) {
        let due = self.last.is_none_or(|last| now.saturating_duration_since(last) >= INTERVAL);
        let still = self.still.is_some_and(|until| now < until);
        if due && !still && !self.board.is_empty() {
            self.draw(now);
        }
    }

    fn hide(&mut self) {
        if self.drawn.take().is_some() {
            let _ = self.multi.clear();
        }
    }

    fn finish(&mut self) {
        self.settle();
    }
}

#[cfg(test)]
mod tests;
