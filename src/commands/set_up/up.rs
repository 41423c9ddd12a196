//! `hvdctl up`: connect, lock and observe, plan, get images, ask the workers, check, push keys, end disrupted jobs,
//! apply, add nodes to elastic jobs.

use crate::checks::preflight;
use crate::cli::Up;
use crate::cluster::each_node::NodeResults;
use crate::cluster::observation::{ObservedNode, host_names};
use crate::commands::Outcome;
use crate::commands::shared::context::{ConnectedNodes, Context, node_rows};
use crate::delivery::relay::deployment;
use crate::delivery::worker_image::pull_planned;
use crate::document::NodeEntry;
use crate::error::{Error, NodeError};
use crate::event::{Events, Message};
use crate::job::cleanup::end_disrupted;
use crate::mesh::connect::{Connecting, NetworkUp};
use crate::start::join::add_nodes;
use crate::worker::apply::{self, WorkerPlan, WorkerPlans};
use crate::worker::directories;
use crate::worker::keys::push_differing;
use crate::worker::plan::{Operation, Tense};
use schemars::JsonSchema;
use serde::Serialize;

/// The result of `up` on a node, or the operations that it would perform with `--dry-run`.
#[derive(Debug, Serialize, JsonSchema)]
pub struct UpNode {
    /// True if there are operations.
    pub changed: bool,
    /// The operations in order. A container that is recreated is removed and created.
    pub operations: Vec<UpOperation>,
    /// The operations as one line.
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
    /// Change the encrypted network.
    Network {
        /// The changes, in order.
        changes: Vec<String>,
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
        /// The reasons: its differences from the desired one, or its faults.
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

/// `up`. A dry run only plans, and prints the plans.
pub async fn run(options: &Up, context: &Context) -> Result<Outcome, Error> {
    let WorkersUp { nodes, offline } = set_up(options, context).await?;
    Ok(outcome(options.dry_run, nodes, &offline))
}

/// The nodes after `up`.
pub struct WorkersUp {
    /// Each with the operations that were done.
    pub nodes: NodeResults<NodeEntry<UpNode>>,
    /// The unreachable ones that `--skip-offline` leaves out.
    pub offline: Vec<NodeError>,
}

/// Pushes keys where they are missing or differ, gets the image, and starts or replaces workers.
///
/// # Errors
/// When nodes cannot be reached or are locked, jobs would be disrupted, or the command is cancelled. A failure on some
/// nodes is part of the result.
pub async fn set_up(options: &Up, context: &Context) -> Result<WorkersUp, Error> {
    let Context { target, events, session, .. } = context;
    let (inventory, dry_run) = (&target.inventory, options.dry_run);
    let ConnectedNodes { nodes, offline } = context.connect_or_skip(options.skip_offline).await?;
    let nodes = if dry_run { nodes } else { context.lock_each(nodes).await? };
    let observed = context.observe_each(nodes).await?;
    let Up { dry_run, force, .. } = *options;
    let connecting = Connecting { dry_run, force, shows_output: context.verbose > 0, site: context.site() };
    let accepts = async |question: &str| context.accepts(question).await;
    let NetworkUp { nodes: mut observed, done: connected } = connecting.run(observed, accepts).await?;
    if !(dry_run || connected.is_empty()) {
        let members = observed.ok.into_iter().map(|node| node.member).collect();
        observed = context.observe_each(NodeResults { ok: members, failed: observed.failed }).await?;
    }
    let mut plans = observed.then(events, async |node| WorkerPlan::new(inventory, node)).await;
    if !dry_run {
        plans = pull_planned(plans, context.site(), accepts).await?;
    }
    let asked = async { Ok(plans.then(events, async |plan| plan.check_worker(inventory, events).await).await) };
    plans = session.cancellation.run(asked).await?;
    plans = check(plans, options, context)?;
    plans = push_differing(plans, dry_run, context.site()).await?;
    if dry_run {
        plans.ok.iter().for_each(|plan| note_unclosed(&plan.observed, events));
    } else {
        stop_if_asked(&plans, context)?;
        plans = end_disrupted(&inventory.cluster, plans, events).await;
        plans = remove_relays(plans, context).await?;
        plans = apply(plans, context).await?;
    }
    add_nodes(inventory, &plans.ok, dry_run, &session.cancellation, events).await;
    let tense = if dry_run { Tense::Planned } else { Tense::Done };
    let ok = plans.ok.iter().map(|plan| entry(plan, connected.get(plan.node()), tense)).collect();
    Ok(WorkersUp { nodes: NodeResults { ok, failed: plans.failed }, offline })
}

/// Formats what was done, one row for nodes with the same result.
pub fn rows(nodes: &[NodeEntry<UpNode>]) -> String {
    node_rows(nodes, |node| node.summary.clone())
}

/// Notes which directories `up` would close.
fn note_unclosed(observed: &ObservedNode, events: &Events) {
    if let Some(directories) = directories::unclosed(observed) {
        let text = format!("{directories} would be closed to other users of the node");
        events.note(Message::of(observed.name(), text));
    }
}

/// Removes what pushes of images that were stopped have left.
async fn remove_relays(plans: WorkerPlans, context: &Context) -> Result<WorkerPlans, Error> {
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
fn check(plans: WorkerPlans, options: &Up, context: &Context) -> Result<WorkerPlans, Error> {
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

/// Executes the plans on all nodes at once. A stopped command begins no further operation.
async fn apply(plans: WorkerPlans, context: &Context) -> Result<WorkerPlans, Error> {
    let Context { target, events, .. } = context;
    let host_names = host_names(&target.inventory, plans.ok.iter().map(|plan| &plan.observed));
    let apply = async |plan: WorkerPlan| plan.carry_out(&host_names, context.site()).await;
    let plans = plans.then(events, apply).await;
    stop_if_asked(&plans, context)?;
    Ok(plans)
}

/// # Errors
/// The signal, or the lost lock, after which nothing more may be done.
fn stop_if_asked(plans: &WorkerPlans, context: &Context) -> Result<(), Error> {
    context.session.progress.failed(&plans.failed);
    context.session.cancellation.check()
}

/// Returns the entry of a node. `connected`: what was done for its encrypted network.
fn entry(plan: &WorkerPlan, connected: Option<&Vec<String>>, tense: Tense) -> NodeEntry<UpNode> {
    let ends = plan.end_jobs.iter().map(|job| UpOperation::EndJob { job: job.clone() });
    let network = connected.map(|done| UpOperation::Network { changes: done.clone() });
    let operations: Vec<_> =
        network.into_iter().chain(ends).chain(plan.operations().iter().map(UpOperation::from)).collect();
    let summary = match connected {
        None => plan.summary(tense),
        Some(done) if operations.len() == 1 => done.join(", "),
        Some(done) => format!("{}, {}", done.join(", "), plan.summary(tense)),
    };
    NodeEntry::new(plan.node(), true, UpNode { changed: !operations.is_empty(), operations, summary })
}

pub(in crate::commands) fn outcome(
    dry_run: bool,
    nodes: NodeResults<NodeEntry<UpNode>>,
    offline: &[NodeError],
) -> Outcome {
    let mut text = rows(&nodes.ok);
    let all = nodes.ok.len();
    let changed = nodes.ok.iter().filter_map(|node| node.result.as_ref()).filter(|node| node.changed).count();
    if changed == 0 && nodes.failed.is_empty() {
        text.push_str("nothing to do: every worker is up to date\n");
    } else if dry_run && all > 0 {
        text.push_str(&format!("dry run: {changed} of {all} nodes would be changed\n"));
    }
    Outcome::of_nodes(text, nodes, offline)
}
