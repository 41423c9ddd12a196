//! Ranks that make no progress, as their supervisors report them (`src/scripts/programs/supervisor/waiting.py`):
//! collected for a moment, so that many that wait at the same time are one message, and reported once for each time
//! that they wait.

use super::frames::{Frame, FrameKind};
use super::roles;
use crate::event::Event;
use crate::launch::placement::Placement;
use crate::model::idle_rank::IdleRank;
use crate::model::stack::{self, RankStack};
use std::collections::BTreeMap;

/// Seconds for which reports are collected at least.
const SHORTEST: f64 = 1.0;
/// Seconds for which reports are collected at most.
const LONGEST: f64 = 60.0;

/// Seconds without progress from which a rank counts as one that waits, as in `stacks.py`.
const LEAST_QUIET: u64 = 5;

/// The most ranks whose stacks are kept.
const MOST_STACKS: usize = 4096;

/// A rank that makes no progress, and whether that was reported.
#[derive(Debug)]
struct Wait {
    rank: IdleRank,
    is_reported: bool,
    window: f64,
}

/// Follows which ranks make no progress. All times are in seconds since the epoch by one clock.
#[derive(Debug, Default)]
pub struct Waits {
    waiting: BTreeMap<u32, Wait>,
    /// The ranks that made progress again, with the seconds without.
    resumed: BTreeMap<u32, (IdleRank, u64)>,
    /// The ranks whose stacks were read since the last report, with the times of these.
    stacks: BTreeMap<u32, (f64, RankStack)>,
    /// Set if a rank gave up waiting for others.
    has_given_up: bool,
    due: Option<f64>,
}

impl Waits {
    /// Records a frame of a node's log, which was written at `time` and is read at `now`.
    pub fn record(&mut self, node: &str, frame: &Frame, time: f64, now: f64) {
        let rank = frame.rank;
        // a clock that was set forward since its skew was measured, or a forged frame, would delay all reports
        let time = time.min(now);
        match &frame.kind {
            FrameKind::Stack(stack) if self.stacks.len() < MOST_STACKS => {
                let stack = RankStack { node: node.to_owned(), rank, ..stack.shortened() };
                self.stacks.insert(rank, (time, stack));
                self.set_due(time + SHORTEST, now);
            }
            FrameKind::GaveUp(_) => self.has_given_up = true,
            FrameKind::Waits { seconds, does } => {
                let since = time - *seconds as f64;
                let idle = IdleRank { rank, role: None, node: node.to_owned(), since, does: does.clone() };
                // supervisors sample a hundred times in that time: ranks that wait together are reported that far apart
                let window = (*seconds as f64 / 50.0).clamp(SHORTEST, LONGEST);
                self.waiting.insert(rank, Wait { rank: idle, is_reported: false, window });
                self.set_due(time + window, now);
            }
            FrameKind::Resumed(seconds) => {
                self.stacks.remove(&rank);
                // what was not reported need not be taken back
                if let Some(wait) = self.waiting.remove(&rank).filter(|wait| wait.is_reported) {
                    self.resumed.insert(rank, (wait.rank, *seconds));
                    self.set_due(time + wait.window, now);
                }
            }
            FrameKind::Started | FrameKind::Renumbered { .. } => {
                self.waiting.remove(&rank);
                self.stacks.remove(&rank);
            }
            FrameKind::Exited { .. } => {
                self.waiting.remove(&rank);
                // where it was when its end was requested is what matters
                self.stacks.retain(|other, (_, stack)| *other != rank || stack.ending);
            }
            _ => {}
        }
    }

    /// Sets the time of the next report, if none is set. A frame that is read late waits for others of its time.
    fn set_due(&mut self, at: f64, now: f64) {
        self.due = self.due.or(Some(at.max(now + SHORTEST)));
    }

    /// Returns when there is something to report.
    pub fn due(&self) -> Option<f64> {
        self.due
    }

