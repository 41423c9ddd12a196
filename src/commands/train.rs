//! `hvdctl train` and `hvdctl run`.

use super::best::{BestRequest, on_best};
use super::fetch::{FetchDocument, document, summary};
use super::job_start::Allocating;
use super::recording::record_job;
use super::{Context, Outcome, job_end, job_start};
use crate::cli;
use crate::cluster::operator::now;
use crate::commands::image::build::use_image;
use crate::document::{Document, End};
use crate::error::{Error, Verdict};
use crate::event::Message;
use crate::grade::best::Choice;
use crate::grade::speed;
use crate::job::fetch;
use crate::job::supervision::WatchOptions;
use crate::launch::hints::{FailedProgram, KnownProject};
use crate::launch::placement::{Placement, RankCount, Share};
use crate::launch::{self, NodeCommand, env_file};
use crate::model::launcher::LauncherName;
use crate::record::JobState;
use crate::secret::Secret;
use crate::start::in_worker::{NodeCores, cores};
use crate::start::plan::JobPlan;
use crate::start::request::{JobOptions, Program, ResourceRequest, check_ranks};
use crate::sync::commit::GitReport;
use crate::sync::files::ProjectFiles;
use crate::sync::project::ProjectCommand;
use crate::sync::upload::Project;
use crate::sync::{program, project};
use crate::text::argument::ProgramArgument;
use crate::text::quote;
use crate::text::table::table;
use anyhow::Context as _;
use schemars::JsonSchema;
use serde::Serialize;
use std::collections::BTreeSet;
use std::future::Future;
use std::path::{Path, PathBuf};

/// The only line of `train --dry-run` and `run --dry-run`.
#[derive(Debug, Serialize, JsonSchema)]
pub struct DryRun {
    /// `end`.
    pub event: End,
    /// The exit code.
    pub code: u8,
    /// Always true.
    pub dry_run: bool,
    /// Which ranks would be where.
    pub placement: Placement,
    /// What would be started on the nodes.
    pub launch: Vec<NodeCommand>,
    /// The cores and threads of the ranks on each node whose worker is up.
    pub cores: Vec<NodeCores>,
    /// The speed of each node with ranks: `HVDCTL_SPEED`.
    pub speeds: Vec<NodeSpeed>,
    /// Why these nodes; null without `--best`.
    pub best: Option<Choice>,
    /// The command of each rank.
    pub command: Vec<ProgramArgument>,
}

/// `train`.
pub async fn train(options: cli::Train, context: &mut Context) -> Result<Outcome, Error> {
    let running = &options.running;
    let work = async |context: &mut Context, best| train_on(options.clone(), best, context).await;
    // too many ranks for all nodes are too many for some
    check_ranks(&context.target, options.np, running.gpus_per_node)?;
    on_best(best_request(running), !running.dry_run, context, work).await
}

/// Returns what `--best` asks for.
fn best_request(running: &cli::Running) -> Option<BestRequest> {
    running.best.map(|nodes| BestRequest { nodes, per_node: running.gpus_per_node })
}

/// `train` on the selected nodes. `best`: why these, if they were chosen.
async fn train_on(options: cli::Train, best: Option<Choice>, context: &mut Context) -> Result<Outcome, Error> {
    check_ranks(&context.target, options.np, options.running.gpus_per_node)?;
    let root = project::find(&options.project)?;
    let ProjectCommand { argv: command, is_default: is_default_command, launcher } =
        project::command(&root, options.command)?;
    let launcher = options.running.launching.launcher(launcher, context.target.cluster().launcher)?;
    let title = options.running.name.clone();
    let shared = options.name_on_nodes.is_some();
    let name = options.name_on_nodes.unwrap_or_else(|| file_name(&root));
    if !options.no_setup {
        let check = async { read_project(root.clone(), command.clone()).await.map(drop) };
        use_image(&root, &file_name(&root), options.running.dry_run, check, context).await?;
    }
    let context = &*context;
    // what only some nodes have is missing on the others
    let mounts = context.target.nodes().into_iter().map(|node| node.container.mounts.into_iter().map(|m| m.target));
    let mounts = mounts.map(BTreeSet::from_iter).reduce(|all, of_node| &all & &of_node).unwrap_or_default();
    let mounts = mounts.into_iter().collect();
    let program = async move {
        let origin = project::origin(&root);
        let of_git = root.clone();
        let of_git = tokio::task::spawn_blocking(move || GitReport::read(&of_git));
        let files = read_project(root, command.clone()).await?;
        let commit =
            of_git.await.context("cannot ask git for the commit")?.map(|report| report.commit(&files.manifest));
        let (name, project) = (project::directory_name(&name), Some(Project { origin, files, shared, mounts }));
        Ok(Program { title, name, command, is_default_command, project, commit, files: Vec::new() })
    };
    let (np, fetch) = (options.np, options.fetch.as_deref());
    launch(program, Start { launcher, np, best, fetch, running: &options.running }, context).await
}

