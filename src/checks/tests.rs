//! Every rule with what it fires on, and what it lets pass.

use super::Severity::{Error, Note};
use super::*;
use crate::gpus::health::report::NodeHealth;
use crate::inventory::{Device, Gpus, Pull};
use crate::keys::reachability::{Matrix, TriedLogin};
use crate::model::engine::EngineName;
use crate::node::gpus::{GpuRequest, NvidiaSmi};
use crate::node::jobs::{OpenJobs, RecordedJob};
use crate::runtime::container::ContainerState;
use crate::runtime::spec::{ContainerSpec, LABEL_CLUSTER, LABEL_JOB, LABEL_ROLE};
use crate::text::nodeset;
use std::collections::BTreeMap;

/// A node as the tests change it.
struct Sick {
    node: Node,
    facts: Facts,
    containers: Vec<ContainerSummary>,
    image: Option<Image>,
    details: Details,
    inside: Versions,
    answer: Option<GpuAnswer>,
    health: Option<NodeHealth>,
    engine: &'static str,
    engine_name: EngineName,
    limits: BTreeMap<String, u64>,
    worker: bool,
}

/// A cluster without a fault: its workers are up, and every node knows the others.
struct Clinic {
    inventory: Inventory,
    nodes: Vec<Sick>,
}

fn image(id: &str, content: &str) -> Option<Image> {
    Some(Image { id: format!("sha256:{id}"), content: Some(content.to_owned()), ..Image::default() })
}

fn clinic(n: usize) -> Clinic {
    let mut inventory = Inventory::local("x", "img");
    inventory.nodes.clear();
    for i in 1..=n {
        let name = format!("gpu{i:02}");
        let node = Node { host: name.clone(), name, master: i == 1, gpus: Gpus::Count(1), ..Node::default() };
        inventory.nodes.push(node);
    }
    let nodes = (1..=n).map(|i| {
        let listens = if n == 1 { "127.0.0.1".to_owned() } else { format!("10.0.0.{i}") };
        let facts = Facts::parse(&format!(
            "hostname gpu{i:02}\ncores 4\nssh 10.0.0.{i}\naddr lo 127.0.0.1/8\naddr eth0 10.0.0.{i}/24\n\
             addr docker0 172.17.0.1/16\nclock 1000.0\nclock 1000.1\nnvidia-smi yes\ngpu exit 0\nmig exit 0\n\
             gpu GPU 0: NVIDIA H200 (UUID: GPU-{i})\nlistener {listens}:12345 77 root w{i} sshd\n"
        ))
        .between(999.99, 1000.11);
        let mut said = "kernel 6.1\nmtu eth0 1500\ntoolkit yes\ndriver 535.161\n\
                        disk images 99999999 /var/lib/docker\n"
            .to_owned();
        for other in (1..=n).filter(|other| *other != i) {
            said.push_str(&format!("route 10.0.0.{other} eth0 10.0.0.{i}\nname gpu{other:02} 10.0.0.{other}\n"));
        }
        let desired = ContainerSpec::worker(
            &inventory.cluster,
            &inventory.nodes[i - 1],
            GpuRequest::All,
            listens.parse().unwrap(),
        );
        let worker = ContainerSummary {
            name: "hworker".into(),
            id: format!("w{i}"),
            image: "horovod".into(),
            image_id: "sha256:aaa".into(),
            state: ContainerState::Running,
            labels: desired.labels(),
            created: None,
            queue: None,
        };
        Sick {
            node: inventory.nodes[i - 1].clone(),
            facts,
            containers: vec![worker],
            image: image("aaa", "content"),
            details: Details::parse(&said),
            inside: versions("python 3.11.2\ntorch 1.13\nhorovod 0.28.1\nbuild PyTorch, Gloo\n"),
            answer: None,
            health: None,
            engine: "20.10.24",
            engine_name: EngineName::Docker,
            limits: BTreeMap::new(),
            worker: true,
        }
    });
    Clinic { nodes: nodes.collect(), inventory }
}

impl Clinic {
    fn with(n: usize, make_sick: impl FnOnce(&mut Clinic)) -> Clinic {
        let mut clinic = clinic(n);
        make_sick(&mut clinic);
        clinic
    }

    fn views<'a>(&'a self) -> Vec<NodeView<'a>> {
        let view = |sick: &'a Sick| -> NodeView<'a> {
            let Sick {
                node,
                facts,
                containers,
                image,
                details,
                inside,
                answer,
                health,
                engine,
                engine_name,
                limits,
                worker,
            } = sick;
            NodeView {
                node,
                facts,
                place: network::place(&self.inventory, node, facts),
                engine: Some(engine),
                engine_name: *engine_name,
                user: "own",
                limits: limits.clone(),
                containers,
                image: image.as_ref(),
                open: OpenJobs::recorded(&facts.jobs),
                starting: crate::record::starting(&facts.jobs.recorded, facts.clock),
                unreadable: crate::record::unreadable(&facts.jobs.recorded),
                worker: *worker,
                details: Some(details.clone()),
                inside: inside.clone(),
                answer: answer.clone(),
                health: health.as_ref(),
            }
        };
        self.nodes.iter().map(view).collect()
    }

    /// `SEVERITY CHECK NODES: SEEN`, the word on keys aside: no test here has pushed any.
    fn found(&self) -> Vec<String> {
        self.all()
            .iter()
            .map(|f| format!("{} {} {}: {}", f.severity, f.check, nodeset::fold(&f.nodes), f.message))
            .collect()
    }

    fn all(&self) -> Vec<Finding> {
        let found = fold(examine(&self.inventory, &self.views()));
        for finding in &found {
            assert!(!finding.nodes.is_empty() && finding.nodes.iter().all(|node| !node.is_empty()), "{finding:?}");
            let is_explained = !finding.why.is_empty() && !finding.hint.is_empty();
            assert!(finding.severity == Note || is_explained, "no why or no hint: {finding:?}");
        }
        found.into_iter().filter(|finding| finding.check != Check::Keys).collect()
    }

    #[track_caller]
    fn finds(&self, expected: &[&str]) {
        assert_eq!(self.found(), expected);
    }

    fn before(&self) -> Vec<String> {
        preflight::rules(&self.inventory, &self.views()).iter().map(|f| format!("{} {}", f.severity, f.check)).collect()
    }
}

