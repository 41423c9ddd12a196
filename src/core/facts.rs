//! What `src/edge/scripts/facts.sh` says of a node, parsed.

use serde::Serialize;
use std::collections::BTreeMap;
use std::net::IpAddr;

/// A GPU as `nvidia-smi -L` lists it: `GPU 0: NVIDIA H200 (UUID: GPU-…)`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Gpu {
    /// Index on its machine.
    pub index: u32,
    /// The product's name.
    pub name: String,
    /// The identity that survives reboots and re-numbering.
    pub uuid: String,
}

/// A file in the cluster's key folder.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Default)]
pub struct KeyFile {
    /// Permission bits in octal, as `stat -c %a` prints them.
    pub mode: String,
    /// `UID:GID`.
    pub owner: String,
    /// Contents of the files that hold no secret; empty for private keys.
    pub text: String,
}

/// One node as it was seen.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct Facts {
    /// `uname -n`.
    pub hostname: String,
    /// Cores that processes may use.
    pub cores: u32,
    /// The address by which the operator's ssh reached it (`SSH_CONNECTION`).
    pub ssh_address: Option<IpAddr>,
    /// Interface and address, loopback included.
    pub addresses: Vec<(String, IpAddr)>,
    /// GPUs that the machine itself sees.
    pub gpus: Vec<Gpu>,
    /// Whether `nvidia-smi` is installed.
    pub nvidia_smi: bool,
    /// The key folder itself (mode and owner), if it is there.
    pub key_dir: Option<KeyFile>,
    /// Its files by name.
    pub key_files: BTreeMap<String, KeyFile>,
}

impl Facts {
    /// Parses the script's lines: `KEY VALUE`. Unknown keys are passed over, so that an older program can read a
    /// newer script's output.
    pub fn parse(text: &str) -> Facts {
        let mut facts = Facts::default();
        for line in text.lines() {
            let (key, value) = line.split_once(' ').unwrap_or((line, ""));
            match key {
                "hostname" => facts.hostname = value.to_owned(),
                "cores" => facts.cores = value.parse().unwrap_or(1),
                "ssh" => facts.ssh_address = value.parse().ok(),
                "addr" => facts.addresses.extend(address(value)),
                "nvidia-smi" => facts.nvidia_smi = true,
                "gpu" => facts.gpus.extend(gpu(value)),
                "dir" => facts.key_dir = file(value).map(|(_, f)| f),
                "file" => facts.key_files.extend(file(value)),
                "text" => {
                    if let Some((name, line)) = value.split_once(' ')
                        && let Some(file) = facts.key_files.get_mut(name)
                    {
                        file.text.push_str(line);
                        file.text.push('\n');
                    }
                }
                _ => {}
            }
        }
        facts
    }

    /// The interface that carries `address`.
    pub fn interface_of(&self, address: IpAddr) -> Option<&str> {
        self.addresses.iter().find(|(_, a)| *a == address).map(|(name, _)| name.as_str())
    }

    /// The first address of an interface, IPv4 before IPv6 (Horovod's `-H` takes no IPv6, #4008).
    pub fn address_on(&self, interface: &str) -> Option<IpAddr> {
        let mut on = self.addresses.iter().filter(|(name, _)| name == interface).map(|(_, a)| *a);
        on.clone().find(IpAddr::is_ipv4).or_else(|| on.next())
    }
}

/// `eth0 10.0.0.1/24`, as the script prints it.
fn address(value: &str) -> Option<(String, IpAddr)> {
    let (name, address) = value.split_once(' ')?;
    let address = address.split('/').next()?.parse().ok()?;
    Some((name.split('@').next()?.to_owned(), address))
}

/// `NAME MODE OWNER`.
fn file(value: &str) -> Option<(String, KeyFile)> {
    let mut parts = value.split(' ');
    let (name, mode, owner) = (parts.next()?, parts.next()?, parts.next()?);
    Some((name.to_owned(), KeyFile { mode: mode.into(), owner: owner.into(), text: String::new() }))
}

/// A line of `nvidia-smi -L`; lines of MIG slices, which are indented, are none.
pub fn gpu(line: &str) -> Option<Gpu> {
    let (index, rest) = line.strip_prefix("GPU ")?.split_once(": ")?;
    let (name, uuid) = rest.rsplit_once(" (UUID: ")?;
    Some(Gpu { index: index.parse().ok()?, name: name.to_owned(), uuid: uuid.trim_end().strip_suffix(')')?.to_owned() })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_node_is_read() {
        let facts = Facts::parse(
            "hostname node1\ncores 2\nssh 10.0.0.1\naddr lo 127.0.0.1/8\naddr eth0 fe80::1/64\n\
             addr eth0@if7 10.0.0.1/24\nnvidia-smi yes\ngpu GPU 0: NVIDIA H200 (UUID: GPU-1-2)\n\
             gpu   MIG 1g.18gb Device 0: (UUID: MIG-3)\ndir . 700 0:0\nfile id_rsa.pub 644 0:0\n\
             text id_rsa.pub ssh-rsa AAAA x\nlater thing\n",
        );
        assert_eq!(facts.hostname, "node1");
        assert_eq!(facts.interface_of("10.0.0.1".parse().unwrap()), Some("eth0"));
        assert_eq!(facts.address_on("eth0"), Some("10.0.0.1".parse().unwrap()));
        assert_eq!(facts.gpus, [Gpu { index: 0, name: "NVIDIA H200".into(), uuid: "GPU-1-2".into() }]);
        assert_eq!(facts.key_files["id_rsa.pub"].text, "ssh-rsa AAAA x\n");
        assert_eq!(facts.key_dir.unwrap().mode, "700");
    }
}
