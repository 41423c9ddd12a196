//! Chooses the best nodes of one kind.

use crate::model::grade::{Grade, NodeGrade, NodeKind};
use crate::text::nodeset;
use crate::text::units::count;
use schemars::JsonSchema;
use serde::Serialize;
use std::cmp::{Ordering, Reverse};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

/// The number of reasons for left-out nodes that a sentence lists.
const MOST_LISTED: usize = 3;

/// The reason why a job cannot have a node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Unavailability {
    /// The reason, e.g. `allocated to job J`.
    pub reason: String,
    /// Set if it ends by itself, so that waiting helps.
    pub is_temporary: bool,
}

/// A node that was left out of a choice.
#[derive(Debug, Clone, PartialEq, Serialize, JsonSchema)]
pub struct LeftOutNode {
    /// The node.
    pub node: String,
    /// The reason why it was left out.
    pub reason: String,
}

/// The chosen nodes.
#[derive(Debug, Clone, PartialEq, Serialize, JsonSchema)]
pub struct Choice {
    /// The nodes, the best first; all are of one kind.
    pub nodes: Vec<NodeGrade>,
    /// The others: those of the same kind first, the best of them first.
    pub left_out: Vec<LeftOutNode>,
}

/// The free nodes of a kind, the best first, and how many there are with those that are not free.
struct FreeNodes<'a> {
    kind: &'a NodeKind,
    free: Vec<&'a NodeGrade>,
    all: usize,
}

/// The nodes of a kind.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Supply {
    kind: String,
    /// The names of its free nodes.
    free: Vec<String>,
    /// The number of its nodes, free or not.
    all: usize,
}

/// The reason why no kind has as many free nodes as were requested.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Shortage {
    /// The number of requested nodes.
    wanted: usize,
    /// The nodes of each kind, the one with the most free nodes first.
    kinds: Vec<Supply>,
    /// The nodes that a job cannot have, with the reasons.
    unavailable: Vec<(String, String)>,
    /// Set if enough nodes will be free once the jobs and commands of others release theirs.
    pub may_pass: bool,
}

/// Chooses the `wanted` best nodes of one kind. Nodes in `unavailable` are left out; some of them may have no grade.
///
/// Nodes of a kind are ordered by their grade, score and evidence; equal ones keep their order in `graded`. A kind is
/// chosen for having the fewest nodes of grade F among its best, then for GPUs (the speed of a processor is measured in
/// another way), then for the speed of the slowest of them, or for the memory of all GPUs if not all were measured,
/// then for their number, its cores, and the grades.
///
/// # Errors
/// If no kind has enough free nodes.
pub fn best(
    graded: &[NodeGrade],
    unavailable: &BTreeMap<String, Unavailability>,
    wanted: usize,
) -> Result<Choice, Shortage> {
    let groups = groups(graded, unavailable);
    let mut enough: Vec<&FreeNodes<'_>> = groups.iter().filter(|group| group.free.len() >= wanted).collect();
    let all_measured = enough.iter().flat_map(|group| &group.free[..wanted]).all(|node| node.speed.is_some());
    enough.sort_by(|one, other| compare(one, other, wanted, all_measured));
    let Some(chosen) = enough.first() else { return Err(shortage(graded, unavailable, &groups, wanted)) };
    let nodes: Vec<NodeGrade> = chosen.free[..wanted].iter().map(|node| (*node).clone()).collect();
    let next = chosen.free[wanted..].iter().map(|node| LeftOutNode { node: node.node.clone(), reason: grade(node) });
    let others = groups.iter().filter(|group| group.kind != chosen.kind);
    let others = others.flat_map(|group| group.free.iter().map(|node| (node.node.clone(), group.kind.to_string())));
    let taken = unavailable.iter().map(|(node, why)| (node.clone(), why.reason.clone()));
    let rest = others.chain(taken).map(|(node, reason)| LeftOutNode { node, reason });
    let left_out = next.chain(rest).collect();
    Ok(Choice { nodes, left_out })
}

/// Groups the nodes by kind, in the order of the first node of each.
fn groups<'a>(graded: &'a [NodeGrade], unavailable: &BTreeMap<String, Unavailability>) -> Vec<FreeNodes<'a>> {
    let of_kind = nodeset::alike(graded.iter().map(|node| (&node.kind, node)));
    let group = |(kind, nodes): (&'a NodeKind, Vec<&'a NodeGrade>)| {
        let all = nodes.len();
        let mut free: Vec<_> = nodes.into_iter().filter(|node| !unavailable.contains_key(&node.node)).collect();
        free.sort_by(|one, other| quality(other).partial_cmp(&quality(one)).unwrap_or(Ordering::Equal));
        FreeNodes { kind, free, all }
    };
    of_kind.into_iter().map(group).collect()
}

