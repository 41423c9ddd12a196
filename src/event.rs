//! Events: what a command does, as values. Orchestration reports them and renderers show them; nothing else connects
//! the two.

mod message;
mod phase;
pub mod transfer;

pub use message::Message;
pub use phase::Phase;

use crate::error::NodeError;
use crate::model::idle_rank::IdleRank;
use crate::model::job_state::JobState;
use crate::model::restart::Restart;
use crate::model::role::RankOfRole;
use crate::model::stack::StackGroup;
use crate::model::usage::UsageReport;
use crate::text::units::{count, human};
use schemars::JsonSchema;
use serde::Serialize;
use std::borrow::Cow;
use std::fmt;
use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::time::Duration;
use tokio::sync::oneshot;

/// A step of the work on one node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Step {
    /// Its effect on the node.
    pub kind: StepKind,
    /// Its name, e.g. `pulling IMAGE`.
    pub text: Cow<'static, str>,
}

/// The effect of a step on its node.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StepKind {
    /// It changes nothing.
    Read,
    /// It may change the node.
    Write,
    /// It may change the node, and reports its progress by [`Event::Transfer`].
    Transfer,
}

impl Step {
    /// Logging in.
    pub const CONNECTING: Step = Step::read("connecting");
    /// Reading the node's state.
    pub const OBSERVING: Step = Step::read("reading the node state");

    /// Returns a step that changes nothing.
    pub const fn read(text: &'static str) -> Step {
        Step { kind: StepKind::Read, text: Cow::Borrowed(text) }
    }

    /// Returns a step that may change the node.
    pub fn write(text: impl Into<Cow<'static, str>>) -> Step {
        Step { kind: StepKind::Write, text: text.into() }
    }

    /// Returns a step that reports its progress by [`Event::Transfer`].
    pub fn transfer(text: String) -> Step {
        Step { kind: StepKind::Transfer, text: text.into() }
    }
}

/// The stream that a line came from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Stream {
    /// Standard output.
    Stdout,
    /// Standard error.
    Stderr,
}

/// The work that was done on a node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Completion {
    /// The project was compared, and what differed was uploaded.
    Uploaded {
        /// The number of files that were sent.
        files: usize,
        /// Their bytes.
        bytes: u64,
        /// The number of files that were removed.
        removed: usize,
    },
    /// Outputs of a job were fetched.
    Fetched {
        /// The number of files.
        files: usize,
    },
    /// Something else, e.g. `has IMAGE`.
    Text(String),
}

impl fmt::Display for Completion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Completion::Uploaded { files: 0, removed: 0, .. } => f.write_str("project unchanged"),
            Completion::Uploaded { files, bytes, removed } => {
                write!(f, "uploaded {}, {}", count(*files, "file"), human(*bytes))?;
                if *removed > 0 { write!(f, "; removed {}", count(*removed, "file")) } else { Ok(()) }
            }
            Completion::Fetched { files } => write!(f, "fetched {}", count(*files, "file")),
            Completion::Text(text) => f.write_str(text),
        }
    }
}

impl From<String> for Completion {
    fn from(text: String) -> Completion {
        Completion::Text(text)
    }
}

impl From<&str> for Completion {
    fn from(text: &str) -> Completion {
        Completion::Text(text.to_owned())
    }
}

