//! One run, from the placement of its ranks to the last line of their output. `train`, `run` and `verify` are all this.

mod end;
mod follow;
mod holders;
mod logs;
mod prepare;
mod seats;
mod watch;

use crate::cancel::signalled;
use crate::cluster::nodes::{Member, Observed, Target, now};
use crate::cluster::turn::Turn;
use crate::error::Error;
use crate::event::{Event, Events};
use crate::inventory::{Cluster, Controller, Node};
use crate::job::frames::Frame;
use crate::job::list::Job;
use crate::job::record::{Ending, State};
use crate::launch::horovodrun::{Keeping, Launch, Worker};
use crate::launch::placement::{MapBy, Placement, place};
use crate::node::gpus::GpuRequest;
use crate::node::network::{self, Endpoint};
use crate::runtime::docker::Engine;
use crate::runtime::spec::Desired;
use crate::secret::Secret;
use crate::sync::upload::Project;
use crate::text::argument::Word;
pub use end::end_runs;
use follow::Follow;
use holders::{Holds, holds, placed};
pub use holders::{Wanted, settle};
pub use logs::{Reading, follow, history};
pub use prepare::end_on;
use prepare::{Plan, end, ending, env_files, gather_outputs, prepare, same_workspaces};
use seats::{check, seats};
use std::collections::BTreeMap;
use std::net::IpAddr;
use std::time::{Duration, SystemTime};
use tokio::sync::watch::Receiver;
use watch::Watch;
pub use watch::{KEEPERS_TIME, OnSignal, Ran, Show, Until, wind_up};

/// What every rank runs.
#[derive(Debug, Clone)]
pub struct Program {
    /// The run's name, where it has one of its own.
    pub title: Option<String>,
    /// The project's name, or the check's.
    pub name: String,
    /// The program and its arguments, byte for byte.
    pub command: Vec<Word>,
    /// Where it starts.
    pub cwd: Cwd,
    /// A project that is shipped and mounted first.
    pub project: Option<Project>,
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
    /// What it asks of the nodes.
    pub wanted: Wanted,
    /// Gloo or MPI.
    pub controller: Controller,
    /// How often it is started again after a failure.
    pub restarts: u32,
    /// How long a rank may keep the others waiting; zero: for ever.
    pub stall_timeout: Duration,
    /// Bytes that the log may take on each node.
    pub log_max: Option<u64>,
    /// Environment of the ranks that goes before the inventory's.
    pub env: BTreeMap<String, Secret>,
    /// What is shown of it.
    pub show: Show,
    /// Until when it is watched.
    pub until: Until,
}

/// Checks what can be known without asking a node.
///
/// # Errors
/// More ranks than slots, when all slots stand in the inventory.
pub fn check_ranks(target: &Target, ranks: Option<u32>, per_node: Option<u32>) -> Result<(), Error> {
    let at_most = per_node.unwrap_or(u32::MAX);
    let known: Option<Vec<(String, u32)>> =
        target.nodes().iter().map(|n| network::known_slots(n).map(|s| (n.name.clone(), s.min(at_most)))).collect();
    match (ranks, known) {
        (Some(0), _) => Err(Error::usage("-np 0: a run has at least one rank", "say -np with a number from 1 on")),
        (Some(ranks), Some(slots)) => placement(&slots, ranks, MapBy::Slot).map(|_| ()),
        _ => Ok(()),
    }
}

fn placement(slots: &[(String, u32)], ranks: u32, map_by: MapBy) -> Result<Placement, Error> {
    place(slots, ranks, map_by).map_err(|e| {
        Error::usage(e.to_string(), "lower -np, add nodes, or raise `slots` (or `gpus`) of a [[node]] in the inventory")
    })
}

/// Whether the nodes have what is asked of them, and nobody has it before.
///
/// # Errors
/// As of [`run`] before anything is done: too many ranks, [`Error::Held`].
pub fn is_free(target: &Target, nodes: &[Observed], wanted: Wanted) -> Result<(), Error> {
    placed(target, nodes, wanted, &holds(nodes)).map(|_| ())
}

