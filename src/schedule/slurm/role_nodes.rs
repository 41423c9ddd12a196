//! The nodes that a job with roles asks a site's Slurm for: one allocation of equal nodes, as many as its roles need, each
//! with as many tasks as the node that needs most. `placement.py` then places the roles on what Slurm has given.

use crate::error::Error;
use crate::launch::placement::Share;
use crate::launch::role_placement::{RoleShape, Room, place_roles};
use crate::model::role_size::RoleSize;
use crate::start::roles::JobRole;

/// The most nodes that a job asks for.
const MOST_NODES: usize = 1024;

/// The next step if roles do not fit on the nodes of an allocation.
const HINT: &str = "ask for fewer ranks in hvdctl.toml or by -np ROLE=N, or correct `gres` of [slurm]";

/// The size of each node by the options of sbatch; a part of it may be unknown before Slurm allocates one.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct NodeOptions {
    /// The number of its GPUs.
    gpus: Option<u32>,
    /// The number of its tasks.
    tasks: Option<u32>,
    /// True if Slurm itself distributes the tasks.
    is_placed: bool,
    /// The number of nodes.
    nodes: Option<usize>,
}

/// The nodes that a job with roles asks for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct RoleNodes {
    /// How many.
    pub nodes: usize,
    /// The tasks of each, unless Slurm distributes them.
    pub tasks: Option<u32>,
}

