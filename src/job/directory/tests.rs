//! The keeper as hmaster runs it, with a folder of this machine for another node.

use super::*;
use crate::job::cleanup::{END, stuck};
use crate::job::record::JobResult;
use std::fs::{self, Permissions};
use std::io::{BufRead, BufReader};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

/// The clock of the other node is so many seconds ahead.
const AHEAD: f64 = 3600.0;

/// Runs a keeper in a folder, with this launcher (of `sh -c`), and this `ssh` as the way to the other node.
fn kept(here: &Path, launcher: &str, ssh: &str) -> JobResult {
    kept_with(here, launcher, ssh, &[])
}

/// The same with these fields of `launch.json`. Without them it is that of an older hvdctl.
fn kept_with(here: &Path, launcher: &str, ssh: &str, fields: &[(&str, u64)]) -> JobResult {
    let mut keeping = serde_json::json!({
        "launcher": ["sh", "-c", launcher, "-np", "", "-H", "", "--network-interfaces", ""],
        "node": "a", "address": "10.0.0.1", "ranks": 1,
        "workers": [{ "node": "b", "address": "10.0.0.2", "ranks": 1 }],
        "restarts": 0, "own_workers": false, "port": 22, "grace": 1, "start_timeout": 1,
    });
    for (name, value) in fields {
        keeping[name] = (*value).into();
    }
    let keeping = keeping.to_string();
    let files = [
        (KEEPER_FILE, KEEPER),
        (SUPERVISOR, RANK),
        ("activity.py", ACTIVITY),
        ("reap.py", REAP),
        ("ssh", ssh),
        ("launch.json", &keeping),
    ];
    for (name, text) in files {
        fs::write(here.join(name), text).unwrap();
    }
    fs::set_permissions(here.join("ssh"), Permissions::from_mode(0o755)).unwrap();
    let kept = Command::new("timeout").args(["30", "python3"]).arg(here.join(KEEPER_FILE)).output().unwrap();
    let text = fs::read_to_string(here.join("result.json")).unwrap_or_else(|e| panic!("{e}: {kept:?}"));
    let ending: JobResult = serde_json::from_str(&text).unwrap();
    assert_eq!(kept.status.code().map(i64::from), ending.launcher, "{kept:?}");
    ending
}

#[test]
fn the_rank_that_failed_first_is_to_blame_though_its_node_is_slow_to_say_good_bye() {
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
    fs::write(there.join("reap.py"), REAP).unwrap();
    fs::write(there.join("other.py"), other_clock).unwrap();

    let ending =
        kept(here, "exit 1", &format!("#!/bin/sh\npython3 {} 1\nexec sleep 3\n", there.join("other.py").display()));
    assert_eq!((ending.started, ending.exits.len(), ending.silent.len()), (2, 2, 0), "{ending:?}");
    let first = ending.first_failure(2).unwrap();
    assert_eq!((first.rank, first.node.as_str(), first.code), (1, "b", 7), "{ending:?}");
}

#[test]
fn a_connection_that_leads_nowhere_is_given_up_for_another() {
    let (here, there) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let (here, there) = (here.path(), there.path());
    fs::write(there.join("states"), "1.0 1 s \n1.0 1 x 7\n").unwrap();
    fs::write(there.join("reap.py"), REAP).unwrap();
    // over the one that stands nothing comes, and like ssh's master it holds the streams of a client that was killed
    let ssh = format!(
        "#!/bin/sh\ncase \"$*\" in *' -S /run/'*) sleep 40 & wait ;; esac\nexec python3 {} 1\n",
        there.join("reap.py").display()
    );
    let ending = kept(here, "exit 1", &ssh);
    assert_eq!((ending.started, ending.exits.len(), ending.silent.len()), (1, 1, 0), "{ending:?}");
}

