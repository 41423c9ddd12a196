//! The inventory of nodes that were picked from a pool.

use super::format::PoolNode;
use crate::inventory::{Cluster, Gpus, Node};
use crate::model::mesh::{INTERFACE, NetworkKind};
use crate::text::digest;
use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::time::Duration;

/// The most characters of a cluster's name, so that the names of its containers are not too long.
const LONGEST_NAME: usize = 40;
/// The number of hexadecimal digits at its end that tell it from the name of another operator.
const HASH: usize = 8;
/// Ports of the workers' sshd, apart from that of the owners' own workers.
const PORTS: std::ops::Range<u16> = 12_346..13_346;
/// UDP ports of encrypted networks, apart from those that programs get by themselves and those of relaying nodes.
const UDP_PORTS: std::ops::Range<u16> = 14_000..20_000;
/// The number of hexadecimal digits of their interfaces, whose names have at most 15 characters.
const INTERFACE_HASH: usize = 9;

/// The nodes, the master first, as those of an inventory with this user: their names are their owners', with the owner
/// where two have the same. `own`: who picks them, whose nodes have no owner there. `network`: the kind of network that
/// hvdctl makes between them, in which they have addresses of their own.
pub fn nodes(picked: &[&PoolNode], user: Option<&str>, own: Option<&str>, network: Option<NetworkKind>) -> Vec<Node> {
    // addresses between the nodes of one cluster lead nowhere from others
    let clusters: BTreeSet<(&str, &str)> =
        picked.iter().map(|node| (node.owner.as_str(), node.cluster.as_str())).collect();
    let is_one_cluster = clusters.len() == 1;
    let mut names = BTreeSet::new();
    let mut name = |node: &PoolNode| {
        let is_unique = picked.iter().filter(|other| other.node == node.node).count() == 1;
        let plain = |c: char| if c.is_ascii_alphanumeric() || c == '.' { c } else { '-' };
        let mut name = match is_unique {
            true => node.node.clone(),
            false => format!("{}.{}", node.node, node.owner.chars().map(plain).collect::<String>()),
        };
        while !names.insert(name.clone()) {
            name += "x";
        }
        name
    };
    let is_first = |number: usize, endpoint: &str| {
        let is_same =
            |other: &&PoolNode| other.endpoint.as_ref().is_some_and(|other| other.eq_ignore_ascii_case(endpoint));
        picked.iter().position(is_same) == Some(number)
    };
    let node = |(number, node): (usize, &&PoolNode)| Node {
        name: name(node),
        host: node.host.clone(),
        user: user.map(str::to_owned),
        ssh_port: Some(node.port),
        slots: Some(node.slots),
        gpus: node.gpus.clone().unwrap_or(Gpus::Auto),
        address: node.address.filter(|_| is_one_cluster && network.is_none()),
        // behind one router only one of them may have the port
        endpoint: node.endpoint.clone().filter(|endpoint| network.is_some() && is_first(number, endpoint)),
        owner: Some(node.owner.clone()).filter(|owner| Some(owner.as_str()) != own),
        host_key: node.host_key.clone(),
        master: number == 0,
        ..Node::default()
    };
    picked.iter().enumerate().map(node).collect()
}

/// Returns the name of the cluster of an operator, `user@host`, on nodes of a pool. `identity`: what two operators of
/// one name do not share; otherwise they would replace each other's keys and workers.
pub fn cluster_name(operator: &str, identity: &str) -> String {
    let plain = |c: char| if c.is_ascii_alphanumeric() { c } else { '-' };
    let name: String = format!("pool-{operator}").chars().take(LONGEST_NAME - HASH - 1).map(plain).collect();
    format!("{name}-{:.HASH$}", digest::in_hex(identity.as_bytes()))
}

