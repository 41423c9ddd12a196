//! Comparisons with something other than the cluster itself.

use crate::bench::collectives::Collectives;
use crate::bench::measurements::Measurements;
use crate::bench::verdict::baseline::{Baseline, Comparison};
use crate::bench::verdict::limits::below_minimum;

/// Comparisons with something other than the cluster itself.
#[derive(Debug, Default)]
pub struct Compared {
    /// With an earlier benchmark.
    pub baseline: Option<Comparison>,
    /// A minimum of the inventory that the cluster does not reach, as a sentence.
    pub below: Option<String>,
    /// Comparisons that were not possible, as sentences.
    pub notes: Vec<String>,
}

impl Compared {
    /// Compares with an earlier benchmark, and with the least bus bandwidth of an allreduce in bytes a second.
    pub fn new(
        baseline: Option<&Baseline>,
        measured: &Measurements,
        collectives: Option<&Collectives>,
        min_busbw: Option<u64>,
    ) -> Compared {
        let baseline = baseline.map(|baseline| baseline.compare(measured, collectives));
        let below = min_busbw.zip(collectives).and_then(|(minimum, all)| below_minimum(minimum, all.best_allreduce()));
        let mut notes = baseline.as_ref().map(|compared| compared.notes.clone()).unwrap_or_default();
        if min_busbw.is_some() && collectives.is_none() {
            notes.push("bench.min_busbw is not checked: no collectives were measured".to_owned());
        }
        Compared { baseline, below, notes }
    }

    /// Returns whether nothing is too slow.
    pub fn is_good(&self) -> bool {
        self.below.is_none() && self.baseline.as_ref().is_none_or(Comparison::is_good)
    }

    /// Returns what is too slow, as sentences.
    pub fn findings(&self) -> Vec<String> {
        let slower = self.baseline.iter().flat_map(|compared| &compared.slower).map(|slower| slower.text.clone());
        self.below.iter().cloned().chain(slower).collect()
    }
}
