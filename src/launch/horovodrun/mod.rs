//! Horovod's launcher `horovodrun` (0.28) with either controller.

use super::description::Argument;
use super::programs::{RANK_SUPERVISOR, command};
use super::{BASE, LaunchRequest, Launcher, ShellRequest, open_mpi};

/// With Gloo, Horovod's own controller: `horovodrun` starts each rank over ssh.
pub static GLOO: Launcher =
    Launcher { init_hint: Some("-e HOROVOD_GLOO_TIMEOUT_SECONDS=600 gives it more time"), ..COMMON };

/// With MPI: `horovodrun` starts `mpirun`, and that a daemon on each node.
pub static MPI: Launcher = Launcher {
    arguments: |request| arguments("--mpi", request),
    environment: |_| open_mpi::session_environment(),
    reads: open_mpi::READS,
    one_interface: Some("MPI"),
    daemons: open_mpi::DAEMONS,
    spins: true,
    ..COMMON
};

const COMMON: Launcher = Launcher {
    program: "horovodrun",
    arguments: |request| arguments("--gloo", request),
    by_hand: |request| Some(by_hand(request)),
    rank: &["HOROVOD_RANK", "OMPI_COMM_WORLD_RANK", "PMI_RANK"],
    local_rank: &["HOROVOD_LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_RANK", "MPI_LOCALRANKID"],
    size: &["HOROVOD_SIZE", "OMPI_COMM_WORLD_SIZE", "PMI_SIZE"],
    interface_variables: INTERFACE_VARIABLES,
    interface_defaults: INTERFACE_DEFAULTS,
    init: "hvd.init",
    verify_with: VERIFY_WITH,
    hang_reports: HANG_REPORTS,
    ..BASE
};

/// The launcher only knows the first node's interface.
pub(super) const INTERFACE_VARIABLES: &[&str] = &["HOROVOD_GLOO_IFACE", "NCCL_SOCKET_IFNAME"];
/// For programs that use `torch.distributed` too.
pub(super) const INTERFACE_DEFAULTS: &[&str] = &["GLOO_SOCKET_IFNAME"];

/// Horovod's module for each framework.
const VERIFY_WITH: &[&str] = &["horovod.torch", "horovod.tensorflow", "horovod.mxnet"];

/// What Horovod writes when it gives up.
pub(super) const HANG_REPORTS: &[(&str, &str)] = &[
    // Gloo's rendezvous, where each rank has a key (horovod/common/gloo/http_store.cc)
    ("never_began", r"Wait timeout after (?P<seconds>\d+) seconds for key\(s\): (?P<rank>\d+)\."),
    // horovod/common/stall_inspector.cc
    ("missing", "Missing ranks:"),
    ("missing_rank", r"^(?P<rank>\d+)!: \[(?P<tensors>.*)\]$"),
    ("gave_up", r"stalled for longer than (?P<seconds>\d+) seconds. Will shutdown"),
];

/// Horovod's own time until it warns about a rank that the others wait for; its shutdown time-out counts only after
/// that.
const WARNING_SECONDS: u64 = 60;

/// The controller is always passed, because the official image defaults to MPI. With one named interface the launcher probes nothing
/// (4 s saved on two nodes, and no hang on `docker0`); for ranks of its own node alone it takes none but `lo` (driver_service.py). What
/// the ranks run is always the supervisor: the user's program is in the job's record, so the launcher quotes, splits and expands none
/// of its arguments.
fn arguments(controller: &str, request: &LaunchRequest<'_>) -> Vec<Argument> {
    let stall = request.stall_timeout.as_secs();
    let warning = if stall == 0 { WARNING_SECONDS } else { (stall / 2).clamp(1, WARNING_SECONDS) };
    let interface = Argument::Interface { shared: request.interface.into(), alone: "lo".into() };
    let [python, supervisor] = command(request.job_dir, RANK_SUPERVISOR);
    vec![
        "horovodrun".into(),
        controller.into(),
        "-np".into(),
        Argument::Ranks {},
        "-H".into(),
        Argument::Hosts {},
        "-p".into(),
        request.port.to_string().into(),
        "--network-interfaces".into(),
        interface,
        "--disable-cache".into(),
        "--start-timeout".into(),
        request.start_timeout.as_secs().to_string().into(),
        "--stall-check-warning-time-seconds".into(),
        warning.to_string().into(),
        "--stall-check-shutdown-time-seconds".into(),
        stall.to_string().into(),
        python.into(),
        supervisor.into(),
    ]
}

