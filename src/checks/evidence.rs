//! What of a command's result is recorded in the ledger of each node: only what says something of the node itself. What may as well be
//! the fault of another node, of the network between two, of the program or of how the cluster is set up counts for no node.

use super::bench::collectives::RankSpeed;
use super::bench::speeds::PROCESSOR;
use super::bench::{Measurements, Subject, Verdict};
use super::grade::Evidence;
use super::place::RankFault;
use super::verify::RankRow;
use super::{Check, Finding, Severity};
use crate::launch::placement::Placement;
use crate::model::job_state::JobState;
use crate::model::root_cause::{FailureKind, RootCause};
use crate::record::ledger::{Event, Figure};
use crate::record::list::Job;
use crate::record::outcome::JobOutcome;
use crate::text::failure::is_gpu_fault;
use crate::text::visible::one_line;
use std::collections::{BTreeMap, BTreeSet};

/// What is recorded of each node, by its name.
pub type NodeEvents = BTreeMap<String, Vec<Event>>;

/// How many seconds before the first entry of a ledger a job may have ended that is added to it.
const SLACK: f64 = 86_400.0;

/// The most characters of the reason why a job was lost.
const REASON: usize = 120;

/// A job that has ended.
#[derive(Debug, Clone)]
pub struct EndedJob<'a> {
    /// Its id.
    pub id: &'a str,
    /// How it ended.
    pub state: JobState,
    /// Which rank ran where.
    pub placement: &'a Placement,
    /// When it ended, in seconds since the epoch.
    pub ended: f64,
    /// How long it had its nodes, in seconds.
    pub seconds: f64,
    /// Why it failed.
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
            let event = Event::Job {
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

/// Returns why a rank failed if that was its node's fault; a program's own failure is not.
fn node_fault(cause: &RootCause, last_lines: &[String]) -> Option<String> {
    match &cause.how {
        // without an error the node answered, and how its rank ended is not known: the launcher may have been lost instead
        FailureKind::Gone { error } => {
            let error = error.as_deref()?.lines().next().unwrap_or_default();
            Some(if error.is_empty() {
                "the node did not answer".to_owned()
            } else {
                format!("the node did not answer: {error}")
            })
        }
        FailureKind::Exited { .. } => last_lines.iter().rev().find(|line| is_gpu_fault(line)).cloned(),
        FailureKind::Hung { .. } => None,
    }
}

/// Returns what is not recorded yet of jobs on these nodes: the whole job, or that it was lost because of the node. A job that is older
/// than a ledger is left out of it: it may have been there, and had to go.
pub fn unrecorded(nodes: &[Evidence], jobs: &[Job]) -> NodeEvents {
    missing(nodes, jobs.iter().filter_map(|job| EndedJob::recorded(job).or_else(|| EndedJob::restarted(job, nodes))))
}

fn missing<'a>(nodes: &[Evidence], jobs: impl Iterator<Item = EndedJob<'a>>) -> NodeEvents {
    let mut found = NodeEvents::new();
    for job in jobs {
        for (name, events) in job.events() {
            let Some(Evidence { ledger, .. }) = nodes.iter().find(|node| node.node == name) else { continue };
            let is_older = ledger.entries.first().is_some_and(|first| job.ended + SLACK < first.time);
            let is_new = |event: &Event| match (ledger.job(job.id), event) {
                (None, _) => !is_older,
                (Some(Event::Job { lost: None, .. }), Event::Job { lost: Some(_), .. }) => true,
                _ => false,
            };
            let new: Vec<Event> = events.into_iter().filter(is_new).collect();
            if !new.is_empty() {
                found.entry(name).or_default().extend(new);
            }
        }
    }
    found
}

/// Returns what `doctor` found on these nodes.
pub fn of_doctor(nodes: &[String], findings: &[Finding]) -> NodeEvents {
    let of = |node: &String| Some((node.clone(), vec![examined("doctor", node, Vec::new(), findings)?]));
    nodes.iter().filter_map(of).collect()
}

