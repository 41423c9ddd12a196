//! Access to root and the container engine of a node: parses what `access/login.sh` and `access/access.sh` report about
//! the login, and decides how both are used.

use crate::model::engine::{EngineChoice, EngineName};
use crate::text::failure::{self, SudoFailure};
use crate::text::packages::Distribution;
use crate::transport::rootless::RootlessPodman;
use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

/// Fault of a program that lacks options; completes its name.
pub const UNFIT: &str = "is not GNU's or too old (coreutils 8.30 is needed)";

/// Fault of a node without Docker.
pub const NO_DOCKER: &str = "docker: command not found";

/// The fault of a node's `docker`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum CommandFault {
    /// It is missing.
    Missing,
    /// It is that of the package podman-docker.
    IsPodman,
}

/// Fault of a node without Podman.
const NO_PODMAN: &str = "podman: command not found";

/// The engine of the system, as `DOCKER_HOST` names it.
const SYSTEM: &str = "unix:///var/run/docker.sock";

/// The address of Podman's service for root.
pub const ROOT_PODMAN: &str = "unix:///run/podman/podman.sock";

/// Hint for a root Podman whose service is not running.
pub const START_PODMAN: &str = "start its service on that node: sudo systemctl enable --now podman.socket";

/// Hint for a rootless Podman whose service is not running.
pub const START_ROOTLESS_PODMAN: &str = "start its service as that user on the node: systemctl --user enable --now \
                                         podman.socket, and loginctl enable-linger, so that it outlives the login \
                                         session";

/// Hint for a node on which neither Podman service is running, if it is unknown whether the login may use sudo.
const START_EITHER_PODMAN: &str = "start root's on that node: sudo systemctl enable --now podman.socket; or the \
                                   user's, without sudo: systemctl --user enable --now podman.socket, and loginctl \
                                   enable-linger";

/// The permissions that sudo gives the login.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Sudo {
    /// The login is root itself.
    Root,
    /// Everything, without a password.
    Allowed,
    /// It asks for a password, with this message.
    PasswordRequired(String),
    /// It is not installed or refuses, with this message.
    Refused(String),
}

impl Default for Sudo {
    fn default() -> Sudo {
        Sudo::Refused("the node did not report on sudo".into())
    }
}

/// The way to run a program as root.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum RootMethod {
    /// The login is root.
    #[default]
    Login,
    /// By sudo, which asks for no password.
    Sudo,
    /// By sudo with a password.
    SudoWithPassword,
    /// In a short-lived container with the node's file system, because a user of an engine that runs as root can become
    /// root (docs.docker.com, "Docker daemon attack surface").
    Container,
}

/// The way to use the engine, with the value for `DOCKER_HOST` or `CONTAINER_HOST`. An empty value is the system's engine,
/// as the `docker` command finds it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Engine {
    /// By the login itself.
    Direct(String),
    /// By the login itself, with the engine of its Docker context, which has no Unix socket on the node.
    OfContext,
    /// As root.
    AsRoot(String),
}

impl Engine {
    /// Returns the path of its socket; `None` if it listens elsewhere.
    pub fn socket(&self) -> Option<&str> {
        let (Engine::Direct(host) | Engine::AsRoot(host)) = self else { return None };
        let host = if host.is_empty() { SYSTEM } else { host };
        host.strip_prefix("unix://")
    }
}

impl Default for Engine {
    fn default() -> Engine {
        Engine::AsRoot(SYSTEM.to_owned())
    }
}

/// A reason why the engine of a node cannot be used.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EngineFault {
    /// The fault itself.
    pub message: String,
    /// The next step for the user.
    pub hint: String,
}

/// The socket of an engine.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
enum Socket {
    /// The login may use it.
    Open,
    /// It may not.
    Closed,
    /// There is none.
    #[default]
    Missing,
}

impl Socket {
    fn parse(text: &str) -> Socket {
        match text {
            "open" => Socket::Open,
            "closed" => Socket::Closed,
            _ => Socket::Missing,
        }
    }
}

/// The engine that the login's environment or its configuration of Docker names.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
struct NamedEngine {
    /// The variable or the file that names it.
    by: String,
    /// The Docker context that is named, and its file; empty for `DOCKER_HOST`.
    context: String,
    file: String,
    /// Its address; empty if the context does not exist or cannot be read.
    host: String,
    /// Its socket.
    socket: Socket,
}

