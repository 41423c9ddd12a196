//! One run, from the placement of its ranks to the last line of their output. `train`, `run` and `verify` are all this.

use crate::core::frames::{Frame, Kind, Parser};
use crate::core::inventory::{Cluster, Controller};
use crate::core::job::{Ended, Progress, Record, State};
use crate::core::launch::{Launch, SUPERVISOR};
use crate::core::network::{self, Endpoint};
use crate::core::plan::Workspace;
use crate::core::slots::{Placement, place};
use crate::core::spec::{Desired, Role};
use crate::edge::docker::Engine;
use crate::edge::link::{Process, Script};
use crate::edge::tree::Tree;
use crate::error::{Error, NodeError};
use crate::event::{Event, Events};
use crate::ops::fleet::{Observed, Target, all, each, now};
use crate::ops::ship::{Shipped, human, project_dir, ship};
use crate::ops::workers;
use base64::Engine as _;
use futures_util::StreamExt;
use serde::Serialize;
use std::collections::{BTreeMap, VecDeque};
use std::net::IpAddr;
use std::time::Duration;
use tokio::io::AsyncReadExt;
use tokio::sync::{mpsc, watch};

const START: &str = include_str!("../edge/scripts/job_start.sh");
const FOLLOW: &str = include_str!("../edge/scripts/job_follow.sh");
const READ: &str = include_str!("../edge/scripts/job_read.sh");
const END: &str = include_str!("../edge/scripts/job_end.sh");
const RANK: &str = include_str!("../edge/scripts/rank.py");
const SSH: &str = include_str!("../edge/scripts/ssh.sh");

/// The launcher's last lines that are kept for an error.
const LAUNCHER_LINES: usize = 20;

/// What every rank runs.
#[derive(Debug, Clone)]
pub struct Program {
    /// The project's name, or the check's.
    pub name: String,
    /// The program and its arguments, byte for byte.
    pub command: Vec<String>,
    /// Where it starts.
    pub cwd: Cwd,
    /// A project that is shipped and mounted first.
    pub tree: Option<Tree>,
    /// Further files for the run's folder: name and text.
    pub files: Vec<(&'static str, &'static str)>,
}

/// The folder that a program starts in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Cwd {
    /// The mounted project.
    Workspace,
    /// The run's own folder, where [`Program::files`] are.
    Job,
    /// `/`, for programs that are in the image.
    Root,
}

/// How it is run.
#[derive(Debug, Clone)]
pub struct Options {
    /// The number of ranks; `None`: one on every slot.
    pub ranks: Option<u32>,
    /// Gloo or MPI.
    pub controller: Controller,
    /// Whether the ranks' lines are shown.
    pub show_output: bool,
    /// Whether the launcher's own lines are shown.
    pub show_launcher: bool,
    /// The longest that it may take; `None`: as long as it takes.
    pub limit: Option<Duration>,
}

/// What came of a run.
#[derive(Debug, Clone, Serialize)]
pub struct Ran {
    /// Its id.
    pub id: String,
    /// How it ended.
    pub state: State,
    /// Who ran where.
    pub placement: Placement,
    /// The program's exit code: that of the rank that failed first, else the launcher's.
    pub code: i64,
    /// The rank that failed first.
    pub first_failure: Option<Ended>,
    /// Whether every rank has started its program.
    pub all_started: bool,
    /// The launcher's last lines.
    #[serde(skip)]
    pub launcher: Vec<String>,
}

/// Checks what can be known without asking a node.
///
/// # Errors
/// More ranks than slots, when all slots stand in the inventory.
pub fn check_ranks(target: &Target, ranks: Option<u32>) -> Result<(), Error> {
    let known: Option<Vec<(String, u32)>> =
        target.nodes().iter().map(|n| network::known_slots(n).map(|s| (n.name.clone(), s))).collect();
    match (ranks, known) {
        (Some(0), _) => Err(Error::usage("-np 0: a run has at least one rank", "say -np with a number from 1 on")),
        (Some(ranks), Some(slots)) => placement(&slots, ranks).map(|_| ()),
        _ => Ok(()),
    }
}

fn placement(slots: &[(String, u32)], ranks: u32) -> Result<Placement, Error> {
    place(slots, ranks).map_err(|e| {
        Error::usage(e.to_string(), "lower -np, add nodes, or raise `slots` (or `gpus`) of a [[node]] in the inventory")
    })
}

