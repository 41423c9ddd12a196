//! A job that was submitted: followed from the queue to its end.

use crate::cluster::site::Site;
use crate::cluster::target::Target;
use crate::diagnosis::outcome::JobOutcome;
use crate::error::Error;
use crate::event::{Events, Message};
use crate::job::supervision::WatchOptions;
use crate::job::{manage, queue, watch};
use crate::record::find::Newest;
use crate::record::frames::Frame;

/// The number of SIGHUP: the terminal has gone, and the job goes on.
const HANGUP: u8 = 1;

/// Follows a submitted job to its end, or until its ranks have started. `target`: with the node of its launcher. Every
/// frame goes to `on_frame`. A signal ends the job.
///
/// # Errors
/// When the node of its launcher does not answer (the job goes on); a signal.
pub(super) async fn follow(
    target: &Target,
    id: &str,
    options: WatchOptions,
    Site { fleet, events, session, .. }: Site<'_>,
    on_frame: &mut dyn FnMut(&str, &Frame),
) -> Result<JobOutcome, Error> {
    let signal = || session.cancellation.signal();
    let watching = async {
        let jobs = queue::placed(target, fleet, id, events, signal()).await?;
        let job = jobs.find(Some(id), Newest::Any)?;
        watch::attach(&jobs, job, options, events, signal(), on_frame).await
    };
    let ((), ended) = tokio::join!(session.locks.release(), watching);
    // before it was watched a signal has not stopped it
    if let Err(Error::Signal(number)) = &ended
        && *number != HANGUP
    {
        let jobs = manage::list(target, fleet, events).await?;
        let job = jobs.find(Some(id), Newest::Any)?;
        if !job.is_over() {
            manage::stop(&jobs, job, events).await?;
            events.note(format!("job {id} was stopped"));
        }
    }
    ended
}

/// Reports that a job was left in the queue.
pub(super) fn in_queue(id: &str, events: &Events) -> JobOutcome {
    let next = format!("follow it with hvdctl attach {id}, stop it with hvdctl stop {id}");
    events.note(Message::from(format!("job {id} is in Slurm's queue")).hint(next));
    JobOutcome::queued(id)
}
