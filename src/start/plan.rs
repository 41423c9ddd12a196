//! The plan of a job: which node does what, and what the launcher is given. It is made from the observed state and
//! changes nothing; a dry run prints it, `execute.rs` carries it out.

use super::capacity::{AllocatedNodes, QueueRequest, allocations, drained};
use super::hosts::{HostAssignment, JobHosts, RENDEZVOUS_PORTS, assign, wrong_name};
use super::parts::{JobPart, parts};
use super::request::{JobOptions, JobProgram};
use super::roles::JobRole;
use crate::checks::preflight::{self, Preflight};
use crate::cluster::each_node::all;
use crate::cluster::observation;
use crate::cluster::observation::ObservedNode;
use crate::cluster::target::Target;
use crate::diagnosis::ports::KnownPorts;
use crate::error::{Error, NodeError};
use crate::event::Events;
use crate::inventory::{Cluster, Inventory};
use crate::job::cleanup::JobNodes;
use crate::keys::files::{Keys, differing};
use crate::launch::description::{Elastic, LaunchDescription, Surroundings};
use crate::launch::placement::Placement;
use crate::launch::programs::{JOB_SUPERVISOR, QUEUE_WAIT, command};
use crate::launch::{LaunchRequest, Launcher, NodeCommand, launcher};
use crate::model::engine::EngineName;
use crate::model::launcher::LauncherName;
use crate::node::gpus::GpuRequest;
use crate::node::names::HostNames;
use crate::node::network;
use crate::random;
use crate::record::{Record, open_records, stored};
use crate::runtime::container::ContainerSummary;
use crate::runtime::spec::ContainerSpec;
use crate::text::nodeset;
use crate::worker::plan::{ForeignContainer, Operation, kept};
use crate::worker::{apply, image};
use std::collections::BTreeMap;

/// Where the ports of workers of queued jobs begin, at random: two of them may get a node at the same time. They are below those that systems give out (ip_local_port_range).
const FIRST_OWN_PORT: u16 = 20_000;
const OWN_PORTS: u64 = 9_000;

/// The workers in which ranks of a job run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Workers {
    /// Those of the cluster.
    Shared,
    /// The job's own, because other jobs have ranks on its nodes.
    Own {
        /// Their name.
        name: String,
        /// The port of their sshd.
        port: u16,
    },
}

/// The plan of a job, made before any node is changed.
pub struct JobPlan {
    /// The job's id.
    pub id: String,
    /// The program of every rank.
    pub program: JobProgram,
    /// How.
    pub options: JobOptions,
    /// The inventory.
    pub inventory: Inventory,
    /// The workers of its ranks.
    pub workers: Workers,
    /// Which rank runs where.
    pub placement: Placement,
    /// The nodes that take part.
    pub hosts: JobHosts,
    /// The names of all observed nodes, for the workers.
    pub names: HostNames,
    /// Selected nodes without ranks; they also get the project, unless they are drained.
    pub others: Vec<ObservedNode>,
    /// The request to the cluster's queue, if that chooses the nodes.
    pub queue: Option<QueueRequest>,
    /// The maximum number of ranks of an elastic job that nodes which are added to the inventory may join.
    pub(super) max_ranks: Option<u32>,
    /// Descriptions of the drained nodes, for a note.
    drained: Vec<String>,
    /// The commands that are started on the nodes, for each role; those of a job without roles come first.
    pub commands: Vec<Vec<NodeCommand>>,
    /// The `hmaster` container without its workspace, which is known after the upload.
    pub container: ContainerSpec,
    /// The first of the ports by which the ranks find one another, for each role, or for all ranks.
    pub(super) rendezvous_ports: Vec<u16>,
    /// The contents of `launch.json` for the job supervisor.
    pub(super) launch: String,
}