fn container(name: &str, id: &str, state: ContainerState, labels: &[(&str, &str)]) -> ContainerSummary {
    let labels = labels.iter().map(|(k, v)| ((*k).to_owned(), (*v).to_owned())).collect();
    ContainerSummary {
        name: name.into(),
        id: id.into(),
        image: "i".into(),
        image_id: "i".into(),
        state,
        labels,
        created: None,
        queue: None,
    }
}

#[test]
fn a_cluster_in_health() {
    for n in [1, 2, 8] {
        clinic(n).finds(&[]);
        assert_eq!(clinic(n).before(), Vec::<String>::new());
    }
}

#[test]
fn the_port() {
    let listener = |line: &str| {
        let facts = Facts::parse(&format!("listener {line}\n"));
        Clinic::with(2, |c| c.nodes[1].facts.network.listeners = facts.network.listeners)
    };
    listener("*:12345 4711 ana - python3")
        .finds(&["error port gpu02: port 12345 is in use by python3 (process 4711 of ana)"]);
    listener("10.0.0.2:12345 - - - -").finds(&[]);
    let hidden = |c: &mut Clinic| {
        c.nodes[1].facts.network.listeners = Facts::parse("listener 0.0.0.0:12345 - - - -\n").network.listeners;
        c.nodes[1].containers[0].state = ContainerState::Exited;
    };
    assert!(Clinic::with(2, hidden).found()[0].contains("is in use by another program"));
    // elsewhere it does no harm
    listener("127.0.0.1:12345 4711 ana - python3").finds(&[]);
    listener("[::]:12345 4711 ana - python3").finds(&[]);
    let other = |c: &mut Clinic| {
        c.nodes[1].facts.network.listeners = Facts::parse("listener *:12345 9 root x1 sshd\n").network.listeners;
        c.nodes[1].containers.push(container(
            "their-worker",
            "x1",
            ContainerState::Running,
            &[(LABEL_CLUSTER, "theirs")],
        ));
    };
    Clinic::with(2, other).finds(&["error port gpu02: port 12345 is in use by the container their-worker"]);
    // ranks beside the launcher need no worker
    let mut sick = Clinic::with(2, other);
    sick.nodes[1].worker = false;
    sick.finds(&[]);
}

#[test]
fn clocks() {
    let ahead = |seconds: &[f64]| {
        let set = |c: &mut Clinic| {
            for (node, ahead) in c.nodes.iter_mut().zip(seconds) {
                node.facts.ahead = Some(crate::node::facts::Span { low: ahead - 0.05, high: ahead + 0.05 });
            }
        };
        Clinic::with(seconds.len(), set).found()
    };
    assert_eq!(ahead(&[0.0, 30.0]), ["error clock gpu02: its clock is 30 s ahead of those of the other nodes"]);
    assert_eq!(ahead(&[0.0, -5.0]), ["warning clock gpu02: its clock is 5 s behind those of the other nodes"]);
    assert_eq!(ahead(&[0.0, 1.5]), Vec::<String>::new());
    // the operator's own clock does not matter
    assert_eq!(ahead(&[90.0, 90.0]), Vec::<String>::new());
    assert_eq!(ahead(&[90.0, 90.0, 60.0]), ["error clock gpu03: its clock is 30 s behind those of the other nodes"]);
    assert_eq!(ahead(&[-30.0]), Vec::<String>::new(), "a node has no clock to differ from its own");
    // a slow answer says little, and so nothing is said
    let vague = |c: &mut Clinic| c.nodes[1].facts.ahead = Some(crate::node::facts::Span { low: -8.0, high: 30.0 });
    Clinic::with(2, vague).finds(&[]);
}

#[test]
fn host_names_and_addresses() {
    let twice = Clinic::with(3, |c| {
        c.nodes[2].facts.hostname = "gpu01".into();
    });
    twice.finds(&["error hostname gpu[01,03]: they have the same host name, gpu01"]);
    let unnamed = |c: &mut Clinic| c.nodes.iter_mut().for_each(|n| n.facts.hostname = "localhost.localdomain".into());
    Clinic::with(2, unnamed).finds(&["error hostname gpu[01-02]: its host name is localhost.localdomain"]);
    let place = |ssh: &str| {
        let facts = Facts::parse(&format!(
            "ssh {ssh}\naddr docker0 172.17.0.1/16\naddr eth0 10.0.0.2/24\naddr eth1 10.0.0.1/24\n"
        ));
        let found = Clinic::with(2, |c| {
            (c.nodes[1].facts.network.ssh_address, c.nodes[1].facts.network.addresses) =
                (facts.network.ssh_address, facts.network.addresses);
        });
        preflight::rules(&found.inventory, &found.views())
            .iter()
            .map(|f| format!("{} {} {}", f.check, f.message, f.hint))
            .collect::<Vec<_>>()
    };
    let docker = place("172.17.0.1");
    assert!(docker[0].starts_with(
        "interface its address in the cluster is 172.17.0.1 on docker0, an interface that reaches no other"
    ));
    assert!(docker[0].contains("(the node has: eth0 10.0.0.2, eth1 10.0.0.1)"), "{docker:?}");
    assert!(place("10.0.0.1")[0].starts_with("address they have the same address in the cluster, 10.0.0.1"));
    assert_eq!(place("10.0.0.2"), Vec::<String>::new());
    let found = Clinic::with(2, |c| c.nodes[1].facts.network.ssh_address = Some("10.9.9.9".parse().unwrap())).found();
    assert!(
        found[0].starts_with("error network gpu02: its address in the cluster is unknown: no interface"),
        "{found:?}"
    );
}

