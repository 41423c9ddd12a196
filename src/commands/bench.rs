//! `hvdctl bench`.

pub(super) mod compared;
mod csv;
pub(super) mod document;
mod files;
pub(super) mod ranks;
mod text;

use super::recording::record;
use super::{Context, Outcome};
use crate::bench::{Pace, Past, measure};
use crate::checks::bench::past::trusted;
use crate::checks::bench::{Measurements, Verdict as Blame, blame};
use crate::cli::{self, Part};
use crate::cluster::observation::ObservedNode;
use crate::error::{Error, Verdict};
use crate::event::Events;
use crate::grade::evidence::{NodeEvents, joined, of_network};
use crate::launch::launcher;
use crate::render::plot;
use crate::start::capacity::{check_unallocated, placed};
use crate::start::in_worker::check_modules;
use crate::start::request::JobOptions;
use compared::Compared;
use csv::csv;
use document::details;
use files::Files;
use ranks::Ranks;
use text::{Best, last_line, names, text};

/// What was measured between the nodes.
#[derive(Default)]
pub(super) struct Network {
    measured: Measurements,
    verdict: Blame,
    /// What is to be recorded of the nodes.
    found: NodeEvents,
    /// The warnings about jobs of other clusters.
    warned: Vec<String>,
}

/// `bench`.
pub async fn run(options: &cli::Bench, context: &Context) -> Result<Outcome, Error> {
    check_arguments(options, context)?;
    let files = Files::open(options, &context.target.selected)?;
    let job = match options.measures(Part::Collectives) {
        true => Some(ranks::options(options, context)?),
        false => None,
    };
    let network = match options.measures(Part::Network) {
        true => measure_network(options, job.as_ref(), context).await?,
        false => Network::default(),
    };
    let ranks = match job {
        Some(job) => Some(measure_ranks(options, job, &network, context).await?),
        None => None,
    };
    let Network { measured, verdict, found, .. } = network;
    let collectives = ranks.as_ref().map(|ranks| &ranks.answers.collectives);
    record(context, joined(found, ranks.as_ref().map(Ranks::evidence).unwrap_or_default())).await;
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
    Ok(outcome(text, &measured, &verdict, ranks.as_ref(), &compared).with_failure(drawn))
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
async fn measure_network(options: &cli::Bench, job: Option<&JobOptions>, context: &Context) -> Result<Network, Error> {
    let Context { target, events, session, .. } = context;
    let nodes = context.unused().await?;
    let mut warned = Vec::new();
    warn_of_others(&nodes, &mut warned, events);
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
    let after = observe_after(context).await?;
    warn_of_others(after.as_deref().unwrap_or_default(), &mut warned, events);
    let verdict = blame::verdict(&measured);
    let mut found = NodeEvents::new();
    // what a job of another cluster has disturbed, or may have, is no measure for later
    if after.is_some() && warned.is_empty() {
        let latest = trusted(&measured, &verdict);
        found = of_network(&measured, &verdict);
        let keeping = async {
            past.write(target.cluster(), &nodes, &latest, events).await;
            Ok(())
        };
        session.cancellation.run(keeping).await?;
    }
    Ok(Network { measured, verdict, found, warned })
}

/// Observes the nodes after the measurement; `None`: they do not all answer. What a job has disturbed is neither judged nor kept.
async fn observe_after(context: &Context) -> Result<Option<Vec<ObservedNode>>, Error> {
    let events = &context.events;
    match context.observe_all(&context.target, false, events).await {
        Ok(after) => {
            check_unallocated(&after).inspect_err(|_| {
                events.note(
                    "a job has started during the measurement: what was measured is neither judged nor kept for later benchmarks",
                );
            })?;
            Ok(Some(after))
        }
        // what was measured is shown nevertheless
        Err(Error::Nodes { failed, .. } | Error::Unreachable(failed)) => {
            failed.into_iter().for_each(|error| events.warn(error));
            events.warn(
                "cannot tell whether a job has started during the measurement: it is not kept for later benchmarks",
            );
            Ok(None)
        }
        Err(error) => Err(error),
    }
}

/// Lets the ranks of a job measure. A job that cannot be started is a finding if the network has been measured before.
async fn measure_ranks(
    options: &cli::Bench,
    job: JobOptions,
    network: &Network,
    context: &Context,
) -> Result<Ranks, Error> {
    let network = Some(network).filter(|network| !network.measured.nodes.is_empty());
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

/// Warns of the jobs of other clusters, except for what was `warned` of before. Returns whether there are any.
fn warn_of_others<'a>(
    nodes: impl IntoIterator<Item = &'a ObservedNode>,
    warned: &mut Vec<String>,
    events: &Events,
) -> bool {
    let warnings: Vec<String> = nodes.into_iter().filter_map(other_jobs).collect();
    for warning in &warnings {
        if !warned.contains(warning) {
            events.warn(warning);
            warned.push(warning.clone());
        }
    }
    !warnings.is_empty()
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
    let is_fine = |ranks: &Ranks| ranks.findings().is_empty() && ranks.unclear() == 0;
    let is_good = verdict.is_good() && compared.is_good() && ranks.is_none_or(is_fine);
    Outcome::new(
        Verdict::of_check(is_good, measured.nodes.len(), &[]),
        text,
        details(measured, verdict, ranks, compared),
    )
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use crate::checks::bench::baseline::Baseline;
    use crate::checks::bench::collectives::{Collectives, Exchange};
    use crate::checks::bench::{Compute, Direction, Link, NodeEvidence, Probes, RoundTrip, Transfer, Usage};
    use crate::model::collective::{Collective, Dtype};
    use std::collections::BTreeMap;

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
                alone: false,
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
