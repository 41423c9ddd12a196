//! `image status` and `image push`, with nodes whose engines pull from hvdctl's registry over real sockets.

use super::*;
use crate::image::names::{relay_repository, sha256};
use crate::inventory::Pull;
use crate::runtime::credentials;
use crate::transport::node::scripted::{CONNECT, FORWARD, Fault};
use serde_json::json;
use std::path::PathBuf;

const BASE: &[u8] = b"the layers below";

/// Writes an archive of an image with these layers as `docker save` does.
fn archive(dir: &Path, layers: &[&[u8]], architecture: &str) -> PathBuf {
    let diff_ids: Vec<String> = layers.iter().map(|layer| sha256(layer)).collect();
    let config = json!({
        "architecture": architecture, "os": "linux", "config": { "Env": ["A=1"] }, "created": "2026-01-01T00:00:00Z",
        "rootfs": { "type": "layers", "diff_ids": diff_ids },
    });
    let names: Vec<String> = (0..layers.len()).map(|number| format!("{number}/layer.tar")).collect();
    let manifest = json!([{ "Config": "config.json", "RepoTags": ["app:1"], "Layers": names }]);
    let path = dir.join("app.tar");
    let mut tar = tar::Builder::new(std::fs::File::create(&path).unwrap());
    let mut put = |name: &str, bytes: &[u8]| {
        let mut header = tar::Header::new_gnu();
        header.set_size(bytes.len() as u64);
        tar.append_data(&mut header, name, bytes).unwrap();
    };
    names.iter().zip(layers).for_each(|(name, layer)| put(name, layer));
    put("config.json", config.to_string().as_bytes());
    put("manifest.json", manifest.to_string().as_bytes());
    tar.finish().unwrap();
    path
}

/// The names of the images that a node has from hvdctl.
fn names(nodes: &Nodes, node: &str) -> Vec<String> {
    nodes.state(node).pulled.into_keys().collect()
}

/// Pushes `app:1` from an archive, with these options before the command.
async fn push(nodes: &Nodes, file: &Path, options: &str) -> Done {
    hvdctl(nodes, format!("{options} image push app:1 --from {}", file.display()).trim_start()).await
}

/// The bytes that were sent to each node, by the document of a push.
fn sent(done: &Done) -> Vec<u64> {
    let document = done.document();
    document["nodes"].as_array().unwrap().iter().map(|node| node["sent"].as_u64().unwrap()).collect()
}

#[tokio::test(start_paused = true)]
async fn an_archive_is_pushed_to_the_nodes_that_lack_it() {
    let (nodes, dir) = (Nodes::new(&NODES), tempfile::tempdir().unwrap());
    let file = archive(dir.path(), &[BASE, b"first"], "amd64");
    push(&nodes, &file, "--on node1").await.code(0).says(&["node1: pushed, "]);
    assert_eq!([names(&nodes, "node1"), names(&nodes, "node2")], [vec!["app:1".to_owned()], Vec::new()]);
    let done = push(&nodes, &file, "").await;
    done.code(0).says(&["node1: unchanged\n", "node2: pushed, "]);
    assert_eq!(NODES.map(|node| names(&nodes, node)), ["app:1", "app:1"].map(|name| vec![name.to_owned()]));
    push(&nodes, &file, "").await.code(0).says(&["nothing to do: every node has this image"]);
    assert_given_back(&nodes, "after the pushes");

    // another last layer: only that one is sent, and the configuration
    let changed = archive(dir.path(), &[BASE, b"second"], "amd64");
    let config = nodes.state("node1").pulled["app:1"]["Id"].clone();
    let done = push(&nodes, &changed, "--json").await;
    let bytes = sent(done.code(0));
    assert_eq!(bytes[0], bytes[1]);
    assert!(bytes[0] < (BASE.len() + b"second".len() + 500) as u64, "{bytes:?}");
    assert!(NODES.iter().all(|node| nodes.state(node).layers.len() == 3), "the base was pulled once");
    assert_ne!(nodes.state("node1").pulled["app:1"]["Id"], config);
    assert_eq!(NODES.map(|node| names(&nodes, node)), ["app:1", "app:1"].map(|name| vec![name.to_owned()]));
}

