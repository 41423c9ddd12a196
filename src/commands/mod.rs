//! One file per command. Each returns its result as a value; `main` shows it.

mod about;
mod attach;
mod doctor;
#[cfg(test)]
mod documents;
mod down;
mod drain;
mod exec;
mod execute;
mod fetch;
mod hosts;
mod init;
mod jobs;
mod keys;
mod lock;
mod logs;
pub mod output;
mod shell;
mod signal;
mod status;
mod stop;
#[cfg(test)]
mod tests;
mod train;
mod up;
mod verify;

use crate::cancel::signalled;
use crate::cli::{Command, Global, Jobs, JobsCommand, Keys, Lock, Waiting};
use crate::cluster::nodes::{
    Member, Observed, Target, all, connect, connect_all, for_each_node, observe, split, unreached,
};
use crate::cluster::session::Session;
use crate::error::{Error, Kind, NodeError, exit};
use crate::event::Events;
use crate::inventory::Inventory;
use crate::job::capacity::{check_capacity, drop_ended_jobs};
use crate::job::request::ResourceRequest;
use crate::keys::reachability::Matrix;
use crate::render::table::table;
use crate::runtime::Runtime;
use crate::terminal::{self, Echo};
use crate::transport::node;
use crate::transport::sudo::Sudo;
pub use execute::execute;
use output::{Failure, NodeEntry, Nodes};
use serde::Serialize;
use serde_json::Value;
pub use signal::run_until_signalled;
use std::future::Future;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::sync::watch;

/// The image of the tutorial.
pub const DEFAULT_IMAGE: &str = "horovod/horovod:latest";
/// What `scripts/image/build` makes.
pub const BUILT_IMAGE: &str = "hvdctl-lab/horovod:latest";

/// How often a job that waits looks whether another one has ended.
const POLL_INTERVAL: Duration = Duration::from_secs(2);

/// What a command needs beside its own options.
pub struct Context {
    /// The nodes it is about.
    pub target: Target,
    /// Where events go.
    pub events: Events,
    /// Set to the number of a signal once one has come.
    pub cancel: watch::Receiver<Option<u8>>,
    /// How much to say.
    pub verbose: u8,
    /// Whether to ask before something is lost.
    pub ask: bool,
}

/// What a command has to say at its end.
#[derive(Debug)]
pub struct Outcome {
    /// The exit code.
    pub code: u8,
    /// For people, on standard output.
    pub text: String,
    /// For scripts.
    pub document: Value,
    /// Failures of single nodes, for standard error.
    pub failed: Vec<NodeError>,
}

impl Outcome {
    /// The outcome of something that was done on each node by itself.
    pub fn of_nodes<T: Serialize>(text: String, nodes: Vec<NodeEntry<T>>, failed: Vec<NodeError>) -> Outcome {
        let code = exit::of_nodes(nodes.len(), &failed);
        let nodes = nodes.into_iter().chain(failed.iter().map(NodeEntry::failed)).collect();
        Outcome::new(code, text, &Nodes { ok: failed.is_empty(), nodes }, failed)
    }

    /// The outcome of a command with a document of its own (see [`output`]).
    pub fn new(code: u8, text: String, document: &impl Serialize, failed: Vec<NodeError>) -> Outcome {
        Outcome { code, text, document: output::value(document), failed }
    }

    /// Names the nodes that were left out on request (`--skip-offline`).
    #[must_use]
    fn skipping(mut self, offline: &[NodeError]) -> Outcome {
        if let Some(nodes) = self.document["nodes"].as_array_mut() {
            let skipped = |e| NodeEntry::<output::NoDetails> { skipped: true, ..NodeEntry::failed(e) };
            nodes.extend(offline.iter().map(|error| output::value(&skipped(error))));
        }
        self
    }
}

/// The end of a command as it is shown.
#[derive(Debug)]
pub struct Shown {
    /// The exit code.
    pub code: u8,
    /// For standard output.
    pub out: String,
    /// Errors for standard error, each without the word `error:`.
    pub errors: Vec<String>,
}

