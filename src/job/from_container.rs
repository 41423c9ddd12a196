//! Fetches what a job wrote outside the mounts of its containers: from the container that is kept on a node, or from
//! the worker that jobs share.

use super::fetch::{FetchReport, check_conflicts, compare, not_asked, warn_of_set_aside};
use super::manage::JobList;
use crate::cluster::each_node::{NodeResults, each_node, for_each_node};
use crate::cluster::member::Member;
use crate::error::{Error, NodeError};
use crate::event::{Completion, Events, Phase, Step};
use crate::inventory::Cluster;
use crate::model::engine::EngineName;
use crate::record::list::Job;
use crate::runtime::Runtime;
use crate::runtime::container::{ContainerSummary, running_worker};
use crate::runtime::spec::Role;
use crate::sync::download::unpack_file;
use crate::sync::outputs::{ActiveFiles, Download, JobOutput, is_inside};
use crate::sync::target::{Existing, TargetDirectory};
use crate::text::nodeset::printable;
use crate::text::units::{count, human};
use crate::transport::node::Script;
use base64::Engine as _;
use std::collections::BTreeSet;
use std::io::{self, Read as _};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use tokio_util::io::SyncIoBridge;

const LIST: &str = concat!(include_str!("../scripts/job/directory.sh"), include_str!("../scripts/job/files.sh"));

/// Bytes between the engine's answer and the file here.
const BUFFER: usize = 1 << 20;

/// The most files that a node lists (`outside.py`).
const MOST: usize = 1000;

/// The list until the files have been examined.
const UNKNOWN: &str = "?";

/// The contents of a node's container.
struct ContainerContents {
    node: String,
    engine: Runtime,
    /// The id of the container.
    container: String,
    items: Vec<Download>,
    /// Names that cannot be written here.
    odd: Vec<String>,
}

/// Returns the directory for these files if none is named.
pub fn default_directory(job: &Job) -> PathBuf {
    PathBuf::from(format!("{}-{}-container", job.name, job.id))
}

/// Fetches the files into a directory, each below the name of its node. `only`: the nodes that are asked, `None` for all;
/// `force` replaces files there that were not fetched.
///
/// # Errors
/// If there are none, the node of rank 0 does not answer, or the directory has other files of the same names. Nothing
/// is fetched then.
pub async fn fetch(
    jobs: &JobList<'_>,
    job: &Job,
    only: Option<&BTreeSet<String>>,
    directory: &Path,
    force: bool,
    events: &Events,
) -> Result<FetchReport, Error> {
    let is_wanted = |node: &String| only.is_none_or(|nodes| nodes.contains(node));
    let nodes = jobs.nodes_of(job)?;
    let members: Vec<Member> = nodes.members().filter(|member| is_wanted(&member.node.name)).cloned().collect();
    let mut failed = not_asked(jobs, job, &members);
    failed.retain(|error| is_wanted(&error.node));
    events.phase(Phase::Comparing);
    let NodeResults { ok: found, failed: without } =
        each_node(members, events, async |member: Member| list(jobs.cluster, job, &member).await).await;
    failed.extend(without);
    let found: Vec<ContainerContents> = found.into_iter().flatten().collect();
    if found.is_empty() && failed.is_empty() {
        let message = format!("job {} ({}) has left no files outside the mounts of its containers", job.id, job.name);
        return Err(Error::check(message, "`hvdctl fetch` gets what it wrote to /workspace"));
    }
    for ContainerContents { node, items, odd, .. } in &found {
        let cause = "its name is not UTF-8, or leads elsewhere";
        failed.extend(odd.iter().map(|name| NodeError::failed(node, &format!("fetch {name:?}"), cause)));
        note_of_more(job, node, items.len() + odd.len(), events);
    }
    let (into, existing) = compare(directory.to_owned(), found.iter().flat_map(|f| f.items.clone()).collect()).await?;
    if !force {
        check_conflicts(&existing, directory)?;
    }
    events.phase(Phase::Fetching);
    let identical = existing.iter().filter(|(_, existing)| *existing == Existing::Identical);
    let identical: BTreeSet<&str> = identical.map(|(item, _)| &*item.path).collect();
    let copied = for_each_node(found, async |found: ContainerContents| {
        let wanted = found.items.iter().filter(|item| !identical.contains(&*item.path)).collect();
        copy_all(&found, wanted, &into, events).await
    });
    let (placed, errors): (Vec<_>, Vec<_>) = copied.await.into_iter().unzip();
    failed.extend(errors.into_iter().flatten());
    let placed: BTreeSet<String> = placed.into_iter().flatten().collect();
    let items = existing.into_iter().filter_map(|(item, existing)| {
        let is_new = placed.contains(&item.path);
        (is_new || existing == Existing::Identical).then_some((item, is_new))
    });
    let items: Vec<(Download, bool)> = items.collect();
    warn_of_set_aside(&items, directory, events);
    Ok(FetchReport { job: job.id.clone(), directory: directory.to_owned(), items, failed })
}

