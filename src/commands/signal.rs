//! Runs a command while it listens for the signals that ask for its end.

use super::{Context, Outcome, run};
use crate::cli::{Command, Global, SignalPolicy};
use crate::error::Error;
use crate::event::Events;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::watch;

/// The signals that ask for an end. Once this exists they end nothing by themselves.
pub struct Signals([Option<Signal>; 3]);

impl Signals {
    /// Listens for SIGINT, SIGTERM and SIGHUP.
    pub fn new() -> Signals {
        Signals([SignalKind::interrupt(), SignalKind::terminate(), SignalKind::hangup()].map(|kind| signal(kind).ok()))
    }

    /// Waits for the next signal and returns its number.
    pub async fn next(&mut self) -> u8 {
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
    let policy = command.signal_policy();
    tokio::select! {
        result = run(command, global, events, context(cancelled)) => result,
        number = until_exit(next_signal, cancel, policy, events) => {
            match policy {
                SignalPolicy::Exit => {}
                SignalPolicy::FinishStep => events.note(
                    "exited without waiting: a step may be half done; the same command again continues from there",
                ),
                SignalPolicy::LeaveToJob => {
                    events.note("exited without waiting; the job may still be running\n  hint: hvdctl jobs");
                }
            }
            Err(Error::Signal(number))
        }
    }
}

/// Returns the number of the signal that ends everything at once: the first, or after [`SignalPolicy::Exit`] the second.
async fn until_exit(
    mut next_signal: impl AsyncFnMut() -> u8,
    cancel: watch::Sender<Option<u8>>,
    policy: SignalPolicy,
    events: &Events,
) -> u8 {
    loop {
        let number = next_signal().await;
        if policy == SignalPolicy::Exit || cancel.borrow().is_some() {
            return number;
        }
        if policy == SignalPolicy::FinishStep {
            events.note("stopping after the current step (Ctrl-C again: exit now)");
        }
        cancel.send_replace(Some(number));
    }
}
