//! The part of `bench` that the ranks of a job do, and how it is shown.

use super::super::Context;
use super::super::job_start::{self, Allocating};
use super::super::rank_output::RankOutput;
use super::{Network, warn_of_others};
use crate::bench::collectives::RankRequest;
use crate::checks::bench::answers::{Answers, slowest_link};
use crate::checks::bench::collectives::{Collectives, Exchange, RankSpeed, WrongResult};
use crate::checks::bench::speeds::{Straggler, stragglers};
use crate::checks::bench::{Measurements, micros};
use crate::cli;
use crate::error::Error;
use crate::grade::evidence::{NodeEvents, joined, of_ranks, of_speeds};
use crate::launch;
use crate::launch::placement::{Placement, Share};
use crate::model::collective::{Collective, Dtype, Estimate, ModelEstimate, format_size};
use crate::render::table::{cell, table};
use crate::start::in_worker::check_modules;
use crate::start::request::JobOptions;
use crate::text::units::count;
use std::collections::BTreeMap;
use std::time::Duration;

/// Wrong results, and the slowest ranks, of which each has a row.
const ROWS: usize = 8;

/// The time for the measurements of the ranks: with the network and without it.
const BUDGET: [Duration; 2] = [Duration::from_secs(5), Duration::from_secs(15)];
/// That time with `--quick`.
const QUICK: [Duration; 2] = [Duration::from_secs(2), Duration::from_secs(4)];

/// What the ranks measured.
#[derive(Debug, Clone, Default)]
pub struct Ranks {
    /// Their answers.
    pub answers: Answers,
    /// The nodes of the job, in rank order.
    pub nodes: Vec<String>,
    /// Why the job failed, or a rank did not finish.
    pub failure: Option<String>,
    /// What a step of the model of `--params` costs.
    pub estimate: Option<ModelEstimate>,
    /// The ranks whose devices are slow.
    pub stragglers: Vec<Straggler>,
    /// Whether jobs of other clusters ran on its nodes.
    pub is_disturbed: bool,
}

/// Returns the options of the job.
///
/// # Errors
/// Fewer than two ranks, and as of [`job_start::options_of_check`].
pub fn options(options: &cli::Bench, context: &Context) -> Result<JobOptions, Error> {
    if options.np == Some(1) {
        return Err(too_few(1));
    }
    job_start::options_of_check(options.np, &options.launching, Duration::from_secs(options.timeout), context)
}

/// Checks that a job has ranks that exchange something.
///
/// # Errors
/// Fewer than two ranks.
pub fn check_placement(placement: &Placement) -> Result<(), Error> {
    if placement.ranks() < 2 { Err(too_few(placement.ranks())) } else { Ok(()) }
}

fn too_few(ranks: u32) -> Error {
    Error::usage(
        format!("collectives need at least 2 ranks, and there would be {ranks}"),
        "select more nodes with --on, or set `slots` of a node to the number of its ranks",
    )
}