    /// Returns what is to be reported now. `placement`: that of the job's ranks; `job`: the job's id, as long as it runs.
    pub fn take(&mut self, placement: &Placement, job: Option<&str>, now: f64) -> Vec<Event> {
        self.due = None;
        let (mut resumed, times): (Vec<IdleRank>, Vec<u64>) = std::mem::take(&mut self.resumed).into_values().unzip();
        let new = |wait: &mut Wait| (!std::mem::replace(&mut wait.is_reported, true)).then(|| wait.rank.clone());
        let mut idle: Vec<IdleRank> = self.waiting.values_mut().filter_map(new).collect();
        resumed.iter_mut().chain(&mut idle).for_each(|rank| rank.role = placement.role(rank.rank));
        let mut events = Vec::new();
        if let Some(seconds) = times.into_iter().max() {
            events.push(Event::Resumed { ranks: resumed, seconds });
        }
        if !idle.is_empty() {
            events.push(Event::Idle { ranks: idle, job: job.map(str::to_owned), time: now });
        }
        let stacks = std::mem::take(&mut self.stacks);
        if let Some(newest) = stacks.values().map(|(time, _)| *time).max_by(f64::total_cmp) {
            let together = stacks.into_values().filter(|(time, _)| newest - time <= LONGEST);
            let ranks: Vec<RankStack> = together.map(|(_, stack)| roles::named(stack, placement)).collect();
            let is_end = ranks.iter().any(|rank| rank.ending);
            let job = job.filter(|_| !is_end);
            // of a failure that has nothing to do with waiting, its own message says enough
            // a rank that serves others waits for their requests
            let has_waited = |rank: &RankStack| rank.quiet >= LEAST_QUIET && placement.ends_job(rank.rank);
            let is_wait = self.has_given_up || ranks.iter().any(has_waited);
            if is_end && !is_wait {
                return events;
            }
            events.push(Event::Stacks { groups: stack::groups(ranks), job: job.map(str::to_owned) });
        }
        events
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::stack::StackGroup;
    use crate::record::tests::two_roles;

    /// 2026-11-21T12:03:04Z.
    const START: f64 = 1_795_262_584.0;

    /// Records that a rank waits, or that it goes on, so many seconds after the start, and reads it at once.
    fn record(waits: &mut Waits, rank: u32, at: f64, kind: FrameKind) {
        let frame = Frame { time: START + at, rank, kind };
        waits.record(&format!("node{}", rank / 2 + 1), &frame, frame.time, frame.time);
    }

    fn waiting(seconds: u64, does: &str) -> FrameKind {
        FrameKind::Waits { seconds, does: does.into() }
    }

    /// The events that are due, in short: `idle 0,1 since 100` or `resumed 0,1 after 195`, since in seconds after the
    /// start.
    fn reported(waits: &mut Waits, at: f64) -> Vec<String> {
        let ranks = |ranks: &[IdleRank]| ranks.iter().map(|idle| idle.rank.to_string()).collect::<Vec<_>>().join(",");
        let short = |event| match event {
            Event::Idle { ranks: idle, job, time } => {
                assert_eq!((job.as_deref(), time), (Some("j1"), START + at));
                format!("idle {} since {}", ranks(&idle), idle[0].since - START)
            }
            Event::Resumed { ranks: resumed, seconds } => format!("resumed {} after {seconds}", ranks(&resumed)),
            other => panic!("{other:?}"),
        };
        waits.take(&Placement::default(), Some("j1"), START + at).into_iter().map(short).collect()
    }

    #[test]
    fn a_wait_is_reported_once_and_its_end_too() {
        let mut waits = Waits::default();
        record(&mut waits, 3, 100.0, waiting(100, "sleeping in clock_nanosleep"));
        assert_eq!(waits.due(), Some(START + 102.0));
        assert_eq!(reported(&mut waits, 102.0), ["idle 3 since 0"]);
        assert_eq!((waits.due(), reported(&mut waits, 103.0)), (None, Vec::new()));
        record(&mut waits, 3, 200.0, FrameKind::Resumed(195));
        assert_eq!(reported(&mut waits, 202.0), ["resumed 3 after 195"]);
        // again, and the rank ends meanwhile
        record(&mut waits, 3, 400.0, waiting(100, "sleeping"));
        assert_eq!(reported(&mut waits, 402.0), ["idle 3 since 300"]);
        record(&mut waits, 3, 410.0, FrameKind::Exited { code: 0, signal: None, asked: false, oom: false });
        record(&mut waits, 3, 411.0, FrameKind::Resumed(111));
        assert_eq!((waits.due(), reported(&mut waits, 412.0)), (None, Vec::new()));
    }

    #[test]
    fn ranks_that_wait_together_are_one_event() {
        let mut waits = Waits::default();
        for rank in (0..8).rev() {
            record(&mut waits, rank, 1800.0 + f64::from(rank), waiting(1800, "sleeping"));
        }
        assert_eq!(waits.due(), Some(START + 1843.0));
        assert_eq!(reported(&mut waits, 1843.0), ["idle 0,1,2,3,4,5,6,7 since 0"]);
        record(&mut waits, 8, 1900.0, waiting(1800, "sleeping"));
        (0..8).for_each(|rank| record(&mut waits, rank, 1901.0, FrameKind::Resumed(1901 - u64::from(rank))));
        assert_eq!(reported(&mut waits, 1937.0), ["resumed 0,1,2,3,4,5,6,7 after 1901", "idle 8 since 100"]);
    }

    #[test]
    fn what_is_over_when_it_is_read_is_not_reported() {
        // a log that `attach` reads from its beginning
        let mut waits = Waits::default();
        let mut read = |rank, at: f64, kind| {
            let frame = Frame { time: START + at, rank, kind };
            waits.record("node1", &frame, frame.time, START + 9000.0);
            waits.due()
        };
        assert_eq!(read(0, 1800.0, waiting(1800, "sleeping")), Some(START + 9001.0), "its end may follow");
        read(0, 2000.0, FrameKind::Resumed(2000));
        read(1, 2000.0, waiting(1800, "sleeping"));
        let events = waits.take(&Placement::default(), None, START + 9001.0);
        let [Event::Idle { ranks, job: None, .. }] = &events[..] else { panic!("{events:?}") };
        let idle =
            IdleRank { rank: 1, role: None, node: "node1".into(), since: START + 200.0, does: "sleeping".into() };
        assert_eq!(ranks[..], [idle]);
    }

    /// The place of a rank that has been without progress for so many seconds.
    fn place(quiet: u64, ending: bool) -> FrameKind {
        let text =
            format!("{{\"rank\": 0, \"quiet\": {quiet}, \"ending\": {ending}, \"left_out\": 0, \"processes\": []}}");
        FrameKind::Stack(Box::new(RankStack::read("", &text).unwrap()))
    }

    /// The ranks whose places are reported, and the job if it goes on.
    fn places(waits: &mut Waits) -> Vec<(Vec<u32>, Option<String>)> {
        let places = |event| match event {
            Event::Stacks { groups, job } => {
                let mut ranks: Vec<u32> = groups.iter().flat_map(|group| group.numbers()).collect();
                ranks.sort_unstable();
                (ranks, job)
            }
            other => panic!("{other:?}"),
        };
        waits.take(&Placement::default(), Some("j1"), START + 900.0).into_iter().map(places).collect()
    }

    #[test]
    fn places_are_reported_while_ranks_are_there_and_at_an_end_that_has_to_do_with_waiting() {
        let after = |frames: Vec<(u32, f64, FrameKind)>| {
            let mut waits = Waits::default();
            frames.into_iter().for_each(|(rank, at, kind)| record(&mut waits, rank, at, kind));
            places(&mut waits)
        };
        let exited = || FrameKind::Exited { code: 143, signal: None, asked: true, oom: false };
        let running = |ranks: &[u32]| vec![(ranks.to_vec(), Some("j1".to_owned()))];
        assert_eq!(after(vec![(0, 1.0, place(30, false)), (1, 2.0, place(0, false))]), running(&[0, 1]));
        // readings of other hours are of other waits
        assert_eq!(after(vec![(0, 1.0, place(30, false)), (1, 800.0, place(9, false))]), running(&[1]));
        for gone in [FrameKind::Resumed(9), FrameKind::Started, exited()] {
            assert_eq!(after(vec![(0, 1.0, place(30, false)), (0, 2.0, gone)]), []);
        }
        let ended = |quiet| vec![(0, 1.0, place(quiet, true)), (0, 2.0, exited())];
        assert_eq!((after(ended(9)), after(ended(1))), (vec![(vec![0], None)], Vec::new()));
        let gave_up = FrameKind::GaveUp("Timed out waiting 15000ms".into());
        assert_eq!(after([vec![(1, 0.5, gave_up)], ended(1)].concat()), [(vec![0], None)]);
    }

    #[test]
    fn ranks_and_places_of_roles_are_named() {
        let placement = two_roles();
        let mut waits = Waits::default();
        record(&mut waits, 3, 100.0, waiting(100, "sleeping"));
        record(&mut waits, 2, 100.0, place(30, false));
        record(&mut waits, 0, 100.0, place(30, false));
        let events = waits.take(&placement, Some("j1"), START + 102.0);
        let [Event::Idle { ranks, .. }, Event::Stacks { groups, .. }] = &events[..] else { panic!("{events:?}") };
        assert_eq!(crate::model::idle_rank::with_nodes(ranks), "rank 2 of trainer on node2");
        let names: Vec<String> = groups.iter().map(StackGroup::name).collect();
        assert_eq!(names, ["rank 0 of trainer on node1", "rank 0 of generator on node2"], "each role on its own");
    }

    #[test]
    fn a_rank_that_serves_others_has_not_waited_when_it_is_asked_to_end() {
        let shown = |rank| {
            let mut waits = Waits::default();
            record(&mut waits, rank, 100.0, place(30, true));
            !waits.take(&two_roles(), Some("j1"), START + 102.0).is_empty()
        };
        assert_eq!([2, 0].map(shown), [false, true]);
    }

    #[test]
    fn a_clock_that_is_ahead_delays_no_report() {
        for step in [3600.0, 1e300, f64::INFINITY, f64::NAN] {
            let mut waits = Waits::default();
            let frame = Frame { time: START + 100.0 + step, rank: 3, kind: waiting(100, "sleeping") };
            waits.record("node2", &frame, frame.time, START + 100.0);
            assert_eq!(waits.due(), Some(START + 102.0), "{step}");
            assert_eq!(reported(&mut waits, 102.0), ["idle 3 since 0"], "{step}");
        }
    }
}
