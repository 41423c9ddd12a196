//! Placement of the roles of a job: which ranks of which role are on which node.
//!
//! A role and those that share its nodes (`beside`) are a group. The groups get nodes in order, each the smallest
//! number on which all of its ranks fit, and no node belongs to two of them. A group that may have only some of the
//! nodes comes before those that may have more. On the nodes of a group the ranks of the other roles are spread evenly,
//! and those of its first role fill what these leave. Either all ranks are placed, or none.

use super::placement::{MapBy, Placement, place};
use crate::error::Error;
use crate::model::role_size::RoleSize;
use crate::text::nodeset;
use crate::text::units::count;
use serde::Serialize;
use std::collections::BTreeSet;

/// A node without the ranks of any role.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Room {
    /// Its name.
    pub node: String,
    /// Its slots.
    pub slots: u32,
    /// Its GPUs; `None` on a node without: there the slots are counted in their place.
    pub gpus: Option<u32>,
}

/// The size of a role.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct RoleShape<'a> {
    /// Its name.
    #[serde(skip)]
    pub name: &'a str,
    /// The number of its ranks.
    pub size: RoleSize,
    /// The number of GPUs (or of slots, where there are none) of each; 0: a rank takes neither.
    pub gpus: u32,
    /// The number of the role whose nodes it shares.
    pub beside: Option<usize>,
    /// The names of the nodes that it may have; `None`: all.
    pub nodes: Option<&'a [String]>,
}

/// Why ranks cannot be placed.
type Lack = String;

impl Room {
    /// Returns how many ranks with so many GPUs (or slots) fit.
    pub fn most(&self, gpus: u32) -> u32 {
        match (gpus, self.gpus) {
            (0, _) => u32::MAX,
            (_, Some(all)) => self.slots.min(all / gpus),
            (_, None) => self.slots / gpus,
        }
    }

    /// Returns what so many ranks leave, if they fit.
    fn without(&self, ranks: u32, gpus: u32) -> Option<Room> {
        let taken = ranks.checked_mul(gpus)?;
        let slots = if gpus == 0 { 0 } else { ranks };
        let (slots, gpus) = match self.gpus {
            Some(all) => (slots, Some(all.checked_sub(taken)?)),
            None => (taken, None),
        };
        Some(Room { node: self.node.clone(), slots: self.slots.checked_sub(slots)?, gpus })
    }

    /// Describes its resources that ranks take.
    fn resources(&self) -> String {
        match self.gpus {
            Some(gpus) if gpus <= self.slots => count(gpus as usize, "GPU"),
            _ => count(self.slots as usize, "slot"),
        }
    }
}

/// A role and those that share its nodes, by their numbers.
struct RoleGroup<'a> {
    base: usize,
    beside: Vec<usize>,
    /// The names of the nodes that all of them may have; `None`: all.
    nodes: Option<BTreeSet<&'a str>>,
}

/// The ranks of each role on each node.
type RankTable = Vec<Vec<u32>>;

/// The roles that are placed.
struct Roles<'a> {
    rooms: &'a [Room],
    roles: &'a [RoleShape<'a>],
}

