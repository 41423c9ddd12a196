//! The usage of ranks, nodes and GPUs while a job runs.

use super::role::RankOfRole;
use schemars::JsonSchema;
use serde::Serialize;

/// The usage of a rank's program and all processes that it started.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, JsonSchema)]
pub struct RankUsage {
    /// Processor time, in percent of one core.
    pub processor_percent: f64,
    /// Memory in MiB; what processes share is counted once.
    pub memory_mib: f64,
    /// KiB a second read from disks.
    pub read_kib_s: f64,
    /// KiB a second written to disks.
    pub written_kib_s: f64,
}

/// The usage of all processes on a node together.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, JsonSchema)]
pub struct NodeUsage {
    /// Processor time, in percent of all cores.
    pub processor_percent: f64,
    /// Memory in MiB.
    pub memory_mib: f64,
    /// KiB a second received by the interface on the cluster network and by InfiniBand adapters.
    pub received_kib_s: f64,
    /// KiB a second sent by them.
    pub sent_kib_s: f64,
    /// KiB a second read from disks.
    pub read_kib_s: f64,
    /// KiB a second written to disks.
    pub written_kib_s: f64,
}

/// The usage of a GPU; a value that it does not report is `None`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, JsonSchema)]
pub struct GpuUsage {
    /// The share of the time in which a kernel ran, in percent.
    pub use_percent: Option<f64>,
    /// Memory in MiB.
    pub memory_mib: Option<f64>,
    /// Power in watts.
    pub power_w: Option<f64>,
    /// Temperature in degrees Celsius.
    pub temperature_c: Option<f64>,
    /// Clock of the multiprocessors in MHz.
    pub sm_mhz: Option<f64>,
    /// Clock of the memory in MHz.
    pub memory_mhz: Option<f64>,
}

/// A sample, as it comes from a node.
#[derive(Debug, Clone, PartialEq)]
pub struct UsageReport {
    /// The time at which it was taken, in seconds since the epoch by the node's clock.
    pub time: f64,
    /// The node.
    pub node: String,
    /// The role of the rank, or of the rank that uses the GPU, in a job with roles.
    pub role: Option<RankOfRole>,
    /// The sampled values.
    pub what: Sampled,
}

/// The subject of a sample, with its values.
#[derive(Debug, Clone, PartialEq)]
pub enum Sampled {
    /// A rank.
    Rank(u32, RankUsage),
    /// The node.
    Node(NodeUsage),
    /// A GPU.
    Gpu {
        /// Its index in the container.
        index: u32,
        /// Its UUID, if that is known.
        uuid: Option<String>,
        /// The rank that uses it, if that is known.
        rank: Option<u32>,
        /// Its usage.
        usage: GpuUsage,
    },
}

impl Sampled {
    /// Returns the rank, if it is one or is used by one.
    pub fn rank(&self) -> Option<u32> {
        match self {
            Sampled::Rank(rank, _) => Some(*rank),
            Sampled::Node(_) => None,
            Sampled::Gpu { rank, .. } => *rank,
        }
    }
}
