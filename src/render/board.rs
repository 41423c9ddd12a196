//! What the rows on a terminal say: the state of every node, and which of them there is room for. Pure: events and the
//! time go in, rows come out.

use super::progress;
use crate::error::NodeError;
use crate::event::Event;
use crate::text::units::span;
use console::{Style, measure_text_width, strip_ansi_codes, truncate_str};
use std::collections::HashMap;
use std::time::{Duration, Instant};

/// What a node is at.
#[derive(Debug, Clone, PartialEq, Eq)]
enum State {
    /// Nothing was begun yet.
    Waiting,
    /// Its step is done, those of others are not.
    Idle,
    /// A step, and how far it is where that is known.
    Busy { step: String, progress: Option<String> },
    /// It has finished, with what was done.
    Done(String),
    /// It has failed, with the reason's first words.
    Failed(String),
}

#[derive(Debug)]
struct Node {
    name: String,
    state: State,
    /// When it first became busy.
    begun: Option<Instant>,
    /// When this state began.
    since: Instant,
}

/// The nodes of a command and what they are at.
#[derive(Debug, Default)]
pub struct Board {
    nodes: Vec<Node>,
    places: HashMap<String, usize>,
    phase: Option<(String, Instant)>,
}

/// How many nodes are at what.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
struct Count {
    busy: usize,
    failed: usize,
    done: usize,
    waiting: usize,
}

impl Board {
    /// Takes what an event says of the nodes.
    pub fn see(&mut self, event: &Event, now: Instant) {
        match event {
            Event::Nodes(names) => names.iter().for_each(|name| {
                self.place(name, now);
            }),
            Event::Phase(name) => self.phase = Some((clean(name), now)),
            Event::Busy { node, step, .. } => {
                self.turn(node, State::Busy { step: clean(step), progress: None }, now);
            }
            Event::Transfer { node, what, done, total, rate } => {
                let progress = Some(progress(*done, *total, *rate));
                self.turn(node, State::Busy { step: clean(what), progress }, now);
            }
            Event::Idle { node } => self.turn(node, State::Idle, now),
            Event::Done { node, what } => self.turn(node, State::Done(clean(what)), now),
            Event::Failed(error) => self.turn(&error.node, State::Failed(reason(error)), now),
            _ => {}
        }
    }

    /// Forgets everything.
    pub fn clear(&mut self) {
        *self = Board::default();
    }

    /// Whether there is nothing to show.
    pub fn is_empty(&self) -> bool {
        self.nodes.is_empty() && self.phase.is_none()
    }

    /// What was done, with the nodes that have it in common, in the order of the first of them.
    pub fn done(&self) -> Vec<(&str, Vec<String>)> {
        let mut all: Vec<(&str, Vec<String>)> = Vec::new();
        for node in &self.nodes {
            if let State::Done(what) = &node.state {
                match all.iter_mut().find(|(other, _)| other == what) {
                    Some((_, names)) => names.push(node.name.clone()),
                    None => all.push((what, vec![node.name.clone()])),
                }
            }
        }
        all
    }

    fn place(&mut self, name: &str, now: Instant) -> &mut Node {
        let place = *self.places.entry(name.to_owned()).or_insert_with(|| {
            self.nodes.push(Node { name: name.to_owned(), state: State::Waiting, begun: None, since: now });
            self.nodes.len() - 1
        });
        &mut self.nodes[place]
    }

    fn turn(&mut self, name: &str, state: State, now: Instant) {
        let node = self.place(name, now);
        let goes_on = match (&node.state, &state) {
            (State::Busy { step: before, .. }, State::Busy { step, .. }) => before == step,
            // a node that has failed does nothing more, and has not finished
            (State::Failed(_), State::Idle | State::Done(_)) | (State::Done(_), State::Idle) => return,
            _ => false,
        };
        if matches!(state, State::Busy { .. }) {
            node.begun.get_or_insert(now);
        }
        if !goes_on {
            node.since = now;
        }
        node.state = state;
    }

    /// At most so many rows, each at most so many columns wide. A row for every node where there is room; else one for
    /// those that have failed or are busy, the longest first, and a last one that counts the others.
    pub fn rows(&self, now: Instant, rows: usize, columns: usize) -> Vec<String> {
        let mut lines = Vec::new();
        if let Some((phase, since)) = self.phase.as_ref().filter(|_| rows > 2 || self.nodes.is_empty()) {
            let time = span(now.saturating_duration_since(*since));
            lines.push(row(
                &[(spinner(now, *since), cyan()), (" ", plain()), (phase, plain()), (&format!("  {time}"), dim())],
                columns,
            ));
        }
        let room = rows.saturating_sub(lines.len());
        let (shown, hidden) = self.shown(room);
        let width = self.nodes.iter().map(|node| measure_text_width(&node.name)).max().unwrap_or(0).min(columns / 3);
        let others = self.nodes.iter().any(|node| matches!(node.state, State::Busy { .. }));
        lines.extend(shown.into_iter().map(|node| node.row(now, width, columns, others)));
        if let Some(count) = hidden.filter(|_| room > 0) {
            let all = lines.len() <= usize::from(self.phase.is_some());
            lines.push(row(&[(&count.words(if all { "nodes" } else { "more" }), dim())], columns));
        }
        lines.truncate(rows);
        lines
    }

