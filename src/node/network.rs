//! Under which address, on which interface and with which GPUs a node takes part in a job.

use crate::inventory::{Gpus, Inventory, Node};
use crate::model::mesh;
use crate::node::facts::Facts;
use crate::node::gpus::{GpuDevice, GpuQueryFailure, GpuRequest, NvidiaSmi};
use std::net::{IpAddr, Ipv4Addr};

/// The variable that says how CUDA numbers GPUs.
pub const CUDA_DEVICE_ORDER: &str = "CUDA_DEVICE_ORDER";
/// The variable that says which GPUs CUDA uses.
pub const CUDA_VISIBLE_DEVICES: &str = "CUDA_VISIBLE_DEVICES";

/// A node's place on the cluster's network.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Endpoint {
    /// The address that the launcher and the other ranks use.
    pub address: IpAddr,
    /// The interface that carries it.
    pub interface: String,
    /// The name by which programs find the address: its label, in general the interface's name.
    pub label: String,
    /// Its network, as `10.0.0.0/24`, if known.
    pub network: Option<String>,
    /// Set if other IPv4 addresses have that name, too: a program that knows the name may use one of them.
    pub is_ambiguous: bool,
}

/// Returns the endpoint of a node that needs no other one; its traffic stays on the loopback interface.
pub fn alone() -> Endpoint {
    Endpoint {
        address: Ipv4Addr::LOCALHOST.into(),
        interface: "lo".into(),
        label: "lo".into(),
        network: None,
        is_ambiguous: false,
    }
}

/// A node's place in its cluster: [`alone`] where there is no other node and the inventory names no address, else its
/// [`endpoint`].
///
/// # Errors
/// As of [`endpoint`].
pub fn place(inventory: &Inventory, node: &Node, facts: &Facts) -> Result<Endpoint, String> {
    if inventory.nodes.len() == 1 && node.address.is_none() && node.interface.is_none() {
        return Ok(alone());
    }
    endpoint(node, facts)
}

/// The inventory's address, else the address on the inventory's interface, else the one by which ssh reached the node:
/// that one is certain to be the node's own, regardless of jump hosts and names in between. If that is an IPv6 address,
/// it is the IPv4 address on the same interface, because launchers are given no others.
///
/// # Errors
/// Returns what is missing or does not match.
pub fn endpoint(node: &Node, facts: &Facts) -> Result<Endpoint, String> {
    let address = match (&node.address, &node.interface) {
        (Some(address), _) => *address,
        (None, Some(interface)) => facts.network.address_on(interface).ok_or_else(|| {
            format!("the interface {interface} does not exist or has no address (the node has: {})", interfaces(facts))
        })?,
        (None, None) => reached_by(facts)?,
    };
    let interface = interface_with(facts, address)?;
    if let Some(wanted) = node.interface.as_deref().filter(|wanted| *wanted != interface) {
        return Err(format!("the address {address} is on {interface}, not on {wanted}"));
    }
    let label = facts.network.labels.get(&address).map_or(interface, String::as_str);
    Ok(Endpoint {
        address,
        interface: interface.to_owned(),
        label: label.to_owned(),
        network: facts.network.networks.get(&address).cloned(),
        is_ambiguous: facts.network.labelled(label).count() > 1,
    })
}

/// Returns the next step for a node without an endpoint.
pub fn hint(node: &Node) -> &'static str {
    match node.interface.as_deref() {
        Some(interface) if mesh::is_interface(interface) => {
            "`hvdctl up` connects it to the cluster's encrypted network; `hvdctl doctor` says what is wrong there"
        }
        _ => "set `address` or `interface` of this [[node]] in the inventory",
    }
}

