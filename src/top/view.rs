//! The state of a running job, collected from the frames of its nodes.

use crate::launch::placement::Placement;
use crate::model::role;
use crate::model::usage::{GpuUsage, NodeUsage, RankUsage, Sampled, UsageReport};
use crate::record::frames::{Frame, FrameKind};
use crate::record::list::Job;
use crate::record::restart::{self, Restart};
use crate::record::samples::{GpuDescription, MOST_GPUS, Sample, is_of_job, rank_of_gpu};
use crate::report::metric::names_no_number;
use crate::report::stall::Stalls;
use crate::text::visible::{one_line, visible};
use regex::bytes::Regex;
use std::collections::{BTreeMap, BTreeSet};

/// The most bytes of a line that are shown, and characters.
const LINE: usize = 4096;
const SHOWN: usize = 400;

/// Seconds without any frame after which a node that is sampled counts as silent.
const SILENT: f64 = 30.0;

/// A job that is watched.
#[derive(Debug)]
pub struct View {
    /// The job, which is described above the table.
    pub head: Head,
    /// By rank.
    pub ranks: BTreeMap<u32, WatchedRank>,
    /// The nodes, in rank order.
    pub nodes: Vec<WatchedNode>,
    /// The newest message.
    pub message: Option<String>,
    /// The end of the job, in words.
    pub end: Option<String>,
    /// Only lines in which this is found are shown.
    grep: Option<Regex>,
    /// Only these ranks are shown; none: all.
    only: BTreeSet<u32>,
    placement: Placement,
    /// The number of ranks that it can have.
    most: u32,
}

/// The job.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Head {
    /// Its id.
    pub id: String,
    /// Its name.
    pub name: String,
    /// The time of its start, in seconds since the epoch by the operator's clock.
    pub began: f64,
    /// The number of the attempt, from 1 on.
    pub attempt: usize,
    /// Seconds between two samples; 0: there are none.
    pub sample: u64,
}

/// A rank.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct WatchedRank {
    /// The index of its node.
    pub node: usize,
    /// Its usage.
    pub usage: Option<RankUsage>,
    /// The time of its last line, and the last line that matches.
    pub line: (Option<f64>, String),
    /// The number of lines that name a value that is no number, as far as they were read.
    pub no_numbers: u64,
    /// Its activity while it makes no progress.
    pub waits: Option<String>,
    /// Its exit code, if it has ended.
    pub code: Option<i32>,
    /// The time of its start, if that has been read.
    started: f64,
}

/// A node.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct WatchedNode {
    /// Its name.
    pub name: String,
    /// Its usage.
    pub usage: Option<NodeUsage>,
    gpus: BTreeMap<u32, WatchedGpu>,
    places: BTreeMap<u32, u32>,
    /// The time at which anything last came from it, in seconds since the epoch.
    heard: Option<f64>,
    /// The reason why it cannot be followed, if any.
    pub failure: Option<String>,
}

/// A GPU.
#[derive(Debug, Clone, Default, PartialEq)]
struct WatchedGpu {
    description: GpuDescription,
    usage: GpuUsage,
    stalls: Stalls,
}

/// A GPU of a rank.
#[derive(Debug, Clone, PartialEq)]
pub struct RankGpu<'a> {
    /// Its index in the container.
    pub index: u32,
    /// Its description.
    pub description: &'a GpuDescription,
    /// Its usage.
    pub usage: GpuUsage,
    /// Set if it has been fully in use for a while but takes little power, which means that kernels run and wait.
    pub is_stalled: bool,
}

impl View {
    /// Returns the view of a job before anything is known of its ranks. `began`: when it did, by the operator's clock.
    pub fn new(job: &Job, began: f64, grep: Option<Regex>) -> View {
        let nodes =
            job.placement.shares.iter().map(|share| WatchedNode { name: share.node.clone(), ..WatchedNode::default() });
        let mut ranks = BTreeMap::new();
        for (node, share) in job.placement.shares.iter().enumerate() {
            ranks.extend(
                (share.first..share.first.saturating_add(share.ranks))
                    .map(|rank| (rank, WatchedRank { node, ..WatchedRank::default() })),
            );
        }
        let head = Head {
            id: job.id.clone(),
            name: job.name.clone(),
            began,
            attempt: job.attempts.len() + 1,
            sample: job.record.as_ref().map_or(0, |record| record.sample),
        };
        View {
            most: job.most_ranks(),
            head,
            ranks,
            nodes: nodes.collect(),
            message: None,
            end: None,
            grep,
            only: BTreeSet::new(),
            placement: job.placement.clone(),
        }
    }

