//! Hints on launchers: those of ranks that are alone, and of programs and images that need another one.

use crate::launch::{self, Launcher};
use crate::model::launcher::LauncherName;
use crate::model::role::RecordedRole;

/// The next step where the `mpirun` of an image is that of MPICH or Intel MPI.
pub const OPEN_MPI: &str = "install Open MPI in the image so that its mpirun comes first in PATH (`setup` in \
                            hvdctl.toml), or choose another --launcher: env, torchrun, or horovodrun with \
                            --controller gloo";

/// Messages of programs that miss the variables of another launcher, each with that launcher.
const MISSING: &[(&str, LauncherName)] = &[
    // torch/distributed/rendezvous.py: RANK, WORLD_SIZE, MASTER_ADDR or MASTER_PORT
    ("expected, but not set", LauncherName::Torchrun),
    ("KeyError: 'RANK'", LauncherName::Torchrun),
    ("KeyError: 'LOCAL_RANK'", LauncherName::Torchrun),
    ("KeyError: 'WORLD_SIZE'", LauncherName::Torchrun),
    ("KeyError: 'MASTER_ADDR'", LauncherName::Torchrun),
    // DeepSpeed without these variables
    ("attempting to detect MPI environment", LauncherName::Torchrun),
    // jax/_src/distributed.py
    ("coordinator_address should be defined", LauncherName::Env),
    ("KeyError: 'TF_CONFIG'", LauncherName::Env),
];

/// The warning about ranks of `srun` where Slurm has no type of MPI (`allocation.py`).
pub const WITHOUT_MPI: &str = "Slurm does not connect the ranks of MPI programs here: it can load neither PMIx nor \
                               PMI2, and its default is none (MpiDefault); each rank of such a program assumes that it \
                               is alone\n  hint: --launcher mpirun connects them; if the program does not use MPI, \
                               ignore this";

/// Returns whether a line is of an `mpirun` that does not know the options of Open MPI's: of MPICH and Intel MPI
/// (Hydra), or of `horovodrun` about one that it does not know (`horovod/runner/mpi_run.py`).
pub fn is_other_mpirun(line: &str) -> bool {
    ["unrecognized argument allow-run-as-root", "Unknown MPI implementation", "does not find an installed MPI"]
        .iter()
        .any(|text| line.contains(text))
}

/// Returns the warning about a job, or one of its roles, none of whose ranks had a connection to another one in so many
/// seconds. A role has a launcher of its own instead of that of the job.
pub fn isolation_warning(launcher: &Launcher, role: Option<&RecordedRole>, seconds: u64) -> String {
    let launcher = role.map_or(launcher, |role| launch::launcher(role.launcher, role.controller));
    let need = |name: &str| match role {
        Some(role) => format!("need launcher = \"{name}\" in the [[role]] {} of hvdctl.toml", role.name),
        None => format!("need --launcher {name}"),
    };
    let other = match launcher.program {
        "torchrun" | "env" => format!("programs for Horovod {}", need("horovodrun")),
        "srun" => format!(
            "MPI programs {}, or another -e SLURM_MPI_TYPE (`srun --mpi=list`); those for PyTorch {}",
            need("mpirun"),
            need("torchrun")
        ),
        _ => format!("programs for PyTorch (DDP, Accelerate, Lightning) {}", need("torchrun")),
    };
    let of_role = role.map_or_else(String::new, |role| format!(" of {}", role.name));
    format!(
        "no rank{of_role} had a connection to another one in {seconds} s: each may be doing all of the work alone\n  \
         hint: {other}; if the program does not communicate, ignore this"
    )
}

/// Returns a hint on the launcher for which a program was written, if it misses the variables of that.
pub(super) fn other_launcher(launcher: &Launcher, lines: &[String]) -> Option<String> {
    let (_, wanted) = lines.iter().rev().find_map(|line| MISSING.iter().find(|(text, _)| line.contains(text)))?;
    // `env` sets what torchrun sets, too
    let has_it = [*wanted, LauncherName::Env].iter().any(|name| name.to_string() == launcher.program);
    let example = match wanted {
        LauncherName::Torchrun => " (PyTorch DDP and FSDP, Accelerate, Lightning, DeepSpeed)",
        _ => "",
    };
    (!has_it).then(|| {
        format!(
            "the program was written for another launcher than {}: try --launcher {wanted}{example}",
            launcher.program
        )
    })
}
