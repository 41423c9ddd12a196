//! Every launcher: its arguments, its environment and what it refuses.

use super::horovodrun::{GLOO, MPI};
use super::*;
use crate::inventory::{VARIABLE, env_lines};
use crate::node::network;
use serde_json::json;
use std::net::{Ipv4Addr, Ipv6Addr};

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
    rank_program: programs::RANK_SUPERVISOR,
    kept: None,
    role: None,
};

/// Variables that a user may set on purpose although a launcher sets them, as `docs/guide/launchers.md` says.
const OVERRIDABLE: [&str; 13] = [
    "LOCAL_WORLD_SIZE",
    "NODE_RANK",
    "GROUP_RANK",
    "MASTER_ADDR",
    "MASTER_PORT",
    "TF_CONFIG",
    "JAX_COORDINATOR_ADDRESS",
    "JAX_NUM_PROCESSES",
    "JAX_PROCESS_ID",
    "HOROVOD_GLOO_IFACE",
    "GLOO_SOCKET_IFNAME",
    "NCCL_SOCKET_IFNAME",
    "TP_SOCKET_IFNAME",
];

fn launchers() -> [&'static Launcher; 5] {
    [&GLOO, &MPI, &torchrun::LAUNCHER, &mpirun::LAUNCHER, &env::LAUNCHER]
}

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
         sh /opt/horovod/jobs/j1/hvdctl-python /opt/horovod/jobs/j1/rank_supervisor.py"
    );
    let patient = LaunchRequest { stall_timeout: Duration::ZERO, hosts: &HOSTS[..1], ..REQUEST };
    assert_eq!(
        horovodrun(Controller::Gloo, &patient),
        "horovodrun --gloo -np 2 -H 10.0.0.1:2 -p 12345 --network-interfaces lo --disable-cache \
         --start-timeout 30 --stall-check-warning-time-seconds 60 --stall-check-shutdown-time-seconds 0 \
         sh /opt/horovod/jobs/j1/hvdctl-python /opt/horovod/jobs/j1/rank_supervisor.py"
    );
}

#[test]
fn horovodrun_can_keep_the_ranks_of_an_elastic_job() {
    let kept = KeptRanks { min: 1, max: 4, timeout: Duration::from_secs(600), changes: Some(7) };
    let elastic = LaunchRequest { kept: Some(kept), job_dir: "/a b/j1", ..REQUEST };
    let command = &commands(LauncherName::Horovodrun, Controller::Gloo, &elastic)[0];
    assert_eq!(
        command.argv.join("|"),
        "python3|/a b/j1/elastic_driver.py|--gloo|--min-np|1|--max-np|4|--host-discovery-script|cat \
         '/a b/j1/available_hosts'|--elastic-timeout|660|--blacklist-cooldown-range|5|300|--reset-limit|7|-np|3|-p|12345|\
         --network-interfaces|eth0|--disable-cache|--start-timeout|30|--stall-check-warning-time-seconds|60|\
         --stall-check-shutdown-time-seconds|1800|sh|/a b/j1/hvdctl-python|/a b/j1/rank_supervisor.py"
    );
    let keeping: Vec<&str> = launchers().iter().filter(|l| l.keeps_ranks).map(|l| l.program).collect();
    assert_eq!(keeping, ["horovodrun"]);
}

#[test]
fn every_node_has_an_agent_of_torchrun() {
    let all = commands(LauncherName::Torchrun, Controller::Gloo, &REQUEST);
    let lines: Vec<String> = all.iter().map(|command| command.argv.join(" ")).collect();
    let end = "--master_addr 10.0.0.1 --master_port 29500 --max_restarts 0 --no_python sh \
               /opt/horovod/jobs/j1/hvdctl-python /opt/horovod/jobs/j1/rank_supervisor.py";
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
    let argv = "mpirun --allow-run-as-root -np 3 --hostfile /opt/horovod/jobs/j1/hostfile --map-by slot ";
    assert!(all[0].argv.join(" ").starts_with(argv), "{all:?}");
    assert_eq!((mpirun::LAUNCHER.files)(&REQUEST), [("hostfile".to_owned(), Argument::Hostfile {})]);
    // two roles may have the same launcher
    let of_role = LaunchRequest { role: Some(1), ..REQUEST };
    assert_eq!((mpirun::LAUNCHER.files)(&of_role), [("hostfile.1".to_owned(), Argument::Hostfile {})]);
    for launcher in [&mpirun::LAUNCHER, &torchrun::LAUNCHER, &env::LAUNCHER, &horovodrun::GLOO, &horovodrun::MPI] {
        assert_eq!((launcher.arguments)(&of_role).last(), Some(&Argument::from("1")));
    }
    // a step on the nodes of its role
    let of_srun = |request: &LaunchRequest<'_>| (srun::LAUNCHER.arguments)(request);
    assert!(of_srun(&of_role).contains(&"/opt/horovod/jobs/j1/rank_nodes.1".into()));
    assert_eq!([&of_role, &REQUEST].map(|request| of_srun(request).contains(&"--mem=0".into())), [true, false]);
    let env = launcher(LauncherName::Mpirun, Controller::Gloo).container_environment("j1", &REQUEST);
    for variable in ["OMPI_MCA_btl_tcp_if_include=eth0", "OMPI_MCA_plm_rsh_args=-p 12345"] {
        assert!(env.iter().any(|set| set == variable), "{env:?}");
    }
}