#[test]
fn images() {
    let other = |c: &mut Clinic| {
        c.nodes[7].image = image("0123456789abcdef", "other");
        c.nodes[7].containers[0].image_id = "sha256:0123456789abcdef".into();
    };
    Clinic::with(8, other)
        .finds(&["error image gpu08: img is not the same image on all nodes: gpu[01-07] aaa · gpu08 0123456789ab"]);
    // engines that keep images in another way
    let id_only = |c: &mut Clinic| {
        c.nodes[1].image = image("bbb", "content");
        c.nodes[1].containers[0].image_id = "sha256:bbb".into();
    };
    Clinic::with(2, id_only).finds(&[]);
    // of two the master's counts
    let masters = |c: &mut Clinic| c.nodes[0].image = image("ccc", "other");
    assert!(
        Clinic::with(2, masters).found()[0]
            .starts_with("error image gpu02: img is not the same image on all nodes: gpu01 ccc · gpu02 aaa")
    );
    let missing = |image: &str, policy: Pull| {
        let clinic = Clinic::with(2, |c| {
            (c.inventory.cluster.image, c.inventory.cluster.pull) = (image.to_owned(), policy);
            c.nodes[1].image = None;
        });
        let all = clinic.all();
        assert_eq!((all[0].severity, all[0].nodes.as_slice()), (Error, &["gpu02".to_owned()][..]));
        assert_eq!(all[0].message, format!("the image {image} is missing"));
        all[0].hint.clone()
    };
    // `up` is the fix where it may get the image, and where a registry could have it
    assert!(
        missing("img", Pull::Missing).starts_with("`hvdctl up`, which pulls it from its registry; or `docker pull")
    );
    assert!(missing("img", Pull::Never).starts_with("`docker pull img` on the node"));
    let id = format!("sha256:{}", "a".repeat(64));
    assert!(missing(&id, Pull::Missing).starts_with("`docker pull sha256:aaa"));
}

#[test]
fn versions_that_differ() {
    let found = Clinic::with(8, |c| {
        c.nodes[7].details.driver = Some("550.54".into());
        c.nodes[2].inside = versions("python 3.11.2\ntorch 1.13\nhorovod 0.28.1\nbuild PyTorch\nnccl 2.18.3\n");
        c.nodes[3].inside = Versions::new();
        c.nodes[4].engine = "27.0";
        // what is not known differs from nothing
        c.nodes[5].inside = versions("python 3.11.2\ntorch 1.13\nhorovod 0.28.1\nunread:build no end within 120 s\n");
    });
    found.finds(&[
        "error versions gpu03: the Horovod build differs: gpu[01-02,05,07-08] PyTorch, Gloo · gpu03 PyTorch",
        "error versions gpu03: the NCCL differs: gpu[01-02,05-08] none · gpu03 2.18.3",
        "warning versions gpu06: cannot read the Horovod build: no end within 120 s",
        "warning versions gpu08: the NVIDIA driver differs: gpu[01-07] 535.161 · gpu08 550.54",
        "note versions gpu05: the Docker Engine differs: gpu[01-04,06-08] 20.10.24 · gpu05 27.0",
    ]);
}

#[test]
fn another_python_of_ranks() {
    let own = "3.11.2 of /home/ana/v (/usr/bin/python3.11)";
    let with = |others: &[&str], activate: &[&str]| {
        Clinic::with(4, |c| {
            for (sick, python) in c.nodes.iter_mut().zip([&own].into_iter().chain(others)) {
                sick.containers[0].labels.insert("hvdctl.python".into(), (*python).to_owned());
            }
            c.nodes[1].node.container.activate = activate.iter().map(|&line| line.to_owned()).collect();
        })
    };
    let system = "3.11.2 of /usr (/usr/bin/python3.11)";
    let later = "3.12.1 of /home/ana/v (/opt/python3.12)";
    with(&[own, own], &[]).finds(&[]);
    // the last one is a worker of an earlier version
    with(&[system, own], &[])
        .finds(&[&format!("warning versions gpu02: the Python of ranks differs: gpu[01,03] {own} · gpu02 {system}")]);
    with(&[own, later], &[])
        .finds(&[&format!("warning versions gpu03: the Python of ranks differs: gpu[01-02] {own} · gpu03 {later}")]);
    // this worker will be replaced
    assert!(!with(&[system, own], &["source v"]).found().iter().any(|found| found.contains("Python")));
}

#[test]
fn launchers_and_frameworks_of_the_image() {
    let all =
        "launchers torchrun (PyTorch 2.1.0), mpirun (Open MPI 4.1.4), env\ntorch 2.1.0\njax 0.4.30\nmpi4py 3.1.4\n";
    let found = Clinic::with(2, |c| c.nodes.iter_mut().for_each(|node| node.inside = versions(all)));
    found.finds(&["note launchers gpu[01-02]: the image has torchrun (PyTorch 2.1.0), mpirun (Open MPI 4.1.4), env; \
                   frameworks: PyTorch 2.1.0, JAX 0.4.30, mpi4py 3.1.4"]);
    let found = Clinic::with(2, |c| {
        c.nodes[0].inside = versions(all);
        c.nodes[1].inside = versions(&all.replace("4.1.4), env", "5.0.11), env"));
    });
    let differs = "error versions gpu02: the set of launchers differs: \
                   gpu01 torchrun (PyTorch 2.1.0), mpirun (Open MPI 4.1.4), env · \
                   gpu02 torchrun (PyTorch 2.1.0), mpirun (Open MPI 5.0.11), env";
    assert_eq!(found.found()[0], differs);
}

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

