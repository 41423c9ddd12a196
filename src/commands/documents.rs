//! Every document of `--json`, made of given values by what makes it, has the fields of its type.

#[path = "../../tests/documented/mod.rs"]
pub(super) mod documented;

use super::check::{bench, doctor, grade, pool, status, verify};
use super::json::{
    DataPushNode, DataRmNode, DisconnectNode, Document, DownNode, DrainNode, EnvRmNode, ImagePruneNode, ImagePullNode,
    ImagePushNode, LockReleaseNode, NodeEntry, NodeStatus, QueueNode, SlurmDownNode, SlurmUpNode, UpNode, UpOperation,
};
use super::nodes::{disconnect, exec, hosts, lock, shell};
use super::set_up::{data, down, drain, env, image, init, keys, up};
use super::show::{fetch, job_end, jobs, logs, report, top};
use super::start::{export, slurm, train};
use super::{Outcome, about};
use crate::bench::measurements::Measurements;
use crate::bench::measurements::tests::measured;
use crate::bench::ranks::RankResults;
use crate::bench::ranks::tests::ranks;
use crate::bench::report::BenchReport;
use crate::bench::report::compared::Compared;
use crate::bench::verdict::baseline::{Comparison, Slower};
use crate::bench::verdict::blame;
use crate::checks::place::{RankFault, RankPlace};
use crate::checks::verify::{RankReport, RankRow};
use crate::checks::{Check, Finding, Fix, Severity};
use crate::cli::{self, ExitCode, HostsFormat};
use crate::cluster::each_node::NodeResults;
use crate::cluster::exec::CommandOutput;
use crate::data::transfer::DataOnNode;
use crate::diagnosis::outcome::JobOutcome;
use crate::doctor::Fixed;
use crate::document;
use crate::environment::EnvPlace;
use crate::environment::listing::ListedEnv;
use crate::environment::make::GivenEnv;
use crate::environment::probe::MadeEnv;
use crate::error::{Error, NodeError, NodeProgress, Verdict};
use crate::event::{Completion, Event, Stream};
use crate::export::Exported;
use crate::gpus::health::report::NodeHealth;
use crate::grade::assessment::{Evidence, assess};
use crate::grade::best::{Choice, LeftOutNode};
use crate::grade::ledger::{Entry, Ledger, LedgerEvent};
use crate::init::draft::{self, Probe};
use crate::inventory::{Controller, Inventory, KeyType, LauncherName};
use crate::job::fetch::FetchReport;
use crate::keys::files::{Changes, KeyFault, KeyReport, NodeKeys, PublicKey, Put, WrongMode};
use crate::keys::push::{GenerateResult, PushResult, RotationResult};
use crate::keys::reachability::{AbsentNode, Matrix, TriedLogin};
use crate::launch::NodeCommand;
use crate::launch::placement::{Placement, Share};
use crate::model::allocation::{Allocation, AllocationConflict, Resources};
use crate::model::collective::{Dtype, Estimate, ModelEstimate};
use crate::model::engine::EngineName;
use crate::model::fault::Fault;
use crate::model::grade::{Grade, NodeGrade, NodeKind};
use crate::model::idle_rank::IdleRank;
use crate::model::lease::Lease;
use crate::model::usage::{GpuUsage, NodeUsage, RankUsage, Sampled, UsageReport};
use crate::node::facts::Drained;
use crate::node::gpus::Gpu;
use crate::pool::choice::{Distance, NodeGroup};
use crate::pool::format::PoolNode;
use crate::pool::pick::{LeftOutCandidate, PoolChoice};
use crate::pool::survey as pool_survey;
use crate::pool::verification::{FileState, PoolFile};
use crate::record::list::Job;
use crate::record::restart::{Change, Departure, Membership, Ranks, Restart};
use crate::record::{Attempt, FailureKind, JobState, LostOutput, RankExit, RootCause};
use crate::record::{OutsideFile, OutsideFiles};
use crate::render::json::Line;
use crate::runtime::Image;
use crate::secret::Secret;
use crate::start::in_worker::NodeCores;
use crate::sync::outputs::{Download, JobOutput};
use crate::text::argument::ProgramArgument;
use crate::text::result::ResultText;
use crate::verify::gpus::ExaminedGpus;
use crate::verify::ranks::VerifyScope;
use crate::verify::verdict::VerifyVerdict;
use crate::worker::plan::WorkerStatus;
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::time::{Duration, SystemTime};

fn refused(node: &str) -> NodeError {
    NodeError::unreachable(
        node,
        "log in by ssh as ana@10.0.0.3",
        "connect to host 10.0.0.3 port 22: Connection refused",
    )
    .hint("see whether `ssh ana@10.0.0.3` works")
}

fn full(node: &str) -> NodeError {
    NodeError::failed(node, "write the keys to /opt/horovod/ssh", "No space left on device")
}

fn failure(error: &Error) -> Value {
    Outcome::failure(error, ExitCode::Own, cli::OutputForm::Result).document
}

fn pair() -> PublicKey {
    let fingerprint = "SHA256:uNiVztksCsDhcc0u9e8BrTqzaHzmDtOJqZYW1WnWYzE".to_owned();
    PublicKey { key_type: KeyType::Ed25519, bits: 256, fingerprint }
}

