//! The ssh masters of this process and their directory.

use super::kept;
use super::turns::{LoginPhase, is_of_debugging, phase};
use crate::paths;
use openssh::Session;
use rustix::fs::{FlockOperation, OFlags};
use rustix::process::{Pid, Signal};
use std::fs::{self, File};
use std::io::{self, Read as _};
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::process::{ExitStatus, Stdio};
use std::time::Duration;
use tempfile::TempDir;
use tokio::process::{Child, Command};

const PREFIX: &str = "hvdctl-ssh.";
/// The most bytes that are kept of what ssh writes while it logs in; a server may write without an end.
const MOST_OUTPUT: usize = 1 << 18;
/// The most pieces that are read at once.
const MOST_PIECES: usize = 64;

/// A directory for the control sockets of this process, which is locked for as long as the process lives.
#[derive(Debug)]
pub(super) struct MasterDirectory {
    dir: TempDir,
    _lock: Option<File>,
}

impl MasterDirectory {
    /// Creates one (mode 700).
    pub(super) fn create(parent: &Path) -> io::Result<MasterDirectory> {
        let prefix = format!("{PREFIX}{}.", std::process::id());
        loop {
            let dir = paths::private_directory().prefix(&prefix).tempdir_in(parent)?;
            let lock = lock(dir.path(), FlockOperation::LockExclusive);
            // another process may have taken it for a stale one before it was locked
            if lock.is_some() || dir.path().exists() {
                return Ok(MasterDirectory { dir, _lock: lock });
            }
        }
    }

    /// Returns its path.
    pub(super) fn path(&self) -> &Path {
        self.dir.path()
    }
}

/// Locks a directory until the result is dropped; `None` if it cannot be locked or is gone.
fn lock(directory: &Path, operation: FlockOperation) -> Option<File> {
    let file = File::open(directory).ok()?;
    rustix::fs::flock(&file, operation).ok()?;
    // it may have been removed meanwhile
    (file.metadata().ok()?.ino() == fs::metadata(directory).ok()?.ino()).then_some(file)
}

/// An ssh master that logs in.
pub(super) struct Starting {
    dir: TempDir,
    child: Child,
    /// Its log at the level DEBUG3, which tells what it waits for.
    log: MasterOutput,
    /// Its standard error, which alone has a server's banner.
    stderr: MasterOutput,
}

impl Starting {
    /// Starts one for a host, with these options. ssh goes to the background once it has logged in. It then writes to
    /// its log without a reader, which it ignores: a file would grow for as long as the connection is kept.
    ///
    /// # Errors
    /// When ssh cannot be started.
    pub(super) fn new(mut ssh: Command, directory: &Path, host: &str) -> io::Result<Starting> {
        let dir = paths::private_directory().prefix("m").tempdir_in(directory)?;
        let [(log, stdout), (stderr, writer)] = [MasterOutput::new()?, MasterOutput::new()?];
        ssh.args(["-o", "LogLevel=DEBUG3", "-E", "/dev/stdout", "-S"])
            .arg(dir.path().join("master"))
            .args(["--", host]);
        ssh.stdin(Stdio::null()).stdout(stdout).stderr(writer).kill_on_drop(true);
        Ok(Starting { dir, child: ssh.spawn()?, log, stderr })
    }

    /// Returns what it does.
    pub(super) fn phase(&mut self) -> LoginPhase {
        phase(&self.log.text(), &self.stderr.text())
    }

    /// Waits until it is logged in, or has failed.
    pub(super) async fn ended(&mut self) -> io::Result<ExitStatus> {
        self.child.wait().await
    }

