//! Adds nodes that `up` has started to running elastic jobs that may have more ranks.
//!
//! The operator's machine brings each node what `train` would have brought: the project, a worker that mounts it, and
//! the job's directory. Only then does it pass the node to the job supervisor, which lets it take part.

use super::directory::{self, SPEED};
use super::hosts::{HostAssignment, add_gpus, endpoint, job_node, wrong_name};
use super::prepare::ensure_worker;
use crate::cluster::cancellation::Cancellation;
use crate::cluster::each_node::for_each_node;
use crate::cluster::observation;
use crate::cluster::observation::{ObservedNode, engine};
use crate::error::{Error, ErrorKind, NodeError};
use crate::event::{Events, Message, Phase};
use crate::files::PackedFile;
use crate::grade::speed::speed_of_joining;
use crate::inventory::Inventory;
use crate::job::manage::{remove_records, running};
use crate::launch::description::LaunchHost;
use crate::launch::env_file::{self, EnvFiles};
use crate::launch::programs;
use crate::node::names::HostNames;
use crate::node::network;
use crate::paths;
use crate::record::{Record, open_records, stored};
use crate::secret::Secret;
use crate::sync::NodeProject;
use crate::sync::files::ProjectFiles;
use crate::sync::upload::Project;
use crate::text::nodeset;
use crate::transport::node::Script;
use crate::worker::apply::WorkerPlan;
use crate::worker::names;
use base64::Engine as _;
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;
use zeroize::Zeroizing;

const FILES: &str = concat!(include_str!("../scripts/job/directory.sh"), include_str!("../scripts/job/files.sh"));
const JOIN: &str = concat!(include_str!("../scripts/job/directory.sh"), include_str!("../scripts/job/join.sh"));

/// How long the job supervisor may take to accept nodes; `job/join.sh` waits 20 s of it.
const ACCEPT_LIMIT: Duration = Duration::from_secs(60);

/// The operation, for messages.
const ADD: &str = "join the job";

/// A running elastic job and the nodes that can be added to it, each with its number of ranks.
struct Extension<'a> {
    inventory: &'a Inventory,
    launcher: &'a ObservedNode,
    /// The id of the launcher's container.
    container: String,
    /// The names of all nodes.
    names: HostNames,
    record: Record,
    /// The image of the job, if it has one of its own.
    own_image: Option<String>,
    added: Vec<(&'a ObservedNode, u32)>,
}

/// Adds nodes to the running elastic jobs that may have more ranks. A node that cannot be added is reported as a
/// warning, and has nothing of the job. `plans` have been applied; a dry run only says what would be done.
pub async fn add_nodes(
    inventory: &Inventory,
    plans: &[WorkerPlan],
    dry_run: bool,
    cancellation: &Cancellation,
    events: &Events,
) {
    for extension in extensions(inventory, plans) {
        let id = &extension.record.id;
        if let Some(image) = &extension.own_image {
            let names: Vec<&str> = extension.added.iter().map(|(node, _)| node.name()).collect();
            let names = nodeset::fold(&names);
            let message = format!("{names} cannot join job {id}, which has an image of its own ({image})");
            events.note(Message::from(message).hint(format!(
                "to use all nodes, hvdctl stop {id} and start it again; it continues from its checkpoint if it writes any"
            )));
            continue;
        }
        if dry_run {
            extension.added.iter().for_each(|(node, _)| events.note(format!("{} would join job {id}", node.name())));
            continue;
        }
        // what was begun is finished or undone
        if cancellation.check().is_err() {
            return;
        }
        events.phase(Phase::AddingNodes { job: id.clone() });
        match extension.carry_out(events).await {
            Ok(joined) => joined.iter().for_each(|node| events.note(format!("{node} joins job {id}"))),
            Err(error) => extension.warn(error, events),
        }
    }
}

