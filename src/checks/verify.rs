//! Compares what `verify` expects with what the ranks reported.

use super::place::RankFault::{self, Machine, Setup};
use super::place::{self, PlacedRank, RankPlace};
use crate::diagnosis::machine::is_gpu_fault;
use crate::inventory::Node;
use crate::launch::placement::Placement;
use crate::model::launcher::Bind;
use crate::node::facts::Facts;
use crate::node::gpus::{self, GpuDevice};
use crate::node::network;
use crate::text::units::count;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;

/// The report of a rank in `verify`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[schemars(rename = "RankReport")]
pub struct RankReport {
    /// Its rank by `hvd.rank()`.
    pub rank: u32,
    /// `hvd.size()`.
    pub size: u32,
    /// `hvd.local_rank()`.
    pub local_rank: u32,
    /// The allreduced sum of rank + 1 over all ranks.
    pub sum: u64,
    /// The machine's name as the rank sees it.
    pub hostname: String,
    /// The lines of `nvidia-smi -L` in the rank's container; null if there is no such program.
    pub gpus: Option<Vec<String>>,
    /// Its place on that machine.
    pub place: RankPlace,
    /// Framework and version.
    pub framework: String,
    /// The library with which the ranks communicate, and its version.
    pub library: String,
    /// Python's version.
    pub python: String,
}

impl RankReport {
    /// Returns the device of the rank as `nvidia-smi -L` lists it; without a device, the first that the rank sees.
    pub fn own_gpu(&self) -> Option<OwnGpu<'_>> {
        let lines = self.gpus.as_ref()?;
        let own = self.place.device.as_ref().and_then(|uuid| lines.iter().find(|line| line.contains(uuid.as_str())));
        own.or(lines.first()).map(|line| OwnGpu::parse(line))
    }
}

/// The GPU of a rank.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct OwnGpu<'a> {
    /// Its UUID; if there is none, the whole line of `nvidia-smi -L`.
    pub device: &'a str,
    /// The text before the UUID.
    name: &'a str,
}

impl OwnGpu<'_> {
    /// Returns its number and model, such as `GPU 0: NVIDIA H200`.
    pub fn model(&self) -> Option<String> {
        let words: Vec<&str> = self.name.split_whitespace().collect();
        (!words.is_empty()).then(|| words.join(" "))
    }

    fn parse(line: &str) -> OwnGpu<'_> {
        match line.trim().strip_suffix(')').and_then(|line| line.split_once("(UUID: ")) {
            Some((name, device)) => OwnGpu { device, name: name.trim_end().trim_end_matches(':') },
            None => OwnGpu { device: line.trim(), name: "" },
        }
    }
}

/// The comparison for one rank.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, JsonSchema)]
#[schemars(rename = "RankResult")]
pub struct RankRow {
    /// The rank.
    pub rank: u32,
    /// The node where it should run.
    pub expected: String,
    /// The node whose log its report came from.
    pub actual: Option<String>,
    /// Its report; `None` if it sent none.
    pub report: Option<RankReport>,
    /// Differences from the expected result.
    #[schemars(with = "Vec<String>")]
    pub faults: Vec<RankFault>,
}

/// Compares every rank's report, by the node whose own log it was found in, with the placement and the nodes' facts,
/// and its place there with how ranks were to be bound. `bind`: `None` if the nodes chose.
pub fn compare(
    placement: &Placement,
    nodes: &[(Node, Facts)],
    reports: &[(String, RankReport)],
    bind: Option<Bind>,
) -> Vec<RankRow> {
    let size = placement.ranks();
    let sum = u64::from(size) * (u64::from(size) + 1) / 2;
    let versions = |r: &RankReport| format!("{}, {}, Python {}", r.framework, r.library, r.python);
    let row = |rank| {
        let (node, local_rank) = placement.node_of(rank).unwrap_or_default();
        let mut row = RankRow { rank, expected: node.to_owned(), actual: None, report: None, faults: Vec::new() };
        let Some((actual, report)) = reports.iter().find(|(_, r)| r.rank == rank) else {
            row.faults.push(Setup("no report was received".into()));
            return row;
        };
        let mut expect = |fault: fn(String) -> RankFault, what: &str, want: String, got: String| {
            if want != got {
                row.faults.push(fault(format!("{what}: expected {want}, got {got}")));
            }
        };
        expect(Setup, "node", node.to_owned(), actual.clone());
        expect(Setup, "local rank", local_rank.to_string(), report.local_rank.to_string());
        expect(Setup, "size", size.to_string(), report.size.to_string());
        expect(Machine, "allreduce", sum.to_string(), report.sum.to_string());
        if let Some((_, first)) = reports.iter().find(|(_, r)| r.rank == 0) {
            expect(Setup, "versions", versions(first), versions(report));
        }
        if let Some((node, facts)) = nodes.iter().find(|(node, _)| node.name == *actual) {
            expect(Setup, "host name", facts.hostname.clone(), report.hostname.clone());
            let ranks = placement.shares.iter().find(|s| s.node == *actual).map_or(1, |s| s.ranks);
            row.faults.extend(gpu_fault(node, facts, ranks, report));
            let given = placement.shares.iter().find(|s| s.node == *actual).map_or(&[][..], |share| &share.gpus);
            row.faults.extend(place::device_fault(&report.place, report.local_rank, &devices(node, facts, given)));
            row.faults.extend(place::core_fault(&report.place, bind));
        }
        row.actual = Some(actual.clone());
        row.report = Some(report.clone());
        row
    };
    let mut rows: Vec<RankRow> = (0..size).map(row).collect();
    let placed = |row: &RankRow| Some((row.rank, row.actual.clone()?, row.report.as_ref()?.place.clone()));
    let placed: Vec<(u32, String, RankPlace)> = rows.iter().filter_map(placed).collect();
    let ranks: Vec<PlacedRank<'_>> =
        placed.iter().map(|(rank, node, place)| PlacedRank { rank: *rank, node, place }).collect();
    for (index, rank) in ranks.iter().enumerate() {
        rows[rank.rank as usize].faults.extend(place::shared(&ranks, index, bind));
    }
    rows
}

