//! Observed against desired: the operations that make a node's worker what it should be.
//!
//! `up`, `up --dry-run`, `status`, `doctor`, `train`, `verify` and `down` all read from here, so that a dry run cannot lie.

mod disrupted;
#[cfg(test)]
mod tests;

use crate::inventory::Cluster;
use crate::node::facts::Span;
use crate::runtime::container::{ContainerState, ContainerSummary};
use crate::runtime::spec::{ContainerSpec, LABEL_CLUSTER, LABEL_SPEC, LABEL_SPEC_FULL, LABEL_WORKSPACE, Role};

use std::fmt;

pub use disrupted::{NodePlan, disrupted_jobs, orphaned_workers};

/// A shell that was made so many seconds ago and does not run will not be started any more.
const ABOUT_TO_START: f64 = 120.0;

/// What the workspace of a worker has to be.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Workspace {
    /// Whatever was mounted last; `up` does not care.
    Any,
    /// Exactly what the desired container says.
    AsDesired,
    /// The same, and its directory was made anew, so that an old mount shows nothing of it.
    Renewed,
}

/// One step on one node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Operation {
    /// Remove a container of ours.
    Remove {
        /// Its name, for people.
        name: String,
        /// Its id, which is what is removed.
        id: String,
        /// Why.
        why: Vec<String>,
    },
    /// Make the desired container and start it.
    Create(Box<ContainerSpec>),
    /// Start one that has ended.
    Start {
        /// Its name.
        name: String,
    },
    /// Let one go on that was paused.
    Unpause {
        /// Its name.
        name: String,
    },
}

impl fmt::Display for Operation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Operation::Remove { name, why, .. } => write!(f, "remove {name} ({})", why.join(", ")),
            Operation::Create(desired) => write!(f, "start {}{}", desired.name, with(desired)),
            Operation::Start { name } => write!(f, "start {name} again (stopped)"),
            Operation::Unpause { name } => write!(f, "unpause {name}"),
        }
    }
}

fn with(desired: &ContainerSpec) -> String {
    desired.workspace.as_ref().map(|workspace| format!(" with {workspace}")).unwrap_or_default()
}

/// Formats a node's operations, one text each. Removing and creating the same container reads `recreate`.
pub fn describe(operations: &[Operation]) -> Vec<String> {
    let created = |name: &str| {
        operations.iter().find_map(|o| match o {
            Operation::Create(desired) if desired.name == name => Some(desired),
            _ => None,
        })
    };
    let removed = |of: &str| operations.iter().any(|o| matches!(o, Operation::Remove { name, .. } if name == of));
    let texts = operations.iter().filter_map(|operation| match operation {
        Operation::Remove { name, why, .. } => Some(created(name).map_or_else(
            || operation.to_string(),
            |desired| format!("recreate {name}{} ({})", with(desired), why.join(", ")),
        )),
        Operation::Create(desired) if removed(&desired.name) => None,
        other => Some(other.to_string()),
    });
    texts.collect()
}

/// Formats what is done on a node as one line.
pub fn summarize(steps: &[String]) -> String {
    if steps.is_empty() { "unchanged".to_owned() } else { steps.join(", ") }
}

/// A container that has the name we need and is not ours.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("a container named {name} is there already and {}", match .cluster {
    Some(cluster) => format!("belongs to the cluster {cluster}"),
    None => "was not made by hvdctl".to_owned(),
})]
pub struct Foreign {
    /// The name that is taken.
    pub name: String,
    /// Another hvdctl cluster that it belongs to.
    pub cluster: Option<String>,
}

/// The operations that bring a node's worker to the desired state; empty when it is there.
///
/// # Errors
/// [`Foreign`] when the name is taken by a container that is not this cluster's; nothing may be done then.
pub fn worker(
    desired: &ContainerSpec,
    image_id: &str,
    workspace: &Workspace,
    seen: &[ContainerSummary],
) -> Result<Vec<Operation>, Foreign> {
    let mut operations = Vec::new();
    let mut there = false;
    for container in seen {
        let ours = container.belongs_to(&desired.cluster);
        if container.name == desired.name {
            if !ours {
                return Err(Foreign {
                    name: container.name.clone(),
                    cluster: container.label(LABEL_CLUSTER).map(str::to_owned),
                });
            }
            let mut why = differences(desired, image_id, workspace, container);
            why.extend(container.state.broken().map(str::to_owned));
            let name = container.name.clone();
            match container.state {
                _ if !why.is_empty() => operations.push(remove(container, why)),
                ContainerState::Running => there = true,
                ContainerState::Paused => {
                    there = true;
                    operations.push(Operation::Unpause { name });
                }
                _ => {
                    there = true;
                    operations.push(Operation::Start { name });
                }
            }
        } else if ours && container.is(Role::Worker) && desired.job.is_none() && container.job().is_none() {
            // the inventory gave the worker another name since
            operations.push(remove(container, vec!["renamed".into()]));
        }
    }
    if !there {
        operations.push(Operation::Create(Box::new(desired.clone())));
    }
    Ok(operations)
}

