//! Waits for the signal that cancels a command.

use tokio::sync::watch::Receiver;

/// Waits for the number of a signal.
pub async fn signalled(cancel: &mut Receiver<Option<u8>>) -> u8 {
    match cancel.wait_for(Option::is_some).await.map(|signal| *signal) {
        Ok(Some(signal)) => signal,
        // no signal can come any more
        _ => std::future::pending().await,
    }
}
