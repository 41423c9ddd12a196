//! Records the arguments and environment of every process on a node or on this machine.

use crate::pool::node_command;
use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

/// Directories in which a program might put a temporary file.
pub const DIRECTORIES: [&str; 6] = ["/tmp", "/var/tmp", "/dev/shm", "/home", "/root", "/opt/horovod"];

/// Collects what a user of the node could read until its standard input ends: the arguments and environments of all
/// processes, and the files in the given directories.
const WATCH: &str = r#"
import glob, os, sys, threading
seen, done = set(), threading.Event()
threading.Thread(target=lambda: (sys.stdin.read(), done.set()), daemon=True).start()
print("watching", flush=True)
def files():
    for root in sys.argv[1:]:
        for directory, _, names in os.walk(root):
            yield from (os.path.join(directory, name) for name in names)
pause = float(os.environ.get("PAUSE", "0"))
kinds = ["cmdline"] if sys.argv[1:] == ["arguments"] else ["cmdline", "environ"]
while not done.is_set():
    for name in [*(one for kind in kinds for one in glob.glob("/proc/[0-9]*/" + kind)), *files()]:
        try:
            if not name.startswith("/proc") and (not os.path.isfile(name) or os.path.getsize(name) > 200000): continue
            with open(name, "rb") as file: seen.add(file.read())
        except OSError: pass
    done.wait(pause)
sys.stdout.buffer.write(b"\n".join(seen))
"#;

/// A watcher on a node or on this machine.
pub struct Watcher {
    child: Child,
}

impl Watcher {
    /// Starts it on a node (`None`: on this machine), for processes and the files in these directories.
    #[track_caller]
    pub fn start(node: Option<&str>, directories: &[&str]) -> Watcher {
        Watcher::start_every(Duration::ZERO, node, directories)
    }

    /// Starts it with a pause between two passes, for longer-lived processes: a pass takes much of a processor's time.
    #[track_caller]
    pub fn start_every(pause: Duration, node: Option<&str>, directories: &[&str]) -> Watcher {
        let mut command = match node {
            Some(node) => {
                let mut command = node_command(node, &["timeout"]);
                command.env("HVDCTL_TEST", "1");
                command
            }
            None => Command::new("timeout"),
        };
        command.env("PAUSE", pause.as_secs_f64().to_string());
        command.args(["1000", "python3", "-c", WATCH]).stdin(Stdio::piped()).stdout(Stdio::piped());
        command.args(directories);
        let mut child = command.spawn().unwrap();
        let mut line = String::new();
        // reads no further than this line
        BufReader::with_capacity(1, child.stdout.as_mut().unwrap()).read_line(&mut line).unwrap();
        assert_eq!(line, "watching\n");
        Watcher { child }
    }

    /// Starts it on a node, only for the arguments of processes that exist for at least 50 ms.
    #[track_caller]
    pub fn on_arguments(node: &str) -> Watcher {
        Watcher::start_every(Duration::from_millis(50), Some(node), &["arguments"])
    }

    /// Stops it and returns everything that it has read.
    pub fn stop(mut self) -> Vec<u8> {
        drop(self.child.stdin.take());
        self.child.wait_with_output().unwrap().stdout
    }

    /// Stops it and asserts that it has read one text and not the other.
    #[track_caller]
    pub fn saw_but_not(self, place: &str, seen: &str, secret: &str) {
        let all = self.stop();
        assert!(has(&all, seen), "{place}: {seen:?} was never seen, so the rest proves nothing");
        assert!(!has(&all, secret), "{place}: the secret was an argument, in an environment or in a file");
    }
}

/// Returns true if these bytes contain the text.
pub fn has(haystack: &[u8], needle: &str) -> bool {
    haystack.windows(needle.len()).any(|w| w == needle.as_bytes())
}
