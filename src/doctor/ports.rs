//! TCP between the nodes on ports that nobody has agreed on, as Horovod's ranks use them.

use super::Patient;
use crate::cluster::nodes::for_each_node;
use crate::error::NodeError;
use crate::event::{Events, Step};
use crate::inventory::Inventory;
use crate::keys::reachability::{Matrix, Pair, pairs};
use crate::node::network;
use std::collections::BTreeMap;
use std::hash::{BuildHasher, RandomState};
use std::net::IpAddr;
use std::time::Duration;

const PORTS: &str = include_str!("../scripts/ports.py");

/// Seconds that one connection may take.
const LIMIT: u64 = 3;
/// Seconds after which a node gives up: the others may begin a little later than it.
const WHOLE: u64 = 10;

/// Tries every pair of [`pairs`]. Each node listens and connects at the same time, in its worker or, where that is not up, on
/// the machine itself: both have the same network. Where that cannot be done the pair is left out.
pub(super) async fn check(inventory: &Inventory, patients: &[Patient], events: &Events) -> Matrix {
    let placed: Vec<(&Patient, IpAddr)> = patients
        .iter()
        .filter_map(|p| Some((p, network::place(inventory, &p.member.node, &p.facts).ok()?.address)))
        .filter(|(_, address)| !address.is_loopback())
        .collect();
    let mut targets: Vec<Vec<usize>> = vec![Vec::new(); placed.len()];
    let mut expected = vec![0usize; placed.len()];
    for (from, to) in pairs(placed.len()) {
        targets[from].push(to);
        expected[to] += 1;
    }
    let random = RandomState::new();
    let token = format!("{:016x}{:016x}", random.hash_one(0), random.hash_one(1));
    // one below the range that systems take ports from by themselves, and one in it
    let port = |seed: u64, from: u64, to: u64| from + random.hash_one(seed) % (to - from);
    let ports = format!("{},{}", port(2, 20_000, 32_768), port(3, 32_768, 60_999));

    let work = placed.iter().zip(&targets).zip(&expected).collect();
    let told = for_each_node(work, async |((at, to), expected): ((&(&Patient, IpAddr), &Vec<usize>), &usize)| {
        let (patient, address) = at;
        let _step = events.begin(patient.name(), Step::TryingPorts);
        let list: String = to.iter().map(|to| format!("{to} {}\n", placed[*to].1)).collect();
        let input = format!("{token}\n{address} {ports} {LIMIT} {WHOLE} {expected}\n{list}");
        let said = run(inventory, patient, &input).await.unwrap_or_default();
        results(&said)
    })
    .await;
    let mut matrix = Matrix::default();
    for (from, to) in pairs(placed.len()) {
        // who could not listen was not to be reached, and who could not start has tried nothing
        let (Some(Some(words)), Some(_)) = (told[from].as_ref().map(|told| told.get(&to)), &told[to]) else { continue };
        let reason = Some(words.clone()).filter(|words| words != "ok");
        let name = |i: usize| placed[i].0.name().to_owned();
        matrix.pairs.push(Pair { from: name(from), to: name(to), reason });
    }
    matrix
}

async fn run(inventory: &Inventory, patient: &Patient, input: &str) -> Result<String, NodeError> {
    let tried = "connect to the other nodes";
    let limit = Duration::from_secs(WHOLE + 10);
    let link = &patient.member.transport;
    let output = match patient.worker(inventory) {
        Some(id) => {
            let args = ["exec", "-i", id, "python3", "-c", PORTS];
            link.run_docker(&args, input.as_bytes(), tried, limit).await?
        }
        None => link.run_as_root_within(&["python3", "-c", PORTS], input.as_bytes(), tried, limit).await?,
    };
    if output.code == 0 {
        Ok(String::from_utf8_lossy(&output.stdout).into_owned())
    } else {
        Err(NodeError::failed(patient.name(), tried, output.complaint()))
    }
}

/// `INDEX WORDS` a line; none where the node could not listen or said nothing at all.
fn results(said: &str) -> Option<BTreeMap<usize, String>> {
    let lines = said.lines().filter_map(|line| line.split_once(' '));
    let told: BTreeMap<usize, String> =
        lines.filter_map(|(index, words)| Some((index.parse().ok()?, words.to_owned()))).collect();
    (!told.is_empty()).then_some(told)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_scripts_lines_are_read() {
        let told = results("1 ok\n0 no answer within 3 s\nnoise\n").unwrap();
        assert_eq!((told[&1].as_str(), told[&0].as_str()), ("ok", "no answer within 3 s"));
        assert_eq!(results("busy Address already in use\n"), None);
        assert_eq!(results(""), None);
    }
}
