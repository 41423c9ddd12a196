//! The only module that knows `bollard`: one node's Docker Engine over its link.

mod body;
mod dial;
mod inside;

use crate::error::{Kind, NodeError};
use crate::event::{Event, Events};
use crate::runtime::container::{ContainerState, ContainerSummary};
use crate::runtime::pull::{Progress, Rate};
use crate::runtime::spec::{Desired, LABEL_PROCESS};
use crate::transport::link::Link;
use crate::transport::privileges;
use body::body;
use bollard::Docker;
use bollard::errors::Error as DockerError;
use bollard::models::{ContainerSummaryStateEnum as ListedState, ImageInspect};
use bollard::query_parameters as query;
use dial::Dial;
use futures_util::StreamExt;
pub use inside::Inside;
use sha2::{Digest, Sha256};
use std::future::Future;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::time::timeout;

/// An engine that pulls an image says something more often than this, also while it checks a large layer.
const LONGEST_SILENCE: Duration = Duration::from_secs(300);
/// How often the progress of a pull is told.
const BETWEEN_TOLD: Duration = Duration::from_millis(200);

/// What is tried first of all.
const REACH: &str = "reach the Docker Engine";

/// An image as an engine has it.
#[derive(Debug, Clone)]
pub struct Image {
    /// Its id there. The same image may have another in an engine that keeps its images in another way.
    pub id: String,
    /// A hash of its layers and its environment: what the programs in it see.
    pub content: String,
}

impl Image {
    fn read(inspect: ImageInspect) -> Option<Image> {
        let id = inspect.id?;
        let layers = inspect.root_fs.and_then(|root| root.layers).filter(|layers| !layers.is_empty());
        let mut env = inspect.config.and_then(|config| config.env).unwrap_or_default();
        env.sort();
        let content = match layers {
            Some(layers) => {
                let parts = [layers, env].concat().join("\n");
                Sha256::digest(parts.as_bytes()).iter().take(6).map(|b| format!("{b:02x}")).collect()
            }
            None => id.clone(),
        };
        Some(Image { id, content })
    }
}

/// What an engine says of itself.
#[derive(Debug, Clone, Default)]
pub struct About {
    /// The folder where images and containers lie.
    pub root_dir: String,
    /// The names of its runtimes.
    pub runtimes: Vec<String>,
}

/// The engine of one node.
#[derive(Clone)]
pub struct Engine {
    docker: Docker,
    dial: Dial,
    node: String,
    limit: Duration,
    /// The engine's version, e.g. `20.10.24`.
    pub version: String,
}

impl Engine {
    /// Reaches the engine.
    ///
    /// # Errors
    /// [`NodeError`] with the words of `docker`, sudo or the engine.
    pub async fn connect(link: &Arc<Link>) -> Result<Engine, NodeError> {
        let dial = Dial::new(link);
        let dialler = dial.clone();
        let transport = move |request| Box::pin(dialler.clone().request(request));
        let node = link.node().to_owned();
        // bollard's own limit covers a whole request, long uploads and waits included; ours are set per call
        let day = 24 * 3600;
        let ours = bollard::API_DEFAULT_VERSION;
        let docker = Docker::connect_with_custom_transport(transport, Some("http://docker"), day, ours)
            .map_err(|e| NodeError::failed(&node, REACH, e))?;
        let mut engine = Engine { docker, dial, node, limit: link.limit(), version: String::new() };
        // bollard names no version of the protocol (`url.join` in its uri.rs takes it away again), and each engine speaks its latest:
        // nothing is to be agreed on, for which the engine would start two programs
        let said = engine.within(REACH, engine.docker.version()).await?;
        engine.version = said.version.unwrap_or_default();
        Ok(engine)
    }

    async fn within<T>(&self, tried: &str, work: impl Future<Output = Result<T, DockerError>>) -> Result<T, NodeError> {
        match timeout(self.limit, work).await {
            Ok(Ok(value)) => Ok(value),
            Ok(Err(error)) => Err(explain(&self.node, tried, &error)),
            Err(_) => {
                let late = format!("no answer within {} s", self.limit.as_secs());
                Err(NodeError::failed(&self.node, tried, late).kind(Kind::TimedOut).hint(if tried == REACH {
                    "see `systemctl status docker` on the node"
                } else {
                    "if the node is only slow, raise cluster.command_timeout_s"
                }))
            }
        }
    }

