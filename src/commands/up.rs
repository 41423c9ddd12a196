//! `hvdctl up`: connect, lock and observe, pull images, plan, check, push keys, end disrupted jobs, apply, add nodes to elastic jobs.

use super::Outcome;
use super::context::{ConnectedNodes, Context, node_rows};
use super::output::{NodeEntry, UpNode};
use crate::checks::preflight;
use crate::cli::Up;
use crate::cluster::nodes::{Member, NodeResults, ObservedNode, Target, for_each_node, observe};
use crate::cluster::session::Session;
use crate::error::{Error, NodeError};
use crate::event::Events;
use crate::job::capacity::drop_ended_jobs;
use crate::job::cleanup::end_disrupted;
use crate::job::join::add_nodes;
use crate::keys::files::{AUTHORIZED_KEYS, Keys, differing};
use crate::keys::push::Distribution;
use crate::node::facts::Facts;
use crate::paths::HOST_KEY;
use crate::runtime::Image;
use crate::text::nodeset;
use crate::worker::apply::{self, WorkerPlan};
use crate::worker::image::{self, TO_BE_PULLED};

/// `up`.
pub async fn run(options: &Up, context: &Context) -> Result<Outcome, Error> {
    let Context { target, events, session, .. } = context;
    let ConnectedNodes { members, offline, refused } = context.connect_or_skip(options.skip_offline).await?;
    let mut steps = Steps { options, session, target, events, failed: refused };
    let observed = steps.observe(&members).await?;
    let observed = steps.pull(observed).await?;
    let plans = steps.plan(observed);
    let plans = steps.check(plans)?;
    let plans = steps.push_keys(plans).await?;
    let done = match options.dry_run {
        true => plans,
        false => {
            let plans = steps.end_disrupted_jobs(plans).await?;
            steps.apply(plans).await?
        }
    };
    add_nodes(&target.inventory, &done, options.dry_run, &session.cancellation, events).await;
    let entry = |plan: &WorkerPlan| {
        let (operations, summary) = (plan.steps(), plan.summary());
        NodeEntry::new(plan.node(), true, UpNode { changed: !operations.is_empty(), operations, summary })
    };
    Ok(outcome(options.dry_run, done.iter().map(entry).collect(), &steps.failed, &offline))
}

/// The steps of `up`. A node that fails leaves the set before the next step.
struct Steps<'a> {
    options: &'a Up,
    session: &'a Session,
    target: &'a Target,
    events: &'a Events,
    failed: Vec<NodeError>,
}

/// A node that has the image, and the image if it was pulled or would be.
struct ImageReady {
    observed: ObservedNode,
    pulled: Option<String>,
}

