//! The start of a job, for every command that starts one.

use super::context::Context;
use super::submit;
use crate::cli::Launching;
use crate::error::Error;
use crate::job::supervision::WatchOptions;
use crate::launch::env_file::EnvFiles;
use crate::launch::placement::{MapBy, RankCount};
use crate::model::launcher::LauncherName;
use crate::record::frames::Frame;
use crate::record::outcome::JobOutcome;
use crate::slurm;
use crate::start::execute;
use crate::start::in_worker::check_launcher;
use crate::start::plan::JobPlan;
use crate::start::request::{JobOptions, JobProgram, ResourceRequest, check_ranks};
use std::collections::BTreeMap;
use std::future::Future;
use std::time::Duration;

/// Returns the options of a check: a job with one rank on every slot or with `np` ranks, which is stopped when it takes
/// longer than `limit`.
///
/// # Errors
/// A controller for another launcher than `horovodrun`; more ranks than slots, if the inventory gives all slots.
pub fn options_of_check(
    np: Option<u32>,
    launching: &Launching,
    limit: Duration,
    context: &Context,
) -> Result<JobOptions, Error> {
    let Context { target, verbose, .. } = context;
    let cluster = target.cluster();
    let ranks = np.map(RankCount::exactly);
    check_ranks(target, ranks, None)?;
    Ok(JobOptions {
        resources: ResourceRequest { ranks, map_by: MapBy::Slot, per_node: None },
        sbatch: launching.sbatch.clone(),
        restarts: 0,
        elastic: None,
        changes: None,
        launcher: launching.launcher(None, cluster)?,
        controller: launching.controller(cluster.controller),
        bind: cluster.bind,
        stall_timeout: Duration::ZERO,
        log_max: None,
        log_progress: false,
        env: BTreeMap::new(),
        env_files: EnvFiles::new(),
        watch: WatchOptions {
            output: *verbose > 0,
            launcher_output: *verbose > 1,
            limit: Some(limit),
            ..WatchOptions::default()
        },
    })
}

/// How the nodes of a job are allocated.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Allocating {
    /// Not at all: a dry run locks no node and waits for no other job.
    DryRun,
    /// At once; other jobs are not waited for, because other nodes may be free.
    AtOnce,
    /// When they are free, as long as `--wait` allows it.
    WhenFree,
    /// By the cluster's own Slurm if it has one, else when they are free.
    Queued,
}

/// Allocates the nodes of a job, plans it, and reports what is worth knowing before it begins.
///
/// # Errors
/// Those of [`Context::allocate`] and of [`JobPlan::new`], and that of the program.
pub async fn plan(
    program: impl Future<Output = Result<JobProgram, Error>>,
    options: JobOptions,
    allocating: Allocating,
    context: &Context,
) -> Result<JobPlan, Error> {
    let Context { target, events, session, .. } = context;
    let nodes = async {
        match allocating {
            Allocating::WhenFree | Allocating::Queued => {
                context.allocate(&options, allocating == Allocating::Queued).await
            }
            Allocating::DryRun | Allocating::AtOnce => {
                let locks = allocating == Allocating::AtOnce;
                let may_queue = allocating == Allocating::DryRun;
                let nodes = context.observe_launchers(locks, may_queue).await?;
                if locks && !context.is_direct && slurm::is_up(&nodes, target.cluster())? {
                    let hint = "leave out --best, or bypass Slurm with --scheduler ssh";
                    return Err(Error::usage("--best: Slurm chooses the nodes of a job", hint));
                }
                context.allocated(nodes, &options, may_queue)
            }
        }
    };
    // a large project is read while the nodes are observed; the first failure ends both
    let (program, nodes) = tokio::try_join!(session.cancellation.run(program), nodes)?;
    let id = if allocating == Allocating::DryRun { "ID".to_owned() } else { execute::new_id() };
    let plan = JobPlan::new(target, nodes, program, options, id)?;
    plan.report(events);
    Ok(plan)
}

/// Checks everything that would make a planned job fail, starts it, and follows it to its end. Every frame goes to
/// `on_frame`.
///
/// # Errors
/// What a check finds, when nothing has been changed; otherwise those of [`execute::start`].
pub async fn start(
    plan: &JobPlan,
    context: &Context,
    mut on_frame: impl FnMut(&str, &Frame),
) -> Result<JobOutcome, Error> {
    let Context { events, session, .. } = context;
    plan.check(events)?;
    if let Some(queue) = plan.queue {
        return submit::queued(plan, queue, context, &mut on_frame).await;
    }
    // the images are built for the default launcher
    if plan.options.launcher != LauncherName::default() {
        session.cancellation.run(check_launcher(plan, &plan.commands[0].argv[0])).await?;
    }
    execute::start(plan, session, events, on_frame).await
}
