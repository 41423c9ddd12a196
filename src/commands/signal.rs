//! Runs a command until it ends or a signal ends it.

use super::{Outcome, run};
use crate::cli::{Command, Global, SignalPolicy};
use crate::cluster::cancellation::SIGNAL_DELAY;
use crate::cluster::nodes::Target;
use crate::error::Error;
use crate::event::Events;
use std::future::Future;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::mpsc::{self, UnboundedReceiver};
use tokio::sync::watch;

/// Returns the numbers of SIGINT, SIGTERM and SIGHUP as they come. From then on these signals do not terminate the
/// process.
pub fn signals() -> UnboundedReceiver<u8> {
    let (sender, receiver) = mpsc::unbounded_channel();
    for (kind, number) in [(SignalKind::interrupt(), 2), (SignalKind::terminate(), 15), (SignalKind::hangup(), 1)] {
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

/// Runs a command until it has ended, or a signal ends it at once. A command that changes nodes finishes its current step at the
/// first signal and exits at the second; every other one exits at the first.
///
/// # Errors
/// Those of the command, and [`Error::Signal`].
pub async fn run_until_signalled(
    command: Command,
    global: &Global,
    events: &Events,
    signals: UnboundedReceiver<u8>,
    target: impl Future<Output = Result<Target, Error>>,
) -> Result<Outcome, Error> {
    let (cancel, cancelled) = watch::channel(None);
    let policy = command.signal_policy();
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
                    events.note("exited without waiting; the job may still be running\n  hint: hvdctl jobs");
                }
            }
            Err(Error::Signal(number))
        }
    }
}

/// Returns the number of the signal that ends everything at once: with [`SignalPolicy::Exit`] the first, else the second.
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
