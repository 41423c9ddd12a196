//! The image of a project's setup: built once, used by `train`, and nothing left of a build that failed or was
//! interrupted.

use super::signals::signalled;
use super::*;
use crate::transport::node::scripted::{Fault, Play};

const SETUP: &str = "setup = ['pip install -r requirements.txt']\nsetup_files = ['requirements.txt']\n";

/// A project with this `hvdctl.toml`.
fn project(file: &str) -> tempfile::TempDir {
    let project = tempfile::Builder::new().prefix("digits").tempdir().unwrap();
    for (name, text) in [("hvdctl.toml", file), ("requirements.txt", "tiny==1\n"), ("train.py", "")] {
        std::fs::write(project.path().join(name), text).unwrap();
    }
    project
}

/// The images of setups on a node.
fn built(nodes: &Nodes, node: &str) -> Vec<String> {
    nodes.state(node).images.into_iter().filter(|image| image.starts_with("hvdctl/")).collect()
}

#[track_caller]
fn assert_nothing_is_left(nodes: &Nodes, when: &str) {
    for node in NODES {
        let ps = nodes.state(node).ps();
        assert!(!ps.iter().any(|container| container.contains("setup")), "{node} {when}: {ps:?}");
    }
    assert_given_back(nodes, when);
}

#[tokio::test(start_paused = true)]
async fn an_image_is_built_once_for_what_makes_it() {
    let (nodes, project) = (two_up().await, project(SETUP));
    let line = format!("--on node1 image build {}", project.path().display());
    let done = hvdctl(&nodes, &line).await;
    let image = built(&nodes, "node1").concat();
    done.code(0).says(&[&format!("{image}: built\n")]);
    let scripts = nodes.state("node1").scripts;
    assert!(scripts.len() == 3 && scripts[1].contains("pip install -r requirements.txt"), "{scripts:?}");
    assert_nothing_is_left(&nodes, "after the build");
    hvdctl(&nodes, &line).await.code(0).says(&[&format!("{image}: nothing to do\n")]);
    assert_eq!(nodes.state("node1").scripts.len(), 3);

    std::fs::write(project.path().join("requirements.txt"), "tiny==2\n").unwrap();
    hvdctl(&nodes, &line).await.code(0).says(&[": built\n"]);
    assert_eq!(built(&nodes, "node1").len(), 2, "the files are a part of what makes it");
}

