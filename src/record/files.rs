//! The files of a job's directory, `JOBS/ID`: one list, from which `docs/reference/on-the-nodes.md` has its table.

/// A file of a job's directory, or several that belong together.
#[derive(Debug, Clone, Copy)]
pub struct JobFile {
    /// The names. One that ends with a dot is followed by a number.
    pub names: &'static [&'static str],
    /// The mode.
    pub mode: u32,
    /// The program that writes it.
    pub writer: &'static str,
    /// The program that reads it.
    pub reader: &'static str,
    /// The contents, and on which nodes and for which jobs it exists if it does not for all.
    pub contents: &'static str,
}

const fn file(
    names: &'static [&'static str],
    mode: u32,
    writer: &'static str,
    reader: &'static str,
    contents: &'static str,
) -> JobFile {
    JobFile { names, mode, writer, reader, contents }
}

const HVDCTL: &str = "hvdctl";
const JOB: &str = "job supervisor";
const RANKS: &str = "rank supervisors";

/// All of them except the programs ([`ON_EVERY_NODE`](crate::launch::programs::ON_EVERY_NODE)).
pub const FILES: &[JobFile] = &[
    file(&["job.json"], 0o600, HVDCTL, "all", "the job and what this node must know to run its ranks"),
    file(
        &["env.json"],
        0o600,
        HVDCTL,
        RANKS,
        "the ranks' environment from the inventory, `-e` and `--env-file`; removed when the job has ended",
    ),
    file(
        &["env.ROLE.json"],
        0o600,
        HVDCTL,
        RANKS,
        "for a job with roles, by their numbers: the environment of the ranks of a role, as `env.json`; removed when the \
         job has ended",
    ),
    file(
        &["roles.json"],
        0o644,
        "hvdctl, job supervisor, `reap.py`, `allocation.py`, `node.py`, `queue_wait.py`",
        "rank supervisors, you",
        "for a job with roles: the addresses and ports of the ranks of each",
    ),
    file(
        &["own.json"],
        0o600,
        "`allocation.py`",
        RANKS,
        "under a site's Slurm, on nodes other than the first: the variables that differ there; removed when the job has \
         ended",
    ),
    file(
        &["first.json"],
        0o600,
        "`allocation.py`",
        "`allocation.py` on the other nodes",
        "under a site's Slurm, while these are asked for their addresses: the environment of the first node",
    ),
    file(
        &["launcher.json"],
        0o644,
        "hvdctl, `allocation.py`, `node.py`",
        RANKS,
        "the launcher, as the rank supervisors need to know it",
    ),
    file(
        &["launch.json"],
        0o600,
        HVDCTL,
        JOB,
        "on the launcher's node: the launcher's command line and the settings of the job supervisor. `allocation.py` \
         and `queue_wait.py` add the nodes that Slurm gives",
    ),
    file(
        &["log"],
        0o600,
        "rank supervisors, job supervisor",
        HVDCTL,
        "the output of this node's ranks and how they ended: [frames](#frames)",
    ),
    file(
        &["stack.wanted"],
        0o600,
        "hvdctl, `reap.py`",
        RANKS,
        "a request for the stacks of this node's ranks; removed when they have answered, or when the job has ended",
    ),
    file(
        &["stack."],
        0o600,
        RANKS,
        HVDCTL,
        "for each rank, the answer to the last such request; removed when it has been read",
    ),
    file(
        &["py-spy"],
        0o755,
        HVDCTL,
        RANKS,
        "the program that reads the stacks, if `hvdctl stack` has sent it; removed when the job has ended",
    ),
    file(
        &["states"],
        0o600,
        RANKS,
        "job supervisor, hvdctl",
        "a copy of the frames of the log that record the progress of a rank",
    ),
    file(
        &["samples"],
        0o600,
        RANKS,
        HVDCTL,
        "resource usage of ranks, the node and its GPUs, which `report` reads: frames of the KIND `m`; at most 64 MiB",
    ),
    file(
        &["idle."],
        0o600,
        RANKS,
        HVDCTL,
        "for a rank that makes no progress, until it does: since when, and what it does",
    ),
    file(
        &["place."],
        0o600,
        RANKS,
        HVDCTL,
        "for such a rank, when its stacks have been read: a shortened [RankStack](json.md#rankstack) as JSON",
    ),
    file(
        &["nccl_trace.", "dump."],
        0o644,
        "PyTorch",
        "you",
        "for a rank that is a process of the login and has no project: what PyTorch's flight recorder has written, and \
         the pipe, with `.pipe` after the number, that asks it for that",
    ),
    file(
        &["result.json"],
        0o600,
        "job supervisor; hvdctl if that has recorded none",
        HVDCTL,
        "on the launcher's node: how the job ended",
    ),
    file(&["attempts.json"], 0o600, JOB, HVDCTL, "on the launcher's node, with `--restarts`: the failed attempts"),
    file(
        &["outside"],
        0o600,
        "reap.py",
        HVDCTL,
        "`?` until it is known what the job has written [outside the mounts](jobs.md#files-outside-the-mounts); then, \
         if there are such files, the 1000 largest, one per line: bytes, seconds since the epoch, and the path as JSON",
    ),
    file(
        &["known_hosts"],
        0o644,
        HVDCTL,
        "ssh",
        "on the launcher's node, for a job with its own workers: their host keys for its port",
    ),
    file(
        &["ssh_config"],
        0o644,
        HVDCTL,
        "ssh",
        "on the launcher's node, without containers: the users of the other nodes",
    ),
    file(
        &["hostfile"],
        0o600,
        JOB,
        "launcher",
        "on the launcher's node, with `mpirun`: the nodes of the last attempt and their ranks",
    ),
    file(
        &["process.json"],
        0o600,
        JOB,
        RANKS,
        "on the launcher's node, without containers: the variable by which its processes are found",
    ),
    file(
        &["inherited.json"],
        0o600,
        JOB,
        RANKS,
        "on the launcher's node: the environment of which the launcher gets a part only; removed when the job has ended",
    ),
    file(
        &["members.json"],
        0o600,
        JOB,
        HVDCTL,
        "on the launcher's node, for an elastic job: its nodes, and when which node left or joined",
    ),
    file(
        &["available_hosts", "assignment.json"],
        0o600,
        "job supervisor, elastic_driver.py",
        "elastic_driver.py, job supervisor",
        "on the launcher's node, for an elastic job in place: the nodes that `horovodrun` may use, and which of its \
         processes has which rank",
    ),
    file(
        &["world.json"],
        0o600,
        JOB,
        RANKS,
        "for an elastic job in place: the ranks of this node's processes, and whether they wait for others",
    ),
    file(
        &["joining.json"],
        0o600,
        HVDCTL,
        JOB,
        "on the launcher's node, for an elastic job: the nodes that `up` adds, until the job supervisor has renamed it \
         to `joining.json.taken`",
    ),
    file(&["drained"], 0o600, HVDCTL, JOB, "on a drained node: the job supervisor lets the node leave an elastic job"),
    file(
        &["queue", "allocation.json", "deallocated"],
        0o600,
        "hslurm-agent",
        "hvdctl, queue_wait.py, job supervisor",
        "on the master, for a job in the cluster's queue: what Slurm reports about it, which nodes it \
         has been given, and why it no longer has them",
    ),
    file(
        &["addresses", "rank_nodes"],
        0o600,
        "allocation.py",
        "ssh, srun",
        "on the first node, under a site's Slurm: the nodes by their addresses, and the node of each rank; with roles, \
         `rank_nodes.ROLE` has the nodes of the ranks of each, by its number",
    ),
    file(
        &["notebook.json"],
        0o644,
        HVDCTL,
        "notebook.py",
        "for a [notebook](jobs.md#notebook): its nodes, and how a launcher starts ranks on them",
    ),
    file(
        &["notebook_rank.json"],
        0o600,
        "notebook.py",
        "notebook.py",
        "for a notebook: the environment of the programs that its cells start on this node; removed with `env.json`",
    ),
    file(
        &["notebook_page.json", "notebook_config.json"],
        0o600,
        "notebook.py",
        "notebook.py",
        "for a notebook: the process and socket of JupyterLab; its configuration, until it has been read",
    ),
    file(
        &["notebook_received.json", "notebook_sent.json"],
        0o600,
        "notebook.py",
        "notebook.py, hvdctl",
        "for a notebook: which changed files of the project this node was sent; on the launcher's node, which of them all \
         other nodes have",
    ),
    file(
        &["notebook.py", "notebook_server.py", "tunnel.py"],
        0o644,
        HVDCTL,
        "",
        "for a notebook: the programs that start JupyterLab, launch ranks, and lead to JupyterLab. While it runs, it has \
         `/tmp/hvdctl-…` (700) in `hmaster` for its sockets, its token and the secret of its cookies",
    ),
];
