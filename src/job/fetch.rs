//! Brings what a run wrote to the operator's machine: new and changed files of its project's folder, from the nodes that wrote
//! them. What was cut off goes on where it was, and nothing has its name before it is proven.

use crate::cluster::nodes::{Member, Target, each, split};
use crate::error::{Error, NodeError};
use crate::event::{Event, Events};
use crate::inventory::Cluster;
use crate::job::list::{Job, Newest};
use crate::job::manage::{self, Runs};
use crate::runtime::pull::Rate;
use crate::sync::download::{Folder, There};
use crate::sync::outputs::{Found, Item, Output, plan};
use crate::text::units::human;
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::time::timeout;

const LOOK: &str = concat!(include_str!("../scripts/ship_common.sh"), include_str!("../scripts/fetch_look.sh"));
const HASH: &str = include_str!("../scripts/fetch_hash.sh");
const GET: &str = include_str!("../scripts/fetch_get.sh");

/// The slowest disk that hashing is given time for, in bytes per second.
const SLOWEST: u64 = 20 << 20;

/// What was brought.
#[derive(Debug)]
pub struct Fetched {
    /// The run.
    pub job: String,
    /// The folder that it is in.
    pub folder: PathBuf,
    /// What is there now; with whether it was not there before.
    pub items: Vec<(Item, bool)>,
    /// Nodes that did not give everything.
    pub failed: Vec<NodeError>,
}

/// The folder for a run's outputs where none is named.
pub fn default_folder(job: &Job) -> PathBuf {
    PathBuf::from(format!("{}-{}", job.name, job.id))
}

/// Fetches after a run, whatever became of it.
///
/// # Errors
/// As of [`fetch`], and when the run is not found again.
pub async fn after(target: &Target, id: &str, folder: &Path, events: &Events) -> Result<Fetched, Error> {
    let runs = manage::list(target, events).await?;
    let job = runs.find(Some(id), Newest::Any)?;
    fetch(target, &runs, job, folder, false, events).await
}

/// Brings what a run wrote into a folder. `force`: over what is there and was not fetched.
///
/// # Errors
/// When the run has no project, the node of rank 0 does not answer, or something else stands in the folder: then nothing is
/// fetched.
pub async fn fetch(
    target: &Target,
    runs: &Runs,
    job: &Job,
    folder: &Path,
    force: bool,
    events: &Events,
) -> Result<Fetched, Error> {
    let Some(project) = &job.project else {
        let words = format!("the run {} ({}) has no project, and so nothing to fetch", job.id, job.name);
        return Err(Error::check(words, "only what `train` started has; hvdctl logs shows what the others wrote"));
    };
    let cluster = target.cluster();
    let members = runs.members_of(job)?;
    let absent = job.nodes().into_iter().filter(|node| members.iter().all(|member| member.node.name != *node));
    let mut failed: Vec<NodeError> = absent
        .map(|node| {
            let error = runs.failed.iter().find(|error| error.node == node).cloned();
            error.unwrap_or_else(|| {
                NodeError::failed(&node, "fetch from it", "it is not among the selected nodes").hint("add it to --on")
            })
        })
        .collect();
    events.phase("comparing");
    let looked = each(members.clone(), async |member: Member| {
        events.reading(&member.node.name, "looking for outputs");
        let found = events.told(look(cluster, &member, project, &job.id).await)?;
        events.idle(&member.node.name);
        Ok((member.node.name.clone(), found))
    })
    .await;
    let (found, bad) = split(events, looked);
    if let Some(error) = bad.iter().find(|error| error.node == job.launcher()) {
        return Err(error.clone().into());
    }
    failed.extend(bad);
    if found.iter().all(|(_, found)| found.folder.is_none()) {
        return Err(Error::check(
            format!("nothing of the project {project} is on the nodes of the run {}", job.id),
            "it was removed (hvdctl down --purge), or cluster.projects_dir is another by now",
        ));
    }
    for (node, found) in &found {
        failed.extend(found.unread.iter().map(|words| NodeError::failed(node, "read what the run wrote", words)));
        failed.extend(found.odd.iter().map(|name| {
            NodeError::failed(node, &format!("fetch {name:?}"), "its name is not UTF-8, or leads out of the folder")
        }));
    }
    let items = plan(&found).map_err(|words| Error::check(words, "fetch one node's alone: --on"))?;
    let (keep, there) = compare(folder.to_owned(), items).await?;
    let foreign: Vec<&str> =
        there.iter().filter(|(_, there)| *there == There::Other).map(|(item, _)| item.path.as_str()).collect();
    if !force && !foreign.is_empty() {
        let names: Vec<String> = foreign.iter().take(5).map(|path| folder.join(path).display().to_string()).collect();
        let more = foreign.len().saturating_sub(names.len());
        let more = if more > 0 { format!(" and {more} more") } else { String::new() };
        return Err(Error::check(
            format!("{}{more}: there already, with other contents; nothing was fetched", names.join(", ")),
            "another folder: -o DIR; or --force writes over it",
        ));
    }

    let mut of_node: BTreeMap<String, Vec<Item>> = BTreeMap::new();
    for (item, there) in &there {
        match there {
            There::Same => keep.note(item)?,
            _ => of_node.entry(item.node.clone()).or_default().push(item.clone()),
        }
    }
    events.phase("fetching");
    let folders: BTreeMap<&str, String> =
        found.iter().filter_map(|(node, found)| Some((node.as_str(), found.folder.clone()?))).collect();
    let work: Vec<(Member, Vec<Item>)> = members
        .into_iter()
        .filter_map(|member| {
            let items = of_node.remove(&member.node.name)?;
            Some((member, items))
        })
        .collect();
    let nodes: Vec<String> = job.nodes();
    let brought = each(work, async |(member, items): (Member, Vec<Item>)| {
        let node = member.node.name.clone();
        let from = format!("{}/{}", cluster.projects_dir, folders[node.as_str()]);
        let result = bring(&member, &from, &items, &keep, events).await;
        if result.1.is_empty() {
            let files = result.0.len();
            events.done(&node, format!("fetched {files} file{}", if files == 1 { "" } else { "s" }));
        }
        result
    })
    .await;
    let mut new = BTreeSet::new();
    for (paths, errors) in brought {
        new.extend(paths);
        errors.iter().for_each(|error| events.send(Event::Failed(error.clone())));
        failed.extend(errors);
    }
    if failed.is_empty() {
        keep.tidy(&nodes);
    }
    let items = there
        .into_iter()
        .filter(|(item, there)| *there == There::Same || new.contains(&item.path))
        .map(|(item, _)| {
            let is_new = new.contains(&item.path);
            (item, is_new)
        })
        .collect();
    Ok(Fetched { job: job.id.clone(), folder: folder.to_owned(), items, failed })
}

