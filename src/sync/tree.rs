//! The only module that reads a project's files: what belongs to it (`ignore`), with which contents, and as a tar
//! stream.

mod tee;

use crate::error::Error;
use crate::sync::manifest::{Entry, Manifest, Part};
use crate::sync::outputs::KEEP;
use crate::text::digest::{Hash, Hasher, hash_each, hex};
use ignore::WalkBuilder;
use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::ops::Range;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use tee::{Out, Piece, Streams};
use tokio::sync::mpsc;

/// Where the entries stand in the tar stream, where the manifest does, and the names of the links that come; the names of files
/// stand behind them, in `f1`, `f2` and so on. `ship_put.sh` knows them.
const ENTRIES: &str = "t";
const MANIFEST: &str = "m";
const LINKS: &str = "l";
const FILES: &str = "f";

/// After so many bytes of files, or so many files, their names follow.
const LISTED: (u64, usize) = (8 << 20, 1000);

/// Bytes of a file that are read at once.
const BUFFER: usize = 256 * 1024;

/// A file with fewer bytes is hashed beside others.
const SMALL: u64 = 64 * 1024;

/// How many files a thread takes at a time. Together they should find room in a processor's cache.
const TOGETHER: usize = 16;

/// What stands behind a file in a tar stream: zeros up to the next block.
fn padding(size: u64) -> &'static [u8] {
    const BLOCK: usize = 512;
    &[0; BLOCK][..(BLOCK - size as usize % BLOCK) % BLOCK]
}

/// Why a file that was read cannot be sent.
const CHANGED: &str = "it was changed while it was shipped";

/// A project as it is on the operator's machine.
#[derive(Debug, Clone)]
pub struct Tree {
    /// Its folder.
    pub root: PathBuf,
    /// What it consists of.
    pub manifest: Arc<Manifest>,
    /// [`Manifest::tree_hash`] of that, which each of many nodes is asked for.
    pub hash: String,
    streams: Arc<Streams<Part>>,
}

impl Tree {
    /// Reads a project. `.git` and folders that outputs were fetched into never belong to it; `.gitignore` and `.hvdctlignore` hold.
    ///
    /// # Errors
    /// When a file cannot be read, or a name is not UTF-8.
    pub fn read(root: &Path) -> Result<Tree, Error> {
        let mut manifest = Manifest::default();
        let mut files = Vec::new();
        // `hvdctl train . >out.log`: a file that grows while it is shipped, and no part of the program
        let own_output: Vec<(u64, u64)> = ["/proc/self/fd/1", "/proc/self/fd/2"]
            .iter()
            .filter_map(|fd| fs::metadata(fd).ok())
            .map(|meta| (meta.dev(), meta.ino()))
            .collect();
        let walk = WalkBuilder::new(root)
            .hidden(false)
            .ignore(false)
            .parents(false)
            .git_global(false)
            .git_exclude(false)
            .require_git(false)
            .add_custom_ignore_filename(".hvdctlignore")
            // what was fetched into the project is no part of it
            .filter_entry(|entry| {
                entry.file_name() != ".git"
                    && entry.file_name() != KEEP
                    && (entry.depth() == 0 || is_file(entry) || !entry.path().join(KEEP).is_dir())
            })
            .build();
        for found in walk {
            let found = found.map_err(|e| Error::Here(format!("cannot read the project: {e}")))?;
            let path = found.path();
            let Ok(relative) = path.strip_prefix(root) else { continue };
            let Some(name) = relative.to_str() else {
                return Err(Error::usage(
                    format!("the project has a file whose name is not UTF-8: {}", relative.display()),
                    format!("rename it, or leave it out by this line in .hvdctlignore: {}", pattern(relative)),
                ));
            };
            if name.is_empty() {
                continue;
            }
            let unreadable = |e: io::Error| Error::Here(format!("cannot read {}: {e}", path.display()));
            let meta = fs::symlink_metadata(path).map_err(unreadable)?;
            if own_output.contains(&(meta.dev(), meta.ino())) {
                continue;
            }
            let mode = meta.permissions().mode() & 0o7777;
            let entry = if meta.is_symlink() {
                let target = fs::read_link(path).map_err(unreadable)?;
                let target = target.into_os_string().into_string().map_err(|_| {
                    Error::usage(
                        format!("the project has a link whose target is not UTF-8: {}", relative.display()),
                        format!(
                            "point it elsewhere, or leave it out by this line in .hvdctlignore: {}",
                            pattern(relative)
                        ),
                    )
                })?;
                Entry::Link { target }
            } else if meta.is_dir() {
                Entry::Folder { mode }
            } else if meta.is_file() {
                files.push((name.to_owned(), meta.len()));
                Entry::File { hash: [0; 32], mode, size: 0 }
            } else {
                continue; // sockets, pipes and devices are no part of a program
            };
            manifest.0.insert(name.to_owned(), entry);
        }
        for (name, read) in hash_all(root, files) {
            let (read_hash, read_size) =
                read.map_err(|e| Error::Here(format!("cannot read {}: {e}", root.join(&name).display())))?;
            if let Some(Entry::File { hash, size, .. }) = manifest.0.get_mut(&name) {
                (*hash, *size) = (read_hash, read_size);
            }
        }
        let hash = manifest.tree_hash();
        Ok(Tree { root: root.to_owned(), manifest: Arc::new(manifest), hash, streams: Arc::default() })
    }

