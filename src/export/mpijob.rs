//! An MPIJob of Kubeflow's MPI operator (v2beta1): a launcher, and workers that run sshd.
//!
//! The operator makes a key pair for each job, mounts it in all pods, and writes the workers into a hostfile
//! (`pkg/controller/mpi_job_controller.go`).

use super::manifest::*;
use super::pod::{PodParts, literal};
use super::shape::shape;
use super::{ExportRequest, Exported};
use crate::error::Error;
use crate::inventory::{Controller, LauncherName};
use crate::launch::open_mpi::time_to_end;
use crate::text::quote;
use crate::worker::spec::START;
use serde::Serialize;

/// The path at which the operator mounts the list of workers.
const HOSTFILE: &str = "/etc/mpi/hostfile";

/// Lets ssh use the operator's key pair, and accept the host keys of the workers, which are made anew in each pod. The
/// image's configuration is for another purpose. Then starts the launcher.
const LAUNCH: &str = "printf '%s\\n' 'IdentityFile /root/.ssh/id_rsa' 'StrictHostKeyChecking no' \
                      'UserKnownHostsFile /dev/null' 'LogLevel ERROR' >/etc/ssh/ssh_config && exec \"$@\"";

/// Starts sshd with host keys of this pod, and with the options of a worker's sshd (worker/spec.rs) that pods can have.
/// The shell stays the first process: with sshd in its place the kernel would end all ranks, which so have the grace
/// period of the pod. `START` is [`START`].
const WORK: &str = include_str!("../scripts/export/worker.sh");

/// The port of sshd in a pod, which has a network of its own.
const SSH: u16 = 22;

/// The specification of an MPIJob.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct MpiJobSpec {
    slots_per_worker: u32,
    launcher_creation_policy: &'static str,
    run_policy: RunPolicy,
    mpi_replica_specs: ReplicaSpecs,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct RunPolicy {
    clean_pod_policy: &'static str,
    backoff_limit: u32,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "PascalCase")]
struct ReplicaSpecs {
    launcher: ReplicaSpec,
    worker: ReplicaSpec,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct ReplicaSpec {
    replicas: u32,
    restart_policy: &'static str,
    template: PodTemplate,
}

/// Exports a job.
pub(super) fn export(request: &ExportRequest<'_>) -> Result<Exported, Error> {
    if !matches!(request.launcher(), LauncherName::Horovodrun | LauncherName::Mpirun) {
        return Err(Error::usage(
            format!("an MPIJob starts ranks with horovodrun or mpirun, but the launcher is {}", request.launcher()),
            "hvdctl export jobset is for torchrun and env; or use --launcher horovodrun or mpirun",
        ));
    }
    let shape = shape(request, false)?;
    // NAME-worker-7, and NAME-launcher-x2b4c
    let suffix = "-launcher-".len() + 5;
    let workers = "-worker-".len() + shape.pods.to_string().len();
    let parts = PodParts::new(request, suffix.max(workers))?;
    let argv = launcher(request)?;
    let argv = argv.iter().map(|argument| literal(argument).into());
    // for Docker's filter of system calls, which is also that of other runtimes
    let mut own = vec![EnvVar::of("OMPI_MCA_btl_vader_single_copy_mechanism", "none")];
    if request.launcher() == LauncherName::Mpirun {
        own.extend(time_to_end(request.inventory.cluster.stop_grace).map(|(name, value)| EnvVar::of(name, value)));
    }
    let command = ["sh", "-c", &literal(LAUNCH), "sh"].map(YamlText::from).into_iter().chain(argv);
    let launcher =
        PodContainer { env: parts.env(own, &request.variables)?, ..parts.container("launcher", command.collect()) };
    let worker = PodContainer {
        ports: vec![Port { name: Some("ssh"), container_port: SSH }],
        readiness_probe: Some(PodProbe {
            check: ProbeCheck::TcpSocket { port: SSH },
            period_seconds: 2,
            timeout_seconds: None,
            failure_threshold: None,
        }),
        resources: parts.resources(request, shape)?,
        ..parts.container(
            "worker",
            ["sh", "-c", &literal(&WORK.replace("START", &quote::command(&[START])))].map(YamlText::from).into(),
        )
    };
    let replicas = |replicas, restart_policy, template| ReplicaSpec { replicas, restart_policy, template };
    let resource = Resource {
        api_version: "kubeflow.org/v2beta1",
        kind: "MPIJob",
        metadata: Metadata { name: parts.name.clone() },
        spec: MpiJobSpec {
            slots_per_worker: shape.ranks,
            launcher_creation_policy: "WaitForWorkersReady",
            run_policy: RunPolicy { clean_pod_policy: "Running", backoff_limit: request.options.restarts },
            mpi_replica_specs: ReplicaSpecs {
                launcher: replicas(1, "Never", parts.pod(launcher, None, false)),
                // for the next attempt of the launcher: the operator does not replace a pod that has failed
                worker: replicas(shape.pods, "OnFailure", parts.pod(worker, None, true)),
            },
        },
    };
    let size = parts.size(request, &format!("Launcher {}", request.launcher()), shape)?;
    parts.document(request, &resource, "An MPIJob of kubeflow.org/v2beta1", vec![size])
}

/// Returns the argument vector of the launcher.
fn launcher(request: &ExportRequest<'_>) -> Result<Vec<String>, Error> {
    let ranks = request.ranks()?.to_string();
    let start_timeout = request.inventory.cluster.start_timeout.as_secs().to_string();
    let mut argv: Vec<String> = match request.launcher() {
        LauncherName::Mpirun => {
            let fixed = ["mpirun", "--allow-run-as-root", "-np", &ranks, "--hostfile", HOSTFILE];
            let names = ["PATH", "LD_LIBRARY_PATH", "PYTHONUNBUFFERED"].into_iter();
            let names: Vec<&str> = names.chain(request.variables.keys().map(String::as_str)).collect();
            let passed = names.iter().enumerate().filter(|(at, name)| !names[..*at].contains(name));
            let placed = ["--map-by", "slot", "--bind-to", "none"];
            fixed
                .into_iter()
                .chain(placed)
                .chain(passed.flat_map(|(_, name)| ["-x", name]))
                .map(str::to_owned)
                .collect()
        }
        // it passes the launcher's environment on
        _ => {
            let controller = if request.controller() == Controller::Mpi { "--mpi" } else { "--gloo" };
            let fixed =
                ["horovodrun", controller, "-np", &ranks, "--hostfile", HOSTFILE, "--start-timeout", &start_timeout];
            fixed.map(str::to_owned).into()
        }
    };
    argv.extend(request.argv()?);
    Ok(argv)
}