/// What a run may have written on a node, with the hashes of the files.
async fn look(cluster: &Cluster, member: &Member, project: &str, id: &str) -> Result<Found, NodeError> {
    let tried = "look for what the run wrote";
    let link = &member.link;
    let node = &member.node.name;
    let argv = ["sh", "-c", LOOK, "sh", &cluster.projects_dir, project, &cluster.name, id];
    let said = link.list_as_root(&argv, &[], tried, link.limit()).await?;
    if said.code != 0 {
        return Err(NodeError::failed(node, tried, said.complaint()));
    }
    let mut found = Found::read(&said.stdout);
    if let Some(folder) = &found.folder {
        let names: String = found.files().map(|(name, _)| format!("{name}\0")).collect();
        let bytes: u64 = found.files().map(|(_, size)| size).sum();
        let folder = format!("{}/{folder}", cluster.projects_dir);
        let limit = link.limit() + Duration::from_secs(bytes / SLOWEST);
        let argv = ["sh", "-c", HASH, "sh", &folder];
        let said = link.list_as_root(&argv, names.as_bytes(), tried, limit).await?;
        if said.code != 0 {
            return Err(NodeError::failed(node, tried, said.complaint()));
        }
        // what is gone by now is nobody's loss; what cannot be read is
        let words = String::from_utf8_lossy(&said.stderr);
        found
            .unread
            .extend(words.lines().filter(|line| !line.ends_with("No such file or directory")).map(str::to_owned));
        found.hashed(&said.stdout);
    }
    Ok(found)
}

/// Opens the folder, and says what is at each item's place.
async fn compare(folder: PathBuf, items: Vec<Item>) -> Result<(Arc<Folder>, Vec<(Item, There)>), Error> {
    let work = move || {
        let folder = Folder::open(&folder)?;
        let there = items.into_iter().map(|item| {
            let there = folder.there(&item)?;
            Ok((item, there))
        });
        let there = there.collect::<Result<_, Error>>()?;
        Ok((Arc::new(folder), there))
    };
    blocking(work).await
}

