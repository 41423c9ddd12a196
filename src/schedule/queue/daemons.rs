//! The daemons of the cluster's queue: started on a node, and asked on the master.

use super::config::SlurmNode;
use super::containers;
use crate::cluster::member::Member;
use crate::cluster::observation::ObservedNode;
use crate::error::{Error, ErrorKind, NodeError};
use crate::inventory::Cluster;
use crate::runtime::Runtime;
use crate::runtime::container::{ContainerState, ContainerSummary, SLURM, SLURM_AGENT, of_slurm, with_role};
use crate::runtime::spec::{ContainerSpec, LABEL_SPEC, LABEL_SPEC_FULL, Role};
use crate::transport::node::Script;
use schemars::JsonSchema;
use serde::Serialize;
use std::net::IpAddr;
use std::time::Duration;
use tokio::time::{Instant, sleep};

const INSTALL: &str = concat!(
    include_str!("../../scripts/node/close.sh"),
    include_str!("../../scripts/node/permissions.sh"),
    include_str!("../../scripts/slurm/nodes/install.sh")
);
const RESTART: &str = include_str!("../../scripts/slurm/nodes/restart.sh");

/// The ports of slurmctld, on the master, and of slurmd.
const PORTS: [u16; 2] = [6817, 6818];

/// How long the daemons may take to find one another.
pub const ANSWER_LIMIT: Duration = Duration::from_secs(60);

/// The pause between two questions.
pub const PAUSE: Duration = Duration::from_millis(300);

/// A node, as slurmctld knows it.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "SlurmStatusNode")]
pub struct QueueNode {
    /// Its state, in Slurm's own term: `idle`, `allocated`, `drained`, `down*`, …
    pub state: String,
    /// How many of its slots are allocated.
    pub used: u32,
    /// How many it has.
    pub slots: u32,
    /// Its GPUs as generic resources; null if it has none.
    pub gres: Option<String>,
    /// Why it takes no jobs, if it takes none.
    pub reason: Option<String>,
    /// True if it may still have a key of Slurm's daemons that was replaced.
    pub has_old_key: bool,
}

impl QueueNode {
    /// Reads a line of sinfo: node, state, slots (allocated/idle/other/total), generic resources, and why it takes no
    /// jobs. Returns it with the node's name.
    fn parse(line: &str) -> Option<(String, QueueNode)> {
        let mut parts = line.splitn(5, '|').map(|part| part.trim().to_owned());
        let (name, state, slots, gres) = (parts.next()?, parts.next()?, parts.next()?, parts.next()?);
        let numbers: Vec<u32> = slots.split('/').filter_map(|number| number.parse().ok()).collect();
        let [used, _, _, slots] = numbers[..] else { return None };
        let given = |text: String| Some(text).filter(|text| !matches!(text.as_str(), "" | "none" | "(null)"));
        let reason = parts.next().and_then(given);
        Some((name, QueueNode { state, used, slots, gres: given(gres), reason, has_old_key: false }))
    }

    /// Returns whether its slurmd has answered.
    fn answers(&self) -> bool {
        !(self.state.ends_with('*') || self.state.contains("unk") || self.state == "down")
    }
}

/// Returns the containers that a node should have.
///
/// # Errors
/// Without the image; if the engine's socket cannot be mounted; if other programs have Slurm's ports.
pub async fn desired(
    cluster: &Cluster,
    observed: &ObservedNode,
    image: &str,
    address: IpAddr,
) -> Result<[ContainerSpec; 2], NodeError> {
    let failed = |cause: String| NodeError::failed(observed.name(), &format!("start {SLURM}"), cause);
    let engine = observed.runtime.engine.engine("start Slurm")?;
    if engine.image(image).await?.is_none() {
        let cause = format!("it has no image {image}");
        return Err(failed(cause).kind(ErrorKind::ImageMissing).hint(format!("hvdctl image push {image}")));
    }
    let no_socket = || failed("the engine has no socket that a container can use".to_owned());
    let socket = engine.socket().ok_or_else(no_socket)?;
    let taken = PORTS.iter().find(|port| observed.facts.network.ports.contains(port));
    if let (None, Some(port)) = (of_slurm(cluster, &observed.runtime.containers), taken) {
        let cause = format!("port {port} is in use; --scheduler slurm uses a Slurm that is already there");
        return Err(failed(cause).hint(format!("on the node, `ss -ltnp sport = :{port}` shows which program uses it")));
    }
    Ok(containers::containers(cluster, observed, image, address, &socket))
}

