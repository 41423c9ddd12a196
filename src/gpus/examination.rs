//! The health of the GPUs of a node.

use crate::cluster::member::Member;
use crate::error::NodeError;
use crate::gpus::health::report::NodeHealth;
use crate::node::facts::Facts;
use crate::node::network;
use crate::transport::node::Script;
use std::time::Duration;

const HEALTH: &str = concat!(include_str!("../scripts/node/nvidia_smi.sh"), include_str!("../scripts/node/health.sh"));

/// The time by which the diagnosis of DCGM may exceed that of everything else.
const DIAGNOSIS: Duration = Duration::from_secs(130);

/// Examines the GPUs of a node, if it has some that jobs may use. `diagnose`: also with DCGM, if that is installed.
///
/// # Errors
/// When there is no root, or the time is over.
pub async fn examine(member: &Member, facts: &Facts, diagnose: bool) -> Result<Option<NodeHealth>, NodeError> {
    if !network::may_use_gpus(&member.node, facts) {
        return Ok(None);
    }
    let script = Script::new(HEALTH).with("diagnose", if diagnose { "yes" } else { "" });
    let limit = member.transport.limit() + if diagnose { DIAGNOSIS } else { Duration::ZERO };
    let output = member.transport.script_within(&script, "examine the GPUs", limit).await?;
    Ok(Some(NodeHealth::parse(&String::from_utf8_lossy(&output))))
}
