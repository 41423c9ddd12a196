//! `hvdctl train` and `hvdctl run`.

pub mod dry_run;
pub(super) mod roles;

use crate::cli;
use crate::cluster::observation::ObservedNode;
use crate::cluster::operator::now;
use crate::cluster::target::Target;
use crate::commands::set_up::image::build::use_images;
use crate::commands::shared::best::{BestRequest, on_best};
use crate::commands::shared::recording::record_job;
use crate::commands::show::fetch::fetch_at_end;
use crate::commands::show::job_end;
use crate::commands::{Context, Outcome};
use crate::diagnosis::outcome::JobOutcome;
use crate::diagnosis::program::{FailedProgram, KnownProject};
use crate::error::{Error, ErrorKind, NodeError, Verdict};
use crate::event::Message;
use crate::grade::best::Choice;
use crate::inventory::Cluster;
use crate::job::supervision::WatchOptions;
use crate::launch::placement::RankCount;
use crate::launch::{self, env_file};
use crate::model::launcher::LauncherName;
use crate::record::JobState;
use crate::schedule::{Allocating, Plan, check_choice, check_fit};
use crate::start::request::{JobOptions, JobProgram, ProjectRequest, ResourceRequest, check_ranks};
use crate::start::roles::JobRole;
use crate::sync::project;
use crate::worker::image;
use roles::JobCommand;
use std::future::Future;
use std::path::Path;

/// `train`.
pub async fn train(options: cli::Train, context: &mut Context) -> Result<Outcome, Error> {
    let running = &options.running;
    roles::check_size(&options, &context.target)?;
    let work = async |context: &mut Context, best| train_on(options.clone(), best, context).await;
    on_best(best_request(running, context)?, !running.dry_run, context, work).await
}

/// Returns what `--best` asks for.
///
/// # Errors
/// As [`check_choice`].
fn best_request(running: &cli::Running, context: &Context) -> Result<Option<BestRequest>, Error> {
    if running.best.is_some() {
        check_choice(context.target.cluster())?;
    }
    Ok(running.best.map(|nodes| BestRequest { nodes, per_node: running.gpus_per_node }))
}

/// `train` on the selected nodes. `best`: why these, if they were chosen.
async fn train_on(options: cli::Train, best: Option<Choice>, context: &mut Context) -> Result<Outcome, Error> {
    let root = project::find(&options.project)?;
    let JobCommand { argv: command, is_default: is_default_command, launcher, mut roles } =
        roles::command(&root, &options, &context.target)?;
    let np = roles::ranks(&options).filter(|_| roles.is_empty());
    check_ranks(&context.target, np, options.running.gpus_per_node)?;
    let (title, name) = (options.running.name.clone(), options.name_on_nodes.clone());
    let other_commands = roles.iter().skip(1).map(|role| role.project.command.clone()).collect();
    let project = ProjectRequest { title, root, name, command, is_default_command, other_commands };
    if !options.no_setup {
        let check = async || project.files().await.map(drop);
        let (target, is_direct, planned) = (context.target.clone(), context.scheduler().is_direct, roles.clone());
        let accepts = |nodes: &[ObservedNode]| check_fit(&planned, (&target, is_direct), nodes);
        let made = (options.running.dry_run, roles.as_mut_slice());
        let used = use_images(&project.root, &project.directory(), made, (check, accepts), context).await;
        used.map_err(|error| not_up(error, context.target.cluster()))?;
    }
    let start = JobStart { launcher, np, roles, best, fetch: options.fetch.as_deref(), running: &options.running };
    launch(project.program(context.target.nodes()), start, context).await
}

/// Tells apart the error of a cluster whose image `hvdctl up` would get.
fn not_up(error: Error, cluster: &Cluster) -> Error {
    let is_missing = |failed: &[NodeError]| failed.iter().all(|error| error.kind == ErrorKind::ImageMissing);
    match error {
        Error::Nodes { ref failed, done: 0 } if image::is_wanted(cluster, false) && is_missing(failed) => {
            Error::NotUp(Box::new(error))
        }
        error => error,
    }
}

/// `run`.
pub async fn run(options: cli::Run, context: &mut Context) -> Result<Outcome, Error> {
    let running = &options.running;
    let work = async |context: &mut Context, best| run_on(options.clone(), best, context).await;
    check_ranks(&context.target, options.np, running.gpus_per_node)?;
    on_best(best_request(running, context)?, !running.dry_run, context, work).await
}

/// `run` on the selected nodes. `best`: why these, if they were chosen.
async fn run_on(options: cli::Run, best: Option<Choice>, context: &Context) -> Result<Outcome, Error> {
    check_ranks(&context.target, options.np, options.running.gpus_per_node)?;
    let program = JobProgram::of_command(options.running.name.clone(), options.command);
    let launcher = options.running.launching.launcher(None, context.target.cluster())?;
    let start = JobStart { launcher, np: options.np, roles: Vec::new(), best, fetch: None, running: &options.running };
    launch(async { Ok(program) }, start, context).await
}