/// Returns the key by which nodes of a kind are ordered; more is better.
fn quality(node: &NodeGrade) -> (Reverse<u8>, f64, u32) {
    (Reverse(node.grade.preference()), finite(node.score), node.evidence)
}

/// A number that can be compared.
fn finite(value: Option<f64>) -> f64 {
    value.filter(|value| value.is_finite()).unwrap_or_default()
}

/// Orders kinds that have enough free nodes, the better one first.
fn compare(one: &FreeNodes<'_>, other: &FreeNodes<'_>, wanted: usize, all_measured: bool) -> Ordering {
    let failing = |group: &FreeNodes<'_>| group.free[..wanted].iter().filter(|node| node.grade == Grade::F).count();
    let slowest = |group: &FreeNodes<'_>| match all_measured {
        true => group.free[..wanted].iter().map(|node| finite(node.speed)).fold(f64::INFINITY, f64::min),
        false => 0.0,
    };
    let size = |FreeNodes { kind, .. }: &FreeNodes<'_>| {
        (u64::from(kind.gpus) * kind.gpu_memory_mib.unwrap_or_default(), kind.gpus, kind.cores)
    };
    // the worst first
    let grades = |group: &FreeNodes<'_>| {
        group.free[..wanted].iter().rev().map(|node| node.grade.preference()).collect::<Vec<_>>()
    };
    (failing(one).cmp(&failing(other)))
        .then_with(|| other.kind.gpu.is_some().cmp(&one.kind.gpu.is_some()))
        .then_with(|| slowest(other).total_cmp(&slowest(one)))
        .then_with(|| size(other).cmp(&size(one)))
        .then_with(|| grades(one).cmp(&grades(other)))
        .then_with(|| one.kind.cmp(other.kind))
}

fn shortage(
    graded: &[NodeGrade],
    unavailable: &BTreeMap<String, Unavailability>,
    groups: &[FreeNodes<'_>],
    wanted: usize,
) -> Shortage {
    let supply = |group: &FreeNodes<'_>| Supply {
        kind: group.kind.to_string(),
        free: group.free.iter().map(|node| node.node.clone()).collect(),
        all: group.all,
    };
    let mut kinds: Vec<Supply> = groups.iter().map(supply).collect();
    kinds.sort_by_key(|supply| Reverse(supply.free.len()));
    let may_be_free = |node: &&NodeGrade| unavailable.get(&node.node).is_none_or(|why| why.is_temporary);
    let soon = nodeset::alike(graded.iter().filter(may_be_free).map(|node| (&node.kind, ())));
    Shortage {
        wanted,
        kinds,
        unavailable: unavailable.iter().map(|(node, why)| (node.clone(), why.reason.clone())).collect(),
        may_pass: soon.iter().any(|(_, nodes)| nodes.len() >= wanted),
    }
}

/// Formats a node's grade with its heaviest reason: `B: network: sends 71 % of the fastest of its kind`.
fn grade(node: &NodeGrade) -> String {
    match node.reasons.first() {
        Some(reason) if node.grade != Grade::New => format!("{}: {reason}", node.grade),
        _ => node.grade.to_string(),
    }
}

/// Formats nodes with their reasons, those with the same reason together, and at most [`MOST_LISTED`] reasons.
fn listed(nodes: impl IntoIterator<Item = (String, String)>) -> String {
    let alike = nodeset::alike(nodes.into_iter().map(|(node, reason)| (reason, node)));
    let shown = alike.iter().take(MOST_LISTED).map(|(reason, nodes)| format!("{} ({reason})", nodeset::fold(nodes)));
    let mut shown: Vec<String> = shown.collect();
    match alike.iter().skip(MOST_LISTED).map(|(_, nodes)| nodes.len()).sum() {
        0 => {}
        more => shown.push(format!("{more} more")),
    }
    shown.join(", ")
}

impl Choice {
    /// Returns the names of the nodes, the best first.
    pub fn names(&self) -> Vec<String> {
        self.nodes.iter().map(|node| node.node.clone()).collect()
    }

