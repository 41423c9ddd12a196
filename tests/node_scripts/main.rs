//! The shell scripts of `src/scripts` that report what a node has, run on this machine with tools that fail: that a
//! tool fails must not pass for "there is nothing".

use hvdctl::node::facts::Facts;
use std::fs::{self, Permissions};
use std::io::Write as _;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

/// The parts of a script of processes, as `src/runtime/process.rs` puts them together.
macro_rules! of_processes {
    ($($part:literal),+) => {
        &["node/close.sh", "node/permissions.sh", "node/marked.sh", "process/common.sh", $($part),+]
    };
}

mod envs;
mod gpus;
mod jobs;
mod ledgers;
mod permissions;
mod pools;
mod processes;
mod slurm;

const SCRIPTS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/src/scripts");
const FACTS: &[&str] = &[
    "node/machine.sh",
    "node/close.sh",
    "node/permissions.sh",
    "node/nvidia_smi.sh",
    "node/gpus.sh",
    "node/accelerators.sh",
    "node/marked.sh",
    "node/killed.sh",
    "job/directory.sh",
    "job/outside.sh",
    "node/facts.sh",
];
/// A `flock` as on NFSv4, which the tests of scripts find before the one of this machine.
const NFS4: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/nfs4");
const DOCTOR: &[&str] = &["node/nvidia_smi.sh", "node/doctor.sh"];

/// Places that the scripts know, and the directories of a [`Machine`] that are there instead.
const PLACES: [(&str, &str); 28] = [
    ("/usr/lib/wsl/lib", "wsl"),
    ("/sys/bus/pci/drivers/nvidia", "pci"),
    ("/proc/driver/nvidia/gpus", "driver"),
    ("/sys/class/kfd", "class/kfd"),
    ("/sys/class/drm", "class/drm"),
    ("/sys/class/accel", "class/accel"),
    ("/sys/class/infiniband", "class/infiniband"),
    ("/dev/nvidia", "dev/nvidia"),
    ("/dev/nvhost", "dev/nvhost"),
    ("/dev/dxg", "dev/dxg"),
    ("/dev/kfd", "dev/kfd"),
    ("/dev/dri", "dev/dri"),
    ("/dev/neuron", "dev/neuron"),
    ("/dev/davinci", "dev/davinci"),
    ("/dev/infiniband", "dev/infiniband"),
    ("/dev/gdrdrv", "dev/gdrdrv"),
    ("/run/podman", "run/podman"),
    ("/var/run/docker.sock", "docker.sock"),
    ("/etc/cdi", "etc/cdi"),
    ("/var/run/cdi", "run/cdi"),
    ("/etc/containers", "etc/containers"),
    ("/etc/subuid", "etc/subuid"),
    ("/etc/subgid", "etc/subgid"),
    ("/sys/fs/cgroup", "cgroup"),
    // without it, they ask id(1)
    ("/proc/self/status", "status"),
    ("/usr/share/containers", "share/containers"),
    ("/etc/systemd/system", "etc/systemd"),
    ("/usr/lib/systemd/system", "lib/systemd"),
];

/// A node's directories, and tools that are found before those of this machine.
struct Machine {
    dir: tempfile::TempDir,
}

