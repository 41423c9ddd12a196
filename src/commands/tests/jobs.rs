//! Jobs from the command line to the exit code: started, followed, failed, stopped, attached to, and lost.

use super::signals::signalled;
use super::*;
use crate::transport::node::scripted::{CONNECT, Fault, Play};
use std::os::unix::fs::PermissionsExt as _;
use tokio::time::sleep;

/// A job of two ranks, one on each node, that both end with these codes after 5 s.
pub(super) fn ends_with(codes: [i32; 2]) -> Play {
    let [first, second] = codes;
    let asked = |other: i32| if other == 0 { "" } else { " asked" };
    // a rank that fails first is not asked to end
    let code = |own: i32, marks: &str| if own == 143 { format!("{own}{marks}") } else { own.to_string() };
    Play::default()
        .frame(0, "node1", "0 s ")
        .frame(0, "node2", "1 s ")
        .frame(1000, "node1", "0 o step 1")
        .frame(1000, "node2", "1 e step 1")
        .frame(5000, "node1", &format!("0 x {}", code(first, asked(second))))
        .frame(5000, "node2", &format!("1 x {}", code(second, asked(first))))
        .ends(5000, i64::from(first.max(second).min(1)))
}

/// One slot on each of two nodes that are up.
pub(super) async fn up_with(play: Play) -> Nodes {
    let nodes = two_up().await;
    nodes.play(play);
    nodes
}

/// Both nodes in turn, a rank on each.
pub(super) const RUN: &str = "run -np 2 --map-by node -- true";

/// Asserts that nothing of a job is left on the nodes, and nothing held.
#[track_caller]
fn assert_over(nodes: &Nodes, when: &str) {
    for node in NODES {
        let state = nodes.state(node);
        assert_eq!(state.container("hworker").map(|worker| worker.state), Some("running"), "{node} {when}");
        assert!(!state.ps().iter().any(|c| c == "hmaster running"), "{node} {when}: {:?}", state.ps());
        let open = state.directories.values().any(|directory| directory.files.contains_key("env.json"));
        assert!(!open, "{node} {when}: {:?}", state.directories);
    }
    assert_given_back(nodes, when);
}

#[tokio::test(start_paused = true)]
async fn a_job_is_followed_to_its_end() {
    let nodes = up_with(ends_with([0, 0])).await;
    let done = hvdctl(&nodes, RUN).await;
    done.code(0);
    assert_eq!(done.ranks.lines().collect::<std::collections::BTreeSet<_>>(), ["0 step 1", "1 step 1"].into());
    assert_over(&nodes, "after the job");
    hvdctl(&nodes, "jobs").await.code(0).says(&["succeeded", "node[1-2]"]);
    let job = hvdctl(&nodes, "jobs --json").await.document()["jobs"][0].clone();
    assert_eq!((&job["state"], &job["code"], &job["ranks"]), (&"succeeded".into(), &0.into(), &2.into()), "{job}");
    let log = hvdctl(&nodes, "logs").await;
    log.code(0);
    assert!(log.ranks.contains("0 step 1") && log.ranks.contains("1 step 1"), "{log}");
    hvdctl(&nodes, "jobs prune").await.code(0).says(&["removed 1 job"]);
    hvdctl(&nodes, "jobs").await.code(0).says(&["no jobs"]);
}

#[tokio::test(start_paused = true)]
async fn the_rank_that_failed_is_named_and_gives_its_code() {
    let nodes = up_with(ends_with([143, 7])).await;
    let done = hvdctl(&nodes, RUN).await;
    done.code(7).complains(&["warning: rank 1 on node2 ended with exit code 7; job "]);
    assert_over(&nodes, "after the failure");
    hvdctl(&nodes, "jobs").await.code(0).says(&["failed", "rank 1 on node2 ended with exit code 7"]);
}

/// A project with these files, and the path of it.
fn project(files: &[(&str, u32, &str)]) -> (tempfile::TempDir, String) {
    let dir = tempfile::tempdir().unwrap();
    for (name, mode, text) in files {
        let file = dir.path().join(name);
        std::fs::create_dir_all(file.parent().unwrap()).unwrap();
        std::fs::write(&file, text).unwrap();
        std::fs::set_permissions(&file, std::fs::Permissions::from_mode(*mode)).unwrap();
    }
    let path = dir.path().display().to_string();
    (dir, path)
}

#[tokio::test(start_paused = true)]
async fn a_script_that_linux_cannot_start_is_refused_before_the_start() {
    let nodes = two_up().await;
    let (_dir, path) = project(&[("run.sh", 0o644, "#!/bin/sh\r\n"), ("dir/train.sh", 0o755, "#!/bin/sh\r\n")]);
    std::os::unix::fs::symlink("dir/train.sh", format!("{path}/link.sh")).unwrap();
    let train = async |command| hvdctl(&nodes, &format!("train {path} -np 2 --map-by node -- {command}")).await;
    train("./run.sh").await.code(2).complains(&["./run.sh is not executable (mode 644)", "hint: chmod +x ./run.sh"]);
    train("./link.sh").await.code(2).complains(&["the first line of ./link.sh ends with a carriage return", "sed -i"]);
    for call in NODES.iter().flat_map(|node| nodes.calls(node)) {
        assert!(!call.starts_with("upload/") && !call.starts_with("job/start"), "{call}");
    }
    assert_over(&nodes, "after it was refused");
    nodes.play(ends_with([0, 0]));
    let done = train("sh ./run.sh").await;
    done.code(0).complains(&["./run.sh has Windows line ends", "sed -i 's/\\r$//' ./run.sh"]);
    assert_eq!(done.err.matches("Windows line ends").count(), 1, "{done}");
}

