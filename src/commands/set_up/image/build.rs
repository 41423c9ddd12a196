//! `hvdctl image build`, and the images of a project for `train`.

use crate::cli;
use crate::cluster::observation::ObservedNode;
use crate::commands::Outcome;
use crate::commands::shared::context::Context;
use crate::delivery::project::{ProjectBuild, ProjectImage};
use crate::delivery::recipe::Recipe;
use crate::error::Error;
use crate::inventory::Pull;
use crate::runtime::spec::is_setup_image;
use crate::start::roles::{JobRole, RoleImage};
use crate::sync::project::{self, ImageParts, ProjectFile, ProjectRole};
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
    /// The images of the project's roles, if it has any; then `image` is the first of them, and `changed` is true if a
    /// node lacked one.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub roles: Vec<BuiltImage>,
}

/// An image of roles.
#[derive(Debug, Serialize, JsonSchema)]
pub struct BuiltImage {
    /// The names of the roles that use it.
    pub roles: Vec<String>,
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
            None,
            (async { Ok(()) }, |_: &_| Ok(())),
            context,
        )
        .await?;
        context.events.note(format!("use it in the inventory: image = \"{image}\" and pull = \"peers\" in [cluster]"));
        return Ok(outcome(image, is_new));
    };
    let root = project::find(project)?;
    let file = ProjectFile::read(&root)?;
    let made = made_images(&file, file.roles.iter());
    if made.is_empty() {
        return Err(Error::usage(
            format!("the project {} has no setup and no Dockerfile", root.display()),
            "write in its hvdctl.toml what it needs: setup = [\"pip install -r requirements.txt\"], \
             setup_files = [\"requirements.txt\"]; or build = \"Dockerfile\"",
        ));
    }
    let project = root.file_name().unwrap_or_default().to_string_lossy();
    let mut built = Vec::new();
    for made in made {
        let recipe = Recipe::read(&root, made.parts.clone()).await?;
        let (name, none) = (made.name(&project), (async { Ok(()) }, |_: &_| Ok(())));
        let ProjectImage { image, is_new, .. } = ensure(&name, &recipe, options.timeout, None, none, context).await?;
        built.push(BuiltImage { roles: made.names, image, changed: is_new });
    }
    Ok(all_built(built))
}

/// `built`: whether anything was done.
pub(crate) fn outcome(image: String, built: bool) -> Outcome {
    let text = format!("{image}: {}\n", if built { "built" } else { "nothing to do" });
    Outcome::ok(text, ImageBuild { image, changed: built, roles: Vec::new() })
}

/// Returns the result of the images of a project, of which there is at least one.
fn all_built(built: Vec<BuiltImage>) -> Outcome {
    let BuiltImage { roles, image, changed } = &built[0];
    if roles.is_empty() {
        return outcome(image.clone(), *changed);
    }
    let image = image.clone();
    let line = |BuiltImage { roles, image, changed }: &BuiltImage| {
        format!("{image}: {} (image of {})\n", if *changed { "built" } else { "nothing to do" }, roles.join(", "))
    };
    let text: String = built.iter().map(line).collect();
    Outcome::ok(text, ImageBuild { image, changed: built.iter().any(|built| built.changed), roles: built })
}

/// Lets a job of a project use the images that the project and its roles need, which are built and pushed where they are
/// missing; a dry run only says so. The checks come before a build, which may take long: `check`, and that of the
/// observed nodes.
///
/// # Errors
/// As [`ensure`].
pub(crate) async fn use_images(
    root: &Path,
    name: &str,
    (dry_run, roles): (bool, &mut [JobRole]),
    (check, accepts): (impl AsyncFn() -> Result<(), Error>, impl Fn(&[ObservedNode]) -> Result<(), Error>),
    context: &mut Context,
) -> Result<(), Error> {
    let file = ProjectFile::read(root)?;
    let mut of_project = None;
    for made in made_images(&file, roles.iter().map(|role| &role.project)) {
        if dry_run {
            let own = || format!("the setup of {}", made.names.join(", "));
            let of = if made.is_of_project { "the project's setup".to_owned() } else { own() };
            context.events.note(format!("the image of {of} is built first if it is missing"));
            continue;
        }
        let recipe = context.session.cancellation.run(Recipe::read(root, made.parts.clone())).await?;
        let (name, nodes) = (made.name(name), made.nodes(roles));
        let given = ensure(&name, &recipe, STEP_LIMIT, nodes.as_deref(), (check(), &accepts), context).await?;
        context.env_files.extend(given.env_files);
        // those that are built later are not added to this one
        if made.is_of_project {
            of_project = Some(given.image);
            continue;
        }
        for role in &made.roles {
            roles[*role].image = Some(RoleImage { name: given.image.clone(), pull: Pull::Never });
        }
    }
    if let Some(image) = of_project {
        let cluster = &mut context.target.inventory.cluster;
        (cluster.image, cluster.pull) = (image, Pull::Never);
    }
    Ok(())
}