impl Machine {
    fn new(files: &[(&str, &str)]) -> Machine {
        let machine = Machine { dir: tempfile::tempdir().unwrap() };
        for (name, text) in files {
            let path = machine.path(name);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }
        machine
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    fn stub(&self, tool: &str, script: &str) {
        let path = self.path("tools").join(tool);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(&path, format!("#!/bin/sh\n{script}\n")).unwrap();
        fs::set_permissions(path, Permissions::from_mode(0o755)).unwrap();
    }

    /// Makes a tool fail where this pattern of the shell matches its arguments.
    fn break_tool(&self, tool: &str, arguments: &str, message: &str) {
        let real = ["/usr/bin", "/bin", "/usr/sbin", "/sbin"].map(|place| Path::new(place).join(tool));
        let real = real.into_iter().find(|path| path.exists()).unwrap().display().to_string();
        let fails = format!("echo \"{tool}: {message}\" >&2; exit 1");
        self.stub(tool, &format!("case \"$*\" in {arguments}) {fails} ;; esac\nexec {real} \"$@\""));
    }

    fn repair(&self) {
        let _ = fs::remove_dir_all(self.path("tools"));
    }

    /// Runs these scripts in one shell, with these variables in addition to those of the places.
    fn run(&self, scripts: &[&str], variables: &str) -> Output {
        let place = |name: &str| self.path(name).display().to_string();
        let mut text = format!(
            "ssh_dir='{}' jobs_dir='{}' projects_dir='{}' data_dir='{}' run_dir= cluster=lab port=12345\n{variables}\n",
            place("ssh"),
            place("jobs"),
            place("projects"),
            place("data")
        );
        for script in scripts {
            let source = fs::read_to_string(Path::new(SCRIPTS).join(script)).unwrap();
            text += &PLACES.iter().fold(source, |source, (from, to)| source.replace(from, &place(to)));
        }
        let mut shell = Command::new("sh");
        shell.arg("-s").stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let path = format!("{}:{NFS4}:{}", self.path("tools").display(), std::env::var("PATH").unwrap());
        let mut child = shell.env("PATH", path).spawn().unwrap();
        child.stdin.take().unwrap().write_all(text.as_bytes()).unwrap();
        child.wait_with_output().unwrap()
    }

    /// Runs scripts that succeed, and returns their standard output.
    #[track_caller]
    fn prints(&self, scripts: &[&str], variables: &str) -> String {
        let output = self.run(scripts, variables);
        assert!(output.status.success(), "{output:?}");
        String::from_utf8(output.stdout).unwrap()
    }

    /// Runs scripts that fail, and returns their standard error.
    #[track_caller]
    fn fails(&self, scripts: &[&str], variables: &str) -> String {
        let output = self.run(scripts, variables);
        assert!(!output.status.success(), "{output:?}");
        String::from_utf8(output.stderr).unwrap()
    }
}

#[test]
fn the_state_of_a_node_is_read_whole_or_not_at_all() {
    let record = "{\"cluster\":\"lab\"}\n";
    let machine = Machine::new(&[
        ("jobs/j1/job.json", record),
        ("jobs/j1/env.json", "{}"),
        ("jobs/j1/idle.3", "1795262584 waiting in read for data from /a b\nrank junk\n"),
        ("jobs/j2/idle.0", "1795262584 sleeping\n"),
        ("jobs/j2/job.json", "{\"cluster\":\"lab2\"}\n"),
        ("jobs/j2/env.json", "{}"),
        ("jobs/j3/job.json", record),
        ("jobs/j3/env.json", "{}"),
        ("jobs/j3/result.json", "{}"),
        // records that may be this cluster's
        ("jobs/j4/job.json", "{\n \"format\": 3,\n \"cluster\": \"lab\"\n}\n"),
        ("jobs/j4/env.json", "{}"),
        ("jobs/j5/job.json", "{\"id\":\"j5\",\"cluster\":\"la"),
        ("jobs/j5/env.json", "{}"),
        ("jobs/j6/job.json", ""),
        ("jobs/j6/env.json", "{}"),
        ("jobs/j7/env.json", "{}"),
        ("jobs/j8/job.json", "{\"cluster\":\"la"),
        ("data/.set@lab/shipped", ""),
        ("data/.set@lab/tree", "1f0c\n"),
        ("data/set/a", ""),
        ("data/.half@lab/shipped", ""),
        ("data/.begun@lab/stage/t/x", ""),
        ("data/.set@lab2/shipped", ""),
        ("ssh/authorized_keys", "a  b\n\nlast\r"),
        ("ssh/id_rsa", "PRIVATE"),
    ]);
    let facts = machine.prints(FACTS, "");
    let lines = |key: &str| facts.lines().filter(|line| line.starts_with(key)).collect::<Vec<_>>();
    let ours = format!("open j1 {}", record.trim());
    let unclear = [
        "open j4 {  \"format\": 3,  \"cluster\": \"lab\" }",
        "open j5 {\"id\":\"j5\",\"cluster\":\"la",
        "open j6 ",
        "open j7 ",
    ];
    assert_eq!(lines("open "), [&[ours.as_str()], &unclear[..]].concat());
    assert_eq!(
        lines("idle "),
        ["idle j1 3 1795262584 waiting in read for data from /a b"],
        "another cluster's are not"
    );
    assert_eq!(Facts::parse(&facts).jobs.idle, ["j1 3 1795262584 waiting in read for data from /a b"]);
    assert_eq!(
        lines("text "),
        ["text authorized_keys a  b", "text authorized_keys ", "text authorized_keys last\r"]
            .map(|line| line.trim_end_matches('\r'))
    );
    assert!(facts.contains("text authorized_keys last\r\n") && !facts.contains("PRIVATE"));
    assert!(lines("ports ").len() == 1 && !lines("addr ").is_empty(), "{facts}");
    let directories = lines("directory ");
    let ends = format!(" {}", machine.path("jobs").display());
    assert!(directories[1].starts_with("directory jobs ") && directories[1].ends_with(&ends), "{directories:?}");
    assert_eq!(directories.len(), 4, "{directories:?}");
    let inode = fs::metadata(machine.path("data/set")).unwrap().ino();
    assert_eq!(lines("pushed "), ["pushed half - -", &format!("pushed set 1f0c {inode}")]);
    let inode_of = |name: &str| Facts::parse(&facts).storage.pushed[name].inode;
    assert_eq!((inode_of("half"), inode_of("set")), (None, Some(inode)));
    for (tool, arguments) in [
        ("dd", "*job.json*"),
        ("dd", "*idle.3*"),
        ("dd", "*set@lab/tree*"),
        ("stat", "*%i*"),
        ("awk", "*authorized_keys*"),
        ("stat", "*id_rsa*"),
        ("stat", "*%a*."),
        ("ip", "*"),
        ("ss", "-Hltn"),
    ] {
        machine.break_tool(tool, arguments, "Input/output error");
        let message = machine.fails(FACTS, "");
        assert!(message.contains(&format!("{tool}: Input/output error")), "{tool} {arguments}: {message}");
        machine.repair();
    }
    // a job that is removed meanwhile
    let remove = format!("rm -rf {}; exit 1", machine.path("jobs/j1").display());
    machine.stub("dd", &format!("case \"$PWD\" in */j1) {remove} ;; esac; exec /bin/dd \"$@\""));
    assert!(!machine.prints(FACTS, "").contains("open j1"));
}

/// For the processes, ss reads what every process of the machine has open.
#[test]
fn the_processes_of_listeners_are_looked_for_only_where_one_has_the_workers_port() {
    let machine = Machine::new(&[]);
    let line = |port: u32, users: &str| format!("LISTEN 0 128 0.0.0.0:{port} 0.0.0.0:* {users}");
    let stub = |port: u32, with_processes: &str| {
        let (bare, with) = (line(port, ""), format!("case \"$*\" in '-Hltnp sport = :12345') {with_processes} ;;"));
        machine.stub("ss", &format!("{with} -Hltn) echo '{bare}' ;; *) exit 1 ;; esac"));
    };
    stub(22, "echo 'not now' >&2; exit 1");
    let facts = machine.prints(FACTS, "");
    assert!(facts.contains("ports 22 \n") && !facts.contains("listener "), "{facts}");
    let users = format!("users:((\"sshd\",pid={},fd=3))", std::process::id());
    stub(12345, &format!("echo '{}'", line(12345, &users)));
    let facts = Facts::parse(&machine.prints(FACTS, ""));
    assert!(facts.network.ports.contains(&12345), "{:?}", facts.network);
    let pids: Vec<_> = facts.network.listeners.iter().map(|listener| listener.pid).collect();
    assert_eq!(pids, [Some(std::process::id())]);
    stub(12345, "echo 'ss: Input/output error' >&2; exit 1");
    assert!(machine.fails(FACTS, "").contains("ss: Input/output error"));
}

/// bash before 5.1 puts a here-document into a file of $TMPDIR.
#[test]
fn a_full_disk_hides_nothing_of_the_state_of_a_node() {
    for script in FACTS.iter().chain(DOCTOR) {
        let text = fs::read_to_string(Path::new(SCRIPTS).join(script)).unwrap();
        assert!(!text.contains("<<"), "{script} has a here-document");
    }
}

/// Every command begins with this script, and starting a program is what costs there.
#[test]
fn the_state_of_a_node_needs_as_many_programs_for_many_files_as_for_one() {
    let programs = |files: &[String]| {
        let machine = Machine::new(&files.iter().map(|name| (name.as_str(), "text\n")).collect::<Vec<_>>());
        let log = machine.path("log").display().to_string();
        // those that are started for a process of a job are not among them: other tests have some
        for tool in ["awk", "cat", "date", "ss", "stat", "uname"] {
            machine.stub(tool, &format!("echo {tool} >>'{log}'; PATH=${{PATH#*:}}; exec {tool} \"$@\""));
        }
        let facts = machine.prints(FACTS, "");
        assert_eq!(facts.matches("file ").count(), files.len(), "{facts}");
        fs::read_to_string(log).unwrap()
    };
    let one = programs(&["ssh/authorized_keys".to_owned()]);
    let many: Vec<String> = (0..20).map(|number| format!("ssh/key{number}.pub")).collect();
    assert_eq!(programs(&many), one);
}

#[test]
fn the_latest_figures_of_this_machine_come_with_its_state() {
    let host = String::from_utf8(Command::new("uname").arg("-n").output().unwrap().stdout).unwrap();
    let entry = |host: &str, what: &str| format!("{{\"format\":1,\"time\":5,\"host\":\"{host}\",\"what\":\"{what}\",");
    let bench = |number: u32| format!("{}\"figures\":{{\"product\":{number}}}}}", entry(host.trim(), "bench"));
    let others = [entry("other", "bench"), entry(host.trim(), "check"), "\u{0}\u{1}".repeat(40_000)].join("\n");
    let all: Vec<String> = (0..12).map(bench).collect();
    let ledger = format!("{others}\n{}\n{}", all.join("\n"), entry(host.trim(), "ben"));
    let machine = Machine::new(&[("jobs/.ledger@lab", &ledger), ("ssh/x", "")]);
    let facts = Facts::parse(&machine.prints(FACTS, ""));
    assert_eq!(facts.measured, all[3..]);
    // it is no reason to refuse a job
    machine.break_tool("tail", "*", "Input/output error");
    assert_eq!(Facts::parse(&machine.prints(FACTS, "")).measured, Vec::<String>::new());
    assert!(machine.prints(FACTS, "cluster=lab2").contains("clock "));
}

#[test]
fn jobs_with_files_outside_the_mounts_are_known() {
    let list = "7 5 \"/root/a\"\n";
    let machine = Machine::new(&[
        ("jobs/j8/outside", list),
        ("jobs/j7/outside", ""),
        ("jobs/j6/outside/x", ""),
        ("jobs/j5/x", ""),
    ]);
    symlink(machine.path("jobs/j8/outside"), machine.path("jobs/j5/outside")).unwrap();
    assert_eq!(
        machine.prints(&["job/directory.sh", "job/outside.sh"], ""),
        "outside j8\n",
        "a link counts for nothing"
    );
    assert_eq!(Facts::parse(&machine.prints(FACTS, "")).jobs.outside, ["j8".to_owned()].into());
}

#[test]
fn jobs_are_listed_or_it_fails() {
    let machine = Machine::new(&[
        ("jobs/j1/job.json", "{\"id\":\"j1\"}\n"),
        ("jobs/j1/states", "1.0 0 s \n1.5 1 s \n2.0 0 x 0\n"),
        ("jobs/j1/idle.1", "1795262584 sleeping in nanosleep\n"),
        ("jobs/j1/place.1", "{\"rank\": 1}\n"),
        ("jobs/j2/job.json", "{}\n"),
        ("jobs/j2/states", ""),
        ("jobs/j2/nodes/c1/states", "1.0 4 s \n"),
        ("jobs/j2/nodes/c1/idle.4", "1795262584 sleeping\n"),
        ("jobs/j2/nodes/c1/place.4", "{}\n"),
        ("jobs/j2/nodes/c1/log", "x\n"),
        ("jobs/j2/log", "x\n"),
        ("jobs/j3/job.json", ""),
        ("jobs/j3/env.json", "{}"),
        ("jobs/j3/result.json", "{\n}\n"),
    ]);
    let list = &["job/directory.sh", "job/lend.sh", "job/list.sh"];
    let listed = |text: &str| {
        assert!(hvdctl::record::list::clock(text).is_some(), "{text}");
        let mut lines: Vec<String> = text.lines().skip(1).map(str::to_owned).collect();
        lines.sort();
        lines
    };
    let broken = ["./j3/env.json:", "./j3/job.json:", "./j3/result.json:{", "./j3/result.json:}"];
    let idle = "./j1/idle.1:1795262584 sleeping in nanosleep";
    // of a node that shares the directory
    let shared = ["./j2/nodes/c1/idle.4:1795262584 sleeping", "./j2/nodes/c1/place.4:{}"];
    let first = [
        idle,
        "./j1/job.json:{\"id\":\"j1\"}",
        "./j1/place.1:{\"rank\": 1}",
        "./j1/states:1.0 0 s ",
        "./j1/states:1.5 1 s ",
        "./j2/job.json:{}",
    ];
    let all = [&first[..], &shared, &["./j2/states:1.0 4 s "], &broken].concat();
    assert_eq!(listed(&machine.prints(list, "")), all);
    for (tool, arguments) in [("grep", "*job.json*"), ("grep", "-aH?^*"), ("find", "*")] {
        machine.break_tool(tool, arguments, "Input/output error");
        assert_eq!(machine.fails(list, "").lines().next(), Some(&*format!("{tool}: Input/output error")));
        machine.repair();
    }
    machine.break_tool("grep", "-aH?^*", "./j2/states: No such file or directory");
    assert_eq!(
        listed(&machine.prints(list, "")),
        [&[all[0], all[1], all[2], all[5]], &shared[..], &broken].concat(),
        "pruned meanwhile"
    );
    machine.repair();
    fs::remove_dir_all(machine.path("jobs")).unwrap();
    assert_eq!(machine.prints(list, ""), "");
}

#[test]
fn the_files_of_a_job_are_whole() {
    let machine = Machine::new(&[("jobs/j1/launch.json", "{}"), ("origin", "desk:/p\n")]);
    let variables = format!("id=j1 names='env.json launch.json' origin={}", machine.path("origin").display());
    let files = &["job/directory.sh", "job/files.sh"];
    let printed = machine.prints(files, &variables);
    assert_eq!(printed, "launch.json e30=\norigin ZGVzazovcAo=\n");
    machine.stub("base64", "echo 'base64: read error: Input/output error' >&2; exit 1");
    assert!(machine.fails(files, &variables).contains("Input/output error"));
    machine.repair();
    // removed before it is opened
    let remove = format!("rm -f {0}; exec /usr/bin/stat \"$@\"", machine.path("jobs/j1/launch.json").display());
    machine.stub("stat", &remove);
    assert_eq!(machine.prints(files, &variables), "origin ZGVzazovcAo=\n");
}

#[test]
fn an_environment_that_stays_is_a_failure() {
    let machine = Machine::new(&[("jobs/run-7/env.json/x", "")]);
    let end = &["node/marked.sh", "node/killed.sh", "job/directory.sh", "job/lend.sh", "job/end.sh"];
    let mut rank = Command::new("sleep").arg("600").env("HVDCTL_JOB", "run-7").spawn().unwrap();
    let message = machine.fails(end, "id=run-7 grace=0");
    assert!(message.contains("env.json"), "{message}");
    assert!(!rank.wait().unwrap().success());
}

#[test]
fn a_process_of_another_user_is_of_no_job() {
    use std::os::unix::process::CommandExt;
    if !rustix::process::geteuid().is_root() {
        return;
    }
    let machine = Machine::new(&[("jobs/run-8/env.json", "{}"), ("jobs/run-8/job.json", "{\"cluster\":\"lab\"}\n")]);
    let start = |uid| {
        let mut process = Command::new("sleep");
        process.arg("600").env("HVDCTL_JOB", "run-8").env("HVDCTL_PROGRAM", "1").uid(uid).current_dir("/");
        process.spawn().unwrap()
    };
    let (mut own, mut other) = (start(0), start(65_534));
    let facts = Facts::parse(&machine.prints(FACTS, ""));
    let ranks: Vec<u32> = facts.jobs.ranks.iter().filter(|rank| rank.job == "run-8").map(|rank| rank.pid).collect();
    assert_eq!(ranks, [own.id()]);
    let end = machine.prints(
        &["node/marked.sh", "node/killed.sh", "job/directory.sh", "job/lend.sh", "job/end.sh"],
        "id=run-8 grace=0",
    );
    assert_eq!(end, "", "nothing is left of the job");
    assert!(!own.wait().unwrap().success());
    assert_eq!(other.try_wait().unwrap(), None);
    other.kill().unwrap();
    other.wait().unwrap();
    machine.break_tool("grep", "*HVDCTL_JOB*", "Input/output error");
    assert!(machine.fails(FACTS, "").contains("cannot search the processes: grep: Input/output error"));
}

#[test]
fn doctor_reads_the_hard_limits_of_a_worker() {
    let machine = Machine::new(&[]);
    let limit = rustix::process::getrlimit(rustix::process::Resource::Nofile).maximum;
    let printed = machine.prints(DOCTOR, "ulimit -S -n 64; worker_pid=$$ docker_root= addresses= names=");
    let expected = format!("nofile {}", limit.map_or("unlimited".to_owned(), |limit| limit.to_string()));
    assert!(printed.lines().any(|line| line == expected), "no {expected} in {printed}");
}

#[test]
fn the_files_that_fit_are_counted_where_they_are_limited() {
    let machine = Machine::new(&[("jobs/x", "")]);
    // in the order of the directories: ssh, jobs, projects, data
    machine.stub(
        "stat",
        "case \"$*\" in *'%c %d %T'*) printf '9 1024 2000 15%s tmpfs\\n' 1 2 3; echo 9 1024 0 0 btrfs ;;
            *'%c %d'*) echo 2000 150 ;; *) exec /usr/bin/stat \"$@\" ;; esac",
    );
    let lines =
        |text: &str| text.lines().filter(|line| line.starts_with("inodes ")).map(str::to_owned).collect::<Vec<_>>();
    let found = lines(&machine.prints(FACTS, ""));
    assert!(found.len() == 2 && found[0].starts_with("inodes jobs 152 /"), "{found:?}");
    assert!(found[1].starts_with("inodes projects 153 /"), "{found:?}");
    let root = machine.dir.path().display().to_string();
    let variables = format!("worker_pid= docker_root={root} addresses= names=");
    assert_eq!(lines(&machine.prints(DOCTOR, &variables)), [format!("inodes images 150 {root}")]);
    machine.break_tool("stat", "-f*", "Input/output error");
    let printed = machine.prints(DOCTOR, &variables);
    assert!(printed.contains("unchecked disk stat: Input/output error\n"), "{printed}");
}

