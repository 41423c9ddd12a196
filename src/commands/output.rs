//! The documents of `--json`: one type per document. `docs/json.md` is generated from these types and their comments.

use crate::checks::{Finding, bench, verify};
use crate::cluster::exec::CommandOutput;
use crate::doctor::Fixed;
use crate::error::{Error, NodeError, NodeProgress};
use crate::init::machines::Host;
use crate::inventory::{Controller, KeyType};
use crate::keys::files::{KeyFault, NodeKeys, WrongMode};
use crate::keys::reachability::{AbsentNode, FailedLogins, Login, Matrix};
use crate::launch::NodeCommand;
use crate::launch::placement::Placement;
use crate::model::allocation::Allocation;
use crate::model::collective::{Dtype, ModelEstimate};
use crate::model::idle_rank::IdleRank;
use crate::model::lease::Lease;
use crate::node::facts::Drained;
use crate::node::gpus::Gpu;
use crate::record::JobState;
use crate::record::list::Job;
use crate::record::outcome::JobOutcome;
use crate::start::in_worker::NodeCores;
use crate::text::argument::ProgramArgument;
use crate::worker::plan::{Operation, WorkerStatus};
use schemars::JsonSchema;
use serde::Serialize;
use serde_json::Value;
use std::collections::BTreeMap;

/// Returns a document as JSON.
///
/// # Panics
/// Never: every document has string keys and serializes without error.
pub fn value(document: &impl Serialize) -> Value {
    serde_json::to_value(document).expect("a document serializes")
}

// no doc comment: that of `T` describes the document
#[expect(missing_docs, reason = "see above")]
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "{T}")]
pub struct Document<T> {
    /// Whether nothing failed and nothing is wrong. At the top level, the exit code is 0 exactly then.
    pub ok: bool,
    /// What the command reports besides that.
    #[serde(flatten)]
    pub details: T,
}

/// The entry of a node in a document.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "Entry-{T}")]
pub struct NodeEntry<T> {
    /// Name of the node in the inventory.
    pub node: String,
    /// Whether nothing failed on this node.
    pub ok: bool,
    /// Whether there is a session with the node; only where a command reports it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reachable: Option<bool>,
    /// True if `--skip-offline` left the node out, else missing.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub skipped: bool,
    /// What failed, else missing. The other fields are then missing too, unless their description says otherwise.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error: Option<NodeError>,
    /// What the command reports of this node.
    #[serde(flatten)]
    pub result: Option<T>,
}

impl<T> NodeEntry<T> {
    /// The entry of a node, with what the command reports of it.
    pub fn new(node: &str, ok: bool, result: T) -> NodeEntry<T> {
        NodeEntry { node: node.to_owned(), ok, reachable: None, skipped: false, error: None, result: Some(result) }
    }

    /// The entry of a node that was reached, where the command reports that.
    pub fn reached(node: &str, ok: bool, result: T) -> NodeEntry<T> {
        NodeEntry { reachable: Some(true), ..NodeEntry::new(node, ok, result) }
    }

    /// The entry of a node that failed.
    pub fn failed(error: &NodeError) -> NodeEntry<T> {
        let (node, error) = (error.node.clone(), Some(error.clone()));
        NodeEntry { node, ok: false, reachable: None, skipped: false, error, result: None }
    }

    /// A node that was left out on request.
    pub fn skipped(error: &NodeError) -> NodeEntry<T> {
        NodeEntry { skipped: true, ..NodeEntry::failed(error) }
    }

    /// The entry of a failed node that also reports whether the node was reached.
    pub fn unreached(error: &NodeError) -> NodeEntry<T> {
        NodeEntry { reachable: Some(!error.is_unreachable()), ..NodeEntry::failed(error) }
    }
}

/// The entries of the nodes that are done, and then of those that failed.
pub fn entries<T>(done: impl IntoIterator<Item = NodeEntry<T>>, failed: &[NodeError]) -> Vec<NodeEntry<T>> {
    done.into_iter().chain(failed.iter().map(NodeEntry::failed)).collect()
}

/// Nothing but what every entry has.
#[derive(Debug, Serialize, JsonSchema)]
pub struct NoDetails {}

