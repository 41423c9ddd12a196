//! Fetches a job's outputs: new and changed files of its project's directory, from the nodes that wrote them.

use super::manage::{self, JobList};
use super::node_log;
use crate::cluster::each_node::{NodeResults, each_node, for_each_node};
use crate::cluster::fleet::Fleet;
use crate::cluster::member::Member;
use crate::cluster::target::Target;
use crate::error::{Error, NodeError};
use crate::event::{Completion, Events, Message, Phase, Step};
use crate::inventory::Cluster;
use crate::record::find::Newest;
use crate::record::list::Job;
use crate::sync::NodeProject;
use crate::sync::download::download;
use crate::sync::outputs::{ActiveFiles, Download, NodeOutputs, plan, set_aside};
use crate::sync::project::ProjectFile;
use crate::sync::target::{Existing, TargetDirectory};
use anyhow::Context as _;
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// The result of a fetch.
#[derive(Debug)]
pub struct FetchReport {
    /// The job's id.
    pub job: String,
    /// The directory that it was fetched into.
    pub directory: PathBuf,
    /// The outputs in the directory, each with whether this fetch wrote it.
    pub items: Vec<(Download, bool)>,
    /// The failures that kept outputs from being fetched.
    pub failed: Vec<NodeError>,
}

/// Returns the directory for a job's outputs if none is named.
pub fn default_directory(job: &Job) -> PathBuf {
    PathBuf::from(format!("{}-{}", job.name, job.id))
}

/// The selection of a job's outputs that is fetched, and the files that it may replace.
#[derive(Debug, Clone, Copy, Default)]
pub struct FetchOptions<'a> {
    /// The files of this machine that the inventory names, which nothing from a node replaces.
    pub inventory_files: &'a [PathBuf],
    /// Set if files in the directory are replaced that were neither fetched nor uploaded.
    pub force: bool,
    /// The nodes whose outputs are fetched; `None` for all.
    pub nodes: Option<&'a BTreeSet<String>>,
    /// Set if files are left out that were written before the job began.
    pub only_new: bool,
}

/// The file of a job's directory that has what a node was sent of a notebook (`notebook.py`).
const RECEIVED: &str = "notebook_received.json";

/// The most bytes of it, which are enough for half a million files.
const MOST_RECEIVED: u64 = 64 << 20;

/// By how many seconds the clocks of nodes may differ.
const SKEW: f64 = 60.0;

/// Fetches the outputs of a job that has just ended, however it ended. `target`: the job's nodes.
///
/// # Errors
/// As [`fetch`], and if the job is not found.
pub async fn after(
    target: &Target,
    fleet: &Fleet,
    id: &str,
    directory: &Path,
    options: FetchOptions<'_>,
    events: &Events,
) -> Result<FetchReport, Error> {
    let jobs = manage::list(target, fleet, events).await?;
    let job = jobs.find_readable(Some(id), Newest::Any)?;
    fetch(&jobs, job, directory, options, events).await
}

