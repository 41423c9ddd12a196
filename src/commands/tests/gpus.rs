//! Nodes whose GPUs are not known, and workers that have lost theirs.

use super::*;
use crate::transport::node::scripted::Fault;
use serde_json::Value;

/// The output of the script on a node with two GPUs.
const TWO: &str = "nvidia-smi yes\ngpu GPU 0: NVIDIA H200 (UUID: GPU-aa)\ngpu GPU 1: NVIDIA H200 (UUID: GPU-bb)\n\
                   gpu exit 0\nmig exit 0\n";
/// Its output after an update of the driver.
const MISMATCH: &str = "nvidia-smi yes\ngpu Failed to initialize NVML: Driver/library version mismatch\n\
                        gpu NVML library version: 550.144\ngpu exit 18\nmig exit 18\n";

/// Two nodes with GPUs that are up.
pub(super) async fn two_with_gpus() -> Nodes {
    let nodes = Nodes::new(&NODES);
    NODES.iter().for_each(|node| nodes.edit(node, |state| state.facts = TWO.into()));
    hvdctl(&nodes, "up").await.code(0);
    nodes
}

/// The output of the script that finds root on a node with Podman as its engine.
const PODMAN: &str = "user root\nsudo root\ndocker-command missing\npodman-command yes\npodman open\n";

/// A file that Podman reads, which was written when there was one GPU.
const CDI: &str = "cdi read\ncdi file /etc/cdi/nvidia.yaml\ncdi name 0\ncdi name all\n";

#[tokio::test(start_paused = true)]
async fn a_job_on_a_podman_node_without_keys_names_the_next_step() {
    let nodes = Nodes::new(&NODES);
    nodes.edit("node1", |state| state.access = PODMAN);
    let done = hvdctl(&nodes, "--on node1 run -np 1 -- true").await;
    done.code(125)
        .complains(&["error: the cluster's keys are missing or differ on node1", "hint: `hvdctl up` pushes them"]);
    assert!(!nodes.calls("node1").iter().any(|call| call.contains("create")), "{:?}", nodes.calls("node1"));
}

#[tokio::test(start_paused = true)]
async fn gpus_that_podman_does_not_know_are_an_error_before_a_worker_is_removed() {
    let nodes = two_with_gpus().await;
    nodes.edit("node2", |state| state.access = PODMAN);
    let before = worker(&nodes, "node2");
    let command = "sudo nvidia-ctk cdi generate --output=/etc/cdi/nvidia.yaml";
    for (lines, message) in [
        ("cdi read\n", "no CDI file in /etc/cdi or /var/run/cdi describes its GPUs to Podman"),
        (CDI, "/etc/cdi/nvidia.yaml does not describe the GPU 1 GPU-bb to Podman"),
    ] {
        nodes.edit("node2", |state| state.facts = format!("{TWO}{lines}"));
        // which would have the workers replaced
        let mut changed = inventory(&nodes);
        changed.cluster.shm_size = 1 << 30;
        let up = hvdctl_on(&nodes, changed, "up", mpsc::unbounded_channel().1).await;
        assert_ne!(up.code, 0, "{}", up.err);
        up.complains(&["error: node2: ", message, command]);
        hvdctl(&nodes, "verify").await.code(1).complains(&["node2: ", message, command]);
        hvdctl(&nodes, "run -np 4 -- true").await.code(125).complains(&["node2: ", message, command]);
        assert_eq!(
            (worker(&nodes, "node2"), nodes.state("node2").ps()),
            (before.clone(), vec!["hworker running".into()])
        );
    }
    // Docker does not read these files
    nodes.edit("node1", |state| state.facts = format!("{TWO}cdi read\n"));
    nodes.edit("node2", |state| state.facts = format!("{TWO}{CDI}cdi name 1\n"));
    hvdctl(&nodes, "up").await.code(0).says(&["node2: unchanged"]);
}

#[tokio::test(start_paused = true)]
async fn directories_that_a_rootless_engine_may_not_write_are_an_error_before_any_change() {
    let nodes = Nodes::new(&NODES);
    let closed = ["ssh", "jobs", "projects", "data"].map(|what| format!("unwritable {what} /opt\n")).concat();
    nodes.edit("node2", |state| state.facts = format!("home /home/ana\n{closed}"));
    let texts = [
        "error: node2: cannot use the node: cannot write to /opt, which is needed for cluster.ssh_dir",
        "ssh_dir = \"/home/ana/hvdctl/ssh\", jobs_dir = \"/home/ana/hvdctl/jobs\"",
    ];
    let before = nodes.state("node2").keys;
    hvdctl(&nodes, "keys push").await.code(3).complains(&texts);
    hvdctl(&nodes, "up").await.code(3).complains(&texts);
    assert_eq!((nodes.state("node2").ps(), nodes.state("node2").keys), (Vec::new(), before));
}

fn worker(nodes: &Nodes, node: &str) -> String {
    nodes.state(node).container("hworker").unwrap().id.clone()
}