impl NamedEngine {
    /// Returns `None` if the engine is reached over a Unix socket, otherwise whether it may be on another machine.
    /// Containers run on the machine of the engine.
    fn network(&self) -> Option<bool> {
        if self.host.is_empty() || self.host.starts_with("unix://") {
            return None;
        }
        // Docker takes an address without a scheme for one of TCP
        let (scheme, address) = self.host.split_once("://").unwrap_or(("tcp", &self.host));
        let name = address.rsplit_once(':').map_or(address, |(name, _)| name).trim_matches(['[', ']']);
        let is_here = ["", "localhost"].contains(&name) || name.parse().is_ok_and(|ip: IpAddr| ip.is_loopback());
        Some(scheme != "tcp" || !is_here)
    }

    /// Returns true if the name is a context without a working address, which Docker Desktop leaves behind. An engine
    /// that `DOCKER_HOST` names is not replaced.
    fn is_gone(&self) -> bool {
        !self.context.is_empty() && self.network().is_none() && self.socket == Socket::Missing
    }

    /// Returns the fault of an engine for which [`is_gone`](Self::is_gone) holds; completes [`origin`](Self::origin).
    fn fault(&self) -> String {
        let fault = if self.host.is_empty() { "of which no host can be read" } else { "whose socket does not exist" };
        format!("{fault} (see {})", self.file)
    }

    /// Returns the variable or file that names the engine, and the name, for messages.
    fn origin(&self) -> String {
        match (self.context.as_str(), self.host.as_str()) {
            ("", host) => format!("{} is {host}", self.by),
            (context, "") => format!("{} names the Docker context {context}", self.by),
            (context, host) => format!("{} names the Docker context {context} ({host})", self.by),
        }
    }

    /// Returns the hint that tells how to stop naming this engine.
    fn remedy(&self) -> String {
        if self.by.contains('/') {
            // without the variable, docker refuses to leave a context that is gone
            let command = "DOCKER_CONTEXT=default docker context use default";
            format!("remove \"currentContext\" from {} on the node: {command}", self.by)
        } else {
            format!("unset {} in the start-up file of the login shell", self.by)
        }
    }
}

/// The engine that is used if it can be.
struct EngineCandidate<'a> {
    /// As in [`Engine`].
    host: &'a str,
    socket: Socket,
    /// Set if the engine is reached over a network.
    is_network: bool,
    /// The rootless engine, where it may take its place.
    rootless: Option<&'a str>,
}

/// A program that hvdctl's scripts need and cannot use.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UnusableTool {
    /// Its name.
    pub name: String,
    /// Its fault; completes the name.
    pub fault: &'static str,
    /// Its package, by the name that it has in Debian.
    pub package: String,
}

/// The observed state of a login.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Login {
    /// Its name on the node.
    pub user: String,
    /// Its shell.
    pub shell: String,
    /// The permissions that sudo gives it.
    pub sudo: Sudo,
    /// Set if sudo asks for no password only because it remembers it.
    is_remembered: bool,
    /// The engine that it names.
    named: Option<NamedEngine>,
    /// The socket of the system's engine.
    system: Socket,
    /// The login's rootless Docker.
    rootless: Option<String>,
    /// The engine that the inventory asks for.
    choice: EngineChoice,
    /// Set if Podman is installed.
    has_podman: bool,
    /// The socket of root's Podman.
    podman: Socket,
    /// The login's rootless Podman.
    rootless_podman: Option<String>,
    /// The state of that.
    own_podman: RootlessPodman,
    /// The reason why the `docker` command cannot be used, if any.
    command_fault: Option<CommandFault>,
    /// Set if an engine is installed.
    has_engine: bool,
    /// The node's distribution.
    distribution: Distribution,
    /// Programs that the node lacks or that are too old.
    pub unusable_tools: Vec<UnusableTool>,
}

