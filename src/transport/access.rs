//! How root and the Docker Engine can be used on a node: what `access/login.sh` and `access/access.sh` report about the
//! login, and what follows from it.

use crate::text::packages::Distribution;
use std::collections::BTreeSet;
use std::net::IpAddr;

/// What is wrong with a program that lacks options.
pub const UNFIT: &str = "is not GNU's or too old (coreutils 8.30 is needed)";

/// What is wrong with a node that has no Docker.
pub const NO_DOCKER: &str = "docker: command not found";

/// What is wrong with the `docker` of the package podman-docker.
const PODMAN: &str = "the `docker` command is Podman's, which is not supported yet";

/// The engine of the system, as `DOCKER_HOST` names it.
const SYSTEM: &str = "unix:///var/run/docker.sock";

/// What sudo allows the login.
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

/// How a program is run as root.
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

/// How the engine is used, with the value for `DOCKER_HOST`; it is empty for what the `docker` command uses by itself.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Engine {
    /// By the login itself.
    Direct(String),
    /// As root.
    AsRoot(String),
}

impl Engine {
    /// Returns the path of its socket; `None` if it listens elsewhere.
    pub fn socket(&self) -> Option<&str> {
        let (Engine::Direct(host) | Engine::AsRoot(host)) = self;
        let host = if host.is_empty() { SYSTEM } else { host };
        host.strip_prefix("unix://")
    }
}

impl Default for Engine {
    fn default() -> Engine {
        Engine::AsRoot(SYSTEM.to_owned())
    }
}

/// Why the engine of a node cannot be used.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EngineFault {
    /// What is wrong.
    pub message: String,
    /// What to do.
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
    /// Whether it is reached by a network, and whether on another machine: containers run where the engine is.
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

    /// Whether it is a context that leads nowhere, as Docker Desktop leaves one behind. What `DOCKER_HOST` names is not
    /// replaced.
    fn is_gone(&self) -> bool {
        !self.context.is_empty() && self.network().is_none() && self.socket == Socket::Missing
    }

    /// What is wrong with one that is gone.
    fn fault(&self) -> String {
        let fault = if self.host.is_empty() { "of which no host can be read" } else { "whose socket does not exist" };
        format!("{fault} (see {})", self.file)
    }

    /// What names it, for messages.
    fn origin(&self) -> String {
        match (self.context.as_str(), self.host.as_str()) {
            ("", host) => format!("{} is {host}", self.by),
            (context, "") => format!("{} names the Docker context {context}", self.by),
            (context, host) => format!("{} names the Docker context {context} ({host})", self.by),
        }
    }

    /// How it is no longer named.
    fn remedy(&self) -> String {
        if self.by.contains('/') {
            // without the variable, docker refuses to leave a context that is gone
            let command = "DOCKER_CONTEXT=default docker context use default";
            format!("remove \"currentContext\" from {} on the node: {command}", self.by)
        } else {
            format!("unset {} in the start-up file of the login's shell", self.by)
        }
    }
}

/// The engine that is used if it can be.
struct Candidate<'a> {
    /// As in [`Engine`].
    host: &'a str,
    socket: Socket,
    /// Whether it is reached by a network.
    is_network: bool,
    /// The rootless engine, where it may take its place.
    rootless: Option<&'a str>,
}

