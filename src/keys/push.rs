//! The cluster's keys on the nodes: `keys push`, and what `keys generate`, `status` and `rotate` have in common with it.

mod generate;
mod rotate;
#[cfg(test)]
mod tests;

pub use generate::{Generated, generate};
pub use rotate::{Rotated, rotate};

use crate::cluster::nodes::{Member, all, facts, for_each_node};
use crate::cluster::session::Session;
use crate::error::{Error, NodeError};
use crate::event::{Event, Events, Step};
use crate::inventory::{Cluster, Inventory, KeyType, Node};
use crate::keys::files::{
    AUTHORIZED_KEYS, Changes, Desired, KNOWN_HOSTS, KeyPair, Keyring, Keys, Kind, describe, differing, kind,
    public_host_key, remarks, tag,
};
use crate::keys::key_pair;
use crate::node::facts::Facts;
use crate::runtime::spec::private_key_name;
use crate::text::quote;
use crate::transport::node::Script;
use base64::Engine as _;
use zeroize::Zeroizing;

const PUSH: &str = concat!(
    include_str!("../scripts/put_file.sh"),
    include_str!("../scripts/keys_lock.sh"),
    include_str!("../scripts/keys_push.sh")
);
const PUBLIC_KEY: &str = include_str!("../scripts/public_key.sh");

/// What became of one node.
#[derive(Debug)]
pub struct Pushed {
    /// Its name.
    pub node: String,
    /// What was changed; empty when all was in place.
    pub changes: Changes,
}

/// Brings the members' directories to the wanted state. The private key is made here in memory when the master has none,
/// and goes to the master only. Where the command has to stop, nodes that were not begun are missing in the results.
///
/// # Errors
/// When the master cannot be looked at nothing is changed; afterwards every node is finished and the failures are listed.
pub async fn push(
    inventory: &Inventory,
    members: &[Member],
    session: &Session,
    events: &Events,
) -> Result<Vec<Result<Pushed, NodeError>>, Error> {
    let looking = async { Ok(look_at_each(&inventory.cluster, members, events).await) };
    let mut seen = session.cancellation.run(looking).await?;
    if members.iter().zip(&seen).any(|(member, seen)| member.node.master && seen.is_err()) {
        return all(events, seen).map(|_| Vec::new());
    }
    let failed: Vec<_> = seen.extract_if(.., |seen| seen.is_err()).filter_map(Result::err).collect();
    let seen = all(events, seen)?;
    let (member, facts) = master(inventory, &seen)?;
    let ring = Keyring::read(&inventory.cluster, facts);
    if ring.next.is_some() {
        events.note("a rotation is unfinished: both keys stay let in until `hvdctl keys rotate` has finished it");
    }
    let keys = match Keys::to_push(&ring) {
        Some(keys) => keys,
        None => {
            session.cancellation.run(pair(&inventory.cluster, member, &ring, usual(&inventory.cluster), events)).await?
        }
    };
    if let Some(there) = keys.let_in.first().and_then(|key| describe(key))
        && there.key_type != inventory.cluster.key_type
        && ring.next.is_none()
    {
        let wanted = kind(inventory.cluster.key_type);
        events.note(format!(
            "the cluster's pair is {}, the inventory says {wanted}: `hvdctl keys rotate` changes it",
            there.short()
        ));
    }
    tell(inventory, &seen, events);
    let mut pushed = bring(inventory, seen, keys, session, events).await?;
    pushed.extend(failed.into_iter().map(Err));
    Ok(pushed)
}

/// Warns of what a push does not change.
fn tell(inventory: &Inventory, seen: &[(Member, Facts)], events: &Events) {
    let remarks = seen.iter().flat_map(|(member, facts)| remarks(inventory, &member.node, facts));
    remarks.for_each(|words| events.send(Event::Warning(words)));
}

