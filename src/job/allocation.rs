//! The resources of a node that a job has, and those that remain.
//!
//! A job has its nodes exclusively, unless it was started with a number of GPUs per node (of slots, if there are no GPUs): then it has
//! that many, and other jobs of that kind may have the rest.

use crate::job::record::Record;
pub use crate::model::allocation::{Allocation, AllocationConflict, Resources};
use crate::node::facts::Gpu;

/// Returns the allocation of a job on a node, or `None` if it has no ranks there.
pub fn allocation(record: &Record, node: &str) -> Option<Allocation> {
    let share = record.placement.shares.iter().find(|share| share.node == node && share.ranks > 0)?;
    Some(Allocation {
        job: record.id.clone(),
        name: record.name.clone(),
        project: record.project.clone(),
        port: record.port,
        operator: record.operator.clone(),
        resources: share.shared.then(|| Resources { slots: share.ranks, gpus: share.gpus.clone() }),
    })
}

/// Returns the resources that a job with `per_node` GPUs or slots may get on a node with these slots and GPUs.
pub fn left(slots: u32, gpus: &[Gpu], allocations: &[Allocation], per_node: u32) -> Resources {
    let parts: Option<Vec<&Resources>> = allocations.iter().map(|allocation| allocation.resources.as_ref()).collect();
    let Some(parts) = parts else { return Resources::default() };
    let taken = parts.iter().fold(0u32, |sum, part| sum.saturating_add(part.slots));
    let slots = slots.saturating_sub(taken).min(per_node);
    if gpus.is_empty() {
        return Resources { slots, gpus: Vec::new() };
    }
    let free = gpus.iter().map(|gpu| &gpu.uuid).filter(|uuid| !parts.iter().any(|part| part.gpus.contains(uuid)));
    let gpus: Vec<String> = free.take(slots as usize).cloned().collect();
    Resources { slots: gpus.len() as u32, gpus }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn gpus(count: u32) -> Vec<Gpu> {
        (0..count).map(|index| Gpu { index, name: "a GPU".into(), uuid: format!("GPU-{index}") }).collect()
    }

    fn allocated(job: &str, resources: Option<Resources>) -> Allocation {
        Allocation {
            job: job.into(),
            name: "digits".into(),
            project: None,
            port: None,
            operator: "ana@desk".into(),
            resources,
        }
    }

    #[test]
    fn a_whole_node_leaves_nothing_and_a_part_the_rest() {
        let whole = [allocated("j1", None)];
        assert_eq!(left(4, &gpus(4), &whole, 1), Resources::default());
        let part = [allocated("j1", Some(Resources { slots: 2, gpus: vec!["GPU-0".into(), "GPU-2".into()] }))];
        assert_eq!(left(4, &gpus(4), &part, 1), Resources { slots: 1, gpus: vec!["GPU-1".into()] });
        assert_eq!(left(4, &gpus(4), &part, 9).gpus, ["GPU-1", "GPU-3"]);
        // no GPUs: slots are counted
        let slots = [allocated("j1", Some(Resources { slots: 2, gpus: Vec::new() }))];
        assert_eq!(left(3, &[], &slots, 2), Resources { slots: 1, gpus: Vec::new() });
        // even with more slots than GPUs, a GPU belongs to one job
        let one = [allocated("j1", Some(Resources { slots: 1, gpus: vec!["GPU-0".into()] }))];
        assert_eq!(left(2, &gpus(1), &one, 1).slots, 0);
    }

    proptest! {
        #[test]
        fn no_two_jobs_ever_have_a_gpu_or_a_slot_in_common(
            slots in 0u32..9, count in 0u32..9, asked in prop::collection::vec(1u32..5, 0..12)
        ) {
            let gpus = gpus(count);
            let mut allocations = Vec::new();
            for (i, per_node) in asked.into_iter().enumerate() {
                let part = left(slots, &gpus, &allocations, per_node);
                prop_assert!(part.slots <= per_node);
                if part.slots > 0 {
                    allocations.push(allocated(&format!("j{i}"), Some(part)));
                }
            }
            let parts = || allocations.iter().filter_map(|allocation| allocation.resources.as_ref());
            prop_assert!(parts().map(|part| part.slots).sum::<u32>() <= slots);
            let mut all: Vec<&String> = parts().flat_map(|part| &part.gpus).collect();
            prop_assert_eq!(all.len() as u32, if count == 0 { 0 } else { parts().map(|part| part.slots).sum() });
            all.sort();
            all.dedup();
            prop_assert_eq!(all.len(), parts().map(|part| part.gpus.len()).sum::<usize>());
        }
    }
}
