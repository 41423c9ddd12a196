//! Compares observed and desired state, and plans the operations for a node's worker.
//!
//! `up`, `up --dry-run`, `status`, `doctor`, `train`, `verify` and `down` all plan here, so that a dry run shows what
//! would be done.

mod disrupted;
mod ended;
#[cfg(test)]
mod tests;

use crate::cluster::observation::ObservedNode;
use crate::inventory::Cluster;
use crate::model::format::NewerFormat;
use crate::node::facts::{Facts, Span};
use crate::runtime::container::{ContainerState, ContainerSummary};
use crate::runtime::spec::{
    ContainerSpec, LABEL_CLUSTER, LABEL_FOR_ROLE, LABEL_SPEC, LABEL_SPEC_FULL, LABEL_WORKSPACE, Role, is_setup_image,
};
use schemars::JsonSchema;
use serde::Serialize;
use std::collections::BTreeSet;
use std::fmt;

pub use disrupted::{NodePlan, disrupted_jobs};
pub use ended::{ended_containers, exited, kept};

/// Seconds after which a shell's container that was created but not started counts as orphaned.
const SHELL_START_TIMEOUT: f64 = 120.0;

/// One step on one node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Operation {
    /// Pull the image. The rest of a plan is made again after it, because the image's id is known only then.
    Pull {
        /// The cluster's image.
        image: String,
    },
    /// Remove a container of this cluster.
    Remove {
        /// Its name, for messages.
        name: String,
        /// Its id.
        id: String,
        /// The reasons for its removal.
        reasons: Vec<String>,
    },
    /// Create the desired container and start it.
    Create(Box<ContainerSpec>),
    /// Start a container that has exited.
    Start {
        /// Its name.
        name: String,
    },
    /// Unpause a container.
    Unpause {
        /// Its name.
        name: String,
    },
}

/// The tense in which an operation is described.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Tense {
    /// `start hworker`.
    Planned,
    /// `starting hworker`.
    Ongoing,
    /// `started hworker`.
    Done,
}

impl Tense {
    /// Returns the form of a regular verb.
    pub fn of(self, verb: &str) -> String {
        let stem = verb.strip_suffix('e').unwrap_or(verb);
        match self {
            Tense::Planned => verb.to_owned(),
            Tense::Ongoing => format!("{stem}ing"),
            Tense::Done => format!("{stem}ed"),
        }
    }
}

impl Operation {
    /// Formats it in a tense.
    pub fn phrase(&self, tense: Tense) -> String {
        let verb = |verb| tense.of(verb);
        match self {
            Operation::Pull { image } => format!("{} {image}", verb("pull")),
            Operation::Remove { name, reasons, .. } => format!("{} {name} ({})", verb("remove"), reasons.join(", ")),
            Operation::Create(desired) => format!("{} {}{}", verb("start"), desired.name, with_workspace(desired)),
            Operation::Start { name } => format!("{} {name} again (stopped)", verb("start")),
            Operation::Unpause { name } => format!("{} {name}", verb("unpause")),
        }
    }
}

fn with_workspace(desired: &ContainerSpec) -> String {
    desired.workspace.as_ref().map(|workspace| format!(" with {workspace}")).unwrap_or_default()
}

/// The status of a node's worker, as the column WORKER of `status` shows it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum WorkerStatus {
    /// It runs as the inventory describes it.
    Up,
    /// It differs from the desired one, or cannot be compared with it.
    Differs,
    /// It has exited.
    Stopped,
    /// It is paused.
    Paused,
    /// There is no container of its name.
    None,
    /// Another container has its name.
    Foreign,
}

impl fmt::Display for WorkerStatus {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            WorkerStatus::Up => "up",
            WorkerStatus::Differs => "differs",
            WorkerStatus::Stopped => "stopped",
            WorkerStatus::Paused => "paused",
            WorkerStatus::None => "none",
            WorkerStatus::Foreign => "foreign",
        })
    }
}

/// Formats a node's operations, one text each. Removing and creating the same container reads `recreate`.
pub fn describe(operations: &[Operation], tense: Tense) -> Vec<String> {
    let removal =
        |created: &str| operations.iter().find(|o| matches!(o, Operation::Remove { name, .. } if name == created));
    let is_created = |removed: &str| operations.iter().any(|o| matches!(o, Operation::Create(c) if c.name == removed));
    let texts = operations.iter().filter_map(|operation| match operation {
        Operation::Remove { name, .. } if is_created(name) => None,
        Operation::Create(desired) => match removal(&desired.name) {
            Some(Operation::Remove { name, reasons, .. }) => {
                let verb = tense.of("recreate");
                Some(format!("{verb} {name}{} ({})", with_workspace(desired), reasons.join(", ")))
            }
            _ => Some(operation.phrase(tense)),
        },
        _ => Some(operation.phrase(tense)),
    });
    texts.collect()
}

/// Formats what is done on a node as one line.
pub fn summarize(steps: &[String]) -> String {
    if steps.is_empty() { "unchanged".to_owned() } else { steps.join(", ") }
}

