//! The contents of a job's logs and samples, collected frame by frame in bounded memory.

use super::metric::{Metric, Pattern};
use super::series::{Scale, Series};
use super::stall::Stalls;
use crate::model::stack::{self, RankStack, StackGroup};
use crate::record::frames::{Frame, FrameKind};
use crate::record::list::Job;
use crate::record::restart::{self, Restart};
use crate::record::roles;
use crate::record::samples::{
    GpuDescription, GpuUsage, MOST_GPUS, NodeDescription, NodeUsage, RankUsage, Sample, is_of_job, rank_of_gpu,
};
use std::collections::{BTreeMap, BTreeSet};

/// The most points of one line.
const POINTS: usize = 400;
/// The least, however many lines there are.
const LEAST_POINTS: usize = 40;
/// Bytes that all lines may take in the page, and what one point takes.
const LINES: usize = 600_000;
const POINT: usize = 8;
/// Lines for each rank, GPU and node.
const OF_RANK: usize = 4;
const OF_GPU: usize = 2;
const OF_NODE: usize = 6;
/// Spans of time of one rank that are drawn: a job may restart thousands of times.
const SPANS: usize = 200;
/// Restarts that are listed, and those that are noted.
const RESTARTS: usize = 100;
const ENDINGS: usize = 1000;

/// The collected data about a job.
#[derive(Debug)]
pub struct Report<'a> {
    pub(super) job: &'a Job,
    /// Only these ranks are shown; empty: all.
    only: BTreeSet<u32>,
    /// The present by the clock of the launcher's node, in seconds since the epoch.
    pub(super) now: f64,
    pub(super) scale: Scale,
    /// The nodes of the job, in rank order.
    pub(super) nodes: Vec<NodeHistory>,
    pub(super) ranks: BTreeMap<u32, RankHistory>,
    pub(super) metrics: Vec<Metric>,
    /// The restarts, with their times.
    pub(super) restarts: Vec<(f64, String)>,
    /// The times at which ranks of these nodes had ended, whether or not that was recorded; `None`: of all nodes.
    endings: Vec<(f64, Option<Vec<usize>>)>,
    /// Notes on data that the report lacks, each with its reason.
    missing: Vec<String>,
    /// The last lines of the rank that failed first.
    pub(super) last_lines: Vec<String>,
    /// The newest reading of each rank's stacks, with its time, unless the rank went on after it.
    stacks: BTreeMap<u32, (f64, RankStack)>,
}

/// A node of the job.
#[derive(Debug)]
pub(super) struct NodeHistory {
    pub(super) name: String,
    pub(super) description: Option<NodeDescription>,
    /// Percent of its cores, MiB, and KiB a second: received, sent, read, written.
    pub(super) usage: [Series; OF_NODE],
    pub(super) gpus: BTreeMap<u32, GpuHistory>,
    /// The rank in each place on the node, as of the newest sample.
    places: BTreeMap<u32, u32>,
    has_samples: bool,
    /// Set if the reason for the lack of samples is known.
    is_silent: bool,
}

/// A GPU of a node.
#[derive(Debug)]
pub(super) struct GpuHistory {
    pub(super) description: GpuDescription,
    pub(super) used: Series,
    pub(super) power: Series,
    pub(super) memory: Series,
    pub(super) temperature: Series,
    pub(super) stalls: Stalls,
}

/// A rank.
#[derive(Debug)]
pub(super) struct RankHistory {
    pub(super) spans: Vec<RankSpan>,
    /// Percent of a core, MiB, and KiB a second: read, written.
    pub(super) usage: [Series; OF_RANK],
    /// The periods without progress.
    pub(super) waits: Vec<RankWait>,
}

/// A time without progress of a rank.
#[derive(Debug)]
pub(super) struct RankWait {
    /// The index of the node.
    node: usize,
    pub(super) start: f64,
    /// Its end, if the log has it.
    end: Option<f64>,
    /// The activity of the rank.
    pub(super) does: String,
}

/// A time for which a rank ran on a node.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct RankSpan {
    /// The index of the node.
    pub(super) node: usize,
    pub(super) start: f64,
    /// The time and kind of its end, if the log has it.
    pub(super) end: Option<(f64, RankEnd)>,
}

/// The end of a rank.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum RankEnd {
    /// The launcher gave the process another rank.
    Renumbered,
    /// With this exit code, by itself or because the end was requested.
    Exited { code: i32, asked: bool, oom: bool },
}

