//! The containers of ranks: a node's worker with its sshd, the launcher's container, and that of a shell.

use crate::inventory::Layout;
use crate::inventory::{Cluster, Mount, Node};
use crate::model::engine::{VISIBLE_DEVICES, is_of_runtime};
use crate::node::gpus::GpuRequest;
use crate::node::storage::PushedData;
use crate::paths::{AUTHORIZED_KEYS, HOST_KEY};
use crate::runtime::environment::environment_script;
use crate::runtime::spec::{ContainerInit, ContainerSpec, DataMount, KEEP_ALIVE, Role};
use crate::transport::node::Transport;
use std::collections::BTreeMap;
use std::net::IpAddr;
use std::path::Path;
use std::time::Duration;

/// Time for which a worker of a single job waits for its first rank, or for a restart of the job.
const DAY: Duration = Duration::from_secs(86_400);

/// Becomes a worker's main process, which starts sshd and ends the ranks in order.
const INIT: &str = environment_script!("worker/init.sh").trim_ascii_end();
const INIT_PROGRAM: &str = include_str!("../scripts/worker/init.py");

/// Time beyond the grace period for the end of a worker: rank supervisors kill programs, and record how they ended.
const END_MARGIN: Duration = Duration::from_secs(10);

/// Becomes a worker's sshd, whose sessions have the image's environment. Arguments: sshd's full path and options.
pub const START: &str = environment_script!("worker/start.sh").trim_ascii_end();

/// Becomes the sshd of a worker of a single job, with a loop next to the sshd that ends it. Arguments between sshd's
/// path and options: where ranks record their states, and two limits in seconds.
const START_FOR_JOB: &str = environment_script!("worker/idle.sh", "worker/start.sh");

/// Becomes the sshd of a worker that is a process of the login. Arguments: sshd's options.
const START_AS_LOGIN: &str = environment_script!("worker/login.sh").trim_ascii_end();

/// [`START_FOR_JOB`] for a worker that is a process of the login; takes no path of sshd.
const START_AS_LOGIN_FOR_JOB: &str = environment_script!("worker/idle.sh", "worker/login.sh");

impl ContainerSpec {
    /// Returns a container for ranks: with GPUs and the cluster's keys.
    fn for_ranks(cluster: &Cluster, node: &Node, gpus: GpuRequest, role: Role) -> ContainerSpec {
        let name = if role == Role::Worker { &cluster.worker } else { &cluster.master };
        let mut container = ContainerSpec::new(cluster, node, role, name.clone());
        container.spec.gpus = gpus;
        if cluster.can().images {
            let given = node.container.env.iter().filter(|(name, _)| is_of_runtime(name) && *name != VISIBLE_DEVICES);
            container.spec.runtime_env = given.map(|(name, value)| (name.clone(), value.clone())).collect();
        }
        container.mount(cluster, &cluster.ssh_dir, &cluster.layout(name).keys, true);
        container
    }

    /// Mounts a directory of the node, which processes of the login use at its place.
    fn mount(&mut self, cluster: &Cluster, source: &str, target: &str, read_only: bool) {
        if cluster.can().mounts {
            self.spec.mounts.push(Mount { source: source.into(), target: target.into(), read_only });
        }
    }

    /// Mounts the directory of a job, and of no other one. The path is that of the node.
    fn serve(&mut self, cluster: &Cluster, job: &str) {
        let directory = format!("{}/{job}", cluster.jobs_dir);
        self.spec.mounts.retain(|mount| !Path::new(&mount.target).starts_with(&cluster.jobs_dir));
        self.mount(cluster, &directory, &directory, false);
        self.job = Some(job.to_owned());
    }

    /// Returns the worker of a node that jobs share, one after the other. `job/start.sh` lends it the directory of
    /// each. Its sshd listens only on `address`, the node's address on the cluster's network.
    pub fn worker(cluster: &Cluster, node: &Node, gpus: GpuRequest, address: IpAddr) -> ContainerSpec {
        let mut worker = ContainerSpec::for_ranks(cluster, node, gpus, Role::Worker);
        let jobs = format!("{}/.worker@{}", cluster.jobs_dir, cluster.name);
        worker.mount(cluster, &jobs, &cluster.jobs_dir, false);
        worker.spec.command = sshd(cluster, address);
        worker.spec.address = Some(address);
        worker.init = Some(init(cluster));
        worker
    }

