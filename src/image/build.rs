//! Builds the image of a project's setup on one node.

use super::setup::{Setup, cleaning};
use crate::cluster::nodes::ObservedNode;
use crate::error::{Kind, NodeError};
use crate::event::{Events, Step};
use crate::inventory::Cluster;
use crate::node::network;
use crate::runtime::Runtime;
use crate::runtime::spec::{ContainerSpec, Role};
use crate::secret::Secret;
use crate::text::nodeset::printable;
use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;
use tokio::time::timeout;

/// How many of the last lines of a step that failed are shown.
const LINES: usize = 20;

/// How an image is built.
pub struct Build<'a> {
    /// The cluster, whose image is the base.
    pub cluster: &'a Cluster,
    /// What is added.
    pub setup: &'a Setup,
    /// The name of the result.
    pub image: &'a str,
    /// The environment of the steps.
    pub env: BTreeMap<String, Secret>,
    /// The longest time that a step may take.
    pub limit: Duration,
    /// Whether the output of the steps is shown.
    pub shows_output: bool,
}

impl Build<'_> {
    /// Builds the image on a node that is locked. Whatever happens, no container is left, unless the future is dropped.
    ///
    /// # Errors
    /// The step that failed, with its exit code and last lines, or the engine's message.
    pub async fn run(&self, observed: &ObservedNode, events: &Events) -> Result<(), NodeError> {
        let engine = &observed.runtime.engine;
        remove_containers(engine, self.cluster).await?;
        let start = engine.image_start(&self.cluster.image).await?;
        let node = &observed.member.node;
        let gpus = network::gpu_request(node, &observed.facts);
        let container = ContainerSpec::setup(self.cluster, node, gpus, self.container());
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

    async fn run_steps(
        &self,
        container: &ContainerSpec,
        observed: &ObservedNode,
        events: &Events,
    ) -> Result<(), NodeError> {
        let engine = &observed.runtime.engine;
        let archive = self.setup.archive().map_err(|error| self.failed(observed, error))?;
        engine.extract(&container.name, archive).await?;
        let steps = self.setup.steps();
        for (number, step) in (1..).zip(&steps) {
            let shown = format!("setup, step {number} of {}: {}", steps.len(), printable(step.name));
            let _step = events.begin(observed.name(), Step::write(shown));
            let mut last: VecDeque<String> = VecDeque::new();
            let take = |line: &str| {
                let line = printable(line);
                if self.shows_output {
                    events.note(&line);
                }
                last.truncate(LINES - 1);
                last.push_front(line);
            };
            let process = engine.exec(&container.name, &["sh", "-s"], "run the setup").await?;
            let script = step.script(&self.env);
            let ended = timeout(self.limit, process.lines(script.as_bytes(), take)).await;
            let what = format!("step {number} of {} ({})", steps.len(), printable(step.name));
            let cause = match ended {
                Ok(Ok(output)) if output.code == 0 => continue,
                Ok(Ok(output)) => {
                    let complaint = output.complaint();
                    complaint.lines().for_each(|line| last.push_front(printable(line)));
                    format!("{what} exited with code {}", output.code)
                }
                Ok(Err(error)) => format!("{what}: {error}"),
                Err(_) => {
                    let late = format!("{what} did not end within {}", humantime::format_duration(self.limit));
                    let failed = self.failed(observed, with_lines(&late, &last)).kind(Kind::TimedOut);
                    return Err(failed.hint("--timeout of hvdctl image build gives it more time"));
                }
            };
            let failed = self.failed(observed, with_lines(&cause, &last));
            return Err(failed.hint("correct `setup` in hvdctl.toml; hvdctl image build PROJECT tries it alone"));
        }
        Ok(())
    }

    fn failed(&self, observed: &ObservedNode, cause: impl std::fmt::Display) -> NodeError {
        NodeError::failed(observed.name(), &format!("build the image {}", self.image), cause)
    }
}

/// Appends the last lines of a step, the newest of which comes first.
fn with_lines(cause: &str, last: &VecDeque<String>) -> String {
    last.iter().rev().fold(cause.to_owned(), |text, line| format!("{text}\n    {line}"))
}

/// Removes the containers of builds that were killed.
///
/// # Errors
/// [`NodeError`] with the engine's message.
pub async fn remove_containers(engine: &Runtime, cluster: &Cluster) -> Result<(), NodeError> {
    for container in engine.containers().await? {
        if container.is(Role::Setup) && container.belongs_to(&cluster.name) {
            engine.remove(&container.id).await?;
        }
    }
    Ok(())
}
