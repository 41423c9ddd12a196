//! The lines of `--json`: one for each event of a job, before the document at the end.

use super::{Options, Renderer, err, messages, out};
use crate::error::NodeError;
use crate::event::{Completion, Event, Stream};
use crate::model::idle_rank::IdleRank;
use crate::model::job_state::JobState;
use crate::model::restart::Restart;
use crate::model::role::RankOfRole;
use crate::model::stack::RankStack;
use crate::model::usage::{GpuUsage, NodeUsage, RankUsage, Sampled, UsageReport};
use crate::text::units::stamp;
use schemars::JsonSchema;
use serde::Serialize;
use std::borrow::Cow;
use std::time::Instant;

/// A line of `train`, `run`, `notebook`, `attach`, `logs` and `top`, except the last.
// docs/reference/json.md is generated from these comments
#[derive(Debug, Serialize, JsonSchema)]
#[serde(tag = "event", rename_all = "lowercase")]
pub enum Line<'a> {
    /// A line of a rank.
    Output {
        /// The rank.
        rank: u32,
        /// Its role, in a job with roles.
        #[serde(flatten)]
        role: &'a Option<RankOfRole>,
        /// Its node.
        node: &'a str,
        /// The stream.
        stream: Stream,
        /// The line; bytes that are not UTF-8 are replaced by U+FFFD.
        line: Cow<'a, str>,
    },
    /// The state of the job has changed.
    Job {
        /// The id of the job.
        id: &'a str,
        /// Its state.
        state: JobState,
    },
    /// A node is ready.
    #[serde(rename = "node")]
    Done {
        /// The node.
        node: &'a str,
        /// The result, as text.
        done: String,
        /// The upload of the project, if there was one.
        #[serde(skip_serializing_if = "Option::is_none")]
        uploaded: Option<Upload>,
        /// With `--fetch`: the number of files that were fetched from the node.
        #[serde(skip_serializing_if = "Option::is_none")]
        fetched: Option<usize>,
    },
    /// A node has failed. The error is reported again at the end.
    #[serde(rename = "node")]
    Failed {
        /// The node.
        node: &'a str,
        /// The failure.
        error: &'a NodeError,
    },
    /// The job is restarted (`--restarts`); `jobs` has the result of each attempt.
    Restart {
        /// The time of the restart, in `logs`.
        #[serde(skip_serializing_if = "Option::is_none")]
        time: Option<String>,
        /// The reason, and how the job continues.
        #[serde(flatten)]
        restart: &'a Restart,
        /// The event as text.
        text: String,
    },
    /// Ranks have made no progress for `stall_warning_s`; the job continues. It is reported once for each time that
    /// they wait.
    Idle {
        /// These ranks.
        ranks: &'a [IdleRank],
        /// The event as text.
        text: String,
    },
    /// Ranks were read because they make no progress, or others had failed.
    Stacks {
        /// These ranks, those at the same place together, the fewest first.
        ranks: Vec<&'a RankStack>,
        /// The event as text.
        text: String,
    },
    /// Ranks make progress again.
    Resumed {
        /// These ranks, with what they did before.
        ranks: &'a [IdleRank],
        /// The seconds without progress, of the one that waited the longest.
        seconds: u64,
        /// The event as text.
        text: String,
    },
    /// JupyterLab of `notebook` answers.
    Ready {
        /// The address of the page, with the token.
        url: &'a str,
    },
    /// The usage of a rank since the sample before, in `top`.
    #[serde(rename = "rank_usage")]
    RankUsage {
        /// The time of the sample, by the node's clock.
        time: String,
        /// The rank.
        rank: u32,
        /// Its role, in a job with roles.
        #[serde(flatten)]
        role: &'a Option<RankOfRole>,
        /// Its node.
        node: &'a str,
        /// Its usage.
        #[serde(flatten)]
        usage: RankUsage,
    },
    /// The usage of a node since the sample before, all processes together, in `top`.
    #[serde(rename = "node_usage")]
    NodeUsage {
        /// The time of the sample, by the node's clock.
        time: String,
        /// The node.
        node: &'a str,
        /// Its usage.
        #[serde(flatten)]
        usage: NodeUsage,
    },
    /// The usage of a GPU, in `top`.
    #[serde(rename = "gpu_usage")]
    GpuUsage {
        /// The time of the sample, by the node's clock.
        time: String,
        /// The node.
        node: &'a str,
        /// The index of the GPU in the container.
        index: u32,
        /// Its UUID, if that is known.
        uuid: Option<&'a str>,
        /// The rank that uses it, if that is known.
        rank: Option<u32>,
        /// The role of the rank, in a job with roles.
        #[serde(flatten)]
        role: &'a Option<RankOfRole>,
        /// Its usage.
        #[serde(flatten)]
        usage: GpuUsage,
    },
    /// A line of the launcher, with `-vv` only.
    Launcher {
        /// The line.
        line: &'a str,
    },
}

