//! The directory on the operator's machine that a job's outputs are fetched into.

use crate::cluster::operator::host_name;
use crate::error::Error;
use crate::sync::contents::KEPT_MODE;
use crate::sync::files::hash_file;
use crate::sync::manifest::parents;
use crate::sync::outputs::{Download, JobOutput, STATE_DIR};
use crate::text::digest::hex;
use crate::text::units;
use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;
use std::collections::BTreeMap;
use std::fmt::Display;
use std::fs::{self, File, OpenOptions, Permissions};
use std::io::{self, ErrorKind, Read, Write};
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};
use tempfile::NamedTempFile;

/// The list of what was fetched: `CONTENT NAME` each, ended by NUL. If a name occurs twice, the last record counts.
const FETCHED: &str = "fetched";
/// Locked while a process fetches into the directory; names that process.
const LOCK: &str = "lock";
/// The directory of files that have not arrived completely.
const PARTS: &str = "parts";

/// A directory that outputs are fetched into, locked against other processes.
#[derive(Debug)]
pub struct TargetDirectory {
    root: PathBuf,
    fetched: Mutex<FetchedList>,
    lock: File,
}

/// The outputs that were fetched into the directory: [`JobOutput::content`] by path, and the list of them, to which
/// records are appended.
#[derive(Debug)]
struct FetchedList {
    contents: BTreeMap<String, String>,
    list: File,
}

/// The state of the path of an output that is to be fetched.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Existing {
    /// Nothing, or what an earlier fetch put there or the upload took from there, unchanged since.
    Free,
    /// The output itself.
    Identical,
    /// Something else.
    Conflicting,
}

fn failed(what: &str, path: &Path, e: impl Display) -> Error {
    Error::Local(format!("cannot {what} {}: {e}", path.display()))
}

impl TargetDirectory {
    /// Creates the directory if it is missing, locks it and reads what was fetched into it.
    ///
    /// # Errors
    /// If it cannot be created or read, or another process fetches into it.
    pub fn open(root: &Path) -> Result<TargetDirectory, Error> {
        let state = root.join(STATE_DIR);
        fs::create_dir_all(&state).map_err(|e| match fs::read_link(root) {
            Ok(target) => failed("fetch into", root, format!("it is a symbolic link to {}: {e}", target.display())),
            Err(_) => failed("create", &state, e),
        })?;
        // another user who could open the lock could keep it; some file systems have no modes
        let _ = fs::set_permissions(&state, Permissions::from_mode(0o700));
        let lock = lock(root)?;
        let parts = state.join(PARTS);
        // an interrupted fetch may have left some
        let _ = fs::remove_dir_all(&parts);
        fs::create_dir_all(&parts).map_err(|e| failed("create", &parts, e))?;
        let list = state.join(FETCHED);
        let fetched = FetchedList::open(&list, &parts).map_err(|e| failed("update", &list, e))?;
        Ok(TargetDirectory { root: root.to_owned(), fetched: Mutex::new(fetched), lock })
    }

    /// Returns what is at an output's path. A directory there conflicts with it.
    ///
    /// # Errors
    /// If it cannot be read.
    pub fn existing(&self, download: &Download) -> Result<Existing, Error> {
        if self.obstacle(download).is_some() {
            return Ok(Existing::Conflicting);
        }
        let path = self.root.join(&download.path);
        match content(&path) {
            Err(e) if e.kind() == ErrorKind::NotFound => Ok(Existing::Free),
            Err(e) => Err(failed("read", &path, e)),
            Ok(Some(content)) if content == download.output.content() => Ok(Existing::Identical),
            Ok(Some(content)) if self.fetched().contents.get(&download.path) == Some(&content) => {
                Ok(if looks_like(&path, &download.output) { Existing::Identical } else { Existing::Free })
            }
            Ok(Some(content)) if download.uploaded.as_ref() == Some(&content) => Ok(Existing::Free),
            Ok(_) => Ok(Existing::Conflicting),
        }
    }