/// The result of an operation on each node.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "Nodes-{T}")]
pub struct Nodes<T> {
    /// The nodes.
    pub nodes: Vec<NodeEntry<T>>,
}

/// The value of `event` in the last line of `train`, `run`, `attach` and `logs`.
#[derive(Debug, Clone, Copy, Serialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum End {
    /// The last line.
    End,
}

/// Any command that ended before it had a result; `ok` is always false.
#[derive(Debug, Serialize, JsonSchema)]
pub struct Failure {
    /// Only in the last line of `train`, `run`, `attach` and `logs`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub event: Option<End>,
    /// The exit code.
    pub code: u8,
    /// The message, as it is shown without `--json`.
    pub error: String,
    /// The nodes that the error is about; may be empty.
    pub nodes: Vec<NodeEntry<FailureDetails>>,
}

/// Why a node made a command fail.
#[derive(Debug, Default, Serialize, JsonSchema)]
pub struct FailureDetails {
    /// The lease of another command that has locked the node (exit code 5).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub lease: Option<Lease>,
    /// What is allocated on the node to a running job that prevents the command (exit code 5, or 125 of `train` and
    /// `run`).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub allocation: Option<Allocation>,
    /// Where the command was stopped: how far it came.
    #[serde(flatten)]
    pub progress: Option<NodeProgress>,
}

impl Failure {
    /// Returns the document of an error. `runs_program` as for [`Error::exit_code`]; `streams_output`: it is the last of many lines.
    pub fn new(error: &Error, runs_program: bool, streams_output: bool) -> Failure {
        let details = FailureDetails::default;
        let nodes = match error {
            Error::Unreachable(failed) | Error::Nodes { failed, .. } => entries([], failed),
            Error::Lost(error) => vec![NodeEntry::failed(error)],
            Error::Locked(leases) => {
                let lease = |lease: &Lease| FailureDetails { lease: Some(lease.clone()), ..details() };
                leases.iter().map(|(node, of)| NodeEntry::new(node, false, lease(of))).collect()
            }
            Error::Allocated(conflict) => {
                let entry =
                    |allocation: &Allocation| FailureDetails { allocation: Some(allocation.clone()), ..details() };
                let allocations = conflict.allocations.iter();
                allocations.map(|(node, allocation)| NodeEntry::new(node, false, entry(allocation))).collect()
            }
            Error::Stopped { nodes, .. } => nodes
                .iter()
                .map(|node| {
                    let progress = FailureDetails { progress: Some(node.clone()), ..details() };
                    NodeEntry { error: node.error.clone(), ..NodeEntry::new(&node.node, node.done, progress) }
                })
                .collect(),
            _ => Vec::new(),
        };
        let (code, event) = (error.exit_code(runs_program), streams_output.then_some(End::End));
        Failure { event, code, error: error.to_string(), nodes }
    }
}

/// `init`.
#[derive(Debug, Serialize, JsonSchema)]
pub struct Init {
    /// The file that was written.
    pub file: String,
    /// The machines.
    pub nodes: Vec<NodeEntry<InitNode>>,
}

/// A machine that was given to `init`. One that could not be read has `error`; with `--no-probe` it has neither `error`
/// nor `found`.
#[derive(Debug, Serialize, JsonSchema)]
pub struct InitNode {
    /// The machine as ssh is given it.
    #[serde(flatten)]
    pub host: Host,
    /// What was found.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub found: Option<FoundMachine>,
    /// The earlier machine that is the same one, so this one was left out.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub same_as: Option<String>,
}

/// What `init` found on a machine.
#[derive(Debug, Serialize, JsonSchema)]
pub struct FoundMachine {
    /// The machine's own name.
    pub hostname: String,
    /// The address that the node will have; null if it is not clear.
    pub address: Option<String>,
    /// All its addresses.
    pub addresses: Vec<String>,
    /// Processor cores.
    pub cores: u32,
    /// Its GPUs.
    pub gpus: Vec<Gpu>,
    /// How root is obtained: `login` or `sudo`; null if it cannot be.
    pub root: Option<String>,
    /// The version of the Docker Engine, or null.
    pub docker: Option<String>,
    /// Those of the requested images that are there.
    pub images: Vec<String>,
    /// Reasons why the machine cannot be a node yet.
    pub concerns: Vec<String>,
}

