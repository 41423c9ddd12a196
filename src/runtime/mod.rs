//! The runtime: what starts, inspects, enters and ends the worker and the launcher of a node, in which ranks live.
//!
//! [`Runtime`] is one node's runtime, [`spec::ContainerSpec`] what is desired and [`container::ContainerSummary`] what
//! is observed; hvdctl keeps no state but their labels (in [`spec`]). It is the node's container engine, Docker or
//! Podman (`docker/`, the only user of bollard), or the login, whose processes take the place of containers
//! (`process.rs`), also where Slurm starts
//! these (`batch.rs`). `transport` knows only how the engine, and root through it, are reached on a node.

pub mod batch;
pub mod container;
pub mod credentials;
mod docker;
pub mod environment;
mod process;
pub mod progress;
pub mod spec;
mod terminal;

pub use docker::{
    ContainerEngine, DockerfileBuild, EXPORT_SILENCE, EngineInfo, Image, ListedImage, RootArchive, image_content,
};

use crate::error::{Error, NodeError};
use crate::model::engine::{EngineName, RuntimeChoice};
use crate::model::queue::QueueEnd;
use crate::transport::node::{Output, Process, Transport};
use batch::BatchJobs;
use container::ContainerSummary;
use process::LoginProcesses;
pub use process::has_activate_failed;
use spec::ContainerSpec;
use std::sync::Arc;
use std::time::Duration;
use tokio::io::AsyncWrite;

/// The runtime of workers and launchers on one node. Clones share its connections.
#[derive(Clone)]
pub enum Runtime {
    /// Containers of an engine.
    Engine(ContainerEngine),
    /// Processes of the login.
    Process(LoginProcesses),
    /// Processes of the login that Slurm starts.
    Batch(BatchJobs),
}

