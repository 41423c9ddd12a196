//! What the single values of an inventory must look like.

use super::reader::{Checked, NO_HINT};
use regex::Regex;
use std::net::{IpAddr, Ipv6Addr};
use std::path::Path;
use std::sync::LazyLock;
use toml::de::DeValue;

/// What a string must look like.
pub(super) struct Rule {
    /// Completes "expected …".
    pub(super) expected: &'static str,
    /// The most characters.
    pub(super) longest: usize,
    /// A regular expression, which the JSON Schema has, too.
    pub(super) pattern: &'static str,
    regex: LazyLock<Regex>,
    /// Refuses what the pattern cannot, or what deserves a hint.
    refuse: fn(&str) -> Checked<()>,
}

impl Rule {
    /// Returns a hint why the text is refused, which may be empty.
    pub(super) fn check(&self, text: &str) -> Checked<()> {
        no_longer(text, self.longest)?;
        (self.refuse)(text)?;
        if self.regex.is_match(text) { Ok(()) } else { Err(NO_HINT) }
    }
}

macro_rules! rules {
    ($($(#[$doc:meta])* $name:ident: $expected:expr, $longest:expr, $pattern:expr, $refuse:expr;)*) => {$(
        $(#[$doc])*
        pub(super) static $name: Rule = Rule {
            expected: $expected,
            longest: $longest,
            pattern: $pattern,
            regex: LazyLock::new(|| Regex::new($pattern).expect("a regular expression")),
            refuse: $refuse,
        };
    )*};
}

rules! {
    /// The name of a cluster or of a group.
    NAME: "1 to 63 letters, digits, `_`, `.` or `-`, the first a letter or digit", 63,
        "^[A-Za-z0-9][A-Za-z0-9_.-]*$", |_| Ok(());

    /// The name of a container, as the Docker Engine takes it.
    CONTAINER: "a container's name: 2 to 63 letters, digits, `_`, `.` or `-`, the first a letter or digit", 63,
        "^[A-Za-z0-9][A-Za-z0-9_.-]+$", |_| Ok(());

    /// An image's reference, `[host[:port]/]path[:tag][@digest]`, or the id of an image.
    IMAGE: "an image as Docker names it, like \"horovod/horovod:latest\"", 255 + 128 + 200,
        "^(?:localhost/|[A-Za-z0-9.:\\[\\]-]*[A-Z.:][A-Za-z0-9.:\\[\\]-]*/)?\
         [a-z0-9]+(?:(?:\\.|__?|-+)[a-z0-9]+)*(?:/[a-z0-9]+(?:(?:\\.|__?|-+)[a-z0-9]+)*)*\
         (?::[A-Za-z0-9_][A-Za-z0-9_.-]{0,127})?(?:@[A-Za-z0-9+._-]+:[A-Fa-f0-9]{32,128})?$", upper_case;

    /// A directory on the nodes: absolute, normalized, usable in Docker's `source:target`, and hvdctl's own.
    DIRECTORY: "an absolute path of a directory on the nodes, without `:`", 1000,
        r"^(?:/[^/:\x00-\x1f\x7f-\x9f]+)+$", directory;

    /// A machine as the ssh client takes it.
    HOST: "what ssh is given: an alias, a name or an address", 253, "^[A-Za-z0-9_:][A-Za-z0-9._:%-]*$", host;

    /// The jump hosts to a node: `[user@]host[:port]`, joined by commas.
    JUMP: "the hosts to jump over as `ssh -J` takes them, like \"ana@gate:2222\" or \"gate,inner\", or \"none\"", 1000,
        "^[^ ,\"-][^ ,\"]*(?:,[^ ,\"-][^ ,\"]*)*$", jump;

    /// The name of a node: it must be possible to name it in `--on` and to use it in a file's name.
    NODE_NAME: "1 to 253 letters, digits, `_`, `.`, `:`, `%` or `-`, the first no `-` or `.`", 253,
        r"^[\p{Alphabetic}\p{N}_:%][\p{Alphabetic}\p{N}_.:%-]*$", |_| Ok(());

    /// The user to log in as, also of a domain.
    USER: "a user's name: letters, digits, `.`, `_`, `@`, `+`, `\\` or `-`, the first no `-`", 255,
        r"^[\p{Alphabetic}\p{N}._@+\\][\p{Alphabetic}\p{N}._@+\\-]*$", |_| Ok(());

    /// The node's address on the cluster's network.
    ADDRESS: "an IPv4 or IPv6 address that other machines can reach", 45, "^[0-9A-Fa-f:.]+$", address;

    /// A network interface as Linux names them.
    INTERFACE: "a network interface like \"eth0\": 1 to 15 letters, digits, `.`, `_`, `@`, `:` or `-`, the first no `-`", 15,
        "^[A-Za-z0-9._@:][A-Za-z0-9._@:-]*$", |text| if matches!(text, "." | "..") { Err(NO_HINT) } else { Ok(()) };

    /// One GPU: its index in as few digits as it has, or its UUID.
    GPU_ID: GPU, 64, "^(?:[0-9]|[1-9][0-9]{1,2}|10[01][0-9]|102[0-3]|GPU-[0-9A-Fa-f-]{1,60})$", |_| Ok(());

    /// A file of the operator's machine.
    FILE: "the path of a file on this machine", 1000,
        r"^[^\x00-\x1f\x7f-\x9f]*[^/\x00-\x1f\x7f-\x9f]$", operators_file;
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

/// An integer of the file; the inner `None` is one below 0 or above `u64`. The outer is another type.
pub(super) fn integer(value: &DeValue<'_>) -> Option<Option<u64>> {
    let integer = value.as_integer()?;
    Some(u64::from_str_radix(integer.as_str(), integer.radix()).ok())
}

/// The number, if it is in the range.
pub(super) fn within(number: Option<u64>, least: u64, most: u64) -> Checked<u64> {
    number.filter(|number| (least..=most).contains(number)).ok_or(NO_HINT)
}

fn upper_case(image: &str) -> Checked<()> {
    let fits = |text: &str| IMAGE.regex.is_match(text);
    match !fits(image) && fits(&image.to_ascii_lowercase()) {
        true => Err("its path is written in lower case".into()),
        false => Ok(()),
    }
}

/// Directories that belong to the system or its users: their contents are not hvdctl's to set up and purge.
const FOREIGN: &[&str] = &[
    "/bin", "/boot", "/dev", "/etc", "/home", "/lib", "/lib64", "/media", "/mnt", "/opt", "/proc", "/root", "/run",
    "/sbin", "/srv", "/sys", "/tmp", "/usr", "/var",
];

fn directory(text: &str) -> Checked<()> {
    let Some(relative) = text.strip_prefix('/') else {
        return Err("it does not begin with `/`".into());
    };
    if text.contains(':') {
        return Err("Docker's mounts cannot hold a `:`".into());
    }
    control(text)?;
    if relative.is_empty() || FOREIGN.contains(&text) || text.ends_with("/.ssh") {
        return Err("hvdctl needs a directory of its own".into());
    }
    if relative.split('/').any(|part| matches!(part, "" | "." | "..")) {
        return Err("it must be written without `//`, `.`, `..` and a `/` at the end".into());
    }
    Ok(())
}

pub(super) const GPUS: &str =
    "a number of GPUs from 0 to 1024, \"auto\", \"all\", \"none\", or a list of indices and UUIDs";

pub(super) const GPU: &str = "an index from 0 to 1023 or a UUID as `nvidia-smi -L` shows it";

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
    if !digits.chars().all(|c| c.is_ascii_digit()) {
        return Err(NO_HINT);
    }
    size(digits.parse::<u64>().ok().and_then(|number| number.checked_mul(1 << shift)))
}

fn host(text: &str) -> Checked<()> {
    if text.contains("://") {
        return Err("it is not written as a URL".into());
    }
    if text.contains('@') {
        return Err("the user goes into `user`".into());
    }
    if text.contains(['[', ']']) {
        return Err("an IPv6 address is written without brackets here, and the port goes into `ssh_port`".into());
    }
    let address = text.split_once('%').map_or(text, |(address, _zone)| address);
    match text.contains(':') && address.parse::<Ipv6Addr>().is_err() {
        true => Err("with `:` it would have to be an IPv6 address; a port goes into `ssh_port`".into()),
        false => Ok(()),
    }
}

fn jump(text: &str) -> Checked<()> {
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
        HOST.check(machine)?;
        login.map_or(Ok(()), |login| USER.check(login))?;
        if port.is_some_and(|port| !port.parse::<u16>().is_ok_and(|port| port > 0)) {
            return Err(NO_HINT);
        }
    }
    Ok(())
}

fn address(text: &str) -> Checked<()> {
    let address: IpAddr = text.parse().map_err(|_| NO_HINT)?;
    if address.is_unspecified() || address.is_multicast() { Err(NO_HINT) } else { Ok(()) }
}

fn operators_file(text: &str) -> Checked<()> {
    control(text)?;
    if text.ends_with('/') {
        return Err("that is a directory".into());
    }
    match text.strip_prefix('~') {
        Some(rest) if !rest.starts_with('/') => Err("only `~/` is understood".into()),
        _ => Ok(()),
    }
}

/// A file of the operator's machine, where `~/` is `home`.
pub(super) fn file(text: &str, home: Option<&Path>) -> Checked<()> {
    FILE.check(text)?;
    if text.starts_with('~') && home.is_none() { Err("$HOME is not set".into()) } else { Ok(()) }
}
