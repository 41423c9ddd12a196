//! Containers: list, create, start, stop, remove.

use super::podman::{CREATE, CreatedContainer, podman_request};
use super::request::create_request;
use super::{ContainerEngine, message, none_for};
use crate::error::NodeError;
use crate::model::engine::EngineName;
use crate::runtime::container::{ContainerState, ContainerSummary};
use crate::runtime::spec::{ContainerSpec, LABEL_PROCESS, Role};
use crate::text::failure;
use crate::text::nodeset::printable;
use crate::transport::privileges;
use bollard::container::LogOutput;
use bollard::errors::Error as DockerError;
use bollard::query_parameters as query;
use futures_util::{StreamExt, TryStreamExt};
use hyper::Method;
use serde::Deserialize;
use std::collections::BTreeMap;
use std::time::Duration;
use tokio::io::{AsyncWrite, AsyncWriteExt};

/// About the most bytes that are read of a container's last lines.
const LONGEST_LOG: usize = 64 << 10;

impl ContainerEngine {
    /// Returns all containers of the node, running or not, except those in which hvdctl works as root.
    ///
    /// # Errors
    /// [`NodeError`] with the engine's message.
    pub async fn containers(&self) -> Result<Vec<ContainerSummary>, NodeError> {
        Ok(self.all_containers().await?.into_iter().filter(|c| !c.is(Role::Helper)).collect())
    }

    /// Removes helper containers of killed hvdctl processes. Those of this process are kept, because one of them holds
    /// the node's lease.
    ///
    /// # Errors
    /// [`NodeError`] with the engine's message.
    pub async fn remove_helpers(&self, cluster: &str) -> Result<(), NodeError> {
        let is_orphaned = |c: &&ContainerSummary| {
            c.is(Role::Helper) && c.belongs_to(cluster) && c.label(LABEL_PROCESS) != Some(privileges::process())
        };
        for helper in self.all_containers().await?.iter().filter(is_orphaned) {
            self.remove(&helper.id).await?;
        }
        Ok(())
    }

    async fn all_containers(&self) -> Result<Vec<ContainerSummary>, NodeError> {
        // not bollard's call, which fails for a state that it does not know
        let list = async {
            let answer = self.connections.send(Method::GET, "/containers/json?all=true".into(), String::new()).await?;
            let listed: Vec<ListedContainer> = serde_json::from_slice(&answer).map_err(std::io::Error::from)?;
            Ok(listed)
        };
        let listed = self.call("list the containers", list).await?;
        Ok(listed.into_iter().map(summary).collect())
    }

    /// Creates a container and returns its id.
    ///
    /// # Errors
    /// [`NodeError`] with the engine's message.
    pub async fn create(&self, spec: &ContainerSpec) -> Result<String, NodeError> {
        if self.name == EngineName::Podman {
            return self.create_with_podman(spec).await;
        }
        let options = query::CreateContainerOptionsBuilder::new().name(&spec.name).build();
        let created = self.docker.create_container(Some(options), create_request(spec));
        Ok(self.call(&format!("start {}", spec.name), created).await?.id)
    }

    /// Returns how another program creates a container over the engine's socket: the path of the request, and its body.
    pub fn creation(&self, spec: &ContainerSpec) -> (String, serde_json::Value) {
        match self.name {
            EngineName::Docker => {
                (format!("/containers/create?name={}", spec.name), serde_json::json!(create_request(spec)))
            }
            EngineName::Podman => (CREATE.to_owned(), podman_request(spec)),
        }
    }

    async fn create_with_podman(&self, spec: &ContainerSpec) -> Result<String, NodeError> {
        let request = podman_request(spec).to_string();
        let created = async {
            let answer = self.connections.send(Method::POST, CREATE.to_owned(), request).await?;
            let created: CreatedContainer = serde_json::from_slice(&answer).map_err(std::io::Error::from)?;
            Ok(created.id)
        };
        self.call(&format!("start {}", spec.name), created).await
    }

    /// Creates and starts a container and returns its id. One that cannot start is removed again.
    ///
    /// # Errors
    /// [`NodeError`] with the engine's message.
    pub async fn create_and_start(&self, spec: &ContainerSpec) -> Result<String, NodeError> {
        let id = self.create(spec).await?;
        let started = self.start(&spec.name).await;
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
        let started = self.docker.start_container(name, None::<query::StartContainerOptions>);
        self.call(&format!("start {name}"), started).await
    }

