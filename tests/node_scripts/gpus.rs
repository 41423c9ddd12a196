//! The reports of a node on its GPUs.

use super::{DOCTOR, FACTS, Machine};
use hvdctl::gpus::health::report::{KernelLog, NodeHealth};
use hvdctl::gpus::health::{Links, Reading};
use hvdctl::init::draft::Probe;
use hvdctl::node::facts::Facts;
use hvdctl::node::gpus::{GpuDevice, GpuQueryFailure, NvidiaSmi};
use hvdctl::worker::ready::GpuAnswer;
use std::fs;
use std::path::Path;

const HEALTH: &[&str] = &["node/nvidia_smi.sh", "node/health.sh"];

/// The beginning of a file of `nvidia-ctk cdi generate`.
const CDI: &str = "---
cdiVersion: 0.5.0
containerEdits:
  deviceNodes:
  - path: /dev/nvidia-modeset
  env:
  - NVIDIA_VISIBLE_DEVICES=void
  hooks:
  - args: [nvidia-cdi-hook, create-symlinks, --link, ../name: /dev/x]
    hookName: createContainer
    path: /usr/bin/nvidia-cdi-hook
devices:
- containerEdits:
    deviceNodes:
    - hostPath: /dev/nvidia0
      path: /dev/nvidia0
  name: \"0\"
- containerEdits:
    deviceNodes:
    - path: /dev/nvidia1
  name: '1:0'
- name: GPU-aa
  containerEdits: { env: [A=b] }
- { name: MIG-bb, containerEdits: {} }
- containerEdits:
    deviceNodes: []
  name: all
kind: nvidia.com/gpu
";

#[test]
fn the_names_of_cdi_files_are_read() {
    let cdi = |machine: &Machine| {
        let facts = machine.prints(FACTS, "");
        facts.lines().filter_map(|line| line.strip_prefix("cdi ")).map(str::to_owned).collect::<Vec<_>>()
    };
    let machine = Machine::new(&[("jobs/x", ""), ("etc/cdi/nvidia.yaml", CDI)]);
    machine.stub("podman", "exit 1");
    let file = |name: &str| machine.path(name).display().to_string();
    let names = ["0", "1:0", "GPU-aa", "MIG-bb", "all"].map(|name| format!("name {name}"));
    let mut expected = vec!["read".to_owned(), format!("file {}", file("etc/cdi/nvidia.yaml"))];
    expected.extend(names);
    assert_eq!(cdi(&machine), expected);
    // as JSON, on one line, and of something else
    let json = r#"{"cdiVersion":"0.6.0","kind":"nvidia.com/gpu","devices":[{"name":"2","containerEdits":{}}]}"#;
    fs::create_dir_all(machine.path("run/cdi")).unwrap();
    fs::write(machine.path("run/cdi/x.json"), json).unwrap();
    fs::write(machine.path("run/cdi/y.json"), json.replace("nvidia.com/gpu", "nvidia.com/gpu-not")).unwrap();
    fs::write(machine.path("run/cdi/z.yaml"), "kind: vendor.com/net\ndevices:\n- name: eth\n").unwrap();
    expected.extend([format!("file {}", file("run/cdi/x.json")), "name 2".to_owned()]);
    assert_eq!(cdi(&machine), expected);
    fs::remove_dir_all(machine.path("etc/cdi")).unwrap();
    fs::remove_dir_all(machine.path("run/cdi")).unwrap();
    assert_eq!(cdi(&machine), ["read"]);
    // other directories than those that are read
    fs::create_dir_all(machine.path("etc/containers/containers.conf.d")).unwrap();
    let conf = "[engine]\n  cdi_spec_dirs = [\n  \"/srv/cdi\"]\n";
    fs::write(machine.path("etc/containers/containers.conf.d/cdi.conf"), conf).unwrap();
    assert_eq!(cdi(&machine), [""; 0]);
}