    /// Returns the kind of all of them.
    pub fn kind(&self) -> NodeKind {
        self.nodes.first().map(|node| node.kind.clone()).unwrap_or_default()
    }

    /// Returns a warning about chosen nodes that fail checks or lose jobs.
    pub fn warning(&self) -> Option<String> {
        let failing: Vec<_> = self.nodes.iter().filter(|node| node.grade == Grade::F).collect();
        let why = listed(failing.iter().map(|node| (node.node.clone(), grade(node))));
        (!failing.is_empty()).then(|| format!("took {why}: no better node of this kind is free"))
    }
}

impl fmt::Display for Choice {
    /// Says which nodes were chosen and why, and why the next ones were not.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let chosen = listed_in_order(self.nodes.iter().map(|node| (node.node.clone(), grade(node))));
        write!(f, "the best {} of {}: {chosen}", count(self.nodes.len(), "node"), self.kind())?;
        if self.left_out.is_empty() {
            return Ok(());
        }
        let others = self.left_out.iter().map(|other| (other.node.clone(), other.reason.clone()));
        write!(f, "; left out: {}", listed(others))
    }
}

/// Formats nodes in their order, neighbours with the same text together: `node2,node1 (A), node3 (B: slow)`.
fn listed_in_order(nodes: impl Iterator<Item = (String, String)>) -> String {
    let mut runs: Vec<(Vec<String>, String)> = Vec::new();
    for (node, text) in nodes {
        match runs.last_mut() {
            Some((names, last)) if *last == text => names.push(node),
            _ => runs.push((vec![node], text)),
        }
    }
    runs.iter().map(|(names, text)| format!("{} ({text})", nodeset::fold(names))).collect::<Vec<_>>().join(", ")
}

impl Shortage {
    /// Returns the next step.
    pub fn hint(&self) -> String {
        let most = self.kinds.first().map_or(0, |supply| supply.free.len());
        let fewer = (most > 0).then(|| format!("lower it to {most}"));
        let wait = self.may_pass.then(|| "wait with --wait".to_owned());
        let several = self.kinds.iter().map(|supply| supply.free.len()).sum::<usize>() >= self.wanted;
        let by_name = several.then(|| "name nodes of several kinds with --on".to_owned());
        let other = "hvdctl status shows why nodes cannot be used".to_owned();
        let steps: Vec<String> = [wait, fewer, by_name].into_iter().flatten().collect();
        if steps.is_empty() { other } else { steps.join(", or ") }
    }
}