#[tokio::test(start_paused = true)]
async fn a_node_that_has_the_image_under_another_name_is_sent_nothing() {
    let (nodes, dir) = (Nodes::new(&NODES), tempfile::tempdir().unwrap());
    let file = archive(dir.path(), &[BASE, b"first"], "amd64");
    push(&nodes, &file, "").await.code(0);
    nodes.edit("node2", |state| {
        let image = state.pulled.remove("app:1").unwrap();
        state.pulled.insert("app:old".into(), image);
    });
    let done = hvdctl(&nodes, "image push app:1 --from node1").await;
    done.code(0).says(&["node1: unchanged\n", "node2: named: it had the image under another name\n"]);
    assert_eq!(names(&nodes, "node2"), ["app:1", "app:old"]);
    assert_eq!(nodes.count("docker export"), [0, 0]);
}

#[tokio::test(start_paused = true)]
async fn the_image_of_an_engine_that_lists_it_is_taken() {
    let nodes = Nodes::new(&["node1", "node2", "node3"]);
    let dir = tempfile::tempdir().unwrap();
    let file = archive(dir.path(), &[BASE, b"first"], "amd64");
    push(&nodes, &file, "--on node[1-2]").await.code(0);
    let saved = std::fs::read(&file).unwrap();
    nodes.edit("node1", |state| state.is_unpacked = true);
    nodes.edit("node2", |state| state.saved = saved);
    hvdctl(&nodes, "image push app:1").await.code(0).says(&["node[1-2] (2): unchanged\n", "node3: pushed"]);
    assert_eq!(nodes.count("docker export"), [0, 1, 0]);
    // what no engine lists may be exported all the same; this one has nothing to export
    nodes.edit("node3", |state| state.pulled.clear());
    hvdctl(&nodes, "--on node1,node3 image push app:1").await.code(1).complains(&["the image of node1", "--from"]);
}

#[tokio::test(start_paused = true)]
async fn status_says_what_is_missing_where() {
    let (nodes, dir) = (Nodes::new(&NODES), tempfile::tempdir().unwrap());
    hvdctl(&nodes, "image status").await.code(0).says(&["test/horovod:1\n", "node[1-2] (2)"]);
    let done = hvdctl(&nodes, "image status app:1").await;
    done.code(1).says(&["node[1-2] (2)  missing", "hint: hvdctl image push"]);
    let file = archive(dir.path(), &[BASE, b"first"], "amd64");
    push(&nodes, &file, "--on node1").await.code(0);
    let done = hvdctl(&nodes, "image status app:1").await;
    done.code(1).says(&["node1 ", "linux/amd64", "node2  missing", "2 of 2 layers\n"]);
    let changed = archive(dir.path(), &[BASE, b"second"], "amd64");
    push(&nodes, &changed, "--on node2").await.code(0);
    let done = hvdctl(&nodes, "image status app:1 --json").await;
    let document = done.code(1).document();
    let of = |node: usize, field: &str| document["nodes"][node][field].clone();
    assert_eq!([of(0, "lacking_layers"), of(1, "lacking_layers")], [json!(0), json!(1)]);
    assert_eq!([of(0, "ok"), of(1, "ok")], [json!(true), json!(false)]);
    assert_ne!(of(0, "content"), of(1, "content"));
    push(&nodes, &changed, "").await.code(0);
    hvdctl(&nodes, "image status app:1").await.code(0);
    nodes.fault("node2", "docker image", Fault::Fails("no".into()));
    hvdctl(&nodes, "image status app:1").await.code(3).says(&["node1 ", "node2  failed"]);
}

