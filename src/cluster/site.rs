//! What a room needs of a command to work on its nodes.

use super::fleet::Fleet;
use super::session::Session;
use super::target::Target;
use crate::event::Events;
use crate::inventory::Cluster;

/// The nodes of a command, and how they are reached.
#[derive(Clone, Copy)]
pub struct Site<'a> {
    /// The selected nodes, with the inventory.
    pub target: &'a Target,
    /// The connections.
    pub fleet: &'a Fleet,
    /// The locks, the cancellation and the progress.
    pub session: &'a Session,
    /// Where events go.
    pub events: &'a Events,
}

impl<'a> Site<'a> {
    /// Returns the cluster.
    pub fn cluster(&self) -> &'a Cluster {
        self.target.cluster()
    }
}
