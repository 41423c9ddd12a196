//! Opens a multiplexed session per node through the system's `ssh`, so that the user's configuration, agents, jump hosts
//! and hardware keys hold. `link` runs programs over it; no other module knows the `openssh` crate.

use crate::core::inventory::{Cluster, Node};
use crate::error::{Error, NodeError};
use openssh::{KnownHosts, Session, SessionBuilder};
use std::error::Error as _;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::Arc;
use std::time::Duration;
use tokio::process::Command;
use tokio::time::timeout;

/// The folder of this process's control sockets and its generated configuration. Removed on drop.
#[derive(Debug)]
pub struct Control {
    dir: tempfile::TempDir,
    config: PathBuf,
}

const PREFIX: &str = "hvdctl-ssh.";

impl Control {
    /// Makes the folder (mode 700) and the configuration that includes the cluster's, the user's and the system's.
    ///
    /// # Errors
    /// When `ssh` is not installed, the cluster's configuration cannot be read, or the folder cannot be made.
    pub fn new(cluster: &Cluster) -> Result<Control, Error> {
        which::which("ssh").map_err(|e| Error::Here(format!("ssh: {e}\n  hint: install the OpenSSH client")))?;
        let here = |e: &dyn std::fmt::Display| Error::Here(format!("could not prepare the ssh configuration: {e}"));
        sweep();
        // control sockets have a limit of about 100 bytes for their path, so the folder is in /tmp whatever TMPDIR says
        let dir = tempfile::Builder::new()
            .prefix(&format!("{PREFIX}{}.", std::process::id()))
            .tempdir_in("/tmp")
            .map_err(|e| here(&e))?;
        let mut text = String::new();
        let home = std::env::home_dir().map(|home| home.join(".ssh/config"));
        if let Some(own) = &cluster.ssh_config {
            fs::File::open(own).map_err(|e| {
                Error::usage(
                    format!("cluster.ssh_config: {}: {e}", own.display()),
                    "name a file that `ssh -F` could read, or leave the field out",
                )
            })?;
        }
        let system = Some(PathBuf::from("/etc/ssh/ssh_config"));
        for path in [cluster.ssh_config.clone(), home, system].into_iter().flatten() {
            let path = std::path::absolute(&path).map_err(|e| here(&e))?;
            let path = path.to_str().filter(|p| !p.contains(['"', '\n'])).ok_or_else(|| {
                Error::usage(format!("ssh cannot include {}", path.display()), "rename it without quotes")
            })?;
            text.push_str(&format!("Include \"{path}\"\n"));
        }
        let config = dir.path().join("config");
        fs::write(&config, text).map_err(|e| here(&e))?;
        Ok(Control { dir, config })
    }

    /// Opens the session of a node.
    ///
    /// # Errors
    /// [`NodeError`] of kind unreachable, with ssh's own words.
    pub async fn connect(&self, node: &Node, limit: Duration) -> Result<Arc<Session>, NodeError> {
        let check = self.host_key_check(node).await?;
        let mut builder = SessionBuilder::default();
        builder
            .control_directory(self.dir.path())
            .config_file(&self.config)
            .known_hosts_check(check)
            .connect_timeout(limit)
            .server_alive_interval(Duration::from_secs(15));
        if let Some(user) = &node.user {
            builder.user(user.clone());
        }
        if let Some(port) = node.ssh_port {
            builder.port(port);
        }
        if let Some(identity) = &node.identity {
            builder.keyfile(identity);
        }
        // ssh's own time-out ends at the banner; a server that stalls later must not hold us either
        let whole = limit + Duration::from_secs(5);
        match timeout(whole, builder.connect_mux(&node.host)).await {
            Ok(Ok(session)) => Ok(Arc::new(session)),
            Ok(Err(error)) => Err(explain(node, &chain(&error))),
            Err(_) => Err(explain(node, &format!("no answer within {} s", whole.as_secs()))),
        }
    }

