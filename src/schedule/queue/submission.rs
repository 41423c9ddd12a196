//! A job for the cluster's queue: every node that may get it has all that it needs there, and what Slurm runs only waits
//! for the end of the job. `scripts/slurm/nodes` lets it begin on the nodes that Slurm allocates.

use super::super::slurm::options::{check, refuse};
use super::containers::PLACEMENT;
use super::daemons;
use crate::cluster::operator::operator;
use crate::cluster::session::Session;
use crate::error::{Error, NodeError};
use crate::event::{Events, Step};
use crate::job::cleanup::stop_limit;
use crate::launch::placement::MapBy;
use crate::launch::role_placement::RoleShape;
use crate::node::network::{self, CUDA_DEVICE_ORDER, CUDA_VISIBLE_DEVICES};
use crate::secret::Secret;
use crate::start::capacity::QueueRequest;
use crate::start::execute::{abandon, begin, start_launcher};
use crate::start::hosts::HostAssignment;
use crate::start::plan::JobPlan;
use crate::start::prepare::{Workspaces, desired_worker, prepare};
use crate::start::request::JobOptions;
use crate::start::roles::JobRole;
use crate::sync::upload::Workspace;
use crate::transport::node::Script;
use crate::worker::names;
use serde::Serialize;
use serde_json::Value;
use std::net::IpAddr;

const DESCRIBE: &str = include_str!("../../scripts/slurm/nodes/describe.sh");

/// Submits a job and keeps its number for the agent: a slurmctld that is killed at once does not remember the job.
const SUBMIT: &str = include_str!("../../scripts/slurm/nodes/submit.sh");

/// The program that Slurm runs on the first node of a job. It waits for the agent's signal that the job has ended.
const WAIT: &str = "trap 'kill $!; exit 0' USR1; while :; do sleep 86400 & wait; done";

/// Slurm says this of a job that has to wait for a drained node, which it takes all the same.
const NODES_NOT_AVAILABLE: &str = "node configuration is not available";

/// The description of a queued job for a node: `jobs/ID.json` in the directory of the cluster's queue.
#[derive(Serialize)]
struct QueuedJob<'a> {
    /// The nodes that may get it, in the order of ranks.
    nodes: Vec<CandidateNode<'a>>,
    /// The node of its launcher.
    launcher: &'a str,
    /// The launcher's container.
    master: &'a str,
    /// The number of its ranks.
    ranks: u32,
    /// GPUs or slots of each node; none: whole nodes.
    per_node: Option<u32>,
    /// `slot` or `node`.
    map_by: &'static str,
    /// Its roles, by which its ranks are placed; empty without roles.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    roles: Vec<QueuedRole<'a>>,
    /// The worker of the job on this node; none where its ranks run in the launcher's container.
    worker: Option<QueuedWorker>,
    /// The GPUs of this node.
    gpus: Vec<QueuedGpu>,
    /// The command that submits it.
    submit: Vec<String>,
    /// Seconds for what is left of it to end when its allocation has.
    grace: u64,
}

/// A node that the queue may give to a job.
#[derive(Serialize)]
struct CandidateNode<'a> {
    node: &'a str,
    slots: u32,
    /// The number of its GPUs; none: slots are counted in their place.
    gpus: Option<usize>,
    address: IpAddr,
}

/// A role of a job.
#[derive(Serialize)]
struct QueuedRole<'a> {
    name: &'a str,
    shape: RoleShape<'a>,
    /// Set if the operator or the project has chosen the GPUs that its ranks see.
    chooses_gpus: bool,
}

/// How the worker of a job is started on a node.
#[derive(Serialize)]
struct QueuedWorker {
    name: String,
    /// The path of the request that creates its container, and the body.
    path: String,
    body: Value,
    /// The address and the port of its sshd.
    address: String,
    port: u16,
    /// The program that writes the nodes' names there; empty if there are none.
    names: String,
}

/// A GPU that a job may get.
#[derive(Serialize)]
struct QueuedGpu {
    uuid: String,
    /// How programs find it.
    visible: String,
}