    /// Returns the first link or file among the directories that lead to an output. A link would lead out of the
    /// target.
    fn obstacle(&self, download: &Download) -> Option<PathBuf> {
        let mut directories = parents(&download.path).map(|directory| self.root.join(directory));
        directories.find(|path| fs::symlink_metadata(path).is_ok_and(|meta| !meta.is_dir()))
    }

    fn fetched(&self) -> MutexGuard<'_, FetchedList> {
        self.fetched.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn parts(&self) -> PathBuf {
        self.root.join(STATE_DIR).join(PARTS)
    }

    /// Puts an output in its place: a link, or a file with the contents as they arrive. Returns whether these are what
    /// the node listed; if they are not, nothing is changed.
    ///
    /// # Errors
    /// If it cannot be written, or a link or file is where one of its directories should be.
    pub fn write(&self, download: &Download, contents: &mut impl Read) -> Result<bool, Error> {
        let path = self.root.join(&download.path);
        if let Some(obstacle) = self.obstacle(download) {
            let cause = format!("{} is a symbolic link or a file, not a directory", obstacle.display());
            return Err(failed("write", &path, format!("{cause}\n  hint: remove it, or fetch with -o DIR")));
        }
        let parent = path.parent().unwrap_or(&self.root);
        fs::create_dir_all(parent).map_err(|e| failed("create", parent, e))?;
        let placed = self.place(&download.output, contents, &path).map_err(|e| failed("write", &path, e))?;
        if let Some(content) = &placed {
            self.record_content(&download.path, content)?;
        }
        Ok(placed.is_some())
    }

    /// Returns the [`JobOutput::content`] of what is in its place, or `None` if it did not arrive as it was listed.
    fn place(&self, output: &JobOutput, contents: &mut impl Read, path: &Path) -> io::Result<Option<String>> {
        let (hash, mode, size, time) = match output {
            JobOutput::File { hash, mode, size, time } => (hash, mode, *size, *time),
            JobOutput::Link(target) => {
                let link = tempfile::Builder::new().make_in(self.parts(), |part| symlink(target, part))?;
                return Ok(link.persist(path).map(|()| Some(output.content()))?);
            }
        };
        // what the umask here takes away from the node's mode stays away
        let permissions = Permissions::from_mode(mode & KEPT_MODE | 0o600);
        let mut part = tempfile::Builder::new().permissions(permissions).tempfile_in(self.parts())?;
        // a file that has grown since may still begin with what was listed
        let arrived = io::copy(&mut contents.take(size), &mut part)?;
        let content = hex(&hash_file(part.path())?.0);
        if arrived != size || !hash.is_empty() && content != *hash {
            return Ok(None);
        }
        let file = part.as_file();
        file.set_modified(units::time(time))?;
        file.sync_all()?;
        part.persist(path)?;
        Ok(Some(content))
    }

    /// Records that an output is fetched, so that a later fetch may replace it.
    ///
    /// # Errors
    /// If the record cannot be written.
    pub fn record(&self, download: &Download) -> Result<(), Error> {
        self.record_content(&download.path, &download.output.content())
    }

    fn record_content(&self, path: &str, content: &str) -> Result<(), Error> {
        let mut fetched = self.fetched();
        if fetched.contents.get(path).map(String::as_str) != Some(content) {
            let written = write!(fetched.list, "{content} {path}\0");
            written.map_err(|e| failed("record", &self.root.join(path), e))?;
            fetched.contents.insert(path.to_owned(), content.to_owned());
        }
        Ok(())
    }
}

impl Drop for TargetDirectory {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(self.parts());
        // closing the file is not enough while a process that was started meanwhile has it open, too
        let _ = flock(&self.lock, FlockOperation::Unlock);
    }
}

impl FetchedList {
    /// Reads the list and rewrites it without superseded or truncated records (in `parts`, then renamed).
    fn open(path: &Path, parts: &Path) -> io::Result<FetchedList> {
        let text = fs::read(path).or_else(|e| if e.kind() == ErrorKind::NotFound { Ok(Vec::new()) } else { Err(e) })?;
        let text = String::from_utf8_lossy(&text);
        let complete = text.rsplit_once('\0').map_or("", |(complete, _)| complete);
        let records = complete.split('\0').filter_map(|record| record.split_once(' '));
        let contents: BTreeMap<_, _> = records.map(|(content, name)| (name.to_owned(), content.to_owned())).collect();
        let mut list = NamedTempFile::new_in(parts)?;
        list.write_all(
            contents.iter().map(|(name, content)| format!("{content} {name}\0")).collect::<String>().as_bytes(),
        )?;
        Ok(FetchedList { contents, list: list.persist(path)? })
    }
}

