//! The folder on the operator's machine that a run's outputs are fetched into: what is there, what has come so far, and what is
//! put in its place.

use crate::error::Error;
use crate::sync::outputs::{Item, KEEP, Output};
use crate::sync::tree::hash;
use crate::text::digest::in_hex;
use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;
use std::collections::BTreeMap;
use std::fmt::Display;
use std::fs::{self, File, OpenOptions, Permissions};
use std::io::{self, Write};
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, UNIX_EPOCH};

/// The list of what was fetched, `HASH NAME` each and ended by NUL. Of a name that is there twice the last counts.
const DONE: &str = "fetched";
/// Locked for as long as somebody fetches into the folder; it says who.
const LOCK: &str = "lock";

/// A folder that is fetched into, by nobody else meanwhile.
#[derive(Debug)]
pub struct Folder {
    root: PathBuf,
    /// What was fetched: the hash by its name here.
    fetched: Mutex<BTreeMap<String, String>>,
    _lock: File,
}

/// What is at an item's place.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum There {
    /// Nothing.
    Nothing,
    /// The item itself.
    Same,
    /// What an earlier fetch put there, as it left it.
    Earlier,
    /// Something else.
    Other,
}

fn failed(what: &str, path: &Path, e: impl Display) -> Error {
    Error::Here(format!("cannot {what} {}: {e}", path.display()))
}

impl Folder {
    /// Makes the folder where it is missing, and reads what was fetched into it.
    ///
    /// # Errors
    /// When it cannot be made or read, or somebody else fetches into it.
    pub fn open(root: &Path) -> Result<Folder, Error> {
        let keep = root.join(KEEP);
        fs::create_dir_all(&keep).map_err(|e| match fs::read_link(root) {
            Ok(target) => failed("fetch into", root, format!("it is a symbolic link to {}: {e}", target.display())),
            Err(_) => failed("make", &keep, e),
        })?;
        let lock = lock(root)?;
        let list = keep.join(DONE);
        let text = match fs::read(&list) {
            Ok(text) => text,
            Err(e) if e.kind() == io::ErrorKind::NotFound => Vec::new(),
            Err(e) => return Err(failed("read", &list, e)),
        };
        let text = String::from_utf8_lossy(&text);
        // one that was cut off has no end
        let whole = text.rfind('\0').map_or("", |end| &text[..end]);
        let records = whole.split('\0').filter_map(|record| record.split_once(' '));
        let fetched: BTreeMap<String, String> =
            records.map(|(hash, name)| (name.to_owned(), hash.to_owned())).collect();
        let now: String = fetched.iter().map(|(name, hash)| record(name, hash)).collect();
        if now.len() != text.len() {
            let new = keep.join("fetched.new");
            fs::write(&new, now).and_then(|()| fs::rename(&new, &list)).map_err(|e| failed("write", &list, e))?;
        }
        Ok(Folder { root: root.to_owned(), fetched: Mutex::new(fetched), _lock: lock })
    }

    /// What is at an item's place; a folder is in the way as anything else is.
    ///
    /// # Errors
    /// When it cannot be read.
    pub fn there(&self, item: &Item) -> Result<There, Error> {
        let path = self.root.join(&item.path);
        if self.way(item).is_err() {
            return Ok(There::Other);
        }
        let meta = match fs::symlink_metadata(&path) {
            Ok(meta) => meta,
            Err(e) if matches!(e.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory) => {
                return Ok(There::Nothing);
            }
            Err(e) => return Err(failed("look at", &path, e)),
        };
        let (is_link, now) = if meta.is_symlink() {
            (true, link_hash(&fs::read_link(&path).map_err(|e| failed("read", &path, e))?.to_string_lossy()))
        } else if meta.is_file() {
            (false, hash(&path).map_err(|e| failed("read", &path, e))?.0)
        } else {
            return Ok(There::Other);
        };
        let same = is_link == matches!(item.output, Output::Link(_)) && now == word(&item.output);
        Ok(match same {
            true => There::Same,
            false if self.list().get(&item.path) == Some(&now) => There::Earlier,
            false => There::Other,
        })
    }