#[test]
fn fast_networks_that_containers_do_not_get() {
    let found = |lines: &str, given: &[&str], inside: &str| {
        let sick = |c: &mut Clinic| {
            let details = Details::parse(lines);
            let sick = &mut c.nodes[1];
            (sick.details.fabrics, sick.details.adapters) = (details.fabrics, details.adapters);
            let device =
                |name: &&str| Device { source: (*name).into(), target: (*name).into(), permissions: "rwm".into() };
            sick.node.container.devices = given.iter().map(device).collect();
            sick.inside.extend(versions(inside));
        };
        let found = Clinic::with(2, sick).all().into_iter().filter(|finding| finding.check == Check::Fabric);
        found.map(|finding| format!("{} {}", finding.severity, finding.message)).collect::<Vec<_>>()
    };
    let lines = "fabric /dev/infiniband/uverbs0\nadapter mlx5_0\nadapter mlx5_1\n";
    let lacking = "warning it has InfiniBand or EFA (mlx5_0, mlx5_1), which its containers cannot use";
    assert_eq!(found(lines, &[], ""), [lacking]);
    let ethernet = "fabric /dev/infiniband/uverbs0\nadapter mlx5_0 Ethernet\n";
    assert!(found(ethernet, &[], "")[0].starts_with("note it has Ethernet cards with RoCE or iWARP (mlx5_0), "));
    assert_eq!(found(&format!("{ethernet}adapter mlx5_1 InfiniBand\n"), &[], ""), [lacking]);
    assert_eq!(found("fabric /dev/infiniband/uverbs0\n", &[], ""), [""; 0], "no port is connected");
    // none can be listed
    let device = "fabric /dev/infiniband/uverbs0\nadapter uverbs0\n";
    assert_eq!(found(device, &[], ""), ["warning it has InfiniBand or EFA (uverbs0), which its containers cannot use"]);
    let given = ["/dev/infiniband"];
    assert_eq!(found(lines, &given, "ibverbs 1\n"), [""; 0]);
    assert_eq!(found(lines, &given, "unread:ibverbs no time\n"), [""; 0]);
    assert_eq!(found(lines, &given, ""), ["warning the image has no libibverbs for its InfiniBand, RoCE or EFA"]);
    let imex = "fabric /dev/nvidia-caps-imex-channels/channel0\n";
    assert!(found(imex, &[], "")[0].starts_with("note it has IMEX channels"));
    assert_eq!(found(imex, &["/dev/nvidia-caps-imex-channels/channel0"], ""), [""; 0]);
}

#[test]
fn containers() {
    let found = |make: &dyn Fn(&mut Sick)| {
        let sick = |c: &mut Clinic| {
            c.nodes[1].facts.network.listeners.clear();
            make(&mut c.nodes[1]);
        };
        Clinic::with(2, sick).found()
    };
    let foreign = |n: &mut Sick| n.containers = vec![container("hworker", "f", ContainerState::Running, &[])];
    let first = found(&foreign);
    assert_eq!(
        first,
        ["error container gpu02: a container named hworker exists already and was not created by hvdctl"]
    );
    // a launcher's name matters where runs are launched
    assert_eq!(
        found(&|n| n.containers.push(container("hmaster", "f", ContainerState::Running, &[]))),
        Vec::<String>::new()
    );
    let on_master =
        Clinic::with(2, |c| c.nodes[0].containers.push(container("hmaster", "f", ContainerState::Exited, &[])));
    assert!(on_master.found()[0].starts_with("error container gpu01: a container named hmaster"));
    assert_eq!(found(&|n| n.containers.clear()), ["note worker gpu02: its worker is not running"]);
    assert_eq!(
        found(&|n| n.containers[0].state = ContainerState::Exited),
        ["warning worker gpu02: its worker differs from the inventory: start hworker again (stopped)"]
    );
    let port = Clinic::with(2, |c| c.inventory.cluster.port = 12346).found();
    assert_eq!(port, ["warning worker gpu[01-02]: its worker differs from the inventory: recreate hworker (port)"]);
}