    /// The nodes that get a row, in the nodes' own order, and the count of the others.
    fn shown(&self, room: usize) -> (Vec<&Node>, Option<Count>) {
        if self.nodes.len() <= room {
            return (self.nodes.iter().collect(), None);
        }
        let room = room.saturating_sub(1);
        let which = |wanted: fn(&State) -> bool| {
            let mut nodes: Vec<usize> = (0..self.nodes.len()).filter(|i| wanted(&self.nodes[*i].state)).collect();
            // what has lasted longest stays until it is over, so no row jumps to another node meanwhile
            nodes.sort_by_key(|i| self.nodes[*i].since);
            nodes
        };
        let failed = which(|state| matches!(state, State::Failed(_)));
        let busy = which(|state| matches!(state, State::Busy { .. }));
        let half = failed.len().min((room / 2).max(room.saturating_sub(busy.len())));
        let mut shown: Vec<usize> = failed[..half].iter().chain(busy.iter().take(room - half)).copied().collect();
        shown.sort_unstable();
        let mut count = Count::default();
        for (_, node) in self.nodes.iter().enumerate().filter(|(i, _)| shown.binary_search(i).is_err()) {
            *match node.state {
                State::Busy { .. } => &mut count.busy,
                State::Failed(_) => &mut count.failed,
                State::Done(_) => &mut count.done,
                State::Waiting | State::Idle => &mut count.waiting,
            } += 1;
        }
        (shown.into_iter().map(|i| &self.nodes[i]).collect(), Some(count))
    }
}

impl Count {
    fn words(self, what: &str) -> String {
        let parts = [(self.busy, "busy"), (self.failed, "failed"), (self.done, "done"), (self.waiting, "waiting")];
        let all: usize = parts.iter().map(|(n, _)| n).sum();
        let parts: Vec<String> = parts.iter().filter(|(n, _)| *n > 0).map(|(n, word)| format!("{n} {word}")).collect();
        format!("  {all} {what}: {}", parts.join(", "))
    }
}

impl Node {
    fn row(&self, now: Instant, width: usize, columns: usize, others: bool) -> String {
        let (sign, style, text, progress) = match &self.state {
            State::Idle if others => ("·", dim(), "waiting for the others", None),
            State::Waiting | State::Idle => ("·", dim(), "waiting", None),
            State::Busy { step, progress } => (spinner(now, self.since), cyan(), step.as_str(), progress.as_deref()),
            State::Done(what) => ("✔", Style::new().green(), what.as_str(), None),
            State::Failed(why) => ("✘", Style::new().red(), why.as_str(), None),
        };
        // of a step that is over, how long the node took for all of them
        let time = match (&self.state, self.begun) {
            (State::Waiting, _) => String::new(),
            (State::Done(_) | State::Failed(_), begun) => begun.map_or(String::new(), |begun| span(self.since - begun)),
            _ => span(now.saturating_duration_since(self.since)),
        };
        let name = truncate_str(&self.name, width, "…");
        let pad = " ".repeat(width.saturating_sub(measure_text_width(&name)));
        let head = format!("{pad} {time:>6}  ");
        let taken = 2 + width + measure_text_width(&head);
        // the numbers matter more than the end of a long name
        let text = match progress {
            None => text.to_owned(),
            Some(progress) => {
                let room = columns.saturating_sub(taken + measure_text_width(progress) + 2);
                format!("{}: {progress}", truncate_str(text, room.max(8), "…"))
            }
        };
        row(&[(sign, style), (" ", plain()), (&name, Style::new().bold()), (&head, dim()), (&text, plain())], columns)
    }
}

fn plain() -> Style {
    Style::new()
}

fn dim() -> Style {
    Style::new().dim()
}

fn cyan() -> Style {
    Style::new().cyan()
}

/// Parts with their styles, cut where the columns end.
fn row(parts: &[(&str, Style)], columns: usize) -> String {
    let whole: String =
        parts.iter().map(|(text, style)| style.clone().for_stderr().apply_to(text).to_string()).collect();
    truncate_str(&whole, columns, "…").into_owned()
}

const FRAMES: [&str; 10] = ["⠋", "⠙", "⠹", "⠸", "⠼", "⠴", "⠦", "⠧", "⠇", "⠏"];

fn spinner(now: Instant, since: Instant) -> &'static str {
    let frame = now.saturating_duration_since(since).as_millis() / Duration::from_millis(100).as_millis();
    FRAMES[usize::try_from(frame % 10).unwrap_or_default()]
}

/// The first words of why a node has failed.
fn reason(error: &NodeError) -> String {
    let said = error.message.lines().next().unwrap_or_default();
    clean(&if said.is_empty() {
        format!("cannot {}", error.operation)
    } else {
        format!("cannot {}: {said}", error.operation)
    })
}

/// Words for one row: nothing that moves the cursor or changes colours.
fn clean(text: &str) -> String {
    let text = strip_ansi_codes(text);
    text.chars().map(|c| if c.is_control() { ' ' } else { c }).collect::<String>().trim().to_owned()
}
