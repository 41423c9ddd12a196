//! The installed `ssh`: whose files it reads, and what it knows.

use super::kept::Directory;
use super::{HERE_LIMIT, output, settings};
use crate::error::Error;
use crate::text::nodeset::printable;
use crate::transport::local;
use serde::{Deserialize, Serialize};
use std::path::{Path, PathBuf};
use std::time::Duration;
use tokio::process::Command;

/// Time for which other commands reuse an answer of ssh. It is limited because a wrapper script named `ssh` may start
/// another ssh one day.
const ANSWER_AGE: Duration = Duration::from_secs(600);

/// Options of interactive use, and the values with which they have no effect on hvdctl's sessions: forwardings that
/// fail the login where a port is in use, a command or a terminal that replaces hvdctl's own, an agent or a Kerberos
/// ticket on nodes, a dialogue about a key, an ssh that goes to the background or ends quiet sessions.
const INTERACTIVE: [(&str, &str); 13] = [
    ("AddKeysToAgent", "no"),
    ("ChannelTimeout", "none"),
    ("ClearAllForwardings", "yes"),
    ("ForkAfterAuthentication", "no"),
    ("ForwardAgent", "no"),
    ("ForwardX11", "no"),
    ("GSSAPIDelegateCredentials", "no"),
    ("PermitLocalCommand", "no"),
    ("RemoteCommand", "none"),
    ("RequestTTY", "no"),
    ("SessionType", "default"),
    ("StdinNull", "no"),
    ("VisualHostKey", "no"),
];

/// A value that is valid for every option of [`INTERACTIVE`] whose own is `none`, which ssh does not print.
const PRINTED: &str = "session=1h";

/// The Debian package of `ssh` and `ssh-add`.
pub(super) const PACKAGE: &str = "openssh-client";

/// The capabilities of the installed ssh.
#[derive(Debug, Default, Serialize, Deserialize)]
pub struct Client {
    /// The home directory whose `.ssh` it reads: that of the user database, which `$HOME` may differ from (containers
    /// of CI, sudo).
    pub home: Option<PathBuf>,
    /// The key exchanges that it knows, one a line.
    pub(super) exchanges: String,
    /// The names of the options that it knows, as `ssh -G` prints them.
    pub(super) options: Vec<String>,
}

impl Client {
    /// Asks ssh.
    ///
    /// # Errors
    /// When it is not installed or fails.
    pub async fn find() -> Result<Client, Error> {
        local::find("ssh", PACKAGE)?;
        let program = || Command::new("ssh");
        let version = output(program().arg("-V"), HERE_LIMIT).await.map(|done| done.stderr).unwrap_or_default();
        let version = String::from_utf8_lossy(&version).lines().next().map(printable).unwrap_or_default();
        Client::ask(program, &version).await
    }

    /// Asks the program of this version.
    async fn ask(program: impl Fn() -> Command, version: &str) -> Result<Client, Error> {
        if version.starts_with("OpenSSH_for_Windows") {
            let message = format!("the ssh in PATH is the one of Windows, which cannot share connections: {version}");
            return Err(Error::usage(message, format!("install {PACKAGE} in WSL, and put it first in PATH")));
        }
        let other = |error: Error| match version.contains("OpenSSH") || version.is_empty() {
            true => error,
            false => Error::usage(
                format!("the ssh in PATH is not OpenSSH's: {version}"),
                format!("put the client of OpenSSH first in PATH (Debian: {PACKAGE})"),
            ),
        };
        let exchanges = run(program().args(["-Q", "kex"])).await.map_err(other)?;
        let mut ssh = program();
        // an option that an older ssh does not know would be an error. A control path is the one path that every
        // version expands
        ssh.args(["-G", "-F", "/dev/null", "-o", "IgnoreUnknown=*", "-o", "ControlPath=~/.ssh"]);
        for (name, value) in INTERACTIVE {
            ssh.arg("-o").arg(format!("{name}={}", if value == "none" { PRINTED } else { value }));
        }
        let printed = run(ssh.arg("localhost")).await.map_err(other)?;
        let client = Client::parse(&printed, exchanges);
        Ok(Client { home: client.home.or_else(std::env::home_dir), ..client })
    }

