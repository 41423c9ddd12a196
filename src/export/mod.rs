//! A job as other schedulers take it: an MPIJob or a JobSet for Kubernetes, or a batch script for Slurm.
//!
//! Everything here is a function of the inventory, the project and the options of `export`: an [`ExportRequest`] gives
//! an [`Exported`] document, with what the user has to do before it can be submitted. No node is contacted, and no
//! value of a secret is read: a document has the names of variables. `shape` decides how many pods a job has, `pod`
//! what an MPIJob and a JobSet have in common, `gaps` what of the inventory has no equivalent, `roles` how the
//! roles of a project become parts of a JobSet, `dockerfile` how an
//! image is made of `setup` or of the project. `manifest` has the types of the documents, into which `patch` merges what
//! the user adds; `resources` checks that they ask for the GPUs of the inventory.

pub mod dockerfile;
mod gaps;
mod jobset;
mod manifest;
mod mpijob;
mod names;
pub mod patch;
mod pod;
pub mod project;
pub mod resources;
mod roles;
mod sbatch;
mod shape;
pub mod variables;
mod yaml;

use crate::error::Error;
use crate::inventory::{Controller, Inventory, LauncherName, Node};
use crate::launch;
use crate::launch::placement::RankCount;
use crate::start::request::JobOptions;
use crate::text::argument::ProgramArgument;
use patch::PodPatch;
use project::ProjectSource;
use resources::{GivenResource, Toleration};
use std::collections::BTreeMap;

/// The format to which a job is exported.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ExportFormat {
    /// A resource of Kubeflow's MPI operator.
    MpiJob,
    /// A resource of Kubernetes' JobSet.
    JobSet,
    /// A script for sbatch.
    Sbatch,
}

/// The value of a variable of the ranks, as far as a document may have it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ExportedVariable {
    /// One that everybody may read.
    Value(String),
    /// One that may be secret: a document only has its name.
    Secret,
    /// One whose value was given, and is left out because it is named like a secret.
    Withheld,
}

/// Variables of ranks by their names.
pub type RankVariableMap = BTreeMap<String, ExportedVariable>;

/// The image of the pods.
#[derive(Debug, Clone, Default)]
pub struct ImageRequest {
    /// The name under which the image of the printed Dockerfile is pushed.
    pub tag: Option<String>,
    /// The digest that the image must have.
    pub pin: Option<String>,
    /// The Dockerfile, if the cluster's image is not enough.
    pub dockerfile: Option<String>,
}

/// The resources that the pods of a job request from Kubernetes.
#[derive(Debug, Clone, Default)]
pub struct PodRequest {
    /// Ranks of a pod, if they are not those of a node.
    pub slots: Option<u32>,
    /// GPUs of a pod, if they are not those of a node; 0: none.
    pub gpus: Option<u32>,
    /// The product of the GPUs, as `nvidia-smi` or the node's label names it.
    pub gpu_product: Option<String>,
    /// Other resources of a pod that has ranks. One that is an accelerator takes the place of `nvidia.com/gpu`.
    pub resources: Vec<GivenResource>,
    /// The taints that all pods tolerate.
    pub tolerations: Vec<Toleration>,
    /// The patches that are merged into the document, in this order.
    pub patches: Vec<PodPatch>,
}

/// A job to export.
#[derive(Debug)]
pub struct ExportRequest<'a> {
    /// The inventory.
    pub inventory: &'a Inventory,
    /// Its selected nodes.
    pub nodes: &'a [Node],
    /// The job's name, as the user or the project's directory has it.
    pub name: &'a str,
    /// The command of every rank.
    pub command: &'a [ProgramArgument],
    /// The options of the job.
    pub options: &'a JobOptions,
    /// The variables of the ranks; in a job with roles those of all roles.
    pub variables: RankVariableMap,
    /// The variables of the ranks of each role.
    pub role_variables: Vec<RankVariableMap>,
    /// The source of the project.
    pub project: ProjectSource<'a>,
    /// The image of its pods.
    pub image: ImageRequest,
    /// The resources that its pods request.
    pub pods: PodRequest,
    /// If set, settings without an equivalent that change what the program finds are only reported.
    pub allow_missing: bool,
}

