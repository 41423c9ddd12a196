//! Opens a multiplexed session per node through the system's `ssh`, so that the user's configuration, agents, jump hosts
//! and hardware keys hold. `link` runs programs over it; no other module knows the `openssh` crate.

mod config;

use crate::error::{Error, NodeError};
use crate::event::{Event, Events};
use crate::inventory::{Cluster, Node};
use crate::text::failure::{self, Ssh};
use crate::text::public_key;
use crate::text::quote;
use crate::transport::host_key::{self, Changed};
use config::{configuration, own_known_hosts, quick_exchange, write_all};
use openssh::{KnownHosts, Session, SessionBuilder};
use rustix::process::{Pid, Signal};
use std::collections::{BTreeMap, BTreeSet};
use std::error::Error as _;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::process::Command;
use tokio::sync::Semaphore;
use tokio::time::timeout;

const PREFIX: &str = "hvdctl-ssh.";

/// What stands before the words of a jump host's ssh.
const ON_THE_WAY: &str = "on the way there: ";

/// sshd begins to drop connections that have not logged in yet at the tenth (`MaxStartups`, sshd_config(5)): no more than
/// these go over jump hosts at the same time.
const OVER_JUMP_HOSTS: usize = 8;

/// This process's control sockets and its generated configuration. Its directory is removed on drop.
#[derive(Debug)]
pub struct Control {
    dir: tempfile::TempDir,
    config: PathBuf,
    /// The user's own configuration of this cluster, for hints.
    named_config: Option<PathBuf>,
    /// hvdctl's own known-hosts file.
    own_known_hosts: String,
    /// The time between two keep-alive probes of a session.
    keep_alive: Duration,
    jumping: Semaphore,
    known: Mutex<Known>,
    events: Events,
}

/// What is needed to tell of first contacts.
#[derive(Debug, Default)]
struct Known {
    /// The lines that each known-hosts file had when it was first looked at, and those told since.
    lines: BTreeMap<PathBuf, BTreeSet<String>>,
    /// Nodes by the names that they have in such files.
    nodes: BTreeMap<String, String>,
}

/// What the user's configuration makes of a node.
struct Resolved {
    strict: bool,
    jumps: bool,
    /// Where the key of an unknown host is written: the first file of `UserKnownHostsFile`.
    known_hosts: Option<PathBuf>,
    identities: Vec<PathBuf>,
    agent: Option<PathBuf>,
    /// The key exchange that goes before those of its own.
    exchange: Option<&'static str>,
    /// What the host is called in known-hosts files.
    name: String,
}

impl Control {
    /// Makes the directory (mode 700) and the configuration that includes the cluster's, the user's and the system's. `strict`:
    /// no host key is accepted that is not known.
    ///
    /// # Errors
    /// When `ssh` is not installed, the cluster's configuration cannot be read, or a directory cannot be made.
    pub fn new(cluster: &Cluster, strict: bool, events: &Events) -> Result<Control, Error> {
        which::which("ssh").map_err(|e| Error::Here(format!("ssh: {e}\n  hint: install the OpenSSH client")))?;
        let here = |e: &dyn std::fmt::Display| Error::Here(format!("cannot prepare the ssh configuration: {e}"));
        sweep();
        if let Some(own) = &cluster.ssh_config {
            fs::File::open(own).map_err(|e| {
                Error::usage(
                    format!("cluster.ssh_config: {}: {e}", own.display()),
                    "name a file that `ssh -F` could read, or leave the field out",
                )
            })?;
        }
        // control sockets have a limit of about 100 bytes for their path, so the directory is in /tmp whatever TMPDIR says
        let dir = tempfile::Builder::new()
            .prefix(&format!("{PREFIX}{}.", std::process::id()))
            .tempdir_in("/tmp")
            .map_err(|e| here(&e))?;
        let config = dir.path().join("config");
        let own_known_hosts = own_known_hosts()?;
        let text = configuration(cluster.ssh_config.as_deref(), &own_known_hosts, strict)?;
        write_all(&config, &text).map_err(|e| here(&e))?;
        Ok(Control {
            dir,
            config,
            named_config: cluster.ssh_config.clone(),
            own_known_hosts: own_known_hosts.display().to_string(),
            keep_alive: cluster.keep_alive,
            jumping: Semaphore::new(OVER_JUMP_HOSTS),
            known: Mutex::default(),
            events: events.clone(),
        })
    }

