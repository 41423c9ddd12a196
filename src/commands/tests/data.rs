//! `data push`, `data status` and `data rm`.

use super::jobs::RUN;
use super::*;
use crate::inventory::Mount;
use crate::transport::node::scripted::{Fault, Play};
use serde_json::json;
use std::fs;

/// A directory of data of this name.
fn directory(name: &str) -> (tempfile::TempDir, String) {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join(name);
    fs::create_dir(&path).unwrap();
    fs::write(path.join("a"), "A").unwrap();
    fs::write(path.join(".gitignore"), "a\n").unwrap();
    let shown = path.display().to_string();
    (dir, shown)
}

async fn push(nodes: &Nodes, options: &str, path: &str) -> Done {
    hvdctl(nodes, format!("{options} data push {path}").trim_start()).await
}

/// The names of a node's data.
fn names(nodes: &Nodes, node: &str) -> Vec<String> {
    nodes.state(node).data.unwrap_or_default().into_keys().collect()
}

#[tokio::test(start_paused = true)]
async fn every_node_gets_the_directory_and_workers_mount_it_from_then_on() {
    let (nodes, (_dir, path)) = (two_up().await, directory("set"));
    let done = push(&nodes, "", &format!("{path}/")).await;
    done.code(0).says(&["node[1-2] (2): pushed 2 files, 3 B\n", "ranks read the data as /data/set\n"]);
    done.complains(&["the next job, or hvdctl up, recreates the workers"]);
    hvdctl(&nodes, "status").await.says(&["data"]);
    hvdctl(&nodes, "up").await.code(0).says(&["recreated hworker (data)"]);
    assert_up(&nodes, "after the push");
    let spec = nodes.state("node2").containers[0].labels["hvdctl.spec.full"].clone();
    assert!(spec.contains(r#""data":[{"name":"set","source":"/opt/horovod/data/set","inode":7}]"#), "{spec}");
    push(&nodes, "", &path).await.code(0).says(&["node[1-2] (2): unchanged\n"]);
    assert_eq!(nodes.count("data/apply.sh"), [1, 1]);
    let (_dir, other) = directory("other");
    push(&nodes, "", &other).await.code(0).complains(&["the next job, or hvdctl up, recreates the workers"]);
    hvdctl(&nodes, "up").await.code(0).says(&["recreated hworker (data)"]);

    fs::write(Path::new(&path).join("b"), "more").unwrap();
    let document = push(&nodes, "--json --on node1", &path).await.code(0).document();
    assert_eq!(document["nodes"][0]["files"], json!(3), "this stand-in has all files or none");
    let done = hvdctl(&nodes, "data status").await;
    done.code(1).says(&[
        "other  node[1-2] (2)  complete",
        "set    node1 ",
        "set    node2 ",
        "hint: hvdctl data push DIR",
    ]);
    push(&nodes, "", &path).await.code(0).says(&["node1: unchanged\n", "node2: pushed 3 files"]);
    hvdctl(&nodes, "data status").await.code(0).says(&["set    node[1-2] (2)  complete", "2.9 KiB  2      1 min"]);

    let done = hvdctl(&nodes, "down --purge").await;
    done.code(0).says(&["kept the data other, set\n", "hint: hvdctl data rm NAME removes data"]);
    assert_eq!(names(&nodes, "node1"), ["other", "set"]);
    hvdctl(&nodes, "data rm set").await.code(0).says(&["node[1-2] (2): removed\n"]);
    hvdctl(&nodes, "data rm set")
        .await
        .code(1)
        .complains(&["no selected node has data set", "hint: hvdctl data status"]);
    hvdctl(&nodes, "data rm ../set").await.code(2).complains(&["../set is not a valid name for data"]);
    assert_eq!(NODES.map(|node| names(&nodes, node)), ["other", "other"].map(|name| vec![name.to_owned()]));
    assert_given_back(&nodes, "after all");
}

#[tokio::test(start_paused = true)]
async fn data_of_another_directory_are_replaced_only_where_that_is_confirmed() {
    let (nodes, (_dir, path), (_other, other)) = (two_up().await, directory("set"), directory("other"));
    push(&nodes, "", &path).await.code(0);
    for node in NODES {
        nodes.edit(node, |state| state.data_origin = Some("bob@desk:/set\u{1b}[1m".into()));
    }
    let other = format!("{other} --as set");
    push(&nodes, "", &other).await.code(0).says(&["unchanged"]);
    fs::write(Path::new(&path).join("a"), "B").unwrap();
    let replacing = format!("{path} --as set");
    // without a question
    let document = push(&nodes, "--json", &replacing).await.code(1).document();
    let error = document["error"].as_str().unwrap();
    assert!(
        error.starts_with("these would replace the data set on node[1-2], pushed from \"bob@desk:/set\\u{1b}[1m\"\n")
    );
    assert!(error.ends_with("hint: choose another name with --as NAME, or pass -y to replace them"), "{error}");
    assert_eq!(nodes.count("data/apply.sh"), [1, 1]);
    assert_given_back(&nodes, "after a refusal");
    push(&nodes, "-y", &replacing).await.code(0).says(&["node[1-2] (2): pushed 2 files"]);
}

#[tokio::test(start_paused = true)]
async fn nodes_that_have_the_same_list_it_once() {
    let (nodes, (_dir, path)) = (two_up().await, directory("set"));
    push(&nodes, "", &path).await.code(0);
    assert_eq!(nodes.count("upload/manifest.sh"), [0, 0]);
    fs::write(Path::new(&path).join("a"), "B").unwrap();
    push(&nodes, "", &path).await.code(0).says(&["node[1-2] (2): pushed 2 files"]);
    assert_eq!(nodes.count("upload/manifest.sh").iter().sum::<usize>(), 1);
    // what one node cannot list, another one can
    fs::write(Path::new(&path).join("a"), "C").unwrap();
    nodes.fault("node1", "upload/manifest.sh", Fault::Fails("cat: x: Input/output error".into()));
    let done = push(&nodes, "", &path).await;
    done.says(&["node2: pushed 2 files"]).complains(&["node1: cannot list the files of the last push"]);
}

#[tokio::test(start_paused = true)]
async fn data_that_a_job_may_read_stay_as_they_are() {
    let (nodes, (_dir, path)) = (during_a_job().await, directory("set"));
    let record = |node: &str| nodes.edit(node, |state| state.facts.push_str("open run-1 {\"id\":\"run-1\"}\n"));
    NODES.into_iter().for_each(record);
    push(&nodes, "", &path).await.code(0).says(&["node[1-2] (2): pushed 2 files"]);
    push(&nodes, "", &path).await.code(0).says(&["node[1-2] (2): unchanged"]);
    fs::write(Path::new(&path).join("a"), "B").unwrap();
    let done = push(&nodes, "", &path).await;
    done.code(1).complains(&["to job run-1", "a job may read the data set, which would change", "--as NAME"]);
    hvdctl(&nodes, "data rm set").await.code(1).complains(&["a job may read the data set"]);
    assert_eq!((nodes.count("data/apply.sh"), nodes.count("data/remove.sh")), (vec![1, 1], vec![0, 0]));
    hvdctl(&nodes, &format!("data push {path} --as second")).await.code(0);
    assert_eq!(names(&nodes, "node2"), ["second", "set"]);
}

#[tokio::test(start_paused = true)]
async fn a_job_does_not_read_the_files_of_two_pushes() {
    let nodes = two_up().await;
    nodes.edit("node2", |state| drop(state.data.get_or_insert_default().insert("set".into(), "-".into())));
    for arguments in ["-- python x.py --data=/data/set/train", "-e DIR=/data/set -- python x.py"] {
        let done = hvdctl(&nodes, &format!("run -np 2 --map-by node {arguments}")).await;
        done.code(125).complains(&["node2: cannot use the data set: a push was interrupted", "`hvdctl data rm set`"]);
    }
    // a job that reads nothing of them
    let started = Play::default().frame(0, "node1", "0 s ").frame(0, "node2", "1 s ");
    nodes.play(started.frame(0, "node1", "0 x 0").frame(0, "node2", "1 x 0").ends(1, 0));
    let done = hvdctl(&nodes, "run -np 2 --map-by node -- python x.py --data=/data/set2").await;
    done.code(0).complains(&["the data set differ: node1 missing · node2 incomplete"]);
}

#[tokio::test(start_paused = true)]
async fn a_running_job_keeps_its_workers_when_data_are_added() {
    let (nodes, (_dir, path)) = (two_up().await, directory("set"));
    nodes.play(Play::default().frame(0, "node1", "0 s ").frame(0, "node2", "1 s "));
    hvdctl(&nodes, &RUN.replace("run ", "run --detach ")).await.code(0);
    push(&nodes, "", &path).await.code(0);
    hvdctl(&nodes, "up").await.code(0).says(&["nothing to do"]);
    hvdctl(&nodes, "stop").await.code(0);
    hvdctl(&nodes, "up").await.code(0).says(&["recreated hworker (data)"]);
}

#[tokio::test(start_paused = true)]
async fn what_prevents_a_push_is_named() {
    let (nodes, (dir, path)) = (two_up().await, directory("set"));
    let file = format!("{path}/a");
    let (empty, odd) = (dir.path().join("empty"), dir.path().join("it's"));
    [&empty, &odd].into_iter().for_each(|path| fs::create_dir(path).unwrap());
    fs::write(odd.join("x"), "").unwrap();
    let show = |path: &Path| path.display().to_string();
    for (given, words) in [
        (file, "is not a directory"),
        (format!("{path}-no"), "cannot read the data "),
        (show(&empty), "/empty is empty"),
        (show(&odd), "is not a valid name for data: expected 1 to 63 letters"),
        (format!("{path} --as a/b"), "a/b is not a valid name for data"),
        ("/".to_owned(), "is the root of the file system"),
    ] {
        push(&nodes, "", &given).await.code(2).complains(&[words]);
    }
    push(&nodes, "", &format!("{} --as odd", show(&odd))).await.code(0);
    let mut mounted = inventory(&nodes);
    let mount = Mount { source: "/mnt".into(), target: "/data/x".into(), read_only: true };
    mounted.nodes[1].container.mounts.push(mount);
    let (_nobody, signals) = mpsc::unbounded_channel();
    let done = hvdctl_on(&nodes, mounted, &format!("data push {path}"), signals).await;
    done.code(2).complains(&["node2: the inventory mounts /data/x in the containers"]);

    nodes.edit("node2", |state| state.free = 5000);
    let done = push(&nodes, "", &path).await;
    done.code(3).says(&["node1: pushed"]).complains(&[
        "node2: cannot push the data set: they need ",
        "/opt/horovod/data has only 4.9 KiB free: ",
        " are missing",
        "hint: free space below /opt/horovod/data",
    ]);
    nodes.edit("node2", |state| (state.free, state.inodes) = (1 << 30, 1));
    push(&nodes, "", &path).await.code(3).complains(&[
        "node2: cannot push the data set: they are ",
        " files and directories, and /opt/horovod/data has room for 1 more: ",
        "hint: remove files there (df -i)",
    ]);
    nodes.edit("node2", |state| state.inodes = 1 << 20);
    for (call, words, complaint) in [
        (
            "data/compare.sh",
            "b2sum: x: Input/output error",
            "node2: cannot compare the data with /opt/horovod/data/set: ",
        ),
        ("data/apply.sh", "tar: x: Cannot write: No space left on device", "hint: free space below"),
        ("data/apply.sh", "Killed", "hint: push again: files that have arrived are not sent again"),
    ] {
        nodes.fault("node2", call, Fault::Fails(words.into()));
        push(&nodes, "", &path).await.code(3).says(&["node1: unchanged"]).complains(&[complaint]);
        nodes.repair();
    }
    nodes.fault("node2", "connect", Fault::Fails("Connection refused".into()));
    nodes.cut("node2");
    push(&nodes, "", &path).await.code(4);
    hvdctl(&nodes, "data status").await.code(3).says(&["–     node2  unreachable"]);
    push(&nodes, "", &format!("{path} --skip-offline")).await.code(0).says(&["node1: unchanged"]);
    hvdctl(&nodes, "data rm set --skip-offline").await.code(0).says(&["node1: removed"]);
    nodes.repair();
    push(&nodes, "", &path).await.code(0).says(&["node[1-2] (2): pushed"]);
}

#[tokio::test(start_paused = true)]
async fn a_signal_ends_a_push_and_the_next_one_continues() {
    let (nodes, (_dir, path)) = (two_up().await, directory("set"));
    let (send, signals) = mpsc::unbounded_channel();
    nodes.fault("node2", "data/apply.sh", Fault::Silent);
    let sender = std::sync::Mutex::new(Some(send));
    nodes.watch(move |moment| {
        if moment.call == "data/apply.sh" && moment.node == "node2" {
            let _ = sender.lock().unwrap().as_ref().map(|send| send.send(2));
        }
    });
    let done = hvdctl_with(&nodes, &format!("data push {path}"), signals).await;
    done.code(130).complains(&["node[1-2]: incomplete; done so far: began to push set"]);
    nodes.unwatch();
    nodes.repair();
    assert_given_back(&nodes, "after the signal");
    assert_eq!(names(&nodes, "node2"), [""; 0]);
    assert_eq!(nodes.count("data/stop.sh"), [1, 1], "nothing is put into place later");
    push(&nodes, "", &path).await.code(0);
    assert_eq!(NODES.map(|node| names(&nodes, node)), ["set", "set"].map(|name| vec![name.to_owned()]));
}
