//! Builds the image of a project on one node: its Dockerfile, if it has one, and then its setup.

use super::setup::{Setup, cleaning};
use crate::cluster::observation::ObservedNode;
use crate::error::{ErrorKind, NodeError};
use crate::event::{Events, Message, Step};
use crate::inventory::Cluster;
use crate::node::network;
use crate::runtime::spec::{ContainerSpec, Role};
use crate::runtime::{ContainerEngine, DockerfileBuild};
use crate::secret::Secret;
use crate::text::failure::needs_buildkit;
use crate::text::nodeset::printable;
use std::collections::{BTreeMap, VecDeque};
use std::io;
use std::time::Duration;
use tokio::sync::mpsc::Receiver;
use tokio::time::timeout;

/// The next step where one did not end in time.
const MORE_TIME: &str = "hvdctl image build --timeout allows more time";

/// The next step where an image of hvdctl's own cannot be made.
const OF_NODE: &str = "this node installs packages of the cluster's image in it: give it a way to the distribution's mirror \
                       (a proxy: env_file), or name a cluster's image that has the programs";

/// The number of characters of an instruction that are shown.
const INSTRUCTION: usize = 80;

/// The number of the last lines of a failed step that are shown.
const LINES: usize = 20;

/// The variables that every Dockerfile gets as arguments, which leave no trace in the image.
const PROXY: [&str; 5] = ["http_proxy", "https_proxy", "ftp_proxy", "no_proxy", "all_proxy"];

/// The Dockerfile of a project.
pub struct ProjectDockerfile<'a> {
    /// Its path in the project.
    pub name: &'a str,
    /// The files that it may read, as a tar archive.
    pub context: &'a (dyn Fn() -> Receiver<io::Result<Vec<u8>>> + Sync),
    /// If set, its image stays as it is, without any step.
    pub is_whole: bool,
}

/// The build of an image.
pub struct Build<'a> {
    /// The cluster.
    pub cluster: &'a Cluster,
    /// The image that is the base if there is no Dockerfile.
    pub base: &'a str,
    /// The Dockerfile that is built first.
    pub dockerfile: Option<ProjectDockerfile<'a>>,
    /// The steps that add to that image.
    pub setup: &'a Setup,
    /// The name of the result.
    pub image: &'a str,
    /// The environment of the steps.
    pub env: BTreeMap<String, Secret>,
    /// The longest time that a step may take.
    pub limit: Duration,
    /// If set, the output of the steps is shown.
    pub shows_output: bool,
}

impl Build<'_> {
    /// Builds the image on a node that is locked. Whatever happens, no container is left, unless the future is dropped.
    ///
    /// # Errors
    /// The step that failed, with its exit code and last lines, or the engine's message.
    pub async fn run(&self, observed: &ObservedNode, events: &Events) -> Result<(), NodeError> {
        let engine = observed.runtime.engine.engine("build an image")?;
        remove_containers(engine, self.cluster).await?;
        let base = match &self.dockerfile {
            Some(dockerfile) => self.run_dockerfile(dockerfile, observed, events).await?,
            None => self.base.to_owned(),
        };
        if self.dockerfile.as_ref().is_some_and(|dockerfile| dockerfile.is_whole) {
            let (repository, tag) = self.image.rsplit_once(':').unwrap_or((self.image, "latest"));
            return engine.tag(&base, repository, tag).await;
        }
        let start = engine.image_start(&base).await?;
        let node = &observed.member.node;
        let gpus = network::gpu_request(node, &observed.facts);
        let mut container = ContainerSpec::new(self.cluster, node, Role::Setup, self.container());
        (container.spec.image, container.spec.gpus) = (base, gpus);
        // longer than any setup
        container.spec.command = ["sleep", "2147483"].map(str::to_owned).to_vec();
        engine.create_and_start(&container).await?;
        let built = async {
            self.run_steps(&container, observed, events).await?;
            let limit = self.cluster.command_timeout;
            let script = cleaning();
            engine.run_in(&container.name, &["sh", "-s"], script.as_bytes(), "finish the setup", limit).await?;
            let _step = events.begin(&node.name, Step::write(format!("storing {}", self.image)));
            engine.commit(&container, self.image, &start).await
        };
        let built = built.await;
        let removed = engine.remove(&container.name).await;
        built?;
        removed
    }

    /// Returns the name of its container.
    pub fn container(&self) -> String {
        let tag = self.image.rsplit(':').next().unwrap_or_default();
        format!("hvdctl-setup-{}-{tag}", self.cluster.name)
    }

    /// Builds the Dockerfile and returns the id of the image, which has no name yet.
    async fn run_dockerfile(
        &self,
        dockerfile: &ProjectDockerfile<'_>,
        observed: &ObservedNode,
        events: &Events,
    ) -> Result<String, NodeError> {
        let is_proxy = |name: &str| PROXY.contains(&name.to_ascii_lowercase().as_str());
        let proxies = self.env.iter().filter(|(name, _)| is_proxy(name));
        let build = DockerfileBuild {
            dockerfile: dockerfile.name,
            context: (dockerfile.context)(),
            arguments: proxies.map(|(name, value)| (name.clone(), value.expose().to_owned())).collect(),
            limit: self.limit,
        };
        let begin = |shown: &str| events.begin(observed.name(), Step::write(format!("{}, {shown}", dockerfile.name)));
        let (mut what, mut last) = ("sending the context".to_owned(), LastLines::default());
        let mut step = begin(&what);
        let take = |line: &str| {
            if line.starts_with("# Executing") && line.contains("build trigger") {
                events.warn(Message::of(
                    observed.name(),
                    "the base image has ONBUILD instructions, which get only the files that the Dockerfile itself \
                     copies",
                ));
            }
            last.take(line, self.shows_output.then_some(events));
            let Some(begun) = instruction(line) else { return false };
            (what, last) = (begun, LastLines::default());
            step = begin(&what);
            true
        };
        let built = observed.runtime.engine.engine("build an image")?.build(build, take).await;
        drop(step);
        built.map_err(|error| {
            let cause = match error.kind {
                ErrorKind::TimedOut => self.late(&format!("{}, {what}", dockerfile.name)),
                _ => format!("{}, {what}: {}", dockerfile.name, error.message),
            };
            let failed = self.failed(observed, last.below(&cause)).kind(error.kind);
            let hint = match error.kind {
                ErrorKind::TimedOut => MORE_TIME,
                _ if needs_buildkit(&error.message) => {
                    "the engine's own builder runs the Dockerfile, and does not support --mount and here-documents: \
                     write it without them"
                }
                _ if dockerfile.is_whole => OF_NODE,
                _ => "correct the Dockerfile; hvdctl image build PROJECT runs only the build",
            };
            error.hints.into_iter().fold(failed, NodeError::hint).hint(hint)
        })
    }

    fn late(&self, what: &str) -> String {
        format!("{what} did not end within {}", humantime::format_duration(self.limit))
    }

    async fn run_steps(
        &self,
        container: &ContainerSpec,
        observed: &ObservedNode,
        events: &Events,
    ) -> Result<(), NodeError> {
        let engine = observed.runtime.engine.engine("build an image")?;
        let archive = self.setup.archive().map_err(|error| self.failed(observed, error))?;
        engine.extract(&container.name, archive).await?;
        let steps = self.setup.steps();
        for (number, step) in (1..).zip(&steps) {
            let shown = format!("setup, step {number} of {}: {}", steps.len(), printable(step.name));
            let _step = events.begin(observed.name(), Step::write(shown));
            let mut last = LastLines::default();
            let take = |line: &str| last.take(line, self.shows_output.then_some(events));
            let process = engine.exec(&container.name, &["sh", "-s"], "run the setup").await?;
            let script = step.script(&self.env);
            let ended = timeout(self.limit, process.lines(script.as_bytes(), take)).await;
            let what = format!("step {number} of {} ({})", steps.len(), printable(step.name));
            let cause = match ended {
                Ok(Ok(output)) if output.code == 0 => continue,
                Ok(Ok(output)) => {
                    let complaint = output.complaint();
                    complaint.lines().for_each(|line| last.take(line, None));
                    format!("{what} exited with code {}", output.code)
                }
                Ok(Err(error)) => format!("{what}: {error}"),
                Err(_) => {
                    let failed = self.failed(observed, last.below(&self.late(&what))).kind(ErrorKind::TimedOut);
                    return Err(failed.hint(MORE_TIME));
                }
            };
            let failed = self.failed(observed, last.below(&cause));
            return Err(failed.hint("correct `setup` in hvdctl.toml; hvdctl image build PROJECT runs only the build"));
        }
        Ok(())
    }

    fn failed(&self, observed: &ObservedNode, cause: impl std::fmt::Display) -> NodeError {
        NodeError::failed(observed.name(), &format!("build the image {}", self.image), cause)
    }
}