/// The start of a job by `train` or `run`.
struct JobStart<'a> {
    launcher: LauncherName,
    np: Option<RankCount>,
    /// The roles of the job, if it has any.
    roles: Vec<JobRole>,
    /// Why these nodes, if they were chosen.
    best: Option<Choice>,
    /// Where to fetch the outputs to.
    fetch: Option<&'a Path>,
    running: &'a cli::Running,
}

/// Plans the job, and shows the plan or carries it out.
async fn launch(
    program: impl Future<Output = Result<JobProgram, Error>>,
    start: JobStart<'_>,
    context: &Context,
) -> Result<Outcome, Error> {
    let options = job_options(&start, context)?;
    let JobStart { best, fetch, running, .. } = start;
    let allocating = match best {
        _ if running.dry_run => Allocating::DryRun,
        Some(_) => Allocating::AtOnce,
        None => Allocating::Scheduled,
    };
    let plan = context.scheduler().plan(program, options, allocating).await?;
    if running.dry_run {
        let programs = (plan.program().command.as_slice(), plan.options().roles.as_slice());
        return Ok(dry_run::outcome(programs, plan.show(context.site()).await?, best));
    }
    plan.check_up()?;
    carry_out(&plan, fetch, context).await
}

/// Returns how the job is run: what the options say, else what the inventory does.
fn job_options(start: &JobStart<'_>, context: &Context) -> Result<JobOptions, Error> {
    let JobStart { launcher, np, running, .. } = *start;
    let Context { target, verbose, env_files, .. } = context;
    let cluster = target.cluster();
    let env = env_file::given(running.env_file.as_deref(), &running.env)?;
    let controller = running.launching.controller(cluster.controller);
    Ok(JobOptions {
        resources: ResourceRequest { ranks: np, map_by: running.map_by, per_node: running.gpus_per_node },
        submission: running.launching.sbatch.clone(),
        restarts: running.restarts,
        elastic: running.elastic(np, launcher, controller)?,
        changes: running.reset_limit,
        launcher,
        controller,
        bind: running.bind.or(cluster.bind),
        stall_timeout: running.stall_timeout.unwrap_or(cluster.stall_timeout),
        log_max: running.log_max,
        log_progress: running.log_progress,
        env,
        env_files: env_files.clone(),
        roles: start.roles.clone(),
        watch: WatchOptions {
            output: !running.detach,
            launcher_output: *verbose > 1,
            until_started: running.detach,
            ends_together: running.elastic(np, launcher, controller)?.is_none(),
            ..WatchOptions::default()
        },
    })
}

/// Starts the planned job and follows it to its end, or until its ranks have started. `fetch`: where its outputs go.
async fn carry_out(plan: &Plan, fetch: Option<&Path>, context: &Context) -> Result<Outcome, Error> {
    let events = &context.events;
    let began = now();
    let ended = plan.run(context.site(), &mut |_, _| {}).await.inspect_err(|error| {
        if fetch.is_some() && matches!(error, Error::Signal(_)) {
            events.note(Message::from("the outputs were not fetched").hint("hvdctl fetch"));
        }
    })?;
    if plan.options().watch.until_started && ended.state == JobState::Running {
        events.note(format!(
            "the job continues: follow it with hvdctl attach {0}, stop it with hvdctl stop {0}",
            ended.id
        ));
    }
    let of_job = plan.target(&context.target);
    finish(ended, plan, (fetch, &of_job, began), context).await
}

/// Returns the result of a job that has ended or goes on. Its outputs go into the directory `fetch`, from the nodes of
/// `of_job`; it `began` then.
async fn finish(
    ended: JobOutcome,
    plan: &Plan,
    (fetch, of_job, began): (Option<&Path>, &Target, f64),
    context: &Context,
) -> Result<Outcome, Error> {
    let (events, program, options) = (&context.events, plan.program(), plan.options());
    if options.watch.until_started && matches!(ended.state, JobState::Running | JobState::Queued) {
        return Ok(Outcome {
            text: format!("{}\n", ended.id).into(),
            ..job_end::with_verdict(Verdict::Done, ended, None)
        });
    }
    record_job(context, &ended, began).await;
    let launcher = launch::launcher(options.launcher, options.controller);
    let fetched = match fetch {
        Some(directory) => Some(fetch_at_end(&ended.id, of_job, directory, context).await),
        None => None,
    };
    let manifest = program.project.as_ref().map(|project| &project.files.manifest);
    let modules = manifest.map(|manifest| |name: &str| manifest.directory_of_module(name));
    let project = modules.as_ref().map_or(KnownProject::None, |modules| KnownProject::Modules(modules));
    let directory = context.target.cluster().project_directory(&program.name);
    let restarts_help = context.target.cluster().can().shared_directory && options.restarts == 0;
    let failed = FailedProgram { command: &program.command, project, directory, restarts_help, ports: plan.ports() };
    job_end::outcome(ended, fetched, launcher, &failed, events)
}
