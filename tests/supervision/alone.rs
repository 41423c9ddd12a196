//! The job supervisor and the reaper in a directory of this machine, without a node of their own; another directory
//! replaces the other node. The tests provide the launcher and `ssh` themselves.

use hvdctl::launch::description::{Argument, LaunchDescription, LaunchHost, Start, Surroundings};
use hvdctl::launch::programs::{JOB_SUPERVISOR, ON_EVERY_NODE, ON_FIRST_NODE};
use hvdctl::record::frames::{FrameKind, Parser};
use hvdctl::record::{JobResult, JobState, stored};
use std::collections::BTreeMap;
use std::fs::{self, Permissions};
use std::io::{BufRead, BufReader, Write};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// The clock of the other node is so many seconds ahead.
const AHEAD: f64 = 3600.0;

fn now() -> f64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs_f64()
}

/// Writes the programs of a node into its directory.
fn write_programs(dir: &Path) {
    for (mode, name, text) in ON_EVERY_NODE.into_iter().chain(ON_FIRST_NODE) {
        fs::write(dir.join(name), text).unwrap();
        fs::set_permissions(dir.join(name), Permissions::from_mode(mode)).unwrap();
    }
}

fn surroundings(files: BTreeMap<&'static str, Argument>, reads: &'static [&'static str]) -> Surroundings<Argument> {
    let files = files.into_iter().map(|(name, text)| (name.to_owned(), text)).collect();
    Surroundings { files, reads, inherits: None, port: 22 }
}

/// The description for the job supervisor: a launcher (of `sh -c`), a rank on this node and one on another.
fn description(launcher: &str) -> LaunchDescription<'_> {
    LaunchDescription {
        start: Start::Central,
        launcher: ["sh", "-c", launcher].map(Argument::from).to_vec(),
        variables: BTreeMap::new(),
        surroundings: surroundings(BTreeMap::new(), &[]),
        first: LaunchHost { node: "a", address: "10.0.0.1".parse().unwrap(), ranks: 1 },
        names: Vec::new(),
        workers: vec![LaunchHost { node: "b", address: "10.0.0.2".parse().unwrap(), ranks: 1 }],
        restarts: 0,
        elastic: None,
        slurm: false,
        warning: None,
        queued: false,
        own_workers: false,
        grace: 1,
        start_timeout: 1,
        restart_pause: 2,
        keep_alive: 15,
        roles: Vec::new(),
    }
}

/// Runs a job supervisor to its end, with this `ssh` as the way to the other node.
fn supervise(here: &Path, description: &LaunchDescription<'_>, ssh: &str) -> JobResult {
    write_programs(here);
    fs::write(here.join("ssh"), ssh).unwrap();
    fs::write(here.join("launch.json"), stored::write("launch.json", description).unwrap()).unwrap();
    let mut supervisor = Command::new("timeout");
    supervisor.args(["30", "python3"]).arg(here.join(JOB_SUPERVISOR)).env("HVDCTL_RUN", here.join("sockets"));
    let done = supervisor.output().unwrap();
    let text = fs::read_to_string(here.join("result.json")).unwrap_or_else(|e| panic!("{e}: {done:?}"));
    let ending = stored::read::<JobResult>(&text).unwrap();
    assert!(text.starts_with("{\"format\": 1, "), "{text}");
    // a launcher that ended with 0 is not enough for a success
    let code = if ending.state() == JobState::Succeeded {
        Some(0)
    } else {
        ending.launcher.filter(|code| *code != 0).or(Some(1))
    };
    assert_eq!(done.status.code().map(i64::from), code, "{done:?}");
    assert!(done.stderr.is_empty(), "{done:?}");
    ending
}

#[test]
fn the_rank_that_failed_first_is_the_root_cause_though_its_node_is_slow_to_disconnect() {
    let (here, there) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let (here, there) = (here.path(), there.path());
    let failed = now();
    // the follower fails by itself 2 s later, and the way back from the culprit takes 3 s to close
    fs::write(here.join("states"), format!("{failed} 0 s \n{} 0 x 1\n", failed + 2.0)).unwrap();
    fs::write(there.join("states"), format!("{} 1 s \n{0} 1 x 7\n", failed + AHEAD)).unwrap();
    let other_clock = format!(
        "import runpy, time\nhere = time.time\ntime.time = lambda: here() + {AHEAD}\n\
         runpy.run_path('{}', run_name='__main__')\n",
        there.join("reap.py").display()
    );
    write_programs(there);
    fs::write(there.join("other.py"), other_clock).unwrap();

    let ending = supervise(
        here,
        &description("exit 1"),
        &format!("#!/bin/sh\npython3 {} 1\nexec sleep 3\n", there.join("other.py").display()),
    );
    assert_eq!((ending.started, ending.exits.len(), ending.silent.len()), (2, 2, 0), "{ending:?}");
    let first = ending.first_failure().unwrap();
    assert_eq!((first.rank, first.node.as_str(), first.code), (1, "b", 7), "{ending:?}");
}

