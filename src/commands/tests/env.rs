//! `env create`, `env list` and `env rm`.

use super::*;
use crate::transport::node::scripted::Fault;
use std::fs;

/// The inventory of these nodes, whose ranks are processes of the login.
fn of_processes(nodes: &Nodes) -> Inventory {
    let mut text = "[cluster]\nname = \"lab\"\nruntime = \"process\"\ncommand_timeout_s = 30\n".to_owned();
    nodes.names().iter().for_each(|name| text.push_str(&format!("\n[[node]]\nhost = \"{name}\"\n")));
    Inventory::parse(&text, Path::new("inventory.toml")).unwrap()
}

/// Runs hvdctl with this inventory.
async fn env(nodes: &Nodes, line: &str) -> Done {
    let (_nobody, signals) = mpsc::unbounded_channel();
    hvdctl_on(nodes, of_processes(nodes), line, signals).await
}

/// A file that says what is installed.
fn file(name: &str, text: &str) -> (tempfile::TempDir, String) {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join(name);
    fs::write(&path, text).unwrap();
    let shown = path.display().to_string();
    (dir, shown)
}

fn requirements() -> (tempfile::TempDir, String) {
    file("requirements.txt", "six\n")
}

async fn create(nodes: &Nodes, options: &str, path: &str) -> Done {
    env(nodes, format!("{options} env create {path}").trim_start()).await
}

#[tokio::test(start_paused = true)]
async fn every_node_gets_the_same_virtualenv_once() {
    let (nodes, (_dir, path)) = (Nodes::new(&NODES), requirements());
    env(&nodes, "env list").await.code(0).says(&["there are no virtualenvs\n"]);
    create(&nodes, "", &path).await.code(0).says(&[
        "node[1-2] (2): made: Python 3.11.2, 1 package, 2.0 KiB (uv 0.9.1)\n",
        "add to [defaults] in the inventory: activate = [\"source /var/tmp/hvdctl-lab/env/default/bin/activate\"]\n",
    ]);
    let document = create(&nodes, "--json", &path).await.code(0).document();
    assert_eq!(document["directory"], "/var/tmp/hvdctl-lab/env/default");
    assert_eq!((&document["nodes"][1]["changed"], &document["nodes"][1]["packages"]), (&false.into(), &1.into()));
    assert_eq!(nodes.count("env/create.sh"), [1, 1], "they have it already");
    // another Python is another virtualenv
    create(&nodes, "", &format!("{path} --python 3.11")).await.code(0).says(&["node[1-2] (2): made: "]);
    env(&nodes, "env list").await.code(0).says(&["default  node[1-2] (2)  complete  3.11.2"]);
    create(&nodes, "--on node2", &format!("{path} --name gpu")).await.code(0);
    let done = env(&nodes, "env list").await;
    done.code(1).says(&[
        "gpu      node1          missing",
        "gpu      node2          complete",
        "hint: hvdctl env create FILE",
    ]);
    env(&nodes, "--json env list").await.code(1);
    env(&nodes, "env rm gpu").await.code(0).says(&["node1: nothing to remove\n", "node2: removed\n"]);
    env(&nodes, "env rm gpu").await.code(1).complains(&["no selected node has a virtualenv gpu", "hvdctl env list"]);
    env(&nodes, "env rm ../x").await.code(2).complains(&["../x is not a valid name for a virtualenv"]);
    assert_given_back(&nodes, "after all");
}

#[tokio::test(start_paused = true)]
async fn nodes_that_differ_are_named() {
    let (nodes, (_dir, path)) = (Nodes::new(&NODES), requirements());
    let python = |node: &str, version: &str| {
        nodes.edit(node, |state| state.envs.tools = format!("python {version} /usr/bin/python3\n"));
    };
    python("node2", "3.12.1");
    create(&nodes, "", &path).await.code(1).complains(&[
        "different versions of Python: 3.11 on node1, 3.12 on node2\nnothing was changed\n",
        "--python 3.11",
    ]);
    assert_eq!(nodes.count("env/create.sh"), [0, 0]);
    python("node2", "3.11.9");
    nodes.edit("node2", |state| state.envs.packages = "six 1.16.0\n".into());
    let done = create(&nodes, "", &path).await;
    done.code(1).says(&["differs: six: 1.17.0 on node1, 1.16.0 on node2\n", "hint: pin the versions"]);
    create(&nodes, "--json", &path).await.code(1);
}

