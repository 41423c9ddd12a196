//! The state of a job as its log frames have reported it so far.

use super::early_ends::EarlyEnds;
use super::frames::{Frame, FrameKind};
use super::waits::Waits;
use super::{HungRank, RankExit};
use crate::launch::placement::Placement;
use crate::model::start_fault::StartFailure;
use std::collections::{BTreeMap, BTreeSet, VecDeque};

/// Number of last lines that are kept of each rank, and of the launcher.
const LINES: usize = 20;
/// Number of bytes that are kept of each of these lines, so that memory stays bounded.
const BYTES: usize = 2000;

/// Follows the frames of all nodes of a job.
#[derive(Debug, Default)]
pub struct Monitor {
    /// How often a rank has started its program, and the ranks that have.
    starts: (u32, BTreeSet<u32>),
    /// The exits of the ranks that have ended.
    pub exits: Vec<RankExit>,
    /// The ranks that were reported to hang.
    pub hung: Vec<HungRank>,
    /// The ranks that had no connection to another one, and the roles for which that was reported (`None` in a job
    /// without roles).
    isolated: (BTreeSet<u32>, BTreeSet<Option<usize>>),
    /// Set once it was reported that another program runs instead of that of the command.
    substituted: bool,
    /// The ranks that make no progress.
    pub waits: Waits,
    /// The ranks that have ended while others go on.
    pub early_ends: EarlyEnds,
    /// Why the ranks that could not start their program did not.
    broken: BTreeMap<(String, u32), StartFailure>,
    /// The launcher's last lines.
    pub launcher: VecDeque<String>,
    /// The last lines of each rank on each node, numbered among those of all ranks.
    output: BTreeMap<(String, u32), VecDeque<(u64, String)>>,
    lines: u64,
}

impl Monitor {
    /// Records a frame of `node`'s log. `skew` is how many seconds that node's clock is ahead of the operator's.
    pub fn record(&mut self, node: &str, frame: &Frame, skew: f64) {
        let (rank, time) = (frame.rank, frame.time - skew);
        let text = |line: &[u8]| String::from_utf8_lossy(&line[..line.len().min(BYTES)]).into_owned();
        match &frame.kind {
            // what a rank did before it was restarted is not how it ended
            FrameKind::Started => {
                self.exits.retain(|exit| exit.rank != rank);
                self.hung.retain(|hung| hung.rank != rank);
                self.isolated.0.remove(&rank);
                self.output.remove(&(node.to_owned(), rank));
                self.broken.remove(&(node.to_owned(), rank));
                self.starts.0 = self.starts.0.saturating_add(1);
                self.starts.1.insert(rank);
            }
            FrameKind::Renumbered { rank: new, .. } => {
                self.exits.retain(|exit| exit.rank != *new);
                self.isolated.0.remove(&rank);
                if let Some(lines) = self.output.remove(&(node.to_owned(), rank)) {
                    self.output.insert((node.to_owned(), *new), lines);
                }
            }
            FrameKind::Exited { code, signal, asked, oom } => self.exits.push(RankExit {
                rank,
                node: node.into(),
                code: *code,
                signal: *signal,
                time,
                asked: *asked,
                oom: *oom,
            }),
            FrameKind::Isolated(_) => drop(self.isolated.0.insert(rank)),
            FrameKind::Hung(hung) => self.hung.push(HungRank { time, ..hung.clone() }),
            FrameKind::Stdout(line) | FrameKind::Stderr(line) => {
                keep(self.output.entry((node.to_owned(), rank)).or_default(), (self.lines, text(line)));
                self.lines += 1;
            }
            FrameKind::Launcher(line) => keep(&mut self.launcher, text(line).trim_end().to_owned()),
            FrameKind::Waits { .. } | FrameKind::Resumed(_) | FrameKind::Stack(_) => {}
            FrameKind::Broken(reason) => {
                self.broken.insert((node.to_owned(), rank), reason.clone());
            }
            FrameKind::Quiet { .. }
            | FrameKind::GaveUp(_)
            | FrameKind::Substituted(_)
            | FrameKind::WithoutMpi
            | FrameKind::Restart(_)
            | FrameKind::Lost(_)
            | FrameKind::Sample(_)
            | FrameKind::Over => {}
        }
    }

    /// Returns how many ranks have started their program. In a job with roles, a rank that was started again counts once.
    pub fn started(&self, placement: &Placement) -> u32 {
        let (starts, ranks) = &self.starts;
        // those of an elastic job are numbered again
        if placement.roles.is_empty() { *starts } else { u32::try_from(ranks.len()).unwrap_or(u32::MAX) }
    }

    /// Returns whether no rank of the job, or of the role of `rank`, had a connection to another one; true once, as that
    /// may be the program's purpose. It is that of a role which does not end the job: its ranks serve.
    pub fn are_newly_isolated(&mut self, rank: u32, placement: &Placement) -> bool {
        let role = placement.role_of(rank).map(|(role, _)| role);
        let (isolated, reported) = &mut self.isolated;
        let are_isolated = match role {
            Some(role) => placement.ends_job(rank) && placement.ranks_of(role).all(|rank| isolated.contains(&rank)),
            None => isolated.len() >= placement.ranks() as usize,
        };
        are_isolated && reported.insert(role)
    }

    /// Returns true once: for the first report that another program runs instead of that of the command.
    pub fn is_newly_substituted(&mut self) -> bool {
        !std::mem::replace(&mut self.substituted, true)
    }

