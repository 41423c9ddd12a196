//! Reads the operator's project: which files belong to it, their contents, and the tar stream that carries them.

use crate::error::Error;
use crate::sync::manifest::{Entry, Manifest, Selection};
use crate::sync::outputs::STATE_DIR;
use crate::text::digest::{Hash, Hasher};
use ignore::{Walk, WalkBuilder};
use std::fs::{self, File, Metadata};
use std::io::{self, Read, Write};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::panic::resume_unwind;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use tokio::sync::mpsc::{Receiver, Sender, channel};

/// The names of the entries' directory and of the manifest in the tar stream; `upload_apply.sh` expects them.
const ENTRIES: &str = "t";
const MANIFEST: &str = "m";

/// Bytes in one piece of the tar stream.
const PIECE: usize = 256 * 1024;
/// How many pieces are read ahead of a node.
const PIECES_AHEAD: usize = 8;

/// Why a file cannot be sent any more.
const CHANGED: &str = "it was changed while it was uploaded";

/// A project's files on the operator's machine.
#[derive(Debug, Clone)]
pub struct ProjectFiles {
    root: PathBuf,
    /// What belongs to the project.
    pub manifest: Arc<Manifest>,
    /// [`Manifest::tree_hash`] of the manifest.
    pub hash: String,
}

impl ProjectFiles {
    /// Reads and hashes a project. `.git` and directories that outputs were fetched into are left out, as is what `.gitignore` and
    /// `.hvdctlignore` name.
    ///
    /// # Errors
    /// If a file cannot be read or a name is not UTF-8.
    pub fn read(root: &Path) -> Result<ProjectFiles, Error> {
        let mut manifest = Manifest::default();
        let own_output = own_output();
        for found in walk(root) {
            let found = found.map_err(|e| Error::Here(format!("could not read the project: {e}")))?;
            let path = found.path();
            let Ok(relative) = path.strip_prefix(root) else { continue };
            let Some(name) = relative.to_str() else {
                return Err(Error::usage(
                    format!("the project has a file whose name is not UTF-8: {}", relative.display()),
                    format!("rename it, or leave it out by this line in .hvdctlignore: {}", pattern(relative)),
                ));
            };
            let meta = fs::symlink_metadata(path).map_err(|e| unreadable(path, &e))?;
            if name.is_empty() || own_output.contains(&(meta.dev(), meta.ino())) {
                continue;
            }
            if let Some(entry) = entry(path, relative, &meta)? {
                manifest.0.insert(name.to_owned(), entry);
            }
        }
        hash_files(root, &mut manifest)?;
        let hash = manifest.tree_hash();
        Ok(ProjectFiles { root: root.to_owned(), manifest: Arc::new(manifest), hash })
    }

    /// Sends the manifest and the selected entries as a tar stream, read on a thread of its own. The stream ends with an error if a file
    /// has changed since [`ProjectFiles::read`], and early if the receiver is dropped.
    pub fn stream(&self, selection: Selection) -> Receiver<io::Result<Vec<u8>>> {
        let (sender, receiver) = channel(PIECES_AHEAD);
        let files = self.clone();
        thread::spawn(move || {
            let mut pieces = Pieces { sender, piece: Vec::new() };
            let written = files.write_tar(&selection, &mut pieces).and_then(|()| pieces.flush());
            if let Err(error) = written {
                let _ = pieces.sender.blocking_send(Err(error));
            }
        });
        receiver
    }

    fn write_tar(&self, selection: &Selection, out: &mut impl Write) -> io::Result<()> {
        let mut tar = tar::Builder::new(out);
        let list = self.manifest.text();
        tar.append_data(&mut header(tar::EntryType::Regular, 0o600, list.len() as u64), MANIFEST, &list[..])?;
        for (name, entry) in self.manifest.select(selection) {
            let path = self.root.join(name);
            let packed = format!("{ENTRIES}/{name}");
            let appended = match entry {
                Entry::File { mode, size, .. } => append_file(&mut tar, &path, &packed, *mode, *size),
                Entry::Directory { mode } => {
                    tar.append_data(&mut header(tar::EntryType::Directory, *mode, 0), packed, io::empty())
                }
                Entry::Link { target } => {
                    tar.append_link(&mut header(tar::EntryType::Symlink, 0o777, 0), packed, target)
                }
            };
            appended.map_err(|e| io::Error::new(e.kind(), format!("{}: {e}", path.display())))?;
        }
        tar.finish()
    }
}

fn header(kind: tar::EntryType, mode: u32, size: u64) -> tar::Header {
    let mut header = tar::Header::new_gnu();
    header.set_uid(0);
    header.set_gid(0);
    header.set_entry_type(kind);
    header.set_mode(mode);
    header.set_size(size);
    header
}

