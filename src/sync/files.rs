//! Reads the operator's project: which files belong to it, their contents, and the tar stream that carries them.

use crate::error::Error;
use crate::sync::contents::{BLOCK, ContentStore, Range, is_gone};
use crate::sync::difference::Differences;
use crate::sync::ignored::IgnoreRules;
use crate::sync::manifest::{Difference, Manifest, ManifestEntry, Selection};
pub(crate) use crate::sync::tree::NAMED;
use crate::sync::tree::{Found, FoundState, pattern, read_tree, unreadable};
use crate::text::digest::{Hash, finish, hasher};
use crate::text::nodeset::printable;
use crate::text::units::count;
use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{self, BufRead, BufReader, Read, Write};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Once};
use std::thread;
use tokio::sync::mpsc::{Receiver, Sender, channel};

/// The names of the entries' directory, of the manifest and, with a number, of the lists in the tar stream;
/// `upload/apply.sh` expects them.
const ENTRIES: &str = "t";
const MANIFEST: &str = "m";
const LIST: &str = "f";

/// Bytes in one piece of the tar stream.
const PIECE: usize = 256 * 1024;
/// Number of pieces that are read ahead of a node.
const PIECES_AHEAD: usize = 8;

/// A list of names follows the files in the stream after so many bytes of contents or of names: the node hashes them
/// while it receives more. It starts a few programs for each list.
const LISTED_BYTES: u64 = 32 << 20;
const LISTED_NAMES: usize = 64 << 10;

/// The reason why a file that has changed can no longer be sent.
const CHANGED: &str = "the file changes while it is uploaded";

/// A project's files on the operator's machine.
#[derive(Debug, Clone)]
pub struct ProjectFiles {
    pub(super) root: PathBuf,
    /// The files that belong to the project.
    pub manifest: Arc<Manifest>,
    /// Hash of the manifest, [`Manifest::hash`].
    pub hash: String,
    /// Notes about properties of the project that may surprise the operator.
    pub notes: Vec<String>,
    /// The notes that were sent; `refresh` keeps them.
    pub(super) noted: Arc<Noted>,
    /// The contents of each file of the manifest, by the positions of all entries.
    contents: Arc<FileContents>,
    /// The results of comparisons with this manifest.
    pub(crate) differences: Arc<Differences>,
}

/// Notes of which an upload to several nodes sends one.
#[derive(Debug)]
pub(super) struct Noted {
    /// The notes about properties that may surprise the operator.
    pub(super) project: Once,
    /// The note about large files and directories.
    pub(super) size: Once,
}

type FileContents = Vec<Option<ContentStore>>;

impl ProjectFiles {
    /// Reads and hashes a project on as many threads as there are processors. `.git` and directories that outputs were
    /// fetched into are left out, as is what git would ignore and what `.hvdctlignore` names.
    ///
    /// # Errors
    /// If a file or a line of an ignore file cannot be read, or a name is not UTF-8.
    pub fn read(root: &Path) -> Result<ProjectFiles, Error> {
        let root = &fs::canonicalize(root).map_err(|e| unreadable(root, &e))?;
        ProjectFiles::read_by(root, Some(IgnoreRules::of_project(root)?))
    }

    /// Reads the copy of a project that was uploaded, to which no ignore file outside of it applies.
    ///
    /// # Errors
    /// As [`ProjectFiles::read`].
    pub fn read_copy(root: &Path) -> Result<ProjectFiles, Error> {
        ProjectFiles::read_by(root, Some(IgnoreRules::of_copy(root)))
    }

    /// Reads and hashes everything in a directory of data: no ignore file applies.
    ///
    /// # Errors
    /// As [`ProjectFiles::read`].
    pub fn read_data(root: &Path) -> Result<ProjectFiles, Error> {
        let root = &fs::canonicalize(root).map_err(|e| unreadable(root, &e))?;
        ProjectFiles::read_by(root, None)
    }

