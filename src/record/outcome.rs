//! The outcome of a watched job.

use super::monitor::Monitor;
use super::outside::OutsideFiles;
use super::{HungRank, JobResult, JobState, LostOutput, RankExit, RootCause};
use crate::launch::placement::Placement;
use crate::model::fault::{Fault, as_text};
use schemars::JsonSchema;
use serde::Serialize;

/// The result of a job.
#[derive(Debug, Clone, Serialize, JsonSchema)]
#[schemars(rename = "JobResult")]
pub struct JobOutcome {
    /// Its id.
    pub id: String,
    /// Its final state, or its present state while it has not ended.
    pub state: JobState,
    /// The placement of its ranks.
    pub placement: Placement,
    /// The program's exit code: that of the rank that failed first, else the launcher's.
    pub code: i64,
    /// The rank that failed first.
    pub first_failure: Option<RankExit>,
    /// The root cause: the rank that made the job fail, and why.
    pub root_cause: Option<RootCause>,
    /// The last lines of that rank.
    pub last_lines: Vec<String>,
    /// The reason why that rank could not start its program, if it could not.
    #[serde(skip)]
    pub broken: Option<String>,
    /// Set if these are also the last lines that were shown.
    #[serde(skip)]
    pub just_shown: bool,
    /// True if every rank has started its program.
    pub all_started: bool,
    /// Nodes that did not answer at the end, where processes may be left.
    pub silent: Vec<String>,
    /// The reason why the job supervisor recorded no result.
    #[serde(serialize_with = "as_text")]
    #[schemars(with = "Option<String>")]
    pub fault: Option<Fault>,
    /// Output that a full disk lost.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub lost: Vec<LostOutput>,
    /// Files that it wrote outside the mounts of its containers and that are lost with them, by node.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub outside: Vec<OutsideFiles>,
    /// The launcher's last lines.
    #[serde(skip)]
    pub launcher: Vec<String>,
}

impl JobOutcome {
    /// Returns the outcome of a job whose ranks have all started and that goes on.
    pub fn running(id: &str, placement: &Placement) -> JobOutcome {
        let outcome = JobOutcome::new(id, placement, JobResult::default(), &Monitor::default());
        JobOutcome { state: JobState::Running, code: 0, ..outcome }
    }

    /// Returns the outcome of a job that is in Slurm's queue.
    pub fn queued(id: &str) -> JobOutcome {
        JobOutcome { state: JobState::Queued, ..JobOutcome::running(id, &Placement::default()) }
    }

    /// Returns the outcome of a job with this result. The last lines are those that `monitor` saw.
    pub fn new(id: &str, placement: &Placement, result: JobResult, monitor: &Monitor) -> JobOutcome {
        let root_cause = result.root_cause(placement);
        let of = root_cause.as_ref().map(|cause| (cause.node.as_str(), cause.rank));
        JobOutcome {
            id: id.to_owned(),
            state: result.state(),
            placement: placement.clone(),
            code: result.code().unwrap_or(1),
            first_failure: result.first_failure().cloned(),
            last_lines: of.map(|(node, rank)| monitor.last_lines(node, rank)).unwrap_or_default(),
            broken: of.and_then(|(node, rank)| monitor.broken(node, rank)).cloned(),
            just_shown: of.is_some_and(|(node, rank)| monitor.are_last(node, rank)),
            root_cause,
            all_started: result.started >= result.ranks,
            silent: Vec::new(),
            fault: result.fault,
            lost: result.lost,
            outside: result.outside,
            launcher: monitor.launcher.iter().cloned().collect(),
        }
    }
}

/// Replaces the recorded exits of the ranks, and the times of their hangs, by the observed ones, whose times are by our
/// clock, if the exits of all ranks of the last attempt were observed. `ranks` is the number of ranks of the first
/// attempt.
pub fn with_observed(result: JobResult, monitor: &Monitor, ranks: u32) -> JobResult {
    let exits = &monitor.exits;
    // more than were recorded are of an earlier attempt, unless the supervisor did not hear of all nodes
    let recorded_all = result.silent.is_empty() && (result.fault.is_none() || result.launcher.is_some());
    let fits = exits.len() == result.exits.len() || exits.len() > result.exits.len() && !recorded_all;
    // a node may have left, and its ranks were given to others
    let is_same = |recorded: &RankExit| exits.iter().any(|e| (e.rank, &e.node) == (recorded.rank, &recorded.node));
    if result.ranks != ranks || !fits || !result.exits.iter().all(is_same) {
        return result;
    }
    // only their times: a rank that waited while the job was ended may also have been reported, and did not hang
    let as_observed = |hung: &HungRank| {
        let same = monitor.hung.iter().filter(|other| HungRank { time: hung.time, ..(*other).clone() } == *hung);
        same.min_by(|a, b| a.time.total_cmp(&b.time)).unwrap_or(hung).clone()
    };
    JobResult { exits: exits.clone(), hung: result.hung.iter().map(as_observed).collect(), ..result }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranks_that_were_not_recorded_as_hung_do_not_hang() {
        let hung = |rank, time| HungRank { rank, seconds: 60, tensors: None, idle: None, time };
        let exit =
            |time| RankExit { rank: 0, node: "a".into(), code: 143, signal: None, time, asked: false, oom: false };
        let mut monitor = Monitor::default();
        (monitor.exits, monitor.hung) = (vec![exit(5.0)], vec![hung(0, 4.0), hung(1, 4.5)]);
        let result = |hung| JobResult { ranks: 1, exits: vec![exit(65.0)], hung, ..JobResult::default() };
        let observed = |hung| with_observed(result(hung), &monitor, 1);
        assert_eq!(observed(vec![hung(0, 64.0)]), JobResult { exits: vec![exit(5.0)], ..result(vec![hung(0, 4.0)]) });
        assert_eq!(observed(vec![hung(2, 64.0)]).hung, [hung(2, 64.0)], "the report was not observed");
    }
}
