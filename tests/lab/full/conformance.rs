//! Conformance of all runtimes and launchers: a job behaves alike under each of them. One table of behaviours is tried
//! on machines of each kind.
//!
//! A behaviour that fails does not keep the others from being tried; the failures are listed at the end. With
//! `HVDCTL_TEST_VARIANT` only those run whose names, such as `podman, mpirun: stop`, contain the text.

use super::machines::{Machines, checkout, lab, on};
use crate::process::{Done, Running, eventually, kill, run, s};
use crate::shell::Typed;
use crate::state::{FULL_IMAGE, NODES, hvdctl_in};
use crate::variants::TRAININGS;
use serde_json::Value;
use std::fs;
use std::io::{Write, stderr};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::process::Command;
use std::time::Instant;

/// Machines, and what runs the processes of a job on them.
struct Platform {
    name: &'static str,
    /// The machine options of `scripts/lab up`.
    machines: &'static [&'static str],
    /// Lines of the inventory's `[cluster]`.
    cluster: &'static str,
    /// Lines of its `[defaults]`.
    defaults: &'static str,
    /// The login on the nodes.
    user: &'static str,
    /// As whom workers run programs.
    inside: &'static str,
    /// The directory of hvdctl's files on a node.
    files: &'static str,
    /// The texts that `status` shows for the nodes.
    status: &'static [&'static str],
    /// A line in place of `cluster` that asks for what the machines lack, and what the error says.
    absent: (&'static str, &'static str),
    launchers: &'static [Launcher],
    /// True if the machines have what the examples need to train.
    trains: bool,
}

