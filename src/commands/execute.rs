//! Executes a command: the limits of the process, the asynchronous runtime, the renderer, the signals, and the exit code.

use crate::cli::{Cli, Command, Description, ExitCode, Global, OutputForm, SignalPolicy};
use crate::cluster::cancellation::SIGNAL_DELAY;
use crate::cluster::fleet::Fleet;
use crate::cluster::target::Target;
use crate::commands::shared::target::target;
use crate::commands::{Outcome, run};
use crate::data::parcel;
use crate::delivery::relay::package::SPOOL;
use crate::delivery::relay::process;
use crate::error::Error;
use crate::event::{Events, Message};
use crate::render;
use crate::text::table::columns;
use crate::trace::Log;
use anyhow::Context as _;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use std::future::Future;
use std::os::fd::{AsFd, BorrowedFd};
use std::path::Path;
use std::time::Duration;
use tokio::runtime::Runtime;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::mpsc::{self, UnboundedReceiver};
use tokio::sync::watch;

/// The stack of the thread that executes a command, in bytes. The futures of commands are large, in development builds
/// above all, and that of the main thread is what a shell allows it (`ulimit -s`).
const STACK: usize = 64 << 20;

/// More open files than commands on a thousand nodes need. Programs that hvdctl starts inherit the limit, and some
/// close every descriptor below it first, which takes seconds if the limit is a thousand million, as in containers.
const OPEN_FILES: u64 = 65_536;

/// Executes a command, shows its result and returns the exit code.
pub fn execute(cli: Cli) -> u8 {
    let thread = std::thread::Builder::new().stack_size(STACK).spawn(move || execute_here(cli));
    match thread.map(std::thread::JoinHandle::join) {
        Ok(Ok(code)) => code,
        Ok(Err(panic)) => std::panic::resume_unwind(panic),
        Err(error) => {
            render::error(&format!("cannot start a thread: {error}"));
            Error::Local(error.to_string()).exit_code(false)
        }
    }
}

fn execute_here(cli: Cli) -> u8 {
    raise_open_files();
    render::colours::set(cli.global.color);
    render::set_raw(cli.global.raw);
    let json = cli.global.json;
    let shows_all = cli.global.verbose > 0;
    let Description { exit, output, .. } = cli.command.description();
    let log = Log::start(cli.global.verbose > 2, cli.global.log_file.as_deref());
    let (log, result) = match log {
        Ok(log) => {
            let has_rows = !log.is_on_stderr;
            (Some(log), run_rendered(cli, has_rows))
        }
        Err(error) => (None, Err(error)),
    };
    let outcome = result.unwrap_or_else(|error| Outcome::failure(&error, exit, output));
    let trace = log.and_then(|log| log.finish(outcome.errors.is_empty()));
    if json {
        render::out(&format!("{}\n", outcome.document));
    } else {
        render::out(&outcome.text.fitted(columns().filter(|_| !shows_all)));
        outcome.errors.iter().for_each(|error| render::error(error));
    }
    if let Some(file) = trace.filter(|_| !json) {
        render::err(&format!("what was done on each node: {}", file.display()));
    }
    match render::finish().context("cannot write to standard output") {
        Err(error) if outcome.code == 0 => {
            let error = Error::from(error);
            render::error(&error.to_string());
            error.exit_code(exit == ExitCode::Program)
        }
        _ => outcome.code,
    }
}

/// Runs as a relay on a node, without everything that is for users. Returns the exit code.
pub fn relay() -> u8 {
    let stream =
        |fd: BorrowedFd<'_>| Ok::<_, std::io::Error>(tokio::fs::File::from_std(fd.try_clone_to_owned()?.into()));
    let serve = async {
        let (input, output) = (stream(std::io::stdin().as_fd())?, stream(std::io::stdout().as_fd())?);
        process::run(tokio::io::BufReader::new(input), output, Path::new(SPOOL), parcel::unpack).await
    };
    let Ok(runtime) = Runtime::new() else { return 1 };
    let ended: std::io::Result<()> = runtime.block_on(serve);
    // a read of standard input cannot be cancelled
    runtime.shutdown_background();
    u8::from(ended.is_err())
}

/// Runs a command on a runtime of its own, concurrently with the renderer and the signal handlers. Closes all
/// connections after it.
fn run_rendered(Cli { global, command }: Cli, has_rows: bool) -> Result<Outcome, Error> {
    let description = command.description();
    let runtime = Runtime::new().context("cannot start the asynchronous runtime")?;
    let (events, receiver) = Events::channel();
    let options = render::Options {
        json: global.json,
        quiet: global.quiet,
        verbose: global.verbose,
        has_rows,
        streams_output: description.output == OutputForm::Lines,
    };
    let renderer = std::thread::spawn(move || render::run(receiver, options));
    let result = runtime.block_on(async {
        // installed before any work that a signal would leave incomplete
        let signals = signals();
        let target = target(&global, description.nodes, &events);
        run_until_signalled(command, &global, &events, signals, target).await
    });
    drop(events);
    // the renderer shows all events before the result
    let _ = renderer.join();
    // connections end their ssh masters when they are dropped
    runtime.shutdown_timeout(Duration::from_secs(2));
    result
}

