//! Programs that run as processes of the login: their life, the processes that end with them, and the faults that keep
//! them from starting.

use super::*;
use hvdctl::text::quote::always;
use std::os::unix::fs::chown;
use std::time::{Duration, Instant};

const LIST: &[&str] = of_processes!["process/list.sh"];
const CREATE: &[&str] = of_processes!["process/create.sh"];
const START: &[&str] = of_processes!["process/start.sh"];
const WAIT: &[&str] = of_processes!["process/wait.sh"];
const END: &[&str] = of_processes!["process/end.sh"];
const OUTPUT: &[&str] = of_processes!["process/output.sh"];
const CHECK: &[&str] = of_processes!["process/active.sh", "process/check.sh"];

/// The text of parts of a script.
fn text(parts: &[&str]) -> String {
    parts.iter().map(|part| fs::read_to_string(Path::new(SCRIPTS).join(part)).unwrap()).collect()
}

/// The variables of a process with this id and command, after the lines that set up its environment.
fn process(machine: &Machine, id: &str, activate: &str, command: &str) -> String {
    let begin = format!("{}{activate}\nexec sh \"$HVDCTL_PLACE/begin\"", text(&["process/activate.sh"]));
    format!(
        "{} new_id={id} labels='{{\"a\":\"b c\"}}' workspace='{}' environment='export GIVEN=1'
        activate={} command={} main={} begin={}",
        run_dir(machine),
        machine.dir.path().display(),
        always(&begin),
        always(command),
        always(&text(&["process/active.sh", "process/main.sh"])),
        always(&text(&["process/find_python.sh", "process/begin.sh"]))
    )
}

/// The directory of what runs, and a home without start-up files of this machine's user.
fn run_dir(machine: &Machine) -> String {
    format!("export HOME='{}'\nrun_dir='{}'", machine.dir.path().display(), machine.path("run").display())
}

