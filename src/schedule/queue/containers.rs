//! The parts of the cluster's queue on a node: a directory with its files, and two containers. In `hslurm` are Slurm's
//! daemons, and its jobs as root: root of any node of the cluster can run some there. So it has nothing of the node but
//! its network. What Slurm decides on is carried out in `hslurm-agent`, which has the engine.

use super::config::{SlurmNode, by_kind, gres_conf, slurm_conf};
use crate::cluster::observation::{ObservedNode, no_place};
use crate::error::NodeError;
use crate::files::{PackedFile, archive};
use crate::inventory::{Cluster, Inventory, Mount, Node};
use crate::node::facts::Facts;
use crate::node::network;
use crate::runtime::container::{SLURM, SLURM_AGENT};
use crate::runtime::environment::environment_script;
use crate::runtime::spec::{ContainerSpec, Role};
use crate::secret::Secret;
use serde_json::json;
use std::net::IpAddr;
use zeroize::Zeroizing;

/// Installs Slurm in the cluster's image.
pub const IMAGE: &str = include_str!("../../scripts/slurm/nodes/image.sh");

const MAIN: &str = environment_script!("slurm/nodes/main.sh");
const HOOK: &str = include_str!("../../scripts/slurm/nodes/hook.sh");

/// The program that places roles. Earlier builds had none there.
pub(super) const PLACEMENT: &str = "placement.py";

/// The programs in the directory, by their names there.
const PROGRAMS: [(&str, &str); 12] = [
    ("agent.py", include_str!("../../scripts/slurm/nodes/agent.py")),
    ("queue_state.py", include_str!("../../scripts/slurm/nodes/queue_state.py")),
    ("node.py", include_str!("../../scripts/slurm/nodes/node.py")),
    ("queued.py", include_str!("../../scripts/slurm/nodes/queued.py")),
    ("engine.py", include_str!("../../scripts/slurm/nodes/engine.py")),
    ("faults.py", include_str!("../../scripts/programs/faults.py")),
    ("result.py", include_str!("../../scripts/programs/result.py")),
    (PLACEMENT, include_str!("../../scripts/programs/slurm/placement.py")),
    ("hook.py", include_str!("../../scripts/slurm/nodes/hook.py")),
    ("prolog", HOOK),
    ("epilog", HOOK),
    ("check", HOOK),
];

/// The directories in that of Slurm's files which its daemons write (`install.sh` makes them).
const OWN: [&str; 3] = ["state", "spool", "log"];

/// Where `hslurm-agent` has the engine's socket as it was when the container was started.
pub(super) const SOCKET: &str = "/run/hvdctl-engine.sock";

/// Where it has the directory of that socket: an engine that is upgraded may make its socket anew.
const ENGINE: &str = "/run/hvdctl-engine";

/// Returns the directory of a socket and its name there; `None` in the root directory.
fn place(socket: &str) -> Option<(&str, &str)> {
    socket.rsplit_once('/').filter(|(directory, name)| !directory.is_empty() && !name.is_empty())
}

/// Returns a node as Slurm is to know it, with so many `cpus`.
///
/// # Errors
/// If it has no address in the cluster.
pub fn slurm_node(inventory: &Inventory, node: &Node, facts: &Facts, cpus: u32) -> Result<SlurmNode, NodeError> {
    let place = network::place(inventory, node, facts).map_err(|cause| no_place(node, cause))?;
    Ok(SlurmNode {
        name: node.name.clone(),
        hostname: facts.hostname.clone(),
        address: place.address,
        cpus,
        gpus: by_kind(&network::chosen_gpus(node, facts)),
    })
}

