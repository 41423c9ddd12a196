//! The document of `bench --json`.

use super::BenchReport;
use super::text::SlowPart;
use crate::bench::collectives::Collectives;
use crate::bench::measurements::{Compute, Direction, NodeEvidence, Probes, RoundTrip, Transfer};
use crate::bench::ranks::RankResults;
use crate::bench::verdict::baseline;
use crate::bench::verdict::baseline::Comparison;
use crate::bench::verdict::{Accusation, Subject, Way};
use crate::document::NodeEntry;
use crate::model::collective::{Dtype, ModelEstimate};
use schemars::JsonSchema;
use serde::Serialize;
use std::collections::BTreeMap;

/// `bench`.
#[derive(Debug, Serialize, JsonSchema)]
pub struct BenchDocument {
    /// The version of this document, for `--baseline`. Fields may be added without a new version.
    pub format: u32,
    /// The verdict as one sentence.
    pub verdict: String,
    /// Wrong results, and then slow nodes, connections and ranks, the strongest finding first; empty if there are none.
    pub findings: Vec<BenchFinding>,
    /// The limits of the verdict: measurements that failed, and processors that were busy.
    pub notes: Vec<String>,
    /// The nodes; `ok` is false if a finding names the node.
    pub nodes: Vec<NodeEntry<BenchNode>>,
    /// Every measurement of one direction of a pair. What looks slow is measured again, and then has several.
    pub directions: Vec<BenchDirection>,
    /// The measurements of a job's ranks; null if they measured nothing.
    pub collectives: Option<Collectives>,
    /// The estimated cost of a training step of the model of `--params`; null without the option, or if nothing
    /// comparable was measured.
    pub estimate: Option<BenchEstimate>,
    /// Differences from the output of an earlier benchmark; null without `--baseline`.
    pub baseline: Option<Comparison>,
}

/// A node or a connection that is slow.
#[derive(Debug, Serialize, JsonSchema)]
pub struct BenchFinding {
    /// The finding as a sentence.
    pub text: String,
    /// The node, the two ends of the connection, or all nodes.
    pub nodes: Vec<String>,
    /// `out`: what the first of these nodes sends; `in`: what it receives; or `both`.
    pub direction: Way,
}

/// The estimated cost of a training step of a model, from the allreduce whose size is nearest to that of its gradients.
#[derive(Debug, Serialize, JsonSchema)]
pub struct BenchEstimate {
    /// The number of parameters.
    pub params: u64,
    /// The type of the gradients.
    pub dtype: Dtype,
    /// The seconds in which the gradients of one step are exchanged.
    pub exchange_s: f64,
    /// The speed of the cluster as a multiple of one node's, if nothing is computed during the exchange; null without
    /// `--step`.
    pub speedup: Option<f64>,
    /// The speedup if as much as possible is computed during the exchange.
    pub speedup_overlapped: Option<f64>,
    /// The estimate as text.
    pub text: String,
}

impl From<&ModelEstimate> for BenchEstimate {
    fn from(model: &ModelEstimate) -> BenchEstimate {
        let (speedup, speedup_overlapped) = model.estimate.speedup(1).unzip();
        BenchEstimate {
            params: model.params,
            dtype: model.dtype,
            exchange_s: model.estimate.wire.as_secs_f64(),
            speedup,
            speedup_overlapped,
            text: model.to_string(),
        }
    }
}

/// The data of `bench` about a node.
#[derive(Debug, Serialize, JsonSchema)]
pub struct BenchNode {
    /// The interface that jobs use.
    pub interface: Option<String>,
    /// Its nominal speed in Mb/s; null for a virtual one.
    pub speed: Option<u32>,
    /// `full` or `half`; null for a virtual one.
    pub duplex: Option<String>,
    /// The largest packet in bytes.
    pub mtu: Option<u32>,
    /// The growth of its counters of errors and packets during the measurement.
    pub counters: BTreeMap<String, u64>,
    /// The processor.
    pub compute: Option<Compute>,
}