/// Returns the devices of the ranks of a node by their local ranks. `given`: those of a job that shares the node.
fn devices<'a>(node: &Node, facts: &'a Facts, given: &'a [String]) -> Vec<&'a str> {
    if network::gpu_request(node, facts).is_none() {
        return Vec::new();
    }
    match given {
        [] => network::chosen_gpus(node, facts).iter().map(GpuDevice::uuid).collect(),
        given => given.iter().map(String::as_str).collect(),
    }
}

/// In a container of a node with GPUs a rank must see those that the inventory gives it: the same UUIDs, and one per
/// local rank.
fn gpu_fault(node: &Node, facts: &Facts, ranks: u32, report: &RankReport) -> Option<RankFault> {
    if network::gpu_request(node, facts).is_none() {
        return None;
    }
    let Some(lines) = &report.gpus else { return Some(Setup("nvidia-smi does not work in its container".into())) };
    let (gpus, message) = gpus::list(lines.iter().map(String::as_str));
    if let Some(message) = message {
        // the container may have lost what the machine has
        let fault = if is_gpu_fault(message) { Machine } else { Setup };
        return Some(fault(format!("nvidia-smi failed in its container: {message}")));
    }
    let visible: BTreeSet<&str> = GpuDevice::of(&gpus).iter().map(GpuDevice::uuid).collect();
    // none where the machine has no `nvidia-smi` outside of containers
    let there: BTreeSet<&str> = network::chosen_gpus(node, facts).iter().map(GpuDevice::uuid).collect();
    if !there.is_empty() && visible != there {
        let list = |set: &BTreeSet<&str>| set.iter().copied().collect::<Vec<_>>().join(" ");
        let text = format!("GPUs: the machine has {}, the rank sees {}", list(&there), list(&visible));
        return Some(Setup(text));
    }
    let text = || format!("{} on this node, {} visible", count(ranks as usize, "rank"), count(visible.len(), "GPU"));
    ((visible.len() as u32) < ranks).then(|| Setup(text()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::launch::placement::{MapBy, place};

    fn report(rank: u32, host: &str) -> RankReport {
        RankReport {
            rank,
            size: 2,
            local_rank: 0,
            sum: 3,
            hostname: host.into(),
            gpus: Some(vec![format!("GPU 0: NVIDIA H200 (UUID: GPU-{host})")]),
            place: RankPlace { device: Some(format!("GPU-{host}")), ..RankPlace::default() },
            framework: "torch 1".into(),
            library: "Horovod 0.28.1".into(),
            python: "3.11".into(),
        }
    }

    fn nodes() -> [(Node, Facts); 2] {
        ["a", "b"].map(|name| {
            let facts = format!(
                "hostname {name}\nnvidia-smi yes\ngpu GPU 0: NVIDIA H200 (UUID: GPU-{name})\ngpu exit 0\nmig exit 0\n"
            );
            (Node { name: name.into(), ..Node::default() }, Facts::parse(&facts))
        })
    }

    fn faults(reports: &[(&str, RankReport)]) -> Vec<String> {
        let placement = place(&[("a".into(), 1), ("b".into(), 1)], 2, MapBy::Slot).unwrap();
        let reports: Vec<(String, RankReport)> = reports.iter().map(|(n, r)| ((*n).to_owned(), r.clone())).collect();
        compare(&placement, &nodes(), &reports, None)
            .into_iter()
            .flat_map(|r| r.faults)
            .map(|fault| fault.to_string())
            .collect()
    }

    #[test]
    fn every_kind_of_mismatch_is_a_fault() {
        let none: Vec<String> = Vec::new();
        assert_eq!(faults(&[("a", report(0, "a")), ("b", report(1, "b"))]), none);
        assert_eq!(faults(&[("a", report(0, "a"))]), ["no report was received"]);
        let both_on_a = faults(&[("a", report(0, "a")), ("a", RankReport { local_rank: 1, ..report(1, "a") })]);
        let on_one = "GPU: it shares GPU-a with rank 0";
        assert_eq!(both_on_a, ["node: expected b, got a", "local rank: expected 0, got 1", on_one]);
        let sum = faults(&[("a", report(0, "a")), ("b", RankReport { sum: 2, ..report(1, "b") })]);
        assert_eq!(sum, ["allreduce: expected 3, got 2"]);
        let blind = faults(&[("a", report(0, "a")), ("b", RankReport { gpus: None, ..report(1, "b") })]);
        assert_eq!(blind, ["nvidia-smi does not work in its container"]);
        let other = faults(&[("a", report(0, "a")), ("b", RankReport { gpus: report(0, "a").gpus, ..report(1, "b") })]);
        assert_eq!(other, ["GPUs: the machine has GPU-b, the rank sees GPU-a"]);
        let few = faults(&[("a", report(0, "a")), ("b", RankReport { gpus: Some(vec![]), ..report(1, "b") })]);
        assert_eq!(few, ["GPUs: the machine has GPU-b, the rank sees "]);
        let version = faults(&[("a", report(0, "a")), ("b", RankReport { python: "3.8".into(), ..report(1, "b") })]);
        assert_eq!(
            version,
            ["versions: expected torch 1, Horovod 0.28.1, Python 3.11, got torch 1, Horovod 0.28.1, Python 3.8"]
        );
    }
}