/// The PATH of a login shell there.
fn path_of(machine: &Machine) -> String {
    let shown = Command::new("bash").args(["-lc", "echo $PATH"]).env("HOME", machine.dir.path()).output().unwrap();
    String::from_utf8(shown.stdout).unwrap().trim().to_owned()
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

/// Runs `access/exec.sh` with a command. Returns its exit code and what it writes to standard error.
fn exec(command: &[&str]) -> (Option<i32>, String) {
    let script = text(&["access/exec.sh"]);
    let mut shell = Command::new("sh");
    shell.args(["-c", &script, "sh"]).args(command);
    let mut child = shell.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    // its end would end the command
    let _input = child.stdin.take();
    let done = child.wait_with_output().unwrap();
    (done.status.code(), String::from_utf8(done.stderr).unwrap())
}

#[test]
fn a_command_that_cannot_be_started_is_reported_by_a_shell() {
    let machine = Machine::new(&[]);
    machine.stub("lacks", "");
    let lacks = machine.path("tools/lacks");
    fs::write(&lacks, "#!/nowhere/python\n").unwrap();
    let lacks = lacks.to_str().unwrap();
    assert_eq!(exec(&["sh", "-c", "exit 7"]), (Some(7), String::new()));
    for (command, code) in [(lacks, 127), ("hvdctl-nowhere", 127), ("/", 126)] {
        let (found, said) = exec(&[command]);
        assert!(found == Some(code) && !said.contains("setsid"), "{command}: {found:?} {said}");
    }
}

#[test]
fn a_process_lives_from_its_start_to_its_end_and_takes_all_with_it() {
    let machine = Machine::new(&[]);
    // the second one has no mark any more, as sshd has written over it, and the third one no parent
    let command = "set -- sh -c 'env -i sleep 300 & echo $! >child; (setsid sleep 300 & echo $! >orphan)
        echo \"$GIVEN $ACTIVATED ${XDG_RUNTIME_DIR-gone} $PWD\" >seen; exec sleep 300'";
    machine.prints(CREATE, &process(&machine, "w@1", "export ACTIVATED=2", command));
    let state = || {
        let listed = machine.prints(LIST, &run_dir(&machine));
        let words: Vec<&str> = listed.trim().splitn(4, ' ').collect();
        format!("{} {} {}", words[0], words[2], words[3])
    };
    assert_eq!(state(), "w@1 created {\"a\":\"b c\"}");
    assert_eq!(machine.fails(CREATE, &process(&machine, "w@2", "", "set -- true")), "there is a w already\n");

    // the directory of a login goes with it
    machine.prints(START, &format!("{}\nexport XDG_RUNTIME_DIR=/run/user/1", which(&machine, "w")));
    assert_eq!(line_of(&machine, "seen"), format!("1 2 gone {}", machine.dir.path().canonicalize().unwrap().display()));
    let running = state();
    let labels: serde_json::Value = serde_json::from_str(running.strip_prefix("w@1 running ").unwrap()).unwrap();
    assert_eq!(labels["a"], "b c");
    // what `python3` is there
    let shows = "import os, sys; print('%d.%d.%d of %s (%s)' % (*sys.version_info[:3], sys.prefix, os.path.realpath(sys.executable)))";
    let own = Command::new("python3").args(["-c", shows]).env("PATH", path_of(&machine)).output().unwrap();
    assert_eq!(labels["hvdctl.python"], String::from_utf8(own.stdout).unwrap().trim());
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
fn the_end_of_a_process_is_noticed_with_and_without_its_lock() {
    let machine = Machine::new(&[]);
    machine.prints(CREATE, &process(&machine, "w@1", "", "set -- sleep 1"));
    let held =
        || !Command::new("flock").arg("-n").arg(machine.path("run/w/lock")).arg("true").status().unwrap().success();
    // a flock without the options asks in vain, and a lock that is a directory cannot be opened
    let strange = "flock() { echo >>\"$HOME/asked\"; return 1; }";
    for (lock, flock) in [("held", ""), ("missing", ""), ("a directory", ""), ("held", strange)] {
        let _ = fs::remove_dir(machine.path("run/w/lock"));
        machine.prints(START, &which(&machine, "w"));
        assert!(held(), "{lock}");
        if lock != "held" {
            fs::remove_file(machine.path("run/w/lock")).unwrap();
        }
        if lock == "a directory" {
            fs::create_dir(machine.path("run/w/lock")).unwrap();
        }
        let waits = format!("{} which=w\n{flock}", run_dir(&machine));
        assert_eq!(machine.prints(WAIT, &waits), "ended\n", "{lock}");
        assert!(lock == "a directory" || !held(), "{lock}");
    }
    let asked = fs::read_to_string(machine.path("asked")).unwrap().lines().count();
    assert!((1..20).contains(&asked), "{asked}");
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
        let find_python = always(&text(&["process/find_python.sh"]));
        format!("{} activate={} find_python={find_python}", run_dir(&machine), always(&lines))
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
    // a virtualenv of a Python that another node has; a shell would run the next one
    fs::create_dir_all(machine.path("v/bin")).unwrap();
    symlink("/nowhere/bin/python3.12", machine.path("v/bin/python3")).unwrap();
    let virtualenv = format!("PATH={}:{}:$PATH", machine.path("v/bin").display(), machine.path("tools").display());
    let python = machine.path("v/bin/python3").display().to_string();
    let first = format!("hvdctl: activate: {python}, the first python3 in PATH, ");
    let dangling = format!("{first}leads to /nowhere/bin/python3.12, which is not on this node\n");
    assert_eq!(machine.fails(CHECK, &check(&virtualenv)), dangling);
    fs::remove_file(&python).unwrap();
    fs::write(&python, "").unwrap();
    assert_eq!(machine.fails(CHECK, &check(&virtualenv)), format!("{first}cannot be executed\n"));
    // a directory is no program
    fs::remove_file(&python).unwrap();
    fs::create_dir(&python).unwrap();
    machine.prints(CHECK, &check(&virtualenv));
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

/// The text of a script behind the functions that set the environment of ranks aside.
fn outside_of_ranks(script: &str) -> String {
    text(&["programs/environment/environment.sh", script])
}

#[test]
fn sshd_has_nothing_of_the_environment_of_ranks_and_its_sessions_have_all() {
    let machine = Machine::new(&[("lib/libcrypto.so.3", "none"), ("lib/libz.so.1", "none")]);
    machine.stub(
        "sshd",
        &format!("env >'{0}.new'; mv '{0}.new' '{0}'; exec sleep 300", machine.path("of-sshd").display()),
    );
    let activate = format!(
        "export PATH='{}':$PATH LD_LIBRARY_PATH='{}' LD_PRELOAD=/nowhere.so OPENSSL_CONF=/nowhere SSH_AUTH_SOCK=/nowhere
        export PYTHONPATH=/nowhere VALUE='it'\\''s $x'
        export directory=1 name=2 sshd=3",
        machine.path("tools").display(),
        machine.path("lib").display()
    );
    let login = outside_of_ranks("worker/login.sh");
    let command = format!("set -- sh -c {} sshd -D", always(&login));
    machine.prints(CREATE, &process(&machine, "w@1", &activate, &command));
    machine.prints(START, &which(&machine, "w"));
    line_of(&machine, "of-sshd");
    let of_sshd = fs::read_to_string(machine.path("of-sshd")).unwrap();
    let names = of_sshd.lines().map(|line| line.split_once('=').unwrap().0);
    // the shell of the stand-in sets the last ones
    let known =
        ["PATH", "HOME", "TERM", "HVDCTL_PROCESS", "HVDCTL_PLACE", "HVDCTL_MAIN", "PWD", "OLDPWD", "SHLVL", "_"];
    let others: Vec<&str> = names.filter(|name| !known.contains(name)).collect();
    assert!(others.is_empty(), "{others:?}");
    let session = Command::new("sh")
        .arg(machine.path("run/w/session"))
        .env(
            "SSH_ORIGINAL_COMMAND",
            "echo \"$LD_LIBRARY_PATH $LD_PRELOAD $OPENSSL_CONF $PYTHONPATH $VALUE $directory$name$sshd\"; env",
        )
        .output();
    let said = String::from_utf8(session.unwrap().stdout).unwrap();
    let wanted = format!("{} /nowhere.so /nowhere /nowhere it's $x 123\n", machine.path("lib").display());
    assert!(said.starts_with(&wanted) && !said.contains("HVDCTL_RANKS_"), "{said}");
    machine.prints(END, &which(&machine, "w"));
}

#[test]
fn what_a_line_that_still_runs_has_printed_is_shown() {
    let machine = Machine::new(&[]);
    let activate = "module() { echo loading >&2; sleep 300; }; echo before
        hvdctl_listen; eval 'module load x' 2>|\"$HVDCTL_PLACE/messages\"";
    machine.prints(CREATE, &process(&machine, "w@1", activate, "set -- true"));
    machine.prints(START, &which(&machine, "w"));
    line_of(&machine, "run/w/messages");
    let said = machine.prints(OUTPUT, &format!("{}\nlines=5", which(&machine, "w")));
    assert_eq!(said.trim(), "before\nloading");
    machine.prints(END, &which(&machine, "w"));
}

#[test]
fn a_python_gets_the_libraries_that_it_needs_to_start_and_no_others() {
    let machine = Machine::new(&[]);
    fs::write(machine.path("python"), outside_of_ranks("programs/environment/python.sh")).unwrap();
    let path = format!("{}:{}", machine.path("tools").display(), std::env::var("PATH").unwrap());
    let shows = "if [ \"$3\" = -S ] || [ \"$2\" = -S ]; then exit 0; fi; echo \"${LD_LIBRARY_PATH-none} ${HVDCTL_RANKS_LD_LIBRARY_PATH-none} $*\"";
    for (needs, given, shown) in [
        ("true", Some("/lib s"), "none /lib s -I -X utf8 a b c"),
        ("true", None, "none none -I -X utf8 a b c"),
        ("[ -n \"${LD_LIBRARY_PATH:-}\" ]", Some("/lib s"), "/lib s none -I -X utf8 a b c"),
    ] {
        machine.stub("python3", &format!("{needs} || exit 127; {shows}"));
        let mut python = Command::new("sh");
        python.arg(machine.path("python")).args(["a", "b c"]).env("PATH", &path).env_remove("LD_LIBRARY_PATH");
        python.envs(given.map(|value| ("LD_LIBRARY_PATH", value)));
        let said = String::from_utf8(python.output().unwrap().stdout).unwrap();
        assert_eq!(said.trim(), shown, "{needs}");
    }
}

#[test]
fn a_process_whose_first_python_is_on_another_node_does_not_start() {
    let machine = Machine::new(&[]);
    fs::create_dir(machine.path("v")).unwrap();
    symlink("/nowhere/python3", machine.path("v/python3")).unwrap();
    let activate = format!("PATH={}:$PATH", machine.path("v").display());
    machine.prints(CREATE, &process(&machine, "w@1", &activate, "set -- sh -c 'echo >>done'"));
    machine.prints(START, &which(&machine, "w"));
    let said = line_of(&machine, "run/w/output");
    assert!(said.starts_with("hvdctl: activate: ") && said.ends_with("which is not on this node"), "{said}");
    let limit = Instant::now() + Duration::from_secs(10);
    while !machine.prints(LIST, &run_dir(&machine)).contains(" exited ") {
        assert!(Instant::now() < limit);
    }
    assert!(!machine.path("done").exists());
}

#[test]
fn ranks_run_the_python_of_the_environment_that_is_active() {
    let machine = Machine::new(&[
        // start-up files that set PATH anew, and activate another environment as `conda init` does
        (".profile", "PATH=$BASE/bin:/usr/bin:/bin CONDA_PREFIX=$BASE; export CONDA_PREFIX\n"),
    ]);
    let place = |name: &str| machine.path(name).display().to_string();
    for name in ["base", "mine", "lines"] {
        fs::create_dir_all(machine.path(name).join("bin")).unwrap();
        let python = machine.path(name).join("bin/python3");
        fs::write(&python, format!("#!/bin/sh\nNAME={name} exec /usr/bin/python3 \"$@\"\n")).unwrap();
        fs::set_permissions(python, Permissions::from_mode(0o755)).unwrap();
    }
    let shows =
        "set -- sh -c 'echo \"$(command -v python3) ${VIRTUAL_ENV-} $CONDA_PREFIX ${HVDCTL_ACTIVE-gone}\" >>seen'";
    let (base, mine, lines) = (place("base"), place("mine"), place("lines"));
    for (number, (name, path, activate, python, conda)) in [
        ("VIRTUAL_ENV", format!("{mine}/bin:"), String::new(), &mine, &base),
        ("CONDA_PREFIX", format!("/nowhere:{mine}/bin:"), String::new(), &mine, &mine),
        // the lines of the inventory choose
        ("VIRTUAL_ENV", format!("{mine}/bin:"), format!("PATH={lines}/bin:$PATH"), &lines, &base),
        // another Python precedes it, or it is no longer in PATH
        ("VIRTUAL_ENV", format!("{lines}/bin:{mine}/bin:"), String::new(), &base, &base),
        ("CONDA_PREFIX", String::new(), String::new(), &base, &base),
    ]
    .into_iter()
    .enumerate()
    {
        let _ = fs::remove_file(machine.path("seen"));
        let id = format!("w{number}");
        machine.prints(CREATE, &process(&machine, &format!("{id}@1"), &activate, shows));
        let given = format!("export BASE={base} {name}={mine} PATH={path}$PATH");
        machine.prints(START, &format!("{}\n{given}", which(&machine, &id)));
        let active = if name == "VIRTUAL_ENV" { mine.as_str() } else { "" };
        assert_eq!(line_of(&machine, "seen"), format!("{python}/bin/python3 {active} {conda} gone"), "{number}");
        machine.prints(END, &which(&machine, &id));
    }
    // what is checked before anything is started is checked there as well
    machine.stub("sshd", "exit 0");
    let begin = format!(
        "{}[ \"$(command -v python3)\" = {mine}/bin/python3 ] || exit 78\nPATH={}:$PATH\nexec sh \"$HVDCTL_PLACE/begin\"",
        text(&["process/activate.sh"]),
        place("tools")
    );
    let find_python = text(&["process/find_python.sh"]);
    let variables = format!("{} activate={} find_python={}", run_dir(&machine), always(&begin), always(&find_python));
    let given = format!("export BASE={base} VIRTUAL_ENV={mine} PATH={mine}/bin:$PATH");
    machine.prints(CHECK, &format!("{variables}\n{given}"));
}
