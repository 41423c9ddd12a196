//! A command on every node at once, or inside each worker.

use crate::cluster::each_node::NodeResults;
use crate::cluster::member::Member;
use crate::error::NodeError;
use crate::event::{Events, Step};
use crate::inventory::Cluster;
use crate::runtime::Runtime;
use crate::runtime::container::{SLURM, running_worker};
use crate::transport::node::{Collected, RunAs};
use schemars::JsonSchema;
use serde::Serialize;
use std::time::Duration;

const EXEC: &str = include_str!("../scripts/access/exec.sh");

/// The number of bytes that are kept of each output of a node.
pub const KEPT: u64 = 1 << 20;

/// The place where a command runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ExecPlace {
    /// On the node, as the login.
    Node,
    /// On the node, as root.
    Root,
    /// In the node's worker.
    Worker,
    /// In its container of the cluster's queue.
    Slurm,
}

/// The result of a command on a node. Bytes that are not UTF-8 are replaced by U+FFFD.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, JsonSchema)]
#[schemars(rename = "ExecNode")]
pub struct CommandOutput {
    /// The node.
    #[serde(skip)]
    pub node: String,
    /// The exit code of the command.
    pub code: i32,
    /// True if the time-out ended it.
    pub timed_out: bool,
    /// The number of bytes of its output that are missing here.
    pub left_out: u64,
    /// Its standard output.
    pub stdout: String,
    /// Its standard error.
    pub stderr: String,
}

/// The exit code after a time-out, as in timeout(1).
const TIMED_OUT: i32 = 124;

/// A program that runs on every node.
pub struct RemoteProgram<'a> {
    /// The program and its arguments.
    pub command: &'a [String],
    /// The place where it runs.
    pub place: ExecPlace,
    /// The time that it may take; `None`: no limit.
    pub limit: Option<Duration>,
}

impl RemoteProgram<'_> {
    /// The user of a connection on which it can be run.
    pub fn run_as(&self) -> RunAs {
        if self.place == ExecPlace::Node { RunAs::Login } else { RunAs::Root }
    }
}

/// Runs a command on all connected nodes. Returns its output on each, and why it could not be run on others. When the
/// future is dropped, the command ends on every node. Exit codes are those of a shell: 128 + N for signal N, 127 if
/// there is no such program.
pub async fn exec(
    cluster: &Cluster,
    nodes: NodeResults<Member>,
    program: &RemoteProgram<'_>,
    events: &Events,
) -> NodeResults<CommandOutput> {
    let (RemoteProgram { command, place, limit }, run_as) = (program, program.run_as());
    let operation = format!("run {}", command[0]);
    let argv: Vec<&str> = ["sh", "-c", EXEC, "sh"].into_iter().chain(command.iter().map(String::as_str)).collect();
    let run = async |member: Member| {
        let Member { node, transport, .. } = &member;
        let _step = events.begin(&node.name, Step::write(format!("running {}", command[0])));
        let process = match place {
            ExecPlace::Node | ExecPlace::Root => transport.spawn(run_as, &argv, &operation).await?,
            ExecPlace::Worker => {
                let (runtime, worker) = worker(cluster, &member).await?;
                runtime.exec(&worker, &argv, &operation).await?
            }
            ExecPlace::Slurm => member.runtime().await?.exec(SLURM, &argv, &operation).await?,
        };
        let collected = process.collect(KEPT, *limit).await.map_err(|e| transport.broken(&operation, &e))?;
        let Collected { output, left_out, timed_out } = collected;
        let code = if timed_out { TIMED_OUT } else { output.code };
        let [stdout, stderr] = [output.stdout, output.stderr].map(|bytes| String::from_utf8_lossy(&bytes).into_owned());
        Ok(CommandOutput { node: node.name.clone(), code, timed_out, left_out, stdout, stderr })
    };
    nodes.then(events, run).await
}

/// Returns a node's runtime and the id of its worker.
///
/// # Errors
/// When the cluster has no worker there, or it is not running.
pub async fn worker(cluster: &Cluster, member: &Member) -> Result<(Runtime, String), NodeError> {
    let runtime = member.runtime().await?;
    let containers = runtime.containers().await?;
    let worker = running_worker(cluster, &containers).ok_or_else(|| {
        NodeError::failed(&member.node.name, &format!("enter {}", cluster.worker), "the container is not running")
            .hint("hvdctl up")
    })?;
    Ok((runtime, worker.id.clone()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::{Command, Stdio};

    #[test]
    fn a_node_without_setsid_runs_no_command() {
        let empty = tempfile::tempdir().unwrap();
        let mut shell = Command::new("/bin/sh");
        let output = shell.args(["-c", EXEC, "sh", "/bin/echo", "a"]).env("PATH", empty.path()).output().unwrap();
        assert_eq!((output.status.code(), output.stdout.as_slice()), (Some(127), &b""[..]));
        let message = "hvdctl: cannot run the command: setsid is missing (package util-linux)\n";
        assert_eq!(String::from_utf8_lossy(&output.stderr), message);
    }

    #[test]
    fn a_command_that_cannot_be_started_has_the_code_and_the_words_of_a_shell() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("no-program");
        std::fs::write(&file, "").unwrap();
        let file = file.to_str().unwrap();
        let path = format!("{}:/usr/bin:/bin:/nonexistent/*", dir.path().display());
        let cases = [("no-program", 127), ("nosuch", 127), (file, 126), ("-x", 127), ("/bin/true", 0), ("true", 0)];
        for (program, code) in cases {
            let mut shell = Command::new("/bin/sh");
            shell.args(["-c", EXEC, "sh", program]).env("PATH", &path).stdin(Stdio::piped()).stderr(Stdio::piped());
            let mut child = shell.spawn().unwrap();
            let input = child.stdin.take();
            let output = child.wait_with_output().unwrap();
            drop(input);
            let words = String::from_utf8_lossy(&output.stderr);
            assert!(words.is_empty() == (code == 0) && !words.contains("setsid"), "{program}: {words}");
            // dash and bash differ where a name in $PATH is no program
            let codes = if program == "no-program" { vec![126, 127] } else { vec![code] };
            assert!(codes.contains(&output.status.code().unwrap()), "{program}: {output:?}");
        }
    }

    #[test]
    fn a_variable_of_hardened_machines_ends_no_command() {
        let mut shell = Command::new("bash");
        shell.args(["--posix", "-c", EXEC, "sh", "sleep", "2"]).env("TMOUT", "1").stdin(Stdio::piped());
        // not every machine has it
        let Ok(mut child) = shell.spawn() else { return };
        let input = child.stdin.take();
        assert_eq!(child.wait().unwrap().code(), Some(0));
        drop(input);
    }
}
