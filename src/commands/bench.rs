//! `hvdctl bench`.

mod csv;
mod files;
pub(super) mod ranks;

use super::output::NodeEntry;
use super::{Context, Outcome};
use crate::bench::{Pace, Past, measure};
use crate::checks::bench::baseline::{self, Comparison};
use crate::checks::bench::collectives::Collectives;
use crate::checks::bench::limits::below_minimum;
use crate::checks::bench::past::trusted;
use crate::checks::bench::{
    Accusation, Compute, Direction, Measurements, NodeEvidence, Probes, RoundTrip, Subject, Transfer, Verdict as Blame,
    Way, blame, gigabits, micros,
};
use crate::cli::{self, Part};
use crate::cluster::observation::ObservedNode;
use crate::error::{Error, Verdict};
use crate::launch::launcher;
use crate::model::collective::{Dtype, ModelEstimate};
use crate::render::heat_map::heat_map;
use crate::render::plot;
use crate::render::table::{cell, table};
use crate::start::capacity::{check_unallocated, placed};
use crate::start::in_worker::check_modules;
use crate::start::request::JobOptions;
use crate::text::units::count;
use csv::csv;
use files::Files;
use ranks::Ranks;
use schemars::JsonSchema;
use serde::Serialize;
use std::collections::BTreeMap;

/// `bench`.
#[derive(Debug, Serialize, JsonSchema)]
pub struct BenchDocument {
    /// The version of this document, for `--baseline`. Fields may be added without a new version.
    pub format: u32,
    /// The verdict as one sentence.
    pub verdict: String,
    /// What is slow, the worst first; empty if nothing is.
    pub findings: Vec<BenchFinding>,
    /// What limits the verdict: what could not be measured, and processors that were busy.
    pub notes: Vec<String>,
    /// The nodes; `ok` is false if a finding names the node.
    pub nodes: Vec<NodeEntry<BenchNode>>,
    /// Every measurement of one direction of a pair. What looks slow is measured again, and then has several.
    pub directions: Vec<BenchDirection>,
    /// What the ranks of a job measured; null if they did not.
    pub collectives: Option<Collectives>,
    /// What a step of the model of `--params` costs; null without the option, or if nothing that is like it was measured.
    pub estimate: Option<BenchEstimate>,
    /// What differs from the output of an earlier benchmark; null without `--baseline`.
    pub baseline: Option<Comparison>,
}

/// A node or a connection that is slow.
#[derive(Debug, Serialize, JsonSchema)]
pub struct BenchFinding {
    /// What was found, as a sentence.
    pub text: String,
    /// The node, the two ends of the connection, or all nodes.
    pub nodes: Vec<String>,
    /// `out`: what the first of these nodes sends; `in`: what it receives; or `both`.
    pub direction: Way,
}

/// What a training step of a model costs, from the allreduce whose size is nearest to that of its gradients.
#[derive(Debug, Serialize, JsonSchema)]
pub struct BenchEstimate {
    /// The number of parameters.
    pub params: u64,
    /// The type of the gradients.
    pub dtype: Dtype,
    /// The seconds in which the gradients of one step are exchanged.
    pub exchange_s: f64,
    /// How many times as fast as one node the cluster is if nothing is computed during the exchange; null without `--step`.
    pub speedup: Option<f64>,
    /// The same if as much as possible is computed meanwhile.
    pub speedup_overlapped: Option<f64>,
    /// The same as text.
    pub text: String,
}

impl From<&ModelEstimate> for BenchEstimate {
    fn from(model: &ModelEstimate) -> BenchEstimate {
        let (speedup, speedup_overlapped) = model.estimate.speedup(1).unzip();
        BenchEstimate {
            params: model.params,
            dtype: model.dtype,
            exchange_s: model.estimate.wire.as_secs_f64(),
            speedup,
            speedup_overlapped,
            text: model.to_string(),
        }
    }
}