    /// Returns the last lines of a rank on a node.
    pub fn last_lines(&self, node: &str, rank: u32) -> Vec<String> {
        self.output.get(&(node.to_owned(), rank)).into_iter().flatten().map(|(_, line)| line.clone()).collect()
    }

    /// Returns why a rank on a node could not start its program, if it could not.
    pub fn broken(&self, node: &str, rank: u32) -> Option<&StartFailure> {
        self.broken.get(&(node.to_owned(), rank))
    }

    /// Returns whether these are the last lines of all ranks, in a row: if output is shown, they are what was shown
    /// last.
    pub fn are_last(&self, node: &str, rank: u32) -> bool {
        let Some(lines) = self.output.get(&(node.to_owned(), rank)) else { return false };
        lines.iter().rev().map(|(number, _)| *number).eq((0..self.lines).rev().take(lines.len()))
    }
}

fn keep<T>(lines: &mut VecDeque<T>, line: T) {
    if lines.len() == LINES {
        lines.pop_front();
    }
    lines.push_back(line);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::tests::two_roles;

    fn line(rank: u32, text: &[u8]) -> Frame {
        Frame { time: 1.0, rank, kind: FrameKind::Stderr(text.to_vec()) }
    }

    #[test]
    fn ranks_without_connections_are_reported_once_and_only_if_all_are() {
        let mut monitor = Monitor::default();
        let mut placement = Placement::default();
        placement.push("a", 3);
        let mut after = |rank: u32, kind: FrameKind| {
            monitor.record("a", &Frame { time: 1.0, rank, kind }, 0.0);
            monitor.are_newly_isolated(rank, &placement)
        };
        assert!(
            !after(0, FrameKind::Isolated(60))
                && !after(0, FrameKind::Isolated(60))
                && !after(1, FrameKind::Isolated(60))
        );
        // one that is restarted is looked at again
        assert!(!after(1, FrameKind::Started) && !after(2, FrameKind::Isolated(60)));
        assert!(after(1, FrameKind::Isolated(60)));
        assert!(!after(1, FrameKind::Started) && !after(1, FrameKind::Isolated(60)), "it may be on purpose");
    }

    #[test]
    fn ranks_of_roles_are_isolated_by_role_and_only_if_it_ends_the_job() {
        let (mut monitor, placement) = (Monitor::default(), two_roles());
        let mut after = |rank: u32| {
            monitor.record("a", &Frame { time: 1.0, rank, kind: FrameKind::Isolated(60) }, 0.0);
            monitor.are_newly_isolated(rank, &placement)
        };
        assert!(!after(0) && !after(1) && after(3), "all of the trainer");
        assert!(!after(3), "it may be on purpose");
        assert!(!after(2) && !after(4), "those of the generator serve");
    }

    #[test]
    fn a_rank_of_a_role_that_starts_again_counts_once() {
        let start = Frame { time: 1.0, rank: 4, kind: FrameKind::Started };
        let mut monitor = Monitor::default();
        (0..5).for_each(|_| monitor.record("b", &start, 0.0));
        assert_eq!(monitor.started(&two_roles()), 1);
        let other = Frame { rank: 0, ..start };
        monitor.record("a", &other, 0.0);
        assert_eq!(monitor.started(&two_roles()), 2);
        assert_eq!(monitor.started(&Placement::default()), 6, "as in an elastic job");
    }

    #[test]
    fn why_a_rank_could_not_start_is_kept_until_it_starts() {
        let mut monitor = Monitor::default();
        let mut after = |kind: FrameKind| {
            monitor.record("a", &Frame { time: 1.0, rank: 1, kind }, 0.0);
            monitor.broken("a", 1).cloned()
        };
        let failure = StartFailure::Text("cannot start x".into());
        assert_eq!(after(FrameKind::Broken(failure.clone())), Some(failure));
        assert_eq!(after(FrameKind::Started), None);
        assert_eq!(monitor.broken("b", 1), None);
    }

    #[test]
    fn the_last_lines_of_each_rank_are_kept_and_no_more() {
        let mut monitor = Monitor::default();
        for i in 0..50 {
            monitor.record("a", &line(i % 2, format!("step {i}").as_bytes()), 0.0);
        }
        let lines = monitor.last_lines("a", 1);
        assert_eq!((lines.len(), lines[0].as_str(), lines[19].as_str()), (20, "step 11", "step 49"));
        assert!(!monitor.are_last("a", 0) && !monitor.are_last("a", 1) && monitor.last_lines("a", 2).is_empty());
        monitor.record("a", &Frame { time: 1.0, rank: 1, kind: FrameKind::Started }, 0.0);
        assert!(monitor.last_lines("a", 1).is_empty() && monitor.last_lines("a", 0).len() == 20);
        monitor.record("a", &line(2, &[b'x'; 9000]), 0.0);
        monitor.record("a", &line(2, b"\xff"), 0.0);
        assert!(monitor.are_last("a", 2), "what a rank wrote in a row at the end");
        let lines = monitor.last_lines("a", 2);
        assert_eq!((lines[0].len(), lines[1].as_str()), (BYTES, "\u{fffd}"));
        (0..20).for_each(|_| monitor.record("a", &line(0, b"the end"), 0.0));
        assert!(monitor.are_last("a", 0));
    }
}
