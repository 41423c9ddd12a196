//! The evidence that an ended job gives about its nodes.

use super::NodeEvents;
use crate::diagnosis::machine::node_fault;
use crate::diagnosis::outcome::JobOutcome;
use crate::grade::assessment::Evidence;
use crate::grade::ledger::LedgerEvent;
use crate::launch::placement::Placement;
use crate::model::job_state::JobState;
use crate::model::root_cause::RootCause;
use crate::record::list::Job;
use crate::text::visible::one_line;
use std::collections::BTreeMap;

/// The seconds before the first entry of a ledger within which a job must have ended to be added to it.
const SLACK: f64 = 86_400.0;

/// The most characters of the reason why a job was lost.
const REASON: usize = 120;

/// A job that has ended.
#[derive(Debug, Clone)]
pub struct EndedJob<'a> {
    /// Its id.
    pub id: &'a str,
    /// Its final state.
    pub state: JobState,
    /// The placement of its ranks.
    pub placement: &'a Placement,
    /// When it ended, in seconds since the epoch.
    pub ended: f64,
    /// The time for which it had its nodes, in seconds.
    pub seconds: f64,
    /// The root cause of its failure.
    pub root_cause: Option<&'a RootCause>,
    /// The last lines of the rank by which it failed, if they are known.
    pub last_lines: &'a [String],
    /// Nodes because of which it or an earlier attempt was lost, and why, if that does not follow from the root cause.
    pub blamed: Vec<(&'a str, &'static str)>,
}

