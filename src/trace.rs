//! The trace of hvdctl's work on the nodes, line by line: each operation, program and request with its node, duration
//! and outcome. The lines have no input, output or arguments of programs, so no secrets.
//!
//! A command's last lines are in a file that is removed when the command succeeds, so that a user whose command failed,
//! hung or was killed can attach it to a report.

use crate::error::{Error, NodeError};
use crate::paths;
use std::fs::{self, DirBuilder, File, OpenOptions};
use std::future::Future;
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::time::{Instant, SystemTime};
use tracing::{Instrument, debug, debug_span};
use tracing_subscriber::filter::{LevelFilter, Targets};
use tracing_subscriber::fmt::{self, MakeWriter};
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::{Layer, Registry};

/// Sets which lines go to standard error, or to the file of `--log-file`: `off`, `debug` or another level of the crate
/// `tracing`.
pub const VARIABLE: &str = "HVDCTL_LOG";

/// The most bytes of a file; a full one is kept until the next is full, too.
const MAX_FILE: u64 = 2 << 20;

/// The number of files that are kept of commands that did not end well.
const KEPT_FILES: usize = 10;

/// The lines of this process.
pub struct Log {
    /// The file with the last lines. `None` where it cannot be written, which is no reason to fail.
    kept: Option<PathBuf>,
    /// If set, lines go to standard error.
    pub is_on_stderr: bool,
}

impl Log {
    /// Begins to write lines: to the file of failures, and if `verbose` or [`VARIABLE`] asks for it, to `file` or
    /// standard error.
    ///
    /// # Errors
    /// When `file` cannot be opened, or [`VARIABLE`] has no level.
    pub fn start(verbose: bool, file: Option<&Path>) -> Result<Log, Error> {
        let level = level(std::env::var(VARIABLE).ok().as_deref(), verbose || file.is_some())?;
        let shown = if level == LevelFilter::OFF { None } else { Some(shown(file)?.with_filter(only_ours(level))) };
        // in a container every hvdctl may have the same process id
        let began = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default().as_millis();
        let name = format!("{}.{began}.log", std::process::id());
        let path = paths::state_directory().map(|state| state.join("log").join(name));
        let of_failures = path.clone().map(|path| lines(path).with_filter(only_ours(LevelFilter::DEBUG)));
        // a second call in a process (tests) leaves the first one's
        let is_set = tracing::subscriber::set_global_default(Registry::default().with(shown).with(of_failures)).is_ok();
        Ok(Log { kept: path.filter(|_| is_set), is_on_stderr: level != LevelFilter::OFF && file.is_none() })
    }

    /// Ends the file: one of a command that succeeded is removed. Returns the path of one of a failure that has lines.
    pub fn finish(self, succeeded: bool) -> Option<PathBuf> {
        let path = self.kept.filter(|path| path.exists())?;
        if !succeeded {
            return Some(path);
        }
        for file in [&path, &earlier(&path)] {
            let _ = fs::remove_file(file);
        }
        // those that have other files stay
        for directory in path.ancestors().skip(1).take(2) {
            let _ = fs::remove_dir(directory);
        }
        None
    }
}

/// Awaits an operation on a node, and writes when it begins and ends. `what`: the kind of operation, e.g. `engine`.
///
/// # Errors
/// The errors of the operation.
pub async fn operation<T>(
    node: &str,
    what: &'static str,
    operation: &str,
    work: impl Future<Output = Result<T, NodeError>>,
) -> Result<T, NodeError> {
    // on the heap: otherwise the future of a command would contain this one several times
    let work = Box::pin(work);
    let timed = async {
        debug!("begins");
        let started = Instant::now();
        let result = work.await;
        let ms = started.elapsed().as_millis() as u64;
        match &result {
            Ok(_) => debug!(ms, "done"),
            Err(error) => debug!(ms, cause = error.message.lines().next().unwrap_or_default(), "failed"),
        }
        result
    };
    timed.instrument(debug_span!("node", name = node, what, operation)).await
}

/// A program on a node, from its start until it is dropped, which writes a line.
#[derive(Debug)]
pub struct TracedProgram {
    span: tracing::Span,
    started: Instant,
    code: Option<i32>,
}

impl TracedProgram {
    /// A program that is about to be started. Only its name is written: the arguments may be the user's.
    pub fn start(node: &str, program: &str) -> TracedProgram {
        let span = debug_span!("program", node, name = program);
        span.in_scope(|| debug!("starts"));
        TracedProgram { span, started: Instant::now(), code: None }
    }

    /// Notes the exit code.
    pub fn exited(&mut self, code: i32) {
        self.code = Some(code);
    }
}

impl Drop for TracedProgram {
    fn drop(&mut self) {
        let ms = self.started.elapsed().as_millis() as u64;
        self.span.in_scope(|| match self.code {
            Some(code) => debug!(ms, code, "exited"),
            None => debug!(ms, "not awaited any more"),
        });
    }
}

/// Returns the level of the lines that are shown.
fn level(variable: Option<&str>, is_asked: bool) -> Result<LevelFilter, Error> {
    match variable.filter(|value| !value.is_empty()) {
        None if is_asked => Ok(LevelFilter::DEBUG),
        None => Ok(LevelFilter::OFF),
        Some(value) => value.parse().map_err(|_| {
            Error::usage(format!("{VARIABLE}: not a level: {value}"), "use off, error, warn, info, debug or trace")
        }),
    }
}

