//! Programs on a node, over its ssh session or, for this machine, as a child process: the same words either way.
//!
//! Every argument is quoted by the `openssh` crate or passed as a vector; scripts, and everything that they are told,
//! go over standard input, but for those whose standard input is a project's.

mod connections;
mod held;
mod prelude;
mod process;
mod root;
mod script;
#[cfg(test)]
pub(crate) mod scripted;

use crate::error::{Error, Kind, NodeError};
use crate::event::Events;
use crate::inventory::{Cluster, Node};
use crate::transport::access::Engine;
use crate::transport::privileges::{Access, Root, Start};
use crate::transport::ssh::Control;
use crate::transport::sudo::Sudo;
use connections::Connections;
pub use held::Who;
pub use prelude::Noise;
use prelude::{AfterMark, Fault, Prelude};
use process::Child;
pub use process::{Output, Process, STUCK};
pub use script::Script;
use std::process::Stdio;
use std::sync::{Arc, OnceLock};
use std::time::Duration;
use tokio::io::AsyncWriteExt;
use tokio::sync::Semaphore;
use tokio::time::timeout;

/// What helps where a limit is over.
const SLOW: &str = "if the node is only slow, raise cluster.command_timeout_s";

/// What becomes of a program of this machine whose [`Process`] is dropped. On a node its streams are closed, and it is left to
/// itself.
#[derive(Debug, Clone, Copy)]
enum AtDrop {
    /// It is killed.
    Kills,
    /// The same as on a node.
    Closes,
}

/// How the nodes of a command are reached.
#[derive(Debug, Clone)]
pub enum TransportKind {
    /// Over an SSH session for each.
    Ssh(Arc<Control>),
    /// As child processes: the node is this machine.
    Local,
    /// Nodes that a test has made up.
    #[cfg(test)]
    Scripted(scripted::Nodes),
}

/// How a node is spoken to.
#[derive(Debug)]
enum Channel {
    Ssh(Arc<Connections>),
    Local,
    #[cfg(test)]
    Scripted(scripted::Node),
}

/// One node, reachable.
#[derive(Debug)]
pub struct Transport {
    node: String,
    way: Channel,
    access: Access,
    sessions: Arc<Semaphore>,
    limit: Duration,
    /// What the login shell printed before the first program that it started.
    noise: Arc<OnceLock<String>>,
}

impl Transport {
    /// Opens the link to a node and finds out how root is had there.
    ///
    /// # Errors
    /// When ssh fails, or root cannot be had; when the operator's terminal fails.
    pub async fn open(
        cluster: &Cluster,
        node: &Node,
        transport: TransportKind,
        sudo: &Sudo,
        events: &Events,
    ) -> Result<Arc<Transport>, Error> {
        let mut link = Transport::open_as_login(cluster, node, transport).await?;
        link.access = link.find_access(cluster, sudo, events).await?;
        if let Some(noise) = link.noise() {
            events.note(format!("{}: {}; hvdctl skips it\n  hint: {}", link.node, noise.seen(), noise.cure()));
        }
        Ok(Arc::new(link))
    }

    /// Opens the link to a node for what needs no root.
    ///
    /// # Errors
    /// When ssh fails.
    pub async fn open_as_login(
        cluster: &Cluster,
        node: &Node,
        transport: TransportKind,
    ) -> Result<Transport, NodeError> {
        let way = match transport {
            TransportKind::Ssh(control) => {
                Channel::Ssh(Connections::open(control, node, cluster.connect_timeout).await?)
            }
            TransportKind::Local => Channel::Local,
            #[cfg(test)]
            TransportKind::Scripted(nodes) => Channel::Scripted(nodes.connect(&node.name).await?),
        };
        Ok(Transport {
            node: node.name.clone(),
            way,
            access: Access { root: Root::Login, engine: Engine::Direct(String::new()), shell: String::new() },
            sessions: Arc::new(Semaphore::new(connections::PROGRAMS)),
            limit: cluster.command_timeout,
            noise: Arc::default(),
        })
    }

    /// The node's name.
    pub fn node(&self) -> &str {
        &self.node
    }

    /// The limit for one step on the node (`command_timeout_s`).
    pub fn limit(&self) -> Duration {
        self.limit
    }

    /// Starts a program and writes what comes first to its standard input.
    async fn start(&self, start: &Start, at_drop: AtDrop) -> Result<Process, std::io::Error> {
        let mut process = self.start_program(start, at_drop).await?;
        if let Some(first) = &start.first {
            process.stdin.write_all(first.as_bytes()).await?;
            process.stdin.flush().await?;
        }
        Ok(process)
    }

