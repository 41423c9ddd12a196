//! Where things lie on the nodes, for what runs there: in containers, or as processes of the login.

use super::Cluster;
use super::check::STATE_DIR;
use super::reader::Section;
use crate::model::ability::Abilities;
use crate::paths::{CONTAINER_RUN, CONTAINER_SSH, DATA, WORKSPACE};
use serde_json::{Map, Value};
use toml::de::DeValue;

/// Fields of `[cluster]` that containers have and processes do not.
const OF_CONTAINERS: [&str; 5] = ["image", "pull", "engine", "shm_size", "network"];

/// Such fields of a node.
const OF_A_NODES_CONTAINERS: [&str; 5] = ["engine", "mounts", "devices", "ulimits", "cap_add"];

/// Where the programs of a worker or a launcher find what hvdctl gives them. For containers these are mounts and
/// directories of the container; a process has the node's own directories.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Layout {
    /// The cluster's keys.
    pub keys: String,
    /// The project, which is the working directory.
    pub workspace: String,
    /// Data that were pushed, each in a directory with its name.
    pub data: String,
    /// How the names of directories of sockets begin.
    pub run: String,
    /// The hostfile of `hvdctl shell`.
    pub hostfile: String,
    /// The directory of programs that `hvdctl shell` puts first.
    pub programs: String,
    /// Set if there is an `/etc/hosts` into which hvdctl may write the nodes' names.
    pub own_hosts: bool,
}

impl Layout {
    /// Returns the variables from which the programs of a launcher know them, as `NAME=VALUE`.
    pub fn variables(&self) -> Vec<String> {
        vec![format!("HVDCTL_KEYS={}", self.keys), format!("HVDCTL_RUN={}", self.run)]
    }
}

impl Cluster {
    /// Returns where the programs of the worker or launcher with this name find things.
    pub fn layout(&self, name: &str) -> Layout {
        match self.can().mounts {
            true => Layout {
                keys: CONTAINER_SSH.into(),
                workspace: WORKSPACE.into(),
                data: DATA.into(),
                run: CONTAINER_RUN.into(),
                hostfile: "/root/hostfile".into(),
                programs: CONTAINER_RUN.into(),
                own_hosts: true,
            },
            false => Layout {
                keys: self.ssh_dir.clone(),
                workspace: format!("{}/{name}/workspace", self.run_dir()),
                data: self.data_dir.clone(),
                // short, because the path of a socket has at most 107 bytes (unix(7))
                run: format!("{}/s", self.run_dir()),
                hostfile: format!("{}/{name}/hostfile", self.run_dir()),
                programs: format!("{}/{name}/bin", self.run_dir()),
                own_hosts: false,
            },
        }
    }

    /// Returns what hvdctl can do on the cluster's nodes.
    pub fn can(&self) -> &'static Abilities {
        self.runtime.abilities()
    }

    /// Returns where the ranks of all nodes find this project, if that is not where containers mount it.
    pub fn project_directory(&self, project: &str) -> Option<String> {
        (!self.can().mounts).then(|| format!("{}/{project}", self.projects_dir))
    }

    /// Returns the directory of the cluster's queue: next to that of the keys.
    pub fn slurm_dir(&self) -> String {
        let parent = self.ssh_dir.rsplit_once('/').map_or("", |(parent, _)| parent);
        format!("{parent}/slurm@{}", self.name)
    }

    /// Returns the directory of the encrypted network: next to that of the keys.
    pub fn network_dir(&self) -> String {
        let parent = self.ssh_dir.rsplit_once('/').map_or("", |(parent, _)| parent);
        format!("{parent}/network@{}", self.name)
    }

    /// Returns the interface of the encrypted network, if the cluster has one.
    pub fn encrypted_interface(&self) -> Option<&str> {
        self.network.map(|_| self.network_interface.as_str())
    }

    /// Returns the directory of what runs as processes of the login: a directory for each, with its name.
    pub fn run_dir(&self) -> String {
        format!("{}/run", self.state_dir())
    }

    /// Returns the directory of all that hvdctl keeps on a node for processes of the login.
    pub fn state_dir(&self) -> String {
        self.state_dir.clone().unwrap_or_else(|| format!("/var/tmp/hvdctl-{}", self.name))
    }

    /// With processes of the login, sets the directories that the inventory does not give.
    pub(super) fn place_state(&mut self, is_given: impl Fn(&str) -> bool) {
        if self.can().root {
            return;
        }
        let state = self.state_dir();
        for (field, directory, part) in [
            ("ssh_dir", &mut self.ssh_dir, "ssh"),
            ("projects_dir", &mut self.projects_dir, "projects"),
            ("jobs_dir", &mut self.jobs_dir, "jobs"),
            ("data_dir", &mut self.data_dir, "data"),
        ] {
            if !is_given(field) {
                *directory = format!("{state}/{part}");
            }
        }
    }
}

