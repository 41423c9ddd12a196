//! Pushes directories of data to the nodes, where ranks read them below [`DATA`].
//!
//! [`NodeData::compare`] finds out what a node has, [`ChangeSet`] decides what it is sent, and [`NodeData::push`] sends
//! that as one tar stream and checks the node's proof. The stream depends only on the manifest and the selection, so
//! nodes that lack the same can be sent the same bytes: [`super::groups`] finds them, and [`super::parcel`] is the form
//! in which relays pass these on.

use crate::error::{Error, ErrorKind, NodeError};
use crate::event::transfer::TransferProgress;
use crate::event::{Events, Step};
use crate::inventory::Cluster;
use crate::paths::DATA;
use crate::sync::difference::{self, HAS, MANY, STAGED};
use crate::sync::files::{NAMED, ProjectFiles};
use crate::sync::manifest::{Difference, ManifestEntry, Selection};
use crate::sync::project::{self, earlier_origin};
use crate::sync::{limit, run, too_many};
use crate::text::failure::{self, FileFailure};
use crate::text::nodeset::printable;
use crate::text::units::{count, human};
use crate::transport::node::{Output, Process, Transport};
use anyhow::Context as _;
use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

const COMPARE: &str = concat!(
    include_str!("../scripts/node/close.sh"),
    include_str!("../scripts/upload/common.sh"),
    include_str!("../scripts/data/lock.sh"),
    include_str!("../scripts/data/compare.sh")
);
const MANIFEST: &str =
    concat!(include_str!("../scripts/upload/common.sh"), include_str!("../scripts/upload/manifest.sh"));
const STAGE: &str = concat!(
    include_str!("../scripts/upload/common.sh"),
    include_str!("../scripts/data/lock.sh"),
    include_str!("../scripts/upload/prepare.sh"),
    include_str!("../scripts/data/stage.sh")
);
const APPLY: &str = concat!(
    include_str!("../scripts/node/close.sh"),
    include_str!("../scripts/upload/common.sh"),
    include_str!("../scripts/data/lock.sh"),
    include_str!("../scripts/upload/receive.sh"),
    include_str!("../scripts/data/apply.sh")
);
const RELAY: &str = concat!(include_str!("../scripts/upload/common.sh"), include_str!("../scripts/data/relay.sh"));
const STOP: &str = concat!(
    include_str!("../scripts/data/exists.sh"),
    include_str!("../scripts/upload/common.sh"),
    include_str!("../scripts/data/lock.sh"),
    include_str!("../scripts/data/stop.sh")
);
const LIST: &str = concat!(
    include_str!("../scripts/data/exists.sh"),
    include_str!("../scripts/upload/common.sh"),
    include_str!("../scripts/data/list.sh")
);
const REMOVE: &str = concat!(
    include_str!("../scripts/data/exists.sh"),
    include_str!("../scripts/upload/common.sh"),
    include_str!("../scripts/data/lock.sh"),
    include_str!("../scripts/data/remove.sh")
);

/// Exit codes of `data/apply.sh`: what arrived differs from what was sent; what is in place does.
const DIFFERENT: i32 = 3;
const MISPLACED: i32 = 4;

/// Bytes that a file or directory takes at least, and in multiples of which a file takes more.
const BLOCK: u64 = 4096;

/// The pipe in the directory of a relay, to which it writes the files.
pub const RELAY_PIPE: &str = "pipe";

/// Data on one node.
#[derive(Debug, Clone, Copy)]
pub struct NodeData<'a> {
    /// The cluster.
    pub cluster: &'a Cluster,
    /// The node.
    pub transport: &'a Transport,
    /// The name of the data.
    pub name: &'a str,
}

/// A directory of data here.
#[derive(Debug, Clone)]
pub struct Data {
    /// Its files.
    pub files: ProjectFiles,
    /// Their place, see [`origin`](crate::sync::project::origin).
    pub origin: String,
    /// If set, they may replace data of the same name from another place.
    pub replaces: bool,
}

