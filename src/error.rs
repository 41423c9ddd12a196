//! Errors as users see them: which node, what was tried, the remote's own words, the next step; and the exit codes.

use crate::core::inventory::Faults;
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
        let mut lines = self.said.lines();
        if let Some(first) = lines.next() {
            write!(f, ": {first}")?;
        }
        for line in lines {
            write!(f, "\n    {line}")?;
        }
        if let Some(hint) = &self.hint {
            write!(f, "\n  hint: {hint}")?;
        }
        Ok(())
    }
}

impl std::error::Error for NodeError {}

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
    /// The inventory cannot be used.
    #[error("{0}")]
    Inventory(#[from] Faults),
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
    /// The operator's own machine failed us.
    #[error("{0}")]
    Here(String),
}

fn join(errors: &[NodeError]) -> String {
    errors.iter().map(ToString::to_string).collect::<Vec<_>>().join("\n")
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
            _ if around_a_program => exit::AROUND,
            Error::Unreachable(_) => exit::UNREACHABLE,
            Error::Nodes { done: 1.., .. } => exit::PARTLY,
            Error::Nodes { .. } | Error::Check { .. } | Error::Here(_) => exit::FAILED,
        }
    }

    /// The same for `--json`. `last_line`: it is the last of a run's lines, not the only one.
    pub fn document(&self, around_a_program: bool, last_line: bool) -> Value {
        let nodes: Vec<Value> =
            self.nodes().iter().map(|e| json!({ "node": e.node, "ok": false, "error": e })).collect();
        let code = self.exit_code(around_a_program);
        let mut document = json!({ "ok": false, "code": code, "error": self.to_string(), "nodes": nodes });
        if last_line {
            document["event"] = json!("end");
        }
        document
    }

    fn nodes(&self) -> &[NodeError] {
        match self {
            Error::Unreachable(nodes) | Error::Nodes { failed: nodes, .. } => nodes,
            _ => &[],
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
