//! `hvdctl export`: it reads the inventory and the project, and contacts no node.

use super::target::without_contact;
use super::{Outcome, output_file};
use crate::cli::{self, Export, ExportPods, Global};
use crate::cluster::target::Target;
use crate::error::Error;
use crate::event::Events;
use crate::export::dockerfile::{ImageRecipe, dockerfile};
use crate::export::project::{LARGEST, ProjectSource, check_names, refused};
use crate::export::variables::variables;
use crate::export::{ExportFormat, ExportRequest, Exported, ExportedVariable, ImageRequest, PodRequest, export};
use crate::files;
use crate::inventory::{Inventory, Node};
use crate::job::supervision::WatchOptions;
use crate::launch::env_file::{self, EnvFiles};
use crate::launch::placement::MapBy;
use crate::model::launcher::LauncherName;
use crate::start::request::{JobOptions, ResourceRequest};
use crate::sync::project::{self, ProjectCommand, ProjectFile};
use crate::sync::setup_files;
use crate::sync::text_files::{self, TextFile};
use crate::text::quote;
use crate::text::units::human;
use schemars::JsonSchema;
use serde::Serialize;
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

/// The most bytes of a project's Dockerfile.
const MOST_OF_DOCKERFILE: u64 = 1 << 20;

/// `export`.
#[derive(Debug, Serialize, JsonSchema)]
pub struct ExportDocument {
    /// The name of the job there.
    pub name: String,
    /// The document: YAML, or a batch script.
    pub text: String,
    /// The file that it was written to; null for standard output.
    pub file: Option<String>,
    /// What has no equivalent there.
    pub missing: Vec<String>,
    /// The commands with which it is submitted.
    pub commands: Vec<String>,
    /// The Dockerfile of its image; null if that is the cluster's.
    pub dockerfile: Option<String>,
}

/// `export`.
pub fn run(options: &Export, global: &Global, events: &Events) -> Result<Outcome, Error> {
    let job = options.job();
    job.output.as_deref().map_or(Ok(()), |file| output_file::check(file, job.force))?;
    if global.scheduler.is_some() {
        return Err(Error::usage("export starts nothing, and takes no --scheduler", "leave out --scheduler"));
    }
    let target = without_contact(global)?;
    let root = project::find(&job.project)?;
    let (exported, dockerfile) = match options {
        Export::Mpijob(pods) => for_pods(ExportFormat::MpiJob, pods, &root, &target)?,
        Export::Jobset(pods) => for_pods(ExportFormat::JobSet, pods, &root, &target)?,
        Export::Sbatch(options) => (for_slurm(options, &root, target, global.on.is_some())?, None),
    };
    exported.warnings.iter().for_each(|warning| events.warn(warning.as_str()));
    exported.missing.iter().for_each(|line| events.warn(format!("no equivalent: {line}")));
    if let (Some(text), Export::Mpijob(pods) | Export::Jobset(pods)) = (&dockerfile, options) {
        match &pods.dockerfile {
            Some(file) => output_file::write(file, text, job.force)?,
            None => events.note(format!("Dockerfile:\n{}", text.trim_end())),
        }
    }
    if let Some(file) = &job.output {
        output_file::write(file, &exported.text, job.force)?;
    }
    events.note(format!("in the project's directory:\n  {}", exported.commands.join("\n  ")));
    Ok(outcome(exported, job.output.as_deref(), dockerfile))
}

pub(super) fn outcome(exported: Exported, file: Option<&Path>, dockerfile: Option<String>) -> Outcome {
    let Exported { name, text, missing, commands, .. } = exported;
    let shown = match file {
        None => text.clone(),
        Some(file) => {
            let file = quote::readable(&file.display().to_string());
            format!("wrote {file} ({})\n", human(text.len() as u64))
        }
    };
    let file = file.map(|file| file.display().to_string());
    Outcome::ok(shown, ExportDocument { name, text, file, missing, commands, dockerfile })
}

/// `export mpijob` and `export jobset`. Returns also the Dockerfile of the image, if there is one.
fn for_pods(
    format: ExportFormat,
    pods: &ExportPods,
    root: &Path,
    target: &Target,
) -> Result<(Exported, Option<String>), Error> {
    if let Some(file) = &pods.dockerfile {
        output_file::check(file, pods.job.force)?;
    }
    let (inventory, nodes) = (&target.inventory, target.nodes());
    let (options, command) = job_options(
        &pods.job,
        root,
        inventory,
        ResourceRequest { ranks: Some(pods.job.np), map_by: MapBy::Slot, per_node: None },
    )?;
    let needs_ssh = format == ExportFormat::MpiJob;
    let dockerfile = image(pods, root, &inventory.cluster.image, needs_ssh)?;
    let texts = match pods.pvc.is_some() || pods.project_in_image {
        true => Vec::new(),
        false => texts(root)?,
    };
    let project = match &pods.pvc {
        Some(claim) => ProjectSource::Claim(claim),
        None if pods.project_in_image => ProjectSource::Image,
        None => ProjectSource::Texts(&texts),
    };
    let image = ImageRequest { tag: pods.tag.clone(), pin: pods.pin.clone(), dockerfile: dockerfile.clone() };
    let request = ExportRequest {
        inventory,
        nodes: &nodes,
        name: &job_name(&pods.job, root),
        command: &command,
        options: &options,
        variables: job_variables(&pods.job, &nodes)?,
        project,
        image,
        pods: PodRequest { slots: pods.slots, gpus: pods.gpus_per_node, gpu_product: pods.gpu_product.clone() },
        allow_missing: pods.job.allow_missing,
    };
    Ok((export(format, &request)?, dockerfile))
}

