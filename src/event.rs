//! Events: what a command does, as values. Orchestration reports them and renderers show them; nothing else connects the two.

pub mod transfer;

use crate::error::NodeError;
use crate::model::idle_rank::IdleRank;
use crate::model::job_state::State;
use schemars::JsonSchema;
use serde::{Serialize, Serializer};
use std::borrow::Cow;
use std::fmt;
use std::future::Future;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::sync::oneshot;

/// A step of the work on one node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Step {
    /// What it does to the node.
    pub kind: StepKind,
    /// Its name, e.g. `pulling IMAGE`.
    pub text: Cow<'static, str>,
}

/// What a step does to its node.
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

/// A line of `train`, `run`, `attach` and `logs`, except the last.
// the variants without `skip` are the lines of --json; docs/json.md is generated from their comments
#[derive(Debug, Serialize, JsonSchema)]
#[serde(tag = "event", rename_all = "lowercase")]
#[schemars(rename = "Line")]
pub enum Event {
    /// A line of a rank.
    Output {
        /// The rank.
        rank: u32,
        /// Its node.
        node: String,
        /// The stream.
        stream: Stream,
        /// The line; bytes that are not UTF-8 are replaced by U+FFFD.
        #[serde(serialize_with = "lossy")]
        #[schemars(with = "String")]
        line: Vec<u8>,
    },
    /// The state of the job has changed.
    Job {
        /// The id of the job.
        id: String,
        /// Its state.
        state: State,
    },
    /// A node is ready.
    #[serde(rename = "node")]
    Done {
        /// The node.
        node: String,
        /// What was done.
        #[serde(rename = "done")]
        what: String,
    },
    /// A node has failed. The error is reported again at the end.
    #[serde(rename = "node")]
    Failed {
        /// The node.
        node: String,
        /// What failed.
        error: NodeError,
    },
    /// The job is restarted (`--restarts`); `jobs` has the result of each attempt.
    Restart {
        /// The reason, as text.
        text: String,
    },
    /// Ranks have made no progress for `stall_warning_s`; the job continues. It is reported once for each time that they wait.
    Idle {
        /// These ranks.
        ranks: Vec<IdleRank>,
        /// The same as text.
        text: String,
    },
    /// Ranks make progress again.
    Resumed {
        /// These ranks, with what they did before.
        ranks: Vec<IdleRank>,
        /// The seconds without progress, of the one that waited the longest.
        seconds: u64,
        /// The same as text.
        text: String,
    },
    /// A line of the launcher, with `-vv` only.
    Launcher {
        /// The line.
        line: String,
    },
    /// The selected nodes in the inventory's order.
    #[serde(skip)]
    Nodes(Vec<String>),
    /// A phase of the command begins, e.g. `comparing`.
    #[serde(skip)]
    Phase(String),
    /// A node begins a step; several may be in progress on one node.
    #[serde(skip)]
    StepStarted {
        /// The node.
        node: String,
        /// The step.
        step: Step,
    },
    /// A step has ended, successfully or not.
    #[serde(skip)]
    StepEnded {
        /// The node.
        node: String,
        /// The step.
        step: Step,
    },
    /// The progress of a transfer.
    #[serde(skip)]
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
    #[serde(skip)]
    Note(String),
    /// A warning.
    #[serde(skip)]
    Warning(String),
    /// The terminal is needed for a question; see [`Events::suspend`].
    #[serde(skip)]
    Suspend {
        /// Where to report that the rows are cleared.
        cleared: oneshot::Sender<()>,
        /// What is closed when the question is over.
        over: mpsc::Receiver<()>,
    },
}

impl Event {
    /// Returns [`Event::Failed`].
    pub fn failed(error: NodeError) -> Event {
        Event::Failed { node: error.node.clone(), error }
    }
}

fn lossy<S: Serializer>(line: &[u8], serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_str(&String::from_utf8_lossy(line))
}

/// Number of pending events above which readers of node output pause.
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

impl Receiver {
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
    pub fn channel() -> (Events, Receiver) {
        let (sender, receiver) = mpsc::channel();
        let waiting = Arc::new(AtomicUsize::new(0));
        (Events { sender, waiting: Arc::clone(&waiting), failed: Arc::default() }, Receiver { receiver, waiting })
    }

    /// Sends an event. Work goes on if there is no renderer. The same failure is sent only once.
    pub fn send(&self, event: Event) {
        if let (Event::Failed { error, .. }, Ok(mut failed)) = (&event, self.failed.lock()) {
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

    /// Performs a step on a node: reports its start, the failure if it failed, and its end, each once.
    ///
    /// # Errors
    /// Those of the work.
    pub async fn step<T>(
        &self,
        node: &str,
        step: Step,
        work: impl Future<Output = Result<T, NodeError>>,
    ) -> Result<T, NodeError> {
        let _scope = self.begin(node, step);
        self.report(work.await)
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
    pub fn phase(&self, name: impl Into<String>) {
        self.send(Event::Phase(name.into()));
    }

    /// Sends [`Event::Done`].
    pub fn done(&self, node: &str, what: impl Into<String>) {
        self.send(Event::Done { node: node.into(), what: what.into() });
    }

    /// Sends [`Event::Failed`].
    pub fn failed(&self, error: &NodeError) {
        self.send(Event::failed(error.clone()));
    }

    /// Sends [`Event::Failed`] if the result is a failure.
    ///
    /// # Errors
    /// That of the result.
    pub fn report<T>(&self, result: Result<T, NodeError>) -> Result<T, NodeError> {
        result.inspect_err(|error| self.failed(error))
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
    fn sent(receiver: &Receiver) -> Vec<String> {
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
    fn a_failure_is_reported_once() {
        let (events, receiver) = Events::channel();
        let error = NodeError::failed("a", "pull x", "no");
        assert_eq!(events.report::<()>(Err(error.clone())), Err(error.clone()));
        events.failed(&error);
        events.failed(&NodeError::failed("b", "pull x", "no"));
        assert_eq!(sent(&receiver), ["a failed", "b failed"]);
    }

    #[tokio::test]
    async fn a_step_reports_its_start_failure_and_end_once() {
        let (events, receiver) = Events::channel();
        assert_eq!(events.step("a", Step::OBSERVING, async { Ok::<_, NodeError>(7) }).await, Ok(7));
        assert_eq!(sent(&receiver), ["a started reading the node state", "a ended reading the node state"]);

        let error = NodeError::failed("a", "pull x", "no");
        let step = Step::transfer("pulling x".into());
        let result = events.step("a", step, async { Err::<(), _>(error.clone()) }).await;
        assert_eq!(events.report(result), Err(error));
        assert_eq!(sent(&receiver), ["a started pulling x", "a failed", "a ended pulling x"]);
    }

    #[tokio::test]
    async fn a_cancelled_step_has_an_end() {
        let (events, receiver) = Events::channel();
        let work = events.step("a", Step::OBSERVING, std::future::pending::<Result<(), NodeError>>());
        assert!(tokio::time::timeout(Duration::from_millis(1), work).await.is_err());
        assert_eq!(sent(&receiver), ["a started reading the node state", "a ended reading the node state"]);
    }
}
