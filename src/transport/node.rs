//! Programs on a node, over its ssh session or, for this machine, as child processes.
//!
//! Every argument is quoted by the `openssh` crate or passed as a vector. Scripts and their values go over standard
//! input, except for those whose standard input is a project's.

mod connections;
mod dialogue;
mod engine_socket;
mod prelude;
mod process;
mod reach;
mod root;
mod script;
#[cfg(test)]
pub(crate) mod scripted;
mod tunnel;

use crate::error::{ErrorKind, NodeError};
use crate::event::{Events, Message};
use crate::inventory::{Cluster, EngineChoice, Node, RuntimeChoice};
use crate::model::engine::EngineName;
use crate::secret::Secret;
use crate::text::failure::is_from_runtime;
use crate::trace;
use crate::transport::access::EngineFault;
pub use crate::transport::privileges::RunAs;
use crate::transport::privileges::{self, Access, REMOVED_VARIABLES};
use crate::transport::ssh::{Control, Forward};
use crate::transport::sudo::SudoPasswords;
use connections::Connections;
pub use dialogue::Dialogue;
pub use engine_socket::{EngineListener, EngineSocket};
use prelude::{LoginError, Prelude};
pub use process::{Collected, Output, Process};
pub use reach::Reach;
pub use script::Script;
use std::collections::BTreeMap;
use std::io;
use std::os::fd::AsFd;
use std::process::Stdio;
use std::sync::{Arc, OnceLock};
use std::time::Duration;
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::TcpListener;
use tokio::time::timeout;
use tunnel::Tunnel;

/// The longest line with which a program says that it is ready.
const MAX_READY: u64 = 64;

/// The amount of data that a program is sent.
#[derive(Debug, Clone, Copy)]
enum InputSize {
    Short,
    Large,
}

/// The kind of transport that a command uses for its nodes.
#[derive(Debug, Clone)]
pub enum TransportKind {
    /// Over an SSH session for each.
    Ssh(Arc<Control>),
    /// As child processes: the node is this machine.
    Local,
    /// Nodes of a test.
    #[cfg(test)]
    Scripted(scripted::Nodes),
}

/// The channel over which programs are started on a node.
#[derive(Debug, Clone)]
enum Channel {
    Ssh(Arc<Connections>),
    Local,
    #[cfg(test)]
    Scripted(scripted::Node),
}

/// A port of a node that leads to this machine.
#[derive(Debug)]
pub struct Exposed {
    /// The port on the node's 127.0.0.1.
    pub port: u16,
    _forward: Option<PortForward>,
}

/// The mechanism that forwards a port to this machine.
#[derive(Debug)]
#[expect(dead_code, reason = "they are only dropped")]
enum PortForward {
    Ssh(Forward),
    Tunnel(Tunnel),
}

/// One node, reachable.
#[derive(Debug, Clone)]
pub struct Transport {
    node: String,
    channel: Channel,
    access: Access,
    /// The directory of what runs as processes of the login, where it does: nothing needs root or an engine then.
    run_dir: Option<String>,
    /// The runtime of the ranks.
    runtime: RuntimeChoice,
    /// The engine that the inventory asks for.
    engine_choice: EngineChoice,
    /// The reason why the node's engine cannot be used, if any.
    engine_fault: Option<EngineFault>,
    limit: Duration,
    /// The text that the login shell printed before the first program that it started.
    noise: Arc<OnceLock<String>>,
}

impl Transport {
    /// Connects to a node for what needs no root.
    ///
    /// # Errors
    /// When ssh fails.
    pub async fn open_as_login(cluster: &Cluster, node: &Node, kind: TransportKind) -> Result<Transport, NodeError> {
        let channel = match kind {
            TransportKind::Ssh(control) => Channel::Ssh(
                Connections::open(control, node, cluster.connect_timeout, cluster.can().shared_directory).await?,
            ),
            TransportKind::Local => Channel::Local,
            #[cfg(test)]
            TransportKind::Scripted(nodes) => Channel::Scripted(nodes.connect_to(node).await?),
        };
        Ok(Transport {
            node: node.name.clone(),
            channel,
            access: Access::default(),
            run_dir: (!cluster.can().images).then(|| cluster.run_dir()),
            runtime: cluster.runtime,
            engine_choice: node.engine.unwrap_or(cluster.engine),
            engine_fault: None,
            limit: cluster.command_timeout,
            noise: Arc::default(),
        })
    }

