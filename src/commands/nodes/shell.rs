//! `hvdctl shell`: an interactive shell in `hmaster`, in a worker, or in a container of the shell's own. Keys and
//! output go over the runtime, so the shell is the same however the node and root there are reached.

use crate::cli;
use crate::cluster::each_node::{NodeResults, unreached};
use crate::cluster::exec::worker;
use crate::cluster::member::Member;
use crate::cluster::observation::{ObservedNode, check_gpus, host_names, observe, place};
use crate::cluster::target::Target;
use crate::commands::{Context, Outcome};
use crate::error::{Error, NodeError, Verdict};
use crate::event::Events;
use crate::inventory::Node;
use crate::inventory::export::{self, ExportedHost};
use crate::job::manage;
use crate::launch::programs::SSH;
use crate::launch::{ShellRequest, launcher};
use crate::node::network;
use crate::runtime::Runtime;
use crate::runtime::spec::ContainerSpec;
use crate::start::plan::check_keys;
use crate::terminal;
use crate::text::nodeset;
use crate::transport::node::Process;
use crate::transport::privileges;
use crate::worker::apply;
use crate::worker::spec::{shell_name, users};
use crate::worker::{names, plan};
use schemars::JsonSchema;
use serde::Serialize;
use std::io::IsTerminal;
use std::time::Duration;
use tokio::io::AsyncReadExt;
use tokio::time::timeout;

/// `shell`, after it has ended.
#[derive(Debug, Serialize, JsonSchema)]
pub struct ShellDocument {
    /// The exit code of the shell.
    pub code: u8,
}

const GUARD: &str = include_str!("../../scripts/shell/guard.sh");
const MASTER: &str = include_str!("../../scripts/shell/master.sh");
const SHELL: &str = include_str!("../../scripts/shell/shell.sh");
/// The operation, for messages.
const OPEN: &str = "open a shell";

/// # Errors
/// When standard input and output are not a terminal.
pub fn check_terminal() -> Result<(), Error> {
    if std::io::stdin().is_terminal() && std::io::stdout().is_terminal() && terminal::present() {
        return Ok(());
    }
    Err(Error::usage(
        "shell: standard input and output are not a terminal",
        "hvdctl exec runs a command without one: hvdctl exec -c -- COMMAND",
    ))
}

/// `shell`.
pub async fn run(options: &cli::Shell, context: &Context) -> Result<Outcome, Error> {
    let events = &context.events;
    let place = match &options.node {
        Some(node) => in_worker(node, context).await?,
        None => in_master(context).await?,
    };
    let Place { runtime, container, path, guard, is_own } = place;
    let term = std::env::var("TERM").unwrap_or_else(|_| "xterm".into());
    let mut env = vec![format!("HVDCTL_SHELL={}", privileges::process()), format!("TERM={term}")];
    env.extend(path.map(|path| format!("HVDCTL_PATH={path}")));
    let result = {
        let _suspended = events.suspend().await;
        runtime.exec_on_terminal(&container, &["sh", "-c", SHELL], env).await
    };
    drop(guard);
    if is_own {
        // the engine also removes it when its main process ends, but a moment later
        runtime.remove(&container).await?;
    }
    Ok(ended(result?))
}

pub(in crate::commands) fn ended(code: i64) -> Outcome {
    let verdict = Verdict::Program(code);
    Outcome::new(verdict, "", ShellDocument { code: verdict.exit_code() })
}

/// The container in which a shell is opened.
struct Place {
    runtime: Runtime,
    container: String,
    /// A directory in the container whose programs come first in `PATH`.
    path: Option<String>,
    /// The guard of the shell, or the main process of the shell's own container: it ends when this is dropped.
    guard: Process,
    /// Set if the container was created for this shell.
    is_own: bool,
}

/// Returns a place in a node's worker.
///
/// # Errors
/// When the node is not selected, does not answer, or its worker is not running.
async fn in_worker(node: &str, context: &Context) -> Result<Place, Error> {
    let Context { target, fleet, events, .. } = context;
    if target.selected.iter().all(|name| name != node) {
        let message = format!("no selected node is named {node} (nodes: {})", nodeset::fold(&target.selected));
        return Err(Error::usage(message, "without NODE, `hvdctl shell` opens a shell in hmaster"));
    }
    let member = fleet.all(&target.only([node.to_owned()]), events).await?.remove(0);
    let (runtime, worker) = worker(target.cluster(), &member).await?;
    guarded(&member, runtime, worker, None).await.map_err(Into::into)
}

/// Returns a place in the `hmaster` of the newest job in progress, or else in a container of the shell's own on the
/// first node.
///
/// # Errors
/// When the node does not answer, or the container cannot be started.
async fn in_master(context: &Context) -> Result<Place, Error> {
    let Context { target, fleet, events, .. } = context;
    let cluster = target.cluster();
    let list = manage::list(target, fleet, events).await?;
    if let Some((job, member, container)) = list.newest_running() {
        events.note(format!("entering the launcher of job {} ({}) on {}", job.id, job.name, member.node.name));
        let path = format!("{}/{}", cluster.jobs_dir, job.id);
        let runtime = member.runtime().await?;
        return Ok(guarded(member, runtime, container.to_owned(), Some(path)).await?);
    }
    let observe = async |member| observe(cluster, member, events).await;
    let listed = NodeResults { ok: list.members, failed: list.failed };
    let NodeResults { ok: nodes, failed } = listed.then(events, observe).await;
    let first = target.nodes().into_iter().next().map(|node| node.name);
    let Some(master) = nodes.iter().find(|node| Some(node.name()) == first.as_deref()) else {
        return Err(unreached(failed));
    };
    for error in &failed {
        events.warn(format!("{} is not in the hostfile: {error}", error.node));
    }
    own(target, master, &nodes, events).await
}

