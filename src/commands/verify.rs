//! `hvdctl verify`.

pub mod gpus;

use super::Outcome;
use super::context::{Context, login_table};
use super::gpus::NodeGpus;
use super::job_start::{self, Allocating};
use super::keys::status::Logins;
use super::rank_output::RankOutput;
use super::recording::record;
use crate::bench::verdict::answers::{Answers, RankLine};
use crate::bench::verdict::limits::below_minimum;
use crate::checks::Finding;
use crate::checks::place::RankFault;
use crate::checks::verify::{RankRow, Report, compare};
use crate::cli::Verify;
use crate::cluster::each_node::all;
use crate::cluster::observation::ObservedNode;
use crate::commands::verify::gpus::{ExaminedGpus, examine_gpus, gpus_unknown, lacks_gpus};
use crate::document::NodeEntry;
use crate::error::{Error, Verdict};
use crate::event::{Events, Phase};
use crate::grade::evidence::{of_stopped, of_verify};
use crate::inventory::{Controller, Node};
use crate::keys::reachability::Matrix;
use crate::launch::{self, BACKENDS, COLLECTIVES, PLACE, VERIFY};
use crate::node::facts::Facts;
use crate::record::outcome::JobOutcome;
use crate::start::plan::JobPlan;
use crate::start::request::{JobOptions, Program, ResourceRequest};
use crate::text::table::{cell, table};
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
    /// What was found of the health of the GPUs, errors first. Those are among the faults, too.
    pub findings: Vec<Finding>,
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
    /// Its GPUs.
    #[serde(flatten)]
    pub gpus: NodeGpus,
}

/// `verify`.
pub async fn run(options: &Verify, context: &Context) -> Result<Outcome, Error> {
    let Context { target, events, session, .. } = context;
    let limit = Duration::from_secs(options.timeout);
    let job = job_start::options_of_check(options.np, &options.launching, limit, context)?;
    let resources = ResourceRequest { map_by: options.map_by, ..job.resources };
    let job = JobOptions { resources, bind: options.bind.or(job.bind), ..job };
    let (controller, bind) = (job.controller, job.bind);
    let minimum = target.inventory.bench.min_busbw;
    let program = program(&job, options.full, minimum.is_some());
    let plan = match job_start::plan(async { Ok(program) }, job, Allocating::WhenFree, context).await {
        Ok(plan) => plan,
        Err(error) => {
            record(context, of_stopped(&gpus_unknown(&error))).await;
            return Err(error);
        }
    };
    // the GPUs are examined while the workers log in and the ranks start
    let examining =
        async { Ok(session.cancellation.run(async { Ok(examine_gpus(&plan, options.full).await) }).await.ok()) };
    // why a node lacks GPUs may be seen in the health of the others
    let launching = async {
        match launch(&plan, context).await {
            Err(error) if !lacks_gpus(&error) => Err(error),
            launched => Ok(launched),
        }
    };
    let (launched, gpus) = tokio::try_join!(launching, examining)?;
    session.cancellation.check()?;
    let gpus = gpus.unwrap_or_default();
    gpus.report(events);
    let (logins, job) = match launched {
        Ok(launched) => launched,
        Err(error) => {
            gpus.errors().for_each(|finding| events.warn(finding));
            record(context, of_stopped(&gpus.findings)).await;
            return Err(error);
        }
    };
    let logins = logins.as_ref();
    let Some((ended, output)) = job else {
        record(context, of_stopped(&gpus.findings)).await;
        let matrix = logins.map_or_else(String::new, login_table);
        let text =
            format!("{matrix}failed: not all workers can log in to each other; nothing was launched\n{}", gpus.text());
        let faults = logins.map_or_else(Vec::new, Matrix::faults).into_iter().chain(gpus.faults()).collect();
        return Ok(outcome(text, with_gpus(details(None, controller, faults, &[], &[], logins), gpus)));
    };
    let observed = plan.hosts.observed().chain(&plan.others);
    let known: Vec<(Node, Facts)> =
        observed.map(|observed| (observed.member.node.clone(), observed.facts.clone())).collect();
    let failure = output.failure(&ended, events);
    let (mut reports, mut lines) = (Vec::new(), Vec::new());
    for (node, rank, line) in output.reports {
        match line {
            Line::Report(report) => reports.push((node, *report)),
            Line::Collective(line) => lines.push((rank, line)),
        }
    }
    let mut rows = compare(&ended.placement, &known, &reports, bind);
    let has_collectives = options.full || minimum.is_some();
    let answers = has_collectives.then(|| Answers::new(&ended.placement, &lines, None));
    if let Some(answers) = &answers {
        add_collectives(&mut rows, answers, events);
    }
    record(context, of_verify(&rows, &ended, &gpus.findings)).await;
    let best = answers.and_then(|answers| answers.collectives.best_allreduce());
    // one rank exchanges nothing
    let minimum = minimum.filter(|_| ended.placement.ranks() > 1);
    let below = minimum.and_then(|minimum| below_minimum(minimum, best));
    let faults = faults(&rows, failure).into_iter().chain(below).collect::<Vec<_>>();
    let collectives = if options.full { ", all collectives correct" } else { "" };
    let text = summary(&rows, &faults, &gpus, &format!("{collectives}{}", gpus.summary())) + &gpus.text();
    let names: Vec<&str> = known.iter().map(|(node, _)| node.name.as_str()).collect();
    let faults = faults.into_iter().chain(gpus.faults()).collect();
    Ok(outcome(text, with_gpus(details(Some(&ended.id), controller, faults, &names, &rows, logins), gpus)))
}

