//! Drafts an inventory from the named machines and the probe results.

use crate::checks::preflight::accelerators;
use crate::error::NodeError;
use crate::init::machines::{Host, Machine};
use crate::inventory::Node;
use crate::launch::check_address;
use crate::model::engine::EngineName;
use crate::model::finding::Finding;
use crate::node::facts::Facts;
use crate::node::gpus::{self, GpuDevice, NvidiaSmi};
use crate::node::network::is_virtual;
use crate::text::failure;
use crate::text::nodeset::{self, printable};
use crate::text::units::count;
use crate::transport::access::{EngineFault, Login, NO_DOCKER, START_PODMAN};
use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::net::IpAddr;

/// The parsed output of `src/scripts/node/probe.sh`.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Probe {
    /// The facts of any node.
    pub facts: Facts,
    /// The way in which the login becomes root, `login` or `sudo`, or sudo's message; `None` if the probe did not
    /// report it.
    pub root: Option<Result<String, String>>,
    /// The engine of the machine.
    pub engine_name: EngineName,
    /// The version of the engine, or why it does not answer; `None` where there is none.
    pub engine: Option<Result<String, String>>,
    /// The reason why the engine cannot be used, if it is known without asking the engine.
    pub engine_fault: Option<EngineFault>,
    /// The images that were asked for and are there.
    pub images: Vec<String>,
    /// The highest compute capability of its NVIDIA GPUs, `(9, 0)` for 9.0; `None` if nvidia-smi does not report it.
    pub compute_capability: Option<(u32, u32)>,
    /// The answer of nvidia-smi, if it knows the query and reports no number.
    pub unknown_capability: Option<String>,
}

impl Probe {
    /// Parses the script's lines: `KEY VALUE`.
    pub fn parse(text: &str) -> Probe {
        let login = Login::parse(text);
        let engine_fault = login.engine_fault().filter(|fault| fault.message != NO_DOCKER);
        let engine_name = login.engine_name();
        let mut probe = Probe { facts: Facts::parse(text), engine_name, engine_fault, ..Probe::default() };
        for line in text.lines() {
            let (key, value) = line.split_once(' ').unwrap_or((line, ""));
            let (how, rest) = value.split_once(' ').unwrap_or((value, ""));
            match (key, how) {
                ("root", "login" | "sudo") => probe.root = Some(Ok(how.to_owned())),
                ("root", "no") => probe.root = Some(Err(rest.to_owned())),
                ("docker" | "podman-version", "login" | "sudo") => probe.engine = Some(Ok(rest.to_owned())),
                ("docker" | "podman-version", "no") => probe.engine = Some(Err(rest.to_owned())),
                ("image", _) => probe.images.push(value.to_owned()),
                // a driver that does not know the query is older than the GPUs for which the answer matters
                ("compute-cap", "exit") => {}
                ("compute-cap", _) if value.contains("not a valid field") => {}
                ("compute-cap", _) => match capability(value) {
                    Some(capability) => probe.compute_capability = probe.compute_capability.max(Some(capability)),
                    None => probe.unknown_capability = Some(value.to_owned()),
                },
                _ => {}
            }
        }
        probe
    }

    /// The addresses by which other nodes may reach it: those that launchers can be given, and on no interface for
    /// containers or virtual machines.
    fn candidates(&self) -> Vec<(&str, IpAddr)> {
        let addresses = self.facts.network.addresses.iter().filter(|(name, _)| !is_virtual(name));
        let usable = |address: &IpAddr| {
            let is_local = address.is_loopback() || matches!(address, IpAddr::V4(v4) if v4.is_link_local());
            check_address(*address).is_ok() && !is_local
        };
        addresses.filter(|(_, address)| usable(address)).map(|(name, address)| (name.as_str(), *address)).collect()
    }

    /// Its address on the cluster's network as far as it can be known: the one by which ssh reached it, or the only
    /// one.
    pub fn address(&self) -> Option<(&str, IpAddr)> {
        let candidates = self.candidates();
        let by_ssh = candidates.iter().find(|(_, address)| Some(*address) == self.facts.network.ssh_address);
        by_ssh.or(candidates.first().filter(|_| candidates.len() == 1)).copied()
    }

