//! The cluster's queue: which jobs wait in its queue, with which options, and what is refused.

use super::*;

/// Gives these nodes a container of the cluster's queue.
fn with_container(nodes: &Nodes, names: &[&str], name: &str, role: &str, spec: &str) {
    let labels = [("hvdctl.cluster", "lab"), ("hvdctl.role", role), ("hvdctl.name", name), ("hvdctl.spec.full", spec)];
    names.iter().for_each(|node| nodes.edit(node, |state| state.add(name, &labels)));
}

/// Gives these nodes the cluster's queue.
pub(super) fn with_slurm(nodes: &Nodes, names: &[&str]) {
    with_container(nodes, names, "hslurm", "slurm", "{}");
    with_container(nodes, names, "hslurm-agent", "slurm-agent", "{}");
}

#[tokio::test(start_paused = true)]
async fn slurm_is_asked_for_what_a_job_needs() {
    let nodes = Nodes::new(&NODES);
    hvdctl(&nodes, "up").await.code(0);
    with_slurm(&nodes, &NODES);
    for (options, asked) in [
        ("-np 8", "--ntasks=8 --output=/dev/null --chdir=/ --exclusive --requeue"),
        ("-np 2 --map-by node", "--ntasks=2 --nodes=2 --output=/dev/null --chdir=/ --exclusive --requeue"),
        (
            "-np 3 --gpus-per-node 2",
            "--ntasks=3 --mincpus=2 --ntasks-per-node=2 --output=/dev/null --chdir=/ --requeue",
        ),
        (
            "-np 2 --on node2 --sbatch=--time=5",
            "--ntasks=2 --exclude=node1 --output=/dev/null --chdir=/ --exclusive --requeue --time=5",
        ),
    ] {
        let done = hvdctl(&nodes, &format!("run --dry-run {options} -- true")).await;
        done.code(0).says(&["sbatch --job-name=true.ID ", &format!(" {asked}\n"), "each rank: true\n"]);
    }
    let more = hvdctl(&nodes, "run --dry-run -np 9 -- true").await;
    more.code(2).complains(&["9 ranks were requested, but the cluster has 8 slots"]);
    // what has to be known, and what cannot be
    for (options, error) in [
        ("-np 1 --sbatch=--exclude=node1", "hvdctl sets the option --exclude=node1 of sbatch itself"),
        ("-np 1 --sbatch=-Jname", "hvdctl sets the option -Jname of sbatch itself"),
        ("-np 1 --sbatch=--array=1-2", "the option --array=1-2 of sbatch cannot be used with hvdctl jobs"),
        ("-np 1:2", "-np MIN:MAX is for elastic jobs"),
    ] {
        hvdctl(&nodes, &format!("run --dry-run {options} -- true")).await.code(2).complains(&[error]);
    }
    hvdctl(&nodes, "run --best 1 -np 1 -- true").await.code(2).complains(&["Slurm chooses the nodes of a job"]);
    // past the queue
    hvdctl(&nodes, "run --scheduler ssh --dry-run -np 1 -- true").await.code(0).says(&["NODE   RANKS"]);
}

#[tokio::test(start_paused = true)]
async fn a_slurm_that_cannot_be_used_is_named() {
    let nodes = Nodes::new(&NODES);
    hvdctl(&nodes, "up").await.code(0);
    hvdctl(&nodes, "run --dry-run -np 1 --sbatch=--time=5 -- true")
        .await
        .code(2)
        .complains(&["--sbatch=--time=5 is for jobs under Slurm", "hvdctl slurm up"]);
    for command in ["slurm status", "slurm exec -- squeue"] {
        hvdctl(&nodes, command).await.complains(&["the cluster has no Slurm of its own", "hvdctl slurm up"]);
    }
    hvdctl(&nodes, "slurm up --on node1").await.code(2).complains(&["leave out --on"]);
    with_slurm(&nodes, &["node1"]);
    let run = "run --dry-run -np 1 -- true";
    hvdctl(&nodes, run).await.complains(&["node2: cannot queue the job", "not in the cluster's queue"]);
    with_slurm(&nodes, &["node2"]);
    hvdctl(&nodes, run).await.code(0);
    nodes.edit("node2", |state| {
        state.containers.iter_mut().filter(|one| one.name == "hslurm").for_each(|one| one.state = "exited");
    });
    hvdctl(&nodes, run).await.complains(&["node2: cannot queue the job: hslurm is not running", "hvdctl slurm up"]);
    hvdctl(&nodes, "down").await.complains(&["the cluster's queue runs there", "hvdctl slurm down"]);
    nodes.edit("node2", |state| {
        state.containers.iter_mut().for_each(|one| one.state = if one.name == "hslurm" { "running" } else { "exited" });
    });
    hvdctl(&nodes, run).await.complains(&["node2: cannot queue the job: hslurm-agent is not running"]);
}

#[tokio::test(start_paused = true)]
async fn a_slurm_that_an_earlier_hvdctl_started_is_used() {
    let nodes = Nodes::new(&NODES);
    hvdctl(&nodes, "up").await.code(0);
    let spec = r#"{"extra_mounts":[{"source":"/run/docker.sock","target":"/run/hvdctl-engine.sock"}]}"#;
    with_container(&nodes, &NODES, "hslurm", "slurm", spec);
    hvdctl(&nodes, "run --dry-run -np 1 -- true").await.code(0).says(&["sbatch --job-name=true.ID "]);
}

#[tokio::test(start_paused = true)]
async fn a_slurm_has_nodes_of_one_owner() {
    let nodes = Nodes::new(&NODES);
    let mut mixed = inventory(&nodes);
    mixed.nodes[1].owner = Some("bob".into());
    hvdctl_on(&nodes, mixed, "slurm up", mpsc::unbounded_channel().1).await.code(2).complains(&[
        "the cluster's queue is for nodes of one owner, but others own node2 (of bob)",
        "root on one of its nodes controls Slurm on all",
    ]);
    assert_eq!(nodes.calls("node2"), Vec::<String>::new(), "nothing is started");
}
