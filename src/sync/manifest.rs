//! A project's manifest: names, modes and content hashes as text that the operator's machine and the nodes can compare.

use crate::text::digest::{Hash, Hasher, finish, hasher, hex, in_hex};
use std::cmp::{Ordering, Reverse};
use std::collections::{BTreeMap, BTreeSet, btree_map};
use std::fmt::Write as _;
use std::io::{self, Read, Write as _};
use std::iter::Peekable;
use std::sync::Arc;

/// An entry of a project.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ManifestEntry {
    /// A regular file.
    File {
        /// Hash of the contents.
        hash: Hash,
        /// Permission bits.
        mode: u32,
        /// Bytes.
        size: u64,
    },
    /// A symbolic link; uploaded as a link, wherever it leads.
    Link {
        /// Its target as text.
        target: String,
    },
    /// A directory.
    Directory {
        /// Permission bits.
        mode: u32,
    },
}

impl ManifestEntry {
    /// Returns the bytes of a file; 0 for others.
    pub fn size(&self) -> u64 {
        if let ManifestEntry::File { size, .. } = self { *size } else { 0 }
    }

    /// Returns type and permission bits in one number, as `stat --format %f` prints them.
    fn raw_mode(&self) -> u32 {
        match self {
            ManifestEntry::File { mode, .. } => 0o100_000 | mode,
            ManifestEntry::Directory { mode } => 0o040_000 | mode,
            // Linux has no other mode for links
            ManifestEntry::Link { .. } => 0o120_777,
        }
    }

    /// Writes its record without the name: kind, mode, and the hash of a file's contents or a link's target.
    fn write_record(&self, to: &mut String) {
        let written = match self {
            ManifestEntry::File { hash, mode, .. } => write!(to, "f {mode:o} {}", hex(hash)),
            ManifestEntry::Directory { mode } => write!(to, "d {mode:o} -"),
            ManifestEntry::Link { target } => write!(to, "l - {}", in_hex(target.as_bytes())),
        };
        // a String takes everything
        debug_assert!(written.is_ok());
    }
}

/// A project's entries by relative path, in the byte order of the names. No path is empty or starts with `/`, and the
/// directory of each entry is an entry too.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Manifest(pub BTreeMap<String, ManifestEntry>);

/// Some entries of a manifest: for each, in order, whether it is selected. Copies share their memory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Selection {
    /// 64 entries in each.
    words: Arc<Vec<u64>>,
    len: usize,
}

impl Selection {
    /// Selects none of so many entries.
    pub fn none(len: usize) -> Selection {
        Selection { words: Arc::new(vec![0; len.div_ceil(64)]), len }
    }

    fn contains(&self, at: usize) -> bool {
        self.words[at / 64] >> (at % 64) & 1 == 1
    }

    fn set(&mut self, at: usize, is_selected: bool) {
        let word = &mut Arc::make_mut(&mut self.words)[at / 64];
        *word = *word & !(1 << (at % 64)) | u64::from(is_selected) << (at % 64);
    }

    /// Returns whether each entry is selected, in order.
    pub fn flags(&self) -> impl Iterator<Item = bool> + Clone {
        (0..self.len).map(|at| self.contains(at))
    }

    /// Selects what either of two selections of the same manifest does.
    #[must_use]
    pub fn or(&self, other: &Selection) -> Selection {
        let words = self.words.iter().zip(&*other.words).map(|(one, other)| one | other);
        Selection { words: Arc::new(words.collect()), len: self.len }
    }

    /// Selects what only the first of two selections of the same manifest does.
    #[must_use]
    pub fn without(&self, other: &Selection) -> Selection {
        let words = self.words.iter().zip(&*other.words).map(|(one, other)| one & !other);
        Selection { words: Arc::new(words.collect()), len: self.len }
    }

    /// Returns whether nothing is selected.
    pub fn is_empty(&self) -> bool {
        self.words.iter().all(|word| *word == 0)
    }

    /// Returns how many entries are selected.
    pub fn count(&self) -> usize {
        self.words.iter().map(|word| word.count_ones() as usize).sum()
    }
}

