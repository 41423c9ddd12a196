//! `hvdctl fetch`.

use crate::cli;
use crate::cluster::target::Target;
use crate::commands::{Context, Outcome};
use crate::diagnosis::lost::outside_warning;
use crate::document::NodeEntry;
use crate::document::{Document, NoDetails, entries};
use crate::error::{Error, Verdict};
use crate::event::Message;
use crate::job::fetch::{FetchOptions, FetchReport, after, default_directory, fetch};
use crate::job::roles::wanted_nodes;
use crate::job::{from_container, manage};
use crate::record::find::Newest;
use crate::sync::outputs::{Download, JobOutput};
use crate::text::quote;
use crate::text::units::human;
use schemars::JsonSchema;
use serde::Serialize;
use std::path::Path;

/// `fetch`.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "Fetch")]
pub struct FetchDocument {
    /// The id of the job.
    pub job: String,
    /// The directory with the files.
    pub directory: String,
    /// All files and links that the job wrote.
    pub files: Vec<FetchedFile>,
    /// The nodes from which not everything was fetched.
    pub nodes: Vec<NodeEntry<NoDetails>>,
}

/// A file or link that a job wrote.
#[derive(Debug, Serialize, JsonSchema)]
pub struct FetchedFile {
    /// The path below `directory`.
    pub path: String,
    /// The node that it came from.
    pub node: String,
    /// False if it already existed.
    pub changed: bool,
    /// The size; null for a link.
    pub bytes: Option<u64>,
    /// The hash as of `b2sum -l 256`; null for a link, and with `--from-container`.
    pub blake2b: Option<String>,
}

/// `fetch`.
pub async fn run(options: &cli::Fetch, context: &Context) -> Result<Outcome, Error> {
    let Context { target, fleet, events, .. } = context;
    let jobs = manage::list(target, fleet, events).await?;
    if options.from_container {
        let job = jobs.find_readable(options.job.as_deref(), Newest::Program)?;
        let nodes = wanted_nodes(job, options.role.as_deref())?;
        let directory = options.output.clone().unwrap_or_else(|| from_container::default_directory(job));
        let fetched = from_container::fetch(&jobs, job, nodes.as_ref(), &directory, options.force, events).await?;
        return Ok(outcome(&fetched));
    }
    let job = jobs.find_readable(options.job.as_deref(), Newest::Project)?;
    let nodes = wanted_nodes(job, options.role.as_deref())?;
    outside_warning(&job.id, &job.outside).into_iter().for_each(|warning| events.note(warning));
    let directory = options.output.clone().unwrap_or_else(|| default_directory(job));
    let inventory_files = target.inventory.own_files();
    let wanted = FetchOptions {
        force: options.force,
        nodes: nodes.as_ref(),
        inventory_files: &inventory_files,
        ..FetchOptions::default()
    };
    Ok(outcome(&fetch(&jobs, job, &directory, wanted, events).await?))
}

pub(in crate::commands) fn outcome(report: &FetchReport) -> Outcome {
    let FetchReport { items, failed, .. } = report;
    let line = |item: &Download| {
        let what = match &item.output {
            JobOutput::File { size, .. } => human(*size),
            JobOutput::Link(target) => format!("-> {target}"),
        };
        format!("{}: {} ({what})\n", item.node, item.path)
    };
    let new: String = items.iter().filter(|(_, is_new)| *is_new).map(|(item, _)| line(item)).collect();
    let text = format!("{new}{}\n", summary(report));
    Outcome::new(Verdict::Nodes { done: items.len(), failed }, text, document(report).details)
}

/// Formats how much was fetched as one line.
pub(in crate::commands) fn summary(report: &FetchReport) -> String {
    let FetchReport { job, directory, items, failed } = report;
    let directory = directory.display();
    match (items.len(), items.iter().filter(|(_, is_new)| *is_new).count()) {
        (0, _) if failed.is_empty() => format!("job {job} wrote nothing"),
        (all, 0) => format!("{directory}: unchanged ({all} of job {job})"),
        (all, new) => format!("{directory}: {new} fetched, {} unchanged", all - new),
    }
}

pub(in crate::commands) fn document(report: &FetchReport) -> Document<FetchDocument> {
    let FetchReport { job, directory, items, failed } = report;
    let file = |(item, is_new): &(Download, bool)| {
        let (bytes, blake2b) = match &item.output {
            JobOutput::File { size, hash, .. } => (Some(*size), Some(hash.clone()).filter(|hash| !hash.is_empty())),
            JobOutput::Link(_) => (None, None),
        };
        FetchedFile { path: item.path.clone(), node: item.node.clone(), changed: *is_new, bytes, blake2b }
    };
    let details = FetchDocument {
        job: job.clone(),
        directory: directory.display().to_string(),
        files: items.iter().map(file).collect(),
        nodes: entries([], failed),
    };
    Document { ok: failed.is_empty(), details }
}

/// Fetches the outputs of a job. A failure or a signal is only a warning, because the job's own result follows.
pub(in crate::commands) async fn fetch_at_end(
    id: &str,
    of_job: &Target,
    directory: &Path,
    context: &Context,
) -> Option<Document<FetchDocument>> {
    let Context { fleet, events, session, .. } = context;
    let inventory_files = of_job.inventory.own_files();
    let wanted = FetchOptions { inventory_files: &inventory_files, ..FetchOptions::default() };
    match session.cancellation.run(after(of_job, fleet, id, directory, wanted, events)).await {
        Ok(fetched) => {
            events.note(summary(&fetched));
            fetched.failed.iter().for_each(|error| events.warn(error));
            Some(document(&fetched))
        }
        Err(error) => {
            let directory = quote::readable(&directory.display().to_string());
            let message = Message::from(format!("cannot fetch the outputs: {error}"));
            events.warn(message.hint(format!("hvdctl fetch {id} -o {directory}")));
            None
        }
    }
}
