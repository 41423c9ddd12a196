//! `hvdctl image build` and `hvdctl image prune`, and the image of a project for `train`.

use super::Outcome;
use super::context::Context;
use super::image::{SourceChoice, give};
use super::output::{ImageBuild, ImagePruneNode, NodeEntry};
use crate::cli;
use crate::cluster::nodes::{Member, NodeResults, ObservedNode, all, for_each_node};
use crate::error::{Error, NodeError};
use crate::event::Events;
use crate::image::build::{Build, remove_containers};
use crate::image::setup::Setup;
use crate::inventory::Pull;
use crate::job::plan::environment;
use crate::runtime::Image;
use crate::runtime::spec::is_setup_image;
use crate::sync::project::{self, ProjectFile};
use crate::text::units::count;
use std::collections::BTreeMap;
use std::path::Path;
use std::time::Duration;

/// The longest time that a step of a setup may take in `train`.
const STEP_LIMIT: Duration = Duration::from_secs(2 * 3600);

/// `image build`.
pub async fn build(options: &cli::ImageBuild, context: &Context) -> Result<Outcome, Error> {
    let Some(project) = &options.project else {
        let image = &context.target.cluster().image;
        if is_setup_image(image) {
            return Ok(outcome(image.clone(), false));
        }
        let (image, built) =
            ensure(&context.target.cluster().name, &Setup::default(), options.timeout, context).await?;
        context.events.note(format!("use it in the inventory: image = \"{image}\" and pull = \"peers\" in [cluster]"));
        return Ok(outcome(image, built));
    };
    let root = project::find(project)?;
    let setup = setup(&root)?.ok_or_else(|| {
        Error::usage(
            format!("the project {} has no setup", root.display()),
            "write in its hvdctl.toml what it needs: setup = [\"pip install -r requirements.txt\"], \
             setup_files = [\"requirements.txt\"]",
        )
    })?;
    let name = root.file_name().unwrap_or_default().to_string_lossy();
    let (image, built) = ensure(&name, &setup, options.timeout, context).await?;
    Ok(outcome(image, built))
}

/// `built`: whether anything was done.
pub(super) fn outcome(image: String, built: bool) -> Outcome {
    let text = format!("{image}: {}\n", if built { "built" } else { "nothing to do" });
    Outcome::ok(text, ImageBuild { image, changed: built })
}

/// Returns the setup of a project, if it has one.
fn setup(root: &Path) -> Result<Option<Setup>, Error> {
    let file = ProjectFile::read(root)?;
    file.setup.map(|steps| Setup::read(root, &steps, &file.setup_files)).transpose()
}

/// Lets a job of a project use the image of its setup, which is built and pushed where it is missing; a dry run only says so.
///
/// # Errors
/// As [`ensure`].
pub(super) async fn use_image(root: &Path, name: &str, dry_run: bool, context: &mut Context) -> Result<(), Error> {
    let Some(setup) = setup(root)? else { return Ok(()) };
    if dry_run {
        context.events.note("the image of the project's setup is built first where it is missing");
        return Ok(());
    }
    let (image, _) = ensure(name, &setup, STEP_LIMIT, context).await?;
    let cluster = &mut context.target.inventory.cluster;
    (cluster.image, cluster.pull) = (image, Pull::Never);
    Ok(())
}

/// Gives all selected nodes the image of a setup: builds it on that which launches jobs if none has it, and pushes it to those that lack
/// it. Drained nodes are left out. Returns its name, and whether anything was done.
///
/// # Errors
/// The cluster's image is missing, a step failed, or a node could not get the image.
async fn ensure(name: &str, setup: &Setup, limit: Duration, context: &Context) -> Result<(String, bool), Error> {
    let Context { fleet, events, session, .. } = context;
    let target = context.target.with_launcher();
    let asked = async {
        let members = fleet.all(&target, events).await?;
        let first = &members[0];
        let image = setup.image(name, &base(first, first.runtime().await?.image(&target.cluster().image).await?)?);
        let contents = contents(&members, &image, events).await?;
        Ok((image, are_same(&contents)))
    };
    if let (image, true) = session.cancellation.run(asked).await? {
        return Ok((image, false));
    }
    // another command may have built it meanwhile
    let nodes = context.observe_all(&target, true, events).await?;
    let provided = provide(name, setup, limit, nodes, context).await;
    session.locks.release().await;
    provided
}