/// Returns the result of a command that examined a node: with what failed, and the findings that say something of the machine. `None`
/// where nothing failed and a part of the examination did: the node may not have passed.
fn examined(by: &str, node: &str, mut failed: Vec<String>, findings: &[Finding]) -> Option<Event> {
    let own = || findings.iter().filter(|finding| finding.nodes.iter().any(|name| name == node));
    let texts = |severity| {
        let counting = own().filter(move |finding| finding.severity == severity && finding.check.is_of_machine());
        counting.map(|finding| format!("{}: {}", finding.check, finding.message))
    };
    let is_whole = !own().any(|finding| matches!(finding.check, Check::Node | Check::Ssh));
    failed.splice(0..0, texts(Severity::Error));
    (is_whole || !failed.is_empty()).then(|| Event::check(by, failed, texts(Severity::Warning).collect()))
}

/// Returns what `verify` found: the faults of the machine that the ranks of each node have, and the findings about it. What the ranks of
/// all nodes of several have is the cluster's fault. If its job failed, a node has only failed if a finding says so or the job was lost
/// because of it.
pub fn of_verify(rows: &[RankRow], ended: &JobOutcome, findings: &[Finding]) -> NodeEvents {
    let has_succeeded = ended.state == JobState::Succeeded;
    let lost = ended.root_cause.as_ref().and_then(|cause| Some((cause, node_fault(cause, &ended.last_lines)?)));
    let mut nodes: BTreeMap<&str, Vec<&String>> = BTreeMap::new();
    for row in rows {
        let known = nodes.entry(&row.expected).or_default();
        for fault in &row.faults {
            // several ranks may have the same one
            if let RankFault::Machine(text) = fault
                && !known.contains(&text)
            {
                known.push(text);
            }
        }
    }
    let is_common = |fault: &String| nodes.len() > 1 && nodes.values().all(|faults| faults.contains(&fault));
    let of = |(node, faults): (&&str, &Vec<&String>)| {
        let failed = match &lost {
            Some((cause, why)) if cause.node == **node => vec![why.clone()],
            _ if has_succeeded => faults.iter().filter(|fault| !is_common(fault)).map(|f| (*f).clone()).collect(),
            _ => Vec::new(),
        };
        let event = examined("verify", node, failed, findings)?;
        (has_succeeded || has_failed(&event)).then(|| ((*node).to_owned(), vec![event]))
    };
    nodes.iter().filter_map(of).collect()
}

/// Returns what a `verify` that started no job recorded of the nodes with errors among these findings. The others have not passed either.
pub fn of_stopped(findings: &[Finding]) -> NodeEvents {
    let nodes: BTreeSet<&String> = findings.iter().flat_map(|finding| &finding.nodes).collect();
    let of = |node: &String| {
        let event = examined("verify", node, Vec::new(), findings)?;
        has_failed(&event).then(|| (node.clone(), vec![event]))
    };
    nodes.into_iter().filter_map(of).collect()
}

fn has_failed(event: &Event) -> bool {
    matches!(event, Event::Check { failed, .. } if !failed.is_empty())
}

/// Returns what `bench` found between nodes. Nothing is known of any if its measurements vary too much.
pub fn of_network(measured: &Measurements, verdict: &Verdict) -> NodeEvents {
    if verdict.is_unclear {
        return NodeEvents::new();
    }
    let names: Vec<&str> = measured.nodes.iter().map(|node| node.name.as_str()).collect();
    let of = |(index, name): (usize, &&str)| {
        let accused =
            verdict.accusations.iter().filter(|found| matches!(found.subject, Subject::Node(node, _) if node == index));
        let failed = accused.map(|accusation| accusation.sentence(&names)).collect();
        let best = |is_own: &dyn Fn(usize, usize) -> bool| {
            let own = measured.directions.iter().filter(|direction| is_own(direction.from, direction.to));
            own.filter_map(|direction| direction.bandwidth()).max_by(f64::total_cmp)
        };
        let processor = measured.nodes[index].compute.map(|compute| compute.loops_per_s);
        // of two nodes it is not known which one is slow
        let tells = names.len() > 2;
        let figures = [
            (Figure::Send, best(&|from, _| tells && from == index)),
            (Figure::Receive, best(&|_, to| tells && to == index)),
            (Figure::Processor, processor),
        ];
        let figures = Event::bench(figures.into_iter().filter_map(|(figure, value)| Some((figure, value?))));
        ((*name).to_owned(), vec![Event::check("bench", failed, Vec::new()), figures])
    };
    names.iter().enumerate().map(of).collect()
}