/// The state of data on a node.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct DataState {
    /// Set if it has exactly these files.
    pub is_same: bool,
    /// Set if it has data of this name, which a job may read.
    pub is_present: bool,
    /// The place from which the existing data of this name were pushed, if these would replace them and are from
    /// another place.
    pub replaces: Option<String>,
    /// The hash of the manifest of what is in place.
    has: Option<String>,
    /// The hash of that of the files that an interrupted push has left.
    staged: Option<String>,
    /// Set if a push was interrupted.
    is_staging: bool,
    /// The free bytes.
    free: u64,
    /// The number of further files and directories that fit, if it is limited.
    inodes: Option<u64>,
}

/// The changes that a push makes on a node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ChangeSet {
    /// The difference between the node's data and these. Nodes with the same difference share it.
    difference: Arc<Difference>,
    /// The entries that are sent.
    sent: Selection,
    /// The files that arrived in an interrupted push.
    kept: Selection,
    /// Set if a push was interrupted.
    is_staging: bool,
    /// The summary of the changes.
    pub summary: PushSummary,
}

/// The changes that a push has made on a node.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct PushSummary {
    /// Number of files and links sent.
    pub sent: usize,
    /// Their bytes, without holes.
    pub bytes: u64,
    /// Number of files that an interrupted push had sent.
    pub resumed: usize,
    /// Number of entries removed.
    pub removed: usize,
}

impl PushSummary {
    /// Counts the files and links among these entries.
    fn of(files: &ProjectFiles, sent: &Selection) -> PushSummary {
        let entries = files.manifest.select(sent).map(|(_, entry)| entry);
        let count = entries.filter(|entry| !matches!(entry, ManifestEntry::Directory { .. })).count();
        PushSummary { sent: count, bytes: files.stored(sent), ..PushSummary::default() }
    }
}

/// Data that a node has.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DataOnNode {
    /// The name.
    pub name: String,
    /// `complete`, `incomplete`, `changed` or `removed`; the last two by others than hvdctl.
    pub state: String,
    /// The hash of the manifest, if the data are complete.
    pub hash: Option<String>,
    /// Number of files.
    pub files: u64,
    /// Their size in bytes.
    pub size: u64,
    /// Seconds since the push.
    pub age: Option<u64>,
    /// The place from which they were pushed, see [`origin`](crate::sync::project::origin).
    pub origin: String,
}

/// The result of removing data.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Removal {
    /// Set if there was anything to remove.
    pub is_changed: bool,
    /// Set if files of others remain in the directory.
    pub is_left: bool,
}

impl Data {
    /// Reads a directory. `replaces`: whether it may replace data of the same name from another place.
    ///
    /// # Errors
    /// If it cannot be read, or is empty.
    pub async fn read(root: PathBuf, replaces: bool) -> Result<Data, Error> {
        let (origin, shown) = (project::origin(&root), root.display().to_string());
        let files = tokio::task::spawn_blocking(move || ProjectFiles::read_data(&root)).await;
        let files = files.context("cannot read the data")??;
        if files.manifest.0.is_empty() {
            return Err(Error::usage(format!("{shown} is empty"), "name a directory with files"));
        }
        Ok(Data { files, origin, replaces })
    }

    /// Returns what the operator may not expect of it under this name.
    pub fn notes(&self, name: &str) -> Vec<String> {
        let links = self.files.manifest.links_out(&format!("{DATA}/{name}"));
        let named: Vec<_> =
            links.iter().take(NAMED).map(|(name, target)| printable(&format!("{name} -> {target}"))).collect();
        let (lead, more) =
            (if links.len() == 1 { "leads" } else { "lead" }, if links.len() > NAMED { ", …" } else { "" });
        let note = (!links.is_empty()).then(|| {
            let (links, named) = (count(links.len(), "link"), named.join(", "));
            format!("{links} {lead} out of the data; files outside it are not pushed: {named}{more}")
        });
        self.files.notes.iter().cloned().chain(note).collect()
    }
}

