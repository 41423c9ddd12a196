//! Ranks that have ended with 0 while others go on: their loop was shorter, or one of them is the program and the others
//! only serve it. A job under any launcher goes on until all of its ranks have ended.

use super::frames::{Frame, FrameKind};
use super::restart::{self, Restart};
use crate::event::Message;
use crate::launch::placement::Placement;
use crate::model::role::names;
use crate::text::units::{clock, count};
use std::collections::BTreeMap;

/// Seconds for which the other ranks may go on.
const LIMIT: f64 = 60.0;
/// Seconds for which rank 0 may go on if it is the only one: it often saves or evaluates a model at the end.
const LIMIT_OF_FIRST: f64 = 600.0;
/// Seconds after which frames that are read late are judged: the end of the others may follow.
const SHORTEST: f64 = 1.0;

/// Follows which ranks have ended with 0 in an attempt of a job. All times are in seconds since the epoch by one clock.
#[derive(Debug, Default)]
pub struct EarlyEnds {
    /// The ranks that run, with the times of their start.
    running: BTreeMap<u32, f64>,
    /// The ranks that have ended with 0, with node and time.
    ended: BTreeMap<u32, (String, f64)>,
    due: Option<f64>,
    is_reported: bool,
}

impl EarlyEnds {
    /// Records a frame of a node's log, which was written at `time` and is read at `now`. `placement`: that of the job.
    pub fn record(&mut self, placement: &Placement, node: &str, frame: &Frame, time: f64, now: f64) {
        // a clock that was set forward, or a forged frame, would delay the report
        let (rank, time) = (frame.rank, time.min(now));
        match &frame.kind {
            // servers end when they are asked to, or when nothing is left to do
            FrameKind::Started | FrameKind::Exited { .. } if !placement.ends_job(rank) => return,
            FrameKind::Started => {
                self.ended.remove(&rank);
                self.running.insert(rank, time);
            }
            FrameKind::Exited { code, asked, .. } => {
                self.running.remove(&rank);
                if *code == 0 && !asked {
                    self.ended.insert(rank, (node.to_owned(), time));
                }
            }
            FrameKind::Restart(text) if is_new_attempt(&restart::read(text, placement)) => {
                // the logs of other nodes may have been read already
                self.running.retain(|_, start| *start >= time);
                self.ended.retain(|_, (_, end)| *end >= time);
                (self.due, self.is_reported) = (None, false);
            }
            _ => return,
        }
        if !self.is_reported && !self.running.is_empty() {
            self.due = self
                .ended
                .values()
                .map(|(_, end)| *end)
                .reduce(f64::min)
                .map(|end| self.due_after(end, placement).max(now + SHORTEST));
        }
    }

    /// Returns when ranks that ended then are reported.
    fn due_after(&self, end: f64, placement: &Placement) -> f64 {
        let is_first = |rank: &u32| placement.role_of(*rank).map_or(*rank, |(_, rank)| rank) == 0;
        let is_first_alone = self.running.len() == 1 && self.running.keys().all(is_first);
        end + if is_first_alone { LIMIT_OF_FIRST } else { LIMIT }
    }

    /// Returns when there may be something to report.
    pub fn due(&self) -> Option<f64> {
        self.due
    }

    /// Returns the warning that is due now, once for each attempt. `job`: the job's id; `placement`: that of its ranks.
    pub fn take(&mut self, placement: &Placement, job: &str, now: f64) -> Option<Message> {
        self.due = None;
        let (node, first) = self.ended.values().min_by(|a, b| a.1.total_cmp(&b.1))?.clone();
        if self.is_reported || self.running.is_empty() {
            return None;
        }
        self.is_reported = true;
        let named: Vec<_> = self.ended.keys().map(|rank| (*rank, placement.role(*rank))).collect();
        let ranks = names(named.iter().map(|(rank, role)| (*rank, role.as_ref())));
        let (on, has) = match self.ended.len() {
            1 => (format!(" on {node}"), "has"),
            _ => (String::new(), "have"),
        };
        let others = count(self.running.len(), "other rank");
        let still = if self.running.len() == 1 { "still runs" } else { "still run" };
        let message = format!("{ranks}{on} {has} ended with 0 since {}, and {others} {still}", clock(first, now));
        Some(Message::from(message).hint(format!(
            "a job ends when all of its ranks have ended: if the others wait in a collective operation, every rank must \
             reach the same ones; if they only serve that rank, let them end when it has; hvdctl stop {job} ends them"
        )))
    }
}

