//! The encrypted network of scripted nodes. Two of them reach each other if each has the other's key, as it is.

use super::scripts::variable;
use super::state::NodeState;
use super::{Node, Own};
use crate::model::mesh::NetworkFile;
use crate::node::mesh::hash;
use crate::text::digest;
use base64::Engine as _;
use serde_json::{Map, Value, json};
use std::collections::{BTreeMap, BTreeSet};

/// The part of a scripted node in the encrypted network.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Mesh {
    /// Its `network.json`; none before the first one.
    pub file: Option<String>,
    /// Its private key, as a number.
    pub key: Option<usize>,
    /// The key that takes its place.
    pub new_key: Option<usize>,
    /// Number of keys that were ever made here.
    pub made: usize,
    /// The programs that it has, as they were sent.
    pub programs: String,
    /// Number of times that its agent was started again.
    pub restarts: usize,
    /// The kind and the words of its agent's problem, if it has one.
    pub problem: Option<(&'static str, &'static str)>,
    /// The nodes whose packets do not arrive here.
    pub blocks: BTreeSet<String>,
    /// The nodes whose TCP connections do not.
    pub blocks_tcp: BTreeSet<String>,
}

impl Mesh {
    /// Its network, as far as it knows it.
    pub fn network(&self) -> Option<NetworkFile> {
        serde_json::from_str(self.file.as_ref()?).ok()
    }
}

impl NodeState {
    /// Returns the public key of a private one.
    pub fn mesh_key(&self, number: usize) -> String {
        let hash = digest::hash(format!("{} {number}", self.hostname).as_bytes());
        base64::engine::general_purpose::STANDARD.encode(hash)
    }

    /// Returns the node's public key, whose private one is made if it is missing.
    fn own_mesh_key(&mut self) -> String {
        let key = *self.mesh.key.get_or_insert_with(|| made(&mut self.mesh.made));
        self.mesh_key(key)
    }

    /// Returns the public half of the key that takes its place, which is made if it is missing.
    fn new_mesh_key(&mut self) -> String {
        let key = *self.mesh.new_key.get_or_insert_with(|| made(&mut self.mesh.made));
        self.mesh_key(key)
    }

    /// Returns whether the agent of the encrypted network runs.
    fn has_agent(&self) -> bool {
        self.container("hmesh").is_some_and(|container| container.state == "running")
    }

    /// `mesh/install.sh`.
    pub(super) fn install_mesh(&mut self, text: &str) -> String {
        let (files, network) = (variable(text, "files"), variable(text, "network"));
        if !network.is_empty() {
            self.mesh.file = Some(network);
        }
        let has_changed = !files.is_empty() && files != self.mesh.programs;
        if has_changed {
            self.mesh.programs = files;
        }
        if has_changed { "changed\n".into() } else { String::new() }
    }

    /// `mesh/remove.sh`.
    pub(super) fn remove_mesh(&mut self) -> String {
        let made = self.mesh.made;
        let before = std::mem::replace(&mut self.mesh, Mesh { made, ..Mesh::default() });
        if before.programs.is_empty() { String::new() } else { "removed\n".into() }
    }
}

impl Node {
    /// Returns the lines of `node/facts.sh` about the encrypted network.
    pub(super) fn mesh_facts(&self) -> String {
        let state = self.mesh_state();
        self.edit(|node| {
            let Some(file) = &node.mesh.file else { return String::new() };
            let mut text = format!("network-file {file}\n");
            if let Some(state) = state {
                text.push_str(&format!("network-state {state}\n"));
                let network = node.mesh.network().expect("a network");
                text.push_str(&format!("addr hmesh {}/16\n", network.address));
            }
            text
        })
    }

    /// `mesh/state.sh`.
    pub(super) fn print_mesh_state(&self) -> String {
        let state = self.mesh_state().map(|state| state.to_string()).unwrap_or_default();
        format!("{}\n{state}", self.edit(|node| node.clock()))
    }

    /// Returns the state that its agent reports; none if it does not run, or knows no network.
    fn mesh_state(&self) -> Option<Value> {
        let mut inner = self.nodes.inner();
        let node = inner.states.get_mut(&self.name).filter(|node| node.has_agent())?;
        let network = node.mesh.network()?;
        let named = network.nodes.iter().find(|known| known.name == network.node).map(|known| &known.public_key);
        if let Some(key) = node.mesh.new_key.filter(|key| named == Some(&node.mesh_key(*key))) {
            (node.mesh.key, node.mesh.new_key) = (Some(key), None);
        }
        let (own_key, clock) = (node.own_mesh_key(), node.clock());
        let states = &inner.states;
        let node = &states[&self.name];
        // an agent without a network knows no peers
        let is_well = node.mesh.problem.is_none();
        let others = network.nodes.iter().filter(|other| is_well && other.name != network.node);
        let peers: Map<String, Value> = others
            .map(|other| {
                let reached = reaches(states, &network, &own_key, &other.name);
                let tcp = reached.then(|| !states[&other.name].mesh.blocks_tcp.contains(&self.name));
                let state = if reached { "direct" } else { "unreachable" };
                (other.name.clone(), json!({ "state": state, "tcp": tcp }))
            })
            .collect();
        let problem = node.mesh.problem.map(|(kind, text)| json!({ "kind": kind, "text": text }));
        let digest = hash(node.mesh.file.as_ref()?);
        Some(json!({
            "time": clock, "pid": 7, "network": digest, "kind": "kernel", "public_key": own_key, "problem": problem,
            "peers": peers,
        }))
    }

    /// `agent.py DIR key`, or `new-key`, in the container.
    pub(super) async fn print_mesh_key(&self, which: &str, mut own: Own) -> i32 {
        let call = format!("agent.py {which}");
        if let Some(words) = self.arrives(&call).await {
            return own.fail(&words).await;
        }
        if !self.edit(|state| state.has_agent()) {
            return own.fail("No such container: hmesh").await;
        }
        let key = self.edit(|state| if which == "key" { state.own_mesh_key() } else { state.new_mesh_key() });
        self.ends(&call).await;
        own.say(&format!("{key}\n")).await;
        0
    }

    /// Ends the agent, which starts again.
    pub(super) async fn end_mesh_agent(&self, mut own: Own) -> i32 {
        if let Some(words) = self.arrives("end the agent").await {
            return own.fail(&words).await;
        }
        self.edit(|state| state.mesh.restarts += 1);
        self.ends("end the agent").await;
        0
    }
}

/// Returns the number of a new key.
fn made(count: &mut usize) -> usize {
    *count += 1;
    *count
}

/// Returns whether a node reaches another one: each has the other's key and address, as they are.
fn reaches(states: &BTreeMap<String, NodeState>, network: &NetworkFile, own_key: &str, other: &str) -> bool {
    let (Some(node), Some(state)) = (states.get(&network.node), states.get(other)) else { return false };
    let Some(seen) = state.mesh.network().filter(|_| state.has_agent()) else { return false };
    let known = |file: &NetworkFile, name: &str| {
        file.nodes.iter().find(|node| node.name == name).map(|node| (node.public_key.clone(), node.address))
    };
    let other_key = state.mesh.key.map(|key| state.mesh_key(key));
    let knows_it = known(network, other) == other_key.map(|key| (key, seen.address));
    let is_known = known(&seen, &network.node) == Some((own_key.to_owned(), network.address));
    let is_blocked = state.mesh.blocks.contains(&network.node) || node.mesh.blocks.contains(other);
    let is_well = node.mesh.problem.is_none() && state.mesh.problem.is_none();
    knows_it && is_known && !is_blocked && is_well && seen.port == network.port
}
