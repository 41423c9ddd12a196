//! The operator's ssh configuration, read for the names that it gives to machines, and for which of them are no nodes.

use crate::error::Error;
use crate::transport::ssh::Client;
use anyhow::Context as _;
use regex::Regex;
use std::collections::HashSet;
use std::fs;
use std::path::Path;
use std::rc::Rc;

/// ssh itself follows no deeper.
const DEPTH: usize = 16;

/// Services that take SSH connections for repositories only; also what ends with a dot and one of these.
const CODE_HOSTS: &str = "github.com gitlab.com bitbucket.org codeberg.org gitea.com gitee.com gitcode.com sr.ht hf.co \
                          huggingface.co dev.azure.com visualstudio.com aur.archlinux.org salsa.debian.org \
                          source.developers.google.com git.code.sf.net opendev.org framagit.org gitlab.gnome.org \
                          invent.kde.org";

/// The names of a configuration, in their order, each once.
#[derive(Debug, Default, PartialEq)]
pub struct Aliases {
    /// The names that may be nodes.
    pub machines: Vec<String>,
    /// The others, each with the reason.
    pub left_out: Vec<(String, &'static str)>,
}

/// Reads the user's configuration for this ssh and the files that it includes. A configuration that is not there has no
/// names.
///
/// # Errors
/// When it is there and cannot be read.
pub fn read(client: &Client) -> Result<Aliases, Error> {
    let Some(file) = client.config() else { return Ok(Aliases::default()) };
    // as in ssh, $HOME applies to what an `Include` names
    let home = std::env::home_dir().unwrap_or_default();
    let text = match fs::read(&file) {
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => return Ok(Aliases::default()),
        read => read.with_context(|| format!("cannot read {}", file.display()))?,
    };
    Ok(SshConfig::parse(&String::from_utf8_lossy(&text), &home, DEPTH).aliases())
}

/// The names to which the settings of a block apply.
enum Block {
    /// All names.
    All,
    /// The names that one of the patterns matches and none with `!` does; true: with `!`.
    Names(Vec<(bool, Regex)>),
    /// Names that depend on more than the name itself.
    Unknown,
}

impl Block {
    /// The block of a `Host` line.
    fn host<'w>(patterns: impl IntoIterator<Item = &'w str>) -> Block {
        let pattern = |word: &str| {
            let (negated, word) = word.strip_prefix('!').map_or((false, word), |word| (true, word));
            let escaped = regex::escape(word).replace(r"\*", ".*").replace(r"\?", ".");
            Some((negated, Regex::new(&format!("(?i)^{escaped}$")).ok()?))
        };
        Block::Names(patterns.into_iter().filter_map(pattern).collect())
    }

    /// The block of a `Match` line.
    fn of_match(words: &[&str]) -> Block {
        match words {
            [all] if all.eq_ignore_ascii_case("all") => Block::All,
            [by, patterns] if ["host", "originalhost"].contains(&by.to_ascii_lowercase().as_str()) => {
                Block::host(patterns.split(','))
            }
            _ => Block::Unknown,
        }
    }

    fn applies_to(&self, name: &str) -> bool {
        match self {
            Block::All => true,
            Block::Names(patterns) => {
                let is_matched =
                    |by: bool| patterns.iter().any(|(negated, regex)| *negated == by && regex.is_match(name));
                is_matched(false) && !is_matched(true)
            }
            Block::Unknown => false,
        }
    }
}

/// The names in a configuration, and the settings that apply to them.
#[derive(Default)]
struct SshConfig {
    names: Vec<String>,
    /// Keyword in lower case, and value; of several that apply to a name the first counts.
    settings: Vec<(Rc<Block>, String, String)>,
}

impl SshConfig {
    fn parse(text: &str, home: &Path, depth: usize) -> SshConfig {
        let mut config = SshConfig::default();
        config.walk(text, home, depth, Rc::new(Block::All));
        let mut known = HashSet::new();
        config.names.retain(|name| known.insert(name.clone()));
        config
    }

