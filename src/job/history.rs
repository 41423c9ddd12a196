//! All that the nodes of a job have recorded of it, as far as they answer.

use super::cleanup::JobNodes;
use super::manage::JobList;
use super::node_log::{LogExtent, NodeLog, gone, logs};
use crate::cluster::each_node::{for_each_node, unreached};
use crate::cluster::operator::now;
use crate::diagnosis::outcome::shown_rank;
use crate::error::{Error, NodeError};
use crate::event::{Events, Step};
use crate::record::frames::{Frame, FrameKind};
use crate::record::list::Job;
use crate::report::Report;
use crate::report::metric::Pattern;
use crate::text::units::human;
use std::cell::RefCell;
use std::collections::{BTreeSet, VecDeque};

/// Bytes of samples that are read of a node: `samples.py` writes at most 64 MiB, and the ranks of a job can write to
/// its files.
const MOST_SAMPLES: u64 = 80 << 20;

/// Number of lines that are shown of the rank that failed first, and the number of bytes of the end of its node's log
/// that are searched for them.
const LAST_LINES: usize = 20;
const END: u64 = 1 << 20;

/// A log with its extent, and by how many seconds the node's clock is ahead of ours.
type ExaminedLog = (LogExtent, f64);

/// Reads the logs and samples of a job on all of its nodes at once. Without `metrics`, the output of ranks stays there:
/// then a job of days takes a second. `only`: the ranks that are shown; none for all.
///
/// # Errors
/// If none of its nodes answers.
pub async fn report<'a>(
    list: &JobList<'_>,
    job: &'a Job,
    only: BTreeSet<u32>,
    metrics: Vec<Pattern>,
    events: &Events,
) -> Result<Report<'a>, Error> {
    let nodes = answering(list, job)?;
    nodes.check_logs()?;
    let has_output = !metrics.is_empty();
    let logs = logs(&nodes, job.log_max);
    let examine = async |log: &NodeLog| log.extent().await.map(|extent| (extent, extent.clock - now()));
    let examined = for_each_node(logs.iter().collect(), examine).await;
    let launcher = logs.iter().zip(&examined).find(|(log, _)| log.node() == job.launcher());
    let first = launcher.or(logs.iter().zip(&examined).next()).and_then(|(_, examined)| examined.as_ref().ok());
    let ahead = first.map_or(0.0, |(_, ahead)| *ahead);
    let report = RefCell::new(Report::new(job, now() + ahead, metrics).of_ranks(only));
    for share in job.placement.shares.iter().filter(|share| nodes.members().all(|one| one.node.name != share.node)) {
        let error = list.failed.iter().find(|error| error.node == share.node);
        let reason = error.map_or("it was not queried", |error| error.message.as_str());
        report.borrow_mut().miss(&share.node, &format!("its records were not read: {reason}"));
    }
    for_each_node(logs.iter().zip(examined).collect(), async |(log, examined): (&NodeLog, Result<ExaminedLog, _>)| {
        let _step = events.begin(log.node(), Step::read("reading its records"));
        let read = async { read_node(log, examined?, ahead, has_output, &report).await };
        if let Err(error) = read.await {
            report.borrow_mut().miss(log.node(), &format!("some of its records were not read: {}", error.message));
        }
    })
    .await;
    Ok(report.into_inner())
}

/// Returns the nodes of a job that answer, that of the launcher first if it does.
///
/// # Errors
/// If none does.
pub fn answering<'j>(list: &'j JobList<'_>, job: &'j Job) -> Result<JobNodes<'j>, Error> {
    if job.shares_directory {
        return list.nodes_of(job);
    }
    let of_job = |node: &String| list.members.iter().find(|member| member.node.name == *node).cloned();
    let mut members: Vec<_> = job.nodes.iter().filter_map(of_job).collect();
    if members.is_empty() {
        return Err(unreached(list.failed.clone()));
    }
    let launcher = members.remove(0);
    Ok(JobNodes { cluster: list.cluster, id: &job.id, launcher, others: members, shares_directory: false })
}

/// Reads what one node has recorded. `launcher`: by how many seconds the clock of the launcher's node is ahead of ours.
async fn read_node(
    log: &NodeLog,
    (extent, ahead): ExaminedLog,
    launcher: f64,
    has_output: bool,
    report: &RefCell<Report<'_>>,
) -> Result<(), NodeError> {
    let (node, ahead) = (log.node(), ahead - launcher);
    let take = async |frames: Vec<Frame>| {
        let mut report = report.borrow_mut();
        frames.iter().for_each(|frame| report.take(node, ahead, frame));
    };
    if extent.start > 0 {
        report.borrow_mut().miss(node, &gone(extent.start));
    }
    let log = if has_output { log.clone() } else { log.without_output() };
    log.read(extent.start, take).await?;
    let samples = log.samples();
    let size = samples.extent().await?.size;
    if size > MOST_SAMPLES {
        report
            .borrow_mut()
            .miss(node, &format!("its samples were not read: they have {}, more than hvdctl writes", human(size)));
        return Ok(());
    }
    samples.read(0, take).await.map(drop)
}

/// Reads the last lines of the rank that failed first, or was not ready; none if its node does not answer.
pub async fn last_lines(list: &JobList<'_>, job: &Job) -> Vec<String> {
    let shown = shown_rank(job.root_cause.as_ref(), job.fault.as_ref(), &job.placement);
    let Some((rank, node)) = shown else { return Vec::new() };
    let Ok(nodes) = answering(list, job) else { return Vec::new() };
    let mut lines = VecDeque::new();
    for log in logs(&nodes, job.log_max).iter().filter(|log| log.node() == node) {
        let Ok(extent) = log.extent().await else { continue };
        let take = async |frames: Vec<Frame>| {
            for frame in frames.into_iter().filter(|frame| frame.rank == rank) {
                if let FrameKind::Stdout(line) | FrameKind::Stderr(line) = frame.kind {
                    lines.push_back(String::from_utf8_lossy(&line).into_owned());
                    lines.drain(..lines.len().saturating_sub(LAST_LINES));
                }
            }
        };
        // what is known of its end does not depend on it
        let _ = log.read(extent.size.saturating_sub(END).max(extent.start), take).await;
    }
    lines.into()
}