/// What `keys push` did on a node.
#[derive(Debug, Serialize, JsonSchema)]
pub struct KeysPushNode {
    /// Whether anything was written.
    pub changed: bool,
    /// The files that were written.
    pub written: Vec<String>,
    /// The files that were removed.
    pub removed: Vec<String>,
    /// The files and directories with a wrong owner or mode, as they were before.
    pub repaired: Vec<WrongMode>,
}

/// `keys status`.
#[derive(Debug, Serialize, JsonSchema)]
pub struct KeysStatus {
    /// What an unfinished rotation has left to do, or null.
    pub rotation: Option<KeyFault>,
    /// The nodes.
    pub nodes: Vec<NodeEntry<NodeKeys>>,
    /// Logins from worker to worker; null if none was tried.
    pub logins: Option<Logins>,
}

/// `keys rotate`.
#[derive(Debug, Serialize, JsonSchema)]
pub struct KeysRotate {
    /// False if no other key pair was put in place.
    pub switched: bool,
    /// The type of the key pair in use, `rsa` or `ed25519`; null if it is not known.
    #[serde(rename = "type")]
    pub key_type: Option<KeyType>,
    /// Its size.
    pub bits: Option<u32>,
    /// Its fingerprint.
    pub fingerprint: Option<String>,
    /// The nodes.
    pub nodes: Vec<NodeEntry<NoDetails>>,
}

/// Logins from worker to worker.
#[derive(Debug, Serialize, JsonSchema)]
pub struct Logins {
    /// Whether every login worked.
    pub ok: bool,
    /// Nodes whose worker is not running.
    pub absent: Vec<AbsentNode>,
    /// The failures by reason.
    pub failed: Vec<FailedLogins>,
    /// Every login that was tried.
    pub pairs: Vec<Login>,
}

impl From<&Matrix> for Logins {
    fn from(matrix: &Matrix) -> Logins {
        let (absent, failed, pairs) = (matrix.absent.clone(), matrix.rows(), matrix.pairs.clone());
        Logins { ok: matrix.is_good(), absent, failed, pairs }
    }
}

/// The status of a node.
#[derive(Debug, Clone, Serialize, JsonSchema)]
pub struct NodeStatus {
    /// Whether it is the master.
    pub master: bool,
    /// The version of the engine; null if it does not answer, and then `worker` and `image` are null, too.
    pub engine: Option<String>,
    /// The status of the worker, as in the column WORKER in [cli.md](cli.md#status).
    pub worker: Option<WorkerStatus>,
    /// How a worker that `up` would replace differs.
    pub differs: Vec<String>,
    /// The id of the cluster's image on the node; null if the node does not have it.
    pub image: Option<String>,
    /// Its GPUs; null if `nvidia-smi` failed.
    pub gpus: Option<Vec<Gpu>>,
    /// The message of an `nvidia-smi` that failed, or null.
    pub nvidia_smi: Option<String>,
    /// Its slots.
    pub slots: u32,
    /// The ids of the jobs that have their launcher or ranks on the node.
    pub jobs: Vec<String>,
    /// The ranks of these jobs on the node that have made no progress for `stall_warning_s`.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub idle: Vec<IdleRank>,
    /// Who drained it, or null.
    pub drained: Option<Drained>,
}

/// The image of a node. `ok` is false if it is missing, or is not the one that most nodes have.
#[derive(Debug, Serialize, JsonSchema)]
pub struct ImageStatusNode {
    /// The image's name.
    pub image: String,
    /// Its id on the node, or null if the node does not have it.
    pub id: Option<String>,
    /// The hash of its layers and environment, which is the same on all nodes that have the same image; else null.
    pub content: Option<String>,
    /// Its bytes as the engine counts them, or null.
    pub size: Option<u64>,
    /// Its platform, e.g. `linux/amd64`, or null.
    pub platform: Option<String>,
    /// When it was built, or null if that is unknown.
    pub created: Option<String>,
    /// How many layers the node lacks of the image that most nodes have.
    pub lacking_layers: usize,
}