/// Returns an inventory of these nodes. Its cluster has names, a port, keys and directories of its own, because the
/// owners have workers and jobs on the same nodes. `own`: the operator's cluster, with an absolute `ssh_config`; its
/// settings decided about the logins. `about`: comments, a line each.
pub fn text(name: &str, own: &Cluster, nodes: &[(Node, &PoolNode)], about: &[String]) -> String {
    let hash = digest::hash(name.as_bytes());
    let port = PORTS.start + u16::from_be_bytes([hash[0], hash[1]]) % (PORTS.end - PORTS.start);
    let value = |text: &str| toml::Value::from(text);
    let mut inventory: String = about.iter().map(|line| format!("# {line}\n")).collect();
    let _ = write!(
        inventory,
        "[cluster]\nname = {}\nimage = {}\n\
         # apart from the workers and jobs of the owners on the same nodes\nport = {port}\nworker = {}\nmaster = {}\n",
        value(name),
        value(&own.image),
        value(&format!("hworker-{name}")),
        value(&format!("hmaster-{name}")),
    );
    if own.network.is_some() {
        inventory += &network(name);
    }
    for directory in ["ssh", "projects", "jobs", "data"] {
        let _ = writeln!(inventory, "{directory}_dir = {}", value(&format!("/opt/horovod/{name}/{directory}")));
    }
    inventory += &login_settings(own);
    if let Some(user) = nodes.first().and_then(|(node, _)| node.user.as_deref()) {
        let _ = write!(inventory, "\n[defaults]\nuser = {}\n", value(user));
    }
    for (node, published) in nodes {
        let PoolNode { owner, cluster, node: own_name, .. } = published;
        let grade = match published.score {
            Some(score) => format!("grade {} ({score:.2})", published.grade),
            None => format!("grade {}", published.grade),
        };
        let _ = write!(inventory, "\n# {own_name} of {owner}'s {cluster}: {grade}\n[[node]]\n");
        let _ = writeln!(inventory, "host = {}", value(&node.host));
        if node.name != node.host {
            let _ = writeln!(inventory, "name = {}", value(&node.name));
        }
        if let Some(owner) = &node.owner {
            let _ = writeln!(inventory, "owner = {}", value(owner));
        }
        let _ = writeln!(inventory, "ssh_port = {}", published.port);
        if let Some(key) = &node.host_key {
            let _ = writeln!(inventory, "host_key = {}", value(key));
        }
        if node.master {
            inventory += "master = true\n";
        }
        let _ = writeln!(inventory, "slots = {}", published.slots);
        inventory += &gpus(&node.gpus);
        if let Some(endpoint) = &node.endpoint {
            let _ = writeln!(inventory, "endpoint = {}", value(endpoint));
        }
        if let Some(address) = node.address {
            let _ = writeln!(inventory, "address = {}", value(&address.to_string()));
        }
    }
    inventory
}

/// Returns the line for the GPUs of a node, unless it offers all.
fn gpus(offered: &Gpus) -> String {
    match offered {
        Gpus::Auto | Gpus::All => String::new(),
        Gpus::Count(count) => format!("gpus = {count}\n"),
        Gpus::List(list) => {
            let index = |gpu: &String| gpu.parse::<i64>().ok().map(toml::Value::from);
            let gpu = |gpu: &String| index(gpu).unwrap_or_else(|| toml::Value::from(gpu.as_str()));
            format!("gpus = {}\n", toml::Value::Array(list.iter().map(gpu).collect()))
        }
    }
}

/// Returns the settings of the encrypted network of a cluster with this name, which has nothing in common with that of
/// another cluster on the same nodes.
fn network(name: &str) -> String {
    let hash = digest::hash(name.as_bytes());
    let port = UDP_PORTS.start + u16::from_be_bytes([hash[2], hash[3]]) % (UDP_PORTS.end - UDP_PORTS.start);
    format!(
        "# an encrypted network of these nodes alone; where a firewall keeps its UDP port closed, open it\n\
         network = \"wireguard\"\nnetwork_port = {port}\nnetwork_interface = \"{INTERFACE}-{:.INTERFACE_HASH$}\"\n",
        digest::in_hex(name.as_bytes())
    )
}