impl NodeOptions {
    /// Reads the options. `gpus`: the number of GPUs of each node; `value`: returns the value of an option.
    pub fn of<'a>(gpus: Option<u32>, value: impl Fn(&str) -> Option<&'a str>) -> NodeOptions {
        let number = |name: &str| value(name).and_then(|text| text.parse().ok());
        NodeOptions {
            gpus,
            tasks: number("--ntasks-per-node"),
            is_placed: ["--ntasks-per-node", "--ntasks-per-gpu", "--gpus"].iter().any(|name| value(name).is_some()),
            // MIN-MAX: Slurm gives as many of them as it can
            nodes: value("--nodes").and_then(|text| text.rsplit('-').next()?.parse().ok()),
        }
    }

    /// Returns the nodes that roles need.
    ///
    /// # Errors
    /// Roles that do not fit on such nodes; sizes that depend on nodes of which nothing is known.
    pub fn wanted(self, roles: &[JobRole]) -> Result<RoleNodes, Error> {
        self.wanted_by(&roles.iter().map(JobRole::shape).collect::<Vec<_>>())
    }

    fn wanted_by(self, roles: &[RoleShape<'_>]) -> Result<RoleNodes, Error> {
        let slots = self.tasks.or(self.gpus);
        for role in roles {
            self.check(role, slots)?;
        }
        let rooms = self.nodes.unwrap_or_else(|| roles.iter().map(most_nodes).sum()).min(MOST_NODES);
        let room = |number: usize| Room {
            node: format!("node {}", number + 1),
            slots: slots.unwrap_or(u32::MAX),
            gpus: self.gpus,
        };
        let rooms: Vec<Room> = (0..rooms).map(room).collect();
        let placement = place_roles(&rooms, roles, HINT)?;
        let tasks = placement.shares.iter().map(|share| self.slots_of(share, roles)).max().unwrap_or_default();
        Ok(RoleNodes { nodes: placement.shares.len(), tasks: (!self.is_placed).then_some(tasks.max(1)) })
    }

    /// Checks that the number of a role's nodes and of its ranks on each of them can be known.
    fn check(self, role: &RoleShape<'_>, slots: Option<u32>) -> Result<(), Error> {
        let name = role.name;
        match role.size {
            RoleSize::Nodes { ranks: None, .. } if slots.is_none() => Err(Error::usage(
                format!(
                    "the role {name} has `nodes` alone, and hvdctl does not know how many ranks a node of Slurm has"
                ),
                "add `ranks_per_node` to the role, or `gres` to [slurm]",
            )),
            RoleSize::PerNode(_) if role.beside.is_none() && self.nodes.is_none() => Err(Error::usage(
                format!("the role {name} gets all nodes that are left, and Slurm has to know how many nodes a job has"),
                "add `nodes` to the role, or give the number of all nodes: --sbatch=--nodes=N",
            )),
            _ => Ok(()),
        }
    }

    /// Returns how many slots the ranks of a node take.
    fn slots_of(self, share: &Share, roles: &[RoleShape<'_>]) -> u32 {
        let of_role = |(ranks, role): (&u32, &RoleShape<'_>)| {
            ranks.saturating_mul(if self.gpus.is_some() { role.gpus.min(1) } else { role.gpus })
        };
        share.roles.iter().zip(roles).map(of_role).fold(0, u32::saturating_add)
    }
}

/// Returns how many nodes of its own a role has at most.
fn most_nodes(role: &RoleShape<'_>) -> usize {
    let nodes = match (role.beside, role.size) {
        (None, RoleSize::Ranks(nodes) | RoleSize::Nodes { nodes, .. }) => nodes,
        _ => 0,
    };
    nodes as usize
}

#[cfg(test)]
mod tests {
    use super::*;

    fn role(name: &str, size: RoleSize) -> RoleShape<'_> {
        RoleShape { name, size, gpus: 1, beside: None, nodes: None }
    }

    /// The nodes and tasks of each that roles need, where these are the options.
    fn wanted(gpus: Option<u32>, options: &[(&str, &str)], roles: &[RoleShape<'_>]) -> Result<String, String> {
        let value = |name: &str| options.iter().find(|(one, _)| *one == name).map(|(_, value)| *value);
        let found = NodeOptions::of(gpus, value).wanted_by(roles).map_err(|error| error.to_string())?;
        Ok(format!("{} {:?}", found.nodes, found.tasks))
    }

    #[test]
    fn roles_get_equal_nodes_with_room_for_the_one_that_needs_most() {
        use RoleSize::{Nodes, PerNode, Ranks};
        let beside = |size| RoleShape { beside: Some(0), ..role("b", size) };
        let (four, unknown) = (Some(4), None);
        for (gpus, options, roles, expected) in [
            (four, &[][..], vec![role("a", Ranks(8)), role("b", Ranks(2))], "3 Some(4)"),
            (four, &[], vec![role("a", Ranks(4)), beside(Ranks(2))], "2 Some(4)"),
            (four, &[], vec![role("a", Ranks(2)), role("b", Ranks(1))], "2 Some(2)"),
            (four, &[], vec![RoleShape { gpus: 2, ..role("a", Ranks(3)) }], "2 Some(2)"),
            (four, &[], vec![role("a", Nodes { nodes: 2, ranks: None }), role("b", Ranks(1))], "3 Some(4)"),
            // nothing says how many ranks a node has room for
            (unknown, &[], vec![role("a", Ranks(8)), role("b", Ranks(2))], "2 Some(8)"),
            (unknown, &[], vec![RoleShape { gpus: 2, ..role("a", Ranks(3)) }], "1 Some(6)"),
            (unknown, &[], vec![RoleShape { gpus: 0, ..role("a", Ranks(3)) }], "1 Some(1)"),
            (unknown, &[("--ntasks-per-node", "4")], vec![role("a", Ranks(8)), role("b", Ranks(2))], "3 None"),
            (unknown, &[("--gpus", "8")], vec![role("a", Ranks(8)), role("b", Ranks(2))], "2 None"),
            (unknown, &[("--gpus-per-task", "1")], vec![role("a", Ranks(2))], "1 Some(2)"),
            // the operator has said how many nodes
            (four, &[("--nodes", "2-3")], vec![role("a", PerNode(2)), role("b", Ranks(1))], "3 Some(2)"),
            (four, &[("--nodes", "5")], vec![role("a", Ranks(1))], "1 Some(1)"),
        ] {
            assert_eq!(wanted(gpus, options, &roles).as_deref(), Ok(expected), "{options:?} {roles:?}");
        }
    }

    #[test]
    fn what_cannot_fit_is_refused_before_the_submission() {
        use RoleSize::{Nodes, PerNode, Ranks};
        let beside = RoleShape { beside: Some(0), ..role("b", PerNode(3)) };
        for (gpus, options, roles, words) in [
            (Some(4), &[][..], vec![role("a", PerNode(1))], "--sbatch=--nodes=N"),
            (None, &[], vec![role("a", Nodes { nodes: 1, ranks: None })], "add `ranks_per_node` to the role"),
            (Some(2), &[], vec![role("a", Ranks(1)), beside], "node 1 has 2 GPUs, too few for 3 ranks of b"),
            (Some(4), &[("--nodes", "1")], vec![role("a", Ranks(1)), role("b", Ranks(1))], "the role b needs a node"),
            (Some(4), &[], vec![RoleShape { gpus: 8, ..role("a", Ranks(1)) }], "or correct `gres` of [slurm]"),
        ] {
            let error = wanted(gpus, options, &roles).unwrap_err();
            assert!(error.contains(words), "{error}");
        }
    }
}