/// Runs the job, and puts together what its ranks measured. `network`: what was measured between the nodes, if it was.
///
/// # Errors
/// When the job could not be started, was stopped or took too long.
pub async fn run(
    options: &cli::Bench,
    job: JobOptions,
    network: Option<&Network>,
    context: &Context,
) -> Result<Ranks, Error> {
    let events = &context.events;
    let modules = launch::launcher(job.launcher, job.controller).verify_with;
    let budget = if options.quick { QUICK } else { BUDGET }[usize::from(network.is_none())];
    let request = RankRequest { sizes: &options.sizes, budget, is_quick: options.quick };
    let program = request.program(job.launcher, job.controller);
    let plan = job_start::plan(async { Ok(program) }, job, Allocating::WhenFree, context).await?;
    check_placement(&plan.placement)?;
    let mut warned = network.map(|network| network.warned.clone()).unwrap_or_default();
    let is_disturbed = warn_of_others(plan.hosts.observed(), &mut warned, events);
    let network = network.map(|network| &network.measured);
    if network.is_none() {
        let observed: Vec<_> = plan.hosts.observed().collect();
        let checking = check_modules(&observed, context.target.cluster(), modules, events);
        context.session.cancellation.run(checking).await?;
    }
    let mut output = RankOutput::new();
    let ended = job_start::start(&plan, context, |node, frame| output.take(node, frame)).await;
    let (placement, failure) = match ended {
        Ok(ended) => (ended.placement.clone(), output.failure(&ended, events)),
        // what was found before the time was over still holds
        Err(error @ Error::Check { .. }) if !output.reports.is_empty() => {
            events.warn(&error);
            let text = error.to_string();
            (plan.placement.clone(), Some(text.lines().next().unwrap_or_default().to_owned()))
        }
        Err(error) => return Err(error),
    };
    let lines: Vec<_> = output.reports.into_iter().map(|(_, rank, line)| (rank, line)).collect();
    let nodes: Vec<String> = placement.shares.iter().filter(|share| share.ranks > 0).map(node_name).collect();
    let ring: Vec<&str> = nodes.iter().map(String::as_str).collect();
    let link = network.and_then(|network| slowest_link(network, &ring));
    let mut answers = Answers::new(&placement, &lines, link);
    let unfinished = || {
        let ranks: Vec<String> = answers.unfinished.iter().map(u32::to_string).collect();
        (!ranks.is_empty()).then(|| format!("rank {} did not finish", ranks.join(", ")))
    };
    let failure = failure.or_else(|| answers.apart.clone()).or_else(unfinished);
    let estimate = options.params.and_then(|params| estimate(&answers.collectives, nodes.len(), params, options));
    let stragglers = stragglers(&answers.collectives.speeds, network.unwrap_or(&Measurements::default()));
    let unclear = stragglers.iter().filter(|straggler| straggler.is_unclear());
    answers.notes.extend(unclear.take(ROWS).map(|straggler| straggler.text.clone()));
    stragglers.iter().filter(|straggler| straggler.is_doubtful).for_each(|straggler| events.note(&straggler.text));
    Ok(Ranks { answers, nodes, failure, estimate, stragglers, is_disturbed })
}

fn node_name(share: &Share) -> String {
    share.node.clone()
}

/// Returns what a step of a model costs, from the allreduce with arrays that are nearest to the gradients in size, and in their type if
/// that was measured.
fn estimate(measured: &Collectives, nodes: usize, params: u64, options: &cli::Bench) -> Option<ModelEstimate> {
    let bytes = params.saturating_mul(options.dtype.bytes());
    // how many times as large or small, in eighths: arrays of different types are not exactly of one size
    let distance = |exchange: &&Exchange| {
        let ratio = (exchange.bytes as f64 / bytes as f64).log2().abs();
        ((ratio * 8.0).round() as u64, exchange.dtype != options.dtype)
    };
    let allreduces = measured.exchanges.iter().filter(|exchange| exchange.collective == Collective::AllReduce);
    let nearest = allreduces.min_by_key(distance)?;
    let estimate = Estimate::new(nodes, measured.ranks as usize, bytes, nearest.bus_bandwidth, options.step)?;
    Some(ModelEstimate { params, dtype: options.dtype, estimate })
}

impl Ranks {
    /// Returns everything that is wrong, as sentences, with the node that each is about.
    pub fn findings(&self) -> Vec<(Option<String>, String)> {
        let slow = self.slow().map(|straggler| (Some(straggler.node.clone()), straggler.text.clone()));
        self.errors().into_iter().chain(slow).collect()
    }

    /// Returns what is wrong, and not only slow.
    pub(super) fn errors(&self) -> Vec<(Option<String>, String)> {
        let failure = self.failure.iter().map(|cause| (None, format!("the collectives were not measured: {cause}")));
        failure.chain(self.wrong_results()).collect()
    }

    /// Returns the ranks that are slow, the slowest first.
    pub(super) fn slow(&self) -> impl Iterator<Item = &Straggler> {
        self.stragglers.iter().filter(|straggler| straggler.is_finding())
    }

    /// Returns how many ranks or nodes look slow and are not judged.
    pub(super) fn unclear(&self) -> usize {
        self.stragglers.iter().filter(|straggler| straggler.is_unclear()).count()
    }

