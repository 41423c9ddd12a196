//! A run that has been launched: followed to its end, asked for it, and wound up. `train` that started it and `attach` that
//! found it do the same from here on.

use super::follow::Follow;
use super::prepare::{end, ending};
use crate::cancel::signalled;
use crate::cluster::nodes::{Member, now};
use crate::error::{Error, NodeError};
use crate::event::{Event, Events};
use crate::inventory::Cluster;
use crate::job::frames::Frame;
use crate::job::record::{Blame, Ended, Ending, Hung, Lost, State, lost_output};
use crate::launch::placement::Placement;
use crate::runtime::docker::Engine;
use crate::text::nodeset;
use schemars::JsonSchema;
use serde::Serialize;
use std::time::Duration;
use tokio::sync::watch;

/// What is shown of a run beside how it ends.
#[derive(Debug, Clone, Copy)]
pub struct Show {
    /// The ranks' lines.
    pub output: bool,
    /// The launcher's own lines.
    pub launcher: bool,
}

/// What a signal does to the run that is watched.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OnSignal {
    /// Ends it, unless it says that the terminal has gone (SIGHUP).
    Stop,
    /// Leaves it running.
    Leave,
}

/// Until when a run is watched.
#[derive(Debug, Clone, Copy)]
pub struct Until {
    /// The longest that it may take, else it is stopped; `None`: as long as it takes.
    pub limit: Option<Duration>,
    /// Not to the end: until every rank has started.
    pub all_started: bool,
    /// What a signal does.
    pub on_signal: OnSignal,
}

/// What came of a run.
#[derive(Debug, Clone, Serialize, JsonSchema)]
#[schemars(rename = "JobResult")]
pub struct Ran {
    /// Its id.
    pub id: String,
    /// How it ended, or that it runs.
    pub state: State,
    /// Who ran where.
    pub placement: Placement,
    /// The program's exit code: that of the rank that failed first, else the launcher's.
    pub code: i64,
    /// The rank that failed first.
    pub first_failure: Option<Ended>,
    /// Who it failed by, and how.
    pub blame: Option<Blame>,
    /// The last lines of that rank.
    pub last_lines: Vec<String>,
    /// Whether these are the last that were shown, too.
    #[serde(skip)]
    pub just_shown: bool,
    /// Whether every rank has started its program.
    pub all_started: bool,
    /// Nodes that did not answer at the end, so that nobody knows what is left there.
    pub silent: Vec<String>,
    /// Why nobody could write down how it ended.
    pub fault: Option<String>,
    /// Output that a full disk lost.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub lost: Vec<Lost>,
    /// The launcher's last lines.
    #[serde(skip)]
    pub launcher: Vec<String>,
}

/// What the keeper may take for an end beside the ranks' grace time.
pub const KEEPERS_TIME: Duration = Duration::from_secs(30);

/// A run under way.
pub(super) struct Watch<'a> {
    pub(super) cluster: &'a Cluster,
    pub(super) id: &'a str,
    pub(super) placement: Placement,
    /// Its nodes, that of the launcher first.
    pub(super) members: Vec<Member>,
    /// The engines of the first of them, as many as are known: at least the launcher's.
    pub(super) engines: Vec<Engine>,
    /// The launcher's container there.
    pub(super) container: String,
    pub(super) follow: Follow<'a>,
    /// Nodes that did not answer when it was wound up.
    pub(super) silent: Vec<String>,
    pub(super) events: &'a Events,
}

/// Why a run is not watched any more.
enum Next {
    Ended(Option<i64>),
    Started,
    Signal(u8),
    TimeOut,
}

