//! A JobSet (v1alpha2): one indexed job whose pods are the nodes of `torchrun`, or the ranks of `env`; one such job for
//! each role of a project.

use super::manifest::*;
use super::pod::{PodParts, literal};
use super::roles::{self, RolePods, host};
use super::shape::{Shape, shape};
use super::{ExportRequest, Exported, RankVariableMap, texts};
use crate::error::Error;
use crate::inventory::LauncherName;
use crate::model::role::Ends;
use serde::Serialize;
use serde_json::json;

/// The name of the only replicated job of a project without roles.
const JOB: &str = "node";

/// The port at which ranks find one another, as PyTorch's documentation has it. A pod has all ports for itself.
const PORT: u16 = 29500;

/// The most ranks with variables: with names of 63 characters their list stays below the 128 KiB that Linux allows a
/// variable (`MAX_ARG_STRLEN`).
const MOST_RANKS: u32 = 800;

/// The field in which Kubernetes writes the number of a pod of an indexed job.
const INDEX: &str = "metadata.annotations['batch.kubernetes.io/job-completion-index']";

/// The kind of the document, as its comment names it.
const KIND: &str = "A JobSet of jobset.x-k8s.io/v1alpha2";

/// A warning about the ranks of `env`.
const SLOW: &str = "each rank has its own pod: NCCL uses neither shared memory nor NVLink between them; torchrun has one \
                    pod for each node";

/// The specification of a JobSet.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct JobSetSpec {
    network: JobSetNetwork,
    #[serde(skip_serializing_if = "Option::is_none")]
    success_policy: Option<SuccessPolicy>,
    failure_policy: FailurePolicy,
    replicated_jobs: Vec<ReplicatedJob>,
}

/// The names of a JobSet's pods in DNS.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct JobSetNetwork {
    #[serde(rename = "enableDNSHostnames")]
    enable_dns_hostnames: bool,
    publish_not_ready_addresses: bool,
    subdomain: String,
}

