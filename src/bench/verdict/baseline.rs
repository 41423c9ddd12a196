//! Compares a benchmark with the output of an earlier one.

use super::bandwidth;
use super::evidence::median;
use crate::bench::collectives::{Collectives, Exchange};
use crate::bench::measurements::{Direction, Measurements, NodeEvidence, Transfer};
use crate::model::collective::{Collective, Dtype, format_size};
use crate::text::units::gigabits;
use crate::text::units::{count, gigabytes};
use schemars::JsonSchema;
use serde::{Deserialize, Deserializer, Serialize};
use std::collections::{BTreeMap, BTreeSet};

/// The version of the document of `bench`. It grows when something has another meaning, not when something is new.
pub const FORMAT: u32 = 1;

/// A bandwidth below this share of the earlier one is slower. The best of several transfers differs by a tenth or so
/// from one benchmark to the next, even if processors have time left.
const SLOWER: f64 = 0.75;

/// The share for small arrays, whose time is mostly latency: one context switch at a bad moment doubles it.
const SLOWER_IF_SMALL: f64 = 0.5;

/// Arrays below this size in bytes are small: their time is mostly latency.
const SMALL: u64 = 64 << 10;

/// It must also be slower by this many standard deviations of what the two benchmarks show themselves: how much
/// transfers between the same nodes differ, and how much the changes of different nodes do.
const DEVIATIONS: f64 = 4.0;

/// From the median of differences from the centre to the standard deviation.
const TO_DEVIATION: f64 = 1.48;

/// Fewer values do not say how much they usually differ.
const ENOUGH: usize = 6;

/// The parts of an earlier benchmark's output that are compared.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
pub struct Baseline {
    nodes: Vec<NamedNode>,
    directions: Vec<PairTransfers>,
    #[serde(default)]
    collectives: Option<Exchanged>,
}

/// A node of the baseline, by its name.
#[derive(Debug, Clone, PartialEq, Deserialize)]
struct NamedNode {
    node: String,
}

/// The measured transfers from one node to another.
#[derive(Debug, Clone, PartialEq, Deserialize)]
struct PairTransfers {
    from: String,
    to: String,
    #[serde(default)]
    transfers: Vec<Transfer>,
}

#[derive(Debug, Clone, PartialEq, Deserialize)]
struct Exchanged {
    ranks: u32,
    #[serde(default)]
    library: String,
    #[serde(deserialize_with = "known")]
    exchanges: Vec<Exchange>,
}

/// Reads the entries that this version knows.
fn known<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<Exchange>, D::Error> {
    let all = Vec::<serde_json::Value>::deserialize(deserializer)?;
    Ok(all.into_iter().filter_map(|entry| serde_json::from_value(entry).ok()).collect())
}

/// A bandwidth that is lower than before.
#[derive(Debug, Clone, PartialEq, Serialize, JsonSchema)]
pub struct Slower {
    /// The finding as a sentence.
    pub text: String,
    /// The sender, if it is a direction of a connection, else null.
    pub from: Option<String>,
    /// The receiver.
    pub to: Option<String>,
    /// The operation, if it is one of all ranks, else null.
    pub collective: Option<Collective>,
    /// The type of the elements.
    pub dtype: Option<Dtype>,
    /// The size of the whole array in bytes.
    pub bytes: Option<u64>,
    /// The bandwidth in the baseline: of TCP, or the bus bandwidth.
    pub before_bytes_per_s: f64,
    /// The bandwidth now.
    pub bytes_per_s: f64,
}

/// A benchmark compared with an earlier one.
#[derive(Debug, Clone, Default, PartialEq, Serialize, JsonSchema)]
pub struct Comparison {
    /// The number of bandwidths that were compared.
    pub compared: usize,
    /// The bandwidths that are lower by more than the usual variation; the one with the smallest share of its earlier
    /// bandwidth first.
    pub slower: Vec<Slower>,
    /// The parts that only one of the two benchmarks has, and that were not compared.
    pub notes: Vec<String>,
}

/// A connection or an operation that has a bandwidth.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
enum BandwidthSubject {
    Direction(String, String),
    Exchange(Collective, Dtype, u64),
}

/// The best bandwidth of each, in bytes a second.
type Bandwidths = BTreeMap<BandwidthSubject, f64>;