/// Returns whether a file is as a fetch has put it into its directory, or into one above.
pub fn is_fetched(file: &Path) -> bool {
    let Ok(file) = file.canonicalize() else { return false };
    file.ancestors().skip(1).any(|directory| {
        let Ok(list) = fs::read(directory.join(STATE_DIR).join(FETCHED)) else { return false };
        let (list, name) = (String::from_utf8_lossy(&list), file.strip_prefix(directory).ok().and_then(Path::to_str));
        let last = list.rsplit('\0').filter_map(|record| record.split_once(' ')).find(|(_, path)| Some(*path) == name);
        last.is_some_and(|(fetched, _)| content(&file).is_ok_and(|found| found.as_deref() == Some(fetched)))
    })
}

/// Returns the [`JobOutput::content`] of what is at a path; `None` if it is neither a file nor a link.
fn content(path: &Path) -> io::Result<Option<String>> {
    let meta = fs::symlink_metadata(path)?;
    if meta.is_symlink() {
        return Ok(Some(JobOutput::Link(fs::read_link(path)?.to_string_lossy().into_owned()).content()));
    }
    if meta.is_file() { Ok(Some(hex(&hash_file(path)?.0))) } else { Ok(None) }
}

/// Returns whether the file at a path has the size and time of one whose hash is not known.
fn looks_like(path: &Path, output: &JobOutput) -> bool {
    let JobOutput::File { hash, size, time, .. } = output else { return false };
    let is_it = |meta: fs::Metadata| {
        meta.len() == *size && meta.modified().is_ok_and(|modified| modified == units::time(*time))
    };
    hash.is_empty() && fs::symlink_metadata(path).is_ok_and(is_it)
}

