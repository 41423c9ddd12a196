//! The reaction to a job that is watched, as a state machine: an event comes in, actions come out. It knows no clock,
//! no process and no node; `watch.rs` performs the actions.

use crate::record::JobState;
use std::time::Duration;

/// SIGHUP: the terminal has gone.
const HANGUP: u8 = 1;

/// Options of watching a job.
#[derive(Debug, Clone, Copy, Default)]
pub struct WatchOptions {
    /// Set if the ranks' output is shown.
    pub output: bool,
    /// Set if the launcher's own output is shown.
    pub launcher_output: bool,
    /// The longest that the job may take, after which it is stopped; `None`: no limit.
    pub limit: Option<Duration>,
    /// Set if it is watched only until every rank has started.
    pub until_started: bool,
    /// Set if a signal leaves it running. Otherwise a signal stops it, unless it is SIGHUP, which means that the
    /// terminal has gone.
    pub leave_on_signal: bool,
    /// Set if its ranks should end at the same time: those of an elastic job, a notebook or a check may not.
    pub ends_together: bool,
}

/// An event of a job or of the process that watches it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Input {
    /// So many ranks have started their program.
    Started(u32),
    /// The container of the job supervisor has exited, with this code where it is known.
    SupervisorExited(Option<i64>),
    /// The operator sent a signal.
    Signal(u8),
    /// The time limit of the command is over.
    TimeLimit,
    /// The job supervisor was asked to stop the job and did not end in time, or could not be asked.
    StopFailed,
}

/// A reaction to an event. Several are performed in order.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Action {
    /// Report the job's state.
    Report(JobState),
    /// Report that the job is being stopped.
    ReportStopping,
    /// Ask the job supervisor to stop the job, within the grace period.
    Stop,
    /// End what is left on the nodes, read the rest of the logs and the result, and stop watching.
    Finish(WatchEnd),
    /// Stop watching and touch nothing; the job continues without hvdctl.
    Leave(WatchEnd),
}

/// The reason why the supervision of a job ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WatchEnd {
    /// The job supervisor exited, with this code where it is known.
    Exited(Option<i64>),
    /// Every rank has started, and only the start was watched.
    AllStarted,
    /// The operator sent a signal.
    Signal(u8),
    /// The time limit is over.
    TimeLimit,
}

/// The supervision of one job.
#[derive(Debug)]
pub struct Supervision {
    ranks: u32,
    options: WatchOptions,
    phase: WatchPhase,
}

/// A phase of a job as it is watched.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum WatchPhase {
    Starting,
    Running,
    /// The job supervisor was asked to stop the job.
    Stopping(WatchEnd),
    /// Nothing more is to be done.
    Over,
}

impl Supervision {
    /// Supervises a job of `ranks` ranks.
    pub fn new(ranks: u32, options: WatchOptions) -> Supervision {
        Supervision { ranks, options, phase: WatchPhase::Starting }
    }

    /// Returns the actions that an input asks for.
    pub fn handle(&mut self, input: Input) -> Vec<Action> {
        match (self.phase, input) {
            (WatchPhase::Over, _) => Vec::new(),
            (WatchPhase::Starting, Input::Started(started)) if started >= self.ranks => self.all_started(),
            (_, Input::Started(_)) => Vec::new(),
            (WatchPhase::Stopping(end), Input::SupervisorExited(_) | Input::StopFailed) => self.finish(end),
            (WatchPhase::Stopping(_), Input::Signal(_) | Input::TimeLimit) | (_, Input::StopFailed) => Vec::new(),
            (_, Input::SupervisorExited(code)) => self.finish(WatchEnd::Exited(code)),
            (_, Input::Signal(signal)) if self.options.leave_on_signal || signal == HANGUP => {
                self.phase = WatchPhase::Over;
                vec![Action::Leave(WatchEnd::Signal(signal))]
            }
            (_, Input::Signal(signal)) => {
                self.phase = WatchPhase::Stopping(WatchEnd::Signal(signal));
                vec![Action::ReportStopping, Action::Stop]
            }
            (_, Input::TimeLimit) => {
                self.phase = WatchPhase::Stopping(WatchEnd::TimeLimit);
                vec![Action::Stop]
            }
        }
    }