    /// Opens the session of a node. Host keys that are seen for the first time are told, whether the login is taken or not:
    /// ssh keeps them before it logs in.
    ///
    /// # Errors
    /// [`NodeError`] of kind unreachable, with ssh's own words.
    pub async fn connect(&self, node: &Node, limit: Duration) -> Result<Arc<Session>, NodeError> {
        let resolved = self.resolve(node).await?;
        self.remember(node, &resolved);
        let session = self.open(node, &resolved, limit).await;
        self.tell_contacts(&resolved);
        session
    }

    async fn open(&self, node: &Node, resolved: &Resolved, limit: Duration) -> Result<Arc<Session>, NodeError> {
        let _turn = if resolved.jumps { self.jumping.acquire().await.ok() } else { None };
        let mut builder = SessionBuilder::default();
        builder
            .control_directory(self.dir.path())
            .config_file(resolved.exchange.map_or(self.config.clone(), |exchange| self.dir.path().join(exchange)))
            .known_hosts_check(if resolved.strict { KnownHosts::Strict } else { KnownHosts::Add })
            .connect_timeout(limit)
            .server_alive_interval(self.keep_alive);
        if let Some(user) = &node.user {
            builder.user(user.clone());
        }
        if let Some(port) = node.ssh_port {
            builder.port(port);
        }
        if let Some(identity) = &node.identity {
            builder.keyfile(identity);
        }
        if let Some(jump) = &node.jump {
            builder.jump_hosts([jump]);
        }
        // ssh's own time-out ends at the banner; a server that stalls later must not hold us either
        let whole = limit + Duration::from_secs(5);
        match timeout(whole, builder.connect_mux(&node.host)).await {
            Ok(Ok(session)) => Ok(Arc::new(session)),
            Ok(Err(error)) => {
                let mut said = chain(&error);
                // a jump host's ssh speaks on its own standard error, which the session's log does not have
                if said.contains("UNKNOWN port") {
                    said = match self.words_on_the_way(node, limit).await {
                        Some(words) => format!("{ON_THE_WAY}{words}"),
                        None => said,
                    };
                }
                Err(self.explain(node, &said))
            }
            Err(_) => Err(self.explain(node, &format!("no answer within {} s", whole.as_secs()))),
        }
    }

    /// `ssh` with the arguments that lead to this node, to which options and words may be added; its streams are the
    /// caller's to set.
    pub fn plain(&self, node: &Node, limit: Duration) -> Command {
        let mut command = Command::new("ssh");
        command.arg("-F").arg(&self.config).arg("-o").arg(format!("ConnectTimeout={}", limit.as_secs()));
        command.args(login_options(node)).kill_on_drop(true);
        command
    }

    /// The operator's public key for a node: that of its `identity`, else the first that ssh would offer.
    ///
    /// # Errors
    /// When there is none.
    pub async fn operators_key(&self, node: &Node) -> Result<String, NodeError> {
        let resolved = self.resolve(node).await?;
        let identities = node.identity.clone().map_or(resolved.identities, |identity| vec![identity]);
        for identity in &identities {
            // a public half may be named itself where an agent has the private one
            let mut name = identity.clone().into_os_string();
            name.push(".pub");
            for public in [PathBuf::from(name), identity.clone()] {
                if public.extension().is_some_and(|extension| extension == "pub")
                    && let Some(key) = fs::read_to_string(&public).ok().and_then(|text| public_key::public_line(&text))
                {
                    return Ok(key);
                }
            }
        }
        let missing = |hint: String| {
            NodeError::failed(&node.name, "find your public key", "there is none beside the key, nor in an agent")
                .hint(hint)
        };
        if let Some(identity) = &node.identity {
            let file = quote::readable(&identity.display().to_string());
            return Err(missing(format!("make it from the private one: ssh-keygen -y -f {file} > {file}.pub")));
        }
        let mut agent = Command::new("ssh-add");
        agent.arg("-L").stdin(Stdio::null()).kill_on_drop(true);
        if let Some(socket) = resolved.agent {
            agent.env("SSH_AUTH_SOCK", socket);
        }
        let listed = match timeout(Duration::from_secs(10), agent.output()).await {
            Ok(Ok(output)) => String::from_utf8_lossy(&output.stdout).into_owned(),
            _ => String::new(),
        };
        listed
            .lines()
            .find_map(public_key::public_line)
            .ok_or_else(|| missing("make one: ssh-keygen -t ed25519".into()))
    }