/// Returns the settings of a cluster that decide how its nodes are reached, if they are not the defaults.
fn login_settings(own: &Cluster) -> String {
    let default = Cluster::default();
    let mut settings = String::new();
    if let Some(file) = own.ssh_config.as_ref().and_then(|file| file.to_str()) {
        settings += &format!("ssh_config = {}\n", toml::Value::from(file));
    }
    for (name, of) in [
        ("connect_timeout_s", (|cluster| cluster.connect_timeout) as fn(&Cluster) -> Duration),
        ("command_timeout_s", |cluster| cluster.command_timeout),
        ("keep_alive_s", |cluster| cluster.keep_alive),
        ("connection_idle_s", |cluster| cluster.connection_idle),
    ] {
        if of(own) != of(&default) {
            settings += &format!("{name} = {}\n", of(own).as_secs());
        }
    }
    settings
}

#[cfg(test)]
mod tests {
    use super::super::format::tests::node;
    use super::*;
    use crate::inventory::Inventory;
    use std::path::Path;

    #[test]
    fn picked_nodes_are_an_inventory() {
        let address = Some("192.168.7.1".parse().unwrap());
        let one = PoolNode { address, ..node() };
        let other =
            PoolNode { owner: "bob".into(), host: "fd00::2".into(), port: 2222, slots: 4, score: None, ..node() };
        let picked = [&one, &other];
        let nodes = nodes(&picked, Some("ana"), Some("ana@example.com"), None);
        let with = nodes.iter().cloned().zip(picked).collect::<Vec<_>>();
        let name = cluster_name("ana@desk.example.com", "a key");
        let text = text(&name, &Cluster::default(), &with, &["picked".into()]);
        let inventory =
            Inventory::parse(&text, Path::new("pool.toml")).unwrap_or_else(|faults| panic!("{faults}\n{text}"));
        assert_eq!(inventory.nodes, nodes);
        assert!(inventory.cluster.name.starts_with("pool-ana-desk-example-com-"), "{name}");
        // the owners' own clusters keep their keys, and what their jobs are given, elsewhere
        let directories = |cluster: &Cluster| {
            let Cluster { ssh_dir, projects_dir, jobs_dir, data_dir, .. } = cluster;
            [ssh_dir, projects_dir, jobs_dir, data_dir].map(String::clone)
        };
        let own = ["ssh", "projects", "jobs", "data"].map(|directory| format!("/opt/horovod/{name}/{directory}"));
        assert_eq!(directories(&inventory.cluster), own);
        assert!(directories(&Cluster::default()).iter().all(|directory| !own.contains(directory)));
        let owners: Vec<_> = nodes.iter().map(|node| node.owner.as_deref()).collect();
        assert_eq!(owners, [None, Some("bob")]);
        assert_eq!(text.matches("\nmaster = true\n").count(), 1, "{text}");
        assert!(PORTS.contains(&inventory.cluster.port));
        let found: Vec<_> = nodes.iter().map(|node| (node.name.as_str(), node.address, node.master)).collect();
        assert_eq!(found, [("node1.ana-example.com", None, true), ("node1.bob", None, false)]);
        assert!(
            text.contains("# node1 of ana@example.com's lab: grade A (0.98)\n[[node]]\nhost = \"10.0.0.1\"\n"),
            "{text}"
        );
        for gpus in [Gpus::Count(0), Gpus::List(vec!["3".into(), "GPU-8a5b-1".into()])] {
            let some = PoolNode { gpus: Some(gpus.clone()), ..node() };
            let nodes = super::nodes(&[&some], None, None, None).into_iter().zip([&some]).collect::<Vec<_>>();
            let text = super::text(&name, &Cluster::default(), &nodes, &[]);
            let inventory = Inventory::parse(&text, Path::new("pool.toml"));
            assert_eq!(inventory.unwrap_or_else(|faults| panic!("{faults}\n{text}")).nodes[0].gpus, gpus);
        }
        // of one cluster the addresses between its nodes count
        let alone = super::nodes(&[&one], None, None, None);
        assert_eq!((alone[0].name.as_str(), alone[0].address), ("node1", address));
        let own = Cluster {
            ssh_config: Some("/lab/my \"own\" config".into()),
            connect_timeout: Duration::from_secs(90),
            connection_idle: Duration::ZERO,
            ..Cluster::default()
        };
        let text = super::text(&name, &own, &with, &[]);
        let Inventory { cluster, .. } = Inventory::parse(&text, Path::new("elsewhere/pool.toml")).unwrap();
        assert_eq!(cluster.ssh_config, own.ssh_config);
        assert_eq!((cluster.connect_timeout, cluster.connection_idle), (own.connect_timeout, own.connection_idle));
        assert!(!text.contains("keep_alive_s"), "{text}");
        let long = cluster_name(&"x".repeat(300), "a key");
        assert_eq!(long.len(), LONGEST_NAME);
        // as of many containers and cloud images
        let [one, other] = ["a key", "another"].map(|key| cluster_name("root@ubuntu", key));
        assert_ne!(one, other);
        assert!(one.starts_with("pool-root-ubuntu-") && one.len() == "pool-root-ubuntu-".len() + HASH, "{one}");
        assert!(Inventory::parse(&super::text(&long, &Cluster::default(), &with, &[]), Path::new("i")).is_ok());
    }

