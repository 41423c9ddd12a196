//! `keys push` and `keys generate`, and what `keys rotate` has in common with them.

mod rotate;
#[cfg(test)]
mod tests;

pub use rotate::RotationResult;

use crate::cluster::each_node::{NodeResults, each_node, for_each_node};
use crate::cluster::member::Member;
use crate::cluster::observation::{check_permissions, facts};
use crate::cluster::session::Session;
use crate::error::{Error, NodeError};
use crate::event::{Events, Message, Step};
use crate::inventory::{Cluster, Inventory, KeyType};
use crate::keys::files::private_key_name;
use crate::keys::files::{
    AUTHORIZED_KEYS, Changes, Desired, KNOWN_HOSTS, KeyKind, Keyring, Keys, Pair, PublicKey, Put, bare, describe,
    host_key_comment, mode, public_host_key, removal, tag, text, warnings,
};
use crate::keys::key_pair;
use crate::node::facts::Facts;
use crate::paths::HOST_KEY;
use crate::text::digest::hex;
use crate::text::quote;
use crate::transport::node::Script;
use anyhow::Context as _;
use base64::Engine as _;
use schemars::JsonSchema;
use serde::Serialize;
use sha2::{Digest as _, Sha256};
use std::collections::{BTreeMap, BTreeSet};
use zeroize::Zeroizing;

const PUSH: &str = concat!(
    include_str!("../scripts/keys/put_file.sh"),
    include_str!("../scripts/keys/lock.sh"),
    include_str!("../scripts/keys/push.sh")
);
const PUBLIC_KEY: &str = include_str!("../scripts/keys/public_key.sh");

/// The result of a push on one node.
#[derive(Debug)]
pub struct PushResult {
    /// Its name.
    pub node: String,
    /// The changes that were made; empty if everything was in place.
    pub changes: Changes,
}

/// `keys generate`.
#[derive(Debug, Serialize, JsonSchema)]
pub struct GenerateResult {
    /// The master.
    pub node: String,
    /// The key pair.
    #[serde(flatten)]
    pub pair: PublicKey,
    /// False if there was already a key pair.
    #[serde(rename = "changed")]
    pub generated: bool,
}

/// The distribution of keys to nodes by one command.
#[derive(Clone, Copy)]
pub struct KeyDistribution<'a> {
    /// The cluster.
    pub inventory: &'a Inventory,
    /// The command's locks, cancellation and progress.
    pub session: &'a Session,
    /// The events to which steps and messages are reported.
    pub events: &'a Events,
}