#[tokio::test(start_paused = true)]
async fn a_module_of_the_project_that_is_not_found_is_not_to_be_installed() {
    let failed = |line: &str| {
        let play = Play::default().frame(0, "node1", "0 s ").frame(0, "node2", "1 s ");
        let play = play.frame(1000, "node2", &format!("1 e {line}")).frame(2000, "node2", "1 x 1");
        play.frame(2000, "node1", "0 x 143 asked").ends(2000, 1)
    };
    let nodes = up_with(failed("ModuleNotFoundError: No module named 'src'")).await;
    let (_dir, path) = project(&[("src/net.py", 0o644, ""), ("scripts/train.py", 0o644, "from src import net\n")]);
    let train = format!("train {path} -np 2 --map-by node -- python scripts/train.py");
    let done = hvdctl(&nodes, &train).await;
    done.code(1).complains(&[
        "hint: src is in the project, but",
        "python -m scripts.train",
        "-e PYTHONPATH=/workspace",
    ]);
    assert!(!done.err.contains("pip install"), "{done}");
    hvdctl(&nodes, "attach").await.complains(&["hint: if src is in the project: -e PYTHONPATH=/workspace"]);
    nodes.play(failed("ModuleNotFoundError: No module named 'tiny'"));
    let done = hvdctl(&nodes, &train).await;
    done.code(1).complains(&["setup = [\"pip install PACKAGE\"] with the package that has tiny"]);
    // `run` has no project whose ignore files could leave the module out
    nodes.play(failed("ModuleNotFoundError: No module named 'src'"));
    hvdctl(&nodes, RUN).await.code(1).complains(&["hint: `run` does not upload a project; `hvdctl train` does"]);
    hvdctl(&nodes, "attach").await.complains(&["hint: `run` does not upload a project"]);
}

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

#[tokio::test(start_paused = true)]
async fn the_python_that_runs_in_place_of_the_default_one_is_noted_once() {
    let play = Play::default().frame(0, "node1", "0 p python3").frame(0, "node1", "0 s ").frame(0, "node2", "1 s ");
    let play = play.frame(500, "node1", "0 p python3").frame(1000, "node1", "0 x 0").frame(1000, "node2", "1 x 0");
    let nodes = up_with(play.ends(1000, 0)).await;
    let (_dir, path) = project(&[("train.py", 0o644, "")]);
    let noted = "there is no `python`: the ranks run `python3`";
    for line in [format!("train {path} -np 2 --map-by node"), "logs".to_owned()] {
        let done = hvdctl(&nodes, &line).await;
        done.code(0);
        assert_eq!(done.err.matches(noted).count(), 1, "{done}");
    }
    let record = nodes.state("node1").directories.into_values().next().unwrap().files["job.json"].clone();
    assert!(record.contains("\"default_command\":true"), "{record}");
}

#[tokio::test(start_paused = true)]
async fn why_a_program_does_not_start_has_a_hint() {
    let reason =
        r#"1 b {"program": "./x", "error": "No such file or directory", "fault": "line_ends", "about": "/bin/bash"}"#;
    let play = Play::default().frame(0, "node1", "0 s ").frame(0, "node2", reason).frame(0, "node2", "1 x 127");
    let nodes = up_with(play.frame(100, "node1", "0 x 143 asked").ends(100, 127)).await;
    let done = hvdctl(&nodes, &RUN.replace("true", "./x")).await;
    done.code(127)
        .complains(&["rank 1 on node2: cannot start ./x: No such file or directory: its first line names /bin/bash\\r (Windows line ends)", "hint: sed -i 's/\\r$//' ./x removes"]);
}

#[tokio::test(start_paused = true)]
async fn an_mpirun_that_is_not_open_mpis_is_named() {
    let refused = "0 l [mpiexec@node1] match_arg (utils/args/args.c:163): unrecognized argument allow-run-as-root";
    let nodes = up_with(Play::default().frame(500, "node1", refused).ends(1000, 255)).await;
    let mpirun = RUN.replace("run ", "run --launcher mpirun ");
    let hint = "hint: install Open MPI in the image";
    nodes.fault("node1", "find program", Fault::Fails("MPICH\n".into()));
    let done = hvdctl(&nodes, &mpirun).await;
    done.code(125).complains(&["the first mpirun in PATH of the image test/horovod:1 is that of MPICH", hint]);
    assert_eq!(nodes.count("job/start.sh"), [0, 0], "{done}");
    nodes.repair();
    nodes.fault("node1", "find program", Fault::Fails("missing\n".into()));
    hvdctl(&nodes, &mpirun).await.code(125).complains(&["the image test/horovod:1 has no mpirun"]);
    // an image that no worker has yet
    nodes.repair();
    let done = hvdctl(&nodes, &mpirun).await;
    done.code(125).complains(&["not all ranks started (launcher: exit code 255)", "unrecognized argument", hint]);
    assert!(!done.err.contains("start_timeout_s"), "{done}");
}

