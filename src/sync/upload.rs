//! Brings a project to a node: only what differs goes over the wire, what is gone goes there too, and the node proves by
//! content hash that it has the same tree. A run that is under way keeps the tree it started with.

use crate::error::NodeError;
use crate::event::{Event, Events};
use crate::inventory::Cluster;
use crate::runtime::pull::Rate;
use crate::sync::manifest::{Had, Manifest, Part};
use crate::sync::tree::Tree;
use crate::text::units::human;
use crate::transport::link::{Link, Process, STUCK, Taking};
use std::time::{Duration, Instant};

const SHIP: &str = concat!(
    include_str!("../scripts/ship_common.sh"),
    include_str!("../scripts/ship_look.sh"),
    include_str!("../scripts/ship_put.sh")
);
/// The record with which the script waits for what the node lacks. None holds a NUL, so this stands nowhere else.
const WAITS: &[u8] = b"\0waits\0";
/// What the script's tar writes before it reads the first record and then for each that it has taken (`--checkpoint`, tar's
/// manual); a record has `--blocking-factor` blocks.
const TAKING: Taking = Taking { mark: b'.', part: 512 * 512 };
const GATHER: &str = concat!(include_str!("../scripts/ship_common.sh"), include_str!("../scripts/ship_gather.sh"));

/// The slowest disk that looking and hashing are given time for, in bytes per second.
const SLOWEST: u64 = 20 << 20;

/// The longest that it may take to copy a project's folder for a run of its own, with all that runs have written there.
const COPYING: Duration = Duration::from_secs(3600);

/// A project that is to be shipped.
#[derive(Debug, Clone)]
pub struct Project {
    /// Its files.
    pub tree: Tree,
    /// Where they are, `HOST:FOLDER`: another project of the same name is not shipped over this one.
    pub origin: String,
    /// Whether it takes the name whoever had it before.
    pub shared: bool,
}

/// Where a run finds a project on a node.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Place {
    /// The folder that the run mounts.
    pub folder: String,
    /// Whether the project's folder was made just now.
    pub new: bool,
    /// Whether the run gets a folder of its own, because another one uses the project's with other files.
    pub own: bool,
}

/// A node that was looked at.
pub struct Looked {
    /// Where the run will find the project.
    pub place: Place,
    had: Had,
    /// What waits there for the files; where nothing is to be shipped, nothing does.
    waits: Option<Process>,
}

/// What went to one node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Shipped {
    /// Files and links that were sent.
    pub sent: usize,
    /// Their bytes.
    pub bytes: u64,
    /// Files that were removed.
    pub removed: usize,
}

/// The folder of a project on the nodes.
pub fn project_dir(cluster: &Cluster, name: &str) -> String {
    format!("{}/{name}", cluster.projects_dir)
}

/// Looks at what a node has of a project, makes the folder and gathers what earlier runs wrote elsewhere; those among `under_way`
/// are left alone. What it gives waits on the node until it is shipped to or dropped.
///
/// # Errors
/// With the node's words; when the name is another project's, or a folder's that hvdctl did not make.
pub async fn look(
    cluster: &Cluster,
    link: &Link,
    project: &Project,
    name: &str,
    (id, under_way): (&str, &[&str]),
    events: &Events,
) -> Result<Looked, NodeError> {
    events.reading(link.node(), "comparing the project");
    let dir = project_dir(cluster, name);
    let tried = format!("compare the project with {dir}");
    let runs = under_way.join(" ");
    let argv = [
        "sh",
        "-c",
        SHIP,
        "sh",
        &cluster.projects_dir,
        name,
        &cluster.name,
        &project.tree.hash,
        &project.origin,
        if project.shared { "shared" } else { "" },
        &runs,
        id,
    ];
    let asked = link.ask_as_root(&argv, WAITS, &tried, limit(link, project)).await;
    let (said, waits) = asked.map_err(|e| explained(cluster, e))?;
    let looked = read(&said, dir.clone(), id, |words| {
        events.send(Event::Warning(format!("{}: what a run wrote stays apart from {dir}: {words}", link.node())));
    });
    let Seen { place, had, same } = looked.map_err(|refusal| {
        let error = NodeError::failed(link.node(), &tried, &refusal);
        match refusal {
            Refusal::Origin(..) => error.hint(format!(
                "give this one another name: --as NAME; or, if it is the same project, say so: --as {name}"
            )),
            Refusal::Foreign => {
                error.hint(format!("give the project another name: --as NAME; or take it: --as {name}"))
            }
        }
    })?;
    if waits.is_none() && !same {
        return Err(NodeError::failed(link.node(), &tried, "it ended without a word of what it has"));
    }
    Ok(Looked { place, had, waits })
}

/// Why a project is not shipped to a folder.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
enum Refusal {
    #[error("another project has this name there, which came from {0}")]
    Origin(String),
    #[error("the folder is there and was not made by hvdctl")]
    Foreign,
}

/// What `ship_look.sh` says of a folder.
#[derive(Debug)]
struct Seen {
    place: Place,
    had: Had,
    /// Whether it has this very tree.
    same: bool,
}