async fn blocking<T: Send + 'static>(work: impl FnOnce() -> Result<T, Error> + Send + 'static) -> Result<T, Error> {
    tokio::task::spawn_blocking(work).await.map_err(|e| Error::Here(format!("cannot read the files here: {e}")))?
}

/// Brings a node's items, and gives the paths of those that are in their places, and what went wrong.
async fn bring(
    member: &Member,
    from: &str,
    items: &[Item],
    keep: &Arc<Folder>,
    events: &Events,
) -> (Vec<String>, Vec<NodeError>) {
    let (mut done, mut failed) = (Vec::new(), Vec::new());
    let all = bring_all(member, from, items, keep, events, (&mut done, &mut failed)).await;
    if let Err(error) = all {
        failed.push(error.hint("the same command again goes on where it was"));
    }
    (done, failed)
}

async fn bring_all(
    member: &Member,
    from: &str,
    items: &[Item],
    keep: &Arc<Folder>,
    events: &Events,
    (done, failed): (&mut Vec<String>, &mut Vec<NodeError>),
) -> Result<(), NodeError> {
    let node = &member.node.name;
    let tried = |item: &Item| format!("fetch {}", item.name);
    let here = |item: &Item, e: Error| NodeError::failed(node, &tried(item), e);
    let (mut wanted, mut asked, mut total) = (String::new(), BTreeSet::new(), 0);
    for item in items {
        if let Output::File { hash, size, .. } = &item.output {
            // of two files with the same contents the second begins when the first is in its place
            let so_far =
                if asked.insert(hash) { keep.part(node, hash, *size).map_err(|e| here(item, e))?.1 } else { 0 };
            wanted.push_str(&format!("{so_far} {} {}\0", size - so_far, item.name));
            total += size - so_far;
        }
    }
    events.busy(node, format!("fetching {}", human(total)));
    let mut process = member.link.spawn_as_root(&["sh", "-c", GET, "sh", from], "fetch from it").await?;
    let complaint = process.collect_stderr();
    let mut stdin = std::mem::replace(&mut process.stdin, Box::pin(tokio::io::sink()));
    let asking = tokio::spawn(async move {
        // a node that ends before it has read all says why in what comes, or does not come
        let _ = stdin.write_all(wanted.as_bytes()).await;
        let _ = stdin.shutdown().await;
    });
    let limit = member.link.limit();
    let (mut rate, start, mut so_far, mut told) = (Rate::default(), Instant::now(), 0, 0);
    let mut buffer = vec![0; 256 * 1024];
    for item in items {
        if let Output::File { hash, size, .. } = &item.output {
            let (part, had) = keep.part(node, hash, *size).map_err(|e| here(item, e))?;
            let mut part = tokio::fs::File::from_std(part);
            let mut left = size - had;
            while left > 0 {
                let most = usize::try_from(left).unwrap_or(usize::MAX).min(buffer.len());
                let n = match timeout(limit, process.stdout.read(&mut buffer[..most])).await {
                    Ok(Ok(n @ 1..)) => n,
                    Ok(Ok(_)) => {
                        let said = complaint.await.unwrap_or_default();
                        let said = if said.trim().is_empty() { "the connection was cut off".into() } else { said };
                        return Err(NodeError::failed(node, &tried(item), said));
                    }
                    Ok(Err(e)) => return Err(NodeError::failed(node, &tried(item), e)),
                    Err(_) => {
                        let said = format!("nothing came for {} s", limit.as_secs());
                        return Err(NodeError::failed(node, &tried(item), said));
                    }
                };
                part.write_all(&buffer[..n]).await.map_err(|e| NodeError::failed(node, &tried(item), e))?;
                left -= n as u64;
                so_far += n as u64;
                if so_far - told > 4 << 20 {
                    told = so_far;
                    let rate = rate.see(start.elapsed(), so_far);
                    let (node, what) = (node.clone(), "fetching".to_owned());
                    events.send(Event::Transfer { node, what, done: so_far, total, rate });
                }
            }
            part.flush().await.map_err(|e| NodeError::failed(node, &tried(item), e))?;
        }
        let (keep, placed) = (Arc::clone(keep), item.clone());
        match blocking(move || keep.place(&placed)).await.map_err(|e| here(item, e))? {
            Ok(()) => done.push(item.path.clone()),
            Err(words) => failed.push(NodeError::failed(node, &tried(item), words).hint("try again")),
        }
    }
    asking.abort();
    Ok(())
}

#[cfg(test)]
mod tests;
