//! `hvdctl fetch`.

use super::output::{self, Document, FetchedFile, entries};
use super::{Context, Outcome};
use crate::cli;
use crate::error::{Error, Verdict};
use crate::job::fetch::{FetchReport, default_directory, fetch};
use crate::job::manage;
use crate::record::list::Newest;
use crate::sync::outputs::{Download, Output};
use crate::text::units::human;

/// `fetch`.
pub async fn run(options: &cli::Fetch, context: &Context) -> Result<Outcome, Error> {
    let Context { target, fleet, events, .. } = context;
    let jobs = manage::list(target, fleet, events).await?;
    let job = jobs.find_readable(options.job.as_deref(), Newest::Project)?;
    let directory = options.output.clone().unwrap_or_else(|| default_directory(job));
    Ok(outcome(&fetch(&jobs, job, &directory, options.force, events).await?))
}

pub(super) fn outcome(report: &FetchReport) -> Outcome {
    let FetchReport { items, failed, .. } = report;
    let line = |item: &Download| {
        let what = match &item.output {
            Output::File { size, .. } => human(*size),
            Output::Link(target) => format!("-> {target}"),
        };
        format!("{}: {} ({what})\n", item.node, item.path)
    };
    let new: String = items.iter().filter(|(_, is_new)| *is_new).map(|(item, _)| line(item)).collect();
    let text = format!("{new}{}\n", summary(report));
    Outcome::new(Verdict::Nodes { done: items.len(), failed }, text, document(report).details)
}

/// Formats how much was fetched as one line.
pub(super) fn summary(report: &FetchReport) -> String {
    let FetchReport { job, directory, items, failed } = report;
    let directory = directory.display();
    match (items.len(), items.iter().filter(|(_, is_new)| *is_new).count()) {
        (0, _) if failed.is_empty() => format!("job {job} wrote nothing"),
        (all, 0) => format!("{directory}: unchanged ({all} of job {job})"),
        (all, new) => format!("{directory}: {new} fetched, {} unchanged", all - new),
    }
}

pub(super) fn document(report: &FetchReport) -> Document<output::Fetch> {
    let FetchReport { job, directory, items, failed } = report;
    let file = |(item, is_new): &(Download, bool)| {
        let (bytes, blake2b) = match &item.output {
            Output::File { size, hash, .. } => (Some(*size), Some(hash.clone())),
            Output::Link(_) => (None, None),
        };
        FetchedFile { path: item.path.clone(), node: item.node.clone(), changed: *is_new, bytes, blake2b }
    };
    let details = output::Fetch {
        job: job.clone(),
        directory: directory.display().to_string(),
        files: items.iter().map(file).collect(),
        nodes: entries([], failed),
    };
    Document { ok: failed.is_empty(), details }
}