#[tokio::test(start_paused = true)]
async fn variables_of_the_engine_are_not_those_of_a_job() {
    let nodes = two_up().await;
    let with = |variable: &str| RUN.replace("run ", &format!("run -e {variable} "));
    let done = hvdctl(&nodes, &with("NVIDIA_DRIVER_CAPABILITIES=all")).await;
    done.code(2)
        .complains(&["NVIDIA_DRIVER_CAPABILITIES cannot be set for a job", "set NVIDIA_DRIVER_CAPABILITIES in `env`"]);
    hvdctl(&nodes, &with("NVIDIA_VISIBLE_DEVICES=0")).await.code(2).complains(&["choose GPUs by `gpus`"]);
    assert_eq!(nodes.count("job/start.sh"), [0, 0], "{done}");
}

#[tokio::test(start_paused = true)]
async fn ranks_and_the_record_have_the_commit_of_the_project() {
    let nodes = up_with(ends_with([0, 0])).await;
    let (_dir, path) = project(&[("train.py", 0o644, "")]);
    let git = |arguments: &str| {
        let mut git = std::process::Command::new("git");
        git.args(["-C", &path, "-c", "user.name=a", "-c", "user.email=a@b"]).args(arguments.split(' '));
        let output = git.output().unwrap();
        assert!(output.status.success(), "{output:?}");
        String::from_utf8(output.stdout).unwrap().trim().to_owned()
    };
    let train = format!("train {path} -np 2 --map-by node");
    let variables = |node: &str| {
        // the job that runs is the one that has the file; two that start in the same second have no order
        let mut directories = nodes.state(node).directories.into_values();
        let env = directories.find_map(|directory| directory.files.get("env.json").cloned()).unwrap();
        let env: serde_json::Value = serde_json::from_str(&env).unwrap();
        (env["HVDCTL_GIT_COMMIT"].clone(), env["HVDCTL_GIT_DIRTY"].clone())
    };
    let job = async || hvdctl(&nodes, "jobs --json").await.document()["jobs"][0].clone();
    hvdctl(&nodes, &train).await.code(0);
    assert_eq!((&job().await["commit"], &job().await["dirty"]), (&serde_json::Value::Null, &serde_json::Value::Null));
    for command in ["init -q", "add .", "commit -q -m one"] {
        git(command);
    }
    let id = git("rev-parse HEAD");
    for (change, is_dirty) in [(None, false), (Some("new.py"), true)] {
        change.into_iter().for_each(|name| std::fs::write(format!("{path}/{name}"), "").unwrap());
        nodes.play(Play::default().frame(0, "node1", "0 s ").frame(0, "node2", "1 s "));
        hvdctl(&nodes, &train.replace("train ", "train --detach ")).await.code(0);
        let dirty = if is_dirty { "1" } else { "0" };
        for node in NODES {
            assert_eq!(variables(node), (id.as_str().into(), dirty.into()), "{node}");
        }
        let job = job().await;
        assert_eq!((&job["commit"], &job["dirty"]), (&id.as_str().into(), &is_dirty.into()));
        hvdctl(&nodes, "stop").await.code(0);
        hvdctl(&nodes, "-y jobs prune").await.code(0);
    }
}

#[tokio::test(start_paused = true)]
async fn a_launcher_that_starts_no_rank_is_the_cause() {
    let play = Play::default().frame(500, "node1", "0 l ORTE does not know how to route a message").ends(1000, 1);
    let nodes = up_with(play).await;
    let done = hvdctl(&nodes, RUN).await;
    done.code(125).complains(&["not all ranks started (launcher: exit code 1)", "ORTE does not know", "hvdctl verify"]);
    assert_over(&nodes, "after the failure");
}

#[tokio::test(start_paused = true)]
async fn a_supervisor_that_is_killed_leaves_a_job_that_is_lost_and_nothing_else() {
    let play = Play::default().frame(0, "node1", "0 s ").frame(0, "node2", "1 s ").killed(2000);
    let nodes = up_with(play).await;
    let done = hvdctl(&nodes, RUN).await;
    done.code(125)
        .complains(&["is lost: the job supervisor exited with code 137 without recording a result", "docker events"]);
    assert_over(&nodes, "after it was killed");
    hvdctl(&nodes, "jobs").await.code(0).says(&["lost"]);
    // its nodes are free
    nodes.play(ends_with([0, 0]));
    hvdctl(&nodes, RUN).await.code(0);
}

#[tokio::test(start_paused = true)]
async fn ranks_that_were_ended_because_their_launcher_was_killed_are_not_its_cause() {
    let nodes = Nodes::new(&["node1", "node2", "node3"]);
    hvdctl(&nodes, "up").await.code(0);
    nodes.play(Play::default().frame(0, "node2", "0 s ").frame(0, "node3", "1 s ").killed(2000));
    let done = hvdctl(&nodes, "--on node[2-3] run -np 2 --map-by node -- true").await;
    done.code(125).complains(&["is lost: the job supervisor exited with code 137 without recording a result"]);
}