#[tokio::test(start_paused = true)]
async fn what_prevents_a_push_is_named_and_other_nodes_get_the_image() {
    let (nodes, dir) = (Nodes::new(&NODES), tempfile::tempdir().unwrap());
    let file = archive(dir.path(), &[&[7; 5000], b"first"], "amd64");
    nodes.edit("node2", |state| state.platform = ("linux", "arm64"));
    let done = push(&nodes, &file, "").await;
    done.code(3).says(&["node1: pushed"]).complains(&[
        "node2: cannot push the image app:1: the image is for linux/amd64, but the node's platform is linux/arm64",
    ]);
    nodes.edit("node2", |state| (state.platform, state.free) = (("linux", "amd64"), 9999));
    let done = push(&nodes, &file, "").await;
    done.code(3).complains(&[
        "node2: cannot push the image app:1: /var/lib/docker has only 9.8 KiB free, but the image needs 9.8 KiB",
    ]);
    nodes.edit("node2", |state| state.free = 1 << 30);

    nodes.fault("node2", FORWARD, Fault::Fails("remote port forwarding failed for listen port 0".into()));
    let line = "/etc/ssh/sshd_config:57:AllowTcpForwarding no\n";
    nodes.edit("node2", |state| state.sshd = line.into());
    let done = push(&nodes, &file, "").await;
    let hint = "there is no python3, which could forward it instead\n  hint: install python3 on the node, or allow it";
    done.code(3).complains(&["node2: cannot forward a port for the image", hint, line.trim()]);
    nodes.edit("node2", |state| state.sshd.clear());
    push(&nodes, &file, "").await.code(3).complains(&["no-port-forwarding"]);
    nodes.repair();

    nodes.fault("node2", "docker pull", Fault::Fails("write /var/lib/docker/tmp/x: no space left on device".into()));
    let done = push(&nodes, &file, "").await;
    done.code(3).complains(&["node2: cannot pull the image app:1: write", "hint: free space on that node"]);
    nodes.repair();
    nodes.fault("node2", "docker pull", Fault::Silent);
    push(&nodes, &file, "").await.code(3).complains(&["node2: cannot pull the image app:1: no progress"]);
    nodes.repair();
    assert_eq!(names(&nodes, "node2"), [""; 0]);
    push(&nodes, &file, "").await.code(0).says(&["node1: unchanged\n", "node2: pushed"]);
}

#[tokio::test(start_paused = true)]
async fn nodes_of_each_platform_get_what_the_file_has_for_them() {
    let (nodes, dir) = (Nodes::new(&["node1", "node2", "node3"]), tempfile::tempdir().unwrap());
    nodes.edit("node2", |state| state.platform = ("linux", "arm64"));
    nodes.edit("node3", |state| state.platform = ("linux", "s390x"));
    let mut tar = tar::Builder::new(std::fs::File::create(dir.path().join("app.tar")).unwrap());
    let mut put = |name: &str, bytes: &[u8]| {
        let mut header = tar::Header::new_gnu();
        header.set_size(bytes.len() as u64);
        tar.append_data(&mut header, name, bytes).unwrap();
    };
    let entry = |architecture: &str| json!({ "Config": architecture, "RepoTags": ["app:1"], "Layers": ["layer.tar"] });
    for architecture in ["amd64", "arm64"] {
        let config = json!({
            "architecture": architecture, "os": "linux", "config": { "Env": [format!("ON={architecture}")] },
            "created": "2026-01-01T00:00:00Z", "rootfs": { "type": "layers", "diff_ids": [sha256(BASE)] },
        });
        put(architecture, config.to_string().as_bytes());
    }
    put("layer.tar", BASE);
    put("manifest.json", json!([entry("amd64"), entry("arm64")]).to_string().as_bytes());
    tar.finish().unwrap();
    drop(tar);
    let done = push(&nodes, &dir.path().join("app.tar"), "").await;
    done.code(3).says(&["node[1-2] (2): pushed, "]).complains(&[
        "node3: cannot push the image app:1: the image is for linux/amd64, but the node's platform is linux/s390x",
        "docker pull --platform linux/s390x",
    ]);
    let config = |node: &str| nodes.state(node).pulled["app:1"]["Id"].clone();
    assert_ne!(config("node1"), config("node2"));
    assert_eq!(names(&nodes, "node3"), [""; 0]);
}

// a paused clock does not wait for the programs that unpack
#[tokio::test]
async fn a_compressed_archive_and_a_directory_are_pushed() {
    let (nodes, dir) = (Nodes::new(&NODES), tempfile::tempdir().unwrap());
    let file = archive(dir.path(), &[BASE, b"first"], "amd64");
    let shell = |script: &str| {
        let mut shell = std::process::Command::new("sh");
        assert!(shell.args(["-ec", script, "sh"]).arg(&file).current_dir(dir.path()).status().unwrap().success());
    };
    shell("mkdir layout && tar -C layout -xf \"$1\" && gzip \"$1\"");
    push(&nodes, &dir.path().join("app.tar.gz"), "--on node1").await.code(0).says(&["node1: pushed, "]);
    push(&nodes, &dir.path().join("layout"), "").await.code(0).says(&["node1: unchanged\n", "node2: pushed, "]);
}

