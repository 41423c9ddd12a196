//! A run: its record, its states, and which rank is to blame when it fails.

use crate::core::frames::{Frame, Kind};
use crate::core::inventory::Ulimit;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// Where a run stands; the words are part of the command line's contract.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum State {
    /// The launcher is up, not every rank has started its program.
    Starting,
    /// Every rank runs, or some still do.
    Running,
    /// Every rank ended with 0.
    Succeeded,
    /// A rank, or the launcher, ended with something else.
    Failed,
    /// Ended on request.
    Stopped,
    /// It ended and nobody saw how.
    Lost,
}

/// What a node must know to run its ranks. It is written to `JOBS/ID/job.json` on every node of the run (mode 600),
/// so that neither the program's words nor its environment pass through a launcher or a shell.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Record {
    /// The run's id: time of its start and a few random letters.
    pub id: String,
    /// The cluster it belongs to.
    pub cluster: String,
    /// The name of the project, or of the check.
    pub name: String,
    /// Who started it, `user@host`.
    pub operator: String,
    /// The program and its arguments, byte for byte.
    pub command: Vec<String>,
    /// The folder it starts in, as seen in the container.
    pub cwd: String,
    /// The number of ranks.
    pub ranks: u32,
    /// This node's interface on the cluster network; the supervisor pins Gloo and NCCL to it.
    pub interface: String,
    /// Seconds between SIGTERM and SIGKILL when the run is to end.
    pub grace: u64,
    /// The inventory's limits by name: a log-in by sshd may have changed those of the container.
    pub ulimits: BTreeMap<String, Ulimit>,
}

/// How one rank ended, or that it did not.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Ended {
    /// The global rank.
    pub rank: u32,
    /// The node it ran on.
    pub node: String,
    /// Exit code, 128 + N for signal N.
    pub code: i32,
    /// Seconds since the epoch, by the operator's clock.
    pub time: f64,
    /// Whether it had been asked to end.
    pub asked: bool,
}

/// Follows the frames of all nodes and knows how far the run is.
#[derive(Debug, Default)]
pub struct Progress {
    started: u32,
    ended: Vec<Ended>,
}

impl Progress {
    /// Takes a frame from `node`'s log; `skew` is how many seconds that node's clock is ahead of the operator's.
    pub fn see(&mut self, node: &str, frame: &Frame, skew: f64) {
        match &frame.kind {
            Kind::Started => self.started += 1,
            Kind::Exited { code, asked } => self.ended.push(Ended {
                rank: frame.rank,
                node: node.into(),
                code: *code,
                time: frame.time - skew,
                asked: *asked,
            }),
            Kind::Stdout(_) | Kind::Stderr(_) | Kind::Broken(_) => {}
        }
    }

    /// The rank that failed first: of those that failed by themselves, else of those that were asked to end. The
    /// milliseconds between a failure and the end that it brings on others are less than clocks agree in, so that the
    /// supervisor's word for "asked" goes first and the time second.
    pub fn first_failure(&self) -> Option<&Ended> {
        self.ended.iter().filter(|e| e.code != 0).min_by(|a, b| a.asked.cmp(&b.asked).then(a.time.total_cmp(&b.time)))
    }

    /// How many ranks have started their program.
    pub fn started(&self) -> u32 {
        self.started
    }

    /// The state of a run of `ranks` ranks, given how the launcher ended (`None`: it runs) and whether an end was
    /// asked for.
    pub fn state(&self, ranks: u32, launcher: Option<i64>, stopped: bool) -> State {
        match launcher {
            None if self.started < ranks => State::Starting,
            None => State::Running,
            Some(_) if stopped => State::Stopped,
            Some(0) if self.first_failure().is_none() && self.ended.len() as u32 == ranks => State::Succeeded,
            Some(0) if self.first_failure().is_none() => State::Lost,
            Some(_) => State::Failed,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn frame(rank: u32, time: f64, kind: Kind) -> Frame {
        Frame { time, rank, kind }
    }

    #[test]
    fn the_first_failure_is_found_across_skewed_clocks() {
        let mut progress = Progress::default();
        let exited = |code, asked| Kind::Exited { code, asked };
        // by the clocks this one came first, but it had been asked to
        progress.see("a", &frame(3, 99.0, exited(143, true)), 0.0);
        progress.see("a", &frame(0, 100.0, exited(1, false)), 0.0);
        // node b's clock is 60 s ahead: its rank failed at 99.5 of ours
        progress.see("b", &frame(1, 159.5, exited(7, false)), 60.0);
        let first = progress.first_failure().unwrap();
        assert_eq!((first.rank, first.code, first.node.as_str()), (1, 7, "b"));
    }

    #[test]
    fn states() {
        let mut progress = Progress::default();
        assert_eq!(progress.state(1, None, false), State::Starting);
        assert_eq!(progress.state(1, Some(0), false), State::Lost, "no rank was ever seen to end");
        progress.see("a", &frame(0, 1.0, Kind::Started), 0.0);
        assert_eq!(progress.state(1, None, false), State::Running);
        progress.see("a", &frame(0, 2.0, Kind::Exited { code: 0, asked: false }), 0.0);
        assert_eq!(progress.state(1, Some(0), false), State::Succeeded);
        assert_eq!(progress.state(1, Some(1), false), State::Failed);
        assert_eq!(progress.state(1, Some(1), true), State::Stopped);
    }
}
