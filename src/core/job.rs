//! A run: its record, its states, and which rank is to blame when it fails.

use crate::core::facts::Facts;
use crate::core::frames::{Frame, Idle, Kind};
use crate::core::hostset;
use crate::core::inventory::{Controller, Ulimit};
use crate::core::slots::Placement;
use crate::core::word::Word;
use serde::{Deserialize, Deserializer, Serialize};
use std::collections::BTreeMap;
use std::fmt;

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

/// A run that was begun this many seconds ago and has no launcher yet is taken to be on its way.
pub const SETTING_OUT: f64 = 120.0;

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
    pub command: Vec<Word>,
    /// The folder it starts in, as seen in the container.
    pub cwd: String,
    /// The number of ranks.
    pub ranks: u32,
    /// The port of its workers' sshd.
    #[serde(default)]
    pub port: Option<u16>,
    /// This node's interface on the cluster network; the supervisor pins Gloo and NCCL to it.
    pub interface: String,
    /// Seconds between SIGTERM and SIGKILL when the run is to end.
    pub grace: u64,
    /// Seconds after which the supervisor ends a program that is stopped and silent; 0: never.
    #[serde(default)]
    pub stall: u64,
    /// Seconds beyond that after which a rank that makes no progress ends the run.
    #[serde(default = "idle_margin")]
    pub idle_margin: u64,
    /// Bytes that the log may take on each node; the oldest lines go first.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub log_max: Option<u64>,
    /// The inventory's limits by name: a log-in by sshd may have changed those of the container.
    pub ulimits: BTreeMap<String, Ulimit>,
}

/// What held before records said it.
fn idle_margin() -> u64 {
    30
}

impl Record {
    /// Reads a record; none of one that a full disk cut off.
    pub fn parse(text: &str) -> Option<Record> {
        serde_json::from_str(text).ok()
    }
}

/// The records of a node's open runs, as far as they can be read.
pub fn open_records(facts: &Facts) -> impl Iterator<Item = Record> {
    facts.open_records.iter().filter_map(|text| Record::parse(text))
}

/// Whether a run was begun so short a time ago that its launcher may not be up yet; of one whose record cannot be read nobody knows.
pub fn may_be_setting_out(facts: &Facts, run: &str) -> bool {
    let record = open_records(facts).find(|record| record.id == run);
    let begun = record.zip(facts.clock).map(|(record, clock)| clock.high - record.created);
    begun.is_none_or(|age| age < SETTING_OUT)
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
    /// The exit code of the launcher, or of the rank whose failure ended it.
    pub launcher: Option<i64>,
    /// How its ranks ended.
    pub exits: Vec<Ended>,
    /// Nodes that did not answer at its end.
    pub silent: Vec<String>,
    /// What else than a rank ended it, as [`Ending::fault`].
    #[serde(default)]
    pub fault: Option<String>,
}

/// What the run's keeper wrote down at its end, as `JOBS/ID/result.json` on the node of the launcher.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Ending {
    /// When, in seconds since the epoch by that node's clock.
    pub ended: f64,
    /// The exit code of the launcher, or of the rank whose failure ended it; none where the end was asked for.
    pub launcher: Option<i64>,
    /// Whether the end was asked for.
    pub stopped: bool,
    /// How many ranks had started their program.
    pub started: u32,
    /// How the ranks ended, as far as their nodes answered.
    pub exits: Vec<Ended>,
    /// Nodes that did not answer at the end.
    pub silent: Vec<String>,
    /// What was heard of them in place of an answer.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub silence: BTreeMap<String, String>,
    /// Ranks that were said to hang.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub hung: Vec<Hung>,
    /// Output that a full disk lost.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub lost: Vec<Lost>,
    /// The ranks of the last try, where nodes had gone since the first.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ranks: Option<u32>,
    /// What else than a rank ended it: not all of them started in time, the engine was shut down; or why hvdctl wrote this in the
    /// keeper's place, which was never started, or did not live to do so.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fault: Option<String>,
}

