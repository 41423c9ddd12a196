//! `hvdctl jobs --watch`.

use super::JobListing;
use crate::cluster::fleet::Fleet;
use crate::cluster::target::Target;
use crate::commands::{Context, Outcome};
use crate::document::NoDetails;
use crate::error::{Error, NodeError};
use crate::event::Events;
use crate::record::list::Job;
use crate::text::nodeset;
use crate::text::result::ResultText;
use crate::top::draw::page;
use crate::top::screen::{Screen, TypedKey};
use std::future::Future;
use std::time::Duration;
use tokio::time::sleep;

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
            let listing = super::listing(running, slurm(), target, fleet, &own_events).await?;
            while messages.receive(Duration::ZERO).is_ok() {}
            let JobListing { jobs, failed, now, .. } = listing;
            Ok::<_, Error>(shown(&jobs, &failed, now))
        };
        let mut reading = std::pin::pin!(session.cancellation.run(reading));
        loop {
            screen.draw(|frame| {
                let fitted = text.fitted(Some(frame.area().width.into()));
                first = page(frame, &fitted, first);
            })?;
            tokio::select! {
                read = &mut reading => {
                    text = read?;
                    break;
                }
                key = screen.keys.recv() => match key {
                    Some(TypedKey::Quit) | None => {
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
