//! The parts of a job that have a launcher of their own: its roles, or all of a job without roles.

use super::hosts::{HostAssignment, JobHosts, rendezvous_port};
use super::request::JobOptions;
use super::roles::JobRole;
use crate::error::Error;
use crate::inventory::Cluster;
use crate::launch::description::{
    LaunchHost, RankDescription, RankRoleDescription, RoleDescription, RoleOverrides, RolePlace, Surroundings,
};
use crate::launch::placement::{Placement, Share};
use crate::launch::programs::RANK_SUPERVISOR;
use crate::launch::{self, LaunchRequest, Launcher};
use crate::node::network::Endpoint;
use serde_json::json;
use std::net::{IpAddr, Ipv4Addr};
use std::time::Duration;

/// The variables that a launcher gets of the environment of the launcher's node if that has another image, or other
/// lines of `activate`, than its own nodes. The rest, `PATH` above all, is that of each node.
const OF_JOB: &[&str] = &["HVDCTL_*", "PYTHONUNBUFFERED"];

/// Stands for the port at which ranks find one another: the job supervisor chooses one.
const ANY_PORT: u16 = 0;

/// A part of a job.
pub struct JobPart<'a> {
    /// The launcher of its ranks.
    pub launcher: &'static Launcher,
    /// The nodes with ranks of it, in rank order.
    hosts: Vec<LaunchHost<'a>>,
    /// The node of the job's launcher.
    first: LaunchHost<'a>,
    interface: String,
    /// The first of the ports by which its ranks find one another.
    pub rendezvous_port: u16,
    stall_timeout: Duration,
    role: Option<usize>,
    /// Set if its nodes have another image, or other lines of `activate`, than that of the job's launcher.
    has_other_environment: bool,
}

/// Returns the parts of a job, in the order of its roles. The search for their ports begins `after` so many.
///
/// # Errors
/// Interfaces that a launcher cannot use; no free ports.
pub(super) fn parts<'a>(hosts: &'a JobHosts, options: &JobOptions, after: u16) -> Result<Vec<JobPart<'a>>, Error> {
    let roles = numbers(options);
    let most = |role| hosts.all().map(|host| host.ranks_of(role)).max().unwrap_or_default().max(1);
    let counts: Vec<u32> = roles.iter().map(|role| most(*role)).collect();
    let first_port = rendezvous_port(hosts, counts.iter().sum(), after)?;
    let part = |(number, role): (usize, Option<usize>)| {
        let part = unplaced(options, role);
        let launcher = part.launcher;
        let host = |host: &'a HostAssignment| LaunchHost { ranks: host.ranks_of(role), ..host.launch_host() };
        let takes_part = |host: &&HostAssignment| role.is_none() || host.ranks_of(role) > 0;
        let differs = |host: &HostAssignment| host.observed.runtime.own != hosts.launcher.observed.runtime.own;
        let others = hosts.others.iter().filter(takes_part);
        let endpoints: Vec<(&str, &Endpoint)> =
            std::iter::once(&hosts.launcher).chain(others).map(|host| (host.observed.name(), &host.endpoint)).collect();
        Ok(JobPart {
            hosts: hosts.all().map(host).filter(|host| host.ranks > 0).collect(),
            first: host(&hosts.launcher),
            interface: launcher.shared_interface(&endpoints)?,
            // of all of them together there are no more than one for each rank of a node and role
            rendezvous_port: first_port + counts[..number].iter().sum::<u32>() as u16,
            has_other_environment: hosts.all().filter(|host| host.ranks_of(role) > 0).any(differs),
            ..part
        })
    };
    roles.into_iter().enumerate().map(part).collect()
}

/// Returns the numbers of the roles of a job, or `None` for all of a job without roles.
fn numbers(options: &JobOptions) -> Vec<Option<usize>> {
    match options.roles.len() {
        0 => vec![None],
        roles => (0..roles).map(Some).collect(),
    }
}

/// Returns a part of a job, without its nodes.
fn unplaced<'a>(options: &JobOptions, role: Option<usize>) -> JobPart<'a> {
    let of_role = role.map(|role| &options.roles[role]);
    JobPart {
        launcher: of_role.map_or_else(|| launch::launcher(options.launcher, options.controller), JobRole::launcher),
        hosts: Vec::new(),
        first: LaunchHost { node: "", address: Ipv4Addr::LOCALHOST.into(), ranks: 0 },
        // the programs of the job find it
        interface: String::new(),
        rendezvous_port: ANY_PORT,
        stall_timeout: of_role.map_or(options.stall_timeout, |role| stall(role, options.stall_timeout)),
        role,
        has_other_environment: false,
    }
}

/// Returns the parts of a job whose nodes are not known, in the order of its roles. The job supervisor chooses their
/// ports.
pub fn unplaced_parts(options: &JobOptions) -> Vec<JobPart<'static>> {
    numbers(options).into_iter().map(|role| unplaced(options, role)).collect()
}

/// Returns a time limit without progress for a role: one that does not end the job waits for requests.
fn stall(role: &JobRole, limit: Duration) -> Duration {
    if role.ends_the_job() { limit } else { Duration::ZERO }
}