/// Returns what can be added to which job. A node is added to one job at most.
fn extensions<'a>(inventory: &'a Inventory, plans: &'a [WorkerPlan]) -> Vec<Extension<'a>> {
    let cluster = &inventory.cluster;
    // jobs on several nodes are launched there
    let Some(master) = plans.iter().find(|plan| plan.observed.member.node.master) else { return Vec::new() };
    let launcher = &master.observed;
    let container_of = |id: &str| {
        let is_ended = master.end_jobs.iter().any(|ended| ended == id);
        let of_job = running(cluster, &launcher.runtime.containers).find(|container| container.job() == Some(id));
        of_job.filter(|_| !is_ended)
    };
    let names = observation::host_names(inventory, plans.iter().map(|plan| &plan.observed));
    let mut taken = BTreeSet::new();
    let mut all = Vec::new();
    for record in open_records(&launcher.open.jobs) {
        let Some(max) = record.max_ranks.filter(|_| record.cluster == cluster.name) else { continue };
        let shares = &record.placement.shares;
        let is_exclusive = record.port == cluster.port && shares.iter().all(|share| !share.shared);
        let is_launched_here = record.placement.launcher() == launcher.name();
        let Some(container) = container_of(&record.id).filter(|_| is_exclusive && is_launched_here) else { continue };
        let is_free = |node: &&ObservedNode| {
            node.facts.drained.is_none()
                && shares.iter().all(|share| share.node != node.name())
                && node.open.jobs.iter().all(|job| job.id == record.id)
                && node.facts.jobs.ranks.iter().all(|rank| rank.job != record.id)
                && !taken.contains(node.name())
        };
        let mut room = max.saturating_sub(record.placement.ranks());
        let mut added = Vec::new();
        for node in plans.iter().map(|plan| &plan.observed).filter(is_free) {
            let ranks = network::slots(&node.member.node, &node.facts).min(room);
            room -= ranks;
            added.extend((ranks > 0).then_some((node, ranks)));
        }
        // a project's own image may not be on other nodes
        let own_image = container.spec_image().filter(|image| *image != cluster.image);
        if own_image.is_none() {
            taken.extend(added.iter().map(|(node, _)| node.name()));
        }
        if !added.is_empty() {
            let (container, names) = (container.id.clone(), names.clone());
            all.push(Extension { inventory, launcher, container, names, record, own_image, added });
        }
    }
    all
}

/// The files of a job on the launcher's node that its other nodes need.
struct LauncherFiles {
    files: BTreeMap<String, Zeroizing<String>>,
    /// The project, in a directory here that lives as long as this.
    project: Option<(Project, tempfile::TempDir)>,
}

