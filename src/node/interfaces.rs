//! A node's addresses, and what listens on them.

use super::lines::{known, parts};
use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// A process that listens on the workers' port.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Listener {
    /// The address it listens on; none: on all of them.
    pub address: Option<IpAddr>,
    /// Its process, if that is visible.
    pub pid: Option<u32>,
    /// The user of the process.
    pub user: String,
    /// The id of the container that it runs in.
    pub container: Option<String>,
    /// Its program.
    pub program: String,
}

/// The observed addresses and listeners of a node.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct NodeNetwork {
    /// The address by which the operator's ssh reached it (`SSH_CONNECTION`).
    pub ssh_address: Option<IpAddr>,
    /// The interface that a link-local one of these came in by (`fe80::1%eth0`); several may have the same address.
    pub ssh_zone: Option<String>,
    /// Interface and address, loopback included.
    pub addresses: Vec<(String, IpAddr)>,
    /// The label of each IPv4 address, by which programs find it (getifaddrs(3)); without `ip addr add … label` the
    /// interface's name.
    pub labels: BTreeMap<IpAddr, String>,
    /// The network of each address, as `10.0.0.0/24`.
    pub networks: BTreeMap<IpAddr, String>,
    /// Listeners on the workers' port.
    pub listeners: Vec<Listener>,
    /// The TCP ports with a listener on any address.
    pub ports: BTreeSet<u16>,
}

impl NodeNetwork {
    /// Takes a line of the script, if it is about this.
    pub(super) fn read(&mut self, key: &str, value: &str) {
        match key {
            "ssh" => {
                let mut parts = value.split('%');
                self.ssh_address = parts.next().and_then(|address| address.parse().ok());
                self.ssh_zone = parts.next().map(str::to_owned);
            }
            "addr" => drop(self.add_address(value)),
            "listener" => self.listeners.extend(listener(value)),
            "ports" => self.ports.extend(value.split(' ').filter_map(|port| port.parse::<u16>().ok())),
            _ => {}
        }
    }

    /// Parses `eth0 10.0.0.1/24 LABEL`.
    fn add_address(&mut self, value: &str) -> Option<()> {
        let mut words = value.split(' ');
        let (name, text) = (words.next()?.split('@').next()?, words.next()?);
        // that of a point-to-point interface has no prefix: ip shows the prefix of its peer
        let (address, bits) = text.split_once('/').map_or((text, None), |(a, bits)| (a, bits.parse().ok()));
        let address = address.parse().ok()?;
        self.addresses.push((name.to_owned(), address));
        self.labels.extend(words.next().map(|label| (address, label.to_owned())));
        self.networks.extend(bits.map(|bits| (address, network(address, bits))));
        Some(())
    }

    /// The interface that carries `address`.
    pub fn interface_of(&self, address: IpAddr) -> Option<&str> {
        self.addresses.iter().find(|(_, a)| *a == address).map(|(name, _)| name.as_str())
    }

    /// The IPv4 addresses with this label, in the kernel's order: a program that knows only the name takes the first.
    pub fn labelled(&self, label: &str) -> impl Iterator<Item = IpAddr> {
        self.addresses
            .iter()
            .map(|(_, address)| *address)
            .filter(move |a| self.labels.get(a).is_some_and(|l| l == label))
    }

    /// The first address of an interface, IPv4 before IPv6, which launchers are not given. A link-local one means
    /// nothing without its interface, and is none.
    pub fn address_on(&self, interface: &str) -> Option<IpAddr> {
        let mut on = self.addresses.iter().filter(|(name, _)| name == interface).map(|(_, a)| *a);
        on.clone().find(IpAddr::is_ipv4).or_else(|| on.find(|a| !link_local(*a)))
    }
}

fn link_local(address: IpAddr) -> bool {
    matches!(address, IpAddr::V6(address) if address.is_unicast_link_local())
}

/// Returns the network of an address.
fn network(address: IpAddr, bits: u32) -> String {
    let network: IpAddr = match address {
        IpAddr::V4(v4) => Ipv4Addr::from(v4.to_bits() & u32::MAX.checked_shl(32 - bits.min(32)).unwrap_or(0)).into(),
        IpAddr::V6(v6) => Ipv6Addr::from(v6.to_bits() & u128::MAX.checked_shl(128 - bits.min(128)).unwrap_or(0)).into(),
    };
    format!("{network}/{bits}")
}

/// Parses `ADDRESS:PORT PID USER CONTAINER PROGRAM`, with `-` for what is not known. `ss` writes `*` and `0.0.0.0` for
/// all addresses; `[::]` is those of IPv6 only.
fn listener(value: &str) -> Option<Listener> {
    let [local, pid, user, container, program] = parts(value)?;
    let (address, _) = local.rsplit_once(':')?;
    let address = address.split('%').next()?.trim_matches(['[', ']']);
    let address = if matches!(address, "*" | "0.0.0.0") { None } else { Some(address.parse().ok()?) };
    let (user, program) = (user.to_owned(), program.to_owned());
    Some(Listener { address, pid: pid.parse().ok(), user, container: known(container), program })
}
