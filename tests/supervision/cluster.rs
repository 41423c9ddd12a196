//! Two nodes on this machine, each a private PID and mount namespace.

use rustix::process::{Pid, Signal, kill_process};
use std::fmt;
use std::fs::{self, Permissions};
use std::os::unix::fs::{PermissionsExt, symlink};
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::LazyLock;
use std::thread;
use std::time::{Duration, Instant};
use tempfile::TempDir;

/// The nodes' names; the launcher runs on the first, and the other jobs an sshd.
pub const NODES: [&str; 2] = ["node1", "node2"];
/// Their addresses. The stand-ins take them for those of two machines; sockets of both lead to this one.
pub const ADDRESSES: [&str; 2] = ["127.0.0.1", "127.0.0.2"];
/// The value of `OF_LOGIN` that the login of each node exports.
pub const OF_LOGIN: [&str; 2] = ["canary of node1", "canary of node2"];
/// The port of the workers' sshd.
pub const PORT: u16 = 12345;

/// Prepares a node's mounts and becomes its main process. Wants the cluster's directory, the node's name and address,
/// and the command.
const MOUNTS: &str = r#"set -e
dir=$1 node=$2 address=$3
shift 3
mount --bind "$dir/$node" "$dir/jobs"
mount -t tmpfs tmpfs /run
mkdir /run/cluster
mount --bind "$dir/cluster" /run/cluster
mount --bind "$dir/cluster/bin/ssh" /usr/bin/ssh
echo "$address" >/run/address
cd /
exec "$@"
"#;

/// The Python that the nodes use. The one in `PATH` may be a script that looks for another one (pyenv), which takes
/// long.
static PYTHON: LazyLock<PathBuf> = LazyLock::new(|| {
    let words = ["-c", "import os, sys; print(os.path.realpath(sys.executable))"];
    let done = Command::new("python3").args(words).output().expect("these tests need python3");
    PathBuf::from(String::from_utf8_lossy(&done.stdout).trim())
});

/// The main process of a worker, which starts sshd, and for how many seconds it waits for ranks.
const INIT: [&str; 6] = [
    "sh",
    "-c",
    concat!(
        include_str!("../../src/scripts/programs/environment/environment.sh"),
        include_str!("../../src/scripts/worker/init.sh")
    ),
    "sh",
    include_str!("../../src/scripts/worker/init.py"),
    "20",
];

/// The stand-ins for programs of a real cluster.
const PROGRAMS: [(&str, &str); 4] = [
    ("ssh", include_str!("stand_ins/ssh.py")),
    ("horovodrun", include_str!("stand_ins/horovodrun.py")),
    ("torchrun", include_str!("stand_ins/torchrun.py")),
    ("sshd", include_str!("stand_ins/sshd.py")),
];

/// The directory to which they are written once: a process that another test starts meanwhile may hold a file open that
/// is being written, and then it cannot be executed ("text file busy").
static STAND_INS: LazyLock<&Path> = LazyLock::new(|| {
    let dir = Path::new(env!("CARGO_TARGET_TMPDIR"));
    for (name, text) in PROGRAMS {
        let new = dir.join(format!("{name}.{}", std::process::id()));
        fs::write(&new, text).unwrap();
        fs::set_permissions(&new, Permissions::from_mode(0o755)).unwrap();
        fs::rename(new, dir.join(name)).unwrap();
    }
    dir
});

/// Waits until the condition holds, for some minutes at most, and returns whether it does.
pub fn eventually(mut condition: impl FnMut() -> bool) -> bool {
    let limit = Instant::now() + Duration::from_secs(240);
    loop {
        if condition() {
            return true;
        }
        if Instant::now() > limit {
            return false;
        }
        thread::sleep(Duration::from_millis(20));
    }
}

/// A process of a node, as seen from outside of its namespace.
pub struct Process {
    pub pid: Pid,
    /// The name that ps(1) shows; proc_pid_comm(5).
    pub name: String,
    /// The arguments, joined by spaces.
    pub arguments: String,
    /// A letter; proc_pid_stat(5).
    pub state: char,
}

impl fmt::Debug for Process {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {} {}: {}", self.pid.as_raw_nonzero(), self.state, self.name, self.arguments)
    }
}

impl Process {
    pub fn signal(&self, signal: Signal) {
        // it may just have ended
        let _ = kill_process(self.pid, signal);
    }
}

/// The fields of a process's `stat` file behind its name: state, parent and so on.
fn stat(pid: &str) -> Option<Vec<String>> {
    let text = fs::read(format!("/proc/{pid}/stat")).ok()?;
    let text = String::from_utf8_lossy(&text);
    Some(text.rsplit_once(") ")?.1.split(' ').map(str::to_owned).collect())
}

