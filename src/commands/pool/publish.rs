//! `grade --publish`: signed files of the nodes in the pool.

use crate::cluster::each_node::{NodeResults, for_each_node};
use crate::cluster::member::Member;
use crate::cluster::operator::now;
use crate::commands::context::Context;
use crate::commands::pool::{PoolMachine, read_signers};
use crate::error::{Error, NodeError};
use crate::event::{Events, Message, Step};
use crate::inventory::{Node, Pool};
use crate::model::grade::NodeGrade;
use crate::node::facts::Facts;
use crate::node::network;
use crate::pool::format::{FORMAT, MOST_SLOTS, PoolNode, is_for_others};
use crate::pool::keygen::KeygenKey;
use crate::pool::owner;
use crate::pool::signature::{KeyFault, NAMESPACE, SigningKey, public_half};
use crate::pool::signers::AllowedSigners;
use crate::text::nodeset;
use crate::text::public_key;
use crate::text::quote;
use crate::text::units::stamp;
use crate::transport::ssh::Destination;
use ssh_key::PublicKey;
use ssh_key::public::KeyData;
use std::collections::BTreeMap;
use std::fs::File;
use std::io::Read;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use zeroize::Zeroizing;

/// The most bytes of a private key.
const LARGEST_KEY: u64 = 64 << 10;

/// What a failed publication of a node is called in messages.
const PUBLISH: &str = "publish it";

/// How an owner signs.
pub(crate) struct Publisher {
    pool: Pool,
    key: Key,
    owner: String,
    /// The owner's name for its cluster.
    cluster: String,
}

/// An owner's key.
pub(in crate::commands) enum Key {
    /// hvdctl signs itself.
    Own(SigningKey),
    /// `ssh-keygen` signs.
    Keygen(KeygenKey),
}

/// What was published.
#[derive(Default)]
pub(crate) struct Publication {
    /// The name of each node's file.
    pub(in crate::commands) files: BTreeMap<String, String>,
    /// The nodes that could not be published, for which there are warnings.
    pub(in crate::commands) unpublished: Vec<String>,
    /// What is shown.
    pub(in crate::commands) text: String,
}