/// Returns whether a container runs and is the desired one.
fn is_current(found: &ContainerSummary, desired: &ContainerSpec) -> bool {
    found.state == ContainerState::Running && found.label(LABEL_SPEC) == Some(&desired.spec.hash())
}

/// Returns whether the running daemons of a node have to be replaced, which ends what waits for jobs there.
pub fn are_replaced(cluster: &Cluster, observed: &ObservedNode, desired: &[ContainerSpec]) -> bool {
    let running =
        of_slurm(cluster, &observed.runtime.containers).filter(|found| found.state == ContainerState::Running);
    let of_daemons = desired.iter().find(|spec| spec.role == Role::Slurm);
    running.zip(of_daemons).is_some_and(|(found, desired)| !is_current(found, desired))
}

/// Gives a node its files and its containers. Returns whether anything was done.
///
/// # Errors
/// [`NodeError`] with the node's message.
pub async fn install(
    cluster: &Cluster,
    observed: &ObservedNode,
    desired: &[ContainerSpec],
    files: &str,
) -> Result<bool, NodeError> {
    let (engine, transport) = (&observed.runtime.engine, &observed.member.transport);
    let script = Script::new(INSTALL).with("directory", &cluster.slurm_dir()).with("files", files);
    let has_changed = !transport.script(&script, "write the files of Slurm").await?.is_empty();
    let mut is_done = has_changed;
    for spec in desired {
        let found = with_role(cluster, &observed.runtime.containers, spec.role);
        match found {
            Some(found) if is_current(found, spec) => {
                if has_changed {
                    restart_in(cluster, engine, &spec.name, &observed.member).await?;
                }
                continue;
            }
            Some(found) => engine.remove(&found.id).await?,
            None => {}
        }
        engine.create_and_start(spec).await?;
        is_done = true;
    }
    Ok(is_done)
}

/// Starts the daemons of a node again, in all of its containers.
///
/// # Errors
/// [`NodeError`] with the node's message.
pub async fn restart(cluster: &Cluster, engine: &Runtime, member: &Member) -> Result<(), NodeError> {
    let listed = engine.containers().await?;
    for role in [Role::Slurm, Role::SlurmAgent] {
        let running = with_role(cluster, &listed, role).filter(|found| found.state == ContainerState::Running);
        if let Some(found) = running {
            restart_in(cluster, engine, &found.name, member).await?;
        }
    }
    Ok(())
}

async fn restart_in(cluster: &Cluster, engine: &Runtime, container: &str, member: &Member) -> Result<(), NodeError> {
    let (operation, transport) = ("start Slurm's daemons again", &member.transport);
    let ran = engine
        .run_in(container, &["sh", "-s", &cluster.slurm_dir()], RESTART.as_bytes(), operation, transport.limit())
        .await?;
    transport.succeeded(ran, operation).map(drop)
}

/// Returns the state of a node's containers of the cluster's queue, or which of them does not run; `None` if it
/// has none. Those that an earlier hvdctl started have one container, with the engine.
pub fn running(cluster: &Cluster, all: &[ContainerSummary]) -> Option<Result<(), &'static str>> {
    let daemons = of_slurm(cluster, all)?;
    let runs = |found: Option<&ContainerSummary>| found.is_some_and(|found| found.state == ContainerState::Running);
    let has_engine = daemons.label(LABEL_SPEC_FULL).is_some_and(|spec| spec.contains(containers::SOCKET));
    Some(if !runs(Some(daemons)) {
        Err(SLURM)
    } else if !(has_engine || runs(with_role(cluster, all, Role::SlurmAgent))) {
        Err(SLURM_AGENT)
    } else {
        Ok(())
    })
}

/// Returns the container in which jobs are submitted to the cluster's queue: the one that keeps what is known of
/// them.
pub fn of_queue(cluster: &Cluster, all: &[ContainerSummary]) -> &'static str {
    if with_role(cluster, all, Role::SlurmAgent).is_some() { SLURM_AGENT } else { SLURM }
}

/// Checks that the cluster has a Slurm of its own.
///
/// # Errors
/// If it has none, or that does not run.
pub async fn check_up(cluster: &Cluster, master: &Runtime) -> Result<(), NodeError> {
    let failed = |cause: &str| NodeError::failed(master.node(), "ask Slurm", cause).hint("hvdctl slurm up");
    match running(cluster, &master.containers().await?) {
        Some(Ok(())) => Ok(()),
        Some(Err(container)) => Err(failed(&format!("{container} is not running"))),
        None => Err(failed("the cluster has no Slurm of its own")),
    }
}

