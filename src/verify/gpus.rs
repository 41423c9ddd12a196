//! The health of the GPUs in `verify`: what was found on the nodes of its job, while the ranks started.

use crate::checks::{Check, Finding, Severity, failure, fold, has_gpus};
use crate::cluster::each_node::for_each_node;
use crate::cluster::observation::ObservedNode;
use crate::error::{Error, ErrorKind};
use crate::event::Events;
use crate::gpus::examination;
use crate::gpus::health::report::NodeHealth;
use crate::gpus::rules;
use crate::gpus::rules::GpuNode;
use crate::start::plan::JobPlan;
use crate::text::nodeset;
use crate::text::units::count;

/// The findings about the GPUs.
#[derive(Debug, Default)]
pub struct ExaminedGpus {
    /// The health of the GPUs of each node that has some.
    pub health: Vec<(String, NodeHealth)>,
    /// All findings, errors first.
    pub findings: Vec<Finding>,
    /// Number of GPUs that were examined: those that jobs may use.
    pub gpus: usize,
}

/// Examines the GPUs of all nodes of a job at once. A node that cannot be examined is a finding. `diagnose`: also with
/// DCGM.
pub async fn examine_gpus(plan: &JobPlan, diagnose: bool) -> ExaminedGpus {
    let observed: Vec<&ObservedNode> = plan.hosts.observed().chain(&plan.others).collect();
    let examine = async |node: &ObservedNode| examination::examine(&node.member, &node.facts, diagnose).await;
    let examined = for_each_node(observed.clone(), examine).await;
    let (mut nodes, mut findings) = (Vec::new(), Vec::new());
    for (node, health) in observed.into_iter().zip(examined) {
        findings.extend(has_gpus(&node.member.node, &node.facts));
        match health {
            Ok(health) => nodes.extend(health.map(|health| (node, health))),
            Err(error) => findings.push(failure(&error, "whether its GPUs are healthy is not known")),
        }
    }
    let views: Vec<GpuNode<'_>> =
        nodes.iter().map(|(node, health)| GpuNode { node: &node.member.node, facts: &node.facts, health }).collect();
    findings.extend(rules::examine(&views));
    let gpus = views.iter().map(GpuNode::examined).sum();
    let health = nodes.into_iter().map(|(node, health)| (node.name().to_owned(), health)).collect();
    ExaminedGpus { health, findings: fold(findings), gpus }
}

/// Returns the nodes because of whose GPUs a command has failed.
pub fn gpus_unknown(error: &Error) -> Vec<Finding> {
    let Error::Nodes { failed, .. } = error else { return Vec::new() };
    let failed = failed.iter().filter(|error| error.kind == ErrorKind::NvidiaSmiFailed);
    failed.map(|error| Finding::new(Severity::Error, Check::Gpus, &error.node, &error.message)).collect()
}

/// Returns whether a job was not started because nodes or their containers lack GPUs.
pub fn lacks_gpus(error: &Error) -> bool {
    matches!(error, Error::Nodes { failed, .. } if failed.iter().any(|error| error.kind == ErrorKind::GpusMissing))
}

impl ExaminedGpus {
    /// Returns the findings that make `verify` fail.
    pub fn errors(&self) -> impl Iterator<Item = &Finding> {
        self.findings.iter().filter(|finding| finding.severity == Severity::Error)
    }

    /// Reports the warnings, and what DCGM says.
    pub fn report(&self, events: &Events) {
        for finding in &self.findings {
            match finding.severity {
                Severity::Warning => events.warn(finding),
                Severity::Note if finding.check == Check::Dcgm => events.note(finding.to_string()),
                Severity::Error | Severity::Note => {}
            }
        }
    }

    /// Returns the errors, each with its nodes.
    pub fn faults(&self) -> Vec<String> {
        self.errors().map(|finding| format!("{}: {}", nodeset::fold(&finding.nodes), finding.message)).collect()
    }

    /// Formats the errors with their hints.
    pub fn text(&self) -> String {
        self.errors().map(|finding| format!("failed: {finding}\n")).collect()
    }

    /// Returns how many GPUs were examined, for the line of a success; empty if there are none.
    pub fn summary(&self) -> String {
        match self.gpus {
            0 => String::new(),
            gpus => format!(", {} healthy", count(gpus, "GPU")),
        }
    }
}
