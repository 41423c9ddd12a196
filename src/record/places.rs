//! Where the ranks of a job are that make no progress, and where they were at its end, for the list of jobs.

use super::roles;
use crate::launch::placement::Placement;
use crate::model::idle_rank::IdleRank;
use crate::model::job_result::JobResult;
use crate::model::job_state::JobState;
use crate::model::root_cause::FailureKind;
use crate::model::stack::{self, RankStack};
use crate::text::visible::one_line;

/// The most characters of the sentence.
const MOST: usize = 400;

/// Seconds without progress from which it matters where the ranks of a stopped job were.
const STUCK: u64 = 60;

/// Returns where the ranks of a running job are that make no progress; `None` if there are none, or the stack of one of
/// them has not been read. `stored`: what the nodes have of that; `ranks`: the number of the job's ranks.
pub fn of_running(stored: Vec<RankStack>, idle: &[IdleRank], ranks: u32) -> Option<String> {
    let stack_of = |idle: &IdleRank| stored.iter().find(|stack| (stack.rank, &stack.node) == (idle.rank, &idle.node));
    // the list shows since when they wait; what was known when they were read is out of date
    let waiting = |idle: &IdleRank| stack_of(idle).map(|stack| RankStack { quiet: 0, ..stack.clone() });
    sentence(idle.iter().map(waiting).collect::<Option<Vec<_>>>()?, ranks)
}

/// Returns where the ranks of a job were when they were asked to end, if it failed because ranks waited, or a user
/// stopped it while they made no progress; `None` if that is not known.
pub fn at_end(result: &JobResult, placement: &Placement) -> Option<String> {
    use FailureKind::{Exited, GaveUp, Gone, Hung, Missing};
    let has_waited = match result.root_cause(placement).map(|cause| cause.how) {
        Some(Hung { .. } | Missing { .. } | GaveUp { .. }) => true,
        Some(Exited { .. } | Gone { .. }) | None => false,
    };
    let is_stopped = result.state() == JobState::Stopped;
    if !has_waited && !is_stopped {
        return None;
    }
    let node_of = |rank: u32| {
        let exit = result.exits.iter().find(|exit| exit.rank == rank).map(|exit| exit.node.as_str());
        exit.or_else(|| Some(placement.node_of(rank)?.0)).unwrap_or("?")
    };
    let mut stacks = Vec::new();
    for place in &result.places {
        // the ranks of the job can write there
        let of_job = place.ranks.iter().filter(|rank| **rank < result.ranks.max(placement.ranks()));
        stacks.extend(
            of_job
                .filter_map(|rank| Some(RankStack { rank: *rank, ..RankStack::read(node_of(*rank), &place.stack)? }))
                .map(|stack| roles::named(stack, placement)),
        );
    }
    let is_stuck = has_waited || stacks.iter().any(|stack| stack.quiet >= STUCK);
    is_stuck.then(|| sentence(stacks, result.ranks))?
}

