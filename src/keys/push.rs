//! `keys push` and `keys generate`, and what `keys rotate` has in common with them.

mod rotate;
#[cfg(test)]
mod tests;

pub use rotate::{Rotated, rotate};

use crate::cluster::nodes::{Member, all, facts, for_each_node, split};
use crate::cluster::session::Session;
use crate::error::{Error, NodeError};
use crate::event::{Events, Step};
use crate::inventory::{Cluster, Inventory, KeyType, Node};
use crate::keys::files::{
    AUTHORIZED_KEYS, Changes, CurrentPair, Described, Desired, KNOWN_HOSTS, KeyPair, Keyring, Keys, Kind, MasterPair,
    Put, bare, describe, differing, mode, public_host_key, remarks, tag, text,
};
use crate::keys::key_pair;
use crate::node::facts::Facts;
use crate::runtime::spec::private_key_name;
use crate::secret::Secret;
use crate::text::digest::hex;
use crate::text::quote;
use crate::transport::node::Script;
use base64::Engine as _;
use sha2::{Digest as _, Sha256};
use zeroize::Zeroizing;

const PUSH: &str = concat!(
    include_str!("../scripts/put_file.sh"),
    include_str!("../scripts/keys_lock.sh"),
    include_str!("../scripts/keys_push.sh")
);
const PUBLIC_KEY: &str = include_str!("../scripts/public_key.sh");

/// What was done on one node.
#[derive(Debug)]
pub struct Pushed {
    /// Its name.
    pub node: String,
    /// What was changed; empty when all was in place.
    pub changes: Changes,
}

/// The nodes that were done, and the failures.
pub type Results = (Vec<Pushed>, Vec<NodeError>);

/// Brings the members' directories to the desired state. The private key is made here in memory when the master has none,
/// and goes to the master only. Where the command has to stop, nodes that were not begun are missing in the results.
///
/// # Errors
/// When the master cannot be observed nothing is changed; afterwards every node is finished and the failures are listed.
pub async fn push(
    inventory: &Inventory,
    members: &[Member],
    session: &Session,
    events: &Events,
) -> Result<Results, Error> {
    let cluster = &inventory.cluster;
    let observing = async { Ok(split(events, observe(cluster, members, events).await)) };
    let (nodes, mut failed) = session.cancellation.run(observing).await?;
    if failed.iter().any(|error| error.node == inventory.master().name) {
        return Err(Error::Nodes { failed, done: 0 });
    }
    let (member, facts) = master(inventory, &nodes)?;
    let ring = Keyring::read(cluster, facts);
    if ring.next.is_some() {
        events.note("a rotation is unfinished: both keys stay let in until `hvdctl keys rotate` has finished it");
    }
    let keys = match Keys::to_push(&ring) {
        Some(keys) => keys,
        None => Keys::only(session.cancellation.run(pair(cluster, member, &ring, usual(cluster), events)).await?),
    };
    if let Some(pair) = keys.let_in.first().and_then(|key| describe(key))
        && ring.next.is_none()
        && !usual(cluster).is(&pair)
    {
        events.note(format!(
            "the cluster's pair is {}, which is not the inventory's key_type: `{}` changes it",
            pair.short(),
            usual(cluster).rotation()
        ));
    }
    let remarks = nodes.iter().flat_map(|(member, facts)| remarks(inventory, &member.node, facts));
    remarks.for_each(|remark| events.warn(remark));
    let (pushed, failures) = distribute(inventory, nodes, keys, session, events).await?;
    failed.extend(failures);
    Ok((pushed, failed))
}

/// Returns the names of the nodes whose key directory [`push`] would change.
pub fn pending(inventory: &Inventory, nodes: &[(&Node, &Facts)]) -> Vec<String> {
    differing(inventory, nodes, Keys::to_push)
}

/// Returns the names of the nodes whose key directory lacks what a launch needs: a worker would not be reached, or not
/// trusted. An unfinished rotation does not matter.
pub fn lacking(inventory: &Inventory, nodes: &[(&Node, &Facts)]) -> Vec<String> {
    differing(inventory, nodes, Keys::to_launch)
}

async fn observe(cluster: &Cluster, members: &[Member], events: &Events) -> Vec<Result<(Member, Facts), NodeError>> {
    for_each_node(members.to_vec(), async |member| {
        let facts = events.step(&member.node.name, Step::ReadingKeys, facts(cluster, &member)).await?;
        Ok((member, facts))
    })
    .await
}

