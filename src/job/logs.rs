//! Shows the output of a job's ranks: selected lines of all logs in the order of time, then new lines as they arrive.

use super::follow::{Follow, at, instant};
use super::manage::JobList;
use super::node_log::{self, LogExtent, NodeLog, extents, warn_of_gone};
use crate::cancel::signalled;
use crate::cluster::operator::now;
use crate::diagnosis::launchers::WITHOUT_MPI;
use crate::diagnosis::lost::lost_output;
use crate::error::{Error, NodeError};
use crate::event::{Event, Events, Message, Stream};
use crate::launch::placement::Placement;
use crate::record::frames::{Frame, FrameKind};
use crate::record::list::Job;
use crate::record::monitor::Monitor;
use crate::record::restart::{self, Restart};
use crate::record::waits::Waits;
use crate::text::nodeset::printable;
use futures_util::future::join_all;
use regex::bytes::Regex;
use std::collections::{BTreeSet, VecDeque};
use std::time::Duration;
use tokio::sync::mpsc::{self, Receiver, Sender};
use tokio::sync::watch;

/// The next step where the disk of a node was full.
pub(super) const PRUNE: &str = "hvdctl jobs prune removes old logs";

/// Number of bytes that are read first from the end of a log for `--tail`. If they contain too few lines, eight times
/// as many are read.
const END: u64 = 256 << 10;

/// Which part of a job's output is wanted.
#[derive(Debug, Clone, Default)]
pub struct LogRequest {
    /// Only these ranks; empty: all.
    pub ranks: BTreeSet<u32>,
    /// Only what was written since then.
    pub since: Option<Since>,
    /// Only lines in which this is found.
    pub grep: Option<Regex>,
    /// Only this many, from the end.
    pub tail: Option<usize>,
    /// If set, the job is followed until it ends.
    pub follow: bool,
}

/// The time of the first line that is wanted, by the clock of the node that wrote it.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Since {
    /// So long before the request.
    Ago(Duration),
    /// Seconds since the epoch.
    At(f64),
}

impl LogRequest {
    /// Returns this request to a node, by whose clock it is so late.
    fn on_node(&self, clock: f64) -> LogRequest {
        let at = |since| match since {
            Since::Ago(span) => Since::At(clock - span.as_secs_f64()),
            Since::At(_) => since,
        };
        LogRequest { since: self.since.map(at), ..self.clone() }
    }

    /// Returns whether a frame is to be shown.
    fn takes(&self, frame: &Frame) -> bool {
        let is_recent = match self.since {
            Some(Since::At(since)) => frame.time >= since,
            // it has just been written
            Some(Since::Ago(_)) | None => true,
        };
        let is_of_rank = self.ranks.is_empty() || self.ranks.contains(&frame.rank);
        match &frame.kind {
            FrameKind::Stdout(line) | FrameKind::Stderr(line) => {
                is_recent && is_of_rank && self.grep.as_ref().is_none_or(|grep| grep.is_match(line))
            }
            FrameKind::Waits { .. } | FrameKind::Resumed(_) | FrameKind::Stack(_) => is_recent && is_of_rank,
            // it concerns all ranks
            FrameKind::Restart(_)
            | FrameKind::Renumbered { .. }
            | FrameKind::Substituted(_)
            | FrameKind::WithoutMpi => is_recent,
            _ => false,
        }
    }
}

