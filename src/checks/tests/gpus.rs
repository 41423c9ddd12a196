//! GPUs and other accelerators.

use super::*;

#[test]
fn gpus() {
    let found = |make: &dyn Fn(&mut Sick)| Clinic::with(2, |c| make(&mut c.nodes[1])).found();
    assert_eq!(
        found(&|n| n.node.gpus = Gpus::Count(2)),
        [
            "error gpus gpu02: the inventory requires 2, nvidia-smi lists 1",
            "warning worker gpu02: its worker differs from the inventory: recreate hworker (gpus)"
        ]
    );
    let none = |n: &mut Sick| (n.facts.nvidia_smi, n.facts.gpus) = (NvidiaSmi::Missing, Vec::new());
    assert_eq!(
        found(&none),
        [
            "error gpus gpu02: the inventory has `gpus` = 1, but the node has no nvidia-smi",
            "warning worker gpu02: its worker differs from the inventory: recreate hworker (gpus)"
        ]
    );
    for (gpus, word) in [(Gpus::All, "\"all\""), (Gpus::List(vec!["0".into(), "GPU-2".into()]), "0, GPU-2")] {
        let promised = |n: &mut Sick| {
            none(n);
            n.node.gpus = gpus.clone();
        };
        let words = format!("error gpus gpu02: the inventory has `gpus` = {word}, but the node has no nvidia-smi");
        assert_eq!(found(&promised)[0], words);
    }
    let auto = |n: &mut Sick| {
        none(n);
        (n.node.gpus, n.containers) = (Gpus::Auto, Vec::new());
        n.facts.network.listeners.clear();
    };
    assert_eq!(found(&auto), ["note worker gpu02: its worker is not running"]);
    assert_eq!(
        found(&|n| n.details.toolkit = false),
        ["error toolkit gpu02: the node should have GPUs, but Docker has no NVIDIA runtime"]
    );
    let with_runtimes = |n: &mut Sick, runtimes: &[&str]| {
        let runtimes: Vec<String> = runtimes.iter().map(|&runtime| runtime.to_owned()).collect();
        n.details = Details { toolkit: false, ..n.details.clone() }.with_runtimes(&runtimes);
    };
    assert_eq!(found(&|n| with_runtimes(n, &["runc", "nvidia"])), Vec::<String>::new());
    assert_eq!(found(&|n| with_runtimes(n, &["runc"])).len(), 1);
    let answers =
        |n: &mut Sick, lines: &str| n.answer = Some(GpuAnswer::parse(&format!("nvidia-smi yes\n{lines}mig exit 0\n")));
    let nothing = "gpu exit 0\n";
    let lost = "error worker gpu02: its worker was started with 1 GPU and now sees 0";
    assert_eq!(found(&|n| answers(n, nothing)), [lost]);
    let fails = "gpu Failed to initialize NVML: Unknown Error\ngpu exit 255\n";
    assert_eq!(found(&|n| answers(n, fails)), [format!("{lost}: Failed to initialize NVML: Unknown Error")]);
    assert_eq!(found(&|n| answers(n, "gpu GPU 0: NVIDIA H200 (UUID: GPU-2)\ngpu exit 0\n")), Vec::<String>::new());
    // one that is to be made anew gets what it lacks by that
    let older = |n: &mut Sick| {
        answers(n, nothing);
        n.containers[0].image_id = "old".into();
    };
    assert_eq!(
        found(&older),
        ["warning worker gpu02: its worker differs from the inventory: recreate hworker (image)"]
    );
    let unchecked = |n: &mut Sick| {
        let said =
            "unchecked disk df: Input/output error\nunchecked gpu-users no answer within 20 s\nunchecked later x\n";
        n.details.unchecked = Details::parse(said).unchecked;
    };
    assert_eq!(
        found(&unchecked),
        [
            "error disk gpu02: cannot find out how much space Docker's directory has left: df: Input/output error",
            "error gpu-users gpu02: cannot find out which programs use its GPUs: no answer within 20 s"
        ]
    );
    let strangers = |n: &mut Sick| {
        let said = "gpu-user ana - my job, 4711, 31000 MiB, GPU-2\ngpu-user bob - x, 12, [N/A], GPU-9\ngpu-user junk\n";
        n.details.gpu_users = Details::parse(said).gpu_users;
    };
    assert_eq!(
        found(&strangers),
        [
            "warning gpu-users gpu02: other programs use its GPUs: my job (process 4711 of ana) on GPU 0 with 31000 MiB; \
          x (process 12 of bob) on GPU-9"
        ]
    );
}