impl<'a> Report<'a> {
    /// Returns a report without frames. `now`: the present by the clock of the launcher's node.
    pub fn new(job: &'a Job, now: f64, metrics: Vec<Pattern>) -> Report<'a> {
        let (nodes, ranks) = (job.placement.shares.len(), job.ranks as usize);
        let lines = ranks * (OF_RANK + OF_GPU + metrics.len()) + nodes * OF_NODE;
        let most = (LINES / POINT / lines.max(1)).clamp(LEAST_POINTS, POINTS);
        let sample = job.record.as_ref().map_or(0, |record| record.sample);
        let scale = Scale::new(job.started, job.ended.unwrap_or(now), sample as f64, most);
        let nodes = job.placement.shares.iter().map(|share| NodeHistory::new(&share.node, scale));
        let of_prints = scale.of_prints(most);
        Report {
            job,
            only: BTreeSet::new(),
            now,
            scale,
            nodes: nodes.collect(),
            ranks: BTreeMap::new(),
            metrics: metrics.into_iter().map(|pattern| Metric::new(pattern, of_prints)).collect(),
            restarts: Vec::new(),
            endings: Vec::new(),
            missing: Vec::new(),
            last_lines: Vec::new(),
            stacks: BTreeMap::new(),
        }
    }

    /// Shows only these ranks; all if there are none.
    #[must_use]
    pub fn of_ranks(mut self, only: BTreeSet<u32>) -> Report<'a> {
        self.only = only;
        self
    }

    /// Returns whether a rank is shown.
    pub(super) fn shows(&self, rank: u32) -> bool {
        self.only.is_empty() || self.only.contains(&rank)
    }

    /// Formats a rank for sentences: `rank 3`, in a job with roles `rank 0 of trainer`.
    pub(super) fn name(&self, rank: u32) -> String {
        self.job.placement.name(rank)
    }

    /// Returns where the ranks were when they were read last, and when that was; `None` if they never were.
    pub(super) fn places(&self) -> Option<(f64, Vec<StackGroup>)> {
        let newest = self.stacks.values().map(|(time, _)| *time).max_by(f64::total_cmp)?;
        let named = self.stacks.values().map(|(_, stack)| roles::named(stack.clone(), &self.job.placement));
        Some((newest, stack::groups(named)))
    }

    /// Takes a frame of a node's log or samples. `ahead`: by how many seconds that node's clock is ahead of that of the
    /// launcher's node.
    pub fn take(&mut self, node: &str, ahead: f64, frame: &Frame) {
        let (time, rank) = (frame.time - ahead, frame.rank);
        let is_of_node = matches!(&frame.kind, FrameKind::Restart(_) | FrameKind::Sample(_))
            && !matches!(&frame.kind, FrameKind::Sample(Sample::Rank(_)));
        if rank >= self.job.most_ranks() || !is_of_node && !self.shows(rank) {
            return;
        }
        match &frame.kind {
            FrameKind::Stack(stack) => {
                let stack = RankStack { node: node.to_owned(), rank, ..stack.shortened() };
                self.stacks.insert(rank, (time, stack));
            }
            // it has been elsewhere since
            FrameKind::Started | FrameKind::Resumed(_) | FrameKind::Renumbered { .. } => {
                drop(self.stacks.remove(&rank))
            }
            _ => {}
        }
        let node = self.node(node);
        match &frame.kind {
            FrameKind::Started => self.rank(rank).start(node, time),
            FrameKind::Renumbered { rank: new, .. } if *new < self.job.most_ranks() => {
                self.rank(rank).end(node, time, RankEnd::Renumbered);
                self.rank(*new).start(node, time);
            }
            FrameKind::Exited { code, asked, oom, .. } => {
                self.rank(rank).end(node, time, RankEnd::Exited { code: *code, asked: *asked, oom: *oom });
            }
            FrameKind::Waits { seconds, does } => self.rank(rank).wait(node, time - *seconds as f64, does),
            FrameKind::Resumed(_) => self.rank(rank).go_on(node, time),
            FrameKind::Restart(text) => self.restart(time, &restart::read(text, &self.job.placement)),
            FrameKind::Stdout(line) | FrameKind::Stderr(line) if !self.metrics.is_empty() => {
                let line = String::from_utf8_lossy(line);
                self.metrics.iter_mut().for_each(|metric| metric.take(time, rank, &line));
            }
            FrameKind::Sample(sample) => self.sample(node, rank, time, sample),
            _ => {}
        }
    }

    /// Notes that a node's frames are missing, and why.
    pub fn miss(&mut self, node: &str, reason: &str) {
        let index = self.node(node);
        self.nodes[index].is_silent = true;
        self.missing.push(format!("{node}: {reason}"));
    }

    /// Adds the last lines of the rank that failed first.
    pub fn add_last_lines(&mut self, lines: Vec<String>) {
        self.last_lines = lines;
    }

    /// Returns the metrics.
    pub fn metrics(&self) -> &[Metric] {
        &self.metrics
    }

