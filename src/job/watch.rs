//! Watches a launched job until it ends, is stopped, or is left running: events become inputs of the state machine in
//! `supervision.rs`, and its actions are performed here.

use super::cleanup::{JobNodes, stop_limit, unrecorded};
use super::follow::{Follow, at, instant};
use super::logs::{PRUNE, report_output, substituted};
use super::manage::JobList;
use super::node_log::{extents, logs, warn_of_gone};
use super::supervision::{Action, Input, Supervision, WatchEnd, WatchOptions};
use crate::cancel::signalled;
use crate::cluster::operator::now;
use crate::diagnosis::launchers::{WITHOUT_MPI, isolation_warning};
use crate::diagnosis::lost::lost_output;
use crate::diagnosis::outcome::{JobOutcome, tail};
use crate::error::{Error, NodeError};
use crate::event::{Event, Events, Message};
use crate::launch::Launcher;
use crate::launch::placement::Placement;
use crate::model::fault::Fault;
use crate::record::frames::{Frame, FrameKind};
use crate::record::list::Job;
use crate::record::monitor::Monitor;
use crate::record::outcome::with_observed;
use crate::record::restart::{self, Restart};
use crate::record::{JobResult, JobState};
use crate::runtime::{Runtime, has_activate_failed};
use crate::text::nodeset;
use futures_util::FutureExt as _;
use std::time::Duration;
use tokio::sync::watch;
use tokio::time::Instant;

/// Watches a running job that any operator started, from its first line on. Every frame goes to `on_frame`.
///
/// # Errors
/// When the connection to the launcher's node broke (the job goes on by itself), a signal, or the time limit.
pub async fn attach(
    list: &JobList<'_>,
    job: &Job,
    options: WatchOptions,
    events: &Events,
    mut cancel: watch::Receiver<Option<u8>>,
    on_frame: &mut dyn FnMut(&str, &Frame),
) -> Result<JobOutcome, Error> {
    let nodes = list.nodes_of(job)?;
    nodes.check_logs()?;
    let following = async {
        let logs = logs(&nodes, job.log_max);
        // otherwise nothing of them was discarded
        let starts = match job.log_max {
            Some(_) => {
                let extents = extents(&logs, events).await?;
                warn_of_gone(&logs, &extents, events);
                extents.iter().map(|extent| extent.start).collect()
            }
            None => vec![0; logs.len()],
        };
        Follow::start(logs, starts, events).await
    };
    let launcher = async {
        match &job.container {
            // it is the same as long as the job is in the queue, which answers for all users
            Some(container) if nodes.shares_directory => Ok((nodes.launcher.runtime().await?, container.clone())),
            _ => Ok(nodes.launcher_container().await?),
        }
    };
    let (follow, (engine, container)) = tokio::select! {
        both = async { tokio::try_join!(following, launcher) } => both?,
        signal = signalled(&mut cancel) => return Err(Error::Signal(signal)),
    };
    let (placement, monitor) = (&job.placement, Monitor::default());
    let launcher = job.launch();
    let (job, is_requeued) = (nodes, false);
    let watch = Watch { job, placement, engine, container, options, events, on_frame, monitor, launcher, is_requeued };
    watch.run(follow, &mut cancel).await
}

/// A job that is being watched.
pub struct Watch<'a> {
    /// The job and its nodes.
    pub job: JobNodes<'a>,
    /// The placement of its ranks.
    pub placement: &'a Placement,
    /// The launcher's engine.
    pub engine: Runtime,
    /// The launcher's container there.
    pub container: String,
    /// The options of watching it.
    pub options: WatchOptions,
    /// The receiver of progress and output.
    pub events: &'a Events,
    /// Gets every frame of the logs.
    pub on_frame: &'a mut dyn FnMut(&str, &Frame),
    /// The state of the job as its frames have reported it so far.
    pub monitor: Monitor,
    /// The job's launcher.
    pub launcher: &'static Launcher,
    /// Set while the nodes on which Slurm has started it again are not followed.
    pub is_requeued: bool,
}

