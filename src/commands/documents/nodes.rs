//! The documents of the commands that set nodes up, and of those that change them.

use super::{
    Made, failure, full, names, refused, results, status::status_made, transfers::data_made, transfers::env_made,
};
use crate::cluster::exec::CommandOutput;
use crate::commands::json::{
    DisconnectNode, Document, DownNode, DrainNode, ImagePruneNode, ImagePullNode, ImagePushNode, LockReleaseNode,
    NodeEntry, QueueNode, SlurmDownNode, SlurmUpNode, UpNode, UpOperation,
};
use crate::commands::nodes::{disconnect, exec, lock};
use crate::commands::set_up::{down, drain, image, init, up};
use crate::commands::start::slurm;
use crate::document;
use crate::error::{Error, NodeProgress};
use crate::init::draft;
use crate::init::draft::Probe;
use crate::model::allocation::{Allocation, AllocationConflict, Resources};
use crate::model::lease::Lease;
use crate::node::facts::Drained;
use crate::runtime::Image;
use std::path::Path;
use std::time::SystemTime;

pub(super) fn nodes_made(all: &mut Made) {
    let container = || "hworker".to_owned();
    let steps = vec![
        UpOperation::EndJob { job: "20261121-120304-k7qd".into() },
        UpOperation::Pull { image: "team/app:2".into() },
        UpOperation::Remove { container: container(), reasons: names(&["image"]) },
        UpOperation::Create { container: container() },
        UpOperation::Start { container: container() },
        UpOperation::Unpause { container: container() },
    ];
    let up = |node: &str, operations: Vec<UpOperation>| {
        let summary = "recreated hworker (image)".into();
        NodeEntry::new(node, true, UpNode { changed: !operations.is_empty(), operations, summary })
    };
    let nodes = vec![up("node1", Vec::new()), up("node2", steps)];
    all.add("up", up::outcome(false, results(nodes, &[full("node3")]), &[refused("node4")]));

    let down = |node: &str, removed: &[&str]| {
        let changed = !removed.is_empty();
        NodeEntry::new(node, true, DownNode { changed, removed: names(removed), purged: true, kept_data: Vec::new() })
    };
    let nodes = vec![down("node1", &["hmaster", "hworker"]), down("node2", &[])];
    all.add("down", down::outcome(results(nodes, &[full("node3")]), &[refused("node4")]));

    let own = |content: &str, layers: &[&str]| Image {
        id: "sha256:ab71e42e11ba".into(),
        content: Some(content.into()),
        layers: names(layers),
        size: 4_200_000_000,
        platform: "linux/amd64".into(),
        created: Some("2026-11-01T12:00:00Z".into()),
        built_for: None,
    };
    let nodes = [
        ("node1".to_owned(), Some(own("1f0c2a", &["sha256:1", "sha256:2"]))),
        ("node2".to_owned(), Some(own("7d33e9", &["sha256:1", "sha256:3"]))),
        ("node3".to_owned(), None),
    ];
    let outcome = image::status::outcome("team/app:2", &nodes, &[refused("node4")], SystemTime::now());
    all.add("image-status", outcome);
    let push = |node: &str, sent| NodeEntry::new(node, true, ImagePushNode { changed: sent > 0, sent });
    let nodes = results(vec![push("node1", 0), push("node2", 1 << 20)], &[full("node3")]);
    all.add("image-push", image::push::outcome(nodes, &[refused("node4")]));

    let pull = |node: &str, changed| {
        let (id, content) = ("sha256:ab71e42e11ba".into(), Some("1f0c2a7d33e9".into()));
        NodeEntry::new(node, true, ImagePullNode { changed, id, content })
    };
    let nodes = results(vec![pull("node1", true), pull("node2", false)], &[full("node3")]);
    all.add("image-pull", image::pulled(nodes, &[refused("node4")]));

    all.add("image-build", image::build::outcome("hvdctl/digits:1f0c2a7d33e9".into(), true));
    let prune = |node: &str, removed: &[&str]| NodeEntry::new(node, true, ImagePruneNode { removed: names(removed) });
    let nodes = results(vec![prune("node1", &["hvdctl/digits:1f0c2a7d33e9"]), prune("node2", &[])], &[full("node3")]);
    all.add("image-prune", image::pruned(nodes));

    data_made(all);
    env_made(all);
    let nodes = [("node1", true), ("node2", false)];
    let nodes = nodes.map(|(node, closed)| NodeEntry::new(node, true, DisconnectNode { closed }));
    all.add("disconnect", disconnect::outcome(nodes.into()));

    let drain = |node: &str, drained: Option<Drained>| {
        let leaving = names(&["20261121-120304-k7qd"]);
        NodeEntry::new(node, true, DrainNode { changed: true, drained, leaving, staying: Vec::new() })
    };
    let mark = Drained { by: "ana@desk".into(), since: 1_795_262_584 };
    let nodes = vec![drain("node1", None), drain("node2", Some(mark.clone()))];
    all.add("drain", drain::outcome(results(nodes, &[full("node3"), refused("node4")])));
    status_made(all, mark);
}