fn by_hand(request: &ShellRequest<'_>) -> String {
    let ShellRequest { slots, hostfile, port, interface } = request;
    let interface = interface.map(|name| format!(" --network-interfaces {name}")).unwrap_or_default();
    format!("horovodrun -np {slots} -p {port} -hostfile {hostfile}{interface} PROGRAM")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::inventory::{Controller, Inventory, LauncherName, env_lines};
    use crate::launch::description::LaunchHost;
    use crate::launch::{NodeCommand, launcher};
    use serde_json::json;
    use std::net::{IpAddr, Ipv4Addr};
    use std::time::Duration;

    const fn host(node: &'static str, last: u8, ranks: u32) -> LaunchHost<'static> {
        LaunchHost { node, address: IpAddr::V4(Ipv4Addr::new(10, 0, 0, last)), ranks }
    }

    const HOSTS: [LaunchHost<'_>; 2] = [host("node1", 1, 2), host("node2", 2, 1)];
    const REQUEST: LaunchRequest<'_> = LaunchRequest {
        hosts: &HOSTS,
        first: HOSTS[0],
        port: 12345,
        rendezvous_port: 29500,
        interface: "eth0",
        start_timeout: Duration::from_secs(30),
        stall_timeout: Duration::from_secs(1800),
        job_dir: "/opt/horovod/jobs/j1",
    };

    fn commands(name: LauncherName, controller: Controller, request: &LaunchRequest<'_>) -> Vec<NodeCommand> {
        launcher(name, controller).commands(request)
    }

    #[test]
    fn the_vector_is_exact() {
        let horovodrun = |controller, request: &LaunchRequest<'_>| {
            let commands = commands(LauncherName::Horovodrun, controller, request);
            assert_eq!((commands.len(), commands[0].node.as_str(), commands[0].variables.len()), (1, "node1", 0));
            commands[0].argv.join(" ")
        };
        assert_eq!(
            horovodrun(Controller::Mpi, &REQUEST),
            "horovodrun --mpi -np 3 -H 10.0.0.1:2,10.0.0.2:1 -p 12345 --network-interfaces eth0 --disable-cache \
             --start-timeout 30 --stall-check-warning-time-seconds 60 --stall-check-shutdown-time-seconds 1800 \
             python3 /opt/horovod/jobs/j1/rank_supervisor.py"
        );
        let patient = LaunchRequest { stall_timeout: Duration::ZERO, hosts: &HOSTS[..1], ..REQUEST };
        assert_eq!(
            horovodrun(Controller::Gloo, &patient),
            "horovodrun --gloo -np 2 -H 10.0.0.1:2 -p 12345 --network-interfaces lo --disable-cache \
             --start-timeout 30 --stall-check-warning-time-seconds 60 --stall-check-shutdown-time-seconds 0 \
             python3 /opt/horovod/jobs/j1/rank_supervisor.py"
        );
    }

    #[test]
    fn every_node_has_an_agent_of_torchrun() {
        let all = commands(LauncherName::Torchrun, Controller::Gloo, &REQUEST);
        let lines: Vec<String> = all.iter().map(|command| command.argv.join(" ")).collect();
        let end = "--master_addr 10.0.0.1 --master_port 29500 --max_restarts 0 --no_python python3 \
                   /opt/horovod/jobs/j1/rank_supervisor.py";
        assert_eq!(
            lines,
            [
                format!("torchrun --nnodes 2 --node_rank 0 --nproc_per_node 2 {end}"),
                format!("torchrun --nnodes 2 --node_rank 1 --nproc_per_node 1 {end}")
            ]
        );
    }

    #[test]
    fn every_rank_has_its_variables_without_a_launcher() {
        let all = commands(LauncherName::Env, Controller::Gloo, &REQUEST);
        let [first, second] = &all[..] else { panic!("{all:?}") };
        assert_eq!((first.variables.len(), second.variables.len()), (2, 1));
        let value = |name: &str| second.variables[0].iter().find_map(|set| set.strip_prefix(name)?.strip_prefix('='));
        for (name, expected) in [
            ("RANK", "2"),
            ("LOCAL_RANK", "0"),
            ("WORLD_SIZE", "3"),
            ("LOCAL_WORLD_SIZE", "1"),
            ("NODE_RANK", "1"),
            ("MASTER_ADDR", "10.0.0.1"),
            ("MASTER_PORT", "29500"),
            ("JAX_COORDINATOR_ADDRESS", "10.0.0.1:29500"),
            ("JAX_NUM_PROCESSES", "3"),
            ("JAX_PROCESS_ID", "2"),
        ] {
            assert_eq!(value(name), Some(expected), "{name}");
        }
        let config: serde_json::Value = serde_json::from_str(value("TF_CONFIG").unwrap()).unwrap();
        let workers = ["10.0.0.1:29500", "10.0.0.1:29501", "10.0.0.2:29500"];
        assert_eq!(config, json!({"cluster": {"worker": workers}, "task": {"type": "worker", "index": 2}}));
    }

    #[test]
    fn mpirun_takes_the_interface_of_the_nodes() {
        let all = commands(LauncherName::Mpirun, Controller::Gloo, &REQUEST);
        assert!(
            all[0].argv.join(" ").starts_with("mpirun --allow-run-as-root -np 3 -H 10.0.0.1:2,10.0.0.2:1 "),
            "{all:?}"
        );
        let node = Inventory::local("node1", "image").nodes.remove(0);
        let env = launcher(LauncherName::Mpirun, Controller::Gloo).container_environment("j1", &node, &REQUEST);
        for variable in ["OMPI_MCA_btl_tcp_if_include=eth0", "OMPI_MCA_plm_rsh_args=-p 12345"] {
            assert!(env.iter().any(|set| set == variable), "{env:?}");
        }
    }

    #[test]
    fn the_environment_of_the_launcher() {
        let mut node = Inventory::local("node1", "image").nodes.remove(0);
        for name in ["OMPI_MCA_btl", "SECRET"] {
            node.container.env.insert(name.into(), "1".into());
        }
        assert_eq!(GLOO.container_environment("j1", &node, &REQUEST), ["HVDCTL_JOB=j1", "PYTHONUNBUFFERED=1"]);
        assert_eq!(
            MPI.container_environment("j1", &node, &REQUEST)[2..],
            [
                "OMPI_MCA_btl_vader_single_copy_mechanism=none",
                "OMPI_MCA_orte_leave_session_attached=1",
                "PRTE_MCA_prte_leave_session_attached=1",
                "OMPI_MCA_btl=1"
            ]
        );
    }

    #[test]
    fn each_rank_gets_the_interface_of_its_node() {
        let description = serde_json::to_value(GLOO.rank_description("ib0")).unwrap();
        assert_eq!(
            description["environment"],
            serde_json::json!({"HOROVOD_GLOO_IFACE": "ib0", "NCCL_SOCKET_IFNAME": "ib0"})
        );
        assert_eq!(description["defaults"], serde_json::json!({"GLOO_SOCKET_IFNAME": "ib0"}));
        assert!(GLOO.rank_description("").environment.is_empty());
    }

    #[test]
    fn an_inventory_cannot_set_what_the_launcher_sets_for_each_rank() {
        for controller in [Controller::Gloo, Controller::Mpi] {
            let launcher = launcher(LauncherName::Horovodrun, controller);
            for name in launcher.rank.iter().chain(launcher.local_rank).chain(launcher.size) {
                let refused = env_lines(&format!("{name}=1")).unwrap_err();
                assert!(refused[0].contains("sets it for every rank"), "{refused:?}");
            }
        }
    }
}
