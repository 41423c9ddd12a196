//! Arguments of `bench`.

use super::Waiting;
use super::run::{Launching, ranks};
use crate::model::collective::{Dtype, parse_parameters, parse_size};
use clap::{Args, ValueEnum, ValueHint};
use std::path::PathBuf;
use std::time::Duration;

/// Options of `bench`.
#[derive(Debug, Args)]
#[command(after_help = BENCH)]
pub struct Bench {
    /// Measure for a shorter time
    #[arg(long)]
    pub quick: bool,
    /// Measure only the network, or only collectives [default: both]
    #[arg(long, value_name = "PART")]
    pub only: Option<BenchPart>,
    /// Print one comma-separated line for each transfer instead of the tables
    #[arg(long, conflicts_with = "json")]
    pub csv: bool,
    /// Write plots of what was measured to this file
    #[arg(long, value_name = "FILE.svg", value_hint = ValueHint::FilePath)]
    pub plot: Option<PathBuf>,
    /// Compare with the output of an earlier `hvdctl bench --json`, and fail if something is slower
    #[arg(long, value_name = "FILE.json", value_hint = ValueHint::FilePath)]
    pub baseline: Option<PathBuf>,
    /// Forget the bandwidths of earlier benchmarks that the nodes keep, after a change of the network
    #[arg(long)]
    pub forget: bool,
    /// Number of ranks for the collectives, also written -np N [default: one on every slot]
    #[arg(long = "np", value_name = "N", allow_negative_numbers = true, value_parser = ranks)]
    pub np: Option<u32>,
    /// Launch options
    #[command(flatten)]
    pub launching: Launching,
    /// Sizes of the arrays, e.g. 1K,1M,64M; all are measured [default: 1K to 256M, as time allows]
    #[arg(long, value_name = "SIZE,...", value_delimiter = ',', value_parser = size)]
    pub sizes: Vec<u64>,
    /// Estimate the step of a model with this many parameters, e.g. 124M or 1.5B
    #[arg(long, value_name = "COUNT", value_parser = parameters)]
    pub params: Option<u64>,
    /// Time that one node takes to compute a step of that model, e.g. 1.1s or 250ms
    #[arg(long, value_name = "SPAN", value_parser = step, requires = "params")]
    pub step: Option<Duration>,
    /// Type of that model's gradients: fp32, fp16 or bf16
    #[arg(long, value_name = "TYPE", value_parser = dtype, default_value = "fp32", requires = "params")]
    pub dtype: Dtype,
    /// Time limit for the job that measures collectives, in seconds
    #[arg(long, value_name = "S", default_value_t = 120, value_parser = clap::value_parser!(u64).range(1..=31_536_000))]
    pub timeout: u64,
    /// Wait for jobs and locks
    #[command(flatten)]
    pub waiting: Waiting,
}

/// A part of `bench`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum BenchPart {
    /// The network between the workers of every pair of nodes
    Network,
    /// Collectives of the ranks of a job, and the speed of their devices
    Collectives,
}

const BENCH: &str = "\
Measures the network between the workers of every pair in both directions, pairs of different nodes at the same time: \
TCP bandwidth with one and four connections, round trips, lost packets and the path's MTU. Then ranks of a short job \
measure their own devices and collectives, and check every result. Nothing is installed, and nodes with a running job \
are refused. The last line names what is slow or wrong.

Examples:
  hvdctl bench --quick
  hvdctl bench --only collectives --sizes 1M,64M
  hvdctl bench --params 124M --step 1.1s --dtype fp16

Exit codes: 0 nothing is slow or wrong; 1 something is, or the measurement failed; 2 wrong usage, such as fewer than \
two nodes or ranks; 4 nodes unreachable; 5 a job or another command uses a node.";

impl Bench {
    /// Returns whether it measures this part.
    pub fn measures(&self, part: BenchPart) -> bool {
        self.only.is_none_or(|only| only == part)
    }
}

fn size(text: &str) -> Result<u64, String> {
    let bytes = parse_size(text).ok_or("a size in bytes, such as 1K, 64M or 1G")?;
    if (LEAST..=MOST).contains(&bytes) { Ok(bytes) } else { Err("a size from 1K to 4G".to_owned()) }
}

/// The smallest and the largest array.
const LEAST: u64 = 1 << 10;
const MOST: u64 = 4 << 30;

fn parameters(text: &str) -> Result<u64, String> {
    parse_parameters(text).ok_or_else(|| "a number of parameters, such as 350K, 124M or 1.5B".to_owned())
}

fn step(text: &str) -> Result<Duration, String> {
    let step = humantime::parse_duration(text).map_err(|error| error.to_string())?;
    if step.is_zero() { Err("a time above zero".to_owned()) } else { Ok(step) }
}

fn dtype(text: &str) -> Result<Dtype, String> {
    Dtype::parse(text).ok_or_else(|| "fp32, fp16 or bf16".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_parameters_steps_and_types() {
        assert_eq!(["1K", "4g", "1000"].map(|text| size(text).ok()), [Some(1 << 10), Some(4 << 30), None]);
        assert!(size("0.5M").is_err() && size("5G").is_err() && parameters("124X").is_err() && dtype("int8").is_err());
        // a step of 1.1 s is written as one
        assert_eq!(
            ["1.1s", "250ms", "1s 100ms"].map(|text| step(text).map(|step| step.as_millis()).ok()),
            [Some(1100), Some(250), Some(1100)]
        );
        assert!(step("0s").is_err() && step("1.1").is_err());
    }
}
