//! Images: inspect, list, pull, export, name and remove.

use super::{Cause, ContainerEngine, make_space, message, none_for};
use crate::error::{Error, ErrorKind, NodeError};
use crate::event::Events;
use crate::event::transfer::TransferProgress;
use crate::model::engine::EngineName;
use crate::runtime::credentials::{Credentials, RegistryLogin};
use crate::runtime::progress::PullProgress;
use crate::runtime::spec::LABEL_BUILT_FOR;
use crate::text::digest::hex;
use crate::text::failure::{self, RegistryRefusal as Refusal};
use bollard::auth::DockerCredentials;
use bollard::errors::Error as DockerError;
use bollard::models::ImageInspect;
use bollard::query_parameters as query;
use futures_util::StreamExt;
use hyper::Method;
use hyper::body::Bytes;
use serde_json::Value;
use sha2::{Digest, Sha256};
use std::time::Duration;
use tokio::io::{AsyncWrite, AsyncWriteExt};
use tokio::time::timeout;

/// The longest time without a message from an engine that pulls; it reports more often even while it verifies a large
/// layer.
const MAX_SILENCE: Duration = Duration::from_secs(300);

/// The longest time until an engine sends the next part of an image: before the first one, some write all of it to
/// their disk.
pub const EXPORT_SILENCE: Duration = Duration::from_secs(900);

/// The longest time in which Podman pulls an image of tens of gigabytes.
const PULL_LIMIT: Duration = Duration::from_secs(4 * 3600);

/// The longest time in which an engine receives and stores an image of some megabytes.
const IMPORT_LIMIT: Duration = Duration::from_secs(300);
/// The longest time in which it receives one from a URL, behind which a firewall may drop what it asks.
const URL_LIMIT: Duration = Duration::from_secs(60);

/// The archive of a root file system.
#[derive(Debug)]
pub enum RootArchive<'a> {
    /// The archive itself, which may be compressed.
    Bytes(Bytes),
    /// The address from which the engine downloads it.
    Url(&'a str),
}

/// An image on a node.
#[derive(Debug, Clone, Default)]
pub struct Image {
    /// Its id on the node. Engines with another image store give the same image another id.
    pub id: String,
    /// Hash of its layers and environment, which is the same on all nodes; `None` if it is not pulled yet.
    pub content: Option<String>,
    /// The digests of its layers, the lowest first.
    pub layers: Vec<String>,
    /// Its bytes, as the engine counts them.
    pub size: u64,
    /// Its platform, e.g. `linux/amd64`.
    pub platform: String,
    /// The time at which it was built, in RFC 3339.
    pub created: Option<String>,
    /// The cluster for which hvdctl has built it.
    pub built_for: Option<String>,
}

/// An image in an engine's list.
#[derive(Debug, Clone)]
pub struct ListedImage {
    /// Its id.
    pub id: String,
    /// Its names with a tag or a digest.
    pub names: Vec<String>,
}

/// Returns a name without the registries that Podman puts before names that name none.
fn without_registry(name: &str) -> &str {
    let is_added = ["docker.io/library/", "docker.io/", "localhost/"];
    is_added.iter().find_map(|registry| name.strip_prefix(registry)).unwrap_or(name)
}

/// Returns the request of Podman's own interface that pulls over HTTP too.
fn pull_path(reference: &str) -> String {
    let reference = reference.replace('/', "%2F").replace(':', "%3A").replace('@', "%40");
    format!("/v4.0.0/libpod/images/pull?reference={reference}&tlsVerify=false&policy=always")
}

/// Returns the error in the report of Podman about a pull, which is a JSON document a line.
fn pull_error(report: &[u8]) -> Option<String> {
    let lines = serde_json::Deserializer::from_slice(report).into_iter::<Value>();
    lines
        .filter_map(Result::ok)
        .find_map(|line| line["error"].as_str().filter(|text| !text.is_empty()).map(str::to_owned))
}

/// Returns the hash of an image's layers and environment.
pub fn image_content(layers: &[String], mut env: Vec<String>) -> String {
    env.sort();
    hex(&Sha256::digest([layers, &env].concat().join("\n"))[..6])
}

impl From<ImageInspect> for Image {
    fn from(inspect: ImageInspect) -> Image {
        let id = inspect.id.unwrap_or_default();
        let layers = inspect.root_fs.and_then(|root| root.layers).unwrap_or_default();
        let config = inspect.config.unwrap_or_default();
        let built_for = config.labels.and_then(|mut labels| labels.remove(LABEL_BUILT_FOR));
        let env = config.env.unwrap_or_default();
        let content = match layers.is_empty() {
            true => id.clone(),
            false => image_content(&layers, env),
        };
        let size = inspect.size.and_then(|size| u64::try_from(size).ok()).unwrap_or_default();
        let platform = platform(inspect.os, inspect.architecture);
        Image { id, content: Some(content), layers, size, platform, created: inspect.created, built_for }
    }
}