/// Formats the end of a command. `json`: as one document on standard output. `program` and `lines`: whether the command passes a
/// program's exit code on, and whether it shows ranks' lines as they come.
pub fn shown(result: Result<Outcome, Error>, json: bool, program: bool, lines: bool) -> Shown {
    match result {
        Ok(Outcome { code, document, .. }) if json => Shown { code, out: format!("{document}\n"), errors: Vec::new() },
        Ok(Outcome { code, text, failed, .. }) => {
            Shown { code, out: text, errors: failed.iter().map(ToString::to_string).collect() }
        }
        Err(error) if json => {
            let failure = Failure::new(&error, program, lines);
            Shown { code: failure.code, out: format!("{}\n", output::value(&failure)), errors: Vec::new() }
        }
        Err(error) => Shown { code: error.exit_code(program), out: String::new(), errors: vec![error.to_string()] },
    }
}

/// Finds the nodes that a command is about.
///
/// # Errors
/// A wrong inventory or selection, or none where the command does not work on this machine alone.
pub async fn target(global: &Global, works_locally: bool, events: &Events) -> Result<Target, Error> {
    let sudo = Arc::new(Sudo::new(global.ask_sudo_pass, !global.yes, events).await?);
    if let Some(file) = inventory_file(global) {
        if global.image.is_some() {
            return Err(Error::usage("--image is for this machine alone", "set cluster.image in the inventory"));
        }
        let target = Target::new(Inventory::load(&file)?, global.on.as_deref(), false)?;
        return Ok(Target { strict: global.strict, sudo, ..target });
    }
    if !works_locally {
        return Err(Error::usage(
            "there is no inventory",
            "`hvdctl init` writes one to ./inventory.toml; one that is elsewhere is named with -i",
        ));
    }
    let name = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    let name = Some(name.trim()).filter(|n| !n.is_empty() && !n.starts_with('(')).unwrap_or("localhost").to_owned();
    let image = local_image(global, &name, &sudo, events).await?;
    events.note(format!("no inventory: this machine alone ({name}), image {image}"));
    let target = Target::new(Inventory::local(&name, &image), global.on.as_deref(), true)?;
    Ok(Target { sudo, ..target })
}

/// `-i` or `$HVDCTL_INVENTORY`, else the places where one usually is.
fn inventory_file(global: &Global) -> Option<PathBuf> {
    if let Some(file) = &global.inventory {
        return Some(file.clone());
    }
    let config = std::env::var_os("XDG_CONFIG_HOME")
        .map(PathBuf::from)
        .filter(|p| p.is_absolute())
        .or_else(|| std::env::home_dir().map(|home| home.join(".config")))
        .map(|dir| dir.join("hvdctl/inventory.toml"));
    [Some(PathBuf::from("inventory.toml")), config].into_iter().flatten().find(|p| p.exists())
}

/// The image for this machine alone: the one that was named; else the tutorial's; else, where that is not here, the one
/// that `scripts/image/build` made.
async fn local_image(global: &Global, name: &str, sudo: &Sudo, events: &Events) -> Result<String, Error> {
    let named = global.image.clone().or_else(|| std::env::var("HVDCTL_IMAGE").ok().filter(|image| !image.is_empty()));
    if let Some(image) = named {
        return Ok(image);
    }
    let inventory = Inventory::local(name, DEFAULT_IMAGE);
    let kind = node::TransportKind::Local;
    let transport = node::Transport::open(&inventory.cluster, &inventory.nodes[0], kind, sudo, events).await?;
    let engine = Runtime::connect(&Arc::new(transport)).await?;
    for image in [DEFAULT_IMAGE, BUILT_IMAGE] {
        if engine.image(image).await?.is_some() {
            return Ok(image.to_owned());
        }
    }
    Ok(DEFAULT_IMAGE.to_owned())
}

/// The nodes of a command that changes them.
struct Reached {
    /// Those that can be worked on.
    members: Vec<Member>,
    /// Those that `--skip-offline` leaves out.
    offline: Vec<NodeError>,
    /// Those that answer and give no root: they fail, and the others go on.
    refused: Vec<NodeError>,
}

