//! An interactive shell in `hmaster` or a worker, on the operator's own terminal. Every key goes inside over the engine, so it is the
//! same whatever way leads to the node, and to root there.

use crate::cluster::exec::worker;
use crate::cluster::nodes;
use crate::cluster::nodes::{Member, Observed, Target, connect, connect_all, each, observe, split};
use crate::error::{Error, NodeError};
use crate::event::{Event, Events};
use crate::inventory::export::{self, Host};
use crate::job::manage::{self, under_way};
use crate::keys::push;
use crate::launch;
use crate::node::network;
use crate::runtime::docker::Engine;
use crate::runtime::spec::Desired;
use crate::terminal::Raw;
use crate::transport::link::{Process, Who};
use crate::transport::privileges;
use crate::worker::apply;
use crate::worker::plan;
use std::pin::pin;
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::signal::unix::{SignalKind, signal};
use tokio::time::timeout;

const SHELL: &str = include_str!("../scripts/shell.sh");
const GUARD: &str = include_str!("../scripts/shell_guard.sh");
const MASTER: &str = include_str!("../scripts/shell_master.sh");
const SSH: &str = include_str!("../scripts/ssh.sh");

/// Where a shell is opened.
struct Where {
    node: String,
    engine: Engine,
    container: String,
    /// The folder there whose programs go before all others.
    path: Option<String>,
    /// What ends when this is dropped: the guard beside the shell, or the container's main process.
    held: Process,
    /// Whether the container is the shell's own.
    own: bool,
}

/// Opens a shell in the worker of a node, or in `hmaster`, and gives its exit code.
///
/// # Errors
/// When there is nothing to open it in, or the way to it breaks.
pub async fn shell(target: &Target, node: Option<&str>, events: &Events) -> Result<i64, Error> {
    let place = match node {
        Some(node) => in_worker(target, node, events).await?,
        None => in_master(target, events).await?,
    };
    let result = interact(&place, events).await;
    let Where { engine, container, held, own, .. } = place;
    drop(held);
    if own {
        // it goes by itself too, but a moment later
        events.report(engine.remove(&container).await)?;
    }
    result
}

async fn in_worker(target: &Target, node: &str, events: &Events) -> Result<Where, Error> {
    let known = target.nodes().into_iter().any(|one| one.name == node);
    if !known {
        let names: Vec<String> = target.nodes().into_iter().map(|node| node.name).collect();
        let words = format!("no selected node is named {node} (nodes: {})", crate::text::nodeset::fold(&names));
        return Err(Error::usage(words, "hvdctl shell opens one in hmaster"));
    }
    let target = Target { selected: vec![node.to_owned()], ..target.clone() };
    let member = connect_all(&target, events).await?.remove(0);
    let worker = worker(target.cluster(), &member).await?;
    let engine = Engine::connect(&member.link).await?;
    beside(&member, engine, worker, None).await.map_err(Into::into)
}

async fn in_master(target: &Target, events: &Events) -> Result<Where, Error> {
    let cluster = target.cluster();
    let runs = manage::list(target, events).await?;
    if let Some((job, member, engine, container)) = under_way(cluster, &runs).await? {
        events.note(format!("in the launcher of the run {} ({}) on {}", job.id, job.name, member.node.name));
        let path = format!("{}/{}", cluster.jobs_dir, job.id);
        return beside(&member, engine, container, Some(path)).await.map_err(Into::into);
    }
    let (members, _) = split(events, connect(target, events).await?);
    let looked = each(members, async |member| observe(cluster, member, events).await).await;
    let (nodes, failed) = split(events, looked);
    let failed: Vec<NodeError> = runs.failed.into_iter().chain(failed).collect();
    let wanted = target.nodes().first().map(|node| node.name.clone()).unwrap_or_default();
    let Some(master) = nodes.iter().find(|seen| seen.name() == wanted) else {
        let why = failed.into_iter().find(|error| error.node == wanted);
        return Err(why.map_or_else(|| Error::Here(format!("{wanted} did not answer")), Error::from));
    };
    for error in &failed {
        events.send(Event::Warning(format!("{} is not in the hostfile: {error}", error.node)));
    }
    fresh(target, master, &nodes, events).await
}

/// A shell beside whatever else the container is there for.
async fn beside(member: &Member, engine: Engine, container: String, path: Option<String>) -> Result<Where, NodeError> {
    let argv = ["exec", "-i", &container, "sh", "-c", GUARD, "sh", privileges::process()];
    let mut held = member.link.hold(Who::Docker, &argv, "open a shell").await?;
    ready(member, &mut held).await?;
    Ok(Where { node: member.node.name.clone(), engine, container, path, held, own: false })
}

