//! The progress of each node, for the error of a stopped command.

use crate::error::{Error, NodeError, NodeProgress};
use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};

/// What was done on each node.
#[derive(Default)]
pub struct ProgressLog(Mutex<BTreeMap<String, NodeProgress>>);

impl ProgressLog {
    fn update(&self, node: &str, change: impl FnOnce(&mut NodeProgress)) {
        let mut progress = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        change(progress.entry(node.to_owned()).or_insert_with(|| NodeProgress::new(node)));
    }

    /// Records a step that is done on a node.
    pub fn record(&self, node: &str, step: impl Into<String>) {
        self.update(node, |progress| progress.steps.push(step.into()));
    }

    /// Records that all is done on a node.
    pub fn done(&self, node: &str) {
        self.update(node, |progress| progress.done = true);
    }

    /// Records failures.
    pub fn failed(&self, errors: &[NodeError]) {
        for error in errors {
            self.update(&error.node, |progress| progress.error = Some(error.clone()));
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