/// Reaches all of them or, with `--skip-offline`, those that answer.
async fn connect_or_skip(target: &Target, events: &Events, skip: bool) -> Result<Reached, Error> {
    let (members, failed) = split(events, connect(target, events).await?);
    let (offline, refused): (Vec<_>, Vec<_>) = failed.into_iter().partition(|e| e.kind == Kind::Unreachable);
    if members.is_empty() || !(offline.is_empty() || skip) {
        return Err(unreached(offline.into_iter().chain(refused).collect()));
    }
    for error in &offline {
        events.warn(error);
    }
    Ok(Reached { members, offline, refused })
}

/// Does the work unless a signal comes first.
///
/// # Errors
/// Those of the work, and the signal.
pub async fn unless_signalled<T>(
    cancel: &watch::Receiver<Option<u8>>,
    work: impl Future<Output = Result<T, Error>>,
) -> Result<T, Error> {
    let mut cancel = cancel.clone();
    tokio::select! {
        result = work => result,
        number = signalled(&mut cancel) => Err(Error::Signal(number)),
    }
}

impl Context {
    /// Asks whether to do what cannot be undone. Without a terminal, and with `-y` or `--json`, nobody is asked.
    ///
    /// # Errors
    /// When the answer is not yes.
    async fn confirm(&self, question: &str) -> Result<(), Error> {
        if !(self.ask && terminal::present()) {
            return Ok(());
        }
        let answer = terminal::ask(&self.events, &format!("{question} [y/N] "), Echo::Shown).await?;
        match answer.trim() {
            "y" | "Y" | "yes" => Ok(()),
            _ => Err(Error::usage("nothing was changed", "answer y, or pass -y")),
        }
    }

    /// Returns a session of this command that holds no lock yet.
    fn session(&self, purpose: &str, waiting: Waiting) -> Session {
        Session::new(&self.target.cluster().name, purpose, waiting.into(), &self.events, &self.cancel)
    }
}

/// Does the work of a command in its session, and gives the nodes back however it ends. Where it was stopped, it says how far each
/// node came.
async fn in_session(
    purpose: &str,
    waiting: Waiting,
    context: Context,
    work: impl AsyncFnOnce(&Session, Context) -> Result<Outcome, Error>,
) -> Result<Outcome, Error> {
    let session = context.session(purpose, waiting);
    let nodes = context.target.selected.clone();
    let result = work(&session, context).await;
    session.locks.release().await;
    result.map_err(|error| session.progress.explain(error, &nodes))
}

/// Looks at every one of them, for jobs, which need all.
async fn observe_all(target: &Target, members: Vec<Member>, events: &Events) -> Result<Vec<Observed>, Error> {
    let looked = for_each_node(members, async |member| observe(target.cluster(), member, events).await).await;
    let mut seen = all(events, looked)?;
    drop_ended_jobs(target, &mut seen.iter_mut().collect::<Vec<_>>(), events).await?;
    Ok(seen)
}

/// Reaches every node and looks at it, without a claim to anything.
async fn reach_and_observe(context: &Context, events: &Events) -> Result<Vec<Observed>, Error> {
    let target = &context.target;
    let observed = async { observe_all(target, connect_all(target, events).await?, events).await };
    unless_signalled(&context.cancel, observed).await
}

/// Connects to all nodes and locks them, or changes nothing.
async fn connect_and_lock(context: &Context, session: &Session) -> Result<Vec<Member>, Error> {
    let members = session.cancellation.run(connect_all(&context.target, &context.events)).await?;
    no_failures(session.lock(&members).await?)?;
    Ok(members)
}

/// Connects to all nodes, locks and observes them.
async fn take_and_observe(context: &Context, session: &Session) -> Result<Vec<Observed>, Error> {
    let members = connect_and_lock(context, session).await?;
    session.cancellation.run(observe_all(&context.target, members, &context.events)).await
}