impl Login {
    /// Parses the lines of `access/access.sh`. What they do not mention is not there.
    pub fn parse(text: &str) -> Login {
        let mut login = Login::default();
        for line in text.lines() {
            let (key, value) = line.split_once(' ').unwrap_or((line, ""));
            let (first, rest) = value.split_once(' ').unwrap_or((value, ""));
            let rest = rest.to_owned();
            let tool = |fault| UnusableTool { name: first.to_owned(), fault, package: rest.clone() };
            match (key, first) {
                ("user", _) => login.user = value.to_owned(),
                ("shell", _) => login.shell = value.to_owned(),
                ("missing", _) => login.unusable_tools.push(tool("is missing")),
                ("unfit", _) => login.unusable_tools.push(tool(UNFIT)),
                ("sudo", "root") => login.sudo = Sudo::Root,
                ("sudo", "yes") => {
                    login.sudo = Sudo::Allowed;
                    login.is_remembered = rest == "remembered";
                }
                ("sudo", "asks") => login.sudo = Sudo::PasswordRequired(rest),
                ("sudo", _) => login.sudo = Sudo::Refused(rest),
                // node/probe.sh
                ("root", "login") => login.sudo = Sudo::Root,
                ("root", "sudo") => login.sudo = Sudo::Allowed,
                ("root", _) if failure::sudo(&rest) == Some(SudoFailure::PasswordRequired) => {
                    login.sudo = Sudo::PasswordRequired(rest);
                }
                ("root", _) => login.sudo = Sudo::Refused(rest),
                ("os", _) => login.distribution = Distribution::parse(value),
                ("docker-command", "podman") => login.command_fault = Some(CommandFault::IsPodman),
                ("docker-command", _) => login.command_fault = Some(CommandFault::Missing),
                ("docker-engine" | "dockerd", _) => login.has_engine = true,
                ("podman-command", _) => login.has_podman = true,
                ("podman", _) => login.podman = Socket::parse(value),
                ("podman-rootless", _) => login.rootless_podman = Some(value.to_owned()),
                ("engine", _) => login.system = Socket::parse(value),
                ("context", _) => login.named().context = value.to_owned(),
                ("context-file", _) => login.named().file = value.to_owned(),
                ("named-by", _) => login.named().by = value.to_owned(),
                ("named-host", _) => login.named().host = value.to_owned(),
                ("named-socket", _) => login.named().socket = Socket::parse(value),
                ("rootless", _) => login.rootless = Some(value.to_owned()),
                _ => login.own_podman.read(key, value),
            }
        }
        login
    }

    /// Returns the login with the engine that the inventory asks for.
    #[must_use]
    pub fn choosing(self, choice: EngineChoice) -> Login {
        Login { choice, ..self }
    }

    /// Returns which engine is used: without a choice Docker where it is installed, even if it is down, because a node
    /// must not change its engine while containers run in the other one; else Podman.
    pub fn engine_name(&self) -> EngineName {
        let has_docker = self.command_fault != Some(CommandFault::IsPodman)
            && (self.has_engine || self.system != Socket::Missing || self.named.is_some() || self.rootless.is_some());
        match self.choice {
            EngineChoice::Docker => EngineName::Docker,
            EngineChoice::Podman => EngineName::Podman,
            EngineChoice::Auto if self.has_podman && !has_docker => EngineName::Podman,
            EngineChoice::Auto => EngineName::Docker,
        }
    }

    fn named(&mut self) -> &mut NamedEngine {
        self.named.get_or_insert_default()
    }

    /// Returns what is wrong with the node's programs, and how to fix it; `None` if hvdctl's scripts can use them.
    pub fn unusable_tools(&self) -> Option<(String, String)> {
        let tools = &self.unusable_tools;
        let faults: Vec<String> = tools.iter().map(|tool| format!("{} {}", tool.name, tool.fault)).collect();
        let packages: BTreeSet<&str> = tools.iter().map(|tool| tool.package.as_str()).collect();
        let hint = match self.distribution.install(&Vec::from_iter(packages)) {
            Some(command) => format!("install it on the node: {command}"),
            None => "install it with the package manager of the node".to_owned(),
        };
        (!tools.is_empty()).then(|| (faults.join(", "), hint))
    }

    /// Returns whether it can be expected to stay true for a while, and nothing about it has to be reported again: what
    /// the user is about to change has effect at once, and a sudo that only remembers a password is asked each time.
    pub fn is_steady(&self) -> bool {
        let has_root = self.sudo == Sudo::Root || self.sudo == Sudo::Allowed && !self.is_remembered;
        has_root && self.engine_fault().is_none() && self.warning().is_none() && self.unusable_tools.is_empty()
    }

    /// Returns why the node's engine cannot be used by any user.
    pub fn engine_fault(&self) -> Option<EngineFault> {
        self.candidate().err()
    }

    /// Returns a warning if the engine that is used is not the one that the login names.
    pub fn warning(&self) -> Option<String> {
        let is_docker = self.engine_name() == EngineName::Docker;
        let named = self.named.as_ref().filter(|named| is_docker && named.is_gone())?;
        self.candidate().ok().map(|_| {
            format!("{}, {}; the engine of the node is used\n  hint: {}", named.origin(), named.fault(), named.remedy())
        })
    }