/// Reads a project, and checks that its files allow this command to start.
async fn read_project(root: PathBuf, command: Vec<ProgramArgument>) -> Result<ProjectFiles, Error> {
    let read = move || {
        let mut files = ProjectFiles::read(&root)?;
        let note = program::check(&command, |name| files.head(name, program::HEAD))?;
        files.notes.extend(note);
        Ok(files)
    };
    tokio::task::spawn_blocking(read).await.context("cannot read the project")?
}

/// `run`.
pub async fn run(options: cli::Run, context: &mut Context) -> Result<Outcome, Error> {
    let running = &options.running;
    let work = async |context: &mut Context, best| run_on(options.clone(), best, context).await;
    check_ranks(&context.target, options.np, running.gpus_per_node)?;
    on_best(best_request(running), !running.dry_run, context, work).await
}

/// `run` on the selected nodes. `best`: why these, if they were chosen.
async fn run_on(options: cli::Run, best: Option<Choice>, context: &Context) -> Result<Outcome, Error> {
    check_ranks(&context.target, options.np, options.running.gpus_per_node)?;
    let (title, command) = (options.running.name.clone(), options.command);
    let name = project::directory_name(&file_name(Path::new(&command[0].to_string())));
    let program =
        Program { title, name, command, is_default_command: false, project: None, commit: None, files: Vec::new() };
    let launcher = options.running.launching.launcher(None, context.target.cluster().launcher)?;
    let start = Start { launcher, np: options.np, best, fetch: None, running: &options.running };
    launch(async { Ok(program) }, start, context).await
}

/// How `train` or `run` starts a job.
struct Start<'a> {
    launcher: LauncherName,
    np: Option<RankCount>,
    /// Why these nodes, if they were chosen.
    best: Option<Choice>,
    /// Where to fetch the outputs to.
    fetch: Option<&'a Path>,
    running: &'a cli::Running,
}

async fn launch(
    program: impl Future<Output = Result<Program, Error>>,
    start: Start<'_>,
    context: &Context,
) -> Result<Outcome, Error> {
    let Start { launcher, np, best, fetch, running } = start;
    let Context { target, events, verbose, .. } = context;
    let cluster = target.cluster();
    let mut env = running.env_file.as_deref().map(env_file::read).transpose()?.unwrap_or_default();
    env.extend(running.env.iter().map(|(name, value)| (name.clone(), Secret::plain(value))));
    let resources = ResourceRequest { ranks: np, map_by: running.map_by, per_node: running.gpus_per_node };
    let controller = running.launching.controller(cluster.controller);
    let options = JobOptions {
        resources,
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
        env_files: context.env_files.clone(),
        watch: WatchOptions {
            output: !running.detach,
            launcher_output: *verbose > 1,
            until_started: running.detach,
            ..WatchOptions::default()
        },
    };
    let allocating = match best {
        _ if running.dry_run => Allocating::DryRun,
        Some(_) => Allocating::AtOnce,
        None => Allocating::WhenFree,
    };
    let plan = job_start::plan(program, options, allocating, context).await?;
    if running.dry_run {
        plan.check(events)?;
        let address = |share: &Share| {
            let host = plan.hosts.all().find(|host| host.observed.name() == share.node);
            host.map_or_else(String::new, |host| host.endpoint.address.to_string())
        };
        let cores = cores(&plan, events).await?;
        let with_ranks = plan.hosts.all().filter(|host| host.ranks > 0);
        let speeds =
            with_ranks.map(|host| NodeSpeed { node: host.observed.name().to_owned(), speed: host.speed }).collect();
        let details = Details { cores, speeds, best };
        return Ok(dry_run(&plan.program.command, &plan.placement, address, &plan.commands, details));
    }
    let began = now();
    let ended = job_start::start(&plan, context, |_, _| {}).await.inspect_err(|error| {
        if fetch.is_some() && matches!(error, Error::Signal(_)) {
            events.note(Message::from("the outputs were not fetched").hint("hvdctl fetch"));
        }
    })?;
    if running.detach && ended.state == JobState::Running {
        events.note(format!(
            "the job continues: follow it with hvdctl attach {0}, stop it with hvdctl stop {0}",
            ended.id
        ));
        return Ok(Outcome { text: format!("{}\n", ended.id), ..job_end::with_verdict(Verdict::Done, ended, None) });
    }
    record_job(context, &ended, began).await;
    let launcher = launch::launcher(plan.options.launcher, plan.options.controller);
    let fetched = match fetch {
        Some(directory) => Some(fetch_outputs(&plan, directory, context).await),
        None => None,
    };
    let manifest = plan.program.project.as_ref().map(|project| &project.files.manifest);
    let modules = manifest.map(|manifest| |name: &str| manifest.directory_of_module(name));
    let project = modules.as_ref().map_or(KnownProject::None, |modules| KnownProject::Modules(modules));
    let program = FailedProgram { command: &plan.program.command, project };
    job_end::outcome(ended, fetched, launcher, &program, events)
}