/// The same for a job that wants this of them; where others have it, they are waited for as `--wait` says. Nodes that a job may
/// have to be launched on are among those that come back.
async fn take_and_observe_free(
    context: &mut Context,
    wanted: ResourceRequest,
    session: &Session,
) -> Result<Vec<Observed>, Error> {
    let asked = context.target.clone();
    context.target = asked.with_launcher();
    let free = |nodes: Vec<Observed>| check_capacity(&asked, &nodes, wanted).map(|()| nodes);
    let (quiet, _) = Events::channel();
    let (began, mut reported) = (Instant::now(), String::new());
    let mut result = take_and_observe(context, session).await.and_then(free);
    while let Err(error @ Error::Allocated(_)) = &result
        && session.locks.waits(began.elapsed())
    {
        let message = format!("waiting for the end of it: {error}");
        if message != reported {
            context.events.note(&message);
            reported = message;
        }
        // locks would be in the way of the job that is waited for
        session.locks.release().await;
        unless_signalled(&context.cancel, async {
            tokio::time::sleep(POLL_INTERVAL).await;
            Ok(())
        })
        .await?;
        result = match reach_and_observe(context, &quiet).await.and_then(free) {
            Ok(_) => take_and_observe(context, session).await.and_then(free),
            // a node that does not answer for a moment is no reason to give up
            Err(Error::Nodes { .. } | Error::Unreachable(_)) => result,
            Err(error) => Err(error),
        };
    }
    context.target.selected = asked.selected;
    result
}

/// Who cannot log in to whom, in few rows.
fn reach_table(matrix: &Matrix) -> String {
    let absent = matrix.absent.iter().map(|a| ["–".into(), a.node.clone(), a.why.clone(), "–".into()].to_vec());
    let rows = matrix.rows().into_iter().map(|row| vec![row.from, row.to, row.reason, row.pairs.to_string()]);
    table(&["FROM", "TO", "REASON", "PAIRS"], &absent.chain(rows).collect::<Vec<_>>())
}

/// Fails if a node has failed, for what needs all of them.
fn no_failures(failed: Vec<NodeError>) -> Result<(), Error> {
    if failed.is_empty() { Ok(()) } else { Err(Error::Nodes { failed, done: 0 }) }
}

/// A row for a node of which nothing is known but that it failed.
fn failed_row(error: &NodeError) -> Vec<String> {
    vec![error.node.clone(), if error.is_unreachable() { "unreachable" } else { "failed" }.to_owned()]
}

/// Runs a command. Those that are about hvdctl itself or write an inventory do not await the context, which wants one.
///
/// # Errors
/// Whatever made it end before its work was done.
pub async fn run(
    command: Command,
    global: &Global,
    events: &Events,
    context: impl Future<Output = Result<Context, Error>>,
) -> Result<Outcome, Error> {
    match command {
        Command::Init(options) => init::run(&options, global, events).await,
        Command::Keys(Keys::Generate(options)) => keys::generate(&options, context.await?).await,
        Command::Keys(Keys::Push(options)) => keys::push(&options, context.await?).await,
        Command::Keys(Keys::Status) => keys::status(context.await?).await,
        Command::Keys(Keys::Rotate(options)) => keys::rotate(&options, context.await?).await,
        Command::Up(options) => up::run(&options, context.await?).await,
        Command::Down(options) => down::run(&options, context.await?).await,
        Command::Drain(options) => drain::run(&options, context.await?).await,
        Command::Doctor(options) => doctor::run(&options, context.await?).await,
        Command::Status => status::run(context.await?).await,
        Command::Verify(options) => verify::run(&options, context.await?).await,
        Command::Train(options) => train::train(options, context.await?).await,
        Command::Run(options) => train::run(options, context.await?).await,
        Command::Jobs(Jobs { what: Some(JobsCommand::Prune(options)), .. }) => {
            jobs::prune(&options, context.await?).await
        }
        Command::Jobs(options) => jobs::list(&options, context.await?).await,
        Command::Attach(options) => attach::run(&options, context.await?).await,
        Command::Logs(options) => logs::run(&options, context.await?).await,
        Command::Stop(options) => stop::run(&options, context.await?).await,
        Command::Fetch(options) => fetch::run(&options, context.await?).await,
        Command::Exec(options) => exec::run(&options, context.await?).await,
        Command::Shell(options) => shell::run(&options, context).await,
        Command::Hosts(options) => hosts::run(&options, context.await?).await,
        Command::Lock(Lock::Status) => lock::status(context.await?).await,
        Command::Lock(Lock::Release) => lock::release(context.await?).await,
        Command::Completions(options) => Ok(about::completions(&options)),
        Command::Man(options) => about::man(&options),
        Command::Schema => Ok(about::schema()),
    }
}
