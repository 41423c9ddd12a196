//! The Docker Engine of a node as the runtime. This directory is the only user of `bollard`.

mod containers;
mod dial;
mod errors;
mod exec;
mod images;
mod request;

use crate::error::NodeError;
use crate::transport::node::Transport;
use bollard::Docker;
use bollard::errors::Error as DockerError;
use dial::Dial;
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
    dial: Dial,
    link: Arc<Transport>,
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
    pub async fn connect(link: &Arc<Transport>) -> Result<Runtime, NodeError> {
        let dial = Dial::new(link);
        let dialler = dial.clone();
        let transport = move |request| Box::pin(dialler.clone().request(request));
        let node = link.node().to_owned();
        // bollard's own time-out covers a whole request, long uploads and waits included; `within` sets one per call
        let day = 24 * 3600;
        let version = bollard::API_DEFAULT_VERSION;
        let docker = Docker::connect_with_custom_transport(transport, Some("http://docker"), day, version)
            .map_err(|e| NodeError::failed(&node, REACH, e))?;
        let link = Arc::clone(link);
        let limit = link.limit();
        let mut runtime = Runtime { docker, dial, link, node, limit, version: String::new() };
        // bollard names no version of the protocol (`url.join` in its uri.rs takes it away again), and each engine speaks its
        // latest: negotiating a version would only start two more programs on the node
        let version = runtime.within(REACH, runtime.docker.version()).await?;
        runtime.version = version.version.unwrap_or_default();
        Ok(runtime)
    }

    /// Returns what the engine reports about itself.
    ///
    /// # Errors
    /// [`NodeError`] with the engine's message.
    pub async fn info(&self) -> Result<EngineInfo, NodeError> {
        let info = self.within("query the Docker Engine", self.docker.info()).await?;
        Ok(EngineInfo {
            root_dir: info.docker_root_dir.unwrap_or_default(),
            runtimes: info.runtimes.unwrap_or_default().into_keys().collect(),
        })
    }

    async fn within<T>(&self, tried: &str, work: impl Future<Output = Result<T, DockerError>>) -> Result<T, NodeError> {
        match timeout(self.limit, work).await {
            Ok(Ok(value)) => Ok(value),
            Ok(Err(error)) => Err(explain(&self.node, tried, &error)),
            Err(_) => {
                let late = format!("no answer within {} s", self.limit.as_secs());
                Err(NodeError::failed(&self.node, tried, late).kind(crate::error::Kind::TimedOut).hint(
                    if tried == REACH {
                        "see `systemctl status docker` on the node"
                    } else {
                        "if the node is only slow, raise cluster.command_timeout_s"
                    },
                ))
            }
        }
    }
}
