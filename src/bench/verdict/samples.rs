//! All measurements of each direction of a pair, together.

use crate::bench::measure::schedule;
use crate::bench::measurements::{Direction, Measurements, Usage};
use std::collections::BTreeMap;

/// Processors with less than this idle share have nothing left.
const SATURATED: f64 = 0.05;

/// A hypervisor that takes more than this share of the processors leaves nothing to them either.
const STOLEN: f64 = 0.1;

/// The share of the measurements with saturated processors above which nodes may share their processors: then other
/// pairs that are measured at the same time slow a transfer down.
const FEW: f64 = 0.1;

/// A transfer during which processors had time left shows what a connection can do if it reaches this share of the
/// fastest one. That one may seem faster than it was: its receiver had no processor, and found more in its buffers.
const COMPARABLE: f64 = 1.0 / 3.0;

/// An ordered pair of nodes.
pub(super) type Edge = (usize, usize);

/// All measurements of one direction of a pair, together. What disturbs a measurement never makes it better.
#[derive(Debug, Clone, Default)]
pub(super) struct PairSample {
    pub(super) error: Option<String>,
    pub(super) bandwidth: Option<f64>,
    /// The bandwidth of the fastest transfer during which the processors of both ends had time left, and that of the
    /// fastest one while also no other pair was measured.
    unhindered: (Option<f64>, Option<f64>),
    /// If set, only the latter counts: nodes may share their processors.
    is_shared: bool,
    pub(super) transfers: usize,
    pub(super) round_trip: Option<f64>,
    pub(super) is_saturated: bool,
    /// The difference between transfers without processors to spare: the logarithm of the ratio of the fastest to the
    /// slowest.
    pub(super) noise: Vec<f64>,
    pub(super) lost: u32,
    pub(super) sent: u32,
    pub(super) largest: Option<u32>,
    pub(super) sendable: Option<u32>,
}

impl PairSample {
    fn add(&mut self, direction: &Direction) {
        if let Some(error) = &direction.error {
            self.error.get_or_insert_with(|| error.clone());
            return;
        }
        self.transfers += direction.transfers.len();
        self.bandwidth = self.bandwidth.into_iter().chain(direction.bandwidth()).max_by(f64::total_cmp);
        let trip = direction.round_trip_us.map(|trip| trip.min);
        self.round_trip = self.round_trip.into_iter().chain(trip).min_by(f64::total_cmp);
        let free = direction.transfers.iter().filter(|of| !is_busy(of.sender) && !is_busy(of.receiver));
        let fastest = free.clone().map(|of| of.bytes_per_s).max_by(f64::total_cmp);
        self.unhindered.0 = self.unhindered.0.into_iter().chain(fastest).max_by(f64::total_cmp);
        self.unhindered.1 =
            self.unhindered.1.into_iter().chain(fastest.filter(|_| direction.alone)).max_by(f64::total_cmp);
        if free.count() < direction.transfers.len() {
            let slowest = direction.transfers.iter().map(|transfer| transfer.bytes_per_s).min_by(f64::total_cmp);
            let ratio = direction.bandwidth().zip(slowest).map(|(fastest, slowest)| (fastest / slowest).ln());
            self.is_saturated = true;
            self.noise.extend(ratio.filter(|ratio| ratio.is_finite()));
        }
        if let Some(probes) = direction.probes {
            self.lost = self.lost.saturating_add(probes.lost());
            self.sent = self.sent.saturating_add(probes.sent);
            self.largest = self.largest.max(probes.largest);
            self.sendable = self.sendable.max(probes.sendable);
        }
    }

    /// Returns true if any attempt measured something.
    pub(super) fn is_measured(&self) -> bool {
        self.bandwidth.is_some()
    }

    /// Returns true if saturated processors may be the only reason why it was not faster.
    pub(super) fn is_hindered(&self) -> bool {
        let unhindered = if self.is_shared { self.unhindered.1 } else { self.unhindered.0 };
        self.bandwidth.is_some_and(|most| unhindered.is_none_or(|free| free < COMPARABLE * most))
    }

    /// The share of the datagrams that was lost.
    pub(super) fn loss(&self) -> f64 {
        if self.sent == 0 { 0.0 } else { f64::from(self.lost) / f64::from(self.sent) }
    }
}

/// Returns true if the processors of a machine had no time left. An unknown load counts as busy.
fn is_busy(usage: Usage) -> bool {
    usage.idle.is_none_or(|idle| idle < SATURATED) || usage.steal.is_some_and(|steal| steal > STOLEN)
}

/// Collects the measurements of each direction that was scheduled or measured.
pub(super) fn samples(measurements: &Measurements) -> BTreeMap<Edge, PairSample> {
    let n = measurements.nodes.len();
    let scheduled = schedule::rounds(n).into_iter().flatten();
    // what has no result could not be measured
    let mut samples: BTreeMap<Edge, PairSample> =
        scheduled.flat_map(|(a, b)| [(a, b), (b, a)]).map(|edge| (edge, PairSample::default())).collect();
    for direction in measurements.directions.iter().filter(|direction| direction.from.max(direction.to) < n) {
        samples.entry((direction.from, direction.to)).or_default().add(direction);
    }
    let saturated = samples.values().filter(|sample| sample.is_saturated).count() as f64;
    let is_shared = saturated > FEW * samples.len() as f64;
    samples.values_mut().for_each(|sample| sample.is_shared = is_shared || sample.is_saturated);
    samples
}