#[test]
fn a_node_that_never_says_whether_its_ranks_started_ends_the_run() {
    let here = tempfile::tempdir().unwrap();
    fs::write(here.path().join("states"), "1.0 0 s \n").unwrap();
    let ending = kept(here.path(), "exec sleep 60", "#!/bin/sh\nexit 255\n");
    assert_eq!(ending.fault.as_deref(), Some("not all ranks had started within 1 s: no answer from b"));
    assert_eq!((ending.state(2), ending.launcher), (crate::job::record::State::Failed, Some(1)), "{ending:?}");
    let log = fs::read(here.path().join("log")).unwrap();
    let last = crate::job::frames::Parser::default().push(&log).pop().unwrap();
    assert_eq!(last.kind, crate::job::frames::Kind::Over, "{last:?}");
}

#[test]
fn the_pause_before_a_restart_doubles_and_is_as_it_was_set() {
    for (fields, pauses) in [
        (&[("restarts", 1)][..], &["2"][..]),
        (&[("restarts", 2), ("restart_pause", 1)], &["1", "2"]),
        (&[("restarts", 3), ("restart_pause", 0)], &["0", "0", "0"]),
    ] {
        let here = tempfile::tempdir().unwrap();
        let started = std::time::Instant::now();
        kept_with(here.path(), "exit 7", "#!/bin/sh\nexit 255\n", fields);
        let waited: u64 = pauses.iter().map(|pause| pause.parse::<u64>().unwrap()).sum();
        assert!(started.elapsed() >= Duration::from_secs(waited), "{fields:?}");
        let log = fs::read_to_string(here.path().join("log")).unwrap();
        let told = log.split(" begins in ").skip(1).map(|rest| rest.split_once(" s\n").unwrap().0);
        assert!(told.eq(pauses.iter().copied()), "{fields:?}: {log}");
    }
}

#[test]
fn every_ssh_of_a_job_probes_as_often_as_was_set() {
    for (fields, seconds) in [(&[][..], "15"), (&[("keep_alive", 3)], "3")] {
        let here = tempfile::tempdir().unwrap();
        // the launcher's, and the keeper's own
        let said = |file: &str| format!("echo \"$HVDCTL_KEEP_ALIVE\" >\"{}/{file}\"", here.path().display());
        let ssh = format!("#!/bin/sh\n{}\nexit 255\n", said("of-keeper"));
        kept_with(here.path(), &said("of-launcher"), &ssh, fields);
        for file in ["of-keeper", "of-launcher"] {
            assert_eq!(fs::read_to_string(here.path().join(file)).unwrap().trim(), seconds, "{file}");
        }
    }
    // ssh.sh itself: it asks the first ssh that it finds, which prints what it would do
    if !Path::new("/usr/bin/ssh").exists() {
        return;
    }
    let here = tempfile::tempdir().unwrap();
    let ssh = here.path().join("ssh");
    fs::write(&ssh, SSH).unwrap();
    for (set, interval) in [(None, "15"), (Some("3"), "3")] {
        let mut asked = Command::new("sh");
        asked.arg(&ssh).args(["-F", "/dev/null", "-G", "a"]).env_remove("HVDCTL_KEEP_ALIVE");
        asked.envs(set.map(|seconds| ("HVDCTL_KEEP_ALIVE", seconds)));
        let said = String::from_utf8(asked.output().unwrap().stdout).unwrap();
        assert!(said.lines().any(|line| line == format!("serveraliveinterval {interval}")), "{said}");
    }
}