impl KeyDistribution<'_> {
    /// Brings the directories of observed nodes to the desired state. The keys come from the master among them. The
    /// private key is generated here in memory when the master has none, and goes to the master only. After a
    /// cancellation, nodes that were not begun are missing in the results.
    ///
    /// # Errors
    /// When the master was not observed nothing is changed; afterwards every node is finished and the failures are
    /// listed.
    pub async fn push(&self, observed: NodeResults<(Member, Facts)>) -> Result<NodeResults<PushResult>, Error> {
        let NodeResults { ok: nodes, mut failed } = observed;
        if failed.iter().any(|error| error.node == self.inventory.master().name) {
            return Err(Error::Nodes { failed, done: 0 });
        }
        let (member, facts) = self.master(&nodes)?;
        let ring = Keyring::read(self.cluster(), facts);
        let keys = match Keys::to_push(&ring) {
            Some(keys) => keys,
            None => Keys::only(self.complete_pair(member, &ring, self.usual_kind()).await?),
        };
        let (usual, pair) = (self.usual_kind(), keys.authorized.first().and_then(|key| describe(key)));
        if ring.next.is_some() {
            self.events
                .note("a rotation is unfinished: both keys stay accepted until `hvdctl keys rotate` finishes it");
        } else if let Some(pair) = pair.filter(|pair| !usual.is(pair)) {
            let (kind, command) = (pair.kind(), usual.rotation());
            self.events.note(format!(
                "the cluster's pair is {kind}, but the inventory has another key_type: `{command}` changes it"
            ));
        }
        for (member, facts) in &nodes {
            let warnings = warnings(self.inventory, &member.node, facts).into_iter();
            warnings.for_each(|warning| self.events.warn(Message::of(&member.node.name, warning)));
        }
        let pushed = self.distribute(nodes, keys).await?;
        failed.extend(pushed.failed);
        Ok(NodeResults { ok: pushed.ok, failed })
    }

    /// Generates the pair where the master, the only node here, has none. `wanted`: of this kind; else as the inventory
    /// says.
    ///
    /// # Errors
    /// When there is a pair of another kind.
    pub async fn generate(&self, members: &[Member], wanted: Option<KeyKind>) -> Result<GenerateResult, Error> {
        let nodes = self.observe(members).await?.all()?;
        let (member, facts) = self.master(&nodes)?;
        let node = member.node.name.clone();
        let ring = Keyring::read(self.cluster(), facts);
        let pair = self.complete_pair(member, &ring, wanted.unwrap_or(self.usual_kind())).await?;
        let described = describe(&pair.public).ok_or_else(|| {
            Error::check(
                format!("{node}: {}.pub is not a public key: {}", pair.name, pair.public),
                format!("remove it from {} there; `hvdctl keys push` writes it again", self.cluster().ssh_dir),
            )
        })?;
        if let Some(kind) = wanted.filter(|kind| !kind.is(&described)) {
            return Err(Error::check(format!("{node} has a key pair of another type: {described}"), kind.rotation()));
        }
        if ring.current.as_ref() != Some(&pair) {
            let changes = Changes { puts: pair.files().collect(), ..Changes::default() };
            write(self.cluster(), member, facts, &changes).await?;
        }
        Ok(GenerateResult { node, pair: described, generated: pair.private.is_some() })
    }

    fn cluster(&self) -> &Cluster {
        &self.inventory.cluster
    }

    /// The kind of pair that the inventory asks for.
    fn usual_kind(&self) -> KeyKind {
        KeyKind { key_type: self.cluster().key_type, bits: None }
    }

    /// Observes nodes for a push. Those whose directories other users can change have failed.
    ///
    /// # Errors
    /// The reason why the command was cancelled.
    pub async fn observe(&self, members: &[Member]) -> Result<NodeResults<(Member, Facts)>, Error> {
        let observing = each_node(members.to_vec(), self.events, async |member| {
            let reading = facts(self.cluster(), &member);
            let facts = self.events.step(&member.node.name, Step::read("reading keys"), reading).await?;
            check_permissions(self.cluster(), &member.node.name, &facts, &["ssh"])?;
            Ok((member, facts))
        });
        self.session.cancellation.run(async { Ok(observing.await) }).await
    }

    fn master<'n>(&self, nodes: &'n [(Member, Facts)]) -> Result<&'n (Member, Facts), Error> {
        nodes.iter().find(|(member, _)| member.node.master).ok_or_else(|| without_master(self.inventory))
    }

    /// Brings every node to these keys, with a host key where there is none. After a cancellation, nodes that were not
    /// begun are missing in the results.
    ///
    /// # Errors
    /// When no host key can be generated.
    async fn distribute(&self, nodes: Vec<(Member, Facts)>, keys: Keys) -> Result<NodeResults<PushResult>, Error> {
        let kind = KeyKind { key_type: KeyType::Ed25519, bits: None };
        let mut new_host_keys = BTreeMap::new();
        for (Member { node, .. }, _) in nodes.iter().filter(|(_, facts)| public_host_key(facts).is_none()) {
            let comment = host_key_comment(&node.name, &self.cluster().name);
            new_host_keys.insert(node.name.clone(), key_pair::generate(HOST_KEY, kind, &comment)?);
        }
        let observed: Vec<_> = nodes.iter().map(|(member, facts)| (&member.node, facts)).collect();
        let desired = Desired::new(self.inventory, &observed, keys, new_host_keys);
        let write_node = async |(member, facts): &(Member, Facts)| {
            let node = member.node.name.clone();
            let changes = desired.changes(&member.node, facts);
            if changes.is_empty() {
                self.events.done(&node, "keys unchanged");
            } else {
                let writing = write(self.cluster(), member, facts, &changes);
                self.events.step(&node, Step::write("writing keys"), writing).await?;
                self.session.progress.record(&node, changes.to_string());
                self.events.done(&node, changes.to_string());
            }
            Ok(PushResult { node, changes })
        };
        let results = for_each_node(nodes.iter().collect(), async |node| {
            self.session.cancellation.check().ok()?;
            Some(self.events.report(write_node(node).await))
        })
        .await;
        Ok(results.into_iter().flatten().collect())
    }

    /// The master's pair. A public half that is missing is read from the private one, and a pair that is missing is
    /// generated.
    async fn complete_pair(&self, member: &Member, ring: &Keyring, kind: KeyKind) -> Result<Pair, Error> {
        let name = match &ring.current {
            Some(pair) if pair.public.is_empty() => pair.name,
            Some(pair) => return Ok(pair.clone()),
            None => return self.generate_pair(&member.node.name, kind).await,
        };
        let script = Script::new(PUBLIC_KEY).with("ssh_dir", &self.cluster().ssh_dir).with("key_name", name);
        let operation = format!("read the public half of {name}");
        let reading = async { Ok(member.transport.script(&script, &operation).await?) };
        let output = self.session.cancellation.run(reading).await?;
        let public = format!("{} {}", bare(&String::from_utf8_lossy(&output)), tag(&self.cluster().name));
        Ok(Pair { name, public, private: None })
    }

    /// Generates a pair in memory, on a thread of its own.
    async fn generate_pair(&self, node: &str, kind: KeyKind) -> Result<Pair, Error> {
        let _step = self.events.begin(node, Step::write(format!("generating an {kind} key pair")));
        let comment = tag(&self.cluster().name);
        let generate = move || key_pair::generate(private_key_name(kind.key_type), kind, &comment);
        let generating = async { tokio::task::spawn_blocking(generate).await.context("cannot generate a key pair")? };
        self.session.cancellation.run(generating).await
    }
}

