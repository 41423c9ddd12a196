//! By which way root and the Docker Engine are had on a node: what `access.sh` saw, and what follows from it.

/// What sudo has to say to the login.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Sudo {
    /// The login is root itself.
    Root,
    /// It asks nothing.
    Yes,
    /// It asks for a password; its words.
    Asks(String),
    /// It is not there or refuses; its words.
    No(String),
}

/// How root is had.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Root {
    /// The login is root.
    Login,
    /// By sudo, which asks nothing.
    Sudo,
    /// By sudo with a password.
    Password,
    /// In a short-lived container of the node's own engine that has the node's file system: who may use an engine that
    /// runs as root is root (docs.docker.com, "Docker daemon attack surface").
    Engine,
    /// Not at all; why, in words.
    Unavailable(String),
}

/// How the engine is had.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Engine {
    /// By the login itself; the value for `DOCKER_HOST`, empty where Docker's own default holds.
    Direct(String),
    /// As root.
    AsRoot,
}

/// What was seen of a login.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Access {
    /// The login's name on the node.
    pub user: String,
    /// Its shell.
    pub shell: String,
    /// What sudo says.
    pub sudo: Sudo,
    /// The engine that the login may use itself, as [`Engine::Direct`] has it.
    pub direct: Option<String>,
    /// Whether that one may be on another machine: what `DOCKER_HOST` or a Docker context names is, unless it is a socket.
    pub elsewhere: bool,
    /// The engine of the login's own (rootless Docker).
    pub own: Option<String>,
    /// Whether there is a system's engine that is closed to the login.
    pub closed: bool,
    /// Whether `docker` is not installed.
    pub missing: bool,
    /// Programs that the scripts for nodes call and that are not there, each once.
    pub missing_tools: Vec<String>,
}

impl Access {
    /// Parses the script's lines. What it does not say is taken as "no".
    pub fn parse(text: &str) -> Access {
        let mut access = Access {
            user: String::new(),
            shell: String::new(),
            sudo: Sudo::No("it did not say anything".into()),
            direct: None,
            elsewhere: false,
            own: None,
            closed: false,
            missing: false,
            missing_tools: Vec::new(),
        };
        for line in text.lines() {
            let (key, value) = line.split_once(' ').unwrap_or((line, ""));
            let (first, rest) = value.split_once(' ').unwrap_or((value, ""));
            match (key, first) {
                ("user", _) => access.user = value.to_owned(),
                ("missing", tool) if !access.missing_tools.iter().any(|known| known == tool) => {
                    access.missing_tools.push(tool.to_owned());
                }
                ("shell", _) => access.shell = value.to_owned(),
                ("sudo", "root") => access.sudo = Sudo::Root,
                ("sudo", "yes") => access.sudo = Sudo::Yes,
                ("sudo", "asks") => access.sudo = Sudo::Asks(rest.to_owned()),
                ("sudo", _) => access.sudo = Sudo::No(rest.to_owned()),
                ("engine", "direct") => {
                    access.direct = Some(rest.to_owned());
                    access.elsewhere = !rest.is_empty() && !rest.starts_with("unix://");
                }
                ("engine", "context") => (access.direct, access.elsewhere) = (Some(String::new()), true),
                ("engine", "closed") => access.closed = true,
                ("engine", "missing") => access.missing = true,
                ("own", _) => access.own = Some(value.to_owned()),
                _ => {}
            }
        }
        access
    }