/// A node to publish, with what is known of it.
pub(crate) struct Submission<'a> {
    pub(in crate::commands) node: &'a Node,
    pub(in crate::commands) facts: &'a Facts,
    pub(in crate::commands) grade: &'a NodeGrade,
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
    /// Without a pool, a key that can sign, or an owner that has it.
    pub(crate) fn new(context: &Context) -> Result<Publisher, Error> {
        let pool = crate::commands::pool::pool_of(context)?.clone();
        let signers = read_signers(&pool, &context.events)?;
        let key = read_key(&pool)?;
        let owner = owner(&pool, &signers, &key)?;
        let cluster = context.target.cluster().name.clone();
        Ok(Publisher { pool, key, owner, cluster })
    }

    /// Signs the nodes and writes their files. A node that cannot be published is reported, and the others are
    /// published.
    ///
    /// # Errors
    /// If the key cannot sign, or the pool cannot be written to.
    pub(crate) async fn publish(&self, nodes: &[Submission<'_>], context: &Context) -> Result<Publication, Error> {
        let Context { target, fleet, events, session, .. } = context;
        let published = now() as u64;
        let control = fleet.control(target.cluster()).await?;
        let claimed = session.cancellation.run(self.claim(nodes, context)).await?;
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
            let machine = PoolMachine::connect(&self.pool, context).await?;
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
        context: &Context,
    ) -> Result<BTreeMap<String, Result<String, NodeError>>, Error> {
        let Context { target, fleet, events, .. } = context;
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
        let note = destination
            .is_behind_jump_host
            .then(|| format!("its login needs a jump host; members of the pool connect directly to {}", entry.host));
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

impl Key {
    /// Returns its public half.
    pub(in crate::commands) fn public(&self) -> &KeyData {
        match self {
            Key::Own(key) => key.public(),
            Key::Keygen(key) => &key.public,
        }
    }

    /// Returns each text with its signature.
    async fn sign(&self, texts: &[String], events: &Events) -> Result<Vec<String>, Error> {
        match self {
            Key::Own(key) => texts
                .iter()
                .map(|text| key.sign(text).ok_or_else(|| Error::Local("your key cannot sign".into())))
                .collect(),
            Key::Keygen(key) => key.sign(texts, events).await.map_err(|error| {
                let file = key.file.display();
                let hint = "add the private key to your agent (ssh-add), or run this in a terminal, where ssh-keygen asks \
                            for the passphrase";
                Error::check(format!("cannot sign with your key {file}: {error:#}"), hint)
            }),
        }
    }
}

/// Returns the host by which other members reach a node: the one that ssh connects to, unless that is a name of this machine only or behind
/// a jump host; then its address on the network between the nodes.
fn public_host(node: &Node, facts: &Facts, destination: &Destination) -> Result<String, NodeError> {
    if !destination.is_behind_jump_host && is_for_others(&destination.host) {
        return Ok(destination.host.clone());
    }
    let address = network::endpoint(node, facts).map(|endpoint| endpoint.address.to_string());
    let none = |why: String| {
        NodeError::failed(&node.name, PUBLISH, why).hint("set `address` to one by which other members reach it")
    };
    match address {
        Ok(address) if is_for_others(&address) => Ok(address),
        Ok(address) => Err(none(format!("no other machine reaches it at {address}"))),
        Err(why) => Err(none(why)),
    }
}

/// Reads the key.
pub(in crate::commands) fn read_key(pool: &Pool) -> Result<Key, Error> {
    let file = match (&pool.key, std::env::home_dir()) {
        (Some(file), _) => file.clone(),
        (None, Some(home)) => home.join(".ssh/id_ed25519"),
        (None, None) => PathBuf::from("id_ed25519"),
    };
    let shown = file.display();
    let make = "make a key for the pool: ssh-keygen -t ed25519 -f ~/.ssh/id_pool, and set key in [pool]";
    if let Some(key) = key_in_agent(&file) {
        return Ok(Key::Keygen(key));
    }
    let (text, mode) =
        key_text(&file).map_err(|why| Error::usage(format!("cannot read your key {shown}: {why}"), make))?;
    // before its mode, which is that of all public halves
    if public_key::parse(&text).is_some() {
        return Err(Error::usage(
            format!("{shown} is the public half of a key, and its name does not end with .pub"),
            "key in [pool] names the private half, or, if that is in your agent, a public half FILE.pub",
        ));
    }
    if mode & 0o077 != 0 {
        return Err(Error::usage(
            format!("other users can read your key {shown} (mode {mode:o}); ssh would not use it either"),
            format!("chmod 600 {}", quote::readable(&file.to_string_lossy())),
        ));
    }
    match SigningKey::parse(&text) {
        Ok(key) => Ok(Key::Own(key)),
        Err(KeyFault::Encrypted(public)) => Ok(Key::Keygen(KeygenKey { file, public: *public })),
        Err(KeyFault::Type) => {
            Err(Error::usage(format!("your key {shown} cannot be read as an Ed25519 or RSA key"), make))
        }
        Err(KeyFault::Format) => Err(Error::usage(
            format!("{shown} is no private key in OpenSSH's format"),
            "ssh-keygen -p -f FILE writes a key in that format",
        )),
    }
}

/// Returns a key of which only the public half is in a file: this one, or the one next to a private key that is
/// missing.
fn key_in_agent(file: &Path) -> Option<KeygenKey> {
    let is_public = file.extension().is_some_and(|extension| extension == "pub");
    if !is_public && file.exists() {
        return None;
    }
    let mut name = file.as_os_str().to_owned();
    if !is_public {
        name.push(".pub");
    }
    let (file, mut text) = (PathBuf::from(name), String::new());
    File::open(&file).ok()?.take(LARGEST_KEY).read_to_string(&mut text).ok()?;
    Some(KeygenKey { public: public_half(&text)?, file })
}

/// Returns the text of a private key, and who may read it.
fn key_text(file: &Path) -> Result<(Zeroizing<String>, u32), String> {
    let mut open = File::open(file).map_err(|error| error.to_string())?;
    let metadata = open.metadata().map_err(|error| error.to_string())?;
    if !metadata.is_file() {
        return Err("it is no file".into());
    }
    let mut text = Zeroizing::new(String::with_capacity(LARGEST_KEY as usize));
    (&mut open).take(LARGEST_KEY).read_to_string(&mut text).map_err(|error| error.to_string())?;
    Ok((text, metadata.mode() & 0o777))
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
