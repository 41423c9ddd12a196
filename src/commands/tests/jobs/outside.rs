//! Files that a job writes outside the mounts of its containers.

use super::*;

#[tokio::test(start_paused = true)]
async fn files_outside_the_mounts_are_reported_at_the_end_and_later() {
    let files = serde_json::json!([{ "node": "node1", "files": 1, "bytes": 50_000_000, "whole": true,
        "largest": [{ "path": "/root/ckpt/last.pt", "bytes": 50_000_000 }] }]);
    let nodes = up_with(ends_with([0, 0]).outside(files.clone())).await;
    let (_dir, path) = project(&[("train.py", 0o644, "")]);
    let found =
        "outside the mounts of its containers, which are lost with them: /root/ckpt/last.pt (47.7 MiB) on node1";
    let warned = ["warning: the job wrote files", found, "hint: let the program write to /workspace"];
    let done = hvdctl(&nodes, &format!("train {path} -np 2 --map-by node")).await;
    done.code(0).complains(&warned);
    hvdctl(&nodes, "attach").await.code(0).complains(&warned);
    hvdctl(&nodes, "jobs").await.code(0).says(&["succeeded", "47.7 MiB outside the mounts"]);
    let job = hvdctl(&nodes, "jobs --json").await.document()["jobs"][0].clone();
    assert_eq!(job["outside"], files);
    // the reason of a failure is more important, and the files are not
    nodes.play(ends_with([143, 7]).outside(files.clone()));
    hvdctl(&nodes, RUN).await.code(7).complains(&warned);
    hvdctl(&nodes, "jobs").await.says(&["rank 1 on node2 ended with exit code 7"]);
    // nor does a failure that no rank has caused hide them
    nodes.play(Play::default().ends(0, 1).outside(files));
    hvdctl(&nodes, RUN).await.complains(&warned).complains(&["error: not all ranks started"]);
}

/// One file of 7 bytes outside the mounts of node1's container.
fn one_outside(nodes: &Nodes) -> serde_json::Value {
    nodes.edit("node1", |state| drop(state.container_files.insert("/root/last.pt".into(), b"weights".to_vec())));
    serde_json::json!([{ "node": "node1", "files": 1, "bytes": 7, "whole": true,
        "largest": [{ "path": "/root/last.pt", "bytes": 7 }] }])
}

#[tokio::test(start_paused = true)]
async fn a_container_with_the_only_copy_of_a_file_is_kept_until_a_newer_one_has_some() {
    let nodes = up_with(ends_with([0, 0])).await;
    let ps = || nodes.state("node1").ps();
    hvdctl(&nodes, RUN).await.code(0);
    assert_eq!(ps(), ["hworker running"]);
    let files = one_outside(&nodes);
    nodes.play(ends_with([0, 0]).outside(files.clone()));
    hvdctl(&nodes, RUN).await.code(0).complains(&["--from-container fetches these"]);
    assert_eq!(ps(), ["hworker running", "hmaster exited"]);
    // it is in nothing's way
    hvdctl(&nodes, "up").await.code(0).says(&["node[1-2] (2): unchanged"]);
    hvdctl(&nodes, "status").await.code(0);
    nodes.play(ends_with([0, 0]));
    hvdctl(&nodes, RUN).await.code(0);
    assert_eq!(ps(), ["hworker running", "hmaster exited"]);
    nodes.play(ends_with([7, 0]).outside(files.clone()));
    hvdctl(&nodes, RUN).await.code(7);
    let newer = ps();
    assert!(newer.len() == 2 && newer[1].starts_with("hmaster-") && newer[1].ends_with(" exited"), "{newer:?}");
    hvdctl(&nodes, "jobs prune").await.code(0);
    assert_eq!(ps(), ["hworker running"]);
    nodes.play(ends_with([0, 0]).outside(files));
    hvdctl(&nodes, RUN).await.code(0);
    hvdctl(&nodes, "down").await.code(0).says(&["node1: removed hworker, hmaster"]);
}

#[tokio::test(start_paused = true)]
async fn the_container_of_a_job_that_ends_by_itself_goes_with_the_next_one() {
    let nodes = up_with(ends_with([0, 0])).await;
    let detached = "run --detach -np 2 --map-by node -- true";
    hvdctl(&nodes, detached).await.code(0);
    sleep(std::time::Duration::from_secs(60)).await;
    assert_eq!(nodes.state("node1").ps(), ["hworker running", "hmaster exited"]);
    hvdctl(&nodes, "up --dry-run").await.says(&["remove hmaster (its job has ended)"]);
    let files = one_outside(&nodes);
    nodes.play(ends_with([0, 0]).outside(files));
    hvdctl(&nodes, detached).await.code(0);
    sleep(std::time::Duration::from_secs(60)).await;
    assert_eq!(nodes.state("node1").ps(), ["hworker running", "hmaster exited"]);
    hvdctl(&nodes, "up --dry-run").await.says(&["node[1-2] (2): unchanged"]);
}

#[tokio::test(start_paused = true)]
async fn files_outside_the_mounts_are_fetched_from_the_container() {
    let nodes = two_up().await;
    let files = one_outside(&nodes);
    nodes.play(ends_with([0, 0]).outside(files));
    hvdctl(&nodes, RUN).await.code(0);
    // paused time stands still while a thread unpacks
    tokio::time::resume();
    let dir = tempfile::tempdir().unwrap();
    let into = dir.path().join("got");
    let fetch = format!("fetch --from-container -o {}", into.display());
    let fetched = hvdctl(&nodes, &fetch).await;
    fetched.code(0).says(&["node1: node1/root/last.pt (7 B)", "got: 1 fetched, 0 unchanged"]);
    assert_eq!(std::fs::read_to_string(into.join("node1/root/last.pt")).unwrap(), "weights");
    let copies = |nodes: &Nodes| nodes.calls("node1").iter().filter(|call| call.starts_with("docker cp-out")).count();
    hvdctl(&nodes, &fetch).await.code(0).says(&["unchanged (1 of job"]);
    assert_eq!(copies(&nodes), 1, "it is here");
    // another file under its name is none of the job's
    std::fs::remove_file(into.join("node1/root/last.pt")).unwrap();
    nodes.edit("node1", |state| drop(state.container_files.insert("/root/last.pt".into(), b"others".to_vec())));
    hvdctl(&nodes, &fetch)
        .await
        .code(1)
        .complains(&["cannot fetch /root/last.pt: the file in the container is not the one"]);
    nodes.edit("node1", |state| state.container_files.clear());
    hvdctl(&nodes, &fetch).await.code(1).complains(&["Could not find the file /root/last.pt"]);
    nodes.edit("node1", |state| state.containers.retain(|container| container.name == "hworker"));
    hvdctl(&nodes, &fetch).await.code(1).complains(&["the container of the job is gone", "hint: only the newest"]);
    tokio::time::pause();
    nodes.play(ends_with([0, 0]));
    hvdctl(&nodes, RUN).await.code(0);
    hvdctl(&nodes, &fetch).await.code(1).complains(&["has left no files outside the mounts"]);
}
