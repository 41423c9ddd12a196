//! Each rule with what it fires on, over recorded documents that are changed.

use super::*;
use crate::inventory::Gpus;

const BUSY: &str = include_str!("../../../tests/fixtures/nvidia-smi/h200-580-busy.xml");
const IDLE: &str = include_str!("../../../tests/fixtures/nvidia-smi/h200-580-idle.xml");

/// A report of a document with these changes, and more lines of the script.
fn health(document: &str, changes: &[(&str, &str)], more: &str) -> NodeHealth {
    let changed = changes.iter().fold(document.to_owned(), |text, (from, to)| {
        assert!(text.contains(from), "{from}");
        text.replace(from, to)
    });
    let lines: String = changed.lines().map(|line| format!("xml {line}\n")).collect();
    NodeHealth::parse(&format!("{lines}xml exit 0\n{more}"))
}

/// Two GPUs like the recorded one, of which the second is changed.
fn two(changes: &[(&str, &str)], more: &str) -> NodeHealth {
    let gpu = &BUSY[BUSY.find("\t<gpu ").unwrap()..BUSY.find("</nvidia_smi_log>").unwrap()];
    let second = changes.iter().fold(gpu.replace("4200<", "4201<").replace(":06.0", ":07.0"), |text, (from, to)| {
        assert!(text.contains(from), "{from}");
        text.replace(from, to)
    });
    let second = format!("{second}</nvidia_smi_log>");
    health(BUSY, &[("</nvidia_smi_log>", &second), ("<attached_gpus>1", "<attached_gpus>2")], more)
}

/// `SEVERITY CHECK NODES: SEEN` of nodes with this health.
fn found_of(healths: &[NodeHealth]) -> Vec<String> {
    let nodes: Vec<Node> = (0..healths.len())
        .map(|index| Node { name: format!("n{index}"), master: index == 0, ..Node::default() })
        .collect();
    let facts = Facts::default();
    let views: Vec<GpuNode<'_>> =
        nodes.iter().zip(healths).map(|(node, health)| GpuNode { node, facts: &facts, health }).collect();
    let found = examine(&views);
    for finding in &found {
        let is_explained = !finding.why.is_empty() && !finding.hint.is_empty();
        assert!(finding.severity == Note || is_explained, "no why or no hint: {finding:?}");
    }
    let line = |f: Finding| format!("{} {} {}: {}", f.severity, f.check, nodeset::fold(&f.nodes), f.message);
    found.into_iter().map(line).collect()
}

fn found(health: NodeHealth) -> Vec<String> {
    found_of(&[health])
}

#[test]
fn what_is_sound_has_no_finding() {
    let none: [&str; 0] = [];
    assert_eq!(found(health(BUSY, &[], "")), none);
    assert_eq!(found(health(IDLE, &[], "")), none);
    assert_eq!(found(two(&[], "pci 0000:00:06.0\npci 0000:00:07.0\n")), none);
    assert_eq!(found_of(&[two(&[], ""), health(BUSY, &[], "")]), none);
    assert_eq!(found(NodeHealth::parse("")), none, "a node without nvidia-smi");
}