    fn read_by(root: &Path, rules: Option<IgnoreRules>) -> Result<ProjectFiles, Error> {
        let rules = rules.map(Arc::new);
        let mut found = read_tree(root, rules.clone())?;
        found.sort_unstable_by(|a, b| a.name.cmp(&b.name));
        let (mut vanished, mut contents) = (Vec::new(), FileContents::with_capacity(found.len()));
        let read = found.into_iter().filter_map(|Found { name, entry, state }| match state {
            FoundState::Vanished => {
                vanished.push(name);
                None
            }
            FoundState::Read(of_file) => {
                contents.push(of_file);
                Some((name, entry))
            }
        });
        let entries = read.collect();
        let notes = rules.and_then(|rules| rules.note()).into_iter().chain(note_of_vanished(&mut vanished)).collect();
        let noted = Arc::new(Noted { project: Once::new(), size: Once::new() });
        Ok(ProjectFiles::new(root.to_owned(), Manifest(entries), contents, notes, noted))
    }

    fn new(
        root: PathBuf,
        manifest: Manifest,
        contents: FileContents,
        notes: Vec<String>,
        noted: Arc<Noted>,
    ) -> ProjectFiles {
        let (hash, differences) = (manifest.hash(), Arc::default());
        let (manifest, contents) = (Arc::new(manifest), Arc::new(contents));
        ProjectFiles { root, manifest, hash, notes, noted, contents, differences }
    }

    /// Reads what has changed since, and cannot be sent as it was read. Copies these files, so that the next upload can
    /// send them; its notes name those that have vanished.
    ///
    /// # Errors
    /// If a file cannot be read or copied.
    pub fn refresh(&self) -> Result<ProjectFiles, Error> {
        let (mut entries, mut contents) = (BTreeMap::new(), FileContents::new());
        let mut vanished = Vec::new();
        for ((name, entry), earlier) in self.manifest.0.iter().zip(&*self.contents) {
            match (entry, earlier) {
                (ManifestEntry::File { hash, size, .. }, Some(earlier)) => {
                    let Some((entry, copy)) = self.read_again(name, (hash, *size), earlier)? else {
                        vanished.push(name.clone());
                        continue;
                    };
                    entries.insert(name.clone(), entry.unwrap_or_else(|| self.manifest.0[name].clone()));
                    contents.push(Some(copy));
                }
                _ => {
                    entries.insert(name.clone(), entry.clone());
                    contents.push(earlier.clone());
                }
            }
        }
        let notes = note_of_vanished(&mut vanished).into_iter().collect();
        Ok(ProjectFiles::new(self.root.clone(), Manifest(entries), contents, notes, Arc::clone(&self.noted)))
    }

    /// Returns the contents of a file, copied if those that were hashed are lost, with its new entry in that case;
    /// `None` if it has vanished.
    fn read_again(
        &self,
        name: &str,
        (hash, size): (&Hash, u64),
        earlier: &ContentStore,
    ) -> Result<Option<(Option<ManifestEntry>, ContentStore)>, Error> {
        let path = self.root.join(name);
        let copied = match earlier.is_intact(&path, hash, size) {
            Ok(true) => return Ok(Some((None, earlier.clone().whole()))),
            Ok(false) => ContentStore::hash_copy(&path),
            Err(e) => Err(e),
        };
        match copied {
            Ok((hash, size, mode, copy)) => Ok(Some((Some(ManifestEntry::File { hash, mode, size }), copy))),
            Err(e) if is_gone(&e) => Ok(None),
            Err(e) => {
                let (path, copies) = (path.display(), std::env::temp_dir());
                let message =
                    format!("cannot copy {path} to {}, as it changes while it is uploaded: {e}", copies.display());
                let hint = format!(
                    "set TMPDIR to a directory with more space, or exclude it with this line in .hvdctlignore: {}",
                    pattern(Path::new(name))
                );
                Err(Error::usage(message, hint))
            }
        }
    }

