//! Opens a multiplexed session per node by the system's `ssh`, so that the user's configuration, agents, jump hosts and
//! hardware keys are used. Only [`node`](super::node), which runs programs over the sessions, knows the `openssh` crate
//! as well.

mod client;
mod config;
mod forward;
mod kept;
mod masters;
mod settings;
mod turns;

use crate::error::{Error, NodeError};
use crate::event::{Events, Message};
use crate::inventory::{Cluster, Node};
use crate::text::failure::{self, Ssh};
use crate::text::nodeset::printable;
use crate::text::public_key;
use crate::text::quote::readable;
use crate::text::units::count;
use crate::trace;
use crate::transport::host_key::{self, ChangedHostKey};
use crate::transport::local;
pub use client::Client;
use config::{configuration, own_known_hosts};
pub use forward::Forward;
pub use kept::most_held;
use kept::{Directory, Kept, check_private};
use masters::{MasterDirectory, Starting};
use openssh::Session;
use settings::Settings;
use std::collections::{BTreeMap, HashMap, HashSet};
use std::error::Error as _;
use std::fs;
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};
use std::process::{Output, Stdio};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::net::UnixStream;
use tokio::process::Command;
use tokio::sync::{Semaphore, SemaphorePermit};
use tokio::time::{Instant, timeout};
use turns::{ASKED, LoginPhase, PERSON, Turns};

/// The message of a login that failed.
#[derive(Debug)]
enum LoginFailure {
    /// A message of ssh.
    Ssh(String),
    /// A message of the ssh which logs in to a jump host.
    JumpHost(String),
    /// hvdctl's own: no person has confirmed the login.
    Unconfirmed(String),
}

impl From<io::Error> for LoginFailure {
    fn from(error: io::Error) -> LoginFailure {
        LoginFailure::Ssh(error.to_string())
    }
}

/// Hint for a login that an agent or a security key did not sign.
const AGENT_HINT: &str = "the ssh agent or security key did not sign: unlock it, confirm in its window or touch the \
                          key, and repeat the command; `ssh-add -l` shows the agent's keys. A key that asks for a PIN \
                          must be in an agent";

/// Instruction for a login that waits for a signature.
const CONFIRM: &str = "confirm it in the ssh agent, or touch the security key";

/// Hint for nodes on which the operator's key is not installed yet.
const FIRST_LOGIN_HINT: &str = "If the node does not accept the key yet: hvdctl keys push --first-login asks for the \
                                node's password and installs the key";

/// The most logins over jump hosts at the same time. From the tenth on, sshd starts to drop connections that have not
/// logged in yet (`MaxStartups`, sshd_config(5)).
const OVER_JUMP_HOSTS: usize = 8;

/// The path of a control socket may have about 100 bytes, so it is here whatever TMPDIR says.
const TMP: &str = "/tmp";

/// Interval at which the progress of a login is checked.
const GLANCE: Duration = Duration::from_millis(100);

/// Time limit for local programs that contact no node.
const HERE_LIMIT: Duration = Duration::from_secs(10);

/// The state that logins to nodes share: ssh's generated configuration, the connections that outlive the command, and
/// the control sockets of this process, whose directory is removed on drop.
#[derive(Debug)]
pub struct Control {
    /// The directories of this process's sockets, of which the last one is used: there are several if others have
    /// removed one.
    dirs: Mutex<Vec<MasterDirectory>>,
    /// The original sockets of the masters that other commands may use by now.
    handed_over: Mutex<Vec<String>>,
    keeping: Option<Keeping>,
    /// The generated configuration, and its file.
    text: String,
    config: Mutex<PathBuf>,
    client: Client,
    /// The user's own configuration of this cluster, for hints.
    named_config: Option<PathBuf>,
    own_known_hosts: String,
    /// The time between two keep-alive probes of a session.
    keep_alive: Duration,
    jumping: Semaphore,
    turns: Turns,
    known: Mutex<KnownHostKeys>,
    /// The successful logins of this command.
    logins: Mutex<LoginCounts>,
    events: Events,
}

/// The numbers of successful logins.
#[derive(Debug, Default)]
struct LoginCounts {
    /// By node.
    nodes: BTreeMap<String, u32>,
    /// Logins over jump hosts.
    over_jump_hosts: u32,
}

/// The storage of connections for later commands.
#[derive(Debug)]
struct Keeping {
    directory: Directory,
    settings: Settings,
    /// The time without use after which a connection is closed.
    idle: Duration,
}

/// A connection to a node.
#[derive(Debug)]
pub struct Connection {
    /// Its session.
    pub session: Arc<Session>,
    /// Set if an earlier command opened the connection, so that the node may be gone.
    pub is_resumed: bool,
    kept: Option<Kept>,
    /// For one that ends without use, but is not kept.
    _in_use: Option<UnixStream>,
}

impl Connection {
    fn kept(kept: Kept, is_resumed: bool) -> Connection {
        Connection { session: Arc::new(kept.session()), is_resumed, kept: Some(kept), _in_use: None }
    }

    /// Returns whether it outlives the command.
    pub fn is_kept(&self) -> bool {
        self.kept.is_some()
    }

    /// Returns what the access script reported over this connection not long ago.
    pub fn access(&self) -> Option<String> {
        self.kept.as_ref()?.access()
    }

    /// Lets the commands of the next minute use what the access script has reported; nothing makes them ask.
    pub fn set_access(&self, report: &str) {
        if let Some(kept) = &self.kept {
            kept.set_access(report);
        }
    }

    /// Lets no other command use it.
    pub async fn discard(&self) {
        if let Some(kept) = &self.kept {
            kept.discard().await;
        }
    }
}

/// The host keys that are known before a first contact.
#[derive(Debug, Default)]
struct KnownHostKeys {
    /// The lines of each known-hosts file: those that it had at first, and those reported since.
    lines: HashMap<PathBuf, HashSet<String>>,
    /// Nodes by their names in such files.
    nodes: HashMap<String, String>,
}

/// The host to which ssh connects for a node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Destination {
    /// The host, after aliases.
    pub host: String,
    /// The port of its sshd.
    pub port: u16,
    /// Set if ssh reaches it through another machine or a program.
    pub is_behind_jump_host: bool,
}

impl Destination {
    /// Returns what the inventory says.
    pub fn of(node: &Node) -> Destination {
        let is_behind_jump_host = node.jump.as_ref().is_some_and(|jump| jump != "none");
        Destination { host: node.host.clone(), port: node.ssh_port.unwrap_or(22), is_behind_jump_host }
    }
}

/// The user's configuration for a node, as `ssh -G` prints it.
struct HostConfig(HashMap<String, Vec<String>>);

