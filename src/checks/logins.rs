//! Logs in from each worker to the others, with the cluster's key and the pinned host keys, as the launcher will do.

use crate::cluster::nodes;
use crate::cluster::nodes::{ObservedNode, for_each_node};
use crate::error::{Error, NodeError};
use crate::event::{Events, Step};
use crate::inventory::Inventory;
use crate::keys::files::{KNOWN_HOSTS, Keyring};
use crate::keys::push::without_master;
use crate::keys::reachability::{AbsentNode, Login, Matrix, reason, results, targets};
use crate::paths::CONTAINER_SSH;
use crate::runtime::container::running_worker;
use crate::runtime::spec::LABEL_SPEC_FULL;
use crate::secret::Secret;
use crate::transport::node::{RunAs, Script};
use crate::worker::apply;
use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;
use zeroize::Zeroizing;

const LOGINS: &str = include_str!("../scripts/logins.sh");

/// At most this many logins from one node at the same time.
const AT_ONCE: usize = 16;

/// Tries the logins between the workers of these nodes. A failed login is part of the result and not an error; so is a
/// node without a worker. Nothing is changed.
///
/// # Errors
/// If the master is not among the nodes or has no private key.
pub async fn check(inventory: &Inventory, nodes: &[ObservedNode], events: &Events) -> Result<Matrix, Error> {
    let mut matrix = Matrix::default();
    let mut present: Vec<(&ObservedNode, IpAddr)> = Vec::new();
    for observed in nodes {
        match listening(inventory, observed) {
            Ok(address) => present.push((observed, address)),
            Err(why) => matrix.absent.push(AbsentNode { node: observed.name().to_owned(), why }),
        }
    }
    if present.len() < 2 {
        return Ok(matrix);
    }
    let key = private_key(inventory, nodes).await?;
    let sources = present.iter().enumerate().collect();
    let results = for_each_node(sources, async |(from, (observed, _)): (usize, &(&ObservedNode, IpAddr))| {
        let targets = targets(present.len(), from);
        let addresses = targets.iter().map(|to| present[*to].1).collect::<Vec<_>>();
        let _step = events.begin(observed.name(), Step::read("logging in to the other workers"));
        let reasons = log_in(inventory, observed, &key, &addresses).await;
        let pair = |(to, reason): (&usize, _)| Login {
            from: observed.name().to_owned(),
            to: present[*to].0.name().to_owned(),
            reason,
        };
        targets.iter().zip(reasons).map(pair).collect::<Vec<_>>()
    });
    matrix.pairs = results.await.into_iter().flatten().collect();
    Ok(matrix)
}

/// Where the node's worker listens, or why the others cannot reach it.
fn listening(inventory: &Inventory, observed: &ObservedNode) -> Result<IpAddr, String> {
    let desired = apply::desired(inventory, observed).map_err(|error| error.message)?;
    let Some(worker) = running_worker(&inventory.cluster, &observed.runtime.containers) else {
        return Err("its worker is not running: hvdctl up".into());
    };
    let mut differences = desired.spec.differences(worker.label(LABEL_SPEC_FULL).unwrap_or_default());
    differences.retain(|part| matches!(part.as_str(), "port" | "address" | "mounts" | "spec"));
    if !differences.is_empty() {
        return Err(format!("its worker is out of date ({}): hvdctl up", differences.join(", ")));
    }
    Ok(nodes::place(inventory, observed).map_err(|error| error.message)?.address)
}

/// The cluster's private key, which only the master has.
async fn private_key(inventory: &Inventory, nodes: &[ObservedNode]) -> Result<Secret, Error> {
    let Some(master) = nodes.iter().find(|observed| observed.member.node.master) else {
        return Err(without_master(inventory));
    };
    let cluster = &inventory.cluster;
    let Some(pair) = Keyring::read(cluster, &master.facts).current else {
        let operation = "read the cluster's key";
        return Err(NodeError::failed(master.name(), operation, "the master has no key pair")
            .hint("hvdctl keys push")
            .into());
    };
    let name = pair.name;
    let operation = format!("read the cluster's key {name}");
    let path = format!("{}/{name}", cluster.ssh_dir);
    let transport = &master.member.transport;
    let output = transport.run(RunAs::Root, &["cat", "--", &path], b"", &operation, transport.limit()).await?;
    let message = output.complaint();
    match String::from_utf8(output.stdout).map(Zeroizing::new) {
        Ok(text) if output.code == 0 && !text.trim().is_empty() => Ok(Secret::new(text)),
        _ => Err(NodeError::failed(master.name(), &operation, message).hint("hvdctl keys push").into()),
    }
}

/// Logs in from one worker to others; for each of these the reason why that failed.
async fn log_in(inventory: &Inventory, observed: &ObservedNode, key: &Secret, to: &[IpAddr]) -> Vec<Option<String>> {
    let cluster = &inventory.cluster;
    let limit = cluster.connect_timeout.as_secs().max(1);
    // logins.sh gives each login two seconds more than ssh needs to report a time-out itself
    let whole = to.len().div_ceil(AT_ONCE) as u64 * (limit + 3) + 5;
    let targets: String = to.iter().enumerate().map(|(index, address)| format!("{index} {address}\n")).collect();
    let script = Script::new(LOGINS)
        .with("key", key.expose().trim_end())
        .with("known_hosts", &format!("{CONTAINER_SSH}/{KNOWN_HOSTS}"))
        .with("targets", &targets)
        .with("port", &cluster.port.to_string())
        .with("limit", &limit.to_string())
        .with("at_once", &AT_ONCE.to_string())
        .with("whole", &whole.to_string());
    let (script, within) = (script.whole(), Duration::from_secs(whole + 5));
    let operation = "log in to the other workers";
    let runtime = &observed.runtime.engine;
    let output = runtime.run_in(&cluster.worker, &["sh", "-s"], script.as_bytes(), operation, within).await;
    let (results, failure) = match output {
        Ok(output) => {
            let complaint = output.complaint();
            let last = complaint.lines().map(str::trim).rfind(|line| !line.is_empty());
            let last = last.map_or_else(|| format!("exit code {}", output.code), str::to_owned);
            (results(&String::from_utf8_lossy(&output.stdout)), last)
        }
        Err(error) => (BTreeMap::new(), error.message),
    };
    let reasons = to.iter().enumerate().map(|(index, address)| match results.get(&index) {
        Some((0, _)) => None,
        Some((code, text)) => Some(reason(*code, text, SocketAddr::new(*address, cluster.port), limit + 2)),
        None => Some(format!("not tried: {failure}")),
    });
    reasons.collect()
}
