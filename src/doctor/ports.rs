//! TCP between the nodes on random ports, as ranks use them.

use super::NodeState;
use crate::checks::{Finding, Severity};
use crate::cluster::nodes::for_each_node;
use crate::event::{Events, Step};
use crate::inventory::Inventory;
use crate::keys::reachability::{Login, Matrix, targets};
use crate::node::network;
use crate::transport::node::RunAs;
use std::collections::BTreeMap;
use std::hash::{BuildHasher, RandomState};
use std::net::IpAddr;

const PORTS: &str = include_str!("../scripts/ports.py");

/// Tries every pair of [`targets`], in the workers or, on nodes where none is up, on the machines themselves: both have the same network.
/// All nodes listen before the first one connects. Returns the pairs that were tried, and a finding for each node that could not try.
pub(super) async fn check(inventory: &Inventory, nodes: &[NodeState], events: &Events) -> (Matrix, Vec<Finding>) {
    let cluster = &inventory.cluster;
    let placed: Vec<(&NodeState, IpAddr)> = nodes
        .iter()
        .filter_map(|p| Some((p, network::place(inventory, &p.member.node, &p.facts).ok()?.address)))
        .filter(|(_, address)| !address.is_loopback())
        .collect();
    if placed.len() < 2 {
        return (Matrix::default(), Vec::new());
    }
    let random = RandomState::new();
    let token = format!("{:016x}{:016x}", random.hash_one(0), random.hash_one(1));
    // one below the range that systems take ports from by themselves, and one in it
    let port = |seed: u64, from: u64, to: u64| from + random.hash_one(seed) % (to - from);
    let ports = format!("{},{}", port(2, 20_000, 32_768), port(3, 32_768, 60_999));

    let (seconds, others) = (cluster.command_timeout.as_secs(), targets(placed.len(), 0).len());
    let listening = for_each_node(placed, async |(node, address): (&NodeState, IpAddr)| {
        let _step = events.begin(node.name(), Step::read("listening for the other nodes"));
        // every node is a target as often as it is a source
        run(inventory, node, "listen", &format!("{token} {address} {ports} {seconds} {others}\n")).await?;
        Ok((node, address))
    });
    let (listening, mut findings) = split(listening.await);

    let sources = listening.iter().enumerate().collect();
    let tried = for_each_node(sources, async |(from, (node, _)): (usize, &(&NodeState, IpAddr))| {
        let _step = events.begin(node.name(), Step::read("connecting to the other nodes"));
        let targets = targets(listening.len(), from);
        let list: String = targets.iter().map(|to| format!("{to} {}\n", listening[*to].1)).collect();
        let limit = cluster.connect_timeout.as_secs();
        let results = run(inventory, node, "connect", &format!("{token} {ports} {limit}\n{list}")).await?;
        let login = |to: &usize| {
            let reason = results.get(to).cloned().unwrap_or_else(|| Some("the test printed no result".to_owned()));
            Login { from: node.name().to_owned(), to: listening[*to].0.name().to_owned(), reason }
        };
        Ok(targets.iter().map(login).collect::<Vec<_>>())
    });
    let (pairs, untested) = split(tried.await);
    findings.extend(untested);
    (Matrix { pairs: pairs.concat(), ..Matrix::default() }, findings)
}

/// Separates results from findings.
fn split<T>(results: Vec<Result<T, Finding>>) -> (Vec<T>, Vec<Finding>) {
    let (ok, failed): (Vec<_>, Vec<_>) = results.into_iter().partition(Result::is_ok);
    (ok.into_iter().flatten().collect(), failed.into_iter().filter_map(Result::err).collect())
}

/// The finding about a node that could not try. Before its worker is up this may only be for lack of Python.
fn untested(node: &str, message: &str, has_worker: bool) -> Finding {
    let (severity, hint) = match has_worker {
        true => (Severity::Error, "run `hvdctl doctor` again: it uses other ports each time"),
        false => (Severity::Warning, "run `hvdctl up`: the worker has the Python that this test needs"),
    };
    Finding::new(severity, "ports", node, format!("cannot test random high ports: {message}"))
        .explain("whether ranks can connect from and to this node is unknown", hint)
}

/// Runs the program on a node, with `listen` or `connect`.
///
/// # Errors
/// Why the node cannot try.
async fn run(
    inventory: &Inventory,
    node: &NodeState,
    what: &str,
    input: &str,
) -> Result<BTreeMap<usize, Option<String>>, Finding> {
    let operation = "connect to the other nodes";
    let limit = inventory.cluster.command_timeout;
    let (worker, argv, input) = (node.worker(inventory), ["python3", "-c", PORTS, what], input.as_bytes());
    let output = match worker {
        Some((runtime, id)) => runtime.run_in(id, &argv, input, operation, limit).await,
        None => node.member.transport.run(RunAs::Root, &argv, input, operation, limit).await,
    };
    let results = match output {
        Ok(output) if output.code == 0 => results(&String::from_utf8_lossy(&output.stdout)),
        Ok(output) => Err(output.complaint()),
        Err(error) => Err(error.message),
    };
    results.map_err(|message| untested(node.name(), &message, worker.is_some()))
}

/// Parses `INDEX RESULT` lines, or `busy` and why the node could not listen. Returns why a connection failed, by its target.
///
/// # Errors
/// Why the node could not listen.
fn results(text: &str) -> Result<BTreeMap<usize, Option<String>>, String> {
    let lines = || text.lines().filter_map(|line| line.split_once(' '));
    if let Some((_, cause)) = lines().find(|(index, _)| *index == "busy") {
        return Err(format!("cannot listen: {cause}"));
    }
    let reason = |result: &str| (result != "ok").then(|| result.to_owned());
    Ok(lines().filter_map(|(index, result)| Some((index.parse().ok()?, reason(result)))).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_programs_lines_are_read() {
        let results_of = |text| Ok::<_, String>(results(text)?.into_iter().collect::<Vec<_>>());
        let both = [(0, Some("no answer within 3 s".to_owned())), (1, None)];
        assert_eq!(results_of("1 ok\n0 no answer within 3 s\nnoise\n"), Ok(both.to_vec()));
        assert_eq!(results_of("busy Address already in use\n"), Err("cannot listen: Address already in use".into()));
        assert_eq!(results_of(""), Ok(vec![]), "it listens");
    }

    #[test]
    fn without_a_worker_it_is_only_a_warning() {
        let shown = |has_worker| {
            let finding = untested("a", "python3: not found", has_worker);
            format!("{} {}: {}", finding.severity, finding.nodes[0], finding.message)
        };
        assert_eq!(shown(true), "error a: cannot test random high ports: python3: not found");
        assert_eq!(shown(false), "warning a: cannot test random high ports: python3: not found");
    }
}
