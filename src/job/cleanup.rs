//! What a job leaves on its nodes is ended and removed, and its result recorded.

use crate::cluster::nodes::{Member, for_each_node, now};
use crate::error::NodeError;
use crate::event::{Event, Events};
use crate::inventory::Cluster;
use crate::job::record::JobResult;
use crate::runtime::Runtime;
use crate::transport::node::Script;
use std::time::Duration;

pub(super) const END: &str = concat!(
    include_str!("../scripts/marked.sh"),
    include_str!("../scripts/killed.sh"),
    include_str!("../scripts/job_end.sh")
);
const RESULT: &str = include_str!("../scripts/job_result.sh");

/// How long the job supervisor may take to stop a job, besides the ranks' grace period.
pub const SUPERVISOR_STOPS_WITHIN: Duration = Duration::from_secs(30);

/// Ends what is left of a job on every node, and removes its containers. A failure is reported and stops nothing. Returns the
/// members that answered; only they are worth a further step. `engines` are those of the first members, as many as are known: at
/// least the launcher's.
pub(super) async fn clean_up(
    cluster: &Cluster,
    id: &str,
    members: &[Member],
    engines: &[Runtime],
    events: &Events,
) -> Vec<Member> {
    let ended = for_each_node((0..members.len()).collect(), async |i: usize| {
        let engine = async {
            match engines.get(i) {
                Some(engine) => Ok(engine.clone()),
                None => Runtime::connect(&members[i].transport).await,
            }
        };
        let (cleaned, engine) = tokio::join!(clean_up_node(cluster, id, &members[i], events), engine);
        let removed = async { remove_containers_of(cluster, id, &engine?).await }.await;
        if i == 0 {
            // the launcher is on the first
            return cleaned.and(removed);
        }
        // no rank is left in a worker, so an engine that does not answer is only worth a warning
        if let Err(error) = removed {
            events.send(Event::Warning(error.to_string()));
        }
        cleaned
    })
    .await;
    let mut answered = Vec::new();
    for (member, result) in members.iter().zip(ended) {
        match result {
            Ok(()) => answered.push(member.clone()),
            Err(error) => events.send(Event::Warning(error.to_string())),
        }
    }
    answered
}

/// Ends what is left of a job on one node. Processes that not even SIGKILL ends are reported, and stop nothing.
///
/// # Errors
/// When the node does not answer, or gives no root.
pub(super) async fn clean_up_node(
    cluster: &Cluster,
    id: &str,
    member: &Member,
    events: &Events,
) -> Result<(), NodeError> {
    let stuck = end_ranks(cluster, id, member).await?;
    stuck.into_iter().for_each(|stuck| events.send(Event::Warning(stuck.to_string())));
    Ok(())
}

/// Ends the ranks and supervisors that a job left on one node. Returns an error to report where not even SIGKILL ends a process.
///
/// # Errors
/// When the node does not answer, or gives no root.
pub async fn end_ranks(cluster: &Cluster, id: &str, member: &Member) -> Result<Option<NodeError>, NodeError> {
    const TRIED: &str = "end what is left of the job";
    let script = Script::new(END)
        .with("jobs_dir", &cluster.jobs_dir)
        .with("id", id)
        .with("grace", &cluster.stop_grace.as_secs().to_string());
    let limit = cluster.stop_grace + Duration::from_secs(20);
    let said = member.transport.script_within(&script, TRIED, limit).await?;
    Ok(stuck(&String::from_utf8_lossy(&said)).map(|stuck| {
        NodeError::failed(&member.node.name, TRIED, stuck).hint(
            "it waits in the kernel for a disk, a file system of the network or a driver, and holds its memory and GPUs until that \
             answers; else only a restart of the node ends it",
        )
    }))
}

/// Describes the processes that `job_end.sh` could not end, if there are any.
pub(super) fn stuck(said: &str) -> Option<String> {
    let program = |line: &str| {
        let line: String = line.chars().filter(|c| !c.is_control()).collect();
        let (pid, rest) = line.split_once(' ').unwrap_or((&line, ""));
        let (place, words) = rest.split_once(' ').unwrap_or((rest, ""));
        let waits = if matches!(place, "" | "0") { String::new() } else { format!(", in {place}") };
        format!("process {pid} ({}) was killed and is still there{waits}", words.trim())
    };
    let programs: Vec<String> = said.lines().map(program).collect();
    (!programs.is_empty()).then(|| programs.join("\n"))
}

/// Reads the result that the job supervisor recorded; where there is none, `instead` is recorded.
///
/// # Errors
/// When the launcher's node does not answer.
pub(super) async fn result(
    cluster: &Cluster,
    id: &str,
    launches: &Member,
    instead: &JobResult,
) -> Result<JobResult, NodeError> {
    let tried = "read the result of the job";
    let script = Script::new(RESULT)
        .with("jobs_dir", &cluster.jobs_dir)
        .with("id", id)
        .with("result", &serde_json::to_string(instead).unwrap_or_default());
    let said = launches.transport.script(&script, tried).await?;
    serde_json::from_slice(&said).map_err(|e| NodeError::failed(&launches.node.name, tried, e))
}

/// The result of a job whose supervisor did not live to record one. `code`: the exit code of its container, where it is known.
pub(super) fn unrecorded(cluster: &Cluster, code: Option<i64>) -> JobResult {
    let name = &cluster.master;
    let fault = match code {
        Some(code) => format!("{name} exited with code {code} without recording a result"),
        None => format!("{name} exited without recording a result"),
    };
    JobResult { ended: now(), fault: Some(fault), ..JobResult::default() }
}

/// The names of the members that did not answer.
pub(super) fn missing(members: &[Member], answered: &[Member]) -> Vec<String> {
    let names = members.iter().map(|member| &member.node.name);
    names.filter(|name| answered.iter().all(|member| member.node.name != **name)).cloned().collect()
}

/// Ends what is left of a job that nobody watches, and returns its result. The engine is that of the launcher's node, the first.
///
/// # Errors
/// When the node of the launcher does not answer.
pub async fn finish(
    cluster: &Cluster,
    id: &str,
    members: &[Member],
    launches: Runtime,
    events: &Events,
) -> Result<JobResult, NodeError> {
    let answered = clean_up(cluster, id, members, &[launches], events).await;
    let instead = JobResult { stopped: true, silent: missing(members, &answered), ..unrecorded(cluster, None) };
    result(cluster, id, &members[0], &instead).await
}

async fn remove_containers_of(cluster: &Cluster, id: &str, engine: &Runtime) -> Result<(), NodeError> {
    for container in engine.containers().await? {
        if container.belongs_to(&cluster.name) && container.job() == Some(id) {
            engine.remove(&container.id).await?;
        }
    }
    Ok(())
}
