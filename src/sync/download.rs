//! Downloads a job's outputs from a node: lists what is there, and receives what is wanted as one tar stream.

use crate::error::NodeError;
use crate::event::{Events, Step};
use crate::inventory::Cluster;
use crate::runtime::progress::TransferProgress;
use crate::sync::outputs::{Item, NodeOutputs, Output};
use crate::sync::target::TargetDirectory;
use crate::transport::node::{Output as Ended, Process, RunAs, Transport};
use std::collections::{BTreeMap, BTreeSet};
use std::io::{ErrorKind, Read};
use std::sync::Arc;
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::task::{JoinHandle, spawn_blocking};
use tokio::time::timeout;
use tokio_util::io::SyncIoBridge;

const LIST: &str = concat!(include_str!("../scripts/upload_common.sh"), include_str!("../scripts/fetch_list.sh"));
const HASH: &str = include_str!("../scripts/fetch_hash.sh");

/// Reads the files that are named on standard input. Names begin with `./` and end with NUL.
const TAR: [&str; 9] = [
    "env",
    "LC_ALL=C",
    "tar",
    "--create",
    "--file=-",
    "--no-recursion",
    "--hard-dereference",
    "--null",
    "--files-from=-",
];

/// Bytes per second of the slowest disk for which hashing has time.
const SLOWEST: u64 = 20 << 20;

/// Bytes that are read at once.
const PIECE: usize = 256 * 1024;

const DOWNLOAD: &str = "fetch what the job wrote";
const AGAIN: &str = "the same command again goes on with the files that are missing";

/// Lists what a job may have written on a node, with the hashes of the files.
///
/// # Errors
/// If the node cannot be asked.
pub async fn list(cluster: &Cluster, link: &Transport, project: &str, id: &str) -> Result<NodeOutputs, NodeError> {
    let tried = "list what the job wrote";
    let argv = ["sh", "-c", LIST, "sh", &cluster.projects_dir, project, &cluster.name, id];
    let listed = link.list_as_root(&argv, &[], tried, link.limit()).await?;
    if listed.code != 0 {
        return Err(NodeError::failed(link.node(), tried, listed.complaint()));
    }
    let mut outputs = NodeOutputs::parse(&listed.stdout);
    let Some(directory) = &outputs.directory else { return Ok(outputs) };
    let names: String = outputs.files().map(|(name, _)| format!("{name}\0")).collect();
    let bytes: u64 = outputs.files().map(|(_, size)| size).sum();
    let limit = link.limit() + Duration::from_secs(bytes / SLOWEST);
    let argv = ["sh", "-c", HASH, "sh", &format!("{}/{directory}", cluster.projects_dir)];
    let hashed = link.list_as_root(&argv, names.as_bytes(), tried, limit).await?;
    if hashed.code != 0 {
        return Err(NodeError::failed(link.node(), tried, hashed.complaint()));
    }
    // a file that is gone by now is no output; one that cannot be read is
    let complaint = hashed.complaint();
    let unread = complaint.lines().filter(|line| !line.ends_with("No such file or directory"));
    outputs.unread.extend(unread.map(str::to_owned));
    outputs.add_hashes(&hashed.stdout);
    Ok(outputs)
}

/// Downloads items from a node's directory. Returns the paths of those that are in their places, and what failed.
pub async fn download(
    link: &Transport,
    directory: &str,
    items: Vec<Item>,
    target: &Arc<TargetDirectory>,
    events: &Events,
) -> (BTreeSet<String>, Vec<NodeError>) {
    let failed = |tried: &str, cause: &str| NodeError::failed(link.node(), tried, cause);
    let (pipe, stream) = tokio::io::duplex(4 * PIECE);
    let stream = SyncIoBridge::new(stream);
    let (items, target) = (Arc::new(items), Arc::clone(target));
    let unpacking = {
        let items = Arc::clone(&items);
        spawn_blocking(move || unpack(stream, &items, &target))
    };
    let received = receive(link, directory, &items, pipe, events).await;
    let (placed, error) = match unpacking.await {
        Ok(Unpacked { placed, error }) => (placed, error),
        Err(panic) => (BTreeSet::new(), Some(panic.to_string())),
    };
    let missing: Vec<&Item> = items.iter().filter(|item| !placed.contains(&item.path)).collect();
    let errors = match (error, received) {
        _ if missing.is_empty() => Vec::new(),
        (Some(error), _) => vec![failed(DOWNLOAD, &error).hint(AGAIN)],
        (None, Err(error)) => vec![error.hint(AGAIN)],
        (None, Ok(())) => {
            let changed = "it was changed while it was fetched";
            missing.iter().map(|item| failed(&format!("fetch {}", item.name), changed).hint("try again")).collect()
        }
    };
    (placed, errors)
}