impl JobPlan {
    /// Plans a job on the nodes that it was allocated. Changes nothing.
    ///
    /// # Errors
    /// A node without an address, an `env_file` that cannot be read, a variable that only the launcher may set.
    pub fn new(
        target: &Target,
        allocated: AllocatedNodes,
        program: JobProgram,
        options: JobOptions,
        id: String,
    ) -> Result<JobPlan, Error> {
        let AllocatedNodes { nodes, placement, queue } = allocated;
        check_commands(&program, &options)?;
        let drained = nodes.iter().filter_map(drained).collect();
        let max_ranks = max_ranks(target, &options);
        let names = observation::host_names(&target.inventory, nodes.iter());
        let (mut hosts, others) = assign(target, &placement, nodes, max_ranks.is_some(), &options)?;
        hosts.compare_speeds();
        hosts.add_variables(&options)?;
        let inventory = target.inventory.clone();
        let workers = match queue {
            Some(_) => Workers::own(&inventory.cluster, &id, &hosts, FIRST_OWN_PORT + random::below(OWN_PORTS) as u16)?,
            None => Workers::new(&inventory.cluster, &id, &hosts)?,
        };
        let cluster = &workers.of_job(&inventory).cluster;
        let job_dir = format!("{}/{id}", cluster.jobs_dir);
        // jobs that get a node at the same time do not see each other's ports
        let after = if queue.is_some() { random::below(RENDEZVOUS_PORTS) as u16 } else { 0 };
        let parts = parts(&hosts, &options, after)?;
        let request = parts[0].request(cluster, &job_dir, &options);
        let container = launcher_container(cluster, &id, &hosts.launcher, parts[0].launcher, &request, queue.is_some());
        let commands = parts.iter().map(|part| part.launcher.commands(&part.request(cluster, &job_dir, &options)));
        Ok(JobPlan {
            commands: commands.collect(),
            rendezvous_ports: parts.iter().map(|part| part.rendezvous_port).collect(),
            launch: launch_file(
                (cluster, &job_dir),
                &parts,
                (&hosts, &placement),
                &names,
                &options,
                (&workers, queue),
            )?,
            id,
            program,
            options,
            container,
            placement,
            hosts,
            names,
            others,
            max_ranks,
            drained,
            workers,
            queue,
            inventory,
        })
    }

    /// Reports what is worth knowing before the job begins: the drained nodes, and the warnings about those that take
    /// part.
    pub fn report(&self, events: &Events) {
        self.drained.iter().for_each(|drained| events.note(format!("{drained} and gets no ranks")));
        self.preflight().warnings.iter().for_each(|warning| events.warn(warning));
    }

    /// Applies the rules to the nodes that take part.
    pub fn preflight(&self) -> Preflight {
        let others = self.hosts.others.iter().map(|host| (&host.observed, true));
        let taking_part: Vec<_> = std::iter::once((&self.hosts.launcher.observed, false)).chain(others).collect();
        preflight::check(&self.inventory, &taking_part)
    }

    /// Checks everything that would make the job fail, before anything is uploaded.
    ///
    /// # Errors
    /// [`Error::Nodes`] with each failure, or a check of the keys.
    pub fn check(&self, events: &Events) -> Result<(), Error> {
        let others = self.hosts.others.iter().map(|host| self.check_worker(&host.observed));
        let checked = std::iter::once(self.check_launcher().map(|()| Vec::new())).chain(others);
        let mixed = self.hosts.all().filter_map(|host| self.mixed_data(host));
        let named = self.wrong_names_of(|host| self.is_found_by_name(host));
        let found = self.preflight().failed.into_iter().chain(mixed).chain(named).map(Err);
        let planned = all(events, checked.chain(found).collect())?;
        let planned = self.hosts.observed().zip(planned.iter().map(Vec::as_slice));
        apply::check_disrupted(&self.inventory.cluster, planned)?;
        check_keys(&self.inventory, self.hosts.observed())
    }

    /// Checks that the nodes that take part have what `hvdctl up` gives them: the cluster's image and keys.
    ///
    /// # Errors
    /// [`Error::NotUp`].
    pub fn check_up(&self) -> Result<(), Error> {
        let cluster = &self.inventory.cluster;
        let failed: Vec<_> = match image::is_wanted(cluster, false) {
            // `up` does not get those of roles
            true => {
                let of_cluster = self.hosts.observed().filter(|observed| observed.runtime.own.image.is_none());
                of_cluster.filter_map(|observed| observed.image_id(cluster).err()).collect()
            }
            false => Vec::new(),
        };
        let images = if failed.is_empty() { Ok(()) } else { Err(Error::Nodes { failed, done: 0 }) };
        images
            .and_then(|()| check_keys(&self.inventory, self.hosts.observed()))
            .map_err(|missing| Error::NotUp(Box::new(missing)))
    }

