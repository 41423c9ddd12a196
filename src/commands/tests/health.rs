//! `verify` on nodes with stand-in GPUs: their health, and which rank has which GPU and cores.

use super::*;
use crate::inventory::Gpus;
use crate::transport::node::scripted::{Fault, Play};
use serde_json::json;

/// The output of the facts script on a node with two GPUs.
const TWO: &str = "nvidia-smi yes\ngpu GPU 0: NVIDIA H200 (UUID: GPU-aa)\ngpu GPU 1: NVIDIA H200 (UUID: GPU-bb)\n\
                   gpu exit 0\nmig exit 0\n";
/// And with two MIG devices.
const MIG: &str = "nvidia-smi yes\ngpu GPU 0: NVIDIA H200 (UUID: GPU-aa)\n\
                   gpu   MIG 3g.71gb     Device  0: (UUID: MIG-1)\ngpu   MIG 3g.71gb     Device  1: (UUID: MIG-2)\n\
                   mig 0, Enabled\ngpu exit 0\nmig exit 0\n";

const RECORDED: &str = include_str!("../../../tests/fixtures/nvidia-smi/h200-580-busy.xml");

/// The lines of the script of health for two GPUs, of which the second is changed so.
fn health(change: &[(&str, &str)]) -> String {
    let (start, gpu) = RECORDED.split_at(RECORDED.find("\t<gpu ").unwrap());
    let (gpu, end) = gpu.split_at(gpu.find("</nvidia_smi_log>").unwrap());
    let own = "GPU-00000000-1111-2222-3333-444444444200";
    let second = change.iter().fold(gpu.replace(own, "GPU-bb"), |text, (from, to)| {
        assert!(text.contains(from), "{from}");
        text.replace(from, to)
    });
    let start = start.replace("<attached_gpus>1", "<attached_gpus>2");
    let document = format!("{start}{}{second}{end}", gpu.replace(own, "GPU-aa"));
    let lines: String = document.lines().map(|line| format!("xml {line}\n")).collect();
    format!("{lines}xml exit 0\n")
}

/// A rank's line, with these values instead of good ones.
fn report(rank: u32, other: &Value) -> String {
    let device = ["GPU-aa", "GPU-bb"][rank as usize];
    let mut report = json!({
        "rank": rank, "size": 2, "local_rank": rank, "sum": 3, "hostname": "node1",
        "gpus": ["GPU 0: NVIDIA H200 (UUID: GPU-aa)", "GPU 1: NVIDIA H200 (UUID: GPU-bb)"],
        "place": {
            "device": device, "cuda_error": null, "gpu_numa": rank, "cpus": (["0-3", "4-7"][rank as usize]),
            "numa": [rank], "numa_nodes": [0, 1], "cores": 8, "visible_devices": null, "device_order": "PCI_BUS_ID",
        },
        "framework": "torch 2.4", "library": "Horovod 0.28.1", "python": "3.11",
    });
    for (key, value) in other.as_object().unwrap() {
        let place = if report.get(key).is_some() { &mut report } else { &mut report["place"] };
        place[key] = value.clone();
    }
    report.to_string()
}

/// A job of two ranks, of which the second reports something else.
fn job(second: &Value) -> Play {
    let mut play = Play::default();
    for (rank, other) in [(0, &json!({})), (1, second)] {
        let output = format!("{rank} o {}", report(rank, other));
        play = play.frame(0, "node1", &format!("{rank} s ")).frame(10, "node1", &output);
        play = play.frame(20, "node1", &format!("{rank} x 0"));
    }
    play.ends(30, 0)
}

/// A node with two GPUs that is up.
async fn one_with_gpus(facts: &str, health: &str) -> Nodes {
    let nodes = Nodes::new(&NODES);
    NODES.iter().for_each(|node| nodes.edit(node, |state| (state.facts, state.health) = (facts.into(), health.into())));
    hvdctl(&nodes, "up").await.code(0);
    nodes
}

async fn verify(nodes: &Nodes, line: &str, second: &Value) -> Done {
    nodes.play(job(second));
    hvdctl(nodes, &format!("--on node1 verify{line}")).await
}

