//! Evidence from a node itself: its link, its counters and its processor.

use crate::bench::measurements::{Link, Measurements};
use crate::bench::verdict::Way;
use crate::text::units::count;

/// A value below this share of what the other nodes have is out of line: noise of processors and different parts of one
/// series stay above.
pub(super) const OUT_OF_LINE: f64 = 0.6;

/// Faults on this share of the packets slow TCP down.
const FAULTY: f64 = 1e-4;

/// Fewer than this many events may be chance.
const FEW: u64 = 10;

/// The share of a processor's time that a quota or a hypervisor may take.
const TAKEN: f64 = 0.1;

/// The least share of the time for which programs on most other nodes have a processor, so that a lower share on one
/// node is a property of that node.
pub const SHARED: f64 = 0.8;

/// A processor below this share of the speed of the others is slow. One whose core runs another thread as well, which
/// is no fault of the node, keeps more than half of its speed.
const SHARED_CORE: f64 = 0.5;

/// A reason for which a node may be slow, from its own evidence.
#[derive(Debug, Clone, PartialEq)]
pub struct Reason {
    /// The direction that it slows down.
    pub way: Way,
    /// A clause about the node: `its link is half duplex`.
    pub text: String,
    /// Set if this alone proves that the node is slow.
    pub is_proof: bool,
}

/// Returns the reasons for which a node may be slow.
pub fn reasons(measurements: &Measurements, node: usize) -> Vec<Reason> {
    let mut found = speed(measurements, node);
    found.extend(counters(measurements, node));
    found.extend(unsent(measurements, node));
    found.extend(processor(measurements, node));
    found
}

fn proof(way: Way, text: impl Into<String>) -> Reason {
    Reason { way, text: text.into(), is_proof: true }
}

fn hint(way: Way, text: impl Into<String>) -> Reason {
    Reason { way, text: text.into(), is_proof: false }
}

/// The median, of an even number of values the lower one.
pub(super) fn median(mut values: Vec<f64>) -> Option<f64> {
    values.sort_by(f64::total_cmp);
    values.get(values.len().saturating_sub(1) / 2).copied()
}

/// A value of a node, and the median of the others.
fn compare(measurements: &Measurements, node: usize, value: impl Fn(usize) -> Option<f64>) -> Option<(f64, f64)> {
    let others = (0..measurements.nodes.len()).filter(|other| *other != node);
    value(node).zip(median(others.filter_map(&value).collect()))
}

fn speed(measurements: &Measurements, node: usize) -> Vec<Reason> {
    let link = |node: usize| measurements.nodes[node].before.as_ref();
    let mut found = Vec::new();
    let speeds = compare(measurements, node, |node| link(node)?.speed.map(f64::from));
    if let Some((own, others)) = speeds.filter(|(own, others)| *own < OUT_OF_LINE * others) {
        let faster = link(node).into_iter().flat_map(|link| &link.faster).max_by_key(|(_, speed)| **speed);
        let instead = faster.map_or_else(String::new, |(name, speed)| format!(" ({name} has {})", nominal(*speed)));
        let text =
            format!("its link has {}{instead}, those of the others {}", nominal(own as u32), nominal(others as u32));
        found.push(proof(Way::Both, text));
    }
    if link(node).is_some_and(|link| link.duplex.as_deref() == Some("half")) {
        found.push(proof(Way::Both, "its link is half duplex"));
    }
    let mtus = compare(measurements, node, |node| link(node)?.mtu.map(f64::from));
    if let Some((own, others)) = mtus.filter(|(own, others)| own != others) {
        found.push(hint(Way::Both, format!("its MTU is {own}, that of the others {others}")));
    }
    found
}

/// Formats a speed in Mb/s.
fn nominal(mega: u32) -> String {
    if mega >= 1000 { format!("{} Gb/s", f64::from(mega) / 1000.0) } else { format!("{mega} Mb/s") }
}

/// Returns the growth of a node's counters during the measurement, all of them together; `None` if one of them is
/// unknown.
fn growth(before: &Link, after: &Link, names: &[&str]) -> Option<u64> {
    let of = |link: &Link, name: &str| link.counters.get(name).copied().flatten();
    let grown = |name: &&str| Some(of(after, name)?.saturating_sub(of(before, name)?));
    names.iter().map(grown).try_fold(0, |sum: u64, grown| Some(sum.saturating_add(grown?)))
}