#[tokio::test(start_paused = true)]
async fn a_detached_job_is_attached_to_and_refuses_others_meanwhile() {
    let nodes = up_with(ends_with([0, 0])).await;
    let done = hvdctl(&nodes, &RUN.replace("run ", "run --detach ")).await;
    let id = done.code(0).out.trim().to_owned();
    done.complains(&[&format!("hvdctl attach {id}")]);
    hvdctl(&nodes, "jobs --running").await.code(0).says(&[&id, "running"]);
    hvdctl(&nodes, RUN).await.code(125).complains(&[&format!("allocated exclusively to job {id}")]);
    hvdctl(&nodes, "up").await.code(0).says(&["nothing to do"]);
    let attached = hvdctl(&nodes, "attach").await;
    attached.code(0);
    assert!(attached.ranks.contains("1 step 1"), "from its beginning: {attached}");
    assert_over(&nodes, "after it was attached to");
    nodes.play(ends_with([0, 0]));
    hvdctl(&nodes, RUN).await.code(0);
}

#[tokio::test(start_paused = true)]
async fn the_worker_that_jobs_share_has_the_directory_of_one_job() {
    let nodes = two_up().await;
    let mut inventory = inventory(&nodes);
    inventory.nodes.iter_mut().for_each(|node| node.slots = Some(2));
    let lent = |job: &str| NODES.map(|node| nodes.state(node).directories[job].is_lent);
    let mut jobs = Vec::new();
    for _ in 0..2 {
        nodes.play(Play::default().frame(0, "node1", "0 s ").frame(0, "node2", "1 s "));
        let run = "run --detach -np 2 --gpus-per-node 1 --map-by node -- true";
        let done = hvdctl_on(&nodes, inventory.clone(), run, mpsc::unbounded_channel().1).await;
        jobs.push(done.code(0).out.trim().to_owned());
    }
    // the other one has a worker of its own, as both have their launchers' containers
    assert_eq!((lent(&jobs[0]), lent(&jobs[1])), ([false, true], [false, false]));
    hvdctl(&nodes, &format!("stop {}", jobs[0])).await.code(0);
    assert_eq!(lent(&jobs[0]), [false, false]);
}

#[tokio::test(start_paused = true)]
async fn stop_ends_a_job_and_all_its_ranks() {
    let nodes = up_with(ends_with([0, 0])).await;
    let id = hvdctl(&nodes, &RUN.replace("run ", "run --detach ")).await.code(0).out.trim().to_owned();
    hvdctl(&nodes, "stop").await.code(0).says(&[&format!("job {id} has ended")]);
    assert_over(&nodes, "after stop");
    hvdctl(&nodes, "jobs").await.code(0).says(&["stopped"]);
    hvdctl(&nodes, &format!("stop {id}")).await.code(0).says(&["has already ended"]);
}

#[tokio::test(start_paused = true)]
async fn a_follower_that_is_lost_loses_no_output() {
    let nodes = up_with(ends_with([0, 0])).await;
    let cutting = async {
        sleep(Duration::from_millis(600)).await;
        nodes.edit("node2", |state| state.lost_followers += 1);
    };
    let (done, ()) = tokio::join!(hvdctl(&nodes, RUN), cutting);
    done.code(0).complains(&["node2: lost the connection that follows its log"]);
    assert_eq!(done.ranks.matches("1 step 1").count(), 1, "{done}");
    assert_over(&nodes, "after the connection was lost");
}

#[tokio::test(start_paused = true)]
async fn a_node_that_was_lost_is_followed_again_and_cleaned_up_after() {
    let play = |back: &str| {
        Play::default()
            .frame(0, "node1", "0 s ")
            .frame(0, "node2", "1 s ")
            .frame(1000, "node2", "1 o before")
            .frame(60_000, "node2", "1 o between")
            // a rank that is started again, before its log is followed again
            .frame(250_000, "node2", &format!("1 o {back}"))
            .frame(500_000, "node2", "1 o later")
            .frame(600_000, "node1", "0 o last")
            .frame(600_000, "node1", "0 x 0")
            .frame(600_000, "node2", "1 x 0")
            .ends(600_000, 0)
    };
    // the disk of a node that loses power may have less than was shown
    for (loses_output, back) in [(false, "back"), (true, "back"), (true, "back with more than is missing")] {
        let nodes = up_with(play(back)).await;
        let cutting = async {
            sleep(Duration::from_secs(30)).await;
            nodes.fault("node2", CONNECT, Fault::Fails("No route to host".into()));
            nodes.cut("node2");
            sleep(Duration::from_secs(200)).await;
            let first = |log: &String| log.find('\n').unwrap() + 1;
            let cut = |log: &mut String| log.truncate(if loses_output { first(log) } else { log.len() });
            nodes.edit("node2", |state| state.directories.values_mut().for_each(|directory| cut(&mut directory.log)));
            nodes.repair();
        };
        let (done, ()) = tokio::join!(hvdctl(&nodes, RUN), cutting);
        done.code(0)
            .complains(&["node2: lost the connection that follows its log", "node2: its log is followed again"]);
        assert_eq!(done.err.matches("No route to host").count(), 1, "{done}");
        assert_eq!(done.err.contains("of its log had not reached its disk"), loses_output, "{done}");
        let between = if loses_output { "" } else { "1 between\n" };
        let expected = format!("1 before\n{between}1 {back}\n1 later\n0 last\n");
        assert_eq!(done.ranks, expected, "each line once and in time: {done}");
        assert!(!done.err.contains("containers"), "it is cleaned up over the new connection: {done}");
        assert_over(&nodes, "after the node was lost");
    }
}

