//! The nodes of a job or a measurement: locked, observed, and those that hvdctl chooses when no other job has them.

use super::Scheduler;
use super::plan::Allocating;
use super::refuse_own_nodes;
use crate::cluster::each_node::each_node;
use crate::cluster::node_lock;
use crate::cluster::observation::ObservedNode;
use crate::cluster::site::Site;
use crate::cluster::target::Target;
use crate::error::{Error, ErrorKind};
use crate::event::Events;
use crate::start::capacity::{AllocatedNodes, check_unallocated};
use crate::start::observe::observe_all;
use crate::start::request::JobOptions;
use std::time::Duration;
use tokio::time::{Instant, timeout};

/// How soon a waiting job first checks whether the other one has ended. Each pause is twice as long as the last one.
const FIRST_PAUSE: Duration = Duration::from_secs(2);
/// The longest pause between two checks.
const LONGEST_PAUSE: Duration = Duration::from_secs(15);

impl Scheduler<'_> {
    /// Locks and observes the nodes for a job, and the master if it launches the job. If the requested resources are
    /// allocated to other jobs, waits for them as far as `allocating` and `--wait` allow it.
    ///
    /// # Errors
    /// [`Error::Allocated`] if the resources are still allocated when the wait is over; otherwise as [`observe_all`].
    pub(super) async fn allocate(&self, options: &JobOptions, allocating: Allocating) -> Result<AllocatedNodes, Error> {
        let target = self.site.target;
        match allocating {
            Allocating::WhenFree | Allocating::Scheduled => {
                let may_queue = allocating == Allocating::Scheduled;
                let observe = async || self.observe_launchers(true, may_queue).await;
                let free = |nodes| self.allocated(nodes, options, may_queue);
                self.when_free(&target.with_launcher(), observe, free).await
            }
            Allocating::DryRun => self.allocated(self.observe_launchers(false, true).await?, options, true),
            Allocating::AtOnce => {
                let nodes = self.observe_launchers(true, false).await?;
                if self.is_queue(&nodes)? {
                    let hint = "leave out --best, or bypass Slurm with --scheduler ssh";
                    return Err(Error::usage("--best: Slurm chooses the nodes of a job", hint));
                }
                self.allocated(nodes, options, false)
            }
        }
    }

    /// Observes the selected nodes, and the master if it may launch a job. `may_queue`: as in
    /// [`Scheduler::allocated`].
    async fn observe_launchers(&self, locks: bool, may_queue: bool) -> Result<Vec<ObservedNode>, Error> {
        let Site { target, session, events, .. } = self.site;
        let nodes = observe_all(&self.site, &target.with_launcher(), locks, events).await?;
        let master = &target.inventory.master().name;
        let has_master = nodes.iter().any(|node| node.name() == master);
        if !may_queue || has_master || !self.is_queue(&nodes)? {
            return Ok(nodes);
        }
        // it launches every job of the cluster's queue
        session.locks.release().await;
        observe_all(&self.site, &target.with_master(), locks, events).await
    }

    /// Chooses the nodes of a job. `may_queue`: if the cluster has a queue, that is left to it.
    fn allocated(
        &self,
        nodes: Vec<ObservedNode>,
        options: &JobOptions,
        may_queue: bool,
    ) -> Result<AllocatedNodes, Error> {
        let target = self.site.target;
        if may_queue && self.is_queue(&nodes)? {
            refuse_own_nodes(&options.roles)?;
            return AllocatedNodes::candidates(target, nodes, options);
        }
        match options.submission.first() {
            Some(option) => Err(Error::usage(
                format!("--sbatch={option} is for jobs under Slurm"),
                "use --scheduler slurm, a table [slurm] in the inventory, or hvdctl slurm up",
            )),
            None => AllocatedNodes::new(target, nodes, options),
        }
    }

    /// Observes the selected nodes and locks none. If jobs have anything of them, or another command has locked one,
    /// waits if `--wait` allows it.
    ///
    /// # Errors
    /// [`Error::Allocated`] and [`Error::Locked`] if that is so when the wait is over; otherwise as [`observe_all`].
    pub async fn unused(&self) -> Result<Vec<ObservedNode>, Error> {
        let Site { target, session, events, .. } = self.site;
        let observe = async || {
            let nodes = observe_all(&self.site, target, false, events).await?;
            let cluster = &target.cluster().name;
            let leases = each_node(nodes.iter().collect(), events, async |node: &ObservedNode| {
                let lease = node_lock::current(&node.member.transport, cluster).await?;
                Ok(lease.map(|lease| (node.name().to_owned(), lease)))
            });
            let leases = session.cancellation.run(async { leases.await.all() }).await?;
            let leases: Vec<_> = leases.into_iter().flatten().collect();
            if leases.is_empty() { Ok(nodes) } else { Err(Error::Locked(leases)) }
        };
        self.when_free(target, observe, |nodes| check_unallocated(&nodes).map(|()| nodes)).await
    }

    /// Observes nodes with `observe` until they are `free`, as long as `--wait` allows it. Meanwhile they are not
    /// locked.
    async fn when_free<T>(
        &self,
        target: &Target,
        observe: impl AsyncFn() -> Result<Vec<ObservedNode>, Error>,
        free: impl Fn(Vec<ObservedNode>) -> Result<T, Error>,
    ) -> Result<T, Error> {
        let Site { session, events, .. } = self.site;
        let lock_and_observe = async || observe().await.and_then(&free);
        let (quiet, _) = Events::channel();
        let (began, mut reported, mut pause) = (Instant::now(), String::new(), FIRST_PAUSE);
        let mut result = lock_and_observe().await;
        while let Err(error @ (Error::Allocated(_) | Error::Locked(_))) = &result
            && session.locks.waits(began.elapsed())
        {
            let text = error.to_string();
            let message = format!("waiting: {}", text.split("\nnothing was changed").next().unwrap_or(&text));
            if message != reported {
                events.note(&message);
                // where jobs come and go, the next one may end soon
                (reported, pause) = (message, FIRST_PAUSE);
            }
            // other commands need the locks to end that job
            session.locks.release().await;
            let rest = session.locks.at_most(pause, began.elapsed());
            if let Ok(error) = timeout(rest, session.cancellation.cancelled()).await {
                return Err(error);
            }
            pause = LONGEST_PAUSE.min(2 * pause);
            result = match observe_all(&self.site, target, false, &quiet).await.and_then(&free) {
                Ok(_) => lock_and_observe().await,
                // a GPU that failed does not come back by itself
                Err(Error::Nodes { failed, .. }) if failed.iter().any(|e| e.kind == ErrorKind::NvidiaSmiFailed) => {
                    Err(Error::Nodes { failed, done: 0 })
                }
                // a node that briefly does not answer is queried again
                Err(Error::Nodes { .. } | Error::Unreachable(_)) => result,
                Err(error) => Err(error),
            };
        }
        result
    }
}