fn remove(container: &ContainerSummary, why: Vec<String>) -> Operation {
    Operation::Remove { name: container.name.clone(), id: container.id.clone(), why }
}

/// In what a worker of ours differs from the desired one.
pub fn differences(
    desired: &ContainerSpec,
    image_id: &str,
    workspace: &Workspace,
    seen: &ContainerSummary,
) -> Vec<String> {
    let mut why = Vec::new();
    if seen.label(LABEL_SPEC) != Some(desired.spec.hash().as_str()) {
        why = desired.spec.differences(seen.label(LABEL_SPEC_FULL).unwrap_or_default());
        if why.is_empty() {
            why.push("spec".into());
        }
    }
    if seen.image_id != image_id && !why.iter().any(|w| w == "image") {
        why.push("image".into());
    }
    if !seen.is(desired.role) {
        why.push("role".into());
    }
    let same = match workspace {
        Workspace::Any => true,
        Workspace::AsDesired => seen.label(LABEL_WORKSPACE) == desired.workspace.as_deref(),
        Workspace::Renewed => false,
    };
    if !same {
        why.push("workspace".into());
    }
    why
}

/// How a node's worker stands, in a word of the contract (`docs/cli.md`), and in what it differs. What is planned there is
/// missing where it could not have a worker at all.
pub fn worker_status(
    cluster: &Cluster,
    seen: &[ContainerSummary],
    planned: Option<&[Operation]>,
) -> (&'static str, Vec<String>) {
    let Some(worker) = seen.iter().find(|c| c.name == cluster.worker) else { return ("none", Vec::new()) };
    if !worker.belongs_to(&cluster.name) {
        return ("foreign", Vec::new());
    }
    let differs = planned.into_iter().flatten().find_map(|operation| match operation {
        Operation::Remove { id, why, .. } if *id == worker.id => Some(why.clone()),
        _ => None,
    });
    match (worker.state, differs) {
        // what is planned may be about others
        (ContainerState::Running, None) if planned.is_some() => ("up", Vec::new()),
        (ContainerState::Exited, None) => ("stopped", Vec::new()),
        (ContainerState::Paused, None) => ("paused", Vec::new()),
        (_, differs) => ("differs", differs.unwrap_or_default()),
    }
}

/// The jobs whose launcher is up among these containers, separated by commas.
pub fn running_jobs(cluster: &str, seen: &[ContainerSummary]) -> Option<String> {
    let masters = seen.iter().filter(|c| c.belongs_to(cluster) && c.is(Role::Master) && c.state.is_up());
    let jobs: Vec<&str> = masters.map(|c| c.job().unwrap_or("unknown")).collect();
    (!jobs.is_empty()).then(|| jobs.join(", "))
}

/// The removal of shells' containers that were made and never started: whoever made one did not live to start it, and one that has
/// run removes itself. Those of the last minutes stay, because somebody may be about to start them; `clock` is that of the node.
pub fn orphaned_shells(cluster: &str, seen: &[ContainerSummary], clock: Option<Span>) -> Vec<Operation> {
    let Some(clock) = clock else { return Vec::new() };
    let left = seen.iter().filter(|c| c.belongs_to(cluster) && c.is(Role::Shell) && c.state == ContainerState::Created);
    let old = left.filter(|c| c.created.is_some_and(|created| clock.low - created as f64 > ABOUT_TO_START));
    old.map(|c| remove(c, vec!["never started".into()])).collect()
}

/// The operations of `down`: everything that this cluster's label is on, and nothing else.
pub fn down(cluster: &str, seen: &[ContainerSummary]) -> Vec<Operation> {
    seen.iter().filter(|c| c.belongs_to(cluster)).map(|c| remove(c, vec!["down".into()])).collect()
}
