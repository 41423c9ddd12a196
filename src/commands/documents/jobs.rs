//! The documents of jobs.

use super::tools::{fetched, rank_stack};
use super::{Made, choice, full, idle_rank, names, refused};
use crate::cli::ExitCode;
use crate::commands::Outcome;
use crate::commands::show::{fetch, job_end, jobs, logs};
use crate::commands::start::train;
use crate::diagnosis::outcome::JobOutcome;
use crate::error::{Error, Verdict};
use crate::event::{Completion, Event, Stream};
use crate::inventory::{Controller, LauncherName};
use crate::launch::NodeCommand;
use crate::launch::placement::{Placement, Share};
use crate::model::fault::Fault;
use crate::model::role::RankOfRole;
use crate::model::stack;
use crate::model::usage::{GpuUsage, NodeUsage, RankUsage, Sampled, UsageReport};
use crate::record::list::Job;
use crate::record::restart::{Change, Departure, Membership, Ranks, Restart};
use crate::record::{Attempt, FailureKind, JobState, LostOutput, OutsideFile, OutsideFiles, RankExit, RootCause};
use crate::render::json::Line;
use crate::start::in_worker::NodeCores;
use crate::text::argument::ProgramArgument;
use crate::{cli, document};

fn outside_files() -> Vec<OutsideFiles> {
    let largest = vec![OutsideFile { path: "/root/ckpt/last.pt".into(), bytes: 50_000_000 }];
    vec![OutsideFiles { node: "node1".into(), files: 1, bytes: 50_000_000, largest, whole: true }]
}

