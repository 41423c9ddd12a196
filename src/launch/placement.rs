//! Placement of ranks on nodes: the slots of each node, reduced to exactly the number of ranks.
//!
//! With Gloo `horovodrun -np 2 -H a:2,b:2` starts four ranks, with MPI two. They agree only if the slots that the
//! launcher is given add up to `-np`, so surplus slots are left out here.

use crate::error::Error;
use crate::model::role::{self, Ends, RankOfRole, RecordedRole};
use crate::text::units::count;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::num::NonZeroU32;
use std::str::FromStr;

/// The share of one node in a job.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Share {
    /// Name of the node in the inventory.
    pub node: String,
    /// The number of ranks there; 0 only on the first node, which then only launches.
    pub ranks: u32,
    /// The lowest of its ranks; they are consecutive.
    pub first: u32,
    /// True if the job has only as many slots there as ranks and leaves the rest to other jobs; otherwise the node is
    /// allocated exclusively.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub shared: bool,
    /// The UUIDs of the GPUs that are allocated to it on a shared node, one for each rank in order.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub gpus: Vec<String>,
    /// True if no slot and no GPU of the node is allocated to the job, so that other jobs may have all of them.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub unallocated: bool,
    /// The number of ranks of each role there, in the order of the job's roles; empty for a job without roles.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub roles: Vec<u32>,
}

/// The nodes of a job in rank order. The ranks of the shares add up to those of the job.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Placement {
    /// Its nodes, that of the launcher first.
    pub shares: Vec<Share>,
    /// The roles of its ranks, which a record stores apart; empty for a job without roles.
    #[serde(skip)]
    pub roles: Vec<RecordedRole>,
}

/// The number of ranks of a job: `MAX`, or `MIN:MAX` for an elastic job, which may have fewer while nodes are missing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RankCount {
    /// The least number that an elastic job may have; `None` for a job of fixed size.
    pub min: Option<u32>,
    /// The number with all nodes.
    pub max: u32,
}

impl FromStr for RankCount {
    type Err = String;

    fn from_str(text: &str) -> Result<RankCount, String> {
        let number = |text: &str| {
            let expected = "the number of ranks must be a whole number of at least 1, or MIN:MAX for an elastic job";
            text.parse::<NonZeroU32>().map(u32::from).map_err(|_| expected.to_owned())
        };
        let Some((min, max)) = text.split_once(':') else { return Ok(RankCount::exactly(number(text)?)) };
        let (min, max) = (number(min)?, number(max)?);
        if min > max {
            return Err(format!("MIN is greater than MAX: {min} is more than {max}"));
        }
        Ok(RankCount { min: Some(min), max })
    }
}

impl RankCount {
    /// Returns the count of a job of fixed size.
    pub fn exactly(ranks: u32) -> RankCount {
        RankCount { min: None, max: ranks }
    }

    /// Returns the number of ranks to start with on this many slots. An elastic job may start with fewer than MAX, but
    /// not with fewer than MIN.
    pub fn on(self, slots: u32) -> u32 {
        self.min.map_or(self.max, |min| self.max.min(slots.max(min)))
    }
}

/// The order in which ranks are distributed over the nodes. In both orders the ranks of a node are consecutive, as the
/// launcher numbers them.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, clap::ValueEnum)]
pub enum MapBy {
    // few nodes, and most traffic stays inside them
    /// Fill the slots of a node before the next node gets a rank
    #[default]
    Slot,
    // each rank has the most memory and cores to itself
    /// Give every node a rank before any gets another
    Node,
}

fn too_few_slots(slots: &[(String, u32)], available: u32, requested: u32) -> Error {
    let verb = if requested == 1 { "was" } else { "were" };
    let (ranks, available) = (count(requested as usize, "rank"), count(available as usize, "slot"));
    let of_nodes: Vec<String> = slots.iter().map(|(node, n)| format!("{node}: {n}")).collect();
    let of_nodes = if slots.is_empty() { String::new() } else { format!(" ({})", of_nodes.join(", ")) };
    Error::usage(
        format!("{ranks} {verb} requested, but the cluster has {available}{of_nodes}"),
        "lower -np, add nodes, or raise `slots` (or `gpus`) of a [[node]] in the inventory",
    )
}

