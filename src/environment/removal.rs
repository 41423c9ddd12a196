//! Removes a virtualenv from a node.

use super::EnvPlace;
use crate::error::NodeError;
use crate::transport::node::{RunAs, Script, Transport};
use std::time::Duration;

const REMOVE: &str = concat!(
    include_str!("../scripts/node/close.sh"),
    include_str!("../scripts/node/permissions.sh"),
    include_str!("../scripts/node/marked.sh"),
    include_str!("../scripts/env/common.sh"),
    include_str!("../scripts/env/change.sh"),
    include_str!("../scripts/env/remove.sh")
);

/// The exit code where a process runs from it.
const IN_USE: i32 = 5;

/// The time that the removal of tens of thousands of files may take.
const LIMIT: Duration = Duration::from_secs(600);

/// Removes a virtualenv. Returns whether there was anything of it.
///
/// # Errors
/// If a process runs from it, or the node does not answer.
pub async fn remove(place: &EnvPlace, name: &str, transport: &Transport) -> Result<bool, NodeError> {
    let operation = format!("remove the virtualenv {name}");
    let script = Script::new(REMOVE).with("state_dir", &place.state_dir).with("name", name);
    let limit = transport.limit().max(LIMIT);
    let output = transport.run(RunAs::Login, &["sh", "-s"], script.whole().as_bytes(), &operation, limit).await?;
    let code = output.code;
    match transport.succeeded(output, &operation) {
        Ok(output) => Ok(output.stdout.starts_with(b"removed")),
        Err(error) if code == IN_USE => {
            Err(error.hint("hvdctl stop ends a job, and hvdctl down the workers; or wait until the process has ended"))
        }
        Err(error) => Err(error),
    }
}
