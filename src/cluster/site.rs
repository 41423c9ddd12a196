//! The parts of a command with which other modules work on its nodes.

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
    /// The events of the command.
    pub events: &'a Events,
}

impl<'a> Site<'a> {
    /// Returns the cluster.
    pub fn cluster(&self) -> &'a Cluster {
        self.target.cluster()
    }
}