/// Returns what the ranks of `bench` found on the nodes of their job, each with the node that it is about.
pub fn of_ranks(nodes: &[String], findings: &[(Option<String>, String)]) -> NodeEvents {
    let of = |name: &String| {
        let own = findings.iter().filter(|(node, _)| node.as_ref() == Some(name));
        vec![Event::check("bench", own.map(|(_, text)| text.clone()).collect(), Vec::new())]
    };
    nodes.iter().map(|name| (name.clone(), of(name))).collect()
}

/// Returns the speed of the slowest GPU of each node. That of its processors depends on how many threads a rank has; [`of_network`] has one
/// that does not.
pub fn of_speeds(speeds: &[RankSpeed]) -> NodeEvents {
    let mut slowest: BTreeMap<&str, f64> = BTreeMap::new();
    for speed in speeds.iter().filter(|speed| speed.device != PROCESSOR) {
        let known = slowest.entry(&speed.node).or_insert(speed.flops);
        *known = known.min(speed.flops);
    }
    let event = |flops| vec![Event::bench([(Figure::Product, flops)])];
    slowest.into_iter().map(|(node, flops)| (node.to_owned(), event(flops))).collect()
}

/// Joins what two parts of a command found: they are one check and one measurement.
pub fn joined(mut all: NodeEvents, more: NodeEvents) -> NodeEvents {
    for (node, events) in more {
        let known = all.entry(node).or_default();
        events.into_iter().for_each(|event| add(known, event));
    }
    all
}

