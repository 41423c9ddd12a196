//! The locks of the nodes that a command changes: it holds the lease of each for as long as it does.

use crate::cluster::cancellation::Cancellation;
use crate::cluster::node_lock::{Answer, LockRequest, NodeLock, take};
use crate::cluster::nodes::{Member, for_each_node, operator};
use crate::error::{Error, NodeError};
use crate::event::Events;
use crate::model::lease::{Lease, Wait, holders};
use crate::text::nodeset;
use crate::transport::privileges::process;
use std::hash::{BuildHasher, RandomState};
use std::pin::pin;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::sync::watch;
use tokio::time::{Instant, sleep, timeout};

/// How long a command that is cancelled waits for nodes that were asked for their leases.
const ANSWERED_WITHIN: Duration = Duration::from_secs(5);
/// How often a command that waits reports for whom.
const REPORTED: Duration = Duration::from_secs(30);
/// How often a command that got some of its nodes tries again although it does not wait: of two that started at the same moment one
/// is to go on.
const RETRIES: u32 = 5;
/// A lease that is older belongs to a command that has all of its nodes.
const YOUNG: Duration = Duration::from_secs(5);

/// The node locks that a command holds.
pub struct LockSet {
    cluster: String,
    purpose: String,
    wait: Wait,
    events: Events,
    /// Set when a lock is lost.
    lost: watch::Sender<Option<NodeError>>,
    held: Mutex<Vec<NodeLock>>,
}

impl LockSet {
    /// A set without locks yet. `purpose`: the command, as others see it. `lost` is set when a lock is lost.
    pub fn new(
        cluster: &str,
        purpose: &str,
        wait: Wait,
        events: &Events,
        lost: watch::Sender<Option<NodeError>>,
    ) -> LockSet {
        LockSet {
            cluster: cluster.to_owned(),
            // it has one line
            purpose: purpose.chars().map(|c| if c.is_control() { ' ' } else { c }).take(200).collect(),
            wait,
            events: events.clone(),
            lost,
            held: Mutex::default(),
        }
    }

    /// Takes the leases of all these nodes, or none: at once, or when their holders are done. Returns the nodes that could not be
    /// asked.
    ///
    /// # Errors
    /// [`Error::Locked`] where another command holds one, or still does when the time is over; why the command was cancelled.
    pub async fn take(&self, members: &[Member], cancellation: &Cancellation) -> Result<Vec<NodeError>, Error> {
        let began = Instant::now();
        let mut reported: Option<(Vec<String>, Instant)> = None;
        for attempt in 0.. {
            let mut asking = pin!(self.attempt(members, attempt));
            let (failed, busy) = tokio::select! {
                answers = &mut asking => answers,
                error = cancellation.cancelled() => {
                    // a lease that is still to come would otherwise outlive the command by a moment
                    let _ = timeout(ANSWERED_WITHIN, asking).await;
                    return Err(error);
                }
            };
            if busy.is_empty() {
                return Ok(failed);
            }
            let got_some = !self.held().is_empty();
            self.release().await;
            let left = match self.wait {
                Wait::No => {
                    let both_began = got_some && busy.iter().all(|(_, lease)| lease.age() < YOUNG);
                    (!both_began || attempt == RETRIES).then_some(Duration::ZERO)
                }
                Wait::Within(limit) => limit.map(|limit| limit.saturating_sub(began.elapsed())),
            };
            if left.is_some_and(|left| left.is_zero()) {
                return Err(Error::Locked(busy));
            }
            let ids: Vec<String> = busy.iter().map(|(_, lease)| lease.id.clone()).collect();
            let is_known = |(before, when): &(_, Instant)| *before == ids && when.elapsed() < REPORTED;
            if self.wait != Wait::No && !reported.as_ref().is_some_and(is_known) {
                for (nodes, lease) in holders(&busy) {
                    self.events.note(format!("waiting for {}: {lease}", nodeset::fold(&nodes)));
                }
                reported = Some((ids, Instant::now()));
            }
            // commands that wait do not all ask at the same moment
            let pause = Duration::from_millis(500 + random() % 1000);
            let pause = left.map_or(pause, |left| pause.min(left));
            let pausing = async {
                sleep(pause).await;
                Ok(())
            };
            cancellation.run(pausing).await?;
        }
        Ok(Vec::new())
    }

    /// Asks all nodes at once. Returns those that could not be asked, and the leases that others hold.
    async fn attempt(&self, members: &[Member], attempt: u32) -> (Vec<NodeError>, Vec<(String, Lease)>) {
        let request = LockRequest {
            cluster: self.cluster.clone(),
            id: format!("{}-{attempt:06}", process()),
            holder: operator(),
            purpose: self.purpose.clone(),
        };
        let answers = for_each_node(members.to_vec(), async |member: Member| {
            match take(&member.transport, &request, &self.lost).await? {
                Answer::Held(lock) => self.held().push(lock),
                Answer::Busy(lease) => return Ok(Some((member.node.name, lease))),
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

    /// Whether somebody else's end may still be waited for after so long.
    pub fn waits(&self, so_long: Duration) -> bool {
        match self.wait {
            Wait::No => false,
            Wait::Within(limit) => limit.is_none_or(|limit| so_long < limit),
        }
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

fn random() -> u64 {
    RandomState::new().hash_one(0)
}