#[tokio::test(start_paused = true)]
async fn a_source_that_has_no_image_is_named_before_anything_is_changed() {
    let (nodes, dir) = (Nodes::new(&NODES), tempfile::tempdir().unwrap());
    let file = archive(dir.path(), &[BASE, b"first"], "amd64");
    hvdctl(&nodes, "image push").await.code(0).says(&["nothing to do"]);
    hvdctl(&nodes, "image push app:1 --from node1").await.code(1).complains(&["the image app:1 is not on node1"]);
    hvdctl(&nodes, "image push app:1 --from node9").await.code(2).complains(&["no node or file has this name"]);
    hvdctl(&nodes, &format!("image push app@sha256:{}", "0".repeat(64))).await.code(2).complains(&["has no tag"]);
    hvdctl(&nodes, "image push ../x").await.code(2).complains(&["../x is not a valid image name"]);
    let contacted = nodes.count(CONNECT);
    push(&nodes, dir.path(), "").await.code(2).complains(&["it has no index.json of an OCI layout"]);
    for (from, words) in [
        ("docker-archive:app.tar", "it takes only the file or directory"),
        ("docker://r/app:1", "hvdctl image pull IMAGE"),
        ("/dev/null", "is not a file, directory or pipe"),
    ] {
        hvdctl(&nodes, &format!("image push app:1 --from {from}")).await.code(2).complains(&[words]);
    }
    assert_eq!(nodes.count(CONNECT), contacted, "no node is contacted");
    let whole = std::fs::read(&file).unwrap();
    std::fs::write(&file, &whole[..520]).unwrap();
    push(&nodes, &file, "").await.code(1).complains(&["it is truncated: it ends within 0/layer.tar"]);
    let mut damaged = whole.clone();
    damaged[512] ^= 1;
    std::fs::write(&file, damaged).unwrap();
    push(&nodes, &file, "").await.code(1).complains(&["its 0/layer.tar is damaged"]);
    assert!(NODES.iter().all(|node| nodes.state(node).pulled.is_empty()));

    // the nodes have different images of this name
    std::fs::write(&file, whole).unwrap();
    push(&nodes, &file, "--on node1").await.code(0);
    push(&nodes, &archive(dir.path(), &[BASE, b"second"], "amd64"), "--on node2").await.code(0);
    let done = hvdctl(&nodes, "image push app:1").await;
    done.code(1).complains(&["the nodes have different images app:1: node1 has ", "hint: choose one with --from NODE"]);
    assert_given_back(&nodes, "after refusals");
}

#[tokio::test(start_paused = true)]
async fn a_push_that_is_stopped_at_any_call_leaves_nothing_behind_the_next_one() {
    let dir = tempfile::tempdir().unwrap();
    let file = archive(dir.path(), &[BASE, b"first"], "amd64");
    let fresh = Nodes::new(&NODES);
    let mut moment = 0;
    loop {
        let nodes = fresh.copy();
        let (sender, signals) = mpsc::unbounded_channel();
        nodes.watch(move |at| {
            if at.number == moment {
                let _ = sender.send(2);
            }
        });
        let done = hvdctl_with(&nodes, &format!("image push app:1 --from {}", file.display()), signals).await;
        assert_given_back(&nodes, "after the signal");
        nodes.unwatch();
        if done.code == 0 {
            break;
        }
        assert_eq!(done.code, 130, "{done}");
        for node in NODES {
            let left = names(&nodes, node);
            assert!(left.iter().all(|name| name == "app:1"), "{node}: {left:?} at moment {moment}");
        }
        push(&nodes, &file, "").await.code(0);
        assert_eq!(NODES.map(|node| names(&nodes, node)), ["app:1", "app:1"].map(|name| vec![name.to_owned()]));
        moment += 3;
    }
    assert!(moment > 20, "it was stopped at {moment} moments only");
}

#[tokio::test(start_paused = true)]
async fn the_name_that_a_killed_push_has_left_is_removed_by_the_next_one() {
    let (nodes, dir) = (Nodes::new(&NODES), tempfile::tempdir().unwrap());
    let file = archive(dir.path(), &[BASE, b"first"], "amd64");
    push(&nodes, &file, "").await.code(0);
    let temporary = |cluster| {
        let repository = crate::image::names::temporary_repository(cluster, "0123");
        format!("127.0.0.1:4000/{repository}@sha256:00")
    };
    nodes.edit("node2", |state| {
        let image = state.pulled["app:1"].clone();
        state.pulled.insert(temporary("lab"), image.clone());
        state.pulled.insert(temporary("other"), image);
    });
    push(&nodes, &file, "").await.code(0).says(&["nothing to do"]);
    assert_eq!(
        names(&nodes, "node2"),
        [temporary("other"), "app:1".to_owned()],
        "that of another cluster may be in use"
    );
}

