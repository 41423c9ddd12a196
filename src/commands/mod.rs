//! One file per command, or per group of commands: their steps in order, then their results. `run` chooses the command,
//! `execute` shows its result.

mod about;
mod bench;
mod best;
mod check_options;
mod context;
mod data;
mod disconnect;
mod doctor;
#[cfg(test)]
mod documents;
mod down;
mod drain;
mod env;
mod exec;
mod execute;
mod export;
mod fetch;
mod gpus;
mod grade;
mod hosts;
mod image;
mod init;
mod inventory_file;
mod job_end;
mod jobs;
pub mod json;
mod keys;
mod limits;
mod lock;
mod logs;
mod notebook;
mod outcome;
mod output_file;
mod pool;
mod rank_output;
mod recording;
mod report;
mod set_up;
mod shell;
mod slurm;
mod status;
mod target;
#[cfg(test)]
mod tests;
mod top;
mod train;
mod up;
mod verify;

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
use context::Context;
pub use execute::{execute, relay, run_until_signalled};
pub use outcome::Outcome;
use set_up::set_up_first;
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
        Command::Init(options) => return init::run(options, global, events).await,
        Command::Completions(options) => return Ok(about::completions(options)),
        Command::Man(options) => return about::man(options),
        Command::Schema => return Ok(about::schema()),
        Command::Export(options) => return export::run(options, global, events),
        Command::Shell(_) => shell::check_terminal()?,
        Command::Drain(_) => drain::check(global)?,
        _ => {}
    }
    let (target, fleet) = Cancellation::new(&signal).run(target).await?;
    let description = command.description();
    target::check_command(target.cluster(), &description)?;
    let Description { locks, signal: policy, .. } = description;
    let Locks { purpose, wait } = locks.unwrap_or_default();
    let locks = LockSet::new(&target.cluster().name, &purpose, wait, events);
    let session = Session::new(locks, &signal);
    let (events, verbose, yes) = (events.clone(), global.verbose, global.yes);
    let (ask, env_files) = (!yes && !global.json, EnvFiles::new());
    let (json, is_direct) = (global.json, global.scheduler == Some(SchedulerChoice::Ssh));
    let mut context = Context { target, fleet, events, session, verbose, ask, yes, json, is_direct, env_files };
    let result = match command {
        Command::Jobs(options @ Jobs { what: None, .. }) => Box::pin(jobs::show(&options, global, &context)).await,
        command => run_on_nodes(command, &mut context).await,
    };
    context.session.locks.release().await;
    match policy {
        SignalPolicy::FinishStep => {
            result.map_err(|error| context.session.progress.explain(error, &context.target.selected))
        }
        SignalPolicy::Exit | SignalPolicy::LeaveToJob => result,
    }
}

async fn run_on_nodes(command: Command, context: &mut Context) -> Result<Outcome, Error> {
    // large ones behind pointers: the stack of every command has room for the largest one
    match command {
        Command::Keys(Keys::Generate(options)) => keys::generate(&options, context).await,
        Command::Keys(Keys::Push(options)) => keys::push::run(&options, context).await,
        Command::Keys(Keys::Status) => keys::status::run(context).await,
        Command::Keys(Keys::Rotate(options)) => Box::pin(keys::rotate::run(&options, context)).await,
        Command::Up(options) => Box::pin(up::run(&options, context)).await,
        Command::Down(options) => down::run(&options, context).await,
        Command::Drain(options) => drain::run(&options, context).await,
        Command::Doctor(options) => doctor::run(&options, context).await,
        Command::Status(options) => status::run(&options, context).await,
        Command::Grade(options) => grade::run(&options, context).await,
        Command::Pool(Pool { what: Some(PoolCommand::Pick(options)) }) => pool::pick::run(&options, context).await,
        Command::Pool(Pool { what: None }) => pool::list(context).await,
        Command::Verify(options) => {
            set_up_first(options.set_up.up, context, |context| Box::pin(verify::run(options.clone(), context))).await
        }
        Command::Bench(options) => Box::pin(bench::run(&options, context)).await,
        Command::Image(command) => Box::pin(image::run(&command, context)).await,
        Command::Data(Data::Push(options)) => Box::pin(data::push::run(&options, context)).await,
        Command::Data(Data::Status) => data::status::run(context).await,
        Command::Data(Data::Rm(options)) => data::rm::run(&options, context).await,
        Command::Env(command) => Box::pin(env::run(&command, context)).await,
        Command::Train(options) => {
            let is_wanted = options.running.set_up.up;
            set_up_first(is_wanted, context, |context| Box::pin(train::train(options.clone(), context))).await
        }
        Command::Run(options) => {
            let is_wanted = options.running.set_up.up;
            set_up_first(is_wanted, context, |context| Box::pin(train::run(options.clone(), context))).await
        }
        Command::Notebook(options) => Box::pin(notebook::run(&options, context)).await,
        Command::Jobs(Jobs { what: Some(JobsCommand::Prune(options)), .. }) => jobs::prune(&options, context).await,
        Command::Attach(options) => logs::attach(&options, context).await,
        Command::Logs(options) => logs::logs(&options, context).await,
        Command::Stop(options) => jobs::stop(&options, context).await,
        Command::Top(options) => Box::pin(top::run(&options, context)).await,
        Command::Report(options) => Box::pin(report::run(&options, context)).await,
        Command::Fetch(options) => fetch::run(&options, context).await,
        Command::Exec(options) => exec::run(&options, context).await,
        Command::Shell(options) => shell::run(&options, context).await,
        Command::Disconnect => disconnect::run(context).await,
        Command::Slurm(command) => slurm::run(&command, context).await,
        Command::Hosts(options) => hosts::run(&options, context).await,
        Command::Lock(Lock::Status) => lock::status(context).await,
        Command::Lock(Lock::Release) => lock::release(context).await,
        Command::Init(_)
        | Command::Completions(_)
        | Command::Man(_)
        | Command::Schema
        | Command::Export(_)
        | Command::Jobs(_) => unreachable!("they are run elsewhere"),
    }
}
