//! Every rule with what it fires on, and what it lets pass.

mod addresses;
mod containers;
mod gpus;
mod software;
mod storage;

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
    own: OwnEnvironment,
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
            own: OwnEnvironment::default(),
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
                own,
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
                own: own.clone(),
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
    let found = ports(&matrix("no answer within 3 s"), Some(12345), None);
    assert_eq!(found.len(), 1);
    assert_eq!(found[0].nodes, ["gpu01", "gpu02"]);
    assert_eq!(found[0].message, "cannot reach gpu03 on random high ports: no answer within 3 s");
    assert!(found[0].why.starts_with("a firewall allows port 12345 but not the others; "));
    assert!(!ports(&matrix("x"), None, None)[0].why.contains("firewall"));
    let found = logins(&matrix("Connection timed out"), 12345, None);
    assert_eq!(found[0].message, "cannot log in to gpu03 on port 12345: Connection timed out");
    assert!(found[0].hint.starts_with("allow TCP port 12345"));
    assert!(
        logins(&matrix("Permission denied (publickey)."), 1, Some("hmesh"))[0]
            .hint
            .starts_with("run `hvdctl keys push`")
    );
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
