//! `hvdctl up`: connect, lock and observe, plan, get images, ask the workers, check, push keys, end disrupted jobs, apply, add nodes to
//! elastic jobs.

use super::Outcome;
use super::context::{ConnectedNodes, Context, node_rows};
use crate::checks::preflight;
use crate::cli::Up;
use crate::cluster::each_node::NodeResults;
use crate::cluster::observation::{ObservedNode, host_names};
use crate::cluster::target::Target;
use crate::delivery::relay::deployment;
use crate::delivery::worker_image::pull_planned;
use crate::document::NodeEntry;
use crate::error::{Error, NodeError};
use crate::event::{Events, Message};
use crate::job::cleanup::end_disrupted;
use crate::keys::files::{AUTHORIZED_KEYS, Keys, differing};
use crate::keys::push::Distribution;
use crate::node::facts::Facts;
use crate::paths::HOST_KEY;
use crate::start::join::add_nodes;
use crate::text::nodeset;
use crate::worker::apply::{self, WorkerPlan};
use crate::worker::plan::Operation;
use crate::worker::{directories, names};
use schemars::JsonSchema;
use serde::Serialize;

/// What `up` did on a node, or would do with `--dry-run`.
#[derive(Debug, Serialize, JsonSchema)]
pub struct UpNode {
    /// Whether there are operations.
    pub changed: bool,
    /// The operations in order. A container that is recreated is removed and created.
    pub operations: Vec<UpOperation>,
    /// The same as one line.
    #[serde(skip)]
    pub summary: String,
}

/// An operation of `up`.
#[derive(Debug, PartialEq, Serialize, JsonSchema)]
#[serde(tag = "operation", rename_all = "snake_case")]
pub enum UpOperation {
    /// End a job (`--force`).
    EndJob {
        /// Its id.
        job: String,
    },
    /// Pull the image.
    Pull {
        /// Its name.
        image: String,
    },
    /// Remove a container.
    Remove {
        /// Its name.
        container: String,
        /// Why: in what it differs from the desired one, or what is wrong with it.
        reasons: Vec<String>,
    },
    /// Create a container and start it.
    Create {
        /// Its name.
        container: String,
    },
    /// Start a container that has exited.
    Start {
        /// Its name.
        container: String,
    },
    /// Unpause a container.
    Unpause {
        /// Its name.
        container: String,
    },
}

impl From<&Operation> for UpOperation {
    fn from(operation: &Operation) -> UpOperation {
        match operation.clone() {
            Operation::Pull { image } => UpOperation::Pull { image },
            Operation::Remove { name, reasons, .. } => UpOperation::Remove { container: name, reasons },
            Operation::Create(desired) => UpOperation::Create { container: desired.name },
            Operation::Start { name } => UpOperation::Start { container: name },
            Operation::Unpause { name } => UpOperation::Unpause { container: name },
        }
    }
}

/// The plans of the nodes on which all steps so far have succeeded, and the failures of the others.
type Plans = NodeResults<WorkerPlan>;

/// `up`. A dry run only plans, and prints the plans.
pub async fn run(options: &Up, context: &Context) -> Result<Outcome, Error> {
    let Context { target, events, session, .. } = context;
    let (inventory, dry_run) = (&target.inventory, options.dry_run);
    let ConnectedNodes { nodes, offline } = context.connect_or_skip(options.skip_offline).await?;
    let nodes = if dry_run { nodes } else { context.lock_each(nodes).await? };
    let observed = context.observe_each(nodes).await?;
    let mut plans = observed.then(events, async |node| WorkerPlan::new(inventory, node)).await;
    if !dry_run {
        let accepts = async |question: &str| context.accepts(question).await;
        plans = pull_planned(plans, context.site(), accepts).await?;
    }
    let asked = async { Ok(plans.then(events, async |plan| plan.check_worker(inventory, events).await).await) };
    plans = session.cancellation.run(asked).await?;
    plans = check(plans, options, context)?;
    plans = push_keys(plans, dry_run, context).await?;
    if dry_run {
        plans.ok.iter().for_each(|plan| note_unclosed(&plan.observed, events));
    } else {
        stop_if_asked(&plans, context)?;
        plans = end_disrupted(&inventory.cluster, plans, events).await;
        plans = remove_relays(plans, context).await?;
        plans = apply(plans, context).await?;
    }
    add_nodes(inventory, &plans.ok, dry_run, &session.cancellation, events).await;
    let nodes = NodeResults { ok: plans.ok.iter().map(entry).collect(), failed: plans.failed };
    Ok(outcome(dry_run, nodes, &offline))
}

/// Notes which directories `up` would close.
fn note_unclosed(observed: &ObservedNode, events: &Events) {
    if let Some(directories) = directories::unclosed(observed) {
        let text = format!("{directories} would be closed to other users of the node");
        events.note(Message::of(observed.name(), text));
    }
}

/// Removes what pushes of images that were stopped have left.
async fn remove_relays(plans: Plans, context: &Context) -> Result<Plans, Error> {
    let Context { target, events, session, .. } = context;
    let cluster = &target.cluster().name;
    let remove = async |plan: WorkerPlan| {
        if deployment::is_left(&plan.observed.runtime.containers, cluster) {
            deployment::remove(&plan.observed.runtime.engine, cluster).await?;
        }
        Ok(plan)
    };
    session.cancellation.run(async { Ok(plans.then(events, remove).await) }).await
}

