//! `hvdctl image build` and `hvdctl image prune`, and the image of a project for `train`.

use super::Outcome;
use super::context::Context;
use super::image::{SourceChoice, give};
use super::output::{ImageBuild, ImagePruneNode, NodeEntry};
use crate::cli;
use crate::cluster::nodes::{Member, NodeResults, all, for_each_node};
use crate::error::{Error, NodeError};
use crate::image::build::{Build, remove_containers};
use crate::image::setup::{REPOSITORY, Setup};
use crate::inventory::Pull;
use crate::job::plan::environment;
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
        let (image, built) =
            ensure(&context.target.cluster().name, &Setup::default(), options.timeout, context).await?;
        context.events.note(format!("use it in the inventory: image = \"{image}\" in [cluster]"));
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

/// Gives all selected nodes the image of a setup: builds it on the first of them that launches jobs if none has it, and pushes it to
/// those that lack it. Returns its name, and whether anything was done.
///
/// # Errors
/// The cluster's image is missing, a step failed, or a node could not get the image.
async fn ensure(name: &str, setup: &Setup, limit: Duration, context: &Context) -> Result<(String, bool), Error> {
    let Context { target, fleet, events, session, .. } = context;
    let target = target.with_launcher();
    let base = &target.cluster().image;
    let asked = async {
        let members = fleet.all(&target, events).await?;
        let base = members[0].runtime().await?.image(base).await?.and_then(|image| image.content).ok_or_else(|| {
            NodeError::failed(&members[0].node.name, &format!("build on the image {base}"), "it is not on this node")
                .hint("hvdctl up, or hvdctl image push")
        })?;
        let image = setup.image(name, &base);
        let has =
            for_each_node(members.clone(), async |member| Ok(member.runtime().await?.image(&image).await?.is_some()));
        let has = all(events, has.await)?;
        Ok((members, image, has))
    };
    let (members, image, has) = session.cancellation.run(asked).await?;
    if has.iter().all(|has| *has) {
        return Ok((image, false));
    }
    let result = async {
        let owner = match has.iter().position(|has| *has) {
            Some(owner) => owner,
            None => {
                build_on_first(&image, setup, limit, context).await?;
                0
            }
        };
        if members.len() > 1 {
            session.lock_all(&members).await?;
            let from = SourceChoice::Node(members[owner].node.name.clone());
            let given = give(&from, &image, NodeResults { ok: members, failed: Vec::new() }, context).await?;
            if !given.failed.is_empty() {
                return Err(Error::Nodes { failed: given.failed, done: given.ok.len() });
            }
        }
        Ok(())
    };
    let result = result.await;
    session.locks.release().await;
    result.map(|()| (image, true))
}

/// Builds an image on the node that launches jobs.
async fn build_on_first(image: &str, setup: &Setup, limit: Duration, context: &Context) -> Result<(), Error> {
    let Context { target, events, session, verbose, .. } = context;
    let target = target.with_launcher();
    events.phase(format!("building {image}"));
    let first = target.only(target.selected.first().cloned());
    let observed = context.observe_all(&first, true, events).await?;
    let observed = &observed[0];
    let env = environment(&observed.member.node)?;
    let build = Build { cluster: target.cluster(), setup, image, env, limit, shows_output: *verbose > 0 };
    let built = session.cancellation.run(async { Ok(build.run(observed, events).await?) }).await;
    if built.is_err() {
        // a build that was cancelled has not removed it
        let _ = remove_containers(&observed.runtime.engine, target.cluster()).await;
    }
    session.locks.release().await;
    built
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
            let of_project = |name: &String| name.starts_with(&format!("{REPOSITORY}/"));
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
