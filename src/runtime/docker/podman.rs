//! Requests of Podman's own interface, for what its Docker-compatible one lacks: it knows no request for GPUs, and
//! before Podman 5.3 no CDI names of devices.

use super::request::{PACKETS, capabilities, environment, is_without_packets, uses_engine};
use crate::inventory::Ulimit;
use crate::node::gpus::GpuRequest;
use crate::paths::{DATA, WORKSPACE};
use crate::runtime::spec::{ContainerSpec, Role};
use serde::Deserialize;
use serde_json::{Map, Value, json};
use std::collections::BTreeSet;

/// The path of the request that creates a container, in the oldest version of the interface that has all that is asked.
pub(super) const CREATE: &str = "/v4.0.0/libpod/containers/create";

/// Capabilities that Docker gives to root in a container and Podman does not: sshd reports logins to the kernel's
/// audit.
const CAPABILITIES: [&str; 2] = ["CAP_AUDIT_WRITE", "CAP_MKNOD"];

/// Podman's answer to [`CREATE`].
#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
pub(super) struct CreatedContainer {
    /// The container's id.
    pub(super) id: String,
}

/// Returns the request that creates a container as [`create_request`](super::request::create_request) does with Docker:
/// a `SpecGenerator` of Podman.
pub(super) fn podman_request(container: &ContainerSpec) -> Value {
    let ContainerSpec { spec, role, .. } = container;
    // Podman changes the label of the directory where SELinux is in use, and ignores `z` elsewhere. What the inventory
    // mounts keeps its label
    let own = |source: &str, target: &str, read_only| mount(source, target, read_only, &["rbind", "z"]);
    // without what is mounted below the directory of the engine's socket, which may be /run
    let bind = if *role == Role::SlurmAgent { "bind" } else { "rbind" };
    let foreign = |source: &str, target: &str, read_only| mount(source, target, read_only, &[bind]);
    let mounts = spec.mounts.iter().map(|m| own(&m.source, &m.target, m.read_only));
    let workspace = container.workspace.iter().map(|directory| own(directory, WORKSPACE, false));
    let extra = spec.extra_mounts.iter().map(|m| foreign(&m.source, &m.target, m.read_only));
    let data = spec.data.iter().map(|data| own(&data.source, &format!("{DATA}/{}", data.name), true));
    let own_devices = spec.devices.iter().map(|d| format!("{}:{}:{}", d.source, d.target, d.permissions));
    let devices = own_devices.chain(cdi_names(&spec.gpus)).map(|path| json!({ "path": path }));
    let pairs = environment(container);
    let env: Map<String, Value> =
        pairs.iter().filter_map(|pair| pair.split_once('=')).map(|(name, value)| (name.into(), value.into())).collect();
    let is_attached = matches!(role, Role::Shell | Role::Relay);
    let mut request = json!({
        "name": container.name,
        "image": spec.image,
        // instead of the image's entrypoint, which may start something else
        "entrypoint": container.argv(),
        "command": [],
        "user": "0:0",
        "work_dir": if container.workspace.is_some() { WORKSPACE } else { "/" },
        "env": env,
        "stdin": is_attached,
        "labels": container.labels(),
        "netns": { "nsmode": "host" },
        "userns": { "nsmode": "host" },
        "mounts": mounts.chain(workspace).chain(extra).chain(data).collect::<Vec<_>>(),
        "devices": devices.collect::<Vec<_>>(),
        "r_limits": spec.ulimits.iter().map(|(name, limit)| rlimit(name, limit)).collect::<Vec<_>>(),
        "shm_size": spec.shm_size,
        "cap_add": CAPABILITIES.map(str::to_owned).into_iter().chain(capabilities(container)).collect::<BTreeSet<_>>(),
        // Podman's own choice, which a node may set, may have it
        "cap_drop": if is_without_packets(container) { &[PACKETS][..] } else { &[] },
        // Podman's default is 2048 processes and threads, Docker's is no limit: 0, because crun refuses -1
        "resource_limits": { "pids": { "limit": 0 } },
        "healthconfig": { "Test": ["NONE"] },
        "systemd": "false",
        // what a job wrote in its container may be the only copy (worker/plan/ended.rs)
        "remove": *role == Role::Shell,
    });
    if let Some(stop) = container.stop() {
        request["stop_signal"] = stop.signal.1.into();
        request["stop_timeout"] = stop.seconds.into();
    }
    if *role == Role::Relay {
        // what a relay says is for hvdctl alone
        request["log_configuration"] = json!({ "driver": "none" });
    }
    if uses_engine(container) {
        // SELinux lets no other container use the engine's socket
        request["selinux_opts"] = json!(["disable"]);
    }
    if matches!(role, Role::Slurm | Role::SlurmAgent | Role::Mesh) {
        // as for Docker
        request["restart_policy"] = "unless-stopped".into();
    }
    if *role == Role::SlurmAgent {
        request["pidns"] = json!({ "nsmode": "host" });
    }
    request
}

fn mount(source: &str, target: &str, read_only: bool, options: &[&str]) -> Value {
    let options: Vec<&str> = options.iter().copied().chain(read_only.then_some("ro")).collect();
    json!({ "type": "bind", "source": source, "destination": target, "options": options })
}

fn rlimit(name: &str, limit: &Ulimit) -> Value {
    // -1 is no limit
    let value = |limit: i64| u64::try_from(limit).unwrap_or(u64::MAX);
    json!({ "type": name, "soft": value(limit.soft), "hard": value(limit.hard) })
}

