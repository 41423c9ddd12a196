//! Everything that decides how nodes are reached, as a digest: a connection is kept for as long as it stays the same.

use crate::inventory::Node;
use sha2::{Digest, Sha256};
use std::collections::HashSet;
use std::ffi::OsStr;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// The depth to which ssh lets files include others (`READCONF_MAX_DEPTH`).
const MAX_DEPTH: usize = 16;

/// Options whose value is a file, which is relative to the current directory unless it says otherwise.
const FILES: [&str; 7] = [
    "identityfile",
    "certificatefile",
    "identityagent",
    "userknownhostsfile",
    "globalknownhostsfile",
    "revokedhostkeys",
    "pkcs11provider",
];

/// Options whose value is a command.
const COMMANDS: [&str; 3] = ["proxycommand", "knownhostscommand", "match"];

/// Programs that reach the host that their arguments name.
const PROXIES: [&str; 7] = ["ssh", "nc", "ncat", "netcat", "socat", "connect", "corkscrew"];

/// The settings that decide how the nodes of an inventory are reached, except for their own fields.
#[derive(Debug, Clone)]
pub(super) struct Settings {
    digest: Sha256,
    /// Set if the same text may mean something else later, because it depends on a program, the network or the
    /// environment.
    pub(super) is_unsteady: bool,
    /// Set if files are named relative to the current directory, which then becomes a part of the settings.
    pub(super) is_relative: bool,
    /// Set if a proxy decides by itself where it leads: see [`leads_elsewhere`].
    has_free_proxy: bool,
}

impl Settings {
    /// Reads the files that a generated configuration includes, and the ssh program that reads them.
    pub(super) fn read(configuration: &str, home: Option<&Path>, ssh: Option<&Path>) -> Settings {
        let mut settings = Settings::of(ssh);
        settings.add(configuration.as_bytes());
        settings.scan(configuration, home, &mut HashSet::new(), 0);
        if settings.is_relative {
            settings.add(std::env::current_dir().unwrap_or_default().as_os_str().as_bytes());
        }
        for file in ["/etc/hosts", "/etc/resolv.conf"] {
            settings.add(&fs::read(file).unwrap_or_default());
        }
        settings.add_variable("SSH_AUTH_SOCK");
        settings.add_file(std::env::var_os("SSH_AUTH_SOCK").as_ref().map(Path::new));
        settings
    }

    /// Only the program, and whose it is.
    fn of(ssh: Option<&Path>) -> Settings {
        let digest = Sha256::new_with_prefix(env!("CARGO_PKG_VERSION"));
        let mut settings = Settings { digest, is_unsteady: false, is_relative: false, has_free_proxy: false };
        settings.add_file(ssh);
        settings.add_file(Some(Path::new("/etc/passwd")));
        settings.add_variable("HOME");
        settings.add(&rustix::process::getuid().as_raw().to_le_bytes());
        settings
    }

    /// Returns the name of a node's connection. It begins with that of the host. `resolved`: the settings as ssh itself
    /// prints them.
    pub(super) fn key(&self, node: &Node, keep_alive: u64, resolved: Option<&str>) -> String {
        let mut node_settings = self.clone();
        let port = node.ssh_port.unwrap_or_default().to_string();
        let fields = [Some(node.host.as_str()), node.user.as_deref(), node.jump.as_deref(), Some(&port), resolved];
        for field in fields.into_iter().chain([node.host_key.as_deref()]) {
            node_settings.add(field.unwrap_or("\0").as_bytes());
        }
        node_settings.add(&keep_alive.to_le_bytes());
        node_settings.add_file(node.identity.as_deref());
        format!("{}{}", host_prefix(&node.host), hex(&node_settings.digest.finalize(), 12))
    }

    /// Returns whether another command with these settings would reach the same machine. `proxy`: the node's
    /// `ProxyCommand`; `jumps`: whether it is behind a jump host, which may have a proxy of its own.
    pub(super) fn lead_to_one_machine(&self, proxy: Option<&str>, jumps: bool) -> bool {
        match proxy {
            None => !(jumps && self.has_free_proxy),
            Some(proxy) => !leads_elsewhere(proxy) && !self.has_free_proxy,
        }
    }

    /// Adds a value with its length, so that no two lists of values are the same.
    fn add(&mut self, value: &[u8]) {
        self.digest.update(value.len().to_le_bytes());
        self.digest.update(value);
    }

    fn add_variable(&mut self, name: &str) {
        let value = std::env::var_os(name);
        self.add(value.as_deref().unwrap_or(OsStr::new("\0")).as_bytes());
    }

    /// Adds which file it is and when it was changed, without reading it.
    fn add_file(&mut self, file: Option<&Path>) {
        let Some(file) = file else { return self.add(b"\0") };
        self.add(file.as_os_str().as_bytes());
        match fs::metadata(file) {
            Ok(meta) => {
                let times = [meta.mtime(), meta.mtime_nsec()].map(i64::unsigned_abs);
                for number in [meta.dev(), meta.ino(), meta.size()].into_iter().chain(times) {
                    self.add(&number.to_le_bytes());
                }
            }
            Err(error) => self.add(error.to_string().as_bytes()),
        }
    }

