//! `doctor`: examines every node and every pair, applies the rules of `checks`, and applies the fixes that are safe.

mod ports;

use crate::checks::{self, Details, Finding, Fix, NodeView, Versions};
use crate::cluster::each_node::{NodeResults, for_each_node};
use crate::cluster::member::Member;
use crate::cluster::observation::{ObservedNode, RuntimeState, observe_parts};
use crate::cluster::session::Session;
use crate::cluster::shared::find_shared;
use crate::cluster::target::Target;
use crate::error::{Error, NodeError};
use crate::event::{Events, Phase, Step};
use crate::gpus::examination as health;
use crate::gpus::health::report::NodeHealth;
use crate::inventory::Inventory;
use crate::job::cleanup::end_ranks;
use crate::keys::push::KeyDistribution;
use crate::keys::reachability::Matrix;
use crate::launch;
use crate::model::engine::EngineName;
use crate::node::facts::Facts;
use crate::node::network;
use crate::paths::SESSION_SHELL;
use crate::record::{starting, unreadable};
use crate::runtime::container::running_worker;
use crate::runtime::{EngineInfo, Runtime};
use crate::transport::node::Script;
use crate::worker::ready::{self, GpuAnswer};
use crate::worker::{apply, logins};
use schemars::JsonSchema;
use serde::Serialize;

const DOCTOR: &str = concat!(include_str!("../scripts/node/nvidia_smi.sh"), include_str!("../scripts/node/doctor.sh"));
const INSIDE: &str = include_str!("../scripts/worker/inside.py");

/// The time that a worker may take to list its versions, as a multiple of another step's: importing a framework on a
/// busy node takes long. Then `inside.py` and what the launchers append to it say what they were reading, within the
/// time of another step.
const INSIDE_STEPS: u32 = 3;

/// The result of an examination.
pub struct Examination {
    /// All findings, errors first; what is the same on several nodes is one.
    pub findings: Vec<Finding>,
    /// The nodes that there is no session with.
    pub unreachable: Vec<NodeError>,
    /// The health of the GPUs of each node that has some.
    pub health: Vec<(String, NodeHealth)>,
    /// The nodes whose facts are known, for the fixes.
    nodes: Vec<NodeState>,
}

/// Something that `doctor --fix` fixed.
#[derive(Debug, Serialize, JsonSchema)]
pub struct Fixed {
    /// The node.
    pub node: String,
    /// The action that fixed it.
    pub what: String,
}

impl Examination {
    /// The nodes that answered.
    pub fn members(&self) -> Vec<Member> {
        self.nodes.iter().map(|node| node.member.clone()).collect()
    }
}

/// The observed part of a node's state.
struct NodeState {
    member: Member,
    facts: Facts,
    runtime: Option<RuntimeState>,
}

impl NodeState {
    fn name(&self) -> &str {
        &self.member.node.name
    }

    fn observed(&self) -> Option<ObservedNode> {
        let runtime = self.runtime.clone()?;
        Some(ObservedNode::new(self.member.clone(), self.facts.clone(), runtime))
    }

    /// The id of the cluster's worker and its runtime, where it runs.
    fn worker(&self, inventory: &Inventory) -> Option<(&Runtime, &str)> {
        let runtime = self.runtime.as_ref()?;
        let worker = running_worker(&inventory.cluster, &runtime.containers)?;
        Some((&runtime.engine, &worker.id))
    }
}