/// What `image push` did on a node.
#[derive(Debug, Serialize, JsonSchema)]
pub struct ImagePushNode {
    /// Whether the node did not have the image.
    pub changed: bool,
    /// How many bytes of it were sent to the node.
    pub sent: u64,
}

/// What `image pull` did on a node.
#[derive(Debug, Serialize, JsonSchema)]
pub struct ImagePullNode {
    /// Whether the node did not have this image.
    pub changed: bool,
    /// Its id on the node.
    pub id: String,
    /// The hash of its layers and environment, which is the same on all nodes that have the same image.
    pub content: Option<String>,
}

/// `image build`.
#[derive(Debug, Serialize, JsonSchema)]
pub struct ImageBuild {
    /// The name of the image.
    pub image: String,
    /// Whether a node lacked it.
    pub changed: bool,
}

/// What `image prune` did on a node.
#[derive(Debug, Serialize, JsonSchema)]
pub struct ImagePruneNode {
    /// The names of the images that were removed.
    pub removed: Vec<String>,
}

/// What `data push` did on a node.
#[derive(Debug, Serialize, JsonSchema)]
pub struct DataPushNode {
    /// Whether the node lacked something.
    pub changed: bool,
    /// How many files and links were sent to the node.
    pub files: usize,
    /// How many bytes of them.
    pub sent: u64,
    /// How many bytes this machine sent to the node for that. Less than `sent` if other nodes passed them on; more, by names and headers,
    /// if not.
    pub from_operator: u64,
    /// How many files an interrupted push had sent before.
    pub resumed: usize,
    /// How many files and directories were removed.
    pub removed: usize,
}

/// The data of a node. `ok` is false if they are not complete, or not those that most nodes have.
#[derive(Debug, Serialize, JsonSchema)]
pub struct DataStatusNode {
    /// Each of them.
    pub data: Vec<DataEntry>,
}

/// Data that were pushed.
#[derive(Debug, Serialize, JsonSchema)]
pub struct DataEntry {
    /// The name.
    pub name: String,
    /// `complete`; `incomplete` if a push was interrupted; `changed` or `removed` if others did that on the node.
    pub state: String,
    /// The hash of all files, which is the same on all nodes that have the same data; null if they are incomplete.
    pub hash: Option<String>,
    /// How many files there are.
    pub files: u64,
    /// Their bytes.
    pub size: u64,
    /// The seconds since they were pushed, or null.
    pub age_s: Option<u64>,
    /// The directory that they came from, `HOST:DIRECTORY`.
    pub origin: String,
}

/// What `data rm` did on a node.
#[derive(Debug, Serialize, JsonSchema)]
pub struct DataRmNode {
    /// Whether the node had the data.
    pub changed: bool,
    /// Whether others have files in the directory, which stay.
    pub left: bool,
}

/// What `up` did on a node, or would do with `--dry-run`.
#[derive(Debug, Serialize, JsonSchema)]
pub struct UpNode {
    /// Whether there are operations.
    pub changed: bool,
    /// The operations in order. A container that is recreated is removed and created.
    pub operations: Vec<UpOperation>,
    /// The same as one line.
    #[serde(skip)]
    pub summary: String,
}

/// An operation of `up`.
#[derive(Debug, PartialEq, Serialize, JsonSchema)]
#[serde(tag = "operation", rename_all = "snake_case")]
pub enum UpOperation {
    /// End a job (`--force`).
    EndJob {
        /// Its id.
        job: String,
    },
    /// Pull the image.
    Pull {
        /// Its name.
        image: String,
    },
    /// Remove a container.
    Remove {
        /// Its name.
        container: String,
        /// Why: in what it differs from the desired one, or what is wrong with it.
        reasons: Vec<String>,
    },
    /// Create a container and start it.
    Create {
        /// Its name.
        container: String,
    },
    /// Start a container that has exited.
    Start {
        /// Its name.
        container: String,
    },
    /// Unpause a container.
    Unpause {
        /// Its name.
        container: String,
    },
}

