//! The directory on the operator's machine that a job's outputs are fetched into: what it has, and what is put there.

use crate::error::Error;
use crate::sync::files::hash_file;
use crate::sync::outputs::{Item, Output, STATE_DIR};
use crate::text::digest::{hex, in_hex};
use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;
use std::collections::BTreeMap;
use std::fmt::Display;
use std::fs::{self, File, OpenOptions, Permissions};
use std::io::{self, Read, Write};
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, UNIX_EPOCH};
use tempfile::NamedTempFile;

/// The list of what was fetched, `HASH NAME` each and ended by NUL. If a name occurs twice, the last record counts.
const FETCHED: &str = "fetched";
/// Locked while somebody fetches into the directory; says who.
const LOCK: &str = "lock";
/// The directory of files that have not arrived completely.
const PARTS: &str = "parts";

/// A directory that outputs are fetched into, locked against other processes.
#[derive(Debug)]
pub struct TargetDirectory {
    root: PathBuf,
    /// The hashes of what was fetched by path.
    fetched: Mutex<BTreeMap<String, String>>,
    lock: File,
}

/// What is at an item's path.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Existing {
    /// Nothing.
    Nothing,
    /// The item itself.
    Same,
    /// What an earlier fetch put there, unchanged.
    Earlier,
    /// Something else.
    Other,
}

fn failed(what: &str, path: &Path, e: impl Display) -> Error {
    Error::Here(format!("cannot {what} {}: {e}", path.display()))
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
            Err(_) => failed("make", &state, e),
        })?;
        let lock = lock(root)?;
        let parts = state.join(PARTS);
        // an interrupted fetch may have left some
        let _ = fs::remove_dir_all(&parts);
        fs::create_dir_all(&parts).map_err(|e| failed("make", &parts, e))?;
        let fetched = Mutex::new(read_fetched(&state)?);
        Ok(TargetDirectory { root: root.to_owned(), fetched, lock })
    }

    /// Returns what is at an item's path. A directory there is [`Existing::Other`].
    ///
    /// # Errors
    /// If it cannot be read.
    pub fn existing(&self, item: &Item) -> Result<Existing, Error> {
        let path = self.root.join(&item.path);
        if self.obstacle(item).is_some() {
            return Ok(Existing::Other);
        }
        let meta = match fs::symlink_metadata(&path) {
            Ok(meta) => meta,
            Err(e) if matches!(e.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory) => {
                return Ok(Existing::Nothing);
            }
            Err(e) => return Err(failed("look at", &path, e)),
        };
        let now = if meta.is_symlink() {
            fs::read_link(&path).map(|target| link_hash(&target.to_string_lossy()))
        } else if meta.is_file() {
            hash_file(&path).map(|(hash, _)| hex(&hash))
        } else {
            return Ok(Existing::Other);
        };
        let now = now.map_err(|e| failed("read", &path, e))?;
        Ok(if now == content_hash(&item.output) {
            Existing::Same
        } else if self.list().get(&item.path) == Some(&now) {
            Existing::Earlier
        } else {
            Existing::Other
        })
    }

    /// Returns the first link or file among the directories that lead to an item. A link would lead out of the target.
    fn obstacle(&self, item: &Item) -> Option<PathBuf> {
        let above = item.path.match_indices('/').map(|(at, _)| self.root.join(&item.path[..at]));
        above.into_iter().find(|path| fs::symlink_metadata(path).is_ok_and(|meta| !meta.is_dir()))
    }

    fn list(&self) -> MutexGuard<'_, BTreeMap<String, String>> {
        self.fetched.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn state(&self, name: &str) -> PathBuf {
        self.root.join(STATE_DIR).join(name)
    }

    /// Puts an item in its place: a link, or a file with the contents as they arrive. Returns whether these are what the node listed;
    /// if they are not, nothing is changed.
    ///
    /// # Errors
    /// If it cannot be written, or a link or file is where one of its directories should be.
    pub fn write(&self, item: &Item, contents: &mut impl Read) -> Result<bool, Error> {
        let path = self.root.join(&item.path);
        if let Some(obstacle) = self.obstacle(item) {
            let what = if obstacle.is_symlink() {
                "is a symbolic link, and fetch writes through none"
            } else {
                "is not a directory"
            };
            let hint = "hint: remove it, or fetch with -o DIR";
            return Err(failed("write", &path, format!("{} {what}\n  {hint}", obstacle.display())));
        }
        let parent = path.parent().unwrap_or(&self.root);
        fs::create_dir_all(parent).map_err(|e| failed("make", parent, e))?;
        let written = match &item.output {
            Output::Link(target) => self.write_link(target, &path),
            Output::File { .. } => self.write_file(item, contents, &path),
        };
        let is_whole = written.map_err(|e| failed("write", &path, e))?;
        if is_whole {
            self.note(item)?;
        }
        Ok(is_whole)
    }

    fn write_link(&self, target: &str, path: &Path) -> io::Result<bool> {
        let link = tempfile::Builder::new().make_in(self.state(PARTS), |part| symlink(target, part))?;
        link.persist(path)?;
        Ok(true)
    }

    fn write_file(&self, item: &Item, contents: &mut impl Read, path: &Path) -> io::Result<bool> {
        let Output::File { hash, mode, size, time } = &item.output else { return Ok(false) };
        let mut part = NamedTempFile::new_in(self.state(PARTS))?;
        // a file that has grown since may still begin with what was listed
        io::copy(&mut contents.take(*size), &mut part)?;
        if hex(&hash_file(part.path())?.0) != *hash {
            return Ok(false);
        }
        let file = part.as_file();
        file.set_modified(UNIX_EPOCH + Duration::from_secs_f64(time.max(0.0)))?;
        // setuid and setgid would mean another owner
        file.set_permissions(Permissions::from_mode(mode & 0o777 | 0o600))?;
        file.sync_all()?;
        part.persist(path)?;
        Ok(true)
    }

    /// Records that an item is fetched, so that a later fetch may replace it.
    ///
    /// # Errors
    /// If the record cannot be written.
    pub fn note(&self, item: &Item) -> Result<(), Error> {
        let hash = content_hash(&item.output);
        let mut fetched = self.list();
        if fetched.get(&item.path) != Some(&hash) {
            let list = self.state(FETCHED);
            let file = OpenOptions::new().append(true).create(true).open(&list);
            let written = file.and_then(|mut file| file.write_all(record(&item.path, &hash).as_bytes()));
            written.map_err(|e| failed("write", &list, e))?;
            fetched.insert(item.path.clone(), hash);
        }
        Ok(())
    }
}