/// Distributes ranks over the nodes' slots in the given order (the master first). No ranks give an empty placement.
///
/// # Errors
/// [`Error::Usage`] if there are too few slots.
pub fn place(slots: &[(String, u32)], ranks: u32, map_by: MapBy) -> Result<Placement, Error> {
    let available = slots.iter().fold(0u32, |sum, (_, n)| sum.saturating_add(*n));
    if ranks > available {
        return Err(too_few_slots(slots, available, ranks));
    }
    let mut given = vec![0; slots.len()];
    let mut left = ranks;
    while left > 0 {
        for (given, (_, slots)) in given.iter_mut().zip(slots) {
            let room = match map_by {
                MapBy::Slot => slots - *given,
                MapBy::Node => (slots - *given).min(1),
            };
            let more = room.min(left);
            *given += more;
            left -= more;
        }
    }
    let mut placement = Placement::default();
    for ((node, _), ranks) in slots.iter().zip(given).filter(|(_, ranks)| *ranks > 0) {
        placement.push(node, ranks);
    }
    Ok(placement)
}

impl Placement {
    /// Returns the number of ranks.
    pub fn ranks(&self) -> u32 {
        // a record on a node may say anything
        self.shares.iter().fold(0, |sum: u32, share| sum.saturating_add(share.ranks))
    }

    /// Returns the name of the launcher's node.
    pub fn launcher(&self) -> &str {
        self.shares.first().map_or("", |share| share.node.as_str())
    }

    /// Adds a node, whose ranks follow those of the nodes before.
    pub fn push(&mut self, node: &str, ranks: u32) {
        let first = self.ranks();
        self.shares.push(Share { node: node.to_owned(), ranks, first, ..Share::default() });
    }

    /// Adds a node that runs the launcher and no rank.
    #[must_use]
    pub fn launched_on(mut self, node: &str) -> Placement {
        self.shares.insert(0, Share { node: node.to_owned(), ..Share::default() });
        self
    }

    /// Returns the number of the role of a rank, and its rank in that; `None` in a job without roles.
    pub fn role_of(&self, rank: u32) -> Option<(usize, u32)> {
        let share = self.shares.iter().find(|s| (s.first..s.first.saturating_add(s.ranks)).contains(&rank))?;
        let mut left = rank - share.first;
        for (role, &ranks) in share.roles.iter().enumerate() {
            if left < ranks {
                let before = self.ranks_before(role, share);
                return Some((role, before.saturating_add(left)));
            }
            left -= ranks;
        }
        None
    }

    /// Returns the role of a rank by name, and its rank in that; `None` in a job without roles.
    pub fn role(&self, rank: u32) -> Option<RankOfRole> {
        let (role, rank) = self.role_of(rank)?;
        self.roles.get(role).map(|role| RankOfRole { role: role.name.clone(), rank })
    }

    /// Returns the role of a rank as it is recorded; `None` in a job without roles.
    pub fn recorded_role(&self, rank: u32) -> Option<&RecordedRole> {
        self.role_of(rank).and_then(|(role, _)| self.roles.get(role))
    }

    /// Formats a rank for sentences: `rank 3`, in a job with roles `rank 0 of trainer`.
    pub fn name(&self, rank: u32) -> String {
        role::name(rank, self.role(rank).as_ref())
    }

    /// Returns whether the end of the rank's role ends the job, as it does in a job without roles.
    pub fn ends_job(&self, rank: u32) -> bool {
        self.recorded_role(rank).is_none_or(|role| role.ends == Ends::Job)
    }

    /// Returns whether two ranks are of one role, as all are in a job without roles. Only such ranks wait for one another
    /// in a collective operation.
    pub fn are_of_one_role(&self, one: u32, other: u32) -> bool {
        self.role_of(one).map(|(role, _)| role) == self.role_of(other).map(|(role, _)| role)
    }

