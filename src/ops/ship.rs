//! Brings a project to a node: only what differs goes over the wire, what is gone goes there too, and the node proves by
//! content hash that it has the same files.

use crate::core::inventory::Cluster;
use crate::core::pull::Rate;
use crate::core::units::human;
use crate::edge::link::Link;
use crate::edge::tree::{STATE, Tree, parse_state};
use crate::error::NodeError;
use crate::event::{Event, Events};
use std::collections::BTreeSet;
use std::time::{Duration, Instant};

/// Reads the list of files that were shipped last; nothing where there was none.
const READ_LIST: &str = r#"cat -- "$1" 2>/dev/null || :"#;
/// Writes it, by way of a temporary file.
const WRITE_LIST: &str = r#"cat >"$1.new" && mv -f -- "$1.new" "$1""#;
/// Removes what the project no longer has; folders come after their contents, and only empty ones go. What a run wrote is
/// not on the list and stays. A folder that a run has replaced by a link leads out of the project, and is left alone.
const REMOVE: &str = r#"r=$(pwd -P)
for f; do
  case $f in */*) d=/${f%/*} ;; *) d= ;; esac
  [ "$(cd -P -- "$r$d" 2>/dev/null && pwd -P)" = "$r$d" ] || continue
  rm -f -- "$f" 2>/dev/null || rmdir -- "$f" 2>/dev/null || :
done"#;
/// Runs its arguments in a project's folder.
const IN_FOLDER: &str = r#"cd -- "$1" && shift && exec "$@""#;
/// The slowest disk that hashing is given time for, in bytes per second.
const SLOWEST: u64 = 20 << 20;

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

/// Ships a tree to a node; the folder is there already.
///
/// # Errors
/// With the node's words (disk full, above all), or when it has other files than we have after all.
pub async fn ship(
    cluster: &Cluster,
    link: &Link,
    tree: &Tree,
    name: &str,
    events: &Events,
) -> Result<Shipped, NodeError> {
    let dir = project_dir(cluster, name);
    // neither name can have an `@`, so `purge` can tell whose it is
    let list = format!("{}/.{name}@{}.shipped", cluster.projects_dir, cluster.name);
    let tried = format!("ship the project to {dir}");
    let failed = |said: String| NodeError::failed(link.node(), &tried, said);
    // runs a program over NUL-separated names, as many at a time as a command line takes
    let over = async |program: &'static str, names: &[u8]| {
        let argv = ["sh", "-c", IN_FOLDER, "sh", &dir, "xargs", "-0", "-r", "sh", "-c", program, "sh"];
        let limit = link.limit() + Duration::from_secs(tree.size_of_all() / SLOWEST);
        let output = link.run_as_root_within(&argv, names, &tried, limit).await?;
        if output.code == 0 { Ok(output.stdout) } else { Err(failed(output.complaint())) }
    };
    let names = tree.names();
    let state = async || Ok(parse_state(&over(STATE, &names).await?));

    events.busy(link.node(), "comparing the project");
    let read = ["sh", "-c", READ_LIST, "sh", &list];
    let old = link.run_as_root(&read, &[], &tried);
    let (old, there) = tokio::join!(old, state());
    let (old, there) = (old?.stdout, there?);
    let new: BTreeSet<&[u8]> = tree.entries.keys().map(String::as_bytes).collect();
    let mut gone: Vec<&[u8]> = old.split(|b| *b == 0).filter(|name| !name.is_empty() && !new.contains(name)).collect();
    gone.reverse(); // what is in a folder before the folder
    if !gone.is_empty() {
        let mut list = gone.join(&0);
        list.push(0);
        over(REMOVE, &list).await?;
    }

    let whole = tree.is_on(&there);
    let missing = if whole { Vec::new() } else { tree.missing(&there) };
    let bytes = tree.size(&missing);
    if !whole {
        events.busy(link.node(), format!("shipping {} files, {}", missing.len(), human(bytes)));
        let argv = ["tar", "--extract", "--file=-", "--same-permissions", "--no-same-owner", "--directory", &dir];
        let process = link.spawn_as_root(&argv, &tried).await?;
        let (mut told, mut rate, start) = (0, Rate::default(), Instant::now());
        let sent = process.feed(tree.tar(missing.clone()), |so_far| {
            if so_far - told > 4 << 20 {
                told = so_far;
                let (node, what) = (link.node().to_owned(), "shipping".to_owned());
                let rate = rate.see(start.elapsed(), so_far);
                events.send(Event::Transfer { node, what, done: so_far, total: bytes, rate });
            }
        });
        let output = sent.await.map_err(|e| failed(e.to_string()))?;
        if output.code != 0 {
            let error = failed(output.complaint());
            return Err(if error.said.contains("Cannot open: File exists") || error.said.contains("Cannot unlink") {
                error.hint(format!(
                    "a run wrote where the project now has something else: move it out of {dir} on the node"
                ))
            } else if error.said.contains("No space left") {
                error.hint(format!(
                    "make room below {} on the node, or set cluster.projects_dir to a larger disk",
                    cluster.projects_dir
                ))
            } else {
                error
            });
        }
        let there = state().await?;
        if !tree.is_on(&there) {
            let other = tree.missing(&there);
            return Err(failed(format!(
                "the node has another {} than this machine",
                other.first().map_or("tree", String::as_str)
            ))
            .hint("a file was changed while it was shipped: try again"));
        }
    }
    if names != old {
        let written = link.run_as_root(&["sh", "-c", WRITE_LIST, "sh", &list], &names, &tried).await?;
        if written.code != 0 {
            return Err(failed(written.complaint()));
        }
    }
    Ok(Shipped { sent: missing.len(), bytes, removed: gone.len() })
}
