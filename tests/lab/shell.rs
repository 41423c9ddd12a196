//! `hvdctl shell` on a terminal: input reaches the container, and the terminal's settings are restored.

use crate::process::{eventually, s};
use crate::state::{Lab, NODES, no_job_is_left, on, ours};
use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
use rustix::termios::{Termios, Winsize, tcgetattr, tcsetwinsize};
use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::OwnedFd;
use std::process::{Child, Command};
use std::sync::{Arc, Mutex};
use std::thread;

/// hvdctl on a terminal of its own, which is the terminal of its session.
pub struct Typed {
    child: Child,
    terminal: OwnedFd,
    slave: File,
    seen: Arc<Mutex<Vec<u8>>>,
}

impl Typed {
    fn start(lab: &Lab, args: &[&str]) -> Typed {
        Typed::of(&lab.command(args))
    }

    /// Starts this command, which has the directory that it runs in.
    pub fn of(inner: &Command) -> Typed {
        let terminal = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY).unwrap();
        grantpt(&terminal).unwrap();
        unlockpt(&terminal).unwrap();
        let name = ptsname(&terminal, Vec::new()).unwrap().into_string().unwrap();
        let open = || File::options().read(true).write(true).open(&name).unwrap();
        // it becomes hvdctl: no leader of a group forks for a session of its own
        let mut command = Command::new("setsid");
        command.arg("--ctty").arg(inner.get_program()).args(inner.get_args());
        command.current_dir(inner.get_current_dir().unwrap());
        command.env("TERM", "xterm").stdin(open()).stdout(open()).stderr(open());
        for (name, value) in inner.get_envs() {
            if value.is_none() {
                command.env_remove(name);
            }
        }
        let child = command.spawn().unwrap();
        drop(command);
        let seen = Arc::new(Mutex::new(Vec::new()));
        let mut reader = File::from(terminal.try_clone().unwrap());
        let into = Arc::clone(&seen);
        thread::spawn(move || {
            let mut buffer = [0; 65536];
            while let Ok(n @ 1..) = reader.read(&mut buffer) {
                into.lock().unwrap().extend_from_slice(&buffer[..n]);
            }
        });
        Typed { child, terminal, slave: open(), seen }
    }

    /// The settings of the terminal.
    pub fn settings(&self) -> Termios {
        tcgetattr(&self.slave).unwrap()
    }

    /// Gives the terminal a size.
    pub fn size(&self, rows: u16, columns: u16) {
        tcsetwinsize(&self.terminal, Winsize { ws_row: rows, ws_col: columns, ws_xpixel: 0, ws_ypixel: 0 }).unwrap();
    }

    /// Types this.
    pub fn keys(&self, text: &str) {
        File::from(self.terminal.try_clone().unwrap()).write_all(text.as_bytes()).unwrap();
    }

    /// All that was written to the terminal.
    pub fn text(&self) -> String {
        String::from_utf8_lossy(&self.seen.lock().unwrap()).into_owned()
    }

    /// Types until the text is shown: a shell that is just starting may not read yet.
    #[track_caller]
    pub fn until(&self, keys: &str, words: &str) {
        self.keys(keys);
        assert!(eventually(s(60), || self.text().contains(words)), "{words:?} never came:\n{}", self.text());
    }

    /// Waits for its end, and asserts its exit code.
    #[track_caller]
    pub fn end(mut self, code: i32) {
        assert!(eventually(s(60), || self.child.try_wait().unwrap().is_some()), "no end:\n{}", self.text());
        assert_eq!(self.child.wait().unwrap().code(), Some(code), "{}", self.text());
    }

    /// Its process id.
    pub fn pid(&self) -> String {
        self.child.id().to_string()
    }
}

