//! Rules for the values of single fields.

use crate::model::launcher::is_reserved;
use crate::model::mesh::{AddressRange, PRIVATE};
use crate::text::nodeset::expand;
use crate::text::public_key;
use regex::{Captures, Regex};
use std::net::{IpAddr, Ipv6Addr};
use std::sync::LazyLock;

/// The outcome of a check; an error says what is wrong beside "expected …", and may be empty.
pub(super) type Checked<T> = Result<T, String>;

/// The form of a string.
pub struct Rule {
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
    /// Returns the groups of the pattern in a text that follows the rule.
    pub(super) fn captures<'t>(&self, text: &'t str) -> Checked<Captures<'t>> {
        let length = text.chars().count();
        refuse_if(length > self.longest, format!("it is {length} characters long"))?;
        (self.refuse)(text)?;
        self.regex.captures(text).ok_or_else(String::new)
    }

    pub(super) fn check(&self, text: &str) -> Checked<()> {
        self.captures(text).map(|_| ())
    }

    /// Checks a text that comes from elsewhere than the file, and returns it.
    ///
    /// # Errors
    /// A text that says what was expected.
    pub fn read(&self, text: &str) -> Result<String, String> {
        self.check(text).map_err(|hint| format!("expected {}{}{hint}", self.expected, separator(&hint)))?;
        Ok(text.to_owned())
    }
}

pub(super) fn refuse_if(is_wrong: bool, hint: impl Into<String>) -> Checked<()> {
    if is_wrong { Err(hint.into()) } else { Ok(()) }
}

/// Returns the separator between a message and a hint that may be empty.
pub(super) fn separator(hint: &str) -> &'static str {
    if hint.is_empty() { "" } else { "; " }
}