/// A launcher: its name, the options that choose it, and the training for it.
type Launcher = (&'static str, &'static [&'static str], usize);

const HOROVODRUN: [Launcher; 2] = [("horovodrun with gloo", &["--gloo"], 0), ("horovodrun with mpi", &["--mpi"], 1)];
const TORCHRUN: Launcher = ("torchrun", &["--launcher", "torchrun"], 2);
const ENV: Launcher = ("env", &["--launcher", "env"], 3);
const MPIRUN: Launcher = ("mpirun", &["--launcher", "mpirun"], 4);
const ALL: [Launcher; 5] = [HOROVODRUN[0], HOROVODRUN[1], TORCHRUN, ENV, MPIRUN];

const DOCKER: Platform = Platform {
    name: "docker",
    machines: &[],
    cluster: "engine = \"docker\"\n",
    defaults: "",
    user: "workshop",
    inside: "root",
    files: "/opt/horovod",
    status: &["Docker 20."],
    absent: ("engine = \"podman\"\n", "podman: command not found"),
    launchers: &ALL,
    trains: true,
};

const PODMAN: Platform = Platform {
    name: "podman",
    machines: &["--engine", "podman", "--distro", "bookworm,trixie"],
    cluster: "",
    status: &["Podman 4.3", "Podman 5."],
    absent: ("engine = \"docker\"\n", "docker: command not found"),
    ..DOCKER
};

/// Podman of a login that has no root, whose directories are the login's.
const ROOTLESS: Platform = Platform {
    name: "podman of a login",
    machines: &["--engine", "rootless", "--distro", "bookworm,trixie"],
    cluster: "ssh_dir = \"/home/own/hvdctl/ssh\"\njobs_dir = \"/home/own/hvdctl/jobs\"\n\
              projects_dir = \"/home/own/hvdctl/projects\"\ndata_dir = \"/home/own/hvdctl/data\"\n",
    user: "own",
    files: "/home/own/hvdctl",
    absent: ("engine = \"docker\"\n", "docker: command not found"),
    ..PODMAN
};

/// Nothing but a login, and a system that has Horovod, PyTorch and Open MPI.
const PROCESSES: Platform = Platform {
    name: "processes",
    // without root, nothing helps Horovod's Gloo on machines whose own names are 127.0.1.1
    machines: &["--engine", "none", "--names", "own"],
    cluster: "runtime = \"process\"\n",
    defaults: "",
    user: "plain",
    inside: "plain",
    files: "/var/tmp/hvdctl-lab",
    status: &[],
    absent: ("runtime = \"container\"\n", "cannot get root"),
    launchers: &ALL,
    trains: true,
};

/// Python is there after a line of `activate`, and the login has the same home directory on both nodes.
const MODULES: Platform = Platform {
    name: "processes with modules",
    machines: &["--engine", "none", "--distro", "trixie", "--share", SHARED],
    defaults: "activate = [\"module load torch\"]\n",
    user: "shared",
    inside: "shared",
    launchers: &[TORCHRUN, ENV, MPIRUN],
    ..PROCESSES
};

const SRUN: Launcher = ("srun", &["--launcher", "srun"], 5);

/// A Slurm of two nodes, the first of which is also its login node. Jobs have one GPU of each node, and so both nodes.
const SLURM: Platform = Platform {
    name: "slurm",
    machines: &["--engine", "slurm", "--names", "own", "--share", SHARED],
    cluster: "",
    user: "shared",
    inside: "shared",
    files: "/srv/shared/home/shared/.hvdctl",
    launchers: &[SRUN, TORCHRUN, ENV, MPIRUN, HOROVODRUN[0], HOROVODRUN[1]],
    ..PROCESSES
};

/// A Slurm 24.11 of two nodes, where Python is there after a line of `activate`.
const NEWER_SLURM: Platform = Platform {
    name: "slurm 24.11",
    machines: &["--engine", "slurm", "--distro", "trixie", "--names", "own", "--share", SHARED],
    defaults: "activate = [\"module load torch\"]\n",
    launchers: &[SRUN, TORCHRUN, ENV, MPIRUN],
    ..SLURM
};

/// A Slurm 20.11, on machines that have Python and no framework.
const OLDER_SLURM: Platform = Platform {
    name: "slurm 20.11",
    machines: &["--engine", "slurm", "--distro", "bullseye", "--names", "own", "--share", SHARED],
    launchers: &[SRUN, ENV],
    trains: false,
    ..SLURM
};

/// The directory of this machine that the machines with a shared home directory share.
const SHARED: &str = concat!(env!("CARGO_TARGET_TMPDIR"), "/shared");

/// The setting of a behaviour: the machines with a worker on each, and a directory with an inventory.
struct Cluster<'a> {
    platform: &'a Platform,
    dir: tempfile::TempDir,
}

/// The rank's number, whatever has started it.
const RANK: &str = "rank=${HOROVOD_RANK:-${OMPI_COMM_WORLD_RANK:-${RANK:-$SLURM_PROCID}}}";

impl Platform {
    fn has_engine(&self) -> bool {
        !self.machines.contains(&"none") && !self.has_slurm()
    }

    fn has_slurm(&self) -> bool {
        self.machines.contains(&"slurm")
    }

    /// The nodes of an inventory, or the Slurm.
    fn nodes(&self) -> String {
        match self.has_slurm() {
            true => format!("[slurm]\nhost = \"{}@node1\"\ngres = \"gpu:1\"\n{}", self.user, self.defaults),
            false => format!(
                "[defaults]\nuser = \"{}\"\ngpus = 1\n{}\n[[node]]\nhost = \"node1\"\n\n[[node]]\nhost = \"node2\"\n",
                self.user, self.defaults
            ),
        }
    }
}

impl Cluster<'_> {
    fn of(platform: &Platform) -> Cluster<'_> {
        Cluster::named(platform, "lab")
    }

    fn named<'a>(platform: &'a Platform, name: &str) -> Cluster<'a> {
        let dir = tempfile::Builder::new().prefix("hvdctl-test.").tempdir().unwrap();
        let image = if platform.has_engine() { format!("image = \"{FULL_IMAGE}\"\n") } else { String::new() };
        let inventory = format!(
            "[cluster]\nname = \"{name}\"\n{image}{}ssh_config = \"{}\"\nkey_type = \"ed25519\"\nconnection_idle_s = 0\n\n{}",
            platform.cluster,
            checkout().join(".lab/ssh_config").display(),
            platform.nodes()
        );
        fs::write(dir.path().join("inventory.toml"), inventory).unwrap();
        Cluster { platform, dir }
    }

    fn command(&self, args: &[&str]) -> Command {
        let mut command = hvdctl_in(self.dir.path());
        command.args(args);
        command
    }

    #[track_caller]
    fn hvdctl(&self, args: &[&str]) -> Done {
        run(self.command(args), s(300))
    }

    /// Starts two ranks of a shell script, one on each node, that knows its `$rank` and the directory of its `$job`.
    #[track_caller]
    fn start(&self, launcher: &[&str], options: &[&str], script: &str) -> Running {
        let script = format!("{RANK} job={}/jobs/$HVDCTL_JOB\n{script}", self.platform.files);
        let args = [&["run", "-np", "2"], launcher, options, &["--", "sh", "-c", &script]].concat();
        Running::start(self.command(&args), &[])
    }

    /// Starts two ranks that wait, and waits until both do.
    #[track_caller]
    fn start_waiting(&self, launcher: &[&str]) -> Running {
        let mut job = self.start(launcher, &[], "echo ready; exec sleep 600");
        job.until(&["[0 node1] ready", "[1 node2] ready"], s(60));
        assert!(NODES.iter().all(|node| !left(node).is_empty()), "the search for processes of a job finds none");
        job
    }

    /// The newest job as `jobs` shows it.
    #[track_caller]
    fn newest(&self) -> Value {
        let document: Value = serde_json::from_str(&self.hvdctl(&["--json", "jobs"]).ok()).unwrap();
        document["jobs"][0].clone()
    }

    /// Ends what a behaviour that failed has left.
    fn recover(&self) {
        let marked = "for p in $(grep -lzE '^HVDCTL_(JOB|SHELL)=' /proc/[0-9]*/environ 2>/dev/null | cut -d/ -f3); do
            kill -9 $p 2>/dev/null; done; :";
        drop(self.hvdctl(&["stop"]));
        if self.platform.has_slurm() {
            drop(lab(&["sh", "node1", "scancel", "-u", self.platform.user]));
        }
        NODES.iter().for_each(|node| drop(lab(&["sh", node, "sh", "-c", marked])));
        if !self.platform.has_slurm() {
            drop(self.hvdctl(&["up"]));
        }
    }
}

