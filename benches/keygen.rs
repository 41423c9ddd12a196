//! RSA-4096 pairs: hvdctl and `ssh-keygen`, alternating in one process. Prints both medians and their ratio.

use anyhow::{Context as _, Result, ensure};
use hvdctl::inventory::KeyType;
use hvdctl::keys::files::KeyKind;
use hvdctl::keys::key_pair::generate;
use std::process::Command;
use std::time::{Duration, Instant};

/// Enough for a median of a random search.
const ROUNDS: usize = 10;

fn timed(work: impl FnOnce() -> Result<()>) -> Result<Duration> {
    let start = Instant::now();
    work()?;
    Ok(start.elapsed())
}

fn median(mut times: Vec<Duration>) -> f64 {
    times.sort_unstable();
    let middle = times.len() / 2;
    (times[middle - 1] + times[middle]).as_secs_f64() / 2.0
}

#[expect(clippy::print_stdout, reason = "the figures are what this program is for")]
fn main() -> Result<()> {
    let dir = tempfile::tempdir()?;
    let (mut ours, mut theirs) = (Vec::new(), Vec::new());
    for round in 0..ROUNDS {
        ours.push(timed(|| {
            generate("key", KeyKind { key_type: KeyType::Rsa, bits: None }, "bench")?;
            Ok(())
        })?);
        theirs.push(timed(|| {
            let file = dir.path().join(round.to_string());
            let status =
                Command::new("ssh-keygen").args(["-q", "-t", "rsa", "-b", "4096", "-N", "", "-f"]).arg(file).status();
            ensure!(status.context("cannot run ssh-keygen")?.success(), "ssh-keygen failed");
            Ok(())
        })?);
    }
    let (ours, theirs) = (median(ours), median(theirs));
    println!("RSA-4096, median of {ROUNDS}: hvdctl {ours:.2} s, ssh-keygen {theirs:.2} s, ratio {:.2}", ours / theirs);
    Ok(())
}
