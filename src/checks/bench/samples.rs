//! All measurements of each direction of a pair, together.

use super::{Direction, Measurements, Usage, schedule};
use std::collections::BTreeMap;

/// Processors with less than this idle share have nothing left.
const SATURATED: f64 = 0.05;

/// An ordered pair of nodes.
pub(super) type Edge = (usize, usize);

/// All measurements of one direction of a pair, together. What disturbs a measurement never makes it better.
#[derive(Debug, Clone, Default)]
pub(super) struct Sample {
    pub(super) error: Option<String>,
    pub(super) bandwidth: Option<f64>,
    pub(super) transfers: usize,
    pub(super) round_trip: Option<f64>,
    pub(super) is_saturated: bool,
    /// How much transfers without processors to spare differ: the logarithm of the ratio of the fastest to the slowest.
    pub(super) noise: Vec<f64>,
    pub(super) lost: u32,
    pub(super) sent: u32,
    pub(super) largest: Option<u32>,
    pub(super) sendable: Option<u32>,
}

impl Sample {
    fn add(&mut self, direction: &Direction) {
        if let Some(error) = &direction.error {
            self.error.get_or_insert_with(|| error.clone());
            return;
        }
        self.transfers += direction.transfers.len();
        self.bandwidth = self.bandwidth.into_iter().chain(direction.bandwidth()).max_by(f64::total_cmp);
        let trip = direction.round_trip_us.map(|trip| trip.min);
        self.round_trip = self.round_trip.into_iter().chain(trip).min_by(f64::total_cmp);
        let is_busy = |usage: Usage| usage.idle.is_none_or(|idle| idle < SATURATED);
        if direction.transfers.iter().any(|of| is_busy(of.sender) || is_busy(of.receiver)) {
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

    /// Whether any attempt measured something.
    pub(super) fn is_measured(&self) -> bool {
        self.bandwidth.is_some()
    }

    /// The share of the datagrams that was lost.
    pub(super) fn loss(&self) -> f64 {
        if self.sent == 0 { 0.0 } else { f64::from(self.lost) / f64::from(self.sent) }
    }
}

/// Collects the measurements of each direction that was scheduled or measured.
pub(super) fn samples(measurements: &Measurements) -> BTreeMap<Edge, Sample> {
    let n = measurements.nodes.len();
    let scheduled = schedule::rounds(n).into_iter().flatten();
    // what has no result could not be measured
    let mut samples: BTreeMap<Edge, Sample> =
        scheduled.flat_map(|(a, b)| [(a, b), (b, a)]).map(|edge| (edge, Sample::default())).collect();
    for direction in measurements.directions.iter().filter(|direction| direction.from.max(direction.to) < n) {
        samples.entry((direction.from, direction.to)).or_default().add(direction);
    }
    samples
}