/// The best of two nodes.
fn choice() -> Choice {
    let kind = NodeKind {
        gpu: Some("NVIDIA H200".into()),
        gpus: 8,
        gpu_memory_mib: Some(143_771),
        driver: Some(580),
        cores: 192,
    };
    let chosen = NodeGrade {
        node: "node1".into(),
        kind,
        grade: Grade::B,
        score: Some(0.91),
        reasons: names(&["network: sends 71 % of the fastest of its kind"]),
        evidence: 12,
        speed: Some(1.0),
    };
    let left_out = vec![LeftOutNode { node: "node2".into(), reason: "unreachable".into() }];
    Choice { nodes: vec![chosen], left_out }
}

fn names(names: &[&str]) -> Vec<String> {
    names.iter().map(|name| (*name).to_owned()).collect()
}

fn login(from: &str, to: &str, reason: Option<&str>) -> TriedLogin {
    TriedLogin { from: from.into(), to: to.into(), reason: reason.map(str::to_owned) }
}

fn keys_made(all: &mut Made) {
    let generated = GenerateResult { node: "node1".into(), pair: pair(), generated: true };
    all.add("keys-generate", keys::generated(generated));

    let put = |name: &str| Put { name: name.into(), text: Secret::new(String::new().into()) };
    let changes = Changes {
        puts: vec![put("authorized_keys"), put("known_hosts")],
        removes: names(&["id_rsa"]),
        repairs: vec![WrongMode { file: None, mode: "755".into(), owner: "0:0".into() }],
    };
    let pushed = vec![
        PushResult { node: "node1".into(), changes: Changes::default() },
        PushResult { node: "node2".into(), changes },
    ];
    let pushed = NodeResults { ok: pushed, failed: vec![full("node3")] };
    all.add("keys-push", keys::pushed(pushed));

    let rotated = |pair, switched, left: Option<&str>, failed| RotationResult {
        pair,
        switched,
        done: if switched { names(&["node1", "node2"]) } else { Vec::new() },
        failed,
        left: left.map(str::to_owned),
    };
    let outcome = keys::rotate::outcome(rotated(Some(pair()), true, None, Vec::new()), None, &[refused("node3")]);
    all.add("keys-rotate", outcome);
    let outcome = keys::rotate::outcome(rotated(None, false, Some("x"), vec![full("node1")]), None, &[]);
    all.add("keys-rotate/unfinished", outcome);

    let row = |node: &str, master: bool| NodeKeys {
        node: node.into(),
        master,
        key: master.then(pair),
        unexpected: Vec::new(),
        fingerprint: Some(pair().fingerprint),
        further: 0,
        modes: Vec::new(),
        agreed: Some(true),
        pinned: true,
        faults: Vec::new(),
        warnings: Vec::new(),
    };
    let good = KeyReport { rows: vec![row("node1", true), row("node2", false)], rotation: None };
    let logins = vec![login("node1", "node2", None), login("node2", "node1", None)];
    let matrix = Matrix { absent: Vec::new(), pairs: logins };
    all.add("keys-status", keys::status::outcome(&good, &matrix, &[]));

    let fault = |text: &str| KeyFault { text: text.into(), hint: "hvdctl keys push" };
    let wrong_mode = WrongMode { file: Some("authorized_keys".into()), mode: "644".into(), owner: "0:0".into() };
    let wrong = NodeKeys {
        unexpected: names(&["id_rsa"]),
        fingerprint: None,
        further: 1,
        modes: vec![wrong_mode],

        agreed: None,
        pinned: false,
        faults: vec![fault("node2: authorized_keys does not let the master's key in")],
        warnings: names(&["id_rsa is kept: it is the key of the cluster blue"]),
        ..row("node2", false)
    };
    let bad = KeyReport { rows: vec![wrong], rotation: Some(fault("a rotation is unfinished")) };
    all.add("keys-status/wrong", keys::status::outcome(&bad, &Matrix::default(), &[refused("node3")]));
}

fn results<T>(ok: Vec<T>, failed: &[NodeError]) -> NodeResults<T> {
    NodeResults { ok, failed: failed.to_vec() }
}