    /// Returns the same project with these of its entries only.
    pub(super) fn with(&self, manifest: Manifest) -> ProjectFiles {
        let hash = manifest.hash();
        let all = self.manifest.0.keys().zip(&*self.contents);
        let contents = all.filter(|(name, _)| manifest.0.contains_key(*name)).map(|(_, contents)| contents.clone());
        let (contents, differences) = (Arc::new(contents.collect()), Arc::default());
        ProjectFiles { manifest: Arc::new(manifest), hash, contents, differences, ..self.clone() }
    }

    /// Sends the manifest and the selected entries as a tar stream, read on a thread of its own. The stream ends with
    /// an error if the contents of a file cannot be had any more as they were hashed, and early if the receiver is
    /// dropped.
    pub fn stream(&self, selection: Selection) -> Receiver<io::Result<Vec<u8>>> {
        self.send(move |files, pieces| files.write_tar(&selection, pieces))
    }

    /// Sends what `upload/prepare.sh` reads in the same way: what the node removes, and the files that it keeps of an
    /// interrupted push.
    pub(crate) fn prepare(&self, difference: &Arc<Difference>, kept: Selection) -> Receiver<io::Result<Vec<u8>>> {
        let difference = Arc::clone(difference);
        self.send(move |files, pieces| {
            for name in difference.gone.split_terminator('\0') {
                write!(pieces, "gone {name}\0")?;
            }
            for record in BufReader::new(files.manifest.records(&kept)).split(0) {
                pieces.write_all(b"kept ")?;
                pieces.write_all(&record?)?;
                pieces.write_all(&[0])?;
            }
            Ok(())
        })
    }

    /// Sends all entries, and nothing else, in the same way.
    pub fn archive(&self) -> Receiver<io::Result<Vec<u8>>> {
        self.send(|files, pieces| {
            let mut tar = tar::Builder::new(pieces);
            let mut entries = files.manifest.0.iter().enumerate();
            // engines read no entries with holes
            entries
                .try_for_each(|(at, (name, entry))| files.append(&mut tar, (at, name.as_str(), entry), name, false))?;
            tar.finish()
        })
    }

    pub(crate) fn send(
        &self,
        write: impl FnOnce(&ProjectFiles, &mut Pieces) -> io::Result<()> + Send + 'static,
    ) -> Receiver<io::Result<Vec<u8>>> {
        let (sender, receiver) = channel(PIECES_AHEAD);
        let files = self.clone();
        thread::spawn(move || {
            let mut pieces = Pieces { sender, piece: Vec::new() };
            let written = write(&files, &mut pieces).and_then(|()| pieces.flush());
            if let Err(error) = written {
                let _ = pieces.sender.blocking_send(Err(error));
            }
        });
        receiver
    }

    fn write_tar(&self, selection: &Selection, out: &mut impl Write) -> io::Result<()> {
        let size = |entry: &ManifestEntry| matches!(entry, ManifestEntry::File { .. }).then(|| entry.size());
        let entries = self.manifest.select_at(selection);
        let entries = entries.map(|(at, name, entry)| (name.as_str(), size(entry), (at, entry)));
        let records = (self.manifest.length(selection), self.manifest.records(selection));
        write_stream(out, records, entries, |tar, name, (at, entry), in_tar| {
            self.append(tar, (at, name, entry), in_tar, true)
        })
    }

    /// Returns the bytes of the selected files that are sent and stored: those of holes are not.
    pub fn stored(&self, selection: &Selection) -> u64 {
        self.manifest.select_at(selection).map(|(at, _, entry)| self.stored_at(at, entry)).sum()
    }

    /// Returns these bytes of the entry at a position.
    pub(crate) fn stored_at(&self, at: usize, entry: &ManifestEntry) -> u64 {
        self.ranges(at).map_or(entry.size(), |ranges| ranges.iter().map(|(_, length)| length).sum())
    }

    /// Returns where the entry at a position has data, if it is a file with holes.
    pub(crate) fn ranges(&self, at: usize) -> Option<&[Range]> {
        self.contents(at)?.ranges()
    }

    /// Returns the contents of the entry at a position, if it is a file.
    fn contents(&self, at: usize) -> Option<&ContentStore> {
        self.contents.get(at)?.as_ref()
    }

