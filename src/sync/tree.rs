//! The contents of a directory of this machine, found and read by several threads.

use crate::error::Error;
use crate::sync::contents::{self, ContentStore, is_gone, open};
use crate::sync::ignored::IgnoreRules;
use crate::sync::manifest::ManifestEntry;
use crate::sync::outputs::STATE_DIR;
use crate::text::digest::{Hash, hash_each};
use crate::text::nodeset::printable;
use crate::text::quote::readable;
use crate::text::units::count;
use anyhow::Context as _;
use ignore::{WalkBuilder, WalkParallel, WalkState};
use std::collections::BTreeSet;
use std::fs;
use std::io::{self, Read};
use std::iter;
use std::os::fd::AsFd;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::panic::resume_unwind;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;

/// From how many bytes on a file is hashed by itself, how many smaller ones a thread hashes side by side, and on how
/// many threads at most.
const LARGE: u64 = 64 * 1024;
const GROUP: usize = 16;
const MAX_THREADS: usize = 12;

/// The most files that a message names.
pub(crate) const NAMED: usize = 5;

/// So many bytes of small files are kept in memory as they were hashed, for all nodes.
const KEPT: u64 = 32 << 20;

/// Finds and reads what belongs to a project, or without rules all that is there.
///
/// # Errors
/// If a file or a line of an ignore file cannot be read, or a name is not UTF-8.
pub(super) fn read_tree(root: &Path, rules: Option<Arc<IgnoreRules>>) -> Result<Vec<Found>, Error> {
    let (own_output, is_data) = (own_output(), rules.is_none());
    let (sender, found) = std::sync::mpsc::channel();
    let (unread, odd) = (Arc::new(Mutex::new(None)), Mutex::new(Odd::default()));
    walk(root, rules, Arc::clone(&unread)).run(|| {
        let (sender, own_output, odd) = (sender.clone(), &own_output, &odd);
        Box::new(move |found| {
            if let Some(path) = found.as_ref().ok().and_then(|found| odd_path(root, found.path())) {
                odd.lock().unwrap_or_else(PoisonError::into_inner).names.add(path);
                return WalkState::Skip;
            }
            let read = read_found(root, found, own_output, is_data, odd);
            let state = if read.is_ok() { WalkState::Continue } else { WalkState::Quit };
            if let Some(read) = read.transpose() {
                let _ = sender.send(read);
            }
            state
        })
    });
    drop(sender);
    let mut found = found.into_iter().collect::<Result<Vec<_>, Error>>()?;
    if let Some(error) = unread.lock().unwrap_or_else(PoisonError::into_inner).take() {
        return Err(error);
    }
    if let Some(error) = odd.into_inner().unwrap_or_else(PoisonError::into_inner).error(root, is_data) {
        return Err(error);
    }
    read_small_files(root, &mut found)?;
    Ok(found)
}

/// Returns the paths of the files and links that belong to a project, or without rules of all that are there.
///
/// # Errors
/// If a directory or a line of an ignore file cannot be read.
pub(super) fn walked(root: &Path, rules: Option<Arc<IgnoreRules>>) -> Result<Vec<PathBuf>, Error> {
    let (sender, found) = std::sync::mpsc::channel();
    let unread = Arc::new(Mutex::new(None));
    walk(root, rules, Arc::clone(&unread)).run(|| {
        let sender = sender.clone();
        Box::new(move |found| {
            let path = match found {
                Ok(found) if found.file_type().is_none_or(|kind| kind.is_dir()) => return WalkState::Continue,
                Ok(found) => Ok(found.path().strip_prefix(root).unwrap_or(found.path()).to_owned()),
                Err(e) if e.depth() > Some(0) && e.io_error().is_some_and(is_gone) => return WalkState::Continue,
                Err(e) => Err(Error::Local(format!("cannot read the project: {e}"))),
            };
            let state = if path.is_ok() { WalkState::Continue } else { WalkState::Quit };
            let _ = sender.send(path);
            state
        })
    });
    drop(sender);
    let found = found.into_iter().collect::<Result<_, Error>>()?;
    unread.lock().unwrap_or_else(PoisonError::into_inner).take().map_or(Ok(found), Err)
}

