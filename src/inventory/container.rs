//! What a node's containers have beside the image: mounts, devices, limits; and the environment of the ranks in them.

use super::check::{self, control};
use super::reader::{Checked, FieldReader, NO_HINT};
use crate::paths::{CONTAINER_SSH, WORKSPACE};
use crate::secret::Secret;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use std::collections::{BTreeMap, HashSet};
use std::path::Path;
use toml::Spanned;
use toml::de::{DeValue, ValueDeserializer};

/// More bytes of environment than this are no environment.
const LARGEST_ENV: usize = 64 << 10;

/// The limits that Docker knows by name.
macro_rules! limits {
    () => {
        "core, cpu, data, fsize, locks, memlock, msgqueue, nice, nofile, nproc, rss, rtprio, rttime, sigpending, stack"
    };
}

/// How the names of variables begin that set a rank apart from the others; the launcher gives them to each.
const PER_RANK: &str = "HVDCTL_ HOROVOD_RANK HOROVOD_SIZE HOROVOD_LOCAL_ HOROVOD_CROSS_ HOROVOD_HOSTNAME \
    HOROVOD_CONTROLLER HOROVOD_GLOO_RENDEZVOUS_ OMPI_COMM_WORLD_ PMI_ PMIX_RANK";

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
pub struct Ulimit {
    /// What holds until a process changes it.
    pub soft: i64,
    /// As far as it may.
    pub hard: i64,
}

/// Refuses an entry of a list that is there twice.
fn once(taken: &mut HashSet<String>, name: &str, entry: Value) -> Checked<Value> {
    if taken.insert(name.to_owned()) { Ok(entry) } else { Err(format!("{name} is there already").into()) }
}

/// Reads the entries of a list of GPUs.
pub(super) fn gpu() -> impl FnMut(&DeValue<'_>) -> Option<Checked<Value>> {
    let mut taken = HashSet::new();
    move |value| {
        let gpu = match value {
            DeValue::String(text) => text.to_string(),
            value => check::integer(value)?.map_or_else(String::new, |index| index.to_string()),
        };
        let checked = check::GPU_ID.check(&gpu);
        Some(checked.and_then(|()| match taken.insert(gpu.clone()) {
            true => Ok(gpu.into()),
            false => Err("it is there already".into()),
        }))
    }
}

/// Reads the entries of a list of mounts.
pub(super) fn mount(jobs_dir: &str) -> impl FnMut(&DeValue<'_>) -> Option<Checked<Value>> {
    let mut taken = HashSet::new();
    move |value| {
        let mount = match value {
            DeValue::String(text) => mount_text(text),
            DeValue::Table(_) => mount_table(value),
            _ => return None,
        };
        Some(mount.and_then(|mount| {
            own_target(&mount.target, jobs_dir)?;
            once(&mut taken, &mount.target, json!(mount))
        }))
    }
}

/// Reads the entries of a list of devices.
pub(super) fn device() -> impl FnMut(&DeValue<'_>) -> Option<Checked<Value>> {
    let mut taken = HashSet::new();
    move |value| match value {
        DeValue::String(text) => {
            Some(device_text(text).and_then(|device| once(&mut taken, &device.target, json!(device))))
        }
        _ => None,
    }
}

/// Reads the ranks' environment.
pub(super) fn env(expected: &str, value: &Spanned<DeValue<'_>>, reader: &mut FieldReader<'_, '_>) -> Option<Value> {
    let env = reader.entries(ENV_NAME, expected, value, env_name, env_value);
    let entries = env.iter().filter_map(Value::as_object).flatten();
    let bytes: usize = entries.map(|(name, value)| name.len() + value.as_str().map_or(0, str::len)).sum();
    if bytes > LARGEST_ENV {
        let message = format!("expected at most {} KiB, found {} KiB", LARGEST_ENV >> 10, bytes >> 10);
        reader.fault(value.span(), &message);
    }
    env
}

