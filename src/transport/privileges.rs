//! The argument vectors that run a program as root on a node, or reach its engine, as [`access`](super::access) found.

use crate::model::engine::EngineName;
use crate::random;
use crate::secret::Secret;
use crate::transport::access::{Engine, ROOT_PODMAN, RootMethod, START_PODMAN, START_ROOTLESS_PODMAN};
use std::collections::BTreeMap;
use std::sync::OnceLock;
use zeroize::Zeroizing;

/// Prints a mark on each stream, that of standard output last, and starts the program: where a start-up file has joined
/// the streams, nothing follows the marks. They are assembled on the node, so that a shell that repeats its commands
/// (`set -x`) and a sudo that repeats what it refuses do not print them. The program starts without the variables of
/// the login by which shells and tools behave in another way: TMOUT, which hardening guides set, ends each `read` of
/// bash, SHELLOPTS may make a script fail, CDPATH makes `cd` print. bash cannot unset SHELLOPTS and needs env(1) for
/// that, which takes time at each start.
pub const BEGIN: &str = include_str!("../scripts/access/begin.sh");

/// The variables that [`BEGIN`] removes.
pub const REMOVED_VARIABLES: [&str; 9] =
    ["TMOUT", "SHELLOPTS", "BASHOPTS", "BASH_ENV", "ENV", "CDPATH", "GREP_OPTIONS", "TAR_OPTIONS", "POSIXLY_CORRECT"];

/// The program follows `access/root_address.sh`, which keeps the address by which ssh reached the node, and the login's
/// user and group (neither sudo nor a container would pass them on), and makes sudo's messages English.
const AS_LOGIN: &str =
    concat!(include_str!("../scripts/access/root_address.sh"), include_str!("../scripts/access/root_login.sh"));

const BY_SUDO: &str =
    concat!(include_str!("../scripts/access/root_address.sh"), include_str!("../scripts/access/root_sudo.sh"));

/// The password comes first on standard input, and a line that ends it: should sudo not read it after all (`-k` makes
/// it ask although it may remember the login), it must not reach the program.
const WITH_PASSWORD: &str =
    concat!(include_str!("../scripts/access/root_address.sh"), include_str!("../scripts/access/root_password.sh"));
const PASSWORD_ENDS: &str = "hvdctl: the password ends here\n";

/// The program runs on the node's own file system, among its processes and on its network. Arguments before it: image,
/// cluster, [`process`], `docker` or `podman`, DOCKER_HOST (may be empty).
const IN_CONTAINER: &str =
    concat!(include_str!("../scripts/access/root_address.sh"), include_str!("../scripts/access/root_container.sh"));

/// Arguments before those of the engine's command: that command, DOCKER_HOST or Podman's socket (may be empty).
const ENGINE: &str = include_str!("../scripts/access/engine.sh");

/// Returns a random text that identifies this process of hvdctl: its helper containers are labelled with it, and the
/// ids of its leases begin with it.
pub fn process() -> &'static str {
    static ID: OnceLock<String> = OnceLock::new();
    ID.get_or_init(random::id)
}

/// The user that a program runs as on a node.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RunAs {
    /// The login itself.
    Login,
    /// Root.
    Root,
    /// A user who may use the engine. The program is `docker` or `podman`; only its arguments are given.
    Engine,
}

/// The access that hvdctl has to root and the engine of a node. The default is enough for programs that the login runs
/// itself.
#[derive(Debug, Clone, Default)]
pub struct Access {
    /// The name of the login.
    pub user: String,
    /// Root.
    pub root: RootMethod,
    /// The password for [`RootMethod::SudoWithPassword`].
    pub password: Option<Secret>,
    /// The image for [`RootMethod::Container`]; the node has to have it.
    pub image: String,
    /// The cluster whose label such a container carries.
    pub cluster: String,
    /// The kind of engine.
    pub engine_name: EngineName,
    /// The way to use the engine.
    pub engine: Engine,
    /// The hard limits that containers of that engine cannot exceed, by name.
    pub limits: BTreeMap<String, u64>,
    /// The owner of the node, unless it is the operator.
    pub other_owner: Option<String>,
}

/// The command that starts a program.
pub struct Invocation {
    /// The program and its arguments.
    pub argv: Vec<String>,
    /// The text that precedes everything else on standard input: the password and the line that ends it.
    pub preamble: Option<Zeroizing<String>>,
    /// Set if the program's streams begin with [`BEGIN`]'s marks. The command that runs it as root may print text of
    /// its own: sudo a warning about the host name or its settings, a PAM module a greeting, Docker the features that
    /// the kernel lacks.
    pub is_marked: bool,
}

impl Access {
    /// Returns what starts a program as `run_as`.
    pub fn invocation(&self, run_as: RunAs, argv: &[&str]) -> Invocation {
        match (run_as, &self.engine) {
            (RunAs::Login, _) => as_login(argv.iter().copied().map(str::to_owned).collect()),
            (RunAs::Root, _) => self.as_root(argv),
            (RunAs::Engine, Engine::AsRoot(host)) => {
                let argv = shell(ENGINE, &[self.engine_name.command(), host], argv);
                self.as_root(&argv.iter().map(String::as_str).collect::<Vec<_>>())
            }
            (RunAs::Engine, Engine::Direct(host)) => as_login(shell(ENGINE, &[self.engine_name.command(), host], argv)),
            (RunAs::Engine, Engine::OfContext) => as_login(shell(ENGINE, &[self.engine_name.command(), ""], argv)),
        }
    }