impl Watch<'_> {
    /// Watches the run to its end, or as long as was said.
    ///
    /// # Errors
    /// When the way to the launcher's node broke: the run goes on by itself then. A signal, after what it asks for.
    pub(super) async fn run(
        mut self,
        until: Until,
        cancel: &mut watch::Receiver<Option<u8>>,
        on_frame: &mut impl FnMut(&str, &Frame),
    ) -> Result<Ran, Error> {
        let next = self.follow(until, cancel, on_frame).await.map_err(|error| self.adrift(error))?;
        match next {
            Next::Started => Ok(self.under_way()),
            Next::Signal(signal) if until.on_signal == OnSignal::Leave || signal == 1 => {
                self.events
                    .note(format!("the run {0} goes on: hvdctl attach {0} shows it, hvdctl stop {0} ends it", self.id));
                Err(Error::Signal(signal))
            }
            Next::Signal(signal) => {
                self.events.note("stopping the run (again Ctrl-C: leave now)");
                self.stop(on_frame).await;
                self.wind_up(None, true, on_frame).await?;
                Err(Error::Signal(signal))
            }
            Next::TimeOut => {
                let silent = self.follow.silent();
                let said: Vec<String> = self.follow.launcher.iter().cloned().collect();
                self.stop(on_frame).await;
                self.wind_up(None, true, on_frame).await?;
                Err(Error::check(
                    format!(
                        "no end within {} s; {} of {} ranks had started{}{}",
                        until.limit.unwrap_or_default().as_secs(),
                        self.follow.progress.started(),
                        self.placement.ranks(),
                        if silent.is_empty() { String::new() } else { format!(", none on {}", nodeset::fold(&silent)) },
                        super::tail(&said)
                    ),
                    "-vv shows all that the launcher says; --timeout gives it more time",
                ))
            }
            Next::Ended(code) => {
                let ending = self.wind_up(code, false, on_frame).await?;
                Ok(self.ran(ending))
            }
        }
    }

    /// Tells what comes until the launcher's container has ended, or something else is to be done.
    async fn follow(
        &mut self,
        until: Until,
        cancel: &mut watch::Receiver<Option<u8>>,
        on_frame: &mut impl FnMut(&str, &Frame),
    ) -> Result<Next, NodeError> {
        let engine = self.engines[0].clone();
        let container = self.container.clone();
        let mut ended = std::pin::pin!(engine.wait(&container));
        let mut late = std::pin::pin!(sleep_if(until.limit));
        let mut signal = std::pin::pin!(signalled(cancel));
        let mut running = false;
        loop {
            tokio::select! {
                code = &mut ended => return code.map(Next::Ended),
                () = self.follow.overdue() => return Ok(Next::Ended(None)),
                number = &mut signal => return Ok(Next::Signal(number)),
                () = &mut late => return Ok(Next::TimeOut),
                () = self.follow.next(on_frame) => {}
            }
            if !running && self.follow.progress.started() >= self.placement.ranks() {
                running = true;
                self.events.send(Event::Job { id: self.id.to_owned(), state: State::Running });
                if until.all_started {
                    return Ok(Next::Started);
                }
            }
        }
    }

    /// Asks the keeper for the end and waits for it.
    async fn stop(&mut self, on_frame: &mut impl FnMut(&str, &Frame)) {
        let asked = async {
            let engine = self.engines[0].clone();
            engine.terminate(&self.container).await?;
            let limit = self.cluster.stop_grace + KEEPERS_TIME;
            let container = self.container.clone();
            let ended = async {
                let mut ended = std::pin::pin!(engine.wait(&container));
                loop {
                    tokio::select! {
                        code = &mut ended => return code.map(|_| ()),
                        () = self.follow.next(on_frame) => {}
                    }
                }
            };
            match tokio::time::timeout(limit, ended).await {
                Ok(ended) => ended,
                // what it could not end is ended from outside
                Err(_) => Ok(()),
            }
        };
        if let Err(error) = asked.await {
            self.events.send(Event::Warning(error.to_string()));
        }
    }

    /// Ends what the keeper could not, reads what was not read yet, and learns how it went.
    async fn wind_up(
        &mut self,
        code: Option<i64>,
        stopped: bool,
        on_frame: &mut impl FnMut(&str, &Frame),
    ) -> Result<Ending, Error> {
        let answered = end(self.cluster, self.id, &self.members, &self.engines, self.events).await;
        self.follow.drain(self.cluster, self.id, &answered, on_frame).await;
        let instead = Ending {
            stopped,
            started: self.follow.progress.started(),
            exits: self.follow.progress.ended().to_vec(),
            hung: self.follow.progress.hung().to_vec(),
            silent: missing(&self.members, &answered),
            ..unwritten(self.cluster, code)
        };
        // a node whose worker was gone did not answer the keeper, and yet it is in order now
        self.silent = instead.silent.clone();
        let ending = ending(self.cluster, self.id, &self.members[0], &instead).await.map_err(|e| self.adrift(e))?;
        self.events.send(Event::Job { id: self.id.to_owned(), state: ending.state(self.placement.ranks()) });
        if let Some(lost) = lost_output(&ending.lost) {
            self.events.send(Event::Warning(format!("{lost}\n  hint: hvdctl jobs prune removes old logs")));
        }
        Ok(ending)
    }

    /// The way to the node of the launcher is broken, which is no harm to the run.
    fn adrift(&self, error: NodeError) -> Error {
        let hint =
            format!("the run {0} goes on by itself, unless that node is down: hvdctl attach {0}, hvdctl jobs", self.id);
        if error.hints.is_empty() { error.hint(hint).into() } else { error.into() }
    }

    fn ran(&self, ending: Ending) -> Ran {
        let ranks = self.placement.ranks();
        // what was seen of the ranks here is by one clock, and it is all there unless a node did not answer; of a run that was
        // started again on fewer nodes it is more than that
        let seen = self.follow.progress.ended();
        let all_seen = seen.len() >= ending.exits.len() && ending.ranks.is_none_or(|last| last == ranks);
        // more than the record has would be an earlier try's, were all of the last one's nodes heard by a keeper
        let unheard = !ending.silent.is_empty() || ending.fault.is_some() && ending.launcher.is_none();
        let (by_keeper, last) = (ending.launcher.is_some(), ending.ranks.unwrap_or(ranks));
        let ending = if all_seen && (seen.len() == ending.exits.len() || unheard) {
            // when somebody was said to hang has to be by the same clock
            let same =
                |a: &Hung, b: &Hung| (a.rank, a.seconds, &a.tensors, a.idle) == (b.rank, b.seconds, &b.tensors, b.idle);
            let told = self.follow.progress.hung();
            let first = |one: &Hung| {
                told.iter().filter(|told| same(told, one)).min_by(|a, b| a.time.total_cmp(&b.time)).cloned()
            };
            let hung = ending.hung.into_iter().map(|one| first(&one).unwrap_or(one)).collect();
            Ending { exits: seen.to_vec(), hung, ..ending }
        } else {
            ending
        };
        let blame = ending.blame(&self.placement);
        let rank = blame.as_ref().map(|blame| blame.rank);
        let tails = &self.follow.tails;
        Ran {
            id: self.id.to_owned(),
            state: ending.state(ranks),
            placement: self.placement.clone(),
            code: ending.code(ranks).unwrap_or(1),
            first_failure: ending.first_failure(ranks).cloned(),
            last_lines: rank.map(|rank| tails.of(rank)).unwrap_or_default(),
            just_shown: self.follow.shows_output() && rank.is_some_and(|rank| tails.are_last(rank)),
            blame,
            // what was seen here may be of several tries
            all_started: if by_keeper { ending.started >= last } else { self.follow.progress.started() >= ranks },
            silent: self.silent.clone(),
            fault: ending.fault,
            lost: ending.lost,
            launcher: self.follow.launcher.iter().cloned().collect(),
        }
    }

    fn under_way(&self) -> Ran {
        Ran {
            id: self.id.to_owned(),
            state: State::Running,
            placement: self.placement.clone(),
            code: 0,
            first_failure: None,
            blame: None,
            last_lines: Vec::new(),
            just_shown: false,
            all_started: true,
            silent: Vec::new(),
            fault: None,
            lost: Vec::new(),
            launcher: Vec::new(),
        }
    }
}