    /// The manifest and these entries as a tar stream; whoever wants the same at the same time has it from the same reading.
    pub fn tar(&self, part: Part) -> mpsc::Receiver<Piece> {
        let (tree, wanted) = (self.clone(), part.clone());
        self.streams.read(part, move |out| tree.write_tar(&wanted, out))
    }

    fn write_tar(&self, part: &Part, out: &mut Out<'_>) -> io::Result<()> {
        let mut tar = tar::Builder::new(out);
        let header = |kind, mode, size| {
            let mut header = tar::Header::new_gnu();
            header.set_uid(0);
            header.set_gid(0);
            header.set_entry_type(kind);
            header.set_mode(mode);
            header.set_size(size);
            header
        };
        let list = |tar: &mut tar::Builder<_>, name: &str, text: &[u8]| {
            let mut head = header(tar::EntryType::Regular, 0o600, text.len() as u64);
            tar.append_data(&mut head, name, text)
        };
        list(&mut tar, MANIFEST, &self.manifest.text())?;
        list(&mut tar, LINKS, &self.manifest.links(part))?;
        let (mut files, mut lists) = (Files::default(), 1..);
        let mut end_list = |tar: &mut tar::Builder<_>, files: &mut Files| {
            let number = lists.next().unwrap_or_default();
            list(tar, &format!("{FILES}{number}"), &std::mem::take(files).names)
        };
        for (name, entry) in self.manifest.those(part) {
            let path = self.root.join(name);
            let with_path = |e: io::Error| io::Error::new(e.kind(), format!("{}: {e}", path.display()));
            let packed = format!("{ENTRIES}/{name}");
            match entry {
                Entry::File { mode, size, .. } => {
                    let file = File::open(&path).map_err(with_path)?;
                    let meta = file.metadata().map_err(with_path)?;
                    let mut head = header(tar::EntryType::Regular, *mode, *size);
                    head.set_mtime(seconds(&meta));
                    // the crate has 8 KiB at once, and copies them
                    tar.append_data(&mut head, packed, io::empty()).map_err(with_path)?;
                    let read = tar.get_mut().read_from(&file, *size).map_err(with_path)?;
                    if meta.len() != *size || read != *size {
                        return Err(with_path(io::Error::other(CHANGED)));
                    }
                    tar.get_mut().write_all(padding(*size))?;
                    files.push(name, *size);
                    if files.is_long() {
                        end_list(&mut tar, &mut files)?;
                    }
                }
                Entry::Folder { mode } => {
                    let mut head = header(tar::EntryType::Directory, *mode, 0);
                    tar.append_data(&mut head, packed, io::empty()).map_err(with_path)?;
                }
                Entry::Link { target } => {
                    let mut head = header(tar::EntryType::Symlink, 0o777, 0);
                    tar.append_link(&mut head, packed, target).map_err(with_path)?;
                }
            }
        }
        end_list(&mut tar, &mut files)?;
        tar.finish()
    }
}

