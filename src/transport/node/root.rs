//! Finds out how root is used on a node, and explains why it cannot be.

use super::script::Script;
use super::{Channel, Output, RunAs, Transport};
use crate::error::{ErrorKind, NodeError};
use crate::event::{Events, Message};
use crate::inventory::Cluster;
use crate::model::engine::EngineName;
use crate::secret::Secret;
use crate::text::failure::{self, Docker, SudoFailure as Refusal};
use crate::transport::access::{EngineFault, Login, RootMethod};
use crate::transport::sudo::{PASSWORD_FILE, SudoPasswords};
use zeroize::Zeroizing;

const ACCESS: &str =
    concat!(include_str!("../../scripts/access/login.sh"), include_str!("../../scripts/access/access.sh"));

impl Transport {
    /// Sets how root and the engine are used from now on, and returns the login. A password is tried where one is
    /// needed: once, because accounts are locked after several failures.
    pub(super) async fn find_access(
        &mut self,
        cluster: &Cluster,
        owner: &Option<String>,
        sudo: &SudoPasswords,
        events: &Events,
    ) -> Result<Login, NodeError> {
        self.access.other_owner = owner.clone();
        let found = self.try_access(cluster, owner, sudo, events).await;
        if let (Err(_), Channel::Ssh(connections)) = (&found, &self.channel) {
            // what the user changes next may only have effect in a new login
            connections.discard().await;
        }
        found
    }

    async fn try_access(
        &mut self,
        cluster: &Cluster,
        owner: &Option<String>,
        sudo: &SudoPasswords,
        events: &Events,
    ) -> Result<Login, NodeError> {
        let login = self.login().await?;
        self.access.user = login.user.clone();
        if self.run_dir.is_some() {
            // what would be root's elsewhere is the login's
            self.access.root = RootMethod::Login;
            return Ok(login);
        }
        self.access.engine_name = login.engine_name();
        self.engine_fault = login.engine_fault();
        let root = login.root_method(sudo.is_given(owner)).map_err(|message| self.no_root(&login.user, &message))?;
        if root == RootMethod::SudoWithPassword {
            let no_password = |why| self.no_root(&login.user, &format!("sudo asks for a password, and {why}"));
            let password = sudo.password(owner, events).await.map_err(no_password)?;
            self.try_password(&login.user, &password).await?;
            self.access.password = Some(password);
        }
        self.access.root = root;
        self.access.engine = login.engine(root);
        self.access.limits = login.engine_limits(&self.access.engine);
        if let Some(warning) = login.warning() {
            events.warn(Message::of(&self.node, warning));
        }
        self.access.image = cluster.image.clone();
        self.access.cluster = cluster.name.clone();
        Ok(login)
    }

    /// Returns what the access script reports, or has reported within the last minute over the same connection.
    async fn login(&self) -> Result<Login, NodeError> {
        let connections = if let Channel::Ssh(connections) = &self.channel { Some(connections) } else { None };
        if let Some(report) = connections.and_then(|connections| connections.access()) {
            return Ok(Login::parse(&report).choosing(self.engine_choice));
        }
        let operation = "check for root access";
        let report = self.script_as_login(&Script::new(ACCESS), operation).await?;
        let report = String::from_utf8_lossy(&report);
        let login = Login::parse(&report).choosing(self.engine_choice);
        if login.user.is_empty() {
            return Err(NodeError::failed(&self.node, operation, "the access script printed nothing")
                .hint("check whether the user's start-up file (~/.bashrc) reads standard input, or exits the shell"));
        }
        if let Some((message, hint)) = login.unusable_tools() {
            return Err(NodeError::failed(&self.node, "find the required programs", message).hint(hint));
        }
        if let Some(connections) = connections.filter(|_| self.noise.get().is_none() && self.is_steady(&login)) {
            connections.set_access(&report);
        }
        Ok(login)
    }

    /// Returns whether what was found out can be expected to stay true for a while.
    fn is_steady(&self, login: &Login) -> bool {
        login.is_steady() || self.run_dir.is_some() && login.unusable_tools.is_empty()
    }

