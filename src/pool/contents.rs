//! Reads a pool: its members and its files.

use super::directory::{Listing, MOST_FILES};
use super::machine::PoolMachine;
use super::signers::AllowedSigners;
use super::verification::{PoolFile, Verifier};
use crate::cluster::operator::now;
use crate::cluster::site::Site;
use crate::error::Error;
use crate::event::{Events, Step};
use crate::inventory::Pool;
use std::fs::File;
use std::io::Read;

/// The most bytes of the file of allowed signers.
const LARGEST_SIGNERS: u64 = 1 << 20;

/// A pool that was read.
pub struct PoolContents {
    /// Its files, valid ones first.
    pub files: Vec<PoolFile>,
    /// Set if it has more files than are read.
    pub is_cut: bool,
    /// Its members.
    pub signers: AllowedSigners,
}

impl PoolContents {
    /// Reads and judges the files of a pool, and reports when there are too many.
    ///
    /// # Errors
    /// If the members or the files cannot be read, or the command is cancelled.
    pub async fn read(pool: &Pool, site: Site<'_>) -> Result<PoolContents, Error> {
        let Site { events, session, .. } = site;
        let signers = read_signers(pool, events)?;
        let reading = async {
            let machine = PoolMachine::connect(pool, site).await?;
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
            events.warn(format!("the pool has more than {MOST_FILES} files; only that many are read"));
        }
        Ok(PoolContents { files, is_cut, signers })
    }
}

/// Reads the members, and reports the lines that grant nothing.
///
/// # Errors
/// If the file cannot be read, or no line of it grants anything.
pub(super) fn read_signers(pool: &Pool, events: &Events) -> Result<AllowedSigners, Error> {
    let file = &pool.allowed_signers;
    let shown = file.display();
    let hint = "one line for each member: ana@example.com namespaces=\"hvdctl-pool\" ssh-ed25519 AAAA...; see \
         docs/reference/pool.md";
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
        return Err(Error::usage(format!("{shown} lists no members"), hint));
    }
    Ok(signers)
}