#[test]
fn what_doctor_cannot_check_is_reported() {
    let machine = Machine::new(&[("jobs/x", "")]);
    let examine = |machine: &Machine| {
        let variables = format!("worker_pid= docker_root={} addresses= names=", machine.dir.path().display());
        let text = machine.prints(DOCTOR, &variables);
        let is_wanted =
            |line: &&str| ["unchecked", "gpu-user", "driver", "disk"].iter().any(|key| line.starts_with(key));
        text.lines().filter(is_wanted).map(str::to_owned).collect::<Vec<_>>()
    };
    machine.stub("nvidia-smi", "case $1 in *driver*) echo 550.54 ;; *) echo \"$PPID, 7 MiB, GPU-1\" ;; esac");
    let found = examine(&machine);
    assert!(found[0].starts_with("disk images ") && found[1] == "driver 550.54", "{found:?}");
    machine
        .stub("nvidia-smi", "echo 'NVIDIA-SMI has failed because it could not communicate with the driver.'; exit 9");
    machine.break_tool("df", "*", "Input/output error");
    let found = examine(&machine);
    let driver = "unchecked gpu-users NVIDIA-SMI has failed because it could not communicate with the driver.";
    assert_eq!(found, ["unchecked disk df: Input/output error", driver]);
    machine.stub("nvidia-smi", "exit 1");
    assert_eq!(examine(&machine)[1], "unchecked gpu-users exit code 1");
    machine.stub("timeout", "exit 124");
    assert_eq!(examine(&machine)[1], "unchecked gpu-users no answer within 20 s");
}