impl HostConfig {
    fn parse(text: &str) -> HostConfig {
        let mut values: HashMap<String, Vec<String>> = HashMap::new();
        for (key, value) in text.lines().filter_map(|line| line.split_once(' ')).filter(|(_, value)| *value != "none") {
            values.entry(key.to_owned()).or_default().push(value.to_owned());
        }
        HostConfig(values)
    }

    fn all(&self, key: &str) -> &[String] {
        self.0.get(key).map_or(&[], Vec::as_slice)
    }

    fn first(&self, key: &str) -> Option<&str> {
        self.all(key).first().map(String::as_str)
    }

    /// Returns true if unknown host keys are refused. In batch mode ssh cannot ask, so `ask` also refuses them.
    fn is_strict(&self) -> bool {
        matches!(self.first("stricthostkeychecking"), Some("yes" | "true" | "ask"))
    }

    /// Returns true if a login may ask a person, because an agent or a security key holds the key.
    fn may_ask(&self, node: &Node) -> bool {
        let has_agent = match self.first("identityagent") {
            None | Some("SSH_AUTH_SOCK") => std::env::var_os("SSH_AUTH_SOCK").is_some_and(|socket| !socket.is_empty()),
            Some(_) => true,
        };
        let own = node.identity.as_ref().map(|file| file.display().to_string());
        has_agent || own.iter().chain(self.all("identityfile")).any(|file| file.ends_with("_sk"))
    }

    fn uses_jump_host(&self) -> bool {
        self.first("proxyjump").or(self.first("proxycommand")).is_some()
    }

    /// The file to which the key of an unknown host is added.
    fn known_hosts(&self, own: &str) -> Option<String> {
        host_key::first_file(self.first("userknownhostsfile")?, own)
    }

    /// The name of the host in known-hosts files.
    fn known_name(&self, node: &Node) -> String {
        let name = self.first("hostname").unwrap_or(&node.host);
        match (self.first("hostkeyalias"), self.first("port")) {
            (Some(alias), _) => alias.to_owned(),
            (None, None | Some("22")) => name.to_owned(),
            (None, Some(port)) => format!("[{name}]:{port}"),
        }
    }
}

impl Control {
    /// Writes the configuration that includes the cluster's, the user's and the system's. `strict`: no unknown host key
    /// is accepted.
    ///
    /// # Errors
    /// When `ssh` is not installed, the cluster's configuration cannot be read, or a directory cannot be made.
    pub async fn new(cluster: &Cluster, strict: bool, events: &Events) -> Result<Control, Error> {
        let here = |e: io::Error| Error::Local(format!("cannot prepare the ssh configuration: {e}"));
        let program = which::which("ssh").ok();
        let directory = kept_directory(cluster, events).await;
        let client = match &directory {
            Some(directory) => Client::remembered(program.as_deref(), directory).await?,
            None => Client::find().await?,
        };
        if let Some(named) = &cluster.ssh_config {
            fs::File::open(named).map_err(|e| {
                Error::usage(
                    format!("cluster.ssh_config: {}: {e}", named.display()),
                    "name a file that `ssh -F` could read, or leave the field out",
                )
            })?;
        }
        let own_known_hosts = own_known_hosts()?;
        let text = configuration(cluster.ssh_config.as_deref(), &own_known_hosts, strict, &client)?;
        let shared = directory.and_then(|directory| {
            let written = directory.shared(&config_name(&text), &text);
            let ends =
                |e| format!("connections end with this command: cannot write to {}: {e}", directory.path().display());
            written.map_err(|e| events.warn(ends(e))).ok().map(|config| (directory, config))
        });
        let (keeping, dir, config) = match shared {
            Some((directory, config)) => {
                let settings = Settings::read(&text, client.home.as_deref(), program.as_deref());
                (Some(Keeping { directory, settings, idle: cluster.connection_idle }), None, config)
            }
            None => {
                let dir = MasterDirectory::create(Path::new(TMP)).map_err(here)?;
                let config = dir.path().join(config_name(&text));
                fs::write(&config, &text).map_err(here)?;
                (None, Some(dir), config)
            }
        };
        Ok(Control {
            dirs: Mutex::new(dir.into_iter().collect()),
            handed_over: Mutex::default(),
            keeping,
            text,
            config: Mutex::new(config),
            client,
            named_config: cluster.ssh_config.clone(),
            own_known_hosts: own_known_hosts.display().to_string(),
            keep_alive: cluster.keep_alive,
            jumping: Semaphore::new(OVER_JUMP_HOSTS),
            turns: Turns::default(),
            known: Mutex::default(),
            logins: Mutex::default(),
            events: events.clone(),
        })
    }

    /// Returns a connection to a node that an earlier command has left open, or else opens one that later commands can
    /// use.
    ///
    /// # Errors
    /// As [`Control::connect`].
    pub async fn open(&self, node: &Node, limit: Duration) -> Result<Connection, NodeError> {
        let Some(keeping) = &self.keeping else { return self.login(node, limit, None).await };
        let resolved = if keeping.settings.is_unsteady { Some(self.resolve(node).await?) } else { None };
        let key = keeping.settings.key(node, self.keep_alive.as_secs(), resolved.as_deref());
        let resumed = if keeping.directory.is_ours() { keeping.directory.resume(&key).await } else { None };
        match resumed {
            Some(kept) => Ok(Connection::kept(kept, true)),
            None => self.login(node, limit, Some((keeping, &key))).await,
        }
    }

    /// Opens a connection to a node, which ends with the command. First contacts are reported whether the login
    /// succeeds or not: ssh stores host keys before it logs in.
    ///
    /// # Errors
    /// [`NodeError`] of kind unreachable, with ssh's own message.
    pub async fn connect(&self, node: &Node, limit: Duration) -> Result<Connection, NodeError> {
        self.login(node, limit, None).await
    }

    async fn login(
        &self,
        node: &Node,
        limit: Duration,
        keep: Option<(&Keeping, &str)>,
    ) -> Result<Connection, NodeError> {
        let resolved = HostConfig::parse(&self.resolve(node).await?);
        let (proxy, jumps) = (resolved.first("proxycommand"), resolved.first("proxyjump").is_some());
        let keep = keep
            .filter(|(keeping, _)| keeping.settings.lead_to_one_machine(proxy, jumps) && keeping.directory.is_ours());
        let known_hosts = resolved.known_hosts(&self.own_known_hosts).map(|file| self.expand(&file));
        {
            let KnownHostKeys { lines, nodes } = &mut *self.known();
            nodes.insert(resolved.known_name(node), node.name.clone());
            if let Some(file) = &known_hosts {
                lines.entry(file.clone()).or_insert_with(|| read(file).lines().map(str::to_owned).collect());
            }
        }
        let start = self.start(node, &resolved, limit, keep.map(|(keeping, _)| keeping));
        let session = trace::operation(&node.name, "ssh", "log in", start).await;
        if let Some(file) = &known_hosts {
            self.report_contacts(file);
        }
        let session = session?;
        let Some((keeping, key)) = keep else {
            return Ok(Connection { session: Arc::new(session), is_resumed: false, kept: None, _in_use: None });
        };
        if let Some(kept) = keeping.directory.keep(key, session.control_socket(), keeping.idle).await {
            // its directory is this process's
            let (socket, _) = session.detach();
            self.handed_over.lock().unwrap_or_else(PoisonError::into_inner).push(socket.display().to_string());
            let _ = socket.parent().map(fs::remove_dir_all);
            return Ok(Connection::kept(kept, false));
        }
        // another command was faster
        let in_use = kept::hold(session.control_socket()).await;
        Ok(Connection { session: Arc::new(session), is_resumed: false, kept: None, _in_use: in_use })
    }

