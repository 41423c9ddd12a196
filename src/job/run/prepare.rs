//! Before a run: its folder, the project and the workers on all nodes; after it: nothing left of it on any.

use super::{Cwd, Holds, Program, Seat};
use crate::cluster::nodes::{Member, Observed, Target, all, each, now, operator};
use crate::error::{Error, NodeError};
use crate::event::{Event, Events};
use crate::inventory::{Cluster, Controller};
use crate::job::record::{Ending, Record};
use crate::launch::env_file;
use crate::launch::horovodrun::{KEEPER as KEEPER_FILE, SUPERVISOR};
use crate::launch::placement::Placement;
use crate::paths::WORKSPACE;
use crate::runtime::container::ContainerState;
use crate::runtime::docker::Engine;
use crate::runtime::spec::{Desired, LABEL_WORKSPACE, Role};
use crate::secret::Secret;
use crate::sync::upload::{Place, Uploaded, compare, merge, upload};
use crate::text::units::human;
use crate::transport::link::Script;
use crate::worker::apply;
use crate::worker::plan::{self, Workspace};
use base64::Engine as _;
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;
use zeroize::Zeroizing;

const START: &str = include_str!("../../scripts/job_start.sh");
const RESULT: &str = include_str!("../../scripts/job_result.sh");
const END: &str = concat!(include_str!("../../scripts/killed.sh"), include_str!("../../scripts/job_end.sh"));
const RANK: &str = include_str!("../../scripts/rank.py");
const ACTIVITY: &str = include_str!("../../scripts/activity.py");
const SSH: &str = include_str!("../../scripts/ssh.sh");
const KEEPER: &str = include_str!("../../scripts/keeper.py");
const REAP: &str = include_str!("../../scripts/reap.py");

/// The variables of each `env_file`.
pub(super) type EnvFiles = BTreeMap<PathBuf, BTreeMap<String, Secret>>;

/// The places of the project by node.
pub(super) type Workspaces = BTreeMap<String, Place>;

/// The file in a run's folder with the ranks' environment; `job_end.sh` removes it.
const ENVIRONMENT: &str = "env.json";

/// What is the same on all nodes of a run.
pub(super) struct Plan<'a> {
    pub(super) target: &'a Target,
    pub(super) id: &'a str,
    pub(super) program: &'a Program,
    pub(super) controller: Controller,
    pub(super) stall_timeout: Duration,
    pub(super) log_max: Option<u64>,
    pub(super) placement: &'a Placement,
    pub(super) secrets: &'a EnvFiles,
    /// The operator's own words, which go before the inventory's.
    pub(super) env: &'a BTreeMap<String, Secret>,
    /// How often it is started again after a failure.
    pub(super) restarts: u32,
    /// The port for which the workers' host keys are known, where the run has another.
    pub(super) own_port: Option<u16>,
    /// For the keeper, which is on the launcher's node only.
    pub(super) keeping: String,
    /// What other runs have of the nodes.
    pub(super) holds: &'a Holds,
}

impl Plan<'_> {
    /// The other runs of the same project that are under way on a node.
    fn beside(&self, node: &str) -> Vec<&str> {
        let holds = self.holds.get(node).into_iter().flatten();
        let same = holds.filter(|hold| hold.project.as_ref() == Some(&self.program.name));
        same.map(|hold| hold.job.as_str()).collect()
    }
}

