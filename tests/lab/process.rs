//! Programs with a time limit: none outlives its test.

use std::io::{Read, Write};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

/// The result of a program.
#[derive(Debug)]
pub struct Done {
    /// The program and its arguments, for the message of a failed assertion.
    pub what: String,
    /// Its process id, which no longer exists.
    pub pid: u32,
    /// Exit code, 128 + N for signal N.
    pub code: i32,
    /// Standard output.
    pub out: String,
    /// Standard error.
    pub err: String,
}

impl Done {
    /// Asserts its exit code.
    #[track_caller]
    pub fn code(self, code: i32) -> Done {
        assert_eq!(self.code, code, "{}\n--- stdout\n{}--- stderr\n{}", self.what, self.out, self.err);
        self
    }

    /// Asserts that it succeeded, and returns its standard output.
    #[track_caller]
    pub fn ok(self) -> String {
        self.code(0).out
    }

    /// Asserts that standard output contains all these texts.
    #[track_caller]
    pub fn says(self, words: &[&str]) -> Done {
        for word in words {
            assert!(self.out.contains(word), "{}: no {word:?} in standard output:\n{}", self.what, self.out);
        }
        self
    }

    /// Asserts that standard error contains all these texts.
    #[track_caller]
    pub fn complains(self, words: &[&str]) -> Done {
        for word in words {
            assert!(self.err.contains(word), "{}: no {word:?} in standard error:\n{}", self.what, self.err);
        }
        self
    }
}

/// Runs a program to its end.
#[track_caller]
pub fn run(command: Command, limit: Duration) -> Done {
    Running::start(command, &[]).end(limit)
}

/// A running program; killed when dropped.
pub struct Running {
    what: String,
    child: Child,
    out: Arc<Mutex<Vec<u8>>>,
    err: Arc<Mutex<Vec<u8>>>,
    closed: Receiver<()>,
}

impl Running {
    /// Starts it with these bytes on its standard input.
    #[track_caller]
    pub fn start(mut command: Command, input: &[u8]) -> Running {
        let what = format!("{command:?}");
        command.stdin(if input.is_empty() { Stdio::null() } else { Stdio::piped() });
        command.stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().unwrap_or_else(|e| panic!("{what}: {e}"));
        if let Some(mut stdin) = child.stdin.take() {
            let input = input.to_vec();
            thread::spawn(move || stdin.write_all(&input));
        }
        let (sender, closed) = channel();
        let collect = |mut stream: Box<dyn Read + Send>| {
            let sink = Arc::new(Mutex::new(Vec::new()));
            let (into, sender) = (Arc::clone(&sink), sender.clone());
            thread::spawn(move || {
                let mut buffer = [0; 8192];
                while let Ok(n @ 1..) = stream.read(&mut buffer) {
                    into.lock().unwrap().extend_from_slice(&buffer[..n]);
                }
                let _ = sender.send(());
            });
            sink
        };
        let out = collect(Box::new(child.stdout.take().unwrap()));
        let err = collect(Box::new(child.stderr.take().unwrap()));
        Running { what, child, out, err, closed }
    }

    /// Its process id.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Standard output so far.
    pub fn out(&self) -> String {
        String::from_utf8_lossy(&self.out.lock().unwrap()).into_owned()
    }

    /// Standard error so far.
    pub fn err(&self) -> String {
        String::from_utf8_lossy(&self.err.lock().unwrap()).into_owned()
    }

    /// Returns true if it still runs.
    pub fn runs(&mut self) -> bool {
        self.child.try_wait().unwrap().is_none()
    }

    /// Waits until standard output contains all these texts; false if the time is over or the program has ended before.
    pub fn comes(&mut self, words: &[&str], limit: Duration) -> bool {
        let mut ended = false;
        eventually(limit, || {
            // the order matters: what an ended program wrote last is looked at once more
            let there = words.iter().all(|word| self.out().contains(word));
            let over = there || ended;
            ended = !self.runs();
            over
        });
        words.iter().all(|word| self.out().contains(word))
    }

    /// Asserts that they appear.
    #[track_caller]
    pub fn until(&mut self, words: &[&str], limit: Duration) {
        let come = self.comes(words, limit);
        assert!(come, "{}: {words:?} never came\n--- stdout\n{}--- stderr\n{}", self.what, self.out(), self.err());
    }

    /// Sends it a signal, e.g. `INT`.
    pub fn signal(&self, name: &str) {
        kill(&self.pid().to_string(), name);
    }

    /// Waits for its end; one that takes longer than the limit is a failure.
    #[track_caller]
    pub fn end(mut self, limit: Duration) -> Done {
        let limit = limit * TIMEOUT_FACTOR;
        let end = Instant::now() + limit;
        let mut status = self.child.try_wait().unwrap();
        while status.is_none() && Instant::now() < end {
            thread::sleep(Duration::from_millis(10));
            status = self.child.try_wait().unwrap();
        }
        let Some(status) = status else {
            // politely first: hvdctl takes its ssh masters with it
            self.signal("TERM");
            thread::sleep(Duration::from_secs(5));
            panic!(
                "{}: not finished within {} s\n--- stdout\n{}--- stderr\n{}",
                self.what,
                limit.as_secs(),
                self.out(),
                self.err()
            );
        };
        // a process that was left behind may hold the streams open; what has come by then is what there is
        for _ in 0..2 {
            let _ = self.closed.recv_timeout(Duration::from_secs(2));
        }
        Done { what: self.what.clone(), pid: self.pid(), code: code(status), out: self.out(), err: self.err() }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        if let Ok(None) = self.child.try_wait() {
            let _ = self.child.kill();
            let _ = self.child.wait();
        }
    }
}

fn code(status: ExitStatus) -> i32 {
    use std::os::unix::process::ExitStatusExt;
    status.code().unwrap_or_else(|| 128 + status.signal().unwrap_or_default())
}

/// Signals a process of this machine by its id.
pub fn kill(pid: &str, name: &str) {
    let _ = Command::new("kill").args([&format!("-{name}"), pid]).stderr(Stdio::null()).status();
}

/// The factor for each limit. A limit is the longest time on an idle machine, and a test may run on a busy one.
const TIMEOUT_FACTOR: u32 = 4;

/// Tries until it holds; false when the time is over.
pub fn eventually(limit: Duration, mut holds: impl FnMut() -> bool) -> bool {
    let end = Instant::now() + limit * TIMEOUT_FACTOR;
    loop {
        if holds() {
            return true;
        }
        if Instant::now() > end {
            return false;
        }
        thread::sleep(Duration::from_millis(200));
    }
}

/// Seconds.
pub const fn s(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}