#[test]
fn a_lease_that_cannot_be_read_is_not_given_back() {
    let machine = Machine::new(&[("run/hvdctl/lab.lease", "id 1\n")]);
    let variables = format!("run={} private= expires=30", machine.path("run").display());
    let read = &["lease/common.sh", "lease/read.sh"];
    assert!(machine.prints(read, &variables).starts_with("id 1\nrenewed "));
    for tool in ["cat", "stat"] {
        machine.break_tool(tool, "*lab.lease", "Input/output error");
        assert_eq!(machine.fails(read, &variables), format!("{tool}: Input/output error\n"));
        machine.repair();
    }
    machine.stub("cat", "rm -f \"$@\"; exit 1");
    assert_eq!(machine.prints(read, &variables), "");
}

#[test]
fn bandwidths_are_kept_whole_or_not_at_all() {
    let machine = Machine::new(&[]);
    let read = || machine.prints(&["bench/past_read.sh"], "most=10");
    let scripts = ["node/close.sh", "node/permissions.sh", "bench/past_write.sh"];
    let write = |past: &str| machine.run(&scripts, &format!("past='{past}'"));
    assert_eq!(read(), "", "no directory");
    assert!(write("{\"1\":\"it is\"}").status.success());
    assert_eq!(read(), "{\"1\":\"it i", "no more than asked for");
    let names = || -> Vec<String> {
        let entries = fs::read_dir(machine.path("jobs")).unwrap();
        entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect()
    };
    assert_eq!(names(), [".bench@lab"]);
    let mode = |name: &str| fs::metadata(machine.path(name)).unwrap().permissions().mode() & 0o777;
    assert_eq!((mode("jobs"), mode("jobs/.bench@lab")), (0o700, 0o600));

    // a full disk leaves the old ones, and no part of the new
    machine.break_tool("mv", "*", "No space left on device");
    assert!(!write("new").status.success());
    machine.repair();
    assert_eq!((read().as_str(), names().len()), ("{\"1\":\"it i", 1));
    machine.break_tool("head", "*", "Input/output error");
    assert_eq!(machine.fails(&["bench/past_read.sh"], "most=10"), "head: Input/output error\n");
    machine.repair();
    fs::remove_file(machine.path("jobs/.bench@lab")).unwrap();
    fs::create_dir(machine.path("jobs/.bench@lab")).unwrap();
    assert!(machine.fails(&["bench/past_read.sh"], "most=10").contains("Is a directory"));
    assert!(!write("new").status.success());
    assert_eq!(names(), [".bench@lab"]);
    fs::remove_dir(machine.path("jobs/.bench@lab")).unwrap();
    std::os::unix::fs::symlink("/etc/passwd", machine.path("jobs/.bench@lab")).unwrap();
    assert!(machine.fails(&["bench/past_read.sh"], "most=10").contains("a link"));
}