/// Runs a job that loses node2 after 30 s, and changes its log there before the node answers again `back` seconds
/// later. `later`: what is added to that log when it is followed again.
async fn with_another_log(line: &str, play: Play, back: u64, change: fn(&mut String), later: &str) -> (Nodes, Done) {
    let nodes = up_with(play).await;
    let edit = |change: &dyn Fn(&mut String)| {
        nodes.edit("node2", |state| state.directories.values_mut().for_each(|directory| change(&mut directory.log)));
    };
    let cutting = async {
        sleep(Duration::from_secs(30)).await;
        nodes.fault("node2", CONNECT, Fault::Fails("No route to host".into()));
        nodes.cut("node2");
        sleep(Duration::from_secs(back)).await;
        edit(&change);
        nodes.repair();
        sleep(Duration::from_secs(300)).await;
        edit(&|log| log.push_str(later));
    };
    let (done, ()) = tokio::join!(hvdctl(&nodes, line), cutting);
    (nodes, done)
}

/// A job of two ranks. The second one writes these lines while hvdctl does not follow its log.
fn written_unseen(lines: &[String]) -> Play {
    let play = Play::default().frame(0, "node1", "0 s ").frame(0, "node2", "1 s ").frame(1000, "node2", "1 o before");
    let play = lines.iter().fold(play, |play, line| play.frame(60_000, "node2", &format!("1 o {line}")));
    play.frame(600_000, "node1", "0 x 0")
        .frame(600_000, "node2", "1 o last")
        .frame(600_000, "node2", "1 x 0")
        .ends(600_000, 0)
}

/// Takes away what was written after the first line, which hvdctl has read.
fn lose_power(log: &mut String) {
    log.truncate(log.find('\n').unwrap() + 1);
}

#[tokio::test(start_paused = true)]
async fn what_was_discarded_while_a_node_was_lost_is_no_loss_of_power() {
    const LIMIT: usize = 2 << 20;
    let hole = |log: &mut String| {
        let length = log.len() - LIMIT;
        log.replace_range(..length, &"\0".repeat(length));
    };
    let lines = vec!["x".repeat(LIMIT / 32); 40];
    let line = RUN.replace("run ", "run --log-max 2m ");
    let (_, done) = with_another_log(&line, written_unseen(&lines), 200, hole, "").await;
    assert!(done.err.contains("of its log were discarded (--log-max)"), "{}", done.err);
    assert!(!done.err.contains("not reached its disk"), "{}", done.err);
    let shown: Vec<&str> = done.ranks.lines().map(|line| line.trim_end_matches('x')).collect();
    let expected = [vec!["1 before"], vec!["1 "; 31], vec!["1 last"]].concat();
    assert_eq!((done.code, shown), (0, expected), "{}", done.err);
}

#[tokio::test(start_paused = true)]
async fn what_is_written_after_a_loss_of_power_is_new_whatever_the_clock() {
    // a rank is started again before the node answers, or writes later
    let restarts = |log: &mut String| {
        lose_power(log);
        log.push_str("1.0 1 s \n1.1 1 o early\n");
    };
    for (change, later) in [(restarts as fn(&mut String), ""), (lose_power, "1.1 1 o early\n")] {
        let (_, done) = with_another_log(RUN, written_unseen(&[]), 200, change, later).await;
        done.code(0).complains(&["node2: the last lines of its log had not reached its disk, and are lost"]);
        assert_eq!(done.ranks, "1 before\n1 early\n1 last\n", "{done}");
    }
}

#[tokio::test(start_paused = true)]
async fn the_end_of_a_job_says_too_which_lines_are_gone() {
    // the node answers between two attempts to follow the log again
    let (nodes, done) = with_another_log(RUN, written_unseen(&[]), 565, lose_power, "").await;
    done.code(0).complains(&["node2: the last lines of its log had not reached its disk, and are lost"]);
    assert!(!done.err.contains("its log is followed again"), "{done}");
    assert_eq!(done.ranks, "1 before\n1 last\n", "{done}");
    assert_over(&nodes, "after the node was lost");
}

#[tokio::test(start_paused = true)]
async fn what_fails_on_the_second_node_starts_no_job_and_leaves_none() {
    for (call, words) in [
        ("job/start.sh", "No space left on device"),
        ("job/follow.sh", "the process that follows the log did not start"),
        ("upload/compare.sh", "Read-only file system"),
        ("upload/apply.sh", "tar: write error"),
        // it takes nothing of the project
        ("upload/apply.sh", "no progress for 30 s"),
    ] {
        let project = tempfile::tempdir().unwrap();
        std::fs::write(project.path().join("train.py"), "print(1)\n").unwrap();
        let nodes = up_with(ends_with([0, 0])).await;
        let is_silent = words.starts_with("no progress");
        nodes.fault("node2", call, if is_silent { Fault::Silent } else { Fault::Fails(words.into()) });
        let line = format!("train {} -np 2 --map-by node -- true", project.path().display());
        let done = hvdctl(&nodes, &line).await;
        done.code(125).complains(&["error: node2: ", words]);
        assert_over(&nodes, &format!("after {call} failed"));
        assert!(!nodes.calls("node1").iter().any(|call| call == "docker start hmaster"), "{call}");
        nodes.repair();
        hvdctl(&nodes, &line).await.code(0);
        assert_over(&nodes, &format!("after {call} worked again"));
    }
}

