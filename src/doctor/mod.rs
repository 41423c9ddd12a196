//! `doctor`: views at every node and every pair, and lets the core say what is wrong; carries out the cures that are safe.

mod ports;

use crate::checks::preflight::look;
use crate::checks::reach_check;
use crate::checks::{self, Details, Finding, Fix, Inside, NodeView, Severity};
use crate::cluster::nodes::{Member, Observed, RuntimeState, Target, connect, engine, facts, for_each_node, split};
use crate::cluster::session::Session;
use crate::error::{Error, Kind, NodeError};
use crate::event::{Events, Step};
use crate::inventory::Inventory;
use crate::job::cleanup::end_ranks;
use crate::job::record::starting;
use crate::keys::files::Keyring;
use crate::keys::push;
use crate::keys::reachability::Matrix;
use crate::launch;
use crate::node::facts::Facts;
use crate::node::network;
use crate::runtime::EngineInfo;
use crate::runtime::container::ContainerState;
use crate::runtime::spec::Role;
use crate::transport::node::Script;
use std::time::Duration;

const DOCTOR: &str = include_str!("../scripts/doctor.sh");
const INSIDE: &str = include_str!("../scripts/inside.py");

/// How long a worker may take to say what is in it; a launcher may have to load every framework for that.
const INSIDE_LIMIT: Duration = Duration::from_secs(90);

/// What was found.
pub struct Examined {
    /// All of it, errors first, what is the same on several nodes told once.
    pub findings: Vec<Finding>,
    /// The nodes that there is no session with.
    pub unreachable: Vec<String>,
    /// What was seen of those with facts, for the cures.
    patients: Vec<Patient>,
}

impl Examined {
    /// What was found in the worker that a node still has.
    fn inside(&self, inventory: &Inventory, patient: &Patient) -> Option<&Inside> {
        let same = |earlier: &&Patient| {
            earlier.name() == patient.name() && earlier.worker(inventory) == patient.worker(inventory)
        };
        self.patients.iter().find(same)?.inside.as_ref()
    }
}

/// A node as far as it could be looked at.
struct Patient {
    member: Member,
    facts: Facts,
    docker: Option<RuntimeState>,
    about: Option<EngineInfo>,
    details: Option<Details>,
    noise: Option<(String, String)>,
    inside: Option<Inside>,
}

impl Patient {
    fn name(&self) -> &str {
        &self.member.node.name
    }

    fn look(&self) -> NodeView<'_> {
        let runtimes = self.about.as_ref().map(|about| about.runtimes.as_slice());
        NodeView {
            details: self.details.as_ref(),
            noise: self.noise.as_ref().map(|(seen, cure)| (seen.as_str(), cure.as_str())),
            inside: self.inside.as_ref(),
            starting: starting(&self.facts),
            ..look(&self.member, &self.facts, self.docker.as_ref(), runtimes)
        }
    }

    fn observed(&self) -> Option<Observed> {
        let docker = self.docker.clone()?;
        Some(Observed { member: self.member.clone(), facts: self.facts.clone(), docker })
    }

    /// The id of the cluster's worker, where it runs.
    fn worker(&self, inventory: &Inventory) -> Option<&str> {
        let cluster = &inventory.cluster;
        let containers = &self.docker.as_ref()?.containers;
        let ours = containers.iter().find(|c| c.name == cluster.worker && c.belongs_to(&cluster.name));
        ours.filter(|c| c.state == ContainerState::Running && c.is(Role::Worker)).map(|c| c.id.as_str())
    }
}