impl Drop for Typed {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Returns true if a program runs on a node.
fn runs(node: &str, words: &str) -> bool {
    on(node, &format!("pgrep -fc '^[{}]{}$'; :", &words[..1], &words[1..])).trim() != "0"
}

#[test]
fn a_shell_is_on_a_real_terminal_and_leaves_nothing() {
    let lab = Lab::up();
    lab.hvdctl(&["shell"]).code(2).complains(&["not a terminal"]);
    let shell = Typed::start(&lab, &["shell"]);
    let before = shell.settings();
    shell.size(31, 97);
    // the sum keeps the echo of the input from matching the expected text
    shell.until("echo up-$((40+2))\n", "up-42");
    assert_ne!(shell.settings().local_modes, before.local_modes, "keys go inside as they are typed");
    assert!(ours("node1").contains("hmaster-shell-"), "{}", ours("node1"));
    shell.until("stty size\n", "31 97");
    shell.size(50, 123);
    assert!(eventually(s(30), || {
        shell.keys("stty size\n");
        thread::sleep(std::time::Duration::from_millis(300));
        shell.text().contains("50 123")
    }));
    shell.keys("sleep 43210\n");
    assert!(eventually(s(30), || runs("node1", "sleep 43210")));
    shell.keys("\u{3}");
    shell.until("echo back-$((40+3))\n", "back-43");
    assert!(!runs("node1", "sleep 43210"), "Ctrl-C went inside");
    // bytes that are no text, control characters first
    shell.until("printf '\\000\\001\\002end-%s\\n' x$((1+1))\n", "end-x2");
    let launch = "horovodrun --gloo -np 2 -p 12345 -hostfile /root/hostfile --network-interfaces eth0 \
                  sh -c 'echo rank-$HOROVOD_RANK-of-$((1+1))'; echo over-$((1+1))\n";
    shell.until(launch, "over-2");
    assert!(["rank-0-of-2", "rank-1-of-2"].iter().all(|rank| shell.text().contains(rank)), "{}", shell.text());
    let by_mpi = launch.replace("--gloo", "--mpi").replace("HOROVOD_RANK-of", "OMPI_COMM_WORLD_RANK-by-mpi");
    shell.until(&by_mpi.replace("over-", "mpi-over-"), "mpi-over-2");
    assert!(["rank-0-by-mpi", "rank-1-by-mpi"].iter().all(|rank| shell.text().contains(rank)), "{}", shell.text());
    let slave = shell.slave.try_clone().unwrap();
    shell.keys("exit 7\n");
    shell.end(7);
    let after = tcgetattr(&slave).unwrap();
    assert_eq!((after.local_modes, after.input_modes), (before.local_modes, before.input_modes));
    assert_eq!(NODES.map(ours), ["hworker running\n", "hworker running\n"]);

    // in the hmaster of a running job, which continues
    let mut run = lab.start(&["run", "-np", "2", "--", "sh", "-c", "echo ready; exec sleep 300"]);
    run.until(&["[0 node1] ready", "[1 node2] ready"], s(60));
    let shell = Typed::start(&lab, &["shell"]);
    shell.until("echo of-$(tr '\\0' ' ' </proc/1/cmdline | grep -c job_supervisor.py)\n", "of-1");
    shell.keys("exit 0\n");
    shell.end(0);
    assert!(run.runs(), "{}", run.err());
    run.signal("INT");
    run.end(s(60)).code(130);
    no_job_is_left();

    // in a worker; whatever ends hvdctl, nothing stays there
    for signal in ["TERM", "KILL"] {
        let shell = Typed::start(&lab, &["shell", "node2"]);
        shell.until("echo in-$(ls -d /opt/horovod/jobs)\n", "in-/opt/horovod/jobs");
        shell.keys("sleep 43210\n");
        assert!(eventually(s(30), || runs("node2", "sleep 43210")));
        crate::process::kill(&shell.pid(), signal);
        assert!(eventually(s(60), || !runs("node2", "sleep 43210")), "{signal}");
        let inside = "docker exec hworker sh -c \"grep -lz '^HVDCTL_SHELL=' /proc/[0-9]*/environ 2>/dev/null\"; :";
        assert!(eventually(s(60), || on("node2", inside).is_empty()), "{signal}: {}", on("node2", inside));
        if signal == "TERM" {
            shell.end(143);
        }
    }
    // and the shell's own container is removed
    let shell = Typed::start(&lab, &["shell"]);
    shell.until("echo up-$((40+2))\n", "up-42");
    crate::process::kill(&shell.pid(), "KILL");
    assert!(eventually(s(60), || ours("node1") == "hworker running\n"), "{}", ours("node1"));
}

/// Tests of behaviour that other tests prove without a lab, and of rare corners of real machines (`scripts/test
/// --full`).
mod full {
    use super::*;

    #[test]
    fn the_command_that_a_shell_shows_for_mpirun_uses_all_nodes() {
        let lab = Lab::up();
        lab.edit("[cluster]", "[cluster]\nlauncher = \"mpirun\"");
        let shell = Typed::start(&lab, &["shell"]);
        shell.until("echo up-$((40+2))\n", "up-42");
        let shown = "to use all nodes: mpirun --allow-run-as-root -np 2 --hostfile /root/hostfile PROGRAM";
        assert!(shell.text().replace("\r\n", "").contains(shown), "{}", shell.text());
        let mpirun = "mpirun --allow-run-as-root -np 2 --hostfile /root/hostfile \
                      sh -c 'echo rank-$OMPI_COMM_WORLD_RANK-on-$(hostname)'; echo over-$((1+1))\n";
        shell.until(mpirun, "over-2");
        assert!(
            ["rank-0-on-node1", "rank-1-on-node2"].iter().all(|rank| shell.text().contains(rank)),
            "{}",
            shell.text()
        );
        shell.keys("exit 0\n");
        shell.end(0);
    }
}
