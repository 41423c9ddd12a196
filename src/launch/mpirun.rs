//! Open MPI's `mpirun`, directly: for mpi4py, C programs, or Horovod built with MPI.

use super::description::Argument;
use super::horovodrun;
use super::open_mpi::{DAEMONS, READS, container_environment};
use super::{BASE, LaunchRequest, Launcher, ShellRequest, open_mpi};

/// Starts a daemon on each node over ssh, and that its ranks.
pub static LAUNCHER: Launcher = Launcher {
    program: "mpirun",
    arguments,
    files: |request| vec![(request.file(HOSTFILE), Argument::Hostfile {})],
    environment,
    by_hand: |request| Some(by_hand(request)),
    shell_environment,
    reads: READS,
    one_interface: Some("mpirun"),
    rank: &["OMPI_COMM_WORLD_RANK", "PMIX_RANK"],
    local_rank: &["OMPI_COMM_WORLD_LOCAL_RANK"],
    size: &["OMPI_COMM_WORLD_SIZE"],
    // the program may use Horovod built with MPI
    interface_variables: horovodrun::INTERFACE_VARIABLES,
    interface_defaults: horovodrun::INTERFACE_DEFAULTS,
    init: "MPI_Init",
    verify_with: &["mpi4py", "horovod.torch", "horovod.tensorflow", "horovod.mxnet"],
    hang_reports: horovodrun::HANG_REPORTS,
    daemons: DAEMONS,
    spins: true,
    joins_programs: true,
    ..BASE
};

/// The file with its nodes. Open MPI 5 gives no slots to the node's own address after `-H`.
const HOSTFILE: &str = "hostfile";

/// The options by which it reaches the workers' sshd.
fn ssh(port: u16) -> [(&'static str, String); 2] {
    ["OMPI_MCA_plm_rsh_args", "PRTE_MCA_plm_ssh_args"].map(|name| (name, format!("-p {port}")))
}

fn environment(request: &LaunchRequest<'_>) -> Vec<(&'static str, String)> {
    [open_mpi::environment(request), ssh(request.port).to_vec()].concat()
}

fn shell_environment(request: &ShellRequest<'_>) -> Vec<(&'static str, String)> {
    [container_environment(), open_mpi::interface(request.interface), ssh(request.port).to_vec()].concat()
}

fn by_hand(request: &ShellRequest<'_>) -> String {
    let ShellRequest { slots, hostfile, .. } = request;
    format!("mpirun --allow-run-as-root -np {slots} --hostfile {hostfile} PROGRAM")
}

/// hvdctl's own environment is passed by name; that of the program is in the job's directory. Ranks are bound by
/// hvdctl.
fn arguments(request: &LaunchRequest<'_>) -> Vec<Argument> {
    let mut argv: Vec<Argument> = vec![
        "mpirun".into(),
        "--allow-run-as-root".into(),
        "-np".into(),
        Argument::Ranks {},
        "--hostfile".into(),
        format!("{}/{}", request.job_dir, request.file(HOSTFILE)).into(),
        "--map-by".into(),
        "slot".into(),
        "--bind-to".into(),
        "none".into(),
    ];
    for name in ["HVDCTL_JOB", "HVDCTL_RESTART", "PATH", "PYTHONUNBUFFERED", "LD_LIBRARY_PATH"] {
        argv.extend(["-x".into(), name.into()]);
    }
    argv.extend(request.rank_command());
    argv
}