    /// Starts an ssh master. One that is kept holds no directory of this machine in use.
    async fn start(
        &self,
        node: &Node,
        resolved: &HostConfig,
        limit: Duration,
        keeping: Option<&Keeping>,
    ) -> Result<Session, NodeError> {
        // a login that waits for the jump host would keep all others waiting
        let _permit = if resolved.uses_jump_host() { self.jumping.acquire().await.ok() } else { None };
        let turn = self.turns.take(resolved.may_ask(node)).await;
        if turn.is_some() && self.turns.is_unattended() {
            let message = "the login was not confirmed: another login waited for it and timed out";
            return Err(self.explain(node, LoginFailure::Unconfirmed(message.to_owned())));
        }
        let mut ssh = Command::new("ssh");
        if keeping.is_some_and(|keeping| !keeping.settings.is_relative) {
            ssh.current_dir("/");
        }
        let persist = keeping.map_or("yes".to_owned(), |keeping| keeping.idle.as_secs().to_string());
        let strict = if resolved.is_strict() { "yes" } else { "accept-new" };
        ssh.arg("-F").arg(self.config()).args(["-M", "-f", "-N"]);
        for option in [
            format!("ControlPersist={persist}"),
            "BatchMode=yes".to_owned(),
            format!("StrictHostKeyChecking={strict}"),
            format!("ConnectTimeout={}", limit.as_secs()),
            format!("ServerAliveInterval={}", self.keep_alive.as_secs()),
        ] {
            ssh.arg("-o").arg(option);
        }
        if node.identity.is_some() {
            ssh.args(["-o", "IdentitiesOnly=yes"]);
        }
        ssh.args(login_options(node)).args(self.host_key_options(node));
        let starting = self.directory().and_then(|directory| Starting::new(ssh, &directory, &node.host));
        let started = async { self.follow(node, starting?, limit, turn).await };
        let failed = match started.await {
            Ok(session) => {
                self.count_login(node, resolved.uses_jump_host());
                return Ok(session);
            }
            Err(failed) => failed,
        };
        // the log of the session lacks what a jump host's ssh writes to its own standard error
        let jump_host = match &failed {
            LoginFailure::Ssh(message) if failure::is_from_jump_host(message) => {
                self.jump_host_error(node, limit).await
            }
            _ => None,
        };
        Err(self.explain(node, jump_host.map_or(failed, LoginFailure::JumpHost)))
    }

    /// Waits for a login. The time that a person takes has a limit of its own. `turn`: held while no other login may
    /// ask.
    ///
    /// # Errors
    /// With ssh's own message, or if the person does not confirm it.
    async fn follow(
        &self,
        node: &Node,
        mut starting: Starting,
        limit: Duration,
        mut turn: Option<SemaphorePermit<'_>>,
    ) -> Result<Session, LoginFailure> {
        // ssh's own time-out ends at the banner, and a server may stall later
        let whole = limit + Duration::from_secs(5);
        let (mut connecting, mut asking, mut is_reported) = (Duration::ZERO, Duration::ZERO, false);
        loop {
            let since = Instant::now();
            if let Ok(status) = timeout(GLANCE, starting.ended()).await {
                let session = starting.session(status?);
                if session.is_ok() && is_reported {
                    self.turns.note_person(true);
                } else if session.is_ok() {
                    self.turns.open();
                }
                return session.map_err(LoginFailure::from);
            }
            let waits_for = match starting.phase() {
                LoginPhase::Connecting | LoginPhase::LoggedIn => {
                    connecting += since.elapsed();
                    // a node that does not answer keeps no other waiting
                    if turn.is_some() && !is_reported && connecting >= self.turns.patience() {
                        self.turns.pass_on();
                        turn = None;
                    }
                    if connecting >= whole {
                        return Err(LoginFailure::Ssh(format!("no answer within {} s", whole.as_secs())));
                    }
                    continue;
                }
                LoginPhase::Signing => CONFIRM.to_owned(),
                LoginPhase::Page(page) => printable(&page),
            };
            asking += since.elapsed();
            if asking >= ASKED && !is_reported {
                is_reported = true;
                // without the person nothing goes on, so that this is shown even with `--quiet`
                self.events.warn(Message::of(&node.name, format!("the login waits for you: {waits_for}")));
            }
            if asking >= PERSON {
                // each node may have a page of its own
                self.turns.note_person(waits_for != CONFIRM);
                let message = format!("the login was not confirmed within {} s: {waits_for}", PERSON.as_secs());
                return Err(LoginFailure::Unconfirmed(message));
            }
        }
    }

    /// Returns the directory of this process's sockets, another one if it is gone. It is in the file system of those
    /// that are kept.
    ///
    /// # Errors
    /// When it cannot be made.
    pub fn directory(&self) -> io::Result<PathBuf> {
        let mut dirs = self.dirs.lock().unwrap_or_else(PoisonError::into_inner);
        let kept = self.keeping.as_ref().map(|keeping| &keeping.directory).filter(|kept| kept.is_ours());
        let parent = kept.map_or(Path::new(TMP), Directory::path);
        let is_ours = |dir: &Path| dir.parent() == Some(parent) && check_private(dir).is_ok();
        if let Some(dir) = dirs.last().map(MasterDirectory::path).filter(|dir| is_ours(dir)) {
            return Ok(dir.to_owned());
        }
        let dir = MasterDirectory::create(parent)?;
        let path = dir.path().to_owned();
        dirs.push(dir);
        Ok(path)
    }

    /// Returns the file of the configuration. It is written again if it is gone: a job is followed for days, while
    /// others clean up what seems to be unused. If it cannot be written, ssh reports that it is missing.
    fn config(&self) -> PathBuf {
        let mut config = self.config.lock().unwrap_or_else(PoisonError::into_inner);
        // a user who has made another directory of that name could let ssh run any program
        if !config.exists() || config.parent().is_none_or(|parent| check_private(parent).is_err()) {
            let name = config_name(&self.text);
            let kept = self.keeping.as_ref().and_then(|keeping| Directory::at(keeping.directory.path()).ok());
            let written = match kept {
                Some(kept) => kept.shared(&name, &self.text),
                None => {
                    self.directory().and_then(|own| fs::write(own.join(&name), &self.text).map(|()| own.join(&name)))
                }
            };
            if let Ok(file) = written {
                *config = file;
            }
        }
        config.clone()
    }

