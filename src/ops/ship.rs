//! Brings a project to a node: only what differs goes over the wire, what is gone goes there too, and the node proves by
//! content hash that it has the same tree. A run that is under way keeps the tree it started with.

use crate::core::inventory::Cluster;
use crate::core::manifest::Had;
use crate::core::pull::Rate;
use crate::core::units::human;
use crate::edge::link::{Link, STUCK};
use crate::edge::tree::Tree;
use crate::error::NodeError;
use crate::event::{Event, Events};
use std::collections::BTreeSet;
use std::time::{Duration, Instant};

const LOOK: &str =
    concat!(include_str!("../edge/scripts/ship_common.sh"), include_str!("../edge/scripts/ship_look.sh"));
const PUT: &str = concat!(include_str!("../edge/scripts/ship_common.sh"), include_str!("../edge/scripts/ship_put.sh"));
const GATHER: &str =
    concat!(include_str!("../edge/scripts/ship_common.sh"), include_str!("../edge/scripts/ship_gather.sh"));

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

/// What a node has of a project, and where a run finds it there.
#[derive(Debug, Clone)]
pub struct Place {
    /// The folder that the run mounts.
    pub folder: String,
    /// Whether the project's folder was made just now.
    pub new: bool,
    /// Whether the run gets a folder of its own, because another one uses the project's with other files.
    pub own: bool,
    same: bool,
    had: Had,
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
/// are left alone.
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
) -> Result<Place, NodeError> {
    events.busy(link.node(), "comparing the project");
    let dir = project_dir(cluster, name);
    let tried = format!("compare the project with {dir}");
    let runs = under_way.join(" ");
    let argv = [
        "sh",
        "-c",
        LOOK,
        "sh",
        &cluster.projects_dir,
        name,
        &cluster.name,
        &project.tree.hash,
        &project.origin,
        if project.shared { "shared" } else { "" },
        &runs,
    ];
    let output = link.run_as_root_within(&argv, &[], &tried, limit(link, project)).await?;
    if output.code != 0 {
        return Err(explained(cluster, NodeError::failed(link.node(), &tried, output.complaint())));
    }
    let place = Place::read(&output.stdout, dir.clone(), id, |words| {
        events.send(Event::Warning(format!("{}: what a run wrote stays apart from {dir}: {words}", link.node())));
    });
    place.map_err(|refusal| {
        let error = NodeError::failed(link.node(), &tried, &refusal);
        match refusal {
            Refusal::Origin(..) => error.hint(format!(
                "give this one another name: --as NAME; or, if it is the same project, say so: --as {name}"
            )),
            Refusal::Foreign => {
                error.hint(format!("give the project another name: --as NAME; or take it: --as {name}"))
            }
        }
    })
}

/// Why a project is not shipped to a folder.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
enum Refusal {
    #[error("another project has this name there, which came from {0}")]
    Origin(String),
    #[error("the folder is there and was not made by hvdctl")]
    Foreign,
}

impl Place {
    /// Reads what `ship_look.sh` said of a folder.
    fn read(said: &[u8], dir: String, id: &str, mut kept: impl FnMut(&str)) -> Result<Place, Refusal> {
        let mut place = Place { folder: dir, new: false, own: false, same: false, had: Had::default() };
        for record in said.split(|b| *b == 0) {
            let record = String::from_utf8_lossy(record);
            match record.split_once(' ').unwrap_or((&record, "")) {
                ("same", _) => place.same = true,
                ("new", _) => place.new = true,
                ("busy", _) => place.own = true,
                ("unsure", _) => place.had.unsure(),
                ("had", record) => place.had.record(record),
                ("changed", name) => place.had.changed(name),
                ("kept", words) => kept(words),
                ("origin", origin) => return Err(Refusal::Origin(origin.to_owned())),
                ("foreign", _) => return Err(Refusal::Foreign),
                _ => {}
            }
        }
        if place.own {
            place.folder = format!("{}+{id}", place.folder);
        }
        Ok(place)
    }
}

/// Ships a tree to the place that [`look`] found.
///
/// # Errors
/// With the node's words (disk full, above all), or when it has other files than we have after all. The tree that was
/// there is whole then.
pub async fn ship(
    cluster: &Cluster,
    link: &Link,
    project: &Project,
    name: &str,
    id: &str,
    place: &Place,
    events: &Events,
) -> Result<Shipped, NodeError> {
    let manifest = &project.tree.manifest;
    if place.same {
        return Ok(Shipped { sent: 0, bytes: 0, removed: 0 });
    }
    let missing = manifest.missing(&place.had);
    let (sent, bytes) = manifest.size(&missing);
    let removed = manifest.gone(&place.had);
    let tried = format!("ship the project to {}", place.folder);
    let failed = |said: String| explained(cluster, NodeError::failed(link.node(), &tried, said));
    events.busy(link.node(), format!("shipping {sent} files, {}", human(bytes)));

    let [id, tree, proof, whole] = put(&project.tree, &missing, if place.own { id } else { "" });
    let argv = ["sh", "-c", PUT, "sh", &cluster.projects_dir, name, &cluster.name, &id, &tree, &proof, &whole];
    let proving = limit(link, project);
    let limits = (link.limit(), if place.own { proving + COPYING } else { proving });
    let process = link.spawn_fed_as_root(&argv, &tried).await?;
    let (mut told, mut rate, start) = (0, Rate::default(), Instant::now());
    let output = process.feed(project.tree.tar(missing), limits, |so_far| {
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
    if proven.split_whitespace().next() != Some(&tree) {
        return Err(failed(format!("the node has the tree {}, and this machine {tree}", proven.trim())));
    }
    Ok(Shipped { sent, bytes, removed })
}

/// What `ship_put.sh` is told: the run that gets a folder of its own, and the hashes of the tree, of what is sent, and of
/// what has to be there in the end.
fn put(tree: &Tree, missing: &BTreeSet<String>, id: &str) -> [String; 4] {
    let Tree { manifest, hash, .. } = tree;
    [id.to_owned(), hash.clone(), manifest.arrived(missing), manifest.placed(!id.is_empty())]
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
    kept.for_each(|words| events.send(Event::Warning(format!("{}: could not {tried}: {words}", link.node()))));
    if output.code == 0 { Ok(()) } else { Err(NodeError::failed(link.node(), tried, output.complaint())) }
}

fn limit(link: &Link, project: &Project) -> Duration {
    let (_, bytes) = project.tree.manifest.size(project.tree.manifest.0.keys());
    link.limit() + Duration::from_secs(bytes / SLOWEST)
}

/// The error with what helps against it.
fn explained(cluster: &Cluster, error: NodeError) -> NodeError {
    let has = |words: &[&str]| words.iter().any(|words| error.said.contains(words));
    let hint = if has(&["cannot overwrite", "cannot create hard link", "could not be put in their places"]) {
        "a run wrote where the project now has something else: move it away on the node".to_owned()
    } else if has(&["No space left", "Disk quota exceeded"]) {
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