/// The nodes that a run would have, each with a place that the others can reach.
///
/// # Errors
/// As of [`run`] before anything is done: too many ranks, a node without a place.
pub fn taking_part(
    target: &Target,
    nodes: &[Observed],
    wanted: Wanted,
    controller: Controller,
) -> Result<Vec<Observed>, Error> {
    let placement = placed(target, nodes, wanted, &Holds::new())?;
    let (seats, _) = seats(target, &placement, nodes.to_vec(), controller)?;
    Ok(seats.into_iter().map(|seat| seat.seen).collect())
}

/// The target of a run that may share its nodes with others: a name of its own for its `hmaster` where another's is up, and workers
/// and a port of its own where others have ranks beside its own.
fn beside(target: &Target, id: &str, seats: &[Seat], holds: &Holds) -> Result<Target, Error> {
    let mut own = target.clone();
    let cluster = &mut own.inventory.cluster;
    let masters = seats[0].seen.docker.containers.iter();
    if masters.clone().any(|c| c.name == cluster.master && c.belongs_to(&cluster.name) && c.state.is_up()) {
        cluster.master = format!("{}-{id}", cluster.master);
    }
    let workers = || seats.iter().filter(|seat| !seat.launches);
    if workers().any(|seat| holds.contains_key(seat.seen.name())) {
        cluster.worker = format!("{}-{id}", cluster.worker);
        // a port whose worker has just gone is still that of its run, whose keeper tries it again
        let held = |node: &str, port| holds.get(node).into_iter().flatten().any(|hold| hold.port == Some(port));
        let free =
            |port: &u16| workers().all(|seat| !seat.seen.facts.ports.contains(port) && !held(seat.seen.name(), *port));
        cluster.port = (cluster.port..=u16::MAX).skip(1).find(free).ok_or_else(|| {
            Error::check(
                format!("no port above {} is free on all nodes of the run", cluster.port),
                "set cluster.port to a lower one",
            )
        })?;
    }
    Ok(own)
}

/// One node's part in a run.
#[derive(Clone)]
struct Seat {
    seen: Observed,
    endpoint: Endpoint,
    ranks: u32,
    /// Whether the launcher runs here, and so these ranks in `hmaster`; on the others they run in `hworker`.
    launches: bool,
    /// The GPUs that the ranks are to see; empty: all.
    gpus: Vec<String>,
}

/// Runs a program on the observed and settled nodes (the master first) and follows it to its end. Every line of output goes to
/// `events`, every frame to `on_frame`. A signal ends the run in order. The `turn` is given back as soon as the
/// launcher is up, which shows by itself that the nodes are taken.
///
/// # Errors
/// When it could not be started, or the way to the master broke; a program that fails is no error but a [`Ran`].
pub async fn run(
    target: &Target,
    nodes: Vec<Observed>,
    program: &Program,
    options: &Options,
    turn: &Turn,
    events: &Events,
    mut on_frame: impl FnMut(&str, &Frame),
) -> Result<Ran, Error> {
    let mut cancel = turn.cancel();
    let holds = holds(&nodes);
    let placement = placed(target, &nodes, options.wanted, &holds)?;
    let (seats, others) = seats(target, &placement, nodes, options.controller)?;
    let secrets = env_files(&seats)?;
    check(target, &seats, events)?;

    let id = new_id();
    let all = target.cluster();
    let target = &beside(target, &id, &seats, &holds)?;
    let cluster = target.cluster();
    events.send(Event::Job { id: id.clone(), state: State::Starting });
    let job_dir = format!("{}/{id}", cluster.jobs_dir);
    let hosts = hosts(&seats);
    let master = &seats[0];
    let launch = launch(cluster, &seats, &hosts, options, &job_dir);
    let plan = Plan {
        target,
        id: &id,
        program,
        controller: options.controller,
        stall_timeout: options.stall_timeout,
        log_max: options.log_max,
        placement: &placement,
        secrets: &secrets,
        env: &options.env,
        restarts: options.restarts,
        own_port: (cluster.port != all.port).then_some(all.port),
        keeping: keeping(cluster, &launch, &seats, options.restarts, cluster.worker != all.worker),
        holds: &holds,
    };
    let members: Vec<Member> = seats.iter().map(|seat| seat.seen.member.clone()).collect();
    let desired = Desired {
        env: environment(&id, options.controller, &master.seen.member.node),
        ..Desired::master(
            cluster,
            &master.seen.member.node,
            match master.ranks {
                0 => GpuRequest::None,
                _ => network::gpu_request(&master.seen.member.node, &master.seen.facts),
            },
            launch.container_command(),
            &id,
        )
    };
    let engines: Vec<Engine> = seats.iter().map(|seat| seat.seen.docker.engine.clone()).collect();
    let launching = async {
        let workspaces = prepare(&plan, &seats, &others, events).await?;
        let follow = Follow::start(cluster, &id, (&members, vec![0; members.len()]), options.show, events).await?;
        let ranks = placement.ranks();
        events.phase(format!("starting {ranks} rank{}", if ranks == 1 { "" } else { "s" }));
        same_workspaces(cluster, &seats, &workspaces).await?;
        let workspace = workspaces.get(master.seen.name()).map(|place| place.directory.clone());
        let container = engines[0].create_and_start(&Desired { workspace, ..desired }).await?;
        Ok((follow, container, workspaces))
    };
    let launched = tokio::select! {
        launched = launching => launched,
        error = turn.stops() => Err(error),
    };
    match launched {
        Ok((follow, container, workspaces)) => {
            // from here on hmaster itself shows that a run is under way
            turn.give_back().await;
            let watch = Watch {
                cluster,
                id: &id,
                placement: placement.clone(),
                members,
                engines,
                container,
                follow,
                silent: Vec::new(),
                events,
            };
            let ran = watch.run(options.until, &mut cancel, &mut on_frame).await;
            // one that goes on, in its next try perhaps, keeps its folder
            if ran.as_ref().is_ok_and(|ran| ran.state != State::Running) {
                gather_outputs(cluster, (&id, &program.name), &seats, &workspaces, events).await;
            }
            ran
        }
        Err(error) => {
            let answered = end(cluster, &id, &members, &engines, events).await;
            let never = Ending {
                ended: now(),
                stopped: matches!(error, Error::Signal(_)),
                fault: Some(format!("it was never launched: {error}")),
                ..Ending::default()
            };
            // where its folder was not even laid there is nothing to write to
            if answered.iter().any(|member| member.node.name == members[0].node.name) {
                let _ = ending(cluster, &id, &members[0], &never).await;
            }
            Err(error)
        }
    }
}

