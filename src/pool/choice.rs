//! The choice of the nodes of a pool for one job: of one kind, near each other, and the best of these.

use crate::model::grade::{Grade, NodeKind};
use crate::text::units::count;
use schemars::JsonSchema;
use serde::Serialize;
use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

/// The distance between nodes: the longest round trip between two of them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Distance {
    /// Below 2 ms: one room or one data center.
    Lan,
    /// Below 20 ms: one city or region.
    Region,
    /// More.
    Wan,
}

impl Distance {
    const ALL: [Distance; 3] = [Distance::Lan, Distance::Region, Distance::Wan];

    /// Returns the distance of a round trip.
    pub fn of(round_trip: Duration) -> Distance {
        match round_trip.as_secs_f64() * 1000.0 {
            ..2.0 => Distance::Lan,
            ..20.0 => Distance::Region,
            _ => Distance::Wan,
        }
    }
}

impl fmt::Display for Distance {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Distance::Lan => "below 2 ms",
            Distance::Region => "below 20 ms",
            Distance::Wan => "20 ms or more",
        })
    }
}

/// A node that may be picked.
#[derive(Debug, Clone, PartialEq)]
pub struct Candidate {
    /// The owner's name for it.
    pub name: String,
    /// Its owner. Claims of different owners about each other are not believed.
    pub owner: String,
    /// Set if it may be the master, which gets the cluster's private key.
    pub may_be_master: bool,
    /// Its kind.
    pub kind: NodeKind,
    /// Its grade, as its owner says.
    pub grade: Grade,
    /// The score behind that, from 0 to 1.
    pub score: Option<f64>,
    /// Most ranks of one job.
    pub slots: u32,
}

/// Returns why a node of this grade is no candidate, if that is so.
pub fn obstacle(grade: Grade) -> Option<&'static str> {
    (grade == Grade::F).then_some("its grade is F")
}

impl Candidate {
    /// The order in which nodes are preferred.
    fn order(&self) -> (u8, Reverse<u64>) {
        (self.grade.preference(), Reverse((self.score.unwrap_or_default() * 1e6) as u64))
    }
}

/// The round trips between candidates, by their numbers.
#[derive(Debug, Clone, Default)]
pub struct RoundTrips {
    measured: BTreeMap<(usize, usize), Option<Duration>>,
    from_here: BTreeMap<usize, Duration>,
}

impl RoundTrips {
    /// Adds what one node has measured to another one; `None`: it could not connect.
    pub fn add(&mut self, from: usize, to: usize, round_trip: Option<Duration>) {
        self.measured.insert((from, to), round_trip);
    }

    /// Adds what this machine has measured to a node.
    pub fn add_from_here(&mut self, to: usize, round_trip: Duration) {
        self.from_here.insert(to, round_trip);
    }

    /// Returns whether each of so many nodes has measured each other one.
    pub fn are_complete(&self, nodes: usize) -> bool {
        (0..nodes).all(|from| (0..nodes).all(|to| from == to || self.measured.contains_key(&(from, to))))
    }

    /// Returns whether neither of two nodes has measured the other one.
    pub fn is_over_here(&self, one: usize, other: usize) -> bool {
        [(one, other), (other, one)].iter().all(|direction| !self.measured.contains_key(direction))
    }

    /// Returns the round trip between two nodes; `None` if one cannot connect to the other. What was not measured from
    /// a node takes as long as over this machine, which is an overestimate. Between nodes of one owner the shorter of
    /// both directions counts, because what else a machine does only adds to it. Of different owners each may say what
    /// it likes, so the longer one counts, as far as the other one has measured it.
    pub fn between(&self, one: usize, other: usize, candidates: &[Candidate]) -> Option<Duration> {
        let over_here = || Some(*self.from_here.get(&one)? + *self.from_here.get(&other)?);
        let [there, back] = [(one, other), (other, one)].map(|direction| self.measured.get(&direction));
        let is_one_owner = candidates[one].owner == candidates[other].owner;
        match (there, back) {
            (Some(there), Some(back)) if is_one_owner => Some((*there)?.min((*back)?)),
            (Some(measured), None) | (None, Some(measured)) if is_one_owner => *measured,
            _ => {
                let [there, back] = [there, back].map(|measured| measured.map_or_else(over_here, |time| *time));
                Some(there?.max(back?))
            }
        }
    }
}

/// Nodes of one kind that are picked together.
#[derive(Debug, Clone, PartialEq)]
pub struct NodeGroup {
    /// The numbers of the candidates, the master first, then the best.
    pub nodes: Vec<usize>,
    /// Their slots.
    pub slots: u32,
    /// Their distance from each other.
    pub distance: Distance,
    /// The longest round trip between two of them; zero for a single node.
    pub longest: Duration,
}

/// The reason why there is no group.
#[derive(Debug, Clone, PartialEq)]
pub enum PoolShortage {
    /// No node may be the master.
    NoMaster,
    /// The largest group of one kind with a master has fewer slots.
    TooFew(NodeKind, NodeGroup),
}

impl fmt::Display for PoolShortage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            PoolShortage::NoMaster => f.write_str("no node of the pool can be the master"),
            PoolShortage::TooFew(kind, group) => {
                let (slots, nodes) = (count(group.slots as usize, "slot"), count(group.nodes.len(), "node"));
                write!(f, "the largest group with a master has {slots}: {nodes} of {kind}")
            }
        }
    }
}