    /// Makes it the worker of a single job. It exits when it has been idle for long, even if no hvdctl is left to
    /// remove it.
    #[must_use]
    pub fn for_job(mut self, cluster: &Cluster, job: &str, may_restart: bool) -> ContainerSpec {
        let idle = if may_restart { DAY } else { cluster.worker_idle };
        let limits = [idle, DAY].map(|limit| limit.as_secs().to_string());
        let command = &mut self.spec.command;
        let start = match cluster.can().root {
            true => START_FOR_JOB,
            false => START_AS_LOGIN_FOR_JOB,
        };
        command[2] = start.to_owned();
        command.splice(4..4, [format!("{}/{job}/states", cluster.jobs_dir)].into_iter().chain(limits));
        self.serve(cluster, job);
        self
    }

    /// Returns the launcher's container. It has the image, GPUs, mounts and shared memory of the workers, because the
    /// ranks of the master node run in it and not in that node's worker.
    pub fn master(cluster: &Cluster, node: &Node, gpus: GpuRequest, command: Vec<String>, job: &str) -> ContainerSpec {
        let mut master = ContainerSpec::for_ranks(cluster, node, gpus, Role::Master);
        master.spec.command = command;
        master.serve(cluster, job);
        master
    }

    /// Returns such a container for a shell, without a job and its directory; its name ends with `suffix`.
    pub fn shell(
        cluster: &Cluster,
        node: &Node,
        gpus: GpuRequest,
        command: Vec<String>,
        suffix: &str,
    ) -> ContainerSpec {
        let mut shell = ContainerSpec::for_ranks(cluster, node, gpus, Role::Shell);
        shell.name = shell_name(cluster, suffix);
        shell.spec.command = command;
        shell
    }

    /// Mounts the data that were pushed for the cluster and are there, unless something else is mounted at their place.
    #[must_use]
    pub fn with_data(mut self, cluster: &Cluster, node: &Node, pushed: &BTreeMap<String, PushedData>) -> ContainerSpec {
        let mount = |(name, data): (&String, &PushedData)| {
            Some(DataMount { name: name.clone(), source: format!("{}/{name}", cluster.data_dir), inode: data.inode? })
        };
        let is_mounted = cluster.can().mounts && data_obstacle(cluster, node).is_none();
        let pushed = pushed.iter().filter(|_| is_mounted);
        self.spec.data = pushed.filter_map(mount).collect();
        self
    }
}

impl ContainerSpec {
    /// Notes which of the node's virtualenvs its environment has: it is that of its start.
    #[must_use]
    pub fn with_virtualenvs(mut self, cluster: &Cluster, on_node: &BTreeMap<String, String>) -> ContainerSpec {
        let activates = |name: &str| {
            let directory = format!("{}/env/{name}/", cluster.state_dir());
            self.spec.activate.iter().any(|line| line.contains(&directory))
        };
        self.spec.virtualenvs = on_node.iter().filter(|(name, _)| activates(name)).map(|(_, at)| at.clone()).collect();
        self
    }
}

/// Returns the name of a container for a shell.
pub fn shell_name(cluster: &Cluster, suffix: &str) -> String {
    format!("{}-shell-{suffix}", cluster.master)
}

/// Returns the name of the login of a node as whom others log in to its worker.
pub fn user<'a>(cluster: &Cluster, transport: &'a Transport) -> &'a str {
    if cluster.can().root { "root" } else { transport.user() }
}

/// Returns ssh's configuration with the users of nodes, by their addresses, where ranks are processes of logins.
pub fn users<'a>(cluster: &Cluster, nodes: impl Iterator<Item = (IpAddr, &'a Transport)>) -> Option<String> {
    let user = |(address, transport): (IpAddr, &Transport)| {
        format!("Host {address}\n  User \"{}\"\n", user(cluster, transport))
    };
    (!cluster.can().root).then(|| nodes.map(user).collect())
}