#[tokio::test(start_paused = true)]
async fn the_files_below_a_directory_are_a_part_of_what_makes_the_image() {
    let nodes = two_up().await;
    let of_package = |steps: &str, files: &str| {
        let project = project(&format!("setup = ['{steps}']\nsetup_files = {files}\n"));
        std::fs::create_dir_all(project.path().join("mylib/__pycache__")).unwrap();
        std::fs::write(project.path().join("mylib/pyproject.toml"), "[project]").unwrap();
        project
    };
    let line = |project: &tempfile::TempDir| format!("--on node1 image build {}", project.path().display());
    let project = of_package("pip install ./mylib", "['requirements.txt', 'mylib']");
    let code = project.path().join("mylib/code.py");
    for (text, is_built) in [("a", true), ("b", true), ("a", false)] {
        std::fs::write(&code, text).unwrap();
        std::fs::write(project.path().join("mylib/__pycache__/code.pyc"), format!("{text}{is_built}")).unwrap();
        let done = hvdctl(&nodes, &line(&project)).await;
        done.code(0).says(&[if is_built { ": built" } else { ": nothing to do" }]);
    }
    std::fs::set_permissions(&code, std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
    let done = hvdctl(&nodes, &line(&project)).await;
    done.code(0).says(&[": built"]);
    let otherwise = "setup = ['pip install ./mylib']\nsetup_files = ['mylib/*', 'requirements.txt', './mylib/']\n";
    std::fs::write(project.path().join("hvdctl.toml"), otherwise).unwrap();
    hvdctl(&nodes, &line(&project)).await.code(0).says(&[": nothing to do"]);

    let editable = of_package("pip install -e ./mylib", "['mylib']");
    hvdctl(&nodes, &line(&editable))
        .await
        .code(0)
        .complains(&["warning: setup: pip install -e ./mylib", "leave out -e"]);
}

#[tokio::test(start_paused = true)]
async fn a_job_of_the_project_has_its_image() {
    let (nodes, project) = (two_up().await, project(SETUP));
    let job = || Play::default().frame(0, "node1", "0 s ").frame(0, "node1", "0 x 0").ends(1, 0);
    let line = format!("--on node1 train {} -np 1", project.path().display());
    for (options, is_built) in [(" --no-setup", false), ("", true)] {
        nodes.play(job());
        hvdctl(&nodes, &format!("{line}{options}")).await.code(0);
        assert_eq!(built(&nodes, "node1").len(), usize::from(is_built), "{options}");
        let image = built(&nodes, "node1").pop().unwrap_or_else(|| "test/horovod:1".to_owned());
        assert_eq!(nodes.state("node1").last_image, image, "{options}");
    }
    hvdctl(&nodes, &format!("{line} --dry-run")).await.code(0).complains(&["the image of the project's setup"]);
}

#[tokio::test(start_paused = true)]
async fn a_program_that_cannot_start_is_refused_before_the_image_is_built() {
    let (nodes, project) = (two_up().await, project(SETUP));
    std::fs::write(project.path().join("run.sh"), "#!/bin/sh\n").unwrap();
    let line = format!("--on node1 train {} -np 1 -- ./run.sh", project.path().display());
    hvdctl(&nodes, &line).await.code(2).complains(&["./run.sh is not executable", "hint: chmod +x ./run.sh"]);
    assert!(built(&nodes, "node1").is_empty());
    assert_nothing_is_left(&nodes, "after it was refused");
}

#[tokio::test(start_paused = true)]
async fn a_step_that_fails_is_named_with_its_last_lines() {
    let (nodes, project) = (two_up().await, project(SETUP));
    nodes.fault("node1", "docker exec", Fault::Fails("ERROR: No matching distribution found for tiny==1".into()));
    let line = format!("--on node1 image build {}", project.path().display());
    let done = hvdctl(&nodes, &line).await;
    let words =
        ["node1: cannot build the image hvdctl/digits", "step 1 of 2 (OpenSSH) exited with code 1", "No matching"];
    done.code(1).complains(&words).complains(&["correct `setup` in hvdctl.toml"]);
    assert_nothing_is_left(&nodes, "after the failure");
    assert!(built(&nodes, "node1").is_empty());
    for call in ["docker create hvdctl-setup", "docker cp", "docker commit"] {
        nodes.repair();
        nodes.fault("node1", call, Fault::Fails("no space left on device".into()));
        hvdctl(&nodes, &line).await.code(1).complains(&["no space left on device", "hint: free space on that node"]);
        assert_nothing_is_left(&nodes, call);
    }
}

#[tokio::test(start_paused = true)]
async fn a_signal_at_every_moment_of_a_build_leaves_no_container() {
    let (before, project) = (two_up().await, with_dockerfile(&format!("build = 'Dockerfile'\n{SETUP}")));
    let line = format!("--on node1 image build {}", project.path().display());
    for number in 0.. {
        let nodes = before.copy();
        let (done, at) = signalled(&nodes, &line, number, 1).await;
        let when = format!("after a signal at {at:?}");
        assert_nothing_is_left(&nodes, &when);
        if at.is_none() {
            assert!(number > 15, "{number} moments");
            return;
        }
        assert!(matches!(done.code, 130 | 0), "{when}: {done}");
        hvdctl(&nodes, &line).await.code(0);
    }
}

#[tokio::test(start_paused = true)]
async fn what_cannot_be_built_is_an_error_before_anything_is_done() {
    let nodes = two_up().await;
    for (file, words) in [
        ("", "has no setup"),
        ("setup = ['x']\nsetup_files = ['missing']\n", "cannot read missing"),
        ("setup = ['x']\nsetup_files = ['*.whl']\n", "no file of the project matches '*.whl'"),
        ("setup = ['']\n", "is not a command"),
        ("setup_files = ['train.py']\n", "setup_files without setup"),
    ] {
        let project = project(file);
        let done = hvdctl(&nodes, &format!("image build {}", project.path().display())).await;
        done.code(2).complains(&[words]);
    }
    assert!(!nodes.calls("node1").iter().any(|call| call.contains("setup")));
    nodes.edit("node1", |state| state.images.clear());
    let project = project(SETUP);
    let done = hvdctl(&nodes, &format!("image build {}", project.path().display())).await;
    done.code(1).complains(&["node1: cannot build on the cluster's image: it is not on this node", "hvdctl up"]);
}

#[tokio::test(start_paused = true)]
async fn the_master_builds_also_if_it_is_not_selected() {
    let nodes = Nodes::new(&["node1", "node2", "node3"]);
    hvdctl(&nodes, "up").await.code(0);
    let project = project(SETUP);
    // no archive is there that could be pushed to the others
    let done = hvdctl(&nodes, &format!("--on node[2-3] image build {}", project.path().display())).await;
    assert_eq!(built(&nodes, "node1").len(), 1, "{done}");
    let commits = |node: &str| nodes.calls(node).iter().filter(|call| call.starts_with("docker commit")).count();
    assert_eq!(["node1", "node2", "node3"].map(commits), [1, 0, 0]);
}

#[tokio::test(start_paused = true)]
async fn the_image_is_that_of_the_node_that_builds_and_of_no_other() {
    let project = project(SETUP);
    let line = format!("image build {}", project.path().display());
    for master_has_it in [false, true] {
        let nodes = two_up().await;
        hvdctl(&nodes, &format!("--on node1 {line}")).await.code(0);
        let image = built(&nodes, "node1").concat();
        // another content has its name on the worker
        nodes.edit("node2", |state| {
            (state.images, state.are_old) = (vec![state.images[0].clone(), image.clone()], true)
        });
        if !master_has_it {
            nodes.edit("node1", |state| state.images.retain(|other| *other != image));
        }
        let before = nodes.count("docker export");
        let done = hvdctl(&nodes, &line).await;
        done.complains(&[&format!("node2: another image was named {image}; it is replaced by that of node1")]);
        assert_eq!((before, nodes.count("docker export")), (vec![0, 0], vec![1, 0]), "{done}");
        let commits = nodes.calls("node1").iter().filter(|call| call.starts_with("docker commit")).count();
        assert_eq!(commits, if master_has_it { 1 } else { 2 }, "{done}");
    }
}

#[tokio::test(start_paused = true)]
async fn what_a_project_calls_its_files_is_opened_only_if_it_is_a_file_of_it() {
    let nodes = two_up().await;
    for (file, words) in [
        ("build = '/dev/zero'\n", "hvdctl.toml: build: the project has no file /dev/zero"),
        ("build = '../Dockerfile'\n", "the project has no file ../Dockerfile"),
        ("build = 'link'\n", "the project has no file link"),
        ("build = 'pipe'\n", "the project has no file pipe"),
        ("setup = ['x']\nsetup_files = ['/dev/zero']\n", "is not the path of a file in the project"),
        ("setup = ['x']\nsetup_files = ['pipe']\n", "pipe is not a file in the project"),
        ("setup = ['x']\nsetup_files = ['large']\n", "cannot read large: it is larger than 524288 KiB"),
        ("build = 'large'\n", "hvdctl.toml: build: cannot read large: it is larger than 1024 KiB"),
    ] {
        let project = project(file);
        let at = |name: &str| project.path().join(name);
        std::os::unix::fs::symlink("/dev/zero", at("link")).unwrap();
        assert!(std::process::Command::new("mkfifo").arg(at("pipe")).status().unwrap().success());
        let size = if file.starts_with("build") { 1 << 21 } else { (512 << 20) + 1 };
        std::fs::File::create(at("large")).unwrap().set_len(size).unwrap();
        hvdctl(&nodes, &format!("image build {}", project.path().display())).await.code(2).complains(&[words]);
    }
    for replaced in ["link", "pipe"] {
        let project = project("");
        std::fs::remove_file(project.path().join("hvdctl.toml")).unwrap();
        match replaced {
            "link" => std::os::unix::fs::symlink("/dev/zero", project.path().join("hvdctl.toml")).unwrap(),
            _ => drop(std::process::Command::new("mkfifo").arg(project.path().join("hvdctl.toml")).status().unwrap()),
        }
        let done = hvdctl(&nodes, &format!("image build {}", project.path().display())).await;
        done.code(2).complains(&["hvdctl.toml: it is not a file"]);
    }
}

#[tokio::test(start_paused = true)]
async fn up_leaves_the_image_of_a_running_job_alone() {
    let nodes = two_up().await;
    nodes.edit("node2", |state| {
        let worker = &mut state.containers[0];
        worker.image = "of a setup".into();
        worker.labels.values_mut().for_each(|label| *label = label.replace("test/horovod:1", "hvdctl/digits:1f0c"));
        worker.labels.insert("hvdctl.spec".into(), "another".into());
    });
    let up = async || hvdctl(&nodes, "up").await;
    let job = [("hvdctl.cluster", "lab"), ("hvdctl.role", "master"), ("hvdctl.job", "run-1")];
    nodes.edit("node1", |state| state.add("hmaster", &job));
    nodes.edit("node2", |state| {
        let record = r#"{"id":"run-1","cluster":"lab","name":"n","operator":"o","created":1.0}"#;
        state.facts = format!("open run-1 {record}\n");
    });
    up().await.code(0).says(&["nothing to do"]);
    let mut inventory = inventory(&nodes);
    inventory.cluster.pull = crate::inventory::Pull::Always;
    NODES.iter().for_each(|node| nodes.edit(node, |state| state.has_registry = true));
    hvdctl_on(&nodes, inventory, "up", mpsc::unbounded_channel().1).await.code(0).says(&["nothing to do"]);
    nodes.edit("node2", |state| state.containers[0].state = "exited");
    up().await.code(0).says(&["node2: started hworker again (stopped)"]);
    // the job has ended
    nodes.edit("node1", |state| state.containers.retain(|container| container.name != "hmaster"));
    nodes.edit("node2", |state| state.facts.clear());
    up().await.code(0).says(&["node2: recreated hworker (image)"]);
}

const DOCKERFILE: &str = "FROM test/horovod:1\nCOPY requirements.txt /r\nRUN pip install x\n";

/// A project whose image a Dockerfile makes.
fn with_dockerfile(file: &str) -> tempfile::TempDir {
    let project = project(file);
    std::fs::write(project.path().join("Dockerfile"), DOCKERFILE).unwrap();
    project
}

#[tokio::test(start_paused = true)]
async fn a_dockerfile_makes_the_image_before_the_setup() {
    let (nodes, project) = (two_up().await, with_dockerfile(&format!("build = 'Dockerfile'\n{SETUP}")));
    let line = format!("--on node1 image build {}", project.path().display());
    let built_now = async || {
        let done = hvdctl(&nodes, &line).await;
        let is_new = done.code(0).out.ends_with(": built\n");
        is_new.then(|| nodes.state("node1").builds.pop().unwrap())
    };
    let asked = built_now().await.unwrap();
    let (query, names) = asked.split_once(' ').unwrap();
    assert!(query.contains("dockerfile=Dockerfile") && query.contains("networkmode=host"), "{query}");
    assert_eq!(names, "Dockerfile requirements.txt", "only what is copied");
    let state = nodes.state("node1");
    assert_eq!((state.last_image.as_str(), state.scripts.len()), ("sha256:b01d", 3), "the setup is added to it");
    assert_nothing_is_left(&nodes, "after the build");
    assert_eq!(built_now().await, None);
    std::fs::write(project.path().join("train.py"), "changed").unwrap();
    assert_eq!(built_now().await, None, "a program that is uploaded makes no new image");
    std::fs::write(project.path().join("requirements.txt"), "tiny==2\n").unwrap();
    assert!(built_now().await.is_some());
    // of all that it copies what .dockerignore leaves
    std::fs::write(project.path().join("Dockerfile"), "FROM scratch\nCOPY . /p\n").unwrap();
    std::fs::write(project.path().join(".dockerignore"), "*.txt\nhvdctl.toml\n").unwrap();
    assert!(built_now().await.unwrap().ends_with(" .dockerignore Dockerfile train.py"));
}

#[tokio::test(start_paused = true)]
async fn the_builder_gets_proxies_and_no_other_variable() {
    let (nodes, project) = (two_up().await, with_dockerfile("build = './Dockerfile'\n"));
    let mut inventory = inventory(&nodes);
    let env = [("http_proxy", "http://p:1"), ("NO_PROXY", "x"), ("TOKEN", "hunter2")];
    inventory.nodes[0].container.env = env.map(|(name, value)| (name.into(), value.into())).into();
    let line = format!("--on node1 image build {}", project.path().display());
    hvdctl_on(&nodes, inventory, &line, mpsc::unbounded_channel().1).await.code(0);
    let query = nodes.state("node1").builds.concat();
    assert!(query.contains("http_proxy") && query.contains("NO_PROXY") && !query.contains("hunter2"), "{query}");
}

#[tokio::test(start_paused = true)]
async fn an_image_that_a_dockerfile_builds_on_is_pulled_first() {
    let (nodes, project) = (two_up().await, with_dockerfile("build = 'Dockerfile'\n"));
    let line = format!("--on node1 image build {}", project.path().display());
    std::fs::write(project.path().join("Dockerfile"), "FROM r.example/base:1\n").unwrap();
    hvdctl(&nodes, &line)
        .await
        .code(1)
        .complains(&["node1: cannot pull the image r.example/base:1", "`docker login r.example`"]);
    nodes.edit("node1", |state| state.has_registry = true);
    hvdctl(&nodes, &line).await.code(0).says(&[": built\n"]);
    hvdctl(&nodes, &line).await.code(0).says(&[": nothing to do\n"]);
    assert_eq!((nodes.count("docker pull"), nodes.count("docker build")), (vec![2, 0], vec![1, 0]));
}

#[tokio::test(start_paused = true)]
async fn an_instruction_that_fails_is_named_and_leaves_nothing() {
    let (nodes, project) = (two_up().await, with_dockerfile("build = 'Dockerfile'\n"));
    let line = format!("--on node1 image build {}", project.path().display());
    nodes.fault("node1", "docker build", Fault::Fails("ERROR: No matching distribution".into()));
    let words = [
        "node1: cannot build the image hvdctl/digits",
        "Dockerfile, step 2 of 2 (RUN pip install x): The command",
        "returned a non-zero code: 7\n        ERROR: No matching distribution",
        "hint: correct the Dockerfile",
    ];
    hvdctl(&nodes, &line).await.code(1).complains(&words);
    nodes.repair();
    nodes.fault("node1", "docker build", Fault::Silent);
    let done = hvdctl(&nodes, &format!("{line} --timeout 5m")).await;
    done.code(1).complains(&["sending the context did not end within 5m", "hint: hvdctl image build --timeout"]);
    nodes.repair();
    std::fs::write(project.path().join("hvdctl.toml"), "build = 'other'\n").unwrap();
    hvdctl(&nodes, &line).await.code(2).complains(&["the project has no file other"]);
    assert!(built(&nodes, "node1").is_empty());
    assert_nothing_is_left(&nodes, "after the failures");
}

#[tokio::test(start_paused = true)]
async fn the_file_with_variables_is_read_once_for_build_and_job() {
    let (nodes, project) = (two_up().await, project(SETUP));
    let file = project.path().join("variables");
    let mut shell = std::process::Command::new("mkfifo");
    assert!(shell.arg(&file).status().unwrap().success());
    let mut inventory = inventory(&nodes);
    inventory.nodes[0].container.env_file = Some(file.clone());
    // one that reads it a second time would wait for ever
    std::thread::spawn(move || std::fs::write(file, "A=1\n").unwrap());
    nodes.play(Play::default().frame(0, "node1", "0 s ").frame(0, "node1", "0 x 0").ends(1, 0));
    let line = format!("--on node1 train {} -np 1", project.path().display());
    hvdctl_on(&nodes, inventory, &line, mpsc::unbounded_channel().1).await.code(0);
}

#[tokio::test(start_paused = true)]
async fn what_a_killed_build_has_left_is_removed_by_the_next_command_that_changes_the_node() {
    let nodes = two_up().await;
    let project = project("");
    let left = |node: &str| {
        nodes
            .edit(node, |state| state.add("hvdctl-setup-lab-1", &[("hvdctl.cluster", "lab"), ("hvdctl.role", "setup")]))
    };
    NODES.iter().for_each(|node| left(node));
    let words = |verb| format!("node[1-2] (2): {verb} hvdctl-setup-lab-1 (its build was interrupted)");
    hvdctl(&nodes, "up --dry-run").await.code(0).says(&[&words("remove")]);
    hvdctl(&nodes, "up").await.code(0).says(&[&words("removed")]);
    assert_nothing_is_left(&nodes, "after up");
    left("node1");
    nodes.play(Play::default().frame(0, "node1", "0 s ").frame(0, "node1", "0 x 0").ends(1, 0));
    hvdctl(&nodes, &format!("--on node1 train {} -np 1", project.path().display())).await.code(0);
    assert_nothing_is_left(&nodes, "after a job");
}
