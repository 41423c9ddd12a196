//! `hvdctl slurm up`.

use crate::cli::SlurmUp;
use crate::cluster::each_node::{NodeResults, each_node};
use crate::cluster::member::Member;
use crate::cluster::observation::ObservedNode;
use crate::commands::Outcome;
use crate::commands::set_up::image::build::ensure;
use crate::commands::shared::context::{Context, node_rows};
use crate::delivery::project::ProjectImage;
use crate::delivery::recipe::Recipe;
use crate::document::NodeEntry;
use crate::error::Error;
use crate::event::Step;
use crate::inventory::Inventory;
use crate::node::network;
use crate::runtime::container::SLURM;
use crate::runtime::spec::ContainerSpec;
use crate::schedule::queue::config::SlurmNode;
use crate::schedule::queue::containers::{self, IMAGE};
use crate::schedule::queue::daemons;
use crate::schedule::queue::key::{self, Renewal};
use crate::text::nodeset;
use crate::text::units::count;
use schemars::JsonSchema;
use serde::Serialize;

/// The result of `slurm up` on a node.
#[derive(Debug, Serialize, JsonSchema)]
pub struct SlurmUpNode {
    /// True if anything was done.
    pub changed: bool,
    /// The image of its container.
    pub image: String,
}

/// `slurm up`.
pub async fn run(options: &SlurmUp, context: &Context) -> Result<Outcome, Error> {
    let Context { target, events, session, .. } = context;
    let cluster = target.cluster();
    check_owners(&target.inventory)?;
    let image = match &options.name {
        Some(image) => image.clone(),
        None => {
            let recipe = Recipe::of_step(IMAGE);
            let ensured =
                ensure("slurm", &recipe, options.timeout, None, (async { Ok(()) }, |_: &_| Ok(())), context).await?;
            let ProjectImage { image, .. } = ensured;
            image
        }
    };
    let nodes = context.observe_all(target, true, events).await?;
    let described = nodes.iter().map(|ObservedNode { member: Member { node, .. }, facts, .. }| {
        containers::slurm_node(&target.inventory, node, facts, network::slots(node, facts))
    });
    let described: Vec<SlurmNode> = described.collect::<Result<_, _>>()?;
    let places = nodes.iter().zip(&described).collect();
    let checked = each_node(places, events, async |(observed, place): (&ObservedNode, &SlurmNode)| {
        daemons::desired(cluster, observed, &image, place.address).await
    });
    let desired = session.cancellation.run(async { checked.await.all() }).await?;
    let (master, planned) = (&nodes[0], nodes.iter().zip(&desired).collect::<Vec<_>>());
    if planned.iter().any(|(observed, desired)| daemons::are_replaced(cluster, observed, *desired)) {
        check_idle(master).await?;
    }
    let key = key::current(cluster, &master.member, &described).await?;
    if let Some(message) = key.renewed.and_then(Renewal::message) {
        events.note(message);
    }
    let installed = each_node(planned, events, async |(observed, desired): (&ObservedNode, &[ContainerSpec; 2])| {
        let _step = events.begin(observed.name(), Step::write(format!("starting {SLURM}")));
        let files = containers::files(
            cluster,
            (observed.name(), observed.runtime.engine.engine("start Slurm")?.socket()),
            &described,
            &key.key,
        );
        let changed = daemons::install(cluster, observed, desired, &files).await?;
        session.progress.record(observed.name(), format!("started {SLURM}"));
        events.done(observed.name(), if changed { "started" } else { "unchanged" });
        Ok(NodeEntry::new(observed.name(), true, SlurmUpNode { changed, image: image.clone() }))
    });
    let installed = installed.await;
    if key.renewed.is_some() || installed.ok.iter().any(|node| node.result.as_ref().is_some_and(|done| done.changed)) {
        let have: Vec<&str> = installed.ok.iter().map(|node| node.node.as_str()).collect();
        key::record(cluster, &master.member, &have).await?;
    }
    session.progress.failed(&installed.failed);
    session.cancellation.check()?;
    if installed.failed.is_empty() {
        let engine = &master.runtime.engine;
        session.cancellation.run(daemons::wait_for_nodes(cluster, engine, &described)).await?;
    }
    Ok(outcome(installed))
}

pub(crate) fn outcome(nodes: NodeResults<NodeEntry<SlurmUpNode>>) -> Outcome {
    let done = |node: &SlurmUpNode| if node.changed { format!("started {SLURM}") } else { "unchanged".to_owned() };
    Outcome::of_nodes(node_rows(&nodes.ok, done), nodes, &[])
}

/// Checks that all nodes have one owner: root of each node of a Slurm can run programs as root among its daemons on all
/// others.
fn check_owners(inventory: &Inventory) -> Result<(), Error> {
    let own = &inventory.master().owner;
    let others = inventory.nodes.iter().filter(|node| node.owner != *own);
    let others = others.map(|node| (node.owner.as_deref().unwrap_or("you"), node.name.as_str()));
    let owned: Vec<String> = nodeset::alike(others)
        .into_iter()
        .map(|(owner, nodes)| format!("{} (of {owner})", nodeset::fold(&nodes)))
        .collect();
    match owned.is_empty() {
        true => Ok(()),
        false => Err(Error::usage(
            format!("the cluster's queue is for nodes of one owner, but others own {}", owned.join(", ")),
            "root on one of its nodes controls Slurm on all of them: use an inventory without these nodes, or jobs \
             without a queue; if Slurm is up, remove it: hvdctl slurm down",
        )),
    }
}

/// Checks that no job is lost when a container is replaced.
async fn check_idle(master: &ObservedNode) -> Result<(), Error> {
    match daemons::jobs(&master.runtime.engine).await?.len() {
        0 => Ok(()),
        jobs => Err(Error::check(
            format!("{SLURM} must be replaced, but Slurm has {} in its queue", count(jobs, "job")),
            "wait until they have ended, or stop them: hvdctl jobs, hvdctl stop",
        )),
    }
}