#[test]
fn no_nvidia_smi_is_another_fact_than_one_that_fails() {
    let machine = Machine::new(&[("jobs/x", "")]);
    let node = |machine: &Machine| {
        let facts = Facts::parse(&machine.prints(FACTS, ""));
        assert!(!facts.hostname.is_empty() && facts.clock.is_some(), "{facts:?}");
        (
            facts.nvidia_smi,
            GpuDevice::of(&facts.gpus).iter().map(|device| device.uuid().to_owned()).collect::<Vec<_>>().join(" "),
        )
    };
    let worker = |machine: &Machine| {
        GpuAnswer::parse(&machine.prints(&["node/nvidia_smi.sh", "node/gpus.sh", "worker/ready.sh"], "")).nvidia_smi
    };
    // this machine may have one of its own
    if !["/usr/bin", "/bin", "/usr/local/bin"].iter().any(|place| Path::new(place).join("nvidia-smi").exists()) {
        assert_eq!((node(&machine), worker(&machine)), ((NvidiaSmi::Missing, String::new()), NvidiaSmi::Missing));
    }
    let two = "GPU 0: NVIDIA H200 (UUID: GPU-aa)\nGPU 1: NVIDIA H200 (UUID: GPU-bb)";
    let lost = "Unable to determine the device handle for GPU0000:41:00.0: Unknown Error";
    let mismatch = "Failed to initialize NVML: Driver/library version mismatch";
    let no_driver = "NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver.";
    let failed = |message: &str| NvidiaSmi::Failed(GpuQueryFailure::Said(message.to_owned()));
    let old = "echo 'Field \"mig.mode.current\" is not a valid field to query.'; exit 2";
    for (list, mode, code, expected) in [
        (two, "printf '0, [N/A]\\n1, Disabled\\n'", 0, (NvidiaSmi::Listed, "GPU-aa GPU-bb")),
        (two, old, 0, (NvidiaSmi::Listed, "GPU-aa GPU-bb")),
        (two, "printf '0, Disabled\\n1, Enabled\\n'", 0, (NvidiaSmi::Listed, "GPU-aa")),
        (&format!("{mismatch}\nNVML library version: 550.144"), "exit 18", 18, (failed(mismatch), "")),
        (&format!("{no_driver}\n"), "exit 9", 9, (failed(no_driver), "")),
        ("No devices were found", "exit 6", 6, (failed("No devices were found"), "")),
        (&two.replace("\n", &format!("\n{lost}\n")), "echo '0, Disabled'", 0, (failed(lost), "GPU-aa GPU-bb")),
        (
            "GPU 0: A100 (UUID: GPU-aa)\n  MIG 3g.20gb     Device  0: (UUID: MIG-c6d4)",
            "echo '0, Enabled'",
            0,
            (NvidiaSmi::Listed, "MIG-c6d4"),
        ),
    ] {
        // the message may be on either stream
        for stream in ["1", "2"] {
            let list = format!("cat >&{stream} <<'END'\n{list}\nEND\nexit {code}");
            machine.stub("nvidia-smi", &format!("case $1 in --query-gpu=*)\n{mode}\nexit\n;;\nesac\n{list}"));
            let (state, uuids) = node(&machine);
            assert_eq!((&state, uuids.as_str()), (&expected.0, expected.1), "{list}");
            assert_eq!(worker(&machine), state, "{list}");
        }
    }
    // the memory of the GPUs, in the query that asks for their MIG mode
    let query = "--query-gpu=index,mig.mode.current,memory.total";
    let answers =
        format!("case $1 in {query}) echo '0, [N/A], 143771' ;; *) echo 'GPU 0: NVIDIA H200 (UUID: GPU-aa)' ;; esac");
    machine.stub("nvidia-smi", &answers);
    assert_eq!(Facts::parse(&machine.prints(FACTS, "")).gpus[0].memory_mib, Reading::Known(143_771));
    // one that is ended, and one that cannot even be killed
    let survives = "case $1 in 20) sleep 3 ;; *) shift; exec /usr/bin/timeout 0.2 \"$@\" ;; esac";
    for hangs in ["case $1 in 20) exit 124 ;; *) shift; exec \"$@\" ;; esac", survives] {
        machine.stub("timeout", hangs);
        assert_eq!(node(&machine), (NvidiaSmi::Failed(GpuQueryFailure::NoAnswer), String::new()), "{hangs}");
    }
}

