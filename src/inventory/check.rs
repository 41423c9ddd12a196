//! What the single values of an inventory must look like. Each check gives the value or a hint why it is refused;
//! the constant next to it completes "expected …".

use super::reader::{Hint, NO_HINT};
use super::{Controller, Gpus, KeyType, Pull};
use std::net::{IpAddr, Ipv6Addr};
use std::path::{Path, PathBuf};

/// The outcome of a check.
pub(super) type Checked<T> = Result<T, Hint>;

/// An acceptance without conditions or a refusal without more to say.
fn only_if<T>(good: bool, value: T) -> Checked<T> {
    if good { Ok(value) } else { Err(NO_HINT) }
}

/// Refuses what is longer than `most` characters, and says how long it is.
pub(super) fn no_longer(text: &str, most: usize) -> Checked<()> {
    match text.chars().count() {
        length if length > most => Err(format!("it is {length} characters long").into()),
        _ => Ok(()),
    }
}

/// Refuses what would disturb a terminal or a line of text.
pub(super) fn control(text: &str) -> Checked<()> {
    match text.chars().any(char::is_control) {
        true => Err("it contains a control character".into()),
        false => Ok(()),
    }
}

pub(super) const NAME: &str = "1 to 63 letters, digits, `_`, `.` or `-`, the first a letter or digit";

/// The name of a cluster or of a container.
pub(super) fn name(text: &str) -> Checked<String> {
    no_longer(text, 63)?;
    let good = text.starts_with(|c: char| c.is_ascii_alphanumeric())
        && text.chars().all(|c| c.is_ascii_alphanumeric() || "_.-".contains(c));
    only_if(good, text.to_owned())
}

pub(super) const CONTAINER: &str = "a container's name: 2 to 63 letters, digits, `_`, `.` or `-`, \
    the first a letter or digit";

/// The name of a container, as Docker's engine takes it.
pub(super) fn container(text: &str) -> Checked<String> {
    only_if(text.len() > 1, ()).and_then(|()| name(text))
}

pub(super) const IMAGE: &str = "an image as Docker names it, like \"horovod/horovod:latest\"";

/// An image's reference: `[host[:port]/]path[:tag][@digest]`, or the id of an image.
pub(super) fn image(text: &str) -> Checked<String> {
    no_longer(text, 255 + 128 + 200)?;
    let (name, digest) = match text.split_once('@') {
        Some((name, digest)) => (name, Some(digest)),
        None => (text, None),
    };
    // A colon in front of a slash is a registry's port.
    let (name, tag) = match name.rsplit_once(':') {
        Some((name, tag)) if !tag.contains('/') => (name, Some(tag)),
        _ => (name, None),
    };
    let (registry, path) = match name.split_once('/') {
        Some((first, rest)) if is_registry(first) => (Some(first), rest),
        _ => (None, name),
    };
    let good = name.len() <= 255
        && registry.is_none_or(|registry| registry.chars().all(|c| c.is_ascii_alphanumeric() || ".-:[]".contains(c)))
        && path.split('/').all(is_path_component)
        && tag.is_none_or(is_tag)
        && digest.is_none_or(is_digest);
    let lower = path.chars().any(|c| c.is_ascii_uppercase());
    match good {
        true => Ok(text.to_owned()),
        false if lower => Err("its path is written in lower case".into()),
        false => Err(NO_HINT),
    }
}

/// Docker's own rule for telling a registry from the first part of a path.
fn is_registry(first: &str) -> bool {
    first.contains(['.', ':']) || first == "localhost" || first.chars().any(|c| c.is_ascii_uppercase())
}

/// `[a-z0-9]+` joined by `.`, `_`, `__` or any number of `-`.
fn is_path_component(part: &str) -> bool {
    let inner = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit();
    let separators = part.split(inner).filter(|separator| !separator.is_empty());
    part.starts_with(inner)
        && part.ends_with(inner)
        && separators.into_iter().all(|s| matches!(s, "." | "_" | "__") || s.chars().all(|c| c == '-'))
}

/// `[A-Za-z0-9_][A-Za-z0-9_.-]{0,127}`
fn is_tag(tag: &str) -> bool {
    let word = |c: char| c.is_ascii_alphanumeric() || c == '_';
    tag.len() <= 128 && tag.starts_with(word) && tag.chars().all(|c| word(c) || c == '.' || c == '-')
}

/// `sha256:` and hexadecimal digits.
fn is_digest(digest: &str) -> bool {
    digest.split_once(':').is_some_and(|(kind, hex)| {
        !kind.is_empty()
            && kind.chars().all(|c| c.is_ascii_alphanumeric() || "+._-".contains(c))
            && (32..=128).contains(&hex.len())
            && hex.chars().all(|c| c.is_ascii_hexdigit())
    })
}

pub(super) const FOLDER: &str = "an absolute path of a folder on the nodes, without `:`";