/// The last lines of a step, the newest first.
#[derive(Default)]
struct LastLines(VecDeque<String>);

impl LastLines {
    /// Takes a line, and shows it if it is wanted.
    fn take(&mut self, line: &str, shown: Option<&Events>) {
        let line = printable(line);
        if let Some(events) = shown {
            events.note(&line);
        }
        self.0.truncate(LINES - 1);
        self.0.push_front(line);
    }

    /// Appends them to a cause.
    fn below(&self, cause: &str) -> String {
        self.0.iter().rev().fold(cause.to_owned(), |text, line| format!("{text}\n    {line}"))
    }
}

/// Returns the instruction that a line of the engine's builder begins, with its number: `Step 2/5 : RUN x` (Docker),
/// `STEP 2/5: RUN x` (Podman).
fn instruction(line: &str) -> Option<String> {
    let rest = line.strip_prefix("Step ").or_else(|| line.strip_prefix("STEP "))?;
    let (numbers, instruction) = rest.split_once(':')?;
    let (number, of) = numbers.trim().split_once('/')?;
    let are_numbers = [number, of].iter().all(|number| number.parse::<u32>().is_ok());
    let mut shown: String = instruction.trim().chars().take(INSTRUCTION).collect();
    if shown.len() < instruction.trim().len() {
        shown.push('…');
    }
    are_numbers.then(|| format!("step {number} of {of} ({})", printable(&shown)))
}

/// Removes the containers of builds that were killed.
///
/// # Errors
/// [`NodeError`] with the engine's message.
pub async fn remove_containers(engine: &ContainerEngine, cluster: &Cluster) -> Result<(), NodeError> {
    for container in engine.containers().await? {
        if container.is(Role::Setup) && container.belongs_to(&cluster.name) {
            engine.remove(&container.id).await?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn instructions_are_counted_by_the_engine() {
        for line in ["Step 2/5 : RUN pip install x : y", "STEP 2/5: RUN pip install x : y"] {
            assert_eq!(instruction(line).unwrap(), "step 2 of 5 (RUN pip install x : y)");
        }
        let long = instruction(&format!("Step 1/1 : RUN {}", "é".repeat(100))).unwrap();
        assert_eq!(long.chars().count(), "step 1 of 1 ()".len() + INSTRUCTION + 1, "{long}");
        for line in ["Step by step: x", "Step 1 : FROM a", " ---> 1f0c2a7d33e9", "Successfully built 1f0c2a7d33e9"] {
            assert_eq!(instruction(line), None, "{line}");
        }
    }
}
