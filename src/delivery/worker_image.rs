//! The delivery of the cluster's image to nodes whose workers need it: from its registry, or from a node or a machine
//! that has it.

use super::image::give;
use super::origin::{Origin, SourceChoice};
use super::pull::login;
use crate::cluster::each_node::{NodeResults, for_each_node};
use crate::cluster::site::Site;
use crate::error::{Error, ErrorKind, NodeError};
use crate::inventory::Pull;
use crate::runtime::Image;
use crate::runtime::spec::is_setup_image;
use crate::text::nodeset;
use crate::text::units::human;
use crate::worker::apply::{WorkerPlan, WorkerPlans};
use crate::worker::plan::Operation;

/// Another place that has the image.
struct Owner {
    from: SourceChoice,
    /// Its name in messages.
    name: String,
    /// The bytes of the image there.
    size: u64,
}

/// Gives the image to the nodes whose plans begin with a pull. The rest of them is then planned again, because checks
/// compare the images. `accepts` asks the operator whether nodes that could not pull it get it from elsewhere.
///
/// # Errors
/// If there is no image to give, the question has no answer, or the command is cancelled.
pub async fn pull_planned(
    plans: WorkerPlans,
    site: Site<'_>,
    accepts: impl AsyncFn(&str) -> Result<bool, Error>,
) -> Result<WorkerPlans, Error> {
    let Site { target, events, session, .. } = site;
    let cluster = site.cluster();
    if !plans.ok.iter().any(is_pull) {
        return Ok(plans);
    }
    // no registry has what hvdctl has built, but anyone may have registered its name there
    if cluster.pull == Pull::Peers || is_setup_image(&cluster.image) {
        let failed = give_to(&SourceChoice::Anywhere, &plans, site).await?;
        return plan_again(plans, failed, site).await;
    }
    let pulling = plans.ok.iter().filter(|plan| is_pull(plan)).map(|plan| &plan.observed.member.node);
    let login = login(&cluster.image, pulling, site).await?;
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
    if refused.is_empty() { Ok(plans) } else { offer(plans, refused, site, accepts).await }
}

fn is_pull(plan: &WorkerPlan) -> bool {
    matches!(plan.next(), Some(Operation::Pull { .. }))
}

/// Gives the nodes that could not pull the image that of another node or of this machine, if the operator wants that.
async fn offer(
    mut plans: WorkerPlans,
    refused: Vec<(WorkerPlan, NodeError)>,
    site: Site<'_>,
    accepts: impl AsyncFn(&str) -> Result<bool, Error>,
) -> Result<WorkerPlans, Error> {
    let Site { target, events, .. } = site;
    let name = &target.cluster().image;
    let has_image = |plan: &WorkerPlan| content(plan).is_some();
    // no space is left for one from elsewhere either
    let can_take = |(plan, error): &(WorkerPlan, NodeError)| error.kind != ErrorKind::NoSpace && !has_image(plan);
    let lacking: Vec<&str> = refused.iter().filter(|node| can_take(node)).map(|(plan, _)| plan.node()).collect();
    let lacking = nodeset::fold(&lacking);
    let found = if lacking.is_empty() { None } else { find_owner(&plans, &refused, site).await };
    let Some(Owner { from, name: owner, size }) = found else {
        return Ok(plans.without(events, refused.into_iter().map(|(_, error)| error).collect(), WorkerPlan::node));
    };
    let cause = refused[0].1.message.lines().next().unwrap_or_default().to_owned();
    let question = format!(
        "{lacking}: cannot pull {name}: {cause}\n{owner} has it ({}). Copy it from there, over the SSH connections of \
         this machine?",
        human(size)
    );
    if accepts(&question).await? {
        events.note(format!("{lacking}: copying the image from {owner}, because it cannot be pulled: {cause}"));
        let (taking, failed): (Vec<_>, Vec<_>) = refused.into_iter().partition(can_take);
        let (taking, errors): (Vec<_>, Vec<_>) = taking.into_iter().unzip();
        plans.ok.extend(taking);
        let nodes = target.nodes();
        plans.ok.sort_by_key(|plan| nodes.iter().position(|node| node.name == plan.node()));
        let failed: Vec<NodeError> = failed.into_iter().map(|(_, error)| error).collect();
        let plans = plans.without(events, failed, WorkerPlan::node);
        return match give_to(&from, &plans, site).await {
            Ok(given) => plan_again(plans, given, site).await,
            Err(error @ (Error::Signal(_) | Error::Lost(_))) => Err(error),
            // the others go on
            Err(error) => {
                let why = format!("it could not be copied from {owner} either: {error}");
                let errors = errors.into_iter().map(|error: NodeError| error.hint(&why));
                Ok(plans.without(events, errors.collect(), WorkerPlan::node))
            }
        };
    }
    let with_hint = |(_, error): (WorkerPlan, NodeError)| {
        error.hint(format!(
            "{owner} has the image: hvdctl image push, or hvdctl -y up, copies it to the others; pull = \"peers\" in \
             [cluster] does so each time"
        ))
    };
    let failed = refused.into_iter().map(with_hint).collect();
    Ok(plans.without(events, failed, WorkerPlan::node))
}

/// Returns the content of the image that the plan's node has.
fn content(plan: &WorkerPlan) -> Option<&String> {
    plan.observed.runtime.image.as_ref().and_then(|image: &Image| image.content.as_ref())
}

/// Returns where the image can be taken from; `None` if it is nowhere, or nodes have different ones. What another
/// owner's node has runs on no other node unless the operator names it.
async fn find_owner(plans: &WorkerPlans, refused: &[(WorkerPlan, NodeError)], site: Site<'_>) -> Option<Owner> {
    let all = plans.ok.iter().chain(refused.iter().map(|(plan, _)| plan));
    let having: Vec<(&String, &WorkerPlan)> = all.filter_map(|plan| Some((content(plan)?, plan))).collect();
    match nodeset::alike(having).as_slice() {
        [] => {
            let here = Origin::here(&site.cluster().image, site);
            let found = site.session.cancellation.run(async { Ok(here.await.ok()) }).await.ok().flatten()?;
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

/// Gives the nodes the image, and returns the failures.
async fn give_to(from: &SourceChoice, plans: &WorkerPlans, site: Site<'_>) -> Result<Vec<NodeError>, Error> {
    let members = plans.ok.iter().map(|plan| plan.observed.member.clone()).collect();
    let nodes = NodeResults { ok: members, failed: Vec::new() };
    Ok(give(from, &site.cluster().image, nodes, site).await?.failed)
}

/// Plans again what is left on the nodes that were given the image instead of a pull. `failed`: those that were
/// not, reported already.
async fn plan_again(plans: WorkerPlans, failed: Vec<NodeError>, site: Site<'_>) -> Result<WorkerPlans, Error> {
    let Site { target, events, session, .. } = site;
    let plans = plans.leave_out(failed, WorkerPlan::node);
    let plan_again = async |mut plan: WorkerPlan| {
        if is_pull(&plan) {
            plan.received_image(&target.inventory).await?;
        }
        Ok(plan)
    };
    session.cancellation.run(async { Ok(plans.then(events, plan_again).await) }).await
}
