//! Publishes nodes of an owner: a signed file of each in the pool.

use super::contents::read_signers;
use super::format::{FORMAT, MOST_SLOTS, PoolNode, is_for_others, is_place};
use super::key::Key;
use super::machine::PoolMachine;
use super::owner;
use super::signature::NAMESPACE;
use super::signers::AllowedSigners;
use crate::cluster::each_node::{NodeResults, for_each_node};
use crate::cluster::member::Member;
use crate::cluster::operator::now;
use crate::cluster::site::Site;
use crate::error::{Error, NodeError};
use crate::event::{Events, Message, Step};
use crate::inventory::{Cluster, Node, Pool};
use crate::model::grade::NodeGrade;
use crate::model::mesh::is_interface;
use crate::node::facts::Facts;
use crate::node::network;
use crate::text::nodeset;
use crate::text::units::stamp;
use crate::transport::ssh::Destination;
use ssh_key::PublicKey;
use std::collections::BTreeMap;

/// The name of the operation in messages about a failed publication.
const PUBLISH: &str = "publish it";

/// A publisher that signs an owner's nodes.
pub struct Publisher {
    pool: Pool,
    key: Key,
    owner: String,
    /// The owner's name for its cluster.
    cluster: String,
}

/// The result of a publication.
#[derive(Default)]
pub struct Publication {
    /// The name of each node's file.
    pub files: BTreeMap<String, String>,
    /// The nodes that could not be published, for which there are warnings.
    pub unpublished: Vec<String>,
    /// The text that is shown.
    pub text: String,
}

/// A node to publish, with what is known of it.
pub struct Submission<'a> {
    /// The node.
    pub node: &'a Node,
    /// Its observed facts.
    pub facts: &'a Facts,
    /// Its grade.
    pub grade: &'a NodeGrade,
}

/// A node's file without its signature.
struct UnsignedFile {
    node: String,
    name: String,
    text: String,
}

impl Publisher {
    /// Reads the key and finds its owner among the members, before any node is contacted.
    ///
    /// # Errors
    /// Without members, a key that can sign, or an owner that has it.
    pub fn new(pool: &Pool, cluster: &Cluster, events: &Events) -> Result<Publisher, Error> {
        let signers = read_signers(pool, events)?;
        let key = Key::read(pool)?;
        let owner = owner(pool, &signers, &key)?;
        Ok(Publisher { pool: pool.clone(), key, owner, cluster: cluster.name.clone() })
    }