    /// Returns the permission bits and the first `most` bytes of a file, or of that to which a link leads, if it is in
    /// the manifest and can be read.
    pub fn head(&self, name: &str, most: u64) -> Option<(u32, Vec<u8>)> {
        let path = fs::canonicalize(self.root.join(name)).ok()?;
        let inside = path.strip_prefix(&self.root).ok()?.to_str()?;
        let Some(ManifestEntry::File { mode, .. }) = self.manifest.0.get(inside) else { return None };
        let mut head = Vec::new();
        File::open(&path).ok()?.take(most).read_to_end(&mut head).ok()?;
        Some((*mode, head))
    }

    /// Returns when the file at a position was changed last, in seconds since 1970.
    pub(crate) fn mtime(&self, at: usize) -> u64 {
        self.contents(at).map_or(0, |contents| contents.mtime)
    }

    /// Appends an entry, named by its position, its name and itself.
    fn append(
        &self,
        tar: &mut tar::Builder<impl Write>,
        (at, name, entry): (usize, &str, &ManifestEntry),
        in_tar: &str,
        keeps_holes: bool,
    ) -> io::Result<()> {
        let appended = match entry {
            ManifestEntry::File { mode, size, .. } => {
                let ranges = self.ranges(at).filter(|_| keeps_holes);
                let header = file_header(*mode, *size, self.mtime(at));
                let append = |reader: &mut dyn Read| append_file(tar, header, in_tar, ranges, reader);
                return self.send_file((at, name, entry), ranges, append);
            }
            ManifestEntry::Directory { mode } => append_directory(tar, in_tar, *mode),
            ManifestEntry::Link { target } => append_link(tar, in_tar, target),
        };
        appended.map_err(|e| self.at(name, &e))
    }

    /// Passes the contents of a file to `write`, or what is in these ranges. It is named by its position, its name and
    /// its entry.
    ///
    /// # Errors
    /// Returns the errors of `write`, or an error if the contents are no longer those that were hashed.
    pub(crate) fn send_file(
        &self,
        (at, name, entry): (usize, &str, &ManifestEntry),
        ranges: Option<&[Range]>,
        write: impl FnOnce(&mut dyn Read) -> io::Result<()>,
    ) -> io::Result<()> {
        let changed = || Err(io::Error::new(io::ErrorKind::InvalidData, CHANGED));
        let read = match (entry, self.contents(at)) {
            (ManifestEntry::File { hash, size, .. }, Some(contents)) => {
                contents.send(&self.root.join(name), (hash, *size), ranges, write)
            }
            _ => changed().map(|()| false),
        };
        read.and_then(|is_same| if is_same { Ok(()) } else { changed() }).map_err(|e| self.at(name, &e))
    }

    /// Adds to an error which file it is about.
    fn at(&self, name: &str, error: &io::Error) -> io::Error {
        io::Error::new(error.kind(), format!("{}: {error}", self.root.join(name).display()))
    }
}