/// Reports the output of a job's ranks. Returns what the existing frames say of the job, but not those that are
/// followed.
///
/// # Errors
/// When one of its nodes does not answer; a signal.
pub async fn logs(
    list: &JobList<'_>,
    job: &Job,
    wanted: &LogRequest,
    events: &Events,
    mut cancel: watch::Receiver<Option<u8>>,
) -> Result<Monitor, Error> {
    let mut nodes = list.nodes_of(job)?;
    nodes.check_logs()?;
    let logs = node_log::logs(&nodes, job.log_max);
    let running = (!job.is_over()).then_some(&*job.id);
    let (mut monitor, mut view) = (Monitor::default(), LogView::new(running, &job.placement, events));
    let offsets = tokio::select! {
        offsets = history(&logs, wanted, &mut monitor, &mut view) => offsets?,
        signal = signalled(&mut cancel) => return Err(Error::Signal(signal)),
    };
    if let Some(lost) = lost_output(&job.lost) {
        events.warn(Message::from(lost).hint(PRUNE));
    }
    if !wanted.follow || job.is_over() {
        return Ok(monitor);
    }
    let (engine, container) = nodes.launcher_container().await?;
    let mut follow = Follow::start(logs, offsets, events).await?;
    let mut ended = std::pin::pin!(engine.wait(&container));
    let mut signal = std::pin::pin!(signalled(&mut cancel));
    loop {
        let due = at(view.waits.due().map(instant));
        let mut take = |node: &str, _skew: f64, frame| view.follow(node, frame, wanted);
        tokio::select! {
            code = &mut ended => { code?; break }
            () = follow.overdue() => break,
            number = &mut signal => return Err(Error::Signal(number)),
            () = due => view.report_waits(),
            () = follow.next(&mut take) => {}
        }
        if std::mem::take(&mut view.is_requeued) {
            follow.follow_requeued(&mut nodes).await;
        }
    }
    follow.drain(&[], &mut |node: &str, _skew, frame| view.follow(node, frame, wanted)).await;
    Ok(monitor)
}

/// Reports the current contents of all logs, in the order of time. Returns the offset at which each continues. Only
/// what the terminal has not taken yet is held in memory.
async fn history(
    logs: &[NodeLog],
    wanted: &LogRequest,
    monitor: &mut Monitor,
    view: &mut LogView<'_>,
) -> Result<Vec<u64>, Error> {
    let events = view.events;
    let extents = extents(logs, events).await?;
    if wanted.tail.is_none() {
        warn_of_gone(logs, &extents, events);
    }
    let (senders, receivers): (Vec<_>, Vec<_>) = logs.iter().map(|_| mpsc::channel(4)).unzip();
    let reading =
        logs.iter().zip(extents).zip(senders).map(|((log, extent), sender)| read(log, extent, wanted, sender));
    let mut last = VecDeque::new();
    let merging = merge(receivers, async |i, frame| {
        let node = logs[i].node();
        monitor.record(node, &frame, 0.0);
        let Some(tail) = wanted.tail else {
            view.show(node, frame);
            return events.throttle().await;
        };
        last.push_back((node, frame));
        if last.len() > tail {
            last.pop_front();
        }
    });
    let (ends, ()) = tokio::join!(join_all(reading), merging);
    for (node, frame) in last {
        view.show(node, frame);
        events.throttle().await;
    }
    view.report_waits();
    Ok(ends.into_iter().collect::<Result<_, NodeError>>()?)
}

/// Sends the wanted frames of a log. Returns the offset at which it continues.
async fn read(
    log: &NodeLog,
    extent: LogExtent,
    wanted: &LogRequest,
    sender: Sender<Vec<Frame>>,
) -> Result<u64, NodeError> {
    let wanted = &wanted.on_node(extent.clock);
    let filter = |frames: Vec<Frame>| frames.into_iter().filter(|frame| wanted.takes(frame));
    let Some(tail) = wanted.tail else {
        return log.read(extent.start, async |frames| drop(sender.send(filter(frames).collect()).await)).await;
    };
    let mut window = END;
    loop {
        let from = extent.size.saturating_sub(window).max(extent.start);
        let mut last = VecDeque::new();
        let take = async |frames| {
            last.extend(filter(frames));
            last.drain(..last.len().saturating_sub(tail));
        };
        let end = log.read(from, take).await?;
        if last.len() >= tail || from <= extent.start {
            let _ = sender.send(last.into()).await;
            return Ok(end);
        }
        window *= 8;
    }
}

/// Merges the frames of several logs, each in the order of its time, into one sequence. It holds no more of a log than
/// was sent at once.
async fn merge(mut logs: Vec<Receiver<Vec<Frame>>>, mut take: impl AsyncFnMut(usize, Frame)) {
    let mut waiting: Vec<VecDeque<Frame>> = vec![VecDeque::new(); logs.len()];
    loop {
        for (frames, log) in waiting.iter_mut().zip(&mut logs) {
            while frames.is_empty()
                && let Some(more) = log.recv().await
            {
                frames.extend(more);
            }
        }
        let times = waiting.iter().enumerate().filter_map(|(i, frames)| Some((i, frames.front()?.time)));
        let Some((first, _)) = times.min_by(|a, b| a.1.total_cmp(&b.1)) else { return };
        if let Some(frame) = waiting[first].pop_front() {
            take(first, frame).await;
        }
    }
}