/// Returns everything that belongs to a project, or without rules all that is there. The first ignore file that cannot
/// be read is put into `unread`.
fn walk(root: &Path, rules: Option<Arc<IgnoreRules>>, unread: Arc<Mutex<Option<Error>>>) -> WalkParallel {
    let Some(rules) = rules else {
        // what the file system keeps at the top of a disk is root's alone
        let is_data = |entry: &ignore::DirEntry| entry.depth() != 1 || entry.file_name() != "lost+found";
        return WalkBuilder::new(root).standard_filters(false).filter_entry(is_data).build_parallel();
    };
    let is_ignored = move |path: &Path, is_directory| {
        rules.excludes(path, is_directory).unwrap_or_else(|error| {
            unread.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(error);
            true
        })
    };
    WalkBuilder::new(root)
        .standard_filters(false)
        .filter_entry(move |entry| {
            let is = |kind: fn(&fs::FileType) -> bool| entry.file_type().as_ref().is_some_and(kind);
            entry.depth() == 0
                || entry.file_name() != ".git"
                    && entry.file_name() != STATE_DIR
                    && (is(fs::FileType::is_file) || !entry.path().join(STATE_DIR).is_dir())
                    && !is_ignored(entry.path(), is(fs::FileType::is_dir))
        })
        .build_parallel()
}

/// Returns the device and inode of the files that hvdctl's own output goes to: `hvdctl train . >out.log` has one that
/// grows while it is uploaded and is no part of the program.
fn own_output() -> Vec<(u64, u64)> {
    let descriptors = [io::stdout().as_fd().try_clone_to_owned(), io::stderr().as_fd().try_clone_to_owned()];
    let files = descriptors.into_iter().filter_map(|fd| fs::File::from(fd.ok()?).metadata().ok());
    files.map(|meta| (meta.dev(), meta.ino())).collect()
}

/// Returns the path in the directory of what the walk has found, if it is not UTF-8.
fn odd_path<'a>(root: &Path, path: &'a Path) -> Option<&'a Path> {
    let relative = path.strip_prefix(root).unwrap_or(path);
    relative.to_str().is_none().then_some(relative)
}

/// The entries that no manifest can have. The contents of a directory with such a name are not counted.
#[derive(Default)]
struct Odd {
    /// Entries whose names are not UTF-8.
    names: Counted,
    /// Links whose targets are not UTF-8.
    links: Counted,
}

/// Number of paths, and the first of them.
#[derive(Default)]
struct Counted {
    count: usize,
    first: BTreeSet<PathBuf>,
}

impl Counted {
    fn add(&mut self, path: &Path) {
        self.count += 1;
        self.first.insert(path.to_owned());
        if self.first.len() > NAMED {
            self.first.pop_last();
        }
    }

    /// Returns the first ones as text.
    fn named(&self) -> String {
        let named: Vec<_> = self.first.iter().map(|path| printable(&path.to_string_lossy())).collect();
        named.join(", ") + if self.count > NAMED { ", …" } else { "" }
    }
}

impl Odd {
    /// Returns the error about all of them, with one command against it.
    fn error(&self, root: &Path, is_data: bool) -> Option<Error> {
        let Odd { names, links } = self;
        let mut found = Vec::new();
        if names.count > 0 {
            let are = if names.count == 1 { "is" } else { "are" };
            found.push(format!("{} that {are} not UTF-8: {}", count(names.count, "name"), names.named()));
        }
        if links.count > 0 {
            let to = if links.count == 1 { "to a name that is" } else { "to names that are" };
            found.push(format!("{} {to} not UTF-8: {}", count(links.count, "link"), links.named()));
        }
        let what = if is_data { "the data have" } else { "the project has" };
        let mut hints = Vec::new();
        if names.count > 0 {
            let directory = readable(&root.to_string_lossy());
            hints.push(format!(
                "rename them all: convmv -r --notest -f ISO-8859-1 -t UTF-8 {directory} (cp932 for Japanese names, \
                 gbk for Chinese ones; without --notest it only shows what it would do)"
            ));
        }
        if links.count > 0 {
            hints.push("point the links elsewhere".to_owned());
        }
        let lines: Vec<String> = names.first.union(&links.first).map(|path| pattern(path)).collect();
        if !is_data && lines.len() == names.count + links.count {
            let these = if lines.len() == 1 { "this line" } else { "these lines" };
            hints.push(format!("or exclude them with {these} in .hvdctlignore: {}", lines.join(", ")));
        }
        (!found.is_empty()).then(|| Error::usage(format!("{what} {}", found.join(", and ")), hints.join(", ")))
    }
}