    /// What the user's configuration says of unknown host keys: `yes` stays `yes`, anything else becomes
    /// `accept-new`; a changed key is never accepted.
    async fn host_key_check(&self, node: &Node) -> Result<KnownHosts, NodeError> {
        let output = Command::new("ssh")
            .args(["-G", "-F"])
            .arg(&self.config)
            .args(["--", &node.host])
            .stdin(Stdio::null())
            .kill_on_drop(true)
            .output();
        let output = match timeout(Duration::from_secs(10), output).await {
            Ok(Ok(output)) if output.status.success() => output,
            Ok(Ok(output)) => return Err(explain(node, &String::from_utf8_lossy(&output.stderr))),
            Ok(Err(e)) => return Err(explain(node, &e.to_string())),
            Err(_) => return Err(explain(node, "ssh -G did not answer within 10 s")),
        };
        let strict = String::from_utf8_lossy(&output.stdout)
            .lines()
            .any(|line| matches!(line, "stricthostkeychecking yes" | "stricthostkeychecking true"));
        Ok(if strict { KnownHosts::Strict } else { KnownHosts::Add })
    }
}

/// Ends the masters of runs that were killed: their folders carry the id of a process that is no more.
fn sweep() {
    let Ok(entries) = fs::read_dir("/tmp") else { return };
    for entry in entries.flatten() {
        let name = entry.file_name();
        let owner = name.to_str().and_then(|n| n.strip_prefix(PREFIX)).and_then(|n| n.split('.').next());
        let Some(pid) = owner.and_then(|pid| pid.parse::<u32>().ok()) else { continue };
        let (Ok(own), Ok(meta)) = (fs::metadata("/proc/self"), entry.metadata()) else { continue };
        if Path::new(&format!("/proc/{pid}")).exists() || !meta.is_dir() || owner_of(&meta) != owner_of(&own) {
            continue;
        }
        for session in fs::read_dir(entry.path()).into_iter().flatten().flatten() {
            let socket = session.path().join("master");
            if socket.exists() {
                // `ssh -O exit` wants a destination and does not use it
                let _ = std::process::Command::new("ssh")
                    .args(["-o", "BatchMode=yes", "-O", "exit", "-S"])
                    .arg(&socket)
                    .arg("hvdctl")
                    .stdin(Stdio::null())
                    .stdout(Stdio::null())
                    .stderr(Stdio::null())
                    .status();
            }
        }
        let _ = fs::remove_dir_all(entry.path());
    }
}

fn owner_of(meta: &fs::Metadata) -> u32 {
    std::os::unix::fs::MetadataExt::uid(meta)
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

/// ssh's words with the next step for those that we know.
fn explain(node: &Node, said: &str) -> NodeError {
    let said: Vec<&str> = said
        .lines()
        .map(str::trim)
        // the box of @ signs around a changed host key says nothing that its lines do not
        .filter(|line| !line.is_empty() && !line.starts_with("@@") && !line.starts_with("Warning: Permanently added"))
        .collect();
    let said = said.join("\n");
    let to = match &node.user {
        Some(user) => format!("{user}@{}", node.host),
        None => node.host.clone(),
    };
    let hint = if said.contains("IDENTIFICATION HAS CHANGED") {
        format!("if the machine was reinstalled, remove the old key with `ssh-keygen -R {}` and log in once", node.host)
    } else if said.contains("Host key verification failed") {
        format!("log in once by hand and compare the fingerprint: ssh {to}")
    } else if said.contains("Permission denied") {
        format!("let your key in: ssh-copy-id {to}")
    } else if said.contains("Could not resolve") {
        "set `host` to an address, or add the name to ~/.ssh/config".into()
    } else {
        format!("see whether `ssh {to}` works")
    };
    NodeError::unreachable(&node.name, &format!("log in by ssh as {to}"), said).hint(hint)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::core::inventory::Inventory;

    #[test]
    fn known_failures_have_a_next_step() {
        let mut node = Inventory::local("gpu1", "i").nodes.remove(0);
        node.host = "gpu1".into();
        node.user = Some("ana".into());
        let error = explain(&node, "ana@gpu1: Permission denied (publickey).");
        assert_eq!(
            error.to_string(),
            "gpu1: could not log in by ssh as ana@gpu1: ana@gpu1: Permission denied (publickey).\n  hint: let your \
             key in: ssh-copy-id ana@gpu1"
        );
        let changed =
            "@@@@@\n@ WARNING: REMOTE HOST IDENTIFICATION HAS CHANGED! @\n@@@@@\nHost key verification failed.";
        assert!(explain(&node, changed).to_string().contains("ssh-keygen -R gpu1"));
    }
}