    /// Returns the errors of the nodes to whose host names ranks of this launcher would connect although they do not
    /// lead there.
    pub fn wrong_names(&self, launcher: &Launcher) -> impl Iterator<Item = NodeError> {
        self.wrong_names_of(|host| launcher.by_host_name && host.ranks > 0)
    }

    /// Returns the same for the nodes that are found by their host names.
    fn wrong_names_of(&self, by_name: impl Fn(&HostAssignment) -> bool) -> impl Iterator<Item = NodeError> {
        let by_name = move |host: &&HostAssignment| !self.hosts.others.is_empty() && by_name(host);
        self.hosts.all().filter(by_name).filter_map(|host| wrong_name(&host.observed, &host.endpoint))
    }

    /// Returns whether ranks of a node are found by its host name.
    fn is_found_by_name(&self, host: &HostAssignment) -> bool {
        let has_ranks = |(role, of): (usize, &JobRole)| of.launcher().by_host_name && host.ranks_of(Some(role)) > 0;
        match self.options.roles.is_empty() {
            true => launcher(self.options.launcher, self.options.controller).by_host_name && host.ranks > 0,
            false => self.options.roles.iter().enumerate().any(has_ranks),
        }
    }

    /// Returns the name of the image of a role, given by its number, or of all ranks without roles; processes have none.
    pub fn image_of(&self, role: usize) -> String {
        let role = (!self.options.roles.is_empty()).then_some(role);
        let host = self.hosts.all().find(|host| host.ranks_of(role) > 0);
        host.unwrap_or(&self.hosts.launcher).observed.runtime.image_name(&self.inventory.cluster)
    }

    /// Returns the launchers of its roles, or that of a job without, with what is started for each.
    pub fn launchers(&self) -> impl Iterator<Item = (LauncherName, &[NodeCommand])> {
        let roles = self.options.roles.iter().map(|role| role.launcher);
        let all = roles.chain(Some(self.options.launcher).filter(|_| self.options.roles.is_empty()));
        all.zip(self.commands.iter().map(Vec::as_slice))
    }

    /// Returns the error of a node whose ranks would read the files of two pushes: of data that are incomplete there
    /// and that the program's arguments or environment name. Others are only warned about: the job may not need them.
    fn mixed_data(&self, host: &HostAssignment) -> Option<NodeError> {
        let data = self.inventory.cluster.layout(&self.container.name).data;
        let roles = self.options.roles.iter().flat_map(|role| &role.project.command);
        let arguments: Vec<String> = self.program.command.iter().chain(roles).map(ToString::to_string).collect();
        let of_roles = || host.roles.iter().flat_map(|role| role.environment.values());
        let is_named = |name: &str| {
            arguments.iter().any(|argument| names_data(argument, &data, name))
                || host.environment.values().chain(of_roles()).any(|value| names_data(value.expose(), &data, name))
        };
        let pushed = host.observed.facts.storage.pushed.iter().filter(|_| host.ranks > 0);
        let mut mixed = pushed.filter(|(_, data)| data.hash == "-" && data.inode.is_some());
        let (name, _) = mixed.find(|(name, _)| is_named(name))?;
        let cause =
            format!("a push was interrupted, and some of the files in {data}/{name} are those of the previous push");
        let hint = format!("`hvdctl data push DIR --as {name}` completes them, `hvdctl data rm {name}` removes them");
        Some(NodeError::failed(host.observed.name(), &format!("use the data {name}"), cause).hint(hint))
    }

