//! Ranks that make no progress, as their supervisors report them (`src/scripts/programs/waiting.py`): collected for a moment, so that many that
//! wait at the same time are one message, and reported once for each time that they wait.

use super::frames::{Frame, Kind};
use crate::event::Event;
use crate::model::idle_rank::{IdleRank, descriptions, since, with_nodes};
use crate::text::units::span;
use std::collections::BTreeMap;
use std::time::Duration;

/// Seconds for which reports are collected at least.
const SHORTEST: f64 = 1.0;
/// Seconds for which reports are collected at most.
const LONGEST: f64 = 60.0;

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
    due: Option<f64>,
}

impl Waits {
    /// Records a frame of a node's log, which was written at `time` and is read at `now`.
    pub fn record(&mut self, node: &str, frame: &Frame, time: f64, now: f64) {
        let rank = frame.rank;
        match &frame.kind {
            Kind::Waits { seconds, does } => {
                let since = time - *seconds as f64;
                let idle = IdleRank { rank, node: node.to_owned(), since, does: does.clone() };
                // supervisors sample a hundred times in that time: ranks that wait together are reported that far apart
                let window = (*seconds as f64 / 50.0).clamp(SHORTEST, LONGEST);
                self.waiting.insert(rank, Wait { rank: idle, is_reported: false, window });
                self.set_due(time + window, now);
            }
            Kind::Resumed(seconds) => {
                // what was not reported need not be taken back
                if let Some(wait) = self.waiting.remove(&rank).filter(|wait| wait.is_reported) {
                    self.resumed.insert(rank, (wait.rank, *seconds));
                    self.set_due(time + wait.window, now);
                }
            }
            Kind::Started | Kind::Exited { .. } => drop(self.waiting.remove(&rank)),
            _ => {}
        }
    }

    /// What is read later than it was written waits for what was written at the same time.
    fn set_due(&mut self, at: f64, now: f64) {
        self.due = self.due.or(Some(at.max(now + SHORTEST)));
    }

    /// Returns when there is something to report.
    pub fn due(&self) -> Option<f64> {
        self.due
    }

    /// Returns what is to be reported now. `job`: the job's id, as long as it runs.
    pub fn take(&mut self, job: Option<&str>, now: f64) -> Vec<Event> {
        self.due = None;
        let (resumed, times): (Vec<IdleRank>, Vec<u64>) = std::mem::take(&mut self.resumed).into_values().unzip();
        let new = |wait: &mut Wait| (!std::mem::replace(&mut wait.is_reported, true)).then(|| wait.rank.clone());
        let idle: Vec<IdleRank> = self.waiting.values_mut().filter_map(new).collect();
        let mut events = Vec::new();
        if let Some(seconds) = times.into_iter().max() {
            let text = resumption(&resumed, seconds);
            events.push(Event::Resumed { ranks: resumed, seconds, text });
        }
        if let Some(text) = warning(&idle, job, now) {
            events.push(Event::Idle { ranks: idle, text });
        }
        events
    }
}

/// Formats the warning about ranks that make no progress; `None` without ranks.
fn warning(idle: &[IdleRank], job: Option<&str>, now: f64) -> Option<String> {
    let (named, since, what) = (with_nodes(idle), since(idle, now)?, descriptions(idle));
    let has = if idle.len() == 1 { "has" } else { "have" };
    let does = match &what[..] {
        [_] => format!(" {}", idle.first()?.does),
        _ => what.iter().map(|text| format!("\n    {text}")).collect(),
    };
    let hint = job.map_or_else(String::new, |job| {
        format!(
            "\n  hint: if the wait is not intended, hvdctl stop {job} ends the job; one that is started with --stall-timeout ends by itself"
        )
    });
    Some(format!("{named} {has} made no progress {since}:{does}{hint}"))
}