impl Baseline {
    /// Reads the output of `hvdctl bench --json`. Fields that this version does not know are ignored.
    ///
    /// # Errors
    /// A clause that completes "the baseline …".
    pub fn parse(text: &str) -> Result<Baseline, String> {
        #[derive(Deserialize)]
        struct BaselineVersion {
            format: Option<u32>,
        }
        let other = |_| "is not the output of `hvdctl bench --json`".to_owned();
        let version: BaselineVersion = serde_json::from_str(text).map_err(other)?;
        if let Some(newer) = version.format.filter(|format| *format > FORMAT) {
            return Err(format!("was written by a newer hvdctl in format {newer}; this one reads format {FORMAT}"));
        }
        serde_json::from_str(text).map_err(other)
    }

    /// Checks that it is of these nodes: of at least two of them, or of the only one.
    ///
    /// # Errors
    /// A clause that completes "the baseline …".
    pub fn check_nodes(&self, names: &[String]) -> Result<(), String> {
        let own: BTreeSet<&str> = self.nodes.iter().map(|node| node.node.as_str()).collect();
        match names.iter().filter(|name| own.contains(name.as_str())).count() {
            common if common >= names.len().min(2) && common > 0 => Ok(()),
            _ if own.is_empty() => Err("has no nodes".to_owned()),
            _ => {
                let few: Vec<&str> = own.iter().take(4).copied().collect();
                let more = if own.len() > few.len() { ", …" } else { "" };
                Err(format!("is from other nodes: {}{more}", few.join(", ")))
            }
        }
    }

    /// Returns what was measured between its nodes.
    fn measurements(&self) -> Measurements {
        let name = |named: &NamedNode| NodeEvidence { name: named.node.clone(), ..NodeEvidence::default() };
        let index = |name: &str| self.nodes.iter().position(|node| node.node == name);
        let direction = |sent: &PairTransfers| {
            let (from, to) = (index(&sent.from)?, index(&sent.to)?);
            Some(Direction { from, to, transfers: sent.transfers.clone(), ..Direction::default() })
        };
        Measurements {
            nodes: self.nodes.iter().map(name).collect(),
            directions: self.directions.iter().filter_map(direction).collect(),
            past: BTreeMap::new(),
        }
    }

    /// Compares a benchmark with this one.
    pub fn compare(&self, measured: &Measurements, collectives: Option<&Collectives>) -> Comparison {
        let mut found = Comparison::default();
        let before = self.measurements();
        match (bandwidth::noise(&before), bandwidth::noise(measured)) {
            _ if measured.directions.is_empty() => {}
            (Some(first), Some(second)) => {
                found.add("direction", &directions(&before), &directions(measured), first.hypot(second));
            }
            (None, _) => found.notes.push("the bandwidths of the baseline vary too much to be compared".to_owned()),
            (_, None) => found.notes.push("the bandwidths vary too much to be compared with the baseline".to_owned()),
        }
        match (&self.collectives, collectives) {
            (Some(before), Some(now)) if before.ranks != now.ranks => found.notes.push(format!(
                "the collectives are not compared: the baseline has {}, this benchmark {}",
                count(before.ranks as usize, "rank"),
                now.ranks
            )),
            (Some(before), Some(now)) if !before.library.is_empty() && before.library != now.library => {
                found.notes.push(format!(
                    "the collectives are not compared: the baseline measured them over {}, this benchmark over {}",
                    before.library, now.library
                ));
            }
            (Some(before), Some(now)) => {
                found.add("size of a collective", &exchanges(&before.exchanges), &exchanges(&now.exchanges), 0.0);
            }
            (Some(_), None) => found.notes.push("only the baseline has collectives".to_owned()),
            (None, Some(_)) => found.notes.push("the baseline has no collectives".to_owned()),
            (None, None) => {}
        }
        let share = |of: &Slower| of.bytes_per_s / of.before_bytes_per_s;
        found.slower.sort_by(|a, b| share(a).total_cmp(&share(b)));
        found
    }
}

fn directions(measured: &Measurements) -> Bandwidths {
    let name = |node: usize| measured.nodes[node].name.clone();
    let of = |direction: &Direction| {
        Some((BandwidthSubject::Direction(name(direction.from), name(direction.to)), direction.bandwidth()?))
    };
    best(measured.directions.iter().filter_map(of))
}

/// The best of all measurements of each: what disturbs one makes it worse.
fn best(all: impl Iterator<Item = (BandwidthSubject, f64)>) -> Bandwidths {
    let mut best = Bandwidths::new();
    for (subject, value) in all.filter(|(_, value)| value.is_finite() && *value > 0.0) {
        let known = best.entry(subject).or_insert(value);
        *known = known.max(value);
    }
    best
}