pub(super) const MOUNT: &str =
    "a mount like \"/data:/data:ro\" or { source = \"/data\", target = \"/data\", read_only = true }";

/// `SRC:DST`, with `:ro` or `:rw` behind it.
fn mount_text(text: &str) -> Checked<Mount> {
    let (source, target, mode) = match text.split(':').collect::<Vec<_>>()[..] {
        [source, target] => (source, target, "rw"),
        [source, target, mode] => (source, target, mode),
        _ => return Err(NO_HINT),
    };
    match mode {
        "ro" | "rw" => Ok(Mount { source: path(source)?, target: path(target)?, read_only: mode == "ro" }),
        _ => Err("the third part is `ro` or `rw`".into()),
    }
}

/// The same as a table, in which a path may have a `:`.
fn mount_table(value: &DeValue<'_>) -> Checked<Mount> {
    let table = ValueDeserializer::from(Spanned::new(0..0, value.clone()));
    let mount = Mount::deserialize(table).map_err(|error| error.message().to_owned())?;
    path(&mount.source)?;
    path(&mount.target)?;
    Ok(mount)
}

/// An absolute path in its shortest form.
fn path(text: &str) -> Checked<String> {
    check::no_longer(text, 1000)?;
    control(text)?;
    let Some(relative) = text.strip_prefix('/') else {
        return Err("its paths are absolute".into());
    };
    if !relative.is_empty() && relative.split('/').any(|part| matches!(part, "" | "." | "..")) {
        return Err("paths are written without `//`, `.`, `..` and a `/` at the end".into());
    }
    Ok(text.to_owned())
}

/// Refuses a place in the container that hvdctl or the image needs.
fn own_target(target: &str, jobs_dir: &str) -> Checked<()> {
    let below = |directory: &str| Path::new(target).starts_with(directory);
    if target == "/" {
        return Err("that would hide the image".into());
    }
    match target == WORKSPACE || below(CONTAINER_SSH) || below(jobs_dir) {
        true => Err(format!("{target} in the container is hvdctl's own").into()),
        false => Ok(()),
    }
}

pub(super) const DEVICE: &str = "a device like \"/dev/infiniband\" or \"/dev/fuse:/dev/fuse:rwm\"";

/// `/dev/x`, with a path in the container and permissions behind it.
fn device_text(text: &str) -> Checked<Device> {
    let (source, target, permissions) = match text.split(':').collect::<Vec<_>>()[..] {
        [source] => (source, source, "rwm"),
        // Docker takes it so, too
        [source, permissions] if !permissions.starts_with('/') => (source, source, permissions),
        [source, target] => (source, target, "rwm"),
        [source, target, permissions] => (source, target, permissions),
        _ => return Err(NO_HINT),
    };
    if !source.starts_with("/dev/") {
        return Err("a device lies below /dev".into());
    }
    let mut letters: Vec<char> = permissions.chars().collect();
    letters.sort_unstable();
    letters.dedup();
    if letters.is_empty() || letters.len() < permissions.len() || letters.iter().any(|c| !"rwm".contains(*c)) {
        return Err("permissions are some of `rwm`".into());
    }
    Ok(Device { source: path(source)?, target: path(target)?, permissions: permissions.to_owned() })
}

pub(super) const LIMIT_NAME: &str = concat!("the name of a limit (", limits!(), ")");
pub(super) const LIMIT: &str = "a number, -1 for no limit, or { soft = 1024, hard = 4096 }";

/// The names of the limits.
pub(super) fn limits() -> impl Iterator<Item = &'static str> {
    limits!().split(", ")
}

pub(super) fn limit_name(name: &str) -> Checked<()> {
    if limits().any(|limit| limit == name) { Ok(()) } else { Err(NO_HINT) }
}