/// Returns the names of the GPUs in the files that `nvidia-ctk cdi generate` writes.
fn cdi_names(request: &GpuRequest) -> Vec<String> {
    let name = |device: &dyn std::fmt::Display| format!("nvidia.com/gpu={device}");
    match request {
        GpuRequest::None | GpuRequest::Unstated => Vec::new(),
        GpuRequest::All => vec![name(&"all")],
        GpuRequest::First(count) => (0..*count).map(|index| name(&index)).collect(),
        GpuRequest::Devices(devices) => devices.iter().map(|device| name(device)).collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::inventory::{Inventory, Mount};
    use crate::node::storage::PushedData;

    #[test]
    fn the_request_is_one_of_podman() {
        let Inventory { cluster, mut nodes, .. } = Inventory::local("here", "img");
        nodes[0].container.mounts = vec![Mount { source: "/srv/set".into(), target: "/set".into(), read_only: true }];
        nodes[0].container.ulimits = [("memlock".to_owned(), Ulimit { soft: -1, hard: -1 })].into();
        let worker = |gpus| ContainerSpec::worker(&cluster, &nodes[0], gpus, [10, 0, 0, 1].into());
        let pushed = [("set".to_owned(), PushedData { hash: "-".into(), inode: Some(7) })].into();
        let spec = ContainerSpec {
            workspace: Some("/opt/horovod/projects/x".into()),
            env: vec!["A=b=c".into()],
            ..worker(GpuRequest::All).with_data(&cluster, &nodes[0], &pushed)
        };
        let request = podman_request(&spec);
        assert_eq!((&request["entrypoint"], &request["work_dir"]), (&json!(spec.argv()), &json!("/workspace")));
        let mounts: Vec<String> = request["mounts"]
            .as_array()
            .unwrap()
            .iter()
            .map(|mount| {
                let options: Vec<&str> = mount["options"].as_array().unwrap().iter().flat_map(Value::as_str).collect();
                format!("{}:{}:{}", mount["source"], mount["destination"], options.join(",")).replace('"', "")
            })
            .collect();
        // only hvdctl's own directories get another label
        assert_eq!(
            mounts,
            [
                "/opt/horovod/ssh:/root/.ssh:rbind,z,ro",
                "/opt/horovod/jobs/.worker@local:/opt/horovod/jobs:rbind,z",
                "/opt/horovod/projects/x:/workspace:rbind,z",
                "/srv/set:/set:rbind,ro",
                "/opt/horovod/data/set:/data/set:rbind,z,ro",
            ]
        );
        assert_eq!(request["devices"], json!([{ "path": "nvidia.com/gpu=all" }]));
        assert_eq!(request["r_limits"], json!([{ "type": "memlock", "soft": u64::MAX, "hard": u64::MAX }]));
        assert_eq!(request["env"], json!({ "A": "b=c" }));
        assert_eq!(request["cap_add"], json!(["CAP_AUDIT_WRITE", "CAP_MKNOD", "CAP_SYS_PTRACE"]));
        assert_eq!(request["cap_drop"], json!(["CAP_NET_RAW"]));
        let given = |name: &str, role| {
            let mut with = ContainerSpec { role, ..worker(GpuRequest::All) };
            with.spec.cap_add = Some(vec![name.to_owned()]);
            let request = podman_request(&with);
            (request["cap_add"].clone(), request["cap_drop"].clone())
        };
        // Podman refuses what is both added and dropped
        let both = json!(["CAP_AUDIT_WRITE", "CAP_MKNOD", "CAP_NET_RAW", "CAP_SYS_PTRACE"]);
        assert_eq!(given("NET_RAW", Role::Worker), (both, json!([])));
        let of_slurm = json!(["CAP_AUDIT_WRITE", "CAP_MKNOD", "CAP_SYS_PTRACE"]);
        assert_eq!(given("MKNOD", Role::SlurmAgent), (of_slurm, json!(["CAP_NET_RAW"])));
        assert_eq!((&request["remove"], &request["stop_signal"]), (&json!(false), &json!(15)));
        assert_eq!(podman_request(&worker(GpuRequest::None))["env"], json!({ "NVIDIA_VISIBLE_DEVICES": "void" }));
        let master = ContainerSpec { role: Role::Master, ..worker(GpuRequest::None) };
        let master = podman_request(&master);
        assert_eq!((&master["stop_signal"], &master["stop_timeout"]), (&json!(10), &json!(30)));
        let shell = podman_request(&ContainerSpec { role: Role::Shell, ..worker(GpuRequest::None) });
        assert_eq!((&shell["remove"], &shell["stdin"]), (&json!(true), &json!(true)));
        let relay = podman_request(&ContainerSpec { role: Role::Relay, ..worker(GpuRequest::None) });
        assert_eq!(
            (&relay["log_configuration"]["driver"], &relay["selinux_opts"]),
            (&json!("none"), &json!(["disable"]))
        );
    }

    #[test]
    fn gpus_have_cdi_names() {
        assert_eq!(cdi_names(&GpuRequest::None), [""; 0]);
        assert_eq!(cdi_names(&GpuRequest::Unstated), [""; 0]);
        assert_eq!(cdi_names(&GpuRequest::First(2)), ["nvidia.com/gpu=0", "nvidia.com/gpu=1"]);
        let devices = vec!["3".to_owned(), "GPU-1".to_owned(), "MIG-2".to_owned()];
        let names = ["nvidia.com/gpu=3", "nvidia.com/gpu=GPU-1", "nvidia.com/gpu=MIG-2"];
        assert_eq!(cdi_names(&GpuRequest::Devices(devices)), names);
    }
}
