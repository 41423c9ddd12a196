//! `hvdctl image build`, and the image of a project for `train`.

use crate::cli;
use crate::cluster::observation::ObservedNode;
use crate::commands::Outcome;
use crate::commands::shared::context::Context;
use crate::delivery::project::{ProjectBuild, ProjectImage};
use crate::delivery::recipe::Recipe;
use crate::error::Error;
use crate::inventory::Pull;
use crate::runtime::spec::is_setup_image;
use crate::sync::project;
use schemars::JsonSchema;
use serde::Serialize;
use std::future::Future;
use std::path::Path;
use std::time::Duration;

/// `image build`.
#[derive(Debug, Serialize, JsonSchema)]
pub struct ImageBuild {
    /// The name of the image.
    pub image: String,
    /// True if a node lacked it.
    pub changed: bool,
}

/// The longest time that a step of a setup may take in `train`.
const STEP_LIMIT: Duration = Duration::from_secs(2 * 3600);

/// `image build`.
pub async fn run(options: &cli::ImageBuild, context: &Context) -> Result<Outcome, Error> {
    let Some(project) = &options.project else {
        let image = &context.target.cluster().image;
        if is_setup_image(image) {
            return Ok(outcome(image.clone(), false));
        }
        let recipe = Recipe::default();
        let ProjectImage { image, is_new, .. } = ensure(
            &context.target.cluster().name,
            &recipe,
            options.timeout,
            (async { Ok(()) }, |_: &_| Ok(())),
            context,
        )
        .await?;
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
    let ProjectImage { image, is_new, .. } =
        ensure(&name, &recipe, options.timeout, (async { Ok(()) }, |_: &_| Ok(())), context).await?;
    Ok(outcome(image, is_new))
}

/// `built`: whether anything was done.
pub(crate) fn outcome(image: String, built: bool) -> Outcome {
    let text = format!("{image}: {}\n", if built { "built" } else { "nothing to do" });
    Outcome::ok(text, ImageBuild { image, changed: built })
}

/// Lets a job of a project use the image that the project needs, which is built and pushed where it is missing; a dry
/// run only says so. The checks come before a build, which may take long: `check`, and that of the observed nodes.
///
/// # Errors
/// As [`ensure`].
pub(crate) async fn use_image(
    root: &Path,
    name: &str,
    dry_run: bool,
    check: (impl Future<Output = Result<(), Error>>, impl FnOnce(&[ObservedNode]) -> Result<(), Error>),
    context: &mut Context,
) -> Result<(), Error> {
    let reading = Recipe::read(root);
    let Some(recipe) = context.session.cancellation.run(reading).await? else { return Ok(()) };
    if dry_run {
        context.events.note("the image of the project's setup is built first if it is missing");
        return Ok(());
    }
    let ProjectImage { image, env_files, .. } = ensure(name, &recipe, STEP_LIMIT, check, context).await?;
    context.env_files = env_files;
    let cluster = &mut context.target.inventory.cluster;
    (cluster.image, cluster.pull) = (image, Pull::Never);
    Ok(())
}

/// Gives all selected nodes the image of a project: builds it on the node that launches jobs if that lacks it, and
/// pushes it to the nodes that lack it or have another one. Drained nodes are left out. If a node lacks the image,
/// `check` is run first, and `accepts` checks the nodes.
///
/// # Errors
/// The error of the check; the cluster's image is missing, a step failed, or a node could not get the image.
pub(crate) async fn ensure(
    name: &str,
    recipe: &Recipe,
    limit: Duration,
    (check, accepts): (impl Future<Output = Result<(), Error>>, impl FnOnce(&[ObservedNode]) -> Result<(), Error>),
    context: &Context,
) -> Result<ProjectImage, Error> {
    let Context { events, session, .. } = context;
    let target = context.target.with_launcher();
    let build = ProjectBuild { name, recipe, limit, shows_output: context.verbose > 0, site: context.site() };
    if let Some(found) = build.find(&target).await? {
        return Ok(found);
    }
    session.cancellation.run(check).await?;
    // another command may have built it meanwhile
    let nodes = context.observe_all(&target, true, events).await?;
    let provided = match accepts(&nodes) {
        Ok(()) => build.provide(nodes).await,
        Err(refused) => Err(refused),
    };
    session.locks.release().await;
    provided
}