#[test]
fn a_dead_connection_is_replaced() {
    let (here, there) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let (here, there) = (here.path(), there.path());
    fs::write(there.join("states"), "1.0 1 s \n1.0 1 x 7\n").unwrap();
    write_programs(there);
    // the open connection is silent, and like ssh's master it holds the streams of a client that was killed
    let ssh = format!(
        "#!/bin/sh\ncase \"$*\" in *' -S /run/'*) sleep 40 & wait ;; esac\nexec python3 {} 1\n",
        there.join("reap.py").display()
    );
    let ending = supervise(here, &description("exit 1"), &ssh);
    assert_eq!((ending.started, ending.exits.len(), ending.silent.len()), (1, 1, 0), "{ending:?}");
}

#[test]
fn a_node_that_never_reports_started_ranks_ends_the_job() {
    let here = tempfile::tempdir().unwrap();
    fs::write(here.path().join("states"), "1.0 0 s \n").unwrap();
    let ending = supervise(here.path(), &description("exec sleep 60"), "#!/bin/sh\nexit 255\n");
    assert_eq!(
        ending.fault.as_ref().map(ToString::to_string).as_deref(),
        Some("not all ranks had started within 1 s: no answer from b")
    );
    assert_eq!((ending.state(), ending.launcher), (JobState::Failed, Some(1)), "{ending:?}");
    let log = fs::read(here.path().join("log")).unwrap();
    let last = Parser::default().push(&log).pop().unwrap();
    assert_eq!(last.kind, FrameKind::Over, "{last:?}");
}

#[test]
fn the_pause_before_a_restart_doubles_and_is_as_it_was_set() {
    for (restarts, restart_pause, pauses) in [(1, 2, &["2"][..]), (2, 1, &["1", "2"]), (3, 0, &["0", "0", "0"])] {
        let here = tempfile::tempdir().unwrap();
        let started = Instant::now();
        let description = LaunchDescription { restarts, restart_pause, ..description("exit 7") };
        supervise(here.path(), &description, "#!/bin/sh\nexit 255\n");
        let waited: u64 = pauses.iter().map(|pause| pause.parse::<u64>().unwrap()).sum();
        assert!(started.elapsed() >= Duration::from_secs(waited), "{restarts}");
        let log = fs::read_to_string(here.path().join("log")).unwrap();
        let reported = log.split("\"pause\": ").skip(1).map(|rest| rest.split_once('}').unwrap().0);
        assert!(reported.eq(pauses.iter().copied()), "{restarts}: {log}");
    }
}

#[test]
fn a_launcher_that_ends_with_0_has_not_succeeded_if_ranks_are_missing() {
    // as mpirun of Open MPI 5, which has lost a node
    let here = tempfile::tempdir().unwrap();
    let description = LaunchDescription { restarts: 1, restart_pause: 0, ..description("exit 0") };
    let result = supervise(here.path(), &description, "#!/bin/sh\nexit 255\n");
    let attempts = fs::read_to_string(here.path().join("attempts.json")).unwrap();
    assert_eq!(attempts.matches("\"launcher\": 0").count(), 1, "{attempts}");
    assert_eq!(result.state(), JobState::Lost);
}

#[test]
fn a_failed_rank_fails_the_attempt_though_its_launcher_ends_with_0_when_it_is_ended() {
    let here = tempfile::tempdir().unwrap();
    fs::write(here.path().join("states"), "1.0 0 s \n2.0 0 x 7\n").unwrap();
    let launcher = "trap 'exit 0' TERM; echo 'hvdctl: a rank has failed with 7'; while :; do sleep 0.1; done";
    let description = LaunchDescription { workers: Vec::new(), restarts: 1, restart_pause: 0, ..description(launcher) };
    let result = supervise(here.path(), &description, "#!/bin/sh\nexit 255\n");
    let attempts = fs::read_to_string(here.path().join("attempts.json")).unwrap_or_default();
    assert_eq!(attempts.matches("\"launcher\": 7").count(), 1, "{attempts}");
    assert_eq!(result.launcher, Some(7));
}

