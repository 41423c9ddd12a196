//! Images that are made from containers.

use super::Runtime;
use crate::error::NodeError;
use crate::runtime::spec::ContainerSpec;
use bollard::models::ContainerConfig;
use bollard::query_parameters as query;
use std::time::Duration;

/// The longest time that an engine may take to store files, or what a container has changed: tens of gigabytes on a slow disk.
const COMMIT_LIMIT: Duration = Duration::from_secs(3600);

/// What a container starts if nothing else is asked for, and as whom.
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
    /// Returns the instructions of a Dockerfile that give an image made from hvdctl's own container this start again. `labels` are
    /// those of that container, which must not be those of containers from the image.
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

impl Runtime {
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
        extracted.map_err(|error| super::explain(self.transport.node(), &operation, &error))
    }

    /// Makes an image of a container, which starts what `start` says.
    ///
    /// # Errors
    /// [`NodeError`] with the engine's message.
    pub async fn commit(&self, container: &ContainerSpec, image: &str, start: &ImageStart) -> Result<(), NodeError> {
        let (repository, tag) = image.rsplit_once(':').unwrap_or((image, "latest"));
        let labels = container.labels();
        let changes = start.instructions(labels.keys().map(String::as_str)).join("\n");
        let options = query::CommitContainerOptionsBuilder::new()
            .container(&container.name)
            .repo(repository)
            .tag(tag)
            .changes(&changes)
            .build();
        let operation = format!("make the image {image}");
        let committed = self.docker.commit_container(options, ContainerConfig::default());
        let committed = self.transport.in_time(committed, &operation, COMMIT_LIMIT).await?;
        committed.map(drop).map_err(|error| super::explain(self.transport.node(), &operation, &error))
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
