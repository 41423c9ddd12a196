//! Compares where a rank runs with where it should: its GPU, its cores and their NUMA nodes. What differs is a
//! [`RankFault`].

use crate::model::launcher::Bind;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize, Serializer};
use std::collections::BTreeSet;
use std::fmt;

/// The place of a rank on its machine, by `src/scripts/ranks/place.py`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct RankPlace {
    /// The UUID of the GPU or MIG device that a program uses by its local rank; null if there is none.
    pub device: Option<String>,
    /// The reason why CUDA finds no device; null if it finds one, or should not.
    pub cuda_error: Option<String>,
    /// The NUMA node of that GPU; null if it is not known.
    pub gpu_numa: Option<u32>,
    /// The CPUs that the rank may use, as `0-3,8`.
    pub cpus: String,
    /// Their NUMA nodes.
    pub numa: Vec<u32>,
    /// The NUMA nodes of all CPUs that its container may use; empty if the machine does not show any.
    pub numa_nodes: Vec<u32>,
    /// The number of cores that its container may use.
    pub cores: u32,
    /// `CUDA_VISIBLE_DEVICES` of the rank; null if it is not set.
    pub visible_devices: Option<String>,
    /// `CUDA_DEVICE_ORDER` of the rank; null if it is not set.
    pub device_order: Option<String>,
}

/// A property of a rank that is not as expected.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum RankFault {
    /// The machine does not work: a device fails, or a result is wrong. It is recorded in the node's ledger.
    Machine(String),
    /// Its cause may be outside the machine: the image, the container, the inventory, or how ranks were placed and
    /// bound.
    Setup(String),
}

impl fmt::Display for RankFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (RankFault::Machine(text) | RankFault::Setup(text)) = self;
        f.write_str(text)
    }
}

impl Serialize for RankFault {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

/// A rank with its place.
#[derive(Debug, Clone, Copy)]
pub(super) struct PlacedRank<'a> {
    /// Its rank.
    pub(super) rank: u32,
    /// The node whose log its report came from.
    pub(super) node: &'a str,
    /// Its place there.
    pub(super) place: &'a RankPlace,
}

/// Returns what is wrong with the device of a rank. `devices`: those of the ranks of its node by local rank; empty if
/// it should have none, or the machine does not show any.
pub(super) fn device_fault(place: &RankPlace, local_rank: u32, devices: &[&str]) -> Option<RankFault> {
    if devices.is_empty() {
        return None;
    }
    if let Some(error) = &place.cuda_error {
        return Some(RankFault::Machine(error.clone()));
    }
    // an inventory that sets these variables has its own order
    let is_mig = |visible: &String| visible.starts_with("MIG-");
    let is_ours =
        place.visible_devices.as_ref().is_none_or(is_mig) && place.device_order.as_deref() == Some("PCI_BUS_ID");
    let expected = devices.get(local_rank as usize).filter(|_| is_ours);
    let text = match (&place.device, expected) {
        (Some(device), Some(expected)) if device != expected => Some(format!("GPU: expected {expected}, got {device}")),
        (Some(device), None) if !devices.contains(&device.as_str()) => {
            Some(format!("GPU: got {device}, which is not one of the job's ({})", devices.join(" ")))
        }
        (None, Some(expected)) => Some(format!("GPU: expected {expected}, got none")),
        _ => None,
    };
    // which device it is was decided by the launch, and what the container has
    text.map(RankFault::Setup)
}

/// Returns what is wrong with the cores of a rank: they belong to the NUMA node of its GPU, or to one NUMA node where
/// that is not known. Ranks that are not bound by NUMA nodes have no such rule.
pub(super) fn core_fault(place: &RankPlace, bind: Option<Bind>) -> Option<RankFault> {
    if place.numa_nodes.len() < 2 {
        return None;
    }
    let names = |nodes: &[u32]| nodes.iter().map(u32::to_string).collect::<Vec<_>>().join(",");
    let of_gpu = place.gpu_numa.filter(|node| place.numa_nodes.contains(node));
    let got = format!("got {} ({})", names(&place.numa), place.cpus);
    let text = match (bind, of_gpu) {
        (None | Some(Bind::Numa), Some(node)) if place.numa != [node] => {
            Some(format!("NUMA node: expected {node}, as for its GPU, {got}"))
        }
        (Some(Bind::Numa), None) if place.gpu_numa.is_none() && place.numa.len() != 1 => {
            Some(format!("NUMA node: expected one, {got}"))
        }
        _ => None,
    };
    text.map(RankFault::Setup)
}

