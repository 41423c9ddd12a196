//! The roles of a project as parts of a JobSet: their order, and the addresses by which their ranks find one another.
//!
//! Each pod has a network of its own, so the ports of roles are the same numbers in all pods, and known before any of
//! them starts. The hosts are the stable names that a JobSet gives its pods.

use super::ExportRequest;
use super::manifest::*;
use super::names::label;
use super::project::ProjectSource;
use super::shape::{self, Shape};
use crate::error::Error;
use crate::inventory::LauncherName;
use crate::model::role::{Ends, ReadyWhen};
use crate::paths::WORKSPACE;
use crate::start::roles::JobRole;
use regex::{Captures, Regex};
use serde_json::{Value, json};
use std::collections::BTreeMap;

/// The port of the first name of a role; the other names have the next ones.
const FIRST_PORT: u16 = 20000;
/// The annotation that has the text of `roles.json`, and the field of a pod in which it is.
const ANNOTATION: &str = "hvdctl/roles";
const ANNOTATION_FIELD: &str = "metadata.annotations['hvdctl/roles']";
/// The directory in which a pod has the file, and its name there.
const DIRECTORY: &str = "/opt/hvdctl/roles";
const FILE: &str = "roles.json";
/// Seconds between two checks whether a pod is ready, and for an answer.
const EVERY: u64 = 2;
const ANSWER: u32 = 2;
/// The most bytes of a variable: Linux takes 128 KiB. The file has the rest.
const LONGEST: usize = 100 << 10;

/// The most bytes of the file: the annotations of an object have at most 256 KiB, and other programs add some.
const MOST_OF_FILE: usize = 200 << 10;
/// The most ranks of a role: more hosts would not fit into the file.
const MOST_RANKS: u64 = 10_000;

/// The pods of a role.
pub(super) struct RolePods<'a> {
    pub(super) role: &'a JobRole,
    /// Its number.
    pub(super) number: usize,
    /// The name of its replicated job.
    pub(super) name: String,
    pub(super) shape: Shape,
}

/// Returns the host name of a pod of a JobSet.
pub(super) fn host(job: &str, part: &str, pod: u32) -> String {
    format!("{job}-{part}-0-{pod}.{job}")
}

