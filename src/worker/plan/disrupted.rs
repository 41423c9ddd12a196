//! Jobs that a plan would disrupt, because their ranks run in a worker that would be replaced.

use super::Operation;
use crate::node::jobs::{OpenJobs, Rank};
use crate::runtime::container::ContainerSummary;
use crate::runtime::spec::Role;
use std::collections::{BTreeMap, BTreeSet};

/// A node's observed state and what is planned there.
#[derive(Debug, Clone, Copy)]
pub struct NodePlan<'a> {
    /// Its name.
    pub name: &'a str,
    /// The processes of jobs on it.
    pub ranks: &'a [Rank],
    /// Its open jobs.
    pub open: &'a OpenJobs,
    /// Its containers.
    pub containers: &'a [ContainerSummary],
    /// The operations that are planned there.
    pub operations: &'a [Operation],
}

impl NodePlan<'_> {
    /// Returns the jobs of this cluster whose launcher is up here. Their ranks on this node run in `hmaster` and not in
    /// the worker.
    fn launched_jobs<'a>(&'a self, cluster: &'a str) -> BTreeSet<&'a str> {
        let is_up = |c: &&ContainerSummary| c.belongs_to(cluster) && c.is(Role::Master) && c.state.is_up();
        self.containers.iter().filter(is_up).filter_map(ContainerSummary::job).collect()
    }

    /// Returns the workers that are up and would be removed.
    fn lost_workers(&self) -> Vec<&ContainerSummary> {
        let removed = |c: &ContainerSummary| {
            self.operations.iter().any(|o| matches!(o, Operation::Remove { id, .. } if *id == c.id))
        };
        self.containers.iter().filter(|c| c.is(Role::Worker) && c.state.is_up() && removed(c)).collect()
    }

    /// Returns whether a job has anything here: ranks, its record, or its launcher.
    pub fn has_job(&self, cluster: &str, job: &str) -> bool {
        self.ranks.iter().any(|rank| rank.job == job) || self.open.has(job) || self.launched_jobs(cluster).contains(job)
    }
}

/// Returns the jobs that would lose a worker, each with the nodes where. A rank that runs in the worker counts, and so
/// does a job that is about to start ranks there: its launcher is up, and its record is on the node.
pub fn disrupted_jobs(cluster: &str, nodes: &[NodePlan<'_>]) -> BTreeMap<String, Vec<String>> {
    let launched: BTreeSet<&str> = nodes.iter().flat_map(|node| node.launched_jobs(cluster)).collect();
    let mut disrupted: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for node in nodes {
        let (workers, launched_here) = (node.lost_workers(), node.launched_jobs(cluster));
        let has_rank_in_worker = |rank: &&Rank| match &rank.container {
            Some(container) => workers.iter().any(|worker| worker.id == *container),
            None => !launched_here.contains(rank.job.as_str()),
        };
        let ranks = node.ranks.iter().filter(|rank| !rank.killed).filter(has_rank_in_worker);
        let is_starting = |job: &&str| {
            let is_in_progress = launched.contains(job) || node.open.is_under_way(job);
            // the worker of a single job concerns no other
            let is_concerned = workers.iter().any(|worker| worker.job().is_none_or(|own| own == *job));
            is_in_progress && is_concerned && !launched_here.contains(job)
        };
        let starting = node.open.jobs.iter().map(|job| job.id.as_str()).filter(is_starting);
        let jobs: BTreeSet<&str> = ranks.map(|rank| rank.job.as_str()).chain(starting).collect();
        for job in jobs.into_iter().filter(|_| !workers.is_empty()) {
            disrupted.entry(job.to_owned()).or_default().push(node.name.to_owned());
        }
    }
    disrupted
}