/// The replicated jobs that end a JobSet: the first one that ends.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct SuccessPolicy {
    operator: &'static str,
    target_replicated_jobs: Vec<String>,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct FailurePolicy {
    max_restarts: u32,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct ReplicatedJob {
    name: String,
    replicas: u32,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    depends_on: Vec<DependsOn>,
    template: JobTemplate,
}

/// A replicated job before this one that has to be ready.
#[derive(Debug, Serialize)]
struct DependsOn {
    name: String,
    status: &'static str,
}

#[derive(Debug, Serialize)]
struct JobTemplate {
    spec: JobSpec,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct JobSpec {
    parallelism: u32,
    completions: u32,
    completion_mode: &'static str,
    backoff_limit: u32,
    template: PodTemplate,
}

/// The ranks of a replicated job.
struct RankGroup<'a> {
    /// The name of the replicated job.
    name: &'a str,
    shape: Shape,
    /// True for `env`, with a pod for each rank.
    by_rank: bool,
    argv: Vec<String>,
    /// The variables that its role adds to those of its launcher.
    own: Vec<EnvVar>,
    variables: &'a RankVariableMap,
}

/// Exports a job.
pub(super) fn export(request: &ExportRequest<'_>) -> Result<Exported, Error> {
    if !request.options.roles.is_empty() {
        return export_roles(request);
    }
    let by_rank = match request.launcher() {
        LauncherName::Torchrun => false,
        LauncherName::Env => true,
        other => {
            return Err(Error::usage(
                format!(
                    "the pods of a JobSet start ranks with torchrun or with their variables alone, but the launcher is \
                     {other}"
                ),
                "hvdctl export mpijob is for horovodrun and mpirun; or use --launcher torchrun or env",
            ));
        }
    };
    let shape = shape(request, by_rank)?;
    let parts = PodParts::new(request, suffix(JOB, shape))?;
    let (argv, variables) = (request.argv()?, &request.variables);
    let group = RankGroup { name: JOB, shape, by_rank, argv, own: Vec::new(), variables };
    let container = container(request, &parts, group)?;
    // the JobSet starts all pods again, as one alone would wait for the others
    let job = replicated_job(JOB, shape, 0, parts.pod(container, Some("Never"), true));
    let resource = resource(request, &parts, None, vec![job]);
    let size = parts.size(request, &format!("Launcher {}", request.launcher()), shape)?;
    let mut exported = parts.document(request, &resource, KIND, vec![size])?;
    exported.warnings.extend((by_rank && shape.gpus > 0 && shape.pods > 1).then(|| SLOW.to_owned()));
    Ok(exported)
}

/// Exports a job with roles.
fn export_roles(request: &ExportRequest<'_>) -> Result<Exported, Error> {
    let all = RolePods::all(request)?;
    let longest = all.iter().map(|role| suffix(&role.name, role.shape)).max().unwrap_or_default();
    let parts = PodParts::new(request, longest)?;
    let name_of = |number| all.iter().find(|role| role.number == number).map_or("", |role| &role.name);
    let (mut jobs, mut sizes) = (Vec::new(), Vec::new());
    for role in &all {
        let RolePods { name, shape, number, .. } = role;
        let project = &role.role.project;
        let group = RankGroup {
            name,
            shape: *shape,
            by_rank: role.role.launcher == LauncherName::Env,
            argv: texts(&project.command)?.iter().map(|argument| role.filled(argument)).collect(),
            own: roles::variables(role, &all, &parts.name),
            variables: &request.role_variables[*number],
        };
        let mut container = container(request, &parts, group)?;
        if let Some(image) = &role.role.image {
            container.image.clone_from(&image.name);
        }
        container.ports = role.ports().into_iter().map(|(_, port)| Port { name: None, container_port: port }).collect();
        let is_needed = all.iter().any(|other| other.role.project.needs.contains(number));
        match (role.probe(), is_needed) {
            (Some(probe), true) => {
                container.startup_probe = Some(PodProbe { failure_threshold: Some(role.checks()), ..probe });
            }
            (probe, _) => container.readiness_probe = probe,
        }
        let mut pod = parts.pod(container, Some("Never"), shape.gpus > 0);
        roles::add_file(&mut pod, &all, &parts.name)?;
        pod.spec.affinity = roles::affinity(role, &all, &parts.name);
        let mut job = replicated_job(name, *shape, role.restarts(), pod);
        let needed =
            project.needs.iter().map(|needed| DependsOn { name: name_of(*needed).to_owned(), status: "Ready" });
        job.depends_on = needed.collect();
        jobs.push(job);
        let ranks = format!("Role {}, launcher {}", project.name, role.role.launcher);
        sizes.push(parts.size(request, &ranks, *shape)?);
    }
    if all.iter().any(|role| !role.ports().is_empty()) {
        sizes.push("The ports of roles are fixed: each pod has all ports for itself.".to_owned());
    }
    let ends = all.iter().filter(|role| role.role.project.ends == Ends::Job);
    let targets = ends.map(|role| role.name.clone()).collect();
    let success = SuccessPolicy { operator: "Any", target_replicated_jobs: targets };
    let resource = resource(request, &parts, Some(success), jobs);
    parts.document(request, &resource, KIND, sizes)
}

/// Returns the number of characters that Kubernetes adds to a job's name for a pod: NAME-node-0-7-x2b4c.
fn suffix(part: &str, shape: Shape) -> usize {
    format!("-{part}-0-{}-", shape.pods - 1).len() + 5
}

/// Returns the container of ranks.
fn container(request: &ExportRequest<'_>, parts: &PodParts, group: RankGroup<'_>) -> Result<PodContainer, Error> {
    let RankGroup { name, shape, by_rank, argv, mut own, variables } = group;
    let first = host(&parts.name, name, 0);
    let command = argv.iter().map(|argument| literal(argument).into());
    let (of_launcher, command) = match by_rank {
        true => (variables_of_rank(&parts.name, name, shape)?, command.collect()),
        false => {
            let index = EnvVar::from("NODE_RANK", ValueFrom::FieldRef(FieldRef { field_path: INDEX }));
            // of agents of PyTorch 2.12 and later; those before kill ranks 30 s after SIGTERM
            let time = "TORCH_ELASTIC_SHUTDOWN_TIMEOUT";
            let grace = EnvVar::of(time, request.inventory.cluster.stop_grace.as_secs().to_string());
            let of_agent = [index].into_iter().chain((!variables.contains_key(time)).then_some(grace)).collect();
            (of_agent, torchrun(shape, &first).into_iter().chain(command).collect())
        }
    };
    own.extend::<Vec<EnvVar>>(of_launcher);
    Ok(PodContainer {
        env: parts.env(own, variables)?,
        resources: parts.resources(request, shape)?,
        ..parts.container("ranks", command)
    })
}

/// Returns a replicated job of one indexed job. `restarts`: how often one of its pods is replaced.
fn replicated_job(name: &str, shape: Shape, restarts: u32, pod: PodTemplate) -> ReplicatedJob {
    let spec = JobSpec {
        parallelism: shape.pods,
        completions: shape.pods,
        completion_mode: "Indexed",
        backoff_limit: restarts,
        template: pod,
    };
    ReplicatedJob { name: name.to_owned(), replicas: 1, depends_on: Vec::new(), template: JobTemplate { spec } }
}

/// Returns the JobSet of these jobs.
fn resource(
    request: &ExportRequest<'_>,
    parts: &PodParts,
    success_policy: Option<SuccessPolicy>,
    replicated_jobs: Vec<ReplicatedJob>,
) -> Resource<JobSetSpec> {
    Resource {
        api_version: "jobset.x-k8s.io/v1alpha2",
        kind: "JobSet",
        metadata: Metadata { name: parts.name.clone() },
        spec: JobSetSpec {
            network: JobSetNetwork {
                enable_dns_hostnames: true,
                // ranks look for one another before all of them are ready
                publish_not_ready_addresses: true,
                subdomain: parts.name.clone(),
            },
            success_policy,
            failure_policy: FailurePolicy { max_restarts: request.options.restarts },
            replicated_jobs,
        },
    }
}

/// Returns the agent of a pod, as `train` starts it.
fn torchrun(shape: Shape, first: &str) -> Vec<YamlText> {
    let (nodes, ranks, port) = (shape.pods.to_string(), shape.ranks.to_string(), PORT.to_string());
    let fixed = [
        ("--nnodes", nodes.as_str()),
        ("--node_rank", "$(NODE_RANK)"),
        ("--nproc_per_node", &ranks),
        ("--master_addr", first),
        ("--master_port", &port),
        ("--max_restarts", "0"),
    ];
    let options = fixed.into_iter().flat_map(|(name, value)| [name, value]);
    ["torchrun"].into_iter().chain(options).chain(["--no_python"]).map(YamlText::from).collect()
}

/// Returns the variables of a rank, as `train` sets them with `env`. The number of its pod is its own.
///
/// # Errors
/// More ranks than fit into `TF_CONFIG`, which names all of them.
fn variables_of_rank(name: &str, part: &str, shape: Shape) -> Result<Vec<EnvVar>, Error> {
    let (first, port) = (&host(name, part, 0), PORT.to_string());
    if shape.pods > MOST_RANKS {
        return Err(Error::usage(
            format!("{} ranks are more than TF_CONFIG can name (at most {MOST_RANKS})", shape.pods),
            "use --launcher torchrun, which has a pod for each node",
        ));
    }
    let workers: Vec<String> = (0..shape.pods).map(|pod| format!("{}:{PORT}", host(name, part, pod))).collect();
    // a number, which Kubernetes puts in
    let config = json!({"cluster": {"worker": workers}, "task": {"type": "worker", "index": "RANK"}});
    let config = config.to_string().replace("\"RANK\"", "$(RANK)");
    let ranks = shape.pods.to_string();
    let fixed = [
        ("LOCAL_RANK", "0"),
        ("WORLD_SIZE", &ranks),
        ("LOCAL_WORLD_SIZE", "1"),
        ("NODE_RANK", "$(RANK)"),
        ("GROUP_RANK", "$(RANK)"),
        ("MASTER_ADDR", first),
        ("MASTER_PORT", &port),
        ("TF_CONFIG", &config),
        ("JAX_COORDINATOR_ADDRESS", &format!("{first}:{port}")),
        ("JAX_NUM_PROCESSES", &ranks),
        ("JAX_PROCESS_ID", "$(RANK)"),
    ];
    let rank = EnvVar::from("RANK", ValueFrom::FieldRef(FieldRef { field_path: INDEX }));
    Ok(std::iter::once(rank).chain(fixed.map(|(name, value)| EnvVar::of(name, value))).collect())
}
