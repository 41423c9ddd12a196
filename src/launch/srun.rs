//! Slurm's `srun`, directly: one step whose tasks are the ranks. Programs of MPI find one another over PMIx or PMI2
//! (<https://slurm.schedmd.com/mpi_guide.html>); `allocation.py` chooses the one that this Slurm can load.

use super::description::Argument;
use super::{BASE, LaunchRequest, Launcher, horovodrun};

/// All ranks, in one step of the job.
pub static LAUNCHER: Launcher = Launcher {
    program: "srun",
    arguments,
    reads: &["SLURM_", "OMPI_MCA_", "PMIX_MCA_"],
    rank: &["SLURM_PROCID"],
    local_rank: &["SLURM_LOCALID"],
    size: &["SLURM_NTASKS"],
    init: "MPI_Init",
    verify_with: &["mpi4py", "horovod.torch", "horovod.tensorflow", "horovod.mxnet"],
    hang_reports: horovodrun::HANG_REPORTS,
    spins: true,
    joins_programs: true,
    ..BASE
};

/// The node of each rank, a line each, in the job's directory (`allocation.py`).
const RANK_NODES: &str = "rank_nodes";

/// The ranks are where the job's record says. hvdctl ends the others when one has failed, and binds none.
fn arguments(request: &LaunchRequest<'_>) -> Vec<Argument> {
    let arguments = vec![
        "srun".into(),
        "--ntasks".into(),
        Argument::Ranks {},
        "--distribution".into(),
        "arbitrary".into(),
        "--nodelist".into(),
        format!("{}/{}", request.job_dir, request.file(RANK_NODES)).into(),
        "--overlap".into(),
        "--overcommit".into(),
        "--kill-on-bad-exit=0".into(),
        "--wait=0".into(),
        "--input".into(),
        "none".into(),
        "--unbuffered".into(),
        "--export".into(),
        "ALL".into(),
    ];
    // another role's step may have a part of its nodes, too
    let of_role = request.role.map(|_| "--mem=0".into());
    arguments.into_iter().chain(of_role).chain(request.rank_command()).collect()
}
