//! The measurements of a job's ranks: their collectives, wrong results, and the speed of each rank's device.

use crate::model::collective::{Collective, Dtype, format_size};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::fmt;

/// A collective of all ranks with an array of one size.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Exchange {
    /// The operation.
    pub collective: Collective,
    /// The type of the elements.
    pub dtype: Dtype,
    /// The size of the whole array, as nccl-tests counts it: for allgather what every rank gets, for reduce-scatter
    /// what it has before.
    pub bytes: u64,
    /// The median time of an operation on the slowest rank, in µs.
    pub time_us: f64,
    /// Size divided by time, in 10⁹ bytes a second.
    pub algorithm_bandwidth: f64,
    /// A bandwidth that is equal for any number of ranks if their links are used equally well, in 10⁹ bytes a second.
    pub bus_bandwidth: f64,
    /// The ratio of the bus bandwidth to the measured bandwidth of the slowest link of the ring; null if no link was
    /// measured.
    pub ring_share: Option<f64>,
}

/// A rank's measurement of its own device, without the other ranks.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct RankSpeed {
    /// The rank.
    pub rank: u32,
    /// Its node.
    pub node: String,
    /// The device: the name of a GPU, or `cpu`.
    pub device: String,
    /// The speed of a matrix product, in floating-point operations a second.
    pub flops: f64,
    /// The speed of a copy in the device's memory, in bytes a second.
    pub copy_bytes_per_s: f64,
    /// The share of the time in which the rank had the processors that it wanted; null on a GPU, or if it is not known.
    pub share: Option<f64>,
    /// Set if it was measured again while the other nodes waited, because it looked slow.
    pub alone: bool,
}

impl RankSpeed {
    /// Returns the best of two measurements of a rank: what disturbs one never makes it faster. The share is that of a
    /// measurement without the other nodes, if there is one.
    pub fn better(self, other: &RankSpeed) -> RankSpeed {
        let share = match (self.alone, other.alone) {
            (true, false) => self.share,
            (false, true) => other.share,
            _ => self.share.into_iter().chain(other.share).max_by(f64::total_cmp),
        };
        RankSpeed {
            flops: self.flops.max(other.flops),
            copy_bytes_per_s: self.copy_bytes_per_s.max(other.copy_bytes_per_s),
            share,
            alone: self.alone || other.alone,
            ..self
        }
    }
}

/// A result that is not what it must be.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct WrongResult {
    /// The rank that has it, or whose contribution is wrong on all.
    pub rank: u32,
    /// Its node.
    pub node: String,
    /// The operation.
    pub collective: Collective,
    /// The type of the elements.
    pub dtype: Dtype,
    /// The size of the whole array in bytes.
    pub bytes: u64,
    /// The expected and the actual value.
    pub text: String,
}

impl fmt::Display for WrongResult {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} of {}, {}: {}", self.collective, self.dtype, format_size(self.bytes), self.text)
    }
}

/// The measurements of a job's ranks.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Collectives {
    /// The number of ranks that took part.
    pub ranks: u32,
    /// The library with which they communicated, and its version.
    pub library: String,
    /// Each operation, type and size.
    pub exchanges: Vec<Exchange>,
    /// Each rank's own device.
    pub speeds: Vec<RankSpeed>,
    /// Wrong results.
    pub wrong: Vec<WrongResult>,
}

impl Collectives {
    /// Returns the highest bus bandwidth of allreduce over all sizes and types, in bytes a second; `None` if none was
    /// measured.
    pub fn best_allreduce(&self) -> Option<f64> {
        let all = self.exchanges.iter().filter(|exchange| exchange.collective == Collective::AllReduce);
        let all = all.filter(|exchange| exchange.dtype == Dtype::Float32);
        all.map(|exchange| exchange.bus_bandwidth * 1e9).max_by(f64::total_cmp)
    }
}

/// Returns the word for a collective or a type, as JSON has it: `allreduce`, `float32`.
pub fn word(of: impl Serialize) -> String {
    serde_json::to_value(of).ok().and_then(|value| value.as_str().map(str::to_owned)).unwrap_or_default()
}
