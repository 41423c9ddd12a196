//! A command that changes nodes: the locks that it holds, its cancellation, and its progress.

use super::cancellation::Cancellation;
use super::lock_set::LockSet;
use super::progress::ProgressLog;
use crate::cluster::nodes::Member;
use crate::error::{Error, NodeError};
use crate::event::Events;
use std::time::Duration;
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
    /// A session that holds no lock yet. `purpose`: the command, as others see it. `wait`: as for [`LockSet::new`].
    pub fn new(
        cluster: &str,
        purpose: &str,
        wait: Option<Duration>,
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
}