fn sentence(stacks: Vec<RankStack>, ranks: u32) -> Option<String> {
    stack::sentence(&stack::groups(stacks), Some(ranks)).map(|text| one_line(&text, MOST))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::launch::placement::Share;
    use crate::model::job_result::{HungRank, PlaceOfRanks, RankExit};

    /// The stack of a rank at a line of the program, as `stacks.py` stores it.
    fn stored(name: &str, line: u32) -> String {
        let file = if name == "load" { "data.py" } else { "train.py" };
        format!(
            "{{\"rank\": 0, \"quiet\": 31, \"ending\": true, \"left_out\": 0, \"processes\": [{{\"pid\": 0, \"command\": \
             \"\", \"does\": \"sleeping in clock_nanosleep\", \"threads\": [{{\"name\": \"MainThread\", \"active\": false, \
             \"frames\": [{{\"name\": \"{name}\", \"file\": \"/w/{file}\", \"line\": {line}}}]}}]}}]}}"
        )
    }

    fn on(node: &str, rank: u32, name: &str, line: u32) -> RankStack {
        RankStack { rank, ..RankStack::read(node, &stored(name, line)).unwrap() }
    }

    fn idle(node: &str, rank: u32) -> IdleRank {
        IdleRank { rank, role: None, node: node.into(), since: 1.0, does: "sleeping".into() }
    }

    #[test]
    fn a_running_job_shows_where_all_that_wait_are() {
        let places = || vec![on("a", 0, "all_reduce", 44), on("a", 1, "all_reduce", 44), on("b", 3, "load", 31)];
        let waiting = [idle("a", 0), idle("a", 1), idle("b", 3)];
        assert_eq!(
            of_running(places(), &waiting, 4).as_deref(),
            Some(
                "2 of 4 ranks wait in all_reduce (train.py:44); rank 3 on b is in load (data.py:31), sleeping in \
                 clock_nanosleep"
            )
        );
        // rank 2 makes no progress either, and was not read; rank 3 has moved to another node
        assert_eq!(of_running(places(), &[waiting[0].clone(), idle("b", 2)], 4), None);
        assert_eq!(of_running(places(), &[idle("c", 3)], 4), None);
        assert_eq!(of_running(places(), &[], 4), None);
        assert_eq!(
            of_running(places(), &waiting[..1], 4).as_deref(),
            Some("rank 0 on a waits in all_reduce (train.py:44)")
        );
    }

    #[test]
    fn an_ended_job_shows_where_its_ranks_were() {
        let place = |ranks: &[u32], stack: String| PlaceOfRanks { ranks: ranks.to_vec(), stack };
        let places = vec![place(&[3], stored("load", 31)), place(&[0, 1, 2, 900], stored("all_reduce", 44))];
        let share = |node: &str, first| Share { node: node.into(), ranks: 2, first, ..Share::default() };
        let placement = Placement { shares: vec![share("a", 0), share("b", 2)], ..Placement::default() };
        let hung = HungRank { rank: 3, seconds: 60, tensors: Some("allreduce.a".into()), idle: None, time: 1.0 };
        let exit = |rank, node: &str, code, asked| RankExit {
            rank,
            node: node.into(),
            code,
            signal: None,
            time: 2.0,
            asked,
            oom: false,
        };
        let exits = vec![exit(0, "a", 1, false), exit(3, "b", 143, true)];
        let failed = JobResult { ranks: 4, started: 4, launcher: Some(1), exits, places, ..JobResult::default() };
        assert_eq!(at_end(&failed, &placement), None, "that has nothing to do with waiting");
        let stopped = |quiet: u64| {
            let places = failed.places.iter().map(|place| PlaceOfRanks {
                stack: place.stack.replace("\"quiet\": 31", &format!("\"quiet\": {quiet}")),
                ..place.clone()
            });
            JobResult { stopped: true, launcher: None, places: places.collect(), ..failed.clone() }
        };
        assert_eq!(at_end(&stopped(59), &placement), None);
        assert!(at_end(&stopped(60), &placement).is_some_and(|text| text.contains("since 60 s")));
        let result = JobResult { hung: vec![hung], ..failed };
        assert_eq!(
            at_end(&result, &placement).as_deref(),
            Some(
                "3 of 4 ranks wait in all_reduce (train.py:44); rank 3 on b is in load (data.py:31), sleeping in \
                 clock_nanosleep since 31 s"
            )
        );
        let forged = |stack: &str| JobResult { places: vec![place(&[1], stack.into())], ..result.clone() };
        for text in ["", "{", "[]", &"[".repeat(10_000)] {
            assert_eq!(at_end(&forged(text), &placement), None, "{text:.20}");
        }
        let long = at_end(&forged(&stored(&"f".repeat(900), 1)), &placement).unwrap();
        assert_eq!(long.chars().count(), MOST + 1);
    }
}
