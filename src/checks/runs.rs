//! What ended runs have left behind, and who else uses the GPUs.

use super::{Finding, Fix, Look};
use crate::inventory::Inventory;
use crate::node::facts::{Gpu, Rank};
use crate::runtime::spec::Role;
use crate::worker::plan::{self, Operation};
use std::collections::{BTreeMap, BTreeSet};

pub(super) fn examine(inventory: &Inventory, looks: &[Look<'_>]) -> Vec<Finding> {
    let cluster = &inventory.cluster.name;
    let launchers = |up: bool| {
        looks.iter().flat_map(move |look| {
            let containers = look.engine.map_or(&[][..], |engine| engine.containers);
            let wanted = move |c: &&crate::runtime::container::ContainerSummary| {
                c.belongs_to(cluster) && c.is(Role::Master) && c.state.is_up() == up
            };
            containers.iter().filter(wanted).map(move |c| (look, c))
        })
    };
    let mut found = Vec::new();
    let mut under_way = BTreeSet::new();
    for (look, container) in launchers(true) {
        let job = container.job().unwrap_or("unknown");
        under_way.insert(job);
        found.push(Finding::note("run", look.name(), format!("the run {job} is under way")));
    }
    for (look, container) in launchers(false) {
        let (job, name) = (container.job().unwrap_or("unknown"), &container.name);
        let fix = Fix::RemoveContainer { node: look.name().into(), name: name.clone(), id: container.id.clone() };
        found.push(
            Finding::warning("stale", look.name(), format!("{name} of the ended run {job} is left"))
                .why("the hvdctl that started the run did not live to clean up after it, and ranks may be left elsewhere")
                .cure("hvdctl doctor --fix removes it, and so does the next run")
                .fix(fix),
        );
    }
    // whether a run is over is known where its launcher would be
    let launcher_seen = |look: &Look<'_>| look.node.master && look.engine.is_some();
    let all_known = looks.iter().any(launcher_seen);
    for look in looks {
        let containers = look.engine.map_or(&[][..], |engine| engine.containers);
        let is_open = |run: &str| {
            let begun = look.facts.open_runs.iter().any(|open| open == run);
            begun && (!all_known || under_way.contains(run) || look.starting.iter().any(|job| job == run))
        };
        let workers = plan::left_over(cluster, containers, &look.facts.ranks, is_open);
        let shells = plan::left_shells(cluster, containers, look.facts.clock);
        let of_run = (
            "the worker of a run that has ended, is left",
            "neither the run's keeper nor an hvdctl lived to remove it",
        );
        let of_shell =
            ("the container of a shell, was never started", "the hvdctl that made it did not live to start it");
        let left = workers.into_iter().map(|o| (o, of_run)).chain(shells.into_iter().map(|o| (o, of_shell)));
        for (operation, (what, why)) in left {
            let Operation::Remove { name, id, .. } = operation else { continue };
            let fix = Fix::RemoveContainer { node: look.name().into(), name: name.clone(), id };
            found.push(
                Finding::warning("stale", look.name(), format!("{name}, {what}"))
                    .why(why)
                    .cure("hvdctl doctor --fix removes it, and so do up and the next run")
                    .fix(fix),
            );
        }
    }
    for look in looks {
        let mut left: BTreeMap<&str, usize> = BTreeMap::new();
        // what nothing ends is told as such
        let unending: Vec<&Rank> = look.facts.unending().collect();
        let can_end = |rank: &&Rank| !unending.contains(rank) && !under_way.contains(rank.job.as_str());
        for rank in ranks(look, cluster).filter(can_end) {
            *left.entry(&rank.job).or_default() += 1;
        }
        for (job, processes) in left {
            let plural = if processes == 1 { "" } else { "es" };
            let seen = format!("{processes} process{plural} of the run {job}, whose launcher is not up");
            let why = "ranks that nobody waits for keep the GPUs' memory, and the next run fails or is slow";
            found.push(if all_known {
                Finding::error("stale", look.name(), seen)
                    .why(why)
                    .cure("hvdctl doctor --fix ends them")
                    .fix(Fix::EndRun { node: look.name().into(), job: job.into() })
            } else {
                Finding::note("stale", look.name(), seen)
                    .why("the master was not seen, so the run may be under way")
                    .cure("hvdctl doctor with the master among the nodes")
            });
        }
        found.extend(strangers(look, cluster, &under_way));
    }
    found
}

/// The processes of this cluster's runs.
fn ranks<'a>(look: &'a Look<'_>, cluster: &'a str) -> impl Iterator<Item = &'a Rank> {
    look.facts.ranks.iter().filter(move |rank| rank.cluster.as_deref() == Some(cluster))
}

/// Programs on the GPUs that are none of the cluster's runs.
fn strangers(look: &Look<'_>, cluster: &str, under_way: &BTreeSet<&str>) -> Option<Finding> {
    let details = look.details?;
    let left = |job: &str| ranks(look, cluster).any(|rank| rank.job == job);
    let others = details
        .gpu_users
        .iter()
        .filter(|user| user.job.as_deref().is_none_or(|job| !under_way.contains(job) && !left(job)));
    let told: Vec<String> = others
        .map(|user| {
            let gpu = look.facts.gpus.iter().find(|gpu: &&Gpu| gpu.uuid == user.uuid);
            let gpu = gpu.map_or_else(|| user.uuid.clone(), |gpu| format!("GPU {}", gpu.index));
            let memory = user.memory.map_or_else(String::new, |memory| format!(" with {memory} MiB"));
            format!("{} (process {} of {}) on {gpu}{memory}", user.program, user.pid, user.user)
        })
        .collect();
    (!told.is_empty()).then(|| {
        Finding::warning("gpu-users", look.name(), format!("others use its GPUs: {}", told.join("; ")))
            .why("a run shares memory and time with them, may run out of memory, and slows every rank down")
            .cure("ask their users, or leave this node out with --on")
    })
}