impl Ending {
    /// The state of a run of `ranks` ranks that ended so.
    pub fn state(&self, ranks: u32) -> State {
        let ranks = self.ranks.unwrap_or(ranks);
        let first_failure = self.first_failure(ranks);
        let ended_well = self.exits.len() as u32 == ranks && first_failure.is_none();
        match self.launcher {
            _ if self.stopped => State::Stopped,
            _ if self.fault.is_some() && self.started == 0 => State::Failed,
            Some(0) if ended_well => State::Succeeded,
            // what a rank's own end says holds even where nobody saw the launcher's
            _ if first_failure.is_some() => State::Failed,
            Some(0) | None => State::Lost,
            Some(_) => State::Failed,
        }
    }

    /// The rank that failed first: of those that failed by themselves, else, where it is known of all how they ended, of those
    /// that were asked to. The milliseconds between a failure and the end that it brings on others are less than clocks agree
    /// in, so that the supervisor's word for "asked" goes first and the time second.
    pub fn first_failure(&self, ranks: u32) -> Option<&Ended> {
        // where the keeper had another reason it asked them all
        let all_known = self.exits.len() as u32 >= ranks && (self.fault.is_none() || self.launcher.is_none());
        let failed = self.exits.iter().filter(|e| e.code != 0 && (all_known || !e.asked));
        failed.min_by(|a, b| a.asked.cmp(&b.asked).then(a.time.total_cmp(&b.time)))
    }

    /// The rank that hung first, if that is why the run ended. What makes no progress while it waits for others is not what keeps them
    /// waiting: then this is a rank that was not seen to wait, or rank 0 where all wait for one another.
    fn root_hang(&self, ranks: u32) -> Option<Hung> {
        let first = |chosen: &dyn Fn(&Hung) -> bool| {
            self.hung.iter().filter(|hung| chosen(hung)).min_by(|a, b| a.time.total_cmp(&b.time)).cloned()
        };
        // a rank whose supervisor gave it up was not asked for its end
        let gave_up = |hung: &Hung| self.exits.iter().any(|e| e.rank == hung.rank && !e.asked);
        let has_given_up = self.hung.iter().any(|hung| hung.idle.is_some() && gave_up(hung));
        first(&|hung| hung.idle.is_none())
            .or_else(|| first(&|hung| has_given_up && hung.idle != Some(Idle::Waiting)))
            .or_else(|| {
                let waits = |rank: &u32| self.hung.iter().any(|hung| hung.rank == *rank);
                let first = first(&|_| has_given_up)?;
                Some(match (0..ranks).find(|rank| !waits(rank)) {
                    Some(rank) => Hung { rank, tensors: Some(OPERATION.into()), idle: None, ..first },
                    None => Hung { rank: 0, ..first },
                })
            })
    }

    /// The rank that the run failed by, and how; none where it did not fail, or no rank is to blame.
    pub fn blame(&self, placement: &Placement) -> Option<Blame> {
        let ranks = self.ranks.unwrap_or(placement.ranks());
        if !matches!(self.state(ranks), State::Failed | State::Lost) {
            return None;
        }
        // a later try may have had fewer nodes
        let ended_on = |rank| self.exits.iter().find(|e| e.rank == rank).map(|e| e.node.as_str());
        let node =
            |rank| ended_on(rank).or(placement.node_of(rank).map(|(node, _)| node)).unwrap_or_default().to_owned();
        // the others' failures are what a hung rank brought on them
        if let Some(hung) = self.root_hang(ranks) {
            let node = node(hung.rank);
            let left = |e: &Ended| e.rank == hung.rank && e.code == 0 && !e.asked && e.time < hung.time;
            // they may have waited for one that had gone
            let how = match hung.tensors.is_some() {
                true if self.exits.iter().any(left) => How::Ended { code: 0, signal: None, oom: false },
                true if self.silent.contains(&node) => How::Gone { silence: self.silence.get(&node).cloned() },
                _ => How::Hung { seconds: hung.seconds, tensors: hung.tensors.clone(), idle: hung.idle },
            };
            return Some(Blame { rank: hung.rank, node, how });
        }
        let silent = |rank: &u32| self.silent.contains(&node(*rank));
        let unseen = |rank: &u32| self.exits.iter().all(|e| e.rank != *rank);
        // what fails by itself while another node has gone has most likely lost its connection to that
        let cut = (0..ranks).filter(unseen).find(silent).filter(|_| self.fault.is_none());
        if let Some(first) = self.first_failure(ranks).filter(|_| cut.is_none()) {
            let how = How::Ended { code: first.code, signal: first.signal, oom: first.oom };
            return Some(Blame { rank: first.rank, node: first.node.clone(), how });
        }
        let gone = cut.or_else(|| (0..ranks).filter(unseen).find(|_| self.started >= ranks));
        gone.filter(|_| self.fault.is_none()).map(|rank| {
            let node = node(rank);
            Blame { rank, how: How::Gone { silence: self.silence.get(&node).cloned() }, node }
        })
    }