/// An event of a command. Renderers format it; the lines of `--json` are [`Line`](crate::render::json::Line)s.
#[derive(Debug)]
pub enum Event {
    /// A rank has written a line.
    Output {
        /// The rank.
        rank: u32,
        /// Its role, in a job with roles.
        role: Option<RankOfRole>,
        /// Its node.
        node: String,
        /// The stream.
        stream: Stream,
        /// The line, without its newline.
        line: Vec<u8>,
    },
    /// The state of the job has changed.
    Job {
        /// The id of the job.
        id: String,
        /// Its state.
        state: JobState,
    },
    /// A node is ready.
    Done {
        /// The node.
        node: String,
        /// The work that was done.
        what: Completion,
    },
    /// A node has failed. The error is reported again at the end.
    Failed {
        /// The node.
        node: String,
        /// The failure.
        error: NodeError,
    },
    /// The job is restarted.
    Restart {
        /// The time of the restart in seconds since the epoch, if that is not now.
        time: Option<f64>,
        /// The reason, and how the job continues.
        restart: Restart,
    },
    /// Ranks have made no progress for `stall_warning_s`; the job continues. It is reported once for each time that
    /// they wait.
    Idle {
        /// These ranks; at least one.
        ranks: Vec<IdleRank>,
        /// The job's id, as long as it runs.
        job: Option<String>,
        /// The time of the report, in seconds since the epoch.
        time: f64,
    },
    /// Ranks were read because they make no progress, or others had failed.
    Stacks {
        /// These ranks, the smallest group first; at least one.
        groups: Vec<StackGroup>,
        /// The job's id, unless these ranks were about to end.
        job: Option<String>,
    },
    /// Ranks make progress again.
    Resumed {
        /// These ranks, with what they did before; at least one.
        ranks: Vec<IdleRank>,
        /// The seconds without progress, of the one that waited the longest.
        seconds: u64,
    },
    /// JupyterLab answers.
    Ready {
        /// The address of the page, with the token.
        url: String,
    },
    /// A rank, a node or a GPU of a job was sampled.
    Usage(UsageReport),
    /// The launcher has written a line.
    Launcher {
        /// The line.
        line: String,
    },
    /// The selected nodes in the inventory's order.
    Nodes(Vec<String>),
    /// A phase of the command begins.
    Phase(Phase),
    /// A node begins a step; several may be in progress on one node.
    StepStarted {
        /// The node.
        node: String,
        /// The step.
        step: Step,
    },
    /// A step has ended, successfully or not.
    StepEnded {
        /// The node.
        node: String,
        /// The step.
        step: Step,
    },
    /// The progress of a transfer.
    Transfer {
        /// The node.
        node: String,
        /// The transfer, e.g. `pulling IMAGE`; the text stays the same while it lasts.
        what: String,
        /// Bytes so far.
        done: u64,
        /// Bytes in all, as far as they are known.
        total: u64,
        /// Bytes per second; 0 if unknown.
        rate: u64,
    },
    /// A message that is no warning.
    Note(Message),
    /// A warning.
    Warning(Message),
    /// The terminal is needed for a question; see [`Events::suspend`].
    Suspend {
        /// The channel on which the renderer reports that the rows are cleared.
        cleared: oneshot::Sender<()>,
        /// A channel that is closed when the question is over.
        over: mpsc::Receiver<()>,
    },
}

impl Event {
    /// Returns [`Event::Failed`].
    pub fn failed(error: NodeError) -> Event {
        Event::Failed { node: error.node.clone(), error }
    }
}

/// Number of pending events above which readers of node output pause.
const MAX_WAITING: usize = 4096;

/// The sender of a command's events. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Events {
    sender: mpsc::Sender<Event>,
    waiting: Arc<AtomicUsize>,
}

/// The end of the channel that a renderer reads.
#[derive(Debug)]
pub struct EventReceiver {
    receiver: mpsc::Receiver<Event>,
    waiting: Arc<AtomicUsize>,
}

impl EventReceiver {
    /// Waits for the next event, at most for the time-out. Blocks its thread.
    ///
    /// # Errors
    /// When there is none in time, or there will be none: the last sender is gone.
    pub fn receive(&self, timeout: Duration) -> Result<Event, RecvTimeoutError> {
        let event = self.receiver.recv_timeout(timeout)?;
        self.waiting.fetch_sub(1, Ordering::Relaxed);
        Ok(event)
    }
}

