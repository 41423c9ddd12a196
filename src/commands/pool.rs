//! `hvdctl pool`: the machine of a pool and its files.

pub mod pick;
pub mod publish;

use super::Outcome;
use super::context::Context;
use crate::cluster::member::Member;
use crate::cluster::operator::{host_name, now};
use crate::error::Error;
use crate::event::{Events, Step};
use crate::inventory::{Node, Pool};
use crate::pool::directory::{Listing, MOST_FILES, PoolDirectory};
use crate::pool::format::PoolNode;
use crate::pool::signers::AllowedSigners;
use crate::pool::verification::{FileState, PoolFile, Verifier};
use crate::text::table::table;
use crate::text::units::age;
use crate::transport::node::RunAs;
use schemars::JsonSchema;
use serde::Serialize;
use std::fs::File;
use std::io::Read;

/// The most bytes of the file of allowed signers.
const LARGEST_SIGNERS: u64 = 1 << 20;

/// Why a node of an older hvdctl is not picked.
pub(super) const NO_HOST_KEY: &str = "no ssh host key; publish it again with a newer hvdctl";

/// `pool`.
#[derive(Debug, Serialize, JsonSchema)]
pub struct PoolDocument {
    /// The files of the pool: valid ones first.
    pub files: Vec<PoolEntry>,
    /// Whether the pool has more files than are read.
    pub is_cut: bool,
}

/// A file of a pool.
#[derive(Debug, Serialize, JsonSchema)]
pub struct PoolEntry {
    /// The name of the file.
    pub file: String,
    /// What it is. Only a `valid` one is ever picked.
    pub state: FileState,
    /// Why it is not valid, or null.
    pub reason: Option<String>,
    /// What its owner has signed; null if nothing in it can be believed.
    pub node: Option<PoolNode>,
}

/// The machine of a pool, connected.
pub(super) struct PoolMachine(Member);

impl PoolMachine {
    /// Logs in to it.
    ///
    /// # Errors
    /// When it cannot be reached.
    pub(super) async fn connect(pool: &Pool, context: &Context) -> Result<PoolMachine, Error> {
        let Context { target, fleet, events, .. } = context;
        let here = fleet.here();
        let (fleet, node) = match pool.machine() {
            Some(node) => (fleet, node),
            None => (&here, Node { name: format!("pool on {}", host_name()), master: true, ..Node::default() }),
        };
        let mut members = fleet.connect(&target.of_nodes(vec![node]), RunAs::Login, events).await?;
        match members.pop() {
            Some(member) => Ok(PoolMachine(member.map_err(Error::Pool)?)),
            None => Err(Error::Local("the pool has no machine".into())),
        }
    }

    /// Returns its name in messages.
    pub(super) fn name(&self) -> &str {
        &self.0.node.name
    }

    /// Returns the pool's directory there.
    pub(super) fn directory<'a>(&'a self, pool: &'a Pool) -> PoolDirectory<'a> {
        PoolDirectory { transport: &self.0.transport, path: &pool.path }
    }
}

/// Returns the pool of the inventory.
///
/// # Errors
/// If it has none.
pub(super) fn pool_of(context: &Context) -> Result<&Pool, Error> {
    let none = || Error::usage("the inventory has no [pool]", "docs/pool.md has the steps to set one up");
    context.target.inventory.pool.as_ref().ok_or_else(none)
}

/// Reads the members, and reports the lines that grant nothing.
///
/// # Errors
/// If the file cannot be read, or no line of it grants anything.
pub(super) fn read_signers(pool: &Pool, events: &Events) -> Result<AllowedSigners, Error> {
    let file = &pool.allowed_signers;
    let shown = file.display();
    let hint =
        "one line for each member: ana@example.com namespaces=\"hvdctl-pool\" ssh-ed25519 AAAA...; see docs/pool.md";
    let read = || {
        let mut bytes = Vec::new();
        File::open(file)?.take(LARGEST_SIGNERS + 1).read_to_end(&mut bytes)?;
        Ok(String::from_utf8_lossy(&bytes).into_owned())
    };
    let text: std::io::Result<String> = read();
    let text = text.map_err(|error| Error::usage(format!("cannot read the members in {shown}: {error}"), hint))?;
    if text.len() as u64 > LARGEST_SIGNERS {
        return Err(Error::usage(format!("{shown} is larger than 1 MiB"), hint));
    }
    let signers = AllowedSigners::parse(&text);
    for (line, why) in &signers.faults {
        events.warn(format!("{shown}:{line}: this line adds no member: {why}"));
    }
    if signers.is_empty() {
        return Err(Error::usage(format!("{shown} names no member"), hint));
    }
    Ok(signers)
}

