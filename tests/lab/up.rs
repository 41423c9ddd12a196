//! `up`: which containers run on the nodes afterwards, and how they were made.

use crate::state::{Lab, NODES, address, gpu_uuids, id_of, inspect, node_sh, on, ours};
use serde_json::{Value, json};

/// The program that listens on a port of a node's address in the cluster, by the first bytes that it sends.
pub fn banner(node: &str, port: u16) -> String {
    let read = "timeout 5 bash -c 'exec 3<>/dev/tcp/'$1/$2' && head -c 8 <&3' 2>/dev/null; :";
    node_sh(node, read, &[&address(node), &port.to_string()]).ok()
}

#[test]
fn a_worker_runs_on_every_node_as_the_contract_names_it() {
    let lab = Lab::with_rsa_keys();
    // without keys `up` pushes them first
    lab.hvdctl(&["up"]).code(0).says(&["node[1-2] (2): started hworker\n"]);
    for node in NODES {
        assert_eq!(ours(node), "hworker running\n", "{node}");
        let worker = inspect(node, "hworker");
        let labels = &worker["Config"]["Labels"];
        assert_eq!((&labels["hvdctl.cluster"], &labels["hvdctl.role"]), (&json!("lab"), &json!("worker")));
        assert!(labels["hvdctl.spec"].as_str().is_some_and(|hash| hash.len() == 12), "{labels}");
        assert_eq!(labels["hvdctl.job"], Value::Null);
        let host = &worker["HostConfig"];
        assert_eq!(host["NetworkMode"], "host");
        assert_eq!(host["ShmSize"], json!(8_u64 << 30));
        let gpus = &host["DeviceRequests"][0];
        assert_eq!((&gpus["Count"], &gpus["Capabilities"]), (&json!(-1), &json!([["gpu"]])));
        let mounts = worker["Mounts"].as_array().unwrap();
        let keys = mounts.iter().find(|m| m["Destination"] == "/root/.ssh").unwrap();
        assert_eq!((&keys["Source"], &keys["RW"]), (&json!("/opt/horovod/ssh"), &json!(false)));
        node_sh(node, "docker exec hworker touch /root/.ssh/x", &[]).code(1).complains(&["Read-only file system"]);
        assert_eq!(banner(node, 12345), "SSH-2.0-");
        // it is the container's own sshd that listens there, which its main process has started
        let listening =
            on(node, "ss -Hltnp 'sport = :12345' | grep -o 'pid=[0-9]*' | cut -d= -f2 | xargs ps -o ppid= -p");
        assert_eq!(listening.trim(), worker["State"]["Pid"].to_string());
    }
    // from worker to worker with only the pinned keys, as the launcher does
    let log_in = |to: &str, program: &str| {
        let ssh = "docker exec hworker ssh -o BatchMode=yes -o StrictHostKeyChecking=yes -p 12345 \"$1\" \"$2\"";
        node_sh("node1", ssh, &[to, program]).ok()
    };
    for node in NODES {
        assert_eq!(log_in(node, "hostname"), format!("{node}\n"));
        assert!(log_in(node, "nvidia-smi -L").contains(&gpu_uuids(node)[0]), "{node}");
    }
}

#[test]
fn a_stopped_worker_is_started_and_a_changed_one_is_recreated() {
    let lab = Lab::up();
    let ids = NODES.map(|node| id_of(node, "hworker"));
    on("node2", "docker stop -t 1 hworker");
    lab.hvdctl(&["up"]).code(0).says(&["node1: unchanged", "node2: started hworker again (stopped)"]);
    assert_eq!(NODES.map(|node| id_of(node, "hworker")), ids, "the same containers");
    assert_eq!(banner("node2", 12345), "SSH-2.0-");

    let spec = inspect("node1", "hworker")["Config"]["Labels"]["hvdctl.spec"].clone();
    lab.edit("[defaults]", "port = 12346\n[defaults]");
    lab.hvdctl(&["up"]).code(0).says(&["node[1-2] (2): recreated hworker (port)"]);
    for (node, id) in NODES.iter().zip(&ids) {
        assert_eq!(ours(node), "hworker running\n");
        assert_ne!(id_of(node, "hworker"), *id, "{node}");
        assert_eq!((banner(node, 12346).as_str(), banner(node, 12345).as_str()), ("SSH-2.0-", ""), "{node}");
    }
    assert_ne!(inspect("node1", "hworker")["Config"]["Labels"]["hvdctl.spec"], spec);

    // under another name, too: the old one is removed
    lab.edit("[defaults]", "worker = \"other\"\n[defaults]");
    lab.hvdctl(&["up"]).code(0);
    assert_eq!(NODES.map(ours), ["other running\n", "other running\n"]);
}