/// Applies the rules, and adds the end of disrupted jobs with `--force`.
///
/// # Errors
/// When jobs would be disrupted, without `--force`.
fn check(plans: Plans, options: &Up, context: &Context) -> Result<Plans, Error> {
    let Context { target, events, .. } = context;
    let nodes: Vec<_> = plans.ok.iter().map(|plan| (&plan.observed, true)).collect();
    let found = preflight::check(&target.inventory, &nodes);
    found.warnings.iter().for_each(|warning| events.warn(warning));
    let mut plans = plans.without(events, found.failed, WorkerPlan::node);
    let disrupted = apply::disrupted_jobs(target.cluster(), &plans.ok);
    if options.force {
        apply::end_jobs(target.cluster(), &mut plans.ok, disrupted.keys());
    } else if !disrupted.is_empty() {
        let error = apply::disrupted_error(&disrupted);
        if !options.dry_run {
            return Err(error);
        }
        events.warn(error);
    }
    Ok(plans)
}

/// Pushes the keys where they are missing or differ. They come from the master: without it only nodes that have their keys
/// continue.
async fn push_keys(mut plans: Plans, dry_run: bool, context: &Context) -> Result<Plans, Error> {
    let Context { target, events, session, .. } = context;
    let inventory = &target.inventory;
    let nodes: Vec<_> = plans.ok.iter().map(|plan| (&plan.observed.member.node, &plan.observed.facts)).collect();
    let pending = differing(inventory, &nodes, Keys::to_push);
    let mut has_master = nodes.iter().any(|(node, _)| node.master);
    if pending.is_empty() {
        return Ok(plans);
    }
    let names = nodeset::fold(&pending);
    if dry_run {
        events.note(format!("keys would be pushed to {names}"));
        return Ok(plans);
    }
    if has_master {
        events.note(format!("keys are missing or differ on {names}: pushing them first"));
        let known = |plan: &WorkerPlan| (plan.observed.member.clone(), plan.observed.facts.clone());
        let observed = NodeResults { ok: plans.ok.iter().map(known).collect(), failed: Vec::new() };
        plans = match (Distribution { inventory, session, events }).push(observed).await {
            Ok(pushed) => plans.leave_out(pushed.failed, WorkerPlan::node),
            Err(Error::Nodes { failed, .. }) => {
                has_master = false;
                plans.without(events, failed, WorkerPlan::node)
            }
            Err(error) => return Err(error),
        };
    }
    if !has_master {
        let without_keys = plans.ok.iter().filter(|plan| lacks_keys(&plan.observed.facts));
        let failed = without_keys.map(|plan| no_master(target, plan.node())).collect();
        plans = plans.without(events, failed, WorkerPlan::node);
    }
    Ok(plans)
}

fn no_master(target: &Target, node: &str) -> NodeError {
    let master = &target.inventory.master().name;
    let next = match target.selected.contains(master) {
        true => "fix the master first, then run hvdctl up again",
        false => "add the master to --on",
    };
    let cause = format!("the keys come from the master {master}, which is not available");
    NodeError::failed(node, "push its keys", cause).hint(next)
}

/// Executes the plans on all nodes at once. A stopped command begins no further operation.
async fn apply(plans: Plans, context: &Context) -> Result<Plans, Error> {
    let Context { target, events, session, .. } = context;
    let host_names = host_names(&target.inventory, plans.ok.iter().map(|plan| &plan.observed));
    let apply = async |mut plan: WorkerPlan| {
        if session.cancellation.check().is_ok() {
            directories::prepare(target.cluster(), &plan.observed, events).await?;
        }
        while plan.next().is_some() {
            if session.cancellation.check().is_err() {
                return Ok(plan);
            }
            plan.execute_next(&target.inventory, &session.progress, events).await?;
        }
        let (observed, limit) = (&plan.observed, plan.observed.member.transport.limit());
        names::write(observed, &target.cluster().worker, &host_names, limit).await?;
        session.progress.done(plan.node());
        events.done(plan.node(), plan.summary());
        Ok(plan)
    };
    let plans = plans.then(events, apply).await;
    stop_if_asked(&plans, context)?;
    Ok(plans)
}

/// # Errors
/// The signal, or the lost lock, after which nothing more may be done.
fn stop_if_asked(plans: &Plans, context: &Context) -> Result<(), Error> {
    context.session.progress.failed(&plans.failed);
    context.session.cancellation.check()
}

fn entry(plan: &WorkerPlan) -> NodeEntry<UpNode> {
    let ends = plan.end_jobs.iter().map(|job| UpOperation::EndJob { job: job.clone() });
    let operations: Vec<_> = ends.chain(plan.operations().iter().map(UpOperation::from)).collect();
    let summary = plan.summary();
    NodeEntry::new(plan.node(), true, UpNode { changed: !operations.is_empty(), operations, summary })
}

/// Returns whether a worker could not start its sshd, or would accept no login.
fn lacks_keys(facts: &Facts) -> bool {
    [HOST_KEY, AUTHORIZED_KEYS].iter().any(|name| !facts.keys.files.contains_key(*name))
}

pub(super) fn outcome(dry_run: bool, nodes: NodeResults<NodeEntry<UpNode>>, offline: &[NodeError]) -> Outcome {
    let mut text = node_rows(&nodes.ok, |node| node.summary.clone());
    let all = nodes.ok.len();
    let changed = nodes.ok.iter().filter_map(|node| node.result.as_ref()).filter(|node| node.changed).count();
    if changed == 0 && nodes.failed.is_empty() {
        text.push_str("nothing to do: every worker is up to date\n");
    } else if dry_run && all > 0 {
        text.push_str(&format!("dry run: {changed} of {all} nodes would be changed\n"));
    }
    Outcome::of_nodes(text, nodes, offline)
}
