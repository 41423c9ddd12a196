//! Programs in containers, with pipes or on the operator's terminal.

use super::ContainerEngine;
use crate::error::{Error, NodeError};
use crate::runtime::terminal::{send_keys, show, terminal_error};
use crate::terminal::Raw;
use crate::transport::node::{Output, Process, RunAs};
use bollard::exec::{CreateExecOptions, ResizeExecOptions};
use std::time::Duration;
use tokio::signal::unix::{SignalKind, signal};

/// A detach sequence that no one types by accident; Docker's default would intercept Ctrl-P.
const DETACH_KEYS: &str = "ctrl-@,ctrl-@,ctrl-_,ctrl-_,ctrl-@";

impl ContainerEngine {
    /// Starts a program in a running container, connected by pipes.
    ///
    /// # Errors
    /// [`NodeError`] when the session is gone.
    pub async fn exec(&self, container: &str, argv: &[&str], operation: &str) -> Result<Process, NodeError> {
        self.transport.spawn(RunAs::Engine, &exec(container, argv), operation).await
    }

    /// Runs a program in a running container to its end, with these bytes on its standard input.
    ///
    /// # Errors
    /// [`NodeError`] when the session is gone, or the program has not ended within the limit.
    pub async fn run_in(
        &self,
        container: &str,
        argv: &[&str],
        input: &[u8],
        operation: &str,
        limit: Duration,
    ) -> Result<Output, NodeError> {
        self.transport.run(RunAs::Engine, &exec(container, argv), input, operation, limit).await
    }

    /// Starts a created container, connected to its main process by pipes.
    ///
    /// # Errors
    /// [`NodeError`] when the session is gone.
    pub async fn start_attached(&self, container: &str, operation: &str) -> Result<Process, NodeError> {
        self.transport.spawn(RunAs::Engine, &["start", "--attach", "--interactive", container], operation).await
    }

    /// Runs a program in a container on the operator's terminal, which is in raw mode meanwhile, and returns its exit
    /// code.
    ///
    /// # Errors
    /// When the program cannot be started, the connection is lost, or the terminal cannot be used.
    pub async fn exec_on_terminal(&self, container: &str, argv: &[&str], env: Vec<String>) -> Result<i64, Error> {
        let operation = "open a shell";
        let options = CreateExecOptions {
            attach_stdin: Some(true),
            attach_stdout: Some(true),
            attach_stderr: Some(true),
            tty: Some(true),
            detach_keys: Some(DETACH_KEYS.to_owned()),
            env: Some(env),
            cmd: Some(argv.iter().map(|argument| (*argument).to_owned()).collect()),
            user: Some("0:0".to_owned()),
            ..CreateExecOptions::default()
        };
        let id = self.call(operation, self.docker.create_exec(container, options)).await?.id;
        // not bollard's `start_exec`: it takes output that begins with byte 0, 1 or 2 for a frame's header, also with a
        // TTY
        let start = self.connections.upgrade(format!("/exec/{id}/start"), r#"{"Detach":false,"Tty":true}"#.to_owned());
        let (output, input) = tokio::io::split(self.call(operation, start).await?);
        let terminal = Raw::new().map_err(terminal_error)?;
        let ended = tokio::select! {
            ended = show(self.node(), output, &terminal) => ended,
            ended = send_keys(&terminal, input) => ended,
            ended = self.follow_size(&id, &terminal) => ended,
        };
        drop(terminal);
        ended?;
        Ok(self.exit_code(&id).await?)
    }

    /// Gives the program's terminal the size of the operator's, now and at each change.
    async fn follow_size(&self, id: &str, terminal: &Raw) -> Result<(), Error> {
        let mut changes = signal(SignalKind::window_change()).map_err(terminal_error)?;
        loop {
            let (height, width) = terminal.size();
            // the program may have ended already
            let _ = self
                .call("resize the terminal", self.docker.resize_exec(id, ResizeExecOptions { height, width }))
                .await;
            if changes.recv().await.is_none() {
                return std::future::pending().await;
            }
        }
    }

    /// Returns the exit code of a program whose output has ended.
    async fn exit_code(&self, id: &str) -> Result<i64, NodeError> {
        let operation = "get the shell's exit code";
        // the engine closes the terminal a moment before it knows the code
        for _ in 0..100 {
            let inspected = self.call(operation, self.docker.inspect_exec(id)).await?;
            if let (Some(code), Some(false)) = (inspected.exit_code, inspected.running) {
                return Ok(code);
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        Err(NodeError::failed(self.transport.node(), operation, "the connection was lost"))
    }
}

/// Returns the arguments with which `docker` runs a program in a container, its standard input being a pipe.
fn exec<'a>(container: &'a str, argv: &[&'a str]) -> Vec<&'a str> {
    [&["exec", "-i", container], argv].concat()
}