/// Returns what the rank at `index` shares with one before it and should not: a GPU, or cores with `--bind core`.
pub(super) fn shared(ranks: &[PlacedRank<'_>], index: usize, bind: Option<Bind>) -> Vec<RankFault> {
    let PlacedRank { node, place, .. } = ranks[index];
    let on_node = ranks.iter().filter(|other| other.node == node).count();
    let others = || ranks[..index].iter().filter(|other| other.node == node);
    let gpu = place.device.as_ref().and_then(|device| {
        let other = others().find(|other| other.place.device.as_ref() == Some(device))?;
        Some(format!("GPU: it shares {device} with rank {}", other.rank))
    });
    let has_own_cores = bind == Some(Bind::Core) && on_node <= place.cores as usize;
    let cpus = parse(&place.cpus);
    let overlaps = |other: &&PlacedRank<'_>| has_own_cores && !parse(&other.place.cpus).is_disjoint(&cpus);
    let cores = others().find(overlaps);
    let cores = cores.map(|other| format!("cores: it shares some of {} with rank {}", place.cpus, other.rank));
    gpu.into_iter().chain(cores).map(RankFault::Setup).collect()
}

/// The most CPUs of a list, which a rank has printed.
const MOST_CPUS: usize = 1 << 16;

/// Parses `0-3,8`. What is not such a list has no CPUs.
fn parse(list: &str) -> BTreeSet<u32> {
    let range = |part: &str| {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        Some(first.parse().ok()?..=last.parse().ok().filter(|last: &u32| *last < 1 << 20)?)
    };
    list.split(',').filter_map(range).flatten().take(MOST_CPUS).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The place of a rank on a node of eight cores in two NUMA nodes, with a GPU each.
    fn place((rank, (device, cpus, numa)): (u32, (&str, &str, &[u32]))) -> RankPlace {
        RankPlace {
            device: Some(device.to_owned()),
            gpu_numa: Some(rank % 2),
            cpus: cpus.to_owned(),
            numa: numa.to_vec(),
            numa_nodes: vec![0, 1],
            cores: 8,
            device_order: Some("PCI_BUS_ID".into()),
            ..RankPlace::default()
        }
    }

    fn all_shared(places: &[(&str, &str, &[u32])], bind: Option<Bind>) -> Vec<String> {
        let places: Vec<RankPlace> = (0..).zip(places.iter().copied()).map(place).collect();
        let placed = |(rank, place)| PlacedRank { rank, node: "a", place };
        let ranks: Vec<PlacedRank<'_>> = (0..).zip(&places).map(placed).collect();
        (0..ranks.len()).flat_map(|index| shared(&ranks, index, bind)).map(|fault| fault.to_string()).collect()
    }

    #[test]
    fn a_list_of_cpus_is_bounded() {
        let list = vec!["0-1048575"; 5000].join(",");
        assert!(parse(&list).len() <= MOST_CPUS);
        assert_eq!(parse("0-3,8,x,9-4294967295"), BTreeSet::from([0, 1, 2, 3, 8]));
    }

    #[test]
    fn two_ranks_on_one_gpu_or_core_are_named() {
        let none: [&str; 0] = [];
        assert_eq!(all_shared(&[("GPU-a", "0-7", &[0, 1]), ("GPU-b", "0-7", &[0, 1])], None), none);
        let twice = [("GPU-a", "0-7", &[0, 1][..]), ("GPU-b", "0-7", &[0, 1]), ("GPU-a", "0-7", &[0, 1])];
        assert_eq!(all_shared(&twice, None), ["GPU: it shares GPU-a with rank 0"]);
        let core = Some(Bind::Core);
        assert_eq!(all_shared(&[("GPU-a", "0-3", &[0]), ("GPU-b", "4-7", &[1])], core), none);
        let overlap = [("GPU-a", "0-3", &[0][..]), ("GPU-b", "3,5", &[0, 1])];
        assert_eq!(all_shared(&overlap, core), ["cores: it shares some of 3,5 with rank 0"]);
        // there are more ranks than cores
        let crowd: Vec<String> = (0..9).map(|rank| format!("GPU-{rank}")).collect();
        let crowd: Vec<(&str, &str, &[u32])> = crowd.iter().map(|gpu| (gpu.as_str(), "0", &[0][..])).collect();
        assert_eq!(all_shared(&crowd, core), none);
        assert_eq!((parse("0-2,8"), parse(""), parse("x-")), ([0, 1, 2, 8].into(), [].into(), [].into()));
        // the same UUID on two nodes is that of two cards
        let [first, second] = [place((0, ("GPU-a", "0", &[0]))), place((1, ("GPU-a", "0", &[0])))];
        let ranks = [("a", &first), ("b", &second)].map(|(node, place)| PlacedRank { rank: 0, node, place });
        assert_eq!(shared(&ranks, 1, core), []);
    }

    #[test]
    fn another_gpu_than_that_of_the_local_rank_is_a_fault() {
        let of = |device: &str| place((0, (device, "0", &[0])));
        let fault = |place: &RankPlace| device_fault(place, 0, &["GPU-a", "GPU-b"]).map(|fault| fault.to_string());
        assert_eq!(fault(&of("GPU-a")), None);
        assert_eq!(fault(&of("GPU-b")).unwrap(), "GPU: expected GPU-a, got GPU-b");
        let mut own = of("GPU-b");
        own.visible_devices = Some("1,0".into());
        assert_eq!(fault(&own), None, "the inventory has its own order");
        own.device = Some("GPU-c".into());
        assert_eq!(fault(&own).unwrap(), "GPU: got GPU-c, which is not one of the job's (GPU-a GPU-b)");
        own.device = None;
        assert_eq!(fault(&own), None, "the inventory may hide all");
        let mut none = RankPlace { visible_devices: None, ..own };
        assert_eq!(fault(&none).unwrap(), "GPU: expected GPU-a, got none");
        none.cuda_error = Some("CUDA does not work there: cuInit failed: CUDA_ERROR_SYSTEM_NOT_READY".into());
        assert_eq!(fault(&none), none.cuda_error);
        assert_eq!(device_fault(&none, 0, &[]), None, "the node gives none");
        let mig = RankPlace { visible_devices: Some("MIG-2".into()), ..of("MIG-2") };
        assert_eq!(device_fault(&mig, 1, &["MIG-1", "MIG-2"]), None);
        assert_eq!(device_fault(&mig, 0, &["MIG-1", "MIG-2"]).unwrap().to_string(), "GPU: expected MIG-1, got MIG-2");
    }

    #[test]
    fn cores_are_those_of_the_gpus_numa_node() {
        let fault = |numa: &[u32], gpu_numa, bind| {
            let place = RankPlace { gpu_numa, ..place((0, ("GPU-a", "0-3", numa))) };
            core_fault(&place, bind).map(|fault| fault.to_string())
        };
        let (numa, core) = (Some(Bind::Numa), Some(Bind::Core));
        assert_eq!(fault(&[0], Some(0), None), None);
        for bind in [None, numa] {
            let fault = fault(&[0], Some(1), bind).unwrap();
            assert_eq!(fault, "NUMA node: expected 1, as for its GPU, got 0 (0-3)");
        }
        assert_eq!((fault(&[0], Some(1), core), fault(&[0, 1], Some(1), Some(Bind::None))), (None, None));
        assert_eq!(fault(&[0, 1], None, None), None);
        assert_eq!(fault(&[0, 1], None, numa).unwrap(), "NUMA node: expected one, got 0,1 (0-3)");
        // the container has no cores of that node
        assert_eq!(fault(&[0, 1], Some(7), numa), None);
        let single = RankPlace { numa_nodes: vec![0], ..place((0, ("GPU-a", "0-3", &[]))) };
        assert_eq!(core_fault(&single, numa), None);
    }
}