#[test]
fn each_fault_of_a_gpu_is_named() {
    for (change, expected) in [
        (
            ("hw_slowdown>Not Active", "hw_slowdown>Active"),
            "error gpu-clocks n0: GPU 0: hardware slowdown, 1980 of 1980 MHz",
        ),
        (
            ("power_brake_slowdown>Not Active", "power_brake_slowdown>Active"),
            "error gpu-clocks n0: GPU 0: hardware slowdown by the power supply, 1980 of 1980 MHz",
        ),
        (
            ("sw_thermal_slowdown>Not Active", "sw_thermal_slowdown>Active"),
            "warning gpu-clocks n0: GPU 0: slowdown by heat, 1980 of 1980 MHz",
        ),
        (("sw_power_cap>Not Active", "sw_power_cap>Active"), "note gpu-clocks n0: GPU 0: power cap, 1980 of 1980 MHz"),
        (
            ("<gpu_temp_tlimit>38 C", "<gpu_temp_tlimit>2 C"),
            "warning gpu-heat n0: GPU 0: 49 C, 2 C below its slowdown limit",
        ),
        (
            ("<remapped_row_pending>No", "<remapped_row_pending>Yes"),
            "error gpu-memory n0: GPU 0: a repair of its memory is pending",
        ),
        (
            ("<pending_retirement>N/A", "<pending_retirement>Yes"),
            "error gpu-memory n0: GPU 0: a repair of its memory is pending",
        ),
        (
            ("<remapped_row_failure>No", "<remapped_row_failure>Yes"),
            "error gpu-memory n0: GPU 0: its memory could not be repaired",
        ),
        (("<current_link_gen>5", "<current_link_gen>3"), "warning gpu-pcie n0: GPU 0: PCIe: generation 3 of 5"),
        (
            ("<gpu_recovery_action>None", "<gpu_recovery_action>Reboot"),
            "error gpu-lost n0: GPU 0: the driver recommends: Reboot",
        ),
        (
            ("<gpu_temp>49 C", "<gpu_temp>[GPU is lost]"),
            "error gpu-lost n0: GPU 0: cannot read gpu_temp: [GPU is lost]",
        ),
        (
            ("<persistence_mode>Enabled", "<persistence_mode>Disabled"),
            "note gpu-settings n0: GPU 0: persistence mode is off",
        ),
        (
            ("<pending_mig>Disabled", "<pending_mig>Enabled"),
            "warning gpu-settings n0: GPU 0: its next reset switches MIG mode on",
        ),
        (("<current_ecc>Enabled", "<current_ecc>Disabled"), "note gpu-settings n0: GPU 0: ECC is off"),
        (
            ("<current_power_limit>700", "<current_power_limit>400"),
            "note gpu-settings n0: GPU 0: its power limit is 400 W, by default 700 W",
        ),
        (
            ("<compute_mode>Default", "<compute_mode>Prohibited"),
            "error gpu-settings n0: GPU 0: its compute mode is Prohibited",
        ),
        (
            ("<compute_mode>Default", "<compute_mode>Exclusive_Process"),
            "note gpu-settings n0: GPU 0: its compute mode is Exclusive_Process: two ranks cannot share it",
        ),
        (
            ("<remapped_row_pending>No", "<remapped_row_pending>Perhaps"),
            "warning gpu-lost n0: GPU 0: cannot understand its pending repairs of memory (Perhaps)",
        ),
    ] {
        assert_eq!(found(health(BUSY, &[change], "")), [expected], "{change:?}");
    }
    let fabric = health(BUSY, &[("<fabric>\n\t\t\t<state>N/A", "<fabric>\n\t\t\t<state>In Progress")], "");
    assert_eq!(found(fabric), ["error nvlink n0: GPU 0: its NVLink fabric is not ready: In Progress"]);
    // an idle GPU saves power
    let idle = [("<current_link_gen>5", "<current_link_gen>1")];
    assert_eq!(found(health(IDLE, &idle, "")), [""; 0]);
}

#[test]
fn memory_that_no_process_has_is_named() {
    let used = "<used>909 MiB";
    let leaked = (used, "<used>14409 MiB");
    let expected = "warning gpu-users n0: GPU 0: 13.2 GiB of its memory are in use by no process that nvidia-smi lists";
    assert_eq!(found(health(BUSY, &[leaked], "")), [expected]);
    let none = ("<used_memory>900 MiB", "<used_memory>N/A");
    let mig = ("<current_mig>Disabled", "<current_mig>Enabled");
    let pending = ("<pending_mig>Disabled", "<pending_mig>Enabled");
    for other in [
        &[leaked, none][..],
        &[leaked, ("NVIDIA H200", "NVIDIA GH200 480GB")],
        &[leaked, ("<used_memory>900 MiB", "<used_memory>13500 MiB")],
        &[(used, "<used>1923 MiB")],
        &[(used, "<used>N/A")],
    ] {
        assert_eq!(found(health(BUSY, other, "")), [""; 0], "{other:?}");
    }
    assert!(found(health(BUSY, &[leaked, mig, pending], "")).iter().all(|line| !line.contains("gpu-users")));
}

#[test]
fn earlier_drivers_ask_for_a_reset_in_two_ways() {
    let recovery = "<gpu_recovery_action>None</gpu_recovery_action>";
    let status = |required: &str, recommended: &str| {
        format!(
            "<gpu_reset_status><reset_required>{required}</reset_required>\
             <drain_and_reset_recommended>{recommended}</drain_and_reset_recommended></gpu_reset_status>"
        )
    };
    for (status, expected) in [
        (status("No", "No"), None),
        (status("N/A", "N/A"), None),
        (status("Yes", "No"), Some("error gpu-lost n0: GPU 0: the driver recommends: Reset")),
        (status("No", "Yes"), Some("error gpu-lost n0: GPU 0: the driver recommends: Drain and Reset")),
        (status("Yes", "N/A"), Some("error gpu-lost n0: GPU 0: the driver recommends: Reset")),
        (status("Perhaps", "No"), Some("warning gpu-lost n0: GPU 0: cannot understand its reset status (Perhaps)")),
        // a newer element says more
        (format!("{}{recovery}", status("Yes", "No")), None),
    ] {
        let found = found(health(BUSY, &[(recovery, &status)], ""));
        assert_eq!(found, Vec::from_iter(expected), "{status}");
    }
}

