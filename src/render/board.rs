//! What the rows on a terminal show: the state of every node, and which of them there is room for. Pure: events and the
//! time go in, rows come out.

use crate::error::NodeError;
use crate::event::{Event, Step};
use crate::text::nodeset;
use crate::text::units::span;
use console::{Alignment, measure_text_width, pad_str, strip_ansi_codes, style};
use std::collections::HashMap;
use std::time::Instant;

/// What a node is doing.
#[derive(Debug, Clone, PartialEq, Eq)]
enum State {
    /// No step has begun.
    Waiting,
    /// Its steps are done, those of other nodes may not be.
    Idle,
    /// A step, and its bytes done and in all where it is a transfer.
    Busy { step: String, bytes: Option<(u64, u64)> },
    /// It is finished, with what was done.
    Done(String),
    /// It failed, with the first line of the reason.
    Failed(String),
}

#[derive(Debug)]
struct Node {
    name: String,
    state: State,
    /// The steps that are under way there, in the order of their starts.
    steps: Vec<Step>,
    /// When its first step began.
    begun: Option<Instant>,
    /// When this state began.
    since: Instant,
}

/// What stands at the start of a row.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Sign {
    /// Nothing: a count of nodes.
    None,
    /// Nothing happens there.
    Waiting,
    /// A spinner.
    Busy,
    /// A tick.
    Done,
    /// A cross.
    Failed,
}

/// A row to be shown.
#[derive(Debug)]
pub struct Row {
    /// The same for the same phase, node or count in each draw; rows come in the order of their keys.
    pub key: usize,
    /// Its start.
    pub sign: Sign,
    /// Its text, with colours.
    pub text: String,
    /// Bytes done and in all, for a transfer.
    pub bytes: Option<(u64, u64)>,
}

/// The nodes of a command and what they are doing.
#[derive(Debug, Default)]
pub struct Board {
    nodes: Vec<Node>,
    places: HashMap<String, usize>,
    phase: Option<(String, Instant)>,
}

impl Board {
    /// Updates the nodes from an event.
    pub fn update(&mut self, event: &Event, now: Instant) {
        match event {
            Event::Nodes(names) => names.iter().for_each(|name| {
                self.place(name, now);
            }),
            Event::Phase(name) => self.phase = Some((clean(name), now)),
            Event::StepStarted { node, step } => {
                self.place(node, now).steps.push(step.clone());
                self.set(node, State::Busy { step: clean(&step.to_string()), bytes: None }, now);
            }
            Event::StepEnded { node, step } => self.end(node, step, now),
            Event::Transfer { node, what, done, total, .. } => {
                self.set(node, State::Busy { step: clean(what), bytes: Some((*done, *total)) }, now);
            }
            Event::Done { node, what } => self.set(node, State::Done(clean(what)), now),
            Event::Failed(error) => self.set(&error.node, State::Failed(reason(error)), now),
            _ => {}
        }
    }

    /// Removes everything.
    pub fn clear(&mut self) {
        *self = Board::default();
    }

    /// Returns whether there is nothing to show.
    pub fn is_empty(&self) -> bool {
        self.nodes.is_empty() && self.phase.is_none()
    }

    /// Returns what was done, each with its nodes, in the order of the first of them.
    pub fn done(&self) -> Vec<(&str, Vec<String>)> {
        nodeset::alike(self.nodes.iter().filter_map(|node| match &node.state {
            State::Done(what) => Some((what.as_str(), node.name.clone())),
            _ => None,
        }))
    }

    fn place(&mut self, name: &str, now: Instant) -> &mut Node {
        let place = *self.places.entry(name.to_owned()).or_insert_with(|| {
            self.nodes.push(Node {
                name: name.to_owned(),
                state: State::Waiting,
                steps: Vec::new(),
                begun: None,
                since: now,
            });
            self.nodes.len() - 1
        });
        &mut self.nodes[place]
    }

    /// Ends one of a node's steps; what else is running there goes on.
    fn end(&mut self, name: &str, step: &Step, now: Instant) {
        let node = self.place(name, now);
        if let Some(i) = node.steps.iter().position(|other| other == step) {
            node.steps.remove(i);
        }
        let state = match (node.steps.last(), &node.state) {
            (None, _) => State::Idle,
            (Some(_), State::Busy { bytes: Some(_), .. }) if !step.is_transfer() => return,
            (Some(other), _) => State::Busy { step: clean(&other.to_string()), bytes: None },
        };
        self.set(name, state, now);
    }

