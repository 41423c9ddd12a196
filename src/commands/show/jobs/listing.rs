//! The jobs of all nodes, and those of the inventory's Slurm: once, and again and again for `hvdctl jobs --watch`.

use crate::cluster::fleet::Fleet;
use crate::cluster::target::Target;
use crate::commands::{Context, Outcome};
use crate::document::NoDetails;
use crate::error::{Error, NodeError};
use crate::event::Events;
use crate::job::manage::{self, JobList};
use crate::record::list::Job;
use crate::text::nodeset;
use crate::text::result::ResultText;
use crate::top::draw::page;
use crate::top::screen::{Screen, TypedKey};
use std::future::Future;
use std::time::Duration;
use tokio::time::sleep;

/// The jobs of a cluster, and of its Slurm.
pub(super) struct JobListing {
    pub(super) jobs: Vec<Job>,
    /// The number of nodes that answered; `failed` has those that did not.
    pub(super) answered: usize,
    pub(super) failed: Vec<NodeError>,
    pub(super) now: f64,
}

/// Lists them. A Slurm that does not answer hides only its own.
pub(super) async fn listing(
    running: bool,
    slurm: impl Future<Output = Result<Option<(Target, Fleet)>, Error>>,
    target: &Target,
    fleet: &Fleet,
    events: &Events,
) -> Result<JobListing, Error> {
    let of_slurm = async {
        let Some((target, fleet)) = slurm.await? else { return Ok(None) };
        let JobList { jobs, members, failed, .. } = manage::list(&target, &fleet, events).await?;
        Ok(Some((jobs, members.len(), failed)))
    };
    let (list, of_slurm) = tokio::join!(manage::list(target, fleet, events), of_slurm);
    let JobList { mut jobs, members, mut failed, now, .. } = list?;
    let mut answered = members.len();
    match of_slurm {
        Ok(Some((more, count, more_failed))) => {
            jobs.extend(more);
            jobs.sort_by(|a, b| b.started.total_cmp(&a.started));
            answered += count;
            failed.extend(more_failed);
        }
        Ok(None) => {}
        Err(Error::Nodes { failed: more, .. } | Error::Unreachable(more)) => failed.extend(more),
        Err(error) => return Err(error),
    }
    jobs.retain(|job| !running || !job.is_over());
    Ok(JobListing { jobs, answered, failed, now })
}

/// The time between two looks at the nodes.
const INTERVAL: Duration = Duration::from_secs(2);

/// Shows the jobs again and again until the user leaves. `slurm`: as of [`list`](super::list).
pub async fn watch<F>(running: bool, slurm: impl Fn() -> F, context: &Context) -> Result<Outcome, Error>
where
    F: Future<Output = Result<Option<(Target, Fleet)>, Error>>,
{
    if context.json || !Screen::is_possible() {
        return Err(Error::usage("jobs --watch needs a terminal", "hvdctl jobs --json prints one document"));
    }
    let Context { target, fleet, events, session, .. } = context;
    let suspended = events.suspend().await;
    // failures are on the screen
    let (own_events, messages) = Events::channel();
    let mut screen = Screen::open()?;
    let (mut first, mut text, mut pause) = (0_usize, ResultText::from("reading the jobs …\n"), Duration::ZERO);
    loop {
        let wait = std::mem::replace(&mut pause, INTERVAL);
        let reading = async {
            sleep(wait).await;
            let listed = listing(running, slurm(), target, fleet, &own_events).await?;
            while messages.receive(Duration::ZERO).is_ok() {}
            let JobListing { jobs, failed, now, .. } = listed;
            Ok::<_, Error>(shown(&jobs, &failed, now))
        };
        let mut reading = std::pin::pin!(session.cancellation.run(reading));
        loop {
            screen.draw(|frame| {
                let fitted = text.fitted(Some(frame.area().width.into()));
                first = page(frame, &fitted, first, "q: quit   up, down: scroll");
            })?;
            tokio::select! {
                read = &mut reading => {
                    text = read?;
                    break;
                }
                key = screen.keys.recv() => match key {
                    Some(TypedKey::Quit | TypedKey::Interrupt) | None => {
                        drop(screen);
                        drop(suspended);
                        return Ok(Outcome::ok(String::new(), NoDetails {}));
                    }
                    Some(key) => first = key.scroll(first, usize::from(screen.height()) / 2),
                },
            }
        }
    }
}

fn shown(jobs: &[Job], failed: &[NodeError], now: f64) -> ResultText {
    let jobs: Vec<&Job> = jobs.iter().collect();
    let silent: Vec<&str> = failed.iter().map(|error| error.node.as_str()).collect();
    let mut text = super::job_table(&jobs, now);
    if !silent.is_empty() {
        text.push_str(&format!("\nno answer from {}\n", nodeset::fold(&silent)));
    }
    text
}