/// Picks the nodes for so many ranks. One of them may be the master. A closer group goes before better nodes: the
/// slowest exchange between two ranks sets the speed of all. Then GPUs go before processors, the better worst node, the
/// better score and the clearly shorter round trip: the same pool gives the same group. Grades are what owners say of
/// their own nodes, and choose no master: that is by name.
///
/// # Errors
/// If no nodes of one kind with a master, each of which can connect to each other one, have so many slots.
pub fn pick(candidates: &[Candidate], round_trips: &RoundTrips, ranks: u32) -> Result<NodeGroup, PoolShortage> {
    let all = 0..candidates.len();
    let between: Vec<Vec<_>> =
        all.clone().map(|one| all.clone().map(|other| round_trips.between(one, other, candidates)).collect()).collect();
    let mut groups = Vec::new();
    for master in all.clone().filter(|number| candidates[*number].may_be_master) {
        let kind = &candidates[master].kind;
        let mut nodes: Vec<usize> = all.clone().filter(|number| candidates[*number].kind == *kind).collect();
        nodes.sort_by_key(|number| candidates[*number].order());
        for distance in Distance::ALL {
            let search = Search { candidates, between: &between, distance, ranks };
            // whatever one node says of its links, it keeps no other one away from the master
            groups.extend(nodes.iter().filter_map(|second| Some((kind, search.around(master, *second, &nodes)?))));
        }
    }
    let order = |(kind, group): &(&NodeKind, NodeGroup)| {
        let nodes = group.nodes.iter().map(|number| candidates[*number].order());
        let worst = nodes.clone().map(|(grade, _)| grade).max();
        let score: u64 = nodes.map(|(_, Reverse(score))| score).sum();
        let mean = score / group.nodes.len() as u64;
        (group.distance, kind.gpu.is_none(), worst, Reverse(mean), group.longest.as_millis() / 10)
    };
    let enough = groups.iter().filter(|(_, group)| group.slots >= ranks).min_by_key(|group| order(group));
    match enough {
        Some((_, group)) => Ok(group.clone()),
        None => {
            let largest = groups.into_iter().min_by_key(|group| (Reverse(group.1.slots), order(group)));
            Err(largest.map_or(PoolShortage::NoMaster, |(kind, group)| PoolShortage::TooFew(kind.clone(), group)))
        }
    }
}

/// Returns why a candidate was left out of the picked group.
pub fn reason(number: usize, candidates: &[Candidate], round_trips: &RoundTrips, group: &NodeGroup) -> String {
    let Candidate { kind, grade, .. } = &candidates[number];
    if *kind != candidates[group.nodes[0]].kind {
        return format!("another kind: {kind}");
    }
    let trips = || group.nodes.iter().map(|member| round_trips.between(number, *member, candidates));
    if trips().any(|trip| trip.is_none()) {
        return "no connection between it and a node of the group".into();
    }
    match trips().flatten().max().filter(|longest| Distance::of(*longest) > group.distance) {
        Some(longest) => format!("{} from the group", milliseconds(longest)),
        None => format!("not needed (grade {grade})"),
    }
}

/// Formats a round trip: `0.41 ms`.
pub fn milliseconds(time: Duration) -> String {
    format!("{:.2} ms", time.as_secs_f64() * 1000.0)
}

/// A search for nodes near a given one.
struct Search<'a> {
    candidates: &'a [Candidate],
    /// The round trips between each two candidates.
    between: &'a [Vec<Option<Duration>>],
    distance: Distance,
    ranks: u32,
}

impl Search<'_> {
    /// Returns the best nodes within the distance of each other, as many as are needed if there are, with these two
    /// among the first that were taken, if they are so near. `nodes`: those of their kind, the best first.
    fn around(&self, master: usize, second: usize, nodes: &[usize]) -> Option<NodeGroup> {
        let slots = |number: usize| self.candidates[number].slots;
        let between = |one: usize, other: usize| self.between[one][other];
        let is_near = |one, other| between(one, other).is_some_and(|time| Distance::of(time) <= self.distance);
        let (mut group, mut found) = (vec![master], slots(master));
        if second != master {
            if !is_near(master, second) {
                return None;
            }
            group.push(second);
            found += slots(second);
        }
        for number in nodes.iter().copied().filter(|number| *number != master && *number != second) {
            if found >= self.ranks {
                break;
            }
            if group.iter().all(|member| is_near(*member, number)) {
                group.push(number);
                found += slots(number);
            }
        }
        group.sort_by_key(|number| self.candidates[*number].order());
        // a larger node may have made a smaller one needless
        for at in (0..group.len()).rev() {
            let without = found - slots(group[at]);
            let is_only_master =
                !group.iter().any(|number| *number != group[at] && self.candidates[*number].may_be_master);
            if without >= self.ranks && !is_only_master {
                group.remove(at);
                found = without;
            }
        }
        let pairs = group.iter().flat_map(|one| group.iter().map(move |other| (*one, *other)));
        let times = pairs.filter(|(one, other)| one < other).filter_map(|(one, other)| between(one, other));
        let longest = times.max().unwrap_or_default();
        Some(NodeGroup { slots: found, distance: Distance::of(longest), longest, nodes: self.with_master_first(group) })
    }

    /// Moves the master to the front: of those that may be it, the first by name.
    fn with_master_first(&self, mut group: Vec<usize>) -> Vec<usize> {
        let masters = (0..group.len()).filter(|at| self.candidates[group[*at]].may_be_master);
        if let Some(at) = masters.min_by_key(|at| &self.candidates[group[*at]].name) {
            let master = group.remove(at);
            group.insert(0, master);
        }
        group
    }
}

#[cfg(test)]
mod tests;
