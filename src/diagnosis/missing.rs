//! The rank that others waited for: where a rank failed only because it gave up waiting, or lost its connection, another
//! one is the cause.

use crate::launch::placement::Placement;
use crate::model::job_result::{JobResult, QuietRank, RankExit};
use crate::model::root_cause::{Activity, FailureKind, OtherRanks, RootCause};
use crate::text::collectives::{GivingUp, NcclOperation};
use crate::text::nodeset::printable;
use std::collections::BTreeMap;

/// Seconds by which clocks of nodes may differ, and by which a rank that has ended may be recorded late.
const TOLERANCE: f64 = 1.0;

/// Seconds in which the others notice that a rank has ended: its connections break at once, and they may compute on until
/// their next operation.
const NOTICED: f64 = 10.0;

/// The description by `waiting.py` of a rank that waits for others.
const POLLING: &str = "polling, as a rank that waits for others";

/// System calls in which a rank waits for others, too, unless it waits for something else.
const CALLS: &[&str] =
    &["futex", "poll", "ppoll", "select", "pselect6", "epoll_wait", "epoll_pwait", "recvfrom", "recvmsg"];

/// The most groups of ranks that are described.
const MOST_GROUPS: usize = 4;

/// The ranks of a job, or of one of its roles, and which of them gave up waiting.
struct Waiters<'a> {
    exits: Vec<&'a RankExit>,
    quiet: &'a [QuietRank],
    gave_up: BTreeMap<u32, GivingUp>,
    placement: &'a Placement,
}

impl JobResult {
    /// Returns the cause if the rank that failed first only gave up waiting for another one, or lost its connection to
    /// it; `None` if it failed by itself.
    pub(super) fn missing(&self, first: &RankExit, placement: &Placement) -> Option<RootCause> {
        // ranks of other roles take no part in its collective operations
        let of_role = |rank: u32| placement.are_of_one_role(rank, first.rank);
        let mut lines: BTreeMap<u32, Vec<&str>> = BTreeMap::new();
        let own = self.gave_up.iter().filter(|line| of_role(line.rank));
        own.for_each(|line| lines.entry(line.rank).or_default().push(&line.text));
        let gave_up = lines.into_iter().filter_map(|(rank, lines)| Some((rank, GivingUp::read(lines)?))).collect();
        let exits = self.exits.iter().filter(|exit| of_role(exit.rank)).collect();
        Waiters { exits, quiet: &self.quiet, gave_up, placement }.cause(first)
    }
}

