//! The output of each renderer for the same lists of events.

pub mod terminal;

use super::json::Json;
use super::messages::rank_line;
use super::plain::Plain;
use super::rows::Rows;
use super::{Options, Renderer};
use crate::error::{ErrorKind, NodeError};
use crate::event::{Completion, Event, Message, Phase, Step, Stream};
use crate::model::check::Check;
use crate::model::finding::{Finding, Severity};
use crate::model::idle_rank::IdleRank;
use crate::model::job_state::JobState;
use crate::model::restart::{Change, Departure, Restart};
use crate::model::role::RankOfRole;
use crate::model::root_cause::{FailureKind, RootCause};
use crate::model::stack::{self, RankStack};
use crate::model::usage::{GpuUsage, Sampled, UsageReport};
use std::collections::BTreeSet;
use std::time::{Duration, Instant};
use terminal::Terminal;

/// 2026-11-21T12:03:04Z.
const START: f64 = 1_795_262_584.0;

/// Events, each with the second in which it happens.
type Scene = Vec<(u64, Event)>;

fn nodes(n: usize) -> Event {
    Event::Nodes((1..=n).map(|i| format!("node{i}")).collect())
}

fn started(node: &str, step: Step) -> Event {
    Event::StepStarted { node: node.into(), step }
}

fn ended(node: &str, step: Step) -> Event {
    Event::StepEnded { node: node.into(), step }
}

fn done(node: &str, what: impl Into<Completion>) -> Event {
    Event::Done { node: node.into(), what: what.into() }
}

fn pulling(done: u64) -> Event {
    let (node, what) = ("node1".to_owned(), "pulling team/app:2".to_owned());
    Event::Transfer { node, what, done, total: 4 << 30, rate: 100 << 20 }
}

/// `up`: a node that pulls the image, one that is as it should be, one that fails.
fn up() -> Scene {
    let pull = || Step::transfer("pulling team/app:2".into());
    let start = || Step::write("starting hworker");
    let full = NodeError::failed("node3", "start hworker", "no space left on device\nwrote 3 of 9 files");
    let finding =
        Finding::new(Severity::Warning, Check::Clock, "node1", "its clock is 3 s behind those of the other nodes")
            .explain("launchers may give ranks an absolute deadline", "sudo timedatectl set-ntp true");
    vec![
        (0, nodes(3)),
        (0, started("node1", Step::CONNECTING)),
        (0, started("node2", Step::CONNECTING)),
        (0, started("node3", Step::CONNECTING)),
        (1, Event::Warning(Message::of("node3", "the login shell prints text").hint("move it out of .bashrc"))),
        (1, ended("node1", Step::CONNECTING)),
        (1, ended("node2", Step::CONNECTING)),
        (1, ended("node3", Step::CONNECTING)),
        (1, started("node2", Step::OBSERVING)),
        (2, Event::Warning(Message::from(&finding))),
        (2, Event::Note("keys are missing or differ on node3: pushing them first".into())),
        (2, started("node1", pull())),
        (3, pulling(1 << 30)),
        (4, pulling(2 << 30)),
        (14, pulling(3 << 30)),
        (14, ended("node2", Step::OBSERVING)),
        (14, done("node2", "unchanged")),
        (20, ended("node1", pull())),
        (20, started("node1", start())),
        (20, started("node3", start())),
        (23, Event::failed(full.kind(ErrorKind::NoSpace).hint("free space on the node"))),
        (23, ended("node3", start())),
        (25, ended("node1", start())),
        (25, done("node1", "pulled team/app:2, started hworker")),
    ]
}

