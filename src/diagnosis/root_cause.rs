//! The root cause of a failure: the rank by which a job failed, by what is known of all ranks at its end.

use crate::launch::Launcher;
use crate::launch::placement::Placement;
use crate::model::fault::Fault;
use crate::model::job_result::{HungRank, JobResult, RankExit};
use crate::model::job_state::JobState;
use crate::model::root_cause::{Activity, FailureKind, Idle, RootCause};

impl JobResult {
    /// Returns the state of a job with this result.
    pub fn state(&self) -> JobState {
        let first_failure = self.first_failure();
        match self.launcher {
            _ if self.stopped => JobState::Stopped,
            _ if self.fault.is_some() && self.started == 0 => JobState::Failed,
            _ if matches!(self.fault, Some(Fault::RoleNotReady { .. })) => JobState::Failed,
            // a recorded failure of a rank is certain, even without the launcher's exit
            _ if first_failure.is_some() => JobState::Failed,
            Some(0) if self.are_all_known() => JobState::Succeeded,
            Some(0) | None => JobState::Lost,
            Some(_) => JobState::Failed,
        }
    }

    /// Returns whether the rank belongs to a role that had been asked to end because its task was over: its end says
    /// nothing about the job.
    fn is_served(&self, rank: u32) -> bool {
        self.served.contains(&rank)
    }

    /// Returns whether it is known of all ranks how they ended, except of those whose end says nothing.
    fn are_all_known(&self) -> bool {
        let counting = self.exits.iter().filter(|exit| !self.is_served(exit.rank)).count();
        counting.saturating_add(self.served.len()) >= self.ranks as usize
    }

    /// Returns the rank that failed first: of those that failed by themselves or, if it is known of all how they ended,
    /// of those that were asked to end. `asked` counts before the time: a failure ends other ranks within milliseconds,
    /// and clocks differ by more.
    pub fn first_failure(&self) -> Option<&RankExit> {
        // if there was another reason they all were asked
        let all_known = self.are_all_known() && self.fault.is_none();
        let own = self.exits.iter().filter(|exit| !self.is_served(exit.rank));
        let failed = own.filter(|exit| exit.code != 0 && (all_known || !exit.asked));
        failed.min_by(|a, b| a.asked.cmp(&b.asked).then(a.time.total_cmp(&b.time)))
    }

    /// Returns the rank that hung first, if that is why the job ended. A waiting rank is not the cause: then the cause
    /// is a rank of its role that was not seen to wait, or the first one if all wait for one another.
    fn root_hang(&self, placement: &Placement) -> Option<HungRank> {
        let mut hung = self.hung.clone();
        hung.sort_by(|a, b| a.time.total_cmp(&b.time));
        // a rank whose supervisor gave it up was not asked to end
        let gave_up = |hung: &HungRank| self.exits.iter().any(|exit| exit.rank == hung.rank && !exit.asked);
        if !hung.iter().any(|hung| hung.idle.is_none() || gave_up(hung)) {
            return None;
        }
        let not_idle = hung.iter().find(|hung| hung.idle.is_none());
        if let Some(hung) = not_idle.or(hung.iter().find(|hung| hung.idle != Some(Idle::Waiting))) {
            return Some(hung.clone());
        }
        let waiting = hung.first()?.clone();
        let mut of_role = (0..self.ranks).filter(|rank| placement.are_of_one_role(*rank, waiting.rank)).peekable();
        let first = of_role.peek().copied().unwrap_or_default();
        Some(match of_role.find(|rank| self.hung.iter().all(|hung| hung.rank != *rank)) {
            Some(rank) => HungRank { rank, tensors: Some(OPERATION.into()), idle: None, ..waiting },
            None => HungRank { rank: first, ..waiting },
        })
    }