#[test]
fn a_virtual_gpu_without_a_license_is_slow() {
    for product in ["vgpu_software_licensed_product", "grid_licensed_product"] {
        let of = |status: &str| {
            let license = format!("<{product}><license_status>{status}</license_status></{product}><compute_mode>");
            found(health(BUSY, &[("<compute_mode>", &license)], ""))
        };
        for slow in ["Unlicensed (Restricted)", "Unlicensed"] {
            assert_eq!(of(slow), [format!("warning gpu-settings n0: GPU 0: its vGPU license: {slow}")]);
        }
        for good in ["Licensed (Expiry: 2027-1-2 3:4:5 GMT)", "Unlicensed (Unrestricted)", "N/A"] {
            assert_eq!(of(good), [""; 0], "{good}");
        }
    }
}

#[test]
fn a_narrow_link_is_one_that_others_of_its_model_do_not_have() {
    let width = |width: &'static str| ("<current_link_width>16x", width);
    let (half, none) = (width("<current_link_width>8x"), width("<current_link_width>0x"));
    assert_eq!(found(health(BUSY, &[half], "")), ["note gpu-pcie n0: GPU 0: PCIe lanes: 8 of 16"]);
    assert_eq!(found(two(&[half], "")), ["warning gpu-pcie n0: GPU 1: PCIe lanes: 8 of 16"]);
    let between = found_of(&[health(BUSY, &[], ""), health(BUSY, &[half], "")]);
    assert_eq!(between, ["warning gpu-pcie n1: GPU 0: PCIe lanes: 8 of 16"]);
    let all = two(&[], "").machine.unwrap().unwrap();
    let gpus = all.gpus.into_iter().map(|gpu| GpuHealth { pcie_width: Reading::Known(8), ..gpu }).collect();
    let all = NodeHealth { machine: Some(Ok(MachineHealth { gpus, ..all })), ..NodeHealth::parse("") };
    assert_eq!(found(all), ["note gpu-pcie n0: GPUs 0, 1: PCIe lanes: 8 of 16"]);
    // one of another model is no reason to expect more
    let models = found(two(&[half, ("NVIDIA H200", "NVIDIA L4")], ""));
    assert_eq!(models[1..], ["note gpu-pcie n0: GPU 1: PCIe lanes: 8 of 16"]);
    for unknown in [none, width("<current_link_width>N/A"), ("<max_link_width>16x", "<max_link_width>0x")] {
        assert_eq!(found(two(&[unknown], "")), [""; 0], "{unknown:?}");
    }
}

#[test]
fn like_faults_of_a_node_are_one_finding() {
    let both = two(&[], "");
    let Some(Ok(mut machine)) = both.machine else { panic!() };
    machine.gpus.iter_mut().for_each(|gpu| gpu.uncorrected_errors = Reading::Known(1));
    let both = NodeHealth { machine: Some(Ok(machine)), ..NodeHealth::parse("") };
    assert_eq!(found(both), ["error gpu-memory n0: GPUs 0, 1: 1 uncorrectable ECC error since the driver was loaded"]);
}

#[test]
fn gpus_that_are_missing_or_differ_are_named() {
    assert_eq!(
        found(two(&[], "pci 0000:00:06.0\npci 0000:00:07.0\npci 0000:41:00.0\n")),
        ["error gpu-lost n0: nvidia-smi does not list the GPU at 0000:41:00.0"]
    );
    let counts = health(BUSY, &[("<attached_gpus>1", "<attached_gpus>8")], "");
    assert_eq!(found(counts), ["error gpu-lost n0: nvidia-smi counts 8 GPUs and describes 1"]);
    let a100 = [("NVIDIA H200", "NVIDIA A100"), ("<total>143771", "<total>81920")];
    assert_eq!(
        found(two(&a100, "")),
        ["warning gpu-models n0: its GPUs differ in their model: GPU 1 NVIDIA A100 with 81920 MiB; the others \
             NVIDIA H200 with 143771 MiB"]
    );
    assert_eq!(
        found_of(&[health(BUSY, &[], ""), health(BUSY, &a100, ""), health(BUSY, &[], "")]),
        ["warning gpu-models n1: the GPUs differ: n[0,2] NVIDIA H200 with 143771 MiB · n1 NVIDIA A100 with 81920 MiB"]
    );
    let vbios = found_of(&[health(BUSY, &[], ""), health(BUSY, &[("96.00.A5.00.1A", "96.00.A5.00.02")], "")]);
    assert!(vbios.len() == 1 && vbios[0].starts_with("note gpu-models n1: the VBIOS versions"), "{vbios:?}");
}

