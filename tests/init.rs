//! `init`, `completions` and `man` without nodes: what they write and refuse, with real shells and manual readers.

#![allow(clippy::print_stderr, reason = "a test that cannot be made here says so")]

use rustix::io::Errno;
use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
use std::fs::{self, File};
use std::io::{Read, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Command, Output, Stdio};
use tempfile::TempDir;

/// In tests, $HOME is the home for ssh too.
fn path() -> String {
    format!("{}/tests/own_home:{}", env!("CARGO_MANIFEST_DIR"), std::env::var("PATH").unwrap())
}

fn command(dir: &Path, args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_hvdctl"));
    command
        .current_dir(dir)
        .env("HOME", dir)
        .env("XDG_RUNTIME_DIR", dir)
        .env("PATH", path())
        .args(args)
        .stdin(Stdio::null());
    for name in ["HVDCTL_INVENTORY", "HVDCTL_IMAGE", "XDG_CONFIG_HOME", "COLUMNS", "CLICOLOR_FORCE", "NO_COLOR"] {
        command.env_remove(name);
    }
    command
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).unwrap()
}

/// Exit code and both streams.
fn shown(output: &Output) -> String {
    let (out, err) = (text(&output.stdout), text(&output.stderr));
    // its last line may name a file that exists
    let (err, log) = err.split_once("what was done on each node: ").unwrap_or((&err, env!("CARGO_MANIFEST_PATH")));
    assert!(Path::new(log.trim_end()).exists(), "{log}");
    format!("exit code: {}\n--- stdout\n{out}--- stderr\n{err}", output.status.code().unwrap())
}

fn hvdctl(dir: &Path, args: &[&str]) -> String {
    shown(&command(dir, args).output().unwrap())
}

fn directory() -> TempDir {
    tempfile::tempdir().unwrap()
}

/// Host, name, user and port of each node of the inventory in a file, by hvdctl's own reading.
fn nodes(file: &Path) -> Vec<String> {
    let inventory = hvdctl::inventory::Inventory::load(file).unwrap_or_else(|faults| panic!("{faults}"));
    let port = |port: Option<u16>| port.map_or("-".to_owned(), |port| port.to_string());
    let nodes = inventory.nodes.iter();
    nodes.map(|n| format!("{} {} {} {}", n.host, n.name, n.user.as_deref().unwrap_or("-"), port(n.ssh_port))).collect()
}

#[test]
fn help() {
    let dir = directory();
    for words in ["init", "completions", "man", "schema"] {
        insta::assert_snapshot!(format!("help_{words}"), hvdctl(dir.path(), &[words, "--help"]));
    }
}

#[test]
fn the_machines_that_were_named_are_written() {
    let dir = directory();
    let args =
        ["init", "--no-probe", "--user", "ana", "--name", "blue", "gpu[1-2]", "eve@[fd00::1]:2222", "10.0.0.9:22"];
    insta::assert_snapshot!(hvdctl(dir.path(), &args), @r"
    exit code: 0
    --- stdout
    wrote inventory.toml with 4 nodes; review it, then run:
      hvdctl keys push
      hvdctl up
      hvdctl verify
    --- stderr
    ");
    let file = dir.path().join("inventory.toml");
    assert_eq!(
        nodes(&file),
        ["gpu1 gpu1 ana -", "gpu2 gpu2 ana -", "fd00::1 fd00::1 eve 2222", "10.0.0.9 10.0.0.9 ana 22"]
    );
    assert!(fs::read_to_string(&file).unwrap().contains("name = \"blue\""));
    assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1, "nothing is left beside it");
    assert_eq!(file.metadata().unwrap().permissions().mode() & 0o777 & !0o22, 0o644);
    // another file, and what to type then
    let other = dir.path().join("with space.toml");
    let done = hvdctl(dir.path(), &["init", "--no-probe", "-o", "with space.toml", "--image", "x/y:1", "a"]);
    assert!(done.contains("hvdctl -i 'with space.toml' keys push"), "{done}");
    assert!(fs::read_to_string(&other).unwrap().contains("image = \"x/y:1\""));
    let mut variable = command(dir.path(), &["init", "--no-probe", "a"]);
    variable.env("HVDCTL_INVENTORY", "variable.toml");
    assert!(variable.output().unwrap().status.success());
    assert_eq!(nodes(&dir.path().join("variable.toml")), ["a a - -"]);
    // as a value
    let done = command(dir.path(), &["init", "--json", "--no-probe", "-o", "j.toml", "h:1", "h:2"]).output().unwrap();
    let document: serde_json::Value = serde_json::from_slice(&done.stdout).unwrap();
    assert_eq!((&document["ok"], &document["file"]), (&true.into(), &"j.toml".into()));
    assert_eq!((&document["nodes"][1]["node"], &document["nodes"][1]["port"]), (&"h-2".into(), &2.into()));
}

