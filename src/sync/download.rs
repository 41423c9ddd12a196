//! Downloads from a node: a job's outputs, which are listed first and of which those that are wanted come as one tar
//! stream, and its project, so that it can be uploaded to another node.

use crate::error::{Error, ErrorKind, NodeError};
use crate::event::transfer::TransferProgress;
use crate::event::{Events, Step};
use crate::sync::NodeProject;
use crate::sync::outputs::{Download, JobOutput, NodeOutputs};
use crate::sync::receive::{TarStream, receive};
use crate::sync::target::TargetDirectory;
use crate::text::failure::{self, FileFailure};
use crate::text::units::human;
use crate::transport::node::Transport;
use std::collections::{BTreeMap, BTreeSet};
use std::io::{self, Read};
use std::path::Path;
use std::sync::Arc;

const LIST: &str = concat!(include_str!("../scripts/upload/common.sh"), include_str!("../scripts/fetch/list.sh"));
const HASH: &str = concat!(include_str!("../scripts/fetch/below.sh"), include_str!("../scripts/fetch/hash.sh"));
const COPY: &str = concat!(
    include_str!("../scripts/fetch/below.sh"),
    include_str!("../scripts/upload/common.sh"),
    include_str!("../scripts/upload/copy.sh")
);
const SEND: &str = concat!(include_str!("../scripts/fetch/below.sh"), include_str!("../scripts/fetch/send.sh"));

/// The most directories of a project, of which each takes about 1 KiB of memory while it is unpacked.
const MAX_DIRECTORIES: usize = 1 << 20;

/// The operation, for messages.
const FETCH: &str = "fetch the job's outputs";

impl NodeProject<'_> {
    /// Lists what the job may have written on the node, with the hashes of the files.
    ///
    /// # Errors
    /// If a script on the node fails.
    pub async fn outputs(&self) -> Result<NodeOutputs, NodeError> {
        let operation = "list the job's outputs";
        let mut outputs = NodeOutputs::parse(&self.run(&self.argv(LIST, &[self.job]), &[], operation, 0).await?.stdout);
        let Some(directory) = &outputs.directory else { return Ok(outputs) };
        let argv = ["sh", "-c", HASH, "sh", &format!("{}/{directory}", self.cluster.projects_dir)];
        let names = names(outputs.files().map(|(name, _)| name));
        let bytes = outputs.files().fold(0, |sum: u64, (_, size)| sum.saturating_add(size));
        let hashed = self.run(&argv, &names, operation, bytes).await?;
        // a file that is gone by now is no output; one that cannot be read is
        let complaint = hashed.complaint();
        let unread = complaint.lines().filter(|line| failure::files(line) != Some(FileFailure::Vanished));
        outputs.unread.extend(unread.map(str::to_owned));
        outputs.add_hashes(&hashed.stdout);
        Ok(outputs)
    }

    /// Copies the files that were uploaded for the job into a directory here.
    ///
    /// # Errors
    /// If a file was removed or is being changed, or the directory cannot be written.
    pub async fn copy(&self, directory: &Path) -> Result<(), NodeError> {
        let (argv, directory) = (self.argv(COPY, &[self.job]), directory.to_owned());
        let operation = "copy the job's project";
        let unpack = move |stream: &mut dyn Read| {
            unpack_project(&mut *stream, &directory)?;
            // bytes after the end of the archive
            io::copy(stream, &mut io::sink()).map(drop)
        };
        let (unpacked, received) = receive(self.transport, &argv, Vec::new(), operation, unpack, |_| {}).await;
        received?;
        let unpacked = unpacked.unwrap_or_else(|e| Err(io::Error::other(e)));
        unpacked.map_err(|e| NodeError::failed(self.transport.node(), operation, e))
    }
}

/// Unpacks the tar stream of a project into a directory here. Directories get their modes last: they may not be
/// writable.
fn unpack_project(stream: impl Read, directory: &Path) -> io::Result<()> {
    let (mut stream, mut directories) = (TarStream::new(stream), Vec::new());
    for entry in stream.entries()? {
        let mut entry = entry?;
        if !entry.header().entry_type().is_dir() {
            entry.unpack_in(directory)?;
        } else if directories.len() < MAX_DIRECTORIES {
            directories.push(entry);
        } else {
            return Err(io::Error::other("the node sends too many directories"));
        }
    }
    directories.sort_by(|a, b| b.path_bytes().cmp(&a.path_bytes()));
    directories.iter_mut().try_for_each(|entry| entry.unpack_in(directory).map(drop))
}