    /// Returns the ranks in the job of a role's ranks, in their order.
    pub fn ranks_of(&self, role: usize) -> impl Iterator<Item = u32> {
        self.shares.iter().flat_map(move |share| {
            let before = share.roles.iter().take(role).fold(share.first, |sum: u32, ranks| sum.saturating_add(*ranks));
            let end = share.first.saturating_add(share.ranks);
            let own = share.roles.get(role).copied().unwrap_or_default();
            before..before.saturating_add(own).min(end)
        })
    }

    /// Returns the rank in the job of that which the library of another rank numbers so: a library knows the ranks of its
    /// own role only.
    pub fn in_role_of(&self, of: u32, rank: u32) -> u32 {
        let found = self.role_of(of).and_then(|(role, _)| self.ranks_of(role).nth(rank as usize));
        found.unwrap_or(rank)
    }

    /// Returns how many ranks each role has, by name; none in a job without roles.
    pub fn sizes(&self) -> impl Iterator<Item = (&str, u32)> {
        self.roles.iter().enumerate().map(|(number, role)| {
            let of_role = self.shares.iter().filter_map(|share| share.roles.get(number));
            (&*role.name, of_role.fold(0, |sum: u32, ranks| sum.saturating_add(*ranks)))
        })
    }

    /// Returns how many ranks of a role are on the nodes before this one.
    pub fn ranks_before(&self, role: usize, share: &Share) -> u32 {
        let before = self.shares.iter().take_while(|other| other.first < share.first);
        before.filter_map(|other| other.roles.get(role)).fold(0, |sum: u32, ranks| sum.saturating_add(*ranks))
    }

    /// Returns how many ports in a row its ranks find one another by: as many as a node has ranks, role by role.
    pub fn rendezvous_ports(&self) -> u32 {
        let roles = self.shares.iter().map(|share| share.roles.len()).max().unwrap_or_default();
        let most = |of: &dyn Fn(&Share) -> u32| self.shares.iter().map(of).max().unwrap_or_default();
        match roles {
            0 => most(&|share| share.ranks),
            roles => (0..roles).fold(0, |sum: u32, role| {
                sum.saturating_add(most(&|share| share.roles.get(role).copied().unwrap_or_default()))
            }),
        }
    }