    /// Starts a program by its vector.
    async fn start_program(&self, start: &Start, at_drop: AtDrop) -> Result<Process, std::io::Error> {
        let argv = &start.argv;
        let permit = Arc::clone(&self.sessions).acquire_owned().await.map_err(std::io::Error::other)?;
        match &self.way {
            Channel::Ssh(connections) => {
                let (mut child, place) = connections.spawn(&prelude::marked(argv)).await?;
                let (Some(stdin), Some(stdout), Some(stderr)) =
                    (child.stdin().take(), child.stdout().take(), child.stderr().take())
                else {
                    return Err(std::io::Error::other("ssh gave no streams"));
                };
                let prelude = Prelude::new(&self.noise);
                let stdout = AfterMark::stdout(stdout, prelude.clone(), self.limit);
                let stderr = AfterMark::stderr(stderr, Prelude::new(&self.noise), self.limit);
                let process = Process::new((stdin, stdout, stderr), Child::Ssh(child), permit);
                Ok(Process { prelude: Some(prelude), _place: Some(place), ..process })
            }
            Channel::Local => {
                let mut child = tokio::process::Command::new(&argv[0])
                    .args(&argv[1..])
                    .stdin(Stdio::piped())
                    .stdout(Stdio::piped())
                    .stderr(Stdio::piped())
                    // a Ctrl-C at the terminal is for hvdctl, which ends its children in order
                    .process_group(0)
                    .kill_on_drop(matches!(at_drop, AtDrop::Kills))
                    .spawn()?;
                let (Some(stdin), Some(stdout), Some(stderr)) =
                    (child.stdin.take(), child.stdout.take(), child.stderr.take())
                else {
                    return Err(std::io::Error::other("the child has no streams"));
                };
                Ok(Process::new((stdin, stdout, stderr), Child::Local(child), permit))
            }
            #[cfg(test)]
            Channel::Scripted(node) => {
                let scripted::Streams { stdin, stdout, stderr, code } = node.start(argv);
                Ok(Process::new((stdin, stdout, stderr), Child::Scripted(code), permit))
            }
        }
    }

    /// Starts a program as root.
    ///
    /// # Errors
    /// [`NodeError`] when the session is gone.
    pub async fn spawn_as_root(&self, argv: &[&str], tried: &str) -> Result<Process, NodeError> {
        self.start(&self.access.as_root(argv), AtDrop::Kills).await.map_err(|e| self.broken(tried, &e))
    }

    /// Runs a program as root with these bytes on its standard input, within the node's limit.
    ///
    /// # Errors
    /// [`NodeError`] when it cannot be started, the time is over, or root cannot be had.
    pub async fn run_as_root(&self, argv: &[&str], input: &[u8], tried: &str) -> Result<Output, NodeError> {
        self.run_as_root_within(argv, input, tried, self.limit).await
    }

    /// [`Transport::run_as_root`] with a limit of its own.
    ///
    /// # Errors
    /// As there.
    pub async fn run_as_root_within(
        &self,
        argv: &[&str],
        input: &[u8],
        tried: &str,
        limit: Duration,
    ) -> Result<Output, NodeError> {
        let output = self.run(&self.access.as_root(argv), input, tried, limit).await?;
        self.root_refused(&output, tried)?;
        Ok(output)
    }

    /// [`Transport::run_as_root_within`] for a program that lists the files of a project.
    ///
    /// # Errors
    /// As there.
    pub async fn list_as_root(
        &self,
        argv: &[&str],
        input: &[u8],
        tried: &str,
        limit: Duration,
    ) -> Result<Output, NodeError> {
        let run = async {
            let mut process = self.start(&self.access.as_root(argv), AtDrop::Kills).await?;
            process.longest = process::LONGEST_LIST;
            process.finish(input).await
        };
        let output = self.within(run, tried, limit).await?;
        self.root_refused(&output, tried)?;
        Ok(output)
    }

    /// Runs a program with these bytes on its standard input, to its end.
    async fn run(&self, start: &Start, input: &[u8], tried: &str, limit: Duration) -> Result<Output, NodeError> {
        self.within(async { self.start(start, AtDrop::Kills).await?.finish(input).await }, tried, limit).await
    }

    async fn within<T>(
        &self,
        work: impl Future<Output = std::io::Result<T>>,
        tried: &str,
        limit: Duration,
    ) -> Result<T, NodeError> {
        match timeout(limit, work).await {
            Ok(done) => done.map_err(|e| self.broken(tried, &e)),
            Err(_) => {
                let late = format!("no end within {} s", limit.as_secs());
                Err(NodeError::failed(&self.node, tried, late).kind(Kind::TimedOut).hint(SLOW))
            }
        }
    }

    /// The error of a stream that broke, or was none of the program's.
    pub fn broken(&self, tried: &str, error: &std::io::Error) -> NodeError {
        let failed = NodeError::failed(&self.node, tried, error);
        match Fault::of(error) {
            Some(fault) => failed.hint(fault.hint()),
            None => failed,
        }
    }

