//! The job's directory on a node, `JOBS/ID`: the record, the environment of the ranks, and the programs that supervise
//! them.

use super::hosts::HostAssignment;
use super::parts::{launcher_file, roles_file};
use super::plan::{JobPlan, Workers};
use super::request::{JobOptions, JobProgram};
use super::roles::JobRole;
use crate::cluster::member::Member;
use crate::cluster::operator::{now, operator};
use crate::error::{ErrorKind, NodeError};
use crate::files::{PackedFile, archive};
use crate::grade::speed;
use crate::inventory::{Cluster, Inventory};
use crate::launch::placement::{Placement, Share};
use crate::launch::programs;
use crate::record::{Record, Scheduled, stored};
use crate::runtime::spec::image_of;
use crate::secret::Secret;
use crate::sync::commit::is_commit;
use crate::transport::node::Script;
use crate::worker::spec::users;
use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use zeroize::Zeroizing;

const START: &str = concat!(
    include_str!("../scripts/job/directory.sh"),
    include_str!("../scripts/job/lend.sh"),
    include_str!("../scripts/job/start.sh")
);

/// The file with the ranks' environment; `job/end.sh` removes it.
pub(super) const ENVIRONMENT: &str = "env.json";

/// The beginning of the names of hvdctl's own variables.
const OWN_VARIABLES: &str = "HVDCTL_";

/// The variable in which ranks have the speed of their node.
pub(super) const SPEED: &str = "HVDCTL_SPEED";

/// The variable in which ranks have the directory of data that were pushed.
const DATA: &str = "HVDCTL_DATA";

/// The variables in which ranks have the commit of their project, and whether it differs from that.
const COMMIT: &str = "HVDCTL_GIT_COMMIT";
const DIRTY: &str = "HVDCTL_GIT_DIRTY";

/// The exit code of `job/start.sh` if another job has the directory.
const EXISTS: i32 = 17;

impl JobPlan {
    /// Creates the job's directory on a node that has ranks in a worker.
    ///
    /// # Errors
    /// With the node's message.
    pub(super) async fn create_directory(&self, host: &HostAssignment) -> Result<(), NodeError> {
        self.create(host, Vec::new()).await
    }

    /// Creates it on the node of the launcher.
    ///
    /// # Errors
    /// With the node's message.
    pub(super) async fn create_directory_of_launcher(&self, host: &HostAssignment) -> Result<(), NodeError> {
        let known_hosts = match self.workers {
            Workers::Shared => None,
            Workers::Own { port, .. } => Some(known_hosts(host, self.inventory.cluster.port, port)),
        };
        let mut files: Vec<PackedFile<'_>> = vec![(0o600, "launch.json", self.launch.as_str())];
        files.extend(programs::ON_FIRST_NODE);
        files.extend(known_hosts.as_deref().map(|text| (0o644, "known_hosts", text)));
        let others = self.hosts.others.iter();
        let logins = others.map(|host| (host.endpoint.address, host.observed.member.transport.as_ref()));
        let users = users(&self.inventory.cluster, logins);
        files.extend(users.as_deref().map(|text| (0o644, "ssh_config", text)));
        self.create(host, files).await
    }

    async fn create(&self, host: &HostAssignment, more: Vec<PackedFile<'_>>) -> Result<(), NodeError> {
        let mut files: Vec<PackedFile<'_>> = programs::ON_EVERY_NODE.into_iter().chain(more).collect();
        files.extend(self.program.files.iter().map(|(name, text)| (0o644, *name, text.as_ref())));
        let (address, roles) = (self.hosts.launcher.endpoint.address, self.options.roles.as_slice());
        let of_roles = (!roles.is_empty()).then(|| roles_file(roles, &self.hosts));
        files.extend(of_roles.as_deref().map(|text| (0o644, "roles.json", text)));
        create(&self.inventory.cluster, host, self.record(host), (address, roles), &files).await
    }

    /// Returns the project's directory, as the ranks of a node see it.
    fn workspace(&self, host: &HostAssignment) -> String {
        let workers = self.workers.of_job(&self.inventory).cluster;
        let is_launcher = host.observed.name() == self.hosts.launcher.observed.name();
        workers.layout(if is_launcher { &self.container.name } else { &workers.worker }).workspace
    }

