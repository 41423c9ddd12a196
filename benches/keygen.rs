//! RSA-4096 pairs: hvdctl and `ssh-keygen`, alternating in one process. Prints both medians and their ratio.

use hvdctl::inventory::KeyType;
use hvdctl::keys::files::Kind;
use hvdctl::keys::key_pair::generate;
use std::process::Command;
use std::time::{Duration, Instant};

/// Enough for a median of a random search.
const ROUNDS: usize = 10;

fn timed(work: impl FnOnce()) -> Duration {
    let start = Instant::now();
    work();
    start.elapsed()
}

fn median(mut times: Vec<Duration>) -> f64 {
    times.sort_unstable();
    let middle = times.len() / 2;
    (times[middle - 1] + times[middle]).as_secs_f64() / 2.0
}

#[expect(clippy::print_stdout, reason = "the figures are what this program is for")]
fn main() {
    let dir = tempfile::tempdir().expect("a temporary directory");
    let (mut ours, mut theirs) = (Vec::new(), Vec::new());
    for round in 0..ROUNDS {
        ours.push(timed(|| {
            drop(generate("key", Kind { key_type: KeyType::Rsa, bits: None }, "bench").expect("a pair"))
        }));
        theirs.push(timed(|| {
            let file = dir.path().join(round.to_string());
            let status =
                Command::new("ssh-keygen").args(["-q", "-t", "rsa", "-b", "4096", "-N", "", "-f"]).arg(file).status();
            assert!(status.expect("ssh-keygen starts").success());
        }));
    }
    let (ours, theirs) = (median(ours), median(theirs));
    println!("RSA-4096, median of {ROUNDS}: hvdctl {ours:.2} s, ssh-keygen {theirs:.2} s, ratio {:.2}", ours / theirs);
}
