//! `hvdctl image build` and `hvdctl image prune`, and the image of a project for `train`.

use crate::cli;
use crate::cluster::each_node::{NodeResults, each_node};
use crate::cluster::member::Member;
use crate::cluster::observation::ObservedNode;
use crate::commands::Outcome;
use crate::commands::context::Context;
use crate::commands::image::pull::login;
use crate::commands::image::{SourceChoice, give};
use crate::delivery::relay::deployment;
use crate::document::NodeEntry;
use crate::error::{Error, NodeError};
use crate::event::{Events, Message, Phase};
use crate::image::build::{Build, ProjectDockerfile, remove_containers};
use crate::image::dockerfile::Dockerfile;
use crate::image::setup::{DIRECTORY, Setup};
use crate::inventory::{Cluster, Pull};
use crate::launch::env_file::{EnvFiles, environment};
use crate::runtime::Runtime;
use crate::runtime::spec::is_setup_image;
use crate::secret::Secret;
use crate::sync::files::ProjectFiles;
use crate::sync::project::{self, ProjectFile};
use crate::sync::setup_files;
use crate::text::nodeset::{self, printable};
use crate::text::units::count;
use crate::worker::image;
use anyhow::Context as _;
use schemars::JsonSchema;
use serde::Serialize;
use std::collections::BTreeMap;
use std::future::Future;
use std::path::Path;
use std::time::Duration;

/// `image build`.
#[derive(Debug, Serialize, JsonSchema)]
pub struct ImageBuild {
    /// The name of the image.
    pub image: String,
    /// Whether a node lacked it.
    pub changed: bool,
}

/// What `image prune` did on a node.
#[derive(Debug, Serialize, JsonSchema)]
pub struct ImagePruneNode {
    /// The names of the images that were removed.
    pub removed: Vec<String>,
}

/// The longest time that a step of a setup may take in `train`.
const STEP_LIMIT: Duration = Duration::from_secs(2 * 3600);

/// What makes the image of a project.
struct Recipe {
    setup: Setup,
    dockerfile: Option<OwnDockerfile>,
}

/// A project's own Dockerfile.
struct OwnDockerfile {
    /// Its path in the project.
    name: String,
    /// The images that it builds on.
    bases: Vec<String>,
    /// The files that it may read.
    context: ProjectFiles,
}

impl Recipe {
    /// Reads that of a project, if it has one.
    async fn read(root: &Path) -> Result<Option<Recipe>, Error> {
        let ProjectFile { build, setup, setup_files: named, .. } = ProjectFile::read(root)?;
        if build.is_none() && setup.is_none() {
            return Ok(None);
        }
        let path = root.to_owned();
        let reading = tokio::task::spawn_blocking(move || {
            let files = setup_files::select(&path, &named)?;
            Setup::read(&path, &setup.unwrap_or_default(), &files)
        });
        let setup = reading.await.context("cannot read the project")??;
        let dockerfile = match build {
            Some(name) => Some(OwnDockerfile::read(root, name).await?),
            None => None,
        };
        Ok(Some(Recipe { setup, dockerfile }))
    }

    /// Returns the content of what the setup is added to: of the cluster's image, or of all that makes the Dockerfile's. `None` if the
    /// node lacks an image that the Dockerfile builds on.
    ///
    /// # Errors
    /// If the node lacks the cluster's image.
    async fn base(&self, engine: &Runtime, node: &str, cluster: &Cluster) -> Result<Option<String>, NodeError> {
        let content =
            async |image: &str| Ok::<_, NodeError>(engine.image(image).await?.and_then(|image| image.content));
        let Some(OwnDockerfile { name, bases, context }) = &self.dockerfile else {
            let missing = || {
                NodeError::failed(node, "build on the cluster's image", "it is not on this node")
                    .hint("hvdctl up, or hvdctl image push")
            };
            return content(&cluster.image).await?.ok_or_else(missing).map(Some);
        };
        let mut parts = vec![name.clone(), context.hash.clone()];
        for base in bases {
            match content(base).await? {
                Some(content) => parts.extend([base.clone(), content]),
                None => return Ok(None),
            }
        }
        Ok(Some(parts.join("\n")))
    }