#[tokio::test(start_paused = true)]
async fn healthy_gpus_are_counted_and_sick_ones_named() {
    let nodes = one_with_gpus(TWO, &health(&[])).await;
    let done = verify(&nodes, "", &json!({})).await;
    done.code(0).says(&["ok: 2 ranks where expected, allreduce correct, 2 GPUs healthy (torch 2.4"]);
    done.says(&["1     node1     node1   3    4-7   1     GPU-bb  GPU 1: NVIDIA H200\n"]);
    for (change, fault) in [
        (("hw_slowdown>Not Active", "hw_slowdown>Active"), "GPU 1: hardware slowdown, 1980 of 1980 MHz"),
        (
            ("<dram_uncorrectable>0", "<dram_uncorrectable>2"),
            "GPU 1: 2 uncorrectable ECC errors since the driver was loaded",
        ),
        (("<remapped_row_pending>No", "<remapped_row_pending>Yes"), "GPU 1: a repair of its memory is pending"),
        (("<gpu_recovery_action>None", "<gpu_recovery_action>Reset"), "GPU 1: the driver recommends: Reset"),
        (("<gpu_temp>49 C", "<gpu_temp>[Unknown Error]"), "GPU 1: cannot read gpu_temp: [Unknown Error]"),
    ] {
        nodes.edit("node1", |state| state.health = health(&[change]));
        let done = verify(&nodes, "", &json!({})).await;
        done.code(1).says(&[&format!("failed: node1: {fault}\n  why: ")]);
        assert!(!done.out.contains("ok:"), "{done}");
    }
    // the second GPU is gone
    nodes.edit("node1", |state| state.health = health(&[]).replace("<attached_gpus>2", "<attached_gpus>3"));
    verify(&nodes, "", &json!({})).await.code(1).says(&["nvidia-smi counts 3 GPUs and describes 2"]);
    nodes.edit("node1", |state| state.health = "xml exit 124\n".into());
    verify(&nodes, "", &json!({})).await.code(1).says(&["node1: nvidia-smi -q failed: no answer within 20 s"]);
    // what some cards that work cannot report either
    let change = ("<instant_power_draw>409.90 W", "<instant_power_draw>[Unknown Error]");
    nodes.edit("node1", |state| state.health = health(&[change]));
    let done = verify(&nodes, "", &json!({})).await;
    done.code(0).complains(&["warning: node1: GPU 1: cannot read instant_power_draw: [Unknown Error]"]);
    // a narrow link is slow, and no fault
    nodes.edit("node1", |state| state.health = health(&[("<current_link_width>16x", "<current_link_width>4x")]));
    let done = verify(&nodes, "", &json!({})).await;
    done.code(0).complains(&["warning: node1: GPU 1: PCIe lanes: 4 of 16"]);
    let document = verify(&nodes, " --json", &json!({})).await.code(0).document();
    assert_eq!(document["findings"][0]["check"], "gpu-pcie", "{document}");
    assert_eq!(document["nodes"][0]["gpus"][1]["pcie_width"], 4, "{document}");
    assert_eq!(document["nodes"][0]["driver"], "580.159.04");
}

#[tokio::test(start_paused = true)]
async fn gpus_that_the_inventory_leaves_out_are_not_examined() {
    let nodes = Nodes::new(&NODES);
    let sick = health(&[("hw_slowdown>Not Active", "hw_slowdown>Active")]);
    nodes.edit("node1", |state| (state.facts, state.health) = (TWO.into(), sick.clone()));
    let first = async |line: &str| {
        let mut inventory = inventory(&nodes);
        inventory.nodes[0].gpus = Gpus::List(vec!["0".into()]);
        hvdctl_on(&nodes, inventory, line, mpsc::unbounded_channel().1).await
    };
    first("--on node1 up").await.code(0);
    let output = report(0, &json!({ "size": 1, "sum": 1, "gpus": ["GPU 0: NVIDIA H200 (UUID: GPU-aa)"] }));
    let play = Play::default().frame(0, "node1", "0 s ").frame(10, "node1", &format!("0 o {output}"));
    nodes.play(play.frame(20, "node1", "0 x 0").ends(30, 0));
    first("--on node1 verify").await.code(0).says(&["allreduce correct, 1 GPU healthy (torch 2.4"]);
}

#[tokio::test(start_paused = true)]
async fn only_faults_of_the_machine_are_recorded() {
    let nodes = one_with_gpus(TWO, &health(&[])).await;
    let recorded = |nodes: &Nodes| {
        let text = nodes.state("node1").ledger;
        let checks = text.lines().filter_map(|line| line.split_once("\"what\":\"check\","));
        checks.map(|(_, rest)| rest.to_owned()).collect::<Vec<_>>()
    };
    let passed = "\"by\":\"verify\"}";
    verify(&nodes, "", &json!({ "hostname": "x", "gpus": null, "python": "3.8" })).await.code(1);
    assert_eq!(recorded(&nodes), [passed]);
    let cuda = "CUDA does not work there: cuInit failed: X";
    verify(&nodes, "", &json!({ "cuda_error": cuda, "python": "3.8" })).await.code(1);
    assert_eq!(recorded(&nodes)[1..], [format!("\"by\":\"verify\",\"failed\":[\"{cuda}\"]}}")]);
    // whether the GPUs are healthy is not known
    nodes.fault("node1", "node/health.sh", Fault::Silent);
    verify(&nodes, "", &json!({})).await.code(1).says(&["why: whether its GPUs are healthy is not known"]);
    assert_eq!(recorded(&nodes).len(), 2);
}

