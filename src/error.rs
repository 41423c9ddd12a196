//! Errors as users see them: node, operation, cause, next step; and the exit codes.

use crate::model::allocation::AllocationConflict;
use crate::model::lease::{self, Lease};
use crate::text::failure::is_out_of_files;
use crate::text::nodeset;
use crate::text::units::count;
use schemars::JsonSchema;
use serde::Serialize;
use std::fmt;

/// The exit codes (`docs/reference/common.md`), which [`Verdict::exit_code`] and [`Error::exit_code`] choose.
mod exit {
    /// Done, or nothing to do.
    pub const OK: u8 = 0;
    /// A check failed, or an operation failed on every node concerned.
    pub const FAILED: u8 = 1;
    /// Wrong usage or inventory; nothing was changed.
    pub const USAGE: u8 = 2;
    /// Some nodes done, some failed.
    pub const PARTLY: u8 = 3;
    /// Nodes unreachable; nothing was changed.
    pub const UNREACHABLE: u8 = 4;
    /// Another command holds the lease of a node, or this one has lost it.
    pub const LOCKED: u8 = 5;
    /// `train`, `run`, `exec`, `shell`: hvdctl itself failed, not the program.
    pub const INTERNAL: u8 = 125;
}

/// The verdict of a command that has a result.
#[derive(Debug, Clone, Copy)]
pub enum Verdict<'a> {
    /// Everything is done, or there was nothing to do.
    Done,
    /// A check found something wrong.
    Wrong,
    /// Some nodes did not answer.
    Partly,
    /// This many nodes are done, and these have failed.
    Nodes {
        /// The number of nodes that are done.
        done: usize,
        /// The failures.
        failed: &'a [NodeError],
    },
    /// A program ended with this exit code.
    Program(i64),
    /// A program succeeded, and hvdctl failed after it.
    Incomplete,
}

impl<'a> Verdict<'a> {
    /// Returns the verdict of a check of nodes. `failed`: those that could not be checked, besides `done` others.
    pub fn of_check(is_good: bool, done: usize, failed: &'a [NodeError]) -> Verdict<'a> {
        if failed.is_empty() && !is_good { Verdict::Wrong } else { Verdict::Nodes { done, failed } }
    }

    /// Returns the failures of nodes.
    pub fn failed(self) -> &'a [NodeError] {
        if let Verdict::Nodes { failed, .. } = self { failed } else { &[] }
    }

    /// Returns the exit code.
    pub fn exit_code(self) -> u8 {
        match self {
            Verdict::Done | Verdict::Nodes { failed: [], .. } => exit::OK,
            Verdict::Partly | Verdict::Nodes { done: 1.., .. } => exit::PARTLY,
            Verdict::Nodes { failed, .. } if failed.iter().all(NodeError::is_unreachable) => exit::UNREACHABLE,
            Verdict::Wrong | Verdict::Nodes { .. } => exit::FAILED,
            // other codes come from the engine, not from a process
            Verdict::Program(code) => u8::try_from(code).unwrap_or(exit::INTERNAL),
            Verdict::Incomplete => exit::INTERNAL,
        }
    }
}

/// The kind of a node's failure. In JSON the field `kind`; scripts and the exit code branch on it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum ErrorKind {
    /// No session with the node.
    Unreachable,
    /// The node did not answer within the time limit.
    TimedOut,
    /// The login cannot get root.
    PrivilegesDenied,
    /// The Docker Engine is not installed or not running, or the login may not use it.
    EngineUnavailable,
    /// The node does not have the image.
    ImageMissing,
    /// A registry refused the image: there is no login for it, or not a valid one, or no such image.
    RegistryRefused,
    /// The node, or its Docker Engine, does not have the GPUs that it should have.
    GpusMissing,
    /// `nvidia-smi` failed on the node, so that its GPUs are not known.
    NvidiaSmiFailed,
    /// Another program has a port that is needed.
    PortInUse,
    /// A disk of the node is full.
    NoSpace,
    /// A file changed while it was transferred.
    FileChanged,
    /// The node has a directory of another job with the same id.
    JobExists,
    /// A command or script on the node ended with an exit code other than 0.
    CommandFailed {
        /// The exit code, 128 + N for signal N.
        status: i32,
    },
    /// The node answered and the operation failed otherwise.
    Failed,
}

