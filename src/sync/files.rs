//! Reads the operator's project: which files belong to it, their contents, and the tar stream that carries them.

use crate::error::Error;
use crate::sync::manifest::{Entry, Manifest, Selection};
use crate::sync::outputs::STATE_DIR;
use crate::text::digest::{Hash, finish, hash_each, hasher, in_hex};
use ignore::{WalkBuilder, WalkParallel, WalkState};
use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{self, BufReader, Read, Write};
use std::iter;
use std::os::fd::AsFd;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::panic::resume_unwind;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use tokio::sync::mpsc::{Receiver, Sender, channel};

/// The names of the entries' directory, of the manifest and, with a number, of the lists in the tar stream; `upload_apply.sh` expects
/// them.
const ENTRIES: &str = "t";
const MANIFEST: &str = "m";
const LIST: &str = "f";

/// Bytes in one piece of the tar stream.
const PIECE: usize = 256 * 1024;
/// How many pieces are read ahead of a node.
const PIECES_AHEAD: usize = 8;

/// Bytes that are read from a file at once.
const BLOCK: usize = 64 * 1024;

/// From how many bytes on a file is hashed by itself, how many smaller ones a thread hashes side by side, and on how many threads at
/// most.
const LARGE: u64 = 64 * 1024;
const GROUP: usize = 16;
const MAX_THREADS: usize = 12;

/// A list of names follows the files in the stream after so many bytes of contents or of names: the node hashes them while it receives
/// more. It starts a few programs for each list.
const LISTED_BYTES: u64 = 32 << 20;
const LISTED_NAMES: usize = 64 << 10;

/// Why a file cannot be sent any more.
const CHANGED: &str = "the file changed while it was uploaded";

/// A project's files on the operator's machine.
#[derive(Debug, Clone)]
pub struct ProjectFiles {
    root: PathBuf,
    /// What belongs to the project.
    pub manifest: Arc<Manifest>,
    /// Hash of [`Manifest::text`].
    pub hash: String,
}

