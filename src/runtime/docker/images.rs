//! Images: inspect and pull.

use super::{Runtime, message, none_for};
use crate::error::{Kind, NodeError};
use crate::event::Events;
use crate::runtime::progress::{PullProgress, TransferProgress};
use crate::text::digest::hex;
use bollard::models::ImageInspect;
use bollard::query_parameters as query;
use futures_util::StreamExt;
use sha2::{Digest, Sha256};
use std::time::Duration;
use tokio::time::timeout;

/// The longest time without a message from an engine that pulls; it reports more often even while it verifies a large layer.
const MAX_SILENCE: Duration = Duration::from_secs(300);

/// An image on a node.
#[derive(Debug, Clone)]
pub struct Image {
    /// Its id on the node. Engines with another image store give the same image another id.
    pub id: String,
    /// Hash of its layers and environment, which is the same on all nodes; `None` if it is not pulled yet.
    pub content: Option<String>,
}

impl From<ImageInspect> for Image {
    fn from(inspect: ImageInspect) -> Image {
        let id = inspect.id.unwrap_or_default();
        let layers = inspect.root_fs.and_then(|root| root.layers).unwrap_or_default();
        let mut env = inspect.config.and_then(|config| config.env).unwrap_or_default();
        env.sort();
        let content = match layers.is_empty() {
            true => id.clone(),
            false => hex(&Sha256::digest([layers, env].concat().join("\n"))[..6]),
        };
        Image { id, content: Some(content) }
    }
}

impl Runtime {
    /// Returns an image if the node has it.
    ///
    /// # Errors
    /// [`NodeError`] for anything but its absence.
    pub async fn image(&self, image: &str) -> Result<Option<Image>, NodeError> {
        let inspected = none_for(&[404], self.docker.inspect_image(image));
        Ok(self.call(&format!("inspect the image {image}"), inspected).await?.map(Image::from))
    }

    /// Pulls an image from its registry without a login, and reports progress. There is no time-out, but the pull fails when the
    /// engine reports nothing for minutes. When the future is dropped, the engine stops pulling.
    ///
    /// # Errors
    /// [`NodeError`] with the engine's message.
    pub async fn pull(&self, reference: &str, events: &Events) -> Result<(), NodeError> {
        let failed =
            |cause: String| NodeError::failed(self.transport.node(), &format!("pull the image {reference}"), cause);
        let silence = self.transport.limit().max(MAX_SILENCE);
        let options = query::CreateImageOptionsBuilder::new().from_image(reference).build();
        let mut messages = std::pin::pin!(self.docker.create_image(Some(options), None, None));
        let (mut layers, mut transfer) =
            (PullProgress::default(), TransferProgress::new(self.transport.node(), events));
        let late = |_| failed(format!("no progress for {} s", silence.as_secs())).kind(Kind::TimedOut);
        while let Some(update) = timeout(silence, messages.next()).await.map_err(late)? {
            // about the registry: an error of the engine itself would have occurred before
            let update = update.map_err(|error| failed(message(&error)))?;
            let bytes = |number: Option<i64>| number.and_then(|number| u64::try_from(number).ok());
            let detail = update.progress_detail.unwrap_or_default();
            let (layer, status) = (update.id.unwrap_or_default(), update.status.unwrap_or_default());
            layers.update(&layer, &status, bytes(detail.current), bytes(detail.total));
            let (verb, done, total) = layers.state();
            transfer.report(&format!("{verb} {reference}"), done, total);
        }
        Ok(())
    }
}