/// A document for another scheduler.
#[derive(Debug)]
pub struct Exported {
    /// The job's name there.
    pub name: String,
    /// The document.
    pub text: String,
    /// The settings and options that have no equivalent there, a sentence each.
    pub missing: Vec<String>,
    /// Facts that the user may not expect, a sentence each.
    pub warnings: Vec<String>,
    /// The commands that come before it is submitted, and the one that submits it.
    pub commands: Vec<String>,
}

/// Exports a job.
///
/// # Errors
/// [`Error::Usage`]: what the format cannot express, with what to change.
pub fn export(format: ExportFormat, request: &ExportRequest<'_>) -> Result<Exported, Error> {
    let options = request.options;
    let names = |variables| RankVariableMap::keys(variables).map(String::as_str);
    if options.roles.is_empty() {
        let launcher = launch::launcher(options.launcher, options.controller);
        launcher.check_variables(names(&request.variables))?;
    }
    for (role, variables) in options.roles.iter().zip(&request.role_variables) {
        role.launcher().check_variables(names(variables))?;
    }
    if format != ExportFormat::Sbatch {
        pod::check_runtime(request)?;
    }
    let mut exported = match format {
        ExportFormat::MpiJob => mpijob::export(request),
        ExportFormat::JobSet => jobset::export(request),
        ExportFormat::Sbatch => sbatch::export(request),
    }?;
    let withheld = request.variables.iter().filter(|(_, value)| **value == ExportedVariable::Withheld);
    exported.warnings.extend(withheld.map(|(name, _)| {
        format!("{name} is named like a secret: its value is not in the document; set it in your environment")
    }));
    Ok(exported)
}

impl ExportRequest<'_> {
    fn launcher(&self) -> LauncherName {
        self.options.launcher
    }

    fn controller(&self) -> Controller {
        self.options.controller
    }

    /// Returns the number of ranks.
    ///
    /// # Errors
    /// An elastic job, whose size only hvdctl changes.
    fn ranks(&self) -> Result<u32, Error> {
        match self.options.resources.ranks {
            Some(RankCount { min: None, max }) => Ok(max),
            _ => Err(Error::usage(
                "-np MIN:MAX is for elastic jobs, whose nodes hvdctl itself adds and removes",
                "give one number of ranks",
            )),
        }
    }

    /// Returns the arguments of the command as text.
    ///
    /// # Errors
    /// One that is not UTF-8, as no YAML and no script in UTF-8 has it.
    fn argv(&self) -> Result<Vec<String>, Error> {
        texts(self.command)
    }

    /// Returns the names of the variables that may be secret.
    fn secrets(&self) -> Vec<&str> {
        let secrets = self.variables.iter().filter(|(_, value)| !matches!(value, ExportedVariable::Value(_)));
        secrets.map(|(name, _)| name.as_str()).collect()
    }
}

/// Returns the arguments of a command as text.
///
/// # Errors
/// One that is not UTF-8, as no YAML and no script in UTF-8 has it.
fn texts(command: &[ProgramArgument]) -> Result<Vec<String>, Error> {
    let text = |argument: &ProgramArgument| match argument {
        ProgramArgument::Text(text) => Ok(text.clone()),
        ProgramArgument::Bytes(_) => Err(Error::usage(
            format!("the argument {argument} is not UTF-8, but the exported document is"),
            "rename what it names",
        )),
    };
    command.iter().map(text).collect()
}

/// Returns true for a character that may end a line of YAML or of a script, or that neither accepts in text.
fn is_line_end(c: char) -> bool {
    c.is_control() || matches!(c, '\u{85}' | '\u{2028}' | '\u{2029}' | '\u{feff}')
}

/// Returns texts as lines of a comment; a line end in one begins no other line.
fn comment(lines: &[String]) -> String {
    let line = |line: &String| match line.is_empty() {
        true => "#\n".to_owned(),
        false => format!("# {}\n", line.replace(is_line_end, " ")),
    };
    lines.iter().map(line).collect()
}