/// One node's part in a run.
#[derive(Clone)]
struct Seat {
    seen: Observed,
    endpoint: Endpoint,
    ranks: u32,
}

/// Runs a program on the observed nodes (the master first) and follows it to its end. Every line of output goes to
/// `events`, every frame to `on_frame`. A signal in `cancel` ends the run in order.
///
/// # Errors
/// When it could not be started, or the way to the master broke; a program that fails is no error but a [`Ran`].
pub async fn run(
    target: &Target,
    nodes: Vec<Observed>,
    program: &Program,
    options: &Options,
    events: &Events,
    mut cancel: watch::Receiver<Option<u8>>,
    mut on_frame: impl FnMut(&str, &Frame),
) -> Result<Ran, Error> {
    let cluster = target.cluster();
    let slots: Vec<(String, u32)> =
        nodes.iter().map(|n| (n.name().to_owned(), network::slots(&n.member.node, &n.facts))).collect();
    let ranks = options.ranks.unwrap_or_else(|| slots.iter().map(|(_, n)| n).sum());
    let placement = placement(&slots, ranks)?;
    let (seats, others) = seats(cluster, &placement, nodes, options.controller)?;
    check(cluster, &seats, events)?;

    let id = new_id();
    events.send(Event::Job { id: id.clone(), state: State::Starting });
    let prepared = tokio::select! {
        prepared = prepare(target, &id, program, &seats, &others, events) => prepared,
        signal = signalled(&mut cancel) => Err(Error::Signal(signal)),
    };
    if let Err(error) = prepared {
        end(cluster, &id, &seats, &BTreeMap::new(), &record(State::Failed, 125), events).await;
        return Err(error);
    }

    let mut follow = Follow::start(cluster, &id, &seats, events, options).await?;
    let hosts: Vec<(IpAddr, u32)> = seats.iter().map(|s| (s.endpoint.address, s.ranks)).collect();
    let job_dir = format!("{}/{id}", cluster.jobs_dir);
    let master = &seats[0];
    let launch = Launch {
        controller: options.controller,
        hosts: &hosts,
        port: cluster.port,
        interface: &master.endpoint.interface,
        start_timeout: cluster.start_timeout,
        job_dir: &job_dir,
    };
    let desired = Desired {
        workspace: program.tree.as_ref().map(|_| project_dir(cluster, &program.name)),
        env: vec![format!("HVDCTL_JOB={id}"), "PYTHONUNBUFFERED=1".into()],
        ..Desired::master(
            cluster,
            network::wants_gpus(&master.seen.member.node, &master.seen.facts),
            launch.container_command(),
            &id,
        )
    };
    events.phase(format!("starting {ranks} rank{}", if ranks == 1 { "" } else { "s" }));
    let engine = &master.seen.docker.engine;
    let ended = match engine.create_and_start(&desired).await {
        Ok(()) => {
            follow.launcher(engine, &cluster.master);
            let deadline = options.limit;
            tokio::select! {
                code = follow.until_end(engine, &cluster.master, &id, ranks, &mut on_frame) => code.map(End::Launcher),
                signal = signalled(&mut cancel) => {
                    events.note("stopping the run (again Ctrl-C: leave now)");
                    Ok(End::Signal(signal))
                }
                () = sleep_if(deadline) => Ok(End::TimeOut),
            }
        }
        Err(error) => Err(error),
    };

    let stopped = !matches!(ended, Ok(End::Launcher(_)));
    let launcher_code = match &ended {
        Ok(End::Launcher(code)) => Some(*code),
        _ => Some(-1),
    };
    // the ranks first, while the launcher still stands: its end would take the master's ranks along without grace
    let followers = follow.pids.clone();
    let state = follow.progress.state(ranks, launcher_code, stopped);
    end(cluster, &id, &seats, &followers, &record(state, launcher_code.unwrap_or(-1)), events).await;
    follow.drain(cluster, &id, &seats, &mut on_frame).await;
    let state = follow.progress.state(ranks, launcher_code, stopped);
    events.send(Event::Job { id: id.clone(), state });

    match ended {
        Ok(End::Signal(signal)) => Err(Error::Signal(signal)),
        Ok(End::TimeOut) => Err(Error::check(
            format!(
                "no end within {} s; {} of {ranks} ranks had started{}",
                options.limit.unwrap_or_default().as_secs(),
                follow.progress.started(),
                tail(&follow.launcher)
            ),
            "the launcher's own words are above; -v shows all of them",
        )),
        Err(error) => Err(error.into()),
        Ok(End::Launcher(code)) => {
            let first_failure = follow.progress.first_failure().cloned();
            Ok(Ran {
                id,
                state,
                placement,
                code: first_failure.as_ref().map_or(code, |e| i64::from(e.code)),
                first_failure,
                all_started: follow.progress.started() >= ranks,
                launcher: follow.launcher.into(),
            })
        }
    }
}

