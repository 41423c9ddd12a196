//! Open MPI's `mpirun`, directly: for mpi4py, C programs, or Horovod built with MPI.

use super::description::{Argument, Start};
use super::horovodrun;
use super::open_mpi::{DAEMONS, READS, session_environment};
use super::programs::{RANK_SUPERVISOR, command};
use super::{LaunchRequest, Launcher};

/// Starts a daemon on each node over ssh, and that its ranks.
pub static LAUNCHER: Launcher = Launcher {
    program: "mpirun",
    start: Start::Central,
    arguments,
    environment,
    reads: READS,
    one_interface: Some("mpirun"),
    rank: &["OMPI_COMM_WORLD_RANK", "PMIX_RANK"],
    local_rank: &["OMPI_COMM_WORLD_LOCAL_RANK"],
    size: &["OMPI_COMM_WORLD_SIZE"],
    init: "MPI_Init",
    ways: &["mpi4py", "horovod.torch", "horovod.tensorflow", "horovod.mxnet"],
    daemons: DAEMONS,
    spins: true,
    ..horovodrun::COMMON
};

fn environment(request: &LaunchRequest<'_>) -> Vec<(&'static str, String)> {
    let ssh = format!("-p {}", request.port);
    let mut all = session_environment();
    if request.hosts.len() > 1 {
        // else it tries all interfaces, the loopback and Docker's own among them, and hangs
        for name in ["OMPI_MCA_btl_tcp_if_include", "OMPI_MCA_oob_tcp_if_include", "PRTE_MCA_prte_if_include"] {
            all.push((name, request.interface.to_owned()));
        }
    }
    all.extend([("OMPI_MCA_plm_rsh_args", ssh.clone()), ("PRTE_MCA_plm_ssh_args", ssh)]);
    all
}

/// hvdctl's own environment is passed by name; that of the program is in the job's directory. Ranks are bound by hvdctl.
fn arguments(request: &LaunchRequest<'_>) -> Vec<Argument> {
    let [python, supervisor] = command(request.job_dir, RANK_SUPERVISOR);
    let mut argv: Vec<Argument> = vec![
        "mpirun".into(),
        "--allow-run-as-root".into(),
        "-np".into(),
        Argument::Ranks {},
        "-H".into(),
        Argument::Hosts {},
        "--map-by".into(),
        "slot".into(),
        "--bind-to".into(),
        "none".into(),
    ];
    for name in ["HVDCTL_JOB", "HVDCTL_RESTART", "PATH", "PYTHONUNBUFFERED", "LD_LIBRARY_PATH"] {
        argv.extend(["-x".into(), name.into()]);
    }
    argv.extend([python.into(), supervisor.into()]);
    argv
}