    fn set(&mut self, name: &str, state: State, now: Instant) {
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

    /// Returns at most so many rows. A row for every node where there is room; else one for those that have failed or are
    /// busy, the longest first, and a last one that counts the others.
    pub fn rows(&self, now: Instant, rows: usize, columns: usize) -> Vec<Row> {
        let mut all = Vec::new();
        if let Some((phase, since)) = self.phase.as_ref().filter(|_| rows > 2 || self.nodes.is_empty()) {
            let time = span(now.saturating_duration_since(*since));
            let text = format!("{phase}  {}", style(time).dim().for_stderr());
            all.push(Row { key: 0, sign: Sign::Busy, text, bytes: None });
        }
        let room = rows.saturating_sub(all.len());
        let (shown, hidden) = self.shown(room);
        let width = self.nodes.iter().map(|node| measure_text_width(&node.name)).max().unwrap_or(0).min(columns / 3);
        let others_busy = self.nodes.iter().any(|node| node.state.name() == "busy");
        let what = if shown.is_empty() { "nodes" } else { "more" };
        all.extend(shown.into_iter().map(|i| self.nodes[i].row(i + 1, now, width, others_busy)));
        if !hidden.is_empty() && room > 0 {
            let text = style(self.summary(&hidden, what)).dim().for_stderr().to_string();
            all.push(Row { key: usize::MAX, sign: Sign::None, text, bytes: None });
        }
        all.truncate(rows);
        all
    }

    /// Returns the places of the nodes that get a row and of those that do not, in the nodes' own order.
    fn shown(&self, room: usize) -> (Vec<usize>, Vec<usize>) {
        if self.nodes.len() <= room {
            return ((0..self.nodes.len()).collect(), Vec::new());
        }
        let room = room.saturating_sub(1);
        let which = |name: &str| {
            let mut nodes: Vec<usize> = (0..self.nodes.len()).filter(|i| self.nodes[*i].state.name() == name).collect();
            // what has lasted longest stays until it is over, so no row jumps to another node meanwhile
            nodes.sort_by_key(|i| self.nodes[*i].since);
            nodes
        };
        let (failed, busy) = (which("failed"), which("busy"));
        let half = failed.len().min((room / 2).max(room.saturating_sub(busy.len())));
        let chosen: Vec<usize> = failed[..half].iter().chain(busy.iter().take(room - half)).copied().collect();
        (0..self.nodes.len()).partition(|i| chosen.contains(i))
    }

    /// Counts these nodes by what they are doing.
    fn summary(&self, nodes: &[usize], what: &str) -> String {
        let count = |name: &str| nodes.iter().filter(|i| self.nodes[**i].state.name() == name).count();
        let counts = ["busy", "failed", "done", "waiting"].map(|name| (count(name), name));
        let parts: Vec<String> = counts.iter().filter(|(n, _)| *n > 0).map(|(n, name)| format!("{n} {name}")).collect();
        format!("{} {what}: {}", nodes.len(), parts.join(", "))
    }
}

impl State {
    /// Its name where nodes are counted.
    fn name(&self) -> &'static str {
        match self {
            State::Busy { .. } => "busy",
            State::Failed(_) => "failed",
            State::Done(_) => "done",
            State::Waiting | State::Idle => "waiting",
        }
    }
}

impl Node {
    fn row(&self, key: usize, now: Instant, width: usize, others_busy: bool) -> Row {
        let (sign, text, bytes) = match &self.state {
            State::Idle if others_busy => (Sign::Waiting, "waiting for the others", None),
            State::Waiting | State::Idle => (Sign::Waiting, "waiting", None),
            State::Busy { step, bytes } => (Sign::Busy, step.as_str(), *bytes),
            State::Done(what) => (Sign::Done, what.as_str(), None),
            State::Failed(why) => (Sign::Failed, why.as_str(), None),
        };
        // of a step that is over, how long the node took for all of them
        let time = match (&self.state, self.begun) {
            (State::Waiting, _) => String::new(),
            (State::Done(_) | State::Failed(_), begun) => begun.map_or(String::new(), |begun| span(self.since - begun)),
            _ => span(now.saturating_duration_since(self.since)),
        };
        let name = pad_str(&self.name, width, Alignment::Left, Some("…"));
        let (name, time) = (style(name).bold().for_stderr(), style(format!("{time:>6}")).dim().for_stderr());
        Row { key, sign, text: format!("{name} {time}  {text}"), bytes }
    }
}

/// Returns the first line of why a node failed.
fn reason(error: &NodeError) -> String {
    let message = error.message.lines().next().unwrap_or_default();
    clean(format!("cannot {}: {message}", error.operation).trim_end_matches(": "))
}

/// Returns text for one row, without what moves the cursor or changes colours.
fn clean(text: &str) -> String {
    let text = strip_ansi_codes(text);
    text.chars().map(|c| if c.is_control() { ' ' } else { c }).collect::<String>().trim().to_owned()
}
