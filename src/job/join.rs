//! Nodes that `up` has started are added to running elastic jobs that may have more ranks.
//!
//! The operator's machine brings each node what `train` would have brought: the project, a worker that mounts it, and the job's
//! directory. Only then the job supervisor hears of the node, and starts ranks there with the next attempt.

use super::directory;
use super::manage::{PRUNE, running};
use super::record::{Record, open_records};
use crate::cluster::cancellation::Cancellation;
use crate::cluster::nodes::{self, Observed, for_each_node, observe};
use crate::error::{Error, Kind, NodeError};
use crate::event::Events;
use crate::inventory::{Inventory, Node};
use crate::launch::description::Worker;
use crate::launch::placement::Share;
use crate::launch::{self, Launcher, env_file, programs};
use crate::node::network::{self, Endpoint};
use crate::runtime::spec::ContainerSpec;
use crate::secret::Secret;
use crate::sync::NodeProject;
use crate::sync::files::ProjectFiles;
use crate::sync::upload::{Project, Workspace};
use crate::transport::node::Script;
use crate::worker::apply::{self, WorkerPlan};
use base64::Engine as _;
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;
use zeroize::Zeroizing;

const FILES: &str = include_str!("../scripts/job_files.sh");
const JOIN: &str = include_str!("../scripts/job_join.sh");

/// How long the job supervisor may take to accept nodes; `job_join.sh` waits 20 s of it.
const ACCEPT_LIMIT: Duration = Duration::from_secs(60);

/// The operation, for messages.
const ADD: &str = "add it to the job";

/// A running elastic job and the nodes that can be added to it, each with its number of ranks.
struct Extension<'a> {
    launcher: &'a Observed,
    record: Record,
    added: Vec<(&'a Observed, u32)>,
}

/// Adds nodes to the running elastic jobs that may have more ranks. A node that cannot be added is reported as a warning, and has
/// nothing of the job. `plans` have been applied; a dry run only says what would be done.
pub async fn add_nodes(
    inventory: &Inventory,
    plans: &[WorkerPlan],
    dry_run: bool,
    cancellation: &Cancellation,
    events: &Events,
) {
    for extension in extensions(inventory, plans) {
        let id = &extension.record.id;
        if dry_run {
            extension.added.iter().for_each(|(node, _)| events.note(format!("{} would join job {id}", node.name())));
            continue;
        }
        // what was begun is finished or undone
        if cancellation.check().is_err() {
            return;
        }
        events.phase(format!("adding nodes to job {id}"));
        match extension.carry_out(inventory, events).await {
            Ok(joined) => joined.iter().for_each(|node| events.note(format!("{node} joins job {id}"))),
            Err(error) => events.warn(error.hint(format!("job {id} continues without it; hvdctl up tries again"))),
        }
    }
}

/// Returns what can be added to which job. A node is added to one job at most.
fn extensions<'a>(inventory: &Inventory, plans: &'a [WorkerPlan]) -> Vec<Extension<'a>> {
    let cluster = &inventory.cluster;
    // jobs on several nodes are launched there
    let Some(master) = plans.iter().find(|plan| plan.observed.member.node.master) else { return Vec::new() };
    let launcher = &master.observed;
    let is_up = |id: &str| {
        let mut up = running(cluster, &launcher.docker.containers);
        up.any(|container| container.job() == Some(id)) && !master.end_jobs.iter().any(|ended| ended == id)
    };
    let mut taken = BTreeSet::new();
    let mut all = Vec::new();
    for record in open_records(&launcher.facts) {
        let Some(max) = record.max_ranks.filter(|_| record.cluster == cluster.name) else { continue };
        let shares = &record.placement.shares;
        let is_exclusive = record.port == Some(cluster.port) && shares.iter().all(|share| !share.shared);
        let is_launched_here = shares.first().is_some_and(|share| share.node == launcher.name());
        if !is_exclusive || !is_launched_here || !is_up(&record.id) {
            continue;
        }
        let is_free = |node: &&Observed| {
            node.facts.drained.is_none()
                && shares.iter().all(|share| share.node != node.name())
                && node.facts.open_jobs.iter().all(|job| *job == record.id)
                && node.facts.ranks.iter().all(|rank| rank.job != record.id)
                && !taken.contains(node.name())
        };
        let mut room = max.saturating_sub(record.placement.ranks());
        let mut added = Vec::new();
        for node in plans.iter().map(|plan| &plan.observed).filter(is_free) {
            let ranks = network::slots(&node.member.node, &node.facts).min(room);
            room -= ranks;
            added.extend((ranks > 0).then_some((node, ranks)));
        }
        taken.extend(added.iter().map(|(node, _)| node.name()));
        if !added.is_empty() {
            all.push(Extension { launcher, record, added });
        }
    }
    all
}