/// A job with roles: lines of two ranks, a role that is ready, and one that starts again.
fn roles() -> Scene {
    let of = |role: &str, rank| Some(RankOfRole { role: role.into(), rank });
    let line = |rank, role, node: &str| Event::Output {
        rank,
        role,
        node: node.into(),
        stream: Stream::Stdout,
        line: b"step 1".to_vec(),
    };
    let restart = |restart| Event::Restart { time: None, restart };
    let how = FailureKind::Exited { code: 137, signal: Some(9), oom: false };
    let cause = RootCause { rank: 2, role: of("generator", 0), node: "node2".into(), how };
    vec![
        (0, restart(Restart::Ready { ready: "generator".into(), seconds: 4.2 })),
        (1, line(0, of("trainer", 0), "node1")),
        (1, line(2, of("generator", 0), "node2")),
        (2, restart(Restart::Role { failed: "generator".into(), root_cause: Some(cause), again: 1, of: 3 })),
    ]
}

#[test]
fn ranks_of_roles_have_the_name_of_their_role() {
    let plain = as_plain(roles(), 0, false);
    let expected = "2> generator is ready after 4 s\n1> [trainer 0 node1] step 1\\n\n1> [generator 0 node2] step 1\\n\n\
                    2> warning: rank 0 of generator on node2 was killed by signal 9; generator is started again, 1 of 3\n";
    assert_eq!(plain, expected);
    let lines: Vec<serde_json::Value> =
        roles().iter().map(|(_, event)| serde_json::to_value(super::json::Line::of(event).unwrap()).unwrap()).collect();
    assert_eq!((&lines[0]["reason"], &lines[0]["ready"]), (&"role_ready".into(), &"generator".into()));
    assert_eq!((&lines[2]["rank"], &lines[2]["role_rank"]), (&2.into(), &0.into()));
    assert_eq!((&lines[2]["role"], &lines[3]["root_cause"]["role"]), (&"generator".into(), &"generator".into()));
}

/// `train --restarts -vv`: an upload, a rank that waits, a failed attempt, and a node that leaves and does not come
/// back.
fn train() -> Scene {
    let id = || "20261121-120304-k7qd".to_owned();
    let job = |state| Event::Job { id: id(), state };
    let line = |rank: u32, stream, line: &[u8]| Event::Output {
        rank,
        role: None,
        node: format!("node{}", rank + 1),
        stream,
        line: line.to_vec(),
    };
    let idle = || {
        let does = || "waiting in flock for a lock on /data/cache".to_owned();
        (0..2)
            .map(|rank| IdleRank { rank, role: None, node: format!("node{}", rank + 1), since: START, does: does() })
            .collect()
    };
    let stacks = || {
        let text = r#"{"rank": 1, "quiet": 1800, "left_out": 0, "processes": [{"pid": 7, "command": "python3 train.py",
            "does": "waiting in flock for a lock on /data/cache", "threads": [{"name": "MainThread", "active": false,
            "frames": [{"name": "open_cache", "file": "/workspace/data.py", "line": 31}]}]}]}"#;
        stack::groups(RankStack::read("node2", text))
    };
    let restart = |restart| Event::Restart { time: None, restart };
    let uploading = || Step::transfer("uploading 3 files, 12.0 KiB".into());
    let how = FailureKind::Exited { code: 137, signal: Some(9), oom: false };
    let change = Change {
        time: START,
        left: vec![Departure { node: "node2".into(), reason: "no answer".into() }],
        joined: Vec::new(),
        ranks: 1,
        wanted: 2,
        waits: 0,
        kept: false,
    };
    vec![
        (0, nodes(2)),
        (0, Event::Phase(Phase::Preparing)),
        (0, job(JobState::Starting)),
        (1, started("node1", uploading())),
        (2, ended("node1", uploading())),
        (2, done("node1", Completion::Uploaded { files: 3, bytes: 12 << 10, removed: 1 })),
        (2, done("node2", Completion::Uploaded { files: 0, bytes: 0, removed: 0 })),
        (3, Event::Phase(Phase::StartingRanks { ranks: 2 })),
        (4, Event::Launcher { line: "Launching horovod task function".into() }),
        (5, job(JobState::Running)),
        (6, line(0, Stream::Stdout, b"epoch 1: loss 0.25")),
        (6, line(1, Stream::Stderr, b"caf\xe9 \x1b[31mred")),
        (1860, Event::Idle { ranks: idle(), job: Some(id()), time: START + 1860.0 }),
        (1861, Event::Stacks { groups: stacks(), job: Some(id()) }),
        (1865, Event::Resumed { ranks: idle(), seconds: 1865 }),
        (1866, Event::Usage(usage())),
        (1867, Event::Ready { url: "http://127.0.0.1:8888/lab?token=0123abcd".into() }),
        (
            1870,
            restart(Restart::Failed {
                root_cause: Some(RootCause { rank: 1, role: None, node: "node2".into(), how }),
                fault: None,
                launcher: Some(137),
                attempt: 2,
                attempts: 4,
                pause: 2,
            }),
        ),
        (1880, restart(Restart::Membership { change })),
        (1890, restart(Restart::Without { gone: vec!["node2".into()], ranks: 1 })),
        (1900, Event::Warning(NodeError::unreachable("node2", "end the job", "no answer within 60 s").into())),
        (1900, Event::Restart { time: Some(START), restart: Restart::Other { logged: "of another version".into() } }),
        (1901, job(JobState::Failed)),
        (1902, done("node1", Completion::Fetched { files: 2 })),
    ]
}

