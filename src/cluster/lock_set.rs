//! The locks of the nodes that a command changes: the leases that it holds.

use crate::cluster::cancellation::Cancellation;
use crate::cluster::each_node::for_each_node;
use crate::cluster::member::Member;
use crate::cluster::node_lock::{LockAnswer, NodeLock, request, take};
use crate::cluster::operator::operator;
use crate::error::{Error, NodeError};
use crate::event::Events;
use crate::model::lease::{Lease, holders};
use crate::random;
use crate::text::nodeset;
use crate::transport::node::Script;
use crate::transport::privileges::process;
use std::pin::pin;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::sync::watch;
use tokio::time::{Instant, timeout};

/// The time for which a cancelled command waits for nodes that were asked for their leases.
const ANSWER_LIMIT: Duration = Duration::from_secs(5);
/// Interval between two messages of a waiting command.
const REPORT_INTERVAL: Duration = Duration::from_secs(30);
/// The number of times that a command that does not wait tries again after it got some of its nodes, so that one of two
/// commands that started at the same moment goes on.
const RETRIES: u32 = 5;
/// Age up to which a lease may belong to a command that is still taking its other locks.
const CONTENTION_WINDOW: Duration = Duration::from_secs(5);

/// The node locks that a command holds.
pub struct LockSet {
    /// Takes a lease once it has an id.
    request: Script,
    wait: Option<Duration>,
    events: Events,
    held: Mutex<Vec<NodeLock>>,
}

impl LockSet {
    /// A set without locks yet. `purpose`: the command, as others see it. `wait`: how long it may wait for the locks of
    /// others.
    pub fn new(cluster: &str, purpose: &str, wait: Option<Duration>, events: &Events) -> LockSet {
        // the lease has a line for it
        let purpose: String = purpose.chars().map(|c| if c.is_control() { ' ' } else { c }).take(200).collect();
        let request = request(cluster, &operator(), &purpose);
        LockSet { request, wait, events: events.clone(), held: Mutex::default() }
    }

    /// Locks all of these nodes or none, and waits for the commands that hold them if the command may wait.
    /// Returns the nodes that did not answer.
    ///
    /// # Errors
    /// [`Error::Locked`] if another command holds one, or still does when the time is over; why the command was
    /// cancelled.
    pub async fn take(&self, members: &[Member], cancellation: &Cancellation) -> Result<Vec<NodeError>, Error> {
        let began = Instant::now();
        let mut reported: Option<(Vec<String>, Instant)> = None;
        let mut attempt = 0;
        loop {
            let mut asking = pin!(self.attempt(members, attempt, &cancellation.lost));
            let (failed, busy) = tokio::select! {
                answers = &mut asking => answers,
                error = cancellation.cancelled() => {
                    // a lease that is granted after the cancellation would briefly outlive the command
                    let _ = timeout(ANSWER_LIMIT, asking).await;
                    return Err(error);
                }
            };
            if busy.is_empty() {
                return Ok(failed);
            }
            let got_some = !self.held().is_empty();
            self.release().await;
            let began_together = got_some && busy.iter().all(|(_, lease)| lease.age() < CONTENTION_WINDOW);
            let may_retry = began_together && attempt < RETRIES;
            if !may_retry && !self.waits(began.elapsed()) {
                return Err(Error::Locked(busy));
            }
            let ids: Vec<String> = busy.iter().map(|(_, lease)| lease.id.clone()).collect();
            let is_recent = |(before, at): &(_, Instant)| *before == ids && at.elapsed() < REPORT_INTERVAL;
            if self.wait.is_some() && !reported.as_ref().is_some_and(is_recent) {
                for (nodes, lease) in holders(&busy) {
                    self.events.note(format!("waiting for {}: {lease}", nodeset::fold(&nodes)));
                }
                reported = Some((ids, Instant::now()));
            }
            // a random pause, so that commands that wait do not all ask at the same moment
            let pause = Duration::from_millis(500 + random::below(1000));
            if let Ok(error) = timeout(self.at_most(pause, began.elapsed()), cancellation.cancelled()).await {
                return Err(error);
            }
            attempt += 1;
        }
    }

    /// Asks all nodes at once. Returns those that did not answer, and the leases that others hold. A lock that is lost
    /// is added to `lost`.
    async fn attempt(
        &self,
        members: &[Member],
        attempt: u32,
        lost: &watch::Sender<Vec<NodeError>>,
    ) -> (Vec<NodeError>, Vec<(String, Lease)>) {
        let id = format!("{}-{attempt:06}", process());
        let request = self.request.clone().with("id", &id);
        let answers = for_each_node(members.to_vec(), async |member: Member| {
            match take(&member.transport, &request, lost).await? {
                LockAnswer::Held(lock) => self.held().push(lock),
                // the directory of a login may be on a file system that nodes share
                LockAnswer::Busy(lease) if lease.id == id => {
                    let cause = "another node of this command has the same directory for its lock";
                    return Err(NodeError::failed(&member.node.name, "lock the node", cause)
                        .hint("set cluster.state_dir to a directory on a local disk of each node"));
                }
                LockAnswer::Busy(lease) => return Ok(Some((member.node.name, lease))),
            }
            Ok(None)
        });
        let (mut failed, mut busy) = (Vec::new(), Vec::new());
        for answer in answers.await {
            match answer {
                Ok(other) => busy.extend(other),
                Err(error) => failed.push(error),
            }
        }
        (failed, busy)
    }

    /// Returns whether the command goes on waiting for others after this time.
    pub fn waits(&self, elapsed: Duration) -> bool {
        self.wait.is_some_and(|limit| elapsed < limit)
    }

    /// Returns a pause of the command, shortened to the time that it still waits for others.
    pub fn at_most(&self, pause: Duration, elapsed: Duration) -> Duration {
        self.wait.map_or(pause, |limit| pause.min(limit.saturating_sub(elapsed)))
    }

    /// Releases all locks; a second time does nothing.
    pub async fn release(&self) {
        let held = std::mem::take(&mut *self.held());
        for_each_node(held, NodeLock::release).await;
    }

    fn held(&self) -> MutexGuard<'_, Vec<NodeLock>> {
        self.held.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
