//! Gives nodes the container of their encrypted network, and what they are to know of it.

use super::trust::OPERATION;
use crate::cluster::member::Member;
use crate::cluster::observation::ObservedNode;
use crate::delivery::recipe::Recipe;
use crate::error::{ErrorKind, NodeError};
use crate::event::{Events, Step};
use crate::files::{PackedFile, archive};
use crate::inventory::{Cluster, Device, Mount};
use crate::model::mesh::{NetworkFile, NetworkState, is_key};
use crate::node::mesh::{NodeMesh, hash, state};
use crate::runtime::container::{ContainerState, ContainerSummary, with_role};
use crate::runtime::spec::{ContainerSpec, LABEL_BUILT_FOR, LABEL_SPEC, Role};
use crate::transport::node::Script;
use crate::worker::plan::ForeignContainer;
use std::time::Duration;
use tokio::time::{Instant, sleep};

/// The files by which the image of the container is made of the cluster's, the Dockerfile first. It has a few megabytes, and
/// not the gigabytes of that: it goes through the connections of nodes that are anywhere.
const IMAGE: [(&str, &str); 3] = [
    ("network", include_str!("../scripts/mesh/Dockerfile")),
    ("image.sh", include_str!("../scripts/mesh/image.sh")),
    ("collect.py", include_str!("../scripts/mesh/collect.py")),
];

const INSTALL: &str = concat!(
    include_str!("../scripts/node/close.sh"),
    include_str!("../scripts/node/permissions.sh"),
    include_str!("../scripts/mesh/install.sh")
);
const REMOVE: &str = concat!(
    include_str!("../scripts/node/close.sh"),
    include_str!("../scripts/node/permissions.sh"),
    include_str!("../scripts/mesh/remove.sh")
);
const STATE: &str = include_str!("../scripts/mesh/state.sh");

/// The programs in the directory, by their names there.
const PROGRAMS: [(&str, &str); 10] = [
    ("agent.py", include_str!("../scripts/mesh/agent.py")),
    ("endpoints.py", include_str!("../scripts/mesh/endpoints.py")),
    ("guard.py", include_str!("../scripts/mesh/guard.py")),
    ("main.sh", include_str!("../scripts/mesh/main.sh")),
    ("messages.py", include_str!("../scripts/mesh/messages.py")),
    ("mtu.py", include_str!("../scripts/mesh/mtu.py")),
    ("network.py", include_str!("../scripts/mesh/network.py")),
    ("peers.py", include_str!("../scripts/mesh/peers.py")),
    ("relay.py", include_str!("../scripts/mesh/relay.py")),
    ("wireguard.py", include_str!("../scripts/mesh/wireguard.py")),
];

/// The device by which a program makes a network interface.
const TUN: &str = "/dev/net/tun";

/// The capabilities of the container: to make the interface, to have sockets on that alone, and a port that only root
/// gets.
const CAPABILITIES: [&str; 3] = ["NET_ADMIN", "NET_RAW", "NET_BIND_SERVICE"];

/// The size of its `/dev/shm`: the least that engines give.
const SHM: u64 = 64 << 20;

/// The time between two looks at the state.
const PAUSE: Duration = Duration::from_millis(200);

/// The time after which a node to which no TCP connects is waited for no longer. An agent tries again every 5 s.
const REFUSED: Duration = Duration::from_secs(10);

/// Returns the recipe of the container's image.
pub fn image(cluster: &Cluster) -> Recipe {
    let label = format!("{LABEL_BUILT_FOR}=\"{}\"", cluster.name);
    let [(name, dockerfile), others @ ..] = IMAGE;
    let dockerfile = dockerfile.replace("{image}", &cluster.image).replace("{label}", &label);
    let files = [(0o600, name, dockerfile.as_str())].into_iter().chain(others.map(|(name, text)| (0o600, name, text)));
    Recipe::of_dockerfile(name, &cluster.image, &files.collect::<Vec<_>>())
}

/// Returns the container that a node should have.
pub fn container(cluster: &Cluster, observed: &ObservedNode, image: &str) -> ContainerSpec {
    let node = &observed.member.node;
    let directory = cluster.network_dir();
    let mut container = ContainerSpec::new(cluster, node, Role::Mesh, cluster.network_interface.clone());
    container.spec.command = vec!["sh".into(), format!("{directory}/run/main.sh"), directory.clone()];
    container.spec.image = image.to_owned();
    container.spec.mounts = vec![Mount { source: directory.clone(), target: directory, read_only: false }];
    container.spec.extra_mounts = Vec::new();
    container.spec.devices = vec![Device { source: TUN.into(), target: TUN.into(), permissions: "rwm".into() }];
    container.spec.cap_add = Some(CAPABILITIES.map(str::to_owned).to_vec());
    // settings of workers: another one is no reason to interrupt the network
    container.spec.port = 0;
    container.spec.shm_size = SHM;
    container.spec.ulimits = Default::default();
    container
}