/// Examines everything. Nothing is changed. A node that cannot be reached or examined is a finding.
///
/// # Errors
/// When the operator's own machine is at fault.
pub async fn examine(target: &Target, nodes: NodeResults<Member>, events: &Events) -> Result<Examination, Error> {
    let (inventory, cluster) = (&target.inventory, target.cluster());
    events.phase(Phase::Observing);
    let NodeResults { ok: members, failed } = nodes;
    let mut findings: Vec<Finding> = failed.iter().map(failure).collect();
    let unreachable = failed.into_iter().filter(NodeError::is_unreachable).collect();

    let observed = for_each_node(members, async |member| {
        let (facts, runtime) = observe_parts(cluster, &member, events).await;
        (member, facts, runtime)
    });
    let mut nodes: Vec<NodeState> = Vec::new();
    for (member, facts, runtime) in observed.await {
        let (facts, runtime) = (known(facts, &mut findings), known(runtime, &mut findings));
        nodes.extend(facts.map(|facts| NodeState { member, facts, runtime }));
    }
    find_shared(nodes.iter_mut().map(|node| (&node.member, &mut node.facts)).collect()).await;

    events.phase(Phase::Examining);
    let closer = for_each_node(nodes.iter().collect(), async |node| {
        let in_worker = node.worker(inventory).is_some();
        let step = if in_worker { "importing the frameworks in the worker" } else { "examining" };
        let _step = events.begin(node.name(), Step::read(step));
        let details = async {
            let engine = engine_info(node).await;
            let details = details(inventory, node, &nodes, engine.as_ref().ok()).await;
            (engine, details)
        };
        let gpus = health::examine(&node.member, &node.facts, false);
        let environment = environment(inventory, node);
        tokio::join!(details, inside(inventory, node, &nodes), answer(inventory, node), gpus, environment)
    })
    .await;
    let (mut views, mut health) = (Vec::new(), Vec::new());
    for (node, ((engine, details), inside, answer, gpus, environment)) in nodes.iter().zip(closer) {
        known(engine, &mut findings);
        known(environment, &mut findings);
        health.extend(known(gpus, &mut findings).flatten().map(|gpus| (node.name().to_owned(), gpus)));
        views.push(NodeView {
            details: known(details, &mut findings),
            inside: known(inside, &mut findings).unwrap_or_default(),
            answer: known(answer, &mut findings).flatten(),
            starting: starting(&node.facts.jobs.recorded, node.facts.clock),
            unreadable: unreadable(&node.facts.jobs.recorded),
            ..NodeView::new(inventory, &node.member, &node.facts, node.runtime.as_ref())
        });
    }
    for view in &mut views {
        view.health = health.iter().find(|(node, _)| *node == view.node.name).map(|(_, health)| health);
    }
    findings.extend(checks::examine(inventory, &views));
    findings.extend(between(inventory, &nodes, events).await?);
    Ok(Examination { findings: checks::fold(findings), unreachable, health, nodes })
}

/// Returns what is known of a node, or adds its failure to the findings.
fn known<T>(result: Result<T, NodeError>, findings: &mut Vec<Finding>) -> Option<T> {
    result.inspect_err(|error| findings.push(failure(error))).ok()
}

fn failure(error: &NodeError) -> Finding {
    checks::failure(error, "")
}

/// Returns what a node's engine reports about itself; nothing where its state is not known.
async fn engine_info(node: &NodeState) -> Result<EngineInfo, NodeError> {
    match &node.runtime {
        Some(RuntimeState { engine: runtime, .. }) => match runtime.version() {
            Some(_) => runtime.engine("query it")?.info().await,
            None => Ok(EngineInfo::default()),
        },
        None => Ok(EngineInfo::default()),
    }
}