    /// Returns the session of one that has ended so.
    ///
    /// # Errors
    /// With ssh's own message.
    pub(super) fn session(mut self, status: ExitStatus) -> io::Result<Session> {
        if status.success() {
            return Ok(Session::new_native_mux(self.dir));
        }
        let log = self.log.text();
        // a message may have several lines, which end without the carriage return
        let messages: Vec<&str> = log.split("\r\n").filter(|message| !is_of_debugging(message)).collect();
        let message = messages.join("\n").trim().to_owned();
        let message = message.strip_prefix("ssh: ").unwrap_or(&message);
        Err(io::Error::other(if message.is_empty() { format!("ssh failed: {status}") } else { message.to_owned() }))
    }
}

/// The output that a program has written to a pipe so far. Processes that it leaves behind may keep the pipe open.
struct MasterOutput {
    pipe: io::PipeReader,
    bytes: Vec<u8>,
}

impl MasterOutput {
    fn new() -> io::Result<(MasterOutput, io::PipeWriter)> {
        let (pipe, writer) = io::pipe()?;
        rustix::fs::fcntl_setfl(&pipe, OFlags::NONBLOCK)?;
        Ok((MasterOutput { pipe, bytes: Vec::new() }, writer))
    }

    /// Reads what is there, and returns all of it; the rest of a program that writes much is lost.
    fn text(&mut self) -> String {
        let mut piece = [0; 4096];
        for _ in 0..MOST_PIECES {
            match self.pipe.read(&mut piece) {
                Ok(count @ 1..) if self.bytes.len() < MOST_OUTPUT => self.bytes.extend(&piece[..count]),
                Ok(1..) => {}
                Ok(0) | Err(_) => break,
            }
        }
        String::from_utf8_lossy(&self.bytes).into_owned()
    }
}

