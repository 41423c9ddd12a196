//! Follows the logs and samples of a job's nodes, and shows them.

use super::draw::{DrawOptions, draw, last_first};
use super::screen::{Screen, TypedKey};
use super::stacks::{PageKey, StackPage};
use super::view::View;
use crate::cluster::each_node::for_each_node;
use crate::cluster::fleet::Fleet;
use crate::cluster::operator::now;
use crate::cluster::target::Target;
use crate::error::{Error, NodeError};
use crate::event::{Event, EventReceiver, Events};
use crate::job::cleanup::JobNodes;
use crate::job::follow::Follow;
use crate::job::history::answering;
use crate::job::manage::{self, JobList};
use crate::job::node_log::{NodeLog, logs};
use crate::record::JobState;
use crate::record::frames;
use crate::record::list::Job;
use ratatui::Frame;
use regex::bytes::Regex;
use std::cell::RefCell;
use std::collections::BTreeSet;
use std::time::Duration;
use tokio::time::{Instant, sleep_until};

/// Bytes that are read first of the end of each file, and of the beginning of samples, which describe the GPUs.
const END: u64 = 64 << 10;
const BEGINNING: u64 = 16 << 10;

/// The shortest time between two drawings, for slow links, and the longest, for what becomes older.
const REST: Duration = Duration::from_millis(250);
const REFRESH: Duration = Duration::from_secs(1);

/// The job that is watched, and its cluster.
pub struct WatchedJob<'a> {
    /// The nodes of the cluster.
    pub target: &'a Target,
    /// The connections to them.
    pub fleet: &'a Fleet,
    /// The jobs.
    pub list: &'a JobList<'a>,
    /// The job.
    pub job: &'a Job,
    /// Only these ranks are shown; none: all.
    pub only: BTreeSet<u32>,
    /// Only lines in which this is found are shown.
    pub grep: Option<Regex>,
}

/// The way to show the job.
pub enum Display {
    /// On a screen of the terminal.
    Screen {
        /// The terminal.
        screen: Screen,
        /// Set if colours are used.
        has_colours: bool,
    },
    /// As events: [`Event::Usage`].
    Events,
}

/// A log or samples, with the offset at which they are followed.
type Followed = (NodeLog, u64);

/// Watches a job until it has ended or, on a screen, until the user leaves. Returns how the job ended, if it did.
///
/// # Errors
/// If none of its nodes answers, and if the terminal is gone.
pub async fn watch(watched: WatchedJob<'_>, display: Display, events: &Events) -> Result<Option<JobState>, Error> {
    let WatchedJob { list, job, .. } = watched;
    let nodes = answering(list, job)?;
    nodes.check_logs()?;
    let (mut view, followed) = begin(&watched, &nodes).await;
    let (logs, offsets) = followed.into_iter().unzip();
    // what they say goes on the screen
    let (own_events, messages) = Events::channel();
    let (mut follow, failed) = Follow::start_where_possible(logs, offsets, &own_events).await;
    failed.iter().for_each(|error| view.miss(&error.node, &error.message));
    let mut is_reached = nodes.launcher.node.name == job.launcher() || nodes.shares_directory;
    let (engine, container) = nodes.launcher_container().await?;
    let mut ended = std::pin::pin!(async { engine.wait(&container).await });
    let (mut screen, has_colours) = match display {
        Display::Screen { screen, has_colours } => (Some(screen), has_colours),
        Display::Events => (None, false),
    };
    let (mut first, mut is_changed, mut drawn, mut state) = (0, true, Instant::now() - REFRESH, None);
    let mut page: Option<StackPage<'_>> = None;
    loop {
        is_changed |= pass_on(&messages, &mut view, screen.is_none().then_some(events));
        if let Some(screen) = screen.as_mut().filter(|_| drawn.elapsed() >= if is_changed { REST } else { REFRESH }) {
            first = first.min(last_first(&view, screen.height()));
            let options = DrawOptions { has_colours, first };
            screen.draw(|frame| show(frame, page.as_mut(), &view, options))?;
            (drawn, is_changed) = (Instant::now(), false);
        }
        let due = drawn + if is_changed { REST } else { REFRESH };
        let has_screen = screen.is_some();
        let mut take = |node: &str, ahead: f64, frame: frames::Frame| {
            let sample = view.take(node, ahead, &frame);
            is_changed = true;
            sample.into_iter().filter(|_| !has_screen).for_each(|sample| events.send(Event::Usage(sample)));
        };
        tokio::select! {
            key = typed(screen.as_mut()) => {
                let height = screen.as_ref().map_or(2, Screen::height);
                let open = || StackPage::of_job(list, job, &watched.only, state.is_some(), &own_events);
                if leaves(&mut page, &mut first, key, height, open) {
                    return Ok(state);
                }
                (is_changed, drawn) = (true, Instant::now() - REST);
            }
            () = read(page.as_mut()) => (is_changed, drawn) = (true, Instant::now() - REST),
            end = &mut ended, if state.is_none() && is_reached => {
                if let Err(error) = end {
                    // the job may go on
                    view.message = Some(format!("{}: {}", error.node, error.message));
                    is_reached = false;
                    continue;
                }
                let (reached, shown) = end_of(&watched, &own_events).await?;
                state = Some(reached);
                if screen.is_none() {
                    return Ok(state);
                }
                view.end = Some(shown);
                is_changed = true;
            }
            () = follow.next(&mut take) => {}
            () = sleep_until(due), if has_screen => {}
        }
    }
}

