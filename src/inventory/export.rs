//! The cluster in the formats of other tools.

use crate::inventory::{Cluster, Node};
use crate::text::nodeset;
use crate::text::quote::readable;
use serde_json::json;

/// A node with its slots.
#[derive(Debug, Clone, Copy)]
pub struct ExportedHost<'a> {
    /// The node.
    pub node: &'a Node,
    /// The number of ranks that it takes.
    pub slots: u32,
}

impl ExportedHost<'_> {
    /// Returns how other nodes reach it: its address in the cluster where the inventory has one, else its host.
    pub fn reached_by(&self) -> String {
        self.node.address.map_or_else(|| self.node.host.clone(), |address| address.to_string())
    }
}

/// For `horovodrun -H` and `mpirun -H`: `node1:1,node2:1`.
pub fn horovod(hosts: &[ExportedHost<'_>]) -> String {
    hosts.iter().map(|host| format!("{}:{}", host.reached_by(), host.slots)).collect::<Vec<_>>().join(",")
}

/// A hostfile of Open MPI and Horovod: `node1 slots=1`, a line each.
pub fn hostfile(hosts: &[ExportedHost<'_>]) -> String {
    hosts.iter().map(|host| format!("{} slots={}\n", host.reached_by(), host.slots)).collect()
}

/// The port at which ranks find one another, as PyTorch's documentation has it.
const PORT: u16 = 29500;

/// A `torchrun` command for each node, behind its name.
pub fn torchrun(hosts: &[ExportedHost<'_>]) -> String {
    let first = hosts.first().map(ExportedHost::reached_by).unwrap_or_default();
    let nodes = hosts.len();
    let command = |(rank, ExportedHost { node, slots }): (usize, &ExportedHost<'_>)| {
        let ranks = format!("--nnodes {nodes} --node_rank {rank} --nproc_per_node {slots}");
        format!("{}: torchrun {ranks} --master_addr {first} --master_port {PORT} train.py\n", node.name)
    };
    hosts.iter().enumerate().map(command).collect()
}

/// A nodelist, as Slurm writes it: names of one form folded, others beside them.
pub fn slurm(hosts: &[ExportedHost<'_>]) -> String {
    nodeset::fold(&hosts.iter().map(|host| &host.node.name).collect::<Vec<_>>())
}

/// The `TF_CONFIG` of each rank, behind its node's name: one worker for each slot.
pub fn tf_config(hosts: &[ExportedHost<'_>]) -> String {
    let slots = hosts.iter().flat_map(|host| (0..host.slots).map(move |slot| (host, u32::from(PORT) + slot)));
    let rank =
        |(host, port): (&ExportedHost<'_>, u32)| (host.node.name.clone(), format!("{}:{port}", host.reached_by()));
    let ranks: Vec<(String, String)> = slots.map(rank).collect();
    let workers: Vec<&String> = ranks.iter().map(|(_, worker)| worker).collect();
    let line = |(index, (node, _)): (usize, &(String, String))| {
        let config = json!({"cluster": {"worker": workers}, "task": {"type": "worker", "index": index}});
        format!("{node}: TF_CONFIG='{config}'\n")
    };
    ranks.iter().enumerate().map(line).collect()
}

/// An ssh configuration with a `Host` for each node. Behind that come the cluster's own configuration and the user's,
/// which `ssh -F` leaves out: ssh takes the first value that it finds (ssh_config(5)), and the inventory goes before
/// them.
pub fn ssh(cluster: &Cluster, hosts: &[ExportedHost<'_>]) -> String {
    // ssh_config(5): arguments with a space stand in double quotes
    let argument = |text: &str| if text.contains(' ') { format!("\"{text}\"") } else { text.to_owned() };
    let mut text = String::new();
    for ExportedHost { node, .. } in hosts {
        text.push_str(&format!("Host {}\n", node.name));
        let mut option = |name: &str, value: Option<String>| {
            if let Some(value) = value {
                text.push_str(&format!("  {name} {}\n", argument(&value)));
            }
        };
        option("HostName", Some(node.host.clone()).filter(|host| *host != node.name));
        option("User", node.user.clone());
        option("Port", node.ssh_port.map(|port| port.to_string()));
        option("IdentityFile", node.identity.as_ref().map(|file| file.display().to_string()));
        option("ProxyJump", node.jump.clone());
    }
    text.push_str("Match all\n");
    if let Some(file) = &cluster.ssh_config {
        text.push_str(&format!("  Include {}\n", argument(&file.display().to_string())));
    }
    text.push_str("  Include ~/.ssh/config\n");
    text
}

/// Lines for a shell to read.
pub fn env(hosts: &[ExportedHost<'_>]) -> String {
    let names: Vec<&str> = hosts.iter().map(|host| host.node.name.as_str()).collect();
    let slots: u32 = hosts.iter().map(|host| host.slots).sum();
    let master = hosts.iter().find(|host| host.node.master).or(hosts.first());
    [
        ("HVDCTL_NODES", names.join(" ")),
        ("HVDCTL_HOSTS", horovod(hosts)),
        // for `horovodrun -H "$HOROVOD_HOSTNAME"`; in its ranks the launcher sets it to the name of their own host
        ("HOROVOD_HOSTNAME", horovod(hosts)),
        ("HVDCTL_SLOTS", slots.to_string()),
        ("HVDCTL_MASTER", master.map(|host| host.node.name.clone()).unwrap_or_default()),
        ("HVDCTL_MASTER_HOST", master.map(ExportedHost::reached_by).unwrap_or_default()),
    ]
    .into_iter()
    .map(|(name, value)| format!("export {name}={}\n", readable(&value)))
    .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::inventory::Inventory;

    #[test]
    fn shellcheck_finds_nothing_in_the_environment() {
        let Inventory { nodes, .. } = Inventory::local("node1", "i");
        for name in crate::text::quote::HOSTILE {
            let node = Node { name: name.into(), host: name.into(), ..nodes[0].clone() };
            crate::text::quote::shellcheck(&env(&[
                ExportedHost { node: &node, slots: 1 },
                ExportedHost { node: &nodes[0], slots: 4 },
            ]));
        }
    }

    #[test]
    fn each_tool_reads_its_own() {
        let Inventory { mut cluster, nodes, .. } = Inventory::local("node1", "i");
        let mut second = Node { name: "node2".into(), host: "10.0.0.2".into(), master: false, ..nodes[0].clone() };
        second.user = Some("ana".into());
        second.ssh_port = Some(2222);
        second.identity = Some("/my keys/id".into());
        second.jump = Some("gate".into());
        second.address = Some("192.168.0.2".parse().unwrap());
        let mut first = nodes[0].clone();
        first.host = "node1".into();
        let hosts = [ExportedHost { node: &first, slots: 1 }, ExportedHost { node: &second, slots: 4 }];
        assert_eq!(horovod(&hosts), "node1:1,192.168.0.2:4");
        assert_eq!(hostfile(&hosts), "node1 slots=1\n192.168.0.2 slots=4\n");
        assert_eq!(
            env(&hosts),
            "export HVDCTL_NODES='node1 node2'\nexport HVDCTL_HOSTS=node1:1,192.168.0.2:4\n\
             export HOROVOD_HOSTNAME=node1:1,192.168.0.2:4\nexport HVDCTL_SLOTS=5\n\
             export HVDCTL_MASTER=node1\nexport HVDCTL_MASTER_HOST=node1\n"
        );
        let two = [ExportedHost { node: &first, slots: 1 }, ExportedHost { node: &second, slots: 2 }];
        let end = "--master_addr node1 --master_port 29500 train.py\n";
        assert_eq!(
            torchrun(&two),
            format!(
                "node1: torchrun --nnodes 2 --node_rank 0 --nproc_per_node 1 {end}\
                 node2: torchrun --nnodes 2 --node_rank 1 --nproc_per_node 2 {end}"
            )
        );
        assert_eq!(slurm(&two), "node[1-2]");
        let lines = tf_config(&two);
        let last =
            lines.lines().last().unwrap().strip_prefix("node2: TF_CONFIG='").unwrap().strip_suffix('\'').unwrap();
        let workers = ["node1:29500", "192.168.0.2:29500", "192.168.0.2:29501"];
        let config: serde_json::Value = serde_json::from_str(last).unwrap();
        assert_eq!(config, json!({"cluster": {"worker": workers}, "task": {"type": "worker", "index": 2}}));
        cluster.ssh_config = Some("/lab/ssh_config".into());
        assert_eq!(
            ssh(&cluster, &hosts),
            "Host node1\nHost node2\n  HostName 10.0.0.2\n  User ana\n  Port 2222\n  \
             IdentityFile \"/my keys/id\"\n  ProxyJump gate\n\
             Match all\n  Include /lab/ssh_config\n  Include ~/.ssh/config\n"
        );
    }
}
