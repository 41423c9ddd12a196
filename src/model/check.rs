//! The checks of `doctor` and `verify`, and which of them say something of the machine.

use std::fmt;

/// A check of `doctor` or `verify`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Check {
    /// Accelerators that containers do not get, or that no slots stand for.
    Accelerators,
    /// The address in the cluster: two nodes have the same, or it is not that of the inventory.
    Address,
    /// A clock that differs from those of the other nodes.
    Clock,
    /// Another container that has a name of hvdctl's.
    Container,
    /// Data for jobs that differ or are incomplete.
    Data,
    /// The diagnosis of DCGM.
    Dcgm,
    /// Room on disks.
    Disk,
    /// The encrypted network between the nodes.
    EncryptedNetwork,
    /// Devices of fast networks that containers do not get.
    Fabric,
    /// Clocks of GPUs that are slowed down.
    GpuClocks,
    /// The temperature of GPUs.
    GpuHeat,
    /// GPUs that are lost, or of which the driver cannot read something.
    GpuLost,
    /// Errors in the memory of GPUs, and its repair.
    GpuMemory,
    /// GPUs that are not alike, on one node or between nodes.
    GpuModels,
    /// The PCIe links of GPUs.
    GpuPcie,
    /// Settings of GPUs that an operator may have chosen.
    GpuSettings,
    /// Other programs that use GPUs.
    GpuUsers,
    /// GPUs that are missing, or not known because `nvidia-smi` fails.
    Gpus,
    /// Host names that stand for no machine, or for several.
    Hostname,
    /// The image of the cluster.
    Image,
    /// The network interface that the inventory names.
    Interface,
    /// Records of jobs.
    Jobs,
    /// The key pair of the cluster.
    Keys,
    /// Killed processes that wait in the kernel for a disk or a driver.
    Killed,
    /// The launchers and frameworks of the image.
    Launchers,
    /// The limit of open files in the worker.
    Limits,
    /// Logins between workers.
    Login,
    /// The limit of locked memory in the worker.
    Memlock,
    /// The size of packets.
    Mtu,
    /// The addresses to which host names resolve.
    Names,
    /// The address of a node in the cluster.
    Network,
    /// A step of the examination that failed: what it would have found is not known.
    Node,
    /// `nvidia-smi` that fails, hangs, or cannot be understood.
    NvidiaSmi,
    /// NVLinks and their fabric.
    Nvlink,
    /// Other users who can change the directories in which root works.
    Permissions,
    /// The port of the worker.
    Port,
    /// Connections between nodes on random ports.
    Ports,
    /// Routes between nodes.
    Route,
    /// Directories that nodes share and should not.
    Shared,
    /// `/dev/shm` of the containers.
    Shm,
    /// The connection of the operator to a node.
    Ssh,
    /// The settings of a node's sshd.
    Sshd,
    /// Processes, containers or files that an ended job has left.
    Stale,
    /// The NVIDIA Container Toolkit.
    Toolkit,
    /// Versions that differ between nodes.
    Versions,
    /// The worker: its settings, and the GPUs that it has lost since its start.
    Worker,
    /// Errors of GPUs in the kernel log.
    Xid,
}

/// The subject of a check.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum CheckSubject {
    /// The machine itself: what is found counts in its grade.
    Machine,
    /// The set-up of the cluster, the programs on a node, or several nodes.
    Setup,
}

impl Check {
    /// Returns whether it says something of the machine itself. What it finds is then recorded in the node's ledger.
    pub fn is_of_machine(self) -> bool {
        self.described().1 == CheckSubject::Machine
    }