/// The address by which ssh reached the node, as far as other nodes and launchers can use it.
fn reached_by(facts: &Facts) -> Result<IpAddr, String> {
    let address = facts.network.ssh_address.ok_or("the address at which ssh reached the node is unknown")?;
    if address.is_loopback() {
        return Err(format!(
            "ssh reached it at {address}, for example through a tunnel, where no other node can reach it"
        ));
    }
    if address.is_ipv4() {
        return Ok(address);
    }
    let interface = facts.network.ssh_zone.as_deref().map_or_else(|| interface_with(facts, address), Ok)?;
    facts
        .network
        .address_on(interface)
        .filter(IpAddr::is_ipv4)
        .ok_or_else(|| format!("ssh reached it at the IPv6 address {address}, and {interface} has no IPv4 address"))
}

fn interface_with(facts: &Facts, address: IpAddr) -> Result<&str, String> {
    let unknown =
        || format!("no interface of the node has the address {address} (the node has: {})", interfaces(facts));
    facts.network.interface_of(address).ok_or_else(unknown)
}

fn interfaces(facts: &Facts) -> String {
    facts.network.addresses.iter().map(|(name, address)| format!("{name} {address}")).collect::<Vec<_>>().join(", ")
}

/// Prefixes of the interfaces that Docker, Podman, LXC, libvirt and Kubernetes create for one machine; `flannel` is not
/// among them, because it is a network between machines.
const VIRTUAL: [&str; 8] = ["docker", "podman", "cni", "cali", "lxc", "lxdbr", "virbr", "veth"];

/// Returns whether an interface leads to no other machine, whatever its address: the loopback, or one for containers
/// and virtual machines. A bridge `br-…` is one of Docker's if the rest is the beginning of a network's id, else it may
/// be a real one.
pub fn is_virtual(interface: &str) -> bool {
    let is_id = |rest: &str| rest.len() == 12 && rest.chars().all(|c| c.is_ascii_hexdigit());
    interface == "lo"
        || VIRTUAL.iter().any(|prefix| interface.starts_with(prefix))
        || interface.strip_prefix("br-").is_some_and(is_id)
}

/// The ranks that a node may run: its slots, else the GPUs and MIG devices that its containers get, else its cores.
/// None where its GPUs are not known ([`gpu_failure`]).
pub fn slots(node: &Node, facts: &Facts) -> u32 {
    known_slots(node).unwrap_or_else(|| match (&node.gpus, GpuDevice::of(&facts.gpus).len() as u32) {
        _ if gpu_failure(node, facts).is_some() => 0,
        (Gpus::Auto | Gpus::All, count @ 1..) => count,
        _ => facts.cores.max(1),
    })
}

/// The slots that are known without asking the node.
pub fn known_slots(node: &Node) -> Option<u32> {
    match (node.slots, &node.gpus) {
        (Some(slots), _) => Some(slots),
        (None, Gpus::Count(n @ 1..)) => Some(*n),
        (None, Gpus::List(list)) => Some(list.len() as u32),
        _ => None,
    }
}

/// The GPUs that the node's containers ask for. A number that is all there are asks for all of them. Means nothing
/// where the GPUs are not known ([`gpu_failure`]). With Podman, GPUs have the names of the node's CDI files.
pub fn gpu_request(node: &Node, facts: &Facts) -> GpuRequest {
    let request = stated_request(node, facts);
    match &facts.cdi {
        Some(cdi) => cdi.translate(request, &facts.gpus),
        None => request,
    }
}

/// Returns the request for a node's GPUs as the inventory states it.
fn stated_request(node: &Node, facts: &Facts) -> GpuRequest {
    let devices = GpuDevice::of(&facts.gpus);
    match &node.gpus {
        Gpus::Count(0) => GpuRequest::None,
        Gpus::Count(n) if devices.len() as u32 == *n => GpuRequest::All,
        // the engine counts GPUs, not MIG devices
        Gpus::Count(n) if devices.iter().any(|device| device.mig.is_some()) => {
            GpuRequest::Devices(devices.iter().take(*n as usize).map(|device| device.uuid().to_owned()).collect())
        }
        Gpus::Count(n) => GpuRequest::First(*n),
        Gpus::Auto if devices.is_empty() && facts.has_nvidia_device => GpuRequest::Unstated,
        Gpus::Auto if devices.is_empty() => GpuRequest::None,
        Gpus::Auto | Gpus::All => GpuRequest::All,
        Gpus::List(list) => GpuRequest::Devices(list.clone()),
    }
}