    #[test]
    fn a_group_has_an_encrypted_network_of_its_own() {
        let address = Some("192.168.7.1".parse().unwrap());
        let at = |host: &str, owner: &str, endpoint: Option<&str>| PoolNode {
            host: host.into(),
            owner: owner.into(),
            endpoint: endpoint.map(str::to_owned),
            address,
            ..node()
        };
        let published = [
            at("10.0.0.1", "ana@example.com", None),
            at("10.0.0.2", "bob", Some("home.example.org")),
            at("10.0.0.3", "bob", Some("Home.example.org")),
            at("10.0.0.4", "cai", Some("[fd00::4]")),
        ];
        let picked: Vec<&PoolNode> = published.iter().collect();
        let own = Cluster { network: Some(NetworkKind::WireGuard), ..Cluster::default() };
        let cluster = |name: &str, own: &Cluster| {
            let nodes = super::nodes(&picked, None, None, own.network);
            let nodes: Vec<_> = nodes.into_iter().zip(picked.iter().copied()).collect();
            let text = super::text(name, own, &nodes, &[]);
            Inventory::parse(&text, Path::new("pool.toml")).unwrap_or_else(|faults| panic!("{faults}\n{text}"))
        };
        let [one, other] = ["pool-ana-1", "pool-bob-2"].map(|name| cluster(name, &own));
        for inventory in [&one, &other] {
            let Cluster { network, network_port, network_interface, .. } = &inventory.cluster;
            assert!(*network == own.network && UDP_PORTS.contains(network_port), "{network_port}");
            assert!(network_interface.starts_with("hmesh-") && network_interface.len() == 15, "{network_interface}");
            assert_eq!(inventory.nodes[0].interface.as_ref(), Some(network_interface));
        }
        assert_ne!(one.cluster.network_port, other.cluster.network_port);
        assert_ne!(one.cluster.network_interface, other.cluster.network_interface);
        let endpoints: Vec<_> = one.nodes.iter().map(|node| node.endpoint.as_deref()).collect();
        assert_eq!(endpoints, [None, Some("home.example.org"), None, Some("[fd00::4]")]);
        // without a network these mean nothing, and the addresses between the nodes do
        let without = super::nodes(&picked[1..2], None, None, None);
        assert_eq!((without[0].endpoint.as_deref(), without[0].address), (None, address));
    }
}
