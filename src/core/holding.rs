//! Who has what of a node: what the runs under way hold, and what is left for another.
//!
//! A run has its nodes for itself, unless it was started with so many GPUs (or slots, where there are no GPUs) per node: then
//! it has those, and others of that kind may have the rest.

use crate::core::facts::Gpu;
use crate::core::hostset;
use crate::core::job::Record;
use crate::core::slots::Share;
use serde::Serialize;
use std::fmt;

/// What a run has of a node.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Hold {
    /// The run's id.
    pub job: String,
    /// Its name.
    pub name: String,
    /// Its project, if it has one.
    #[serde(skip)]
    pub project: Option<String>,
    /// The port of its workers; none in records of hvdctl before that was written down.
    #[serde(skip)]
    pub port: Option<u16>,
    /// Who started it, `user@host`.
    pub operator: String,
    /// The GPUs and slots; none: the whole node.
    pub part: Option<Part>,
}

/// A part of a node.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct Part {
    /// How many slots.
    pub slots: u32,
    /// The UUIDs of the GPUs.
    pub gpus: Vec<String>,
}

/// What the run of this record has of a node; none where it has no ranks there.
pub fn hold(record: &Record, node: &str) -> Option<Hold> {
    let share = record.placement.shares.iter().find(|share| share.node == node && share.ranks > 0)?;
    Some(Hold {
        job: record.id.clone(),
        name: record.name.clone(),
        project: record.project.clone(),
        port: record.port,
        operator: record.operator.clone(),
        part: share.shared.then(|| Part { slots: share.ranks, gpus: share.gpus.clone() }),
    })
}

/// What a run with `per_node` GPUs or slots of each node may have of a node with so many slots and these GPUs.
pub fn left(slots: u32, gpus: &[Gpu], holds: &[Hold], per_node: u32) -> Part {
    let parts: Option<Vec<&Part>> = holds.iter().map(|hold| hold.part.as_ref()).collect();
    let Some(parts) = parts else { return Part::default() };
    let taken = parts.iter().fold(0u32, |sum, part| sum.saturating_add(part.slots));
    let slots = slots.saturating_sub(taken).min(per_node);
    if gpus.is_empty() {
        return Part { slots, gpus: Vec::new() };
    }
    let free = gpus.iter().map(|gpu| &gpu.uuid).filter(|uuid| !parts.iter().any(|part| part.gpus.contains(uuid)));
    let gpus: Vec<String> = free.take(slots as usize).cloned().collect();
    Part { slots: gpus.len() as u32, gpus }
}

/// Gives a run's share of a node the GPUs that are its alone.
pub fn share_out(share: &mut Share, mut part: Part) {
    part.gpus.truncate(share.ranks as usize);
    share.shared = true;
    share.gpus = part.gpus;
}

/// Runs in the way of another one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Held {
    /// What they have of which node; never empty.
    pub holds: Vec<(String, Hold)>,
    /// Selected nodes that nobody has anything of.
    pub free: Vec<String>,
}

impl Held {
    /// The next step.
    pub fn hint(&self) -> String {
        let job = self.holds.first().map_or("ID", |(_, hold)| hold.job.as_str());
        let free = match self.free.len() {
            0 => String::new(),
            _ => format!("; nobody has {0}: --on {0}", hostset::fold(&self.free)),
        };
        format!("--wait waits for its end, hvdctl stop {job} ends it{free}")
    }
}

