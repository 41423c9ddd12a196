//! `verify`: a real launch on the real nodes, compared with what was expected.

use crate::process::{eventually, s};
use crate::state::{FULL, Lab, NODES, gpu_uuids, no_job_is_left, no_session_is_left, on};
use crate::up::banner;
use serde_json::Value;

#[test]
fn ranks_gpus_and_allreduce_are_proven_under_both_controllers() {
    let lab = Lab::up_with_full_image();
    let uuids = NODES.map(gpu_uuids);
    assert!(uuids.iter().all(|u| u.len() == 1) && uuids[0] != uuids[1], "{uuids:?}");
    for controller in ["--gloo", "--mpi"] {
        let done = lab.hvdctl(&["verify", controller]).code(0);
        no_job_is_left();
        no_session_is_left(done.pid);
        let row = |start: [&str; 4], uuid: &str| {
            let found = done.out.lines().any(|line| {
                line.split_whitespace().take(4).eq(start) && line.split_whitespace().any(|cell| cell == uuid)
            });
            assert!(found, "{controller}: no row {start:?} with {uuid} in\n{}", done.out);
        };
        row(["0", "node1", "node1", "3"], &uuids[0][0]);
        row(["1", "node2", "node2", "3"], &uuids[1][0]);

        // the document has the same values
        if !FULL {
            continue;
        }
        let done = lab.hvdctl(&["verify", controller, "--json"]).code(0);
        let document: Value = serde_json::from_str(&done.out).unwrap();
        assert_eq!((&document["ok"], &document["controller"]), (&true.into(), &controller[2..].into()));
        let nodes = document["nodes"].as_array().unwrap();
        assert_eq!(nodes.len(), 2);
        for (i, node) in nodes.iter().enumerate() {
            let rank = &node["ranks"][0];
            assert_eq!((&node["node"], &node["ok"], &rank["rank"]), (&NODES[i].into(), &true.into(), &i.into()));
            assert_eq!((&rank["expected"], &rank["actual"]), (&NODES[i].into(), &NODES[i].into()));
            assert_eq!((&rank["report"]["sum"], &rank["report"]["size"]), (&3.into(), &2.into()));
            assert_eq!(rank["report"]["hostname"], NODES[i]);
            let gpus = rank["report"]["gpus"].as_array().unwrap();
            assert!(gpus.len() == 1 && gpus[0].as_str().unwrap().contains(&uuids[i][0]), "{gpus:?}");
        }
    }
    // the master alone: nothing has to leave it
    lab.hvdctl(&["verify", "-np", "1"]).code(0).says(&["ok: 1 rank"]);
    lab.hvdctl(&["verify", "-np", "3"]).code(2).complains(&["3", "2"]);
    no_job_is_left();
}

#[test]
fn a_launch_against_a_forged_host_key_starts_no_rank() {
    let lab = Lab::up();
    // the public half stays, so that no earlier check can find it
    let forge = "cd /opt/horovod/ssh && ssh-keygen -q -t ed25519 -N '' -C forged -f ../test-forged &&
        cat ../test-forged >ssh_host_ed25519_key && docker restart -t 1 hworker";
    on("node2", forge);
    assert!(eventually(s(10), || banner("node2", 12345) == "SSH-2.0-"), "the worker's sshd");
    for controller in ["--gloo", "--mpi"] {
        let rank = "echo started >>/opt/horovod/jobs/started";
        let done = lab.hvdctl(&["run", "-np", "2", controller, "--", "sh", "-c", rank]);
        assert_ne!(done.code, 0, "{controller}\n{}{}", done.out, done.err);
        done.complains(&["Host key verification failed"]);
        for node in NODES {
            on(node, "test ! -e /opt/horovod/jobs/started");
        }
        no_job_is_left();
    }
}

#[test]
fn a_host_key_that_is_not_the_pinned_one_is_found_before_a_launch() {
    let lab = Lab::up();
    let forge = "cd /opt/horovod/ssh && rm ssh_host_ed25519_key* &&
        ssh-keygen -q -t ed25519 -N '' -C forged -f ssh_host_ed25519_key && docker restart -t 1 hworker";
    on("node2", forge);
    let done = lab.hvdctl(&["verify", "--timeout", "60"]).code(1).says(&["nothing was launched"]);
    assert!(!done.out.contains("ok:"), "{}", done.out);
    no_job_is_left();
    no_session_is_left(done.pid);
    // the operator's own ssh to the node vouches for the new key: a push pins it
    lab.hvdctl(&["keys", "push"]).code(0).says(&["wrote known_hosts"]);
    lab.hvdctl(&["verify", "--mpi"]).code(0);
}

/// Tests of behaviour that other tests prove without a lab, and of rare corners of real machines (`scripts/test
/// --full`).
mod full {
    use super::*;

    #[test]
    fn another_gpu_than_the_machines_is_a_mismatch() {
        let lab = Lab::up();
        // the container keeps the list that it was made with; the machine gets another card
        let swap = "sed -i 's/GPU-[0-9a-f]*-/GPU-deadbeef-/' /usr/bin/nvidia-smi";
        on("node2", &format!("cp /usr/bin/nvidia-smi /opt/horovod/test-smi && {swap}"));
        let restore = crate::state::Restore(|| {
            on("node2", "cp /opt/horovod/test-smi /usr/bin/nvidia-smi && rm /opt/horovod/test-smi");
        });
        let done = lab.hvdctl(&["verify"]).code(1);
        done.says(&["failed: rank 1: GPUs: the machine has GPU-deadbeef", "the rank sees GPU-"]);
        let document: Value = serde_json::from_str(&lab.hvdctl(&["verify", "--json"]).code(1).out).unwrap();
        assert_eq!(
            (&document["ok"], &document["nodes"][0]["ok"], &document["nodes"][1]["ok"]),
            (&false.into(), &true.into(), &false.into())
        );
        drop(restore);
        no_job_is_left();
    }
}