fn exchanges(all: &[Exchange]) -> Bandwidths {
    best(all.iter().map(|of| (BandwidthSubject::Exchange(of.collective, of.dtype, of.bytes), of.bus_bandwidth * 1e9)))
}

impl Comparison {
    /// Returns whether nothing is slower.
    pub fn is_good(&self) -> bool {
        self.slower.is_empty()
    }

    /// Compares bandwidths. `noise`: by how much they differ at least, as the standard deviation of their logarithms.
    fn add(&mut self, what: &str, before: &Bandwidths, now: &Bandwidths, noise: f64) {
        let shares: BTreeMap<&BandwidthSubject, f64> =
            now.iter().filter_map(|(subject, value)| Some((subject, value / before.get(subject)?))).collect();
        self.compared += shares.len();
        let spread = spread(shares.values().map(|share| share.ln()).collect()).max(noise);
        for (subject, share) in &shares {
            if *share < subject.least_share().min((-DEVIATIONS * spread).exp()) {
                self.slower.push(subject.slower(before[*subject], now[*subject]));
            }
        }
        for (has, other, text) in [(before, now, "only in the baseline"), (now, before, "not in the baseline")] {
            let alone = has.keys().filter(|subject| !other.contains_key(subject)).count();
            if alone > 0 {
                let verb = if alone == 1 { "is" } else { "are" };
                self.notes.push(format!("{} {verb} {text}", plural(alone, what)));
            }
        }
    }
}

/// `3 sizes of a collective`.
fn plural(n: usize, what: &str) -> String {
    let (noun, rest) = what.split_once(' ').map_or((what, String::new()), |(noun, rest)| (noun, format!(" {rest}")));
    format!("{}{rest}", count(n, noun))
}

/// The standard deviation of values around their middle, without outliers.
fn spread(values: Vec<f64>) -> f64 {
    if values.len() < ENOUGH {
        return 0.0;
    }
    let centre = median(values.clone()).unwrap_or_default();
    TO_DEVIATION * median(values.into_iter().map(|value| (value - centre).abs()).collect()).unwrap_or_default()
}

impl BandwidthSubject {
    fn least_share(&self) -> f64 {
        if matches!(self, BandwidthSubject::Exchange(_, _, ..SMALL)) { SLOWER_IF_SMALL } else { SLOWER }
    }