    /// Checks the password with sudo.
    async fn try_password(&self, user: &str, password: &Secret) -> Result<(), NodeError> {
        let operation = "get root with sudo";
        // without -k a login that sudo remembers would pass with any password
        let argv = ["env", "LC_ALL=C", "sudo", "-k", "-S", "-p", "", "true"];
        let line = Zeroizing::new(format!("{}\n", password.expose()));
        let output = self.run(RunAs::Login, &argv, line.as_bytes(), operation, self.limit).await?;
        if output.code == 0 {
            return Ok(());
        }
        let stderr = output.complaint();
        // the line was the only attempt: that there was no second one is not worth reporting
        let is_refused = stderr.lines().any(|line| failure::sudo(line) == Some(Refusal::PasswordRefused));
        let mut lines = stderr.lines().map(str::trim).filter(|line| !line.is_empty());
        // sudo warns of other things as well
        let other = lines.clone().rfind(|line| failure::sudo(line).is_some()).or(lines.next_back());
        let message = other.filter(|_| !is_refused).unwrap_or("sudo refused the password");
        Err(NodeError::failed(&self.node, operation, message)
            .hint(format!("check that it is the password of {user} there; hvdctl tries a password only once")))
    }

    fn no_root(&self, user: &str, message: &str) -> NodeError {
        // hvdctl uses root's Podman only as root
        let group = match self.engine_name() {
            EngineName::Docker => format!("or add {user} to the group docker; "),
            EngineName::Podman => format!(
                "or give {user} a Podman of its own (systemctl --user enable --now podman.socket, and loginctl \
                 enable-linger); "
            ),
        };
        let hint = match &self.access.other_owner {
            None => format!(
                "hvdctl needs root on the node. Give the password: --ask-sudo-pass, or ${PASSWORD_FILE}; or let {user} \
                 run sudo without one (NOPASSWD in /etc/sudoers.d); {group}or set `user = \"root\"`. Ranks without \
                 containers need none of these: `runtime = \"process\"` in [cluster]"
            ),
            Some(owner) => format!(
                "hvdctl needs root on the node, but does not send a password for other nodes to those of {owner}. Ask \
                 {owner} to let {user} run sudo without one (NOPASSWD in /etc/sudoers.d), see docs/reference/pool.md; \
                 on a terminal, hvdctl asks for theirs"
            ),
        };
        let error = NodeError::failed(&self.node, "get root", message).kind(ErrorKind::PrivilegesDenied).hint(hint);
        // who needs no root because of an engine of the login should know why there is none
        self.engine_fault
            .iter()
            .fold(error, |error, EngineFault { message, hint }| error.hint(format!("{message}: {hint}")))
    }

    /// Checks that the node has an engine that may be used, as far as it is known without asking it.
    ///
    /// # Errors
    /// Returns why there is none.
    pub fn check_engine(&self, operation: &str) -> Result<(), NodeError> {
        let error = |EngineFault { message, hint }: &EngineFault| {
            NodeError::failed(&self.node, operation, message).kind(ErrorKind::EngineUnavailable).hint(hint)
        };
        self.engine_fault.as_ref().map(error).map_or(Ok(()), Err)
    }

