//! The display of progress: rows on a pseudo-terminal, and plain lines elsewhere.

use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
use rustix::termios::{Winsize, tcsetwinsize};
use std::fs::{self, File};
use std::io::Read;
use std::os::fd::OwnedFd;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};
use tempfile::TempDir;

/// An ssh that gets no answer until there is a file `go`, and is refused then; or until the test is over.
const SSH: &str = "#!/bin/sh\n\
                   case $1 in -Q | -G) exit ;; esac\n\
                   until [ -e \"$HOME/go\" ] || [ ! -d \"$HOME\" ]; do sleep 0.05; done\n\
                   echo 'ssh: connect to host x port 22: Connection refused' >&2\n\
                   exit 255\n";

/// A directory with that ssh and an inventory of so many nodes.
fn directory(nodes: usize) -> TempDir {
    let dir = tempfile::tempdir().unwrap();
    let inventory = format!(
        "[cluster]\nname = \"lab\"\nconnect_timeout_s = 100\n[defaults]\nuser = \"nobody\"\ngpus = 1\n\
         [[node]]\nhost = \"node[001-{nodes:03}]\"\n"
    );
    fs::write(dir.path().join("inventory.toml"), inventory).unwrap();
    let ssh = dir.path().join("ssh");
    fs::write(&ssh, SSH).unwrap();
    fs::set_permissions(ssh, fs::Permissions::from_mode(0o755)).unwrap();
    dir
}

/// The nodes answer from now on.
fn go(dir: &TempDir) {
    fs::write(dir.path().join("go"), "").unwrap();
}

fn command(dir: &Path, args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_hvdctl"));
    command.current_dir(dir).env("HOME", dir).env("XDG_RUNTIME_DIR", dir).args(args).stdin(Stdio::null());
    let path = std::env::var("PATH").unwrap();
    command.env("PATH", format!("{}:{path}", dir.display())).env("TERM", "xterm-256color");
    for name in ["HVDCTL_INVENTORY", "HVDCTL_IMAGE", "XDG_CONFIG_HOME", "CLICOLOR", "CLICOLOR_FORCE", "NO_COLOR"] {
        command.env_remove(name);
    }
    command
}

/// Both ends of a new pseudo-terminal: the one that shows, and the one that programs write to.
fn pair() -> (OwnedFd, File) {
    let terminal = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY).unwrap();
    grantpt(&terminal).unwrap();
    unlockpt(&terminal).unwrap();
    let name = ptsname(&terminal, Vec::new()).unwrap();
    let slave = File::options().read(true).write(true).open(name.to_str().unwrap()).unwrap();
    (terminal, slave)
}

/// hvdctl on a terminal of its own.
struct Seen {
    child: Child,
    terminal: OwnedFd,
    screen: Arc<Mutex<vt100::Parser>>,
    raw: Arc<Mutex<Vec<u8>>>,
}

impl Seen {
    fn start(mut command: Command, rows: u16, columns: u16) -> Seen {
        let (terminal, slave) = pair();
        tcsetwinsize(&terminal, size(rows, columns)).unwrap();
        let child = command.stdout(slave.try_clone().unwrap()).stderr(slave).spawn().unwrap();
        // its end closes the terminal only if no other process has it open
        drop(command);
        let screen = Arc::new(Mutex::new(vt100::Parser::new(rows, columns, 10_000)));
        let raw = Arc::new(Mutex::new(Vec::new()));
        let mut reader = File::from(terminal.try_clone().unwrap());
        let (into, all) = (Arc::clone(&screen), Arc::clone(&raw));
        thread::spawn(move || {
            let mut buffer = [0; 65536];
            while let Ok(n @ 1..) = reader.read(&mut buffer) {
                into.lock().unwrap().process(&buffer[..n]);
                all.lock().unwrap().extend_from_slice(&buffer[..n]);
            }
        });
        Seen { child, terminal, screen, raw }
    }

    fn resize(&self, rows: u16, columns: u16) {
        let mut screen = self.screen.lock().unwrap();
        tcsetwinsize(&self.terminal, size(rows, columns)).unwrap();
        screen.screen_mut().set_size(rows, columns);
    }

    fn lines(&self) -> Vec<String> {
        let parser = self.screen.lock().unwrap();
        let (_, columns) = parser.screen().size();
        parser.screen().rows(0, columns).map(|line| line.trim_end().to_owned()).collect()
    }