    /// What the login shell prints before every program; none where it prints nothing.
    pub fn noise(&self) -> Option<Noise> {
        self.noise.get().map(|text| Noise::new(text, &self.access.shell))
    }

    /// Runs a script as root and gives what it printed.
    ///
    /// # Errors
    /// As [`Transport::run_as_root`], and when it ends with another code than 0: its own words are in the error.
    pub async fn script(&self, script: &Script, tried: &str) -> Result<Vec<u8>, NodeError> {
        self.script_within(script, tried, self.limit).await
    }

    /// [`Transport::script`] with a limit of its own.
    ///
    /// # Errors
    /// As there.
    pub async fn script_within(&self, script: &Script, tried: &str, limit: Duration) -> Result<Vec<u8>, NodeError> {
        let output = self.run_as_root_within(&["sh", "-s"], script.whole().as_bytes(), tried, limit).await?;
        if output.code == 0 { Ok(output.stdout) } else { Err(self.failed(&output, tried)) }
    }

    /// Sees how a script of [`Transport::follow`] ended that has said all.
    ///
    /// # Errors
    /// As of [`Transport::script`].
    pub async fn ended(&self, process: Process, tried: &str) -> Result<(), NodeError> {
        let output = self.within(process.finish(&[]), tried, self.limit).await?;
        if output.code == 0 { Ok(()) } else { Err(self.failed(&output, tried)) }
    }

    /// The error of a script that ended as it should not, or of the way to root.
    pub fn failed(&self, output: &Output, tried: &str) -> NodeError {
        if let Err(error) = self.root_refused(output, tried) {
            return error;
        }
        let said = output.complaint();
        let said = if said.trim().is_empty() { format!("exit code {}", output.code) } else { said };
        NodeError::failed(&self.node, tried, said).kind(Kind::CommandFailed { status: output.code })
    }

    /// Runs a script as the login itself, without a way to root, and gives what it printed.
    ///
    /// # Errors
    /// When it cannot be started, the time is over, or it ends with another code than 0.
    pub async fn script_as_login(&self, script: &Script, tried: &str) -> Result<Vec<u8>, NodeError> {
        let shell = Start { argv: vec!["sh".into(), "-s".into()], ..Start::default() };
        let output = self.run(&shell, script.whole().as_bytes(), tried, self.limit).await?;
        match output.code {
            0 => Ok(output.stdout),
            code => Err(NodeError::failed(&self.node, tried, format!("exit code {code}\n{}", output.complaint()))),
        }
    }

    /// Starts a script as root and leaves it running.
    ///
    /// # Errors
    /// As [`Transport::spawn_as_root`].
    pub async fn follow(&self, script: &Script, tried: &str) -> Result<Process, NodeError> {
        let start = async {
            let mut process = self.spawn_as_root(&["sh", "-s"], tried).await?;
            let written = async {
                process.stdin.write_all(script.whole().as_bytes()).await?;
                process.stdin.shutdown().await
            };
            written.await.map_err(|e| NodeError::failed(&self.node, tried, e))?;
            Ok(process)
        };
        timeout(self.limit, start).await.map_err(|_| {
            NodeError::failed(&self.node, tried, format!("it did not start within {} s", self.limit.as_secs()))
        })?
    }

    /// Starts a script as root that goes on reading behind itself, and ends when that does: it is never killed from here.
    ///
    /// # Errors
    /// When it cannot be started.
    pub async fn converse(&self, script: &Script) -> Result<Process, std::io::Error> {
        let mut process = self.start(&self.access.as_root(&["sh", "-s"]), AtDrop::Closes).await?;
        // a way to root that fails reads nothing: its own words tell more than a broken pipe
        let _ = process.stdin.write_all(script.whole().as_bytes()).await;
        let _ = process.stdin.flush().await;
        Ok(process)
    }

    /// A connection to the node's Docker Engine over the streams of `docker system dial-stdio`.
    ///
    /// # Errors
    /// When the session is gone; what the program complains of comes on its standard error.
    pub async fn dial_docker(&self) -> Result<Process, std::io::Error> {
        self.start(&self.access.docker(&["system", "dial-stdio"]), AtDrop::Kills).await
    }

    /// Runs `docker` on the node, as whoever may use the engine, with these bytes on its standard input.
    ///
    /// # Errors
    /// [`NodeError`] when it cannot be started or the time is over.
    pub async fn run_docker(
        &self,
        args: &[&str],
        input: &[u8],
        tried: &str,
        limit: Duration,
    ) -> Result<Output, NodeError> {
        self.run(&self.access.docker(args), input, tried, limit).await
    }
}

#[cfg(test)]
mod tests;
