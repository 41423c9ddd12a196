//! A batch script that needs nothing but Slurm.
//!
//! hvdctl itself submits another program (`allocation.py`), which becomes the job supervisor. The script asks for the
//! same resources and starts the same launcher with the same variables, by `srun`.

use super::gaps::{OtherScheduler, missing};
use super::{ExportRequest, Exported, ExportedVariable, comment};
use crate::error::Error;
use crate::inventory::{Cluster, Controller, Gpus, LauncherName, Node, Slurm};
use crate::launch::placement::MapBy;
use crate::launch::{self, open_mpi::time_to_end};
use crate::node::network::known_slots;
use crate::schedule::slurm::options::submission;
use crate::start::request::JobOptions;
use crate::text::quote;
use crate::text::units::count;

/// The part of every script that comes before it starts the ranks of `torchrun`, `env` and `horovodrun`.
const NODES: &str = include_str!("../scripts/export/nodes.bash");
/// Runs steps of the job in the place of ssh.
const SSH: &str = include_str!("../scripts/export/ssh.bash");
/// Keeps the environment from the command lines of horovodrun with Gloo.
const INHERIT: &str = include_str!("../scripts/export/inherit.bash");
/// Starts the ranks, waits for them, and starts them again after a failure.
const RUN: &str = include_str!("../scripts/export/run.bash");
/// Runs an agent of torchrun on each node.
const TORCHRUN: &str = include_str!("../scripts/export/torchrun.bash");
/// Runs each rank with the variables that frameworks read.
const ENV: &str = include_str!("../scripts/export/env.bash");

/// Asks the ranks of all steps to end, but not this script, nor the `srun` of a step, which would kill it at once
/// (`src/srun/libsrun/srun_job.c`).
const END_STEPS: &str = "scancel --signal=TERM \"$SLURM_JOB_ID\"";
/// Asks a launcher to end, which ends its ranks.
const END_LAUNCHER: &str = "kill -TERM $!";

/// The signal of which the script has a trap: Slurm sends it some time before the limit.
const SIGNAL: &str = "USR2";

/// The command that starts every step of ranks: when one rank fails, the others end.
const STEP: &str = "srun --kill-on-bad-exit=1 --unbuffered --input=none --export=ALL";

/// Exports a job.
pub(super) fn export(request: &ExportRequest<'_>) -> Result<Exported, Error> {
    let cluster = &request.inventory.cluster;
    let mut slurm = request.inventory.slurm.clone().unwrap_or_default();
    let is_of_slurm = request.inventory.slurm.is_some();
    let mut missing = missing(request, OtherScheduler::Slurm)?;
    if !is_of_slurm {
        slurm.gres = slurm.gres.or_else(|| gpus(request).map(|gpus| format!("gpu:{gpus}")));
        if cluster.can().images {
            missing.push(format!(
                "cluster.image {}: Slurm starts processes; for a container, put apptainer exec --nv IMAGE before the command",
                quote::readable(&cluster.image)
            ));
        }
    }
    request.ranks()?;
    let mut job = request.options.clone();
    if !is_of_slurm && slurm.gres.is_none() {
        let slots = request.nodes.iter().map(known_slots).min().flatten();
        job.resources.per_node = job.resources.per_node.or(slots);
    }
    // hvdctl follows the output of its own jobs elsewhere
    let is_output = |option: &str| option.starts_with("--output=") || option.starts_with("-o");
    let output: Vec<String> = job.submission.extract_if(.., |option| is_output(option)).collect();
    let options = [submitted(&slurm, &job, cluster)?, output].concat();
    if let Some(bad) = options.iter().find(|option| option.contains(|c: char| c.is_control())) {
        return Err(Error::usage(
            format!("the option {} of sbatch has a control character", quote::readable(bad)),
            "leave it out",
        ));
    }
    let secrets = request.secrets();
    let mut text = "#!/bin/bash -l\n".to_owned();
    let name = format!("--job-name={}", request.name.replace(|c: char| c.is_control(), " "));
    text.extend([&name].into_iter().chain(&options).map(|option| format!("#SBATCH {}\n", directive(option))));
    text.push_str(&comment(&about(request, &missing)?));
    text.push_str(&environment(request, &slurm)?);
    text.push_str(&launch(request)?);
    text.push_str(&format!(
        "\nhvdctl_restarts={}\nhvdctl_pause={}\n{}",
        request.options.restarts,
        cluster.restart_pause.as_secs(),
        RUN.replace("END_RANKS", if by_steps(request.launcher()) { END_STEPS } else { END_LAUNCHER })
    ));
    let mut warnings = Vec::new();
    if !secrets.is_empty() {
        warnings.push(format!("set {} before sbatch, which passes your environment on", secrets.join(", ")));
    }
    let may_have = |node: &Node| node.gpus != Gpus::Count(0);
    let is_unsaid = request.options.resources.per_node.is_none();
    if !is_of_slurm && slurm.gres.is_none() && is_unsaid && request.nodes.iter().any(may_have) {
        warnings.push(
            "the inventory does not give the number of GPUs of all nodes, so the script requests none; --gpus-per-node \
             K does"
                .to_owned(),
        );
    }
    let commands = vec!["sbatch FILE".to_owned()];
    Ok(Exported { name: request.name.to_owned(), text, missing, warnings, commands })
}