/// What `bench` knows of a node.
#[derive(Debug, Serialize, JsonSchema)]
pub struct BenchNode {
    /// The interface that jobs use.
    pub interface: Option<String>,
    /// Its nominal speed in Mb/s; null for a virtual one.
    pub speed: Option<u32>,
    /// `full` or `half`; null for a virtual one.
    pub duplex: Option<String>,
    /// The largest packet in bytes.
    pub mtu: Option<u32>,
    /// How much its counters of errors and packets grew during the measurement.
    pub counters: BTreeMap<String, u64>,
    /// The processor.
    pub compute: Option<Compute>,
}

impl From<&NodeEvidence> for BenchNode {
    fn from(node: &NodeEvidence) -> BenchNode {
        let (before, after) = (node.before.clone().unwrap_or_default(), node.after.clone().unwrap_or_default());
        let growth = |(name, value): (&String, &Option<u64>)| {
            let later = after.counters.get(name).copied().flatten()?;
            Some((name.clone(), later.saturating_sub((*value)?)))
        };
        BenchNode {
            interface: node.before.as_ref().map(|link| link.interface.clone()),
            counters: before.counters.iter().filter_map(growth).collect(),
            speed: before.speed,
            duplex: before.duplex,
            mtu: before.mtu,
            compute: node.compute,
        }
    }
}

/// One measurement of what a node sends to another.
#[derive(Debug, Serialize, JsonSchema)]
pub struct BenchDirection {
    /// The sender.
    pub from: String,
    /// The receiver.
    pub to: String,
    /// Why nothing could be measured, else null.
    pub error: Option<String>,
    /// The bandwidth of the fastest transfer.
    pub bytes_per_s: Option<f64>,
    /// Round trips of a small message over TCP.
    pub round_trip_us: Option<RoundTrip>,
    /// Transfers over one and over several connections.
    pub transfers: Vec<Transfer>,
    /// Datagrams; null if none arrives at all, as behind some firewalls.
    pub probes: Option<Probes>,
}

/// The slowest directions have a row each, of this many at most.
const ROWS: usize = 6;

/// Findings have a line each, of this many at most.
const FINDINGS: usize = 20;

/// `bench`.
pub async fn run(options: &cli::Bench, context: &Context) -> Result<Outcome, Error> {
    check_arguments(options, context)?;
    let files = Files::open(options, &context.target.selected)?;
    let job = match options.measures(Part::Collectives) {
        true => Some(ranks::options(options, context)?),
        false => None,
    };
    let (measured, verdict) = match options.measures(Part::Network) {
        true => measure_network(options, job.as_ref(), context).await?,
        false => Default::default(),
    };
    let ranks = match job {
        Some(job) => Some(measure_ranks(options, job, &measured, context).await?),
        None => None,
    };
    let collectives = ranks.as_ref().map(|ranks| &ranks.answers.collectives);
    let compared = Compared::new(&files, &measured, collectives, context.target.inventory.bench.min_busbw);
    let names = names(&measured);
    let all = Best::of_each(&measured.directions);
    let drawn = files.write_plot(|| plot::svg(&names, |from, to| all.get(&(from, to))?.bandwidth(), collectives));
    if options.csv {
        context.events.note(last_line(&measured, &verdict, ranks.as_ref(), &compared));
    }
    let text = match options.csv {
        true => csv(&names, &measured.directions, collectives),
        false => text(&measured, &verdict, ranks.as_ref(), &compared),
    };
    Ok(outcome(text, &measured, &verdict, ranks.as_ref(), &compared).with_failed_file(drawn))
}

/// What is compared with something else than the cluster itself.
#[derive(Debug, Default)]
pub(super) struct Compared {
    /// With an earlier benchmark.
    pub(super) baseline: Option<Comparison>,
    /// What the inventory requires and the cluster does not reach.
    pub(super) below: Option<String>,
    /// What was not compared.
    pub(super) notes: Vec<String>,
}