#[test]
fn nodes_have_joined_a_job_if_its_supervisor_has_taken_them() {
    let machine = Machine::new(&[("jobs/j1/job.json", "old")]);
    let (join, variables) = (&["job/directory.sh", "job/join.sh"], "id=j1 joining='[]' record=new");
    let record = || fs::read_to_string(machine.path("jobs/j1/job.json")).unwrap();
    let taken = "mv joining.json joining.json.taken";
    machine.stub("sleep", taken);
    machine.break_tool("mv", "*job.json.new*", "Input/output error");
    machine.prints(join, variables);
    assert_eq!(record(), "old");
    machine.repair();
    machine.stub("sleep", taken);
    machine.prints(join, variables);
    assert_eq!(record(), "new");
    // no supervisor takes them: they have not joined, whether or not they can be withdrawn
    for withdrawn in [true, false] {
        machine.stub("sleep", "");
        if !withdrawn {
            machine.break_tool("rm", "joining.json", "Input/output error");
        }
        assert!(machine.fails(join, variables).ends_with("the job supervisor did not accept the nodes within 20 s\n"));
        machine.repair();
    }
}

#[test]
fn the_public_half_of_a_key_needs_ssh_keygen() {
    let machine = Machine::new(&[("ssh/id_rsa", "")]);
    let public = &["keys/public_key.sh"];
    machine.stub("ssh-keygen", "echo \"$*\"");
    let path = machine.path("ssh/id_rsa").display().to_string();
    assert_eq!(machine.prints(public, "key_name=id_rsa"), format!("-y -f {path}\n"));
    assert_eq!(machine.fails(public, "key_name=id_rsa PATH=/nonexistent"), "ssh-keygen: not found (openssh-client)\n");
}

/// The file of the Docker context `lab`: its directory is the SHA-256 of its name.
const CONTEXT: &str =
    "home/.docker/contexts/meta/a51146d38077ff992eba84cf1d5e9b249073503eb74868699016153b031a38f7/meta.json";

