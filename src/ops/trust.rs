//! `keys push`: brings every node's key folder to the state that the contract names.

use crate::core::facts::Facts;
use crate::core::inventory::{Cluster, Inventory, KeyType, Node};
use crate::core::network;
use crate::core::spec::private_key_name;
use crate::core::trust::{self, Changes, HOST_KEY, KeyPair, Wanted};
use crate::edge::keys;
use crate::edge::link::Script;
use crate::error::{Error, NodeError};
use crate::event::Events;
use crate::ops::fleet::{Member, all, each, facts};
use base64::Engine as _;
use std::collections::BTreeSet;

const PUSH: &str = include_str!("../edge/scripts/keys_push.sh");
const PUBLIC_KEY: &str = include_str!("../edge/scripts/public_key.sh");

/// What became of one node.
#[derive(Debug)]
pub struct Pushed {
    /// Its name.
    pub node: String,
    /// What was changed; empty when all was in place.
    pub changes: Changes,
}

/// Brings the members' folders to the wanted state. The private key is made here in memory when the master has none,
/// and goes to the master only.
///
/// # Errors
/// When a node cannot be looked at nothing is changed; afterwards every node is finished and the failures are listed.
pub async fn push(
    inventory: &Inventory,
    members: &[Member],
    events: &Events,
) -> Result<Vec<Result<Pushed, NodeError>>, Error> {
    let cluster = &inventory.cluster;
    let seen = each(members.to_vec(), async |member| {
        events.busy(&member.node.name, "looking at its keys");
        let facts = facts(cluster, &member).await?;
        Ok((member, facts))
    })
    .await;
    let seen = all(events, seen)?;

    let key_name = private_key_name(cluster.key_type);
    let (public, new_pair) = cluster_key(inventory, key_name, &seen, events).await?;
    let mut hosts = Vec::new();
    for (member, facts) in &seen {
        hosts.push(host_key(cluster, member, facts)?);
    }
    let publics: Vec<String> = hosts.iter().map(|(public, _)| public.clone()).collect();
    let lines = Lines::new(inventory, seen.iter().map(|(member, facts)| (&member.node, facts)), &publics);

    let work = seen.into_iter().zip(hosts).collect();
    Ok(each(work, async |((member, facts), (_, new_host_key))| {
        let changes = lines.changes(&member.node, &facts, &public, new_pair.as_ref(), new_host_key.as_ref());
        if !changes.is_empty() {
            events.busy(&member.node.name, "writing its keys");
            let tried = format!("write the keys to {}", cluster.ssh_dir);
            member.link.script(&script(cluster, &changes), &tried).await?;
        }
        let what = if changes.is_empty() { "keys unchanged".to_owned() } else { changes.to_string() };
        events.done(&member.node.name, what);
        Ok(Pushed { node: member.node.name.clone(), changes })
    })
    .await)
}

/// The names of the nodes whose key folder is not what `push` would make of it: a worker would not be reached, or not
/// trusted. Nothing is changed.
pub fn pending(inventory: &Inventory, seen: &[(&Node, &Facts)]) -> Vec<String> {
    let key_name = private_key_name(inventory.cluster.key_type);
    let names = |nodes: &[(&Node, &Facts)]| nodes.iter().map(|(node, _)| node.name.clone()).collect();
    let public = seen.iter().find(|(node, _)| node.master).and_then(|(_, facts)| public_key(facts, key_name));
    let Some(public) = public else { return names(seen) };
    let hosts: Vec<Option<String>> = seen.iter().map(|(_, facts)| public_host_key(facts)).collect();
    let there: Vec<(&Node, &Facts)> = seen.iter().zip(&hosts).filter(|(_, h)| h.is_some()).map(|(s, _)| *s).collect();
    let lines = Lines::new(inventory, there.iter().copied(), &hosts.iter().flatten().cloned().collect::<Vec<_>>());
    seen.iter()
        .zip(&hosts)
        .filter(|((node, facts), host)| host.is_none() || !lines.changes(node, facts, &public, None, None).is_empty())
        .map(|((node, _), _)| node.name.clone())
        .collect()
}

/// What all nodes' folders have in common: the lines that pin the workers.
struct Lines<'a> {
    cluster: &'a Cluster,
    known_hosts: Vec<String>,
    members: BTreeSet<String>,
}