    /// Checks that a node can have its part of the job. Returns what has to be done there for its worker, unless the
    /// job has its own.
    fn check_worker(&self, observed: &ObservedNode) -> Result<Vec<Operation>, NodeError> {
        let desired = apply::desired(&self.inventory, observed)?;
        let operations = apply::plan(&self.inventory.cluster, observed, &desired)?;
        Ok(if self.workers == Workers::Shared { operations } else { Vec::new() })
    }

    /// Checks the node of the launcher. Its ranks run in `hmaster`, so its worker does not matter.
    fn check_launcher(&self) -> Result<(), NodeError> {
        let (cluster, HostAssignment { observed, ranks, .. }) = (&self.inventory.cluster, &self.hosts.launcher);
        check_master_name(cluster, observed)?;
        if *ranks > 0 {
            observation::check_gpus(&observed.member.node, &observed.facts)?;
        }
        observed.image_id(cluster).map(drop)
    }

    /// Returns the ports that are known to be in use on the nodes that take part: of their workers, of the jobs that ran
    /// there when this one began, and of a launcher that keeps the port which its ranks find.
    pub fn ports(&self) -> Vec<KnownPorts> {
        let workers = self.inventory.cluster.port;
        let others = self.hosts.observed().flat_map(|observed| {
            open_records(&observed.open.jobs).filter(|record| observed.open.is_under_way(&record.id))
        });
        let others: BTreeMap<String, Record> = others.map(|record| (record.id.clone(), record)).collect();
        let by_torchrun =
            self.launchers().zip(&self.rendezvous_ports).filter(|((name, _), _)| *name == LauncherName::Torchrun);
        let own = by_torchrun.map(|(_, port)| KnownPorts {
            first: *port,
            count: 1,
            owner: "torchrun itself (MASTER_PORT)".to_owned(),
        });
        let others = others.values().flat_map(|record| record.ports(workers));
        [KnownPorts::of_workers(workers)].into_iter().chain(own).chain(others).collect()
    }

    /// The job on the nodes that take part.
    pub fn nodes(&self) -> JobNodes<'_> {
        let member = |host: &HostAssignment| host.observed.member.clone();
        JobNodes {
            cluster: &self.inventory.cluster,
            id: &self.id,
            launcher: member(&self.hosts.launcher),
            others: self.hosts.others.iter().map(member).collect(),
            shares_directory: false,
        }
    }
}

/// Returns whether a text has the path of these data in the containers.
fn names_data(text: &str, data: &str, name: &str) -> bool {
    let is_of_name = |c: char| c.is_ascii_alphanumeric() || "._-".contains(c);
    let names = |path: String| {
        text.match_indices(&path)
            .any(|(at, _)| !text[..at].ends_with(is_of_name) && !text[at + path.len()..].starts_with(is_of_name))
    };
    [data, "$HVDCTL_DATA", "${HVDCTL_DATA}"].into_iter().any(|directory| names(format!("{directory}/{name}")))
}

fn is_podman(observed: &ObservedNode) -> bool {
    observed.runtime.engine.version().is_some_and(|(name, _)| name == EngineName::Podman)
}

/// Checks that the nodes of a job have the cluster's keys.
///
/// # Errors
/// With the nodes where they are missing or differ.
pub fn check_keys<'a>(inventory: &Inventory, nodes: impl Iterator<Item = &'a ObservedNode>) -> Result<(), Error> {
    let observed: Vec<_> = nodes.collect();
    let nodes: Vec<_> = observed.iter().map(|observed| (&observed.member.node, &observed.facts)).collect();
    let lacking = match observed[..] {
        // a job on one node logs in nowhere, but Podman mounts no directory that does not exist
        [node] if is_podman(node) && node.facts.keys.directory.is_none() => vec![node.name().to_owned()],
        [] | [_] => Vec::new(),
        _ => differing(inventory, &nodes, Keys::to_launch),
    };
    if lacking.is_empty() {
        return Ok(());
    }
    let lacking = nodeset::fold(&lacking);
    let hint = "`hvdctl up` pushes them and starts the workers";
    Err(Error::check(format!("the cluster's keys are missing or differ on {lacking}"), hint))
}