    /// Adds a file and what it includes. `block` is the one in which it begins.
    fn walk(&mut self, text: &str, home: &Path, depth: usize, mut block: Rc<Block>) {
        for line in text.lines() {
            // `Host a`, `Host=a` and `Host = a` are the same
            let line = line.replacen('=', " ", 1);
            let words: Vec<&str> = line
                .split_whitespace()
                .map(|word| word.trim_matches('"'))
                .take_while(|word| !word.starts_with('#'))
                .collect();
            let Some((keyword, words)) = words.split_first() else { continue };
            match keyword.to_ascii_lowercase().as_str() {
                "host" => {
                    block = Rc::new(Block::host(words.iter().copied()));
                    // no patterns, nothing taken away
                    let names = words.iter().filter(|name| !name.contains(['!', '*', '?']));
                    self.names.extend(names.map(|name| (*name).to_owned()));
                }
                "match" => block = Rc::new(Block::of_match(words)),
                "include" if depth > 0 => {
                    for file in words.iter().flat_map(|pattern| files(pattern, home)) {
                        // as in ssh, an unreadable file is skipped
                        let text = fs::read(file).unwrap_or_default();
                        self.walk(&String::from_utf8_lossy(&text), home, depth - 1, Rc::clone(&block));
                    }
                }
                keyword => self.settings.push((Rc::clone(&block), keyword.to_owned(), words.join(" "))),
            }
        }
    }

    /// The value of a keyword for a name.
    fn value(&self, name: &str, keyword: &str) -> Option<&str> {
        let mut all = self.settings.iter();
        all.find(|(block, key, _)| key == keyword && block.applies_to(name)).map(|(_, _, value)| value.as_str())
    }

    /// The hosts through which others are reached, whatever the condition: `ProxyJump`, or `ProxyCommand` with ssh.
    fn jump_hosts(&self) -> HashSet<&str> {
        let of = |(_, key, value): &'_ (_, String, String)| match key.as_str() {
            "proxyjump" => true,
            "proxycommand" => value.split(' ').next().is_some_and(|program| program.rsplit('/').next() == Some("ssh")),
            _ => false,
        };
        let values =
            self.settings.iter().filter(|setting| of(setting)).flat_map(|(_, _, value)| value.split([',', ' ']));
        values.map(hop).collect()
    }

    /// The names, with those apart that are no nodes.
    fn aliases(&self) -> Aliases {
        let jump_hosts = self.jump_hosts();
        let mut aliases = Aliases::default();
        for name in &self.names {
            let host = self.value(name, "hostname").map_or_else(|| name.clone(), |host| host.replace("%h", name));
            let reason = if self.value(name, "user") == Some("git") || is_code_host(&host) {
                "a code host"
            } else if jump_hosts.contains(name.as_str()) || jump_hosts.contains(host.as_str()) {
                "a jump host"
            } else {
                aliases.machines.push(name.clone());
                continue;
            };
            aliases.left_out.push((name.clone(), reason));
        }
        aliases
    }
}

fn is_code_host(host: &str) -> bool {
    let host = host.to_ascii_lowercase();
    let is = |known: &str| host.strip_suffix(known).is_some_and(|rest| rest.is_empty() || rest.ends_with('.'));
    CODE_HOSTS.split_whitespace().any(is) || host.starts_with("git-codecommit.") && host.ends_with(".amazonaws.com")
}

/// The host of `[ssh://][user@]host[:port]`.
fn hop(text: &str) -> &str {
    let host = text.strip_prefix("ssh://").unwrap_or(text);
    let host = host.rsplit('@').next().unwrap_or(host);
    match host.strip_prefix('[') {
        Some(address) => address.split(']').next().unwrap_or(address),
        None => host.split_once(':').map_or(host, |(host, _)| host),
    }
}

