//! `hvdctl jobs` and `hvdctl stop`.

mod listing;

use crate::cli::{Global, Jobs, Prune, Stop};
use crate::cluster::each_node::NodeResults;
use crate::cluster::fleet::Fleet;
use crate::cluster::target::Target;
use crate::commands::shared::target::also_under_slurm;
use crate::commands::{Context, Outcome};
use crate::document::{NoDetails, NodeEntry, entries};
use crate::error::{Error, NodeError, Verdict};
use crate::job::manage;
use crate::model::idle_rank;
use crate::record::JobState;
use crate::record::find::Newest;
use crate::record::list::Job;
use crate::text::nodeset;
use crate::text::result::ResultText;
use crate::text::table::{Table, cell, detail, key, note, text};
use crate::text::units::count;
use listing::{JobListing, listing, watch};
use schemars::JsonSchema;
use serde::Serialize;
use std::future::Future;
use std::time::Duration;

/// `jobs`.
#[derive(Debug, Serialize, JsonSchema)]
pub struct JobsDocument {
    /// The jobs, the newest first.
    pub jobs: Vec<Job>,
    /// The nodes that did not answer.
    pub nodes: Vec<NodeEntry<NoDetails>>,
}

/// `jobs prune`.
#[derive(Debug, Serialize, JsonSchema)]
pub struct JobsPrune {
    /// The ids of the jobs that were removed.
    pub removed: Vec<String>,
    /// The nodes.
    pub nodes: Vec<NodeEntry<NoDetails>>,
}

/// `stop`.
#[derive(Debug, Serialize, JsonSchema)]
pub struct StopDocument {
    /// The id of the job.
    pub job: String,
    /// False if the job had already ended.
    pub changed: bool,
    /// The state of the job.
    pub state: Option<JobState>,
    /// Nodes of the job that did not answer.
    pub silent: Vec<String>,
}

/// Seconds.
const A_DAY: f64 = 86_400.0;

/// `jobs`, once or again and again.
pub async fn show(options: &Jobs, global: &Global, context: &Context) -> Result<Outcome, Error> {
    let slurm = || also_under_slurm(&context.target.inventory, global, &context.events);
    if options.watch { watch(options.running, slurm, context).await } else { list(options, slurm(), context).await }
}

/// `jobs`. `slurm`: the Slurm of the inventory, if that has nodes as well.
async fn list(
    options: &Jobs,
    slurm: impl Future<Output = Result<Option<(Target, Fleet)>, Error>>,
    context: &Context,
) -> Result<Outcome, Error> {
    let Context { target, fleet, events, .. } = context;
    let JobListing { jobs, answered, failed, now } = listing(options.running, slurm, target, fleet, events).await?;
    Ok(listed(&jobs.iter().collect::<Vec<_>>(), answered, &failed, now))
}

pub(in crate::commands) fn listed(jobs: &[&Job], answered: usize, failed: &[NodeError], now: f64) -> Outcome {
    let details = JobsDocument { jobs: jobs.iter().copied().cloned().collect(), nodes: entries([], failed) };
    Outcome::new(Verdict::Nodes { done: answered, failed }, job_table(jobs, now), details)
}

/// `jobs prune`.
pub async fn prune(options: &Prune, context: &Context) -> Result<Outcome, Error> {
    let Context { target, fleet, events, .. } = context;
    let list = manage::list(target, fleet, events).await?;
    // a job that seems lost may still be uploading a large project
    let over = list.jobs.iter().filter(|job| job.ended.is_some() || job.is_over() && list.now - job.started > A_DAY);
    let old = |job: &Job| options.older_than.is_none_or(|age| job.started < list.now - age.as_secs_f64());
    let ids: Vec<String> = over.skip(options.keep).filter(|job| old(job)).map(|job| job.id.clone()).collect();
    if !ids.is_empty() {
        context.confirm(&format!("remove the records and logs of {}?", count(ids.len(), "ended job"))).await?;
    }
    let none = NodeResults { ok: Vec::new(), failed: Vec::new() };
    let done = if ids.is_empty() { none } else { manage::prune(&list, &ids, events).await };
    let NodeResults { ok: done, mut failed } = done;
    failed.extend(list.failed);
    Ok(pruned(&ids, &done, &failed))
}

pub(in crate::commands) fn pruned(ids: &[String], nodes: &[String], failed: &[NodeError]) -> Outcome {
    let text = match ids.len() {
        0 => "nothing to remove\n".to_owned(),
        n => format!("removed {}\n", count(n, "job")),
    };
    let verdict = Verdict::Nodes { done: nodes.len(), failed };
    let nodes = entries(nodes.iter().map(|node| NodeEntry::new(node, true, NoDetails {})), failed);
    Outcome::new(verdict, text, JobsPrune { removed: ids.to_vec(), nodes })
}

/// `stop`.
pub async fn stop(options: &Stop, context: &Context) -> Result<Outcome, Error> {
    let Context { target, fleet, events, .. } = context;
    let jobs = manage::list(target, fleet, events).await?;
    // a running job takes precedence over an ended job of the same name
    let wanted = options.job.as_deref();
    let running = jobs.jobs.iter().find(|job| !job.is_over() && wanted.is_none_or(|name| job.name == name));
    let job = running.map_or_else(|| jobs.find(wanted, Newest::Any), Ok)?;
    if job.is_over() && job.ended.is_some() {
        let (id, state) = (job.id.clone(), job.state);
        let details = StopDocument { job: id, changed: false, state, silent: Vec::new() };
        return Ok(Outcome::ok(format!("job {} has already ended\n", job.id), details));
    }
    let (state, silent) = manage::stop(&jobs, job, events).await?;
    Ok(stopped(&job.id, state, silent))
}

