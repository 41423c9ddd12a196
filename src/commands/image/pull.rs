//! `hvdctl image pull`, and how `up` gets the image: from its registry, or from a node that has it.

use crate::cli;
use crate::cluster::each_node::{NodeResults, for_each_node};
use crate::cluster::member::Member;
use crate::commands::Outcome;
use crate::commands::context::{ConnectedNodes, Context, node_rows};
use crate::commands::image::{SourceChoice, give, image_name, local};
use crate::document::NodeEntry;
use crate::error::{Error, ErrorKind, NodeError};
use crate::inventory::{Node, Pull};
use crate::runtime::Image;
use crate::runtime::credentials::Login;
use crate::runtime::spec::is_setup_image;
use crate::text::nodeset;
use crate::text::units::human;
use crate::worker::apply::WorkerPlan;
use crate::worker::image;
use crate::worker::plan::Operation;
use schemars::JsonSchema;
use serde::Serialize;

/// What `image pull` did on a node.
#[derive(Debug, Serialize, JsonSchema)]
pub struct ImagePullNode {
    /// Whether the node did not have this image.
    pub changed: bool,
    /// Its id on the node.
    pub id: String,
    /// The hash of its layers and environment, which is the same on all nodes that have the same image.
    pub content: Option<String>,
}

/// The plans of the nodes on which all steps so far have succeeded, and the failures of the others.
type Plans = NodeResults<WorkerPlan>;

/// `image pull`.
pub async fn run(options: &cli::ImagePull, context: &Context) -> Result<Outcome, Error> {
    let Context { target, events, session, .. } = context;
    let name = image_name(options.name.as_deref(), target)?;
    if name.starts_with("sha256:") || is_setup_image(name) {
        let message = format!("no registry has {name}, which is an id or was built by hvdctl");
        return Err(Error::usage(message, "hvdctl image push gives it from a node that has it"));
    }
    let ConnectedNodes { nodes, offline } = context.connect_or_skip(options.skip_offline).await?;
    let nodes = context.lock_each(nodes).await?;
    let login = login(name, nodes.ok.iter().map(|member| &member.node), context).await?;
    let pull = async |member: Member| {
        let node = member.node.name.clone();
        let login = login.for_node(member.node.owner.as_deref());
        let _step = events.begin(&node, image::step(name));
        let engine = member.runtime().await?;
        let before = engine.image(name).await?;
        image::pull(name, &login, &member, &engine, events).await?;
        let missing =
            || NodeError::failed(&node, &format!("pull the image {name}"), "the engine does not have it afterwards");
        let now = engine.image(name).await?.ok_or_else(missing)?;
        let changed = before.is_none_or(|before| before.id != now.id);
        session.progress.record(&node, format!("pulled {name}"));
        session.progress.done(&node);
        events.done(&node, format!("has {name}"));
        Ok(NodeEntry::new(&node, true, ImagePullNode { changed, id: now.id, content: now.content }))
    };
    // a pull ends when its request is dropped
    let results = session.cancellation.run(async { Ok(nodes.then(events, pull).await) }).await?;
    session.progress.failed(&results.failed);
    Ok(outcome(results, &offline))
}

pub(crate) fn outcome(nodes: NodeResults<NodeEntry<ImagePullNode>>, offline: &[NodeError]) -> Outcome {
    let mut text = node_rows(&nodes.ok, |node| if node.changed { "pulled" } else { "unchanged" }.to_owned());
    let contents = || nodes.ok.iter().filter_map(|node| node.result.as_ref()).map(|node| &node.content);
    if contents().zip(contents().skip(1)).any(|(one, other)| one != other) {
        text.push_str("the registry gave the nodes different images of this name: run the command again\n");
    }
    Outcome::of_nodes(text, nodes, offline)
}

