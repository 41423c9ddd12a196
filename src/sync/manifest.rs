//! A project's manifest: names, modes and content hashes as text that the operator's machine and the nodes can compare.

use crate::text::digest::{Hash, hex, in_hex};
use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};

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

    /// Returns its record without the name: kind, mode, and the hash of a file's contents or a link's target.
    fn record(&self) -> String {
        match self {
            ManifestEntry::File { hash, mode, .. } => format!("f {mode:o} {}", hex(hash)),
            ManifestEntry::Directory { mode } => format!("d {mode:o} -"),
            ManifestEntry::Link { target } => format!("l - {}", in_hex(target.as_bytes())),
        }
    }
}

/// A project's entries by relative path, in the byte order of the names. No path is empty or starts with `/`, and the directory of
/// each entry is an entry too.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Manifest(pub BTreeMap<String, ManifestEntry>);

/// Some entries of a manifest: for each, in order, whether it is selected.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Selection(Vec<bool>);

impl Selection {
    /// Returns whether each entry is selected, in order.
    pub fn flags(&self) -> impl Iterator<Item = bool> {
        self.0.iter().copied()
    }

    /// Selects what either of two selections of the same manifest does.
    #[must_use]
    pub fn or(&self, other: &Selection) -> Selection {
        Selection(self.0.iter().zip(&other.0).map(|(one, other)| *one || *other).collect())
    }
}

/// The records of the last upload to a node, without the names, by name. That of a file which has changed since is empty.
pub type UploadedRecords = BTreeMap<String, String>;

impl Manifest {
    /// Returns the records `KIND MODE HASH NAME`, each ended by NUL, as nodes store them.
    pub fn text(&self) -> String {
        self.0.iter().map(|(name, entry)| format!("{} {name}\0", entry.record())).collect()
    }

    /// Selects the entries that a node lacks or has with other contents, and the directories they are in.
    pub fn missing(&self, uploaded: &UploadedRecords) -> Selection {
        let is_missing = |(name, entry): (&String, &ManifestEntry)| {
            uploaded.get(name).is_none_or(|record| *record != entry.record())
        };
        let mut missing = Selection(self.0.iter().map(is_missing).collect());
        let directories: BTreeSet<&str> = self.select(&missing).flat_map(|(name, _)| parents(name)).collect();
        for (name, is_missing) in self.0.keys().zip(&mut missing.0) {
            *is_missing |= directories.contains(name.as_str());
        }
        missing
    }

