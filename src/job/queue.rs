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
const PAUSE: Duration = Duration::from_millis(200);
/// The first pause in a site's Slurm, where a file shows that a job has begun.
const PAUSE_OF_SITE: Duration = Duration::from_secs(1);
/// How long such files are looked for between the questions. A job may wait for days, and the login node is for all users.
const LOOKING: Duration = Duration::from_secs(5);
/// The longest pause: slurmctld answers for all users.
const LONGEST_PAUSE: Duration = Duration::from_secs(5);

/// An operation, for messages.
const WAIT: &str = "wait for the job's nodes";

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
    let (mut reported, began) = (String::new(), Instant::now());
    let mut pause = if target.cluster().can().choose_nodes { PAUSE } else { PAUSE_OF_SITE };
    loop {
        let next = Instant::now() + pause;
        tokio::select! {
            () = begun(target, fleet, id, pause, began) => {}
            signal = signalled(&mut cancel) => return Err(Error::Signal(signal)),
        }
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
        // one that Slurm has put into the queue again had nodes before
        tokio::select! {
            () = sleep_until(next) => {}
            signal = signalled(&mut cancel) => return Err(Error::Signal(signal)),
        }
        pause = LONGEST_PAUSE.min(pause + pause / 8);
    }
}

/// Waits until a job of a site's Slurm has its nodes, or for as long as the pause. Does not wait for other jobs, nor after
/// the first seconds of a wait that `began` then. If the login node fails, the list of jobs shows it.
async fn begun(target: &Target, fleet: &Fleet, id: &str, pause: Duration, began: Instant) {
    let cluster = target.cluster();
    if cluster.can().choose_nodes || began.elapsed() > LOOKING {
        return;
    }
    let (quiet, _) = Events::channel();
    let waiting = async {
        let login = fleet.all(target, &quiet).await.ok()?.into_iter().next()?;
        login.runtime().await.ok()?.batch(WAIT).ok()?.begun(&cluster.jobs_dir, id, pause).await.ok()
    };
    waiting.await;
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