/// The number of lines of a cause that are shown: half of them from the beginning and half from the end. `--json` has
/// all.
const SHOWN_LINES: usize = 12;

/// The next step where this machine lets hvdctl open no more files. hvdctl has raised its soft limit itself.
const MORE_FILES: &str = "this machine's limit of open files is too low: `ulimit -Hn` shows it, and a node needs about \
                          20. Raise it (/etc/security/limits.conf, LimitNOFILE of a service), or select fewer nodes \
                          with --on";

/// The failure of an operation on a node.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, JsonSchema)]
pub struct NodeError {
    /// Name of the node in the inventory.
    pub node: String,
    /// The kind of failure.
    #[serde(flatten)]
    pub kind: ErrorKind,
    /// The attempted operation; completes "cannot …".
    pub operation: String,
    /// The cause as the node, the engine or ssh reports it; may have several lines.
    pub message: String,
    /// The next steps.
    pub hints: Vec<String>,
    /// Set if no key let the operator in, so that a password may install one (`keys push --first-login`).
    #[serde(skip)]
    pub takes_first_login: bool,
}

impl NodeError {
    /// A failure on a node that answers.
    pub fn failed(node: &str, operation: &str, message: impl fmt::Display) -> NodeError {
        let message = message.to_string().trim().to_owned();
        let hints = if is_out_of_files(&message) { vec![MORE_FILES.to_owned()] } else { Vec::new() };
        let (node, operation) = (node.into(), operation.into());
        NodeError { node, kind: ErrorKind::Failed, operation, message, hints, takes_first_login: false }
    }

    /// A node without a session.
    pub fn unreachable(node: &str, operation: &str, message: impl fmt::Display) -> NodeError {
        NodeError::failed(node, operation, message).kind(ErrorKind::Unreachable)
    }

    /// Sets the kind of failure.
    #[must_use]
    pub fn kind(self, kind: ErrorKind) -> NodeError {
        NodeError { kind, ..self }
    }

    /// Returns true if there is no session with the node.
    pub fn is_unreachable(&self) -> bool {
        self.kind == ErrorKind::Unreachable
    }

    /// Adds a hint.
    #[must_use]
    pub fn hint(mut self, hint: impl Into<String>) -> NodeError {
        self.hints.push(hint.into());
        self
    }
}

impl fmt::Display for NodeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: cannot {}", self.node, self.operation)?;
        let mut lines: Vec<&str> = self.message.lines().collect();
        // tar reports each file that does not fit on a full disk
        let left_out = lines.len().saturating_sub(SHOWN_LINES);
        let between = format!("… {left_out} more lines …");
        if left_out > 0 {
            lines.splice(SHOWN_LINES / 2..SHOWN_LINES / 2 + left_out, [between.as_str()]);
        }
        if !lines.is_empty() {
            write!(f, ": {}", lines.join("\n    "))?;
        }
        self.hints.iter().try_for_each(|hint| write!(f, "\n  hint: {hint}"))
    }
}

impl std::error::Error for NodeError {}

/// The progress of a node when its command was stopped.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, JsonSchema)]
pub struct NodeProgress {
    /// Name of the node in the inventory.
    #[serde(skip)]
    pub node: String,
    /// True if all steps are done.
    pub done: bool,
    /// The steps that were done, in order.
    pub steps: Vec<String>,
    /// The step that failed.
    #[serde(skip)]
    pub error: Option<NodeError>,
}

impl NodeProgress {
    /// A node on which nothing has started.
    pub fn new(node: &str) -> NodeProgress {
        NodeProgress { node: node.to_owned(), done: false, steps: Vec::new(), error: None }
    }

    fn summary(&self) -> String {
        let steps = self.steps.join(", ");
        match (&self.error, self.done, self.steps.is_empty()) {
            (Some(error), ..) => {
                format!("cannot {}: {}", error.operation, error.message.lines().next().unwrap_or_default())
            }
            (None, true, true) => "done, nothing to change".into(),
            (None, true, false) => format!("done: {steps}"),
            (None, false, true) => "not started".into(),
            (None, false, false) => format!("incomplete; done so far: {steps}"),
        }
    }
}