/// Reads a node's list, and finds the container; `None` without a list.
async fn list(cluster: &Cluster, job: &Job, member: &Member) -> Result<Option<ContainerContents>, NodeError> {
    let operation = "find the files outside the mounts";
    let script = Script::new(LIST).with("jobs_dir", &cluster.jobs_dir).with("id", &job.id);
    let output = member.transport.script(&script.with("names", "outside").with("origin", ""), operation).await?;
    let listed = String::from_utf8_lossy(&output);
    let Some(text) = listed.lines().find_map(|line| line.strip_prefix("outside ")) else { return Ok(None) };
    let text = base64::engine::general_purpose::STANDARD.decode(text.trim()).unwrap_or_default();
    let text = String::from_utf8_lossy(&text);
    let node = member.node.name.clone();
    let engine = member.runtime().await?;
    let containers = engine.containers().await?;
    let Some(container) = container(cluster, job, &node, &containers) else {
        return Err(NodeError::failed(&node, operation, "the container of the job is gone").hint(
            "only the newest container with such files is kept, until `hvdctl down` or `hvdctl jobs prune`; let the \
             program write to \
             /workspace",
        ));
    };
    if text.trim() == UNKNOWN {
        let cause = "what the job wrote there was not examined, or could not be listed";
        let copies = |(name, _): (EngineName, &str)| {
            format!("`{} cp {}:PATH .` there copies it", name.command(), container.name)
        };
        return Err(engine
            .version()
            .map(copies)
            .into_iter()
            .fold(NodeError::failed(&node, operation, cause), NodeError::hint));
    }
    let (items, odd) = parse(&node, &text);
    Ok(Some(ContainerContents { node, engine, container: container.id.clone(), items, odd }))
}

/// Returns the container of a job on a node, or else the worker that jobs share, if ranks of the job may have run in
/// it.
fn container<'a>(
    cluster: &Cluster,
    job: &Job,
    node: &str,
    containers: &'a [ContainerSummary],
) -> Option<&'a ContainerSummary> {
    let is_own = |c: &&ContainerSummary| {
        c.belongs_to(&cluster.name) && c.job() == Some(&job.id) && (c.is(Role::Master) || c.is(Role::Worker))
    };
    let own = containers.iter().find(is_own);
    let is_shared = job.port == cluster.port && node != job.launcher();
    own.or_else(|| running_worker(cluster, containers).filter(|_| is_shared))
}

/// Reads the lines of a list: `BYTES MTIME PATH`, the path as JSON. Returns the files, and the paths that cannot be
/// written here.
fn parse(node: &str, text: &str) -> (Vec<Download>, Vec<String>) {
    let (mut items, mut odd) = (Vec::new(), Vec::new());
    for line in text.lines().take(MOST) {
        let mut parts = line.splitn(3, ' ');
        let mut part = || parts.next().unwrap_or_default();
        let (size, time, quoted) = (part().parse(), part().parse::<i64>(), part());
        let name: Result<String, _> = serde_json::from_str(quoted);
        let path = name.as_ref().map(|name| format!("{node}/{}", name.trim_start_matches('/'))).unwrap_or_default();
        let path = ActiveFiles::default().path(&path);
        match (size, time, name) {
            (Ok(size), Ok(time), Ok(name)) if name.starts_with('/') && is_inside(&path) => {
                let output = JobOutput::File { hash: String::new(), mode: 0o644, size, time: time as f64 };
                items.push(Download { path, node: node.to_owned(), name, output, uploaded: None });
            }
            _ => odd.push(quoted.chars().take(200).collect()),
        }
    }
    (items, odd)
}