fn nodes_made(all: &mut Made) {
    let container = || "hworker".to_owned();
    let steps = vec![
        UpOperation::EndJob { job: "20261121-120304-k7qd".into() },
        UpOperation::Pull { image: "team/app:2".into() },
        UpOperation::Remove { container: container(), reasons: names(&["image"]) },
        UpOperation::Create { container: container() },
        UpOperation::Start { container: container() },
        UpOperation::Unpause { container: container() },
    ];
    let up = |node: &str, operations: Vec<UpOperation>| {
        let summary = "recreated hworker (image)".into();
        NodeEntry::new(node, true, UpNode { changed: !operations.is_empty(), operations, summary })
    };
    let nodes = vec![up("node1", Vec::new()), up("node2", steps)];
    all.add("up", up::outcome(false, results(nodes, &[full("node3")]), &[refused("node4")]));

    let down = |node: &str, removed: &[&str]| {
        let changed = !removed.is_empty();
        NodeEntry::new(node, true, DownNode { changed, removed: names(removed), purged: true, kept_data: Vec::new() })
    };
    let nodes = vec![down("node1", &["hmaster", "hworker"]), down("node2", &[])];
    all.add("down", down::outcome(results(nodes, &[full("node3")]), &[refused("node4")]));

    let own = |content: &str, layers: &[&str]| Image {
        id: "sha256:ab71e42e11ba".into(),
        content: Some(content.into()),
        layers: names(layers),
        size: 4_200_000_000,
        platform: "linux/amd64".into(),
        created: Some("2026-11-01T12:00:00Z".into()),
        built_for: None,
    };
    let nodes = [
        ("node1".to_owned(), Some(own("1f0c2a", &["sha256:1", "sha256:2"]))),
        ("node2".to_owned(), Some(own("7d33e9", &["sha256:1", "sha256:3"]))),
        ("node3".to_owned(), None),
    ];
    let outcome = image::status::outcome("team/app:2", &nodes, &[refused("node4")], SystemTime::now());
    all.add("image-status", outcome);
    let push = |node: &str, sent| NodeEntry::new(node, true, ImagePushNode { changed: sent > 0, sent });
    let nodes = results(vec![push("node1", 0), push("node2", 1 << 20)], &[full("node3")]);
    all.add("image-push", image::push::outcome(nodes, &[refused("node4")]));

    let pull = |node: &str, changed| {
        let (id, content) = ("sha256:ab71e42e11ba".into(), Some("1f0c2a7d33e9".into()));
        NodeEntry::new(node, true, ImagePullNode { changed, id, content })
    };
    let nodes = results(vec![pull("node1", true), pull("node2", false)], &[full("node3")]);
    all.add("image-pull", image::pulled(nodes, &[refused("node4")]));

    all.add("image-build", image::build::outcome("hvdctl/digits:1f0c2a7d33e9".into(), true));
    let prune = |node: &str, removed: &[&str]| NodeEntry::new(node, true, ImagePruneNode { removed: names(removed) });
    let nodes = results(vec![prune("node1", &["hvdctl/digits:1f0c2a7d33e9"]), prune("node2", &[])], &[full("node3")]);
    all.add("image-prune", image::pruned(nodes));

    data_made(all);
    env_made(all);
    let nodes = [("node1", true), ("node2", false)];
    let nodes = nodes.map(|(node, closed)| NodeEntry::new(node, true, DisconnectNode { closed }));
    all.add("disconnect", disconnect::outcome(nodes.into()));

    let drain = |node: &str, drained: Option<Drained>| {
        let leaving = names(&["20261121-120304-k7qd"]);
        NodeEntry::new(node, true, DrainNode { changed: true, drained, leaving, staying: Vec::new() })
    };
    let mark = Drained { by: "ana@desk".into(), since: 1_795_262_584 };
    let nodes = vec![drain("node1", None), drain("node2", Some(mark.clone()))];
    all.add("drain", drain::outcome(results(nodes, &[full("node3"), refused("node4")])));
    status_made(all, mark);
}

fn grade_made(all: &mut Made) {
    let kind = NodeKind {
        gpu: Some("NVIDIA H200".into()),
        gpus: 8,
        gpu_memory_mib: Some(143_771),
        driver: Some(580),
        cores: 192,
    };
    let ledger = |entries| Ledger { entries, now: 1_795_262_591.0, boot: "b0".into(), ..Ledger::default() };
    let check = |failed: &[&str]| Entry {
        time: 1_795_262_584.0,
        event: LedgerEvent::check("doctor", names(failed), Vec::new()),
    };
    let node = |node: &str, entries| Evidence { node: node.into(), kind: kind.clone(), ledger: ledger(entries) };
    let nodes = [node("node1", vec![check(&[])]), node("node2", vec![check(&["gpus: x"])]), node("node3", Vec::new())];
    all.add("grade", grade::outcome(assess(&nodes), &[refused("node4")], Ok(None)));
}

fn status_made(all: &mut Made, mark: Drained) {
    let row = |node: &str, job: Option<&str>| NodeStatus {
        master: node == "node1",
        engine: Some("27.1.0".into()),
        engine_name: Some(EngineName::Docker),
        worker: Some(WorkerStatus::Up),
        differs: Vec::new(),
        image: Some("sha256:ab71e42e11ba".into()),
        gpus: Some(vec![Gpu { name: "NVIDIA H200".into(), uuid: "GPU-4f1e".into(), ..Gpu::default() }]),
        nvidia_smi: None,
        slots: 4,
        jobs: job.into_iter().map(str::to_owned).collect(),
        idle: Vec::new(),
        drained: None,
        findings: Vec::new(),
    };
    let smi = Some("Failed to initialize NVML".to_owned());
    let broken = NodeStatus {
        engine: None,
        engine_name: None,
        worker: None,
        image: None,
        gpus: None,
        nvidia_smi: smi,
        ..row("node3", None)
    };
    let older =
        NodeStatus { worker: Some(WorkerStatus::Differs), differs: names(&["image", "port"]), ..row("node2", None) };
    let stopped = NodeError::failed("node3", "ask the Docker Engine", "Cannot connect to the Docker daemon")
        .hint("systemctl start docker on the node");
    let older = NodeStatus { drained: Some(mark), ..older };
    let working = NodeStatus { idle: vec![idle_rank()], ..row("node1", Some("20261121-120304-k7qd")) };
    let nodes = vec![
        NodeEntry::reached("node1", true, working),
        NodeEntry::reached("node2", true, older),
        NodeEntry { error: Some(stopped), ..NodeEntry::reached("node3", false, broken) },
    ];
    all.add("status", status::outcome(nodes, vec![refused("node4")]));
    grade_made(all);
    pool_made(all);
}