impl Compared {
    fn new(
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

    fn is_good(&self) -> bool {
        self.below.is_none() && self.baseline.as_ref().is_none_or(Comparison::is_good)
    }

    /// Returns what is too slow, as sentences.
    fn findings(&self) -> Vec<String> {
        let slower = self.baseline.iter().flat_map(|compared| &compared.slower).map(|slower| slower.text.clone());
        self.below.iter().cloned().chain(slower).collect()
    }
}

fn check_arguments(options: &cli::Bench, context: &Context) -> Result<(), Error> {
    let selected = &context.target.selected;
    if options.measures(Part::Network) && selected.len() < 2 {
        return Err(Error::usage(
            format!("bench measures the network between nodes, and {} is the only one", selected.join("")),
            "select at least two nodes with --on, or add another [[node]] to the inventory; \
             `hvdctl bench --only collectives` measures two or more ranks of one node",
        ));
    }
    if options.forget && !options.measures(Part::Network) {
        return Err(Error::usage("--forget is about the network", "leave out --only collectives"));
    }
    let of_collectives = options.np.is_some() || !options.sizes.is_empty() || options.params.is_some();
    if of_collectives && !options.measures(Part::Collectives) {
        return Err(Error::usage("-np, --sizes and --params are about collectives", "leave out --only network"));
    }
    Ok(())
}

/// Measures the network. `job`: what the ranks will do afterwards, for which everything has to be there before anything is measured.
async fn measure_network(
    options: &cli::Bench,
    job: Option<&JobOptions>,
    context: &Context,
) -> Result<(Measurements, Blame), Error> {
    let Context { target, events, session, .. } = context;
    let nodes = context.unused().await?;
    nodes.iter().filter_map(other_jobs).for_each(|warning| events.warn(warning));
    if let Some(job) = job {
        ranks::check_placement(&placed(target, &nodes, job.resources)?)?;
        let modules = launcher(job.launcher, job.controller).verify_with;
        let workers: Vec<&ObservedNode> = nodes.iter().collect();
        session.cancellation.run(check_modules(&workers, target.cluster(), modules, events)).await?;
    }
    let pace = if options.quick { Pace::QUICK } else { Pace::DEFAULT };
    let measuring = async {
        let past = match options.forget {
            true => Past::none(nodes.len()),
            false => Past::read(target.cluster(), &nodes, events).await,
        };
        Ok((measure(&target.inventory, &nodes, pace, &past, events).await?, past))
    };
    let (measured, past) = session.cancellation.run(measuring).await?;
    let verdict = blame::verdict(&measured);
    if !verdict.accusations.is_empty() {
        let nodes = context.observe_all(target, false, events).await?;
        check_unallocated(&nodes).inspect_err(|_| {
            events.note("a job has started during the measurement, and the network was not the benchmark's alone");
        })?;
    }
    // what another job disturbed is no measure for later
    if nodes.iter().all(|node| other_jobs(node).is_none()) {
        let latest = trusted(&measured, &verdict);
        let keeping = async {
            past.write(target.cluster(), &nodes, &latest, events).await;
            Ok(())
        };
        session.cancellation.run(keeping).await?;
    }
    Ok((measured, verdict))
}

/// Lets the ranks of a job measure. A job that cannot be started is a finding if the network has been measured before.
async fn measure_ranks(
    options: &cli::Bench,
    job: JobOptions,
    measured: &Measurements,
    context: &Context,
) -> Result<Ranks, Error> {
    let network = Some(measured).filter(|measured| !measured.nodes.is_empty());
    match ranks::run(options, job, network, context).await {
        Ok(ranks) => {
            ranks.answers.notes.iter().for_each(|note| context.events.note(note));
            Ok(ranks)
        }
        Err(error @ (Error::Signal(_) | Error::Lost(_) | Error::Locked(_) | Error::Allocated(_))) => Err(error),
        Err(error) if network.is_some() => {
            let cause = error.to_string();
            context.events.warn(&cause);
            let failure = Some(cause.lines().next().unwrap_or_default().to_owned());
            Ok(Ranks { failure, ..Ranks::default() })
        }
        Err(error) => Err(error),
    }
}

/// The warning about a node where jobs of other clusters run.
fn other_jobs(observed: &ObservedNode) -> Option<String> {
    let rank = observed.facts.jobs.ranks.iter().find(|rank| !rank.killed)?;
    Some(format!("{}: job {} runs there, which disturbs the measurement", observed.name(), rank.job))
}

pub(super) fn outcome(
    text: String,
    measured: &Measurements,
    verdict: &Blame,
    ranks: Option<&Ranks>,
    compared: &Compared,
) -> Outcome {
    let is_good = verdict.is_good() && compared.is_good() && ranks.is_none_or(|ranks| ranks.findings().is_empty());
    Outcome::new(
        Verdict::of_check(is_good, measured.nodes.len(), &[]),
        text,
        details(measured, verdict, ranks, compared),
    )
}

fn names(measured: &Measurements) -> Vec<&str> {
    measured.nodes.iter().map(|node| node.name.as_str()).collect()
}

fn details(measured: &Measurements, verdict: &Blame, ranks: Option<&Ranks>, compared: &Compared) -> BenchDocument {
    let names = names(measured);
    let of_ranks = ranks.map(Ranks::findings).unwrap_or_default().into_iter().map(|(node, text)| BenchFinding {
        text,
        nodes: node.into_iter().collect(),
        direction: Way::Both,
    });
    let below =
        compared.below.iter().map(|text| BenchFinding { text: text.clone(), nodes: Vec::new(), direction: Way::Both });
    let findings: Vec<BenchFinding> =
        of_ranks.chain(verdict.accusations.iter().map(|found| finding(found, &names))).chain(below).collect();
    let node = |node: &NodeEvidence| {
        let is_named = findings.iter().any(|finding| finding.nodes.contains(&node.name));
        NodeEntry::new(&node.name, !is_named, BenchNode::from(node))
    };
    let direction = |direction: &Direction| BenchDirection {
        from: names[direction.from].to_owned(),
        to: names[direction.to].to_owned(),
        error: direction.error.clone(),
        bytes_per_s: direction.bandwidth(),
        round_trip_us: direction.round_trip_us,
        transfers: direction.transfers.clone(),
        probes: direction.probes,
    };
    let of_job = ranks.map_or(&[][..], |ranks| &ranks.nodes).iter().filter(|name| !names.contains(&name.as_str()));
    let of_job: Vec<_> = of_job.map(|name| NodeEvidence { name: name.clone(), ..NodeEvidence::default() }).collect();
    BenchDocument {
        format: baseline::FORMAT,
        baseline: compared.baseline.clone(),
        verdict: sentence(measured, verdict, ranks, compared),
        nodes: measured.nodes.iter().chain(&of_job).map(node).collect(),
        collectives: ranks.map(|ranks| ranks.answers.collectives.clone()),
        estimate: ranks.and_then(|ranks| ranks.estimate.as_ref()).map(Into::into),
        directions: measured.directions.iter().map(direction).collect(),
        notes: verdict
            .notes
            .iter()
            .chain(ranks.iter().flat_map(|ranks| &ranks.answers.notes))
            .chain(&compared.notes)
            .cloned()
            .collect(),
        findings,
    }
}

fn finding(accusation: &Accusation, names: &[&str]) -> BenchFinding {
    let (nodes, direction) = match accusation.subject {
        Subject::Cluster => ((0..names.len()).collect(), Way::Both),
        Subject::Node(node, way) => (vec![node], way),
        Subject::Pair(a, b, Way::In) => (vec![b, a], Way::Out),
        Subject::Pair(a, b, way) => (vec![a, b], way),
    };
    let nodes = nodes.into_iter().map(|node| names[node].to_owned()).collect();
    BenchFinding { text: accusation.sentence(names), nodes, direction }
}

/// Formats the tables, everything that was found, and the verdict last.
pub(super) fn text(measured: &Measurements, verdict: &Blame, ranks: Option<&Ranks>, compared: &Compared) -> String {
    let mut text = if measured.nodes.is_empty() { String::new() } else { network_text(measured) };
    let of_ranks = ranks.map(Ranks::text).unwrap_or_default();
    for part in [of_ranks, findings_text(measured, verdict, ranks, compared)] {
        if !text.is_empty() && !part.is_empty() {
            text.push('\n');
        }
        text.push_str(&part);
    }
    text
}

fn network_text(measured: &Measurements) -> String {
    let names = names(measured);
    let all = Best::of_each(&measured.directions);
    let mut text = node_table(&measured.nodes);
    let most = all.values().filter_map(|best| best.bandwidth()).max_by(f64::total_cmp).unwrap_or_default();
    let (unit, factor) = if most * 8.0 >= 1e9 { ("Gb/s", 8e-9) } else { ("Mb/s", 8e-6) };
    let value = |from, to| Some(all.get(&(from, to))?.bandwidth()? * factor);
    if let Some(map) = heat_map(&names, unit, value) {
        text.push_str(&format!("\n{map}"));
    }
    text.push_str(&format!("\n{}", direction_table(&all, &names)));
    text
}

/// Formats the notes, the findings if there are several, and the verdict.
fn findings_text(measured: &Measurements, verdict: &Blame, ranks: Option<&Ranks>, compared: &Compared) -> String {
    let mut text: String = verdict.notes.iter().chain(&compared.notes).map(|note| format!("note: {note}\n")).collect();
    let all = findings(measured, verdict, ranks, compared);
    if all.len() > 1 {
        text.extend(all.iter().take(FINDINGS).map(|found| format!("found: {found}\n")));
        if all.len() > FINDINGS {
            text.push_str(&format!("found: {} more, which --json has\n", all.len() - FINDINGS));
        }
    }
    text + &last_line(measured, verdict, ranks, compared) + "\n"
}

/// Returns what is wrong and what is slow, as sentences.
fn findings(measured: &Measurements, verdict: &Blame, ranks: Option<&Ranks>, compared: &Compared) -> Vec<String> {
    let names = names(measured);
    let of_ranks = ranks.map(Ranks::findings).unwrap_or_default().into_iter().map(|(_, text)| text);
    of_ranks.chain(verdict.accusations.iter().map(|found| found.sentence(&names))).chain(compared.findings()).collect()
}

/// Returns the verdict as one sentence. Wrong results come first: a slow network does not spoil a training.
fn sentence(measured: &Measurements, verdict: &Blame, ranks: Option<&Ranks>, compared: &Compared) -> String {
    let network = || verdict.sentence(&names(measured));
    match (findings(measured, verdict, ranks, compared).split_first(), ranks) {
        (None, None) => network(),
        (None, Some(ranks)) if measured.nodes.is_empty() => ranks.good(),
        (None, Some(ranks)) => format!("{}, and {}", network(), ranks.good()),
        (Some((first, [])), _) => first.clone(),
        (Some((first, rest)), _) => format!("{first}; and {} more", count(rest.len(), "finding")),
    }
}

fn last_line(measured: &Measurements, verdict: &Blame, ranks: Option<&Ranks>, compared: &Compared) -> String {
    let result = match findings(measured, verdict, ranks, compared).is_empty() {
        true if verdict.is_good() => "ok",
        true => "unclear",
        false => "failed",
    };
    format!("{result}: {}", sentence(measured, verdict, ranks, compared))
}

fn node_table(nodes: &[NodeEvidence]) -> String {
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
    table(&["NODE", "INTERFACE", "LINK", "MTU", "LOOPS", "CPU SHARE", "MEMORY"], nodes.iter().map(row))
}

fn percent(share: f64) -> String {
    format!("{:.0} %", share * 100.0)
}

/// The best of all measurements of one direction: what disturbs one makes it worse.
#[derive(Debug, Default)]
struct Best<'a> {
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
    fn of_each(directions: &[Direction]) -> BTreeMap<(usize, usize), Best<'_>> {
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