    /// Returns what keeps it from being a node or needs attention, each with a hint.
    pub fn concerns(&self) -> Vec<(String, String)> {
        let mut concerns = Vec::new();
        let mut add = |what: String, hint: &str| concerns.push((what, hint.to_owned()));
        if let Some(Err(message)) = &self.root {
            if failure::sudo(message) == Some(failure::SudoFailure::PasswordRequired) {
                add("sudo asks for a password".into(), "have the password ready for the next commands");
            } else if !matches!(self.engine, Some(Ok(_))) {
                // a login that may use the engine needs no sudo
                let hint = match self.engine_name {
                    EngineName::Docker => "set `user` to an account that is root or may run sudo",
                    EngineName::Podman => {
                        "set `user` to an account that is root or may run sudo, or start Podman as that user: \
                         systemctl --user enable --now podman.socket, and loginctl enable-linger"
                    }
                };
                add(format!("cannot become root: {message}"), hint);
            }
        }
        match (&self.engine_fault, &self.engine) {
            (Some(EngineFault { message, hint }), _) => add(message.clone(), hint),
            (None, None) => add("Docker is not installed".into(), NO_ENGINE),
            // without root it is unknown whether the engine runs
            (None, Some(Err(message))) if !matches!(self.root, Some(Err(_))) => {
                let start = match self.engine_name {
                    EngineName::Docker => "sudo systemctl start docker",
                    EngineName::Podman => START_PODMAN,
                };
                add(format!("{} does not answer: {message}", self.engine_name.noun()), start);
            }
            _ => {}
        }
        match &self.facts.nvidia_smi {
            NvidiaSmi::Failed(failed) => add(format!("nvidia-smi failed: {failed}"), gpus::hint(failed)),
            NvidiaSmi::Listed if GpuDevice::of(&self.facts.gpus).is_empty() => {
                let hint = "run `nvidia-smi -L` there, then set `gpus`";
                add("nvidia-smi is installed and lists no GPU that programs can use".into(), hint);
            }
            _ => {}
        }
        if let Some(Finding { message, hint, .. }) = accelerators(&Node::default(), &self.facts) {
            add(message, &hint);
        }
        if self.address().is_none() {
            let what = match &list(&self.candidates())[..] {
                "" => "no IPv4 address for the cluster's network was found".to_owned(),
                several => format!("several addresses may be the one on the cluster's network: {several}"),
            };
            add(what, "set `address`");
        }
        concerns
    }

    /// Returns true if both are the same machine under two names.
    fn is(&self, other: &Probe) -> bool {
        let own = |probe: &Probe| -> HashSet<IpAddr> {
            probe.facts.network.addresses.iter().map(|(_, a)| *a).filter(|a| !a.is_loopback()).collect()
        };
        !own(self).is_empty() && own(self) == own(other) && self.facts.hostname == other.facts.hostname
    }
}

/// The hint for a machine without a container engine.
const NO_ENGINE: &str = "install Docker Engine or Podman there; or go without: `runtime = \"process\"` in [cluster] \
                         (docs/guide/without-docker.md), or the cluster's Slurm (docs/guide/slurm.md)";

/// Reads a compute capability such as `9.0`.
fn capability(text: &str) -> Option<(u32, u32)> {
    let (major, minor) = text.trim().split_once('.')?;
    Some((major.parse().ok()?, minor.parse().ok()?))
}

/// The repository of Horovod's own images. Its last ones, of 0.28.1, have CUDA 11.3 and PyTorch 1.12
/// (docker/horovod/Dockerfile).
const HOROVOD: &str = "horovod/horovod";
/// The first compute capability for which CUDA 11.3 and its libraries have no code: Hopper's.
const TOO_NEW: (u32, u32) = (9, 0);

/// The image for these.
const CUDA_12: &str = "use an image with CUDA 12, such as the one that examples/images/cuda12 builds \
     (docs/guide/images.md)";