    /// Returns the record for a node, without what [`create`] adds to it.
    fn record(&self, host: &HostAssignment) -> Record {
        let JobPlan { program, options, inventory: Inventory { cluster, .. }, .. } = self;
        Record {
            id: self.id.clone(),
            min_ranks: options.min_ranks(),
            max_ranks: self.max_ranks,
            created: now() + self.hosts.launcher.observed.facts.clock_ahead(),
            placement: match self.queue {
                // of a job that waits, only the launcher's node is known
                Some(queue) => Placement {
                    shares: vec![Share {
                        node: self.placement.launcher().to_owned(),
                        ranks: queue.ranks,
                        ..Share::default()
                    }],
                    ..Placement::default()
                },
                None => self.placement.clone(),
            },
            scheduled: self.queue.map(|_| Scheduled { is_placed: false, is_own: true }),
            bind: options.bind,
            cwd: directory_of_ranks(cluster, program, &self.id, self.workspace(host)),
            port: self.workers.port(cluster),
            rendezvous_port: self.rendezvous_ports.first().copied(),
            ..record_of(cluster, program, options)
        }
    }
}

/// Returns the directory in which the ranks of a job start. `workspace`: where they find the project.
pub fn directory_of_ranks(cluster: &Cluster, program: &JobProgram, id: &str, workspace: String) -> String {
    match program.project {
        Some(_) => workspace,
        None if program.files.is_empty() => "/".into(),
        None => format!("{}/{id}", cluster.jobs_dir),
    }
}

/// Returns what a job's record has of its program and options, wherever it runs.
pub fn record_of(cluster: &Cluster, program: &JobProgram, options: &JobOptions) -> Record {
    Record {
        cluster: cluster.name.clone(),
        name: program.title.clone().unwrap_or_else(|| program.name.clone()),
        project: program.project.as_ref().map(|_| program.name.clone()),
        restarts: options.restarts,
        operator: operator(),
        launcher: options.launcher,
        controller: options.launcher.has_controller().then_some(options.controller),
        command: program.command.clone(),
        roles: options.roles.iter().map(JobRole::recorded).collect(),
        default_command: program.is_default_command,
        commit: program.commit.as_ref().map(|commit| commit.id.clone()),
        dirty: program.commit.as_ref().and_then(|commit| commit.is_dirty),
        grace: cluster.stop_grace.as_secs(),
        stall: options.stall_timeout.as_secs(),
        idle_margin: cluster.idle_margin.as_secs(),
        stall_warning: cluster.stall_warning.as_secs(),
        isolated_after: cluster.isolated_after.as_secs(),
        // a check only measures what it is for
        sample: if program.is_check() { 0 } else { cluster.sample.as_secs() },
        image: Some(image_of(cluster)).filter(|image| !image.is_empty()),
        version: Some(env!("CARGO_PKG_VERSION").to_owned()),
        log_max: options.log_max,
        log_progress: options.log_progress,
        ..Record::default()
    }
}

/// Creates a job's directory on a node: its record, the ranks' environment, the description of the launcher, and
/// `others`. `first` is the address of the launcher's node. Where the ranks run in the worker that jobs share, this
/// worker sees it until the job has ended.
///
/// # Errors
/// With the node's message, or of kind [`ErrorKind::JobExists`] if another job has the directory; or if a file cannot
/// be written as JSON.
pub(super) async fn create(
    cluster: &Cluster,
    host: &HostAssignment,
    record: Record,
    (first, roles): (IpAddr, &[JobRole]),
    others: &[PackedFile<'_>],
) -> Result<(), NodeError> {
    let Member { node, .. } = &host.observed.member;
    let (interface, ulimits) = (host.endpoint.label.clone(), node.container.ulimits.clone());
    let record = Record { ranks: host.ranks, interface, ulimits, ..record };
    let image = host.observed.runtime.own.image.clone().or(record.image.clone());
    let record = Record { image, ..record };
    let placed = (&record.placement, node.name.as_str(), &host.endpoint);
    let launcher = match roles {
        [] => record.launcher().rank_description(&host.endpoint, first).to_string(),
        roles => launcher_file(roles, placed, first, (record.stall, record.stall_warning)),
    };
    let launches = record.placement.launcher() == node.name;
    let is_shared = record.port == cluster.port && !launches;
    let of_ranks = |given| variables(cluster, &record, given, host.speed);
    // a launcher reads some variables of its ranks, also on a node without them
    let here = host.roles.iter().enumerate().filter(|(_, role)| role.ranks > 0 || launches);
    let role_environments: Vec<_> =
        here.map(|(number, role)| (role_environment(number), of_ranks(&role.environment))).collect();
    // the file of a job with roles only shows that the job has not ended
    let environment = if roles.is_empty() { of_ranks(&host.environment) } else { BTreeMap::new() };
    let contents = DirectoryContents {
        record: &record,
        launcher: &launcher,
        environment: &environment,
        role_environments: &role_environments,
        is_shared,
        others,
    };
    write(cluster, &host.observed.member, contents).await
}

/// Returns the name of the file with the environment of a role's ranks.
pub fn role_environment(role: usize) -> String {
    format!("env.{role}.json")
}

/// Returns the ranks' environment: `given`, and hvdctl's own variables.
pub fn variables(
    cluster: &Cluster,
    record: &Record,
    given: &BTreeMap<String, Secret>,
    speed: f64,
) -> BTreeMap<String, Secret> {
    let data = cluster.layout(&cluster.worker).data;
    let dirty = record.dirty.map(|dirty| (DIRTY, if dirty { "1" } else { "0" }.to_owned()));
    let commit = record.commit.clone().filter(|id| is_commit(id)).map(|id| (COMMIT, id));
    let own = [(SPEED, speed::variable(speed)), (DATA, data)].into_iter().chain(commit).chain(dirty);
    let own = own.map(|(name, value)| (name.to_owned(), Secret::plain(value)));
    given.iter().map(|(name, value)| (name.clone(), value.clone())).chain(own).collect()
}

/// The contents of a job's directory.
pub struct DirectoryContents<'a> {
    /// The job's record.
    pub record: &'a Record,
    /// The description of the launcher for the rank supervisors.
    pub launcher: &'a str,
    /// The ranks' environment.
    pub environment: &'a BTreeMap<String, Secret>,
    /// Those of the ranks of roles, with the names of their files.
    pub role_environments: &'a [(String, BTreeMap<String, Secret>)],
    /// Set if its ranks run in the worker that jobs share.
    pub is_shared: bool,
    /// Further files.
    pub others: &'a [PackedFile<'a>],
}

