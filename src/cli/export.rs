//! Arguments of `export`.

use super::run::{LauncherChoice, name, sbatch};
use crate::export::resources::{GivenResource, Toleration};
use crate::export::variables::GivenVariable;
use crate::inventory::{IMAGE, VARIABLE};
use crate::launch::job_size::JobSize;
use crate::launch::placement::MapBy;
use crate::text::argument::ProgramArgument;
use clap::{Args, Subcommand, ValueHint};
use std::path::PathBuf;

/// The subcommands of `export`.
#[derive(Debug, Subcommand)]
pub enum Export {
    /// Print a job for Kubeflow's MPI operator (horovodrun, mpirun)
    Mpijob(ExportPods),
    /// Print a job for Kubernetes' JobSet (torchrun, env)
    Jobset(ExportPods),
    /// Print a batch script for Slurm (all launchers)
    Sbatch(ExportSbatch),
}

/// Options that all exports have in common.
#[derive(Debug, Args)]
pub struct ExportedJob {
    /// Project directory
    #[arg(value_hint = ValueHint::DirPath)]
    pub project: PathBuf,
    /// Number of ranks, also written -np N; ROLE=N,ROLE=N sets those of roles [default: that of the roles in hvdctl.toml]
    #[arg(long = "np", value_name = "N", allow_negative_numbers = true)]
    pub np: Option<JobSize>,
    /// Export only this role of hvdctl.toml (jobset)
    #[arg(long, value_name = "NAME")]
    pub role: Option<String>,
    /// Launch options
    #[command(flatten)]
    pub launching: LauncherChoice,
    /// Set a variable for the ranks: NAME=VALUE, or NAME to keep the value out of the document
    #[arg(short, long = "env", value_name = "NAME[=VALUE]", value_parser = variable)]
    pub env: Vec<GivenVariable>,
    /// Set the variables of this file for the ranks; only their names appear in the document
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub env_file: Option<PathBuf>,
    /// Name of the job [default: that of the project]
    #[arg(long, value_name = "NAME", value_parser = name)]
    pub name: Option<String>,
    /// Restart the job up to N times after a failure
    #[arg(long, value_name = "N", default_value_t = 0, value_parser = clap::value_parser!(u32).range(..=1000))]
    pub restarts: u32,
    /// Ignore `setup` and `build` in hvdctl.toml
    #[arg(long)]
    pub no_setup: bool,
    /// Ignore settings without an equivalent [default: refuse those that change what the program finds]
    #[arg(long)]
    pub allow_missing: bool,
    /// File to write [default: standard output]
    #[arg(short, long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub output: Option<PathBuf>,
    /// Overwrite existing files
    #[arg(long)]
    pub force: bool,
    /// Program to run [default: `command` in hvdctl.toml, otherwise train.py or main.py]
    #[arg(last = true, value_name = "COMMAND")]
    pub command: Vec<ProgramArgument>,
}

