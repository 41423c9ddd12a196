//! Errors as users see them: which node, what was tried, the remote's own words, the next step; and the exit codes.

use crate::model::allocation::AllocationConflict;
use crate::model::lease::{self, Lease};
use crate::text::nodeset;
use serde::Serialize;
use serde_json::{Value, json};
use std::fmt;

/// The exit codes of the contract (`docs/cli.md`).
pub mod exit {
    /// Done, or nothing to do.
    pub const OK: u8 = 0;
    /// A check failed, or an operation failed on every node concerned.
    pub const FAILED: u8 = 1;
    /// Usage or inventory wrong; nothing was touched.
    pub const USAGE: u8 = 2;
    /// Some nodes done, some failed.
    pub const PARTLY: u8 = 3;
    /// Nodes unreachable; nothing was changed.
    pub const UNREACHABLE: u8 = 4;
    /// Another command holds the lease of a node, or this one has lost it.
    pub const LOCKED: u8 = 5;
    /// `train`, `run`: hvdctl itself failed before or around the program.
    pub const AROUND: u8 = 125;
}

/// Whether a node could not be reached, or something on it failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Kind {
    /// No session with the node.
    Unreachable,
    /// The node answered and the operation failed.
    Failed,
}

/// As many lines of a remote's words are shown: half of them from the beginning and half from the end. `--json` has all.
const SAID: usize = 12;

/// One node's failure.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct NodeError {
    /// The node's name in the inventory.
    pub node: String,
    /// Unreachable or failed.
    pub kind: Kind,
    /// What was tried, as in "could not …".
    pub tried: String,
    /// The remote's own words.
    pub said: String,
    /// The next step.
    pub hint: Option<String>,
}

impl NodeError {
    /// A failure on a node that answers.
    pub fn failed(node: &str, tried: &str, said: impl fmt::Display) -> NodeError {
        NodeError {
            node: node.into(),
            kind: Kind::Failed,
            tried: tried.into(),
            said: said.to_string().trim().to_owned(),
            hint: None,
        }
    }

    /// A node without a session.
    pub fn unreachable(node: &str, tried: &str, said: impl fmt::Display) -> NodeError {
        NodeError { kind: Kind::Unreachable, ..NodeError::failed(node, tried, said) }
    }

    /// Adds the next step.
    #[must_use]
    pub fn hint(self, hint: impl Into<String>) -> NodeError {
        NodeError { hint: Some(hint.into()), ..self }
    }
}

impl fmt::Display for NodeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: could not {}", self.node, self.tried)?;
        let mut lines: Vec<&str> = self.said.lines().collect();
        // tar has a word for each file that a full disk does not take
        let left_out = lines.len().saturating_sub(SAID);
        let between = format!("… {left_out} more lines …");
        if left_out > 0 {
            lines.splice(SAID / 2..SAID / 2 + left_out, [between.as_str()]);
        }
        if !lines.is_empty() {
            write!(f, ": {}", lines.join("\n    "))?;
        }
        if let Some(hint) = &self.hint {
            write!(f, "\n  hint: {hint}")?;
        }
        Ok(())
    }
}

impl std::error::Error for NodeError {}

/// Where a node stands when its command was stopped.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Stand {
    /// The node's name.
    pub node: String,
    /// Whether all is done that was to be done.
    pub done: bool,
    /// What was done, in its order.
    pub did: Vec<String>,
    /// What failed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error: Option<NodeError>,
}

impl Stand {
    /// Nothing was begun.
    pub fn new(node: &str) -> Stand {
        Stand { node: node.to_owned(), done: false, did: Vec::new(), error: None }
    }

    fn words(&self) -> String {
        let did = self.did.join(", ");
        match (&self.error, self.done, self.did.is_empty()) {
            (Some(error), ..) => {
                format!("could not {}: {}", error.tried, error.said.lines().next().unwrap_or_default())
            }
            (None, true, true) => "done, nothing to change".into(),
            (None, true, false) => format!("done: {did}"),
            (None, false, true) => "not begun".into(),
            (None, false, false) => format!("begun: {did}; the rest is not"),
        }
    }
}