    /// Returns what ssh has answered to a command not long ago, or else asks it.
    ///
    /// # Errors
    /// As [`Client::find`].
    pub(super) async fn remembered(program: Option<&Path>, directory: &Directory) -> Result<Client, Error> {
        let Some(program) = program else { return Client::find().await };
        let name = format!("client.{}", settings::program_key(program));
        let answer = directory.recent(&name, ANSWER_AGE);
        if let Some(client) = answer.and_then(|text| serde_json::from_str(&text).ok()) {
            return Ok(client);
        }
        let client = Client::find().await?;
        if let Ok(text) = serde_json::to_string(&client) {
            // without it the next command asks as well
            let _ = directory.write(&name, &text);
        }
        Ok(client)
    }

    fn parse(printed: &str, exchanges: String) -> Client {
        let pairs = || printed.lines().filter_map(|line| line.split_once(' '));
        let directory = pairs().find_map(|(name, value)| (name == "controlpath").then_some(Path::new(value)));
        let home = directory.filter(|path| path.is_absolute()).and_then(Path::parent).map(Path::to_owned);
        Client { home, exchanges, options: pairs().map(|(name, _)| name.to_owned()).collect() }
    }

    /// Returns the user's configuration.
    pub fn config(&self) -> Option<PathBuf> {
        Some(self.home.as_ref()?.join(".ssh/config"))
    }

    /// Returns the name of that file for messages: in full where a shell's `~` is another directory.
    pub fn config_name(&self) -> String {
        let full = self.config().filter(|_| self.home != std::env::home_dir());
        full.map_or("~/.ssh/config".to_owned(), |path| path.display().to_string())
    }

    /// Returns the lines that keep options of interactive use away.
    pub(super) fn not_interactive(&self) -> String {
        let known = |name: &str| self.options.iter().any(|option| name.eq_ignore_ascii_case(option));
        INTERACTIVE.iter().filter(|(name, _)| known(name)).map(|(name, value)| format!("{name} {value}\n")).collect()
    }
}

/// Returns what an ssh that contacts no node prints.
async fn run(ssh: &mut Command) -> Result<String, Error> {
    let done = output(ssh, HERE_LIMIT).await;
    let done = done.map_err(|error| Error::Local(format!("cannot run ssh: {error}")))?;
    if !done.status.success() {
        let stderr = String::from_utf8_lossy(&done.stderr);
        return Err(Error::Local(format!("cannot run ssh: {}: {}", done.status, stderr.trim())));
    }
    Ok(String::from_utf8_lossy(&done.stdout).into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_older_ssh_gets_no_option_that_it_does_not_know() {
        let client =
            Client::parse("host localhost\nrequesttty false\nforwardx11 no\ncontrolpath /home/ana/.ssh", String::new());
        assert_eq!(client.home, Some("/home/ana".into()));
        assert_eq!(client.not_interactive(), "ForwardX11 no\nRequestTTY no\n");
        assert_eq!(Client::parse("controlpath /.ssh\n", String::new()).home, Some("/".into()));
        for nothing in ["", "controlpath none\n", "host x\n"] {
            assert_eq!(Client::parse(nothing, String::new()).home, None, "{nothing}");
        }
    }

    #[tokio::test]
    async fn the_clients_of_other_makers_are_named() {
        let fails = || {
            let mut shell = Command::new("sh");
            shell.args(["-c", "echo 'WARNING: Ignoring unknown option -Q' >&2; exit 1", "ssh"]);
            shell
        };
        for (version, words) in [
            (
                "Dropbear v2022.83",
                "the ssh in PATH is not OpenSSH's: Dropbear v2022.83\n  hint: put the client of OpenSSH first",
            ),
            ("OpenSSH_for_Windows_9.5p1, LibreSSL 3.8.2", "the ssh in PATH is the one of Windows"),
            ("OpenSSH_9.2p1 Debian-2, OpenSSL 3.0.9", "cannot run ssh: exit status: 1: WARNING"),
            ("", "cannot run ssh: exit status: 1: WARNING"),
        ] {
            let error = Client::ask(fails, version).await.unwrap_err().to_string();
            assert!(error.contains(words), "{error}");
        }
    }

    #[tokio::test]
    async fn this_ssh_is_asked() {
        let client = Client::find().await.unwrap();
        assert!(client.exchanges.contains("curve25519-sha256"), "{client:?}");
        // OpenSSH 8.7 has the newest but one
        for known in ["RemoteCommand none\n", "SessionType default\n", "ClearAllForwardings yes\n", "StdinNull no\n"] {
            assert!(client.not_interactive().contains(known), "no {known} in {client:?}");
        }
    }
}
