//! The files of a job with roles, as hvdctl writes them.

use crate::cluster::{ADDRESSES, NODES, PORT};
use crate::job::{Method, Spec, host};
use hvdctl::launch::description::{RankRoleDescription, RoleDescription, RoleOverrides, RolePlace, Surroundings};
use hvdctl::launch::placement::{Placement, Share};
use hvdctl::launch::{LaunchRequest, programs};
use hvdctl::model::role::{Ends, ReadyWhen, RecordedRole};
use hvdctl::node::network::{Endpoint, alone};
use hvdctl::text::argument::ProgramArgument;
use serde_json::{Map, Value, json};
use std::collections::BTreeMap;
use std::time::Duration;

/// The first of the ports at which ranks of a role find one another; the next role has the next hundred.
const RENDEZVOUS: u16 = 29500;

/// A role of a job.
#[derive(Clone)]
pub struct RoleSpec {
    pub name: &'static str,
    pub method: Method,
    pub command: Vec<String>,
    /// The ranks of each node.
    pub ranks: [u32; 2],
    pub ends: Ends,
    pub needs: Vec<usize>,
    pub ports: Vec<String>,
    pub ready: Option<ReadyWhen>,
    pub ready_timeout: u64,
    /// The variables of the user, as JSON.
    pub env: Value,
}

impl RoleSpec {
    /// A role that runs a shell script, which has its rank in the role as `$RANK`, and ends the job.
    pub fn shell(name: &'static str, method: Method, ranks: [u32; 2], script: &str) -> RoleSpec {
        let Spec { command, .. } = Spec::shell(method, script);
        RoleSpec {
            name,
            method,
            command,
            ranks,
            ends: Ends::Job,
            needs: Vec::new(),
            ports: Vec::new(),
            ready: None,
            ready_timeout: 600,
            env: json!({}),
        }
    }

    /// A role that runs a Python program.
    pub fn python(name: &'static str, method: Method, ranks: [u32; 2], program: &str) -> RoleSpec {
        let Spec { command, .. } = Spec::python(method, program);
        RoleSpec { command, ..RoleSpec::shell(name, method, ranks, "") }
    }

    fn arguments(&self) -> Vec<ProgramArgument> {
        self.command.iter().map(|word| ProgramArgument::from(word.as_str())).collect()
    }
}

impl Spec {
    /// A job with these roles.
    pub fn roles(roles: Vec<RoleSpec>) -> Spec {
        let ranks = [0, 1].map(|index| roles.iter().map(|role| role.ranks[index]).sum());
        Spec { ranks, roles, ..Spec::command(Method::Env, &[]) }
    }

    /// The ranks of each role on each node.
    pub fn placement_of_roles(&self) -> Placement {
        let mut placement = Placement { roles: self.recorded_roles(), ..Placement::default() };
        for (index, node) in NODES.iter().enumerate().filter(|(index, _)| self.ranks[*index] > 0) {
            placement.push(node, self.ranks[index]);
            placement.shares.last_mut().unwrap().roles = self.roles.iter().map(|role| role.ranks[index]).collect();
        }
        placement
    }

    fn share(&self, index: usize) -> Share {
        let placement = self.placement_of_roles();
        placement.shares.into_iter().find(|share| share.node == NODES[index]).unwrap_or_default()
    }

    /// The rank in the job of the first rank of a role on a node.
    fn first(&self, role: usize, index: usize) -> u32 {
        let share = self.share(index);
        share.first + share.roles.iter().take(role).sum::<u32>()
    }

    pub fn recorded_roles(&self) -> Vec<RecordedRole> {
        let role = |role: &RoleSpec| RecordedRole {
            name: role.name.to_owned(),
            launcher: role.method.name().0,
            controller: None,
            command: role.arguments(),
            gpus: 1,
            ends: role.ends,
        };
        self.roles.iter().map(role).collect()
    }

    /// The roles in `launch.json`.
    pub fn role_descriptions(&self, job_dir: &str) -> Vec<RoleDescription<'_>> {
        self.roles.iter().enumerate().map(|(number, _)| self.role_description(number, job_dir)).collect()
    }

    fn role_description(&self, number: usize, job_dir: &str) -> RoleDescription<'_> {
        let role = &self.roles[number];
        let hosts: Vec<_> = (0..NODES.len()).map(|at| host(at, role.ranks[at])).collect();
        let with_ranks: Vec<_> = hosts.iter().copied().filter(|host| host.ranks > 0).collect();
        let request = LaunchRequest {
            hosts: &with_ranks,
            first: hosts[0],
            rendezvous_port: RENDEZVOUS + 100 * number as u16,
            port: PORT,
            interface: "eth0",
            start_timeout: Duration::from_secs(self.start_timeout),
            stall_timeout: Duration::ZERO,
            job_dir,
            rank_program: programs::RANK_SUPERVISOR,
            kept: None,
            role: Some(number),
        };
        let launcher = role.method.launcher();
        let place = |at: usize| RolePlace { host: hosts[at], first: self.first(number, at) };
        RoleDescription {
            name: role.name,
            start: launcher.start,
            launcher: (launcher.arguments)(&request),
            variables: (launcher.variables)(&request).into_iter().collect(),
            surroundings: Surroundings::of(launcher, &request, PORT),
            environment: BTreeMap::new(),
            places: (0..NODES.len()).filter(|at| role.ranks[*at] > 0).map(place).collect(),
            shape: None,
            ends: role.ends,
            needs: role.needs.clone(),
            ports: role.ports.clone(),
            ready: role.ready.clone(),
            ready_timeout: role.ready_timeout,
        }
    }

    /// `launcher.json` of a node.
    pub fn rank_descriptions(&self, index: usize) -> Value {
        let place = Endpoint { interface: "eth0".into(), label: "eth0".into(), ..alone() };
        let arguments: Vec<_> = self.roles.iter().map(RoleSpec::arguments).collect();
        let role = |(number, role): (usize, &RoleSpec)| {
            json!(RankRoleDescription {
                launcher: role.method.launcher().rank_description(&place, place.address),
                name: role.name,
                ranks: role.ranks[index],
                first: self.first(number, index),
                before: role.ranks[..index].iter().sum(),
                offset: self.first(number, index) - self.share(index).first,
                gpus: None,
                ports: &role.ports,
                ready: role.ready.as_ref(),
                job: RoleOverrides {
                    command: &arguments[number],
                    default_command: false,
                    stall: self.stall,
                    stall_warning: 0,
                },
            })
        };
        json!({ "roles": self.roles.iter().enumerate().map(role).collect::<Vec<_>>() })
    }

    /// `roles.json` as it is before the first attempt.
    pub fn addresses(&self) -> Value {
        let mut found = Map::new();
        for role in &self.roles {
            let hosts: Vec<&str> = (0..2).flat_map(|at| (0..role.ranks[at]).map(move |_| ADDRESSES[at])).collect();
            found.insert(role.name.to_owned(), json!({"ranks": hosts.len(), "hosts": hosts, "ports": {}}));
        }
        Value::Object(found)
    }
}
