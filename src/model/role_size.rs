//! The size of a role: how many ranks it has, and on how many nodes.

use serde::{Deserialize, Serialize};

/// The number of a role's ranks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RoleSize {
    /// So many, on as few nodes as they fit on.
    Ranks(u32),
    /// Those of so many nodes.
    Nodes {
        /// The number of nodes.
        nodes: u32,
        /// The number of ranks on each; `None`: one on every slot.
        ranks: Option<u32>,
    },
    /// So many on each node that the role gets: the nodes of the role whose nodes it shares, or all that are left.
    PerNode(u32),
}

impl RoleSize {
    /// Returns the number of all its ranks, if that does not depend on the nodes.
    pub fn ranks(self) -> Option<u32> {
        match self {
            RoleSize::Ranks(ranks) => Some(ranks),
            RoleSize::Nodes { nodes, ranks } => nodes.checked_mul(ranks?),
            RoleSize::PerNode(_) => None,
        }
    }
}