    /// Signs the nodes and writes their files. A node that cannot be published is reported, and the others are
    /// published.
    ///
    /// # Errors
    /// If the key cannot sign, or the pool cannot be written to.
    pub async fn publish(&self, nodes: &[Submission<'_>], site: Site<'_>) -> Result<Publication, Error> {
        let Site { target, fleet, session, events } = site;
        let published = now() as u64;
        let control = fleet.control(target.cluster()).await?;
        let claimed = session.cancellation.run(self.claim(nodes, site)).await?;
        let (mut unsigned, mut unpublished) = (Vec::new(), Vec::new());
        for submission in nodes {
            let destination = match &control {
                Some(control) => control.destination(submission.node).await,
                None => Ok(Destination::of(submission.node)),
            };
            let file = || {
                let host_key = claimed[&submission.node.name].clone()?;
                self.file(submission, &destination?, host_key, published)
            };
            match file() {
                Ok((file, note)) => {
                    note.into_iter().for_each(|note| events.note(Message::of(&file.node, note)));
                    unsigned.push(file);
                }
                Err(error) => {
                    unpublished.push(error.node.clone());
                    events.warn(Message::Failure(error));
                }
            }
        }
        if unsigned.is_empty() {
            return Ok(Publication { unpublished, ..Publication::default() });
        }
        let texts: Vec<String> = unsigned.iter().map(|file| file.text.clone()).collect();
        let publishing = async {
            let signed = self.key.sign(&texts, events).await?;
            let files: Vec<(String, String)> = unsigned.iter().map(|file| file.name.clone()).zip(signed).collect();
            let machine = PoolMachine::connect(&self.pool, site).await?;
            let directory = machine.directory(&self.pool);
            let writing = directory.publish(&files);
            events.step(machine.name(), Step::write("writing to the pool"), writing).await.map_err(Error::Pool)
        };
        session.cancellation.run(publishing).await?;
        let files: BTreeMap<String, String> = unsigned.into_iter().map(|file| (file.node, file.name)).collect();
        let names: Vec<&String> = files.keys().collect();
        let (nodes, until) = (nodeset::fold(&names), stamp(self.expiry(published) as f64));
        let text = format!("published {nodes} as {} until {until}\n", self.owner);
        Ok(Publication { files, unpublished, text })
    }

    /// Lets root of each node say whose it is. Returns their host keys.
    async fn claim(
        &self,
        nodes: &[Submission<'_>],
        site: Site<'_>,
    ) -> Result<BTreeMap<String, Result<String, NodeError>>, Error> {
        let Site { target, fleet, events, .. } = site;
        let (quiet, _) = Events::channel();
        let target = target.only(nodes.iter().map(|submission| submission.node.name.clone()));
        let NodeResults { ok, failed } = fleet.members(&target, &quiet).await?;
        let claim = async |member: Member| {
            if let Some(owner) = member.node.owner.as_ref().filter(|owner| **owner != self.owner) {
                let error = NodeError::failed(&member.node.name, "publish the node", format!("it belongs to {owner}"));
                return (member.node.name.clone(), Err(error));
            }
            let claiming = owner::claim(&member.transport, self.key.public());
            let claiming = events.step(&member.node.name, Step::write("writing its owner's key"), claiming);
            (member.node.name.clone(), claiming.await)
        };
        let claimed = for_each_node(ok, claim).await.into_iter();
        Ok(claimed.chain(failed.into_iter().map(|error| (error.node.clone(), Err(error)))).collect())
    }

    /// Returns when what is published now is stale, both in seconds since the epoch.
    fn expiry(&self, published: u64) -> u64 {
        published + self.pool.lifetime.as_secs()
    }

    /// Returns the file of a node, and what its owner should know about it.
    fn file(
        &self,
        submission: &Submission<'_>,
        destination: &Destination,
        host_key: String,
        published: u64,
    ) -> Result<(UnsignedFile, Option<String>), NodeError> {
        let entry = PoolNode { host_key: Some(host_key), ..self.entry(submission, destination, published)? };
        let text = entry.text().map_err(|why| NodeError::failed(&entry.node, PUBLISH, why))?;
        let note = destination.is_behind_jump_host.then(|| {
            format!("logging in to it needs a jump host, but members of the pool connect directly to {}", entry.host)
        });
        Ok((UnsignedFile { name: entry.file_name(), text, node: entry.node }, note))
    }

    /// Returns what is published of a node.
    fn entry(
        &self,
        Submission { node, facts, grade }: &Submission<'_>,
        destination: &Destination,
        published: u64,
    ) -> Result<PoolNode, NodeError> {
        let host = public_host(node, facts, destination)?;
        let slots = network::slots(node, facts).min(MOST_SLOTS);
        if slots == 0 {
            let why = "its GPUs are not known, so it has no slots";
            return Err(NodeError::failed(&node.name, PUBLISH, why).hint("hvdctl doctor shows why"));
        }
        let NodeGrade { kind, grade, score, evidence, .. } = (*grade).clone();
        Ok(PoolNode {
            format: FORMAT,
            owner: self.owner.clone(),
            cluster: self.cluster.clone(),
            node: node.name.clone(),
            host,
            port: destination.port,
            host_key: None,
            address: node.address,
            endpoint: node.endpoint_host().filter(|endpoint| is_place(endpoint)),
            kind,
            grade,
            score,
            evidence,
            slots,
            gpus: node.gpus.choice().cloned(),
            published,
            expires: self.expiry(published),
        })
    }
}

/// Returns the host by which other members reach a node: the one that ssh connects to, unless that is a name of this
/// machine only or behind a jump host; then its address on the network between the nodes, but for an encrypted one, which
/// they are not in.
fn public_host(node: &Node, facts: &Facts, destination: &Destination) -> Result<String, NodeError> {
    if !destination.is_behind_jump_host && is_for_others(&destination.host) {
        return Ok(destination.host.clone());
    }
    let interface = node.interface.clone().filter(|interface| !is_interface(interface));
    let outside = Node { interface, ..node.clone() };
    let address = network::endpoint(&outside, facts).map(|endpoint| endpoint.address.to_string());
    let none = |why: String| {
        NodeError::failed(&node.name, PUBLISH, why).hint("set `address` to one at which other members can reach it")
    };
    match address {
        Ok(address) if is_for_others(&address) => Ok(address),
        Ok(address) => Err(none(format!("no other machine can reach it at {address}"))),
        Err(why) => Err(none(why)),
    }
}

/// Returns the owner's name, which must have the key.
fn owner(pool: &Pool, signers: &AllowedSigners, key: &Key) -> Result<String, Error> {
    let file = pool.allowed_signers.display();
    let public = PublicKey::from(key.public().clone()).to_openssh().unwrap_or_default();
    let line = |owner: &str| {
        format!("add this line to {file}, there and at all other members: {owner} namespaces=\"{NAMESPACE}\" {public}")
    };
    let time = now() as u64;
    let Some(owner) = &pool.owner else {
        return match &signers.owners(key.public(), time)[..] {
            [owner] => Ok(owner.clone()),
            [] => Err(Error::usage(format!("no member in {file} has your key"), line("YOU@EXAMPLE.COM"))),
            several => {
                let message = format!("your key has several names in {file}: {}", several.join(", "));
                Err(Error::usage(message, "set owner in [pool] to one of them"))
            }
        };
    };
    match signers.check(owner, key.public(), time) {
        Ok(()) => Ok(owner.clone()),
        Err(_) => Err(Error::usage(format!("{file} does not let {owner} sign with your key"), line(owner))),
    }
}