    /// Adds the files that a text includes, and the variables that it names.
    fn scan(&mut self, text: &str, home: Option<&Path>, seen: &mut HashSet<PathBuf>, depth: usize) {
        for line in text.lines().map(str::trim).filter(|line| !line.starts_with('#')) {
            let (keyword, value) = line.split_once([' ', '\t', '=', '"']).unwrap_or((line, ""));
            let keyword = keyword.to_ascii_lowercase();
            for name in line.split("${").skip(1).filter_map(|rest| rest.split('}').next()) {
                self.add_variable(name);
            }
            let lower = value.to_ascii_lowercase();
            self.is_unsteady |= keyword == "match" && (lower.contains("exec") || lower.contains("localnetwork"));
            // a command may name files in any of its arguments
            let is_command = COMMANDS.contains(&keyword.as_str()) && (keyword != "match" || lower.contains("exec"));
            self.is_relative |= is_command;
            self.has_free_proxy |= keyword == "proxycommand" && leads_elsewhere(value);
            self.is_relative |=
                FILES.contains(&keyword.as_str()) && arguments(value).iter().any(|file| is_relative(file));
            if keyword == "include" {
                for pattern in arguments(value) {
                    self.include(&pattern, home, seen, depth);
                }
            }
        }
    }

    fn include(&mut self, pattern: &str, home: Option<&Path>, seen: &mut HashSet<PathBuf>, depth: usize) {
        self.is_unsteady |= pattern.contains("${") || pattern.contains('%') || depth >= MAX_DEPTH;
        if depth >= MAX_DEPTH {
            return;
        }
        let in_home = |name: &str| home.map(|home| home.join(name).display().to_string());
        // relative to one or the other, depending on the file that includes it
        let patterns = match pattern.strip_prefix("~/") {
            Some(rest) => vec![in_home(rest)],
            None if pattern.starts_with('/') => vec![Some(pattern.to_owned())],
            None => vec![in_home(&format!(".ssh/{pattern}")), Some(format!("/etc/ssh/{pattern}"))],
        };
        for pattern in patterns.into_iter().flatten() {
            let Ok(files) = glob::glob(&pattern) else {
                self.is_unsteady = true;
                continue;
            };
            for file in files.flatten() {
                self.add(file.as_os_str().as_bytes());
                if !seen.insert(file.clone()) {
                    continue;
                }
                match fs::read(&file) {
                    Ok(bytes) => {
                        self.add(&bytes);
                        self.scan(&String::from_utf8_lossy(&bytes), home, seen, depth + 1);
                    }
                    // ssh skips a file that it cannot read
                    Err(error) => self.add(error.to_string().as_bytes()),
                }
            }
        }
    }
}

/// Returns a name for what this ssh program knows.
pub(super) fn program_key(ssh: &Path) -> String {
    hex(&Settings::of(Some(ssh)).digest.finalize(), 16)
}

/// Returns a name for a text.
pub(super) fn text_key(text: &str) -> String {
    hex(&Sha256::digest(text.as_bytes()), 16)
}

/// Returns how the names of all connections to a host begin.
pub(super) fn host_prefix(host: &str) -> String {
    hex(&Sha256::digest(host.as_bytes()), 4)
}

fn hex(bytes: &[u8], count: usize) -> String {
    bytes.iter().take(count).map(|byte| format!("{byte:02x}")).collect()
}

/// Splits what follows a keyword; an argument may be quoted.
fn arguments(value: &str) -> Vec<String> {
    let mut arguments = vec![String::new()];
    let mut is_quoted = false;
    for c in value.trim_start_matches(['=', ' ', '\t']).chars() {
        match c {
            '"' => is_quoted = !is_quoted,
            ' ' | '\t' if !is_quoted => arguments.push(String::new()),
            c => arguments.last_mut().expect("there is one").push(c),
        }
    }
    arguments.retain(|argument| !argument.is_empty());
    arguments
}

fn is_relative(file: &str) -> bool {
    !file.starts_with(['/', '~', '%', '$']) && !["none", "SSH_AUTH_SOCK"].contains(&file)
}