fn data_made(all: &mut Made) {
    let push = |node: &str, files| {
        let pushed =
            DataPushNode { changed: files > 0, files, sent: 1 << 20, from_operator: 1 << 19, resumed: 2, removed: 1 };
        NodeEntry::new(node, true, pushed)
    };
    let nodes = results(vec![push("node1", 0), push("node2", 3)], &[full("node3")]);
    all.add("data-push", data::push::outcome("imagenet", nodes, &[refused("node4")]));
    let listed = |state: &str, hash: Option<&str>| DataOnNode {
        name: "imagenet".into(),
        state: state.into(),
        hash: hash.map(str::to_owned),
        files: 1281,
        size: 1 << 30,
        age: hash.map(|_| 7200),
        origin: "desk:/home/ana/imagenet".into(),
    };
    let nodes = [
        ("node1".to_owned(), vec![listed("complete", Some("1f0c2a7d33e9"))]),
        ("node2".to_owned(), vec![listed("incomplete", None)]),
    ];
    all.add("data-status", data::listed(&nodes, &[refused("node4")]));
    let remove = |node: &str, changed, left| NodeEntry::new(node, true, DataRmNode { changed, left });
    let nodes = results(vec![remove("node1", true, true), remove("node2", false, false)], &[full("node3")]);
    all.add("data-rm", data::removed(nodes, &[refused("node4")]));
}

fn env_made(all: &mut Made) {
    let made = MadeEnv {
        hash: "1f0c2a7d33e9".into(),
        python: "3.11.7".into(),
        tool: "uv 0.9.1".into(),
        content: "63e9afab682c".into(),
        size: 1 << 30,
        time: 1_795_262_584,
        source: "ana@desk:/home/ana/train/pylock.toml".into(),
    };
    let packages = |version: &str| [("torch".to_owned(), version.to_owned())].into();
    let given = |node: &str, is_new, version| {
        let given = GivenEnv { is_new, made: made.clone(), packages: packages(version), sent: 1 << 20 };
        (node.to_owned(), given)
    };
    let nodes = results(vec![given("node1", true, "2.9.0"), given("node2", false, "2.8.0")], &[full("node3")]);
    let place = EnvPlace { state_dir: "/var/tmp/hvdctl-lab".into() };
    all.add("env-create", env::create::outcome((&place, "default"), &nodes, &[refused("node4")], false));
    let listed = |state: &str, made: Option<&MadeEnv>| {
        let (name, state, age) = ("default".into(), state.into(), made.map(|_| 7200));
        vec![ListedEnv { name, state, made: made.cloned(), age }]
    };
    let nodes =
        [("node1".to_owned(), listed("complete", Some(&made))), ("node2".to_owned(), listed("incomplete", None))];
    all.add("env-list", env::listed(&nodes, &[refused("node4")]));
    let remove = |node: &str, changed| NodeEntry::new(node, true, EnvRmNode { changed });
    let nodes = results(vec![remove("node1", true), remove("node2", false)], &[full("node3")]);
    all.add("env-rm", env::removed(nodes, &[refused("node4")]));
}

fn idle_rank() -> IdleRank {
    let does = "waiting in flock for a lock on /data/cache".into();
    IdleRank { rank: 1, node: "node1".into(), since: 1_795_262_584.0, does }
}

fn doctor_made(all: &mut Made) {
    let finding = |severity, check, nodes: &[&str], message: &str, why: &str, hint: &str, fixes| Finding {
        nodes: names(nodes),
        why: why.into(),
        hint: hint.into(),
        fixes,
        ..Finding::new(severity, check, nodes[0], message)
    };
    let found = vec![
        finding(
            Severity::Error,
            Check::Clock,
            &["node2"],
            "its clock is 31 s behind those of the other nodes",
            "launchers may give ranks an absolute deadline (horovodrun does): if clocks differ, the start times out at once",
            "set the clock on the node: `sudo timedatectl set-ntp true`, or `sudo chronyc makestep`",
            Vec::new(),
        ),
        finding(
            Severity::Warning,
            Check::Stale,
            &["node1", "node2"],
            "2 processes of job 20261121-120304-k7qd, whose launcher is not running",
            "orphaned ranks hold GPU memory, and the next job fails or is slow",
            "`hvdctl doctor --fix` ends them",
            vec![("node1".into(), Fix::EndJob("20261121-120304-k7qd".into()))],
        ),
    ];
    let fixed = vec![Fixed { node: "node1".into(), what: "removed hmaster".into() }];
    let nodes = names(&["node1", "node2", "node3"]);
    all.push((
        "doctor",
        document::value(&Document { ok: false, details: doctor::details(examined(found), fixed, &nodes) }),
    ));
}

/// Returns the examination of three nodes, of which the first has a GPU and the last is unreachable.
fn examined(findings: Vec<Finding>) -> doctor::Examined {
    doctor::Examined { findings, health: vec![("node1".into(), gpu_health())], unreachable: names(&["node3"]) }
}

/// The health of a node with a GPU that is busy, slow, and has an NVLink.
fn gpu_health() -> NodeHealth {
    let recorded = include_str!("../../tests/fixtures/nvidia-smi/h200-580-busy.xml");
    let slowed = recorded.replace("hw_slowdown>Not Active", "hw_slowdown>Active");
    let xml: String = slowed.lines().map(|line| format!("xml {line}\n")).collect();
    let uuid = "GPU-00000000-1111-2222-3333-444444444200";
    let links = format!("link GPU 0: NVIDIA H200 (UUID: {uuid})\nlink \t Link 0: 26.562 GB/s\n");
    NodeHealth::parse(&format!("{xml}xml exit 0\n{links}"))
}