    /// Returns what the report lacks, and why.
    pub fn missing(&self) -> Vec<String> {
        let mut missing = self.missing.clone();
        // samples are the ranks'
        let only_launches = |node: &NodeHistory| {
            self.job.placement.shares.iter().any(|share| share.node == node.name && share.ranks == 0)
        };
        let is_without = |node: &&NodeHistory| !node.has_samples && !node.is_silent && !only_launches(node);
        let without: Vec<&NodeHistory> = self.nodes.iter().filter(is_without).collect();
        let names = || without.iter().map(|node| node.name.as_str()).collect::<Vec<_>>().join(", ");
        let sample = self.job.record.as_ref().map_or(0, |record| record.sample);
        match sample {
            _ if without.is_empty() => {}
            0 if self.job.is_check => missing.push("there are no samples of a check".to_owned()),
            0 => missing.push("there are no samples: sample_s was 0, or an earlier hvdctl started the job".to_owned()),
            _ => missing.push(format!("{}: no sample was written", names())),
        }
        for metric in self.metrics.iter().filter(|metric| metric.values.is_empty()) {
            let nearest: Vec<String> = metric.nearest().map(|line| format!("`{line}`")).collect();
            let nearest = if nearest.is_empty() { "" } else { &format!("; the nearest: {}", nearest.join(", ")) };
            missing.push(format!("no line matches the metric {}{nearest}", metric.pattern()));
        }
        missing.extend(
            self.metrics
                .iter()
                .filter(|metric| metric.are_more)
                .map(|metric| format!("{}: only {} ranks are drawn", metric.name(), metric.values.len())),
        );
        missing
    }

    fn node(&mut self, name: &str) -> usize {
        self.nodes.iter().position(|other| other.name == name).unwrap_or_else(|| {
            // it joined the job
            self.nodes.push(NodeHistory::new(name, self.scale));
            self.nodes.len() - 1
        })
    }

    fn rank(&mut self, rank: u32) -> &mut RankHistory {
        let scale = self.scale;
        self.ranks.entry(rank).or_insert_with(|| RankHistory::new(scale))
    }

    fn restart(&mut self, time: f64, restart: &Restart) {
        let is_start = !matches!(restart, Restart::Ready { .. });
        if is_start && self.restarts.len() < RESTARTS {
            self.restarts.push((time, restart.to_string()));
        }
        let nodes = match restart {
            Restart::Membership { change } if change.kept => {
                Some(change.left.iter().map(|departure| self.node(&departure.node)).collect())
            }
            Restart::Failed { .. } | Restart::Membership { .. } | Restart::Lost { .. } | Restart::Requeued { .. } => {
                None
            }
            // the ranks of a role that is started again have another start
            Restart::Without { .. } | Restart::Role { .. } | Restart::Ready { .. } | Restart::Other { .. } => return,
        };
        if self.endings.len() < ENDINGS {
            self.endings.push((time, nodes));
        }
    }

    /// Returns the time at which a rank had certainly ended whose end was not recorded, because its node was lost; `None`
    /// if it may still run.
    pub(super) fn lost_by(&self, rank: &RankHistory, span: &RankSpan) -> Option<f64> {
        let is_of = |nodes: &Option<Vec<usize>>| nodes.as_ref().is_none_or(|nodes| nodes.contains(&span.node));
        let ended = self.endings.iter().filter(|(_, nodes)| is_of(nodes)).map(|(time, _)| *time);
        let again = rank.spans.iter().map(|span| span.start);
        ended.chain(again).filter(|time| *time > span.start).min_by(f64::total_cmp)
    }

    /// Returns the end of a time without progress: it ends with the rank at the latest.
    pub(super) fn end_of_wait(&self, rank: &RankHistory, wait: &RankWait) -> f64 {
        let is_during = |span: &&RankSpan| span.node == wait.node && span.start <= wait.start;
        let latest = rank.spans.iter().filter(is_during).max_by(|a, b| a.start.total_cmp(&b.start));
        let ended = latest.and_then(|span| span.end.map(|(end, _)| end).or_else(|| self.lost_by(rank, span)));
        wait.end.or(ended).unwrap_or(self.scale.end)
    }

