//! Nodes and workers that lose their GPUs.

use crate::state::{Lab, Restore, id_of, node_sh, on};

#[test]
fn a_worker_that_has_lost_its_gpus_is_replaced_before_ranks_start() {
    let lab = Lab::up();
    let before = ["node1", "node2"].map(|node| id_of(node, "hworker"));
    let message = "Failed to initialize NVML: Unknown Error";
    let lose = format!("printf '#!/bin/sh\\necho {message}\\nexit 255\\n' >$(command -v nvidia-smi)");
    node_sh("node2", "docker exec hworker sh -c \"$1\"", &[&lose]).code(0);
    let done =
        lab.hvdctl(&["run", "-np", "2", "--map-by", "node", "--", "sh", "-c", "nvidia-smi -L | cut -c1-18"]).code(0);
    let done = done.says(&["[1 node2] GPU 0: NVIDIA H200"]);
    done.complains(&["warning: node2: hworker was started with 1 GPU and now sees 0: ", message, "it is recreated"]);
    let after = ["node1", "node2"].map(|node| id_of(node, "hworker"));
    assert_eq!((after[0] == before[0], after[1] == before[1]), (true, false));

    // one that does not get them back, although the engine started it
    node_sh("node2", "docker exec hworker sh -c \"$1\"", &[&lose]).code(0);
    let template = "/usr/local/share/hvdctl-lab/nvidia-smi";
    let _back = Restore(|| drop(node_sh("node2", &format!("mv {template}.away {template}"), &[])));
    on(
        "node2",
        &format!("mv {template} {template}.away; printf '#!/bin/sh\\necho {message}\\nexit 255\\n' >{template}"),
    );
    let done = lab.hvdctl(&["run", "-np", "2", "--map-by", "node", "--", "echo", "started"]).code(125);
    let done = done.complains(&[
        "error: node2: cannot run ranks in hworker: it was started with 1 GPU",
        message,
        "`hvdctl up`",
    ]);
    assert!(!done.out.contains("started"), "{}", done.out);
}
