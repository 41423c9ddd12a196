//! `hvdctl train` and `hvdctl run`.

use super::output::{self, DryRun, End, JobEnd};
use super::{Context, Outcome, reach_and_observe, take_and_observe_free, unless_signalled};
use crate::cli;
use crate::cluster::nodes::Target;
use crate::cluster::session::Session;
use crate::error::{Error, exit};
use crate::event::Events;
use crate::job::cores::{NodeCores, cores};
use crate::job::fetch::{self, FetchReport};
use crate::job::launcher_check;
use crate::job::outcome::JobOutcome;
use crate::job::plan::JobPlan;
use crate::job::record::{RootCause, State};
use crate::job::request::{Cwd, JobOptions, Program, ResourceRequest, Show, Until, check_ranks};
use crate::job::start::{new_id, start};
use crate::job::supervision::OnSignal;
use crate::job::watch::tail;
use crate::launch::NodeCommand;
use crate::launch::env_file;
use crate::launch::placement::{Placement, RankCount, Share};
use crate::model::launcher::LauncherName;
use crate::render::table::table;
use crate::secret::Secret;
use crate::sync::files::ProjectFiles;
use crate::sync::project::{self, ProjectCommand};
use crate::sync::upload::Project;
use crate::text::argument::ProgramArgument;
use crate::text::nodeset;
use crate::text::quote;
use std::collections::BTreeMap;
use std::fs;
use std::future::Future;
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use tokio::sync::watch::Receiver;

/// `train`.
pub async fn train(options: cli::Train, context: Context) -> Result<Outcome, Error> {
    check_ranks(&context.target, Some(options.np), options.running.gpus_per_node)?;
    let root = directory(&options.project)?;
    let command = command(&root, &options.command)?;
    let name = root.file_name().map(|n| n.to_string_lossy().into_owned()).unwrap_or_default();
    let shared = options.name_on_nodes.is_some();
    let session = context.session(&format!("hvdctl train {name}"), options.waiting);
    let (title, cancel) = (options.running.name.clone(), context.cancel.clone());
    let program = async move {
        let origin = origin(&root);
        let reading = tokio::task::spawn_blocking(move || ProjectFiles::read(&root));
        let files = unless_signalled(&cancel, async {
            reading.await.map_err(|e| Error::Here(format!("cannot read the project: {e}")))?
        });
        Ok(Program {
            title,
            name: project::directory_name(&options.name_on_nodes.unwrap_or(name)),
            command: command.argv,
            launcher: command.launcher,
            cwd: Cwd::Workspace,
            project: Some(Project { origin, files: files.await?, shared }),
            files: Vec::new(),
        })
    };
    go(program, options.np, &options.running, options.fetch.as_deref(), session, context).await
}

/// `run`.
pub async fn run(options: cli::Run, context: Context) -> Result<Outcome, Error> {
    check_ranks(&context.target, Some(options.np), options.running.gpus_per_node)?;
    let called = options.command[0].to_string();
    let session = context.session(&format!("hvdctl run {called}"), options.waiting);
    let name = Path::new(&called).file_name().map(|n| n.to_string_lossy().into_owned());
    let program = Program {
        title: options.running.name.clone(),
        name: project::directory_name(&name.unwrap_or_default()),
        command: options.command,
        launcher: None,
        cwd: Cwd::Root,
        project: None,
        files: Vec::new(),
    };
    go(async { Ok(program) }, options.np, &options.running, None, session, context).await
}

async fn go(
    program: impl Future<Output = Result<Program, Error>>,
    np: RankCount,
    running: &cli::Running,
    fetch: Option<&Path>,
    session: Session,
    context: Context,
) -> Result<Outcome, Error> {
    let result = launch(program, np, running, fetch, &session, context).await;
    session.locks.release().await;
    result
}