#[test]
fn the_engine_that_a_login_names_is_found_as_docker_finds_it() {
    let machine = Machine::new(&[("home/.docker/config.json", ""), (CONTEXT, "")]);
    let socket = machine.path("engine.sock");
    let _listener = std::os::unix::net::UnixListener::bind(&socket).unwrap();
    machine.stub("docker", "exit 1");
    let write = |name: &str, text: &str| fs::write(machine.path(name), text).unwrap();
    let place = |name: &str| machine.path(name).display().to_string();
    let home = format!("unset DOCKER_HOST DOCKER_CONTEXT DOCKER_CONFIG; HOME='{}'", place("home"));
    let found = |variables: &str| {
        let text = machine.prints(&["access/login.sh"], &format!("{home}; {variables}"));
        assert!(!text.contains("secret"), "{text}");
        let is_named = |line: &&str| line.starts_with("named") || line.starts_with("context");
        text.lines().filter(is_named).map(str::to_owned).collect::<Vec<_>>()
    };
    let config = place("home/.docker/config.json");
    let of_context = |by: &str, host: &str| {
        vec![
            "context lab".to_owned(),
            format!("context-file {}", place(CONTEXT)),
            format!("named-by {by}"),
            format!("named-host {host}"),
        ]
    };
    for none in ["", "{}", "not JSON", "{\"currentContext\": \"default\"}", "{\n \"currentContext\":\"\"\n}"] {
        write("home/.docker/config.json", none);
        assert_eq!(found(""), [""; 0], "{none}");
    }
    let own = format!("unix://{}", socket.display());
    let context = format!(
        "{{\"Name\":\"lab\",\"Metadata\":{{\"Host\":\"x\"}},\"Endpoints\":{{\"docker\":{{\"Host\":\"{own}\",\"SkipTLSVerify\":false}},\
         \"kubernetes\":{{\"Host\":\"https://k\"}}}}}}"
    );
    let spread =
        context.replace(',', ",\n  ").replace(':', " : ").replace("unix : ", "unix:").replace("https : ", "https:");
    let one_line = "{\"auths\":{\"r\":{\"auth\":\"secret\"}},\"currentContext\":\"lab\"}";
    for config_text in [one_line, "{\n\t\"currentContext\" :\n\t\"lab\",\n\t\"credsStore\": \"secret\"\n}\n"] {
        write("home/.docker/config.json", config_text);
        for text in [&context, &spread] {
            write(CONTEXT, text);
            let open = [of_context(&config, &own), vec!["named-socket open".to_owned()]].concat();
            assert_eq!(found(""), open, "{config_text} {text}");
        }
    }
    // the variables go before the file, and DOCKER_HOST before a context
    assert_eq!(found("DOCKER_CONTEXT=default"), [""; 0]);
    assert_eq!(found("DOCKER_HOST=ssh://gpu9 DOCKER_CONTEXT=lab"), ["named-by DOCKER_HOST", "named-host ssh://gpu9"]);
    assert_eq!(found(&format!("DOCKER_CONFIG='{}'", place("elsewhere"))), [""; 0]);
    write("home/.docker/config.json", "{}");
    assert_eq!(
        found("DOCKER_CONTEXT=lab")[2..],
        ["named-by DOCKER_CONTEXT".to_owned(), format!("named-host {own}"), "named-socket open".to_owned()]
    );
    // a context that is gone, or whose file says nothing
    write("home/.docker/config.json", one_line);
    for text in ["", "{", "{\"Endpoints\":{\"kubernetes\":{\"Host\":\"https://k\"}}}"] {
        write(CONTEXT, text);
        assert_eq!(found(""), of_context(&config, ""), "{text}");
    }
    fs::remove_file(machine.path(CONTEXT)).unwrap();
    assert_eq!(found(""), of_context(&config, ""));
}

#[test]
fn a_docker_command_of_podman_is_known() {
    let machine = Machine::new(&[]);
    let found = || {
        let text = machine.prints(&["access/login.sh"], "unset DOCKER_HOST DOCKER_CONTEXT");
        text.lines().filter(|line| line.starts_with("docker-")).map(str::to_owned).collect::<Vec<_>>()
    };
    machine.stub("docker", "exit 1");
    assert_eq!(found(), [""; 0]);
    machine.stub("docker", "echo Emulate Docker CLI using podman. >&2\nexec /usr/bin/podman \"$@\"");
    assert_eq!(found(), ["docker-command podman"]);
    machine.stub("podman", "exit 1");
    fs::remove_file(machine.path("tools/docker")).unwrap();
    std::os::unix::fs::symlink("podman", machine.path("tools/docker")).unwrap();
    assert_eq!(found(), ["docker-command podman"]);
}

#[test]
fn an_engine_whose_command_is_missing_is_found_by_its_unit() {
    let machine = Machine::new(&[]);
    // this machine may have both
    let neither = "command() { case $2 in docker | dockerd) return 1 ;; esac; type \"$2\" >/dev/null 2>&1; }";
    let found = || machine.prints(&["access/login.sh"], neither).contains("docker-engine yes");
    assert!(!found());
    let units = ["lib/systemd", "etc/systemd"].map(|directory| machine.path(directory));
    units.iter().for_each(|directory| fs::create_dir_all(directory).unwrap());
    fs::write(units[0].join("docker.service"), "[Service]\n").unwrap();
    assert!(found(), "stopped, and outside of PATH");
    std::os::unix::fs::symlink("/dev/null", units[1].join("docker.service")).unwrap();
    assert!(!found(), "masked");
    let socket = std::os::unix::net::UnixListener::bind(machine.path("docker.sock")).unwrap();
    assert!(found(), "without a unit");
    drop(socket);
    fs::remove_file(machine.path("docker.sock")).unwrap();
    // podman-docker's
    fs::create_dir_all(machine.path("run/podman")).unwrap();
    let _podman = std::os::unix::net::UnixListener::bind(machine.path("run/podman/podman.sock")).unwrap();
    std::os::unix::fs::symlink(machine.path("run/podman/podman.sock"), machine.path("docker.sock")).unwrap();
    assert!(!found());
    fs::write(units[1].join("snap.docker.dockerd.service"), "[Service]\n").unwrap();
    assert!(found());
}