/// Raises the number of files that this process may have open, as far as the system allows it. A process begins with
/// 1024 on most systems, for programs that do not use more.
fn raise_open_files() {
    let limit = getrlimit(Resource::Nofile);
    if let Some(raised) = raised(limit) {
        // an error of a command that needs more names the limit
        let _ = setrlimit(Resource::Nofile, raised);
    }
}

fn raised(limit: Rlimit) -> Option<Rlimit> {
    let current = limit.maximum.unwrap_or(OPEN_FILES).min(OPEN_FILES);
    limit.current.is_some_and(|now| now < current).then_some(Rlimit { current: Some(current), ..limit })
}

/// Returns the numbers of SIGINT, SIGTERM and SIGHUP as they come. From then on these signals do not terminate the
/// process. One that was ignored at the start (SIGHUP by `nohup`, SIGINT in a script's background) stays ignored.
fn signals() -> UnboundedReceiver<u8> {
    let (sender, receiver) = mpsc::unbounded_channel();
    let ignored = ignored_signals(&std::fs::read_to_string("/proc/self/status").unwrap_or_default());
    for (kind, number) in [(SignalKind::interrupt(), 2), (SignalKind::terminate(), 15), (SignalKind::hangup(), 1)] {
        if ignored & 1 << (number - 1) != 0 {
            continue;
        }
        let Ok(mut signal) = signal(kind) else { continue };
        let sender = sender.clone();
        tokio::spawn(async move {
            while signal.recv().await.is_some() {
                let _ = sender.send(number);
            }
        });
    }
    receiver
}

/// Returns the signals that a process ignores, from its /proc/PID/status (proc(5)): bit N - 1 for signal N. Systems
/// without /proc do not have this information for programs without `unsafe`; none counts as ignored there.
fn ignored_signals(status: &str) -> u64 {
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).unwrap_or_default()
}

/// Runs a command until it has ended, or a signal ends it at once. A command that changes nodes finishes its current
/// step at the first signal and exits at the second; every other one exits at the first.
///
/// # Errors
/// Those of the command, and [`Error::Signal`].
pub async fn run_until_signalled(
    command: Command,
    global: &Global,
    events: &Events,
    signals: UnboundedReceiver<u8>,
    target: impl Future<Output = Result<(Target, Fleet), Error>>,
) -> Result<Outcome, Error> {
    let (cancel, cancelled) = watch::channel(None);
    let policy = command.description().signal;
    let running = async {
        let result = run(command, global, events, cancelled, target).await;
        let has_failed = result.as_ref().map_or(true, |outcome| !outcome.errors.is_empty());
        if policy == SignalPolicy::Exit && has_failed {
            // a signal that comes now may be why
            tokio::time::sleep(SIGNAL_DELAY).await;
        }
        result
    };
    tokio::select! {
        result = running => result,
        number = until_exit(signals, cancel, policy, events) => {
            match policy {
                SignalPolicy::Exit => {}
                SignalPolicy::FinishStep => events.note(
                    "exited without waiting: a step may be half done; run the same command again to continue",
                ),
                SignalPolicy::LeaveToJob => {
                    events.note(Message::from("exited without waiting; the job may still be running").hint("hvdctl \
                        jobs"));
                }
            }
            Err(Error::Signal(number))
        }
    }
}

/// Returns the number of the signal that ends everything at once: with [`SignalPolicy::Exit`] the first, else the
/// second.
async fn until_exit(
    mut signals: UnboundedReceiver<u8>,
    cancel: watch::Sender<Option<u8>>,
    policy: SignalPolicy,
    events: &Events,
) -> u8 {
    while let Some(number) = signals.recv().await {
        if policy == SignalPolicy::Exit || cancel.borrow().is_some() {
            return number;
        }
        if policy == SignalPolicy::FinishStep {
            events.note("stopping after the current step (Ctrl-C again: exit now)");
        }
        cancel.send_replace(Some(number));
    }
    std::future::pending().await
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_signals_that_a_process_ignores() {
        let ignored = |mask: &str| {
            ignored_signals(&format!("Name:\thvdctl\nSigBlk:\t0000000000000000\nSigIgn:\t{mask}\nSigCgt:\tff\n"))
        };
        assert_eq!(ignored("0000000000001001"), 0x1001, "SIGHUP and SIGPIPE");
        assert_eq!((ignored("0000000000000002"), ignored("?"), ignored_signals("")), (2, 0, 0));
    }

    #[test]
    fn the_soft_limit_is_raised_and_never_lowered() {
        let raised = |current, maximum| raised(Rlimit { current, maximum }).map(|limit| (limit.current, limit.maximum));
        assert_eq!(raised(Some(1024), Some(4096)), Some((Some(4096), Some(4096))));
        assert_eq!(raised(Some(256), None), Some((Some(OPEN_FILES), None)));
        assert_eq!(raised(Some(1024), Some(1 << 30)), Some((Some(OPEN_FILES), Some(1 << 30))));
        for (current, maximum) in [(Some(12), Some(12)), (Some(1 << 20), Some(1 << 30)), (None, None)] {
            assert_eq!(raised(current, maximum), None, "{current:?} {maximum:?}");
        }
    }
}