impl JobPart<'_> {
    /// Returns what decides the arguments of its launcher.
    pub fn request<'r>(&'r self, cluster: &Cluster, job_dir: &'r str, options: &JobOptions) -> LaunchRequest<'r> {
        LaunchRequest {
            hosts: &self.hosts,
            first: self.first,
            rendezvous_port: self.rendezvous_port,
            port: cluster.port,
            interface: &self.interface,
            start_timeout: cluster.start_timeout,
            stall_timeout: self.stall_timeout,
            job_dir,
            rank_program: RANK_SUPERVISOR,
            kept: options.kept_ranks(cluster.elastic_timeout),
            role: self.role,
        }
    }

    /// Returns what the job supervisor has to know of a role, which this part is, where the nodes of its ranks are found
    /// by the programs of the job. `request`: that of the part.
    pub fn unplaced_description<'r>(&self, role: &'r JobRole, request: &LaunchRequest<'r>) -> RoleDescription<'r> {
        RoleDescription { shape: Some(role.shape()), ..self.description(role, request, &Placement::default()) }
    }

    /// Returns what the job supervisor has to know of a role, which this part is. `request`: that of the part.
    pub(super) fn description<'r>(
        &self,
        role: &'r JobRole,
        request: &LaunchRequest<'r>,
        placement: &Placement,
    ) -> RoleDescription<'r> {
        let (launcher, number) = (self.launcher, self.role.unwrap_or_default());
        let first = |node: &str| {
            let share = placement.shares.iter().find(|share| share.node == node);
            share.map_or(0, |share| share.first + offset(share, number))
        };
        let surroundings = Surroundings::of(launcher, request, request.port);
        RoleDescription {
            name: &role.project.name,
            start: launcher.start,
            launcher: (launcher.arguments)(request),
            variables: (launcher.variables)(request).into_iter().collect(),
            surroundings: match self.has_other_environment {
                true => Surroundings { inherits: Some(OF_JOB), ..surroundings },
                false => surroundings,
            },
            environment: (launcher.environment)(request).into_iter().collect(),
            places: request.hosts.iter().map(|host| RolePlace { host: *host, first: first(host.node) }).collect(),
            shape: None,
            ends: role.project.ends,
            needs: role.project.needs.clone(),
            ports: role.project.ports.clone(),
            ready: role.project.ready.clone(),
            ready_timeout: role.project.ready_timeout,
        }
    }
}

/// Returns how many ranks of the roles before this one a node has.
fn offset(share: &Share, role: usize) -> u32 {
    share.roles.iter().take(role).sum()
}

/// Returns `launcher.json` of a node, for its rank supervisors: the launchers of all roles. `launcher`: the address of
/// the launcher's node. `stall` and `stall_warning`: those of the job, in seconds.
pub(super) fn launcher_file(
    roles: &[JobRole],
    (placement, node, endpoint): (&Placement, &str, &Endpoint),
    launcher: IpAddr,
    limits: (u64, u64),
) -> String {
    let description = |role: &JobRole| role.launcher().rank_description(endpoint, launcher);
    role_launchers(roles, (placement, node), description, limits)
}

/// Returns `launcher.json` as it is until the programs of the job add which ranks a node has. `limits`: the seconds without
/// progress after which a rank ends the job, and is reported.
pub fn unplaced_launcher_file(roles: &[JobRole], limits: (u64, u64)) -> String {
    role_launchers(roles, (&Placement::default(), ""), |role| role.launcher().unpinned_description(), limits)
}

fn role_launchers(
    roles: &[JobRole],
    (placement, node): (&Placement, &str),
    launcher: impl Fn(&JobRole) -> RankDescription,
    (stall, stall_warning): (u64, u64),
) -> String {
    let share = placement.shares.iter().find(|share| share.node == node).cloned().unwrap_or_default();
    let role = |(number, role): (usize, &JobRole)| {
        let ends_job = role.ends_the_job();
        let description = RankRoleDescription {
            launcher: launcher(role),
            name: &role.project.name,
            ranks: share.roles.get(number).copied().unwrap_or_default(),
            first: share.first + offset(&share, number),
            before: placement.ranks_before(number, &share),
            offset: offset(&share, number),
            ports: &role.project.ports,
            ready: role.project.ready.as_ref(),
            gpus: role.project.gpus,
            job: RoleOverrides {
                command: &role.project.command,
                default_command: false,
                stall: if ends_job { stall } else { 0 },
                stall_warning: if ends_job { stall_warning } else { 0 },
            },
        };
        json!(description)
    };
    json!({"roles": roles.iter().enumerate().map(role).collect::<Vec<_>>()}).to_string()
}

/// Returns `roles.json` of a job in which no role has ports, or before they are chosen: the number of ranks of each
/// role and the address of each rank's node.
pub(super) fn roles_file(roles: &[JobRole], hosts: &JobHosts) -> String {
    let role = |(number, role): (usize, &JobRole)| {
        let of_host = |host: &HostAssignment| {
            let address = host.endpoint.address.to_string();
            vec![address; host.ranks_of(Some(number)) as usize]
        };
        let addresses: Vec<String> = hosts.all().flat_map(of_host).collect();
        (role.project.name.clone(), json!({"ranks": addresses.len(), "hosts": addresses, "ports": {}}))
    };
    serde_json::Value::Object(roles.iter().enumerate().map(role).collect()).to_string()
}
