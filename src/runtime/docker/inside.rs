//! A program in a container, on a terminal.

use super::Engine;
use crate::error::NodeError;
use crate::runtime::spec::Desired;
use crate::transport::link::Process;
use bollard::exec::{CreateExecOptions, ResizeExecOptions};
use bollard::query_parameters as query;
use std::time::Duration;

/// Keys that nobody types: Docker's own way to leave a terminal would swallow Ctrl-P.
const DETACH: &str = "ctrl-@,ctrl-@,ctrl-_,ctrl-_,ctrl-@";

/// A program on a terminal inside a container.
pub struct Inside {
    /// Its id, as the engine knows it.
    pub id: String,
    /// What is typed goes to its standard input, and what is seen comes from its standard output.
    pub streams: Process,
    /// What has come of that already.
    pub first: Vec<u8>,
}

impl Engine {
    /// Makes a container and does not start it; gives its id.
    ///
    /// # Errors
    /// [`NodeError`] with the engine's words.
    pub async fn create(&self, desired: &Desired) -> Result<String, NodeError> {
        let options = query::CreateContainerOptionsBuilder::new().name(&desired.name).build();
        let made = self.docker.create_container(Some(options), super::body(desired));
        Ok(self.within(&format!("make {}", desired.name), made).await?.id)
    }

    /// Starts a program in a container, on a terminal of its own.
    ///
    /// # Errors
    /// [`NodeError`] with the engine's words.
    pub async fn inside(&self, container: &str, argv: &[&str], env: Vec<String>) -> Result<Inside, NodeError> {
        let tried = "open a shell";
        let options = CreateExecOptions {
            attach_stdin: Some(true),
            attach_stdout: Some(true),
            attach_stderr: Some(true),
            tty: Some(true),
            detach_keys: Some(DETACH.to_owned()),
            env: Some(env),
            cmd: Some(argv.iter().map(|word| (*word).to_owned()).collect()),
            user: Some("0:0".to_owned()),
            ..CreateExecOptions::default()
        };
        let id = self.within(tried, self.docker.create_exec(container, options)).await?.id;
        // bollard would read a terminal's bytes as frames where they begin with a control character
        let start = self.dial.upgrade(format!("/exec/{id}/start"), r#"{"Detach":false,"Tty":true}"#.to_owned());
        let (streams, first) = self.within(tried, start).await?;
        Ok(Inside { id, streams, first })
    }

    /// Tells such a program how large its terminal is.
    ///
    /// # Errors
    /// [`NodeError`] with the engine's words.
    pub async fn resize(&self, id: &str, (rows, columns): (u16, u16)) -> Result<(), NodeError> {
        let size = ResizeExecOptions { height: rows, width: columns };
        self.within("resize the terminal", self.docker.resize_exec(id, size)).await
    }

    /// The exit code of such a program, whose output has come to its end.
    ///
    /// # Errors
    /// [`NodeError`] with the engine's words, or when it goes on without a terminal.
    pub async fn code_of(&self, id: &str) -> Result<i64, NodeError> {
        let tried = "see how the shell ended";
        // the engine closes the terminal a moment before it knows
        for _ in 0..100 {
            let seen = self.within(tried, self.docker.inspect_exec(id)).await?;
            if let (Some(code), Some(false)) = (seen.exit_code, seen.running) {
                return Ok(code);
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        Err(NodeError::failed(&self.node, tried, "the connection was cut off"))
    }
}