/// Downloads outputs from a node's directory. Returns the paths of those that are in their places, and what failed.
pub async fn download(
    transport: &Transport,
    directory: &str,
    downloads: Vec<Download>,
    target: &Arc<TargetDirectory>,
    events: &Events,
) -> (BTreeSet<String>, Vec<NodeError>) {
    let names = names(downloads.iter().map(|download| &*download.name));
    let total = downloads.iter().fold(0, |sum: u64, download| sum.saturating_add(download.output.size()));
    let downloads = Arc::new(downloads);
    let unpack = {
        let (downloads, target) = (Arc::clone(&downloads), Arc::clone(target));
        move |stream: &mut dyn Read| unpack(stream, &downloads, &target)
    };
    let _step = events.begin(transport.node(), Step::transfer(format!("fetching {}", human(total))));
    let mut progress = TransferProgress::new(transport.node(), events);
    let report = |bytes| progress.report("fetching", bytes, total);
    let argv = ["sh", "-c", SEND, "sh", directory];
    let (unpacked, received) = receive(transport, &argv, names, FETCH, unpack, report).await;
    let (placed, unpacked) = unpacked.unwrap_or_else(|e| (BTreeSet::new(), Err(Error::Local(e.to_string()))));
    let missing: Vec<&Download> = downloads.iter().filter(|download| !placed.contains(&download.path)).collect();
    let failed = |operation: &str, cause: &str| NodeError::failed(transport.node(), operation, cause);
    let changed = |download: &Download| {
        failed(&format!("fetch {}", download.name), "the file changed while it was fetched").hint("try again")
    };
    let again = "run the same command again: it fetches only the files that are missing";
    let errors = match (unpacked, received) {
        _ if missing.is_empty() => Vec::new(),
        (Err(error), _) => vec![failed(FETCH, &error.to_string()).hint(again)],
        // tar's codes for files that changed or vanished are explained below
        (Ok(()), Err(error)) if !matches!(error.kind, ErrorKind::CommandFailed { status: 1 | 2 }) => {
            vec![error.hint(again)]
        }
        (Ok(()), _) => missing.into_iter().map(changed).collect(),
    };
    (placed, errors)
}

/// Puts what a tar stream carries in its place, until the stream ends or breaks off. Returns the paths of what is in
/// its place, and why it stopped before.
fn unpack(
    stream: impl Read,
    downloads: &[Download],
    target: &TargetDirectory,
) -> (BTreeSet<String>, Result<(), Error>) {
    let mut placed = BTreeSet::new();
    let mut wanted: BTreeMap<_, _> = downloads.iter().map(|download| (name_in_tar(download), download)).collect();
    let mut stream = TarStream::new(stream);
    // `receive` returns why a stream breaks off
    let entries = stream.entries().into_iter().flatten().map_while(|entry| match entry {
        Err(error) if error.kind() != io::ErrorKind::FileTooLarge => None,
        entry => Some(entry.map_err(|error| Error::Local(error.to_string()))),
    });
    let unpacked = entries.into_iter().try_for_each(|entry| {
        let mut entry = entry?;
        let download = wanted.remove(&*entry.path_bytes());
        // a link that has changed since it was listed is left out, as is a file that has become a link
        if let Some(download) = download
            && entry.link_name_bytes().as_deref() == download.output.link().map(str::as_bytes)
            && target.write(download, &mut entry)?
        {
            placed.insert(download.path.clone());
        }
        // an error here comes again with the next entry
        let _ = io::copy(&mut entry, &mut io::sink());
        Ok(())
    });
    (placed, unpacked)
}

/// Puts the file of a tar stream, which has no other, in its place. Returns false if it is not the one that was listed.
///
/// # Errors
/// If it cannot be written, or the stream breaks.
pub fn unpack_file(stream: impl Read, download: &Download, target: &TargetDirectory) -> Result<bool, Error> {
    let JobOutput::File { hash, size, time, .. } = &download.output else { return Ok(false) };
    let broken = |error: io::Error| Error::Local(error.to_string());
    let mut stream = TarStream::new(stream);
    let Some(entry) = stream.entries().map_err(broken)?.next() else { return Ok(false) };
    let mut entry = entry.map_err(broken)?;
    let header = entry.header();
    // engines round the time differently
    let is_of_time = header.mtime().is_ok_and(|found| *time < 0.0 || found.abs_diff(*time as u64) <= 1);
    if !header.entry_type().is_file() || entry.size() != *size || !is_of_time {
        return Ok(false);
    }
    let mode = header.mode().map_err(broken)?;
    let output = JobOutput::File { hash: hash.clone(), mode, size: *size, time: *time };
    target.write(&Download { output, ..download.clone() }, &mut entry)
}

/// Returns names as `fetch/below.sh` reads them, directory by directory.
fn names<'a>(names: impl Iterator<Item = &'a str>) -> Vec<u8> {
    let mut names: Vec<(&str, &str)> = names.map(|name| name.rsplit_once('/').unwrap_or(("", name))).collect();
    names.sort_unstable();
    let path = |(directory, name): (&str, &str)| match directory {
        "" => format!("./{name}\0"),
        directory => format!("./{directory}/{name}\0"),
    };
    names.into_iter().flat_map(|name| path(name).into_bytes()).collect()
}

/// Returns the name of an output in the tar stream.
fn name_in_tar(download: &Download) -> Vec<u8> {
    format!("./{}", download.name).into_bytes()
}

#[cfg(test)]
mod tests;
