//! Which of the recorded jobs have not ended: some end without a recorded result.

use crate::cluster::fleet::Fleet;
use crate::cluster::member::Member;
use crate::cluster::observation::ObservedNode;
use crate::cluster::target::Target;
use crate::error::Error;
use crate::event::{Event, Events, Message};
use crate::inventory::Inventory;
use crate::job::manage::running;
use crate::node::jobs::{OpenJobs, RecordedJob};
use crate::record::Record;
use crate::runtime::container::ContainerSummary;
use crate::text::nodeset;
use std::collections::BTreeSet;
use std::time::Duration;

/// The state of a recorded job, by the traces of it on the nodes that answered.
#[derive(Debug, PartialEq, Eq)]
enum Liveness {
    /// Its launcher is up, or ranks of it are there.
    Running,
    /// Its record cannot be read, and a container of it is up, in whatever role: that of a newer hvdctl may be unknown
    /// here.
    Serving,
    /// The node of its launcher did not answer; `None` if its record names no launcher. It allocates nothing, but
    /// nothing of it is removed.
    NotAsked(Option<String>),
    /// Its record cannot be read, so that its launcher may be on any node, and one did not answer. It counts as
    /// running.
    Unreadable,
    /// No node has anything of it that is up.
    Ended,
}

/// The traces of jobs on the nodes that answered.
struct JobEvidence<'a> {
    /// The inventory, any node of which may have launchers.
    inventory: &'a Inventory,
    /// The nodes that answered.
    answered: BTreeSet<String>,
    /// The jobs whose launcher is up or that have ranks.
    running: BTreeSet<String>,
    /// The jobs that a container serves which is up.
    served: BTreeSet<String>,
}

