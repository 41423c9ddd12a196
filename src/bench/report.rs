//! The report of a benchmark: one [`BenchReport`], and a file for each format.

pub mod compared;
pub mod csv;
pub mod document;
mod heat_map;
pub mod plot;
mod ranks;
#[cfg(test)]
mod tests;
pub mod text;

use super::collectives::Collectives;
use super::measurements::Measurements;
use super::ranks::RankResults;
use super::verdict::NetworkVerdict;
use crate::text::result::ResultText;
use compared::Compared;

/// A format in which a benchmark is shown or stored. Each has a file of its own; `document` is that of `--json`, whose
/// documents all commands have.
pub trait BenchFormat {
    /// Formats what a benchmark has found.
    ///
    /// # Errors
    /// If the format cannot represent it.
    fn format(&self, report: &BenchReport<'_>) -> anyhow::Result<ResultText>;
}

/// The results of a benchmark.
#[derive(Clone, Copy)]
pub struct BenchReport<'a> {
    /// The measurements between the nodes.
    pub measured: &'a Measurements,
    /// The verdict on these measurements.
    pub verdict: &'a NetworkVerdict,
    /// The results of the ranks, if they measured anything.
    pub ranks: Option<&'a RankResults>,
    /// Comparisons with something other than the cluster itself.
    pub compared: &'a Compared,
}

impl<'a> BenchReport<'a> {
    /// Returns whether nothing is wrong or slow, and all was judged.
    pub fn is_good(&self) -> bool {
        let is_fine = |ranks: &RankResults| ranks.findings().is_empty() && ranks.unclear() == 0;
        self.verdict.is_good() && self.compared.is_good() && self.ranks.is_none_or(is_fine)
    }

    /// Returns the names of the nodes.
    fn names(&self) -> Vec<&'a str> {
        self.measured.nodes.iter().map(|node| node.name.as_str()).collect()
    }

    fn collectives(&self) -> Option<&'a Collectives> {
        self.ranks.map(|ranks| &ranks.answers.collectives)
    }
}
