//! Groups by hand, and simulated pools of two sites.

use super::*;

/// Numbers that a seed determines (SplitMix64).
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// From 0 to 1.
    fn share(&mut self) -> f64 {
        (self.next() >> 11) as f64 / (1u64 << 53) as f64
    }

    fn below(&mut self, end: u64) -> u64 {
        self.next() % end
    }
}

fn kind(gpu: &str) -> NodeKind {
    NodeKind { gpu: Some(gpu.into()), gpus: 4, gpu_memory_mib: Some(81_920), driver: Some(580), cores: 64 }
}

fn candidate(gpu: &str, grade: Grade, score: f64) -> Candidate {
    let (name, owner) = (String::new(), "ana".to_owned());
    Candidate { name, owner, may_be_master: true, kind: kind(gpu), grade, score: Some(score), slots: 4 }
}

/// A node of another owner.
fn of(owner: &str, grade: Grade, score: f64) -> Candidate {
    Candidate { owner: owner.into(), may_be_master: false, ..candidate("H100", grade, score) }
}

fn ms(time: f64) -> Duration {
    Duration::from_secs_f64(time / 1000.0)
}

/// All round trips as a function has them, in milliseconds.
fn all(n: usize, time: impl Fn(usize, usize) -> f64) -> RoundTrips {
    let mut trips = RoundTrips::default();
    for from in 0..n {
        (0..n).filter(|to| *to != from).for_each(|to| trips.add(from, to, Some(ms(time(from, to)))));
    }
    trips
}

#[test]
fn a_close_group_goes_before_better_nodes_and_these_before_others() {
    let grades = [Grade::A, Grade::A, Grade::B, Grade::B, Grade::C, Grade::New];
    let nodes: Vec<Candidate> = grades.map(|grade| candidate("H100", grade, 0.9)).to_vec();
    // the two best are far from each other
    let trips = all(6, |a, b| if a % 2 == b % 2 { 0.4 } else { 30.0 });
    let group = pick(&nodes, &trips, 8).unwrap();
    assert_eq!((group.nodes, group.slots, group.distance), (vec![0, 2], 8, Distance::Lan));
    let group = pick(&nodes, &trips, 16).unwrap();
    assert_eq!((group.nodes, group.distance, group.longest), (vec![0, 1, 2, 3], Distance::Wan, ms(30.0)));
    assert_eq!(pick(&nodes, &trips, 3).unwrap().nodes, [0]);
    assert_eq!(pick(&nodes, &all(6, |_, _| 5.0), 8).unwrap().distance, Distance::Region);
    assert_eq!(
        [1.9, 2.0, 19.9, 20.0].map(|time| Distance::of(ms(time))),
        [Distance::Lan, Distance::Region, Distance::Region, Distance::Wan]
    );
}

#[test]
fn kinds_are_not_mixed_and_a_larger_node_goes_before_two() {
    let mut nodes = vec![candidate("H100", Grade::A, 1.0), candidate("V100", Grade::A, 1.0)];
    nodes.push(candidate("V100", Grade::D, 0.3));
    let trips = all(3, |_, _| 0.2);
    assert_eq!(pick(&nodes, &trips, 8).unwrap().nodes, [1, 2]);
    let shortage = pick(&nodes, &trips, 12).unwrap_err().to_string();
    assert_eq!(
        shortage,
        "the largest group with a master has 8 slots: 2 nodes of 4 x V100 80 GiB, driver 580, 64 cores"
    );
    assert_eq!(pick(&[], &trips, 1).unwrap_err().to_string(), "no node of the pool can be the master");
    // of the same kind the larger node makes the smaller one needless
    let mut nodes = vec![candidate("H100", Grade::A, 1.0); 3];
    nodes[1].slots = 8;
    assert_eq!(pick(&nodes, &trips, 8).unwrap().nodes, [1]);
}