#[test]
fn a_reaper_whose_keeper_has_gone_finishes_its_work() {
    let here = tempfile::tempdir().unwrap();
    fs::write(here.path().join("reap.py"), REAP).unwrap();
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
fn who_was_killed_is_known_by_the_signals_that_are_pending() {
    let folder = tempfile::tempdir().unwrap();
    let status = folder.path().join("status");
    let killed = || {
        let words = format!("{}\nkilled ..{}", include_str!("../../scripts/killed.sh"), folder.path().display());
        Command::new("sh").args(["-c", &words]).status().unwrap().success()
    };
    assert!(!killed());
    for (pending, expected) in [
        ("100", true),
        ("4300", true),
        ("200", false),
        ("8000000000000000", false),
        ("80000000000bff", true),
        ("", false),
    ] {
        let others = "Name:\tpython\nShdPnd:\t0000000000000100\nSigBlk:\t0000000000000100\n";
        fs::write(&status, format!("{others}SigPnd:\t{pending:0>16}\n")).unwrap();
        assert_eq!(killed(), expected, "{pending}");
    }
}

#[test]
fn what_no_signal_ends_is_told_with_its_place_and_words() {
    let jobs = tempfile::tempdir().unwrap();
    let folder = jobs.path().join("run-1");
    fs::create_dir(&folder).unwrap();
    fs::write(folder.join("env.json"), "{}").unwrap();
    // the first process of a PID namespace takes no SIGKILL from inside of it (pid_namespaces(7)), and this one is of the run
    let outside = "env -u HVDCTL_JOB -u HVDCTL_PROGRAM sh -c \"$1\"; true";
    let unshare = || {
        let mut unshare = Command::new("unshare");
        let own = if rustix::process::geteuid().is_root() { &[][..] } else { &["--user", "--map-root-user"] };
        unshare.args(["--pid", "--fork", "--mount-proc", "--kill-child"]).args(own);
        unshare
    };
    let possible = unshare().arg("true").output().expect("unshare (util-linux)");
    assert!(
        possible.status.success(),
        "cannot create a PID namespace: {}\nhint: run as root, or allow user namespaces (on Ubuntu: sysctl \
         kernel.apparmor_restrict_unprivileged_userns=0; in a container: --privileged)",
        String::from_utf8_lossy(&possible.stderr).trim()
    );
    let mut inside = unshare();
    let wants = format!("id=run-1 grace=0 jobs_dir={}\n", jobs.path().display());
    let ended = inside
        .args(["sh", "-c", outside, "a program", &(wants + END)])
        .envs([("HVDCTL_JOB", "run-1"), ("HVDCTL_PROGRAM", "1")])
        .output()
        .unwrap();
    let said = String::from_utf8(ended.stdout).unwrap();
    assert!(ended.status.success(), "{}", String::from_utf8_lossy(&ended.stderr));
    assert!(said.starts_with("1 ") && said.lines().count() == 1, "{said:?}");
    let words = stuck(&said).unwrap();
    assert!(words.starts_with("process 1 (sh -c env -u"), "{words}");
    assert!(words.contains(") was killed and is still there"), "{words}");
    assert!(!folder.join("env.json").exists());

    assert_eq!(stuck(""), None);
    assert_eq!(
        stuck("7 nfs_wait python \u{1b}[1mt.py \n8 0 \n9\n").unwrap(),
        "process 7 (python [1mt.py) was killed and is still there, in nfs_wait\n\
         process 8 () was killed and is still there\nprocess 9 () was killed and is still there"
    );
}

#[test]
fn the_files_of_a_run_are_laid_byte_for_byte_with_their_modes() {
    let jobs = tempfile::tempdir().unwrap();
    let lay = |id: &str, files: &str| {
        let script = Script::new(START).with("jobs_dir", &jobs.path().display().to_string()).with("id", id);
        let mut shell = Command::new("sh").arg("-s").stdin(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let text = script.with("files", files).whole();
        std::io::Write::write_all(&mut shell.stdin.take().unwrap(), text.as_bytes()).unwrap();
        shell.wait_with_output().unwrap()
    };
    let long = "x".repeat(1025);
    let files = [
        (0o600, "env.json", "{\"A\": \"it's $HOME\"}"),
        (0o755, "ssh", long.as_str()),
        (0o644, "empty", ""),
        (0o600, "log", ""),
    ];
    let ended = lay("run-1", &archive(&files));
    assert!(ended.status.success() && ended.stderr.is_empty(), "{ended:?}");
    let folder = jobs.path().join("run-1");
    let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
    for (wanted, name, text) in files {
        assert_eq!(fs::read_to_string(folder.join(name)).unwrap(), text);
        assert_eq!(mode(&folder.join(name)), wanted, "{name}");
    }
    // the ranks' output is nobody else's business
    assert_eq!(mode(&folder), 0o700);

    // whatever became of base64 there, what did not come whole is not taken for it
    for (id, cut) in [("run-2", archive(&files[..3]).as_str()), ("run-3", ""), ("run-4", "!")] {
        assert!(!lay(id, cut).status.success(), "{id}");
    }
}