/// Observes all members, or fails before anything is changed.
async fn observe_all(
    cluster: &Cluster,
    members: &[Member],
    session: &Session,
    events: &Events,
) -> Result<Vec<(Member, Facts)>, Error> {
    session.cancellation.run(async { all(events, observe(cluster, members, events).await) }).await
}

fn master<'a>(inventory: &Inventory, nodes: &'a [(Member, Facts)]) -> Result<&'a (Member, Facts), Error> {
    nodes.iter().find(|(member, _)| member.node.master).ok_or_else(|| without_master(inventory))
}

/// The error where the master is not among the nodes.
pub fn without_master(inventory: &Inventory) -> Error {
    Error::usage(
        format!("the master {} is not among the selected nodes, and the key comes from it", inventory.master().name),
        "leave --on out, or add the master to it",
    )
}

/// Brings every node to these keys, with a host key where there is none. Nodes that were not begun when the command had
/// to stop are missing in the results.
///
/// # Errors
/// When no host key can be made.
async fn distribute(
    inventory: &Inventory,
    nodes: Vec<(Member, Facts)>,
    keys: Keys,
    session: &Session,
    events: &Events,
) -> Result<Results, Error> {
    let cluster = &inventory.cluster;
    let mut new_host_keys = Vec::new();
    for (member, facts) in &nodes {
        let comment = format!("{} {}", member.node.name, tag(&cluster.name));
        let kind = Kind { key_type: KeyType::Ed25519, bits: None };
        new_host_keys.push(match public_host_key(facts) {
            Some(_) => None,
            None => Some(key_pair::generate(kind, &comment)?),
        });
    }
    let with_host_key = nodes.iter().zip(&new_host_keys).filter_map(|((member, facts), new)| {
        let public = new.as_ref().map(|pair| pair.public.as_str()).or_else(|| public_host_key(facts));
        Some((&member.node, facts, public?))
    });
    let desired = Desired::new(inventory, with_host_key, keys);
    let write_node = async |((member, facts), new): (&(Member, Facts), &Option<KeyPair>)| {
        session.cancellation.check().ok()?;
        let node = member.node.name.clone();
        let changes = desired.changes(&member.node, facts, new.as_ref());
        if changes.is_empty() {
            events.done(&node, "keys unchanged");
            return Some(Ok(Pushed { node, changes }));
        }
        if let Err(error) = events.step(&node, Step::WritingKeys, write(cluster, member, facts, &changes)).await {
            return Some(Err(error));
        }
        session.progress.did(&node, changes.to_string());
        events.done(&node, changes.to_string());
        Some(Ok(Pushed { node, changes }))
    };
    let results = for_each_node(nodes.iter().zip(&new_host_keys).collect(), write_node).await;
    Ok(split(events, results.into_iter().flatten().collect()))
}

async fn write(cluster: &Cluster, member: &Member, facts: &Facts, changes: &Changes) -> Result<(), NodeError> {
    let tried = format!("write the keys to {}", cluster.ssh_dir);
    // bytes that are no UTF-8 were not read as they are: they would not survive being written again
    let is_broken = |name: &str| text(facts, name).contains(char::REPLACEMENT_CHARACTER);
    if let Some(Put { name, .. }) = changes.puts.iter().find(|put| is_broken(&put.name)) {
        let message = format!("{name} has bytes that are no UTF-8, and lines of others would be changed");
        return Err(NodeError::failed(&member.node.name, &tried, message)
            .hint(format!("take them out of {}/{name} by hand, then try again", cluster.ssh_dir)));
    }
    member.transport.script(&script(cluster, facts, changes), &tried).await.map(|_| ())
}

fn script(cluster: &Cluster, facts: &Facts, changes: &Changes) -> Script {
    let mut puts = Zeroizing::new(String::new());
    let mut observed = String::new();
    for Put { name, text: content } in &changes.puts {
        puts = quote::joined(&[puts.as_str(), mode(name), " ", name, " ", base64(content.expose()).as_str(), "\n"]);
        // where the file is another by now than the one that was read, it is somebody else's work
        if [AUTHORIZED_KEYS, KNOWN_HOSTS].contains(&name.as_str()) || name.ends_with(".pub") {
            observed.push_str(&format!("{name} {}\n", hex(&Sha256::digest(text(facts, name)))));
        }
    }
    let removes: String = changes.removes.iter().map(|name| format!("{name}\n")).collect();
    Script::new(PUSH)
        .with("ssh_dir", &cluster.ssh_dir)
        .with("seen", &observed)
        .with("puts", &puts)
        .with("removes", &removes)
}