impl Drop for TargetDirectory {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(self.state(PARTS));
        // closing the file is not enough while a process that was started meanwhile has it open, too
        let _ = flock(&self.lock, FlockOperation::Unlock);
    }
}

/// Reads the list of what was fetched, and rewrites it if some of its records are superseded or cut off.
fn read_fetched(state: &Path) -> Result<BTreeMap<String, String>, Error> {
    let list = state.join(FETCHED);
    let text = match fs::read(&list) {
        Ok(text) => text,
        Err(e) if e.kind() == io::ErrorKind::NotFound => Vec::new(),
        Err(e) => return Err(failed("read", &list, e)),
    };
    let text = String::from_utf8_lossy(&text);
    let whole = text.rfind('\0').map_or("", |end| &text[..end]);
    let records = whole.split('\0').filter_map(|record| record.split_once(' '));
    let fetched: BTreeMap<String, String> = records.map(|(hash, name)| (name.to_owned(), hash.to_owned())).collect();
    let now: String = fetched.iter().map(|(name, hash)| record(name, hash)).collect();
    if now.len() != text.len() {
        let new = state.join("fetched.new");
        fs::write(&new, now).and_then(|()| fs::rename(&new, &list)).map_err(|e| failed("write", &list, e))?;
    }
    Ok(fetched)
}

/// Locks the directory until the returned file is closed.
fn lock(root: &Path) -> Result<File, Error> {
    let path = root.join(STATE_DIR).join(LOCK);
    let here = |e: io::Error| failed("lock", &path, e);
    let mut file = OpenOptions::new().read(true).write(true).create(true).truncate(false).open(&path).map_err(here)?;
    match flock(&file, FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => {
            let host = fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
            let holder = format!("process {} on {}", std::process::id(), host.trim());
            file.set_len(0).and_then(|()| file.write_all(holder.as_bytes())).map_err(here)?;
            Ok(file)
        }
        // some network file systems have no locks
        Err(Errno::NOLCK | Errno::OPNOTSUPP) => Ok(file),
        Err(Errno::WOULDBLOCK) => {
            // empty if it has only just locked it
            let holder = io::read_to_string(&file).unwrap_or_default();
            let holder =
                if holder.is_empty() { "another hvdctl".to_owned() } else { format!("another hvdctl ({holder})") };
            Err(Error::check(
                format!("{holder} is fetching into {}; nothing was fetched", root.display()),
                "try again when it is done, or take another directory: -o DIR",
            ))
        }
        Err(e) => Err(here(e.into())),
    }
}

/// Returns the record of an item in the list of what was fetched.
fn record(name: &str, hash: &str) -> String {
    format!("{hash} {name}\0")
}

/// Returns what identifies an output's contents in the list.
fn content_hash(output: &Output) -> String {
    match output {
        Output::File { hash, .. } => hash.clone(),
        Output::Link(target) => link_hash(target),
    }
}

