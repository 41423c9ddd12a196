//! The shell scripts of `src/scripts` that report what a node has, run on this machine with tools that fail: that a tool fails must not
//! pass for "there is nothing".

use hvdctl::node::facts::Facts;
use hvdctl::node::gpus::{Device, NvidiaSmi};
use hvdctl::node::health::report::{KernelLog, NodeHealth};
use hvdctl::node::health::{Links, Reading};
use hvdctl::record::ledger::{Event, Ledger};
use hvdctl::worker::ready::Answer;
use std::fs::{self, Permissions};
use std::io::Write as _;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

const SCRIPTS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/src/scripts");
const FACTS: &[&str] =
    &["node/machine.sh", "node/nvidia_smi.sh", "node/gpus.sh", "node/marked.sh", "node/killed.sh", "node/facts.sh"];
const HEALTH: &[&str] = &["node/nvidia_smi.sh", "node/health.sh"];
const DOCTOR: &[&str] = &["node/nvidia_smi.sh", "node/doctor.sh"];

/// Places that the scripts know, and the directories of a [`Machine`] that are there instead.
const PLACES: [(&str, &str); 3] =
    [("/usr/lib/wsl/lib", "wsl"), ("/sys/bus/pci/drivers/nvidia", "pci"), ("/proc/driver/nvidia/gpus", "driver")];

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
            "ssh_dir='{}' jobs_dir='{}' projects_dir='{}' data_dir='{}' cluster=lab port=12345\n{variables}\n",
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
        let path = format!("{}:{}", self.path("tools").display(), std::env::var("PATH").unwrap());
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
    assert_eq!(lines("pushed "), ["pushed half -", "pushed set 1f0c"]);
    assert!(Facts::parse(&facts).storage.data.is_some());
    for (tool, arguments) in [
        ("cat", "*j1/job.json"),
        ("cat", "*j1/idle.3"),
        ("cat", "*set@lab/tree"),
        ("stat", "*%i*"),
        ("awk", "*authorized_keys*"),
        ("stat", "*id_rsa*"),
        ("stat", "*%a*."),
        ("ip", "*"),
        ("ss", "-Hltn"),
        ("ss", "*sport*"),
    ] {
        machine.break_tool(tool, arguments, "Input/output error");
        let message = machine.fails(FACTS, "");
        assert!(message.contains(&format!("{tool}: Input/output error")), "{tool} {arguments}: {message}");
        machine.repair();
    }
    // a job that is removed meanwhile
    let remove = format!("rm -rf {}; exit 1", machine.path("jobs/j1").display());
    machine.stub("cat", &format!("case \"$*\" in *j1/*) {remove} ;; esac; exec /bin/cat \"$@\""));
    assert!(!machine.prints(FACTS, "").contains("open j1"));
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
fn jobs_are_listed_or_it_fails() {
    let machine = Machine::new(&[
        ("jobs/j1/job.json", "{\"id\":\"j1\"}\n"),
        ("jobs/j1/states", "1.0 0 s \n1.5 1 s \n2.0 0 x 0\n"),
        ("jobs/j1/idle.1", "1795262584 sleeping in nanosleep\n"),
        ("jobs/j2/job.json", "{}\n"),
        ("jobs/j2/states", ""),
        ("jobs/j2/log", "x\n"),
        ("jobs/j3/job.json", ""),
        ("jobs/j3/env.json", "{}"),
        ("jobs/j3/result.json", "{\n}\n"),
    ]);
    let list = &["job/list.sh"];
    let listed = |text: &str| {
        let mut lines: Vec<String> = text.lines().map(str::to_owned).collect();
        lines.sort();
        lines
    };
    let broken = ["./j3/env.json:", "./j3/job.json:", "./j3/result.json:{", "./j3/result.json:}"];
    let idle = "./j1/idle.1:1795262584 sleeping in nanosleep";
    let all = [idle, "./j1/job.json:{\"id\":\"j1\"}", "./j1/states:2", "./j2/job.json:{}", "./j2/states:0"];
    let all = [&all[..], &broken].concat();
    assert_eq!(listed(&machine.prints(list, "")), all);
    for (tool, arguments) in [("grep", "*job.json*"), ("grep", "-aHc*"), ("find", "*")] {
        machine.break_tool(tool, arguments, "Input/output error");
        assert_eq!(machine.fails(list, "").lines().next(), Some(&*format!("{tool}: Input/output error")));
        machine.repair();
    }
    machine.break_tool("grep", "-aHc*", "./j2/states: No such file or directory");
    assert_eq!(
        listed(&machine.prints(list, "")),
        [&[all[0], all[1], all[3]], &broken[..]].concat(),
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
    let files = &["job/files.sh"];
    let printed = machine.prints(files, &variables);
    assert_eq!(printed, "launch.json e30=\norigin ZGVzazovcAo=\n");
    for name in ["*launch.json", "*origin"] {
        machine.break_tool("base64", name, "read error: Input/output error");
        assert!(machine.fails(files, &variables).contains("Input/output error"), "{name}");
        machine.repair();
    }
    let remove = format!("rm -f {}; exit 1", machine.path("jobs/j1/launch.json").display());
    machine.stub("base64", &format!("case \"$*\" in *launch.json) {remove} ;; esac; echo x"));
    assert_eq!(machine.prints(files, &variables), "origin x\n");
}

#[test]
fn an_environment_that_stays_is_a_failure() {
    let machine = Machine::new(&[("jobs/run-7/env.json/x", "")]);
    let end = &["node/marked.sh", "node/killed.sh", "job/end.sh"];
    let mut rank = Command::new("sleep").arg("600").env("HVDCTL_JOB", "run-7").spawn().unwrap();
    let message = machine.fails(end, "id=run-7 grace=0");
    assert!(message.contains("env.json"), "{message}");
    assert!(!rank.wait().unwrap().success());
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
fn no_nvidia_smi_is_another_fact_than_one_that_fails() {
    let machine = Machine::new(&[("jobs/x", "")]);
    let node = |machine: &Machine| {
        let facts = Facts::parse(&machine.prints(FACTS, ""));
        assert!(!facts.hostname.is_empty() && facts.clock.is_some(), "{facts:?}");
        (
            facts.nvidia_smi,
            Device::of(&facts.gpus).iter().map(|device| device.uuid().to_owned()).collect::<Vec<_>>().join(" "),
        )
    };
    let worker = |machine: &Machine| {
        Answer::parse(&machine.prints(&["node/nvidia_smi.sh", "node/gpus.sh", "worker/ready.sh"], "")).nvidia_smi
    };
    // this machine may have one of its own
    if !["/usr/bin", "/bin", "/usr/local/bin"].iter().any(|place| Path::new(place).join("nvidia-smi").exists()) {
        assert_eq!((node(&machine), worker(&machine)), ((NvidiaSmi::Missing, String::new()), NvidiaSmi::Missing));
    }
    let two = "GPU 0: NVIDIA H200 (UUID: GPU-aa)\nGPU 1: NVIDIA H200 (UUID: GPU-bb)";
    let lost = "Unable to determine the device handle for GPU0000:41:00.0: Unknown Error";
    let mismatch = "Failed to initialize NVML: Driver/library version mismatch";
    let no_driver = "NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver.";
    let failed = |message: &str| NvidiaSmi::Failed(message.to_owned());
    let old = "echo 'Field \"mig.mode.current\" is not a valid field to query.'; exit 2";
    for (list, mode, code, expected) in [
        (two, "printf '0, [N/A]\\n1, Disabled\\n'", 0, (NvidiaSmi::Listed, "GPU-aa GPU-bb")),
        (two, old, 0, (NvidiaSmi::Listed, "GPU-aa GPU-bb")),
        (two, "printf '0, Disabled\\n1, Enabled\\n'", 0, (NvidiaSmi::Listed, "GPU-aa")),
        (&format!("{mismatch}\nNVML library version: 550.144"), "exit 18", 18, (failed(mismatch), "")),
        (&format!("{no_driver}\n"), "exit 9", 9, (failed(no_driver), "")),
        ("No devices were found", "exit 6", 6, (failed("No devices were found"), "")),
        (&two.replace("\n", &format!("\n{lost}\n")), "echo '0, Disabled'", 0, (failed(lost), "GPU-aa GPU-bb")),
        (
            "GPU 0: A100 (UUID: GPU-aa)\n  MIG 3g.20gb     Device  0: (UUID: MIG-c6d4)",
            "echo '0, Enabled'",
            0,
            (NvidiaSmi::Listed, "MIG-c6d4"),
        ),
    ] {
        // the message may be on either stream
        for stream in ["1", "2"] {
            let list = format!("cat >&{stream} <<'END'\n{list}\nEND\nexit {code}");
            machine.stub("nvidia-smi", &format!("case $1 in --query-gpu=*)\n{mode}\nexit\n;;\nesac\n{list}"));
            let (state, uuids) = node(&machine);
            assert_eq!((&state, uuids.as_str()), (&expected.0, expected.1), "{list}");
            assert_eq!(worker(&machine), state, "{list}");
        }
    }
    // the memory of the GPUs, in the query that asks for their MIG mode
    let query = "--query-gpu=index,mig.mode.current,memory.total";
    let answers =
        format!("case $1 in {query}) echo '0, [N/A], 143771' ;; *) echo 'GPU 0: NVIDIA H200 (UUID: GPU-aa)' ;; esac");
    machine.stub("nvidia-smi", &answers);
    assert_eq!(Facts::parse(&machine.prints(FACTS, "")).gpus[0].memory_mib, Reading::Known(143_771));
    // one that is ended, and one that cannot even be killed
    let survives = "case $1 in 20) sleep 3 ;; *) shift; exec /usr/bin/timeout 0.2 \"$@\" ;; esac";
    for hangs in ["case $1 in 20) exit 124 ;; *) shift; exec \"$@\" ;; esac", survives] {
        machine.stub("timeout", hangs);
        assert_eq!(node(&machine), (failed("no answer within 20 s"), String::new()), "{hangs}");
    }
}

#[test]
fn the_health_of_gpus_is_read_or_why_it_is_not_known() {
    let machine = Machine::new(&[("jobs/x", "")]);
    let report =
        |machine: &Machine, diagnose: &str| NodeHealth::parse(&machine.prints(HEALTH, &format!("diagnose={diagnose}")));
    let smi = |machine: &Machine, query: &str| {
        machine.stub(
            "nvidia-smi",
            &format!(
                "case $1 in nvlink) printf 'GPU 0: x (UUID: GPU-0)\\n\\t Link 0: 26.5 GB/s\\n' ;; *) {query} ;; esac"
            ),
        );
    };
    let document = format!("{}/tests/fixtures/nvidia-smi/h100-580-busy.xml", env!("CARGO_MANIFEST_DIR"));
    smi(&machine, &format!("sed 's/GPU-0[^<]*/GPU-0/' {document}"));
    let xid = "NVRM: Xid (PCI:0000:41:00): 79, GPU has fallen off the bus.";
    let log = format!(
        "printf '[0.0] Linux version 6\\n[1.0] {xid}\\n[2.0] {xid}\\n[3.0] NVRM: Xid (PCI:0000:42:00): 31, x\\n'"
    );
    machine.stub("dmesg", &log);
    machine.stub("dcgmi", "echo '| Inforom | Pass |'");
    let health = report(&machine, "");
    let found = health.machine().unwrap();
    assert_eq!((found.driver.as_str(), found.gpus.len(), health.complaint.as_ref()), ("580.159.04", 1, None));
    assert_eq!(found.gpus[0].links, Some(Links { active: 1, all: 1 }));
    assert_eq!((&health.log, health.diagnosis.is_none()), (&KernelLog::Whole, true));
    let mut xids: Vec<_> = health.xids.iter().map(|xid| (xid.number, xid.count)).collect();
    xids.sort_unstable();
    assert_eq!(xids, [(31, 1), (79, 2)]);
    assert_eq!(report(&machine, "yes").diagnosis.unwrap().unwrap().passed, 1);

    // a log that does not reach back to the boot, or cannot be read
    machine.stub("journalctl", "exit 1");
    machine.stub("dmesg", &format!("echo '[9.0] {xid}'"));
    let health = report(&machine, "");
    assert_eq!((&health.log, health.xids.len()), (&KernelLog::Partial, 1));
    machine.stub("journalctl", &format!("{log}; exit 124"));
    assert_eq!(report(&machine, "").log, KernelLog::Partial, "the journal was cut off");
    machine.stub("journalctl", &log);
    let health = report(&machine, "");
    assert_eq!((&health.log, health.xids.len()), (&KernelLog::Whole, 2), "the journal has all");
    machine.stub("journalctl", "exit 1");
    machine.stub("dmesg", "echo 'dmesg: read kernel buffer failed: Operation not permitted' >&2; exit 1");
    let reason = "dmesg: read kernel buffer failed: Operation not permitted";
    assert_eq!(report(&machine, "").log, KernelLog::Unread(reason.into()));

    let error = |machine: &Machine| report(machine, "").machine.unwrap().unwrap_err();
    let lost = "Unable to determine the device handle for GPU0000:41:00.0: Unknown Error";
    smi(&machine, &format!("echo '{lost}' >&2; exit 15"));
    assert_eq!(error(&machine), lost);
    smi(&machine, "exit 3");
    assert_eq!(error(&machine), "exit code 3");
    smi(&machine, &format!("head -n 90 {document}"));
    assert_eq!(error(&machine), "its XML cannot be read: it is cut off");
    // one that is ended, and one that cannot even be killed
    let survives = "case $1 in 20) sleep 3 ;; *) shift; exec /usr/bin/timeout 0.2 \"$@\" ;; esac";
    for hangs in ["case $1 in 20) exit 124 ;; *) shift; exec \"$@\" ;; esac", survives] {
        machine.stub("timeout", hangs);
        assert_eq!(error(&machine), "no answer within 20 s", "{hangs}");
    }
}

#[test]
fn an_nvidia_smi_that_cannot_be_killed_delays_no_script() {
    let machine = Machine::new(&[("jobs/x", "")]);
    let (released, waited) = (machine.path("released"), machine.path("waited"));
    // it goes on for longer than the scripts may take, or until the test is over
    machine.stub(
        "nvidia-smi",
        &format!(
            "trap '' TERM; i=0; while [ ! -e '{}' ]; do sleep 0.1; i=$((i + 1)); [ $i -lt 200 ] || {{ : >'{}'; exit; }}; done",
            released.display(),
            waited.display()
        ),
    );
    // so that the test is short
    machine.stub(
        "timeout",
        "limit=$1; shift; case $limit in ??) limit=0.$limit ;; esac; exec /usr/bin/timeout $limit \"$@\"",
    );
    let facts = Facts::parse(&machine.prints(FACTS, ""));
    assert_eq!(facts.nvidia_smi, NvidiaSmi::Failed("no answer within 20 s".into()));
    let health = NodeHealth::parse(&machine.prints(HEALTH, "diagnose="));
    assert_eq!(health.machine, Some(Err("no answer within 20 s".into())));
    let details = machine.prints(DOCTOR, "worker_pid= docker_root=/ addresses= names=");
    assert!(details.contains("\nunchecked gpu-users no answer within 20 s\n"), "{details}");
    assert!(details.contains("\ndisk images "), "{details}");
    assert!(!waited.exists(), "a script has waited for it");
    fs::write(released, "").unwrap();
}

#[test]
fn nvidia_smi_is_found_where_wsl_has_it() {
    let machine = Machine::new(&[("jobs/x", "")]);
    machine.stub(
        "nvidia-smi",
        "case $1 in --query-gpu=driver*) echo 550.54 ;; -L) echo 'GPU 0: x (UUID: GPU-aa)' ;; esac",
    );
    fs::rename(machine.path("tools"), machine.path("wsl")).unwrap();
    assert_eq!(Facts::parse(&machine.prints(FACTS, "")).nvidia_smi, NvidiaSmi::Listed);
    assert!(NodeHealth::parse(&machine.prints(HEALTH, "diagnose=")).machine.is_some());
    assert!(machine.prints(DOCTOR, "worker_pid= docker_root= addresses= names=").contains("\ndriver 550.54\n"));
}

#[test]
fn a_container_does_not_own_all_gpus_of_its_machine() {
    let (own, other) = ("0000:41:00.0", "0000:c1:00.0");
    let buses = |directory: &str| [own, other].map(|bus| (format!("{directory}/{bus}/x"), ""));
    let files: Vec<_> = buses("pci").into_iter().chain(buses("driver")).collect();
    let machine = Machine::new(&files.iter().map(|(name, text)| (name.as_str(), *text)).collect::<Vec<_>>());
    machine.stub("nvidia-smi", "");
    let report = || machine.prints(HEALTH, "diagnose=");
    assert!(report().contains("\npci 0000:c1:00.0") && NodeHealth::parse(&report()).foreign.is_empty());
    fs::remove_dir_all(machine.path("driver").join(other)).unwrap();
    assert!(report().contains("\npci 0000:41:00.0") && !report().contains("\npci 0000:c1:00.0"), "{}", report());
    assert_eq!(NodeHealth::parse(&report()).foreign, [other]);
    // a driver that does not list its GPUs, as of an earlier version
    fs::remove_dir_all(machine.path("driver")).unwrap();
    assert!(report().contains("\npci 0000:c1:00.0") && NodeHealth::parse(&report()).foreign.is_empty());
}

#[test]
fn a_lease_that_cannot_be_read_is_not_given_back() {
    let machine = Machine::new(&[("run/hvdctl/lab.lease", "id 1\n")]);
    let variables = format!("run={} expires=30", machine.path("run").display());
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
    let write = |past: &str| machine.run(&["bench/past_write.sh"], &format!("past='{past}'"));
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
}

#[test]
fn nodes_have_joined_a_job_if_its_supervisor_has_taken_them() {
    let machine = Machine::new(&[("jobs/j1/job.json", "old")]);
    let (join, variables) = (&["job/join.sh"], "id=j1 joining='[]' record=new");
    let record = || fs::read_to_string(machine.path("jobs/j1/job.json")).unwrap();
    let taken = "mv joining.json joining.json.taken";
    machine.stub("sleep", taken);
    machine.break_tool("mv", "job.json.new*", "Input/output error");
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

const APPEND: &[&str] = &["ledger/system.sh", "ledger/append.sh"];
const READ: &[&str] = &["ledger/system.sh", "ledger/read.sh"];

/// The variables of `ledger/append.sh` for a check of this name.
fn added(check: &str) -> String {
    format!("most=65536 entries='{{\"what\":\"check\",\"by\":\"{check}\"}}'")
}

/// What `ledger/read.sh` reports.
fn ledger(machine: &Machine) -> Ledger {
    Ledger::parse(machine.prints(READ, "most=65536").as_bytes())
}

/// The names of the checks in a ledger, and the number of its entries of the system.
fn checks(ledger: &Ledger) -> (Vec<&str>, usize) {
    let names = ledger.entries.iter().filter_map(|entry| match &entry.event {
        Event::Check { by, .. } => Some(by.as_str()),
        _ => None,
    });
    let systems = ledger.entries.iter().filter(|entry| matches!(entry.event, Event::System { .. }));
    (names.collect(), systems.count())
}

#[test]
fn a_ledger_begins_with_the_system_and_notes_when_it_was_booted_again() {
    let machine = Machine::new(&[]);
    // it may hang so that it cannot even be killed
    machine.stub("nvidia-smi", &format!("touch {}", machine.path("called").display()));
    assert_eq!(ledger(&machine).entries, []);
    assert!(!machine.path("called").exists(), "a ledger is read without nvidia-smi");
    machine.prints(APPEND, &added("verify"));
    machine.prints(APPEND, &added("doctor"));
    let once = ledger(&machine);
    assert_eq!((checks(&once), once.restarts().len()), ((vec!["verify", "doctor"], 1), 0));
    assert!(once.entries.iter().all(|entry| (once.now - entry.time).abs() < 600.0), "{once:?}");
    let Event::System { boot, booted, .. } = &once.entries[0].event else { panic!("{once:?}") };
    assert!(*boot == once.boot && *booted > 0.0 && *booted <= once.now, "{once:?}");
    // as it was before the machine was booted
    let file = machine.path("jobs/.ledger@lab");
    let before = fs::read_to_string(&file).unwrap().replace(boot.as_str(), "0-1");
    fs::write(&file, before).unwrap();
    assert_eq!(ledger(&machine).restarts().len(), 1, "it is known before it is recorded");
    machine.prints(APPEND, &added("bench"));
    machine.prints(APPEND, "most=65536 entries=''");
    let again = ledger(&machine);
    assert_eq!((checks(&again), again.restarts().len()), ((vec!["verify", "doctor", "bench"], 2), 1));
    let mode = fs::metadata(&file).unwrap().permissions().mode() & 0o777;
    assert_eq!(mode, 0o600);
}

#[test]
fn a_ledger_that_is_no_file_is_reported_and_not_waited_for() {
    let machine = Machine::new(&[("jobs/x", "")]);
    // where a script waits for a writer or a reader of the pipe, it is given none, and ends with another message
    machine.break_tool("tail", "*", "the pipe was read");
    machine.break_tool("sed", "*.ledger@lab", "the pipe was read");
    let made = Command::new("mkfifo").arg(machine.path("jobs/.ledger@lab")).status().unwrap();
    assert!(made.success());
    let expected = format!("{}: not a regular file\n", machine.path("jobs/.ledger@lab").display());
    assert_eq!(machine.fails(READ, "most=65536"), expected);
    assert_eq!(machine.fails(APPEND, &added("verify")), expected);
}

#[test]
fn a_directory_of_jobs_may_be_below_the_root() {
    let machine = Machine::new(&[]);
    // the root is not touched
    for tool in ["mkdir", "flock"] {
        machine.break_tool(tool, "*", "reached");
    }
    let below_root = format!("{} jobs_dir=/hvdctl-test", added("verify"));
    assert_eq!(machine.fails(APPEND, &below_root), "mkdir: reached\n");
    let not_set_up = format!("{} jobs_dir=/hvdctl-test/jobs", added("verify"));
    assert_eq!(machine.prints(APPEND, &not_set_up), "");
}

#[test]
fn an_append_that_a_power_failure_cut_anywhere_loses_nothing_else() {
    let machine = Machine::new(&[]);
    // it only takes time here
    machine.stub("sync", "exit 0");
    machine.prints(APPEND, &added("first"));
    machine.prints(APPEND, &added("second"));
    let file = machine.path("jobs/.ledger@lab");
    let whole = fs::read(&file).unwrap();
    let last = whole[..whole.len() - 1].iter().rposition(|byte| *byte == b'\n').unwrap() + 1;
    let printed = machine.prints(READ, "most=65536");
    let head = printed.split_inclusive("\n\n").next().unwrap().as_bytes().to_vec();
    for cut in last..=whole.len() {
        // a file system may have the length of what was not written yet
        let tails = if (whole.len() - cut).is_multiple_of(16) { &[&b""[..], b"\0\0"][..] } else { &[&b""[..]] };
        for tail in tails {
            fs::write(&file, [&whole[..cut], tail].concat()).unwrap();
            machine.prints(APPEND, &added("third"));
            let ledger = Ledger::parse(&[head.as_slice(), &fs::read(&file).unwrap()].concat());
            let expected = if cut >= whole.len() - 1 && tail.is_empty() || cut == whole.len() {
                vec!["first", "second", "third"]
            } else {
                vec!["first", "third"]
            };
            let damaged = usize::from(expected.len() == 2 && (cut > last || !tail.is_empty()))
                + usize::from(cut == whole.len() && !tail.is_empty());
            assert_eq!((checks(&ledger), ledger.damaged), ((expected, 1), damaged), "cut at {cut}, then {tail:?}");
        }
    }
}

#[test]
fn appends_at_the_same_time_lose_no_entry() {
    let machine = Machine::new(&[]);
    let names: Vec<String> = (0..12).map(|i| format!("c{i}")).collect();
    std::thread::scope(|scope| {
        for name in &names {
            scope.spawn(|| machine.prints(APPEND, &added(name)));
        }
    });
    let ledger = ledger(&machine);
    let (mut found, systems) = checks(&ledger);
    found.sort_unstable();
    let mut expected: Vec<&str> = names.iter().map(String::as_str).collect();
    expected.sort_unstable();
    assert_eq!((found, systems, ledger.damaged), (expected, 1, 0));
}

#[test]
fn a_full_ledger_keeps_its_newer_half() {
    let machine = Machine::new(&[]);
    // it only takes time here
    machine.stub("sync", "exit 0");
    let variables = |i: usize| added(&format!("{i:0>300}")).replace("65536", "8192");
    let size = || fs::metadata(machine.path("jobs/.ledger@lab")).unwrap().len();
    for i in 0..60 {
        machine.prints(APPEND, &variables(i));
        assert!(size() <= 8192, "{i}: {}", size());
    }
    let ledger = ledger(&machine);
    let (found, systems) = checks(&ledger);
    let numbers: Vec<usize> = found.iter().map(|name| name.parse().unwrap()).collect();
    assert_eq!((numbers.last(), ledger.damaged, systems), (Some(&59), 0, 1));
    assert!(numbers.len() >= 8 && numbers.is_sorted(), "{numbers:?}");
    let left = fs::read_dir(machine.path("jobs")).unwrap().count();
    assert_eq!(left, 1, "no other file is left");
}

#[test]
fn a_ledger_that_cannot_be_written_stays_as_it_was() {
    let machine = Machine::new(&[]);
    machine.prints(APPEND, &added("first"));
    let before = fs::read(machine.path("jobs/.ledger@lab")).unwrap();
    // a disk that is full when the newer half is written, another command that holds the lock, and a node without flock
    for (tool, message) in [("sed", "write error: No space left on device"), ("flock", "no"), ("sync", "I/O error")] {
        machine.break_tool(tool, "*", message);
        let small = added("second").replace("65536", "200");
        let output = machine.run(APPEND, &small);
        assert!(!output.status.success() && !output.stderr.is_empty(), "{tool}: {output:?}");
        assert_eq!(fs::read(machine.path("jobs/.ledger@lab")).unwrap(), before, "{tool}");
        assert_eq!(fs::read_dir(machine.path("jobs")).unwrap().count(), 1, "{tool}");
        machine.repair();
    }
    machine.break_tool("tail", "*", "Input/output error");
    let unread = machine.run(READ, "most=65536");
    assert!(!unread.status.success(), "{unread:?}");
}

const READ_POOL: &[&str] = &["pool/enter.sh", "pool/read.sh"];
const PUBLISH: &[&str] = &["pool/enter.sh", "pool/publish.sh"];

/// A pool with a file, and its variables for the scripts.
fn pool() -> (Machine, String) {
    let machine = Machine::new(&[("pool/a.node", "content of a")]);
    let variables = format!("path='{}' most=1024 blocks=32 files='b.node eA=='", machine.path("pool").display());
    (machine, variables)
}

#[test]
fn a_pool_is_read_with_the_options_that_every_tar_has() {
    let (machine, variables) = pool();
    let real = ["/usr/bin/tar", "/bin/tar"].into_iter().find(|path| Path::new(path).exists()).unwrap();
    // as BusyBox's: it knows no long options of GNU tar
    let refuse = "case \"$*\" in *' --'*) echo 'tar: unrecognized option' >&2; exit 1 ;; esac";
    machine.stub("tar", &format!("{refuse}\nexec {real} \"$@\""));
    let read = machine.prints(READ_POOL, &variables);
    assert!(read.starts_with("file a.node\nfiles\n./a.node\0"), "{read}");
    assert!(read.contains("content of a\0") && read.ends_with("\0tar 0\n\n"), "{read}");
    // none that fails is an empty pool
    machine.stub("tar", "echo 'tar: invalid option' >&2; exit 1");
    assert_eq!(machine.prints(READ_POOL, &variables), "file a.node\nfiles\ntar 1\ntar: invalid option\n");
    // a file is removed while find looks at it
    machine.repair();
    machine.stub("find", "cd \"$PWD\" && [ -e ../again ] || { : >../again; echo 'find: No such file' >&2; exit 1; }");
    assert!(machine.prints(READ_POOL, &variables).ends_with("\0tar 0\n\n"));
    machine.break_tool("find", "*", "broken");
    assert_eq!(machine.fails(READ_POOL, &variables), "find: broken\nfind: broken\n");
}

#[test]
fn a_pool_that_may_not_be_used_says_which_directory() {
    let (machine, variables) = pool();
    let place = machine.path("pool").display().to_string();
    machine.break_tool("mktemp", "*", "failed to create file via template './.hvdctl.XXXXXX': Permission denied");
    assert_eq!(machine.fails(PUBLISH, &variables), format!("Permission denied: {place}\n"));
    machine.repair();
    machine.stub("mv", "echo \"mv: in $LC_ALL\" >&2; exit 1");
    assert_eq!(machine.fails(PUBLISH, &variables), "mv: in C\n", "its words are looked for");
    machine.repair();
    machine.break_tool("ls", "*", "cannot access '/srv/pool/.': Permission denied");
    for scripts in [READ_POOL, PUBLISH] {
        assert_eq!(machine.fails(scripts, &variables), format!("Permission denied: {place}\n"));
    }
    machine.repair();
    let in_file = variables.replace("/pool'", "/pool/a.node'");
    assert_eq!(machine.fails(READ_POOL, &in_file), format!("Not a directory: {place}/a.node\n"));
    let missing = variables.replace("/pool'", "/none'");
    assert!(machine.fails(READ_POOL, &missing).starts_with("there is no directory /"));
    machine.prints(PUBLISH, &variables);
    assert_eq!(fs::read_to_string(machine.path("pool/b.node")).unwrap(), "x");
}
