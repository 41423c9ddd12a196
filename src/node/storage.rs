//! A node's directories: their room, their file systems, and who shares them.

use super::lines::parts;
use crate::inventory::NAME;
use std::collections::BTreeMap;

/// Room on a file system.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Disk {
    /// Its purpose: `images`, `jobs` or `projects`.
    pub what: String,
    /// Bytes that are free.
    pub free: u64,
    /// The directory.
    pub path: String,
}

/// Number of further files and directories for which a file system has room, if that is limited.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Inodes {
    /// Its purpose: `images`, `jobs`, `projects` or `data`.
    pub what: String,
    /// Number of files and directories that can still be created.
    pub free: u64,
    /// The directory.
    pub path: String,
}

/// A directory of the cluster on a node, or its nearest parent that exists.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NodeDirectory {
    /// Its purpose: `ssh`, `jobs`, `projects` or `data`.
    pub what: String,
    /// The type of its file system, as `stat` names it without spaces.
    pub file_system: String,
    /// The directory.
    pub path: String,
}

/// A directory that is the same one on several nodes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SharedDirectory {
    /// Its purpose: `ssh`, `jobs`, `projects` or `data`.
    pub what: String,
    /// The directory.
    pub path: String,
    /// The other nodes.
    pub with: Vec<String>,
}

/// Memory that processes share as files: `/dev/shm` of a worker.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SharedMemory {
    /// Its size in bytes.
    pub size: u64,
    /// Bytes that are in use.
    pub used: u64,
}

/// The observed directories of a node.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct NodeStorage {
    /// Room for jobs and projects.
    pub disks: Vec<Disk>,
    /// Room for files of jobs, projects and data.
    pub inodes: Vec<Inodes>,
    /// The directories that belong to this node alone, or should.
    pub directories: Vec<NodeDirectory>,
    /// The directories among them that other nodes have, too.
    pub shared: Vec<SharedDirectory>,
    /// The reason why that is unknown, if it is.
    pub shared_unknown: Option<String>,
    /// This cluster's data by name.
    pub pushed: BTreeMap<String, PushedData>,
    /// The login's virtualenvs by name, each with the directory in which it was made.
    pub virtualenvs: BTreeMap<String, String>,
    /// `/dev/shm` of the worker, if that is a container and runs.
    pub shared_memory: Option<SharedMemory>,
}

/// Data that were pushed to a node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PushedData {
    /// Their hash; `-` if a push is incomplete.
    pub hash: String,
    /// The inode of their directory, if it is there.
    pub inode: Option<u64>,
}

impl NodeStorage {
    /// Takes a line of the script, if it is about this.
    pub(super) fn read(&mut self, key: &str, value: &str) {
        match key {
            "disk" => self.disks.extend(disk(value)),
            "inodes" => self.inodes.extend(inodes(value)),
            "directory" => self.directories.extend(directory(value)),
            "pushed" => self.pushed.extend(pushed(value)),
            "shm" => self.shared_memory = shared_memory(value),
            "virtualenv" => {
                let parts = value.split_once(' ');
                self.virtualenvs.extend(parts.map(|(name, place)| (name.to_owned(), place.to_owned())));
            }
            _ => {}
        }
    }
}

/// Parses `WHAT KILOBYTES PATH`.
pub fn disk(value: &str) -> Option<Disk> {
    let [what, free, path] = parts(value)?;
    Some(Disk { what: what.to_owned(), free: free.parse::<u64>().ok()?.saturating_mul(1024), path: path.to_owned() })
}

/// Parses `WHAT COUNT PATH`. A number that cannot be read counts as none.
pub fn inodes(value: &str) -> Option<Inodes> {
    let [what, free, path] = parts(value)?;
    Some(Inodes { what: what.to_owned(), free: free.parse().unwrap_or_default(), path: path.to_owned() })
}

/// Parses `NAME HASH INODE`.
fn pushed(value: &str) -> Option<(String, PushedData)> {
    let [name, hash, inode] = parts(value)?;
    // it becomes a path of a mount
    NAME.read(name).ok()?;
    Some((name.to_owned(), PushedData { hash: hash.to_owned(), inode: inode.parse().ok() }))
}

/// Parses `BYTES-OF-A-BLOCK BLOCKS FREE-BLOCKS`.
fn shared_memory(value: &str) -> Option<SharedMemory> {
    let [block, blocks, free] = parts(value)?;
    let number = |text: &str| text.parse::<u64>().ok();
    let (block, blocks, free) = (number(block)?, number(blocks)?, number(free)?);
    Some(SharedMemory { size: blocks.checked_mul(block)?, used: blocks.checked_sub(free)?.checked_mul(block)? })
}

/// Parses `WHAT FILE-SYSTEM PATH`.
fn directory(value: &str) -> Option<NodeDirectory> {
    let [what, file_system, path] = parts(value)?.map(str::to_owned);
    Some(NodeDirectory { what, file_system, path })
}