/// Formats a platform; it is empty if the engine does not report it.
pub(super) fn platform(os: Option<String>, architecture: Option<String>) -> String {
    os.zip(architecture).map_or_else(String::new, |(os, architecture)| format!("{os}/{architecture}"))
}

/// Returns credentials as the engine takes them.
fn sent(credentials: &Credentials) -> DockerCredentials {
    let none = DockerCredentials::default();
    match credentials {
        Credentials::Password { user, password } => {
            DockerCredentials { username: Some(user.clone()), password: Some(password.expose().to_owned()), ..none }
        }
        Credentials::IdentityToken(token) => {
            DockerCredentials { identitytoken: Some(token.expose().to_owned()), ..none }
        }
        Credentials::RegistryToken(token) => {
            DockerCredentials { registrytoken: Some(token.expose().to_owned()), ..none }
        }
    }
}

/// Returns what to do about a pull by a node's engine that a registry has not answered with an image. `platform`: that
/// of the node.
fn registry_hint(kind: Refusal, login: &RegistryLogin, engine: EngineName, platform: &str) -> String {
    let host = login.host();
    let is_podman = engine == EngineName::Podman;
    let platform = if platform.is_empty() { "PLATFORM" } else { platform };
    match kind {
        Refusal::Refused => login.hint(),
        Refusal::RateLimited if login.withheld_from.is_some() => login.hint(),
        Refusal::RateLimited => format!(
            "{host} limits the pulls of an address: `{}` on this machine raises the limit, and is sent with each pull; \
             or let one node \
             pull (hvdctl --on NODE image pull) and give it to the others (hvdctl image push)",
            login.command()
        ),
        Refusal::NoPlatform => format!(
            "{host} has no image for {platform}: `docker buildx build --platform {platform}` makes one; or leave the \
             node out with --on"
        ),
        Refusal::OldFormat => {
            "current engines do not pull this old format (schema 1): pull and push the image once with Docker 27 or \
             older, or build it again"
                .to_owned()
        }
        Refusal::PlainHttp if is_podman => format!(
            "{host} speaks only HTTP: write `[[registry]]`, `location = \"{host}\"` and `insecure = true`, one line \
             each, to a file in /etc/containers/registries.conf.d of the node, such as hvdctl.conf (without root \
             ~/.config/containers/registries.conf)"
        ),
        Refusal::PlainHttp => format!(
            "{host} speaks only HTTP: \"insecure-registries\": [\"{host}\"] in /etc/docker/daemon.json of the node, \
             then systemctl restart \
             docker"
        ),
        Refusal::Untrusted => {
            let directory = if is_podman { "containers" } else { "docker" };
            format!(
                "the node's engine does not trust the certificate of {host}: put the CA's certificate into \
                 /etc/{directory}/certs.d/{host}/ca.crt on the node"
            )
        }
        Refusal::NoImage => format!("{host} has no such image, tag or digest; a name without a tag means :latest"),
        Refusal::Unreachable if is_podman => format!(
            "the node's engine cannot reach {host}: check DNS and firewall there, and the proxy of Podman's service \
             (systemctl show podman.service --property Environment; `systemctl edit podman.service` sets HTTPS_PROXY; \
             with --user for a service without root)"
        ),
        Refusal::Unreachable => format!(
            "the node's engine cannot reach {host}: check DNS, firewall and the engine's proxy there (systemctl show \
             docker --property Environment)"
        ),
    }
}

impl ContainerEngine {
    /// Returns an image if the node has it.
    ///
    /// # Errors
    /// [`NodeError`] for anything but its absence.
    pub async fn image(&self, image: &str) -> Result<Option<Image>, NodeError> {
        let inspected = none_for(&[404], self.docker.inspect_image(image));
        Ok(self.call(&format!("inspect the image {image}"), inspected).await?.map(Image::from))
    }

    /// Returns all images that have a name, or had one.
    ///
    /// # Errors
    /// [`NodeError`] with the engine's message.
    pub async fn images(&self) -> Result<Vec<ListedImage>, NodeError> {
        let options = query::ListImagesOptionsBuilder::new().build();
        let listed = self.call("list the images", self.docker.list_images(Some(options))).await?;
        let listed = listed.into_iter().map(|image| {
            let names = [image.repo_tags, image.repo_digests].concat();
            let names = names.into_iter().map(|name| self.short_name(name)).collect();
            ListedImage { id: image.id, names }
        });
        Ok(listed.collect())
    }

