//! Containers and processes of ended jobs, and other users of the GPUs.

use super::Severity::Warning;
use super::{Check, Finding, Fix, GpuUser, NodeView};
use crate::inventory::Inventory;
use crate::node::jobs::Rank;
use crate::runtime::container::{ContainerState, ContainerSummary, launchers};
use crate::text::units::count;
use crate::worker::plan::{self, Operation};
use std::collections::{BTreeMap, BTreeSet};

pub(super) fn examine(inventory: &Inventory, views: &[NodeView<'_>]) -> Vec<Finding> {
    let cluster = inventory.cluster.name.as_str();
    let running = views.iter().flat_map(|view| launchers(cluster, view.containers)).filter(|c| c.state.is_up());
    let jobs = ClusterJobs {
        cluster,
        running: running.filter_map(ContainerSummary::job).collect(),
        all_known: views.iter().any(|view| view.node.master && view.engine.is_some()),
    };
    let mut found = Vec::new();
    for view in views {
        found.extend(view.unreadable.iter().map(|(job, reason)| unreadable(view, job, reason)));
        found.extend(jobs.stale_containers(view));
        found.extend(jobs.orphaned_ranks(view));
        found.extend(jobs.strangers(view));
    }
    found
}

/// An open job that counts as running and has the node exclusively.
fn unreadable(view: &NodeView<'_>, job: &str, reason: &str) -> Finding {
    view.warning(Check::Jobs, format!("the record of job {job} cannot be read: {reason}")).explain(
        "no other job can use the node while this job may be running there",
        format!("use the version of hvdctl that started it; if it has ended, hvdctl stop {job} removes what is left"),
    )
}

/// The jobs of the cluster.
struct ClusterJobs<'a> {
    cluster: &'a str,
    /// The jobs whose launcher is up.
    running: BTreeSet<&'a str>,
    /// Set if the master was observed, where launchers run: only then is it known that a job has ended.
    all_known: bool,
}

impl ClusterJobs<'_> {
    /// Launchers that stopped while their job was open, workers that run for ended jobs, and containers of shells that
    /// were never started. Other containers that have exited are no fault: the newest with files of its job is kept,
    /// and the next job removes the others.
    fn stale_containers(&self, view: &NodeView<'_>) -> Vec<Finding> {
        let stale = |name: &str, id: &str, message: String, why: &str| {
            Finding::new(Warning, Check::Stale, view.name(), message)
                .explain(why, "`hvdctl doctor --fix` removes it, and so does the next job")
                .fix(Fix::RemoveContainer { name: name.into(), id: id.into() })
        };
        let is_recorded = |job: &str| view.facts.jobs.recorded.iter().any(|recorded| recorded.id == job);
        let has_ended = |c: &ContainerSummary| c.state == ContainerState::Exited && !c.job().is_some_and(is_recorded);
        let is_stopped = |c: &&ContainerSummary| !c.state.is_up() && !has_ended(c) && c.check_format().is_ok();
        let stopped = launchers(self.cluster, view.containers).filter(is_stopped).map(|container| {
            let (name, job) = (&container.name, container.job().unwrap_or("unknown"));
            let why = "the job supervisor was killed before it cleaned up; other nodes may have orphaned ranks";
            stale(name, &container.id, format!("{name} of the ended job {job} still exists"), why)
        });
        let is_open = |job: &str| {
            let open = view.open.has(job);
            open && (!self.all_known || self.running.contains(job) || view.starting.iter().any(|other| other == job))
        };
        let up: Vec<ContainerSummary> = view.containers.iter().filter(|c| c.state.is_up()).cloned().collect();
        let workers = plan::ended_containers(self.cluster, &up, &view.facts.jobs, is_open);
        let of_job = ("the worker of an ended job", "the job supervisor was killed before it removed it");
        let shells = plan::orphaned_shells(self.cluster, view.containers, view.facts.clock);
        let of_shell = ("the container of a shell that was never started", "the hvdctl that created it was killed");
        let orphaned = workers.iter().map(|o| (o, of_job)).chain(shells.iter().map(|o| (o, of_shell)));
        let orphaned = orphaned.filter_map(|(operation, (what, why))| match operation {
            Operation::Remove { name, id, .. } => Some(stale(name, id, format!("{name} is {what}"), why)),
            _ => None,
        });
        stopped.chain(orphaned).collect()
    }

    /// Ranks of jobs whose launcher is not running.
    fn orphaned_ranks(&self, view: &NodeView<'_>) -> Vec<Finding> {
        if !self.all_known {
            return Vec::new();
        }
        // a process that nothing ends has a finding of its own
        let unending: Vec<&Rank> = view.unending().collect();
        let mut orphaned: BTreeMap<&str, usize> = BTreeMap::new();
        for rank in self.ranks(view).filter(|rank| !unending.contains(rank)) {
            *orphaned.entry(&rank.job).or_default() += 1;
        }
        let is_unreadable = |job: &str| view.unreadable.iter().any(|(unreadable, _)| unreadable == job);
        orphaned.retain(|job, _| !self.running.contains(job) && !is_unreadable(job));
        let finding = |(job, processes): (&str, usize)| {
            let processes = count(processes, "process");
            view.error(Check::Stale, format!("{processes} of job {job}, whose launcher is not running"))
                .explain(
                    "orphaned ranks hold GPU memory, and the next job fails or is slow",
                    "`hvdctl doctor --fix` ends them",
                )
                .fix(Fix::EndJob(job.into()))
        };
        orphaned.into_iter().map(finding).collect()
    }

    /// Finds processes that use GPUs and belong to no job of the cluster.
    fn strangers(&self, view: &NodeView<'_>) -> Option<Finding> {
        let is_ours = |job: &str| self.running.contains(job) || self.ranks(view).any(|rank| rank.job == job);
        let user = |user: &GpuUser| {
            let gpu = view.facts.gpus.iter().find(|gpu| gpu.uuid == user.uuid);
            let gpu = gpu.map_or_else(|| user.uuid.clone(), |gpu| format!("GPU {}", gpu.index));
            let memory = user.memory.map_or_else(String::new, |memory| format!(" with {memory} MiB"));
            format!("{} (process {} of {}) on {gpu}{memory}", user.program, user.pid, user.user)
        };
        let others = view.details.as_ref()?.gpu_users.iter().filter(|user| !user.job.as_deref().is_some_and(is_ours));
        let users: Vec<String> = others.map(user).collect();
        (!users.is_empty()).then(|| {
            view.warning(Check::GpuUsers, format!("other programs use its GPUs: {}", users.join("; "))).explain(
                "a job shares the GPUs with them: it may run out of memory, and one slow rank slows down all ranks",
                "ask their users to end them, or exclude this node with --on",
            )
        })
    }

    /// The processes of this cluster's jobs.
    fn ranks<'b>(&self, view: &'b NodeView<'_>) -> impl Iterator<Item = &'b Rank> {
        view.facts.jobs.ranks.iter().filter(|rank| rank.cluster.as_deref() == Some(self.cluster))
    }
}