/// Places roles on nodes, in the order of both. The field `beside` of the roles forms no circle. In an allocation of
/// Slurm, `programs/slurm/placement.py` does the same; `tests/role_placement.json` has what both return. `hint`: the next
/// step if they do not fit.
///
/// # Errors
/// [`Error::Usage`] if not all ranks fit, if two roles are to have all nodes that others leave, or if roles that share
/// nodes may have none in common.
pub fn place_roles(rooms: &[Room], roles: &[RoleShape<'_>], hint: &str) -> Result<Placement, Error> {
    let mut groups = groups(roles)?;
    groups.sort_by_key(|group| group.nodes.as_ref().map_or(usize::MAX, BTreeSet::len));
    let open: Vec<&RoleGroup<'_>> = groups.iter().filter(|group| is_open(roles, group)).collect();
    for (number, one) in open.iter().enumerate() {
        if let Some(other) = open[..number].iter().find(|other| other.may_take_from(one)) {
            let names = [other.base, one.base].map(|role| roles[role].name);
            return Err(Error::usage(
                format!("the roles {} and {} would both get all nodes that are left", names[0], names[1]),
                "give one of them `nodes` as well, or `ranks` instead of `ranks_per_node`, or each nodes of its own: \
                 --on ROLE=NODES,ROLE=NODES",
            ));
        }
    }
    let free: Vec<usize> = (0..rooms.len()).collect();
    let table = Roles { rooms, roles }.groups(&groups, &free).map_err(|why| Error::usage(why, hint))?;
    let mut placement = Placement::default();
    for (room, counts) in rooms.iter().zip(table).filter(|(_, counts)| counts.iter().any(|ranks| *ranks > 0)) {
        placement.push(&room.node, counts.iter().sum());
        placement.shares.last_mut().expect("it was pushed").roles = counts;
    }
    Ok(placement)
}

impl RoleGroup<'_> {
    /// Returns whether both may have one of the nodes.
    fn may_take_from(&self, other: &RoleGroup<'_>) -> bool {
        match (&self.nodes, &other.nodes) {
            (Some(one), Some(other)) => !one.is_disjoint(other),
            _ => true,
        }
    }

    /// Returns whether it may have a node.
    fn may_have(&self, room: &Room) -> bool {
        self.nodes.as_ref().is_none_or(|nodes| nodes.contains(room.node.as_str()))
    }
}

fn groups<'a>(roles: &[RoleShape<'a>]) -> Result<Vec<RoleGroup<'a>>, Error> {
    let root = |mut role: usize| {
        // at most as many steps as there are roles
        for _ in roles {
            role = roles[role].beside.unwrap_or(role);
        }
        role
    };
    let bases = (0..roles.len()).filter(|role| roles[*role].beside.is_none());
    let group = |base| {
        let beside: Vec<usize> = (0..roles.len()).filter(|role| *role != base && root(*role) == base).collect();
        let mut nodes: Option<BTreeSet<&str>> = None;
        for role in [&[base], beside.as_slice()].concat() {
            let RoleShape { name, nodes: Some(own), .. } = &roles[role] else { continue };
            let own: BTreeSet<&str> = own.iter().map(String::as_str).collect();
            let common = nodes.as_ref().map_or_else(|| own.clone(), |nodes| nodes & &own);
            if common.is_empty() {
                let (base, own) = (roles[base].name, nodeset::fold(&Vec::from_iter(own)));
                return Err(Error::usage(
                    format!("the role {name} shares the nodes of {base} (`beside`), which may have none of {own}"),
                    format!("leave {name} out of --on, or name nodes there that both may have"),
                ));
            }
            nodes = Some(common);
        }
        Ok(RoleGroup { base, beside, nodes })
    };
    bases.map(group).collect()
}