    /// Every container of the node, running or not, but those in which hvdctl itself works as root.
    ///
    /// # Errors
    /// [`NodeError`] with the engine's words.
    pub async fn containers(&self) -> Result<Vec<ContainerSummary>, NodeError> {
        Ok(self.all_containers().await?.into_iter().filter(|c| !c.is_helper()).collect())
    }

    /// Removes what is left of the containers in which an hvdctl worked as root, where one was killed. This one's own stay: it
    /// holds the node's lease in one.
    ///
    /// # Errors
    /// [`NodeError`] with the engine's words.
    pub async fn remove_helpers(&self, cluster: &str) -> Result<(), NodeError> {
        let own = |c: &ContainerSummary| c.label(LABEL_PROCESS) == Some(privileges::process());
        for helper in self.all_containers().await?.iter().filter(|c| c.is_helper() && c.belongs_to(cluster) && !own(c))
        {
            self.remove(&helper.id).await?;
        }
        Ok(())
    }

    async fn all_containers(&self) -> Result<Vec<ContainerSummary>, NodeError> {
        let options = query::ListContainersOptionsBuilder::new().all(true).build();
        let listed = self.within("list the containers", self.docker.list_containers(Some(options))).await?;
        Ok(listed
            .into_iter()
            .map(|c| ContainerSummary {
                name: c
                    .names
                    .unwrap_or_default()
                    .first()
                    .map(|n| n.trim_start_matches('/').to_owned())
                    .unwrap_or_default(),
                id: c.id.unwrap_or_default(),
                image_id: c.image_id.unwrap_or_default(),
                state: state(c.state),
                labels: c.labels.unwrap_or_default().into_iter().collect(),
                created: c.created,
            })
            .collect())
    }

    /// The id of an image, if the node has it.
    ///
    /// # Errors
    /// As of [`Engine::image`].
    pub async fn image_id(&self, image: &str) -> Result<Option<String>, NodeError> {
        Ok(self.image(image).await?.map(|image| image.id))
    }

    /// An image, if the node has it.
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

    /// Gets an image from its registry, as the engine may without a log-in, and tells how far it is. It takes as long as it
    /// takes, but ends where the engine says nothing for minutes. When it is dropped, the engine gives up too.
    ///
    /// # Errors
    /// [`NodeError`] with the engine's words.
    pub async fn pull(&self, reference: &str, events: &Events) -> Result<(), NodeError> {
        let tried = format!("pull the image {reference}");
        let silence = self.limit.max(LONGEST_SILENCE);
        let options = query::CreateImageOptionsBuilder::new().from_image(reference).build();
        let mut messages = std::pin::pin!(self.docker.create_image(Some(options), None, None));
        let (mut progress, mut rate, start) = (Progress::default(), Rate::default(), Instant::now());
        let mut told = None;
        loop {
            let message = match timeout(silence, messages.next()).await {
                Ok(Some(Ok(message))) => message,
                // the engine speaks of the registry: what is wrong with the engine itself would have shown before
                Ok(Some(Err(error))) => return Err(NodeError::failed(&self.node, &tried, words(&error).1)),
                Ok(None) => return Ok(()),
                Err(_) => {
                    let said = format!("the engine has said nothing for {} s", silence.as_secs());
                    return Err(NodeError::failed(&self.node, &tried, said));
                }
            };
            let (layer, status) = (message.id.unwrap_or_default(), message.status.unwrap_or_default());
            let (current, total) =
                message.progress_detail.map_or((None, None), |detail| (detail.current, detail.total));
            let bytes = |number: Option<i64>| number.and_then(|number| u64::try_from(number).ok());
            progress.see(&layer, &status, bytes(current), bytes(total));
            if told.is_none_or(|last: Instant| last.elapsed() >= BETWEEN_TOLD) {
                told = Some(Instant::now());
                let (done, total) = progress.loaded();
                let rate = rate.see(start.elapsed(), done);
                let (what, (done, total), rate) = match progress.unpacked() {
                    Some(unpacked) => ("unpacking", unpacked, 0),
                    None => ("pulling", (done, total), rate),
                };
                if total > 0 {
                    let (node, what) = (self.node.clone(), format!("{what} {reference}"));
                    events.send(Event::Transfer { node, what, done, total, rate });
                }
            }
        }
    }

