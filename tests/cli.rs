//! The command line without nodes, as scripts and users see it: help, errors, exit codes, streams.

use hvdctl::cli::rewrite;
use proptest::prelude::*;
use std::ffi::OsString;
use std::fs;
use std::net::TcpListener;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};
use tempfile::TempDir;

/// An inventory whose nodes refuse ssh at once.
const REFUSES: &str = "[cluster]\nname = \"lab\"\nconnect_timeout_s = 5\n[defaults]\nuser = \"nobody\"\nssh_port = \
    1\ngpus = 1\n\
                       [[node]]\nhost = \"127.0.0.1\"\nname = \"a\"\n[[node]]\nhost = \"127.0.0.2\"\nname = \"b\"\n";

const OWN_HOME: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/own_home");

fn path() -> String {
    std::env::var("PATH").unwrap()
}

/// A directory for one test, with this inventory in it.
fn directory(inventory: Option<&str>) -> TempDir {
    let dir = tempfile::tempdir().unwrap();
    if let Some(text) = inventory {
        fs::write(dir.path().join("inventory.toml"), text).unwrap();
    }
    dir
}

fn command(dir: &Path, args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_hvdctl"));
    command.current_dir(dir).env("HOME", dir).env("XDG_RUNTIME_DIR", dir).args(args).stdin(Stdio::null());
    // in tests, $HOME is the home for ssh too
    command.env("PATH", format!("{OWN_HOME}:{}", path()));
    for name in
        ["HVDCTL_INVENTORY", "HVDCTL_IMAGE", "XDG_CONFIG_HOME", "COLUMNS", "CLICOLOR_FORCE", "NO_COLOR", "RUST_LOG"]
    {
        command.env_remove(name);
    }
    command
}

/// Checks that standard error ends with the name of a file where nodes were concerned, and returns the rest.
fn without_log(err: &str) -> String {
    let Some((rest, file)) = err.split_once("what was done on each node: ") else {
        assert!(!err.contains("cannot log in"), "{err}");
        return err.to_owned();
    };
    let log = fs::read_to_string(file.trim_end()).unwrap();
    for words in ["what=\"ssh\" operation=\"log in\"}: begins", "}: failed ms="] {
        assert!(log.contains(words), "{log}");
    }
    rest.to_owned()
}

/// Runs it and shows exit code and both streams. Nothing here takes longer than a moment.
fn show(mut command: Command) -> String {
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let end = Instant::now() + Duration::from_secs(120);
    while child.try_wait().unwrap().is_none() {
        if Instant::now() > end {
            child.kill().unwrap();
            panic!("{command:?}: not finished within 120 s");
        }
        thread::sleep(Duration::from_millis(5));
    }
    let done = child.wait_with_output().unwrap();
    let (out, err) = (String::from_utf8(done.stdout).unwrap(), String::from_utf8(done.stderr).unwrap());
    let err = without_log(&err);
    format!("exit code: {}\n--- stdout\n{out}--- stderr\n{err}", done.status.code().unwrap())
}

fn hvdctl(dir: &Path, args: &[&str]) -> String {
    show(command(dir, args))
}

/// The exit code alone.
fn code(dir: &Path, args: &[&str]) -> i32 {
    let shown = hvdctl(dir, args);
    shown.lines().next().and_then(|l| l.strip_prefix("exit code: ")).unwrap().parse().unwrap()
}

#[test]
fn help() {
    let dir = directory(None);
    for words in [
        "",
        "keys",
        "keys generate",
        "keys push",
        "keys rotate",
        "keys status",
        "up",
        "down",
        "drain",
        "grade",
        "pool",
        "pool pick",
        "status",
        "doctor",
        "verify",
        "bench",
        "jobs",
        "jobs prune",
        "attach",
        "data",
        "data push",
        "data rm",
        "data status",
        "env",
        "env create",
        "env list",
        "env rm",
        "logs",
        "top",
        "report",
        "stop",
        "fetch",
        "exec",
        "shell",
        "disconnect",
        "hosts",
        "export",
        "export mpijob",
        "export jobset",
        "export sbatch",
        "image",
        "image build",
        "image prune",
        "image pull",
        "image push",
        "image status",
        "train",
        "run",
        "notebook",
        "lock",
        "slurm",
        "slurm up",
        "slurm exec",
        "slurm down",
    ] {
        let args: Vec<&str> = words.split_whitespace().chain(["--help"]).collect();
        let name = format!("help {words}").trim_end().replace(' ', "_");
        insta::assert_snapshot!(name, hvdctl(dir.path(), &args));
    }
}