/// Options that say which nodes and how many tasks the job has, which hvdctl has to know, or its name.
const REFUSED: [(&str, &str, &str); 17] = [
    ("--exclude", "-x", "choose nodes with --on"),
    ("--nodelist", "-w", "choose nodes with --on"),
    ("--nodes", "-N", "spread the ranks with --map-by node"),
    ("--ntasks", "-n", "give the number of ranks with -np"),
    ("--ntasks-per-node", "", "give the number of ranks of each node with --gpus-per-node"),
    ("--mincpus", "", "give the number of ranks of each node with --gpus-per-node"),
    ("--cpus-per-task", "-c", "leave it out: a rank is a slot, see `slots` in the inventory"),
    ("--gres", "", "give the number of GPUs of each node with --gpus-per-node"),
    ("--gpus", "-G", "give the number of GPUs of each node with --gpus-per-node"),
    ("--gpus-per-node", "", "give it without --sbatch"),
    ("--gpus-per-task", "", "give the number of GPUs of each node with --gpus-per-node"),
    ("--exclusive", "", "leave it out: jobs have whole nodes without --gpus-per-node"),
    ("--oversubscribe", "-s", "share nodes with --gpus-per-node"),
    ("--overcommit", "-O", "share nodes with --gpus-per-node"),
    ("--job-name", "-J", "name the job with --name"),
    ("--no-requeue", "", "leave it out: hvdctl starts no job twice"),
    ("--partition", "-p", "leave it out: there is one partition"),
];

/// Returns the command that submits a job with these options, or asks whether Slurm would take it.
fn command(options: &[String], only_test: bool) -> Vec<String> {
    // Slurm keeps what it is given, and sends it about unencrypted
    let argv = ["sbatch", if only_test { "--test-only" } else { "--parsable" }, "--export=PATH"]
        .into_iter()
        .chain(options.iter().map(String::as_str));
    argv.chain(["--wrap", WAIT]).map(str::to_owned).collect()
}

/// The plan of a job on all nodes that it may get, and the options with which it is submitted.
pub struct Queued {
    /// The plan.
    pub plan: JobPlan,
    request: QueueRequest,
    /// The options of sbatch.
    pub options: Vec<String>,
}

impl Queued {
    /// Returns the job with the options for its submission.
    ///
    /// # Errors
    /// Options that the queue does not have.
    pub fn new(plan: JobPlan, request: QueueRequest) -> Result<Queued, Error> {
        check(&plan.options, &[])?;
        refuse(&plan.options.submission, &REFUSED, |option| {
            format!("hvdctl sets the option {option} of sbatch itself")
        })?;
        let options = options(&plan, request);
        Ok(Queued { plan, request, options })
    }

    /// Asks the queue whether it would take the job. Changes nothing.
    ///
    /// # Errors
    /// With the message of sbatch.
    pub async fn check(&self) -> Result<(), Error> {
        self.check_programs().await?;
        match self.sbatch_on_master(true).await {
            Err(error) if error.message.contains(NODES_NOT_AVAILABLE) => Ok(()),
            tested => Ok(tested?),
        }
    }

    /// Checks that the queue's own programs know of roles, if the job has any.
    async fn check_programs(&self) -> Result<(), NodeError> {
        let cluster = &self.plan.inventory.cluster;
        let master = &self.plan.hosts.launcher.observed;
        if self.plan.options.roles.is_empty() {
            return Ok(());
        }
        let file = format!("{}/{PLACEMENT}", cluster.slurm_dir());
        let container = daemons::of_queue(cluster, &master.runtime.containers);
        let (operation, transport) = ("look for the programs of the cluster's queue", &master.member.transport);
        let argv = ["test", "-e", &file];
        let ran = master.runtime.engine.run_in(container, &argv, b"", operation, transport.limit()).await?;
        let hint = "the queue is that of an earlier hvdctl, which knows no roles: run hvdctl slurm up again";
        transport.succeeded(ran, operation).map(drop).map_err(|error| error.hint(hint))
    }

