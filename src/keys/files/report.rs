//! `keys status`: what is right and what is wrong with each node's key directory, and the cure.

use super::directory::{Desired, Keys, public_host_key, remarks};
use super::lines::{Pin, bare, known_hosts_names, pins};
use super::pair::{Keyring, our_keys};
use super::public::{Described, describe};
use super::{AUTHORIZED_KEYS, KNOWN_HOSTS, text};
use crate::inventory::{Inventory, Node};
use crate::node::facts::Facts;
use crate::text::nodeset;
use schemars::JsonSchema;
use serde::Serialize;
use std::collections::BTreeMap;

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
    let cluster = &inventory.cluster;
    let ring = nodes.iter().find(|(node, _)| node.master).map(|(_, facts)| Keyring::read(cluster, facts));
    let keys = ring.as_ref().and_then(Keys::to_push);
    let known = keys.is_some();
    let keys = keys.unwrap_or(Keys { let_in: Vec::new(), keep_ours: true, pair: None });
    let desired = Desired::observed(inventory, nodes, keys.clone());
    let pinned: Vec<Pinned> = nodes.iter().map(|(_, facts)| Pinned::read(&desired, &cluster.name, facts)).collect();

    let rows = nodes.iter().zip(&pinned).map(|((node, facts), own_pins)| {
        let name = &node.name;
        let mut faults = Vec::new();
        let mut fault = |text: String, cure| faults.push(Fault { text, cure });
        let master = ring.as_ref().filter(|_| node.master);
        if let Some(text) = master.and_then(pair_fault) {
            fault(text, PUSH);
        }
        let changes = desired.changes(node, facts, None);
        let stray: Vec<String> = changes.removes.into_iter().filter(|name| !name.ends_with(".pub")).collect();
        if !stray.is_empty() {
            let which = if node.master { "which is not in use" } else { "which launches nothing" };
            fault(format!("a private key ({}) lies on {name}, {which}", stray.join(", ")), PUSH);
        }
        if !changes.repairs.is_empty() {
            fault(format!("wrong mode or owner on {name}: {}", changes.repairs.join(", ")), PUSH);
        }

        let ours = our_keys(facts, &cluster.name);
        let let_in = keys.let_in.iter().map(|key| bare(key)).find(|key| ours.contains(key));
        let disagreement = if known { disagreement(&desired, &keys, facts, &ours) } else { None };
        if let Some((words, cure)) = disagreement {
            fault(format!("{name} {words}"), cure);
        }
        let unpinned = unpinned(inventory, node, facts, nodes, &pinned);
        let is_pinned = unpinned.is_empty();
        unpinned.into_iter().for_each(|text| fault(text, PUSH));
        if own_pins.stale {
            fault(format!("{name} still pins nodes that the inventory does not have"), PUSH);
        }
        Row {
            node: name.clone(),
            master: node.master,
            key: master.and_then(Keyring::described),
            stray,
            fingerprint: let_in.as_ref().or(ours.first()).and_then(|key| describe(key)).map(|key| key.fingerprint),
            further: ours.len().saturating_sub(1),
            modes: changes.repairs,
            agreed: ring.as_ref().map(|_| known && disagreement.is_none()),
            pinned: is_pinned,
            faults,
            remarks: remarks(inventory, node, facts),
        }
    });
    let rows = rows.collect();
    let rotation = ring.and_then(|ring| ring.unfinished(&cluster.name, nodes.iter().map(|(_, facts)| *facts)));
    let rotation = rotation.map(|words| Fault { text: format!("a rotation is unfinished: {words}"), cure: ROTATE });
    Report { rows, rotation }
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

/// How a node's `authorized_keys` differs from what it should be, and the cure.
fn disagreement(
    desired: &Desired<'_>,
    keys: &Keys,
    facts: &Facts,
    ours: &[String],
) -> Option<(&'static str, &'static str)> {
    if desired.authorized_keys(facts) == text(facts, AUTHORIZED_KEYS) {
        return None;
    }
    Some(match ours {
        [] => ("does not let the cluster's key in", PUSH),
        _ if !keys.let_in.iter().all(|key| ours.contains(&bare(key))) => {
            ("lets another key in than the master has", PUSH)
        }
        _ if !keys.keep_ours && ours.len() > keys.let_in.len() => ("lets an earlier key in, too", ROTATE),
        _ => ("does not restrict the key as it should (restrict, and from= the cluster's addresses)", PUSH),
    })
}

/// A node's pins by the members that they are about: as they are, and as they should be.
struct Pinned {
    actual: BTreeMap<String, Pin>,
    desired: BTreeMap<String, Pin>,
    /// Whether some are about nodes that the inventory does not have (any more).
    stale: bool,
}

impl Pinned {
    fn read(desired: &Desired<'_>, cluster: &str, facts: &Facts) -> Pinned {
        let by_member = |text: &str| {
            let pins = pins(text, cluster).into_iter();
            pins.filter_map(|pin| Some((pin.member(desired.members())?.clone(), pin))).collect()
        };
        let text = text(facts, KNOWN_HOSTS);
        let stale = pins(text, cluster).iter().any(|pin| pin.member(desired.members()).is_none());
        Pinned { actual: by_member(text), desired: by_member(&desired.known_hosts(facts)), stale }
    }
}

/// Which nodes do not pin a node's host key as it is.
fn unpinned(
    inventory: &Inventory,
    node: &Node,
    facts: &Facts,
    nodes: &[(&Node, &Facts)],
    pinned: &[Pinned],
) -> Vec<String> {
    let Some(key) = public_host_key(facts).map(bare) else {
        return vec![format!("{} has no host key for its worker", node.name)];
    };
    let own = known_hosts_names(&[&node.name], &[], inventory.cluster.port).concat();
    let wrong = nodes.iter().zip(pinned).filter_map(|((other, _), pins)| match pins.actual.get(&own) {
        None => Some(("is not pinned on", other.name.clone())),
        Some(pin) if pin.key != key => Some(("is pinned as another key on", other.name.clone())),
        pin if pin != pins.desired.get(&own) => {
            Some(("is pinned under other names or addresses on", other.name.clone()))
        }
        _ => None,
    });
    let groups = nodeset::alike(wrong).into_iter();
    groups.map(|(words, on)| format!("the host key of {} {words} {}", node.name, nodeset::fold(&on))).collect()
}
