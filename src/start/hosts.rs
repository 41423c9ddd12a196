//! The nodes that take part in a job: which they are, how ranks reach each other there, and with which environment.

use super::request::JobOptions;
use super::roles::JobRole;
use crate::cluster::observation::{self, ObservedNode};
use crate::cluster::target::Target;
use crate::error::{Error, NodeError};
use crate::grade::speed::{JobNode, speeds};
use crate::inventory::Inventory;
use crate::launch;
use crate::launch::description::LaunchHost;
use crate::launch::env_file::environment;
use crate::launch::placement::{Placement, Share};
use crate::launch::role_placement::divide;
use crate::model::engine::{VISIBLE_DEVICES, is_of_runtime};
use crate::node::network::{self, CUDA_DEVICE_ORDER, CUDA_VISIBLE_DEVICES, Endpoint};
use crate::secret::Secret;
use std::collections::BTreeMap;

/// Where the search for ports for the ranks begins: PyTorch's own choice.
const FIRST_PORT: u16 = 29500;

/// How far above [`FIRST_PORT`] the search for ports begins for such jobs.
pub(super) const RENDEZVOUS_PORTS: u64 = 3_000;

/// One node's share of a job.
#[derive(Clone)]
pub struct HostAssignment {
    /// The node.
    pub observed: ObservedNode,
    /// Its address and interface.
    pub endpoint: Endpoint,
    /// How many ranks it has.
    pub ranks: u32,
    /// Those of each role, in the order of the roles; empty in a job without roles.
    pub roles: Vec<RoleOfHost>,
    /// The ranks' environment: the operator's own variables, over the GPUs that the job has, over [`environment`].
    pub environment: BTreeMap<String, Secret>,
    /// The measured speed of the node, relative to the fastest one with ranks.
    pub speed: f64,
}

/// The ranks of a role on a node.
#[derive(Clone)]
pub struct RoleOfHost {
    /// How many there are.
    pub ranks: u32,
    /// Their environment: as that of a node's ranks, with the variables of the role and its part of the GPUs.
    pub environment: BTreeMap<String, Secret>,
}

impl HostAssignment {
    /// Returns the number of ranks of a role; `None`: of all.
    pub(super) fn ranks_of(&self, role: Option<usize>) -> u32 {
        match role {
            None => self.ranks,
            Some(role) => self.roles.get(role).map_or(0, |role| role.ranks),
        }
    }

    /// Returns what the launcher and the job supervisor know of it.
    pub(super) fn launch_host(&self) -> LaunchHost<'_> {
        LaunchHost { node: self.observed.name(), address: self.endpoint.address, ranks: self.ranks }
    }
}

/// The nodes that take part in a job.
pub struct JobHosts {
    /// That of the launcher. Its ranks, if it has any, run in `hmaster`.
    pub launcher: HostAssignment,
    /// The others, in the order of their ranks, which run in workers.
    pub others: Vec<HostAssignment>,
}

impl JobHosts {
    /// Returns all of them, that of the launcher first.
    pub fn all(&self) -> impl Iterator<Item = &HostAssignment> {
        std::iter::once(&self.launcher).chain(&self.others)
    }

    /// Compares the speeds of all of them.
    pub(super) fn compare_speeds(&mut self) {
        let nodes: Vec<_> = self.all().map(|host| job_node(&host.observed, host.ranks > 0)).collect();
        let speeds = speeds(&nodes);
        let hosts = std::iter::once(&mut self.launcher).chain(&mut self.others);
        hosts.zip(speeds).for_each(|(host, speed)| host.speed = speed);
    }

