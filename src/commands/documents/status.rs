//! The documents about the state and the grades of nodes, and those of the pool.

use super::{Made, idle_rank, names, refused};
use crate::cli;
use crate::cli::HostsFormat;
use crate::commands::check::{grade, pool, status};
use crate::commands::json::{NodeEntry, NodeStatus};
use crate::error::NodeError;
use crate::grade::assessment::{Evidence, assess};
use crate::grade::ledger::{Entry, Ledger, LedgerEvent};
use crate::inventory::Inventory;
use crate::model::engine::EngineName;
use crate::model::grade::{Grade, NodeKind};
use crate::node::facts::Drained;
use crate::node::gpus::Gpu;
use crate::pool::choice::{Distance, NodeGroup};
use crate::pool::format::PoolNode;
use crate::pool::pick::{LeftOutCandidate, PoolChoice};
use crate::pool::survey as pool_survey;
use crate::pool::verification::{FileState, PoolFile};
use crate::worker::plan::WorkerStatus;
use std::time::Duration;

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

pub(super) fn status_made(all: &mut Made, mark: Drained) {
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
        network: None,
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
        endpoint: None,
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
    let choice = PoolChoice { name: "pool".into(), own: None, group, nodes, unmeasured: 0, left_out };
    all.add("pool-pick", pool::pick::outcome(&options, &cluster, choice));
}
