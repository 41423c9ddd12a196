//! `hvdctl verify`: plan, measure, judge, show.

pub mod document;

use crate::checks::verify::{RankReport, RankRow};
use crate::cli::Verify;
use crate::cluster::each_node::all;
use crate::cluster::observation::ObservedNode;
use crate::commands::Outcome;
use crate::commands::check::check_job::RankOutput;
use crate::commands::check::check_job::options_of_check;
use crate::commands::shared::context::{Context, login_table};
use crate::commands::shared::recording::record;
use crate::diagnosis::outcome::JobOutcome;
use crate::error::{Error, Verdict};
use crate::event::Phase;
use crate::grade::evidence::of_stopped;
use crate::inventory::{Controller, Inventory, Node};
use crate::keys::reachability::Matrix;
use crate::node::facts::Facts;
use crate::runtime::container::ContainerSummary;
use crate::schedule::{Allocating, Plan};
use crate::start::plan::JobPlan;
use crate::start::request::{JobOptions, ResourceRequest};
use crate::text::nodeset;
use crate::text::result::ResultText;
use crate::text::table::{Table, cell, detail, id, key, text};
use crate::text::units::count;
use crate::verify::gpus::{examine_gpus, gpus_unknown, lacks_gpus};
use crate::verify::ranks::{VerifyLine, VerifyScope};
use crate::verify::verdict::{VerifyJob, VerifyMeasurement, VerifyVerdict};
use crate::worker::logins;
use document::VerifyDocument;
use std::time::Duration;

/// `verify`.
pub async fn run(options: Verify, context: &Context) -> Result<Outcome, Error> {
    let scope = VerifyScope { full: options.full, minimum: context.target.inventory.bench.min_busbw };
    let plan = plan(&options, scope, context).await?;
    plan.known().map_or(Ok(()), check_up)?;
    let measured = measure(&plan, scope, context).await?;
    let observed = plan.known().into_iter().flat_map(|plan| plan.hosts.observed().chain(&plan.others));
    let nodes: Vec<(Node, Facts)> =
        observed.map(|observed| (observed.member.node.clone(), observed.facts.clone())).collect();
    let verdict = VerifyVerdict::new(&nodes, plan.options().bind, scope, measured);
    verdict.notes.iter().for_each(|note| context.events.note(note));
    // nodes that hvdctl does not know have no ledger
    if plan.known().is_some() {
        record(context, verdict.recorded.clone()).await;
    }
    Ok(show(scope, plan.options().controller, verdict))
}

/// Returns how the job is run.
fn options_of_job(options: &Verify, context: &Context) -> Result<JobOptions, Error> {
    let limit = Duration::from_secs(options.timeout);
    let job = options_of_check(options.np, &options.launching, limit, context)?;
    let resources = ResourceRequest { map_by: options.map_by, ..job.resources };
    Ok(JobOptions { resources, bind: options.bind.or(job.bind), ..job })
}

/// Plans the job. If that fails because of the GPUs of nodes, it is recorded there.
async fn plan(options: &Verify, scope: VerifyScope, context: &Context) -> Result<Plan, Error> {
    let job = options_of_job(options, context)?;
    let program = scope.program(job.launcher, job.controller);
    let planned = context.scheduler().plan(async { Ok(program) }, job, Allocating::Scheduled).await;
    if let Err(error) = &planned {
        record(context, of_stopped(&gpus_unknown(error))).await;
    }
    planned
}

/// Checks that the cluster is set up. Where there are workers, or nodes that cannot have any, the next steps show more
/// of what is wrong.
///
/// # Errors
/// [`Error::NotUp`].
fn check_up(plan: &JobPlan) -> Result<(), Error> {
    let JobPlan { hosts, inventory: Inventory { cluster, .. }, .. } = plan;
    let is_worker = |one: &ContainerSummary| one.name == cluster.worker && one.belongs_to(&cluster.name);
    let has_workers = hosts.others.iter().any(|host| host.observed.runtime.containers.iter().any(is_worker));
    if has_workers || !plan.preflight().failed.is_empty() {
        return Ok(());
    }
    plan.check_up()?;
    if hosts.others.is_empty() {
        return Ok(());
    }
    let nodes: Vec<_> = hosts.others.iter().map(|host| host.observed.name().to_owned()).collect();
    let message = format!("there is no worker on {}", nodeset::fold(&nodes));
    Err(Error::NotUp(Box::new(Error::check(message, "hvdctl up"))))
}

