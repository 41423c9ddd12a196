//! What the cluster's key folder holds on each node: who may log in, which host keys are pinned, with which modes.

use crate::core::facts::Facts;
use std::collections::BTreeSet;
use std::fmt;
use std::net::IpAddr;
use zeroize::Zeroizing;

/// The workers' host key, private half; the public one has `.pub` behind it.
pub const HOST_KEY: &str = "ssh_host_ed25519_key";
/// Who may log in to the workers.
pub const AUTHORIZED_KEYS: &str = "authorized_keys";
/// The workers' pinned host keys.
pub const KNOWN_HOSTS: &str = "known_hosts";

/// The names that a cluster's private key may have.
const KEY_NAMES: [&str; 2] = ["id_rsa", "id_ed25519"];

/// Text that must not be seen: it cannot be printed by accident and is wiped from memory after use.
#[derive(Clone, PartialEq, Eq)]
pub struct Secret(Zeroizing<String>);

impl Secret {
    /// Wraps a text.
    pub fn new(text: Zeroizing<String>) -> Secret {
        Secret(text)
    }

    /// The text; the caller sees to it that it goes nowhere but to the node's standard input.
    pub fn expose(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret(…)")
    }
}

/// A key pair in OpenSSH's formats.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KeyPair {
    /// `-----BEGIN OPENSSH PRIVATE KEY-----` …
    pub private: Secret,
    /// `TYPE BASE64 COMMENT`, no newline.
    pub public: String,
}

/// A file to be written.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Put {
    /// Its name in the key folder.
    pub name: String,
    /// Permission bits, `600` or `644`.
    pub mode: &'static str,
    /// Its whole content.
    pub text: Secret,
}

/// What a node's key folder needs.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Changes {
    /// Files to be written, new or with other content.
    pub puts: Vec<Put>,
    /// Files that must not be there.
    pub removes: Vec<String>,
    /// Things whose owner or mode is wrong, with both as seen; the push sets them right.
    pub repairs: Vec<String>,
}

impl Changes {
    /// Whether the folder is as it should be.
    pub fn is_empty(&self) -> bool {
        self.puts.is_empty() && self.removes.is_empty() && self.repairs.is_empty()
    }
}

impl fmt::Display for Changes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let written: Vec<&str> = self.puts.iter().map(|p| p.name.as_str()).collect();
        let mut parts = Vec::new();
        if !written.is_empty() {
            parts.push(format!("wrote {}", written.join(", ")));
        }
        if !self.removes.is_empty() {
            parts.push(format!("removed {}", self.removes.join(", ")));
        }
        if !self.repairs.is_empty() {
            parts.push(format!("repaired {}", self.repairs.join(", ")));
        }
        f.write_str(&parts.join("; "))
    }
}

/// The folder of one node as the contract wants it.
#[derive(Debug, Clone)]
pub struct Wanted<'a> {
    /// The cluster's name; it tags our lines.
    pub cluster: &'a str,
    /// File name of the private key, `id_rsa` or `id_ed25519`.
    pub key_name: &'a str,
    /// The cluster's public key, one line.
    pub public: &'a str,
    /// The pair, where it was made just now and this node launches.
    pub new_pair: Option<&'a KeyPair>,
    /// Whether ranks are launched from this node.
    pub launches: bool,
    /// This node's host key, where it has none.
    pub new_host_key: Option<&'a KeyPair>,
    /// Our lines of `known_hosts`.
    pub known_hosts: &'a [String],
    /// Names of the whole inventory's nodes in `known_hosts` form; our lines about others are dropped.
    pub members: &'a BTreeSet<String>,
}

