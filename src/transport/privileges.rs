//! The words that make a program root's on a node, or reach its engine, by the way that was found there.

use crate::secret::Secret;
use crate::transport::access::Engine;
use std::collections::hash_map::RandomState;
use std::hash::BuildHasher;
use std::sync::OnceLock;
use zeroize::Zeroizing;

/// The address by which ssh reached the node, which neither sudo nor a container would hand on. sudo's own words are wanted
/// in one language.
const ADDRESS: &str = include_str!("../scripts/root_address.sh");

/// For a login that is root.
const AS_LOGIN: &str = include_str!("../scripts/root_login.sh");

/// For a login whom sudo asks nothing.
const BY_SUDO: &str = include_str!("../scripts/root_sudo.sh");

/// For sudo with a password, which comes first on standard input and has a line behind it that ends it: should sudo not
/// read it after all (`-k` has it ask although it may remember the login), it must not reach the program.
const WITH_PASSWORD: &str = include_str!("../scripts/root_password.sh");
const PASSWORD_ENDS: &str = "hvdctl: the password ends here\n";

/// For a login that may use the engine: the program runs on the node's own file system, among its processes and on its
/// network. Wants before it: image, cluster, the word for this hvdctl, DOCKER_HOST (may be empty).
const IN_CONTAINER: &str = include_str!("../scripts/root_container.sh");

const DOCKER: &str = include_str!("../scripts/docker.sh");

/// The word that tells this hvdctl from every other: its helper containers carry it, and its leases begin with it.
pub fn process() -> &'static str {
    static WORD: OnceLock<String> = OnceLock::new();
    WORD.get_or_init(|| format!("{:016x}", RandomState::new().hash_one(std::process::id())))
}

/// How root is had.
#[derive(Debug)]
pub enum Root {
    /// The login is root.
    Login,
    /// By sudo, which asks nothing.
    Sudo,
    /// By sudo with this password.
    Password(Secret),
    /// In a container of this image on the node's own engine.
    Container {
        /// The image; it has to be there.
        image: String,
        /// The cluster whose label the container carries.
        cluster: String,
    },
}

/// How root and the engine of a node are had.
#[derive(Debug)]
pub struct Access {
    /// Root.
    pub root: Root,
    /// The engine.
    pub engine: Engine,
    /// The login's shell, as far as it is known.
    pub shell: String,
}

/// A program to be started: its vector, and what goes to its standard input before everything else.
#[derive(Default)]
pub struct Start {
    /// The program and its arguments.
    pub argv: Vec<String>,
    /// The password and the line that ends it.
    pub first: Option<Zeroizing<String>>,
}

impl Access {
    /// A program as root.
    pub fn as_root(&self, argv: &[&str]) -> Start {
        let shell = |script: &str| -> Vec<String> {
            ["sh", "-c", &format!("{ADDRESS}{script}"), "sh"].into_iter().map(str::to_owned).collect()
        };
        let (mut words, first) = match &self.root {
            Root::Login => (shell(AS_LOGIN), None),
            Root::Sudo => (shell(BY_SUDO), None),
            Root::Password(password) => {
                (shell(WITH_PASSWORD), Some(Zeroizing::new(format!("{}\n{PASSWORD_ENDS}", password.expose()))))
            }
            Root::Container { image, cluster } => {
                let mut words = shell(IN_CONTAINER);
                let host = match &self.engine {
                    Engine::Direct(host) => host.clone(),
                    Engine::AsRoot => String::new(),
                };
                words.extend([image.clone(), cluster.clone(), process().to_owned(), host]);
                (words, None)
            }
        };
        words.extend(argv.iter().map(|word| (*word).to_owned()));
        Start { argv: words, first }
    }

    /// `docker` with arguments, as whoever may use the engine.
    pub fn docker(&self, args: &[&str]) -> Start {
        match &self.engine {
            Engine::Direct(host) => {
                let words = ["sh", "-c", DOCKER, "sh", host].into_iter().chain(args.iter().copied());
                Start { argv: words.map(str::to_owned).collect(), ..Start::default() }
            }
            Engine::AsRoot => {
                let words: Vec<&str> = ["docker"].into_iter().chain(args.iter().copied()).collect();
                self.as_root(&words)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use zeroize::Zeroizing;

    fn with_password() -> Access {
        let password = Secret::new(Zeroizing::new("hunter2".into()));
        Access { root: Root::Password(password), engine: Engine::AsRoot, shell: String::new() }
    }

    #[test]
    fn the_password_is_in_no_argument() {
        for start in [with_password().as_root(&["sh", "-s"]), with_password().docker(&["version"])] {
            assert!(start.argv.iter().all(|word| !word.contains("hunter2")), "{:?}", start.argv);
            assert_eq!(start.first.unwrap().as_str(), "hunter2\nhvdctl: the password ends here\n");
        }
    }

    #[test]
    fn shellcheck_finds_nothing_in_the_ways_to_root() {
        use crate::text::quote::shellcheck;
        let container = || Root::Container { image: "i".into(), cluster: "c".into() };
        for root in [Root::Login, Root::Sudo, with_password().root, container()] {
            let engine = Engine::Direct("unix:///run/user/1000/docker.sock".into());
            let access = Access { root, engine, shell: String::new() };
            shellcheck(&access.as_root(&["true"]).argv[2]);
            shellcheck(&access.docker(&["version"]).argv[2]);
        }
    }

    /// Whether sudo reads the password or not, the program sees its own input only.
    #[test]
    fn the_program_never_reads_the_password() {
        use std::io::Write as _;
        use std::process::{Command, Stdio};
        let dir = tempfile::tempdir().unwrap();
        let start = with_password().as_root(&["sh", "-c", "cat; echo \"$HVDCTL_ADDRESS\""]);
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
            let input = format!("{}the input\n", start.first.as_deref().unwrap());
            child.stdin.take().unwrap().write_all(input.as_bytes()).unwrap();
            let output = child.wait_with_output().unwrap();
            assert_eq!(String::from_utf8_lossy(&output.stdout), "the input\n10.0.0.1\n", "sudo that does {reads:?}");
        }
    }
}