impl ChangeSet {
    /// Decides what is sent to a node. `staged`: what an interrupted push has left there.
    fn new(
        files: &ProjectFiles,
        difference: Arc<Difference>,
        staged: Option<&Selection>,
        is_staging: bool,
    ) -> ChangeSet {
        let missing = &difference.missing;
        let kept = files.manifest.kept(missing, staged.unwrap_or(&missing.without(missing)));
        let sent = if kept.is_empty() { missing.clone() } else { missing.without(&kept) };
        let removed = difference.removed;
        let summary = PushSummary { resumed: kept.count(), removed, ..PushSummary::of(files, &sent) };
        ChangeSet { difference, sent, kept, is_staging, summary }
    }

    /// Returns the entries that are sent.
    pub fn sent(&self) -> &Selection {
        &self.sent
    }

    /// Returns what is done if more is sent: all entries of a group of nodes to which this one belongs.
    #[must_use]
    pub fn in_group(&self, files: &ProjectFiles, sent: &Selection) -> ChangeSet {
        if self.sent == *sent {
            return self.clone();
        }
        let kept = self.kept.without(sent);
        let removed = self.summary.removed;
        let summary = PushSummary { resumed: kept.count(), removed, ..PushSummary::of(files, sent) };
        ChangeSet { sent: sent.clone(), kept, summary, ..self.clone() }
    }

    /// Returns the bytes that the node needs for it, with an allowance for its manifest.
    fn needed(&self, files: &ProjectFiles) -> u64 {
        let manifest = &files.manifest;
        let stored = |(at, _, entry): (usize, &String, &ManifestEntry)| {
            files.stored_at(at, entry).div_ceil(BLOCK).max(1) * BLOCK
        };
        manifest.select_at(&self.sent).map(stored).sum::<u64>() + 4 * manifest.length(&manifest.all())
    }
}