/// An entry that the walk has found.
pub(super) struct Found {
    /// Its path in the directory.
    pub(super) name: String,
    /// The entry of the manifest.
    pub(super) entry: ManifestEntry,
    /// The state of the entry.
    pub(super) state: FoundState,
}

/// The state of an entry that the walk has found.
pub(super) enum FoundState {
    /// It was read; a file's contents are there.
    Read(Option<ContentStore>),
    /// It was removed since the walk listed it.
    Vanished,
}

/// Reads what the walk has found; a file only if it is large, see [`read_small_files`]. `None` for what is not
/// uploaded: the root itself, hvdctl's own output, sockets, pipes and devices.
fn read_found(
    root: &Path,
    found: Result<ignore::DirEntry, ignore::Error>,
    own_output: &[(u64, u64)],
    is_data: bool,
    odd: &Mutex<Odd>,
) -> Result<Option<Found>, Error> {
    let found = match found {
        // a directory that was removed before it was read, and is noted when it is looked at
        Err(e) if e.depth() > Some(0) && e.io_error().is_some_and(is_gone) => return Ok(None),
        found => found.with_context(|| format!("cannot read the {}", if is_data { "data" } else { "project" }))?,
    };
    let path = found.into_path();
    let relative = path.strip_prefix(root).unwrap_or(&path);
    let Some(name) = relative.to_str().map(str::to_owned) else { return Ok(None) };
    let nothing = ManifestEntry::Directory { mode: 0 };
    let (entry, state) = match read_entry(&path, own_output) {
        Ok(Some(read)) if !name.is_empty() => read,
        Ok(_) => return Ok(None),
        Err(e) if e.kind() == io::ErrorKind::InvalidData => {
            odd.lock().unwrap_or_else(PoisonError::into_inner).links.add(relative);
            return Ok(None);
        }
        Err(e) if is_gone(&e) => (nothing, FoundState::Vanished),
        Err(e) => return Err(unreadable(&path, &e)),
    };
    Ok(Some(Found { name, entry, state }))
}

/// Reads what is at a path. [`io::ErrorKind::InvalidData`] if it is a link whose target is not UTF-8.
fn read_entry(path: &Path, own_output: &[(u64, u64)]) -> io::Result<Option<(ManifestEntry, FoundState)>> {
    let meta = fs::symlink_metadata(path)?;
    let mode = contents::mode(&meta);
    Ok(if own_output.contains(&(meta.dev(), meta.ino())) {
        None
    } else if meta.is_symlink() {
        let target = fs::read_link(path)?.into_os_string().into_string();
        let target = target.map_err(|_| io::Error::from(io::ErrorKind::InvalidData))?;
        Some((ManifestEntry::Link { target }, FoundState::Read(None)))
    } else if meta.is_dir() {
        Some((ManifestEntry::Directory { mode }, FoundState::Read(None)))
    } else if meta.is_file() && meta.len() < LARGE {
        Some((ManifestEntry::File { hash: Hash::default(), mode, size: meta.len() }, FoundState::Read(None)))
    } else if meta.is_file() {
        let (hash, size, mode, contents) = ContentStore::hash(path)?;
        Some((ManifestEntry::File { hash, mode, size }, FoundState::Read(Some(contents))))
    } else {
        None
    })
}

/// Returns the error of a file that cannot be read.
pub(super) fn unreadable(path: &Path, error: &io::Error) -> Error {
    Error::Local(format!("cannot read {}: {error}", path.display()))
}