    fn bandwidth(&self) -> Option<f64> {
        self.bandwidths.values().copied().max_by(f64::total_cmp)
    }
}

/// Formats the slowest directions, the slowest first, and those that could not be measured.
fn direction_table(all: &BTreeMap<(usize, usize), Best<'_>>, names: &[&str]) -> String {
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
    let header = ["FROM", "TO", "1 STREAM", "BEST", "ROUND TRIP", "P99", "LOST", "RESENT"];
    let mut text = table(&header, slowest.iter().take(ROWS).map(row));
    if slowest.len() > ROWS {
        text.push_str(&format!("the {ROWS} slowest of {} directions; --csv and --json have all\n", slowest.len()));
    }
    let failed = all.iter().filter(|(_, best)| best.bandwidth().is_none());
    text.extend(failed.take(ROWS).map(|((from, to), best)| {
        format!("{} → {}: {}\n", names[*from], names[*to], best.error.unwrap_or("not measured"))
    }));
    text
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use crate::checks::bench::baseline::Baseline;
    use crate::checks::bench::collectives::Exchange;
    use crate::checks::bench::{Compute, Link, Probes, RoundTrip, Transfer, Usage};
    use crate::model::collective::{Collective, Dtype};

    /// What was measured of some nodes: `gigabits` from one to another, or why nothing was.
    pub fn measured(n: usize, gigabits: impl Fn(usize, usize) -> Result<f64, &'static str>) -> Measurements {
        let usage = Usage { idle: Some(0.8), steal: Some(0.0), busiest_idle: Some(0.5) };
        let transfer = |streams, bytes_per_s| Transfer {
            streams,
            bytes_per_s,
            retransmits: Some(3),
            segments: Some(2000),
            snd_mss: Some(1448),
            pmtu: Some(1500),
            sender: usage,
            receiver: usage,
        };
        let direction = |(from, to)| match gigabits(from, to) {
            Err(error) => Direction { from, to, error: Some(error.to_owned()), ..Direction::default() },
            Ok(gigabits) => Direction {
                from,
                to,
                error: None,
                round_trip_us: Some(RoundTrip { median: 62.0, min: 51.0, p99: 118.0, count: 1000 }),
                transfers: vec![transfer(1, gigabits * 1.2e8), transfer(4, gigabits * 1.25e8)],
                probes: Some(Probes {
                    sent: 1000,
                    received: 1000,
                    largest: Some(1500),
                    sendable: Some(1500),
                    ..Probes::default()
                }),
            },
        };
        let node = |node: usize| NodeEvidence {
            name: format!("node{}", node + 1),
            before: Some(Link {
                interface: "eth0".into(),
                speed: Some(10_000),
                duplex: Some("full".into()),
                mtu: Some(1500),
                ..Link::default()
            }),
            after: None,
            compute: Some(Compute {
                loops_per_s: 18.2e6,
                share: 0.98,
                copy_bytes_per_s: 9.1e9,
                throttled: Some(0.0),
                usage,
            }),
        };
        let edges = (0..n).flat_map(|from| (0..n).map(move |to| (from, to))).filter(|(from, to)| from != to);
        Measurements {
            nodes: (0..n).map(node).collect(),
            directions: edges.map(direction).collect(),
            past: BTreeMap::new(),
        }
    }

    fn shown(measured: &Measurements) -> String {
        console::set_colors_enabled(false);
        text(measured, &blame::verdict(measured), None, &Compared::default())
    }

    #[test]
    fn two_good_nodes() {
        insta::assert_snapshot!(shown(&measured(2, |_, _| Ok(9.4))));
    }

    #[test]
    fn a_node_that_sends_slowly_is_named_last() {
        let measured = measured(8, |from, _| Ok(if from == 2 { 0.94 } else { 9.4 }));
        let text = shown(&measured);
        assert!(
            text.lines().all(|line| console::measure_text_width(line) <= 80 || line.starts_with("failed")),
            "{text}"
        );
        insta::assert_snapshot!(text);
        let outcome = outcome(text, &measured, &blame::verdict(&measured), None, &Compared::default());
        let found = &outcome.document["findings"][0];
        assert_eq!((outcome.code, &found["nodes"][0], &found["direction"]), (1, &"node3".into(), &"out".into()));
        let ok: Vec<bool> =
            outcome.document["nodes"].as_array().unwrap().iter().map(|node| node["ok"] == true).collect();
        assert_eq!(ok, [true, true, false, true, true, true, true, true]);
    }

    #[test]
    fn a_pair_without_a_measurement_has_its_cause() {
        let cut = |from: usize, to: usize| if from + to == 3 { Err("no answer within 3 s") } else { Ok(9.4) };
        let measured = measured(4, cut);
        insta::assert_snapshot!(shown(&measured));
    }

    #[test]
    fn the_better_one_of_two_measurements_is_shown() {
        let mut measured = measured(2, |_, _| Ok(2.0));
        measured.directions.extend(super::tests::measured(2, |_, _| Ok(9.4)).directions);
        let text = shown(&measured);
        assert!(text.contains("9.40 Gb/s") && !text.contains("2.00"), "{text}");
    }

    #[test]
    fn what_is_too_slow_is_part_of_the_verdict() {
        let measured = measured(2, |from, _| Ok([2.0, 9.4][from]));
        let earlier = outcome(
            String::new(),
            &super::tests::measured(2, |_, _| Ok(9.4)),
            &Blame::default(),
            None,
            &Compared::default(),
        );
        let baseline = Baseline::parse(&earlier.document.to_string()).unwrap();
        let files = Files { baseline: Some(baseline), plot: None };
        let verdict = Blame { measured: 2, ..Blame::default() };
        let compared = Compared::new(&files, &measured, None, Some(1_000_000_000));
        let shown = text(&measured, &verdict, None, &compared);
        let last = "failed: node1 → node2 transfers only 2.00 Gb/s, 9.40 Gb/s in the baseline\n";
        assert!(shown.ends_with(last), "{shown}");
        assert!(shown.contains("note: bench.min_busbw is not checked: no collectives were measured\n"), "{shown}");
        let result = outcome(shown, &measured, &verdict, None, &compared);
        assert_eq!(result.code, 1);
        assert_eq!(result.document["baseline"]["slower"][0]["from"], "node1");
        assert_eq!(result.document["findings"], serde_json::json!([]));

        // what the inventory requires comes first
        let exchange = Exchange {
            collective: Collective::AllReduce,
            dtype: Dtype::Float32,
            bytes: 1 << 26,
            time_us: 1e5,
            algorithm_bandwidth: 0.67,
            bus_bandwidth: 0.67,
            ring_share: None,
        };
        let collectives = Collectives { ranks: 2, exchanges: vec![exchange], ..Collectives::default() };
        let below = |minimum| {
            let compared = Compared::new(&files, &measured, Some(&collectives), Some(minimum));
            (
                outcome(String::new(), &measured, &verdict, None, &compared),
                last_line(&measured, &verdict, None, &compared),
            )
        };
        let (result, line) = below(1_000_000_000);
        assert!(
            line.starts_with("failed: allreduce has a bus bandwidth of only 0.67 GB/s, the inventory requires 1.00")
        );
        assert!(line.ends_with("; and 1 finding more"), "{line}");
        assert_eq!((result.code, &result.document["findings"][0]["nodes"]), (1, &serde_json::json!([])));
        assert_eq!(below(670_000_000).0.document["findings"], serde_json::json!([]));
    }
}
