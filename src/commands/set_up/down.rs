//! `hvdctl down`: connect, lock, list the containers, remove them, and with `--purge` the keys and files.

use crate::cli::Down;
use crate::cluster::each_node::NodeResults;
use crate::cluster::member::Member;
use crate::cluster::observation::{RuntimeState, check_permissions, engine, facts};
use crate::commands::Outcome;
use crate::commands::shared::context::{ConnectedNodes, Context, node_rows};
use crate::delivery::relay::deployment;
use crate::document::NodeEntry;
use crate::error::{Error, NodeError};
use crate::event::Step;
use crate::keys::push;
use crate::mesh::install;
use crate::node::facts::Facts;
use crate::runtime::container::with_role;
use crate::runtime::spec::Role;
use crate::transport::node::Script;
use crate::worker::plan::{self, Operation};
use schemars::JsonSchema;
use serde::Serialize;

/// The result of `down` on a node.
#[derive(Debug, Serialize, JsonSchema)]
pub struct DownNode {
    /// True if containers were removed.
    pub changed: bool,
    /// The containers that were removed.
    pub removed: Vec<String>,
    /// True if keys, projects and records were removed (`--purge`).
    pub purged: bool,
    /// The names of the pushed data, which `--purge` keeps.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub kept_data: Vec<String>,
}

const PURGE: &str = concat!(include_str!("../../scripts/keys/lock.sh"), include_str!("../../scripts/node/purge.sh"));

/// A node before anything is removed.
struct Snapshot {
    member: Member,
    runtime: RuntimeState,
    /// The state of its system, with `--purge`.
    facts: Option<Facts>,
}

/// `down`.
pub async fn run(options: &Down, context: &Context) -> Result<Outcome, Error> {
    let Context { target, events, session, .. } = context;
    let cluster = target.cluster();
    if options.purge {
        let question = format!(
            "remove the keys, the uploaded projects with all outputs of jobs, and the job records of {} from every node?",
            cluster.name
        );
        context.confirm(&question).await?;
    }
    let ConnectedNodes { nodes, offline } = context.connect_or_skip(options.skip_offline).await?;
    let locked = context.lock_each(nodes).await?;
    let list = async |member: Member| {
        let _step = events.begin(&member.node.name, Step::OBSERVING);
        let facts = async { if options.purge { facts(cluster, &member).await.map(Some) } else { Ok(None) } };
        let (facts, runtime) = tokio::join!(facts, engine(cluster, &member));
        let facts = facts?;
        facts
            .iter()
            .try_for_each(|facts| check_permissions(cluster, &member.node.name, facts, &["ssh", "jobs", "projects"]))?;
        Ok(Snapshot { facts, runtime: runtime?, member })
    };
    let listing = async { Ok(locked.then(events, list).await) };
    let listed = session.cancellation.run(listing).await?;
    let has = |node: &Snapshot, role| with_role(cluster, &node.runtime.containers, role).is_some();
    let has_slurm = |node: &&Snapshot| has(node, Role::Slurm) || has(node, Role::SlurmAgent);
    if let Some(node) = listed.ok.iter().find(has_slurm) {
        let name = &node.member.node.name;
        return Err(NodeError::failed(name, "remove its containers", "the cluster's queue runs there")
            .hint("first: hvdctl slurm down")
            .into());
    }
    let remove = async |node: Snapshot| {
        let removed = remove(options, context, &node).await?;
        let kept_data =
            node.facts.as_ref().map_or_else(Vec::new, |facts| facts.storage.pushed.keys().cloned().collect());
        let details = DownNode { changed: !removed.is_empty(), removed, purged: options.purge, kept_data };
        Ok(NodeEntry::new(&node.member.node.name, true, details))
    };
    let nodes = listed.then(events, remove).await;
    session.progress.failed(&nodes.failed);
    session.cancellation.check()?;
    Ok(outcome(nodes, &offline))
}