/// The devices that the node's containers get, of those that the machine itself lists; none where it lists none. In a
/// container they are numbered in this order.
pub fn chosen_gpus<'a>(node: &Node, facts: &'a Facts) -> Vec<GpuDevice<'a>> {
    let devices = GpuDevice::of(&facts.gpus).into_iter();
    match &node.gpus {
        Gpus::Count(n) => devices.take(*n as usize).collect(),
        Gpus::Auto | Gpus::All => devices.collect(),
        Gpus::List(list) => devices.filter(|device| list.iter().any(|id| device.is(id))).collect(),
    }
}

/// The fewest devices that the node's containers must see; 0 where they get none.
pub fn least_gpus(node: &Node, facts: &Facts) -> usize {
    match (&node.gpus, gpu_request(node, facts)) {
        (_, request) if request.is_none() => 0,
        (Gpus::Auto | Gpus::All, _) => chosen_gpus(node, facts).len().max(1),
        (Gpus::Count(n), _) => *n as usize,
        (Gpus::List(list), _) => list.len(),
    }
}

/// Returns whether a node may have GPUs for jobs: it has `nvidia-smi`, working or not, and the inventory does not say
/// that there are none.
pub fn may_use_gpus(node: &Node, facts: &Facts) -> bool {
    facts.nvidia_smi != NvidiaSmi::Missing && node.gpus != Gpus::Count(0)
}

/// The failure of `nvidia-smi` on a node that is to have GPUs, so that these are not known.
pub fn gpu_failure<'a>(node: &Node, facts: &'a Facts) -> Option<&'a GpuQueryFailure> {
    match &facts.nvidia_smi {
        NvidiaSmi::Failed(failed) if node.gpus != Gpus::Count(0) => Some(failed),
        _ => None,
    }
}

/// The GPUs that the inventory requires and the node does not have, as a sentence.
pub fn missing_gpus(node: &Node, facts: &Facts) -> Option<String> {
    if facts.nvidia_smi != NvidiaSmi::Listed {
        return None;
    }
    let devices = GpuDevice::of(&facts.gpus);
    match &node.gpus {
        Gpus::Auto | Gpus::All if devices.is_empty() && !facts.gpus.is_empty() => {
            let indices: Vec<String> = facts.gpus.iter().map(|gpu| gpu.index.to_string()).collect();
            Some(format!("no MIG devices were created on its GPUs in MIG mode ({})", indices.join(", ")))
        }
        Gpus::Count(n) if (devices.len() as u32) < *n => {
            Some(format!("the inventory requires {n}, nvidia-smi lists {}", devices.len()))
        }
        Gpus::All if devices.is_empty() => Some("the inventory requires \"all\", nvidia-smi lists none".to_owned()),
        Gpus::List(list) => {
            let listed: Vec<String> = devices.iter().map(ToString::to_string).collect();
            let listed = if listed.is_empty() { "none".to_owned() } else { listed.join(", ") };
            let absent = list.iter().find(|id| !devices.iter().any(|device| device.is(id)));
            let twice = devices.iter().find(|device| list.iter().filter(|id| device.is(id)).count() > 1);
            match (absent, twice) {
                (Some(id), _) => Some(format!("the inventory requires {id}, nvidia-smi lists {listed}")),
                (None, Some(device)) => Some(format!("the inventory names {device} twice")),
                (None, None) => None,
            }
        }
        _ => None,
    }
}