    /// Why the run ended as it did, in words; none where there is nothing to tell.
    pub fn reason(&self, placement: &Placement) -> Option<String> {
        self.blame(placement).map(|blame| blame.to_string()).or_else(|| self.fault.clone())
    }

    /// The program's exit code: that of the rank that failed first, else the launcher's; 143 where the end was asked for, none
    /// where nobody knows.
    pub fn code(&self, ranks: u32) -> Option<i64> {
        let ranks = self.ranks.unwrap_or(ranks);
        match self.state(ranks) {
            State::Succeeded => Some(0),
            State::Stopped => Some(143),
            _ => self.first_failure(ranks).map(|e| i64::from(e.code)).or(self.launcher.filter(|code| *code != 0)),
        }
    }
}

/// What stands in the place of tensors where nobody knows them.
const OPERATION: &str = "a collective operation";

/// What stands in the place of tensors where the others waited for a rank in Gloo's rendezvous; `rank.py` says so.
const INIT: &str = "hvd.init";

/// Who a run failed by.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Blame {
    /// The global rank.
    pub rank: u32,
    /// The node it ran on.
    pub node: String,
    /// How.
    #[serde(flatten)]
    pub how: How,
}

/// How a run failed by a rank.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(tag = "how", rename_all = "lowercase")]
pub enum How {
    /// Its program ended with something else than 0, or too early.
    Ended {
        /// Exit code, 128 + N for signal N.
        code: i32,
        /// The signal that ended it, if one did.
        signal: Option<i32>,
        /// Whether the kernel killed a process of its container for want of memory meanwhile.
        oom: bool,
    },
    /// It kept the others waiting, or did nothing.
    Hung {
        /// For so many seconds.
        seconds: u64,
        /// The tensors that the others waited for, in Horovod's words.
        tensors: Option<String>,
        /// What it did; with [`Idle::Waiting`] all ranks waited for one another. Where there are no tensors either, it was stopped.
        idle: Option<Idle>,
    },
    /// Nobody saw it end.
    Gone {
        /// What was heard of its node's worker in place of an answer.
        silence: Option<String>,
    },
}

