//! Uploads a project to a node: only what differs is sent, what was deleted is deleted there, and the node proves by content hash that
//! it has the same files. A job that is running keeps the files it was started with.

use crate::error::NodeError;
use crate::event::{Event, Events};
use crate::inventory::Cluster;
use crate::runtime::pull::Rate;
use crate::sync::files::ProjectFiles;
use crate::sync::manifest::{Manifest, NodeFiles, Selection};
use crate::text::units::human;
use crate::transport::link::{Link, Process, STUCK};
use std::time::{Duration, Instant};

const UPLOAD: &str = concat!(
    include_str!("../scripts/upload_common.sh"),
    include_str!("../scripts/upload_compare.sh"),
    include_str!("../scripts/upload_apply.sh")
);
const MERGE: &str = concat!(include_str!("../scripts/upload_common.sh"), include_str!("../scripts/upload_merge.sh"));

/// The record after which the script waits for what the node lacks. No record holds a NUL, so it occurs nowhere else.
const WAITS: &[u8] = b"\0waits\0";

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
pub struct Comparison {
    /// Where the job will find the project.
    pub place: Place,
    node_files: NodeFiles,
    /// The script that waits for the files; None where the node has them all.
    receiver: Option<Process>,
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
/// own, except for those of `running` jobs. A script waits on the node until [`upload`] is called or the comparison is dropped.
///
/// # Errors
/// If the node cannot be asked, the name is another project's, or hvdctl did not create the directory.
pub async fn compare(
    cluster: &Cluster,
    link: &Link,
    project: &Project,
    name: &str,
    (id, running): (&str, &[&str]),
    events: &Events,
) -> Result<Comparison, NodeError> {
    events.reading(link.node(), "comparing the project");
    let directory = format!("{}/{name}", cluster.projects_dir);
    let tried = format!("compare the project with {directory}");
    let shared = if project.shared { "shared" } else { "" };
    let running = running.join(" ");
    let argv = ["sh", "-c", UPLOAD, "sh", &cluster.projects_dir, name, &cluster.name];
    let argv = [&argv[..], &[&project.files.hash, &project.origin, shared, &running, id]].concat();
    let asked = link.ask_as_root(&argv, WAITS, &tried, limit(link, project)).await;
    let (answer, receiver) = asked.map_err(|e| with_hint(cluster, e))?;
    let warn = |words: &str| {
        let node = link.node();
        events.send(Event::Warning(format!("{node}: cannot merge what a job wrote into {directory}: {words}")));
    };
    let answer = Answer::parse(&answer, directory.clone(), id, warn).map_err(|refusal| {
        let hint = match refusal {
            Refusal::Origin(..) => {
                format!("give this one another name: --as NAME; or, if it is the same project, say so: --as {name}")
            }
            Refusal::Foreign => format!("give the project another name: --as NAME; or take it: --as {name}"),
        };
        NodeError::failed(link.node(), &tried, refusal).hint(hint)
    })?;
    if receiver.is_none() && !answer.same {
        return Err(NodeError::failed(link.node(), &tried, "the script ended without an answer"));
    }
    Ok(Comparison { place: answer.place, node_files: answer.node_files, receiver })
}

/// Why a project is not uploaded to a directory.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
enum Refusal {
    #[error("another project has this name there, which came from {0}")]
    Origin(String),
    #[error("the directory exists and was not created by hvdctl")]
    Foreign,
}

/// The answer of `upload_compare.sh`.
#[derive(Debug)]
struct Answer {
    place: Place,
    node_files: NodeFiles,
    /// Whether the node has exactly these files.
    same: bool,
}

impl Answer {
    /// Reads the records of an answer. `warn` is called for each job's directory that could not be merged.
    fn parse(answer: &[u8], directory: String, id: &str, mut warn: impl FnMut(&str)) -> Result<Answer, Refusal> {
        let (mut place, mut node_files, mut same) =
            (Place { directory, ..Place::default() }, NodeFiles::default(), false);
        for record in answer.split(|b| *b == 0) {
            let record = String::from_utf8_lossy(record);
            match record.split_once(' ').unwrap_or((&record, "")) {
                ("same", _) => same = true,
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
        if place.own {
            place.directory = format!("{}+{id}", place.directory);
        }
        Ok(Answer { place, node_files, same })
    }
}

/// Uploads what a node lacks according to [`compare`].
///
/// # Errors
/// If the node cannot take the files (disk full, above all) or ends up with others; its earlier files are whole then.
pub async fn upload(
    cluster: &Cluster,
    link: &Link,
    project: &Project,
    comparison: Comparison,
    events: &Events,
) -> Result<Uploaded, NodeError> {
    let Comparison { place, node_files, receiver } = comparison;
    let Some(receiver) = receiver else {
        return Ok(Uploaded { sent: 0, bytes: 0, removed: 0 });
    };
    let ProjectFiles { manifest, hash, .. } = &project.files;
    let missing = manifest.missing(&node_files);
    let (sent, bytes) = manifest.size(&missing);
    let tried = format!("upload the project to {}", place.directory);
    let failed = |cause: String| with_hint(cluster, NodeError::failed(link.node(), &tried, cause));
    events.busy(link.node(), format!("uploading {sent} files, {}", human(bytes)));

    let stream = project.files.stream(missing.clone(), expected(manifest, &missing, place.own));
    let proof = limit(link, project) + if place.own { COPYING } else { Duration::ZERO };
    let output = receiver.feed(stream, (link.limit(), proof), progress(link.node(), bytes, events));
    let output = output.await.map_err(|e| failed(e.to_string()))?;
    if output.code != 0 {
        return Err(failed(output.complaint()));
    }
    let proven = String::from_utf8_lossy(&output.stdout);
    if proven.split_whitespace().next() != Some(hash) {
        return Err(failed(format!("the node has files with the hash {}, this machine {hash}", proven.trim())));
    }
    Ok(Uploaded { sent, bytes, removed: manifest.gone(&node_files) })
}

/// Returns the line that `upload_apply.sh` reads first: the hashes of what is sent and of what the node must have in the end.
fn expected(manifest: &Manifest, missing: &Selection, own: bool) -> String {
    format!("{} {}\n", manifest.arrived(missing), manifest.placed(own))
}

/// Returns a function that reports the bytes sent so far.
fn progress(node: &str, total: u64, events: &Events) -> impl FnMut(u64) {
    let (mut reported, mut rate, start) = (0, Rate::default(), Instant::now());
    move |done| {
        if done - reported > 4 << 20 {
            reported = done;
            let (node, what, rate) = (node.to_owned(), "uploading".to_owned(), rate.see(start.elapsed(), done));
            events.send(Event::Transfer { node, what, done: done.min(total), total, rate });
        }
    }
}

/// Merges what an ended job wrote in a directory of its own into the project's.
///
/// # Errors
/// If the node cannot be asked.
pub async fn merge(cluster: &Cluster, link: &Link, name: &str, id: &str, events: &Events) -> Result<(), NodeError> {
    let tried = "merge what the job wrote into the project's directory";
    let argv = ["sh", "-c", MERGE, "sh", &cluster.projects_dir, name, &cluster.name, id];
    let output = link.run_as_root(&argv, &[], tried).await?;
    let answer = String::from_utf8_lossy(&output.stdout);
    let kept = answer.split('\0').filter_map(|record| record.strip_prefix("kept "));
    kept.for_each(|words| events.send(Event::Warning(format!("{}: cannot {tried}: {words}", link.node()))));
    if output.code == 0 { Ok(()) } else { Err(NodeError::failed(link.node(), tried, output.complaint())) }
}

fn limit(link: &Link, project: &Project) -> Duration {
    link.limit() + Duration::from_secs(project.files.manifest.bytes() / SLOWEST)
}

/// Adds a hint to an error whose cause is known.
fn with_hint(cluster: &Cluster, error: NodeError) -> NodeError {
    /// What `upload_apply.sh` prints once files are in their places.
    const MISPLACED: &str = "in its place with its type and mode";
    let has = |words: &[&str]| words.iter().any(|words| error.said.contains(words));
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
