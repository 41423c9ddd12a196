//! The result of a command: exit code, text, document and errors.

use crate::cli::{ExitCode, OutputForm};
use crate::cluster::each_node::NodeResults;
use crate::document::{self, Document, Failure, NodeEntry, Nodes, entries};
use crate::error::{Error, NodeError, Verdict};
use crate::text::result::ResultText;
use serde::Serialize;
use serde_json::Value;

/// The result of a command.
#[derive(Debug)]
pub struct Outcome {
    /// The exit code.
    pub code: u8,
    /// The result as text, for standard output.
    pub text: ResultText,
    /// The result as JSON.
    pub document: Value,
    /// Errors for standard error, each without the prefix `error:`.
    pub errors: Vec<String>,
}

impl Outcome {
    /// The outcome of a command. `details`: its document without `ok` (see [`json`](crate::commands::json)).
    pub fn new(verdict: Verdict<'_>, text: impl Into<ResultText>, details: impl Serialize) -> Outcome {
        let code = verdict.exit_code();
        let document = document::value(&Document { ok: code == 0, details });
        let errors = verdict.failed().iter().map(ToString::to_string).collect();
        Outcome { code, text: text.into(), document, errors }
    }

    /// The outcome of a command without failures.
    pub fn ok(text: impl Into<ResultText>, details: impl Serialize) -> Outcome {
        Outcome::new(Verdict::Done, text, details)
    }

    /// Adds what failed after the result was known, which makes a success a failure.
    #[must_use]
    pub fn with_failure(mut self, result: Result<(), Error>) -> Outcome {
        if let Err(error) = result {
            self.code = self.code.max(error.exit_code(false));
            self.document["ok"] = false.into();
            self.errors.push(error.to_string());
        }
        self
    }

    /// The outcome of an operation on each node. `offline`: the nodes that were left out on request (`--skip-offline`).
    pub fn of_nodes<T: Serialize>(
        text: impl Into<ResultText>,
        nodes: NodeResults<NodeEntry<T>>,
        offline: &[NodeError],
    ) -> Outcome {
        let NodeResults { ok, failed } = nodes;
        let verdict = Verdict::Nodes { done: ok.len(), failed: &failed };
        let skipped = offline.iter().map(NodeEntry::skipped);
        let nodes = entries(ok, &failed).into_iter().chain(skipped).collect();
        Outcome::new(verdict, text, Nodes { nodes })
    }

    /// The outcome of a command that ended without a result.
    pub fn failure(error: &Error, exit: ExitCode, output: OutputForm) -> Outcome {
        let details = Failure::new(error, exit == ExitCode::Program, output == OutputForm::Lines);
        let (code, errors) = (details.code, vec![details.error.clone()]);
        Outcome {
            code,
            text: ResultText::default(),
            document: document::value(&Document { ok: false, details }),
            errors,
        }
    }
}
