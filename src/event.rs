//! What happens, as values: orchestration tells, renderers show. Nothing else connects the two.

use crate::error::NodeError;
use crate::model::job_state::State;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::sync::{Arc, Condvar, Mutex};
use std::time::Duration;

/// Something worth showing.
#[derive(Debug, Clone)]
pub enum Event {
    /// The nodes that the command is about, in their order; each waits until it is busy.
    Nodes(Vec<String>),
    /// A phase of the whole begins, e.g. `connecting`.
    Phase(String),
    /// A node is busy with something.
    Busy {
        /// The node.
        node: String,
        /// With what.
        step: String,
        /// Whether that changes nothing there.
        reads: bool,
    },
    /// A node has done its step and waits for the others.
    Idle {
        /// The node.
        node: String,
    },
    /// A node gets something large.
    Transfer {
        /// The node.
        node: String,
        /// What is done, as in "pulling the image"; the same words as long as it goes on.
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
    /// A remark.
    Note(String),
    /// Something that is not an error and may surprise.
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
    /// A run is started again: why, when, and on which nodes.
    Restart(String),
    /// A line of the launcher itself.
    Launcher(String),
    /// Somebody else needs the terminal; see [`Events::suspend`].
    Suspend(Suspension),
    /// A run changed its state.
    Job {
        /// The run.
        id: String,
        /// Its state.
        state: State,
    },
}

/// A time in which nothing is shown, because a question stands on the terminal.
#[derive(Debug, Clone, Default)]
pub struct Suspension(Arc<Turn>);

#[derive(Debug, Default)]
struct Turn {
    cleared: tokio::sync::Notify,
    over: Mutex<bool>,
    changed: Condvar,
}

impl Suspension {
    /// For the renderer: what moved is cleared. Blocks its thread until the terminal is its own again.
    pub fn wait(&self) {
        self.0.cleared.notify_one();
        if let Ok(over) = self.0.over.lock() {
            drop(self.0.changed.wait_while(over, |over| !*over));
        }
    }
}

/// Gives the terminal back to the renderer when it is dropped.
#[derive(Debug)]
pub struct Suspended(Suspension);

impl Drop for Suspended {
    fn drop(&mut self) {
        if let Ok(mut over) = self.0.0.over.lock() {
            *over = true;
        }
        self.0.0.changed.notify_all();
    }
}

/// Lines of output that may wait to be shown before those who read them from the nodes pause.
const WAITING: usize = 4096;

/// Where orchestration sends its events. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Events {
    sender: mpsc::Sender<Event>,
    waiting: Arc<AtomicUsize>,
    failed: Arc<Mutex<Vec<NodeError>>>,
}

/// Where a renderer takes them.
#[derive(Debug)]
pub struct Receiver {
    receiver: mpsc::Receiver<Event>,
    waiting: Arc<AtomicUsize>,
}

/// What came of waiting for an event.
#[derive(Debug)]
pub enum Taken {
    /// One has come.
    Event(Event),
    /// None has come in time.
    Nothing,
    /// None will come: the last sender is gone.
    Over,
}

impl Receiver {
    /// The next event, waiting for it no longer than this. Blocks its thread.
    pub fn take(&mut self, patience: Option<Duration>) -> Taken {
        let event = match patience {
            Some(limit) => self.receiver.recv_timeout(limit),
            None => self.receiver.recv().map_err(|_| RecvTimeoutError::Disconnected),
        };
        match event {
            Ok(event) => {
                self.waiting.fetch_sub(1, Ordering::Relaxed);
                Taken::Event(event)
            }
            Err(RecvTimeoutError::Timeout) => Taken::Nothing,
            Err(RecvTimeoutError::Disconnected) => Taken::Over,
        }
    }
}

impl Events {
    /// A sender and the end that a renderer reads.
    pub fn channel() -> (Events, Receiver) {
        let (sender, receiver) = mpsc::channel();
        let waiting = Arc::new(AtomicUsize::new(0));
        (Events { sender, waiting: Arc::clone(&waiting), failed: Arc::default() }, Receiver { receiver, waiting })
    }

    /// Tells; a renderer that is gone is no reason to stop working. A failure is told once: when it happens by who sees it,
    /// and not again by who sums up.
    pub fn send(&self, event: Event) {
        if let (Event::Failed(error), Ok(mut told)) = (&event, self.failed.lock()) {
            if told.contains(error) {
                return;
            }
            told.push(error.clone());
        }
        self.waiting.fetch_add(1, Ordering::Relaxed);
        if self.sender.send(event).is_err() {
            self.waiting.store(0, Ordering::Relaxed);
        }
    }

    /// Waits while more events wait to be shown than memory should hold (a pager, a stopped terminal).
    pub async fn room(&self) {
        while self.waiting.load(Ordering::Relaxed) > WAITING {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }

    /// Clears the terminal of what moves there and keeps it still while the result is held.
    pub async fn suspend(&self) -> Suspended {
        let suspension = Suspension::default();
        self.send(Event::Suspend(suspension.clone()));
        let suspended = Suspended(suspension);
        // without a renderer, or behind one that a stopped terminal holds, a question must still be asked
        let _ = tokio::time::timeout(Duration::from_secs(2), suspended.0.0.cleared.notified()).await;
        suspended
    }

    /// [`Event::Phase`].
    pub fn phase(&self, name: impl Into<String>) {
        self.send(Event::Phase(name.into()));
    }

    /// [`Event::Busy`].
    pub fn busy(&self, node: &str, step: impl Into<String>) {
        self.send(Event::Busy { node: node.into(), step: step.into(), reads: false });
    }

    /// [`Event::Busy`] with a step that only reads.
    pub fn reading(&self, node: &str, step: impl Into<String>) {
        self.send(Event::Busy { node: node.into(), step: step.into(), reads: true });
    }

    /// [`Event::Idle`].
    pub fn idle(&self, node: &str) {
        self.send(Event::Idle { node: node.into() });
    }

    /// [`Event::Done`].
    pub fn done(&self, node: &str, what: impl Into<String>) {
        self.send(Event::Done { node: node.into(), what: what.into() });
    }

    /// [`Event::Failed`], where a result is one.
    pub fn told<T>(&self, result: Result<T, NodeError>) -> Result<T, NodeError> {
        result.inspect_err(|error| self.send(Event::Failed(error.clone())))
    }

    /// Sends an [`Event::Warning`].
    pub fn warn(&self, warning: impl std::fmt::Display) {
        self.send(Event::Warning(warning.to_string()));
    }

    /// [`Event::Note`].
    pub fn note(&self, text: impl Into<String>) {
        self.send(Event::Note(text.into()));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failure_is_told_once() {
        let (events, mut receiver) = Events::channel();
        let error = NodeError::failed("a", "look", "no");
        let told = events.told::<()>(Err(error.clone()));
        events.send(Event::Failed(error.clone()));
        events.send(Event::Failed(NodeError::failed("b", "look", "no")));
        drop(events);
        assert_eq!(told, Err(error));
        let mut nodes = Vec::new();
        while let Taken::Event(Event::Failed(error)) = receiver.take(None) {
            nodes.push(error.node);
        }
        assert_eq!(nodes, ["a", "b"]);
    }
}