/// `export sbatch`.
fn for_slurm(options: &cli::ExportSbatch, root: &Path, target: Target, is_on: bool) -> Result<Exported, Error> {
    let job = &options.job;
    let ProjectFile { build, setup, .. } = ProjectFile::read(root)?;
    if !job.no_setup && (build.is_some() || setup.is_some()) {
        return Err(Error::usage(
            "the project has `setup` or `build` in hvdctl.toml, and Slurm starts processes without an image",
            "--no-setup, with slurm.activate in the inventory for what it needs",
        ));
    }
    if is_on && target.inventory.slurm.is_some() {
        let hint = "choose them by --sbatch=--nodelist=… or --sbatch=--constraint=…";
        return Err(Error::usage("--on: Slurm chooses the nodes of a job", hint));
    }
    // its launcher may be Slurm's own
    let scheduled = target.inventory.clone().under_slurm();
    let resources = ResourceRequest { ranks: Some(job.np), map_by: options.map_by, per_node: options.gpus_per_node };
    let (job_options, command) = job_options(job, root, &scheduled, resources)?;
    let job_options = JobOptions { sbatch: options.sbatch.clone(), ..job_options };
    let (nodes, inventory) = match target.inventory.slurm.is_some() {
        true => (scheduled.nodes.clone(), scheduled),
        false => (target.nodes(), target.inventory),
    };
    export(
        ExportFormat::Sbatch,
        &ExportRequest {
            inventory: &inventory,
            nodes: &nodes,
            name: &job_name(job, root),
            command: &command,
            options: &job_options,
            variables: job_variables(job, &nodes)?,
            project: ProjectSource::Image,
            image: ImageRequest::default(),
            pods: PodRequest::default(),
            allow_missing: job.allow_missing,
        },
    )
}

/// Returns how the job is run, and its command.
fn job_options(
    job: &cli::ExportedJob,
    root: &Path,
    inventory: &Inventory,
    resources: ResourceRequest,
) -> Result<(JobOptions, Vec<crate::text::argument::ProgramArgument>), Error> {
    let cluster = &inventory.cluster;
    let ProjectCommand { argv, launcher, .. } = project::command(root, job.command.clone())?;
    let launcher: LauncherName = job.launching.launcher(launcher, cluster)?;
    let options = JobOptions {
        resources,
        launcher,
        controller: job.launching.controller(cluster.controller),
        bind: cluster.bind,
        sbatch: Vec::new(),
        restarts: job.restarts,
        elastic: None,
        changes: None,
        stall_timeout: cluster.stall_timeout,
        log_max: None,
        log_progress: false,
        env: BTreeMap::new(),
        env_files: EnvFiles::new(),
        watch: WatchOptions::default(),
    };
    Ok((options, argv))
}

fn job_name(job: &cli::ExportedJob, root: &Path) -> String {
    let directory = || root.file_name().unwrap_or_default().to_string_lossy().into_owned();
    job.name.clone().unwrap_or_else(directory)
}

/// Returns the variables of the ranks. Of files only the names are kept.
fn job_variables(job: &cli::ExportedJob, nodes: &[Node]) -> Result<BTreeMap<String, ExportedVariable>, Error> {
    let names = |file: &Path| Ok::<BTreeSet<String>, Error>(env_file::read(file)?.into_keys().collect());
    let mut files = BTreeMap::new();
    for file in nodes.iter().filter_map(|node| node.container.env_file.clone()) {
        if !files.contains_key(&file) {
            files.insert(file.clone(), names(&file)?);
        }
    }
    let file = job.env_file.as_deref().map(names).transpose()?;
    variables(nodes, &files, file.unwrap_or_default(), &job.env)
}

/// Returns the Dockerfile of the job's image, unless that is the cluster's.
fn image(pods: &ExportPods, root: &Path, base: &str, needs_ssh: bool) -> Result<Option<String>, Error> {
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

fn texts(root: &Path) -> Result<Vec<TextFile>, Error> {
    let texts = text_files::read(root, LARGEST).map_err(refused)?;
    check_names(&texts)?;
    Ok(texts)
}
