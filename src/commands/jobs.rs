//! `hvdctl jobs`.

use super::Outcome;
use super::context::Context;
use super::output::{self, JobsPrune, NoDetails, NodeEntry};
use crate::cli::{Jobs, Prune};
use crate::cluster::nodes::{NodeResults, now};
use crate::error::{Error, NodeError, exit};
use crate::job::list::Job;
use crate::job::manage::{self, JobList};
use crate::job::record::State;
use crate::render::table::table;
use crate::text::nodeset;
use crate::text::units::count;
use std::time::Duration;

/// Seconds.
const A_DAY: f64 = 86_400.0;

/// `jobs`.
pub async fn list(options: &Jobs, context: &Context) -> Result<Outcome, Error> {
    let JobList { jobs, members, failed, .. } = manage::list(&context.target, &context.events).await?;
    let wanted: Vec<&Job> = jobs.iter().filter(|job| !options.running || !job.is_over()).collect();
    let code = exit::of_nodes(members.len(), &failed);
    Ok(Outcome::new(code, text(&wanted), &document(&wanted, &failed), &failed))
}

/// `jobs prune`.
pub async fn prune(options: &Prune, context: &Context) -> Result<Outcome, Error> {
    let Context { target, events, .. } = context;
    let list = manage::list(target, events).await?;
    // a job that seems lost may still be uploading a large project
    let over = list.jobs.iter().filter(|job| job.ended.is_some() || job.is_over() && now() - job.started > A_DAY);
    let old = |job: &Job| options.older_than.is_none_or(|age| job.started < now() - age.as_secs_f64());
    let ids: Vec<String> = over.skip(options.keep).filter(|job| old(job)).map(|job| job.id.clone()).collect();
    if !ids.is_empty() {
        context.confirm(&format!("remove the records and logs of {}?", count(ids.len(), "ended job"))).await?;
    }
    let done = if ids.is_empty() { Vec::new() } else { manage::prune(&list, &ids, events).await };
    let NodeResults { ok: done, mut failed } = NodeResults::new(events, done);
    failed.extend(list.failed);
    Ok(pruned(&ids, &done, &failed))
}

pub(super) fn pruned(ids: &[String], nodes: &[String], failed: &[NodeError]) -> Outcome {
    let text = match ids.len() {
        0 => "nothing to remove\n".to_owned(),
        n => format!("removed {}\n", count(n, "job")),
    };
    let code = exit::of_nodes(nodes.len(), failed);
    let done = nodes.iter().map(|node| NodeEntry::new(node, true, NoDetails {}));
    let nodes = done.chain(failed.iter().map(NodeEntry::failed)).collect();
    Outcome::new(code, text, &JobsPrune { ok: failed.is_empty(), removed: ids.to_vec(), nodes }, failed)
}

fn text(jobs: &[&Job]) -> String {
    if jobs.is_empty() {
        return "no jobs\n".into();
    }
    let rows: Vec<Vec<String>> = jobs
        .iter()
        .map(|job| {
            vec![
                job.id.clone(),
                job.name.clone(),
                job.project.clone().unwrap_or_else(|| "–".into()),
                job.operator.clone(),
                state(job.state) + &attempt(job),
                size(job),
                nodeset::fold(&job.nodes),
                ago(now() - job.started),
                lasted(job),
                job.code.map_or_else(|| "–".into(), |code| code.to_string()),
                job.reason.clone().unwrap_or_default(),
            ]
        })
        .collect();
    let heads = ["JOB", "NAME", "PROJECT", "WHO", "STATE", "RANKS", "NODES", "STARTED", "LASTED", "CODE", "WHY"];
    table(&heads, &rows)
}

fn state(state: Option<State>) -> String {
    let styled = console::style(state.map_or_else(|| "unknown".to_owned(), |state| state.to_string()));
    match state {
        Some(State::Succeeded) => styled.green(),
        Some(State::Failed | State::Lost) => styled.red(),
        Some(State::Running | State::Starting) => styled.cyan(),
        Some(State::Stopped) | None => styled,
    }
    .to_string()
}

/// The number of ranks; of an elastic job how many there are just now, and how many with all nodes.
fn size(job: &Job) -> String {
    match &job.membership {
        Some(membership) => format!("{} of {}", membership.ranks(), job.ranks),
        _ => job.ranks.to_string(),
    }
}

/// Which attempt it is, or was, of one that failed before.
fn attempt(job: &Job) -> String {
    match (job.attempts.len(), job.is_over()) {
        (0, _) => String::new(),
        (failed, true) => format!(" (restarted {})", count(failed, "time")),
        (failed, false) => format!(" (attempt {} of {})", failed + 1, job.restarts + 1),
    }
}

/// A span of time with its two largest units.
fn span(seconds: f64) -> String {
    let whole = Duration::from_secs(seconds.max(0.0) as u64);
    humantime::format_duration(whole).to_string().split(' ').take(2).collect::<Vec<_>>().join(" ")
}

fn ago(seconds: f64) -> String {
    format!("{} ago", span(seconds))
}

fn lasted(job: &Job) -> String {
    match (job.ended, job.is_over()) {
        (Some(ended), _) => span(ended - job.started),
        (None, false) if job.state.is_some() => span(now() - job.started),
        (None, _) => "–".into(),
    }
}

pub(super) fn document(jobs: &[&Job], failed: &[NodeError]) -> output::Jobs {
    let jobs = jobs.iter().copied().cloned().collect();
    output::Jobs { ok: failed.is_empty(), jobs, nodes: failed.iter().map(NodeEntry::failed).collect() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_short() {
        assert_eq!(span(0.4), "0s");
        assert_eq!(span(3.0 * 3600.0 + 61.0), "3h 1m");
        assert_eq!(ago(59.9), "59s ago");
    }
}