impl ProjectFiles {
    /// Reads and hashes a project on as many threads as there are processors. `.git` and directories that outputs were fetched into
    /// are left out, as is what `.gitignore` and `.hvdctlignore` name.
    ///
    /// # Errors
    /// If a file cannot be read or a name is not UTF-8.
    pub fn read(root: &Path) -> Result<ProjectFiles, Error> {
        let own_output = own_output();
        let (sender, entries) = std::sync::mpsc::channel();
        walk(root).run(|| {
            let (sender, own_output) = (sender.clone(), &own_output);
            Box::new(move |found| {
                let found = found.map_err(|e| Error::Local(format!("cannot read the project: {e}")));
                let entry = found.and_then(|found| read_entry(root, found.path(), own_output));
                let state = if entry.is_ok() { WalkState::Continue } else { WalkState::Quit };
                entry.transpose().map(|entry| sender.send(entry));
                state
            })
        });
        drop(sender);
        let mut entries = entries.into_iter().collect::<Result<BTreeMap<_, _>, Error>>()?;
        hash_small_files(root, &mut entries)?;
        let manifest = Manifest(entries);
        let hash = in_hex(manifest.text().as_bytes());
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
        append_text(&mut tar, MANIFEST, &self.manifest.text())?;
        let (mut names, mut bytes, mut lists) = (String::new(), 0, 0);
        let mut end_list = |tar: &mut tar::Builder<_>, names: &mut String| {
            lists += 1;
            append_text(tar, &format!("{LIST}{lists}"), &std::mem::take(names))
        };
        for (name, entry) in self.manifest.select(selection) {
            let path = self.root.join(name);
            let in_tar = format!("{ENTRIES}/{name}");
            let appended = match entry {
                Entry::File { mode, size, .. } => append_file(&mut tar, &path, &in_tar, *mode, *size),
                Entry::Directory { mode } => {
                    tar.append_data(&mut header(tar::EntryType::Directory, *mode, 0), in_tar, io::empty())
                }
                Entry::Link { target } => {
                    tar.append_link(&mut header(tar::EntryType::Symlink, 0o777, 0), in_tar, target)
                }
            };
            appended.map_err(|e| io::Error::new(e.kind(), format!("{}: {e}", path.display())))?;
            if let Entry::File { size, .. } = entry {
                names.extend(["./", name, "\0"]);
                bytes += size;
            }
            if bytes >= LISTED_BYTES || names.len() >= LISTED_NAMES {
                end_list(&mut tar, &mut names)?;
                bytes = 0;
            }
        }
        end_list(&mut tar, &mut names)?;
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

fn append_text(tar: &mut tar::Builder<impl Write>, name: &str, text: &str) -> io::Result<()> {
    tar.append_data(&mut header(tar::EntryType::Regular, 0o600, text.len() as u64), name, text.as_bytes())
}

fn append_file(tar: &mut tar::Builder<impl Write>, path: &Path, name: &str, mode: u32, size: u64) -> io::Result<()> {
    let file = File::open(path)?;
    let meta = file.metadata()?;
    let mut header = header(tar::EntryType::Regular, mode, size);
    header.set_mtime(u64::try_from(meta.mtime()).unwrap_or_default());
    let mut contents = BufReader::with_capacity(BLOCK, file.take(size));
    tar.append_data(&mut header, name, &mut contents)?;
    if meta.len() == size && contents.get_ref().limit() == 0 {
        Ok(())
    } else {
        Err(io::Error::new(io::ErrorKind::InvalidData, CHANGED))
    }
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

/// Returns everything that may belong to a project.
fn walk(root: &Path) -> WalkParallel {
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
        .build_parallel()
}

/// Returns the device and inode of the files that hvdctl's own output goes to: `hvdctl train . >out.log` has one that grows while
/// it is uploaded and is no part of the program.
fn own_output() -> Vec<(u64, u64)> {
    let descriptors = [io::stdout().as_fd().try_clone_to_owned(), io::stderr().as_fd().try_clone_to_owned()];
    let files = descriptors.into_iter().filter_map(|fd| fs::File::from(fd.ok()?).metadata().ok());
    files.map(|meta| (meta.dev(), meta.ino())).collect()
}

/// Reads what is at a path; a file only if it is large, see [`hash_small_files`]. Returns its name and entry; `None` for what is not
/// uploaded: the root itself, hvdctl's own output, sockets, pipes and devices.
fn read_entry(root: &Path, path: &Path, own_output: &[(u64, u64)]) -> Result<Option<(String, Entry)>, Error> {
    let relative = path.strip_prefix(root).unwrap_or(path);
    let not_utf8 = |what: &str, remedy: &str| {
        Error::usage(
            format!("the project has a {what} is not UTF-8: {}", relative.display()),
            format!("{remedy}, or exclude it with this line in .hvdctlignore: {}", pattern(relative)),
        )
    };
    let unreadable = |e| unreadable(path, &e);
    let name = relative.to_str().ok_or_else(|| not_utf8("file whose name", "rename it"))?;
    let meta = fs::symlink_metadata(path).map_err(unreadable)?;
    let mode = meta.permissions().mode() & 0o7777;
    let entry = if name.is_empty() || own_output.contains(&(meta.dev(), meta.ino())) {
        return Ok(None);
    } else if meta.is_symlink() {
        let target = fs::read_link(path).map_err(unreadable)?.into_os_string().into_string();
        Entry::Link { target: target.map_err(|_| not_utf8("link whose target", "point it elsewhere"))? }
    } else if meta.is_dir() {
        Entry::Directory { mode }
    } else if meta.is_file() {
        let (hash, size) =
            if meta.len() < LARGE { (Hash::default(), meta.len()) } else { hash_file(path).map_err(unreadable)? };
        Entry::File { hash, mode, size }
    } else {
        return Ok(None);
    };
    Ok(Some((name.to_owned(), entry)))
}

fn unreadable(path: &Path, error: &io::Error) -> Error {
    Error::Local(format!("cannot read {}: {error}", path.display()))
}

/// Reads and hashes the files below [`LARGE`] bytes, several of them side by side on each thread.
fn hash_small_files(root: &Path, entries: &mut BTreeMap<String, Entry>) -> Result<(), Error> {
    let small = entries.iter_mut().filter_map(|(name, entry)| match entry {
        Entry::File { hash, size, .. } if *size < LARGE => Some((root.join(name), hash, size)),
        _ => None,
    });
    let mut small: Vec<_> = small.collect();
    let (groups, failed) = (Mutex::new(small.chunks_mut(GROUP)), AtomicBool::new(false));
    let next = || groups.lock().unwrap_or_else(PoisonError::into_inner).next().filter(|_| !failed.load(Relaxed));
    let work = || {
        let worked = iter::from_fn(next).try_for_each(hash_group);
        worked.inspect_err(|_| failed.store(true, Relaxed))
    };
    thread::scope(|scope| {
        let threads = thread::available_parallelism().map_or(1, usize::from).min(MAX_THREADS);
        let working: Vec<_> = (0..threads).map(|_| scope.spawn(work)).collect();
        working.into_iter().try_for_each(|one| one.join().unwrap_or_else(|panic| resume_unwind(panic)))
    })
}

/// Reads and hashes some small files. One that has grown since the walk is read up to [`LARGE`] bytes; [`append_file`] then refuses it,
/// because it has another size.
fn hash_group(files: &mut [(PathBuf, &mut Hash, &mut u64)]) -> Result<(), Error> {
    let read = files.iter().map(|(path, ..)| {
        let mut contents = Vec::new();
        let read = File::open(path).and_then(|file| file.take(LARGE).read_to_end(&mut contents));
        read.map(|_| contents).map_err(|e| unreadable(path, &e))
    });
    let contents = read.collect::<Result<Vec<_>, Error>>()?;
    for (((_, hash, size), contents), computed) in files.iter_mut().zip(&contents).zip(hash_each(&contents)) {
        (**hash, **size) = (computed, contents.len() as u64);
    }
    Ok(())
}

/// Returns the hash and the size of a file.
pub(super) fn hash_file(path: &Path) -> io::Result<(Hash, u64)> {
    let mut hasher = hasher();
    let size = io::copy(&mut BufReader::with_capacity(BLOCK, File::open(path)?), &mut hasher)?;
    Ok((finish(&hasher), size))
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
    use crate::sync::manifest::UploadedRecords;

    #[test]
    fn ignored_files_are_left_out() {
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
    fn a_name_that_is_not_utf_8_can_be_left_out_by_the_line_in_the_hint() {
        use std::os::unix::ffi::OsStrExt;
        let dir = tempfile::tempdir().unwrap();
        let odd = Path::new(std::ffi::OsStr::from_bytes(b"data [1]/caf\xe9?.txt"));
        fs::create_dir(dir.path().join("data [1]")).unwrap();
        fs::write(dir.path().join(odd), "").unwrap();
        fs::write(dir.path().join("data [1]/cafe.txt"), "").unwrap();
        let message = ProjectFiles::read(dir.path()).err().unwrap().to_string();
        let line = message.split(".hvdctlignore: ").nth(1).unwrap_or_else(|| panic!("{message}"));
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
        let all = files.manifest.missing(&UploadedRecords::default());
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
            let message = end().unwrap_err();
            assert!(message.contains("data") && message.contains(CHANGED), "{message}");
        }
        fs::remove_file(&file).unwrap();
        assert!(end().unwrap_err().contains("No such file"));
    }
}