#[test]
fn links_are_compared_with_the_best() {
    let of = |second: [&str; 2]| {
        let uuid = |index: u32| {
            format!("link GPU {index}: NVIDIA H200 (UUID: GPU-00000000-1111-2222-3333-44444444420{index})\n")
        };
        let link = |text: &str| format!("link \t Link 0: {text}\n");
        let first = [link("26.562 GB/s"), link("26.562 GB/s")].concat();
        found(two(&[], &format!("{}{first}{}{}", uuid(0), uuid(1), second.map(link).concat())))
    };
    assert_eq!(of(["26.562 GB/s", "26.562 GB/s"]), [""; 0]);
    assert_eq!(of(["26.562 GB/s", "<inactive>"]), ["error nvlink n0: GPU 1: 1 of 2 NVLinks are active"]);
    assert_eq!(of(["<inactive>", "<inactive>"]), ["warning nvlink n0: GPU 1: 0 of 2 NVLinks are active"]);
}

#[test]
fn errors_in_the_kernel_log_matter_by_their_number() {
    let log = |lines: &str| found(health(BUSY, &[], lines));
    for (line, expected) in [
        (
            "xid 1 NVRM: Xid (PCI:0000:41:00): 79, GPU has fallen off the bus.\n",
            "error xid n0: Xid 79 of the GPU at 0000:41:00 since the boot: the GPU has fallen off the bus",
        ),
        (
            "xid 4 NVRM: Xid (PCI:0000:41:00): 31, pid=7, name=python3, Ch 00000008\n",
            "note xid n0: Xid 31 of the GPU at 0000:41:00 since the boot, 4 times: a program used an invalid address",
        ),
        (
            "xid 1 NVRM: Xid (PCI:0000:41:00): 999, something new\n",
            "warning xid n0: Xid 999 of the GPU at 0000:41:00 since the boot: something new",
        ),
        (
            "pci-foreign 0000:c1:00.0\nxid 1 NVRM: Xid (PCI:0000:C1:00): 79, GPU has fallen off the bus.\n",
            "note xid n0: Xid 79 of the GPU at 0000:C1:00 (not a GPU of this node) since the boot: the GPU has fallen \
             off the bus",
        ),
        (
            "pci-foreign 0000:c1:00.0\nxid 1 NVRM: Xid (PCI:0000:41:00): 79, GPU has fallen off the bus.\n",
            "error xid n0: Xid 79 of the GPU at 0000:41:00 since the boot: the GPU has fallen off the bus",
        ),
        ("log partial\n", "note xid n0: its kernel log no longer reaches back to the boot"),
        ("log unread dmesg: not permitted\n", "note xid n0: its kernel log cannot be read: dmesg: not permitted"),
    ] {
        assert_eq!(log(line), [expected]);
    }
    // of a node whose nvidia-smi fails, the log is read all the same
    let broken = NodeHealth::parse("xml exit 9\nxid 1 NVRM: Xid (PCI:0000:41:00): 79, x\n");
    let lines = found(broken);
    assert_eq!((lines.len(), &*lines[0]), (2, "error nvidia-smi n0: nvidia-smi -q failed: exit code 9"), "{lines:?}");
}

#[test]
fn the_diagnosis_is_shown() {
    let of = |lines: &str| found(health(BUSY, &[], lines));
    let good = "dcgmi | Denylist | Pass |\ndcgmi | Inforom | Pass |\ndcgmi exit 0\n";
    assert_eq!(of(good), ["note dcgm n0: DCGM: 2 tests passed"]);
    let bad = "dcgmi | Inforom | Fail |\ndcgmi | Warning | GPU 0 is bad |\ndcgmi exit 226\n";
    assert_eq!(of(bad), ["error dcgm n0: DCGM: Inforom Fail: GPU 0 is bad"]);
    assert_eq!(of("dcgmi \ndcgmi exit 124\n"), ["note dcgm n0: dcgmi diag -r 1 has no result: no answer"]);
}

#[test]
fn an_nvidia_smi_that_fails_is_reported_once() {
    let node = Node { gpus: Gpus::Auto, ..Node::default() };
    let failed =
        Facts { nvidia_smi: gpus::NvidiaSmi::Failed(gpus::GpuQueryFailure::Said("x".into())), ..Facts::default() };
    let health = NodeHealth::parse("xml exit 9\n");
    assert_eq!(examine(&[GpuNode { node: &node, facts: &failed, health: &health }]), [], "another rule has it");
}
