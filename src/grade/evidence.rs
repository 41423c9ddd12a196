//! The part of a command's result that is recorded in the ledger of each node. It is only what reveals something about
//! the node itself: faults that may lie with another node, the network between two, the program or the setup of the
//! cluster count for no node.

pub mod jobs;

use crate::checks::place::RankFault;
use crate::checks::verify::RankRow;
use crate::checks::{Check, Finding, Severity};
use crate::diagnosis::machine::node_fault;
use crate::diagnosis::outcome::JobOutcome;
use crate::grade::ledger::LedgerEvent;
use crate::model::job_state::JobState;
use std::collections::{BTreeMap, BTreeSet};

/// The events to record for each node, by its name.
pub type NodeEvents = BTreeMap<String, Vec<LedgerEvent>>;

/// Returns what `doctor` found on these nodes.
pub fn of_doctor(nodes: &[String], findings: &[Finding]) -> NodeEvents {
    let of = |node: &String| Some((node.clone(), vec![examined("doctor", node, Vec::new(), findings)?]));
    nodes.iter().filter_map(of).collect()
}

/// Returns the result of a command that examined a node: with what failed, and the findings that say something of the
/// machine. `None` where nothing failed and a part of the examination did: the node may not have passed.
fn examined(by: &str, node: &str, mut failed: Vec<String>, findings: &[Finding]) -> Option<LedgerEvent> {
    let own = || findings.iter().filter(|finding| finding.nodes.iter().any(|name| name == node));
    let texts = |severity| {
        let counting = own().filter(move |finding| finding.severity == severity && finding.check.is_of_machine());
        counting.map(|finding| format!("{}: {}", finding.check, finding.message))
    };
    let is_whole = !own().any(|finding| matches!(finding.check, Check::Node | Check::Ssh));
    failed.splice(0..0, texts(Severity::Error));
    (is_whole || !failed.is_empty()).then(|| LedgerEvent::check(by, failed, texts(Severity::Warning).collect()))
}

/// Returns the results of `verify`: the faults of the machine that the ranks of each node have, and the findings about
/// it. A fault of the ranks of all nodes, if there are several, is the cluster's. If the job failed, a node has only
/// failed if a finding says so or the job was lost because of it.
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

/// Returns what a `verify` that started no job recorded of the nodes with errors among these findings. The others have
/// not passed either.
pub fn of_stopped(findings: &[Finding]) -> NodeEvents {
    let nodes: BTreeSet<&String> = findings.iter().flat_map(|finding| &finding.nodes).collect();
    let of = |node: &String| {
        let event = examined("verify", node, Vec::new(), findings)?;
        has_failed(&event).then(|| (node.clone(), vec![event]))
    };
    nodes.into_iter().filter_map(of).collect()
}

fn has_failed(event: &LedgerEvent) -> bool {
    matches!(event, LedgerEvent::Check { failed, .. } if !failed.is_empty())
}

/// Joins what two parts of a command found: they are one check and one measurement.
pub fn joined(mut all: NodeEvents, more: NodeEvents) -> NodeEvents {
    for (node, events) in more {
        let known = all.entry(node).or_default();
        events.into_iter().for_each(|event| add(known, event));
    }
    all
}

fn add(known: &mut Vec<LedgerEvent>, event: LedgerEvent) {
    for other in known.iter_mut() {
        match (other, &event) {
            (
                LedgerEvent::Check { failed, warned, .. },
                LedgerEvent::Check { failed: more_failed, warned: more_warned, .. },
            ) => {
                failed.extend(more_failed.iter().cloned());
                warned.extend(more_warned.iter().cloned());
                return;
            }
            (LedgerEvent::Bench { figures }, LedgerEvent::Bench { figures: more }) => {
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
    use super::jobs::tests::{ended, exits};
    use super::*;
    use crate::checks::failure;
    use crate::error::NodeError;
    use crate::record::JobResult;

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
            vec![LedgerEvent::check("doctor", texts(failed), texts(warned))]
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
        let passed = || ("c".to_owned(), vec![LedgerEvent::check("doctor", Vec::new(), Vec::new())]);
        assert_eq!(of_doctor(&nodes, &found), [passed()].into());
        let heat = Finding::new(Severity::Error, Check::GpuClocks, "a", "slow");
        let hot = LedgerEvent::check("doctor", vec!["gpu-clocks: slow".into()], Vec::new());
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

    /// Returns the event that `verify` records for a node.
    fn verified(failed: &[&str]) -> Vec<LedgerEvent> {
        vec![LedgerEvent::check("verify", failed.iter().map(|text| (*text).to_owned()).collect(), Vec::new())]
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
        let expected = LedgerEvent::check("verify", vec!["gpus: hot".into()], vec!["gpu-pcie: narrow".into()]);
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
}