/// What the launcher's node has of a job, as far as its other nodes need it.
struct Origin {
    files: BTreeMap<String, Zeroizing<Vec<u8>>>,
    /// The project, in a directory here that lives as long as this.
    project: Option<(Project, tempfile::TempDir)>,
}

/// A node that is ready but for the job's directory.
struct Ready {
    observed: Observed,
    endpoint: Endpoint,
    ranks: u32,
}

impl Extension<'_> {
    /// Adds the nodes. Returns the names of those that joined.
    ///
    /// # Errors
    /// If the launcher's node or all of the others fail. A failure of some is a warning.
    async fn carry_out(&self, inventory: &Inventory, events: &Events) -> Result<Vec<String>, NodeError> {
        let origin = self.read(inventory).await?;
        let prepared = for_each_node(self.added.clone(), async |(node, ranks)| {
            self.prepare(inventory, &origin, node, ranks).await
        })
        .await;
        let mut ready = Vec::new();
        for result in prepared {
            match result {
                Ok(node) => ready.push(node),
                Err(error) => events
                    .warn(error.hint(format!("job {} continues without it; hvdctl up tries again", self.record.id))),
            }
        }
        if ready.is_empty() {
            return Ok(Vec::new());
        }
        let joined = self.register(inventory, &origin, &ready).await;
        if let Err(error) = &joined {
            // if the connection broke the job supervisor may have accepted the nodes
            let is_refused = matches!(error.kind, Kind::CommandFailed { .. }) || error.node != self.launcher.name();
            for node in ready.iter().filter(|_| is_refused) {
                self.forget(inventory, &node.observed, events).await;
            }
        }
        joined.map(|()| ready.iter().map(|node| node.observed.name().to_owned()).collect())
    }

    /// Reads what the launcher's node has of the job.
    async fn read(&self, inventory: &Inventory) -> Result<Origin, NodeError> {
        let (cluster, transport) = (&inventory.cluster, &self.launcher.member.transport);
        let id = &self.record.id;
        let mut names = vec![directory::ENVIRONMENT, "launch.json"];
        names.extend(programs::ON_EVERY_NODE.iter().map(|(_, name, _)| *name));
        let project = self.record.project.as_deref().unwrap_or_default();
        let origin = format!("{}/.{project}@{}/origin", cluster.projects_dir, cluster.name);
        let script = Script::new(FILES).with("jobs_dir", &cluster.jobs_dir).with("id", id);
        let script = script.with("names", &names.join(" ")).with("origin", &origin);
        let operation = format!("read job {id}");
        let output = Zeroizing::new(transport.script(&script, &operation).await?);
        let file = |line: &str| {
            let (name, text) = line.split_once(' ')?;
            let contents = base64::engine::general_purpose::STANDARD.decode(text.trim()).ok()?;
            Some((name.to_owned(), Zeroizing::new(contents)))
        };
        let files: BTreeMap<_, _> = std::str::from_utf8(&output).unwrap_or_default().lines().filter_map(file).collect();
        self.check_address(inventory, &files)?;
        let project = match &self.record.project {
            Some(name) => {
                let failed = |e: &dyn std::fmt::Display| NodeError::failed(transport.node(), &operation, e);
                let directory = tempfile::tempdir().map_err(|e| failed(&e))?;
                NodeProject { cluster, transport, name, job: id }.copy(directory.path()).await?;
                let root = directory.path().to_owned();
                let read = tokio::task::spawn_blocking(move || ProjectFiles::read(&root)).await;
                let read = read.map_err(|e| failed(&e))?.map_err(|e| failed(&e))?;
                let origin = files.get("origin").map(|text| String::from_utf8_lossy(text).trim().to_owned());
                Some((Project { files: read, origin: origin.unwrap_or_default(), shared: false }, directory))
            }
            None => None,
        };
        Ok(Origin { files, project })
    }

    /// Checks that the job was started with an address at which other nodes reach its launcher.
    fn check_address(
        &self,
        inventory: &Inventory,
        files: &BTreeMap<String, Zeroizing<Vec<u8>>>,
    ) -> Result<(), NodeError> {
        let launch = files.get("launch.json").map(|text| serde_json::from_slice::<serde_json::Value>(text));
        let started = launch.and_then(Result::ok).and_then(|launch| launch["address"].as_str().map(str::to_owned));
        let address = nodes::place(inventory, self.launcher)?.address.to_string();
        match started {
            Some(started) if started == address => Ok(()),
            Some(started) => Err(NodeError::failed(
                self.launcher.name(),
                &format!("add nodes to job {}", self.record.id),
                format!("the job was started with the address {started}, and the node's is {address} now"),
            )),
            None => Err(NodeError::failed(self.launcher.name(), "read launch.json of the job", "it is not there")),
        }
    }

    /// The launcher, which starts the ranks.
    fn launcher_kind(&self) -> &'static Launcher {
        launch::recorded(self.record.launcher, self.record.controller)
    }

    /// Uploads the project to a node and starts a worker with it.
    async fn prepare(
        &self,
        inventory: &Inventory,
        origin: &Origin,
        node: &Observed,
        ranks: u32,
    ) -> Result<Ready, NodeError> {
        // whatever fails is a warning
        let (quiet, _receiver) = Events::channel();
        let (cluster, id) = (&inventory.cluster, &self.record.id);
        let observed = observe(cluster, node.member.clone(), &quiet).await?;
        let endpoint = nodes::place(inventory, &observed)?;
        let refused = |cause: String| NodeError::failed(node.name(), ADD, cause);
        launch::check_address(endpoint.address).map_err(refused)?;
        let interface = &self.record.interface;
        if let Some(name) = self.launcher_kind().one_interface.filter(|_| *interface != endpoint.interface) {
            return Err(refused(format!(
                "{name} takes one interface name for all nodes: {interface}, and here it is {}",
                endpoint.interface
            )));
        }
        let mut workspace = Workspace::default();
        if let (Some((project, _)), Some(name)) = (&origin.project, &self.record.project) {
            let node_project = NodeProject { cluster, transport: &observed.member.transport, name, job: id };
            let compared = node_project.compare(project, &[], &quiet).await?;
            workspace = compared.workspace.clone();
            node_project.upload(project, compared, &quiet).await?;
        }
        let desired = ContainerSpec {
            workspace: origin.project.is_some().then_some(workspace.directory),
            new_workspace: workspace.is_new,
            ..apply::desired(inventory, &observed)?
        };
        apply::apply(inventory, &observed, &apply::plan(cluster, &observed, &desired)?, &quiet).await?;
        Ok(Ready { observed, endpoint, ranks })
    }

    /// Creates the job's directory on the nodes, and hands them to the job supervisor.
    async fn register(&self, inventory: &Inventory, origin: &Origin, ready: &[Ready]) -> Result<(), NodeError> {
        let (cluster, id) = (&inventory.cluster, &self.record.id);
        let mut placement = self.record.placement.clone();
        for Ready { observed, ranks, .. } in ready {
            let first = placement.ranks();
            placement.shares.push(Share { node: observed.name().into(), ranks: *ranks, first, ..Share::default() });
        }
        let record = Record { placement, ..self.record.clone() };
        let written = for_each_node(ready.iter().collect(), async |node: &Ready| {
            self.write(inventory, origin, &record, node).await
        })
        .await;
        written.into_iter().collect::<Result<(), _>>()?;
        let place = |Ready { observed, endpoint, ranks }: &Ready| Worker {
            node: observed.name().to_owned(),
            address: endpoint.address,
            ranks: *ranks,
        };
        let joining: Vec<Worker> = ready.iter().map(place).collect();
        let json = |value: Result<String, serde_json::Error>| value.unwrap_or_default();
        let script = Script::new(JOIN)
            .with("jobs_dir", &cluster.jobs_dir)
            .with("id", id)
            .with("joining", &json(serde_json::to_string(&joining)))
            .with("record", &json(serde_json::to_string(&record)));
        let operation = format!("add nodes to job {id}");
        self.launcher.member.transport.script_within(&script, &operation, ACCEPT_LIMIT).await.map(drop)
    }

    /// Creates the job's directory on a node.
    async fn write(
        &self,
        inventory: &Inventory,
        origin: &Origin,
        record: &Record,
        node: &Ready,
    ) -> Result<(), NodeError> {
        let member = &node.observed.member;
        let failed = |error: &Error| NodeError::failed(&member.node.name, ADD, error);
        let record = Record {
            ranks: node.ranks,
            interface: node.endpoint.interface.clone(),
            ulimits: member.node.container.ulimits.clone(),
            ..record.clone()
        };
        let text = |name: &str| {
            let contents = origin.files.get(name).map(|contents| std::str::from_utf8(contents));
            contents.and_then(Result::ok).unwrap_or_default()
        };
        let environment = environment(text(directory::ENVIRONMENT), &self.launcher.member.node, &member.node);
        let environment = environment.map_err(|error| failed(&error))?;
        let record = serde_json::to_string(&record).unwrap_or_default();
        let launcher = self.launcher_kind().rank_description(&node.endpoint.interface);
        let launcher = serde_json::to_string(&launcher).unwrap_or_default();
        let mut files = vec![
            (0o600, "job.json", record.as_str()),
            (0o600, directory::ENVIRONMENT, environment.as_str()),
            (0o644, "launcher.json", launcher.as_str()),
        ];
        // the job's own programs, which an earlier version of hvdctl may have written
        let programs = programs::ON_EVERY_NODE.iter().filter(|(_, name, _)| origin.files.contains_key(*name));
        files.extend(programs.map(|(mode, name, _)| (*mode, *name, text(name))));
        files.push((0o600, "log", ""));
        directory::create(&member.transport, &inventory.cluster.jobs_dir, &self.record.id, &files).await
    }

    /// Removes the job's directory from a node that did not join.
    async fn forget(&self, inventory: &Inventory, node: &Observed, events: &Events) {
        let script = Script::new(PRUNE).with("jobs_dir", &inventory.cluster.jobs_dir);
        let script = script.with("ids", &format!("{}\n", self.record.id));
        let removed = node.member.transport.script(&script, "remove the directory of the job").await;
        if let Err(error) = removed {
            events.warn(error);
        }
    }
}