/// Removes a directory of control sockets. An ssh that was still connecting when its login was cancelled continues, and
/// would become an unused master. While it ends it may still write to the directory. `handed_over`: where masters were
/// made that this process has left to other commands.
pub(super) fn remove(directory: &Path, handed_over: &[String]) {
    for _ in 0..50 {
        end_processes_of(directory, handed_over);
        if fs::remove_dir_all(directory).is_ok() || !directory.exists() {
            return;
        }
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// Removes the directories, and ends the masters, of hvdctl processes that were killed.
pub(super) fn remove_stale_directories(parent: &Path) {
    for entry in fs::read_dir(parent).into_iter().flatten().flatten() {
        let name = entry.file_name();
        let owner = name.to_str().and_then(|name| name.strip_prefix(PREFIX)?.split('.').next()?.parse::<u32>().ok());
        let owner = owner.and_then(|pid| i32::try_from(pid).ok());
        let is_ours = |meta: fs::Metadata| meta.is_dir() && meta.uid() == rustix::process::getuid().as_raw();
        if !(owner.is_some_and(has_ended) && entry.metadata().is_ok_and(is_ours)) {
            continue;
        }
        // a process in another container, whose number means nothing here, has it locked
        if let Some(_lock) = lock(&entry.path(), FlockOperation::NonBlockingLockExclusive) {
            end_processes_of(&entry.path(), &[]);
            let _ = fs::remove_dir_all(entry.path());
        }
    }
}

/// Returns whether there is no process of this number.
fn has_ended(pid: i32) -> bool {
    Pid::from_raw(pid).is_some_and(|pid| rustix::process::test_kill_process(pid) == Err(rustix::io::Errno::SRCH))
}

/// Ends every ssh of ours whose control socket is, or would be, in this directory, except for masters that are kept.
/// Without /proc (macOS) none is found, and an ssh that was still connecting ends at its own time limit.
fn end_processes_of(directory: &Path, handed_over: &[String]) {
    // one that was disconnected meanwhile is not in the list of those that are kept, and may still be used
    let kept = [directory.parent().map(kept::made).unwrap_or_default(), handed_over.to_vec()].concat();
    for process in fs::read_dir("/proc").into_iter().flatten().flatten() {
        let pid = process.file_name().to_str().and_then(|name| Pid::from_raw(name.parse().ok()?));
        let arguments = fs::read(process.path().join("cmdline")).unwrap_or_default();
        if let Some(pid) = pid.filter(|_| belongs_to(&arguments, directory, &kept)) {
            let _ = rustix::process::kill_process(pid, Signal::TERM);
        }
    }
}

/// Returns whether arguments are those of an ssh whose control socket is in this directory, and not in one of these
/// places: they have its path, and so has the title that a master gives itself.
fn belongs_to(arguments: &[u8], directory: &Path, kept: &[String]) -> bool {
    let text = String::from_utf8_lossy(arguments);
    let is_in = |directory: &str| text.contains(directory);
    text.starts_with("ssh") && is_in(&format!("{}/", directory.display())) && !kept.iter().any(|made| is_in(made))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;
    use std::os::unix::process::CommandExt;

    #[test]
    fn the_directory_is_private() {
        let parent = tempfile::tempdir().unwrap();
        let made = MasterDirectory::create(parent.path()).unwrap();
        assert_eq!(fs::metadata(made.path()).unwrap().permissions().mode() & 0o7777, 0o700);
    }

    #[test]
    fn only_a_directory_whose_process_has_ended_is_stale() {
        let parent = tempfile::tempdir().unwrap();
        // as of a process in another container: here is none of its number
        let as_of_another = |made: &Path| {
            let other = parent.path().join(format!("{PREFIX}{}.x", i32::MAX));
            fs::rename(made, &other).unwrap();
            other
        };
        let mut alive = MasterDirectory::create(parent.path()).unwrap();
        alive.dir.disable_cleanup(true);
        let path = as_of_another(alive.path());
        remove_stale_directories(parent.path());
        assert!(path.exists(), "its process lives");
        drop(alive);
        remove_stale_directories(parent.path());
        assert!(!path.exists());
        let own = MasterDirectory::create(parent.path()).unwrap();
        remove_stale_directories(parent.path());
        assert!(own.path().exists());
    }

    #[test]
    fn a_master_that_was_handed_over_and_then_disconnected_is_not_ended() {
        let parent = tempfile::tempdir().unwrap();
        let directory = parent.path().join("hvdctl-ssh.99.abc");
        fs::create_dir(&directory).unwrap();
        let place = |name: &str| directory.join(name).join("master").display().to_string();
        let start = |name: &str| {
            let title = format!("ssh: {} [mux]", place(name));
            let process = std::process::Command::new("sleep").arg0(title).arg("600").spawn().unwrap();
            // spawn() may return before the kernel has given the process its arguments
            while fs::read(format!("/proc/{}/cmdline", process.id())).unwrap().is_empty() {
                std::thread::sleep(Duration::from_millis(1));
            }
            process
        };
        let (mut handed_over, mut own) = (start("m1"), start("m2"));
        remove(&directory, &[place("m1")]);
        own.wait().unwrap();
        assert!(handed_over.try_wait().unwrap().is_none() && !directory.exists());
        handed_over.kill().unwrap();
        handed_over.wait().unwrap();
    }

    #[test]
    fn a_master_that_is_kept_is_not_ended_with_its_first_directory() {
        let directory = Path::new("/run/user/7/hvdctl/hvdctl-ssh.99.abc");
        let arguments = "ssh\0-S\0/run/user/7/hvdctl/hvdctl-ssh.99.abc/m1/master\0-M\0gpu1\0";
        let belongs = |arguments: &str, kept: &[String]| belongs_to(arguments.as_bytes(), directory, kept);
        assert!(belongs(arguments, &[]));
        assert!(belongs(arguments, &["/run/user/7/hvdctl/hvdctl-ssh.99.abc/m2/master".into()]));
        assert!(!belongs(arguments, &["/run/user/7/hvdctl/hvdctl-ssh.99.abc/m1/master".into()]));
        assert!(belongs("ssh: /run/user/7/hvdctl/hvdctl-ssh.99.abc/m1/master [mux]\0", &[]));
        assert!(!belongs(&arguments.replace("abc", "abcd"), &[]));
        assert!(!belongs(&arguments.replacen("ssh", "vim", 1), &[]));
    }
}