impl<'a> RolePods<'a> {
    /// Returns the pods of all roles, each after those that it needs, as a JobSet asks for.
    ///
    /// # Errors
    /// A launcher of which a JobSet has no pods; a size that only the nodes know; ports that the ranks of a pod share.
    pub(super) fn all(request: &'a ExportRequest<'_>) -> Result<Vec<RolePods<'a>>, Error> {
        let roles = &request.options.roles;
        let mut order: Vec<usize> = Vec::new();
        while order.len() < roles.len() {
            let is_next = |role: &usize| {
                !order.contains(role) && roles[*role].project.needs.iter().all(|needed| order.contains(needed))
            };
            let next = (0..roles.len()).find(is_next);
            order.push(next.expect("the project's file was checked for circles"));
        }
        order.into_iter().map(|number| RolePods::new(request, &roles[number], number)).collect()
    }

    fn new(request: &ExportRequest<'_>, role: &'a JobRole, number: usize) -> Result<RolePods<'a>, Error> {
        let name = &role.project.name;
        if !matches!(role.launcher, LauncherName::Env | LauncherName::Torchrun) {
            return Err(Error::usage(
                format!(
                    "the pods of a JobSet start ranks with torchrun or with their variables alone, but the launcher of \
                     the role {name} is {}",
                    role.launcher
                ),
                "set `launcher` of the role to torchrun or env in hvdctl.toml",
            ));
        }
        if role.project.environment.setup.is_some() {
            return Err(Error::usage(
                format!("the role {name} has a `setup` of its own, and Kubernetes builds no image"),
                "build its image, push it to a registry, and name it as `image` of the role in place of `setup`",
            ));
        }
        let shape = shape::of_role(request, role, role.launcher == LauncherName::Env)?;
        if u64::from(shape.pods) * u64::from(shape.ranks) > MOST_RANKS {
            return Err(too_many());
        }
        if shape.ranks > 1 && !role.project.ports.is_empty() {
            return Err(Error::usage(
                format!("the role {name} has ports, but the {} ranks of a pod have the same variables", shape.ranks),
                "set `launcher = \"env\"` of the role, which has a pod for each rank; or --slots 1",
            ));
        }
        Ok(RolePods { role, number, name: label(name, 0), shape })
    }

    /// Returns the ports of a pod by their names.
    pub(super) fn ports(&self) -> Vec<(&'a str, u16)> {
        self.role.project.ports.iter().map(String::as_str).zip(FIRST_PORT..).collect()
    }

    /// Returns a text with the ports in the place of `$PORT_NAME` and `${PORT_NAME}`, as a rank supervisor fills them in.
    pub(super) fn filled(&self, text: &str) -> String {
        let ports = self.ports();
        let of = |found: &Captures<'_>| {
            let name = found.get(1).or(found.get(2)).map_or("", |name| name.as_str());
            let port = ports.iter().find(|(port, _)| in_variable(port) == name);
            port.map_or_else(|| found[0].to_owned(), |(_, port)| port.to_string())
        };
        let pattern = Regex::new(r"\$(?:\{PORT_([A-Z0-9_]+)\}|PORT_([A-Z0-9_]+))").expect("it is a pattern");
        pattern.replace_all(text, of).into_owned()
    }

    /// Returns how many times a pod that fails is replaced while the others go on.
    pub(super) fn restarts(&self) -> u32 {
        match self.role.project.ends {
            Ends::Restarts { times } if self.is_restarted_in_parts() => times,
            _ => 0,
        }
    }

    /// Returns true if one of its pods may be replaced alone: agents of torchrun only start together.
    pub(super) fn is_restarted_in_parts(&self) -> bool {
        self.role.launcher == LauncherName::Env || self.shape.pods == 1
    }

    /// Returns the check that it is ready, if a pod can be asked. A role that others need fails if it is not ready in
    /// time.
    pub(super) fn probe(&self) -> Option<PodProbe> {
        let check = match self.role.project.ready.as_ref()? {
            ReadyWhen::Http { url } => {
                let url = self.filled(url);
                let (port, path) =
                    url.strip_prefix("http://:").map(|rest| rest.split_at(rest.find('/').unwrap_or(rest.len())))?;
                let path = if path.is_empty() { "/" } else { path };
                ProbeCheck::HttpGet { path: path.into(), port: port.parse().ok()? }
            }
            ReadyWhen::Port { name } => {
                let port = self.ports().into_iter().find(|(port, _)| port == name)?.1;
                ProbeCheck::TcpSocket { port }
            }
            // kubelet runs the command in `/`
            ReadyWhen::File { path } => {
                let path = format!("{WORKSPACE}/{path}");
                ProbeCheck::Exec { command: ["test", "-e", path.as_str()].map(YamlText::from).into() }
            }
            ReadyWhen::Line { .. } => return None,
        };
        Some(PodProbe { check, period_seconds: EVERY, timeout_seconds: Some(ANSWER), failure_threshold: None })
    }

    /// Returns the number of checks in the time that the role has to become ready.
    pub(super) fn checks(&self) -> u64 {
        self.role.project.ready_timeout.div_ceil(EVERY)
    }

    /// Returns the host of each of its pods.
    fn hosts(&self, job: &str) -> Vec<String> {
        (0..self.shape.pods).map(|pod| host(job, &self.name, pod)).collect()
    }

    /// Returns the address of a port of each of its ranks.
    fn addresses(&self, job: &str, port: u16) -> Vec<String> {
        self.hosts(job).iter().map(|host| format!("{host}:{port}")).collect()
    }
}

/// Returns the error of roles whose ranks are too many to be named.
fn too_many() -> Error {
    let why = "the roles have more ranks than the annotations of a pod can name, which have at most 256 KiB";
    Error::usage(why, "use fewer ranks: -np ROLE=N,ROLE=N")
}

/// Returns a name as it is in the names of variables.
fn in_variable(name: &str) -> String {
    name.to_ascii_uppercase().replace('-', "_")
}

/// Returns the variables by which the ranks of a role find those of all.
pub(super) fn variables(of: &RolePods<'_>, all: &[RolePods<'_>], job: &str) -> Vec<EnvVar> {
    let own = [
        ("HVDCTL_ROLE".to_owned(), of.role.project.name.clone()),
        ("HVDCTL_ROLES".to_owned(), format!("{DIRECTORY}/{FILE}")),
    ];
    let of_role = |role: &RolePods<'_>| {
        let prefix = format!("HVDCTL_ROLE_{}", in_variable(&role.role.project.name));
        let hosts = (format!("{prefix}_HOSTS"), role.hosts(job).join(","));
        let port = |(name, port)| (format!("{prefix}_{}", in_variable(name)), role.addresses(job, port).join(","));
        std::iter::once(hosts).chain(role.ports().into_iter().map(port)).collect::<Vec<_>>()
    };
    let mut in_order: Vec<&RolePods<'_>> = all.iter().collect();
    in_order.sort_by_key(|role| role.number);
    let ports = of.ports().into_iter().map(|(name, port)| (format!("PORT_{}", in_variable(name)), port.to_string()));
    let found = own.into_iter().chain(in_order.into_iter().flat_map(of_role)).chain(ports);
    found.filter(|(_, value)| value.len() < LONGEST).map(|(name, value)| EnvVar::of(name, value)).collect()
}