#[tokio::test(start_paused = true)]
async fn up_takes_the_image_of_another_node_where_the_inventory_says_so() {
    let (nodes, dir) = (Nodes::new(&NODES), tempfile::tempdir().unwrap());
    let file = archive(dir.path(), &[BASE, b"first"], "amd64");
    nodes.edit("node2", |state| state.images.clear());
    let mut inventory = inventory(&nodes);
    inventory.cluster.pull = Pull::Peers;
    inventory.cluster.image = "app:1".into();
    push(&nodes, &file, "--on node1").await.code(0);
    let saved = std::fs::read(&file).unwrap();
    nodes.edit("node1", |state| state.saved = saved);
    let up = async |line| hvdctl_on(&nodes, inventory.clone(), line, mpsc::unbounded_channel().1).await;
    up("up --dry-run").await.code(0).says(&["node1: start hworker", "node2: pull app:1, start hworker"]);
    assert_eq!(names(&nodes, "node2"), [""; 0]);
    up("up").await.code(0).says(&["node1: started hworker", "node2: pulled app:1, started hworker"]);
    assert_eq!(NODES.map(|node| names(&nodes, node)), ["app:1", "app:1"].map(|name| vec![name.to_owned()]));
    assert_up(&nodes, "after the push");
    up("up").await.code(0).says(&["nothing to do"]);

    // no node has it
    NODES.iter().for_each(|node| nodes.edit(node, |state| state.pulled.clear()));
    up("up").await.code(1).complains(&[
        "the image app:1 is on no selected node; this machine's engine cannot be queried: there is none in this test",
    ]);
    assert_given_back(&nodes, "after a refusal");
}

/// Gives this test's thread a `config.json`.
fn docker_config(dir: &Path, config: &str) {
    std::fs::write(dir.join("config.json"), config).unwrap();
    credentials::DIRECTORY.set(Some(dir.to_owned()));
}

#[tokio::test(start_paused = true)]
async fn each_refusal_of_a_registry_has_its_next_step() {
    let nodes = Nodes::new(&NODES);
    nodes.edit("node1", |state| state.platform = ("linux", "arm64"));
    for (answer, hint) in [
        (
            "toomanyrequests: You have reached your unauthenticated pull rate limit",
            "`docker login r.example` on this machine",
        ),
        (
            "no matching manifest for linux/arm64/v8 in the manifest list entries",
            "r.example has no image for linux/arm64",
        ),
        ("http: server gave HTTP response to HTTPS client", "insecure-registries\": [\"r.example\"]"),
        ("manifest unknown", "r.example has no such image, tag or digest"),
        ("dial tcp 10.0.0.9:443: i/o timeout", "cannot reach r.example"),
    ] {
        NODES.iter().for_each(|node| nodes.fault(node, "docker pull", Fault::Fails(answer.into())));
        hvdctl(&nodes, "image pull r.example/app:1").await.code(1).complains(&[answer, hint]);
        nodes.repair();
    }
}