/// Returns the files of a node as an archive. `socket`: the path of the engine's socket there; `nodes`: all of them, the
/// master first; `munge_key`: in base64.
pub fn files(
    cluster: &Cluster,
    (node, socket): (&str, Option<String>),
    nodes: &[SlurmNode],
    munge_key: &Secret,
) -> Zeroizing<String> {
    let engine = socket.as_deref().and_then(place).map(|(_, name)| format!("{ENGINE}/{name}"));
    let settings = json!({
        "node": node,
        "cluster": cluster.name,
        "jobs_dir": cluster.jobs_dir,
        "socket": SOCKET,
        "engine": engine,
        "is_controller": nodes[0].name == node,
    });
    let (slurm, gres) = (slurm_conf(&cluster.name, &cluster.slurm_dir(), nodes), gres_conf(nodes));
    let settings = settings.to_string();
    let mut files: Vec<PackedFile<'_>> = vec![
        (0o600, "slurm.conf", &slurm),
        (0o600, "gres.conf", &gres),
        (0o600, "node.json", &settings),
        (0o600, "munge.key", munge_key.expose()),
    ];
    // gres.conf counts them
    let gpus = nodes.iter().find(|other| other.name == node).map_or(0, SlurmNode::gpu_count);
    let gpus = format!("{gpus}\n");
    files.push((0o600, "gpus", &gpus));
    files.extend(PROGRAMS.into_iter().map(|(name, text)| (0o700, name, text)));
    archive(&files)
}

/// Returns the containers of a node. `address`: that of the node in the cluster; `socket`: the path of the engine's
/// socket there.
pub fn containers(
    cluster: &Cluster,
    observed: &ObservedNode,
    image: &str,
    address: IpAddr,
    socket: &str,
) -> [ContainerSpec; 2] {
    let node = &observed.member.node;
    let directory = cluster.slurm_dir();
    let address = address.to_string();
    let same = |path: &str, read_only| Mount { source: path.into(), target: path.into(), read_only };
    let new = |role, name: &str, which, slurm_conf: &str, mounts| {
        let mut container = ContainerSpec::new(cluster, node, role, name.to_owned());
        let role = if node.master { "controller" } else { "" };
        let command = ["sh", "-c", MAIN, "sh", &directory, &node.name, &address, which, role];
        container.spec.command = command.map(str::to_owned).to_vec();
        container.spec.image = image.to_owned();
        container.spec.mounts = mounts;
        container.spec.extra_mounts = Vec::new();
        container.spec.devices = Vec::new();
        container.spec.cap_add = Some(Vec::new());
        container.env = vec![format!("SLURM_CONF={slurm_conf}")];
        container
    };
    let own = OWN.map(|name| same(&format!("{directory}/{name}"), false));
    let mounts = [vec![same(&directory, true)], own.to_vec()].concat();
    let daemons = new(Role::Slurm, SLURM, "daemons", "/etc/slurm/slurm.conf", mounts);
    let mounts = vec![same(&directory, false), same(&cluster.jobs_dir, false)];
    let mut agent = new(Role::SlurmAgent, SLURM_AGENT, "agent", &format!("{directory}/slurm.conf"), mounts);
    // not one of hvdctl's own mounts, whose labels Podman changes
    let of_engine =
        |source: &str, target: &str| Mount { source: source.into(), target: target.into(), read_only: false };
    agent.spec.extra_mounts = vec![of_engine(socket, SOCKET)];
    agent.spec.extra_mounts.extend(place(socket).map(|(directory, _)| of_engine(directory, ENGINE)));
    [daemons, agent]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_engine_is_reached_by_the_directory_of_its_socket() {
        assert_eq!(place("/run/docker.sock"), Some(("/run", "docker.sock")));
        assert_eq!(place("/run/user/1000/podman/podman.sock"), Some(("/run/user/1000/podman", "podman.sock")));
        assert_eq!(place("/docker.sock"), None, "a container does not get the root directory");
        let node = SlurmNode {
            name: "n1".into(),
            hostname: "h".into(),
            address: IpAddr::from([10, 0, 0, 1]),
            cpus: 1,
            gpus: Vec::new(),
        };
        let inventory = Inventory::local("lab", "");
        let key = Secret::new(Zeroizing::new("key".to_owned()));
        let socket = Some("/run/docker.sock".to_owned());
        let text = files(&inventory.cluster, ("n1", socket), &[node], &key);
        let bytes = base64::Engine::decode(&base64::engine::general_purpose::STANDARD, &*text).unwrap();
        let text = String::from_utf8_lossy(&bytes);
        // programs of an earlier hvdctl know the file alone
        for part in [r#""engine":"/run/hvdctl-engine/docker.sock""#, r#""socket":"/run/hvdctl-engine.sock""#] {
            assert!(text.contains(part), "{text}");
        }
    }
}