/// Draws the page, if there is one, or the job.
fn show(frame: &mut Frame<'_>, page: Option<&mut StackPage<'_>>, view: &View, options: DrawOptions) {
    match page {
        Some(page) => page.draw(frame),
        None => draw(frame, view, now(), options),
    }
}

/// Handles a key on the page, if there is one, or on the screen of the job, whose first row is `first`. Returns whether
/// the user leaves. `open`: makes a page.
fn leaves<'a>(
    page: &mut Option<StackPage<'a>>,
    first: &mut usize,
    key: TypedKey,
    height: u16,
    open: impl FnOnce() -> StackPage<'a>,
) -> bool {
    match page.as_mut().map(|page| page.typed(key, height)) {
        Some(PageKey::Stays) => {}
        Some(PageKey::Back) => *page = None,
        Some(PageKey::Quit) => return true,
        None => match key {
            TypedKey::Quit | TypedKey::Interrupt => return true,
            TypedKey::Stacks => *page = Some(open()),
            _ => *first = key.scroll(*first, usize::from(height) / 2),
        },
    }
    false
}

/// Waits for a key, without a screen for ever. Ctrl-C stands for a terminal that is gone.
async fn typed(screen: Option<&mut Screen>) -> TypedKey {
    match screen {
        Some(screen) => screen.keys.recv().await.unwrap_or(TypedKey::Interrupt),
        None => std::future::pending().await,
    }
}

/// Waits for what a page reads, without one for ever.
async fn read(page: Option<&mut StackPage<'_>>) {
    match page {
        Some(page) => page.read().await,
        None => std::future::pending().await,
    }
}

/// Passes warnings on to `events` or, on a screen, to its line for messages. Returns whether there were any.
fn pass_on(messages: &EventReceiver, view: &mut View, events: Option<&Events>) -> bool {
    let mut is_any = false;
    while let Ok(event) = messages.receive(Duration::ZERO) {
        let Event::Warning(message) = event else { continue };
        is_any = true;
        match events {
            Some(events) => events.warn(message),
            None => view.message = Some(message.to_string().lines().next().unwrap_or_default().to_owned()),
        }
    }
    is_any
}

/// Reads how a job has ended. Returns its state, and that with its reason for the screen.
///
/// # Errors
/// If none of its nodes answers.
async fn end_of(watched: &WatchedJob<'_>, events: &Events) -> Result<(JobState, String), Error> {
    let list = manage::list(watched.target, watched.fleet, events).await?;
    let job = list.jobs.iter().find(|other| other.id == watched.job.id);
    let reached = job.and_then(|job| job.state).unwrap_or(JobState::Lost);
    let reason = job.and_then(|job| job.reason.clone()).map_or_else(String::new, |why| format!(": {why}"));
    Ok((reached, format!("{reached}{reason} (q: quit, hvdctl report shows all of it)")))
}

/// Reads what there is of a job. Returns it, and what is followed.
async fn begin(watched: &WatchedJob<'_>, nodes: &JobNodes<'_>) -> (View, Vec<Followed>) {
    let WatchedJob { list, job, .. } = *watched;
    let began = now() - (list.now - job.started);
    let view = RefCell::new(View::new(job, began, watched.grep.clone()).of_ranks(watched.only.clone()));
    for share in job.placement.shares.iter().filter(|share| nodes.members().all(|one| one.node.name != share.node)) {
        let error = list.failed.iter().find(|error| error.node == share.node);
        view.borrow_mut().miss(&share.node, error.map_or("it was not queried", |error| error.message.as_str()));
    }
    let is_sampled = view.borrow().head.sample > 0;
    let read = async |log: NodeLog| {
        let name = log.node().to_owned();
        let read = read_end(&log, is_sampled, &view).await;
        read.unwrap_or_else(|error| {
            view.borrow_mut().miss(&name, &error.message);
            Vec::new()
        })
    };
    let followed = for_each_node(logs(nodes, job.log_max), read).await;
    (view.into_inner(), followed.into_iter().flatten().collect())
}

/// Reads the end of the log and the samples of a node. Returns where they are followed.
async fn read_end(log: &NodeLog, is_sampled: bool, view: &RefCell<View>) -> Result<Vec<Followed>, NodeError> {
    let extent = log.extent().await?;
    let take = async |frames: Vec<frames::Frame>| {
        let ahead = extent.clock - now();
        frames.iter().for_each(|frame| drop(view.borrow_mut().take(log.node(), ahead, frame)));
    };
    let mut followed = Vec::new();
    if is_sampled {
        let samples = log.samples();
        let size = samples.extent().await?.size;
        take(samples.beginning(BEGINNING).await?).await;
        let end = samples.read(size.saturating_sub(END), take).await?;
        followed.push((samples, end));
    }
    let end = log.read(extent.size.saturating_sub(END).max(extent.start), take).await?;
    followed.push((log.clone(), end));
    Ok(followed)
}