    /// Finds out how root is used on the node of this owner. Returns a transport that has root, over the same
    /// connections.
    ///
    /// # Errors
    /// When there is no root, or the node does not answer.
    pub async fn with_root(
        &self,
        cluster: &Cluster,
        owner: &Option<String>,
        sudo: &SudoPasswords,
        events: &Events,
    ) -> Result<Transport, NodeError> {
        let mut transport = Transport { access: Access::default(), engine_fault: None, ..self.clone() };
        let login = transport.find_access(cluster, owner, sudo, events).await?;
        if let Some(noise) = transport.noise.get() {
            events.note(Message::of(&self.node, prelude::note(noise, &login.shell)));
        }
        Ok(transport)
    }

    /// Returns the same node over a new connection, with root as it was used before.
    ///
    /// # Errors
    /// When ssh fails.
    pub async fn reconnected(&self) -> Result<Transport, NodeError> {
        let channel = match &self.channel {
            Channel::Ssh(connections) => Channel::Ssh(connections.reconnected().await?),
            Channel::Local => Channel::Local,
            #[cfg(test)]
            Channel::Scripted(node) => Channel::Scripted(node.reconnected().await?),
        };
        Ok(Transport { channel, ..self.clone() })
    }

    /// Returns whether the connection is still up, as far as this machine knows.
    pub async fn is_connected(&self) -> bool {
        match &self.channel {
            Channel::Ssh(connections) => connections.are_up().await,
            Channel::Local => true,
            #[cfg(test)]
            Channel::Scripted(node) => node.is_connected(),
        }
    }

    /// Lets a port of the node's 127.0.0.1 lead to a port of this machine's, until the result is dropped: forwarded by
    /// sshd or, if that refuses, by a program.
    ///
    /// # Errors
    /// When the node's sshd refuses it and the node cannot run the program, or the node cannot be reached.
    pub async fn expose(&self, port: u16, operation: &str) -> Result<Exposed, NodeError> {
        let forwarded = match &self.channel {
            Channel::Ssh(connections) => {
                let forward = connections.forward(port, operation);
                let forward = trace::operation(&self.node, "ssh", operation, forward).await;
                forward.map(|forward| Exposed { port: forward.port, _forward: Some(PortForward::Ssh(forward)) })
            }
            Channel::Local => Ok(Exposed { port, _forward: None }),
            #[cfg(test)]
            Channel::Scripted(node) => node.expose(operation).await.map(|()| Exposed { port, _forward: None }),
        };
        let refused = match forwarded {
            Err(error) if error.kind == ErrorKind::Failed => error,
            result => return result,
        };
        match Tunnel::open(self, port, operation).await {
            Ok(tunnel) => Ok(Exposed { port: tunnel.port, _forward: Some(PortForward::Tunnel(tunnel)) }),
            Err(error) => Err(NodeError { message: format!("{}; {}", refused.message, error.message), ..refused }),
        }
    }

    /// Lets a port of this machine lead to a socket of the node until the result is dropped. `process` reads this line,
    /// writes one when it is ready, and then passes connections on.
    ///
    /// # Errors
    /// When the program ends before, with what it has printed, or is not ready in time.
    pub async fn reach(
        &self,
        listener: TcpListener,
        mut process: Process,
        line: &Secret,
        operation: &str,
    ) -> Result<Reach, NodeError> {
        let errors = process.collect_stderr();
        let mut output = BufReader::new(std::mem::replace(&mut process.stdout, Box::pin(tokio::io::empty())));
        let ready = async {
            process.stdin.write_all(line.expose().as_bytes()).await?;
            process.stdin.write_all(b"\n").await?;
            process.stdin.flush().await?;
            let mut ready = String::new();
            (&mut output).take(MAX_READY).read_line(&mut ready).await.map(|_| ready)
        };
        let is_ready = self.in_time(ready, operation, self.limit).await?.is_ok_and(|line| line == "ready\n");
        if !is_ready {
            let printed = timeout(self.limit, errors).await.ok().and_then(Result::ok).unwrap_or_default();
            let cause = printed.trim().lines().next_back().unwrap_or("the program has ended");
            return Err(NodeError::failed(&self.node, operation, cause));
        }
        Ok(Reach::open(listener, process, output))
    }