    /// Returns how the engine is started, for hints.
    pub fn engine_start(&self) -> &'static str {
        match (self.engine_name, &self.engine) {
            (EngineName::Docker, _) => "start it on that node: sudo systemctl start docker",
            (EngineName::Podman, Engine::Direct(host)) if host != ROOT_PODMAN => START_ROOTLESS_PODMAN,
            (EngineName::Podman, _) => START_PODMAN,
        }
    }

    fn as_root(&self, argv: &[&str]) -> Invocation {
        let host = if let Engine::Direct(host) = &self.engine { host } else { "" };
        let (script, arguments) = match self.root {
            // nothing prints before the program, or refuses it
            RootMethod::Login => return as_login(shell(AS_LOGIN, &[], argv)),
            RootMethod::Sudo => (BY_SUDO, vec![]),
            RootMethod::SudoWithPassword => (WITH_PASSWORD, vec![]),
            RootMethod::Container => {
                let engine = self.engine_name.command();
                (IN_CONTAINER, vec![self.image.as_str(), &self.cluster, process(), engine, host])
            }
        };
        let preamble = |password: &Secret| Zeroizing::new(format!("{}\n{PASSWORD_ENDS}", password.expose()));
        let argv = shell(script, &arguments, &[&["sh", "-c", BEGIN, "sh"], argv].concat());
        Invocation { argv, preamble: self.password.as_ref().map(preamble), is_marked: true }
    }
}

fn as_login(argv: Vec<String>) -> Invocation {
    Invocation { argv, preamble: None, is_marked: false }
}

/// Returns the arguments of a program whose shell prints [`BEGIN`]'s marks first.
pub fn marked(argv: &[String]) -> Vec<String> {
    let shell = ["sh", "-c", BEGIN, "sh"].map(str::to_owned);
    shell.into_iter().chain(argv.iter().cloned()).collect()
}

fn shell(script: &str, arguments: &[&str], argv: &[&str]) -> Vec<String> {
    let shell = ["sh", "-c", script, "sh"];
    shell.iter().chain(arguments).chain(argv).copied().map(str::to_owned).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use zeroize::Zeroizing;

    fn access(root: RootMethod, engine: Engine) -> Access {
        Access { root, image: "i".into(), cluster: "c".into(), engine, ..Access::default() }
    }

    fn with_password() -> Access {
        let password = Some(Secret::new(Zeroizing::new("hunter2".into())));
        Access { password, ..access(RootMethod::SudoWithPassword, Engine::default()) }
    }

    #[test]
    fn the_password_is_in_no_argument() {
        for run_as in [RunAs::Root, RunAs::Engine] {
            let start = with_password().invocation(run_as, &["version"]);
            assert!(start.argv.iter().all(|argument| !argument.contains("hunter2")), "{:?}", start.argv);
            assert_eq!(start.preamble.unwrap().as_str(), "hunter2\nhvdctl: the password ends here\n");
        }
    }

    #[test]
    fn shellcheck_accepts_the_scripts() {
        use crate::text::quote::shellcheck;
        use RootMethod::{Container, Login, Sudo, SudoWithPassword};
        for root in [Login, Sudo, SudoWithPassword, Container] {
            let access = access(root, Engine::Direct("unix:///run/user/1000/docker.sock".into()));
            shellcheck(&access.invocation(RunAs::Root, &["true"]).argv[2]);
            shellcheck(&access.invocation(RunAs::Engine, &["version"]).argv[2]);
        }
    }

    /// Checks that the program sees only its own input, both if sudo reads the password and if it does not.
    #[test]
    fn the_program_never_reads_the_password() {
        use std::io::Write as _;
        use std::process::{Command, Stdio};
        let dir = tempfile::tempdir().unwrap();
        let start = with_password().invocation(RunAs::Root, &["sh", "-c", "cat; echo \"$HVDCTL_ADDRESS\""]);
        for reads in ["read -r password;", ""] {
            let sudo = dir.path().join("sudo");
            std::fs::write(&sudo, format!("#!/bin/sh\n{reads} shift 4; exec \"$@\"\n")).unwrap();
            std::fs::set_permissions(&sudo, std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
            let mut child = Command::new(&start.argv[0])
                .args(&start.argv[1..])
                .env("PATH", format!("{}:/usr/bin:/bin", dir.path().display()))
                .env("SSH_CONNECTION", "10.0.0.9 4000 10.0.0.1 22")
                .stdin(Stdio::piped())
                .stdout(Stdio::piped())
                .spawn()
                .unwrap();
            let input = format!("{}the input\n", start.preamble.as_deref().unwrap());
            child.stdin.take().unwrap().write_all(input.as_bytes()).unwrap();
            let output = child.wait_with_output().unwrap();
            assert_eq!(
                String::from_utf8_lossy(&output.stdout),
                "\nhvdctl-begins\nthe input\n10.0.0.1\n",
                "sudo that does {reads:?}"
            );
        }
    }
}