/// What a run would be.
#[derive(Debug)]
pub struct Would {
    /// Who would run where.
    pub placement: Placement,
    /// The address of each node.
    pub addresses: BTreeMap<String, IpAddr>,
    /// The launcher's vector; the run's id is not known before it is there.
    pub launcher: Vec<String>,
}

/// Finds out all that [`run`] does before it changes something.
///
/// # Errors
/// As there.
pub fn would(target: &Target, nodes: Vec<Observed>, options: &Options, events: &Events) -> Result<Would, Error> {
    let holds = holds(&nodes);
    let placement = placed(target, &nodes, options.wanted, &holds)?;
    let (seats, _) = seats(target, &placement, nodes, options.controller)?;
    env_files(&seats)?;
    check(target, &seats, events)?;
    let target = beside(target, "ID", &seats, &holds)?;
    let cluster = target.cluster();
    let addresses = seats.iter().map(|seat| (seat.seen.name().to_owned(), seat.endpoint.address)).collect();
    let job_dir = format!("{}/ID", cluster.jobs_dir);
    let launcher = launch(cluster, &seats, &hosts(&seats), options, &job_dir).horovodrun();
    Ok(Would { placement, addresses, launcher })
}

fn hosts(seats: &[Seat]) -> Vec<(IpAddr, u32)> {
    seats.iter().filter(|seat| seat.ranks > 0).map(|seat| (seat.endpoint.address, seat.ranks)).collect()
}

fn launch<'a>(
    cluster: &Cluster,
    seats: &'a [Seat],
    hosts: &'a [(IpAddr, u32)],
    options: &Options,
    job_dir: &'a str,
) -> Launch<'a> {
    Launch {
        controller: options.controller,
        hosts,
        port: cluster.port,
        interface: &seats[0].endpoint.interface,
        start_timeout: cluster.start_timeout,
        stall_timeout: options.stall_timeout,
        job_dir,
    }
}

