//! ssh masters that outlive the command: their sockets are in a private directory, each with a file about it.
//!
//! `KEY` is the control socket of a master, `KEY.state` holds the state of its connection. A master makes its socket in
//! the directory of the process that has started it; a hard link makes it `KEY`, which fails if another command was
//! faster. A command that removes a `KEY` holds the directory's lock and removes only the very socket that it has
//! tried.

use openssh::Session;
use rustix::fs::{AtFlags, CWD, FlockOperation, Timespec, Timestamps, UTIME_OMIT, flock, utimensat};
use rustix::process::{Resource, getrlimit};
use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{self, Write as _};
use std::os::unix::fs::{DirBuilderExt, FileTypeExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, SystemTime};
use tokio::io::AsyncReadExt;
use tokio::net::UnixStream;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::timeout;

/// The longest name of the directory: the path of a socket may have 104 bytes (108 on Linux), and ssh first makes a
/// longer one.
const LONGEST: usize = 44;

/// Directories in which logind keeps those of users who are logged in (file-hierarchy(7)).
const LOGIND: [&str; 2] = ["/run/user", "/var/run/user"];

/// Time limit for the answer of a master, which is a process of this machine.
const MASTER_LIMIT: Duration = Duration::from_secs(2);

/// Time for which the observed permissions of a login are assumed to be unchanged.
const ACCESS_AGE: Duration = Duration::from_secs(60);

/// The age from which on what should have been removed or renamed at once is left over.
const LEFT_OVER: Duration = Duration::from_secs(60);

/// The age from which on files that every command could need are removed.
const UNUSED: Duration = Duration::from_secs(86_400);

/// By how many seconds two readings of the time that this machine has slept may differ.
const SLEPT_TOLERANCE: f64 = 2.0;

/// The directory of the kept connections.
#[derive(Debug, Clone)]
pub(super) struct Directory {
    path: PathBuf,
    /// Admits the connections that are held, each of which takes an open file.
    holds: Arc<Semaphore>,
}

/// Returns how many kept connections a process may hold that may have so many open files. The rest of the files is for
/// the work on nodes. A connection that is not held is opened again if its master has ended for want of use.
pub fn most_held(open_files: u64) -> u64 {
    open_files / 4
}

/// The identity of a socket, whose path may lead to another one later.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Identity {
    device: u64,
    inode: u64,
    made: (i64, i64),
}

impl Identity {
    fn of(socket: &Path) -> Option<Identity> {
        let meta = fs::symlink_metadata(socket).ok().filter(|meta| meta.file_type().is_socket())?;
        Some(Identity { device: meta.dev(), inode: meta.ino(), made: (meta.mtime(), meta.mtime_nsec()) })
    }
}

/// The recorded state of a connection.
#[derive(Debug, Default, PartialEq)]
struct State {
    /// Seconds without use after which its master ends.
    idle: u64,
    /// The seconds that this machine had slept when it was opened.
    slept: f64,
    /// The path at which its master created the socket, which is among the master's arguments.
    made: String,
    /// The report of the access script.
    access: String,
}

impl State {
    fn parse(text: &str) -> Option<State> {
        let mut fields = text.splitn(4, '\n');
        let idle = fields.next()?.strip_prefix("idle ")?.parse().ok()?;
        let slept = fields.next()?.strip_prefix("slept ")?.parse().ok()?;
        let made = fields.next()?.strip_prefix("made ")?.to_owned();
        Some(State { idle, slept, made, access: fields.next()?.to_owned() })
    }

    fn text(&self) -> String {
        format!("idle {}\nslept {:.3}\nmade {}\n{}", self.idle, self.slept, self.made, self.access)
    }
}

impl Directory {
    /// Opens the user's directory, which is made if it is missing.
    ///
    /// # Errors
    /// Its path, and why it is not used.
    pub(super) fn open() -> Result<Directory, String> {
        let runtime = std::env::var_os("XDG_RUNTIME_DIR").map(PathBuf::from);
        let (first, second) = places(runtime.as_deref(), rustix::process::geteuid().as_raw());
        Directory::at(&first).or_else(|why| second.and_then(|second| Directory::at(&second).ok()).ok_or(why))
    }

