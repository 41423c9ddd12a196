//! Findings: what is wrong with nodes, as the rules in `checks` return it and `doctor` reports it.

use super::check::Check;
use crate::text::nodeset;
use schemars::JsonSchema;
use serde::{Serialize, Serializer};
use std::fmt;

/// The severity of a finding.
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
        /// Its name, for people.
        name: String,
        /// Its id.
        id: String,
    },
    /// End what is left of the job of this id.
    EndJob(String),
    /// Push the keys to all nodes.
    PushKeys,
}

/// A finding: what is wrong with one or more nodes.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, JsonSchema)]
pub struct Finding {
    /// Its severity.
    pub severity: Severity,
    /// The name of the check.
    #[schemars(with = "String")]
    pub check: Check,
    /// The nodes that have it.
    pub nodes: Vec<String>,
    /// The fault or fact that was found.
    pub message: String,
    /// The reason why it matters; in JSON null if the message states it.
    #[serde(serialize_with = "null_if_empty")]
    #[schemars(with = "Option<String>")]
    pub why: String,
    /// The next step; in JSON null if there is nothing to do.
    #[serde(serialize_with = "null_if_empty")]
    #[schemars(with = "Option<String>")]
    pub hint: String,
    /// The fixes that `doctor --fix` applies, each with its node.
    #[serde(rename = "fixable", serialize_with = "is_some")]
    #[schemars(with = "bool", description = "Whether `doctor --fix` fixes it.")]
    pub fixes: Vec<(String, Fix)>,
}

fn null_if_empty<S: Serializer>(text: &str, serializer: S) -> Result<S::Ok, S::Error> {
    Some(text).filter(|text| !text.is_empty()).serialize(serializer)
}

fn is_some<S: Serializer>(fixes: &[(String, Fix)], serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_bool(!fixes.is_empty())
}

impl Finding {
    /// A finding about one node.
    pub fn new(severity: Severity, check: Check, node: &str, message: impl Into<String>) -> Finding {
        Finding::of_nodes(severity, check, vec![node.to_owned()], message.into())
    }

    /// A finding about several nodes.
    pub fn of_nodes(severity: Severity, check: Check, nodes: Vec<String>, message: String) -> Finding {
        Finding { severity, check, nodes, message, why: String::new(), hint: String::new(), fixes: Vec::new() }
    }

    /// Adds why it matters and how to fix it.
    #[must_use]
    pub fn explain(self, why: impl Into<String>, hint: impl Into<String>) -> Finding {
        Finding { why: why.into(), hint: hint.into(), ..self }
    }

    /// Adds what `doctor --fix` does about it on its nodes.
    #[must_use]
    pub fn fix(self, fix: Fix) -> Finding {
        Finding { fixes: self.nodes.iter().map(|node| (node.clone(), fix.clone())).collect(), ..self }
    }
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