/// The changes that an upload made on a node.
#[derive(Debug, Serialize, JsonSchema)]
pub struct Upload {
    /// The number of files that were sent.
    pub files: usize,
    /// Their bytes.
    pub bytes: u64,
    /// The number of files that were removed.
    pub removed: usize,
}

impl<'a> Line<'a> {
    fn of_usage(UsageReport { time, node, role, what }: &'a UsageReport) -> Line<'a> {
        let time = stamp(*time);
        match what {
            Sampled::Rank(rank, usage) => Line::RankUsage { time, rank: *rank, role, node, usage: *usage },
            Sampled::Node(usage) => Line::NodeUsage { time, node, usage: *usage },
            Sampled::Gpu { index, uuid, rank, usage } => {
                let (index, rank) = (*index, *rank);
                Line::GpuUsage { time, node, index, uuid: uuid.as_deref(), rank, role, usage: *usage }
            }
        }
    }

    /// Returns the line of an event; `None` if it has none.
    pub fn of(event: &'a Event) -> Option<Line<'a>> {
        Some(match event {
            Event::Output { rank, role, node, stream, line } => {
                Line::Output { rank: *rank, role, node, stream: *stream, line: String::from_utf8_lossy(line) }
            }
            Event::Job { id, state } => Line::Job { id, state: *state },
            Event::Done { node, what } => {
                let (mut uploaded, mut fetched) = (None, None);
                match *what {
                    Completion::Uploaded { files, bytes, removed } => {
                        uploaded = Some(Upload { files, bytes, removed });
                    }
                    Completion::Fetched { files } => fetched = Some(files),
                    Completion::Text(_) => {}
                }
                Line::Done { node, done: what.to_string(), uploaded, fetched }
            }
            Event::Failed { node, error } => Line::Failed { node, error },
            Event::Restart { time, restart } => {
                Line::Restart { time: time.map(stamp), restart, text: restart.to_string() }
            }
            Event::Idle { ranks, job, time } => {
                Line::Idle { ranks, text: messages::idle(ranks, job.as_deref(), *time) }
            }
            Event::Stacks { groups, job } => Line::Stacks {
                ranks: groups.iter().flat_map(|group| &group.ranks).collect(),
                text: messages::stacks(groups, job.as_deref()),
            },
            Event::Resumed { ranks, seconds } => {
                Line::Resumed { ranks, seconds: *seconds, text: messages::resumed(ranks, *seconds) }
            }
            Event::Ready { url } => Line::Ready { url },
            Event::Usage(report) => Line::of_usage(report),
            Event::Launcher { line } => Line::Launcher { line },
            Event::Nodes(_)
            | Event::Phase(_)
            | Event::StepStarted { .. }
            | Event::StepEnded { .. }
            | Event::Transfer { .. }
            | Event::Note(_)
            | Event::Warning(_)
            | Event::Suspend { .. } => return None,
        })
    }
}

/// Writes a line per event of a job to standard output. Other commands write only their result, so nothing of them but
/// messages.
pub struct Json(pub Options);

impl Json {
    /// Returns what an event writes to standard output and to standard error, as far as it writes anything.
    pub(super) fn text(&self, event: &Event) -> (Option<String>, Option<String>) {
        match event {
            Event::Warning(message) => (None, Some(format!("warning: {message}"))),
            Event::Note(message) if !self.0.quiet => (None, Some(message.to_string())),
            event if self.0.streams_output => {
                (Line::of(event).and_then(|line| serde_json::to_string(&line).ok()), None)
            }
            _ => (None, None),
        }
    }
}

impl Renderer for Json {
    fn show(&mut self, event: Event, _now: Instant) {
        let (line, message) = self.text(&event);
        line.inspect(|line| out(&format!("{line}\n")));
        message.inspect(|message| err(message));
    }
}
