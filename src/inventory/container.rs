//! Settings of a node's containers in addition to the image: mounts, devices, limits, capabilities.

use super::check::{Checked, DEVICE, MOUNT, absolute, refuse_if};
use crate::paths::{CONTAINER_SSH, WORKSPACE};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use std::path::Path;

/// A directory or file of the node in the container.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Mount {
    /// Absolute path on the node.
    pub source: String,
    /// Absolute path in the container.
    pub target: String,
    /// If set, the container may only read.
    #[serde(default)]
    pub read_only: bool,
}

/// A device of the node in the container; a directory stands for all in it.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Device {
    /// Path on the node, below `/dev`.
    pub source: String,
    /// Path in the container.
    pub target: String,
    /// Some of `rwm`: read, write, make nodes.
    pub permissions: String,
}

/// A limit of the processes in a container; -1 is none.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Ulimit {
    /// The limit until a process changes it.
    pub soft: i64,
    /// The highest soft limit that a process may set.
    pub hard: i64,
}

/// Reads a mount that is written as a text or, where a path has a `:`, as a table.
pub(super) fn mount(value: &Value) -> Checked<Mount> {
    let mount = match value.as_str() {
        Some(text) => {
            let parts = MOUNT.captures(text)?;
            let read_only = parts.get(3).is_some_and(|mode| mode.as_str() == "ro");
            Mount { source: parts[1].to_owned(), target: parts[2].to_owned(), read_only }
        }
        None => Mount::deserialize(value).map_err(|error| error.to_string())?,
    };
    absolute(&mount.source)?;
    absolute(&mount.target)?;
    let target = &mount.target;
    let is_reserved =
        ["/", "/etc/hosts", WORKSPACE].contains(&target.as_str()) || Path::new(target).starts_with(CONTAINER_SSH);
    refuse_if(is_reserved, format!("{target} in the container is reserved for the image or hvdctl"))?;
    Ok(mount)
}

/// Reads a device.
pub(super) fn device(text: &str) -> Checked<Device> {
    let parts = DEVICE.captures(text).map_err(|_| "a device lies below /dev, and permissions are some of `rwm`")?;
    let part = |index, default: &str| parts.get(index).map_or(default, |part| part.as_str()).to_owned();
    let device = Device { source: part(1, ""), target: part(2, &parts[1]), permissions: part(3, "rwm") };
    absolute(&device.source)?;
    absolute(&device.target)?;
    Ok(device)
}

/// Reads a limit that is written as one number or as two.
pub(super) fn ulimit(value: &Value) -> Checked<Ulimit> {
    let limit = match value.as_i64() {
        Some(limit) => Ulimit { soft: limit, hard: limit },
        None => Ulimit::deserialize(value).map_err(|_| "it needs the numbers `soft` and `hard`")?,
    };
    let Ulimit { soft, hard } = limit;
    let is_good = soft >= -1 && (hard == -1 || (0..=hard).contains(&soft));
    refuse_if(!is_good, "numbers start at -1, and `soft` is at most `hard`")?;
    Ok(limit)
}