impl Steps<'_> {
    /// Locks the nodes and observes them; a dry run only observes them.
    async fn observe(&mut self, members: &[Member]) -> Result<Vec<ObservedNode>, Error> {
        let Steps { session, target, events, .. } = *self;
        let observing = async {
            Ok(for_each_node(members.to_vec(), async |member| observe(target.cluster(), member, events).await).await)
        };
        let unlocked = if self.options.dry_run { Vec::new() } else { session.lock(members).await? };
        let observed = session.cancellation.run(observing).await?;
        // what cannot be locked is not changed
        let is_locked = |node: ObservedNode| match unlocked.iter().find(|error| error.node == node.name()) {
            Some(error) => Err(error.clone()),
            None => Ok(node),
        };
        let mut observed = self.keep(observed.into_iter().map(|node| node.and_then(is_locked)).collect());
        let mut nodes: Vec<&mut ObservedNode> = observed.iter_mut().collect();
        session.cancellation.run(drop_ended_jobs(target, &mut nodes, events)).await?;
        Ok(observed)
    }

    /// Pulls the image where it is needed. A dry run only notes that.
    async fn pull(&mut self, observed: Vec<ObservedNode>) -> Result<Vec<ImageReady>, Error> {
        let Steps { session, target, events, .. } = *self;
        let cluster = target.cluster();
        let dry_run = self.options.dry_run;
        let pulling = for_each_node(observed, async |mut node: ObservedNode| {
            if !image::is_wanted(cluster, node.runtime.image.is_some()) {
                return Ok(ImageReady { observed: node, pulled: None });
            }
            // whether the registry has a newer image is not known without pulling it
            let is_new = match dry_run {
                true => node.runtime.image.is_none(),
                false => image::pull(cluster, &mut node, events).await?,
            };
            if dry_run && is_new {
                node.runtime.image = Some(Image { id: TO_BE_PULLED.into(), content: None });
            }
            if is_new && !dry_run {
                session.progress.record(node.name(), format!("pull {}", cluster.image));
            }
            Ok(ImageReady { observed: node, pulled: is_new.then(|| cluster.image.clone()) })
        });
        // a pull ends when its request is dropped
        let pulled = session.cancellation.run(async { Ok(pulling.await) }).await?;
        Ok(self.keep(pulled))
    }

    fn plan(&mut self, ready: Vec<ImageReady>) -> Vec<WorkerPlan> {
        let inventory = &self.target.inventory;
        self.keep(ready.into_iter().map(|node| WorkerPlan::new(inventory, node.observed, node.pulled)).collect())
    }

    /// Applies the rules, and adds the end of disrupted jobs with `--force`.
    ///
    /// # Errors
    /// When jobs would be disrupted, without `--force`.
    fn check(&mut self, mut plans: Vec<WorkerPlan>) -> Result<Vec<WorkerPlan>, Error> {
        let nodes: Vec<_> = plans.iter().map(|plan| (&plan.observed, true)).collect();
        let stopped = preflight::check(&self.target.inventory, &nodes, self.events);
        self.drop_failed(&mut plans, stopped);
        let cluster = self.target.cluster();
        let disrupted = apply::disrupted_jobs(cluster, &plans);
        if self.options.force {
            apply::end_jobs(cluster, &mut plans, disrupted.keys());
        } else if !disrupted.is_empty() {
            let error = apply::disrupted_error(&disrupted);
            if !self.options.dry_run {
                return Err(error);
            }
            self.events.warn(error);
        }
        Ok(plans)
    }

    /// Pushes the keys where they are missing or differ. They come from the master: without it only nodes that have their keys
    /// continue.
    async fn push_keys(&mut self, mut plans: Vec<WorkerPlan>) -> Result<Vec<WorkerPlan>, Error> {
        let inventory = &self.target.inventory;
        let nodes: Vec<_> = plans.iter().map(|plan| (&plan.observed.member.node, &plan.observed.facts)).collect();
        let pending = differing(inventory, &nodes, Keys::to_push);
        let mut has_master = nodes.iter().any(|(node, _)| node.master);
        if pending.is_empty() {
            return Ok(plans);
        }
        if self.options.dry_run {
            self.events.note(format!("keys would be pushed to {}", nodeset::fold(&pending)));
            return Ok(plans);
        }
        if has_master {
            let names = nodeset::fold(&pending);
            self.events.note(format!("keys are missing or differ on {names}: pushing them first"));
            let members: Vec<Member> = plans.iter().map(|plan| plan.observed.member.clone()).collect();
            let (session, events) = (self.session, self.events);
            let failed = match (Distribution { inventory, members: &members, session, events }).push().await {
                Ok(pushed) => pushed.failed,
                Err(Error::Nodes { failed, .. }) => {
                    has_master = false;
                    failed
                }
                Err(error) => return Err(error),
            };
            self.drop_failed(&mut plans, failed);
        }
        if !has_master {
            let without_keys = plans.iter().filter(|plan| lacks_keys(&plan.observed.facts));
            let failed: Vec<_> = without_keys.map(|plan| self.no_master(plan.node())).collect();
            failed.iter().for_each(|error| self.events.failed(error));
            self.drop_failed(&mut plans, failed);
        }
        Ok(plans)
    }

    fn no_master(&self, node: &str) -> NodeError {
        let master = &self.target.inventory.master().name;
        let next = match self.target.selected.contains(master) {
            true => "fix the master first, then run hvdctl up again",
            false => "add the master to --on",
        };
        NodeError::failed(
            node,
            "push its keys",
            format!("the keys come from the master {master}, which is not available"),
        )
        .hint(next)
    }

    async fn end_disrupted_jobs(&mut self, plans: Vec<WorkerPlan>) -> Result<Vec<WorkerPlan>, Error> {
        // a signal may have come while keys were pushed
        self.stop_if_asked()?;
        let ended = end_disrupted(self.target.cluster(), plans, self.events).await;
        Ok(self.keep(ended))
    }

    /// Executes the plans on all nodes at once. A stopped command begins no further operation.
    async fn apply(&mut self, plans: Vec<WorkerPlan>) -> Result<Vec<WorkerPlan>, Error> {
        let Steps { session, target, events, .. } = *self;
        let applied = for_each_node(plans, async |plan: WorkerPlan| {
            for operation in &plan.operations {
                if session.cancellation.check().is_err() {
                    return Ok(plan);
                }
                let executed = apply::execute(&target.inventory, &plan.observed, operation, events).await;
                events.report(executed)?;
                session.progress.record(plan.node(), operation.to_string());
            }
            session.progress.done(plan.node());
            events.done(plan.node(), plan.summary());
            Ok(plan)
        })
        .await;
        let done = self.keep(applied);
        self.stop_if_asked()?;
        Ok(done)
    }

    /// Keeps the nodes that a step succeeded on; the others have failed.
    fn keep<T>(&mut self, results: Vec<Result<T, NodeError>>) -> Vec<T> {
        let NodeResults { ok, failed } = NodeResults::new(self.events, results);
        self.failed.extend(failed);
        ok
    }

    fn drop_failed(&mut self, plans: &mut Vec<WorkerPlan>, failed: Vec<NodeError>) {
        plans.retain(|plan| failed.iter().all(|error| error.node != plan.node()));
        self.failed.extend(failed);
    }

    /// # Errors
    /// The signal, or the lost lock, after which nothing more may be done.
    fn stop_if_asked(&self) -> Result<(), Error> {
        self.session.progress.failed(&self.failed);
        self.session.cancellation.check()
    }
}

/// Returns whether a worker could not start its sshd, or would accept no login.
fn lacks_keys(facts: &Facts) -> bool {
    [HOST_KEY, AUTHORIZED_KEYS].iter().any(|name| !facts.key_files.contains_key(*name))
}

pub(super) fn outcome(
    dry_run: bool,
    nodes: Vec<NodeEntry<UpNode>>,
    failed: &[NodeError],
    offline: &[NodeError],
) -> Outcome {
    let mut text = node_rows(&nodes, |node| node.summary.clone());
    let changed = nodes.iter().filter_map(|node| node.result.as_ref()).filter(|node| node.changed).count();
    if changed == 0 && failed.is_empty() {
        text.push_str("nothing to do: every worker is up to date\n");
    } else if dry_run && !nodes.is_empty() {
        text.push_str(&format!("dry run: {changed} of {} nodes would be changed\n", nodes.len()));
    }
    Outcome::of_nodes(text, nodes, failed, offline)
}
