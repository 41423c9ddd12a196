//! The value of a node for jobs: its kind and its grade.

use crate::text::units::count;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::fmt;

/// A node's grade, from the best to the worst. A node without any evidence is new, which is not a bad grade.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema)]
pub enum Grade {
    /// Nothing is wrong, and it is as fast as the best of its kind.
    A,
    /// Slightly slower, or with small faults.
    B,
    /// Usable.
    C,
    /// Slow or unreliable.
    D,
    /// It fails checks or loses jobs.
    F,
    /// Nothing is recorded of it.
    #[serde(rename = "new")]
    New,
}

impl Grade {
    /// Returns the place of a grade when nodes are chosen; the lowest comes first. A new node comes after one of grade
    /// C and before one of grade D: most nodes are healthy, but a node of grade D was seen to be slow or unreliable.
    pub fn preference(self) -> u8 {
        match self {
            Grade::A => 0,
            Grade::B => 1,
            Grade::C => 2,
            Grade::New => 3,
            Grade::D => 4,
            Grade::F => 5,
        }
    }
}

impl fmt::Display for Grade {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Grade::A => "A",
            Grade::B => "B",
            Grade::C => "C",
            Grade::D => "D",
            Grade::F => "F",
            Grade::New => "new",
        })
    }
}

/// Machines that are alike. One job should run on nodes of one kind: the slowest rank sets its speed.
#[derive(Debug, Clone, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema)]
pub struct NodeKind {
    /// The product name of its GPUs; null without GPUs.
    pub gpu: Option<String>,
    /// The number of its GPUs.
    pub gpus: u32,
    /// The memory of each GPU in MiB, if it is known.
    pub gpu_memory_mib: Option<u64>,
    /// The first number of the driver's version, if it is known.
    pub driver: Option<u32>,
    /// The number of processors of its system.
    pub cores: u32,
}

impl fmt::Display for NodeKind {
    /// Writes `8 x NVIDIA H200 141 GiB, driver 580, 192 cores`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(gpu) = &self.gpu {
            write!(f, "{} x {gpu}", self.gpus)?;
            if let Some(memory) = self.gpu_memory_mib {
                write!(f, " {} GiB", memory.div_ceil(1024))?;
            }
            if let Some(driver) = self.driver {
                write!(f, ", driver {driver}")?;
            }
            f.write_str(", ")?;
        }
        f.write_str(&count(self.cores as usize, "core"))
    }
}

/// A node with its kind and its grade.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct NodeGrade {
    /// The node's name.
    pub node: String,
    /// Its kind.
    pub kind: NodeKind,
    /// Its grade.
    pub grade: Grade,
    /// The weighted score behind the grade, from 0 to 1; null if it is new.
    pub score: Option<f64>,
    /// The reasons for the grade, the heaviest first; empty if nothing is wrong.
    pub reasons: Vec<String>,
    /// The number of recorded checks, benchmarks and jobs on which the grade rests.
    pub evidence: u32,
    /// Its measured speed relative to the fastest node that was graded with it, from 0 to 1; null if it was never
    /// measured.
    pub speed: Option<f64>,
}