/// Watches a run that somebody launched, from its first line on; `launcher` is the engine of its first node and the launcher's
/// container there.
///
/// # Errors
/// As of [`run`] after the launch.
pub async fn watch(
    cluster: &Cluster,
    job: &Job,
    members: Vec<Member>,
    launcher: (Engine, String),
    (show, until): (Show, Until),
    events: &Events,
    cancel: &mut Receiver<Option<u8>>,
) -> Result<Ran, Error> {
    let (engine, container) = launcher;
    let following = async {
        let starts = logs::starts(cluster, &job.id, &members, job.log_max, events).await?;
        Follow::start(cluster, &job.id, (&members, starts), show, events).await
    };
    let follow = tokio::select! {
        follow = following => follow?,
        signal = signalled(cancel) => return Err(Error::Signal(signal)),
    };
    let placement = job.placement.clone();
    let watch = Watch {
        cluster,
        id: &job.id,
        placement,
        members,
        engines: vec![engine],
        container,
        follow,
        silent: Vec::new(),
        events,
    };
    watch.run(until, cancel, &mut |_, _| {}).await
}

/// What the run's keeper has to know.
fn keeping(cluster: &Cluster, launch: &Launch<'_>, seats: &[Seat], restarts: u32, own_workers: bool) -> String {
    let workers = seats.iter().filter(|seat| !seat.launches);
    let worker =
        |seat: &Seat| Worker { node: seat.seen.name().to_owned(), address: seat.endpoint.address, ranks: seat.ranks };
    let keeping = Keeping {
        launcher: launch.horovodrun(),
        node: seats[0].seen.name(),
        address: seats[0].endpoint.address,
        ranks: seats[0].ranks,
        workers: workers.map(worker).collect(),
        restarts,
        own_workers,
        port: cluster.port,
        grace: cluster.stop_grace.as_secs(),
        start_timeout: cluster.start_timeout.as_secs(),
        restart_pause: cluster.restart_pause.as_secs(),
        keep_alive: cluster.keep_alive.as_secs(),
    };
    serde_json::to_string(&keeping).unwrap_or_default()
}

/// The environment of the launcher's container; Horovod hands it on to every rank.
fn environment(id: &str, controller: Controller, master: &Node) -> Vec<String> {
    let mut env = vec![format!("HVDCTL_JOB={id}"), "PYTHONUNBUFFERED=1".into()];
    if controller == Controller::Mpi {
        // Docker denies the system call by which ranks of one container copy from each other; Open MPI 4 falls back, with
        // a line of complaint for each message
        env.push("OMPI_MCA_btl_vader_single_copy_mechanism=none".into());
        // else its daemons leave the sessions of sshd, and when the network is cut nothing tells them and the ranks
        env.push("OMPI_MCA_orte_leave_session_attached=1".into());
        // all else of the inventory's environment goes to the ranks by their supervisors; these mpirun itself reads
        let own = |name: &str| ["OMPI_MCA_", "PRTE_MCA_", "PMIX_MCA_"].iter().any(|start| name.starts_with(start));
        let set = master.container.env.iter().filter(|(name, _)| own(name));
        env.extend(set.map(|(name, value)| format!("{name}={value}")));
    }
    env
}

/// The launcher's last lines, to be put behind a sentence.
pub fn tail<'a>(lines: impl IntoIterator<Item = &'a String>) -> String {
    lines.into_iter().map(|line| format!("\n    {line}")).collect()
}

/// A name that sorts by time and that no two operators choose: `20261121-101500-4f2a`.
fn new_id() -> String {
    let time = humantime::format_rfc3339_seconds(SystemTime::now()).to_string();
    let time: String = time.replace('T', "-").chars().filter(|c| c.is_ascii_digit() || *c == '-').collect();
    let digits = |range: std::ops::Range<usize>| time.get(range).unwrap_or_default().to_owned();
    let salt = std::collections::hash_map::RandomState::new();
    let salt = std::hash::BuildHasher::hash_one(&salt, std::process::id()) & 0xffff;
    // 2026-11-21-101500
    format!("{}{}{}-{}-{salt:04x}", digits(0..4), digits(5..7), digits(8..10), digits(11..17))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_are_a_time_and_a_salt() {
        let id = new_id();
        let parts: Vec<&str> = id.split('-').collect();
        assert_eq!(parts.iter().map(|p| p.len()).collect::<Vec<_>>(), [8, 6, 4], "{id}");
        assert!(id.starts_with("20") && id.chars().all(|c| c.is_ascii_hexdigit() || c == '-'), "{id}");
        assert_ne!(id, new_id());
    }
}