    /// Pulls what the Dockerfile builds on and the node lacks, because the name of the image depends on it.
    async fn pull_bases(&self, observed: &ObservedNode, context: &Context) -> Result<(), Error> {
        let engine = &observed.runtime.engine;
        for base in self.dockerfile.iter().flat_map(|dockerfile| &dockerfile.bases) {
            if engine.image(base).await?.is_none() {
                let node = &observed.member.node;
                let login = login(base, std::iter::once(node), context).await?;
                let login = login.for_node(node.owner.as_deref());
                let pulling = image::pull(base, &login, &observed.member, engine, &context.events);
                let pulled = context.events.step(observed.name(), image::step(base), pulling).await;
                context.events.report(pulled)?;
            }
        }
        Ok(())
    }
}

impl OwnDockerfile {
    async fn read(root: &Path, name: String) -> Result<OwnDockerfile, Error> {
        let (path, name) = (root.to_owned(), name.trim_start_matches("./").to_owned());
        let read = tokio::task::spawn_blocking(move || {
            let files = ProjectFiles::read(&path)?;
            let Dockerfile { bases, sources } = Dockerfile::parse(&files.dockerfile(&name)?);
            let context = files.build_context(&name, sources.as_deref())?;
            Ok(OwnDockerfile { name, bases, context })
        });
        read.await.context("cannot read the project")?
    }
}

/// `image build`.
pub async fn build(options: &cli::ImageBuild, context: &Context) -> Result<Outcome, Error> {
    let Some(project) = &options.project else {
        let image = &context.target.cluster().image;
        if is_setup_image(image) {
            return Ok(outcome(image.clone(), false));
        }
        let recipe = Recipe { setup: Setup::default(), dockerfile: None };
        let ProjectImage { image, is_new, .. } =
            ensure(&context.target.cluster().name, &recipe, options.timeout, async { Ok(()) }, context).await?;
        context.events.note(format!("use it in the inventory: image = \"{image}\" and pull = \"peers\" in [cluster]"));
        return Ok(outcome(image, is_new));
    };
    let root = project::find(project)?;
    let recipe = Recipe::read(&root).await?.ok_or_else(|| {
        Error::usage(
            format!("the project {} has no setup and no Dockerfile", root.display()),
            "write in its hvdctl.toml what it needs: setup = [\"pip install -r requirements.txt\"], \
             setup_files = [\"requirements.txt\"]; or build = \"Dockerfile\"",
        )
    })?;
    let name = root.file_name().unwrap_or_default().to_string_lossy();
    let ProjectImage { image, is_new, .. } = ensure(&name, &recipe, options.timeout, async { Ok(()) }, context).await?;
    Ok(outcome(image, is_new))
}

/// `built`: whether anything was done.
pub(crate) fn outcome(image: String, built: bool) -> Outcome {
    let text = format!("{image}: {}\n", if built { "built" } else { "nothing to do" });
    Outcome::ok(text, ImageBuild { image, changed: built })
}

/// Lets a job of a project use the image that the project needs, which is built and pushed where it is missing; a dry run only says so.
/// `check` comes before a build, which may take long.
///
/// # Errors
/// As [`ensure`].
pub(crate) async fn use_image(
    root: &Path,
    name: &str,
    dry_run: bool,
    check: impl Future<Output = Result<(), Error>>,
    context: &mut Context,
) -> Result<(), Error> {
    let reading = Recipe::read(root);
    let Some(recipe) = context.session.cancellation.run(reading).await? else { return Ok(()) };
    if dry_run {
        context.events.note("the image of the project's setup is built first where it is missing");
        return Ok(());
    }
    let ProjectImage { image, env_files, .. } = ensure(name, &recipe, STEP_LIMIT, check, context).await?;
    context.env_files = env_files;
    let cluster = &mut context.target.inventory.cluster;
    (cluster.image, cluster.pull) = (image, Pull::Never);
    Ok(())
}

/// An image that all selected nodes have.
struct ProjectImage {
    /// Its name.
    image: String,
    /// Whether anything was done.
    is_new: bool,
    /// The files with variables that were read for the build.
    env_files: EnvFiles,
}

impl ProjectImage {
    fn found(image: String) -> ProjectImage {
        ProjectImage { image, is_new: false, env_files: EnvFiles::new() }
    }
}

