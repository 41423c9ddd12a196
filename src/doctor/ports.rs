//! TCP between the nodes on random ports, as ranks use them.

use super::NodeState;
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

/// Seconds that one connection may take.
const LIMIT: u64 = 3;
/// Seconds after which a node gives up: the others may begin a little later than it.
const WHOLE: u64 = 10;

/// Tries every pair of [`targets`]. Each node listens and connects at the same time, in its worker or, where that is not up, on
/// the machine itself: both have the same network. Where that cannot be done the pair is left out.
pub(super) async fn check(inventory: &Inventory, nodes: &[NodeState], events: &Events) -> Matrix {
    let placed: Vec<(&NodeState, IpAddr)> = nodes
        .iter()
        .filter_map(|p| Some((p, network::place(inventory, &p.member.node, &p.facts).ok()?.address)))
        .filter(|(_, address)| !address.is_loopback())
        .collect();
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
        results(&run(inventory, node, &input).await.unwrap_or_default())
    })
    .await;
    let name = |i: usize| placed[i].0.name().to_owned();
    let mut matrix = Matrix::default();
    for (from, answer) in answers.iter().enumerate() {
        // a node that could not listen cannot be reached, and one that could not start has tried nothing
        for (to, result) in answer.iter().filter(|(to, _)| answers.get(**to).is_some_and(|other| !other.is_empty())) {
            let reason = Some(result.clone()).filter(|result| result != "ok");
            matrix.pairs.push(Login { from: name(from), to: name(*to), reason });
        }
    }
    matrix
}

async fn run(inventory: &Inventory, node: &NodeState, input: &str) -> Result<String, NodeError> {
    let tried = "connect to the other nodes";
    let limit = Duration::from_secs(WHOLE + 10);
    let (argv, input) = (["python3", "-c", PORTS], input.as_bytes());
    let output = match node.worker(inventory) {
        Some((runtime, id)) => runtime.run_in(id, &argv, input, tried, limit).await?,
        None => node.member.transport.run(RunAs::Root, &argv, input, tried, limit).await?,
    };
    if output.code == 0 {
        Ok(String::from_utf8_lossy(&output.stdout).into_owned())
    } else {
        Err(NodeError::failed(node.name(), tried, output.complaint()))
    }
}

/// `INDEX RESULT` a line; nothing where the node could not listen.
fn results(text: &str) -> BTreeMap<usize, String> {
    let lines = text.lines().filter_map(|line| line.split_once(' '));
    lines.filter_map(|(index, result)| Some((index.parse().ok()?, result.to_owned()))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_scripts_lines_are_read() {
        let results_of = |text| results(text).into_values().collect::<Vec<_>>();
        assert_eq!(results_of("1 ok\n0 no answer within 3 s\nnoise\n"), ["no answer within 3 s", "ok"]);
        assert_eq!(results_of("busy Address already in use\n"), [""; 0]);
        assert_eq!(results_of(""), [""; 0]);
    }
}