/// Fetches a job's outputs into a directory.
///
/// # Errors
/// If the job has no project, the node of rank 0 does not answer, or the directory has other files of the same names.
/// Nothing is fetched then.
pub async fn fetch(
    jobs: &JobList<'_>,
    job: &Job,
    directory: &Path,
    options: FetchOptions<'_>,
    events: &Events,
) -> Result<FetchReport, Error> {
    let Some(project) = &job.project else {
        let message = format!("job {} ({}) has no project, so there is nothing to fetch", job.id, job.name);
        return Err(Error::check(message, "only jobs of `hvdctl train` have one; see `hvdctl logs` for the others"));
    };
    let nodes = jobs.nodes_of(job)?;
    let is_wanted = |node: &String| options.nodes.is_none_or(|nodes| nodes.contains(node));
    let members: Vec<Member> = match nodes.shares_directory {
        // they share the directory
        true => vec![nodes.launcher],
        false => nodes.members().filter(|member| is_wanted(&member.node.name)).cloned().collect(),
    };
    let mut failed = if job.shares_directory { Vec::new() } else { not_asked(jobs, job, &members) };
    failed.retain(|error| is_wanted(&error.node));
    events.phase(Phase::Comparing);
    let (mut outputs, bad) = list_all(jobs.cluster, &members, job, project, events).await?;
    failed.extend(bad);
    if options.only_new {
        for (node, outputs) in &mut outputs {
            outputs.keep_for_project(job.started - SKEW, *node == job.launcher());
        }
        failed.extend(leave_out_copies(jobs.cluster, &members, job, &mut outputs).await);
    }
    let items = plan(&outputs, &active_files(directory, options.inventory_files)?)
        .map_err(|message| Error::check(message, "fetch the outputs of one node at a time: --on NODE"))?;
    let (into, existing) = compare(directory.to_owned(), items).await?;
    if !options.force {
        check_conflicts(&existing, directory)?;
    }
    events.phase(Phase::Fetching);
    let (same, wanted): (Vec<_>, Vec<_>) = existing.iter().partition(|(_, existing)| *existing == Existing::Identical);
    same.iter().try_for_each(|(item, _)| into.record(item))?;
    let wanted = wanted.into_iter().map(|(item, _)| item.clone()).collect();
    let (new, errors) = download_all(jobs.cluster, &members, &outputs, wanted, &into, events).await;
    failed.extend(errors);
    let in_place = existing.into_iter().filter_map(|(item, existing)| {
        let is_new = new.contains(&item.path);
        (is_new || existing == Existing::Identical).then_some((item, is_new))
    });
    let items: Vec<(Download, bool)> = in_place.collect();
    warn_of_set_aside(&items, directory, events);
    Ok(FetchReport { job: job.id.clone(), directory: directory.to_owned(), items, failed })
}

/// Returns the files below a directory on which hvdctl acts: those that the inventory names, and those of the
/// `hvdctl.toml` there.
fn active_files(directory: &Path, inventory_files: &[PathBuf]) -> Result<ActiveFiles, Error> {
    let Ok(top) = directory.canonicalize() else { return Ok(ActiveFiles::default()) };
    let project = ProjectFile::read(&top)?;
    let of_project = project.build.iter().chain(&project.setup_files).map(|name| top.join(name));
    let own_name = |path: &PathBuf| Some(path.parent()?.canonicalize().ok()?.join(path.file_name()?));
    let absolute = inventory_files.iter().filter_map(|file| std::path::absolute(file).ok()).chain(of_project);
    // a link, and what it leads to
    let places = absolute.flat_map(|file| [own_name(&file), file.canonicalize().ok()]).flatten();
    let below = |place: PathBuf| Some(place.strip_prefix(&top).ok()?.to_str()?.to_owned());
    Ok(ActiveFiles { named: places.filter_map(below).collect() })
}

/// Warns of what was fetched under other names.
pub(super) fn warn_of_set_aside(items: &[(Download, bool)], directory: &Path, events: &Events) {
    let lines: Vec<String> =
        set_aside(items.iter().filter(|(_, is_new)| *is_new).map(|(item, _)| item)).into_iter().collect();
    if lines.is_empty() {
        return;
    }
    let more = if lines.len() > 5 { format!("\nand {} more", lines.len() - 5) } else { String::new() };
    let shown = lines[..lines.len().min(5)].join("\n");
    let text = format!(
        "hvdctl, ssh or git would act on files that the job wrote; in {} they have other names:\n{shown}{more}",
        directory.display()
    );
    events.warn(Message::from(text).hint("read such a file before you rename it: mv FILE.fetched FILE"));
}