impl NodeData<'_> {
    /// Returns the argv of a script that begins with `upload/common.sh`. Its standard input is free for the files.
    fn argv<'a>(&'a self, script: &'a str, arguments: &[&'a str]) -> Vec<&'a str> {
        [&["sh", "-c", script, "sh", &self.cluster.data_dir, self.name, &self.cluster.name], arguments].concat()
    }

    fn directory(&self) -> String {
        format!("{}/{}", self.cluster.data_dir, self.name)
    }

    /// Compares data with what the node has of them, and with its free space. Returns that, and what the node is sent.
    ///
    /// # Errors
    /// If the comparison fails, the name is that of other data, hvdctl did not create the directory, or there is too
    /// little space.
    pub async fn compare(self, data: &Data) -> Result<(DataState, ChangeSet), NodeError> {
        let (node, manifest) = (self.transport.node(), &data.files.manifest);
        let operation = format!("compare the data with {}", self.directory());
        let replaces = if data.replaces { "shared" } else { "" };
        let earlier = earlier_origin(&data.origin);
        let argv = self.argv(COMPARE, &[&data.files.hash, &data.origin, &earlier, replaces]);
        // what is in place and what is staged may be larger than these
        let output = run(self.transport, &argv, &[], &operation, MANY.max(2 * manifest.size())).await?.stdout;
        let state = DataState::parse(&output).map_err(|refusal| {
            let hint = match &refusal {
                DataRefusal::Origin(_) => {
                    format!(
                        "choose another name with --as NAME; or, if these replace them, confirm that: --as {}",
                        self.name
                    )
                }
                DataRefusal::Cluster(_) | DataRefusal::Foreign => "choose another name with --as NAME".to_owned(),
            };
            NodeError::failed(node, &operation, refusal).hint(hint)
        })?;
        let change = self.change(data, &state).await?;
        if !state.is_same {
            self.check_space(change.needed(&data.files), state.free)?;
            self.check_inodes(change.sent.count() as u64, state.inodes)?;
        }
        Ok((state, change))
    }

    /// Returns what a node in this state is sent.
    async fn change(&self, data: &Data, state: &DataState) -> Result<ChangeSet, NodeError> {
        let (manifest, differences) = (&data.files.manifest, &data.files.differences);
        let of = |list| self.argv(MANIFEST, &[list]);
        let difference = match &state.has {
            _ if state.is_same => differences.none(manifest),
            Some(hash) => differences.get(manifest, hash, (self.transport, &of(HAS))).await?,
            None => differences.all(manifest),
        };
        let staged = match &state.staged {
            Some(hash) => Some(difference::had(manifest, hash, (self.transport, &of(STAGED))).await?),
            None => None,
        };
        Ok(ChangeSet::new(&data.files, difference, staged.as_ref(), state.is_staging))
    }

    fn check_space(&self, needed: u64, free: u64) -> Result<(), NodeError> {
        if needed <= free {
            return Ok(());
        }
        let cause = format!(
            "they need {}, but {} has only {} free: {} are missing",
            human(needed),
            self.cluster.data_dir,
            human(free),
            human(needed - free)
        );
        Err(self.no_space(self.failed(cause)))
    }

    /// Checks that a node can have the files and directories that it is sent.
    fn check_inodes(&self, needed: u64, free: Option<u64>) -> Result<(), NodeError> {
        let Some(cause) = too_many("they are", needed, free, &self.cluster.data_dir) else { return Ok(()) };
        Err(self.failed(cause).kind(ErrorKind::NoSpace).hint(
            "remove files there (df -i), set cluster.data_dir to another disk, or pack the data (tar, WebDataset)",
        ))
    }

    /// Sends a change set from this machine. Returns the bytes of its stream.
    ///
    /// # Errors
    /// If the node cannot store the files or ends up with others. What has arrived stays for the next push.
    pub async fn push(self, data: &Data, change: &ChangeSet, events: &Events) -> Result<u64, NodeError> {
        let transport = self.transport;
        let _step = self.step(change, events);
        let process = self.start(data, change, "").await?;
        let limits = (transport.limit(), self.end_limit(data));
        let mut progress = TransferProgress::new(transport.node(), events);
        let mut sent = 0;
        let report = |done| {
            sent = done;
            progress.report("pushing", done, change.summary.bytes);
        };
        let output = process.feed(data.files.stream(change.sent.clone()), limits, report).await;
        self.check(data, output)?;
        Ok(sent)
    }

    /// Begins the step in which a change set is sent.
    pub fn step(&self, change: &ChangeSet, events: &Events) -> impl Drop + use<> {
        let PushSummary { sent, bytes, .. } = change.summary;
        let text = format!("pushing {}, {}", count(sent, "file"), human(bytes));
        events.begin(self.transport.node(), Step::transfer(text))
    }

    /// Starts the program on the node that takes the tar stream of a change set, checks it and puts it into place.
    /// `pipe`: the pipe on the node from which it reads; empty for its standard input.
    ///
    /// # Errors
    /// If it cannot be started, or the node cannot remove what is left of an earlier push.
    pub async fn start(&self, data: &Data, change: &ChangeSet, pipe: &str) -> Result<Process, NodeError> {
        let (transport, ProjectFiles { manifest, hash, .. }) = (self.transport, &data.files);
        let operation = self.operation();
        if change.is_staging || !change.difference.gone.is_empty() {
            self.prepare(data, change).await?;
        }
        let (arrived, placed) = (manifest.arrived(&change.sent), manifest.placed(false));
        let argv = self.argv(APPLY, &[hash, &arrived, &placed, &data.origin, pipe]);
        transport.spawn_receiver(&argv, &operation).await
    }

    /// Tells the node what it keeps of an interrupted push, and what it removes.
    async fn prepare(&self, data: &Data, change: &ChangeSet) -> Result<(), NodeError> {
        let (transport, operation) = (self.transport, self.operation());
        let pieces = data.files.prepare(&change.difference, change.kept.clone());
        let process = transport.spawn_receiver(&self.argv(STAGE, &[]), &operation).await?;
        let output = process.feed(pieces, (transport.limit(), limit(transport, MANY)), |_| ()).await;
        let output = output.map_err(|e| transport.broken(&operation, &e));
        output
            .and_then(|output| transport.succeeded(output, &operation))
            .map(drop)
            .map_err(|error| self.with_hint(error))
    }

    /// Checks how that program has ended: with its proof.
    ///
    /// # Errors
    /// If the node could not store the files, or has others.
    pub fn check(&self, data: &Data, ended: io::Result<Output>) -> Result<(), NodeError> {
        let (transport, operation) = (self.transport, self.operation());
        let output = ended.map_err(|e| transport.broken(&operation, &e));
        let output = output.and_then(|output| transport.succeeded(output, &operation));
        let output = output.map_err(|error| self.with_hint(error))?;
        let proof = String::from_utf8_lossy(&output.stdout);
        if proof.split_whitespace().next() != Some(&data.files.hash) {
            let cause = format!("the node has files with the hash {}, this machine {}", proof.trim(), data.files.hash);
            return Err(self.failed(cause));
        }
        Ok(())
    }

    /// Returns the longest time that the node may take for what it has received.
    pub fn end_limit(&self, data: &Data) -> Duration {
        limit(self.transport, data.files.manifest.size())
    }

    /// Returns the error of a push.
    pub fn failed(&self, cause: impl std::fmt::Display) -> NodeError {
        NodeError::failed(self.transport.node(), &self.operation(), cause)
    }

    /// Returns the error of a push whose stream broke on this machine.
    pub fn broken(&self, error: &io::Error) -> NodeError {
        self.with_hint(self.transport.broken(&self.operation(), error))
    }

    fn operation(&self) -> String {
        format!("push the data {}", self.name)
    }

    /// Makes the directory in which a relay spools `length` bytes for this change set, and its pipe. Returns its path.
    ///
    /// # Errors
    /// If there is too little space, or the node cannot make it.
    pub async fn prepare_relay(
        &self,
        data: &Data,
        state: &DataState,
        change: &ChangeSet,
        length: u64,
    ) -> Result<String, NodeError> {
        let (node, operation) = (self.transport.node(), "start a relay");
        let needed = change.needed(&data.files).saturating_add(length);
        if needed > state.free {
            let (needed, free) = (human(needed), human(state.free));
            let cause = format!("{} has only {free} free, but {needed} are needed", self.cluster.data_dir);
            return Err(NodeError::failed(node, operation, cause));
        }
        if let Some(cause) = too_many("they are", change.sent.count() as u64, state.inodes, &self.cluster.data_dir) {
            return Err(NodeError::failed(node, operation, cause));
        }
        run(self.transport, &self.argv(RELAY, &[]), &[], operation, 0).await?;
        Ok(self.relay_directory())
    }

    /// Returns the path of that directory.
    pub fn relay_directory(&self) -> String {
        format!("{}/.{}@{}/relay", self.cluster.data_dir, self.name, self.cluster.name)
    }

    /// Lets a push that was given up put nothing into place, and removes what its relay has left. Waits where it does
    /// so already.
    ///
    /// # Errors
    /// If that takes too long, or the node does not answer.
    pub async fn stop(self) -> Result<(), NodeError> {
        let operation = format!("stop the push of the data {}", self.name);
        run(self.transport, &self.argv(STOP, &[]), &[], &operation, MANY).await.map(drop)
    }

    /// Removes data that were pushed by this cluster.
    ///
    /// # Errors
    /// If a file cannot be removed; the next attempt continues.
    pub async fn remove(self) -> Result<Removal, NodeError> {
        let operation = format!("remove the data {}", self.name);
        let output = run(self.transport, &self.argv(REMOVE, &[]), &[], &operation, MANY).await?.stdout;
        let has = |word: &str| output.split(|byte| *byte == 0).any(|record| record == word.as_bytes());
        Ok(Removal { is_changed: has("removed"), is_left: has("left") })
    }

    /// Gives an error whose cause is known its kind and a hint.
    fn with_hint(&self, error: NodeError) -> NodeError {
        let changed = "a program changes the files while they are pushed: push again when nothing writes to them";
        match (failure::files(&error.message), error.kind) {
            (Some(FileFailure::NoSpace), _) => self.no_space(error),
            (Some(FileFailure::Vanished), _)
            | (None, ErrorKind::FileChanged | ErrorKind::CommandFailed { status: DIFFERENT }) => {
                error.kind(ErrorKind::FileChanged).hint(changed)
            }
            (_, ErrorKind::CommandFailed { status: MISPLACED }) => {
                let dir = &self.cluster.data_dir;
                error.hint(format!("push again; {dir} needs a file system that keeps modes"))
            }
            _ => error.hint("push again: files that have arrived are not sent again"),
        }
    }

    fn no_space(&self, error: NodeError) -> NodeError {
        error.kind(ErrorKind::NoSpace).hint(format!(
            "free space below {} on the node (df -h, or df -i if there are too many files), or set cluster.data_dir to \
             a larger disk; files that have arrived are not sent again",
            self.cluster.data_dir
        ))
    }
}