#[test]
fn a_launcher_has_the_nodes_of_each_attempt_in_a_file_and_the_variables_that_it_reads() {
    let here = tempfile::tempdir().unwrap();
    fs::write(here.path().join("env.json"), r#"{"PET_LOG_DIR": "of -e", "TOKEN": "secret"}"#).unwrap();
    let script = format!(
        "cd {} && {{ echo \"$PET_LOG_DIR,$TOKEN\"; stat -c %a hosts; cat hosts; }} >>seen; exit 7",
        here.path().display()
    );
    let files = BTreeMap::from([("hosts", Argument::Hostfile {})]);
    let description = LaunchDescription {
        surroundings: surroundings(files, &["PET_"]),
        restarts: 1,
        restart_pause: 0,
        ..description(&script)
    };
    // the other node does not answer, and takes no part in the second attempt
    supervise(here.path(), &description, "#!/bin/sh\nexit 255\n");
    let seen = fs::read_to_string(here.path().join("seen")).unwrap();
    let start = "of -e,\n600\n10.0.0.1 slots=1\n";
    assert_eq!(seen, format!("{start}10.0.0.2 slots=1\n{start}"));
}

#[test]
fn a_file_that_cannot_be_written_for_the_launcher_fails_the_job() {
    let here = tempfile::tempdir().unwrap();
    fs::create_dir(here.path().join("hosts")).unwrap();
    let files = BTreeMap::from([("hosts", Argument::Hostfile {})]);
    let description = LaunchDescription { surroundings: surroundings(files, &[]), ..description("exit 0") };
    let ending = supervise(here.path(), &description, "#!/bin/sh\nexit 255\n");
    assert_eq!((ending.state(), ending.launcher), (JobState::Failed, Some(127)), "{ending:?}");
    let log = fs::read_to_string(here.path().join("log")).unwrap();
    assert!(log.contains("hosts.new: Is a directory"), "{log}");
}

#[test]
fn every_ssh_of_a_job_probes_as_often_as_was_set() {
    for (keep_alive, seconds) in [(15, "15"), (3, "3")] {
        let here = tempfile::tempdir().unwrap();
        // the launcher's, and the job supervisor's own
        let said = |file: &str| format!("echo \"$HVDCTL_KEEP_ALIVE\" >\"{}/{file}\"", here.path().display());
        let ssh = format!("#!/bin/sh\n{}\nexit 255\n", said("of-supervisor"));
        let launcher = said("of-launcher");
        let description = LaunchDescription { keep_alive, ..description(&launcher) };
        supervise(here.path(), &description, &ssh);
        for file in ["of-supervisor", "of-launcher"] {
            assert_eq!(fs::read_to_string(here.path().join(file)).unwrap().trim(), seconds, "{file}");
        }
    }
    // ssh.sh itself: it asks the first ssh that it finds, which prints what it would do
    if !Path::new("/usr/bin/ssh").exists() {
        return;
    }
    let here = tempfile::tempdir().unwrap();
    write_programs(here.path());
    let ssh = here.path().join("ssh");
    for (set, interval) in [(None, "15"), (Some("3"), "3")] {
        let mut asked = Command::new("sh");
        asked.arg(&ssh).args(["-F", "/dev/null", "-G", "a"]).env_remove("HVDCTL_KEEP_ALIVE");
        asked.env("HVDCTL_KEYS", here.path()).env("HVDCTL_RUN", here.path());
        asked.envs(set.map(|seconds| ("HVDCTL_KEEP_ALIVE", seconds)));
        let said = String::from_utf8(asked.output().unwrap().stdout).unwrap();
        assert!(said.lines().any(|line| line == format!("serveraliveinterval {interval}")), "{said}");
    }
}

#[test]
fn a_reaper_whose_job_supervisor_has_gone_finishes_its_work() {
    let here = tempfile::tempdir().unwrap();
    write_programs(here.path());
    fs::write(here.path().join("env.json"), "{}").unwrap();
    let mut left = Command::new("sleep").arg("60").env("HVDCTL_JOB", here.path().file_name().unwrap()).spawn().unwrap();
    let mut reaper = Command::new("python3");
    reaper.arg(here.path().join("reap.py")).arg("1").stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null());
    let mut reaper = reaper.spawn().unwrap();
    let mut said = String::new();
    let mut stdout = BufReader::new(reaper.stdout.take().unwrap());
    stdout.read_line(&mut said).unwrap();
    drop((stdout, reaper.stdin.take()));
    reaper.wait().unwrap();
    assert!(!here.path().join("env.json").exists());
    assert_eq!(left.wait().unwrap().signal(), Some(15));
}

#[test]
fn what_a_reaper_reports_is_kept_until_it_has_been_read() {
    let here = tempfile::tempdir().unwrap();
    write_programs(here.path());
    fs::write(here.path().join("states"), "1.0 0 s \n2.0 0 x 7\n").unwrap();
    let reap = |acknowledged: &str| {
        let mut reaper = Command::new("python3");
        reaper.arg(here.path().join("reap.py")).args(["0", "again"]).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut reaper = reaper.spawn().unwrap();
        reaper.stdin.take().unwrap().write_all(acknowledged.as_bytes()).unwrap();
        String::from_utf8(reaper.wait_with_output().unwrap().stdout).unwrap()
    };
    // a connection that is too slow is given up before it answers
    assert!(reap("").contains("\"code\": 7"));
    assert!(reap("\n").contains("\"code\": 7"));
    assert!(!reap("\n").contains("\"code\": 7"), "the next attempt does not find it");
}
