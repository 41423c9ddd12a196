//! The rules that `up`, `train`, `run` and `verify` apply before they change anything, on the state that they have observed.

use super::{Engine, Finding, NodeView, Severity, before, fold};
use crate::cluster::nodes::{Member, ObservedNode, RuntimeState};
use crate::error::NodeError;
use crate::event::{Event, Events};
use crate::inventory::Inventory;
use crate::node::facts::Facts;

/// A node's observed state, for the rules.
pub fn view<'a>(
    member: &'a Member,
    facts: &'a Facts,
    runtime: Option<&'a RuntimeState>,
    runtimes: Option<&'a [String]>,
) -> NodeView<'a> {
    let engine = runtime.map(|runtime| Engine {
        version: &runtime.engine.version,
        containers: &runtime.containers,
        image: runtime.image.as_ref(),
        runtimes,
    });
    NodeView { node: &member.node, facts, engine, worker: true, details: None, inside: None, starting: Vec::new() }
}

/// Applies the rules that need no further observation. Each node comes with whether its worker is needed.
pub fn before<'a>(inventory: &Inventory, nodes: &[(&'a ObservedNode, bool)]) -> Vec<Finding> {
    let view = |(node, worker): &(&'a ObservedNode, bool)| NodeView {
        worker: *worker,
        ..view(&node.member, &node.facts, Some(&node.runtime), None)
    };
    fold(before::before(inventory, &nodes.iter().map(view).collect::<Vec<_>>()))
}

/// Warns of the warnings, and returns the errors as those of their nodes.
pub fn stops(found: &[Finding], events: &Events) -> Vec<NodeError> {
    let mut failed = Vec::new();
    for finding in found {
        match finding.severity {
            Severity::Error => failed.extend(finding.nodes.iter().map(|node| {
                let message = format!("{}\n{}", finding.message, finding.why);
                NodeError::failed(node, "use the node", message).hint(&finding.hint)
            })),
            Severity::Warning => events.send(Event::Warning(finding.to_string())),
            Severity::Note => {}
        }
    }
    for error in &failed {
        events.failed(error);
    }
    failed
}