/// Returns whether the table `[cluster]` asks for processes.
fn asks_for_processes(section: &Section<'_>) -> bool {
    section.value("runtime").and_then(|value| value.get_ref().as_str()) == Some("process")
}

/// Reports fields of `[cluster]` that do not fit its runtime.
pub(super) fn check_cluster(section: &Section<'_>, values: &Map<String, Value>) {
    match asks_for_processes(section) {
        true => {
            refuse(section, &OF_CONTAINERS);
            for field in ["ssh_dir", "projects_dir", "jobs_dir", "data_dir"] {
                let wrong = values.get(field).and_then(|value| STATE_DIR.check(value.as_str()?).err());
                if wrong.is_some() {
                    section.fault(field, &format!("with `runtime = \"process\"`, expected {}", STATE_DIR.expected));
                }
            }
        }
        false if values.contains_key("state_dir") => {
            section.fault(
                "state_dir",
                "only with `runtime = \"process\"`; the directories of containers are ssh_dir, \
                projects_dir, jobs_dir and data_dir",
            );
        }
        false => {}
    }
    if section.value("network").is_none() && values.contains_key("network_range") {
        section.fault("network_range", "only with `network = \"wireguard\"`");
    }
}

/// Reports fields of a node or of `[defaults]` that do not fit the cluster's runtime.
pub(super) fn check_node(section: &Section<'_>, cluster: &Cluster) {
    match cluster.network {
        None if section.values.contains_key("endpoint") => {
            section.fault("endpoint", "only with `network = \"wireguard\"`");
        }
        None => {}
        Some(_) => {
            for field in ["address", "interface"].into_iter().filter(|field| is_given(section, field)) {
                let why = "not with `network = \"wireguard\"`, in which nodes have addresses of their own; where others \
                           reach a node is its `endpoint`";
                section.fault(field, why);
            }
        }
    }
    if !cluster.can().images {
        refuse(section, &OF_A_NODES_CONTAINERS);
    } else if is_given(section, "activate") && section.values.contains_key("activate") {
        section.fault(
            "activate",
            "only with `runtime = \"process\"`; what containers need is in their image, and jobs under Slurm have \
             slurm.activate",
        );
    }
}

/// Returns whether a table has a field that is not empty.
fn is_given(section: &Section<'_>, field: &str) -> bool {
    let is_empty = |value: &DeValue<'_>| match value {
        DeValue::Array(values) => values.is_empty(),
        DeValue::Table(values) => values.is_empty(),
        _ => false,
    };
    section.value(field).is_some_and(|value| !is_empty(value.get_ref()))
}

fn refuse(section: &Section<'_>, fields: &[&str]) {
    for field in fields.iter().filter(|field| is_given(section, field)) {
        section.fault(field, "not with `runtime = \"process\"`, where there are no containers");
    }
}

#[cfg(test)]
mod tests {
    use crate::inventory::Inventory;
    use std::path::Path;

    fn read(cluster: &str, node: &str) -> Result<Inventory, String> {
        let text = format!("[cluster]\nname = \"lab\"\n{cluster}\n[[node]]\nhost = \"a\"\n{node}\n");
        Inventory::parse(&text, Path::new("inventory.toml")).map_err(|faults| faults.to_string())
    }

    #[test]
    fn the_directories_of_processes_are_in_one() {
        let inventory =
            read("runtime = \"process\"\njobs_dir = \"/scratch/ana/jobs\"", "activate = [\"module load CUDA\"]");
        let cluster = inventory.unwrap().cluster;
        let directories = [&cluster.ssh_dir, &cluster.projects_dir, &cluster.jobs_dir, &cluster.data_dir];
        let below = |name: &str| format!("/var/tmp/hvdctl-lab/{name}");
        let expected = [below("ssh"), below("projects"), "/scratch/ana/jobs".into(), below("data")];
        assert_eq!(directories.map(String::as_str), expected.each_ref().map(String::as_str));
        let layout = cluster.layout("hworker");
        assert_eq!((layout.keys, layout.workspace), (below("ssh"), below("run/hworker/workspace")));
        let cluster = read("runtime = \"process\"\nstate_dir = \"/scratch/ana\"", "").unwrap().cluster;
        assert_eq!((cluster.ssh_dir.as_str(), cluster.run_dir().as_str()), ("/scratch/ana/ssh", "/scratch/ana/run"));
    }

