//! The number of times that commands log in to a node, and the programs that they start there.

use super::*;
use crate::cluster::lock_set::LockSet;
use crate::cluster::session::Session;
use crate::commands::{Context, run_on_nodes};
use crate::transport::node::scripted::CONNECT;
use std::sync::Mutex;
use tokio::sync::watch;

/// The state of a node that a job has exclusively: a process of a rank, and the record.
const ALLOCATED: &str = concat!(
    "rank run-1 7 - lab -\nopen run-1 \
     {\"id\":\"run-1\",\"cluster\":\"lab\",\"name\":\"n\",\"operator\":\"o\",\"created\":1.0,",
    "\"placement\":{\"shares\":[{\"node\":\"node1\",\"ranks\":1,\"first\":0}]},\"command\":[\"x\"],\"cwd\":\"/\",\"ranks\":1,",
    "\"port\":12345,\"interface\":\"eth0\",\"launcher\":\"horovodrun\",\"restarts\":0,\"grace\":1,\"stall\":0,",
    "\"idle_margin\":30,\"ulimits\":{}}\n"
);

/// Two nodes that are up, of which a job has node1, without the calls so far.
async fn one_allocated() -> Nodes {
    let nodes = two_up().await.copy();
    nodes.edit("node1", |state| state.facts = ALLOCATED.into());
    nodes
}

/// The whole seconds between the observations of a node.
fn pauses(nodes: &Nodes, node: &str) -> Vec<u64> {
    let times = nodes.times(node, "node/facts.sh");
    times.windows(2).map(|pair| (pair[1] - pair[0]) as u64).collect()
}

#[tokio::test(start_paused = true)]
async fn a_job_that_waits_keeps_its_connections_and_polls_less_and_less_often() {
    let nodes = one_allocated().await;
    let (other, locked) = (nodes.clone(), Arc::new(Mutex::new(Vec::new())));
    let seen = Arc::clone(&locked);
    nodes.watch(move |moment| {
        if moment.node != "node1" || moment.call != "node/facts.sh" || moment.done {
            return;
        }
        let mut seen = seen.lock().unwrap();
        seen.push(held(&other).len());
        match seen.len() {
            3 => other.cut("node2"),
            // that job has ended, and the next one begun
            5 => other.edit("node1", |state| state.facts = ALLOCATED.replace("run-1", "run-2")),
            // it has ended, and this one finds no image
            7 => {
                other.edit("node1", |state| state.facts.clear());
                other.edit("node2", |state| state.images.clear());
            }
            _ => {}
        }
    });
    let done = hvdctl(&nodes, "run -np 8 --wait 1h -- true").await;
    done.code(125).complains(&["waiting: node1 is allocated", "error: node2: cannot find the image"]);
    assert_eq!(pauses(&nodes, "node1"), [2, 4, 8, 15, 2, 4, 0], "they begin again with the next job");
    assert_eq!(*locked.lock().unwrap(), [2, 0, 0, 0, 0, 0, 0, 2], "the locks are released between polls");
    assert_eq!(nodes.count(CONNECT), [1, 2], "only a connection that was lost is opened again");
    assert_eq!(nodes.count("access/access.sh"), [1, 2]);
    assert_eq!(nodes.count("docker version"), [1, 2]);
}

#[tokio::test(start_paused = true)]
async fn a_job_asks_once_more_at_the_end_of_its_wait() {
    let nodes = one_allocated().await;
    hvdctl(&nodes, "run -np 8 --wait 20s -- true").await.code(125).complains(&["error: node1 is allocated"]);
    assert_eq!(pauses(&nodes, "node1"), [2, 4, 8, 5]);
    assert_eq!(nodes.count(CONNECT), [1, 1]);
}

#[tokio::test(start_paused = true)]
async fn a_shell_connects_once() {
    let nodes = Nodes::new(&NODES);
    let Cli { command, .. } = Cli::try_parse_from(["hvdctl", "shell"]).unwrap();
    let (events, _) = Events::channel();
    let (_sender, signal) = watch::channel(None);
    let session = Session::new(LockSet::new("lab", "hvdctl shell", None, &events), &signal);
    let target = Target::new(inventory(&nodes), None).unwrap();
    let fleet = Fleet::over(TransportKind::Scripted(nodes.clone()), Arc::default(), &events);
    let mut context = Context {
        target,
        fleet,
        events,
        session,
        verbose: 0,
        ask: false,
        yes: true,
        json: false,
        is_direct: false,
        env_files: crate::launch::env_file::EnvFiles::new(),
    };
    // without a terminal it ends at the last check before its container
    let error = run_on_nodes(command, &mut context).await.unwrap_err().to_string();
    assert!(error.contains("keys are missing or differ on node[1-2]"), "{error}");
    for call in [CONNECT, "access/access.sh", "job/list.sh", "node/facts.sh", "docker version"] {
        assert_eq!(nodes.count(call), [1, 1], "{call}");
    }
}

#[tokio::test(start_paused = true)]
async fn each_command_logs_in_and_reads_the_state_once() {
    let nodes = Nodes::new(&NODES);
    let observing =
        ["up --dry-run", "up", "up", "status", "keys push", "hosts", "drain node[1-2]", "drain --undo node[1-2]"];
    let observing = observing.into_iter().chain(["run -np 8 --dry-run -- true", "down --purge"]).map(|line| (line, 1));
    // a rotation reads again what it has changed
    let others = [("jobs", 0), ("lock status", 0), ("down", 0), ("up", 1), ("keys rotate", 2)];
    for (line, observations) in observing.chain(others) {
        let before = [CONNECT, "access/access.sh", "node/facts.sh", "docker version"].map(|call| nodes.count(call));
        hvdctl(&nodes, line).await.code(0);
        let new = |before: &[usize], call| nodes.count(call).iter().zip(before).map(|(n, b)| n - b).collect::<Vec<_>>();
        let [connects, access, facts, engines] = &before;
        assert_eq!(new(connects, CONNECT), [1, 1], "logins of {line}");
        assert_eq!(new(access, "access/access.sh"), [1, 1], "{line}");
        assert_eq!(new(facts, "node/facts.sh"), [observations; 2], "{line}");
        assert!(new(engines, "docker version").iter().all(|count| *count <= 1), "{line}");
    }
}

#[tokio::test(start_paused = true)]
async fn verify_prints_a_warning_once() {
    let nodes = two_up().await;
    nodes.edit("node1", |state| {
        state.facts = "disk jobs 100000 /opt/horovod/jobs\n".into();
        state.keys = None;
    });
    // without a key no login is tried, and the last check before the launch fails
    let done = hvdctl(&nodes, "verify").await;
    done.code(1).complains(&["keys are missing or differ on node[1-2]"]);
    assert_eq!(done.err.matches("left in /opt/horovod/jobs").count(), 1, "{done}");
}
