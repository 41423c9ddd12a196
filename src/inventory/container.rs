//! Settings of a node's containers in addition to the image: mounts, devices, limits; and the environment of the ranks
//! in them.

use super::check::{Checked, DEVICE, MOUNT, VARIABLE, absolute, refuse_if};
use super::fault::without_mark;
use crate::paths::{CONTAINER_SSH, WORKSPACE};
use crate::secret::Secret;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use std::collections::BTreeMap;
use std::path::Path;

/// The largest `env_file`, in bytes; a larger one is the wrong file.
const LARGEST_ENV: usize = 64 << 10;

/// A directory or file of the node in the container.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Mount {
    /// Absolute path on the node.
    pub source: String,
    /// Absolute path in the container.
    pub target: String,
    /// Whether the container may only read.
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
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
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

/// Reads the text of an `env_file`: `NAME=VALUE` lines as Docker reads them, the value being all behind the first `=`;
/// empty lines and those that begin with `#` are ignored. The last value of a name counts.
///
/// # Errors
/// What is wrong, a sentence with its line each; never a value, which may be secret.
pub fn env_lines(text: &str) -> Result<BTreeMap<String, Secret>, Vec<String>> {
    let text = without_mark(text);
    if text.len() > LARGEST_ENV {
        return Err(vec![format!("expected at most {} KiB, found {} KiB", LARGEST_ENV >> 10, text.len() >> 10)]);
    }
    let (mut variables, mut faults) = (BTreeMap::new(), Vec::new());
    for (index, line) in text.lines().enumerate() {
        let line = line.trim_start();
        if line.is_empty() || line.starts_with('#') {
            continue;
        }
        let read = match line.split_once('=') {
            None => Err("expected NAME=VALUE".to_owned()),
            Some((_, value)) if value.contains('\0') => Err("the value contains a NUL".to_owned()),
            Some((name, value)) => VARIABLE.read(name).map(|name| variables.insert(name, Secret::plain(value))),
        };
        faults.extend(read.err().map(|why| format!("line {}: {why}", index + 1)));
    }
    if faults.is_empty() { Ok(variables) } else { Err(faults) }
}

#[cfg(test)]
mod tests {
    use super::env_lines;

    #[test]
    fn lines_of_an_env_file() {
        let read = |text: &str| {
            env_lines(text).map(|all| all.into_iter().map(|(n, v)| format!("{n}={}", v.expose())).collect::<Vec<_>>())
        };
        assert_eq!(
            read("# a\n\nA=1\r\n  B_2=x = \"y\" \nC=\nA=2\n"),
            Ok(vec!["A=2".into(), "B_2=x = \"y\" ".into(), "C=".into()])
        );
        assert_eq!(read(""), Ok(vec![]));
        let faults = read("secret\n1A=secret\nexport A=secret\nHOROVOD_RANK=secret\nA=sec\0ret").unwrap_err();
        assert_eq!(faults.len(), 5, "{faults:?}");
        assert!(faults.iter().all(|fault| !fault.contains("secret")), "{faults:?}");
        assert!(faults[3].starts_with("line 4: ") && faults[3].contains("sets it for every rank"), "{faults:?}");
        assert!(read(&"A=1\n".repeat(20_000)).unwrap_err()[0].contains("64 KiB"));
    }
}
