//! Collective operations: sizes, the bandwidths that nccl-tests defines, what a ring can reach, and what that means for
//! a model.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::fmt;
use std::time::Duration;

/// The share of a step's computing with which an exchange can overlap: the backward pass, which computes about twice as
/// much as the forward pass before it.
const BACKWARD: f64 = 2.0 / 3.0;

/// The accumulations that an estimate proposes.
const ACCUMULATIONS: [u32; 7] = [2, 4, 8, 16, 32, 64, 128];

/// An operation in which all ranks take part.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Collective {
    /// Every rank gets the sum of the arrays of all.
    AllReduce,
    /// Every rank gets the arrays of all, one after the other.
    AllGather,
    /// Every rank gets its part of the sum.
    ReduceScatter,
    /// Every rank gets the array of one.
    Broadcast,
    /// Every rank gets a part of the array of each.
    AllToAll,
}

impl fmt::Display for Collective {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Collective::AllReduce => "allreduce",
            Collective::AllGather => "allgather",
            Collective::ReduceScatter => "reduce-scatter",
            Collective::Broadcast => "broadcast",
            Collective::AllToAll => "all-to-all",
        })
    }
}

impl Collective {
    /// Returns the factor from algorithm to bus bandwidth: the bytes that cross each rank's link for each byte of the
    /// array, at best. It is 0 for one rank, which exchanges nothing.
    pub fn bus_factor(self, ranks: usize) -> f64 {
        let n = ranks.max(1) as f64;
        match self {
            Collective::AllReduce => 2.0 * (n - 1.0) / n,
            Collective::AllGather | Collective::ReduceScatter | Collective::AllToAll => (n - 1.0) / n,
            Collective::Broadcast => f64::from(u8::from(ranks > 1)),
        }
    }

    /// Returns the bandwidths of one operation, or `None` if it took no measurable time.
    pub fn bandwidth(self, bytes: u64, time: Duration, ranks: usize) -> Option<Bandwidth> {
        let algorithm = bytes as f64 / time.as_secs_f64() / 1e9;
        algorithm.is_finite().then(|| Bandwidth { algorithm, bus: algorithm * self.bus_factor(ranks) })
    }

    /// Returns the bytes that each rank sends, and receives, in a ring.
    pub fn ring_bytes(self, bytes: u64, ranks: usize) -> f64 {
        bytes as f64 * self.bus_factor(ranks)
    }

    /// Returns the least time of the operation in a ring whose slowest link has this bandwidth in bytes a second.
    /// `None` if nothing passes the link.
    pub fn ring_limit(self, bytes: u64, ranks: usize, link: f64) -> Option<Duration> {
        Duration::try_from_secs_f64(self.ring_bytes(bytes, ranks) / link).ok()
    }
}

/// Bandwidths in 10⁹ bytes a second. The array's size is that of the whole one: for allgather what every rank gets, for
/// reduce-scatter what every rank has before.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Bandwidth {
    /// Size by time.
    pub algorithm: f64,
    /// A bandwidth that is equal for any number of ranks if their links are used equally well.
    pub bus: f64,
}

/// Parses a size in bytes: a number with K, M or G, which are powers of 1024 as in nccl-tests, and an optional B or iB.
pub fn parse_size(text: &str) -> Option<u64> {
    let upper = text.trim().to_ascii_uppercase();
    let number = upper.strip_suffix("IB").filter(|rest| rest.ends_with(['K', 'M', 'G'])).or(upper.strip_suffix('B'));
    let (value, shift) = split_unit(number.unwrap_or(&upper), &[('K', 10), ('M', 20), ('G', 30)]);
    let bytes: u64 = value.parse().ok()?;
    bytes.checked_mul(1 << shift.unwrap_or(0)).filter(|bytes| *bytes > 0)
}

/// Formats a size so that [`parse_size`] returns the same: `1K`, `256M`, `1000`.
pub fn format_size(bytes: u64) -> String {
    let units = [(30, "G"), (20, "M"), (10, "K")];
    let whole = units.into_iter().find(|(shift, _)| bytes > 0 && bytes.trailing_zeros() >= *shift);
    whole.map_or_else(|| bytes.to_string(), |(shift, unit)| format!("{}{unit}", bytes >> shift))
}

