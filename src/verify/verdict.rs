//! The faults that follow from the measurements of `verify`.

use super::gpus::ExaminedGpus;
use super::ranks::{VerifyLine, VerifyScope};
use crate::bench::verdict::answers::Answers;
use crate::bench::verdict::limits::below_minimum;
use crate::checks::place::RankFault;
use crate::checks::verify::{RankRow, compare};
use crate::diagnosis::outcome::JobOutcome;
use crate::grade::evidence::{NodeEvents, of_stopped, of_verify};
use crate::inventory::{Bind, Node};
use crate::keys::reachability::Matrix;
use crate::node::facts::Facts;

/// The job of `verify`, which has ended.
#[derive(Debug)]
pub struct VerifyJob {
    /// Its outcome.
    pub ended: JobOutcome,
    /// The reason for its failure, if it failed.
    pub failure: Option<String>,
    /// The lines of its ranks, each with the node whose log has it and the rank.
    pub lines: Vec<(String, u32, VerifyLine)>,
}

/// The measurements of `verify`.
#[derive(Debug)]
pub struct VerifyMeasurement {
    /// The logins between the workers; `None` if all ranks are on one node.
    pub logins: Option<Matrix>,
    /// The job; `None` if it was not launched, because a worker cannot log in to another.
    pub job: Option<VerifyJob>,
    /// The GPUs.
    pub gpus: ExaminedGpus,
}

/// The verdict about the measurements.
#[derive(Debug, Default)]
pub struct VerifyVerdict {
    /// The id of the job; `None` if it was not launched.
    pub job: Option<String>,
    /// The names of its nodes; none if it was not launched.
    pub nodes: Vec<String>,
    /// The comparison for each rank.
    pub rows: Vec<RankRow>,
    /// Faults of the job, its ranks and the logins. The errors of the GPUs are not among them.
    pub faults: Vec<String>,
    /// Measurements that could not be made, each with the reason.
    pub notes: Vec<String>,
    /// The events to be recorded in the ledgers of the nodes.
    pub recorded: NodeEvents,
    /// The logins between the workers; `None` if all ranks are on one node.
    pub logins: Option<Matrix>,
    /// The GPUs.
    pub gpus: ExaminedGpus,
}

impl VerifyVerdict {
    /// Judges what was measured. `nodes`: those that were observed. `bind`: how the ranks were to be bound; `None` if
    /// the nodes chose.
    pub fn new(
        nodes: &[(Node, Facts)],
        bind: Option<Bind>,
        scope: VerifyScope,
        measured: VerifyMeasurement,
    ) -> VerifyVerdict {
        let VerifyMeasurement { logins, job, gpus } = measured;
        let Some(VerifyJob { ended, failure, lines }) = job else {
            let faults = logins.as_ref().map_or_else(Vec::new, Matrix::faults);
            let recorded = of_stopped(&gpus.findings);
            return VerifyVerdict { faults, recorded, logins, gpus, ..VerifyVerdict::default() };
        };
        let (mut reports, mut collectives) = (Vec::new(), Vec::new());
        for (node, rank, line) in lines {
            match line {
                VerifyLine::Report(report) => reports.push((node, *report)),
                VerifyLine::Collective(line) => collectives.push((rank, line)),
            }
        }
        let mut rows = compare(&ended.placement, nodes, &reports, bind);
        let answers = scope.has_collectives().then(|| Answers::new(&ended.placement, &collectives, None));
        if let Some(answers) = &answers {
            add_collectives(&mut rows, answers);
        }
        let best = answers.as_ref().and_then(|answers| answers.collectives.best_allreduce());
        // one rank exchanges nothing
        let minimum = scope.minimum.filter(|_| ended.placement.ranks() > 1);
        let below = minimum.and_then(|minimum| below_minimum(minimum, best));
        VerifyVerdict {
            recorded: of_verify(&rows, &ended, &gpus.findings),
            faults: failure.into_iter().chain(faults(&rows)).chain(below).collect(),
            notes: answers.map(|answers| answers.notes).unwrap_or_default(),
            nodes: nodes.iter().map(|(node, _)| node.name.clone()).collect(),
            job: Some(ended.id),
            rows,
            logins,
            gpus,
        }
    }