/// Examines one node, also by the others' addresses. `engine` is `None` if it did not report about itself.
async fn details(
    inventory: &Inventory,
    node: &NodeState,
    all: &[NodeState],
    engine: Option<&EngineInfo>,
) -> Result<Details, NodeError> {
    let others = || all.iter().filter(|other| other.name() != node.name());
    let place = |other: &NodeState| network::place(inventory, &other.member.node, &other.facts).ok();
    let addresses: String = others().filter_map(place).map(|place| format!("{}\n", place.address)).collect();
    let sshd = node.worker(inventory).and_then(|(_, worker)| {
        node.facts.network.listeners.iter().find(|listener| listener.container.as_deref() == Some(worker))?.pid
    });
    let script = Script::new(DOCTOR)
        .with("worker_pid", &sshd.map(|pid| pid.to_string()).unwrap_or_default())
        .with("docker_root", engine.map_or("", |engine| &engine.root_dir))
        .with("addresses", &addresses);
    let output = node.member.transport.script(&script, "examine the node").await?;
    let details = Details::parse(&String::from_utf8_lossy(&output));
    Ok(match engine {
        Some(engine) => details.with_runtimes(&engine.runtimes),
        // it may have the runtime of NVIDIA
        None => Details { toolkit: true, ..details },
    })
}

/// Asks the worker for the versions in it, and for the addresses of all nodes' names; there is nothing where it is not
/// up. The program runs as those that arrive through the worker's sshd, as ranks do.
async fn inside(inventory: &Inventory, node: &NodeState, all: &[NodeState]) -> Result<Versions, NodeError> {
    let Some((runtime, id)) = node.worker(inventory) else { return Ok(Versions::new()) };
    let operation = "list the versions in the worker";
    let names: Vec<&str> = all.iter().map(|node| node.facts.hostname.as_str()).collect();
    let names = serde_json::to_string(&names).map_err(|e| NodeError::failed(node.name(), operation, e))?;
    let step = inventory.cluster.command_timeout;
    let limit = step * INSIDE_STEPS;
    let program = format!("NAMES = {names}\nLIMIT = {}\n{INSIDE}{}", limit.as_secs(), launch::INSIDE);
    // a worker of an earlier version has no such shell; it is examined all the same, and another finding says that it
    // is old
    let run = format!("[ ! -x {SESSION_SHELL} ] || exec {SESSION_SHELL} -c 'exec python3 -'; exec python3 -");
    let argv = ["sh", "-c", run.as_str()];
    let output = runtime.run_in(id, &argv, program.as_bytes(), operation, limit + step).await?;
    let logs = |(name, _): (EngineName, &str)| {
        format!("see `{} logs {}` on the node", name.command(), inventory.cluster.worker)
    };
    let hint = runtime.version().map(logs);
    let output = node.member.transport.succeeded(output, operation);
    let output = output.map_err(|error| hint.into_iter().fold(error, NodeError::hint))?;
    Ok(checks::versions(&String::from_utf8_lossy(&output.stdout)))
}

/// Checks the environment of ranks where no worker shows that it can be set up.
async fn environment(inventory: &Inventory, node: &NodeState) -> Result<(), NodeError> {
    match node.observed() {
        Some(observed) if node.worker(inventory).is_none() => {
            let Ok(desired) = apply::desired(inventory, &observed) else { return Ok(()) };
            observed.runtime.engine.check(&desired).await
        }
        _ => Ok(()),
    }
}

/// Asks the worker for its GPUs, if it is up and should have some.
async fn answer(inventory: &Inventory, node: &NodeState) -> Result<Option<GpuAnswer>, NodeError> {
    match node.observed().zip(node.worker(inventory)) {
        Some((observed, (_, id))) => ready::ask(&inventory.cluster, &observed, id).await,
        None => Ok(None),
    }
}

/// Checks connections between all nodes: logins on the workers' port, and random ports.
async fn between(inventory: &Inventory, nodes: &[NodeState], events: &Events) -> Result<Vec<Finding>, Error> {
    if nodes.len() < 2 {
        return Ok(Vec::new());
    }
    events.phase(Phase::TestingConnections);
    let workers: Vec<ObservedNode> = nodes.iter().filter_map(NodeState::observed).collect();
    let logins = logins::check(inventory, &workers, events);
    let (logins, (ports, mut found)) = tokio::join!(logins, ports::check(inventory, nodes, events));
    let logins = match logins {
        Ok(logins) => logins,
        Err(Error::Nodes { failed, .. } | Error::Unreachable(failed)) => {
            found.extend(failed.iter().map(failure));
            Matrix::default()
        }
        Err(error) => return Err(error),
    };
    let cluster = &inventory.cluster;
    let (port, network) = (cluster.port, cluster.encrypted_interface());
    let open = !logins.pairs.is_empty() && logins.pairs.iter().all(|pair| pair.reason.is_none());
    found.extend(checks::logins(&logins, port, network));
    found.extend(checks::ports(&ports, open.then_some(port), network));
    Ok(found)
}