/// Formats the message about ranks that make progress again.
fn resumption(resumed: &[IdleRank], seconds: u64) -> String {
    let makes = if resumed.len() == 1 { "makes" } else { "make" };
    format!("{} {makes} progress again, after {} without", with_nodes(resumed), span(Duration::from_secs(seconds)))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// 2026-11-21T12:03:04Z.
    const START: f64 = 1_795_262_584.0;

    /// Records that a rank waits, or that it goes on, so many seconds after the start, and reads it at once.
    fn record(waits: &mut Waits, rank: u32, at: f64, kind: Kind) {
        let frame = Frame { time: START + at, rank, kind };
        waits.record(&format!("node{}", rank / 2 + 1), &frame, frame.time, frame.time);
    }

    fn waiting(seconds: u64, does: &str) -> Kind {
        Kind::Waits { seconds, does: does.into() }
    }

    fn texts(waits: &mut Waits, at: f64) -> Vec<String> {
        let text = |event| match event {
            Event::Idle { text, .. } => text.split_once("\n  hint: if the wait is not intended").unwrap().0.to_owned(),
            Event::Resumed { text, .. } => text,
            other => panic!("{other:?}"),
        };
        waits.take(Some("j1"), START + at).into_iter().map(text).collect()
    }

    #[test]
    fn a_wait_is_reported_once_and_its_end_too() {
        let mut waits = Waits::default();
        record(&mut waits, 3, 100.0, waiting(100, "sleeping in clock_nanosleep"));
        assert_eq!(waits.due(), Some(START + 102.0));
        let said = texts(&mut waits, 102.0);
        assert_eq!(said, ["rank 3 on node2 has made no progress since 12:03 UTC: sleeping in clock_nanosleep"]);
        assert_eq!((waits.due(), texts(&mut waits, 103.0)), (None, Vec::new()));
        record(&mut waits, 3, 200.0, Kind::Resumed(195));
        assert_eq!(texts(&mut waits, 202.0), ["rank 3 on node2 makes progress again, after 3m15s without"]);
        // again, and the rank ends meanwhile
        record(&mut waits, 3, 400.0, waiting(100, "sleeping"));
        assert_eq!(texts(&mut waits, 402.0).len(), 1);
        record(&mut waits, 3, 410.0, Kind::Exited { code: 0, signal: None, asked: false, oom: false });
        record(&mut waits, 3, 411.0, Kind::Resumed(111));
        assert_eq!((waits.due(), texts(&mut waits, 412.0)), (None, Vec::new()));
    }

    #[test]
    fn ranks_that_wait_together_are_one_message() {
        let mut waits = Waits::default();
        for rank in (0..8).rev() {
            let does =
                if rank == 5 { "sleeping in clock_nanosleep" } else { "waiting in futex for a lock or another thread" };
            record(&mut waits, rank, 1800.0 + f64::from(rank), waiting(1800, does));
        }
        assert_eq!(waits.due(), Some(START + 1843.0));
        let said = texts(&mut waits, 1843.0);
        let expected = "ranks 0-7 on node[1-4] have made no progress since 12:03 UTC:
    rank 5 on node3: sleeping in clock_nanosleep
    ranks 0-4,6-7 on node[1-4]: waiting in futex for a lock or another thread";
        assert_eq!(said, [expected]);
        record(&mut waits, 8, 1900.0, waiting(1800, "sleeping"));
        (0..8).for_each(|rank| record(&mut waits, rank, 1901.0, Kind::Resumed(1901 - u64::from(rank))));
        let said = texts(&mut waits, 1937.0);
        assert_eq!(said.len(), 2, "{said:?}");
        assert_eq!(said[0], "ranks 0-7 on node[1-4] make progress again, after 31m41s without");
        assert!(said[1].starts_with("rank 8 on node5 has made no progress"), "{said:?}");
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
        read(0, 2000.0, Kind::Resumed(2000));
        read(1, 2000.0, waiting(1800, "sleeping"));
        let event = waits.take(None, START + 9001.0).pop();
        let Some(Event::Idle { text, .. }) = event else { panic!("{event:?}") };
        assert_eq!(text, "rank 1 on node1 has made no progress since 12:06 UTC: sleeping", "no hint for an ended job");
    }
}