impl Waiters<'_> {
    fn cause(&self, first: &RankExit) -> Option<RootCause> {
        let placement = self.placement;
        let caused = |rank, node, how| Some(RootCause { rank, role: placement.role(rank), node, how });
        let why = self.gave_up.get(&first.rank)?;
        if let Some(ended) = self.ended_before(first, why.is_time_out) {
            return caused(ended.rank, ended.node.clone(), ended.into());
        }
        if !why.is_time_out {
            return None;
        }
        let operation = why.place().map(|place| printable(&place));
        let named = |rank: u32, activity| {
            let exit = self.exits.iter().find(|exit| exit.rank == rank);
            let node = exit.map(|exit| &*exit.node).or(placement.node_of(rank).map(|(node, _)| node));
            let how = FailureKind::Missing {
                waiting: first.rank,
                waiting_role_rank: placement.role_of(first.rank).map(|(_, rank)| rank),
                waiting_node: first.node.clone(),
                operation: operation.clone(),
                address: why.address.clone(),
                activity,
            };
            caused(rank, node.unwrap_or_default().to_owned(), how)
        };
        // the library counts the ranks of the role
        let missing: Vec<u32> = why.missing.iter().map(|rank| placement.in_role_of(first.rank, *rank)).collect();
        let mut groups = self.groups(first.rank, &missing);
        if groups.is_empty()
            && let Some((rank, other)) = self.in_other_operation(first.rank, why)
        {
            return named(rank, Activity { seconds: None, does: Some(format!("in {other}")) });
        }
        if let [OtherRanks { ranks, activity, .. }, rest @ ..] = &groups[..]
            && let [rank] = ranks[..]
            && rest.first().is_none_or(|next| next.ranks.len() > 1 && !may_wait_for_others(activity.does.as_deref()))
        {
            return named(rank, activity.clone());
        }
        groups.truncate(MOST_GROUPS);
        let how = FailureKind::GaveUp { operation, address: why.address.clone(), others: groups };
        caused(first.rank, first.node.clone(), how)
    }

    /// Returns the rank that ended before others gave up or lost their connections to it: one that failed by itself or,
    /// unless most ranks have, one that ended with exit code 0. Unless `is_time_out`, the connection to the latter broke
    /// at its end, so that an earlier end is not the reason.
    fn ended_before(&self, first: &RankExit, is_time_out: bool) -> Option<&RankExit> {
        let is_before = |exit: &&RankExit| exit.rank != first.rank && !exit.asked && exit.time < first.time + TOLERANCE;
        let by_itself =
            self.exits.iter().copied().filter(is_before).filter(|exit| !self.gave_up.contains_key(&exit.rank));
        let (done, failed): (Vec<&RankExit>, Vec<&RankExit>) = by_itself.partition(|exit| exit.code == 0);
        let is_minority = done.len() * 2 <= self.exits.len();
        let mut done = if is_minority { done } else { Vec::new() };
        done.retain(|exit| is_time_out || exit.time > first.time - NOTICED);
        let found = if failed.is_empty() { done } else { failed };
        found.into_iter().min_by(|a, b| a.time.total_cmp(&b.time))
    }

    /// Returns the rank that gave up in another operation of the same process group than most others, and that operation.
    fn in_other_operation(&self, first: u32, why: &GivingUp) -> Option<(u32, &NcclOperation)> {
        let group = &why.operation.as_ref()?.group;
        let mut ranks: BTreeMap<&NcclOperation, Vec<u32>> = BTreeMap::new();
        for (rank, why) in &self.gave_up {
            if let Some(operation) = why.operation.as_ref().filter(|operation| operation.group == *group) {
                ranks.entry(operation).or_default().push(*rank);
            }
        }
        let is_different = ranks.len() > 1;
        let others = ranks.into_iter().filter(|(_, ranks)| is_different && !ranks.contains(&first));
        let (operation, ranks) = others.min_by_key(|(_, ranks)| ranks.len())?;
        Some((*ranks.first()?, operation))
    }

    /// Returns the ranks that did not give up, by what they did, those of the fewest ranks first: they are the likely
    /// cause. `missing`: those that the library names.
    fn groups(&self, first: u32, missing: &[u32]) -> Vec<OtherRanks> {
        let mut others: Vec<u32> = self.exits.iter().map(|exit| exit.rank).filter(|rank| *rank != first).collect();
        let is_named = |rank: &u32| missing.contains(rank);
        match others.iter().any(is_named) {
            true => others.retain(is_named),
            false => others.retain(|rank| !self.gave_up.contains_key(rank)),
        }
        let quiet: BTreeMap<u32, &QuietRank> = self.quiet.iter().map(|quiet| (quiet.rank, quiet)).collect();
        let mut groups: BTreeMap<Option<&str>, OtherRanks> = BTreeMap::new();
        for rank in others {
            let quiet = quiet.get(&rank);
            let does = quiet.map(|quiet| &*quiet.does);
            let group = groups.entry(does).or_insert_with(|| OtherRanks {
                ranks: Vec::new(),
                role_ranks: Vec::new(),
                activity: Activity { seconds: None, does: does.map(printable) },
            });
            group.ranks.push(rank);
            group.role_ranks.extend(self.placement.role_of(rank).map(|(_, rank)| rank));
            group.activity.seconds = group.activity.seconds.max(quiet.map(|quiet| quiet.seconds));
        }
        // those that wait for others are no cause if something else is known of another one
        let is_polling = |does: &Option<&str>| does.is_some_and(|does| does.starts_with(POLLING));
        if groups.keys().any(|does| !is_polling(does)) {
            groups.retain(|does, _| !is_polling(does));
        }
        if groups.keys().any(|does| does.is_some() && !may_wait_for_others(*does)) {
            groups.retain(|does, _| !may_wait_for_others(*does));
        }
        let mut groups: Vec<OtherRanks> = groups.into_values().collect();
        groups.sort_by_key(|group| group.ranks.len());
        groups
    }
}