/// Lists the data that a cluster has pushed to a node.
///
/// # Errors
/// If the script fails.
pub async fn list(cluster: &Cluster, transport: &Transport) -> Result<Vec<DataOnNode>, NodeError> {
    let argv = NodeData { cluster, transport, name: "" };
    let output = run(transport, &argv.argv(LIST, &[]), &[], "list the data", MANY).await?.stdout;
    Ok(String::from_utf8_lossy(&output).split('\0').filter_map(DataOnNode::parse).collect())
}

impl DataOnNode {
    /// Reads a record of `data/list.sh`.
    fn parse(record: &str) -> Option<DataOnNode> {
        let fields: Vec<&str> = record.splitn(7, ' ').collect();
        let [name, state, hash, files, size, age, origin] = fields[..] else { return None };
        Some(DataOnNode {
            name: name.into(),
            state: state.into(),
            hash: (hash != "-").then(|| hash.into()),
            files: files.parse().ok()?,
            size: size.parse().ok()?,
            age: age.parse().ok(),
            origin: origin.into(),
        })
    }
}

/// A reason why data are not pushed to a directory.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
enum DataRefusal {
    #[error("the node has other data of this name, pushed from {0}")]
    Origin(String),
    #[error("the cluster {0} has pushed data of this name to the node")]
    Cluster(String),
    #[error("the directory exists and was not created by hvdctl")]
    Foreign,
}

impl DataState {
    /// Reads the records of `data/compare.sh`.
    fn parse(output: &[u8]) -> Result<DataState, DataRefusal> {
        let mut state = DataState::default();
        let text = String::from_utf8_lossy(output);
        for record in text.split('\0') {
            let (key, value) = record.split_once(' ').unwrap_or((record, ""));
            match key {
                "same" => state.is_same = true,
                "present" => state.is_present = true,
                "staging" => state.is_staging = true,
                "free" => state.free = value.parse().unwrap_or(0),
                "inodes" => state.inodes = Some(value.parse().unwrap_or(0)),
                "has" => state.has = Some(value.into()),
                "staged" => state.staged = Some(value.into()),
                "replaces" => state.replaces = Some(value.into()),
                "origin" => return Err(DataRefusal::Origin(value.into())),
                "cluster" => return Err(DataRefusal::Cluster(value.into())),
                "foreign" => return Err(DataRefusal::Foreign),
                _ => {}
            }
        }
        Ok(state)
    }
}

#[cfg(test)]
mod tests;
