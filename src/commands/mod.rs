//! One file per command, or per command with subcommands: the steps in order, then the results. The directories are the
//! groups of `hvdctl --help`. `run` chooses the command, `execute` shows its result.

mod about;
#[cfg(test)]
mod documents;
mod execute;
pub mod json;
#[cfg(test)]
mod tests;

/// Set up a cluster. `up_first` is `--up` of the commands that start jobs.
mod set_up {
    pub mod data;
    pub mod down;
    pub mod drain;
    pub mod env;
    pub mod image;
    pub mod init;
    pub mod keys;
    pub mod up;
    pub mod up_first;
}

/// Check and measure it. `check_job` and `gpus` are used by several of these.
mod check {
    pub mod bench;
    pub mod check_job;
    pub mod doctor;
    pub mod gpus;
    pub mod grade;
    pub mod pool;
    pub mod status;
    pub mod verify;
}

/// Start jobs. `train` also has `run`.
mod start {
    pub mod export;
    pub mod notebook;
    pub mod slurm;
    pub mod train;
}

/// Show and stop jobs. `logs` also has `attach`, and `jobs` has `stop`. `job_end` is the result of a job that was
/// watched.
mod show {
    pub mod fetch;
    pub mod job_end;
    pub mod jobs;
    pub mod logs;
    pub mod report;
    pub mod stack;
    pub mod top;
}

/// Work on the nodes.
mod nodes {
    pub mod disconnect;
    pub mod exec;
    pub mod hosts;
    pub mod lock;
    pub mod shell;
}

/// Parts of commands of several groups: context, nodes and result.
mod shared {
    pub mod best;
    pub mod context;
    pub mod inventory_file;
    pub mod outcome;
    pub mod output_file;
    pub mod recording;
    pub mod target;
}

use crate::cli::{
    Command, Data, Description, Global, Jobs, JobsCommand, Keys, Lock, Locks, Pool, PoolCommand, SchedulerChoice,
    SignalPolicy,
};
use crate::cluster::cancellation::Cancellation;
use crate::cluster::fleet::Fleet;
use crate::cluster::lock_set::LockSet;
use crate::cluster::session::Session;
use crate::cluster::target::Target;
use crate::error::Error;
use crate::event::Events;
use crate::launch::env_file::EnvFiles;
pub use execute::{execute, relay, run_until_signalled};
use set_up::up_first::{PendingCommand, set_up_first};
use shared::context::Context;
pub use shared::outcome::Outcome;
use shared::target;
use std::future::Future;
use tokio::sync::watch;

/// Runs a command; `target` finds its nodes and the way to reach them. Releases its locks at the end. If a command that
/// changes nodes is stopped, the error has the progress of each node.
///
/// # Errors
/// The reason why it ended without a result.
pub async fn run(
    command: Command,
    global: &Global,
    events: &Events,
    signal: watch::Receiver<Option<u8>>,
    target: impl Future<Output = Result<(Target, Fleet), Error>>,
) -> Result<Outcome, Error> {
    // these need no nodes, or check something before a node is contacted
    match &command {
        Command::Init(options) => return set_up::init::run(options, global, events).await,
        Command::Completions(options) => return Ok(about::completions(options)),
        Command::Man(options) => return about::man(options),
        Command::Schema => return Ok(about::schema()),
        Command::Export(options) => return start::export::run(options, global, events),
        Command::Shell(_) => nodes::shell::check_terminal()?,
        Command::Drain(_) => set_up::drain::check(global)?,
        _ => {}
    }
    let (target, fleet) = Cancellation::new(&signal).run(target).await?;
    let description = command.description();
    target::check_command(target.cluster(), &command, &description)?;
    if !matches!(command, Command::Train(_)) {
        target.refuse_roles()?;
    }
    let Description { locks, signal: policy, .. } = description;
    let Locks { purpose, wait } = locks.unwrap_or_default();
    let locks = LockSet::new(&target.cluster().name, &purpose, wait, events);
    let session = Session::new(locks, &signal);
    let (events, verbose, yes) = (events.clone(), global.verbose, global.yes);
    let (ask, env_files) = (!yes && !global.json, EnvFiles::new());
    let (json, is_direct) = (global.json, global.scheduler == Some(SchedulerChoice::Ssh));
    let mut context = Context { target, fleet, events, session, verbose, ask, yes, json, is_direct, env_files };
    let result = match command {
        Command::Jobs(options @ Jobs { what: None, .. }) => {
            Box::pin(show::jobs::show(&options, global, &context)).await
        }
        command => Box::pin(run_on_nodes(command, &mut context)).await,
    };
    context.session.locks.release().await;
    match policy {
        SignalPolicy::FinishStep => {
            result.map_err(|error| context.session.progress.explain(error, &context.target.selected))
        }
        SignalPolicy::Exit | SignalPolicy::LeaveToJob => result,
    }
}