/// Locks the directory until the returned file is closed.
fn lock(root: &Path) -> Result<File, Error> {
    let path = root.join(STATE_DIR).join(LOCK);
    let here = |e: io::Error| failed("lock", &path, e);
    let mut file = OpenOptions::new().read(true).write(true).create(true).truncate(false).open(&path).map_err(here)?;
    match flock(&file, FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => {
            let holder = format!(" (process {} on {})", std::process::id(), host_name());
            file.set_len(0).and_then(|()| file.write_all(holder.as_bytes())).map_err(here)?;
            Ok(file)
        }
        // some network file systems have no locks, such as Lustre without its mount option flock
        Err(Errno::NOLCK | Errno::OPNOTSUPP | Errno::NOSYS) => Ok(file),
        Err(Errno::WOULDBLOCK) => {
            // empty if it has only just been locked
            let holder = io::read_to_string(&file).unwrap_or_default();
            Err(Error::check(
                format!("another hvdctl{holder} is fetching into {}; nothing was fetched", root.display()),
                "try again when it is done, or choose another directory: -o DIR",
            ))
        }
        Err(e) => Err(here(e.into())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::text::digest::in_hex;
    use std::time::{Duration, UNIX_EPOCH};

    fn download(path: &str, text: &str) -> Download {
        let hash = in_hex(text.as_bytes());
        let output = JobOutput::File { hash, mode: 0o640, size: text.len() as u64, time: 1_700_000_000.5 };
        Download { path: path.into(), node: "n1".into(), name: path.into(), output, uploaded: None }
    }

    fn write(target: &TargetDirectory, output: &Download, text: &str) -> bool {
        target.write(output, &mut text.as_bytes()).unwrap()
    }

    #[test]
    fn only_files_with_the_listed_contents_are_placed() {
        let dir = tempfile::tempdir().unwrap();
        let target = TargetDirectory::open(dir.path()).unwrap();
        let wanted = download("deep/a b", "contents");
        let there = dir.path().join("deep/a b");
        for wrong in ["cont", "Contents", ""] {
            assert!(!write(&target, &wanted, wrong) && !there.exists(), "{wrong}");
        }
        assert!(write(&target, &wanted, "contents, and what was written since"));
        assert_eq!(fs::read_to_string(&there).unwrap(), "contents");
        let meta = fs::metadata(&there).unwrap();
        assert_eq!(meta.permissions().mode() & 0o777, 0o640);
        assert_eq!(meta.modified().unwrap(), UNIX_EPOCH + Duration::from_millis(1_700_000_000_500));
        assert!(!write(&target, &download("deep/a b", "newer"), "new") && there.exists(), "the earlier one stays");
    }

    #[test]
    fn any_time_of_modification_is_taken() {
        let dir = tempfile::tempdir().unwrap();
        let target = TargetDirectory::open(dir.path()).unwrap();
        for (name, seconds) in [("a", f64::INFINITY), ("b", 1e300), ("c", -1e300), ("d", f64::NAN), ("e", 1e19)] {
            let mut odd = download(name, "text");
            if let JobOutput::File { time, .. } = &mut odd.output {
                *time = seconds;
            }
            assert!(write(&target, &odd, "text"), "{seconds}");
        }
        let modified = |name: &str| fs::metadata(dir.path().join(name)).unwrap().modified().unwrap();
        assert_eq!([modified("c"), modified("d")], [UNIX_EPOCH; 2]);
        assert!(modified("a") > UNIX_EPOCH && modified("a") == modified("b"));
    }

    #[test]
    fn a_file_without_a_known_hash_is_known_by_its_size_and_time_once_it_was_fetched() {
        let dir = tempfile::tempdir().unwrap();
        let target = TargetDirectory::open(dir.path()).unwrap();
        let listed = |size, time| {
            let output = JobOutput::File { hash: String::new(), mode: 0o644, size, time };
            Download { output, ..download("n1/root/last.pt", "") }
        };
        let wanted = listed(8, 1_700_000_000.0);
        assert_eq!(target.existing(&wanted).unwrap(), Existing::Free);
        assert!(!write(&target, &wanted, "short"));
        assert!(write(&target, &wanted, "contents"));
        assert_eq!(target.existing(&wanted).unwrap(), Existing::Identical);
        assert_eq!(target.existing(&listed(9, 1_700_000_000.0)).unwrap(), Existing::Free);
        assert_eq!(target.existing(&listed(8, 1_700_000_001.0)).unwrap(), Existing::Free);
        fs::write(dir.path().join("n1/root/last.pt"), "changed!").unwrap();
        assert_eq!(target.existing(&wanted).unwrap(), Existing::Conflicting);
    }

    #[test]
    fn parts_of_an_interrupted_fetch_are_removed() {
        let dir = tempfile::tempdir().unwrap();
        let parts = dir.path().join(STATE_DIR).join(PARTS);
        fs::create_dir_all(parts.join("n1")).unwrap();
        fs::write(parts.join("n1/part"), "half").unwrap();
        let target = TargetDirectory::open(dir.path()).unwrap();
        assert_eq!(fs::read_dir(&parts).unwrap().count(), 0);
        write(&target, &download("a", "text"), "text");
        assert_eq!(fs::read_dir(&parts).unwrap().count(), 0);
        drop(target);
        assert!(!parts.exists());
    }

    #[test]
    fn a_node_does_not_decide_who_else_may_write_to_a_fetched_file() {
        let dir = tempfile::tempdir().unwrap();
        let target = TargetDirectory::open(dir.path()).unwrap();
        let mut odd = download("a", "text");
        if let JobOutput::File { mode, .. } = &mut odd.output {
            *mode = 0o6777;
        }
        write(&target, &odd, "text");
        let mode = fs::metadata(dir.path().join("a")).unwrap().permissions().mode();
        assert_eq!((mode & 0o7022, mode & 0o700), (0, 0o700));
    }

    #[test]
    fn only_fetched_files_are_overwritten() {
        let dir = tempfile::tempdir().unwrap();
        let target = TargetDirectory::open(dir.path()).unwrap();
        let first = download("a", "first");
        write(&target, &first, "first");
        drop(target);
        let target = TargetDirectory::open(dir.path()).unwrap();
        assert_eq!(target.existing(&first).unwrap(), Existing::Identical);
        assert_eq!(target.existing(&download("a", "second")).unwrap(), Existing::Free);
        fs::write(dir.path().join("a"), "mine").unwrap();
        assert_eq!(target.existing(&download("a", "second")).unwrap(), Existing::Conflicting);
        // unless it is what was uploaded
        let uploaded = |text: &str| Some(download("a", text).output.content());
        let changed = |text| Download { uploaded: uploaded(text), ..download("a", "second") };
        let here = fs::read_to_string(dir.path().join("a")).unwrap();
        assert_eq!(target.existing(&changed(&here)).unwrap(), Existing::Free);
        assert_eq!(target.existing(&changed("another")).unwrap(), Existing::Conflicting);
        fs::create_dir(dir.path().join("d")).unwrap();
        assert_eq!(target.existing(&download("d", "x")).unwrap(), Existing::Conflicting);

        // no link leads out of the target
        let link = Download { output: JobOutput::Link("/".into()), ..download("l", "") };
        write(&target, &link, "");
        assert_eq!(target.existing(&link).unwrap(), Existing::Identical);
        assert_eq!(fs::read_link(dir.path().join("l")).unwrap(), Path::new("/"));
        let through = download("l/no-such-file", "x");
        assert_eq!(target.existing(&through).unwrap(), Existing::Conflicting);
        let refused = target.write(&through, &mut &b"x"[..]).unwrap_err().to_string();
        let link = dir.path().join("l").display().to_string();
        assert!(refused.contains(&format!("{link} is a symbolic link")) && refused.contains("hint: "), "{refused}");
        symlink("nowhere", dir.path().join("dangling")).unwrap();
        let refused = TargetDirectory::open(&dir.path().join("dangling")).unwrap_err().to_string();
        assert!(refused.contains("dangling: it is a symbolic link to nowhere"), "{refused}");
    }

    #[test]
    fn the_list_has_one_record_of_each_file() {
        let dir = tempfile::tempdir().unwrap();
        let list = || fs::read_to_string(dir.path().join(STATE_DIR).join(FETCHED)).unwrap();
        for i in 0..5 {
            let target = TargetDirectory::open(dir.path()).unwrap();
            for text in [format!("old {i}"), format!("new {i}")] {
                write(&target, &download("a", &text), &text);
            }
            write(&target, &download("b", "b"), "b");
            assert!(list().matches('\0').count() <= 4, "{}", list());
        }
        // one that was cut off is none, and spoils none
        fs::write(dir.path().join(STATE_DIR).join(FETCHED), list() + &"0".repeat(64) + " b").unwrap();
        let target = TargetDirectory::open(dir.path()).unwrap();
        let known = [("a", "new 4"), ("b", "b")].map(|(name, text)| format!("{} {name}\0", in_hex(text.as_bytes())));
        assert_eq!(list(), known.concat());
        assert_eq!(target.existing(&download("b", "next")).unwrap(), Existing::Free);
        assert_eq!(target.existing(&download("a", "next")).unwrap(), Existing::Free);
        // an old one was put back
        fs::write(dir.path().join("a"), "old 4").unwrap();
        assert_eq!(target.existing(&download("a", "next")).unwrap(), Existing::Conflicting);
    }

    #[test]
    fn a_directory_is_locked_while_it_is_fetched_into() {
        let dir = tempfile::tempdir().unwrap();
        let target = TargetDirectory::open(dir.path()).unwrap();
        let mode = dir.path().join(STATE_DIR).metadata().unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o700, "no other user can keep the lock");
        let error = TargetDirectory::open(dir.path()).unwrap_err().to_string();
        let process = format!("process {} on ", std::process::id());
        assert!([&process, &dir.path().display().to_string(), "-o DIR"].iter().all(|w| error.contains(*w)), "{error}");
        drop(target);
        TargetDirectory::open(dir.path()).unwrap();
    }
}
