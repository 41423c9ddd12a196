//! Failures of jobs that no rank has caused: a fault of the launcher, of the nodes, of a scheduler or of an engine.

use super::launchers::{OPEN_MPI, is_other_mpirun};
use super::outcome::{JobOutcome, tail};
use crate::error::Error;
use crate::model::fault::Fault;
use crate::model::job_state::JobState;

/// Returns the error of a job that failed without a root cause.
pub(super) fn without_root_cause(job: &JobOutcome, restarts_help: bool) -> Error {
    let has_failed = job.state == JobState::Failed;
    let verify = match job.launcher.iter().any(|line| is_other_mpirun(line)) {
        true => OPEN_MPI,
        false => "check the cluster with hvdctl verify; if the ranks are slow to start, raise cluster.start_timeout_s",
    };
    let (what, hint) = match &job.fault {
        Some(fault @ Fault::RoleNotReady { role, ended, .. }) => {
            let way_out = match ended {
                true => "a server has to stay in the foreground until it is asked to end",
                false => "ready_timeout_s of the role gives it more time",
            };
            let hint = format!("hvdctl logs {} --role {role} shows its output; {way_out}", job.id);
            return Error::check(format!("job {} failed: {fault}{}", job.id, job.tail_of_rank()), hint);
        }
        Some(fault) if matches!(fault, Fault::TooManyChanges { .. }) || has_failed && job.all_started => {
            // the launcher did not cause it, and its last lines would mislead
            let shown =
                "hvdctl status shows the nodes; `docker events` (`podman events`) there shows what stopped a container";
            return Error::check(
                format!("job {} failed: {fault}", job.id),
                hint(fault, restarts_help).unwrap_or(shown),
            );
        }
        Some(fault) if has_failed => {
            (format!("job {} failed: {fault}", job.id), hint(fault, restarts_help).unwrap_or(verify))
        }
        Some(fault) => (
            format!("job {} is lost: {fault}", job.id),
            "`dmesg` on the nodes and the log of what ran the ranks (`docker events`, `podman events`, Slurm's) may show \
             the reason; nothing of the job remains on the nodes that answered",
        ),
        None => {
            let what = if job.all_started { "the launcher exited before its ranks" } else { "not all ranks started" };
            (format!("{what} (launcher: exit code {})", job.code), verify)
        }
    };
    Error::check(format!("{what}{}", tail(&job.launcher)), hint)
}

/// Returns what to do about it; `None` if that depends on the launcher. `restarts_help`: as in [`FailedProgram`].
///
/// [`FailedProgram`]: super::program::FailedProgram
fn hint(fault: &Fault, restarts_help: bool) -> Option<&'static str> {
    Some(match fault {
        Fault::TimeLimit => "give it more time: slurm.time, or --sbatch=--time=2:00:00",
        Fault::Preempted { requeues: Some(true) } if restarts_help => "with --restarts N Slurm starts it again",
        Fault::Preempted { requeues: None } if restarts_help => {
            "run the command again; with --restarts N Slurm starts it again where the site's PreemptMode is REQUEUE"
        }
        Fault::NodeFailed { requeues: None } if restarts_help => {
            "with --restarts N Slurm starts it again, on other nodes"
        }
        Fault::Preempted { .. } | Fault::NodeFailed { .. } => "run the command again",
        Fault::AllocationRequeued => "run the command again when the allocation has started, or without an allocation",
        Fault::EndNotKnown => "hvdctl jobs shows the reason when Slurm answers again; its accounting may have it, too",
        Fault::NotActivated { .. } => {
            "correct that line of `activate` in the inventory; a login shell runs it on the node of the launcher, under \
             Slurm the first node of the job"
        }
        Fault::NoCommands { .. } => {
            "set PATH or load Slurm's module in a line of slurm.activate, or in ~/.bash_profile; a login shell runs both \
             on the first node of the job"
        }
        Fault::NotAllocated { .. } => "correct what the message names, then run the command again",
        Fault::NotShared { .. } | Fault::FailedEarly => SHARE,
        Fault::OutOfMemory => "ask for more: --sbatch=--mem=… or --sbatch=--mem-per-cpu=…",
        Fault::TooManyChanges { .. } => "allow more changes with --reset-limit",
        _ => return None,
    })
}

/// The next step where the nodes of Slurm do not find hvdctl's files.
const SHARE: &str = "set slurm.state_dir to a directory that the login node and all other nodes share";