/// Parses a number of parameters: `124M`, `1.5B`, `70000`. K, M, B and T are powers of 1000.
pub fn parse_parameters(text: &str) -> Option<u64> {
    let upper = text.trim().to_ascii_uppercase();
    let units = [('K', 3), ('M', 6), ('B', 9), ('G', 9), ('T', 12)];
    let (value, power) = split_unit(&upper, &units);
    let is_plain = value.bytes().all(|byte| byte.is_ascii_digit() || byte == b'.');
    let count: f64 = value.parse().ok().filter(|_| is_plain)?;
    let parameters = (count * 10_f64.powi(power.unwrap_or(0))).round();
    (1.0..1e18).contains(&parameters).then_some(parameters as u64)
}

/// Separates a number from its unit.
fn split_unit<'a, T: Copy>(text: &'a str, units: &[(char, T)]) -> (&'a str, Option<T>) {
    let unit = units.iter().find_map(|(unit, value)| text.strip_suffix(*unit).map(|number| (number, Some(*value))));
    unit.unwrap_or((text, None))
}

/// The type of an element.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Dtype {
    /// Four bytes.
    Float32,
    /// Two bytes, IEEE 754.
    Float16,
    /// Two bytes with the exponent of a float32.
    Bfloat16,
}

impl fmt::Display for Dtype {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Dtype::Float32 => "float32",
            Dtype::Float16 => "float16",
            Dtype::Bfloat16 => "bfloat16",
        })
    }
}

impl Dtype {
    /// Parses a name: `fp16`, `float16`, `half`, …
    pub fn parse(text: &str) -> Option<Dtype> {
        match text.to_ascii_lowercase().as_str() {
            "fp32" | "float32" | "float" => Some(Dtype::Float32),
            "fp16" | "float16" | "half" => Some(Dtype::Float16),
            "bf16" | "bfloat16" => Some(Dtype::Bfloat16),
            _ => None,
        }
    }

    /// Returns the size of an element in bytes.
    pub fn bytes(self) -> u64 {
        match self {
            Dtype::Float32 => 4,
            Dtype::Float16 | Dtype::Bfloat16 => 2,
        }
    }
}

/// The time that a step of a model takes on this cluster.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Estimate {
    /// The nodes.
    pub nodes: usize,
    /// The time in which the gradients of one step are exchanged.
    pub wire: Duration,
    /// The time in which a node computes one step, if known.
    pub computing: Option<Duration>,
}

/// An [`Estimate`] for a model.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct ModelEstimate {
    /// The number of parameters.
    pub params: u64,
    /// The type of the gradients.
    pub dtype: Dtype,
    /// The time that a step takes.
    pub estimate: Estimate,
}

impl fmt::Display for ModelEstimate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} parameters in {}: {}", self.params, self.dtype, self.estimate.sentence())
    }
}

impl Estimate {
    /// Estimates the exchange of a model's gradients from the measured bus bandwidth of allreduce, in 10⁹ bytes a
    /// second. `None` if that is 0.
    pub fn new(
        nodes: usize,
        ranks: usize,
        gradient_bytes: u64,
        bus: f64,
        computing: Option<Duration>,
    ) -> Option<Estimate> {
        let wire = Collective::AllReduce.ring_limit(gradient_bytes, ranks, bus * 1e9)?;
        Some(Estimate { nodes, wire, computing })
    }

    /// Returns how many times as fast as one node the cluster is if it exchanges gradients after this many steps: with
    /// no overlap of exchange and computing, and with the most that is possible.
    pub fn speedup(&self, accumulation: u32) -> Option<(f64, f64)> {
        let step = self.computing.map(|time| time.as_secs_f64()).filter(|step| *step > 0.0)?;
        let (alone, wire) = (step * f64::from(accumulation.max(1)), self.wire.as_secs_f64());
        let of = |exposed: f64| self.nodes as f64 * alone / (alone + exposed);
        Some((of(wire), of((wire - BACKWARD * step).max(0.0))))
    }