    fn sample(&mut self, index: usize, rank: u32, time: f64, sample: &Sample) {
        let scale = self.scale;
        let node = &mut self.nodes[index];
        node.has_samples = true;
        match sample {
            Sample::Rank(RankUsage { processor_percent, memory_mib, read_kib_s, written_kib_s }) => {
                add(&mut self.rank(rank).usage, time, [*processor_percent, *memory_mib, *read_kib_s, *written_kib_s]);
            }
            Sample::Node(NodeUsage {
                processor_percent,
                memory_mib,
                received_kib_s,
                sent_kib_s,
                read_kib_s,
                written_kib_s,
            }) => {
                let network = [*received_kib_s, *sent_kib_s];
                let [received, sent] = network;
                add(
                    &mut node.usage,
                    time,
                    [*processor_percent, *memory_mib, received, sent, *read_kib_s, *written_kib_s],
                );
            }
            Sample::Place(place) => drop(node.places.insert(*place, rank)),
            Sample::NodeDescription(description) => node.description = Some(description.clone()),
            Sample::Gpu { index, .. } | Sample::GpuDescription { index, .. } if *index >= MOST_GPUS => {}
            Sample::Gpu { index, usage } => {
                node.gpus.entry(*index).or_insert_with(|| GpuHistory::new(scale)).add(time, usage);
            }
            Sample::GpuDescription { index, gpu } => {
                node.gpus.entry(*index).or_insert_with(|| GpuHistory::new(scale)).description = gpu.clone();
            }
            Sample::Failure(reason) => {
                let missing = format!("{}: samples of its GPUs: {reason}", node.name);
                if !self.missing.contains(&missing) {
                    self.missing.push(missing);
                }
            }
        }
    }

    /// Returns the GPUs of a node that are the job's, each with its rank if that is known.
    pub(super) fn gpus<'r>(&'r self, node: &'r NodeHistory) -> Vec<(u32, &'r GpuHistory, Option<u32>)> {
        let share = self.job.placement.shares.iter().find(|share| share.node == node.name);
        let own = node.gpus.iter().filter(|(_, gpu)| is_of_job(share, &gpu.description.uuid));
        own.enumerate()
            .map(|(i, (index, gpu))| {
                (*index, gpu, rank_of_gpu(&self.job.placement, share, &node.places, &gpu.description.uuid, i))
            })
            .filter(|(_, _, rank)| rank.map_or(self.only.is_empty(), |rank| self.shows(rank)))
            .collect()
    }
}

impl NodeHistory {
    fn new(name: &str, scale: Scale) -> NodeHistory {
        NodeHistory {
            name: name.to_owned(),
            description: None,
            usage: std::array::from_fn(|_| Series::new(scale)),
            gpus: BTreeMap::new(),
            places: BTreeMap::new(),
            has_samples: false,
            is_silent: false,
        }
    }
}

impl GpuHistory {
    fn new(scale: Scale) -> GpuHistory {
        let [used, power, memory, temperature] = std::array::from_fn(|_| Series::new(scale));
        let (description, stalls) = (GpuDescription::default(), Stalls::default());
        GpuHistory { description, used, power, memory, temperature, stalls }
    }

    fn add(&mut self, time: f64, usage: &GpuUsage) {
        let GpuUsage { use_percent, memory_mib, power_w, temperature_c, .. } = *usage;
        let series = [&mut self.used, &mut self.power, &mut self.memory, &mut self.temperature];
        for (series, value) in series.into_iter().zip([use_percent, power_w, memory_mib, temperature_c]) {
            value.into_iter().for_each(|value| series.add(time, value));
        }
        if let (Some(used), Some(power), Some(limit)) = (use_percent, power_w, self.description.limit_w) {
            self.stalls.add(time, used, power, limit);
        }
    }
}

impl RankHistory {
    fn new(scale: Scale) -> RankHistory {
        RankHistory { spans: Vec::new(), usage: std::array::from_fn(|_| Series::new(scale)), waits: Vec::new() }
    }

    fn start(&mut self, node: usize, start: f64) {
        if self.spans.len() < SPANS {
            self.spans.push(RankSpan { node, start, end: None });
        }
    }

    /// Ends the span on a node. The logs of several nodes come in any order.
    fn end(&mut self, node: usize, time: f64, how: RankEnd) {
        let open = |span: &&mut RankSpan| span.node == node && span.end.is_none() && span.start <= time;
        if let Some(span) = self.spans.iter_mut().rev().find(open) {
            span.end = Some((time, how));
        }
        self.go_on(node, time);
    }

    fn wait(&mut self, node: usize, start: f64, does: &str) {
        if self.waits.len() < SPANS {
            self.waits.push(RankWait { node, start, end: None, does: does.to_owned() });
        }
    }

    /// Ends the wait on a node that is open. One that an earlier attempt has left open ends with its rank.
    fn go_on(&mut self, node: usize, time: f64) {
        let mut waits = self.waits.iter_mut().rev();
        if let Some(wait) = waits.find(|wait| wait.node == node && wait.start <= time) {
            wait.end.get_or_insert(time);
        }
    }
}

fn add<const N: usize>(series: &mut [Series; N], time: f64, values: [f64; N]) {
    series.iter_mut().zip(values).for_each(|(series, value)| series.add(time, value));
}
