//! A benchmark as text: tables, what was found, and the verdict.

use super::{BenchFormat, BenchReport};
use crate::bench::measurements::{Direction, NodeEvidence};
use crate::bench::ranks::RankResults;
use crate::bench::report::heat_map::heat_map;
use crate::bench::verdict::Accusation;
use crate::bench::verdict::speeds::Straggler;
use crate::text::result::ResultText;
use crate::text::table::{Table, cell, detail, key};
use crate::text::units::count;
use crate::text::units::{gigabits, micros};
use std::collections::BTreeMap;

/// The slowest directions have a row each, of this many at most.
const ROWS: usize = 6;

/// Findings have a line each, of this many at most.
const FINDINGS: usize = 20;

fn network_text(report: &BenchReport<'_>) -> ResultText {
    let (measured, names) = (report.measured, report.names());
    let all = Best::of_each(&measured.directions);
    let mut text = ResultText::from(node_table(&measured.nodes));
    let most = all.values().filter_map(|best| best.bandwidth()).max_by(f64::total_cmp).unwrap_or_default();
    let (unit, factor) = if most * 8.0 >= 1e9 { ("Gb/s", 8e-9) } else { ("Mb/s", 8e-6) };
    let value = |from, to| Some(all.get(&(from, to))?.bandwidth()? * factor);
    if let Some(map) = heat_map(&names, unit, value) {
        text.push_str(&format!("\n{map}"));
    }
    text.push_str("\n");
    text.push(direction_table(&all, &names));
    text
}

/// A slow part of the cluster.
pub(super) enum SlowPart<'a> {
    Network(&'a Accusation),
    Rank(&'a Straggler),
}

/// The tables, everything that was found, and the verdict last.
pub struct TextFormat;

impl BenchFormat for TextFormat {
    fn format(&self, report: &BenchReport<'_>) -> anyhow::Result<ResultText> {
        let mut text = if report.measured.nodes.is_empty() { ResultText::default() } else { network_text(report) };
        for part in [report.ranks.map(RankResults::text).unwrap_or_default(), report.findings_text().into()] {
            if !text.is_empty() && !part.is_empty() {
                text.push_str("\n");
            }
            text.push(part);
        }
        Ok(text)
    }
}

impl<'a> BenchReport<'a> {
    /// Formats the notes, the findings if there are several, and the verdict.
    fn findings_text(&self) -> String {
        let notes = self.verdict.notes.iter().chain(&self.compared.notes);
        let mut text: String = notes.map(|note| format!("note: {note}\n")).collect();
        let all = self.findings();
        if all.len() > 1 {
            text.extend(all.iter().take(FINDINGS).map(|found| format!("found: {found}\n")));
            if all.len() > FINDINGS {
                text.push_str(&format!("found: {} more; --json has all\n", all.len() - FINDINGS));
            }
        }
        text + &self.last_line() + "\n"
    }

    /// Returns the nodes, connections and ranks that are slow, the strongest finding first.
    pub(super) fn strongest(&self) -> Vec<SlowPart<'a>> {
        let accusations = self.verdict.accusations.iter();
        let of_network = accusations.map(|found| (found.symptom.strength(), SlowPart::Network(found)));
        let of_ranks =
            self.ranks.into_iter().flat_map(RankResults::slow).map(|found| (found.share, SlowPart::Rank(found)));
        let mut all: Vec<(f64, SlowPart<'a>)> = of_network.chain(of_ranks).collect();
        all.sort_by(|a, b| a.0.total_cmp(&b.0));
        all.into_iter().map(|(_, found)| found).collect()
    }

    /// Returns what is wrong and what is slow, as sentences. Wrong results come first: a slow network does not spoil a
    /// training.
    fn findings(&self) -> Vec<String> {
        let names = self.names();
        let errors = self.ranks.map(RankResults::errors).unwrap_or_default().into_iter().map(|(_, text)| text);
        let slow = self.strongest().into_iter().map(|found| match found {
            SlowPart::Network(found) => found.sentence(&names),
            SlowPart::Rank(found) => found.text.clone(),
        });
        errors.chain(slow).chain(self.compared.findings()).collect()
    }

    /// Returns the verdict as one sentence.
    pub fn sentence(&self) -> String {
        let network = || self.verdict.sentence(&self.names());
        match (self.findings().split_first(), self.ranks) {
            (None, None) => network(),
            (None, Some(ranks)) if self.measured.nodes.is_empty() => ranks.good(),
            (None, Some(ranks)) => format!("{}, and {}", network(), ranks.good()),
            (Some((first, [])), _) => first.clone(),
            (Some((first, rest)), _) => format!("{first}; and {} more", count(rest.len(), "finding")),
        }
    }

    /// Returns the verdict as the last line of the text.
    pub fn last_line(&self) -> String {
        let result = match self.findings().is_empty() {
            true if self.verdict.is_good() && self.ranks.is_none_or(|ranks| ranks.unclear() == 0) => "ok",
            true => "unclear",
            false => "failed",
        };
        format!("{result}: {}", self.sentence())
    }
}

fn node_table(nodes: &[NodeEvidence]) -> Table {
    let row = |node: &NodeEvidence| {
        let link = node.before.as_ref();
        let speed = link.and_then(|link| {
            let speed = gigabits(f64::from(link.speed?) * 1e6 / 8.0);
            Some(if link.duplex.as_deref() == Some("half") { format!("{speed} half duplex") } else { speed })
        });
        let compute = node.compute;
        vec![
            node.name.clone(),
            cell(link.map(|link| &link.interface)),
            cell(speed),
            cell(link.and_then(|link| link.mtu)),
            cell(compute.map(|compute| format!("{:.1} M/s", compute.loops_per_s / 1e6))),
            cell(compute.map(|compute| percent(compute.share))),
            cell(compute.map(|compute| format!("{:.1} GB/s", compute.copy_bytes_per_s / 1e9))),
        ]
    };
    let columns = [
        key("NODE"),
        key("INTERFACE"),
        key("LINK"),
        detail(1, "MTU"),
        key("LOOPS"),
        detail(2, "CPU SHARE"),
        detail(3, "MEMORY"),
    ];
    Table::new(columns, nodes.iter().map(row))
}

fn percent(share: f64) -> String {
    format!("{:.0} %", share * 100.0)
}

/// The best of all measurements of one direction: what disturbs one makes it worse.
#[derive(Debug, Default)]
pub(super) struct Best<'a> {
    /// The bandwidth by the number of streams, in bytes a second.
    bandwidths: BTreeMap<u32, f64>,
    /// The round trips with the shortest median, and their 99th percentile, in µs.
    round_trip: Option<(f64, f64)>,
    /// Lost and sent datagrams.
    probes: (u32, u32),
    /// Segments that were sent again, and all.
    segments: (u64, u64),
    error: Option<&'a str>,
}