/// Finds the operator's login to the registry of an image, which these nodes pull. Without one the pull may still succeed. Nodes of other
/// owners do not get it: see [`Login::for_node`].
pub(super) async fn login<'a>(
    image: &str,
    nodes: impl Iterator<Item = &'a Node>,
    context: &Context,
) -> Result<Login, Error> {
    let login = context.session.cancellation.run(async { Ok(Login::find(image).await) }).await?;
    if let Some(fault) = &login.fault {
        context.events.warn(format!("pulling {image} without a login: {fault}"));
    }
    let others: Vec<&str> = nodes.filter(|node| node.owner.is_some()).map(|node| node.name.as_str()).collect();
    if login.credentials.is_some() && !others.is_empty() {
        let others = nodeset::fold(&others);
        context
            .events
            .note(format!("{others}: pulling {image} without your login to the registry, as another owner's"));
    }
    Ok(login)
}

fn is_pull(plan: &WorkerPlan) -> bool {
    matches!(plan.next(), Some(Operation::Pull { .. }))
}

/// Gives the image to the nodes whose plans begin with a pull. The rest of them is then planned again, because checks compare the images.
pub(crate) async fn pull(plans: Plans, context: &Context) -> Result<Plans, Error> {
    let Context { target, events, session, .. } = context;
    let cluster = target.cluster();
    if !plans.ok.iter().any(is_pull) {
        return Ok(plans);
    }
    // no registry has what hvdctl has built, but anyone may have registered its name there
    if cluster.pull == Pull::Peers || is_setup_image(&cluster.image) {
        return take_from(&SourceChoice::Anywhere, plans, context).await;
    }
    let pulling = plans.ok.iter().filter(|plan| is_pull(plan)).map(|plan| &plan.observed.member.node);
    let login = login(&cluster.image, pulling, context).await?;
    let pull = async |mut plan: WorkerPlan| {
        let login = login.for_node(plan.observed.member.node.owner.as_deref());
        let pulled = plan.pull(&target.inventory, &login, &session.progress, events).await;
        (plan, pulled.err())
    };
    let NodeResults { ok, failed } = plans;
    let (mut ok, mut refused) = (ok, Vec::new());
    let pulled = session.cancellation.run(async { Ok(for_each_node(std::mem::take(&mut ok), pull).await) }).await?;
    for (plan, error) in pulled {
        match error {
            None => ok.push(plan),
            Some(error) => refused.push((plan, error)),
        }
    }
    let plans = NodeResults { ok, failed };
    if refused.is_empty() { Ok(plans) } else { offer(plans, refused, context).await }
}

/// Gives the nodes that could not pull the image that of another node or of this machine, if the operator wants that.
async fn offer(mut plans: Plans, refused: Vec<(WorkerPlan, NodeError)>, context: &Context) -> Result<Plans, Error> {
    let Context { target, events, .. } = context;
    let name = &target.cluster().image;
    let has_image = |plan: &WorkerPlan| content(plan).is_some();
    // no space is left for one from elsewhere either
    let can_take = |(plan, error): &(WorkerPlan, NodeError)| error.kind != ErrorKind::NoSpace && !has_image(plan);
    let lacking: Vec<&str> = refused.iter().filter(|node| can_take(node)).map(|(plan, _)| plan.node()).collect();
    let lacking = nodeset::fold(&lacking);
    let found = if lacking.is_empty() { None } else { find_owner(&plans, &refused, context).await };
    let Some(Owner { from, name: owner, size }) = found else {
        return Ok(plans.without(events, refused.into_iter().map(|(_, error)| error).collect(), WorkerPlan::node));
    };
    let cause = refused[0].1.message.lines().next().unwrap_or_default().to_owned();
    let question = format!(
        "{lacking}: cannot pull {name}: {cause}\n{owner} has it ({}). Give it from there, over the SSH connections of this machine?",
        human(size)
    );
    if context.accepts(&question).await? {
        events.note(format!("{lacking}: taking the image of {owner}, because it cannot be pulled: {cause}"));
        let (taking, failed): (Vec<_>, Vec<_>) = refused.into_iter().partition(can_take);
        let (taking, errors): (Vec<_>, Vec<_>) = taking.into_iter().unzip();
        plans.ok.extend(taking);
        let nodes = target.nodes();
        plans.ok.sort_by_key(|plan| nodes.iter().position(|node| node.name == plan.node()));
        let failed: Vec<NodeError> = failed.into_iter().map(|(_, error)| error).collect();
        let plans = plans.without(events, failed, WorkerPlan::node);
        return match give_to(&from, &plans, context).await {
            Ok(given) => plan_again(plans, given, context).await,
            Err(error @ (Error::Signal(_) | Error::Lost(_))) => Err(error),
            // the others go on
            Err(error) => {
                let why = format!("{owner} could not give it either: {error}");
                let errors = errors.into_iter().map(|error: NodeError| error.hint(&why));
                Ok(plans.without(events, errors.collect(), WorkerPlan::node))
            }
        };
    }
    let with_hint = |(_, error): (WorkerPlan, NodeError)| {
        error.hint(format!(
            "{owner} has the image: hvdctl image push, or hvdctl -y up, gives it to the others; pull = \"peers\" in [cluster] does so \
             each time"
        ))
    };
    let failed = refused.into_iter().map(with_hint).collect();
    Ok(plans.without(events, failed, WorkerPlan::node))
}