#[expect(clippy::too_many_lines, reason = "one example of each document of a job, with all fields")]
pub(super) fn jobs_made(all: &mut Made) {
    let id = "20261121-120304-k7qd";
    let line = |event: Event| document::value(&Line::of(&event).expect("a line"));
    all.push(("train-job", line(Event::Job { id: id.into(), state: JobState::Running })));
    let uploaded = Completion::Uploaded { files: 3, bytes: 12 << 10, removed: 0 };
    let fetched_two = Completion::Fetched { files: 2 };
    all.push(("train-node/fetched", line(Event::Done { node: "node1".into(), what: fetched_two })));
    all.push(("train-node", line(Event::Done { node: "node1".into(), what: uploaded })));
    all.push(("train-node/failed", line(Event::failed(full("node2")))));
    let output = Event::Output {
        rank: 1,
        role: None,
        node: "node2".into(),
        stream: Stream::Stdout,
        line: b"epoch 1: loss 0.25".to_vec(),
    };
    all.push(("train-output", line(output)));
    let of_role = |rank| Some(RankOfRole { role: "generator".into(), rank });
    let output = Event::Output {
        rank: 2,
        role: of_role(0),
        node: "node2".into(),
        stream: Stream::Stdout,
        line: b"ready".to_vec(),
    };
    all.push(("train-output/role", line(output)));
    let restart = |time, restart| line(Event::Restart { time, restart });
    let how = FailureKind::Exited { code: 137, signal: Some(9), oom: false };
    let root_cause = Some(RootCause { rank: 3, role: None, node: "node2".into(), how });
    let failed = |root_cause, fault: Option<&str>, launcher| Restart::Failed {
        root_cause,
        fault: fault.map(|fault| Fault::Text(fault.to_owned())),
        launcher,
        attempt: 2,
        attempts: 4,
        pause: 2,
    };
    all.push(("train-restart", restart(None, failed(root_cause, None, Some(137)))));
    let fault = failed(None, Some("not all ranks started within 60 s"), None);
    all.push(("train-restart/fault", restart(Some(1_795_262_584.0), fault)));
    let change = Change {
        time: 1_795_262_580.0,
        left: vec![Departure { node: "node2".into(), reason: "no answer".into() }],
        joined: names(&["node3"]),
        ranks: 3,
        wanted: 4,
        waits: 0,
        kept: true,
    };
    all.push(("train-restart/membership", restart(None, Restart::Membership { change })));
    all.push(("train-restart/lost", restart(None, Restart::Lost { launcher: 137 })));
    all.push(("train-restart/without", restart(None, Restart::Without { gone: names(&["node2"]), ranks: 2 })));
    all.push(("train-restart/requeued", restart(None, Restart::Requeued { nodes: names(&["node3", "node4"]) })));
    let how = FailureKind::Exited { code: 137, signal: Some(9), oom: false };
    let cause = RootCause { rank: 2, role: of_role(0), node: "node2".into(), how };
    let failed = Restart::Role { failed: "generator".into(), root_cause: Some(cause), again: 1, of: 3 };
    all.push(("train-restart/role", restart(None, failed)));
    all.push(("train-restart/ready", restart(None, Restart::Ready { ready: "generator".into(), seconds: 4.0 })));
    all.push(("train-restart/other", restart(None, Restart::Other { logged: "of another version".into() })));
    let (job, time) = (Some("20261121-120304-k7qd".to_owned()), 1_795_264_400.0);
    all.push(("train-idle", line(Event::Idle { ranks: vec![idle_rank()], job, time })));
    let groups = stack::groups([rank_stack(0), rank_stack(1)]);
    all.push(("train-stacks", line(Event::Stacks { groups, job: Some(id.to_owned()) })));
    all.push(("train-resumed", line(Event::Resumed { ranks: vec![idle_rank()], seconds: 1865 })));
    let usage = |what| Event::Usage(UsageReport { time: 1_795_262_584.0, role: None, node: "node1".into(), what });
    let of_rank = RankUsage { processor_percent: 104.0, memory_mib: 2048.0, read_kib_s: 0.0, written_kib_s: 12.0 };
    all.push(("train-rank-usage", line(usage(Sampled::Rank(0, of_rank)))));
    all.push(("train-node-usage", line(usage(Sampled::Node(NodeUsage::default())))));
    let of_gpu = GpuUsage { use_percent: Some(97.0), power_w: Some(690.0), ..GpuUsage::default() };
    let gpu = Sampled::Gpu { index: 0, uuid: Some("GPU-1".into()), rank: Some(0), usage: of_gpu };
    all.push(("train-gpu-usage", line(usage(gpu))));
    all.push(("train-ready", line(Event::Ready { url: "http://127.0.0.1:8888/lab?token=0123abcd".into() })));
    all.push(("train-launcher", line(Event::Launcher { line: "[0]<stdout>: ...".into() })));

    let share = |node: &str, first| Share { node: node.into(), ranks: 2, first, ..Share::default() };
    let ran = |state, code, first_failure: Option<RankExit>| JobOutcome {
        id: id.into(),
        state,
        placement: Placement { shares: vec![share("node1", 0), share("node2", 2)], ..Placement::default() },
        code,
        root_cause: first_failure.as_ref().map(|first| RootCause {
            rank: first.rank,
            role: None,
            node: first.node.clone(),
            how: FailureKind::Exited { code: first.code, signal: first.signal, oom: first.oom },
        }),
        last_lines: first_failure.iter().map(|_| "loading the data".to_owned()).collect(),
        just_shown: false,
        broken: None,
        first_failure,
        all_started: true,
        silent: if code == 0 { Vec::new() } else { names(&["node2"]) },
        fault: None,
        lost: Vec::new(),
        outside: outside_files(),
        launcher: Vec::new(),
    };
    let well = ran(JobState::Succeeded, 0, None);
    let ended = |job: JobOutcome, fetched| job_end::with_verdict(Verdict::Program(job.code), job, fetched).document;
    all.push(("train-end", ended(well.clone(), None)));
    all.push(("train-end/fetched", ended(well, Some(Some(fetch::document(&fetched()))))));
    let first = RankExit {
        rank: 3,
        node: "node2".into(),
        code: 137,
        signal: Some(9),
        time: 1_795_262_584.25,
        asked: false,
        oom: true,
    };
    all.push(("train-end/failed", ended(ran(JobState::Failed, 137, Some(first.clone())), None)));
    let by_itself = RankExit { code: 7, signal: None, oom: false, ..first.clone() };
    all.push(("train-end/exit", ended(ran(JobState::Failed, 7, Some(by_itself.clone())), None)));
    all.push((
        "train-end/error",
        Outcome::failure(&Error::Unreachable(vec![refused("node2")]), ExitCode::Program, cli::OutputForm::Lines)
            .document,
    ));
    let placement = Placement { shares: vec![share("node1", 0), share("node2", 2)], ..Placement::default() };
    let launcher = [NodeCommand {
        node: "node1".into(),
        argv: names(&["horovodrun", "--gloo"]),
        variables: vec![vec!["RANK=0".into()]],
    }];
    let command = ["python", "train.py"].map(ProgramArgument::from);
    let cores = vec![NodeCores {
        node: "node1".into(),
        bind: "numa".into(),
        threads: "4".into(),
        cpus: names(&["0-3", "4-7"]),
    }];
    let speeds = [("node1", 1.0), ("node2", 0.5)]
        .map(|(node, speed)| train::dry_run::NodeSpeed { node: node.into(), speed })
        .into();
    let details = train::dry_run::DryRunDetails { cores, speeds, best: Some(choice()) };
    let dry =
        train::dry_run::placed_outcome(&command, &placement, |_| "10.0.0.1".into(), &launcher, (details, Vec::new()));
    all.add("train-end/dry", dry);
    all.add("train-end/logs", logs::ended());

    let running = Job {
        id: id.into(),
        name: "big".into(),
        project: Some("digits".into()),
        commit: Some("0123456789abcdef0123456789abcdef01234567".into()),
        dirty: Some(true),
        operator: "ana@desk".into(),
        state: Some(JobState::Running),
        ranks: 4,
        placement,
        roles: Vec::new(),
        launcher: Some(LauncherName::Horovodrun),
        controller: Some(Controller::Gloo),
        command: ["python", "train.py"].map(ProgramArgument::from).into(),
        restarts: 3,
        min_ranks: Some(2),
        membership: Some(Membership {
            members: vec![Ranks { node: "node1".into(), ranks: 2 }],
            changes: vec![Change {
                time: 1_795_262_580.0,
                left: vec![Departure { node: "node2".into(), reason: "no answer".into() }],
                joined: Vec::new(),
                ranks: 2,
                wanted: 4,
                waits: 0,
                kept: false,
            }],
        }),
        attempts: vec![Attempt {
            started: 1_795_262_500.0,
            ended: 1_795_262_580.0,
            ranks: 4,
            launcher: Some(137),
            exits: vec![first.clone(), by_itself.clone()],
            silent: names(&["node2"]),
            fault: None,
        }],
        idle: vec![idle_rank()],
        places: Some("rank 3 on node2 is in load (data.py:31), sleeping in clock_nanosleep".into()),
        slurm: None,
        shares_directory: false,
        result: None,
        started: 1_795_262_584.0,
        ended: None,
        code: None,
        first_failure: None,
        root_cause: None,
        reason: None,
        fault: None,
        lost: Vec::new(),
        outside: Vec::new(),
        is_check: false,
        port: 0,
        log_max: None,
        record: None,
        container: None,
        may_run: false,
        nodes: names(&["node1", "node2"]),
        earlier: Vec::new(),
    };
    let part = |node: &str, first: u32| {
        let gpus = vec![format!("GPU-{first}a"), format!("GPU-{first}b")];
        Share { shared: true, gpus, ..share(node, first) }
    };
    let lost = Job {
        id: "20261121-110000-0f3b".into(),
        name: "digits".into(),
        state: Some(JobState::Lost),
        placement: Placement { shares: vec![part("node1", 0), part("node2", 2)], ..Placement::default() },
        restarts: 0,
        min_ranks: None,
        membership: None,
        attempts: Vec::new(),
        idle: Vec::new(),
        places: Some("3 of 4 ranks wait in all_reduce (train.py:44); rank 1 on node1 is in load (data.py:31)".into()),
        started: 1_795_258_800.0,
        ended: Some(1_795_260_000.0),
        code: Some(137),
        first_failure: Some(first),
        root_cause: Some(RootCause {
            rank: 1,
            role: None,
            node: "node1".into(),
            how: FailureKind::Hung { seconds: 1800, tensors: Some("allreduce.loss".into()), idle: None },
        }),
        reason: Some("rank 1 on node1 hung: the others waited 1800 s for it in allreduce.loss".into()),
        fault: Some(Fault::Unrecorded { code: None }),
        lost: vec![LostOutput { rank: 1, node: "node1".into(), lines: 66_131 }],
        outside: outside_files(),
        ..running.clone()
    };
    let failed = Job {
        id: "20261121-100000-9c1d".into(),
        name: "python".into(),
        lost: Vec::new(),
        outside: Vec::new(),
        project: None,
        commit: None,
        dirty: None,
        state: Some(JobState::Failed),
        code: Some(7),
        first_failure: Some(by_itself),
        root_cause: Some(RootCause {
            rank: 3,
            role: None,
            node: "node2".into(),
            how: FailureKind::Exited { code: 7, signal: None, oom: false },
        }),
        reason: Some("rank 3 on node2 ended with exit code 7".into()),
        fault: None,
        ..lost.clone()
    };
    let unreadable = Job {
        id: "20261121-090000-77aa".into(),
        name: String::new(),
        operator: String::new(),
        state: Some(JobState::Unreadable),
        ranks: 0,
        placement: Placement::default(),
        launcher: None,
        controller: None,
        command: Vec::new(),
        code: None,
        first_failure: None,
        root_cause: None,
        reason: Some("its record cannot be read: it is cut off".into()),
        ..failed.clone()
    };
    let listed = [&running, &lost, &failed, &unreadable];
    all.add("jobs", jobs::listed(&listed, 2, &[refused("node3")], 1_795_266_184.0));
    all.add("jobs-prune", jobs::pruned(&names(&["20261121-110000-0f3b"]), &names(&["node1"]), &[]));
    let stopped = |silent: &[&str]| jobs::stopped(id, JobState::Stopped, names(silent)).document;
    all.push(("stop", stopped(&[])));
    all.push(("stop/silent", stopped(&["node2"])));
}