#[test]
fn formats_of_other_tools_need_no_node() {
    let dir = directory(Some(REFUSES));
    insta::assert_snapshot!(hvdctl(dir.path(), &["hosts"]), @r"
    exit code: 0
    --- stdout
    127.0.0.1:1,127.0.0.2:1
    --- stderr
    ");
    insta::assert_snapshot!(hvdctl(dir.path(), &["--on", "b", "hosts", "--format", "mpi"]), @r"
    exit code: 0
    --- stdout
    127.0.0.2 slots=1
    --- stderr
    ");
    let config = dir.path().join("ssh_config");
    let shown = hvdctl(dir.path(), &["hosts", "--format", "ssh"]);
    let text = shown.split("--- stdout\n").nth(1).unwrap().split("--- stderr").next().unwrap();
    fs::write(&config, text).unwrap();
    let mut ssh = Command::new("ssh");
    ssh.arg("-G").arg("-F").arg(&config).arg("b");
    let resolved = show(ssh);
    for line in ["hostname 127.0.0.2\n", "user nobody\n", "port 1\n"] {
        assert!(resolved.contains(line), "no {line} in {resolved}");
    }
    // a shell reads it
    let shown = hvdctl(dir.path(), &["hosts", "--format", "env"]);
    let text = shown.split("--- stdout\n").nth(1).unwrap().split("--- stderr").next().unwrap();
    let mut sh = Command::new("sh");
    sh.args(["-c", &format!("{text}\necho \"$HVDCTL_NODES $HVDCTL_SLOTS $HOROVOD_HOSTNAME\"")]);
    assert!(show(sh).contains("\na b 2 127.0.0.1:1,127.0.0.2:1\n"), "{shown}");
    // without a terminal there is no shell, and nothing is asked
    assert_eq!(code(dir.path(), &["shell"]), 2);
    assert_eq!(code(dir.path(), &["exec", "--", "true"]), 125);
}

#[test]
fn every_fault_of_an_inventory_is_listed_at_once_and_nothing_is_touched() {
    let dir = directory(Some(
        "[cluster]\nname = \"lab\"\nport = 70000\nimagee = \"x\"\n\n[defaults]\ngpus = \"some\"\n\n[[node]]\nhost = \
         \"a\"\n\n[[node]]\nhost = \"a\"\nslots = -1\n",
    ));
    insta::assert_snapshot!(hvdctl(dir.path(), &["up"]), @r#"
    exit code: 2
    --- stdout
    --- stderr
    error: inventory.toml: 5 faults
      inventory.toml:3:8: cluster.port: expected a port from 1 to 65535, found 70000
        3 | port = 70000
          |        ^^^^^
      inventory.toml:4:1: cluster.imagee: unknown field; did you mean `image`? (known: name, image, pull, engine, runtime, state_dir, network, network_range, network_port, network_interface, port, worker, master, ssh_dir, projects_dir, jobs_dir, data_dir, key_type, launcher, controller, bind, shm_size, ssh_config, connect_timeout_s, command_timeout_s, start_timeout_s, stop_grace_s, stall_warning_s, stall_timeout_s, idle_margin_s, isolated_after_s, sample_s, restart_pause_s, elastic_timeout_s, worker_idle_s, keep_alive_s, connection_idle_s)
        4 | imagee = "x"
          | ^^^^^^
      inventory.toml:7:8: defaults.gpus: expected a number of GPUs from 0 to 1024, "auto", "all", "none", or a list of indices and UUIDs, found "some"
        7 | gpus = "some"
          |        ^^^^^^
      inventory.toml:13:8: node.host: duplicate node "a"; line 10 has the same host, port and user
        13 | host = "a"
           |        ^^^
      inventory.toml:14:9: node.slots: expected a number of slots from 1 to 1024, found -1
        14 | slots = -1
           |         ^^
    "#);
    let first = hvdctl(dir.path(), &["up"]);
    for args in [&["status"] as &[&str], &["down"], &["verify"], &["keys", "push"], &["run", "-np", "1", "--", "true"]]
    {
        assert_eq!(hvdctl(dir.path(), args), first, "every command says the same");
    }
    // as JSON the same message, in one document
    let json = hvdctl(dir.path(), &["--json", "up"]);
    let document: serde_json::Value = serde_json::from_str(json.lines().nth(2).unwrap()).unwrap();
    assert_eq!((&document["ok"], &document["code"]), (&false.into(), &2.into()));
    let words = document["error"].as_str().unwrap();
    assert_eq!(first, format!("exit code: 2\n--- stdout\n--- stderr\nerror: {words}\n"));
    assert!(json.ends_with("}\n--- stderr\n"), "{json}");
    fs::write(dir.path().join("inventory.toml"), "[cluster\nname = 1").unwrap();
    insta::assert_snapshot!(hvdctl(dir.path(), &["status"]), @r"
    exit code: 2
    --- stdout
    --- stderr
    error: inventory.toml: 1 fault
      inventory.toml:1:9: not TOML: unclosed table, expected `]`
        1 | [cluster
          |         ^
    ");
    fs::write(dir.path().join("inventory.toml"), "[cluster]\nname = \"lab\"\n").unwrap();
    insta::assert_snapshot!(hvdctl(dir.path(), &["status"]), @r"
    exit code: 2
    --- stdout
    --- stderr
    error: inventory.toml: 1 fault
      inventory.toml:1:1: node: missing; expected at least one [[node]] with a `host`
    ");
}

#[test]
fn where_the_inventory_is_looked_for() {
    let dir = directory(None);
    insta::assert_snapshot!(hvdctl(dir.path(), &["keys", "push"]), @r"
    exit code: 2
    --- stdout
    --- stderr
    error: there is no inventory
      hint: write one with hvdctl init, or name one with -i
    ");
    insta::assert_snapshot!(hvdctl(dir.path(), &["-i", "missing.toml", "status"]), @r"
    exit code: 2
    --- stdout
    --- stderr
    error: missing.toml: cannot be read: No such file or directory (os error 2)
    ");
    // the option comes before the variable, that before ./inventory.toml, that before the file in the home
    let broken = |name: &str| format!("[cluster]\nname = \"{name}\"\n");
    fs::create_dir_all(dir.path().join(".config/hvdctl")).unwrap();
    for file in [".config/hvdctl/inventory.toml", "inventory.toml", "variable.toml", "named.toml"] {
        fs::write(dir.path().join(file), broken("lab")).unwrap();
    }
    let says = |file: &str, command: Command| {
        let shown = show(command);
        assert!(shown.starts_with("exit code: 2") && shown.contains(&format!("{file}:")), "{file}: {shown}");
    };
    let with_variable = |file: &str, args: &[&str]| {
        let mut command = command(dir.path(), args);
        command.env("HVDCTL_INVENTORY", file);
        command
    };
    says("named.toml", with_variable("variable.toml", &["-i", "named.toml", "status"]));
    says("variable.toml", with_variable("variable.toml", &["status"]));
    says("inventory.toml", with_variable("", &["status"]));
    says("inventory.toml", command(dir.path(), &["status"]));
    fs::remove_file(dir.path().join("inventory.toml")).unwrap();
    says(".config/hvdctl/inventory.toml", command(dir.path(), &["status"]));
}

#[test]
#[expect(clippy::too_many_lines, reason = "a list of commands with their whole output")]
fn invalid_arguments_are_refused() {
    let dir = directory(Some(REFUSES));
    fs::create_dir(dir.path().join("p")).unwrap();
    insta::assert_snapshot!(hvdctl(dir.path(), &["--on", "a,c", "status"]), @r"
    exit code: 2
    --- stdout
    --- stderr
    error: --on a,c: no node is named c (nodes: a,b)
      hint: names as in the inventory, node[01-16], @group, a,b, !c; ROLE=NODES,ROLE=NODES by role
    ");
    insta::assert_snapshot!(hvdctl(dir.path(), &["--on", "!a,!b", "status"]), @r"
    exit code: 2
    --- stdout
    --- stderr
    error: --on !a,!b: no node is left
      hint: names as in the inventory, node[01-16], @group, a,b, !c; ROLE=NODES,ROLE=NODES by role
    ");
    insta::assert_snapshot!(hvdctl(dir.path(), &["train", "p"]), @r"
    exit code: 2
    --- stdout
    --- stderr
    error: the number of ranks is missing: train needs -np N, or --best N for all slots of the N best nodes
      hint: hvdctl train p -np 2
    ");
    insta::assert_snapshot!(hvdctl(dir.path(), &["run", "-np", "2"]), @r"
    exit code: 2
    --- stdout
    --- stderr
    error: the following required arguments were not provided:
      <COMMAND>...

    Usage: hvdctl run <--np <N>|--best <N>> -- <COMMAND>...

    For more information, try '--help'.
    ");
    insta::assert_snapshot!(hvdctl(dir.path(), &["train", "p", "-np", "3"]), @r"
    exit code: 2
    --- stdout
    --- stderr
    error: 3 ranks were requested, but the cluster has 2 slots (a: 1, b: 1)
      hint: lower -np, add nodes, or raise `slots` (or `gpus`) of a [[node]] in the inventory
    ");
    insta::assert_snapshot!(hvdctl(dir.path(), &["train", "p", "-np", "3:4", "--map-by", "node"]), @r"
    exit code: 2
    --- stdout
    --- stderr
    error: 3 ranks were requested, but the cluster has 2 slots (a: 1, b: 1)
      hint: lower -np, add nodes, or raise `slots` (or `gpus`) of a [[node]] in the inventory
    ");
    insta::assert_snapshot!(hvdctl(dir.path(), &["train", "p", "-np", "4:3"]), @r"
    exit code: 2
    --- stdout
    --- stderr
    error: invalid value '4:3' for '--np <N>': MIN is greater than MAX: 4 is more than 3

    For more information, try '--help'.
    ");
    insta::assert_snapshot!(hvdctl(dir.path(), &["train", "nowhere", "-np", "2"]), @r"
    exit code: 2
    --- stdout
    --- stderr
    error: cannot read the project nowhere: No such file or directory
      hint: name the project's directory, e.g. hvdctl train ./myproject -np 2
    ");
    insta::assert_snapshot!(hvdctl(dir.path(), &["train", "inventory.toml", "-np", "2"]), @r"
    exit code: 2
    --- stdout
    --- stderr
    error: the project inventory.toml is not a directory
      hint: name the project's directory, e.g. hvdctl train ./myproject -np 2
    ");
    for args in [
        &["verify", "--gloo", "--mpi"] as &[&str],
        &["verify", "--gloo", "--controller", "mpi"],
        &["run", "-np", "two", "--", "true"],
        &["run", "-np", "-1", "--", "true"],
        &["run", "-np", "0", "--", "true"],
        &["run", "-np=", "--", "true"],
        &["run", "-np", "4294967296", "--", "true"],
        &["run", "-np", "0:2", "--", "true"],
        &["run", "-np", "1:", "--", "true"],
        &["run", "-np", ":2", "--", "true"],
        &["run", "-np", "1:2:3", "--", "true"],
        &["verify", "-np", "1:2"],
        &["drain"],
        &["drain", "a", "--on", "b"],
        &["--on", "b", "drain", "a"],
        &["up", "extra"],
        &["nonsense"],
        &["-q", "-v", "status"],
        &["--color", "sometimes", "status"],
        &["--image", "x", "status"],
        &["--on", "", "status"],
        &["--on", "node[1-", "status"],
        &[],
    ] {
        assert_eq!(code(dir.path(), args), 2, "{args:?}");
    }
}

#[test]
fn a_project_without_a_clear_entry() {
    let dir = directory(Some(REFUSES));
    let project = dir.path().join("p");
    fs::create_dir(&project).unwrap();
    let train = || {
        hvdctl(dir.path(), &["train", "p", "-np", "1"])
            .replace(&*dir.path().canonicalize().unwrap().to_string_lossy(), "DIR")
    };
    fs::write(project.join("train.py"), "").unwrap();
    fs::write(project.join("main.py"), "").unwrap();
    insta::assert_snapshot!(train(), @r"
    exit code: 2
    --- stdout
    --- stderr
    error: the project DIR/p has no clear entry point: both train.py and main.py are in it
      hint: name the program: hvdctl train PROJECT -np N -- python your_script.py
    ");
    fs::write(project.join("hvdctl.toml"), "command = \"python train.py\"\n").unwrap();
    insta::assert_snapshot!(train(), @r#"
    exit code: 2
    --- stdout
    --- stderr
    error: DIR/p/hvdctl.toml: TOML parse error at line 1, column 11
      |
    1 | command = "python train.py"
      |           ^^^^^^^^^^^^^^^^^
    invalid type: string "python train.py", expected a sequence
      hint: fix or remove the file
    "#);
    fs::write(project.join("hvdctl.toml"), "comand = [\"x\"]\n").unwrap();
    fs::write(dir.path().join("file.py"), "").unwrap();
    fs::create_dir(dir.path().join("none")).unwrap();
    for (path, words) in [
        ("p", ["hvdctl.toml", "comand"]),
        ("missing", ["missing", "No such file"]),
        ("file.py", ["file.py", "not a directory"]),
        ("none", ["no clear entry", "there is no hvdctl.toml, train.py or main.py"]),
        ("/", ["/", "root of the file system"]),
    ] {
        let shown = hvdctl(dir.path(), &["train", path, "-np", "2"]);
        assert!(shown.starts_with("exit code: 2") && shown.contains("hint: "), "{path}: {shown}");
        assert!(words.iter().all(|word| shown.contains(word)), "{path}: {shown}");
    }
}

#[test]
fn a_silent_sshd_times_out() {
    // it accepts and then is silent, as a machine without memory does
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = silent.local_addr().unwrap().port();
    let inventory = REFUSES
        .replace("connect_timeout_s = 5", "connect_timeout_s = 1")
        .replace("name = \"a\"", &format!("name = \"a\"\nssh_port = {port}"));
    let dir = directory(Some(&inventory));
    let shown = hvdctl(dir.path(), &["up"]);
    for words in ["exit code: 4", "error: a: cannot log in by ssh", "\nb: cannot log in by ssh", "2 nodes unreachable"]
    {
        assert!(shown.contains(words), "no {words:?} in\n{shown}");
    }
    let shown = hvdctl(dir.path(), &["status"]);
    let rows: Vec<&str> = shown.lines().filter(|line| line.ends_with("unreachable")).collect();
    assert_eq!(rows, ["a     unreachable", "b     unreachable"], "{shown}");
}

#[test]
fn unreachable_nodes_have_their_own_exit_code() {
    let dir = directory(Some(REFUSES));
    insta::assert_snapshot!(hvdctl(dir.path(), &["-q", "up"]), @r"
    exit code: 4
    --- stdout
    --- stderr
    error: a: cannot log in by ssh as nobody@127.0.0.1: connect to host 127.0.0.1 port 1: Connection refused
      hint: see whether `ssh -p 1 nobody@127.0.0.1` works
    b: cannot log in by ssh as nobody@127.0.0.2: connect to host 127.0.0.2 port 1: Connection refused
      hint: see whether `ssh -p 1 nobody@127.0.0.2` works
    2 nodes unreachable, nothing was changed
    ");
    for (args, expected) in [
        (&["keys", "push"] as &[&str], 4),
        (&["down"], 4),
        (&["status"], 4),
        (&["verify"], 4),
        (&["up", "--skip-offline"], 4),
        (&["run", "-np", "2", "--", "true"], 125),
    ] {
        assert_eq!(code(dir.path(), args), expected, "{args:?}");
    }
    let json = hvdctl(dir.path(), &["--json", "up"]);
    let line = json.lines().nth(2).unwrap();
    let document: serde_json::Value = serde_json::from_str(line).unwrap();
    assert_eq!((&document["ok"], &document["code"]), (&false.into(), &4.into()));
    let nodes: Vec<&str> = document["nodes"].as_array().unwrap().iter().map(|n| n["node"].as_str().unwrap()).collect();
    assert_eq!(nodes, ["a", "b"]);
    assert!(json.ends_with("--- stderr\n"), "with --json nothing goes to standard error:\n{json}");
    assert!(json.lines().count() == 4, "one document, one line:\n{json}");
}

#[test]
fn without_ssh_it_says_what_to_install() {
    let dir = directory(Some(REFUSES));
    let mut status = command(dir.path(), &["status"]);
    status.env("PATH", dir.path());
    let shown = show(status);
    let (error, hint) = shown.split_once("  hint: ").expect(&shown);
    insta::assert_snapshot!(error, @r"
    exit code: 1
    --- stdout
    --- stderr
    error: cannot run ssh: it is not in PATH
    ");
    // the package and the command are those of this machine's distribution
    assert!(hint.contains("openssh"), "{shown}");
}

#[test]
fn the_limit_of_open_files_is_raised_and_otherwise_named() {
    let dir = directory(Some(REFUSES));
    let limited = |limits: &str| {
        let mut sh = Command::new("sh");
        sh.args(["-c", &format!("{limits}; exec \"$0\" status"), env!("CARGO_BIN_EXE_hvdctl")]);
        sh.current_dir(dir.path()).env("HOME", dir.path()).env("XDG_RUNTIME_DIR", dir.path());
        sh
    };
    // the first failure is in another place each time
    for files in 9..=14 {
        let shown = show(limited(&format!("ulimit -n {files}")));
        assert!(shown.contains("(os error 24)"), "{files}: {shown}");
        assert!(shown.contains("\n  hint: this machine's limit of open files is too low: "), "{files}: {shown}");
        assert!(!shown.contains("openssh"), "{files}: {shown}");
    }
    let ssh = dir.path().join("ssh");
    fs::write(&ssh, "#!/bin/sh\nulimit -Sn >\"$HOME/limit\"\nexit 1\n").unwrap();
    fs::set_permissions(ssh, fs::Permissions::from_mode(0o755)).unwrap();
    let mut command = limited("ulimit -Sn 40; ulimit -Hn 200");
    command.env("PATH", format!("{}:{}", dir.path().display(), path()));
    let shown = show(command);
    assert_eq!(fs::read_to_string(dir.path().join("limit")).expect(&shown), "200\n", "{shown}");
}

#[test]
fn the_configuration_is_that_of_ssh_whatever_home_says() {
    let dir = directory(None);
    let (home, elsewhere) = (dir.path().join("home"), dir.path().join("elsewhere"));
    for (home, alias) in [(&home, "known"), (&elsewhere, "unknown.invalid")] {
        fs::create_dir_all(home.join(".ssh")).unwrap();
        let host = format!("Host {alias}\n  HostName 127.0.0.1\n  Port 1\n");
        fs::write(home.join(".ssh/config"), host).unwrap();
    }
    let nodes = "[[node]]\nhost = \"known\"\n[[node]]\nhost = \"unknown.invalid\"\n";
    fs::write(dir.path().join("inventory.toml"), format!("[cluster]\nname = \"lab\"\n{nodes}")).unwrap();
    // the user database of this mount namespace says where root, as whom it runs there, is at home
    let passwd = dir.path().join("passwd");
    fs::write(&passwd, format!("root:x:0:0::{}:/bin/sh\n", home.display())).unwrap();
    let inside = |args: &[&str]| {
        let mut unshare = Command::new("unshare");
        let own = if rustix::process::geteuid().is_root() { &[][..] } else { &["--user", "--map-root-user"] };
        unshare.arg("--mount").args(own).args(["sh", "-c", "mount --bind \"$0\" /etc/passwd && exec \"$@\""]);
        unshare.arg(&passwd).arg(env!("CARGO_BIN_EXE_hvdctl")).args(args).current_dir(dir.path());
        unshare.env("XDG_RUNTIME_DIR", dir.path());
        unshare.env("HOME", &elsewhere).env_remove("HVDCTL_INVENTORY").env_remove("XDG_STATE_HOME");
        show(unshare)
    };
    let shown = inside(&["status"]);
    assert!(shown.contains("known: cannot log in by ssh as known: connect to host 127.0.0.1 port 1"), "{shown}");
    assert!(shown.contains("Could not resolve hostname unknown.invalid"), "{shown}");
    assert!(shown.contains(&format!("add the name to {}/.ssh/config", home.display())), "{shown}");
    // hvdctl's own file is where a shell's ~ is
    assert!(elsewhere.join(".local/state/hvdctl/known_hosts").exists() && !home.join(".local").exists());
    let shown = inside(&["init", "--no-probe", "--from-ssh-config", "-o", "new.toml"]);
    let new = fs::read_to_string(dir.path().join("new.toml")).expect(&shown);
    assert!(new.contains("\"known\"") && !new.contains("unknown"), "{new}");
}

#[test]
fn what_cannot_be_written_is_an_error() {
    let dir = directory(Some(REFUSES));
    for args in [&["schema"] as &[&str], &["--json", "schema"], &["completions", "bash"]] {
        let full = fs::OpenOptions::new().write(true).open("/dev/full").unwrap();
        let done = command(dir.path(), args).stdout(full).output().unwrap();
        let err = String::from_utf8_lossy(&done.stderr);
        assert_eq!(err, "error: cannot write to standard output: No space left on device (os error 28)\n", "{args:?}");
        assert_eq!(done.status.code(), Some(1), "{args:?}");
    }
}

#[test]
fn invalid_numbers_of_ranks() {
    let dir = directory(Some(REFUSES));
    for np in ["-1", "two", "1.5"] {
        let shown = hvdctl(dir.path(), &["train", "p", "-np", np]);
        assert!(shown.starts_with("exit code: 2"), "{shown}");
        assert!(shown.contains("the number of ranks must be a whole number of at least 1"), "{shown}");
    }
}

#[test]
fn a_closed_output_is_no_panic() {
    let dir = directory(Some(REFUSES));
    for args in [&["--help"] as &[&str], &["--json", "status"], &["status"]] {
        let mut child = command(dir.path(), args).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        drop(child.stdout.take());
        let done = child.wait_with_output().unwrap();
        let err = String::from_utf8_lossy(&done.stderr);
        assert!(!err.contains("panicked"), "{args:?}: {err}");
        assert_ne!(done.status.code(), Some(101), "{args:?}");
    }
}

proptest! {
    /// Arguments after `--` belong to the program and are never changed, whatever comes before.
    #[test]
    fn words_behind_the_dashes_stay(
        before in prop::collection::vec("-np|-np=[0-9]|train|-[a-z]|[a-z/]{1,5}", 0..6),
        after in prop::collection::vec("-np|-np=[0-9]|--|--json|[ -~é\n]{0,6}", 0..8),
    ) {
        let words: Vec<OsString> = before.iter().map(String::as_str).chain(["--"]).chain(after.iter().map(String::as_str)).map(OsString::from).collect();
        let rewritten = rewrite(words.clone());
        prop_assert_eq!(rewritten.len(), words.len());
        prop_assert_eq!(&rewritten[before.len()..], &words[before.len()..]);
        for (old, new) in words.iter().zip(&rewritten).take(before.len()) {
            let old = old.to_str().unwrap();
            if old == "-np" || old.starts_with("-np=") {
                prop_assert_eq!(new, &OsString::from(format!("-{old}")));
            } else {
                prop_assert_eq!(new, old);
            }
        }
    }
}

/// The whole way without a node: real signatures of ssh-keygen, the real script in a directory of this machine, the
/// real binary.
#[test]
fn a_forged_file_of_a_pool_is_shown_as_such() {
    let inventory = format!("{REFUSES}[pool]\npath = \"POOL\"\nkey = \"ana\"\n");
    let dir = directory(None);
    let pool = dir.path().join("pool");
    fs::write(dir.path().join("inventory.toml"), inventory.replace("POOL", &pool.display().to_string())).unwrap();
    let ssh_keygen = |arguments: &[&str]| {
        let done = Command::new("ssh-keygen").current_dir(dir.path()).args(arguments).output().unwrap();
        assert!(done.status.success(), "{done:?}");
    };
    ssh_keygen(&["-q", "-t", "ed25519", "-N", "", "-f", "ana"]);
    let members = format!("ana namespaces=\"hvdctl-pool\" {}", fs::read_to_string(dir.path().join("ana.pub")).unwrap());
    fs::write(dir.path().join("allowed_signers"), members).unwrap();
    // nothing is logged in to, and so without_log has nothing to check
    let list = || {
        let done = command(dir.path(), &["pool"]).output().unwrap();
        (done.status.code(), String::from_utf8([done.stdout, done.stderr].concat()).unwrap())
    };
    let (code, missing) = list();
    assert!(code == Some(1) && missing.contains("there is no directory"), "{missing}");
    fs::create_dir(&pool).unwrap();
    let now = std::time::SystemTime::UNIX_EPOCH.elapsed().unwrap().as_secs();
    let node = |name: &str| hvdctl::pool::format::PoolNode {
        format: 1,
        owner: "ana".into(),
        cluster: "lab".into(),
        node: name.into(),
        host: "192.0.2.1".into(),
        port: 22,
        host_key: Some("ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIJTyqYIOkkDxRjQoVAIwUpYHmzqDdzJYdHhGZ7cgBuzr".into())
            .filter(|_| name != "old"),
        address: None,
        endpoint: None,
        kind: hvdctl::model::grade::NodeKind { cores: 8, ..Default::default() },
        grade: hvdctl::model::grade::Grade::A,
        score: Some(1.0),
        evidence: 1,
        slots: 4,
        gpus: None,
        published: now,
        expires: now + 3600,
    };
    let write = |name: &str, change: fn(String) -> String| {
        let text = node(name).text().unwrap();
        fs::write(dir.path().join("text"), &text).unwrap();
        ssh_keygen(&["-q", "-Y", "sign", "-f", "ana", "-n", "hvdctl-pool", "text"]);
        let file = text + &fs::read_to_string(dir.path().join("text.sig")).unwrap();
        fs::write(pool.join(node(name).file_name()), change(file)).unwrap();
        fs::remove_file(dir.path().join("text.sig")).unwrap();
    };
    write("good", |file| file);
    write("old", |file| file);
    write("forged", |file| file.replace("\"slots\": 4", "\"slots\": 64"));
    write("unsigned", |file| file.split("-----BEGIN").next().unwrap().to_owned());
    let (code, shown) = list();
    assert_eq!(code, Some(0), "{shown}");
    for text in [
        "ana    good ",
        "valid\n",
        "valid, not picked: no ssh host key; ",
        "forged: it is not what was signed\n",
        "unsigned: it has no signature\n",
    ] {
        assert!(shown.contains(text), "{text}: {shown}");
    }
}

/// Runs a command that reads the inventory and ends before it contacts a node.
fn reads_inventory(dir: &Path, args: &[&str]) -> String {
    let shown = hvdctl(dir, &[args, &["status", "--on", "none"]].concat());
    shown.replace(&format!("{}/", dir.canonicalize().unwrap().display()), "DIR/")
}

fn set_mode(path: &Path, mode: u32) {
    fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
}

/// The message of the command if it uses the inventory.
const USED: &str = "--on none: no node is named none";

#[test]
fn an_inventory_that_others_can_write_is_not_used_by_chance() {
    let dir = directory(Some(REFUSES));
    let file = dir.path().join("inventory.toml");
    set_mode(dir.path(), 0o700);
    set_mode(&file, 0o644);
    assert!(reads_inventory(dir.path(), &[]).contains(USED));
    set_mode(&file, 0o646);
    let shown = reads_inventory(dir.path(), &[]);
    let message = "error: ./inventory.toml is not used: every user can write to DIR/inventory.toml (owner ";
    assert!(shown.contains(message) && shown.contains("mode 646)"), "{shown}");
    assert!(shown.contains("hint: chmod go-w DIR/inventory.toml; where that changes nothing"), "{shown}");
    assert!(shown.starts_with("exit code: 2\n") && !shown.contains(USED), "{shown}");
    // nor if it is named, and a link is what it leads to
    std::os::unix::fs::symlink("inventory.toml", dir.path().join("link.toml")).unwrap();
    for named in ["inventory.toml", "link.toml"] {
        let shown = reads_inventory(dir.path(), &["-i", named]);
        assert!(shown.contains(&format!("error: {named} is not used: every user can write to")), "{shown}");
    }
    // others can exchange it
    set_mode(&file, 0o600);
    set_mode(dir.path(), 0o777);
    let shown = reads_inventory(dir.path(), &[]);
    assert!(shown.contains("every user can write to ") && shown.contains("mode 777)"), "{shown}");
    // the same for the file in the home
    let home = directory(None);
    fs::create_dir_all(home.path().join(".config/hvdctl")).unwrap();
    let file = home.path().join(".config/hvdctl/inventory.toml");
    fs::write(&file, REFUSES).unwrap();
    set_mode(&file, 0o666);
    let shown = reads_inventory(home.path(), &[]);
    assert!(shown.contains(".config/hvdctl/inventory.toml is not used: every user"), "{shown}");
}

#[test]
fn what_an_inventory_names_is_used_as_the_inventory_itself() {
    let dir = directory(None);
    set_mode(dir.path(), 0o700);
    for (field, text) in [
        ("cluster.ssh_config", "ssh_config = \"named\"\n[[node]]\nhost = \"a\"\n".to_owned()),
        ("identity", "[[node]]\nhost = \"a\"\nidentity = \"named\"\n".to_owned()),
        ("env_file", "[[node]]\nhost = \"a\"\nenv_file = \"named\"\n".to_owned()),
        (
            "pool.allowed_signers",
            "[[node]]\nhost = \"a\"\n[pool]\npath = \"/p\"\nallowed_signers = \"named\"\n".to_owned(),
        ),
        ("pool.key", "[[node]]\nhost = \"a\"\n[pool]\npath = \"/p\"\nkey = \"named\"\n".to_owned()),
    ] {
        let file = dir.path().join("inventory.toml");
        fs::write(&file, format!("[cluster]\nname = \"lab\"\n{text}")).unwrap();
        set_mode(&file, 0o644);
        fs::write(dir.path().join("named"), "").unwrap();
        set_mode(&dir.path().join("named"), 0o600);
        assert!(reads_inventory(dir.path(), &[]).contains(USED), "{field}");
        set_mode(&dir.path().join("named"), 0o602);
        for args in [&[][..], &["-i", "inventory.toml"]] {
            let shown = reads_inventory(dir.path(), args);
            let message = format!("inventory.toml: {field} is not used: every user can write to DIR/named");
            assert!(shown.contains(&message) && !shown.contains(USED), "{shown}");
        }
    }
}

#[test]
fn a_named_inventory_of_a_team_is_used_with_one_warning() {
    if !rustix::process::geteuid().is_root() {
        return;
    }
    let dir = directory(Some(REFUSES));
    let file = dir.path().join("inventory.toml");
    for (owner, group, mode, words) in [
        (0, 4242, 0o664, "the group 4242 can write to DIR/inventory.toml (owner root (0), mode 664)"),
        (4242, 0, 0o600, "DIR/inventory.toml belongs to 4242 (group root (0), mode 600)"),
    ] {
        std::os::unix::fs::chown(&file, Some(owner), Some(group)).unwrap();
        set_mode(&file, mode);
        let by_chance = reads_inventory(dir.path(), &[]);
        assert!(by_chance.contains(&format!("error: ./inventory.toml is not used: {words}")), "{by_chance}");
        assert!(by_chance.contains("if you trust them, name the inventory: -i inventory.toml"), "{by_chance}");
        let named = reads_inventory(dir.path(), &["-i", "inventory.toml"]);
        assert!(named.contains(USED) && named.contains(&format!("warning: inventory.toml: {words}")), "{named}");
        let again = reads_inventory(dir.path(), &["-i", "inventory.toml"]);
        assert!(again.contains(USED) && !again.contains("warning"), "{again}");
    }
}

#[test]
fn an_inventory_that_was_fetched_is_not_used_by_chance() {
    let dir = directory(None);
    set_mode(dir.path(), 0o700);
    let here = dir.path().join("results/d");
    fs::create_dir_all(&here).unwrap();
    fs::create_dir(dir.path().join("results/.hvdctl-fetch")).unwrap();
    fs::write(here.join("inventory.toml"), REFUSES).unwrap();
    let hash = Command::new("b2sum").args(["-l", "256"]).arg(here.join("inventory.toml")).output().unwrap();
    let hash = String::from_utf8(hash.stdout).unwrap();
    let record = format!("{} d/inventory.toml\0", hash.split(' ').next().unwrap());
    fs::write(dir.path().join("results/.hvdctl-fetch/fetched"), record).unwrap();
    let shown = reads_inventory(&here, &[]);
    assert!(shown.contains("./inventory.toml is not used: it was fetched from a node"), "{shown}");
    assert!(reads_inventory(&here, &["-i", "inventory.toml"]).contains(USED));
    fs::write(here.join("inventory.toml"), format!("# read\n{REFUSES}")).unwrap();
    assert!(reads_inventory(&here, &[]).contains(USED), "it is the user's by now");
}
