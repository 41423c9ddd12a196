//! What happens, as values: orchestration tells, renderers show. Nothing else connects the two.

use crate::core::job::State;
use crate::error::NodeError;
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
    /// A run changed its state.
    Job {
        /// The run.
        id: String,
        /// Its state.
        state: State,
    },
}

/// Where orchestration sends its events. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Events(mpsc::UnboundedSender<Event>);

impl Events {
    /// A sender and the end that a renderer reads.
    pub fn channel() -> (Events, mpsc::UnboundedReceiver<Event>) {
        let (sender, receiver) = mpsc::unbounded_channel();
        (Events(sender), receiver)
    }

    /// Tells; a renderer that is gone is no reason to stop working.
    pub fn send(&self, event: Event) {
        let _ = self.0.send(event);
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