    /// Returns the least proposed accumulation with which the cluster is worth at least this share of its nodes,
    /// without overlap.
    pub fn accumulation_for(&self, share: f64) -> Option<u32> {
        let enough = |of: &u32| self.speedup(*of).is_some_and(|(speedup, _)| speedup >= share * self.nodes as f64);
        ACCUMULATIONS.into_iter().find(enough)
    }

    /// Returns what the estimate means, as one sentence.
    pub fn sentence(&self) -> String {
        let wire = format!("{} a step on the wire", seconds(self.wire));
        let Some((computing, (speedup, overlapped))) = self.computing.zip(self.speedup(1)) else { return wire };
        let times = |(low, high): (f64, f64)| match (format!("{low:.1}"), format!("{high:.1}")) {
            (low, high) if low == high => format!("{low} × as fast"),
            (low, high) => format!("{low} to {high} × as fast"),
        };
        let n = self.nodes;
        let outcome = match (speedup, overlapped) {
            _ if n < 2 => return format!("{wire}, {} of computing", seconds(computing)),
            (..1.0, ..1.0) => format!("{n} nodes are slower than 1"),
            both => format!("{n} nodes are {} as 1", times(both)),
        };
        let better = self.accumulation_for(0.6).filter(|_| speedup < 0.6 * n as f64);
        let advice = better.and_then(|of| Some((of, self.speedup(of)?))).map_or_else(String::new, |(of, speedup)| {
            format!("; with gradient accumulation of {of} they are {}", times(speedup))
        });
        format!("{wire}, {} of computing: {outcome}{advice}", seconds(computing))
    }
}