#[test]
fn the_services_of_podman_are_found() {
    let machine = Machine::new(&[]);
    let runtime = machine.path("runtime");
    let found = || {
        let variables = format!("unset DOCKER_HOST DOCKER_CONTEXT; XDG_RUNTIME_DIR='{}'", runtime.display());
        let text = machine.prints(&["access/login.sh"], &variables);
        text.lines().filter(|line| line.starts_with("podman")).map(str::to_owned).collect::<Vec<_>>()
    };
    machine.stub("podman", "exit 1");
    assert_eq!(found(), ["podman-command yes"]);
    let listen = |directory: &Path| {
        fs::create_dir_all(directory).unwrap();
        std::os::unix::net::UnixListener::bind(directory.join("podman.sock")).unwrap()
    };
    let _root = listen(&machine.path("run/podman"));
    let _own = listen(&runtime.join("podman"));
    machine.stub("id", "echo 0");
    assert_eq!(found(), ["podman-command yes", "podman open"], "root has no rootless one");
    // another login does not use root's, whatever its mode, and the socket in its directory only if both are its own
    machine.stub("id", "echo 1000");
    for own in ["", "\"$2\"", "\"$2\" \"$3\""] {
        machine.stub("find", &format!("printf '%s\\n' {own}"));
        assert_eq!(found(), ["podman-command yes", "podman closed"], "{own}");
    }
    machine.stub("find", "[ \"$4 $5 $6\" = '-prune -user 1000' ] && printf '%s\\n' \"$1\" \"$2\" \"$3\"");
    let own = format!("podman-rootless unix://{}/podman/podman.sock", runtime.display());
    let lines = found();
    assert_eq!(lines[..3], ["podman-command yes", "podman closed", &own]);
    assert!(lines[3..].iter().all(|line| line.starts_with("podman-lacks ") || line.starts_with("podman-limit ")));
}

#[test]
fn ids_and_limits_of_the_own_podman_of_a_login_are_told() {
    let machine = Machine::new(&[("etc/subuid", ""), ("etc/subgid", ""), ("etc/containers/storage.conf", "")]);
    let runtime = machine.path("runtime");
    fs::create_dir_all(runtime.join("podman")).unwrap();
    let socket = runtime.join("podman/podman.sock");
    let _own = std::os::unix::net::UnixListener::bind(&socket).unwrap();
    machine.stub("podman", "exit 1");
    machine.stub("id", "case $* in *n*) echo own ;; *) echo 1000 ;; esac");
    machine.stub("find", "printf '%s\\n' \"$1\" \"$2\" \"$3\"");
    machine.stub("getsubids", "exit 1");
    ["newuidmap", "newgidmap"].into_iter().for_each(|program| machine.stub(program, "exit 1"));
    machine.stub("ss", "exit 0");
    let found = || {
        let variables =
            format!("unset DOCKER_HOST DOCKER_CONTEXT; XDG_RUNTIME_DIR='{}' HOME=/nowhere", runtime.display());
        let text = machine.prints(&["access/login.sh"], &variables);
        let own = text.lines().filter(|line| line.starts_with("podman-l")).map(str::to_owned);
        own.collect::<Vec<_>>()
    };
    let write = |file: &str, text: &str| fs::write(machine.path(file), text).unwrap();
    assert_eq!(found(), ["podman-lacks subuid", "podman-lacks subgid"]);
    write("etc/subuid", "ana:100000:65536\nown2:1:1\nown:100000:0\n");
    write("etc/subgid", "own:100000:65536\n");
    assert_eq!(found(), ["podman-lacks subuid"], "a range of others, and an empty one");
    write("etc/subuid", "1000:100000:65536\n");
    assert_eq!(found(), [""; 0], "by number; what listens is not known");
    write("etc/subuid", "");
    machine.stub("getsubids", "echo \"0: $* 100000 65536\"");
    assert_eq!(found(), [""; 0], "of a directory service");
    machine.stub("getsubids", "exit 1");
    write("etc/containers/storage.conf", "[storage.options.overlay]\n  ignore_chown_errors = \"true\"\n");
    assert_eq!(found(), [""; 0], "images are unpacked without the ids");
    // the limits of what listens: of Podman's service, else of the manager of services
    let listens = |users: &str| {
        let line = format!("u_str LISTEN 0 4096 {} 7 * 0 users:({users})", socket.display());
        machine.stub("ss", &format!("echo '{line}'"));
        found()
    };
    let pid = std::process::id();
    for users in [
        format!("(\"systemd\",pid={pid},fd=9)"),
        format!("(\"podman\",pid={pid},fd=9),(\"systemd\",pid=999999999,fd=9)"),
    ] {
        let limits = listens(&users);
        let memlock = limits.iter().find(|line| line.ends_with(" Max locked memory"));
        let memlock = memlock.unwrap_or_else(|| panic!("{limits:?}"));
        let limit = memlock.split(' ').nth(1).unwrap();
        assert!(limit == "unlimited" || limit.parse::<u64>().is_ok(), "{memlock}");
        assert!(limits.iter().any(|line| line.ends_with(" Max open files")), "{limits:?}");
    }
    // ss may not show the manager
    machine.stub("ss", "exit 0");
    let slice = "cgroup/user.slice/user-1000.slice/user@1000.service/init.scope";
    fs::create_dir_all(machine.path(slice)).unwrap();
    write(&format!("{slice}/cgroup.procs"), &format!("{pid}\n"));
    assert!(found().iter().any(|line| line.ends_with(" Max locked memory")));
}