/// Returns whether a `ProxyCommand` may lead to another machine although it is the same text: `gcloud`, `aws` or
/// `kubectl` go where their account, project or context of the moment is. The usual programs go where their arguments
/// say.
fn leads_elsewhere(proxy: &str) -> bool {
    let words = proxy.trim_matches([' ', '\t', '=', '"']);
    let words = words.strip_prefix("exec ").unwrap_or(words).trim_start();
    let program = words.split_whitespace().next().and_then(|program| Path::new(program).file_name()?.to_str());
    let is_usual = program.is_some_and(|program| PROXIES.contains(&program));
    !words.eq_ignore_ascii_case("none") && (!is_usual || words.contains(['$', '`', ';', '|', '&', '(']))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::inventory::Inventory;

    fn node() -> Node {
        Inventory::local("gpu1", "i").nodes.remove(0)
    }

    #[test]
    fn whatever_decides_how_a_node_is_reached_is_in_its_key() {
        let home = tempfile::tempdir().unwrap();
        let place = |name: &str| home.path().join(name);
        fs::create_dir_all(place(".ssh/more")).unwrap();
        let write = |name: &str, text: &str| fs::write(place(name), text).unwrap();
        write(".ssh/config", "Include more/*.conf\n");
        write(".ssh/more/a.conf", "Host gpu1\n  Include ~/deep\n");
        write("deep", "User ana\n");
        write("ssh", "1");
        let configuration = format!("Include \"{}\"\n", place(".ssh/config").display());
        let key =
            |node: &Node| Settings::read(&configuration, Some(home.path()), Some(&place("ssh"))).key(node, 15, None);
        let mut keys = vec![key(&node())];
        assert_eq!(key(&node()), keys[0], "nothing has changed");
        for (name, text) in [(".ssh/more/b.conf", ""), ("deep", "User bob\n"), ("ssh", "22")] {
            write(name, text);
            keys.push(key(&node()));
        }
        fs::remove_file(place("deep")).unwrap();
        keys.push(key(&node()));
        let changes: [fn(&mut Node); 6] = [
            |node| node.host_key = Some("ssh-ed25519 AAAA".into()),
            |node| node.user = Some("root".into()),
            |node| node.ssh_port = Some(2222),
            |node| node.jump = Some("gate".into()),
            |node| node.identity = Some("/dev/null".into()),
            |node| node.host = "10.0.0.1".into(),
        ];
        for change in changes {
            let mut changed = node();
            change(&mut changed);
            keys.push(key(&changed));
        }
        let settings = Settings::read(&configuration, Some(home.path()), Some(&place("ssh")));
        keys.push(settings.key(&node(), 16, None));
        keys.push(settings.key(&node(), 15, Some("user bob\n")));
        keys.push(Settings::read("BatchMode yes\n", Some(home.path()), Some(&place("ssh"))).key(&node(), 15, None));
        let different: HashSet<&String> = keys.iter().collect();
        assert_eq!(different.len(), keys.len(), "{keys:?}");
        assert!(keys[0].starts_with(&host_prefix(&node().host)) && keys[0].len() == 32, "{}", keys[0]);
    }

    #[test]
    fn settings_that_need_more_than_their_text_are_found() {
        let read = |text: &str| {
            let Settings { is_unsteady, is_relative, .. } = Settings::read(text, None, None);
            (is_unsteady, is_relative)
        };
        for steady in ["Match host a\nUser b\n", "Host exec\n", "IdentityFile ~/.ssh/id\nIdentityFile=\"/a b\"\n"] {
            assert_eq!(read(steady), (false, false), "{steady}");
        }
        for unsteady in ["Match=localnetwork 10.0.0.0/8\n", "Include /${A}\n"] {
            assert_eq!(read(unsteady), (true, false), "{unsteady}");
        }
        for both in ["Match exec true\n", "  match host a !exec \"x\"\n"] {
            assert_eq!(read(both), (true, true), "{both}");
        }
        let proxies = ["ProxyCommand ./proxy %h\n", "ProxyCommand ssh -F ssh.cfg -W %h:%p bastion\n"];
        for relative in ["IdentityFile id\n", "identityfile=\"my id\"\n"].into_iter().chain(proxies) {
            assert_eq!(read(relative), (false, true), "{relative}");
        }
        // ssh itself gives up
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("config");
        fs::write(&file, format!("Include {}\n", file.display())).unwrap();
        assert_eq!(read(&format!("Include {}\n", file.display())), (false, false));
    }

    #[test]
    fn a_proxy_that_goes_where_its_account_is_leads_elsewhere() {
        let is_kept = |text: &str, proxy, jumps| Settings::read(text, None, None).lead_to_one_machine(proxy, jumps);
        let usual = ["ssh -W %h:%p gate", "exec /usr/bin/nc -x proxy:1080 %h %p 2>/dev/null", "none"];
        for proxy in usual {
            assert!(is_kept(&format!("ProxyCommand {proxy}\n"), Some(proxy), false), "{proxy}");
        }
        let free =
            ["aws ssm start-session --target %h", "sh -c 'aws ssm'", "ssh -W %h:%p $(gate)", "\"/opt/my proxy\" %h"];
        for proxy in free {
            assert!(!is_kept("", Some(proxy), false), "{proxy}");
            let others = format!("Host gate\n  proxycommand={proxy}\n");
            assert!(!is_kept(&others, None, true), "a jump host may need it: {proxy}");
            assert!(!is_kept(&others, Some(usual[0]), false), "so may the ssh of a proxy: {proxy}");
            assert!(is_kept(&others, None, false), "that of another host: {proxy}");
        }
    }
}
