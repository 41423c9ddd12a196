//! `hvdctl verify`.

use super::output::{self, NodeEntry, Reach, VerifyNode};
use super::{Context, Outcome, no_failures, reach_table, take_and_observe_free};
use crate::checks::preflight;
use crate::checks::reach_check;
use crate::checks::verify::{Expected, Report, Row, compare};
use crate::cli::Verify;
use crate::cluster::nodes::{Observed, Target};
use crate::cluster::session::Session;
use crate::error::{Error, exit};
use crate::event::Events;
use crate::inventory::Controller;
use crate::job::frames::Kind;
use crate::job::outcome::JobOutcome;
use crate::job::plan::JobPlan;
use crate::job::request::{Cwd, JobOptions, Program, ResourceRequest, Show, Until, check_ranks};
use crate::job::start::{new_id, start};
use crate::job::supervision::OnSignal;
use crate::job::watch::tail;
use crate::keys::reachability::Matrix;
use crate::launch::placement::{MapBy, RankCount};
use crate::launch::{self, VERIFY};
use crate::node::gpus::GpuRequest;
use crate::node::network;
use crate::render::table::table;
use std::collections::BTreeMap;
use std::time::Duration;

/// `verify`.
pub async fn run(options: &Verify, context: Context) -> Result<Outcome, Error> {
    let ranks = options.np.map(RankCount::exactly);
    check_ranks(&context.target, ranks, None)?;
    let session = context.session("hvdctl verify", options.waiting);
    let result = prove(options, &session, context).await;
    session.locks.release().await;
    result
}

async fn prove(options: &Verify, session: &Session, mut context: Context) -> Result<Outcome, Error> {
    let resources = ResourceRequest { ranks: options.np.map(RankCount::exactly), map_by: MapBy::Slot, per_node: None };
    let nodes = take_and_observe_free(&mut context, resources, session).await?;
    let Context { target, events, verbose, .. } = context;
    let expected: Vec<Expected> = nodes.iter().map(expected).collect();
    let controller = options.launching.controller(target.cluster().controller);
    let launcher = options.launching.launcher(None, target.cluster().launcher)?;
    let ways = launch::launcher(launcher, controller).ways;
    let job = JobOptions {
        resources,
        restarts: 0,
        launcher,
        controller,
        bind: target.cluster().bind,
        stall_timeout: Duration::ZERO,
        log_max: None,
        env: BTreeMap::new(),
        show: Show { output: verbose > 0, launcher: verbose > 1 },
        until: Until {
            limit: Some(Duration::from_secs(options.timeout)),
            all_started: false,
            on_signal: OnSignal::Stop,
        },
    };
    let plan = JobPlan::new(&target, nodes, &job, &new_id())?;
    let reached = match plan.hosts.len() {
        1 => None,
        _ => Some(reach(&target, &plan, session, &events).await?),
    };
    if let Some(matrix) = reached.as_ref().filter(|matrix| !matrix.is_good()) {
        return Ok(unreached(matrix, controller, target.cluster().port, &events));
    }
    plan.check(&events)?;

    let program = Program {
        title: None,
        name: "verify".into(),
        command: ["python3", "verify.py"].into_iter().chain(ways.iter().copied()).map(Into::into).collect(),
        launcher: None,
        cwd: Cwd::Job,
        project: None,
        files: vec![("verify.py", VERIFY)],
    };
    let mut said = Said::default();
    let outcome =
        start(&plan, &program, &job, session, &events, |node, frame| said.take(node, frame.rank, &frame.kind)).await?;
    let rows = compare(&outcome.placement, &expected, &said.reports);
    let faults = faults(&rows, &outcome);
    let text = summary(&rows, &faults, outcome.placement.ranks());
    if outcome.code != 0 {
        let last: Vec<String> = said.complaints.iter().rev().take(10).rev().cloned().collect();
        let lines = if last.is_empty() { &outcome.launcher } else { &last };
        events.note(format!("last lines of output:{}", tail(lines)));
    }
    let names: Vec<&str> = expected.iter().map(|node| node.node.as_str()).collect();
    let document = document(Some(&outcome.id), controller, &faults, &names, &rows, reached.as_ref());
    let code = if faults.is_empty() { exit::OK } else { exit::FAILED };
    Ok(Outcome::new(code, text, &document, Vec::new()))
}