#[test]
fn what_ended_jobs_left_behind() {
    let labels = [(LABEL_CLUSTER, "local"), (LABEL_ROLE, "master"), (LABEL_JOB, "run-1")];
    let facts = Facts::parse(
        "rank run-1 7 - local -\nrank run-1 8 w2 local -\nrank run-1 x - local -\nrank run-2 9 - theirs -\n",
    );
    let ranks = |c: &mut Clinic| c.nodes[1].facts.jobs.ranks = facts.jobs.ranks.clone();
    let stale = Clinic::with(2, ranks);
    stale.finds(&["error stale gpu02: 2 processes of job run-1, whose launcher is not running"]);
    assert_eq!(stale.all()[0].fixes, [("gpu02".to_owned(), Fix::EndJob("run-1".into()))]);
    let mut under_way = Clinic::with(2, ranks);
    under_way.nodes[0].containers.push(container("hmaster", "m", ContainerState::Running, &labels));
    under_way.finds(&[]);
    // what nothing ends is nothing to fix; of a job that is not over it may go the next moment
    let killed = Facts::parse("rank run-1 7 - local killed\nrank run-2 8 - theirs killed\n").jobs.ranks;
    let mut stuck = Clinic::with(2, |c: &mut Clinic| c.nodes[1].facts.jobs.ranks = killed.clone());
    stuck.finds(&["warning killed gpu02: still there after SIGKILL: process 7 of the job run-1"]);
    assert!(stuck.all().iter().all(|finding| finding.fixes.is_empty()));
    let record = include_str!("../../tests/compat/job.json").replace("20261125-203344-5ae9", "run-1");
    stuck.nodes[1].facts.jobs.recorded = vec![RecordedJob { id: "run-1".into(), record: record.clone() }];
    stuck.finds(&["error stale gpu02: 1 process of job run-1, whose launcher is not running"]);
    stuck.nodes[0].containers.push(container("hmaster", "m", ContainerState::Running, &labels));
    stuck.finds(&[]);
    // of a job whose record cannot be read it is not known whether it has ended
    let mut unreadable = Clinic::with(2, ranks);
    unreadable.nodes[1].facts.jobs.recorded =
        vec![RecordedJob { id: "run-1".into(), record: "{\"format\": 9}".into() }];
    unreadable.finds(&[
        "warning jobs gpu02: the record of job run-1 cannot be read: written by a newer hvdctl (format 9); this one \
         reads up to 1",
    ]);
    assert!(unreadable.all().iter().all(|finding| finding.fixes.is_empty()));
    // of another cluster
    let mut theirs = Clinic::with(2, ranks);
    let other = [(LABEL_CLUSTER, "theirs"), (LABEL_ROLE, "master"), (LABEL_JOB, "run-1")];
    theirs.nodes[1].containers.push(container("m", "m", ContainerState::Running, &other));
    assert!(theirs.found()[0].starts_with("error stale"));
    // without the master this is unknown, and nothing is ended
    let mut unknown = Clinic::with(2, ranks);
    unknown.nodes.remove(0);
    unknown.finds(&[]);
    let mut newer = clinic(2);
    let future = [labels.as_slice(), &[("hvdctl.format", "9")]].concat();
    newer.nodes[1].containers.push(container("hmaster", "m", ContainerState::Exited, &future));
    newer.finds(&[]);
    let mut ended = clinic(2);
    ended.nodes[0].containers.push(container("hmaster", "m", ContainerState::Exited, &labels));
    // the next job removes it, unless it is kept
    ended.finds(&[]);
    ended.nodes[0].facts.jobs.recorded = vec![RecordedJob { id: "run-1".into(), record }];
    ended.finds(&["warning stale gpu01: hmaster of the ended job run-1 still exists"]);
    let fix = ("gpu01".to_owned(), Fix::RemoveContainer { name: "hmaster".into(), id: "m".into() });
    assert_eq!(ended.all()[0].fixes, [fix]);
    // the nodes' clocks show 1000
    let mut shell = clinic(2);
    let of_shell =
        container("hmaster-shell-1", "s", ContainerState::Created, &[(LABEL_CLUSTER, "local"), (LABEL_ROLE, "shell")]);
    shell.nodes[0].containers.push(ContainerSummary { created: Some(990), ..of_shell.clone() });
    shell.finds(&[]);
    shell.nodes[0].containers.push(ContainerSummary { created: Some(700), id: "old".into(), ..of_shell });
    shell.finds(&["warning stale gpu01: hmaster-shell-1 is the container of a shell that was never started"]);
    let name = "hmaster-shell-1".to_owned();
    assert_eq!(shell.all()[0].fixes, [("gpu01".to_owned(), Fix::RemoveContainer { name, id: "old".into() })]);
    let mut foreign = clinic(2);
    foreign.nodes[1].containers.push(container("other", "m", ContainerState::Exited, &other));
    foreign.finds(&[]);
    // its GPUs' users are its ranks
    let mut using = Clinic::with(2, ranks);
    using.nodes[1].details.gpu_users = Details::parse("gpu-user root run-1 python, 7, 1 MiB, GPU-2\n").gpu_users;
    assert_eq!(using.found().len(), 1);
}

#[test]
fn a_directory_that_nodes_share_is_named_with_its_nodes() {
    let shared = |with: &str| crate::node::storage::SharedDirectory {
        what: "projects".into(),
        path: "/nfs/projects".into(),
        with: vec![with.into()],
    };
    let found = Clinic::with(2, |c| {
        (c.nodes[0].facts.storage.shared, c.nodes[1].facts.storage.shared) =
            (vec![shared("gpu02")], vec![shared("gpu01")]);
    });
    let message = "cluster.projects_dir must be local to each node, but /nfs/projects is one directory on gpu[01-02]";
    assert_eq!(found.found(), [format!("error shared gpu[01-02]: {message}")]);
    let unknown = Clinic::with(2, |c| c.nodes[1].facts.storage.shared_unknown = Some("sh: Permission denied".into()));
    let message = "cannot find out whether the cluster's directories are local to the node: sh: Permission denied";
    assert_eq!(unknown.found(), [format!("error shared gpu02: {message}")]);
}

#[test]
fn data_that_are_not_the_same_on_all_nodes_are_named() {
    let pushed = |c: &mut Clinic, node: usize, hash: &str| {
        let data = crate::node::storage::PushedData { hash: hash.into(), inode: None };
        drop(c.nodes[node].facts.storage.pushed.insert("set".into(), data))
    };
    let same = Clinic::with(3, |c| (0..3).for_each(|node| pushed(c, node, "1f0c2a7d33e99")));
    assert_eq!(same.found(), [""; 0]);
    let different = Clinic::with(3, |c| {
        pushed(c, 0, "1f0c2a7d33e99");
        pushed(c, 1, "-");
    });
    let message = "the data set differ: gpu01 1f0c2a7d33e9 · gpu02 incomplete · gpu03 missing";
    assert_eq!(different.found(), [format!("warning data gpu[02-03]: {message}")]);
    let alone = Clinic::with(1, |c| pushed(c, 0, "-"));
    assert_eq!(alone.found(), ["warning data gpu01: the data set are incomplete"]);
    let shared =
        crate::node::storage::SharedDirectory { what: "data".into(), path: "/d".into(), with: vec!["gpu02".into()] };
    assert_eq!(
        Clinic::with(2, |c| c.nodes[0].facts.storage.shared = vec![shared]).found(),
        [""; 0],
        "jobs only read there"
    );
}

