//! Samples of what ranks, nodes and GPUs use while a job runs, as the rank supervisors write them
//! (`src/scripts/programs/supervisor/samples.py`).
//!
//! The text of a frame begins with a letter for its kind, followed by numbers with spaces between them; `-` is a number
//! that a GPU does not have.

use crate::launch::placement::{Placement, Share};
use crate::model::role::RecordedRole;
pub use crate::model::usage::{GpuUsage, NodeUsage, RankUsage};
use std::collections::BTreeMap;

/// The most GPUs that are believed of a node: a job can write to its own samples.
pub const MOST_GPUS: u32 = 64;

/// One sample, or the description of what is sampled.
#[derive(Debug, Clone, PartialEq)]
pub enum Sample {
    /// The usage of a rank's processes since the sample before.
    Rank(RankUsage),
    /// The number of a rank among those on its node, from 0 on.
    Place(u32),
    /// The usage of the whole node since the sample before.
    Node(NodeUsage),
    /// The node.
    NodeDescription(NodeDescription),
    /// The usage of a GPU.
    Gpu {
        /// Its index in the container.
        index: u32,
        /// Its usage.
        usage: GpuUsage,
    },
    /// A GPU.
    GpuDescription {
        /// Its index in the container.
        index: u32,
        /// Its description.
        gpu: GpuDescription,
    },
    /// The reason why there are no samples of GPUs.
    Failure(String),
}

/// The description of a node.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct NodeDescription {
    /// Its cores.
    pub cores: u32,
    /// Its memory in MiB.
    pub memory_mib: f64,
    /// The version of Python that runs the supervisors.
    pub python: String,
    /// The version of its kernel.
    pub kernel: String,
}

/// The description of a GPU.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct GpuDescription {
    /// Its UUID.
    pub uuid: String,
    /// Its memory in MiB.
    pub memory_mib: Option<f64>,
    /// Its power limit in watts.
    pub limit_w: Option<f64>,
    /// The version of the driver.
    pub driver: String,
    /// The product.
    pub name: String,
}

/// Returns whether a GPU of a node is a job's, given the job's share of that node. On a node of several jobs the others
/// are not.
pub fn is_of_job(share: Option<&Share>, uuid: &str) -> bool {
    share.is_none_or(|share| share.gpus.is_empty() || share.gpus.iter().any(|own| own == uuid))
}

/// Returns the rank that uses a GPU of a job with this placement. `places`: the ranks by their places on the node, as far
/// as samples have them; `position`: that of the GPU among those of the job there.
pub fn rank_of_gpu(
    placement: &Placement,
    share: Option<&Share>,
    places: &BTreeMap<u32, u32>,
    uuid: &str,
    position: usize,
) -> Option<u32> {
    let allocated = share.and_then(|share| share.gpus.iter().position(|own| own == uuid));
    let place = u32::try_from(allocated.unwrap_or(position)).ok()?;
    let place = match share {
        Some(share) if !share.roles.is_empty() => place_of_gpu(&placement.roles, &share.roles, place)?,
        _ => place,
    };
    let placed = share.filter(|share| place < share.ranks).map(|share| share.first + place);
    places.get(&place).copied().or(placed)
}

/// Returns the place on a node of the rank of a role that has a GPU: the roles have them in their order, and the ranks of
/// each as many as the role says. `ranks`: those of each role on the node.
fn place_of_gpu(roles: &[RecordedRole], ranks: &[u32], gpu: u32) -> Option<u32> {
    let (mut left, mut place) = (gpu, 0);
    for (role, ranks) in roles.iter().zip(ranks) {
        let gpus = ranks.saturating_mul(role.gpus);
        if left < gpus {
            return Some(place + left / role.gpus);
        }
        (left, place) = (left - gpus, place + ranks);
    }
    None
}