/// A pool that was read.
pub(super) struct PoolContents {
    /// Its files, valid ones first.
    pub(super) files: Vec<PoolFile>,
    /// Whether it has more than are read.
    is_cut: bool,
    pub(super) signers: AllowedSigners,
}

/// Reads and judges the files of the pool, and reports when there are too many.
pub(super) async fn read(context: &Context) -> Result<PoolContents, Error> {
    let Context { events, session, .. } = context;
    let pool = pool_of(context)?;
    let signers = read_signers(pool, events)?;
    let reading = async {
        let machine = PoolMachine::connect(pool, context).await?;
        let directory = machine.directory(pool);
        events.step(machine.name(), Step::read("reading the pool"), directory.read()).await.map_err(Error::Pool)
    };
    let Listing { files, unread, is_cut } = session.cancellation.run(reading).await?;
    let verifier = Verifier { signers: &signers, now: now() as u64 };
    let judge = |(name, content): &(String, Vec<u8>)| PoolFile::judge(name, content, verifier);
    let mut files: Vec<PoolFile> = files.iter().map(judge).chain(unread).collect();
    files.sort_by(|one, other| {
        let key = |file: &PoolFile| {
            let node = file.node.as_ref();
            (
                file.state,
                node.map(|node| (node.owner.clone(), node.cluster.clone(), node.node.clone())),
                file.name.clone(),
            )
        };
        key(one).cmp(&key(other))
    });
    if is_cut {
        events.warn(format!("the pool has more than {MOST_FILES} files, of which that many are read"));
    }
    Ok(PoolContents { files, is_cut, signers })
}

/// `pool`.
pub async fn list(context: &Context) -> Result<Outcome, Error> {
    let PoolContents { files, is_cut, .. } = read(context).await?;
    Ok(listed(files, is_cut, now() as u64))
}

pub(super) fn listed(files: Vec<PoolFile>, is_cut: bool, now: u64) -> Outcome {
    let text = match files.is_empty() {
        true => "the pool has no nodes; hvdctl grade --publish adds yours\n".to_owned(),
        false => {
            let rows = files.iter().map(|file| row(file, now));
            table(&["OWNER", "NODE", "GRADE", "SLOTS", "PUBLISHED", "KIND", "STATE"], rows)
        }
    };
    let entry = |PoolFile { name, state, reason, node, .. }: PoolFile| {
        let reason = Some(reason).filter(|reason| !reason.is_empty());
        PoolEntry { file: name, state, reason, node }
    };
    Outcome::ok(text, PoolDocument { files: files.into_iter().map(entry).collect(), is_cut })
}

fn row(file: &PoolFile, now: u64) -> Vec<String> {
    let has_no_key = file.node.as_ref().is_some_and(|node| node.host_key.is_none());
    let state = match file.state {
        FileState::Valid if has_no_key => format!("valid, not picked: {NO_HOST_KEY}"),
        FileState::Valid => "valid".to_owned(),
        state => format!("{state}: {}", file.reason),
    };
    let Some(node) = &file.node else {
        return vec!["–".into(), file.name.clone(), "–".into(), "–".into(), "–".into(), "–".into(), state];
    };
    let PoolNode { owner, node, grade, slots, published, kind, .. } = node;
    let published = format!("{} ago", age(now.saturating_sub(*published)));
    vec![owner.clone(), node.clone(), grade.to_string(), slots.to_string(), published, kind.to_string(), state]
}
