//! One run, from the placement of its ranks to the last line of their output. `train`, `run` and `verify` are all this.

mod follow;
mod prepare;
mod seats;

use crate::core::frames::Frame;
use crate::core::hostset;
use crate::core::inventory::{Controller, Node};
use crate::core::job::{Ended, State};
use crate::core::launch::Launch;
use crate::core::network::{self, Endpoint};
use crate::core::slots::{Placement, place};
use crate::core::spec::Desired;
use crate::error::Error;
use crate::event::{Event, Events};
use crate::ops::fleet::{Observed, Target, now};
use crate::ops::ship::Project;
use follow::Follow;
pub use prepare::END;
use prepare::{end, env_files, gather_outputs, prepare, same_workspaces, write_result};
use seats::{check, seats};
use serde::Serialize;
use std::collections::BTreeMap;
use std::net::IpAddr;
use std::time::{Duration, SystemTime};
use tokio::sync::watch;

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

/// The nodes that a run with this many ranks would have, each with a place that the others can reach.
///
/// # Errors
/// As of [`run`] before anything is done: too many ranks, a node without a place.
pub fn taking_part(
    target: &Target,
    nodes: &[Observed],
    ranks: Option<u32>,
    controller: Controller,
) -> Result<Vec<Observed>, Error> {
    let placement = placement_on(nodes, ranks)?;
    let (seats, _) = seats(&target.inventory, &placement, nodes.to_vec(), controller)?;
    Ok(seats.into_iter().map(|seat| seat.seen).collect())
}

fn placement_on(nodes: &[Observed], ranks: Option<u32>) -> Result<Placement, Error> {
    let slots: Vec<(String, u32)> =
        nodes.iter().map(|n| (n.name().to_owned(), network::slots(&n.member.node, &n.facts))).collect();
    placement(&slots, ranks.unwrap_or_else(|| slots.iter().map(|(_, n)| n).sum()))
}

/// One node's part in a run.
#[derive(Clone)]
struct Seat {
    seen: Observed,
    endpoint: Endpoint,
    ranks: u32,
    /// Whether the launcher runs here, and so these ranks in `hmaster`; on the others they run in `hworker`.
    launches: bool,
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
    let placement = placement_on(&nodes, options.ranks)?;
    let ranks = placement.ranks();
    let (seats, others) = seats(&target.inventory, &placement, nodes, options.controller)?;
    let secrets = env_files(&seats)?;
    check(target, &seats, events)?;

    let id = new_id();
    events.send(Event::Job { id: id.clone(), state: State::Starting });
    let prepared = tokio::select! {
        prepared = prepare(target, &id, program, &seats, &others, &secrets, events) => prepared,
        signal = signalled(&mut cancel) => Err(Error::Signal(signal)),
    };
    let following = match prepared {
        Ok(places) => Follow::start(cluster, &id, &seats, events, options).await.map(|follow| (follow, places)),
        Err(error) => Err(error),
    };
    let (mut follow, workspaces) = match following {
        Ok(following) => following,
        Err(error) => {
            let state = if matches!(error, Error::Signal(_)) { State::Stopped } else { State::Failed };
            let answered = end(cluster, &id, &seats, &BTreeMap::new(), events).await;
            write_result(cluster, &id, &answered, &record(state, None), events).await;
            return Err(error);
        }
    };
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
        workspace: workspaces.get(master.seen.name()).map(|place| place.folder.clone()),
        env: environment(&id, options.controller, &master.seen.member.node),
        ..Desired::master(
            cluster,
            &master.seen.member.node,
            network::gpu_request(&master.seen.member.node, &master.seen.facts),
            launch.container_command(),
            &id,
        )
    };
    events.phase(format!("starting {ranks} rank{}", if ranks == 1 { "" } else { "s" }));
    let engine = &master.seen.docker.engine;
    let started = async {
        same_workspaces(cluster, &seats, &workspaces).await?;
        engine.create_and_start(&desired).await
    };
    let ended = match started.await {
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

    // the ranks first, while the launcher still stands: its end would take the master's ranks along without grace
    let said = follow.launcher.clone();
    let silent = follow.silent();
    let answered = end(cluster, &id, &seats, &follow.pids, events).await;
    follow.drain(cluster, &id, &answered, &mut on_frame).await;
    let (state, launcher_code) = match &ended {
        Ok(End::Launcher(code)) => (follow.progress.state(ranks, Some(*code), false), Some(*code)),
        Ok(End::Signal(_)) => (State::Stopped, None),
        Ok(End::TimeOut) => (State::Failed, None),
        Err(_) if follow.progress.started() == 0 => (State::Failed, None),
        Err(_) => (State::Lost, None),
    };
    write_result(cluster, &id, &answered, &record(state, launcher_code), events).await;
    gather_outputs(cluster, &program.name, &answered, &workspaces, events).await;
    events.send(Event::Job { id: id.clone(), state });

    match ended {
        Ok(End::Signal(signal)) => Err(Error::Signal(signal)),
        Ok(End::TimeOut) => Err(Error::check(
            format!(
                "no end within {} s; {} of {ranks} ranks had started{}{}",
                options.limit.unwrap_or_default().as_secs(),
                follow.progress.started(),
                if silent.is_empty() { String::new() } else { format!(", none on {}", hostset::fold(&silent)) },
                tail(&said)
            ),
            "-vv shows all that the launcher says; --timeout gives it more time",
        )),
        Err(error) if error.hint.is_none() => Err(error
            .hint(format!("the run {id} may still be under way: hvdctl status shows it, hvdctl down ends it"))
            .into()),
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

/// The environment of the launcher's container; Horovod hands it on to every rank.
fn environment(id: &str, controller: Controller, master: &Node) -> Vec<String> {
    let mut env = vec![format!("HVDCTL_JOB={id}"), "PYTHONUNBUFFERED=1".into()];
    if controller == Controller::Mpi {
        // Docker denies the system call by which ranks of one container copy from each other; Open MPI 4 falls back, with
        // a line of complaint for each message
        env.push("OMPI_MCA_btl_vader_single_copy_mechanism=none".into());
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

enum End {
    Launcher(i64),
    Signal(u8),
    TimeOut,
}

/// Waits for the number of a signal.
pub async fn signalled(cancel: &mut watch::Receiver<Option<u8>>) -> u8 {
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

/// What is kept of the end in `result.json`.
fn record(state: State, launcher: Option<i64>) -> String {
    serde_json::json!({ "state": state, "launcher": launcher, "ended": now() }).to_string()
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
