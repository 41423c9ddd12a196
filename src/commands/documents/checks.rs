//! The documents of `doctor`, `bench` and `verify`.

use super::{Made, login, names};
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
use crate::commands::check::{bench, doctor, verify};
use crate::commands::json::Document;
use crate::doctor::Fixed;
use crate::document;
use crate::gpus::health::report::NodeHealth;
use crate::inventory::Controller;
use crate::keys::reachability::{AbsentNode, Matrix};
use crate::model::collective::{Dtype, Estimate, ModelEstimate};
use crate::verify::gpus::ExaminedGpus;
use crate::verify::ranks::VerifyScope;
use crate::verify::verdict::VerifyVerdict;
use std::time::Duration;

pub(super) fn doctor_made(all: &mut Made) {
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
    let recorded = include_str!("../../../tests/fixtures/nvidia-smi/h200-580-busy.xml");
    let slowed = recorded.replace("hw_slowdown>Not Active", "hw_slowdown>Active");
    let xml: String = slowed.lines().map(|line| format!("xml {line}\n")).collect();
    let uuid = "GPU-00000000-1111-2222-3333-444444444200";
    let links = format!("link GPU 0: NVIDIA H200 (UUID: {uuid})\nlink \t Link 0: 26.562 GB/s\n");
    NodeHealth::parse(&format!("{xml}xml exit 0\n{links}"))
}

pub(super) fn bench_made(all: &mut Made) {
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

pub(super) fn verify_made(all: &mut Made) {
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