impl Workers {
    /// Chooses the workers of a job.
    fn new(cluster: &Cluster, id: &str, hosts: &JobHosts) -> Result<Workers, Error> {
        let others: Vec<_> = hosts.others.iter().flat_map(|host| allocations(&host.observed)).collect();
        if others.is_empty() { Ok(Workers::Shared) } else { Workers::own(cluster, id, hosts, cluster.port) }
    }

    /// Returns workers of the job's own, with a port above `above`.
    fn own(cluster: &Cluster, id: &str, hosts: &JobHosts, above: u16) -> Result<Workers, Error> {
        let others: Vec<_> = hosts.others.iter().flat_map(|host| open_records(&host.observed.open.jobs)).collect();
        let workers = || hosts.others.iter().map(|host| &host.observed);
        // a port whose worker has just exited is still that of its job, whose supervisor retries it
        let is_free = |port: &u16| {
            workers().all(|observed| !observed.facts.network.ports.contains(port))
                && others.iter().all(|other| other.port != *port)
        };
        let port = (above..=u16::MAX).skip(1).find(is_free).ok_or_else(|| {
            Error::check(
                format!("no port above {above} is free on all nodes of the job"),
                "set cluster.port to a lower number",
            )
        })?;
        Ok(Workers::Own { name: format!("{}-{id}", cluster.worker), port })
    }

    /// Returns the port of their sshd.
    pub(super) fn port(&self, cluster: &Cluster) -> u16 {
        match self {
            Workers::Shared => cluster.port,
            Workers::Own { port, .. } => *port,
        }
    }

    /// Returns the inventory as it is for the workers of the job.
    pub fn of_job(&self, inventory: &Inventory) -> Inventory {
        let mut own = inventory.clone();
        if let Workers::Own { name, port } = self {
            own.cluster.worker.clone_from(name);
            own.cluster.port = *port;
        }
        own
    }
}

/// Returns the launcher's container without its workspace. `waits`: for its nodes.
fn launcher_container(
    cluster: &Cluster,
    id: &str,
    first: &HostAssignment,
    launcher: &Launcher,
    request: &LaunchRequest<'_>,
    waits: bool,
) -> ContainerSpec {
    let (node, facts) = (&first.observed.member.node, &first.observed.facts);
    let gpus = if first.ranks == 0 { GpuRequest::None } else { network::gpu_request(node, facts) };
    let supervisor = command(request.job_dir, if waits { QUEUE_WAIT } else { JOB_SUPERVISOR }).to_vec();
    let name = if waits { format!("{}-{id}", cluster.master) } else { master_name(cluster, id, first) };
    let environment = launcher.container_environment(id, request);
    let mut container = ContainerSpec::master(cluster, node, gpus, supervisor, id);
    container.spec.image = first.observed.runtime.image_name(cluster);
    ContainerSpec {
        env: environment.into_iter().chain(cluster.layout(&name).variables()).collect(),
        name,
        ..container.with_data(cluster, node, &facts.storage.pushed)
    }
}

/// Returns the name of the launcher's container: one of the job's own if another job's container has the usual one,
/// because that job runs or has ended and its container is kept.
fn master_name(cluster: &Cluster, id: &str, launcher: &HostAssignment) -> String {
    let (containers, outside) = (&launcher.observed.runtime.containers, &launcher.observed.facts.jobs.outside);
    let kept = kept(&cluster.name, containers, outside).map(|kept| &kept.id);
    let is_used = |c: &ContainerSummary| {
        c.name == cluster.master && c.belongs_to(&cluster.name) && (c.state.is_up() || kept == Some(&c.id))
    };
    match containers.iter().any(is_used) {
        true => format!("{}-{id}", cluster.master),
        false => cluster.master.clone(),
    }
}

/// Returns how many ranks an elastic job may have when nodes are added to the inventory. Nodes that were selected by
/// `--on`, or are shared with other jobs, stay the only ones.
fn max_ranks(target: &Target, options: &JobOptions) -> Option<u32> {
    let may_grow = options.resources.per_node.is_none() && target.selected.len() == target.inventory.nodes.len();
    options.resources.ranks.filter(|ranks| may_grow && ranks.min.is_some()).map(|ranks| ranks.max)
}