async fn launch(
    program: impl Future<Output = Result<Program, Error>>,
    np: RankCount,
    running: &cli::Running,
    fetch: Option<&Path>,
    session: &Session,
    mut context: Context,
) -> Result<Outcome, Error> {
    let mut env = running.env_file.as_deref().map(env_file::read).transpose()?.unwrap_or_default();
    env.extend(running.env.iter().map(|(name, value)| (name.clone(), Secret::plain(value))));
    let resources = ResourceRequest { ranks: Some(np), map_by: running.map_by, per_node: running.gpus_per_node };
    let nodes = async {
        if running.dry_run {
            context.target = context.target.with_launcher();
            reach_and_observe(&context, &context.events).await
        } else {
            take_and_observe_free(&mut context, resources, session).await
        }
    };
    // a large project is read while the nodes are looked at; the first failure ends both
    let (program, nodes) = tokio::try_join!(program, nodes)?;
    let Context { target, events, verbose, .. } = context;
    let cluster = target.cluster();
    let how = JobOptions {
        resources,
        restarts: running.restarts,
        launcher: running.launching.launcher(program.launcher, cluster.launcher)?,
        controller: running.launching.controller(cluster.controller),
        bind: running.bind.or(cluster.bind),
        stall_timeout: running.stall_timeout.unwrap_or(cluster.stall_timeout),
        log_max: running.log_max,
        env,
        show: Show { output: !running.detach, launcher: verbose > 1 },
        until: Until { limit: None, all_started: running.detach, on_signal: OnSignal::Stop },
    };
    let id = if running.dry_run { "ID".to_owned() } else { new_id() };
    let plan = JobPlan::new(&target, nodes, &how, &id)?;
    plan.check(&events)?;
    if running.dry_run {
        return dry_run(&program.command, &plan, &how, &events).await;
    }
    // images are built for the default
    if how.launcher != LauncherName::default() {
        session.cancellation.run(launcher_check::check(&plan)).await?;
    }
    let ran = start(&plan, &program, &how, session, &events, |_, _| {}).await.inspect_err(|error| {
        if fetch.is_some() && matches!(error, Error::Signal(_)) {
            events.note("what it wrote is where it wrote it: hvdctl fetch brings it");
        }
    })?;
    if running.detach && ran.state == State::Running {
        events
            .note(format!("the job goes on by itself: hvdctl attach {0} follows it, hvdctl stop {0} ends it", ran.id));
        return Ok(Outcome { text: format!("{}\n", ran.id), ..ended(exit::OK, &ran) });
    }
    let Some(directory) = fetch else { return outcome(ran, &events) };
    let fetched = bring(&target, &ran.id, directory, &session.cancellation.signal(), &events).await;
    Ok(with_fetched(outcome(ran, &events)?, fetched))
}

/// How a job ended, and what came of what it wrote; a job that went well is not done as long as something is missing here.
pub(super) fn with_fetched(mut outcome: Outcome, fetched: Option<FetchReport>) -> Outcome {
    let all = fetched.as_ref().is_some_and(|fetched| fetched.failed.is_empty());
    if !all && outcome.code == exit::OK {
        outcome.code = exit::INTERNAL;
        outcome.document["ok"] = false.into();
        outcome.document["code"] = exit::INTERNAL.into();
    }
    outcome.document["fetched"] = output::value(&fetched.map(|fetched| super::fetch::outcome(fetched).document));
    outcome
}

/// Fetches what the job wrote. How the job ended is told all the same, also where a signal ends the fetching.
async fn bring(
    target: &Target,
    id: &str,
    directory: &Path,
    cancel: &Receiver<Option<u8>>,
    events: &Events,
) -> Option<FetchReport> {
    match unless_signalled(cancel, fetch::after(target, id, directory, events)).await {
        Ok(fetched) => {
            let new = fetched.items.iter().filter(|(_, new)| *new).count();
            let old = fetched.items.len() - new;
            events.note(format!("{}: {new} fetched, {old} unchanged", directory.display()));
            for error in &fetched.failed {
                events.warn(error);
            }
            Some(fetched)
        }
        Err(error) => {
            let again = format!("hvdctl fetch {id} -o {}", quote::readable(&directory.display().to_string()));
            events.warn(format!("cannot fetch what the job wrote: {error}\n  again: {again}"));
            None
        }
    }
}

/// Formats the plan of a job.
async fn dry_run(
    command: &[ProgramArgument],
    plan: &JobPlan,
    options: &JobOptions,
    events: &Events,
) -> Result<Outcome, Error> {
    let cores = cores(plan, options, events).await?;
    let address =
        |node: &str| plan.hosts.iter().find(|host| host.seen.name() == node).map(|host| host.endpoint.address);
    let addresses: BTreeMap<&str, IpAddr> =
        plan.placement.shares.iter().filter_map(|share| Some((share.node.as_str(), address(&share.node)?))).collect();
    Ok(planned(command, &plan.placement, &addresses, (&plan.commands, cores)))
}

pub(super) fn planned(
    command: &[ProgramArgument],
    placement: &Placement,
    addresses: &BTreeMap<&str, IpAddr>,
    (commands, cores): (&[NodeCommand], Vec<NodeCores>),
) -> Outcome {
    let rows: Vec<Vec<String>> = placement
        .shares
        .iter()
        .map(|share| {
            let ranks = match share.ranks {
                0 => "–".to_owned(),
                1 => share.first.to_string(),
                ranks => format!("{}-{}", share.first, share.first + ranks - 1),
            };
            vec![share.node.clone(), ranks, addresses[share.node.as_str()].to_string()]
        })
        .collect();
    let mut text = table(&["NODE", "RANKS", "ADDRESS"], &rows);
    text.push_str(&launch_lines(commands));
    text.extend(placement.shares.iter().filter(|share| share.ranks > 0).map(|share| core_line(share, &cores)));
    text.push_str(&format!("each rank: {}\n", shell_line(command)));
    let document = DryRun {
        event: End::End,
        ok: true,
        code: exit::OK,
        dry_run: true,
        placement: placement.clone(),
        launch: commands.to_vec(),
        cores,
        command: command.to_vec(),
    };
    Outcome::new(exit::OK, text, &document, Vec::new())
}

