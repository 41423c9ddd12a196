//! Executes a command: the asynchronous runtime, the renderer, the signals, and the exit code.

use super::signal::{run_until_signalled, signals};
use super::target::target;
use super::{Error, Outcome};
use crate::cli::Cli;
use crate::error::exit;
use crate::event::Events;
use crate::render;
use std::time::Duration;

/// Executes a command, shows its result and returns the exit code.
pub fn execute(cli: Cli) -> u8 {
    render::colours::set(cli.global.color);
    render::set_raw(cli.global.raw);
    let json = cli.global.json;
    let (runs_program, streams_output) = (cli.command.runs_program(), cli.command.streams_output());
    let result = run_to_end(cli);
    let outcome = result.unwrap_or_else(|error| Outcome::failure(&error, runs_program, streams_output));
    if json {
        render::out(&format!("{}\n", outcome.document));
    } else {
        render::out(&outcome.text);
        outcome.errors.iter().for_each(|error| render::error(error));
    }
    match render::finish() {
        Err(error) if outcome.code == exit::OK => {
            render::error(&format!("cannot write to standard output: {error}"));
            if runs_program { exit::INTERNAL } else { exit::FAILED }
        }
        _ => outcome.code,
    }
}

/// Runs the command on a runtime of its own, and closes all connections after it.
fn run_to_end(cli: Cli) -> Result<Outcome, Error> {
    let runtime = tokio::runtime::Runtime::new()
        .map_err(|error| Error::Local(format!("cannot start the asynchronous runtime: {error}")))?;
    let result = runtime.block_on(run(cli));
    // connections end their ssh masters when they are dropped
    runtime.shutdown_timeout(Duration::from_secs(2));
    result
}

/// Runs the command concurrently with the renderer and the signal handlers.
async fn run(cli: Cli) -> Result<Outcome, Error> {
    let Cli { global, command } = cli;
    let (events, receiver) = Events::channel();
    let options = render::Options {
        json: global.json,
        quiet: global.quiet,
        verbose: global.verbose,
        streams_output: command.streams_output(),
    };
    let renderer = std::thread::spawn(move || render::run(receiver, options));
    // installed before any work that a signal would leave incomplete
    let signals = signals();
    let target = target(&global, command.works_locally(), &events);
    let result = run_until_signalled(command, &global, &events, signals, target).await;
    drop(events);
    // the renderer shows all events before the result
    let _ = renderer.join();
    result
}
