//! `hvdctl verify`.

use super::context::{Context, login_table};
use super::output::{self, Logins, NodeEntry, VerifyNode};
use super::{Outcome, job_start};
use crate::checks::verify::{Report, Row, compare};
use crate::cli::Verify;
use crate::cluster::nodes::{ObservedNode, all};
use crate::error::{Error, Verdict};
use crate::inventory::{Controller, Node};
use crate::job::frames::{Frame, Kind};
use crate::job::outcome::JobOutcome;
use crate::job::plan::JobPlan;
use crate::job::request::{JobOptions, Program, ResourceRequest, WatchOptions, check_ranks};
use crate::job::watch::tail;
use crate::keys::logins;
use crate::keys::reachability::Matrix;
use crate::launch::placement::{MapBy, RankCount};
use crate::launch::{self, VERIFY};
use crate::node::facts::Facts;
use crate::render::table::{cell, table};
use crate::text::units::count;
use std::collections::BTreeMap;
use std::time::Duration;

/// `verify`.
pub async fn run(options: &Verify, context: &Context) -> Result<Outcome, Error> {
    let Context { target, events, verbose, .. } = context;
    let cluster = target.cluster();
    let ranks = options.np.map(RankCount::exactly);
    check_ranks(target, ranks, None)?;
    let resources = ResourceRequest { ranks, map_by: MapBy::Slot, per_node: None };
    let job = JobOptions {
        resources,
        restarts: 0,
        launcher: options.launching.launcher(None, cluster.launcher)?,
        controller: options.launching.controller(cluster.controller),
        bind: cluster.bind,
        stall_timeout: Duration::ZERO,
        log_max: None,
        log_progress: false,
        env: BTreeMap::new(),
        watch: WatchOptions {
            output: *verbose > 0,
            launcher_output: *verbose > 1,
            limit: Some(Duration::from_secs(options.timeout)),
            ..WatchOptions::default()
        },
    };
    let controller = job.controller;
    let program = program(&job);
    let plan = job_start::plan(async { Ok(program) }, job, false, context).await?;
    let logins = match plan.hosts.len() {
        1 => None,
        _ => Some(check_logins(&plan, context).await?),
    };
    if let Some(matrix) = logins.as_ref().filter(|matrix| !matrix.is_good()) {
        if let Some(hint) = matrix.hint(cluster.port) {
            events.note(format!("hint: {hint}"));
        }
        let text =
            format!("{}failed: not all workers can log in to each other; nothing was launched\n", login_table(matrix));
        return Ok(outcome(text, details(None, controller, matrix.faults(), &[], &[], Some(matrix))));
    }
    let mut output = RankOutput::default();
    let on_frame = |node: &str, frame: &Frame| output.take(node, frame.rank, &frame.kind);
    let ended = job_start::start(&plan, context, on_frame).await?;
    let observed = plan.hosts.iter().map(|host| &host.observed).chain(&plan.others);
    let known: Vec<(Node, Facts)> =
        observed.map(|observed| (observed.member.node.clone(), observed.facts.clone())).collect();
    let rows = compare(&ended.placement, &known, &output.reports);
    let faults = faults(&rows, &ended);
    if ended.code != 0 {
        let last = &output.other[output.other.len().saturating_sub(10)..];
        let lines = if last.is_empty() { &ended.launcher } else { last };
        events.note(format!("last lines of output:{}", tail(lines)));
    }
    let text = summary(&rows, &faults, ended.placement.ranks());
    let names: Vec<&str> = known.iter().map(|(node, _)| node.name.as_str()).collect();
    Ok(outcome(text, details(Some(&ended.id), controller, faults, &names, &rows, logins.as_ref())))
}

pub(super) fn outcome(text: String, details: output::Verify) -> Outcome {
    Outcome::new(Verdict::of_check(details.faults.is_empty(), 0, &[]), text, details)
}

/// The program of each rank.
fn program(job: &JobOptions) -> Program {
    let backends = launch::launcher(job.launcher, job.controller).verify_with;
    Program {
        title: None,
        name: "verify".into(),
        command: ["python3", "verify.py"].into_iter().chain(backends.iter().copied()).map(Into::into).collect(),
        project: None,
        files: vec![("verify.py", VERIFY)],
    }
}

/// Tries the logins between the workers: the launcher may hang if one fails, and does not report which.
async fn check_logins(plan: &JobPlan, context: &Context) -> Result<Matrix, Error> {
    let Context { target, events, session, .. } = context;
    // what these rules find explains more than a failed login
    all(events, plan.preflight().failed.into_iter().map(Err::<(), _>).collect())?;
    events.phase("logging in from worker to worker");
    let observed: Vec<ObservedNode> = plan.hosts.iter().map(|host| host.observed.clone()).collect();
    session.cancellation.run(logins::check(&target.inventory, &observed, events)).await
}

/// What the ranks wrote.
#[derive(Default)]
struct RankOutput {
    /// Their reports, by the node whose log has it.
    reports: Vec<(String, Report)>,
    /// All other lines.
    other: Vec<String>,
}

impl RankOutput {
    fn take(&mut self, node: &str, rank: u32, kind: &Kind) {
        let line = match kind {
            Kind::Stdout(line) => match serde_json::from_slice(line) {
                Ok(report) => return self.reports.push((node.to_owned(), report)),
                Err(_) => String::from_utf8_lossy(line),
            },
            Kind::Stderr(line) => String::from_utf8_lossy(line),
            Kind::Broken(text) => text.as_str().into(),
            _ => return,
        };
        self.other.push(format!("[{rank} {node}] {line}"));
    }
}

/// Returns everything that is not as expected, the failure of the job first.
fn faults(rows: &[Row], outcome: &JobOutcome) -> Vec<String> {
    let launcher = || format!("the launcher exited with code {}", outcome.code);
    let job = (outcome.code != 0).then(|| outcome.root_cause.as_ref().map_or_else(launcher, ToString::to_string));
    let ranks = rows.iter().flat_map(|row| row.faults.iter().map(move |fault| format!("rank {}: {fault}", row.rank)));
    job.into_iter().chain(ranks).collect()
}

fn summary(rows: &[Row], faults: &[String], ranks: u32) -> String {
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
        text.push_str(&format!("ok: {ranks} where expected, allreduce correct{versions}\n"));
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
    rows: &[Row],
    logins: Option<&Matrix>,
) -> output::Verify {
    let node = |name: &&str| {
        let ranks: Vec<Row> = rows.iter().filter(|row| row.expected == *name).cloned().collect();
        NodeEntry::new(name, ranks.iter().all(|row| row.faults.is_empty()), VerifyNode { ranks })
    };
    output::Verify {
        job: job.map(str::to_owned),
        controller,
        ranks: rows.len(),
        faults,
        nodes: nodes.iter().map(node).collect(),
        logins: logins.map(Logins::from),
    }
}
