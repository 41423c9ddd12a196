//! TCP between the nodes on random ports, as ranks use them.

use super::NodeState;
use crate::checks::{Check, Finding, Severity};
use crate::cluster::each_node::for_each_node;
use crate::event::{Events, Step};
use crate::inventory::Inventory;
use crate::keys::reachability::{Matrix, TriedLogin, targets};
use crate::node::network;
use crate::random;
use crate::transport::node::{Dialogue, RunAs};
use std::collections::BTreeMap;
use std::net::IpAddr;
use std::time::Duration;

const PORTS: &str = include_str!("../scripts/node/ports.py");

/// The reason why each node could not be reached, by its index; `None` if it could.
type Reasons = BTreeMap<usize, Option<String>>;

/// Tries every pair of [`targets`], in the workers or, on nodes where none is up, on the machines themselves: both have
/// the same network. All nodes listen before the first one connects, and until the last one has. Returns the pairs that
/// were tried, and a finding for each node that could not try.
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
    let token = random::token();
    // one below the range that systems take ports from by themselves, and one in it
    let port = |from: u64, to: u64| from + random::below(to - from);
    let ports = format!("{},{}", port(20_000, 32_768), port(32_768, 60_999));
    let limit = cluster.connect_timeout.as_secs();

    let started = for_each_node(placed, async |(node, address): (&NodeState, IpAddr)| {
        let _step = events.begin(node.name(), Step::read("listening for the other nodes"));
        let request = format!("{token} {address} {ports} {limit}");
        let probe = PortProbe::start(inventory, node, &request).await;
        probe.map(|probe| (node, address, probe)).map_err(|cause| untested(inventory, node, &cause))
    });
    let (listening, mut findings) = split(started.await);

    let places: Vec<(String, IpAddr)> = listening.iter().map(|(node, at, _)| (node.name().to_owned(), *at)).collect();
    let tried = for_each_node(listening.into_iter().enumerate().collect(), async |(from, (node, _, mut probe))| {
        let _step = events.begin(node.name(), Step::read("connecting to the other nodes"));
        let list = targets(places.len(), from).into_iter().map(|to| format!("{to}={}", places[to].1));
        let request = list.collect::<Vec<_>>().join(" ");
        let answer = probe.ask(&request, cluster.command_timeout + 2 * cluster.connect_timeout).await;
        let not_json = |answer: &str| format!("the test printed: {answer}");
        let reasons = answer.and_then(|answer| serde_json::from_str(&answer).map_err(|_| not_json(&answer)));
        let logins = reasons.map(|reasons| logins(&places, from, &reasons));
        (probe, logins.map_err(|cause| untested(inventory, node, &cause)))
    });
    let (_probes, results): (Vec<PortProbe>, Vec<_>) = tried.await.into_iter().unzip();
    let (pairs, untested) = split(results);
    findings.extend(untested);
    (Matrix { pairs: pairs.concat(), ..Matrix::default() }, findings)
}

/// Returns the pairs that a node tried. A target without a result counts as failed.
fn logins(places: &[(String, IpAddr)], from: usize, reasons: &Reasons) -> Vec<TriedLogin> {
    let unknown = || Some("the test printed no result".to_owned());
    let login = |to: usize| {
        let reason = reasons.get(&to).cloned().unwrap_or_else(unknown);
        TriedLogin { from: places[from].0.clone(), to: places[to].0.clone(), reason }
    };
    targets(places.len(), from).into_iter().map(login).collect()
}

/// Separates results from findings.
fn split<T>(results: Vec<Result<T, Finding>>) -> (Vec<T>, Vec<Finding>) {
    let (ok, failed): (Vec<_>, Vec<_>) = results.into_iter().partition(Result::is_ok);
    (ok.into_iter().flatten().collect(), failed.into_iter().filter_map(Result::err).collect())
}

/// The finding about a node that could not try. Before its worker is up this may only be for lack of Python.
fn untested(inventory: &Inventory, node: &NodeState, cause: &str) -> Finding {
    let (severity, hint) = match node.worker(inventory) {
        Some(_) => (Severity::Error, "run `hvdctl doctor` again: it uses other ports each time"),
        None => (Severity::Warning, "run `hvdctl up`: the worker has the Python that this test needs"),
    };
    Finding::new(severity, Check::Ports, node.name(), format!("cannot test random high ports: {cause}"))
        .explain("whether ranks can connect from and to this node is unknown", hint)
}

/// The program that tests ports on a node. It listens until this is dropped.
struct PortProbe(Dialogue);

impl PortProbe {
    /// Starts the program, which then listens.
    ///
    /// # Errors
    /// The reason why the node cannot listen.
    async fn start(inventory: &Inventory, node: &NodeState, request: &str) -> Result<PortProbe, String> {
        let (operation, argv) = ("test ports", ["python3", "-I", "-c", PORTS]);
        let process = match node.worker(inventory) {
            Some((runtime, id)) => runtime.exec(id, &argv, operation).await,
            None => node.member.transport.spawn(RunAs::Root, &argv, operation).await,
        };
        let mut probe = PortProbe(Dialogue::new(process.map_err(|error| error.message)?));
        match probe.ask(request, inventory.cluster.command_timeout).await?.as_str() {
            "listening" => Ok(probe),
            answer => Err(format!("cannot listen: {}", answer.trim_start_matches("busy "))),
        }
    }

    /// Writes a line and returns the line that the program answers.
    ///
    /// # Errors
    /// As [`Dialogue::ask`].
    async fn ask(&mut self, request: &str, limit: Duration) -> Result<String, String> {
        let mut answer = String::new();
        // other lines come from the image's Python as it starts
        let is_answer = |line: &str| ["listening", "busy ", "{"].iter().any(|begin| line.starts_with(begin));
        let keep = |line: &str| {
            line.clone_into(&mut answer);
            is_answer(line)
        };
        self.0.ask(request, limit, keep).await?;
        Ok(answer)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_target_without_a_result_counts_as_failed() {
        let places: Vec<(String, IpAddr)> =
            ["a", "b", "c", "d"].map(|name| (name.to_owned(), IpAddr::from([10, 0, 0, 1]))).to_vec();
        let reasons: Reasons = serde_json::from_str(r#"{"0": null, "3": "no answer within 3 s"}"#).unwrap();
        let pairs = logins(&places, 1, &reasons).into_iter().map(|pair| (pair.from, pair.to, pair.reason));
        let reason = |text: &str| Some(text.to_owned());
        let expected =
            [("a", None), ("c", reason("the test printed no result")), ("d", reason("no answer within 3 s"))];
        assert_eq!(pairs.collect::<Vec<_>>(), expected.map(|(to, reason)| ("b".to_owned(), to.to_owned(), reason)));
    }
}
