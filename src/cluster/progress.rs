//! How far each node came, for the message of a command that was stopped.

use crate::error::{Error, NodeError, NodeProgress};
use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};

/// What was done on each node.
#[derive(Default)]
pub struct ProgressLog(Mutex<BTreeMap<String, NodeProgress>>);

impl ProgressLog {
    /// Notes a step that is done on a node.
    pub fn did(&self, node: &str, what: impl Into<String>) {
        let mut progress = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        progress.entry(node.to_owned()).or_insert_with(|| NodeProgress::new(node)).did.push(what.into());
    }

    /// Notes that all is done on a node.
    pub fn done(&self, node: &str) {
        let mut progress = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        progress.entry(node.to_owned()).or_insert_with(|| NodeProgress::new(node)).done = true;
    }

    /// Notes failures.
    pub fn failed(&self, errors: &[NodeError]) {
        let mut progress = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        for error in errors {
            let node = progress.entry(error.node.clone()).or_insert_with(|| NodeProgress::new(&error.node));
            node.error = Some(error.clone());
        }
    }

    /// Returns an error that stopped the command with the progress of each of these nodes, and any other as it is.
    #[must_use]
    pub fn explain(&self, error: Error, nodes: &[String]) -> Error {
        match error {
            Error::Signal(_) | Error::Lost(_) => {
                let progress = self.0.lock().unwrap_or_else(PoisonError::into_inner);
                let nodes =
                    nodes.iter().map(|node| progress.get(node).cloned().unwrap_or_else(|| NodeProgress::new(node)));
                Error::Stopped { by: Box::new(error), nodes: nodes.collect() }
            }
            error => error,
        }
    }
}
