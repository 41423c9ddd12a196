//! A JobSet (v1alpha2): one indexed job whose pods are the nodes of `torchrun`, or the ranks of `env`.

use super::manifest::*;
use super::pod::{PodParts, literal};
use super::shape::{Shape, shape};
use super::{ExportRequest, Exported};
use crate::error::Error;
use crate::inventory::LauncherName;
use serde::Serialize;
use serde_json::json;

/// The name of its only replicated job.
const JOB: &str = "node";

/// The port at which ranks find one another, as PyTorch's documentation has it. A pod has all ports for itself.
const PORT: u16 = 29500;

/// The most ranks with variables: with names of 63 characters their list stays below the 128 KiB that Linux allows a
/// variable (`MAX_ARG_STRLEN`).
const MOST_RANKS: u32 = 800;

/// The field in which Kubernetes writes the number of a pod of an indexed job.
const INDEX: &str = "metadata.annotations['batch.kubernetes.io/job-completion-index']";

/// The specification of a JobSet.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct JobSetSpec {
    network: JobSetNetwork,
    failure_policy: FailurePolicy,
    replicated_jobs: [ReplicatedJob; 1],
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

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct FailurePolicy {
    max_restarts: u32,
}

#[derive(Debug, Serialize)]
struct ReplicatedJob {
    name: &'static str,
    replicas: u32,
    template: JobTemplate,
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

/// Exports a job.
pub(super) fn export(request: &ExportRequest<'_>) -> Result<Exported, Error> {
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
    // NAME-node-0-7-x2b4c
    let suffix = format!("-{JOB}-0-{}-", shape.pods - 1).len() + 5;
    let parts = PodParts::new(request, shape, suffix)?;
    let first = host(&parts.name, 0);
    let argv = request.argv()?;
    let command = argv.iter().map(|argument| literal(argument).into());
    let (own, command) = match by_rank {
        true => (variables(&parts.name, shape, &first)?, command.collect()),
        false => {
            let index = EnvVar::from("NODE_RANK", ValueFrom::FieldRef { field_path: INDEX });
            // of agents of PyTorch 2.12 and later; those before kill ranks 30 s after SIGTERM
            let name = "TORCH_ELASTIC_SHUTDOWN_TIMEOUT";
            let time = EnvVar::of(name, request.inventory.cluster.stop_grace.as_secs().to_string());
            let own = [index].into_iter().chain((!request.variables.contains_key(name)).then_some(time)).collect();
            (own, torchrun(shape, &first).into_iter().chain(command).collect())
        }
    };
    let container =
        PodContainer { env: parts.env(own)?, resources: parts.resources(), ..parts.container("ranks", command) };
    let resource = resource(request, &parts, shape, container);
    let mut exported = parts.document(request, &resource, "A JobSet of jobset.x-k8s.io/v1alpha2")?;
    if by_rank && shape.gpus > 0 && shape.pods > 1 {
        exported.warnings.push(
            "each rank has its own pod: NCCL uses neither shared memory nor NVLink between them; torchrun has one pod \
             for each node"
                .to_owned(),
        );
    }
    Ok(exported)
}

/// Returns the JobSet whose pods run this container.
fn resource(
    request: &ExportRequest<'_>,
    parts: &PodParts,
    shape: Shape,
    container: PodContainer,
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
            failure_policy: FailurePolicy { max_restarts: request.options.restarts },
            replicated_jobs: [ReplicatedJob {
                name: JOB,
                replicas: 1,
                template: JobTemplate {
                    spec: JobSpec {
                        parallelism: shape.pods,
                        completions: shape.pods,
                        completion_mode: "Indexed",
                        // the JobSet starts all pods again, as one alone would wait for the others
                        backoff_limit: 0,
                        template: parts.pod(container, Some("Never"), true),
                    },
                },
            }],
        },
    }
}

/// Returns the host name of a pod.
fn host(name: &str, pod: u32) -> String {
    format!("{name}-{JOB}-0-{pod}.{name}")
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
fn variables(name: &str, shape: Shape, first: &str) -> Result<Vec<EnvVar>, Error> {
    let port = PORT.to_string();
    if shape.pods > MOST_RANKS {
        return Err(Error::usage(
            format!("{} ranks are more than TF_CONFIG can name (at most {MOST_RANKS})", shape.pods),
            "use --launcher torchrun, which has a pod for each node",
        ));
    }
    let workers: Vec<String> = (0..shape.pods).map(|pod| format!("{}:{PORT}", host(name, pod))).collect();
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
    let rank = EnvVar::from("RANK", ValueFrom::FieldRef { field_path: INDEX });
    Ok(std::iter::once(rank).chain(fixed.map(|(name, value)| EnvVar::of(name, value))).collect())
}