    /// Returns what `ssh` itself writes where the session only learned that the connection was closed.
    async fn jump_host_error(&self, node: &Node, limit: Duration) -> Option<String> {
        let mut ssh = self.plain(node, limit);
        let output = output(ssh.args(["--", &node.host, "true"]), limit + Duration::from_secs(5)).await.ok()?;
        let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
        (!output.status.success() && !stderr.trim().is_empty()).then_some(stderr)
    }

    /// Returns an `ssh` with the arguments that lead to this node. Options, the host and a command may be added. It
    /// neither uses nor leaves behind a connection that the user's configuration shares (`ControlMaster`).
    pub fn plain(&self, node: &Node, limit: Duration) -> Command {
        let mut command = Command::new("ssh");
        command.arg("-F").arg(self.config()).arg("-o").arg(format!("ConnectTimeout={}", limit.as_secs()));
        command.args(["-S", "none"]).args(login_options(node)).args(self.host_key_options(node)).kill_on_drop(true);
        command
    }

    /// Returns the options with which ssh accepts only the host key that the inventory has for a node, whatever else it
    /// knows. Without room for the file it accepts none.
    fn host_key_options(&self, node: &Node) -> Vec<String> {
        let Some(key) = &node.host_key else { return Vec::new() };
        let file = self.known_hosts(key).unwrap_or_else(|_| PathBuf::from("/dev/null"));
        // ssh expands %-tokens in this option
        let file = format!("UserKnownHostsFile=\"{}\"", file.display().to_string().replace('%', "%%"));
        let options =
            ["GlobalKnownHostsFile=/dev/null", "StrictHostKeyChecking=yes", "VerifyHostKeyDNS=no", "UpdateHostKeys=no"];
        [&file]
            .into_iter()
            .map(String::as_str)
            .chain(options)
            .flat_map(|option| ["-o".to_owned(), option.to_owned()])
            .collect()
    }

    /// Returns a file that knows this one key, for whatever name the user's configuration gives the host.
    fn known_hosts(&self, key: &str) -> io::Result<PathBuf> {
        let (name, text) = (format!("known_hosts.{}", settings::text_key(key)), format!("* {key}\n"));
        let kept = self.keeping.as_ref().map(|keeping| &keeping.directory).filter(|kept| kept.is_ours());
        if let Some(Ok(file)) = kept.map(|kept| kept.shared(&name, &text)) {
            return Ok(file);
        }
        let directory = self.directory()?;
        // whole from the beginning: another login may read it
        let mut file = tempfile::NamedTempFile::new_in(&directory)?;
        file.write_all(text.as_bytes())?;
        let path = directory.join(name);
        file.persist(&path).map_err(|error| error.error)?;
        Ok(path)
    }

    /// Returns the operator's public key for a node: that of its `identity`, else the first that ssh would offer.
    ///
    /// # Errors
    /// When there is none.
    pub async fn operators_key(&self, node: &Node) -> Result<String, NodeError> {
        let resolved = HostConfig::parse(&self.resolve(node).await?);
        let identities = match &node.identity {
            Some(identity) => vec![identity.display().to_string()],
            None => resolved.all("identityfile").to_vec(),
        };
        // an identity may be the public half itself, where an agent has the private one
        let public_half = |file: &String| self.expand(&format!("{}.pub", file.strip_suffix(".pub").unwrap_or(file)));
        if let Some(key) = identities.iter().find_map(|file| public_key::public_line(&read(&public_half(file)))) {
            return Ok(key);
        }
        let cause = "no public key is next to the private key or in an agent";
        let missing = NodeError::failed(&node.name, "find your public key", cause);
        if let Some(identity) = &node.identity {
            let file = readable(&identity.display().to_string());
            return Err(missing.hint(format!("derive it from the private key: ssh-keygen -y -f {file} > {file}.pub")));
        }
        local::find("ssh-add", client::PACKAGE)
            .map_err(|lack| NodeError::failed(&node.name, "ask the ssh agent", lack.message).hint(lack.hint))?;
        let mut agent = Command::new("ssh-add");
        if let Some(socket) = resolved.first("identityagent").filter(|socket| *socket != "SSH_AUTH_SOCK") {
            agent.env("SSH_AUTH_SOCK", self.expand(socket));
        }
        let listed = output(agent.arg("-L"), HERE_LIMIT).await.map(|listed| listed.stdout).unwrap_or_default();
        let key = public_key::public_line(&String::from_utf8_lossy(&listed));
        key.ok_or_else(|| missing.hint("create one: ssh-keygen -t ed25519"))
    }

    /// Returns the user's settings for a node, as `ssh -G` prints them.
    async fn resolve(&self, node: &Node) -> Result<String, NodeError> {
        let mut ssh = self.plain(node, HERE_LIMIT);
        let resolved = output(ssh.args(["-G", "--", &node.host]), HERE_LIMIT).await;
        let resolved = resolved.map_err(|e| self.explain(node, LoginFailure::Ssh(format!("ssh -G: {e}"))))?;
        if !resolved.status.success() {
            let message = String::from_utf8_lossy(&resolved.stderr).into_owned();
            return Err(self.explain(node, LoginFailure::Ssh(message)));
        }
        Ok(String::from_utf8_lossy(&resolved.stdout).into_owned())
    }

    /// Returns where ssh connects to for a node, by the user's configuration.
    ///
    /// # Errors
    /// When ssh cannot read the configuration.
    pub async fn destination(&self, node: &Node) -> Result<Destination, NodeError> {
        let config = HostConfig::parse(&self.resolve(node).await?);
        let named = Destination::of(node);
        Ok(Destination {
            host: config.first("hostname").map_or(named.host, str::to_owned),
            port: config.first("port").and_then(|port| port.parse().ok()).unwrap_or(named.port),
            is_behind_jump_host: config.uses_jump_host(),
        })
    }

    /// Expands `~/` in what `ssh -G` prints.
    fn expand(&self, file: &str) -> PathBuf {
        match (file.strip_prefix("~/"), &self.client.home) {
            (Some(rest), Some(home)) => home.join(rest),
            _ => PathBuf::from(file),
        }
    }

    fn known(&self) -> MutexGuard<'_, KnownHostKeys> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Reports lines that are new in a known-hosts file, whichever node or jump host they are about. Each is a decision
    /// of trust, so it is reported even with `--quiet`.
    fn report_contacts(&self, file: &Path) {
        let text = read(file);
        let KnownHostKeys { lines, nodes } = &mut *self.known();
        let before = lines.entry(file.to_owned()).or_default();
        let new = text.lines().filter(|line| before.insert((*line).to_owned()));
        for contact in new.filter_map(host_key::contact) {
            let node = nodes.get(&contact.name).filter(|node| **node != contact.name);
            let node = node.map_or(String::new(), |node| format!(" ({node})"));
            self.events.warn(format!("first contact with {}{node}: {}", contact.name, contact.key));
        }
    }