/// The processes of jobs and of shells on a node, and of those that follow a job's log, by name.
fn left(node: &str) -> String {
    on(
        node,
        r#"for p in $(grep -lzE '^HVDCTL_(JOB|SHELL)=' /proc/[0-9]*/environ 2>/dev/null | cut -d/ -f3) \
             $(pgrep -x 'orted|prted|mpirun|prterun|horovodrun|torchrun|hvdctl-rank') \
             $(pgrep -u shared -x sleep) $(pgrep -f '[j]ob_supervisor[.]py|[r]ank_supervisor[.]py|[t]ail -c [+][0-9]* -f log'); do
             grep -qa . "/proc/$p/cmdline" && echo "$p $(cat "/proc/$p/comm")"
           done 2>/dev/null | sort -u; :"#,
    )
}

/// Asserts that nothing of a job runs on the nodes. What was just killed needs a moment.
#[track_caller]
fn nothing_is_left() {
    for node in NODES {
        eventually(s(3), || left(node).is_empty());
        assert_eq!(left(node), "", "processes are left on {node}");
    }
}

/// Kills the processes of a node that a shell command finds.
#[track_caller]
fn kill_on(node: &str, finds: &str) {
    on(node, &format!("pids=$({finds}); [ -n \"$pids\" ]; kill -9 $pids"));
}