/// Returns why the GPUs of these machines cannot be used in the image, with a hint, and the machines' names.
pub fn unsupported_gpus(image: &str, entries: &[DraftNode]) -> Option<(Vec<String>, String, &'static str)> {
    let is_horovods = image.strip_prefix(HOROVOD).is_some_and(|tag| tag.is_empty() || tag.starts_with([':', '@']));
    let found = entries.iter().filter(|entry| is_horovods && entry.same_as.is_none());
    let found: Vec<_> = found.filter_map(|entry| Some((&entry.name, entry.probe()?))).collect();
    let with = |is_meant: &dyn Fn(&Probe) -> bool| {
        let meant: Vec<_> = found.iter().filter(|(_, probe)| is_meant(probe)).collect();
        let name = meant.first()?.1.facts.gpus.first().map_or("the GPU", |gpu| &gpu.name);
        Some((meant.iter().map(|(node, _)| (*node).clone()).collect(), name, meant[0].1))
    };
    let needs = "its CUDA is 11.3, and Hopper and later need 11.8";
    if let Some((nodes, name, Probe { compute_capability: Some((major, minor)), .. })) =
        with(&|probe| probe.compute_capability >= Some(TOO_NEW))
    {
        let what = format!("{image} cannot use {name} (compute capability {major}.{minor}): {needs}");
        return Some((nodes, what, CUDA_12));
    }
    let is_unknown = |probe: &Probe| probe.compute_capability.is_none() && probe.unknown_capability.is_some();
    let (nodes, name, probe) = with(&is_unknown)?;
    let reported = probe.unknown_capability.as_deref().unwrap_or_default();
    let what = format!(
        "{image} may not be able to use {name}, whose compute capability is unknown (nvidia-smi reports {}): {needs}",
        printable(reported)
    );
    Some((nodes, what, CUDA_12))
}

fn list(places: &[(&str, IpAddr)]) -> String {
    places.iter().map(|(name, address)| format!("{address} on {name}")).collect::<Vec<_>>().join(", ")
}

/// One machine of the draft.
#[derive(Debug, Clone, PartialEq)]
pub struct DraftNode {
    /// The name of the node; see [`entries`].
    pub name: String,
    /// The machine.
    pub host: Host,
    /// The private key for it, if a file names one.
    pub identity: Option<String>,
    /// Its slots, if a file has them.
    pub slots: Option<u32>,
    /// The result of probing it; `None` if it was not probed.
    pub found: Option<Result<Probe, NodeError>>,
    /// The name of the earlier machine that it is the same as; see [`find_duplicates`].
    pub same_as: Option<String>,
}

impl DraftNode {
    /// Returns the facts of the machine, if it could be probed.
    pub fn probe(&self) -> Option<&Probe> {
        self.found.as_ref()?.as_ref().ok()
    }

    /// Returns the error for which the machine could not be probed.
    pub fn error(&self) -> Option<&NodeError> {
        self.found.as_ref()?.as_ref().err()
    }
}

/// Names the machines: each by its own name, else as its host, unless an earlier one has that name.
pub fn entries(machines: impl IntoIterator<Item = impl Into<Machine>>) -> Vec<DraftNode> {
    let mut taken = HashSet::new();
    let mut entry = |Machine { host, name, identity, slots }: Machine| {
        let port = host.port.map(|port| format!("{}-{port}", host.host));
        let numbered = (1..).map(|n| format!("node-{n}"));
        let mut candidates = name.into_iter().chain([host.host.clone()]).chain(port).chain(numbered);
        let name = candidates.find(|name| name.len() <= 253 && taken.insert(name.clone())).unwrap_or_default();
        DraftNode { name, host, identity, slots, found: None, same_as: None }
    };
    machines.into_iter().map(|machine| entry(machine.into())).collect()
}

/// Puts the machines that could not be probed last, where not every name need be a node: the first one becomes the
/// master.
pub fn unprobed_last(entries: &mut [DraftNode]) {
    entries.sort_by_key(|entry| entry.error().is_some());
}

/// Finds the machines that are named a second time, by what was found on them.
pub fn find_duplicates(entries: &mut [DraftNode]) {
    for i in 1..entries.len() {
        let (earlier, later) = entries.split_at_mut(i);
        let is_same = |other: &&DraftNode| other.probe().zip(later[0].probe()).is_some_and(|(a, b)| a.is(b));
        later[0].same_as = earlier.iter().find(is_same).map(|other| other.name.clone());
    }
}