/// All phases, one after the other.
fn phases() -> Scene {
    let job = || "20261121-120304-k7qd".to_owned();
    let all = [
        Phase::Probing,
        Phase::Observing,
        Phase::Examining,
        Phase::TestingConnections,
        Phase::LoggingIn,
        Phase::Reading,
        Phase::BuildingImage { image: "hvdctl/digits:1f0c2a7d33e9".into() },
        Phase::Preparing,
        Phase::StartingRanks { ranks: 1 },
        Phase::RunningJob { job: job() },
        Phase::AddingNodes { job: job() },
        Phase::StoppingJob { job: job() },
        Phase::Comparing,
        Phase::Fetching,
        Phase::StartingMeasurement,
        Phase::MeasuringProcessors,
        Phase::MeasuringConnections { round: 2, rounds: 7 },
        Phase::MeasuringAgain { connections: 3 },
    ];
    (0..).zip(all.into_iter().map(Event::Phase)).collect()
}

fn options(verbose: u8, quiet: bool, streams_output: bool) -> Options {
    Options { json: false, quiet, verbose, has_rows: true, streams_output }
}

/// Returns the contents of a terminal of 24 lines and 90 columns after the events of each second, and at the end.
fn on_rows(scene: Scene, streams_output: bool) -> String {
    console::set_colors_enabled(false);
    console::set_colors_enabled_stderr(false);
    let terminal = Terminal::new(24, 90);
    let mut rows = Rows::on(&terminal, options(0, false, streams_output));
    let (begun, mut text, mut last) = (Instant::now(), String::new(), Vec::new());
    let mut events = scene.into_iter().peekable();
    while let Some((second, event)) = events.next() {
        let now = begun + Duration::from_secs(second);
        rows.show(event, now);
        if events.peek().is_none_or(|(next, _)| *next != second) {
            rows.tick(now);
            let lines = terminal.lines();
            if lines != last {
                let same = lines.iter().zip(&last).take_while(|(line, before)| line == before).count();
                let above = if same > 0 { format!("({same} lines as before)\n") } else { String::new() };
                text.push_str(&format!("-- after {second} s\n{above}{}\n", lines[same..].join("\n")));
                last = lines;
            }
        }
    }
    rows.finish();
    text + &format!("-- at the end\n{}\n", terminal.lines().join("\n"))
}