    async fn resolve(&self, node: &Node) -> Result<Resolved, NodeError> {
        let output = Command::new("ssh")
            .args(["-G", "-F"])
            .arg(&self.config)
            .args(login_options(node))
            .args(["--", &node.host])
            .stdin(Stdio::null())
            .kill_on_drop(true)
            .output();
        let output = match timeout(Duration::from_secs(10), output).await {
            Ok(Ok(output)) if output.status.success() => output,
            Ok(Ok(output)) => return Err(self.explain(node, &String::from_utf8_lossy(&output.stderr))),
            Ok(Err(e)) => return Err(self.explain(node, &e.to_string())),
            Err(_) => return Err(self.explain(node, "ssh -G did not answer within 10 s")),
        };
        let text = String::from_utf8_lossy(&output.stdout);
        let values = |key: &str| -> Vec<String> {
            text.lines().filter_map(|line| line.strip_prefix(key)?.strip_prefix(' ')).map(str::to_owned).collect()
        };
        let set = |key: &str| values(key).iter().any(|value| value != "none");
        Ok(Resolved {
            // without a word of the user's it is `accept-new`; `ask` cannot be asked in batch mode, and so it refuses
            strict: values("stricthostkeychecking")
                .iter()
                .any(|value| matches!(value.as_str(), "yes" | "true" | "ask")),
            jumps: set("proxyjump") || set("proxycommand"),
            known_hosts: values("userknownhostsfile")
                .first()
                .and_then(|files| host_key::first_file(files, &self.own_known_hosts))
                .map(expand),
            identities: values("identityfile").iter().map(|file| expand(file.clone())).collect(),
            agent: values("identityagent")
                .pop()
                .filter(|agent| agent != "none" && agent != "SSH_AUTH_SOCK")
                .map(expand),
            exchange: values("kexalgorithms").pop().and_then(|order| quick_exchange(&order)),
            name: match (values("hostkeyalias").pop(), values("hostname").pop(), values("port").pop()) {
                (Some(alias), _, _) => alias,
                (None, name, port) => {
                    let name = name.unwrap_or_else(|| node.host.clone());
                    port.filter(|port| port != "22").map_or(name.clone(), |port| format!("[{name}]:{port}"))
                }
            },
        })
    }

    /// Notes what a node is called, and what its known-hosts file has before anybody connects.
    fn remember(&self, node: &Node, resolved: &Resolved) {
        let Ok(mut known) = self.known.lock() else { return };
        known.nodes.insert(resolved.name.clone(), node.name.clone());
        if let Some(file) = &resolved.known_hosts {
            let text = || fs::read_to_string(file).unwrap_or_default();
            known.lines.entry(file.clone()).or_insert_with(|| text().lines().map(str::to_owned).collect());
        }
    }

    /// Tells of the lines that came into the known-hosts file meanwhile, whichever node or jump host they are about. It is
    /// a decision of trust, and so it is told even where little is.
    fn tell_contacts(&self, resolved: &Resolved) {
        let Some(file) = &resolved.known_hosts else { return };
        let text = fs::read_to_string(file).unwrap_or_default();
        let Ok(mut known) = self.known.lock() else { return };
        let Known { lines, nodes } = &mut *known;
        let before = lines.entry(file.clone()).or_default();
        let fresh = text.lines().filter(|line| before.insert((*line).to_owned()));
        for contact in fresh.filter_map(|line| host_key::contact(line, public_key::fingerprint)) {
            let node = nodes.get(&contact.name).filter(|node| **node != contact.name);
            let node = node.map_or(String::new(), |node| format!(" ({node})"));
            let text = format!("first contact with {}{node}: {} {}", contact.name, contact.kind, contact.fingerprint);
            self.events.send(Event::Warning(text));
        }
    }

    /// What `ssh` itself says where the session only learned that the connection was closed.
    async fn words_on_the_way(&self, node: &Node, limit: Duration) -> Option<String> {
        let output = self.plain(node, limit).args(["--", &node.host, "true"]).stdin(Stdio::null()).output();
        let output = timeout(limit + Duration::from_secs(5), output).await.ok()?.ok()?;
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        (!output.status.success() && !said.trim().is_empty()).then_some(said)
    }