#[test]
fn an_existing_file_is_kept_without_force() {
    let dir = directory();
    let file = dir.path().join("inventory.toml");
    fs::write(&file, "mine").unwrap();
    insta::assert_snapshot!(hvdctl(dir.path(), &["init", "a"]), @r"
    exit code: 2
    --- stdout
    --- stderr
    error: inventory.toml exists
      hint: overwrite it with --force, or name another file with -o FILE
    ");
    assert_eq!(fs::read_to_string(&file).unwrap(), "mine");
    assert!(hvdctl(dir.path(), &["init", "--no-probe", "--force", "a"]).starts_with("exit code: 0"));
    assert_eq!(nodes(&file), ["a a - -"]);
    insta::assert_snapshot!(hvdctl(dir.path(), &["init", "--no-probe", "-o", "no/where.toml", "a"]), @r"
    exit code: 2
    --- stdout
    --- stderr
    error: cannot write no/where.toml: the directory no does not exist
      hint: mkdir -p no
    ");
}

#[test]
fn invalid_arguments_are_refused_and_nothing_is_written() {
    let dir = directory();
    insta::assert_snapshot!(hvdctl(dir.path(), &["init"]), @r"
    exit code: 2
    --- stdout
    --- stderr
    error: no machines were named
      hint: name them: hvdctl init node1 ana@node2:2222; or take those of ~/.ssh/config: --from-ssh-config
    ");
    insta::assert_snapshot!(hvdctl(dir.path(), &["init", "a", "b:port"]), @r"
    exit code: 2
    --- stdout
    --- stderr
    error: b:port: expected a port from 1 to 65535 after the `:`
      hint: write a machine as [user@]host[:port], as for ssh; node[1-4] names four, [fd00::1]:22 has a port
    ");
    insta::assert_snapshot!(hvdctl(dir.path(), &["init", "--from-ssh-config"]), @r"
    exit code: 2
    --- stdout
    --- stderr
    error: ~/.ssh/config has no host names (`Host` lines without * and ?)
      hint: name the machines: hvdctl init node1 node2
    ");
    for args in [
        &["init", "a", "A"] as &[&str],
        &["init", "a", "--from-ssh-config"],
        &["init", "a", "--from-hostfile", "f"],
        &["init", "--from-ssh-config", "--from-ansible", "f"],
        &["init", "--from-hostfile", "f", "--from-ansible", "f"],
        &["init", "--from-hostfile", "nowhere"],
        &["init", "a", "--user", "-x"],
        &["init", "a", "--name", "no name"],
        &["init", "a", "--image", "No Image"],
        &["init", "a", "--on", "a"],
        &["init", ","],
        &["init", "--", "-oProxyCommand=touch x"],
        &["completions"],
        &["completions", "tcsh"],
        &["man", "--dir", "nowhere"],
    ] {
        let done = hvdctl(dir.path(), args);
        assert!(done.starts_with("exit code: 2\n"), "{args:?}: {done}");
    }
    assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 0);
}

#[test]
fn the_names_of_the_ssh_configuration() {
    let dir = directory();
    let ssh = dir.path().join(".ssh");
    fs::create_dir_all(ssh.join("d")).unwrap();
    fs::write(ssh.join("d/2.conf"), "Host third\nInclude ~/.ssh/d/1.conf").unwrap();
    fs::write(ssh.join("d/1.conf"), "Host second !no *.x\n").unwrap();
    fs::write(
        ssh.join("config"),
        "Host first\n  HostName 127.0.0.1\nInclude d/*.conf missing\nInclude config\nHost f?rth * first \
         fifth+\nHost=\"sixth\"\n",
    )
    .unwrap();
    let done = hvdctl(dir.path(), &["init", "--no-probe", "--from-ssh-config"]);
    assert!(done.starts_with("exit code: 0"), "{done}");
    assert!(done.contains("warning: these names are not valid in an inventory: fifth+"), "{done}");
    let expected = ["first", "second", "third", "sixth"].map(|name| format!("{name} {name} - -"));
    assert_eq!(nodes(&dir.path().join("inventory.toml")), expected);
}

#[test]
fn code_hosts_and_jump_hosts_of_the_ssh_configuration_are_left_out() {
    let dir = directory();
    let config = |text: &str| {
        fs::create_dir_all(dir.path().join(".ssh")).unwrap();
        fs::write(dir.path().join(".ssh/config"), text).unwrap();
    };
    config(
        "Host github.com\n  User git\nHost bastion\nHost *.lab\n  ProxyJump bastion\nHost gpu1.lab gpu2.lab\nHost \
         code\n  User git\n",
    );
    let done = hvdctl(dir.path(), &["init", "--no-probe", "--from-ssh-config"]);
    assert!(done.starts_with("exit code: 0"), "{done}");
    let note = "left out of ~/.ssh/config: github.com (a code host), bastion (a jump host), code (a code host); name a \
        machine";
    assert!(done.contains(note), "{done}");
    assert_eq!(nodes(&dir.path().join("inventory.toml")), ["gpu1.lab gpu1.lab - -", "gpu2.lab gpu2.lab - -"]);
    // on a terminal one may still be picked by its name
    let (code, screen) = on_a_terminal(dir.path(), "init --no-probe --from-ssh-config --force", "bastion\n");
    assert!(code == 0 && !screen.contains("  bastion\n"), "{screen}");
    assert_eq!(nodes(&dir.path().join("inventory.toml")), ["bastion bastion - -"]);
    config("Host github.com\n");
    let done = hvdctl(dir.path(), &["init", "--from-ssh-config", "--force"]);
    let why =
        "error: ~/.ssh/config has no machines that may be nodes\n  hint: name the machines: hvdctl init node1 node2\n";
    assert!(
        done.starts_with("exit code: 2\n") && done.contains("github.com (a code host)") && done.ends_with(why),
        "{done}"
    );
}

#[test]
fn hostfiles_and_inventories_of_other_tools() {
    let dir = directory();
    let init = |option: &str, text: &str| {
        fs::write(dir.path().join("hosts"), text).unwrap();
        hvdctl(dir.path(), &["init", "--no-probe", "--force", "--user", "ana", option, "hosts"])
    };
    let file = dir.path().join("inventory.toml");
    let done = init("--from-hostfile", "# two\ngpu[1-2] slots=8\neve@head:2\ngpu1\n");
    assert!(done.starts_with("exit code: 0"), "{done}");
    assert_eq!(nodes(&file), ["gpu1 gpu1 ana -", "gpu2 gpu2 ana -", "head head eve -"]);
    let slots = |file: &Path| {
        let inventory = hvdctl::inventory::Inventory::load(file).unwrap();
        inventory.nodes.iter().map(|node| node.slots).collect::<Vec<_>>()
    };
    assert_eq!(slots(&file), [Some(9), Some(8), Some(2)]);
    insta::assert_snapshot!(init("--from-hostfile", "gpu1\ngpu2 slots=many\n"), @r#"
    exit code: 2
    --- stdout
    --- stderr
    error: hosts:2: expected 1 to 1024 slots, found "many"
      hint: a line is HOST, HOST:SLOTS or HOST slots=N; # begins a comment
    "#);
    let done = init(
        "--from-ansible",
        "[gpu]\ng[1:2] ansible_port=2222\nold ansible_host=10.0.0.9 ansible_ssh_private_key_file=~/.ssh/old\n\
         [racks:children]\ngpu\n[other]\nhead\nlocalhost ansible_connection=local\n",
    );
    assert!(done.starts_with("exit code: 0") && done.contains("localhost is left out"), "{done}");
    assert_eq!(nodes(&file), ["g1 g1 ana 2222", "g2 g2 ana 2222", "10.0.0.9 old ana -", "head head ana -"]);
    let inventory = hvdctl::inventory::Inventory::load(&file).unwrap();
    let groups: Vec<String> =
        inventory.groups.iter().map(|(name, nodes)| format!("{name}: {}", nodes.join(" "))).collect();
    assert_eq!(groups, ["gpu: g1 g2 old", "other: head", "racks: g1 g2 old"]);
    assert_eq!(inventory.nodes[2].identity.as_ref().unwrap().file_name().unwrap(), "old");
    insta::assert_snapshot!(init("--from-ansible", "all:\n  hosts:\n"), @r#"
    exit code: 2
    --- stdout
    --- stderr
    error: hosts:1: expected a port from 1 to 65535, found ""
      hint: only the INI form of Ansible's inventories is read, see docs/reference/cluster.md
    "#);
    insta::assert_snapshot!(init("--from-ansible", "# none\n"), @r"
    exit code: 2
    --- stdout
    --- stderr
    error: hosts has no hosts
      hint: only the INI form of Ansible's inventories is read, see docs/reference/cluster.md
    ");
}

#[test]
fn a_machine_that_cannot_be_probed_is_written_with_the_reason() {
    let dir = directory();
    insta::assert_snapshot!(hvdctl(dir.path(), &["-q", "init", "nobody@127.0.0.1:1", "nobody@127.0.0.2:1"]), @r"
    exit code: 4
    --- stdout
    NODE       ADDRESS     CORES  GPUS  ENGINE
    127.0.0.1  not probed  –      –     –
    127.0.0.2  not probed  –      –     –
    wrote inventory.toml with 2 nodes; cannot probe 127.0.0.1,127.0.0.2: fix these nodes, then run the same command again with --force
    --- stderr
    error: 127.0.0.1: cannot log in by ssh as nobody@127.0.0.1: connect to host 127.0.0.1 port 1: Connection refused
      hint: see whether `ssh -p 1 nobody@127.0.0.1` works
    error: 127.0.0.2: cannot log in by ssh as nobody@127.0.0.2: connect to host 127.0.0.2 port 1: Connection refused
      hint: see whether `ssh -p 1 nobody@127.0.0.2` works
    ");
    let file = dir.path().join("inventory.toml");
    assert_eq!(nodes(&file), ["127.0.0.1 127.0.0.1 nobody 1", "127.0.0.2 127.0.0.2 nobody 1"]);
    let written = fs::read_to_string(&file).unwrap();
    assert!(written.contains("could not be probed:\n#   cannot log in by ssh as nobody@127.0.0.1"), "{written}");
    assert!(written.contains("Connection refused"), "{written}");
}

/// Runs hvdctl on a terminal of its own, types this, and returns exit code and screen.
fn on_a_terminal(dir: &Path, words: &str, typed: &str) -> (i32, String) {
    let terminal = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY).unwrap();
    grantpt(&terminal).unwrap();
    unlockpt(&terminal).unwrap();
    let name = ptsname(&terminal, Vec::new()).unwrap();
    let open = || File::options().read(true).write(true).open(name.to_str().unwrap()).unwrap();
    let mut command = Command::new("setsid");
    command.args(["--ctty", "--wait", env!("CARGO_BIN_EXE_hvdctl")]).args(words.split(' ')).current_dir(dir);
    command
        .env("HOME", dir)
        .env("PATH", path())
        .env_remove("HVDCTL_INVENTORY")
        .stdin(open())
        .stdout(open())
        .stderr(open());
    let mut child = command.spawn().unwrap();
    // the end of hvdctl closes the terminal only if no other process has it open
    drop(command);
    let mut terminal = File::from(terminal);
    terminal.write_all(typed.as_bytes()).unwrap();
    let mut screen = Vec::new();
    let closed = terminal.read_to_end(&mut screen).unwrap_err();
    assert_eq!(closed.raw_os_error(), Some(Errno::IO.raw_os_error()));
    (child.wait().unwrap().code().unwrap(), text(&screen).replace('\r', ""))
}

#[test]
fn on_a_terminal_it_asks() {
    let dir = directory();
    let file = dir.path().join("inventory.toml");
    fs::create_dir(dir.path().join(".ssh")).unwrap();
    fs::write(dir.path().join(".ssh/config"), "Host a b\nHost gpu1 gpu2\n").unwrap();
    let (code, screen) = on_a_terminal(dir.path(), "init --no-probe", "n1, eve@n2 n1\nn1, eve@n2 n3:22\n");
    assert_eq!(code, 0, "{screen}");
    assert!(screen.contains("In ~/.ssh/config: a,b,gpu[1-2]\n"), "{screen}");
    assert!(screen.contains("n1 is named twice"), "{screen}");
    assert_eq!(nodes(&file), ["n1 n1 - -", "n2 n2 eve -", "n3 n3 - 22"]);
    // nothing typed is nothing written
    fs::remove_file(&file).unwrap();
    let (code, screen) = on_a_terminal(dir.path(), "init --no-probe", "\n");
    assert!(code == 2 && screen.contains("no machine was named") && !file.exists(), "{code} {screen}");
    // of many names only some are shown
    let many: String = (1..=40).map(|i| format!("Host gpu{}\n", 2 * i)).collect();
    fs::write(dir.path().join(".ssh/config"), many).unwrap();
    let (_, screen) = on_a_terminal(dir.path(), "init --no-probe", "\n");
    let shown = "In ~/.ssh/config: gpu[2,4,6,8,10,12,14,16,18,20,22,24], … (40 in all)\n";
    assert!(screen.contains(shown), "{screen}");
    fs::write(dir.path().join(".ssh/config"), "Host a b\nHost gpu1 gpu2\n").unwrap();
    // one picks among the names
    let (code, screen) = on_a_terminal(dir.path(), "init --no-probe --from-ssh-config", "9\nb gpu[1-2]\n");
    assert_eq!(code, 0, "{screen}");
    assert!(screen.contains("  gpu2\n") && screen.contains("no node is named 9"), "{screen}");
    assert_eq!(nodes(&file), ["b b - -", "gpu1 gpu1 - -", "gpu2 gpu2 - -"]);
    // with -y nothing is asked
    let (code, screen) = on_a_terminal(dir.path(), "init -y --no-probe --from-ssh-config --force", "");
    assert_eq!((code, nodes(&file).len()), (0, 4), "{screen}");
}

/// Runs a shell on a script; `None`, and said, where it is not installed.
fn shell(name: &str, args: &[&str], script: &Path) -> Option<Output> {
    match Command::new(name).args(args).arg(script).stdin(Stdio::null()).output() {
        Ok(output) => Some(output),
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => {
            eprintln!("skipped: {name} is not installed");
            None
        }
        Err(e) => panic!("{name}: {e}"),
    }
}

fn completions(dir: &Path, name: &str) -> std::path::PathBuf {
    let done = command(dir, &["completions", name]).output().unwrap();
    assert!(done.status.success() && done.stderr.is_empty(), "{}", shown(&done));
    let file = dir.join(name);
    fs::write(&file, done.stdout).unwrap();
    file
}

#[test]
fn the_shells_take_their_completions() {
    let dir = directory();
    for name in ["bash", "zsh", "fish"] {
        let script = completions(dir.path(), name);
        if let Some(done) = shell(name, &["-n"], &script) {
            assert!(done.status.success() && done.stderr.is_empty(), "{name}: {}", shown(&done));
        }
    }
    let zsh = fs::read_to_string(completions(dir.path(), "zsh")).unwrap();
    assert!(!zsh.contains("'*::") && zsh.contains("'*:command"), "behind the project options are offered too");
    for (name, sign) in [("zsh", "'-np=["), ("elvish", "cand -np '"), ("powershell", "'-np', '-np'")] {
        let script = fs::read_to_string(completions(dir.path(), name)).unwrap();
        let count = script.matches(sign).count();
        assert_eq!(count, 8, "verify, bench, pool pick, train, run and the three of export have -np in {name}");
    }
}

/// The completions of bash for the last of these arguments.
fn offered_by_bash(script: &Path, words: &[&str]) -> Vec<String> {
    let program = r#"source "$1"; shift; COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1))
        f=$(complete -p hvdctl | sed 's/.*-F \([^ ]*\).*/\1/')
        "$f" hvdctl "${COMP_WORDS[COMP_CWORD]}" "${COMP_WORDS[COMP_CWORD - 1]}"; printf '%s\n' "${COMPREPLY[@]}""#;
    let done = Command::new("bash").args(["-c", program, "bash"]).arg(script).args(words).output().unwrap();
    assert!(done.status.success() && done.stderr.is_empty(), "{}", shown(&done));
    text(&done.stdout).lines().map(str::to_owned).collect()
}

#[test]
fn bash_completes_arguments() {
    let dir = directory();
    let script = completions(dir.path(), "bash");
    assert_eq!(offered_by_bash(&script, &["hvdctl", "ke"]), ["keys"]);
    assert_eq!(offered_by_bash(&script, &["hvdctl", "keys", "pu"]), ["push"]);
    assert_eq!(offered_by_bash(&script, &["hvdctl", "train", "p", "-n"]), ["-np"]);
    assert_eq!(offered_by_bash(&script, &["hvdctl", "run", "--np"]), ["--np"]);
    assert_eq!(offered_by_bash(&script, &["hvdctl", "verify", "-np", "2", "--controller", "g"]), ["gloo"]);
    let sources = ["--from-ssh-config", "--from-hostfile", "--from-ansible"];
    assert_eq!(offered_by_bash(&script, &["hvdctl", "init", "--from"]), sources);
}

#[test]
fn shellcheck_finds_nothing_in_the_bash_completions() {
    let dir = directory();
    let script = completions(dir.path(), "bash");
    // clap_complete splits the words that it offers on purpose
    let done = Command::new("shellcheck").args(["--norc", "-e", "SC2207", "-s", "bash"]).arg(script).output();
    let done = done.unwrap_or_else(|error| {
        panic!("shellcheck: {error}\nhint: scripts/lint shell installs it; by hand: apt-get install shellcheck")
    });
    assert!(done.status.success(), "{}", shown(&done));
}

#[test]
fn fish_completes_arguments() {
    let dir = directory();
    let script = completions(dir.path(), "fish");
    for (words, expected) in [("hvdctl ke", "keys\t"), ("hvdctl train p -n", "-np\t")] {
        let program = format!("source '{}'; complete -C '{words}'", script.display());
        let Some(done) = shell("fish", &["-N", "-c", &program], Path::new("x")) else { return };
        assert!(text(&done.stdout).lines().any(|line| line.starts_with(expected)), "{words}: {}", shown(&done));
    }
}

#[test]
fn the_manual_page_has_every_command() {
    let dir = directory();
    let done = command(dir.path(), &["man"]).output().unwrap();
    let page = dir.path().join("page.1");
    fs::write(&page, &done.stdout).unwrap();
    let source = text(&done.stdout);
    for heading in
        [".SH NAME", ".SH SYNOPSIS", ".SH OPTIONS", ".SH SUBCOMMANDS", ".TH hvdctl-keys-push", "HVDCTL_INVENTORY"]
    {
        assert!(source.contains(heading), "no {heading} in\n{source}");
    }
    for name in ["init", "up", "down", "status", "verify", "train", "run", "completions", "man", "schema"] {
        assert!(source.contains(&format!(".TH hvdctl-{name} ")), "no {name} in\n{source}");
    }
    if let Some(done) = shell("groff", &["-man", "-Tutf8", "-ww", "-z"], &page) {
        assert!(done.status.success() && done.stderr.is_empty(), "{}", shown(&done));
    }
    if let Some(done) = shell("man", &["--warnings=w", "-P", "cat", "-l"], &page) {
        assert!(done.status.success() && done.stderr.is_empty(), "{}", shown(&done));
        assert!(text(&done.stdout).contains("hvdctl keys push"), "{}", shown(&done));
    }
    // and all pages in a directory
    let pages = dir.path().join("man1");
    fs::create_dir(&pages).unwrap();
    assert!(hvdctl(dir.path(), &["man", "--dir", "man1"]).starts_with("exit code: 0"));
    for name in ["hvdctl.1", "hvdctl-init.1", "hvdctl-keys.1", "hvdctl-keys-push.1", "hvdctl-train.1"] {
        assert!(pages.join(name).is_file(), "{name}");
    }
}

#[test]
fn the_schema_is_printed_without_an_inventory() {
    let dir = directory();
    let done = command(dir.path(), &["schema"]).output().unwrap();
    assert!(done.status.success() && done.stderr.is_empty(), "{}", shown(&done));
    let schema: serde_json::Value = serde_json::from_slice(&done.stdout).unwrap();
    assert_eq!(schema["$schema"], "http://json-schema.org/draft-07/schema#");
    assert_eq!(schema["required"], serde_json::json!(["cluster"]));
}