#[test]
fn what_containers_without_root_cannot_open_is_told() {
    let machine = Machine::new(&[("jobs/x", ""), ("projects/x", ""), ("data/x", ""), ("open/x", ""), ("group/x", "")]);
    if !rustix::process::geteuid().is_root() {
        // files of another user are needed
        return;
    }
    let mode = |name: &str, mode: u32| fs::set_permissions(machine.path(name), Permissions::from_mode(mode)).unwrap();
    fs::create_dir(machine.path("dri")).unwrap();
    for (name, bits) in [("kfd", "600"), ("dri/card 0", "660"), ("dri/render", "666")] {
        let made = Command::new("mknod").args(["-m", bits]).arg(machine.path(name)).args(["c", "1", "3"]).status();
        assert!(made.unwrap().success());
    }
    mode("", 0o755);
    mode("group", 0o750);
    let lists = |devices: &str, mounts: &str| {
        let all =
            |names: &str| names.split(' ').map(|name| machine.path(name).display().to_string()).collect::<Vec<_>>();
        format!("devices='{}' mounts='{}'", all(devices).join("\n"), all(mounts).join("\n"))
    };
    let variables = lists("kfd dri missing", "group open missing");
    let found = || {
        let text = machine.prints(FACTS, &variables);
        let denied = text.lines().filter_map(|line| line.strip_prefix("denied "));
        denied
            .map(|line| line.replace(&format!("{}/", machine.path("").display()), "").replace("//", "/"))
            .collect::<Vec<_>>()
    };
    assert_eq!(found(), [""; 0], "root opens everything");
    machine
        .stub("sh", "exec setpriv --reuid 1000 --regid 1000 --clear-groups unshare -U --map-root-user /bin/sh \"$@\"");
    assert_eq!(found().len(), 3, "{:?}", found());
    for (line, (what, path)) in
        found().iter().zip([("device", "kfd"), ("device", "dri/card 0"), ("directory", "group")])
    {
        assert!(line.starts_with(what) && line.ends_with(path), "{line}");
    }
}

#[test]
fn devices_of_infiniband_count_as_adapters_where_none_can_be_listed() {
    let machine = Machine::new(&[("dev/infiniband/uverbs0", ""), ("dev/infiniband/rdma_cm", "")]);
    let found = || {
        let text = machine.prints(DOCTOR, "worker_pid= docker_root= addresses=");
        text.lines().filter(|line| line.starts_with("adapter ")).map(str::to_owned).collect::<Vec<_>>()
    };
    assert_eq!(found(), ["adapter uverbs0"]);
    let port = machine.path("class/infiniband/mlx5_0/ports/1");
    fs::create_dir_all(&port).unwrap();
    fs::write(port.join("state"), "1: DOWN\n").unwrap();
    fs::write(port.join("link_layer"), "InfiniBand\n").unwrap();
    assert_eq!(found(), [""; 0], "its port is not connected");
}

#[test]
fn the_command_of_the_engine_gets_its_socket() {
    let machine = Machine::new(&[]);
    machine.stub("podman", "echo \"$*; ${CONTAINER_HOST:-none}\"");
    machine.stub("docker", "echo \"$*; ${DOCKER_HOST:-none}\"");
    let run = |arguments: &str| {
        let variables =
            format!("unset DOCKER_HOST; CONTAINER_HOST=ssh://elsewhere; export CONTAINER_HOST; set -- {arguments}");
        machine.prints(&["access/engine.sh"], &variables)
    };
    let socket = "unix:///run/podman/podman.sock";
    let dial = run("podman unix:///s system dial-stdio");
    assert_eq!(dial, "--remote --url unix:///s system dial-stdio; none\n");
    assert_eq!(run(&format!("podman {socket} exec -i hworker true")), "exec -i hworker true; none\n");
    assert_eq!(run("docker unix:///s system dial-stdio"), "system dial-stdio; unix:///s\n");
    assert_eq!(run("docker '' exec -i hworker true"), "exec -i hworker true; none\n");
}

#[test]
fn the_reason_of_sudo_is_its_refusal() {
    let machine = Machine::new(&[]);
    let found = |printed: &str| {
        machine.stub("sudo", &format!("printf '%s\\n' {printed} >&2; exit 1"));
        machine.stub("id", "case $1 in -u) echo 1000 ;; *) echo ana ;; esac");
        let text = machine.prints(&["access/login.sh", "access/access.sh"], "");
        text.lines().find(|line| line.starts_with("sudo ")).unwrap().to_owned()
    };
    let noise = "'sudo: unable to resolve host gpu1: Name or service not known'";
    for (refusal, fact) in [
        ("'sudo: a password is required'", "sudo asks sudo: a password is required"),
        ("'sudo: interactive authentication is required'", "sudo asks sudo: interactive authentication is required"),
        ("'ana is not in the sudoers file.'", "sudo no ana is not in the sudoers file."),
        ("'broken'", "sudo no broken"),
    ] {
        assert_eq!(found(&format!("{noise} {refusal}")), fact);
        assert!(refusal == "'broken'" || found(&format!("{noise} {refusal} {noise}")) == fact, "{refusal}");
    }
}

#[test]
fn an_own_name_that_resolves_nowhere_is_reported() {
    let machine = Machine::new(&[]);
    let unresolved = || {
        let text = machine.prints(DOCTOR, "worker_pid= docker_root= addresses= names=");
        text.lines().filter(|line| line.starts_with("unresolved")).map(str::to_owned).collect::<Vec<_>>()
    };
    machine.stub("uname", "echo name-of-nothing.invalid");
    assert_eq!(unresolved(), ["unresolved name-of-nothing.invalid"]);
    machine.stub("uname", "echo localhost");
    assert_eq!(unresolved(), [""; 0]);
}

#[test]
fn an_mpirun_that_is_not_open_mpis_is_named() {
    let machine = Machine::new(&[]);
    let found = |program: &str| machine.prints(&["worker/launcher_check.sh"], &format!("set -- {program}"));
    assert_eq!(found("no-such-launcher"), "missing\n");
    assert_eq!(found("sh"), "");
    for (version, whose) in [
        ("mpirun (Open MPI) 4.1.4", ""),
        ("mpirun (IBM Spectrum MPI) 10.4", ""),
        ("prterun (PRRTE) 3.0.6", ""),
        ("HYDRA build details:\\n    Version:   4.2", "MPICH\n"),
        ("Intel(R) MPI Library for Linux* OS, Version 2021.5", "Intel MPI\n"),
        ("a wrapper", ""),
    ] {
        machine.stub("mpirun", &format!("[ \"$1\" = --version ] && printf '%b\\n' '{version}'; exit 1"));
        assert_eq!(found("mpirun"), whose, "{version}");
    }
}