impl Best<'_> {
    pub(super) fn of_each(directions: &[Direction]) -> BTreeMap<(usize, usize), Best<'_>> {
        let mut all: BTreeMap<(usize, usize), Best<'_>> = BTreeMap::new();
        for direction in directions {
            let best = all.entry((direction.from, direction.to)).or_default();
            best.error = best.error.or(direction.error.as_deref());
            for transfer in &direction.transfers {
                let bandwidth = best.bandwidths.entry(transfer.streams).or_default();
                *bandwidth = bandwidth.max(transfer.bytes_per_s);
                best.segments.0 += transfer.retransmits.unwrap_or_default();
                best.segments.1 += transfer.segments.unwrap_or_default();
            }
            let trip = direction.round_trip_us.map(|trip| (trip.median, trip.p99));
            best.round_trip = best.round_trip.into_iter().chain(trip).min_by(|a, b| a.0.total_cmp(&b.0));
            if let Some(probes) = direction.probes {
                best.probes = (best.probes.0 + probes.lost(), best.probes.1 + probes.sent);
            }
        }
        all
    }

    pub(super) fn bandwidth(&self) -> Option<f64> {
        self.bandwidths.values().copied().max_by(f64::total_cmp)
    }
}

/// Formats the slowest directions, the slowest first, and those that could not be measured.
fn direction_table(all: &BTreeMap<(usize, usize), Best<'_>>, names: &[&str]) -> ResultText {
    let mut slowest: Vec<_> = all.iter().filter_map(|(edge, best)| Some((best.bandwidth()?, edge, best))).collect();
    slowest.sort_by(|(a, ..), (b, ..)| a.total_cmp(b));
    let row = |(most, (from, to), best): &(f64, &(usize, usize), &Best<'_>)| {
        let share = |(part, all): (f64, f64)| (all > 0.0).then(|| format!("{:.1} %", part / all * 100.0));
        vec![
            names[*from].to_owned(),
            names[*to].to_owned(),
            cell(best.bandwidths.get(&1).map(|bandwidth| gigabits(*bandwidth))),
            gigabits(*most),
            cell(best.round_trip.map(|(median, _)| micros(median))),
            cell(best.round_trip.map(|(_, p99)| micros(p99))),
            cell(share((f64::from(best.probes.0), f64::from(best.probes.1)))),
            cell(share((best.segments.0 as f64, best.segments.1 as f64))),
        ]
    };
    let columns = [
        key("FROM"),
        key("TO"),
        detail(2, "1 STREAM"),
        key("BEST"),
        key("ROUND TRIP"),
        detail(3, "P99"),
        key("LOST"),
        detail(1, "RESENT"),
    ];
    let mut text = ResultText::from(Table::new(columns, slowest.iter().take(ROWS).map(row)));
    if slowest.len() > ROWS {
        text.push_str(&format!("the {ROWS} slowest of {} directions; --csv and --json have all\n", slowest.len()));
    }
    let failed = all.iter().filter(|(_, best)| best.bandwidth().is_none());
    text.extend(failed.take(ROWS).map(|((from, to), best)| {
        format!("{} → {}: {}\n", names[*from], names[*to], best.error.unwrap_or("not measured"))
    }));
    text
}
