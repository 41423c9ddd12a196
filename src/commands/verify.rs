//! `hvdctl verify`.

use super::output::{self, NodeEntry, Reach, VerifyNode};
use super::{Context, Outcome, reach_table, take_and_observe_free};
use crate::checks::preflight;
use crate::checks::reach_check;
use crate::checks::verify::{Expected, Report, Row, compare};
use crate::cli::Verify;
use crate::cluster::turn::Turn;
use crate::error::{Error, exit};
use crate::event::Events;
use crate::inventory::Controller;
use crate::job::frames::Kind;
use crate::job::run::{
    Cwd, OnSignal, Options, Program, Show, Until, Wanted, check_ranks, run as run_program, tail, taking_part,
};
use crate::keys::reachability::Matrix;
use crate::launch::placement::MapBy;
use crate::node::gpus::GpuRequest;
use crate::node::network;
use crate::render::table::table;
use std::collections::BTreeMap;
use std::time::Duration;

const SCRIPT: &str = include_str!("../scripts/verify.py");

/// `verify`.
pub async fn run(options: &Verify, context: Context) -> Result<Outcome, Error> {
    check_ranks(&context.target, options.np, None)?;
    let turn = context.turn("hvdctl verify", options.waiting);
    let result = prove(options, &turn, context).await;
    turn.give_back().await;
    result
}

async fn prove(options: &Verify, turn: &Turn, mut context: Context) -> Result<Outcome, Error> {
    let wanted = Wanted { ranks: options.np, map_by: MapBy::Slot, per_node: None };
    let nodes = take_and_observe_free(&mut context, wanted, turn).await?;
    let Context { target, events, verbose, .. } = context;
    let cluster = target.cluster();
    let expected: Vec<Expected> = nodes
        .iter()
        .map(|seen| Expected {
            node: seen.name().to_owned(),
            hostname: seen.facts.hostname.clone(),
            gpus_wanted: network::gpu_request(&seen.member.node, &seen.facts) != GpuRequest::None,
            gpus: network::chosen_gpus(&seen.member.node, &seen.facts),
        })
        .collect();

    let controller = options.launching.controller(cluster.controller);
    let part = taking_part(&target, &nodes, wanted, controller)?;
    let mut reached = None;
    if part.len() > 1 {
        let looked: Vec<_> = part.iter().enumerate().map(|(i, seen)| (seen, i > 0)).collect();
        let failed = preflight::stops(&preflight::before(&target.inventory, &looked), &events);
        if !failed.is_empty() {
            return Err(Error::Nodes { failed, done: 0 });
        }
        // Horovod only hangs where one worker cannot log in to another, and does not say which
        events.phase("logging in from worker to worker");
        let matrix = turn.unless_stopped(reach_check::check(&target.inventory, &part, &events)).await?;
        if !matrix.is_good() {
            return Ok(unreached(&matrix, controller, cluster.port, &events));
        }
        reached = Some(matrix);
    }

    let program = Program {
        title: None,
        name: "verify".into(),
        command: vec!["python3".into(), "verify.py".into()],
        cwd: Cwd::Job,
        project: None,
        files: vec![("verify.py", SCRIPT)],
    };
    let how = Options {
        wanted,
        restarts: 0,
        controller,
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
    let mut reports: Vec<(String, Report)> = Vec::new();
    let mut complaints: Vec<String> = Vec::new();
    let ran = run_program(&target, nodes, &program, &how, turn, &events, |node, frame| match &frame.kind {
        Kind::Stdout(line) => match serde_json::from_slice(line) {
            Ok(report) => reports.push((node.to_owned(), report)),
            Err(_) => complaints.push(format!("[{} {node}] {}", frame.rank, String::from_utf8_lossy(line))),
        },
        Kind::Stderr(line) => complaints.push(format!("[{} {node}] {}", frame.rank, String::from_utf8_lossy(line))),
        Kind::Broken(words) => complaints.push(format!("[{} {node}] {words}", frame.rank)),
        Kind::Started | Kind::Exited { .. } | Kind::Hung { .. } => {}
        Kind::Launcher(_) | Kind::Restart(_) | Kind::Lost(_) | Kind::Over => {}
    })
    .await?;

    let rows = compare(&ran.placement, &expected, &reports);
    let mut faults: Vec<String> =
        rows.iter().flat_map(|r| r.faults.iter().map(move |f| format!("rank {}: {f}", r.rank))).collect();
    if ran.code != 0 {
        let launcher = || format!("the launcher ended with {}", ran.code);
        faults.insert(0, ran.blame.as_ref().map_or_else(launcher, ToString::to_string));
    }
    let ok = faults.is_empty();
    let mut text = text(&rows);
    if ok {
        text.push_str(&format!(
            "ok: {} rank{} where expected, allreduce right{}\n",
            ran.placement.ranks(),
            if ran.placement.ranks() == 1 { "" } else { "s" },
            rows.first()
                .and_then(|r| r.report.as_ref())
                .map_or(String::new(), |r| format!(" ({}, Horovod {}, Python {})", r.framework, r.horovod, r.python))
        ));
    } else {
        for fault in &faults {
            text.push_str(&format!("failed: {fault}\n"));
        }
        let last: Vec<String> = complaints.iter().rev().take(10).rev().cloned().collect();
        let words = if last.is_empty() { &ran.launcher } else { &last };
        if ran.code != 0 {
            events.note(format!("what was said last:{}", tail(words)));
        }
    }
    let names: Vec<&str> = expected.iter().map(|node| node.node.as_str()).collect();
    let document = document(Some(&ran.id), controller, &faults, &names, &rows, reached.as_ref());
    Ok(Outcome::new(if ok { exit::OK } else { exit::FAILED }, text, &document, Vec::new()))
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
