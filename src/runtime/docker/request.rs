//! Requests to create containers.

use crate::inventory::Ulimit;
use crate::node::gpus::GpuRequest;
use crate::runtime::spec::{self, ContainerSpec, Role};
use bollard::models::{
    ContainerCreateBody, DeviceMapping, DeviceRequest, HostConfig, Mount, MountType, ResourcesUlimits,
};

/// Returns the request that creates a container.
pub(super) fn create_request(spec: &ContainerSpec) -> ContainerCreateBody {
    let covered = &spec.spec;
    let binds = spec
        .mounts()
        .into_iter()
        .map(|mount| format!("{}:{}{}", mount.source, mount.target, if mount.read_only { ":ro" } else { "" }));
    ContainerCreateBody {
        image: Some(covered.image.clone()),
        cmd: Some(covered.command.clone()),
        user: Some("0:0".into()),
        working_dir: Some(spec.workspace.as_ref().map_or("/", |_| crate::paths::WORKSPACE).into()),
        env: (!spec.env.is_empty()).then(|| spec.env.clone()),
        // a shell's container lives as long as hvdctl is attached to its main process
        open_stdin: Some(spec.role == Role::Shell),
        stdin_once: Some(spec.role == Role::Shell),
        // hvdctl stops a job by SIGTERM, which its supervisor tells from an engine that shuts down
        stop_signal: (spec.role == Role::Master).then(|| "SIGUSR1".into()),
        // seconds; more than the job supervisor takes when a node is lost
        stop_timeout: (spec.role == Role::Master).then_some(30),
        labels: Some(spec.labels().into_iter().collect()),
        host_config: Some(HostConfig {
            network_mode: Some("host".into()),
            binds: Some(binds.collect()),
            mounts: some(covered.extra_mounts.iter().map(mount).collect()),
            devices: some(covered.devices.iter().map(device).collect()),
            ulimits: some(covered.ulimits.iter().map(ulimit).collect()),
            shm_size: i64::try_from(covered.shm_size).ok(),
            // nothing of an ended job stays, even if no hvdctl is connected
            auto_remove: Some(spec.job.is_some() || spec.role == Role::Shell),
            device_requests: gpus(&covered.gpus).map(|gpus| vec![gpus]),
            ..HostConfig::default()
        }),
        ..ContainerCreateBody::default()
    }
}

fn some<T>(list: Vec<T>) -> Option<Vec<T>> {
    (!list.is_empty()).then_some(list)
}

/// Not a bind, for which Docker would create a missing directory on the node.
fn mount(mount: &spec::Mount) -> Mount {
    Mount {
        typ: Some(MountType::BIND),
        source: Some(mount.source.clone()),
        target: Some(mount.target.clone()),
        read_only: Some(mount.read_only),
        ..Mount::default()
    }
}

fn device(device: &spec::Device) -> DeviceMapping {
    DeviceMapping {
        path_on_host: Some(device.source.clone()),
        path_in_container: Some(device.target.clone()),
        cgroup_permissions: Some(device.permissions.clone()),
    }
}

fn ulimit((name, limit): (&String, &Ulimit)) -> ResourcesUlimits {
    ResourcesUlimits { name: Some(name.clone()), soft: Some(limit.soft), hard: Some(limit.hard) }
}

/// `--gpus all` is a request for -1 devices with the capability `gpu`.
fn gpus(request: &GpuRequest) -> Option<DeviceRequest> {
    let (count, device_ids) = match request {
        GpuRequest::None => return None,
        GpuRequest::All => (Some(-1), None),
        GpuRequest::First(count) => (Some(i64::from(*count)), None),
        GpuRequest::Devices(devices) => (None, Some(devices.clone())),
    };
    Some(DeviceRequest { count, device_ids, capabilities: Some(vec![vec!["gpu".into()]]), ..DeviceRequest::default() })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::inventory::Inventory;

    #[test]
    fn the_body_is_what_docker_run_sends() {
        let Inventory { cluster, nodes, .. } = Inventory::local("here", "img");
        let worker = |gpus| ContainerSpec::worker(&cluster, &nodes[0], gpus, [10, 0, 0, 1].into());
        let spec = ContainerSpec { workspace: Some("/opt/horovod/projects/x".into()), ..worker(GpuRequest::All) };
        let request = create_request(&spec);
        let host = request.host_config.unwrap();
        assert_eq!(host.network_mode.as_deref(), Some("host"));
        assert_eq!(
            host.binds.unwrap(),
            [
                "/opt/horovod/ssh:/root/.ssh:ro",
                "/opt/horovod/jobs:/opt/horovod/jobs",
                "/opt/horovod/projects/x:/workspace"
            ]
        );
        let gpus = &host.device_requests.unwrap()[0];
        assert_eq!((gpus.count, gpus.capabilities.clone()), (Some(-1), Some(vec![vec!["gpu".to_owned()]])));
        assert!(create_request(&worker(GpuRequest::None)).host_config.unwrap().device_requests.is_none());
        assert!(host.mounts.is_none() && host.devices.is_none() && host.ulimits.is_none());
        let some = |wanted| super::gpus(&wanted).map(|gpus| (gpus.count, gpus.device_ids));
        assert_eq!(some(GpuRequest::First(2)), Some((Some(2), None)));
        let devices = vec!["0".to_owned(), "GPU-1".to_owned()];
        assert_eq!(some(GpuRequest::Devices(devices.clone())), Some((None, Some(devices))));
    }
}
