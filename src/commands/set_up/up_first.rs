//! `--up`: the set-up of a cluster on the way to a job.

use crate::cli::Up;
use crate::commands::set_up::up;
use crate::commands::{Context, Outcome};
use crate::error::Error;
use std::future::Future;
use std::pin::Pin;

/// A command that has not ended, behind a pointer: a test's thread has a small stack.
pub type PendingCommand<'a> = Pin<Box<dyn Future<Output = Result<Outcome, Error>> + 'a>>;

/// Runs `work`, which starts a job. If it finds that the cluster is not set up, first does the work of `hvdctl up`, if
/// `--up` was given or the answer to the question is yes.
///
/// # Errors
/// The errors of `work` and of `hvdctl up`; `--up` under Slurm or without an inventory.
pub async fn set_up_first(
    is_wanted: bool,
    context: &mut Context,
    work: impl Fn(&mut Context) -> PendingCommand<'_>,
) -> Result<Outcome, Error> {
    if is_wanted && !context.target.cluster().can().workers {
        return Err(Error::usage("--up: Slurm starts what a job needs", "leave out --up"));
    }
    let is_local = context.fleet.is_local();
    if is_wanted && is_local {
        return Err(Error::usage("--up: there is no inventory", "write one with hvdctl init, or leave out --up"));
    }
    let all = context.target.clone();
    let missing = match work(context).await {
        Err(Error::NotUp(missing)) if is_local => return Err(*missing),
        Err(Error::NotUp(missing)) => *missing,
        result => return result,
    };
    // other commands need not wait for the answer
    context.session.locks.release().await;
    context.target = all;
    let text = missing.to_string();
    let found = text.lines().next().unwrap_or_default();
    let question = format!("{found}.\nRun `hvdctl up` first, which pushes keys, gets the image and starts workers?");
    // -y agrees to what was asked for, and this was not
    if !(is_wanted || !context.yes && context.accepts(&question).await?) {
        return Err(missing);
    }
    if is_wanted {
        context.events.note(format!("{found}: setting up the cluster first"));
    }
    let nodes = Box::pin(up::set_up(&Up::default(), context)).await?.nodes;
    let done = nodes.ok.len();
    if !nodes.failed.is_empty() {
        return Err(Error::Nodes { failed: nodes.failed, done });
    }
    up::rows(&nodes.ok).lines().for_each(|row| context.events.note(row));
    context.session.locks.release().await;
    work(context).await
}