/// A step in progress. Reports its end when it is dropped, and so also when the work is cancelled.
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
    pub fn channel() -> (Events, EventReceiver) {
        let (sender, receiver) = mpsc::channel();
        let waiting = Arc::new(AtomicUsize::new(0));
        (Events { sender, waiting: Arc::clone(&waiting) }, EventReceiver { receiver, waiting })
    }

    /// Sends an event. Work goes on if there is no renderer.
    pub fn send(&self, event: Event) {
        self.waiting.fetch_add(1, Ordering::Relaxed);
        if self.sender.send(event).is_err() {
            self.waiting.store(0, Ordering::Relaxed);
        }
    }

    /// Performs a step on a node: reports its start and its end, each once. It does not report a failure: the caller
    /// does, usually `each_node`.
    ///
    /// # Errors
    /// The error of the work.
    pub async fn step<T>(
        &self,
        node: &str,
        step: Step,
        work: impl Future<Output = Result<T, NodeError>>,
    ) -> Result<T, NodeError> {
        let _scope = self.begin(node, step);
        work.await
    }

    /// Begins a step on a node, which lasts until the result is dropped. The caller reports its failure.
    #[must_use]
    pub fn begin(&self, node: &str, step: Step) -> StepScope {
        self.send(Event::StepStarted { node: node.to_owned(), step: step.clone() });
        StepScope { events: self.clone(), node: node.to_owned(), step }
    }

    /// Waits while more events than `MAX_WAITING` wait to be shown (a pager, a stopped terminal).
    pub async fn throttle(&self) {
        while self.waiting.load(Ordering::Relaxed) > MAX_WAITING {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }

    /// Clears the rows from the terminal, which stays as it is until the result is dropped.
    #[must_use]
    pub async fn suspend(&self) -> mpsc::Sender<()> {
        let (cleared, is_cleared) = oneshot::channel();
        let (suspension, over) = mpsc::channel();
        self.send(Event::Suspend { cleared, over });
        // without a renderer, or behind one that a stopped terminal blocks, a question must still be asked
        let _ = tokio::time::timeout(Duration::from_secs(2), is_cleared).await;
        suspension
    }

    /// Sends [`Event::Phase`].
    pub fn phase(&self, phase: Phase) {
        self.send(Event::Phase(phase));
    }

    /// Sends [`Event::Done`].
    pub fn done(&self, node: &str, what: impl Into<Completion>) {
        self.send(Event::Done { node: node.into(), what: what.into() });
    }

    /// Sends [`Event::Failed`].
    pub fn failed(&self, error: &NodeError) {
        self.send(Event::failed(error.clone()));
    }

    /// Sends [`Event::Failed`] if the result is a failure.
    ///
    /// # Errors
    /// The error of the result.
    pub fn report<T>(&self, result: Result<T, NodeError>) -> Result<T, NodeError> {
        result.inspect_err(|error| self.failed(error))
    }

    /// Sends [`Event::Warning`].
    pub fn warn(&self, message: impl Into<Message>) {
        self.send(Event::Warning(message.into()));
    }

    /// Sends [`Event::Note`].
    pub fn note(&self, message: impl Into<Message>) {
        self.send(Event::Note(message.into()));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The events sent so far, in short.
    fn sent(receiver: &EventReceiver) -> Vec<String> {
        let mut all = Vec::new();
        while let Ok(event) = receiver.receive(Duration::ZERO) {
            all.push(match event {
                Event::StepStarted { node, step } => format!("{node} started {}", step.text),
                Event::StepEnded { node, step } => format!("{node} ended {}", step.text),
                Event::Failed { node, .. } => format!("{node} failed"),
                other => format!("{other:?}"),
            });
        }
        all
    }

    #[test]
    fn only_a_failure_is_reported() {
        let (events, receiver) = Events::channel();
        let error = NodeError::failed("a", "pull x", "no");
        assert_eq!((events.report(Ok(7)), events.report::<()>(Err(error.clone()))), (Ok(7), Err(error)));
        assert_eq!(sent(&receiver), ["a failed"]);
    }

    #[tokio::test]
    async fn a_step_reports_its_start_and_end_once() {
        let (events, receiver) = Events::channel();
        assert_eq!(events.step("a", Step::OBSERVING, async { Ok::<_, NodeError>(7) }).await, Ok(7));
        assert_eq!(sent(&receiver), ["a started reading the node state", "a ended reading the node state"]);

        let error = NodeError::failed("a", "pull x", "no");
        let step = Step::transfer("pulling x".into());
        let result = events.step("a", step, async { Err::<(), _>(error.clone()) }).await;
        assert_eq!(
            (result, sent(&receiver)),
            (Err(error), vec!["a started pulling x".into(), "a ended pulling x".into()])
        );
    }

    #[tokio::test]
    async fn a_cancelled_step_has_an_end() {
        let (events, receiver) = Events::channel();
        let work = events.step("a", Step::OBSERVING, std::future::pending::<Result<(), NodeError>>());
        assert!(tokio::time::timeout(Duration::from_millis(1), work).await.is_err());
        assert_eq!(sent(&receiver), ["a started reading the node state", "a ended reading the node state"]);
    }
}