fn all_pids() -> impl Iterator<Item = String> {
    let entries = fs::read_dir("/proc").expect("/proc").flatten();
    entries.map(|entry| entry.file_name().to_string_lossy().into_owned()).filter(|name| name.parse::<u32>().is_ok())
}

/// `unshare` with what makes a node; all in it ends with the thread that starts it.
fn namespaces() -> Command {
    let mut command = Command::new("setpriv");
    command.args(["--pdeathsig", "KILL"]);
    // as in a container: a test that runs in the background of a shell may have got some ignored
    command.args(["env", "--default-signal=HUP,INT,QUIT,TERM", "unshare"]);
    if !rustix::process::geteuid().is_root() {
        command.args(["--user", "--map-root-user"]);
    }
    command.args(["--pid", "--fork", "--mount", "--mount-proc", "--ipc", "--kill-child", "--"]);
    command
}

/// The reason why this user cannot create the namespaces; empty if it can.
static REFUSED: LazyLock<String> = LazyLock::new(|| match namespaces().arg("true").output() {
    Ok(done) if done.status.success() => String::new(),
    Ok(done) => String::from_utf8_lossy(&done.stderr).trim().to_owned(),
    Err(error) => format!("setpriv (util-linux): {error}"),
});

/// A node: a PID namespace with its main process. All of its processes end with this value.
pub struct Node {
    pub name: &'static str,
    unshare: Child,
    namespace: Option<Namespace>,
}

/// A PID namespace. Its number is not given to another one as long as the file is open.
struct Namespace {
    number: PathBuf,
    _open: fs::File,
}

impl Namespace {
    fn of(pid: &str) -> Option<Namespace> {
        let path = format!("/proc/{pid}/ns/pid");
        let namespace = Namespace { _open: fs::File::open(&path).ok()?, number: fs::read_link(&path).ok()? };
        let ours = fs::read_link("/proc/self/ns/pid").ok()?;
        (namespace.number != ours).then_some(namespace)
    }
}

impl Node {
    /// Starts a node with this main process.
    ///
    /// # Panics
    /// If this user cannot create the namespaces.
    pub fn start(dir: &Path, index: usize, command: &[&str], env: &[(&str, &str)]) -> Node {
        let refused = &*REFUSED;
        assert!(
            refused.is_empty(),
            "cannot create a PID namespace: {refused}\nhint: run as root, or allow user namespaces (on Ubuntu: sysctl \
             kernel.apparmor_restrict_unprivileged_userns=0; in a container: --privileged)"
        );
        let errors = fs::File::create(dir.join(format!("{}.stderr", NODES[index]))).unwrap();
        let mut unshare = namespaces();
        unshare.args(["sh", "-c", MOUNTS, "sh", dir.to_str().unwrap(), NODES[index], ADDRESSES[index]]).args(command);
        let path = "/run/cluster/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";
        unshare
            .env_clear()
            .envs([("PATH", path), ("HOME", "/"), ("OF_LOGIN", OF_LOGIN[index])])
            .envs(env.iter().copied());
        unshare.stdin(Stdio::null()).stdout(Stdio::null()).stderr(errors);
        let mut unshare = unshare.spawn().expect("setpriv");
        let parent = unshare.id().to_string();
        let mut namespace = None;
        eventually(|| {
            let child = all_pids().find(|pid| stat(pid).is_some_and(|fields| fields[1] == parent));
            namespace = child.and_then(|pid| Namespace::of(&pid));
            namespace.is_some() || unshare.try_wait().unwrap().is_some()
        });
        Node { name: NODES[index], unshare, namespace }
    }

    /// Its processes that have not ended.
    pub fn processes(&self) -> Vec<Process> {
        let Some(own) = &self.namespace else { return Vec::new() };
        let process = |pid: String| {
            if fs::read_link(format!("/proc/{pid}/ns/pid")).ok()? != own.number {
                return None;
            }
            let arguments = fs::read(format!("/proc/{pid}/cmdline")).ok()?;
            let state = stat(&pid)?[0].chars().next()?;
            (!matches!(state, 'Z' | 'X')).then_some(Process {
                name: fs::read_to_string(format!("/proc/{pid}/comm")).ok()?.trim().to_owned(),
                pid: Pid::from_raw(pid.parse().ok()?)?,
                arguments: String::from_utf8_lossy(&arguments).replace('\0', " ").trim().to_owned(),
                state,
            })
        };
        all_pids().filter_map(process).collect()
    }

    /// Its processes of this name.
    pub fn named(&self, name: &str) -> Vec<Process> {
        self.processes().into_iter().filter(|process| process.name == name).collect()
    }