/// Fetches the outputs of a job. A failure or a signal is only a warning, because the job's own result follows.
async fn fetch_outputs(plan: &JobPlan, directory: &Path, context: &Context) -> Option<Document<FetchDocument>> {
    let Context { target, fleet, events, session, .. } = context;
    // the launcher's node may not be selected
    let (id, of_job) = (&plan.id, target.only(plan.hosts.observed().map(|observed| observed.name().to_owned())));
    match session.cancellation.run(fetch::after(&of_job, fleet, id, directory, events)).await {
        Ok(fetched) => {
            events.note(summary(&fetched));
            fetched.failed.iter().for_each(|error| events.warn(error));
            Some(document(&fetched))
        }
        Err(error) => {
            let directory = quote::readable(&directory.display().to_string());
            let message = Message::from(format!("cannot fetch the outputs: {error}"));
            events.warn(message.hint(format!("hvdctl fetch {id} -o {directory}")));
            None
        }
    }
}

/// How fast a node is.
#[derive(Debug, Serialize, JsonSchema)]
pub struct NodeSpeed {
    /// The node's name.
    pub node: String,
    /// Its measured speed relative to the fastest node of the job; 1 if it is not known.
    pub speed: f64,
}

/// What a dry run says of the nodes.
pub(super) struct Details {
    /// The cores and threads of their ranks.
    pub(super) cores: Vec<NodeCores>,
    /// Their speeds.
    pub(super) speeds: Vec<NodeSpeed>,
    /// Why these nodes, if they were chosen.
    pub(super) best: Option<Choice>,
}

/// Formats the plan of a job. `address`: that of a share's node.
pub(super) fn dry_run(
    command: &[ProgramArgument],
    placement: &Placement,
    address: impl Fn(&Share) -> String,
    commands: &[NodeCommand],
    Details { cores, speeds, best }: Details,
) -> Outcome {
    let row = |share: &Share| {
        let ranks = match share.ranks {
            0 => "–".to_owned(),
            1 => share.first.to_string(),
            ranks => format!("{}-{}", share.first, share.first + ranks - 1),
        };
        vec![share.node.clone(), ranks, address(share)]
    };
    let mut text = table(&["NODE", "RANKS", "ADDRESS"], placement.shares.iter().map(row));
    text.extend(placement.shares.iter().filter(|share| share.ranks > 0).map(|share| core_line(share, &cores)));
    let slower = speeds.iter().filter(|slower| slower.speed != 1.0);
    text.extend(slower.map(|of| format!("speed of {}: HVDCTL_SPEED={}\n", of.node, speed::variable(of.speed))));
    for NodeCommand { node, argv, variables } in commands {
        let on = if commands.len() > 1 { format!(" on {node}") } else { String::new() };
        let argv = quote::command(argv);
        if variables.is_empty() {
            text.push_str(&format!("launcher{on}: {argv}\n"));
        }
        text.extend(variables.iter().map(|env| format!("rank{on}: env {} {argv}\n", quote::command(env))));
    }
    text.push_str(&format!("each rank: {}\n", quote::command(command)));
    let (placement, launch, command) = (placement.clone(), commands.to_vec(), command.to_vec());
    Outcome::ok(
        text,
        DryRun { event: End::End, code: 0, dry_run: true, placement, launch, cores, speeds, best, command },
    )
}

/// Formats the cores and threads of a node's ranks.
fn core_line(share: &Share, cores: &[NodeCores]) -> String {
    let node = &share.node;
    let Some(cores) = cores.iter().find(|cores| cores.node == *node) else {
        return format!("cores on {node}: not known until its worker is up\n");
    };
    let of_rank = |(cpus, rank): (&String, u32)| format!("{cpus} for rank {rank}");
    let bound = match cores.bind.as_str() {
        "none" => "all for every rank".to_owned(),
        _ => cores.cpus.iter().zip(share.first..).map(of_rank).collect::<Vec<_>>().join(", "),
    };
    format!("cores on {node}: {bound}; bind {}, OMP_NUM_THREADS={}\n", cores.bind, cores.threads)
}

fn file_name(path: &Path) -> String {
    path.file_name().unwrap_or_default().to_string_lossy().into_owned()
}