impl fmt::Display for Blame {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "rank {} on {} ", self.rank, self.node)?;
        match &self.how {
            How::Ended { code: 0, .. } => write!(f, "ended with exit code 0 while the others waited for it"),
            How::Ended { signal: Some(9), oom: true, .. } => {
                write!(f, "ran out of memory: the kernel killed it (signal 9)")
            }
            How::Ended { code, oom: true, .. } => {
                write!(
                    f,
                    "ended with exit code {code} after the kernel had killed a process beside it for want of memory"
                )
            }
            How::Ended { code: code @ (126 | 127), .. } => {
                write!(f, "ended with exit code {code} (could not be started)")
            }
            How::Ended { signal: Some(signal), .. } => write!(f, "was killed by signal {signal}"),
            How::Ended { code, .. } => write!(f, "ended with exit code {code}"),
            How::Hung { seconds, idle: Some(Idle::Blocked), .. } => {
                write!(f, "hung: it wrote nothing and did nothing for {seconds} s")
            }
            How::Hung { seconds, idle: Some(Idle::Kernel), .. } => {
                write!(f, "hung: the kernel kept it waiting for {seconds} s (state D)")
            }
            How::Hung { seconds, idle: Some(Idle::Waiting), .. } => {
                write!(f, "hung: all ranks waited {seconds} s for one another, in different collective operations")
            }
            How::Hung { seconds, tensors: Some(tensors), .. } => {
                write!(f, "hung: the others waited {seconds} s for it in {tensors}")
            }
            How::Hung { seconds, tensors: None, .. } => write!(f, "hung: it was stopped, and silent, for {seconds} s"),
            How::Gone { silence: Some(words) } => {
                write!(f, "is gone, and the worker there did not answer at the end: {words}")
            }
            How::Gone { silence: None } => write!(f, "is gone, and nobody saw how it ended"),
        }
    }
}

impl Blame {
    /// What to do about it, where that is not for the program's own words to say.
    pub fn hint(&self) -> Option<String> {
        let node = &self.node;
        Some(match &self.how {
            How::Ended { code: 0, .. } => {
                "every rank must come to hvd.init, and to the same collective operations as all others".into()
            }
            How::Ended { oom: true, .. } => {
                format!("a smaller batch, fewer data loaders or ranks on {node}; `docker stats` there shows the limit")
            }
            How::Hung { idle: Some(Idle::Kernel), .. } => {
                format!("a file system or a device of {node} does not answer; `dmesg` there may say which")
            }
            How::Hung { idle: Some(Idle::Blocked), .. } => {
                "a deadlock, or a file system that does not answer; where it is meant to wait, --stall-timeout gives it \
                 more time"
                    .into()
            }
            How::Hung { idle: None, tensors: None, .. } => {
                "SIGSTOP, a terminal or a debugger stopped it; --stall-timeout gives it more time".into()
            }
            How::Hung { tensors: Some(place), .. } if place == INIT => {
                "every rank must come to hvd.init; -e HOROVOD_GLOO_TIMEOUT_SECONDS=600 gives it more time".into()
            }
            How::Hung { .. } => {
                "every rank must come to the same collective operations; --stall-timeout gives it more time".into()
            }
            How::Gone { .. } => {
                format!("hvdctl status shows the worker; `docker events` and `dmesg` on {node} may say why")
            }
            How::Ended { .. } => return None,
        })
    }
}

/// A rank that was said to hang.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Hung {
    /// The global rank.
    pub rank: u32,
    /// For so many seconds.
    pub seconds: u64,
    /// As in [`How::Hung`].
    #[serde(default)]
    pub tensors: Option<String>,
    /// As in [`How::Hung`].
    #[serde(default, skip_serializing_if = "Option::is_none", deserialize_with = "idle")]
    pub idle: Option<Idle>,
    /// When that was said, as [`Ended::time`].
    pub time: f64,
}

/// Reads what a rank did; records of an older hvdctl only say whether it did nothing.
fn idle<'de, D: Deserializer<'de>>(from: D) -> Result<Option<Idle>, D::Error> {
    #[derive(Deserialize)]
    #[serde(untagged)]
    enum Recorded {
        Idle(Idle),
        Nothing(bool),
    }
    Ok(match Recorded::deserialize(from)? {
        Recorded::Idle(idle) => Some(idle),
        Recorded::Nothing(nothing) => nothing.then_some(Idle::Blocked),
    })
}

/// Lines of one rank that had no room in the log of its node.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Lost {
    /// The global rank.
    pub rank: u32,
    /// Its node.
    pub node: String,
    /// How many.
    pub lines: u64,
}

