//! Images that are made from containers.

use super::{Cause, ContainerEngine};
use crate::error::{ErrorKind, NodeError};
use crate::runtime::spec::{ContainerSpec, LABEL_BUILT_FOR};
use crate::text::failure;
use bollard::errors::Error as DockerError;
use bollard::models::ContainerConfig;
use bollard::query_parameters as query;
use futures_util::StreamExt;
use futures_util::stream;
use std::collections::HashMap;
use std::io;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tokio::sync::mpsc::Receiver;
use tokio::time::{Instant, timeout_at};

/// The longest time that an engine may take to store files, or what a container has changed: tens of gigabytes on a
/// slow disk.
const COMMIT_LIMIT: Duration = Duration::from_secs(3600);

/// The most bytes of a line of a build's output: a program may print one without end.
const LONGEST_LINE: usize = 64 << 10;

/// The program that a container of an image starts by default, and its user.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ImageStart {
    /// `ENTRYPOINT`.
    pub entrypoint: Vec<String>,
    /// `CMD`.
    pub command: Vec<String>,
    /// `USER`.
    pub user: String,
    /// `WORKDIR`.
    pub directory: String,
}

impl ImageStart {
    /// Returns the instructions of a Dockerfile that give an image made from hvdctl's own container this start again.
    /// `labels` are those of that container, which must not be those of containers from the image.
    pub fn instructions<'a>(&self, labels: impl IntoIterator<Item = &'a str>) -> Vec<String> {
        let list = |words: &[String]| serde_json::to_string(words).expect("texts are always JSON");
        let user = if self.user.is_empty() { "0" } else { &self.user };
        let directory = if self.directory.is_empty() { "/" } else { &self.directory };
        let start = [
            format!("ENTRYPOINT {}", list(&self.entrypoint)),
            format!("CMD {}", list(&self.command)),
            format!("USER {user}"),
            format!("WORKDIR {directory}"),
        ];
        start.into_iter().chain(labels.into_iter().map(|label| format!("LABEL {label}=\"\""))).collect()
    }
}

/// The build of a Dockerfile.
pub struct DockerfileBuild<'a> {
    /// Its path in the context.
    pub dockerfile: &'a str,
    /// The context, as a tar archive.
    pub context: Receiver<io::Result<Vec<u8>>>,
    /// Arguments that leave no trace in the image: those that every Dockerfile has.
    pub arguments: HashMap<String, String>,
    /// The longest time that an instruction may take.
    pub limit: Duration,
}

impl ContainerEngine {
    /// Builds an image without a name. `take` gets each line that the engine reports and returns whether it begins an
    /// instruction. When the future is dropped, the engine stops. Returns the image's id.
    ///
    /// # Errors
    /// [`NodeError`] with the message of the engine, or of the context; of kind [`ErrorKind::TimedOut`].
    pub async fn build(
        &self,
        build: DockerfileBuild<'_>,
        mut take: impl FnMut(&str) -> bool,
    ) -> Result<String, NodeError> {
        let DockerfileBuild { dockerfile, context, arguments, limit } = build;
        let options = query::BuildImageOptionsBuilder::new()
            .dockerfile(dockerfile)
            .rm(true)
            .forcerm(true)
            .buildargs(&arguments)
            .networkmode("host")
            .build();
        // the engine reports only that the context has ended
        let fault = Arc::new(Mutex::new(None));
        let kept = Arc::clone(&fault);
        let context = stream::unfold(context, |mut context| async { Some((context.recv().await?, context)) });
        let context = context.map(move |piece: io::Result<Vec<u8>>| {
            let keep =
                |error: &io::Error| *kept.lock().unwrap_or_else(PoisonError::into_inner) = Some(error.to_string());
            piece.inspect_err(keep).map(Into::into)
        });
        let failed = |error: DockerError| {
            let of_context = fault.lock().unwrap_or_else(PoisonError::into_inner).take();
            let cause = of_context.unwrap_or_else(|| super::message(&error));
            let failed = NodeError::failed(self.transport.node(), "build the Dockerfile", &cause);
            match failure::docker(&cause) {
                Some(Cause::NoSpace) => failed.kind(ErrorKind::NoSpace).hint(super::make_space(self.name)),
                _ => failed,
            }
        };
        let late = |_| NodeError::failed(self.transport.node(), "build the Dockerfile", "").kind(ErrorKind::TimedOut);
        let mut messages =
            std::pin::pin!(self.docker.build_image(options, None, Some(bollard::body_try_stream(context))));
        let (mut id, mut open, mut deadline) = (None, String::new(), Instant::now() + limit);
        while let Some(message) = timeout_at(deadline, messages.next()).await.map_err(late)? {
            let message = message.map_err(failed)?;
            id = message.aux.and_then(|image| image.id).or(id);
            open.push_str(&message.stream.unwrap_or_default());
            while let Some((line, rest)) = open.split_once('\n') {
                if take(line.trim_end_matches('\r')) {
                    deadline = Instant::now() + limit;
                }
                open = rest.to_owned();
            }
            if open.len() > LONGEST_LINE {
                take(&std::mem::take(&mut open));
            }
        }
        id.ok_or_else(|| failed(io::Error::other("the engine ended the build without an image").into()))
    }