    /// Returns the selection without the files that a node has staged already, and the names of these.
    pub fn without_staged<'a>(&'a self, selection: &Selection, staged: &UploadedRecords) -> (Selection, Vec<&'a str>) {
        let (mut rest, mut kept) = (selection.clone(), Vec::new());
        for ((name, entry), is_selected) in self.0.iter().zip(&mut rest.0) {
            let is_file = matches!(entry, ManifestEntry::File { .. });
            if *is_selected && is_file && staged.get(name).is_some_and(|record| *record == entry.record()) {
                *is_selected = false;
                kept.push(name.as_str());
            }
        }
        (rest, kept)
    }

    /// Returns the selected entries, in order.
    pub fn select(&self, selection: &Selection) -> impl Iterator<Item = (&String, &ManifestEntry)> + Clone {
        self.0.iter().zip(&selection.0).filter_map(|(entry, is_selected)| is_selected.then_some(entry))
    }

    /// Returns the bytes of all files.
    pub fn size(&self) -> u64 {
        self.0.values().map(ManifestEntry::size).sum()
    }

    /// Returns the links whose targets are not in the project, with these targets. `below`: the project's path on the nodes.
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

    /// Returns the files and directories with most of the bytes, the largest first: not a directory that has nearly all of its bytes in
    /// one of its entries, but that entry.
    pub fn largest(&self) -> Vec<(&str, u64)> {
        /// How many at most, and of which share of all bytes.
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

    /// Returns the directory with this Python module (`a.b` or `a`): "" for the project itself, else the only one at most two levels below
    /// it. A directory is a module if it has a file of Python's, however far below.
    pub fn directory_of_module(&self, name: &str) -> Option<String> {
        let path = name.replace('.', "/");
        let directory = |module: &str| match module.strip_suffix(&path)? {
            "" => Some(String::new()),
            before => before.strip_suffix('/').map(str::to_owned),
        };
        let files = self.0.iter().filter(|(_, entry)| !matches!(entry, ManifestEntry::Directory { .. }));
        let files = files.filter_map(|(file, _)| file.strip_suffix(".py"));
        let found = files.flat_map(|file| parents(file).chain([file]).filter_map(directory));
        let mut found: BTreeSet<String> = found.filter(|directory| directory.matches('/').count() < 2).collect();
        let first = found.pop_first()?;
        (first.is_empty() || found.is_empty()).then_some(first)
    }

    /// Returns the hash that a node computes over the selected entries when they have arrived.
    pub fn arrived(&self, selection: &Selection) -> String {
        in_hex(contents(self.select(selection)).as_bytes())
    }

    /// Returns the hash that a node computes over all types and modes in their final place, with the contents if `with_contents`.
    pub fn placed(&self, with_contents: bool) -> String {
        let modes = self.0.iter().map(|(name, entry)| format!("{:x} ./{name}\0", entry.raw_mode()));
        in_hex(modes.chain(with_contents.then(|| contents(self.0.iter()))).collect::<String>().as_bytes())
    }
}

/// Returns the files' hashes in the order of their names, then the links' targets.
fn contents<'a>(entries: impl Iterator<Item = (&'a String, &'a ManifestEntry)> + Clone) -> String {
    let hashes = entries.clone().filter_map(|(_, entry)| match entry {
        ManifestEntry::File { hash, .. } => Some(hex(hash)),
        _ => None,
    });
    let targets = entries.filter_map(|(_, entry)| match entry {
        ManifestEntry::Link { target } => Some(format!("{target}\0")),
        _ => None,
    });
    hashes.chain(targets).collect()
}

/// Returns the directories that a relative path is in, the outermost first.
pub(super) fn parents(path: &str) -> impl Iterator<Item = &str> {
    path.match_indices('/').map(|(at, _)| &path[..at])
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

    fn uploaded(tree: &Manifest) -> UploadedRecords {
        tree.0.iter().map(|(name, entry)| (name.clone(), entry.record())).collect()
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
            // nothing else is sent, but the directories that it is in
            for name in missing.into_keys() {
                let inside = new.select(&new.missing(&had)).any(|(other, _)| other.starts_with(&format!("{name}/")));
                prop_assert!(inside || old.0.get(name).map(ManifestEntry::record) != Some(new.0[name].record()));
            }
            prop_assert!(old.select(&old.missing(&had)).next().is_none());

            if !old.0.is_empty() {
                let name = old.0.keys().nth(touched.index(old.0.len())).unwrap();
                let mut changed = had.clone();
                changed.insert(name.clone(), String::new());
                prop_assert!(old.select(&old.missing(&changed)).any(|(missing, _)| missing == name));
            }
        }

        #[test]
        fn hashes_tell_trees_apart(a in tree(), b in tree()) {
            let all = |tree: &Manifest| tree.missing(&UploadedRecords::default());
            let same = a.0.len() == b.0.len()
                && a.0.iter().zip(&b.0).all(|((n, e), (m, f))| n == m && e.record() == f.record());
            prop_assert_eq!(a.text() == b.text(), same);
            let same_contents = contents_of(&a) == contents_of(&b);
            prop_assert_eq!(a.arrived(&all(&a)) == b.arrived(&all(&b)), same_contents);
            prop_assert_eq!(a.placed(true) == b.placed(true), same);
        }
    }
}