/// How much output of a run was lost and on which nodes, in words; none where none was.
pub fn lost_output(lost: &[Lost]) -> Option<String> {
    let lines: u64 = lost.iter().map(|lost| lost.lines).sum();
    let mut nodes: Vec<String> = lost.iter().map(|lost| lost.node.clone()).collect();
    nodes.sort();
    nodes.dedup();
    let count = if lines == 1 { "1 line".to_owned() } else { format!("{lines} lines") };
    (lines > 0).then(|| format!("{count} of output were lost: the disk of {} was full", hostset::fold(&nodes)))
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
    /// The signal that ended it, if one did; a program may end with such a code by itself.
    #[serde(default)]
    pub signal: Option<i32>,
    /// Seconds since the epoch, by the operator's clock.
    pub time: f64,
    /// Whether it had been asked to end.
    pub asked: bool,
    /// Whether the kernel killed a process of its container for want of memory meanwhile.
    #[serde(default)]
    pub oom: bool,
}

/// Follows the frames of all nodes and knows how far the run is.
#[derive(Debug, Default)]
pub struct Progress {
    started: u32,
    ended: Vec<Ended>,
    hung: Vec<Hung>,
}

impl Progress {
    /// Takes a frame from `node`'s log; `skew` is how many seconds that node's clock is ahead of the operator's.
    pub fn see(&mut self, node: &str, frame: &Frame, skew: f64) {
        match &frame.kind {
            Kind::Started => {
                // a rank that was started again
                self.ended.retain(|ended| ended.rank != frame.rank);
                self.hung.retain(|hung| hung.rank != frame.rank);
                self.started += 1;
            }
            Kind::Exited { code, signal, asked, oom } => self.ended.push(Ended {
                rank: frame.rank,
                node: node.into(),
                code: *code,
                signal: *signal,
                time: frame.time - skew,
                asked: *asked,
                oom: *oom,
            }),
            Kind::Hung { rank, seconds, tensors, idle } => self.hung.push(Hung {
                rank: *rank,
                seconds: *seconds,
                tensors: tensors.clone(),
                idle: *idle,
                time: frame.time - skew,
            }),
            Kind::Stdout(_)
            | Kind::Stderr(_)
            | Kind::Broken(_)
            | Kind::Launcher(_)
            | Kind::Restart(_)
            | Kind::Lost(_)
            | Kind::Over => {}
        }
    }

    /// How the ranks ended that have ended.
    pub fn ended(&self) -> &[Ended] {
        &self.ended
    }

    /// The ranks that were said to hang.
    pub fn hung(&self) -> &[Hung] {
        &self.hung
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
        let exited = |code, asked| Kind::Exited { code, signal: None, asked, oom: false };
        // by the clocks this one came first, but it had been asked to
        progress.see("a", &frame(3, 99.0, exited(143, true)), 0.0);
        progress.see("a", &frame(0, 100.0, exited(1, false)), 0.0);
        // node b's clock is 60 s ahead: its rank failed at 99.5 of ours
        progress.see("b", &frame(1, 159.5, exited(7, false)), 60.0);
        let ending = Ending { exits: progress.ended().to_vec(), ..Ending::default() };
        let first = ending.first_failure(3).unwrap();
        assert_eq!((first.rank, first.code, first.node.as_str()), (1, 7, "b"));
    }