fn bench_made(all: &mut Made) {
    let slower = Slower {
        text: "node1 → node2 transfers only 2.00 Gb/s, 9.40 Gb/s in the baseline".to_owned(),
        from: Some("node1".to_owned()),
        to: Some("node2".to_owned()),
        collective: None,
        dtype: None,
        bytes: None,
        before_bytes_per_s: 1.175e9,
        bytes_per_s: 2.5e8,
    };
    let baseline =
        Comparison { compared: 2, slower: vec![slower], notes: vec!["1 direction is not in the baseline".to_owned()] };
    let mut add = |name, measured: &Measurements, ranks: Option<&RankResults>| {
        let verdict = blame::verdict(measured);
        let compared = Compared { baseline: Some(baseline.clone()), ..Compared::default() };
        let report = BenchReport { measured, verdict: &verdict, ranks, compared: &compared };
        all.push((name, bench::outcome(String::new(), &report).document));
    };
    let seconds = Duration::from_secs_f64;
    let estimate = Estimate { nodes: 2, wire: seconds(0.5), computing: Some(seconds(1.0)) };
    let mut good = ranks(2, &[]);
    good.estimate = Some(ModelEstimate { params: 124_000_000, dtype: Dtype::Float16, estimate });
    add("bench", &measured(2, |_, _| Ok(9.4)), Some(&good));
    let slow = |from, to| match (from, to) {
        (0, 1) => Err("no answer within 3 s"),
        (2, _) => Ok(0.9),
        _ => Ok(9.4),
    };
    add("bench/slow", &measured(4, slow), None);
    let wrong = ranks(2, &[1]);
    add("bench/wrong", &measured(2, |_, _| Ok(9.4)), Some(&wrong));
}

fn verify_made(all: &mut Made) {
    let report = |rank: u32, gpus: Option<Vec<String>>| RankReport {
        rank,
        size: 2,
        local_rank: 0,
        sum: 3,
        hostname: format!("gpu{}", rank + 1),
        gpus,
        place: RankPlace {
            device: (rank == 0).then(|| "GPU-4f1e".into()),
            cuda_error: (rank == 1).then(|| "CUDA does not work there: cuInit failed: CUDA_ERROR_NO_DEVICE".into()),
            gpu_numa: (rank == 0).then_some(0),
            cpus: "0-7".into(),
            numa: vec![0],
            numa_nodes: vec![0, 1],
            cores: 16,
            visible_devices: (rank == 0).then(|| "0".into()),
            device_order: (rank == 0).then(|| "PCI_BUS_ID".into()),
        },
        framework: "torch 2.4.0".into(),
        library: "Horovod 0.28.1".into(),
        python: "3.10.12".into(),
    };
    let row = |rank: u32, node: &str, report| RankRow {
        rank,
        expected: node.into(),
        actual: Some(node.into()),
        report: Some(report),
        faults: Vec::new(),
    };
    let gpu = names(&["GPU 0: NVIDIA H200 (UUID: GPU-4f1e)"]);
    let rows = vec![row(0, "node1", report(0, Some(gpu))), row(1, "node2", report(1, None))];
    let mut verified = |name, controller, found| {
        all.push((name, verify::show(VerifyScope::default(), controller, found).document));
    };
    let examined = |findings| ExaminedGpus { health: vec![("node1".into(), gpu_health())], findings, gpus: 1 };
    let logins = vec![login("node1", "node2", None), login("node2", "node1", None)];
    let launched = |gpus| VerifyVerdict {
        job: Some("20261121-120304-k7qd".into()),
        nodes: names(&["node1", "node2"]),
        rows: rows.clone(),
        gpus,
        ..VerifyVerdict::default()
    };
    let logins = Some(Matrix { absent: Vec::new(), pairs: logins });
    verified("verify", Controller::Gloo, VerifyVerdict { logins, ..launched(examined(Vec::new())) });
    let slow = Finding::new(Severity::Error, Check::GpuClocks, "node1", "GPU 0: hardware slowdown, 210 of 1980 MHz");
    let slow = examined(vec![slow.explain("all ranks wait for the slowest GPU", "check fans of the node")]);
    verified("verify/unhealthy", Controller::Gloo, launched(slow));

    let missing =
        RankRow { actual: None, report: None, faults: vec![RankFault::Setup("no report".into())], ..rows[0].clone() };
    let failed = VerifyVerdict {
        nodes: names(&["node1"]),
        rows: vec![missing],
        faults: names(&["rank 0: no report"]),
        ..launched(ExaminedGpus::default())
    };
    verified("verify/failed", Controller::Mpi, failed);

    let matrix = Matrix {
        absent: vec![AbsentNode { node: "node3".into(), why: "its worker is not running: hvdctl up".into() }],
        pairs: vec![login("node1", "node2", Some("Connection timed out")), login("node2", "node1", None)],
    };
    let unreached = VerifyVerdict { faults: matrix.faults(), logins: Some(matrix), ..VerifyVerdict::default() };
    verified("verify/unreached", Controller::Gloo, unreached);
}

fn outside_files() -> Vec<OutsideFiles> {
    let largest = vec![OutsideFile { path: "/root/ckpt/last.pt".into(), bytes: 50_000_000 }];
    vec![OutsideFiles { node: "node1".into(), files: 1, bytes: 50_000_000, largest, whole: true }]
}

