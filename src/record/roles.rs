//! The roles of ranks whose stacks were read.

use crate::launch::placement::Placement;
use crate::model::stack::{AwaitedRank, RankStack};

/// Returns a stack as a node gave it with the role of its rank. The ranks for which that waits are then numbered in the
/// job: its library numbers them in the role.
pub fn named(mut stack: RankStack, placement: &Placement) -> RankStack {
    stack.role = placement.role(stack.rank);
    if stack.role.is_some() {
        let of = stack.rank;
        stack.waits_for.iter_mut().for_each(|AwaitedRank { rank, role, .. }| {
            *rank = placement.in_role_of(of, *rank);
            *role = placement.role(*rank);
        });
    }
    stack
}