/// The plain lines, without their time: `1> ` those of standard output, `2> ` those of standard error.
fn as_plain(scene: Scene, verbose: u8, quiet: bool) -> String {
    console::set_colors_enabled(false);
    console::set_colors_enabled_stderr(false);
    let mut plain = Plain::new(options(verbose, quiet, true));
    let begun = Instant::now();
    let mut text = String::new();
    for (second, event) in scene {
        if let Event::Output { rank, role, node, stream, line } = &event {
            let number = if *stream == Stream::Stdout { 1 } else { 2 };
            let line = rank_line(*rank, role.as_ref(), node, *stream, line);
            text.push_str(&format!("{number}> {}", String::from_utf8_lossy(&line).escape_debug()));
            text.push('\n');
        }
        let line = plain.text(&event, begun + Duration::from_secs(second));
        line.iter().flat_map(|line| line.lines()).for_each(|line| text.push_str(&format!("2> {line}\n")));
    }
    text
}

/// Returns the lines of `--json`: `1> ` those of standard output, `2> ` those of standard error.
fn as_json(scene: Scene, streams_output: bool) -> String {
    let json = Json(options(0, false, streams_output));
    let mut text = String::new();
    for (_, event) in scene {
        let (out, err) = json.text(&event);
        out.iter().for_each(|line| text.push_str(&format!("1> {line}\n")));
        err.iter().flat_map(|err| err.lines()).for_each(|line| text.push_str(&format!("2> {line}\n")));
    }
    text
}

#[test]
fn up_on_every_renderer() {
    insta::assert_snapshot!("up_rows", on_rows(up(), false));
    insta::assert_snapshot!("up_plain", as_plain(up(), 0, false));
    insta::assert_snapshot!("up_plain_verbose", as_plain(up(), 1, false));
    insta::assert_snapshot!("up_plain_quiet", as_plain(up(), 0, true));
    insta::assert_snapshot!("up_json", as_json(up(), false));
}

#[test]
fn train_on_every_renderer() {
    insta::assert_snapshot!("train_rows", on_rows(train(), true));
    insta::assert_snapshot!("train_plain", as_plain(train(), 0, false));
    insta::assert_snapshot!("train_plain_verbose", as_plain(train(), 1, false));
    insta::assert_snapshot!("train_plain_quiet", as_plain(train(), 0, true));
    insta::assert_snapshot!("train_json", as_json(train(), true));
}

#[test]
fn every_phase_has_a_name() {
    insta::assert_snapshot!("phases_plain_verbose", as_plain(phases(), 1, false));
    assert_eq!((as_plain(phases(), 0, false), as_json(phases(), true)), (String::new(), String::new()));
}

fn usage() -> UsageReport {
    let usage = GpuUsage { use_percent: Some(97.0), power_w: Some(690.0), ..GpuUsage::default() };
    let what = Sampled::Gpu { index: 0, uuid: Some("GPU-1".into()), rank: Some(1), usage };
    UsageReport { time: 1_795_262_584.0, role: None, node: "node2".into(), what }
}

/// The name of an event's variant. A new variant does not compile until it is here, and fails until a scene has it.
fn variant(event: &Event) -> &'static str {
    match event {
        Event::Output { .. } => "Output",
        Event::Job { .. } => "Job",
        Event::Done { .. } => "Done",
        Event::Failed { .. } => "Failed",
        Event::Restart { .. } => "Restart",
        Event::Idle { .. } => "Idle",
        Event::Stacks { .. } => "Stacks",
        Event::Resumed { .. } => "Resumed",
        Event::Ready { .. } => "Ready",
        Event::Usage(_) => "Usage",
        Event::Launcher { .. } => "Launcher",
        Event::Nodes(_) => "Nodes",
        Event::Phase(_) => "Phase",
        Event::StepStarted { .. } => "StepStarted",
        Event::StepEnded { .. } => "StepEnded",
        Event::Transfer { .. } => "Transfer",
        Event::Note(_) => "Note",
        Event::Warning(_) => "Warning",
        // no renderer gets it: `run` itself hides the rows
        Event::Suspend { .. } => "Suspend",
    }
}

#[test]
fn every_event_is_in_a_list() {
    let shown: BTreeSet<&str> = up().iter().chain(&train()).map(|(_, event)| variant(event)).collect();
    assert_eq!(shown.len(), 18, "{shown:?}");
}
