//! The state of every node for the rows on a terminal, and the choice of nodes if there are more than rows. Pure:
//! events and the time go in, rows come out.

use super::progress;
use crate::error::NodeError;
use crate::event::{Event, Step, StepKind};
use crate::text::nodeset;
use crate::text::units::span;
use console::{Alignment, measure_text_width, pad_str, strip_ansi_codes, style};
use std::collections::HashMap;
use std::time::{Duration, Instant};

/// The activity of a node.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RowState {
    /// No step is in progress.
    Waiting,
    /// A step or transfer is in progress.
    Busy,
    /// It is finished.
    Done,
    /// It failed.
    Failed,
}

/// The progress of a transfer.
#[derive(Debug, Clone)]
pub struct ShownTransfer {
    /// Bytes so far.
    pub done: u64,
    /// Bytes in all.
    pub total: u64,
    /// Bytes, rate and time left as text.
    pub text: String,
}

/// A node's row on the screen.
#[derive(Debug)]
struct NodeRow {
    name: String,
    state: RowState,
    /// The step, what was done, or the first line of the error.
    text: String,
    transfer: Option<ShownTransfer>,
    /// The steps in progress, in the order of their starts.
    steps: Vec<Step>,
    /// The start of its first step.
    begun: Option<Instant>,
    /// The start of this state.
    since: Instant,
}

/// A row to be shown.
#[derive(Debug)]
pub struct BoardRow {
    /// The state that selects the symbol at its start; `None` for a count of nodes.
    pub state: Option<RowState>,
    /// Its text, with colours.
    pub text: String,
    /// The progress, if it is a transfer.
    pub transfer: Option<ShownTransfer>,
}

/// The nodes of a command and what they are doing.
#[derive(Debug, Default)]
pub struct Board {
    nodes: Vec<NodeRow>,
    places: HashMap<String, usize>,
    phase: Option<(String, Instant)>,
}

impl Board {
    /// Updates the nodes from an event.
    pub fn update(&mut self, event: &Event, now: Instant) {
        match event {
            Event::Nodes(names) => names.iter().for_each(|name| {
                self.node(name, now);
            }),
            Event::Phase(phase) => self.phase = Some((clean(&phase.to_string()), now)),
            Event::StepStarted { node, step } => {
                let node = self.node(node, now);
                node.steps.push(step.clone());
                node.set(RowState::Busy, &step.text, None, now);
            }
            Event::StepEnded { node, step } => self.node(node, now).end(step, now),
            Event::Transfer { node, what, done, total, rate } => {
                let left = total.saturating_sub(*done).checked_div(*rate).map(Duration::from_secs);
                let left = left.map_or_else(String::new, |left| format!(", {} left", span(left)));
                let text = progress(*done, *total, *rate) + &left;
                self.node(node, now).set(
                    RowState::Busy,
                    what,
                    Some(ShownTransfer { done: *done, total: *total, text }),
                    now,
                );
            }
            Event::Done { node, what } => self.node(node, now).set(RowState::Done, &what.to_string(), None, now),
            Event::Failed { node, error } => self.node(node, now).set(RowState::Failed, &reason(error), None, now),
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
        let done = self.nodes.iter().filter(|node| node.state == RowState::Done);
        nodeset::alike(done.map(|node| (node.text.as_str(), node.name.clone())))
    }

    fn node(&mut self, name: &str, now: Instant) -> &mut NodeRow {
        let place = *self.places.entry(name.to_owned()).or_insert_with(|| {
            let (name, text, steps) = (name.to_owned(), String::new(), Vec::new());
            let (state, transfer, begun) = (RowState::Waiting, None, None);
            self.nodes.push(NodeRow { name, state, text, transfer, steps, begun, since: now });
            self.nodes.len() - 1
        });
        &mut self.nodes[place]
    }

    /// Returns at most so many rows: one for every node if there is room; else one for those that have failed or are
    /// busy, the longest first, and a last one that counts the others.
    pub fn rows(&self, now: Instant, rows: usize, columns: usize) -> Vec<BoardRow> {
        let mut all = Vec::new();
        if let Some((phase, since)) = self.phase.as_ref().filter(|_| rows > 2 || self.nodes.is_empty()) {
            let time = span(now.saturating_duration_since(*since));
            let text = format!("{phase}  {}", style(time).dim().for_stderr());
            all.push(BoardRow { state: Some(RowState::Busy), text, transfer: None });
        }
        let room = rows.saturating_sub(all.len());
        let (shown, hidden): (Vec<_>, Vec<_>) = self.choose(room);
        let width = self.nodes.iter().map(|node| measure_text_width(&node.name)).max().unwrap_or(0).min(columns / 3);
        let others_busy = self.nodes.iter().any(|node| node.state == RowState::Busy);
        all.extend(shown.iter().map(|node| node.row(now, width, others_busy)));
        if !hidden.is_empty() && room > 0 {
            let what = if shown.is_empty() { "nodes" } else { "more" };
            let text = style(summary(&hidden, what)).dim().for_stderr().to_string();
            all.push(BoardRow { state: None, text, transfer: None });
        }
        all.truncate(rows);
        all
    }

    /// Returns the nodes that get a row and those that do not, in the order of the inventory.
    fn choose(&self, room: usize) -> (Vec<&NodeRow>, Vec<&NodeRow>) {
        if self.nodes.len() <= room {
            return (self.nodes.iter().collect(), Vec::new());
        }
        let room = room.saturating_sub(1);
        let oldest = |state: RowState| {
            let mut nodes: Vec<_> = (0..self.nodes.len()).filter(|i| self.nodes[*i].state == state).collect();
            // the longest first, so that a row stays with its node until that is finished
            nodes.sort_by_key(|i| self.nodes[*i].since);
            nodes
        };
        let (failed, busy) = (oldest(RowState::Failed), oldest(RowState::Busy));
        let half = failed.len().min((room / 2).max(room.saturating_sub(busy.len())));
        let chosen: Vec<usize> = failed[..half].iter().chain(busy.iter().take(room - half)).copied().collect();
        let (shown, hidden): (Vec<_>, Vec<_>) = self.nodes.iter().enumerate().partition(|(i, _)| chosen.contains(i));
        (shown.into_iter().map(|(_, node)| node).collect(), hidden.into_iter().map(|(_, node)| node).collect())
    }
}

/// Counts nodes by what they are doing.
fn summary(nodes: &[&NodeRow], what: &str) -> String {
    let states = [
        (RowState::Busy, "busy"),
        (RowState::Failed, "failed"),
        (RowState::Done, "done"),
        (RowState::Waiting, "waiting"),
    ];
    let counts = states.map(|(state, name)| (nodes.iter().filter(|node| node.state == state).count(), name));
    let parts: Vec<String> = counts.iter().filter(|(n, _)| *n > 0).map(|(n, name)| format!("{n} {name}")).collect();
    format!("{} {what}: {}", nodes.len(), parts.join(", "))
}

impl NodeRow {
    /// Ends one of the node's steps; the others go on.
    fn end(&mut self, step: &Step, now: Instant) {
        if let Some(i) = self.steps.iter().position(|other| other == step) {
            self.steps.remove(i);
        }
        match self.steps.last() {
            None => self.set(RowState::Waiting, "", None, now),
            Some(_) if self.transfer.is_some() && step.kind != StepKind::Transfer => {}
            Some(other) => self.set(RowState::Busy, &other.text.clone(), None, now),
        }
    }

