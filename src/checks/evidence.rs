//! What of a command's result is recorded in the ledger of each node: only what says something of the node itself. What may as well be
//! the fault of another node, of the network between two, of the program or of how the cluster is set up counts for no node.

use super::bench::collectives::RankSpeed;
use super::bench::{Measurements, Subject, Verdict};
use super::grade::Evidence;
use super::verify::RankRow;
use super::{Finding, Severity};
use crate::launch::placement::Placement;
use crate::model::job_state::JobState;
use crate::model::root_cause::{FailureKind, RootCause};
use crate::record::ledger::{Event, Figure, line};
use crate::record::list::Job;
use crate::record::outcome::JobOutcome;
use crate::text::failure::is_gpu_fault;
use std::collections::BTreeMap;

/// What is recorded of each node, by its name.
pub type NodeEvents = BTreeMap<String, Vec<Event>>;

/// The checks of `doctor` that are about the cluster's setup, about two nodes, or about what runs on a node, and not about the machine.
const SETUP: [&str; 21] = [
    "address",
    "container",
    "data",
    "gpu-users",
    "hostname",
    "image",
    "interface",
    "jobs",
    "keys",
    "launchers",
    "login",
    "names",
    "network",
    "port",
    "ports",
    "shared",
    "ssh",
    "stale",
    "toolkit",
    "versions",
    "worker",
];

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
    /// The nodes that were lost in earlier attempts.
    pub lost_before: Vec<&'a str>,
}

impl<'a> EndedJob<'a> {
    /// Returns a job that was watched from `began` to `ended`, in seconds since the epoch; `None` if it goes on.
    pub fn watched(job: &'a JobOutcome, began: f64, ended: f64) -> Option<EndedJob<'a>> {
        let JobOutcome { id, state, placement, last_lines, .. } = job;
        let root_cause = job.root_cause.as_ref();
        let (seconds, lost_before) = (ended - began, Vec::new());
        let job = EndedJob { id, state: *state, placement, ended, seconds, root_cause, last_lines, lost_before };
        has_ended(*state).then_some(job)
    }

    /// Returns a job that is recorded with its result; `None` if it has none, or is a check of hvdctl's own.
    pub fn recorded(job: &'a Job) -> Option<EndedJob<'a>> {
        let (state, ended) = (job.state.filter(|state| has_ended(*state))?, job.ended?);
        let lost = job.attempts.iter().flat_map(|attempt| &attempt.silent).map(String::as_str);
        let recorded = EndedJob {
            id: &job.id,
            state,
            placement: &job.placement,
            ended,
            seconds: ended - job.started,
            root_cause: job.root_cause.as_ref(),
            last_lines: &[],
            lost_before: lost.collect(),
        };
        (!job.is_check).then_some(recorded)
    }

    /// Returns what is recorded of its nodes.
    pub fn events(&self) -> NodeEvents {
        let blamed = self.lost();
        let shares = self.placement.shares.iter().filter_map(|share| {
            let lost = blamed.get(share.node.as_str()).map(|why| line(why, REASON));
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
        let before =
            self.lost_before.iter().map(|node| (*node, "an attempt ended when the node did not answer".to_owned()));
        let cause = self.root_cause.and_then(|cause| Some((cause.node.as_str(), node_fault(cause, self.last_lines)?)));
        before.chain(cause).collect()
    }
}

fn has_ended(state: JobState) -> bool {
    matches!(state, JobState::Succeeded | JobState::Failed | JobState::Stopped | JobState::Lost)
}

/// Returns why a rank failed if that was its node's fault; a program's own failure is not.
fn node_fault(cause: &RootCause, last_lines: &[String]) -> Option<String> {
    match &cause.how {
        FailureKind::Gone { error } => {
            let error = error.as_deref().and_then(|error| error.lines().next()).filter(|error| !error.is_empty());
            Some(
                error.map_or("the node did not answer".to_owned(), |error| format!("the node did not answer: {error}")),
            )
        }
        FailureKind::Exited { .. } => last_lines.iter().rev().find(|line| is_gpu_fault(line)).cloned(),
        FailureKind::Hung { .. } => None,
    }
}

/// Returns what is not recorded yet of jobs on these nodes: the whole job, or that it was lost because of the node. A job that is older
/// than a ledger is left out of it: it may have been there, and had to go.
pub fn unrecorded<'a>(nodes: &[Evidence], jobs: impl Iterator<Item = EndedJob<'a>>) -> NodeEvents {
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
pub fn of_findings(nodes: &[String], findings: &[Finding]) -> NodeEvents {
    let of = |node: &String| {
        let texts = |severity| {
            let own = findings.iter().filter(|finding| finding.severity == severity && finding.nodes.contains(node));
            let own = own.filter(|finding| !SETUP.contains(&finding.check));
            own.map(|finding| format!("{}: {}", finding.check, finding.message)).collect()
        };
        vec![Event::check("doctor", texts(Severity::Error), texts(Severity::Warning))]
    };
    nodes.iter().map(|node| (node.clone(), of(node))).collect()
}

/// Returns what `verify` found: the faults of the ranks of each node. What all nodes of several have is the cluster's fault. If its job
/// failed, nothing is known but which node it was lost by.
pub fn of_verify(rows: &[RankRow], ended: &JobOutcome) -> NodeEvents {
    let check = |failed: Vec<String>| vec![Event::check("verify", failed, Vec::new())];
    if ended.state != JobState::Succeeded {
        let lost = ended.root_cause.as_ref().and_then(|cause| Some((cause, node_fault(cause, &ended.last_lines)?)));
        return lost.into_iter().map(|(cause, why)| (cause.node.clone(), check(vec![why]))).collect();
    }
    let mut nodes: BTreeMap<&str, Vec<&String>> = BTreeMap::new();
    for row in rows {
        nodes.entry(&row.expected).or_default().extend(&row.faults);
    }
    let is_common = |fault: &String| nodes.len() > 1 && nodes.values().all(|faults| faults.contains(&fault));
    let own = |faults: &Vec<&String>| {
        let mut own: Vec<String> =
            faults.iter().filter(|fault| !is_common(fault)).map(|fault| (*fault).clone()).collect();
        own.dedup();
        own
    };
    nodes.iter().map(|(node, faults)| ((*node).to_owned(), check(own(faults)))).collect()
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
        let figures = [
            (Figure::Send, best(&|from, _| from == index)),
            (Figure::Receive, best(&|_, to| to == index)),
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

/// Returns the speed of the slowest device of each node.
pub fn of_speeds(speeds: &[RankSpeed]) -> NodeEvents {
    let mut slowest: BTreeMap<&str, f64> = BTreeMap::new();
    for speed in speeds {
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