/// Leaves out what a notebook's node has sent to the others: they may have earlier versions of it. Of a node that does not
/// say what it was sent, everything is left out; returns its error.
async fn leave_out_copies(
    cluster: &Cluster,
    members: &[Member],
    job: &Job,
    outputs: &mut [(String, NodeOutputs)],
) -> Vec<NodeError> {
    let mut failed = Vec::new();
    for member in members.iter().filter(|member| member.node.name != job.launcher()) {
        let name = &member.node.name;
        let list = node_log::read_file(member, cluster, &job.id, RECEIVED, MOST_RECEIVED).await;
        let received = list.and_then(|list| {
            read_received(&list).map_err(|error| NodeError::failed(name, "read what was sent to it", error.to_string()))
        });
        let of_node = outputs.iter_mut().filter(|(node, _)| node == name).map(|(_, outputs)| outputs);
        match received {
            Ok(received) => of_node.for_each(|outputs| outputs.leave_out(&received)),
            Err(error) => {
                of_node.for_each(|outputs| outputs.outputs.clear());
                failed.push(error.hint(format!("hvdctl fetch {} fetches everything of it", job.id)));
            }
        }
    }
    failed
}

/// Reads sizes and times of the files that a node was sent, by name. A job that ended before it began there has no list.
fn read_received(list: &[u8]) -> serde_json::Result<BTreeMap<String, (u64, f64)>> {
    if list.is_empty() { Ok(BTreeMap::new()) } else { serde_json::from_slice(list) }
}

/// Returns an error for each of the job's nodes that was not reached.
pub(super) fn not_asked(jobs: &JobList<'_>, job: &Job, members: &[Member]) -> Vec<NodeError> {
    let absent = job.nodes.iter().filter(|node| members.iter().all(|member| member.node.name != **node));
    let error = |node: &String| {
        let reason = jobs.failed.iter().find(|error| error.node == *node).cloned();
        reason.unwrap_or_else(|| {
            NodeError::failed(node, "fetch outputs", "the node is not selected").hint("add it to --on")
        })
    };
    absent.map(error).collect()
}

/// Lists the outputs on all nodes. Returns also what cannot be fetched.
async fn list_all(
    cluster: &Cluster,
    members: &[Member],
    job: &Job,
    project: &str,
    events: &Events,
) -> Result<(Vec<(String, NodeOutputs)>, Vec<NodeError>), Error> {
    let listed = each_node(members.to_vec(), events, async |member: Member| {
        let node_project = NodeProject { cluster, transport: &member.transport, name: project, job: &job.id };
        let outputs = events.step(&member.node.name, Step::read("listing outputs"), node_project.outputs()).await?;
        Ok((member.node.name.clone(), outputs))
    })
    .await;
    let NodeResults { ok: outputs, mut failed } = listed;
    if let Some(error) = failed.iter().find(|error| error.node == job.launcher()) {
        return Err(error.clone().into());
    }
    if outputs.iter().all(|(_, outputs)| outputs.directory.is_none()) {
        return Err(Error::check(
            format!("project {project} does not exist on the nodes of job {}", job.id),
            "it was removed (hvdctl down --purge), or cluster.projects_dir has changed",
        ));
    }
    for (node, NodeOutputs { unread, odd, .. }) in &outputs {
        failed.extend(unread.iter().map(|message| NodeError::failed(node, "read the job's outputs", message)));
        let cause = "its name is not UTF-8, or points outside the directory";
        failed.extend(odd.iter().map(|name| NodeError::failed(node, &format!("fetch {name:?}"), cause)));
    }
    Ok((outputs, failed))
}

/// Opens the target directory, and finds what is at each item's path.
pub(super) async fn compare(
    directory: PathBuf,
    items: Vec<Download>,
) -> Result<(Arc<TargetDirectory>, Vec<(Download, Existing)>), Error> {
    let work = move || {
        let target = TargetDirectory::open(&directory)?;
        let existing = items.into_iter().map(|item| {
            let existing = target.existing(&item)?;
            Ok((item, existing))
        });
        let existing = existing.collect::<Result<_, Error>>()?;
        Ok((Arc::new(target), existing))
    };
    tokio::task::spawn_blocking(work).await.context("cannot read the local files")?
}