/// Formats what is started on the nodes.
fn launch_lines(commands: &[NodeCommand]) -> String {
    let lines = |command: &NodeCommand| {
        let on = if commands.len() > 1 { format!(" on {}", command.node) } else { String::new() };
        let argv = shell_line(&command.argv);
        let rank = |variables: &Vec<String>| format!("rank{on}: env {} {argv}\n", shell_line(variables));
        match command.variables.is_empty() {
            true => format!("launcher{on}: {argv}\n"),
            false => command.variables.iter().map(rank).collect(),
        }
    };
    commands.iter().map(lines).collect()
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

/// A vector as one would type it.
fn shell_line(words: &[impl ToString]) -> String {
    words.iter().map(|word| quote::readable(&word.to_string())).collect::<Vec<_>>().join(" ")
}

/// How a job ended that was seen to its end, for `train`, `run` and `attach`.
///
/// # Errors
/// Where no rank failed and yet the job did: that is not the program's doing.
pub(super) fn outcome(ran: JobOutcome, events: &Events) -> Result<Outcome, Error> {
    match ran.state {
        State::Succeeded => {}
        State::Stopped => events.warn(format!("the job {} was stopped", ran.id)),
        _ => failed(&ran, events)?,
    }
    // an exit code that a process can have; anything else is the engine's business
    let code = u8::try_from(ran.code).unwrap_or(exit::INTERNAL);
    Ok(ended(code, &ran))
}

pub(super) fn ended(code: u8, ran: &JobOutcome) -> Outcome {
    let document = JobEnd { event: End::End, ok: code == exit::OK, code, job: ran.clone(), fetched: None };
    Outcome::new(code, String::new(), &document, Vec::new())
}

/// Says who failed; where no rank did, the launcher itself has failed, and that is not the program's doing.
fn failed(ran: &JobOutcome, events: &Events) -> Result<(), Error> {
    if !ran.silent.is_empty() {
        let who = nodeset::fold(&ran.silent);
        let words =
            format!("{who} did not answer at the end of the job: ranks may be left there (hvdctl doctor --fix)");
        events.warn(words);
    }
    if let Some(root_cause) = &ran.root_cause {
        events.warn(root_cause_message(ran, root_cause));
        return Ok(());
    }
    let verify =
        "hvdctl verify shows whether the cluster itself works; if it is only slow, raise cluster.start_timeout_s";
    let (what, hint) = match &ran.fault {
        Some(fault) if ran.state == State::Failed && ran.all_started => (
            format!("the job {} has failed: {fault}", ran.id),
            "`docker events` and the system's log on that node say who ended it",
        ),
        Some(fault) if ran.state == State::Failed => (format!("the job {} has failed: {fault}", ran.id), verify),
        Some(fault) => (
            format!("the job {} is lost: {fault}", ran.id),
            "nothing of it is left on the nodes that answered; `dmesg` and `docker events` there may say why",
        ),
        None => {
            let what =
                if ran.all_started { "the launcher ended before its ranks" } else { "not every rank could be started" };
            (format!("{what} (launcher: exit code {})", ran.code), verify)
        }
    };
    Err(Error::check(format!("{what}{}", tail(&ran.launcher)), hint))
}

/// Who a job failed by, with the last lines of that rank, unless they have just been shown.
fn root_cause_message(ran: &JobOutcome, root_cause: &RootCause) -> String {
    let mut words = format!("{root_cause}; the job {} has failed", ran.id);
    if !ran.just_shown && !ran.last_lines.is_empty() {
        let what = if ran.last_lines.len() == 1 { "line" } else { "lines" };
        let bracket = format!("[{} {}]", root_cause.rank, root_cause.node);
        words.push_str(&format!("\n  the last {what} of rank {}:", root_cause.rank));
        words.extend(ran.last_lines.iter().map(|line| format!("\n    {bracket} {line}")));
    }
    if let Some(hint) = root_cause.hint() {
        words.push_str(&format!("\n  hint: {hint}"));
    }
    words
}

/// Where a project comes from, `HOST:FOLDER`.
fn origin(root: &Path) -> String {
    let host = fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    format!("{}:{}", host.trim(), root.display())
}

fn directory(path: &Path) -> Result<PathBuf, Error> {
    let shown = path.display();
    let hint = "name the project's directory, e.g. hvdctl train ./myproject -np 2";
    let root = fs::canonicalize(path).map_err(|e| Error::usage(format!("the project {shown}: {e}"), hint))?;
    if !root.is_dir() {
        return Err(Error::usage(format!("the project {shown} is not a directory"), hint));
    }
    if root.file_name().is_none() {
        return Err(Error::usage(format!("{shown} is the whole file system"), hint));
    }
    Ok(root)
}

fn command(root: &Path, given: &[ProgramArgument]) -> Result<ProjectCommand, Error> {
    let own = root.join("hvdctl.toml");
    let file = match fs::read_to_string(&own) {
        Ok(text) => Some(text),
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => None,
        Err(e) => return Err(Error::usage(format!("{}: {e}", own.display()), "mend or remove it")),
    };
    let has = |name: &str| root.join(name).is_file();
    project::command(given, file.as_deref(), has("train.py"), has("main.py")).map_err(|e| {
        Error::usage(
            format!("the project {} has no clear entry: {e}", root.display()),
            "say it: hvdctl train PROJECT -np N -- python your_script.py",
        )
    })
}