    #[test]
    fn states() {
        let exit =
            |rank, code, asked| Ended { rank, node: "a".into(), code, signal: None, time: 1.0, asked, oom: false };
        let ending = |launcher, exits: &[Ended]| Ending { launcher, exits: exits.to_vec(), ..Ending::default() };
        let well = [exit(0, 0, false), exit(1, 0, false)];
        assert_eq!(ending(Some(0), &well).state(2), State::Succeeded);
        assert_eq!(ending(Some(0), &well[..1]).state(2), State::Lost, "nobody saw the other rank end");
        assert_eq!(ending(Some(1), &well).state(2), State::Failed, "the launcher's own failure");
        assert_eq!(ending(None, &well).state(2), State::Lost, "nobody saw the launcher end");
        assert_eq!(ending(None, &[exit(0, 7, false)]).state(2), State::Failed);
        assert_eq!(ending(Some(0), &[exit(0, 7, false), exit(1, 0, false)]).state(2), State::Failed);
        let fault = Some("not all ranks had started".to_owned());
        let ends = [exit(0, 143, true), exit(1, 143, true)];
        for seen in [1, 2] {
            let late = Ending { fault: fault.clone(), started: seen, ..ending(Some(1), &ends[..seen as usize]) };
            assert_eq!(
                (late.state(2), late.first_failure(2)),
                (State::Failed, None),
                "also of one that started in the end"
            );
        }
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
        let older = r#"{"rank": 1, "seconds": 5, "time": 1.0, "idle": true}"#;
        assert_eq!(serde_json::from_str::<Hung>(older).unwrap().idle, Some(Idle::Blocked));
        let older = r#"{"rank": 1, "seconds": 5, "time": 1.0, "idle": false, "tensors": "a"}"#;
        assert_eq!(serde_json::from_str::<Hung>(older).unwrap().idle, None);
        assert_eq!((ending.first_failure(2).unwrap().code, ending.silent.len(), ending.fault), (7, 1, None));
    }