/// Writes a job's directory on a node.
///
/// # Errors
/// With the node's message, or of kind [`ErrorKind::JobExists`] if another job has the directory; or if a file cannot be
/// written as JSON.
pub async fn write(cluster: &Cluster, member: &Member, contents: DirectoryContents<'_>) -> Result<(), NodeError> {
    let DirectoryContents { record, launcher, environment, role_environments, is_shared, others } = contents;
    let jobs_dir = &cluster.jobs_dir;
    let operation = format!("create the directory of the job in {jobs_dir}");
    let failed = |cause: String| NodeError::failed(&member.node.name, &operation, cause);
    let of_roles = role_environments.iter().flat_map(|(_, environment)| environment.keys());
    let given: BTreeSet<&String> =
        environment.keys().chain(of_roles).filter(|name| !name.starts_with(OWN_VARIABLES)).collect();
    let record = &Record { variables: given.into_iter().cloned().collect(), ..record.clone() };
    let text = stored::write_checked("job.json", record).map_err(failed)?;
    let secret = |name: &str, environment: &BTreeMap<String, Secret>| {
        let environment: BTreeMap<&str, &str> =
            environment.iter().map(|(name, value)| (name.as_str(), value.expose())).collect();
        Ok(Zeroizing::new(stored::json(name, &environment).map_err(failed)?))
    };
    let environment = secret(ENVIRONMENT, environment)?;
    let role_environments = role_environments.iter().map(|(name, of)| Ok((name.as_str(), secret(name, of)?)));
    let role_environments = role_environments.collect::<Result<Vec<_>, NodeError>>()?;
    let mut files = vec![
        (0o600, "job.json", text.as_str()),
        (0o600, ENVIRONMENT, environment.as_str()),
        (0o644, "launcher.json", launcher),
    ];
    files.extend(role_environments.iter().map(|(name, text)| (0o600, *name, text.as_str())));
    files.extend(others);
    if record.sample > 0 {
        files.push((0o600, "samples", ""));
    }
    // the ranks' log, readable by root only; written last, so it exists only if all other files do
    files.push((0o600, "log", ""));
    let script = Script::new(START)
        .with("jobs_dir", jobs_dir)
        .with("cluster", &record.cluster)
        .with("id", &record.id)
        .with("shared", if is_shared { "1" } else { "" })
        .with("files", &archive(&files))
        .with("own", &own(record).map_err(failed)?);
    let created = member.transport.script(&script, &operation).await.map(drop);
    created.map_err(|error| match error.kind {
        ErrorKind::CommandFailed { status: EXISTS } => error.kind(ErrorKind::JobExists).hint("run the command again"),
        _ => error,
    })
}

/// Returns a text that is in this record as it is stored, and in no other job's: by whom and in which millisecond it
/// was created. The digits after that may change when a record is read and stored again.
fn own(record: &Record) -> Result<String, String> {
    let operator = stored::json("job.json", &record.operator)?;
    let created: String = stored::json("job.json", &record.created)?.chars().take("1700000000.000".len()).collect();
    Ok(format!("\"operator\":{operator},\"created\":{created}"))
}

/// The workers' pinned host keys for the port of the job's own workers; `programs/ssh.sh` finds them there.
fn known_hosts(host: &HostAssignment, from: u16, to: u16) -> String {
    let pinned = host.observed.facts.keys.files.get("known_hosts").map_or("", |file| file.text.as_str());
    pinned.replace(&format!("]:{from}"), &format!("]:{to}"))
}

#[cfg(test)]
mod tests;
