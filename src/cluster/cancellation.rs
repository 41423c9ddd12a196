//! The cancellation of a command: by a signal, or because it has lost a lock.

use crate::cancel::signalled;
use crate::error::{Error, NodeError};
use std::future::Future;
use std::pin::{Pin, pin};
use std::time::Duration;
use tokio::sync::watch;
use tokio::time::timeout;

/// The longest time by which hvdctl may see a signal later than ssh if the terminal sends it to both, as with Ctrl-C.
pub const SIGNAL_DELAY: Duration = Duration::from_millis(100);

/// The cancellation of a command, with its reason. A signal takes precedence over a lost lock.
pub struct Cancellation {
    signal: watch::Receiver<Option<u8>>,
    /// The reasons why locks were lost, the first one first.
    pub(super) lost: watch::Sender<Vec<NodeError>>,
}

impl Cancellation {
    /// A command that stops at a signal.
    pub fn new(signal: &watch::Receiver<Option<u8>>) -> Cancellation {
        Cancellation { signal: signal.clone(), lost: watch::Sender::default() }
    }

    /// Returns a value that is set to a signal's number once one has arrived.
    pub fn signal(&self) -> watch::Receiver<Option<u8>> {
        self.signal.clone()
    }

    /// Checks that a further step may begin.
    ///
    /// # Errors
    /// The reason why it may not: [`Error::Signal`] or [`Error::Lost`].
    pub fn check(&self) -> Result<(), Error> {
        if let Some(number) = *self.signal.borrow() {
            return Err(Error::Signal(number));
        }
        match self.lost.borrow().first() {
            Some(error) => Err(Error::Lost(error.clone())),
            None => Ok(()),
        }
    }

    /// Waits until no further step may be begun.
    pub async fn cancelled(&self) -> Error {
        let (mut signal, mut lost) = (self.signal.clone(), self.lost.subscribe());
        tokio::select! {
            number = signalled(&mut signal) => Error::Signal(number),
            Ok(error) = async { lost.wait_for(|all| !all.is_empty()).await.map(|all| all.first().cloned()) } => {
                error.map_or(Error::Signal(15), Error::Lost)
            }
        }
    }

    /// Waits until the lock of a node is lost, and returns why.
    pub async fn lost_on(&self, node: &str) -> NodeError {
        let mut lost = self.lost.subscribe();
        let of_node = |all: &Vec<NodeError>| all.iter().find(|error| error.node == node).cloned();
        match lost.wait_for(|all| of_node(all).is_some()).await.ok().and_then(|all| of_node(&all)) {
            Some(error) => error,
            // the sender is this value's own
            None => std::future::pending().await,
        }
    }

    /// Does work on several nodes until a signal comes. The work itself handles nodes whose locks are lost
    /// ([`Cancellation::lost_on`]).
    ///
    /// # Errors
    /// The errors of the work, and [`Error::Signal`].
    pub async fn run_until_signal<T>(&self, work: impl Future<Output = Result<T, Error>>) -> Result<T, Error> {
        let mut signal = self.signal.clone();
        let stopped = async { Error::Signal(signalled(&mut signal).await) };
        unless(pin!(stopped), work).await
    }

    /// Does work that changes nothing until the command is cancelled. If nodes fail and a signal comes within
    /// `SIGNAL_DELAY`, the signal is the cause.
    ///
    /// # Errors
    /// The errors of the work and of [`Cancellation::check`].
    pub async fn run<T>(&self, work: impl Future<Output = Result<T, Error>>) -> Result<T, Error> {
        match unless(pin!(self.cancelled()), work).await {
            Err(failed @ (Error::Unreachable(_) | Error::Nodes { .. } | Error::Pool(_))) => {
                Err(timeout(SIGNAL_DELAY, self.cancelled()).await.unwrap_or(failed))
            }
            result => result,
        }
    }
}

/// Does work unless it is stopped first: then it is dropped, and why it was stopped is its error.
async fn unless<T>(
    stopped: Pin<&mut dyn Future<Output = Error>>,
    work: impl Future<Output = Result<T, Error>>,
) -> Result<T, Error> {
    tokio::select! {
        biased;
        error = stopped => Err(error),
        result = work => result,
    }
}