/// Lays the run's folder, ships the project and brings the workers to it, on all nodes at once. Gives each node's folder of
/// the project.
pub(super) async fn prepare(
    plan: &Plan<'_>,
    seats: &[Seat],
    others: &[Observed],
    events: &Events,
) -> Result<Workspaces, Error> {
    let Plan { target, id, program, .. } = *plan;
    let cluster = target.cluster();
    let nodes: Vec<(Observed, Option<&Seat>)> = seats
        .iter()
        .map(|seat| (seat.seen.clone(), Some(seat)))
        .chain(others.iter().map(|seen| (seen.clone(), None)))
        .collect();
    events.phase("preparing");
    let results = each(nodes, async |(seen, seat)| {
        let link = &seen.member.link;
        let name = &program.name;
        let looked = match &program.project {
            Some(project) => {
                let looked = compare(cluster, link, project, name, (id, &plan.beside(seen.name())), events).await;
                Some((project, events.told(looked)?))
            }
            None => None,
        };
        let place = looked.as_ref().map(|(_, looked)| looked.place.clone());
        let shipping = async {
            match looked {
                // nothing of this run is there, and that of another stays as it is
                Some((_, looked)) if looked.place.own && seat.is_none() => Ok(None),
                Some((project, looked)) => {
                    events.told(upload(cluster, link, project, (name, id), looked, events).await).map(Some)
                }
                None => Ok(None),
            }
        };
        let laying = async {
            match seat {
                Some(seat) => lay(cluster, &seen, id, &job_files(plan, seat)).await,
                None => Ok(()),
            }
        };
        let worker = async {
            match seat {
                Some(seat) if !seat.launches => ensure_worker(plan, &seen, place.as_ref(), events).await,
                _ => Ok(()),
            }
        };
        // what is wrong with the node shows best where there is most to do: the shipping's words go first
        let (shipped, worker) = if place.as_ref().is_some_and(|place| place.own) {
            // the folder that the worker mounts is only made by the shipping
            let (shipped, laid) = tokio::join!(shipping, laying);
            let shipped = shipped?;
            laid?;
            (shipped, worker.await)
        } else {
            let (shipped, laid, worker) = tokio::join!(shipping, laying, worker);
            let shipped = shipped?;
            laid?;
            (shipped, worker)
        };
        worker?;
        if seat.is_some_and(|seat| seat.launches) {
            remove_ended_master(cluster, &seen).await?;
            let left = plan::left_shells(&cluster.name, &seen.docker.containers, seen.facts.clock);
            apply::apply(&target.inventory, &seen, &left, events).await?;
        }
        events.done(seen.name(), told(shipped.as_ref()));
        Ok(place.map(|place| (seen.name().to_owned(), place)))
    })
    .await;
    Ok(all(events, results)?.into_iter().flatten().collect())
}

fn told(uploaded: Option<&Uploaded>) -> String {
    match uploaded {
        None => "ready".into(),
        Some(Uploaded { sent: 0, removed: 0, .. }) => "project unchanged".into(),
        Some(Uploaded { sent, bytes, removed: 0 }) => format!("uploaded {}, {}", files(*sent), human(*bytes)),
        Some(Uploaded { sent, bytes, removed }) => {
            format!("uploaded {}, {}; removed {}", files(*sent), human(*bytes), files(*removed))
        }
    }
}

fn files(n: usize) -> String {
    format!("{n} file{}", if n == 1 { "" } else { "s" })
}

async fn ensure_worker(
    run: &Plan<'_>,
    seen: &Observed,
    place: Option<&Place>,
    events: &Events,
) -> Result<(), NodeError> {
    let inventory = &run.target.inventory;
    let which = match place {
        // a mount holds on to a folder that was removed; only a new container sees the one made since
        Some(place) if place.new => Workspace::Renewed,
        Some(_) => Workspace::AsDesired,
        None => Workspace::Any,
    };
    let workspace = place.map(|place| place.directory.clone());
    let desired = Desired { workspace, ..apply::desired(inventory, seen)? };
    let desired =
        if run.own_port.is_some() { desired.of_run(&inventory.cluster, run.id, run.restarts) } else { desired };
    let operations = apply::plan(&inventory.cluster, seen, &desired, &which)?;
    apply::apply(inventory, seen, &operations, events).await
}

