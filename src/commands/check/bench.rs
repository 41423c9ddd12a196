//! `hvdctl bench`.

mod files;
mod ranks;

use crate::bench::measure::{Pace, Past, measure, measure_outside};
use crate::bench::measurements::Measurements;
use crate::bench::outside;
use crate::bench::ranks::RankResults;
use crate::bench::recorded::of_network;
use crate::bench::report::compared::Compared;
use crate::bench::report::csv::CsvFormat;
use crate::bench::report::plot::SvgFormat;
use crate::bench::report::text::TextFormat;
use crate::bench::report::{BenchFormat, BenchReport};
use crate::bench::verdict::NetworkVerdict;
use crate::bench::verdict::blame;
use crate::bench::verdict::past::trusted;
use crate::cli::{self, BenchPart};
use crate::cluster::observation::ObservedNode;
use crate::commands::shared::recording::record;
use crate::commands::{Context, Outcome};
use crate::error::{Error, Verdict};
use crate::event::Events;
use crate::grade::evidence::{NodeEvents, joined};
use crate::launch::launcher;
use crate::start::capacity::{check_unallocated, placed};
use crate::start::in_worker::check_modules;
use crate::start::request::JobOptions;
use crate::text::result::ResultText;
use files::BenchFiles;

/// The measurements between the nodes, and their verdict.
#[derive(Default)]
pub(in crate::commands) struct Network {
    measured: Measurements,
    verdict: NetworkVerdict,
    /// The events to record for the nodes.
    found: NodeEvents,
    /// The warnings about jobs of other clusters.
    warned: Vec<String>,
}

/// `bench`.
pub async fn run(options: &cli::Bench, context: &Context) -> Result<Outcome, Error> {
    check_arguments(options, context)?;
    let files = BenchFiles::open(options, &context.target.selected)?;
    let job = match options.measures(BenchPart::Collectives) {
        true => Some(ranks::options(options, context)?),
        false => None,
    };
    let network = match options.measures(BenchPart::Network) {
        true => measure_network(options, job.as_ref(), context).await?,
        false => Network::default(),
    };
    let ranks = match job {
        Some(job) => Some(measure_ranks(options, job, &network, context).await?),
        None => None,
    };
    let Network { measured, verdict, found, .. } = network;
    let collectives = ranks.as_ref().map(|ranks| &ranks.answers.collectives);
    record(context, joined(found, ranks.as_ref().map(RankResults::evidence).unwrap_or_default())).await;
    let compared =
        Compared::new(files.baseline.as_ref(), &measured, collectives, context.target.inventory.bench.min_busbw);
    let report = BenchReport { measured: &measured, verdict: &verdict, ranks: ranks.as_ref(), compared: &compared };
    let drawn = files.write_plot(&SvgFormat, &report);
    if options.csv {
        context.events.note(report.last_line());
    }
    let format: &dyn BenchFormat = if options.csv { &CsvFormat } else { &TextFormat };
    Ok(outcome(format.format(&report)?, &report).with_failure(drawn))
}

fn check_arguments(options: &cli::Bench, context: &Context) -> Result<(), Error> {
    let selected = &context.target.selected;
    if options.measures(BenchPart::Network) && selected.len() < 2 {
        return Err(Error::usage(
            format!("bench measures the network between nodes, and {} is the only one", selected.join("")),
            "select at least two nodes with --on, or add another [[node]] to the inventory; \
             `hvdctl bench --only collectives` measures two or more ranks of one node",
        ));
    }
    if options.forget && !options.measures(BenchPart::Network) {
        return Err(Error::usage("--forget is about the network", "leave out --only collectives"));
    }
    let of_collectives = options.np.is_some() || !options.sizes.is_empty() || options.params.is_some();
    if of_collectives && !options.measures(BenchPart::Collectives) {
        return Err(Error::usage("-np, --sizes and --params are about collectives", "leave out --only network"));
    }
    Ok(())
}

/// Measures the network. `job`: what the ranks will do afterwards, for which everything has to be there before anything
/// is measured.
async fn measure_network(options: &cli::Bench, job: Option<&JobOptions>, context: &Context) -> Result<Network, Error> {
    let Context { target, events, session, .. } = context;
    let nodes = context.scheduler().unused().await?;
    let mut warned = Vec::new();
    warn_of_others(&nodes, &mut warned, events);
    if let Some(job) = job {
        ranks::check_placement(&placed(target, &nodes, job.resources)?)?;
        let modules = launcher(job.launcher, job.controller).verify_with;
        let workers: Vec<&ObservedNode> = nodes.iter().collect();
        session.cancellation.run(check_modules(&workers, target.cluster(), (modules, ranks::NEEDED), events)).await?;
    }
    let pace = if options.quick { Pace::QUICK } else { Pace::DEFAULT };
    let measuring = async {
        let past = match options.forget {
            true => Past::forgotten(nodes.len()),
            false => Past::read(target.cluster(), &nodes, events).await,
        };
        Ok((measure(&target.inventory, &nodes, pace, &past, events).await?, past))
    };
    let (measured, past) = session.cancellation.run(measuring).await?;
    let after = observe_after(context).await?;
    warn_of_others(after.as_deref().unwrap_or_default(), &mut warned, events);
    let mut verdict = blame::verdict(&measured);
    verdict.notes.extend(outside::advice(&measured));
    if target.cluster().network.is_some() && nodes.len() > 1 {
        events.note("measuring again without the encrypted network");
        let measuring = async { Ok(measure_outside(&target.inventory, &nodes, events).await) };
        let without = session.cancellation.run(measuring).await?;
        verdict.notes.extend(
            without.map_or_else(|error| vec![error.to_string()], |without| outside::compared(&measured, &without)),
        );
    }
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

/// Observes the nodes after the measurement; `None`: they do not all answer. What a job has disturbed is neither judged
/// nor kept.
async fn observe_after(context: &Context) -> Result<Option<Vec<ObservedNode>>, Error> {
    let events = &context.events;
    match context.observe_all(&context.target, false, events).await {
        Ok(after) => {
            check_unallocated(&after).inspect_err(|_| {
                events.note(
                    "a job started during the measurement: the results are neither judged nor kept for later \
                     benchmarks",
                );
            })?;
            Ok(Some(after))
        }
        // what was measured is shown nevertheless
        Err(Error::Nodes { failed, .. } | Error::Unreachable(failed)) => {
            failed.into_iter().for_each(|error| events.warn(error));
            events.warn(
                "cannot tell whether a job started during the measurement: the results are not kept for later \
                 benchmarks",
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
) -> Result<RankResults, Error> {
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
            Ok(RankResults { failure, ..RankResults::default() })
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

pub(in crate::commands) fn outcome(text: impl Into<ResultText>, report: &BenchReport<'_>) -> Outcome {
    Outcome::new(Verdict::of_check(report.is_good(), report.measured.nodes.len(), &[]), text, report.document())
}