fn add(known: &mut Vec<Event>, event: Event) {
    for other in known.iter_mut() {
        match (other, &event) {
            (Event::Check { failed, warned, .. }, Event::Check { failed: more_failed, warned: more_warned, .. }) => {
                failed.extend(more_failed.iter().cloned());
                warned.extend(more_warned.iter().cloned());
                return;
            }
            (Event::Bench { figures }, Event::Bench { figures: more }) => {
                figures.extend(more);
                return;
            }
            _ => {}
        }
    }
    known.push(event);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::checks::bench::{Accusation, Compute, Direction, NodeEvidence, Symptom, Transfer, Usage, Way};
    use crate::checks::failure;
    use crate::error::NodeError;
    use crate::launch::placement::{MapBy, place};
    use crate::record::ledger::{Entry, Ledger};
    use crate::record::list::{JobFiles, jobs};
    use crate::record::monitor::Monitor;
    use crate::record::{Attempt, JobResult, RankExit, Record};

    fn placement() -> Placement {
        place(&[("a".into(), 2), ("b".into(), 2)], 4, MapBy::Slot).unwrap()
    }

    /// A job of four ranks with this result, and the last lines of the rank that failed.
    fn ended(result: JobResult, last_lines: &[&str]) -> JobOutcome {
        let result = JobResult { ranks: 4, started: 4, ended: 70.0, ..result };
        let outcome = JobOutcome::new("j", &placement(), result, &Monitor::default());
        JobOutcome { last_lines: last_lines.iter().map(|line| (*line).to_owned()).collect(), ..outcome }
    }

    fn exits(codes: [i32; 4]) -> Vec<RankExit> {
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

    /// Which nodes a job was lost because of, and why.
    fn lost(job: &JobOutcome) -> Vec<(String, Option<String>)> {
        let events = EndedJob::watched(job, 10.0, 70.0).unwrap().events().into_iter();
        let lost = |(node, events): (String, Vec<Event>)| match &events[..] {
            [Event::Job { lost, seconds, gpus: None, .. }] if *seconds == 60.0 => (node, lost.clone()),
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
                .map(|time| Entry { time: *time, event: Event::check("verify", Vec::new(), Vec::new()) })
                .collect();
            entries.extend(job.map(|lost| Entry {
                time: 5e6,
                event: Event::Job {
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
            let blames = |events: &Vec<Event>| matches!(events[..], [Event::Job { lost: Some(_), .. }]);
            unrecorded(&nodes, &jobs).into_iter().map(|(node, events)| (node, blames(&events))).collect::<Vec<_>>()
        };
        assert_eq!(found([500.0, 500.0]), []);
        assert_eq!(found([1500.0, 500.0]), [("a".to_owned(), true), ("b".to_owned(), false)]);
        assert_eq!(found([500.0, 1500.0]), [], "the launcher would have recorded it");
    }

    #[test]
    fn findings_about_the_setup_count_for_no_node() {
        let nodes = ["a".to_owned(), "b".to_owned()];
        let of = |severity, check, node: &str| Finding::new(severity, check, node, "x");
        let found = [
            of(Severity::Error, Check::Keys, "a"),
            of(Severity::Note, Check::Gpus, "a"),
            of(Severity::Warning, Check::Disk, "a"),
            // a mixed cluster, and settings of hvdctl, of the network or of an operator
            of(Severity::Warning, Check::GpuModels, "b"),
            of(Severity::Warning, Check::GpuSettings, "b"),
            of(Severity::Warning, Check::Mtu, "b"),
            of(Severity::Error, Check::Route, "b"),
            of(Severity::Error, Check::Shm, "b"),
            of(Severity::Warning, Check::Memlock, "b"),
            of(Severity::Warning, Check::Sshd, "b"),
            of(Severity::Error, Check::Worker, "b"),
            of(Severity::Error, Check::Gpus, "b"),
        ];
        let expected = |failed: &[&str], warned: &[&str]| {
            let texts = |texts: &[&str]| texts.iter().map(|text| (*text).to_owned()).collect();
            vec![Event::check("doctor", texts(failed), texts(warned))]
        };
        let recorded = of_doctor(&nodes, &found);
        assert_eq!(
            recorded,
            [("a".to_owned(), expected(&[], &["disk: x"])), ("b".to_owned(), expected(&["gpus: x"], &[]))].into()
        );
    }

    #[test]
    fn a_node_that_was_not_examined_whole_has_not_passed() {
        let nodes = ["a", "b", "c"].map(str::to_owned);
        let found = [
            failure(&NodeError::unreachable("a", "connect", "Connection timed out"), ""),
            failure(&NodeError::failed("b", "examine the node", "no answer within 60 s"), ""),
        ];
        let passed = || ("c".to_owned(), vec![Event::check("doctor", Vec::new(), Vec::new())]);
        assert_eq!(of_doctor(&nodes, &found), [passed()].into());
        let heat = Finding::new(Severity::Error, Check::GpuClocks, "a", "slow");
        let hot = Event::check("doctor", vec!["gpu-clocks: slow".into()], Vec::new());
        let all = [&found[..], &[heat]].concat();
        assert_eq!(of_doctor(&nodes, &all), [("a".to_owned(), vec![hot]), passed()].into());
    }

    fn row(rank: u32, faults: &[RankFault]) -> RankRow {
        let expected = if rank < 2 { "a" } else { "b" }.to_owned();
        RankRow { rank, expected, actual: None, report: None, faults: faults.to_vec() }
    }

    fn succeeded() -> JobOutcome {
        ended(JobResult { launcher: Some(0), exits: exits([0; 4]), ..JobResult::default() }, &[])
    }

    /// What `verify` records of a node.
    fn verified(failed: &[&str]) -> Vec<Event> {
        vec![Event::check("verify", failed.iter().map(|text| (*text).to_owned()).collect(), Vec::new())]
    }

    #[test]
    fn faults_of_all_ranks_are_the_clusters() {
        let [sum, blind] = ["sum", "CUDA does not work"].map(|text| RankFault::Machine(text.into()));
        let both = [sum.clone(), blind.clone()];
        let rows = [row(0, &both[..1]), row(1, &both[..1]), row(2, &both), row(3, &both)];
        let expected =
            |a: &[&str], b: &[&str]| NodeEvents::from([("a".to_owned(), verified(a)), ("b".to_owned(), verified(b))]);
        assert_eq!(of_verify(&rows, &succeeded(), &[]), expected(&[], &["CUDA does not work"]));
        let only = [("a".to_owned(), verified(&["sum"]))].into();
        assert_eq!(of_verify(&rows[..2], &succeeded(), &[]), only, "it is the only one");
        // a job that failed says nothing of its nodes
        let failed = JobResult { launcher: Some(1), exits: exits([0, 0, 1, 0]), ..JobResult::default() };
        assert_eq!(of_verify(&rows, &ended(failed.clone(), &[]), &[]), NodeEvents::new());
        let found = Finding::new(Severity::Error, Check::Gpus, "a", "hot");
        let health = of_verify(&rows, &ended(failed.clone(), &[]), &[found]);
        assert_eq!(health, [("a".to_owned(), verified(&["gpus: hot"]))].into());
        // one that started no job says something of the nodes with a fault only
        let found = |severity, check, node: &str, text: &str| Finding::new(severity, check, node, text);
        let findings = [
            found(Severity::Error, Check::Gpus, "a", "hot"),
            found(Severity::Warning, Check::GpuPcie, "a", "narrow"),
            found(Severity::Warning, Check::GpuPcie, "b", "narrow"),
            found(Severity::Error, Check::Keys, "b", "missing"),
        ];
        let expected = Event::check("verify", vec!["gpus: hot".into()], vec!["gpu-pcie: narrow".into()]);
        assert_eq!(of_stopped(&findings), [("a".to_owned(), vec![expected])].into());
        let lost = of_verify(&rows, &ended(failed, &["NVML: GPU is lost"]), &[]);
        assert_eq!(lost, [("b".to_owned(), verified(&["NVML: GPU is lost"]))].into());
        // GPUs that could not be examined
        let found = failure(&NodeError::failed("a", "examine the GPUs", "timed out"), "");
        let one = of_verify(&rows, &succeeded(), &[found]);
        assert_eq!(one, [("b".to_owned(), verified(&["CUDA does not work"]))].into());
    }

    #[test]
    fn faults_of_the_setup_count_for_no_node_and_those_of_several_ranks_once() {
        let machine = |text: &str| RankFault::Machine(text.into());
        let faults = [machine("x"), RankFault::Setup("versions: expected 1, got 2".into()), machine("y")];
        let more = ["1", "2", "3"].map(machine);
        let rows = [row(0, &faults), row(1, &[&faults[..], &more].concat()), row(2, &faults[1..2])];
        let expected = [("a".to_owned(), verified(&["x", "y", "1", "2"])), ("b".to_owned(), verified(&[]))];
        assert_eq!(of_verify(&rows, &succeeded(), &[]), expected.into());
    }

    #[test]
    fn a_benchmark_is_one_check_and_one_measurement_of_each_node() {
        let usage = Usage::default();
        let direction = |from, to, bytes| Direction {
            from,
            to,
            transfers: vec![Transfer::of(4, bytes, usage)],
            ..Direction::default()
        };
        let compute = Compute { loops_per_s: 7.0, share: 1.0, copy_bytes_per_s: 1.0, throttled: None, usage };
        let node = |name: &str| NodeEvidence { name: name.into(), compute: Some(compute), ..NodeEvidence::default() };
        let measured = Measurements {
            nodes: vec![node("a"), node("b"), node("c")],
            directions: vec![direction(0, 1, 9.0), direction(0, 2, 2.0), direction(1, 0, 8.0), direction(2, 0, 3.0)],
            past: BTreeMap::new(),
        };
        let accused = |subject| Accusation { subject, symptom: Symptom::Local, reasons: vec!["busy".to_owned()] };
        let accusations = vec![accused(Subject::Node(2, Way::Both)), accused(Subject::Pair(0, 1, Way::Out))];
        let verdict = Verdict { accusations, ..Verdict::default() };
        let network = of_network(&measured, &verdict);
        let (failing, _) = network
            .iter()
            .find(|(_, events)| matches!(&events[0], Event::Check { failed, .. } if !failed.is_empty()))
            .unwrap();
        assert_eq!(failing, "c", "a connection between two accuses neither");
        assert_eq!(of_network(&measured, &Verdict { is_unclear: true, ..Verdict::default() }), NodeEvents::new());

        let speed = |rank, node: &str, flops| RankSpeed {
            rank,
            node: node.into(),
            device: "NVIDIA H200".into(),
            flops,
            copy_bytes_per_s: 1.0,
        };
        let speeds = of_speeds(&[speed(0, "a", 5.0), speed(1, "a", 4.0), speed(2, "b", 6.0)]);
        let ranks =
            of_ranks(&["a".into(), "b".into()], &[(Some("a".into()), "rank 1 is slow".into()), (None, "x".into())]);
        let all = joined(network, joined(ranks, speeds));
        assert!(all.values().all(|events| events.len() == 2), "{all:?}");
        let figures = [(Figure::Send, 9.0), (Figure::Receive, 8.0), (Figure::Product, 4.0), (Figure::Processor, 7.0)];
        assert_eq!(all["a"], [Event::check("bench", vec!["rank 1 is slow".into()], Vec::new()), Event::bench(figures)]);
    }
}
