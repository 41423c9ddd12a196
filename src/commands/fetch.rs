//! `hvdctl fetch`.

use super::Outcome;
use super::context::Context;
use super::output::{self, FetchedFile, NodeEntry};
use crate::cli;
use crate::error::{Error, exit};
use crate::job::fetch::{FetchReport, default_directory, fetch};
use crate::job::list::Newest;
use crate::job::manage;
use crate::sync::outputs::Output;
use crate::text::units::human;

/// `fetch`.
pub async fn run(options: &cli::Fetch, context: &Context) -> Result<Outcome, Error> {
    let Context { target, events, .. } = context;
    let jobs = manage::list(target, events).await?;
    let job = jobs.find(options.job.as_deref(), Newest::Project)?;
    let directory = options.output.clone().unwrap_or_else(|| default_directory(job));
    Ok(outcome(fetch(target, &jobs, job, &directory, options.force, events).await?))
}

pub(super) fn outcome(report: FetchReport) -> Outcome {
    let FetchReport { job, directory, items, failed } = report;
    let directory = directory.display().to_string();
    let code = exit::of_nodes(items.len(), &failed);
    let (mut text, mut new, mut files) = (String::new(), 0, Vec::new());
    for (item, changed) in &items {
        let (what, bytes, blake2b) = match &item.output {
            Output::File { size, hash, .. } => (human(*size), Some(*size), Some(hash.clone())),
            Output::Link(target) => (format!("-> {target}"), None, None),
        };
        if *changed {
            new += 1;
            text.push_str(&format!("{}: {} ({what})\n", item.node, item.path));
        }
        let (path, node) = (item.path.clone(), item.node.clone());
        files.push(FetchedFile { path, node, changed: *changed, bytes, blake2b });
    }
    text.push_str(&match (items.len(), new) {
        (0, _) if code == exit::OK => format!("job {job} wrote nothing\n"),
        (all, 0) => format!("{directory}: unchanged ({all} of job {job})\n"),
        (all, new) => format!("{directory}: {new} fetched, {} unchanged\n", all - new),
    });
    let nodes = failed.iter().map(NodeEntry::failed).collect();
    Outcome::new(code, text, &output::Fetch { ok: failed.is_empty(), job, directory, files, nodes }, &failed)
}