/// The reason why a command ended without doing all of its work.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// Wrong usage.
    #[error("{message}\n  hint: {}", if is_out_of_files(.message) { MORE_FILES } else { .hint })]
    Usage {
        /// The fault.
        message: String,
        /// The next step.
        hint: String,
    },
    /// The inventory cannot be used: its faults, a line each.
    #[error("{0}{hint}", hint = local_hint(.0))]
    Inventory(String),
    /// Nodes cannot be reached, and so nothing was changed.
    #[error("{}\n{} unreachable, nothing was changed", join(.0), count(.0.len(), "node"))]
    Unreachable(Vec<NodeError>),
    /// Nodes failed; `done` others did not.
    #[error("{}\nfailed on {}{}", join(.failed), count(.failed.len(), "node"),
        if *.done > 0 { format!(", done on {}", count(*.done, "node")) } else { String::new() })]
    Nodes {
        /// The failures.
        failed: Vec<NodeError>,
        /// The number of nodes that are done.
        done: usize,
    },
    /// The machine of the pool, which is no node, cannot be reached or failed.
    #[error("{0}")]
    Pool(NodeError),
    /// A check that concerns more than one node failed.
    #[error("{message}\n  hint: {hint}")]
    Check {
        /// The expected and the actual state.
        message: String,
        /// The next step.
        hint: String,
    },
    /// The cluster is not set up: nodes lack what `hvdctl up` gives them.
    #[error("{0}")]
    NotUp(Box<Error>),
    /// A signal ended the command, after cleanup.
    #[error("{}", if *.0 == 2 { "interrupted" } else { "terminated" })]
    Signal(u8),
    /// Other commands have locked these nodes.
    #[error("{}", locked(.0))]
    Locked(Vec<(String, Lease)>),
    /// The requested nodes, slots or GPUs are allocated to other jobs.
    #[error("{0}\nnothing was changed\n  hint: {hint}", hint = .0.hint())]
    Allocated(AllocationConflict),
    /// Too few nodes are free, and enough will be when others have ended what they do there.
    #[error("{message}\nnothing was changed\n  hint: {hint}")]
    InUse {
        /// The requested and the free resources.
        message: String,
        /// The next step.
        hint: String,
    },
    /// The lock of a node was lost.
    #[error("{0}\n  hint: hvdctl lock status shows who has locked it; run the same command again to continue")]
    Lost(NodeError),
    /// The command was stopped between two steps.
    #[error("{by}{}", progress(.nodes))]
    Stopped {
        /// The cause: [`Error::Signal`] or [`Error::Lost`].
        by: Box<Error>,
        /// The progress of each node.
        nodes: Vec<NodeProgress>,
    },
    /// An operation on the operator's own machine failed.
    #[error("{0}{hint}", hint = local_hint(.0))]
    Local(String),
}

fn local_hint(message: &str) -> String {
    if is_out_of_files(message) { format!("\n  hint: {MORE_FILES}") } else { String::new() }
}

fn join(errors: &[NodeError]) -> String {
    errors.iter().map(ToString::to_string).collect::<Vec<_>>().join("\n")
}

fn locked(leases: &[(String, Lease)]) -> String {
    let line = |(nodes, lease): &(Vec<String>, &Lease)| {
        let verb = if nodes.len() == 1 { "is" } else { "are" };
        format!("{} {verb} locked by {lease}\n", nodeset::fold(nodes))
    };
    let lines: String = lease::holders(leases).iter().map(line).collect();
    format!(
        "{lines}nothing was changed\n  hint: wait with --wait, or, if that command is gone, run hvdctl lock release"
    )
}

/// Formats progress, one line for nodes that came equally far.
fn progress(nodes: &[NodeProgress]) -> String {
    let rows = nodeset::alike(nodes.iter().map(|node| (node.summary(), node.node.clone())));
    rows.iter().map(|(summary, nodes)| format!("\n  {}: {summary}", nodeset::fold(nodes))).collect()
}

impl Error {
    /// Wrong usage, with the next step.
    pub fn usage(message: impl Into<String>, hint: impl Into<String>) -> Error {
        Error::Usage { message: message.into(), hint: hint.into() }
    }