impl From<&NodeEvidence> for BenchNode {
    fn from(node: &NodeEvidence) -> BenchNode {
        let (before, after) = (node.before.clone().unwrap_or_default(), node.after.clone().unwrap_or_default());
        let growth = |(name, value): (&String, &Option<u64>)| {
            let later = after.counters.get(name).copied().flatten()?;
            Some((name.clone(), later.saturating_sub((*value)?)))
        };
        BenchNode {
            interface: node.before.as_ref().map(|link| link.interface.clone()),
            counters: before.counters.iter().filter_map(growth).collect(),
            speed: before.speed,
            duplex: before.duplex,
            mtu: before.mtu,
            compute: node.compute,
        }
    }
}

/// One measurement of what a node sends to another.
#[derive(Debug, Serialize, JsonSchema)]
pub struct BenchDirection {
    /// The sender.
    pub from: String,
    /// The receiver.
    pub to: String,
    /// The reason why nothing could be measured, else null.
    pub error: Option<String>,
    /// The bandwidth of the fastest transfer.
    pub bytes_per_s: Option<f64>,
    /// Round trips of a small message over TCP.
    pub round_trip_us: Option<RoundTrip>,
    /// Transfers over one and over several connections.
    pub transfers: Vec<Transfer>,
    /// Datagrams; null if none arrives at all, for example behind some firewalls.
    pub probes: Option<Probes>,
}

impl BenchReport<'_> {
    /// Returns the document of the benchmark.
    pub fn document(&self) -> BenchDocument {
        let BenchReport { measured, verdict, ranks, compared } = *self;
        let names = self.names();
        let of_rank = |(node, text): (Option<String>, String)| BenchFinding {
            text,
            nodes: node.into_iter().collect(),
            direction: Way::Both,
        };
        let errors = ranks.map(RankResults::errors).unwrap_or_default().into_iter().map(of_rank);
        let slow = self.strongest().into_iter().map(|found| match found {
            SlowPart::Network(found) => finding(found, &names),
            SlowPart::Rank(found) => of_rank((Some(found.node.clone()), found.text.clone())),
        });
        let below = compared.below.iter().map(|text| of_rank((None, text.clone())));
        let findings: Vec<BenchFinding> = errors.chain(slow).chain(below).collect();
        let node = |node: &NodeEvidence| {
            let is_named = findings.iter().any(|finding| finding.nodes.contains(&node.name));
            NodeEntry::new(&node.name, !is_named, BenchNode::from(node))
        };
        let direction = |direction: &Direction| BenchDirection {
            from: names[direction.from].to_owned(),
            to: names[direction.to].to_owned(),
            error: direction.error.clone(),
            bytes_per_s: direction.bandwidth(),
            round_trip_us: direction.round_trip_us,
            transfers: direction.transfers.clone(),
            probes: direction.probes,
        };
        let of_job = ranks.map_or(&[][..], |ranks| &ranks.nodes).iter().filter(|name| !names.contains(&name.as_str()));
        let of_job: Vec<_> =
            of_job.map(|name| NodeEvidence { name: name.clone(), ..NodeEvidence::default() }).collect();
        BenchDocument {
            format: baseline::FORMAT,
            baseline: compared.baseline.clone(),
            verdict: self.sentence(),
            nodes: measured.nodes.iter().chain(&of_job).map(node).collect(),
            collectives: ranks.map(|ranks| ranks.answers.collectives.clone()),
            estimate: ranks.and_then(|ranks| ranks.estimate.as_ref()).map(Into::into),
            directions: measured.directions.iter().map(direction).collect(),
            notes: verdict
                .notes
                .iter()
                .chain(ranks.iter().flat_map(|ranks| &ranks.answers.notes))
                .chain(&compared.notes)
                .cloned()
                .collect(),
            findings,
        }
    }
}

fn finding(accusation: &Accusation, names: &[&str]) -> BenchFinding {
    let (nodes, direction) = match accusation.subject {
        Subject::Cluster => ((0..names.len()).collect(), Way::Both),
        Subject::Node(node, way) => (vec![node], way),
        Subject::Pair(a, b, Way::In) => (vec![b, a], Way::Out),
        Subject::Pair(a, b, way) => (vec![a, b], way),
    };
    let nodes = nodes.into_iter().map(|node| names[node].to_owned()).collect();
    BenchFinding { text: accusation.sentence(names), nodes, direction }
}