/// Reads it.
fn read(said: &[u8], folder: String, id: &str, mut kept: impl FnMut(&str)) -> Result<Seen, Refusal> {
    let (mut place, mut had, mut same) = (Place { folder, ..Place::default() }, Had::default(), false);
    for record in said.split(|b| *b == 0) {
        let record = String::from_utf8_lossy(record);
        match record.split_once(' ').unwrap_or((&record, "")) {
            ("same", _) => same = true,
            ("new", _) => place.new = true,
            ("busy", _) => place.own = true,
            ("unsure", _) => had.unsure(),
            ("had", record) => had.record(record),
            ("changed", name) => had.changed(name),
            ("kept", words) => kept(words),
            ("origin", origin) => return Err(Refusal::Origin(origin.to_owned())),
            ("foreign", _) => return Err(Refusal::Foreign),
            _ => {}
        }
    }
    if place.own {
        place.folder = format!("{}+{id}", place.folder);
    }
    Ok(Seen { place, had, same })
}

/// Ships a tree to a node that [`look`] looked at.
///
/// # Errors
/// With the node's words (disk full, above all), or when it has other files than we have after all. The tree that was
/// there is whole then.
pub async fn ship(
    cluster: &Cluster,
    link: &Link,
    project: &Project,
    looked: Looked,
    events: &Events,
) -> Result<Shipped, NodeError> {
    let Looked { place, had, waits } = looked;
    let Some(process) = waits else {
        return Ok(Shipped { sent: 0, bytes: 0, removed: 0 });
    };
    let Tree { manifest, hash, .. } = &project.tree;
    let missing = manifest.missing(&had);
    let (sent, bytes) = manifest.size(&missing);
    let removed = manifest.gone(&had);
    let tried = format!("ship the project to {}", place.folder);
    let failed = |said: String| explained(cluster, NodeError::failed(link.node(), &tried, said));
    events.busy(link.node(), format!("shipping {sent} files, {}", human(bytes)));

    let head = hashes(manifest, &missing, place.own);
    let proving = limit(link, project);
    let limits = (link.limit(), if place.own { proving + COPYING } else { proving });
    let (mut told, mut rate, start) = (0, Rate::default(), Instant::now());
    let output = process.feed(head.as_bytes(), project.tree.tar(missing), limits, Some(TAKING), |so_far| {
        if so_far - told > 4 << 20 {
            told = so_far;
            let (node, what) = (link.node().to_owned(), "shipping".to_owned());
            let rate = rate.see(start.elapsed(), so_far);
            events.send(Event::Transfer { node, what, done: so_far.min(bytes), total: bytes, rate });
        }
    });
    let output = output.await.map_err(|e| failed(e.to_string()))?;
    if output.code != 0 {
        return Err(failed(output.complaint()));
    }
    // the node's own word for what it has now
    let proven = String::from_utf8_lossy(&output.stdout);
    if proven.split_whitespace().next() != Some(hash) {
        return Err(failed(format!("the node has the tree {}, and this machine {hash}", proven.trim())));
    }
    Ok(Shipped { sent, bytes, removed })
}

/// The line that `ship_put.sh` reads before the files: the hashes of what is sent, and of what has to be there in the end.
fn hashes(manifest: &Manifest, missing: &Part, own: bool) -> String {
    format!("{} {}\n", manifest.arrived(missing), manifest.placed(own))
}

/// Brings what a run wrote in a folder of its own into the project's, if it has ended.
///
/// # Errors
/// When the node cannot be asked.
pub async fn gather(cluster: &Cluster, link: &Link, name: &str, id: &str, events: &Events) -> Result<(), NodeError> {
    let tried = "bring what the run wrote into the project's folder";
    let argv = ["sh", "-c", GATHER, "sh", &cluster.projects_dir, name, &cluster.name, id];
    let output = link.run_as_root(&argv, &[], tried).await?;
    let said = String::from_utf8_lossy(&output.stdout);
    let kept = said.split('\0').filter_map(|record| record.strip_prefix("kept "));
    kept.for_each(|words| events.send(Event::Warning(format!("{}: cannot {tried}: {words}", link.node()))));
    if output.code == 0 { Ok(()) } else { Err(NodeError::failed(link.node(), tried, output.complaint())) }
}

fn limit(link: &Link, project: &Project) -> Duration {
    link.limit() + Duration::from_secs(project.tree.manifest.bytes() / SLOWEST)
}

/// The error with what helps against it.
fn explained(cluster: &Cluster, error: NodeError) -> NodeError {
    /// What `ship_put.sh` says once files are in their places.
    const MISPLACED: &str = "in its place with its type and mode";
    let has = |words: &[&str]| words.iter().any(|words| error.message.contains(words));
    let full = has(&["No space left", "Disk quota exceeded"]);
    let hint = if has(&["cannot overwrite", "cannot create hard link"]) {
        "a run wrote where the project now has something else: move it away on the node".to_owned()
    } else if full && has(&[MISPLACED]) {
        format!("make room below {} on the node and try again: the project is not all there", cluster.projects_dir)
    } else if has(&[MISPLACED]) {
        format!(
            "a run or somebody else may have changed it meanwhile: try again; a file system that keeps no modes cannot hold {}",
            cluster.projects_dir
        )
    } else if full {
        format!(
            "make room below {} on the node, or set cluster.projects_dir to a larger disk; the tree that was there is whole",
            cluster.projects_dir
        )
    } else if has(&["is not what was read", "changed while it was shipped", "No such file"]) {
        "a file was changed while it was shipped: try again".to_owned()
    } else if has(&[STUCK]) {
        "look at the node's disk and at the way there; cluster.command_timeout_s gives it more time".to_owned()
    } else {
        return error;
    };
    error.hint(hint)
}

#[cfg(test)]
mod tests;