/// A behaviour of jobs under a launcher, whose options are given.
type Behaviour = (&'static str, fn(&Cluster, &[&str]));

/// Behaviours of workers, which Slurm does without, and one of Slurm.
const OF_WORKER: &str = "a worker's sshd is killed";
const OF_STOPPED_WORKER: &str = "a worker is stopped";
const BY_SLURM: &str = "cancelled, preempted, put into the queue again, and without slurmctld";

const OF_JOBS: [Behaviour; 14] = [
    ("rank and node before each line", lines_have_rank_and_node),
    ("exit code of the first failed rank, the others gone within 5 s", a_failed_rank_ends_the_others),
    ("stop", stops),
    ("attach and logs after the operator was killed", the_operator_is_killed),
    ("the job supervisor is killed", the_job_supervisor_is_killed),
    ("a rank supervisor is killed", a_rank_supervisor_is_killed),
    (OF_WORKER, a_worker_is_killed),
    (OF_STOPPED_WORKER, a_worker_is_stopped),
    ("restarts", restarts),
    ("a stalled rank", a_rank_stalls),
    ("roles", roles_start_and_end),
    ("slots of a running job are refused to a second one", slots_are_allocated),
    ("fetch", outputs_are_fetched),
    ("stack", it_is_shown_where_ranks_are),
];

fn lines_have_rank_and_node(cluster: &Cluster, launcher: &[&str]) {
    let done = cluster.start(launcher, &[], "echo out of $rank; echo err of $rank >&2").end(s(60)).code(0);
    let mut lines: Vec<&str> = done.out.lines().collect();
    lines.sort_unstable();
    assert_eq!(lines, ["[0 node1] out of 0", "[1 node2] out of 1"]);
    done.complains(&["[0 node1] err of 0\n", "[1 node2] err of 1\n"]);
}

fn a_failed_rank_ends_the_others(cluster: &Cluster, launcher: &[&str]) {
    let script = "[ $rank = 0 ] || { sleep 1; exit 7; }
        trap '' TERM INT HUP; while :; do sleep 1; done";
    let done = cluster.start(launcher, &[], script).end(s(60)).code(7);
    done.complains(&["rank 1 on node2 ended with exit code 7"]);
    nothing_is_left();
    // both nodes have one clock
    let newest = format!("ls -t {}/jobs/*/result.json | head -n 1 | xargs cat", cluster.platform.files);
    let result: Value = serde_json::from_str(&on("node1", &newest)).unwrap();
    let times = result["exits"].as_array().unwrap().iter().map(|exit| exit["time"].as_f64().unwrap());
    let (first, last) = times.fold((f64::MAX, 0.0), |(first, last): (f64, f64), t| (first.min(t), last.max(t)));
    assert!(first < last && last - first < 5.0, "{result}");
}

fn stops(cluster: &Cluster, launcher: &[&str]) {
    let job = start_saving(cluster, launcher);
    cluster.hvdctl(&["stop"]).code(0);
    job.end(s(60)).code(143).says(&["[0 node1] saved", "[1 node2] saved"]).complains(&["was stopped"]);
    assert_eq!(cluster.newest()["state"], "stopped");
}

fn the_operator_is_killed(cluster: &Cluster, launcher: &[&str]) {
    let script = "echo first of $rank; while [ ! -e $job/go ]; do sleep 0.1; done; echo last of $rank
        [ $rank = 0 ] || { sleep 1; exit 3; }";
    let mut job = cluster.start(launcher, &[], script);
    job.until(&["[0 node1] first of 0", "[1 node2] first of 1"], s(60));
    kill(&job.pid().to_string(), "KILL");
    job.end(s(10)).code(137);
    let mut attached = Running::start(cluster.command(&["attach"]), &[]);
    attached.until(&["[0 node1] first of 0", "[1 node2] first of 1"], s(30));
    let go = format!("for job in {}/jobs/*/; do touch \"$job/go\"; done", cluster.platform.files);
    NODES.iter().for_each(|node| drop(on(node, &go)));
    attached.end(s(60)).code(3).says(&["[0 node1] last of 0", "[1 node2] last of 1"]);
    nothing_is_left();
    let logs = cluster.hvdctl(&["logs"]).ok();
    assert_eq!(logs.lines().count(), 4, "{logs}");
    assert_eq!(cluster.hvdctl(&["logs", "--rank", "1"]).ok(), "[1 node2] first of 1\n[1 node2] last of 1\n");
    cluster.hvdctl(&["attach"]).code(3).complains(&["rank 1 on node2 ended with exit code 3"]);
}

fn the_job_supervisor_is_killed(cluster: &Cluster, launcher: &[&str]) {
    let job = cluster.start_waiting(launcher);
    kill_on("node1", "pgrep -f '[j]ob_supervisor[.]py'");
    let done = job.end(s(60));
    assert_ne!(done.code, 0, "{}", done.err);
    done.complains(&["is lost: the job supervisor"]);
    assert_eq!(cluster.newest()["state"], "lost");
}

fn a_rank_supervisor_is_killed(cluster: &Cluster, launcher: &[&str]) {
    let job = cluster.start_waiting(launcher);
    kill_on("node2", "pgrep -x hvdctl-rank");
    let done = job.end(s(60));
    assert_ne!(done.code, 0, "{}", done.err);
    assert_eq!(cluster.newest()["state"], "failed");
}

/// An end that Slurm imposes on a job is recorded as Slurm's, and is not a fault of a rank.
fn slurm_ends_jobs(cluster: &Cluster, launcher: &[&str]) {
    // newer versions queue a job again that has ended after a preemption
    let number = "squeue --noheader --user=shared --states=RUNNING --format=%i | head -n 1";
    let again = |number: &str| format!("sleep 2; scontrol update jobid={number} StartTime=now");
    let job = cluster.start_waiting(launcher);
    on("node1", &format!("scancel $({number})"));
    job.end(s(60)).code(143).complains(&["was stopped"]);

    let job = cluster.start_waiting(launcher);
    let urgent = cluster.start(launcher, &["--sbatch=--partition=urgent"], "echo urgent");
    urgent.end(s(90)).code(0).says(&["[0 node1] urgent", "[1 node2] urgent"]);
    job.end(s(60)).code(125).complains(&["Slurm preempted it for another job"]);

    // the partition lets the ranks of both nodes save before Slurm puts the job into the queue again
    let script = "echo attempt $HVDCTL_RESTART of $rank; [ $HVDCTL_RESTART = 0 ] || exit 0; \
                  trap 'sleep 3; echo saved $rank; exit 0' TERM; while :; do sleep 0.2; done";
    let options = ["--restarts", "1", "--sbatch=--partition=graceful"];
    let mut job = cluster.start(launcher, &options, script);
    job.until(&["[0 node1] attempt 0 of 0", "[1 node2] attempt 0 of 1"], s(60));
    let preempted = on("node1", number);
    cluster.start(launcher, &["--sbatch=--partition=urgent"], "echo urgent").end(s(120)).code(0);
    on("node1", &again(preempted.trim()));
    let saved = ["[0 node1] saved 0", "[1 node2] saved 1", "[0 node1] attempt 1 of 0", "[1 node2] attempt 1 of 1"];
    job.end(s(200)).code(0).says(&saved);

    // a signal for the ranks reaches each of them, and ends nothing
    let script = "trap 'echo signalled $rank; exit 0' USR1; echo ready $rank; while :; do sleep 0.2; done";
    let mut job = cluster.start(launcher, &[], script);
    job.until(&["[0 node1] ready 0", "[1 node2] ready 1"], s(60));
    on("node1", &format!("sleep 2; scancel --signal=USR1 $({number})"));
    job.end(s(60)).code(0).says(&["[0 node1] signalled 0", "[1 node2] signalled 1"]);

    let script = "echo attempt $HVDCTL_RESTART of $rank; [ $HVDCTL_RESTART = 1 ] || exec sleep 600";
    let mut job = cluster.start(launcher, &["--restarts", "1"], script);
    job.until(&["[0 node1] attempt 0 of 0", "[1 node2] attempt 0 of 1"], s(60));
    on("node1", &format!("number=$({number}); scontrol requeue $number; {}", again("$number")));
    job.end(s(200)).code(0).says(&["[0 node1] attempt 1 of 0", "[1 node2] attempt 1 of 1"]);

    let script = "echo ready; while [ ! -e $job/go ]; do sleep 0.1; done; echo done";
    let mut job = cluster.start(launcher, &[], script);
    job.until(&["[0 node1] ready", "[1 node2] ready"], s(60));
    on("node1", "pkill -x slurmctld; sleep 1");
    on("node1", &format!("touch {}/jobs/$(ls -t {0}/jobs | head -n 1)/go", cluster.platform.files));
    on("node1", "sleep 2; node-engine start");
    job.end(s(90)).code(0).says(&["[0 node1] done", "[1 node2] done"]);
}

/// Starts ranks that save for longer than they would have after a failure.
#[track_caller]
fn start_saving(cluster: &Cluster, launcher: &[&str]) -> Running {
    let script = "trap 'sleep 4; echo saved; exit 0' TERM; echo ready; while :; do sleep 0.2; done";
    let mut job = cluster.start(launcher, &[], script);
    job.until(&["[0 node1] ready", "[1 node2] ready"], s(60));
    job
}

/// Asserts that the ranks have saved, the job names the worker, and jobs run again after `up`.
#[track_caller]
fn ended_with_the_worker(cluster: &Cluster, launcher: &[&str], job: Running) {
    let done = job.end(s(60));
    assert_ne!(done.code, 0, "{}", done.err);
    done.says(&["[0 node1] saved", "[1 node2] saved"]).complains(&["the worker of node2 was stopped or killed"]);
    nothing_is_left();
    cluster.hvdctl(&["up"]).code(0);
    let again = cluster.start(launcher, &[], "echo again").end(s(60)).code(0);
    again.says(&["[0 node1] again", "[1 node2] again"]);
}

fn a_worker_is_killed(cluster: &Cluster, launcher: &[&str]) {
    let job = start_saving(cluster, launcher);
    kill_on("node2", "ss -Hltnp 'sport = :12345' | grep -o 'pid=[0-9]*' | cut -d= -f2");
    ended_with_the_worker(cluster, launcher, job);
}

/// As by `docker stop`, or the end of the engine or of the machine.
fn a_worker_is_stopped(cluster: &Cluster, launcher: &[&str]) {
    let job = start_saving(cluster, launcher);
    on("node2", "kill -TERM $(pgrep -x hvdctl-worker)");
    ended_with_the_worker(cluster, launcher, job);
}

fn restarts(cluster: &Cluster, launcher: &[&str]) {
    let script = "echo attempt $HVDCTL_RESTART of $rank; [ $HVDCTL_RESTART = 1 ] || exit 9";
    let done = cluster.start(launcher, &["--restarts", "1"], script).end(s(90)).code(0);
    done.says(&["[0 node1] attempt 1 of 0", "[1 node2] attempt 1 of 1"]);
}

/// A role under the launcher needs a server of the other node, which fails once.
fn roles_start_and_end(cluster: &Cluster, launcher: &[&str]) {
    let project = cluster.dir.path().join("roles");
    fs::create_dir_all(&project).unwrap();
    let server = "n=$(cat starts 2>/dev/null || echo 0); echo $((n + 1)) >starts; echo start $((n + 1)) at $PORT_WEB
        touch up; [ $n = 1 ] || { sleep 1; exit 9; }; exec sleep 600";
    let client = "echo \"server at $HVDCTL_ROLE_SERVER_WEB\"; sleep 6";
    let roles = format!(
        r#"
        [[role]]
        name = "client"
        command = ["sh", "-c", {client:?}]
        ranks = 1
        needs = ["server"]

        [[role]]
        name = "server"
        command = ["sh", "-c", {server:?}]
        launcher = "env"
        ranks = 1
        ports = ["web"]
        ready = "file up"
        ends = "restarts 2"
        "#
    );
    fs::write(project.join("hvdctl.toml"), roles).unwrap();
    // a name of its own for each launcher: the server counts its starts in a file
    let name = format!("roles{}", launcher.concat().replace('-', ""));
    let args = [&["train", "roles", "--as", &name], launcher].concat();
    let done = Running::start(cluster.command(&args), &[]).end(s(90)).code(0);
    let port = |start: &str| {
        let line = done.out.lines().find(|line| line.starts_with(start)).unwrap_or_else(|| panic!("{}", done.out));
        line.rsplit([' ', ':']).next().unwrap().to_owned()
    };
    let known = port("[client 0 node1] server at ");
    for start in ["[server 0 node2] start 1 at ", "[server 0 node2] start 2 at "] {
        assert_eq!(port(start), known, "its address changes");
    }
    done.complains(&["server is started again, 1 of 2"]);
}

fn a_rank_stalls(cluster: &Cluster, launcher: &[&str]) {
    let script = "[ $rank = 1 ] || exec sleep 600; kill -STOP $$";
    let done = cluster.start(launcher, &["--stall-timeout", "5s"], script).end(s(60)).code(137);
    done.complains(&["rank 1 on node2 hung: it was stopped"]);
}

fn slots_are_allocated(cluster: &Cluster, launcher: &[&str]) {
    let mut job = cluster.start_waiting(launcher);
    let id = cluster.newest()["id"].as_str().unwrap().to_owned();
    if cluster.platform.has_slurm() {
        let second = cluster.start(launcher, &["--name", "second"], "echo second");
        eventually(s(20), || cluster.newest()["state"] == "queued");
        assert_eq!(cluster.newest()["state"], "queued");
        cluster.hvdctl(&["stop", &id]).code(0);
        job.end(s(60)).code(143);
        second.end(s(90)).code(0).says(&["[0 node1] second", "[1 node2] second"]);
        return;
    }
    cluster.start(launcher, &[], "true").end(s(60)).code(125).complains(&[&id, "hvdctl stop"]);
    assert!(job.runs(), "{}", job.err());
    job.signal("INT");
    job.end(s(60)).code(130);
}

fn it_is_shown_where_ranks_are(cluster: &Cluster, launcher: &[&str]) {
    let job = cluster.start_waiting(launcher);
    // the real one is fetched over the network
    let py_spy = cluster.dir.path().join("py-spy");
    fs::write(&py_spy, "#!/bin/sh\necho 'Error: this is no Python' >&2\nexit 1\n").unwrap();
    let shown = cluster.hvdctl(&["stack", "--py-spy", py_spy.to_str().unwrap()]);
    shown.code(0).says(&["ranks 0-1 on node[1-2]: sleeping in clock_nanosleep", "(this is no Python)"]);
    cluster.hvdctl(&["stack", "--rank", "1"]).code(0).says(&["rank 1 on node2 is sleeping in clock_nanosleep"]);
    cluster.hvdctl(&["stop"]).code(0);
    job.end(s(60));
    // one of the kinds of hangs of the supervision tests, which need no library
    let project = cluster.dir.path().join("hangs");
    fs::create_dir_all(&project).unwrap();
    fs::write(project.join("hangs.py"), include_str!("../../supervision/hangs.py")).unwrap();
    let train = [&["train", "hangs", "-np", "2", "-d"], launcher, &["--", "python3", "hangs.py", "lock"]].concat();
    cluster.hvdctl(&train).code(0);
    let locked = "rank 1 on node2 is waiting in futex for a lock or another thread";
    let is_shown = || cluster.hvdctl(&["stack"]).out.contains(locked);
    assert!(eventually(s(30), is_shown), "{}", cluster.hvdctl(&["stack"]).out);
    cluster.hvdctl(&["stop"]).code(0);
}

fn outputs_are_fetched(cluster: &Cluster, launcher: &[&str]) {
    let project = cluster.dir.path().join("writes");
    fs::create_dir_all(&project).unwrap();
    fs::write(project.join("input"), "shipped").unwrap();
    let script = format!("{RANK}; cp input of-$rank");
    let train = [&["train", "writes", "-np", "2"], launcher, &["--", "sh", "-c", &script]].concat();
    cluster.hvdctl(&train).code(0);
    let fetched = cluster.dir.path().join("fetched");
    cluster.hvdctl(&["fetch", "-o", fetched.to_str().unwrap()]).code(0);
    for name in ["of-0", "of-1"] {
        assert_eq!(fs::read_to_string(fetched.join(name)).unwrap(), "shipped", "{name}");
    }
    fs::remove_dir_all(fetched).unwrap();
}

const TRAINING: &str = "verify and train";

/// Ranks find each other, and learn something.
fn verifies_and_trains(cluster: &Cluster, launcher: &Launcher) {
    let done = cluster.hvdctl(&[&["verify", "-np", "2"], launcher.1].concat()).code(0);
    done.says(&["ok: 2 ranks where expected"]);
    let (example, options, says) = TRAININGS[launcher.2];
    let example = checkout().join("examples").join(example);
    let done = cluster.hvdctl(&[&["train", example.to_str().unwrap(), "-np", "2"], options].concat()).code(0);
    done.says(&[says]);
}

/// A behaviour that has nothing to do with launchers.
type WorkerBehaviour = (&'static str, fn(&Cluster));

const OF_WORKERS: [WorkerBehaviour; 6] = [
    ("status and doctor", nodes_are_shown),
    ("an engine that is asked for and absent", the_engine_is_absent),
    ("a line of activate that fails", activate_fails),
    ("data", data_are_pushed),
    ("exec", commands_run),
    ("shell", a_shell_opens),
];

fn nodes_are_shown(cluster: &Cluster) {
    cluster.hvdctl(&["status"]).code(0).says(cluster.platform.status);
    let doctor = cluster.hvdctl(&["doctor"]).code(0);
    for engine in ["Docker", "Podman"] {
        let here = cluster.platform.status.iter().any(|shown| shown.starts_with(engine));
        assert!(here || !doctor.out.contains(engine), "{}", doctor.out);
    }
}

fn the_engine_is_absent(cluster: &Cluster) {
    let (line, words) = cluster.platform.absent;
    let other = Platform { cluster: line, defaults: "", ..*cluster.platform };
    Cluster::of(&other).hvdctl(&["status"]).complains(&[words]);
}

/// With processes, in a cluster of its own on the same nodes. Containers have no such lines.
fn activate_fails(cluster: &Cluster) {
    let lines = "activate = [\"true\", \"module load nothing\"]\n";
    if cluster.platform.has_engine() {
        let refused = Cluster::of(&Platform { defaults: lines, ..*cluster.platform }).hvdctl(&["status"]).code(2);
        refused.complains(&["defaults.activate: only with `runtime = \"process\"`"]);
        return;
    }
    let other = "runtime = \"process\"\nport = 12346\n";
    let other = Platform { cluster: other, defaults: lines, ..*cluster.platform };
    let other = Cluster::named(&other, "other");
    other.hvdctl(&["keys", "push"]).code(0);
    let up = other.hvdctl(&["up"]);
    assert_ne!(up.code, 0, "{}", up.out);
    up.complains(&["node1", "node2", "module load nothing"]);
    other.hvdctl(&["down", "--purge", "-y"]).code(0);
    for node in NODES {
        let script = "ls -d /var/tmp/hvdctl-other 2>/dev/null || :
            grep -lsz '^HVDCTL_.*hvdctl-other' /proc/[0-9]*/environ || :";
        assert_eq!(on(node, script), "", "{node}");
    }
}

fn data_are_pushed(cluster: &Cluster) {
    let data = cluster.dir.path().join("numbers");
    fs::create_dir_all(&data).unwrap();
    fs::write(data.join("one"), "1\n").unwrap();
    cluster.hvdctl(&["data", "push", "numbers"]).code(0);
    let read = "cat ${HVDCTL_DATA:-/data}/numbers/one";
    cluster.start(ENV.1, &[], read).end(s(60)).code(0).says(&["[0 node1] 1\n", "[1 node2] 1\n"]);
    cluster.hvdctl(&["data", "rm", "numbers", "-y"]).code(0);
}

fn commands_run(cluster: &Cluster) {
    let names = format!("node[1-2] (2): {}\n", cluster.platform.user);
    assert_eq!(cluster.hvdctl(&["exec", "--", "id", "-un"]).ok(), names);
    let inside = format!("node[1-2] (2): {}\n", cluster.platform.inside);
    assert_eq!(cluster.hvdctl(&["exec", "-c", "--", "id", "-un"]).ok(), inside);
    assert_eq!(cluster.hvdctl(&["exec", "-c", "--", "nvidia-smi", "-L"]).ok().matches("GPU 0: ").count(), 2);
    let failed = cluster.hvdctl(&["exec", "-c", "--", "sh", "-c", "echo on $(hostname); exit 9"]).code(9);
    failed.says(&["node1: on node1", "node2: on node2"]);
}

fn a_shell_opens(cluster: &Cluster) {
    cluster.hvdctl(&["shell"]).code(2).complains(&["not a terminal"]);
    let shell = Typed::of(&cluster.command(&["shell"]));
    // the sum keeps the echo of the input from matching the expected text
    shell.until("echo up-$((40+2))\n", "up-42");
    shell.keys("exit 7\n");
    shell.end(7);
    let shell = Typed::of(&cluster.command(&["shell", "node2"]));
    shell.until("echo in-$(hostname)\n", "in-node2");
    assert!(!left("node2").is_empty(), "the search for processes of a shell finds none");
    kill(&shell.pid(), "KILL");
    assert!(eventually(s(20), || left("node2").is_empty()), "{}", left("node2"));
}

/// Everything on a node that hvdctl may have made: containers, volumes, images, files, logins' keys, and processes of
/// the login. The directory of its locks in /run stays until the node starts again.
fn found(platform: &Platform, node: &str) -> String {
    let script = format!(
        "if command -v docker podman >/dev/null; then
           node-engine run ps -aq; node-engine run volume ls -q; node-engine run images -q | sort -u; fi
         find / /run /tmp -xdev '(' -path /var/lib/docker -o -path /var/lib/containers ')' -prune -o \
           -name '*hvdctl*' -print | grep -vxE '/run(/user/[0-9]+)?/hvdctl' | sort
         find {files} 2>/dev/null || :
         find ~{user} -maxdepth 2 ! -path '*/.cache*' ! -name .bash_history | sort
         cat /root/.ssh/authorized_keys ~{user}/.ssh/authorized_keys | sort
         echo processes: $(pgrep -cu {user})",
        user = platform.user,
        files = platform.files
    );
    on(node, &script)
}

/// Tries behaviours, prints what becomes of each, and keeps the failures.
struct Trials<'a> {
    cluster: &'a Cluster<'a>,
    only: String,
    failed: Vec<String>,
}

impl Trials<'_> {
    fn name(&self, launcher: &str, behaviour: &str) -> String {
        let comma = if launcher.is_empty() { "" } else { ", " };
        format!("{}{comma}{launcher}: {behaviour}", self.cluster.platform.name)
    }

    fn wants(&self, name: &str) -> bool {
        name.contains(&self.only)
    }

    /// Tries a behaviour if its name is asked for.
    fn one(&mut self, launcher: &str, behaviour: &str, holds: impl FnOnce()) {
        let name = self.name(launcher, behaviour);
        if self.wants(&name) && !self.always(name, holds) {
            self.cluster.recover();
        }
    }

    /// Tries these behaviours and a training under every launcher.
    fn of_jobs(&mut self, behaviours: &[Behaviour]) {
        let cluster = self.cluster;
        for launcher in cluster.platform.launchers {
            for (name, holds) in behaviours {
                self.one(launcher.0, name, || holds(cluster, launcher.1));
            }
            if cluster.platform.trains {
                self.one(launcher.0, TRAINING, || verifies_and_trains(cluster, launcher));
            }
        }
    }

    /// Tries what the others need; true if it holds.
    fn always(&mut self, name: String, holds: impl FnOnce()) -> bool {
        let started = Instant::now();
        let tried = catch_unwind(AssertUnwindSafe(|| {
            holds();
            nothing_is_left();
        }));
        let result = tried.map_or_else(
            |panic| {
                let text = panic.downcast_ref::<String>().map(String::as_str);
                let text = text.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or_default();
                self.failed.push(format!("{name}: {text}"));
                format!("FAILED: {text}")
            },
            |()| "ok".to_owned(),
        );
        // not with the macro, whose output appears only if the test fails
        let _ = writeln!(stderr(), "{name}: {result} ({:.1} s)", started.elapsed().as_secs_f64());
        result == "ok"
    }
}

