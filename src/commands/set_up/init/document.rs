//! The document of `init`.

use crate::document::NodeEntry;
use crate::init::draft::{DraftNode, Probe};
use crate::init::machines::Host;
use crate::model::engine::EngineName;
use crate::node::gpus::Gpu;
use schemars::JsonSchema;
use serde::Serialize;
use std::path::Path;

/// `init`.
#[derive(Debug, Serialize, JsonSchema)]
pub struct InitDocument {
    /// The file that was written.
    pub file: String,
    /// The machines.
    pub nodes: Vec<NodeEntry<InitNode>>,
}

/// A machine that was given to `init`. One that could not be read has `error`; with `--no-probe` it has neither `error`
/// nor `found`.
#[derive(Debug, Serialize, JsonSchema)]
pub struct InitNode {
    /// The machine as ssh is given it.
    #[serde(flatten)]
    pub host: Host,
    /// The facts of the machine.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub found: Option<FoundMachine>,
    /// The earlier machine that is the same one, so this one was left out.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub same_as: Option<String>,
}

/// The facts of a machine that `init` found.
#[derive(Debug, Serialize, JsonSchema)]
pub struct FoundMachine {
    /// The machine's own name.
    pub hostname: String,
    /// The address that the node will have; null if it is not clear.
    pub address: Option<String>,
    /// All its addresses.
    pub addresses: Vec<String>,
    /// Processor cores.
    pub cores: u32,
    /// Its GPUs.
    pub gpus: Vec<Gpu>,
    /// The way in which root is obtained: `login` or `sudo`; null if it cannot be.
    pub root: Option<String>,
    /// The version of the Docker Engine, or null.
    pub docker: Option<String>,
    /// The version of Podman if that is the machine's engine, or null.
    pub podman: Option<String>,
    /// The requested images that the machine has.
    pub images: Vec<String>,
    /// Reasons why the machine cannot be a node yet.
    pub concerns: Vec<String>,
}

pub(in crate::commands) fn details(file: &Path, entries: &[DraftNode]) -> InitDocument {
    InitDocument { file: file.display().to_string(), nodes: entries.iter().map(node).collect() }
}

fn node(entry: &DraftNode) -> NodeEntry<InitNode> {
    let details =
        InitNode { host: entry.host.clone(), found: entry.probe().map(machine), same_as: entry.same_as.clone() };
    NodeEntry { error: entry.error().cloned(), ..NodeEntry::new(&entry.name, entry.error().is_none(), details) }
}

fn machine(probe: &Probe) -> FoundMachine {
    let answered = probe.engine.clone().and_then(Result::ok);
    let version = |name| answered.clone().filter(|_| probe.engine_name == name);
    FoundMachine {
        hostname: probe.facts.hostname.clone(),
        address: address(probe),
        addresses: probe.facts.network.addresses.iter().map(|(_, address)| address.to_string()).collect(),
        cores: probe.facts.cores,
        gpus: probe.facts.gpus.clone(),
        root: probe.root.clone().and_then(Result::ok),
        docker: version(EngineName::Docker),
        podman: version(EngineName::Podman),
        images: probe.images.clone(),
        concerns: probe.concerns().into_iter().map(|(what, _)| what).collect(),
    }
}

/// Returns the address that the node will have, if it is clear.
pub(super) fn address(probe: &Probe) -> Option<String> {
    probe.address().map(|(_, address)| address.to_string())
}