    /// A failed check, with the next step.
    pub fn check(message: impl Into<String>, hint: impl Into<String>) -> Error {
        Error::Check { message: message.into(), hint: hint.into() }
    }

    /// The exit code. `runs_program`: the command runs a user's program, whose exit codes must differ from hvdctl's
    /// own.
    pub fn exit_code(&self, runs_program: bool) -> u8 {
        match self {
            Error::Usage { .. } | Error::Inventory(_) => exit::USAGE,
            Error::Signal(number) => 128 + number,
            Error::Stopped { by: error, .. } | Error::NotUp(error) => error.exit_code(runs_program),
            _ if runs_program => exit::INTERNAL,
            Error::Unreachable(_) => exit::UNREACHABLE,
            Error::Pool(error) if error.is_unreachable() => exit::UNREACHABLE,
            Error::Locked(_) | Error::Allocated(_) | Error::InUse { .. } | Error::Lost(_) => exit::LOCKED,
            Error::Nodes { done: 1.., .. } => exit::PARTLY,
            Error::Nodes { .. } | Error::Pool(_) | Error::Check { .. } | Error::Local(_) => exit::FAILED,
        }
    }
}

impl From<NodeError> for Error {
    fn from(error: NodeError) -> Error {
        match error.kind {
            ErrorKind::Unreachable => Error::Unreachable(vec![error]),
            _ => Error::Nodes { failed: vec![error], done: 0 },
        }
    }
}