    /// ssh's words with the next step for those that we know.
    fn explain(&self, node: &Node, said: &str) -> NodeError {
        let login = login(node);
        let by_hand = by_hand(node, self.named_config.as_deref());
        let tried = format!("log in by ssh as {login}");
        if let Some(changed) = host_key::changed(said) {
            return explain_changed(node, &tried, &changed);
        }
        let said: Vec<&str> = said
            .lines()
            .map(str::trim)
            .filter(|line| !line.is_empty() && !line.starts_with("Warning: Permanently added"))
            .collect();
        let said = said.join("\n");
        let is_jump_host = said.starts_with(ON_THE_WAY);
        let hint = match failure::ssh(&said) {
            Ssh::HostKeyUnknown => {
                format!("its host key is not known yet: compare the fingerprint and accept it once: {by_hand}")
            }
            Ssh::Refused if !is_jump_host => {
                "does ssh have the key (a passphrase wants an agent: ssh-add)? If the node does not know it yet: hvdctl keys push \
                 --first-login asks for the password and lets it in"
                    .into()
            }
            Ssh::NameUnknown if !is_jump_host => "set `host` to an address, or add the name to ~/.ssh/config".into(),
            _ => format!("see whether `{by_hand}` works"),
        };
        NodeError::unreachable(&node.name, &tried, said).hint(hint)
    }
}

/// Never tried again, and nothing is accepted for the operator: the fingerprints are for comparing.
fn explain_changed(node: &Node, tried: &str, changed: &Changed) -> NodeError {
    let old = fs::read_to_string(&changed.file)
        .ok()
        .and_then(|text| text.lines().nth(changed.line.checked_sub(1)?).map(str::to_owned))
        .and_then(|line| host_key::contact(&line, public_key::fingerprint))
        .map_or_else(|| "another one".to_owned(), |old| format!("{} {}", old.kind, old.fingerprint));
    let said = format!(
        "the host key of {} has changed\nknown ({}:{}): {old}\nnow: {} {}",
        changed.name, changed.file, changed.line, changed.kind, changed.fingerprint
    );
    let accept = format!("ssh-keygen -R {} -f {}", quote::readable(&changed.name), quote::readable(&changed.file));
    NodeError::unreachable(&node.name, tried, said).hint(format!(
        "somebody may stand between you and the machine. If it was reinstalled and the new fingerprint is its own \
         (`ssh-keygen -lf /etc/ssh/ssh_host_*_key.pub` on its console), forget the old key and connect again: {accept}"
    ))
}

/// `~/` in what `ssh -G` prints.
fn expand(file: String) -> PathBuf {
    match (file.strip_prefix("~/"), std::env::home_dir()) {
        (Some(rest), Some(home)) => home.join(rest),
        _ => PathBuf::from(file),
    }
}

/// What the inventory says about the way to a node, as options of ssh.
fn login_options(node: &Node) -> Vec<String> {
    let mut options = Vec::new();
    let mut option = |name: &str, value: Option<String>| {
        if let Some(value) = value {
            options.extend([name.to_owned(), value]);
        }
    };
    option("-l", node.user.clone());
    option("-p", node.ssh_port.map(|port| port.to_string()));
    option("-i", node.identity.as_ref().map(|file| file.display().to_string()));
    option("-J", node.jump.clone());
    options
}

fn login(node: &Node) -> String {
    match &node.user {
        Some(user) => format!("{user}@{}", node.host),
        None => node.host.clone(),
    }
}

/// The command with which a person would log in there.
fn by_hand(node: &Node, named_config: Option<&Path>) -> String {
    let mut words = vec!["ssh".to_owned()];
    if let Some(config) = named_config {
        words.extend(["-F".to_owned(), quote::readable(&config.display().to_string())]);
    }
    let without_user = Node { user: None, ..node.clone() };
    words.extend(login_options(&without_user).iter().map(|word| quote::readable(word)));
    words.push(login(node));
    words.join(" ")
}

/// Whether the node's sshd took none of the keys that it was offered.
pub fn is_refused(said: &str) -> bool {
    !said.starts_with(ON_THE_WAY) && failure::ssh(said) == Ssh::Refused
}

