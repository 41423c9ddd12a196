//! The locks of the nodes that a command changes: it holds the lease of each for as long as it does.

use crate::cluster::node_lock::{Answer, LockRequest, NodeLock, take};
use crate::cluster::nodes::{Member, for_each_node, operator};
use crate::error::{Error, NodeError};
use crate::event::Events;
use crate::model::lease::{Lease, Wait, holders};
use crate::text::nodeset;
use crate::transport::privileges::process;
use std::hash::{BuildHasher, RandomState};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::sync::{RwLock, watch};
use tokio::time::{Instant, timeout};

/// So long one of two commands that each got some of the same nodes waits for the other to give back.
const PATIENCE: Duration = Duration::from_secs(3);
/// A lease that is older belongs to a command that has all of its nodes.
const YOUNG: Duration = Duration::from_secs(5);
/// How long somebody who stops waits for nodes that were asked for their leases; without a connection they give it back.
const ANSWERED_WITHIN: Duration = Duration::from_secs(5);
/// How often somebody who waits is told for whom.
const BETWEEN_TOLD: Duration = Duration::from_secs(30);
/// What may be missing from a time that a node has for its directory: its clock's tick, and more.
const MARGIN: Duration = Duration::from_millis(100);

/// The node locks that a command holds.
pub struct LockSet {
    cluster: String,
    purpose: String,
    wait: Wait,
    events: Events,
    /// Told when a lock is lost.
    lost: watch::Sender<Option<NodeError>>,
    held: Arc<Mutex<Vec<NodeLock>>>,
    /// Read-locked for as long as a node is being asked for its lease.
    asking: Arc<RwLock<()>>,
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
            held: Arc::default(),
            asking: Arc::default(),
        }
    }

    /// Takes the leases of all these nodes, and of all or none: at once, or when their holders are done. Gives the nodes that
    /// could not be asked.
    ///
    /// # Errors
    /// [`Error::Locked`] where another holds one, or still does when the time is over.
    pub async fn take(&self, members: &[Member]) -> Result<Vec<NodeError>, Error> {
        let began = Instant::now();
        let mut told: Option<(Vec<String>, Instant)> = None;
        for attempt in 0.. {
            let busy = match self.attempt(members, attempt).await {
                Ok(failed) => return Ok(failed),
                Err(busy) => busy,
            };
            let left = match self.wait {
                Wait::No => Some(Duration::ZERO),
                Wait::Within(limit) => limit.map(|limit| limit.saturating_sub(began.elapsed())),
            };
            if left.is_some_and(|left| left.is_zero()) {
                return Err(Error::Locked(busy));
            }
            let ids: Vec<String> = busy.iter().map(|(_, lease)| lease.id.clone()).collect();
            if told.as_ref().is_none_or(|(before, when)| *before != ids || when.elapsed() > BETWEEN_TOLD) {
                for (nodes, lease) in holders(&busy) {
                    self.events.note(format!("waiting for {}: {lease}", nodeset::fold(&nodes)));
                }
                told = Some((ids, Instant::now()));
            }
            // those who wait do not all ask at the same moment
            let pause = Duration::from_millis(500 + random() % 1000);
            tokio::time::sleep(left.map_or(pause, |left| pause.min(left))).await;
        }
        Ok(Vec::new())
    }

    /// [`LockSet::take`] and a look at the nodes at the same time. Where somebody may have been at work after the look had begun,
    /// there is another one.
    ///
    /// # Errors
    /// As there; then nobody waits for the look.
    pub async fn take_and_look<T>(
        &self,
        members: &[Member],
        look: impl AsyncFn() -> T,
    ) -> Result<(Vec<NodeError>, T), Error> {
        let began = Instant::now();
        let (failed, seen) = tokio::try_join!(self.take(members), async { Ok(look().await) })?;
        let seen = if self.was_alone_since(began) { seen } else { look().await };
        Ok((failed, seen))
    }

    fn was_alone_since(&self, began: Instant) -> bool {
        self.held().iter().all(|held| held.at.saturating_duration_since(began) + MARGIN < held.idle)
    }

    /// All at once. Where two get some nodes each, the one whose id is smaller waits for the other to give back, and so exactly
    /// one of them gets all.
    async fn attempt(&self, members: &[Member], attempt: u32) -> Result<Vec<NodeError>, Vec<(String, Lease)>> {
        let claim = LockRequest {
            cluster: self.cluster.clone(),
            id: format!("{}-{attempt:06}", process()),
            holder: operator(),
            purpose: self.purpose.clone(),
        };
        let began = Instant::now();
        let mut missing = members.to_vec();
        let mut failed = Vec::new();
        loop {
            let answers = for_each_node(missing, async |member: Member| match self.ask(&member, &claim).await {
                Ok(None) => None,
                Ok(Some(lease)) => Some(Ok((member, lease))),
                Err(error) => Some(Err(error)),
            });
            let mut busy = Vec::new();
            for answer in answers.await.into_iter().flatten() {
                match answer {
                    Ok(one) => busy.push(one),
                    Err(error) => failed.push(error),
                }
            }
            if busy.is_empty() {
                return Ok(failed);
            }
            let yields = |lease: &Lease| claim.id < lease.id && lease.age() < YOUNG;
            let patient = began.elapsed() < PATIENCE && !self.held().is_empty();
            if !patient || !busy.iter().all(|(_, lease)| yields(lease)) {
                self.release().await;
                return Err(busy.into_iter().map(|(member, lease)| (member.node.name, lease)).collect());
            }
            missing = busy.into_iter().map(|(member, _)| member).collect();
            tokio::time::sleep(Duration::from_millis(200)).await;
        }
    }

    /// Asks a node for its lease; gives the one that is in the way. Goes on where nobody waits for the answer any more, so
    /// that a lease that came after that is given back with the others.
    async fn ask(&self, member: &Member, claim: &LockRequest) -> Result<Option<Lease>, NodeError> {
        let asking = self.asking.clone().read_owned().await;
        let (held, lost) = (self.held.clone(), self.lost.clone());
        let (link, claim) = (member.transport.clone(), claim.clone());
        let task = tokio::spawn(async move {
            let answer = match take(link, claim, lost).await? {
                Answer::Held(lease) => {
                    held.lock().unwrap_or_else(PoisonError::into_inner).push(lease);
                    None
                }
                Answer::Busy(lease) => Some(lease),
            };
            drop(asking);
            Ok(answer)
        });
        task.await.unwrap_or_else(|e| Err(NodeError::failed(&member.node.name, "take its lease", e)))
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
        let _all_have_answered = timeout(ANSWERED_WITHIN, self.asking.write()).await;
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