    /// Returns the name that an image has here: Podman names the registry of what has no other one.
    fn short_name(&self, name: String) -> String {
        match self.name {
            EngineName::Docker => name,
            EngineName::Podman => without_registry(&name).to_owned(),
        }
    }

    /// Gives an image another name.
    ///
    /// # Errors
    /// [`NodeError`] with the engine's message.
    pub async fn tag(&self, image: &str, repository: &str, tag: &str) -> Result<(), NodeError> {
        let options = query::TagImageOptionsBuilder::new().repo(repository).tag(tag).build();
        let tagged = self.docker.tag_image(image, Some(options));
        self.call(&format!("name the image {repository}:{tag}"), tagged).await
    }

    /// Removes a name of an image, and the image with its last name. Does nothing if there is no such name.
    ///
    /// # Errors
    /// [`NodeError`] with the engine's message.
    pub async fn remove_name(&self, name: &str) -> Result<(), NodeError> {
        let removed = none_for(&[404], self.docker.remove_image(name, None::<query::RemoveImageOptions>, None));
        self.call(&format!("remove the image {name}"), removed).await.map(drop)
    }

    /// Makes an image of one layer from the archive of a root file system, as `docker import` does.
    ///
    /// # Errors
    /// [`NodeError`] with the engine's message.
    pub async fn import(&self, name: &str, archive: RootArchive<'_>) -> Result<(), NodeError> {
        let (repository, tag) = name.rsplit_once(':').unwrap_or((name, "latest"));
        let (source, body, limit) = match archive {
            RootArchive::Bytes(bytes) => ("-", Some(bollard::body_full(bytes)), IMPORT_LIMIT),
            RootArchive::Url(url) => (url, None, URL_LIMIT),
        };
        let options = query::CreateImageOptionsBuilder::new().from_src(source).repo(repository).tag(tag).build();
        let mut messages = std::pin::pin!(self.docker.create_image(Some(options), body, None));
        let import = async {
            while let Some(update) = messages.next().await {
                update?;
            }
            Ok(())
        };
        let operation = format!("make the image {name}");
        let imported = self.transport.in_time(import, &operation, limit).await?;
        imported.map_err(|error| self.explain(&operation, &error))
    }

    /// Writes an image as an archive, as `docker save` does, and reports progress. `size`: its bytes, as far as they
    /// are known.
    ///
    /// # Errors
    /// [`Error::Nodes`] with the engine's message, [`Error::Local`] if the archive cannot be written.
    pub async fn export(
        &self,
        image: &str,
        size: u64,
        sink: &mut (impl AsyncWrite + Unpin),
        events: &Events,
    ) -> Result<(), Error> {
        let node = self.transport.node();
        let operation = format!("export the image {image}");
        let here = |error: std::io::Error| Error::Local(format!("cannot spool the image {image}: {error}"));
        let silence = self.transport.limit().max(EXPORT_SILENCE);
        let mut parts = std::pin::pin!(self.docker.export_image(image));
        let (mut transfer, mut done) = (TransferProgress::new(node, events), 0);
        loop {
            let late = format!("no progress for {} s", silence.as_secs());
            let next = timeout(silence, parts.next()).await;
            let next = next.map_err(|_| NodeError::failed(node, &operation, late).kind(ErrorKind::TimedOut))?;
            let Some(part) = next else { break };
            let part = part.map_err(|error| self.explain(&operation, &error))?;
            sink.write_all(&part).await.map_err(here)?;
            done += part.len() as u64;
            transfer.report(&format!("exporting {image}"), done, size.max(done));
        }
        sink.flush().await.map_err(here)
    }

    /// Pulls an image from a registry of hvdctl's own, which speaks HTTP on the node's 127.0.0.1, and reports progress
    /// under the name `shown`. With Docker there is no time-out, but the pull fails when the engine reports nothing for
    /// minutes; Podman reports no progress. When the future is dropped, the engine stops pulling.
    ///
    /// # Errors
    /// [`NodeError`] with the engine's message.
    pub async fn pull(&self, reference: &str, shown: &str, events: &Events) -> Result<(), NodeError> {
        match self.name {
            EngineName::Docker => self.pull_as(reference, shown, None, events).await,
            EngineName::Podman => self.pull_by_http(reference, shown).await,
        }
    }

    /// Pulls by Podman's own interface: its other one takes every registry for one of HTTPS.
    async fn pull_by_http(&self, reference: &str, shown: &str) -> Result<(), NodeError> {
        let operation = format!("pull the image {shown}");
        let pull = self.connections.send(Method::POST, pull_path(reference), String::new());
        let pulled = self.transport.in_time(pull, &operation, PULL_LIMIT).await?;
        let failed = pulled.and_then(|answer| match pull_error(&answer) {
            Some(error) => Err(DockerError::DockerStreamError { error }),
            None => Ok(()),
        });
        failed.map_err(|error| self.explain(&operation, &error))
    }