    /// Returns why a program did not run as root, if it was not the program that failed.
    pub(super) fn root_refusal(&self, output: &Output, operation: &str) -> Option<NodeError> {
        use Refusal::{NotAllowed, NotInstalled, PasswordRequired};
        if output.code == 0 || output.is_from_root || self.access.root == RootMethod::Login {
            return None;
        }
        if let Channel::Ssh(connections) = &self.channel {
            // it may have been true a minute ago
            connections.set_access("");
        }
        let stderr = output.complaint();
        if self.access.root == RootMethod::Container {
            let is_missing = |line: &&str| failure::docker(line) == Some(Docker::ImageMissing);
            let (image, engine) = (&self.access.image, self.engine_name().command());
            return stderr.lines().find(is_missing).map(|line| {
                NodeError::failed(&self.node, operation, line).kind(ErrorKind::ImageMissing).hint(format!(
                    "this account becomes root in a container of the cluster's image, which the node lacks. If it may \
                     use sudo, --ask-sudo-pass uses that. Otherwise: hvdctl exec --timeout 1h -- {engine} pull {image}, \
                     or docker save {image} | ssh NODE {engine} load"
                ))
            });
        }
        let is_refused =
            |line: &&str| matches!(failure::sudo(line), Some(PasswordRequired | NotAllowed | NotInstalled));
        stderr.lines().find(is_refused).map(|line| self.no_root("the login", line))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::transport::access::{UNFIT, UnusableTool};
    use std::fs::{self, Permissions};
    use std::os::unix::fs::{PermissionsExt, symlink};
    use std::path::Path;
    use std::process::Command;

    /// Scripts that run in containers, on the machine of a pool, or before hvdctl has root, whose programs
    /// `access/access.sh` does not check.
    const ELSEWHERE: [&str; 26] = [
        "mesh/image.sh",
        "mesh/main.sh",
        // the first says itself what is missing, also for the four after it
        "process/check.sh",
        "process/active.sh",
        "process/activate.sh",
        "process/begin.sh",
        "process/find_python.sh",
        "pool/owner.sh",
        "pool/publish.sh",
        "pool/read.sh",
        "pool/round_trips.sh",
        "access/access.sh",
        "access/first_login.sh",
        "worker/launcher_check.sh",
        "node/probe.sh",
        "keys/public_key.sh",
        "worker/logins.sh",
        "image/setup_ssh.sh",
        "shell/shell.sh",
        "shell/guard.sh",
        "shell/master.sh",
        "programs/ssh.sh",
        "worker/idle.sh",
        "worker/init.sh",
        // they find Python themselves, and `pip install` is no program of that name
        "env/python.sh",
        "env/install.sh",
    ];

    /// Programs that a script might use, except those whose names are common words.
    const PROGRAMS: &str = "awk b2sum base64 basename cat chgrp chmod chown cksum cmp column comm cp csplit curl cut \
        date dd df diff \
        dirname du expand expr fallocate find flock fold fuser getent grep groups gzip head hexdump id \
        install ionice ip jq killall ln logger ls lsof lsblk md5sum mkdir mkfifo mktemp mount mountpoint mv nl \
        nohup nsenter numfmt od paste perl pgrep pidof pkill ps python3 readlink realpath rev rm rmdir rsync sed seq \
        setpriv \
        setsid sha256sum shred shuf sleep sort ss stat strings stty sync sysctl tac tail tar tee timeout touch \
        tr truncate tsort tty umount uname uniq unshare unzip uptime uuidgen wc wget whoami xargs xxd";

    /// The tools that `access/access.sh` checks.
    fn checked() -> Vec<&'static str> {
        let (_, packages) = ACCESS.split_once("packages='\n").unwrap();
        let (packages, _) = packages.split_once("\n'\n").unwrap();
        packages.lines().flat_map(|line| line.split(' ').skip(1)).collect()
    }

    /// The words of a script outside of its comments.
    fn words(script: &str) -> Vec<String> {
        let lines = script.lines().filter(|line| !line.trim_start().starts_with('#'));
        let lines = lines.map(|line| line.split_once(" # ").map_or(line, |(code, _)| code));
        let text = lines.collect::<Vec<_>>().join("\n");
        text.split(|c: char| !(c.is_ascii_alphanumeric() || "_-./+'$".contains(c))).map(str::to_owned).collect()
    }

    #[test]
    fn what_scripts_call_is_checked_and_nothing_else() {
        let scripts = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/scripts");
        let mut used = std::collections::BTreeMap::new();
        let files = |directory: &Path| fs::read_dir(directory).unwrap().map(|entry| entry.unwrap().path());
        for script in files(&scripts).flat_map(|directory| files(&directory)) {
            let name = script.strip_prefix(&scripts).unwrap().to_str().unwrap().to_owned();
            if name.ends_with(".sh") && !ELSEWHERE.contains(&name.as_str()) {
                used.extend(words(&fs::read_to_string(script).unwrap()).into_iter().map(|word| (word, name.clone())));
            }
        }
        let checked = checked();
        for tool in &checked {
            assert!(used.contains_key(*tool), "no script uses {tool}");
        }
        let unchecked = PROGRAMS.split_whitespace().filter(|program| !checked.contains(program));
        let unchecked: Vec<_> = unchecked.filter(|program| used.contains_key(*program)).collect();
        assert_eq!(unchecked, [""; 0], "access/access.sh does not check them");
    }