#[test]
fn a_liar_is_never_the_master_and_is_as_far_as_others_measure() {
    // eve says that she is the best, and near everybody; the others know better
    let mut nodes = vec![candidate("H100", Grade::D, 0.3), candidate("H100", Grade::C, 0.5)];
    (nodes[0].name, nodes[1].name) = ("a".into(), "b".into());
    nodes.extend([of("bob", Grade::B, 0.9), of("bob", Grade::B, 0.9), of("eve", Grade::A, 1.0)]);
    let trips = all(5, |from, to| {
        if from == 4 {
            0.1
        } else if to == 4 {
            50.0
        } else {
            0.4
        }
    });
    assert_eq!([trips.between(0, 4, &nodes), trips.between(4, 0, &nodes)], [Some(ms(50.0)); 2]);
    let group = pick(&nodes, &trips, 16).unwrap();
    assert_eq!((group.nodes, group.distance), (vec![0, 2, 3, 1], Distance::Lan), "the master is the first by name");
    let group = pick(&nodes, &trips, 20).unwrap();
    assert_eq!((group.nodes[0], group.distance, group.longest), (0, Distance::Wan, ms(50.0)));
    assert!(pick(&nodes, &trips, 4).unwrap().nodes.iter().all(|node| nodes[*node].owner == "ana"));
    // two machines of one owner have no reason to lie to each other
    nodes.iter_mut().for_each(|node| node.owner = "ana".into());
    assert_eq!(trips.between(0, 4, &nodes), Some(ms(0.1)));
    nodes.iter_mut().for_each(|node| node.may_be_master = false);
    assert_eq!(pick(&nodes, &trips, 4), Err(PoolShortage::NoMaster));
    // the one that was named, whatever it is
    nodes[2].may_be_master = true;
    assert_eq!(pick(&nodes, &trips, 8).unwrap().nodes[0], 2);
}

#[test]
fn a_needless_node_is_kept_if_it_is_the_only_master() {
    let mut nodes = vec![candidate("H100", Grade::D, 0.1), of("bob", Grade::A, 1.0)];
    nodes[1].slots = 8;
    assert_eq!(pick(&nodes, &all(2, |_, _| 0.2), 8).unwrap().nodes, [0, 1]);
}

#[test]
fn nobody_keeps_others_out_by_what_it_says_of_its_links() {
    let nodes = [
        candidate("H100", Grade::B, 0.9),
        of("bob", Grade::B, 0.9),
        of("cai", Grade::B, 0.9),
        of("eve", Grade::A, 1.0),
    ];
    let mut trips = all(4, |_, _| 0.2);
    // eve really is near ana, and says that she reaches nobody else
    [1, 2].into_iter().for_each(|to| trips.add(3, to, None));
    assert_eq!(pick(&nodes, &trips, 12).unwrap().nodes, [0, 1, 2]);
}

#[test]
fn each_candidate_is_left_out_for_the_reason_that_counts() {
    let mut nodes = vec![candidate("H100", Grade::A, 1.0); 6];
    nodes[3].grade = Grade::C;
    nodes[5].kind = kind("V100");
    let mut trips = all(6, |a, b| if a.max(b) == 4 { 30.0 } else { 0.2 });
    let group = pick(&nodes, &trips, 8).unwrap();
    assert_eq!(group.nodes, [0, 1]);
    let why = |number, trips: &RoundTrips| reason(number, &nodes, trips, &group);
    assert_eq!(why(2, &trips), "not needed (grade A)");
    assert_eq!(why(3, &trips), "not needed (grade C)");
    assert_eq!(why(4, &trips), "30.00 ms from the group");
    assert_eq!(why(5, &trips), "another kind: 4 x V100 80 GiB, driver 580, 64 cores");
    trips.add(3, 0, None);
    assert_eq!(why(3, &trips), "no connection between it and a node of the group");
    assert_eq!([Grade::F, Grade::D].map(obstacle), [Some("its grade is F"), None]);
}

#[test]
fn nodes_that_cannot_connect_are_in_no_group_and_what_was_not_measured_is_estimated() {
    let nodes = vec![candidate("H100", Grade::A, 1.0); 3];
    let mut trips = all(3, |_, _| 0.2);
    trips.add(1, 0, None);
    assert_eq!(trips.between(0, 1, &nodes), None);
    assert_eq!(pick(&nodes, &trips, 8).unwrap().nodes, [0, 2]);
    assert!(pick(&nodes, &trips, 12).is_err());

    let mut trips = RoundTrips::default();
    [(0, 0.5), (1, 0.7)].into_iter().for_each(|(node, time)| trips.add_from_here(node, ms(time)));
    trips.add(0, 2, Some(ms(4.0)));
    let between = |nodes: &[Candidate]| [(0, 1), (2, 0), (1, 2)].map(|(one, other)| trips.between(one, other, nodes));
    assert_eq!(between(&nodes), [Some(ms(1.2)), Some(ms(4.0)), None]);
    assert_eq!(pick(&nodes, &trips, 8).unwrap().nodes, [0, 1]);
    assert!(!trips.are_complete(3) && all(3, |_, _| 1.0).are_complete(3));

    // of different owners, what one has not measured is as far as over this machine, whatever the other one says
    let mut nodes = nodes;
    nodes[2].owner = "bob".into();
    assert_eq!(between(&nodes), [Some(ms(1.2)), None, None]);
    trips.add_from_here(2, ms(9.0));
    assert_eq!(trips.between(0, 2, &nodes), Some(ms(9.5)));
}