/// Looks at everything. Nothing is changed; what cannot be reached or asked is a finding, and the rest goes on.
///
/// `earlier` is what the same command found before. What is in a worker's image is not asked again: that takes seconds, and nothing
/// that `fix` does changes it.
///
/// # Errors
/// When the operator's own machine is at fault.
pub async fn examine(target: &Target, earlier: Option<&Examined>, events: &Events) -> Result<Examined, Error> {
    let (inventory, cluster) = (&target.inventory, target.cluster());
    events.phase("looking");
    let (members, failed) = split(events, connect(target, events).await?);
    let mut findings: Vec<Finding> = failed.iter().map(told).collect();
    let unreachable = failed.into_iter().filter(|e| e.kind == Kind::Unreachable).map(|e| e.node).collect();

    let looked = for_each_node(members, async |member| {
        let _step = events.begin(&member.node.name, Step::Observing);
        let asked = async {
            let docker = engine(cluster, &member).await?;
            let about = docker.engine.info().await?;
            Ok((docker, about))
        };
        let (facts, asked) = tokio::join!(facts(cluster, &member), asked);
        (member, facts, asked)
    })
    .await;
    let mut patients = Vec::new();
    for (member, facts, asked) in looked {
        findings.extend(facts.as_ref().err().into_iter().chain(asked.as_ref().err()).map(told));
        let (docker, about) = asked.ok().unzip();
        if let Ok(facts) = facts {
            let noise = member.transport.noise().map(|noise| (noise.seen(), noise.cure()));
            patients.push(Patient { member, facts, docker, about, details: None, noise, inside: None });
        }
    }

    events.phase("looking closer");
    let scripts: Vec<Script> = patients.iter().map(|patient| script(inventory, patient, &patients)).collect();
    let closer =
        for_each_node(patients.iter().zip(scripts).collect(), async |(patient, script): (&Patient, Script)| {
            let in_worker = patient.worker(inventory).is_some();
            let step = if in_worker { Step::ImportingFrameworks } else { Step::Examining };
            let _step = events.begin(patient.name(), step);
            let details = patient.member.transport.script(&script, "look at the node more closely");
            let inside = async {
                match earlier.and_then(|earlier| earlier.inside(inventory, patient)) {
                    Some(inside) => Ok(Some(inside.clone())),
                    None => inside(inventory, patient).await,
                }
            };
            tokio::join!(details, inside)
        })
        .await;
    for (patient, (details, inside)) in patients.iter_mut().zip(closer) {
        match details {
            Ok(said) => patient.details = Some(Details::parse(&String::from_utf8_lossy(&said))),
            Err(error) => findings.push(told(&error)),
        }
        match inside {
            Ok(inside) => patient.inside = inside,
            Err(error) => findings.push(told(&error)),
        }
    }
    let views: Vec<NodeView<'_>> = patients.iter().map(Patient::look).collect();
    findings.extend(checks::examine(inventory, &views));
    findings.extend(between(inventory, &patients, events).await?);
    Ok(Examined { findings: checks::fold(findings), unreachable, patients })
}

/// A node's failure as a finding.
fn told(error: &NodeError) -> Finding {
    let check = if error.kind == Kind::Unreachable { "ssh" } else { "node" };
    Finding::new(Severity::Error, check, &error.node, format!("cannot {}: {}", error.operation, error.message))
        .cure(error.hints.join("; "))
}

/// The questions for one node, the others' addresses and names among them.
fn script(inventory: &Inventory, patient: &Patient, all: &[Patient]) -> Script {
    let others = || all.iter().filter(|other| other.name() != patient.name());
    let place = |other: &Patient| network::place(inventory, &other.member.node, &other.facts).ok();
    let addresses: String = others().filter_map(place).map(|place| format!("{}\n", place.address)).collect();
    let names: String = others().map(|other| format!("{}\n", other.facts.hostname)).collect();
    let worker = patient.worker(inventory);
    let mut listeners = patient.facts.listeners.iter();
    let sshd = listeners.find(|listener| worker.is_some() && listener.container.as_deref() == worker);
    Script::new(DOCTOR)
        .with("worker_pid", &sshd.and_then(|sshd| sshd.pid).map(|pid| pid.to_string()).unwrap_or_default())
        .with("docker_root", patient.about.as_ref().map_or("", |about| &about.root_dir))
        .with("addresses", &addresses)
        .with("names", &names)
}

/// Asks the worker what is in it; none where it is not up.
async fn inside(inventory: &Inventory, patient: &Patient) -> Result<Option<Inside>, NodeError> {
    let Some(id) = patient.worker(inventory) else { return Ok(None) };
    let tried = "ask the worker what is in it";
    let link = &patient.member.transport;
    let program = [INSIDE, launch::INSIDE].concat();
    let output = link.run_docker(&["exec", "-i", id, "python3", "-"], program.as_bytes(), tried, INSIDE_LIMIT).await?;
    if output.code != 0 {
        let hint = format!("see `docker logs {}` on the node", inventory.cluster.worker);
        return Err(NodeError::failed(patient.name(), tried, output.complaint()).hint(hint));
    }
    Ok(Some(Inside::parse(&String::from_utf8_lossy(&output.stdout))))
}