impl<'a> Lines<'a> {
    fn new<'b>(
        inventory: &'a Inventory,
        seen: impl Iterator<Item = (&'b Node, &'b Facts)>,
        host_keys: &[String],
    ) -> Lines<'a> {
        let cluster = &inventory.cluster;
        let known_hosts = seen
            .zip(host_keys)
            .map(|((node, facts), key)| {
                let address = network::endpoint(node, facts).ok().map(|e| e.address);
                let names = [node.name.as_str(), node.host.as_str(), facts.hostname.as_str()];
                trust::known_hosts_line(&cluster.name, &trust::known_hosts_names(&names, address, cluster.port), key)
            })
            .collect();
        let members = inventory
            .nodes
            .iter()
            .flat_map(|node| trust::known_hosts_names(&[&node.name], None, cluster.port))
            .collect();
        Lines { cluster, known_hosts, members }
    }

    fn changes(
        &self,
        node: &Node,
        facts: &Facts,
        public: &str,
        new_pair: Option<&KeyPair>,
        new_host_key: Option<&KeyPair>,
    ) -> Changes {
        let wanted = Wanted {
            cluster: &self.cluster.name,
            key_name: private_key_name(self.cluster.key_type),
            public,
            new_pair,
            launches: node.master,
            new_host_key,
            known_hosts: &self.known_hosts,
            members: &self.members,
        };
        trust::changes(&wanted, facts)
    }
}

/// The cluster's public key on the master, if both halves are there.
fn public_key(facts: &Facts, key_name: &str) -> Option<String> {
    let public = facts.key_files.get(&format!("{key_name}.pub"))?.text.trim();
    (facts.key_files.contains_key(key_name) && !public.is_empty()).then(|| public.to_owned())
}

/// A worker's public host key, if both halves are there.
fn public_host_key(facts: &Facts) -> Option<String> {
    let public = facts.key_files.get(&format!("{HOST_KEY}.pub"))?.text.trim();
    (facts.key_files.contains_key(HOST_KEY) && !public.is_empty()).then(|| public.to_owned())
}

fn script(cluster: &Cluster, changes: &Changes) -> Script {
    let puts: String = changes
        .puts
        .iter()
        .map(|put| {
            let text = base64::engine::general_purpose::STANDARD.encode(put.text.expose());
            format!("{} {} {text}\n", put.mode, put.name)
        })
        .collect();
    let removes: String = changes.removes.iter().map(|name| format!("{name}\n")).collect();
    Script::new(PUSH).with("ssh_dir", &cluster.ssh_dir).with("puts", &puts).with("removes", &removes)
}

/// The cluster's public key, and the whole pair where it was made just now.
async fn cluster_key(
    inventory: &Inventory,
    key_name: &str,
    seen: &[(Member, Facts)],
    events: &Events,
) -> Result<(String, Option<KeyPair>), Error> {
    let cluster = &inventory.cluster;
    let Some((member, facts)) = seen.iter().find(|(member, _)| member.node.master) else {
        return Err(Error::usage(
            format!(
                "the master {} is not among the selected nodes, and the key comes from it",
                inventory.master().name
            ),
            "leave --on out, or add the master to it",
        ));
    };
    if let Some(public) = public_key(facts, key_name) {
        return Ok((public, None));
    }
    if facts.key_files.contains_key(key_name) {
        let script = Script::new(PUBLIC_KEY).with("ssh_dir", &cluster.ssh_dir).with("key_name", key_name);
        let output = member.link.script(&script, &format!("read the public half of {key_name}")).await?;
        let words = String::from_utf8_lossy(&output);
        let key: Vec<&str> = words.split_whitespace().take(2).collect();
        return Ok((format!("{} hvdctl:{}", key.join(" "), cluster.name), None));
    }
    events.busy(
        &member.node.name,
        match cluster.key_type {
            KeyType::Rsa => "making an RSA-4096 key pair",
            KeyType::Ed25519 => "making an Ed25519 key pair",
        },
    );
    let (key_type, comment) = (cluster.key_type, format!("hvdctl:{}", cluster.name));
    let pair = tokio::task::spawn_blocking(move || keys::generate(key_type, &comment))
        .await
        .map_err(|e| Error::Here(format!("could not make a key pair: {e}")))??;
    Ok((pair.public.clone(), Some(pair)))
}

/// A worker's public host key, and the whole pair where it has none yet.
fn host_key(cluster: &Cluster, member: &Member, facts: &Facts) -> Result<(String, Option<KeyPair>), Error> {
    match public_host_key(facts) {
        Some(public) => Ok((public, None)),
        None => {
            let pair = keys::generate(KeyType::Ed25519, &format!("{} hvdctl:{}", member.node.name, cluster.name))?;
            Ok((pair.public.clone(), Some(pair)))
        }
    }
}