    /// Shows only these ranks; all if there are none.
    #[must_use]
    pub fn of_ranks(mut self, only: BTreeSet<u32>) -> View {
        self.only = only;
        if !self.only.is_empty() {
            self.ranks.retain(|rank, _| self.only.contains(rank));
        }
        self
    }

    /// Notes that a node cannot be followed.
    pub fn miss(&mut self, node: &str, reason: &str) {
        let index = self.node(node);
        self.nodes[index].failure = Some(one_line(reason, SHOWN));
    }

    /// Takes a frame of a node's log or samples. `ahead`: by how many seconds the node's clock is ahead of ours.
    /// Returns the sample, if it is one.
    pub fn take(&mut self, node: &str, ahead: f64, frame: &Frame) -> Option<UsageReport> {
        let (index, time, rank) = (self.node(node), frame.time - ahead, frame.rank);
        // a job can write to its own log
        if rank >= self.most {
            return None;
        }
        let heard = &mut self.nodes[index].heard;
        *heard = Some(heard.map_or(time, |heard| heard.max(time)));
        let is_of_node = match &frame.kind {
            FrameKind::Restart(_) => true,
            FrameKind::Sample(sample) => !matches!(sample, Sample::Rank(_)),
            _ => false,
        };
        if !is_of_node && !self.shows(rank) {
            return None;
        }
        match &frame.kind {
            FrameKind::Started => {
                let known = self.rank(rank, index);
                // the logs of several nodes come in any order
                if time >= known.started {
                    *known = WatchedRank { node: index, started: time, ..WatchedRank::default() };
                }
            }
            // the processes of other ranks get theirs in any order
            FrameKind::Renumbered { rank: new, size } if *new < self.most => {
                self.ranks.retain(|rank, _| rank < size);
                *self.rank(*new, index) = WatchedRank { node: index, started: time, ..WatchedRank::default() };
            }
            FrameKind::Exited { .. }
            | FrameKind::Waits { .. }
            | FrameKind::Resumed(_)
            | FrameKind::Stdout(_)
            | FrameKind::Stderr(_)
            | FrameKind::Sample(Sample::Rank(_))
                if self.is_elsewhere(rank, index) => {}
            FrameKind::Exited { code, .. } => {
                let rank = self.rank(rank, index);
                (rank.code, rank.waits) = (Some(*code), None);
            }
            FrameKind::Waits { does, .. } => self.rank(rank, index).waits = Some(one_line(does, SHOWN)),
            FrameKind::Resumed(_) => self.rank(rank, index).waits = None,
            FrameKind::Restart(text) => {
                if let Restart::Failed { attempt, .. } = restart::read(text, &self.placement) {
                    self.head.attempt = self.head.attempt.max(attempt as usize);
                }
            }
            FrameKind::Stdout(line) | FrameKind::Stderr(line) => {
                let is_wanted = self.grep.as_ref().is_none_or(|grep| grep.is_match(line));
                let rank = self.rank(rank, index);
                rank.line.0 = Some(time);
                if is_wanted {
                    rank.line.1 = shown(line);
                    rank.no_numbers = rank.no_numbers.saturating_add(names_no_number(&rank.line.1).into());
                }
            }
            FrameKind::Sample(sample) => {
                let what = self.sample(index, rank, time, sample)?;
                let role = what.rank().and_then(|rank| self.placement.role(rank));
                return Some(UsageReport { time: frame.time, node: node.to_owned(), role, what });
            }
            _ => {}
        }
        None
    }

    fn node(&mut self, name: &str) -> usize {
        self.nodes.iter().position(|node| node.name == name).unwrap_or_else(|| {
            // it joined the job
            self.nodes.push(WatchedNode { name: name.to_owned(), ..WatchedNode::default() });
            self.nodes.len() - 1
        })
    }

    /// Returns whether a rank is shown.
    fn shows(&self, rank: u32) -> bool {
        self.only.is_empty() || self.only.contains(&rank)
    }

    /// Formats a rank for the table: `3`, in a job with roles `trainer 0`.
    pub fn label(&self, rank: u32) -> String {
        role::label(rank, self.placement.role(rank).as_ref())
    }