/// Starts a command behind a pointer, and in a stack frame of its own: one for all commands has no room for all.
fn boxed<'a, F>(start: impl FnOnce() -> F) -> PendingCommand<'a>
where
    F: Future<Output = Result<Outcome, Error>> + 'a,
{
    Box::pin(start())
}

async fn run_on_nodes(command: Command, context: &mut Context) -> Result<Outcome, Error> {
    match command {
        Command::Keys(Keys::Generate(options)) => boxed(|| set_up::keys::generate(&options, context)).await,
        Command::Keys(Keys::Push(options)) => boxed(|| set_up::keys::push(&options, context)).await,
        Command::Keys(Keys::Status) => boxed(|| set_up::keys::status::run(context)).await,
        Command::Keys(Keys::Rotate(options)) => boxed(|| set_up::keys::rotate::run(&options, context)).await,
        Command::Up(options) => boxed(|| set_up::up::run(&options, context)).await,
        Command::Down(options) => boxed(|| set_up::down::run(&options, context)).await,
        Command::Drain(options) => boxed(|| set_up::drain::run(&options, context)).await,
        Command::Doctor(options) => boxed(|| check::doctor::run(&options, context)).await,
        Command::Status(options) => boxed(|| check::status::run(&options, context)).await,
        Command::Grade(options) => boxed(|| check::grade::run(&options, context)).await,
        Command::Pool(Pool { what: Some(PoolCommand::Pick(options)) }) => {
            boxed(|| check::pool::pick::run(&options, context)).await
        }
        Command::Pool(Pool { what: None }) => boxed(|| check::pool::list(context)).await,
        Command::Verify(options) => {
            set_up_first(options.set_up.up, context, |context| Box::pin(check::verify::run(options.clone(), context)))
                .await
        }
        Command::Bench(options) => boxed(|| check::bench::run(&options, context)).await,
        Command::Image(command) => boxed(|| set_up::image::run(&command, context)).await,
        Command::Data(Data::Push(options)) => boxed(|| set_up::data::push::run(&options, context)).await,
        Command::Data(Data::Status) => boxed(|| set_up::data::status(context)).await,
        Command::Data(Data::Rm(options)) => boxed(|| set_up::data::rm(&options, context)).await,
        Command::Env(command) => boxed(|| set_up::env::run(&command, context)).await,
        Command::Train(options) => {
            let is_wanted = options.running.set_up.up;
            set_up_first(is_wanted, context, |context| Box::pin(start::train::train(options.clone(), context))).await
        }
        Command::Run(options) => {
            let is_wanted = options.running.set_up.up;
            set_up_first(is_wanted, context, |context| Box::pin(start::train::run(options.clone(), context))).await
        }
        Command::Notebook(options) => boxed(|| start::notebook::run(&options, context)).await,
        Command::Jobs(Jobs { what: Some(JobsCommand::Prune(options)), .. }) => {
            boxed(|| show::jobs::prune(&options, context)).await
        }
        Command::Attach(options) => boxed(|| show::logs::attach(&options, context)).await,
        Command::Logs(options) => boxed(|| show::logs::logs(&options, context)).await,
        Command::Stop(options) => boxed(|| show::jobs::stop(&options, context)).await,
        Command::Top(options) => boxed(|| show::top::run(&options, context)).await,
        Command::Report(options) => boxed(|| show::report::run(&options, context)).await,
        Command::Stack(options) => boxed(|| show::stack::run(&options, context)).await,
        Command::Fetch(options) => boxed(|| show::fetch::run(&options, context)).await,
        Command::Exec(options) => boxed(|| nodes::exec::run(&options, context)).await,
        Command::Shell(options) => boxed(|| nodes::shell::run(&options, context)).await,
        Command::Disconnect => boxed(|| nodes::disconnect::run(context)).await,
        Command::Slurm(command) => boxed(|| start::slurm::run(&command, context)).await,
        Command::Hosts(options) => boxed(|| nodes::hosts::run(&options, context)).await,
        Command::Lock(Lock::Status) => boxed(|| nodes::lock::status(context)).await,
        Command::Lock(Lock::Release) => boxed(|| nodes::lock::release(context)).await,
        Command::Init(_)
        | Command::Completions(_)
        | Command::Man(_)
        | Command::Schema
        | Command::Export(_)
        | Command::Jobs(_) => unreachable!("they are run elsewhere"),
    }
}