/// The launcher's last lines, to be put behind a sentence.
pub fn tail<'a>(lines: impl IntoIterator<Item = &'a String>) -> String {
    lines.into_iter().map(|line| format!("\n    {line}")).collect()
}

enum End {
    Launcher(i64),
    Signal(u8),
    TimeOut,
}

async fn signalled(cancel: &mut watch::Receiver<Option<u8>>) -> u8 {
    match cancel.wait_for(Option::is_some).await.map(|signal| *signal) {
        Ok(Some(signal)) => signal,
        // nobody can signal any more
        _ => std::future::pending().await,
    }
}

async fn sleep_if(limit: Option<Duration>) {
    match limit {
        Some(limit) => tokio::time::sleep(limit).await,
        None => std::future::pending().await,
    }
}

fn record(state: State, launcher: i64) -> String {
    serde_json::json!({ "state": state, "launcher": launcher, "ended": now() }).to_string()
}

/// A name that sorts by time and that no two operators choose: `20261121-101500-4f2a`.
fn new_id() -> String {
    let secs = now() as u64;
    let (days, rest) = (secs / 86_400, secs % 86_400);
    let (year, month, day) = civil(days as i64);
    let salt = std::collections::hash_map::RandomState::new();
    let salt = std::hash::BuildHasher::hash_one(&salt, std::process::id()) & 0xffff;
    format!("{year:04}{month:02}{day:02}-{:02}{:02}{:02}-{salt:04x}", rest / 3600, rest / 60 % 60, rest % 60)
}

/// Days since 1970 as a date, in UTC (the proleptic Gregorian calendar, by 400-year eras).
fn civil(days: i64) -> (i64, i64, i64) {
    let days = days + 719_468;
    let era = days.div_euclid(146_097);
    let of_era = days.rem_euclid(146_097);
    let year = (of_era - of_era / 1460 + of_era / 36_524 - of_era / 146_096) / 365;
    let of_year = of_era - (365 * year + year / 4 - year / 100);
    let shifted = (5 * of_year + 2) / 153;
    let day = of_year - (153 * shifted + 2) / 5 + 1;
    let month = if shifted < 10 { shifted + 3 } else { shifted - 9 };
    (year + era * 400 + i64::from(month <= 2), month, day)
}

/// Splits the nodes into those with ranks, each with its place on the network, and the others.
fn seats(
    cluster: &Cluster,
    placement: &Placement,
    nodes: Vec<Observed>,
    controller: Controller,
) -> Result<(Vec<Seat>, Vec<Observed>), Error> {
    let alone = placement.shares.len() == 1;
    let (mut seats, mut others) = (Vec::new(), Vec::new());
    let mut failed = Vec::new();
    for seen in nodes {
        let Some(share) = placement.shares.iter().find(|s| s.node == seen.name()) else {
            others.push(seen);
            continue;
        };
        let place = if alone { Ok(network::alone()) } else { network::endpoint(&seen.member.node, &seen.facts) };
        let place = place.and_then(|e| match e.address {
            IpAddr::V6(_) => {
                Err(format!("Horovod's -H takes no IPv6 address ({}); set `address` to an IPv4 one", e.address))
            }
            IpAddr::V4(_) => Ok(e),
        });
        match place {
            Ok(endpoint) => seats.push(Seat { seen, endpoint, ranks: share.ranks }),
            Err(words) => failed.push(
                NodeError::failed(seen.name(), "find its place on the cluster's network", words)
                    .hint("set `address` or `interface` of this [[node]] in the inventory"),
            ),
        }
    }
    if !failed.is_empty() {
        return Err(Error::Nodes { failed, done: 0 });
    }
    let names: std::collections::BTreeSet<&str> = seats.iter().map(|s| s.endpoint.interface.as_str()).collect();
    if controller == Controller::Mpi && names.len() > 1 {
        let list: Vec<String> = seats.iter().map(|s| format!("{}: {}", s.seen.name(), s.endpoint.interface)).collect();
        return Err(Error::check(
            format!("the nodes' interfaces have different names ({}), and MPI takes one for all", list.join(", ")),
            format!("use --launcher gloo, which takes each node's own; or give {} other interfaces", cluster.name),
        ));
    }
    Ok((seats, others))
}

