//! Any roles on any nodes.

use super::*;
use proptest::prelude::*;
use std::collections::BTreeSet;
use std::sync::LazyLock;

fn room(number: usize, slots: u32, gpus: Option<u32>) -> Room {
    Room { node: format!("n{number}"), slots, gpus }
}

fn rooms(slots: &[u32]) -> Vec<Room> {
    slots.iter().enumerate().map(|(number, slots)| room(number, *slots, Some(*slots))).collect()
}

fn role(name: &str, size: RoleSize) -> RoleShape<'_> {
    RoleShape { name, size, gpus: 1, beside: None, nodes: None }
}

/// The ranks of each role by node, as `n0 2 1, n1 2 0`.
fn placed(rooms: &[Room], roles: &[RoleShape<'_>]) -> Result<String, String> {
    let placement = place_roles(rooms, roles, "").map_err(|error| error.to_string())?;
    let shares = placement.shares.iter().map(|share| {
        let counts = share.roles.iter().map(ToString::to_string).collect::<Vec<_>>();
        format!("{} {}", share.node, counts.join(" "))
    });
    Ok(shares.collect::<Vec<_>>().join(", "))
}

#[test]
fn groups_get_nodes_in_order_and_roles_beside_share_them() {
    use RoleSize::{Nodes, PerNode, Ranks};
    let (nodes, beside) = (rooms(&[4, 4, 4, 4]), |size| RoleShape { beside: Some(0), ..role("b", size) });
    for (roles, expected) in [
        (vec![role("a", Ranks(4)), role("b", Ranks(2))], "n0 4 0, n1 0 2"),
        (vec![role("a", Ranks(5)), role("b", Ranks(2))], "n0 4 0, n1 1 0, n2 0 2"),
        // what is beside comes first, so that both fit; each node of the group has ranks of its first role
        (vec![role("a", Ranks(4)), beside(Ranks(2))], "n0 3 1, n1 1 1"),
        (vec![role("a", Ranks(3)), beside(Ranks(2))], "n0 2 1, n1 1 1"),
        (vec![role("a", Ranks(2)), beside(Ranks(2))], "n0 2 2"),
        (vec![role("a", Nodes { nodes: 2, ranks: None }), beside(PerNode(1))], "n0 3 1, n1 3 1"),
        (vec![role("a", Nodes { nodes: 2, ranks: Some(1) }), beside(Ranks(3))], "n0 1 2, n1 1 1"),
        (vec![role("a", PerNode(2)), role("b", Ranks(5))], "n0 2 0, n1 2 0, n2 0 4, n3 0 1"),
        (vec![role("a", Ranks(1)), role("b", PerNode(4))], "n0 1 0, n1 0 4, n2 0 4, n3 0 4"),
        // a rank without GPUs takes nothing
        (vec![RoleShape { gpus: 0, ..role("a", Ranks(9)) }, role("b", Ranks(4))], "n0 9 0, n1 0 4"),
        (vec![role("a", Ranks(8)), RoleShape { gpus: 0, ..beside(Ranks(1)) }], "n0 4 1, n1 4 0"),
        (vec![RoleShape { gpus: 2, ..role("a", Ranks(3)) }, role("b", Ranks(1))], "n0 2 0, n1 1 0, n2 0 1"),
    ] {
        assert_eq!(placed(&nodes, &roles).as_deref(), Ok(expected), "{roles:?}");
    }
    // a node that is too small for one role may serve another
    let roles = [RoleShape { gpus: 2, ..role("a", Ranks(1)) }, role("b", Ranks(1))];
    assert_eq!(placed(&rooms(&[1, 2]), &roles).as_deref(), Ok("n0 0 1, n1 1 0"));
    // without GPUs slots are counted
    let slots = [room(0, 5, None), room(1, 5, None)];
    assert_eq!(placed(&slots, &[RoleShape { gpus: 2, ..role("a", Ranks(4)) }]).as_deref(), Ok("n0 2, n1 2"));
}

#[test]
fn roles_that_may_have_fewer_nodes_come_first() {
    use RoleSize::{Nodes, PerNode, Ranks};
    let nodes = rooms(&[4, 4, 4, 4]);
    let (first, last, two) = (names([0]), names([2, 3]), names([0, 1]));
    let on = |nodes, role| RoleShape { nodes: Some(nodes), ..role };
    for (roles, expected) in [
        (vec![on(&last, role("a", Ranks(5))), role("b", Ranks(2))], "n0 0 2, n2 4 0, n3 1 0"),
        // the first role leaves the node that only the other may have
        (vec![role("a", Ranks(4)), on(&first, role("b", Ranks(2)))], "n0 0 2, n1 4 0"),
        (vec![on(&two, role("a", Ranks(4))), on(&first, role("b", Ranks(2)))], "n0 0 2, n1 4 0"),
        // what shares nodes has those that both may have
        (vec![on(&two, role("a", Ranks(2))), RoleShape { beside: Some(0), ..role("b", Ranks(2)) }], "n0 2 2"),
        (vec![role("a", Ranks(2)), RoleShape { beside: Some(0), ..on(&last, role("b", Ranks(2))) }], "n2 2 2"),
        // each has all of its own
        (vec![on(&two, role("a", PerNode(2))), on(&last, role("b", PerNode(1)))], "n0 2 0, n1 2 0, n2 0 1, n3 0 1"),
        (
            vec![role("a", PerNode(1)), on(&last, role("b", Nodes { nodes: 1, ranks: None }))],
            "n0 1 0, n1 1 0, n2 0 4, n3 1 0",
        ),
    ] {
        assert_eq!(placed(&nodes, &roles).as_deref(), Ok(expected), "{roles:?}");
    }
    for (roles, words) in [
        (
            vec![on(&first, role("a", Ranks(1))), RoleShape { beside: Some(0), ..on(&last, role("b", Ranks(1))) }],
            "the role b shares the nodes of a (`beside`), which may have none of n[2-3]\n  hint: leave b out of --on",
        ),
        (
            vec![on(&first, role("a", Nodes { nodes: 2, ranks: None }))],
            "the role a needs 2 nodes with room for 1 rank; of the nodes left that --on gives it these have it: n0",
        ),
        (
            vec![on(&two, role("a", PerNode(1))), on(&first, role("b", PerNode(1)))],
            "the roles b and a would both get all nodes that are left",
        ),
    ] {
        let why = placed(&nodes, &roles).unwrap_err();
        assert!(why.contains(words), "{why}");
    }
}

#[test]
fn what_does_not_fit_names_nodes_and_numbers() {
    use RoleSize::{Nodes, PerNode, Ranks};
    let nodes = rooms(&[2, 2]);
    let beside = |size| RoleShape { beside: Some(0), ..role("b", size) };
    for (roles, words) in [
        (vec![role("a", Ranks(5))], "the role a has 5 ranks, but the nodes left have room for fewer (n0: 2, n1: 2)"),
        (
            vec![role("a", Ranks(3)), role("b", Ranks(1))],
            "the role b needs a node with room for 1 rank; of the nodes left \
            these have it: none",
        ),
        (vec![role("a", Ranks(1)), beside(Ranks(2))], "n0 has 2 GPUs, too few for 1 rank of a and 2 ranks of b"),
        (vec![role("a", Ranks(2)), beside(PerNode(3))], "n0 has 2 GPUs, too few for 3 ranks of b"),
        (vec![role("a", Ranks(3)), beside(Ranks(2))], "room for fewer next to b (n0: 1, n1: 1)"),
        (vec![role("a", Nodes { nodes: 3, ranks: None })], "the role a needs 3 nodes with room for 1 rank"),
        (
            vec![role("a", Nodes { nodes: 2, ranks: Some(2) }), beside(Ranks(1))],
            "n0 has 2 GPUs, too few for 2 ranks of a \
            and 1 rank of b",
        ),
        (vec![role("a", PerNode(1)), role("b", PerNode(1))], "a and b would both get all nodes that are left"),
        (vec![RoleShape { gpus: 3, ..role("a", Ranks(1)) }], "a needs a node with room for 1 rank with 3 GPUs"),
    ] {
        let why = placed(&nodes, &roles).unwrap_err();
        assert!(why.contains(words), "{why}");
    }
}

fn names(numbers: impl IntoIterator<Item = usize>) -> Vec<String> {
    numbers.into_iter().map(|number| format!("n{number}")).collect()
}

/// The names of each set of the nodes.
static SETS: LazyLock<Vec<Vec<String>>> =
    LazyLock::new(|| (0..128usize).map(|set| names((0..7).filter(|node| set >> node & 1 == 1))).collect());

/// A row of the table that the test of the Python programs reads too: slots and GPUs of each node; name, size, GPUs of a
/// rank, and the role whose nodes it shares, of each role.
#[derive(serde::Deserialize)]
struct Row {
    nodes: Vec<(u32, Option<u32>)>,
    roles: Vec<(String, RoleSize, u32, Option<usize>)>,
    placed: Option<String>,
    error: Option<String>,
}

#[test]
fn roles_are_placed_as_in_an_allocation_of_slurm() {
    let rows: Vec<Row> = serde_json::from_str(include_str!("../../../tests/role_placement.json")).unwrap();
    for Row { nodes, roles, placed, error } in rows {
        let rooms: Vec<Room> =
            nodes.iter().enumerate().map(|(number, (slots, gpus))| room(number, *slots, *gpus)).collect();
        let shape = |(name, size, gpus, beside)| RoleShape { name, size, gpus, beside, nodes: None };
        let shapes = roles.iter().map(|(name, size, gpus, beside)| shape((name.as_str(), *size, *gpus, *beside)));
        let shapes: Vec<_> = shapes.collect();
        let found = self::placed(&rooms, &shapes);
        let first_line = found.map_err(|error| error.lines().next().unwrap_or_default().to_owned());
        assert_eq!(first_line, placed.ok_or_else(|| error.unwrap_or_default()), "{roles:?}");
    }
}

fn any_rooms() -> impl Strategy<Value = Vec<Room>> {
    let of_node = (0u32..9, prop::option::of(0u32..9));
    prop::collection::vec(of_node, 0..7).prop_map(|nodes| {
        nodes.into_iter().enumerate().map(|(number, (slots, gpus))| room(number, slots, gpus)).collect()
    })
}

fn any_roles() -> impl Strategy<Value = Vec<RoleShape<'static>>> {
    let size = prop_oneof![
        4 => (1u32..9).prop_map(RoleSize::Ranks),
        1 => (1u32..4, prop::option::of(1u32..4)).prop_map(|(nodes, ranks)| RoleSize::Nodes { nodes, ranks }),
        1 => (1u32..4).prop_map(RoleSize::PerNode),
    ];
    let nodes = prop_oneof![2 => Just(None), 1 => (1usize..128).prop_map(|set| Some(SETS[set].as_slice()))];
    prop::collection::vec((size, 0u32..4, prop::option::of(any::<prop::sample::Index>()), nodes), 1..5).prop_map(
        |roles| {
            let role =
                |(number, (size, gpus, beside, nodes)): (usize, (RoleSize, u32, Option<prop::sample::Index>, _))| {
                    // of an earlier role, so that there is no circle
                    let beside = beside.filter(|_| number > 0).map(|index| index.index(number));
                    let beside = beside.filter(|_| !matches!(size, RoleSize::Nodes { .. }));
                    RoleShape { name: ["a", "b", "c", "d"][number], size, gpus, beside, nodes }
                };
            roles.into_iter().enumerate().map(role).collect()
        },
    )
}

