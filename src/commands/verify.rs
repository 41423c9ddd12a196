//! `hvdctl verify`.

use super::Outcome;
use super::context::{Context, login_table};
use super::job_start::{self, Allocating};
use super::keys::Logins;
use super::output::NodeEntry;
use super::rank_output::RankOutput;
use super::recording::record;
use crate::checks::bench::answers::{Answers, RankLine};
use crate::checks::bench::limits::below_minimum;
use crate::checks::evidence::of_verify;
use crate::checks::verify::{RankRow, Report, compare};
use crate::cli::Verify;
use crate::cluster::each_node::all;
use crate::cluster::observation::ObservedNode;
use crate::error::{Error, Verdict};
use crate::event::{Events, Phase};
use crate::inventory::{Controller, Node};
use crate::keys::reachability::Matrix;
use crate::launch::{self, BACKENDS, COLLECTIVES, VERIFY};
use crate::node::facts::Facts;
use crate::render::table::{cell, table};
use crate::start::plan::JobPlan;
use crate::start::request::{JobOptions, Program};
use crate::text::units::count;
use crate::worker::logins;
use schemars::JsonSchema;
use serde::Deserialize;
use serde::Serialize;
use std::time::Duration;

/// `verify`. If a worker cannot log in to another, nothing is launched, and `nodes` is empty.
#[derive(Debug, Serialize, JsonSchema)]
pub struct VerifyDocument {
    /// The id of its job; null if nothing was launched.
    pub job: Option<String>,
    /// Horovod's controller.
    pub controller: Controller,
    /// The number of ranks that were launched.
    pub ranks: usize,
    /// Everything that is wrong.
    pub faults: Vec<String>,
    /// The nodes.
    pub nodes: Vec<NodeEntry<VerifyNode>>,
    /// Logins from worker to worker; null if all ranks are on one node.
    pub logins: Option<Logins>,
}

/// The ranks of a node.
#[derive(Debug, Serialize, JsonSchema)]
pub struct VerifyNode {
    /// The ranks that should be there.
    pub ranks: Vec<RankRow>,
}

/// `verify`.
pub async fn run(options: &Verify, context: &Context) -> Result<Outcome, Error> {
    let Context { target, events, .. } = context;
    let limit = Duration::from_secs(options.timeout);
    let job = job_start::options_of_check(options.np, &options.launching, limit, context)?;
    let controller = job.controller;
    let minimum = target.inventory.bench.min_busbw;
    let program = program(&job, options.full, minimum.is_some());
    let plan = job_start::plan(async { Ok(program) }, job, Allocating::WhenFree, context).await?;
    let logins = match plan.hosts.others.as_slice() {
        [] => None,
        _ => Some(check_logins(&plan, context).await?),
    };
    if let Some(matrix) = logins.as_ref().filter(|matrix| !matrix.is_good()) {
        if let Some(hint) = matrix.hint(target.cluster().port) {
            events.note(format!("hint: {hint}"));
        }
        let text =
            format!("{}failed: not all workers can log in to each other; nothing was launched\n", login_table(matrix));
        return Ok(outcome(text, details(None, controller, matrix.faults(), &[], &[], Some(matrix))));
    }
    let mut output = RankOutput::new();
    let ended = job_start::start(&plan, context, |node, frame| output.take(node, frame)).await?;
    let observed = plan.hosts.observed().chain(&plan.others);
    let known: Vec<(Node, Facts)> =
        observed.map(|observed| (observed.member.node.clone(), observed.facts.clone())).collect();
    let failure = output.failure(&ended, events);
    let (mut reports, mut lines) = (Vec::new(), Vec::new());
    for (node, rank, line) in output.reports {
        match line {
            Line::Report(report) => reports.push((node, report)),
            Line::Collective(line) => lines.push((rank, line)),
        }
    }
    let mut rows = compare(&ended.placement, &known, &reports);
    let has_collectives = options.full || minimum.is_some();
    let answers = has_collectives.then(|| Answers::new(&ended.placement, &lines, None));
    if let Some(answers) = &answers {
        add_collectives(&mut rows, answers, events);
    }
    record(context, of_verify(&rows, &ended, &[])).await;
    let best = answers.and_then(|answers| answers.collectives.best_allreduce());
    // one rank exchanges nothing
    let minimum = minimum.filter(|_| ended.placement.ranks() > 1);
    let below = minimum.and_then(|minimum| below_minimum(minimum, best));
    let faults = faults(&rows, failure).into_iter().chain(below).collect::<Vec<_>>();
    let collectives = if options.full { ", all collectives correct" } else { "" };
    let text = summary(&rows, &faults, ended.placement.ranks(), collectives);
    let names: Vec<&str> = known.iter().map(|(node, _)| node.name.as_str()).collect();
    Ok(outcome(text, details(Some(&ended.id), controller, faults, &names, &rows, logins.as_ref())))
}

