//! Runs a command while it listens for the signals that ask for its end.

use super::{Context, Outcome, run};
use crate::cli::{Command, Global};
use crate::error::Error;
use crate::event::Events;
use tokio::sync::watch;

/// Runs a command until it has ended, or a signal ends it at once. What changes nodes finishes its current step at the first
/// signal and leaves at the second; everything else leaves at the first.
///
/// `next_signal` waits for the number of the next signal. `context` makes the context of the command around the receiver that
/// learns of the first one.
///
/// # Errors
/// Those of the command, and [`Error::Signal`].
pub async fn run_until_signalled(
    command: Command,
    global: &Global,
    events: &Events,
    next_signal: impl AsyncFnMut() -> u8,
    context: impl AsyncFnOnce(watch::Receiver<Option<u8>>) -> Result<Context, Error>,
) -> Result<Outcome, Error> {
    let (cancel, cancelled) = watch::channel(None);
    let (in_order, is_run) = (command.ends_in_order(), command.is_about_a_run());
    tokio::select! {
        result = run(command, global, events, context(cancelled)) => result,
        number = leave(next_signal, cancel, in_order, !is_run, events) => {
            if is_run {
                events.note("exited without waiting; the run may still be under way: hvdctl jobs shows it");
            } else if in_order {
                events.note("exited without waiting: a step may be half done; the same command again continues from there");
            }
            Err(Error::Signal(number))
        }
    }
}

/// Returns the number of the signal that ends everything at once: the first, or for a command that ends in order the second.
/// `tell`: whether the first one is answered with a note.
async fn leave(
    mut next_signal: impl AsyncFnMut() -> u8,
    cancel: watch::Sender<Option<u8>>,
    in_order: bool,
    tell: bool,
    events: &Events,
) -> u8 {
    loop {
        let number = next_signal().await;
        if !in_order || cancel.borrow().is_some() {
            return number;
        }
        if tell {
            events.note("stopping after the step in hand (again Ctrl-C: leave now)");
        }
        cancel.send_replace(Some(number));
    }
}
