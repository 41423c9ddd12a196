//! Jobs in the queue of Slurm.

use super::manage::{self, JobList};
use crate::cancel::signalled;
use crate::cluster::fleet::Fleet;
use crate::cluster::target::Target;
use crate::error::Error;
use crate::event::{Event, Events};
use crate::record::JobState;
use crate::record::find::Newest;
use std::time::Duration;
use tokio::sync::watch;
use tokio::time::{Instant, sleep_until};

/// The pause between two questions to Slurm. Each is longer than the one before, up to [`LONGEST_PAUSE`].
const PAUSE: Duration = Duration::from_millis(500);
/// The longest pause: slurmctld answers for all users.
const LONGEST_PAUSE: Duration = Duration::from_secs(5);

/// How long a job may wait before that is reported.
const PATIENCE: Duration = Duration::from_secs(2);

/// Waits until a job that was submitted to Slurm has its nodes or has ended, and reports what it waits for. Returns the
/// jobs as they are then.
///
/// # Errors
/// When the login node does not answer; a signal.
pub async fn placed<'a>(
    target: &'a Target,
    fleet: &Fleet,
    id: &str,
    events: &Events,
    mut cancel: watch::Receiver<Option<u8>>,
) -> Result<JobList<'a>, Error> {
    let (quiet, _) = Events::channel();
    let (mut reported, mut pause, began) = (String::new(), PAUSE, Instant::now());
    loop {
        tokio::select! {
            () = begun(target, fleet, id, pause) => {}
            signal = signalled(&mut cancel) => return Err(Error::Signal(signal)),
        }
        pause = LONGEST_PAUSE.min(pause + pause / 8);
        let listing = manage::list(target, fleet, &quiet);
        let list = tokio::select! {
            list = listing => list?,
            signal = signalled(&mut cancel) => return Err(Error::Signal(signal)),
        };
        if let Some(error) = list.failed.first() {
            // slurmctld may be starting again
            if error.is_unreachable() {
                return Err(error.clone().into());
            }
            report(&mut reported, error.to_string(), id, events);
        } else {
            let job = list.find(Some(id), Newest::Any)?;
            if !job.waits_for_nodes() {
                return Ok(list);
            }
            // Slurm needs a moment to find nodes that are free
            let waits = began.elapsed() > PATIENCE;
            if let Some(wait) = job.wait(list.now).filter(|_| waits) {
                report(&mut reported, wait, id, events);
            }
        }
    }
}

/// Waits for a while. Returns earlier if a job in a site's Slurm has its nodes.
async fn begun(target: &Target, fleet: &Fleet, id: &str, pause: Duration) {
    let (quiet, _) = Events::channel();
    let at = Instant::now() + pause;
    let waiting = async {
        let members = fleet.members(target, &quiet).await.ok()?;
        let jobs = members.ok.first()?.runtime().await.ok()?;
        jobs.batch("wait for the job's nodes").ok()?.begun(&target.cluster().jobs_dir, id, pause).await.ok()
    };
    if waiting.await.is_none() {
        sleep_until(at).await;
    }
}

/// Reports what a job waits for when that changes.
fn report(reported: &mut String, wait: String, id: &str, events: &Events) {
    let reason = |text: &str| text.split(", expected").next().unwrap_or_default().to_owned();
    if reason(reported) != reason(&wait) {
        if reported.is_empty() {
            events.send(Event::Job { id: id.to_owned(), state: JobState::Queued });
        }
        events.note(&wait);
        *reported = wait;
    }
}