/// A time for people: `4.3 s`, `120 ms`, `85 µs`.
fn seconds(time: Duration) -> String {
    match time.as_secs_f64() {
        s @ 0.95.. => format!("{s:.1} s"),
        s @ 0.00095.. => format!("{:.0} ms", s * 1e3),
        s => format!("{:.0} µs", s * 1e6),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn bandwidths_are_those_of_nccl_tests() {
        use Collective::*;
        // doc/PERFORMANCE.md of nccl-tests: 1 GB in 0.1 s by 4 ranks
        for (collective, bus) in
            [(AllReduce, 15.0), (AllGather, 7.5), (ReduceScatter, 7.5), (AllToAll, 7.5), (Broadcast, 10.0)]
        {
            let bandwidth = collective.bandwidth(1_000_000_000, Duration::from_millis(100), 4).unwrap();
            assert!((bandwidth.algorithm - 10.0).abs() < 1e-9, "{collective:?}: {bandwidth:?}");
            assert!((bandwidth.bus - bus).abs() < 1e-9, "{collective:?}: {bandwidth:?}");
            // at the ring's limit the bus bandwidth is that of the link
            let limit = collective.ring_limit(1 << 30, 4, 2.5e9).unwrap();
            let reached = collective.bandwidth(1 << 30, limit, 4).unwrap().bus;
            assert!((reached - 2.5).abs() < 1e-6, "{collective:?}: {reached}");
            assert_eq!(collective.bandwidth(1024, Duration::from_secs(1), 1).unwrap().bus, 0.0);
            assert_eq!(collective.bandwidth(1024, Duration::ZERO, 4), None);
            assert_eq!(collective.ring_limit(1024, 4, 0.0), None);
        }
        assert_eq!(AllReduce.ring_bytes(1000, 2), 1000.0);
        assert_eq!(AllReduce.ring_bytes(1000, 8), 1750.0);
    }

    #[test]
    fn sizes_and_parameters() {
        let sizes = ["1K", "256M", "1GiB", "8", "4 kb", "64KB", "1000b"].map(|text| parse_size(&text.replace(' ', "")));
        let expected = [1 << 10, 256 << 20, 1 << 30, 8, 4 << 10, 64 << 10, 1000];
        assert_eq!(sizes, expected.map(Some));
        for text in ["", "0", "K", "-1K", "1.5K", "1T", "1 K M", "iB", "1iB", "99999999999G", "+1K x"] {
            assert_eq!(parse_size(text), None, "{text}");
        }
        assert_eq!([1 << 10, 256 << 20, 3 << 30, 1000, 1536].map(format_size), ["1K", "256M", "3G", "1000", "1536"]);
        let counts = ["124M", "1.5B", "70b", "7", "350k", "1T", " 2.5M "].map(parse_parameters);
        let millions = [124_000_000, 1_500_000_000, 70_000_000_000, 7, 350_000, 1_000_000_000_000, 2_500_000];
        assert_eq!(counts, millions.map(Some));
        for text in ["", "M", "-1M", "1e9", "inf", "nan", "0", "12X", "1.2.3M", "9999999999T"] {
            assert_eq!(parse_parameters(text), None, "{text}");
        }
        let dtypes = ["fp16", "FLOAT16", "bf16", "float32", "int8"].map(Dtype::parse);
        let expected = [Some(Dtype::Float16), Some(Dtype::Float16), Some(Dtype::Bfloat16), Some(Dtype::Float32), None];
        assert_eq!(dtypes, expected);
        assert_eq!([Dtype::Float16, Dtype::Bfloat16, Dtype::Float32].map(Dtype::bytes), [2, 2, 4]);
    }

    proptest! {
        #[test]
        fn a_size_is_read_as_it_is_written(bytes in 1_u64..1 << 50) {
            prop_assert_eq!(parse_size(&format_size(bytes)), Some(bytes));
        }
    }

    #[test]
    fn what_a_step_costs() {
        let sentence = |nodes, ranks, bytes, bus, step: f64| {
            let step = (step > 0.0).then(|| Duration::from_secs_f64(step));
            Estimate::new(nodes, ranks, bytes, bus, step).unwrap().sentence()
        };
        let gradients = parse_parameters("124M").unwrap() * Dtype::Float16.bytes();
        // 248 MB over two nodes at 0.0577 GB/s
        assert_eq!(
            sentence(2, 2, gradients, 0.0577, 1.1),
            "4.3 s a step on the wire, 1.1 s of computing: 2 nodes are slower than 1; \
             with gradient accumulation of 8 they are 1.3 to 1.4 × as fast"
        );
        assert_eq!(
            sentence(2, 2, gradients, 10.0, 1.1),
            "25 ms a step on the wire, 1.1 s of computing: 2 nodes are 2.0 × as fast as 1"
        );
        assert_eq!(
            sentence(8, 8, gradients, 1.0, 0.5),
            "434 ms a step on the wire, 500 ms of computing: 8 nodes are 4.3 to 6.7 × as fast as 1; \
             with gradient accumulation of 2 they are 5.6 to 7.3 × as fast"
        );
        // even the longest accumulation is of no use
        assert_eq!(
            sentence(2, 2, gradients, 0.0001, 1.1),
            "2480.0 s a step on the wire, 1.1 s of computing: 2 nodes are slower than 1"
        );
        assert_eq!(sentence(2, 2, gradients, 0.0577, 0.0), "4.3 s a step on the wire");
        assert_eq!(sentence(1, 1, gradients, 1.0, 1.1), "0 µs a step on the wire, 1.1 s of computing");
        assert_eq!(Estimate::new(2, 2, gradients, 0.0, None), None);
    }

    #[test]
    fn more_accumulation_is_never_slower_and_never_beats_the_number_of_nodes() {
        let estimate = Estimate::new(4, 8, 1 << 30, 0.2, Some(Duration::from_millis(300))).unwrap();
        let speedups: Vec<_> = [1, 2, 4, 8, 1000].iter().map(|of| estimate.speedup(*of).unwrap()).collect();
        assert!(speedups.is_sorted_by(|a, b| a.0 < b.0 && a.1 <= b.1), "{speedups:?}");
        assert!(speedups.iter().all(|(low, high)| low <= high && *high <= 4.0), "{speedups:?}");
        let accumulation = estimate.accumulation_for(0.8).unwrap();
        assert!(
            estimate.speedup(accumulation).unwrap().0 >= 3.2 && estimate.speedup(accumulation / 2).unwrap().0 < 3.2
        );
    }
}