impl<'a> JobEvidence<'a> {
    /// Returns what the observed nodes have.
    fn new(inventory: &'a Inventory, nodes: &[ObservedNode]) -> JobEvidence<'a> {
        let mut evidence =
            JobEvidence { inventory, answered: BTreeSet::new(), running: BTreeSet::new(), served: BTreeSet::new() };
        for observed in nodes {
            evidence.add(observed.name(), &observed.runtime.containers);
            let ranks = observed.facts.jobs.ranks.iter().filter(|rank| !rank.killed);
            evidence.running.extend(ranks.map(|rank| rank.job.clone()));
        }
        evidence
    }

    /// Adds the containers of a node.
    fn add(&mut self, node: &str, containers: &[ContainerSummary]) {
        let job = |container: &ContainerSummary| container.job().map(str::to_owned);
        self.answered.insert(node.to_owned());
        self.running.extend(running(&self.inventory.cluster, containers).filter_map(job));
        self.served.extend(containers.iter().filter(|container| container.state.is_up()).filter_map(job));
    }

    /// Returns the nodes of the inventory that did not answer.
    fn silent(&self) -> BTreeSet<&String> {
        self.inventory.nodes.iter().map(|node| &node.name).filter(|node| !self.answered.contains(*node)).collect()
    }

    /// Returns whether a job goes on. More evidence may end a job that is not running, but it ends none that is.
    fn liveness(&self, job: &RecordedJob) -> Liveness {
        if self.running.contains(&job.id) {
            return Liveness::Running;
        }
        match Record::read(&job.id, &job.record) {
            Ok(record) => match record.placement.shares.into_iter().next().map(|share| share.node) {
                Some(launcher) if self.answered.contains(&launcher) => Liveness::Ended,
                launcher => Liveness::NotAsked(launcher),
            },
            Err(_) if self.served.contains(&job.id) => Liveness::Serving,
            Err(_) if self.silent().is_empty() => Liveness::Ended,
            Err(_) => Liveness::Unreadable,
        }
    }

    /// Returns the nodes that may have the launcher of a job and did not answer yet.
    fn to_ask(&self, job: &RecordedJob) -> Vec<String> {
        match self.liveness(job) {
            Liveness::NotAsked(launcher) => launcher.into_iter().collect(),
            Liveness::Unreadable => self.silent().into_iter().cloned().collect(),
            Liveness::Running | Liveness::Serving | Liveness::Ended => Vec::new(),
        }
    }

    /// Returns those of a node's recorded jobs that have not ended.
    fn open(&self, recorded: &[RecordedJob]) -> OpenJobs {
        let mut open = OpenJobs::default();
        for job in recorded {
            match self.liveness(job) {
                Liveness::Ended => continue,
                Liveness::NotAsked(_) => {}
                Liveness::Running | Liveness::Serving | Liveness::Unreadable => open.under_way.push(job.id.clone()),
            }
            open.jobs.push(job.clone());
        }
        open
    }
}

/// Finds out which of the recorded jobs have not ended. A job goes on if its launcher is up or ranks of it are there;
/// if its launcher would be on a node that was not observed, that node is asked. The launcher of a job whose record
/// cannot be read may be on any node of the inventory: all are asked, and the job goes on if one does not answer. While
/// the nodes are locked no other job can be starting.
///
/// # Errors
/// When the operator's own machine is at fault.
pub async fn open_on_each(
    target: &Target,
    fleet: &Fleet,
    nodes: &[ObservedNode],
    events: &Events,
) -> Result<Vec<OpenJobs>, Error> {
    let recorded = || nodes.iter().flat_map(|observed| &observed.facts.jobs.recorded);
    let mut evidence = JobEvidence::new(&target.inventory, nodes);
    let launchers: BTreeSet<String> = recorded().flat_map(|job| evidence.to_ask(job)).collect();
    if !launchers.is_empty() {
        for (node, containers) in ask(&target.only(launchers), fleet, events).await? {
            evidence.add(&node, &containers);
        }
    }
    let unreadable: BTreeSet<&String> =
        recorded().filter(|job| evidence.liveness(job) == Liveness::Unreadable).map(|job| &job.id).collect();
    let silent: Vec<&String> = evidence.silent().into_iter().collect();
    for job in unreadable {
        let silent = nodeset::fold(&silent);
        let why = format!("its record cannot be read, and {silent} did not answer whether it has a container of it");
        let message = format!("job {job} counts as running: {why}");
        events.warn(Message::from(message).hint(format!("hvdctl stop {job} ends it")));
    }
    Ok(nodes.iter().map(|observed| evidence.open(&observed.facts.jobs.recorded)).collect())
}

/// Reads the containers of nodes that the command has not observed. Returns those of the nodes that answered.
async fn ask(
    launchers: &Target,
    fleet: &Fleet,
    events: &Events,
) -> Result<Vec<(String, Vec<ContainerSummary>)>, Error> {
    // for nodes outside the command only warnings are shown
    let (quiet, reported) = Events::channel();
    let ask = async |member: Member| Ok((member.node.name.clone(), member.runtime().await?.containers().await?));
    let asked = fleet.members(launchers, &quiet).await?.then(&quiet, ask).await;
    while let Ok(event) = reported.receive(Duration::ZERO) {
        if matches!(event, Event::Warning(_)) {
            events.send(event);
        }
    }
    Ok(asked.ok)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::launch::placement::{Placement, Share};

    fn recorded(id: &str, launcher: Option<&str>) -> RecordedJob {
        let share = |node: &str| Share { node: node.into(), ranks: 1, ..Share::default() };
        let placement = Placement { shares: launcher.map(share).into_iter().collect(), ..Placement::default() };
        let record = Record { id: id.into(), name: "digits".into(), placement, ..Record::default() };
        RecordedJob { id: id.into(), record: serde_json::to_string(&record).unwrap() }
    }

    #[test]
    fn a_job_goes_on_while_a_node_that_may_have_it_is_silent() {
        let inventory = Inventory::local("node1", "some/image:1");
        let set = |names: &[&str]| -> BTreeSet<String> { names.iter().map(|name| (*name).to_owned()).collect() };
        let evidence =
            |answered| JobEvidence { inventory: &inventory, answered, running: set(&["j1"]), served: set(&["j2"]) };
        let (silent, whole) = (evidence(set(&[])), evidence(set(&["node1"])));
        let unreadable = |id: &str| RecordedJob { id: id.into(), record: String::new() };
        let not_asked = |node: Option<&str>| Liveness::NotAsked(node.map(str::to_owned));
        for (job, before, after) in [
            (recorded("j1", Some("node1")), Liveness::Running, Liveness::Running),
            (unreadable("j1"), Liveness::Running, Liveness::Running),
            // the container may be the worker of a job that has ended
            (recorded("j2", Some("node1")), not_asked(Some("node1")), Liveness::Ended),
            (unreadable("j2"), Liveness::Serving, Liveness::Serving),
            (recorded("j3", Some("node1")), not_asked(Some("node1")), Liveness::Ended),
            (recorded("j3", Some("gone")), not_asked(Some("gone")), not_asked(Some("gone"))),
            (recorded("j3", None), not_asked(None), not_asked(None)),
            (unreadable("j3"), Liveness::Unreadable, Liveness::Ended),
        ] {
            assert_eq!((silent.liveness(&job), whole.liveness(&job)), (before, after), "{job:?}");
        }
        let open = silent.open(&["j1", "j2", "j3"].map(|id| recorded(id, Some("node1"))));
        assert_eq!((open.jobs.len(), open.under_way), (3, vec!["j1".to_owned()]));
        assert_eq!(silent.to_ask(&unreadable("j3")), ["node1"]);
        assert_eq!(whole.open(&[unreadable("j3")]), OpenJobs::default());
    }
}