impl Sample {
    /// Parses the text of a frame. A text of a kind or a form that a newer program writes is `None`.
    pub fn parse(text: &str) -> Option<Sample> {
        let (kind, rest) = text.split_once(' ')?;
        let words: Vec<&str> = rest.split(' ').collect();
        let number = |i: usize| words.get(i)?.parse().ok().filter(|number: &f64| number.is_finite() && *number >= 0.0);
        let word = |i: usize| words.get(i).map(|word| (*word).to_owned());
        Some(match kind {
            "r" => Sample::Rank(RankUsage {
                processor_percent: number(0)?,
                memory_mib: number(1)?,
                read_kib_s: number(2)?,
                written_kib_s: number(3)?,
            }),
            "R" => Sample::Place(rest.parse().ok()?),
            "n" => Sample::Node(NodeUsage {
                processor_percent: number(0)?,
                memory_mib: number(1)?,
                received_kib_s: number(2)?,
                sent_kib_s: number(3)?,
                read_kib_s: number(4)?,
                written_kib_s: number(5)?,
            }),
            "N" => Sample::NodeDescription(NodeDescription {
                cores: words[0].parse().ok()?,
                memory_mib: number(1)?,
                python: word(2)?,
                kernel: word(3)?,
            }),
            "g" => Sample::Gpu {
                index: words[0].parse().ok()?,
                usage: GpuUsage {
                    use_percent: number(1),
                    memory_mib: number(2),
                    power_w: number(3),
                    temperature_c: number(4),
                    sm_mhz: number(5),
                    memory_mhz: number(6),
                },
            },
            "G" => Sample::GpuDescription {
                index: words[0].parse().ok()?,
                gpu: GpuDescription {
                    uuid: word(1)?,
                    memory_mib: number(2),
                    limit_w: number(3),
                    driver: word(4)?,
                    name: words.get(5..).unwrap_or_default().join(" "),
                },
            },
            "e" => Sample::Failure(rest.to_owned()),
            _ => return None,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn each_kind_is_read() {
        let usage = RankUsage { processor_percent: 104.0, memory_mib: 20_480.0, read_kib_s: 0.0, written_kib_s: 12.0 };
        assert_eq!(Sample::parse("r 104 20480 0 12"), Some(Sample::Rank(usage)));
        assert_eq!(Sample::parse("R 3"), Some(Sample::Place(3)));
        let Some(Sample::Node(node)) = Sample::parse("n 50 1000 1 2 3 4") else { panic!() };
        assert_eq!((node.processor_percent, node.sent_kib_s, node.written_kib_s), (50.0, 2.0, 4.0));
        let Some(Sample::NodeDescription(node)) = Sample::parse("N 64 515000 3.11.2 6.1.0-13-amd64") else { panic!() };
        assert_eq!((node.cores, node.kernel.as_str()), (64, "6.1.0-13-amd64"));
        // a GPU without a power sensor
        let Some(Sample::Gpu { index: 1, usage }) = Sample::parse("g 1 100 883 - 49 1515 3201") else { panic!() };
        assert_eq!((usage.use_percent, usage.power_w, usage.memory_mhz), (Some(100.0), None, Some(3201.0)));
        let Some(Sample::GpuDescription { gpu, .. }) = Sample::parse("G 0 GPU-1 143771 700 580.1 NVIDIA H200 NVL")
        else {
            panic!()
        };
        assert_eq!((gpu.limit_w, gpu.name.as_str()), (Some(700.0), "NVIDIA H200 NVL"));
        assert_eq!(Sample::parse("e no driver"), Some(Sample::Failure("no driver".into())));
    }

    #[test]
    fn the_ranks_of_a_role_have_as_many_gpus_as_it_says() {
        use crate::model::role::Ends;
        let role = |name, gpus| RecordedRole { gpus, ..RecordedRole::example(name, Ends::Job) };
        let share = Share { ranks: 5, first: 3, roles: vec![2, 1, 2], ..Share::default() };
        let roles = vec![role("trainer", 1), role("coordinator", 0), role("generator", 2)];
        let placement = Placement { shares: vec![share.clone()], roles };
        let of = |places: &[(u32, u32)]| -> Vec<Option<u32>> {
            let places = places.iter().copied().collect();
            (0..7).map(|gpu| rank_of_gpu(&placement, Some(&share), &places, "GPU", gpu)).collect()
        };
        assert_eq!(of(&[]), [Some(3), Some(4), Some(6), Some(6), Some(7), Some(7), None]);
        assert_eq!(of(&[(3, 7), (4, 6)]), [Some(3), Some(4), Some(7), Some(7), Some(6), Some(6), None]);
        let without = Share { roles: Vec::new(), ..share };
        assert_eq!(rank_of_gpu(&placement, Some(&without), &BTreeMap::new(), "GPU", 4), Some(7));
    }

    #[test]
    fn what_cannot_be_is_left_out() {
        for text in
            ["", "r", "r 1 2 3", "r 1 2 3 inf", "r -1 2 3 4", "r nan 2 3 4", "R x", "z 1", "n 1", "N 1 2", "g x 1"]
        {
            assert_eq!(Sample::parse(text), None, "{text}");
        }
    }

    proptest! {
        #[test]
        fn arbitrary_texts_never_panic(text in ".{0,80}") {
            Sample::parse(&text);
        }
    }
}