    /// The folders on the way to an item: none is a link, which would lead elsewhere, nor a file.
    fn way(&self, item: &Item) -> Result<(), PathBuf> {
        for (at, _) in item.path.match_indices('/') {
            let folder = self.root.join(&item.path[..at]);
            if fs::symlink_metadata(&folder).is_ok_and(|meta| !meta.is_dir()) {
                return Err(folder);
            }
        }
        Ok(())
    }

    fn list(&self) -> MutexGuard<'_, BTreeMap<String, String>> {
        self.fetched.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Where a node's unfinished files are; apart from the files of [`KEEP`] itself, whatever a node is called.
    fn parts(&self, node: &str) -> PathBuf {
        self.root.join(KEEP).join("parts").join(node)
    }

    fn part_path(&self, node: &str, hash: &str) -> PathBuf {
        self.parts(node).join(hash)
    }

    /// What has come so far of a node's file with these contents, to be written behind it; and how many bytes that is.
    ///
    /// # Errors
    /// When it cannot be made.
    pub fn part(&self, node: &str, hash: &str, size: u64) -> Result<(File, u64), Error> {
        let path = self.part_path(node, hash);
        let open = || -> io::Result<(File, u64)> {
            fs::create_dir_all(path.parent().unwrap_or(&path))?;
            let file = OpenOptions::new().append(true).create(true).open(&path)?;
            let so_far = file.metadata()?.len();
            if so_far <= size {
                return Ok((file, so_far));
            }
            file.set_len(0)?;
            Ok((file, 0))
        };
        open().map_err(|e| failed("write", &path, e))
    }

    /// Proves a file that has come whole, and puts it in its place.
    ///
    /// # Errors
    /// In words for the node: it is not what the node said; on this machine's own account: it could not be put there.
    pub fn place(&self, item: &Item) -> Result<Result<(), String>, Error> {
        let path = self.root.join(&item.path);
        if let Err(link) = self.way(item) {
            let what =
                if link.is_symlink() { "is a symbolic link, and fetch writes through none" } else { "is no folder" };
            return Err(failed(
                "write",
                &path,
                format!("{} {what}\n  hint: remove it, or fetch with -o DIR", link.display()),
            ));
        }
        let folder = path.parent().unwrap_or(&self.root);
        fs::create_dir_all(folder).map_err(|e| failed("make", folder, e))?;
        let here = |e: io::Error| failed("write", &path, e);
        match &item.output {
            Output::Link(target) => {
                let part = self.part_path(&item.node, &link_hash(target));
                let _ = fs::remove_file(&part);
                fs::create_dir_all(part.parent().unwrap_or(&part)).map_err(here)?;
                symlink(target, &part).and_then(|()| fs::rename(&part, &path)).map_err(here)?;
            }
            Output::File { hash: wanted, mode, time, .. } => {
                let part = self.part_path(&item.node, wanted);
                let (now, _) = hash(&part).map_err(here)?;
                if now != *wanted {
                    fs::remove_file(&part).map_err(here)?;
                    return Ok(Err("it was changed while it was fetched".into()));
                }
                let put = || -> io::Result<()> {
                    let file = File::options().append(true).open(&part)?;
                    file.set_modified(UNIX_EPOCH + Duration::from_secs_f64(time.max(0.0)))?;
                    // owners differ, and so would what these bits mean
                    file.set_permissions(Permissions::from_mode(mode & 0o777 | 0o600))?;
                    file.sync_all()?;
                    fs::rename(&part, &path)
                };
                put().map_err(here)?;
            }
        }
        self.note(item).map(Ok)
    }