/// Options of `export mpijob` and `export jobset`.
#[derive(Debug, Args)]
#[command(after_help = PODS)]
pub struct ExportPods {
    /// Options of every export
    #[command(flatten)]
    pub job: ExportedJob,
    /// GPUs per pod; 0: none [default: those of a node in the inventory]
    #[arg(long, value_name = "K", value_parser = clap::value_parser!(u32).range(..=1024))]
    pub gpus_per_node: Option<u32>,
    /// Maximum number of ranks per pod [default: --gpus-per-node, otherwise the slots of a node in the inventory]
    #[arg(long, value_name = "K", value_parser = clap::value_parser!(u32).range(1..=1024))]
    pub slots: Option<u32>,
    /// Run only on nodes with this GPU, as nvidia-smi names it
    #[arg(long, value_name = "NAME")]
    pub gpu_product: Option<String>,
    /// Request this resource for each pod that has ranks; an accelerator (amd.com/gpu=4) takes the place of
    /// --gpus-per-node; may be repeated
    #[arg(long, value_name = "NAME=N", value_parser = GivenResource::parse)]
    pub resource: Vec<GivenResource>,
    /// Tolerate this taint, as kubectl describe node shows it; may be repeated
    #[arg(long, value_name = "KEY[=VALUE][:EFFECT]", value_parser = Toleration::parse)]
    pub toleration: Vec<Toleration>,
    /// Merge this file of YAML into the pods, as Kubernetes merges a strategic merge patch; may be repeated
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub patch: Vec<PathBuf>,
    /// Mount this PersistentVolumeClaim, which has the project, at /workspace [default: a ConfigMap]
    #[arg(long, value_name = "NAME")]
    pub pvc: Option<String>,
    /// Put the project into the image, and print its Dockerfile
    #[arg(long, conflicts_with = "pvc")]
    pub project_in_image: bool,
    /// Name under which the image of the printed Dockerfile is pushed
    #[arg(long, value_name = "IMAGE", value_parser = image)]
    pub tag: Option<String>,
    /// Write the Dockerfile to this file [default: standard error]
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub dockerfile: Option<PathBuf>,
    /// Pin the image to this digest, whatever its name refers to later
    #[arg(long, value_name = "DIGEST", value_parser = digest)]
    pub pin: Option<String>,
}

/// Options of `export sbatch`.
#[derive(Debug, Args)]
#[command(after_help = SBATCH)]
pub struct ExportSbatch {
    /// Options of every export
    #[command(flatten)]
    pub job: ExportedJob,
    /// Option of sbatch, passed on unchanged: --sbatch=--exclude=node3; may be repeated
    #[arg(long, value_name = "OPTION", allow_hyphen_values = true, value_parser = sbatch)]
    pub sbatch: Vec<String>,
    /// Place ranks slot by slot, or node by node
    #[arg(long, value_name = "BY", default_value = "slot")]
    pub map_by: MapBy,
    /// Request only K GPUs (or tasks, without GPUs) per node
    #[arg(long, value_name = "K", value_parser = clap::value_parser!(u32).range(1..))]
    pub gpus_per_node: Option<u32>,
}

const PODS: &str = "\
Contacts no node and no cluster. The comment at the top of the document lists the commands to run before it is \
applied, and the settings of the inventory that have no equivalent in Kubernetes; docs/guide/kubernetes.md has both as \
a table.

Exit codes: 0 written; 1 a file could not be written; 2 wrong usage, or the job cannot be exported.";

const SBATCH: &str = "\
Contacts no node. The script does not need hvdctl: submit it in the project's directory, which all nodes must share.

Exit codes: 0 written; 1 a file could not be written; 2 wrong usage, or the job cannot be exported.";

fn variable(text: &str) -> Result<GivenVariable, String> {
    let (name, value) = text.split_once('=').map_or((text, None), |(name, value)| (name, Some(value.to_owned())));
    VARIABLE.read(name)?;
    Ok((name.to_owned(), value))
}

fn image(text: &str) -> Result<String, String> {
    let name = IMAGE.read(text)?;
    match name.contains('@') {
        true => Err("expected a name with a tag, without a digest".to_owned()),
        false => Ok(name),
    }
}

fn digest(text: &str) -> Result<String, String> {
    let is_hex =
        |hash: &str| hash.len() == 64 && hash.bytes().all(|b| b.is_ascii_digit() || (b'a'..=b'f').contains(&b));
    match text.strip_prefix("sha256:").is_some_and(is_hex) {
        true => Ok(text.to_owned()),
        false => {
            Err("expected sha256: and 64 hexadecimal digits, as `docker buildx imagetools inspect` shows it".to_owned())
        }
    }
}

impl Export {
    /// Returns what every exported job has.
    pub fn job(&self) -> &ExportedJob {
        match self {
            Export::Mpijob(options) | Export::Jobset(options) => &options.job,
            Export::Sbatch(options) => &options.job,
        }
    }
}
