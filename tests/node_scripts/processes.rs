//! Programs that run as processes of the login: their life, the processes that end with them, and the faults that keep
//! them from starting.

use super::*;
use hvdctl::text::quote::always;
use std::os::unix::fs::chown;
use std::time::{Duration, Instant};

const LIST: &[&str] = of_processes!["process/list.sh"];
const CREATE: &[&str] = of_processes!["process/create.sh"];
const START: &[&str] = of_processes!["process/start.sh"];
const END: &[&str] = of_processes!["process/end.sh"];
const CHECK: &[&str] = of_processes!["process/check.sh"];

/// The variables of a process with this id and command, after the lines that set up its environment.
fn process(machine: &Machine, id: &str, activate: &str, command: &str) -> String {
    let script = |name: &str| always(&fs::read_to_string(Path::new(SCRIPTS).join(name)).unwrap());
    let begin = format!("{activate}\nexec sh \"$HVDCTL_PLACE/begin\"");
    format!(
        "{} new_id={id} labels='{{\"a\":\"b c\"}}' workspace='{}' environment='export GIVEN=1'
        activate={} command={} main={} begin={}",
        run_dir(machine),
        machine.dir.path().display(),
        always(&begin),
        always(command),
        script("process/main.sh"),
        script("process/begin.sh")
    )
}

/// The directory of what runs, and a home without start-up files of this machine's user.
fn run_dir(machine: &Machine) -> String {
    format!("export HOME='{}'\nrun_dir='{}'", machine.dir.path().display(), machine.path("run").display())
}

fn which(machine: &Machine, which: &str) -> String {
    format!("{} which={which} remove=1", run_dir(machine))
}

/// Waits for a file of the process to have a line.
fn line_of(machine: &Machine, file: &str) -> String {
    let limit = Instant::now() + Duration::from_secs(10);
    loop {
        let text = fs::read_to_string(machine.path(file)).unwrap_or_default();
        if text.ends_with('\n') {
            return text.trim().to_owned();
        }
        assert!(Instant::now() < limit, "{file} has no line");
        std::thread::sleep(Duration::from_millis(20));
    }
}

fn is_alive(pid: &str) -> bool {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    !status.is_empty() && !status.contains("State:\tZ")
}

#[test]
fn a_process_lives_from_its_start_to_its_end_and_takes_all_with_it() {
    let machine = Machine::new(&[]);
    // the second one has no mark any more, as sshd has written over it, and the third one no parent
    let command = "set -- sh -c 'env -i sleep 300 & echo $! >child; (setsid sleep 300 & echo $! >orphan)
        echo \"$GIVEN $ACTIVATED $PWD\" >seen; exec sleep 300'";
    machine.prints(CREATE, &process(&machine, "w@1", "export ACTIVATED=2", command));
    let state = || {
        let listed = machine.prints(LIST, &run_dir(&machine));
        let words: Vec<&str> = listed.trim().splitn(4, ' ').collect();
        format!("{} {} {}", words[0], words[2], words[3])
    };
    assert_eq!(state(), "w@1 created {\"a\":\"b c\"}");
    assert_eq!(machine.fails(CREATE, &process(&machine, "w@2", "", "set -- true")), "there is a w already\n");

    machine.prints(START, &which(&machine, "w"));
    assert_eq!(line_of(&machine, "seen"), format!("1 2 {}", machine.dir.path().canonicalize().unwrap().display()));
    assert_eq!(state(), "w@1 running {\"a\":\"b c\"}");
    let pids = ["child", "orphan"].map(|file| line_of(&machine, file));
    let main = line_of(&machine, "run/w/pid").split(' ').next().unwrap().to_owned();
    assert!(is_alive(&main) && pids.iter().all(|pid| is_alive(pid)));

    // an id that was that of an earlier process ends nothing
    machine.prints(END, &which(&machine, "w@0"));
    assert!(is_alive(&main));
    machine.prints(END, &which(&machine, "w@1"));
    assert!(!is_alive(&main) && pids.iter().all(|pid| !is_alive(pid)));
    assert_eq!(machine.prints(LIST, &run_dir(&machine)), "");
    assert_eq!(fs::read_dir(machine.path("run")).unwrap().count(), 0);
}

#[test]
fn a_process_that_has_ended_or_is_of_an_earlier_boot_does_not_run() {
    let machine = Machine::new(&[]);
    machine.prints(CREATE, &process(&machine, "w@1", "", "set -- sh -c 'echo >>done'"));
    machine.prints(START, &which(&machine, "w"));
    line_of(&machine, "done");
    let limit = Instant::now() + Duration::from_secs(10);
    while !machine.prints(LIST, &run_dir(&machine)).contains(" exited ") {
        assert!(Instant::now() < limit);
    }
    // a process of today that has the number and the start time of one before the boot
    let own = fs::read_to_string("/proc/self/stat").unwrap();
    let start = own.rsplit(") ").next().unwrap().split(' ').nth(19).unwrap();
    let pid = std::process::id();
    for (boot, state) in [("another", "exited"), ("", "running")] {
        let this = fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap();
        let boot = if boot.is_empty() { this.trim() } else { boot };
        fs::write(machine.path("run/w/pid"), format!("{pid} {start} {boot}\n")).unwrap();
        let listed = machine.prints(LIST, &run_dir(&machine));
        assert!(listed.contains(&format!(" {state} ")), "{listed}");
    }
}