    /// Writes down that an item is fetched, so that the next fetch may put a newer one there.
    ///
    /// # Errors
    /// When it cannot be written.
    pub fn note(&self, item: &Item) -> Result<(), Error> {
        let hash = word(&item.output);
        let mut fetched = self.list();
        if fetched.get(&item.path) != Some(&hash) {
            let list = self.root.join(KEEP).join(DONE);
            let line = record(&item.path, &hash);
            let file = OpenOptions::new().append(true).create(true).open(&list);
            file.and_then(|mut file| file.write_all(line.as_bytes())).map_err(|e| failed("write", &list, e))?;
            fetched.insert(item.path.clone(), hash);
        }
        Ok(())
    }

    /// Removes what has come of files that nobody wants any more, once all that was wanted is there.
    pub fn tidy(&self, nodes: &[String]) {
        for node in nodes {
            let _ = fs::remove_dir_all(self.parts(node));
        }
    }
}

/// Takes the folder for this process, until the file is closed.
fn lock(root: &Path) -> Result<File, Error> {
    let path = root.join(KEEP).join(LOCK);
    let here = |e: io::Error| failed("lock", &path, e);
    let mut file = OpenOptions::new().read(true).write(true).create(true).truncate(false).open(&path).map_err(here)?;
    match flock(&file, FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => {
            let host = fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
            let holder = format!("process {} on {}", std::process::id(), host.trim());
            file.set_len(0).and_then(|()| file.write_all(holder.as_bytes())).map_err(here)?;
            Ok(file)
        }
        // some file systems of other machines know no locks
        Err(Errno::NOLCK | Errno::OPNOTSUPP) => Ok(file),
        Err(Errno::WOULDBLOCK) => {
            // it may not have written that yet
            let holder = io::read_to_string(&file).unwrap_or_default();
            let holder =
                if holder.is_empty() { "another hvdctl".to_owned() } else { format!("another hvdctl ({holder})") };
            Err(Error::check(
                format!("{holder} is fetching into {}; nothing was fetched", root.display()),
                "try again when it is done, or take another folder: -o DIR",
            ))
        }
        Err(e) => Err(here(e.into())),
    }
}

/// What stands in the list of an item.
fn record(name: &str, hash: &str) -> String {
    format!("{hash} {name}\0")
}

/// What an item is known by in the list.
fn word(output: &Output) -> String {
    match output {
        Output::File { hash, .. } => hash.clone(),
        Output::Link(target) => link_hash(target),
    }
}