    /// What the engine says of itself.
    ///
    /// # Errors
    /// [`NodeError`] with the engine's words.
    pub async fn about(&self) -> Result<About, NodeError> {
        let info = self.within("ask the Docker Engine about itself", self.docker.info()).await?;
        Ok(About {
            root_dir: info.docker_root_dir.unwrap_or_default(),
            runtimes: info.runtimes.unwrap_or_default().into_keys().collect(),
        })
    }

    /// Makes a container and starts it, and gives its id; one that cannot start is removed again.
    ///
    /// # Errors
    /// [`NodeError`] with the engine's words.
    pub async fn create_and_start(&self, desired: &Desired) -> Result<String, NodeError> {
        let tried = format!("start {}", desired.name);
        let options = query::CreateContainerOptionsBuilder::new().name(&desired.name).build();
        let created = self.within(&tried, self.docker.create_container(Some(options), body(desired))).await?;
        let started =
            self.within(&tried, self.docker.start_container(&created.id, None::<query::StartContainerOptions>)).await;
        if started.is_err() {
            // Docker leaves a container behind whose start failed (no NVIDIA toolkit, for one)
            let _ = self.remove(&created.id).await;
        }
        started.map(|()| created.id)
    }

    /// Starts a container that is there.
    ///
    /// # Errors
    /// [`NodeError`] with the engine's words.
    pub async fn start(&self, name: &str) -> Result<(), NodeError> {
        let start = self.docker.start_container(name, None::<query::StartContainerOptions>);
        self.within(&format!("start {name}"), start).await
    }

    /// Lets a paused container go on.
    ///
    /// # Errors
    /// [`NodeError`] with the engine's words.
    pub async fn unpause(&self, name: &str) -> Result<(), NodeError> {
        self.within(&format!("unpause {name}"), self.docker.unpause_container(name)).await
    }

    /// Kills and removes a container; one that is gone is no error. Its name is free afterwards, also where somebody else's
    /// removal of it was under way.
    ///
    /// # Errors
    /// [`NodeError`] with the engine's words.
    pub async fn remove(&self, id: &str) -> Result<(), NodeError> {
        let options = query::RemoveContainerOptionsBuilder::new().force(true).v(true).build();
        let removed = async {
            let mut pause = Duration::from_millis(10);
            loop {
                match self.docker.remove_container(id, Some(options.clone())).await {
                    // a removal is under way already
                    Err(DockerError::DockerResponseServerError { status_code: 409, .. }) => {
                        tokio::time::sleep(pause).await;
                        pause = (2 * pause).min(Duration::from_millis(100));
                    }
                    Err(DockerError::DockerResponseServerError { status_code: 404, .. }) | Ok(()) => return Ok(()),
                    Err(e) => return Err(e),
                }
            }
        };
        self.within(&format!("remove {id}"), removed).await
    }

    /// Whether a container runs; `None` when it is gone.
    ///
    /// # Errors
    /// [`NodeError`] with the engine's words.
    pub async fn running(&self, name: &str) -> Result<Option<bool>, NodeError> {
        let inspected = async {
            match self.docker.inspect_container(name, None::<query::InspectContainerOptions>).await {
                Ok(seen) => Ok(seen.state.and_then(|s| s.running)),
                Err(DockerError::DockerResponseServerError { status_code: 404, .. }) => Ok(None),
                Err(e) => Err(e),
            }
        };
        self.within(&format!("look at {name}"), inspected).await
    }

    /// The last lines that a container wrote.
    ///
    /// # Errors
    /// [`NodeError`] with the engine's words.
    pub async fn last_lines(&self, name: &str, lines: u32) -> Result<String, NodeError> {
        let options = query::LogsOptionsBuilder::new().stdout(true).stderr(true).tail(&lines.to_string()).build();
        let read = async {
            let mut text = String::new();
            let mut stream = std::pin::pin!(self.docker.logs(name, Some(options)));
            while let Some(piece) = stream.next().await {
                text.push_str(&String::from_utf8_lossy(&piece?.into_bytes()));
            }
            Ok(text)
        };
        self.within(&format!("read the log of {name}"), read).await
    }

