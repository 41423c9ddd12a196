//! The end of a notebook: what was written to the project, and the result.

use crate::cluster::target::Target;
use crate::commands::show::fetch::{self, FetchDocument};
use crate::commands::show::job_end;
use crate::commands::{Context, Outcome};
use crate::diagnosis::outcome::JobOutcome;
use crate::diagnosis::program::{FailedProgram, KnownProject};
use crate::document::Document;
use crate::error::{Error, Verdict};
use crate::event::Message;
use crate::inventory::LauncherName;
use crate::job::fetch::{FetchOptions, after};
use crate::job::manage;
use crate::launch;
use crate::launch::placement::Placement;
use crate::record::JobState;
use crate::record::find::Newest;
use crate::text::argument::ProgramArgument;
use std::env;
use std::path::{Path, PathBuf};

/// SIGINT, with which a notebook usually ends.
const INTERRUPT: u8 = 2;

/// A notebook whose job was followed.
pub struct EndedNotebook<'a> {
    /// The job's id.
    pub id: &'a str,
    /// The placement of its ranks.
    pub placement: &'a Placement,
    /// Its nodes.
    pub of_job: Target,
    /// The command of its ranks.
    pub command: &'a [ProgramArgument],
    /// The project here.
    pub root: &'a Path,
    /// If set, the files that it wrote are fetched.
    pub fetches: bool,
}

impl EndedNotebook<'_> {
    /// Returns whether the job ran and was stopped: a signal may also come before it began, or before it was followed.
    async fn was_stopped(&self, context: &Context) -> bool {
        let Ok(jobs) = manage::list(&self.of_job, &context.fleet, &context.events).await else { return false };
        let job = jobs.find_readable(Some(self.id), Newest::Any).ok();
        let result = job.filter(|job| job.is_over()).and_then(|job| job.result.as_ref());
        result.is_some_and(|result| result.stopped && result.started > 0)
    }

    /// Fetches what was written to the project, and returns the result.
    pub async fn finish(self, ended: Result<JobOutcome, Error>, context: &Context) -> Result<Outcome, Error> {
        let events = &context.events;
        let ended = match ended {
            Err(Error::Signal(INTERRUPT)) if self.was_stopped(context).await => {
                JobOutcome { state: JobState::Stopped, ..JobOutcome::running(self.id, self.placement) }
            }
            Ok(ended) => ended,
            Err(error) => {
                events.note(Message::from("what was written is on the nodes").hint(format!(
                    "hvdctl fetch {0}; if it still runs, hvdctl notebook --attach {0} opens it again",
                    self.id
                )));
                return Err(error);
            }
        };
        let fetched = match self.fetches {
            true => Some(fetch_written(self.id, &self.of_job, self.root, context).await),
            false => {
                let hint = format!("hvdctl fetch {}, before the project is uploaded again", self.id);
                events.note(Message::from("what was written is on the nodes").hint(hint));
                None
            }
        };
        if ended.state == JobState::Stopped {
            return Ok(job_end::with_verdict(Verdict::Done, ended, fetched));
        }
        let launcher = launch::launcher(LauncherName::Env, None);
        let failed = FailedProgram {
            command: self.command,
            project: KnownProject::None,
            directory: None,
            restarts_help: false,
            ports: Vec::new(),
        };
        job_end::outcome(ended, fetched, launcher, &failed, events)
    }
}

/// Fetches the files that were written since the notebook began into the project, or next to it if they have changed
/// in both places.
async fn fetch_written(id: &str, of_job: &Target, root: &Path, context: &Context) -> Option<Document<FetchDocument>> {
    let Context { fleet, events, .. } = context;
    let inventory_files = of_job.inventory.own_files();
    let written = FetchOptions { only_new: true, inventory_files: &inventory_files, ..FetchOptions::default() };
    let mut fetched = after(of_job, fleet, id, root, written, events).await;
    if let Err(Error::Check { .. }) = &fetched {
        let elsewhere = elsewhere(id, root);
        if let Err(error) = &fetched {
            events.warn(format!("{error}\nfetching into {} instead", elsewhere.display()));
        }
        fetched = after(of_job, fleet, id, &elsewhere, written, events).await;
    }
    match fetched {
        Ok(report) => {
            events.note(fetch::summary(&report));
            report.failed.iter().for_each(|error| events.warn(error));
            Some(fetch::document(&report))
        }
        Err(error) => {
            events.warn(Message::from(format!("nothing was fetched: {error}")).hint(format!("hvdctl fetch {id}")));
            None
        }
    }
}

/// Returns the directory for what conflicts with files of the project: here, but not in the project, which is uploaded.
fn elsewhere(id: &str, root: &Path) -> PathBuf {
    let name = format!("notebook-{id}");
    let root = root.canonicalize().unwrap_or_else(|_| root.to_owned());
    match env::current_dir() {
        Ok(here) if here.starts_with(&root) => root.with_file_name(name),
        _ => PathBuf::from(name),
    }
}
