//! The inputs of `export`: the project, its hvdctl.toml, and files with variables, of which only the names are kept.

use crate::cli::{self, ExportPods};
use crate::commands::start::train::roles::with_launchers;
use crate::error::Error;
use crate::event::{Events, Message};
use crate::export::dockerfile::{ImageRecipe, dockerfile};
use crate::export::patch::{PodPatch, read_patches};
use crate::export::project::{LARGEST, check_names, refused};
use crate::export::variables::variables;
use crate::export::{ExportFormat, RankVariableMap};
use crate::files;
use crate::inventory::{Inventory, Node};
use crate::job::supervision::WatchOptions;
use crate::launch::env_file::{self, EnvFiles};
use crate::launch::job_size::JobSize;
use crate::start::request::{JobOptions, ResourceRequest};
use crate::start::roles::{JobRole, RoleOptions, choose};
use crate::sync::project::{self, ProjectCommand, ProjectFile};
use crate::sync::setup_files;
use crate::sync::text_files::{self, TextFile};
use crate::text::argument::ProgramArgument;
use crate::text::quote;
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

/// The most bytes of a project's Dockerfile.
const MOST_OF_DOCKERFILE: u64 = 1 << 20;
/// The most bytes of a patch.
const MOST_OF_PATCH: u64 = 1 << 20;

/// Returns how the job is run, and its command; of a project with roles that of the first one.
pub(super) fn job_options(
    job: &cli::ExportedJob,
    format: ExportFormat,
    root: &Path,
    inventory: &Inventory,
    resources: ResourceRequest,
) -> Result<(JobOptions, Vec<ProgramArgument>), Error> {
    let cluster = &inventory.cluster;
    let file = ProjectFile::read(root)?;
    match format {
        ExportFormat::JobSet => {}
        ExportFormat::MpiJob => {
            file.refuse_roles("export mpijob", "hvdctl export jobset, which has pods for each role")?
        }
        ExportFormat::Sbatch => {
            file.refuse_roles("export sbatch", "start the job with hvdctl train, or use hvdctl export jobset")?;
        }
    }
    let names_roles = job.role.is_some() || matches!(job.np, Some(JobSize::Roles(_)));
    let (argv, launcher, roles) = if file.roles.is_empty() && !names_roles {
        if job.np.is_none() {
            return Err(Error::usage("the number of ranks is missing", "give it with -np N"));
        }
        let ProjectCommand { argv, launcher, .. } = project::command(root, file, job.command.clone())?;
        (argv, job.launching.launcher(launcher, cluster)?, Vec::new())
    } else {
        let of_project = file.launcher;
        let asked = RoleOptions {
            size: job.np.as_ref(),
            only: job.role.as_deref(),
            command: job.command.clone(),
            on: Vec::new(),
        };
        let roles = with_launchers(choose(file.roles, asked)?, &job.launching, of_project, cluster)?;
        (roles[0].project.command.clone(), roles[0].launcher, roles)
    };
    let ranks = job.np.as_ref().and_then(JobSize::ranks).filter(|_| roles.is_empty());
    let options = JobOptions {
        resources: ResourceRequest { ranks, ..resources },
        launcher,
        controller: job.launching.controller(cluster.controller),
        bind: cluster.bind,
        submission: Vec::new(),
        restarts: job.restarts,
        elastic: None,
        changes: None,
        stall_timeout: cluster.stall_timeout,
        log_max: None,
        log_progress: false,
        env: BTreeMap::new(),
        env_files: EnvFiles::new(),
        roles,
        watch: WatchOptions::default(),
    };
    Ok((options, argv))
}

/// Returns the name of the job as the user or the project's directory has it.
pub(super) fn job_name(job: &cli::ExportedJob, root: &Path) -> String {
    let directory = || root.file_name().unwrap_or_default().to_string_lossy().into_owned();
    job.name.clone().unwrap_or_else(directory)
}

/// Returns the files with variables.
fn env_files<'a>(job: &'a cli::ExportedJob, nodes: &'a [Node]) -> BTreeSet<&'a Path> {
    let of_nodes = nodes.iter().filter_map(|node| node.container.env_file.as_deref());
    of_nodes.chain(job.env_file.as_deref()).collect()
}

