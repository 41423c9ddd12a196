//! Logs in from each worker to the others, with the cluster's key and the pinned host keys, as the launcher will do.

use crate::cluster::each_node::for_each_node;
use crate::cluster::observation::ObservedNode;
use crate::error::{Error, NodeError};
use crate::event::{Events, Step};
use crate::inventory::{Cluster, Inventory};
use crate::keys::files::{KNOWN_HOSTS, Keyring};
use crate::keys::reachability::{AbsentNode, Matrix, TriedLogin, reason, results, targets};
use crate::node::network;
use crate::runtime::container::running_worker;
use crate::runtime::environment::environment_script;
use crate::runtime::spec::{ContainerSpec, LABEL_SPEC_FULL};
use crate::secret::Secret;
use crate::transport::node::{RunAs, Script};
use crate::worker::spec::user;
use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;
use zeroize::Zeroizing;

const LOGINS: &str = environment_script!("worker/logins.sh");

/// At most this many logins from one node at the same time.
const AT_ONCE: usize = 16;

/// Tries the logins between the workers of these nodes. A failed login is part of the result and not an error; so is a
/// node without a worker. Nothing is changed.
///
/// A result without pairs means that nothing was tried: fewer than two workers can be reached, or the master is not
/// among the nodes or has no key. It does not mean that logins work; callers check the keys themselves.
///
/// # Errors
/// If the master's private key cannot be read.
pub async fn check(inventory: &Inventory, nodes: &[ObservedNode], events: &Events) -> Result<Matrix, Error> {
    let cluster = &inventory.cluster;
    let mut matrix = Matrix::default();
    let mut present: Vec<(&ObservedNode, IpAddr)> = Vec::new();
    for observed in nodes {
        match listening(inventory, observed) {
            Ok(address) => present.push((observed, address)),
            Err(why) => matrix.absent.push(AbsentNode { node: observed.name().to_owned(), why }),
        }
    }
    let master = nodes.iter().find(|observed| observed.member.node.master).filter(|_| present.len() > 1);
    let key = master.and_then(|master| Some((master, Keyring::read(cluster, &master.facts).current?.name)));
    let Some((master, name)) = key else { return Ok(matrix) };
    let key = private_key(cluster, master, name).await?;
    let logins = for_each_node((0..present.len()).collect(), async |from| {
        let (observed, _) = present[from];
        let _step = events.begin(observed.name(), Step::read("logging in to the other workers"));
        let to: Vec<_> = targets(present.len(), from).into_iter().map(|to| present[to]).collect();
        log_in(cluster, observed, &key, &to).await
    });
    matrix.pairs = logins.await.concat();
    Ok(matrix)
}

/// Returns the address on which the node's worker listens, or why the others cannot reach it.
fn listening(inventory: &Inventory, observed: &ObservedNode) -> Result<IpAddr, String> {
    let (cluster, node, facts) = (&inventory.cluster, &observed.member.node, &observed.facts);
    let address = network::place(inventory, node, facts)?.address;
    let worker = running_worker(cluster, &observed.runtime.containers).ok_or("its worker is not running: hvdctl up")?;
    let desired = ContainerSpec::worker(cluster, node, network::gpu_request(node, facts), address);
    let mut differences = desired.spec.differences(worker.label(LABEL_SPEC_FULL).unwrap_or_default());
    differences.retain(|part| matches!(part.as_str(), "port" | "address" | "mounts" | "spec"));
    match differences.is_empty() {
        true => Ok(address),
        false => Err(format!("its worker is out of date ({}): hvdctl up", differences.join(", "))),
    }
}

/// Reads the cluster's private key, which only the master has.
async fn private_key(cluster: &Cluster, master: &ObservedNode, name: &str) -> Result<Secret, NodeError> {
    let operation = format!("read the cluster's key {name}");
    let path = format!("{}/{name}", cluster.ssh_dir);
    let transport = &master.member.transport;
    let output = transport.run(RunAs::Root, &["cat", "--", &path], b"", &operation, transport.limit()).await?;
    let output = transport.succeeded(output, &operation).map_err(|error| error.hint("hvdctl keys push"))?;
    // what is no text is no key, and ssh-add says so
    Ok(Secret::new(Zeroizing::new(String::from_utf8(output.stdout).unwrap_or_default())))
}

/// Logs in from one worker to others.
async fn log_in(
    cluster: &Cluster,
    from: &ObservedNode,
    key: &Secret,
    to: &[(&ObservedNode, IpAddr)],
) -> Vec<TriedLogin> {
    let limit = cluster.connect_timeout.as_secs().max(1);
    // worker/logins.sh gives each login two seconds more than ssh needs to report a time-out itself
    let whole = to.len().div_ceil(AT_ONCE) as u64 * (limit + 3) + 5;
    let targets: String = to
        .iter()
        .enumerate()
        .map(|(index, (node, address))| format!("{index} {address} {}\n", user(cluster, &node.member.transport)))
        .collect();
    let script = Script::new(LOGINS)
        .with("key", key.expose().trim_end())
        .with("known_hosts", &format!("{}/{KNOWN_HOSTS}", cluster.layout(&cluster.worker).keys))
        .with("targets", &targets)
        .with("port", &cluster.port.to_string())
        .with("limit", &limit.to_string())
        .with("at_once", &AT_ONCE.to_string())
        .with("whole", &whole.to_string());
    let (script, within) = (script.whole(), Duration::from_secs(whole + 5));
    let (engine, operation) = (&from.runtime.engine, "log in to the other workers");
    let (results, failure) =
        match engine.run_in(&cluster.worker, &["sh", "-s"], script.as_bytes(), operation, within).await {
            Ok(output) => {
                let complaint = output.complaint();
                let last = complaint.lines().map(str::trim).rfind(|line| !line.is_empty());
                let last = last.map_or_else(|| format!("exit code {}", output.code), str::to_owned);
                (results(&String::from_utf8_lossy(&output.stdout)), last)
            }
            Err(error) => (BTreeMap::new(), error.message),
        };
    let login = |(index, (node, address)): (usize, &(&ObservedNode, IpAddr))| {
        let reason = match results.get(&index) {
            Some((0, _)) => None,
            Some((code, text)) => Some(reason(*code, text, SocketAddr::new(*address, cluster.port), limit + 2)),
            None => Some(format!("not tried: {failure}")),
        };
        TriedLogin { from: from.name().to_owned(), to: node.name().to_owned(), reason }
    };
    to.iter().enumerate().map(login).collect()
}