/// Shows frames.
struct LogView<'a> {
    /// The job's id, as long as it runs.
    job: Option<&'a str>,
    /// The placement of its ranks.
    placement: &'a Placement,
    events: &'a Events,
    /// The ranks without progress that are to be reported.
    waits: Waits,
    /// Set once it was reported that another program runs instead of the command's.
    is_substituted: bool,
    /// Set while the nodes on which Slurm has started the job again are not followed.
    is_requeued: bool,
}

/// Formats that the ranks run this program instead of `python`.
pub(super) fn substituted(program: &str) -> String {
    let program: String = program.chars().take(100).collect();
    format!("there is no `python`: the ranks run `{}`", printable(&program))
}

impl<'a> LogView<'a> {
    fn new(job: Option<&'a str>, placement: &'a Placement, events: &'a Events) -> LogView<'a> {
        LogView { job, placement, events, waits: Waits::default(), is_substituted: false, is_requeued: false }
    }

    /// Reports a line of output, a restart with its time, or what ranks wait for, after all that came before.
    fn show(&mut self, node: &str, frame: Frame) {
        if self.waits.due().is_some_and(|due| due < frame.time) {
            self.report_waits();
        }
        self.waits.record(node, &frame, frame.time, frame.time);
        match frame.kind {
            FrameKind::Restart(logged) => {
                let (time, restart) = (Some(frame.time), restart::read(&logged, self.placement));
                self.events.send(Event::Restart { time, restart });
            }
            FrameKind::Substituted(program) => {
                if !std::mem::replace(&mut self.is_substituted, true) {
                    self.events.note(substituted(&program));
                }
            }
            FrameKind::WithoutMpi => self.events.warn(WITHOUT_MPI),
            _ => report_output(self.placement, node, frame, self.events),
        }
    }

    /// Reports a frame that has just arrived, if it is wanted.
    fn follow(&mut self, node: &str, frame: Frame, wanted: &LogRequest) {
        if let FrameKind::Restart(logged) = &frame.kind {
            self.is_requeued |= matches!(restart::read(logged, self.placement), Restart::Requeued { .. });
        }
        if !wanted.takes(&frame) {
            return;
        }
        match frame.kind {
            FrameKind::Waits { .. } | FrameKind::Resumed(_) | FrameKind::Stack(_) => {
                self.waits.record(node, &frame, frame.time, now())
            }
            _ => self.show(node, frame),
        }
    }

    /// Reports the ranks without progress.
    fn report_waits(&mut self) {
        self.waits.take(self.placement, self.job, now()).into_iter().for_each(|event| self.events.send(event));
    }
}

/// Reports a line of output, or that a process has another rank; passes over other frames. `placement`: that of the
/// job's ranks.
pub fn report_output(placement: &Placement, node: &str, frame: Frame, events: &Events) {
    let (stream, line) = match frame.kind {
        FrameKind::Renumbered { rank, size } => {
            let text = format!("rank {} is now rank {rank} of {size}", frame.rank);
            events.note(Message::of(node, text));
            return;
        }
        FrameKind::Stdout(line) => (Stream::Stdout, line),
        FrameKind::Stderr(line) => (Stream::Stderr, line),
        _ => return,
    };
    let (rank, role) = (frame.rank, placement.role(frame.rank));
    events.send(Event::Output { rank, role, node: node.to_owned(), stream, line });
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line(rank: u32, time: f64, text: &str) -> Frame {
        Frame { time, rank, kind: FrameKind::Stdout(text.as_bytes().to_vec()) }
    }

    #[test]
    fn only_what_is_wanted() {
        let frame = line(3, 10.0, "loss 0.5");
        let takes = |wanted: LogRequest| wanted.takes(&frame);
        assert!(takes(LogRequest::default()));
        assert!(takes(LogRequest { ranks: BTreeSet::from([1, 3]), ..LogRequest::default() }));
        assert!(!takes(LogRequest { ranks: BTreeSet::from([1]), ..LogRequest::default() }));
        let since = |since| LogRequest { since: Some(since), ..LogRequest::default() };
        assert!(takes(since(Since::At(10.0))));
        assert!(!takes(since(Since::At(10.1))));
        // by the clocks of two nodes
        let ago = since(Since::Ago(Duration::from_secs(600)));
        assert!(takes(ago.on_node(610.0)) && !takes(ago.on_node(4210.0)) && takes(ago));
        assert!(!takes(since(Since::At(10.1)).on_node(0.0)));
        assert!(takes(LogRequest { grep: Some(Regex::new("^loss").unwrap()), ..LogRequest::default() }));
        assert!(!takes(LogRequest { grep: Some(Regex::new("accuracy").unwrap()), ..LogRequest::default() }));
        assert!(!LogRequest::default().takes(&Frame { kind: FrameKind::Started, ..frame }));
        let waits = Frame { kind: FrameKind::Waits { seconds: 9, does: "sleeping".into() }, ..frame };
        let takes = |wanted: LogRequest| wanted.takes(&waits);
        assert!(takes(LogRequest { grep: Some(Regex::new("^loss").unwrap()), ..LogRequest::default() }));
        assert!(!takes(LogRequest { ranks: BTreeSet::from([1]), ..LogRequest::default() }));
    }

    #[test]
    fn ranks_that_waited_together_are_one_line_where_they_waited() {
        let (events, receiver) = Events::channel();
        let placement = Placement::default();
        let mut view = LogView::new(None, &placement, &events);
        let waits = |rank, time| Frame { time, rank, kind: FrameKind::Waits { seconds: 100, does: "sleeping".into() } };
        let frames = [waits(1, 100.0), line(2, 101.0, "a"), waits(0, 101.5), line(2, 103.0, "b")];
        frames.into_iter().for_each(|frame| view.show("node1", frame));
        let shown: Vec<String> = std::iter::from_fn(|| receiver.receive(std::time::Duration::ZERO).ok())
            .map(|event| match event {
                Event::Output { line, .. } => String::from_utf8(line).unwrap(),
                Event::Idle { ranks, job: None, .. } => {
                    format!("idle {:?}", ranks.iter().map(|idle| idle.rank).collect::<Vec<_>>())
                }
                other => panic!("{other:?}"),
            })
            .collect();
        assert_eq!(shown, ["a", "idle [0, 1]", "b"]);
    }

    #[test]
    fn ranks_that_slurm_does_not_connect_are_warned_of() {
        let (events, receiver) = Events::channel();
        let placement = Placement::default();
        let mut view = LogView::new(None, &placement, &events);
        let frame = Frame { time: 1.0, rank: 0, kind: FrameKind::WithoutMpi };
        assert!(LogRequest::default().takes(&frame));
        view.show("node1", frame);
        let shown = receiver.receive(std::time::Duration::ZERO);
        let Ok(Event::Warning(warning)) = shown else { panic!("{shown:?}") };
        assert_eq!(warning, WITHOUT_MPI.into());
    }

    #[tokio::test]
    async fn logs_are_merged_by_time_and_each_keeps_its_order() {
        let (senders, receivers): (Vec<_>, Vec<_>) = (0..3).map(|_| mpsc::channel(4)).unzip();
        let [first, second, third] = <[Sender<_>; 3]>::try_from(senders).unwrap();
        drop(third);
        first.send(vec![line(0, 1.0, "a"), line(0, 3.0, "c")]).await.unwrap();
        let mut merged = Vec::new();
        let merging = merge(receivers, async |log, frame| merged.push((log, frame.time)));
        let sending = async move {
            tokio::task::yield_now().await;
            // a clock that was set back keeps its own order
            second.send(vec![line(1, 2.0, "b"), line(1, 0.5, "d")]).await.unwrap();
            drop((first, second));
        };
        tokio::join!(merging, sending);
        assert_eq!(merged, [(0, 1.0), (1, 2.0), (1, 0.5), (0, 3.0)], "nothing comes before it is known what is first");
    }
}
