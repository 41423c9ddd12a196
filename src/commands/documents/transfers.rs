//! The documents about images, data and virtualenvs.

use super::{Made, full, refused, results};
use crate::commands::json::{DataPushNode, DataRmNode, EnvRmNode, NodeEntry};
use crate::commands::set_up::{data, env};
use crate::data::transfer::DataOnNode;
use crate::environment::EnvPlace;
use crate::environment::listing::ListedEnv;
use crate::environment::make::GivenEnv;
use crate::environment::probe::MadeEnv;

pub(super) fn data_made(all: &mut Made) {
    let push = |node: &str, files| {
        let pushed =
            DataPushNode { changed: files > 0, files, sent: 1 << 20, from_operator: 1 << 19, resumed: 2, removed: 1 };
        NodeEntry::new(node, true, pushed)
    };
    let nodes = results(vec![push("node1", 0), push("node2", 3)], &[full("node3")]);
    all.add("data-push", data::push::outcome("imagenet", nodes, &[refused("node4")]));
    let listed = |state: &str, hash: Option<&str>| DataOnNode {
        name: "imagenet".into(),
        state: state.into(),
        hash: hash.map(str::to_owned),
        files: 1281,
        size: 1 << 30,
        age: hash.map(|_| 7200),
        origin: "desk:/home/ana/imagenet".into(),
    };
    let nodes = [
        ("node1".to_owned(), vec![listed("complete", Some("1f0c2a7d33e9"))]),
        ("node2".to_owned(), vec![listed("incomplete", None)]),
    ];
    all.add("data-status", data::listed(&nodes, &[refused("node4")]));
    let remove = |node: &str, changed, left| NodeEntry::new(node, true, DataRmNode { changed, left });
    let nodes = results(vec![remove("node1", true, true), remove("node2", false, false)], &[full("node3")]);
    all.add("data-rm", data::removed(nodes, &[refused("node4")]));
}

pub(super) fn env_made(all: &mut Made) {
    let made = MadeEnv {
        hash: "1f0c2a7d33e9".into(),
        python: "3.11.7".into(),
        tool: "uv 0.9.1".into(),
        content: "63e9afab682c".into(),
        size: 1 << 30,
        time: 1_795_262_584,
        source: "ana@desk:/home/ana/train/pylock.toml".into(),
    };
    let packages = |version: &str| [("torch".to_owned(), version.to_owned())].into();
    let given = |node: &str, is_new, version| {
        let given = GivenEnv { is_new, made: made.clone(), packages: packages(version), sent: 1 << 20 };
        (node.to_owned(), given)
    };
    let nodes = results(vec![given("node1", true, "2.9.0"), given("node2", false, "2.8.0")], &[full("node3")]);
    let place = EnvPlace { state_dir: "/var/tmp/hvdctl-lab".into() };
    all.add("env-create", env::create::outcome((&place, "default"), &nodes, &[refused("node4")], false));
    let listed = |state: &str, made: Option<&MadeEnv>| {
        let (name, state, age) = ("default".into(), state.into(), made.map(|_| 7200));
        vec![ListedEnv { name, state, made: made.cloned(), age }]
    };
    let nodes =
        [("node1".to_owned(), listed("complete", Some(&made))), ("node2".to_owned(), listed("incomplete", None))];
    all.add("env-list", env::listed(&nodes, &[refused("node4")]));
    let remove = |node: &str, changed| NodeEntry::new(node, true, EnvRmNode { changed });
    let nodes = results(vec![remove("node1", true), remove("node2", false)], &[full("node3")]);
    all.add("env-rm", env::removed(nodes, &[refused("node4")]));
}
