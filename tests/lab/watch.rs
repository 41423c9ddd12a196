//! The eyes of somebody on a node, or on this machine, who reads what every process was given.

use crate::pool::node_command;
use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

/// Where somebody would put a file for a moment.
pub const FOLDERS: [&str; 6] = ["/tmp", "/var/tmp", "/dev/shm", "/home", "/root", "/opt/horovod"];

/// Collects what somebody on the node could read until its standard input ends: the arguments and environments of all
/// processes that come by, and the files in the directories where one would put something for a moment.
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

/// Eyes on a node, or on this machine.
pub struct Eyes {
    child: Child,
}

impl Eyes {
    /// Opens them on a node (none: here), for processes and for what lies in these directories.
    #[track_caller]
    pub fn open(node: Option<&str>, directories: &[&str]) -> Eyes {
        Eyes::open_every(Duration::ZERO, node, directories)
    }

    /// The same with a pause between two looks, for what stays for longer: a look takes a good part of a processor's time.
    #[track_caller]
    pub fn open_every(pause: Duration, node: Option<&str>, directories: &[&str]) -> Eyes {
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
        // one byte at a time would do; nothing comes behind this line until the end
        BufReader::with_capacity(1, child.stdout.as_mut().unwrap()).read_line(&mut line).unwrap();
        assert_eq!(line, "watching\n");
        Eyes { child }
    }

    /// Opens them on a node for the arguments of processes alone, of those that stay for a moment.
    #[track_caller]
    pub fn on_arguments(node: &str) -> Eyes {
        Eyes::open_every(Duration::from_millis(50), Some(node), &["arguments"])
    }

    /// Closes them, and gives all that they have seen.
    pub fn close(mut self) -> Vec<u8> {
        drop(self.child.stdin.take());
        self.child.wait_with_output().unwrap().stdout
    }

    /// Closes them, and asserts that they have seen one thing and not the other.
    #[track_caller]
    pub fn saw_but_not(self, place: &str, seen: &str, secret: &str) {
        let all = self.close();
        assert!(has(&all, seen), "{place}: {seen:?} was never seen, so the rest proves nothing");
        assert!(!has(&all, secret), "{place}: the secret was an argument, in an environment or in a file");
    }
}

/// Whether these bytes have those in them.
pub fn has(haystack: &[u8], needle: &str) -> bool {
    haystack.windows(needle.len()).any(|w| w == needle.as_bytes())
}