impl From<&Operation> for UpOperation {
    fn from(operation: &Operation) -> UpOperation {
        match operation.clone() {
            Operation::Pull { image } => UpOperation::Pull { image },
            Operation::Remove { name, reasons, .. } => UpOperation::Remove { container: name, reasons },
            Operation::Create(desired) => UpOperation::Create { container: desired.name },
            Operation::Start { name } => UpOperation::Start { container: name },
            Operation::Unpause { name } => UpOperation::Unpause { container: name },
        }
    }
}

/// What `down` did on a node.
#[derive(Debug, Serialize, JsonSchema)]
pub struct DownNode {
    /// Whether containers were removed.
    pub changed: bool,
    /// The containers that were removed.
    pub removed: Vec<String>,
    /// Whether keys, projects and records were removed (`--purge`).
    pub purged: bool,
    /// The names of the pushed data, which `--purge` keeps.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub kept_data: Vec<String>,
}

/// `doctor`.
#[derive(Debug, Serialize, JsonSchema)]
pub struct Doctor {
    /// What was found.
    pub findings: Vec<Finding>,
    /// What `--fix` fixed.
    pub fixed: Vec<Fixed>,
    /// The nodes; `ok` is false if a finding on the node is an error.
    pub nodes: Vec<NodeEntry<NoDetails>>,
}

/// `verify`. If a worker cannot log in to another, nothing is launched, and `nodes` is empty.
#[derive(Debug, Serialize, JsonSchema)]
pub struct Verify {
    /// The id of its job; null if nothing was launched.
    pub job: Option<String>,
    /// Horovod's controller.
    pub controller: Controller,
    /// The number of ranks that were launched.
    pub ranks: usize,
    /// Everything that is wrong.
    pub faults: Vec<String>,
    /// The nodes.
    pub nodes: Vec<NodeEntry<VerifyNode>>,
    /// Logins from worker to worker; null if all ranks are on one node.
    pub logins: Option<Logins>,
}

/// The ranks of a node.
#[derive(Debug, Serialize, JsonSchema)]
pub struct VerifyNode {
    /// The ranks that should be there.
    pub ranks: Vec<verify::RankRow>,
}

/// `bench`.
#[derive(Debug, Serialize, JsonSchema)]
pub struct Bench {
    /// The version of this document, for `--baseline`. Fields may be added without a new version.
    pub format: u32,
    /// The verdict as one sentence.
    pub verdict: String,
    /// What is slow, the worst first; empty if nothing is.
    pub findings: Vec<BenchFinding>,
    /// What limits the verdict: what could not be measured, and processors that were busy.
    pub notes: Vec<String>,
    /// The nodes; `ok` is false if a finding names the node.
    pub nodes: Vec<NodeEntry<BenchNode>>,
    /// Every measurement of one direction of a pair. What looks slow is measured again, and then has several.
    pub directions: Vec<BenchDirection>,
    /// What the ranks of a job measured; null if they did not.
    pub collectives: Option<bench::collectives::Collectives>,
    /// What a step of the model of `--params` costs; null without the option, or if nothing that is like it was measured.
    pub estimate: Option<BenchEstimate>,
    /// What differs from the output of an earlier benchmark; null without `--baseline`.
    pub baseline: Option<bench::baseline::Comparison>,
}

/// A node or a connection that is slow.
#[derive(Debug, Serialize, JsonSchema)]
pub struct BenchFinding {
    /// What was found, as a sentence.
    pub text: String,
    /// The node, the two ends of the connection, or all nodes.
    pub nodes: Vec<String>,
    /// `out`: what the first of these nodes sends; `in`: what it receives; or `both`.
    pub direction: bench::Way,
}

/// What a training step of a model costs, from the allreduce whose size is nearest to that of its gradients.
#[derive(Debug, Serialize, JsonSchema)]
pub struct BenchEstimate {
    /// The number of parameters.
    pub params: u64,
    /// The type of the gradients.
    pub dtype: Dtype,
    /// The seconds in which the gradients of one step are exchanged.
    pub exchange_s: f64,
    /// How many times as fast as one node the cluster is if nothing is computed during the exchange; null without `--step`.
    pub speedup: Option<f64>,
    /// The same if as much as possible is computed meanwhile.
    pub speedup_overlapped: Option<f64>,
    /// The same as text.
    pub text: String,
}