/// Looks once more before the launch: another operator's run that was prepared at the same time may have given a worker
/// its own project, and ranks must never run other code than theirs.
pub(super) async fn same_workspaces(
    cluster: &Cluster,
    seats: &[Seat],
    workspaces: &Workspaces,
) -> Result<(), NodeError> {
    let looked = each(seats.iter().filter(|seat| !seat.launches).collect(), async |seat: &Seat| {
        let Some(place) = workspaces.get(seat.seen.name()) else { return Ok(()) };
        let containers = seat.seen.docker.engine.containers().await?;
        let worker = containers
            .iter()
            .find(|c| c.name == cluster.worker && c.belongs_to(&cluster.name) && c.state == ContainerState::Running);
        if worker.and_then(|c| c.label(LABEL_WORKSPACE)) == Some(place.directory.as_str()) {
            return Ok(());
        }
        let said = format!("{} is gone or has another project mounted by now", cluster.worker);
        Err(NodeError::failed(seat.seen.name(), "launch the run", said)
            .hint("another run was started at the same time: see hvdctl status, and try again after it"))
    })
    .await;
    looked.into_iter().collect()
}

async fn remove_ended_master(cluster: &Cluster, seen: &Observed) -> Result<(), NodeError> {
    let ended = seen.docker.containers.iter().find(|c| c.name == cluster.master && c.is(Role::Master));
    match ended {
        Some(container) => seen.docker.engine.remove(&container.id).await,
        None => Ok(()),
    }
}

/// Makes the run's folder.
async fn lay(cluster: &Cluster, seen: &Observed, id: &str, files: &str) -> Result<(), NodeError> {
    let script = Script::new(START).with("jobs_dir", &cluster.jobs_dir).with("id", id).with("files", files);
    let tried = format!("make the run's folder in {}", cluster.jobs_dir);
    seen.member.link.script(&script, &tried).await.map(|_| ())
}

/// The files of a run's folder, as `job_start.sh` reads them.
fn job_files(plan: &Plan<'_>, seat: &Seat) -> Zeroizing<String> {
    let Plan { target, id, program, .. } = *plan;
    let cluster = target.cluster();
    let record = Record {
        id: id.to_owned(),
        cluster: cluster.name.clone(),
        name: program.title.clone().unwrap_or_else(|| program.name.clone()),
        project: program.project.as_ref().map(|_| program.name.clone()),
        restarts: plan.restarts,
        operator: operator(),
        created: now(),
        controller: plan.controller,
        placement: plan.placement.clone(),
        command: program.command.clone(),
        cwd: match program.cwd {
            Cwd::Workspace => WORKSPACE.into(),
            Cwd::Job => format!("{}/{id}", cluster.jobs_dir),
            Cwd::Root => "/".into(),
        },
        ranks: seat.ranks,
        port: Some(cluster.port),
        interface: seat.endpoint.interface.clone(),
        grace: cluster.stop_grace.as_secs(),
        stall: plan.stall_timeout.as_secs(),
        idle_margin: cluster.idle_margin.as_secs(),
        log_max: plan.log_max,
        ulimits: seat.seen.member.node.container.ulimits.clone(),
    };
    let record = serde_json::to_string(&record).unwrap_or_default();
    let environment = environment(seat, plan.secrets, plan.env);
    let known_hosts = plan.own_port.map(|port| known_hosts(seat, port, cluster.port));
    let mut files = vec![
        (0o600, "job.json", record.as_str()),
        (0o600, ENVIRONMENT, environment.as_str()),
        (0o644, SUPERVISOR, RANK),
        (0o644, "activity.py", ACTIVITY),
        (0o644, "reap.py", REAP),
        (0o755, "ssh", SSH),
    ];
    if seat.launches {
        files.extend([(0o600, "launch.json", plan.keeping.as_str()), (0o644, KEEPER_FILE, KEEPER)]);
        files.extend(known_hosts.as_deref().map(|text| (0o644, "known_hosts", text)));
    }
    files.extend(program.files.iter().map(|(name, text)| (0o644, *name, *text)));
    // the ranks' log, whose mode keeps it from others; where it is there, all of the others are
    files.push((0o600, "log", ""));
    archive(&files)
}