    /// Returns whether the node is this machine.
    pub fn is_here(&self) -> bool {
        match &self.channel {
            Channel::Ssh(_) => false,
            Channel::Local => true,
            #[cfg(test)]
            Channel::Scripted(_) => true,
        }
    }

    /// Returns which engine the node has.
    pub fn engine_name(&self) -> EngineName {
        self.access.engine_name
    }

    /// Returns how the node's engine is started, for hints.
    pub fn engine_start(&self) -> &'static str {
        self.access.engine_start()
    }

    /// Returns the name of the login.
    pub fn user(&self) -> &str {
        &self.access.user
    }

    /// Returns the hard limits that containers of the node's engine cannot exceed, by name.
    pub fn engine_limits(&self) -> &BTreeMap<String, u64> {
        &self.access.limits
    }

    /// Returns the directory of what runs as processes of the login; `None` where containers run.
    pub fn run_dir(&self) -> Option<&str> {
        self.run_dir.as_deref()
    }

    /// Returns what runs the ranks.
    pub fn runtime(&self) -> RuntimeChoice {
        self.runtime
    }

    /// Returns the path of the engine's socket; `None` if it listens elsewhere.
    pub fn engine_socket(&self) -> Option<String> {
        self.access.engine.socket().map(str::to_owned)
    }

    /// Returns the node's name.
    pub fn node(&self) -> &str {
        &self.node
    }

    /// Returns the limit for one step on the node (`command_timeout_s`).
    pub fn limit(&self) -> Duration {
        self.limit
    }

    /// Starts a program.
    ///
    /// # Errors
    /// When the session is lost, or there is no such program on this machine.
    pub async fn start(&self, run_as: RunAs, argv: &[&str]) -> io::Result<Process> {
        self.start_with(run_as, argv, InputSize::Short).await
    }

    async fn start_with(&self, run_as: RunAs, argv: &[&str], input: InputSize) -> io::Result<Process> {
        let invocation = self.access.invocation(run_as, argv);
        let program = if run_as == RunAs::Engine { self.engine_name().command() } else { argv[0] };
        let program = trace::TracedProgram::start(&self.node, program);
        let mut process = self.start_process(&invocation.argv, input, program).await?;
        if invocation.is_marked && self.prints_marks() {
            process = process.after_root_marks();
        }
        if let Some(preamble) = invocation.preamble {
            process.stdin.write_all(preamble.as_bytes()).await?;
            process.stdin.flush().await?;
        }
        Ok(process)
    }

    /// Returns whether programs print marks: those of a test are not started by a shell.
    fn prints_marks(&self) -> bool {
        match self.channel {
            Channel::Ssh(_) | Channel::Local => true,
            #[cfg(test)]
            Channel::Scripted(_) => false,
        }
    }

    async fn start_process(
        &self,
        argv: &[String],
        input: InputSize,
        program: trace::TracedProgram,
    ) -> io::Result<Process> {
        match &self.channel {
            Channel::Ssh(connections) => {
                let (mut child, slot) = connections.spawn(&privileges::marked(argv)).await?;
                let prelude = Prelude { noise: Arc::clone(&self.noise), unmarked: Arc::default() };
                let stdout = child.stdout().take().map(|stream| prelude::stdout(stream, prelude.clone(), self.limit));
                let stderr = child.stderr().take().map(|stream| prelude::stderr(stream, Arc::clone(&self.noise)));
                let stdin = child.stdin().take();
                if let (InputSize::Large, Some(pipe)) = (input, &stdin) {
                    enlarge(pipe);
                }
                let exit = async move {
                    match child.wait().await {
                        Ok(status) => Ok(status.code().unwrap_or(255)),
                        // the crate takes 127 for an error of its own; it is the shell's "not found"
                        Err(openssh::Error::Remote(e)) if e.kind() == io::ErrorKind::NotFound => Ok(127),
                        Err(e) => Err(io::Error::other(e)),
                    }
                };
                let process = Process::new(stdin, stdout, stderr, exit, program)?;
                Ok(Process { prelude, _slot: Some(slot), ..process })
            }
            Channel::Local => {
                let mut command = tokio::process::Command::new(&argv[0]);
                for name in REMOVED_VARIABLES {
                    command.env_remove(name);
                }
                let mut child = command
                    .args(&argv[1..])
                    .stdin(Stdio::piped())
                    .stdout(Stdio::piped())
                    .stderr(Stdio::piped())
                    // a Ctrl-C at the terminal is for hvdctl, which ends its children in order
                    .process_group(0)
                    .spawn()?;
                let (stdin, stdout, stderr) = (child.stdin.take(), child.stdout.take(), child.stderr.take());
                let exit = async move { Ok(child.wait().await?.code().unwrap_or(255)) };
                Process::new(stdin, stdout, stderr, exit, program)
            }
            #[cfg(test)]
            Channel::Scripted(node) => {
                let scripted::Streams { stdin, stdout, stderr, code } = node.start(argv)?;
                let exit = async { Ok(code.await.unwrap_or(255)) };
                Process::new(Some(stdin), Some(stdout), Some(stderr), exit, program)
            }
        }
    }

    /// Starts a program within the node's limit.
    ///
    /// # Errors
    /// When it cannot be started, or the time is over.
    pub async fn spawn(&self, run_as: RunAs, argv: &[&str], operation: &str) -> Result<Process, NodeError> {
        let start = self.within(self.start(run_as, argv), operation, self.limit);
        trace::operation(&self.node, "start", operation, start).await
    }

    /// [`Transport::spawn`], as root, for a program that is sent many megabytes.
    ///
    /// # Errors
    /// As [`Transport::spawn`].
    pub async fn spawn_receiver(&self, argv: &[&str], operation: &str) -> Result<Process, NodeError> {
        let start = self.within(self.start_with(RunAs::Root, argv, InputSize::Large), operation, self.limit);
        trace::operation(&self.node, "start", operation, start).await
    }

    /// Runs a program with these bytes on its standard input.
    ///
    /// # Errors
    /// When it cannot be started, the time is over, or there is no root.
    pub async fn run(
        &self,
        run_as: RunAs,
        argv: &[&str],
        input: &[u8],
        operation: &str,
        limit: Duration,
    ) -> Result<Output, NodeError> {
        let run = async { self.start(run_as, argv).await?.finish(input).await };
        let run = async {
            let output = self.within(run, operation, limit).await?;
            // a program of the login that fails says nothing about root
            let refusal = if run_as == RunAs::Root { self.root_refusal(&output, operation) } else { None };
            refusal.map_or(Ok(output), Err)
        };
        trace::operation(&self.node, "run", operation, run).await
    }

    /// Awaits a part of an operation on the node within a limit.
    ///
    /// # Errors
    /// When the time is over.
    pub async fn in_time<T>(
        &self,
        work: impl Future<Output = T>,
        operation: &str,
        limit: Duration,
    ) -> Result<T, NodeError> {
        timeout(limit, work).await.map_err(|_| {
            NodeError::failed(&self.node, operation, format!("no answer within {} s", limit.as_secs()))
                .kind(ErrorKind::TimedOut)
                .hint("if the node is slow, raise cluster.command_timeout_s")
        })
    }

    /// Waits for work on a program's streams, for as long as the limit allows.
    ///
    /// # Errors
    /// As [`Transport::broken`], and when the time is over.
    pub async fn within<T>(
        &self,
        work: impl Future<Output = io::Result<T>>,
        operation: &str,
        limit: Duration,
    ) -> Result<T, NodeError> {
        self.in_time(work, operation, limit).await?.map_err(|e| self.broken(operation, &e))
    }

    /// Returns the error of a program whose stream broke, or which was never started.
    pub fn broken(&self, operation: &str, error: &io::Error) -> NodeError {
        if let Some(login) = error.get_ref().and_then(|error| error.downcast_ref::<NodeError>()) {
            return login.clone();
        }
        let failed = NodeError::failed(&self.node, operation, error).kind(match error.kind() {
            io::ErrorKind::TimedOut => ErrorKind::TimedOut,
            // `sync::files` uses this kind for a file that changed
            io::ErrorKind::InvalidData => ErrorKind::FileChanged,
            _ => ErrorKind::Failed,
        });
        match error.get_ref().and_then(|error| error.downcast_ref::<LoginError>()) {
            Some(login) => failed.hint(login.hint),
            None => failed,
        }
    }

    /// Returns the error of a program that failed, or could not run as root.
    pub fn failed(&self, output: &Output, operation: &str) -> NodeError {
        self.root_refusal(output, operation).unwrap_or_else(|| {
            let stderr = output.complaint();
            let (stdout, status) = (String::from_utf8_lossy(&output.stdout), output.code);
            let failed =
                |cause: &str| NodeError::failed(&self.node, operation, cause).kind(ErrorKind::CommandFailed { status });
            match stdout.lines().rfind(|line| is_from_runtime(line)) {
                // `docker exec` prints this to standard output
                Some(line) => failed(line).hint(format!(
                    "if the directories of this cluster on the node were removed or replaced: hvdctl down --on {0}, \
                     then hvdctl up",
                    self.node
                )),
                None if stderr.trim().is_empty() => failed(&format!("exit code {status}")),
                None => failed(&stderr),
            }
        })
    }

    /// Returns the output of a program whose exit code is 0.
    ///
    /// # Errors
    /// As [`Transport::failed`].
    pub fn succeeded(&self, output: Output, operation: &str) -> Result<Output, NodeError> {
        if output.code == 0 { Ok(output) } else { Err(self.failed(&output, operation)) }
    }

    /// Runs a script as root and returns its standard output.
    ///
    /// # Errors
    /// As [`Transport::run`], and when its exit code is not 0.
    pub async fn script(&self, script: &Script, operation: &str) -> Result<Vec<u8>, NodeError> {
        self.script_within(script, operation, self.limit).await
    }

    /// [`Transport::script`] with another limit.
    ///
    /// # Errors
    /// As [`Transport::script`].
    pub async fn script_within(&self, script: &Script, operation: &str, limit: Duration) -> Result<Vec<u8>, NodeError> {
        let output = self.run(RunAs::Root, &["sh", "-s"], script.whole().as_bytes(), operation, limit).await?;
        Ok(self.succeeded(output, operation)?.stdout)
    }

    /// Runs a script as the login itself and returns its standard output.
    ///
    /// # Errors
    /// As [`Transport::script`].
    pub async fn script_as_login(&self, script: &Script, operation: &str) -> Result<Vec<u8>, NodeError> {
        let output = self.run(RunAs::Login, &["sh", "-s"], script.whole().as_bytes(), operation, self.limit).await?;
        Ok(self.succeeded(output, operation)?.stdout)
    }

    /// Starts a script as root and leaves it running. Its standard input stays open behind the script.
    ///
    /// # Errors
    /// As [`Transport::spawn`].
    pub async fn follow(&self, script: &Script, operation: &str) -> Result<Process, NodeError> {
        self.follow_as(RunAs::Root, script, operation).await
    }

    /// [`Transport::follow`] as the login itself.
    ///
    /// # Errors
    /// As [`Transport::spawn`].
    pub async fn follow_as_login(&self, script: &Script, operation: &str) -> Result<Process, NodeError> {
        self.follow_as(RunAs::Login, script, operation).await
    }

    async fn follow_as(&self, run_as: RunAs, script: &Script, operation: &str) -> Result<Process, NodeError> {
        let start = async {
            let mut process = self.start(run_as, &["sh", "-s"]).await?;
            // where there is no root nothing is read, and standard error says more than a broken pipe
            let _ = process.stdin.write_all(script.whole().as_bytes()).await;
            let _ = process.stdin.flush().await;
            Ok(process)
        };
        trace::operation(&self.node, "follow", operation, self.within(start, operation, self.limit)).await
    }

    /// Checks how a script of [`Transport::follow`] ended whose output has been read.
    ///
    /// # Errors
    /// As [`Transport::script`].
    pub async fn ended(&self, process: Process, operation: &str) -> Result<(), NodeError> {
        let output = self.within(process.finish(&[]), operation, self.limit).await?;
        self.succeeded(output, operation).map(drop)
    }
}

/// Lets a pipe hold more bytes. With the 64 KiB that it holds at first, hvdctl and ssh wake each other so often that
/// uploads slow down. One user's pipes should not hold more than 64 MiB (pipe(7)): those to 256 nodes. Where that is
/// exceeded, and on systems other than Linux, it stays as it is.
fn enlarge(pipe: impl AsFd) {
    #[cfg(target_os = "linux")]
    let _ = rustix::pipe::fcntl_setpipe_size(pipe, 256 * 1024);
    #[cfg(not(target_os = "linux"))]
    let _ = pipe;
}

#[cfg(test)]
mod tests;
