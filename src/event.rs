//! Events: what a command does, as values. Orchestration reports them and renderers show them; nothing else connects the two.

use crate::error::{Error, NodeError};
use crate::model::job_state::State;
use crate::text::units::human;
use std::fmt;
use std::future::Future;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::sync::oneshot;

/// A step of the work on one node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Step {
    /// Logging in.
    Connecting,
    /// Reading the node's state.
    Observing,
    /// Reading what `doctor` wants to know beyond that.
    Examining,
    /// Importing the frameworks in the node's worker.
    ImportingFrameworks,
    /// Trying ports of the other nodes.
    TryingPorts,
    /// Logging in to the other workers.
    LoggingIn,
    /// Reading the cluster's keys on the node.
    ReadingKeys,
    /// Making a key pair of this kind, e.g. `RSA-4096`.
    MakingKeyPair(String),
    /// Writing the cluster's keys.
    WritingKeys,
    /// Getting an image from its registry.
    PullingImage {
        /// Its reference.
        image: String,
    },
    /// An operation of the node's plan, in the words of the dry run.
    Applying(String),
    /// Ending a job and what it left.
    EndingJob {
        /// Its id.
        job: String,
    },
    /// Removing a container.
    RemovingContainer {
        /// Its name.
        name: String,
    },
    /// Removing keys, projects and records (`down --purge`).
    Purging,
    /// Reading the records of jobs.
    ListingJobs,
    /// Removing records and logs of jobs.
    RemovingRecords,
    /// Comparing the node's copy of the project with the one here.
    ComparingProject,
    /// Sending what the node's copy of the project lacks.
    Uploading {
        /// How many files.
        files: usize,
        /// Their bytes.
        bytes: u64,
    },
    /// Reading which files a job wrote.
    ListingOutputs,
    /// Getting files that a job wrote.
    Fetching {
        /// Their bytes.
        bytes: u64,
    },
    /// Running a program for `exec`.
    Running {
        /// Its name.
        program: String,
    },
}

impl Step {
    /// Returns whether it changes nothing on the node.
    pub fn only_reads(&self) -> bool {
        matches!(
            self,
            Step::Connecting
                | Step::Observing
                | Step::Examining
                | Step::ImportingFrameworks
                | Step::TryingPorts
                | Step::LoggingIn
                | Step::ReadingKeys
                | Step::ListingJobs
                | Step::ComparingProject
                | Step::ListingOutputs
        )
    }

    /// Returns whether it reports its progress by [`Event::Transfer`].
    pub fn is_transfer(&self) -> bool {
        matches!(self, Step::PullingImage { .. } | Step::Uploading { .. } | Step::Fetching { .. })
    }
}

impl fmt::Display for Step {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Step::Connecting => "connecting",
            Step::Observing => "looking",
            Step::Examining => "looking closer",
            Step::ImportingFrameworks => "importing the frameworks in its worker",
            Step::TryingPorts => "connecting to the others",
            Step::LoggingIn => "logging in to the others",
            Step::ReadingKeys => "reading its keys",
            Step::MakingKeyPair(kind) => return write!(f, "making an {kind} key pair"),
            Step::WritingKeys => "writing its keys",
            Step::PullingImage { image } => return write!(f, "pulling {image}"),
            Step::Applying(operation) => operation,
            Step::EndingJob { job } => return write!(f, "ending job {job}"),
            Step::RemovingContainer { name } => return write!(f, "removing {name}"),
            Step::Purging => "removing keys, projects and records",
            Step::ListingJobs => "looking for jobs",
            Step::RemovingRecords => "removing records",
            Step::ComparingProject => "comparing the project",
            Step::Uploading { files, bytes } => return write!(f, "uploading {files} files, {}", human(*bytes)),
            Step::ListingOutputs => "looking for outputs",
            Step::Fetching { bytes } => return write!(f, "fetching {}", human(*bytes)),
            Step::Running { program } => return write!(f, "running {program}"),
        })
    }
}