impl<'a> EndedJob<'a> {
    /// Returns a job that was watched from `began` to `ended`, in seconds since the epoch; `None` if it goes on.
    pub fn watched(job: &'a JobOutcome, began: f64, ended: f64) -> Option<EndedJob<'a>> {
        let JobOutcome { id, state, placement, last_lines, .. } = job;
        let root_cause = job.root_cause.as_ref();
        let (seconds, blamed) = (ended - began, Vec::new());
        let job = EndedJob { id, state: *state, placement, ended, seconds, root_cause, last_lines, blamed };
        has_ended(*state).then_some(job)
    }

    /// Returns a job that is recorded with its result; `None` if it has none, or is a check of hvdctl's own.
    pub fn recorded(job: &'a Job) -> Option<EndedJob<'a>> {
        let (state, ended) = (job.state.filter(|state| has_ended(*state))?, job.ended?);
        let silent = job.attempts.iter().flat_map(|attempt| &attempt.silent);
        let recorded = EndedJob {
            id: &job.id,
            state,
            placement: &job.placement,
            ended,
            seconds: ended - job.started,
            root_cause: job.root_cause.as_ref(),
            last_lines: &[],
            blamed: silent.map(|node| (node.as_str(), "an attempt ended when the node did not answer")).collect(),
        };
        (!job.is_check).then_some(recorded)
    }

    /// Returns a job that recorded no result because its launcher's node was restarted.
    fn restarted(job: &'a Job, nodes: &[Evidence]) -> Option<EndedJob<'a>> {
        let launcher = job.launcher();
        let booted = nodes.iter().find(|node| node.node == launcher)?.ledger.booted;
        let is_lost = job.state == Some(JobState::Lost) && job.result.is_none() && !job.is_check && job.started > 0.0;
        (is_lost && booted > job.started).then(|| EndedJob {
            id: &job.id,
            state: JobState::Lost,
            placement: &job.placement,
            ended: booted,
            seconds: booted - job.started,
            root_cause: None,
            last_lines: &[],
            blamed: vec![(launcher, "the node was restarted, and the job has no result")],
        })
    }

    /// Returns what is recorded of its nodes.
    pub fn events(&self) -> NodeEvents {
        let blamed = self.lost();
        let shares = self.placement.shares.iter().filter_map(|share| {
            let lost = blamed.get(share.node.as_str()).map(|why| one_line(why, REASON));
            let event = LedgerEvent::Job {
                job: self.id.to_owned(),
                state: self.state,
                seconds: self.seconds.clamp(0.0, 1e9).round(),
                gpus: share.shared.then_some(share.gpus.len() as u32),
                lost,
            };
            (share.ranks > 0 || blamed.contains_key(share.node.as_str())).then(|| (share.node.clone(), vec![event]))
        });
        shares.collect()
    }

    /// Returns the nodes because of which it, or an earlier attempt, was lost, and why.
    fn lost(&self) -> BTreeMap<&'a str, String> {
        let blamed = self.blamed.iter().map(|(node, why)| (*node, (*why).to_owned()));
        let cause = self.root_cause.and_then(|cause| Some((cause.node.as_str(), node_fault(cause, self.last_lines)?)));
        blamed.chain(cause).collect()
    }
}

fn has_ended(state: JobState) -> bool {
    matches!(state, JobState::Succeeded | JobState::Failed | JobState::Stopped | JobState::Lost)
}

/// Returns what is not recorded yet of jobs on these nodes: the whole job, or that it was lost because of the node. A
/// job that is older than a ledger is left out of it: it may have been there, and had to go.
pub fn unrecorded(nodes: &[Evidence], jobs: &[Job]) -> NodeEvents {
    missing(nodes, jobs.iter().filter_map(|job| EndedJob::recorded(job).or_else(|| EndedJob::restarted(job, nodes))))
}

fn missing<'a>(nodes: &[Evidence], jobs: impl Iterator<Item = EndedJob<'a>>) -> NodeEvents {
    let mut found = NodeEvents::new();
    for job in jobs {
        for (name, events) in job.events() {
            let Some(Evidence { ledger, .. }) = nodes.iter().find(|node| node.node == name) else { continue };
            let is_older = ledger.entries.first().is_some_and(|first| job.ended + SLACK < first.time);
            let is_new = |event: &LedgerEvent| match (ledger.job(job.id), event) {
                (None, _) => !is_older,
                (Some(LedgerEvent::Job { lost: None, .. }), LedgerEvent::Job { lost: Some(_), .. }) => true,
                _ => false,
            };
            let new: Vec<LedgerEvent> = events.into_iter().filter(is_new).collect();
            if !new.is_empty() {
                found.entry(name).or_default().extend(new);
            }
        }
    }
    found
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use crate::grade::ledger::{Entry, Ledger};
    use crate::launch::placement::{MapBy, place};
    use crate::record::list::{JobFiles, jobs};
    use crate::record::{Attempt, JobResult, RankExit, Record};

    fn placement() -> Placement {
        place(&[("a".into(), 2), ("b".into(), 2)], 4, MapBy::Slot).unwrap()
    }

    /// A job of four ranks with this result, and the last lines of the rank that failed.
    pub fn ended(result: JobResult, last_lines: &[&str]) -> JobOutcome {
        let result = JobResult { ranks: 4, started: 4, ended: 70.0, ..result };
        let outcome = JobOutcome::new("j", &placement(), result);
        JobOutcome { last_lines: last_lines.iter().map(|line| (*line).to_owned()).collect(), ..outcome }
    }

    pub fn exits(codes: [i32; 4]) -> Vec<RankExit> {
        let exit = |(rank, code): (u32, i32)| RankExit {
            rank,
            node: if rank < 2 { "a" } else { "b" }.to_owned(),
            code,
            signal: None,
            time: f64::from(rank),
            asked: false,
            oom: false,
        };
        (0..).zip(codes).map(exit).collect()
    }

    /// Returns the nodes because of which a job was lost, each with the reason.
    fn lost(job: &JobOutcome) -> Vec<(String, Option<String>)> {
        let events = EndedJob::watched(job, 10.0, 70.0).unwrap().events().into_iter();
        let lost = |(node, events): (String, Vec<LedgerEvent>)| match &events[..] {
            [LedgerEvent::Job { lost, seconds, gpus: None, .. }] if *seconds == 60.0 => (node, lost.clone()),
            other => panic!("{other:?}"),
        };
        events.map(lost).collect()
    }

    #[test]
    fn a_job_counts_against_a_node_that_caused_its_end_and_no_other() {
        let good = (|| ("a".to_owned(), None), || ("b".to_owned(), None));
        let succeeded = ended(JobResult { launcher: Some(0), exits: exits([0; 4]), ..JobResult::default() }, &[]);
        assert_eq!(lost(&succeeded), [good.0(), good.1()]);
        // the program's own failure
        let failed = JobResult { launcher: Some(1), exits: exits([0, 0, 1, 0]), ..JobResult::default() };
        for line in
            ["Segmentation fault", "RuntimeError: CUDA out of memory", "CUDA error: device-side assert triggered"]
        {
            assert_eq!(lost(&ended(failed.clone(), &["step 7", line])), [good.0(), good.1()]);
        }
        let ecc = "RuntimeError: CUDA error: uncorrectable ECC error encountered";
        assert_eq!(lost(&ended(failed, &["step 7", ecc, "bye"])), [good.0(), ("b".to_owned(), Some(ecc.to_owned()))]);
        let gone = JobResult {
            launcher: Some(1),
            exits: exits([0, 1, 0, 0])[..2].to_vec(),
            silent: vec!["b".into()],
            silence: [("b".to_owned(), "No route to host\nmore".to_owned())].into(),
            ..JobResult::default()
        };
        let why = "the node did not answer: No route to host";
        assert_eq!(lost(&ended(gone, &[])), [good.0(), ("b".to_owned(), Some(why.to_owned()))]);
        // all nodes answered, and it is not known how the ranks of one ended
        let unknown = JobResult {
            launcher: Some(1),
            started: 4,
            ranks: 4,
            exits: exits([0; 4])[..2].to_vec(),
            ..JobResult::default()
        };
        assert_eq!(lost(&ended(unknown, &[])), [good.0(), good.1()]);
        assert!(EndedJob::watched(&JobOutcome::running("j", &placement()), 0.0, 1.0).is_none());
    }

    #[test]
    fn jobs_that_were_not_recorded_are_found_once() {
        let evidence = |name: &str, times: &[f64], job: Option<Option<&str>>| {
            let mut entries: Vec<Entry> = times
                .iter()
                .map(|time| Entry { time: *time, event: LedgerEvent::check("verify", Vec::new(), Vec::new()) })
                .collect();
            entries.extend(job.map(|lost| Entry {
                time: 5e6,
                event: LedgerEvent::Job {
                    job: "j".into(),
                    state: JobState::Failed,
                    seconds: 1.0,
                    gpus: None,
                    lost: lost.map(Into::into),
                },
            }));
            Evidence {
                node: name.into(),
                ledger: Ledger { entries, now: 6e6, ..Ledger::default() },
                ..Evidence::default()
            }
        };
        let (placement, silent) = (placement(), Attempt { silent: vec!["b".into()], ..Attempt::default() });
        let found = |nodes: &[Evidence], ended: f64, attempts: &[Attempt]| {
            let job = EndedJob {
                id: "j",
                state: JobState::Succeeded,
                placement: &placement,
                ended,
                seconds: 60.0,
                root_cause: None,
                last_lines: &[],
                blamed: attempts
                    .iter()
                    .flat_map(|attempt| &attempt.silent)
                    .map(|node| (node.as_str(), "lost"))
                    .collect(),
            };
            missing(nodes, [job].into_iter()).into_keys().collect::<Vec<_>>()
        };
        let (empty, known) = (evidence("a", &[], None), evidence("b", &[1e6], Some(None)));
        assert_eq!(found(&[empty.clone(), known.clone()], 2e6, &[]), ["a"]);
        // it is known only now that it was lost because of b
        assert_eq!(found(std::slice::from_ref(&known), 2e6, std::slice::from_ref(&silent)), ["b"]);
        assert_eq!(found(&[evidence("b", &[1e6], Some(Some("why")))], 2e6, &[silent]), [""; 0]);
        // what a full ledger had to drop does not come back
        assert_eq!(found(&[evidence("a", &[4e6], None)], 2e6, &[]), [""; 0]);
        assert_eq!(found(&[evidence("a", &[2e6 + 3600.0], None)], 2e6, &[]), ["a"]);
        assert_eq!(found(&[], 2e6, &[]), [""; 0]);
    }

    #[test]
    fn a_job_without_a_result_counts_against_a_launchers_node_that_was_restarted() {
        let record = Record {
            id: "j".into(),
            cluster: "lab".into(),
            created: 1000.0,
            placement: placement(),
            ..Record::default()
        };
        let nodes = ["a".to_owned(), "b".to_owned()];
        let files = JobFiles { record: Some(Ok(record)), nodes: nodes.to_vec(), ..JobFiles::default() };
        let jobs = jobs("lab", [("j".to_owned(), files)].into(), &["a", "b"], 1e6);
        assert_eq!(jobs[0].state, Some(JobState::Lost));
        let found = |booted: [f64; 2]| {
            let evidence = |(node, booted): (&String, f64)| {
                let ledger = Ledger { now: 1e6, booted, ..Ledger::default() };
                Evidence { node: node.clone(), ledger, ..Evidence::default() }
            };
            let nodes: Vec<Evidence> = nodes.iter().zip(booted).map(evidence).collect();
            let blames = |events: &Vec<LedgerEvent>| matches!(events[..], [LedgerEvent::Job { lost: Some(_), .. }]);
            unrecorded(&nodes, &jobs).into_iter().map(|(node, events)| (node, blames(&events))).collect::<Vec<_>>()
        };
        assert_eq!(found([500.0, 500.0]), []);
        assert_eq!(found([1500.0, 500.0]), [("a".to_owned(), true), ("b".to_owned(), false)]);
        assert_eq!(found([500.0, 1500.0]), [], "the launcher would have recorded it");
    }
}