/// Why a command ended without doing all of its work.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The words of the command line do not fit together.
    #[error("{message}{}", .hint.as_ref().map(|h| format!("\n  hint: {h}")).unwrap_or_default())]
    Usage {
        /// What is wrong.
        message: String,
        /// The next step.
        hint: Option<String>,
    },
    /// The inventory cannot be used: its faults, a line each.
    #[error("{0}")]
    Inventory(String),
    /// Nodes cannot be reached, and so nothing was changed.
    #[error("{}\n{} unreachable, nothing was changed", join(.0), count(.0.len()))]
    Unreachable(Vec<NodeError>),
    /// Nodes failed; `done` others did not.
    #[error("{}\nfailed on {}{}", join(.failed), count(.failed.len()),
        if *.done > 0 { format!(", done on {}", count(*.done)) } else { String::new() })]
    Nodes {
        /// The failures.
        failed: Vec<NodeError>,
        /// How many nodes are done.
        done: usize,
    },
    /// A check of the whole failed.
    #[error("{message}{}", .hint.as_ref().map(|h| format!("\n  hint: {h}")).unwrap_or_default())]
    Check {
        /// What was expected and what was found.
        message: String,
        /// The next step.
        hint: Option<String>,
    },
    /// A signal ended it; what was begun was cleaned up.
    #[error("{}", if *.0 == 2 { "interrupted" } else { "terminated" })]
    Signal(u8),
    /// Other commands hold these nodes' leases.
    #[error("{}", locked(.0))]
    Locked(Vec<(String, Lease)>),
    /// Runs under way have what another one asks for.
    #[error("{0}\nnothing was changed\n  hint: {hint}", hint = .0.hint())]
    Allocated(AllocationConflict),
    /// The lease of a node was lost under way.
    #[error("{0}\n  hint: hvdctl lock status shows who is at work; the same command again goes on from here")]
    Lost(NodeError),
    /// It was stopped between two steps.
    #[error("{by}{}", standing(.stands))]
    Stopped {
        /// By what: [`Error::Signal`] or [`Error::Lost`].
        by: Box<Error>,
        /// How far each node came.
        stands: Vec<Stand>,
    },
    /// The operator's own machine failed us.
    #[error("{0}")]
    Here(String),
}

fn join(errors: &[NodeError]) -> String {
    errors.iter().map(ToString::to_string).collect::<Vec<_>>().join("\n")
}

fn locked(busy: &[(String, Lease)]) -> String {
    let mut text = String::new();
    for (nodes, lease) in lease::holders(busy) {
        text.push_str(&format!("{} locked by {lease}\n", subject(&nodes)));
    }
    text.push_str(
        "nothing was changed\n  hint: --wait waits for it; if nobody is at work there any more: hvdctl lock release",
    );
    text
}

fn subject(nodes: &[String]) -> String {
    format!("{} {}", nodeset::fold(nodes), if nodes.len() == 1 { "is" } else { "are" })
}

/// Nodes that stand alike in one line.
fn standing(stands: &[Stand]) -> String {
    let mut lines: Vec<(String, Vec<String>)> = Vec::new();
    for stand in stands {
        let words = stand.words();
        match lines.iter_mut().find(|(other, _)| *other == words) {
            Some((_, nodes)) => nodes.push(stand.node.clone()),
            None => lines.push((words, vec![stand.node.clone()])),
        }
    }
    lines.iter().map(|(words, nodes)| format!("\n  {}: {words}", nodeset::fold(nodes))).collect()
}

fn count(n: usize) -> String {
    format!("{n} node{}", if n == 1 { "" } else { "s" })
}

impl Error {
    /// Wrong usage, with the next step.
    pub fn usage(message: impl Into<String>, hint: impl Into<String>) -> Error {
        Error::Usage { message: message.into(), hint: Some(hint.into()) }
    }

    /// A failed check, with the next step.
    pub fn check(message: impl Into<String>, hint: impl Into<String>) -> Error {
        Error::Check { message: message.into(), hint: Some(hint.into()) }
    }

    /// The exit code. `around_a_program`: the command runs a user's program, whose own codes must not be mistaken for
    /// hvdctl's.
    pub fn exit_code(&self, around_a_program: bool) -> u8 {
        match self {
            Error::Usage { .. } | Error::Inventory(_) => exit::USAGE,
            Error::Signal(number) => 128 + number,
            Error::Stopped { by, .. } => by.exit_code(around_a_program),
            _ if around_a_program => exit::AROUND,
            Error::Unreachable(_) => exit::UNREACHABLE,
            Error::Locked(_) | Error::Allocated(_) | Error::Lost(_) => exit::LOCKED,
            Error::Nodes { done: 1.., .. } => exit::PARTLY,
            Error::Nodes { .. } | Error::Check { .. } | Error::Here(_) => exit::FAILED,
        }
    }

    /// The same for `--json`. `last_line`: it is the last of a run's lines, not the only one.
    pub fn document(&self, around_a_program: bool, last_line: bool) -> Value {
        let code = self.exit_code(around_a_program);
        let mut document = json!({ "ok": false, "code": code, "error": self.to_string(), "nodes": self.nodes() });
        if last_line {
            document["event"] = json!("end");
        }
        document
    }

    fn nodes(&self) -> Vec<Value> {
        let failed = |e: &NodeError| json!({ "node": e.node, "ok": false, "error": e });
        match self {
            Error::Unreachable(nodes) | Error::Nodes { failed: nodes, .. } => nodes.iter().map(failed).collect(),
            Error::Lost(error) => vec![failed(error)],
            Error::Locked(busy) => {
                busy.iter().map(|(node, lease)| json!({ "node": node, "ok": false, "lease": lease })).collect()
            }
            Error::Allocated(held) => held
                .allocations
                .iter()
                .map(|(node, allocation)| json!({ "node": node, "ok": false, "run": allocation }))
                .collect(),
            Error::Stopped { stands, .. } => {
                let mut nodes: Vec<Value> = stands.iter().map(|stand| json!(stand)).collect();
                nodes.iter_mut().for_each(|node| node["ok"] = node["done"].clone());
                nodes
            }
            _ => Vec::new(),
        }
    }
}