#[test]
fn accelerators_of_other_makers_are_counted() {
    let found = |files: &[&str]| {
        let files: Vec<(&str, &str)> = files.iter().map(|file| file.split_once('=').unwrap_or((file, ""))).collect();
        let machine = Machine::new(&[&[("jobs/x", "")], &files[..]].concat());
        let facts = Facts::parse(&machine.prints(FACTS, ""));
        let accelerators = facts.accelerators.iter().map(|found| format!("{} {}", found.count, found.name()));
        (accelerators.collect::<Vec<_>>().join(", "), facts.has_nvidia_device)
    };
    let topology = ["class/kfd/kfd/topology/nodes/0/gpu_id=0\n", "class/kfd/kfd/topology/nodes/1/gpu_id=48351\n"];
    let pci = |class: &str, device: &str, vendor: &str, kind: &str| {
        [("vendor", vendor), ("class", kind)]
            .map(|(file, value)| format!("class/{class}/{device}/device/{file}={value}\n"))
    };
    assert_eq!(found(&[]), (String::new(), false));
    assert_eq!(found(&["dev/kfd", "dev/dri/card0", "dev/dri/renderD128", "dev/dri/renderD129"]).0, "2 AMD GPU");
    assert_eq!(
        found(&["dev/kfd", "dev/dri/renderD128", "dev/dri/renderD129", topology[0], topology[1]]).0,
        "1 AMD GPU"
    );
    let units =
        |count: u32| format!("class/kfd/kfd/topology/nodes/1/properties=cpu_cores_count 0\nsimd_count {count}\n");
    assert_eq!(found(&["dev/kfd", topology[0], topology[1], &units(4)]).0, "", "what draws the screen");
    assert_eq!(found(&["dev/kfd", topology[0], topology[1], &units(432)]).0, "1 AMD GPU");
    // the driver is there, and only processors
    assert_eq!(found(&["dev/kfd", "dev/dri/renderD128", topology[0]]).0, "");
    let [screen, center] = ["0x030000", "0x038000"].map(|kind| pci("drm", "renderD128", "0x8086", kind));
    assert_eq!(found(&screen.each_ref().map(String::as_str)).0, "");
    assert_eq!(found(&center.each_ref().map(String::as_str)).0, "1 Intel GPU");
    let gaudi = pci("accel", "accel0", "0x1da3", "0x120000");
    assert_eq!(found(&gaudi.each_ref().map(String::as_str)).0, "1 Intel Gaudi accelerator");
    assert_eq!(found(&["dev/neuron0", "dev/neuron1"]).0, "2 AWS Neuron device");
    assert_eq!(found(&["dev/davinci0", "dev/davinci_manager"]).0, "1 Ascend NPU");
    for devices in [&["dev/nvidia0"][..], &["dev/nvhost-gpu"], &["dev/dxg", "wsl/libcuda.so.1"]] {
        assert_eq!(found(devices), (String::new(), true), "{devices:?}");
    }
    assert_eq!(found(&["dev/dxg"]), (String::new(), false), "a GPU of another maker in WSL 2");
}