#[tokio::test(start_paused = true)]
async fn uv_installs_the_python_that_the_other_nodes_have() {
    let (nodes, (_dir, path)) = (Nodes::new(&NODES), requirements());
    nodes.edit("node2", |state| state.envs.tools = "uv 0.9.1\n".into());
    let document = create(&nodes, "--json", &path).await.code(0).document();
    assert_eq!(document["nodes"][1]["python"], "3.11.1");
    // where there is none, each uv has a latest one
    nodes.edit("node1", |state| state.envs.tools = "uv 0.9.1\n".into());
    nodes.edit("node2", |state| state.envs.latest = "3.12.9".into());
    let done = create(&nodes, "", &format!("{path} --name other")).await;
    done.code(1).says(&["differs: Python: 3.13 on node1, 3.12 on node2\n", "hint: name a version for all nodes"]);
}

#[tokio::test(start_paused = true)]
async fn a_node_that_cannot_have_it_stops_no_other() {
    let (nodes, (_dir, path)) = (Nodes::new(&NODES), requirements());
    nodes.edit("node2", |state| state.envs.tools.clear());
    let done = create(&nodes, "", &path).await;
    done.code(3)
        .says(&["node1: made"])
        .complains(&["node2: cannot create the virtualenv: the user's PATH there has neither"]);
    nodes.edit("node2", |state| state.envs = Default::default());
    for (words, hint) in [
        ("ERROR: No matching distribution found for sixx", "hint: check the names and versions in the file"),
        ("error: Failed to write: No space left on device (os error 28)", "hint: free space in /var/tmp/hvdctl-lab"),
        ("odd words", "odd words"),
    ] {
        nodes.edit("node2", |state| state.envs.failure = Some(words.into()));
        let done = create(&nodes, "", &path).await;
        let named = format!("node2: cannot create the virtualenv default: {words}\n");
        done.code(3).says(&["node1: unchanged"]).complains(&[&named, hint]);
    }
    nodes.edit("node2", |state| state.envs.failure = None);
    nodes.fault("node2", "env/create.sh", Fault::Fails("mktemp: failed: Read-only file system".into()));
    create(&nodes, "", &path).await.code(3).complains(&["node2: cannot create the virtualenv default: mktemp: failed"]);
    nodes.repair();
    nodes.fault("node2", "env/create.sh", Fault::Silent);
    let done = create(&nodes, "", &format!("{path} --timeout 5m")).await;
    done.code(3).complains(&[
        "node2: cannot create the virtualenv default: pip or uv did not finish within 5m00s",
        "--timeout",
    ]);
    nodes.repair();
    create(&nodes, "", &path).await.code(0).says(&["node1: unchanged", "node2: made"]);
    nodes.edit("node1", |state| state.envs.used = Some("a process runs from it (pid 7)".into()));
    let done = env(&nodes, "env rm default").await;
    done.code(3)
        .complains(&["node1: cannot remove the virtualenv default: a process runs from it (pid 7)\n", "hvdctl stop"]);
}

#[tokio::test(start_paused = true)]
async fn a_signal_ends_it_on_the_nodes() {
    let (nodes, (_dir, path)) = (Nodes::new(&NODES), requirements());
    let (send, signals) = mpsc::unbounded_channel();
    nodes.fault("node2", "env/create.sh", Fault::Silent);
    let sender = std::sync::Mutex::new(Some(send));
    nodes.watch(move |moment| {
        if moment.call == "env/create.sh" && moment.node == "node2" {
            let _ = sender.lock().unwrap().as_ref().map(|send| send.send(2));
        }
    });
    let done = hvdctl_on(&nodes, of_processes(&nodes), &format!("env create {path}"), signals).await;
    done.code(130).complains(&["node[1-2]: incomplete; done so far: started to create the virtualenv default"]);
    nodes.unwatch();
    nodes.repair();
    assert_given_back(&nodes, "after the signal");
    create(&nodes, "", &path).await.code(0);
}

