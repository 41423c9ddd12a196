//! The jobs of all nodes, and those of the inventory's Slurm.

use crate::cluster::fleet::Fleet;
use crate::cluster::target::Target;
use crate::error::{Error, NodeError};
use crate::event::Events;
use crate::job::manage::{self, JobList};
use crate::record::list::Job;
use std::future::Future;

/// The jobs of a cluster, and of its Slurm.
pub(super) struct JobListing {
    pub(super) jobs: Vec<Job>,
    /// The number of nodes that answered; `failed` has those that did not.
    pub(super) answered: usize,
    pub(super) failed: Vec<NodeError>,
    pub(super) now: f64,
}

/// Lists them. A Slurm that does not answer hides only its own.
pub(super) async fn listing(
    running: bool,
    slurm: impl Future<Output = Result<Option<(Target, Fleet)>, Error>>,
    target: &Target,
    fleet: &Fleet,
    events: &Events,
) -> Result<JobListing, Error> {
    let of_slurm = async {
        let Some((target, fleet)) = slurm.await? else { return Ok(None) };
        let JobList { jobs, members, failed, .. } = manage::list(&target, &fleet, events).await?;
        Ok(Some((jobs, members.len(), failed)))
    };
    let (list, of_slurm) = tokio::join!(manage::list(target, fleet, events), of_slurm);
    let JobList { mut jobs, members, mut failed, now, .. } = list?;
    let mut answered = members.len();
    match of_slurm {
        Ok(Some((more, count, more_failed))) => {
            jobs.extend(more);
            jobs.sort_by(|a, b| b.started.total_cmp(&a.started));
            answered += count;
            failed.extend(more_failed);
        }
        Ok(None) => {}
        Err(Error::Nodes { failed: more, .. } | Error::Unreachable(more)) => failed.extend(more),
        Err(error) => return Err(error),
    }
    jobs.retain(|job| !running || !job.is_over());
    Ok(JobListing { jobs, answered, failed, now })
}