/// Returns the options of sbatch in the script.
fn submitted(slurm: &Slurm, job: &JobOptions, cluster: &Cluster) -> Result<Vec<String>, Error> {
    let submitted = submission(slurm, job, cluster, SIGNAL)?;
    if submitted.warning.is_some() {
        return Err(Error::usage(
            "--signal: the script has a --signal of its own, at which its ranks get SIGTERM",
            "leave it out, or change both in the script: --signal, and the trap",
        ));
    }
    Ok(submitted.options)
}

/// Returns an option as sbatch reads it in a script: a backslash escapes there, also in quotes
/// (`src/sbatch/opt.c`, `_get_argument`).
fn directive(option: &str) -> String {
    quote::readable(&option.replace('\\', "\\\\"))
}

/// Returns the GPUs of each node for which an inventory without `[slurm]` asks, if it says so.
fn gpus(request: &ExportRequest<'_>) -> Option<u32> {
    let of_node = |gpus: &Gpus| match gpus {
        Gpus::Count(gpus) => Some(*gpus),
        Gpus::List(list) => Some(list.len() as u32),
        Gpus::Auto | Gpus::All => None,
    };
    let least = request.nodes.iter().map(|node| of_node(&node.gpus)).min().flatten();
    request.options.resources.per_node.or(least).filter(|gpus| *gpus > 0)
}

/// Returns what the script says of itself.
fn about(request: &ExportRequest<'_>, missing: &[String]) -> Result<Vec<String>, Error> {
    let ranks = count(request.ranks()? as usize, "rank");
    let mut lines = vec![
        format!("{ranks} started by {}, made by `hvdctl export sbatch`.", request.launcher()),
        "Submit it in the project's directory, which all nodes must share: sbatch FILE".to_owned(),
        "hvdctl itself submits its own program with these options. This script starts the same program with the same"
            .to_owned(),
        "variables through Slurm's own commands; it does not find root causes, or ranks that hang.".to_owned(),
    ];
    if request.options.resources.map_by == MapBy::Node {
        lines.push("Ranks are spread over all nodes that Slurm gives (--spread-job).".to_owned());
    }
    if !missing.is_empty() {
        lines.push("Without an equivalent:".to_owned());
        lines.extend(missing.iter().map(|line| format!("  {line}")));
    }
    Ok(lines)
}

/// The variables that the script sets for the ranks of `env`; for those of `torchrun` and `horovodrun` the first two.
const OWN: [&str; 9] = [
    "MASTER_ADDR",
    "MASTER_PORT",
    "NODE_RANK",
    "GROUP_RANK",
    "LOCAL_WORLD_SIZE",
    "TF_CONFIG",
    "JAX_COORDINATOR_ADDRESS",
    "JAX_NUM_PROCESSES",
    "JAX_PROCESS_ID",
];

/// Variables that bash has for itself: it refuses to set them, or changes them.
const OF_BASH: [&str; 14] = [
    "BASHOPTS",
    "BASHPID",
    "DIRSTACK",
    "EUID",
    "FUNCNAME",
    "GROUPS",
    "IFS",
    "LINENO",
    "OPTIND",
    "PPID",
    "RANDOM",
    "SECONDS",
    "SHELLOPTS",
    "UID",
];

/// Returns whether all ranks are in steps of the job.
fn by_steps(launcher: LauncherName) -> bool {
    !matches!(launcher, LauncherName::Mpirun | LauncherName::Horovodrun)
}

/// Returns the variables that the script sets for the ranks.
fn own(launcher: LauncherName) -> &'static [&'static str] {
    match launcher {
        LauncherName::Env => &OWN,
        LauncherName::Torchrun | LauncherName::Horovodrun => &OWN[..2],
        LauncherName::Mpirun | LauncherName::Srun => &[],
    }
}

/// Returns the lines of `activate`: those of `[slurm]`, else those of the nodes.
fn activate<'a>(request: &'a ExportRequest<'_>, slurm: &'a Slurm) -> Result<&'a [String], Error> {
    if request.inventory.slurm.is_some() {
        return Ok(&slurm.activate);
    }
    let first = request.nodes.first().map_or(&[][..], |node| &node.container.activate);
    match request.nodes.iter().find(|node| node.container.activate != first) {
        None => Ok(first),
        Some(other) => Err(Error::usage(
            format!(
                "`activate` of {} differs from that of {}, but the script has only one",
                other.name, request.nodes[0].name
            ),
            "set it in [defaults], or select nodes of one kind with --on",
        )),
    }
}