/// The error where the master is not among the nodes.
pub fn without_master(inventory: &Inventory) -> Error {
    let master = &inventory.master().name;
    Error::usage(
        format!("the master {master} is not among the selected nodes, and only it has the cluster's key"),
        "leave out --on, or add the master to it",
    )
}

/// Removes the cluster's keys and its lines from a node's key directory.
///
/// # Errors
/// If the directory cannot be written, or another program has changed it since `facts` were read.
pub async fn remove(cluster: &Cluster, member: &Member, facts: &Facts) -> Result<(), NodeError> {
    let changes = removal(facts, &cluster.name);
    if changes.is_empty() { Ok(()) } else { write(cluster, member, facts, &changes).await }
}

async fn write(cluster: &Cluster, member: &Member, facts: &Facts, changes: &Changes) -> Result<(), NodeError> {
    let directory = &cluster.ssh_dir;
    let operation = format!("write the keys to {directory}");
    // bytes that are not UTF-8 were replaced when they were read, and would be lost when the file is written again
    let is_broken = |name: &str| text(facts, name).contains(char::REPLACEMENT_CHARACTER);
    if let Some(Put { name, .. }) = changes.puts.iter().find(|put| is_broken(&put.name)) {
        let message = format!("{name} is not UTF-8, and rewriting it would change lines that are not hvdctl's");
        return Err(NodeError::failed(&member.node.name, &operation, message)
            .hint(format!("remove the invalid bytes from {directory}/{name}, then try again")));
    }
    member.transport.script(&script(directory, facts, changes), &operation).await.map(|_| ())
}

fn script(directory: &str, facts: &Facts, changes: &Changes) -> Script {
    let mut puts = Zeroizing::new(String::new());
    for Put { name, text: content } in &changes.puts {
        puts = quote::joined(&[puts.as_str(), mode(name), " ", name, " ", base64(content.expose()).as_str(), "\n"]);
    }
    // a file that differs from what was read has been changed by another program meanwhile; the public half of a pair
    // stands for both
    let is_read = |name: &str| [AUTHORIZED_KEYS, KNOWN_HOSTS].contains(&name) || name.ends_with(".pub");
    let put = changes.puts.iter().map(|put| put.name.clone()).filter(|name| is_read(name));
    let removed = changes.removes.iter();
    let removed = removed.map(|name| if is_read(name) { name.clone() } else { format!("{name}.pub") });
    let observed: BTreeSet<String> = put.chain(removed).collect();
    let observed: String =
        observed.iter().map(|name| format!("{name} {}\n", hex(&Sha256::digest(text(facts, name))))).collect();
    let removes: String = changes.removes.iter().map(|name| format!("{name}\n")).collect();
    let script = Script::new(PUSH).with("ssh_dir", directory).with("observed", &observed);
    script.with("puts", &puts).with("removes", &removes)
}

fn base64(text: &str) -> Zeroizing<String> {
    Zeroizing::new(base64::engine::general_purpose::STANDARD.encode(text))
}
