//! The binary: arguments in, exit code out.

use anyhow::Context as _;
use clap::Parser;
use hvdctl::cli::{Cli, rewrite};
use hvdctl::commands::{self, Context, Outcome, unless_signalled};
use hvdctl::error::{Error, exit};
use hvdctl::event::Events;
use hvdctl::render;
use std::process::ExitCode;
use std::time::Duration;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::watch;

fn main() -> ExitCode {
    let cli = Cli::parse_from(rewrite(std::env::args_os()));
    render::colours::set(cli.global.color);
    let (program, lines) = (cli.command.runs_a_program(), cli.command.tells_output());
    let json = cli.global.json;
    match start(cli) {
        Ok(result) => ExitCode::from(show(result, json, program, lines)),
        Err(e) => {
            render::error(&format!("{e:#}"));
            ExitCode::from(if program { exit::AROUND } else { exit::FAILED })
        }
    }
}

/// Runs the command on a runtime of its own and closes all connections behind it.
fn start(cli: Cli) -> anyhow::Result<Result<Outcome, Error>> {
    let runtime = tokio::runtime::Runtime::new().context("could not start the asynchronous runtime")?;
    let result = runtime.block_on(work(cli));
    // connections end their ssh masters when they are dropped
    runtime.shutdown_timeout(Duration::from_secs(2));
    Ok(result)
}

/// Runs the command beside the renderer and the signals.
async fn work(cli: Cli) -> Result<Outcome, Error> {
    let Cli { global, command } = cli;
    let (events, receiver) = Events::channel();
    let options = render::Options {
        json: global.json,
        quiet: global.quiet,
        verbose: global.verbose,
        result_names_nodes: !command.tells_output(),
    };
    let renderer = std::thread::spawn(move || render::run(receiver, options));
    let (cancel, cancelled) = watch::channel(None);
    // before anything is begun that a signal would leave half done
    let signals = Signals::new();
    // what changes nodes ends in order at the first signal; everything else stops where it stands
    let in_order = command.ends_in_order();
    let is_run = command.is_about_a_run();
    let result = tokio::select! {
        result = async {
            let works_locally = command.works_locally();
            let context = async {
                Ok(Context {
                    target: unless_signalled(&cancelled, commands::target(&global, works_locally, &events)).await?,
                    events: events.clone(),
                    cancel: cancelled,
                    verbose: global.verbose,
                    ask: !global.yes && !global.json,
                })
            };
            commands::run(command, &global, &events, context).await
        } => result,
        number = answer(signals, cancel, in_order, !is_run, &events) => {
            if is_run {
                events.note("left at once; what becomes of the run is its keeper's business: hvdctl jobs shows it");
            } else if in_order {
                events.note("left at once: a step may be half done; the same command again goes on from there");
            }
            Err(Error::Signal(number))
        }
    };
    drop(events);
    // what is still to be shown is shown before the result
    let _ = renderer.join();
    result
}

/// The signals that ask for an end; from the moment that this is there they end nothing by themselves.
struct Signals([Option<Signal>; 3]);

impl Signals {
    fn new() -> Signals {
        Signals([SignalKind::interrupt(), SignalKind::terminate(), SignalKind::hangup()].map(|kind| signal(kind).ok()))
    }

    /// The number of the next one.
    async fn next(&mut self) -> u8 {
        async fn comes(signal: &mut Option<Signal>) {
            match signal {
                Some(signal) => drop(signal.recv().await),
                None => std::future::pending().await,
            }
        }
        let [interrupt, terminate, hangup] = &mut self.0;
        tokio::select! {
            () = comes(interrupt) => 2,
            () = comes(terminate) => 15,
            () = comes(hangup) => 1,
        }
    }
}

/// Ends with the number of the signal that shall end everything at once: the first, or for a command that ends in order
/// the second. `tell`: the first is answered here.
async fn answer(
    mut signals: Signals,
    cancel: watch::Sender<Option<u8>>,
    in_order: bool,
    tell: bool,
    events: &Events,
) -> u8 {
    loop {
        let number = signals.next().await;
        if !in_order || cancel.borrow().is_some() {
            return number;
        }
        if tell {
            events.note("stopping after the step in hand (again Ctrl-C: leave now)");
        }
        cancel.send_replace(Some(number));
    }
}

/// Shows the end of a command and gives its exit code.
fn show(result: Result<Outcome, Error>, json: bool, program: bool, lines: bool) -> u8 {
    match result {
        Ok(outcome) => {
            if json {
                render::out(&format!("{}\n", outcome.document));
            } else {
                render::out(&outcome.text);
                for error in &outcome.failed {
                    render::error(&error.to_string());
                }
            }
            outcome.code
        }
        Err(error) => {
            let code = error.exit_code(program);
            if json {
                render::out(&format!("{}\n", error.document(program, lines)));
            } else {
                render::error(&error.to_string());
            }
            code
        }
    }
}
