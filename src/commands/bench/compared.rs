//! What is compared with something else than the cluster itself.

use super::files::Files;
use crate::checks::bench::Measurements;
use crate::checks::bench::baseline::Comparison;
use crate::checks::bench::collectives::Collectives;
use crate::checks::bench::limits::below_minimum;

/// What is compared with something else than the cluster itself.
#[derive(Debug, Default)]
pub(in super::super) struct Compared {
    /// With an earlier benchmark.
    pub(in super::super) baseline: Option<Comparison>,
    /// What the inventory requires and the cluster does not reach.
    pub(in super::super) below: Option<String>,
    /// What was not compared.
    pub(in super::super) notes: Vec<String>,
}

impl Compared {
    pub(super) fn new(
        files: &Files<'_>,
        measured: &Measurements,
        collectives: Option<&Collectives>,
        min_busbw: Option<u64>,
    ) -> Compared {
        let baseline = files.baseline.as_ref().map(|baseline| baseline.compare(measured, collectives));
        let below = min_busbw.zip(collectives).and_then(|(minimum, all)| below_minimum(minimum, all.best_allreduce()));
        let mut notes = baseline.as_ref().map(|compared| compared.notes.clone()).unwrap_or_default();
        if min_busbw.is_some() && collectives.is_none() {
            notes.push("bench.min_busbw is not checked: no collectives were measured".to_owned());
        }
        Compared { baseline, below, notes }
    }

    pub(super) fn is_good(&self) -> bool {
        self.below.is_none() && self.baseline.as_ref().is_none_or(Comparison::is_good)
    }

    /// Returns what is too slow, as sentences.
    pub(super) fn findings(&self) -> Vec<String> {
        let slower = self.baseline.iter().flat_map(|compared| &compared.slower).map(|slower| slower.text.clone());
        self.below.iter().cloned().chain(slower).collect()
    }
}