/// Returns the hash of a link, which differs from that of a file with the same text.
fn link_hash(target: &str) -> String {
    in_hex(format!("link {target}").as_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn item(path: &str, text: &str) -> Item {
        let hash = in_hex(text.as_bytes());
        let output = Output::File { hash, mode: 0o640, size: text.len() as u64, time: 1_700_000_000.5 };
        Item { path: path.into(), node: "n1".into(), name: path.into(), output }
    }

    fn write(target: &TargetDirectory, item: &Item, text: &str) -> bool {
        target.write(item, &mut text.as_bytes()).unwrap()
    }

    #[test]
    fn only_what_has_the_listed_contents_gets_its_name() {
        let dir = tempfile::tempdir().unwrap();
        let target = TargetDirectory::open(dir.path()).unwrap();
        let wanted = item("deep/a b", "contents");
        let there = dir.path().join("deep/a b");
        for wrong in ["cont", "Contents", ""] {
            assert!(!write(&target, &wanted, wrong) && !there.exists(), "{wrong}");
        }
        assert!(write(&target, &wanted, "contents, and what was written since"));
        assert_eq!(fs::read_to_string(&there).unwrap(), "contents");
        let meta = fs::metadata(&there).unwrap();
        assert_eq!(meta.permissions().mode() & 0o777, 0o640);
        assert_eq!(meta.modified().unwrap(), UNIX_EPOCH + Duration::from_millis(1_700_000_000_500));
        assert!(!write(&target, &item("deep/a b", "newer"), "new") && there.exists(), "the earlier one stays");
    }

    #[test]
    fn what_an_interrupted_fetch_left_is_removed() {
        let dir = tempfile::tempdir().unwrap();
        let parts = dir.path().join(STATE_DIR).join(PARTS);
        fs::create_dir_all(parts.join("n1")).unwrap();
        fs::write(parts.join("n1/part"), "half").unwrap();
        let target = TargetDirectory::open(dir.path()).unwrap();
        assert_eq!(fs::read_dir(&parts).unwrap().count(), 0);
        write(&target, &item("a", "text"), "text");
        assert_eq!(fs::read_dir(&parts).unwrap().count(), 0);
        drop(target);
        assert!(!parts.exists());
    }

    #[test]
    fn only_what_was_fetched_is_written_over() {
        let dir = tempfile::tempdir().unwrap();
        let target = TargetDirectory::open(dir.path()).unwrap();
        let first = item("a", "first");
        write(&target, &first, "first");
        drop(target);
        let target = TargetDirectory::open(dir.path()).unwrap();
        assert_eq!(target.existing(&first).unwrap(), Existing::Same);
        assert_eq!(target.existing(&item("a", "second")).unwrap(), Existing::Earlier);
        fs::write(dir.path().join("a"), "mine").unwrap();
        assert_eq!(target.existing(&item("a", "second")).unwrap(), Existing::Other);
        fs::create_dir(dir.path().join("d")).unwrap();
        assert_eq!(target.existing(&item("d", "x")).unwrap(), Existing::Other);

        // no link leads out of the target
        let link = Item { output: Output::Link("/".into()), ..item("l", "") };
        write(&target, &link, "");
        assert_eq!(target.existing(&link).unwrap(), Existing::Same);
        assert_eq!(fs::read_link(dir.path().join("l")).unwrap(), Path::new("/"));
        let through = item("l/tmp-of-nobody", "x");
        assert_eq!(target.existing(&through).unwrap(), Existing::Other);
        let refused = target.write(&through, &mut &b"x"[..]).unwrap_err().to_string();
        let link = dir.path().join("l").display().to_string();
        assert!(refused.contains(&format!("{link} is a symbolic link")) && refused.contains("hint: "), "{refused}");
        symlink("nowhere", dir.path().join("dangling")).unwrap();
        let refused = TargetDirectory::open(&dir.path().join("dangling")).unwrap_err().to_string();
        assert!(refused.contains("dangling: it is a symbolic link to nowhere"), "{refused}");
    }

    #[test]
    fn of_each_file_the_last_one_that_was_fetched_is_known() {
        let dir = tempfile::tempdir().unwrap();
        let list = || fs::read_to_string(dir.path().join(STATE_DIR).join(FETCHED)).unwrap();
        for i in 0..5 {
            let target = TargetDirectory::open(dir.path()).unwrap();
            for text in [format!("old {i}"), format!("new {i}")] {
                write(&target, &item("a", &text), &text);
            }
            write(&target, &item("b", "b"), "b");
            assert!(list().matches('\0').count() <= 4, "{}", list());
        }
        // one that was cut off is none, and spoils none
        fs::write(dir.path().join(STATE_DIR).join(FETCHED), list() + &"0".repeat(64) + " b").unwrap();
        let target = TargetDirectory::open(dir.path()).unwrap();
        let known = [record("a", &in_hex(b"new 4")), record("b", &in_hex(b"b"))];
        assert_eq!(list(), known.concat());
        assert_eq!(target.existing(&item("b", "next")).unwrap(), Existing::Earlier);
        assert_eq!(target.existing(&item("a", "next")).unwrap(), Existing::Earlier);
        // somebody put an old one back
        fs::write(dir.path().join("a"), "old 4").unwrap();
        assert_eq!(target.existing(&item("a", "next")).unwrap(), Existing::Other);
    }

    #[test]
    fn one_at_a_time_fetches_into_a_directory() {
        let dir = tempfile::tempdir().unwrap();
        let target = TargetDirectory::open(dir.path()).unwrap();
        let error = TargetDirectory::open(dir.path()).unwrap_err().to_string();
        let process = format!("process {} on ", std::process::id());
        assert!([&process, &dir.path().display().to_string(), "-o DIR"].iter().all(|w| error.contains(*w)), "{error}");
        drop(target);
        TargetDirectory::open(dir.path()).unwrap();
    }
}