/// A container that has the name of the desired one and is not this cluster's, or not this hvdctl's.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("a container named {name} exists already and {}", match (.newer, .cluster) {
    (Some(newer), _) => format!("its labels were {newer}"),
    (None, Some(cluster)) => format!("belongs to the cluster {cluster}"),
    (None, None) => "was not created by hvdctl".to_owned(),
})]
pub struct ForeignContainer {
    /// The name.
    pub name: String,
    /// The hvdctl cluster that it belongs to, if any.
    pub cluster: Option<String>,
    /// The newer hvdctl that created it, if any.
    pub newer: Option<NewerFormat>,
}

impl ForeignContainer {
    /// Returns the container of this name if it does not belong to the cluster, or a newer hvdctl created it.
    pub fn find(name: &str, cluster: &str, containers: &[ContainerSummary]) -> Option<ForeignContainer> {
        let found = containers.iter().find(|c| c.name == name)?;
        ForeignContainer::of(found, cluster)
    }

    fn of(container: &ContainerSummary, cluster: &str) -> Option<ForeignContainer> {
        let is_ours = container.belongs_to(cluster);
        let newer = container.check_format().err().filter(|_| is_ours);
        let is_foreign = newer.is_some() || !is_ours;
        // a user's, from an image that was committed from one of this cluster's, has this cluster's label
        let cluster = container.label(LABEL_CLUSTER).filter(|other| *other != cluster || is_ours).map(str::to_owned);
        is_foreign.then(|| ForeignContainer { name: container.name.clone(), cluster, newer })
    }

    /// Returns the next step. `setting`: the inventory's for the name.
    pub fn hint(&self, setting: &str) -> String {
        match self.newer {
            None => format!("remove or rename it, or set {setting} to another name than {}", self.name),
            Some(_) => {
                "use the version of hvdctl that created it; or, when no job needs it any more, `hvdctl down` removes \
                 it"
                .into()
            }
        }
    }
}

/// Returns the operations that bring a node's worker to the desired state; none if it is.
///
/// # Errors
/// [`ForeignContainer`] if another container has the worker's name, or the cluster's worker is a newer hvdctl's.
/// Nothing may be done then.
pub fn worker(
    desired: &ContainerSpec,
    image_id: &str,
    containers: &[ContainerSummary],
) -> Result<Vec<Operation>, ForeignContainer> {
    if let Some(foreign) = ForeignContainer::find(&desired.name, &desired.cluster, containers) {
        return Err(foreign);
    }
    // the inventory has given the worker another name since
    let is_renamed = |c: &&ContainerSummary| {
        c.name != desired.name && c.belongs_to(&desired.cluster) && c.is(Role::Worker) && c.job().is_none()
    };
    let renamed: Vec<_> = containers.iter().filter(is_renamed).filter(|_| desired.job.is_none()).collect();
    if let Some(foreign) = renamed.iter().find_map(|container| ForeignContainer::of(container, &desired.cluster)) {
        return Err(foreign);
    }
    let mut operations: Vec<Operation> = renamed.into_iter().map(|c| remove(c, vec!["renamed".into()])).collect();
    let create = Operation::Create(Box::new(desired.clone()));
    let Some(container) = containers.iter().find(|c| c.name == desired.name) else {
        operations.push(create);
        return Ok(operations);
    };
    let reasons = differences(desired, image_id, container);
    match container.state {
        _ if !reasons.is_empty() => operations.extend([remove(container, reasons), create]),
        ContainerState::Running => {}
        ContainerState::Paused => operations.push(Operation::Unpause { name: desired.name.clone() }),
        _ => operations.push(Operation::Start { name: desired.name.clone() }),
    }
    Ok(operations)
}

/// Returns the operations without those that would only give a worker, while a job may use it, the data that were
/// pushed since, a virtualenv that was made since, or the cluster's image (or the node's `activate`) again where the
/// job has its own. One that has exited is started.
pub fn kept_for_job(cluster: &Cluster, observed: &ObservedNode, operations: Vec<Operation>) -> Vec<Operation> {
    let worker = observed.runtime.containers.iter().find(|container| container.name == cluster.worker);
    let kept = worker.filter(|_| !observed.open.under_way.is_empty());
    let has_own_image = kept.and_then(ContainerSummary::spec_image).is_some_and(|image| is_setup_image(&image));
    let is_for_role = kept.is_some_and(|container| container.label(LABEL_FOR_ROLE).is_some());
    let may_wait = |reason: &String| match reason.as_str() {
        "data" | "virtualenv" => true,
        "image" => has_own_image || is_for_role,
        "activate" => is_for_role,
        _ => false,
    };
    match (operations.as_slice(), kept) {
        ([Operation::Remove { id, reasons, .. }, Operation::Create(_)], Some(worker))
            if *id == worker.id && reasons.iter().all(may_wait) =>
        {
            match worker.state {
                ContainerState::Running => Vec::new(),
                _ => vec![Operation::Start { name: worker.name.clone() }],
            }
        }
        _ => operations,
    }
}