/// Returns whether all ranks are started again.
fn is_new_attempt(restart: &Restart) -> bool {
    match restart {
        Restart::Failed { .. } | Restart::Membership { .. } | Restart::Lost { .. } | Restart::Requeued { .. } => true,
        Restart::Without { .. } | Restart::Role { .. } | Restart::Ready { .. } | Restart::Other { .. } => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// 2026-11-21T12:03:04Z.
    const START: f64 = 1_795_262_584.0;

    /// Records a frame that was written so many seconds after the start, and is read at once.
    fn record(ends: &mut EarlyEnds, rank: u32, at: f64, kind: FrameKind) {
        let frame = Frame { time: START + at, rank, kind };
        ends.record(&Placement::default(), &format!("node{}", rank + 1), &frame, frame.time, frame.time);
    }

    fn exited(code: i32, asked: bool) -> FrameKind {
        FrameKind::Exited { code, signal: None, asked, oom: false }
    }

    /// The ends of so many ranks that have started.
    fn started(ranks: u32) -> EarlyEnds {
        let mut ends = EarlyEnds::default();
        (0..ranks).for_each(|rank| record(&mut ends, rank, 0.0, FrameKind::Started));
        ends
    }

    fn text(ends: &mut EarlyEnds, at: f64) -> String {
        ends.take(&Placement::default(), "j1", START + at).map(|message| message.to_string()).unwrap_or_default()
    }

    #[test]
    fn a_rank_that_ended_while_others_run_for_a_minute_is_reported_once() {
        let mut ends = started(2);
        assert_eq!(ends.due(), None);
        record(&mut ends, 0, 5.0, exited(0, false));
        assert_eq!(ends.due(), Some(START + 65.0));
        let warning = text(&mut ends, 65.0);
        assert!(
            warning.starts_with(
                "rank 0 on node1 has ended with 0 since 12:03 UTC, and 1 other rank still runs\n  hint: a job ends when"
            ),
            "{warning}"
        );
        assert!(warning.contains("hvdctl stop j1 ends them"), "{warning}");
        record(&mut ends, 1, 70.0, FrameKind::Started);
        assert_eq!((ends.due(), text(&mut ends, 200.0)), (None, String::new()));
    }

    #[test]
    fn ranks_that_ended_together_are_one_warning_with_the_count_of_the_others() {
        let mut ends = started(8);
        (1..4).for_each(|rank| record(&mut ends, rank, 5.0 + f64::from(rank), exited(0, false)));
        assert_eq!(ends.due(), Some(START + 66.0));
        assert!(
            text(&mut ends, 66.0)
                .starts_with("ranks 1-3 have ended with 0 since 12:03 UTC, and 5 other ranks still run")
        );
    }

    #[test]
    fn nothing_is_reported_if_all_end_or_the_job_is_ended_or_a_rank_fails() {
        let mut ends = started(2);
        record(&mut ends, 0, 5.0, exited(0, false));
        record(&mut ends, 1, 30.0, exited(0, false));
        assert_eq!(text(&mut ends, 65.0), "");
        for kind in [exited(0, true), exited(1, false), exited(143, true)] {
            let mut ends = started(2);
            record(&mut ends, 0, 5.0, kind);
            assert_eq!((ends.due(), text(&mut ends, 100.0)), (None, String::new()));
        }
    }

    #[test]
    fn rank_0_may_save_a_model_for_longer() {
        let mut ends = started(3);
        record(&mut ends, 1, 5.0, exited(0, false));
        record(&mut ends, 2, 9.0, exited(0, false));
        assert_eq!(ends.due(), Some(START + 605.0));
        assert!(
            text(&mut ends, 605.0)
                .starts_with("ranks 1-2 have ended with 0 since 12:03 UTC, and 1 other rank still runs")
        );
    }

    #[test]
    fn a_new_attempt_begins_again() {
        let mut ends = started(2);
        record(&mut ends, 0, 5.0, exited(0, false));
        assert_ne!(text(&mut ends, 65.0), "");
        let restart = r#"{"failed":{"ended":1.0},"shares":[],"attempt":2,"attempts":4,"pause":2}"#;
        // rank 1 starts on another node, whose log is read first; the node of rank 0 was lost
        record(&mut ends, 1, 72.0, FrameKind::Started);
        record(&mut ends, 0, 70.0, FrameKind::Restart(restart.into()));
        assert_eq!((ends.due(), text(&mut ends, 200.0)), (None, String::new()));
        record(&mut ends, 0, 72.0, FrameKind::Started);
        record(&mut ends, 0, 80.0, exited(0, false));
        assert_eq!(ends.due(), Some(START + 140.0));
        assert!(text(&mut ends, 140.0).starts_with("rank 0 on node1"));
    }

    #[test]
    fn what_is_over_when_it_is_read_is_not_reported_and_a_clock_that_is_ahead_delays_nothing() {
        let mut ends = EarlyEnds::default();
        let mut read = |rank, at: f64, kind| {
            let frame = Frame { time: START + at, rank, kind };
            ends.record(&Placement::default(), "node1", &frame, frame.time, START + 9000.0);
            ends.due()
        };
        read(0, 0.0, FrameKind::Started);
        read(1, 0.0, FrameKind::Started);
        assert_eq!(read(0, 5.0, exited(0, false)), Some(START + 9001.0));
        read(1, 400.0, exited(0, false));
        assert_eq!(text(&mut ends, 9001.0), "");
        for step in [3600.0, 1e300, f64::INFINITY, f64::NAN] {
            let mut ends = started(3);
            let frame = Frame { time: START + step, rank: 0, kind: exited(0, false) };
            ends.record(&Placement::default(), "node1", &frame, frame.time, START + 5.0);
            assert_eq!(ends.due(), Some(START + 65.0), "{step}");
        }
    }
}
