//! The programs that supervise a job on its nodes. They are stored in the job's directory.

use crate::runtime::environment::environment_script;

/// The main process of `hmaster`.
pub const JOB_SUPERVISOR: &str = "job_supervisor.py";
/// The program that the launcher starts as every rank.
pub const RANK_SUPERVISOR: &str = "rank_supervisor.py";

/// The program that starts Horovod's elastic driver instead of `horovodrun`.
pub const ELASTIC_DRIVER: &str = "elastic_driver.py";
/// The nodes that it may use, in the job's directory on the launcher's node.
pub const AVAILABLE_HOSTS: &str = "available_hosts";

/// The program that decides which cores each rank of a node gets. A dry run asks it too.
pub const BINDING: &str = include_str!("../scripts/programs/binding.py");

/// The program that each node of an allocation of Slurm runs for [`JOB_SUPERVISOR`] when a job begins there.
const ALLOCATION: &str = "allocation.py";
/// The program that waits for the turn of a job in the cluster's queue, and then becomes [`JOB_SUPERVISOR`].
pub const QUEUE_WAIT: &str = "queue_wait.py";
/// The script that becomes a program of Python in a job's directory, isolated from the environment of ranks.
const PYTHON: &str = "hvdctl-python";
/// The program by which the launcher and the job supervisor reach the other nodes.
const REMOTE_SHELL: &str = "ssh";
/// Its text, for containers of a shell, too.
pub const SSH: &str = concat!("#!/bin/sh\n", environment_script!("programs/ssh.sh"));
/// `REMOTE_SHELL` in an allocation of Slurm: mode, name and text.
pub const REMOTE_SHELL_OF_SLURM: (u32, &str, &str) =
    (0o755, REMOTE_SHELL, concat!("#!/bin/sh\n", environment_script!("programs/slurm/srun.sh")));

/// On every node of a job: mode, name and text.
pub const ON_EVERY_NODE: [(u32, &str, &str); 28] = [
    (0o644, PYTHON, environment_script!("programs/environment/python.sh")),
    (0o644, "environment.py", include_str!("../scripts/programs/environment/environment.py")),
    (0o644, RANK_SUPERVISOR, include_str!("../scripts/programs/supervisor/rank_supervisor.py")),
    (0o644, "rank_role.py", include_str!("../scripts/programs/supervisor/rank_role.py")),
    (0o644, "rank_state.py", include_str!("../scripts/programs/supervisor/rank_state.py")),
    (0o644, "frames.py", include_str!("../scripts/programs/frames.py")),
    (0o644, "flight_recorder.py", include_str!("../scripts/programs/supervisor/flight_recorder.py")),
    (0o644, "debugger.py", include_str!("../scripts/programs/supervisor/debugger.py")),
    (0o644, "hang_reports.py", include_str!("../scripts/programs/supervisor/hang_reports.py")),
    (0o644, "last_lines.py", include_str!("../scripts/programs/supervisor/last_lines.py")),
    (0o644, "files.py", include_str!("../scripts/programs/files.py")),
    (0o644, "here.py", include_str!("../scripts/programs/here.py")),
    (0o644, "ports.py", include_str!("../scripts/programs/ports.py")),
    (0o644, "processes.py", include_str!("../scripts/programs/processes.py")),
    (0o644, "binding.py", BINDING),
    (0o644, "activity.py", include_str!("../scripts/programs/supervisor/activity.py")),
    (0o644, "peers.py", include_str!("../scripts/programs/supervisor/peers.py")),
    (0o644, "ready.py", include_str!("../scripts/programs/supervisor/ready.py")),
    (0o644, "samples.py", include_str!("../scripts/programs/supervisor/samples.py")),
    (0o644, "stacks.py", include_str!("../scripts/programs/supervisor/stacks.py")),
    (0o644, "starting.py", include_str!("../scripts/programs/supervisor/starting.py")),
    (0o644, "waiting.py", include_str!("../scripts/programs/supervisor/waiting.py")),
    (0o644, "reap.py", include_str!("../scripts/programs/reap.py")),
    (0o644, "shared_memory.py", include_str!("../scripts/programs/shared_memory.py")),
    (0o644, "outside.py", include_str!("../scripts/programs/outside.py")),
    (0o644, "variables.py", include_str!("../scripts/programs/slurm/variables.py")),
    (0o644, "node_launcher.py", include_str!("../scripts/programs/node_launcher.py")),
    (0o755, REMOTE_SHELL, SSH),
];

/// On the node of the launcher.
pub const ON_FIRST_NODE: [(u32, &str, &str); 21] = [
    (0o644, JOB_SUPERVISOR, include_str!("../scripts/programs/supervisor/job_supervisor.py")),
    (0o644, ALLOCATION, include_str!("../scripts/programs/slurm/allocation.py")),
    (0o644, "placement.py", include_str!("../scripts/programs/slurm/placement.py")),
    (0o644, QUEUE_WAIT, include_str!("../scripts/programs/slurm/queue_wait.py")),
    (0o644, "endings.py", include_str!("../scripts/programs/slurm/endings.py")),
    (0o644, "hold.py", include_str!("../scripts/programs/slurm/hold.py")),
    (0o644, "attempt.py", include_str!("../scripts/programs/supervisor/attempt.py")),
    (0o644, "addresses.py", include_str!("../scripts/programs/supervisor/addresses.py")),
    (0o644, "launchers.py", include_str!("../scripts/programs/supervisor/launchers.py")),
    (0o644, "reaping.py", include_str!("../scripts/programs/supervisor/reaping.py")),
    (0o644, "roles.py", include_str!("../scripts/programs/supervisor/roles.py")),
    (0o644, "job_state.py", include_str!("../scripts/programs/supervisor/job_state.py")),
    (0o644, "faults.py", include_str!("../scripts/programs/faults.py")),
    (0o644, "result.py", include_str!("../scripts/programs/result.py")),
    (0o644, "hosts.py", include_str!("../scripts/programs/hosts.py")),
    (0o644, "membership.py", include_str!("../scripts/programs/elastic/membership.py")),
    (0o644, "roster.py", include_str!("../scripts/programs/elastic/roster.py")),
    (0o644, "in_place.py", include_str!("../scripts/programs/elastic/in_place.py")),
    (0o644, ELASTIC_DRIVER, include_str!("../scripts/programs/elastic/elastic_driver.py")),
    (0o644, "relay.py", include_str!("../scripts/programs/supervisor/relay.py")),
    (0o644, "workers.py", include_str!("../scripts/programs/supervisor/workers.py")),
];

/// Returns the command that starts one of them.
pub fn command(job_dir: &str, program: &str) -> [String; 3] {
    ["sh".to_owned(), format!("{job_dir}/{PYTHON}"), format!("{job_dir}/{program}")]
}