/// Returns what is mounted at [`DATA`](crate::paths::DATA) or below it in a node's containers by the inventory, where
/// pushed data cannot be mounted then.
pub fn data_obstacle<'a>(cluster: &'a Cluster, node: &'a Node) -> Option<&'a str> {
    let targets = node.container.mounts.iter().map(|mount| mount.target.as_str());
    let data = cluster.layout(&cluster.worker).data;
    targets
        .chain([cluster.jobs_dir.as_str()])
        .find(|target| cluster.can().mounts && Path::new(target).starts_with(&data))
}

/// Returns the program that starts a worker's command.
fn init(cluster: &Cluster) -> ContainerInit {
    let limit = cluster.stop_grace + END_MARGIN;
    let seconds = limit.as_secs().to_string();
    ContainerInit { argv: ["sh", "-c", INIT, "sh", INIT_PROGRAM, &seconds].map(str::to_owned).to_vec(), limit }
}

/// Returns the worker's command, which becomes sshd. sshd needs its full path. The host key is the cluster's, so that a worker keeps
/// its identity when it is recreated. sshd reads no configuration of the image, which is made for other users and
/// purposes (`AllowUsers`, `ListenAddress`).
fn sshd(cluster: &Cluster, address: IpAddr) -> Vec<String> {
    let Layout { keys, .. } = cluster.layout(&cluster.worker);
    let (port, host_key) = (cluster.port.to_string(), format!("{keys}/{HOST_KEY}"));
    let authorized_keys = format!("AuthorizedKeysFile={keys}/{AUTHORIZED_KEYS}");
    let options = [
        "PermitRootLogin=prohibit-password",
        "PubkeyAuthentication=yes",
        &authorized_keys,
        // the keys are mounted read-only; the modes of the image's home directory do not matter
        "StrictModes=no",
        // the image's PAM modules may refuse root, and change limits and environment
        "UsePAM=no",
        "PasswordAuthentication=no",
        "KbdInteractiveAuthentication=no",
        // the logins of many ranks arrive at once; sshd's default drops connections from the tenth on
        "MaxStartups=200:30:400",
        "UseDNS=no",
        // ends a rank that the network has cut off from its launcher: the connection closes, which its rank supervisor
        // notices
        &format!("{KEEP_ALIVE}{}", cluster.keep_alive.as_secs()),
        "ClientAliveCountMax=3",
        // with both families, sshd would keep running if another program used the port in one of them
        if address.is_ipv4() { "AddressFamily=inet" } else { "AddressFamily=inet6" },
        // not reachable from the host's other networks
        &format!("ListenAddress={address}"),
    ];
    let is_root = cluster.can().root;
    let (start, sshd) = if is_root { (START, "/usr/sbin/sshd") } else { (START_AS_LOGIN, "sshd") };
    let program = ["sh", "-c", start, sshd, "-D", "-e", "-f", "/dev/null", "-p", &port, "-h", &host_key];
    // its output is kept in a file, and an sshd of the login cannot write where that of a system does
    let more: &[&str] = if is_root { &[] } else { &["LogLevel=ERROR", "PidFile=none"] };
    let options = options.into_iter().chain(more.iter().copied());
    program.into_iter().chain(options.flat_map(|option| ["-o", option])).map(str::to_owned).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::inventory::RuntimeChoice;
    use crate::inventory::{Device, Inventory, Ulimit};
    use crate::runtime::spec::Spec;
    use serde_json::json;

    #[test]
    fn a_worker_that_activates_a_virtualenv_is_another_one_when_that_is_made_again() {
        let Inventory { mut cluster, mut nodes, .. } = Inventory::local("here", "some/image:1");
        cluster.runtime = RuntimeChoice::Process;
        nodes[0].container.activate = vec![format!("source {}/env/default/bin/activate", cluster.state_dir())];
        let worker = ContainerSpec::worker(&cluster, &nodes[0], GpuRequest::All, IpAddr::from([10, 0, 0, 1]));
        let with = |all: &[(&str, &str)]| {
            let all = all.iter().map(|(name, at)| ((*name).to_owned(), (*at).to_owned())).collect();
            worker.clone().with_virtualenvs(&cluster, &all).spec
        };
        let first = with(&[("default", ".builds/default.a"), ("other", ".builds/other.a")]);
        assert_eq!(first.virtualenvs, [".builds/default.a"]);
        assert_eq!(first.differences(&with(&[("default", ".builds/default.b")]).json()), ["virtualenv"]);
        assert_eq!(with(&[("other", ".builds/other.b")]), worker.spec);
    }

    #[test]
    fn the_hash_moves_with_every_part_but_the_workspace() {
        let Inventory { cluster, nodes, .. } = Inventory::local("here", "some/image:1");
        let address = IpAddr::from([10, 0, 0, 1]);
        let base = ContainerSpec::worker(&cluster, &nodes[0], GpuRequest::All, address);
        let with = ContainerSpec { workspace: Some("/opt/horovod/projects/x".into()), ..base.clone() };
        assert_eq!(base.spec.hash(), with.spec.hash());
        let mut other = cluster.clone();
        other.port = 2222;
        let moved = ContainerSpec::worker(&other, &nodes[0], GpuRequest::All, address);
        assert_ne!(base.spec.hash(), moved.spec.hash());
        assert_eq!(moved.spec.differences(&base.spec.json()), ["port"]);
        assert_eq!(
            ContainerSpec::worker(&cluster, &nodes[0], GpuRequest::None, address).spec.differences(&base.spec.json()),
            ["gpus"]
        );
        assert_eq!(base.spec.differences("{}"), ["spec"]);
    }

    #[test]
    fn the_worker_listens_on_one_address_which_is_a_part_of_it() {
        let Inventory { cluster, nodes, .. } = Inventory::local("here", "some/image:1");
        let at = |address: &str| ContainerSpec::worker(&cluster, &nodes[0], GpuRequest::All, address.parse().unwrap());
        let (v4, v6) = (at("10.0.0.1"), at("fd00::1"));
        let has = |desired: &ContainerSpec, option: &str| desired.spec.command.windows(2).any(|w| w == ["-o", option]);
        assert!(has(&v4, "ListenAddress=10.0.0.1") && has(&v4, "AddressFamily=inet"), "{:?}", v4.spec.command);
        // sshd_config(5): an IPv6 address without brackets has no port, and -p holds
        assert!(has(&v6, "ListenAddress=fd00::1") && has(&v6, "AddressFamily=inet6"), "{:?}", v6.spec.command);
        assert_ne!(v4.spec.hash(), at("10.0.0.2").spec.hash());
        assert_eq!(v4.spec.differences(&at("10.0.0.2").spec.json()), ["address"]);
        let mut without: serde_json::Value = serde_json::from_str(&v4.spec.json()).unwrap();
        without.as_object_mut().unwrap().remove("address");
        assert_eq!(v4.spec.differences(&without.to_string()), ["address"], "a worker that listens on all addresses");
        let master = ContainerSpec::master(&cluster, &nodes[0], GpuRequest::All, vec!["true".into()], "job");
        assert_eq!((master.spec.address, master.name.as_str()), (None, "hmaster"));
    }

    #[test]
    fn the_worker_of_a_single_job_exits_soon_unless_the_job_may_restart() {
        let Inventory { mut cluster, nodes, .. } = Inventory::local("here", "some/image:1");
        cluster.jobs_dir = "/my jobs".into();
        let worker = ContainerSpec::worker(&cluster, &nodes[0], GpuRequest::All, IpAddr::from([10, 0, 0, 1]));
        for (idle, may_restart, seconds) in [(60, false, 60), (60, true, 86_400), (10, false, 10)] {
            assert!(idle == 10 || cluster.worker_idle.as_secs() == idle, "the default");
            cluster.worker_idle = Duration::from_secs(idle);
            let own = worker.clone().for_job(&cluster, "j1", may_restart);
            assert_eq!(own.spec.command[4..7], ["/my jobs/j1/states", &seconds.to_string(), "86400"]);
            assert_eq!(
                [&own.spec.command[..2], &own.spec.command[3..4]],
                [&worker.spec.command[..2], &["/usr/sbin/sshd".into()]]
            );
            assert_eq!(own.spec.command[7..], worker.spec.command[4..]);
            let with_idle = own.spec.command[2].replace(include_str!("../scripts/worker/idle.sh"), "");
            assert_eq!(with_idle.trim_end(), worker.spec.command[2]);
            assert_ne!(with_idle, own.spec.command[2]);
        }
    }

    #[test]
    fn containers_see_the_directory_of_their_job_and_of_no_other() {
        let Inventory { mut cluster, nodes, .. } = Inventory::local("here", "some/image:1");
        cluster.name = "lab".into();
        let mounts = |container: &ContainerSpec| {
            let own = container.spec.mounts.iter().filter(|mount| mount.source != cluster.ssh_dir);
            own.map(|mount| format!("{}:{}", mount.source, mount.target)).collect::<Vec<_>>()
        };
        let (node, gpus) = (&nodes[0], GpuRequest::None);
        let worker = ContainerSpec::worker(&cluster, node, gpus.clone(), IpAddr::from([10, 0, 0, 1]));
        assert_eq!(mounts(&worker), ["/opt/horovod/jobs/.worker@lab:/opt/horovod/jobs"]);
        let own = worker.for_job(&cluster, "j1", false);
        let master = ContainerSpec::master(&cluster, node, gpus.clone(), Vec::new(), "j1");
        for container in [&own, &master] {
            assert_eq!(mounts(container), ["/opt/horovod/jobs/j1:/opt/horovod/jobs/j1"], "{}", container.name);
            assert_eq!(container.job.as_deref(), Some("j1"));
        }
        assert!(mounts(&ContainerSpec::shell(&cluster, node, gpus, Vec::new(), "ab12")).is_empty());
    }

    #[test]
    fn another_keep_alive_is_another_worker_and_the_default_changes_none() {
        let Inventory { mut cluster, nodes, .. } = Inventory::local("here", "some/image:1");
        let address = IpAddr::from([10, 0, 0, 1]);
        let made = |cluster: &Cluster| ContainerSpec::worker(cluster, &nodes[0], GpuRequest::None, address).spec;
        let base = made(&cluster);
        let at = |at: usize| base.command[at].as_str();
        let probes = base.command.iter().position(|word| word == "ClientAliveInterval=15").unwrap();
        assert_eq!((at(probes - 1), at(probes + 1), at(probes + 2)), ("-o", "-o", "ClientAliveCountMax=3"));
        // `up` would recreate every worker if this changed
        assert_eq!(base.hash(), "30f90303368c");
        // what concerns jobs alone is no part of the cluster's worker
        cluster.stop_grace = Duration::from_secs(60);
        cluster.worker_idle = Duration::from_secs(5);
        cluster.restart_pause = Duration::ZERO;
        assert_eq!(made(&cluster), base);

        cluster.keep_alive = Duration::from_secs(2);
        assert_ne!(made(&cluster).hash(), base.hash());
        assert_eq!(made(&cluster).differences(&base.json()), ["keep_alive"]);
        assert_eq!(base.differences(&made(&cluster).json()), ["keep_alive"]);
        cluster.port = 2222;
        assert_eq!(made(&cluster).differences(&base.json()), ["port", "keep_alive"]);
        let mut other = base.clone();
        other.command.push("-q".into());
        assert_eq!(other.differences(&base.json()), ["command"]);
    }

    #[test]
    fn data_are_mounted_where_a_node_has_them_and_nothing_else_is_there() {
        let Inventory { mut cluster, mut nodes, .. } = Inventory::local("here", "some/image:1");
        let address = IpAddr::from([10, 0, 0, 1]);
        let worker = ContainerSpec::worker(&cluster, &nodes[0], GpuRequest::None, address);
        let pushed = |names: &[(&str, Option<u64>)]| -> BTreeMap<String, PushedData> {
            let data = |inode| PushedData { hash: "-".into(), inode };
            names.iter().map(|(name, inode)| ((*name).to_owned(), data(*inode))).collect()
        };
        let data = |cluster: &Cluster, node: &Node, names: &[(&str, Option<u64>)]| {
            worker.clone().with_data(cluster, node, &pushed(names)).spec
        };
        assert_eq!(data(&cluster, &nodes[0], &[("set", None)]), worker.spec, "a push has not put them into place");
        let mounted = data(&cluster, &nodes[0], &[("set", Some(7))]);
        assert_eq!(mounted.differences(&worker.spec.json()), ["data"]);
        for other in [&[("set", Some(8))][..], &[("set", Some(7)), ("second", Some(9))], &[("second", Some(7))]] {
            assert_eq!(data(&cluster, &nodes[0], other).differences(&mounted.json()), ["data"]);
        }
        for target in ["/data", "/data/x", "/database"] {
            let mount = Mount { source: "/mnt".into(), target: target.into(), read_only: true };
            nodes[0].container.mounts = vec![mount];
            let is_mounted = !data(&cluster, &nodes[0], &[("set", Some(7))]).data.is_empty();
            assert_eq!(is_mounted, target == "/database", "{target}");
        }
        nodes[0].container.mounts.clear();
        cluster.jobs_dir = "/data/jobs".into();
        assert_eq!(data_obstacle(&cluster, &nodes[0]), Some("/data/jobs"));
    }

    #[test]
    fn what_the_inventory_adds_is_a_part_of_it_and_its_absence_changes_no_label() {
        let Inventory { cluster, mut nodes, .. } = Inventory::local("here", "some/image:1");
        let address = IpAddr::from([10, 0, 0, 1]);
        let made = |node: &Node, gpus: GpuRequest| ContainerSpec::worker(&cluster, node, gpus, address).spec;
        let plain = made(&nodes[0], GpuRequest::All);
        let json = plain.json();
        assert!(json.contains("\"gpus\":true") && !json.contains("devices") && !json.contains("ulimits"), "{json}");
        let two = made(&nodes[0], GpuRequest::First(2));
        let named = made(&nodes[0], GpuRequest::Devices(vec!["0".into(), "GPU-1".into()]));
        for other in [&two, &named] {
            assert_eq!(other.differences(&json), ["gpus"]);
            assert!(other.differences(&other.json()).is_empty(), "it is read as it was written");
        }
        let container = &mut nodes[0].container;
        container.mounts.push(Mount { source: "/data".into(), target: "/data".into(), read_only: true });
        container.devices.push(Device { source: "/dev/a".into(), target: "/dev/a".into(), permissions: "rwm".into() });
        container.ulimits.insert("memlock".into(), Ulimit { soft: -1, hard: -1 });
        container.cap_add.push("NET_RAW".into());
        container.env.insert("A".into(), "1".into());
        let more = made(&nodes[0], GpuRequest::All);
        assert_eq!(more.differences(&json), ["mounts", "devices", "ulimits", "capabilities"]);
        let mut seeing = nodes[0].clone();
        for name in ["NVIDIA_DRIVER_CAPABILITIES", "NVIDIA_REQUIRE_CUDA", "NVIDIA_VISIBLE_DEVICES"] {
            seeing.container.env.insert(name.into(), "all".into());
        }
        let seeing = made(&seeing, GpuRequest::All);
        assert_eq!(seeing.differences(&more.json()), ["environment"]);
        let names: Vec<&str> = seeing.runtime_env.keys().map(String::as_str).collect();
        assert_eq!(names, ["NVIDIA_DRIVER_CAPABILITIES", "NVIDIA_REQUIRE_CUDA"], "`gpus` chooses GPUs");
        assert!(more.differences(&more.json()).is_empty());
        assert_ne!(more.hash(), plain.hash());
        assert!(json!(more).get("env").is_none(), "the environment is the jobs', not the containers'");
    }

    #[test]
    fn a_worker_that_reads_packets_is_recreated_and_one_of_processes_is_not() {
        let Inventory { mut cluster, nodes, .. } = Inventory::local("here", "some/image:1");
        let address = IpAddr::from([10, 0, 0, 1]);
        let made = |cluster: &Cluster| ContainerSpec::worker(cluster, &nodes[0], GpuRequest::All, address).spec;
        let without = |spec: &Spec| {
            let mut labels = json!(spec);
            labels.as_object_mut().unwrap().remove("cap_add");
            labels.to_string()
        };
        let worker = made(&cluster);
        assert_eq!(worker.differences(&without(&worker)), ["capabilities"], "of hvdctl 0.2.0");
        cluster.runtime = RuntimeChoice::Process;
        let worker = made(&cluster);
        assert!(worker.differences(&without(&worker)).is_empty() && !worker.json().contains("cap_add"));
    }
}
