//! The start of a job, for every command that starts one.

use super::context::Context;
use crate::error::Error;
use crate::job::frames::Frame;
use crate::job::in_worker::check_launcher;
use crate::job::outcome::JobOutcome;
use crate::job::plan::JobPlan;
use crate::job::request::{JobOptions, Program};
use crate::job::start;
use crate::model::launcher::LauncherName;
use std::future::Future;

/// Allocates the nodes of a job, plans it, and reports what is worth knowing before it begins. A dry run locks no node and waits for no
/// other job.
///
/// # Errors
/// Those of [`Context::allocate`] and of [`JobPlan::new`], and that of the program.
pub async fn plan(
    program: impl Future<Output = Result<Program, Error>>,
    options: JobOptions,
    is_dry_run: bool,
    context: &Context,
) -> Result<JobPlan, Error> {
    let Context { target, events, session, .. } = context;
    let nodes = async {
        match is_dry_run {
            true => context.observe_all(&target.with_launcher(), false, events).await,
            false => context.allocate(options.resources).await,
        }
    };
    // a large project is read while the nodes are observed; the first failure ends both
    let (program, nodes) = tokio::try_join!(session.cancellation.run(program), nodes)?;
    let id = if is_dry_run { "ID".to_owned() } else { start::new_id() };
    let plan = JobPlan::new(target, nodes, program, options, id)?;
    plan.report(events);
    Ok(plan)
}

/// Checks everything that would make a planned job fail, starts it, and follows it to its end. Every frame goes to `on_frame`.
///
/// # Errors
/// What a check finds, when nothing has been changed; otherwise those of [`start::start`].
pub async fn start(plan: &JobPlan, context: &Context, on_frame: impl FnMut(&str, &Frame)) -> Result<JobOutcome, Error> {
    let Context { events, session, .. } = context;
    plan.check(events)?;
    // the images are built for the default launcher
    if plan.options.launcher != LauncherName::default() {
        session.cancellation.run(check_launcher(plan)).await?;
    }
    start::start(plan, session, events, on_frame).await
}