#[tokio::test(start_paused = true)]
async fn wheels_are_sent_once() {
    let (nodes, (dir, path)) = (Nodes::new(&NODES), requirements());
    let wheels = dir.path().join("wheels");
    fs::create_dir(&wheels).unwrap();
    let options = format!("{path} --wheels {}", wheels.display());
    create(&nodes, "", &options).await.code(2).complains(&["has no wheels (*.whl)"]);
    fs::write(wheels.join("six-1.17.0-py3-none-any.whl"), "six").unwrap();
    create(&nodes, "", &options).await.code(0);
    assert!(nodes.state("node2").envs.wheels["default"].first().unwrap().ends_with("/six-1.17.0-py3-none-any.whl"));
    fs::write(wheels.join("idna-3.4-py3-none-any.whl"), "idna").unwrap();
    create(&nodes, "", &options).await.code(0).says(&["made"]);
    create(&nodes, "", &options).await.code(0).says(&["unchanged"]);
    assert_eq!(nodes.state("node2").envs.wheels["default"].len(), 2);
    assert_eq!(nodes.count("env/wheels.sh"), [2, 2]);
    fs::write(wheels.join("tqdm-4-py3-none-any.whl"), "tqdm").unwrap();
    nodes.fault("node2", "env/wheels.sh", Fault::Fails("tar: x: Cannot write: No space left on device".into()));
    create(&nodes, "", &options)
        .await
        .code(3)
        .complains(&["node2: cannot send the wheels: tar", "free space in /var/tmp"]);
}

#[tokio::test(start_paused = true)]
async fn what_cannot_be_installed_is_refused_before_a_node_is_asked() {
    let nodes = Nodes::new(&NODES);
    for (name, text, words) in [
        ("requirements.txt", "-e .\n", "line 1: `-e .` is a file or directory of this machine"),
        ("pylock.toml", "x = 1\n", "it has no lock-version"),
        ("uv.lock", "version = 1\n", "there is no pyproject.toml next to it"),
        ("setup.py", "", "expected pylock.toml, uv.lock, or a requirements file (.txt)"),
    ] {
        let (_dir, path) = file(name, text);
        create(&nodes, "", &path).await.code(2).complains(&[words]);
    }
    create(&nodes, "", "/no/requirements.txt").await.code(2).complains(&["cannot read /no/requirements.txt"]);
    let (_dir, path) = requirements();
    create(&nodes, "", &format!("{path} --name a/b"))
        .await
        .code(2)
        .complains(&["a/b is not a valid name for a virtualenv"]);
    for line in ["env create", "env list", "env rm default"] {
        let done = hvdctl(&nodes, line).await;
        done.code(2).complains(&["the inventory has runtime = \"container\"", "hvdctl image build"]);
    }
    assert_eq!(nodes.count("connect"), [0, 0]);
}

#[tokio::test(start_paused = true)]
async fn the_line_for_the_inventory_is_shown_until_it_is_there() {
    let (nodes, (_dir, path)) = (Nodes::new(&NODES), requirements());
    let mut inventory = of_processes(&nodes);
    for node in &mut inventory.nodes {
        let line = "source /var/tmp/hvdctl-lab/env/default/bin/activate".to_owned();
        node.container.activate = vec!["module load CUDA".into(), line];
    }
    let (_nobody, signals) = mpsc::unbounded_channel();
    let done = hvdctl_on(&nodes, inventory, &format!("env create {path}"), signals).await;
    assert!(!done.code(0).out.contains("activate"), "{done}");
    assert_eq!(nodes.state("node1").envs.activated, "module load CUDA");
}