/// Runs a command of Slurm on the master, and returns what it prints.
async fn ask(master: &Runtime, argv: &[&str]) -> Result<String, NodeError> {
    let operation = format!("run {}", argv[0]);
    let ran = master.run_in(SLURM, argv, b"", &operation, ANSWER_LIMIT).await?;
    match ran.code {
        0 => Ok(String::from_utf8_lossy(&ran.stdout).into_owned()),
        _ => Err(NodeError::failed(master.node(), &operation, ran.complaint()).hint("hvdctl slurm up")),
    }
}

/// Returns the states of the jobs in the queue.
///
/// # Errors
/// [`NodeError`] with the message of squeue.
pub async fn jobs(master: &Runtime) -> Result<Vec<String>, NodeError> {
    let listed = ask(master, &["squeue", "--all", "--noheader", "--format=%T"]).await?;
    Ok(listed.lines().map(str::to_owned).collect())
}

/// Returns the nodes as slurmctld knows them, by name.
///
/// # Errors
/// [`NodeError`] with the message of sinfo.
pub async fn states(master: &Runtime) -> Result<Vec<(String, QueueNode)>, NodeError> {
    let listed = ask(master, &["sinfo", "--noheader", "--Node", "--format=%N|%T|%C|%G|%E"]).await?;
    Ok(listed.lines().filter_map(QueueNode::parse).collect())
}

/// Returns the nodes that have the key of the daemons, as the master knows; `None` if it does not.
///
/// # Errors
/// [`NodeError`] with the engine's message.
pub async fn with_key(cluster: &Cluster, master: &Runtime) -> Result<Option<Vec<String>>, NodeError> {
    let file = format!("{}/munge.given", cluster.slurm_dir());
    let ran = master.run_in(SLURM, &["cat", &file], b"", "find out who has Slurm's key", ANSWER_LIMIT).await?;
    let names = String::from_utf8_lossy(&ran.stdout).lines().map(str::to_owned).collect();
    Ok((ran.code == 0).then_some(names))
}

/// Waits until slurmctld has reached the slurmd of every node.
///
/// # Errors
/// [`Error::Nodes`] with those that it has not reached in time.
pub async fn wait_for_nodes(cluster: &Cluster, master: &Runtime, nodes: &[SlurmNode]) -> Result<(), Error> {
    let until = Instant::now() + ANSWER_LIMIT;
    loop {
        let (silent, cause) = match states(master).await {
            Ok(found) => {
                let answers =
                    |node: &SlurmNode| found.iter().any(|(name, state)| *name == node.name && state.answers());
                let silent = nodes.iter().filter(|node| !answers(node)).map(|node| node.name.clone());
                (silent.collect::<Vec<_>>(), "slurmctld on the master cannot reach its slurmd".to_owned())
            }
            Err(error) => (vec![master.node().to_owned()], error.message),
        };
        if silent.is_empty() {
            return Ok(());
        }
        if Instant::now() > until {
            let hint = format!(
                "the ports 6817 and 6818 must be open between the nodes; logs are in {}/log on each",
                cluster.slurm_dir()
            );
            let failed = silent.iter().map(|node| NodeError::failed(node, "start Slurm", &cause).hint(&hint));
            return Err(Error::Nodes { failed: failed.collect(), done: nodes.len() - silent.len() });
        }
        sleep(PAUSE).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_sinfo_prints_is_read() {
        let (name, node) = QueueNode::parse("node1|mixed|2/6/0/8|gpu:4|none").unwrap();
        assert_eq!((name.as_str(), node.state.as_str(), node.used, node.slots), ("node1", "mixed", 2, 8));
        assert_eq!((node.gres.as_deref(), node.reason), (Some("gpu:4"), None));
        let (_, node) = QueueNode::parse("node2|drained|0/0/1/1|(null)|hvdctl: job 20261127-101500-4f2a").unwrap();
        assert_eq!((node.gres, node.reason.as_deref()), (None, Some("hvdctl: job 20261127-101500-4f2a")));
        assert!(QueueNode::parse("slurm_load_partitions: Unable to contact slurm controller").is_none());
        let answers = |state: &str| QueueNode::parse(&format!("n|{state}|0/1/0/1|(null)|none")).unwrap().1.answers();
        assert_eq!(["idle", "drained", "idle*", "down", "unknown"].map(answers), [true, true, false, false, false]);
    }
}
