//! A node that is connected.

use crate::error::NodeError;
use crate::inventory::Node;
use crate::runtime::{ContainerEngine, Runtime};
use crate::transport::node::Transport;
use std::sync::Arc;
use tokio::sync::OnceCell;

/// A node that is connected. Clones share its connections.
#[derive(Clone)]
pub struct Member {
    /// Its entry in the inventory.
    pub node: Node,
    /// The way in which it is reached.
    pub transport: Arc<Transport>,
    runtime: Arc<OnceCell<Runtime>>,
}

impl Member {
    /// A node that is reached in this way.
    pub fn new(node: Node, transport: Arc<Transport>) -> Member {
        Member { node, transport, runtime: Arc::default() }
    }

    /// Returns a node of Slurm with this name, whose files are reached over this one, its login node.
    #[must_use]
    pub fn of_slurm(&self, name: &str) -> Member {
        Member { node: Node { name: name.to_owned(), ..self.node.clone() }, ..self.clone() }
    }

    /// Returns the same node over a new connection.
    ///
    /// # Errors
    /// When ssh fails.
    pub async fn reconnected(&self) -> Result<Member, NodeError> {
        Ok(Member::new(self.node.clone(), Arc::new(self.transport.reconnected().await?)))
    }

    /// Returns the node's container engine, for what only that can do.
    ///
    /// # Errors
    /// As [`Member::runtime`], and if the cluster has none.
    pub async fn engine(&self) -> Result<ContainerEngine, NodeError> {
        self.runtime().await?.engine("use its container engine").cloned()
    }

    /// Returns the node's runtime. The first call connects to its engine.
    ///
    /// # Errors
    /// As [`Runtime::connect`]. The next call tries again.
    pub async fn runtime(&self) -> Result<Runtime, NodeError> {
        self.runtime.get_or_try_init(|| Runtime::connect(&self.transport)).await.cloned()
    }
}
