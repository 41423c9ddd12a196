//! The number of a job's pods, and the resources that each of them requests. All pods of a job are alike.

use super::{ExportRequest, PodRequest};
use crate::error::Error;
use crate::inventory::{Gpus, Node};
use crate::launch::role_placement::Room;
use crate::model::role_size::RoleSize;
use crate::node::network::known_slots;
use crate::start::roles::JobRole;
use crate::text::units::count;
use std::collections::BTreeSet;

/// The pods of a job.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Shape {
    /// The number of pods.
    pub(super) pods: u32,
    /// The ranks of each.
    pub(super) ranks: u32,
    /// The GPUs of each.
    pub(super) gpus: u32,
}

/// Returns the pods of a job: as few as its nodes would be, or one for each rank.
///
/// # Errors
/// Slots or GPUs that only the nodes know, or that differ between them; a number of ranks that gives unequal pods.
pub(super) fn shape(request: &ExportRequest<'_>, one_rank_each: bool) -> Result<Shape, Error> {
    let ranks = request.ranks()?;
    let (slots, gpus) = of_node(request.nodes, &request.pods)?;
    if one_rank_each {
        return Ok(Shape { pods: ranks, ranks: 1, gpus: gpus.div_ceil(slots) });
    }
    let pods = ranks.div_ceil(slots);
    if !ranks.is_multiple_of(pods) {
        let smaller = ranks / slots * slots;
        return Err(Error::usage(
            format!(
                "{} do not fill {} with {slots} slots each, but all pods of a job are alike",
                count(ranks as usize, "rank"),
                count(pods as usize, "pod"),
            ),
            format!(
                "-np {smaller} or {} fill all pods; --slots K changes the ranks of each",
                smaller.saturating_add(slots)
            ),
        ));
    }
    let of_pod = ranks / pods;
    // as many GPUs as its share of the slots
    let gpus = (u64::from(gpus) * u64::from(of_pod)).div_ceil(u64::from(slots)) as u32;
    Ok(Shape { pods, ranks: of_pod, gpus })
}

/// Returns the pods of a role: as few as its nodes would be, or one for each rank.
///
/// # Errors
/// As [`shape`]; a number of nodes that only hvdctl knows; a rank that needs more than a pod has.
pub(super) fn of_role(request: &ExportRequest<'_>, role: &JobRole, one_rank_each: bool) -> Result<Shape, Error> {
    let (name, each) = (&role.project.name, role.gpus());
    let (slots, gpus) = of_node(request.nodes, &request.pods)?;
    let most = Room { node: String::new(), slots, gpus: (gpus > 0).then_some(gpus) }.most(each);
    if most == 0 {
        let what = if gpus > 0 { count(gpus as usize, "GPU") } else { count(slots as usize, "slot") };
        return Err(Error::usage(
            format!("a rank of the role {name} needs {each}, but a pod has {what}"),
            "lower `gpus` of the role in hvdctl.toml, or raise --gpus-per-node or --slots",
        ));
    }
    let of_pod = |ranks: u32| Shape { pods: 0, ranks, gpus: if gpus > 0 { each.saturating_mul(ranks) } else { 0 } };
    let (pods, ranks) = match role.size {
        RoleSize::Ranks(ranks) => (ranks.div_ceil(most), ranks),
        RoleSize::Nodes { nodes, ranks } => {
            let ranks = ranks.unwrap_or(if each == 0 { slots } else { most });
            if ranks > most {
                return Err(Error::usage(
                    format!(
                        "{} of the role {name} on each node do not fit into a pod, which has room for {most}",
                        count(ranks as usize, "rank")
                    ),
                    "lower `ranks_per_node` of the role in hvdctl.toml, or raise --gpus-per-node or --slots",
                ));
            }
            (nodes, nodes.saturating_mul(ranks))
        }
        RoleSize::PerNode(_) => {
            return Err(Error::usage(
                format!("the role {name} has `ranks_per_node` without `nodes`, and export contacts no node"),
                format!("-np {name}=N sets the number of its ranks"),
            ));
        }
    };
    if one_rank_each {
        return Ok(Shape { pods: ranks, ..of_pod(1) });
    }
    if !ranks.is_multiple_of(pods) {
        return Err(Error::usage(
            format!(
                "{} of the role {name} do not fill {} with room for {most} each, but all pods of a role are alike",
                count(ranks as usize, "rank"),
                count(pods as usize, "pod"),
            ),
            format!("-np {name}={} fills all pods; --slots K changes the ranks of each", ranks / most * most),
        ));
    }
    Ok(Shape { pods, ..of_pod(ranks / pods) })
}

/// Returns the slots and GPUs of a node, which the options give or else the inventory.
fn of_node(nodes: &[Node], pods: &PodRequest) -> Result<(u32, u32), Error> {
    let given = pods.accelerators()?.map(|(_, count)| count);
    let gpus = match given {
        Some(gpus) => gpus,
        None => same(nodes, "GPUs", "--gpus-per-node K", |node| match (&node.gpus, node.slots) {
            (Gpus::Count(gpus), _) => Some(*gpus),
            (Gpus::List(list), _) => Some(list.len() as u32),
            (Gpus::Auto | Gpus::All, _) => None,
        })?,
    };
    let slots = match (pods.slots, given) {
        (Some(slots), _) => slots,
        // as for `train`: that many GPUs, or slots
        (None, Some(gpus @ 1..)) => gpus,
        (None, _) => same(nodes, "slots", "--slots K", known_slots)?,
    };
    Ok((slots.max(1), gpus))
}

/// Returns a number that all nodes have in common.
fn same(nodes: &[Node], what: &str, option: &str, of: impl Fn(&Node) -> Option<u32>) -> Result<u32, Error> {
    if let Some(node) = nodes.iter().find(|node| of(node).is_none()) {
        return Err(Error::usage(
            format!("{}: the inventory does not say how many {what} it has, and export contacts no node", node.name),
            format!("give {option}, or set `gpus` (a number, or \"none\") and `slots` in the inventory"),
        ));
    }
    let numbers: BTreeSet<u32> = nodes.iter().filter_map(&of).collect();
    match (numbers.len(), numbers.first()) {
        (1, Some(number)) => Ok(*number),
        _ => {
            let each: Vec<String> =
                nodes.iter().map(|node| format!("{}: {}", node.name, of(node).unwrap_or_default())).collect();
            Err(Error::usage(
                format!("the nodes differ in their {what} ({}), but all pods of a job are alike", each.join(", ")),
                format!("give {option}, or select nodes of one kind with --on"),
            ))
        }
    }
}