/// Something that happened.
#[derive(Debug)]
pub enum Event {
    /// The selected nodes in the inventory's order.
    Nodes(Vec<String>),
    /// A phase of the command begins, e.g. `comparing`.
    Phase(String),
    /// A node begins a step; several may be under way on one node.
    StepStarted {
        /// The node.
        node: String,
        /// The step.
        step: Step,
    },
    /// A node has left a step, however it ended.
    StepEnded {
        /// The node.
        node: String,
        /// The step.
        step: Step,
    },
    /// A node gets something large.
    Transfer {
        /// The node.
        node: String,
        /// What is done, e.g. `pulling IMAGE`; the same text as long as it goes on.
        what: String,
        /// Bytes so far.
        done: u64,
        /// Bytes in all, as far as they are known.
        total: u64,
        /// Bytes per second; 0 where there is none to tell.
        rate: u64,
    },
    /// A node has finished the command's work.
    Done {
        /// The node.
        node: String,
        /// What was done.
        what: String,
    },
    /// A node has failed; the error itself is reported once more at the end, with all others.
    Failed(NodeError),
    /// A message that is no warning.
    Note(String),
    /// A warning.
    Warning(String),
    /// A line that a rank wrote.
    Output {
        /// The rank.
        rank: u32,
        /// Its node.
        node: String,
        /// Whether it went to standard error.
        stderr: bool,
        /// The line without its newline.
        line: Vec<u8>,
    },
    /// A job is started again: why, when, and on which nodes.
    Restart(String),
    /// A line that the launcher wrote.
    Launcher(String),
    /// The terminal is needed for a question; see [`Events::suspend`].
    Suspend(Suspension),
    /// A job changed its state.
    Job {
        /// Its id.
        id: String,
        /// Its state.
        state: State,
    },
}

/// A time in which nothing is shown, because a question is on the terminal.
#[derive(Debug)]
pub struct Suspension {
    cleared: oneshot::Sender<()>,
    over: mpsc::Receiver<()>,
}

impl Suspension {
    /// Reports that the rows are cleared, and blocks the renderer's thread until the suspension is over.
    pub fn wait(self) {
        let _ = self.cleared.send(());
        let _ = self.over.recv();
    }
}

/// Ends a suspension when it is dropped.
#[derive(Debug)]
pub struct SuspensionGuard {
    _over: mpsc::Sender<()>,
}

/// How many events may wait to be shown before those who read output from the nodes pause.
const MAX_WAITING: usize = 4096;

/// Where orchestration sends its events. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Events {
    sender: mpsc::Sender<Event>,
    waiting: Arc<AtomicUsize>,
    failed: Arc<Mutex<Vec<NodeError>>>,
}

/// The end of the channel that a renderer reads.
#[derive(Debug)]
pub struct Receiver {
    receiver: mpsc::Receiver<Event>,
    waiting: Arc<AtomicUsize>,
}

/// The result of waiting for an event.
#[derive(Debug)]
pub enum Received {
    /// The next event.
    Event(Event),
    /// None came in time.
    TimedOut,
    /// None will come: the last sender is gone.
    Closed,
}

impl Receiver {
    /// Waits for the next event, at most for the time-out. Blocks its thread.
    pub fn receive(&mut self, timeout: Option<Duration>) -> Received {
        let event = match timeout {
            Some(limit) => self.receiver.recv_timeout(limit),
            None => self.receiver.recv().map_err(|_| RecvTimeoutError::Disconnected),
        };
        match event {
            Ok(event) => {
                self.waiting.fetch_sub(1, Ordering::Relaxed);
                Received::Event(event)
            }
            Err(RecvTimeoutError::Timeout) => Received::TimedOut,
            Err(RecvTimeoutError::Disconnected) => Received::Closed,
        }
    }
}

impl AsRef<[NodeError]> for NodeError {
    fn as_ref(&self) -> &[NodeError] {
        std::slice::from_ref(self)
    }
}

/// The failures of nodes in it.
impl AsRef<[NodeError]> for Error {
    fn as_ref(&self) -> &[NodeError] {
        match self {
            Error::Unreachable(failed) | Error::Nodes { failed, .. } => failed,
            _ => &[],
        }
    }
}

/// A step that is under way. Reports its end when it is dropped, so also when the work is cancelled.
#[derive(Debug)]
pub struct StepScope {
    events: Events,
    node: String,
    step: Step,
}

impl Drop for StepScope {
    fn drop(&mut self) {
        self.events.send(Event::StepEnded { node: self.node.clone(), step: self.step.clone() });
    }
}

impl Events {
    /// Returns a sender and the end that a renderer reads.
    pub fn channel() -> (Events, Receiver) {
        let (sender, receiver) = mpsc::channel();
        let waiting = Arc::new(AtomicUsize::new(0));
        (Events { sender, waiting: Arc::clone(&waiting), failed: Arc::default() }, Receiver { receiver, waiting })
    }

    /// Sends an event; a renderer that is gone is no reason to stop working. The same failure is sent only once.
    pub fn send(&self, event: Event) {
        if let (Event::Failed(error), Ok(mut failed)) = (&event, self.failed.lock()) {
            if failed.contains(error) {
                return;
            }
            failed.push(error.clone());
        }
        self.waiting.fetch_add(1, Ordering::Relaxed);
        if self.sender.send(event).is_err() {
            self.waiting.store(0, Ordering::Relaxed);
        }
    }

