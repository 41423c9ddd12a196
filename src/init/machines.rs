//! Machines as they are named for `hvdctl init`: on the command line, at a prompt, in an ssh configuration, or in a
//! file of another tool.

use crate::inventory::{self, canonical_host, is_ipv6};
use crate::text::nodeset::{self, MOST_NAMES};
use schemars::JsonSchema;
use serde::Serialize;
use std::collections::{BTreeMap, HashSet};
use std::fmt;
use std::num::NonZeroU16;

/// One machine as ssh will be given it.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, JsonSchema)]
pub struct Host {
    /// The host that ssh connects to.
    pub host: String,
    /// The user; null if your SSH configuration decides.
    pub user: Option<String>,
    /// The port; null if your SSH configuration decides.
    pub port: Option<u16>,
}

impl fmt::Display for Host {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(user) = &self.user {
            write!(f, "{user}@")?;
        }
        match self.port {
            Some(port) if self.host.contains(':') => write!(f, "[{}]:{port}", self.host),
            Some(port) => write!(f, "{}:{port}", self.host),
            None => f.write_str(&self.host),
        }
    }
}

/// A machine with what a file of another tool says about it.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Machine {
    /// The machine.
    pub host: Host,
    /// The name of its node, if it differs from the host.
    pub name: Option<String>,
    /// The private key for it.
    pub identity: Option<String>,
    /// Most ranks of one job.
    pub slots: Option<u32>,
}

impl From<Host> for Machine {
    fn from(host: Host) -> Machine {
        Machine { host, ..Machine::default() }
    }
}

/// The machines of a file of another tool.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Machines {
    /// The machines, each once.
    pub machines: Vec<Machine>,
    /// The machines of each group by its name, as indices.
    pub groups: BTreeMap<String, Vec<usize>>,
    /// Parts of the file that were left out, as sentences.
    pub notes: Vec<String>,
}

impl From<Vec<Host>> for Machines {
    fn from(hosts: Vec<Host>) -> Machines {
        Machines { machines: hosts.into_iter().map(Machine::from).collect(), ..Machines::default() }
    }
}

/// A line that cannot be read in a file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MachineFault {
    /// The line, from 1 on.
    pub line: usize,
    /// The fault of that line.
    pub why: String,
}

/// Reads what was named: `[user@]host[:port]`, an address of IPv6 bare or as `[fd00::1]:22`, ranges like `node[1-4]`;
/// with spaces or commas between them. `user` is that of those who name none.
///
/// # Errors
/// The first that cannot be read, or is there twice.
pub fn read(text: &str, user: Option<&str>) -> Result<Vec<Host>, String> {
    let mut hosts: Vec<Host> = Vec::new();
    for word in nodeset::split(text).into_iter().flat_map(str::split_whitespace) {
        hosts.extend(one(word, user).map_err(|why| format!("{word}: {why}"))?);
        if hosts.len() > MOST_NAMES {
            return Err(format!("{word}: more than {MOST_NAMES} machines"));
        }
    }
    let mut known = HashSet::new();
    match hosts.iter().find(|host| !known.insert((canonical_host(&host.host), host.port, &host.user))) {
        Some(twice) => Err(format!("{twice} is named twice")),
        None => Ok(hosts),
    }
}

/// Parses one argument, which may be a range of hosts.
fn one(word: &str, user: Option<&str>) -> Result<Vec<Host>, String> {
    let (user, place, port) = parts(word, user);
    let port = port.map(|port| port.parse::<NonZeroU16>().map_err(|_| "expected a port from 1 to 65535 after the `:`"));
    named(place, user, port.transpose()?.map(NonZeroU16::get))
}

/// Splits `[user@]place[:number]`. `user` is that of a place without one.
pub(super) fn parts<'w>(word: &'w str, user: Option<&'w str>) -> (Option<&'w str>, &'w str, Option<&'w str>) {
    // a user of a domain may have an @ in the name, a host never
    let (user, rest) = word.rsplit_once('@').map_or((user, word), |(user, rest)| (Some(user), rest));
    match rest.rsplit_once(':') {
        Some((place, number)) if !is_ipv6(rest) && !rest.ends_with(']') => (user, place, Some(number)),
        _ => (user, rest, None),
    }
}

