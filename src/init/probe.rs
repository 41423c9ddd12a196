//! Probes machines that may become nodes, before there is an inventory.

use crate::cluster::each_node::for_each_node;
use crate::cluster::fleet::Fleet;
use crate::cluster::target::Target;
use crate::error::{Error, NodeError};
use crate::event::{Events, Phase, Step};
use crate::init::draft::Probe;
use crate::transport::node::{RunAs, Script};

const PROBE: &str = concat!(
    include_str!("../scripts/node/machine.sh"),
    include_str!("../scripts/node/nvidia_smi.sh"),
    include_str!("../scripts/node/gpus.sh"),
    include_str!("../scripts/access/login.sh"),
    include_str!("../scripts/node/probe.sh")
);

/// Probes every node, all at once, as the login itself. Each comes with what was found or the error, in the
/// inventory's order.
///
/// # Errors
/// When the operator's own machine is at fault.
pub async fn all(
    target: &Target,
    fleet: &Fleet,
    images: &[&str],
    events: &Events,
) -> Result<Vec<Result<Probe, NodeError>>, Error> {
    events.phase(Phase::Probing);
    let script = Script::new(PROBE).with("images", &images.join(" "));
    let members = fleet.connect(target, RunAs::Login, events).await?;
    Ok(for_each_node(members, async |member| {
        let member = member?;
        let probing = member.transport.script_as_login(&script, "probe the machine");
        let output = events.report(events.step(&member.node.name, Step::OBSERVING, probing).await)?;
        events.done(&member.node.name, "probed");
        Ok(Probe::parse(&String::from_utf8_lossy(&output)))
    })
    .await)
}