/// Downloads items from all nodes that have some. Returns the paths of those that are in their places, and what failed.
async fn download_all(
    cluster: &Cluster,
    members: &[Member],
    outputs: &[(String, NodeOutputs)],
    items: Vec<Download>,
    into: &Arc<TargetDirectory>,
    events: &Events,
) -> (BTreeSet<String>, Vec<NodeError>) {
    let work = outputs.iter().filter_map(|(node, outputs)| {
        let items: Vec<Download> = items.iter().filter(|item| item.node == *node).cloned().collect();
        let directory = format!("{}/{}", cluster.projects_dir, outputs.directory.as_ref()?);
        let member = members.iter().find(|member| member.node.name == *node)?;
        (!items.is_empty()).then_some((member, directory, items))
    });
    let downloaded =
        for_each_node(work.collect(), async |(member, directory, items): (&Member, String, Vec<Download>)| {
            let (placed, errors) = download(&member.transport, &directory, items, into, events).await;
            if errors.is_empty() {
                events.done(&member.node.name, Completion::Fetched { files: placed.len() });
            }
            errors.iter().for_each(|error| events.failed(error));
            (placed, errors)
        });
    let (placed, errors): (Vec<_>, Vec<_>) = downloaded.await.into_iter().unzip();
    (placed.into_iter().flatten().collect(), errors.into_iter().flatten().collect())
}

/// Checks that nothing would be replaced that was neither fetched nor uploaded.
pub(super) fn check_conflicts(existing: &[(Download, Existing)], directory: &Path) -> Result<(), Error> {
    let conflicts = existing.iter().filter(|(_, existing)| *existing == Existing::Conflicting);
    let conflicts: Vec<String> = conflicts.map(|(item, _)| directory.join(&item.path).display().to_string()).collect();
    let more = match conflicts.len() {
        0 => return Ok(()),
        1..=5 => String::new(),
        n => format!(" and {} more", n - 5),
    };
    let names = conflicts[..conflicts.len().min(5)].join(", ");
    Err(Error::check(
        format!("{names}{more}: exists with different contents; nothing was fetched"),
        "choose another directory with -o DIR, or replace the files with --force",
    ))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::inventory::Inventory;
    use crate::transport::node::scripted::Nodes;
    use crate::transport::node::{Transport, TransportKind};
    use std::sync::Arc;

    #[test]
    fn a_list_that_is_cut_off_is_not_taken_for_none() {
        assert!(read_received(b"").unwrap().is_empty());
        assert_eq!(read_received(b"{\"a.py\": [5, 1.5]}").unwrap()["a.py"], (5, 1.5));
        assert!(read_received(b"{\"a.py\": [5, 1.5], \"b").is_err());
    }

    #[tokio::test(start_paused = true)]
    async fn a_long_list_is_read_to_its_end_and_a_file_that_is_too_long_is_not_cut_off() {
        let nodes = Nodes::new(&["node1"]);
        let Inventory { cluster, nodes: mut hosts, .. } = Inventory::local("node1", "test/horovod:1");
        let kind = TransportKind::Scripted(nodes.clone());
        let transport = Arc::new(Transport::open_as_login(&cluster, &hosts[0], kind).await.unwrap());
        let member = Member::new(hosts.remove(0), transport);
        let names = (0..20_000).map(|i| (format!("data/features/part-of-the-{i:09}.npy"), (5, 1_700_000_000.123_456)));
        let list: BTreeMap<String, (u64, f64)> = names.collect();
        let text = serde_json::to_string(&list).unwrap();
        assert!(text.len() > 1 << 20);
        nodes.edit("node1", |state| {
            let files = &mut state.directories.entry("run-1".into()).or_default().files;
            files.extend([(RECEIVED.to_owned(), text.clone()), ("job.json".to_owned(), "1234".to_owned())]);
        });
        let read = async |file, most| node_log::read_file(&member, &cluster, "run-1", file, most).await;
        assert_eq!(read_received(&read(RECEIVED, MOST_RECEIVED).await.unwrap()).unwrap(), list);
        assert_eq!(read("job.json", 4).await.unwrap(), b"1234");
        assert_eq!(read("job.json", 3).await.unwrap_err().message, "it has more than 3 B");
        assert!(read("other", 3).await.unwrap().is_empty());
    }
}