#[tokio::test(start_paused = true)]
async fn a_project_of_more_files_than_a_node_can_have_is_not_sent() {
    let project = tempfile::Builder::new().prefix("project").tempdir().unwrap();
    for name in ["train.py", "a", "b"] {
        std::fs::write(project.path().join(name), "").unwrap();
    }
    let nodes = up_with(ends_with([0, 0])).await;
    nodes.edit("node2", |state| state.inodes = 1);
    let line = format!("train {} --as project -np 2 --map-by node -- true", project.path().display());
    hvdctl(&nodes, &line).await.code(125).complains(&[
        "node2: cannot upload the project to /opt/horovod/projects/project: it has 3 files and directories, and \
         /opt/horovod/projects has room for 1 more: 2 are missing",
        "hint: remove files there (df -i), exclude files in .hvdctlignore",
    ]);
    assert_eq!(nodes.count("upload/apply.sh")[1], 0);
    assert_over(&nodes, "after the upload failed");
}

#[tokio::test(start_paused = true)]
async fn two_operators_who_start_a_job_at_once_do_not_share_a_node_by_accident() {
    let nodes = up_with(ends_with([0, 0])).await;
    nodes.edit("node1", |state| state.ids_are_taken = true);
    hvdctl(&nodes, RUN).await.code(125).complains(&["another job has the id", "run the command again"]);
    nodes.edit("node1", |state| state.ids_are_taken = false);
    // another hvdctl has made its hmaster after this one has looked
    nodes.fault("node1", "docker create hmaster", Fault::Fails("Conflict. The name is already in use".into()));
    hvdctl(&nodes, RUN).await.code(125).complains(&["node1: cannot start hmaster: Conflict"]);
    assert_over(&nodes, "after the conflict");
    nodes.repair();
    hvdctl(&nodes, RUN).await.code(0);
}

#[tokio::test(start_paused = true)]
async fn a_signal_at_every_moment_of_a_job_leaves_nothing_of_it() {
    interrupt_at_every(1, RUN).await;
}

#[tokio::test(start_paused = true)]
async fn a_signal_while_nodes_are_chosen_or_later_leaves_nothing() {
    interrupt_at_every(3, &RUN.replace("run ", "run --best 2 ")).await;
}

/// Interrupts a job at every moment, or at every so many.
async fn interrupt_at_every(step: usize, line: &str) {
    let before = two_up().await;
    let mut ended = 0;
    for number in (0..).step_by(step) {
        let nodes = before.copy();
        nodes.play(ends_with([0, 0]));
        let (done, at) = signalled(&nodes, line, number, 1).await;
        let at = at.map(|(at, _)| at);
        let when = format!("after a signal at {at:?}");
        assert_over(&nodes, &when);
        if at.is_none() {
            done.code(0);
            assert!(number > 20 && ended * step > 15, "{number} moments, {ended} ended the job");
            return;
        }
        assert!(matches!(done.code, 130 | 0), "{when}: {done}");
        ended += usize::from(done.code == 130);
        let listed = hvdctl(&nodes, "jobs --json").await.document();
        let states = listed["jobs"].as_array().unwrap().iter().map(|job| job["state"].as_str().unwrap());
        assert!(states.clone().all(|state| ["stopped", "succeeded"].contains(&state)), "{when}: {listed}");
        nodes.play(ends_with([0, 0]));
        hvdctl(&nodes, RUN).await.code(0);
    }
}

/// One rank on this node, which ends after so many milliseconds.
fn alone(node: &str, end: u64) -> Play {
    Play::default().frame(0, node, "0 s ").frame(1000, node, "0 o here").frame(end, node, "0 x 0").ends(end, 0)
}

#[tokio::test(start_paused = true)]
async fn jobs_on_different_nodes_are_independent_and_one_on_the_same_nodes_waits() {
    let nodes = two_up().await;
    let start = async |node: &str, name: &str, end: u64| {
        nodes.play(alone(node, end));
        let line = format!("--on {node} run --detach -np 1 --name {name} -- true");
        hvdctl(&nodes, &line).await.code(0).out.trim().to_owned()
    };
    let first = start("node1", "a", 120_000).await;
    let second = start("node2", "b", 3_600_000).await;
    assert_eq!(NODES.map(|node| nodes.state(node).ps()), [["hworker running", "hmaster running"]; 2]);

    // refused with the names of both, before anything is changed
    let before = NODES.map(|node| nodes.state(node));
    let holds = |node: &str, id: &str, name: &str| format!("{node} is allocated exclusively to job {id} ({name})");
    let (of_first, of_second) = (holds("node1", &first, "a"), holds("node2", &second, "b"));
    hvdctl(&nodes, "run -np 8 -- true").await.code(125).complains(&[&of_first, &of_second, "--wait"]);
    hvdctl(&nodes, "verify").await.code(5).complains(&["nothing was changed"]);
    hvdctl(&nodes, "--on node2 run -np 1 -- true").await.code(125).complains(&[&of_second]);
    assert_eq!(NODES.map(|node| nodes.state(node)), before);

    nodes.play(alone("node1", 5000));
    let waited = hvdctl(&nodes, "--on node1 run -np 1 --wait --name c -- true").await;
    waited.code(0).complains(&[&format!("waiting: {of_first}")]);
    assert_eq!(waited.ranks, "0 here\n");
    assert_eq!(nodes.state("node2").ps(), ["hworker running", "hmaster running"], "the other one goes on");
    hvdctl(&nodes, "stop b").await.code(0).says(&[&format!("job {second} has ended")]);
    let listed = hvdctl(&nodes, "jobs --json").await.document();
    let mut states: Vec<_> =
        listed["jobs"].as_array().unwrap().iter().map(|job| (&job["name"], &job["state"])).collect();
    states.sort_by_key(|(name, _)| name.to_string());
    let expected =
        [("a", "succeeded"), ("b", "stopped"), ("c", "succeeded")].map(|(name, state)| (name.into(), state.into()));
    assert!(states.into_iter().eq(expected.iter().map(|(name, state): &(Value, Value)| (name, state))), "{listed}");
    assert_over(&nodes, "after all of them");
}

