//! How root and the Docker Engine can be used on a node: what `access.sh` reports about the login, and what follows from it.

use std::collections::BTreeSet;

/// What is wrong with a program that lacks options.
pub const UNFIT: &str = "is not GNU's or too old (coreutils 8.30 is needed)";

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

/// How the engine is used.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub enum Engine {
    /// By the login itself; the value for `DOCKER_HOST`, empty for Docker's default.
    Direct(String),
    /// As root.
    #[default]
    AsRoot,
}

/// A program that hvdctl's scripts need and cannot use.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UnusableTool {
    /// Its name.
    pub name: String,
    /// What is wrong with it; completes the name.
    pub fault: &'static str,
    /// Its Debian package.
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
    /// The engine that it may use itself, as in [`Engine::Direct`].
    pub engine: Option<String>,
    /// Whether that engine may be on another machine: it is named by `DOCKER_HOST` or a Docker context, and is no socket.
    pub is_remote: bool,
    /// The login's rootless engine.
    pub rootless: Option<String>,
    /// Whether the system's engine is closed to the login.
    pub is_closed: bool,
    /// What the node lacks.
    pub unusable_tools: Vec<UnusableTool>,
}

impl Login {
    /// Parses the lines of `access.sh`. What they do not mention is not there.
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
                ("sudo", "yes") => login.sudo = Sudo::Allowed,
                ("sudo", "asks") => login.sudo = Sudo::PasswordRequired(rest),
                ("sudo", _) => login.sudo = Sudo::Refused(rest),
                ("engine", "direct") => {
                    login.is_remote = !rest.is_empty() && !rest.starts_with("unix://");
                    login.engine = Some(rest);
                }
                ("engine", "context") => (login.engine, login.is_remote) = (Some(String::new()), true),
                ("engine", "closed") => login.is_closed = true,
                ("rootless", _) => login.rootless = Some(value.to_owned()),
                _ => {}
            }
        }
        login
    }

    /// Returns what is wrong with the node's programs, and how to fix it; `None` if hvdctl's scripts can use them.
    pub fn unusable_tools(&self) -> Option<(String, String)> {
        let tools = &self.unusable_tools;
        let faults: Vec<String> = tools.iter().map(|tool| format!("{} {}", tool.name, tool.fault)).collect();
        let packages: BTreeSet<&str> = tools.iter().map(|tool| tool.package.as_str()).collect();
        let packages = Vec::from_iter(packages).join(" ");
        let hint = format!("install it on the node; on Debian and Ubuntu: apt-get install {packages}");
        (!tools.is_empty()).then(|| (faults.join(", "), hint))
    }

    /// Returns how root is used. A password is the last resort: sudo also asks users whom it then refuses, and counts
    /// each failure. A rootless engine gives no real root, so a password that was given beforehand (`has_password`)
    /// goes before it.
    ///
    /// # Errors
    /// The message of sudo where there is no method.
    pub fn root_method(&self, has_password: bool) -> Result<RootMethod, String> {
        match &self.sudo {
            Sudo::Root => Ok(RootMethod::Login),
            Sudo::Allowed => Ok(RootMethod::Sudo),
            _ if self.engine.is_some() && !self.is_remote => Ok(RootMethod::Container),
            Sudo::PasswordRequired(_) if has_password || self.rootless.is_none() => Ok(RootMethod::SudoWithPassword),
            _ if self.rootless.is_some() => Ok(RootMethod::Container),
            Sudo::PasswordRequired(message) | Sudo::Refused(message) => Err(message.clone()),
        }
    }

    /// Returns how the engine is used, where root is used in this way.
    pub fn engine(&self, root: RootMethod) -> Engine {
        let is_container = root == RootMethod::Container;
        match (&self.engine, &self.rootless) {
            // the containers in which programs are root are those of the node's own engine
            (Some(_), Some(rootless)) if is_container && self.is_remote => Engine::Direct(rootless.clone()),
            (Some(host), _) => Engine::Direct(host.clone()),
            (None, _) if self.is_closed && !is_container => Engine::AsRoot,
            (None, Some(rootless)) => Engine::Direct(rootless.clone()),
            // docker's message about a missing socket or program is the clearest error
            (None, None) => Engine::Direct(String::new()),
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

    fn direct(host: &str) -> Engine {
        Engine::Direct(host.into())
    }

    #[test]
    fn root_and_the_engine_by_what_a_login_may_do() {
        use RootMethod::*;
        assert_eq!(methods("user root\nsudo root\nengine direct\n"), (Login, direct("")));
        assert_eq!(methods("user ana\nsudo yes\nengine closed\n"), (Sudo, Engine::AsRoot));
        // the user of the tutorial: sudo asks for a password
        let asks = "user ana\nsudo asks sudo: a password is required\nengine closed\n";
        assert_eq!(methods(asks), (SudoWithPassword, Engine::AsRoot));
        // the group docker needs no password
        let group = "user ana\nsudo asks sudo: a password is required\nengine direct\n";
        assert_eq!(methods(group), (Container, direct("")));
        assert_eq!(methods("user ana\nsudo no sudo is not installed\nengine direct\n"), (Container, direct("")));
        // an engine on another machine gives no root on this node
        let remote = "user ana\nsudo asks sudo: a password is required\nengine direct tcp://10.0.0.9:2376\n";
        assert_eq!(methods(remote), (SudoWithPassword, direct("tcp://10.0.0.9:2376")));
        assert_eq!(refusal("user ana\nsudo no message\nengine context\n"), "message");
        // a rootless engine is used where nothing else is, and not in place of a password that was given
        let asks_and_rootless =
            "user ana\nsudo asks message\nengine closed\nrootless unix:///run/user/1000/docker.sock\n";
        assert_eq!(methods_with(asks_and_rootless, true), (SudoWithPassword, Engine::AsRoot));
        assert_eq!(methods(asks_and_rootless).0, Container);
        let rootless = "user ana\nsudo no sudo is not installed\nrootless unix:///run/user/1000/docker.sock\n";
        assert_eq!(methods(rootless), (Container, direct("unix:///run/user/1000/docker.sock")));
        // a rootless engine does not hide the system's where root is available
        let both = "user ana\nsudo yes\nengine closed\nrootless unix:///run/user/1000/docker.sock\n";
        assert_eq!(methods(both), (Sudo, Engine::AsRoot));
        assert_eq!(refusal("user ana\nsudo no ana is not allowed\nengine closed\n"), "ana is not allowed");
        assert_eq!(methods("user ana\nsudo yes\n"), (Sudo, direct("")));
        assert_eq!(refusal(""), "the node did not report on sudo");
    }

    #[test]
    fn unusable_programs_have_packages() {
        let unusable = |text| Login::parse(text).unusable_tools().unwrap();
        let hint = "install it on the node; on Debian and Ubuntu: apt-get install ";
        let (message, packages) = unusable("missing ss iproute2\nuser ana\n");
        assert_eq!((message.as_str(), packages), ("ss is missing", format!("{hint}iproute2")));
        let text = "missing setsid util-linux\nmissing flock util-linux\nunfit cut coreutils\nuser ana\n";
        let (message, packages) = unusable(text);
        assert_eq!(
            message,
            "setsid is missing, flock is missing, cut is not GNU's or too old (coreutils 8.30 is needed)"
        );
        assert_eq!(packages, format!("{hint}coreutils util-linux"));
        assert_eq!(Login::parse("user ana\n").unusable_tools(), None);
    }
}