    fn set(&mut self, state: RowState, text: &str, transfer: Option<ShownTransfer>, now: Instant) {
        let is_final = match self.state {
            RowState::Failed => matches!(state, RowState::Waiting | RowState::Done),
            RowState::Done => state == RowState::Waiting,
            _ => false,
        };
        if is_final {
            return;
        }
        let text = clean(text);
        if (self.state, &self.text) != (state, &text) {
            self.since = now;
        }
        if state == RowState::Busy {
            self.begun.get_or_insert(now);
        }
        (self.state, self.text, self.transfer) = (state, text, transfer);
    }

    fn row(&self, now: Instant, width: usize, others_busy: bool) -> BoardRow {
        let text = match self.state {
            RowState::Waiting if self.begun.is_some() && others_busy => "waiting for the other nodes",
            RowState::Waiting => "waiting",
            _ => &self.text,
        };
        // of a node that is finished, the time that it took in all
        let time = self.begun.map_or(String::new(), |begun| match self.state {
            RowState::Done | RowState::Failed => span(self.since - begun),
            RowState::Waiting | RowState::Busy => span(now.saturating_duration_since(self.since)),
        });
        let name = pad_str(&self.name, width, Alignment::Left, Some("…"));
        let (name, time) = (style(name).bold().for_stderr(), style(format!("{time:>6}")).dim().for_stderr());
        let text = format!("{name} {time}  {text}");
        BoardRow { state: Some(self.state), text, transfer: self.transfer.clone() }
    }
}

/// Returns the first line of a node's error.
fn reason(error: &NodeError) -> String {
    let message = error.message.lines().next().unwrap_or_default();
    format!("cannot {}: {message}", error.operation).trim_end_matches(": ").to_owned()
}

/// Returns text for one row, without control characters and colours.
fn clean(text: &str) -> String {
    strip_ansi_codes(text).replace(char::is_control, " ").trim().to_owned()
}