/// What has to change on a node.
pub fn changes(wanted: &Wanted<'_>, facts: &Facts) -> Changes {
    let mut changes = Changes::default();
    let tag = tag(wanted.cluster);
    let text = |name: &str| facts.key_files.get(name).map(|f| f.text.as_str());

    let authorized = merge(text(AUTHORIZED_KEYS).unwrap_or_default(), &[authorized_line(wanted)], &tag, |_| false);
    let known = merge(text(KNOWN_HOSTS).unwrap_or_default(), wanted.known_hosts, &tag, |line| {
        let hosts: BTreeSet<&str> = line.split(' ').next().unwrap_or_default().split(',').collect();
        let renewed = wanted
            .known_hosts
            .iter()
            .any(|new| new.split(' ').next().unwrap_or_default().split(',').any(|host| hosts.contains(host)));
        !renewed && hosts.iter().any(|host| wanted.members.contains(*host))
    });
    let public_name = format!("{}.pub", wanted.key_name);
    let mut files: Vec<(String, &'static str, Option<String>)> = vec![
        (AUTHORIZED_KEYS.into(), "600", Some(authorized)),
        (KNOWN_HOSTS.into(), "644", Some(known)),
        (HOST_KEY.into(), "600", None),
        (format!("{HOST_KEY}.pub"), "644", None),
    ];
    if wanted.launches {
        files.push((wanted.key_name.into(), "600", None));
        files.push((public_name, "644", Some(format!("{}\n", wanted.public))));
    }
    // a node that does not launch holds no private key; one that does holds none of an earlier `key_type`
    for name in KEY_NAMES.into_iter().filter(|name| !wanted.launches || *name != wanted.key_name) {
        let public = format!("{name}.pub");
        let ours = text(&public).is_some_and(|text| text.trim_end().ends_with(&format!(" {tag}")));
        if name == wanted.key_name || ours {
            let both = [name, public.as_str()].map(str::to_owned);
            changes.removes.extend(both.into_iter().filter(|name| facts.key_files.contains_key(name)));
        }
    }

    let mut fresh: Vec<(String, &'static str, Secret)> = Vec::new();
    if let Some(pair) = wanted.new_host_key {
        fresh.push((HOST_KEY.into(), "600", pair.private.clone()));
        fresh.push((format!("{HOST_KEY}.pub"), "644", plain(format!("{}\n", pair.public))));
    }
    if let (Some(pair), true) = (wanted.new_pair, wanted.launches) {
        fresh.push((wanted.key_name.into(), "600", pair.private.clone()));
    }
    for (name, mode, text) in fresh {
        files.retain(|(n, _, _)| *n != name);
        changes.puts.push(Put { name, mode, text });
    }

    if let Some(dir) = &facts.key_dir
        && (dir.mode != "700" || dir.owner != "0:0")
    {
        changes.repairs.push(format!("the folder ({} {})", dir.mode, dir.owner));
    }
    for (name, mode, content) in files {
        let seen = facts.key_files.get(&name);
        match (content, seen) {
            (Some(content), _) if seen.is_none_or(|f| f.text != content) => {
                changes.puts.push(Put { name, mode, text: plain(content) });
            }
            (_, Some(file)) if file.mode != mode || file.owner != "0:0" => {
                changes.repairs.push(format!("{name} ({} {})", file.mode, file.owner));
            }
            _ => {}
        }
    }
    changes
}

fn plain(text: String) -> Secret {
    Secret::new(Zeroizing::new(text))
}

/// The comment by which our lines are known.
fn tag(cluster: &str) -> String {
    format!("hvdctl:{cluster}")
}

/// `restrict` (OpenSSH 7.2, sshd(8)) takes forwarding, ptys and rc files away: a launcher needs none of them.
fn authorized_line(wanted: &Wanted<'_>) -> String {
    let key: Vec<&str> = wanted.public.split(' ').take(2).collect();
    format!("restrict {} {}", key.join(" "), tag(wanted.cluster))
}

/// A line of `known_hosts` for a worker: every name that a launcher may use, each with the port.
pub fn known_hosts_line(cluster: &str, names: &BTreeSet<String>, host_key: &str) -> String {
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    let key: Vec<&str> = host_key.split(' ').take(2).collect();
    format!("{} {} {}", names.join(","), key.join(" "), tag(cluster))
}

/// The names of a worker in `known_hosts` form (`[10.0.0.1]:12345`; plain for port 22, sshd(8)).
pub fn known_hosts_names(names: &[&str], address: Option<IpAddr>, port: u16) -> BTreeSet<String> {
    let address = address.map(|a| a.to_string());
    names
        .iter()
        .copied()
        .chain(address.as_deref())
        .map(|name| if port == 22 { name.to_owned() } else { format!("[{name}]:{port}") })
        .collect()
}

/// Keeps every line that is not ours, and of ours those that are right or that `keep` wants, all in their places; the
/// missing ones come behind them.
fn merge(existing: &str, ours: &[String], tag: &str, keep: impl Fn(&str) -> bool) -> String {
    let mut lines: Vec<&str> = existing
        .lines()
        .filter(|line| !line.ends_with(&format!(" {tag}")) || ours.iter().any(|o| o == line) || keep(line))
        .collect();
    let kept: BTreeSet<&str> = lines.iter().copied().collect();
    lines.extend(ours.iter().map(String::as_str).filter(|line| !kept.contains(line)));
    lines.iter().map(|line| format!("{line}\n")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::core::facts::KeyFile;

    fn wanted<'a>(known: &'a [String], members: &'a BTreeSet<String>, launches: bool) -> Wanted<'a> {
        Wanted {
            cluster: "lab",
            key_name: "id_rsa",
            public: "ssh-rsa AAAA hvdctl:lab",
            new_pair: None,
            launches,
            new_host_key: None,
            known_hosts: known,
            members,
        }
    }

    /// The folder after the changes, as the next look would see it.
    fn apply(facts: &Facts, changes: &Changes) -> Facts {
        let mut after = facts.clone();
        after.key_dir = Some(KeyFile { mode: "700".into(), owner: "0:0".into(), text: String::new() });
        for name in &changes.removes {
            after.key_files.remove(name);
        }
        for put in &changes.puts {
            let text = if put.text.expose().contains("PRIVATE") { "" } else { put.text.expose() };
            let file = KeyFile { mode: put.mode.into(), owner: "0:0".into(), text: text.into() };
            after.key_files.insert(put.name.clone(), file);
        }
        for (name, file) in &mut after.key_files {
            file.owner = "0:0".into();
            file.mode = if name.ends_with(".pub") || name == KNOWN_HOSTS { "644" } else { "600" }.into();
        }
        after
    }

    #[test]
    fn foreign_lines_stay_and_the_second_push_is_empty() {
        let known = ["[10.0.0.1]:12345,[node1]:12345 ssh-ed25519 BBBB hvdctl:lab".to_owned()];
        let members = BTreeSet::from(["[node1]:12345".to_owned(), "[node2]:12345".to_owned()]);
        let mut facts = Facts {
            key_dir: Some(KeyFile { mode: "755".into(), owner: "1000:1000".into(), text: String::new() }),
            ..Facts::default()
        };
        let file = |text: &str| KeyFile { mode: "644".into(), owner: "0:0".into(), text: text.into() };
        facts.key_files.insert(AUTHORIZED_KEYS.into(), file("ssh-ed25519 MINE ana@desk\nssh-rsa OLD hvdctl:lab\n"));
        facts.key_files.insert(
            KNOWN_HOSTS.into(),
            file("gone ssh-ed25519 X hvdctl:lab\n[node1]:12345 ssh-ed25519 OLD hvdctl:lab\n[node2]:12345 ssh-ed25519 N2 hvdctl:lab\ngit ssh-rsa G\n"),
        );
        facts.key_files.insert("id_rsa".into(), file(""));
        let pair = KeyPair { private: plain("PRIVATE".into()), public: "ssh-ed25519 HOST x".into() };
        let want = Wanted { new_host_key: Some(&pair), ..wanted(&known, &members, false) };
        let first = changes(&want, &facts);
        let put = |name: &str| first.puts.iter().find(|p| p.name == name).unwrap().text.expose().to_owned();
        assert_eq!(put(AUTHORIZED_KEYS), "ssh-ed25519 MINE ana@desk\nrestrict ssh-rsa AAAA hvdctl:lab\n");
        assert_eq!(
            put(KNOWN_HOSTS),
            "[node2]:12345 ssh-ed25519 N2 hvdctl:lab\ngit ssh-rsa G\n[10.0.0.1]:12345,[node1]:12345 ssh-ed25519 BBBB hvdctl:lab\n"
        );
        assert_eq!(first.removes, ["id_rsa"], "only nodes that launch hold the private key");
        assert_eq!(first.repairs, ["the folder (755 1000:1000)"]);
        let after = apply(&facts, &first);
        let second = changes(&wanted(&known, &members, false), &after);
        assert!(second.is_empty(), "{second:?}");
    }

    #[test]
    fn lines_that_are_right_stay_where_they_are() {
        let ours = ["a K hvdctl:lab".to_owned(), "b K hvdctl:lab".to_owned()];
        let there = "b K hvdctl:lab\nforeign\na K hvdctl:lab\nforeign too\n";
        assert_eq!(merge(there, &ours, "hvdctl:lab", |_| false), there);
        assert_eq!(merge("b K hvdctl:lab\nx\n", &ours, "hvdctl:lab", |_| false), "b K hvdctl:lab\nx\na K hvdctl:lab\n");
    }

    #[test]
    fn a_secret_is_not_printed() {
        assert_eq!(format!("{:?}", plain("hidden".into())), "Secret(…)");
    }
}