#[test]
fn the_health_of_gpus_is_read_or_why_it_is_not_known() {
    let machine = Machine::new(&[("jobs/x", "")]);
    let report =
        |machine: &Machine, diagnose: &str| NodeHealth::parse(&machine.prints(HEALTH, &format!("diagnose={diagnose}")));
    let smi = |machine: &Machine, query: &str| {
        machine.stub(
            "nvidia-smi",
            &format!(
                "case $1 in nvlink) printf 'GPU 0: x (UUID: GPU-0)\\n\\t Link 0: 26.5 GB/s\\n' ;; *) {query} ;; esac"
            ),
        );
    };
    let document = format!("{}/tests/fixtures/nvidia-smi/h100-580-busy.xml", env!("CARGO_MANIFEST_DIR"));
    smi(&machine, &format!("sed 's/GPU-0[^<]*/GPU-0/' {document}"));
    let xid = "NVRM: Xid (PCI:0000:41:00): 79, GPU has fallen off the bus.";
    let log = format!(
        "printf '[0.0] Linux version 6\\n[1.0] {xid}\\n[2.0] {xid}\\n[3.0] NVRM: Xid (PCI:0000:42:00): 31, x\\n'"
    );
    machine.stub("dmesg", &log);
    machine.stub("dcgmi", "echo '| Inforom | Pass |'");
    let health = report(&machine, "");
    let found = health.machine().unwrap();
    assert_eq!((found.driver.as_str(), found.gpus.len(), health.complaint.as_ref()), ("580.159.04", 1, None));
    assert_eq!(found.gpus[0].links, Some(Links { active: 1, all: 1 }));
    assert_eq!((&health.log, health.diagnosis.is_none()), (&KernelLog::Whole, true));
    let mut xids: Vec<_> = health.xids.iter().map(|xid| (xid.number, xid.count)).collect();
    xids.sort_unstable();
    assert_eq!(xids, [(31, 1), (79, 2)]);
    assert_eq!(report(&machine, "yes").diagnosis.unwrap().unwrap().passed, 1);

    // a log that does not reach back to the boot, or cannot be read
    machine.stub("journalctl", "exit 1");
    machine.stub("dmesg", &format!("echo '[9.0] {xid}'"));
    let health = report(&machine, "");
    assert_eq!((&health.log, health.xids.len()), (&KernelLog::Partial, 1));
    machine.stub("journalctl", &format!("{log}; exit 124"));
    assert_eq!(report(&machine, "").log, KernelLog::Partial, "the journal was cut off");
    machine.stub("journalctl", &log);
    let health = report(&machine, "");
    assert_eq!((&health.log, health.xids.len()), (&KernelLog::Whole, 2), "the journal has all");
    machine.stub("journalctl", "exit 1");
    machine.stub("dmesg", "echo 'dmesg: read kernel buffer failed: Operation not permitted' >&2; exit 1");
    let reason = "dmesg: read kernel buffer failed: Operation not permitted";
    assert_eq!(report(&machine, "").log, KernelLog::Unread(reason.into()));

    let error = |machine: &Machine| report(machine, "").machine.unwrap().unwrap_err().to_string();
    let lost = "Unable to determine the device handle for GPU0000:41:00.0: Unknown Error";
    smi(&machine, &format!("echo '{lost}' >&2; exit 15"));
    assert_eq!(error(&machine), lost);
    smi(&machine, "exit 3");
    assert_eq!(error(&machine), "exit code 3");
    smi(&machine, &format!("head -n 90 {document}"));
    assert_eq!(error(&machine), "its XML cannot be read: it is cut off");
    // one that is ended, and one that cannot even be killed
    let survives = "case $1 in 20) sleep 3 ;; *) shift; exec /usr/bin/timeout 0.2 \"$@\" ;; esac";
    for hangs in ["case $1 in 20) exit 124 ;; *) shift; exec \"$@\" ;; esac", survives] {
        machine.stub("timeout", hangs);
        assert_eq!(error(&machine), "no answer within 20 s", "{hangs}");
    }
}

#[test]
fn an_nvidia_smi_that_cannot_be_killed_delays_no_script() {
    let machine = Machine::new(&[("jobs/x", "")]);
    let (released, waited) = (machine.path("released"), machine.path("waited"));
    // it goes on for longer than the scripts may take, or until the test is over
    machine.stub(
        "nvidia-smi",
        &format!(
            "trap '' TERM; i=0; while [ ! -e '{}' ]; do sleep 0.1; i=$((i + 1)); [ $i -lt 200 ] || {{ : >'{}'; exit; \
             }}; done",
            released.display(),
            waited.display()
        ),
    );
    // so that the test is short
    machine.stub(
        "timeout",
        "limit=$1; shift; case $limit in ??) limit=0.$limit ;; esac; exec /usr/bin/timeout $limit \"$@\"",
    );
    let facts = Facts::parse(&machine.prints(FACTS, ""));
    assert_eq!(facts.nvidia_smi, NvidiaSmi::Failed(GpuQueryFailure::NoAnswer));
    let health = NodeHealth::parse(&machine.prints(HEALTH, "diagnose="));
    assert_eq!(health.machine, Some(Err(GpuQueryFailure::NoAnswer)));
    let details = machine.prints(DOCTOR, "worker_pid= docker_root=/ addresses= names=");
    assert!(details.contains("\nunchecked gpu-users no answer within 20 s\n"), "{details}");
    assert!(details.contains("\ndisk images "), "{details}");
    assert!(!waited.exists(), "a script has waited for it");
    fs::write(released, "").unwrap();
}