/// A runtime with workers, which programs can enter.
enum Entered<'a> {
    Engine(&'a ContainerEngine),
    Process(&'a LoginProcesses),
}

impl From<ContainerEngine> for Runtime {
    fn from(engine: ContainerEngine) -> Runtime {
        Runtime::Engine(engine)
    }
}

impl Runtime {
    /// Connects to a node's runtime.
    ///
    /// # Errors
    /// [`NodeError`] with the message of `docker`, sudo or the engine.
    pub async fn connect(transport: &Arc<Transport>) -> Result<Runtime, NodeError> {
        let processes = || LoginProcesses::new(transport, transport.run_dir().unwrap_or_default());
        match transport.runtime() {
            RuntimeChoice::Container => ContainerEngine::connect(transport).await.map(Runtime::Engine),
            RuntimeChoice::Process => Ok(Runtime::Process(processes())),
            RuntimeChoice::Slurm => Ok(Runtime::Batch(BatchJobs::new(processes()))),
        }
    }

    /// Returns the node's name.
    pub fn node(&self) -> &str {
        match self {
            Runtime::Engine(engine) => engine.node(),
            Runtime::Process(processes) => processes.node(),
            Runtime::Batch(jobs) => jobs.node(),
        }
    }

    /// Closes the connections that no request uses. A command that is done with a node leaves their files to the others.
    pub fn close_idle(&self) {
        if let Runtime::Engine(engine) = self {
            engine.close_idle();
        }
    }

    /// Returns the container engine, for what only that can do.
    ///
    /// # Errors
    /// [`NodeError`] if there is none.
    pub fn engine(&self, operation: &str) -> Result<&ContainerEngine, NodeError> {
        match self {
            Runtime::Engine(engine) => Ok(engine),
            Runtime::Process(processes) => Err(processes.without_engine(operation)),
            Runtime::Batch(jobs) => Err(jobs.processes().without_engine(operation)),
        }
    }

    /// Returns the batch jobs, for what only these can do.
    ///
    /// # Errors
    /// [`NodeError`] if there are none.
    pub fn batch(&self, operation: &str) -> Result<&BatchJobs, NodeError> {
        match self {
            Runtime::Batch(jobs) => Ok(jobs),
            Runtime::Engine(_) | Runtime::Process(_) => {
                Err(NodeError::failed(self.node(), operation, "there is no Slurm"))
            }
        }
    }

    /// Returns the runtime for what is done in a worker.
    ///
    /// # Errors
    /// [`NodeError`] if there are no workers.
    fn entered(&self, operation: &str) -> Result<Entered<'_>, NodeError> {
        match self {
            Runtime::Engine(engine) => Ok(Entered::Engine(engine)),
            Runtime::Process(processes) => Ok(Entered::Process(processes)),
            Runtime::Batch(jobs) => Err(jobs.without_worker(operation)),
        }
    }

    /// Returns how what schedules jobs has ended one, as far as it knows; `None` if nothing does. `container`: that of the
    /// launcher; `started`: how many ranks had started.
    pub async fn end_of(&self, container: &str, started: u32) -> Option<QueueEnd> {
        match self {
            Runtime::Batch(jobs) => jobs.end_of(container, started).await,
            Runtime::Engine(_) | Runtime::Process(_) => None,
        }
    }

    /// Returns the last output of a launcher's container whose ranks did not start, where that may be the reason: a line
    /// of `activate` that fails, for example.
    pub async fn last_words(&self, container: &str) -> Option<String> {
        match self {
            Runtime::Batch(_) | Runtime::Process(_) => {
                let text = self.last_lines(container, 5).await.ok()?;
                Some(text.trim().to_owned()).filter(|text| !text.is_empty())
            }
            Runtime::Engine(_) => None,
        }
    }

    /// Returns true if programs see all GPUs of the node, whatever they were given.
    pub fn shows_all_gpus(&self) -> bool {
        matches!(self, Runtime::Process(_))
    }

    /// Returns which engine it is and its version; `None` for processes.
    pub fn version(&self) -> Option<(EngineName, &str)> {
        match self {
            Runtime::Engine(engine) => Some((engine.name, &engine.version)),
            Runtime::Process(_) | Runtime::Batch(_) => None,
        }
    }

    /// Returns the image that containers are to be made of if the node has it. Processes need none: that of what is
    /// installed has an empty id.
    ///
    /// # Errors
    /// [`NodeError`] for anything but its absence.
    pub async fn image(&self, image: &str) -> Result<Option<Image>, NodeError> {
        match self {
            Runtime::Engine(engine) => engine.image(image).await,
            Runtime::Process(_) | Runtime::Batch(_) => Ok(Some(Image::default())),
        }
    }

    /// Returns the images that have a name, or had one.
    ///
    /// # Errors
    /// [`NodeError`] with the engine's message.
    pub async fn images(&self) -> Result<Vec<ListedImage>, NodeError> {
        match self {
            Runtime::Engine(engine) => engine.images().await,
            Runtime::Process(_) | Runtime::Batch(_) => Ok(Vec::new()),
        }
    }

    /// Removes a name of an image, and the image with its last name. Does nothing if there is no such name.
    ///
    /// # Errors
    /// [`NodeError`] with the engine's message.
    pub async fn remove_name(&self, name: &str) -> Result<(), NodeError> {
        self.engine(&format!("remove the image {name}"))?.remove_name(name).await
    }

    /// Returns all workers, launchers and other containers, running or not, but those in which hvdctl is root.
    ///
    /// # Errors
    /// [`NodeError`] with the node's message.
    pub async fn containers(&self) -> Result<Vec<ContainerSummary>, NodeError> {
        match self {
            Runtime::Engine(engine) => engine.containers().await,
            Runtime::Process(processes) => processes.list().await,
            Runtime::Batch(jobs) => jobs.list().await,
        }
    }

    /// Removes helper containers of killed hvdctl processes.
    ///
    /// # Errors
    /// [`NodeError`] with the engine's message.
    pub async fn remove_helpers(&self, cluster: &str) -> Result<(), NodeError> {
        match self {
            Runtime::Engine(engine) => engine.remove_helpers(cluster).await,
            Runtime::Process(_) | Runtime::Batch(_) => Ok(()),
        }
    }

    /// Checks what would keep ranks from running, before anything is changed, as far as the runtime does not check it
    /// itself.
    ///
    /// # Errors
    /// [`NodeError`] with the node's message.
    pub async fn check(&self, spec: &ContainerSpec) -> Result<(), NodeError> {
        match self {
            Runtime::Engine(_) | Runtime::Batch(_) => Ok(()),
            Runtime::Process(processes) => processes.check(spec).await,
        }
    }

    /// Creates a container and returns its id.
    ///
    /// # Errors
    /// [`NodeError`] with the node's message.
    pub async fn create(&self, spec: &ContainerSpec) -> Result<String, NodeError> {
        match self {
            Runtime::Engine(engine) => engine.create(spec).await,
            Runtime::Process(processes) => processes.create(spec).await,
            Runtime::Batch(jobs) => jobs.processes().create(spec).await,
        }
    }

    /// Creates and starts a container and returns its id. One that cannot start is removed again.
    ///
    /// # Errors
    /// [`NodeError`] with the node's message.
    pub async fn create_and_start(&self, spec: &ContainerSpec) -> Result<String, NodeError> {
        match self.entered(&format!("start {}", spec.name))? {
            Entered::Engine(engine) => engine.create_and_start(spec).await,
            Entered::Process(processes) => processes.create_and_start(spec).await,
        }
    }

    /// Starts a container that exists.
    ///
    /// # Errors
    /// [`NodeError`] with the node's message.
    pub async fn start(&self, name: &str) -> Result<(), NodeError> {
        match self.entered(&format!("start {name}"))? {
            Entered::Engine(engine) => engine.start(name).await,
            Entered::Process(processes) => processes.start(name).await,
        }
    }

    /// Unpauses a container.
    ///
    /// # Errors
    /// [`NodeError`] with the engine's message.
    pub async fn unpause(&self, name: &str) -> Result<(), NodeError> {
        self.engine(&format!("unpause {name}"))?.unpause(name).await
    }

    /// Kills and removes a container; a missing one is no error. Its name is free afterwards, also if another removal
    /// of it was in progress.
    ///
    /// # Errors
    /// [`NodeError`] with the node's message.
    pub async fn remove(&self, id: &str) -> Result<(), NodeError> {
        match self {
            Runtime::Engine(engine) => engine.remove(id).await,
            Runtime::Process(processes) => processes.end(id, true).await,
            Runtime::Batch(jobs) => jobs.end(id, true).await,
        }
    }

    /// Returns whether a container is running; a missing one is not.
    ///
    /// # Errors
    /// [`NodeError`] with the node's message.
    pub async fn is_running(&self, name: &str) -> Result<bool, NodeError> {
        match self {
            Runtime::Engine(engine) => engine.is_running(name).await,
            Runtime::Process(processes) => processes.is_running(name).await,
            Runtime::Batch(jobs) => jobs.is_running(name).await,
        }
    }

    /// Returns the last lines that a container's main process has written.
    ///
    /// # Errors
    /// [`NodeError`] with the node's message.
    pub async fn last_lines(&self, name: &str, lines: u32) -> Result<String, NodeError> {
        match self {
            Runtime::Engine(engine) => engine.last_lines(name, lines).await,
            Runtime::Process(processes) => processes.last_lines(name, lines).await,
            Runtime::Batch(jobs) => jobs.processes().last_lines(name, lines).await,
        }
    }

    /// Sends SIGTERM to a container's main process; a missing or stopped container is no error.
    ///
    /// # Errors
    /// [`NodeError`] with the node's message.
    pub async fn terminate(&self, id: &str) -> Result<(), NodeError> {
        match self {
            Runtime::Engine(engine) => engine.terminate(id).await,
            Runtime::Process(processes) => processes.terminate(id).await,
            Runtime::Batch(jobs) => jobs.terminate(id).await,
        }
    }

    /// Kills a container's processes, and waits for their end; a missing or stopped container is no error.
    ///
    /// # Errors
    /// [`NodeError`] with the node's message.
    pub async fn kill(&self, id: &str) -> Result<(), NodeError> {
        match self {
            Runtime::Engine(engine) => engine.kill(id).await,
            Runtime::Process(processes) => processes.end(id, false).await,
            Runtime::Batch(jobs) => jobs.end(id, false).await,
        }
    }

    /// Writes a file of a container, running or not, to a sink as a tar archive, as `docker cp` does. A sink that is
    /// closed has enough of it.
    ///
    /// # Errors
    /// [`NodeError`] with the engine's message.
    pub async fn copy_out(&self, id: &str, path: &str, sink: &mut (impl AsyncWrite + Unpin)) -> Result<(), NodeError> {
        self.engine("copy a file out of the container")?.copy_out(id, path, sink).await
    }

    /// Waits without a time-out until a container has exited. Returns its exit code, or `None` if it was removed
    /// before, or if its runtime does not know the code.
    ///
    /// # Errors
    /// [`NodeError`] when the connection to the node is lost.
    pub async fn wait(&self, id: &str) -> Result<Option<i64>, NodeError> {
        match self {
            Runtime::Engine(engine) => engine.wait(id).await,
            Runtime::Process(processes) => processes.wait(id).await.map(|()| None),
            Runtime::Batch(jobs) => jobs.wait(id).await.map(|()| None),
        }
    }

    /// Starts a program in a running container, connected by pipes.
    ///
    /// # Errors
    /// [`NodeError`] when the session is gone.
    pub async fn exec(&self, container: &str, argv: &[&str], operation: &str) -> Result<Process, NodeError> {
        match self.entered(operation)? {
            Entered::Engine(engine) => engine.exec(container, argv, operation).await,
            Entered::Process(processes) => processes.exec(container, argv, operation).await,
        }
    }

    /// Runs a program in a running container to its end, with these bytes on its standard input.
    ///
    /// # Errors
    /// [`NodeError`] when the session is gone, or the program has not ended within the limit.
    pub async fn run_in(
        &self,
        container: &str,
        argv: &[&str],
        input: &[u8],
        operation: &str,
        limit: Duration,
    ) -> Result<Output, NodeError> {
        match self.entered(operation)? {
            Entered::Engine(engine) => engine.run_in(container, argv, input, operation, limit).await,
            Entered::Process(processes) => processes.run_in(container, argv, input, operation, limit).await,
        }
    }

    /// Starts a created container, connected to its main process by pipes.
    ///
    /// # Errors
    /// [`NodeError`] when the session is gone.
    pub async fn start_attached(&self, container: &str, operation: &str) -> Result<Process, NodeError> {
        match self.entered(operation)? {
            Entered::Engine(engine) => engine.start_attached(container, operation).await,
            Entered::Process(processes) => processes.start_attached(container, operation).await,
        }
    }

    /// Runs a program in a container on the operator's terminal, which is in raw mode meanwhile, and returns its exit
    /// code.
    ///
    /// # Errors
    /// When the program cannot be started, the connection is lost, or the terminal cannot be used.
    pub async fn exec_on_terminal(&self, container: &str, argv: &[&str], env: Vec<String>) -> Result<i64, Error> {
        match self.entered("open a shell")? {
            Entered::Engine(engine) => engine.exec_on_terminal(container, argv, env).await,
            Entered::Process(processes) => {
                terminal::run(self.node(), processes.exec_on_pty(container, argv, &env).await?).await
            }
        }
    }
}