/// The difference between the files on a node and a manifest.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Difference {
    /// The entries that the node lacks or has with other contents, and the directories they are in.
    pub missing: Selection,
    /// The names, each ended by NUL, that the node has to remove: those that the manifest lacks, or has as something
    /// else.
    pub gone: String,
    /// The number of entries that the manifest lacks.
    pub removed: usize,
}

/// The most bytes of the names in [`Difference::gone`].
const MOST_GONE: usize = 512 << 20;

/// Compares a manifest with that of a node, record by record, so that the latter is never held in memory.
pub struct Comparer<'a> {
    manifest: &'a Manifest,
    entries: Peekable<std::iter::Enumerate<btree_map::Iter<'a, String, ManifestEntry>>>,
    has: Selection,
    gone: String,
    removed: usize,
    last: String,
    record: String,
}

impl<'a> Comparer<'a> {
    /// Begins a comparison.
    pub fn new(manifest: &'a Manifest) -> Comparer<'a> {
        let entries = manifest.0.iter().enumerate().peekable();
        let has = Selection::none(manifest.0.len());
        Comparer { manifest, entries, has, gone: String::new(), removed: 0, last: String::new(), record: String::new() }
    }

    /// Takes the next record `KIND MODE HASH NAME` of the node. A mode `-` stands for another one than that of any
    /// entry.
    ///
    /// # Errors
    /// If it is no record, or not the next one by name.
    pub fn take(&mut self, record: &[u8]) -> io::Result<()> {
        let wrong = |why: &str| io::Error::new(io::ErrorKind::InvalidData, format!("the node's manifest {why}"));
        let record = str::from_utf8(record).map_err(|_| wrong("is not UTF-8"))?;
        let (at, _) = record.match_indices(' ').nth(2).ok_or_else(|| wrong("has a record without a name"))?;
        let (record, name) = (&record[..at], &record[at + 1..]);
        if name <= self.last.as_str() && !self.last.is_empty() {
            return Err(wrong("is not in the order of the names"));
        }
        name.clone_into(&mut self.last);
        while self.entries.next_if(|(_, (next, _))| next.as_str() < name).is_some() {}
        let is_same_kind = match self.entries.peek() {
            Some((at, (next, entry))) if next.as_str().cmp(name) == Ordering::Equal => {
                self.record.clear();
                entry.write_record(&mut self.record);
                self.has.set(*at, record == self.record);
                record.as_bytes().first() == self.record.as_bytes().first()
            }
            _ => {
                self.removed += 1;
                false
            }
        };
        if !is_same_kind {
            if self.gone.len() + name.len() >= MOST_GONE {
                return Err(wrong("names too many files that are to be removed: remove them first"));
            }
            self.gone.extend([name, "\0"]);
        }
        Ok(())
    }

    /// Returns the entries that the node has.
    pub fn had(self) -> Selection {
        self.has
    }

    /// Returns the difference.
    pub fn difference(self) -> Difference {
        let Comparer { manifest, has, gone, removed, .. } = self;
        let mut missing = manifest.all().without(&has);
        if !has.is_empty() {
            let directories: BTreeSet<&str> = manifest.select(&missing).flat_map(|(name, _)| parents(name)).collect();
            for (at, name) in manifest.0.keys().enumerate() {
                if directories.contains(name.as_str()) {
                    missing.set(at, true);
                }
            }
        }
        Difference { missing, gone, removed }
    }
}

/// Reads the text of selected records, which is never in memory as a whole.
struct Records<I> {
    entries: I,
    record: String,
    read: usize,
}

impl<'a, I: Iterator<Item = (&'a String, &'a ManifestEntry)>> Read for Records<I> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let mut filled = 0;
        while filled < buffer.len() {
            if self.read == self.record.len() {
                let Some((name, entry)) = self.entries.next() else { break };
                self.read = 0;
                self.record.clear();
                entry.write_record(&mut self.record);
                self.record.extend([" ", name.as_str(), "\0"]);
            }
            let part = &self.record.as_bytes()[self.read..];
            let len = part.len().min(buffer.len() - filled);
            buffer[filled..filled + len].copy_from_slice(&part[..len]);
            (self.read, filled) = (self.read + len, filled + len);
        }
        Ok(filled)
    }
}

impl Manifest {
    /// Returns the records `KIND MODE HASH NAME` of the selected entries, each ended by NUL, as nodes store them.
    pub fn records(&self, selection: &Selection) -> impl Read {
        Records { entries: self.select(selection), record: String::new(), read: 0 }
    }

