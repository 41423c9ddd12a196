//! Uploads a project to a node: only what differs is sent, what was deleted is deleted there, and the node proves by content hash that
//! it has the same files. A job that is running keeps the files it was started with.

use crate::error::NodeError;
use crate::event::{Event, Events, Step};
use crate::inventory::Cluster;
use crate::runtime::progress::TransferProgress;
use crate::sync::files::ProjectFiles;
use crate::sync::manifest::NodeFiles;
use crate::transport::node::{RunAs, STUCK, Transport};
use std::time::Duration;

const COMPARE: &str =
    concat!(include_str!("../scripts/upload_common.sh"), include_str!("../scripts/upload_compare.sh"));
const APPLY: &str = concat!(include_str!("../scripts/upload_common.sh"), include_str!("../scripts/upload_apply.sh"));
const MERGE: &str = concat!(include_str!("../scripts/upload_common.sh"), include_str!("../scripts/upload_merge.sh"));

/// Bytes per second of the slowest disk for which comparing and hashing have time.
const SLOWEST: u64 = 20 << 20;

/// Time limit for copying a project's directory, with all that jobs wrote there, for a job of its own.
const COPYING: Duration = Duration::from_secs(3600);

/// A project to be uploaded.
#[derive(Debug, Clone)]
pub struct Project {
    /// Its files.
    pub files: ProjectFiles,
    /// Where they are, `HOST:DIRECTORY`: another project of the same name does not replace this one.
    pub origin: String,
    /// Whether it replaces a project of the same name and another origin.
    pub shared: bool,
}

/// A project's directory on a node.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Place {
    /// The directory that the job mounts.
    pub directory: String,
    /// Whether the directory was created just now.
    pub new: bool,
    /// Whether the job has a directory of its own, because another job uses the project's with other files.
    pub own: bool,
}

/// What a node has of a project.
#[derive(Debug, Default)]
pub struct Comparison {
    /// Where the job will find the project.
    pub place: Place,
    node_files: NodeFiles,
    /// Whether the node has exactly the project's files.
    same: bool,
}

/// What was uploaded to a node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Uploaded {
    /// Number of files and links sent.
    pub sent: usize,
    /// Their bytes.
    pub bytes: u64,
    /// Number of files removed.
    pub removed: usize,
}

/// Compares a project with what a node has of it, creates its directory and merges what earlier jobs wrote in directories of their
/// own, except for those of `running` jobs.
///
/// # Errors
/// If the node cannot be asked, the name is another project's, or hvdctl did not create the directory.
pub async fn compare(
    cluster: &Cluster,
    link: &Transport,
    project: &Project,
    name: &str,
    (id, running): (&str, &[&str]),
    events: &Events,
) -> Result<Comparison, NodeError> {
    let directory = format!("{}/{name}", cluster.projects_dir);
    let tried = format!("compare the project with {directory}");
    let shared = if project.shared { "shared" } else { "" };
    let running = running.join(" ");
    let argv = ["sh", "-c", COMPARE, "sh", &cluster.projects_dir, name, &cluster.name];
    let argv = [&argv[..], &[&project.files.hash, &project.origin, shared, &running]].concat();
    let answer = link.list_as_root(&argv, &[], &tried, limit(link, project)).await?;
    if answer.code != 0 {
        return Err(with_hint(cluster, link.failed(&answer, &tried)));
    }
    let warn = |words: &str| {
        let node = link.node();
        events.send(Event::Warning(format!("{node}: cannot merge what a job wrote into {directory}: {words}")));
    };
    let mut comparison = Comparison::parse(&answer.stdout, warn).map_err(|refusal| {
        let hint = match refusal {
            Refusal::Origin(..) => {
                format!("give this one another name: --as NAME; or, if it is the same project, say so: --as {name}")
            }
            Refusal::Foreign => format!("give the project another name: --as NAME; or take it: --as {name}"),
        };
        NodeError::failed(link.node(), &tried, refusal).hint(hint)
    })?;
    let place = &mut comparison.place;
    place.directory = if place.own { format!("{directory}+{id}") } else { directory };
    Ok(comparison)
}

/// Why a project is not uploaded to a directory.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
enum Refusal {
    #[error("another project has this name there, which came from {0}")]
    Origin(String),
    #[error("the directory exists and was not created by hvdctl")]
    Foreign,
}

impl Comparison {
    /// Reads the records of `upload_compare.sh`. `warn` is called for each job's directory that could not be merged.
    fn parse(answer: &[u8], mut warn: impl FnMut(&str)) -> Result<Comparison, Refusal> {
        let mut comparison = Comparison::default();
        let Comparison { place, node_files, same } = &mut comparison;
        for record in answer.split(|b| *b == 0) {
            let record = String::from_utf8_lossy(record);
            match record.split_once(' ').unwrap_or((&record, "")) {
                ("same", _) => *same = true,
                ("new", _) => place.new = true,
                ("busy", _) => place.own = true,
                ("unsure", _) => node_files.unsure(),
                ("had", record) => node_files.record(record),
                ("changed", name) => node_files.changed(name),
                ("kept", words) => warn(words),
                ("origin", origin) => return Err(Refusal::Origin(origin.to_owned())),
                ("foreign", _) => return Err(Refusal::Foreign),
                _ => {}
            }
        }
        Ok(comparison)
    }
}

