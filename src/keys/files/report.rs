//! `keys status`: what is right and what is wrong with each node's key directory, and the cure.

use super::directory::{Desired, Keys, remarks};
use super::lines::{bare, pins};
use super::pair::{Keyring, our_keys};
use super::public::{Described, describe};
use super::{AUTHORIZED_KEYS, KNOWN_HOSTS, text};
use crate::inventory::{Inventory, Node};
use crate::node::facts::Facts;
use crate::text::nodeset;
use schemars::JsonSchema;
use serde::Serialize;

/// Repairs the directories.
const PUSH: &str = "hvdctl keys push";
/// Finishes a rotation.
const ROTATE: &str = "hvdctl keys rotate";

/// A fault.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, JsonSchema)]
#[schemars(rename = "KeyFault")]
pub struct Fault {
    /// What is wrong.
    pub text: String,
    /// The command that cures it.
    pub cure: &'static str,
}

/// A node's row.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, JsonSchema)]
#[schemars(rename = "NodeKeys")]
pub struct Row {
    /// The node.
    #[serde(skip)]
    pub node: String,
    /// Whether it is the master.
    pub master: bool,
    /// The key pair, on the master.
    pub key: Option<Described>,
    /// Private keys that must not be there.
    pub stray: Vec<String>,
    /// The fingerprint of the cluster's key that the node lets in.
    pub fingerprint: Option<String>,
    /// How many more of the cluster's keys it lets in.
    pub further: usize,
    /// Files and directories with a wrong owner or mode, with both as seen.
    pub modes: Vec<String>,
    /// Whether it lets in exactly the master's key, with the right restrictions; `None` where the master was not seen.
    pub agreed: Option<bool>,
    /// Whether every node pins the host key that this one has.
    pub pinned: bool,
    /// What is wrong.
    pub faults: Vec<Fault>,
    /// What one should know, and is no fault that a command cures.
    pub remarks: Vec<String>,
}

/// All of it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Report {
    /// A row for each node that was seen.
    pub rows: Vec<Row>,
    /// What a rotation has left to do.
    pub rotation: Option<Fault>,
}

impl Report {
    /// Whether nothing is wrong.
    pub fn is_clean(&self) -> bool {
        self.rotation.is_none() && self.rows.iter().all(|row| row.faults.is_empty())
    }
}

/// Compares the observed directories with the desired ones.
pub fn report(inventory: &Inventory, nodes: &[(&Node, &Facts)]) -> Report {
    let cluster = &inventory.cluster.name;
    let ring = Keyring::of_master(inventory, nodes);
    let keys = ring.as_ref().and_then(Keys::to_push);
    let known = keys.is_some();
    let keys = keys.unwrap_or(Keys { let_in: Vec::new(), keep_ours: true, pair: None });
    let desired = Desired::observed(inventory, nodes, keys.clone());

    let row = |(node, facts): &(&Node, &Facts)| {
        let name = &node.name;
        let master = ring.as_ref().filter(|_| node.master);
        let changes = desired.changes(node, facts, None);
        let stray: Vec<String> = changes.removes.into_iter().filter(|name| !name.ends_with(".pub")).collect();
        let which = if node.master { "which is not in use" } else { "which launches nothing" };
        let ours = our_keys(facts, cluster);
        let let_in = keys.let_in.iter().map(|key| bare(key)).find(|key| ours.contains(key));
        let disagreement = if known { disagreement(&desired, &keys, facts, &ours) } else { None };
        let unpinned = unpinned(&desired, node, nodes);
        let mut pins = pins(text(facts, KNOWN_HOSTS), cluster).into_iter();
        let faults = [
            master.and_then(pair_fault),
            list(&stray).map(|names| format!("a private key ({names}) lies on {name}, {which}")),
            list(&changes.repairs).map(|names| format!("wrong mode or owner on {name}: {names}")),
            disagreement.map(|words| format!("{name} {words}")),
            unpinned.clone(),
            pins.any(|pin| pin.member(desired.members()).is_none())
                .then(|| format!("{name} still pins nodes that the inventory does not have")),
        ];
        Row {
            node: name.clone(),
            master: node.master,
            key: master.and_then(Keyring::described),
            stray,
            fingerprint: let_in.as_ref().or(ours.first()).and_then(|key| describe(key)).map(|key| key.fingerprint),
            further: ours.len().saturating_sub(1),
            modes: changes.repairs,
            agreed: ring.as_ref().map(|_| known && disagreement.is_none()),
            pinned: unpinned.is_none(),
            faults: faults.into_iter().flatten().map(|text| Fault { text, cure: PUSH }).collect(),
            remarks: remarks(inventory, node, facts),
        }
    };
    let rows = nodes.iter().map(row).collect();
    let rotation = ring.and_then(|ring| ring.unfinished());
    let rotation = rotation.map(|words| Fault { text: format!("a rotation is unfinished: {words}"), cure: ROTATE });
    Report { rows, rotation }
}

fn list(names: &[String]) -> Option<String> {
    (!names.is_empty()).then(|| names.join(", "))
}

/// What is wrong with the master's pair itself.
fn pair_fault(ring: &Keyring) -> Option<String> {
    match (&ring.current, &ring.next) {
        (None, _) => Some("the master has no key pair of the cluster".to_owned()),
        (Some(pair), None) if pair.public.is_none() => Some(format!("{}.pub is missing on the master", pair.name)),
        (Some(pair), None) if ring.described().is_none() => Some(format!("{}.pub holds no public key", pair.name)),
        _ => None,
    }
}

/// How a node's `authorized_keys` differs from what it should be.
fn disagreement(desired: &Desired<'_>, keys: &Keys, facts: &Facts, ours: &[String]) -> Option<&'static str> {
    (desired.authorized_keys(facts) != text(facts, AUTHORIZED_KEYS)).then(|| match ours {
        [] => "does not let the cluster's key in",
        _ if !keys.let_in.iter().all(|key| ours.contains(&bare(key))) => "lets another key in than the master has",
        _ if !keys.keep_ours && ours.len() > keys.let_in.len() => "lets an earlier key in, too",
        _ => "does not restrict the key as it should (restrict, and from= the cluster's addresses)",
    })
}

/// The nodes that do not pin a node's host key as they should.
fn unpinned(desired: &Desired<'_>, node: &Node, nodes: &[(&Node, &Facts)]) -> Option<String> {
    let name = &node.name;
    let Some(pin) = desired.pin(name) else { return Some(format!("{name} has no host key for its worker")) };
    let lacks = |facts: &Facts| !text(facts, KNOWN_HOSTS).lines().any(|line| line.trim_end() == pin);
    let on: Vec<String> = nodes.iter().filter(|(_, facts)| lacks(facts)).map(|(other, _)| other.name.clone()).collect();
    (!on.is_empty()).then(|| format!("the host key of {name} is not pinned as it should be on {}", nodeset::fold(&on)))
}