/// The paths of the items that are in their places, and why no more of them are.
#[derive(Debug, Default)]
struct Unpacked {
    placed: BTreeSet<String>,
    error: Option<String>,
}

/// Puts links and the files of a tar stream in their places, until the stream ends or breaks off.
fn unpack(stream: impl Read, items: &[Item], target: &TargetDirectory) -> Unpacked {
    let mut unpacked = Unpacked::default();
    unpacked.error = unpacked.fill(stream, items, target).err().map(|e| e.to_string());
    unpacked
}

impl Unpacked {
    fn fill(&mut self, stream: impl Read, items: &[Item], target: &TargetDirectory) -> Result<(), crate::error::Error> {
        let (links, files): (Vec<_>, Vec<_>) = items.iter().partition(|item| matches!(item.output, Output::Link(_)));
        for item in links {
            target.write(item, &mut std::io::empty())?;
            self.placed.insert(item.path.clone());
        }
        let mut files: BTreeMap<Vec<u8>, &Item> = files.into_iter().map(|item| (packed(item), item)).collect();
        let mut archive = tar::Archive::new(stream);
        // where a stream breaks off, `receive` knows why
        for mut entry in archive.entries().into_iter().flatten().map_while(Result::ok) {
            let Some(item) = files.remove(&*entry.path_bytes()) else { continue };
            if target.write(item, &mut entry)? {
                self.placed.insert(item.path.clone());
            }
        }
        Ok(())
    }
}

/// Returns the name of an item in the tar stream.
fn packed(item: &Item) -> Vec<u8> {
    format!("./{}", item.name).into_bytes()
}

/// Runs tar on the node and writes its output to `pipe`.
async fn receive(
    link: &Transport,
    directory: &str,
    items: &[Item],
    mut pipe: impl AsyncWrite + Unpin,
    events: &Events,
) -> Result<(), NodeError> {
    let files = items.iter().filter(|item| matches!(item.output, Output::File { .. }));
    let names: Vec<u8> = files.flat_map(|item| [packed(item), vec![0]].concat()).collect();
    if names.is_empty() {
        return Ok(());
    }
    let total = items.iter().map(|item| if let Output::File { size, .. } = item.output { size } else { 0 }).sum();
    let _step = events.begin(link.node(), Step::Fetching(total));
    let directory = format!("--directory={directory}");
    let mut process = link.spawn(RunAs::Root, &[&TAR[..4], &[&directory], &TAR[4..]].concat(), DOWNLOAD).await?;
    let complaint = process.collect_stderr();
    let mut stdin = process.take_stdin();
    // while the first files arrive, tar reads further names
    let naming = tokio::spawn(async move {
        let _ = stdin.write_all(&names).await;
        let _ = stdin.shutdown().await;
    });
    let (mut buffer, mut done, limit) = (vec![0; PIECE], 0, link.limit());
    let mut progress = TransferProgress::new(link.node(), events);
    loop {
        let read = timeout(limit, process.stdout.read(&mut buffer)).await.unwrap_or_else(|_| {
            let late = format!("nothing came for {} s", limit.as_secs());
            Err(std::io::Error::new(ErrorKind::TimedOut, late))
        });
        let n = read.map_err(|e| link.broken(DOWNLOAD, &e))?;
        if n == 0 {
            break;
        }
        if pipe.write_all(&buffer[..n]).await.is_err() {
            naming.abort();
            return Ok(()); // `unpack` has all files, or cannot write
        }
        done += n as u64;
        progress.report("fetching", done, total);
    }
    naming.abort();
    ended(link, process, complaint).await
}

/// Checks how tar ended. 1 and 2 are its codes for files that changed or vanished, which `unpack` notices.
async fn ended(link: &Transport, process: Process, complaint: JoinHandle<String>) -> Result<(), NodeError> {
    let ended = timeout(link.limit(), process.finish(&[])).await.unwrap_or_else(|_| Err(ErrorKind::TimedOut.into()));
    let ended = ended.map_err(|e| link.broken(DOWNLOAD, &e))?;
    if (0..=2).contains(&ended.code) {
        return Ok(());
    }
    let stderr = complaint.await.unwrap_or_default().into_bytes();
    Err(link.failed(&Ended { stderr, ..ended }, DOWNLOAD))
}

#[cfg(test)]
mod tests;