    /// Returns the bytes of these records.
    pub fn length(&self, selection: &Selection) -> u64 {
        io::copy(&mut self.records(selection), &mut io::sink()).unwrap_or_default()
    }

    /// Returns the hash of all records.
    pub fn hash(&self) -> String {
        hashed(|hasher| io::copy(&mut self.records(&self.all()), hasher).map(drop))
    }

    /// Selects all entries.
    pub fn all(&self) -> Selection {
        let mut all = Selection::none(self.0.len());
        (0..self.0.len()).for_each(|at| all.set(at, true));
        all
    }

    /// Returns the selected files that are among the staged ones.
    pub fn kept(&self, selection: &Selection, staged: &Selection) -> Selection {
        let mut kept = Selection::none(self.0.len());
        let is_file = |entry: &ManifestEntry| matches!(entry, ManifestEntry::File { .. });
        for (at, entry) in self.0.values().enumerate() {
            kept.set(at, selection.contains(at) && staged.contains(at) && is_file(entry));
        }
        kept
    }

    /// Returns the selected entries, in order.
    pub fn select(&self, selection: &Selection) -> impl Iterator<Item = (&String, &ManifestEntry)> + Clone {
        self.0.iter().zip(selection.flags()).filter_map(|(entry, is_selected)| is_selected.then_some(entry))
    }

    /// Returns the selected entries with their positions among all, in order.
    pub fn select_at(&self, selection: &Selection) -> impl Iterator<Item = (usize, &String, &ManifestEntry)> {
        let flagged = self.0.iter().zip(selection.flags()).enumerate();
        flagged.filter_map(|(at, ((name, entry), is_selected))| is_selected.then_some((at, name, entry)))
    }

    /// Returns the bytes of all files.
    pub fn size(&self) -> u64 {
        self.0.values().map(ManifestEntry::size).sum()
    }

    /// Returns the links whose targets are not in the project, with these targets. `below`: the project's path on the
    /// nodes.
    pub fn links_out(&self, below: &str) -> Vec<(&str, &str)> {
        let is_below =
            |target: &str| target.strip_prefix(below).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'));
        let leads_out = |name: &str, target: &str| {
            if target.starts_with('/') {
                return !is_below(target);
            }
            let mut depth = Some(parents(name).count());
            for part in target.split('/') {
                depth = match part {
                    "" | "." => depth,
                    ".." => depth.and_then(|depth| depth.checked_sub(1)),
                    _ => depth.map(|depth| depth + 1),
                };
            }
            depth.is_none()
        };
        let links = self.0.iter().filter_map(|(name, entry)| match entry {
            ManifestEntry::Link { target } => Some((name.as_str(), target.as_str())),
            _ => None,
        });
        links.filter(|(name, target)| leads_out(name, target)).collect()
    }

    /// Returns the files and directories with most of the bytes, the largest first: not a directory that has nearly all
    /// of its bytes in one of its entries, but that entry.
    pub fn largest(&self) -> Vec<(&str, u64)> {
        /// The most files and directories that are named, and their least share of all bytes.
        const MOST: usize = 3;
        const SHARE: u64 = 10;
        let mut sizes = BTreeMap::<&str, u64>::new();
        for (name, entry) in self.0.iter().filter(|(_, entry)| entry.size() > 0) {
            parents(name).chain([name.as_str()]).for_each(|path| *sizes.entry(path).or_default() += entry.size());
        }
        let mut largest: Vec<_> = sizes.iter().filter(|(path, _)| !path.contains('/')).map(|(p, s)| (*p, *s)).collect();
        largest.sort_by_key(|(_, size)| Reverse(*size));
        largest.truncate(MOST);
        largest.retain(|(_, size)| size.saturating_mul(SHARE) >= self.size());
        for (path, size) in &mut largest {
            let inside = |path: &str, of: u64| {
                let within = sizes.iter().filter(|(p, s)| parents(p).last() == Some(path) && **s >= of - of / SHARE);
                within.map(|(path, size)| (*path, *size)).next()
            };
            while let Some(most) = inside(path, *size) {
                (*path, *size) = most;
            }
        }
        largest
    }