/// Returns the variables by which CUDA programs find the GPUs of a job on a node: the order in which they are numbered,
/// unless the user has chosen an `order`, and which of the container's GPUs it has. `allocated`: their UUIDs; empty for
/// all. `sees_all`: the programs are no container's, and see all GPUs of the node, also those that hvdctl is not to
/// use.
pub fn gpu_variables(
    node: &Node,
    facts: &Facts,
    allocated: &[String],
    order: Option<&str>,
    sees_all: bool,
) -> Vec<(&'static str, String)> {
    const BY_BUS: &str = "PCI_BUS_ID";
    if gpu_request(node, facts).is_none() {
        // a container has none then
        return if sees_all && !facts.gpus.is_empty() {
            vec![(CUDA_VISIBLE_DEVICES, String::new())]
        } else {
            Vec::new()
        };
    }
    let (chosen, all) = (chosen_gpus(node, facts), GpuDevice::of(&facts.gpus));
    let is_chosen = allocated.is_empty() && chosen.len() < all.len() && sees_all;
    let allocated = match is_chosen {
        true => &chosen.iter().map(|device| device.uuid().to_owned()).collect::<Vec<_>>(),
        false => allocated,
    };
    let seen = if sees_all { &all } else { &chosen };
    let visible = visible_devices(seen, allocated, order.is_none_or(|order| order == BY_BUS));
    let order = order.is_none().then(|| (CUDA_DEVICE_ORDER, BY_BUS.to_owned()));
    order.into_iter().chain(visible.map(|visible| (CUDA_VISIBLE_DEVICES, visible))).collect()
}