/// Returns true for an activity, as `waiting.py` describes it, that may be a collective operation.
fn may_wait_for_others(does: Option<&str>) -> bool {
    let call = does.and_then(|does| does.strip_prefix("waiting in ")?.split(' ').next());
    call.is_some_and(|call| CALLS.contains(&call)) || does.is_some_and(|does| does.starts_with(POLLING))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::launch::placement::Share;
    use crate::model::job_result::{HungRank, LineOfRank};
    use crate::model::job_state::JobState;
    use crate::model::role::{Ends, RecordedRole};
    use crate::model::root_cause::Idle;

    const GLOO: &str =
        "RuntimeError: [/gloo/unbound_buffer.cc:78] Timed out waiting 5000ms for recv operation to complete";
    const CLOSED: &str = "RuntimeError: [/gloo/pair.cc:561] Connection closed by peer [10.0.0.2]:14216.";
    const BARRIER: &str = "RuntimeError: [Rank 0]: Ranks 2 failed to pass monitoredBarrier in 4000 ms";
    const SLEEPS: (u64, &str) = (15, "sleeping in clock_nanosleep");
    const FUTEX: (u64, &str) = (15, "waiting in futex for a lock or another thread");
    const RECEIVES: (u64, &str) = (15, "waiting in recvfrom for data from a socket");
    const BLOCKED: (u64, &str) = (15, "blocked in the kernel in nfs_wait");
    const POLLS: (u64, &str) = (15, "polling, as a rank that waits for others in a collective operation");

    fn nccl(sequence: u32, operation: &str) -> String {
        format!("Watchdog caught collective operation timeout: WorkNCCL(SeqNum={sequence}, OpType={operation}, N")
    }

    /// How a rank ended: its code, when, and whether it was asked; the line with which it gave up; its activity.
    type End<'a> = (i32, f64, bool, &'a str, Option<(u64, &'a str)>);

    /// A rank that gave up in the 10th second.
    const fn waited(line: &str) -> End<'_> {
        (1, 10.0, false, line, None)
    }

    /// A rank that gave up a little later.
    const fn waited_too(line: &str) -> End<'_> {
        (1, 10.1, false, line, None)
    }

    /// A rank that was ended after that.
    const fn ended(does: Option<(u64, &'static str)>) -> End<'static> {
        (143, 10.5, true, "", does)
    }

    /// A job with a rank on each node, from `node1` on.
    fn job(ends: &[End<'_>]) -> (JobResult, Placement) {
        let (mut result, mut placement) = (JobResult::default(), Placement::default());
        for (rank, (code, time, asked, line, does)) in (0u32..).zip(ends) {
            let (node, code, time, asked) = (format!("node{}", rank + 1), *code, *time, *asked);
            result.exits.push(RankExit { rank, node: node.clone(), code, signal: None, time, asked, oom: false });
            if !line.is_empty() {
                result.gave_up.push(LineOfRank { rank, text: (*line).into() });
            }
            if let Some((seconds, does)) = does {
                result.quiet.push(QuietRank { rank, seconds: *seconds, does: (*does).into() });
            }
            placement.shares.push(Share { node, ranks: 1, first: rank, ..Share::default() });
        }
        let ranks = ends.len() as u32;
        (JobResult { launcher: Some(1), ranks, started: ranks, ..result }, placement)
    }

    fn said(ends: &[End<'_>]) -> String {
        let (result, placement) = job(ends);
        assert_eq!(result.code(), result.first_failure().map(|exit| exit.code.into()), "that of the first failure");
        result.root_cause(&placement).unwrap().to_string()
    }

    #[test]
    fn the_rank_that_did_not_come_is_the_cause() {
        let sleeps = "had made no progress for 15 s: sleeping in clock_nanosleep";
        let futex = "had made no progress for 15 s: waiting in futex for a lock or another thread";
        let receives = "had made no progress for 15 s: waiting in recvfrom for data from a socket";
        let of_group = |group: u32, text: &str| format!("[PG ID 1 PG GUID {group} Rank 0] {text}");
        let (reduce, broadcast) = (nccl(5, "ALLREDUCE"), nccl(5, "BROADCAST"));
        let (in_reduce, in_broadcast) = (" in ALLREDUCE (sequence number 5)", "in BROADCAST (sequence number 5)");
        for (ends, text) in [
            (vec![waited(GLOO), ended(Some(SLEEPS))], format!("; rank 1 on node2 {sleeps}")),
            (vec![waited(GLOO), ended(None)], "; rank 1 on node2 was still running".into()),
            // others that wait in the same operation were asked before their own time was over
            (
                vec![waited(GLOO), ended(Some(FUTEX)), ended(Some(SLEEPS)), ended(Some(FUTEX))],
                format!("; rank 2 on node3 {sleeps}"),
            ),
            (
                vec![waited(GLOO), ended(Some(FUTEX)), ended(None), ended(Some(FUTEX))],
                "; rank 2 on node3 was still running".into(),
            ),
            (vec![waited(GLOO), ended(Some(POLLS)), ended(Some(FUTEX))], format!("; rank 2 on node3 {futex}")),
            (
                vec![waited(GLOO), waited_too(GLOO), (143, 10.2, true, CLOSED, None), ended(Some(FUTEX))],
                format!("; rank 3 on node4 {futex}"),
            ),
            (vec![waited(BARRIER), ended(Some(FUTEX)), ended(Some(FUTEX))], format!("; rank 2 on node3 {futex}")),
            // a whole node hangs, and a rank elsewhere waits for it
            (
                vec![waited(GLOO), ended(Some(FUTEX)), ended(Some(BLOCKED)), ended(Some(BLOCKED))],
                "; ranks 2-3 had made no progress for 15 s: blocked in the kernel in nfs_wait".into(),
            ),
            (
                vec![waited(GLOO), ended(Some(FUTEX)), ended(None), ended(None)],
                format!("; rank 1 {futex}; ranks 2-3 were still running"),
            ),
            (
                vec![waited(GLOO), ended(Some(RECEIVES)), ended(Some(FUTEX)), ended(Some(FUTEX))],
                format!("; rank 1 {receives}; ranks 2-3 {futex}"),
            ),
            // the others did the same, or different things
            (vec![waited(GLOO), ended(Some(FUTEX)), ended(Some((9, FUTEX.1)))], format!("; ranks 1-2 {futex}")),
            (
                vec![waited(GLOO), ended(Some(SLEEPS)), ended(None)],
                format!("; rank 2 was still running; rank 1 {sleeps}"),
            ),
            (vec![waited(GLOO), ended(None), ended(None)], "; ranks 1-2 were still running".into()),
            (vec![waited(GLOO), waited_too(GLOO)], ", which waited, too".into()),
            // other operations
            (vec![waited(&reduce), waited_too(&broadcast)], format!("{in_reduce}; rank 1 on node2 was {in_broadcast}")),
            (
                vec![waited(&reduce), waited_too(&reduce), waited_too(&broadcast)],
                format!("{in_reduce}; rank 2 on node3 was {in_broadcast}"),
            ),
            (
                vec![waited(&reduce), waited_too(&reduce), ended(Some(SLEEPS))],
                format!("{in_reduce}; rank 2 on node3 {sleeps}"),
            ),
            (
                vec![waited(&reduce), waited_too(&broadcast), ended(Some(SLEEPS))],
                format!("{in_reduce}; rank 2 on node3 {sleeps}"),
            ),
            // those of other process groups
            (
                vec![waited(&of_group(1, &reduce)), waited_too(&of_group(2, &broadcast))],
                format!("{in_reduce}, which waited, too"),
            ),
            (
                vec![waited(&of_group(1, &reduce)), waited_too(&of_group(1, &broadcast))],
                format!("{in_reduce}; rank 1 on node2 was {in_broadcast}"),
            ),
        ] {
            assert_eq!(said(&ends), format!("rank 0 on node1 gave up waiting for the others{text}"));
        }
    }

    #[test]
    fn a_rank_that_ended_before_is_the_cause() {
        let killed = "rank 1 on node2 ended with exit code 137";
        let done = "rank 1 on node2 ended with exit code 0 while the others waited for it";
        let first = "rank 0 on node1 ended with exit code 1";
        let end = |code, time, asked| (code, time, asked, "", None);
        for (ends, text) in [
            (vec![waited(CLOSED), end(0, 9.0, false)], done),
            (vec![waited(GLOO), end(0, 3.0, false)], done),
            (vec![waited(CLOSED), end(137, 9.9, false)], killed),
            // recorded a moment later, as clocks differ
            (vec![waited(CLOSED), end(137, 10.4, false)], killed),
            (vec![waited(CLOSED), end(137, 10.4, false), waited_too(CLOSED)], killed),
            // long before, and where a connection to something else is lost
            (vec![waited(CLOSED), end(0, -20.0, false)], first),
            (vec![waited("requests.exceptions.ConnectionError: Connection refused"), end(0, 9.0, false)], first),
            // much later, and after a request
            (vec![waited(CLOSED), end(7, 12.0, false)], first),
            (vec![waited(CLOSED), end(137, 10.9, true)], first),
            // most have ended well, and this one goes on alone
            (vec![waited(CLOSED), end(0, 9.0, false), end(0, 9.0, false)], first),
            // a failure of its own
            (vec![end(1, 10.0, false), waited_too(CLOSED)], first),
            (vec![end(1, 10.0, false), ended(Some(SLEEPS))], first),
        ] {
            let (result, placement) = job(&ends);
            assert_eq!(result.root_cause(&placement).unwrap().to_string(), text, "{ends:?}");
        }
    }

    #[test]
    fn a_node_that_is_gone_is_the_cause() {
        let (mut result, placement) = job(&[waited(GLOO), ended(Some(SLEEPS)), ended(None)]);
        result.exits.pop();
        result.silent = vec!["node3".into()];
        let cause = result.root_cause(&placement).unwrap().to_string();
        assert_eq!(cause, "rank 2 on node3 is gone; how it ended is unknown");
    }

    #[test]
    fn what_ranks_forge_does_no_harm() {
        let text = said(&[waited(GLOO), ended(Some((9, "\x1b[2J\n")))]);
        assert!(!text.contains(['\x1b', '\n']), "{text}");
        let (mut result, placement) = job(&[waited(GLOO)]);
        for text in [BARRIER.to_owned(), nccl(9, &"X".repeat(9000))] {
            result.gave_up.push(LineOfRank { rank: u32::MAX, text });
        }
        result.ranks = u32::MAX;
        assert!(result.root_cause(&placement).unwrap().to_string().len() < 200);
    }

    /// A job of which the ranks 0, 2 and 3 are a trainer's and the others a generator's, which serves it.
    fn with_roles(ends: &[End<'_>]) -> (JobResult, Placement) {
        let (result, mut placement) = job(ends);
        for (share, is_trainer) in placement.shares.iter_mut().zip([true, false, true, true, false]) {
            share.roles = if is_trainer { vec![1, 0] } else { vec![0, 1] };
        }
        placement.roles = vec![
            RecordedRole::example("trainer", Ends::Job),
            RecordedRole::example("generator", Ends::With { role: 0 }),
        ];
        (result, placement)
    }

    #[test]
    fn ranks_wait_for_those_of_their_own_role() {
        let first = "rank 0 of trainer on node1 gave up waiting for the others";
        let sleeps = "had made no progress for 15 s: sleeping in clock_nanosleep";
        let asked = ended(Some(SLEEPS));
        let gone = (137, 9.0, false, "", None);
        for (ends, text) in [
            // the generators sleep until they get requests
            (
                vec![waited(GLOO), asked, ended(Some(FUTEX)), asked, asked],
                format!("{first}; rank 2 of trainer on node4 {sleeps}"),
            ),
            // the library counts the ranks of the role
            (
                vec![waited(BARRIER), asked, ended(None), asked, asked],
                format!("{first}; rank 2 of trainer on node4 {sleeps}"),
            ),
            (
                vec![waited(GLOO), asked, ended(None), ended(None), asked],
                format!("{first}; ranks 1-2 of trainer were still running"),
            ),
            (
                // recorded a moment later: within one role that would be the cause
                vec![waited(CLOSED), (137, 10.4, false, "", None), waited_too(CLOSED), asked, asked],
                "rank 0 of trainer on node1 ended with exit code 1".into(),
            ),
            (
                vec![waited(CLOSED), asked, gone, asked, asked],
                "rank 1 of trainer on node3 ended with exit code 137".into(),
            ),
        ] {
            let (result, placement) = with_roles(&ends);
            assert_eq!(result.root_cause(&placement).unwrap().to_string(), text);
        }
        let (result, placement) = with_roles(&[waited(GLOO), asked, ended(Some(FUTEX)), asked, asked]);
        let json = serde_json::to_value(result.root_cause(&placement).unwrap()).unwrap();
        let numbers = ["rank", "role_rank", "waiting", "waiting_role_rank"].map(|name| json[name].as_u64());
        assert_eq!((json["role"].as_str(), numbers), (Some("trainer"), [Some(3), Some(2), Some(0), Some(0)]), "{json}");
    }

    #[test]
    fn a_hang_and_an_early_end_are_those_of_one_role() {
        let hung = |rank| HungRank { rank, seconds: 60, tensors: None, idle: Some(Idle::Waiting), time: 1.0 };
        let ended_by_supervisor = (143, 10.0, false, "", None);
        let ends = [ended_by_supervisor, ended(None), ended(None), ended(None), ended(None)];
        let cause = |hanging: &[u32]| {
            let (result, placement) = with_roles(&ends);
            let result = JobResult { hung: hanging.iter().copied().map(hung).collect(), ..result };
            result.root_cause(&placement).unwrap().to_string()
        };
        let waited = "rank 2 of trainer on node4 hung: the others waited 60 s for it in a collective operation";
        assert_eq!(cause(&[0, 2]), waited);
        let all = cause(&[0, 2, 3]);
        assert!(all.starts_with("rank 0 of trainer on node1 hung: all ranks waited 60 s for one another"), "{all}");
        // a generator that had nothing to do is not why the trainer's ranks were ended
        let asked = (143, 10.5, true, "", None);
        let early = (0, 3.0, false, "", None);
        let cause = |ends: [End<'_>; 5]| {
            let (result, placement) = with_roles(&ends);
            result.root_cause(&placement).unwrap().to_string()
        };
        assert_eq!(cause([asked, early, asked, asked, asked]), "rank 0 of trainer on node1 ended with exit code 143");
        let early_trainer = cause([asked, early, asked, early, asked]);
        assert_eq!(early_trainer, "rank 2 of trainer on node4 ended with exit code 0 while the others waited for it");
    }

    #[test]
    fn ranks_that_served_a_role_do_not_count() {
        let (done, failed) = ((0, 9.0, false, "", None), (1, 9.5, false, "", None));
        let killed = (137, 10.0, true, "", None);
        let result = |ends: [End<'_>; 5], served: &[u32]| {
            let (result, placement) = with_roles(&ends);
            (JobResult { launcher: Some(0), served: served.to_vec(), ..result }, placement)
        };
        let (well, placement) = result([done, killed, done, done, failed], &[1, 4]);
        assert_eq!((well.state(), well.code(), well.root_cause(&placement)), (JobState::Succeeded, Some(0), None));
        let mut silent = well.clone();
        silent.exits.retain(|exit| exit.rank != 4);
        assert_eq!(silent.state(), JobState::Succeeded, "its node did not answer");
        silent.exits.retain(|exit| exit.rank != 3);
        assert_eq!(silent.state(), JobState::Lost);
        assert_eq!(silent.root_cause(&placement).unwrap().rank, 3);
        // a generator that failed before
        let (bad, placement) = result([done, failed, done, done, killed], &[4]);
        let cause = bad.root_cause(&placement).unwrap().to_string();
        assert_eq!((bad.state(), &*cause), (JobState::Failed, "rank 0 of generator on node2 ended with exit code 1"));
    }
}