/// Returns the ranks' environment on node `to`, from that on node `from`: what the inventory says of a node is not of the other.
///
/// # Errors
/// When an `env_file` cannot be used.
fn environment(text: &str, from: &Node, to: &Node) -> Result<Zeroizing<String>, Error> {
    let of = |node: &Node| {
        let mut all = node.container.env_file.as_deref().map(env_file::read).transpose()?.unwrap_or_default();
        all.extend(node.container.env.iter().map(|(name, value)| (name.clone(), Secret::plain(value.as_str()))));
        Ok::<_, Error>(all)
    };
    let given: BTreeMap<String, String> =
        serde_json::from_str(text).map_err(|e| Error::Here(format!("cannot read the environment of the job: {e}")))?;
    let given: BTreeMap<String, Secret> =
        given.into_iter().map(|(name, value)| (name, Secret::new(Zeroizing::new(value)))).collect();
    let (from, mut environment) = (of(from)?, of(to)?);
    environment.extend(given.into_iter().filter(|(name, value)| from.get(name) != Some(value)));
    let plain: BTreeMap<&str, &str> = environment.iter().map(|(name, value)| (name.as_str(), value.expose())).collect();
    Ok(Zeroizing::new(serde_json::to_string(&plain).unwrap_or_default()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_environment_has_the_variables_of_the_new_node() {
        let mut from = Inventory::local("here", "some/image:1").nodes.remove(0);
        let mut to = from.clone();
        from.container.env = [("A", "1"), ("B", "2"), ("C", "3")].map(|(n, v)| (n.into(), v.into())).into();
        to.container.env = [("B", "4"), ("C", "5"), ("D", "6")].map(|(n, v)| (n.into(), v.into())).into();
        // C was given with -e
        let text = r#"{"A": "1", "B": "2", "C": "of -e", "E": "of -e"}"#;
        let environment = environment(text, &from, &to).unwrap();
        assert_eq!(*environment, r#"{"B":"4","C":"of -e","D":"6","E":"of -e"}"#);
        assert!(super::environment("cut o", &from, &to).is_err());
    }
}