pub(super) fn ulimit(value: &DeValue<'_>) -> Option<Checked<Value>> {
    let number = |value: &DeValue<'_>| {
        let integer = value.as_integer()?;
        Some(i64::from_str_radix(integer.as_str(), integer.radix()).ok().filter(|n| *n >= -1).ok_or(NO_HINT))
    };
    let limits = |soft, hard| json!(Ulimit { soft, hard });
    let DeValue::Table(table) = value else {
        return number(value).map(|limit| limit.map(|limit| limits(limit, limit)));
    };
    let part = |name: &str| table.get(name).and_then(|value| number(value.get_ref()));
    Some(match (part("soft"), part("hard"), table.len()) {
        (Some(Ok(soft)), Some(Ok(hard)), 2) if hard == -1 || (soft != -1 && soft <= hard) => Ok(limits(soft, hard)),
        (Some(Ok(_)), Some(Ok(_)), 2) => Err("`soft` is larger than `hard`".into()),
        _ => Err("it needs the numbers `soft` and `hard`".into()),
    })
}

const ENV_NAME: &str = "the name of a variable: letters, digits and `_`, the first no digit";
pub(super) const ENV_VALUE: &str = "a string or a whole number";

/// The name of a variable that may be given to all ranks.
fn env_name(name: &str) -> Checked<()> {
    let good = !name.is_empty()
        && !name.starts_with(|c: char| c.is_ascii_digit())
        && name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_');
    if !good {
        return Err(NO_HINT);
    }
    match PER_RANK.split(' ').any(|start| name.starts_with(start)) {
        true => Err("every rank gets its own from hvdctl or the launcher".into()),
        false => Ok(()),
    }
}

/// Whether a variable of this name may be given to all ranks.
///
/// # Errors
/// Why not, in words.
pub fn variable_name(name: &str) -> Result<(), String> {
    env_name(name).map_err(|hint| match hint.is_empty() {
        true => format!("expected {ENV_NAME}, found {name:?}"),
        false => format!("{name}: {hint}"),
    })
}

fn env_value(value: &DeValue<'_>) -> Option<Checked<Value>> {
    match value {
        DeValue::String(text) if text.contains('\0') => Some(Err("it contains a NUL".into())),
        DeValue::String(text) => Some(Ok(json!(text))),
        value => {
            let integer = value.as_integer()?;
            let number = i64::from_str_radix(integer.as_str(), integer.radix());
            Some(number.map(|number| number.to_string().into()).map_err(|_| NO_HINT))
        }
    }
}

/// Reads the text of an `env_file`: `NAME=VALUE` lines as Docker reads them, the value being all behind the first `=`;
/// empty lines and those that begin with `#` say nothing. A name that is there twice has its last value.
///
/// # Errors
/// What is wrong, a sentence with its line each; never a value, which may be secret.
pub fn env_lines(text: &str) -> Result<BTreeMap<String, Secret>, Vec<String>> {
    let text = super::fault::without_mark(text);
    if text.len() > LARGEST_ENV {
        return Err(vec![format!("expected at most {} KiB, found {} KiB", LARGEST_ENV >> 10, text.len() >> 10)]);
    }
    let (mut variables, mut faults) = (BTreeMap::new(), Vec::new());
    for (index, line) in text.lines().enumerate() {
        let line = line.trim_start();
        if line.is_empty() || line.starts_with('#') {
            continue;
        }
        let refused = |why: &str| format!("line {}: {why}", index + 1);
        match line.split_once('=') {
            None => faults.push(refused("expected NAME=VALUE")),
            Some((_, value)) if value.contains('\0') => faults.push(refused("the value contains a NUL")),
            Some((name, value)) => match env_name(name) {
                Ok(()) => {
                    variables.insert(name.to_owned(), Secret::plain(value));
                }
                Err(hint) if hint.is_empty() => faults.push(refused(&format!("expected {ENV_NAME}"))),
                Err(hint) => faults.push(refused(&format!("{name}: {hint}"))),
            },
        }
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
        assert!(faults[3].starts_with("line 4: HOROVOD_RANK: every rank gets its own"), "{faults:?}");
        assert!(read(&"A=1\n".repeat(20_000)).unwrap_err()[0].contains("64 KiB"));
    }
}