    /// Returns the root cause of a failure; `None` if the job did not fail, or no rank caused that.
    pub fn root_cause(&self, placement: &Placement) -> Option<RootCause> {
        if !matches!(self.state(), JobState::Failed | JobState::Lost) {
            return None;
        }
        let exit_of = |rank| self.exits.iter().find(|exit| exit.rank == rank);
        // a later attempt may have had fewer nodes than the placement
        let node_of = |rank| {
            let node = exit_of(rank).map(|exit| exit.node.as_str());
            node.or(placement.node_of(rank).map(|(node, _)| node)).unwrap_or_default().to_owned()
        };
        let cause = |rank, how| Some(RootCause { rank, role: placement.role(rank), node: node_of(rank), how });
        let gone = |rank| cause(rank, FailureKind::Gone { error: self.silence.get(&node_of(rank)).cloned() });
        let is_silent = |rank: &u32| self.silent.contains(&node_of(*rank));
        // a hung rank makes the others fail
        if let Some(HungRank { rank, seconds, tensors, idle, time }) = self.root_hang(placement) {
            // those that waited may have waited for a rank that had ended, or whose node was gone
            return match exit_of(rank).filter(|_| tensors.is_some()) {
                Some(exit) if !exit.asked && exit.time < time => cause(rank, exit.into()),
                _ if tensors.is_some() && is_silent(&rank) => gone(rank),
                _ => cause(rank, FailureKind::Hung { seconds, tensors, idle }),
            };
        }
        // it ends behind the exits, whatever number of ranks a node has recorded
        let unseen = |first: u32, ranks: u32| {
            let end = self.ranks.min(first.saturating_add(ranks));
            (first..end).find(|rank| exit_of(*rank).is_none() && !self.is_served(*rank))
        };
        // a rank that fails while another node is gone has most likely lost its connection to that node
        let silent = placement.shares.iter().filter(|share| self.silent.contains(&share.node));
        let lost = silent.filter_map(|share| unseen(share.first, share.ranks)).min().filter(|_| self.fault.is_none());
        // a launcher that keeps ranks ends them all when the first has ended, even with 0
        let ended_early = |first: &RankExit| {
            let of_role = |exit: &&RankExit| placement.are_of_one_role(exit.rank, first.rank);
            self.exits.iter().find(|exit| exit.code == 0 && !exit.asked && of_role(exit))
        };
        match (lost, self.first_failure()) {
            (None, Some(first))
                if first.asked
                    && self.fault.is_none()
                    && let Some(early) = ended_early(first) =>
            {
                cause(early.rank, early.into())
            }
            (None, Some(first)) if self.fault.is_none() && !first.asked => {
                self.missing(first, placement).or_else(|| cause(first.rank, first.into()))
            }
            (None, Some(first)) => cause(first.rank, first.into()),
            _ if self.fault.is_some() => None,
            (Some(rank), _) => gone(rank),
            (None, None) => unseen(0, self.ranks).filter(|_| self.started >= self.ranks).and_then(gone),
        }
    }

    /// Formats why the job ended as it did; `None` if there is nothing to say.
    pub fn reason(&self, placement: &Placement) -> Option<String> {
        self.root_cause(placement).map(|cause| cause.to_string()).or_else(|| self.fault.as_ref().map(Fault::to_string))
    }

    /// Returns the exit code of the program: that of the rank that failed first, else the launcher's. It is 143 if the
    /// end was requested, and `None` if it is not known.
    pub fn code(&self) -> Option<i64> {
        match self.state() {
            JobState::Succeeded => Some(0),
            JobState::Stopped => Some(143),
            _ => self.first_failure().map(|exit| exit.code.into()).or(self.launcher.filter(|code| *code != 0)),
        }
    }
}

/// Replaces the tensors in messages if they are not known.
const OPERATION: &str = "a collective operation";

impl RootCause {
    /// Returns a hint, unless the cause is in the program's own output. `launcher` is that of the job.
    pub fn hint(&self, launcher: &Launcher) -> Option<String> {
        use FailureKind::{Exited, GaveUp, Gone, Hung, Missing};
        let (node, init) = (&self.node, launcher.init);
        let operations = "every rank must reach the same collective operations";
        let more_time = "--stall-timeout gives it more time";
        Some(match &self.how {
            Exited { code: 0, .. } => {
                format!("every rank must reach {init}, and the same collective operations as all others")
            }
            Exited { oom: true, .. } => format!(
                "use a smaller batch, fewer data loaders or fewer ranks on {node}; `docker stats` or `podman stats` there shows the limit"
            ),
            Exited { .. } => return None,
            Hung { idle: Some(Idle::Blocked), .. } => format!(
                "it is in a deadlock, or waits for a file system that does not answer; if it should wait, {more_time}"
            ),
            Hung { idle: Some(Idle::Kernel), .. } => {
                format!("a file system or a device of {node} does not answer; `dmesg` there may show which")
            }
            Hung { tensors: Some(tensors), idle: None, .. } if tensors == init => {
                let more_time = launcher.init_hint.map_or_else(String::new, |hint| format!("; {hint}"));
                format!("every rank must reach {init}{more_time}")
            }
            Hung { tensors: Some(_), .. } | Hung { idle: Some(Idle::Waiting), .. } => {
                format!("{operations}; {more_time}")
            }
            Hung { tensors: None, idle: None, .. } => {
                format!("SIGSTOP, a terminal or a debugger stopped it; {more_time}")
            }
            Missing { activity: Activity { does: Some(does), .. }, .. }
                if does.starts_with("blocked in the kernel") =>
            {
                format!("a file system or a device of {node} does not answer; `dmesg` there may show which")
            }
            Missing { activity: Activity { does: Some(does), .. }, .. } if does.starts_with("stopped by") => {
                "SIGSTOP, a terminal or a debugger stopped it".into()
            }
            Missing { .. } | GaveUp { .. } => format!("{operations}; the library's own time-out gives it more time"),
            Gone { .. } => {
                format!(
                    "`dmesg` on {node} and the log of what ran the ranks there (`docker events`, `podman events`, Slurm's) \
                     may show the reason"
                )
            }
        })
    }
}
