//! Rows on a terminal, drawn by indicatif: a bar for the phase, for each node that the board has chosen and for the count
//! of the others, below the lines that stay.

use super::board::{Board, Row, Sign};
use super::{Options, Renderer, is_raw, output_line};
use crate::event::Event;
use crate::job::record::State;
use crate::text::nodeset;
use crate::text::visible::visible_lines;
use console::{Term, style};
use indicatif::{MultiProgress, ProgressBar, ProgressDrawTarget, ProgressStyle, TermLike};
use std::io::{self, IsTerminal};
use std::time::{Duration, Instant};

/// How often the rows are drawn.
const INTERVAL: Duration = Duration::from_millis(100);
/// How long nothing is drawn after a rank's line, so that nothing moves between lines that follow each other.
const REST: Duration = Duration::from_secs(2);
/// From this width on a transfer shows a bar, bytes, rate and time left; below, only the share that is done.
const WIDE: u16 = 72;

/// A row's bar.
struct Bar {
    key: usize,
    /// What its style was made for.
    look: Option<(Sign, bool, bool)>,
    bar: ProgressBar,
}

impl Bar {
    fn show(&mut self, row: &Row, width: u16) {
        let look = (row.sign, row.bytes.is_some(), width >= WIDE);
        let was_transfer = self.look.is_some_and(|(_, bytes, _)| bytes);
        if self.look.replace(look) != Some(look) {
            self.bar.set_style(bar_style(look));
        }
        self.bar.set_message(row.text.clone());
        let mut begins = false;
        if let Some((done, total)) = row.bytes {
            begins = !was_transfer || done < self.bar.position();
            self.bar.set_length(total);
            self.bar.set_position(done);
        }
        self.bar.tick();
        if begins {
            // what was there before is no measure of the rate
            self.bar.reset_eta();
        }
    }
}

fn bar_style((sign, bytes, wide): (Sign, bool, bool)) -> ProgressStyle {
    let (signs, colour) = match sign {
        Sign::None => ("  ", "dim"),
        Sign::Waiting => ("··", "dim"),
        Sign::Busy => ("⠋⠙⠹⠸⠼⠴⠦⠧⠇⠏⠏", "cyan"),
        Sign::Done => ("✔✔", "green"),
        Sign::Failed => ("✘✘", "red"),
    };
    let transfer = match (bytes, wide) {
        (false, _) => "",
        (true, true) => " {bar:10} {binary_bytes:>9}/{binary_total_bytes} {binary_bytes_per_sec:>12} {eta:>4}",
        (true, false) => " {percent:>3}%",
    };
    let template = format!("{{spinner:.{colour}}} {{wide_msg}}{transfer}");
    ProgressStyle::with_template(&template).unwrap_or_else(|_| ProgressStyle::default_spinner()).tick_chars(signs)
}

/// Draws rows.
pub struct Rows {
    options: Options,
    term: Box<dyn TermLike>,
    /// Whether standard output goes to the same terminal.
    shows_output: bool,
    board: Board,
    multi: MultiProgress,
    /// In the order of their keys.
    bars: Vec<Bar>,
    /// The terminal's width when the rows were drawn, or `None` if none are on it.
    drawn: Option<u16>,
    last: Option<Instant>,
    /// Nothing is drawn until then, because ranks write.
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

    fn draw(&mut self, now: Instant) {
        let (height, width) = (self.term.height(), self.term.width());
        if self.drawn.is_some_and(|before| width < before) {
            self.unfold(height, width);
        }
        // the cursor needs the line below
        let rows = self.board.rows(now, usize::from(height).saturating_sub(1), usize::from(width));
        let multi = &self.multi;
        self.bars.retain(|bar| {
            let stays = rows.iter().any(|row| row.key == bar.key);
            if !stays {
                multi.remove(&bar.bar);
            }
            stays
        });
        for (i, row) in rows.iter().enumerate() {
            if self.bars.get(i).is_none_or(|bar| bar.key != row.key) {
                let bar = self.multi.insert(i, ProgressBar::hidden());
                self.bars.insert(i, Bar { key: row.key, look: None, bar });
            }
            self.bars[i].show(row, width);
        }
        match self.bars.last() {
            Some(last) => {
                last.bar.force_draw();
                self.drawn = Some(width);
            }
            None => self.hide(),
        }
        self.last = Some(now);
    }

    /// Clears rows that a terminal has folded because it became narrower; indicatif would clear as many lines as it drew.
    fn unfold(&mut self, height: u16, width: u16) {
        let Some(before) = self.drawn else { return };
        let added = folded(self.bars.len(), before, width).min(usize::from(height)).saturating_sub(self.bars.len());
        let _ = self.term.move_cursor_up(added);
        self.hide();
        let _ = self.term.write_str("\x1b[J").and_then(|()| self.term.flush());
    }

    /// Writes a line that stays, above the rows.
    fn line(&mut self, text: &str) {
        let text = if is_raw() { text.to_owned() } else { visible_lines(text) };
        let write = || {
            let _ = self.term.write_line(&text).and_then(|()| self.term.flush());
        };
        match self.drawn {
            Some(_) => self.multi.suspend(write),
            None => write(),
        }
    }

    /// The nodes have done their part, and the terminal belongs to what the ranks write; the first may do so before the
    /// last has started.
    fn leave_to_ranks(&mut self, now: Instant) {
        if let Some(id) = self.job.take() {
            self.settle();
            self.board.update(&Event::Phase(format!("job {id} is running")), now);
        }
    }

    /// Clears the rows; what was done stays, where nothing else will say it.
    fn settle(&mut self) {
        self.hide();
        if !self.options.result_names_nodes {
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

/// Returns how many lines so many full ones take on a terminal that has become narrower. indicatif writes them without line
/// ends, so to the terminal they are one long line.
fn folded(lines: usize, before: u16, now: u16) -> usize {
    (lines * usize::from(before)).div_ceil(usize::from(now.max(1)))
}

impl Renderer for Rows {
    fn show(&mut self, event: Event, now: Instant) {
        self.board.update(&event, now);
        match event {
            Event::Note(text) => self.line(&text),
            Event::Warning(text) | Event::Restart(text) => {
                self.line(&format!("{} {text}", style("warning:").yellow().bold().for_stderr()))
            }
            Event::Launcher(line) => self.line(&format!("{} {line}", style("[launcher]").dim().for_stderr())),
            Event::Output { rank, node, stderr, line } => {
                self.leave_to_ranks(now);
                if stderr || self.shows_output {
                    self.hide();
                    self.still = Some(now + REST);
                }
                output_line(rank, &node, stderr, &line);
            }
            Event::Job { id, state: State::Starting } => self.job = Some(id),
            Event::Job { state: State::Running, .. } => self.leave_to_ranks(now),
            Event::Job { .. } => self.settle(),
            _ => {}
        }
    }

    fn interval(&self) -> Option<Duration> {
        (!self.board.is_empty()).then_some(INTERVAL)
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
