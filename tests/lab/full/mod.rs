//! Tests that only `scripts/test --full` runs: the longest cuts of power and network, TensorFlow, JAX, Accelerate, the
//! accuracy of elastic jobs, every behaviour of a job under every runtime, nodes of other distributions, with other
//! settings and behind routers.

mod conformance;
mod cuts;
mod elastic;
mod frameworks;
mod guides;
mod keras;
mod machines;
mod networks;
mod notebook;
mod sites;
mod spark;
mod strangers;
mod unequal;
mod variants;
mod wheel;

use crate::process::{Done, run, s};
use crate::state::{Lab, no_job_is_left};
use std::path::Path;

/// Trains an example, and checks the accuracy in the last line with this prefix. Returns what it printed.
#[track_caller]
fn learns(lab: &Lab, example: &str, ranks: &str, line: &str) -> Done {
    let example = Path::new(env!("CARGO_MANIFEST_DIR")).join("examples").join(example);
    let done = run(lab.command(&["train", example.to_str().unwrap(), "-np", ranks]), s(400)).code(0);
    let start = format!("[0 node1] {line} ");
    let last = done.out.lines().rfind(|l| l.starts_with(&start)).unwrap_or_else(|| panic!("{}", done.out));
    let accuracy: f64 = last[start.len()..].split_whitespace().next().unwrap().parse().unwrap();
    assert!(accuracy >= 0.95, "{last}");
    no_job_is_left();
    done
}