/// Folders that belong to the system or its users: their contents are not hvdctl's to set up and purge.
const FOREIGN: &[&str] = &[
    "/bin", "/boot", "/dev", "/etc", "/home", "/lib", "/lib64", "/media", "/mnt", "/opt", "/proc", "/root", "/run",
    "/sbin", "/srv", "/sys", "/tmp", "/usr", "/var",
];

/// A folder on the nodes: absolute, normalized, usable in Docker's `source:target`, and hvdctl's own.
pub(super) fn folder(text: &str) -> Checked<String> {
    no_longer(text, 1000)?;
    let Some(relative) = text.strip_prefix('/') else {
        return Err("it does not begin with `/`".into());
    };
    if text.contains(':') {
        return Err("Docker's mounts cannot hold a `:`".into());
    }
    control(text)?;
    if relative.is_empty() || FOREIGN.contains(&text) || text.ends_with("/.ssh") {
        return Err("hvdctl needs a folder of its own".into());
    }
    if relative.split('/').any(|part| matches!(part, "" | "." | "..")) {
        return Err("it must be written without `//`, `.`, `..` and a `/` at the end".into());
    }
    Ok(text.to_owned())
}

pub(super) const KEY_TYPE: &str = "\"rsa\" or \"ed25519\"";

/// The kind of the cluster's key pair.
pub(super) fn key_type(text: &str) -> Checked<KeyType> {
    match text {
        "rsa" => Ok(KeyType::Rsa),
        "ed25519" => Ok(KeyType::Ed25519),
        _ => Err(NO_HINT),
    }
}

pub(super) const CONTROLLER: &str = "\"gloo\" or \"mpi\"";

/// What starts and connects the ranks.
pub(super) fn controller(text: &str) -> Checked<Controller> {
    match text {
        "gloo" => Ok(Controller::Gloo),
        "mpi" => Ok(Controller::Mpi),
        _ => Err(NO_HINT),
    }
}

pub(super) const PULL: &str = "\"missing\", \"always\" or \"never\"";

/// When `up` gets the image from its registry.
pub(super) fn pull(text: &str) -> Checked<Pull> {
    match text {
        "missing" => Ok(Pull::Missing),
        "always" => Ok(Pull::Always),
        "never" => Ok(Pull::Never),
        _ => Err(NO_HINT),
    }
}

pub(super) const GPUS: &str =
    "a number of GPUs from 0 to 1024, \"auto\", \"all\", \"none\", or a list of indices and UUIDs";

/// The words for a node's GPUs.
pub(super) fn gpus(text: &str) -> Checked<Gpus> {
    match text {
        "auto" => Ok(Gpus::Auto),
        "all" => Ok(Gpus::All),
        "none" => Ok(Gpus::Count(0)),
        _ => Err(NO_HINT),
    }
}

pub(super) const GPU: &str = "an index from 0 to 1023 or a UUID as `nvidia-smi -L` shows it";

/// One GPU: its index in as few digits as it has, or its UUID.
pub(super) fn gpu(text: &str) -> Checked<String> {
    let index = text.parse::<u32>().is_ok_and(|index| index < 1024 && index.to_string() == text);
    let uuid = text
        .strip_prefix("GPU-")
        .is_some_and(|id| (1..=60).contains(&id.len()) && id.chars().all(|c| c.is_ascii_hexdigit() || c == '-'));
    only_if(index || uuid, text.to_owned())
}

pub(super) const SIZE: &str = "a size of at least 64k, like \"512m\", \"8g\" or a number of bytes";

/// The least `/dev/shm`: less is a unit forgotten. The most that Docker's engine takes.
const SIZES: std::ops::RangeInclusive<u64> = 64 << 10..=i64::MAX as u64;

/// A number of bytes that makes sense for `/dev/shm`.
pub(super) fn size(bytes: Option<u64>) -> Checked<u64> {
    bytes.filter(|bytes| SIZES.contains(bytes)).ok_or(NO_HINT)
}

/// The bytes of a size of at least 64k as the inventory writes it: `8g`. None where it is none.
pub fn parse_size(text: &str) -> Option<u64> {
    size_text(text).ok()
}

/// `8g`: a whole number and `k`, `m`, `g` or `t`, in powers of 1024, in either case; also `gb` and `gib`.
pub(super) fn size_text(text: &str) -> Checked<u64> {
    let lower = text.to_ascii_lowercase();
    let digits = lower.trim_end_matches(|c: char| c.is_ascii_alphabetic());
    let shift = match &lower[digits.len()..] {
        "" | "b" => 0,
        "k" | "kb" | "kib" => 10,
        "m" | "mb" | "mib" => 20,
        "g" | "gb" | "gib" => 30,
        "t" | "tb" | "tib" => 40,
        _ => return Err(NO_HINT),
    };
    only_if(digits.chars().all(|c| c.is_ascii_digit()), ())?;
    size(digits.parse::<u64>().ok().and_then(|number| number.checked_mul(1 << shift)))
}

pub(super) const HOST: &str = "what ssh is given: an alias, a name or an address";

