//! `notebook --attach`.

use super::end::EndedNotebook;
use super::page::{NotebookPort, Page};
use super::program;
use crate::cli;
use crate::commands::{Context, Outcome};
use crate::error::Error;
use crate::job::supervision::WatchOptions;
use crate::job::{manage, watch};
use crate::record::find::Newest;
use crate::record::frames::Frame;
use crate::sync::project;
use std::path::Path;
use tokio::net::TcpListener;

/// Opens the page of a notebook that runs.
pub async fn run(
    options: &cli::Notebook,
    job: &str,
    root: &Path,
    (listener, forwards): (TcpListener, Vec<NotebookPort>),
    context: &Context,
) -> Result<Outcome, Error> {
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
            format!("job {} has the project {own}, but {} is another one", job.id, root.display()),
            format!("name the directory of {own}, or leave the files on the nodes with --no-fetch"),
        ));
    }
    let nodes = jobs.nodes_of(job)?;
    let program = program(target.cluster(), &job.id);
    if !job.command.iter().any(|argument| argument.to_string() == program) {
        return no_notebook("is not a notebook");
    }
    let (runtime, container) = cancellation.run(async { Ok(nodes.launcher_container().await?) }).await?;
    let transport = &nodes.launcher.transport;
    let page = Page { listener, forwards, open: options.open, transport, runtime, container, program };
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