#[test]
fn podman_needs_a_description_of_the_gpus_and_no_runtime() {
    let found = |lines: &str| {
        let podman = |n: &mut Sick| {
            (n.engine_name, n.engine) = (EngineName::Podman, "4.3.1");
            n.facts.cdi = Facts::parse(lines).cdi;
            n.details = Details { toolkit: false, ..n.details.clone() };
        };
        Clinic::with(2, |c| podman(&mut c.nodes[1])).found()
    };
    let differs = "note versions gpu02: the engine differs: gpu01 Docker 20.10.24 · gpu02 Podman 4.3.1";
    let lacking = "error toolkit gpu02: no CDI file in /etc/cdi or /var/run/cdi describes its GPUs to Podman";
    assert_eq!(found("cdi read\n"), [lacking, differs]);
    let stale = "error toolkit gpu02: /etc/cdi/nvidia.yaml does not describe the GPU 0 GPU-2 to Podman";
    let file = "cdi read\ncdi file /etc/cdi/nvidia.yaml\ncdi name all\n";
    assert_eq!(found(&format!("{file}cdi name GPU-1\n")), [stale, differs]);
    assert_eq!(found(&format!("{file}cdi name 0\n")), [differs]);
    // Podman reads other directories
    assert_eq!(found(""), [differs]);
}

#[test]
fn memory_that_ended_jobs_have_left() {
    let found = |line: &str, is_running: bool| {
        let found = Clinic::with(2, |c| {
            let reported =
                Facts::parse(&format!("{line}\n{}", if is_running { "rank run-1 7 c1 lab -\n" } else { "" }));
            let facts = &mut c.nodes[1].facts;
            (facts.storage.shared_memory, facts.jobs.ranks) = (reported.storage.shared_memory, reported.jobs.ranks);
        });
        found.found().into_iter().filter(|line| line.contains("/dev/shm")).collect::<Vec<_>>()
    };
    let left =
        "warning shm gpu02: 400.0 MiB of 1.0 GiB in its worker's /dev/shm are in use, and no job has ranks there";
    assert_eq!(found("shm 4096 262144 159744", false), [left]);
    assert_eq!(found("shm 4096 262144 159744", true), [""; 0], "they may be those of its ranks");
    for line in ["shm 4096 262144 262144", "shm 4096 262144 240000", "shm 4096 0 0", "shm ", "shm 4096 1 2"] {
        assert_eq!(found(line, false), [""; 0], "{line}");
    }
}

#[test]
fn accelerators_that_containers_do_not_get() {
    let of = |lines: &str, make: &dyn Fn(&mut Node)| {
        let sick = |c: &mut Clinic| {
            let sick = &mut c.nodes[1];
            let reported = Facts::parse(lines);
            (sick.facts.nvidia_smi, sick.facts.gpus) = (NvidiaSmi::Missing, Vec::new());
            (sick.facts.accelerators, sick.facts.has_nvidia_device) =
                (reported.accelerators, reported.has_nvidia_device);
            (sick.node.gpus, sick.containers) = (Gpus::Auto, Vec::new());
            sick.facts.network.listeners.clear();
            make(&mut sick.node);
        };
        let is_about = |finding: &Finding| [Check::Accelerators, Check::Gpus].contains(&finding.check);
        let found = Clinic::with(2, sick).all().into_iter().filter(is_about);
        found.map(|f| format!("{} {} | {} | {}", f.severity, f.message, f.why, f.hint)).collect::<Vec<_>>()
    };
    let device = |name: &str| Device { source: name.into(), target: name.into(), permissions: "rwm".into() };
    assert_eq!(
        of("accelerator amd 8\n", &|_| ()),
        ["warning it has 8 AMD GPUs, which its containers cannot use | its slots are its 4 cores, and every rank \
          computes on the CPU | set `devices = [\"/dev/kfd\", \"/dev/dri\"], slots = 8` in this [[node]], with an \
          image that has ROCm; `gpus = 0` if jobs are to use the CPU"]
    );
    let given = |node: &mut Node| node.container.devices = vec![device("/dev/kfd"), device("/dev/dri/renderD128")];
    assert_eq!(
        of("accelerator amd 8\n", &given),
        ["warning it has 8 AMD GPUs, but no `slots` | its slots are its 4 cores, and ranks share whichever there are \
          fewer of | set `slots = 8` in this [[node]]"]
    );
    let both = |node: &mut Node| {
        given(node);
        node.slots = Some(8);
    };
    assert_eq!(of("accelerator amd 8\n", &both), [""; 0]);
    assert_eq!(of("accelerator amd 8\n", &|node| node.gpus = Gpus::Count(0)), [""; 0]);
    let slots = of("accelerator neuron 1\n", &|node| node.slots = Some(1));
    assert!(slots[0].contains("| every rank computes on the CPU | set `devices = [\"/dev/neuron0\"]` in"), "{slots:?}");
    let promised = of("accelerator amd 8\n", &|node| node.gpus = Gpus::All);
    assert!(promised.len() == 1 && promised[0].contains("the node has 8 AMD GPUs: leave it out"), "{promised:?}");
    let unlisted = of("nvidia-device /dev/nvhost-gpu\n", &|_| ());
    assert!(unlisted[0].starts_with("warning it has NVIDIA devices, but no nvidia-smi that lists"), "{unlisted:?}");
    assert_eq!(of("nvidia-device /dev/dxg\n", &|node| node.slots = Some(1)), [""; 0]);
    // those of NVIDIA go first
    let mixed = Clinic::with(2, |c| c.nodes[1].facts.accelerators = Facts::parse("accelerator amd 1\n").accelerators);
    mixed.finds(&[]);
}