/// Files that went into a stream since the last list of them.
#[derive(Debug, Default)]
struct Files {
    /// `./NAME` and a NUL each.
    names: Vec<u8>,
    count: usize,
    bytes: u64,
}

impl Files {
    fn push(&mut self, name: &str, bytes: u64) {
        self.names.extend_from_slice(format!("./{name}\0").as_bytes());
        self.count += 1;
        self.bytes += bytes;
    }

    fn is_long(&self) -> bool {
        self.bytes >= LISTED.0 || self.count >= LISTED.1
    }
}

fn is_file(entry: &ignore::DirEntry) -> bool {
    entry.file_type().is_some_and(|kind| kind.is_file())
}

fn seconds(meta: &fs::Metadata) -> u64 {
    let modified = meta.modified().ok().and_then(|t| t.duration_since(std::time::UNIX_EPOCH).ok());
    modified.map(|d| d.as_secs()).unwrap_or_default()
}

/// Hash and bytes of a file.
type Hashed = (Hash, u64);

/// Reads files, each with its size, on as many threads as this machine has processors.
fn hash_all(root: &Path, files: Vec<(String, u64)>) -> Vec<(String, io::Result<Hashed>)> {
    let (small, large): (Vec<_>, Vec<_>) = files.into_iter().partition(|(_, size)| *size < SMALL);
    let groups: Vec<_> = large.chunks(1).chain(small.chunks(TOGETHER)).collect();
    let next = AtomicUsize::new(0);
    let work = || {
        let (mut read, mut buffer) = (Vec::new(), Vec::new());
        while let Some(group) = groups.get(next.fetch_add(1, Ordering::Relaxed)) {
            let paths: Vec<PathBuf> = group.iter().map(|(name, _)| root.join(name)).collect();
            let names = group.iter().map(|(name, _)| name.clone());
            read.extend(names.zip(hash_group(&paths, &mut buffer)));
        }
        read
    };
    let threads = thread::available_parallelism().map_or(1, Into::into).min(groups.len());
    thread::scope(|scope| {
        let working: Vec<_> = (0..threads).map(|_| scope.spawn(work)).collect();
        working.into_iter().flat_map(|one| one.join().unwrap_or_default()).collect()
    })
}

/// Hash in hex and bytes of a file.
pub(super) fn hash(path: &Path) -> io::Result<(String, u64)> {
    hash_through(&mut Vec::new(), path).map(|(hash, size)| (hex(&hash), size))
}

/// Hashes one file, or several small ones side by side. The buffer serves for many: to get one takes longer than to hash a small
/// file.
fn hash_group(paths: &[PathBuf], buffer: &mut Vec<u8>) -> Vec<io::Result<Hashed>> {
    if let [path] = paths {
        return vec![hash_through(buffer, path)];
    }
    buffer.clear();
    let read = paths.iter().map(|path| {
        let start = buffer.len();
        File::open(path)?.read_to_end(buffer)?;
        Ok(start..buffer.len())
    });
    let read: Vec<io::Result<Range<usize>>> = read.collect();
    let contents: Vec<&[u8]> =
        read.iter().map(|place| place.as_ref().map_or(&[][..], |place| &buffer[place.clone()])).collect();
    let hashes = hash_each(&contents);
    read.into_iter().zip(hashes).map(|(place, hash)| Ok((hash, place?.len() as u64))).collect()
}

/// Hashes a file of any size piece by piece.
fn hash_through(buffer: &mut Vec<u8>, path: &Path) -> io::Result<Hashed> {
    let mut file = File::open(path)?;
    let (mut hasher, mut size) = (Hasher::default(), 0);
    buffer.resize(BUFFER, 0);
    loop {
        let n = file.read(buffer)?;
        if n == 0 {
            return Ok((hasher.finish(), size));
        }
        hasher.update(&buffer[..n]);
        size += n as u64;
    }
}