impl Drop for Control {
    /// An ssh that was given up while it connected goes on by itself, and would become a master that nobody knows. One that ends
    /// may still write there, so the directory goes when it can.
    fn drop(&mut self) {
        for _ in 0..50 {
            end_those_of(self.dir.path());
            let gone = fs::remove_dir_all(self.dir.path());
            if gone.is_ok() || !self.dir.path().exists() {
                return;
            }
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}

/// Ends what hvdctls left that were killed: their directories carry the id of a process that is no more.
fn sweep() {
    let Ok(entries) = fs::read_dir("/tmp") else { return };
    for entry in entries.flatten() {
        let name = entry.file_name();
        let owner = name.to_str().and_then(|n| n.strip_prefix(PREFIX)).and_then(|n| n.split('.').next());
        let Some(pid) = owner.and_then(|pid| pid.parse::<u32>().ok()) else { continue };
        let (Ok(own), Ok(meta)) = (fs::metadata("/proc/self"), entry.metadata()) else { continue };
        if Path::new(&format!("/proc/{pid}")).exists() || !meta.is_dir() || meta.uid() != own.uid() {
            continue;
        }
        end_those_of(&entry.path());
        let _ = fs::remove_dir_all(entry.path());
    }
}

/// Ends every ssh of ours whose control socket is, or would be, in this directory: its path stands among the arguments, and in
/// the title that a master gives itself.
fn end_those_of(directory: &Path) {
    let directory = directory.as_os_str().as_encoded_bytes();
    for process in fs::read_dir("/proc").into_iter().flatten().flatten() {
        let pid = process.file_name().to_str().and_then(|name| name.parse().ok()).and_then(Pid::from_raw);
        let Some(pid) = pid.filter(|pid| *pid != rustix::process::getpid()) else { continue };
        let words = fs::read(process.path().join("cmdline")).unwrap_or_default();
        if words.starts_with(b"ssh") && words.windows(directory.len()).any(|w| w == directory) {
            let _ = rustix::process::kill_process(pid, Signal::TERM);
        }
    }
}

/// An error and its causes in one line.
fn chain(error: &openssh::Error) -> String {
    let mut text = String::new();
    let mut next: Option<&dyn std::error::Error> = error.source().or(Some(error));
    while let Some(e) = next {
        let words = e.to_string();
        if !text.contains(&words) {
            text = if text.is_empty() { words } else { format!("{text}: {words}") };
        }
        next = e.source();
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::inventory::Inventory;

    fn control(named: Option<&Path>) -> Control {
        Control {
            dir: tempfile::tempdir().unwrap(),
            config: PathBuf::new(),
            named_config: named.map(Path::to_owned),
            own_known_hosts: String::new(),
            keep_alive: Cluster::default().keep_alive,
            jumping: Semaphore::new(1),
            known: Mutex::default(),
            events: Events::channel().0,
        }
    }

    #[test]
    fn known_failures_have_a_next_step() {
        let mut node = Inventory::local("gpu1", "i").nodes.remove(0);
        node.host = "gpu1".into();
        node.user = Some("ana".into());
        let error = control(None).explain(&node, "ana@gpu1: Permission denied (publickey).");
        assert_eq!(
            error.to_string(),
            "gpu1: cannot log in by ssh as ana@gpu1: ana@gpu1: Permission denied (publickey).\n  hint: does ssh have the \
             key (a passphrase wants an agent: ssh-add)? If the node does not know it yet: hvdctl keys push --first-login \
             asks for the password and lets it in"
        );
        node.ssh_port = Some(2222);
        node.jump = Some("gate".into());
        let refused =
            control(Some(Path::new("/a b/config"))).explain(&node, "connect to host gpu1: Connection refused");
        let hint = refused.hints.join("\n");
        assert_eq!(hint, "see whether `ssh -F '/a b/config' -p 2222 -J gate ana@gpu1` works");
    }

    #[test]
    fn a_changed_key_is_told_with_both_fingerprints_and_the_command() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("known_hosts");
        let old = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIJTyqYIOkkDxRjQoVAIwUpYHmzqDdzJYdHhGZ7cgBuzr";
        fs::write(&file, format!("# first\n[gpu1]:2222 {old}\n")).unwrap();
        let said = format!(
            "@ WARNING: REMOTE HOST IDENTIFICATION HAS CHANGED! @\nThe fingerprint for the ED25519 key sent by the remote host \
             is\nSHA256:new.\nOffending ED25519 key in {}:2\nHost key for [gpu1]:2222 has changed and you have requested \
             strict checking.\nHost key verification failed.",
            file.display()
        );
        let node = Inventory::local("gpu1", "i").nodes.remove(0);
        let error = control(None).explain(&node, &said).to_string();
        let old = public_key::fingerprint(old).unwrap();
        for words in [old.as_str(), "now: ED25519 SHA256:new", "ssh-keygen -R '[gpu1]:2222' -f "] {
            assert!(error.contains(words), "no {words} in {error}");
        }
    }
}