/// What would make the run fail, before anything is shipped.
fn check(cluster: &Cluster, seats: &[Seat], events: &Events) -> Result<(), Error> {
    let mut failed = Vec::new();
    for (i, seat) in seats.iter().enumerate() {
        let seen = &seat.seen;
        let worker = workers::desired(cluster, seen);
        // the master's ranks run in hmaster, so its worker does not matter
        let fault = if i == 0 {
            master_is_free(cluster, seen).and_then(|()| match network::missing_gpus(&seen.member.node, &seen.facts) {
                Some(words) => Err(NodeError::failed(seen.name(), "find the promised GPUs", words)
                    .hint("run nvidia-smi on the node, or set `gpus` to what it has")),
                None => seen.image_id(cluster).map(|_| ()),
            })
        } else {
            workers::plan(cluster, seen, &worker, &Workspace::Any).map(|_| ())
        };
        if let Err(error) = fault {
            events.send(Event::Failed(error.clone()));
            failed.push(error);
        }
    }
    if !failed.is_empty() {
        return Err(Error::Nodes { failed, done: 0 });
    }
    let without = workers::without_keys(cluster, seats.iter().map(|seat| &seat.seen));
    if seats.len() > 1 && !without.is_empty() {
        return Err(Error::check(format!("no keys on {}", crate::core::hostset::fold(&without)), "hvdctl keys push"));
    }
    Ok(())
}

fn master_is_free(cluster: &Cluster, seen: &Observed) -> Result<(), NodeError> {
    let Some(there) = seen.docker.containers.iter().find(|c| c.name == cluster.master) else { return Ok(()) };
    let tried = format!("start {}", cluster.master);
    if !there.belongs_to(&cluster.name) {
        return Err(NodeError::failed(
            seen.name(),
            &tried,
            "a container of that name is there that is not this cluster's",
        )
        .hint("remove or rename it, or set cluster.master to another name"));
    }
    if there.running {
        let job = there.job().unwrap_or("unknown");
        return Err(NodeError::failed(seen.name(), &tried, format!("the run {job} is under way"))
            .hint("wait for its end, or end it with `hvdctl down`"));
    }
    Ok(())
}

/// Lays the run's folder, ships the project and brings the workers to it, on all nodes at once.
async fn prepare(
    target: &Target,
    id: &str,
    program: &Program,
    seats: &[Seat],
    others: &[Observed],
    events: &Events,
) -> Result<(), Error> {
    let cluster = target.cluster();
    let nodes: Vec<(Observed, Option<&Seat>)> = seats
        .iter()
        .map(|seat| (seat.seen.clone(), Some(seat)))
        .chain(others.iter().map(|seen| (seen.clone(), None)))
        .collect();
    events.phase("preparing");
    let results = each(nodes, async |(seen, seat)| {
        let link = &seen.member.link;
        let dir = program.tree.as_ref().map(|_| project_dir(cluster, &program.name));
        if let Some(seat) = seat {
            let files = job_files(cluster, id, program, seat);
            lay(cluster, &seen, id, dir.as_deref(), &files).await?;
        } else if dir.is_some() {
            lay(cluster, &seen, id, dir.as_deref(), "").await?;
        }
        let shipping = async {
            match &program.tree {
                Some(tree) => ship(cluster, link, tree, &program.name, events).await.map(Some),
                None => Ok(None),
            }
        };
        let worker = async {
            match seat {
                Some(seat) if !seat.seen.member.node.master && seat.endpoint != network::alone() => {
                    ensure_worker(cluster, &seen, dir.clone(), events).await
                }
                _ => Ok(()),
            }
        };
        let (shipped, worker) = tokio::join!(shipping, worker);
        worker?;
        if seat.is_some() && seat.is_some_and(|s| s.seen.member.node.master) {
            remove_ended_master(cluster, &seen).await?;
        }
        events.done(seen.name(), told(shipped?.as_ref()));
        Ok(())
    })
    .await;
    all(events, results).map(|_| ())
}