    /// Its sshd, without those of sessions.
    pub fn sshd(&self) -> Option<Process> {
        let main = self.main()?.as_raw_nonzero().to_string();
        let is_child =
            |process: &Process| stat(&process.pid.as_raw_nonzero().to_string()).is_some_and(|fields| fields[1] == main);
        self.named("sshd").into_iter().find(is_child)
    }

    /// Its processes without its main process and sshd.
    pub fn others(&self) -> Vec<Process> {
        let own = [self.main(), self.sshd().map(|sshd| sshd.pid)];
        self.processes().into_iter().filter(|process| !own.contains(&Some(process.pid))).collect()
    }

    /// Its main process, until it has ended.
    pub fn main(&self) -> Option<Pid> {
        let parent = self.unshare.id().to_string();
        let main = all_pids().find(|pid| stat(pid).is_some_and(|fields| fields[1] == parent));
        main.and_then(|pid| Pid::from_raw(pid.parse().ok()?))
    }

    /// Sends a signal to its main process, which gets only those that it handles, and those that cannot be handled.
    pub fn signal(&self, signal: Signal) {
        kill_process(self.main().expect("a main process"), signal).unwrap();
    }

    /// Waits for the end of its main process, and so of all others, for some minutes at most. Returns its exit code;
    /// that means nothing where a signal killed it.
    pub fn wait(&mut self) -> Option<i32> {
        let mut status = None;
        eventually(|| {
            status = self.unshare.try_wait().unwrap();
            status.is_some()
        });
        status.map(|status| status.code().unwrap_or_else(|| 128 + status.signal().unwrap_or_default()))
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        // its child ends with it (--kill-child), and with that one the namespace
        let _ = self.unshare.kill();
        let _ = self.unshare.wait();
        let gone = eventually(|| self.processes().is_empty());
        assert!(gone || thread::panicking(), "{}: not even SIGKILL ends {:?}", self.name, self.processes());
    }
}

/// Starts the second node, and waits until its sshd listens.
fn start_worker(dir: &Path) -> Node {
    let socket = format!("network/{}:{PORT}", ADDRESSES[1]);
    let path = dir.join("cluster").join(&socket);
    // of one that was killed
    let _ = fs::remove_file(&path);
    let listen = format!("/run/cluster/{socket}");
    let command: Vec<&str> = INIT.into_iter().chain(["sshd", &listen]).collect();
    let mut worker = Node::start(dir, 1, &command, &[]);
    eventually(|| path.exists() || worker.unshare.try_wait().unwrap().is_some());
    assert!(path.exists(), "node2 does not start: {}", fs::read_to_string(dir.join("node2.stderr")).unwrap());
    worker
}

/// Two nodes; the job supervisor is the main process of the first, and so that one is started with a job (`job.rs`).
pub struct Cluster {
    /// The second node, whose main process is an sshd. Before `dir`: it ends before its files go.
    pub worker: Node,
    dir: TempDir,
    /// Further variables of the environment of ranks, on both nodes.
    pub variables: Vec<(String, String)>,
}

impl Cluster {
    /// Starts the second node, and waits until its sshd listens.
    ///
    /// # Panics
    /// As [`Node::start`].
    pub fn new() -> Cluster {
        Cluster::with(Vec::new())
    }

    /// Starts it with variables in the environment of ranks.
    pub fn with(variables: Vec<(String, String)>) -> Cluster {
        let dir = tempfile::Builder::new().prefix("hvdctl-supervision-").tempdir().unwrap();
        let at = |path: &str| dir.path().join(path);
        for path in ["jobs", "node1", "node2", "cluster", "cluster/bin", "cluster/network", "cluster/shared"] {
            fs::create_dir(at(path)).unwrap();
        }
        for (name, _) in PROGRAMS {
            symlink(STAND_INS.join(name), at("cluster/bin").join(name)).unwrap();
        }
        symlink(&*PYTHON, at("cluster/bin/python3")).unwrap();
        let lines: String = variables.iter().map(|(name, value)| format!("{name}={value}\n")).collect();
        fs::write(at("cluster/variables"), lines).unwrap();
        Cluster { worker: start_worker(dir.path()), dir, variables }
    }

    /// Starts the second node again, after its end.
    pub fn start_worker_again(&self) -> Node {
        start_worker(self.dir())
    }

    /// The directory that has all of the cluster's files.
    pub fn dir(&self) -> &Path {
        self.dir.path()
    }

    /// A file that all nodes have as `/run/cluster/shared/NAME`.
    pub fn shared(&self, name: &str) -> PathBuf {
        self.dir.path().join("cluster/shared").join(name)
    }
}