    /// Returns an error with the message and the next step.
    fn explain(&self, node: &Node, failed: LoginFailure) -> NodeError {
        let login = login(node);
        let operation = format!("log in by ssh as {login}");
        let (message, is_of_jump_host) = match failed {
            LoginFailure::Ssh(message) => (message, false),
            LoginFailure::JumpHost(message) => (message, true),
            LoginFailure::Unconfirmed(message) => {
                let error = NodeError::unreachable(&node.name, &operation, message).hint(AGENT_HINT);
                return NodeError { takes_first_login: true, ..error.hint(FIRST_LOGIN_HINT) };
            }
        };
        let changed = host_key::changed(&message);
        let kind = failure::ssh(&message);
        let is_of_host_key = changed.is_some() || kind == Ssh::HostKeyUnknown;
        if let Some(key) = node.host_key.as_ref().filter(|_| is_of_host_key && !is_of_jump_host) {
            return explain_other_key(node, &operation, key, changed.as_ref());
        }
        if let Some(changed) = changed {
            return explain_changed(node, &operation, &changed);
        }
        let message = failure::ssh_message(&message);
        if failure::is_out_of_files(&message) {
            return NodeError::unreachable(&node.name, &operation, message);
        }
        let hint = self.refusal_hint(node, kind, &message, is_of_jump_host);
        let takes_first_login = !is_of_jump_host && is_refusal(kind);
        // where no key was used, that of the operator may be missing as well
        let first_login = (takes_first_login && kind != Ssh::Refused).then_some(FIRST_LOGIN_HINT);
        let message = if is_of_jump_host { format!("jump host: {message}") } else { message };
        let limited = failure::is_unanswered(&message).then(|| self.limit_hint(node, &message, is_of_jump_host));
        let error = NodeError::unreachable(&node.name, &operation, message).hint(hint);
        let error = limited.flatten().into_iter().fold(error, NodeError::hint);
        NodeError { takes_first_login, ..first_login.into_iter().fold(error, NodeError::hint) }
    }

    /// Counts a successful login.
    fn count_login(&self, node: &Node, uses_jump_host: bool) {
        let mut logins = self.logins.lock().unwrap_or_else(PoisonError::into_inner);
        *logins.nodes.entry(node.name.clone()).or_default() += 1;
        logins.over_jump_hosts += u32::from(uses_jump_host);
    }

    /// Returns the next step where no connection was opened: a firewall may limit new ones, of which logins before this
    /// one are a sign, and commands that keep none open need many. A first one that is refused has no sshd behind it.
    fn limit_hint(&self, node: &Node, message: &str, is_of_jump_host: bool) -> Option<String> {
        let before = {
            let logins = self.logins.lock().unwrap_or_else(PoisonError::into_inner);
            let of_node = logins.nodes.get(&node.name).copied().unwrap_or_default();
            if is_of_jump_host { logins.over_jump_hosts } else { of_node }
        };
        let (place, is_kept) = (if is_of_jump_host { "the jump host" } else { "the node" }, self.keeping.is_some());
        let condition = match before {
            0 if is_kept || message.contains("refused") => return None,
            0 => format!("if earlier commands reached {place}"),
            _ => format!("{} of this command had worked", count(before as usize, "login")),
        };
        let step = match is_kept {
            true => "let the firewall except this machine".to_owned(),
            false => "set connection_idle_s = 600 in [cluster], so that commands use open connections again".to_owned(),
        };
        Some(format!(
            "{condition}: a firewall may limit new connections there, as `ufw limit` does (six in 30 s). Wait 30 s and \
             repeat the command; {step}"
        ))
    }

    /// Returns the next step after a failed login, given ssh's message and its kind.
    fn refusal_hint(&self, node: &Node, kind: Ssh, message: &str, is_of_jump_host: bool) -> String {
        let (by_hand, config) = (by_hand(node, self.named_config.as_deref()), self.client.config_name());
        let host = readable(&node.host);
        let is_here = matches!(kind, Ssh::HostKeyUnknown | Ssh::KeyFileOpen | Ssh::ConfigOpen | Ssh::BadOption);
        match kind {
            _ if !is_here && is_of_jump_host => format!("see whether `{by_hand}` works"),
            Ssh::HostKeyUnknown => {
                format!("its host key is not known yet: compare the fingerprint and accept it once: {by_hand}")
            }
            Ssh::TooManyKeys => format!(
                "ssh offers more keys than sshd there tries (MaxAuthTries): name the right one by `identity` in the \
                 inventory, or in {config}: Host {host}, IdentityFile ~/.ssh/KEY, IdentitiesOnly yes. `ssh-add -D` \
                 empties the agent"
            ),
            Ssh::AgentRefused => AGENT_HINT.into(),
            Ssh::KeyFileOpen => {
                let file = failure::open_file(message).map_or("FILE".to_owned(), readable);
                format!("chmod 600 {file} (on a Windows drive in WSL copy it to ~/.ssh first)")
            }
            Ssh::ConfigOpen => {
                let file = failure::open_file(message).map_or("FILE".to_owned(), readable);
                format!(
                    "ssh reads it only if it belongs to you or root, and no other user can change it: chmod go-w \
                     {file}, or chown it"
                )
            }
            Ssh::KeyFileBroken => "ssh cannot read the private key: it may be cut off, belong to another user, have \
                                   Windows line ends, be in PuTTY's format (puttygen KEY -O private-openssh -o NEW), \
                                   or need a newer OpenSSH; `ssh-keygen -y -f KEY` checks it"
                .into(),
            Ssh::KeyFileMissing => {
                format!("the key file does not exist: correct `identity` in the inventory, or IdentityFile in {config}")
            }
            Ssh::NoKeyAccepted => "sshd there does not accept a key alone, and hvdctl does not enter passwords or \
                                   codes: ask its administrator for logins by key (PubkeyAuthentication yes, and \
                                   AuthenticationMethods publickey in a Match block for you)"
                .into(),
            Ssh::OldAlgorithms => format!(
                "the node's sshd is older or stricter than this ssh: update it, or allow what it offers in {config}, \
                 e.g. Host {host}, HostKeyAlgorithms +ssh-rsa, PubkeyAcceptedAlgorithms +ssh-rsa"
            ),
            Ssh::BadOption => {
                "this ssh does not know an option in its configuration: remove it, or list it before its use in the \
                 first IgnoreUnknown, the only one that counts (for example IgnoreUnknown \
                 UseKeychain,GSSAPIAuthentication)"
                    .into()
            }
            Ssh::Refused => format!("load a key with a passphrase into an agent (ssh-add). {FIRST_LOGIN_HINT}"),
            Ssh::Dropped => format!(
                "sshd closed the connection before the login: it may have too many at once (MaxStartups), block this \
                 machine after failed logins (fail2ban, PerSourcePenalties), or not be ready yet; see whether \
                 `{by_hand}` works"
            ),
            Ssh::NameUnknown => format!("set `host` to an address, or add the name to {config}"),
            Ssh::Other => format!("see whether `{by_hand}` works"),
        }
    }
}