    #[test]
    fn nodes_of_an_encrypted_network_have_its_interface() {
        let inventory =
            read("network = \"wireguard\"\nnetwork_range = \"10.9.0.0/24\"", "\n[[node]]\nhost = \"b\"").unwrap();
        let interfaces: Vec<_> = inventory.nodes.iter().map(|node| node.interface.as_deref()).collect();
        assert_eq!(interfaces, [Some("hmesh"), Some("hmesh")]);
        assert_eq!(inventory.cluster.network_dir(), "/opt/horovod/network@lab");
        let named =
            read("network = \"wireguard\"\nnetwork_interface = \"hmesh-2\"", "\n[[node]]\nhost = \"b\"").unwrap();
        assert_eq!(named.nodes[1].interface.as_deref(), Some("hmesh-2"));
        let outside = inventory.outside_network();
        assert!(outside.cluster.network.is_none() && outside.nodes.iter().all(|node| node.interface.is_none()));
        assert!(read("worker = \"hmesh\"", "").is_ok(), "without a network it is a name as any other");
        // it needs no other node
        assert_eq!(read("network = \"wireguard\"", "").unwrap().nodes[0].interface, None);
        for (cluster, node, why) in [
            ("network = \"wireguard\"", "address = \"10.0.0.1\"", "their own"),
            ("network = \"wireguard\"", "interface = \"eth0\"", "their own"),
            ("network = \"wireguard\"\nnetwork_range = \"8.8.0.0/16\"", "", "private are"),
            ("network = \"wireguard\"\nnetwork_range = \"10.9.0.1/24\"", "", "which is 10.9.0.0"),
            (
                "network = \"wireguard\"\nworker = \"hmesh\"",
                "",
                "cluster.worker: `network_interface` and `worker` must not",
            ),
            (
                "network = \"wireguard\"\nmaster = \"hmesh\"",
                "",
                "cluster.master: `network_interface` and `master` must not",
            ),
            ("network_range = \"10.9.0.0/24\"", "", "only with"),
            ("", "endpoint = \"a:7\"", "only with"),
            ("network = \"wireguard\"", "endpoint = \"a:70000\"", "1 to 65535"),
            (
                "network = \"wireguard\"",
                "endpoint = \"gate:7\"\n[[node]]\nhost = \"b\"\nendpoint = \"Gate:7\"",
                "has the same endpoint",
            ),
        ] {
            let fault = read(cluster, node).unwrap_err();
            assert!(fault.contains(why), "{cluster} {node}: {fault}");
        }
    }

    #[test]
    fn what_needs_the_other_runtime_is_refused_by_name() {
        for field in [
            "image = \"a:1\"",
            "pull = \"never\"",
            "engine = \"docker\"",
            "shm_size = \"1g\"",
            "network = \"wireguard\"",
        ] {
            let fault = read(&format!("runtime = \"process\"\n{field}"), "").unwrap_err();
            assert!(fault.contains("there are no containers"), "{fault}");
        }
        for field in [
            "mounts = [\"/a:/b\"]",
            "devices = [\"/dev/fuse\"]",
            "ulimits = { memlock = -1 }",
            "cap_add = [\"NET_RAW\"]",
        ] {
            let fault = read("runtime = \"process\"", field).unwrap_err();
            assert!(fault.contains(field.split(' ').next().unwrap()) && fault.contains("no containers"), "{fault}");
        }
        assert!(read("", "activate = [\"true\"]").unwrap_err().contains("what containers need is in their image"));
        assert!(read("state_dir = \"/scratch/ana\"", "").unwrap_err().contains("only with `runtime"));
        assert!(
            read("runtime = \"process\"\nssh_dir = \"/srv/a b\"", "").unwrap_err().contains("cluster.ssh_dir: with")
        );
        assert!(read("runtime = \"process\"\nstate_dir = \"/a b\"", "").unwrap_err().contains("expected an absolute"));
    }
}