#[tokio::test(start_paused = true)]
async fn every_engine_pulls_with_the_login_of_this_machine() {
    let (nodes, dir) = (Nodes::new(&NODES), tempfile::tempdir().unwrap());
    // its encoding differs between the two alphabets of base64
    let (login, image) = (r#"{"password":"?>~?>~a","username":"ana"}"#, "r.example/app:1");
    for node in NODES {
        nodes.edit(node, |state| (state.has_registry, state.registry_login) = (true, Some(login)));
    }
    let pull = async |options: &str| hvdctl(&nodes, &format!("image pull {image}{options}")).await;
    let hint = "hint: this machine has no login for the registry: `docker login r.example` here.";
    pull("").await.code(1).complains(&["node1: cannot pull the image r.example/app:1: Head", "no basic auth", hint]);
    docker_config(dir.path(), r#"{"auths": {"r.example": {"username": "ana", "password": "wrong"}}}"#);
    let done = pull("").await;
    done.code(1)
        .complains(&["unauthorized", "this machine's login was sent; renew it by `docker login r.example` here"]);
    docker_config(dir.path(), r#"{"credsStore": "missing"}"#);
    let fault = "docker-credential-missing is not in the PATH of this machine";
    pull("")
        .await
        .code(1)
        .complains(&[&format!("warning: pulling {image} without a login: {fault}"), "no login was sent"]);

    docker_config(dir.path(), r#"{"auths": {"r.example": {"username": "ana", "password": "?>~?>~a"}}}"#);
    pull("").await.code(0).says(&["node[1-2] (2): pulled\n"]);
    pull(" --json").await.code(0);
    pull("").await.code(0).says(&["node[1-2] (2): unchanged\n"]);
    assert_eq!(nodes.state("node2").logins.len(), 6);
    // another registry is not sent it
    hvdctl(&nodes, "image pull s.example/app:1").await.code(1).complains(&["`docker login s.example` here"]);
    assert_eq!(nodes.state("node2").logins.last().map(String::as_str), Some(""));
    hvdctl(&nodes, "image pull hvdctl/app:1").await.code(2).complains(&["no registry has hvdctl/app:1"]);
    assert_given_back(&nodes, "after the pulls");

    // up does the same
    let mut inventory = inventory(&nodes);
    (inventory.cluster.image, inventory.cluster.pull) = ("r.example/app:2".into(), Pull::Missing);
    hvdctl_on(&nodes, inventory, "up", mpsc::unbounded_channel().1).await.code(0);
    assert_eq!(nodes.state("node1").logins.last().map(String::as_str), Some(login));
}

#[tokio::test(start_paused = true)]
async fn up_offers_the_image_of_another_node_where_the_registry_gives_none() {
    let (nodes, dir) = (Nodes::new(&NODES), tempfile::tempdir().unwrap());
    let file = archive(dir.path(), &[BASE, b"first"], "amd64");
    let mut inventory = inventory(&nodes);
    inventory.cluster.image = "app:1".into();
    let up = async |line| hvdctl_on(&nodes, inventory.clone(), line, mpsc::unbounded_channel().1).await;
    // no node has it
    up("up").await.code(1).complains(&["node1: cannot pull the image app:1: pull access denied", "docker login"]);
    push(&nodes, &file, "--on node1").await.code(0);
    let saved = std::fs::read(&file).unwrap();
    // one that cannot give it concerns only the node that needs it
    let words = [
        "node2: cannot pull the image app:1: pull access denied",
        "it could not be copied from node1 either: cannot read",
    ];
    up("up").await.code(3).says(&["node1: started hworker"]).complains(&words);
    nodes.edit("node1", |state| state.saved = saved);
    // nothing answers
    let document = up("up --json").await.code(3).document();
    let hints = document["nodes"][1]["error"]["hints"].to_string();
    assert!(hints.contains("node1 has the image: hvdctl image push, or hvdctl -y up"), "{document:#}");
    assert_eq!(names(&nodes, "node2"), [""; 0]);
    nodes.fault("node2", "docker pull", Fault::Fails("write /x: no space left on device".into()));
    up("up").await.code(3).complains(&["node2: cannot pull the image app:1: write /x: no space left"]);
    nodes.repair();
    // -y answers
    let done = up("up").await;
    done.code(0).says(&["node1: unchanged\n", "node2: pulled app:1, started hworker"]);
    done.complains(&["node2: copying the image from node1, because it cannot be pulled: pull access denied"]);
    assert_eq!(names(&nodes, "node2"), ["app:1"]);
    assert_up(&nodes, "after the push");
}

#[tokio::test(start_paused = true)]
async fn an_image_that_hvdctl_has_built_is_asked_of_no_registry() {
    let nodes = Nodes::new(&NODES);
    NODES.iter().for_each(|node| nodes.edit(node, |state| state.has_registry = true));
    let mut inventory = inventory(&nodes);
    inventory.cluster.image = "hvdctl/lab:1f0c".into();
    let done = hvdctl_on(&nodes, inventory, "up", mpsc::unbounded_channel().1).await;
    done.code(1).complains(&["the image hvdctl/lab:1f0c is on no selected node"]);
    assert_eq!(nodes.count("docker pull"), [0, 0]);
}

#[tokio::test(start_paused = true)]
async fn what_the_relays_of_a_stopped_push_have_left_is_removed_by_the_next_command() {
    let (nodes, dir) = (two_up().await, tempfile::tempdir().unwrap());
    let file = archive(dir.path(), &[BASE, b"first"], "amd64");
    let push = format!("image push app:1 --from {}", file.display());
    let left = |cluster: &str| (format!("{}:0123", relay_repository(cluster)), format!("hvdctl-relay-{cluster}-0"));
    for (line, has_container) in [
        (push.as_str(), true),
        (&push, false),
        ("up", true),
        ("image prune", true),
        ("image prune", false),
        ("down", true),
        ("down --purge -y", false),
    ] {
        nodes.edit("node2", |state| {
            for (image, container) in ["lab", "other"].map(left) {
                let cluster = container.split('-').nth(2).unwrap();
                state.containers.retain(|other| other.name != container);
                if has_container || cluster == "other" {
                    state.add(&container, &[("hvdctl.cluster", cluster), ("hvdctl.role", "relay")]);
                }
                state.pulled.insert(image, json!({ "Id": "sha256:00" }));
            }
        });
        hvdctl(&nodes, line).await.code(0);
        let state = nodes.state("node2");
        let has = |(image, container): (String, String)| {
            [state.pulled.contains_key(&image), state.container(&container).is_some()]
        };
        assert_eq!([has(left("lab")), has(left("other"))], [[false; 2], [true; 2]], "after {line}");
    }
}

#[tokio::test(start_paused = true)]
async fn images_of_another_clusters_projects_are_not_removed() {
    let nodes = Nodes::new(&NODES);
    for (name, built_for, created) in [
        ("hvdctl/own:1", Some("lab"), "2026-11-21"),
        ("hvdctl/own:2", Some("lab"), "2026-11-22"),
        ("hvdctl/own:0", Some("lab"), "2026-11-20"),
        ("hvdctl/own:3", Some("other"), "2026-11-23"),
        ("hvdctl/theirs:1", Some("other"), "2026-11-21"),
        ("hvdctl/theirs:2", Some("other"), "2026-11-22"),
        ("hvdctl/old:1", None, "2026-11-21"),
        ("hvdctl/old:2", None, "2026-11-22"),
    ] {
        let labels = built_for.map_or(json!({}), |cluster| json!({ "hvdctl.built-for": cluster }));
        let id = format!("sha256:{name}");
        let image = json!({ "Id": id, "Created": format!("{created}T12:00:00Z"), "Config": { "Labels": labels } });
        nodes.edit("node2", |state| drop(state.pulled.insert(name.to_owned(), image.clone())));
    }
    let images = || nodes.state("node2").pulled.into_keys().collect::<Vec<_>>();
    let done = hvdctl(&nodes, "image prune").await;
    done.code(0).says(&["node1: removed 0 images", "node2: removed 2 images"]);
    done.complains(&[
        "node2: 2 images of an earlier hvdctl stay, because they may belong to another cluster",
        "hint: if they do not, run on the node: docker rmi hvdctl/old:1 hvdctl/old:2",
    ]);
    let others = ["hvdctl/old:1", "hvdctl/old:2", "hvdctl/own:3", "hvdctl/theirs:1", "hvdctl/theirs:2"];
    assert_eq!(images(), [&others[..2], &["hvdctl/own:2"], &others[2..]].concat());
    hvdctl(&nodes, "image prune --all").await.code(0).says(&["node2: removed 1 image\n"]);
    assert_eq!(images(), others);
}

#[tokio::test(start_paused = true)]
async fn a_push_goes_on_without_a_node_whose_lease_is_lost() {
    let (nodes, dir) = (Nodes::new(&NODES), tempfile::tempdir().unwrap());
    let file = archive(dir.path(), &[BASE, b"first"], "amd64");
    nodes.fault("node1", "docker pull", Fault::Late(Duration::from_secs(30)));
    nodes.fault("node2", "docker pull", Fault::Late(Duration::from_secs(30)));
    let other = nodes.clone();
    nodes.watch(move |moment| {
        if moment.node == "node2" && moment.call.starts_with("docker pull") {
            other.edit("node2", |state| state.lease = None);
        }
    });
    let done = push(&nodes, &file, "").await;
    done.code(3).says(&["node1: pushed"]).complains(&["node2: cannot keep the lock: "]);
    nodes.unwatch();
    nodes.repair();
    assert_eq!(NODES.map(|node| names(&nodes, node)), [vec!["app:1".to_owned()], Vec::new()]);
    push(&nodes, &file, "").await.code(0).says(&["node1: unchanged\n", "node2: pushed"]);
    assert_given_back(&nodes, "after the pushes");
}
