//! Horovod's launcher `horovodrun` (0.28) with either controller.

use super::description::Argument;
use super::{BASE, KeptRanks, LaunchRequest, Launcher, ShellRequest, open_mpi, programs};
use crate::text::quote;

/// With Gloo, Horovod's own controller: `horovodrun` starts each rank over ssh. It writes all of its environment into the
/// command line of each rank, also on its own node, and every user of a node can read that.
pub static GLOO: Launcher = Launcher {
    init_hint: Some("-e HOROVOD_GLOO_TIMEOUT_SECONDS=600 gives it more time"),
    // horovodrun takes the last address of the interface (horovod/runner/util/network.py, `get_driver_ip`)
    launcher_address: Some("HOROVOD_GLOO_RENDEZVOUS_ADDR"),
    inherits: Some(INHERITED),
    keeps_ranks: true,
    ..COMMON
};

/// With MPI: `horovodrun` starts `mpirun`, and that a daemon on each node.
pub static MPI: Launcher = Launcher {
    arguments: |request| arguments("--mpi", request),
    environment: open_mpi::environment,
    reads: open_mpi::READS,
    one_interface: Some("MPI"),
    by_host_name: false,
    daemons: open_mpi::DAEMONS,
    spins: true,
    ..COMMON
};

/// The variables that `horovodrun` needs itself with Gloo, under hvdctl and in an exported batch script. None is secret.
pub const INHERITED: &[&str] = &[
    // it is a program of Python, and imports the framework to ask how Horovod was built
    "PATH",
    "HOME",
    "LANG",
    "LC_*",
    "LD_LIBRARY_PATH",
    "LD_PRELOAD",
    "PYTHONHOME",
    "PYTHONPATH",
    "PYTHONUSERBASE",
    "PYTHONNOUSERSITE",
    "PYTHONUNBUFFERED",
    "PYTHONUTF8",
    "PYTHONIOENCODING",
    "PYENV_ROOT",
    "PYENV_VERSION",
    "MKL_*",
    "KMP_*",
    "OMP_*",
    "HOROVOD_*",
    // what the job's remote shell reads, and what marks the processes of a job and of a notebook's launch
    "HVDCTL_JOB",
    "HVDCTL_RESTART",
    "HVDCTL_KEYS",
    "HVDCTL_RUN",
    "HVDCTL_KEEP_ALIVE",
    "HVDCTL_NODE",
    "HVDCTL_LAUNCH_MARK",
    // `srun`, which is the remote shell under Slurm: all but SLURM_JWT, a token
    "SLURM_JOB*",
    "SLURM_[!J]*",
];

const COMMON: Launcher = Launcher {
    program: "horovodrun",
    // its process sets ignore the interface (docs/development/decisions/launch.md)
    by_host_name: true,
    arguments: |request| arguments("--gloo", request),
    by_hand: |request| Some(by_hand(request)),
    rank: &["HOROVOD_RANK", "OMPI_COMM_WORLD_RANK", "PMI_RANK"],
    local_rank: &["HOROVOD_LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_RANK", "MPI_LOCALRANKID"],
    size: &["HOROVOD_SIZE", "OMPI_COMM_WORLD_SIZE", "PMI_SIZE"],
    address: Some("HOROVOD_HOSTNAME"),
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

/// Horovod's messages about ranks that hang.
pub(super) const HANG_REPORTS: &[(&str, &str)] = &[
    // Gloo's rendezvous, where each rank has a key (horovod/common/gloo/http_store.cc)
    ("never_began", r"Wait timeout after (?P<seconds>\d+) seconds for key\(s\): (?P<rank>\d+)\."),
    // horovod/common/stall_inspector.cc; "Stalled" in versions before 0.20
    ("missing", "(?:Missing|Stalled) ranks:"),
    ("missing_rank", r"^(?P<rank>\d{1,9})(?P<over>!?): \[(?P<tensors>.*)\]$"),
    ("gave_up", r"stalled for longer than (?P<seconds>\d+) seconds. Will shutdown"),
];

/// Horovod's own time until it warns about a rank that the others wait for; its shutdown time-out counts only after
/// that.
const WARNING_SECONDS: u64 = 60;

/// The controller is always passed, because the official image defaults to MPI. With one named interface the launcher
/// probes nothing (4 s saved on two nodes, and no hang on `docker0`); for ranks of its own node alone it takes none but
/// `lo` (driver_service.py). What the ranks run is always the supervisor: the user's program is in the job's record, so
/// the launcher quotes, splits and expands none of its arguments.
fn arguments(controller: &str, request: &LaunchRequest<'_>) -> Vec<Argument> {
    let stall = request.stall_timeout.as_secs();
    let warning = if stall == 0 { WARNING_SECONDS } else { (stall / 2).clamp(1, WARNING_SECONDS) };
    let interface = Argument::Interface { shared: request.interface.into(), alone: "lo".into() };
    let mut arguments = match &request.kept {
        None => vec!["horovodrun".into(), controller.into()],
        Some(kept) => elastic_arguments(controller, kept, request.job_dir),
    };
    arguments.extend(["-np".into(), Argument::Ranks {}]);
    if request.kept.is_none() {
        arguments.extend(["-H".into(), Argument::Hosts {}]);
    }
    arguments.extend([
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
    ]);
    arguments.extend(request.rank_command());
    arguments
}

/// Seconds for which Horovod does not use a node whose rank has failed: two to three times the first number after the
/// first failure, about twice as many each time, and at most the second (elastic/discovery.py, `_set_cooldown_period`).
const COOL_DOWN: [u32; 2] = [5, 300];
/// Seconds by which Horovod waits longer for ranks than the job supervisor, which then says why the job ends.
const LATER: u64 = 60;

/// The first arguments of Horovod's elastic driver. The job supervisor writes the file that the script prints.
fn elastic_arguments(controller: &str, kept: &KeptRanks, job_dir: &str) -> Vec<Argument> {
    let KeptRanks { min, max, timeout, changes } = kept;
    let script = quote::command(&["cat".to_owned(), format!("{job_dir}/{}", programs::AVAILABLE_HOSTS)]);
    // it is Horovod's program in the Python and with the modules of the ranks
    let driver = format!("{job_dir}/{}", programs::ELASTIC_DRIVER);
    let mut arguments: Vec<String> =
        ["python3", &driver, controller, "--min-np", &min.to_string()].map(str::to_owned).to_vec();
    arguments.extend(["--max-np".to_owned(), max.to_string()]);
    arguments.extend(["--host-discovery-script".to_owned(), script]);
    arguments.extend(["--elastic-timeout".to_owned(), (timeout.as_secs() + LATER).to_string()]);
    arguments.push("--blacklist-cooldown-range".to_owned());
    arguments.extend(COOL_DOWN.map(|seconds| seconds.to_string()));
    if let Some(changes) = changes {
        arguments.extend(["--reset-limit".to_owned(), changes.to_string()]);
    }
    arguments.into_iter().map(Argument::from).collect()
}

fn by_hand(request: &ShellRequest<'_>) -> String {
    let ShellRequest { slots, hostfile, port, interface } = request;
    let interface = interface.map(|name| format!(" --network-interfaces {name}")).unwrap_or_default();
    format!("horovodrun -np {slots} -p {port} -hostfile {hostfile}{interface} PROGRAM")
}