#[test]
fn the_environment_of_the_launcher() {
    assert_eq!(GLOO.container_environment("j1", &REQUEST), ["HVDCTL_JOB=j1", "PYTHONUNBUFFERED=1"]);
    assert_eq!(
        MPI.container_environment("j1", &REQUEST)[2..],
        [
            "OMPI_MCA_btl_vader_single_copy_mechanism=none",
            "OMPI_MCA_btl_tcp_if_include=eth0",
            "OMPI_MCA_oob_tcp_if_include=eth0",
            "PRTE_MCA_prte_if_include=eth0",
            "OMPI_MCA_orte_leave_session_attached=1",
            "PRTE_MCA_prte_leave_session_attached=1"
        ]
    );
}

#[test]
fn launchers_read_variables_of_the_user() {
    let read = |launcher: &Launcher, name: &str| launcher.reads.iter().any(|prefix| name.starts_with(prefix));
    for name in ["OMPI_MCA_btl", "PRTE_MCA_plm_ssh_args", "PMIX_MCA_gds"] {
        assert_eq!(launchers().map(|launcher| read(launcher, name)), [false, true, false, true, false], "{name}");
    }
    for name in ["PET_LOG_DIR", "TORCHELASTIC_ENABLE_FILE_TIMER", "TORCH_CPP_LOG_LEVEL", "USE_LIBUV", "LOGLEVEL"] {
        assert_eq!(launchers().map(|launcher| read(launcher, name)), [false, false, true, false, false], "{name}");
    }
    // with Gloo, horovodrun writes its environment into the command lines of ssh
    assert!(GLOO.reads.is_empty());
}