/// The first of these images that every machine with an answering engine has; otherwise the first.
pub fn image<'i>(wanted: &[&'i str], entries: &[DraftNode]) -> &'i str {
    let probes: Vec<&Probe> =
        entries.iter().filter_map(DraftNode::probe).filter(|probe| matches!(probe.engine, Some(Ok(_)))).collect();
    let everywhere = |image: &&&str| !probes.is_empty() && probes.iter().all(|p| p.images.iter().any(|i| i == **image));
    wanted.iter().find(everywhere).or(wanted.first()).copied().unwrap_or_default()
}

/// The inventory's text. It is one that [`crate::inventory::Inventory::parse`] takes, whatever was found.
pub fn text(name: &str, image: &str, entries: &[DraftNode]) -> String {
    let (name, image) = (quoted(name), quoted(image));
    // the user of all, if they have the same
    let user = entries.first().and_then(|entry| entry.host.user.as_deref());
    let user = user.filter(|user| entries.iter().all(|entry| entry.host.user.as_deref() == Some(user)));
    let default_user = user.map_or("# user = \"workshop\"".to_owned(), |user| format!("user = {}", quoted(user)));
    let mut text = Text(format!(
        "\
# The inventory of a cluster, written by `hvdctl init`. Fields after # are not set: they show the default, or what was
# found on the machine.

[cluster]
name = {name:32} # a different one for each cluster on the same machines
image = {image:31} # of all containers; name a version to keep jobs repeatable
# For NVIDIA's Hopper, Blackwell and later, name an image with CUDA 12; docs/guide/images.md shows how to make it.
# controller = \"gloo\"                   # or \"mpi\", if the image has Open MPI
# key_type = \"rsa\"                      # of the containers' key pair: 4096 bits; or \"ed25519\"
# port = 12345                          # of the workers' sshd, over which they reach each other
# shm_size = \"8g\"                       # /dev/shm of the containers
# connect_timeout_s = 10                # for one node to answer

# What many nodes have in common; each may have its own value.
[defaults]
{default_user:39} # to log in as; otherwise your ssh configuration decides
# ssh_port = 22                         # otherwise your ssh configuration decides
# identity = \"~/.ssh/id_ed25519\"        # otherwise your ssh configuration decides
# jump = \"ana@gate:2222\"                # as ssh -J takes it; otherwise your ssh configuration decides

# The first node is the master: jobs are launched there.
"
    ));
    let mut addresses = HashSet::new();
    for (i, entry) in entries.iter().enumerate() {
        if i > 0 {
            text.line("");
        }
        match &entry.same_as {
            Some(other) => {
                text.line(&format!("# {} is skipped, because it is the same machine as {other}.", entry.host))
            }
            None => node(&mut text, entry, user, &mut addresses),
        }
    }
    text.0
}

/// The groups, for the end of the inventory's text. Each has its entries by their indices; where one is left out, the
/// machine that it is the same as.
pub fn groups(groups: &BTreeMap<String, Vec<usize>>, entries: &[DraftNode]) -> String {
    let mut text = Text(String::new());
    if !groups.is_empty() {
        text.0.push_str("\n# Sets of nodes, for --on @GROUP.\n[groups]\n");
    }
    for (name, members) in groups {
        let node = |index: &usize| entries.get(*index).map(|entry| entry.same_as.as_ref().unwrap_or(&entry.name));
        let nodes: BTreeSet<&String> = members.iter().filter_map(node).collect();
        let nodes: Vec<&String> = nodes.into_iter().collect();
        text.0.push_str(&format!("{} = {}\n", quoted(name), quoted(&nodeset::fold(&nodes))));
    }
    text.0
}

