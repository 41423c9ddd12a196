//! The result of a job that was watched to its end, for `train`, `run` and `attach`.

use crate::commands::Outcome;
use crate::commands::show::fetch::FetchDocument;
use crate::diagnosis::lost::outside_warning;
use crate::diagnosis::outcome::JobOutcome;
use crate::diagnosis::program::FailedProgram;
use crate::document::{Document, End};
use crate::error::{Error, Verdict};
use crate::event::Events;
use crate::launch::Launcher;
use crate::record::JobState;
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
        _ => {
            ended.silence().into_iter().for_each(|warning| events.warn(warning));
            ended.failure(launcher, program).map(|cause| events.warn(cause))
        }
    };
    // of a job that failed as well
    outside_warning(&ended.id, &ended.outside).into_iter().for_each(|warning| events.warn(warning));
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