    /// Adds the operator's variables to the ranks' environment, and checks those of each launcher.
    pub(super) fn add_variables(&mut self, options: &JobOptions) -> Result<(), Error> {
        let is_container = self.launcher.observed.member.transport.run_dir().is_none();
        let of_roles = options.roles.iter().flat_map(|role| role.project.env.keys());
        let mut given = options.env.keys().chain(of_roles);
        if let Some(name) = given.find(|name| is_container && is_of_runtime(name)) {
            let hint = match name.as_str() {
                VISIBLE_DEVICES => "choose GPUs by `gpus` in the inventory or --gpus-per-node".to_owned(),
                _ => format!("set {name} in `env` of [defaults] or [[node]], then `hvdctl up`"),
            };
            return Err(Error::usage(
                format!("{name} cannot be set for a job: the engine reads it when it creates a container"),
                hint,
            ));
        }
        let hosts = std::iter::once(&mut self.launcher).chain(&mut self.others);
        hosts.for_each(|host| host.environment.extend(options.env.clone()));
        if options.roles.is_empty() {
            let names = self.all().flat_map(|host| host.environment.keys()).map(String::as_str);
            return launch::launcher(options.launcher, options.controller).check_variables(names);
        }
        let check = |(number, role): (usize, &JobRole)| {
            let names = self.all().flat_map(|host| host.roles[number].environment.keys()).map(String::as_str);
            role.launcher().check_variables(names)
        };
        options.roles.iter().enumerate().try_for_each(check)
    }

    /// Returns what was observed of each.
    pub fn observed(&self) -> impl Iterator<Item = &ObservedNode> {
        self.all().map(|host| &host.observed)
    }
}

/// Returns a node as its speed is compared.
pub(super) fn job_node(observed: &ObservedNode, has_ranks: bool) -> JobNode<'_> {
    JobNode { node: &observed.member.node, facts: &observed.facts, has_ranks }
}

/// Splits the nodes into those that take part, each with its endpoint, and the others. `may_grow`: other nodes may join
/// later, and have to reach a job that begins on one.
pub(super) fn assign(
    target: &Target,
    placement: &Placement,
    nodes: Vec<ObservedNode>,
    may_grow: bool,
    options: &JobOptions,
) -> Result<(JobHosts, Vec<ObservedNode>), Error> {
    let alone = placement.shares.len() == 1;
    let (mut hosts, mut others, mut failed, mut env_files) =
        (Vec::new(), Vec::new(), Vec::new(), options.env_files.clone());
    for observed in nodes {
        let Some(share) = placement.shares.iter().find(|s| s.node == observed.name()) else {
            // the master may have been observed only because it might launch
            let is_selected = target.selected.iter().any(|selected| selected == observed.name());
            others.extend(Some(observed).filter(|observed| is_selected && observed.facts.drained.is_none()));
            continue;
        };
        let endpoint = match alone {
            true => Ok(reachable(&observed).filter(|_| may_grow).unwrap_or_else(network::alone)),
            false => endpoint(&target.inventory, &observed),
        };
        match endpoint {
            Ok(endpoint) => {
                let mut environment = environment(&observed.member.node, &mut env_files)?;
                let roles = roles_of_host(&observed, share, &environment, options);
                add_gpus(&mut environment, &observed, &share.gpus, &options.env);
                if share.unallocated {
                    // all GPUs may be those of other jobs
                    environment.insert(CUDA_VISIBLE_DEVICES.to_owned(), Secret::plain(""));
                }
                let ranks = share.ranks;
                hosts.push(HostAssignment { observed, endpoint, ranks, roles, environment, speed: 1.0 });
            }
            Err(error) => failed.push(error),
        }
    }
    if !failed.is_empty() {
        return Err(Error::Nodes { failed, done: 0 });
    }
    let launches = |host: &HostAssignment| host.observed.name() == placement.launcher();
    let launcher = hosts.iter().position(launches).map(|position| hosts.remove(position));
    let launcher = launcher.ok_or_else(|| Error::Local(format!("{} was not observed", placement.launcher())))?;
    Ok((JobHosts { launcher, others: hosts }, others))
}

/// Returns the ranks of each role on a node, with their environment. `inventory`: the variables of the node.
fn roles_of_host(
    observed: &ObservedNode,
    share: &Share,
    inventory: &BTreeMap<String, Secret>,
    options: &JobOptions,
) -> Vec<RoleOfHost> {
    let chosen = network::chosen_gpus(&observed.member.node, &observed.facts);
    let gpus: Vec<String> = chosen.iter().map(|gpu| gpu.uuid().to_owned()).collect();
    let ranks = |role: usize| share.roles.get(role).copied().unwrap_or_default();
    let counts = options.roles.iter().enumerate().map(|(number, role)| (ranks(number), role.gpus()));
    let of_role = |((number, role), part): ((usize, &JobRole), &[String])| {
        let given = role.variables(&options.env);
        let mut environment = inventory.clone();
        match part {
            [] if !gpus.is_empty() => {
                environment.insert(CUDA_VISIBLE_DEVICES.to_owned(), Secret::plain(""));
            }
            part => add_gpus(&mut environment, observed, part, &given),
        }
        environment.extend(given);
        RoleOfHost { ranks: ranks(number), environment }
    };
    options.roles.iter().enumerate().zip(divide(&gpus, counts)).map(of_role).collect()
}