/// Returns why a node needs another container than it has; `None` if that may stay. The image does not count: with each
/// new image of the cluster, jobs would lose their network.
pub fn lack(cluster: &Cluster, observed: &ObservedNode) -> Option<&'static str> {
    let Some(found) = with_role(cluster, &observed.runtime.containers, Role::Mesh) else { return Some("missing") };
    let image = found.spec_image().unwrap_or_default();
    let desired = container(cluster, observed, &image).spec.hash();
    match found.state {
        ContainerState::Running if found.name != cluster.network_interface => Some("name"),
        ContainerState::Running if found.label(LABEL_SPEC) == Some(&desired) => None,
        ContainerState::Running => Some("differs"),
        _ => Some("not running"),
    }
}

/// Returns the error of a node on which a container that is not this cluster's has the name of its network.
pub fn refuse_foreign(cluster: &Cluster, observed: &ObservedNode) -> Option<NodeError> {
    let name = &cluster.network_interface;
    let foreign = ForeignContainer::find(name, &cluster.name, &observed.runtime.containers)?;
    let hint = match (&foreign.newer, &foreign.cluster) {
        (None, Some(_)) => {
            "set network_interface and network_port in [cluster]: each cluster on a node has its own".into()
        }
        _ => foreign.hint("cluster.network_interface"),
    };
    Some(NodeError::failed(observed.name(), &format!("start {name}"), foreign).hint(hint))
}

/// Gives a node the programs. Returns whether they are others than before.
///
/// # Errors
/// With the node's message, also if others can change the directory.
pub async fn install_programs(cluster: &Cluster, observed: &ObservedNode) -> Result<bool, NodeError> {
    let files: Vec<PackedFile<'_>> = PROGRAMS.into_iter().map(|(name, text)| (0o600, name, text)).collect();
    let script = Script::new(INSTALL)
        .with("directory", &cluster.network_dir())
        .with("files", &archive(&files))
        .with("network", "");
    let printed = observed.member.transport.script(&script, "write the programs of the encrypted network").await?;
    Ok(!printed.is_empty())
}

/// Starts the container on a node, in place of one that it has.
///
/// # Errors
/// With the engine's message.
pub async fn start(cluster: &Cluster, observed: &ObservedNode, image: &str) -> Result<(), NodeError> {
    let (engine, containers) = (&observed.runtime.engine, &observed.runtime.containers);
    if let Some(ContainerSummary { id, .. }) = with_role(cluster, containers, Role::Mesh) {
        engine.remove(id).await?;
    }
    let started = engine.create_and_start(&container(cluster, observed, image)).await;
    started.map(drop).map_err(|error| match error.message.contains(TUN) {
        true => error.hint(format!("the node needs {TUN}: as root there, modprobe tun")),
        false => error,
    })
}

/// Lets the agent of a node begin with other programs. Its network goes on meanwhile.
///
/// # Errors
/// With the engine's message.
pub async fn restart_agent(cluster: &Cluster, observed: &ObservedNode) -> Result<(), NodeError> {
    // an older one may be that of another process now
    let now = observed.facts.clock.map_or(f64::MAX, |clock| clock.high);
    let Some(pid) = observed.facts.mesh.current(now).and_then(|state| state.pid) else { return Ok(()) };
    let (operation, pid) = ("start the agent of the encrypted network again", pid.to_string());
    // the image has no `kill` but the shell's
    let end = ["sh", "-c", "kill \"$0\"", pid.as_str()];
    let limit = observed.member.transport.limit();
    // one that has ended meanwhile is started by itself
    observed.runtime.engine.run_in(&cluster.network_interface, &end, b"", operation, limit).await.map(drop)
}

/// Returns the public key of a node, whose private key is made there if it has none. `is_new`: that of the key that takes
/// its place at the next change of the network.
///
/// # Errors
/// With the words of the program.
pub async fn public_key(cluster: &Cluster, member: &Member, is_new: bool) -> Result<String, NodeError> {
    let directory = cluster.network_dir();
    let (agent, transport) = (format!("{directory}/run/agent.py"), &member.transport);
    let argv = ["python3", "-B", &agent, &directory, if is_new { "new-key" } else { "key" }];
    let operation = "make its key of the encrypted network";
    let ran =
        member.runtime().await?.run_in(&cluster.network_interface, &argv, b"", operation, transport.limit()).await?;
    let printed = transport.succeeded(ran, operation)?.stdout;
    let key = String::from_utf8_lossy(&printed).trim().to_owned();
    match is_key(&key) {
        true => Ok(key),
        false => Err(NodeError::failed(&member.node.name, operation, format!("it printed no key: {key:?}"))),
    }
}