fn counters(measurements: &Measurements, node: usize) -> Vec<Reason> {
    let evidence = &measurements.nodes[node];
    let Some((before, after)) = evidence.before.as_ref().zip(evidence.after.as_ref()) else { return Vec::new() };
    let grown = |names: &[&str]| growth(before, after, names);
    // the kernel's rx_errors include rx_crc_errors, except with drivers that count only these
    let received = grown(&["rx_errors"]).max(grown(&["rx_crc_errors"]));
    let sent = grown(&["tx_errors", "collisions"]);
    let dropped = grown(&["rx_dropped", "rx_missed_errors"]);
    let kinds = [
        (Way::In, received, "rx_packets", "receive error", true),
        (Way::Out, sent, "tx_packets", "send error", true),
        (Way::In, dropped, "rx_packets", "dropped packet", false),
        (Way::Out, grown(&["tx_dropped"]), "tx_packets", "packet dropped before sending", false),
    ];
    let mut found = Vec::new();
    for (way, grown, packets, what, is_error) in kinds {
        let Some(grown) = grown.filter(|grown| *grown > 0) else { continue };
        let packets = growth(before, after, &[packets]).filter(|packets| *packets > 0);
        let share = packets.map(|packets| grown as f64 / packets as f64);
        let text = format!("{} on {}", plural(grown, what), after.interface);
        match share {
            Some(share) if is_error && grown >= FEW && share >= FAULTY => found.push(proof(way, text)),
            Some(share) if share < FAULTY => {}
            _ => found.push(hint(way, text)),
        }
    }
    found
}

fn plural(n: u64, what: &str) -> String {
    let (noun, rest) =
        what.split_once(" dropped ").map_or((what, String::new()), |(noun, rest)| (noun, format!(" dropped {rest}")));
    format!("{}{rest}", count(usize::try_from(n).unwrap_or(usize::MAX), noun))
}

/// Datagrams that never left the node.
fn unsent(measurements: &Measurements, node: usize) -> Option<Reason> {
    let own = measurements.directions.iter().filter(|direction| direction.from == node);
    let probes = own.filter_map(|direction| direction.probes);
    let (unsent, sent) = probes.fold((0u32, 0u32), |(unsent, sent), probes| {
        (unsent.saturating_add(probes.unsent), sent.saturating_add(probes.sent))
    });
    let is_much = unsent >= 3 && f64::from(unsent) >= 0.002 * f64::from(sent);
    is_much.then(|| proof(Way::Out, "its own firewall or queue drops packets"))
}

/// Returns what shows that a node's processor is slow, or not the worker's alone.
pub fn processor(measurements: &Measurements, node: usize) -> Vec<Reason> {
    let of = |node: usize| measurements.nodes[node].compute;
    let mut found = Vec::new();
    let speeds = compare(measurements, node, |node| Some(of(node)?.loops_per_s));
    if let Some((own, others)) = speeds.filter(|(own, others)| *own < SHARED_CORE * others) {
        found.push(proof(Way::Both, format!("its processor has {:.2} × the speed of the others", own / others)));
    }
    let taken = |value: fn(crate::bench::measurements::Compute) -> Option<f64>| {
        let values = compare(measurements, node, |node| value(of(node)?));
        values.filter(|(own, others)| *own > TAKEN && *others < TAKEN / 2.0).map(|(own, _)| own * 100.0)
    };
    if let Some(share) = taken(|compute| compute.throttled) {
        found.push(proof(Way::Both, format!("a limit on processors stops its worker {share:.0} % of the time")));
    }
    if let Some(share) = taken(|compute| compute.usage.steal) {
        found.push(proof(Way::Both, format!("its hypervisor gives {share:.0} % of the processors to others")));
    }
    let shares = compare(measurements, node, |node| Some(of(node)?.share));
    if let Some((own, _)) = shares.filter(|(own, others)| *own < OUT_OF_LINE && *others >= SHARED) {
        let why = match of(node).and_then(|compute| compute.usage.idle) {
            Some(idle) if idle > 0.3 => "its worker gets a processor only",
            _ => "its processors are busy: a program gets one only",
        };
        found.push(proof(Way::Both, format!("{why} {:.0} % of the time", own * 100.0)));
    }
    found
}