/// A pool of two sites. One site has enough nodes of one kind; of every other kind there are enough only on both sites
/// together, and those have better grades.
struct Pool {
    nodes: Vec<Candidate>,
    sites: Vec<usize>,
    trips: RoundTrips,
    /// The site and the kind of the right group.
    right: (usize, NodeKind),
    ranks: u32,
}

/// The round trip between the sites in milliseconds.
const BETWEEN_SITES: f64 = 50.0;

impl Pool {
    fn new(seed: u64) -> Pool {
        let random = &mut Random(seed);
        let wanted = 3 + random.below(6) as usize;
        let right = (random.below(2) as usize, kind(["H200", "A100"][random.below(2) as usize]));
        let (mut nodes, mut sites) = (Vec::new(), Vec::new());
        for (site, name) in [(0, "H200"), (0, "A100"), (1, "H200"), (1, "A100")] {
            let is_right = (site, kind(name)) == right;
            let usable = if is_right { wanted + 1 + random.below(3) as usize } else { wanted - 1 };
            for _ in 0..usable {
                let grade = match is_right {
                    true => [Grade::B, Grade::C, Grade::New, Grade::D][random.below(4) as usize],
                    false => Grade::A,
                };
                nodes.push(candidate(name, grade, random.share()));
                sites.push(site);
            }
        }
        // their order says nothing
        for at in (1..nodes.len()).rev() {
            let other = random.below(at as u64 + 1) as usize;
            nodes.swap(at, other);
            sites.swap(at, other);
        }
        let mut trips = RoundTrips::default();
        for from in 0..nodes.len() {
            for to in (0..nodes.len()).filter(|to| *to != from) {
                let tries = [(); 2].map(|()| measured(sites[from] == sites[to], random));
                trips.add(from, to, tries.into_iter().flatten().reduce(f64::min).map(ms));
            }
        }
        Pool { nodes, sites, trips, right, ranks: 4 * wanted as u32 }
    }

    /// Returns whether the picked group is the right one.
    fn is_right(&self, trips: &RoundTrips) -> bool {
        let Ok(group) = pick(&self.nodes, trips, self.ranks) else { return false };
        let is_of_right = |number: &usize| {
            let node = &self.nodes[*number];
            (self.sites[*number], &node.kind) == (self.right.0, &self.right.1)
        };
        group.nodes.iter().all(is_of_right) && group.slots == self.ranks && group.distance == Distance::Lan
    }
}

/// One try of a node: what it measures in milliseconds, or nothing in the time that it has. A path of 20 Mbit/s delays
/// by up to 50 packets of 1500 bytes that others send; a busy machine answers late now and then; a lost packet is sent
/// again after a second.
fn measured(is_near: bool, random: &mut Random) -> Option<f64> {
    let path = if is_near { 0.2 + 0.6 * random.share() } else { BETWEEN_SITES + 30.0 * random.share() };
    let busy = if random.share() < 0.1 { 1.0 + 40.0 * random.share() } else { -0.1 * (1.0 - random.share()).ln() };
    let lost = if random.share() < 0.01 { 1000.0 } else { 0.0 };
    Some(path + busy + lost).filter(|time| *time < 2000.0)
}

#[test]
fn the_right_site_is_picked_for_every_seed() {
    let pools: Vec<(u64, Pool)> = (1..=300).map(|seed| (seed, Pool::new(seed))).collect();
    let seeds_where = |is_right: bool, trips: &dyn Fn(&Pool) -> RoundTrips| -> Vec<u64> {
        let found = pools.iter().filter(|(_, pool)| pool.is_right(&trips(pool)) == is_right);
        found.map(|(seed, _)| *seed).collect()
    };
    assert_eq!(seeds_where(false, &|pool| pool.trips.clone()), [0u64; 0]);
    // without distances the better grades would go before
    assert_eq!(seeds_where(true, &|pool| all(pool.nodes.len(), |_, _| 1.0)), [0u64; 0]);
}