/// The logins between workers, if there are several; and the job with its output, if they are good.
type Launched = (Option<Matrix>, Option<(JobOutcome, RankOutput<Line>)>);

/// Tries the logins between the workers, and runs the job if they are good.
async fn launch(plan: &JobPlan, context: &Context) -> Result<Launched, Error> {
    let logins = match plan.hosts.others.as_slice() {
        [] => None,
        _ => Some(check_logins(plan, context).await?),
    };
    if let Some(matrix) = logins.as_ref().filter(|matrix| !matrix.is_good()) {
        if let Some(hint) = matrix.hint(context.target.cluster().port) {
            context.events.note(format!("hint: {hint}"));
        }
        return Ok((logins, None));
    }
    let mut output = RankOutput::new();
    let ended = job_start::start(plan, context, |node, frame| output.take(node, frame)).await?;
    Ok((logins, Some((ended, output))))
}

pub(super) fn outcome(text: String, details: VerifyDocument) -> Outcome {
    Outcome::new(Verdict::of_check(details.faults.is_empty(), 0, &[]), text, details)
}

/// The program of each rank.
fn program(job: &JobOptions, is_full: bool, has_minimum: bool) -> Program {
    let backends = launch::launcher(job.launcher, job.controller).verify_with;
    let options = [is_full.then_some("--full"), has_minimum.then_some("--busbw")].into_iter().flatten();
    let command = ["python3", "verify.py"].into_iter().chain(options).chain(backends.iter().copied());
    let mut files = vec![("verify.py", VERIFY), ("backends.py", BACKENDS), ("place.py", PLACE)];
    files.extend((is_full || has_minimum).then_some(("collectives.py", COLLECTIVES)));
    let command = command.map(Into::into).collect();
    Program {
        title: None,
        name: "verify".into(),
        command,
        is_default_command: false,
        project: None,
        commit: None,
        files,
    }
}

/// A line of a rank.
#[derive(Deserialize)]
#[serde(untagged)]
enum Line {
    Report(Box<Report>),
    Collective(RankLine),
}

/// Adds what is wrong with the collectives to the ranks that it is wrong with.
fn add_collectives(rows: &mut [RankRow], answers: &Answers, events: &Events) {
    answers.notes.iter().for_each(|note| events.note(note));
    for row in rows {
        let wrong = answers.collectives.wrong.iter().filter(|wrong| wrong.rank == row.rank);
        row.faults.extend(wrong.map(|wrong| RankFault::Machine(wrong.to_string())));
        if answers.unfinished.contains(&row.rank) {
            row.faults.push(RankFault::Setup("not all collectives were checked".into()));
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

fn summary(rows: &[RankRow], faults: &[String], gpus: &ExaminedGpus, checked: &str) -> String {
    let cells = |row: &RankRow| {
        let report = row.report.as_ref();
        let place = report.map(|report| &report.place);
        let numa = place.map(|place| place.numa.iter().map(u32::to_string).collect::<Vec<_>>().join(","));
        vec![
            row.rank.to_string(),
            row.expected.clone(),
            cell(row.actual.as_ref()),
            cell(report.map(|report| report.sum)),
            cell(place.map(|place| &place.cpus)),
            cell(numa.filter(|numa| !numa.is_empty())),
            cell(report.and_then(own_gpu)),
        ]
    };
    let mut text = table(&["RANK", "EXPECTED", "ACTUAL", "SUM", "CPUS", "NUMA", "GPU"], rows.iter().map(cells));
    if faults.is_empty() && gpus.faults().is_empty() {
        let report = rows.first().and_then(|row| row.report.as_ref());
        let versions = report.map_or(String::new(), |report| {
            format!(" ({}, {}, Python {})", report.framework, report.library, report.python)
        });
        let ranks = count(rows.len(), "rank");
        text.push_str(&format!("ok: {ranks} where expected, allreduce correct{checked}{versions}\n"));
    }
    text.extend(faults.iter().map(|fault| format!("failed: {fault}\n")));
    text
}

/// Returns the line of `nvidia-smi -L` with the device of a rank; without a device, what the rank sees.
fn own_gpu(report: &Report) -> Option<String> {
    let lines = report.gpus.as_ref()?;
    let own = report.place.device.as_ref().and_then(|uuid| lines.iter().find(|line| line.contains(uuid.as_str())));
    own.or(lines.first()).map(|line| line.trim().to_owned())
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
        NodeEntry::new(
            name,
            ranks.iter().all(|row| row.faults.is_empty()),
            VerifyNode { ranks, gpus: NodeGpus::default() },
        )
    };
    VerifyDocument {
        job: job.map(str::to_owned),
        controller,
        ranks: rows.len(),
        faults,
        findings: Vec::new(),
        nodes: nodes.iter().map(node).collect(),
        logins: logins.map(Logins::from),
    }
}

/// Adds the GPUs of the nodes and what was found of them.
pub(super) fn with_gpus(mut document: VerifyDocument, gpus: ExaminedGpus) -> VerifyDocument {
    for entry in &mut document.nodes {
        entry.ok &= !gpus.errors().any(|finding| finding.nodes.contains(&entry.node));
        if let Some(node) = &mut entry.result {
            node.gpus = NodeGpus::of(&entry.node, &gpus.health);
        }
    }
    VerifyDocument { findings: gpus.findings, ..document }
}