/// Examines the GPUs while the workers log in to each other and the ranks run.
async fn measure(plan: &Plan, scope: VerifyScope, context: &Context) -> Result<VerifyMeasurement, Error> {
    let Context { events, session, .. } = context;
    let examining = async {
        let Some(plan) = plan.known() else { return Ok(None) };
        Ok(session.cancellation.run(async { Ok(examine_gpus(plan, scope.full).await) }).await.ok())
    };
    // why a node lacks GPUs may be seen in the health of the others
    let launching = async {
        match launch(plan, context).await {
            Err(error) if !lacks_gpus(&error) => Err(error),
            launched => Ok(launched),
        }
    };
    let (launched, gpus) = tokio::try_join!(launching, examining)?;
    session.cancellation.check()?;
    let gpus = gpus.unwrap_or_default();
    gpus.report(events);
    let (logins, job) = match launched {
        Ok(launched) => launched,
        Err(error) => {
            gpus.errors().for_each(|finding| events.warn(finding));
            record(context, of_stopped(&gpus.findings)).await;
            return Err(error);
        }
    };
    let job = job.map(|(ended, output)| {
        let failure = output.failure(&ended, events);
        VerifyJob { ended, failure, lines: output.reports }
    });
    Ok(VerifyMeasurement { logins, job, gpus })
}

/// The logins between workers, if there are several; and the job with its output, if they are good.
type VerifyResults = (Option<Matrix>, Option<(JobOutcome, RankOutput<VerifyLine>)>);

/// Tries the logins between the workers, and runs the job if they are good.
async fn launch(plan: &Plan, context: &Context) -> Result<VerifyResults, Error> {
    let logins = match plan.known().filter(|plan| !plan.hosts.others.is_empty()) {
        Some(plan) => Some(check_logins(plan, context).await?),
        None => None,
    };
    if let Some(matrix) = logins.as_ref().filter(|matrix| !matrix.is_good()) {
        let cluster = context.target.cluster();
        if let Some(hint) = matrix.hint(cluster.port, cluster.encrypted_interface()) {
            context.events.note(format!("hint: {hint}"));
        }
        return Ok((logins, None));
    }
    let mut output = RankOutput::new();
    let ended = plan.run(context.site(), &mut |node, frame| output.take(node, frame)).await?;
    Ok((logins, Some((ended, output))))
}

/// Tries the logins between the workers: the launcher may hang if one fails, and does not report which.
async fn check_logins(plan: &JobPlan, context: &Context) -> Result<Matrix, Error> {
    let Context { target, events, session, .. } = context;
    // what these rules find explains more than a failed login
    all(events, plan.preflight().failed.into_iter().map(Err::<(), _>).collect())?;
    events.phase(Phase::LoggingIn);
    let observed: Vec<ObservedNode> = plan.hosts.observed().cloned().collect();
    session.cancellation.run(logins::check(&target.inventory, &observed, events)).await
}

/// Returns what was found as text and as a document.
pub(in crate::commands) fn show(scope: VerifyScope, controller: Controller, found: VerifyVerdict) -> Outcome {
    let mut text = ResultText::default();
    match found.job {
        Some(_) => text.push(summary(scope, &found)),
        None => {
            found.logins.iter().for_each(|matrix| text.push(login_table(matrix)));
            text.push_str("failed: not all workers can log in to each other; nothing was launched\n");
        }
    }
    text.push_str(&found.gpus.text());
    let document = VerifyDocument::new(controller, found);
    Outcome::new(Verdict::of_check(document.faults.is_empty(), 0, &[]), text, document)
}

/// Formats the ranks, and that all is well or what is wrong with the job.
fn summary(scope: VerifyScope, found: &VerifyVerdict) -> ResultText {
    let cells = |row: &RankRow| {
        let report = row.report.as_ref();
        let place = report.map(|report| &report.place);
        let gpu = report.and_then(RankReport::own_gpu);
        let numa = place.map(|place| place.numa.iter().map(u32::to_string).collect::<Vec<_>>().join(","));
        vec![
            row.rank.to_string(),
            row.expected.clone(),
            cell(row.actual.as_ref()),
            cell(report.map(|report| report.sum)),
            cell(place.map(|place| &place.cpus)),
            cell(numa.filter(|numa| !numa.is_empty())),
            cell(gpu.map(|gpu| gpu.device)),
            cell(gpu.and_then(|gpu| gpu.model())),
        ]
    };
    let rows = &found.rows;
    let columns = [
        key("RANK"),
        key("EXPECTED"),
        key("ACTUAL"),
        key("SUM"),
        text("CPUS"),
        detail(1, "NUMA"),
        id("GPU"),
        detail(2, "MODEL"),
    ];
    let mut text = ResultText::from(Table::new(columns, rows.iter().map(cells)));
    if found.all_faults().is_empty() {
        let report = rows.first().and_then(|row| row.report.as_ref());
        let versions = report.map_or(String::new(), |report| {
            format!(" ({}, {}, Python {})", report.framework, report.library, report.python)
        });
        let (ranks, gpus) = (count(rows.len(), "rank"), found.gpus.summary());
        let collectives = if scope.full { ", all collectives correct" } else { "" };
        text.push_str(&format!("ok: {ranks} where expected, allreduce correct{collectives}{gpus}{versions}\n"));
    }
    text.extend(found.faults.iter().map(|fault| format!("failed: {fault}\n")));
    text
}
