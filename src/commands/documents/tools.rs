//! The documents of the other commands: `exec`, `fetch`, `stack`, `hosts`, `export`.

use super::{Made, choice, full, refused};
use crate::cli::HostsFormat;
use crate::cluster::each_node::NodeResults;
use crate::cluster::exec::CommandOutput;
use crate::commands::nodes::{exec, hosts, shell};
use crate::commands::show::{fetch, report, stack, top};
use crate::commands::start::export;
use crate::error::NodeError;
use crate::export::Exported;
use crate::inventory::Inventory;
use crate::job::fetch::FetchReport;
use crate::job::stack::StackReport;
use crate::model::stack::{AwaitedRank, RankStack, StackFrame, StackProcess, StackThread, StackVariable};
use crate::record::JobState;
use crate::sync::outputs::{Download, JobOutput};
use std::path::Path;

/// A rank in a data loader; rank 0 could not be read.
pub(super) fn rank_stack(rank: u32) -> RankStack {
    let locals = vec![StackVariable { name: "path".into(), value: "'a.bin'".into() }];
    let frame = StackFrame { name: "load".into(), file: "/workspace/data.py".into(), line: 31, locals };
    let (does, name) = (Some("sleeping in clock_nanosleep".to_owned()), "MainThread".to_owned());
    let thread = StackThread { name, active: false, does: does.clone(), frames: vec![frame] };
    let process = StackProcess {
        pid: 17,
        command: "python3 train.py".into(),
        does,
        threads: vec![thread],
        failure: (rank == 0).then(|| "Permission denied".to_owned()),
        dump: (rank == 1).then(|| "/workspace/nccl_trace_20261121-120304-k7qd_rank_1".to_owned()),
    };
    let failure = (rank == 0).then(|| "its supervisor did not answer within 6 s".to_owned());
    let waits_for = vec![AwaitedRank { rank: 1, role: None, tensors: "grad".into() }];
    let (node, processes) = ("node1".into(), vec![process]);
    RankStack { rank, role: None, node, quiet: 14, ending: false, waits_for, processes, left_out: 1, failure }
}

/// One file, and nothing went wrong.
pub(super) fn fetched() -> FetchReport {
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

pub(super) fn tools_made(all: &mut Made) {
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
    let read = |failed: Vec<NodeError>| StackReport {
        job: "20261121-120304-k7qd".into(),
        ranks: vec![rank_stack(0), rank_stack(1)],
        failed,
    };
    all.add("stack", stack::outcome(read(Vec::new()), 2, false));
    all.add("stack/failed", stack::outcome(read(vec![refused("node3")]), 3, true));
    let missing = vec!["node2: its records were not read: Connection refused".to_owned()];
    let (job, file) = ("20261121-120304-k7qd".to_owned(), "20261121-120304-k7qd.html".to_owned());
    let first = "2026-11-21T12:03:04Z".to_owned();
    let no_numbers = vec![report::RankNoNumbers {
        metric: "loss".to_owned(),
        rank: 1,
        role: None,
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