    /// Asks a container's main process for its end; one that is gone is no error.
    ///
    /// # Errors
    /// [`NodeError`] with the engine's words.
    pub async fn terminate(&self, id: &str) -> Result<(), NodeError> {
        let options = query::KillContainerOptionsBuilder::new().signal("SIGTERM").build();
        let asked = async {
            match self.docker.kill_container(id, Some(options)).await {
                // 409: it does not run
                Err(DockerError::DockerResponseServerError { status_code: 404 | 409, .. }) | Ok(()) => Ok(()),
                Err(e) => Err(e),
            }
        };
        self.within("ask the run for its end", asked).await
    }

    /// Waits, however long it takes, until a container has ended, and gives its exit code; none where it was gone already.
    ///
    /// # Errors
    /// [`NodeError`] when the engine or the session goes away meanwhile.
    pub async fn wait(&self, id: &str) -> Result<Option<i64>, NodeError> {
        let tried = "wait for the end of the run";
        let mut stream = std::pin::pin!(self.docker.wait_container(id, None::<query::WaitContainerOptions>));
        match stream.next().await {
            Some(Ok(answer)) => Ok(Some(answer.status_code)),
            Some(Err(DockerError::DockerContainerWaitError { code, .. })) => Ok(Some(code)),
            Some(Err(DockerError::DockerResponseServerError { status_code: 404, .. })) => Ok(None),
            Some(Err(e)) => Err(explain(&self.node, tried, &e)),
            None => Err(NodeError::failed(&self.node, tried, "the engine closed the connection")),
        }
    }
}

/// One whose state the engine does not name has ended, as far as anybody can tell.
fn state(listed: Option<ListedState>) -> ContainerState {
    match listed {
        Some(ListedState::CREATED) => ContainerState::Created,
        Some(ListedState::RUNNING) => ContainerState::Running,
        Some(ListedState::PAUSED) => ContainerState::Paused,
        Some(ListedState::RESTARTING) => ContainerState::Restarting,
        Some(ListedState::REMOVING) => ContainerState::Removing,
        Some(ListedState::DEAD) => ContainerState::Dead,
        Some(ListedState::EXITED | ListedState::STOPPING | ListedState::EMPTY) | None => ContainerState::Exited,
    }
}

/// The engine's words, with the next step for those that we know.
fn explain(node: &str, tried: &str, error: &DockerError) -> NodeError {
    let (code, said) = words(error);
    let failed = NodeError::failed(node, tried, &said);
    if said.contains("could not select device driver") {
        failed.hint(
            "Docker has no NVIDIA runtime there: install nvidia-container-toolkit and restart Docker, or set `gpus = 0` \
             for this node",
        )
    } else if said.contains("no space left on device") {
        failed.hint("make room on that node: df -h, docker system df")
    } else if code == 404 && said.contains("No such image") {
        failed.hint("load the image on that node: docker save IMAGE | ssh NODE sudo docker load")
    } else {
        hint_for_engine(failed)
    }
}

/// The engine's status and what it said.
fn words(error: &DockerError) -> (u16, String) {
    match error {
        DockerError::DockerResponseServerError { status_code, message } => (*status_code, message.clone()),
        DockerError::DockerStreamError { error } => (0, error.clone()),
        other => (0, other.to_string()),
    }
}

fn hint_for_engine(error: NodeError) -> NodeError {
    let said = error.message.as_str();
    let hint = if said.contains("command not found") || said.contains("docker: not found") {
        "install Docker Engine on that node"
    } else if said.contains("Cannot connect to the Docker daemon")
        || said.contains("connection refused")
        || said.contains("docker.sock: connect: no such file")
    {
        "start it on that node: sudo systemctl start docker"
    } else if said.contains("sudo:") || said.contains("sudoers") {
        "let the user run sudo without a password, or add the user to the group docker"
    } else if said.contains("permission denied") {
        "add the user to the group docker, or let the user run sudo without a password"
    } else {
        return error;
    };
    error.hint(hint)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_missing_toolkit_has_a_cure() {
        let said = DockerError::DockerResponseServerError {
            status_code: 500,
            message: "could not select device driver \"\" with capabilities: [[gpu]]".into(),
        };
        let error = explain("gpu1", "start hworker", &said).to_string();
        assert!(error.starts_with("gpu1: cannot start hworker: could not select device driver"), "{error}");
        assert!(error.contains("nvidia-container-toolkit"), "{error}");
    }
}