impl From<&ModelEstimate> for BenchEstimate {
    fn from(model: &ModelEstimate) -> BenchEstimate {
        let (speedup, speedup_overlapped) = model.estimate.speedup(1).unzip();
        BenchEstimate {
            params: model.params,
            dtype: model.dtype,
            exchange_s: model.estimate.wire.as_secs_f64(),
            speedup,
            speedup_overlapped,
            text: model.to_string(),
        }
    }
}

/// What `bench` knows of a node.
#[derive(Debug, Serialize, JsonSchema)]
pub struct BenchNode {
    /// The interface that jobs use.
    pub interface: Option<String>,
    /// Its nominal speed in Mb/s; null for a virtual one.
    pub speed: Option<u32>,
    /// `full` or `half`; null for a virtual one.
    pub duplex: Option<String>,
    /// The largest packet in bytes.
    pub mtu: Option<u32>,
    /// How much its counters of errors and packets grew during the measurement.
    pub counters: BTreeMap<String, u64>,
    /// The processor.
    pub compute: Option<bench::Compute>,
}

impl From<&bench::NodeEvidence> for BenchNode {
    fn from(node: &bench::NodeEvidence) -> BenchNode {
        let (before, after) = (node.before.clone().unwrap_or_default(), node.after.clone().unwrap_or_default());
        let growth = |(name, value): (&String, &Option<u64>)| {
            let later = after.counters.get(name).copied().flatten()?;
            Some((name.clone(), later.saturating_sub((*value)?)))
        };
        BenchNode {
            interface: node.before.as_ref().map(|link| link.interface.clone()),
            counters: before.counters.iter().filter_map(growth).collect(),
            speed: before.speed,
            duplex: before.duplex,
            mtu: before.mtu,
            compute: node.compute,
        }
    }
}

/// One measurement of what a node sends to another.
#[derive(Debug, Serialize, JsonSchema)]
pub struct BenchDirection {
    /// The sender.
    pub from: String,
    /// The receiver.
    pub to: String,
    /// Why nothing could be measured, else null.
    pub error: Option<String>,
    /// The bandwidth of the fastest transfer.
    pub bytes_per_s: Option<f64>,
    /// Round trips of a small message over TCP.
    pub round_trip_us: Option<bench::RoundTrip>,
    /// Transfers over one and over several connections.
    pub transfers: Vec<bench::Transfer>,
    /// Datagrams; null if none arrives at all, as behind some firewalls.
    pub probes: Option<bench::Probes>,
}

/// `completions`, `man` and `schema`.
#[derive(Debug, Serialize, JsonSchema)]
pub struct Text {
    /// What is printed without `--json`.
    pub text: String,
}

/// `man --dir`.
#[derive(Debug, Serialize, JsonSchema)]
pub struct Dir {
    /// The directory with the manual pages.
    pub dir: String,
}

/// The last line of `train`, `run` and `attach`.
#[derive(Debug, Serialize, JsonSchema)]
pub struct JobEnd {
    /// `end`.
    pub event: End,
    /// The exit code of hvdctl.
    pub code: u8,
    /// How the job ended; `running` with `--detach`.
    pub job: JobOutcome,
    /// With `--fetch`: what was fetched; null if no node could be asked.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub fetched: Option<Option<Document<Fetch>>>,
}

/// The only line of `train --dry-run` and `run --dry-run`.
#[derive(Debug, Serialize, JsonSchema)]
pub struct DryRun {
    /// `end`.
    pub event: End,
    /// The exit code.
    pub code: u8,
    /// Always true.
    pub dry_run: bool,
    /// Which ranks would be where.
    pub placement: Placement,
    /// What would be started on the nodes.
    pub launch: Vec<NodeCommand>,
    /// The cores and threads of the ranks on each node whose worker is up.
    pub cores: Vec<NodeCores>,
    /// The command of each rank.
    pub command: Vec<ProgramArgument>,
}