/// Gives a node what it is to know of the network.
///
/// # Errors
/// With the node's message.
pub async fn write(cluster: &Cluster, member: &Member, file: &NetworkFile) -> Result<(), NodeError> {
    let script =
        Script::new(INSTALL).with("directory", &cluster.network_dir()).with("files", "").with("network", &line(file));
    member.transport.script(&script, "change the encrypted network").await.map(drop)
}

/// Returns the text of a `network.json`, without the end of the line.
fn line(file: &NetworkFile) -> String {
    serde_json::to_string(file).expect("texts and numbers are always JSON")
}

/// Waits until a node's agent knows the network as this file describes it and reaches all nodes that count: one that is off
/// is not waited for. Returns its last state.
///
/// # Errors
/// If the node does not answer, or its agent has written no state in time.
pub async fn wait(
    cluster: &Cluster,
    member: &Member,
    file: &NetworkFile,
    counts: impl Fn(&str) -> bool,
    events: &Events,
) -> Result<NetworkState, NodeError> {
    let name = &member.node.name;
    let _step = events.begin(name, Step::read("connecting to the encrypted network"));
    let container = &cluster.network_interface;
    let (begun, expected) = (Instant::now(), hash(&line(file)));
    let script = Script::new(STATE).with("directory", &cluster.network_dir());
    loop {
        let printed = member.transport.script(&script, "read the state of the encrypted network").await?;
        let (clock, state) = parse(&String::from_utf8_lossy(&printed));
        let mesh = NodeMesh { hash: Some(expected.clone()), state, ..Default::default() };
        let is_settled = mesh.is_settled(clock, &counts) && begun.elapsed() > REFUSED;
        if is_final(&mesh, clock, &counts) || is_settled || begun.elapsed() > cluster.command_timeout {
            let current = mesh.current(clock).filter(|state| state.network == mesh.hash || state.problem.is_some());
            return match current {
                Some(state) => Ok(state.clone()),
                None => Err(NodeError::failed(name, OPERATION, format!("the agent in {container} writes no state"))
                    .kind(ErrorKind::Failed)
                    .hint(format!(
                        "`{} logs {container}` on the node shows why",
                        member.transport.engine_name().command()
                    ))),
            };
        }
        sleep(PAUSE).await;
    }
}

/// Returns whether no other state follows by itself: all is well, or the agent has a problem with this network. One with the
/// network before it, such as a port that is in use, may be over in a moment.
fn is_final(mesh: &NodeMesh, clock: f64, counts: impl Fn(&str) -> bool) -> bool {
    let has_problem = |state: &NetworkState| state.network == mesh.hash && state.problem.is_some();
    mesh.is_well(clock, counts) || mesh.current(clock).is_some_and(has_problem)
}

/// Parses what `state.sh` prints: the node's clock, and the state.
fn parse(printed: &str) -> (f64, Option<NetworkState>) {
    let (clock, text) = printed.split_once('\n').unwrap_or((printed, ""));
    (clock.parse().unwrap_or(f64::MAX), state(text))
}

/// Removes the container and the files of the network from a node. Returns whether it had any.
///
/// # Errors
/// With the message of the engine or of the node.
pub async fn remove(cluster: &Cluster, member: &Member, containers: &[ContainerSummary]) -> Result<bool, NodeError> {
    let found = with_role(cluster, containers, Role::Mesh);
    if let Some(found) = found {
        let runtime = member.runtime().await?;
        if found.state == ContainerState::Running {
            // the node itself may not have nft; without the rule this fails
            let (operation, limit) = ("remove the rule that guards the encrypted network", member.transport.limit());
            // as in guard.py
            let table = format!("hvdctl_{}", found.name);
            let delete = ["nft", "delete", "table", "ip", &table];
            runtime.run_in(&found.name, &delete, b"", operation, limit).await?;
        }
        runtime.remove(&found.id).await?;
    }
    let script = Script::new(REMOVE).with("directory", &cluster.network_dir());
    let printed = member.transport.script(&script, "remove the files of the encrypted network").await?;
    Ok(found.is_some() || !printed.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_problem_with_the_network_before_is_waited_for() {
        let with = |network: &str, problem: &str| {
            let text = format!(r#"{{"time":99,"network":"{network}","problem":{problem}}}"#);
            let mesh = NodeMesh { hash: Some("new".into()), state: state(&text), ..NodeMesh::default() };
            is_final(&mesh, 100.0, |_| true)
        };
        let problem = r#"{"kind":"port_in_use","text":"in use"}"#;
        assert!(with("new", problem) && with("new", "null"));
        assert!(!with("old", problem) && !with("old", "null"));
    }
}
