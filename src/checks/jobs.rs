//! What ended jobs have left behind, and who else uses the GPUs.

use super::{Finding, Fix, NodeView};
use crate::inventory::Inventory;
use crate::node::facts::{Gpu, Rank};
use crate::runtime::container::ContainerSummary;
use crate::runtime::spec::Role;
use crate::worker::plan::{self, Operation};
use std::collections::{BTreeMap, BTreeSet};

pub(super) fn examine(inventory: &Inventory, views: &[NodeView<'_>]) -> Vec<Finding> {
    let jobs = Jobs::new(&inventory.cluster.name, views);
    let mut found: Vec<Finding> = launchers(jobs.cluster, views, true)
        .map(|(view, container)| {
            Finding::note("run", view.name(), format!("job {} is running", container.job().unwrap_or("unknown")))
        })
        .collect();
    found.extend(launchers(jobs.cluster, views, false).map(|(view, container)| ended_launcher(view, container)));
    found.extend(views.iter().flat_map(|view| jobs.orphaned_containers(view)));
    for view in views {
        found.extend(jobs.orphaned_ranks(view));
        found.extend(jobs.strangers(view));
    }
    found
}

/// The launchers' containers that are up, or not.
fn launchers<'a>(
    cluster: &'a str,
    views: &'a [NodeView<'a>],
    up: bool,
) -> impl Iterator<Item = (&'a NodeView<'a>, &'a ContainerSummary)> {
    let wanted = move |c: &&ContainerSummary| c.belongs_to(cluster) && c.is(Role::Master) && c.state.is_up() == up;
    views.iter().flat_map(move |view| view.containers().iter().filter(wanted).map(move |c| (view, c)))
}

fn ended_launcher(view: &NodeView<'_>, container: &ContainerSummary) -> Finding {
    let (job, name) = (container.job().unwrap_or("unknown"), &container.name);
    let fix = Fix::RemoveContainer { node: view.name().into(), name: name.clone(), id: container.id.clone() };
    Finding::warning("stale", view.name(), format!("{name} of the ended job {job} still exists"))
        .why("the hvdctl that started the job was killed before it cleaned up, and ranks may be left elsewhere")
        .cure("hvdctl doctor --fix removes it, and so does the next job")
        .fix(fix)
}

/// What is known of the cluster's jobs.
struct Jobs<'a> {
    cluster: &'a str,
    /// The jobs whose launcher is up.
    running: BTreeSet<&'a str>,
    /// Whether the master was observed, where launchers run: only then is it known that a job has ended.
    all_known: bool,
}

impl<'a> Jobs<'a> {
    fn new(cluster: &'a str, views: &'a [NodeView<'a>]) -> Jobs<'a> {
        Jobs {
            cluster,
            running: launchers(cluster, views, true).map(|(_, c)| c.job().unwrap_or("unknown")).collect(),
            all_known: views.iter().any(|view| view.node.master && view.engine.is_some()),
        }
    }

    /// Workers of ended jobs, and containers of shells that were never started.
    fn orphaned_containers(&self, view: &NodeView<'_>) -> Vec<Finding> {
        let is_open = |job: &str| {
            let open = view.facts.open_jobs.iter().any(|open| open == job);
            open && (!self.all_known || self.running.contains(job) || view.starting.iter().any(|other| other == job))
        };
        let workers = plan::orphaned_workers(self.cluster, view.containers(), &view.facts.ranks, is_open);
        let shells = plan::orphaned_shells(self.cluster, view.containers(), view.facts.clock);
        let of_job = ("the worker of an ended job", "neither the job supervisor nor an hvdctl lived to remove it");
        let of_shell = ("the container of a shell, was never started", "the hvdctl that created it was killed");
        let orphaned = workers.into_iter().map(|o| (o, of_job)).chain(shells.into_iter().map(|o| (o, of_shell)));
        let finding = |(operation, (what, why))| match operation {
            Operation::Remove { name, id, .. } => {
                let seen = format!("{name}, {what}");
                let fix = Fix::RemoveContainer { node: view.name().into(), name, id };
                let cure = "hvdctl doctor --fix removes it, and so do up and the next job";
                Some(Finding::warning("stale", view.name(), seen).why(why).cure(cure).fix(fix))
            }
            _ => None,
        };
        orphaned.filter_map(finding).collect()
    }

    /// Ranks of jobs whose launcher is not up.
    fn orphaned_ranks(&self, view: &NodeView<'_>) -> Vec<Finding> {
        let mut orphaned: BTreeMap<&str, usize> = BTreeMap::new();
        // a process that nothing ends has a finding of its own
        let unending: Vec<&Rank> = view.facts.unending().collect();
        let can_end = |rank: &&Rank| !unending.contains(rank) && !self.running.contains(rank.job.as_str());
        for rank in ranks(view, self.cluster).filter(can_end) {
            *orphaned.entry(&rank.job).or_default() += 1;
        }
        let finding = |(job, processes): (&str, usize)| {
            let plural = if processes == 1 { "" } else { "es" };
            let seen = format!("{processes} process{plural} of job {job}, whose launcher is not up");
            if self.all_known {
                return Finding::error("stale", view.name(), seen)
                    .why("orphaned ranks keep the GPUs' memory, and the next job fails or is slow")
                    .cure("hvdctl doctor --fix ends them")
                    .fix(Fix::EndJob { node: view.name().into(), job: job.into() });
            }
            Finding::note("stale", view.name(), seen)
                .why("the master was not observed, so the job may be running")
                .cure("run hvdctl doctor with the master among the nodes")
        };
        orphaned.into_iter().map(finding).collect()
    }

    /// Programs on the GPUs that belong to none of the cluster's jobs.
    fn strangers(&self, view: &NodeView<'_>) -> Option<Finding> {
        let details = view.details?;
        let left = |job: &str| ranks(view, self.cluster).any(|rank| rank.job == job);
        let others = details
            .gpu_users
            .iter()
            .filter(|user| user.job.as_deref().is_none_or(|job| !self.running.contains(job) && !left(job)));
        let users: Vec<String> = others
            .map(|user| {
                let gpu = view.facts.gpus.iter().find(|gpu: &&Gpu| gpu.uuid == user.uuid);
                let gpu = gpu.map_or_else(|| user.uuid.clone(), |gpu| format!("GPU {}", gpu.index));
                let memory = user.memory.map_or_else(String::new, |memory| format!(" with {memory} MiB"));
                format!("{} (process {} of {}) on {gpu}{memory}", user.program, user.pid, user.user)
            })
            .collect();
        (!users.is_empty()).then(|| {
            Finding::warning("gpu-users", view.name(), format!("others use its GPUs: {}", users.join("; ")))
                .why("a job shares memory and time with them, may run out of memory, and slows every rank down")
                .cure("ask their users, or leave this node out with --on")
        })
    }
}

/// The processes of this cluster's jobs.
fn ranks<'a>(view: &'a NodeView<'_>, cluster: &'a str) -> impl Iterator<Item = &'a Rank> {
    view.facts.ranks.iter().filter(move |rank| rank.cluster.as_deref() == Some(cluster))
}