/// Files by mode, name (shorter than 100 bytes) and text as a tar archive in base64. They may be secrets: the archive is made at its
/// full size at once, as one that grows leaves its old bytes in memory.
fn archive(files: &[(u32, &str, &str)]) -> Zeroizing<String> {
    const BLOCK: usize = 512;
    let size: usize = files.iter().map(|(_, _, text)| BLOCK + text.len().next_multiple_of(BLOCK)).sum();
    let mut whole = Zeroizing::new(Vec::with_capacity(size + 2 * BLOCK));
    let archive: &mut Vec<u8> = &mut whole;
    for (mode, name, text) in files {
        let mut header = tar::Header::new_gnu();
        header.as_old_mut().name[..name.len()].copy_from_slice(name.as_bytes());
        header.set_entry_type(tar::EntryType::Regular);
        header.set_mode(*mode);
        header.set_uid(0);
        header.set_gid(0);
        header.set_mtime(0);
        header.set_size(text.len() as u64);
        header.set_cksum();
        archive.extend_from_slice(header.as_bytes());
        archive.extend_from_slice(text.as_bytes());
        archive.resize(archive.len().next_multiple_of(BLOCK), 0);
    }
    archive.resize(archive.len() + 2 * BLOCK, 0);
    Zeroizing::new(base64::engine::general_purpose::STANDARD.encode(&*whole))
}

/// The workers' pinned host keys for the port of this run's own ones; `ssh.sh` finds them there.
fn known_hosts(seat: &Seat, from: u16, to: u16) -> String {
    let pinned = seat.seen.facts.key_files.get("known_hosts").map_or("", |file| file.text.as_str());
    pinned.replace(&format!("]:{from}"), &format!("]:{to}"))
}

/// The ranks' environment on a node as JSON: the operator's own words, over the GPUs that are the run's, over what the inventory
/// says, over what its file says.
fn environment(seat: &Seat, secrets: &EnvFiles, own: &BTreeMap<String, Secret>) -> Zeroizing<String> {
    let node = &seat.seen.member.node;
    let gpus = seat.gpus.join(",");
    let gpus = (!gpus.is_empty()).then_some(("CUDA_VISIBLE_DEVICES", gpus.as_str()));
    let file = node.container.env_file.as_ref().and_then(|path| secrets.get(path));
    let secret = file.into_iter().flatten().map(|(name, value)| (name.as_str(), value.expose()));
    let plain = node.container.env.iter().map(|(name, value)| (name.as_str(), value.as_str()));
    let own = own.iter().map(|(name, value)| (name.as_str(), value.expose()));
    let all: BTreeMap<&str, &str> = secret.chain(plain).chain(gpus).chain(own).collect();
    Zeroizing::new(serde_json::to_string(&all).unwrap_or_default())
}

/// Reads the files that the nodes' `env_file` name, each once.
///
/// # Errors
/// When one cannot be used.
pub(super) fn env_files(seats: &[Seat]) -> Result<EnvFiles, Error> {
    let mut files = EnvFiles::new();
    for path in seats.iter().filter_map(|seat| seat.seen.member.node.container.env_file.as_ref()) {
        if !files.contains_key(path) {
            files.insert(path.clone(), env_file::read(path)?);
        }
    }
    Ok(files)
}

/// Ends what is left of the run on every node, its containers too. Failures are told and stop nothing; the members that answered
/// come back, and only they are worth a further step. `engines` has those of the first of them, as many as are known: at least that
/// of the launcher.
pub(super) async fn end(
    cluster: &Cluster,
    id: &str,
    members: &[Member],
    engines: &[Engine],
    events: &Events,
) -> Vec<Member> {
    let clean = async |member: &Member| clean(cluster, id, member, events).await;
    let ended = each((0..members.len()).collect(), async |i: usize| {
        let engine = async {
            match engines.get(i) {
                Some(engine) => Ok(engine.clone()),
                None => Engine::connect(&members[i].link).await,
            }
        };
        let (cleaned, engine) = tokio::join!(clean(&members[i]), engine);
        let removed = async { remove_containers_of(cluster, id, &engine?).await }.await;
        if i == 0 {
            // the launcher is on the first
            return cleaned.and(removed);
        }
        // no rank is left in a worker, and so its engine's silence is no more than a remark
        if let Err(error) = removed {
            events.send(Event::Warning(error.to_string()));
        }
        cleaned
    })
    .await;
    let mut answered = Vec::new();
    for (member, result) in members.iter().zip(ended) {
        match result {
            Ok(()) => answered.push(member.clone()),
            Err(error) => events.send(Event::Warning(error.to_string())),
        }
    }
    answered
}