    /// Opens a directory, which is made if it is missing.
    ///
    /// # Errors
    /// As [`Directory::open`].
    pub(super) fn at(path: &Path) -> Result<Directory, String> {
        let refused = |why: String| format!("{}: {why}", path.display());
        match DirBuilder::new().mode(0o700).create(path) {
            Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(refused(error.to_string())),
            _ => {}
        }
        check_private(path).map_err(refused)?;
        let open_files = getrlimit(Resource::Nofile).current;
        let most =
            open_files.and_then(|files| usize::try_from(most_held(files)).ok()).unwrap_or(Semaphore::MAX_PERMITS);
        let holds = Arc::new(Semaphore::new(most.min(Semaphore::MAX_PERMITS)));
        Ok(Directory { path: path.to_owned(), holds })
    }

    /// Returns whether it is still the user's alone: another user may have made one of this name after a cleanup.
    pub(super) fn is_ours(&self) -> bool {
        check_private(&self.path).is_ok()
    }

    /// Returns its path.
    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    fn state_file(&self, key: &str) -> PathBuf {
        self.path.join(format!("{key}.state"))
    }

    fn state(&self, key: &str) -> Option<State> {
        State::parse(&fs::read_to_string(self.state_file(key)).ok()?)
    }

    /// Writes a file as a whole.
    ///
    /// # Errors
    /// When there is no room.
    pub(super) fn write(&self, name: &str, text: &str) -> io::Result<()> {
        // a temporary file has mode 600
        let mut file = tempfile::Builder::new().prefix("new.").tempfile_in(&self.path)?;
        file.write_all(text.as_bytes())?;
        file.persist(self.path.join(name)).map(drop).map_err(|error| error.error)
    }

    /// Returns a file with this text, which several commands may use, and whose name no other text has.
    ///
    /// # Errors
    /// When there is no room.
    pub(super) fn shared(&self, name: &str, text: &str) -> io::Result<PathBuf> {
        // written again long before it counts as unused
        if self.recent(name, UNUSED / 2).is_none() {
            self.write(name, text)?;
        }
        Ok(self.path.join(name))
    }

    /// Returns the text of a file that is not older than this.
    pub(super) fn recent(&self, name: &str, age: Duration) -> Option<String> {
        let file = self.path.join(name);
        age_of(&fs::symlink_metadata(&file).ok()?).filter(|now| *now <= age)?;
        fs::read_to_string(file).ok()
    }

    /// Holds the directory's lock until the file is closed. It is held for moments only.
    fn lock(&self) -> io::Result<File> {
        let lock =
            OpenOptions::new().write(true).create(true).truncate(false).mode(0o600).open(self.path.join("lock"))?;
        flock(&lock, FlockOperation::LockExclusive)?;
        Ok(lock)
    }

    /// Returns the connection of this name, if its master answers and this machine has not slept since it was opened.
    /// Removes one that cannot be used.
    pub(super) async fn resume(&self, key: &str) -> Option<Kept> {
        let socket = self.path.join(key);
        let identity = Identity::of(&socket)?;
        let has_slept = self.state(key).is_none_or(|state| (state.slept - slept()).abs() > SLEPT_TOLERANCE);
        let in_use = if has_slept { None } else { hold(&socket).await };
        match in_use {
            Some(in_use) => {
                touch(&socket);
                Some(self.kept(key, identity, in_use))
            }
            None => {
                self.remove(key, identity).await;
                None
            }
        }
    }

    /// Keeps a master with this socket under this name. Returns `None` if there is another one, or it cannot be kept.
    pub(super) async fn keep(&self, key: &str, made: &Path, idle: Duration) -> Option<Kept> {
        let (identity, in_use) = (Identity::of(made)?, hold(made).await?);
        self.link(key, made, idle).ok()?;
        Some(self.kept(key, identity, in_use))
    }

    fn kept(&self, key: &str, identity: Identity, in_use: UnixStream) -> Kept {
        let hold = Arc::clone(&self.holds).try_acquire_owned().ok().map(|permit| (in_use, permit));
        Kept { directory: self.clone(), key: key.to_owned(), identity, hold }
    }

    fn link(&self, key: &str, made: &Path, idle: Duration) -> io::Result<()> {
        let socket = self.path.join(key);
        let _lock = self.lock()?;
        if socket.symlink_metadata().is_ok() {
            return Err(io::ErrorKind::AlreadyExists.into());
        }
        // a socket without it could not be used
        let made_in = made.display().to_string();
        let state = State { idle: idle.as_secs(), slept: slept(), made: made_in, access: String::new() };
        self.write(&format!("{key}.state"), &state.text())?;
        fs::hard_link(made, &socket)?;
        fs::remove_file(made)
    }