fn base64(text: &str) -> Zeroizing<String> {
    Zeroizing::new(base64::engine::general_purpose::STANDARD.encode(text))
}

/// The kind of pair that the inventory asks for.
fn usual(cluster: &Cluster) -> Kind {
    Kind { key_type: cluster.key_type, bits: None }
}

/// The pair of a master that lacks a half of it: the public one is read from the private one, or a pair is made.
async fn pair(
    cluster: &Cluster,
    member: &Member,
    ring: &Keyring,
    wanted: Kind,
    events: &Events,
) -> Result<MasterPair, Error> {
    let Some(CurrentPair { name, .. }) = ring.current else {
        let pair = make(cluster, wanted, &member.node.name, events).await?;
        let name = private_key_name(wanted.key_type);
        return Ok(MasterPair { name, public: pair.public, new: Some(pair.private) });
    };
    let script = Script::new(PUBLIC_KEY).with("ssh_dir", &cluster.ssh_dir).with("key_name", name);
    let output = member.transport.script(&script, &format!("read the public half of {name}")).await?;
    let public = format!("{} {}", bare(&String::from_utf8_lossy(&output)), tag(&cluster.name));
    Ok(MasterPair { name, public, new: None })
}

/// Makes a pair in memory, on a thread of its own.
async fn make(cluster: &Cluster, wanted: Kind, node: &str, events: &Events) -> Result<KeyPair, Error> {
    let kind = match wanted.key_type {
        KeyType::Rsa => format!("RSA-{}", wanted.bits.unwrap_or(key_pair::RSA_BITS)),
        KeyType::Ed25519 => "Ed25519".to_owned(),
    };
    let _step = events.begin(node, Step::GeneratingKeyPair(kind));
    let comment = tag(&cluster.name);
    tokio::task::spawn_blocking(move || key_pair::generate(wanted, &comment))
        .await
        .map_err(|e| Error::Here(format!("cannot make a key pair: {e}")))?
}

/// The pair on the master.
#[derive(Debug)]
pub struct Generated {
    /// The master's name.
    pub node: String,
    /// The pair.
    pub pair: Described,
    /// Whether it was made just now.
    pub made: bool,
}

/// Makes the pair where the master, the only member here, has none. `wanted`: of this kind; else as the inventory says.
///
/// # Errors
/// When a pair of another kind is there.
pub async fn generate(
    inventory: &Inventory,
    members: &[Member],
    wanted: Option<Kind>,
    session: &Session,
    events: &Events,
) -> Result<Generated, Error> {
    let cluster = &inventory.cluster;
    let nodes = observe_all(cluster, members, session, events).await?;
    let (member, facts) = master(inventory, &nodes)?;
    let node = member.node.name.clone();
    let ring = Keyring::read(cluster, facts);
    let mut puts = Vec::new();
    let pair = match &ring.current {
        Some(CurrentPair { name, public: Some(public) }) => MasterPair { name, public: public.clone(), new: None },
        _ => {
            let kind = wanted.unwrap_or(usual(cluster));
            let pair = session.cancellation.run(pair(cluster, member, &ring, kind, events)).await?;
            let text = Secret::plain(format!("{}\n", pair.public));
            puts.extend(pair.new.clone().map(|text| Put { name: pair.name.to_owned(), text }));
            puts.push(Put { name: format!("{}.pub", pair.name), text });
            pair
        }
    };
    let described = describe(&pair.public).ok_or_else(|| {
        Error::check(
            format!("what lies on {node} as the cluster's public key is none: {}", pair.public),
            format!("remove it from {} there; `hvdctl keys push` writes it again", cluster.ssh_dir),
        )
    })?;
    if let Some(kind) = wanted.filter(|kind| !kind.is(&described)) {
        return Err(Error::check(format!("{node} has a pair of another kind: {described}"), kind.rotation()));
    }
    if !puts.is_empty() {
        write(cluster, member, facts, &Changes { puts, ..Changes::default() }).await?;
    }
    Ok(Generated { node, pair: described, made: pair.new.is_some() })
}