#[test]
fn nvidia_smi_is_found_where_wsl_has_it() {
    let machine = Machine::new(&[("jobs/x", "")]);
    machine.stub(
        "nvidia-smi",
        "case $1 in --query-gpu=driver*) echo 550.54 ;; -L) echo 'GPU 0: x (UUID: GPU-aa)' ;; esac",
    );
    fs::rename(machine.path("tools"), machine.path("wsl")).unwrap();
    assert_eq!(Facts::parse(&machine.prints(FACTS, "")).nvidia_smi, NvidiaSmi::Listed);
    assert!(NodeHealth::parse(&machine.prints(HEALTH, "diagnose=")).machine.is_some());
    assert!(machine.prints(DOCTOR, "worker_pid= docker_root= addresses= names=").contains("\ndriver 550.54\n"));
}

#[test]
fn a_container_does_not_own_all_gpus_of_its_machine() {
    let (own, other) = ("0000:41:00.0", "0000:c1:00.0");
    let buses = |directory: &str| [own, other].map(|bus| (format!("{directory}/{bus}/x"), ""));
    let files: Vec<_> = buses("pci").into_iter().chain(buses("driver")).collect();
    let machine = Machine::new(&files.iter().map(|(name, text)| (name.as_str(), *text)).collect::<Vec<_>>());
    machine.stub("nvidia-smi", "");
    let report = || machine.prints(HEALTH, "diagnose=");
    assert!(report().contains("\npci 0000:c1:00.0") && NodeHealth::parse(&report()).foreign.is_empty());
    fs::remove_dir_all(machine.path("driver").join(other)).unwrap();
    assert!(report().contains("\npci 0000:41:00.0") && !report().contains("\npci 0000:c1:00.0"), "{}", report());
    assert_eq!(NodeHealth::parse(&report()).foreign, [other]);
    // a driver that does not list its GPUs, as of an earlier version
    fs::remove_dir_all(machine.path("driver")).unwrap();
    assert!(report().contains("\npci 0000:c1:00.0") && NodeHealth::parse(&report()).foreign.is_empty());
}

/// The scripts of `init`, as `src/init/probe.rs` puts them together.
const PROBE: &[&str] = &[
    "node/machine.sh",
    "node/nvidia_smi.sh",
    "node/gpus.sh",
    "node/accelerators.sh",
    "access/login.sh",
    "node/probe.sh",
];

#[test]
fn a_probe_has_the_compute_capability_of_the_newest_gpu() {
    let machine = Machine::new(&[("jobs/x", "")]);
    let failing = ["docker", "sudo"];
    failing.iter().for_each(|tool| machine.stub(tool, "exit 1"));
    let found = |answer: &str| {
        let list = "echo 'GPU 0: NVIDIA H200 (UUID: GPU-aa)'";
        machine.stub("nvidia-smi", &format!("case $1 in --query-gpu=compute_cap) {answer} ;; -L) {list} ;; esac"));
        let probe = Probe::parse(&machine.prints(PROBE, "images=''"));
        assert_eq!(probe.facts.gpus[0].name, "NVIDIA H200");
        probe.compute_capability
    };
    assert_eq!(found("echo 8.6; echo 10.0; echo 9.0"), Some((10, 0)));
    // as drivers say that do not know the query, and GPUs that have no answer
    assert_eq!(found("echo 'Field \"compute_cap\" is not a valid field to query.'; exit 2"), None);
    assert_eq!(found("echo '[N/A]'"), None);
}