    /// Returns the directory with this Python module (`a.b` or `a`): "" for the project itself, else the only one at
    /// most two levels below it. A directory is a module if it has a file of Python's, however far below. What is in a
    /// package is found by the name of that only.
    pub fn directory_of_module(&self, name: &str) -> Option<String> {
        let path = name.replace('.', "/");
        let directory = |module: &str| match module.strip_suffix(&path)? {
            "" => Some(String::new()),
            before => before.strip_suffix('/').map(str::to_owned),
        };
        let files = self.0.iter().filter(|(_, entry)| !matches!(entry, ManifestEntry::Directory { .. }));
        let files = files.filter_map(|(file, _)| file.strip_suffix(".py"));
        let is_package = |directory: &str| self.0.contains_key(&format!("{directory}/__init__.py"));
        let is_in_package = |directory: &String| parents(directory).chain([directory.as_str()]).any(is_package);
        let found = files.flat_map(|file| parents(file).chain([file]).filter_map(directory));
        let found = found.filter(|directory| directory.is_empty() || !is_in_package(directory));
        let mut found: BTreeSet<String> = found.filter(|directory| directory.matches('/').count() < 2).collect();
        let first = found.pop_first()?;
        (first.is_empty() || found.is_empty()).then_some(first)
    }

    /// Returns the hash that a node computes over the selected entries when they have arrived.
    pub fn arrived(&self, selection: &Selection) -> String {
        hashed(|hasher| write_contents(self.select(selection), hasher))
    }

    /// Returns the hash that a node computes over all types and modes in their final place, with the contents if
    /// `with_contents`.
    pub fn placed(&self, with_contents: bool) -> String {
        hashed(|hasher| {
            self.0.iter().try_for_each(|(name, entry)| write!(hasher, "{:x} ./{name}\0", entry.raw_mode()))?;
            if with_contents { write_contents(self.0.iter(), hasher) } else { Ok(()) }
        })
    }
}

/// Returns the hash of what is written.
fn hashed(write: impl FnOnce(&mut Hasher) -> io::Result<()>) -> String {
    let mut hasher = hasher();
    // a hasher takes everything
    let written = write(&mut hasher);
    debug_assert!(written.is_ok());
    hex(&finish(&hasher))
}

/// Writes the files' hashes in the order of their names, then the links' targets.
fn write_contents<'a>(
    entries: impl Iterator<Item = (&'a String, &'a ManifestEntry)> + Clone,
    to: &mut impl io::Write,
) -> io::Result<()> {
    for (_, entry) in entries.clone() {
        if let ManifestEntry::File { hash, .. } = entry {
            to.write_all(hex(hash).as_bytes())?;
        }
    }
    for (_, entry) in entries {
        if let ManifestEntry::Link { target } = entry {
            to.write_all(target.as_bytes())?;
            to.write_all(b"\0")?;
        }
    }
    Ok(())
}

/// Returns the directories that a relative path is in, the outermost first.
pub(super) fn parents(path: &str) -> impl Iterator<Item = &str> {
    path.match_indices('/').map(|(at, _)| &path[..at])
}

#[cfg(test)]
impl Manifest {
    /// All records.
    pub(crate) fn text(&self) -> String {
        let mut text = String::new();
        self.records(&self.all()).read_to_string(&mut text).unwrap();
        text
    }

