//! The part of `bench` that the ranks of a job do.

use super::{Network, warn_of_others};
use crate::bench::measure::rank_program::RankRequest;
use crate::bench::measurements::Measurements;
use crate::bench::ranks::{RankResults, TrainedModel};
use crate::bench::verdict::answers::{Answers, slowest_link};
use crate::bench::verdict::speeds::stragglers;
use crate::cli;
use crate::commands::Context;
use crate::commands::check::check_job::RankOutput;
use crate::commands::check::check_job::options_of_check;
use crate::error::Error;
use crate::launch;
use crate::launch::placement::{Placement, Share};
use crate::schedule::{self, Allocating};
use crate::start::in_worker::check_modules;
use crate::start::request::JobOptions;
use std::time::Duration;

/// The hint if there is no framework.
pub(super) const NEEDED: &str = "the ranks communicate over one of these; hvdctl bench --only network needs none";

/// The time for the measurements of the ranks: with the network and without it.
const BUDGET: [Duration; 2] = [Duration::from_secs(5), Duration::from_secs(15)];
/// The budget with `--quick`.
const QUICK: [Duration; 2] = [Duration::from_secs(2), Duration::from_secs(4)];

/// The most ranks that are not judged and have a note each.
const NOTED: usize = 8;

/// Returns the options of the job.
///
/// # Errors
/// Fewer than two ranks, and as of [`options_of_check`].
pub fn options(options: &cli::Bench, context: &Context) -> Result<JobOptions, Error> {
    if options.np == Some(1) {
        return Err(too_few(1));
    }
    options_of_check(options.np, &options.launching, Duration::from_secs(options.timeout), context)
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
        format!("collectives need at least 2 ranks, but there would be {ranks}"),
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
) -> Result<RankResults, Error> {
    let events = &context.events;
    let modules = launch::launcher(job.launcher, job.controller).verify_with;
    let budget = if options.quick { QUICK } else { BUDGET }[usize::from(network.is_none())];
    let request = RankRequest { sizes: &options.sizes, budget, is_quick: options.quick };
    let program = request.program(job.launcher, job.controller);
    let plan = context.scheduler().place(async { Ok(program) }, job, Allocating::WhenFree).await?;
    check_placement(&plan.placement)?;
    let mut warned = network.map(|network| network.warned.clone()).unwrap_or_default();
    let is_disturbed = warn_of_others(plan.hosts.observed(), &mut warned, events);
    let network = network.map(|network| &network.measured);
    if network.is_none() {
        let observed: Vec<_> = plan.hosts.observed().collect();
        let checking = check_modules(&observed, context.target.cluster(), (modules, NEEDED), events);
        context.session.cancellation.run(checking).await?;
    }
    let mut output = RankOutput::new();
    let ended = schedule::run(&plan, context.site(), |node, frame| output.take(node, frame)).await;
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
    let estimate = options.params.and_then(|params| {
        let model = TrainedModel { params, dtype: options.dtype, step: options.step };
        model.estimate(&answers.collectives, nodes.len())
    });
    let stragglers = stragglers(&answers.collectives.speeds, network.unwrap_or(&Measurements::default()));
    let unclear = stragglers.iter().filter(|straggler| straggler.is_unclear());
    answers.notes.extend(unclear.take(NOTED).map(|straggler| straggler.text.clone()));
    stragglers.iter().filter(|straggler| straggler.is_doubtful).for_each(|straggler| events.note(&straggler.text));
    Ok(RankResults { answers, nodes, failure, estimate, stragglers, is_disturbed })
}

fn node_name(share: &Share) -> String {
    share.node.clone()
}