/// As [`end_on`]; what not even SIGKILL ends is told, and stops nothing.
///
/// # Errors
/// As there.
pub async fn clean(cluster: &Cluster, id: &str, member: &Member, events: &Events) -> Result<(), NodeError> {
    let stuck = end_on(cluster, id, member).await?;
    stuck.into_iter().for_each(|stuck| events.send(Event::Warning(stuck.to_string())));
    Ok(())
}

/// Ends what is left of a run on one node. Gives what to say where not even SIGKILL ends a program.
///
/// # Errors
/// When the node does not answer, or gives no root.
pub async fn end_on(cluster: &Cluster, id: &str, member: &Member) -> Result<Option<NodeError>, NodeError> {
    const TRIED: &str = "end what is left of the run";
    let script = Script::new(END)
        .with("jobs_dir", &cluster.jobs_dir)
        .with("id", id)
        .with("grace", &cluster.stop_grace.as_secs().to_string());
    let limit = cluster.stop_grace + Duration::from_secs(20);
    let said = member.link.script_within(&script, TRIED, limit).await?;
    Ok(stuck(&String::from_utf8_lossy(&said)).map(|stuck| {
        NodeError::failed(&member.node.name, TRIED, stuck).hint(
            "it waits in the kernel for a disk, a file system of the network or a driver, and holds its memory and GPUs until that \
             answers; else only a restart of the node ends it",
        )
    }))
}

/// What `job_end.sh` says of programs that it could not end, in words; none where it says nothing.
fn stuck(said: &str) -> Option<String> {
    let program = |line: &str| {
        let line: String = line.chars().filter(|c| !c.is_control()).collect();
        let (pid, rest) = line.split_once(' ').unwrap_or((&line, ""));
        let (place, words) = rest.split_once(' ').unwrap_or((rest, ""));
        let waits = if matches!(place, "" | "0") { String::new() } else { format!(", in {place}") };
        format!("process {pid} ({}) was killed and is still there{waits}", words.trim())
    };
    let programs: Vec<String> = said.lines().map(program).collect();
    (!programs.is_empty()).then(|| programs.join("\n"))
}

/// How the run ended by its keeper's record; where there is none, the given one becomes it.
pub(super) async fn ending(
    cluster: &Cluster,
    id: &str,
    launches: &Member,
    instead: &Ending,
) -> Result<Ending, NodeError> {
    let tried = "read how the run ended";
    let script = Script::new(RESULT)
        .with("jobs_dir", &cluster.jobs_dir)
        .with("id", id)
        .with("result", &serde_json::to_string(instead).unwrap_or_default());
    let said = launches.link.script(&script, tried).await?;
    serde_json::from_slice(&said).map_err(|e| NodeError::failed(&launches.node.name, tried, e))
}

/// What a run wrote in a folder of its own goes to the project's; where that fails, the next `train` does it.
pub(super) async fn gather_outputs(
    cluster: &Cluster,
    (id, name): (&str, &str),
    seats: &[Seat],
    workspaces: &Workspaces,
    events: &Events,
) {
    let own = |seat: &&Seat| workspaces.get(seat.seen.name()).is_some_and(|place| place.own);
    let gathered = each(seats.iter().filter(own).collect(), async |seat: &Seat| {
        merge(cluster, &seat.seen.member.link, name, id, events).await
    })
    .await;
    for error in gathered.into_iter().filter_map(Result::err) {
        events.send(Event::Warning(error.to_string()));
    }
}

async fn remove_containers_of(cluster: &Cluster, id: &str, engine: &Engine) -> Result<(), NodeError> {
    for container in engine.containers().await? {
        if container.belongs_to(&cluster.name) && container.job() == Some(id) {
            engine.remove(&container.id).await?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests;
