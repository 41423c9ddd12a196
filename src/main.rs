//! The binary: arguments in, exit code out.

use anyhow::Context as _;
use clap::Parser;
use hvdctl::cli::{Cli, rewrite};
use hvdctl::commands::{self, Context, Outcome, Shown, run_until_signalled, unless_signalled};
use hvdctl::error::{Error, exit};
use hvdctl::event::Events;
use hvdctl::render;
use std::process::ExitCode;
use std::time::Duration;
use tokio::signal::unix::{Signal, SignalKind, signal};

fn main() -> ExitCode {
    let cli = Cli::parse_from(rewrite(std::env::args_os()));
    render::colours::set(cli.global.color);
    render::set_raw(cli.global.raw);
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
    let runtime = tokio::runtime::Runtime::new().context("cannot start the asynchronous runtime")?;
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
    // before anything is begun that a signal would leave half done
    let mut signals = Signals::new();
    let works_locally = command.works_locally();
    let context = async |cancel| {
        Ok(Context {
            target: unless_signalled(&cancel, commands::target(&global, works_locally, &events)).await?,
            events: events.clone(),
            cancel,
            verbose: global.verbose,
            ask: !global.yes && !global.json,
        })
    };
    let result = run_until_signalled(command, &global, &events, async || signals.next().await, context).await;
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

/// Shows the end of a command and gives its exit code.
fn show(result: Result<Outcome, Error>, json: bool, program: bool, lines: bool) -> u8 {
    let Shown { code, out, errors } = commands::shown(result, json, program, lines);
    render::out(&out);
    errors.iter().for_each(|error| render::error(error));
    match render::finish() {
        Err(error) if code == exit::OK => {
            render::error(&format!("cannot write to standard output: {error}"));
            if program { exit::AROUND } else { exit::FAILED }
        }
        _ => code,
    }
}
