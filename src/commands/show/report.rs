//! `hvdctl report`.

use crate::cli;
use crate::commands::shared::output_file;
use crate::commands::{Context, Outcome};
use crate::error::{Error, Verdict};
use crate::event::{Events, Message};
use crate::job::roles::wanted_ranks;
use crate::job::{history, manage};
use crate::launch::placement::Placement;
use crate::model::role::RankOfRole;
use crate::record::find::Newest;
use crate::report::metric::{Metric, NoNumbers};
use crate::text::quote;
use crate::text::units::{human, stamp};
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
    /// The values of metrics that are no numbers: NaN and infinite ones.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub no_numbers: Vec<RankNoNumbers>,
}

/// The values of a metric that a rank printed and that are no numbers.
#[derive(Debug, Serialize, JsonSchema)]
pub struct RankNoNumbers {
    /// The name of the metric.
    pub metric: String,
    /// The rank.
    pub rank: u32,
    /// Its role, in a job with roles.
    #[serde(flatten)]
    pub role: Option<RankOfRole>,
    /// The number of these values.
    pub count: u64,
    /// The time of the first one; RFC 3339 in UTC.
    pub first: String,
    /// The step in its line, as that names it; null if it has none.
    pub step: Option<String>,
}

/// Warns of the values of a metric that are no numbers, and returns them.
fn no_numbers(metric: &Metric, placement: &Placement, events: &Events) -> Vec<RankNoNumbers> {
    if let Some(text) = metric.describe_no_numbers(placement) {
        events.warn(format!("{}: {text}", metric.name()));
    }
    let of_rank = |(rank, one): (&u32, &NoNumbers)| RankNoNumbers {
        metric: metric.name().to_owned(),
        rank: *rank,
        role: placement.role(*rank),
        count: one.count,
        first: stamp(one.first),
        step: one.step.clone(),
    };
    metric.no_numbers.iter().map(of_rank).collect()
}

/// `report`.
pub async fn run(options: &cli::Report, context: &Context) -> Result<Outcome, Error> {
    let Context { target, fleet, events, session, .. } = context;
    let jobs = session.cancellation.run(manage::list(target, fleet, events)).await?;
    let job = jobs.find_readable(options.job.as_deref(), Newest::Program)?;
    let only = wanted_ranks(job, options.role.as_deref(), &[])?;
    let file = options.output.clone().unwrap_or_else(|| PathBuf::from(format!("{}.html", job.id)));
    // before minutes are spent on it
    output_file::check("-o", &file, options.force)?;
    let collecting = history::report(&jobs, job, only, options.metric.clone(), events);
    let mut report = session.cancellation.run(collecting).await?;
    report.add_last_lines(history::last_lines(&jobs, job).await);
    let missing = report.missing();
    missing.iter().for_each(|line| events.warn(Message::from(line.as_str())));
    let no_numbers = report.metrics().iter().flat_map(|metric| no_numbers(metric, &job.placement, events)).collect();
    let page = report.html();
    output_file::write(&file, &page, options.force)?;
    let (job, file) = (job.id.clone(), file.display().to_string());
    Ok(outcome(ReportDocument { job, file, bytes: page.len(), missing, no_numbers }))
}

pub(in crate::commands) fn outcome(document: ReportDocument) -> Outcome {
    let text = format!("wrote {} ({})\n", quote::readable(&document.file), human(document.bytes as u64));
    Outcome::new(Verdict::Done, text, document)
}
