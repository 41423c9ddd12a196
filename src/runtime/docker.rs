//! The Docker Engine of a node as the runtime. This directory is the only user of `bollard`.

mod connections;
mod containers;
mod errors;
mod exec;
mod images;
mod request;

use crate::error::{Kind, NodeError};
use crate::transport::node::Transport;
use bollard::Docker;
use bollard::errors::Error as DockerError;
use connections::ConnectionPool;
use errors::explain;
pub use images::Image;
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::timeout;

/// The first operation on a node's engine, for messages.
const REACH: &str = "reach the Docker Engine";

/// What the engine reports about itself.
#[derive(Debug, Clone, Default)]
pub struct EngineInfo {
    /// The directory of images and containers.
    pub root_dir: String,
    /// The names of its OCI runtimes, such as `runc` and `nvidia`.
    pub runtimes: Vec<String>,
}

/// The container runtime of one node. Clones share its connections.
#[derive(Clone)]
pub struct Runtime {
    docker: Docker,
    connections: ConnectionPool,
    transport: Arc<Transport>,
    node: String,
    limit: Duration,
    /// The engine's version, e.g. `20.10.24`.
    pub version: String,
}

impl Runtime {
    /// Connects to a node's engine.
    ///
    /// # Errors
    /// [`NodeError`] with the message of `docker`, sudo or the engine.
    pub async fn connect(transport: &Arc<Transport>) -> Result<Runtime, NodeError> {
        let (connections, node) = (ConnectionPool::new(transport), transport.node().to_owned());
        let dialler = connections.clone();
        let send = move |request| Box::pin(dialler.clone().request(request));
        // bollard's own time-out covers a whole request, long waits included; `call` sets one per call
        let day = 24 * 3600;
        // bollard names no version of the protocol (`url.join` in its uri.rs removes it), so each engine uses its
        // latest: negotiating a version would only start two more programs on the node
        let docker =
            Docker::connect_with_custom_transport(send, Some("http://docker"), day, bollard::API_DEFAULT_VERSION)
                .map_err(|e| NodeError::failed(&node, REACH, e))?;
        let (transport, limit) = (Arc::clone(transport), transport.limit());
        let mut runtime = Runtime { docker, connections, transport, node, limit, version: String::new() };
        let version = runtime.docker.version();
        let version = runtime.call_or_hint(REACH, version, "see `systemctl status docker` on the node").await?;
        runtime.version = version.version.unwrap_or_default();
        Ok(runtime)
    }

    /// Returns what the engine reports about itself.
    ///
    /// # Errors
    /// [`NodeError`] with the engine's message.
    pub async fn info(&self) -> Result<EngineInfo, NodeError> {
        let info = self.call("query the Docker Engine", self.docker.info()).await?;
        Ok(EngineInfo {
            root_dir: info.docker_root_dir.unwrap_or_default(),
            runtimes: info.runtimes.unwrap_or_default().into_keys().collect(),
        })
    }

    /// Awaits a call of the engine within the node's time limit. `operation` is for messages.
    async fn call<T>(
        &self,
        operation: &str,
        call: impl Future<Output = Result<T, DockerError>>,
    ) -> Result<T, NodeError> {
        self.call_or_hint(operation, call, "if the node is slow, raise cluster.command_timeout_s").await
    }

    /// The same; `hint` is for an engine that does not answer in time.
    async fn call_or_hint<T>(
        &self,
        operation: &str,
        call: impl Future<Output = Result<T, DockerError>>,
        hint: &str,
    ) -> Result<T, NodeError> {
        let Ok(result) = timeout(self.limit, call).await else {
            let late = format!("no answer within {} s", self.limit.as_secs());
            return Err(NodeError::failed(&self.node, operation, late).kind(Kind::TimedOut).hint(hint));
        };
        result.map_err(|error| explain(&self.node, operation, &error))
    }
}

/// Awaits a call of the engine. Returns `None` for an answer with one of these HTTP status codes.
async fn none_for<T>(
    statuses: &[u16],
    call: impl Future<Output = Result<T, DockerError>>,
) -> Result<Option<T>, DockerError> {
    match call.await {
        Err(DockerError::DockerResponseServerError { status_code, .. }) if statuses.contains(&status_code) => Ok(None),
        result => result.map(Some),
    }
}