/// A failure on this machine, with its context and causes.
impl From<anyhow::Error> for Error {
    fn from(error: anyhow::Error) -> Error {
        let mut causes = error.chain().map(ToString::to_string);
        let context = causes.next().unwrap_or_default();
        // some errors repeat their source
        let add = |text: String, cause: String| if text.contains(&cause) { text } else { format!("{text}: {cause}") };
        Error::Local(causes.fold(context, add))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exit_codes_are_those_of_the_documentation() {
        let node = || NodeError::failed("n", "x", "y");
        let gone = || NodeError::unreachable("n", "x", "y");
        let nodes = |done, failed: &[NodeError]| Verdict::Nodes { done, failed }.exit_code();
        assert_eq!([nodes(0, &[]), nodes(2, &[]), nodes(2, &[gone()])], [0, 0, 3]);
        assert_eq!([nodes(0, &[gone()]), nodes(0, &[gone(), node()])], [4, 1]);
        let check = |is_good, failed: &[NodeError]| Verdict::of_check(is_good, 1, failed).exit_code();
        assert_eq!([check(true, &[]), check(false, &[]), check(false, &[gone()])], [0, 1, 3]);
        assert_eq!([7, 256, -1].map(|code| Verdict::Program(code).exit_code()), [7, 125, 125]);
        assert_eq!(Error::Nodes { failed: vec![node()], done: 0 }.exit_code(false), 1);
        assert_eq!(Error::Nodes { failed: vec![node()], done: 2 }.exit_code(false), 3);
        assert_eq!(Error::Unreachable(vec![node()]).exit_code(false), 4);
        assert_eq!(Error::Unreachable(vec![node()]).exit_code(true), 125);
        assert_eq!([node(), gone()].map(|error| Error::Pool(error).exit_code(false)), [1, 4]);
        assert_eq!(Error::usage("a", "b").exit_code(true), 2);
        assert_eq!(Error::Signal(2).exit_code(true), 130);
        assert_eq!(Error::Signal(15).exit_code(false), 143);
        assert_eq!(Error::Locked(Vec::new()).exit_code(false), 5);
        assert_eq!(Error::Locked(Vec::new()).exit_code(true), 125);
        let stopped = |by| Error::Stopped { by: Box::new(by), nodes: Vec::new() };
        assert_eq!(stopped(Error::Signal(2)).exit_code(false), 130);
        assert_eq!(stopped(Error::Lost(node())).exit_code(false), 5);
    }

    #[test]
    fn too_many_open_files_are_named_with_the_limit() {
        let text = "cannot read x: Too many open files (os error 24)";
        let local = Error::Local(text.into()).to_string();
        assert!(local.starts_with(text) && local.contains("\n  hint: ") && local.contains("ulimit -Hn"), "{local}");
        assert_eq!(Error::Inventory(text.into()).to_string(), local);
        assert_eq!(Error::usage(text, "name a file that exists").to_string(), local);
        assert_eq!(NodeError::failed("n", "x", text).hints, [MORE_FILES]);
        assert_eq!(Error::Local("cannot read x: No such file (os error 2)".into()).to_string().lines().count(), 1);
    }

    #[test]
    fn an_error_of_this_machine_has_its_context_and_each_cause_once() {
        use anyhow::Context as _;
        let missing = std::fs::read("/nonexistent/x").context("cannot read /nonexistent/x");
        let error = Error::from(missing.unwrap_err());
        assert_eq!(error.to_string(), "cannot read /nonexistent/x: No such file or directory (os error 2)");
        assert_eq!(error.exit_code(false), exit::FAILED);
        let repeated = tempfile::tempdir_in("/nonexistent").context("cannot prepare").unwrap_err();
        let text = Error::from(repeated).to_string();
        assert!(text.starts_with("cannot prepare: ") && text.matches("No such file").count() == 1, "{text}");
    }

    #[test]
    fn of_a_long_message_the_first_and_last_lines_are_shown() {
        let shown = |lines: usize| {
            let lines: Vec<String> = (1..=lines).map(|n| n.to_string()).collect();
            NodeError::failed("n", "x", lines.join("\n")).to_string()
        };
        assert_eq!(shown(0), "n: cannot x");
        assert_eq!(shown(2), "n: cannot x: 1\n    2");
        assert_eq!(shown(12).lines().count(), 12);
        let many = shown(1000);
        assert!(
            many.ends_with("\n    6\n    … 988 more lines …\n    995\n    996\n    997\n    998\n    999\n    1000"),
            "{many}"
        );
    }

    #[test]
    fn a_lock_error_names_each_holder_once_with_the_next_step() {
        let lease = Lease {
            id: "1".into(),
            holder: "ana@desk".into(),
            pid: 7,
            purpose: "hvdctl up".into(),
            since: 1_763_735_527,
            renewed: 1_763_735_598,
            read: 1_763_735_599,
        };
        let other = Lease { id: "2".into(), purpose: "hvdctl down".into(), ..lease.clone() };
        let leases = [("node1", &lease), ("node2", &lease), ("node9", &other)];
        let error = Error::Locked(leases.map(|(node, lease)| (node.to_owned(), lease.clone())).to_vec());
        assert_eq!(
            error.to_string(),
            "node[1-2] are locked by ana@desk (process 7) with `hvdctl up` since 2025-11-21 14:32:07 UTC (1m 12s ago)\n\
             node9 is locked by ana@desk (process 7) with `hvdctl down` since 2025-11-21 14:32:07 UTC (1m 12s ago)\n\
             nothing was changed\n  hint: wait with --wait, or, if that command is gone, run hvdctl lock release"
        );
    }

    #[test]
    fn a_stopped_command_reports_the_progress_of_each_node() {
        let mut nodes = ["n1", "n2", "n3", "n4", "n5"].map(NodeProgress::new);
        nodes[0].done = true;
        nodes[1].steps = vec!["removed hworker (port)".into()];
        (nodes[3].steps, nodes[3].done) = (vec!["started hworker".into()], true);
        nodes[4].error = Some(NodeError::failed("n5", "start hworker", "no space left\nat all"));
        let mut all = nodes.to_vec();
        all.insert(3, NodeProgress::new("n6"));
        let error = Error::Stopped { by: Box::new(Error::Signal(2)), nodes: all };
        assert_eq!(
            error.to_string(),
            "interrupted\n  n1: done, nothing to change\n  n2: incomplete; done so far: removed hworker (port)\n  \
             n[3,6]: not started\n  n4: done: started hworker\n  n5: cannot start hworker: no space left"
        );
    }

    #[test]
    fn a_node_error_has_all_four_parts() {
        let error =
            NodeError::failed("gpu03", "open Docker's socket", "permission denied\nsecond line").hint("join the group");
        assert_eq!(
            error.to_string(),
            "gpu03: cannot open Docker's socket: permission denied\n    second line\n  hint: join the group"
        );
    }
}
