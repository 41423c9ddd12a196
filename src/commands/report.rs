//! `hvdctl report`.

use super::{Context, Outcome};
use crate::cli;
use crate::error::{Error, Verdict};
use crate::event::Message;
use crate::job::{history, manage};
use crate::record::list::Newest;
use crate::text::quote;
use crate::text::units::human;
use anyhow::Context as _;
use schemars::JsonSchema;
use serde::Serialize;
use std::fs::Permissions;
use std::io::{self, Write as _};
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

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
    /// What it lacks, and why.
    pub missing: Vec<String>,
}

/// `report`.
pub async fn run(options: &cli::Report, context: &Context) -> Result<Outcome, Error> {
    let Context { target, fleet, events, session, .. } = context;
    let jobs = session.cancellation.run(manage::list(target, fleet, events)).await?;
    let job = jobs.find_readable(options.job.as_deref(), Newest::Program)?;
    let file = options.output.clone().unwrap_or_else(|| PathBuf::from(format!("{}.html", job.id)));
    // before minutes are spent on it
    if file.exists() && !options.force {
        return Err(exists(&file));
    }
    // with root's rights a device would be replaced as well
    if file.exists() && !file.is_file() {
        let name = quote::readable(&file.display().to_string());
        return Err(Error::usage(format!("{name} is no regular file"), "name another file with -o"));
    }
    let collecting = history::report(&jobs, job, options.metric.clone(), events);
    let mut report = session.cancellation.run(collecting).await?;
    report.add_last_lines(history::last_lines(&jobs, job).await);
    let missing = report.missing();
    missing.iter().for_each(|line| events.warn(Message::from(line.as_str())));
    let page = report.html();
    write(&file, &page, options.force)?;
    let (job, file) = (job.id.clone(), file.display().to_string());
    Ok(outcome(ReportDocument { job, file, bytes: page.len(), missing }))
}

pub(super) fn outcome(document: ReportDocument) -> Outcome {
    let text = format!("wrote {} ({})\n", quote::readable(&document.file), human(document.bytes as u64));
    Outcome::new(Verdict::Done, text, document)
}

fn exists(file: &Path) -> Error {
    let name = quote::readable(&file.display().to_string());
    Error::usage(format!("{name} exists"), "replace it with --force, or name another file with -o")
}

/// Writes the file as a whole, or not at all.
fn write(file: &Path, page: &str, force: bool) -> Result<(), Error> {
    let operation = || format!("cannot write {}", file.display());
    let directory = file.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let permissions = Permissions::from_mode(0o666);
    let mut new = tempfile::Builder::new().permissions(permissions).tempfile_in(directory).with_context(operation)?;
    new.write_all(page.as_bytes()).with_context(operation)?;
    let persisted = if force { new.persist(file) } else { new.persist_noclobber(file) };
    match persisted {
        Ok(_) => Ok(()),
        Err(error) if error.error.kind() == io::ErrorKind::AlreadyExists => Err(exists(file)),
        Err(error) => Err(anyhow::Error::from(error.error).context(operation()).into()),
    }
}
