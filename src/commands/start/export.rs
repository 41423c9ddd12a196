//! `hvdctl export`: it reads the inventory and the project, and contacts no node.

mod inputs;

use crate::cli::{self, Export, ExportPods, Global};
use crate::cluster::target::Target;
use crate::commands::Outcome;
use crate::commands::shared::output_file;
use crate::commands::shared::target::without_contact;
use crate::error::Error;
use crate::event::Events;
use crate::export::project::ProjectSource;
use crate::export::{ExportFormat, ExportRequest, Exported, ImageRequest, PodRequest, export};
use crate::launch::placement::MapBy;
use crate::model::launcher::LauncherName;
use crate::start::request::{JobOptions, ResourceRequest};
use crate::sync::project::{self, ProjectFile};
use crate::text::quote;
use crate::text::units::human;
use inputs::{check_env_files, image, job_name, job_options, job_variables, patches, texts};
use schemars::JsonSchema;
use serde::Serialize;
use std::path::Path;

/// `export`.
#[derive(Debug, Serialize, JsonSchema)]
pub struct ExportDocument {
    /// The name of the job there.
    pub name: String,
    /// The document: YAML, or a batch script.
    pub text: String,
    /// The file that it was written to; null for standard output.
    pub file: Option<String>,
    /// The settings and options that have no equivalent there, a sentence each.
    pub missing: Vec<String>,
    /// The commands that submit it.
    pub commands: Vec<String>,
    /// The Dockerfile of its image; null if that is the cluster's.
    pub dockerfile: Option<String>,
}

/// `export`.
pub fn run(options: &Export, global: &Global, events: &Events) -> Result<Outcome, Error> {
    let job = options.job();
    job.output.as_deref().map_or(Ok(()), |file| output_file::check("-o", file, job.force))?;
    if global.scheduler.is_some() {
        return Err(Error::usage("export starts nothing, and does not take --scheduler", "leave out --scheduler"));
    }
    let target = without_contact(global, events)?;
    let root = project::find(&job.project)?;
    let (exported, dockerfile) = match options {
        Export::Mpijob(pods) => for_pods(ExportFormat::MpiJob, pods, &root, &target, events)?,
        Export::Jobset(pods) => for_pods(ExportFormat::JobSet, pods, &root, &target, events)?,
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

pub(in crate::commands) fn outcome(exported: Exported, file: Option<&Path>, dockerfile: Option<String>) -> Outcome {
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
    events: &Events,
) -> Result<(Exported, Option<String>), Error> {
    if let Some(file) = &pods.dockerfile {
        output_file::check("--dockerfile", file, pods.job.force)?;
    }
    if pods.job.launching.launcher == Some(LauncherName::Srun) {
        return Err(Error::usage("srun is the launcher of Slurm", "hvdctl export sbatch"));
    }
    let (inventory, nodes) = (&target.inventory, target.nodes());
    let resources = ResourceRequest { ranks: None, map_by: MapBy::Slot, per_node: None };
    let (options, command) = job_options(&pods.job, format, root, inventory, resources)?;
    let needs_ssh = format == ExportFormat::MpiJob;
    let dockerfile = image(pods, root, &inventory.cluster.image, needs_ssh)?;
    check_dockerfile(pods, root, dockerfile.is_some())?;
    let texts = match pods.pvc.is_some() || pods.project_in_image {
        true => Vec::new(),
        false => texts(root)?,
    };
    if pods.pvc.is_none() {
        check_env_files(&pods.job, &nodes, root, (!pods.project_in_image).then_some(&texts), events)?;
    }
    let project = match &pods.pvc {
        Some(claim) => ProjectSource::Claim(claim),
        None if pods.project_in_image => ProjectSource::Image,
        None => ProjectSource::Texts(&texts),
    };
    let image = ImageRequest { tag: pods.tag.clone(), pin: pods.pin.clone(), dockerfile: dockerfile.clone() };
    let (variables, role_variables) = job_variables(&pods.job, &nodes, &options.roles)?;
    let request = ExportRequest {
        inventory,
        nodes: &nodes,
        name: &job_name(&pods.job, root),
        command: &command,
        options: &options,
        variables,
        role_variables,
        project,
        image,
        pods: PodRequest {
            slots: pods.slots,
            gpus: pods.gpus_per_node,
            gpu_product: pods.gpu_product.clone(),
            resources: pods.resource.clone(),
            tolerations: pods.toleration.clone(),
            patches: patches(&pods.patch)?,
        },
        allow_missing: pods.job.allow_missing,
    };
    Ok((export(format, &request)?, dockerfile))
}

/// Checks that `--dockerfile` names a file of its own.
fn check_dockerfile(pods: &ExportPods, root: &Path, has_one: bool) -> Result<(), Error> {
    let Some(file) = &pods.dockerfile else { return Ok(()) };
    let same = |other: &Path| output_file::is_same(file, other);
    let build = ProjectFile::read(root)?.build.map(|build| root.join(build));
    let why = match has_one {
        false => "the job uses the cluster's image, so there is no Dockerfile",
        true if pods.job.output.as_deref().is_some_and(same) => "-o and --dockerfile name the same file",
        true if build.as_deref().is_some_and(same) => "--dockerfile names the project's own Dockerfile",
        true => return Ok(()),
    };
    Err(Error::usage(why, "leave out --dockerfile, or name another file"))
}

/// `export sbatch`.
fn for_slurm(options: &cli::ExportSbatch, root: &Path, target: Target, is_on: bool) -> Result<Exported, Error> {
    let job = &options.job;
    let ProjectFile { build, setup, .. } = ProjectFile::read(root)?;
    if !job.no_setup && (build.is_some() || setup.is_some()) {
        return Err(Error::usage(
            "the project has `setup` or `build` in hvdctl.toml, but Slurm starts processes without an image",
            "use --no-setup, and set up what it needs with slurm.activate in the inventory",
        ));
    }
    if is_on && target.inventory.slurm.is_some() {
        let hint = "choose them by --sbatch=--nodelist=… or --sbatch=--constraint=…";
        return Err(Error::usage("--on: Slurm chooses the nodes of a job", hint));
    }
    // its launcher may be Slurm's own
    let scheduled = target.inventory.clone().under_slurm();
    let resources = ResourceRequest { ranks: None, map_by: options.map_by, per_node: options.gpus_per_node };
    let (job_options, command) = job_options(job, ExportFormat::Sbatch, root, &scheduled, resources)?;
    let job_options = JobOptions { submission: options.sbatch.clone(), ..job_options };
    let nodes = if target.inventory.slurm.is_some() { scheduled.nodes } else { target.nodes() };
    export(
        ExportFormat::Sbatch,
        &ExportRequest {
            inventory: &target.inventory,
            nodes: &nodes,
            name: &job_name(job, root),
            command: &command,
            options: &job_options,
            variables: job_variables(job, &nodes, &[])?.0,
            role_variables: Vec::new(),
            project: ProjectSource::Image,
            image: ImageRequest::default(),
            pods: PodRequest::default(),
            allow_missing: job.allow_missing,
        },
    )
}