    /// Returns the node of a rank, and its local rank there.
    pub fn node_of(&self, rank: u32) -> Option<(&str, u32)> {
        self.shares
            .iter()
            .find(|s| (s.first..s.first.saturating_add(s.ranks)).contains(&rank))
            .map(|s| (s.node.as_str(), rank - s.first))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn slots(counts: &[u32]) -> Vec<(String, u32)> {
        counts.iter().enumerate().map(|(i, n)| (format!("n{i}"), *n)).collect()
    }

    #[test]
    fn the_first_node_is_filled_first_or_each_gets_one_in_session() {
        let got = |counts: &[u32], ranks, map_by| -> Vec<(u32, u32)> {
            place(&slots(counts), ranks, map_by).unwrap().shares.iter().map(|s| (s.ranks, s.first)).collect()
        };
        assert_eq!(got(&[2, 2], 3, MapBy::Slot), [(2, 0), (1, 2)]);
        assert_eq!(got(&[4, 4], 2, MapBy::Node), [(1, 0), (1, 1)]);
        assert_eq!(got(&[4, 0, 1, 4], 7, MapBy::Node), [(3, 0), (1, 3), (3, 4)]);
        let placement = place(&slots(&[2, 2]), 3, MapBy::Slot).unwrap();
        assert_eq!(placement.node_of(2), Some(("n1", 0)));
        assert_eq!(placement.node_of(3), None);
    }

    #[test]
    fn ranks_of_a_node_are_consecutive_whatever_their_role() {
        let mut placement = Placement::default().launched_on("master");
        for (node, roles) in [("n0", vec![2, 1]), ("n1", vec![2, 1]), ("n2", vec![0, 3])] {
            placement.push(node, roles.iter().sum());
            placement.shares.last_mut().unwrap().roles = roles;
        }
        let all: Vec<_> = (0..9).map(|rank| placement.role_of(rank).unwrap()).collect();
        assert_eq!(all, [(0, 0), (0, 1), (1, 0), (0, 2), (0, 3), (1, 1), (1, 2), (1, 3), (1, 4)]);
        assert_eq!(placement.role_of(9), None);
        for role in 0..2 {
            let own: Vec<u32> = (0..9).filter(|rank| all[*rank as usize].0 == role).collect();
            assert_eq!(placement.ranks_of(role).collect::<Vec<_>>(), own);
        }
        assert_eq!((placement.in_role_of(2, 3), placement.in_role_of(2, 99)), (7, 99));
        assert!(placement.are_of_one_role(2, 8) && !placement.are_of_one_role(2, 3));
        let without = place(&slots(&[2]), 2, MapBy::Slot).unwrap();
        assert_eq!(without.role_of(0), None);
    }

    #[test]
    fn a_record_may_say_anything_of_its_ranks() {
        let mut placement = place(&slots(&[2, 2]), 3, MapBy::Slot).unwrap();
        (placement.shares[0].ranks, placement.shares[1].ranks) = (u32::MAX, u32::MAX);
        assert_eq!((placement.ranks(), placement.node_of(9)), (u32::MAX, Some(("n0", 9))));
        placement.push("n2", 1);
        assert_eq!(placement.shares[2].first, u32::MAX);
    }

    #[test]
    fn an_elastic_job_has_a_range_of_ranks() {
        let count = |text: &str| text.parse::<RankCount>();
        assert_eq!(count("4"), Ok(RankCount { min: None, max: 4 }));
        let elastic = count("2:4").unwrap();
        assert_eq!(elastic, RankCount { min: Some(2), max: 4 });
        assert_eq!([1, 2, 3, 8].map(|slots| elastic.on(slots)), [2, 2, 3, 4]);
        assert_eq!(count("4").unwrap().on(2), 4);
        for bad in ["", "x", "0", "2:", ":4", "4:2", "0:4", "-1", "1:2:3"] {
            assert!(count(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn a_node_that_only_launches_comes_first_and_has_no_rank() {
        let placement = place(&slots(&[1, 1]), 2, MapBy::Slot).unwrap().launched_on("master");
        assert_eq!((placement.shares[0].node.as_str(), placement.shares[0].ranks, placement.ranks()), ("master", 0, 2));
        assert_eq!((placement.node_of(0), placement.node_of(1)), (Some(("n0", 0)), Some(("n1", 0))));
    }

    #[test]
    fn too_many_ranks_name_both_numbers() {
        let error = |there: &[u32], ranks| match place(&slots(there), ranks, MapBy::Slot) {
            Err(Error::Usage { message, .. }) => message,
            other => panic!("{other:?}"),
        };
        assert_eq!(error(&[1, 2], 4), "4 ranks were requested, but the cluster has 3 slots (n0: 1, n1: 2)");
        assert_eq!(error(&[1], 2), "2 ranks were requested, but the cluster has 1 slot (n0: 1)");
        assert_eq!(error(&[], 1), "1 rank was requested, but the cluster has 0 slots");
    }

    proptest! {
        #[test]
        fn exactly_np_ranks_and_never_more_than_slots(counts in prop::collection::vec(0u32..9, 1..20), np in 0u32..200, spread in any::<bool>()) {
            let slots = slots(&counts);
            match place(&slots, np, if spread { MapBy::Node } else { MapBy::Slot }) {
                Ok(placement) => {
                    prop_assert_eq!(placement.ranks(), np);
                    let mut next = 0;
                    for share in &placement.shares {
                        prop_assert_eq!(share.first, next);
                        next += share.ranks;
                        let room = slots.iter().find(|(n, _)| *n == share.node).unwrap().1;
                        prop_assert!(share.ranks >= 1 && share.ranks <= room);
                    }
                    if spread {
                        // no node has two ranks more than another that still had room
                        for (one, other) in placement.shares.iter().flat_map(|a| placement.shares.iter().map(move |b| (a, b))) {
                            let room = slots.iter().find(|(n, _)| *n == other.node).unwrap().1;
                            prop_assert!(one.ranks <= other.ranks + 1 || other.ranks == room);
                        }
                    }
                    for rank in 0..np { prop_assert!(placement.node_of(rank).is_some()); }
                }
                Err(_) => prop_assert!(counts.iter().sum::<u32>() < np),
            }
        }
    }
}