    fn wrong_results(&self) -> Vec<(Option<String>, String)> {
        let mut of_ranks: BTreeMap<u32, Vec<&WrongResult>> = BTreeMap::new();
        for wrong in &self.answers.collectives.wrong {
            of_ranks.entry(wrong.rank).or_default().push(wrong);
        }
        let sentence = |(rank, wrong): (u32, Vec<&WrongResult>)| {
            let WrongResult { node, collective, dtype, bytes, .. } = wrong[0];
            let more = match wrong.len() - 1 {
                0 => String::new(),
                more => format!(", and {more} more"),
            };
            let size = format_size(*bytes);
            (Some(node.clone()), format!("rank {rank} on {node} is wrong: {collective} of {dtype}, {size}{more}"))
        };
        of_ranks.into_iter().map(sentence).collect()
    }

    /// Returns what is to be recorded of the nodes: nothing but speeds if the collectives were not measured to their end, and no speeds
    /// that other jobs have disturbed.
    pub fn evidence(&self) -> NodeEvents {
        let (found, speeds) = match self.is_disturbed {
            true => (self.wrong_results(), NodeEvents::new()),
            false => (self.findings(), of_speeds(&self.answers.collectives.speeds)),
        };
        if self.failure.is_some() { speeds } else { joined(of_ranks(&self.nodes, &found), speeds) }
    }

    /// Returns what is said if nothing is wrong.
    pub fn good(&self) -> String {
        let right = format!("all results of {} are right", count(self.answers.collectives.ranks as usize, "rank"));
        match self.unclear() {
            0 => right,
            unclear => format!("{right}, but the speed of {} is not judged", count(unclear, "rank")),
        }
    }

