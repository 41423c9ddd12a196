//! A command that changes nodes: the locks that it holds, its cancellation, and its progress.

use super::cancellation::Cancellation;
use super::lock_set::LockSet;
use crate::cluster::member::Member;
use crate::error::{Error, NodeError, NodeProgress};
use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};
use tokio::sync::watch;

/// A command that changes nodes.
pub struct Session {
    /// The locks of its nodes.
    pub locks: LockSet,
    /// The cancellation of the command.
    pub cancellation: Cancellation,
    /// The progress of each node.
    pub progress: ProgressLog,
}

impl Session {
    /// A session with these locks, of which it holds none yet.
    pub fn new(locks: LockSet, signal: &watch::Receiver<Option<u8>>) -> Session {
        Session { locks, cancellation: Cancellation::new(signal), progress: ProgressLog::default() }
    }

    /// Locks these nodes, or none. Returns those that could not be asked.
    ///
    /// # Errors
    /// [`Error::Locked`] where another command holds one, and why the command was cancelled.
    pub async fn lock(&self, members: &[Member]) -> Result<Vec<NodeError>, Error> {
        self.locks.take(members, &self.cancellation).await
    }

    /// Locks all of these nodes, or none.
    ///
    /// # Errors
    /// As [`Session::lock`], and if a node could not be asked.
    pub async fn lock_all(&self, members: &[Member]) -> Result<(), Error> {
        match self.lock(members).await? {
            failed if failed.is_empty() => Ok(()),
            failed => Err(Error::Nodes { failed, done: 0 }),
        }
    }
}

/// The steps done on each node.
#[derive(Default)]
pub struct ProgressLog(Mutex<BTreeMap<String, NodeProgress>>);

impl ProgressLog {
    fn update(&self, node: &str, change: impl FnOnce(&mut NodeProgress)) {
        let mut progress = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        change(progress.entry(node.to_owned()).or_insert_with(|| NodeProgress::new(node)));
    }

    /// Records a step that is done on a node.
    pub fn record(&self, node: &str, step: impl Into<String>) {
        self.update(node, |progress| progress.steps.push(step.into()));
    }

    /// Records that all is done on a node.
    pub fn done(&self, node: &str) {
        self.update(node, |progress| progress.done = true);
    }

    /// Records failures.
    pub fn failed(&self, errors: &[NodeError]) {
        for error in errors {
            self.update(&error.node, |progress| progress.error = Some(error.clone()));
        }
    }

    /// Returns an error that stopped the command with the progress of each of these nodes, and any other as it is.
    #[must_use]
    pub fn explain(&self, error: Error, nodes: &[String]) -> Error {
        match error {
            Error::Signal(_) | Error::Lost(_) => {
                let progress = self.0.lock().unwrap_or_else(PoisonError::into_inner);
                let nodes =
                    nodes.iter().map(|node| progress.get(node).cloned().unwrap_or_else(|| NodeProgress::new(node)));
                Error::Stopped { by: Box::new(error), nodes: nodes.collect() }
            }
            error => error,
        }
    }
}
