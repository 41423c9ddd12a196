//! `keys status`: what is right and what is wrong with each node's key directory, in words and with the cure.

use super::directory::{Desired, Files, Keys, public_host_key, remarks};
use super::lines::{Pin, bare, known_hosts_names, pins};
use super::pair::{Keyring, our_keys};
use super::public::{Described, describe};
use super::{AUTHORIZED_KEYS, KNOWN_HOSTS};
use crate::inventory::{Inventory, Node};
use crate::node::facts::Facts;
use crate::text::nodeset;
use schemars::JsonSchema;
use serde::Serialize;
use std::collections::BTreeMap;

/// Makes the directories right.
const PUSH: &str = "hvdctl keys push";
/// Ends what was begun.
const ROTATE: &str = "hvdctl keys rotate";

/// Something wrong.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, JsonSchema)]
#[schemars(rename = "KeyFault")]
pub struct Fault {
    /// What, in words.
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

/// Compares what was seen with what should be.
pub fn report(inventory: &Inventory, seen: &[(&Node, &Facts)]) -> Report {
    let cluster = &inventory.cluster;
    let ring = seen.iter().find(|(node, _)| node.master).map(|(_, facts)| Keyring::read(cluster, facts));
    let keys = ring.as_ref().and_then(Keys::to_push);
    let known = keys.is_some();
    let keys = keys.unwrap_or(Keys { let_in: Vec::new(), keep_ours: true, files: Files::Left });
    let hosts: Vec<Option<String>> = seen.iter().map(|(_, facts)| public_host_key(facts)).collect();
    let with_host = seen.iter().zip(&hosts).filter_map(|((node, facts), host)| Some((*node, *facts, host.as_deref()?)));
    let desired = Desired::new(inventory, with_host, keys.clone());

    let pinned: Vec<Pinned> = seen.iter().map(|(_, facts)| Pinned::read(&desired, &cluster.name, facts)).collect();
    let rows = seen.iter().zip(&hosts).zip(&pinned).map(|(((node, facts), host), own_pins)| {
        let mut row = Row {
            node: node.name.clone(),
            master: node.master,
            key: ring.as_ref().filter(|_| node.master).and_then(Keyring::described),
            stray: Vec::new(),
            fingerprint: None,
            further: 0,
            modes: Vec::new(),
            agreed: None,
            pinned: host.is_some(),
            faults: Vec::new(),
            remarks: remarks(inventory, node, facts),
        };
        if let Some(ring) = ring.as_ref().filter(|_| node.master) {
            row.fault(pair_fault(ring), PUSH);
        }
        let changes = desired.changes(node, facts, None);
        row.stray = changes.removes.into_iter().filter(|name| !name.ends_with(".pub")).collect();
        let which = if node.master { "which is not in use" } else { "which launches nothing" };
        row.fault(
            list(&row.stray).map(|names| format!("a private key ({names}) lies on {}, {which}", node.name)),
            PUSH,
        );
        row.modes = changes.repairs;
        row.fault(list(&row.modes).map(|names| format!("wrong mode or owner on {}: {names}", node.name)), PUSH);

        let ours = our_keys(facts, &cluster.name);
        let first = keys.let_in.iter().map(|key| bare(key)).find(|key| ours.contains(key)).or(ours.first().cloned());
        row.fingerprint = first.and_then(|key| describe(&key)).map(|described| described.fingerprint);
        row.further = ours.len().saturating_sub(1);
        if ring.is_some() {
            let fault = if known { agreement(&desired, &keys, facts, &ours) } else { None };
            row.agreed = Some(known && fault.is_none());
            if let Some((words, cure)) = fault {
                row.fault(Some(format!("{} {words}", node.name)), cure);
            }
        }
        let own = known_hosts_names(&[&node.name], &[], cluster.port).concat();
        for words in pinning(&own, node, host.as_deref(), seen, &pinned) {
            row.pinned = false;
            row.fault(Some(words), PUSH);
        }
        if own_pins.stale {
            row.fault(Some(format!("{} still pins nodes that the inventory does not have", node.name)), PUSH);
        }
        row
    });
    let rows = rows.collect();
    let rotation = ring.and_then(|ring| ring.unfinished(&cluster.name, seen.iter().map(|(_, facts)| *facts)));
    let rotation = rotation.map(|words| Fault { text: format!("a rotation is unfinished: {words}"), cure: ROTATE });
    Report { rows, rotation }
}

impl Row {
    fn fault(&mut self, text: Option<String>, cure: &'static str) {
        self.faults.extend(text.map(|text| Fault { text, cure }));
    }
}

fn list(words: &[String]) -> Option<String> {
    (!words.is_empty()).then(|| words.join(", "))
}

/// What is wrong with the master's pair itself.
fn pair_fault(ring: &Keyring) -> Option<String> {
    match (&ring.current, &ring.next) {
        (None, _) => Some("the master has no key pair of the cluster".to_owned()),
        (Some(held), None) if held.public.is_none() => Some(format!("{}.pub is missing on the master", held.name)),
        (Some(held), None) if ring.described().is_none() => Some(format!("{}.pub holds no public key", held.name)),
        _ => None,
    }
}

/// How a node's `authorized_keys` differs from what it should be.
fn agreement(
    desired: &Desired<'_>,
    keys: &Keys,
    facts: &Facts,
    ours: &[String],
) -> Option<(&'static str, &'static str)> {
    let text = facts.key_files.get(AUTHORIZED_KEYS).map(|file| file.text.as_str()).unwrap_or_default();
    if desired.authorized_keys(facts) == text {
        return None;
    }
    let wanted: Vec<String> = keys.let_in.iter().map(|key| bare(key)).collect();
    Some(match ours {
        [] => ("does not let the cluster's key in", PUSH),
        _ if !wanted.iter().all(|key| ours.contains(key)) => ("lets another key in than the master has", PUSH),
        _ if !keys.keep_ours && ours.len() > wanted.len() => ("lets an earlier key in, too", ROTATE),
        _ => ("does not restrict the key as it should (restrict, and from= the cluster's addresses)", PUSH),
    })
}

/// A node's pins by the members that they are about: as they lie there, and as they should.
struct Pinned {
    there: BTreeMap<String, Pin>,
    wanted: BTreeMap<String, Pin>,
    /// Whether some are about nodes that the inventory does not have (any more).
    stale: bool,
}

impl Pinned {
    fn read(desired: &Desired<'_>, cluster: &str, facts: &Facts) -> Pinned {
        let text = facts.key_files.get(KNOWN_HOSTS).map(|file| file.text.as_str()).unwrap_or_default();
        let by_member = |text: &str| {
            let pins = pins(text, cluster).into_iter();
            pins.filter_map(|pin| Some((pin.member(desired.members())?.clone(), pin))).collect()
        };
        let stale = pins(text, cluster).iter().any(|pin| pin.member(desired.members()).is_none());
        Pinned { there: by_member(text), wanted: by_member(&desired.known_hosts(facts)), stale }
    }
}

/// Which nodes do not pin a node's host key as it is.
fn pinning(own: &str, node: &Node, host: Option<&str>, seen: &[(&Node, &Facts)], pinned: &[Pinned]) -> Vec<String> {
    let Some(key) = host.map(bare) else { return vec![format!("{} has no host key for its worker", node.name)] };
    let mut wrong: BTreeMap<&str, Vec<String>> = BTreeMap::new();
    for ((other, _), pins) in seen.iter().zip(pinned) {
        let words = match pins.there.get(own) {
            None => "is not pinned on",
            Some(pin) if pin.key != key => "is pinned as another key on",
            Some(pin) if Some(pin) != pins.wanted.get(own) => "is pinned under other names or addresses on",
            Some(_) => continue,
        };
        wrong.entry(words).or_default().push(other.name.clone());
    }
    let words =
        |(words, on): (&str, Vec<String>)| format!("the host key of {} {words} {}", node.name, nodeset::fold(&on));
    wrong.into_iter().map(words).collect()
}