#[test]
fn files_that_fit() {
    let clinic = |said: &str| {
        Clinic::with(2, |c| {
            let inodes = Facts::parse(said).storage.inodes;
            let (others, images) = inodes.into_iter().partition(|inodes| inodes.what != "images");
            (c.nodes[1].facts.storage.inodes, c.nodes[1].details.inodes) = (others, images);
        })
    };
    let few =
        clinic("inodes images 999 /var/lib/docker\ninodes jobs 49 /opt\ninodes projects 9999 /p\ninodes data x /d\n");
    assert_eq!(
        few.found(),
        [
            "error disk gpu02: cluster.jobs_dir has room for 49 more files in /opt",
            "error disk gpu02: Docker's directory /var/lib/docker has room for 999 more files",
            "warning disk gpu02: cluster.projects_dir has room for 9999 more files in /p",
            "warning disk gpu02: cluster.data_dir has room for 0 more files in /d"
        ]
    );
    assert_eq!(clinic("inodes images 10000 /d\ninodes projects 10000 /p\n").found(), [""; 0]);
    let mut without = clinic("inodes images 99999 /d\n");
    without.nodes[1].image = None;
    assert_eq!(without.found()[1], "warning disk gpu02: Docker's directory /d has room for 99999 more files");
}

#[test]
fn memory_and_disks() {
    let shm = |size: u64, slots: u32| {
        let set = |c: &mut Clinic| {
            c.inventory.cluster.shm_size = size;
            c.nodes[1].node.slots = Some(slots);
            for (i, node) in c.nodes.iter_mut().enumerate() {
                let address = format!("10.0.0.{}", i + 1).parse().unwrap();
                node.containers[0].labels =
                    ContainerSpec::worker(&c.inventory.cluster, &node.node, GpuRequest::All, address).labels();
            }
        };
        Clinic::with(2, set).found()
    };
    assert_eq!(shm(64 << 20, 2), ["error shm gpu02: /dev/shm of its containers has 64.0 MiB for 2 ranks"]);
    assert_eq!(shm(128 << 20, 2), ["warning shm gpu02: /dev/shm of its containers has 128.0 MiB for 2 ranks"]);
    assert_eq!(shm(256 << 20, 2), Vec::<String>::new());
    assert_eq!(shm(64 << 20, 1), Vec::<String>::new());
    let found = |said: &str| {
        let details = Details::parse(said);
        Clinic::with(2, |c| {
            let (others, images) = Facts::parse(said).storage.disks.into_iter().partition(|disk| disk.what != "images");
            (c.nodes[1].facts.storage.disks, c.nodes[1].details.disks) = (others, images);
            c.nodes[1].details.infiniband = details.infiniband;
            c.nodes[1].details.memlock = details.memlock;
            c.nodes[1].details.nofile = details.nofile;
            c.nodes[1].details.max_sessions = details.max_sessions;
        })
        .found()
    };
    assert_eq!(
        found("disk images 1024 /var/lib/docker\n"),
        ["error disk gpu02: Docker's directory /var/lib/docker has 1.0 MiB left"]
    );
    assert_eq!(
        found("disk jobs 1023 /opt\ndisk projects 524287 /data\n"),
        [
            "error disk gpu02: cluster.jobs_dir has 1023.0 KiB left in /opt",
            "warning disk gpu02: cluster.projects_dir has 512.0 MiB left in /data"
        ]
    );
    assert_eq!(found("disk jobs 524288 /opt\ndisk projects 524288 /data\n"), Vec::<String>::new());
    let full = Facts::parse("disk jobs 1023 /opt\ndisk projects 1023 /data\n").storage.disks;
    let full = Clinic::with(2, |c| c.nodes[1].facts.storage.disks = full).all();
    let explained: Vec<_> = full.iter().map(|f| (&f.why[..], &f.hint[..])).collect();
    assert_eq!(
        explained,
        [
            ("rank output that does not fit is lost", "`hvdctl jobs prune`, or free space on the node"),
            ("projects and the files that ranks write may not fit", "free space on the node")
        ]
    );
    assert_eq!(found("max-sessions 2\n"), ["warning sshd gpu02: its sshd has MaxSessions 2"]);
    assert_eq!(found("max-sessions 10\n"), Vec::<String>::new());
    assert_eq!(found("disk images 4194304 /var/lib/docker\n"), Vec::<String>::new());
    let mut without = Clinic::with(2, |c| c.nodes[1].details.disks = Details::parse("disk images 4194304 /d\n").disks);
    without.nodes[1].image = None;
    assert_eq!(without.found()[1], "warning disk gpu02: Docker's directory /d has 4.0 GiB left");
    assert_eq!(
        found("infiniband yes\nmemlock 65536\n"),
        ["warning memlock gpu02: its worker may lock 64.0 KiB of memory"]
    );
    assert_eq!(found("infiniband yes\nmemlock unlimited\n"), Vec::<String>::new());
    assert_eq!(found("memlock 65536\n"), Vec::<String>::new());
    assert_eq!(found("nofile 1024\n"), ["warning limits gpu02: a rank in its worker may open only 1024 files"]);
    for enough in ["nofile 4096\n", "nofile 524288\n", "nofile unlimited\n", "nofile \n"] {
        assert_eq!(found(enough), Vec::<String>::new(), "{enough}");
    }
}