/// Gives all selected nodes the image of a project: builds it on that which launches jobs if that lacks it, and pushes it to those that lack
/// it or have another one. Drained nodes are left out. `check` comes before that, if a node lacks the image.
///
/// # Errors
/// That of the check; the cluster's image is missing, a step failed, or a node could not get the image.
async fn ensure(
    name: &str,
    recipe: &Recipe,
    limit: Duration,
    check: impl Future<Output = Result<(), Error>>,
    context: &Context,
) -> Result<ProjectImage, Error> {
    let Context { fleet, events, session, .. } = context;
    let target = context.target.with_launcher();
    let asked = async {
        let members = fleet.all(&target, events).await?;
        let first = &members[0];
        let base = recipe.base(&first.runtime().await?, &first.node.name, target.cluster()).await?;
        let Some(base) = base else { return Ok(None) };
        let image = recipe.setup.image(&target.cluster().name, name, &base);
        Ok(are_same(&contents(&members, &image, events).await?).then_some(image))
    };
    if let Some(image) = session.cancellation.run(asked).await? {
        return Ok(ProjectImage::found(image));
    }
    session.cancellation.run(check).await?;
    // another command may have built it meanwhile
    let nodes = context.observe_all(&target, true, events).await?;
    let provided = provide(name, recipe, limit, nodes, context).await;
    session.locks.release().await;
    provided
}

/// Provides the image of a project on nodes that are locked.
async fn provide(
    name: &str,
    recipe: &Recipe,
    limit: Duration,
    nodes: Vec<ObservedNode>,
    context: &Context,
) -> Result<ProjectImage, Error> {
    let Context { target, events, session, .. } = context;
    let nodes: Vec<ObservedNode> = nodes.into_iter().filter(|node| node.facts.drained.is_none()).collect();
    let Some(first) = nodes.first() else {
        return Err(Error::check("all selected nodes are drained", "hvdctl drain --undo NODE…"));
    };
    let members: Vec<Member> = nodes.iter().map(|node| node.member.clone()).collect();
    let asked = async {
        recipe.pull_bases(first, context).await?;
        let base = recipe.base(&first.runtime.engine, first.name(), target.cluster()).await?;
        let lost =
            || Error::from(NodeError::failed(first.name(), "build the image", "an image that it builds on is gone"));
        let image = recipe.setup.image(&target.cluster().name, name, &base.ok_or_else(lost)?);
        let found = contents(&members, &image, events).await?;
        Ok((image, found))
    };
    let (image, found) = session.cancellation.run(asked).await?;
    let mut ensured = ProjectImage::found(image);
    if are_same(&found) {
        return Ok(ensured);
    }
    // only what the node that builds has counts: whoever is root on another one decides what the name stands for there
    if found[0].is_none() {
        events.phase(Phase::BuildingImage { image: ensured.image.clone() });
        if let Some(step) = recipe.setup.editable() {
            let gone =
                format!("this installs a package by its files in {DIRECTORY}, which are removed after the build");
            events.warn(format!("setup: {}: {gone}\n  hint: leave out -e", printable(step)));
        }
        let env = environment(&first.member.node, &mut ensured.env_files)?;
        build_on(first, recipe, &ensured.image, env, limit, context).await?;
    }
    let is_other = |content: &Option<String>| content.is_some() && *content != found[0];
    let others = members.iter().zip(&found).filter(|(_, content)| is_other(content));
    let others: Vec<&str> = others.map(|(member, _)| member.node.name.as_str()).collect();
    if !others.is_empty() {
        let (others, image, first) = (nodeset::fold(&others), &ensured.image, first.name());
        events.warn(format!("{others}: another image was named {image}; it is replaced by that of {first}"));
    }
    if members.len() > 1 {
        let from = SourceChoice::Node(first.name().to_owned());
        let given = give(&from, &ensured.image, NodeResults { ok: members, failed: Vec::new() }, context).await?;
        if !given.failed.is_empty() {
            return Err(Error::Nodes { failed: given.failed, done: given.ok.len() });
        }
    }
    ensured.is_new = true;
    Ok(ensured)
}