    /// Removes a connection, and lets its master end as soon as nothing uses it. Does nothing if it is another one by
    /// now.
    async fn remove(&self, key: &str, identity: Identity) {
        let Some(closing) = self.take_out(key, identity) else { return };
        let session = Session::resume_mux(closing.clone().into_boxed_path(), None);
        let _ = timeout(MASTER_LIMIT, session.close()).await;
        let _ = fs::remove_file(closing);
    }

    /// Renames a connection, so that no command finds it.
    fn take_out(&self, key: &str, identity: Identity) -> Option<PathBuf> {
        let socket = self.path.join(key);
        let closing = self.path.join(format!("closing.{}.{key}", std::process::id()));
        let _lock = self.lock().ok()?;
        if Identity::of(&socket)? != identity {
            return None;
        }
        fs::rename(&socket, &closing).ok()?;
        let _ = fs::remove_file(self.state_file(key));
        Some(closing)
    }

    /// Closes the connections whose names begin with this. Returns how many there were.
    pub(super) async fn close(&self, prefix: &str) -> usize {
        let mut count = 0;
        for name in self.names().into_iter().filter(|name| name.starts_with(prefix) && is_key(name)) {
            if let Some(identity) = Identity::of(&self.path.join(&name)) {
                count += usize::from(hold(&self.path.join(&name)).await.is_some());
                self.remove(&name, identity).await;
            }
        }
        count
    }

    fn names(&self) -> Vec<String> {
        let entries = fs::read_dir(&self.path).into_iter().flatten().flatten();
        entries.filter_map(|entry| entry.file_name().into_string().ok()).collect()
    }

    /// Removes what commands that were killed, and masters that have ended, left behind.
    pub(super) async fn clean(&self) {
        for name in self.names() {
            let path = self.path.join(&name);
            let Ok(meta) = fs::symlink_metadata(&path) else { continue };
            let age = age_of(&meta).unwrap_or_default();
            if is_key(&name) {
                self.clean_socket(&name, &meta).await;
                continue;
            }
            let is_unused = match name.split_once('.') {
                Some(("new" | "closing", _)) => age > LEFT_OVER,
                Some((key, "state")) => age > LEFT_OVER && !self.path.join(key).exists(),
                Some(("config" | "client" | "known_hosts", _)) => age > UNUSED,
                _ => false,
            };
            if is_unused {
                let _ = fs::remove_file(&path);
            }
        }
    }

    /// Removes a socket whose master should have ended. It is not tried before: each try starts the master's time anew.
    async fn clean_socket(&self, key: &str, meta: &fs::Metadata) {
        let used = meta.accessed().ok().and_then(|time| SystemTime::now().duration_since(time).ok());
        let Some(unused) = used.filter(|unused| *unused > LEFT_OVER) else { return };
        let idle = self.state(key).map_or(0, |state| state.idle);
        if unused <= Duration::from_secs(idle) + LEFT_OVER {
            return;
        }
        let socket = self.path.join(key);
        let Some(identity) = Identity::of(&socket) else { return };
        match hold(&socket).await {
            // a long command uses it
            Some(_) => touch(&socket),
            None => self.remove(key, identity).await,
        }
    }
}

/// A kept connection. While it is held, the master does not end for want of use.
#[derive(Debug)]
pub(super) struct Kept {
    directory: Directory,
    key: String,
    identity: Identity,
    /// A connection to the control socket, over which nothing is sent; `None` where as many as possible are held.
    #[cfg_attr(not(test), expect(dead_code, reason = "it is only dropped"))]
    hold: Option<(UnixStream, OwnedSemaphorePermit)>,
}

impl Kept {
    /// Returns its session, which closes nothing when it is dropped.
    pub(super) fn session(&self) -> Session {
        Session::resume_mux(self.directory.path.join(&self.key).into_boxed_path(), None)
    }

    /// Returns what the access script reported not long ago.
    pub(super) fn access(&self) -> Option<String> {
        let text = self.directory.recent(&format!("{}.state", self.key), ACCESS_AGE)?;
        State::parse(&text).map(|state| state.access).filter(|access| !access.is_empty())
    }

    /// Stores what the access script has reported; nothing makes the next command ask.
    pub(super) fn set_access(&self, report: &str) {
        let Ok(_lock) = self.directory.lock() else { return };
        let file = format!("{}.state", self.key);
        if Identity::of(&self.directory.path.join(&self.key)) == Some(self.identity)
            && let Some(state) = self.directory.state(&self.key)
        {
            let _ = self.directory.write(&file, &State { access: report.to_owned(), ..state }.text());
        }
    }

