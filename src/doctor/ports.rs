//! TCP between the nodes on random ports, as ranks use them.

use super::NodeState;
use crate::checks::{Finding, Severity};
use crate::cluster::nodes::for_each_node;
use crate::error::NodeError;
use crate::event::{Events, Step};
use crate::inventory::Inventory;
use crate::keys::reachability::{Login, Matrix, targets};
use crate::node::network;
use crate::transport::node::RunAs;
use std::collections::BTreeMap;
use std::hash::{BuildHasher, RandomState};
use std::net::IpAddr;
use std::time::Duration;

const PORTS: &str = include_str!("../scripts/ports.py");

/// The result for each target by its index, or why the node could not try.
type Answer = Result<BTreeMap<usize, String>, Finding>;

/// Seconds that one connection may take.
const LIMIT: u64 = 3;
/// Seconds after which a node gives up: the others may begin a little later than it.
const WHOLE: u64 = 10;

/// Tries every pair of [`targets`]. Each node listens and connects at the same time, in its worker or, where that is not up, on
/// the machine itself: both have the same network. Returns the pairs that were tried, and a finding for each node that could not try.
pub(super) async fn check(inventory: &Inventory, nodes: &[NodeState], events: &Events) -> (Matrix, Vec<Finding>) {
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

    let sources = placed.iter().enumerate().collect();
    let answers = for_each_node(sources, async |(from, (node, address)): (usize, &(&NodeState, IpAddr))| {
        let _step = events.begin(node.name(), Step::read("connecting to the other nodes"));
        let targets = targets(placed.len(), from);
        // every node is a target as often as it is a source
        let expected = targets.len();
        let list: String = targets.iter().map(|to| format!("{to} {}\n", placed[*to].1)).collect();
        let input = format!("{token}\n{address} {ports} {LIMIT} {WHOLE} {expected}\n{list}");
        let has_worker = node.worker(inventory).is_some();
        let answer = run(inventory, node, &input).await.map_err(|error| error.message).and_then(|text| results(&text));
        (node.name().to_owned(), answer.map_err(|message| untested(node.name(), &message, has_worker)))
    })
    .await;
    evaluate(answers)
}

/// Returns the pairs that were tried, by the answers of the nodes, and the findings about nodes that could not try.
fn evaluate(answers: Vec<(String, Answer)>) -> (Matrix, Vec<Finding>) {
    let mut matrix = Matrix::default();
    for (from, results) in answers.iter().filter_map(|(from, answer)| Some((from, answer.as_ref().ok()?))) {
        for (to, result) in results {
            // a node that did not listen cannot be reached
            let Some((to, Ok(_))) = answers.get(*to) else { continue };
            let reason = Some(result.clone()).filter(|result| result != "ok");
            matrix.pairs.push(Login { from: from.clone(), to: to.clone(), reason });
        }
    }
    (matrix, answers.into_iter().filter_map(|(_, answer)| answer.err()).collect())
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

async fn run(inventory: &Inventory, node: &NodeState, input: &str) -> Result<String, NodeError> {
    let operation = "connect to the other nodes";
    let limit = Duration::from_secs(WHOLE + 10);
    let (argv, input) = (["python3", "-c", PORTS], input.as_bytes());
    let output = match node.worker(inventory) {
        Some((runtime, id)) => runtime.run_in(id, &argv, input, operation, limit).await?,
        None => node.member.transport.run(RunAs::Root, &argv, input, operation, limit).await?,
    };
    if output.code == 0 {
        Ok(String::from_utf8_lossy(&output.stdout).into_owned())
    } else {
        Err(NodeError::failed(node.name(), operation, output.complaint()))
    }
}

/// Parses `INDEX RESULT` lines, or `busy` and why the node could not listen.
///
/// # Errors
/// Why there are no results.
fn results(text: &str) -> Result<BTreeMap<usize, String>, String> {
    let lines = || text.lines().filter_map(|line| line.split_once(' '));
    if let Some((_, cause)) = lines().find(|(index, _)| *index == "busy") {
        return Err(format!("cannot listen: {cause}"));
    }
    let results: BTreeMap<_, _> =
        lines().filter_map(|(index, result)| Some((index.parse().ok()?, result.to_owned()))).collect();
    if results.is_empty() { Err("the test printed no result".to_owned()) } else { Ok(results) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_scripts_lines_are_read() {
        let results_of = |text| Ok::<_, String>(results(text)?.into_values().collect::<Vec<_>>());
        let both = ["no answer within 3 s".to_owned(), "ok".to_owned()];
        assert_eq!(results_of("1 ok\n0 no answer within 3 s\nnoise\n"), Ok(both.to_vec()));
        assert_eq!(results_of("busy Address already in use\n"), Err("cannot listen: Address already in use".into()));
        assert_eq!(results_of(""), Err("the test printed no result".into()));
    }

    #[test]
    fn a_node_that_could_not_try_is_a_finding_and_no_pair() {
        let ok = |node: &str, text: &str| (node.to_owned(), Ok(results(text).unwrap()));
        let failed = |node: &str, has_worker| (node.to_owned(), Err(untested(node, "python3: not found", has_worker)));
        let answers = vec![
            ok("a", "1 ok\n2 no answer within 3 s\n"),
            ok("b", "2 Connection refused\n0 ok\n"),
            failed("c", true),
            failed("d", false),
        ];
        let (matrix, findings) = evaluate(answers);
        let pairs: Vec<_> = matrix.pairs.iter().map(|pair| (pair.from.as_str(), pair.to.as_str())).collect();
        assert_eq!(pairs, [("a", "b"), ("b", "a")]);
        let shown: Vec<_> = findings.iter().map(|f| format!("{} {} {}", f.severity, f.nodes[0], f.message)).collect();
        let message = "cannot test random high ports: python3: not found";
        assert_eq!(shown, [format!("error c {message}"), format!("warning d {message}")]);
    }
}
