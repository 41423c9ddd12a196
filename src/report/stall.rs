//! Finds when a GPU was in use all the time and took little power.
//!
//! "In use" only means that a kernel ran. A kernel of NCCL that waits for the other ranks runs, too, and computes
//! nothing: the GPU shows 100 % and takes little more power than at rest. A program of small kernels looks similar, so
//! the report says what was seen and not why.

/// Percent of use from which a GPU counts as in use all the time.
const USE: f64 = 95.0;
/// The share of the power limit up to which it takes little power. An H200 that multiplies matrices takes 0.99 of it,
/// and 0.11 at rest (`tests/fixtures/nvidia-smi`).
const POWER: f64 = 0.3;
/// Seconds for which that has to last: the driver's first reading of a burst has the power of the time before it.
const LEAST: f64 = 30.0;
/// Seconds between two samples after which nothing is known of the time between them, at least.
const GAP: f64 = 60.0;

/// Follows one GPU.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Stalls {
    /// First and last sample of a time that has not ended.
    open: Option<(f64, f64)>,
    found: Vec<(f64, f64)>,
}

impl Stalls {
    /// Takes a sample: percent of use, power and power limit in watts.
    pub fn add(&mut self, time: f64, use_percent: f64, power: f64, limit: f64) {
        let is_stalled = use_percent >= USE && power <= limit * POWER;
        if let Some((start, last)) = self.open {
            // samples are rare in a job that has run for weeks
            if is_stalled && time - last <= GAP.max(last - start) {
                self.open = Some((start, time));
                return;
            }
            self.close();
        }
        self.open = is_stalled.then_some((time, time));
    }

    fn close(&mut self) {
        self.found.extend(self.open.take().filter(|(start, end)| end - start >= LEAST));
    }

    /// Returns whether such a time goes on.
    pub fn is_open(&self) -> bool {
        self.open.is_some_and(|(start, last)| last - start >= LEAST)
    }

    /// Returns the times found, as start and end.
    pub fn found(&self) -> Vec<(f64, f64)> {
        let mut all = self.clone();
        all.close();
        all.found
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(samples: &[(f64, f64, f64)]) -> Vec<(f64, f64)> {
        let mut stalls = Stalls::default();
        samples.iter().for_each(|(time, used, power)| stalls.add(*time, *used, *power, 700.0));
        stalls.found()
    }

    #[test]
    fn use_without_power_for_a_while_is_found() {
        let every = |from: u32, to: u32, used: f64, power: f64| {
            (from..to).step_by(5).map(move |time| (f64::from(time), used, power))
        };
        let computes = || every(0, 100, 100.0, 690.0);
        assert_eq!(found(&computes().collect::<Vec<_>>()), []);
        let stalled: Vec<_> =
            computes().chain(every(100, 200, 100.0, 130.0)).chain(every(200, 300, 100.0, 690.0)).collect();
        assert_eq!(found(&stalled), [(100.0, 195.0)]);
        // one that goes on, one that is too short, and a GPU at rest
        assert_eq!(found(&computes().chain(every(100, 200, 98.0, 200.0)).collect::<Vec<_>>()), [(100.0, 195.0)]);
        assert_eq!(found(&computes().chain(every(100, 120, 100.0, 130.0)).collect::<Vec<_>>()), []);
        assert_eq!(found(&every(0, 300, 0.0, 75.0).collect::<Vec<_>>()), []);
        // nothing is known of a day without samples
        assert_eq!(found(&[(0.0, 100.0, 100.0), (86_400.0, 100.0, 100.0)]), []);
    }
}
