//! Writing the directory, and ending what is left of a job, on this machine.

use super::*;
use crate::job::cleanup::{END, stuck};
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Command, Stdio};

#[test]
fn who_was_killed_is_known_by_the_signals_that_are_pending() {
    let directory = tempfile::tempdir().unwrap();
    let status = directory.path().join("status");
    let killed = || {
        let words =
            format!("{}\nkilled ..{}", include_str!("../../scripts/node/killed.sh"), directory.path().display());
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
fn a_search_that_fails_does_not_pass_for_no_processes() {
    let dir = tempfile::tempdir().unwrap();
    let job = dir.path().join("jobs/run-1");
    fs::create_dir_all(&job).unwrap();
    fs::write(job.join("env.json"), "{}").unwrap();
    let grep = dir.path().join("grep");
    let end = |script: &str| {
        fs::write(&grep, format!("#!/bin/sh\n{script}\n")).unwrap();
        fs::set_permissions(&grep, fs::Permissions::from_mode(0o755)).unwrap();
        let wants = format!("id=run-1 grace=0 jobs_dir={}/jobs\n", dir.path().display());
        let path = format!("{}:{}", dir.path().display(), std::env::var("PATH").unwrap());
        Command::new("sh").args(["-c", &(wants + END)]).env("PATH", path).output().unwrap()
    };
    for (script, why) in [
        ("echo \"grep: invalid option -- 'z'\" >&2; exit 2", "grep: invalid option -- 'z'"),
        ("kill -9 $$", ""),
        ("exit 3", ""),
    ] {
        let ended = end(script);
        let said = String::from_utf8_lossy(&ended.stderr).into_owned();
        assert!(
            !ended.status.success() && said.contains("cannot search the processes: ") && said.contains(why),
            "{said}"
        );
        assert!(job.join("env.json").exists(), "{script}");
    }
    // a process that ends meanwhile makes grep return 2
    let ended = end("exit 2");
    assert!(ended.status.success() && ended.stderr.is_empty(), "{ended:?}");
    assert!(!job.join("env.json").exists());
}

#[test]
fn an_unkillable_process_is_reported_with_its_wait_channel_and_arguments() {
    let jobs = tempfile::tempdir().unwrap();
    let directory = jobs.path().join("run-1");
    fs::create_dir(&directory).unwrap();
    for name in ["env.json", "env.0.json", "env.12.json"] {
        fs::write(directory.join(name), "{}").unwrap();
    }
    // the first process of a PID namespace takes no SIGKILL from inside of it (pid_namespaces(7)), and this one is of
    // the job
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
    assert!(words.contains(") is still there after SIGKILL"), "{words}");
    assert!(["env.json", "env.0.json", "env.12.json"].iter().all(|name| !directory.join(name).exists()));

    assert_eq!(stuck(""), None);
    assert_eq!(
        stuck("7 nfs_wait python \u{1b}[1mt.py \n8 0 \n9\n").unwrap(),
        "process 7 (python [1mt.py) is still there after SIGKILL, in nfs_wait\n\
         process 8 () is still there after SIGKILL\nprocess 9 () is still there after SIGKILL"
    );
}

#[test]
fn the_files_of_a_job_are_written_byte_for_byte_with_their_modes() {
    let jobs = tempfile::tempdir().unwrap();
    let lay = |id: &str, files: &str| {
        let script = Script::new(START).with("jobs_dir", &jobs.path().display().to_string()).with("id", id);
        let script = script.with("cluster", "lab").with("shared", "");
        let mut shell = Command::new("sh").arg("-s").stdin(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let text = script.with("files", files).with("own", "\"created\":1.5,").whole();
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
    let directory = jobs.path().join("run-1");
    let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
    for (wanted, name, text) in files {
        assert_eq!(fs::read_to_string(directory.join(name)).unwrap(), text);
        assert_eq!(mode(&directory.join(name)), wanted, "{name}");
    }
    // the ranks' output is readable by root only
    assert_eq!(mode(&directory), 0o700);

    // the same job again, because the answer to the first time was lost; and another one with its id
    for (record, code) in [("{\"created\":1.5,\"a\":0}", 0), ("{\"created\":1.25,\"a\":0}", 17), ("", 17)] {
        fs::write(directory.join("job.json"), record).unwrap();
        fs::write(directory.join("env.json"), "earlier").unwrap();
        let again = lay("run-1", &archive(&files));
        assert_eq!(again.status.code(), Some(code), "{record}: {again:?}");
        assert_eq!(fs::read_to_string(directory.join("env.json")).unwrap() == "earlier", code != 0);
        let message = String::from_utf8(again.stderr).unwrap();
        assert_eq!(message, if code == 0 { "" } else { "another job has the id run-1\n" });
    }
    fs::write(jobs.path().join("run-5"), "").unwrap();
    let blocked = lay("run-5", &archive(&files));
    assert!(
        blocked.status.code() == Some(1) && String::from_utf8_lossy(&blocked.stderr).contains("exists"),
        "{blocked:?}"
    );

    let job = Record { operator: "ana@desk".into(), created: 1_795_638_824.725_367, ..Record::default() };
    let stored = stored::write("job.json", &job).unwrap();
    let other = Record { created: 1_795_638_824.726, ..job.clone() };
    assert!(stored.contains(&own(&job).unwrap()) && !stored.contains(&own(&other).unwrap()), "{stored}");

    // a truncated archive is refused, regardless of the exit of base64
    for (id, cut) in [("run-2", archive(&files[..3]).as_str()), ("run-3", ""), ("run-4", "!")] {
        assert!(!lay(id, cut).status.success(), "{id}");
    }
}