#[tokio::test(start_paused = true)]
async fn a_job_needs_keys_and_starts_the_workers_that_it_needs() {
    let nodes = Nodes::new(&NODES);
    let missing = ["error: the cluster's keys are missing or differ on node[1-2]", "hint: `hvdctl up` pushes them"];
    hvdctl(&nodes, RUN).await.code(125).complains(&missing);
    hvdctl(&nodes, "keys push").await.code(0);
    nodes.play(ends_with([0, 0]));
    hvdctl(&nodes, RUN).await.code(0);
    // the rank of the master has run in the launcher's container
    assert_eq!(NODES.map(|node| nodes.state(node).ps()), [Vec::new(), vec!["hworker running".to_owned()]]);
    assert_given_back(&nodes, "after the job");
}

#[tokio::test(start_paused = true)]
async fn a_module_that_the_image_lacks_is_named_before_the_start() {
    let nodes = two_up().await.copy();
    let (_dir, path) = project(&[("train.py", 0o644, "import torch\nimport sklearn\n")]);
    let train = format!("train {path} -np 2 --map-by node");
    nodes.fault("node2", "find imports", Fault::Fails("missing sklearn 2\n".into()));
    let missing = "error: the image test/horovod:1 has no module sklearn, which train.py imports in line 2";
    let ways = ["setup = [\"pip install scikit-learn\"]", "build = \"Dockerfile\"", "another `image`"];
    hvdctl(&nodes, &train).await.code(125).complains(&[missing]).complains(&ways);
    let calls = nodes.calls("node1");
    assert!(!calls.iter().any(|call| call.starts_with("docker create")), "{calls:?}");
    assert_over(&nodes, "after it was refused");
    // an earlier job may have left it in a project that no worker has mounted
    nodes.repair();
    nodes.play(ends_with([0, 0]));
    hvdctl(&nodes, &train.replace("train ", "train --as other ")).await.code(0);
    nodes.fault("node2", "find imports", Fault::Fails("missing sklearn 2\n".into()));
    nodes.play(ends_with([0, 0]));
    hvdctl(&nodes, &train).await.code(0);
    // it has this one mounted now
    hvdctl(&nodes, &train).await.code(125).complains(&[missing]);
    // what ranks have and the worker has not may decide what is found
    nodes.play(ends_with([0, 0]));
    hvdctl(&nodes, &format!("{train} -e PYTHONPATH=/data/lib")).await.code(0);
}

/// `--up` in the place of `RUN`.
fn with_up(line: &str, option: &str) -> String {
    line.replacen("run ", &format!("run {option} "), 1)
}

#[tokio::test(start_paused = true)]
async fn a_job_sets_the_cluster_up_where_that_is_wanted() {
    let nodes = Nodes::new(&NODES);
    nodes.edit("node2", |state| (state.images, state.has_registry) = (Vec::new(), true));
    nodes.play(ends_with([0, 0]));
    let done = hvdctl(&nodes, &with_up(RUN, "--up")).await;
    let steps = ["setting up the cluster first", "pushing them first", "node2: pulled test/horovod:1, started hworker"];
    done.code(0).complains(&steps);
    assert!(done.ranks.contains("step 1"), "{done}");
    assert_up(&nodes, "after the job");
    assert_given_back(&nodes, "after the job");
}

#[tokio::test(start_paused = true)]
async fn a_job_that_may_not_set_the_cluster_up_changes_nothing() {
    let nodes = Nodes::new(&NODES);
    nodes.edit("node2", |state| (state.images, state.has_registry) = (Vec::new(), true));
    let missing = "node2: cannot find the image test/horovod:1: No such image";
    for line in [RUN, &with_up(RUN, "--dry-run"), "verify"] {
        hvdctl(&nodes, line).await.complains(&[missing, "hint: `hvdctl up` pulls it"]);
    }
    let images = nodes.state("node1").images;
    nodes.edit("node2", |state| state.images = images);
    for line in [RUN, "verify"] {
        hvdctl(&nodes, line).await.complains(&["the cluster's keys are missing or differ on node[1-2]"]);
    }
    hvdctl(&nodes, "keys push").await.code(0);
    hvdctl(&nodes, "verify").await.code(1).complains(&["error: there is no worker on node2", "hint: hvdctl up"]);
    assert_eq!(NODES.map(|node| nodes.state(node).ps()), [[""; 0]; 2]);
    assert_given_back(&nodes, "after all of them");
}