/// The names of the nodes whose key directory is not what `push` would make of it. Nothing is changed.
pub fn pending(inventory: &Inventory, seen: &[(&Node, &Facts)]) -> Vec<String> {
    differing(inventory, seen, ring(inventory, seen).as_ref().and_then(Keys::to_push))
}

/// The names of the nodes whose key directory is not what a launch needs: a worker would not be reached, or not trusted. A
/// rotation that is under way, or was broken off, is nothing to stop for.
pub fn lacking(inventory: &Inventory, seen: &[(&Node, &Facts)]) -> Vec<String> {
    differing(inventory, seen, ring(inventory, seen).as_ref().and_then(Keys::to_launch))
}

fn ring(inventory: &Inventory, seen: &[(&Node, &Facts)]) -> Option<Keyring> {
    let master = seen.iter().find(|(node, _)| node.master);
    master.map(|(_, facts)| Keyring::read(&inventory.cluster, facts))
}

/// Looks at all members, or fails before anything is changed.
async fn look(cluster: &Cluster, members: &[Member], events: &Events) -> Result<Vec<(Member, Facts)>, Error> {
    all(events, look_at_each(cluster, members, events).await)
}

async fn look_at_each(
    cluster: &Cluster,
    members: &[Member],
    events: &Events,
) -> Vec<Result<(Member, Facts), NodeError>> {
    for_each_node(members.to_vec(), async |member| {
        let facts = events.step(&member.node.name, Step::ReadingKeys, facts(cluster, &member)).await?;
        Ok((member, facts))
    })
    .await
}

fn master<'a>(inventory: &Inventory, seen: &'a [(Member, Facts)]) -> Result<&'a (Member, Facts), Error> {
    seen.iter().find(|(member, _)| member.node.master).ok_or_else(|| without_master(inventory))
}

/// The error where the master is not among the nodes.
pub fn without_master(inventory: &Inventory) -> Error {
    Error::usage(
        format!("the master {} is not among the selected nodes, and the key comes from it", inventory.master().name),
        "leave --on out, or add the master to it",
    )
}

/// Brings every node to these keys, with a host key where there is none. Nodes that were not begun when the command had to stop are
/// missing in the results.
///
/// # Errors
/// When no host key can be made.
async fn bring(
    inventory: &Inventory,
    seen: Vec<(Member, Facts)>,
    keys: Keys,
    session: &Session,
    events: &Events,
) -> Result<Vec<Result<Pushed, NodeError>>, Error> {
    let cluster = &inventory.cluster;
    let mut hosts = Vec::new();
    for (member, facts) in &seen {
        hosts.push(host_key(cluster, member, facts)?);
    }
    let with_host =
        seen.iter().zip(&hosts).map(|((member, facts), (public, _))| (&member.node, facts, public.as_str()));
    let desired = Desired::new(inventory, with_host, keys);
    let work = seen.iter().zip(&hosts).collect();
    let brought =
        for_each_node(work, async |((member, facts), (_, new)): (&(Member, Facts), &(String, Option<KeyPair>))| {
            if session.cancellation.check().is_err() {
                return None;
            }
            let node = &member.node.name;
            let changes = desired.changes(&member.node, facts, new.as_ref());
            if !changes.is_empty() {
                let writing = write(cluster, member, facts, &changes);
                if let Err(error) = events.step(node, Step::WritingKeys, writing).await {
                    return Some(Err(error));
                }
                session.progress.did(node, changes.to_string());
            }
            let what = if changes.is_empty() { "keys unchanged".to_owned() } else { changes.to_string() };
            events.done(node, what);
            Some(Ok(Pushed { node: node.clone(), changes }))
        });
    Ok(brought.await.into_iter().flatten().collect())
}

