//! A command that changes nodes: the locks that it holds, its cancellation, and its progress.

use super::cancellation::Cancellation;
use super::lock_set::LockSet;
use super::progress::ProgressLog;
use crate::cluster::nodes::Member;
use crate::error::{Error, NodeError};
use crate::event::Events;
use crate::model::lease::Wait;
use tokio::sync::watch;

/// A command that changes nodes.
pub struct Session {
    /// The locks of its nodes.
    pub locks: LockSet,
    /// Whether it has to stop.
    pub cancellation: Cancellation,
    /// How far each node came.
    pub progress: ProgressLog,
}

impl Session {
    /// A session that holds no lock yet. `purpose`: the command, as others see it.
    pub fn new(
        cluster: &str,
        purpose: &str,
        wait: Wait,
        events: &Events,
        signal: &watch::Receiver<Option<u8>>,
    ) -> Session {
        let cancellation = Cancellation::new(signal);
        let locks = LockSet::new(cluster, purpose, wait, events, cancellation.lost.clone());
        Session { locks, cancellation, progress: ProgressLog::default() }
    }

    /// Locks these nodes, or none. Returns those that could not be asked.
    ///
    /// # Errors
    /// [`Error::Locked`] where another command holds one, and why the command was cancelled.
    pub async fn lock(&self, members: &[Member]) -> Result<Vec<NodeError>, Error> {
        self.locks.take(members, &self.cancellation).await
    }

    /// Locks all of these nodes.
    ///
    /// # Errors
    /// As [`Session::lock`], and if one does not answer.
    pub async fn lock_all(&self, members: &[Member]) -> Result<(), Error> {
        let failed = self.lock(members).await?;
        if failed.is_empty() { Ok(()) } else { Err(Error::Nodes { failed, done: 0 }) }
    }
}