#[test]
fn an_address_that_is_not_the_first_of_its_interface() {
    let second = |label: &str| {
        let facts = Facts::parse(&format!(
            "ssh 10.0.0.2\naddr eth0 192.168.0.2/24 eth0\naddr eth0 10.0.0.2/24 {label}\naddr eth1 10.8.0.2/24 eth1\n"
        ));
        Clinic::with(2, |c| {
            let node = &mut c.nodes[1].facts.network;
            (node.addresses, node.labels, node.networks) =
                (facts.network.addresses, facts.network.labels, facts.network.networks);
        })
        .found()
    };
    assert_eq!(
        second("eth0"),
        ["warning address gpu02: its address in the cluster, 10.0.0.2, is not the first of eth0: Open MPI and NCCL \
             use 192.168.0.2"]
    );
    assert_eq!(
        second("eth0:1"),
        ["warning address gpu02: its address in the cluster, 10.0.0.2, is not the first of eth0: Open MPI uses \
          192.168.0.2"]
    );
}

#[test]
fn names_in_the_workers() {
    let found = |lines: &str| {
        let resolved = versions(&format!("name:gpu01 10.0.0.1\nname:gpu02 10.0.0.2\n{lines}"));
        Clinic::with(2, |c| c.nodes[1].inside.extend(resolved)).found()
    };
    assert_eq!(found(""), Vec::<String>::new());
    let own = "error names gpu02: the host name gpu02";
    assert_eq!(
        found("name:gpu02 127.0.1.1\n"),
        [format!("{own} resolves to 127.0.1.1 in its worker instead of 10.0.0.2")]
    );
    // Gloo binds to the first that it can
    let several = format!("{own} resolves to 10.0.0.2 192.168.0.2 in its worker instead of 10.0.0.2");
    assert_eq!(found("name:gpu02 10.0.0.2 192.168.0.2\n"), [several]);
    let unknown = "warning names gpu02: the host name gpu01 is unknown in its worker instead of 10.0.0.1";
    assert_eq!(found("name:gpu01 \n"), [unknown]);
}

#[test]
fn the_network_between() {
    let found = |said: &str| {
        let details = Details::parse(said);
        Clinic::with(3, |c| {
            let node = &mut c.nodes[1].details;
            node.routes.extend(details.routes);
            node.mtu.extend(details.mtu);
            node.strict.extend(details.strict);
            node.unresolved = details.unresolved;
        })
        .found()
    };
    assert_eq!(
        found("route 10.0.0.1 docker0 172.17.0.1\n"),
        ["error route gpu02: packets to gpu01 (10.0.0.1) leave by docker0, which reaches no other machine"]
    );
    assert_eq!(
        found("route 10.0.0.1 - RTNETLINK answers: Network is unreachable\n"),
        ["error route gpu02: has no route to gpu01 (10.0.0.1): RTNETLINK answers: Network is unreachable"]
    );
    assert_eq!(
        found("route 10.0.0.1 wlan0 192.168.0.2\n"),
        ["warning route gpu02: packets to gpu01 (10.0.0.1) leave by wlan0 instead of eth0"]
    );
    assert_eq!(
        found("route 10.0.0.1 wlan0 192.168.0.2\nstrict eth0\n"),
        ["warning route gpu02: packets to gpu01 (10.0.0.1) leave by wlan0 instead of eth0, and eth0 drops \
             incoming packets from there (rp_filter)"]
    );
    assert_eq!(found("strict eth0\nstrict wlan0\n"), Vec::<String>::new());
    assert_eq!(
        found("unresolved gpu02\n"),
        ["warning names gpu02: its host name gpu02 does not resolve to an address there"]
    );
    assert_eq!(
        found("mtu eth0 9000\n"),
        ["warning mtu gpu02: its interface has a different MTU: gpu[01,03] 1500 · gpu02 9000"]
    );
}

#[test]
fn keys() {
    let all = |c: &Clinic| fold(super::nodes::keys(&c.inventory, &c.views()));
    let fresh = all(&Clinic::with(2, |c| c.nodes.iter_mut().for_each(|node| node.containers.clear())));
    assert_eq!((fresh.len(), fresh[0].severity, fresh[0].nodes.len()), (1, Note, 2));
    // workers without keys are another matter
    let found = all(&clinic(2));
    let is_fixed = |f: &Finding| f.fixes == f.nodes.iter().map(|n| (n.clone(), Fix::PushKeys)).collect::<Vec<_>>();
    assert!(found.iter().all(|f| f.severity == Error && is_fixed(f)), "{found:?}");
    assert!(found.iter().any(|f| f.message == "the master has no key pair of the cluster"), "{found:?}");
}

#[test]
fn pairs() {
    let matrix = |reason: &str| Matrix {
        absent: Vec::new(),
        pairs: [("gpu01", "gpu03"), ("gpu02", "gpu03"), ("gpu03", "gpu01")]
            .map(|(from, to)| TriedLogin {
                from: from.into(),
                to: to.into(),
                reason: (to == "gpu03").then(|| reason.to_owned()),
            })
            .to_vec(),
    };
    let found = ports(&matrix("no answer within 3 s"), Some(12345));
    assert_eq!(found.len(), 1);
    assert_eq!(found[0].nodes, ["gpu01", "gpu02"]);
    assert_eq!(found[0].message, "cannot reach gpu03 on random high ports: no answer within 3 s");
    assert!(found[0].why.starts_with("a firewall allows port 12345 but not the others; "));
    assert!(!ports(&matrix("x"), None)[0].why.contains("firewall"));
    let found = logins(&matrix("Connection timed out"), 12345);
    assert_eq!(found[0].message, "cannot log in to gpu03 on port 12345: Connection timed out");
    assert!(found[0].hint.starts_with("allow TCP port 12345"));
    assert!(logins(&matrix("Permission denied (publickey)."), 1)[0].hint.starts_with("run `hvdctl keys push`"));
}