/// Returns the content of the image that the plan's node has.
fn content(plan: &WorkerPlan) -> Option<&String> {
    plan.observed.runtime.image.as_ref().and_then(|image: &Image| image.content.as_ref())
}

/// Another place that has the image.
struct Owner {
    from: SourceChoice,
    /// What it is called.
    name: String,
    /// The bytes of the image there.
    size: u64,
}

/// Returns where the image can be taken from; `None` if it is nowhere, or nodes have different ones. What another owner's node has runs on
/// no other node unless the operator names it.
async fn find_owner(plans: &Plans, refused: &[(WorkerPlan, NodeError)], context: &Context) -> Option<Owner> {
    let all = plans.ok.iter().chain(refused.iter().map(|(plan, _)| plan));
    let having: Vec<(&String, &WorkerPlan)> = all.filter_map(|plan| Some((content(plan)?, plan))).collect();
    match nodeset::alike(having).as_slice() {
        [] => {
            let here = local(&context.target.cluster().image, context);
            let found = context.session.cancellation.run(async { Ok(here.await.ok()) }).await.ok().flatten()?;
            Some(Owner { from: SourceChoice::Local, name: "this machine".to_owned(), size: found.image.size })
        }
        [(_, plans)] => {
            let is_source = |plan: &&&WorkerPlan| plan.observed.member.node.is_source();
            let plan = plans.iter().find(is_source)?;
            let (name, image) = (plan.node().to_owned(), plan.observed.runtime.image.as_ref()?);
            Some(Owner { from: SourceChoice::Node(name.clone()), name, size: image.size })
        }
        _ => None,
    }
}

/// Gives the image of another node to those whose plans begin with a pull.
async fn take_from(from: &SourceChoice, plans: Plans, context: &Context) -> Result<Plans, Error> {
    let failed = give_to(from, &plans, context).await?;
    plan_again(plans, failed, context).await
}

/// Gives the nodes the image, and returns the failures.
async fn give_to(from: &SourceChoice, plans: &Plans, context: &Context) -> Result<Vec<NodeError>, Error> {
    let members = plans.ok.iter().map(|plan| plan.observed.member.clone()).collect();
    let nodes = NodeResults { ok: members, failed: Vec::new() };
    Ok(give(from, &context.target.cluster().image, nodes, context).await?.failed)
}

/// Plans again what is left on the nodes that were given the image in place of a pull. `failed`: those that were not, reported already.
async fn plan_again(plans: Plans, failed: Vec<NodeError>, context: &Context) -> Result<Plans, Error> {
    let Context { target, events, session, .. } = context;
    let plans = plans.leave_out(failed, WorkerPlan::node);
    let plan_again = async |mut plan: WorkerPlan| {
        if is_pull(&plan) {
            plan.received_image(&target.inventory).await?;
        }
        Ok(plan)
    };
    session.cancellation.run(async { Ok(plans.then(events, plan_again).await) }).await
}