impl Extension<'_> {
    /// Adds the nodes. Returns the names of those that joined.
    ///
    /// # Errors
    /// If the launcher's node or all of the others fail. A failure of some is a warning.
    async fn carry_out(&self, events: &Events) -> Result<Vec<String>, NodeError> {
        let origin = self.read().await?;
        let prepared =
            for_each_node(self.added.clone(), async |(node, ranks)| self.prepare(&origin, node, ranks).await).await;
        let prepared = prepared.into_iter().map(|host| host.map_err(|error| self.warn(error, events)));
        let ready: Vec<HostAssignment> = prepared.filter_map(Result::ok).collect();
        if ready.is_empty() {
            return Ok(Vec::new());
        }
        let (ready, record) = self.create_all(&origin, ready, events).await;
        if ready.is_empty() {
            return Ok(Vec::new());
        }
        let joined = self.register(&ready, &record).await;
        // if the connection broke the job supervisor may have accepted the nodes
        if joined.as_ref().is_err_and(|error| matches!(error.kind, ErrorKind::CommandFailed { .. })) {
            self.remove(ready.iter().collect(), events).await;
        }
        joined?;
        let limit = self.inventory.cluster.command_timeout;
        let named = names::write(self.launcher, &self.container, &self.names, limit).await;
        named.unwrap_or_else(|error| events.warn(error));
        Ok(ready.iter().map(|host| host.observed.name().to_owned()).collect())
    }

    /// Warns that nodes cannot be added.
    fn warn(&self, error: NodeError, events: &Events) {
        events.warn(error.hint(format!("job {} continues without it; hvdctl up tries again", self.record.id)));
    }

    /// Reads what the launcher's node has of the job.
    async fn read(&self) -> Result<LauncherFiles, NodeError> {
        let (cluster, transport) = (&self.inventory.cluster, &self.launcher.member.transport);
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
            let contents = Zeroizing::new(base64::engine::general_purpose::STANDARD.decode(text.trim()).ok()?);
            Some((name.to_owned(), Zeroizing::new(String::from_utf8_lossy(&contents).into_owned())))
        };
        let files: BTreeMap<_, _> = std::str::from_utf8(&output).unwrap_or_default().lines().filter_map(file).collect();
        self.check_address(&files)?;
        let project = match &self.record.project {
            Some(name) => {
                let failed = |e: &dyn std::fmt::Display| NodeError::failed(transport.node(), &operation, e);
                let directory = paths::private_directory().tempdir().map_err(|e| failed(&e))?;
                NodeProject { cluster, transport, name, job: id }.copy(directory.path()).await?;
                let root = directory.path().to_owned();
                let read = tokio::task::spawn_blocking(move || ProjectFiles::read_copy(&root)).await;
                let read = read.map_err(|e| failed(&e))?.map_err(|e| failed(&e))?;
                let origin = files.get("origin").map_or("", |text| text.trim()).to_owned();
                Some((Project { files: read, origin, shared: false, mounts: Vec::new() }, directory))
            }
            None => None,
        };
        Ok(LauncherFiles { files, project })
    }

    /// Checks that the job was started with an address at which other nodes reach its launcher.
    fn check_address(&self, files: &BTreeMap<String, Zeroizing<String>>) -> Result<(), NodeError> {
        let failed = |operation: &str, cause: &str| NodeError::failed(self.launcher.name(), operation, cause);
        let launch = stored::read(files.get("launch.json").map_or("", |text| text.as_str()));
        let launch: serde_json::Value = launch.map_err(|cause| failed("read launch.json of the job", &cause))?;
        let started = launch["address"].as_str();
        let started = started.ok_or_else(|| failed("read launch.json of the job", "it has no address"))?;
        match observation::place(self.inventory, self.launcher)?.address.to_string() {
            address if address == started => Ok(()),
            address => Err(failed(
                &format!("add nodes to job {}", self.record.id),
                &format!("the job was started with the address {started}, but the node's address is now {address}"),
            )),
        }
    }

    /// Uploads the project to a node and starts a worker with it.
    async fn prepare(
        &self,
        origin: &LauncherFiles,
        node: &ObservedNode,
        ranks: u32,
    ) -> Result<HostAssignment, NodeError> {
        // whatever fails is a warning
        let (quiet, _receiver) = Events::channel();
        let Extension { inventory, record, .. } = self;
        let cluster = &inventory.cluster;
        // since then `up` has changed containers, and ended jobs whose processes do not matter here
        let observed = ObservedNode { runtime: engine(cluster, &node.member).await?, ..node.clone() };
        let endpoint = endpoint(inventory, &observed)?;
        let interface = &record.interface;
        if let Some(name) = record.launcher().one_interface.filter(|_| *interface != endpoint.label) {
            let cause =
                format!("{name} requires the interface {interface} on every node; this node has {}", endpoint.label);
            return Err(NodeError::failed(node.name(), ADD, cause));
        }
        if let Some(error) = wrong_name(&observed, &endpoint).filter(|_| record.launcher().by_host_name) {
            return Err(error);
        }
        let mut workspace = None;
        if let (Some((project, _)), Some(name)) = (&origin.project, &record.project) {
            let node_project = NodeProject { cluster, transport: &observed.member.transport, name, job: &record.id };
            let compared = node_project.compare(project, &[], &quiet).await?;
            workspace = Some(compared.workspace.clone());
            node_project.upload(project, compared, &quiet).await?;
        }
        ensure_worker(inventory, &observed, workspace.as_ref(), None, &self.names, &quiet).await?;
        let given = origin.files.get(directory::ENVIRONMENT).map_or("", |text| text.as_str());
        let mut env_files = EnvFiles::new();
        let mut of = |node: &ObservedNode| {
            let mut environment = env_file::environment(&node.member.node, &mut env_files)?;
            add_gpus(&mut environment, node, &[], &BTreeMap::new());
            Ok(environment)
        };
        let environment = of(self.launcher).and_then(|from| environment(given, &from, of(&observed)?));
        let environment = environment.map_err(|error: Error| NodeError::failed(node.name(), ADD, error))?;
        let speed = self.speed(&observed, &environment);
        Ok(HostAssignment { observed, endpoint, ranks, roles: Vec::new(), environment, speed })
    }

    /// Returns the speed of a node that joins. `given`: the environment of the job, with the speed of the launcher's
    /// node.
    fn speed(&self, joining: &ObservedNode, given: &BTreeMap<String, Secret>) -> f64 {
        let of_launcher = given.get(SPEED).and_then(|speed| speed.expose().parse().ok()).unwrap_or(1.0);
        speed_of_joining(job_node(joining, true), (job_node(self.launcher, true), of_launcher))
    }

    /// Returns the record of the job with these nodes.
    fn grown(&self, ready: &[HostAssignment]) -> Record {
        let mut placement = self.record.placement.clone();
        ready.iter().for_each(|host| placement.push(host.observed.name(), host.ranks));
        Record { placement, ..self.record.clone() }
    }

    /// Creates the job's directory on the nodes. One where that fails is left out, and nothing of the job stays there.
    /// Returns the others, and the record of the job with them.
    async fn create_all(
        &self,
        origin: &LauncherFiles,
        mut ready: Vec<HostAssignment>,
        events: &Events,
    ) -> (Vec<HostAssignment>, Record) {
        loop {
            let record = self.grown(&ready);
            let created = self.create_directories(origin, &ready, &record).await;
            if created.iter().all(Result::is_ok) {
                return (ready, record);
            }
            // the others have a record with all nodes; they get the directory again
            let is_other = |error: &NodeError| error.kind == ErrorKind::JobExists;
            let own = ready.iter().zip(&created).filter(|(_, created)| !created.as_ref().is_err_and(is_other));
            self.remove(own.map(|(host, _)| host).collect(), events).await;
            let hosts = ready.into_iter().zip(created);
            ready = hosts
                .filter_map(|(host, created)| created.map_err(|error| self.warn(error, events)).ok().map(|()| host))
                .collect();
        }
    }

    /// Removes the job's directory from the nodes.
    async fn remove(&self, hosts: Vec<&HostAssignment>, events: &Events) {
        let ids = std::slice::from_ref(&self.record.id);
        let remove = async |host: &HostAssignment| {
            let removed = remove_records(&self.inventory.cluster, &host.observed.member, ids).await;
            removed.unwrap_or_else(|error| events.warn(error));
        };
        for_each_node(hosts, remove).await;
    }

    /// Creates the job's directory on the nodes at once.
    async fn create_directories(
        &self,
        origin: &LauncherFiles,
        ready: &[HostAssignment],
        record: &Record,
    ) -> Vec<Result<(), NodeError>> {
        // the job's own programs, which may be those of another hvdctl
        let programs = programs::ON_EVERY_NODE.iter();
        let programs: Vec<PackedFile<'_>> =
            programs.filter_map(|(mode, name, _)| Some((*mode, *name, origin.files.get(*name)?.as_str()))).collect();
        let cluster = &self.inventory.cluster;
        let mut record = record.clone();
        if record.project.is_some() {
            // a process of the login has the project in the place of its worker, and the launcher in another one
            record.cwd = cluster.layout(&cluster.worker).workspace;
        }
        for_each_node(ready.iter().collect(), async |host| {
            let first = observation::place(self.inventory, self.launcher)?.address;
            directory::create(cluster, host, record.clone(), (first, &[]), &programs).await
        })
        .await
    }

    /// Registers the nodes with the job supervisor.
    async fn register(&self, ready: &[HostAssignment], record: &Record) -> Result<(), NodeError> {
        let id = &self.record.id;
        let operation = format!("add nodes to job {id}");
        let failed = |cause: String| NodeError::failed(self.launcher.name(), &operation, cause);
        let joining: Vec<LaunchHost<'_>> = ready.iter().map(HostAssignment::launch_host).collect();
        let script = Script::new(JOIN)
            .with("jobs_dir", &self.inventory.cluster.jobs_dir)
            .with("id", id)
            .with("joining", &stored::json("joining.json", &joining).map_err(failed)?)
            .with("record", &stored::write_checked("job.json", record).map_err(failed)?);
        self.launcher.member.transport.script_within(&script, &operation, ACCEPT_LIMIT).await.map(drop)
    }
}