    fn candidate(&self) -> Result<EngineCandidate<'_>, EngineFault> {
        match self.engine_name() {
            EngineName::Docker => self.docker_candidate(),
            EngineName::Podman => self.podman_candidate(),
        }
    }

    fn podman_candidate(&self) -> Result<EngineCandidate<'_>, EngineFault> {
        // the one or the other, and not what runs at the moment: containers of the other one would be invisible
        let has_root = matches!(self.sudo, Sudo::Root | Sudo::Allowed);
        let rootless = self.rootless_podman.as_deref().filter(|_| !has_root);
        if !self.has_podman {
            let hint = format!("install it on that node: {}", self.podman_package());
            return Err(EngineFault { message: NO_PODMAN.to_owned(), hint });
        }
        if self.podman == Socket::Missing && rootless.is_none() {
            let message = "Podman is installed, but its service is not running: there is no /run/podman/podman.sock";
            return Err(EngineFault { message: message.to_owned(), hint: self.podman_hint().to_owned() });
        }
        if rootless.is_none() && matches!(self.sudo, Sudo::Refused(_)) {
            let message = "only root may use root's Podman, and the user has no service of their own";
            return Err(EngineFault { message: message.to_owned(), hint: START_ROOTLESS_PODMAN.to_owned() });
        }
        // with a password, root's may be used
        let is_own = self.podman == Socket::Missing || matches!(self.sudo, Sudo::Refused(_));
        let fault = rootless.filter(|_| is_own).and_then(|_| self.own_podman.fault(&self.user, &self.distribution));
        if let Some((message, hint)) = fault {
            return Err(EngineFault { message, hint });
        }
        Ok(EngineCandidate { host: ROOT_PODMAN, socket: self.podman, is_network: false, rootless })
    }

    /// Returns how the service of Podman is started.
    fn podman_hint(&self) -> &'static str {
        match self.sudo {
            Sudo::Refused(_) => START_ROOTLESS_PODMAN,
            Sudo::PasswordRequired(_) => START_EITHER_PODMAN,
            Sudo::Root | Sudo::Allowed => START_PODMAN,
        }
    }

    /// Returns the command that installs Podman.
    fn podman_package(&self) -> String {
        let command = self.distribution.install(&["podman"]);
        command.unwrap_or_else(|| "podman with the package manager of the node".to_owned())
    }

    fn docker_candidate(&self) -> Result<EngineCandidate<'_>, EngineFault> {
        if let Some(fault) = self.command_fault {
            return Err(self.without_command(fault));
        }
        let rootless = self.rootless.as_deref();
        let system = |host| Ok(EngineCandidate { host, socket: self.system, is_network: false, rootless });
        let Some(named) = &self.named else { return system("") };
        match named.network() {
            Some(true) => Err(EngineFault {
                message: format!("{}, an engine on another machine", named.origin()),
                hint: format!("workers run on the node itself, so its own engine is needed: {}", named.remedy()),
            }),
            // the context has the certificates as well
            Some(false) => {
                let host = if named.context.is_empty() { named.host.as_str() } else { "" };
                Ok(EngineCandidate { host, socket: Socket::Open, is_network: true, rootless })
            }
            None if !named.is_gone() => {
                Ok(EngineCandidate { host: &named.host, socket: named.socket, is_network: false, rootless: None })
            }
            None if self.system != Socket::Missing || rootless.is_some() => system(SYSTEM),
            None => Err(EngineFault {
                message: format!("{}, {}, and there is no other engine", named.origin(), named.fault()),
                hint: named.remedy(),
            }),
        }
    }

    /// Returns what is wrong with the command of Docker, with what to install.
    fn without_command(&self, fault: CommandFault) -> EngineFault {
        if fault == CommandFault::IsPodman {
            return EngineFault {
                message: "the `docker` command is that of Podman (podman-docker)".to_owned(),
                hint: "set `engine = \"podman\"` in the inventory, or install Docker Engine on that node".to_owned(),
            };
        }
        if !self.has_engine {
            let or_podman = match self.choice {
                EngineChoice::Auto => format!(", or Podman: {}", self.podman_package()),
                EngineChoice::Docker | EngineChoice::Podman => String::new(),
            };
            let hint = format!("install Docker Engine on that node{or_podman}");
            return EngineFault { message: NO_DOCKER.to_owned(), hint };
        }
        let command = self.distribution.install(&["docker-cli"]);
        let command = command.unwrap_or_else(|| "docker-cli with the package manager of the node".to_owned());
        EngineFault {
            message: "the Docker Engine is installed, but the `docker` command is not".to_owned(),
            hint: format!(
                "install it on that node: {command} (docker-ce-cli if the engine is from Docker's repository)"
            ),
        }
    }

    /// Returns how root is used. Asking for a password is the last resort: sudo also asks users whom it then refuses,
    /// and counts each failure. A password that was given beforehand (`has_password`) goes before an engine: a
    /// container needs the cluster's image, and a rootless engine gives no real root.
    ///
    /// # Errors
    /// The message of sudo where there is no method.
    pub fn root_method(&self, has_password: bool) -> Result<RootMethod, String> {
        let candidate = self.candidate().ok();
        let has_rootless = candidate.as_ref().is_some_and(|candidate| candidate.rootless.is_some());
        // an engine that is reached by a network may be in a machine of its own
        let is_own = candidate.is_some_and(|candidate| candidate.socket == Socket::Open && !candidate.is_network);
        match &self.sudo {
            Sudo::Root => Ok(RootMethod::Login),
            Sudo::Allowed => Ok(RootMethod::Sudo),
            Sudo::PasswordRequired(_) if has_password => Ok(RootMethod::SudoWithPassword),
            _ if is_own => Ok(RootMethod::Container),
            Sudo::PasswordRequired(_) if !has_rootless => Ok(RootMethod::SudoWithPassword),
            _ if has_rootless => Ok(RootMethod::Container),
            Sudo::PasswordRequired(message) | Sudo::Refused(message) => Err(message.clone()),
        }
    }

    /// Returns the hard limits that containers of this engine cannot exceed: those of the login, without root.
    pub fn engine_limits(&self, engine: &Engine) -> BTreeMap<String, u64> {
        let is_own = matches!((engine, &self.rootless_podman), (Engine::Direct(host), Some(own)) if host == own);
        if is_own { self.own_podman.limits.clone() } else { BTreeMap::new() }
    }

    /// Returns how the engine is used, where root is used in this way.
    pub fn engine(&self, root: RootMethod) -> Engine {
        let is_container = root == RootMethod::Container;
        // an engine with a fault is not used at all
        let Ok(EngineCandidate { host, socket, is_network, rootless }) = self.candidate() else {
            return Engine::Direct(String::new());
        };
        match (socket, rootless) {
            // the containers in which programs are root are those of the node's own engine
            (Socket::Open, Some(rootless)) if is_container && is_network => Engine::Direct(rootless.to_owned()),
            (Socket::Closed, _) if !is_container => {
                Engine::AsRoot(if host.is_empty() { SYSTEM } else { host }.to_owned())
            }
            (Socket::Closed | Socket::Missing, Some(rootless)) => Engine::Direct(rootless.to_owned()),
            _ if is_network && host.is_empty() => Engine::OfContext,
            // docker's message about a missing or closed socket is the clearest error
            _ => Engine::Direct(host.to_owned()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn methods(text: &str) -> (RootMethod, Engine) {
        methods_with(text, false)
    }

    fn methods_with(text: &str, has_password: bool) -> (RootMethod, Engine) {
        let login = Login::parse(text);
        let root = login.root_method(has_password).unwrap();
        (root, login.engine(root))
    }

    fn refusal(text: &str) -> String {
        Login::parse(text).root_method(false).unwrap_err()
    }

    fn fault(text: &str) -> String {
        let EngineFault { message, hint } = Login::parse(text).engine_fault().unwrap();
        format!("{message}\n{hint}")
    }

    fn direct(host: &str) -> Engine {
        Engine::Direct(host.into())
    }

    fn as_root(host: &str) -> Engine {
        Engine::AsRoot(host.into())
    }

    #[test]
    fn root_and_the_engine_by_what_a_login_may_do() {
        use RootMethod::*;
        assert_eq!(methods("user root\nsudo root\nengine open\n"), (Login, direct("")));
        assert_eq!(methods("user ana\nsudo yes\nengine closed\n"), (Sudo, as_root(SYSTEM)));
        // the user of the tutorial: sudo asks for a password
        let asks = "user ana\nsudo asks sudo: a password is required\nengine closed\n";
        assert_eq!(methods(asks), (SudoWithPassword, as_root(SYSTEM)));
        // the group docker needs no password
        let group = "user ana\nsudo asks sudo: a password is required\nengine open\n";
        assert_eq!(methods(group), (Container, direct("")));
        // and does not hide one that was given: a container needs the cluster's image
        assert_eq!(methods_with(group, true), (SudoWithPassword, direct("")));
        assert_eq!(methods("user ana\nsudo no sudo is not installed\nengine open\n"), (Container, direct("")));
        // a rootless engine is used where nothing else is, and not instead of a password that was given
        let asks_and_rootless =
            "user ana\nsudo asks message\nengine closed\nrootless unix:///run/user/1000/docker.sock\n";
        assert_eq!(methods_with(asks_and_rootless, true), (SudoWithPassword, as_root(SYSTEM)));
        assert_eq!(methods(asks_and_rootless), (Container, direct("unix:///run/user/1000/docker.sock")));
        let rootless = "user ana\nsudo no sudo is not installed\nrootless unix:///run/user/1000/docker.sock\n";
        assert_eq!(methods(rootless), (Container, direct("unix:///run/user/1000/docker.sock")));
        // a rootless engine does not hide the system's where root is available
        let both = "user ana\nsudo yes\nengine closed\nrootless unix:///run/user/1000/docker.sock\n";
        assert_eq!(methods(both), (Sudo, as_root(SYSTEM)));
        assert_eq!(refusal("user ana\nsudo no ana is not allowed\nengine closed\n"), "ana is not allowed");
        assert_eq!(methods("user ana\nsudo yes\n"), (Sudo, direct("")));
        assert_eq!(refusal(""), "the node did not report on sudo");
    }

    #[test]
    fn what_may_change_at_once_is_asked_each_time() {
        for steady in ["user root\nsudo root\n", "user ana\nsudo yes\n", "user ana\nsudo yes\nengine closed\n"] {
            assert!(Login::parse(steady).is_steady(), "{steady}");
        }
        for unsteady in [
            "user ana\nsudo yes remembered\nengine open\n",
            "user ana\nsudo asks message\nengine open\n",
            "user ana\nsudo no never\nengine open\n",
            "user root\nsudo root\ndocker-command missing\n",
            "user root\nsudo root\nmissing ss iproute2\n",
            "user root\nsudo root\nengine open\ncontext x\nnamed-by /root/.docker/config.json\nnamed-host \n",
        ] {
            assert!(!Login::parse(unsteady).is_steady(), "{unsteady}");
        }
        // the inventory asks for what is missing, and the user is about to install it
        let docker = Login::parse("user root\nsudo root\nengine open\n").choosing(EngineChoice::Podman);
        assert!(!docker.is_steady());
        assert_eq!(methods("user ana\nsudo yes remembered\nengine closed\n"), (RootMethod::Sudo, as_root(SYSTEM)));
    }

    #[test]
    fn an_engine_that_docker_host_names() {
        use RootMethod::{Container, Sudo, SudoWithPassword};
        let moved = "named-by DOCKER_HOST\nnamed-host unix:///run/moved.sock\n";
        let with = |sudo: &str, socket: &str| format!("user ana\nsudo {sudo}\n{moved}{socket}engine open\n");
        let host = || direct("unix:///run/moved.sock");
        assert_eq!(methods(&with("yes", "named-socket open\n")), (Sudo, host()));
        assert_eq!(methods(&with("no never", "named-socket open\n")), (Container, host()));
        assert_eq!(methods(&with("yes", "named-socket closed\n")), (Sudo, as_root("unix:///run/moved.sock")));
        // docker names the missing socket
        assert_eq!(methods(&with("asks message", "")), (SudoWithPassword, host()));
        assert_eq!(Login::parse(&with("yes", "")).warning(), None);
        let network = |host: &str| format!("user ana\nsudo asks message\nnamed-by DOCKER_HOST\nnamed-host {host}\n");
        // an engine that is reached by a network gives no root on this node
        for here in [
            "tcp://127.0.0.1:2375",
            "tcp://127.0.0.1",
            "tcp://localhost:2376",
            "tcp://[::1]:2375",
            "localhost:2375",
            ":2375",
        ] {
            assert_eq!(methods(&network(here)), (SudoWithPassword, direct(here)));
        }
        for elsewhere in [
            "tcp://10.0.0.9:2376",
            "ssh://ana@gpu9",
            "ssh://localhost",
            "tcp://127.example.org:2375",
            "https://127.0.0.1:2376",
            "gpu9:2375",
        ] {
            let fault = fault(&network(elsewhere));
            let named = format!("DOCKER_HOST is {elsewhere}, an engine on another machine");
            assert!(fault.starts_with(&named) && fault.contains("unset DOCKER_HOST"), "{fault}");
        }
    }

    #[test]
    fn an_engine_that_a_context_names() {
        use RootMethod::{Container, Sudo};
        let context = |facts: &str| {
            format!(
                "user ana\nsudo no never\ncontext desktop-linux\ncontext-file \
                 /home/ana/.docker/contexts/meta/x/meta.json\n\
                 named-by /home/ana/.docker/config.json\n{facts}"
            )
        };
        let own = context("named-host unix:///run/own.sock\nnamed-socket open\nengine open\n");
        assert_eq!(methods(&own), (Container, direct("unix:///run/own.sock")));
        assert_eq!(Login::parse(&own).warning(), None);
        let by_tcp = context("named-host tcp://127.0.0.1:2376\n").replace("no never", "yes");
        assert_eq!(methods(&by_tcp), (Sudo, Engine::OfContext), "docker has its certificates from the context");
        assert_eq!(Engine::OfContext.socket(), None, "the system's socket may be that of another engine");
        assert_eq!(direct("tcp://127.0.0.1:2375").socket(), None);
        assert_eq!(methods(&own).1.socket(), Some("/run/own.sock"));
        // one that does not exist, and one whose socket is gone
        for gone in ["named-host \n", "named-host unix:///home/ana/.docker/desktop/docker.sock\n"] {
            let gone = context(gone);
            let login = format!("{gone}engine open\n");
            assert_eq!(methods(&login), (Container, direct(SYSTEM)));
            let warning = Login::parse(&login).warning().unwrap();
            for part in
                ["/home/ana/.docker/config.json names the Docker context desktop-linux", "/x/meta.json", "hint: "]
            {
                assert!(warning.contains(part), "{warning}");
            }
            assert_eq!(methods(&format!("{gone}engine closed\n").replace("no never", "yes")), (Sudo, as_root(SYSTEM)));
            assert_eq!(methods(&format!("{gone}rootless unix:///r\n")), (Container, direct("unix:///r")));
            let fault = fault(&gone);
            assert!(fault.contains("/x/meta.json") && fault.contains("there is no other engine"), "{fault}");
            assert!(fault.contains("remove \"currentContext\" from /home/ana/.docker/config.json"), "{fault}");
            assert_eq!(Login::parse(&gone).warning(), None, "it is an error");
        }
        let remote = fault(&context("named-host ssh://ana@gpu9\nengine open\n"));
        assert!(
            remote.starts_with(
                "/home/ana/.docker/config.json names the Docker context desktop-linux (ssh://ana@gpu9), an "
            )
        );
        assert!(remote.contains("an engine on another machine\nworkers run on the node itself"), "{remote}");
        let variable = context("named-host ssh://gpu9\n").replace("/home/ana/.docker/config.json", "DOCKER_CONTEXT");
        assert!(fault(&variable).contains("unset DOCKER_CONTEXT"), "{variable}");
    }

    #[test]
    fn a_node_without_the_command_of_docker() {
        let missing = fault("os debian \ndocker-command missing\n");
        assert_eq!(
            missing,
            "docker: command not found\ninstall Docker Engine on that node, or Podman: apt-get install podman"
        );
        let engine = fault("os debian \ndocker-command missing\ndocker-engine yes\nrootless unix:///r\n");
        assert!(engine.starts_with("the Docker Engine is installed, but the `docker` command is not\n"), "{engine}");
        assert!(engine.contains("apt-get install docker-cli (docker-ce-cli if "), "{engine}");
        let unknown = fault("docker-command missing\ndocker-engine yes\n");
        assert!(unknown.contains("docker-cli with the package manager of the node"), "{unknown}");
        // no root by an engine that cannot be used
        assert_eq!(refusal("sudo no never\ndocker-command missing\nengine open\nrootless unix:///r\n"), "never");
    }

    #[test]
    fn the_engine_that_is_asked_for_or_installed() {
        use EngineChoice::{Auto, Docker, Podman};
        let name = |choice, text: &str| Login::parse(text).choosing(choice).engine_name();
        for (text, expected) in [
            ("engine closed\n", EngineName::Docker),
            ("engine closed\npodman-command yes\npodman open\n", EngineName::Docker),
            // Docker is down
            ("dockerd yes\npodman-command yes\npodman open\n", EngineName::Docker),
            ("named-by DOCKER_HOST\nnamed-host unix:///s\npodman-command yes\n", EngineName::Docker),
            // its command alone runs no container
            ("podman-command yes\npodman closed\n", EngineName::Podman),
            ("docker-command podman\npodman-command yes\npodman closed\n", EngineName::Podman),
            ("docker-command missing\npodman-command yes\n", EngineName::Podman),
            // only the command of Docker is missing
            ("docker-command missing\ndocker-engine yes\npodman-command yes\npodman open\n", EngineName::Docker),
            ("docker-command missing\n", EngineName::Docker),
        ] {
            assert_eq!(name(Auto, text), expected, "{text}");
            assert_eq!((name(Docker, text), name(Podman, text)), (EngineName::Docker, EngineName::Podman), "{text}");
        }
    }

    #[test]
    fn an_engine_that_is_asked_for_and_absent() {
        let fault = |choice, text: &str| {
            let fault = Login::parse(text).choosing(choice).engine_fault();
            fault.map(|EngineFault { message, hint }| format!("{message}\n{hint}")).unwrap_or_default()
        };
        let debian = "os debian \nsudo yes\n";
        let podman = fault(EngineChoice::Podman, &format!("{debian}engine closed\n"));
        assert_eq!(podman, "podman: command not found\ninstall it on that node: apt-get install podman");
        let docker = format!("{debian}docker-command podman\npodman-command yes\npodman closed\n");
        let docker = fault(EngineChoice::Docker, &docker);
        assert!(
            docker.starts_with("the `docker` command is that of Podman (podman-docker)\nset `engine = "),
            "{docker}"
        );
        let docker = fault(EngineChoice::Docker, &format!("{debian}docker-command missing\npodman-command yes\n"));
        assert_eq!(docker, "docker: command not found\ninstall Docker Engine on that node");
        // no service of Podman
        let stopped = "docker-command missing\npodman-command yes\n";
        let as_root = fault(EngineChoice::Auto, &format!("{debian}{stopped}"));
        assert!(
            as_root.contains("\nstart its service on that node: sudo systemctl enable --now podman.socket"),
            "{as_root}"
        );
        // sudo asks whom it then refuses, too
        let asks = fault(EngineChoice::Auto, &format!("sudo asks message\n{stopped}"));
        assert!(asks.contains("sudo systemctl enable") && asks.contains("systemctl --user enable"), "{asks}");
        let rootless = fault(EngineChoice::Auto, &format!("sudo no never\n{stopped}"));
        assert!(rootless.contains("systemctl --user enable --now podman.socket, and loginctl"), "{rootless}");
        assert_eq!(fault(EngineChoice::Auto, &format!("{debian}{stopped}podman closed\n")), "");
        // root's is not for this login
        let closed = fault(EngineChoice::Auto, &format!("sudo no never\n{stopped}podman closed\n"));
        assert!(
            closed.starts_with("only root may use root's Podman") && closed.contains("systemctl --user"),
            "{closed}"
        );
        // as `init` finds it
        for (root, has_fault) in
            [("login", false), ("sudo", false), ("no sudo: a password is required", false), ("no no", true)]
        {
            let found = fault(
                EngineChoice::Auto,
                &format!("root {root}\ndocker-command missing\npodman-command yes\npodman closed\n"),
            );
            assert_eq!(!found.is_empty(), has_fault, "{root}: {found}");
        }
        // that of the login is no substitute where root has none
        let own = "podman-rootless unix:///run/user/1000/podman/podman.sock\n";
        let stopped = fault(EngineChoice::Auto, &format!("{debian}{stopped}{own}"));
        assert!(stopped.contains("sudo systemctl enable --now podman.socket"), "{stopped}");
    }

    #[test]
    fn root_and_podman_by_what_a_login_may_do() {
        use RootMethod::*;
        let podman = "docker-command podman\npodman-command yes\n";
        let with = |facts: &str| methods(&format!("{podman}{facts}"));
        assert_eq!(with("sudo root\npodman open\n"), (Login, direct(ROOT_PODMAN)));
        assert_eq!(with("sudo yes\npodman closed\n"), (Sudo, as_root(ROOT_PODMAN)));
        let own = "podman-rootless unix:///run/user/1000/podman/podman.sock\n";
        assert_eq!(with(&format!("sudo yes\npodman closed\n{own}")), (Sudo, as_root(ROOT_PODMAN)));
        assert_eq!(with("sudo asks message\npodman closed\n"), (SudoWithPassword, as_root(ROOT_PODMAN)));
        let rootless = (Container, direct("unix:///run/user/1000/podman/podman.sock"));
        assert_eq!(with(&format!("sudo no never\npodman closed\n{own}")), rootless);
        assert_eq!(with(&format!("sudo no never\n{own}")), rootless);
        assert_eq!(refusal(&format!("{podman}sudo no never\npodman closed\n")), "never");
    }

    #[test]
    fn unusable_programs_have_packages() {
        let unusable = |text| Login::parse(text).unusable_tools().unwrap();
        let (message, packages) = unusable("os debian \nmissing ss iproute2\nuser ana\n");
        assert_eq!(
            (message.as_str(), packages.as_str()),
            ("ss is missing", "install it on the node: apt-get install iproute2")
        );
        let text = "os rocky rhel centos fedora\nmissing setsid util-linux\nmissing flock util-linux\nunfit cut \
            coreutils\n\
                    missing ss iproute2\nuser ana\n";
        let (message, packages) = unusable(text);
        assert_eq!(
            message,
            "setsid is missing, flock is missing, cut is not GNU's or too old (coreutils 8.30 is needed), ss is missing"
        );
        assert_eq!(packages, "install it on the node: dnf install coreutils iproute util-linux");
        let (_, packages) = unusable("os ubuntu debian\nunfit cut uutils\n");
        assert_eq!(packages, "install it on the node: apt-get install coreutils-from-gnu");
        let (_, packages) = unusable("missing ss iproute2\n");
        assert_eq!(packages, "install it with the package manager of the node");
        assert_eq!(Login::parse("user ana\n").unusable_tools(), None);
    }
}