fn told(shipped: Option<&Shipped>) -> String {
    match shipped {
        None => "ready".into(),
        Some(Shipped { sent: 0, removed: 0, .. }) => "project unchanged".into(),
        Some(Shipped { sent, bytes, removed: 0 }) => format!("shipped {sent} files, {}", human(*bytes)),
        Some(Shipped { sent, bytes, removed }) => {
            format!("shipped {sent} files, {}; removed {removed}", human(*bytes))
        }
    }
}

async fn ensure_worker(
    cluster: &Cluster,
    seen: &Observed,
    workspace: Option<String>,
    events: &Events,
) -> Result<(), NodeError> {
    let which = if workspace.is_some() { Workspace::AsDesired } else { Workspace::Any };
    let desired = Desired { workspace, ..workers::desired(cluster, seen) };
    let operations = workers::plan(cluster, seen, &desired, &which)?;
    workers::apply(cluster, seen, &operations, events).await
}

async fn remove_ended_master(cluster: &Cluster, seen: &Observed) -> Result<(), NodeError> {
    let ended = seen.docker.containers.iter().find(|c| c.name == cluster.master && c.is(Role::Master));
    match ended {
        Some(container) => seen.docker.engine.remove(&container.id).await,
        None => Ok(()),
    }
}

async fn lay(cluster: &Cluster, seen: &Observed, id: &str, dir: Option<&str>, files: &str) -> Result<(), NodeError> {
    let script = Script::new(START)
        .with("jobs_dir", &cluster.jobs_dir)
        .with("id", id)
        .with("project_dir", dir.unwrap_or_default())
        .with("files", files);
    seen.member.link.script(&script, &format!("make the run's folder in {}", cluster.jobs_dir)).await.map(|_| ())
}

/// The files of a run's folder, as `job_start.sh` reads them.
fn job_files(cluster: &Cluster, id: &str, program: &Program, seat: &Seat) -> String {
    let record = Record {
        id: id.to_owned(),
        name: program.name.clone(),
        operator: operator(),
        command: program.command.clone(),
        cwd: match program.cwd {
            Cwd::Workspace => crate::core::spec::WORKSPACE.into(),
            Cwd::Job => format!("{}/{id}", cluster.jobs_dir),
            Cwd::Root => "/".into(),
        },
        env: BTreeMap::new(),
        ranks: seat.ranks,
        interface: seat.endpoint.interface.clone(),
        grace: cluster.stop_grace.as_secs(),
    };
    let record = serde_json::to_string(&record).unwrap_or_default();
    let mut lines = String::new();
    let fixed = [("600", "job.json", record.as_str()), ("644", SUPERVISOR, RANK), ("755", "ssh", SSH)];
    for (mode, name, text) in fixed.into_iter().chain(program.files.iter().map(|(n, t)| ("644", *n, *t))) {
        let text = base64::engine::general_purpose::STANDARD.encode(text);
        lines.push_str(&format!("{mode} {name} {text}\n"));
    }
    lines
}

fn operator() -> String {
    let user = std::env::var("USER").or_else(|_| std::env::var("LOGNAME")).unwrap_or_else(|_| "unknown".into());
    let host = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    format!("{user}@{}", host.trim())
}

/// Ends what is left of the run on every node and removes its container; failures are told and stop nothing.
async fn end(
    cluster: &Cluster,
    id: &str,
    seats: &[Seat],
    followers: &BTreeMap<String, String>,
    result: &str,
    events: &Events,
) {
    let limit = cluster.stop_grace + Duration::from_secs(20);
    let work = seats.iter().enumerate().collect();
    let ended = each(work, async |(i, seat): (usize, &Seat)| {
        let script = Script::new(END)
            .with("jobs_dir", &cluster.jobs_dir)
            .with("id", id)
            .with("grace", &cluster.stop_grace.as_secs().to_string())
            .with("follower", followers.get(seat.seen.name()).map_or("", String::as_str))
            .with("result", result);
        let cleaned = seat.seen.member.link.script_within(&script, "end what is left of the run", limit).await;
        // only the container of this very run: its name may be another's by now
        let removed = if i == 0 { remove_master_of(cluster, id, &seat.seen).await } else { Ok(()) };
        cleaned.and(removed)
    })
    .await;
    for error in ended.into_iter().filter_map(Result::err) {
        events.send(Event::Warning(error.to_string()));
    }
}