/// Adds the variables by which CUDA programs find the GPUs of a job on a node. `allocated`: their UUIDs; empty for all.
/// `given`: the operator's own variables.
pub(super) fn add_gpus(
    environment: &mut BTreeMap<String, Secret>,
    observed: &ObservedNode,
    allocated: &[String],
    given: &BTreeMap<String, Secret>,
) {
    let order = given.get(CUDA_DEVICE_ORDER).or(environment.get(CUDA_DEVICE_ORDER)).map(Secret::expose);
    let sees_all = observed.runtime.engine.shows_all_gpus();
    for (name, value) in network::gpu_variables(&observed.member.node, &observed.facts, allocated, order, sees_all) {
        // what is not allocated to others may be chosen in the inventory
        if !allocated.is_empty() || !environment.contains_key(name) {
            environment.insert(name.to_owned(), Secret::plain(value));
        }
    }
}

/// Returns a node's endpoint in its cluster, which a launcher can use.
pub(super) fn endpoint(inventory: &Inventory, observed: &ObservedNode) -> Result<Endpoint, NodeError> {
    let endpoint = observation::place(inventory, observed)?;
    launch::check_address(endpoint.address).map_err(|cause| observation::no_place(&observed.member.node, cause))?;
    Ok(endpoint)
}

/// Returns the place at which other nodes would reach the master, if it has one.
fn reachable(observed: &ObservedNode) -> Option<Endpoint> {
    let endpoint = network::endpoint(&observed.member.node, &observed.facts).ok()?;
    (observed.member.node.master && launch::check_address(endpoint.address).is_ok()).then_some(endpoint)
}

/// Returns the error of a node to whose host name ranks would connect although it does not lead there.
pub(super) fn wrong_name(observed: &ObservedNode, endpoint: &Endpoint) -> Option<NodeError> {
    let (found, address) = (observed.facts.own_address.as_ref()?, endpoint.address.to_string());
    if *found == address {
        return None;
    }
    let leads = if found.is_empty() { "no address" } else { found };
    let cause = format!("its host name {} resolves to {leads} there instead of {address}", observed.facts.hostname);
    let hint = "Gloo connects Horovod's ranks by that name: use --controller mpi, --launcher torchrun or env, or let root \
                correct /etc/hosts of the node";
    Some(NodeError::failed(observed.name(), "run ranks with Horovod's Gloo", cause).hint(hint))
}

/// Returns the first of so many ports for the ranks to find one another, which are free on all nodes. The search begins
/// `after` so many.
pub(super) fn rendezvous_port(hosts: &JobHosts, most: u32, after: u16) -> Result<u16, Error> {
    free_ports(most, FIRST_PORT + after, |port| {
        hosts.observed().any(|observed| observed.facts.network.ports.contains(&port))
    })
    .ok_or_else(|| {
        Error::check(
            format!("no {most} consecutive ports from {FIRST_PORT} up are free on all nodes of the job"),
            "end programs that listen on them (on the nodes: ss -ltnp)",
        )
    })
}

/// Returns the first of so many free ports in a row.
fn free_ports(count: u32, from: u16, is_taken: impl Fn(u16) -> bool) -> Option<u16> {
    let are_free = |first: &u16| {
        let last = u16::try_from(u32::from(*first) + count - 1);
        last.is_ok_and(|last| !(*first..=last).any(&is_taken))
    };
    (from..=u16::MAX).find(are_free)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_port_that_is_taken_is_skipped() {
        assert_eq!(free_ports(1, FIRST_PORT, |_| false), Some(29500));
        assert_eq!(free_ports(1, FIRST_PORT, |port| port == 29500), Some(29501));
        assert_eq!(free_ports(4, FIRST_PORT, |port| [29501, 29504].contains(&port)), Some(29505));
        assert_eq!(free_ports(4, FIRST_PORT, |port| port < 65532), Some(65532));
        assert_eq!(free_ports(5, FIRST_PORT, |port| port < 65532), None);
    }
}