pub(in crate::commands) fn stopped(id: &str, state: JobState, silent: Vec<String>) -> Outcome {
    let mut text = format!("job {id} has ended\n");
    let verdict = if silent.is_empty() { Verdict::Done } else { Verdict::Partly };
    if !silent.is_empty() {
        let nodes = nodeset::fold(&silent);
        text.push_str(&format!("no answer from {nodes}: ranks may still be running there (hvdctl doctor --fix)\n"));
    }
    Outcome::new(verdict, text, StopDocument { job: id.to_owned(), changed: true, state: Some(state), silent })
}

/// `now`: by the nodes' clocks, in seconds since the epoch.
fn job_table(jobs: &[&Job], now: f64) -> ResultText {
    if jobs.is_empty() {
        return "no jobs\n".into();
    }
    let row = |job: &&Job| {
        vec![
            job.id.clone(),
            known(&job.name),
            cell(job.project.as_ref()),
            known(&job.operator),
            state(job.state) + &attempt(job) + &idle(job, now),
            size(job),
            cell(Some(nodeset::fold(&job.nodes)).filter(|_| job.state != Some(JobState::Queued))),
            cell((job.started > 0.0).then(|| format!("{} ago", span(now - job.started)))),
            cell(lasted(job, now)),
            cell(job.code),
            why(job, now),
        ]
    };
    let columns = [
        key("JOB"),
        text("NAME"),
        detail(6, "PROJECT"),
        detail(5, "WHO"),
        text("STATE"),
        detail(2, "RANKS"),
        text("NODES"),
        detail(3, "STARTED"),
        detail(4, "LASTED"),
        detail(1, "CODE"),
        note("WHY"),
    ];
    Table::new(columns, jobs.iter().map(row)).into()
}

/// Returns why a job ended so, waits or makes no progress, as text, and where its ranks are or were meanwhile.
fn why(job: &Job, now: f64) -> String {
    let places = job.places.as_ref();
    match job.reason.clone().or_else(|| job.wait(now)) {
        Some(reason) => places.map_or(reason.clone(), |places| format!("{reason}; where the ranks were: {places}")),
        None if job.is_over() => places.map_or_else(String::new, |places| format!("where the ranks were: {places}")),
        None => places.cloned().unwrap_or_else(|| idle_rank::descriptions(&job.idle).join("; ")),
    }
}

/// The cell of a text that is empty if it is not known.
fn known(text: &str) -> String {
    cell(Some(text).filter(|text| !text.is_empty()))
}

fn state(state: Option<JobState>) -> String {
    let styled = console::style(state.map_or_else(|| "unknown".to_owned(), |state| state.to_string()));
    match state {
        Some(JobState::Succeeded) => styled.green(),
        Some(JobState::Failed | JobState::Lost | JobState::Unreadable) => styled.red(),
        Some(JobState::Queued | JobState::Running | JobState::Starting) => styled.cyan(),
        Some(JobState::Stopped) | None => styled,
    }
    .to_string()
}

/// The number of ranks, in a job with roles of each role as soon as they are placed; of an elastic job how many there are
/// just now, and how many with all nodes.
fn size(job: &Job) -> String {
    match &job.membership {
        _ if !job.has_record() => cell(None::<u32>),
        Some(membership) => format!("{} of {}", membership.ranks(), job.ranks),
        _ if !job.roles.is_empty() && job.placement.sizes().all(|(_, ranks)| ranks == 0) => {
            cell((job.ranks > 0).then_some(job.ranks))
        }
        _ if !job.roles.is_empty() => {
            let sizes: Vec<String> = job.placement.sizes().map(|(name, ranks)| format!("{name}×{ranks}")).collect();
            sizes.join(" ")
        }
        _ => job.ranks.to_string(),
    }
}

/// Returns the number of the attempt of a job that failed before, as text.
fn attempt(job: &Job) -> String {
    match (job.attempts.len(), job.is_over()) {
        (0, _) => String::new(),
        (failed, true) => format!(" (restarted {})", count(failed, "time")),
        _ if !job.has_record() => String::new(),
        (failed, false) => format!(" (attempt {} of {})", failed + 1, job.restarts.saturating_add(1)),
    }
}

/// Returns the ranks that make no progress, as text.
fn idle(job: &Job, now: f64) -> String {
    idle_rank::summary(&job.idle, now).map_or_else(String::new, |idle| format!(", {idle}"))
}

/// A span of time with its two largest units.
fn span(seconds: f64) -> String {
    let whole = Duration::from_secs(seconds.max(0.0) as u64);
    humantime::format_duration(whole).to_string().split(' ').take(2).collect::<Vec<_>>().join(" ")
}

fn lasted(job: &Job, now: f64) -> Option<String> {
    let is_running = job.state.is_some() && !job.is_over() && job.started > 0.0;
    let until = job.ended.or_else(|| is_running.then_some(now))?;
    Some(span(until - job.started))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_short() {
        assert_eq!(span(0.4), "0s");
        assert_eq!(span(3.0 * 3600.0 + 61.0), "3h 1m");
        assert_eq!(span(59.9), "59s");
    }
}