    #[test]
    fn a_password_that_sudo_remembers_is_recognized() {
        let tools = tempfile::tempdir().unwrap();
        let stub = |name: &str, script: &str| {
            fs::write(tools.path().join(name), format!("#!/bin/sh\n{script}\n")).unwrap();
            fs::set_permissions(tools.path().join(name), Permissions::from_mode(0o755)).unwrap();
        };
        stub("id", "echo 7");
        let asks = "echo 'sudo: a password is required' >&2; exit 1";
        let refuses = "echo 'sorry, user ana is not allowed to execute this' >&2; echo >>\"$0.calls\"; exit 1";
        let expected = [
            ("exit 0", "sudo yes"),
            (&format!("case $* in *-k*) {asks} ;; esac"), "sudo yes remembered"),
            (asks, "sudo asks sudo: a password is required"),
            (refuses, "sudo no sorry, user ana is not allowed to execute this"),
        ];
        for (script, line) in expected {
            stub("sudo", script);
            let path = format!("{}:/usr/bin:/bin", tools.path().display());
            // without it, the script asks id(1)
            let access = ACCESS.replace("/proc/self/status", "/nonexistent");
            let output = Command::new("sh").args(["-c", &access]).env("PATH", path).output().unwrap();
            let shown = String::from_utf8(output.stdout).unwrap();
            assert!(shown.lines().any(|shown| shown == line), "no {line} in {shown}");
        }
        let calls = fs::read_to_string(tools.path().join("sudo.calls")).unwrap();
        assert_eq!(calls.lines().count(), 1, "sudo mails each refusal to root");
    }

    #[test]
    fn missing_and_unfit_tools_are_found() {
        let tools = tempfile::tempdir().unwrap();
        let place = |name: &str| tools.path().join(name);
        let real = |name: &str| {
            let places = ["/usr/bin", "/bin", "/usr/sbin", "/sbin"].map(|directory| Path::new(directory).join(name));
            places.into_iter().find(|path| path.exists()).unwrap_or_else(|| panic!("{name} is not installed here"))
        };
        let extra = ["sh", "printf"];
        checked().into_iter().chain(extra).for_each(|name| symlink(real(name), place(name)).unwrap());
        let login = || {
            let output = Command::new(real("sh")).args(["-c", ACCESS]).env("PATH", tools.path()).output().unwrap();
            assert!(output.stderr.is_empty(), "{output:?}");
            Login::parse(&String::from_utf8(output.stdout).unwrap())
        };
        let tool =
            |name: &str, fault, package: &str| UnusableTool { name: name.into(), fault, package: package.into() };
        assert_eq!(login().unusable_tools(), None);
        for (name, package) in
            [("flock", "util-linux"), ("cmp", "diffutils"), ("cut", "coreutils"), ("sort", "coreutils")]
        {
            fs::remove_file(place(name)).unwrap();
            assert_eq!(login().unusable_tools, [tool(name, "is missing", package)]);
            symlink(real(name), place(name)).unwrap();
        }
        // as those of BusyBox, of coreutils before 8.30, and of one that takes -z for something else
        let stubs = [
            ("cut", "coreutils", "echo \"cut: invalid option -- 'z'\" >&2; exit 1"),
            ("b2sum", "coreutils", "echo \"b2sum: invalid option -- 'z'\" >&2; exit 1"),
            ("stat", "coreutils", "exit 1"),
            ("cut", "uutils", "echo 'cut (uutils coreutils) 0.2.2'; exit 1"),
            ("cut", "uutils", "echo '/usr/bin/cut 0.0.17'; exit 1"),
            ("xargs", "findutils", "exit 1"),
            ("grep", "grep", "exec tr '\\0' '\\n'"),
        ];
        for (name, package, stub) in stubs {
            fs::remove_file(place(name)).unwrap();
            fs::write(place(name), format!("#!/bin/sh\n{stub}\n")).unwrap();
            fs::set_permissions(place(name), Permissions::from_mode(0o755)).unwrap();
            assert_eq!(login().unusable_tools, [tool(name, UNFIT, package)], "{stub}");
            fs::remove_file(place(name)).unwrap();
            symlink(real(name), place(name)).unwrap();
        }
    }
}