async fn remove_master_of(cluster: &Cluster, id: &str, seen: &Observed) -> Result<(), NodeError> {
    let engine = &seen.docker.engine;
    for container in engine.containers().await? {
        if container.belongs_to(&cluster.name) && container.is(Role::Master) && container.job() == Some(id) {
            engine.remove(&container.id).await?;
        }
    }
    Ok(())
}

/// What comes from the nodes while a run lasts.
enum News {
    Bytes(usize, Vec<u8>),
    Launcher(Vec<u8>),
}

/// Follows the logs of all nodes and the launcher.
struct Follow<'a> {
    events: &'a Events,
    options: &'a Options,
    names: Vec<String>,
    skews: Vec<f64>,
    parsers: Vec<Parser>,
    offsets: Vec<u64>,
    pids: BTreeMap<String, String>,
    progress: Progress,
    launcher: VecDeque<String>,
    launcher_rest: Vec<u8>,
    sender: mpsc::Sender<News>,
    receiver: mpsc::Receiver<News>,
    tasks: tokio::task::JoinSet<()>,
}

impl<'a> Follow<'a> {
    async fn start(
        cluster: &Cluster,
        id: &str,
        seats: &[Seat],
        events: &'a Events,
        options: &'a Options,
    ) -> Result<Follow<'a>, Error> {
        let started = each(seats.iter().collect(), async |seat: &Seat| {
            let script = log_script(FOLLOW, cluster, id, 0);
            let mut process = seat.seen.member.link.follow(&script, "follow the run's log").await?;
            let pid = first_line(&mut process).await;
            let pid = pid.map_err(|e| NodeError::failed(seat.seen.name(), "follow the run's log", e))?;
            Ok((process, pid))
        })
        .await;
        let started = all(events, started)?;
        // bounded: when the terminal cannot keep up, the nodes' logs wait on their disks
        let (sender, receiver) = mpsc::channel(64);
        let mut tasks = tokio::task::JoinSet::new();
        let mut pids = BTreeMap::new();
        for (i, (mut process, pid)) in started.into_iter().enumerate() {
            pids.insert(seats[i].seen.name().to_owned(), pid);
            let sender = sender.clone();
            tasks.spawn(async move {
                let mut buffer = vec![0; 64 * 1024];
                while let Ok(n @ 1..) = process.stdout.read(&mut buffer).await {
                    if sender.send(News::Bytes(i, buffer[..n].to_vec())).await.is_err() {
                        return;
                    }
                }
            });
        }
        Ok(Follow {
            events,
            options,
            names: seats.iter().map(|s| s.seen.name().to_owned()).collect(),
            skews: seats.iter().map(|s| s.seen.skew).collect(),
            parsers: seats.iter().map(|_| Parser::default()).collect(),
            offsets: vec![0; seats.len()],
            pids,
            progress: Progress::default(),
            launcher: VecDeque::new(),
            launcher_rest: Vec::new(),
            sender,
            receiver,
            tasks,
        })
    }

    /// Follows the launcher's container too.
    fn launcher(&mut self, engine: &Engine, name: &str) {
        let stream = engine.follow(name);
        let sender = self.sender.clone();
        self.tasks.spawn(async move {
            let mut stream = std::pin::pin!(stream);
            while let Some(bytes) = stream.next().await {
                if sender.send(News::Launcher(bytes)).await.is_err() {
                    return;
                }
            }
        });
    }

    /// Tells what comes until the launcher's container ends, and gives its exit code.
    async fn until_end(
        &mut self,
        engine: &Engine,
        container: &str,
        id: &str,
        ranks: u32,
        on_frame: &mut impl FnMut(&str, &Frame),
    ) -> Result<i64, NodeError> {
        let mut running = false;
        let mut wait = std::pin::pin!(engine.wait(container));
        loop {
            let news = tokio::select! {
                code = &mut wait => return code,
                news = self.receiver.recv() => news,
            };
            let Some(news) = news else { continue };
            self.take(news, on_frame);
            if !running && self.progress.started() >= ranks {
                running = true;
                self.events.send(Event::Job { id: id.to_owned(), state: State::Running });
            }
        }
    }

    fn take(&mut self, news: News, on_frame: &mut impl FnMut(&str, &Frame)) {
        match news {
            News::Bytes(i, bytes) => {
                self.offsets[i] += bytes.len() as u64;
                for frame in self.parsers[i].push(&bytes) {
                    self.progress.see(&self.names[i], &frame, self.skews[i]);
                    on_frame(&self.names[i], &frame);
                    self.tell(i, frame);
                }
            }
            News::Launcher(bytes) => {
                self.launcher_rest.extend_from_slice(&bytes);
                while let Some(end) = self.launcher_rest.iter().position(|b| *b == b'\n') {
                    let line: Vec<u8> = self.launcher_rest.drain(..=end).collect();
                    let line = String::from_utf8_lossy(&line).trim_end().to_owned();
                    if self.options.show_launcher {
                        self.events.send(Event::Launcher(line.clone()));
                    }
                    self.launcher.push_back(line);
                    if self.launcher.len() > LAUNCHER_LINES {
                        self.launcher.pop_front();
                    }
                }
            }
        }
    }

    fn tell(&self, i: usize, frame: Frame) {
        let node = self.names[i].clone();
        let rank = frame.rank;
        match frame.kind {
            Kind::Stdout(_) | Kind::Stderr(_) if !self.options.show_output => {}
            Kind::Stdout(line) => self.events.send(Event::Output { rank, node, stderr: false, line }),
            Kind::Stderr(line) => self.events.send(Event::Output { rank, node, stderr: true, line }),
            Kind::Broken(words) => self.events.send(Event::Warning(format!("rank {rank} on {node}: {words}"))),
            Kind::Started | Kind::Exited(_) => {}
        }
    }

    /// Takes what is still under way, then reads from each node what its log holds beyond that: nothing is lost when a
    /// follower was ended before it had sent all.
    async fn drain(&mut self, cluster: &Cluster, id: &str, seats: &[Seat], on_frame: &mut impl FnMut(&str, &Frame)) {
        let ended = async {
            loop {
                let news = tokio::select! {
                    news = self.receiver.recv() => news,
                    joined = self.tasks.join_next() => if joined.is_some() { continue } else { break },
                };
                if let Some(news) = news {
                    self.take(news, on_frame);
                }
            }
        };
        let _ = tokio::time::timeout(Duration::from_secs(2), ended).await;
        self.tasks.abort_all();
        while self.tasks.join_next().await.is_some() {}
        while let Ok(news) = self.receiver.try_recv() {
            self.take(news, on_frame);
        }
        let work = seats.iter().zip(self.offsets.clone()).collect();
        let rests = each(work, async |(seat, offset): (&Seat, u64)| {
            let script = log_script(READ, cluster, id, offset);
            seat.seen.member.link.script(&script, "read the end of the run's log").await
        })
        .await;
        for (i, rest) in rests.into_iter().enumerate() {
            match rest {
                Ok(bytes) => self.take(News::Bytes(i, bytes), on_frame),
                Err(error) => self.events.send(Event::Warning(error.to_string())),
            }
        }
    }
}

fn log_script(source: &'static str, cluster: &Cluster, id: &str, offset: u64) -> Script {
    Script::new(source).with("jobs_dir", &cluster.jobs_dir).with("id", id).with("offset", &offset.to_string())
}

/// The first line of a process, byte by byte so that nothing behind it is taken.
async fn first_line(process: &mut Process) -> std::io::Result<String> {
    let mut line = Vec::new();
    let mut byte = [0];
    while process.stdout.read(&mut byte).await? == 1 && byte[0] != b'\n' && line.len() < 20 {
        line.push(byte[0]);
    }
    let line = String::from_utf8_lossy(&line).into_owned();
    if line.parse::<u32>().is_ok() { Ok(line) } else { Err(std::io::Error::other("the follower did not start")) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dates() {
        assert_eq!(civil(0), (1970, 1, 1));
        assert_eq!(civil(19_782), (2024, 2, 29));
        assert_eq!(civil(20_778), (2026, 11, 21));
        let id = new_id();
        assert_eq!(id.len(), 20, "{id}");
        assert!(id.chars().all(|c| c.is_ascii_hexdigit() || c == '-'));
    }
}