    /// Prepares every node that may get the job, and submits it.
    ///
    /// # Errors
    /// Why it was not submitted; then nothing of it is left.
    pub async fn submit(&self, session: &Session, events: &Events) -> Result<Workspaces, Error> {
        let plan = &self.plan;
        let describe = async |host: &HostAssignment, place: Option<&Workspace>| self.describe(host, place).await;
        let submit = async |workspaces| {
            start_launcher(plan, &workspaces).await?;
            session.cancellation.check()?;
            let name = plan.hosts.launcher.observed.name();
            events.step(name, Step::write("submitting the job"), self.sbatch_on_master(false)).await?;
            Ok(workspaces)
        };
        let abandon = async |error: &Error| abandon(&plan.nodes(), error, plan.never_launched(error), events).await;
        let workspaces = begin(&plan.id, (session, events), prepare(plan, events, describe), submit, abandon).await?;
        session.locks.release().await;
        Ok(workspaces)
    }

    /// Asks Slurm whether it would take the job, or submits it.
    async fn sbatch_on_master(&self, only_test: bool) -> Result<(), NodeError> {
        let plan = &self.plan;
        let master = &plan.hosts.launcher.observed;
        let command = command(&self.options, only_test);
        let file = format!("{}/numbers/{}.json", plan.inventory.cluster.slurm_dir(), plan.id);
        let container = daemons::of_queue(&plan.inventory.cluster, &master.runtime.containers);
        let submit = ["sh", "-c", SUBMIT, "sh", &file];
        let argv = if only_test { Vec::new() } else { submit.to_vec() };
        let argv: Vec<&str> = argv.into_iter().chain(command.iter().map(String::as_str)).collect();
        let (operation, transport) = ("submit the job to Slurm", &master.member.transport);
        let ran = master.runtime.engine.run_in(container, &argv, b"", operation, transport.limit()).await?;
        transport.succeeded(ran, operation).map(drop)
    }

    /// Describes the job on a node that may get it. `place`: where the project is there.
    async fn describe(&self, host: &HostAssignment, place: Option<&Workspace>) -> Result<(), NodeError> {
        let Queued { plan, request, .. } = self;
        let observed = &host.observed;
        let operation = "describe the job for Slurm";
        let failed = |error: &dyn std::fmt::Display| NodeError::failed(observed.name(), operation, error);
        let with_ranks = plan.hosts.all().filter(|host| host.ranks > 0);
        let job = QueuedJob {
            nodes: with_ranks.map(candidate).collect(),
            roles: plan.options.roles.iter().map(|role| queued_role(role, &plan.options)).collect(),
            launcher: plan.hosts.launcher.observed.name(),
            master: &plan.container.name,
            ranks: request.ranks,
            per_node: request.per_node,
            map_by: if request.map_by == MapBy::Node { "node" } else { "slot" },
            worker: self.worker(host, place, operation)?,
            gpus: gpus(host),
            submit: command(&self.options, false),
            grace: stop_limit(&plan.inventory.cluster).as_secs(),
        };
        let text = serde_json::to_string(&job).map_err(|error| failed(&error))?;
        let script = Script::new(DESCRIBE)
            .with("directory", &plan.inventory.cluster.slurm_dir())
            .with("id", &plan.id)
            .with("text", &text);
        observed.member.transport.script(&script, operation).await.map(drop)
    }

    /// Returns the worker of the job on a node; `None` on that of the launcher.
    fn worker(
        &self,
        host: &HostAssignment,
        place: Option<&Workspace>,
        operation: &str,
    ) -> Result<Option<QueuedWorker>, NodeError> {
        let (plan, observed) = (&self.plan, &host.observed);
        if observed.name() == plan.hosts.launcher.observed.name() {
            return Ok(None);
        }
        let of_job = plan.workers.of_job(&plan.inventory);
        let spec = desired_worker(&of_job, observed, place, Some((&plan.id, plan.options.may_restart())))?;
        let (path, body) = observed.runtime.engine.engine(operation)?.creation(&spec);
        let failed = |error| NodeError::failed(observed.name(), operation, error);
        let entries = plan.names.of_node(observed.name());
        let names = entries.map_or(Ok(String::new()), |entries| names::program(&entries).map_err(failed))?;
        let (name, port) = (of_job.cluster.worker, of_job.cluster.port);
        Ok(Some(QueuedWorker { name, path, body, address: host.endpoint.address.to_string(), port, names }))
    }
}