    fn raw(&self) -> String {
        String::from_utf8_lossy(&self.raw.lock().unwrap()).into_owned()
    }

    /// Waits until the screen is so.
    #[track_caller]
    fn until(&self, holds: impl Fn(&[String]) -> bool) {
        let end = Instant::now() + Duration::from_secs(240);
        while !holds(&self.lines()) {
            assert!(Instant::now() < end, "it never was so:\n{}", self.lines().join("\n"));
            thread::sleep(Duration::from_millis(20));
        }
    }

    /// Returns the number of lines that have left the screen at its top.
    fn scrolled(&self) -> usize {
        let mut parser = self.screen.lock().unwrap();
        parser.screen_mut().set_scrollback(usize::MAX);
        let lines = parser.screen().scrollback();
        parser.screen_mut().set_scrollback(0);
        lines
    }

    fn end(&mut self) -> ExitStatus {
        let end = Instant::now() + Duration::from_secs(240);
        loop {
            if let Some(status) = self.child.try_wait().unwrap() {
                return status;
            }
            assert!(Instant::now() < end, "no end:\n{}", self.lines().join("\n"));
            thread::sleep(Duration::from_millis(20));
        }
    }
}

impl Drop for Seen {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn size(rows: u16, columns: u16) -> Winsize {
    Winsize { ws_row: rows, ws_col: columns, ws_xpixel: 0, ws_ypixel: 0 }
}

fn is_busy(line: &str) -> bool {
    line.starts_with(|c| ('\u{2800}'..='\u{28ff}').contains(&c)) && line.ends_with("connecting")
}

#[test]
fn more_nodes_than_rows_on_a_terminal_that_grows() {
    let dir = directory(40);
    let mut seen = Seen::start(command(dir.path(), &["status"]), 12, 40);
    let full = |rows: usize, last: &'static str| {
        move |lines: &[String]| lines.iter().filter(|line| is_busy(line)).count() == rows - 2 && lines[rows - 2] == last
    };
    seen.until(full(12, "  30 more: 30 busy"));
    seen.resize(24, 60);
    seen.until(full(24, "  18 more: 18 busy"));
    assert_eq!(seen.scrolled(), 0, "nothing has left the screen");
    assert!(seen.raw().contains("\x1b[36m"), "colours");
    go(&dir);
    assert_eq!(seen.end().code(), Some(4));
    seen.until(|lines| lines.iter().any(|line| line.starts_with("error: node040")));
    assert!(!seen.lines().iter().any(|line| is_busy(line)), "{:?}", seen.lines());
}

#[test]
fn without_colours_there_are_rows_all_the_same() {
    let dir = directory(2);
    let colours = regex::Regex::new("\x1b\\[[0-9;]*m").unwrap();
    for (environment, args) in
        [(("NO_COLOR", "1"), &["status"][..]), (("CLICOLOR_FORCE", "1"), &["--color", "never", "status"][..])]
    {
        let mut command = command(dir.path(), args);
        command.env(environment.0, environment.1);
        let seen = Seen::start(command, 12, 40);
        seen.until(|lines| is_busy(&lines[0]) && is_busy(&lines[1]));
        assert!(!colours.is_match(&seen.raw()), "{:?}", seen.raw());
    }
}

#[test]
fn a_terminal_that_can_do_nothing_gets_lines() {
    let dir = directory(2);
    let mut command = command(dir.path(), &["status"]);
    command.env("TERM", "dumb");
    command.arg("-v");
    let seen = Seen::start(command, 12, 40);
    seen.until(|lines| {
        ["node001", "node002"]
            .iter()
            .all(|node| lines.iter().any(|line| line.ends_with(&format!(" {node}: connecting"))))
    });
    assert!(!seen.raw().contains('\x1b'), "{:?}", seen.raw());
}