impl fmt::Display for Held {
    /// A line for each run and what it has.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut told: Vec<(&Hold, Vec<String>)> = Vec::new();
        for (node, hold) in &self.holds {
            match told.iter_mut().find(|(other, _)| *other == hold) {
                Some((_, nodes)) => nodes.push(node.clone()),
                None => told.push((hold, vec![node.clone()])),
            }
        }
        let lines = told.iter().map(|(hold, nodes)| {
            let Hold { job, name, operator, part, .. } = hold;
            let it = if nodes.len() == 1 { "it" } else { "each" };
            let what = match part {
                None => format!("has {it} for itself"),
                Some(Part { slots, gpus }) if gpus.is_empty() => {
                    format!("has {slots} slot{} of {it}", if *slots == 1 { "" } else { "s" })
                }
                Some(Part { gpus, .. }) => format!("has {} of {it}", gpus.join(", ")),
            };
            format!("{}: the run {job} ({name}) of {operator} is under way there and {what}", hostset::fold(nodes))
        });
        f.write_str(&lines.collect::<Vec<_>>().join("\n"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn gpus(count: u32) -> Vec<Gpu> {
        (0..count).map(|index| Gpu { index, name: "a GPU".into(), uuid: format!("GPU-{index}") }).collect()
    }

    fn held(job: &str, part: Option<Part>) -> Hold {
        Hold { job: job.into(), name: "digits".into(), project: None, port: None, operator: "ana@desk".into(), part }
    }

    #[test]
    fn a_whole_node_leaves_nothing_and_a_part_the_rest() {
        let whole = [held("j1", None)];
        assert_eq!(left(4, &gpus(4), &whole, 1), Part::default());
        let part = [held("j1", Some(Part { slots: 2, gpus: vec!["GPU-0".into(), "GPU-2".into()] }))];
        assert_eq!(left(4, &gpus(4), &part, 1), Part { slots: 1, gpus: vec!["GPU-1".into()] });
        assert_eq!(left(4, &gpus(4), &part, 9).gpus, ["GPU-1", "GPU-3"]);
        // no GPUs: slots are counted
        let slots = [held("j1", Some(Part { slots: 2, gpus: Vec::new() }))];
        assert_eq!(left(3, &[], &slots, 2), Part { slots: 1, gpus: Vec::new() });
        // more slots than GPUs: a GPU is one run's alone all the same
        let one = [held("j1", Some(Part { slots: 1, gpus: vec!["GPU-0".into()] }))];
        assert_eq!(left(2, &gpus(1), &one, 1).slots, 0);
    }

    #[test]
    fn who_is_in_the_way_is_told_once_for_all_nodes() {
        let part = Part { slots: 1, gpus: Vec::new() };
        let held = Held {
            holds: vec![
                ("node1".into(), held("j1", None)),
                ("node2".into(), held("j1", None)),
                ("node3".into(), held("j2", Some(part))),
            ],
            free: vec!["node4".into(), "node5".into()],
        };
        assert_eq!(
            held.to_string(),
            "node[1-2]: the run j1 (digits) of ana@desk is under way there and has each for itself\n\
             node3: the run j2 (digits) of ana@desk is under way there and has 1 slot of it"
        );
        assert_eq!(
            held.hint(),
            "--wait waits for its end, hvdctl stop j1 ends it; nobody has node[4-5]: --on node[4-5]"
        );
    }

    proptest! {
        #[test]
        fn no_two_runs_ever_have_a_gpu_or_a_slot_in_common(
            slots in 0u32..9, count in 0u32..9, asked in prop::collection::vec(1u32..5, 0..12)
        ) {
            let gpus = gpus(count);
            let mut holds = Vec::new();
            for (i, per_node) in asked.into_iter().enumerate() {
                let part = left(slots, &gpus, &holds, per_node);
                prop_assert!(part.slots <= per_node);
                if part.slots > 0 {
                    holds.push(held(&format!("j{i}"), Some(part)));
                }
            }
            let parts = || holds.iter().filter_map(|hold| hold.part.as_ref());
            prop_assert!(parts().map(|part| part.slots).sum::<u32>() <= slots);
            let mut all: Vec<&String> = parts().flat_map(|part| &part.gpus).collect();
            prop_assert_eq!(all.len() as u32, if count == 0 { 0 } else { parts().map(|part| part.slots).sum() });
            all.sort();
            all.dedup();
            prop_assert_eq!(all.len(), parts().map(|part| part.gpus.len()).sum::<usize>());
        }
    }
}
