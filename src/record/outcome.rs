//! The outcome of a watched job.

use super::monitor::Monitor;
use super::{HungRank, JobResult, RankExit};
use crate::diagnosis::outcome::JobOutcome;
use crate::launch::placement::Placement;

impl Monitor {
    /// Returns the outcome of a job with this result, and with the last lines that were seen of its root cause.
    pub fn outcome(&self, id: &str, placement: &Placement, result: JobResult) -> JobOutcome {
        let launcher = self.launcher.iter().cloned().collect();
        let outcome = JobOutcome { launcher, ..JobOutcome::new(id, placement, result) };
        let Some((rank, node)) = outcome.shown_rank() else { return outcome };
        JobOutcome {
            last_lines: self.last_lines(&node, rank),
            broken: self.broken(&node, rank).cloned(),
            just_shown: self.are_last(&node, rank),
            ..outcome
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
    use crate::diagnosis::program::{FailedProgram, KnownProject};
    use crate::launch::launcher;
    use crate::model::fault::Fault;
    use crate::model::job_state::JobState;
    use crate::model::launcher::LauncherName;
    use crate::record::frames::{Frame, FrameKind};
    use crate::record::tests::two_roles;

    #[test]
    fn a_role_that_was_not_ready_is_shown_with_the_last_lines_of_its_first_rank() {
        let placement = two_roles();
        let result = |ended| {
            let fault = Fault::RoleNotReady { role: "generator".into(), seconds: 600, ranks: "1".into(), ended };
            JobResult { ranks: 5, started: 2, fault: Some(fault), ..JobResult::default() }
        };
        let mut monitor = Monitor::default();
        for (rank, line) in [(4, "loading the model"), (0, "waiting")] {
            let kind = FrameKind::Stdout(line.as_bytes().to_vec());
            monitor.record(if rank == 4 { "b" } else { "a" }, &Frame { time: 1.0, rank, kind }, 0.0);
        }
        let program = FailedProgram {
            command: &[],
            project: KnownProject::None,
            directory: None,
            restarts_help: false,
            ports: Vec::new(),
        };
        let failure = |ended| {
            let outcome = monitor.outcome("j1", &placement, result(ended));
            outcome.failure(launcher(LauncherName::Env, None), &program).unwrap_err().to_string()
        };
        let error = failure(false);
        let expected = "job j1 failed: the role generator was not ready within 600 s: rank 1\n  last line of rank 1 of \
                        generator:\n    [generator 1 b] loading the model";
        assert!(error.starts_with(expected), "{error}");
        assert!(error.contains("hvdctl logs j1 --role generator") && error.contains("ready_timeout_s"), "{error}");
        let error = failure(true);
        assert!(error.starts_with("job j1 failed: the role generator ended before it was ready: rank 1\n"), "{error}");
        assert!(error.contains("stay in the foreground") && !error.contains("ready_timeout_s"), "{error}");
    }

    #[test]
    fn what_is_observed_keeps_which_ranks_served() {
        let exit = |rank, time| RankExit {
            rank,
            node: "a".into(),
            code: i32::from(rank == 1),
            signal: None,
            time,
            asked: false,
            oom: false,
        };
        let mut monitor = Monitor::default();
        monitor.exits = vec![exit(0, 5.0), exit(1, 5.5)];
        let exits = vec![exit(0, 65.0), exit(1, 65.5)];
        let result = JobResult { launcher: Some(0), ranks: 2, exits, served: vec![1], ..JobResult::default() };
        let observed = with_observed(result, &monitor, 2);
        assert_eq!((observed.exits[1].time, observed.state()), (5.5, JobState::Succeeded));
    }

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