    /// Unpauses a container.
    ///
    /// # Errors
    /// [`NodeError`] with the engine's message.
    pub async fn unpause(&self, name: &str) -> Result<(), NodeError> {
        self.call(&format!("unpause {name}"), self.docker.unpause_container(name)).await
    }

    /// Kills and removes a container; a missing one is no error. Its name is free afterwards, also if another removal
    /// of it was in progress.
    ///
    /// # Errors
    /// [`NodeError`] with the engine's message.
    pub async fn remove(&self, id: &str) -> Result<(), NodeError> {
        let options = query::RemoveContainerOptionsBuilder::new().force(true).v(true).build();
        let removed = async {
            // 409: another removal is in progress
            let remove = || none_for(&[409], none_for(&[404], self.docker.remove_container(id, Some(options.clone()))));
            while remove().await?.is_none() {
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
            Ok(())
        };
        self.call(&format!("remove {id}"), removed).await
    }

    /// Returns whether a container is running; a missing one is not.
    ///
    /// # Errors
    /// [`NodeError`] with the engine's message.
    pub async fn is_running(&self, name: &str) -> Result<bool, NodeError> {
        let inspected = self.docker.inspect_container(name, None::<query::InspectContainerOptions>);
        let container = self.call(&format!("inspect {name}"), none_for(&[404], inspected)).await?;
        Ok(container.and_then(|container| container.state?.running).unwrap_or_default())
    }

    /// Returns the last lines of a container's log.
    ///
    /// # Errors
    /// [`NodeError`] with the engine's message.
    pub async fn last_lines(&self, name: &str, lines: u32) -> Result<String, NodeError> {
        let options = query::LogsOptionsBuilder::new().stdout(true).stderr(true).tail(&lines.to_string()).build();
        let mut pieces = std::pin::pin!(self.docker.logs(name, Some(options)).map_ok(LogOutput::into_bytes));
        let read = async {
            let mut log = Vec::new();
            // a line may have no end
            while log.len() < LONGEST_LOG
                && let Some(piece) = pieces.try_next().await?
            {
                log.extend_from_slice(&piece);
            }
            Ok(log)
        };
        let log = self.call(&format!("read the log of {name}"), read).await?;
        Ok(String::from_utf8_lossy(&log).into_owned())
    }

    /// Sends SIGTERM to a container's main process; a missing or stopped container is no error.
    ///
    /// # Errors
    /// [`NodeError`] with the engine's message.
    pub async fn terminate(&self, id: &str) -> Result<(), NodeError> {
        let options = query::KillContainerOptionsBuilder::new().signal("SIGTERM").build();
        // 409: it is not running; Podman before 5 answers 500 then
        let killed = async {
            match none_for(&[404, 409], self.docker.kill_container(id, Some(options))).await {
                Err(error) if failure::is_not_running(&message(&error)) => Ok(None),
                result => result,
            }
        };
        self.call("stop the job", killed).await.map(drop)
    }

    /// Kills a container's processes, and waits for their end; a missing or stopped container is no error.
    ///
    /// # Errors
    /// [`NodeError`] with the engine's message.
    pub async fn kill(&self, id: &str) -> Result<(), NodeError> {
        let options = query::StopContainerOptionsBuilder::new().t(0).build();
        // 304: it is not running
        let killed = none_for(&[304, 404], self.docker.stop_container(id, Some(options)));
        self.call(&format!("stop {id}"), killed).await.map(drop)
    }

    /// Writes a file of a container, running or not, to a sink as a tar archive, as `docker cp` does. A sink that is
    /// closed has enough of it.
    ///
    /// # Errors
    /// [`NodeError`] with the engine's message.
    pub async fn copy_out(&self, id: &str, path: &str, sink: &mut (impl AsyncWrite + Unpin)) -> Result<(), NodeError> {
        let operation = format!("copy {} out of the container", printable(path));
        let options = query::DownloadFromContainerOptionsBuilder::new().path(path).build();
        let mut parts = std::pin::pin!(self.docker.download_from_container(id, Some(options)));
        while let Some(part) = self.transport.in_time(parts.next(), &operation, self.transport.limit()).await? {
            let part = part.map_err(|error| self.explain(&operation, &error))?;
            if sink.write_all(&part).await.is_err() {
                break;
            }
        }
        Ok(())
    }

    /// Waits without a time-out until a container has exited. Returns its exit code, or `None` if it was removed
    /// before.
    ///
    /// # Errors
    /// [`NodeError`] when the connection to the engine is lost.
    pub async fn wait(&self, id: &str) -> Result<Option<i64>, NodeError> {
        let operation = "wait for the end of the job";
        let mut stream = std::pin::pin!(self.docker.wait_container(id, None::<query::WaitContainerOptions>));
        match stream.next().await {
            Some(Ok(answer)) => Ok(Some(answer.status_code)),
            Some(Err(DockerError::DockerContainerWaitError { code, .. })) => Ok(Some(code)),
            Some(Err(DockerError::DockerResponseServerError { status_code: 404, .. })) => Ok(None),
            Some(Err(e)) => Err(self.explain(operation, &e)),
            None => Err(NodeError::failed(self.transport.node(), operation, "the engine closed the connection")),
        }
    }
}

/// A container in an engine's list.
#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
struct ListedContainer {
    id: String,
    names: Option<Vec<String>>,
    image: String,
    #[serde(rename = "ImageID")]
    image_id: String,
    state: String,
    labels: Option<BTreeMap<String, String>>,
    created: Option<i64>,
}

fn summary(listed: ListedContainer) -> ContainerSummary {
    let name = listed.names.unwrap_or_default().into_iter().next().unwrap_or_default();
    ContainerSummary {
        name: name.trim_start_matches('/').to_owned(),
        id: listed.id,
        image: listed.image,
        image_id: listed.image_id,
        state: ContainerState::parse(&listed.state),
        labels: listed.labels.unwrap_or_default(),
        created: listed.created,
        queue: None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::runtime::spec::{LABEL_FORMAT, LABEL_SPEC, LABEL_SPEC_FULL};

    #[test]
    fn containers_with_labels_of_the_first_form_are_read() {
        let listed: Vec<ListedContainer> =
            serde_json::from_str(include_str!("../../../tests/compat/containers.json")).unwrap();
        let [mut master, worker] = <[_; 2]>::try_from(listed).unwrap().map(summary);
        let known = |c: &ContainerSummary| {
            (c.name.clone(), c.state, c.belongs_to("lab"), c.job().map(str::to_owned), c.check_format())
        };
        let job = Some("20261125-203344-5ae9".to_owned());
        assert_eq!(known(&master), ("hmaster".into(), ContainerState::Running, true, job, Ok(())));
        assert_eq!(known(&worker), ("hworker".into(), ContainerState::Running, true, None, Ok(())));
        assert!(master.is(Role::Master) && worker.is(Role::Worker));
        assert_eq!(worker.label(LABEL_SPEC), Some("8ae042a30b5a"));
        let spec: serde_json::Value = serde_json::from_str(worker.label(LABEL_SPEC_FULL).unwrap()).unwrap();
        assert_eq!((&spec["port"], &spec["gpus"]), (&12345.into(), &true.into()));
        for (state, known) in [
            ("exited", ContainerState::Exited),
            ("stopped", ContainerState::Exited),
            ("initialized", ContainerState::Created),
            ("stopping", ContainerState::Stopping),
            ("unknown", ContainerState::Unknown),
            ("hibernating", ContainerState::Unknown),
            ("", ContainerState::Unknown),
        ] {
            let found = summary(ListedContainer { state: state.into(), ..ListedContainer::default() }).state;
            assert_eq!(found, known, "{state}");
            // what is not known may have processes, and is no worker that can be used
            assert_eq!(found.is_up(), [ContainerState::Stopping, ContainerState::Unknown].contains(&known), "{state}");
            assert_eq!(found.defect().is_none(), known == ContainerState::Exited, "{state}");
        }
        for (number, is_known) in [("0", true), ("1", true), ("2", false), ("x", false), ("", false)] {
            master.labels.insert(LABEL_FORMAT.into(), number.into());
            assert_eq!(master.check_format().is_ok(), is_known, "{number}");
        }
    }
}