    /// Returns whether a rank has been started on another node: this one was lost, and may not have noticed.
    fn is_elsewhere(&self, rank: u32, node: usize) -> bool {
        self.ranks.get(&rank).is_some_and(|known| known.started > 0.0 && known.node != node)
    }

    fn rank(&mut self, rank: u32, node: usize) -> &mut WatchedRank {
        self.ranks.entry(rank).or_insert_with(|| WatchedRank { node, ..WatchedRank::default() })
    }

    fn sample(&mut self, index: usize, rank: u32, time: f64, sample: &Sample) -> Option<Sampled> {
        match sample {
            Sample::Rank(usage) => {
                let rank_view = self.rank(rank, index);
                (rank_view.usage, rank_view.node) = (Some(*usage), index);
                return Some(Sampled::Rank(rank, *usage));
            }
            Sample::Node(usage) => {
                self.nodes[index].usage = Some(*usage);
                return Some(Sampled::Node(*usage));
            }
            Sample::Gpu { index: gpu, usage } => {
                if *gpu >= MOST_GPUS {
                    return None;
                }
                let known = self.nodes[index].gpus.entry(*gpu).or_default();
                known.usage = *usage;
                if let (Some(used), Some(power), Some(limit)) =
                    (usage.use_percent, usage.power_w, known.description.limit_w)
                {
                    known.stalls.add(time, used, power, limit);
                }
                let found = self.gpus(index).find(|(_, found)| found.index == *gpu);
                let (rank, found) = found?;
                let uuid = Some(found.description.uuid.clone()).filter(|uuid| !uuid.is_empty());
                return Some(Sampled::Gpu { index: *gpu, uuid, rank, usage: *usage });
            }
            Sample::Place(place) => drop(self.nodes[index].places.insert(*place, rank)),
            Sample::GpuDescription { index: gpu, gpu: description } => {
                if *gpu < MOST_GPUS {
                    self.nodes[index].gpus.entry(*gpu).or_default().description = description.clone();
                }
            }
            Sample::Failure(reason) => self.message = Some(format!("{}: GPUs: {reason}", self.nodes[index].name)),
            Sample::NodeDescription(_) => {}
        }
        None
    }

    /// Returns the GPUs of a node that are the job's, each with the rank that uses it.
    fn gpus(&self, index: usize) -> impl Iterator<Item = (Option<u32>, RankGpu<'_>)> {
        let node = &self.nodes[index];
        let share = self.placement.shares.iter().find(|share| share.node == node.name);
        let own = node.gpus.iter().filter(move |(_, gpu)| is_of_job(share, &gpu.description.uuid));
        own.enumerate().map(move |(position, (index, WatchedGpu { description, usage, stalls }))| {
            let rank = rank_of_gpu(&self.placement, share, &node.places, &description.uuid, position);
            (rank, RankGpu { index: *index, description, usage: *usage, is_stalled: stalls.is_open() })
        })
    }

    /// Returns the GPU of a rank, the first one if its role has several for each.
    pub fn gpu(&self, rank: u32) -> Option<RankGpu<'_>> {
        let node = self.ranks.get(&rank)?.node;
        self.gpus(node).find(|(of, _)| *of == Some(rank)).map(|(_, gpu)| gpu)
    }

    /// Returns what is wrong with a node: why it cannot be followed, or for how long it has been silent.
    pub fn fault(&self, node: &WatchedNode, now: f64) -> Option<String> {
        let silent = node.heard.map_or(0.0, |heard| now - heard);
        // samples become rarer with the job's age (samples.py)
        let usual = (self.head.sample as f64).max((now - self.head.began) / 10_000.0);
        // samples are the ranks'
        let only_launches = self.placement.shares.iter().any(|share| share.node == node.name && share.ranks == 0);
        let is_silent =
            self.head.sample > 0 && self.end.is_none() && !only_launches && silent > SILENT.max(3.0 * usual);
        node.failure.clone().or_else(|| is_silent.then(|| format!("silent for {silent:.0} s")))
    }
}

/// Returns a line of a rank as text that does nothing to a terminal.
fn shown(line: &[u8]) -> String {
    let text = String::from_utf8_lossy(&visible(&line[..line.len().min(LINE)])).into_owned();
    one_line(&console::strip_ansi_codes(&text), SHOWN)
}