impl Watch<'_> {
    /// Watches the job to its end, or as long as the options say.
    ///
    /// # Errors
    /// When the connection to the launcher's node broke (the job goes on by itself), a signal, or the time limit.
    pub async fn run(
        mut self,
        mut follow: Follow<'_>,
        cancel: &mut watch::Receiver<Option<u8>>,
    ) -> Result<JobOutcome, Error> {
        let options = self.options;
        let mut supervision = Supervision::new(self.placement.ranks(), options);
        let (engine, container) = (self.engine.clone(), self.container.clone());
        let mut exited = std::pin::pin!(engine.wait(&container));
        let mut signal = std::pin::pin!(signalled(cancel).fuse());
        let mut limit = std::pin::pin!(at(options.limit.map(|limit| Instant::now() + limit)).fuse());
        let (mut stop_at, mut timed_out) = (None, None);
        loop {
            let due = at(self.due().map(instant));
            let mut take = |node: &str, skew, frame| self.take(node, skew, frame);
            let input = tokio::select! {
                code = &mut exited => match code {
                    Ok(code) => Input::SupervisorExited(code),
                    Err(error) if stop_at.is_some() => {
                        self.events.warn(error);
                        Input::StopFailed
                    }
                    Err(error) => return Err(self.disconnected(error)),
                },
                () = follow.overdue() => Input::SupervisorExited(None),
                number = &mut signal => Input::Signal(number),
                () = &mut limit => {
                    timed_out = Some(self.time_limit_error(options.limit.unwrap_or_default(), &follow.silent()));
                    Input::TimeLimit
                }
                () = at(stop_at) => Input::StopFailed,
                () = due => {
                    self.report_due();
                    continue;
                }
                () = follow.next(&mut take) => Input::Started(self.monitor.started(self.placement)),
            };
            if std::mem::take(&mut self.is_requeued) {
                follow.follow_requeued(&mut self.job).await;
            }
            for action in supervision.handle(input) {
                match action {
                    Action::Report(state) => self.events.send(Event::Job { id: self.job.id.to_owned(), state }),
                    Action::ReportStopping => self.events.note("stopping the job (Ctrl-C again: exit now)"),
                    Action::Stop => {
                        let asked = engine.terminate(&container).await.map_err(|error| self.events.warn(error));
                        // if it could not be asked, it is not waited for
                        let limit = asked.map_or(Duration::ZERO, |()| stop_limit(self.job.cluster));
                        stop_at = Some(Instant::now() + limit);
                    }
                    Action::Finish(end) => return self.finish(follow, end, timed_out).await,
                    Action::Leave(WatchEnd::Signal(number)) => {
                        let id = self.job.id;
                        let message =
                            format!("job {id} continues: hvdctl attach {id} shows it, hvdctl stop {id} ends it");
                        self.events.note(message);
                        return Err(Error::Signal(number));
                    }
                    Action::Leave(_) => return Ok(JobOutcome::running(self.job.id, self.placement)),
                }
            }
        }
    }

    /// Returns when the next report that was collected is due.
    fn due(&self) -> Option<f64> {
        let ends = self.monitor.early_ends.due().filter(|_| self.options.ends_together);
        [self.monitor.waits.due(), ends].into_iter().flatten().reduce(f64::min)
    }

    /// Reports what is due first.
    fn report_due(&mut self) {
        let (due, id, placement) = (self.due(), self.job.id, self.placement);
        let Monitor { waits, early_ends, .. } = &mut self.monitor;
        if waits.due() == due {
            waits.take(placement, Some(id), now()).into_iter().for_each(|event| self.events.send(event));
        } else if let Some(warning) = early_ends.take(placement, id, now()) {
            self.events.warn(warning);
        }
    }

    /// Takes a frame: reports what is to be shown, and remembers what the outcome needs.
    fn take(&mut self, node: &str, skew: f64, frame: Frame) {
        self.monitor.record(node, &frame, skew);
        let (time, now) = (frame.time - skew, now());
        self.monitor.waits.record(node, &frame, time, now);
        self.monitor.early_ends.record(self.placement, node, &frame, time, now);
        (self.on_frame)(node, &frame);
        match frame.kind {
            FrameKind::Stdout(_) | FrameKind::Stderr(_) | FrameKind::Renumbered { .. } if self.options.output => {
                report_output(self.placement, node, frame, self.events)
            }
            FrameKind::Broken(error) => {
                self.events.warn(format!("{} on {node}: {error}", self.placement.name(frame.rank)));
            }
            FrameKind::Restart(logged) => {
                let restart = restart::read(&logged, self.placement);
                self.is_requeued |= matches!(restart, Restart::Requeued { .. });
                self.events.send(Event::Restart { time: None, restart });
            }
            FrameKind::Isolated(seconds) if self.monitor.are_newly_isolated(frame.rank, self.placement) => {
                let role = self.placement.recorded_role(frame.rank);
                self.events.warn(isolation_warning(self.launcher, role, seconds));
            }
            FrameKind::Substituted(program) if self.monitor.is_newly_substituted() => {
                self.events.note(substituted(&program));
            }
            FrameKind::WithoutMpi => self.events.warn(WITHOUT_MPI),
            FrameKind::Launcher(line) if self.options.launcher_output => {
                let line = String::from_utf8_lossy(&line).trim_end().to_owned();
                self.events.send(Event::Launcher { line });
            }
            _ => {}
        }
    }

    /// Ends what is left of the job, reads the rest of its logs, and returns its outcome.
    async fn finish(
        mut self,
        mut follow: Follow<'_>,
        end: WatchEnd,
        timed_out: Option<Error>,
    ) -> Result<JobOutcome, Error> {
        let (code, stopped) = match end {
            WatchEnd::Exited(code) => (code, false),
            _ => (None, true),
        };
        self.job.reconnect().await;
        let started = self.monitor.started(self.placement);
        let ended = self.engine.end_of(&self.container, started).await;
        let words = match started {
            0 => self.engine.last_words(&self.container).await,
            _ => None,
        };
        // a supervisor that has ended records nothing more
        let recorded = async {
            match end {
                WatchEnd::Exited(_) => self.job.recorded_result().await,
                _ => None,
            }
        };
        let (silent, recorded) = tokio::join!(self.job.clean_up(self.events), recorded);
        follow.drain(&silent, &mut |node, skew, frame| self.take(node, skew, frame)).await;
        self.monitor.waits.take(self.placement, None, now()).into_iter().for_each(|event| self.events.send(event));
        let ranks = self.placement.ranks();
        let monitor = &self.monitor;
        let mut unrecorded = unrecorded(code);
        if let Some(end) = ended {
            unrecorded.stopped = end.state == JobState::Stopped;
            (unrecorded.launcher, unrecorded.fault) = (Some(1), Some(end.fault));
        }
        let node = (!self.job.shares_directory).then_some(self.job.launcher.node.name.as_str());
        unrecorded.fault = words.map(|words| ended_early(words, node)).or(unrecorded.fault);
        let instead = JobResult {
            stopped: stopped || unrecorded.stopped,
            ranks,
            started: monitor.started(self.placement),
            exits: monitor.exits.clone(),
            hung: monitor.hung.clone(),
            silent: silent.clone(),
            ..unrecorded
        };
        let result = match recorded {
            Some(result) => result,
            None => self.job.result(&instead).await.map_err(|error| self.disconnected(error))?,
        };
        self.events.send(Event::Job { id: self.job.id.to_owned(), state: result.state() });
        if let Some(lost) = lost_output(&result.lost) {
            self.events.warn(Message::from(lost).hint(PRUNE));
        }
        match (end, timed_out) {
            (WatchEnd::Signal(number), _) => {
                let ending = if result.stopped { "was stopped" } else { "has ended" };
                self.events.note(format!("job {} {ending}", self.job.id));
                return Err(Error::Signal(number));
            }
            (WatchEnd::TimeLimit, Some(error)) => return Err(error),
            _ => {}
        }
        let result = with_observed(result, monitor, ranks);
        let outcome = monitor.outcome(self.job.id, self.placement, result);
        // a node whose worker was gone did not answer the job supervisor, but has been cleaned up since
        Ok(JobOutcome { just_shown: outcome.just_shown && self.options.output, silent, ..outcome })
    }

    /// The error of a job that took longer than it may.
    fn time_limit_error(&self, limit: Duration, silent: &[String]) -> Error {
        let silent = if silent.is_empty() { String::new() } else { format!(", none on {}", nodeset::fold(silent)) };
        Error::check(
            format!(
                "not finished within {} s; {} of {} ranks had started{silent}{}",
                limit.as_secs(),
                self.monitor.started(self.placement),
                self.placement.ranks(),
                tail(&self.monitor.launcher)
            ),
            "-vv shows the launcher's output; --timeout gives the job more time",
        )
    }

    /// The connection to the node of the launcher broke, which does not harm the job.
    fn disconnected(&self, error: NodeError) -> Error {
        let hint = format!("job {0} continues unless that node is down: hvdctl attach {0}, hvdctl jobs", self.job.id);
        if error.hints.is_empty() { error.hint(hint).into() } else { error.into() }
    }
}

/// Returns why a job ended before its ranks were started, by the last lines of its launcher's container. `node`: that of
/// the launcher, if it is known.
fn ended_early(output: String, node: Option<&str>) -> Fault {
    let is_not_activated = has_activate_failed(&output);
    let output = node.map_or_else(|| output.clone(), |node| format!("on {node}:\n{output}"));
    if is_not_activated { Fault::NotActivated { output } } else { Fault::EndedEarly { output } }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_of_activate_that_fails_is_named_with_its_output_and_its_node() {
        let said = "no module torch\nhvdctl: activate: module load torch: exit code 1";
        let expected = format!("it ended before its ranks were started:\non node1:\n{said}");
        let fault = ended_early(said.into(), Some("node1"));
        assert!(matches!(fault, Fault::NotActivated { .. }));
        assert_eq!(fault.to_string(), expected);
        assert!(!ended_early(said.into(), None).to_string().contains("node1"), "of an allocation");
        assert!(matches!(ended_early("python3: not found".into(), Some("node1")), Fault::EndedEarly { .. }));
    }
}
