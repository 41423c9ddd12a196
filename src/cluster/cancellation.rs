//! Why a command has to stop: a signal, or a lock that it has lost.

use crate::cancel::signalled;
use crate::error::{Error, NodeError};
use std::future::Future;
use std::time::Duration;
use tokio::sync::watch;
use tokio::time::timeout;

/// How much later than ssh hvdctl may see a signal that the terminal sends to both, as with Ctrl-C.
pub const SIGNAL_DELAY: Duration = Duration::from_millis(100);

/// Whether a command has to stop, and why. A signal goes before a lost lock.
pub struct Cancellation {
    signal: watch::Receiver<Option<u8>>,
    /// Set when a lock is lost.
    pub(super) lost: watch::Sender<Option<NodeError>>,
}

impl Cancellation {
    /// A command that stops at a signal.
    pub fn new(signal: &watch::Receiver<Option<u8>>) -> Cancellation {
        Cancellation { signal: signal.clone(), lost: watch::Sender::new(None) }
    }

    /// What is set to a signal's number once one has come.
    pub fn signal(&self) -> watch::Receiver<Option<u8>> {
        self.signal.clone()
    }

    /// # Errors
    /// Why no further step may be begun: [`Error::Signal`] or [`Error::Lost`].
    pub fn check(&self) -> Result<(), Error> {
        if let Some(number) = *self.signal.borrow() {
            return Err(Error::Signal(number));
        }
        match &*self.lost.borrow() {
            Some(error) => Err(Error::Lost(error.clone())),
            None => Ok(()),
        }
    }

    /// Waits until no further step may be begun.
    pub async fn cancelled(&self) -> Error {
        let (mut signal, mut lost) = (self.signal.clone(), self.lost.subscribe());
        tokio::select! {
            number = signalled(&mut signal) => Error::Signal(number),
            Ok(error) = async { lost.wait_for(Option::is_some).await.map(|error| error.clone()) } => {
                error.map_or(Error::Signal(15), Error::Lost)
            }
        }
    }

    /// Does work that changes nothing until the command is cancelled. If nodes fail and a signal comes within `SIGNAL_DELAY`, the
    /// signal is the cause.
    ///
    /// # Errors
    /// Those of the work, and as of [`Cancellation::check`].
    pub async fn run<T>(&self, work: impl Future<Output = Result<T, Error>>) -> Result<T, Error> {
        tokio::select! {
            biased;
            error = self.cancelled() => Err(error),
            result = work => match result {
                Err(failed @ (Error::Unreachable(_) | Error::Nodes { .. })) => {
                    Err(timeout(SIGNAL_DELAY, self.cancelled()).await.unwrap_or(failed))
                }
                result => result,
            },
        }
    }
}