/// Tries every behaviour on machines of this kind, and returns what failed; none if none was asked for.
fn conforms(platform: &Platform) -> Option<Vec<String>> {
    let cluster = Cluster::of(platform);
    let only = std::env::var("HVDCTL_TEST_VARIANT").unwrap_or_default();
    let mut trials = Trials { cluster: &cluster, only, failed: Vec::new() };
    let of_jobs: Vec<Behaviour> = OF_JOBS
        .into_iter()
        .filter(|(name, _)| !platform.has_slurm() || ![OF_WORKER, OF_STOPPED_WORKER].contains(name))
        .collect();
    let of_workers = if platform.has_slurm() { &[][..] } else { &OF_WORKERS[..] };
    let mut names: Vec<String> = of_workers.iter().map(|(name, _)| trials.name("", name)).collect();
    names.extend(platform.has_slurm().then(|| trials.name(ENV.0, BY_SLURM)));
    for launcher in platform.launchers {
        names.extend(of_jobs.iter().map(|(name, _)| trials.name(launcher.0, name)));
        names.push(trials.name(launcher.0, TRAINING));
    }
    if !names.iter().any(|name| trials.wants(name)) {
        return None;
    }
    let _ = fs::remove_dir_all(SHARED);
    fs::create_dir_all(SHARED).unwrap();
    let _machines = Machines::up(platform.machines);
    if platform.has_slurm() {
        trials.one(ENV.0, BY_SLURM, || slurm_ends_jobs(&cluster, ENV.1));
        trials.of_jobs(&of_jobs);
        return Some(trials.failed);
    }
    let before = NODES.map(|node| found(platform, node));
    let up = trials.always(trials.name("", "keys push and up"), || {
        cluster.hvdctl(&["keys", "push"]).code(0);
        cluster.hvdctl(&["up"]).code(0).says(&["started hworker"]);
    });
    if !up {
        return Some(trials.failed);
    }
    for (name, holds) in OF_WORKERS {
        trials.one("", name, || holds(&cluster));
    }
    trials.of_jobs(&of_jobs);
    trials.always(trials.name("", "down --purge"), || {
        cluster.hvdctl(&["down", "--purge", "-y"]).code(0).says(&["removed hworker"]);
        // the login of the command ends a moment after it
        eventually(s(3), || NODES.map(|node| found(platform, node)) == before);
        for (node, before) in NODES.iter().zip(before) {
            let after = found(platform, node);
            let new: Vec<&str> = after.lines().filter(|line| !before.lines().any(|was| was == *line)).collect();
            assert!(new.is_empty(), "{node} has what was not there before `up`: {new:?}");
            assert_eq!(after, before, "{node}");
        }
    });
    Some(trials.failed)
}

#[test]
fn a_job_does_the_same_under_every_runtime_and_launcher() {
    let platforms = [DOCKER, PODMAN, ROOTLESS, PROCESSES, MODULES, SLURM, OLDER_SLURM, NEWER_SLURM];
    let tried: Vec<Vec<String>> = platforms.iter().filter_map(conforms).collect();
    assert!(!tried.is_empty(), "no behaviour has $HVDCTL_TEST_VARIANT in its name");
    let failed = tried.concat();
    assert!(failed.is_empty(), "{} behaviours failed:\n{}", failed.len(), failed.join("\n"));
}