    /// Returns the entries that a node with these records, by name, lacks.
    pub(crate) fn missing(&self, had: &BTreeMap<String, String>) -> Selection {
        let mut comparer = Comparer::new(self);
        had.iter().for_each(|(name, record)| comparer.take(format!("{record} {name}").as_bytes()).unwrap());
        comparer.difference().missing
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::text::digest::hash;
    use proptest::prelude::*;

    fn entry() -> impl Strategy<Value = ManifestEntry> {
        prop_oneof![
            (0u32..0o1000, 0u64..9).prop_map(|(mode, size)| ManifestEntry::File {
                hash: hash(&[size as u8]),
                mode,
                size
            }),
            "[a-c /\n]{1,3}".prop_map(|target| ManifestEntry::Link { target }),
            (0u32..0o1000).prop_map(|mode| ManifestEntry::Directory { mode }),
        ]
    }

    /// Trees whose names are all at the top or in the directory `d`.
    fn tree() -> impl Strategy<Value = Manifest> {
        prop::collection::btree_map("(d/)?[a-c \n*-]{1,2}", entry(), 0..8).prop_map(|mut entries| {
            if entries.keys().any(|name| name.starts_with("d/")) {
                entries.insert("d".into(), ManifestEntry::Directory { mode: 0o755 });
            }
            Manifest(entries)
        })
    }

    fn record(entry: &ManifestEntry) -> String {
        let mut record = String::new();
        entry.write_record(&mut record);
        record
    }

    fn uploaded(tree: &Manifest) -> BTreeMap<String, String> {
        tree.0.iter().map(|(name, entry)| (name.clone(), record(entry))).collect()
    }

    #[test]
    fn a_manifest_that_is_none_is_refused() {
        let manifest = Manifest([("b".to_owned(), ManifestEntry::Directory { mode: 0o755 })].into());
        let take = |records: &[&[u8]]| {
            let mut comparer = Comparer::new(&manifest);
            records.iter().try_for_each(|record| comparer.take(record)).map_err(|error| error.to_string())
        };
        assert_eq!(take(&[b"d 755 - a", b"d 755 - b", b"f 755 - c d"]), Ok(()));
        for records in [
            &[&b"d 755 - b"[..], b"d 755 - a"][..],
            &[b"d 755 - b", b"d 755 - b"],
            &[b"d 755 -"],
            &[b""],
            &[b"d 755 - \xff"],
        ] {
            assert!(take(records).is_err_and(|error| error.starts_with("the node's manifest ")), "{records:?}");
        }
    }

    #[test]
    fn a_selection_of_many_entries() {
        let directory = |at: usize| (format!("{at:03}"), ManifestEntry::Directory { mode: 0o755 });
        let manifest = Manifest((0..130).map(directory).collect());
        let had: BTreeMap<_, _> = (0..130).filter(|at| at % 3 > 0).map(directory).collect();
        let missing = manifest.missing(&uploaded(&Manifest(had)));
        assert_eq!(manifest.select(&missing).count(), 44);
        assert_eq!(
            (missing.count(), missing.or(&missing).count(), missing.without(&missing).is_empty()),
            (44, 44, true)
        );
        assert!(missing.flags().enumerate().all(|(at, is_missing)| is_missing == (at % 3 == 0)));
        assert_eq!(manifest.all().without(&missing).count(), 86);
        assert_eq!(manifest.length(&missing), 44 * "d 755 - 000\0".len() as u64);
    }

    /// Hashes and targets alone: by the number of the files it is known which is which.
    fn contents_of(tree: &Manifest) -> (Vec<[u8; 32]>, Vec<String>) {
        let mut all = (Vec::new(), Vec::new());
        for entry in tree.0.values() {
            match entry {
                ManifestEntry::File { hash, .. } => all.0.push(*hash),
                ManifestEntry::Link { target } => all.1.push(target.clone()),
                ManifestEntry::Directory { .. } => {}
            }
        }
        all
    }

    #[test]
    fn links_that_lead_out_of_the_project() {
        let link =
            |(name, target): &(&str, &str)| (name.to_string(), ManifestEntry::Link { target: target.to_string() });
        let out = [("a", "/data//x"), ("b", ".."), ("d/c", "../../x"), ("d/e", "./..//../x/y"), ("f", "/workspaces")];
        let inside =
            [("d/g", "../x"), ("h", "d/../x"), ("i", "."), ("j", "/workspace"), ("k", "/workspace/x"), ("l", "..x")];
        let manifest = Manifest(out.iter().chain(&inside).map(link).collect());
        assert_eq!(manifest.links_out("/workspace"), out);
    }

    #[test]
    fn python_modules_are_found_in_the_project() {
        let files = [
            "src/net.py",
            "src/deep/x.txt",
            "utils.py",
            "lib/pkg/__init__.py",
            "a/dup.py",
            "b/dup.py",
            "a/b/c/far.py",
            "my_lib/z.py",
            "libs/sub/w/__init__.py",
            "lib/pkg/inner.py",
            "lib/pkg/inside/deeper.py",
        ];
        let file = |name: &str| (name.to_owned(), ManifestEntry::File { hash: hash(b""), mode: 0o644, size: 1 });
        let mut entries: BTreeMap<_, _> = files.iter().map(|name| file(name)).collect();
        entries.insert("data".into(), ManifestEntry::Directory { mode: 0o755 });
        let manifest = Manifest(entries);
        for (name, directory) in [
            ("src", Some("")),
            ("src.net", Some("")),
            ("src.other", None),
            ("net", Some("src")),
            ("utils", Some("")),
            ("pkg", Some("lib")),
            ("w", Some("libs/sub")),
            ("dup", None),
            ("far", None),
            ("data", None),
            ("deep", None),
            ("ib", None),
            ("inner", None),
            ("pkg.inner", Some("lib")),
            ("inside", None),
            ("deeper", None),
        ] {
            assert_eq!(manifest.directory_of_module(name).as_deref(), directory, "{name}");
        }
    }

    #[test]
    fn what_is_large_is_named_by_the_path_that_one_would_exclude() {
        let file = |(name, size): &(&str, u64)| {
            (name.to_string(), ManifestEntry::File { hash: hash(b""), mode: 0o644, size: *size })
        };
        let of = |files: &[(&str, u64)]| {
            let manifest = Manifest(files.iter().map(file).collect());
            manifest.largest().iter().map(|(path, size)| format!("{path} {size}")).collect::<Vec<_>>()
        };
        assert_eq!(
            of(&[("src/data/a", 40), ("src/data/b", 50), ("src/x", 5), ("last.ckpt", 30), ("e", 0), ("f", 9)]),
            ["src/data 90", "last.ckpt 30"]
        );
        assert_eq!(of(&[("a", 0)]), [""; 0]);
        assert_eq!(of(&[("a/b/c/d", 7)]), ["a/b/c/d 7"]);
    }

    proptest! {
        #[test]
        fn what_is_missing_makes_the_tree(old in tree(), new in tree(), touched in any::<prop::sample::Index>()) {
            let had = uploaded(&old);
            let missing: BTreeMap<_, _> = new.select(&new.missing(&had)).collect();
            // a node that replaces what is missing and removes what is gone has the new tree
            let mut after = old.clone();
            after.0.retain(|name, _| new.0.contains_key(name));
            after.0.extend(missing.iter().map(|(name, entry)| ((*name).clone(), (*entry).clone())));
            prop_assert_eq!(after.text(), new.text());
            // and what is to be removed is what it lacks, or has as something else
            let mut comparer = Comparer::new(&new);
            had.iter().for_each(|(name, record)| comparer.take(format!("{record} {name}").as_bytes()).unwrap());
            let kind = |tree: &Manifest, name: &str| tree.0.get(name).map(|entry| record(entry).as_bytes()[0]);
            let gone: String =
                old.0.keys().filter(|name| kind(&old, name) != kind(&new, name)).map(|name| format!("{name}\0")).collect();
            let difference = comparer.difference();
            prop_assert_eq!(difference.gone, gone);
            prop_assert_eq!(difference.removed, old.0.keys().filter(|name| !new.0.contains_key(*name)).count());
            // nothing else is sent, but the directories that it is in
            for name in missing.into_keys() {
                let inside = new.select(&new.missing(&had)).any(|(other, _)| other.starts_with(&format!("{name}/")));
                prop_assert!(inside || old.0.get(name).map(record) != Some(record(&new.0[name])));
            }
            prop_assert!(old.select(&old.missing(&had)).next().is_none());

            if !old.0.is_empty() {
                let name = old.0.keys().nth(touched.index(old.0.len())).unwrap();
                let mut changed = had.clone();
                changed.insert(name.clone(), "f - -".into());
                prop_assert!(old.select(&old.missing(&changed)).any(|(missing, _)| missing == name));
            }
        }

        #[test]
        fn hashes_tell_trees_apart(a in tree(), b in tree()) {
            let same = a.0.len() == b.0.len()
                && a.0.iter().zip(&b.0).all(|((n, e), (m, f))| n == m && record(e) == record(f));
            prop_assert_eq!(a.text() == b.text(), same);
            let same_contents = contents_of(&a) == contents_of(&b);
            prop_assert_eq!(a.arrived(&a.all()) == b.arrived(&b.all()), same_contents);
            prop_assert_eq!(a.placed(true) == b.placed(true), same);
        }
    }
}
