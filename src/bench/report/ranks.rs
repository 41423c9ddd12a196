//! The measurements of the ranks as text.

use crate::bench::collectives::{Collectives, Exchange, RankSpeed, WrongResult};
use crate::bench::ranks::RankResults;
use crate::model::collective::{Collective, Dtype, format_size};
use crate::text::result::ResultText;
use crate::text::table::{Table, cell, key, text};
use crate::text::units::{count, micros};
use std::collections::BTreeMap;

/// Wrong results, and the slowest ranks, of which each has a row.
const ROWS: usize = 8;

impl RankResults {
    /// Formats the wrong results, and the tables.
    pub fn text(&self) -> ResultText {
        let Collectives { exchanges, speeds, wrong, library, .. } = &self.answers.collectives;
        let line = |wrong: &WrongResult| format!("wrong: rank {} on {}: {wrong}\n", wrong.rank, wrong.node);
        let mut text: ResultText = wrong.iter().take(ROWS).map(line).collect::<String>().into();
        if wrong.len() > ROWS {
            text.push_str(&format!("wrong: {} more; --json has all\n", wrong.len() - ROWS));
        }
        let separate = |text: &mut ResultText| {
            if !text.is_empty() {
                text.push_str("\n");
            }
        };
        if !speeds.is_empty() {
            separate(&mut text);
            text.push(speed_table(speeds));
        }
        if !exchanges.is_empty() {
            separate(&mut text);
            text.push(size_table(exchanges, library));
            text.push_str("\n");
            text.push(series_table(exchanges));
        }
        if let Some(estimate) = &self.estimate {
            text.push_str(&format!("\n{estimate}\n"));
        }
        text
    }
}

fn gigabytes(bandwidth: f64) -> String {
    match bandwidth {
        giga @ 99.95.. => format!("{giga:.0} GB/s"),
        giga @ 0.995.. => format!("{giga:.2} GB/s"),
        giga @ 0.000995.. => format!("{:.1} MB/s", giga * 1e3),
        giga => format!("{:.0} KB/s", giga * 1e6),
    }
}

/// Formats the ranks with the slowest devices.
fn speed_table(speeds: &[RankSpeed]) -> ResultText {
    let mut slowest: Vec<&RankSpeed> = speeds.iter().collect();
    if speeds.len() > ROWS {
        slowest.sort_by(|a, b| a.flops.total_cmp(&b.flops));
    }
    let row = |speed: &&RankSpeed| {
        let flops = match speed.flops / 1e9 {
            giga @ 999.5.. => format!("{:.1} TFLOP/s", giga / 1e3),
            giga => format!("{giga:.1} GFLOP/s"),
        };
        let copy = gigabytes(speed.copy_bytes_per_s / 1e9);
        vec![speed.rank.to_string(), speed.node.clone(), speed.device.clone(), flops, copy]
    };
    let columns = [key("RANK"), key("NODE"), text("DEVICE"), key("PRODUCT"), key("COPY")];
    let mut text = ResultText::from(Table::new(columns, slowest.iter().take(ROWS).map(row)));
    if speeds.len() > ROWS {
        text.push_str(&format!("the {ROWS} slowest of {}; --json has all\n", count(speeds.len(), "rank")));
    }
    text
}

fn share(exchange: &Exchange) -> String {
    cell(exchange.ring_share.map(|share| format!("{:.0} %", share * 100.0)))
}

/// Formats an allreduce of each size, in the first type that was measured.
fn size_table(exchanges: &[Exchange], library: &str) -> ResultText {
    let first = exchanges[0].dtype;
    let shown = |exchange: &&Exchange| exchange.collective == Collective::AllReduce && exchange.dtype == first;
    let row = |exchange: &Exchange| {
        vec![
            format_size(exchange.bytes),
            micros(exchange.time_us),
            gigabytes(exchange.algorithm_bandwidth),
            gigabytes(exchange.bus_bandwidth),
            share(exchange),
        ]
    };
    let mut text = ResultText::from(format!("allreduce of {first} ({library})\n"));
    let columns = ["SIZE", "TIME", "ALGORITHM", "BUS", "OF RING"].map(key);
    text.push(Table::new(columns, exchanges.iter().filter(shown).map(row)));
    text
}

/// Formats the shortest time and the best bandwidth of each operation and type.
fn series_table(exchanges: &[Exchange]) -> Table {
    let mut series: BTreeMap<(Collective, Dtype), Vec<&Exchange>> = BTreeMap::new();
    for exchange in exchanges {
        series.entry((exchange.collective, exchange.dtype)).or_default().push(exchange);
    }
    let row = |((collective, dtype), exchanges): ((Collective, Dtype), Vec<&Exchange>)| {
        let time = exchanges.iter().map(|exchange| exchange.time_us).min_by(f64::total_cmp).unwrap_or_default();
        let best = exchanges.iter().max_by(|a, b| a.bus_bandwidth.total_cmp(&b.bus_bandwidth));
        vec![
            collective.to_string(),
            dtype.to_string(),
            micros(time),
            cell(best.map(|best| gigabytes(best.bus_bandwidth))),
            cell(best.map(|best| format_size(best.bytes))),
            cell(best.map(|best| share(best))),
        ]
    };
    Table::new(["OPERATION", "TYPE", "LATENCY", "BEST BUS", "AT", "OF RING"].map(key), series.into_iter().map(row))
}