fn append_file(tar: &mut tar::Builder<impl Write>, path: &Path, name: &str, mode: u32, size: u64) -> io::Result<()> {
    let file = File::open(path)?;
    let meta = file.metadata()?;
    let mut header = header(tar::EntryType::Regular, mode, size);
    header.set_mtime(u64::try_from(meta.mtime()).unwrap_or_default());
    let mut contents = file.take(size);
    tar.append_data(&mut header, name, &mut contents)?;
    if meta.len() == size && contents.limit() == 0 { Ok(()) } else { Err(io::Error::other(CHANGED)) }
}

/// Sends what is written in pieces of [`PIECE`] bytes.
struct Pieces {
    sender: Sender<io::Result<Vec<u8>>>,
    piece: Vec<u8>,
}

impl Write for Pieces {
    fn write(&mut self, data: &[u8]) -> io::Result<usize> {
        self.piece.extend_from_slice(data);
        if self.piece.len() >= PIECE {
            self.flush()?;
        }
        Ok(data.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        let piece = std::mem::replace(&mut self.piece, Vec::with_capacity(PIECE + PIECE / 8));
        self.sender.blocking_send(Ok(piece)).map_err(|_| io::ErrorKind::BrokenPipe.into())
    }
}

/// Returns everything that belongs to a project.
fn walk(root: &Path) -> Walk {
    let is_file = |entry: &ignore::DirEntry| entry.file_type().is_some_and(|kind| kind.is_file());
    WalkBuilder::new(root)
        .hidden(false)
        .ignore(false)
        .parents(false)
        .git_global(false)
        .git_exclude(false)
        .require_git(false)
        .add_custom_ignore_filename(".hvdctlignore")
        .filter_entry(move |entry| {
            entry.file_name() != ".git"
                && entry.file_name() != STATE_DIR
                && (entry.depth() == 0 || is_file(entry) || !entry.path().join(STATE_DIR).is_dir())
        })
        .build()
}

/// Returns the device and inode of the files that hvdctl's own output goes to: `hvdctl train . >out.log` has one that grows while
/// it is uploaded and is no part of the program.
fn own_output() -> Vec<(u64, u64)> {
    let files = ["/proc/self/fd/1", "/proc/self/fd/2"].iter().filter_map(|fd| fs::metadata(fd).ok());
    files.map(|meta| (meta.dev(), meta.ino())).collect()
}

/// Returns the entry of a path, with no hash for a file yet; None for sockets, pipes and devices.
fn entry(path: &Path, relative: &Path, meta: &Metadata) -> Result<Option<Entry>, Error> {
    let mode = meta.permissions().mode() & 0o7777;
    if meta.is_symlink() {
        let target = fs::read_link(path).map_err(|e| unreadable(path, &e))?;
        let target = target.into_os_string().into_string().map_err(|_| {
            Error::usage(
                format!("the project has a link whose target is not UTF-8: {}", relative.display()),
                format!("point it elsewhere, or leave it out by this line in .hvdctlignore: {}", pattern(relative)),
            )
        })?;
        return Ok(Some(Entry::Link { target }));
    }
    let file = Entry::File { hash: Hash::default(), mode, size: 0 };
    Ok(if meta.is_dir() { Some(Entry::Directory { mode }) } else { meta.is_file().then_some(file) })
}

fn unreadable(path: &Path, error: &io::Error) -> Error {
    Error::Here(format!("could not read {}: {error}", path.display()))
}

/// Sets hash and size of all files, on as many threads as there are processors.
fn hash_files(root: &Path, manifest: &mut Manifest) -> Result<(), Error> {
    let queue = Mutex::new(manifest.0.iter_mut());
    let work = || {
        loop {
            let next = queue.lock().unwrap_or_else(PoisonError::into_inner).next();
            let Some((name, entry)) = next else { return Ok(()) };
            if let Entry::File { hash, size, .. } = entry {
                let path = root.join(name);
                (*hash, *size) = hash_file(&path).map_err(|e| unreadable(&path, &e))?;
            }
        }
    };
    let threads = thread::available_parallelism().map_or(1, Into::into);
    thread::scope(|scope| {
        let threads: Vec<_> = (0..threads).map(|_| scope.spawn(work)).collect();
        threads.into_iter().try_for_each(|thread| thread.join().unwrap_or_else(|panic| resume_unwind(panic)))
    })
}

/// Returns the hash and the size of a file.
pub(super) fn hash_file(path: &Path) -> io::Result<(Hash, u64)> {
    let mut hasher = Hasher::default();
    let size = io::copy(&mut File::open(path)?, &mut hasher)?;
    Ok((hasher.finish(), size))
}

/// Returns a line for an ignore file that matches this path; `*` stands for what is not UTF-8.
fn pattern(path: &Path) -> String {
    let escape = |c: char| match c {
        char::REPLACEMENT_CHARACTER => "*".to_owned(),
        '*' | '?' | '[' | ']' | '{' | '}' | '\\' => format!("\\{c}"),
        c => c.to_string(),
    };
    format!("/{}", path.to_string_lossy().chars().map(escape).collect::<String>())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sync::manifest::NodeFiles;

    #[test]
    fn what_is_read() {
        let dir = tempfile::tempdir().unwrap();
        let at = |name: &str| dir.path().join(name);
        for name in ["deep/er", ".git", "cache", "empty", ".hvdctl-fetch", "results/.hvdctl-fetch"] {
            fs::create_dir_all(at(name)).unwrap();
        }
        for name in
            ["a b.py", "deep/er/x", ".git/config", ".gitignore", ".hvdctlignore", "skipped.bin", "cache/x", "results/x"]
        {
            fs::write(at(name), name).unwrap();
        }
        fs::write(at(".gitignore"), "cache/\n").unwrap();
        fs::write(at(".hvdctlignore"), "*.bin\n").unwrap();
        fs::set_permissions(at("a b.py"), fs::Permissions::from_mode(0o750)).unwrap();
        std::os::unix::fs::symlink("/etc/passwd", at("out of it")).unwrap();
        // outputs on a larger disk
        std::os::unix::fs::symlink("results", at("results elsewhere")).unwrap();

        let Manifest(entries) = &*ProjectFiles::read(dir.path()).unwrap().manifest;
        let names: Vec<&str> = entries.keys().map(String::as_str).collect();
        assert_eq!(
            names,
            [".gitignore", ".hvdctlignore", "a b.py", "deep", "deep/er", "deep/er/x", "empty", "out of it"]
        );
        let hash = crate::text::digest::hash(b"a b.py");
        assert_eq!(entries["a b.py"], Entry::File { hash, mode: 0o750, size: 6 });
        assert_eq!(entries["out of it"], Entry::Link { target: "/etc/passwd".into() });
    }

    #[test]
    fn a_name_that_is_no_text_can_be_left_out_by_the_line_that_is_advised() {
        use std::os::unix::ffi::OsStrExt;
        let dir = tempfile::tempdir().unwrap();
        let odd = Path::new(std::ffi::OsStr::from_bytes(b"data [1]/caf\xe9?.txt"));
        fs::create_dir(dir.path().join("data [1]")).unwrap();
        fs::write(dir.path().join(odd), "").unwrap();
        fs::write(dir.path().join("data [1]/cafe.txt"), "").unwrap();
        let said = ProjectFiles::read(dir.path()).err().unwrap().to_string();
        let line = said.split(".hvdctlignore: ").nth(1).unwrap_or_else(|| panic!("{said}"));
        fs::write(dir.path().join(".hvdctlignore"), format!("{line}\n")).unwrap();
        let tree = ProjectFiles::read(dir.path()).unwrap();
        let names: Vec<&str> = tree.manifest.0.keys().map(String::as_str).collect();
        assert_eq!(names, [".hvdctlignore", "data [1]", "data [1]/cafe.txt"]);
    }

    #[test]
    fn every_file_has_its_own_hash_whatever_its_size() {
        let dir = tempfile::tempdir().unwrap();
        for (i, size) in [0, 1, 129, 8192, 8193, 3 * PIECE + 7].into_iter().cycle().take(50).enumerate() {
            fs::write(dir.path().join(format!("file{i}")), vec![i as u8; size]).unwrap();
        }
        let files = ProjectFiles::read(dir.path()).unwrap();
        assert_eq!(files.manifest.0.len(), 50);
        for (name, entry) in &files.manifest.0 {
            let contents = fs::read(dir.path().join(name)).unwrap();
            let Entry::File { hash, size, .. } = entry else { panic!("{entry:?}") };
            assert_eq!((*hash, *size), (crate::text::digest::hash(&contents), contents.len() as u64), "{name}");
        }
    }

    #[test]
    fn a_file_that_changes_or_vanishes_breaks_the_stream_off() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("data");
        fs::write(&file, [7; 100_000]).unwrap();
        let files = ProjectFiles::read(dir.path()).unwrap();
        let all = files.manifest.missing(&NodeFiles::default());
        let end = || {
            let mut pieces = files.stream(all.clone());
            while let Some(piece) = pieces.blocking_recv() {
                piece.map_err(|e| e.to_string())?;
            }
            Ok::<(), String>(())
        };
        assert!(end().is_ok());
        for size in [99_999, 100_001] {
            fs::write(&file, vec![7; size]).unwrap();
            let words = end().unwrap_err();
            assert!(words.contains("data") && words.contains(CHANGED), "{words}");
        }
        fs::remove_file(&file).unwrap();
        assert!(end().unwrap_err().contains("No such file"));
    }
}