/// Removes a node's containers, and with `--purge` its keys and files. Returns the removed containers. Stops between
/// two steps if the command is cancelled.
async fn remove(options: &Down, context: &Context, snapshot: &Snapshot) -> Result<Vec<String>, NodeError> {
    let Context { target, events, session, .. } = context;
    let Snapshot { member, runtime, facts } = snapshot;
    let (cluster, node) = (target.cluster(), &member.node.name);
    let is_cancelled = || session.cancellation.check().is_err();
    let mut removed = Vec::new();
    for operation in plan::down(&cluster.name, &runtime.containers) {
        if is_cancelled() {
            return Ok(removed);
        }
        if let Operation::Remove { name, id, .. } = operation {
            let _step = events.begin(node, Step::write(format!("removing {name}")));
            runtime.engine.remove(&id).await?;
            session.progress.record(node, format!("removed {name}"));
            removed.push(name);
        }
    }
    let has_network =
        target.cluster().network.is_some() || with_role(cluster, &runtime.containers, Role::Mesh).is_some();
    // the way to other nodes goes last
    if (options.network || options.purge && has_network) && cluster.can().images && !is_cancelled() {
        let _step = events.begin(node, Step::write("removing the encrypted network"));
        if install::remove(cluster, member, &runtime.containers).await? {
            session.progress.record(node, format!("removed {}", cluster.network_interface));
            removed.push(cluster.network_interface.clone());
        }
    }
    if facts.is_some() || deployment::is_left(&runtime.containers, &cluster.name) {
        deployment::remove(&runtime.engine, &cluster.name).await?;
    }
    if let Some(facts) = facts.as_ref().filter(|_| !is_cancelled()) {
        purge(context, member, facts).await?;
    }
    if is_cancelled() {
        return Ok(removed);
    }
    runtime.engine.remove_helpers(&cluster.name).await?;
    session.progress.done(node);
    events.done(node, what_was_removed(&removed));
    Ok(removed)
}

/// Removes a node's keys, projects and records. The rest is removed even if the keys cannot be removed.
async fn purge(context: &Context, member: &Member, facts: &Facts) -> Result<(), NodeError> {
    let Context { target, events, session, .. } = context;
    let (cluster, node) = (target.cluster(), &member.node.name);
    let _step = events.begin(node, Step::write("removing keys, projects and records"));
    let keys = push::remove(cluster, member, facts).await;
    if session.cancellation.check().is_err() {
        return keys;
    }
    let script = Script::new(PURGE)
        .with("ssh_dir", &cluster.ssh_dir)
        .with("projects_dir", &cluster.projects_dir)
        .with("jobs_dir", &cluster.jobs_dir)
        .with("data_dir", &cluster.data_dir)
        .with("run_dir", member.transport.run_dir().unwrap_or_default())
        .with("cluster", &cluster.name);
    let files = member.transport.script(&script, "remove keys, projects and records").await;
    keys.and(files)?;
    session.progress.record(node, "removed keys, projects and records");
    Ok(())
}

/// Formats the containers that were removed from a node.
fn what_was_removed(removed: &[String]) -> String {
    if removed.is_empty() { "no containers".to_owned() } else { format!("removed {}", removed.join(", ")) }
}