pub(super) fn outcome(text: String, details: VerifyDocument) -> Outcome {
    Outcome::new(Verdict::of_check(details.faults.is_empty(), 0, &[]), text, details)
}

/// The program of each rank.
fn program(job: &JobOptions, is_full: bool, has_minimum: bool) -> Program {
    let backends = launch::launcher(job.launcher, job.controller).verify_with;
    let options = [is_full.then_some("--full"), has_minimum.then_some("--busbw")].into_iter().flatten();
    let command = ["python3", "verify.py"].into_iter().chain(options).chain(backends.iter().copied());
    let mut files = vec![("verify.py", VERIFY), ("backends.py", BACKENDS)];
    files.extend((is_full || has_minimum).then_some(("collectives.py", COLLECTIVES)));
    Program { title: None, name: "verify".into(), command: command.map(Into::into).collect(), project: None, files }
}

/// A line of a rank.
#[derive(Deserialize)]
#[serde(untagged)]
enum Line {
    Report(Report),
    Collective(RankLine),
}

/// Adds what is wrong with the collectives to the ranks that it is wrong with.
fn add_collectives(rows: &mut [RankRow], answers: &Answers, events: &Events) {
    answers.notes.iter().for_each(|note| events.note(note));
    for row in rows {
        let wrong = answers.collectives.wrong.iter().filter(|wrong| wrong.rank == row.rank);
        row.faults.extend(wrong.map(ToString::to_string));
        if answers.unfinished.contains(&row.rank) {
            row.faults.push("not all collectives were checked".into());
        }
    }
}

/// Tries the logins between the workers: the launcher may hang if one fails, and does not report which.
async fn check_logins(plan: &JobPlan, context: &Context) -> Result<Matrix, Error> {
    let Context { target, events, session, .. } = context;
    // what these rules find explains more than a failed login
    all(events, plan.preflight().failed.into_iter().map(Err::<(), _>).collect())?;
    events.phase(Phase::LoggingIn);
    let observed: Vec<ObservedNode> = plan.hosts.observed().cloned().collect();
    session.cancellation.run(logins::check(&target.inventory, &observed, events)).await
}

/// Returns everything that is not as expected, the failure of the job first.
fn faults(rows: &[RankRow], failure: Option<String>) -> Vec<String> {
    let ranks = rows.iter().flat_map(|row| row.faults.iter().map(move |fault| format!("rank {}: {fault}", row.rank)));
    failure.into_iter().chain(ranks).collect()
}

fn summary(rows: &[RankRow], faults: &[String], ranks: u32, collectives: &str) -> String {
    let mut cells = Vec::new();
    for row in rows {
        let report = row.report.as_ref();
        let mut gpus = report.and_then(|report| report.gpus.clone()).unwrap_or_default().into_iter();
        cells.push(vec![
            row.rank.to_string(),
            row.expected.clone(),
            cell(row.actual.as_ref()),
            cell(report.map(|report| report.sum)),
            cell(gpus.next()),
        ]);
        // further GPUs have lines of their own
        cells.extend(gpus.map(|gpu| [vec![String::new(); 4], vec![gpu]].concat()));
    }
    let mut text = table(&["RANK", "EXPECTED", "ACTUAL", "SUM", "GPUS"], cells);
    if faults.is_empty() {
        let report = rows.first().and_then(|row| row.report.as_ref());
        let versions = report.map_or(String::new(), |report| {
            format!(" ({}, {}, Python {})", report.framework, report.library, report.python)
        });
        let ranks = count(ranks as usize, "rank");
        text.push_str(&format!("ok: {ranks} where expected, allreduce correct{collectives}{versions}\n"));
    }
    text.extend(faults.iter().map(|fault| format!("failed: {fault}\n")));
    text
}

/// `job`: `None` if nothing was launched.
pub(super) fn details(
    job: Option<&str>,
    controller: Controller,
    faults: Vec<String>,
    nodes: &[&str],
    rows: &[RankRow],
    logins: Option<&Matrix>,
) -> VerifyDocument {
    let node = |name: &&str| {
        let ranks: Vec<RankRow> = rows.iter().filter(|row| row.expected == *name).cloned().collect();
        NodeEntry::new(name, ranks.iter().all(|row| row.faults.is_empty()), VerifyNode { ranks })
    };
    VerifyDocument {
        job: job.map(str::to_owned),
        controller,
        ranks: rows.len(),
        faults,
        nodes: nodes.iter().map(node).collect(),
        logins: logins.map(Logins::from),
    }
}