/// What is written down where the keeper did not live to do so.
fn unwritten(cluster: &Cluster, code: Option<i64>) -> Ending {
    let name = &cluster.master;
    let fault = match code {
        Some(code) => format!("{name} ended with exit code {code} before the end of the run was written down"),
        None => format!("{name} was gone before the end of the run was written down"),
    };
    Ending { ended: now(), fault: Some(fault), ..Ending::default() }
}

/// The names of those that are not among the others.
fn missing(members: &[Member], answered: &[Member]) -> Vec<String> {
    let names = members.iter().map(|member| &member.node.name);
    names.filter(|name| answered.iter().all(|member| member.node.name != **name)).cloned().collect()
}

/// Ends what is left of a run that nobody watches, and says how it went. The engine is that of the launcher's node, the first.
///
/// # Errors
/// When the node of the launcher, the first, does not answer.
pub async fn wind_up(
    cluster: &Cluster,
    id: &str,
    members: &[Member],
    launches: Engine,
    events: &Events,
) -> Result<Ending, NodeError> {
    let answered = end(cluster, id, members, &[launches], events).await;
    let instead = Ending { stopped: true, silent: missing(members, &answered), ..unwritten(cluster, None) };
    ending(cluster, id, &members[0], &instead).await
}

async fn sleep_if(limit: Option<Duration>) {
    match limit {
        Some(limit) => tokio::time::sleep(limit).await,
        None => std::future::pending().await,
    }
}