#[tokio::test(start_paused = true)]
async fn a_set_up_that_fails_on_a_node_starts_no_job() {
    let nodes = Nodes::new(&NODES);
    nodes.fault("node2", "docker create", Fault::Fails("no space left on device".into()));
    let done = hvdctl(&nodes, &with_up(RUN, "--up")).await;
    done.code(125).complains(&["node2: cannot start hworker", "no space left on device"]);
    assert!(!nodes.calls("node1").iter().any(|call| call.starts_with("job/")), "{:?}", nodes.calls("node1"));
    assert_given_back(&nodes, "after it failed");
}

#[tokio::test(start_paused = true)]
async fn the_state_of_a_job_is_unknown_while_its_launchers_node_does_not_answer() {
    let nodes = up_with(ends_with([0, 0])).await;
    hvdctl(&nodes, RUN).await.code(0);
    nodes.fault("node1", CONNECT, Fault::Fails("No route to host".into()));
    let job = hvdctl(&nodes, "jobs --json").await.code(3).document()["jobs"][0].clone();
    assert_eq!(job["state"], Value::Null, "{job}");
    assert!(job["reason"].as_str().unwrap().starts_with("its launcher's node node1 does not answer: "), "{job}");
}

#[tokio::test(start_paused = true)]
async fn logs_are_filtered_by_rank_time_and_pattern() {
    let mut play = Play::default().frame(0, "node1", "0 s ").frame(0, "node2", "1 s ");
    for (rank, node) in NODES.iter().enumerate() {
        for step in 1..=30 {
            play = play.frame(1000, node, &format!("{rank} o step {step} of {rank}"));
        }
    }
    let play = play.frame(9000, "node1", "0 x 0").frame(9000, "node2", "1 x 0").ends(9000, 0);
    let nodes = up_with(play).await;
    let id = hvdctl(&nodes, &RUN.replace("run ", "run --detach ")).await.code(0).out.trim().to_owned();
    let logs = async |words: &str| hvdctl(&nodes, format!("logs {words}").trim_end()).await;
    let followed = logs("-f --rank 0").await;
    assert!(followed.code(0).ranks.ends_with("0 step 30 of 0\n") && !followed.ranks.contains("of 1"), "{followed}");
    hvdctl(&nodes, "jobs").await.code(0).says(&[&id, "succeeded"]);

    let all = logs("").await;
    assert_eq!(all.code(0).ranks.lines().count(), 60);
    let some = logs("--rank 1 --grep ^step.[123].of").await;
    assert_eq!(some.code(0).ranks, "1 step 1 of 1\n1 step 2 of 1\n1 step 3 of 1\n");
    assert_eq!(logs("--rank 0 --grep step -n 1").await.ranks, "0 step 30 of 0\n");
    assert_eq!(logs("-n 1000").await.ranks, all.ranks);
    assert_eq!(logs("--since 2099-01-01T00:00:00Z").await.ranks, "");
    assert_eq!(logs("--since 1h").await.ranks, all.ranks);
    logs("--rank 2").await.code(2).complains(&["has no rank 2"]);
    logs("nosuch").await.code(1).complains(&["there is no job nosuch", "hvdctl jobs"]);
}

#[tokio::test(start_paused = true)]
async fn the_last_lines_are_those_of_all_however_far_back_they_begin() {
    let mut play = Play::default().frame(0, "node1", "0 s ");
    for line in 0..40 {
        // together more than what is read first of a log's end, and more than eight times as much
        play = play.frame(1000, "node1", &format!("0 o {line} {}", "x".repeat(60_000)));
    }
    let nodes = up_with(play.frame(2000, "node1", "0 x 0").ends(2000, 0)).await;
    hvdctl(&nodes, "--on node1 run -np 1 -- true").await.code(0);
    let all = hvdctl(&nodes, "logs").await;
    let all: Vec<&str> = all.code(0).ranks.lines().collect();
    assert_eq!(all.len(), 40);
    for tail in [1, 3, 20, 39, 40, 100] {
        let last = hvdctl(&nodes, &format!("logs -n {tail}")).await;
        let expected = &all[all.len().saturating_sub(tail)..];
        assert!(last.code(0).ranks.lines().eq(expected.iter().copied()), "the last {tail} lines");
    }
}

#[tokio::test(start_paused = true)]
async fn a_dry_run_says_what_would_run_on_each_node() {
    let nodes = two_up().await;
    let dry = async |launcher: &str| {
        let line = format!("run -np 2 --map-by node --launcher {launcher} --dry-run -- train");
        hvdctl(&nodes, &line).await
    };
    dry("torchrun").await.code(0).says(&[
        "launcher on node1: torchrun --nnodes 2 --node_rank 0",
        "launcher on node2: torchrun --nnodes 2 --node_rank 1",
    ]);
    let env = dry("env").await;
    env.code(0).says(&["rank on node1: env RANK=0 LOCAL_RANK=0 WORLD_SIZE=2", "rank on node2: env RANK=1"]);
    env.says(&["cores on node1: ", "cores on node2: "]);
    dry("mpirun").await.code(0).says(&["launcher: mpirun --allow-run-as-root -np 2"]);
    assert!(NODES.iter().all(|node| nodes.state(node).directories.is_empty()), "no job was begun");
}