/// The same for nodes that are locked.
async fn provide(
    name: &str,
    setup: &Setup,
    limit: Duration,
    nodes: Vec<ObservedNode>,
    context: &Context,
) -> Result<(String, bool), Error> {
    let Context { target, events, session, .. } = context;
    let nodes: Vec<ObservedNode> = nodes.into_iter().filter(|node| node.facts.drained.is_none()).collect();
    let Some(first) = nodes.first() else {
        return Err(Error::check("all selected nodes are drained", "hvdctl drain --undo NODE…"));
    };
    let image = setup.image(name, &base(&first.member, first.runtime.image.clone())?);
    let members: Vec<Member> = nodes.iter().map(|node| node.member.clone()).collect();
    let found = session.cancellation.run(async { contents(&members, &image, events).await }).await?;
    if are_same(&found) {
        return Ok((image, false));
    }
    let owner = match found.iter().position(Option::is_some) {
        Some(owner) => owner,
        None => {
            events.phase(format!("building {image}"));
            let env = environment(&first.member.node)?;
            let shows_output = context.verbose > 0;
            let build = Build { cluster: target.cluster(), setup, image: &image, env, limit, shows_output };
            let built = session.cancellation.run(async { Ok(build.run(first, events).await?) }).await;
            if built.is_err() {
                // a build that was cancelled has not removed it
                let _ = first.runtime.engine.remove(&build.container()).await;
            }
            built?;
            0
        }
    };
    if members.len() > 1 {
        let from = SourceChoice::Node(members[owner].node.name.clone());
        let given = give(&from, &image, NodeResults { ok: members, failed: Vec::new() }, context).await?;
        if !given.failed.is_empty() {
            return Err(Error::Nodes { failed: given.failed, done: given.ok.len() });
        }
    }
    Ok((image, true))
}

/// Returns the content of the image that a setup is added to.
fn base(member: &Member, image: Option<Image>) -> Result<String, NodeError> {
    image.and_then(|image| image.content).ok_or_else(|| {
        NodeError::failed(&member.node.name, "build on the cluster's image", "it is not on this node")
            .hint("hvdctl up, or hvdctl image push")
    })
}

/// Returns the content of an image on each node that has it.
async fn contents(members: &[Member], image: &str, events: &Events) -> Result<Vec<Option<String>>, Error> {
    let content =
        async |member: Member| Ok(member.runtime().await?.image(image).await?.and_then(|image| image.content));
    all(events, for_each_node(members.to_vec(), content).await)
}

fn are_same(contents: &[Option<String>]) -> bool {
    contents.iter().all(|content| content.is_some() && *content == contents[0])
}

/// `image prune`.
pub async fn prune(options: &cli::ImagePrune, context: &Context) -> Result<Outcome, Error> {
    let nodes = context.connect_or_skip(false).await?.nodes;
    let nodes = context.lock_each(nodes).await?;
    let remove = async |member: Member| {
        let engine = member.runtime().await?;
        remove_containers(&engine, context.target.cluster()).await?;
        let used: Vec<String> = engine.containers().await?.into_iter().map(|container| container.image_id).collect();
        let mut found: BTreeMap<String, Vec<(String, String)>> = BTreeMap::new();
        for listed in engine.images().await? {
            // the cluster's own is not made again by any job
            let of_project =
                |name: &String| is_setup_image(name) && !name.contains('@') && *name != context.target.cluster().image;
            for name in listed.names.iter().filter(|name| of_project(name)) {
                let Some((repository, _)) = name.rsplit_once(':').filter(|_| !used.contains(&listed.id)) else {
                    continue;
                };
                let created = engine.image(name).await?.and_then(|image| image.created).unwrap_or_default();
                found.entry(repository.to_owned()).or_default().push((created, name.clone()));
            }
        }
        let mut removed = Vec::new();
        for images in found.values_mut() {
            images.sort();
            let kept = usize::from(!options.all);
            for (_, name) in images.iter().rev().skip(kept) {
                engine.remove_name(name).await?;
                removed.push(name.clone());
            }
        }
        Ok(NodeEntry::new(&member.node.name, true, ImagePruneNode { removed }))
    };
    let pruned_nodes =
        context.session.cancellation.run(async { Ok(nodes.then(&context.events, remove).await) }).await?;
    Ok(pruned(pruned_nodes))
}

pub(super) fn pruned(nodes: NodeResults<NodeEntry<ImagePruneNode>>) -> Outcome {
    let removed = |node: &NodeEntry<ImagePruneNode>| node.result.as_ref().map_or(0, |result| result.removed.len());
    let lines = nodes.ok.iter().map(|node| format!("{}: removed {}\n", node.node, count(removed(node), "image")));
    let text = lines.collect();
    Outcome::of_nodes(text, nodes, &[])
}