/// The files that an `Include` means, in the order of their names. A relative one starts from `~/.ssh`, and `${NAME}`
/// stands for a variable.
fn files(pattern: &str, home: &Path) -> Vec<std::path::PathBuf> {
    let mut text = String::new();
    let mut rest = pattern;
    while let Some((before, (name, after))) =
        rest.split_once("${").and_then(|(before, rest)| Some((before, rest.split_once('}')?)))
    {
        let Ok(value) = std::env::var(name) else { return Vec::new() };
        text.push_str(before);
        text.push_str(&value);
        rest = after;
    }
    text.push_str(rest);
    let path = match text.strip_prefix("~/") {
        Some(rest) => home.join(rest),
        None => home.join(".ssh").join(text),
    };
    glob::glob(&path.to_string_lossy()).map(|found| found.flatten().collect()).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn aliases(text: &str) -> Aliases {
        SshConfig::parse(text, Path::new("/nowhere"), 0).aliases()
    }

    #[test]
    fn hosts_and_includes_in_their_order() {
        let home = tempfile::tempdir().unwrap();
        std::fs::create_dir_all(home.path().join(".ssh/d")).unwrap();
        std::fs::write(home.path().join(".ssh/d/1"), "Host one\nInclude d/*").unwrap();
        let text = "# Host no\nHost *\n  User ana\nHost gpu1 gpu1.example.org !gpu9 gpu? # head\n  HostName 10.0.0.1\n\
                    HOST=gpu2\ninclude ~/.ssh/d/* missing\nHost = \"gpu3\"\nHostName gpu4\nMatch host \
                    gpu5\n\tHost\tgpu6";
        let names = SshConfig::parse(text, home.path(), 1).names;
        assert_eq!(names, ["gpu1", "gpu1.example.org", "gpu2", "one", "gpu3", "gpu6"]);
    }

    #[test]
    fn code_hosts_are_no_nodes() {
        for (text, reason) in [
            ("Host x\n  User git", "a code host"),
            ("Host x\nHost *\n  User git", "a code host"),
            ("Host x\nMatch host y,x\n  User git", "a code host"),
            ("Host x\nMatch all\n  User git", "a code host"),
            ("Host x\n  HostName github.com", "a code host"),
            ("Host x\n  HostName = altssh.Bitbucket.org", "a code host"),
            ("Host x\n  HostName git-codecommit.eu-west-1.amazonaws.com", "a code host"),
            ("Host x\n  User ana\nHost *\n  User git", ""),
            ("Host x\nHost * !x\n  User git", ""),
            ("Host x\nMatch host y\n  User git", ""),
            ("Host x\nMatch host x exec true\n  User git", ""),
            ("Host x\n  HostName notgithub.com", ""),
            ("Host x\n  HostName %h.github.example.org", ""),
        ] {
            let expected = match reason {
                "" => Aliases { machines: vec!["x".into()], left_out: vec![] },
                reason => Aliases { machines: vec![], left_out: vec![("x".into(), reason)] },
            };
            assert_eq!(aliases(text), expected, "{text}");
        }
        let text = "Host github.com\n  IdentityFile ~/.ssh/id\nHost gpu1\nHost hf.co huggingface.co git.sr.ht";
        assert_eq!(aliases(text).machines, ["gpu1"]);
    }

    #[test]
    fn jump_hosts_are_no_nodes() {
        for setting in [
            "ProxyJump gate",
            "ProxyJump=first,ana@gate:2222,last",
            "ProxyJump ssh://ana@gate:2222",
            "ProxyJump 203.0.113.1",
            "ProxyJump [203.0.113.1]:22",
            "ProxyCommand ssh -W %h:%p ana@gate",
            "ProxyCommand /usr/bin/ssh -q gate nc %h %p",
        ] {
            for condition in ["Host gpu1", "Host gpu*", "Match host gpu1 exec \"test -e x\"", "Host *"] {
                let text = format!("Host gate\n  HostName 203.0.113.1\nHost gpu1\n{condition}\n  {setting}");
                let expected =
                    Aliases { machines: vec!["gpu1".into()], left_out: vec![("gate".into(), "a jump host")] };
                assert_eq!(aliases(&text), expected, "{text}");
            }
        }
        for other in ["ProxyJump none", "ProxyCommand nc -X 5 -x gate:1080 %h %p", "ProxyJump gate2"] {
            assert_eq!(aliases(&format!("Host gate\nHost gpu1\n  {other}")).machines, ["gate", "gpu1"], "{other}");
        }
    }

    #[test]
    fn included_settings_belong_to_the_block_around_them() {
        let home = tempfile::tempdir().unwrap();
        std::fs::create_dir_all(home.path().join(".ssh/d")).unwrap();
        std::fs::write(home.path().join(".ssh/d/1"), "User git\nHost code2\n  User git").unwrap();
        let text = "Host code1\n  Include d/1 ${HVDCTL_NO_SUCH_VARIABLE}/x\n  HostName a\nHost gpu1";
        let found = SshConfig::parse(text, home.path(), 1).aliases();
        assert_eq!(found.machines, ["gpu1"]);
        assert_eq!(found.left_out.iter().map(|(name, _)| name.as_str()).collect::<Vec<_>>(), ["code1", "code2"]);
    }
}