    /// Returns its name and its subject.
    fn described(self) -> (&'static str, CheckSubject) {
        use CheckSubject::{Machine, Setup};
        match self {
            Check::Accelerators => ("accelerators", Setup),
            Check::Address => ("address", Setup),
            Check::Clock => ("clock", Machine),
            Check::Container => ("container", Setup),
            Check::Data => ("data", Setup),
            Check::Dcgm => ("dcgm", Machine),
            Check::Disk => ("disk", Machine),
            Check::EncryptedNetwork => ("encrypted-network", Setup),
            Check::Fabric => ("fabric", Setup),
            Check::GpuClocks => ("gpu-clocks", Machine),
            Check::GpuHeat => ("gpu-heat", Machine),
            Check::GpuLost => ("gpu-lost", Machine),
            Check::GpuMemory => ("gpu-memory", Machine),
            Check::GpuModels => ("gpu-models", Setup),
            Check::GpuPcie => ("gpu-pcie", Machine),
            Check::GpuSettings => ("gpu-settings", Setup),
            Check::GpuUsers => ("gpu-users", Setup),
            Check::Gpus => ("gpus", Machine),
            Check::Hostname => ("hostname", Setup),
            Check::Image => ("image", Setup),
            Check::Interface => ("interface", Setup),
            Check::Jobs => ("jobs", Setup),
            Check::Keys => ("keys", Setup),
            Check::Killed => ("killed", Machine),
            Check::Launchers => ("launchers", Setup),
            Check::Limits => ("limits", Setup),
            Check::Login => ("login", Setup),
            Check::Memlock => ("memlock", Setup),
            Check::Mtu => ("mtu", Setup),
            Check::Names => ("names", Setup),
            Check::Network => ("network", Setup),
            Check::Node => ("node", Setup),
            Check::NvidiaSmi => ("nvidia-smi", Machine),
            Check::Nvlink => ("nvlink", Machine),
            Check::Permissions => ("permissions", Setup),
            Check::Port => ("port", Setup),
            Check::Ports => ("ports", Setup),
            Check::Route => ("route", Setup),
            Check::Shared => ("shared", Setup),
            Check::Shm => ("shm", Setup),
            Check::Ssh => ("ssh", Setup),
            Check::Sshd => ("sshd", Setup),
            Check::Stale => ("stale", Setup),
            Check::Toolkit => ("toolkit", Setup),
            Check::Versions => ("versions", Setup),
            Check::Worker => ("worker", Setup),
            Check::Xid => ("xid", Machine),
        }
    }
}

impl fmt::Display for Check {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.described().0)
    }
}

impl serde::Serialize for Check {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    const ALL: [Check; 47] = [
        Check::Accelerators,
        Check::Address,
        Check::Clock,
        Check::Container,
        Check::Data,
        Check::Dcgm,
        Check::Disk,
        Check::EncryptedNetwork,
        Check::Fabric,
        Check::GpuClocks,
        Check::GpuHeat,
        Check::GpuLost,
        Check::GpuMemory,
        Check::GpuModels,
        Check::GpuPcie,
        Check::GpuSettings,
        Check::GpuUsers,
        Check::Gpus,
        Check::Hostname,
        Check::Image,
        Check::Interface,
        Check::Jobs,
        Check::Keys,
        Check::Killed,
        Check::Launchers,
        Check::Limits,
        Check::Login,
        Check::Memlock,
        Check::Mtu,
        Check::Names,
        Check::Network,
        Check::Node,
        Check::NvidiaSmi,
        Check::Nvlink,
        Check::Permissions,
        Check::Port,
        Check::Ports,
        Check::Route,
        Check::Shared,
        Check::Shm,
        Check::Ssh,
        Check::Sshd,
        Check::Stale,
        Check::Toolkit,
        Check::Versions,
        Check::Worker,
        Check::Xid,
    ];

    #[test]
    fn the_checks_and_those_that_count_in_a_grade_are_documented() {
        let names: BTreeSet<String> = ALL.iter().map(Check::to_string).collect();
        assert_eq!(ALL.len(), Check::Xid as usize + 1, "one is missing");
        assert_eq!(names.len(), ALL.len(), "two have one name");
        // the table of `doctor`, which does not ask DCGM
        let table = include_str!("../../docs/reference/cluster.md");
        for name in names.iter().filter(|name| *name != "dcgm") {
            assert!(table.lines().any(|line| line.starts_with("| `") && line.contains(&format!("`{name}`"))), "{name}");
        }
        let text = include_str!("../../docs/reference/grade.md");
        let (_, list) = text.split_once("these checks of `doctor` and `verify` count: ").unwrap();
        let documented: Vec<&str> = list.split('.').next().unwrap().split('`').skip(1).step_by(2).collect();
        let counting: Vec<String> = ALL.iter().filter(|check| check.is_of_machine()).map(Check::to_string).collect();
        assert_eq!(documented, counting);
    }
}
