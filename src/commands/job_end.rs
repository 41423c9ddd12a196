//! The result of a job that was watched to its end, for `train`, `run` and `attach`.

use super::Outcome;
use super::fetch::FetchDocument;
use crate::document::{Document, End};
use crate::error::{Error, Verdict};
use crate::event::{Events, Message};
use crate::job::watch::tail;
use crate::launch::Launcher;
use crate::launch::hints::{FailedProgram, OPEN_MPI};
use crate::model::fault::Fault;
use crate::record::outcome::JobOutcome;
use crate::record::outside::{self, outside};
use crate::record::{JobState, RootCause};
use crate::text::failure::is_other_mpirun;
use crate::text::nodeset;
use schemars::JsonSchema;
use serde::Serialize;

/// The last line of `train`, `run`, `notebook` and `attach`.
#[derive(Debug, Serialize, JsonSchema)]
pub struct JobEnd {
    /// `end`.
    pub event: End,
    /// The exit code of hvdctl.
    pub code: u8,
    /// How the job ended; `running` with `--detach`.
    pub job: JobOutcome,
    /// With `--fetch`: what was fetched; null if no node could be queried.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub fetched: Option<Option<Document<FetchDocument>>>,
}

/// Returns the outcome of a job that has ended under this launcher. `program`: what is known of its program, for hints.
///
/// # Errors
/// When the job failed although no rank did: then the program is not the cause.
pub fn outcome(
    ended: JobOutcome,
    fetched: Option<Option<Document<FetchDocument>>>,
    launcher: &Launcher,
    program: &FailedProgram<'_>,
    events: &Events,
) -> Result<Outcome, Error> {
    let reported = match ended.state {
        JobState::Succeeded => Ok(()),
        JobState::Stopped => {
            events.warn(format!("job {} was stopped", ended.id));
            Ok(())
        }
        _ => report_failure(&ended, launcher, program, events),
    };
    // of a job that failed as well
    if let Some(outside) = outside(&ended.outside) {
        events.warn(Message::from(outside).hint(outside::hint(&ended.id, &ended.outside)));
    }
    reported?;
    let is_complete = fetched.as_ref().is_none_or(|fetched| fetched.as_ref().is_some_and(|fetched| fetched.ok));
    // a job whose outputs are incomplete has not succeeded
    let verdict = if ended.code == 0 && !is_complete { Verdict::Incomplete } else { Verdict::Program(ended.code) };
    Ok(with_verdict(verdict, ended, fetched))
}

/// Returns the outcome of a job. `fetched` is that of [`JobEnd`].
pub fn with_verdict(
    verdict: Verdict<'_>,
    job: JobOutcome,
    fetched: Option<Option<Document<FetchDocument>>>,
) -> Outcome {
    Outcome::new(verdict, "", JobEnd { event: End::End, code: verdict.exit_code(), job, fetched })
}

/// Warns of the root cause, or returns the error of a job without one.
fn report_failure(
    job: &JobOutcome,
    launcher: &Launcher,
    program: &FailedProgram<'_>,
    events: &Events,
) -> Result<(), Error> {
    if !job.silent.is_empty() {
        let nodes = nodeset::fold(&job.silent);
        let message = format!("no answer from {nodes} at the end of the job: ranks may still be running there");
        events.warn(Message::from(message).hint("hvdctl doctor --fix"));
    }
    if let Some(root_cause) = &job.root_cause {
        events.warn(root_cause_message(job, root_cause, launcher, program));
        return Ok(());
    }
    let verify = match job.launcher.iter().any(|line| is_other_mpirun(line)) {
        true => OPEN_MPI,
        false => "check the cluster with hvdctl verify; if the ranks are slow to start, raise cluster.start_timeout_s",
    };
    let (what, hint) = match &job.fault {
        Some(fault)
            if matches!(fault, Fault::TooManyChanges { .. }) || job.state == JobState::Failed && job.all_started =>
        {
            // the launcher did not cause it, and its last lines would mislead
            let hint =
                "hvdctl status shows the nodes; `docker events` (`podman events`) there shows what stopped a container";
            let hint = fault.hint().unwrap_or(hint);
            return Err(Error::check(format!("job {} failed: {fault}", job.id), hint));
        }
        Some(fault) if job.state == JobState::Failed => {
            (format!("job {} failed: {fault}", job.id), fault.hint().unwrap_or(verify))
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
    Err(Error::check(format!("{what}{}", tail(&job.launcher)), hint))
}

/// Formats the root cause with the last lines of that rank, unless these were just shown.
fn root_cause_message(
    job: &JobOutcome,
    root_cause: &RootCause,
    launcher: &Launcher,
    program: &FailedProgram<'_>,
) -> Message {
    let mut text = format!("{root_cause}; job {} failed", job.id);
    if !job.just_shown && !job.last_lines.is_empty() {
        let lines = if job.last_lines.len() == 1 { "line" } else { "lines" };
        text.push_str(&format!("\n  last {lines} of rank {}:", root_cause.rank));
        let bracket = format!("[{} {}]", root_cause.rank, root_cause.node);
        text.extend(job.last_lines.iter().map(|line| format!("\n    {bracket} {line}")));
    }
    let message = Message::from(text);
    let on_start = || job.broken.as_ref().and_then(|reason| program.hint_on_start(reason));
    let on_output = || launcher.hint_on_output(&job.last_lines, program);
    match root_cause.hint(launcher).or_else(on_start).or_else(on_output) {
        Some(hint) => message.hint(hint),
        None => message,
    }
}