macro_rules! rules {
    ($($(#[$doc:meta])* $visibility:vis $name:ident: $expected:expr, $longest:expr, $pattern:expr, $refuse:expr;)*) => {$(
        $(#[$doc])*
        $visibility static $name: Rule = Rule {
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
    pub NAME: "1 to 63 letters, digits, `_`, `.` or `-`, the first a letter or digit", 63,
        "^[A-Za-z0-9][A-Za-z0-9_.-]*$", |_| Ok(());

    /// The name of a container, as the Docker Engine takes it.
    pub(super) CONTAINER: "a container's name: 2 to 63 letters, digits, `_`, `.` or `-`, the first a letter or \
        digit", 63,
        "^[A-Za-z0-9][A-Za-z0-9_.-]+$", |_| Ok(());

    /// An image's reference, `[host[:port]/]path[:tag][@digest]`, or the id of an image.
    pub IMAGE: "an image as Docker names it, its path in lower case, like \"horovod/horovod:latest\"", 255 + 128 + 200,
        "^(?:localhost/|[A-Za-z0-9.:\\[\\]-]*[A-Z.:][A-Za-z0-9.:\\[\\]-]*/)?\
         [a-z0-9]+(?:(?:\\.|__?|-+)[a-z0-9]+)*(?:/[a-z0-9]+(?:(?:\\.|__?|-+)[a-z0-9]+)*)*\
         (?::[A-Za-z0-9_][A-Za-z0-9_.-]{0,127})?(?:@[A-Za-z0-9+._-]+:[A-Fa-f0-9]{32,128})?$", registry;

    /// A directory on the nodes: absolute, normalized, usable in Docker's `source:target`, and hvdctl's own.
    pub(super) DIRECTORY: "an absolute path of a directory on the nodes, without `:`", 1000,
        r"^(?:/[^/:\x00-\x1f\x7f-\x9f]+)+$", directory;

    /// A directory whose path is also part of command lines and of the paths of sockets.
    pub(super) STATE_DIR: "an absolute path of a directory on the nodes, of letters, digits, `_`, `.`, `@`, `+`, `-` and \
        `/`", 60,
        "^(?:/[A-Za-z0-9_.@+-]+)+$", directory;

    /// A line that a shell runs.
    pub LINE: "a line of bash", 4096, r"^[^\x00-\x08\x0a-\x1f\x7f]*\S[^\x00-\x08\x0a-\x1f\x7f]*$", |_| Ok(());

    /// A machine as the ssh client takes it.
    pub HOST: "a host as for ssh: an alias, a name or an address", 253, "^[A-Za-z0-9_:][A-Za-z0-9._:%-]*$", host;

    /// The jump hosts to a node: `[user@]host[:port]`, joined by commas.
    pub(super) JUMP: "jump hosts as `ssh -J` takes them, like \"ana@gate:2222\" or \"gate,[fd00::1]:22\", or \
        \"none\"", 1000,
        "^[^ ,\"-][^ ,\"]*(?:,[^ ,\"-][^ ,\"]*)*$", |text| text.split(',').try_for_each(|hop| HOP.check(hop));

    /// A machine as one argument of ssh, with a user and a port.
    pub(super) DESTINATION: "a machine as [user@]host[:port], like \"ana@gate:2222\" or \"[fd00::1]:22\"", 600,
        r"^(?:[\p{Alphabetic}\p{N}._@+\\][\p{Alphabetic}\p{N}._@+\\-]*@)?(?:[A-Za-z0-9_][A-Za-z0-9._-]*|\[[A-Fa-f0-9:.]+\])(?::[1-9][0-9]{0,4})?$",
        |text| destination(text).map(|_| ());

    /// A value for an option of sbatch.
    pub(super) SLURM: "a value as sbatch takes it, without spaces", 1000, r"^[^\s\x00-\x1f\x7f-\x9f]+$", |_| Ok(());

    /// An option of sbatch.
    pub(super) SLURM_OPTION: "an option of sbatch, like \"--exclude=node3\"", 1000,
        r"^-[^\x00-\x1f\x7f-\x9f]+$", |_| Ok(());

    /// The directory of a pool.
    pub(super) POOL_DIRECTORY: "an absolute path of a directory", 1000, r"^(?:/[^/\x00-\x1f\x7f-\x9f]+)+$", directory;

    /// The name of a pool's member, as a principal of OpenSSH's allowed signers.
    pub OWNER: "a name in the file of allowed signers, like \"ana@example.com\": letters, digits, `@`, `.`, `_`, `+` \
                or `-`, the first a letter or digit", 128, "^[A-Za-z0-9][A-Za-z0-9@._+-]*$", |_| Ok(());

    /// The public host key of a machine, without a comment.
    pub HOST_KEY: "a public key as in /etc/ssh/ssh_host_ed25519_key.pub, without its comment: ssh-ed25519, ssh-rsa or \
                   ecdsa-sha2-nistp256 (-nistp384, -nistp521), a space, and base64", 1500,
        "^(?:ssh-ed25519|ssh-rsa|ecdsa-sha2-nistp(?:256|384|521)) [A-Za-z0-9+/]{40,}={0,2}$",
        |text| refuse_if(!public_key::is_of_its_type(text), "the base64 is not that of a key of this type");

    /// One jump host.
    HOP: "a jump host", 1000,
        r"^(?:[\p{Alphabetic}\p{N}._@+\\][\p{Alphabetic}\p{N}._@+\\-]*@)?(?:[A-Za-z0-9_][A-Za-z0-9._-]*|\[[A-Fa-f0-9:.]+\])(?::[1-9][0-9]{0,4})?$",
        |_| Ok(());

    /// The name of a node: it must be possible to name it in `--on` and to use it in a file's name.
    pub NODE_NAME: "1 to 253 letters, digits, `_`, `.`, `:`, `%` or `-`, the first not `-` or `.`", 253,
        r"^[\p{Alphabetic}\p{N}_:%][\p{Alphabetic}\p{N}_.:%-]*$", |_| Ok(());

    /// The user to log in as, also of a domain.
    pub USER: "a user's name: letters, digits, `.`, `_`, `@`, `+`, `\\` or `-`, the first not `-`", 255,
        r"^[\p{Alphabetic}\p{N}._@+\\][\p{Alphabetic}\p{N}._@+\\-]*$", |_| Ok(());

    /// The node's address on the cluster's network.
    pub(super) ADDRESS: "an IPv4 or IPv6 address that other machines can reach", 45, "^[0-9A-Fa-f:.]+$", address;

    /// A network interface as Linux names them.
    pub(super) INTERFACE: "a network interface like \"eth0\": 1 to 15 letters, digits, `.`, `_`, `@`, `:` or `-`", 15,
        "^[A-Za-z0-9_@:][A-Za-z0-9._@:-]*$", |_| Ok(());

    /// The range of the encrypted network.
    pub(super) NETWORK_RANGE: "a range of private IPv4 addresses like \"10.90.0.0/16\", of 8 to 65536 addresses", 18,
        "^[0-9.]+/(?:1[6-9]|2[0-9])$", network_range;

    /// The interface of the encrypted network. All begin alike, so that a node's other interfaces are safe, and agents
    /// know the addresses of all such networks.
    pub(super) NETWORK_INTERFACE: "hmesh, or a name that begins so, of at most 15 lower-case letters, digits, `_` and `-`", 15,
        "^hmesh[a-z0-9_-]*$", |_| Ok(());

    /// Where a node is reached on the port of the encrypted network.
    pub ENDPOINT: "a host and a UDP port, like \"gpu.example.org:51820\", \"203.0.113.5\" or \"[fd00::1]:51820\"",
        260, r"^(?:[A-Za-z0-9_][A-Za-z0-9._-]*|\[[A-Fa-f0-9:.]+\])(?::[1-9][0-9]{0,4})?$",
        |text| destination(text).map(|_| ());

    /// One GPU: its index in as few digits as it has, or its UUID.
    pub GPU: "an index from 0 to 1023 or a UUID as `nvidia-smi -L` shows it", 64,
        "^(?:[0-9]|[1-9][0-9]{1,2}|10[01][0-9]|102[0-3]|GPU-[0-9A-Fa-f-]{1,60}\
         |MIG-(?:GPU-)?[0-9A-Fa-f-]{1,40}(?:/[0-9]{1,3}/[0-9]{1,3})?)$", |_| Ok(());

    /// A file of the operator's machine.
    pub FILE: "the path of a file on this machine", 1000,
        r"^[^\x00-\x1f\x7f-\x9f]*[^/\x00-\x1f\x7f-\x9f]$", operators_file;

    /// A limit that Docker knows.
    pub(super) LIMIT: "the name of a limit (core, cpu, data, fsize, locks, memlock, msgqueue, nice, nofile, nproc, \
                       rss, rtprio, rttime, sigpending, stack)", 10,
        "^(?:core|cpu|data|fsize|locks|memlock|msgqueue|nice|nofile|nproc|rss|rtprio|rttime|sigpending|stack)$", |_| Ok(());

    /// A capability of Linux (capabilities(7)), as Docker names it.
    pub(super) CAPABILITY: "a capability as in capabilities(7), without CAP_, like \"NET_RAW\"", 18,
        "^(?:AUDIT_CONTROL|AUDIT_READ|AUDIT_WRITE|BLOCK_SUSPEND|BPF|CHECKPOINT_RESTORE|CHOWN|DAC_OVERRIDE\
         |DAC_READ_SEARCH|FOWNER|FSETID|IPC_LOCK|IPC_OWNER|KILL|LEASE|LINUX_IMMUTABLE|MAC_ADMIN|MAC_OVERRIDE|MKNOD\
         |NET_ADMIN|NET_BIND_SERVICE|NET_BROADCAST|NET_RAW|PERFMON|SETFCAP|SETGID|SETPCAP|SETUID|SYSLOG|SYS_ADMIN\
         |SYS_BOOT|SYS_CHROOT|SYS_MODULE|SYS_NICE|SYS_PACCT|SYS_PTRACE|SYS_RAWIO|SYS_RESOURCE|SYS_TIME\
         |SYS_TTY_CONFIG|WAKE_ALARM)$", |_| Ok(());

    /// A mount, `SOURCE:TARGET`, with `:ro` or `:rw` behind it.
    pub(super) MOUNT: "a mount like \"/data:/data:ro\" or { source = \"/data\", target = \"/data\", read_only = true }",
        2010, "^(/[^:]*):(/[^:]*)(?::(ro|rw))?$", |_| Ok(());

    /// A device, `/dev/x`, with a path in the container or permissions or both behind it, as Docker takes it.
    pub(super) DEVICE: "a device like \"/dev/infiniband\" or \"/dev/fuse:/dev/fuse:rwm\"",
        2010, "^(/dev/[^:]+)(?::(/[^:]+))?(?::([rwm]{1,3}))?$", |_| Ok(());

    /// The name of a variable that may be given to all ranks.
    pub VARIABLE: "the name of a variable: letters, digits and `_`, the first not a digit", 1000,
        "^[A-Za-z_][A-Za-z0-9_]*$", not_reserved;
}

/// Splits `[user@]host[:port]`; a host of IPv6 loses its brackets.
pub(super) fn destination(text: &str) -> Checked<(Option<&str>, &str, Option<u16>)> {
    // a user of a domain may have an @ in the name, a host never
    let (user, place) = text.rsplit_once('@').map_or((None, text), |(user, place)| (Some(user), place));
    let (host, port) = match place.strip_prefix('[').and_then(|rest| rest.split_once(']')) {
        Some((host, "")) => (host, None),
        Some((host, rest)) => (host, rest.strip_prefix(':')),
        None => place.split_once(':').map_or((place, None), |(host, port)| (host, Some(port))),
    };
    let port = port.map(|port| port.parse::<u16>().map_err(|_| "a port is a number from 1 to 65535".to_owned()));
    Ok((user, host, port.transpose()?))
}

fn network_range(text: &str) -> Checked<()> {
    let range: AddressRange = text.parse().map_err(|expected| format!("expected {expected}"))?;
    refuse_if(!range.is_private(), format!("private are {}", PRIVATE.join(", ")))
}

/// Directories that belong to the system or its users: their contents are not hvdctl's to set up and purge.
const FOREIGN: &str =
    "/ /bin /boot /dev /etc /home /lib /lib64 /media /mnt /opt /proc /root /run /sbin /srv /sys /tmp /usr /var";

fn directory(text: &str) -> Checked<()> {
    absolute(text)?;
    let is_foreign = FOREIGN.split(' ').any(|foreign| foreign == text) || text.ends_with("/.ssh");
    refuse_if(is_foreign, "hvdctl needs a directory of its own")
}

/// Refuses a path that is not absolute and in its shortest form.
pub(super) fn absolute(path: &str) -> Checked<()> {
    let is_plain = |rest: &str| rest.is_empty() || rest.split('/').all(|part| !matches!(part, "" | "." | ".."));
    let is_good =
        path.strip_prefix('/').is_some_and(is_plain) && path.len() <= 1000 && !path.contains(char::is_control);
    refuse_if(!is_good, "a path is absolute, without `//`, `.`, `..`, control characters and a `/` at the end")
}

fn registry(text: &str) -> Checked<()> {
    refuse_if(text.starts_with(['.', ':', ']']), "a registry's name begins with a letter or a digit")
}

fn host(text: &str) -> Checked<()> {
    refuse_if(text.contains('@'), "set the user as `user`")?;
    let is_wrong = text.contains([':', '[', ']']) && !is_ipv6(text);
    refuse_if(is_wrong, "set a port as `ssh_port`, and write an IPv6 address without brackets")
}

/// Returns whether a text is an address of IPv6, with a zone or without.
pub fn is_ipv6(text: &str) -> bool {
    text.split_once('%').map_or(text, |(address, _zone)| address).parse::<Ipv6Addr>().is_ok()
}

fn address(text: &str) -> Checked<()> {
    let is_good = |address: IpAddr| !address.is_unspecified() && !address.is_multicast();
    refuse_if(!text.parse().is_ok_and(is_good), "")
}

fn operators_file(text: &str) -> Checked<()> {
    refuse_if(text.starts_with('~') && !text.starts_with("~/"), "only `~/` is expanded")
}

fn not_reserved(name: &str) -> Checked<()> {
    refuse_if(is_reserved(name), "hvdctl or the launcher sets it for every rank")
}

/// The names that a text with `[1-16]` in it stands for.
pub(super) fn range(text: &str, rule: &Rule) -> Checked<Vec<String>> {
    // an IPv6 address in brackets is no range, and the rule has a hint for it
    let inside = text.split_once('[').map(|(_, rest)| rest.split(']').next().unwrap_or(rest));
    if inside.is_none_or(|inside| inside.contains(':')) {
        return rule.check(text).map(|()| vec![text.to_owned()]);
    }
    expand(text)?.into_iter().map(|one| rule.check(&one).map(|()| one)).collect()
}

/// The least `/dev/shm`: less is a unit forgotten. The most that Docker's engine takes.
const SIZES: std::ops::RangeInclusive<u64> = 64 << 10..=i64::MAX as u64;

/// Returns a number of bytes that makes sense for `/dev/shm`.
pub(super) fn size(bytes: u64) -> Option<u64> {
    SIZES.contains(&bytes).then_some(bytes)
}

/// The bytes of a size of at least 64k as the inventory writes it, `8g`: a whole number and `k`, `m`, `g` or `t`, in
/// powers of 1024, in either case; also `gb` and `gib`. None where it is none.
pub fn parse_size(text: &str) -> Option<u64> {
    let lower = text.to_ascii_lowercase();
    let (number, unit) = lower.split_at(lower.find(|c: char| !c.is_ascii_digit()).unwrap_or(lower.len()));
    let shift = match unit {
        "" | "b" => 0,
        "k" | "kb" | "kib" => 10,
        "m" | "mb" | "mib" => 20,
        "g" | "gb" | "gib" => 30,
        "t" | "tb" | "tib" => 40,
        _ => return None,
    };
    size(number.parse::<u64>().ok()?.checked_mul(1 << shift)?)
}