#[test]
fn each_rank_gets_the_interface_of_its_node() {
    let mut place = endpoint("ib0", "10.0.0.0/24");
    let launcher = HOSTS[0].address;
    let description = json!(GLOO.rank_description(&place, launcher));
    let rendezvous = launcher.to_string();
    assert_eq!(
        description["environment"],
        // NCCL takes a name without `=` for the beginning of one
        json!({
            "HOROVOD_GLOO_IFACE": "ib0", "NCCL_SOCKET_IFNAME": "=ib0", "HOROVOD_GLOO_RENDEZVOUS_ADDR": rendezvous
        })
    );
    assert_eq!(description["defaults"], json!({"GLOO_SOCKET_IFNAME": "ib0"}));
    let environment = MPI.rank_description(&place, launcher).variables.environment;
    assert!(!environment.contains_key("HOROVOD_GLOO_RENDEZVOUS_ADDR"));

    // the name of an interface with several addresses may lead to another one
    place.is_ambiguous = true;
    let description = json!(torchrun::LAUNCHER.rank_description(&place, launcher));
    let expected = json!({"GLOO_SOCKET_IFNAME": null, "TP_SOCKET_IFNAME": null, "NCCL_SOCKET_IFNAME": "=ib0"});
    assert_eq!(description["environment"], expected);
    // the label of an address leads to that alone
    place = Endpoint { label: "ib0:1".into(), is_ambiguous: false, ..place };
    assert_eq!(json!(GLOO.rank_description(&place, launcher))["environment"]["HOROVOD_GLOO_IFACE"], "ib0:1");
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

#[test]
fn every_launcher_says_what_has_no_default() {
    for launcher in launchers() {
        let texts = [launcher.program, launcher.init];
        assert!(texts.iter().all(|text| !text.is_empty()), "{launcher:?}");
        let lists = [launcher.rank, launcher.local_rank, launcher.size, launcher.verify_with];
        assert!(lists.iter().all(|list| !list.is_empty()), "{launcher:?}");
        assert!(!(launcher.arguments)(&REQUEST).is_empty(), "{launcher:?}");
        let is_listed = INSIDE.contains(&format!("(\"{}\", lambda: ", launcher.program));
        assert_eq!(is_listed, launcher.start != Start::PerRank, "{}", launcher.program);
    }
}

#[test]
fn what_a_launcher_sets_for_every_rank_is_refused_or_overridable() {
    let documented = include_str!("../../docs/guide/launchers.md");
    for name in OVERRIDABLE {
        assert!(documented.contains(&format!("`{name}`")), "{name}");
    }
    for launcher in launchers() {
        let is_refused = |name: &str| VARIABLE.read(name).is_err() || launcher.check_variables([name]).is_err();
        for name in launcher.rank.iter().chain(launcher.local_rank).chain(launcher.size) {
            assert!(is_refused(name), "{name} under {}", launcher.program);
        }
        let set = (launcher.variables)(&REQUEST).into_iter().map(|(name, _)| name);
        let interfaces = launcher.interface_variables.iter().chain(launcher.interface_defaults).copied();
        for name in set.chain(interfaces) {
            let is_overridable = OVERRIDABLE.contains(&name);
            assert!(is_refused(name) != is_overridable, "{name} under {}", launcher.program);
        }
    }
    let error = torchrun::LAUNCHER.check_variables(["MASTER_PORT", "RANK"]).unwrap_err().to_string();
    assert!(error.starts_with("RANK cannot be set: the launcher torchrun sets it for every rank"), "{error}");
    // a program under horovodrun may call anything a rank
    GLOO.check_variables(["RANK"]).unwrap();
}

#[test]
fn options_of_a_launcher_are_no_part_of_a_command() {
    let refused = |launcher: &Launcher, command: &[&str]| {
        let command: Vec<_> = command.iter().map(|word| ProgramArgument::from(*word)).collect();
        launcher.check_command(&command).err().map(|error| error.to_string()).unwrap_or_default()
    };
    let several = ["./coupler", ":", "-np", "2", "./worker"];
    for launcher in launchers().into_iter().chain([&srun::LAUNCHER]) {
        let is_one = ["mpirun", "srun"].contains(&launcher.program);
        let is_refused = refused(launcher, &several).contains("all ranks run one command");
        assert_eq!(is_refused, is_one, "{}", launcher.program);
        for command in [&["sh", "-c", ":"][..], &["sh", "-c", "a : b"], &["true"], &[]] {
            assert_eq!(refused(launcher, command), "", "{command:?}");
        }
        assert!(refused(launcher, &["--mca", "btl", "tcp,self", "true"]).contains("begins with a program"));
    }
    let error = refused(&mpirun::LAUNCHER, &several);
    assert!(
        error.contains("sh -c 'case $OMPI_COMM_WORLD_RANK in 0) exec PROGRAM ;; *) exec OTHER ;; esac'"),
        "{error}"
    );
    assert!(refused(&srun::LAUNCHER, &["--multi-prog", "f"]).contains("case $SLURM_PROCID in"));
    assert!(refused(&mpirun::LAUNCHER, &["--mca", "x"]).contains("-e OMPI_MCA_…"));
}

#[test]
fn a_shell_shows_how_to_launch_by_hand() {
    let request = ShellRequest { slots: 4, hostfile: "/root/hostfile", port: 12345, interface: Some("eth0") };
    let shown = launchers().map(|launcher| (launcher.by_hand)(&request).unwrap_or_default());
    let horovodrun = "horovodrun -np 4 -p 12345 -hostfile /root/hostfile --network-interfaces eth0 PROGRAM";
    let mpirun = "mpirun --allow-run-as-root -np 4 --hostfile /root/hostfile PROGRAM";
    assert_eq!(shown, [horovodrun, horovodrun, "", mpirun, ""]);
    let alone = ShellRequest { interface: None, ..request };
    assert!((GLOO.by_hand)(&alone).unwrap().ends_with("-hostfile /root/hostfile PROGRAM"));
    for launcher in launchers() {
        let set = (launcher.shell_environment)(&request);
        assert!(set.contains(&("OMPI_MCA_btl_vader_single_copy_mechanism", "none".into())), "{}", launcher.program);
        let has_port = set.contains(&("OMPI_MCA_plm_rsh_args", "-p 12345".into()));
        assert_eq!(has_port, launcher.program == "mpirun");
    }
}

/// A place in this network.
fn endpoint(interface: &str, network: &str) -> Endpoint {
    Endpoint { interface: interface.into(), label: interface.into(), network: Some(network.into()), ..network::alone() }
}

#[test]
fn a_launcher_that_takes_one_interface_for_all_takes_their_network_where_the_names_differ() {
    let first = endpoint("eth0", "10.0.0.0/24");
    let shared = |launcher: &Launcher, other: &Endpoint| launcher.shared_interface(&[("a", &first), ("b", other)]);
    for launcher in launchers() {
        assert_eq!(shared(launcher, &endpoint("eth0", "10.9.0.0/24")).unwrap(), "eth0");
        let is_one = launcher.one_interface.is_some();
        let expected = if is_one { "10.0.0.0/24" } else { "eth0" };
        assert_eq!(shared(launcher, &endpoint("ib0", "10.0.0.0/24")).unwrap(), expected);
        match shared(launcher, &endpoint("ib0", "10.9.0.0/24")) {
            Ok(_) => assert!(!is_one),
            Err(error) => assert!(is_one && error.to_string().contains("both differ (a: eth0, b: ib0)"), "{error}"),
        }
    }
    assert_eq!(launchers().map(|launcher| launcher.one_interface.is_some()), [false, true, false, true, false]);
}

#[test]
fn launchers_are_given_ipv4_addresses() {
    assert_eq!(check_address(HOSTS[0].address), Ok(()));
    let refused = check_address(Ipv6Addr::LOCALHOST.into()).unwrap_err();
    assert_eq!(refused, "launchers are given IPv4 addresses only, but ::1 is an IPv6 address");
}