/// Carries out the fixes on locked nodes. Returns what was done on which node, and the failures.
///
/// # Errors
/// When the command has to stop, or keys cannot be pushed at all.
pub async fn fix(
    target: &Target,
    examined: &Examination,
    session: &Session,
    events: &Events,
) -> Result<NodeResults<Fixed>, Error> {
    let cluster = target.cluster();
    let (mut done, mut failed) = (Vec::new(), Vec::new());
    let fixes: Vec<&(String, Fix)> = examined.findings.iter().flat_map(|finding| &finding.fixes).collect();
    for (node, fix) in &fixes {
        session.cancellation.check()?;
        let Some(state) = examined.nodes.iter().find(|state| state.name() == node) else { continue };
        let (what, result) = match fix {
            Fix::RemoveContainer { name, id } => {
                let Some(runtime) = &state.runtime else { continue };
                let _step = events.begin(node, Step::write(format!("removing {name}")));
                (format!("removed {name}"), runtime.engine.remove(id).await)
            }
            Fix::EndJob(job) => {
                let _step = events.begin(node, Step::write(format!("ending job {job}")));
                let ended = end_ranks(cluster, job, &state.member).await.and_then(|stuck| stuck.map_or(Ok(()), Err));
                (format!("ended the remaining processes of job {job}"), ended)
            }
            Fix::PushKeys => continue,
        };
        match result {
            Ok(()) => {
                session.progress.record(node, &what);
                done.push(Fixed { node: node.clone(), what });
            }
            Err(error) => failed.push(error),
        }
    }
    if fixes.iter().any(|(_, fix)| *fix == Fix::PushKeys) {
        let known = |state: &NodeState| (state.member.clone(), state.facts.clone());
        let observed = NodeResults { ok: examined.nodes.iter().map(known).collect(), failed: Vec::new() };
        let pushed = KeyDistribution { inventory: &target.inventory, session, events }.push(observed).await?;
        let changed = pushed.ok.into_iter().filter(|pushed| !pushed.changes.is_empty());
        done.extend(changed.map(|pushed| Fixed { node: pushed.node, what: pushed.changes.to_string() }));
        failed.extend(pushed.failed);
    }
    Ok(NodeResults { ok: done, failed })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cluster::fleet::Fleet;
    use crate::transport::node::TransportKind;
    use crate::transport::node::scripted::{Fault, Nodes};
    use std::sync::Arc;

    #[tokio::test(start_paused = true)]
    async fn a_node_whose_engine_fails_is_examined() {
        // this node's engine does not answer, and it does not know the script, so both are findings
        let target = Target::new(Inventory::local("node1", "test/horovod:1"), None).unwrap();
        let (events, _) = Events::channel();
        let nodes = Nodes::new(&["node1"]);
        nodes.fault("node1", "docker info", Fault::Fails("no".into()));
        let fleet = Fleet::over(TransportKind::Scripted(nodes), Arc::default(), &events);
        let members = fleet.members(&target, &events).await.unwrap();
        let findings = examine(&target, members, &events).await.unwrap().findings;
        let messages: Vec<&str> = findings.iter().map(|finding| finding.message.as_str()).collect();
        for expected in ["cannot query the Docker Engine: ", "cannot examine the node: "] {
            assert!(messages.iter().any(|message| message.starts_with(expected)), "{messages:?}");
        }
    }
}
