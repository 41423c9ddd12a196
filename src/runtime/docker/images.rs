//! Images: inspect and pull.

use super::Runtime;
use super::errors::message;
use crate::error::NodeError;
use crate::event::{Event, Events};
use crate::runtime::pull::{Progress, Rate};
use crate::text::digest::hex;
use bollard::errors::Error as DockerError;
use bollard::models::{CreateImageInfo, ImageInspect};
use bollard::query_parameters as query;
use futures_util::StreamExt;
use sha2::{Digest, Sha256};
use std::time::{Duration, Instant};
use tokio::time::timeout;

/// The longest time without a message from an engine that pulls; it reports more often even while it verifies a large layer.
const MAX_SILENCE: Duration = Duration::from_secs(300);
/// The time between two reports of a pull's progress.
const PROGRESS_INTERVAL: Duration = Duration::from_millis(200);

/// An image on a node.
#[derive(Debug, Clone)]
pub struct Image {
    /// Its id on the node. Engines with another image store give the same image another id.
    pub id: String,
    /// Hash of its layers and environment, which is the same on all nodes.
    pub content: String,
}

impl Image {
    fn read(inspect: ImageInspect) -> Option<Image> {
        let id = inspect.id?;
        let layers = inspect.root_fs.and_then(|root| root.layers).filter(|layers| !layers.is_empty());
        let mut env = inspect.config.and_then(|config| config.env).unwrap_or_default();
        env.sort();
        let content = match layers {
            Some(layers) => hex(&Sha256::digest([layers, env].concat().join("\n"))[..6]),
            None => id.clone(),
        };
        Some(Image { id, content })
    }
}

impl Runtime {
    /// Returns the id of an image if the node has it.
    ///
    /// # Errors
    /// [`NodeError`] for anything but its absence.
    pub async fn image_id(&self, image: &str) -> Result<Option<String>, NodeError> {
        Ok(self.image(image).await?.map(|image| image.id))
    }

    /// Returns an image if the node has it.
    ///
    /// # Errors
    /// [`NodeError`] for anything but its absence.
    pub async fn image(&self, image: &str) -> Result<Option<Image>, NodeError> {
        let inspected = async {
            match self.docker.inspect_image(image).await {
                Ok(inspect) => Ok(Image::read(inspect)),
                Err(DockerError::DockerResponseServerError { status_code: 404, .. }) => Ok(None),
                Err(e) => Err(e),
            }
        };
        self.within(&format!("look for the image {image}"), inspected).await
    }

    /// Pulls an image from its registry without a login, and reports progress. There is no time-out, but the pull fails when the
    /// engine reports nothing for minutes. When the future is dropped, the engine stops pulling.
    ///
    /// # Errors
    /// [`NodeError`] with the engine's message.
    pub async fn pull(&self, reference: &str, events: &Events) -> Result<(), NodeError> {
        let tried = format!("pull the image {reference}");
        let silence = self.limit.max(MAX_SILENCE);
        let options = query::CreateImageOptionsBuilder::new().from_image(reference).build();
        let mut messages = std::pin::pin!(self.docker.create_image(Some(options), None, None));
        let mut report = PullReport::new(self.node.clone(), reference);
        loop {
            match timeout(silence, messages.next()).await {
                Ok(Some(Ok(message))) => report.update(message, events),
                // about the registry: a fault of the engine itself would have shown before
                Ok(Some(Err(error))) => return Err(NodeError::failed(&self.node, &tried, message(&error).1)),
                Ok(None) => return Ok(()),
                Err(_) => {
                    let silent = format!("the engine has said nothing for {} s", silence.as_secs());
                    return Err(NodeError::failed(&self.node, &tried, silent));
                }
            }
        }
    }
}

/// Turns the engine's messages about layers into events, at most one per [`PROGRESS_INTERVAL`].
struct PullReport<'a> {
    node: String,
    reference: &'a str,
    progress: Progress,
    rate: Rate,
    start: Instant,
    last: Option<Instant>,
}

impl<'a> PullReport<'a> {
    fn new(node: String, reference: &'a str) -> PullReport<'a> {
        let (progress, rate) = Default::default();
        PullReport { node, reference, progress, rate, start: Instant::now(), last: None }
    }

    fn update(&mut self, message: CreateImageInfo, events: &Events) {
        let bytes = |number: Option<i64>| number.and_then(|number| u64::try_from(number).ok());
        let (current, total) = message.progress_detail.map_or((None, None), |detail| (detail.current, detail.total));
        let (layer, status) = (message.id.unwrap_or_default(), message.status.unwrap_or_default());
        self.progress.see(&layer, &status, bytes(current), bytes(total));
        if self.last.is_some_and(|last| last.elapsed() < PROGRESS_INTERVAL) {
            return;
        }
        self.last = Some(Instant::now());
        let (done, total) = self.progress.loaded();
        let rate = self.rate.see(self.start.elapsed(), done);
        let (verb, (done, total), rate) = match self.progress.unpacked() {
            Some(unpacked) => ("unpacking", unpacked, 0),
            None => ("pulling", (done, total), rate),
        };
        if total > 0 {
            let (node, what) = (self.node.clone(), format!("{verb} {}", self.reference));
            events.send(Event::Transfer { node, what, done, total, rate });
        }
    }
}
