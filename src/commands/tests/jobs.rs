//! Jobs from the command line to the exit code: started, followed, failed, stopped, attached to, and lost.

mod logs;
mod outside;
mod programs;
mod roles;

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