    /// Does a step on a node: reports its start, the failure if it failed, and its end, each once.
    ///
    /// # Errors
    /// Those of the work.
    pub async fn step<T, E: AsRef<[NodeError]>>(
        &self,
        node: &str,
        step: Step,
        work: impl Future<Output = Result<T, E>>,
    ) -> Result<T, E> {
        let _scope = self.begin(node, step);
        self.report(work.await)
    }

    /// Begins a step on a node, which lasts as long as the result is held. Its failure is for the caller to report.
    #[must_use]
    pub fn begin(&self, node: &str, step: Step) -> StepScope {
        self.send(Event::StepStarted { node: node.to_owned(), step: step.clone() });
        StepScope { events: self.clone(), node: node.to_owned(), step }
    }

    /// Waits while more events wait to be shown than memory should hold (a pager, a stopped terminal).
    pub async fn throttle(&self) {
        while self.waiting.load(Ordering::Relaxed) > MAX_WAITING {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }

    /// Clears the rows from the terminal, which stays still while the result is held.
    pub async fn suspend(&self) -> SuspensionGuard {
        let (cleared, is_cleared) = oneshot::channel();
        let (guard, over) = mpsc::channel();
        self.send(Event::Suspend(Suspension { cleared, over }));
        // without a renderer, or behind one that a stopped terminal blocks, a question must still be asked
        let _ = tokio::time::timeout(Duration::from_secs(2), is_cleared).await;
        SuspensionGuard { _over: guard }
    }

    /// Sends [`Event::Phase`].
    pub fn phase(&self, name: impl Into<String>) {
        self.send(Event::Phase(name.into()));
    }

    /// Sends [`Event::Done`].
    pub fn done(&self, node: &str, what: impl Into<String>) {
        self.send(Event::Done { node: node.into(), what: what.into() });
    }

    /// Sends [`Event::Failed`] for each failure of a node in the result.
    ///
    /// # Errors
    /// That of the result.
    pub fn report<T, E: AsRef<[NodeError]>>(&self, result: Result<T, E>) -> Result<T, E> {
        result.inspect_err(|error| {
            error.as_ref().iter().for_each(|error| self.send(Event::Failed(error.clone())));
        })
    }

    /// Sends [`Event::Warning`].
    pub fn warn(&self, warning: impl fmt::Display) {
        self.send(Event::Warning(warning.to_string()));
    }

    /// Sends [`Event::Note`].
    pub fn note(&self, text: impl Into<String>) {
        self.send(Event::Note(text.into()));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The events sent so far, in short.
    fn sent(receiver: &mut Receiver) -> Vec<String> {
        let mut all = Vec::new();
        while let Received::Event(event) = receiver.receive(Some(Duration::ZERO)) {
            all.push(match event {
                Event::StepStarted { node, step } => format!("{node} started {step}"),
                Event::StepEnded { node, step } => format!("{node} ended {step}"),
                Event::Failed(error) => format!("{} failed", error.node),
                other => format!("{other:?}"),
            });
        }
        all
    }

    #[test]
    fn a_failure_is_reported_once() {
        let (events, mut receiver) = Events::channel();
        let error = NodeError::failed("a", "look", "no");
        assert_eq!(events.report::<(), _>(Err(error.clone())), Err(error.clone()));
        events.send(Event::Failed(error));
        events.send(Event::Failed(NodeError::failed("b", "look", "no")));
        assert_eq!(sent(&mut receiver), ["a failed", "b failed"]);
    }

    #[tokio::test]
    async fn a_step_reports_its_start_failure_and_end_once() {
        let (events, mut receiver) = Events::channel();
        assert_eq!(events.step("a", Step::Observing, async { Ok::<_, NodeError>(7) }).await, Ok(7));
        assert_eq!(sent(&mut receiver), ["a started looking", "a ended looking"]);

        let error = NodeError::failed("a", "pull x", "no");
        let step = Step::PullingImage { image: "x".into() };
        let result = events.step("a", step, async { Err::<(), _>(error.clone()) }).await;
        assert_eq!(events.report(result), Err(error.clone()));
        assert_eq!(sent(&mut receiver), ["a started pulling x", "a failed", "a ended pulling x"]);

        // the failure of one node within an error of the whole, which was reported before
        let whole = async { Err::<(), _>(Error::Unreachable(vec![error])) };
        assert!(events.step("a", Step::Connecting, whole).await.is_err());
        assert_eq!(sent(&mut receiver), ["a started connecting", "a ended connecting"]);
    }

    #[tokio::test]
    async fn a_cancelled_step_has_an_end() {
        let (events, mut receiver) = Events::channel();
        let work = events.step("a", Step::Observing, std::future::pending::<Result<(), NodeError>>());
        assert!(tokio::time::timeout(Duration::from_millis(1), work).await.is_err());
        assert_eq!(sent(&mut receiver), ["a started looking", "a ended looking"]);
    }
}