/// Writes the tar stream that `upload/receive.sh` expects. `records`: those of all entries, behind their length;
/// `entries`: names, the sizes of files, and what `append` takes of each.
pub(crate) fn write_stream<'a, W: Write, T>(
    out: W,
    (length, records): (u64, impl Read),
    entries: impl Iterator<Item = (&'a str, Option<u64>, T)>,
    mut append: impl FnMut(&mut tar::Builder<W>, &str, T, &str) -> io::Result<()>,
) -> io::Result<()> {
    let mut tar = tar::Builder::new(out);
    append_text(&mut tar, MANIFEST, length, records)?;
    let (mut names, mut bytes, mut lists) = (String::new(), 0, 0);
    let mut end_list = |tar: &mut tar::Builder<_>, names: &mut String| {
        lists += 1;
        let names = std::mem::take(names);
        append_text(tar, &format!("{LIST}{lists}"), names.len() as u64, names.as_bytes())
    };
    for (name, size, entry) in entries {
        append(&mut tar, name, entry, &format!("{ENTRIES}/{name}"))?;
        if let Some(size) = size {
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

/// Returns the header of a file.
pub(crate) fn file_header(mode: u32, size: u64, mtime: u64) -> tar::Header {
    let mut header = header(tar::EntryType::Regular, mode, size);
    header.set_mtime(mtime);
    header
}

/// Appends a file with the header of a whole one. With ranges, `contents` has only what is in these, and the file gets
/// holes elsewhere: in GNU's form, whose first parts are in the header and the others in blocks before the contents.
pub(crate) fn append_file(
    tar: &mut tar::Builder<impl Write>,
    mut header: tar::Header,
    in_tar: &str,
    ranges: Option<&[Range]>,
    contents: &mut dyn Read,
) -> io::Result<()> {
    let Some(ranges) = ranges else { return tar.append_data(&mut header, in_tar, contents) };
    let (size, stored) = (header.size()?, ranges.iter().map(|(_, length)| length).sum());
    header.set_entry_type(tar::EntryType::GNUSparse);
    header.set_size(stored);
    let gnu = header.as_gnu_mut().ok_or(io::ErrorKind::InvalidData)?;
    gnu.set_real_size(size);
    // a part without bytes at the end gives the file its size
    let mut parts = ranges.iter().copied().chain([(size, 0)]).peekable();
    let set = |sparse: &mut tar::GnuSparseHeader, (offset, length): Range| {
        sparse.set_offset(offset);
        sparse.set_length(length);
    };
    gnu.sparse.iter_mut().zip(&mut parts).for_each(|(sparse, part)| set(sparse, part));
    gnu.set_is_extended(parts.peek().is_some());
    let mut blocks = Vec::new();
    while parts.peek().is_some() {
        let mut block = tar::GnuExtSparseHeader::new();
        block.sparse.iter_mut().zip(&mut parts).for_each(|(sparse, part)| set(sparse, part));
        block.set_is_extended(parts.peek().is_some());
        blocks.extend_from_slice(block.as_bytes());
    }
    tar.append_data(&mut header, in_tar, (&blocks[..]).chain(contents))
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

fn append_text(tar: &mut tar::Builder<impl Write>, name: &str, length: u64, text: impl Read) -> io::Result<()> {
    tar.append_data(&mut header(tar::EntryType::Regular, 0o600, length), name, BufReader::with_capacity(BLOCK, text))
}

/// Appends a directory.
pub(crate) fn append_directory(tar: &mut tar::Builder<impl Write>, name: &str, mode: u32) -> io::Result<()> {
    tar.append_data(&mut header(tar::EntryType::Directory, mode, 0), name, io::empty())
}

/// Appends a symbolic link. Its target is written byte for byte, which [`tar::Builder::append_link`] does not do: it
/// removes `//` and `/./`.
pub(crate) fn append_link(tar: &mut tar::Builder<impl Write>, name: &str, target: &str) -> io::Result<()> {
    let mut header = header(tar::EntryType::Symlink, 0o777, 0);
    if header.set_link_name_literal(target).is_err() {
        // too long for the header: an entry before it has the target, ended by NUL
        let mut long = self::header(tar::EntryType::GNULongLink, 0o644, target.len() as u64 + 1);
        tar.append_data(&mut long, "././@LongLink", target.as_bytes().chain(&[0][..]))?;
    }
    tar.append_data(&mut header, name, io::empty())
}

/// Sends what is written in pieces of [`PIECE`] bytes.
pub(crate) struct Pieces {
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

/// Returns a note about files that were removed while they were read or sent.
fn note_of_vanished(names: &mut [String]) -> Option<String> {
    names.sort_unstable();
    let named = names.iter().take(NAMED).map(|name| printable(name)).collect::<Vec<_>>().join(", ");
    let more = if names.len() > NAMED { ", …" } else { "" };
    (!names.is_empty())
        .then(|| format!("left out {} removed during the upload: {named}{more}", count(names.len(), "file")))
}

/// Returns the hash and the size of a file.
pub(super) fn hash_file(path: &Path) -> io::Result<(Hash, u64)> {
    let mut hasher = hasher();
    let size = io::copy(&mut BufReader::with_capacity(BLOCK, File::open(path)?), &mut hasher)?;
    Ok((finish(&hasher), size))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::ffi::{OsStrExt, OsStringExt};
    use std::os::unix::fs::PermissionsExt;

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
        assert_eq!(entries["a b.py"], ManifestEntry::File { hash, mode: 0o750, size: 6 });
        assert_eq!(entries["out of it"], ManifestEntry::Link { target: "/etc/passwd".into() });
    }

    #[test]
    fn a_name_that_is_not_utf_8_can_be_left_out_by_the_line_in_the_hint() {
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
    fn all_names_that_are_not_utf_8_are_named_at_once() {
        let odd =
            |name: &str| std::ffi::OsString::from_vec(name.replace('?', "\u{e9}").chars().map(|c| c as u8).collect());
        for (files, links, words) in [
            (
                &["caf?1", "caf?2", "d/caf?3"][..],
                &[][..],
                "3 names that are not UTF-8: caf\u{fffd}1, caf\u{fffd}2, d/caf\u{fffd}3",
            ),
            (
                &["a?", "b?", "c?", "d?", "e?", "f?"],
                &[],
                "6 names that are not UTF-8: a\u{fffd}, b\u{fffd}, c\u{fffd}, d\u{fffd}, e\u{fffd}, …",
            ),
            // what is in a directory is renamed with it, or after it
            (&["dir?/a", "dir?/b?", "dir?/c/d"], &[], "1 name that is not UTF-8: dir\u{fffd}"),
            (&["a"], &["link", "other"], "2 links to names that are not UTF-8: link, other"),
            (&["a?"], &["link"], "1 name that is not UTF-8: a\u{fffd}, and 1 link to a name that is not UTF-8: link"),
        ] {
            let dir = tempfile::tempdir().unwrap();
            for name in files {
                let path = dir.path().join(odd(name));
                fs::create_dir_all(path.parent().unwrap()).unwrap();
                fs::write(path, "").unwrap();
            }
            for name in links {
                std::os::unix::fs::symlink(odd("x?"), dir.path().join(name)).unwrap();
            }
            let data = ProjectFiles::read_data(dir.path()).err().unwrap();
            let project = ProjectFiles::read(dir.path()).err().unwrap();
            let [data, project] = [data, project].map(|error| error.to_string());
            assert!(data.contains(&format!("the data have {words}")), "{data}");
            assert!(project.contains(&format!("the project has {words}")), "{project}");
            let command =
                format!("convmv -r --notest -f ISO-8859-1 -t UTF-8 {}", dir.path().canonicalize().unwrap().display());
            assert_eq!(data.contains(&command), files.iter().any(|name| name.contains('?')), "{data}");
            assert!(!data.contains(".hvdctlignore"), "{data}");
            assert_eq!(project.contains(".hvdctlignore"), files.len() < 6, "{project}");
        }
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
            let ManifestEntry::File { hash, size, .. } = entry else { panic!("{entry:?}") };
            assert_eq!((*hash, *size), (crate::text::digest::hash(&contents), contents.len() as u64), "{name}");
        }
    }

    /// Reads the whole stream, with the error that it ends with.
    fn end(files: &ProjectFiles) -> Result<Vec<u8>, String> {
        let mut pieces = files.stream(files.manifest.all());
        let mut stream = Vec::new();
        while let Some(piece) = pieces.blocking_recv() {
            stream.extend(piece.map_err(|e| e.to_string())?);
        }
        Ok(stream)
    }

    #[test]
    fn the_stream_has_the_bytes_that_were_hashed() {
        let dir = tempfile::tempdir().unwrap();
        let at = |name: &str| dir.path().join(name);
        for (name, size) in [("large.log", 100_000), ("rewritten", 1000), ("shrinks", 1000), ("vanishes", 1000)] {
            fs::write(at(name), vec![b'a'; size]).unwrap();
        }
        let files = ProjectFiles::read(dir.path()).unwrap();
        let before = end(&files).unwrap();
        fs::write(at("large.log"), [vec![b'a'; 100_000], b"more".to_vec()].concat()).unwrap();
        fs::write(at("rewritten"), vec![b'b'; 1000]).unwrap();
        fs::write(at("shrinks"), "").unwrap();
        fs::remove_file(at("vanishes")).unwrap();
        assert!(end(&files).unwrap() == before);
        assert_eq!(files.refresh().unwrap().manifest, files.manifest, "nothing is lost");
    }

    #[test]
    fn what_is_lost_of_a_large_file_breaks_the_stream_off_and_is_copied_when_it_is_read_again() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("data");
        fs::write(&file, [7; 100_000]).unwrap();
        let files = ProjectFiles::read(dir.path()).unwrap();
        let mut rewritten = vec![7; 100_000];
        rewritten[99_999] = 8;
        for changed in [rewritten, vec![7; 99_999]] {
            fs::write(&file, &changed).unwrap();
            let message = end(&files).unwrap_err();
            assert!(message.contains("data") && message.contains(CHANGED), "{message}");
            let copied = files.refresh().unwrap();
            // whatever becomes of it now
            fs::write(&file, "x").unwrap();
            assert!(end(&copied).unwrap().windows(changed.len()).any(|bytes| bytes == changed));
            let hash = crate::text::digest::hash(&changed);
            assert!(
                matches!(copied.manifest.0["data"], ManifestEntry::File { hash: h, size, .. } if h == hash && size == changed.len() as u64)
            );
            assert!(copied.notes.is_empty() && copied.hash != files.hash);
        }
        fs::remove_file(&file).unwrap();
        assert!(end(&files).unwrap_err().contains(CHANGED));
        let without = files.refresh().unwrap();
        assert!(without.manifest.0.is_empty() && end(&without).is_ok());
        assert_eq!(without.notes, ["left out 1 file removed during the upload: data"]);
        // opening a pipe in its place would block
        rustix::fs::mknodat(rustix::fs::CWD, &file, rustix::fs::FileType::Fifo, 0o600.into(), 0).unwrap();
        assert!(end(&files).unwrap_err().contains(CHANGED) && files.refresh().unwrap().manifest.0.is_empty());
    }

    #[test]
    fn a_file_that_has_not_changed_since_long_is_read_once_for_each_node() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("data");
        fs::write(&file, [7; 100_000]).unwrap();
        // the ctime cannot be set
        thread::sleep(std::time::Duration::from_millis(4100));
        let files = ProjectFiles::read(dir.path()).unwrap();
        let before = fs::metadata(&file).unwrap();
        assert!(files.contents(0).is_some_and(ContentStore::is_settled) && end(&files).is_ok());
        let times = fs::FileTimes::new().set_modified(before.modified().unwrap());
        fs::write(&file, [8; 100_000]).unwrap();
        File::options().write(true).open(&file).unwrap().set_times(times).unwrap();
        assert!(end(&files).unwrap_err().contains(CHANGED), "of the same size and mtime");
    }

    #[test]
    fn more_small_files_than_are_kept_are_read_again() {
        let dir = tempfile::tempdir().unwrap();
        let contents: Vec<Vec<u8>> =
            (0..700_u32).map(|i| [vec![7; 50_000], i.to_ne_bytes().to_vec()].concat()).collect();
        for (i, contents) in contents.iter().enumerate() {
            fs::write(dir.path().join(i.to_string()), contents).unwrap();
        }
        let files = ProjectFiles::read(dir.path()).unwrap();
        assert!(end(&files).is_ok());
        for i in 0..contents.len() {
            fs::write(dir.path().join(i.to_string()), "changed").unwrap();
        }
        assert!(end(&files).unwrap_err().contains(CHANGED));
        let again = files.refresh().unwrap();
        let changed = again.manifest.0.iter().filter(|(name, entry)| files.manifest.0[*name] != **entry).count();
        assert!((1..100).contains(&changed), "{changed}");
        assert!(end(&again).is_ok());
    }
}