pub(in crate::commands) fn outcome(nodes: NodeResults<NodeEntry<DownNode>>, offline: &[NodeError]) -> Outcome {
    let mut text = node_rows(&nodes.ok, |DownNode { removed, purged, kept_data, .. }| {
        let what = what_was_removed(removed);
        let kept =
            if kept_data.is_empty() { String::new() } else { format!("; kept the data {}", kept_data.join(", ")) };
        what + if *purged { "; removed keys, projects and records" } else { "" } + &kept
    });
    if nodes.ok.iter().filter_map(|node| node.result.as_ref()).any(|node| !node.kept_data.is_empty()) {
        text.push_str("hint: hvdctl data rm NAME removes data\n");
    }
    Outcome::of_nodes(text, nodes, offline)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::{self, Permissions};
    use std::os::unix::fs::{PermissionsExt, symlink};
    use std::path::Path;
    use std::process::{Command, Output};

    /// Runs `node/purge.sh` on directories here, with this directory first in `PATH`.
    fn run_purge(root: &Path, tools: &Path) -> Output {
        let place = |name: &str| root.join(name).display().to_string();
        let script = Script::new(PURGE)
            .with("ssh_dir", &place("ssh"))
            .with("projects_dir", &place("projects"))
            .with("data_dir", &place("data"))
            .with("run_dir", "")
            .with("jobs_dir", &place("jobs"))
            .with("cluster", "lab");
        let path = format!("{}:{}", tools.display(), std::env::var("PATH").unwrap());
        Command::new("sh").args(["-c", script.whole().as_str()]).env("PATH", path).output().unwrap()
    }

    fn write(root: &Path, files: &[(&str, &str)]) {
        for (name, text) in files {
            fs::create_dir_all(root.join(name).parent().unwrap()).unwrap();
            fs::write(root.join(name), text).unwrap();
        }
    }

    #[test]
    fn projects_and_records_of_the_cluster_go_and_those_of_others_stay() {
        let (dir, tools) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let root = dir.path().join("horovod");
        let ours = [
            ("ssh/.id_rsa.hvdctl.7", "PRIVATE"),
            ("projects/.p q@lab/shipped", ""),
            ("projects/.p q@lab/shipped+j1", ""),
            ("projects/p q/train.py", ""),
            ("projects/p q+j1/train.py", ""),
            ("jobs/j1/job.json", "{\"cluster\":\"lab\"}\n"),
            ("jobs/.worker@lab/j3/job.json", ""),
            ("jobs/.drained@lab", "{}"),
            ("jobs/.bench@lab", "{}"),
            ("jobs/.bench.712@lab", "{"),
            ("jobs/.ledger@lab", "{}"),
            ("jobs/.ledger.new@lab", "{"),
        ];
        let others = [
            ("projects/.r@lab2/shipped", ""),
            ("projects/r/train.py", ""),
            ("projects/p q+j2/train.py", ""),
            ("jobs/.worker@lab2/j2/job.json", "{\"cluster\":\"lab2\"}\n"),
            ("jobs/.bench@lab2", "{}"),
            ("jobs/.ledger@lab2", "{}"),
            ("jobs/.bench@b.lab", "{}"),
        ];
        write(&root, &[&ours[..], &others].concat());
        // the directories of jobs that workers have
        let link = |id: &str, cluster: &str| {
            symlink(format!(".worker@{cluster}/{id}"), root.join("jobs").join(id)).unwrap();
        };
        link("j2", "lab2");
        link("j3", "lab");
        link("j4", "lab");
        let purged = run_purge(&root, tools.path());
        assert!(purged.status.success() && purged.stderr.is_empty(), "{purged:?}");
        assert!(!root.join("ssh").exists());
        assert!(ours.iter().all(|(name, _)| !root.join(name).exists()), "{purged:?}");
        assert!(others.iter().all(|(name, _)| root.join(name).exists()), "{purged:?}");
        let left = ["j2", "j3", "j4"].map(|id| root.join("jobs").join(id).is_symlink());
        assert_eq!(left, [true, false, false]);

        fs::remove_dir_all(&root).unwrap();
        write(&root, &ours);
        assert!(run_purge(&root, tools.path()).status.success());
        assert!(!root.exists(), "nothing was left, so its directories go, too");
        assert!(run_purge(&root, tools.path()).status.success());
    }

    #[test]
    fn a_record_that_cannot_be_read_is_a_failure_and_the_rest_is_removed() {
        let (dir, tools) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        write(dir.path(), &[("jobs/j1/job.json", ""), ("projects/.p@lab/shipped", ""), ("jobs/.drained@lab", "")]);
        let grep = tools.path().join("grep");
        fs::write(&grep, "#!/bin/sh\necho 'grep: job.json: Input/output error' >&2\nexit 2\n").unwrap();
        fs::set_permissions(&grep, Permissions::from_mode(0o755)).unwrap();
        let purged = run_purge(dir.path(), tools.path());
        assert_eq!(purged.status.code(), Some(1));
        assert_eq!(String::from_utf8_lossy(&purged.stderr), "grep: job.json: Input/output error\n");
        assert!(dir.path().join("jobs/j1/job.json").exists());
        assert!(!dir.path().join("projects").exists() && !dir.path().join("jobs/.drained@lab").exists());
    }
}
