//! Which nodes of a pool are one job's: of one kind, near each other, and the best of these.

use crate::model::grade::{Grade, NodeKind};
use crate::text::units::count;
use schemars::JsonSchema;
use serde::Serialize;
use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::time::Duration;

/// How far nodes are from each other: the longest round trip between two of them.
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
    /// What it is.
    pub kind: NodeKind,
    /// How good it is.
    pub grade: Grade,
    /// The score behind that, from 0 to 1.
    pub score: Option<f64>,
    /// Most ranks of one job.
    pub slots: u32,
    /// Whether this operator can log in to it, as a job needs.
    pub has_login: bool,
}

/// Returns why a node of this grade is no candidate, if that is so.
pub fn obstacle(grade: Grade) -> Option<&'static str> {
    (grade == Grade::F).then_some("its grade is F")
}

impl Candidate {
    /// The order in which nodes are preferred.
    fn order(&self) -> (bool, u8, Reverse<u64>) {
        (!self.has_login, self.grade.preference(), Reverse((self.score.unwrap_or_default() * 1e6) as u64))
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

    /// Adds what this machine has measured to a node that measures nothing itself.
    pub fn add_from_here(&mut self, to: usize, round_trip: Duration) {
        self.from_here.insert(to, round_trip);
    }

    /// Returns those between some candidates, by their places in `numbers`.
    pub fn only(&self, numbers: &[usize]) -> RoundTrips {
        let places: BTreeMap<usize, usize> =
            numbers.iter().enumerate().map(|(place, number)| (*number, place)).collect();
        let place = |number: &usize| places.get(number).copied();
        let pair = |((from, to), time): (&(usize, usize), &Option<Duration>)| Some(((place(from)?, place(to)?), *time));
        let measured = self.measured.iter().filter_map(pair).collect();
        let from_here = self.from_here.iter().filter_map(|(to, time)| Some((place(to)?, *time))).collect();
        RoundTrips { measured, from_here }
    }

    /// Returns the round trip between two nodes: the shorter of both directions, because what else a machine does only adds to it. `None` if
    /// one cannot connect to the other. If neither has measured it, it is at most as long as over this machine.
    pub fn between(&self, one: usize, other: usize) -> Option<Duration> {
        match (self.measured.get(&(one, other)), self.measured.get(&(other, one))) {
            (Some(there), Some(back)) => Some((*there)?.min((*back)?)),
            (Some(measured), None) | (None, Some(measured)) => *measured,
            (None, None) => Some(*self.from_here.get(&one)? + *self.from_here.get(&other)?),
        }
    }
}

/// The nodes for a job.
#[derive(Debug, Clone, PartialEq)]
pub struct Group {
    /// Their numbers, the best first.
    pub nodes: Vec<usize>,
    /// Their slots.
    pub slots: u32,
    /// How far they are from each other.
    pub distance: Distance,
    /// The longest round trip between two of them; zero for a single node.
    pub longest: Duration,
}

/// Why there is no group.
#[derive(Debug, Clone, PartialEq)]
pub struct Shortage {
    /// The largest group of one kind, if there is any node.
    pub largest: Option<(NodeKind, Group)>,
}

impl fmt::Display for Shortage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.largest {
            None => f.write_str("no node of the pool can be used"),
            Some((kind, group)) => {
                let (slots, nodes) = (count(group.slots as usize, "slot"), count(group.nodes.len(), "node"));
                write!(f, "the largest group has {slots}: {nodes} of {kind}")
            }
        }
    }
}

/// Picks the nodes for so many ranks. Nodes with a login go before others, and a closer group before better nodes: the slowest exchange
/// between two ranks sets the speed of all. Then GPUs go before processors, the better worst node, the better score and the clearly
/// shorter round trip: the same pool gives the same group.
///
/// # Errors
/// If no nodes of one kind, each of which can connect to each other one, have so many slots.
pub fn pick(candidates: &[Candidate], round_trips: &RoundTrips, ranks: u32) -> Result<Group, Shortage> {
    let kinds: BTreeSet<&NodeKind> = candidates.iter().map(|candidate| &candidate.kind).collect();
    let all = 0..candidates.len();
    let between: Vec<Vec<_>> =
        all.clone().map(|one| all.clone().map(|other| round_trips.between(one, other)).collect()).collect();
    let mut groups = Vec::new();
    for kind in &kinds {
        let mut nodes: Vec<usize> = all.clone().filter(|number| candidates[*number].kind == **kind).collect();
        nodes.sort_by_key(|number| candidates[*number].order());
        for distance in Distance::ALL {
            let search = Search { candidates, between: &between, distance, ranks };
            groups.extend(nodes.iter().map(|seed| (*kind, search.around(*seed, &nodes))));
        }
    }
    let order = |(kind, group): &(&NodeKind, Group)| {
        let nodes = group.nodes.iter().map(|number| candidates[*number].order());
        let worst = nodes.clone().map(|(_, grade, _)| grade).max();
        let without_login = nodes.clone().any(|(has_no_login, ..)| has_no_login);
        let score: u64 = nodes.map(|(.., Reverse(score))| score).sum();
        let mean = score / group.nodes.len() as u64;
        (without_login, group.distance, kind.gpu.is_none(), worst, Reverse(mean), group.longest.as_millis() / 10)
    };
    let enough = groups.iter().filter(|(_, group)| group.slots >= ranks).min_by_key(|group| order(group));
    match enough {
        Some((_, group)) => Ok(group.clone()),
        None => {
            let largest = groups.into_iter().min_by_key(|group| (Reverse(group.1.slots), order(group)));
            Err(Shortage { largest: largest.map(|(kind, group)| (kind.clone(), group)) })
        }
    }
}

/// Returns why a candidate was left out of the picked group.
pub fn reason(number: usize, candidates: &[Candidate], round_trips: &RoundTrips, group: &Group) -> String {
    let Candidate { kind, grade, has_login, .. } = &candidates[number];
    // a group that needs no other login goes before every other one
    if !has_login && group.nodes.iter().all(|member| candidates[*member].has_login) {
        return "you cannot log in to it".into();
    }
    if *kind != candidates[group.nodes[0]].kind {
        return format!("another kind: {kind}");
    }
    let trips = || group.nodes.iter().map(|member| round_trips.between(number, *member));
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

/// What is looked for around a node.
struct Search<'a> {
    candidates: &'a [Candidate],
    /// The round trips between each two candidates.
    between: &'a [Vec<Option<Duration>>],
    distance: Distance,
    ranks: u32,
}

impl Search<'_> {
    /// Returns the best nodes within the distance of each other and of `seed`, as many as are needed if there are. `nodes`: those of its
    /// kind, the best first.
    fn around(&self, seed: usize, nodes: &[usize]) -> Group {
        let slots = |number: usize| self.candidates[number].slots;
        let between = |one: usize, other: usize| self.between[one][other];
        let is_near = |one, other| between(one, other).is_some_and(|time| Distance::of(time) <= self.distance);
        let (mut group, mut found) = (vec![seed], slots(seed));
        for number in nodes.iter().copied().filter(|number| *number != seed) {
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
            if without >= self.ranks {
                group.remove(at);
                found = without;
            }
        }
        let pairs = group.iter().flat_map(|one| group.iter().map(move |other| (*one, *other)));
        let times = pairs.filter(|(one, other)| one < other).filter_map(|(one, other)| between(one, other));
        let longest = times.max().unwrap_or_default();
        Group { slots: found, distance: Distance::of(longest), longest, nodes: group }
    }
}

#[cfg(test)]
mod tests;