#[test]
fn equal_findings_are_one_and_errors_come_first() {
    let note = |node: &str| Finding::new(Note, Check::Disk, node, "x");
    let folded = fold(vec![
        note("n1"),
        Finding::new(Error, Check::Disk, "n1", "x"),
        note("n2"),
        note("n1"),
        note("n3").explain("", "y"),
    ]);
    let shown: Vec<String> = folded.iter().map(|f| format!("{} {f}", f.severity)).collect();
    assert_eq!(shown, ["error n1: x", "note n[1-2]: x", "note n3: x\n  hint: y"]);
}

#[test]
fn lines_of_the_scripts_are_parsed_or_skipped() {
    let details =
        Details::parse("memlock unlimited\ndriver \nname a\nroute x eth0 y\ndisk images x /\nmtu a b\nrank a\n\n");
    assert_eq!(details, Details { memlock: Some(u64::MAX), ..Details::default() });
    let details = Details::parse("route 10.0.0.1 eth0 10.0.0.2\nroute 10.0.0.3 - no way\n");
    assert_eq!(details.routes.into_values().collect::<Vec<_>>(), [Ok("eth0".to_owned()), Err("no way".to_owned())]);
    assert_eq!(versions("a b c\njunk\n"), BTreeMap::from([("a".into(), "b c".into())]));
}

#[test]
fn a_directory_that_others_can_change_is_an_error_on_one_node_too() {
    let facts = Facts::parse(
        "exposed jobs owner 755 mallory users /scratch/hvd\nexposed data owner 755 mallory users /scratch/hvd\n",
    );
    let exposed = Clinic::with(1, |c| c.nodes[0].facts.permissions = facts.permissions);
    let message =
        "other users can change cluster.jobs_dir, cluster.data_dir: /scratch/hvd belongs to mallory (mode 755)";
    assert_eq!(exposed.found(), [format!("error permissions gpu01: {message}")]);
    let hint = &exposed.all()[0].hint;
    assert!(
        hint.contains("or `sudo chown root:root /scratch/hvd && sudo chmod go-w /scratch/hvd` on the node"),
        "{hint}"
    );
    let facts = Facts::parse("exposed data owner 755 mallory users /scratch/hvd\n");
    let unused = Clinic::with(1, |c| c.nodes[0].facts.permissions = facts.permissions);
    let message = "other users can change cluster.data_dir: /scratch/hvd belongs to mallory (mode 755)";
    assert_eq!(unused.found(), [format!("warning permissions gpu01: {message}")], "there are no data");
}

#[test]
fn an_engine_without_root_has_the_limits_and_no_groups_of_its_login() {
    use crate::inventory::Ulimit;
    let found = |limits: &[(&str, u64)], name: &str, hard: i64| {
        let sick = Clinic::with(1, |c| {
            let sick = &mut c.nodes[0];
            sick.limits = limits.iter().map(|(name, limit)| ((*name).to_owned(), *limit)).collect();
            sick.node.container.ulimits = [(name.to_owned(), Ulimit { soft: hard, hard })].into();
        });
        let found = sick.all().into_iter().filter(|finding| finding.check == Check::Limits);
        found.map(|finding| format!("{} {}\n{}", finding.severity, finding.message, finding.hint)).collect::<Vec<_>>()
    };
    let small = [("memlock", 65536), ("nofile", 4096), ("nproc", 500)];
    let memlock = &found(&small, "memlock", -1)[0];
    assert!(memlock.starts_with("error `ulimits` asks for memlock unlimited, but the hard limit of own is 64.0 KiB"));
    assert!(memlock.contains("LimitMEMLOCK=infinity") && memlock.contains("set memlock = 65536"), "{memlock}");
    assert!(found(&small, "nofile", 1 << 20)[0].contains("LimitNOFILE=1048576"));
    assert_eq!(found(&small, "nofile", -1).len(), 1);
    assert_eq!(found(&[("nofile", 1 << 20)], "nofile", -1), [""; 0], "Podman gives that number");
    for (name, hard) in [("memlock", 65536), ("nproc", -1), ("stack", -1)] {
        assert_eq!(found(&small, name, hard), [""; 0], "{name}");
    }
    assert_eq!(found(&[], "memlock", -1), [""; 0], "an engine with root, or limits that cannot be read");

    let lines = "denied device /dev/kfd\ndenied device /dev/dri/card 0\ndenied directory /srv/set\n";
    let sick = Clinic::with(1, |c| c.nodes[0].facts.permissions = Facts::parse(lines).permissions);
    let found: Vec<String> = sick
        .all()
        .iter()
        .filter(|f| f.message.contains("cannot"))
        .map(|f| format!("{} {} {}", f.check, f.message, f.hint))
        .collect();
    assert!(
        found.iter().any(|f| f.starts_with("accelerators its containers cannot open /dev/kfd '/dev/dri/card 0'")
            && f.ends_with("sudo setfacl -m u:own:rw /dev/kfd '/dev/dri/card 0'")),
        "{found:?}"
    );
    assert!(found.iter().any(|f| f.starts_with("permissions its containers cannot read /srv/set")), "{found:?}");
}

#[test]
fn variables_that_have_no_effect_on_an_engine() {
    let found = |name: &str, engine: EngineName| {
        let sick = Clinic::with(1, |c| {
            c.nodes[0].engine_name = engine;
            c.nodes[0].node.container.env = [(name.to_owned(), "all".to_owned())].into();
        });
        let found = sick.all().into_iter().filter(|finding| finding.message.contains("in `env` has no effect"));
        found.map(|finding| finding.hint).collect::<Vec<_>>().join(" ")
    };
    assert!(found("NVIDIA_VISIBLE_DEVICES", EngineName::Docker).contains("set `gpus` instead"));
    assert_eq!(found("NVIDIA_DRIVER_CAPABILITIES", EngineName::Docker), "");
    assert!(found("NVIDIA_DRIVER_CAPABILITIES", EngineName::Podman).contains("remove the variable"));
    assert_eq!(found("NVIDIA_TF32_OVERRIDE", EngineName::Podman), "");
}