/// Uploads what a node lacks according to [`compare`].
///
/// # Errors
/// If the node cannot take the files (disk full, above all) or ends up with others; its earlier files are whole then.
pub async fn upload(
    cluster: &Cluster,
    link: &Transport,
    project: &Project,
    (name, id): (&str, &str),
    comparison: Comparison,
    events: &Events,
) -> Result<Uploaded, NodeError> {
    let Comparison { place, node_files, same } = comparison;
    if same {
        return Ok(Uploaded { sent: 0, bytes: 0, removed: 0 });
    }
    let ProjectFiles { manifest, hash, .. } = &project.files;
    let missing = manifest.missing(&node_files);
    let (sent, bytes) = manifest.size(&missing);
    let tried = format!("upload the project to {}", place.directory);
    let _step = events.begin(link.node(), Step::Uploading { files: sent, bytes });

    let (arrived, whole) = (manifest.arrived(&missing), manifest.placed(place.own));
    let argv = ["sh", "-c", APPLY, "sh", &cluster.projects_dir, name, &cluster.name];
    let argv = [&argv[..], &[hash, &arrived, &whole, if place.own { id } else { "" }]].concat();
    let process = link.spawn(RunAs::Root, &argv, &tried).await?;
    let proof = limit(link, project) + if place.own { COPYING } else { Duration::ZERO };
    let mut progress = TransferProgress::new(link.node(), events);
    let report = |done| progress.report("uploading", done, bytes);
    let output = process.feed(project.files.stream(missing), (link.limit(), proof), report).await;
    let output = output.map_err(|e| with_hint(cluster, link.broken(&tried, &e)))?;
    if output.code != 0 {
        return Err(with_hint(cluster, link.failed(&output, &tried)));
    }
    let proven = String::from_utf8_lossy(&output.stdout);
    if proven.split_whitespace().next() != Some(hash) {
        let cause = format!("the node has files with the hash {}, this machine {hash}", proven.trim());
        return Err(NodeError::failed(link.node(), &tried, cause));
    }
    Ok(Uploaded { sent, bytes, removed: manifest.gone(&node_files) })
}

/// Merges what an ended job wrote in a directory of its own into the project's.
///
/// # Errors
/// If the node cannot be asked.
pub async fn merge(
    cluster: &Cluster,
    link: &Transport,
    name: &str,
    id: &str,
    events: &Events,
) -> Result<(), NodeError> {
    let tried = "merge what the job wrote into the project's directory";
    let argv = ["sh", "-c", MERGE, "sh", &cluster.projects_dir, name, &cluster.name, id];
    let output = link.run(RunAs::Root, &argv, &[], tried, link.limit()).await?;
    let answer = String::from_utf8_lossy(&output.stdout);
    let kept = answer.split('\0').filter_map(|record| record.strip_prefix("kept "));
    kept.for_each(|words| events.send(Event::Warning(format!("{}: cannot {tried}: {words}", link.node()))));
    if output.code == 0 { Ok(()) } else { Err(NodeError::failed(link.node(), tried, output.complaint())) }
}

fn limit(link: &Transport, project: &Project) -> Duration {
    link.limit() + Duration::from_secs(project.files.manifest.bytes() / SLOWEST)
}

/// Adds a hint to an error whose cause is known.
fn with_hint(cluster: &Cluster, error: NodeError) -> NodeError {
    /// What `upload_apply.sh` prints once files are in their places.
    const MISPLACED: &str = "in its place with its type and mode";
    let has = |words: &[&str]| words.iter().any(|words| error.message.contains(words));
    let full = has(&["No space left", "Disk quota exceeded"]);
    let dir = &cluster.projects_dir;
    let hint = if has(&["cannot overwrite", "cannot create hard link"]) {
        "a job wrote where the project now has something else: move it away on the node".to_owned()
    } else if full && has(&[MISPLACED]) {
        format!("make room below {dir} on the node and try again: the upload is incomplete")
    } else if has(&[MISPLACED]) {
        format!("a job or a user may have changed it meanwhile: try again; {dir} needs a file system that keeps modes")
    } else if full {
        format!(
            "make room below {dir} on the node, or set cluster.projects_dir to a larger disk; the earlier files are whole"
        )
    } else if has(&["is not what was read", "changed while it was uploaded", "No such file"]) {
        "a file was changed while it was uploaded: try again".to_owned()
    } else if has(&[STUCK]) {
        "check the node's disk and network; cluster.command_timeout_s gives it more time".to_owned()
    } else {
        return error;
    };
    error.hint(hint)
}

#[cfg(test)]
mod tests;