/// The machines of a place: a host, an address of IPv6 in brackets or without, or a range.
pub(super) fn named(place: &str, user: Option<&str>, port: Option<u16>) -> Result<Vec<Host>, String> {
    let user = user.map(|user| inventory::USER.read(user)).transpose()?;
    let host = |host: &str| Ok(Host { host: inventory::HOST.read(host)?, user: user.clone(), port });
    let bare = place.strip_prefix('[').and_then(|place| place.strip_suffix(']')).unwrap_or(place);
    if is_ipv6(bare) {
        return Ok(vec![host(bare)?]);
    }
    nodeset::expand(place)?.iter().map(|name| host(name)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn host(host: &str, user: Option<&str>, port: Option<u16>) -> Host {
        Host { host: host.into(), user: user.map(str::to_owned), port }
    }

    #[test]
    fn hosts_in_all_their_spellings() {
        for (text, expected) in [
            ("gpu1", vec![host("gpu1", None, None)]),
            ("ana@gpu1.example.org:2222", vec![host("gpu1.example.org", Some("ana"), Some(2222))]),
            ("ana@corp@10.0.0.1", vec![host("10.0.0.1", Some("ana@corp"), None)]),
            ("fd00::1", vec![host("fd00::1", None, None)]),
            ("ana@fe80::1%eth0", vec![host("fe80::1%eth0", Some("ana"), None)]),
            ("ana@[fd00::1]:2222", vec![host("fd00::1", Some("ana"), Some(2222))]),
            ("[fd00::1]", vec![host("fd00::1", None, None)]),
            ("n[1-2]", vec![host("n1", None, None), host("n2", None, None)]),
            ("u@n[08-09].x:22", vec![host("n08.x", Some("u"), Some(22)), host("n09.x", Some("u"), Some(22))]),
            (
                "r[1-2]-n[1-4/3]:22",
                ["r1-n1", "r1-n4", "r2-n1", "r2-n4"].map(|name| host(name, None, Some(22))).to_vec(),
            ),
            ("a, b  n[1,3]", ["a", "b", "n1", "n3"].map(|name| host(name, None, None)).to_vec()),
            ("h:1 h:2", vec![host("h", None, Some(1)), host("h", None, Some(2))]),
            ("", vec![]),
        ] {
            assert_eq!(read(text, None).unwrap(), expected, "{text}");
        }
    }

    #[test]
    fn who_names_no_user_gets_the_one_of_all() {
        assert_eq!(read("a eve@b", Some("ana")), Ok(vec![host("a", Some("ana"), None), host("b", Some("eve"), None)]));
        assert!(read("a ana@a", Some("ana")).unwrap_err().contains("named twice"));
        assert!(read("a", Some("-x")).unwrap_err().contains("expected a user's name"));
    }

    #[test]
    fn an_invalid_host_is_refused_with_a_message() {
        for (text, words) in [
            ("-oProxyCommand=x", "-oProxyCommand=x: expected a host as for ssh"),
            ("a:0", "port from 1 to 65535"),
            ("a:99999", "port from 1 to 65535"),
            ("a:", "port from 1 to 65535"),
            ("@a", "expected a user's name"),
            ("ssh://a", "port from 1 to 65535"),
            ("[fd00::1]x", "port from 1 to 65535"),
            ("n[1-", "bracket"),
            ("n[3-1]", "the range 3-1 is empty"),
            ("n[1-200][1-200]", "more than 10000 names"),
            ("n[1-2]]", "expected a host as for ssh"),
            ("a b A", "A is named twice"),
            ("fd00::1 fd00:0::1", "named twice"),
            ("n[1-9999] m[1-9999]", "more than 10000 machines"),
            ("a$(b)", "expected a host as for ssh"),
        ] {
            let error = read(text, None).unwrap_err();
            assert!(error.contains(words), "{text}: {error}");
        }
    }

    proptest! {
        #[test]
        fn anything_is_read_or_refused(text in ".{0,40}") {
            let _ = read(&text, None);
        }

        #[test]
        fn what_is_read_reads_the_same_again(text in "([a-z]{1,3}@)?([a-z0-9.-]{1,8}|fd00::[1-9]|\\[fd00::[1-9]\\])(:[0-9]{1,5})?") {
            if let Ok(hosts) = read(&text, None) {
                for host in hosts {
                    prop_assert_eq!(read(&host.to_string(), None).unwrap(), vec![host]);
                }
            }
        }
    }
}