    /// The Debian packages that have the missing programs.
    pub fn missing_packages(&self) -> Vec<&'static str> {
        let mut packages: Vec<&'static str> = self
            .missing_tools
            .iter()
            .map(|tool| match tool.as_str() {
                "ip" | "ss" => "iproute2",
                "ps" => "procps",
                "awk" => "mawk",
                "find" | "xargs" => "findutils",
                "grep" => "grep",
                "sed" => "sed",
                "tar" => "tar",
                _ => "coreutils",
            })
            .collect();
        packages.sort_unstable();
        packages.dedup();
        packages
    }

    /// The way to root. A password is used only where nothing else leads there: sudo asks those too whom it would refuse
    /// afterwards, and each refusal counts against them. A rootless engine gives no real root, so one that the operator
    /// has given (`given`) goes before it.
    pub fn root(&self, given: bool) -> Root {
        let here = self.direct.is_some() && !self.elsewhere;
        match &self.sudo {
            Sudo::Root => Root::Login,
            Sudo::Yes => Root::Sudo,
            _ if here => Root::Engine,
            Sudo::Asks(_) if given || self.own.is_none() => Root::Password,
            _ if self.own.is_some() => Root::Engine,
            Sudo::Asks(words) | Sudo::No(words) => Root::Unavailable(words.clone()),
        }
    }

    /// The way to the engine, with root had in this way.
    pub fn engine(&self, root: &Root) -> Engine {
        match (&self.direct, &self.own, root) {
            // the engine in whose containers root is had is the one that is meant
            (Some(_), Some(own), Root::Engine) if self.elsewhere => Engine::Direct(own.clone()),
            (Some(host), _, _) => Engine::Direct(host.clone()),
            (None, _, Root::Login | Root::Sudo | Root::Password) if self.closed => Engine::AsRoot,
            (None, Some(own), _) => Engine::Direct(own.clone()),
            // docker's own words about a socket that is not there, or a program that is not, are the best error
            (None, None, _) => Engine::Direct(String::new()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ways(text: &str) -> (Root, Engine) {
        ways_with(text, false)
    }

    fn ways_with(text: &str, given: bool) -> (Root, Engine) {
        let access = Access::parse(text);
        let root = access.root(given);
        let engine = access.engine(&root);
        (root, engine)
    }

    fn direct(host: &str) -> Engine {
        Engine::Direct(host.into())
    }

    #[test]
    fn the_ways_to_root_and_engine() {
        assert_eq!(ways("user root\nsudo root\nengine direct\n"), (Root::Login, direct("")));
        assert_eq!(ways("user ana\nsudo yes\nengine closed\n"), (Root::Sudo, Engine::AsRoot));
        // the tutorial's user with sudo's question
        let asks = "user ana\nsudo asks sudo: a password is required\nengine closed\n";
        assert_eq!(ways(asks), (Root::Password, Engine::AsRoot));
        // the group docker needs no password
        let group = "user ana\nsudo asks sudo: a password is required\nengine direct\n";
        assert_eq!(ways(group), (Root::Engine, direct("")));
        let without_sudo = "user ana\nsudo no sudo is not installed\nengine direct\n";
        assert_eq!(ways(without_sudo), (Root::Engine, direct("")));
        // an engine on another machine is none in which this node's root could be had
        let elsewhere = "user ana\nsudo asks sudo: a password is required\nengine direct tcp://10.0.0.9:2376\n";
        assert_eq!(ways(elsewhere), (Root::Password, direct("tcp://10.0.0.9:2376")));
        assert_eq!(ways("user ana\nsudo no words\nengine context\n").0, Root::Unavailable("words".into()));
        // a rootless engine is used where nothing else is had, and not instead of a password that was given
        let asks_and_own = "user ana\nsudo asks words\nengine closed\nown unix:///run/user/1000/docker.sock\n";
        assert_eq!(ways_with(asks_and_own, true), (Root::Password, Engine::AsRoot));
        assert_eq!(ways(asks_and_own).0, Root::Engine);
        let rootless = "user ana\nsudo no sudo is not installed\nown unix:///run/user/1000/docker.sock\n";
        assert_eq!(ways(rootless), (Root::Engine, direct("unix:///run/user/1000/docker.sock")));
        // an engine of one's own does not hide the system's where root is had
        let both = "user ana\nsudo yes\nengine closed\nown unix:///run/user/1000/docker.sock\n";
        assert_eq!(ways(both), (Root::Sudo, Engine::AsRoot));
        let neither = "user ana\nsudo no ana is not allowed\nengine closed\n";
        assert_eq!(ways(neither).0, Root::Unavailable("ana is not allowed".into()));
        assert_eq!(ways("user ana\nsudo yes\n"), (Root::Sudo, direct("")));
        assert_eq!(ways("").0, Root::Unavailable("it did not say anything".into()));
    }

    #[test]
    fn missing_programs_have_packages() {
        let access = Access::parse("missing ps\nmissing ip\nmissing ss\nmissing grep\nmissing grep\nuser ana\n");
        assert_eq!(access.missing_tools, ["ps", "ip", "ss", "grep"]);
        assert_eq!(access.missing_packages(), ["grep", "iproute2", "procps"]);
    }
}