/// A program that hvdctl's scripts need and cannot use.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UnusableTool {
    /// Its name.
    pub name: String,
    /// What is wrong with it; completes the name.
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
    /// What sudo allows it.
    pub sudo: Sudo,
    /// Whether sudo allows it because it remembers the password.
    is_remembered: bool,
    /// The engine that it names.
    named: Option<NamedEngine>,
    /// The socket of the system's engine.
    system: Socket,
    /// The login's rootless engine.
    rootless: Option<String>,
    /// Why there is no command of Docker.
    command_fault: Option<&'static str>,
    /// Whether an engine is installed.
    has_engine: bool,
    /// The node's distribution.
    distribution: Distribution,
    /// What the node lacks.
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
                ("os", _) => login.distribution = Distribution::parse(value),
                ("docker-command", "podman") => login.command_fault = Some(PODMAN),
                ("docker-command", _) => login.command_fault = Some(NO_DOCKER),
                ("docker-engine", _) => login.has_engine = true,
                ("engine", _) => login.system = Socket::parse(value),
                ("context", _) => login.named().context = value.to_owned(),
                ("context-file", _) => login.named().file = value.to_owned(),
                ("named-by", _) => login.named().by = value.to_owned(),
                ("named-host", _) => login.named().host = value.to_owned(),
                ("named-socket", _) => login.named().socket = Socket::parse(value),
                ("rootless", _) => login.rootless = Some(value.to_owned()),
                _ => {}
            }
        }
        login
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
        let named = self.named.as_ref().filter(|named| named.is_gone())?;
        self.candidate().ok().map(|_| {
            format!("{}, {}; the engine of the node is used\n  hint: {}", named.origin(), named.fault(), named.remedy())
        })
    }

    fn candidate(&self) -> Result<Candidate<'_>, EngineFault> {
        if let Some(fault) = self.command_fault {
            return Err(self.without_command(fault));
        }
        let rootless = self.rootless.as_deref();
        let system = |host| Ok(Candidate { host, socket: self.system, is_network: false, rootless });
        let Some(named) = &self.named else { return system("") };
        match named.network() {
            Some(true) => Err(EngineFault {
                message: format!("{}, an engine on another machine", named.origin()),
                hint: format!("workers run on the node itself, so its own engine is needed: {}", named.remedy()),
            }),
            // the context has the certificates as well
            Some(false) => {
                let host = if named.context.is_empty() { named.host.as_str() } else { "" };
                Ok(Candidate { host, socket: Socket::Open, is_network: true, rootless })
            }
            None if !named.is_gone() => {
                Ok(Candidate { host: &named.host, socket: named.socket, is_network: false, rootless: None })
            }
            None if self.system != Socket::Missing || rootless.is_some() => system(SYSTEM),
            None => Err(EngineFault {
                message: format!("{}, {}, and there is no other engine", named.origin(), named.fault()),
                hint: named.remedy(),
            }),
        }
    }

    /// Returns what is wrong with the command of Docker, with what to install.
    fn without_command(&self, fault: &str) -> EngineFault {
        if fault == PODMAN || !self.has_engine {
            return EngineFault { message: fault.to_owned(), hint: "install Docker Engine on that node".to_owned() };
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

    /// Returns how root is used. A password is the last resort: sudo also asks users whom it then refuses, and counts
    /// each failure. A rootless engine gives no real root, so a password that was given beforehand (`has_password`)
    /// goes before it.
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
            _ if is_own => Ok(RootMethod::Container),
            Sudo::PasswordRequired(_) if has_password || !has_rootless => Ok(RootMethod::SudoWithPassword),
            _ if has_rootless => Ok(RootMethod::Container),
            Sudo::PasswordRequired(message) | Sudo::Refused(message) => Err(message.clone()),
        }
    }

    /// Returns how the engine is used, where root is used in this way.
    pub fn engine(&self, root: RootMethod) -> Engine {
        let is_container = root == RootMethod::Container;
        // an engine with a fault is not used at all
        let Ok(Candidate { host, socket, is_network, rootless }) = self.candidate() else {
            return Engine::Direct(String::new());
        };
        match (socket, rootless) {
            // the containers in which programs are root are those of the node's own engine
            (Socket::Open, Some(rootless)) if is_container && is_network => Engine::Direct(rootless.to_owned()),
            (Socket::Closed, _) if !is_container => {
                Engine::AsRoot(if host.is_empty() { SYSTEM } else { host }.to_owned())
            }
            (Socket::Closed | Socket::Missing, Some(rootless)) => Engine::Direct(rootless.to_owned()),
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
        assert_eq!(methods("user ana\nsudo no sudo is not installed\nengine open\n"), (Container, direct("")));
        // a rootless engine is used where nothing else is, and not in place of a password that was given
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
        assert_eq!(methods(&by_tcp), (Sudo, direct("")), "docker has its certificates from the context");
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
        assert_eq!(missing, "docker: command not found\ninstall Docker Engine on that node");
        let engine = fault("os debian \ndocker-command missing\ndocker-engine yes\nrootless unix:///r\n");
        assert!(engine.starts_with("the Docker Engine is installed, but the `docker` command is not\n"), "{engine}");
        assert!(engine.contains("apt-get install docker-cli (docker-ce-cli if "), "{engine}");
        let unknown = fault("docker-command missing\ndocker-engine yes\n");
        assert!(unknown.contains("docker-cli with the package manager of the node"), "{unknown}");
        assert!(fault("docker-command podman\nengine open\n").contains("Podman's, which is not supported yet"));
        // no root by an engine that cannot be used
        assert_eq!(refusal("sudo no never\ndocker-command podman\nengine open\nrootless unix:///r\n"), "never");
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
