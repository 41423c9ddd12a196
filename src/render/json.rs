//! JSON: a line per event of a job; for other commands only their result, so nothing here but remarks.

use super::{Options, Renderer, err, out};
use crate::error::NodeError;
use crate::event::Event;
use crate::model::job_state::State;
use schemars::JsonSchema;
use serde::Serialize;
use std::time::Instant;

/// Writes JSON lines to standard output.
pub struct Json(Options);

impl Json {
    /// A renderer.
    pub fn new(options: Options) -> Json {
        Json(options)
    }
}

/// Which stream a line came from.
#[derive(Debug, Serialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Stream {
    /// Standard output.
    Stdout,
    /// Standard error.
    Stderr,
}

/// A line of `train`, `run`, `attach` and `logs`, but the last.
#[derive(Debug, Serialize, JsonSchema)]
#[serde(tag = "event", rename_all = "lowercase")]
pub enum Line {
    /// A line of a rank.
    Output {
        /// The rank.
        rank: u32,
        /// Its node.
        node: String,
        /// The stream.
        stream: Stream,
        /// The line; bytes that are not UTF-8 are replaced by U+FFFD.
        line: String,
    },
    /// The state of the job has changed.
    Job {
        /// The id of the job.
        id: String,
        /// Its state.
        state: State,
    },
    /// A node is ready, or has failed.
    Node {
        /// The node.
        node: String,
        /// What was done; missing where it failed.
        #[serde(skip_serializing_if = "Option::is_none")]
        done: Option<String>,
        /// What failed, else missing.
        #[serde(skip_serializing_if = "Option::is_none")]
        error: Option<NodeError>,
    },
    /// The job is started again (`--restarts`); `jobs` has the result of each attempt.
    Restart {
        /// Why, for people.
        text: String,
    },
    /// A line of the launcher, with `-vv` only.
    Launcher {
        /// The line.
        line: String,
    },
}

/// The line of an event; `None` for those that are not part of a job's record.
pub fn line(event: &Event) -> Option<Line> {
    Some(match event {
        Event::Output { rank, node, stderr, line } => Line::Output {
            rank: *rank,
            node: node.clone(),
            stream: if *stderr { Stream::Stderr } else { Stream::Stdout },
            line: String::from_utf8_lossy(line).into_owned(),
        },
        Event::Job { id, state } => Line::Job { id: id.clone(), state: *state },
        Event::Done { node, what } => Line::Node { node: node.clone(), done: Some(what.clone()), error: None },
        Event::Failed(error) => Line::Node { node: error.node.clone(), done: None, error: Some(error.clone()) },
        Event::Restart(text) => Line::Restart { text: text.clone() },
        Event::Launcher(line) => Line::Launcher { line: line.clone() },
        _ => return None,
    })
}

impl Renderer for Json {
    fn show(&mut self, event: Event, _now: Instant) {
        match event {
            Event::Warning(text) => err(&format!("warning: {text}")),
            Event::Note(text) if !self.0.quiet => err(&text),
            // a command whose result is one document keeps standard output for it
            event if !self.0.result_names_nodes => {
                if let Some(Ok(line)) = line(&event).map(|line| serde_json::to_string(&line)) {
                    out(&format!("{line}\n"));
                }
            }
            _ => {}
        }
    }
}
