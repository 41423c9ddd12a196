//! How a command gets the nodes of a job: free ones, at once or after waiting, or those that Slurm chooses.

use super::context::Context;
use crate::cluster::each_node::each_node;
use crate::cluster::node_lock;
use crate::cluster::observation::ObservedNode;
use crate::cluster::target::Target;
use crate::error::{Error, ErrorKind};
use crate::event::Events;
use crate::slurm;
use crate::start::capacity::{AllocatedNodes, check_unallocated};
use crate::start::request::JobOptions;
use std::time::Duration;
use tokio::time::{Instant, timeout};

/// How soon a waiting job first checks whether the other one has ended. Each pause is twice as long as the last one.
const FIRST_PAUSE: Duration = Duration::from_secs(2);
/// The longest pause between two checks.
const LONGEST_PAUSE: Duration = Duration::from_secs(15);

impl Context {
    /// Locks and observes the nodes for a job, and the master if it launches the job. If the requested resources are
    /// allocated to other jobs, waits for them if `--wait` allows it. `may_queue`: whether the cluster's own Slurm
    /// chooses the nodes if there is one.
    ///
    /// # Errors
    /// [`Error::Allocated`] if the resources are still allocated when the wait is over; otherwise as
    /// [`Context::observe_all`].
    pub async fn allocate(&self, options: &JobOptions, may_queue: bool) -> Result<AllocatedNodes, Error> {
        let observe = async || self.observe_launchers(true, may_queue).await;
        self.when_free(&self.target.with_launcher(), observe, |nodes| self.allocated(nodes, options, may_queue)).await
    }

    /// Observes the selected nodes, and the master if it may launch a job. `may_queue`: as for [`Context::allocate`].
    ///
    /// # Errors
    /// As [`Context::observe_all`].
    pub async fn observe_launchers(&self, locks: bool, may_queue: bool) -> Result<Vec<ObservedNode>, Error> {
        let nodes = self.observe_all(&self.target.with_launcher(), locks, &self.events).await?;
        let master = &self.target.inventory.master().name;
        let has_master = nodes.iter().any(|node| node.name() == master);
        if !may_queue || self.is_direct || has_master || !slurm::is_up(&nodes, self.target.cluster())? {
            return Ok(nodes);
        }
        // it launches every job of the cluster's own Slurm
        self.session.locks.release().await;
        self.observe_all(&self.target.with_master(), locks, &self.events).await
    }

    /// Chooses the nodes of a job, or leaves that to the cluster's own Slurm if it has one. `may_queue`: as for
    /// [`Context::allocate`].
    ///
    /// # Errors
    /// As [`AllocatedNodes::new`] and [`slurm::is_up`]; options of sbatch without Slurm.
    pub fn allocated(
        &self,
        nodes: Vec<ObservedNode>,
        options: &JobOptions,
        may_queue: bool,
    ) -> Result<AllocatedNodes, Error> {
        if may_queue && !self.is_direct && slurm::is_up(&nodes, self.target.cluster())? {
            return AllocatedNodes::candidates(&self.target, nodes, options.resources);
        }
        match options.sbatch.first() {
            Some(option) => Err(Error::usage(
                format!("--sbatch={option} is for jobs under Slurm"),
                "use --scheduler slurm, a table [slurm] in the inventory, or hvdctl slurm up",
            )),
            None => AllocatedNodes::new(&self.target, nodes, options.resources),
        }
    }

    /// Observes the selected nodes and locks none. If jobs have anything of them, or another command has locked one,
    /// waits if `--wait` allows it.
    ///
    /// # Errors
    /// [`Error::Allocated`] and [`Error::Locked`] if that is so when the wait is over; otherwise as
    /// [`Context::observe_all`].
    pub async fn unused(&self) -> Result<Vec<ObservedNode>, Error> {
        let observe = async || {
            let nodes = self.observe_all(&self.target, false, &self.events).await?;
            let cluster = &self.target.cluster().name;
            let leases = each_node(nodes.iter().collect(), &self.events, async |node: &ObservedNode| {
                let lease = node_lock::current(&node.member.transport, cluster).await?;
                Ok(lease.map(|lease| (node.name().to_owned(), lease)))
            });
            let leases = self.session.cancellation.run(async { leases.await.all() }).await?;
            let leases: Vec<_> = leases.into_iter().flatten().collect();
            if leases.is_empty() { Ok(nodes) } else { Err(Error::Locked(leases)) }
        };
        self.when_free(&self.target, observe, |nodes| check_unallocated(&nodes).map(|()| nodes)).await
    }

    /// Observes nodes with `observe` until they are `free`, as long as `--wait` allows it. Meanwhile they are not
    /// locked.
    async fn when_free<T>(
        &self,
        target: &Target,
        observe: impl AsyncFn() -> Result<Vec<ObservedNode>, Error>,
        free: impl Fn(Vec<ObservedNode>) -> Result<T, Error>,
    ) -> Result<T, Error> {
        let session = &self.session;
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
                self.events.note(&message);
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
            result = match self.observe_all(target, false, &quiet).await.and_then(&free) {
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
