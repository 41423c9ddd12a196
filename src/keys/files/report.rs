//! `keys status`: what is right and what is wrong with each node's key directory, and the command that repairs it.

use super::directory::{Desired, Keys, warnings};
use super::pair::{Keyring, our_keys};
use super::public::{PublicKey, describe};
use super::{AUTHORIZED_KEYS, KNOWN_HOSTS, WrongMode, text};
use crate::inventory::{Inventory, Node};
use crate::node::facts::Facts;
use crate::text::nodeset;
use crate::text::public_key::bare;
use schemars::JsonSchema;
use serde::Serialize;
use std::collections::BTreeMap;

/// A fault.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, JsonSchema)]
pub struct KeyFault {
    /// The fault as a sentence.
    pub text: String,
    /// The command that repairs it.
    pub hint: &'static str,
}

/// The state of a node's key directory.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, JsonSchema)]
pub struct NodeKeys {
    /// The node.
    #[serde(skip)]
    pub node: String,
    /// True if it is the master.
    pub master: bool,
    /// The key pair, on the master.
    pub key: Option<PublicKey>,
    /// Private keys that must not be there.
    pub unexpected: Vec<String>,
    /// The fingerprint of the cluster's key that the node accepts.
    pub fingerprint: Option<String>,
    /// The number of further keys of the cluster that it accepts.
    pub further: usize,
    /// Files and directories with a wrong owner or mode.
    pub modes: Vec<WrongMode>,
    /// True if it accepts exactly the master's key, with the right restrictions; null if the master was not observed.
    pub agreed: Option<bool>,
    /// True if every node pins the host key that this one has.
    pub pinned: bool,
    /// The faults of the directory.
    pub faults: Vec<KeyFault>,
    /// Conditions that deserve attention and that no command can fix.
    pub warnings: Vec<String>,
}

/// The state of all observed key directories.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct KeyReport {
    /// A row for each observed node.
    pub rows: Vec<NodeKeys>,
    /// The step that completes an unfinished rotation.
    pub rotation: Option<KeyFault>,
}

impl KeyReport {
    /// Returns true if there are no faults.
    pub fn is_clean(&self) -> bool {
        self.rotation.is_none() && self.rows.iter().all(|row| row.faults.is_empty())
    }
}

/// Compares the observed directories with the desired ones.
pub fn report(inventory: &Inventory, nodes: &[(&Node, &Facts)]) -> KeyReport {
    let ring = Keyring::of_master(inventory, nodes);
    let known = ring.as_ref().and_then(Keys::to_push);
    let keys = known.clone().unwrap_or(Keys { authorized: Vec::new(), keep_further: true, pair: None });
    let desired = Desired::new(inventory, nodes, keys.clone(), BTreeMap::new());
    let authorized: Vec<String> = keys.authorized.iter().map(|key| bare(key)).collect();

    let row = |&(node, facts): &(&Node, &Facts)| {
        let name = &node.name;
        let master = ring.as_ref().filter(|_| node.master);
        let changes = desired.changes(node, facts);
        let unexpected: Vec<String> = changes.removes.into_iter().filter(|name| !name.ends_with(".pub")).collect();
        let why = if node.master { "is not in use" } else { "belongs only on the master" };
        let ours = our_keys(facts, &inventory.cluster.name);
        let accepted = authorized.iter().find(|key| ours.contains(key)).or(ours.first());
        let is_authorized = desired.authorized_keys(facts) == text(facts, AUTHORIZED_KEYS);
        let disagreement = (known.is_some() && !is_authorized).then(|| match &ours[..] {
            [] => "does not accept the cluster's key",
            _ if !authorized.iter().all(|key| ours.contains(key)) => "accepts another key than the master's",
            _ if !keys.keep_further && ours.len() > authorized.len() => "still accepts an earlier key",
            _ => "accepts the key without the right restrictions (restrict, and from= the cluster's addresses)",
        });
        let unpinned = unpinned(&desired, node, nodes);
        let faults = [
            master.and_then(pair_fault),
            list(&unexpected).map(|keys| format!("{name} has a private key that {why}: {keys}")),
            list(&changes.repairs.iter().map(ToString::to_string).collect::<Vec<_>>())
                .map(|files| format!("wrong mode or owner on {name}: {files}")),
            disagreement.map(|how| format!("{name} {how}")),
            unpinned.clone(),
            desired.pins_others(facts).then(|| format!("{name} still pins nodes that the inventory does not have")),
        ];
        NodeKeys {
            node: name.clone(),
            master: node.master,
            key: master.and_then(Keyring::described),
            unexpected,
            fingerprint: accepted.and_then(|key| describe(key)).map(|key| key.fingerprint),
            further: ours.len().saturating_sub(1),
            modes: changes.repairs,
            agreed: ring.as_ref().map(|_| known.is_some() && is_authorized),
            pinned: unpinned.is_none(),
            faults: faults.into_iter().flatten().map(|text| KeyFault { text, hint: "hvdctl keys push" }).collect(),
            warnings: warnings(inventory, node, facts),
        }
    };
    let rows = nodes.iter().map(row).collect();
    let rotation = ring.and_then(|ring| ring.unfinished());
    let rotation =
        rotation.map(|left| KeyFault { text: format!("a rotation is unfinished: {left}"), hint: "hvdctl keys rotate" });
    KeyReport { rows, rotation }
}

fn list(names: &[String]) -> Option<String> {
    (!names.is_empty()).then(|| names.join(", "))
}

/// Returns the fault of the master's own pair.
fn pair_fault(ring: &Keyring) -> Option<String> {
    match (&ring.current, &ring.next) {
        (None, _) => Some("the master has no key pair of the cluster".to_owned()),
        (Some(pair), None) if pair.public.is_empty() => Some(format!("{}.pub is missing on the master", pair.name)),
        (Some(pair), None) if ring.described().is_none() => Some(format!("{}.pub is not a public key", pair.name)),
        _ => None,
    }
}

/// The nodes that do not pin a node's host key as they should.
fn unpinned(desired: &Desired<'_>, node: &Node, nodes: &[(&Node, &Facts)]) -> Option<String> {
    let name = &node.name;
    let Some(pin) = desired.pin(name) else { return Some(format!("{name} has no host key for its worker")) };
    let lacks = |facts: &Facts| !text(facts, KNOWN_HOSTS).lines().any(|line| line.trim_end() == pin);
    let on: Vec<String> = nodes.iter().filter(|(_, facts)| lacks(facts)).map(|(other, _)| other.name.clone()).collect();
    (!on.is_empty()).then(|| format!("the host key of {name} is not pinned correctly on {}", nodeset::fold(&on)))
}
