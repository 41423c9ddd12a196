//! Jobs that a plan would disrupt: their ranks live in a worker that would be replaced.

use super::Operation;
use crate::node::facts::{Facts, Rank};
use crate::runtime::container::ContainerSummary;
use crate::runtime::spec::Role;
use std::collections::{BTreeMap, BTreeSet};

/// A node's observed state and what is planned there.
#[derive(Debug, Clone, Copy)]
pub struct NodePlan<'a> {
    /// Its name.
    pub name: &'a str,
    /// What it says of ranks and runs.
    pub facts: &'a Facts,
    /// Its containers.
    pub containers: &'a [ContainerSummary],
    /// What is planned there.
    pub operations: &'a [Operation],
}

impl NodePlan<'_> {
    /// The jobs of this cluster whose launcher is up here; this node's ranks run in `hmaster`, and not in the worker.
    fn launches<'a>(&'a self, cluster: &'a str) -> impl Iterator<Item = &'a str> {
        let up = move |c: &&ContainerSummary| c.belongs_to(cluster) && c.is(Role::Master) && c.state.is_up();
        self.containers.iter().filter(up).filter_map(ContainerSummary::job)
    }

    /// The workers that are up and would be removed.
    fn loses(&self) -> Vec<&ContainerSummary> {
        let removed = |c: &&ContainerSummary| {
            self.operations.iter().any(|o| matches!(o, Operation::Remove { id, .. } if *id == c.id))
        };
        let workers = self.containers.iter().filter(|c| c.is(Role::Worker) && c.state.is_up());
        workers.filter(removed).collect()
    }

    /// Whether a job has anything here: ranks, its record, or its launcher.
    pub fn has_job(&self, cluster: &str, job: &str) -> bool {
        self.facts.ranks.iter().any(|rank| rank.job == job)
            || self.facts.open_jobs.iter().any(|run| run == job)
            || self.launches(cluster).any(|run| run == job)
    }
}

/// Returns the jobs that would lose a worker, each with the nodes where. A rank that lives in the worker counts, and so does a job
/// that is about to start ranks there: its launcher is up, and its record is on the node.
pub fn disrupted_jobs(cluster: &str, nodes: &[NodePlan<'_>]) -> BTreeMap<String, Vec<String>> {
    let launched: BTreeSet<&str> = nodes.iter().flat_map(|node| node.launches(cluster)).collect();
    let mut found: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for node in nodes {
        let workers = node.loses();
        if workers.is_empty() {
            continue;
        }
        let here: BTreeSet<&str> = node.launches(cluster).collect();
        let in_them = node.facts.ranks.iter().filter(|rank| !rank.killed).filter(|rank| match &rank.container {
            Some(container) => workers.iter().any(|worker| worker.id == *container),
            None => !here.contains(rank.job.as_str()),
        });
        // a worker of a single job is nobody else's
        let concerned = |run: &&str| workers.iter().any(|worker| worker.job().is_none_or(|job| job == *run));
        let open = node.facts.open_jobs.iter().map(String::as_str);
        let goes_on = |run: &&str| launched.contains(run) || node.facts.under_way.iter().any(|known| known == run);
        let about_to = open.filter(goes_on).filter(concerned);
        let runs: BTreeSet<&str> =
            in_them.map(|rank| rank.job.as_str()).chain(about_to.filter(|run| !here.contains(run))).collect();
        for run in runs {
            found.entry(run.to_owned()).or_default().push(node.name.to_owned());
        }
    }
    found
}

/// The removal of workers of single jobs that have ended: whoever should have removed them did not live to do it. Where ranks are
/// left, their end comes first.
pub fn orphaned_workers(
    cluster: &str,
    containers: &[ContainerSummary],
    ranks: &[Rank],
    is_open: impl Fn(&str) -> bool,
) -> Vec<Operation> {
    let goes_on = |job: &str| is_open(job) || ranks.iter().any(|rank| rank.job == job);
    let workers = containers.iter().filter(|c| c.belongs_to(cluster) && c.is(Role::Worker));
    let left = workers.filter(|c| c.job().is_some_and(|job| !goes_on(job)));
    left.map(|c| Operation::Remove { name: c.name.clone(), id: c.id.clone(), why: vec!["its job has ended".into()] })
        .collect()
}