/// Returns whether a group gets all nodes that the others leave.
fn is_open(roles: &[RoleShape<'_>], group: &RoleGroup<'_>) -> bool {
    matches!(roles[group.base].size, RoleSize::PerNode(_))
}

/// Returns how many of so many ranks each of some nodes has if they are spread evenly.
fn evenly(ranks: u32, nodes: usize) -> impl Iterator<Item = u32> {
    let nodes = u32::try_from(nodes).unwrap_or(u32::MAX);
    (0..nodes).map(move |node| ranks / nodes + u32::from(node < ranks % nodes))
}

impl Roles<'_> {
    /// Places groups on the free nodes, given by their numbers.
    fn groups(&self, groups: &[RoleGroup<'_>], free: &[usize]) -> Result<RankTable, Lack> {
        let Some((group, others)) = groups.split_first() else {
            return Ok(vec![vec![0; self.roles.len()]; self.rooms.len()]);
        };
        let base = &self.roles[group.base];
        let least = match base.size {
            RoleSize::Ranks(_) => 1,
            RoleSize::Nodes { ranks, .. } => ranks.unwrap_or(1),
            RoleSize::PerNode(ranks) => ranks,
        };
        let is_usable = |room: &Room| group.may_have(room) && room.most(base.gpus) >= least;
        let usable: Vec<usize> = free.iter().copied().filter(|node| is_usable(&self.rooms[*node])).collect();
        let too_few = |wanted: &str| {
            let left: Vec<&str> = usable.iter().map(|node| self.rooms[*node].node.as_str()).collect();
            let left = if left.is_empty() { "none".to_owned() } else { left.join(", ") };
            let (ranks, each) = (count(least as usize, "rank"), each(base.gpus));
            let of = if group.nodes.is_some() { "the nodes left that --on gives it" } else { "the nodes left" };
            format!("the role {} needs {wanted} with room for {ranks}{each}; of {of} these have it: {left}", base.name)
        };
        let sizes: Vec<usize> = match base.size {
            RoleSize::Ranks(ranks) => (1..=usable.len().min(ranks as usize)).collect(),
            RoleSize::Nodes { nodes, .. } if nodes as usize > usable.len() => {
                return Err(too_few(&count(nodes as usize, "node")));
            }
            RoleSize::Nodes { nodes, .. } => vec![nodes as usize],
            RoleSize::PerNode(_) => (1..=usable.len()).rev().collect(),
        };
        let mut lack = too_few("a node");
        for size in sizes {
            let nodes = &usable[..size];
            let counts = match self.group(group, nodes) {
                Ok(counts) => counts,
                Err(why) => {
                    lack = why;
                    continue;
                }
            };
            let left: Vec<usize> = free.iter().copied().filter(|node| !nodes.contains(node)).collect();
            match self.groups(others, &left) {
                Ok(mut table) => {
                    for (node, counts) in nodes.iter().zip(counts) {
                        table[*node] = counts;
                    }
                    return Ok(table);
                }
                // with fewer nodes it leaves more of them
                Err(why) if is_open(self.roles, group) && others.iter().any(|other| other.may_take_from(group)) => {
                    lack = why;
                }
                Err(why) => return Err(why),
            }
        }
        Err(lack)
    }

    /// Places a group on exactly these nodes. Returns the ranks of each role on each of them.
    fn group(&self, group: &RoleGroup<'_>, nodes: &[usize]) -> Result<RankTable, Lack> {
        let mut table = vec![vec![0; self.roles.len()]; nodes.len()];
        for &role in &group.beside {
            let on_each: Vec<u32> = match self.roles[role].size {
                RoleSize::Ranks(ranks) => evenly(ranks, nodes.len()).collect(),
                RoleSize::PerNode(ranks) => vec![ranks; nodes.len()],
                // one that shares nodes has no number of them
                RoleSize::Nodes { ranks, .. } => vec![ranks.unwrap_or(1); nodes.len()],
            };
            table.iter_mut().zip(on_each).for_each(|(counts, ranks)| counts[role] = ranks);
        }
        let rooms = nodes.iter().zip(&table).map(|(node, counts)| {
            let room = &self.rooms[*node];
            self.left(room, counts).ok_or_else(|| self.too_much(room, counts))
        });
        let rooms = rooms.collect::<Result<Vec<Room>, Lack>>()?;
        let of_base = self.base(group, nodes, &rooms, &table)?;
        table.iter_mut().zip(of_base).for_each(|(counts, ranks)| counts[group.base] = ranks);
        Ok(table)
    }

    /// Returns how many ranks of the first role of a group each node has, where the others leave these rooms.
    fn base(
        &self,
        group: &RoleGroup<'_>,
        nodes: &[usize],
        rooms: &[Room],
        table: &RankTable,
    ) -> Result<Vec<u32>, Lack> {
        let base = &self.roles[group.base];
        let most: Vec<u32> = rooms.iter().map(|room| room.most(base.gpus)).collect();
        let of_each = |ranks: u32| match most.iter().position(|most| *most < ranks) {
            None => Ok(vec![ranks; nodes.len()]),
            Some(node) => {
                let mut counts = table[node].clone();
                counts[group.base] = ranks;
                Err(self.too_much(&self.rooms[nodes[node]], &counts))
            }
        };
        match base.size {
            RoleSize::Ranks(ranks) => {
                // each of its nodes has one of them
                of_each(1)?;
                let left = rooms.iter().zip(&most).map(|(room, most)| (room.node.clone(), most - 1));
                let left: Vec<_> = left.collect();
                let placed = place(&left, ranks - nodes.len() as u32, MapBy::Slot);
                let placed = placed.map_err(|_| self.too_many(group, ranks, rooms, &most))?;
                let more = |room: &Room| placed.shares.iter().find(|share| share.node == room.node);
                Ok(rooms.iter().map(|room| 1 + more(room).map_or(0, |share| share.ranks)).collect())
            }
            RoleSize::Nodes { ranks: Some(ranks), .. } | RoleSize::PerNode(ranks) => of_each(ranks),
            RoleSize::Nodes { ranks: None, .. } => {
                of_each(1)?;
                Ok(rooms.iter().zip(most).map(|(room, most)| most.min(room.slots.max(1))).collect())
            }
        }
    }

    /// Returns what these ranks leave of a node, if they fit.
    fn left(&self, room: &Room, counts: &[u32]) -> Option<Room> {
        let roles = counts.iter().zip(self.roles);
        roles
            .filter(|(ranks, _)| **ranks > 0)
            .try_fold(room.clone(), |room, (ranks, role)| room.without(*ranks, role.gpus))
    }

    /// Describes a node on which these ranks do not fit.
    fn too_much(&self, room: &Room, counts: &[u32]) -> Lack {
        let roles = counts.iter().zip(self.roles).filter(|(ranks, _)| **ranks > 0);
        let roles: Vec<String> = roles
            .map(|(ranks, role)| format!("{} of {}{}", count(*ranks as usize, "rank"), role.name, each(role.gpus)))
            .collect();
        format!("{} has {}, too few for {}", room.node, room.resources(), roles.join(" and "))
    }

    /// Describes nodes that have room for fewer ranks than the first role of a group has.
    fn too_many(&self, group: &RoleGroup<'_>, ranks: u32, rooms: &[Room], most: &[u32]) -> Lack {
        let (base, nodes) = (&self.roles[group.base], rooms.iter().zip(most));
        let of_nodes: Vec<String> = nodes.map(|(room, most)| format!("{}: {most}", room.node)).collect();
        let beside: Vec<&str> = group.beside.iter().map(|role| self.roles[*role].name).collect();
        let beside = if beside.is_empty() { String::new() } else { format!(" next to {}", beside.join(", ")) };
        let (ranks, each) = (count(ranks as usize, "rank"), each(base.gpus));
        format!(
            "the role {} has {ranks}{each}, but the nodes left have room for fewer{beside} ({})",
            base.name,
            of_nodes.join(", ")
        )
    }
}

/// Describes what each rank takes, unless that is one slot.
fn each(gpus: u32) -> String {
    if gpus == 1 { String::new() } else { format!(" with {gpus} GPUs or slots each") }
}

/// Divides the GPUs of a node among the ranks of its roles, role by role. `counts`: the ranks of each role there, and
/// the GPUs of each of these.
pub fn divide(gpus: &[String], counts: impl IntoIterator<Item = (u32, u32)>) -> Vec<&[String]> {
    let mut left = gpus;
    let part = |(ranks, each): (u32, u32)| {
        let (part, rest) = left.split_at((ranks.saturating_mul(each) as usize).min(left.len()));
        left = rest;
        part
    };
    counts.into_iter().map(part).collect()
}

#[cfg(test)]
mod tests;