    /// Pulls an image with the operator's login to the registry, which the engine uses for this pull and does not keep.
    ///
    /// # Errors
    /// [`NodeError`] with the engine's message; of kind [`ErrorKind::RegistryRefused`] with the next step.
    pub async fn pull_with(&self, reference: &str, login: &RegistryLogin, events: &Events) -> Result<(), NodeError> {
        let pulled = self.pull_as(reference, reference, login.credentials.as_ref().map(sent), events).await;
        pulled.map_err(|error| match failure::registry(&error.message).filter(|_| error.kind == ErrorKind::Failed) {
            Some(kind @ (Refusal::Refused | Refusal::RateLimited)) => {
                error.kind(ErrorKind::RegistryRefused).hint(registry_hint(kind, login, self.name, &self.platform))
            }
            Some(kind) => error.hint(registry_hint(kind, login, self.name, &self.platform)),
            None => error,
        })
    }

    async fn pull_as(
        &self,
        reference: &str,
        shown: &str,
        credentials: Option<DockerCredentials>,
        events: &Events,
    ) -> Result<(), NodeError> {
        let failed = |cause: String| {
            let is_full = failure::docker(&cause) == Some(Cause::NoSpace);
            let failed = NodeError::failed(self.transport.node(), &format!("pull the image {shown}"), cause);
            if is_full { failed.kind(ErrorKind::NoSpace).hint(make_space(self.name)) } else { failed }
        };
        let silence = self.transport.limit().max(MAX_SILENCE);
        let options = query::CreateImageOptionsBuilder::new().from_image(reference).build();
        let mut messages = std::pin::pin!(self.docker.create_image(Some(options), None, credentials));
        let (mut layers, mut transfer) =
            (PullProgress::default(), TransferProgress::new(self.transport.node(), events));
        let late = |_| failed(format!("no progress for {} s", silence.as_secs())).kind(ErrorKind::TimedOut);
        while let Some(update) = timeout(silence, messages.next()).await.map_err(late)? {
            // about the registry: an error of the engine itself would have occurred before
            let update = update.map_err(|error| failed(message(&error)))?;
            let bytes = |number: Option<i64>| number.and_then(|number| u64::try_from(number).ok());
            let detail = update.progress_detail.unwrap_or_default();
            let (layer, status) = (update.id.unwrap_or_default(), update.status.unwrap_or_default());
            layers.update(&layer, &status, bytes(detail.current), bytes(detail.total));
            let (verb, done, total) = layers.state();
            transfer.report(&format!("{verb} {shown}"), done, total);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_podman_are_those_that_images_were_given() {
        let names = ["docker.io/hvdctl/digits:1", "localhost/app:1", "docker.io/library/debian:12", "ghcr.io/a/b:1"];
        assert_eq!(names.map(without_registry), ["hvdctl/digits:1", "app:1", "debian:12", "ghcr.io/a/b:1"]);
    }

    #[test]
    fn hints_about_a_registry_name_the_files_of_the_engine() {
        let login = RegistryLogin { registry: "r:5000".into(), ..RegistryLogin::default() };
        for (kind, docker, podman) in [
            (Refusal::PlainHttp, "/etc/docker/daemon.json", "/etc/containers/registries.conf.d"),
            (Refusal::Untrusted, "/etc/docker/certs.d/r:5000/ca.crt", "/etc/containers/certs.d/r:5000/ca.crt"),
            (Refusal::Unreachable, "systemctl show docker", "systemctl edit podman.service"),
        ] {
            let hint = |engine| registry_hint(kind, &login, engine, "linux/amd64");
            let hints = [EngineName::Docker, EngineName::Podman].map(hint);
            assert!(hints[0].contains(docker) && hints[1].contains(podman), "{hints:?}");
            assert!(!hints[1].contains("docker"), "{hints:?}");
        }
    }

    #[test]
    fn pulls_of_podman_are_requested_and_reported() {
        let path = pull_path("127.0.0.1:41000/a1b2/image@sha256:00");
        let expected = "reference=127.0.0.1%3A41000%2Fa1b2%2Fimage%40sha256%3A00&tlsVerify=false";
        assert!(path.contains(expected), "{path}");
        let report = "{\"stream\":\"Copying blob 1\\n\"}\n{\"images\":[\"1f\"],\"id\":\"1f\"}\n";
        assert_eq!(pull_error(report.as_bytes()), None);
        let report = "{\"stream\":\"Trying\\n\"}\n{\"error\":\"no such host\"}\n";
        assert_eq!(pull_error(report.as_bytes()).as_deref(), Some("no such host"));
    }
}