    /// Lets no other command use it any more. The programs that run over it go on.
    pub(super) async fn discard(&self) {
        self.directory.remove(&self.key, self.identity).await;
    }
}

/// Returns where the masters have made their sockets whose connections are kept in this directory.
pub(super) fn made(directory: &Path) -> Vec<String> {
    let entries = fs::read_dir(directory).into_iter().flatten().flatten().map(|entry| entry.path());
    let states = entries.filter(|path| path.extension().is_some_and(|extension| extension == "state"));
    states.filter_map(|path| Some(State::parse(&fs::read_to_string(path).ok()?)?.made)).collect()
}

/// Connects to a master, which does not end before the connection is closed. `None` where none answers.
pub(super) async fn hold(socket: &Path) -> Option<UnixStream> {
    let answer = async {
        let mut stream = UnixStream::connect(socket).await?;
        // it begins with a message of its own, which one that is stopped does not send
        stream.read_u32().await?;
        io::Result::Ok(stream)
    };
    timeout(MASTER_LIMIT, answer).await.ok()?.ok()
}

/// Returns the directory for a user, and another one if that is not usable: in `$XDG_RUNTIME_DIR`, if that is the
/// user's, and in /tmp. Those of logind come second: they go when the user's last session ends, which a command under
/// nohup, tmux or screen outlives.
fn places(runtime: Option<&Path>, uid: u32) -> (PathBuf, Option<PathBuf>) {
    let is_ours = |path: &Path| fs::symlink_metadata(path).is_ok_and(|meta| meta.is_dir() && meta.uid() == uid);
    let runtime = runtime.filter(|path| path.is_absolute() && is_ours(path)).map(|path| path.join("hvdctl"));
    let shared = PathBuf::from(format!("/tmp/hvdctl-{uid}"));
    match runtime.filter(|path| path.as_os_str().len() <= LONGEST) {
        Some(runtime) if LOGIND.iter().any(|sessions| runtime.starts_with(sessions)) => (shared, Some(runtime)),
        Some(runtime) => (runtime, None),
        None => (shared, None),
    }
}

/// Checks that only the user can enter and change a directory.
///
/// # Errors
/// Returns why this is not the case.
pub(super) fn check_private(path: &Path) -> Result<(), String> {
    let meta = fs::symlink_metadata(path).map_err(|error| error.to_string())?;
    match meta.mode() & 0o7777 {
        _ if !meta.is_dir() => Err("it is not a directory".to_owned()),
        _ if meta.uid() != rustix::process::geteuid().as_raw() => {
            Err(format!("it belongs to another user (uid {})", meta.uid()))
        }
        0o700 => Ok(()),
        mode => Err(format!("its mode is {mode:o}, not 700")),
    }
}

fn is_key(name: &str) -> bool {
    name.len() == 32 && name.bytes().all(|byte| byte.is_ascii_hexdigit())
}

/// Returns how long ago a file was written; nothing if that is in the future.
fn age_of(meta: &fs::Metadata) -> Option<Duration> {
    SystemTime::now().duration_since(meta.modified().ok()?).ok()
}

/// Notes that a socket is used now: in the time of its last access, because the other one is a part of its identity.
fn touch(socket: &Path) {
    let now = Timespec { tv_sec: 0, tv_nsec: rustix::fs::UTIME_NOW };
    let times = Timestamps { last_access: now, last_modification: Timespec { tv_sec: 0, tv_nsec: UTIME_OMIT } };
    let _ = utimensat(CWD, socket, &times, AtFlags::SYMLINK_NOFOLLOW);
}

/// Returns for how many seconds this machine has slept since it was started. Without this information it has never
/// slept: a connection that was lost meanwhile ends by its keep-alive probes.
fn slept() -> f64 {
    #[cfg(target_os = "linux")]
    {
        use rustix::time::{ClockId, clock_gettime};
        let seconds = |clock| {
            let now = clock_gettime(clock);
            now.tv_sec as f64 + now.tv_nsec as f64 / 1e9
        };
        seconds(ClockId::Boottime) - seconds(ClockId::Monotonic)
    }
    #[cfg(not(target_os = "linux"))]
    0.0
}

#[cfg(test)]
mod tests;