#[test]
fn elsewhere_there_are_lines_with_time_and_node() {
    let dir = directory(2);
    go(&dir);
    let err = |args: &[&str]| {
        let done = command(dir.path(), args).output().unwrap();
        assert_eq!(done.status.code(), Some(4));
        String::from_utf8(done.stderr).unwrap()
    };
    let output = err(&["status"]);
    let line = regex::Regex::new(r"^([01]\d|2[0-3]):[0-5]\d:[0-5]\dZ (node00[12]: .*)$").unwrap();
    let (lines, errors): (Vec<&str>, Vec<&str>) = output.lines().partition(|text| line.is_match(text));
    let mut lines: Vec<&str> = lines.iter().map(|text| line.captures(text).unwrap().get(2).unwrap().as_str()).collect();
    lines.sort_unstable();
    let failed = "cannot log in by ssh as nobody@node00";
    // one for each node and change: that it was connected to is none
    assert_eq!(lines.len(), 2, "{output}");
    assert!(lines[0].starts_with(&format!("node001: {failed}1")), "{output}");
    assert!(lines[1].starts_with(&format!("node002: {failed}2")), "{output}");
    assert!(errors[0].starts_with("error: node001: ") && !output.contains('\x1b'), "{output}");
    // with -q the errors alone
    assert_eq!(err(&["-q", "status"]), errors.join("\n") + "\n");
    // colours are no movement
    let forced = err(&["--color", "always", "status"]);
    assert!(forced.contains("\x1b[31m"), "{forced}");
    let codes = regex::Regex::new("\x1b\\[[0-9;]*m").unwrap();
    assert!(!codes.replace_all(&forced, "").contains('\x1b'), "{forced:?}");
}

/// A shell script that becomes hvdctl, with `status` on nodes that do not answer yet, and writes to a file.
fn in_background(dir: &TempDir, script: &str) -> Child {
    let inner = command(dir.path(), &[]);
    // under nohup this process ignores SIGHUP
    let mut shell = Command::new("env");
    shell.args([
        "--default-signal=HUP,INT",
        "sh",
        "-c",
        &format!("{script}; exec \"$0\" -v status"),
        inner.get_program().to_str().unwrap(),
    ]);
    for (name, value) in inner.get_envs() {
        match value {
            Some(value) => shell.env(name, value),
            None => shell.env_remove(name),
        };
    }
    let log = dir.path().join("log");
    shell.current_dir(dir.path()).stdin(Stdio::null()).stdout(Stdio::null()).stderr(File::create(&log).unwrap());
    let child = shell.spawn().unwrap();
    let end = Instant::now() + Duration::from_secs(240);
    while !fs::read_to_string(&log).unwrap().contains(": connecting") {
        assert!(Instant::now() < end, "it never connected");
        thread::sleep(Duration::from_millis(20));
    }
    child
}

#[test]
fn signals_that_were_ignored_at_the_start_stay_ignored() {
    use rustix::process::{Pid, Signal, kill_process};
    let (hangup, interrupt) = ((Signal::HUP, 129), (Signal::INT, 130));
    for (script, ignored, ends) in [
        (":", &[][..], &[hangup, interrupt, (Signal::TERM, 143)][..]),
        ("trap '' HUP", &[hangup], &[interrupt]),
        ("trap '' HUP INT", &[hangup, interrupt], &[(Signal::TERM, 143)]),
    ] {
        for end in ends.iter().copied().map(Some).chain([None]) {
            let dir = directory(1);
            let mut child = in_background(&dir, script);
            let send = |signal| kill_process(Pid::from_child(&child), signal).unwrap();
            ignored.iter().for_each(|(signal, _)| send(*signal));
            // one that was not ignored would end it by then
            thread::sleep(Duration::from_millis(300));
            match end {
                Some((signal, _)) => send(signal),
                None => go(&dir),
            }
            let code = child.wait().unwrap().code();
            assert_eq!(code, Some(end.map_or(4, |(_, code)| code)), "{script}: {end:?}");
        }
    }
}

#[test]
fn a_terminal_that_has_gone_ends_nothing() {
    let dir = directory(2);
    let (terminal, slave) = pair();
    let mut command = command(dir.path(), &["status"]);
    let mut child = command.stdout(slave.try_clone().unwrap()).stderr(slave).spawn().unwrap();
    drop(command);
    let (mut terminal, mut shown) = (File::from(terminal), Vec::new());
    while !String::from_utf8_lossy(&shown).contains("connecting") {
        let mut piece = [0; 4096];
        let n = terminal.read(&mut piece).unwrap();
        shown.extend_from_slice(&piece[..n]);
    }
    // the last descriptor: what is written from now on fails
    drop(terminal);
    go(&dir);
    assert_eq!(child.wait().unwrap().code(), Some(4));
}