    /// Returns what containers from an image start.
    ///
    /// # Errors
    /// [`NodeError`] if the image is missing, or with the engine's message.
    pub async fn image_start(&self, image: &str) -> Result<ImageStart, NodeError> {
        let inspected = self.call(&format!("inspect the image {image}"), self.docker.inspect_image(image)).await?;
        let config = inspected.config.unwrap_or_default();
        Ok(ImageStart {
            entrypoint: config.entrypoint.unwrap_or_default(),
            command: config.cmd.unwrap_or_default(),
            user: config.user.unwrap_or_default(),
            directory: config.working_dir.unwrap_or_default(),
        })
    }

    /// Extracts a tar archive in the root directory of a container.
    ///
    /// # Errors
    /// [`NodeError`] with the engine's message.
    pub async fn extract(&self, container: &str, archive: Vec<u8>) -> Result<(), NodeError> {
        let options = query::UploadToContainerOptionsBuilder::new().path("/").build();
        let extracted = self.docker.upload_to_container(container, Some(options), bollard::body_full(archive.into()));
        let operation = format!("copy files to {container}");
        let extracted = self.transport.in_time(extracted, &operation, COMMIT_LIMIT).await?;
        extracted.map_err(|error| self.explain(&operation, &error))
    }

    /// Makes an image of a container, which starts what `start` says.
    ///
    /// # Errors
    /// [`NodeError`] with the engine's message.
    pub async fn commit(&self, container: &ContainerSpec, image: &str, start: &ImageStart) -> Result<(), NodeError> {
        let (repository, tag) = image.rsplit_once(':').unwrap_or((image, "latest"));
        let labels = container.labels();
        let built_for = format!("LABEL {LABEL_BUILT_FOR}=\"{}\"", container.cluster);
        let changes = [start.instructions(labels.keys().map(String::as_str)), vec![built_for]].concat().join("\n");
        let options = query::CommitContainerOptionsBuilder::new()
            .container(&container.name)
            .repo(repository)
            .tag(tag)
            .changes(&changes)
            .build();
        let operation = format!("make the image {image}");
        let committed = self.docker.commit_container(options, ContainerConfig::default());
        let committed = self.transport.in_time(committed, &operation, COMMIT_LIMIT).await?;
        committed.map(drop).map_err(|error| self.explain(&operation, &error))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_image_starts_as_the_one_that_it_was_made_from() {
        let start = ImageStart {
            entrypoint: vec!["/run me".into()],
            command: Vec::new(),
            user: String::new(),
            directory: "/w".into(),
        };
        assert_eq!(
            start.instructions(["hvdctl.role"]),
            [r#"ENTRYPOINT ["/run me"]"#, "CMD []", "USER 0", "WORKDIR /w", "LABEL hvdctl.role=\"\""]
        );
    }
}