#[tokio::test(start_paused = true)]
async fn gpus_that_cannot_be_examined_are_a_fault() {
    let nodes = one_with_gpus(TWO, &health(&[])).await;
    nodes.fault("node1", "node/health.sh", Fault::Fails("sh: Input/output error".into()));
    let done = verify(&nodes, "", &json!({})).await;
    done.code(1).says(&["failed: node1: cannot examine the GPUs: sh: Input/output error"]);
    nodes.repair();
    // nothing is asked where there are none
    let nodes = two_up().await;
    nodes.play(Play::default().ends(10, 0));
    hvdctl(&nodes, "--on node1 verify -np 1").await;
    assert_eq!((nodes.count("node/health.sh"), nodes.count("job/start.sh")), (vec![0, 0], vec![1, 0]));
}

#[tokio::test(start_paused = true)]
async fn promised_gpus_that_no_nvidia_smi_lists_are_a_fault() {
    let nodes = two_up().await;
    let mut promises = inventory(&nodes);
    promises.nodes[0].gpus = Gpus::Count(1);
    nodes.play(job(&json!({})));
    let done = hvdctl_on(&nodes, promises.clone(), "--on node1 verify", mpsc::unbounded_channel().1).await;
    done.code(1).says(&["failed: node1: the inventory has `gpus` = 1, but the node has no nvidia-smi\n"]);
    assert!(!done.out.contains("ok:"), "{done}");
}

#[tokio::test(start_paused = true)]
async fn dcgm_is_asked_by_a_full_verification() {
    let nodes = one_with_gpus(TWO, &health(&[])).await;
    nodes.edit("node1", |state| {
        state.diagnosis = "dcgmi | Inforom | Pass |\ndcgmi | Denylist | Fail |\ndcgmi exit 226\n".into()
    });
    verify(&nodes, "", &json!({})).await.code(0);
    verify(&nodes, " --full", &json!({})).await.code(1).says(&["failed: node1: DCGM: Denylist Fail\n"]);
    nodes.edit("node1", |state| state.diagnosis = "dcgmi | Inforom | Pass |\ndcgmi exit 0\n".into());
    verify(&nodes, " --full", &json!({})).await.complains(&["node1: DCGM: 1 test passed"]);
}

#[tokio::test(start_paused = true)]
async fn a_rank_with_another_gpu_or_other_cores_is_named() {
    let nodes = one_with_gpus(TWO, &health(&[])).await;
    let one = json!(["GPU 0: NVIDIA H200 (UUID: GPU-aa)"]);
    for (line, second, faults) in [
        (
            "",
            json!({ "device": "GPU-aa" }),
            &["rank 1: GPU: expected GPU-bb, got GPU-aa", "rank 1: GPU: it shares GPU-aa with rank 0"][..],
        ),
        ("", json!({ "gpus": one }), &["rank 1: GPUs: the machine has GPU-aa GPU-bb, the rank sees GPU-aa"]),
        (
            "",
            json!({ "cuda_error": "CUDA does not work there: cuInit failed: X" }),
            &["rank 1: CUDA does not work there"],
        ),
        ("", json!({ "numa": [0], "cpus": "0-3" }), &["rank 1: NUMA node: expected 1, as for its GPU, got 0 (0-3)"]),
        (" --bind core", json!({ "cpus": "3-4" }), &["rank 1: cores: it shares some of 3-4 with rank 0"]),
        (" --map-by node", json!({ "local_rank": 0 }), &["rank 1: local rank: expected 1, got 0"]),
    ] {
        let done = verify(&nodes, line, &second).await;
        done.code(1).says(faults);
    }
    verify(&nodes, " --bind none", &json!({ "numa": [0], "cpus": "0-3" })).await.code(0);
}

#[tokio::test(start_paused = true)]
async fn mig_devices_are_compared_as_such() {
    let nodes = one_with_gpus(MIG, &health(&[])).await;
    let gpus = json!([
        "GPU 0: NVIDIA H200 (UUID: GPU-aa)",
        "  MIG 3g.71gb     Device  0: (UUID: MIG-1)",
        "  MIG 3g.71gb     Device  1: (UUID: MIG-2)"
    ]);
    let of = |device: &str| json!({ "gpus": gpus, "device": device, "visible_devices": device });
    for (second, code) in [("MIG-2", 0), ("MIG-1", 1)] {
        let ranks = [(0, of("MIG-1")), (1, of(second))].map(|(rank, other)| report(rank, &other));
        let mut play = Play::default();
        for (rank, report) in ranks.iter().enumerate() {
            play = play.frame(0, "node1", &format!("{rank} s ")).frame(10, "node1", &format!("{rank} o {report}"));
        }
        nodes.play(play.frame(20, "node1", "0 x 0").frame(20, "node1", "1 x 0").ends(30, 0));
        let done = hvdctl(&nodes, "--on node1 verify").await;
        done.code(code);
        if code == 1 {
            done.says(&["rank 1: GPU: expected MIG-2, got MIG-1", "it shares MIG-1 with rank 0"]);
        } else {
            done.says(&["MIG-2  MIG 3g.71gb Device 1\n"]);
        }
    }
}
