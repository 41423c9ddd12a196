//! Requests to create containers.

use crate::inventory::Mount as ExtraMount;
use crate::node::gpus::GpuRequest;
use crate::paths::{DATA, WORKSPACE};
use crate::runtime::spec::{ContainerSpec, DataMount, Role};
use bollard::models::{
    ContainerCreateBody, DeviceMapping, DeviceRequest, HostConfig, HostConfigLogConfig, Mount, MountBindOptions,
    MountType, ResourcesUlimits, RestartPolicy, RestartPolicyNameEnum,
};

/// Returns the request that creates a container.
pub(super) fn create_request(container: &ContainerSpec) -> ContainerCreateBody {
    let ContainerSpec { spec, role, .. } = container;
    let own_mounts =
        spec.mounts.iter().map(|m| format!("{}:{}{}", m.source, m.target, if m.read_only { ":ro" } else { "" }));
    let workspace = container.workspace.as_ref().map(|directory| format!("{directory}:{WORKSPACE}"));
    let mounts = foreign_mounts(container);
    let devices = spec.devices.iter().map(|device| DeviceMapping {
        path_on_host: Some(device.source.clone()),
        path_in_container: Some(device.target.clone()),
        cgroup_permissions: Some(device.permissions.clone()),
    });
    let ulimits = spec.ulimits.iter().map(|(name, limit)| ResourcesUlimits {
        name: Some(name.clone()),
        soft: Some(limit.soft),
        hard: Some(limit.hard),
    });
    let stop = container.stop();
    ContainerCreateBody {
        image: Some(spec.image.clone()),
        // instead of the image's entrypoint, which may start something else
        entrypoint: Some(container.argv()),
        user: Some("0:0".into()),
        working_dir: Some(if workspace.is_some() { WORKSPACE } else { "/" }.into()),
        env: unless_empty(environment(container)),
        // these live as long as hvdctl is attached to their main process
        open_stdin: Some(matches!(role, Role::Shell | Role::Relay)),
        stdin_once: Some(matches!(role, Role::Shell | Role::Relay)),
        stop_signal: stop.map(|stop| stop.signal.0.into()),
        stop_timeout: stop.and_then(|stop| i64::try_from(stop.seconds).ok()),
        labels: Some(container.labels().into_iter().collect()),
        host_config: Some(HostConfig {
            network_mode: Some("host".into()),
            // an engine with userns-remap refuses the node's network otherwise, and root there is what the node's files
            // need
            userns_mode: Some("host".into()),
            binds: Some(own_mounts.chain(workspace).collect()),
            mounts: unless_empty(mounts.collect()),
            devices: unless_empty(devices.collect()),
            ulimits: unless_empty(ulimits.collect()),
            shm_size: i64::try_from(spec.shm_size).ok(),
            // what a job wrote in its container may be the only copy (worker/plan/ended.rs)
            auto_remove: Some(*role == Role::Shell),
            device_requests: gpus(&spec.gpus).map(|gpus| vec![gpus]),
            // what a relay says is for hvdctl alone
            log_config: (*role == Role::Relay)
                .then(|| HostConfigLogConfig { typ: Some("none".into()), ..HostConfigLogConfig::default() }),
            // SELinux lets no other container use the engine's socket
            security_opt: uses_engine(container).then(|| vec!["label=disable".into()]),
            // jobs wait there while the machine is started again
            restart_policy: matches!(role, Role::Slurm | Role::SlurmAgent | Role::Mesh).then(|| RestartPolicy {
                name: Some(RestartPolicyNameEnum::UNLESS_STOPPED),
                ..RestartPolicy::default()
            }),
            // it looks for the processes of jobs that are not its own
            pid_mode: (*role == Role::SlurmAgent).then(|| "host".into()),
            cap_add: unless_empty(capabilities(container)),
            cap_drop: is_without_packets(container).then(|| vec![PACKETS.into()]),
            ..HostConfig::default()
        }),
        ..ContainerCreateBody::default()
    }
}

/// Returns the mounts of the inventory and of data: not as binds, for which Docker would create missing directories on the
/// node.
fn foreign_mounts(container: &ContainerSpec) -> impl Iterator<Item = Mount> {
    let mount = |source: &str, target: &str, read_only| Mount {
        typ: Some(MountType::BIND),
        source: Some(source.to_owned()),
        target: Some(target.to_owned()),
        read_only: Some(read_only),
        ..Mount::default()
    };
    let data = move |data: &DataMount| mount(&data.source, &format!("{DATA}/{}", data.name), true);
    // without what is mounted below the directory of the engine's socket, which may be /run
    let is_flat = container.role == Role::SlurmAgent;
    let extra = move |extra: &ExtraMount| Mount {
        bind_options: is_flat.then(|| MountBindOptions { non_recursive: Some(true), ..MountBindOptions::default() }),
        ..mount(&extra.source, &extra.target, extra.read_only)
    };
    container.spec.extra_mounts.iter().map(extra).chain(container.spec.data.iter().map(data))
}

