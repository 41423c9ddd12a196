//! What happens, as values: orchestration tells, renderers show. Nothing else connects the two.

use crate::core::job::State;
use crate::error::NodeError;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::time::Duration;
use tokio::sync::mpsc;

/// Something worth showing.
#[derive(Debug, Clone)]
pub enum Event {
    /// A phase of the whole begins, e.g. `connecting`.
    Phase(String),
    /// A node is busy with something.
    Busy {
        /// The node.
        node: String,
        /// With what.
        step: String,
    },
    /// A node gets something large.
    Transfer {
        /// The node.
        node: String,
        /// What is done, as in "pulling the image".
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
    sender: mpsc::UnboundedSender<Event>,
    waiting: Arc<AtomicUsize>,
}

/// Where a renderer takes them.
#[derive(Debug)]
pub struct Receiver {
    receiver: mpsc::UnboundedReceiver<Event>,
    waiting: Arc<AtomicUsize>,
}

impl Receiver {
    /// The next event; `None` when the last sender is gone. Blocks its thread.
    pub fn take(&mut self) -> Option<Event> {
        let event = self.receiver.blocking_recv()?;
        self.waiting.fetch_sub(1, Ordering::Relaxed);
        Some(event)
    }
}

impl Events {
    /// A sender and the end that a renderer reads.
    pub fn channel() -> (Events, Receiver) {
        let (sender, receiver) = mpsc::unbounded_channel();
        let waiting = Arc::new(AtomicUsize::new(0));
        (Events { sender, waiting: Arc::clone(&waiting) }, Receiver { receiver, waiting })
    }

    /// Tells; a renderer that is gone is no reason to stop working.
    pub fn send(&self, event: Event) {
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
        self.send(Event::Busy { node: node.into(), step: step.into() });
    }

    /// [`Event::Done`].
    pub fn done(&self, node: &str, what: impl Into<String>) {
        self.send(Event::Done { node: node.into(), what: what.into() });
    }

    /// [`Event::Note`].
    pub fn note(&self, text: impl Into<String>) {
        self.send(Event::Note(text.into()));
    }
}
