//! The comparison of a cluster with the minimum that its inventory requires.

use crate::text::units::gigabytes;

/// Compares the best bus bandwidth of allreduce with `bench.min_busbw`, both in bytes a second. Returns what is wrong,
/// as a sentence.
pub fn below_minimum(minimum: u64, best: Option<f64>) -> Option<String> {
    let least = minimum as f64;
    match best {
        Some(best) if best >= least => None,
        Some(best) => Some(format!(
            "allreduce has a bus bandwidth of only {}, the inventory requires {} (bench.min_busbw)",
            gigabytes(best),
            gigabytes(least)
        )),
        None => Some(format!(
            "no allreduce was measured, but the inventory requires a bus bandwidth of {} (bench.min_busbw)",
            gigabytes(least)
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench::collectives::{Collectives, Exchange};
    use crate::model::collective::{Collective, Dtype};

    fn exchange(collective: Collective, bytes: u64, bus_bandwidth: f64) -> Exchange {
        let (dtype, algorithm_bandwidth) = (Dtype::Float32, bus_bandwidth);
        Exchange { collective, dtype, bytes, time_us: 1.0, algorithm_bandwidth, bus_bandwidth, ring_share: None }
    }

    #[test]
    fn the_best_size_of_allreduce_counts() {
        let exchanges = vec![
            exchange(Collective::AllReduce, 1 << 10, 0.01),
            exchange(Collective::AllReduce, 1 << 24, 1.1),
            exchange(Collective::AllReduce, 1 << 28, 0.9),
            exchange(Collective::Broadcast, 1 << 28, 2.0),
        ];
        let measured = Collectives { exchanges, ..Collectives::default() };
        assert_eq!(measured.best_allreduce(), Some(1.1e9));
        let below = |minimum| below_minimum(minimum, measured.best_allreduce());
        assert_eq!([below(1_000_000_000), below(1_100_000_000)], [None, None]);
        assert_eq!(
            below(1_250_000_000).unwrap(),
            "allreduce has a bus bandwidth of only 1.10 GB/s, the inventory requires 1.25 GB/s (bench.min_busbw)"
        );
    }

    #[test]
    fn what_was_not_measured_is_not_reached() {
        assert_eq!(Collectives::default().best_allreduce(), None);
        assert!(below_minimum(1, None).unwrap().starts_with("no allreduce was measured, but the inventory requires"));
        assert!(below_minimum(1, Some(f64::NAN)).is_some());
    }
}