    #[test]
    fn who_is_to_blame() {
        let placement = |text: &str| serde_json::from_str::<Placement>(text).unwrap();
        let placement =
            placement(r#"{"shares": [{"node": "a", "first": 0, "ranks": 1}, {"node": "b", "first": 1, "ranks": 1}]}"#);
        let exit = |rank, code, asked, oom| Ended {
            rank,
            node: ["a", "b"][rank as usize].into(),
            code,
            signal: (code == 137).then_some(9),
            time: 1.0,
            asked,
            oom,
        };
        let ending =
            |exits: &[Ended]| Ending { launcher: Some(1), started: 2, exits: exits.to_vec(), ..Ending::default() };
        let said = |ending: &Ending| ending.reason(&placement).unwrap_or_default();

        let both = ending(&[exit(0, 143, true, false), exit(1, 7, false, false)]);
        assert_eq!(said(&both), "rank 1 on b ended with exit code 7");
        let killed = ending(&[exit(0, 143, true, false), exit(1, 137, false, true)]);
        assert_eq!(said(&killed), "rank 1 on b ran out of memory: the kernel killed it (signal 9)");
        assert!(killed.blame(&placement).unwrap().hint().unwrap().contains("docker stats"));
        // 255, 200 and 129 are what programs end with by themselves
        for code in [129, 200, 255] {
            let words = format!("rank 1 on b ended with exit code {code}");
            assert_eq!(said(&ending(&[exit(0, 143, true, false), exit(1, code, false, false)])), words);
        }
        let killed = ending(&[exit(0, 143, true, false), exit(1, 137, false, false)]);
        assert_eq!(said(&killed), "rank 1 on b was killed by signal 9");
        // the others fail by themselves once Horovod gives up, and yet it is not their doing
        let hung = |tensors: Option<&str>, idle: Option<Idle>| Hung {
            rank: 1,
            seconds: 5,
            tensors: tensors.map(str::to_owned),
            idle,
            time: 1.0,
        };
        let stalled = ending(&[exit(0, 1, false, false), exit(1, 143, true, false)]);
        let waited = Ending { hung: vec![hung(Some("allreduce.a"), None)], ..stalled.clone() };
        assert_eq!(said(&waited), "rank 1 on b hung: the others waited 5 s for it in allreduce.a");
        assert_eq!(waited.code(2), Some(1), "the code is that of a rank that has one");
        let absent = Ending { hung: vec![hung(Some(INIT), None)], ..stalled.clone() };
        assert!(absent.blame(&placement).unwrap().hint().unwrap().contains("HOROVOD_GLOO_TIMEOUT_SECONDS"));
        assert_eq!(
            said(&Ending { hung: vec![hung(None, None)], ..stalled.clone() }),
            "rank 1 on b hung: it was stopped, and silent, for 5 s"
        );
        assert_eq!(
            said(&Ending { hung: vec![hung(None, Some(Idle::Blocked))], ..stalled.clone() }),
            "rank 0 on a ended with exit code 1",
            "nobody was given up: it only waited when another failed"
        );
        // rank 0 is given up first, and rank 1 asked for its end then
        let given_up = ending(&[exit(0, 143, false, false), exit(1, 143, true, false)]);
        let idle = |rank, idle| Hung { rank, time: f64::from(rank), ..hung(None, Some(idle)) };
        for (ones, words) in [
            (vec![idle(0, Idle::Blocked)], "rank 0 on a hung: it wrote nothing and did nothing for 5 s"),
            (
                vec![idle(0, Idle::Waiting), idle(1, Idle::Blocked)],
                "rank 1 on b hung: it wrote nothing and did nothing for 5 s",
            ),
            (
                vec![idle(0, Idle::Waiting), idle(1, Idle::Kernel)],
                "rank 1 on b hung: the kernel kept it waiting for 5 s (state D)",
            ),
            (vec![idle(0, Idle::Waiting), hung(None, None)], "rank 1 on b hung: it was stopped, and silent, for 5 s"),
            (vec![idle(0, Idle::Waiting)], "rank 1 on b hung: the others waited 5 s for it in a collective operation"),
            (
                vec![idle(0, Idle::Waiting), idle(1, Idle::Waiting)],
                "rank 0 on a hung: all ranks waited 5 s for one another, in different collective operations",
            ),
        ] {
            assert_eq!(said(&Ending { hung: ones, ..given_up.clone() }), words);
        }
        // who waits does not see that the other has ended, or that its node is gone
        let late = Hung { time: 2.0, ..hung(Some(INIT), None) };
        let left =
            Ending { hung: vec![late.clone()], ..ending(&[exit(0, 134, false, false), exit(1, 0, false, false)]) };
        assert_eq!(said(&left), "rank 1 on b ended with exit code 0 while the others waited for it");
        assert!(left.blame(&placement).unwrap().hint().unwrap().contains("must come to hvd.init"));
        assert_eq!(left.code(2), Some(134));
        let early = Ending { hung: vec![hung(Some(INIT), None)], ..left };
        assert_eq!(
            said(&early),
            "rank 1 on b hung: the others waited 5 s for it in hvd.init",
            "it came to its end later"
        );
        let cut = Ending { hung: vec![late], silent: vec!["b".into()], ..ending(&[exit(0, 134, false, false)]) };
        assert_eq!(said(&cut), "rank 1 on b is gone, and nobody saw how it ended");
        // one that was told to end is not to blame while another's end was not seen
        let gone = Ending {
            silent: vec!["b".into()],
            silence: BTreeMap::from([("b".into(), "Connection refused".into())]),
            ..ending(&[exit(0, 143, true, false)])
        };
        assert_eq!(
            said(&gone),
            "rank 1 on b is gone, and the worker there did not answer at the end: Connection refused"
        );
        assert_eq!((gone.state(2), gone.code(2)), (State::Failed, Some(1)));
        let broken = Ending { exits: vec![exit(0, 1, false, false)], ..gone.clone() };
        assert!(said(&broken).starts_with("rank 1 on b is gone"), "the other lost its connection to it");
        assert_eq!(broken.code(2), Some(1));
        assert_eq!(said(&Ending { started: 1, ..ending(&[]) }), "", "it never began: no rank is to blame");
        assert_eq!(said(&Ending { stopped: true, ..both.clone() }), "");
        let lost =
            Ending { launcher: None, fault: Some("hmaster was gone".into()), ..ending(&[exit(1, 143, true, false)]) };
        assert_eq!((lost.state(2), said(&lost)), (State::Lost, "hmaster was gone".into()));
    }
}