/// The last line of `logs`.
#[derive(Debug, Serialize, JsonSchema)]
pub struct LogsEnd {
    /// `end`.
    pub event: End,
    /// The exit code.
    pub code: u8,
}

/// `jobs`.
#[derive(Debug, Serialize, JsonSchema)]
pub struct Jobs {
    /// The jobs, the newest first.
    pub jobs: Vec<Job>,
    /// The nodes that did not answer.
    pub nodes: Vec<NodeEntry<NoDetails>>,
}

/// `jobs prune`.
#[derive(Debug, Serialize, JsonSchema)]
pub struct JobsPrune {
    /// The ids of the jobs that were removed.
    pub removed: Vec<String>,
    /// The nodes.
    pub nodes: Vec<NodeEntry<NoDetails>>,
}

/// `stop`.
#[derive(Debug, Serialize, JsonSchema)]
pub struct Stop {
    /// The id of the job.
    pub job: String,
    /// False if the job had already ended.
    pub changed: bool,
    /// The state of the job.
    pub state: Option<JobState>,
    /// Nodes of the job that did not answer.
    pub silent: Vec<String>,
}

/// `fetch`.
#[derive(Debug, Serialize, JsonSchema)]
pub struct Fetch {
    /// The id of the job.
    pub job: String,
    /// The directory with the files.
    pub directory: String,
    /// All files and links that the job wrote.
    pub files: Vec<FetchedFile>,
    /// The nodes that did not give everything.
    pub nodes: Vec<NodeEntry<NoDetails>>,
}

/// A file or link that a job wrote.
#[derive(Debug, Serialize, JsonSchema)]
pub struct FetchedFile {
    /// The path below `directory`.
    pub path: String,
    /// The node that it came from.
    pub node: String,
    /// False if it already existed.
    pub changed: bool,
    /// The size; null for a link.
    pub bytes: Option<u64>,
    /// The hash as of `b2sum -l 256`; null for a link.
    pub blake2b: Option<String>,
}

/// `exec`.
#[derive(Debug, Serialize, JsonSchema)]
pub struct Exec {
    /// The exit code of hvdctl.
    pub code: u8,
    /// The nodes.
    pub nodes: Vec<NodeEntry<CommandOutput>>,
}

/// `shell`, after it has ended.
#[derive(Debug, Serialize, JsonSchema)]
pub struct Shell {
    /// The exit code of the shell.
    pub code: u8,
}

/// `hosts`.
#[derive(Debug, Serialize, JsonSchema)]
pub struct Hosts {
    /// What is printed without `--json`.
    pub text: String,
    /// The nodes.
    pub nodes: Vec<NodeEntry<HostsNode>>,
}

/// A node as `hosts` has it.
#[derive(Debug, Serialize, JsonSchema)]
pub struct HostsNode {
    /// The host that ssh connects to.
    pub host: String,
    /// The `address` of the inventory, else `host`.
    pub reached_by: String,
    /// The slots; null with `--format ssh` if they are not known.
    pub slots: Option<u32>,
    /// Whether it is the master.
    pub master: bool,
}

/// A node as `drain` left it.
#[derive(Debug, Clone, Serialize, JsonSchema)]
pub struct DrainNode {
    /// Whether something was changed.
    pub changed: bool,
    /// Who drained it; null if it is not drained.
    pub drained: Option<Drained>,
    /// The elastic jobs that continue without it.
    pub leaving: Vec<String>,
    /// The jobs that stay there until their end: of a fixed size, or launched there.
    pub staying: Vec<String>,
}

/// The connections to a node that `disconnect` found.
#[derive(Debug, Clone, Serialize, JsonSchema)]
pub struct DisconnectNode {
    /// Whether there was one, which is closed now.
    pub closed: bool,
}

/// The lease of a node.
#[derive(Debug, Serialize, JsonSchema)]
pub struct LockStatusNode {
    /// The lease, or null.
    pub lease: Option<Lease>,
}

/// The lease that was released on a node.
#[derive(Debug, Serialize, JsonSchema)]
pub struct LockReleaseNode {
    /// The lease that was released, or null.
    pub released: Option<Lease>,
}