pub(super) fn slurm_made(all: &mut Made) {
    let node = |name: &str, state: &str, reason: Option<&str>| {
        let (gres, reason) = (Some("gpu:4".to_owned()), reason.map(str::to_owned));
        (
            name.to_owned(),
            QueueNode { state: state.into(), used: 2, slots: 4, gres, reason, has_old_key: name == "node2" },
        )
    };
    let nodes = vec![node("node1", "mixed", None), node("node2", "drained", Some("hvdctl: job 20261121-110000-0f3b"))];
    all.add("slurm-status", slurm::status_outcome(nodes, &names(&["RUNNING", "PENDING"])));
    let up = NodeEntry::new("node1", true, SlurmUpNode { changed: true, image: "hvdctl/slurm:0f3b5c7d9e1a".into() });
    all.add("slurm-up", slurm::up::outcome(results(vec![up], &[refused("node2")])));
    let down = NodeEntry::new("node1", true, SlurmDownNode { changed: false });
    all.add("slurm-down", slurm::down::outcome(results(vec![down], &[refused("node2")])));
    let output = CommandOutput {
        node: "node1".into(),
        code: 0,
        timed_out: false,
        left_out: 0,
        stdout: "node1 idle".into(),
        stderr: String::new(),
    };
    all.add("slurm-exec", exec::outcome("sinfo", results(vec![output], &[])));
}

pub(super) fn lock_made(all: &mut Made) {
    let lease = Lease {
        id: "b2c4-000000".into(),
        holder: "ana@desk".into(),
        pid: 4711,
        purpose: "hvdctl up".into(),
        since: 1_795_262_584,
        renewed: 1_795_262_590,
        read: 1_795_262_591,
    };
    let nodes = [("node1".to_owned(), Some(lease.clone())), ("node2".to_owned(), None)];
    all.add("lock-status", lock::status_outcome(nodes.to_vec(), &[refused("node3")]));
    let released = nodes.map(|(node, released)| NodeEntry::new(&node, true, LockReleaseNode { released }));
    all.add("lock-release", lock::released(results(released.into(), &[refused("node3")])));
    all.push(("error/locked", failure(&Error::Locked(vec![("node1".into(), lease)]))));
    let allocation = |resources| Allocation {
        job: "20261121-120304-k7qd".into(),
        name: "digits".into(),
        project: None,
        port: 12345,
        operator: "ana@desk".into(),
        unreadable: None,
        resources,
    };
    let some = Resources { slots: 1, gpus: names(&["GPU-0a"]) };
    let conflict = AllocationConflict {
        allocations: vec![("node1".into(), allocation(None)), ("node2".into(), allocation(Some(some)))],
        free: Vec::new(),
    };
    all.push(("error/allocated", failure(&Error::Allocated(conflict))));
    let stand = |node: &str, done, steps: &[&str], error| NodeProgress {
        done,
        steps: names(steps),
        error,
        ..NodeProgress::new(node)
    };
    let nodes = vec![
        stand("node1", true, &["started hworker"], None),
        stand("node2", false, &[], None),
        stand("node3", false, &[], Some(full("node3"))),
    ];
    let stopped = Error::Stopped { by: Box::new(Error::Signal(2)), nodes };
    all.push(("error/stopped", failure(&stopped)));
}

pub(super) fn init_made(all: &mut Made) {
    let hosts = crate::init::machines::read("ana@10.0.0.[1-2] ana@gpu1 10.0.0.3:2222 10.0.0.4", None).unwrap();
    let probed = |text: &str| Some(Ok(Probe::parse(text)));
    let probe = "hostname gpu1\ncores 64\nssh 10.0.0.1\naddr lo 127.0.0.1/8\naddr eth0 10.0.0.1/24\nroot sudo\n\
                 nvidia-smi yes\ngpu GPU 0: NVIDIA H200 (UUID: GPU-4f1e)\ngpu GPU 1: NVIDIA A100 (UUID: GPU-2ac4)\n\
                 gpu   MIG 3g.20gb     Device  0: (UUID: MIG-c6d4)\ngpu exit 0\nmig exit 0\ndocker sudo 27.1.0\nimage \
                 horovod/horovod:latest\n";
    let bare = "hostname gpu2\ncores 8\nroot no\ndocker none\n";
    let found = [probed(probe), probed(bare), probed(probe), Some(Err(refused("10.0.0.3"))), None];
    let mut entries = draft::entries(hosts);
    entries.iter_mut().zip(found).for_each(|(entry, found)| entry.found = found);
    draft::find_duplicates(&mut entries);
    all.push((
        "init",
        document::value(&Document {
            ok: false,
            details: init::document::details(Path::new("inventory.toml"), &entries),
        }),
    ));
}