/// What the ranks of a node should report.
fn expected(seen: &Observed) -> Expected {
    Expected {
        node: seen.name().to_owned(),
        hostname: seen.facts.hostname.clone(),
        gpus_wanted: network::gpu_request(&seen.member.node, &seen.facts) != GpuRequest::None,
        gpus: network::chosen_gpus(&seen.member.node, &seen.facts),
    }
}

/// Tries the logins between the nodes of the plan: Horovod only hangs where one worker cannot log in to another, and does not say
/// which.
async fn reach(target: &Target, plan: &JobPlan, session: &Session, events: &Events) -> Result<Matrix, Error> {
    let nodes: Vec<_> = plan.hosts.iter().map(|host| (&host.seen, !host.launches)).collect();
    let failed = preflight::stops(&preflight::before(&target.inventory, &nodes), events);
    no_failures(failed)?;
    events.phase("logging in from worker to worker");
    let observed: Vec<Observed> = plan.hosts.iter().map(|host| host.seen.clone()).collect();
    session.cancellation.run(reach_check::check(&target.inventory, &observed, events)).await
}

/// What the ranks said: their reports, and all other lines.
#[derive(Default)]
struct Said {
    reports: Vec<(String, Report)>,
    complaints: Vec<String>,
}

impl Said {
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
        self.complaints.push(format!("[{rank} {node}] {line}"));
    }
}

/// Everything that is not as expected, the failure of the job first.
fn faults(rows: &[Row], outcome: &JobOutcome) -> Vec<String> {
    let launcher = || format!("the launcher exited with code {}", outcome.code);
    let job = (outcome.code != 0).then(|| outcome.root_cause.as_ref().map_or_else(launcher, ToString::to_string));
    let ranks = rows.iter().flat_map(|row| row.faults.iter().map(move |fault| format!("rank {}: {fault}", row.rank)));
    job.into_iter().chain(ranks).collect()
}

fn summary(rows: &[Row], faults: &[String], ranks: u32) -> String {
    let mut text = text(rows);
    if faults.is_empty() {
        let plural = if ranks == 1 { "" } else { "s" };
        let report = rows.first().and_then(|row| row.report.as_ref());
        let versions = report.map_or(String::new(), |report| {
            format!(" ({}, {}, Python {})", report.framework, report.library, report.python)
        });
        text.push_str(&format!("ok: {ranks} rank{plural} where expected, allreduce correct{versions}\n"));
    }
    text.extend(faults.iter().map(|fault| format!("failed: {fault}\n")));
    text
}

/// Without a job nothing was launched, and no node is told of.
pub(super) fn document(
    job: Option<&str>,
    controller: Controller,
    faults: &[String],
    nodes: &[&str],
    rows: &[Row],
    reached: Option<&Matrix>,
) -> output::Verify {
    let node = |name: &&str| {
        let ranks: Vec<Row> = rows.iter().filter(|row| row.expected == *name).cloned().collect();
        NodeEntry::new(name, ranks.iter().all(|row| row.faults.is_empty()), VerifyNode { ranks })
    };
    output::Verify {
        ok: faults.is_empty(),
        job: job.map(str::to_owned),
        controller,
        ranks: rows.len(),
        faults: faults.to_vec(),
        nodes: nodes.iter().map(node).collect(),
        reach: reached.map(Reach::from),
    }
}

/// What is said where the workers do not reach each other; nothing was launched then.
fn unreached(matrix: &Matrix, controller: Controller, port: u16, events: &Events) -> Outcome {
    let faults = matrix.faults();
    let text =
        format!("{}failed: not every worker can log in to the others; nothing was launched\n", reach_table(matrix));
    if let Some(hint) = matrix.hint(port) {
        events.note(format!("hint: {hint}"));
    }
    let document = document(None, controller, &faults, &[], &[], Some(matrix));
    Outcome::new(exit::FAILED, text, &document, Vec::new())
}

fn text(rows: &[Row]) -> String {
    let mut cells = Vec::new();
    for row in rows {
        let report = row.report.as_ref();
        let gpus = report.and_then(|r| r.gpus.clone()).unwrap_or_default();
        cells.push(vec![
            row.rank.to_string(),
            row.expected.clone(),
            row.actual.clone().unwrap_or_else(|| "–".into()),
            report.map_or("–".into(), |r| r.sum.to_string()),
            gpus.first().cloned().unwrap_or_else(|| "–".into()),
        ]);
        cells.extend(gpus.iter().skip(1).map(|gpu| {
            let mut more = vec![String::new(); 4];
            more.push(gpu.clone());
            more
        }));
    }
    table(&["RANK", "EXPECTED", "ACTUAL", "SUM", "GPUS"], &cells)
}