/// Who reaches whom: by login on the workers' port, and on random ports.
async fn between(inventory: &Inventory, patients: &[Patient], events: &Events) -> Result<Vec<Finding>, Error> {
    if patients.len() < 2 {
        return Ok(Vec::new());
    }
    events.phase("trying every pair");
    let workers: Vec<Observed> = patients.iter().filter_map(Patient::observed).collect();
    // without the master there is no key to try
    let has_key = patients.iter().any(|p| {
        p.member.node.master && Keyring::read(&inventory.cluster, &p.facts).current.is_some() && p.docker.is_some()
    });
    let logins =
        async { if has_key { reach_check::check(inventory, &workers, events).await } else { Ok(Matrix::default()) } };
    let (logins, ports) = tokio::join!(logins, ports::check(inventory, patients, events));
    let logins = match logins {
        Ok(logins) => logins,
        Err(Error::Nodes { failed, .. } | Error::Unreachable(failed)) => return Ok(failed.iter().map(told).collect()),
        Err(error) => return Err(error),
    };
    let port = inventory.cluster.port;
    let open = !logins.pairs.is_empty() && logins.pairs.iter().all(|pair| pair.reason.is_none());
    let mut found = checks::logins(&logins, port);
    found.extend(checks::ports(&ports, open.then_some(port)));
    Ok(found)
}

/// Takes the nodes that answered.
///
/// # Errors
/// When they are another's, or one cannot be taken.
pub async fn claim(examined: &Examined, session: &Session) -> Result<(), Error> {
    let members: Vec<Member> = examined.patients.iter().map(|patient| patient.member.clone()).collect();
    let unleased = session.lock(&members).await?;
    if unleased.is_empty() { Ok(()) } else { Err(Error::Nodes { failed: unleased, done: 0 }) }
}

/// Carries out what is safe on nodes that were claimed; says what was done on which node, and what could not be.
///
/// # Errors
/// When the command has to stop, or keys cannot be pushed at all.
pub async fn fix(
    target: &Target,
    examined: &Examined,
    session: &Session,
    events: &Events,
) -> Result<(Vec<(String, String)>, Vec<NodeError>), Error> {
    let cluster = target.cluster();
    let members: Vec<Member> = examined.patients.iter().map(|patient| patient.member.clone()).collect();
    let (mut done, mut failed) = (Vec::new(), Vec::new());
    let fixes: Vec<&Fix> = examined.findings.iter().flat_map(|finding| &finding.fixes).collect();
    let patient = |node: &str| examined.patients.iter().find(|patient| patient.name() == node);
    for fix in &fixes {
        session.cancellation.check()?;
        let (node, what, cured) = match fix {
            Fix::RemoveContainer { node, name, id } => {
                let Some(docker) = patient(node).and_then(|patient| patient.docker.as_ref()) else { continue };
                let _step = events.begin(node, Step::RemovingContainer { name: name.clone() });
                (node, format!("removed {name}"), docker.engine.remove(id).await)
            }
            Fix::EndJob { node, job } => {
                let Some(patient) = patient(node) else { continue };
                let _step = events.begin(node, Step::EndingJob { job: job.clone() });
                let ended = end_ranks(cluster, job, &patient.member).await.and_then(|stuck| stuck.map_or(Ok(()), Err));
                (node, format!("ended what was left of the job {job}"), ended)
            }
            Fix::PushKeys => continue,
        };
        match cured {
            Ok(()) => {
                session.progress.did(node, &what);
                done.push((node.clone(), what));
            }
            Err(error) => failed.push(error),
        }
    }
    if fixes.contains(&&Fix::PushKeys) {
        let (pushed, bad) = split(events, push::push(&target.inventory, &members, session, events).await?);
        let changed = pushed.into_iter().filter(|pushed| !pushed.changes.is_empty());
        done.extend(changed.map(|pushed| (pushed.node, pushed.changes.to_string())));
        failed.extend(bad);
    }
    Ok((done, failed))
}