    fn slower(&self, before: f64, now: f64) -> Slower {
        let (text, from, to) = match self {
            BandwidthSubject::Direction(from, to) => {
                let (now, before) = (gigabits(now), gigabits(before));
                let text = format!("{from} → {to} transfers only {now}, {before} in the baseline");
                (text, Some(from.clone()), Some(to.clone()))
            }
            BandwidthSubject::Exchange(collective, dtype, bytes) => {
                let what = format!("{collective} of {} {dtype}", format_size(*bytes));
                let (now, before) = (gigabytes(now), gigabytes(before));
                (format!("{what} has a bus bandwidth of only {now}, {before} in the baseline"), None, None)
            }
        };
        let (collective, dtype, bytes) = match self {
            BandwidthSubject::Direction(..) => (None, None, None),
            BandwidthSubject::Exchange(collective, dtype, bytes) => (Some(*collective), Some(*dtype), Some(*bytes)),
        };
        Slower { text, from, to, collective, dtype, bytes, before_bytes_per_s: before, bytes_per_s: now }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench::measurements::Usage;
    use serde_json::json;

    /// The output of a benchmark of these nodes, with this bandwidth in Gb/s from one to another.
    fn document(n: usize, gigabits: impl Fn(usize, usize) -> f64) -> serde_json::Value {
        let edges = (1..=n).flat_map(|from| (1..=n).map(move |to| (from, to))).filter(|(from, to)| from != to);
        let direction = |(from, to)| {
            let transfer = transfer(gigabits(from, to) * 1.25e8, 0.8);
            json!({ "from": format!("node{from}"), "to": format!("node{to}"), "transfers": [transfer], "new": [1] })
        };
        let nodes: Vec<_> = (1..=n).map(|i| json!({ "node": format!("node{i}"), "ok": true })).collect();
        json!({ "ok": true, "format": 1, "nodes": nodes, "directions": edges.map(direction).collect::<Vec<_>>() })
    }

    fn baseline(document: &serde_json::Value) -> Baseline {
        Baseline::parse(&document.to_string()).unwrap()
    }

    /// A transfer while the processors had this share of their time left.
    fn transfer(bytes_per_s: f64, idle: f64) -> Transfer {
        let usage = Usage { idle: Some(idle), ..Usage::default() };
        let (retransmits, segments, snd_mss, pmtu) = (None, None, None, None);
        Transfer { streams: 1, bytes_per_s, retransmits, segments, snd_mss, pmtu, sender: usage, receiver: usage }
    }

    fn measured(n: usize, gigabits: impl Fn(usize, usize) -> f64) -> Measurements {
        let edges = (0..n).flat_map(|from| (0..n).map(move |to| (from, to))).filter(|(from, to)| from != to);
        let direction = |(from, to): (usize, usize)| {
            let transfers = vec![transfer(gigabits(from + 1, to + 1) * 1.25e8, 0.8)];
            Direction { from, to, transfers, ..Direction::default() }
        };
        let node = |i: usize| NodeEvidence { name: format!("node{}", i + 1), ..NodeEvidence::default() };
        let (nodes, directions) = ((0..n).map(node).collect(), edges.map(direction).collect());
        Measurements { nodes, directions, past: BTreeMap::new() }
    }

    fn texts(comparison: &Comparison) -> Vec<&str> {
        comparison.slower.iter().map(|slower| slower.text.as_str()).collect()
    }

    /// Values that vary like those of busy processors: by this factor at most, without any order.
    fn noisy(from: usize, to: usize, salt: usize, factor: f64) -> f64 {
        let mut hash = ((salt * 100 + from) * 100 + to) as u64;
        for _ in 0..3 {
            hash = (hash ^ (hash >> 29)).wrapping_mul(0xbf58_476d_1ce4_e5b9).rotate_left(31);
        }
        9.4 * factor.powf((hash % 1009) as f64 / 1008.0 - 1.0)
    }

    #[test]
    fn what_got_slower_is_named_and_nothing_else() {
        let same = baseline(&document(4, |_, _| 9.4)).compare(&measured(4, |_, _| 8.4), None);
        assert_eq!((same.compared, texts(&same), same.notes.len()), (12, vec![], 0));

        let slow = |from, to| if (from, to) == (2, 3) { 2.0 } else { 9.4 };
        let found = baseline(&document(4, |_, _| 9.4)).compare(&measured(4, slow), None);
        assert_eq!(texts(&found), ["node2 → node3 transfers only 2.00 Gb/s, 9.40 Gb/s in the baseline"]);
        assert_eq!((found.slower[0].from.as_deref(), found.slower[0].bytes_per_s), (Some("node2"), 2.5e8));

        // everything, and both directions of two nodes
        let all = baseline(&document(4, |_, _| 9.4)).compare(&measured(4, |_, _| 6.0), None);
        assert_eq!(all.slower.len(), 12);
        let two = baseline(&document(2, |_, _| 9.4)).compare(&measured(2, |from, _| [4.0, 2.0][from - 1]), None);
        assert!(texts(&two)[0].starts_with("node2 → node1") && two.slower.len() == 2, "the worst first: {two:?}");
        // what got faster is fine
        let faster = baseline(&document(2, |_, _| 1.0)).compare(&measured(2, |_, _| 9.4), None);
        assert!(faster.is_good());
    }

    #[test]
    fn what_differs_anyway_is_not_slower() {
        for salt in 0..100 {
            let before = document(8, |from, to| noisy(from, to, salt, 3.0));
            let now = measured(8, |from, to| noisy(from, to, salt + 1000, 3.0));
            let found = baseline(&before).compare(&now, None);
            assert!(found.is_good(), "{salt}: {:?}", texts(&found));
        }
        let before = document(8, |from, to| noisy(from, to, 1, 1.2));
        let slow = |from, to| if from == 5 { 1.0 } else { noisy(from, to, 2, 1.2) };
        assert_eq!(baseline(&before).compare(&measured(8, slow), None).slower.len(), 7);
    }

    #[test]
    fn busy_processors_need_a_larger_difference() {
        let with = |mut measured: Measurements, second: f64, idle: f64| {
            for direction in &mut measured.directions {
                let bytes_per_s = direction.transfers[0].bytes_per_s;
                direction.transfers = [1.0, second].map(|share| transfer(bytes_per_s * share, idle)).to_vec();
            }
            measured
        };
        let slower = |second, idle, gigabits| {
            let before = baseline(&document(2, |_, _| 9.4));
            before.compare(&with(measured(2, |_, _| gigabits), second, idle), None)
        };
        assert_eq!(slower(0.9, 0.5, 6.0).slower.len(), 2);
        assert_eq!(slower(0.98, 0.0, 6.0).slower.len(), 2);
        assert_eq!(slower(0.95, 0.0, 6.0).slower.len(), 0, "a third less is no news where two of one benchmark differ");
        assert_eq!(slower(0.95, 0.0, 2.0).slower.len(), 2);
        let unclear = slower(0.4, 0.0, 1.0);
        assert_eq!((texts(&unclear), unclear.compared), (vec![], 0));
        assert_eq!(unclear.notes, ["the bandwidths vary too much to be compared with the baseline"]);
        let mut document = document(2, |_, _| 9.4);
        document["directions"][0]["transfers"] = json!([transfer(1e9, 0.0), transfer(3e8, 0.0)]);
        let unclear = baseline(&document).compare(&measured(2, |_, _| 1.0), None);
        assert_eq!(unclear.notes, ["the bandwidths of the baseline vary too much to be compared"]);
    }

    fn exchange(collective: Collective, bytes: u64, bus_bandwidth: f64) -> Exchange {
        let (dtype, algorithm_bandwidth) = (Dtype::Float16, bus_bandwidth);
        Exchange { collective, dtype, bytes, time_us: 1.0, algorithm_bandwidth, bus_bandwidth, ring_share: None }
    }

    #[test]
    fn collectives_are_compared_by_operation_type_and_size() {
        let all = |large: f64, small: f64| Collectives {
            ranks: 2,
            exchanges: vec![
                exchange(Collective::AllReduce, 1 << 26, large),
                exchange(Collective::AllGather, 1 << 26, 1.0),
                exchange(Collective::AllReduce, 1 << 10, small),
            ],
            ..Collectives::default()
        };
        let mut document = document(2, |_, _| 9.4);
        document["collectives"] = serde_json::to_value(all(1.1, 0.02)).unwrap();
        document["collectives"]["exchanges"].as_array_mut().unwrap().push(json!({ "collective": "gather" }));
        let before = baseline(&document);
        let compare = |now: &Collectives| before.compare(&measured(2, |_, _| 9.4), Some(now));
        let found = compare(&all(0.5, 0.012));
        assert_eq!(found.compared, 5);
        assert_eq!(
            texts(&found),
            ["allreduce of 64M float16 has a bus bandwidth of only 0.50 GB/s, 1.10 GB/s in the baseline"]
        );
        assert_eq!(found.slower[0].collective, Some(Collective::AllReduce));
        assert_eq!(compare(&all(1.1, 0.005)).slower.len(), 1, "a small array that takes four times as long");
        let found = compare(&Collectives { ranks: 4, ..all(0.1, 0.1) });
        assert_eq!(
            (texts(&found), found.notes[0].as_str()),
            (vec![], "the collectives are not compared: the baseline has 2 ranks, this benchmark 4")
        );
        let none = before.compare(&measured(2, |_, _| 9.4), None);
        assert_eq!(none.notes, ["only the baseline has collectives"]);
    }

    #[test]
    fn what_is_only_in_one_of_them_is_said() {
        let mut more = document(3, |_, _| 9.4);
        more["directions"][0]["transfers"] = json!([]);
        let found = baseline(&more).compare(&measured(2, |_, _| 9.4), Some(&Collectives::default()));
        assert_eq!(found.compared, 1);
        assert_eq!(
            found.notes,
            [
                "4 directions are only in the baseline",
                "1 direction is not in the baseline",
                "the baseline has no collectives"
            ]
        );
        assert!(found.is_good());
    }

    #[test]
    fn what_is_no_baseline_is_refused() {
        for text in
            ["", "x", "[]", "{}", "{\"nodes\":[]}", "{\"ok\":true,\"nodes\":[{\"node\":\"a\"}]}", "{\"format\":\"a\"}"]
        {
            let error = Baseline::parse(text).unwrap_err();
            assert_eq!(error, "is not the output of `hvdctl bench --json`", "{text}");
        }
        let mut newer = document(2, |_, _| 9.4);
        newer["format"] = json!(7);
        assert!(
            Baseline::parse(&newer.to_string()).unwrap_err().starts_with("was written by a newer hvdctl in format 7")
        );
        let names = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect::<Vec<_>>();
        let four = baseline(&document(4, |_, _| 9.4));
        assert_eq!(four.check_nodes(&names(&["node2", "node4", "node9"])), Ok(()));
        let other = four.check_nodes(&names(&["node1", "gpu2"])).unwrap_err();
        assert_eq!(other, "is from other nodes: node1, node2, node3, node4");
        let none = baseline(&json!({ "nodes": [], "directions": [] })).check_nodes(&names(&["node1", "node2"]));
        assert_eq!(none, Err("has no nodes".to_owned()));
    }
}