/// A machine as the ssh client takes it.
pub(super) fn host(text: &str) -> Checked<String> {
    no_longer(text, 253)?;
    if text.contains("://") {
        return Err("it is not written as a URL".into());
    }
    if text.contains('@') {
        return Err("the user goes into `user`".into());
    }
    if text.contains(['[', ']']) {
        return Err("an IPv6 address is written without brackets here, and the port goes into `ssh_port`".into());
    }
    let good = !text.is_empty()
        && !text.starts_with(['-', '.', '%'])
        && text.chars().all(|c| c.is_ascii_alphanumeric() || "._:%-".contains(c));
    if !good {
        return Err(NO_HINT);
    }
    let address = text.split_once('%').map_or(text, |(address, _zone)| address);
    match text.contains(':') && address.parse::<Ipv6Addr>().is_err() {
        true => Err("with `:` it would have to be an IPv6 address; a port goes into `ssh_port`".into()),
        false => Ok(text.to_owned()),
    }
}

pub(super) const JUMP: &str =
    "the hosts to jump over as `ssh -J` takes them, like \"ana@gate:2222\" or \"gate,inner\", or \"none\"";

/// The hosts on the way to a node: `[user@]host[:port]`, joined by commas.
pub(super) fn jump(text: &str) -> Checked<String> {
    no_longer(text, 1000)?;
    if text.chars().any(char::is_whitespace) {
        return Err("it is written without spaces".into());
    }
    for hop in text.split(',') {
        let (login, machine) = hop.rsplit_once('@').map_or((None, hop), |(login, machine)| (Some(login), machine));
        let (machine, port) = match machine.strip_prefix('[').and_then(|rest| rest.split_once(']')) {
            Some((address, "")) => (address, None),
            // without the colon it is no port, and "" is none either
            Some((address, rest)) => (address, Some(rest.strip_prefix(':').unwrap_or(""))),
            None => match machine.split_once(':') {
                Some((_, port)) if port.contains(':') => {
                    return Err("an IPv6 address is written in brackets here, like [fd00::1]:22".into());
                }
                Some((machine, port)) => (machine, Some(port)),
                None => (machine, None),
            },
        };
        host(machine)?;
        login.map_or(Ok(()), |login| user(login).map(|_| ()))?;
        only_if(port.is_none_or(|port| port.parse::<u16>().is_ok_and(|port| port > 0)), ())?;
    }
    Ok(text.to_owned())
}

pub(super) const NODE_NAME: &str = "1 to 253 letters, digits, `_`, `.`, `:`, `%` or `-`, the first no `-` or `.`";

/// The name of a node: it must be possible to name it in `--on` and to use it in a file's name.
pub(super) fn node_name(text: &str) -> Checked<String> {
    no_longer(text, 253)?;
    let good = !text.starts_with(['-', '.']) && text.chars().all(|c| c.is_alphanumeric() || "_.:%-".contains(c));
    only_if(good && !text.is_empty(), text.to_owned())
}

pub(super) const USER: &str = "a user's name: letters, digits, `.`, `_`, `@`, `+`, `\\` or `-`, the first no `-`";

/// The user to log in as, also of a domain.
pub(super) fn user(text: &str) -> Checked<String> {
    no_longer(text, 255)?;
    let good = !text.starts_with('-')
        && text.chars().all(|c| c.is_alphanumeric() || matches!(c, '.' | '_' | '@' | '+' | '\\' | '-'));
    only_if(good && !text.is_empty(), text.to_owned())
}

pub(super) const ADDRESS: &str = "an IPv4 or IPv6 address that other machines can reach";

/// The node's address on the cluster's network.
pub(super) fn address(text: &str) -> Checked<IpAddr> {
    let address: IpAddr = text.parse().map_err(|_| NO_HINT)?;
    only_if(!address.is_unspecified() && !address.is_multicast(), address)
}

pub(super) const INTERFACE: &str = "a network interface like \"eth0\": 1 to 15 letters, digits, \
    `.`, `_`, `@`, `:` or `-`, the first no `-`";

/// A network interface as Linux names them.
pub(super) fn interface(text: &str) -> Checked<String> {
    no_longer(text, 15)?;
    let good = !text.starts_with('-') && text.chars().all(|c| c.is_ascii_alphanumeric() || "._@:-".contains(c));
    only_if(good && !matches!(text, "" | "." | ".."), text.to_owned())
}

pub(super) const FILE: &str = "the path of a file on this machine";

/// A file of the operator's machine: `~/` is `home`, a relative path starts from `base`.
pub(super) fn file(text: &str, base: &Path, home: Option<&Path>) -> Checked<PathBuf> {
    no_longer(text, 1000)?;
    if text.is_empty() {
        return Err(NO_HINT);
    }
    control(text)?;
    if text.ends_with('/') {
        return Err("that is a folder".into());
    }
    match (text.strip_prefix('~'), home) {
        (None, _) => Ok(base.join(text)),
        (Some(rest), Some(home)) if rest.starts_with('/') => Ok(home.join(rest.trim_start_matches('/'))),
        (Some(rest), None) if rest.starts_with('/') => Err("$HOME is not set".into()),
        (Some(_), _) => Err("only `~/` is understood".into()),
    }
}