/// Returns what is described of a node that may get a job.
fn candidate(host: &HostAssignment) -> CandidateNode<'_> {
    let gpus = Some(gpus(host).len()).filter(|gpus| *gpus > 0);
    CandidateNode { node: host.observed.name(), slots: host.ranks, gpus, address: host.endpoint.address }
}

/// Returns what is described of a role.
fn queued_role<'a>(role: &'a JobRole, options: &JobOptions) -> QueuedRole<'a> {
    let chooses_gpus = role.variables(&options.env).contains_key(CUDA_VISIBLE_DEVICES);
    QueuedRole { name: &role.project.name, shape: role.shape(), chooses_gpus }
}

/// Returns the options with which a job is submitted.
fn options(plan: &JobPlan, request: QueueRequest) -> Vec<String> {
    let QueueRequest { ranks, map_by, per_node, role_nodes } = request;
    let candidates: Vec<_> = plan.hosts.all().filter(|host| host.ranks > 0).collect();
    let others = plan.inventory.nodes.iter().map(|node| node.name.as_str());
    let others: Vec<&str> = others.filter(|name| candidates.iter().all(|host| host.observed.name() != *name)).collect();
    let has_gpus = candidates.iter().any(|host| !gpus(host).is_empty());
    let tasks = per_node.map(|per_node| per_node.min(ranks));
    let spread = (map_by == MapBy::Node).then(|| ranks.min(candidates.len() as u32) as usize);
    let title = plan.program.title.as_deref().unwrap_or(&plan.program.name);
    let named = [
        ("job-name", Some(format!("{title}.{}", plan.id))),
        ("comment", Some(operator())),
        // ranks of roles may take several slots, or none
        ("ntasks", Some(role_nodes.unwrap_or(ranks as usize).to_string())),
        ("nodes", role_nodes.or(spread).map(|nodes| nodes.to_string())),
        // Slurm may give fewer tasks of each node, and ranks fill the nodes
        ("mincpus", tasks.map(|tasks| tasks.to_string())),
        ("ntasks-per-node", tasks.map(|tasks| tasks.to_string())),
        ("gres", tasks.filter(|_| has_gpus).map(|gpus| format!("gpu:{gpus}"))),
        ("exclude", (!others.is_empty()).then(|| others.join(","))),
        ("output", Some("/dev/null".to_owned())),
        ("chdir", Some("/".to_owned())),
    ];
    let named = named.into_iter().filter_map(|(name, value)| Some(format!("--{name}={}", value?)));
    let whole = per_node.is_none().then(|| "--exclusive".to_owned());
    let own = named.chain(whole).chain(["--requeue".to_owned()]);
    own.chain(plan.options.submission.iter().cloned()).collect()
}

/// Returns the GPUs of a node, and how programs find each.
fn gpus(host: &HostAssignment) -> Vec<QueuedGpu> {
    let (node, facts) = (&host.observed.member.node, &host.observed.facts);
    let order = host.environment.get(CUDA_DEVICE_ORDER).map(Secret::expose);
    let gpu = |uuid: String| {
        let variables = network::gpu_variables(node, facts, std::slice::from_ref(&uuid), order, false);
        let visible = variables.into_iter().find(|(name, _)| *name == CUDA_VISIBLE_DEVICES)?.1;
        Some(QueuedGpu { uuid, visible })
    };
    network::chosen_gpus(node, facts).iter().filter_map(|device| gpu(device.uuid().to_owned())).collect()
}
