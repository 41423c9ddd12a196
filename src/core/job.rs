//! A run: its record, its states, and which rank is to blame when it fails.

use crate::core::frames::{Frame, Kind};
use crate::core::inventory::{Controller, Ulimit};
use crate::core::slots::Placement;
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
    /// The name that was given to it, else that of the project, the program or the check.
    pub name: String,
    /// The project's name on the nodes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub project: Option<String>,
    /// How often it is started again after a failure.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub restarts: u32,
    /// Who started it, `user@host`.
    pub operator: String,
    /// When, in seconds since the epoch by the operator's clock.
    pub created: f64,
    /// Who connects the ranks.
    pub controller: Controller,
    /// Which rank runs where; the launcher runs on the first node.
    pub placement: Placement,
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

fn is_zero(number: &u32) -> bool {
    *number == 0
}

/// A try of a run that failed, after which it was started again; `JOBS/ID/tries.json` on the node of the launcher has them all.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Try {
    /// When it was begun, in seconds since the epoch.
    pub started: f64,
    /// When it ended.
    pub ended: f64,
    /// Its ranks: fewer than the first had where nodes had gone.
    pub ranks: u32,
    /// The launcher's exit code.
    pub launcher: Option<i64>,
    /// How its ranks ended.
    pub exits: Vec<Ended>,
    /// Nodes that did not answer at its end.
    pub silent: Vec<String>,
}

/// What the run's keeper wrote down at its end, as `JOBS/ID/result.json` on the node of the launcher.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Ending {
    /// When, in seconds since the epoch by that node's clock.
    pub ended: f64,
    /// The launcher's exit code; none where the end was asked for.
    pub launcher: Option<i64>,
    /// Whether the end was asked for.
    pub stopped: bool,
    /// How many ranks had started their program.
    pub started: u32,
    /// How the ranks ended, as far as their nodes answered.
    pub exits: Vec<Ended>,
    /// Nodes that did not answer at the end.
    pub silent: Vec<String>,
    /// The ranks of the last try, where nodes had gone since the first.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ranks: Option<u32>,
    /// Why hvdctl wrote this in the keeper's place: it was never started, or did not live to do so.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fault: Option<String>,
}

impl Ending {
    /// The state of a run of `ranks` ranks that ended so.
    pub fn state(&self, ranks: u32) -> State {
        let ranks = self.ranks.unwrap_or(ranks);
        let ended_well = self.exits.len() as u32 == ranks && first_failure(&self.exits).is_none();
        match self.launcher {
            _ if self.stopped => State::Stopped,
            _ if self.fault.is_some() && self.started == 0 => State::Failed,
            Some(0) if ended_well => State::Succeeded,
            // what a rank's own end says holds even where nobody saw the launcher's
            _ if self.first_failure().is_some() => State::Failed,
            Some(0) | None => State::Lost,
            Some(_) => State::Failed,
        }
    }

    /// The rank that failed first.
    pub fn first_failure(&self) -> Option<&Ended> {
        first_failure(&self.exits)
    }

    /// The program's exit code: that of the rank that failed first, else the launcher's; 143 where the end was asked for, none
    /// where nobody knows.
    pub fn code(&self, ranks: u32) -> Option<i64> {
        match self.state(ranks) {
            State::Succeeded => Some(0),
            State::Stopped => Some(143),
            _ => self.first_failure().map(|e| i64::from(e.code)).or(self.launcher.filter(|code| *code != 0)),
        }
    }
}

/// The rank that failed first: of those that failed by themselves, else of those that were asked to end. The
/// milliseconds between a failure and the end that it brings on others are less than clocks agree in, so that the
/// supervisor's word for "asked" goes first and the time second.
fn first_failure(ended: &[Ended]) -> Option<&Ended> {
    ended.iter().filter(|e| e.code != 0).min_by(|a, b| a.asked.cmp(&b.asked).then(a.time.total_cmp(&b.time)))
}

/// How one rank ended.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
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
            Kind::Started => {
                // a rank that was started again
                self.ended.retain(|ended| ended.rank != frame.rank);
                self.started += 1;
            }
            Kind::Exited { code, asked } => self.ended.push(Ended {
                rank: frame.rank,
                node: node.into(),
                code: *code,
                time: frame.time - skew,
                asked: *asked,
            }),
            Kind::Stdout(_) | Kind::Stderr(_) | Kind::Broken(_) | Kind::Launcher(_) | Kind::Note(_) => {}
        }
    }

    /// How the ranks ended that have ended.
    pub fn ended(&self) -> &[Ended] {
        &self.ended
    }

    /// How many ranks have started their program.
    pub fn started(&self) -> u32 {
        self.started
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
        let ending = Ending { exits: progress.ended().to_vec(), ..Ending::default() };
        let first = ending.first_failure().unwrap();
        assert_eq!((first.rank, first.code, first.node.as_str()), (1, 7, "b"));
    }

    #[test]
    fn states() {
        let exit = |rank, code, asked| Ended { rank, node: "a".into(), code, time: 1.0, asked };
        let ending = |launcher, exits: &[Ended]| Ending { launcher, exits: exits.to_vec(), ..Ending::default() };
        let well = [exit(0, 0, false), exit(1, 0, false)];
        assert_eq!(ending(Some(0), &well).state(2), State::Succeeded);
        assert_eq!(ending(Some(0), &well[..1]).state(2), State::Lost, "nobody saw the other rank end");
        assert_eq!(ending(Some(1), &well).state(2), State::Failed, "the launcher's own failure");
        assert_eq!(ending(None, &well).state(2), State::Lost, "nobody saw the launcher end");
        assert_eq!(ending(None, &[exit(0, 7, false)]).state(2), State::Failed);
        assert_eq!(ending(Some(0), &[exit(0, 7, false), exit(1, 0, false)]).state(2), State::Failed);
        let fault = Some("hmaster was killed".to_owned());
        assert_eq!(Ending { fault: fault.clone(), ..ending(None, &[]) }.state(2), State::Failed, "it never began");
        assert_eq!(Ending { fault, started: 2, ..ending(None, &[]) }.state(2), State::Lost);
        assert_eq!(Ending { stopped: true, ..ending(None, &[exit(0, 143, true)]) }.state(2), State::Stopped);
    }

    #[test]
    fn the_keepers_record_is_read() {
        let text = r#"{"ended": 5.5, "launcher": 7, "stopped": false, "started": 1, "silent": ["b"],
            "exits": [{"time": 4.5, "rank": 0, "code": 7, "asked": false, "node": "a"}]}"#;
        let ending: Ending = serde_json::from_str(text).unwrap();
        assert_eq!((ending.first_failure().unwrap().code, ending.silent.len(), ending.fault), (7, 1, None));
    }
}
