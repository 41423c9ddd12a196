//! Probes machines that may become nodes, before there is an inventory.

use crate::cluster::each_node::for_each_node;
use crate::cluster::fleet::Fleet;
use crate::cluster::target::Target;
use crate::error::Error;
use crate::event::{Events, Phase, Step};
use crate::init::draft::{DraftNode, Probe};
use crate::inventory::Inventory;
use crate::transport::node::{RunAs, Script};
use std::time::Duration;

const PROBE: &str = concat!(
    include_str!("../scripts/node/machine.sh"),
    include_str!("../scripts/node/nvidia_smi.sh"),
    include_str!("../scripts/node/gpus.sh"),
    include_str!("../scripts/node/accelerators.sh"),
    include_str!("../scripts/access/login.sh"),
    include_str!("../scripts/node/probe.sh")
);

/// Probes the machines of a draft, all at once, as the login itself, and adds to each what was found or the error.
/// `inventory`: one with these machines as its nodes, in the same order.
///
/// # Errors
/// When the operator's own machine is at fault.
pub async fn examine(
    entries: &mut [DraftNode],
    mut inventory: Inventory,
    fleet: &Fleet,
    images: &[&str],
    events: &Events,
) -> Result<(), Error> {
    // machines that may not become nodes
    inventory.cluster.connection_idle = Duration::ZERO;
    events.phase(Phase::Probing);
    let script = Script::new(PROBE).with("images", &images.join(" "));
    let members = fleet.connect(&Target::new(inventory, None)?, RunAs::Login, events).await?;
    let found = for_each_node(members, async |member| {
        let member = member?;
        let probing = member.transport.script_as_login(&script, "probe the machine");
        let output = events.report(events.step(&member.node.name, Step::OBSERVING, probing).await)?;
        events.done(&member.node.name, "probed");
        Ok(Probe::parse(&String::from_utf8_lossy(&output)))
    });
    for (entry, found) in entries.iter_mut().zip(found.await) {
        entry.found = Some(found);
    }
    Ok(())
}