impl fmt::Display for Shortage {
    /// Says how many nodes of each kind are free, and why the others are not.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let nodes = count(self.wanted, "free node");
        write!(f, "no kind of node has {nodes}")?;
        for Supply { kind, free, all } in &self.kinds {
            write!(f, "\n  {kind}: {} of {all} free", free.len())?;
            if !free.is_empty() {
                write!(f, " ({})", nodeset::fold(free))?;
            }
        }
        let known: BTreeSet<_> = self.unavailable.iter().cloned().collect();
        if known.is_empty() { Ok(()) } else { write!(f, "\n  not free: {}", listed(known)) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn gpus(name: &str, gpus: u32, gib: u64) -> NodeKind {
        let gpu_memory_mib = Some(gib * 1024);
        NodeKind { gpu: Some(name.into()), gpus, gpu_memory_mib, driver: Some(580), cores: 64 }
    }

    fn h200() -> NodeKind {
        gpus("H200", 8, 140)
    }

    /// A node of grade A to F, or without any evidence.
    fn node(name: &str, kind: &NodeKind, grade: Grade, score: f64) -> NodeGrade {
        let is_new = grade == Grade::New;
        let reasons = if matches!(grade, Grade::A | Grade::New) { vec![] } else { vec!["slow network".to_owned()] };
        NodeGrade {
            node: name.into(),
            kind: kind.clone(),
            grade,
            score: (!is_new).then_some(score),
            reasons,
            evidence: if is_new { 0 } else { 5 },
            speed: None,
        }
    }

    fn none() -> BTreeMap<String, Unavailability> {
        BTreeMap::new()
    }

    fn taken(nodes: &[(&str, &str, bool)]) -> BTreeMap<String, Unavailability> {
        let why = |reason: &str, is_temporary| Unavailability { reason: reason.into(), is_temporary };
        nodes.iter().map(|(node, reason, is_temporary)| ((*node).into(), why(reason, *is_temporary))).collect()
    }

    #[test]
    fn a_new_node_comes_between_one_that_is_usable_and_one_that_is_slow() {
        let graded = [
            node("f", &h200(), Grade::F, 0.2),
            node("new", &h200(), Grade::New, 0.0),
            node("d", &h200(), Grade::D, 0.5),
            node("c", &h200(), Grade::C, 0.7),
            node("a2", &h200(), Grade::A, 0.97),
            node("a1", &h200(), Grade::A, 0.99),
            node("b", &h200(), Grade::B, 0.9),
        ];
        let names = |wanted| best(&graded, &none(), wanted).unwrap().names();
        assert_eq!(names(7), ["a1", "a2", "b", "c", "new", "d", "f"]);
        assert_eq!(names(2), ["a1", "a2"]);
    }

    #[test]
    fn equal_nodes_keep_their_order() {
        let graded: Vec<_> = (1..12).rev().map(|n| node(&format!("node{n}"), &h200(), Grade::New, 0.0)).collect();
        assert_eq!(best(&graded, &none(), 3).unwrap().names(), ["node11", "node10", "node9"]);
        let mut known = graded.clone();
        known[7].grade = Grade::A;
        assert_eq!(best(&known, &none(), 2).unwrap().names(), ["node4", "node11"]);
        // more evidence counts where the score is the same
        let mut proved: Vec<_> = (1..4).map(|n| node(&format!("node{n}"), &h200(), Grade::A, 1.0)).collect();
        proved[2].evidence = 9;
        assert_eq!(best(&proved, &none(), 2).unwrap().names(), ["node3", "node1"]);
    }

    #[test]
    fn the_choice_says_which_and_why_and_why_not_the_next_ones() {
        let small = NodeKind { cores: 16, ..NodeKind::default() };
        let graded = [
            node("node1", &h200(), Grade::A, 0.98),
            node("node2", &h200(), Grade::A, 0.99),
            node("node3", &h200(), Grade::B, 0.9),
            node("node4", &h200(), Grade::C, 0.7),
            node("node5", &h200(), Grade::A, 1.0),
            node("node6", &small, Grade::A, 1.0),
        ];
        let unavailable = taken(&[("node5", "allocated to job j1", true), ("node7", "unreachable", false)]);
        let choice = best(&graded, &unavailable, 3).unwrap();
        assert_eq!(
            choice.to_string(),
            "the best 3 nodes of 8 x H200 140 GiB, driver 580, 64 cores: node[1-2] (A), node3 (B: slow network); left out: \
             node4 (C: slow network), node6 (16 cores), node5 (allocated to job j1), 1 more"
        );
        assert_eq!((choice.warning(), choice.left_out.len()), (None, 4));
        let alone = best(&graded[..1], &none(), 1).unwrap();
        assert_eq!(alone.to_string(), "the best 1 node of 8 x H200 140 GiB, driver 580, 64 cores: node1 (A)");
    }

    #[test]
    fn a_failing_node_is_taken_only_where_there_is_no_other_with_a_warning() {
        let (large, small) = (h200(), gpus("V100", 4, 32));
        let graded = [
            node("node1", &large, Grade::A, 1.0),
            node("node2", &large, Grade::F, 0.1),
            node("node3", &small, Grade::D, 0.5),
            node("node4", &small, Grade::D, 0.4),
        ];
        let choice = best(&graded, &none(), 2).unwrap();
        assert_eq!((choice.names(), choice.warning()), (vec!["node3".into(), "node4".into()], None));
        let choice = best(&graded[..3], &none(), 2).unwrap();
        assert_eq!(choice.names(), ["node1", "node2"]);
        let warning = choice.warning().unwrap();
        assert_eq!(warning, "took node2 (F: slow network): no better node of this kind is free");
    }

    #[test]
    fn of_several_kinds_the_faster_one_is_taken_else_the_larger_one() {
        let (large, small) = (h200(), gpus("V100", 8, 32));
        let cores = NodeKind { cores: 256, ..NodeKind::default() };
        let mut graded = [
            node("cpu", &cores, Grade::A, 1.0),
            node("small", &small, Grade::A, 1.0),
            node("large", &large, Grade::C, 0.7),
        ];
        assert_eq!(best(&graded, &none(), 1).unwrap().names(), ["large"]);
        assert_eq!(best(&graded[..2], &none(), 1).unwrap().names(), ["small"]);
        // only some are measured, which says nothing about the others
        graded[1].speed = Some(1.0);
        assert_eq!(best(&graded, &none(), 1).unwrap().names(), ["large"]);
        (graded[0].speed, graded[2].speed) = (Some(1.0), Some(0.6));
        assert_eq!(best(&graded, &none(), 1).unwrap().names(), ["small"]);
    }

    #[test]
    fn a_shortage_says_how_many_of_each_kind_are_free_and_what_to_do() {
        let cores = NodeKind { cores: 16, ..NodeKind::default() };
        let graded = [
            node("node1", &h200(), Grade::A, 1.0),
            node("node2", &h200(), Grade::A, 1.0),
            node("node3", &h200(), Grade::A, 1.0),
            node("node4", &cores, Grade::A, 1.0),
        ];
        let shortage = |unavailable: &_, wanted| best(&graded, unavailable, wanted).unwrap_err();
        let busy = taken(&[("node3", "allocated to job j1", true), ("node5", "unreachable", false)]);
        let error = shortage(&busy, 3);
        assert_eq!(
            error.to_string(),
            "no kind of node has 3 free nodes\n  8 x H200 140 GiB, driver 580, 64 cores: 2 of 3 free (node[1-2])\n  \
             16 cores: 1 of 1 free (node4)\n  not free: node3 (allocated to job j1), node5 (unreachable)"
        );
        assert!(error.may_pass);
        assert_eq!(error.hint(), "wait with --wait, or lower it to 2, or name nodes of several kinds with --on");
        let error = shortage(&taken(&[("node3", "drained by ana", false)]), 4);
        assert_eq!((error.may_pass, error.hint()), (false, "lower it to 2".into()));
        let error = best(&[], &taken(&[("node1", "unreachable", false)]), 1).unwrap_err();
        assert_eq!(error.to_string(), "no kind of node has 1 free node\n  not free: node1 (unreachable)");
        assert_eq!(error.hint(), "hvdctl status shows why nodes cannot be used");
    }

    fn any_node() -> impl Strategy<Value = NodeGrade> {
        let grades = [Grade::A, Grade::B, Grade::C, Grade::D, Grade::F, Grade::New];
        let parts = (0..6usize, 0..3u32, prop::option::of(0.0..1.0f64), prop::option::of(any::<f64>()), 0..3u32);
        parts.prop_map(move |(grade, cores, score, speed, evidence)| {
            let kind = NodeKind { cores, ..NodeKind::default() };
            NodeGrade { score, speed, evidence, ..node("", &kind, grades[grade], 0.0) }
        })
    }

    proptest! {
        #[test]
        fn the_chosen_nodes_are_free_and_of_one_kind_and_none_that_was_left_is_better(
            mut graded in prop::collection::vec(any_node(), 0..12), used in prop::collection::vec(any::<bool>(), 12), wanted in 1usize..5
        ) {
            graded.iter_mut().enumerate().for_each(|(i, node)| node.node = format!("node{i}"));
            let is_used = |node: &NodeGrade| used[node.node[4..].parse::<usize>().unwrap()];
            let why = || Unavailability { reason: "busy".into(), is_temporary: true };
            let unavailable: BTreeMap<_, _> =
                graded.iter().filter(|node| is_used(node)).map(|node| (node.node.clone(), why())).collect();
            let free_of = |kind: &NodeKind| graded.iter().filter(|node| node.kind == *kind && !is_used(node)).count();
            match best(&graded, &unavailable, wanted) {
                Ok(choice) => {
                    prop_assert_eq!(choice.nodes.len(), wanted);
                    prop_assert_eq!(choice.nodes.len() + choice.left_out.len(), graded.len());
                    let kind = choice.kind();
                    prop_assert!(choice.nodes.iter().all(|node| node.kind == kind && !is_used(node)));
                    let worst = choice.nodes.iter().map(|node| node.grade.preference()).max().unwrap();
                    let names = choice.names();
                    let left = graded.iter().filter(|node| node.kind == kind && !is_used(node) && !names.contains(&node.node));
                    for node in left { prop_assert!(node.grade.preference() >= worst); }
                }
                Err(shortage) => {
                    prop_assert!(graded.iter().all(|node| free_of(&node.kind) < wanted));
                    prop_assert!(!shortage.hint().is_empty());
                }
            }
        }
    }
}