/// Returns the error of a changed host key, which nothing accepts for the operator: the fingerprints are for comparing.
fn explain_changed(node: &Node, operation: &str, changed: &ChangedHostKey) -> NodeError {
    let ChangedHostKey { name, key, file, line } = changed;
    let text = read(Path::new(file));
    let old = line.checked_sub(1).and_then(|index| text.lines().nth(index)).and_then(host_key::contact);
    let old = old.map_or_else(|| "another one".to_owned(), |old| old.key);
    let message = format!("the host key of {name} has changed\nknown ({file}:{line}): {old}\nnow: {key}");
    NodeError::unreachable(&node.name, operation, message).hint(format!(
        "the connection may be intercepted. If the machine was reinstalled, compare the new fingerprint on its console \
         (`ssh-keygen -lf /etc/ssh/ssh_host_*_key.pub`), then remove the old key and connect again: \
         ssh-keygen -R {} -f {}",
        readable(name),
        readable(file)
    ))
}

/// Returns the error of a machine that has not the host key that the inventory says.
fn explain_other_key(node: &Node, operation: &str, key: &str, changed: Option<&ChangedHostKey>) -> NodeError {
    let known = public_key::shown(key);
    let now = changed.map_or_else(String::new, |changed| format!(", but {}", changed.key));
    let owner = node.owner.as_deref().unwrap_or("its owner");
    NodeError::unreachable(
        &node.name,
        operation,
        format!(
            "its host key is not the one in the inventory, {known}{now}"
        ),
    )
    .hint(format!(
        "another machine answers there, or this one was reinstalled: ask {owner} for the fingerprint on its console \
         (`ssh-keygen -lf /etc/ssh/ssh_host_*_key.pub`); a node of a pool must be published again (hvdctl grade \
         --publish)"
    ))
}

/// Returns the name of the file of a configuration.
fn config_name(text: &str) -> String {
    format!("config.{}", settings::text_key(text))
}

/// Runs a program of this machine with an empty standard input to its end.
async fn output(program: &mut Command, limit: Duration) -> io::Result<Output> {
    let output = program.stdin(Stdio::null()).kill_on_drop(true).output();
    timeout(limit, output).await.unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into()))
}

/// Returns the text of a file, or nothing where it cannot be read.
fn read(file: &Path) -> String {
    fs::read_to_string(file).unwrap_or_default()
}

/// Returns the inventory's settings for logging in to a node, as options of ssh.
fn login_options(node: &Node) -> Vec<String> {
    let options = [
        ("-l", node.user.clone()),
        ("-p", node.ssh_port.map(|port| port.to_string())),
        ("-i", node.identity.as_ref().map(|file| absolute(file).display().to_string())),
        ("-J", node.jump.clone()),
    ];
    options.into_iter().filter_map(|(option, value)| Some([option.to_owned(), value?])).flatten().collect()
}

/// Returns the path that a file has from every directory.
fn absolute(file: &Path) -> PathBuf {
    std::path::absolute(file).unwrap_or_else(|_| file.to_owned())
}

fn login(node: &Node) -> String {
    node.user.as_ref().map_or_else(|| node.host.clone(), |user| format!("{user}@{}", node.host))
}

/// Returns the command with which a person would log in to a node.
fn by_hand(node: &Node, named_config: Option<&Path>) -> String {
    let config = named_config.map(|config| format!(" -F {}", readable(&config.display().to_string())));
    let options = login_options(&Node { user: None, ..node.clone() });
    let options: String = options.iter().map(|option| format!(" {}", readable(option))).collect();
    format!("ssh{}{options} {}", config.unwrap_or_default(), login(node))
}

/// Returns whether no key let the operator in, so that a password may install one. Where sshd lets no one in by a key,
/// none helps.
fn is_refusal(kind: Ssh) -> bool {
    use Ssh::{AgentRefused, KeyFileBroken, KeyFileMissing, KeyFileOpen, Refused, TooManyKeys};
    [Refused, TooManyKeys, AgentRefused, KeyFileOpen, KeyFileBroken, KeyFileMissing].contains(&kind)
}

impl Drop for Control {
    fn drop(&mut self) {
        let handed_over = self.handed_over.get_mut().unwrap_or_else(PoisonError::into_inner);
        for dir in self.dirs.get_mut().unwrap_or_else(PoisonError::into_inner) {
            masters::remove(dir.path(), handed_over);
        }
    }
}

/// Returns the directory of kept connections after it has been cleaned, and cleans the one of those that end with a
/// command.
async fn kept_directory(cluster: &Cluster, events: &Events) -> Option<Directory> {
    let opened = (!cluster.connection_idle.is_zero()).then(Directory::open);
    match opened {
        Some(Ok(directory)) => {
            masters::remove_stale_directories(directory.path());
            directory.clean().await;
            return Some(directory);
        }
        Some(Err(why)) => events.warn(
            Message::from(format!("connections end with this command: {why}"))
                .hint("remove it, or set `connection_idle_s = 0` in the inventory"),
        ),
        None => {}
    }
    masters::remove_stale_directories(Path::new(TMP));
    None
}

/// Closes the connections to a node that earlier commands have left open, whatever the settings were. Returns whether
/// there was one.
///
/// # Errors
/// When the directory of kept connections is not used.
pub async fn disconnect(node: &Node) -> Result<bool, Error> {
    let directory = Directory::open().map_err(|why| Error::Local(format!("cannot use the kept connections: {why}")))?;
    Ok(directory.close(&settings::host_prefix(&node.host)).await > 0)
}

