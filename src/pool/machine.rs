//! The machine of a pool.

use super::directory::PoolDirectory;
use crate::cluster::member::Member;
use crate::cluster::operator::host_name;
use crate::cluster::site::Site;
use crate::error::Error;
use crate::inventory::{Node, Pool};
use crate::transport::node::RunAs;

/// The machine of a pool, connected.
pub struct PoolMachine(Member);

impl PoolMachine {
    /// Logs in to it.
    ///
    /// # Errors
    /// When it cannot be reached.
    pub async fn connect(pool: &Pool, site: Site<'_>) -> Result<PoolMachine, Error> {
        let Site { target, fleet, events, .. } = site;
        let here = fleet.here();
        let (fleet, node) = match pool.machine() {
            Some(node) => (fleet, node),
            None => (&here, Node { name: format!("pool on {}", host_name()), master: true, ..Node::default() }),
        };
        let mut members = fleet.connect(&target.of_nodes(vec![node]), RunAs::Login, events).await?;
        match members.pop() {
            Some(member) => Ok(PoolMachine(member.map_err(Error::Pool)?)),
            None => Err(Error::Local("the pool has no machine".into())),
        }
    }

    /// Returns its name in messages.
    pub fn name(&self) -> &str {
        &self.0.node.name
    }

    /// Returns the pool's directory there.
    pub fn directory<'a>(&'a self, pool: &'a Pool) -> PoolDirectory<'a> {
        PoolDirectory { transport: &self.0.transport, path: &pool.path }
    }
}