fn node(text: &mut Text, entry: &DraftNode, common_user: Option<&str>, addresses: &mut HashSet<IpAddr>) {
    let host = &entry.host;
    text.line("[[node]]");
    let found = match &entry.found {
        None => "not probed".to_owned(),
        Some(Err(_)) => "could not be probed:".to_owned(),
        Some(Ok(probe)) => found(probe),
    };
    text.field("host", &quoted(&host.host), &found);
    if let Some(error) = entry.error() {
        let message = format!("cannot {}: {}", error.operation, error.message);
        message.lines().for_each(|line| text.line(&format!("#   {line}")));
    }
    if entry.name != host.host {
        text.field("name", &quoted(&entry.name), "name in hvdctl");
    }
    if let Some(user) = host.user.as_deref().filter(|user| Some(*user) != common_user) {
        text.field("user", &quoted(user), "to log in as");
    }
    if let Some(port) = host.port {
        text.field("ssh_port", &port.to_string(), "of the machine's own sshd");
    }
    if let Some(identity) = &entry.identity {
        text.field("identity", &quoted(identity), "your private key for it");
    }
    if let Some(slots) = entry.slots {
        text.field("slots", &slots.to_string(), "most ranks of one job");
    }
    let Some(probe) = entry.probe() else {
        return text.comment("gpus", "\"auto\"", "as many as nvidia-smi lists");
    };
    let gpus = GpuDevice::of(&probe.facts.gpus).len();
    match (&probe.facts.nvidia_smi, gpus) {
        (NvidiaSmi::Failed(_), _) => text.comment("gpus", "\"auto\"", "nvidia-smi failed"),
        (NvidiaSmi::Missing, _) => text.field("gpus", "0", "there is no nvidia-smi"),
        (NvidiaSmi::Listed, 0) => text.comment("gpus", "\"auto\"", "nvidia-smi is installed and lists none"),
        (NvidiaSmi::Listed, n) => text.field("gpus", &n.min(1024).to_string(), &probe.facts.gpus[0].name),
    }
    let slots = if gpus == 0 { probe.facts.cores.max(1) as usize } else { gpus };
    if entry.slots.is_none() {
        text.comment("slots", &slots.min(1024).to_string(), "most ranks of one job");
    }
    let candidates = probe.candidates();
    match probe.address() {
        Some((name, address)) => {
            let others: Vec<_> = candidates.iter().filter(|other| **other != (name, address)).copied().collect();
            let others = if others.is_empty() { String::new() } else { format!("; there is also {}", list(&others)) };
            // a single address that ssh reached needs no field, and no two nodes may have the same
            let is_clear = candidates.len() == 1 && probe.facts.network.ssh_address == Some(address);
            let write = if !is_clear && addresses.insert(address) { Text::field } else { Text::comment };
            write(text, "address", &quoted(&address.to_string()), &format!("on {name}{others}"));
        }
        None => {
            for (name, address) in candidates {
                text.comment("address", &quoted(&address.to_string()), &format!("on {name}"));
            }
        }
    }
    for (what, hint) in probe.concerns() {
        text.line(&format!("# {what}: {hint}"));
    }
}

/// A summary of a machine.
fn found(probe: &Probe) -> String {
    let engine = match &probe.engine {
        Some(Ok(version)) => probe.engine_name.with(version),
        Some(Err(_)) => probe.engine_name.with("unknown"),
        None => "no engine".into(),
    };
    format!("{}, {engine}", count(probe.facts.cores as usize, "core"))
}

/// A value in TOML's own quotes.
fn quoted(text: &str) -> String {
    toml::Value::String(text.to_owned()).to_string()
}

struct Text(String);

impl Text {
    /// A line, without what a comment may not hold in messages of other machines.
    fn line(&mut self, line: &str) {
        let line: String = line.chars().map(|c| if c.is_control() { ' ' } else { c }).take(400).collect();
        self.0.push_str(line.trim_end());
        self.0.push('\n');
    }

    /// A field that is set.
    fn field(&mut self, name: &str, value: &str, comment: &str) {
        self.line(&format!("{:39} # {comment}", format!("{name} = {value}")));
    }

    /// A field that is not set.
    fn comment(&mut self, name: &str, value: &str, comment: &str) {
        self.field(&format!("# {name}"), value, comment);
    }
}

#[cfg(test)]
mod tests;