    fn all_started(&mut self) -> Vec<Action> {
        let report = Action::Report(JobState::Running);
        if self.options.until_started {
            self.phase = WatchPhase::Over;
            return vec![report, Action::Leave(WatchEnd::AllStarted)];
        }
        self.phase = WatchPhase::Running;
        vec![report]
    }

    fn finish(&mut self, end: WatchEnd) -> Vec<Action> {
        self.phase = WatchPhase::Over;
        vec![Action::Finish(end)]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const INPUTS: [Input; 9] = [
        Input::Started(1),
        Input::Started(2),
        Input::SupervisorExited(Some(3)),
        Input::SupervisorExited(None),
        Input::Signal(1),
        Input::Signal(2),
        Input::Signal(15),
        Input::TimeLimit,
        Input::StopFailed,
    ];

    fn actions(inputs: &[Input], until_started: bool, leave_on_signal: bool) -> Vec<Action> {
        let mut supervision =
            Supervision::new(2, WatchOptions { until_started, leave_on_signal, ..Default::default() });
        inputs.iter().flat_map(|input| supervision.handle(*input)).collect()
    }

    #[test]
    fn reports_running_once_every_rank_has_started() {
        let inputs = [Input::Started(1), Input::Started(2), Input::Started(2), Input::SupervisorExited(Some(0))];
        let finish = Action::Finish(WatchEnd::Exited(Some(0)));
        assert_eq!(actions(&inputs, false, false), [Action::Report(JobState::Running), finish]);
        let detached = [Action::Report(JobState::Running), Action::Leave(WatchEnd::AllStarted)];
        assert_eq!(actions(&inputs, true, false), detached);
    }

    #[test]
    fn a_signal_stops_the_job_or_leaves_it() {
        let exits = Input::SupervisorExited(Some(143));
        for signal in [2, 15] {
            let stopped = [Action::ReportStopping, Action::Stop, Action::Finish(WatchEnd::Signal(signal))];
            assert_eq!(actions(&[Input::Signal(signal), exits], false, false), stopped);
            let left = [Action::Leave(WatchEnd::Signal(signal))];
            assert_eq!(actions(&[Input::Signal(signal), exits], false, true), left);
        }
        // the terminal is gone, so the job is left running
        let hangup = [Action::Leave(WatchEnd::Signal(1))];
        assert_eq!(actions(&[Input::Signal(1)], false, false), hangup);
    }

    #[test]
    fn a_supervisor_that_does_not_stop_in_time_is_ended_from_outside() {
        let inputs = [Input::TimeLimit, Input::StopFailed];
        assert_eq!(actions(&inputs, false, true), [Action::Stop, Action::Finish(WatchEnd::TimeLimit)]);
    }

    #[test]
    fn after_any_two_inputs_a_job_ends_exactly_once_and_for_the_first_reason() {
        for (until_started, leave_on_signal) in [(false, false), (true, false), (false, true)] {
            for first in INPUTS {
                for second in INPUTS {
                    let inputs = [first, second, Input::SupervisorExited(None), Input::SupervisorExited(None)];
                    let all = actions(&inputs, until_started, leave_on_signal);
                    let ends = all.iter().filter(|a| matches!(a, Action::Finish(_) | Action::Leave(_)));
                    assert_eq!(ends.count(), 1, "{first:?}, {second:?}: {all:?}");
                    assert!(all.iter().filter(|a| **a == Action::Stop).count() <= 1, "{first:?}, {second:?}: {all:?}");
                    if let (Input::Signal(signal @ 2..), false) = (first, leave_on_signal) {
                        assert_eq!(all.last(), Some(&Action::Finish(WatchEnd::Signal(signal))), "{second:?}");
                    }
                }
            }
        }
    }
}
