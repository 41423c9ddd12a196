//! Containers and processes of ended jobs, and other users of the GPUs.

use super::Severity::{Error, Warning};
use super::{Finding, Fix, NodeView};
use crate::inventory::Inventory;
use crate::node::facts::Rank;
use crate::runtime::container::{ContainerSummary, launchers};
use crate::text::units::count;
use crate::worker::plan::{self, Operation};
use std::collections::{BTreeMap, BTreeSet};

pub(super) fn examine(inventory: &Inventory, views: &[NodeView<'_>]) -> Vec<Finding> {
    let cluster = inventory.cluster.name.as_str();
    let running = views.iter().flat_map(|view| launchers(cluster, view.containers())).filter(|c| c.state.is_up());
    let jobs = Jobs {
        cluster,
        running: running.filter_map(ContainerSummary::job).collect(),
        all_known: views.iter().any(|view| view.node.master && view.engine.is_some()),
    };
    let mut found = Vec::new();
    for view in views {
        for container in launchers(cluster, view.containers()).filter(|c| !c.state.is_up()) {
            let (job, name) = (container.job().unwrap_or("unknown"), &container.name);
            let message = format!("{name} of the ended job {job} still exists");
            let why = "the job supervisor was killed before it cleaned up; other nodes may have orphaned ranks";
            found.push(stale(view, name, &container.id, message, why));
        }
        found.extend(jobs.orphaned_containers(view));
        found.extend(jobs.orphaned_ranks(view));
        found.extend(jobs.strangers(view));
    }
    found
}

/// The finding for a container that is no longer needed.
fn stale(view: &NodeView<'_>, name: &str, id: &str, message: String, why: &str) -> Finding {
    Finding::new(Warning, "stale", view.name(), message)
        .explain(why, "hvdctl doctor --fix removes it, and so does the next job")
        .fix(Fix::RemoveContainer { node: view.name().into(), name: name.into(), id: id.into() })
}

/// The jobs of the cluster.
struct Jobs<'a> {
    cluster: &'a str,
    /// The jobs whose launcher is up.
    running: BTreeSet<&'a str>,
    /// Whether the master was observed, where launchers run: only then is it known that a job has ended.
    all_known: bool,
}

impl Jobs<'_> {
    /// Workers of ended jobs, and containers of shells that were never started.
    fn orphaned_containers(&self, view: &NodeView<'_>) -> Vec<Finding> {
        let is_open = |job: &str| {
            let open = view.facts.open_jobs.iter().any(|open| open == job);
            open && (!self.all_known || self.running.contains(job) || view.starting.iter().any(|other| other == job))
        };
        let workers = plan::orphaned_workers(self.cluster, view.containers(), &view.facts.ranks, is_open);
        let shells = plan::orphaned_shells(self.cluster, view.containers(), view.facts.clock);
        let of_job = ("the worker of an ended job", "the job supervisor was killed before it removed it");
        let of_shell = ("the container of a shell that was never started", "the hvdctl that created it was killed");
        let orphaned = workers.into_iter().map(|o| (o, of_job)).chain(shells.into_iter().map(|o| (o, of_shell)));
        let finding = |(operation, (what, why))| match operation {
            Operation::Remove { name, id, .. } => Some(stale(view, &name, &id, format!("{name} is {what}"), why)),
            _ => None,
        };
        orphaned.filter_map(finding).collect()
    }

    /// Ranks of jobs whose launcher is not running.
    fn orphaned_ranks(&self, view: &NodeView<'_>) -> Vec<Finding> {
        let mut orphaned: BTreeMap<&str, usize> = BTreeMap::new();
        // a process that nothing ends has a finding of its own
        let unending: Vec<&Rank> = view.facts.unending().collect();
        let can_end = |rank: &&Rank| !unending.contains(rank) && !self.running.contains(rank.job.as_str());
        for rank in self.ranks(view).filter(can_end).filter(|_| self.all_known) {
            *orphaned.entry(&rank.job).or_default() += 1;
        }
        let finding = |(job, processes): (&str, usize)| {
            let processes = count(processes, "process");
            let message = format!("{processes} of job {job}, whose launcher is not running");
            Finding::new(Error, "stale", view.name(), message)
                .explain(
                    "orphaned ranks hold GPU memory, and the next job fails or is slow",
                    "hvdctl doctor --fix ends them",
                )
                .fix(Fix::EndJob { node: view.name().into(), job: job.into() })
        };
        orphaned.into_iter().map(finding).collect()
    }

    /// Finds processes that use GPUs and belong to no job of the cluster.
    fn strangers(&self, view: &NodeView<'_>) -> Option<Finding> {
        let is_ours = |job: &str| self.running.contains(job) || self.ranks(view).any(|rank| rank.job == job);
        let others = view.details?.gpu_users.iter().filter(|user| !user.job.as_deref().is_some_and(is_ours));
        let users: Vec<String> = others
            .map(|user| {
                let gpu = view.facts.gpus.iter().find(|gpu| gpu.uuid == user.uuid);
                let gpu = gpu.map_or_else(|| user.uuid.clone(), |gpu| format!("GPU {}", gpu.index));
                let memory = user.memory.map_or_else(String::new, |memory| format!(" with {memory} MiB"));
                format!("{} (process {} of {}) on {gpu}{memory}", user.program, user.pid, user.user)
            })
            .collect();
        (!users.is_empty()).then(|| {
            Finding::new(
                Warning,
                "gpu-users",
                view.name(),
                format!("other programs use its GPUs: {}", users.join("; ")),
            )
            .explain(
                "a job shares the GPUs with them: it may run out of memory, and one slow rank slows down all ranks",
                "ask their users to end them, or exclude this node with --on",
            )
        })
    }

    /// The processes of this cluster's jobs.
    fn ranks<'b>(&self, view: &'b NodeView<'_>) -> impl Iterator<Item = &'b Rank> {
        view.facts.ranks.iter().filter(|rank| rank.cluster.as_deref() == Some(self.cluster))
    }
}
