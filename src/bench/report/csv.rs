//! Everything that `bench` has measured, as one table of comma-separated values.

use super::{BenchFormat, BenchReport};
use crate::bench::collectives::{Collectives, word};
use crate::bench::measurements::Direction;
use crate::text::result::ResultText;

/// A line is a transfer of a direction, or a collective with an array of one size. What does not apply to it is empty.
const COLUMNS: [&str; 20] = [
    "kind",
    "from",
    "to",
    "streams",
    "bytes_per_s",
    "retransmits",
    "segments",
    "round_trip_us",
    "round_trip_p99_us",
    "probes_sent",
    "probes_lost",
    "largest_packet",
    "error",
    "collective",
    "dtype",
    "bytes",
    "time_us",
    "algorithm_bandwidth",
    "bus_bandwidth",
    "ring_share",
];

/// Every transfer and every collective as a line; a direction that could not be measured has one too. Bandwidths of
/// collectives are in 10⁹ bytes a second, as in JSON.
pub struct CsvFormat;

impl BenchFormat for CsvFormat {
    fn format(&self, report: &BenchReport<'_>) -> anyhow::Result<ResultText> {
        Ok(csv(&report.names(), &report.measured.directions, report.collectives()).into())
    }
}

fn csv(names: &[&str], directions: &[Direction], collectives: Option<&Collectives>) -> String {
    let mut text = format!("{}\n", COLUMNS.join(","));
    let mut line = |fields: [String; COLUMNS.len()]| text.push_str(&format!("{}\n", fields.join(",")));
    for direction in directions {
        let (trip, probes) = (direction.round_trip_us, direction.probes);
        let mut row = |of_transfer: [String; 4]| {
            let [streams, bytes_per_s, retransmits, segments] = of_transfer;
            line([
                "direction".to_owned(),
                names[direction.from].to_owned(),
                names[direction.to].to_owned(),
                streams,
                bytes_per_s,
                retransmits,
                segments,
                cell(trip.map(|trip| format!("{:.1}", trip.median))),
                cell(trip.map(|trip| format!("{:.1}", trip.p99))),
                cell(probes.map(|probes| probes.sent.to_string())),
                cell(probes.map(|probes| probes.lost().to_string())),
                cell(probes.and_then(|probes| probes.largest).map(|size| size.to_string())),
                cell(direction.error.as_deref().map(quoted)),
                String::new(),
                String::new(),
                String::new(),
                String::new(),
                String::new(),
                String::new(),
                String::new(),
            ]);
        };
        for transfer in &direction.transfers {
            row([
                transfer.streams.to_string(),
                format!("{:.0}", transfer.bytes_per_s),
                cell(transfer.retransmits.map(|n| n.to_string())),
                cell(transfer.segments.map(|n| n.to_string())),
            ]);
        }
        if direction.transfers.is_empty() {
            row(Default::default());
        }
    }
    for exchange in collectives.into_iter().flat_map(|all| &all.exchanges) {
        let mut fields: [String; COLUMNS.len()] = Default::default();
        fields[0] = "collective".to_owned();
        let own = [
            word(exchange.collective),
            word(exchange.dtype),
            exchange.bytes.to_string(),
            format!("{:.1}", exchange.time_us),
            format!("{:.6}", exchange.algorithm_bandwidth),
            format!("{:.6}", exchange.bus_bandwidth),
            cell(exchange.ring_share.map(|share| format!("{share:.4}"))),
        ];
        let start = fields.len() - own.len();
        fields[start..].clone_from_slice(&own);
        line(fields);
    }
    text
}

fn cell(value: Option<String>) -> String {
    value.unwrap_or_default()
}

/// Quotes a field of a line as RFC 4180 has it.
fn quoted(text: &str) -> String {
    format!("\"{}\"", text.replace('"', "\"\""))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench::collectives::Exchange;
    use crate::bench::measurements::tests::measured;
    use crate::model::collective::{Collective, Dtype};

    #[test]
    fn a_line_for_each_transfer_and_each_collective() {
        let measured = measured(2, |from, _| if from == 0 { Ok(8.0) } else { Err("say \"no\", twice") });
        let exchange = Exchange {
            collective: Collective::AllReduce,
            dtype: Dtype::Float16,
            bytes: 1 << 20,
            time_us: 2341.26,
            algorithm_bandwidth: 0.4478,
            bus_bandwidth: 0.4478,
            ring_share: None,
        };
        let collectives = Collectives { ranks: 2, exchanges: vec![exchange], ..Collectives::default() };
        let text = csv(&["node1", "node2"], &measured.directions, Some(&collectives));
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(
            &lines[1..],
            [
                "direction,node1,node2,1,960000000,3,2000,62.0,118.0,1000,0,1500,,,,,,,,",
                "direction,node1,node2,4,1000000000,3,2000,62.0,118.0,1000,0,1500,,,,,,,,",
                "direction,node2,node1,,,,,,,,,,\"say \"\"no\"\", twice\",,,,,,,",
                "collective,,,,,,,,,,,,,allreduce,float16,1048576,2341.3,0.447800,0.447800,",
            ]
        );
        for index in [0, 1, 2, 4] {
            assert_eq!(lines[index].matches(',').count(), COLUMNS.len() - 1);
        }
    }
}
