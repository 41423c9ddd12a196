//! Containers: list, create, start, stop, remove.

use super::Runtime;
use super::errors::explain;
use super::request::create_request;
use crate::error::NodeError;
use crate::runtime::container::{ContainerState, ContainerSummary};
use crate::runtime::spec::{ContainerSpec, LABEL_PROCESS};
use crate::transport::privileges;
use bollard::errors::Error as DockerError;
use bollard::models::{ContainerSummary as Listed, ContainerSummaryStateEnum as ListedState};
use bollard::query_parameters as query;
use futures_util::StreamExt;
use std::time::Duration;

impl Runtime {
    /// Returns all containers of the node, running or not, except those in which hvdctl works as root.
    ///
    /// # Errors
    /// [`NodeError`] with the engine's message.
    pub async fn containers(&self) -> Result<Vec<ContainerSummary>, NodeError> {
        Ok(self.all_containers().await?.into_iter().filter(|c| !c.is_helper()).collect())
    }

    /// Removes containers in which an hvdctl that was killed had worked as root. Those of this process stay: one of them holds the
    /// node's lease.
    ///
    /// # Errors
    /// [`NodeError`] with the engine's message.
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
        Ok(listed.into_iter().map(summary).collect())
    }

    /// Creates a container and returns its id.
    ///
    /// # Errors
    /// [`NodeError`] with the engine's message.
    pub async fn create(&self, spec: &ContainerSpec) -> Result<String, NodeError> {
        let options = query::CreateContainerOptionsBuilder::new().name(&spec.name).build();
        let created = self.docker.create_container(Some(options), create_request(spec));
        Ok(self.within(&format!("start {}", spec.name), created).await?.id)
    }

    /// Creates and starts a container and returns its id. One that cannot start is removed again.
    ///
    /// # Errors
    /// [`NodeError`] with the engine's message.
    pub async fn create_and_start(&self, spec: &ContainerSpec) -> Result<String, NodeError> {
        let id = self.create(spec).await?;
        let started = self.docker.start_container(&id, None::<query::StartContainerOptions>);
        let started = self.within(&format!("start {}", spec.name), started).await;
        if started.is_err() {
            // Docker leaves a container behind whose start failed (without NVIDIA's toolkit, for example)
            let _ = self.remove(&id).await;
        }
        started.map(|()| id)
    }

    /// Starts a container that exists.
    ///
    /// # Errors
    /// [`NodeError`] with the engine's message.
    pub async fn start(&self, name: &str) -> Result<(), NodeError> {
        let start = self.docker.start_container(name, None::<query::StartContainerOptions>);
        self.within(&format!("start {name}"), start).await
    }

    /// Unpauses a container.
    ///
    /// # Errors
    /// [`NodeError`] with the engine's message.
    pub async fn unpause(&self, name: &str) -> Result<(), NodeError> {
        self.within(&format!("unpause {name}"), self.docker.unpause_container(name)).await
    }

    /// Kills and removes a container; a missing one is no error. Its name is free afterwards, also if another removal of it was
    /// in progress.
    ///
    /// # Errors
    /// [`NodeError`] with the engine's message.
    pub async fn remove(&self, id: &str) -> Result<(), NodeError> {
        let options = query::RemoveContainerOptionsBuilder::new().force(true).v(true).build();
        let removed = async {
            let mut pause = Duration::from_millis(10);
            loop {
                match self.docker.remove_container(id, Some(options.clone())).await {
                    // another removal is in progress
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

    /// Returns whether a container runs, or `None` if there is none of that name.
    ///
    /// # Errors
    /// [`NodeError`] with the engine's message.
    pub async fn running(&self, name: &str) -> Result<Option<bool>, NodeError> {
        let inspected = async {
            match self.docker.inspect_container(name, None::<query::InspectContainerOptions>).await {
                Ok(inspected) => Ok(inspected.state.and_then(|s| s.running)),
                Err(DockerError::DockerResponseServerError { status_code: 404, .. }) => Ok(None),
                Err(e) => Err(e),
            }
        };
        self.within(&format!("look at {name}"), inspected).await
    }

    /// Returns the last lines of a container's log.
    ///
    /// # Errors
    /// [`NodeError`] with the engine's message.
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

    /// Sends SIGTERM to a container's main process; a missing or stopped container is no error.
    ///
    /// # Errors
    /// [`NodeError`] with the engine's message.
    pub async fn terminate(&self, id: &str) -> Result<(), NodeError> {
        let options = query::KillContainerOptionsBuilder::new().signal("SIGTERM").build();
        let asked = async {
            match self.docker.kill_container(id, Some(options)).await {
                // 409: it is not running
                Err(DockerError::DockerResponseServerError { status_code: 404 | 409, .. }) | Ok(()) => Ok(()),
                Err(e) => Err(e),
            }
        };
        self.within("stop the job", asked).await
    }

    /// Waits without a time-out until a container has exited. Returns its exit code, or `None` if it was removed before.
    ///
    /// # Errors
    /// [`NodeError`] when the connection to the engine is lost.
    pub async fn wait(&self, id: &str) -> Result<Option<i64>, NodeError> {
        let tried = "wait for the end of the job";
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

fn summary(listed: Listed) -> ContainerSummary {
    let name = listed.names.unwrap_or_default().into_iter().next().unwrap_or_default();
    ContainerSummary {
        name: name.trim_start_matches('/').to_owned(),
        id: listed.id.unwrap_or_default(),
        image_id: listed.image_id.unwrap_or_default(),
        state: state(listed.state),
        labels: listed.labels.unwrap_or_default().into_iter().collect(),
        created: listed.created,
    }
}

/// Translates a state; a container without one counts as exited.
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