/// Returns the devices as `CUDA_VISIBLE_DEVICES` has them; `None`: all that the container has. Programs read integers
/// there, which are the places in `chosen`, the devices of the container; `by_bus`: CUDA numbers them in that order. It
/// takes MIG devices only by UUID.
fn visible_devices(chosen: &[GpuDevice<'_>], allocated: &[String], by_bus: bool) -> Option<String> {
    let has_mig = chosen.iter().any(|device| device.mig.is_some());
    let place = |uuid: &String| chosen.iter().position(|device| device.uuid() == uuid).map(|place| place.to_string());
    let places: Option<Vec<String>> = allocated.iter().map(place).collect();
    match places.filter(|_| by_bus && !has_mig) {
        _ if allocated.is_empty() => has_mig.then(|| chosen.iter().map(GpuDevice::uuid).collect::<Vec<_>>().join(",")),
        Some(places) => Some(places.join(",")),
        None => Some(allocated.join(",")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::inventory::Inventory;

    #[test]
    fn the_inventory_goes_before_ssh() {
        let facts = Facts::parse(
            "ssh 192.168.0.5\naddr lo 127.0.0.1/8\naddr eth0 192.168.0.5/24\naddr ib0 10.0.0.5/24\ncores 8\n",
        );
        let mut node = Inventory::local("n", "i").nodes.remove(0);
        let place = |node: &Node| endpoint(node, &facts).map(|e| format!("{} {}", e.address, e.interface));
        assert_eq!(place(&node).unwrap(), "192.168.0.5 eth0");
        node.interface = Some("ib0".into());
        assert_eq!(place(&node).unwrap(), "10.0.0.5 ib0");
        node.address = Some("192.168.0.5".parse().unwrap());
        assert_eq!(place(&node).unwrap_err(), "the address 192.168.0.5 is on eth0, not on ib0");
        // what the inventory says holds, even where no launcher could use it
        node.interface = Some("eth9".into());
        node.address = None;
        assert!(place(&node).unwrap_err().starts_with("the interface eth9 does not exist"));
        node.address = Some("1.2.3.4".parse().unwrap());
        assert!(place(&node).unwrap_err().contains("no interface of the node has the address 1.2.3.4"));
        assert_eq!(slots(&node, &facts), 8);
        node.gpus = Gpus::Count(4);
        assert_eq!((slots(&node, &facts), known_slots(&node)), (4, Some(4)));
        assert_eq!(
            missing_gpus(&node, &Facts { nvidia_smi: NvidiaSmi::Listed, ..facts.clone() }).unwrap(),
            "the inventory requires 4, nvidia-smi lists 0"
        );
    }

    #[test]
    fn an_address_is_found_by_its_label() {
        let addresses = "addr eth0 192.168.0.5/24 eth0\naddr eth0 10.0.0.5/24 eth0\naddr eth0 10.0.1.5/24 eth0:1\n";
        let place = |ssh: &str| {
            let facts = Facts::parse(&format!("ssh {ssh}\n{addresses}addr eth1 10.0.2.5/24 eth1\n"));
            let place = endpoint(&Inventory::local("n", "i").nodes[0], &facts).unwrap();
            (place.interface, place.label, place.network.unwrap(), place.is_ambiguous)
        };
        let expected =
            |interface: &str, label: &str, network: &str, many| (interface.into(), label.into(), network.into(), many);
        assert_eq!(place("192.168.0.5"), expected("eth0", "eth0", "192.168.0.0/24", true));
        assert_eq!(place("10.0.0.5"), expected("eth0", "eth0", "10.0.0.0/24", true));
        assert_eq!(place("10.0.1.5"), expected("eth0", "eth0:1", "10.0.1.0/24", false));
        assert_eq!(place("10.0.2.5"), expected("eth1", "eth1", "10.0.2.0/24", false));
    }

    #[test]
    fn interfaces_that_lead_to_no_other_machine() {
        for name in ["lo", "docker0", "docker_gwbridge", "podman1", "cni-podman0", "cali12ab", "lxcbr0", "lxdbr0"] {
            assert!(is_virtual(name), "{name}");
        }
        for name in ["virbr0-nic", "veth01", "br-0123456789ab"] {
            assert!(is_virtual(name), "{name}");
        }
        for name in ["eth0", "ib0", "br0", "br-lan", "br-1", "br-0123456789abc", "bond0", "flannel.1", "local0"] {
            assert!(!is_virtual(name), "{name}");
        }
    }

    #[test]
    fn the_gpus_of_a_node() {
        let facts = Facts::parse(
            "cores 8\nnvidia-smi yes\ngpu GPU 0: NVIDIA H200 (UUID: GPU-aa)\ngpu GPU 1: NVIDIA H200 (UUID: GPU-bb)\n\
             gpu exit 0\nmig exit 0\n",
        );
        let list = |words: &[&str]| Gpus::List(words.iter().map(|w| (*w).to_owned()).collect());
        let devices = |words: &[&str]| GpuRequest::Devices(words.iter().map(|w| (*w).to_owned()).collect());
        for (gpus, request, chosen, slots_there, missing) in [
            (Gpus::Auto, GpuRequest::All, "GPU-aa GPU-bb", 2, None),
            (Gpus::All, GpuRequest::All, "GPU-aa GPU-bb", 2, None),
            (Gpus::Count(0), GpuRequest::None, "", 8, None),
            (Gpus::Count(1), GpuRequest::First(1), "GPU-aa", 1, None),
            (Gpus::Count(2), GpuRequest::All, "GPU-aa GPU-bb", 2, None),
            (Gpus::Count(3), GpuRequest::First(3), "GPU-aa GPU-bb", 3, Some("requires 3, nvidia-smi lists 2")),
            (list(&["1"]), devices(&["1"]), "GPU-bb", 1, None),
            (list(&["GPU-bb", "0"]), devices(&["GPU-bb", "0"]), "GPU-aa GPU-bb", 2, None),
            (
                list(&["0", "2"]),
                devices(&["0", "2"]),
                "GPU-aa",
                2,
                Some("requires 2, nvidia-smi lists 0 GPU-aa, 1 GPU-bb"),
            ),
            (list(&["1", "GPU-bb"]), devices(&["1", "GPU-bb"]), "GPU-bb", 2, Some("names 1 GPU-bb twice")),
        ] {
            let node = Node { gpus: gpus.clone(), ..Node::default() };
            assert_eq!(gpu_request(&node, &facts), request, "{gpus:?}");
            let uuids: Vec<String> = chosen_gpus(&node, &facts).iter().map(|device| device.uuid().to_owned()).collect();
            assert_eq!((uuids.join(" ").as_str(), slots(&node, &facts)), (chosen, slots_there), "{gpus:?}");
            let words = missing_gpus(&node, &facts);
            assert_eq!(words.is_some(), missing.is_some(), "{gpus:?}: {words:?}");
            assert!(words.unwrap_or_default().contains(missing.unwrap_or_default()), "{gpus:?}");
        }
        let bare = Facts { cores: 8, ..Facts::default() };
        let of = |gpus: Gpus| gpu_request(&Node { gpus, ..Node::default() }, &bare);
        assert_eq!(
            (of(Gpus::Auto), of(Gpus::All), of(Gpus::Count(2))),
            (GpuRequest::None, GpuRequest::All, GpuRequest::First(2))
        );
        let jetson = Facts { has_nvidia_device: true, ..bare.clone() };
        for (gpus, request) in [(Gpus::Auto, GpuRequest::Unstated), (Gpus::Count(0), GpuRequest::None)] {
            let node = Node { gpus, ..Node::default() };
            assert_eq!((gpu_request(&node, &jetson), least_gpus(&node, &jetson)), (request, 0));
        }
        let all = Node { gpus: Gpus::All, ..Node::default() };
        assert_eq!(
            (missing_gpus(&all, &bare), slots(&all, &bare)),
            (None, 8),
            "a machine without nvidia-smi says nothing"
        );
        assert!(missing_gpus(&all, &Facts { nvidia_smi: NvidiaSmi::Listed, ..bare }).is_some());
    }

    #[test]
    fn mig_devices_are_devices_of_their_own() {
        let text = "cores 8\nnvidia-smi yes\nmig 0, Enabled\nmig exit 0\ngpu GPU 0: NVIDIA A100 (UUID: GPU-aa)\n\
                    gpu   MIG 3g.20gb     Device  0: (UUID: MIG-c6d4)\ngpu   MIG 3g.20gb     Device  1: (UUID: \
                    MIG-cba6)\n\
                    gpu GPU 1: NVIDIA A100 (UUID: GPU-bb)\ngpu exit 0\n";
        let facts = Facts::parse(text);
        let node = |gpus: Gpus| Node { gpus, ..Node::default() };
        let list = |ids: &[&str]| node(Gpus::List(ids.iter().map(|id| (*id).to_owned()).collect()));
        let devices = |ids: &[&str]| GpuRequest::Devices(ids.iter().map(|id| (*id).to_owned()).collect());
        for (node, request, chosen, slots_there) in [
            (node(Gpus::Auto), GpuRequest::All, 3, 3),
            (node(Gpus::Count(3)), GpuRequest::All, 3, 3),
            (node(Gpus::Count(2)), devices(&["MIG-c6d4", "MIG-cba6"]), 2, 2),
            (list(&["MIG-CBA6", "1"]), devices(&["MIG-CBA6", "1"]), 2, 2),
        ] {
            let found = (gpu_request(&node, &facts), chosen_gpus(&node, &facts).len(), slots(&node, &facts));
            assert_eq!(found, (request, chosen, slots_there), "{:?}", node.gpus);
            assert_eq!((missing_gpus(&node, &facts), least_gpus(&node, &facts)), (None, chosen), "{:?}", node.gpus);
        }
        let divided = missing_gpus(&list(&["0"]), &facts).unwrap();
        assert_eq!(divided, "the inventory requires 0, nvidia-smi lists MIG-c6d4, MIG-cba6, 1 GPU-bb");
        let none = Facts::parse(
            "cores 8\nnvidia-smi yes\nmig 0, Enabled\nmig exit 0\ngpu GPU 0: NVIDIA A100 (UUID: GPU-aa)\ngpu exit 0\n",
        );
        let missing = |gpus: Gpus| missing_gpus(&node(gpus), &none);
        assert_eq!(missing(Gpus::Auto).unwrap(), "no MIG devices were created on its GPUs in MIG mode (0)");
        assert_eq!((missing(Gpus::All).is_some(), missing(Gpus::Count(1)).is_some()), (true, true));
        assert_eq!(missing(Gpus::Count(0)), None);
    }

    #[test]
    fn gpus_that_are_not_known_are_neither_none_nor_cores() {
        let failed = Facts::parse("cores 8\nnvidia-smi yes\ngpu No devices were found\ngpu exit 6\nmig exit 6\n");
        let node = |gpus: Gpus| Node { gpus, ..Node::default() };
        for gpus in [Gpus::Auto, Gpus::All] {
            assert_eq!(
                (slots(&node(gpus.clone()), &failed), gpu_failure(&node(gpus), &failed)),
                (0, Some(&GpuQueryFailure::Said("No devices were found".into())))
            );
        }
        assert_eq!(slots(&Node { slots: Some(2), ..Node::default() }, &failed), 2);
        assert_eq!((slots(&node(Gpus::Count(4)), &failed), missing_gpus(&node(Gpus::Count(4)), &failed)), (4, None));
        assert!(gpu_failure(&node(Gpus::Count(4)), &failed).is_some());
        assert_eq!((slots(&node(Gpus::Count(0)), &failed), gpu_failure(&node(Gpus::Count(0)), &failed)), (8, None));
        let without = Facts::parse("cores 8\n");
        assert_eq!((slots(&node(Gpus::Auto), &without), gpu_failure(&node(Gpus::Auto), &without)), (8, None));
    }

    #[test]
    fn ranks_get_indices_as_their_container_numbers_gpus() {
        let facts = Facts::parse(
            "nvidia-smi yes\nmig exit 0\ngpu GPU 0: A (UUID: GPU-aa)\ngpu GPU 1: A (UUID: GPU-bb)\ngpu GPU 2: A (UUID: \
             GPU-cc)\n\
             gpu exit 0\n",
        );
        let node = Node { gpus: Gpus::List(vec!["2".into(), "1".into()]), ..Node::default() };
        let variables = |allocated: &[&str], order: Option<&str>| {
            let allocated: Vec<String> = allocated.iter().map(|uuid| (*uuid).to_owned()).collect();
            let variables = gpu_variables(&node, &facts, &allocated, order, false);
            variables.into_iter().map(|(name, value)| format!("{name}={value}")).collect::<Vec<_>>().join(" ")
        };
        let by_bus = "CUDA_DEVICE_ORDER=PCI_BUS_ID";
        // the container has GPU-bb and GPU-cc
        assert_eq!(variables(&["GPU-cc"], None), format!("{by_bus} CUDA_VISIBLE_DEVICES=1"));
        assert_eq!(variables(&["GPU-bb", "GPU-cc"], None), format!("{by_bus} CUDA_VISIBLE_DEVICES=0,1"));
        assert_eq!(variables(&[], None), by_bus);
        assert_eq!(variables(&["GPU-cc"], Some("PCI_BUS_ID")), "CUDA_VISIBLE_DEVICES=1");
        // a process of the login sees the other one, too
        let of_process = |node: &Node, allocated: &[String]| {
            let variables = gpu_variables(node, &facts, allocated, Some("PCI_BUS_ID"), true);
            variables.into_iter().map(|(name, value)| format!("{name}={value}")).collect::<Vec<_>>().join(" ")
        };
        assert_eq!(of_process(&node, &["GPU-cc".to_owned()]), "CUDA_VISIBLE_DEVICES=2");
        assert_eq!(of_process(&node, &[]), "CUDA_VISIBLE_DEVICES=1,2");
        assert_eq!(of_process(&Node { gpus: Gpus::Auto, ..node.clone() }, &[]), "");
        assert_eq!(of_process(&Node { gpus: Gpus::Count(0), ..node.clone() }, &[]), "CUDA_VISIBLE_DEVICES=");
        // CUDA numbers them in an order that is not known
        assert_eq!(variables(&["GPU-cc"], Some("FASTEST_FIRST")), "CUDA_VISIBLE_DEVICES=GPU-cc");
        assert_eq!(gpu_variables(&node, &Facts { gpus: Vec::new(), ..facts.clone() }, &[], Some("x"), false), []);
        assert_eq!(gpu_variables(&Node { gpus: Gpus::Count(0), ..node.clone() }, &facts, &[], None, false), []);
        let mig = Facts::parse(
            "nvidia-smi yes\nmig exit 0\ngpu GPU 0: A (UUID: GPU-aa)\ngpu   MIG 3g.20gb     Device  0: (UUID: MIG-1)\n\
             gpu   MIG 3g.20gb     Device  1: (UUID: MIG-2)\ngpu exit 0\n",
        );
        let of_mig = |allocated: &[String]| gpu_variables(&Node::default(), &mig, allocated, None, false)[1].1.clone();
        assert_eq!((of_mig(&["MIG-2".to_owned()]), of_mig(&[])), ("MIG-2".into(), "MIG-1,MIG-2".into()));
    }

    #[test]
    fn ssh_over_ipv6_gives_the_ipv4_address_beside_it() {
        let node = Inventory::local("n", "i").nodes.remove(0);
        let both = "addr lo 127.0.0.1/8\naddr lo ::1/128\naddr eth0 fe80::1/64\naddr eth0 10.0.0.1/24\n\
                    addr eth1 fe80::1/64\naddr eth1 fd00::1/64\naddr eth1 192.168.0.1/24\naddr eth2 fd01::1/64\n";
        let place = |ssh: &str| {
            let facts = Facts::parse(&format!("ssh {ssh}\n{both}"));
            endpoint(&node, &facts).map(|e| format!("{} {}", e.address, e.interface))
        };
        assert_eq!(place("fd00::1").unwrap(), "192.168.0.1 eth1");
        // two interfaces with one link-local address: the zone tells which
        assert_eq!(place("fe80::1%eth1").unwrap(), "192.168.0.1 eth1");
        assert_eq!(place("fe80::1%eth0").unwrap(), "10.0.0.1 eth0");
        assert_eq!(
            place("fd01::1").unwrap_err(),
            "ssh reached it at the IPv6 address fd01::1, and eth2 has no IPv4 address"
        );
        assert!(place("fd02::1").unwrap_err().starts_with("no interface of the node has the address fd02::1"));
    }

    #[test]
    fn an_ipv6_address_of_the_inventory_is_taken_as_it_is() {
        let facts = Facts::parse("ssh 10.0.0.1\naddr eth0 10.0.0.1/24\naddr eth0 fd00::1/64\naddr ib0 fe80::2/64\n");
        let mut node = Inventory::local("n", "i").nodes.remove(0);
        node.address = Some("fd00::1".parse().unwrap());
        assert_eq!(endpoint(&node, &facts).unwrap().address, node.address.unwrap());
        node = Node { address: None, interface: Some("eth0".into()), ..node };
        assert_eq!(endpoint(&node, &facts).unwrap().address.to_string(), "10.0.0.1");
        node.interface = Some("ib0".into());
        assert!(endpoint(&node, &facts).is_err(), "a link-local address means nothing elsewhere");
    }

    #[test]
    fn a_tunnel_is_no_place_unless_there_is_nobody_else() {
        let mut inventory = Inventory::local("n", "i");
        let node = inventory.nodes[0].clone();
        for ssh in ["127.0.0.1", "::1"] {
            let facts =
                Facts::parse(&format!("ssh {ssh}\naddr lo 127.0.0.1/8\naddr lo ::1/128\naddr eth0 10.0.0.1/24\n"));
            inventory.nodes.truncate(1);
            assert_eq!(place(&inventory, &node, &facts), Ok(alone()));
            inventory.nodes.push(Node { name: "other".into(), ..node.clone() });
            let words = place(&inventory, &node, &facts).unwrap_err();
            assert_eq!(
                words,
                format!("ssh reached it at {ssh}, for example through a tunnel, where no other node can reach it")
            );
            let named = Node { interface: Some("eth0".into()), ..node.clone() };
            assert_eq!(place(&inventory, &named, &facts).unwrap().address.to_string(), "10.0.0.1");
        }
        // without ssh nothing is known, and nothing needs to be
        inventory.nodes.truncate(1);
        assert_eq!(place(&inventory, &node, &Facts::default()), Ok(alone()));
    }
}