/// Returns the causes of an error in one line.
pub(super) fn causes(error: &openssh::Error) -> String {
    let first: &dyn std::error::Error = error.source().unwrap_or(error);
    let (mut text, mut next) = (first.to_string(), first.source());
    while let Some(cause) = next {
        let message = cause.to_string();
        if !text.contains(&message) {
            text = format!("{text}: {message}");
        }
        next = cause.source();
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::inventory::Inventory;
    use std::os::unix::fs::PermissionsExt;

    fn control(named: Option<&Path>) -> Control {
        Control {
            dirs: Mutex::default(),
            handed_over: Mutex::default(),
            keeping: None,
            text: "Host *\n".into(),
            config: Mutex::default(),
            client: Client::default(),
            named_config: named.map(Path::to_owned),
            own_known_hosts: String::new(),
            keep_alive: Cluster::default().keep_alive,
            jumping: Semaphore::new(1),
            turns: Turns::default(),
            known: Mutex::default(),
            logins: Mutex::default(),
            events: Events::channel().0,
        }
    }

    #[test]
    fn a_configuration_that_others_have_removed_is_written_again() {
        let run = tempfile::tempdir().unwrap();
        let path = run.path().join("hvdctl");
        let directory = Directory::at(&path).unwrap();
        let settings = Settings::read("Host *\n", None, None);
        let mut control = control(None);
        control.keeping = Some(Keeping { directory, settings, idle: Duration::from_secs(600) });
        let is_readable = |file: &Path| fs::read_to_string(file).is_ok_and(|text| text == "Host *\n");
        let first = control.config();
        assert!(first.starts_with(&path) && is_readable(&first), "{first:?}");
        fs::remove_dir_all(&path).unwrap();
        assert_eq!(control.config(), first);
        assert!(is_readable(&first));
        // another user's
        fs::remove_dir_all(&path).unwrap();
        fs::create_dir(&path).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o777)).unwrap();
        fs::write(&first, "Host *\n  ProxyCommand evil\n").unwrap();
        let other = control.config();
        assert!(!other.starts_with(&path) && is_readable(&other), "{other:?}");
        // with its parent
        fs::remove_dir_all(run.path()).unwrap();
        assert_eq!(control.config(), other);
    }

    /// The failure that says this.
    fn said(text: &str) -> LoginFailure {
        match text.strip_prefix("jump host: ") {
            Some(text) => LoginFailure::JumpHost(text.to_owned()),
            None => LoginFailure::Ssh(text.to_owned()),
        }
    }

    #[test]
    fn known_failures_have_a_next_step() {
        let mut node = Inventory::local("gpu1", "i").nodes.remove(0);
        node.host = "gpu1".into();
        node.user = Some("ana".into());
        let error = control(None).explain(&node, said("ana@gpu1: Permission denied (publickey)."));
        assert_eq!(
            error.to_string(),
            "gpu1: cannot log in by ssh as ana@gpu1: ana@gpu1: Permission denied (publickey).\n  hint: load a key with a \
             passphrase into an agent (ssh-add). If the node does not accept the key yet: hvdctl keys push \
             --first-login \
             asks for the node's password and installs the key"
        );
        let explained = |text: &str| control(None).explain(&node, said(text));
        let many = explained(
            "Received disconnect from 10.0.0.2 port 22:2: Too many authentication failures\nDisconnected from 10.0.0.2",
        );
        let hint = many.hints.join("\n");
        assert!(
            hint.contains("Host gpu1, IdentityFile ~/.ssh/KEY, IdentitiesOnly yes") && !hint.contains("load a key"),
            "{hint}"
        );
        let agent = explained(
            "** WARNING: connection is not using a post-quantum key exchange algorithm.\nsign_and_send_pubkey: signing \
             failed for \
             ED25519 \"k\" from agent: agent refused operation\nana@gpu1: Permission denied (publickey).",
        );
        assert!(agent.message.starts_with("sign_and_send_pubkey: signing failed"), "{agent}");
        for (said, words) in [
            (
                "Permissions 0644 for '/a b/key' are too open.\nLoad key \"/a b/key\": bad permissions",
                "chmod 600 '/a b/key'",
            ),
            ("Bad owner or permissions on /home/ana/.ssh/config", "chmod go-w /home/ana/.ssh/config"),
            ("Load key \"k\": error in libcrypto\nana@gpu1: Permission denied (publickey).", "ssh-keygen -y -f KEY"),
            (
                "Warning: Identity file k not accessible: No such file or directory.\nPermission denied (publickey).",
                "correct `identity`",
            ),
            ("ana@gpu1: Permission denied (keyboard-interactive).", "AuthenticationMethods publickey"),
            (
                "Unable to negotiate with 10.0.0.2 port 22: no matching host key type found.",
                "HostKeyAlgorithms +ssh-rsa",
            ),
            ("/c: line 1: Bad configuration option: usekeychain", "IgnoreUnknown UseKeychain"),
            ("kex_exchange_identification: Connection closed by remote host", "see whether `ssh ana@gpu1` works"),
            ("jump host: me@gate: Permission denied (password).", "see whether `ssh ana@gpu1` works"),
        ] {
            let hint = explained(said).hints.join("\n");
            assert!(hint.contains(words) && !hint.contains("ssh-add)"), "{said}: {hint}");
        }
        for (said, refused) in [
            ("Permission denied (publickey).", true),
            (
                "Load key \"/home/ana/.ssh/id_rsa\": invalid format\nana@gpu1: Permission denied (publickey,password).",
                true,
            ),
            (&many.message, true),
            (&agent.message, true),
            ("ana@gpu1: Permission denied (password,keyboard-interactive).", false),
            ("jump host: Permission denied (publickey).", false),
            ("Bad owner or permissions on /c", false),
        ] {
            assert_eq!(explained(said).takes_first_login, refused, "{said}");
            let offers = explained(said).hints.iter().filter(|hint| hint.contains("--first-login")).count();
            assert_eq!(offers, usize::from(refused), "{said}");
        }
        let unconfirmed = control(None).explain(&node, LoginFailure::Unconfirmed("not confirmed".into()));
        assert!(unconfirmed.takes_first_login && unconfirmed.hints[0].contains("`ssh-add -l`"), "{unconfirmed}");
        node.ssh_port = Some(2222);
        node.jump = Some("gate".into());
        let refused =
            control(Some(Path::new("/a b/config"))).explain(&node, said("connect to host gpu1: Connection refused"));
        let hint = refused.hints.join("\n");
        assert!(hint.starts_with("see whether `ssh -F '/a b/config' -p 2222 -J gate ana@gpu1` works"), "{hint}");
    }

    #[test]
    fn a_login_after_others_may_have_met_a_limit_of_new_connections() {
        let node = Inventory::local("gpu1", "i").nodes.remove(0);
        let hint = |control: &Control, failed: LoginFailure| control.explain(&node, failed).hints.join("\n");
        let silent = || said("ssh: connect to host gpu1 port 22: Connection timed out");
        let mut control = control(None);
        assert!(hint(&control, silent()).contains("if earlier commands reached the node: a firewall may limit"));
        control.count_login(&node, true);
        let limited = hint(&control, silent());
        assert!(limited.contains("1 login of this command had worked") && limited.contains("six in 30 s"), "{limited}");
        assert!(limited.contains("connection_idle_s = 600"), "{limited}");
        let over_jump = LoginFailure::JumpHost("ssh: connect to host gate port 22: Connection refused".to_owned());
        assert!(hint(&control, over_jump).contains("1 login of this command had worked"));
        assert!(!hint(&control, said("ana@gpu1: Permission denied (publickey).")).contains("firewall may"));
        // connections that are kept need few logins
        let run = tempfile::tempdir().unwrap();
        let directory = Directory::at(&run.path().join("hvdctl")).unwrap();
        let settings = Settings::read("Host *\n", None, None);
        control.keeping = Some(Keeping { directory, settings, idle: Duration::from_secs(600) });
        let limited = hint(&control, silent());
        assert!(limited.contains("had worked") && !limited.contains("connection_idle_s"), "{limited}");
        control.logins = Mutex::default();
        assert!(!hint(&control, silent()).contains("firewall may limit"), "{}", hint(&control, silent()));
    }

    /// A stand-in for ssh, as [`Starting::new`] calls it.
    fn stand_in(script: &str) -> Command {
        let mut shell = Command::new("sh");
        shell.args(["-c", script, "ssh"]);
        shell
    }

    #[tokio::test]
    async fn a_login_that_waits_for_a_person_says_so_and_the_others_wait() {
        let dir = tempfile::tempdir().unwrap();
        let (events, reported) = Events::channel();
        let mut control = control(None);
        control.events = events;
        let node = Inventory::local("gpu1", "i").nodes.remove(0);
        let follow = async |script: &str| {
            let starting = Starting::new(stand_in(script), dir.path(), "gpu1").unwrap();
            let turn = control.turns.take(true).await;
            let limit = Duration::from_secs(10);
            control.follow(&node, starting, limit, turn).await.map(drop).map_err(|failed| match failed {
                LoginFailure::Ssh(message) | LoginFailure::JumpHost(message) | LoginFailure::Unconfirmed(message) => {
                    message
                }
            })
        };
        let asks = "echo 'debug1: Server accepts key: k'; sleep 1.5";
        assert_eq!(follow(asks).await, Ok(()));
        let mut warnings = Vec::new();
        while let Ok(event) = reported.receive(Duration::ZERO) {
            warnings.push(format!("{event:?}"));
        }
        assert_eq!(warnings.len(), 1, "{warnings:?}");
        assert!(warnings[0].contains("the login waits for you: confirm it in the ssh agent"), "{warnings:?}");
        let turn = control.turns.take(true).await;
        assert!(turn.is_some(), "the next may ask as well");
        drop(turn);
        let fails = "printf 'OpenSSH_9.2p1\\r\\ndebug1: x\\ny\\n\\r\\nssh: connect to host h port 22: Connection \
            refused\\r\\n'; exit 255";
        assert_eq!(follow(fails).await, Err("connect to host h port 22: Connection refused".into()));
        assert!(control.turns.take(true).await.is_some());
        // an operator who is not there is waited for once
        control.turns.note_person(false);
        let asks = HostConfig::parse("identityagent /run/agent\n");
        let refused = control.start(&node, &asks, Duration::from_secs(10), None).await.map(drop).unwrap_err();
        assert!(
            refused.message.ends_with("the login was not confirmed: another login waited for it and timed out"),
            "{refused:?}"
        );
        assert_eq!(follow("echo 'debug1: Server accepts key: k'").await, Ok(()));
        assert!(control.turns.take(true).await.is_none(), "nothing asks");
    }

    #[test]
    fn only_agents_and_security_keys_ask() {
        let may_ask = |printed: &str, identity: Option<&str>| {
            HostConfig::parse(printed).may_ask(&Node { identity: identity.map(Into::into), ..Node::default() })
        };
        assert!(may_ask("identityagent /run/agent\n", None));
        assert!(may_ask("identityfile ~/.ssh/id_rsa\n", Some("/keys/id_ed25519_sk")));
    }

    #[test]
    fn a_node_whose_host_key_the_inventory_has_is_accepted_with_no_other() {
        let mut node = Inventory::local("gpu1", "i").nodes.remove(0);
        let control = control(None);
        assert_eq!(control.host_key_options(&node), Vec::<String>::new());
        let key = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIJTyqYIOkkDxRjQoVAIwUpYHmzqDdzJYdHhGZ7cgBuzr";
        (node.host_key, node.owner) = (Some(key.into()), Some("bob".into()));
        let options = control.host_key_options(&node);
        for option in ["StrictHostKeyChecking=yes", "GlobalKnownHostsFile=/dev/null"] {
            assert!(options.iter().any(|known| known == option), "{options:?}");
        }
        let file = options[1].strip_prefix("UserKnownHostsFile=\"").unwrap().trim_end_matches('"');
        assert_eq!(fs::read_to_string(file).unwrap(), format!("* {key}\n"));
        // the same file for another login
        assert_eq!(control.host_key_options(&node), options);
        let changed = "@ WARNING: REMOTE HOST IDENTIFICATION HAS CHANGED! @\nThe fingerprint for the ED25519 key sent \
            by the remote host \
             is\nSHA256:new.\nOffending ED25519 key in /x:1\nHost key for gpu1 has changed and you have requested \
             strict checking.\n\
             Host key verification failed.";
        let unknown = "No ECDSA host key is known for gpu1 and you have requested strict checking.\nHost key \
            verification failed.";
        for (message, now) in [(changed, ", but ED25519 SHA256:new"), (unknown, "")] {
            let error = control.explain(&node, said(message)).to_string();
            let known = public_key::shown(key);
            assert!(
                error.contains(&format!("its host key is not the one in the inventory, {known}{now}\n  hint: ")),
                "{error}"
            );
            assert!(error.contains("ask bob for the fingerprint") && !error.contains("ssh-keygen -R"), "{error}");
        }
        // that of a jump host is known in another way
        let jump = control.explain(&node, LoginFailure::JumpHost(unknown.to_owned())).to_string();
        assert!(!jump.contains("not the one in the inventory"), "{jump}");
    }

    #[test]
    fn a_changed_key_has_both_fingerprints_and_the_command() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("known_hosts");
        let old = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIJTyqYIOkkDxRjQoVAIwUpYHmzqDdzJYdHhGZ7cgBuzr";
        fs::write(&file, format!("# first\n[gpu1]:2222 {old}\n")).unwrap();
        let said = format!(
            "@ WARNING: REMOTE HOST IDENTIFICATION HAS CHANGED! @\nThe fingerprint for the ED25519 key sent by the \
             remote host \
             is\nSHA256:new.\nOffending ED25519 key in {}:2\nHost key for [gpu1]:2222 has changed and you have \
             requested \
             strict checking.\nHost key verification failed.",
            file.display()
        );
        let node = Inventory::local("gpu1", "i").nodes.remove(0);
        let error = control(None).explain(&node, LoginFailure::Ssh(said)).to_string();
        let old = public_key::fingerprint(&public_key::parse(old).unwrap());
        for words in [old.as_str(), "now: ED25519 SHA256:new", "ssh-keygen -R '[gpu1]:2222' -f "] {
            assert!(error.contains(words), "no {words} in {error}");
        }
    }
}
