//! Containers of jobs that have ended. They do not remove themselves, because files that a job wrote in its container
//! may be the only copy of its results: the newest container with such files is kept, and the others go with the next
//! job or `up`.

use super::{Operation, remove};
use crate::node::jobs::NodeJobs;
use crate::runtime::container::{ContainerState, ContainerSummary};
use crate::runtime::spec::Role;
use std::collections::BTreeSet;

/// Returns the container of an ended job that is kept for `fetch --from-container`: the newest one of this cluster
/// whose job has written files outside the mounts. `outside`: these jobs.
pub fn kept<'a>(
    cluster: &str,
    containers: &'a [ContainerSummary],
    outside: &BTreeSet<String>,
) -> Option<&'a ContainerSummary> {
    let has_files = |c: &&ContainerSummary| c.job().is_some_and(|job| outside.contains(job));
    exited(cluster, containers).filter(has_files).max_by_key(|c| c.created)
}

/// Returns the containers of this cluster's jobs that have exited.
pub fn exited<'a>(cluster: &str, containers: &'a [ContainerSummary]) -> impl Iterator<Item = &'a ContainerSummary> {
    of_jobs(cluster, containers).filter(|c| c.state == ContainerState::Exited)
}

fn of_jobs<'a>(cluster: &str, containers: &'a [ContainerSummary]) -> impl Iterator<Item = &'a ContainerSummary> {
    let is_ours = move |c: &&ContainerSummary| {
        let has_role = c.is(Role::Master) || c.is(Role::Worker);
        has_role && c.job().is_some() && c.belongs_to(cluster) && c.check_format().is_ok()
    };
    containers.iter().filter(is_ours)
}

/// Returns the removal of the containers of jobs that have ended, except the one that is kept: launchers that have
/// exited, and workers of single jobs, also such as run because the command that should have ended them was killed. A
/// worker whose job has ranks stays.
pub fn ended_containers(
    cluster: &str,
    containers: &[ContainerSummary],
    jobs: &NodeJobs,
    is_open: impl Fn(&str) -> bool,
) -> Vec<Operation> {
    let kept = kept(cluster, containers, &jobs.outside).map(|kept| &kept.id);
    let has_ended = |job: &str| !is_open(job) && jobs.ranks.iter().all(|rank| rank.job != job);
    let is_over = |c: &&ContainerSummary| match c.is(Role::Master) {
        true => c.state == ContainerState::Exited,
        false => c.job().is_some_and(has_ended),
    };
    let ended = of_jobs(cluster, containers).filter(|c| Some(&c.id) != kept).filter(is_over);
    ended.map(|c| remove(c, vec!["its job has ended".into()])).collect()
}