/// Checks that the project takes no file with variables along. `texts`: its files, if they are in a ConfigMap; else
/// they are in an image.
///
/// # Errors
/// A file with variables in a ConfigMap, which many can read.
pub(super) fn check_env_files(
    job: &cli::ExportedJob,
    nodes: &[Node],
    root: &Path,
    texts: Option<&[TextFile]>,
    events: &Events,
) -> Result<(), Error> {
    for file in env_files(job, nodes) {
        let (Ok(whole), Ok(root)) = (file.canonicalize(), root.canonicalize()) else { continue };
        let Ok(inside) = whole.strip_prefix(root) else { continue };
        let file = quote::readable(&file.display().to_string());
        match texts {
            None => events.warn(
                Message::from(format!("{file} is in the project, and would be in the image"))
                    .hint("exclude it with a line in .dockerignore"),
            ),
            Some(texts) if texts.iter().any(|text| Path::new(&text.path) == inside) => {
                return Err(Error::usage(
                    format!("{file} has variables that may be secret, and would be in the ConfigMap of the project"),
                    "exclude it with a line in .hvdctlignore",
                ));
            }
            Some(_) => {}
        }
    }
    Ok(())
}

/// Returns the variables of all ranks, and those of each role. Of files only the names are kept.
pub(super) fn job_variables(
    job: &cli::ExportedJob,
    nodes: &[Node],
    roles: &[JobRole],
) -> Result<(RankVariableMap, Vec<RankVariableMap>), Error> {
    let names = |file: &Path| Ok::<BTreeSet<String>, Error>(env_file::read(file)?.into_keys().collect());
    let mut files = BTreeMap::new();
    for file in nodes.iter().filter_map(|node| node.container.env_file.clone()) {
        if !files.contains_key(&file) {
            files.insert(file.clone(), names(&file)?);
        }
    }
    let file = job.env_file.as_deref().map(names).transpose()?.unwrap_or_default();
    let of = |role: &BTreeMap<String, String>| variables(nodes, &files, role, &file, &job.env);
    let of_roles = roles.iter().map(|role| of(&role.project.env)).collect::<Result<Vec<_>, _>>()?;
    let mut all = of(&BTreeMap::new())?;
    all.extend(of_roles.iter().flatten().map(|(name, value)| (name.clone(), value.clone())));
    Ok((all, of_roles))
}

/// Returns the Dockerfile of the job's image, unless that is the cluster's.
pub(super) fn image(pods: &ExportPods, root: &Path, base: &str, needs_ssh: bool) -> Result<Option<String>, Error> {
    let ProjectFile { build, setup, setup_files: named, .. } = ProjectFile::read(root)?;
    let (build, setup) = if pods.job.no_setup { (None, None) } else { (build, setup) };
    if build.is_none() && setup.is_none() && !pods.project_in_image {
        return Ok(None);
    }
    let files = if setup.is_some() { setup_files::select(root, &named)? } else { Vec::new() };
    let build = build.map(|name| read_dockerfile(root, &name)).transpose()?;
    Ok(Some(dockerfile(&ImageRecipe {
        base,
        build: build.as_deref(),
        steps: &setup.unwrap_or_default(),
        files: &files,
        has_project: pods.project_in_image,
        needs_ssh,
    })))
}

/// Returns the text of the project's own Dockerfile.
fn read_dockerfile(root: &Path, name: &str) -> Result<String, Error> {
    let wrong = |why: String| {
        let name = quote::readable(name);
        Error::usage(
            format!("hvdctl.toml: build: cannot read {name}: {why}"),
            "correct it, or leave it out with --no-setup",
        )
    };
    let text = files::read_regular(&root.join(name), MOST_OF_DOCKERFILE).map_err(|error| wrong(error.to_string()))?;
    String::from_utf8(text).map_err(|_| wrong("it is not UTF-8".to_owned()))
}

/// Reads the patches for a document.
pub(super) fn patches(files: &[PathBuf]) -> Result<Vec<PodPatch>, Error> {
    let mut all = Vec::new();
    for file in files {
        let name = file.display().to_string();
        let wrong = |why: String| {
            Error::usage(format!("--patch {}: cannot read it: {why}", quote::readable(&name)), "name a file of YAML")
        };
        let text = files::read_regular(file, MOST_OF_PATCH).map_err(|error| wrong(error.to_string()))?;
        let text = String::from_utf8(text).map_err(|_| wrong("it is not UTF-8".to_owned()))?;
        all.extend(read_patches(&name, &text)?);
    }
    Ok(all)
}

/// Returns the files of a project that is to be in a ConfigMap.
pub(super) fn texts(root: &Path) -> Result<Vec<TextFile>, Error> {
    let texts = text_files::read(root, LARGEST).map_err(refused)?;
    check_names(&texts)?;
    Ok(texts)
}