/// Checks that no foreign container has the name of `hmaster`.
fn check_master_name(cluster: &Cluster, observed: &ObservedNode) -> Result<(), NodeError> {
    match ForeignContainer::find(&cluster.master, &cluster.name, &observed.runtime.containers) {
        None => Ok(()),
        Some(foreign) => {
            let hint = foreign.hint("cluster.master");
            Err(NodeError::failed(observed.name(), &format!("start {}", cluster.master), foreign).hint(hint))
        }
    }
}

/// Returns what the job supervisor has to know of any job: nothing of its nodes but the first.
pub fn describe<'a>(
    cluster: &Cluster,
    launcher: &Launcher,
    request: &LaunchRequest<'a>,
    options: &JobOptions,
) -> LaunchDescription<'a> {
    LaunchDescription {
        start: launcher.start,
        launcher: (launcher.arguments)(request),
        variables: (launcher.variables)(request).into_iter().collect(),
        surroundings: Surroundings::of(launcher, request, cluster.port),
        first: request.first,
        names: Vec::new(),
        workers: Vec::new(),
        restarts: options.restarts,
        elastic: None,
        slurm: false,
        warning: None,
        queued: false,
        own_workers: false,
        grace: cluster.stop_grace.as_secs(),
        start_timeout: cluster.start_timeout.as_secs(),
        restart_pause: cluster.restart_pause.as_secs(),
        keep_alive: cluster.keep_alive.as_secs(),
        roles: Vec::new(),
    }
}

/// Checks what the ranks run against their launchers.
///
/// # Errors
/// Options of a launcher in the place of a program.
pub fn check_commands(program: &JobProgram, options: &JobOptions) -> Result<(), Error> {
    match options.roles.as_slice() {
        [] => launcher(options.launcher, options.controller).check_command(&program.command),
        roles => roles.iter().try_for_each(|role| role.launcher().check_command(&role.project.command)),
    }
}

/// Returns `launch.json`, from which the job supervisor works.
///
/// # Errors
/// If JSON cannot represent it.
fn launch_file(
    (cluster, job_dir): (&Cluster, &str),
    parts: &[JobPart<'_>],
    (hosts, placement): (&JobHosts, &Placement),
    names: &HostNames,
    options: &JobOptions,
    (workers, queue): (&Workers, Option<QueueRequest>),
) -> Result<String, Error> {
    let requests: Vec<LaunchRequest<'_>> = parts.iter().map(|part| part.request(cluster, job_dir, options)).collect();
    let (launcher, request) = (parts[0].launcher, &requests[0]);
    let roles = parts.iter().zip(&requests).zip(&options.roles);
    let describe_role = |((part, request), role)| match queue {
        Some(_) => JobPart::unplaced_description(part, role, request),
        None => JobPart::description(part, role, request, placement),
    };
    let description = LaunchDescription {
        // of all roles
        first: hosts.launcher.launch_host(),
        names: names.of_node(request.first.node).unwrap_or_default(),
        workers: hosts.others.iter().map(HostAssignment::launch_host).collect(),
        elastic: options.min_ranks().map(|min_ranks| Elastic {
            min_ranks,
            timeout: cluster.elastic_timeout.as_secs(),
            in_place: request.kept.is_some(),
        }),
        queued: queue.is_some(),
        own_workers: *workers != Workers::Shared,
        roles: roles.map(describe_role).collect(),
        ..describe(cluster, launcher, request, options)
    };
    stored::write("launch.json", &description).map_err(Error::Local)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn data_are_named_by_their_path_and_no_longer_one() {
        for text in [
            "/data/set",
            "$HVDCTL_DATA/set",
            "--dir=/data/set/train",
            "a:/data/set:b",
            "'/data/set'",
            "/data/set2 /data/set",
        ] {
            assert!(names_data(text, "/data", "set"), "{text}");
        }
        for text in ["", "/data", "/data/set2", "/data/set.old", "/mnt/data/set", "data/set", "/data/"] {
            assert!(!names_data(text, "/data", "set"), "{text}");
        }
    }
}
