//! `grade --publish`: signed files of the nodes in the pool.

use super::context::Context;
use super::pool::{PoolMachine, read_signers};
use crate::cluster::operator::now;
use crate::error::{Error, NodeError};
use crate::event::{Message, Step};
use crate::inventory::{Node, Pool};
use crate::model::grade::NodeGrade;
use crate::node::facts::Facts;
use crate::node::network;
use crate::pool::format::{FORMAT, PoolNode, is_for_others};
use crate::pool::signature::{KeyFault, NAMESPACE, SigningKey};
use crate::pool::signers::AllowedSigners;
use crate::text::nodeset;
use crate::text::public_key;
use crate::text::quote;
use crate::text::units::stamp;
use crate::transport::ssh::Destination;
use ssh_key::PublicKey;
use std::collections::BTreeMap;
use std::fs::File;
use std::io::Read;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use zeroize::Zeroizing;

/// The most bytes of a private key.
const LARGEST_KEY: u64 = 64 << 10;

/// How an owner signs.
pub(super) struct Publisher {
    pool: Pool,
    key: SigningKey,
    owner: String,
}

/// What was published.
pub(super) struct Publication {
    /// The name of each node's file.
    pub(super) files: BTreeMap<String, String>,
    /// What is shown.
    pub(super) text: String,
}

/// A node that is published, with what is known of it.
pub(super) struct Published<'a> {
    pub(super) node: &'a Node,
    pub(super) facts: &'a Facts,
    pub(super) grade: &'a NodeGrade,
}

impl Publisher {
    /// Reads the key and finds its owner among the members, before any node is contacted.
    ///
    /// # Errors
    /// Without a pool, a key that can sign, or an owner that has it.
    pub(super) fn new(context: &Context) -> Result<Publisher, Error> {
        let pool = super::pool::pool_of(context)?.clone();
        let signers = read_signers(&pool, &context.events)?;
        let key = read_key(&pool)?;
        let owner = owner(&pool, &signers, &key)?;
        Ok(Publisher { pool, key, owner })
    }

    /// Signs the nodes and writes their files.
    ///
    /// # Errors
    /// If the pool cannot be written to. A node without an address for others is reported and left out.
    pub(super) async fn publish(&self, nodes: &[Published<'_>], context: &Context) -> Result<Publication, Error> {
        let Context { target, fleet, events, session, .. } = context;
        let published = now() as u64;
        let expires = published + self.pool.lifetime.as_secs();
        let control = fleet.control(target.cluster()).await?;
        let (mut files, mut names) = (Vec::new(), BTreeMap::new());
        for Published { node, facts, grade } in nodes {
            let destination = match &control {
                Some(control) => control.destination(node).await?,
                None => Destination::of(node),
            };
            let host = match public_host(node, facts, &destination) {
                Ok(host) => host,
                // the others are published
                Err(error) => {
                    events.warn(Message::Failure(error));
                    continue;
                }
            };
            if destination.is_behind_jump_host {
                let text = format!("its login needs a jump host; members of the pool connect directly to {host}");
                events.note(Message::of(&node.name, text));
            }
            let slots = network::slots(node, facts);
            if slots == 0 {
                events.note(Message::of(&node.name, "not published: its GPUs are not known, so it has no slots"));
                continue;
            }
            let NodeGrade { kind, grade, score, evidence, .. } = (*grade).clone();
            let entry = PoolNode {
                format: FORMAT,
                owner: self.owner.clone(),
                cluster: target.cluster().name.clone(),
                node: node.name.clone(),
                host,
                port: destination.port,
                address: node.address,
                kind,
                grade,
                score,
                evidence,
                slots: slots.min(1024),
                gpus: node.gpus.choice().cloned(),
                published,
                expires,
            };
            let refused = |why: String| NodeError::failed(&node.name, "publish it", why);
            let text = entry.text().map_err(refused)?;
            let file = self.key.sign(&text).ok_or_else(|| refused("the private key cannot sign".into()))?;
            names.insert(node.name.clone(), entry.file_name());
            files.push((entry.file_name(), file));
        }
        if files.is_empty() {
            return Ok(Publication { files: names, text: "published nothing\n".to_owned() });
        }
        let publishing = async {
            let machine = PoolMachine::connect(&self.pool, context).await?;
            let directory = machine.directory(&self.pool);
            let writing = directory.publish(&files);
            events.step(machine.name(), Step::write("writing to the pool"), writing).await.map_err(Error::Pool)
        };
        session.cancellation.run(publishing).await?;
        let shown: Vec<&String> = names.keys().collect();
        let text = format!("published {} as {} until {}\n", nodeset::fold(&shown), self.owner, stamp(expires as f64));
        Ok(Publication { files: names, text })
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
        NodeError::failed(&node.name, "publish it", why).hint("set `address` to one by which other members reach it")
    };
    match address {
        Ok(address) if is_for_others(&address) => Ok(address),
        Ok(address) => Err(none(format!("no other machine reaches it at {address}"))),
        Err(why) => Err(none(why)),
    }
}

/// Reads the private key.
fn read_key(pool: &Pool) -> Result<SigningKey, Error> {
    let file = match (&pool.key, std::env::home_dir()) {
        (Some(file), _) => file.clone(),
        (None, Some(home)) => home.join(".ssh/id_ed25519"),
        (None, None) => PathBuf::from("id_ed25519"),
    };
    let shown = file.display();
    let make = "make a key for the pool: ssh-keygen -t ed25519 -N '' -f ~/.ssh/id_pool, and set key in [pool]";
    let (text, mode) =
        key_text(&file).map_err(|why| Error::usage(format!("cannot read your key {shown}: {why}"), make))?;
    // before its mode, which is that of all public halves
    if public_key::parse(&text).is_some() {
        return Err(Error::usage(
            format!("{shown} is the public half of a key"),
            "key in [pool] names the private half, which has the same name without .pub",
        ));
    }
    if mode & 0o077 != 0 {
        return Err(Error::usage(
            format!("other users can read your key {shown} (mode {mode:o}); ssh would not use it either"),
            format!("chmod 600 {}", quote::readable(&file.to_string_lossy())),
        ));
    }
    SigningKey::parse(&text).map_err(|fault| match fault {
        KeyFault::Encrypted => Error::usage(
            format!("your key {shown} has a passphrase, and hvdctl signs with keys without one only"),
            make,
        ),
        KeyFault::Type => Error::usage(format!("your key {shown} cannot be read as an Ed25519 or RSA key"), make),
        KeyFault::Format => Error::usage(
            format!("{shown} is no private key in OpenSSH's format"),
            "ssh-keygen -p -f FILE writes a key in that format",
        ),
    })
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
fn owner(pool: &Pool, signers: &AllowedSigners, key: &SigningKey) -> Result<String, Error> {
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
