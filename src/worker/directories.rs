//! The directories of a node that containers have, or that projects need: they are there, and closed to other users,
//! before a container is created, because an engine creates what it mounts with mode 755.

use crate::cluster::observation::ObservedNode;
use crate::error::NodeError;
use crate::event::{Events, Message};
use crate::inventory::Cluster;
use crate::transport::node::Script;
use std::path::Path;

const DIRECTORIES: &str =
    concat!(include_str!("../scripts/node/close.sh"), include_str!("../scripts/node/directories.sh"));

/// Creates what is missing on a node and closes what others may enter, and says so. Does not contact a node that has
/// nothing of both.
///
/// # Errors
/// With the message of the tool that failed there.
pub async fn prepare(cluster: &Cluster, observed: &ObservedNode, events: &Events) -> Result<(), NodeError> {
    let permissions = &observed.facts.permissions;
    if permissions.missing.is_empty() && permissions.unclosed.is_empty() {
        return Ok(());
    }
    let script = Script::new(DIRECTORIES)
        .with("jobs_dir", &cluster.jobs_dir)
        .with("projects_dir", &cluster.projects_dir)
        .with("data_dir", &cluster.data_dir)
        .with("cluster", &cluster.name)
        .with("unclosed", &permissions.unclosed.join("\n"));
    observed.member.transport.script(&script, "create and close its directories").await?;
    if let Some(directories) = unclosed(observed) {
        events.note(Message::of(observed.name(), format!("closed {directories} to other users of the node")));
    }
    Ok(())
}

/// Describes the directories of a node that [`prepare`] would close; `None` if there are none.
pub fn unclosed(observed: &ObservedNode) -> Option<String> {
    let directories = &observed.facts.permissions.unclosed;
    let [first, others @ ..] = &directories[..] else { return None };
    if others.is_empty() {
        return Some(first.clone());
    }
    let is_common = |parent: &&Path| others.iter().all(|other| Path::new(other).starts_with(parent));
    let below = Path::new(first).ancestors().skip(1).find(is_common).filter(|parent| *parent != Path::new("/"));
    let below = below.map_or_else(String::new, |parent| format!(" below {}", parent.display()));
    Some(format!("{} directories{below}", directories.len()))
}