/// A container of the shell's own, as a run's launcher would have it.
async fn fresh(target: &Target, master: &Observed, nodes: &[Observed], events: &Events) -> Result<Where, Error> {
    let cluster = target.cluster();
    master.image_id(cluster)?;
    let keys: Vec<_> = nodes.iter().map(|seen| (&seen.member.node, &seen.facts)).collect();
    let lacking = if nodes.len() > 1 { push::lacking(&target.inventory, &keys) } else { Vec::new() };
    if !lacking.is_empty() {
        let who = crate::text::nodeset::fold(&lacking);
        let words = format!("the cluster's keys are missing or not as they should be on {who}");
        return Err(Error::check(words, "hvdctl keys push"));
    }
    let mut hosts = Vec::new();
    let mut interface = None;
    for seen in nodes {
        match nodes::place(&target.inventory, seen) {
            Ok(place) => {
                if seen.name() == master.name() {
                    interface = Some(place.interface);
                }
                let mut node = seen.member.node.clone();
                node.address = Some(place.address);
                hosts.push((node, network::slots(&seen.member.node, &seen.facts)));
            }
            Err(error) => events.send(Event::Warning(format!("{} is not in the hostfile: {error}", seen.name()))),
        }
    }
    let hosts: Vec<Host<'_>> = hosts.iter().map(|(node, slots)| Host { node, slots: *slots }).collect();
    let hostfile = export::hostfile(&hosts);
    let command = ["sh", "-c", MASTER, "sh", &hostfile, SSH].map(str::to_owned).to_vec();
    let node = &master.member.node;
    let of_launcher = launch::launcher(cluster.controller).shell_environment;
    let mut env: Vec<String> = of_launcher.iter().map(|(name, value)| format!("{name}={value}")).collect();
    env.push("PYTHONUNBUFFERED=1".into());
    env.push(format!("HVDCTL_KEEP_ALIVE={}", cluster.keep_alive.as_secs()));
    let desired = Desired {
        env,
        ..Desired::shell(cluster, node, network::gpu_request(node, &master.facts), command, &privileges::process()[..4])
    };
    let engine = master.docker.engine.clone();
    let left = plan::left_shells(&cluster.name, &master.docker.containers, master.facts.clock);
    apply::apply(&target.inventory, master, &left, events).await?;
    let container = engine.create(&desired).await?;
    let started = async {
        let argv = ["start", "--attach", "--interactive", &container];
        let mut held = master.member.link.hold(Who::Docker, &argv, &format!("start {}", desired.name)).await?;
        ready(&master.member, &mut held).await?;
        Ok(held)
    };
    let held = match started.await {
        Ok(held) => held,
        Err(error) => {
            let _ = engine.remove(&container).await;
            return Err(NodeError::into(error));
        }
    };
    let slots: u32 = hosts.iter().map(|host| host.slots).sum();
    let by_hand = launch::by_hand(slots, cluster.port, interface.as_deref());
    events.note(format!("in {} on {}; the cluster from here: {by_hand}", desired.name, node.name));
    let path = Some("/run/hvdctl".to_owned());
    Ok(Where { node: node.name.clone(), engine, container, path, held, own: true })
}

/// Waits until what is held says that it is there.
async fn ready(member: &Member, held: &mut Process) -> Result<(), NodeError> {
    let tried = "open a shell";
    let node = &member.node.name;
    let complaint = held.collect_stderr();
    let mut word = [0; 6];
    match timeout(member.link.limit(), held.stdout.read_exact(&mut word)).await {
        Ok(Ok(_)) => Ok(()),
        Ok(Err(_)) => {
            let said = timeout(Duration::from_secs(5), complaint).await;
            let said = said.ok().and_then(Result::ok).unwrap_or_default();
            let said = if said.trim().is_empty() { "the container ended at once".into() } else { said };
            Err(NodeError::failed(node, tried, said))
        }
        Err(_) => Err(NodeError::failed(node, tried, format!("no answer within {} s", member.link.limit().as_secs()))),
    }
}

/// Connects the terminal with a shell until that ends, and gives its exit code.
async fn interact(place: &Where, events: &Events) -> Result<i64, Error> {
    let Where { engine, container, path, node, .. } = place;
    let mut env = vec![format!("HVDCTL_SHELL={}", privileges::process())];
    env.push(format!("TERM={}", std::env::var("TERM").unwrap_or_else(|_| "xterm".into())));
    env.extend(path.as_ref().map(|path| format!("HVDCTL_PATH={path}")));
    let here = |e: std::io::Error| Error::Here(format!("cannot use the terminal: {e}"));
    let mut sizes = signal(SignalKind::window_change()).map_err(here)?;
    let _still = events.suspend().await;
    let mut inside = engine.inside(container, &["sh", "-c", SHELL], env).await?;
    let mut keys_in = std::mem::replace(&mut inside.streams.stdin, Box::pin(tokio::io::sink()));
    let raw = Raw::new().map_err(here)?;
    // it may have ended already
    let _ = engine.resize(&inside.id, raw.size()).await;

    let lost = |e: std::io::Error| Error::from(NodeError::failed(node, "stay in the shell", e));
    let shown = async {
        raw.write(&inside.first).await.map_err(here)?;
        let mut buffer = vec![0; 64 * 1024];
        loop {
            match inside.streams.stdout.read(&mut buffer).await.map_err(lost)? {
                0 => return Ok(()),
                n => raw.write(&buffer[..n]).await.map_err(here)?,
            }
        }
    };
    let typed = async {
        let mut buffer = [0; 4096];
        loop {
            let n = raw.read(&mut buffer).await.map_err(here)?;
            if n == 0 {
                return Err(here(std::io::Error::other("it is gone")));
            }
            let sent = async {
                keys_in.write_all(&buffer[..n]).await?;
                keys_in.flush().await
            };
            // a shell that has ended takes no more; its output says when
            if sent.await.is_err() {
                return std::future::pending().await;
            }
        }
    };
    let resized = async {
        while sizes.recv().await.is_some() {
            let _ = engine.resize(&inside.id, raw.size()).await;
        }
        std::future::pending::<Result<(), Error>>().await
    };
    let ended: Result<(), Error> = tokio::select! {
        ended = pin!(shown) => ended,
        ended = pin!(typed) => ended,
        ended = pin!(resized) => ended,
    };
    drop(raw);
    ended?;
    engine.code_of(&inside.id).await.map_err(Into::into)
}