/// An image that a project makes.
struct MadeImage {
    parts: ImageParts,
    /// True if it is that of the project itself, in place of the cluster's.
    is_of_project: bool,
    /// The numbers of the roles that use it.
    roles: Vec<usize>,
    /// Their names.
    names: Vec<String>,
}

impl MadeImage {
    /// Returns the name of the project in that of the image. The images of other roles are not earlier ones of it.
    fn name(&self, project: &str) -> String {
        match self.names.first() {
            Some(role) if !self.is_of_project => format!("{project}-{role}"),
            _ => project.to_owned(),
        }
    }

    /// Returns the names of the nodes that its roles may have; `None`: all.
    fn nodes(&self, roles: &[JobRole]) -> Option<Vec<String>> {
        let nodes: Option<Vec<&Vec<String>>> = self.roles.iter().map(|role| roles[*role].nodes.as_ref()).collect();
        nodes.filter(|nodes| !nodes.is_empty()).map(|nodes| nodes.into_iter().flatten().cloned().collect())
    }
}

/// Returns the images that a job with these roles makes: one for all that have the same parts.
fn made_images<'a>(file: &ProjectFile, roles: impl ExactSizeIterator<Item = &'a ProjectRole>) -> Vec<MadeImage> {
    let of_project = file.image_parts(None);
    let image = |parts: ImageParts| {
        let is_of_project = of_project.as_ref() == Some(&parts);
        MadeImage { parts, is_of_project, roles: Vec::new(), names: Vec::new() }
    };
    if roles.len() == 0 {
        return of_project.clone().map(image).into_iter().collect();
    }
    let mut made: Vec<MadeImage> = Vec::new();
    for (number, role) in roles.enumerate() {
        let Some(parts) = file.image_parts(Some(&role.environment)) else { continue };
        let known = made.iter().position(|made| made.parts == parts);
        let position = known.unwrap_or_else(|| {
            made.push(image(parts));
            made.len() - 1
        });
        made[position].roles.push(number);
        made[position].names.push(role.name.clone());
    }
    made
}

/// Gives the selected nodes the image of a project: builds it on the node that launches jobs if that lacks it, and
/// pushes it to the nodes that lack it or have another one; with `only` set, to those of them that it names. Drained
/// nodes are left out. If a node lacks the image, `check` is run first, and `accepts` checks all selected nodes.
///
/// # Errors
/// The error of the check; the image that it builds on is missing, a step failed, or a node could not get the image.
pub(crate) async fn ensure(
    name: &str,
    recipe: &Recipe,
    limit: Duration,
    only: Option<&[String]>,
    (check, accepts): (impl Future<Output = Result<(), Error>>, impl FnOnce(&[ObservedNode]) -> Result<(), Error>),
    context: &Context,
) -> Result<ProjectImage, Error> {
    let Context { events, session, .. } = context;
    let target = context.target.with_launcher();
    let build = ProjectBuild { name, recipe, limit, shows_output: context.verbose > 0, site: context.site() };
    let is_launcher = |node: &str| node == context.target.inventory.master().name;
    let gets = |node: &str| only.is_none_or(|only| is_launcher(node) || only.iter().any(|name| name == node));
    let receivers = target.selected.iter().filter(|node| gets(node)).cloned();
    if let Some(found) = build.find(&target.only(receivers)).await? {
        return Ok(found);
    }
    session.cancellation.run(check).await?;
    // another command may have built it meanwhile
    let mut nodes = context.observe_all(&target, true, events).await?;
    let provided = match accepts(&nodes) {
        Ok(()) => {
            nodes.retain(|observed| gets(observed.name()));
            build.provide(nodes).await
        }
        Err(refused) => Err(refused),
    };
    session.locks.release().await;
    provided
}