/// Not that of a file with the same text.
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

    fn bring(folder: &Folder, item: &Item, text: &str) -> Result<(), String> {
        let Output::File { hash, size, .. } = &item.output else { return folder.place(item).unwrap() };
        let (mut part, so_far) = folder.part("n1", hash, *size).unwrap();
        part.write_all(&text.as_bytes()[so_far as usize..]).unwrap();
        folder.place(item).unwrap()
    }

    #[test]
    fn what_comes_in_parts_is_proven_and_put_in_its_place() {
        let dir = tempfile::tempdir().unwrap();
        let folder = Folder::open(dir.path()).unwrap();
        let wanted = item("deep/a b", "contents");
        let Output::File { hash, .. } = &wanted.output else { panic!() };
        folder.part("n1", hash, 8).unwrap().0.write_all(b"cont").unwrap();
        assert_eq!(folder.there(&wanted).unwrap(), There::Nothing, "nothing half-written has the name");
        drop(folder);
        let folder = Folder::open(dir.path()).unwrap();
        assert_eq!(folder.part("n1", hash, 8).unwrap().1, 4, "it goes on where it was");
        bring(&folder, &wanted, "contents").unwrap();
        let there = dir.path().join("deep/a b");
        assert_eq!(fs::read_to_string(&there).unwrap(), "contents");
        let meta = fs::metadata(&there).unwrap();
        assert_eq!(meta.permissions().mode() & 0o777, 0o640);
        assert_eq!(meta.modified().unwrap(), UNIX_EPOCH + Duration::from_millis(1_700_000_000_500));

        let lie = bring(&folder, &item("x", "right"), "wrong").unwrap_err();
        assert!(lie.contains("changed") && !dir.path().join("x").exists(), "{lie}");
        bring(&folder, &item("x", "right"), "right").unwrap();
    }

    #[test]
    fn only_what_was_fetched_is_written_over() {
        let dir = tempfile::tempdir().unwrap();
        let folder = Folder::open(dir.path()).unwrap();
        let first = item("a", "first");
        bring(&folder, &first, "first").unwrap();
        drop(folder);
        let folder = Folder::open(dir.path()).unwrap();
        assert_eq!(folder.there(&first).unwrap(), There::Same);
        assert_eq!(folder.there(&item("a", "second")).unwrap(), There::Earlier);
        fs::write(dir.path().join("a"), "mine").unwrap();
        assert_eq!(folder.there(&item("a", "second")).unwrap(), There::Other);
        fs::create_dir(dir.path().join("d")).unwrap();
        assert_eq!(folder.there(&item("d", "x")).unwrap(), There::Other);

        // no link leads out of the folder
        let link = Item { output: Output::Link("/".into()), ..item("l", "") };
        bring(&folder, &link, "").unwrap();
        assert_eq!(folder.there(&link).unwrap(), There::Same);
        assert_eq!(fs::read_link(dir.path().join("l")).unwrap(), Path::new("/"));
        let through = item("l/tmp-of-nobody", "x");
        assert_eq!(folder.there(&through).unwrap(), There::Other);
        let Output::File { hash, size, .. } = &through.output else { panic!() };
        folder.part("n1", hash, *size).unwrap().0.write_all(b"x").unwrap();
        let refused = folder.place(&through).unwrap_err().to_string();
        let link = dir.path().join("l").display().to_string();
        assert!(refused.contains(&format!("{link} is a symbolic link")) && refused.contains("hint: "), "{refused}");
        symlink("nowhere", dir.path().join("dangling")).unwrap();
        let refused = Folder::open(&dir.path().join("dangling")).unwrap_err().to_string();
        assert!(refused.contains("dangling: it is a symbolic link to nowhere"), "{refused}");
    }

    #[test]
    fn of_each_file_the_last_one_that_was_fetched_is_known() {
        let dir = tempfile::tempdir().unwrap();
        let list = || fs::read_to_string(dir.path().join(KEEP).join(DONE)).unwrap();
        for i in 0..5 {
            let folder = Folder::open(dir.path()).unwrap();
            for text in [format!("old {i}"), format!("new {i}")] {
                bring(&folder, &item("a", &text), &text).unwrap();
            }
            bring(&folder, &item("b", "b"), "b").unwrap();
            assert!(list().matches('\0').count() <= 4, "{}", list());
        }
        // one that was cut off is none, and spoils none
        fs::write(dir.path().join(KEEP).join(DONE), list() + &"0".repeat(64) + " b").unwrap();
        let folder = Folder::open(dir.path()).unwrap();
        let known = [record("a", &in_hex(b"new 4")), record("b", &in_hex(b"b"))];
        assert_eq!(list(), known.concat());
        assert_eq!(folder.there(&item("b", "next")).unwrap(), There::Earlier);
        assert_eq!(folder.there(&item("a", "next")).unwrap(), There::Earlier);
        // somebody put an old one back
        fs::write(dir.path().join("a"), "old 4").unwrap();
        assert_eq!(folder.there(&item("a", "next")).unwrap(), There::Other);
    }

    #[test]
    fn one_at_a_time_fetches_into_a_folder() {
        let dir = tempfile::tempdir().unwrap();
        let folder = Folder::open(dir.path()).unwrap();
        let error = Folder::open(dir.path()).unwrap_err().to_string();
        let process = format!("process {} on ", std::process::id());
        assert!([&process, &dir.path().display().to_string(), "-o DIR"].iter().all(|w| error.contains(*w)), "{error}");
        drop(folder);
        Folder::open(dir.path()).unwrap();
    }
}
