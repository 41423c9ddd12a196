//! Nodes and workers that lose their GPUs.

use crate::state::{Lab, Restore, id_of, node_sh, on};

#[test]
fn a_worker_that_has_lost_its_gpus_is_replaced_before_ranks_start() {
    let lab = Lab::up();
    let before = ["node1", "node2"].map(|node| id_of(node, "hworker"));
    let message = "Failed to initialize NVML: Unknown Error";
    let lose = format!("printf '#!/bin/sh\\necho {message}\\nexit 255\\n' >$(command -v nvidia-smi)");
    node_sh("node2", "docker exec hworker sh -c \"$1\"", &[&lose]).code(0);
    let done = lab
        .hvdctl(&[
            "run",
            "-np",
            "2",
            "--map-by",
            "node",
            "--launcher",
            "env",
            "--",
            "sh",
            "-c",
            "nvidia-smi -L | cut -c1-18",
        ])
        .code(0);
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

/// Tests of behaviour that other tests prove without a lab, repeated on real nodes (`scripts/test --full`).
mod full {
    use super::*;
    use crate::state::IMAGE;

    #[test]
    fn accelerators_of_another_maker_need_a_line_of_the_inventory() {
        let lab = Lab::empty();
        let hide = "mv /usr/bin/nvidia-smi /usr/bin/nvidia-smi.away; rm -f /dev/nvidia*; mknod /dev/neuron0 c 1 3";
        let _back = Restore(|| {
            drop(node_sh("node2", "mv /usr/bin/nvidia-smi.away /usr/bin/nvidia-smi; rm -f /dev/neuron0", &[]));
        });
        node_sh("node2", hide, &[]).code(0);
        lab.edit("host = \"node2\"", "host = \"node2\"\ngpus = \"auto\"");
        let warning = "node2: it has 1 AWS Neuron device, which its containers cannot use";
        lab.hvdctl(&["up"]).code(0).complains(&[warning, "devices = [\"/dev/neuron0\"], slots = 1"]);
        lab.edit("gpus = \"auto\"", "gpus = \"auto\"\ndevices = [\"/dev/neuron0\"]\nslots = 1");
        let done = lab.hvdctl(&["up"]).code(0);
        assert!(!done.err.contains("Neuron"), "{}", done.err);
        let see = ["run", "-np", "2", "--map-by", "node", "--", "sh", "-c", "ls /dev/neuron*; :"];
        lab.hvdctl(&see).code(0).says(&["[1 node2] /dev/neuron0"]);
    }

    #[test]
    fn an_image_that_asks_for_all_gpus_gets_none_where_none_was_promised() {
        let lab = Lab::empty();
        let image = "hvdctl-lab/asks-for-gpus:1";
        for node in ["node1", "node2"] {
            let build =
                format!("printf 'FROM {IMAGE}\nENV NVIDIA_VISIBLE_DEVICES=all\n' | docker build -q -t {image} -");
            on(node, &build);
        }
        lab.edit(IMAGE, image);
        lab.edit("gpus = 1", "gpus = 0");
        lab.hvdctl(&["up"]).code(0);
        let ranks = ["run", "-np", "2", "--map-by", "node", "--", "sh", "-c", "nvidia-smi -L; echo ran"];
        let done = lab.hvdctl(&ranks).code(0).says(&["[0 node1] ran", "[1 node2] ran"]);
        assert!(!done.out.contains("GPU 0"), "{}", done.out);
        for node in ["node1", "node2"] {
            let env = on(node, "docker inspect -f '{{json .Config.Env}}' hworker");
            assert!(env.contains("NVIDIA_VISIBLE_DEVICES=void"), "{env}");
        }
        for node in ["node1", "node2"] {
            on(node, &format!("docker rmi -f {image}"));
        }
    }
}