#[expect(clippy::too_many_lines, reason = "one example of each document of a job, with all fields")]
fn jobs_made(all: &mut Made) {
    let id = "20261121-120304-k7qd";
    let line = |event: Event| document::value(&Line::of(&event).expect("a line"));
    all.push(("train-job", line(Event::Job { id: id.into(), state: JobState::Running })));
    let uploaded = Completion::Uploaded { files: 3, bytes: 12 << 10, removed: 0 };
    let fetched_two = Completion::Fetched { files: 2 };
    all.push(("train-node/fetched", line(Event::Done { node: "node1".into(), what: fetched_two })));
    all.push(("train-node", line(Event::Done { node: "node1".into(), what: uploaded })));
    all.push(("train-node/failed", line(Event::failed(full("node2")))));
    let output =
        Event::Output { rank: 1, node: "node2".into(), stream: Stream::Stdout, line: b"epoch 1: loss 0.25".to_vec() };
    all.push(("train-output", line(output)));
    let restart = |time, restart| line(Event::Restart { time, restart });
    let how = FailureKind::Exited { code: 137, signal: Some(9), oom: false };
    let root_cause = Some(RootCause { rank: 3, node: "node2".into(), how });
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
    all.push(("train-restart/other", restart(None, Restart::Other { logged: "of another version".into() })));
    let (job, time) = (Some("20261121-120304-k7qd".to_owned()), 1_795_264_400.0);
    all.push(("train-idle", line(Event::Idle { ranks: vec![idle_rank()], job, time })));
    all.push(("train-resumed", line(Event::Resumed { ranks: vec![idle_rank()], seconds: 1865 })));
    let usage = |what| Event::Usage(UsageReport { time: 1_795_262_584.0, node: "node1".into(), what });
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
        placement: Placement { shares: vec![share("node1", 0), share("node2", 2)] },
        code,
        root_cause: first_failure.as_ref().map(|first| RootCause {
            rank: first.rank,
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
    let placement = Placement { shares: vec![share("node1", 0), share("node2", 2)] };
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
    let dry = train::dry_run::placed_outcome(&command, &placement, |_| "10.0.0.1".into(), &launcher, details);
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
        placement: Placement { shares: vec![part("node1", 0), part("node2", 2)] },
        restarts: 0,
        min_ranks: None,
        membership: None,
        attempts: Vec::new(),
        idle: Vec::new(),
        started: 1_795_258_800.0,
        ended: Some(1_795_260_000.0),
        code: Some(137),
        first_failure: Some(first),
        root_cause: Some(RootCause {
            rank: 1,
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

fn slurm_made(all: &mut Made) {
    let node = |name: &str, state: &str, reason: Option<&str>| {
        let (gres, reason) = (Some("gpu:4".to_owned()), reason.map(str::to_owned));
        (
            name.to_owned(),
            QueueNode { state: state.into(), used: 2, slots: 4, gres, reason, has_old_key: name == "node2" },
        )
    };
    let nodes = vec![node("node1", "mixed", None), node("node2", "drained", Some("hvdctl: job 20261121-110000-0f3b"))];
    all.add("slurm-status", slurm::status_outcome(nodes, &names(&["RUNNING", "PENDING"])));
    let up = NodeEntry::new("node1", true, SlurmUpNode { changed: true, image: "hvdctl/slurm:0f3b5c7d9e1a".into() });
    all.add("slurm-up", slurm::up::outcome(results(vec![up], &[refused("node2")])));
    let down = NodeEntry::new("node1", true, SlurmDownNode { changed: false });
    all.add("slurm-down", slurm::down::outcome(results(vec![down], &[refused("node2")])));
    let output = CommandOutput {
        node: "node1".into(),
        code: 0,
        timed_out: false,
        left_out: 0,
        stdout: "node1 idle".into(),
        stderr: String::new(),
    };
    all.add("slurm-exec", exec::outcome("sinfo", results(vec![output], &[])));
}

fn lock_made(all: &mut Made) {
    let lease = Lease {
        id: "b2c4-000000".into(),
        holder: "ana@desk".into(),
        pid: 4711,
        purpose: "hvdctl up".into(),
        since: 1_795_262_584,
        renewed: 1_795_262_590,
        read: 1_795_262_591,
    };
    let nodes = [("node1".to_owned(), Some(lease.clone())), ("node2".to_owned(), None)];
    all.add("lock-status", lock::status_outcome(nodes.to_vec(), &[refused("node3")]));
    let released = nodes.map(|(node, released)| NodeEntry::new(&node, true, LockReleaseNode { released }));
    all.add("lock-release", lock::released(results(released.into(), &[refused("node3")])));
    all.push(("error/locked", failure(&Error::Locked(vec![("node1".into(), lease)]))));
    let allocation = |resources| Allocation {
        job: "20261121-120304-k7qd".into(),
        name: "digits".into(),
        project: None,
        port: 12345,
        operator: "ana@desk".into(),
        unreadable: None,
        resources,
    };
    let some = Resources { slots: 1, gpus: names(&["GPU-0a"]) };
    let conflict = AllocationConflict {
        allocations: vec![("node1".into(), allocation(None)), ("node2".into(), allocation(Some(some)))],
        free: Vec::new(),
    };
    all.push(("error/allocated", failure(&Error::Allocated(conflict))));
    let stand = |node: &str, done, steps: &[&str], error| NodeProgress {
        done,
        steps: names(steps),
        error,
        ..NodeProgress::new(node)
    };
    let nodes = vec![
        stand("node1", true, &["started hworker"], None),
        stand("node2", false, &[], None),
        stand("node3", false, &[], Some(full("node3"))),
    ];
    let stopped = Error::Stopped { by: Box::new(Error::Signal(2)), nodes };
    all.push(("error/stopped", failure(&stopped)));
}

/// One file, and nothing went wrong.
fn fetched() -> FetchReport {
    let hash = "324dcf027dd4a30a932c441f365a25e86b173defa4b8e58948253471b81b72cf".to_owned();
    let output = JobOutput::File { hash, mode: 0o644, size: 5, time: 1_795_262_584.0 };
    let item =
        Download { path: "best.pt".into(), node: "node1".into(), name: "best.pt".into(), output, uploaded: None };
    FetchReport {
        job: "20261121-120304-k7qd".into(),
        directory: "digits-20261121-120304-k7qd".into(),
        items: vec![(item, true)],
        failed: Vec::new(),
    }
}

fn tools_made(all: &mut Made) {
    let output = |node: &str, code, stdout: &str| CommandOutput {
        node: node.into(),
        code,
        timed_out: code == 124,
        left_out: 0,
        stdout: stdout.into(),
        stderr: String::new(),
    };
    let ok = vec![output("node1", 0, "GPU 0: NVIDIA H200\n"), output("node2", 124, "")];
    let outputs = NodeResults { ok, failed: vec![refused("node3")] };
    all.add("exec", exec::outcome("nvidia-smi -L", outputs));
    all.add("shell", shell::ended(7));

    let mut fetched = fetched();
    let item = Download {
        path: "latest".into(),
        node: "node1".into(),
        name: "latest".into(),
        output: JobOutput::Link("best.pt".into()),
        uploaded: None,
    };
    fetched.items.push((item, false));
    fetched.failed.push(full("node2"));
    all.add("fetch", fetch::outcome(&fetched));
    let missing = vec!["node2: its records were not read: Connection refused".to_owned()];
    let (job, file) = ("20261121-120304-k7qd".to_owned(), "20261121-120304-k7qd.html".to_owned());
    let first = "2026-11-21T12:03:04Z".to_owned();
    let no_numbers = vec![report::RankNoNumbers {
        metric: "loss".to_owned(),
        rank: 1,
        count: 3,
        first,
        step: Some("step 2".to_owned()),
    }];
    all.add("top-end", top::ended(Some(JobState::Succeeded)));
    all.add("report", report::outcome(report::ReportDocument { job, file, bytes: 81_234, missing, no_numbers }));

    let Inventory { cluster, nodes, .. } = Inventory::local("node1", "horovod/horovod:latest");
    let mut node = nodes[0].clone();
    (node.host, node.address) = ("gpu1".into(), Some("10.0.0.1".parse().unwrap()));
    all.add("hosts", hosts::outcome(&cluster, HostsFormat::Horovod, &[(node.clone(), Some(4))], None));
    let chosen = hosts::outcome(&cluster, HostsFormat::Env, &[(node.clone(), Some(4))], Some(choice()));
    all.add("hosts/best", chosen);
    let exported = || Exported {
        name: "digits".to_owned(),
        text: "kind: MPIJob\n".to_owned(),
        missing: vec!["node1: address: each pod gets its own address".to_owned()],
        warnings: Vec::new(),
        commands: vec!["kubectl apply --validate=strict -f FILE".to_owned()],
    };
    all.add("export", export::outcome(exported(), None, None));
    let (file, dockerfile) = (Path::new("digits.yaml"), Some("FROM app\n".to_owned()));
    all.add("export/file", export::outcome(exported(), Some(file), dockerfile));
    all.add("hosts/ssh", hosts::outcome(&cluster, HostsFormat::Ssh, &[(node, None)], None));
}

fn pool_made(all: &mut Made) {
    let gpu = Some("NVIDIA H200".to_owned());
    let kind = NodeKind { gpu, gpus: 8, gpu_memory_mib: Some(143_771), driver: Some(580), cores: 192 };
    let node = |node: &str, host: &str| PoolNode {
        format: 1,
        owner: "ana@example.com".into(),
        cluster: "lab".into(),
        node: node.into(),
        host: host.into(),
        port: 22,
        host_key: Some("ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIJTyqYIOkkDxRjQoVAIwUpYHmzqDdzJYdHhGZ7cgBuzr".into()),
        address: Some("192.168.7.1".parse().unwrap()),
        kind: kind.clone(),
        grade: Grade::A,
        score: Some(0.98),
        evidence: 12,
        slots: 8,
        gpus: None,
        published: 1_795_262_584,
        expires: 1_795_867_384,
    };
    let (first, second) = (node("node1", "10.0.0.1"), node("node2", "10.0.0.2"));
    let file = |node: Option<&PoolNode>, state, reason: &str| PoolFile {
        name: node.map_or("eve.node".to_owned(), PoolNode::file_name),
        state,
        reason: reason.into(),
        node: node.cloned(),
        key: None,
    };
    let files = vec![
        file(Some(&first), FileState::Valid, ""),
        file(Some(&second), FileState::Stale, "it expired 2 d ago"),
        file(None, FileState::Unsigned, "it has no signature"),
    ];
    all.add("pool", pool::listed(files, false, 1_795_266_184));

    let options = cli::PoolPick { np: 16, user: None, master: None, format: Some(HostsFormat::Horovod) };
    let measured = |node, measured_from| pool_survey::MeasuredNode { node, measured_from };
    let picked = [(&first, pool_survey::MeasuringPoint::Node), (&second, pool_survey::MeasuringPoint::Here)];
    let nodes = picked.map(|(node, measured_from)| measured(node, measured_from)).into();
    let group =
        NodeGroup { nodes: vec![0, 1], slots: 16, distance: Distance::Lan, longest: Duration::from_micros(412) };
    let (owner, node, reason) = ("bob".into(), "gpu7".into(), "50.20 ms from the group".into());
    let left_out = vec![LeftOutCandidate { owner, node, reason }];
    let cluster = Inventory::local("node1", "horovod/horovod:latest").cluster;
    let choice = PoolChoice { name: "pool".into(), own: None, group, nodes, left_out };
    all.add("pool-pick", pool::pick::outcome(&options, &cluster, choice));
}

fn init_made(all: &mut Made) {
    let hosts = crate::init::machines::read("ana@10.0.0.[1-2] ana@gpu1 10.0.0.3:2222 10.0.0.4", None).unwrap();
    let probed = |text: &str| Some(Ok(Probe::parse(text)));
    let probe = "hostname gpu1\ncores 64\nssh 10.0.0.1\naddr lo 127.0.0.1/8\naddr eth0 10.0.0.1/24\nroot sudo\n\
                 nvidia-smi yes\ngpu GPU 0: NVIDIA H200 (UUID: GPU-4f1e)\ngpu GPU 1: NVIDIA A100 (UUID: GPU-2ac4)\n\
                 gpu   MIG 3g.20gb     Device  0: (UUID: MIG-c6d4)\ngpu exit 0\nmig exit 0\ndocker sudo 27.1.0\nimage \
                 horovod/horovod:latest\n";
    let bare = "hostname gpu2\ncores 8\nroot no\ndocker none\n";
    let found = [probed(probe), probed(bare), probed(probe), Some(Err(refused("10.0.0.3"))), None];
    let mut entries = draft::entries(hosts);
    entries.iter_mut().zip(found).for_each(|(entry, found)| entry.found = found);
    draft::find_duplicates(&mut entries);
    all.push((
        "init",
        document::value(&Document {
            ok: false,
            details: init::document::details(Path::new("inventory.toml"), &entries),
        }),
    ));
}

/// The results of commands, by name.
#[derive(Default)]
struct Made {
    documents: Vec<(&'static str, Value)>,
    texts: Vec<(&'static str, ResultText)>,
}

impl Made {
    fn add(&mut self, name: &'static str, outcome: Outcome) {
        self.documents.push((name, outcome.document));
        self.texts.push((name, outcome.text));
    }

    fn push(&mut self, document: (&'static str, Value)) {
        self.documents.push(document);
    }

    fn new() -> Made {
        let mut all = Made::default();
        init_made(&mut all);
        keys_made(&mut all);
        nodes_made(&mut all);
        doctor_made(&mut all);
        verify_made(&mut all);
        bench_made(&mut all);
        jobs_made(&mut all);
        lock_made(&mut all);
        slurm_made(&mut all);
        tools_made(&mut all);
        all.add("text", about::printed("#compdef hvdctl".into()));
        all.add("dir", about::written_to(Path::new("man1")));
        all.push(("error", failure(&Error::usage("there is no inventory", "hvdctl init writes one"))));
        all.push(("error/unreachable", failure(&Error::Unreachable(vec![refused("node2")]))));
        all
    }
}

fn made() -> BTreeMap<&'static str, Value> {
    let all = Made::new().documents;
    let made: BTreeMap<&str, Value> = all.iter().cloned().collect();
    assert_eq!(made.len(), all.len(), "each node needs a different name");
    made
}

#[test]
fn no_table_is_wider_than_a_terminal() {
    console::set_colors_enabled(false);
    let mut columns = BTreeSet::new();
    for (name, text) in Made::new().texts {
        for table in text.tables() {
            columns.insert(table.heads().join(" "));
            let usual = table.fitted(Some(80));
            assert!(!table.is_in_blocks(80), "{name} has lines instead of a table with usual values:\n{usual}");
            for width in [30, 60, 80, 120] {
                for table in [table.clone(), table.with_awkward_values()] {
                    let shown = table.fitted(Some(width));
                    let is_too_wide = |line: &&str| console::measure_text_width(line) > width;
                    assert_eq!(shown.lines().find(is_too_wide), None, "{name} at {width}:\n{shown}");
                }
            }
        }
    }
    // a new table is added to the values above
    insta::assert_snapshot!(columns.into_iter().collect::<Vec<_>>().join("\n"));
}

#[test]
fn every_document_has_the_fields_of_its_type() {
    let (schema, made) = (documented::schema(), made());
    for (name, value) in &made {
        let name = match name.split('/').collect::<Vec<_>>()[..] {
            ["train-end", "error"] => "error",
            ["train-end", "dry"] => "dry-run",
            ["train-end", "logs"] => "logs-end",
            ["train-end", ..] => "job-end",
            [name, ..] if name.starts_with("train-") => "line",
            [name, ..] => name,
            [] => unreachable!(),
        };
        assert_eq!(documented::faults(&schema, name, value), [""; 0], "{value:#}");
    }
    let lines = made.iter().map(|(name, value)| format!("{name}: {value:#}\n"));
    insta::assert_snapshot!(lines.collect::<String>());
}

#[test]
fn a_document_that_differs_from_its_type_is_found_out() {
    let schema = documented::schema();
    let with = |change: fn(&mut Value)| {
        let mut document = made()["status"].clone();
        change(&mut document);
        documented::faults(&schema, "status", &document).join("\n")
    };
    assert_eq!(with(|_| ()), "");
    assert_eq!(with(|d| d["new"] = 1.into()), "status.new: unknown field");
    assert_eq!(with(|d| d["nodes"][0]["new"] = 1.into()), "status.nodes[0].new: unknown field");
    assert_eq!(with(|d| d["nodes"][0]["slots"] = "4".into()), "status.nodes[0].slots: unexpected value \"4\"");
    assert_eq!(with(|d| drop(d["nodes"][1].as_object_mut().unwrap().remove("ok"))), "status.nodes[1].ok: missing");
}