impl From<NodeError> for Error {
    fn from(error: NodeError) -> Error {
        match error.kind {
            Kind::Unreachable => Error::Unreachable(vec![error]),
            Kind::Failed => Error::Nodes { failed: vec![error], done: 0 },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exit_codes_are_the_contracts() {
        let node = || NodeError::failed("n", "x", "y");
        assert_eq!(Error::Nodes { failed: vec![node()], done: 0 }.exit_code(false), 1);
        assert_eq!(Error::Nodes { failed: vec![node()], done: 2 }.exit_code(false), 3);
        assert_eq!(Error::Unreachable(vec![node()]).exit_code(false), 4);
        assert_eq!(Error::Unreachable(vec![node()]).exit_code(true), 125);
        assert_eq!(Error::usage("a", "b").exit_code(true), 2);
        assert_eq!(Error::Signal(2).exit_code(true), 130);
        assert_eq!(Error::Signal(15).exit_code(false), 143);
        assert_eq!(Error::Locked(Vec::new()).exit_code(false), 5);
        assert_eq!(Error::Locked(Vec::new()).exit_code(true), 125);
        let stopped = |by| Error::Stopped { by: Box::new(by), stands: Vec::new() };
        assert_eq!(stopped(Error::Signal(2)).exit_code(false), 130);
        assert_eq!(stopped(Error::Lost(node())).exit_code(false), 5);
    }

    #[test]
    fn of_many_words_the_first_and_the_last_are_shown() {
        let shown = |lines: usize| {
            let said: Vec<String> = (1..=lines).map(|n| n.to_string()).collect();
            NodeError::failed("n", "x", said.join("\n")).to_string()
        };
        assert_eq!(shown(0), "n: could not x");
        assert_eq!(shown(2), "n: could not x: 1\n    2");
        assert_eq!(shown(12).lines().count(), 12);
        let many = shown(1000);
        assert!(
            many.ends_with("\n    6\n    … 988 more lines …\n    995\n    996\n    997\n    998\n    999\n    1000"),
            "{many}"
        );
    }

    #[test]
    fn who_holds_the_nodes_is_told_once_with_the_next_step() {
        let lease = Lease {
            id: "1".into(),
            holder: "ana@desk".into(),
            pid: 7,
            purpose: "hvdctl up".into(),
            since: 1_763_735_527,
            renewed: 1_763_735_598,
            seen: 1_763_735_599,
        };
        let other = Lease { id: "2".into(), purpose: "hvdctl down".into(), ..lease.clone() };
        let busy = [("node1", &lease), ("node2", &lease), ("node9", &other)];
        let error = Error::Locked(busy.map(|(node, lease)| (node.to_owned(), lease.clone())).to_vec());
        assert_eq!(
            error.to_string(),
            "node[1-2] are locked by ana@desk (process 7) with `hvdctl up` since 2025-11-21 14:32:07 UTC (1m 12s ago)\n\
             node9 is locked by ana@desk (process 7) with `hvdctl down` since 2025-11-21 14:32:07 UTC (1m 12s ago)\n\
             nothing was changed\n  hint: --wait waits for it; if nobody is at work there any more: hvdctl lock release"
        );
        assert_eq!(error.nodes()[2]["lease"]["purpose"], "hvdctl down");
    }

    #[test]
    fn a_command_that_was_stopped_says_where_the_nodes_stand() {
        let mut stands = ["n1", "n2", "n3", "n4", "n5"].map(Stand::new);
        stands[0].done = true;
        stands[1].did = vec!["remove hworker (port)".into()];
        (stands[3].did, stands[3].done) = (vec!["start hworker".into()], true);
        stands[4].error = Some(NodeError::failed("n5", "start hworker", "no space left\nat all"));
        let mut all = stands.to_vec();
        all.insert(3, Stand::new("n6"));
        let error = Error::Stopped { by: Box::new(Error::Signal(2)), stands: all };
        assert_eq!(
            error.to_string(),
            "interrupted\n  n1: done, nothing to change\n  n2: begun: remove hworker (port); the rest is not\n  \
             n[3,6]: not begun\n  n4: done: start hworker\n  n5: could not start hworker: no space left"
        );
        let told: Vec<bool> = error.nodes().iter().map(|node| node["ok"] == true).collect();
        assert_eq!(told, [true, false, false, false, true, false]);
    }

    #[test]
    fn a_node_error_has_all_four_parts() {
        let error =
            NodeError::failed("gpu03", "open Docker's socket", "permission denied\nsecond line").hint("join the group");
        assert_eq!(
            error.to_string(),
            "gpu03: could not open Docker's socket: permission denied\n    second line\n  hint: join the group"
        );
    }
}