#[tokio::test(start_paused = true)]
async fn an_nvidia_smi_that_fails_is_an_error_and_no_reason_to_recreate_a_worker() {
    let nodes = two_with_gpus().await;
    let before = worker(&nodes, "node2");
    nodes.edit("node2", |state| state.facts = MISMATCH.into());
    let error =
        "node2: cannot list the GPUs: nvidia-smi failed: Failed to initialize NVML: Driver/library version mismatch";
    let texts = ["error: ", error, "hint: ", "reboot the node"];
    hvdctl(&nodes, "up").await.code(3).says(&["node1: unchanged"]).complains(&texts);
    hvdctl(&nodes, "up --dry-run").await.code(3).complains(&texts);
    hvdctl(&nodes, "verify").await.code(1).complains(&texts);
    for np in ["1", "2", "3", "8"] {
        hvdctl(&nodes, &format!("run -np {np} --dry-run -- true")).await.code(125).complains(&texts);
    }
    hvdctl(&nodes, "run -np 1 --gpus-per-node 1 -- true").await.code(125).complains(&texts);
    hvdctl(&nodes, "hosts --format mpi").await.code(1).complains(&texts);
    assert_eq!((worker(&nodes, "node2"), nodes.state("node2").ps()), (before, vec!["hworker running".to_owned()]));

    let status = hvdctl(&nodes, "status").await;
    status.code(0).says(&["node2: nvidia-smi failed: Failed to initialize NVML: Driver/library version mismatch\n"]);
    let document = hvdctl(&nodes, "status --json").await.code(0).document();
    let field = |name: &str| document["nodes"][1][name].clone();
    assert_eq!((field("gpus"), field("slots"), field("worker")), (Value::Null, 0.into(), "up".into()), "{document}");
    assert_eq!(document["nodes"][0]["nvidia_smi"], Value::Null);
    assert_eq!(document["nodes"][0]["gpus"].as_array().unwrap().len(), 2, "{document}");
    let document = hvdctl(&nodes, "up --json").await.code(3).document();
    assert_eq!(document["nodes"][1]["error"]["kind"], "nvidia_smi_failed", "{document}");

    // without it the others go on, and so does a node that needs no GPUs
    hvdctl(&nodes, "--on node1 run -np 2 --dry-run -- true").await.code(0);
    hvdctl(&nodes, "drain node2").await.code(0);
    hvdctl(&nodes, "run -np 2 --dry-run -- true").await.code(0).complains(&["node2 is drained"]);
}

#[tokio::test(start_paused = true)]
async fn up_recreates_a_worker_that_has_lost_its_gpus() {
    let nodes = two_with_gpus().await;
    let before = NODES.map(|node| worker(&nodes, node));
    hvdctl(&nodes, "up").await.code(0).says(&["nothing to do"]);
    nodes.edit("node2", |state| state.gpus_are_lost = true);
    let recreates = |verb| format!("node2: {verb} hworker (lost its GPUs)\n");
    hvdctl(&nodes, "up --dry-run").await.code(0).says(&["node1: unchanged\n", &recreates("recreate")]);
    assert_eq!(worker(&nodes, "node2"), before[1]);

    // not while a job has ranks there
    let rank = format!("rank run-1 7 {} lab -\n", before[1]);
    nodes.edit("node2", |state| state.facts.push_str(&rank));
    let disrupts = "job run-1 is running, and its workers would be replaced on node2";
    hvdctl(&nodes, "up").await.code(1).complains(&[disrupts]);
    nodes.edit("node2", |state| state.facts = TWO.into());

    hvdctl(&nodes, "up").await.code(0).says(&["node1: unchanged\n", &recreates("recreated")]);
    assert_up(&nodes, "after up");
    assert_eq!((&worker(&nodes, "node1"), worker(&nodes, "node2") == before[1]), (&before[0], false));
    hvdctl(&nodes, "up").await.code(0).says(&["nothing to do"]);
}

#[tokio::test(start_paused = true)]
async fn a_worker_that_cannot_be_asked_is_no_ready_one() {
    let nodes = two_with_gpus().await;
    nodes.fault("node2", "worker/ready.sh", Fault::Fails("OCI runtime exec failed".into()));
    let done = hvdctl(&nodes, "up").await;
    done.code(3)
        .says(&["node1: unchanged"])
        .complains(&["node2: cannot check the GPUs in hworker: OCI runtime exec failed"]);
    nodes.repair();
    nodes.fault("node2", "worker/ready.sh", Fault::Silent);
    hvdctl(&nodes, "up").await.code(3).complains(&["node2: cannot check the GPUs in hworker: no", "within 30 s"]);
    // nothing is asked where there are no GPUs
    let nodes = two_up().await;
    hvdctl(&nodes, "up").await.code(0);
    assert!(!nodes.calls("node2").iter().any(|call| call == "worker/ready.sh"), "{:?}", nodes.calls("node2"));
}

#[tokio::test(start_paused = true)]
async fn gpus_that_containers_do_not_get_are_no_silent_slots() {
    let nodes = Nodes::new(&NODES);
    nodes.edit("node2", |state| state.facts = "accelerator amd 8\n".into());
    let words = [
        "node2: it has 8 AMD GPUs, which its containers cannot use",
        "devices = [\"/dev/kfd\", \"/dev/dri\"], slots = 8",
    ];
    hvdctl(&nodes, "up").await.code(0).complains(&words);
    hvdctl(&nodes, "status").await.code(0).says(&words);
    hvdctl(&nodes, "hosts --format mpi").await.code(0).complains(&words);
    hvdctl(&nodes, "run -np 2 --map-by node --dry-run -- true").await.code(0).complains(&words);
}
