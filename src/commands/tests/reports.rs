//! `report` over scripted nodes: from the records of a job to the file.

use super::jobs::{RUN, ends_with, up_with};
use super::*;
use crate::transport::node::scripted::{CONNECT, Fault};
use std::fs;

/// Gives the newest job of each node samples of its GPU and its rank.
fn add_samples(nodes: &Nodes) {
    for (rank, node) in NODES.iter().enumerate() {
        nodes.edit(node, |state| {
            let log = state.directories.values().last().expect("a job").log.clone();
            let start: f64 = log.split(' ').next().unwrap().parse().unwrap();
            let mut samples = format!("{start} {rank} m G 0 GPU-{rank} 143771 700 580.1 NVIDIA H200\n");
            for second in 0..5 {
                let time = start + f64::from(second);
                samples += &format!("{time} {rank} m g 0 97 883 690 52 1455 3201\n{time} {rank} m r 104 2048 0 12\n");
            }
            let directory = state.directories.values_mut().last().expect("a job");
            directory.files.insert("samples".into(), samples);
        });
    }
}

#[tokio::test(start_paused = true)]
async fn a_report_has_the_ranks_and_gpus_of_all_nodes() {
    let nodes = up_with(ends_with([0, 0])).await;
    hvdctl(&nodes, RUN).await.code(0);
    add_samples(&nodes);
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("job.html");
    let report = format!("report -o {}", file.display());
    hvdctl(&nodes, &report).await.code(0).says(&["wrote ", "job.html ("]);
    let page = fs::read_to_string(&file).unwrap();
    for text in ["node1 <small>GPU 0, rank 0</small>", "node2 <small>GPU 0, rank 1</small>", "succeeded", "97 % in use"]
    {
        assert!(page.contains(text), "{text}\n{page}");
    }
    // the output of ranks stayed on the nodes
    assert!(!page.contains("step 1"), "{page}");
    // what is there is only replaced if that is wanted
    hvdctl(&nodes, &report).await.code(2).complains(&["job.html exists", "hint: replace it with --force"]);
    let metric = format!("{report} --force --metric step.(\\d+) --metric loss.([0-9.]+)");
    hvdctl(&nodes, &metric).await.code(0).complains(&["no line matches the metric loss.([0-9.]+)"]);
    assert!(fs::read_to_string(&file).unwrap().contains("rank 1: last 1"));
    hvdctl(&nodes, "report -o /nowhere/job.html").await.code(1).complains(&["cannot write /nowhere/job.html"]);
    hvdctl(&nodes, "report other").await.code(1).complains(&["there is no job other"]);
}

#[tokio::test(start_paused = true)]
async fn a_node_that_does_not_answer_is_named_and_the_others_are_in_the_report() {
    let nodes = up_with(ends_with([0, 0])).await;
    hvdctl(&nodes, RUN).await.code(0);
    add_samples(&nodes);
    let dir = tempfile::tempdir().unwrap();
    for (lost, left) in [("node2", "node1 <small>GPU 0, rank 0"), ("node1", "node2 <small>GPU 0, rank 1")] {
        let file = dir.path().join(lost);
        nodes.fault(lost, CONNECT, Fault::Fails("Connection refused".into()));
        let done = hvdctl(&nodes, &format!("report -o {} --json", file.display())).await;
        let document = done.document();
        let missing = format!("{lost}: its records were not read: Connection refused");
        assert_eq!(document["missing"][0], missing.as_str(), "{document}");
        let page = fs::read_to_string(&file).unwrap();
        assert!(page.contains(left) && page.contains(&missing), "{page}");
        nodes.repair();
    }
}

#[tokio::test(start_paused = true)]
async fn samples_that_cannot_be_read_do_not_hide_the_rest() {
    let nodes = up_with(ends_with([0, 7])).await;
    hvdctl(&nodes, RUN).await.code(7);
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("job.html");
    nodes.fault("node2", "job/size.sh", Fault::Fails("Input/output error".into()));
    hvdctl(&nodes, &format!("report -o {}", file.display())).await.code(0);
    let page = fs::read_to_string(&file).unwrap();
    for text in
        ["node2: some of its records were not read: ", "rank 1 on node2 ended with exit code 7", "node1: no sample"]
    {
        assert!(page.contains(text), "{text}\n{page}");
    }
}
