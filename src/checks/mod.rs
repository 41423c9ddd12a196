//! What would make a job fail or hang: rules that turn the observed state of the nodes into findings. A finding has what was found, why
//! it matters and how to fix it.

mod before;
mod details;
mod jobs;
pub mod logins;
mod nodes;
mod pairs;
pub mod preflight;
#[cfg(test)]
mod tests;
mod uniform;
pub mod verify;

pub use details::{Details, GpuUser, Versions, versions};
pub use pairs::{logins, ports};

use crate::inventory::{Inventory, Node};
use crate::node::facts::Facts;
use crate::runtime::Image;
use crate::runtime::container::ContainerSummary;
use crate::text::nodeset;
use schemars::JsonSchema;
use serde::{Serialize, Serializer};
use std::fmt;

/// How much a finding matters.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Severity {
    /// A job would fail or hang.
    Error,
    /// A job may fail, or be slow.
    Warning,
    /// Worth knowing.
    Note,
}

impl fmt::Display for Severity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Severity::Error => "error",
            Severity::Warning => "warning",
            Severity::Note => "note",
        })
    }
}

/// A fix that `doctor --fix` applies. It changes nothing but what hvdctl created.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Fix {
    /// Remove a container of this cluster.
    RemoveContainer {
        /// The node it is on.
        node: String,
        /// Its name, for people.
        name: String,
        /// Its id.
        id: String,
    },
    /// End what is left of a job on a node.
    EndJob {
        /// The node.
        node: String,
        /// The job's id.
        job: String,
    },
    /// Push the keys to all nodes.
    PushKeys,
}

/// A finding: what is wrong with one or more nodes.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, JsonSchema)]
pub struct Finding {
    /// How much it matters.
    pub severity: Severity,
    /// The name of the check.
    pub check: &'static str,
    /// The nodes that have it.
    pub nodes: Vec<String>,
    /// What was found.
    pub message: String,
    /// Why it matters.
    pub why: String,
    /// How to fix it; empty if there is nothing to do.
    pub hint: String,
    /// What `doctor --fix` does about it; in JSON, whether it does anything.
    #[serde(rename = "fixable", serialize_with = "is_some")]
    #[schemars(with = "bool")]
    pub fixes: Vec<Fix>,
}

fn is_some<S: Serializer>(fixes: &[Fix], serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_bool(!fixes.is_empty())
}

impl Finding {
    /// A finding about one node.
    pub fn new(severity: Severity, check: &'static str, node: &str, message: impl Into<String>) -> Finding {
        Finding {
            severity,
            check,
            nodes: vec![node.to_owned()],
            message: message.into(),
            why: String::new(),
            hint: String::new(),
            fixes: Vec::new(),
        }
    }

    /// Adds why it matters and how to fix it.
    #[must_use]
    pub fn explain(self, why: impl Into<String>, hint: impl Into<String>) -> Finding {
        Finding { why: why.into(), hint: hint.into(), ..self }
    }

    /// Makes it a finding about several nodes.
    fn about(self, nodes: Vec<String>) -> Finding {
        Finding { nodes, ..self }
    }

    /// Adds what `doctor --fix` does about it.
    fn fix(self, fix: Fix) -> Finding {
        Finding { fixes: vec![fix], ..self }
    }
}

/// The observed state of one node.
#[derive(Debug, Clone)]
pub struct NodeView<'a> {
    /// Its line in the inventory.
    pub node: &'a Node,
    /// Its facts.
    pub facts: &'a Facts,
    /// Its engine, if it answered.
    pub engine: Option<Engine<'a>>,
    /// Whether a worker is needed there; the launcher's node needs none for its ranks.
    pub worker: bool,
    /// What only `doctor` asks.
    pub details: Option<&'a Details>,
    /// Jobs whose launcher may not be up yet.
    pub starting: Vec<String>,
    /// What is in its worker, if that is up.
    pub inside: Option<&'a Versions>,
}

impl<'a> NodeView<'a> {
    fn name(&self) -> &str {
        &self.node.name
    }

    fn containers(&self) -> &'a [ContainerSummary] {
        self.engine.map_or(&[], |engine| engine.containers)
    }
}

/// The observed state of a node's engine.
#[derive(Debug, Clone, Copy)]
pub struct Engine<'a> {
    /// Its version.
    pub version: &'a str,
    /// Its containers.
    pub containers: &'a [ContainerSummary],
    /// The cluster's image, if the node has it.
    pub image: Option<&'a Image>,
    /// The names of its runtimes, where they were asked for.
    pub runtimes: Option<&'a [String]>,
}

/// Applies all rules, but for those on connections between nodes ([`logins()`], [`ports`]).
pub fn examine(inventory: &Inventory, views: &[NodeView<'_>]) -> Vec<Finding> {
    let mut found = before::before(inventory, views);
    for view in views {
        found.extend(nodes::examine(inventory, view));
    }
    found.extend(nodes::keys(inventory, views));
    found.extend(nodes::between(inventory, views));
    found.extend(uniform::examine(views));
    found.extend(jobs::examine(inventory, views));
    found
}

/// Merges equal findings into one with all their nodes, and sorts errors first.
pub fn fold(found: Vec<Finding>) -> Vec<Finding> {
    let mut folded: Vec<Finding> = Vec::new();
    for finding in found {
        let same = |other: &&mut Finding| {
            (other.severity, other.check, &other.message, &other.why, &other.hint)
                == (finding.severity, finding.check, &finding.message, &finding.why, &finding.hint)
        };
        if let Some(other) = folded.iter_mut().find(same) {
            let new: Vec<String> = finding.nodes.into_iter().filter(|node| !other.nodes.contains(node)).collect();
            other.nodes.extend(new);
            other.fixes.extend(finding.fixes);
        } else {
            folded.push(finding);
        }
    }
    folded.sort_by_key(|finding| finding.severity);
    folded
}

impl fmt::Display for Finding {
    /// Without the severity, which a renderer may colour.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", nodeset::fold(&self.nodes), self.message)?;
        for (title, text) in [("why", &self.why), ("hint", &self.hint)] {
            if !text.is_empty() {
                write!(f, "\n  {title}: {text}")?;
            }
        }
        Ok(())
    }
}