async fn write(cluster: &Cluster, member: &Member, facts: &Facts, changes: &Changes) -> Result<(), NodeError> {
    let tried = format!("write the keys to {}", cluster.ssh_dir);
    for name in [AUTHORIZED_KEYS, KNOWN_HOSTS] {
        // what was read as text and is none would not survive being written again
        let broken = facts.key_files.get(name).is_some_and(|file| file.text.contains(char::REPLACEMENT_CHARACTER));
        if broken && changes.puts.iter().any(|put| put.name == name) {
            let said = format!("{name} has bytes that are no UTF-8, and lines of others would be changed");
            return Err(NodeError::failed(&member.node.name, &tried, said)
                .hint(format!("take them out of {}/{name} by hand, then try again", cluster.ssh_dir)));
        }
    }
    member.transport.script(&script(cluster, facts, changes), &tried).await.map(|_| ()).map_err(again)
}

/// Names the next step where somebody else was at the same directory.
fn again(error: NodeError) -> NodeError {
    let words = ["somebody else meanwhile", "another hvdctl is writing"];
    if words.iter().any(|words| error.message.contains(words)) {
        error.hint("run the same command again: it looks anew")
    } else {
        error
    }
}

fn script(cluster: &Cluster, facts: &Facts, changes: &Changes) -> Script {
    let puts: Vec<Zeroizing<String>> = changes
        .puts
        .iter()
        .map(|put| quote::joined(&[put.mode, " ", &put.name, " ", base64(put.text.expose()).as_str(), "\n"]))
        .collect();
    let puts = quote::joined(&puts.iter().map(|line| line.as_str()).collect::<Vec<_>>());
    let removes: String = changes.removes.iter().map(|name| format!("{name}\n")).collect();
    Script::new(PUSH)
        .with("ssh_dir", &cluster.ssh_dir)
        .with("seen", &changes.computed_from(facts))
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

/// The keys of a master without a whole pair: the public half is read from the private one, or a pair is made.
async fn pair(
    cluster: &Cluster,
    member: &Member,
    ring: &Keyring,
    wanted: Kind,
    events: &Events,
) -> Result<Keys, Error> {
    if let Some(held) = &ring.current {
        let script = Script::new(PUBLIC_KEY).with("ssh_dir", &cluster.ssh_dir).with("key_name", held.name);
        let output = member.transport.script(&script, &format!("read the public half of {}", held.name)).await?;
        let words = String::from_utf8_lossy(&output);
        let key: Vec<&str> = words.split_whitespace().take(2).collect();
        return Ok(Keys::only(held.name, &format!("{} {}", key.join(" "), tag(&cluster.name)), None));
    }
    let made = make(cluster, wanted, &member.node.name, events).await?;
    Ok(Keys::only(private_key_name(wanted.key_type), &made.public, Some(made.private)))
}

/// Makes a pair in memory, beside whatever else is done.
async fn make(cluster: &Cluster, wanted: Kind, node: &str, events: &Events) -> Result<KeyPair, Error> {
    let kind = match wanted.key_type {
        KeyType::Rsa => format!("RSA-{}", wanted.bits.unwrap_or(key_pair::RSA_BITS)),
        KeyType::Ed25519 => "Ed25519".to_owned(),
    };
    let _step = events.begin(node, Step::MakingKeyPair(kind));
    let comment = tag(&cluster.name);
    tokio::task::spawn_blocking(move || key_pair::generate(wanted, &comment))
        .await
        .map_err(|e| Error::Here(format!("cannot make a key pair: {e}")))?
}

/// A worker's public host key, and the whole pair where it has none yet.
fn host_key(cluster: &Cluster, member: &Member, facts: &Facts) -> Result<(String, Option<KeyPair>), Error> {
    match public_host_key(facts) {
        Some(public) => Ok((public, None)),
        None => {
            let kind = Kind { key_type: KeyType::Ed25519, bits: None };
            let pair = key_pair::generate(kind, &format!("{} {}", member.node.name, tag(&cluster.name)))?;
            Ok((pair.public.clone(), Some(pair)))
        }
    }
}
