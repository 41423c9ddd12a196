//! Slurm's configuration of the inventory's machines, as text (<https://slurm.schedmd.com/slurm.conf.html>).

use crate::node::gpus::GpuDevice;
use crate::text::nodeset::fold_numbers;
use std::net::IpAddr;

/// A machine, as Slurm is to know it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SlurmNode {
    /// Its name in the inventory.
    pub name: String,
    /// Its host name, as `hostname` prints it there.
    pub hostname: String,
    /// Its address in the cluster.
    pub address: IpAddr,
    /// How many tasks it takes.
    pub cpus: u32,
    /// Its GPUs by kind.
    pub gpus: Vec<SlurmGpus>,
}

/// GPUs of one kind.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SlurmGpus {
    /// The kind; empty if it is not known.
    pub kind: String,
    /// The numbers of their devices, or of their GPUs if they are MIG devices, which have no file of their own.
    pub devices: Vec<u32>,
    /// Set if they are MIG devices.
    pub are_parts: bool,
}

/// Returns the GPUs of a machine by kind, as generic resources have them: `NVIDIA H100 80GB HBM3` is `h100`.
pub fn by_kind(devices: &[GpuDevice<'_>]) -> Vec<SlurmGpus> {
    let mut found: Vec<SlurmGpus> = Vec::new();
    for device in devices {
        let (kind, number, is_part) = (kind(&device.gpu.name), device.gpu.index, device.mig.is_some());
        match found.iter_mut().find(|other| other.kind == kind && other.are_parts == is_part) {
            Some(other) => other.devices.push(number),
            None => found.push(SlurmGpus { kind, devices: vec![number], are_parts: is_part }),
        }
    }
    found
}

/// Returns the model in the name of a GPU: the first word with a digit, in lower case.
fn kind(name: &str) -> String {
    let words = name.split(|c: char| !c.is_ascii_alphanumeric()).map(str::to_ascii_lowercase);
    words.into_iter().find(|word| word.contains(|c: char| c.is_ascii_digit())).unwrap_or_default()
}

impl SlurmNode {
    /// Returns the number of its GPUs.
    pub fn gpu_count(&self) -> u32 {
        self.gpus.iter().map(|gpus| gpus.devices.len() as u32).sum()
    }

    /// Returns its generic resources, such as `gpu:h100:8`. `with_kind`: whether jobs may ask for a kind.
    fn gres(&self, with_kind: bool) -> Option<String> {
        let count = self.gpu_count();
        let all =
            || self.gpus.iter().map(|gpus| gres(&gpus.kind, gpus.devices.len() as u32)).collect::<Vec<_>>().join(",");
        (count > 0).then(|| if with_kind { all() } else { gres("", count) })
    }

    /// Returns its line of slurm.conf, without the state.
    fn line(&self, with_kind: bool) -> String {
        let gres = self.gres(with_kind).map_or_else(String::new, |gres| format!(" Gres={gres}"));
        let SlurmNode { name, address, cpus, .. } = self;
        format!("NodeName={name} NodeAddr={address} CPUs={cpus}{gres}")
    }
}

fn gres(kind: &str, count: u32) -> String {
    if kind.is_empty() { format!("gpu:{count}") } else { format!("gpu:{kind}:{count}") }
}

/// Returns the lines of slurm.conf and gres.conf for an administrator, who adds them to those of a Slurm that is
/// already there or begins one with them. The first node is the controller.
pub fn for_administrators(cluster: &str, nodes: &[SlurmNode]) -> String {
    let Some(first) = nodes.first() else { return String::new() };
    let gres_types = if nodes.iter().any(|node| !node.gpus.is_empty()) { "GresTypes=gpu\n" } else { "" };
    let mut text = format!(
        "# slurm.conf\nClusterName={}\nSlurmctldHost={}({})\n{gres_types}SelectType=select/cons_tres\n\
         SelectTypeParameters=CR_Core\n",
        cluster_name(cluster),
        first.hostname,
        first.address
    );
    for node in nodes {
        text.push_str(&format!("{} NodeHostname={} State=UNKNOWN\n", node.line(true), node.hostname));
    }
    text.push_str("PartitionName=main Nodes=ALL Default=YES MaxTime=INFINITE State=UP\n");
    if !gres_types.is_empty() {
        text.push_str("\n# gres.conf\n");
    }
    for node in nodes {
        for SlurmGpus { kind, devices, are_parts } in &node.gpus {
            let kind = if kind.is_empty() { String::new() } else { format!(" Type={kind}") };
            let numbers = fold_numbers(&devices.iter().copied().collect());
            let numbers = if devices.len() > 1 { format!("[{numbers}]") } else { numbers };
            let which = match are_parts {
                // the site decides how MIG devices are found: AutoDetect=nvml
                true => format!("Count={}", devices.len()),
                false => format!("File=/dev/nvidia{numbers}"),
            };
            text.push_str(&format!("NodeName={} Name=gpu{kind} {which}\n", node.name));
        }
    }
    text
}

/// Returns a name that Slurm accepts for a cluster: of lower-case letters and digits.
fn cluster_name(name: &str) -> String {
    let plain = |c: char| if c.is_ascii_alphanumeric() || c == '_' { c.to_ascii_lowercase() } else { '_' };
    name.chars().map(plain).collect()
}

/// Returns slurm.conf of the cluster's queue. `directory`: its directory on the nodes; the first node is the master.
/// A slot is a CPU, because hvdctl itself binds ranks, and ranks have to fit as without Slurm.
pub fn slurm_conf(cluster: &str, directory: &str, nodes: &[SlurmNode]) -> String {
    let master = &nodes[0];
    let mut text = format!(
        "\
ClusterName={name}
SlurmctldHost={host}({address})
# on the address of the machine's name, which main.sh sets in the container
CommunicationParameters=NoInAddrAny,NoCtldInAddrAny
AuthType=auth/munge
CredType=cred/munge
SlurmUser=root
SlurmdUser=root
StateSaveLocation={directory}/state
SlurmdSpoolDir={directory}/spool
SlurmctldPidFile=/run/slurmctld.pid
SlurmdPidFile=/run/slurmd.pid
SlurmctldLogFile={directory}/log/slurmctld.log
SlurmdLogFile={directory}/log/slurmd.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
MpiDefault=none
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
SlurmdParameters=config_overrides
GresTypes=gpu
# jobs begin in their order; a shorter one may go before if that delays none (a time limit: --sbatch=--time=…)
SchedulerType=sched/backfill
SchedulerParameters=nohold_on_prolog_fail,batch_sched_delay=1,sched_min_interval=200000,bf_interval=10,bf_continue
PrologFlags=Alloc
Prolog={directory}/prolog
Epilog={directory}/epilog
HealthCheckProgram={directory}/check
HealthCheckInterval=5
ReturnToService=2
SlurmdTimeout=60
MinJobAge=600
KillWait=5
",
        name = cluster_name(cluster),
        host = master.hostname,
        address = master.address,
    );
    // slurmd is given its name; those of cloned machines may be alike
    nodes.iter().for_each(|node| text.push_str(&format!("{} State=UNKNOWN\n", node.line(false))));
    text.push_str("PartitionName=main Nodes=ALL Default=YES MaxTime=INFINITE OverSubscribe=NO State=UP\n");
    text
}

/// Returns gres.conf of the cluster's queue. GPUs are only counted there, by devices that `main.sh` makes:
/// `node.py` chooses them.
pub fn gres_conf(nodes: &[SlurmNode]) -> String {
    let with_gpus = nodes.iter().filter(|node| node.gpu_count() > 0);
    let lines = with_gpus
        .map(|node| format!("NodeName={} Name=gpu File=/run/hvdctl-gpu[0-{}]\n", node.name, node.gpu_count() - 1));
    "AutoDetect=off\n".to_owned() + &lines.collect::<String>()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn node(name: &str, last: u8, gpus: &[(&str, &[u32])]) -> SlurmNode {
        let gpus = gpus.iter().map(|(kind, devices)| SlurmGpus {
            kind: (*kind).to_owned(),
            devices: devices.to_vec(),
            are_parts: false,
        });
        let gpus = gpus.collect();
        let address = IpAddr::from([10, 0, 0, last]);
        SlurmNode { name: name.into(), hostname: format!("{name}-host"), address, cpus: 64, gpus }
    }

    #[test]
    fn an_administrator_gets_both_files() {
        let nodes = [
            node("gpu1", 1, &[("h100", &[0, 1, 2, 3, 4, 5, 6, 7])]),
            node("gpu2", 2, &[("a100", &[1]), ("", &[0, 2])]),
            node("cpu1", 3, &[]),
        ];
        let text = for_administrators("My Lab", &nodes);
        let expected = "\
# slurm.conf
ClusterName=my_lab
SlurmctldHost=gpu1-host(10.0.0.1)
GresTypes=gpu
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
NodeName=gpu1 NodeAddr=10.0.0.1 CPUs=64 Gres=gpu:h100:8 NodeHostname=gpu1-host State=UNKNOWN
NodeName=gpu2 NodeAddr=10.0.0.2 CPUs=64 Gres=gpu:a100:1,gpu:2 NodeHostname=gpu2-host State=UNKNOWN
NodeName=cpu1 NodeAddr=10.0.0.3 CPUs=64 NodeHostname=cpu1-host State=UNKNOWN
PartitionName=main Nodes=ALL Default=YES MaxTime=INFINITE State=UP

# gres.conf
NodeName=gpu1 Name=gpu Type=h100 File=/dev/nvidia[0-7]
NodeName=gpu2 Name=gpu Type=a100 File=/dev/nvidia1
NodeName=gpu2 Name=gpu File=/dev/nvidia[0,2]
";
        assert_eq!(text, expected);
        assert!(!for_administrators("lab", &nodes[2..]).contains("gres"));
    }

    #[test]
    fn kinds_of_gpus_are_their_models() {
        for (name, expected) in [
            ("NVIDIA H100 80GB HBM3", "h100"),
            ("Tesla V100-SXM2-32GB", "v100"),
            ("NVIDIA GeForce RTX 4090", "4090"),
            ("NVIDIA A100-SXM4-40GB", "a100"),
            ("Graphics Device", ""),
        ] {
            assert_eq!(kind(name), expected, "{name}");
        }
    }

    #[test]
    fn the_queue_counts_slots_and_gpus() {
        let nodes = [node("n1", 1, &[("h100", &[0, 1]), ("a100", &[2])]), node("n2", 2, &[])];
        let text = slurm_conf("lab", "/opt/horovod/slurm", &nodes);
        assert!(text.contains("SlurmctldHost=n1-host(10.0.0.1)\n"), "{text}");
        assert!(text.contains("NodeName=n1 NodeAddr=10.0.0.1 CPUs=64 Gres=gpu:3 "), "{text}");
        assert!(text.contains("Prolog=/opt/horovod/slurm/prolog\n"), "{text}");
        assert!(text.contains("CommunicationParameters=NoInAddrAny,NoCtldInAddrAny\n"), "{text}");
        assert_eq!(gres_conf(&nodes), "AutoDetect=off\nNodeName=n1 Name=gpu File=/run/hvdctl-gpu[0-2]\n");
    }
}