/// Returns the filter for hvdctl's own lines; those of libraries are only shown at the level `trace`.
fn only_ours(level: LevelFilter) -> Targets {
    let others = if level == LevelFilter::TRACE { LevelFilter::TRACE } else { LevelFilter::OFF };
    Targets::new().with_default(others).with_target(env!("CARGO_PKG_NAME"), level)
}

/// Returns the layer of the lines that are shown.
fn shown(file: Option<&Path>) -> Result<Box<dyn Layer<Registry> + Send + Sync>, Error> {
    let Some(path) = file else {
        return Ok(Box::new(fmt::layer().with_ansi(false).with_target(false).with_writer(io::stderr)));
    };
    let opened = OpenOptions::new().append(true).create(true).mode(0o600).open(path);
    let file = opened.map_err(|e| {
        Error::usage(format!("--log-file: cannot open {}: {e}", path.display()), "name a file that you can write")
    })?;
    Ok(Box::new(fmt::layer().with_ansi(false).with_target(false).with_writer(Mutex::new(file))))
}

/// Returns the layer of the lines in the file of failures.
fn lines<S>(path: PathBuf) -> impl Layer<S> + Send + Sync
where
    S: tracing::Subscriber + for<'a> tracing_subscriber::registry::LookupSpan<'a>,
{
    fmt::layer().with_ansi(false).with_target(false).with_writer(TraceFile(Mutex::new(Bounded {
        path,
        file: None,
        size: 0,
    })))
}

/// Removes all but the newest files of processes that have ended.
fn remove_old(directory: &Path) {
    let is_running = |path: &PathBuf| {
        let pid = path.file_name().and_then(|name| name.to_str()?.split('.').next()?.parse().ok());
        let pid = pid.and_then(rustix::process::Pid::from_raw);
        pid.is_some_and(|pid| rustix::process::test_kill_process(pid) != Err(rustix::io::Errno::SRCH))
    };
    let paths = fs::read_dir(directory).into_iter().flatten().flatten().map(|entry| entry.path());
    let mut ended: Vec<_> = paths.filter(|path| !is_running(path)).collect();
    if ended.len() <= KEPT_FILES {
        return;
    }
    ended.sort_by_key(|path| std::cmp::Reverse(fs::metadata(path).and_then(|file| file.modified()).ok()));
    ended.iter().skip(KEPT_FILES).for_each(|path| drop(fs::remove_file(path)));
}

/// Returns the path of a file's earlier lines.
fn earlier(path: &Path) -> PathBuf {
    path.with_extension("earlier.log")
}

/// A file that exists from its first line on, and is put aside when it is full.
#[derive(Debug)]
struct Bounded {
    path: PathBuf,
    file: Option<File>,
    size: u64,
}

impl Bounded {
    fn write_line(&mut self, line: &[u8]) -> io::Result<()> {
        if self.size > MAX_FILE {
            fs::rename(&self.path, earlier(&self.path))?;
            (self.file, self.size) = (None, 0);
        }
        self.size += line.len() as u64;
        if self.file.is_none() {
            let directory = self.path.parent().unwrap_or(Path::new("."));
            DirBuilder::new().recursive(true).mode(0o700).create(directory)?;
            remove_old(directory);
        }
        let create = || OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(&self.path);
        let mut file = self.file.take().map_or_else(create, Ok)?;
        let written = file.write_all(line);
        self.file = Some(file);
        written
    }
}

/// A bounded file to which several threads write. A line comes as one write.
struct TraceFile(Mutex<Bounded>);

impl<'a> MakeWriter<'a> for TraceFile {
    type Writer = &'a TraceFile;

    fn make_writer(&'a self) -> &'a TraceFile {
        self
    }
}

impl Write for &TraceFile {
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        let mut file = self.0.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        file.write_line(line).map(|()| line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_level_comes_from_the_variable_or_the_options() {
        assert_eq!(level(None, false).unwrap(), LevelFilter::OFF);
        assert_eq!(level(Some(""), true).unwrap(), LevelFilter::DEBUG);
        assert_eq!(level(Some("off"), true).unwrap(), LevelFilter::OFF);
        assert_eq!(level(Some("Debug"), false).unwrap(), LevelFilter::DEBUG);
        assert!(level(Some("loud"), false).unwrap_err().to_string().starts_with("HVDCTL_LOG: not a level: loud"));
    }

    #[test]
    fn a_full_file_is_put_aside_and_the_last_lines_are_kept() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("7.log");
        let mut bounded = Bounded { path: path.clone(), file: None, size: 0 };
        let line = [b'x'; 1 << 16];
        for _ in 0..100 {
            bounded.write_line(&line).unwrap();
        }
        bounded.write_line(b"the last\n").unwrap();
        assert!(fs::read(&path).unwrap().ends_with(b"the last\n"));
        assert!(fs::metadata(earlier(&path)).unwrap().len() > MAX_FILE);
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 2);
    }

    #[test]
    fn only_the_newest_files_of_ended_processes_stay() {
        let dir = tempfile::tempdir().unwrap();
        let name = |pid: u32| dir.path().join(format!("{pid}.log"));
        // no process has such an id (proc(5), pid_max)
        for (age, pid) in (0..).zip(1 << 23..(1 << 23) + 15) {
            let file = File::create(name(pid)).unwrap();
            file.set_modified(std::time::SystemTime::now() - std::time::Duration::from_secs(60 * age)).unwrap();
        }
        File::create(name(std::process::id())).unwrap();
        remove_old(dir.path());
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), KEPT_FILES + 1);
        assert!(name(std::process::id()).exists() && name(1 << 23).exists() && !name((1 << 23) + 10).exists());
    }
}
