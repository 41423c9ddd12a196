//! A container as Docker is asked for it.

use crate::inventory::Ulimit;
use crate::node::gpus::GpuRequest;
use crate::runtime::spec::{self, Desired, Role};
use bollard::models::{
    ContainerCreateBody, DeviceMapping, DeviceRequest, HostConfig, Mount, MountType, ResourcesUlimits,
};

/// The words for Docker.
pub(super) fn body(desired: &Desired) -> ContainerCreateBody {
    let spec = &desired.spec;
    let binds = desired
        .mounts()
        .into_iter()
        .map(|mount| format!("{}:{}{}", mount.source, mount.target, if mount.read_only { ":ro" } else { "" }));
    ContainerCreateBody {
        image: Some(spec.image.clone()),
        cmd: Some(spec.command.clone()),
        user: Some("0:0".into()),
        working_dir: Some(desired.workspace.as_ref().map_or("/", |_| crate::paths::WORKSPACE).into()),
        env: (!desired.env.is_empty()).then(|| desired.env.clone()),
        // whoever has the shell holds its main process, and that ends when it is let go of
        open_stdin: Some(desired.role == Role::Shell),
        stdin_once: Some(desired.role == Role::Shell),
        // hvdctl asks a run for its end by SIGTERM, and its keeper tells that from an engine that is shut down
        stop_signal: (desired.role == Role::Master).then(|| "SIGUSR1".into()),
        // seconds; more than the keeper takes when a node has gone
        stop_timeout: (desired.role == Role::Master).then_some(30),
        labels: Some(desired.labels().into_iter().collect()),
        host_config: Some(HostConfig {
            network_mode: Some("host".into()),
            binds: Some(binds.collect()),
            mounts: some(spec.extra_mounts.iter().map(mount).collect()),
            devices: some(spec.devices.iter().map(device).collect()),
            ulimits: some(spec.ulimits.iter().map(ulimit).collect()),
            shm_size: i64::try_from(spec.shm_size).ok(),
            // a run's end leaves nothing behind, also where nobody is there to see it
            auto_remove: Some(desired.job.is_some() || desired.role == Role::Shell),
            device_requests: gpus(&spec.gpus).map(|gpus| vec![gpus]),
            ..HostConfig::default()
        }),
        ..ContainerCreateBody::default()
    }
}

fn some<T>(list: Vec<T>) -> Option<Vec<T>> {
    (!list.is_empty()).then_some(list)
}

/// Not as a bind: for that Docker would make an empty folder where the node has none.
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
        let worker = |gpus| Desired::worker(&cluster, &nodes[0], gpus, [10, 0, 0, 1].into());
        let desired = Desired { workspace: Some("/opt/horovod/projects/x".into()), ..worker(GpuRequest::All) };
        let body = body(&desired);
        let host = body.host_config.unwrap();
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
        assert!(super::body(&worker(GpuRequest::None)).host_config.unwrap().device_requests.is_none());
        assert!(host.mounts.is_none() && host.devices.is_none() && host.ulimits.is_none());
        let some = |request| super::gpus(&request).map(|gpus| (gpus.count, gpus.device_ids));
        assert_eq!(some(GpuRequest::First(2)), Some((Some(2), None)));
        let devices = vec!["0".to_owned(), "GPU-1".to_owned()];
        assert_eq!(some(GpuRequest::Devices(devices.clone())), Some((None, Some(devices))));
    }
}