/// Notes that a node has more such files than its list.
fn note_of_more(job: &Job, node: &str, listed: usize, events: &Events) {
    let all = job.outside.iter().find(|found| found.node == node).map_or(0, |found| found.files);
    let more = usize::try_from(all).unwrap_or(usize::MAX).saturating_sub(listed);
    if more > 0 {
        let more = count(more, "smaller file");
        events.note(format!(
            "{node}: the list has the {MOST} largest files; `docker cp` or `podman cp` there copies the other {more}"
        ));
    }
}

/// Copies files from a node's container. Returns the paths of those that are in their places, and what failed.
async fn copy_all(
    found: &ContainerContents,
    wanted: Vec<&Download>,
    into: &Arc<TargetDirectory>,
    events: &Events,
) -> (BTreeSet<String>, Vec<NodeError>) {
    let (mut placed, mut failed) = (BTreeSet::new(), Vec::new());
    for item in wanted {
        match copy(found, item, into, events).await {
            Ok(()) => drop(placed.insert(item.path.clone())),
            Err(error) => {
                events.failed(&error);
                failed.push(error);
            }
        }
    }
    if failed.is_empty() {
        events.done(&found.node, Completion::Fetched { files: placed.len() });
    }
    (placed, failed)
}

/// Copies one file.
async fn copy(
    found: &ContainerContents,
    item: &Download,
    into: &Arc<TargetDirectory>,
    events: &Events,
) -> Result<(), NodeError> {
    let shown = printable(&item.name);
    let _step = events.begin(&found.node, Step::transfer(format!("fetching {shown} ({})", human(item.output.size()))));
    let (mut pipe, stream) = tokio::io::duplex(BUFFER);
    let mut stream = SyncIoBridge::new(stream);
    let unpacking = {
        let (item, into) = (item.clone(), Arc::clone(into));
        tokio::task::spawn_blocking(move || {
            let unpacked = unpack_file(&mut stream, &item, &into)?;
            // the end of the archive, so that the connection can be used again
            let _ = io::copy(&mut stream.take(BUFFER as u64), &mut io::sink());
            Ok::<_, Error>(unpacked)
        })
    };
    let copied = found.engine.copy_out(&found.container, &item.name, &mut pipe).await;
    drop(pipe);
    let operation = format!("fetch {shown}");
    let failed = |cause: &str| NodeError::failed(&found.node, &operation, cause);
    let unpacked = unpacking.await.map_err(|error| failed(&error.to_string()))?;
    copied?;
    match unpacked {
        Ok(true) => Ok(()),
        Ok(false) => Err(failed("the file in the container is not the one that was there at the end of the job")),
        Err(error) => Err(failed(&error.to_string())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_paths_below_the_node_are_read_from_a_list() {
        let text = "7 -1 \"/root/a b\"\n8 5 \"/x/../../y\"\n9 5 \"relative\"\n-1 5 \"/n\"\n9 5 \"/\\udcff\"\n1 2\nx\n5 \
            5 \"/z\"";
        let (items, odd) = parse("node1", text);
        let file = |size, time| JobOutput::File { hash: String::new(), mode: 0o644, size, time };
        let read: Vec<_> = items.iter().map(|item| (&*item.path, &*item.name, item.output.clone())).collect();
        assert_eq!(read, [("node1/root/a b", "/root/a b", file(7, -1.0)), ("node1/z", "/z", file(5, 5.0))]);
        assert_eq!(odd, ["\"/x/../../y\"", "\"relative\"", "\"/n\"", "\"/\\udcff\"", "", ""]);
        let (items, _) = parse("n", "1 1 \"/root/.ssh/config\"\n1 1 \"/tmp/inventory.toml\"\n");
        assert_eq!([&*items[0].path, &*items[1].path], ["n/root/.ssh.fetched/config", "n/tmp/inventory.toml.fetched"]);
        let endless = "1 1 \"/a\"\n".repeat(3000);
        assert_eq!(parse("n", &endless).0.len(), MOST);
    }
}
