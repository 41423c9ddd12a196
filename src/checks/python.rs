//! The Python of ranks that are processes of a login. In containers it is that of the image, which is compared.

use super::Severity::Warning;
use super::{Check, Finding, NodeView};
use crate::inventory::Inventory;
use crate::node::differing::differing;
use crate::runtime::container::running_worker;
use crate::runtime::spec::{LABEL_PYTHON, LABEL_SPEC_FULL};
use serde_json::{Value, json};

/// Finds workers whose `python3` is another one: its version, its prefix, or the file behind all links.
pub(super) fn differs(inventory: &Inventory, views: &[NodeView<'_>]) -> Option<Finding> {
    // those of a role with lines of its own are not those of the others
    let of_inventory = views.iter().filter(|view| view.own.activate.is_none());
    let pythons = of_inventory.filter_map(|view| Some((view.node, python(inventory, view)?))).collect();
    Some(differing(Warning, Check::Versions, "the Python of ranks differs", pythons)?.explain(
        "ranks may have other packages there, or not start",
        "let `activate` in the inventory set up the same Python on every node (`hvdctl env create` makes such a \
         virtualenv), then `hvdctl up`",
    ))
}

/// Returns the Python of a running worker, unless that has other lines of `activate` than the inventory: it will be
/// replaced.
fn python(inventory: &Inventory, view: &NodeView<'_>) -> Option<String> {
    let worker = running_worker(&inventory.cluster, view.containers)?;
    let spec: Value = serde_json::from_str(worker.label(LABEL_SPEC_FULL)?).ok()?;
    let activate = spec.get("activate").cloned().unwrap_or_else(|| json!([]));
    worker.label(LABEL_PYTHON).filter(|_| activate == json!(view.node.container.activate)).map(str::to_owned)
}