    /// Returns everything that is wrong, the errors of the GPUs last.
    pub fn all_faults(&self) -> Vec<String> {
        [self.faults.clone(), self.gpus.faults()].concat()
    }
}

/// Adds what is wrong with the collectives to the ranks that it is wrong with.
fn add_collectives(rows: &mut [RankRow], answers: &Answers) {
    for row in rows {
        let wrong = answers.collectives.wrong.iter().filter(|wrong| wrong.rank == row.rank);
        row.faults.extend(wrong.map(|wrong| RankFault::Machine(wrong.to_string())));
        if answers.unfinished.contains(&row.rank) {
            row.faults.push(RankFault::Setup("not all collectives were checked".into()));
        }
    }
}

/// Returns everything about ranks that is not as expected.
fn faults(rows: &[RankRow]) -> impl Iterator<Item = String> {
    rows.iter().flat_map(|row| row.faults.iter().map(move |fault| format!("rank {}: {fault}", row.rank)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::checks::{Check, Finding, Severity};
    use crate::keys::reachability::AbsentNode;
    use crate::launch::placement::{MapBy, place};
    use crate::record::JobResult;

    /// Returns the faults of a job on one node whose ranks wrote nothing.
    fn silent(ranks: u32, scope: VerifyScope) -> Vec<String> {
        let placement = place(&[("a".into(), ranks)], ranks, MapBy::Slot).unwrap();
        let result = JobResult { ranks, started: ranks, launcher: Some(0), ..JobResult::default() };
        let ended = JobOutcome::new("j", &placement, result);
        let job = Some(VerifyJob { ended, failure: None, lines: Vec::new() });
        let nodes = [(Node { name: "a".into(), ..Node::default() }, Facts::default())];
        let measured = VerifyMeasurement { logins: None, job, gpus: ExaminedGpus::default() };
        VerifyVerdict::new(&nodes, None, scope, measured).faults
    }

    #[test]
    fn collectives_and_their_bandwidth_are_judged_where_they_were_to_be_measured() {
        let scope = |full, minimum| VerifyScope { full, minimum };
        let (report, collectives) = ("no report was received", "not all collectives were checked");
        assert_eq!(silent(1, scope(false, None)), [format!("rank 0: {report}")]);
        let one = [format!("rank 0: {report}"), format!("rank 0: {collectives}")];
        assert_eq!(silent(1, scope(true, None)), one);
        assert_eq!(silent(1, scope(false, Some(1 << 30))), one);
        let two = silent(2, scope(false, Some(1 << 30)));
        assert_eq!((two.len(), two[4].starts_with("no allreduce was measured")), (5, true), "{two:?}");
    }

    #[test]
    fn without_a_job_the_logins_and_the_gpus_are_judged() {
        let absent = vec![AbsentNode { node: "b".into(), why: "its worker is not running: hvdctl up".into() }];
        let found = Finding::new(Severity::Error, Check::Gpus, "a", "GPU 0 is lost");
        let gpus = ExaminedGpus { findings: vec![found], ..ExaminedGpus::default() };
        let measured = VerifyMeasurement { logins: Some(Matrix { absent, pairs: Vec::new() }), job: None, gpus };
        let verdict = VerifyVerdict::new(&[], None, VerifyScope::default(), measured);
        assert_eq!(verdict.all_faults(), ["b: its worker is not running: hvdctl up", "a: GPU 0 is lost"]);
        assert!(verdict.job.is_none());
        assert_eq!(verdict.recorded.into_keys().collect::<Vec<_>>(), ["a"]);
    }
}