#[test]
fn what_logind_would_end_with_the_login_is_not_started_without_lingering() {
    let machine = Machine::new(&[]);
    // for root, logind makes an exception
    let user = fs::metadata(machine.dir.path()).unwrap().uid().max(1000);
    // only root can, and only for root it is needed
    let _ = chown(machine.dir.path(), Some(user), None);
    machine.stub("id", &format!("case $1 in -un) echo ana ;; *) echo {user} ;; esac"));
    machine.stub("busctl", "echo b true");
    machine.stub("systemd-run", "shift 4; echo by-the-manager >'scope'; exec \"$@\"");
    machine.prints(CREATE, &process(&machine, "w@1", "", "set -- sh -c 'echo >>done'"));
    machine.stub("loginctl", "echo Linger=no");
    let refused = machine.fails(START, &which(&machine, "w"));
    assert!(refused.contains("KillUserProcesses=yes") && refused.contains("loginctl enable-linger"), "{refused}");
    assert!(!machine.path("done").exists());
    machine.stub("loginctl", "echo Linger=yes");
    machine.stub("systemd-run", &format!("shift 4; echo >'{}'; exec \"$@\"", machine.path("scope").display()));
    machine.prints(START, &which(&machine, "w"));
    line_of(&machine, "scope");
    line_of(&machine, "done");
}

#[test]
fn what_keeps_ranks_from_running_is_said_before_anything_is_started() {
    let machine = Machine::new(&[]);
    let check = |activate: &str| {
        let lines = format!("{activate}\nexec sh \"$HVDCTL_PLACE/begin\"");
        format!("{} activate={}", run_dir(&machine), always(&lines))
    };
    machine.stub("sshd", "exit 0");
    fs::create_dir(machine.path("run")).unwrap();
    // the start-up files of the login may set PATH, and this machine may have no sshd
    machine.prints(CHECK, &check(&format!("PATH={}:$PATH", machine.path("tools").display())));
    assert!(machine.fails(CHECK, &check("echo 'no such module' >&2; exit 78")).contains("no such module"));
    fs::create_dir(machine.path("few")).unwrap();
    symlink("/bin/sh", machine.path("few/sh")).unwrap();
    let without = machine.fails(CHECK, &check(&format!("PATH={}", machine.path("few").display())));
    assert!(without.starts_with("python3: not found, with this PATH: "), "{without}");
    // an interpreter that says it is older
    let older = "import sys; code = sys.argv[1]; sys.version_info, sys.version = (3, 6, 8), \"3.6.8 (x)\"; exec(code)";
    machine.stub("python3", &format!("shift; exec /usr/bin/python3 -c '{older}' \"$@\""));
    let old = machine.fails(CHECK, &check(&format!("PATH={}:$PATH", machine.path("tools").display())));
    assert_eq!(old, "Python 3.7 or later is needed, and python3 is 3.6.8\n");
    assert_eq!(fs::read_dir(machine.path("run")).unwrap().count(), 0, "nothing is left");
}

#[test]
fn nothing_is_run_below_a_directory_that_others_can_change() {
    // only root can make a directory another user's
    if !rustix::process::geteuid().is_root() {
        return;
    }
    let machine = Machine::new(&[("groups/ana/state/run/x", "")]);
    let state = machine.path("groups/ana/state");
    for path in [&state, &state.join("run")] {
        fs::set_permissions(path, Permissions::from_mode(0o700)).unwrap();
    }
    let variables = format!("run_dir={}", always(state.join("run").to_str().unwrap()));
    let groups = machine.path("groups");
    for (user, group, mode, why) in [
        (0, 0, 0o755, ""),
        (0, 12345, 0o2775, "can write to "),
        (0, 0, 0o777, "every user can write to "),
        (4321, 0, 0o755, "belongs to "),
        // others can rename nothing of it
        (0, 0, 0o1777, ""),
    ] {
        chown(&groups, Some(user), Some(group)).unwrap();
        fs::set_permissions(&groups, Permissions::from_mode(mode)).unwrap();
        if why.is_empty() {
            machine.prints(LIST, &variables);
            continue;
        }
        let complaint = machine.fails(LIST, &variables);
        let refused = format!("other users can change {}: ", state.display());
        assert!(complaint.contains(&refused) && complaint.contains(why), "{mode:o}: {complaint}");
    }
}