/// Returns the ranks' environment on a node, from `text`, that on another one. `from` and `to` are what the inventory
/// and hvdctl set for each: variables of one node must not reach the other.
///
/// # Errors
/// When `text` cannot be read.
fn environment(
    text: &str,
    from: &BTreeMap<String, Secret>,
    to: BTreeMap<String, Secret>,
) -> Result<BTreeMap<String, Secret>, Error> {
    let given: BTreeMap<String, String> =
        serde_json::from_str(text).map_err(|e| Error::Local(format!("cannot read the environment of the job: {e}")))?;
    let given = given.into_iter().map(|(name, value)| (name, Secret::new(Zeroizing::new(value))));
    let mut environment = to;
    environment.extend(given.filter(|(name, value)| from.get(name) != Some(value)));
    Ok(environment)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::inventory::Node;

    #[test]
    fn the_environment_has_the_variables_of_the_new_node() {
        let mut from = Inventory::local("here", "some/image:1").nodes.remove(0);
        let mut to = from.clone();
        from.container.env = [("A", "1"), ("B", "2"), ("C", "3")].map(|(n, v)| (n.into(), v.into())).into();
        to.container.env = [("B", "4"), ("C", "5"), ("D", "6")].map(|(n, v)| (n.into(), v.into())).into();
        // C was given with -e
        let text = r#"{"A": "1", "B": "2", "C": "of -e", "E": "of -e"}"#;
        let of = |node: &Node| env_file::environment(node, &mut EnvFiles::new()).unwrap();
        let environment = environment(text, &of(&from), of(&to)).unwrap();
        let environment = environment.iter().map(|(name, value)| (name.as_str(), value.expose()));
        assert!(environment.eq([("B", "4"), ("C", "of -e"), ("D", "6"), ("E", "of -e")]));
        assert!(super::environment("cut o", &of(&from), of(&to)).is_err());
    }
}
