//! `train` and `run` under Slurm: the job is submitted, and followed once it has its nodes.

use super::train::dry_run::DryRun;
use super::{Context, Outcome};
use crate::cli::{Description, FOR_SLURM};
use crate::cluster::member::Member;
use crate::cluster::target::Target;
use crate::error::Error;
use crate::event::{Events, Message};
use crate::inventory::Cluster;
use crate::job::supervision::WatchOptions;
use crate::job::{manage, queue, watch};
use crate::record::JobState;
use crate::record::frames::Frame;
use crate::record::list::Newest;
use crate::record::outcome::JobOutcome;
use crate::start::capacity::QueueRequest;
use crate::start::execute::{self, new_id};
use crate::start::plan::JobPlan;
use crate::start::request::{JobOptions, JobProgram};
use crate::start::slurm::BatchJob;
use crate::text::quote;
use std::future::Future;

/// SIGHUP: the terminal has gone, and the job goes on.
const HANGUP: u8 = 1;

/// Checks that a command is also for jobs under Slurm, if that is what they are.
///
/// # Errors
/// One that is about the nodes themselves.
pub fn check_command(cluster: &Cluster, command: &Description) -> Result<(), Error> {
    if cluster.is_scheduled() && !command.is_for_slurm {
        return Err(Error::usage(
            "this command manages workers, keys, locks or nodes; under Slurm there is nothing to manage, because Slurm \
             starts what a job needs",
            format!("use {FOR_SLURM}; or bypass Slurm with --scheduler ssh"),
        ));
    }
    Ok(())
}

/// Plans a job, and asks Slurm whether it would take it.
///
/// # Errors
/// Those of [`BatchJob::new`], of the program, and the words of sbatch.
pub async fn plan(
    program: impl Future<Output = Result<JobProgram, Error>>,
    options: JobOptions,
    context: &Context,
) -> Result<(BatchJob, Member), Error> {
    let Context { target, fleet, events, session, .. } = context;
    let connecting = async {
        let mut members = fleet.all(target, events).await?;
        Ok::<_, Error>(members.remove(0))
    };
    let (program, login) = session.cancellation.run(async { tokio::try_join!(program, connecting) }).await?;
    let batch_job = BatchJob::new(target, program, options, new_id())?;
    session.cancellation.run(batch_job.check(&login)).await?;
    Ok((batch_job, login))
}

/// Shows what would be submitted.
pub fn dry_run(sbatch: Vec<String>, program: &JobProgram) -> Outcome {
    let command = program.command.clone();
    let text = format!("sbatch {}\neach rank: {}\n", quote::command(&sbatch), quote::command(&command));
    Outcome::ok(text, DryRun { sbatch, ..DryRun::of(command) })
}

/// Submits a job.
///
/// # Errors
/// Why it was not submitted.
async fn submit(batch_job: &BatchJob, login: &Member, context: &Context) -> Result<(), Error> {
    let Context { target, fleet, events, session, .. } = context;
    // two that upload one project at the same time would mix its files
    session.lock_all(std::slice::from_ref(login)).await?;
    let jobs = session.cancellation.run(manage::list(target, fleet, events)).await?;
    if let Some(error) = jobs.failed.first() {
        return Err(error.clone().into());
    }
    let project = batch_job.program.project.as_ref().map(|_| &batch_job.program.name);
    let open = jobs.jobs.iter().filter(|job| !job.is_over() && project.is_some() && job.project.as_ref() == project);
    let open: Vec<&str> = open.map(|job| job.id.as_str()).collect();
    let submitted = batch_job.submit(login, &open, session, events).await;
    session.locks.release().await;
    submitted
}

/// Submits a job and follows it to its end, or until its ranks have started. Every frame goes to `on_frame`.
///
/// # Errors
/// Why it was not submitted; when the login node does not answer (the job goes on); a signal, which stops the job.
pub async fn run(
    batch_job: &BatchJob,
    login: &Member,
    context: &Context,
    on_frame: &mut dyn FnMut(&str, &Frame),
) -> Result<JobOutcome, Error> {
    submit(batch_job, login, context).await?;
    follow(&context.target, &batch_job.id, batch_job.options.watch, context, on_frame).await
}

/// Follows a submitted job to its end, or until its ranks have started. `target`: with the node of its launcher. Every
/// frame goes to `on_frame`.
async fn follow(
    target: &Target,
    id: &str,
    options: WatchOptions,
    context: &Context,
    on_frame: &mut dyn FnMut(&str, &Frame),
) -> Result<JobOutcome, Error> {
    let Context { fleet, events, session, .. } = context;
    let signal = || session.cancellation.signal();
    let watching = async {
        let jobs = queue::placed(target, fleet, id, events, signal()).await?;
        let job = jobs.find(Some(id), Newest::Any)?;
        watch::attach(&jobs, job, options, events, signal(), on_frame).await
    };
    let ended = watching.await;
    // before it was watched a signal has not stopped it
    if let Err(Error::Signal(number)) = &ended
        && *number != HANGUP
    {
        let jobs = manage::list(target, fleet, events).await?;
        let job = jobs.find(Some(id), Newest::Any)?;
        if !job.is_over() {
            manage::stop(&jobs, job, events).await?;
            events.note(format!("job {id} was stopped"));
        }
    }
    ended
}

/// Submits a planned job to the cluster's own Slurm, and follows it to its end, or leaves it in the queue. Every frame
/// goes to `on_frame`.
///
/// # Errors
/// As [`run`].
pub async fn queued(
    plan: &JobPlan,
    queue: QueueRequest,
    context: &Context,
    on_frame: &mut dyn FnMut(&str, &Frame),
) -> Result<JobOutcome, Error> {
    let Context { events, session, .. } = context;
    let sbatch = plan.sbatch(queue)?;
    session.cancellation.run(execute::check_queue(plan, &sbatch)).await?;
    let workspaces = execute::submit(plan, &sbatch, session, events).await?;
    if plan.options.watch.until_started {
        return Ok(in_queue(&plan.id, events));
    }
    // its launcher is on the master, whichever nodes its ranks may have (--on)
    let target = context.target.with_master();
    let outcome = follow(&target, &plan.id, plan.options.watch, context, on_frame).await;
    if outcome.as_ref().is_ok_and(|outcome| outcome.state != JobState::Running) {
        execute::gather_outputs(plan, &workspaces, events).await;
    }
    outcome
}

/// Reports that a job was left in the queue.
fn in_queue(id: &str, events: &Events) -> JobOutcome {
    let next = format!("follow it with hvdctl attach {id}, stop it with hvdctl stop {id}");
    events.note(Message::from(format!("job {id} is in Slurm's queue")).hint(next));
    JobOutcome::queued(id)
}

/// Follows the submitted job of `train` or `run`, or leaves it in the queue.
///
/// # Errors
/// As [`run`].
pub async fn carry_out(batch_job: &BatchJob, login: &Member, context: &Context) -> Result<JobOutcome, Error> {
    let events = &context.events;
    if batch_job.options.watch.until_started {
        submit(batch_job, login, context).await?;
        return Ok(in_queue(&batch_job.id, events));
    }
    run(batch_job, login, context, &mut |_, _| {}).await
}