/// Lets a program read the environment of processes that have other capabilities (proc(5), ptrace(2)), and the rank
/// supervisors read the stacks of their ranks, which Docker before 23 forbids without it.
const READS_PROCESSES: &str = "CAP_SYS_PTRACE";

/// Lets a program read what passes over every interface of its network (packet(7)), which is the node's here: also what
/// other users' programs send each other over 127.0.0.1.
pub(super) const PACKETS: &str = "CAP_NET_RAW";

/// Returns the capabilities of a container in addition to the engine's default ones.
pub(super) fn capabilities(container: &ContainerSpec) -> Vec<String> {
    let of_inventory = container.spec.cap_add.iter().flatten().map(|name| format!("CAP_{name}"));
    let reads = matches!(container.role, Role::SlurmAgent | Role::Worker | Role::Master);
    let own = reads.then(|| READS_PROCESSES.to_owned());
    own.into_iter().chain(of_inventory.filter(|name| !reads || name != READS_PROCESSES)).collect()
}

/// Returns whether a container does without [`PACKETS`], which engines give by default.
pub(super) fn is_without_packets(container: &ContainerSpec) -> bool {
    !capabilities(container).iter().any(|name| name == PACKETS)
}

/// Returns whether a container has the engine's socket.
pub(super) fn uses_engine(container: &ContainerSpec) -> bool {
    container.role == Role::SlurmAgent || container.role == Role::Relay && !container.spec.extra_mounts.is_empty()
}

/// Tells NVIDIA's container runtime to give no GPU (nvidia-container-toolkit(5): as `runc`).
const NO_GPU: &str = "NVIDIA_VISIBLE_DEVICES=void";

/// Returns the environment in addition to the image's. Where NVIDIA's runtime is the engine's default one, an image's
/// own `NVIDIA_VISIBLE_DEVICES=all` would give GPUs to a container that requests none, and its `NVIDIA_REQUIRE_…` would
/// be checked. An image that is made of a container keeps the container's environment, so that of a project's setup
/// gets no such variable.
pub(super) fn environment(container: &ContainerSpec) -> Vec<String> {
    let no_gpu = container.spec.gpus == GpuRequest::None && container.role != Role::Setup;
    let of_runtime = container.spec.runtime_env.iter().map(|(name, value)| format!("{name}={value}"));
    of_runtime.chain(container.env.iter().cloned()).chain(no_gpu.then(|| NO_GPU.to_owned())).collect()
}

fn unless_empty<T>(list: Vec<T>) -> Option<Vec<T>> {
    (!list.is_empty()).then_some(list)
}

