//! Who chooses the nodes of a job and when it begins, and how a job gets there.
//!
//! There are three schedulers. hvdctl itself starts a job at once on nodes that are free. The cluster's queue
//! ([`queue`], `hvdctl slurm up`) chooses among nodes that hvdctl prepares. A site's Slurm ([`slurm`], the table
//! `[slurm]`) chooses nodes that hvdctl does not know.
//!
//! A [`Scheduler`] makes the [`Plan`] of a job. A plan is asked the same questions under each: would it
//! work ([`Plan::check`]), what would be done ([`Plan::show`]), do it ([`Plan::submit`]), and how it ends
//! ([`Plan::follow`], which also ends it at a signal). Only this room knows the commands of Slurm.

mod allocation;
mod follow;
mod plan;
pub mod queue;
pub mod slurm;

pub use plan::{Allocating, Plan, ShownPlan, Submitted, run};

use crate::cluster::observation::ObservedNode;
use crate::cluster::site::Site;
use crate::cluster::target::Target;
use crate::error::Error;
use crate::inventory::Cluster;
use crate::start::capacity::fit_roles;
use crate::start::roles::JobRole;

/// Who chooses the nodes of a command's jobs.
#[derive(Clone, Copy)]
pub struct Scheduler<'a> {
    /// The nodes of the command, and how they are reached.
    pub site: Site<'a>,
    /// If set, jobs bypass the cluster's queue (`--scheduler ssh`).
    pub is_direct: bool,
}

impl Scheduler<'_> {
    /// Returns true if jobs are put into the cluster's queue. `nodes`: those that were observed.
    ///
    /// # Errors
    /// As [`queue::is_up`].
    pub fn is_queue(&self, nodes: &[ObservedNode]) -> Result<bool, Error> {
        Ok(!self.is_direct && queue::is_up(nodes, self.site.cluster())?)
    }
}

/// Refuses roles that may not be on any node where the cluster's queue chooses among these.
///
/// # Errors
/// With the first of them.
fn refuse_own_nodes(roles: &[JobRole]) -> Result<(), Error> {
    for role in roles {
        let own = &role.project.environment;
        let of_its_own = [
            ("nodes (--on)", role.nodes.is_some()),
            ("an image", own.image.is_some()),
            ("a `setup`", own.setup.is_some()),
            ("`activate` lines", own.activate.is_some()),
        ];
        if let Some((what, _)) = of_its_own.into_iter().find(|(_, has)| *has) {
            let name = &role.project.name;
            return Err(Error::usage(
                format!("the role {name} names {what} of its own, which the cluster's queue does not support"),
                "bypass the queue with --scheduler ssh, or end it with hvdctl slurm down",
            ));
        }
    }
    Ok(())
}

/// Checks that the observed nodes can have a job with these roles, as far as that is known before they are allocated.
///
/// # Errors
/// Roles that the cluster's queue does not support, if it would choose the nodes; the ranks do not fit on them.
pub fn check_fit(roles: &[JobRole], (target, is_direct): (&Target, bool), nodes: &[ObservedNode]) -> Result<(), Error> {
    if roles.is_empty() {
        return Ok(());
    }
    if !is_direct && queue::is_up(nodes, target.cluster())? {
        refuse_own_nodes(roles)?;
    }
    fit_roles(target, nodes, roles).map(drop)
}

/// Checks that hvdctl may choose the nodes of a job, as far as that is known before a node is contacted.
///
/// # Errors
/// A site's Slurm chooses them.
pub fn check_choice(cluster: &Cluster) -> Result<(), Error> {
    if cluster.can().choose_nodes {
        return Ok(());
    }
    let hint = "leave out --best; --sbatch=--constraint=… chooses nodes by their features";
    Err(Error::usage("--best: Slurm chooses the nodes of a job", hint))
}