/// The first role of the group of a role.
fn base(roles: &[RoleShape<'_>], role: usize) -> usize {
    roles[role].beside.map_or(role, |other| base(roles, other))
}

proptest! {
    #[test]
    fn all_ranks_are_placed_or_none(rooms in any_rooms(), roles in any_roles()) {
        let Ok(placement) = place_roles(&rooms, &roles, "") else { return Ok(()) };
        let nodes_of = |role: usize| -> BTreeSet<&str> {
            placement.shares.iter().filter(|share| share.roles[role] > 0).map(|share| share.node.as_str()).collect()
        };
        for (number, role) in roles.iter().enumerate() {
            let on_each = placement.shares.iter().map(|share| share.roles[number]);
            let on_each: Vec<u32> = on_each.filter(|ranks| *ranks > 0).collect();
            let group = nodes_of(base(&roles, number));
            match role.size {
                RoleSize::Ranks(ranks) => prop_assert_eq!(on_each.iter().sum::<u32>(), ranks),
                RoleSize::Nodes { nodes, ranks } => {
                    prop_assert_eq!(on_each.len(), nodes as usize);
                    prop_assert!(ranks.is_none_or(|ranks| on_each.iter().all(|on| *on == ranks)));
                }
                RoleSize::PerNode(ranks) => {
                    prop_assert!(on_each.iter().all(|on| *on == ranks));
                    prop_assert_eq!(on_each.len(), group.len());
                }
            }
            prop_assert!(nodes_of(number).is_subset(&group), "{role:?} is on other nodes than the role beside it");
            let is_allowed = |node: &&str| role.nodes.is_none_or(|nodes| nodes.iter().any(|name| name == node));
            prop_assert!(nodes_of(number).iter().all(is_allowed), "{role:?} is on a node that it may not have");
            if let (Some(_), Some(most), RoleSize::Ranks(ranks)) = (role.beside, on_each.iter().max(), role.size) {
                let is_everywhere = ranks as usize >= group.len();
                let least = if is_everywhere { on_each.iter().min().copied() } else { None };
                prop_assert!(most - least.unwrap_or_default() <= 1, "{on_each:?} is not even");
            }
            for other in 0..roles.len() {
                let is_apart = nodes_of(number).is_disjoint(&nodes_of(other));
                prop_assert!(base(&roles, number) == base(&roles, other) || is_apart);
            }
        }
    }

    #[test]
    fn no_slot_and_no_gpu_is_given_twice(rooms in any_rooms(), roles in any_roles()) {
        let Ok(placement) = place_roles(&rooms, &roles, "") else { return Ok(()) };
        for (position, share) in placement.shares.iter().enumerate() {
            let room = rooms.iter().find(|room| room.node == share.node).unwrap();
            prop_assert_eq!(share.ranks, share.roles.iter().sum::<u32>());
            prop_assert!(share.ranks > 0);
            prop_assert_eq!(share.first, placement.shares[..position].iter().map(|share| share.ranks).sum::<u32>());
            let counts = || share.roles.iter().copied().zip(roles.iter().map(|role| role.gpus));
            let taken: u32 = counts().map(|(ranks, gpus)| ranks * gpus).sum();
            let ranks: u32 = counts().filter(|(_, gpus)| *gpus > 0).map(|(ranks, _)| ranks).sum();
            prop_assert!(taken <= room.gpus.unwrap_or(room.slots));
            prop_assert!(ranks <= room.slots);
            let gpus: Vec<String> = (0..room.gpus.unwrap_or(0)).map(|gpu| format!("GPU-{gpu}")).collect();
            let parts = divide(&gpus, counts());
            let all: Vec<&String> = parts.iter().flat_map(|part| part.iter()).collect();
            prop_assert_eq!(all.iter().collect::<BTreeSet<_>>().len(), all.len());
            if room.gpus.is_some() {
                for (part, (ranks, gpus)) in parts.iter().zip(counts()) {
                    prop_assert_eq!(part.len() as u32, ranks * gpus);
                }
            }
        }
    }

    #[test]
    fn a_role_of_its_own_has_the_fewest_nodes_in_order(rooms in any_rooms(), ranks in 1u32..20, gpus in 1u32..4) {
        let fitting: Vec<(&str, u32)> =
            rooms.iter().map(|room| (room.node.as_str(), room.most(gpus))).filter(|(_, most)| *most > 0).collect();
        let roles = [RoleShape { gpus, ..role("a", RoleSize::Ranks(ranks)) }];
        match place_roles(&rooms, &roles, "") {
            Err(_) => prop_assert!(fitting.iter().map(|(_, most)| most).sum::<u32>() < ranks),
            Ok(placement) => {
                let nodes: Vec<&str> = placement.shares.iter().map(|share| share.node.as_str()).collect();
                let first: Vec<&str> = fitting.iter().map(|(node, _)| *node).take(nodes.len()).collect();
                prop_assert_eq!(&nodes, &first);
                let without_last = fitting[..nodes.len() - 1].iter().map(|(_, most)| most).sum::<u32>();
                prop_assert!(without_last < ranks, "one node fewer would do");
            }
        }
    }
}
