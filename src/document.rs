//! The common form of the documents of `--json`. Each document is defined next to the command that makes it.

use crate::error::{Error, NodeError, NodeProgress};
use crate::model::allocation::Allocation;
use crate::model::lease::Lease;
use schemars::JsonSchema;
use serde::Serialize;
use serde_json::Value;

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
    /// True if nothing failed and nothing is wrong. At the top level, it is true if and only if the exit code is 0.
    pub ok: bool,
    /// The command's own fields.
    #[serde(flatten)]
    pub details: T,
}

/// The entry of a node in a document.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "Entry-{T}")]
pub struct NodeEntry<T> {
    /// Name of the node in the inventory.
    pub node: String,
    /// True if nothing failed on this node.
    pub ok: bool,
    /// True if there is a session with the node; only where a command reports it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reachable: Option<bool>,
    /// True if `--skip-offline` left the node out, else missing.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub skipped: bool,
    /// The failure, else missing. The other fields are then missing too, unless their description says otherwise.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error: Option<NodeError>,
    /// The command's own fields for this node.
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

/// The reason why a node made a command fail.
#[derive(Debug, Default, Serialize, JsonSchema)]
pub struct FailureDetails {
    /// The lease of another command that has locked the node (exit code 5).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub lease: Option<Lease>,
    /// The allocation of a running job on the node that prevents the command (exit code 5, or 125 of `train` and
    /// `run`).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub allocation: Option<Allocation>,
    /// The progress of the node, if the command was stopped.
    #[serde(flatten)]
    pub progress: Option<NodeProgress>,
}

impl Failure {
    /// Returns the document of an error. `runs_program` as for [`Error::exit_code`]; `streams_output`: it is the last
    /// of many lines.
    pub fn new(error: &Error, runs_program: bool, streams_output: bool) -> Failure {
        let details = FailureDetails::default;
        let nodes = match error {
            Error::Unreachable(failed) | Error::Nodes { failed, .. } => entries([], failed),
            Error::Lost(error) | Error::Pool(error) => vec![NodeEntry::failed(error)],
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