    /// Formats the wrong results, and the tables.
    pub fn text(&self) -> String {
        let Collectives { exchanges, speeds, wrong, library, .. } = &self.answers.collectives;
        let line = |wrong: &WrongResult| format!("wrong: rank {} on {}: {wrong}\n", wrong.rank, wrong.node);
        let mut text: String = wrong.iter().take(ROWS).map(line).collect();
        if wrong.len() > ROWS {
            text.push_str(&format!("wrong: {} more; --json has all\n", wrong.len() - ROWS));
        }
        let separate = |text: &mut String| {
            if !text.is_empty() {
                text.push('\n');
            }
        };
        if !speeds.is_empty() {
            separate(&mut text);
            text.push_str(&speed_table(speeds));
        }
        if !exchanges.is_empty() {
            separate(&mut text);
            text.push_str(&size_table(exchanges, library));
            text.push_str(&format!("\n{}", series_table(exchanges)));
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
fn speed_table(speeds: &[RankSpeed]) -> String {
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
    let mut text = table(&["RANK", "NODE", "DEVICE", "PRODUCT", "COPY"], slowest.iter().take(ROWS).map(row));
    if speeds.len() > ROWS {
        text.push_str(&format!("the {ROWS} slowest of {}; --json has all\n", count(speeds.len(), "rank")));
    }
    text
}

fn share(exchange: &Exchange) -> String {
    cell(exchange.ring_share.map(|share| format!("{:.0} %", share * 100.0)))
}

/// Formats an allreduce of each size, in the first type that was measured.
fn size_table(exchanges: &[Exchange], library: &str) -> String {
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
    let rows = table(&["SIZE", "TIME", "ALGORITHM", "BUS", "OF RING"], exchanges.iter().filter(shown).map(row));
    format!("allreduce of {first} ({library})\n{rows}")
}

/// Formats the shortest time and the best bandwidth of each operation and type.
fn series_table(exchanges: &[Exchange]) -> String {
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
    table(&["OPERATION", "TYPE", "LATENCY", "BEST BUS", "AT", "OF RING"], series.into_iter().map(row))
}

#[cfg(test)]
pub(in super::super) mod tests {
    use super::*;
    use clap::Parser;

    /// What ranks on as many nodes measured, some of them with wrong results.
    pub fn ranks(n: u32, wrong: &[u32]) -> Ranks {
        let exchange = |collective: Collective, dtype, bytes: u64| {
            let time = Duration::from_secs_f64(60e-6 + collective.ring_bytes(bytes, n as usize) / 1.1e9);
            let bandwidth = collective.bandwidth(bytes, time, n as usize).unwrap();
            Exchange {
                collective,
                dtype,
                bytes,
                time_us: time.as_secs_f64() * 1e6,
                algorithm_bandwidth: bandwidth.algorithm,
                bus_bandwidth: bandwidth.bus,
                ring_share: Some(bandwidth.bus / 1.175),
            }
        };
        let node = |rank: u32| format!("node{}", rank + 1);
        let operations = [Collective::AllReduce, Collective::ReduceScatter];
        let series = operations.into_iter().flat_map(|of| [Dtype::Float32, Dtype::Float16].map(|dtype| (of, dtype)));
        let sizes = [1 << 10, 1 << 20, 256 << 20];
        let exchanges = series.flat_map(|(of, dtype)| sizes.map(|bytes| exchange(of, dtype, bytes))).collect();
        let speed = |rank| RankSpeed {
            rank,
            node: node(rank),
            device: "cpu".into(),
            flops: 21.4e9,
            copy_bytes_per_s: 9.6e9,
            share: Some(0.98),
            alone: false,
        };
        let wrong_result = |rank: &u32| WrongResult {
            rank: *rank,
            node: node(*rank),
            collective: Collective::AllReduce,
            dtype: Dtype::Float16,
            bytes: 1024,
            text: "1 wrong element: expected 7 at 5, found 6".into(),
        };
        let wrong: Vec<WrongResult> = wrong.iter().map(wrong_result).collect();
        let library = "Horovod 0.28.1, torch 1.13.0".to_owned();
        let collectives = Collectives { ranks: n, library, exchanges, speeds: (0..n).map(speed).collect(), wrong };
        let answers = Answers { collectives, ..Answers::default() };
        Ranks { answers, nodes: (0..n).map(node).collect(), ..Ranks::default() }
    }

    fn slow(node: &str, text: String, share: f64) -> Straggler {
        Straggler { node: node.to_owned(), text, share, is_judged: true, is_doubtful: false }
    }

    #[test]
    fn the_strongest_finding_comes_first() {
        let measured = super::super::tests::measured(4, |from, _| Ok(if from == 2 { 0.05 } else { 9.4 }));
        let verdict = crate::checks::bench::blame::verdict(&measured);
        let mut ranks = ranks(4, &[3]);
        ranks.stragglers = vec![slow("node1", "rank 0 is slow".to_owned(), 0.61)];
        let order = |ranks: &Ranks| -> Vec<String> {
            let compared = super::super::compared::Compared::default();
            let document = super::super::outcome(String::new(), &measured, &verdict, Some(ranks), &compared).document;
            let findings = document["findings"].as_array().unwrap().iter();
            let nodes = findings.map(|finding| finding["nodes"][0].as_str().unwrap().to_owned()).collect::<Vec<_>>();
            let last = super::super::text::last_line(&measured, &verdict, Some(ranks), &compared);
            assert_eq!(document["verdict"], last.trim_start_matches("failed: "), "{last}");
            nodes
        };
        assert_eq!(order(&ranks), ["node4", "node3", "node1"], "a wrong result, 1 %, 61 %");
        ranks.stragglers[0].share = 0.001;
        assert_eq!(order(&ranks), ["node4", "node1", "node3"]);
    }

    #[test]
    fn a_rank_that_is_not_judged_makes_the_verdict_unclear() {
        let mut ranks = ranks(4, &[]);
        ranks.stragglers = vec![Straggler { is_judged: false, ..slow("node1", "rank 0".to_owned(), 0.61) }];
        assert_eq!(
            shown(&ranks).lines().last().unwrap(),
            "unclear: all results of 4 ranks are right, but the speed of 1 rank is not judged"
        );
        let good = super::super::tests::measured(4, |_, _| Ok(9.4));
        let verdict = crate::checks::bench::blame::verdict(&good);
        let compared = super::super::compared::Compared::default();
        let code = |ranks: &Ranks| super::super::outcome(String::new(), &good, &verdict, Some(ranks), &compared).code;
        assert_eq!(code(&ranks), 1);
        ranks.stragglers[0].is_doubtful = true;
        assert_eq!(code(&ranks), 0, "of two processors either may be of another model");
    }

    #[test]
    fn other_jobs_explain_slow_ranks_and_no_wrong_results() {
        let mut ranks = ranks(2, &[1]);
        let text = "rank 0 is slow".to_owned();
        ranks.stragglers = vec![slow("node1", text, 0.61)];
        ranks.answers.collectives.speeds.iter_mut().for_each(|speed| speed.device = "cuda:0".into());
        let recorded = |ranks: &Ranks| format!("{:?}", ranks.evidence());
        let both =
            ["rank 0 is slow", "rank 1 on node2 is wrong", "Product"].map(|text| recorded(&ranks).contains(text));
        assert_eq!(both, [true; 3], "{}", recorded(&ranks));
        ranks.is_disturbed = true;
        let wrong =
            ["rank 0 is slow", "rank 1 on node2 is wrong", "Product"].map(|text| recorded(&ranks).contains(text));
        assert_eq!(wrong, [false, true, false], "{}", recorded(&ranks));
    }

    fn shown(ranks: &Ranks) -> String {
        console::set_colors_enabled(false);
        super::super::text::text(
            &Measurements::default(),
            &crate::checks::bench::Verdict::default(),
            Some(ranks),
            &super::super::compared::Compared::default(),
        )
    }

    fn options(line: &str) -> cli::Bench {
        let cli = cli::Cli::try_parse_from(line.split_whitespace()).unwrap();
        let cli::Command::Bench(options) = cli.command else { panic!("{line}") };
        options
    }

    #[test]
    fn collectives_that_are_right() {
        let mut ranks = ranks(2, &[]);
        let options = options("hvdctl bench --params 124M --step 1.1s --dtype fp16");
        ranks.estimate = estimate(&ranks.answers.collectives, 2, 124_000_000, &options);
        let text = shown(&ranks);
        assert!(
            text.lines().all(|line| console::measure_text_width(line) <= 80 || line.contains("parameters")),
            "{text}"
        );
        insta::assert_snapshot!(text);
    }

    #[test]
    fn wrong_results_come_first_and_last() {
        let text = shown(&ranks(12, &[1, 1, 4]));
        assert!(text.starts_with("wrong: rank 1 on node2: allreduce of float16, 1K: 1 wrong element"), "{text}");
        assert!(text.contains("\nthe 8 slowest of 12 ranks; --json has all\n"), "{text}");
        let last: Vec<&str> = text.lines().rev().take(3).collect();
        assert_eq!(
            last,
            [
                "failed: rank 1 on node2 is wrong: allreduce of float16, 1K, and 1 more; and 1 finding more",
                "found: rank 4 on node5 is wrong: allreduce of float16, 1K",
                "found: rank 1 on node2 is wrong: allreduce of float16, 1K, and 1 more",
            ]
        );
        let failed = Ranks { failure: Some("rank 1 was killed".into()), ..Ranks::default() };
        assert_eq!(shown(&failed), "failed: the collectives were not measured: rank 1 was killed\n");
    }

    #[test]
    fn the_estimate_is_from_the_nearest_size() {
        let mut measured = ranks(2, &[]).answers.collectives;
        for exchange in measured.exchanges.iter_mut().filter(|one| one.collective == Collective::AllReduce) {
            let speed = |dtype| f64::from(u8::from(exchange.dtype == dtype));
            exchange.bus_bandwidth = match exchange.bytes {
                1_048_576 => 0.5 * speed(Dtype::Float16) + 0.25 * speed(Dtype::Float32),
                _ => 0.1,
            };
        }
        let of = |params, line: &str| estimate(&measured, 2, params, &options(line)).unwrap().to_string();
        // 1 MB in all types
        let half = of(500_000, "hvdctl bench --params 500K --dtype fp16");
        assert_eq!(half, "500000 parameters in float16: 2 ms a step on the wire");
        let full = of(250_000, "hvdctl bench --params 250K");
        assert_eq!(full, "250000 parameters in float32: 4 ms a step on the wire");
        // a type that was not measured has the speed of others
        let other = of(500_000, "hvdctl bench --params 500K --dtype bf16");
        assert_eq!(other, "500000 parameters in bfloat16: 4 ms a step on the wire");
        measured.exchanges.clear();
        assert_eq!(estimate(&measured, 2, 500_000, &options("hvdctl bench --params 1M")), None);
    }
}