/// Reads and hashes the files below [`LARGE`] bytes, several of them side by side on each thread.
fn read_small_files(root: &Path, found: &mut [Found]) -> Result<(), Error> {
    let is_small = |found: &&mut Found| {
        matches!(found.entry, ManifestEntry::File { .. }) && matches!(found.state, FoundState::Read(None))
    };
    let mut small: Vec<_> = found.iter_mut().filter(is_small).collect();
    // by name, as they are on the disk if they were written so
    small.sort_unstable_by(|a, b| a.name.cmp(&b.name));
    let (groups, failed, kept) = (Mutex::new(small.chunks_mut(GROUP)), AtomicBool::new(false), AtomicU64::new(0));
    let next = || groups.lock().unwrap_or_else(PoisonError::into_inner).next().filter(|_| !failed.load(Relaxed));
    let work = || {
        let worked = iter::from_fn(next).try_for_each(|group| read_group(root, group, &kept));
        worked.inspect_err(|_| failed.store(true, Relaxed))
    };
    thread::scope(|scope| {
        let threads = thread::available_parallelism().map_or(1, usize::from).min(MAX_THREADS);
        let working: Vec<_> = (0..threads).map(|_| scope.spawn(work)).collect();
        working.into_iter().try_for_each(|one| one.join().unwrap_or_else(|panic| resume_unwind(panic)))
    })
}

/// Reads and hashes some small files. Of one that has grown since the walk, the first [`LARGE`] bytes are read. `kept`
/// is the number of bytes that are in memory.
fn read_group(root: &Path, group: &mut [&mut Found], kept: &AtomicU64) -> Result<(), Error> {
    let mut contents = Vec::with_capacity(group.len());
    for found in &mut *group {
        let read = open(&root.join(&found.name)).and_then(|(file, meta)| {
            let bytes = read_small(&file, meta.len().min(LARGE))?;
            Ok((file, meta, bytes))
        });
        match read {
            Ok(read) => contents.push(read),
            Err(e) if is_gone(&e) => found.state = FoundState::Vanished,
            Err(e) => return Err(unreadable(&root.join(&found.name), &e)),
        }
    }
    let hashes = hash_each(&contents.iter().map(|(.., bytes)| &bytes[..]).collect::<Vec<_>>());
    let read = group.iter_mut().filter(|found| !matches!(found.state, FoundState::Vanished));
    for ((found, (file, meta, bytes)), computed) in read.zip(contents).zip(hashes) {
        let len = bytes.len() as u64;
        if let ManifestEntry::File { hash, mode, size } = &mut found.entry {
            (*hash, *mode, *size) = (computed, contents::mode(&meta), len);
        }
        let is_kept = kept.fetch_add(len, Relaxed) + len <= KEPT;
        let contents =
            if is_kept { Ok(ContentStore::in_memory(bytes, &meta)) } else { ContentStore::in_place(&file, &meta) };
        found.state = FoundState::Read(Some(contents.map_err(|e| unreadable(&root.join(&found.name), &e))?));
    }
    Ok(())
}

/// Reads the first [`LARGE`] bytes of a file. `len`: the bytes that it had; where there are no more, one call finds out
/// both.
fn read_small(file: &fs::File, len: u64) -> io::Result<Vec<u8>> {
    let mut bytes = vec![0; usize::try_from(len).unwrap_or_default() + 1];
    let filled = file.read_at(&mut bytes, 0)?;
    bytes.truncate(filled);
    if filled as u64 != len {
        // it has grown or shrunk, or the file system reads in parts
        bytes.clear();
        file.take(LARGE).read_to_end(&mut bytes)?;
    }
    Ok(bytes)
}

/// Returns a line for an ignore file that matches this path; `*` stands for what is not UTF-8.
pub(super) fn pattern(path: &Path) -> String {
    let escape = |c: char| match c {
        char::REPLACEMENT_CHARACTER => "*".to_owned(),
        '*' | '?' | '[' | ']' | '{' | '}' | '\\' => format!("\\{c}"),
        c => c.to_string(),
    };
    format!("/{}", path.to_string_lossy().chars().map(escape).collect::<String>())
}