/// Adds the file `roles.json` to a pod: an annotation, of which the pod has a volume.
///
/// # Errors
/// More ranks than fit.
pub(super) fn add_file(pod: &mut PodTemplate, all: &[RolePods<'_>], job: &str) -> Result<(), Error> {
    let of_role = |role: &RolePods<'_>| {
        let Shape { pods, ranks, .. } = role.shape;
        let hosts: Vec<String> = role.hosts(job).into_iter().flat_map(|host| vec![host; ranks as usize]).collect();
        let ports: BTreeMap<&str, Vec<String>> =
            role.ports().into_iter().map(|(name, port)| (name, role.addresses(job, port))).collect();
        (role.role.project.name.clone(), json!({"ranks": pods * ranks, "hosts": hosts, "ports": ports}))
    };
    let text = Value::Object(all.iter().map(of_role).collect()).to_string();
    if text.len() > MOST_OF_FILE {
        return Err(too_many());
    }
    pod.metadata = Some(PodMetadata { annotations: BTreeMap::from([(ANNOTATION, YamlText::from(text))]) });
    let items = vec![DownwardItem { path: FILE, field_ref: FieldRef { field_path: ANNOTATION_FIELD } }];
    pod.spec.volumes.push(Volume { name: "roles", source: VolumeSource::DownwardApi { items } });
    for container in &mut pod.spec.containers {
        container.volume_mounts.push(VolumeMount { name: "roles", mount_path: DIRECTORY, read_only: true });
    }
    Ok(())
}

/// Returns the preference of the pods of a role for nodes that have pods of another one. Of two roles that share nodes,
/// the later one has it: the pods of the other may be needed before there is any of it.
pub(super) fn affinity(of: &RolePods<'_>, all: &[RolePods<'_>], job: &str) -> Option<Value> {
    let place = |number| all.iter().position(|role| role.number == number);
    let shares = |other: &&RolePods<'_>| {
        of.role.project.beside == Some(other.number) || other.role.project.beside == Some(of.number)
    };
    let other = all.iter().filter(shares).find(|other| place(other.number) < place(of.number))?;
    let labels = json!({
        "jobset.sigs.k8s.io/jobset-name": job,
        "jobset.sigs.k8s.io/replicatedjob-name": other.name,
    });
    let term = json!({"topologyKey": "kubernetes.io/hostname", "labelSelector": {"matchLabels": labels}});
    let preferred = json!([{"weight": 100, "podAffinityTerm": term}]);
    Some(json!({"podAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": preferred}}))
}

/// Returns what of a role has no equivalent: the setting, what takes its place, and whether the program may fail
/// without it.
pub(super) fn gaps(request: &ExportRequest<'_>) -> Vec<(String, &'static str, bool)> {
    let roles = &request.options.roles;
    let mut found = Vec::new();
    for (number, role) in roles.iter().enumerate() {
        let JobRole { project, .. } = role;
        let mut add = |setting: &str, instead, matters| {
            found.push((format!("role {}: {setting}", project.name), instead, matters));
        };
        let is_needed = roles.iter().any(|other| other.project.needs.contains(&number));
        match &project.ready {
            Some(ReadyWhen::Line { .. }) if is_needed => add(
                "ready \"line …\"",
                "Kubernetes does not read what a pod writes; use a URL, `port NAME` or `file PATH`",
                true,
            ),
            Some(ReadyWhen::File { .. }) if is_needed && matches!(request.project, ProjectSource::Claim(_)) => {
                add("ready \"file …\"", "a file that an earlier start left on the claim counts as well", false);
            }
            _ => {}
        }
        match project.ends {
            Ends::With { role } if roles[role].project.ends != Ends::Job => {
                add("ends with a role that does not end the job", "its pods end with the job", false);
            }
            Ends::Restarts { .. }
                if !RolePods::new(request, role, number).is_ok_and(|pods| pods.is_restarted_in_parts()) =>
            {
                add(
                    "restarts of torchrun in several pods",
                    "a pod that fails is replaced alone, and its agent would not find the others; use --restarts, which \
                 starts all roles again",
                    true,
                )
            }
            _ => {}
        }
        if project.beside.is_some() {
            add("beside", "Kubernetes prefers nodes that both roles share, but pods may be on others", false);
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sync::project::ProjectFile;

    #[test]
    fn ports_are_filled_in_as_rank_supervisors_do_it() {
        let directory = tempfile::tempdir().unwrap();
        let text = "[[role]]\nname = 'a'\ncommand = ['x']\nranks = 1\nports = ['http', 'b_2']\n";
        std::fs::write(directory.path().join("hvdctl.toml"), text).unwrap();
        let project = ProjectFile::read(directory.path()).unwrap().roles.remove(0);
        let size = project.size.unwrap();
        let role = JobRole::new(project, size, LauncherName::Env, &crate::inventory::Cluster::default());
        let pods = RolePods { role: &role, number: 0, name: "a".into(), shape: Shape { pods: 1, ranks: 1, gpus: 0 } };
        let filled = pods.filled("$PORT_HTTP ${PORT_B_2}x $PORT_HTTPS ${PORT_HTTP $PORT_http $$PORT_B_2");
        assert_eq!(filled, "20000 20001x $PORT_HTTPS ${PORT_HTTP $PORT_http $20001");
    }
}
