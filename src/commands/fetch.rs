//! `hvdctl fetch`.

use super::output::{self, FetchedFile, NodeEntry};
use super::{Context, Outcome, unless_signalled};
use crate::cli;
use crate::error::{Error, exit};
use crate::job::fetch::{FetchReport, default_directory, fetch};
use crate::job::list::Newest;
use crate::job::manage;
use crate::sync::outputs::Output;
use crate::text::units::human;

/// `fetch`.
pub async fn run(options: &cli::Fetch, context: Context) -> Result<Outcome, Error> {
    let Context { target, events, cancel, .. } = context;
    let report = unless_signalled(&cancel, async {
        let jobs = manage::list(&target, &events).await?;
        let job = jobs.find(options.job.as_deref(), Newest::Project)?;
        let directory = options.output.clone().unwrap_or_else(|| default_directory(job));
        fetch(&target, &jobs, job, &directory, options.force, &events).await
    });
    Ok(outcome(report.await?))
}

pub(super) fn outcome(report: FetchReport) -> Outcome {
    let FetchReport { job, directory, items, failed } = report;
    let directory = directory.display().to_string();
    let code = exit::of_nodes(items.len(), &failed);
    let files = items
        .iter()
        .map(|(item, new)| {
            let (bytes, blake2b) = match &item.output {
                Output::File { size, hash, .. } => (Some(*size), Some(hash.clone())),
                Output::Link(_) => (None, None),
            };
            FetchedFile { path: item.path.clone(), node: item.node.clone(), changed: *new, bytes, blake2b }
        })
        .collect();
    let mut text = String::new();
    for (item, _) in items.iter().filter(|(_, new)| *new) {
        let what = match &item.output {
            Output::File { size, .. } => human(*size),
            Output::Link(target) => format!("-> {target}"),
        };
        text.push_str(&format!("{}: {} ({what})\n", item.node, item.path));
    }
    let new = items.iter().filter(|(_, new)| *new).count();
    text.push_str(&match (items.len(), new) {
        (0, _) if code == exit::OK => format!("job {job} wrote nothing\n"),
        (all, 0) => format!("{directory}: unchanged ({all} of job {job})\n"),
        (all, new) => format!("{directory}: {new} fetched, {} unchanged\n", all - new),
    });
    let nodes = failed.iter().map(NodeEntry::failed).collect();
    let document = output::Fetch { ok: failed.is_empty(), job, directory, files, nodes };
    Outcome::new(code, text, &document, failed)
}