/// A line for an ignore file that matches this path alone, or hardly more: each byte that is no UTF-8 is any one byte.
fn pattern(path: &Path) -> String {
    let mut pattern = String::from("/");
    for chunk in path.as_os_str().as_encoded_bytes().utf8_chunks() {
        for c in chunk.valid().chars() {
            if matches!(c, '*' | '?' | '[' | ']' | '{' | '}' | '\\') {
                pattern.push('\\');
            }
            pattern.push(c);
        }
        pattern.extend(chunk.invalid().iter().map(|_| '?'));
    }
    pattern
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sync::manifest::Had;

    #[test]
    fn what_is_read() {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
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

        let Manifest(entries) = &*Tree::read(folder.path()).unwrap().manifest;
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
        let folder = tempfile::tempdir().unwrap();
        let odd = Path::new(std::ffi::OsStr::from_bytes(b"data [1]/caf\xe9?.txt"));
        fs::create_dir(folder.path().join("data [1]")).unwrap();
        fs::write(folder.path().join(odd), "").unwrap();
        fs::write(folder.path().join("data [1]/cafe.txt"), "").unwrap();
        let said = Tree::read(folder.path()).err().unwrap().to_string();
        let line = said.split(".hvdctlignore: ").nth(1).unwrap_or_else(|| panic!("{said}"));
        fs::write(folder.path().join(".hvdctlignore"), format!("{line}\n")).unwrap();
        let tree = Tree::read(folder.path()).unwrap();
        let names: Vec<&str> = tree.manifest.0.keys().map(String::as_str).collect();
        assert_eq!(names, [".hvdctlignore", "data [1]", "data [1]/cafe.txt"]);
    }

    #[test]
    fn every_file_has_its_own_hash_whatever_its_size() {
        let folder = tempfile::tempdir().unwrap();
        let small = SMALL as usize;
        let sizes = [0, 1, 129, small - 1, small, small + 1, 3 * BUFFER + 7];
        let files: Vec<(String, Vec<u8>)> = (0..5 * TOGETHER)
            .map(|i| (format!("file{i}"), vec![i as u8; sizes[i % sizes.len()]]))
            .inspect(|(name, contents)| fs::write(folder.path().join(name), contents).unwrap())
            .collect();
        let mut names: Vec<(String, u64)> =
            files.iter().map(|(name, contents)| (name.clone(), contents.len() as u64)).collect();
        names.insert(TOGETHER / 2, ("nowhere".into(), 0));
        let mut hashed: std::collections::BTreeMap<_, _> = hash_all(folder.path(), names).into_iter().collect();
        assert_eq!(hashed.remove("nowhere").unwrap().unwrap_err().kind(), io::ErrorKind::NotFound);
        assert_eq!(hashed.len(), files.len());
        for (name, contents) in files {
            let expected = crate::text::digest::hash(&contents);
            assert_eq!(hashed[&name].as_ref().unwrap(), &(expected, contents.len() as u64), "{name}");
            assert_eq!(hash(&folder.path().join(name)).unwrap(), (hex(&expected), contents.len() as u64));
        }
    }

    #[test]
    fn a_file_that_changes_or_vanishes_breaks_the_stream_off() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("data");
        fs::write(&file, [7; 100_000]).unwrap();
        let tree = Tree::read(folder.path()).unwrap();
        let all = tree.manifest.missing(&Had::default());
        let end = |tree: &Tree| {
            let mut pieces = tree.tar(all.clone());
            while let Some(piece) = pieces.blocking_recv() {
                piece.map_err(|e| e.to_string())?;
            }
            Ok::<(), String>(())
        };
        assert!(end(&tree).is_ok());
        for size in [99_999, 100_001] {
            fs::write(&file, vec![7; size]).unwrap();
            let words = end(&tree).unwrap_err();
            assert!(words.contains("data") && words.contains(CHANGED), "{words}");
        }
        fs::remove_file(&file).unwrap();
        assert!(end(&tree).unwrap_err().contains("No such file"));
    }
}