/// Returns what `docker run --gpus` sends; `--gpus all` is a request for -1 devices.
fn gpus(request: &GpuRequest) -> Option<DeviceRequest> {
    let (count, device_ids) = match request {
        GpuRequest::None | GpuRequest::Unstated => return None,
        GpuRequest::All => (Some(-1), None),
        GpuRequest::First(count) => (Some(i64::from(*count)), None),
        GpuRequest::Devices(devices) => (None, Some(devices.clone())),
    };
    Some(DeviceRequest { count, device_ids, capabilities: Some(vec![vec!["gpu".into()]]), ..DeviceRequest::default() })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::inventory::{Inventory, Node};
    use crate::node::storage::PushedData;

    /// Every role that a container has.
    const ROLES: [Role; 8] = [
        Role::Worker,
        Role::Master,
        Role::Shell,
        Role::Helper,
        Role::Setup,
        Role::Relay,
        Role::Slurm,
        Role::SlurmAgent,
    ];

    #[test]
    fn no_container_reads_packets_unless_the_inventory_gives_it_that_right() {
        let Inventory { cluster, mut nodes, .. } = Inventory::local("here", "img");
        let made = |node: &Node, role| {
            let request = create_request(&ContainerSpec::new(&cluster, node, role, "x".into()));
            let HostConfig { cap_add, cap_drop, privileged, .. } = request.host_config.unwrap();
            assert_eq!(privileged, None);
            (cap_add.unwrap_or_default(), cap_drop.unwrap_or_default())
        };
        let text = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect::<Vec<_>>();
        for role in ROLES {
            let reads = matches!(role, Role::SlurmAgent | Role::Worker | Role::Master);
            let own = if reads { text(&[READS_PROCESSES]) } else { Vec::new() };
            assert_eq!(made(&nodes[0], role), (own, text(&["CAP_NET_RAW"])), "{role:?}");
        }
        nodes[0].container.cap_add = text(&["SYS_NICE", "SYS_PTRACE"]);
        let with_nice = text(&[READS_PROCESSES, "CAP_SYS_NICE"]);
        assert_eq!(made(&nodes[0], Role::Worker), (with_nice, text(&["CAP_NET_RAW"])));
        nodes[0].container.cap_add = text(&["NET_RAW"]);
        assert_eq!(made(&nodes[0], Role::Master), (text(&[READS_PROCESSES, "CAP_NET_RAW"]), Vec::new()));
        // the container in which hvdctl is root is started by the engine's command
        let helper = concat!(env!("CARGO_MANIFEST_DIR"), "/src/scripts/access/root_container.sh");
        let helper = std::fs::read_to_string(helper).unwrap();
        let runs = helper.lines().filter(|line| line.contains(" run ")).count();
        assert_eq!((runs, helper.matches("--cap-drop NET_RAW").count()), (1, 1));
    }

    #[test]
    fn the_body_is_what_docker_run_sends() {
        let Inventory { cluster, nodes, .. } = Inventory::local("here", "img");
        let worker = |gpus| ContainerSpec::worker(&cluster, &nodes[0], gpus, [10, 0, 0, 1].into());
        let pushed = [("set".to_owned(), PushedData { hash: "-".into(), inode: Some(7) })].into();
        let spec = ContainerSpec {
            workspace: Some("/opt/horovod/projects/x".into()),
            ..worker(GpuRequest::All).with_data(&cluster, &nodes[0], &pushed)
        };
        let request = create_request(&spec);
        // the image's entrypoint and command have no part in it
        assert_eq!((request.entrypoint, request.cmd), (Some(spec.argv()), None));
        // the ranks have their grace period, and sshd is no process that an engine would ask
        assert_eq!((request.stop_signal.as_deref(), request.stop_timeout), (Some("SIGTERM"), Some(25)));
        let host = request.host_config.unwrap();
        assert_eq!((host.network_mode.as_deref(), host.userns_mode.as_deref()), (Some("host"), Some("host")));
        assert_eq!(
            host.binds.unwrap(),
            [
                "/opt/horovod/ssh:/root/.ssh:ro",
                "/opt/horovod/jobs/.worker@local:/opt/horovod/jobs",
                "/opt/horovod/projects/x:/workspace"
            ]
        );
        // Docker creates no directory for data that were removed meanwhile
        let data = &host.mounts.unwrap()[0];
        assert_eq!((data.source.as_deref(), data.typ), (Some("/opt/horovod/data/set"), Some(MountType::BIND)));
        assert_eq!((data.target.as_deref(), data.read_only), (Some("/data/set"), Some(true)));
        let gpus = &host.device_requests.unwrap()[0];
        assert_eq!((gpus.count, gpus.capabilities.clone()), (Some(-1), Some(vec![vec!["gpu".to_owned()]])));
        let stays = |role| {
            let spec = ContainerSpec { role, job: Some("j1".into()), ..worker(GpuRequest::None) };
            create_request(&spec).host_config.unwrap().auto_remove == Some(false)
        };
        assert!(stays(Role::Master) && stays(Role::Worker) && !stays(Role::Shell));
        let without = create_request(&worker(GpuRequest::None)).host_config.unwrap();
        assert!(without.device_requests.is_none() && without.mounts.is_none());
        assert!(host.devices.is_none() && host.ulimits.is_none());
        let requests = |gpus: &GpuRequest| create_request(&worker(gpus.clone())).env;
        assert_eq!(requests(&GpuRequest::None), Some(vec!["NVIDIA_VISIBLE_DEVICES=void".to_owned()]));
        for gpus in [GpuRequest::All, GpuRequest::First(1), GpuRequest::Devices(vec!["0".into()])] {
            assert_eq!(requests(&gpus), None, "the engine sets what a request asks for");
        }
        let unstated = create_request(&worker(GpuRequest::Unstated));
        assert!(unstated.env.is_none() && unstated.host_config.unwrap().device_requests.is_none());
        for role in ROLES {
            let spec = ContainerSpec { role, env: vec!["A=b".into()], ..worker(GpuRequest::None) };
            let env = create_request(&spec).env.unwrap();
            assert_eq!(env.iter().any(|variable| variable == NO_GPU), role != Role::Setup, "{role:?}");
            assert_eq!(env[0], "A=b");
        }
        let some = |wanted| super::gpus(&wanted).map(|gpus| (gpus.count, gpus.device_ids));
        assert_eq!(some(GpuRequest::First(2)), Some((Some(2), None)));
        let devices = vec!["0".to_owned(), "GPU-1".to_owned()];
        assert_eq!(some(GpuRequest::Devices(devices.clone())), Some((None, Some(devices))));
    }
}