/// Returns the lines that set up the environment. Those of `activate` are the user's own bash.
fn environment(request: &ExportRequest<'_>, slurm: &Slurm) -> Result<String, Error> {
    let mut lines = String::from("\n");
    lines.extend(activate(request, slurm)?.iter().map(|line| format!("{line}\n")));
    if let Some(name) = own(request.launcher()).iter().find(|name| request.variables.contains_key(**name)) {
        return Err(Error::usage(
            format!("{name} cannot be set: the exported job sets it"),
            "remove it from -e, `env` and `env_file`, or set it in the command: env NAME=VALUE PROGRAM",
        ));
    }
    if let Some(name) = OF_BASH.iter().find(|name| request.variables.contains_key(**name)) {
        return Err(Error::usage(
            format!("{name} cannot be set: bash, which runs the script, uses it itself"),
            "set it in the command: -- env NAME=VALUE PROGRAM",
        ));
    }
    if !request.variables.contains_key("PYTHONUNBUFFERED") {
        lines.push_str("export PYTHONUNBUFFERED=1\n");
    }
    if request.launcher() == LauncherName::Mpirun {
        let ending = time_to_end(request.inventory.cluster.stop_grace).into_iter();
        let ending = ending.filter(|(name, _)| !request.variables.contains_key(*name));
        lines.extend(ending.map(|(name, value)| format!("export {name}={value}\n")));
    }
    // steps have as many cores as were asked for, as before Slurm 22.05
    if matches!(request.launcher(), LauncherName::Srun | LauncherName::Env) {
        lines.push_str("[ -z \"${SLURM_CPUS_PER_TASK:-}\" ] || export SRUN_CPUS_PER_TASK=$SLURM_CPUS_PER_TASK\n");
    }
    for (name, value) in &request.variables {
        match value {
            ExportedVariable::Value(value) => {
                lines.push_str(&format!("export {}", quote::exported(name, value).as_str()));
            }
            ExportedVariable::Secret | ExportedVariable::Withheld => {
                lines.push_str(&format!(": \"${{{name}?set it before sbatch}}\"\nexport {name}\n"))
            }
        }
    }
    Ok(lines)
}

/// Returns the lines that define `start`, which starts all ranks and waits for them.
fn launch(request: &ExportRequest<'_>) -> Result<String, Error> {
    let (ranks, command) = (request.ranks()?, quote::command(&request.argv()?));
    let nodes = format!("\nhvdctl_ranks={ranks}\n{NODES}");
    Ok(match request.launcher() {
        LauncherName::Srun => format!("\nstart() {{\n  {STEP} --ntasks={ranks} --distribution=block {command}\n}}\n"),
        LauncherName::Mpirun => {
            let others = request.variables.keys().filter(|name| *name != "PYTHONUNBUFFERED");
            let passed: String = others.map(|name| format!(" -x {name}")).collect();
            format!(
                "\n# Open MPI finds the nodes of the allocation itself\nstart() {{\n  exec mpirun -np {ranks} --map-by slot \
                 --bind-to none -x PYTHONUNBUFFERED{passed} {command}\n}}\n"
            )
        }
        LauncherName::Torchrun => {
            let seconds = request.inventory.cluster.stop_grace.as_secs();
            // as in a JobSet (jobset.rs)
            let name = "TORCH_ELASTIC_SHUTDOWN_TIMEOUT";
            format!("{nodes}export {name}=${{{name}:-{seconds}}}\n{}", start(TORCHRUN, &command))
        }
        LauncherName::Env => format!("{nodes}{}", start(ENV, &command)),
        LauncherName::Horovodrun => {
            let controller = if request.controller() == Controller::Mpi { "--mpi" } else { "--gloo" };
            let timeout = request.inventory.cluster.start_timeout.as_secs();
            let (inherit, environment, rank) = match launch::launcher(request.launcher(), request.controller()).inherits
            {
                None => (String::new(), "", ""),
                Some(patterns) => (
                    inherit(patterns, &request.secrets()),
                    "env -i \"${hvdctl_own[@]}\" ",
                    "bash -c \"$hvdctl_rank\" \"$hvdctl_programs/environment\" ",
                ),
            };
            format!(
                "{nodes}\n{SSH}{inherit}\nstart() {{\n  exec {environment}horovodrun {controller} -np \"$hvdctl_ranks\" -H \"$hvdctl_hosts\" \
                 --disable-cache --start-timeout {timeout} {rank}{command}\n}}\n"
            )
        }
    })
}

/// Returns the lines that choose what the launcher gets of the environment: the names that match these patterns, but
/// for variables that may be secret.
fn inherit(patterns: &[&str], secrets: &[&str]) -> String {
    let kept = patterns.join(" | ");
    let branches = if secrets.is_empty() { kept } else { format!("{}) ;;\n  {kept}", secrets.join(" | ")) };
    INHERIT.replace("INHERITED", &branches)
}

/// Fills in how a step is started, and the command.
fn start(template: &str, command: &str) -> String {
    format!("\n{}", template.replace("STEP", STEP).replace("COMMAND", command))
}