/// Builds an image on a node, and leaves no container there.
async fn build_on(
    observed: &ObservedNode,
    recipe: &Recipe,
    image: &str,
    env: BTreeMap<String, Secret>,
    limit: Duration,
    context: &Context,
) -> Result<(), Error> {
    let Context { target, events, session, verbose, .. } = context;
    let files = || recipe.dockerfile.as_ref().expect("only a Dockerfile has a context").context.archive();
    let dockerfile =
        recipe.dockerfile.as_ref().map(|dockerfile| ProjectDockerfile { name: &dockerfile.name, context: &files });
    let (cluster, setup, shows_output) = (target.cluster(), &recipe.setup, *verbose > 0);
    let build = Build { cluster, dockerfile, setup, image, env, limit, shows_output };
    let built = session.cancellation.run(async { Ok(build.run(observed, events).await?) }).await;
    if built.is_err() {
        // a build that was cancelled has not removed it
        let _ = observed.runtime.engine.remove(&build.container()).await;
    }
    built
}

/// Returns the content of an image on each node that has it.
async fn contents(members: &[Member], image: &str, events: &Events) -> Result<Vec<Option<String>>, Error> {
    let content =
        async |member: Member| Ok(member.runtime().await?.image(image).await?.and_then(|image| image.content));
    each_node(members.to_vec(), events, content).await.all()
}

fn are_same(contents: &[Option<String>]) -> bool {
    contents.iter().all(|content| content.is_some() && *content == contents[0])
}

/// `image prune`.
pub async fn prune(options: &cli::ImagePrune, context: &Context) -> Result<Outcome, Error> {
    let nodes = context.connect_or_skip(false).await?.nodes;
    let nodes = context.lock_each(nodes).await?;
    let cluster = context.target.cluster();
    let remove = async |member: Member| {
        let engine = member.runtime().await?;
        remove_containers(&engine, cluster).await?;
        deployment::remove(&engine, &cluster.name).await?;
        let (found, unknown) = images_of_projects(&engine, cluster).await?;
        if !unknown.is_empty() {
            let (images, names) = (count(unknown.len(), "image"), unknown.join(" "));
            let text = format!("{images} of an earlier hvdctl stay, which may be another cluster's");
            let hint = format!("if they are not, on the node: docker rmi {names}");
            context.events.note(Message::of(&member.node.name, text).hint(hint));
        }
        let mut removed = Vec::new();
        for mut images in found.into_values() {
            images.sort();
            let kept = usize::from(!options.all);
            for (_, name) in images.into_iter().rev().skip(kept) {
                engine.remove_name(&name).await?;
                removed.push(name);
            }
        }
        Ok(NodeEntry::new(&member.node.name, true, ImagePruneNode { removed }))
    };
    let pruned_nodes =
        context.session.cancellation.run(async { Ok(nodes.then(&context.events, remove).await) }).await?;
    Ok(pruned(pruned_nodes))
}

/// Returns the images of a cluster's projects that no container uses, by repository, each with the time of its build; and the names of
/// those of which no cluster is known.
async fn images_of_projects(
    engine: &Runtime,
    cluster: &Cluster,
) -> Result<(BTreeMap<String, Vec<(String, String)>>, Vec<String>), NodeError> {
    let used: Vec<String> = engine.containers().await?.into_iter().map(|container| container.image_id).collect();
    let (mut found, mut unknown) = (BTreeMap::<String, Vec<_>>::new(), Vec::new());
    for listed in engine.images().await?.into_iter().filter(|listed| !used.contains(&listed.id)) {
        // the cluster's own is not made again by any job
        let of_project = |name: &String| is_setup_image(name) && !name.contains('@') && *name != cluster.image;
        for name in listed.names.into_iter().filter(of_project) {
            let Some((repository, _)) = name.rsplit_once(':') else { continue };
            let Some(image) = engine.image(&name).await? else { continue };
            match image.built_for {
                Some(owner) if owner == cluster.name => {
                    let created = image.created.unwrap_or_default();
                    found.entry(repository.to_owned()).or_default().push((created, name));
                }
                Some(_) => {}
                None => unknown.push(name),
            }
        }
    }
    Ok((found, unknown))
}

pub(crate) fn pruned(nodes: NodeResults<NodeEntry<ImagePruneNode>>) -> Outcome {
    let removed = |node: &NodeEntry<ImagePruneNode>| node.result.as_ref().map_or(0, |result| result.removed.len());
    let lines = nodes.ok.iter().map(|node| format!("{}: removed {}\n", node.node, count(removed(node), "image")));
    let text = lines.collect();
    Outcome::of_nodes(text, nodes, &[])
}