/// Returns a place in a container that also serves other purposes. A guard process ends the shell when hvdctl exits.
async fn guarded(
    member: &Member,
    runtime: Runtime,
    container: String,
    path: Option<String>,
) -> Result<Place, NodeError> {
    let argv = ["sh", "-c", GUARD, "sh", privileges::process()];
    let mut guard = runtime.exec(&container, &argv, OPEN).await?;
    wait_until_ready(member, &mut guard).await?;
    Ok(Place { runtime, container, path, guard, is_own: false })
}

/// Creates a separate container for the shell, like that of a job's launcher.
async fn own(target: &Target, master: &ObservedNode, nodes: &[ObservedNode], events: &Events) -> Result<Place, Error> {
    let cluster = target.cluster();
    check_gpus(&master.member.node, &master.facts)?;
    master.image_id(cluster)?;
    check_keys(&target.inventory, nodes.iter())?;
    let hosts = hosts(target, nodes, events);
    let hosts: Vec<ExportedHost<'_>> = hosts.iter().map(|(node, slots)| ExportedHost { node, slots: *slots }).collect();
    let interface = place(&target.inventory, master).ok().map(|place| place.label);
    let launcher = launcher(cluster.launcher, cluster.controller);
    let (node, suffix) = (&master.member.node, &privileges::process()[..4]);
    let layout = cluster.layout(&shell_name(cluster, suffix));
    let request = ShellRequest {
        slots: hosts.iter().map(|host| host.slots).sum(),
        hostfile: &layout.hostfile,
        port: cluster.port,
        interface: interface.as_deref(),
    };
    let of_launcher = (launcher.shell_environment)(&request);
    let mut env: Vec<String> = of_launcher.iter().map(|(name, value)| format!("{name}={value}")).collect();
    env.push("PYTHONUNBUFFERED=1".into());
    env.push(format!("HVDCTL_KEEP_ALIVE={}", cluster.keep_alive.as_secs()));
    env.extend(layout.variables());
    let hostfile = export::hostfile(&hosts);
    let logins = nodes
        .iter()
        .filter_map(|node| Some((place(&target.inventory, node).ok()?.address, node.member.transport.as_ref())));
    let users = users(cluster, logins).unwrap_or_default();
    let command = ["sh", "-c", MASTER, "sh", &hostfile, SSH, &layout.hostfile, &layout.programs, &users];
    let command = command.map(str::to_owned).to_vec();
    let gpus = network::gpu_request(node, &master.facts);
    let shell = ContainerSpec::shell(cluster, node, gpus, command, suffix);
    let spec = ContainerSpec { env, ..shell.with_data(cluster, node, &master.facts.storage.pushed) };
    let runtime = master.runtime.engine.clone();
    let left = plan::orphaned_shells(&cluster.name, &master.runtime.containers, master.facts.clock);
    apply::apply(&target.inventory, master, &left, events).await?;
    let container = runtime.create(&spec).await?;
    let started = async {
        let mut main = runtime.start_attached(&container, &format!("start {}", spec.name)).await?;
        wait_until_ready(&master.member, &mut main).await?;
        let names = host_names(&target.inventory, nodes.iter());
        names::write(master, &container, &names, master.member.transport.limit()).await?;
        Ok::<Process, NodeError>(main)
    };
    let started = started.await;
    if started.is_err() {
        let _ = runtime.remove(&container).await;
    }
    let guard = started?;
    let by_hand =
        (launcher.by_hand)(&request).map_or_else(String::new, |command| format!("; to use all nodes: {command}"));
    events.note(format!("entering {} on {}{by_hand}", spec.name, node.name));
    let path = Some(layout.programs);
    Ok(Place { runtime, container, path, guard, is_own: true })
}

/// Returns the nodes of the hostfile with their addresses in the cluster, each with its slots.
fn hosts(target: &Target, nodes: &[ObservedNode], events: &Events) -> Vec<(Node, u32)> {
    let host = |observed: &ObservedNode| {
        let warn = |error: &NodeError| events.warn(format!("{} is not in the hostfile: {error}", observed.name()));
        let address = Some(place(&target.inventory, observed).inspect_err(warn).ok()?.address);
        let node = &observed.member.node;
        Some((Node { address, ..node.clone() }, network::slots(node, &observed.facts)))
    };
    nodes.iter().filter_map(host).collect()
}

/// Waits until a script has written `ready`.
async fn wait_until_ready(member: &Member, script: &mut Process) -> Result<(), NodeError> {
    let failed = |why: String| Err(NodeError::failed(&member.node.name, OPEN, why));
    let stderr = script.collect_stderr();
    let mut ready = [0; 6];
    match timeout(member.transport.limit(), script.stdout.read_exact(&mut ready)).await {
        Ok(Ok(_)) => Ok(()),
        Ok(Err(_)) => match timeout(Duration::from_secs(5), stderr).await {
            Ok(Ok(text)) if !text.trim().is_empty() => failed(text),
            _ => failed("the container exited immediately".into()),
        },
        Err(_) => failed(format!("no answer within {} s", member.transport.limit().as_secs())),
    }
}