/// Returns the operations that replace a container by the desired one.
pub fn recreate(container: &ContainerSummary, desired: &ContainerSpec, reason: &str) -> Vec<Operation> {
    vec![remove(container, vec![reason.to_owned()]), Operation::Create(Box::new(desired.clone()))]
}

fn remove(container: &ContainerSummary, reasons: Vec<String>) -> Operation {
    Operation::Remove { name: container.name.clone(), id: container.id.clone(), reasons }
}

/// Returns why a worker has to be recreated; nothing if it may stay.
fn differences(desired: &ContainerSpec, image_id: &str, container: &ContainerSummary) -> Vec<String> {
    let mut reasons = Vec::new();
    let has_spec = container.label(LABEL_SPEC) == Some(desired.spec.hash().as_str());
    if !has_spec {
        reasons = desired.spec.differences(container.label(LABEL_SPEC_FULL).unwrap_or_default());
    }
    let is_mounted = match &desired.workspace {
        None => true,
        Some(directory) => !desired.new_workspace && container.label(LABEL_WORKSPACE) == Some(directory),
    };
    let others = [
        (!has_spec && reasons.is_empty()).then_some("spec"),
        (container.image_id != image_id && !reasons.iter().any(|part| part == "image")).then_some("image"),
        (!container.is(desired.role)).then_some("role"),
        (!is_mounted).then_some("workspace"),
        container.state.defect(),
    ];
    reasons.extend(others.into_iter().flatten().map(str::to_owned));
    reasons
}

/// Returns the status of a node's worker, and in what it differs from the desired one. `planned`: what
/// [`worker`] and the others plan for the node; `None` if it cannot have a worker at all.
pub fn worker_status(
    cluster: &Cluster,
    containers: &[ContainerSummary],
    planned: Option<&[Operation]>,
) -> (WorkerStatus, Vec<String>) {
    let Some(worker) = containers.iter().find(|c| c.name == cluster.worker) else {
        return (WorkerStatus::None, Vec::new());
    };
    if ForeignContainer::of(worker, &cluster.name).is_some() {
        return (WorkerStatus::Foreign, Vec::new());
    }
    let differs = planned.into_iter().flatten().find_map(|operation| match operation {
        Operation::Remove { id, reasons, .. } if *id == worker.id => Some(reasons.clone()),
        _ => None,
    });
    match (worker.state, differs) {
        (ContainerState::Running, None) if planned.is_some() => (WorkerStatus::Up, Vec::new()),
        (ContainerState::Exited, None) => (WorkerStatus::Stopped, Vec::new()),
        (ContainerState::Paused, None) => (WorkerStatus::Paused, Vec::new()),
        (_, differs) => (WorkerStatus::Differs, differs.unwrap_or_default()),
    }
}

/// Returns the ids of the jobs that have their launcher or ranks on a node, sorted.
pub fn running_jobs(cluster: &str, facts: &Facts, containers: &[ContainerSummary]) -> Vec<String> {
    let masters = containers.iter().filter(|c| c.belongs_to(cluster) && c.is(Role::Master) && c.state.is_up());
    let launched = masters.map(|c| c.job().unwrap_or("unknown"));
    let has_ranks = |job: &&String| facts.jobs.ranks.iter().any(|rank| rank.job == **job && !rank.killed);
    let jobs: BTreeSet<&str> =
        launched.chain(facts.jobs.recorded.iter().map(|job| &job.id).filter(has_ranks).map(String::as_str)).collect();
    jobs.into_iter().map(str::to_owned).collect()
}

/// Returns the removal of shells' containers that were created and never started, because the command that created them
/// was killed; one that has run removes itself. Those of the last `SHELL_START_TIMEOUT` stay: they may be about to
/// start. `clock` is the node's.
pub fn orphaned_shells(cluster: &str, containers: &[ContainerSummary], clock: Option<Span>) -> Vec<Operation> {
    let is_orphaned = |c: &&ContainerSummary| {
        let age = clock.zip(c.created).map(|(clock, created)| clock.low - created as f64);
        let is_old = age.is_some_and(|age| age > SHELL_START_TIMEOUT);
        let is_ours = c.belongs_to(cluster) && c.check_format().is_ok();
        is_old && is_ours && c.is(Role::Shell) && c.state == ContainerState::Created
    };
    containers.iter().filter(is_orphaned).map(|c| remove(c, vec!["never started".into()])).collect()
}

/// Returns the removal of the containers of builds that were killed. A build has its node locked as long as it has a
/// container.
pub fn interrupted_builds(cluster: &str, containers: &[ContainerSummary]) -> Vec<Operation> {
    let is_left = |c: &&ContainerSummary| c.belongs_to(cluster) && c.check_format().is_ok() && c.is(Role::Setup);
    containers.iter().filter(is_left).map(|c| remove(c, vec!["its build was interrupted".into()])).collect()
}

/// Returns the operations of `down`: the removal of everything that hvdctl created for this cluster, and nothing else.
pub fn down(cluster: &str, containers: &[ContainerSummary]) -> Vec<Operation> {
    let ours = containers.iter().filter(|c| c.belongs_to(cluster) && !c.is(Role::Mesh));
    ours.map(|c| remove(c, vec!["down".into()])).collect()
}
