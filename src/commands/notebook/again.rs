//! `notebook --attach`.

use super::TOKEN;
use super::end::EndedNotebook;
use super::page::Page;
use crate::cli;
use crate::commands::{Context, Outcome};
use crate::error::Error;
use crate::job::supervision::WatchOptions;
use crate::job::{manage, node_log, watch};
use crate::record::frames::Frame;
use crate::record::list::Newest;
use crate::sync::project;
use serde_json::Value;
use std::path::Path;

/// Opens the page of a notebook that runs.
pub async fn run(options: &cli::Notebook, job: &str, root: &Path, context: &Context) -> Result<Outcome, Error> {
    let Context { target, fleet, events, session, verbose, .. } = context;
    let cancellation = &session.cancellation;
    let jobs = cancellation.run(manage::list(target, fleet, events)).await?;
    let job = jobs.find_readable(Some(job), Newest::Program)?;
    let no_notebook = |why: &str| {
        let hint = "hvdctl jobs shows those that run; hvdctl notebook starts one";
        Err(Error::usage(format!("job {} ({}) {why}", job.id, job.name), hint))
    };
    if job.is_over() {
        return no_notebook("has ended");
    }
    let name = project::directory_name(&root.file_name().unwrap_or_default().to_string_lossy());
    if !options.no_fetch && job.project.as_ref() != Some(&name) {
        let own = job.project.as_deref().unwrap_or("none");
        return Err(Error::usage(
            format!("job {} has the project {own}, and {} is another one", job.id, root.display()),
            format!("name the directory of {own}, or leave the files on the nodes with --no-fetch"),
        ));
    }
    let master = jobs.nodes_of(job)?.launcher;
    let reading = node_log::read_file(&master, target.cluster(), &job.id, "env.json");
    let env = cancellation.run(async { Ok(reading.await?) }).await?;
    let Some(token) = serde_json::from_slice::<Value>(&env).ok().and_then(|env| env[TOKEN].as_str().map(str::to_owned))
    else {
        return no_notebook("is no notebook");
    };
    let page = Page { here: options.port.map(Into::into), token: &token, open: options.open, master: &master };
    let watch = WatchOptions { output: *verbose > 0, launcher_output: *verbose > 1, ..WatchOptions::default() };
    let following = async |on_frame: &mut dyn FnMut(&str, &Frame)| {
        watch::attach(&jobs, job, watch, events, cancellation.signal(), on_frame).await
    };
    let ended = page.while_open(following, context).await;
    let notebook = EndedNotebook {
        id: &job.id,
        placement: &job.placement,
        of_job: target.only(job.nodes.clone()),
        command: &job.command,
        root,
        fetches: !options.no_fetch,
    };
    notebook.finish(ended, context).await
}
