//! Executes a command: the runtime, the renderer, the signals, and the exit code.

use super::signal::{Signals, run_until_signalled};
use super::{Context, Outcome, Shown, shown, target, unless_signalled};
use crate::cli::Cli;
use crate::error::{Error, exit};
use crate::event::Events;
use crate::render;
use anyhow::Context as _;
use std::time::Duration;

/// Executes a command, shows its result and returns the exit code.
pub fn execute(cli: Cli) -> u8 {
    render::colours::set(cli.global.color);
    render::set_raw(cli.global.raw);
    let (runs_program, streams_output) = (cli.command.runs_a_program(), cli.command.streams_output());
    let json = cli.global.json;
    // hvdctl's own failure must not be taken for the program's
    let failed = if runs_program { exit::INTERNAL } else { exit::FAILED };
    let Shown { code, out, errors } = match run_to_end(cli) {
        Ok(result) => shown(result, json, runs_program, streams_output),
        Err(error) => {
            render::error(&format!("{error:#}"));
            return failed;
        }
    };
    render::out(&out);
    errors.iter().for_each(|error| render::error(error));
    match render::finish() {
        Err(error) if code == exit::OK => {
            render::error(&format!("cannot write to standard output: {error}"));
            failed
        }
        _ => code,
    }
}

/// Runs the command on a runtime of its own, and closes all connections after it.
fn run_to_end(cli: Cli) -> anyhow::Result<Result<Outcome, Error>> {
    let runtime = tokio::runtime::Runtime::new().context("cannot start the asynchronous runtime")?;
    let result = runtime.block_on(run(cli));
    // connections end their ssh masters when they are dropped
    runtime.shutdown_timeout(Duration::from_secs(2));
    Ok(result)
}

/// Runs the command beside the renderer and the signals.
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
    // before anything is begun that a signal would leave half done
    let mut signals = Signals::new();
    let works_locally = command.works_locally();
    let context = async |cancel| {
        Ok(Context {
            target: unless_signalled(&cancel, target(&global, works_locally, &events)).await?,
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
