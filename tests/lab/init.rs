//! `init`: its inventory describes the nodes, and the other commands work with it at once.

use crate::operator::own_home;
use crate::process::{Done, run, s};
use crate::state::{FULL_IMAGE, Lab, Restore, gpu_uuids, hvdctl_in, lab_dir, node_sh, on};
use hvdctl::inventory::{Gpus, Inventory};
use std::fs;
use std::path::PathBuf;

/// A home whose ssh configuration knows the nodes, and a directory without an inventory.
struct Workplace {
    home: PathBuf,
    dir: PathBuf,
}

impl Workplace {
    /// The configuration includes the lab's, before `more`: behind a `Host` line the include would hold for that host
    /// alone.
    fn of(lab: &Lab, more: &str) -> Workplace {
        let (home, dir) = (lab.path().join("home"), lab.path().join("work"));
        fs::create_dir_all(home.join(".ssh")).unwrap();
        fs::create_dir_all(&dir).unwrap();
        let config = format!("Include {}\n{more}", lab_dir().join("ssh_config").display());
        fs::write(home.join(".ssh/config"), config).unwrap();
        Workplace { home, dir }
    }

    #[track_caller]
    fn hvdctl(&self, args: &[&str]) -> Done {
        let mut command = hvdctl_in(&self.dir);
        command.env("HOME", &self.home).env("PATH", own_home()).args(args);
        run(command, s(60))
    }

    fn text(&self, file: &str) -> String {
        fs::read_to_string(self.dir.join(file)).unwrap()
    }

    #[track_caller]
    fn inventory(&self, file: &str) -> Inventory {
        Inventory::load(&self.dir.join(file)).unwrap_or_else(|faults| panic!("{faults}\n{}", self.text(file)))
    }
}

fn hosts(inventory: &Inventory) -> Vec<&str> {
    inventory.nodes.iter().map(|node| node.host.as_str()).collect()
}

#[test]
fn the_inventory_describes_the_nodes_and_works_at_once() {
    let lab = Lab::empty();
    let workplace = Workplace::of(&lab, "");
    let done = workplace.hvdctl(&["init", "node1", "node2"]).code(0).says(&["hvdctl keys push"]);
    for node in ["node1", "node2"] {
        let row: Vec<&str> = done.out.lines().find(|line| line.starts_with(node)).unwrap().split_whitespace().collect();
        let address = on(node, "ip -4 -o addr show eth0 | sed 's/.*inet \\([^/]*\\).*/\\1/'");
        let engine = on(node, "docker version -f '{{.Server.Version}}'");
        assert_eq!((row[1], row[2]), (address.trim(), on(node, "nproc").trim()));
        assert_eq!((row[3], *row.last().unwrap()), (gpu_uuids(node).len().to_string().as_str(), engine.trim()));
        // nothing was changed
        on(node, "test ! -e /opt/horovod");
    }
    let inventory = workplace.inventory("inventory.toml");
    assert_eq!(hosts(&inventory), ["node1", "node2"]);
    assert_eq!(inventory.cluster.image, FULL_IMAGE, "the tutorial's image is not there, this one is on both");
    assert!(inventory.nodes[0].master && inventory.nodes.iter().all(|node| node.gpus == Gpus::Count(1)));
    let status = workplace.hvdctl(&["status"]).code(0);
    assert!(status.out.contains("node1 (master)") && status.out.contains("node2"), "{}", status.out);

    // it stays as it is
    let before = workplace.text("inventory.toml");
    workplace.hvdctl(&["init", "node2"]).code(2).complains(&["inventory.toml exists"]);
    assert_eq!(workplace.text("inventory.toml"), before);
    // and the same comes from the configuration's own names
    workplace.hvdctl(&["init", "--from-ssh-config", "-o", "again.toml"]).code(0);
    assert!(
        hosts(&workplace.inventory("again.toml")).starts_with(&["node1", "node2"]),
        "{}",
        workplace.text("again.toml")
    );
}

#[test]
fn a_fault_of_a_machine_is_reported_and_written() {
    let lab = Lab::empty();
    let config = fs::read_to_string(lab_dir().join("ssh_config")).unwrap();
    let node1 = config.split("Host ").find(|block| block.starts_with("node1\n")).unwrap();
    let alias = format!("Host alias{}", node1.strip_prefix("node1").unwrap());
    let workplace = Workplace::of(&lab, &alias);
    let docker = "/usr/bin/docker";
    let _restore = Restore(|| {
        node_sh("node2", &format!("[ ! -e {docker}.away ] || mv {docker}.away {docker}"), &[]).code(0);
        node_sh("node1", "ip addr del 10.99.0.1/24 dev eth0 2>/dev/null; :", &[]).code(0);
    });
    on("node2", &format!("mv {docker} {docker}.away"));
    on("node1", "ip addr add 10.99.0.1/24 dev eth0");
    let args = ["init", "--json", "node1", "node2", "alias", "nobody@127.0.0.1:1"];
    let done = workplace.hvdctl(&args).code(3).complains(&[
        "node2: the Docker Engine is installed, but the `docker` command is not",
        "apt-get install docker-cli",
        "alias: skipped, because it is the same machine as node1",
    ]);
    let document: serde_json::Value = serde_json::from_str(&done.out).unwrap();
    let nodes = document["nodes"].as_array().unwrap();
    let reported: Vec<bool> = nodes.iter().map(|node| node["ok"] == true).collect();
    assert_eq!((reported, &document["ok"]), (vec![true, true, true, false], &false.into()));
    assert_eq!((&nodes[1]["found"]["docker"], &nodes[2]["same_as"]), (&serde_json::Value::Null, &"node1".into()));
    assert!(nodes[3]["error"]["message"].as_str().unwrap().contains("Connection refused"), "{document}");

    let inventory = workplace.inventory("inventory.toml");
    assert_eq!(hosts(&inventory), ["node1", "node2", "127.0.0.1"]);
    let address = on("node1", "ip -4 -o addr show eth0 | sed -n '1s/.*inet \\([^/]*\\).*/\\1/p'");
    assert_eq!(inventory.nodes[0].address, address.trim().parse().ok(), "of several addresses one is written");
    assert_eq!((inventory.nodes[1].address, inventory.nodes[2].ssh_port), (None, Some(1)));
    let text = workplace.text("inventory.toml");
    for words in [
        "there is also 10.99.0.1 on eth0",
        "# the Docker Engine is installed, but the `docker` command is not",
        "Connection refused",
        "# alias is skipped",
    ] {
        assert!(text.contains(words), "no {words:?} in\n{text}");
    }
}
