//! `hvdctl report`.

use crate::cli;
use crate::commands::shared::output_file;
use crate::commands::{Context, Outcome};
use crate::error::{Error, Verdict};
use crate::event::Message;
use crate::job::{history, manage};
use crate::record::find::Newest;
use crate::text::quote;
use crate::text::units::human;
use schemars::JsonSchema;
use serde::Serialize;
use std::path::PathBuf;

/// `report`.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "Report")]
pub struct ReportDocument {
    /// The id of the job.
    pub job: String,
    /// The file.
    pub file: String,
    /// Its size.
    pub bytes: usize,
    /// The parts that it lacks, each with the reason.
    pub missing: Vec<String>,
}

/// `report`.
pub async fn run(options: &cli::Report, context: &Context) -> Result<Outcome, Error> {
    let Context { target, fleet, events, session, .. } = context;
    let jobs = session.cancellation.run(manage::list(target, fleet, events)).await?;
    let job = jobs.find_readable(options.job.as_deref(), Newest::Program)?;
    let file = options.output.clone().unwrap_or_else(|| PathBuf::from(format!("{}.html", job.id)));
    // before minutes are spent on it
    output_file::check("-o", &file, options.force)?;
    let collecting = history::report(&jobs, job, options.metric.clone(), events);
    let mut report = session.cancellation.run(collecting).await?;
    report.add_last_lines(history::last_lines(&jobs, job).await);
    let missing = report.missing();
    missing.iter().for_each(|line| events.warn(Message::from(line.as_str())));
    let page = report.html();
    output_file::write(&file, &page, options.force)?;
    let (job, file) = (job.id.clone(), file.display().to_string());
    Ok(outcome(ReportDocument { job, file, bytes: page.len(), missing }))
}

pub(in crate::commands) fn outcome(document: ReportDocument) -> Outcome {
    let text = format!("wrote {} ({})\n", quote::readable(&document.file), human(document.bytes as u64));
    Outcome::new(Verdict::Done, text, document)
}
