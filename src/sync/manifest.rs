//! A project's manifest: names, modes and content hashes as text that the operator and the nodes can compare.

use crate::text::digest::{Hash, Hasher, hex, in_hex};
use std::collections::{BTreeMap, BTreeSet};

/// An entry of a project.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Entry {
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

impl Entry {
    /// Returns type and permission bits in one number, as `stat --format %f` prints them.
    fn raw_mode(&self) -> u32 {
        match self {
            Entry::File { mode, .. } => 0o100_000 | mode,
            Entry::Directory { mode } => 0o040_000 | mode,
            // Linux has no other mode for links
            Entry::Link { .. } => 0o120_777,
        }
    }

    /// Returns what precedes the name in a record: kind, mode, and the hash of a file's contents or a link's target.
    fn head(&self) -> String {
        match self {
            Entry::File { hash, mode, .. } => format!("f {mode:o} {}", hex(hash)),
            Entry::Directory { mode } => format!("d {mode:o} -"),
            Entry::Link { target } => format!("l - {}", in_hex(target.as_bytes())),
        }
    }
}

/// A project's entries by relative path, in the byte order of the names. No path is empty or starts with `/`, and the directory of
/// each entry is an entry too.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Manifest(pub BTreeMap<String, Entry>);

/// Some entries of a manifest: for each, in order, whether it is selected.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Selection(Vec<bool>);

/// What the last upload left on a node, and what has changed there since.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct NodeFiles {
    records: BTreeMap<String, String>,
    changed: BTreeSet<String>,
    unsure: bool,
}

impl Manifest {
    /// Returns the records `KIND MODE HASH NAME`, each ended by NUL, as nodes store them.
    pub fn text(&self) -> Vec<u8> {
        let mut text = Vec::new();
        for (name, entry) in &self.0 {
            text.extend_from_slice(entry.head().as_bytes());
            text.push(b' ');
            text.extend_from_slice(name.as_bytes());
            text.push(0);
        }
        text
    }

    /// Returns the hash of [`Manifest::text`].
    pub fn tree_hash(&self) -> String {
        in_hex(&self.text())
    }

    /// Selects the entries that a node lacks or has with other contents, and the directories they are in.
    pub fn missing(&self, had: &NodeFiles) -> Selection {
        let same = |name: &str, entry: &Entry| {
            let record = had.records.get(name).filter(|_| !had.unsure && !had.changed.contains(name));
            record.is_some_and(|record| *record == entry.head())
        };
        let mut missing = Selection(self.0.iter().map(|(name, entry)| !same(name, entry)).collect());
        let mut directories = BTreeSet::new();
        for (name, _) in self.select(&missing) {
            let mut inside = name.as_str();
            while let Some((directory, _)) = inside.rsplit_once('/') {
                if !directories.insert(directory) {
                    break; // its own directories are known too
                }
                inside = directory;
            }
        }
        for (name, is_missing) in self.0.keys().zip(&mut missing.0).filter(|(_, is_missing)| !**is_missing) {
            *is_missing = directories.contains(name.as_str());
        }
        missing
    }

    /// Returns the selected entries, in order.
    pub fn select(&self, selection: &Selection) -> impl Iterator<Item = (&String, &Entry)> + Clone {
        self.0.iter().zip(&selection.0).filter_map(|(entry, is_one)| is_one.then_some(entry))
    }

    /// Counts the entries on a node that no longer belong to the project.
    pub fn gone(&self, had: &NodeFiles) -> usize {
        had.records.keys().filter(|name| !self.0.contains_key(*name)).count()
    }

    /// Counts the selected files and links, and the files' bytes.
    pub fn size(&self, selection: &Selection) -> (usize, u64) {
        self.select(selection).fold((0, 0), |(count, bytes), (_, entry)| match entry {
            Entry::File { size, .. } => (count + 1, bytes + size),
            Entry::Link { .. } => (count + 1, bytes),
            Entry::Directory { .. } => (count, bytes),
        })
    }

    /// Returns the bytes of all files.
    pub fn bytes(&self) -> u64 {
        self.0.values().map(|entry| if let Entry::File { size, .. } = entry { *size } else { 0 }).sum()
    }

    /// Returns the hash that a node computes over the selected entries when they have arrived: of the files' hashes in hex in the order
    /// of their names, followed by the links' targets.
    pub fn arrived(&self, selection: &Selection) -> String {
        let mut hasher = Hasher::default();
        contents(self.select(selection).map(|(_, entry)| entry), &mut hasher);
        hex(&hasher.finish())
    }

    /// Returns the hash that a node computes over all types and modes in their final place, with the contents if `with_contents`.
    pub fn placed(&self, with_contents: bool) -> String {
        let mut hasher = Hasher::default();
        for (name, entry) in &self.0 {
            hasher.update(format!("{:x} ./{name}\0", entry.raw_mode()));
        }
        if with_contents {
            contents(self.0.values(), &mut hasher);
        }
        hex(&hasher.finish())
    }
}

/// Hashes the files' hashes, then the links' targets.
fn contents<'a>(entries: impl Iterator<Item = &'a Entry> + Clone, hasher: &mut Hasher) {
    for entry in entries.clone() {
        if let Entry::File { hash, .. } = entry {
            hasher.update(hex(hash));
        }
    }
    for entry in entries {
        if let Entry::Link { target } = entry {
            hasher.update(format!("{target}\0"));
        }
    }
}

impl NodeFiles {
    /// Adds a record of the node's manifest; ignores anything else.
    pub fn record(&mut self, record: &str) {
        let mut spaces = record.match_indices(' ').map(|(at, _)| at);
        if let Some(at) = spaces.nth(2) {
            self.records.insert(record[at + 1..].to_owned(), record[..at].to_owned());
        }
    }

    /// Adds a name whose inode, size, times or mode are not those of the upload.
    pub fn changed(&mut self, name: &str) {
        self.changed.insert(name.to_owned());
    }

    /// Notes that nothing is known about the files on the node.
    pub fn unsure(&mut self) {
        self.unsure = true;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::text::digest::hash;
    use proptest::prelude::*;

    fn entry() -> impl Strategy<Value = Entry> {
        prop_oneof![
            (0u32..0o1000, 0u64..9).prop_map(|(mode, size)| Entry::File { hash: hash(&[size as u8]), mode, size }),
            "[a-c /\n]{1,3}".prop_map(|target| Entry::Link { target }),
            (0u32..0o1000).prop_map(|mode| Entry::Directory { mode }),
        ]
    }

    /// Trees whose names are all at the top or in the directory `d`.
    fn tree() -> impl Strategy<Value = Manifest> {
        prop::collection::btree_map("(d/)?[a-c \n*-]{1,2}", entry(), 0..8).prop_map(|mut entries| {
            if entries.keys().any(|name| name.starts_with("d/")) {
                entries.insert("d".into(), Entry::Directory { mode: 0o755 });
            }
            Manifest(entries)
        })
    }

    fn node_files(tree: &Manifest) -> NodeFiles {
        let mut had = NodeFiles::default();
        let text = String::from_utf8(tree.text()).unwrap();
        text.split_terminator('\0').for_each(|record| had.record(record));
        had
    }

    /// Hashes and targets alone: by the number of the files it is known which is which.
    fn contents_of(tree: &Manifest) -> (Vec<[u8; 32]>, Vec<String>) {
        let mut all = (Vec::new(), Vec::new());
        for entry in tree.0.values() {
            match entry {
                Entry::File { hash, .. } => all.0.push(*hash),
                Entry::Link { target } => all.1.push(target.clone()),
                Entry::Directory { .. } => {}
            }
        }
        all
    }

    proptest! {
        #[test]
        fn what_is_missing_makes_the_tree(old in tree(), new in tree(), touched in any::<prop::sample::Index>()) {
            let had = node_files(&old);
            let missing: BTreeMap<_, _> = new.select(&new.missing(&had)).collect();
            // a node that replaces what is missing and removes what is gone has the new tree
            let mut after = old.clone();
            after.0.retain(|name, _| new.0.contains_key(name));
            after.0.extend(missing.iter().map(|(name, entry)| ((*name).clone(), (*entry).clone())));
            prop_assert_eq!(after.tree_hash(), new.tree_hash());
            prop_assert_eq!(new.gone(&had), old.0.keys().filter(|n| !new.0.contains_key(*n)).count());
            // nothing else is sent, but the directories that it is in
            for name in missing.into_keys() {
                let inside = new.select(&new.missing(&had)).any(|(other, _)| other.starts_with(&format!("{name}/")));
                prop_assert!(inside || old.0.get(name).map(Entry::head) != Some(new.0[name].head()));
            }
            prop_assert!(old.select(&old.missing(&had)).next().is_none());

            if !old.0.is_empty() {
                let name = old.0.keys().nth(touched.index(old.0.len())).unwrap();
                let mut changed = had.clone();
                changed.changed(name);
                prop_assert!(old.select(&old.missing(&changed)).any(|(missing, _)| missing == name));
            }
            let mut unsure = had;
            unsure.unsure();
            prop_assert_eq!(new.select(&new.missing(&unsure)).count(), new.0.len());
        }

        #[test]
        fn hashes_tell_trees_apart(a in tree(), b in tree()) {
            let all = |tree: &Manifest| tree.missing(&NodeFiles::default());
            let same = a.0.len() == b.0.len()
                && a.0.iter().zip(&b.0).all(|((n, e), (m, f))| n == m && e.head() == f.head());
            prop_assert_eq!(a.tree_hash() == b.tree_hash(), same);
            let same_contents = contents_of(&a) == contents_of(&b);
            prop_assert_eq!(a.arrived(&all(&a)) == b.arrived(&all(&b)), same_contents);
            prop_assert_eq!(a.placed(true) == b.placed(true), same);
        }

        #[test]
        fn records_of_any_kind_are_read(text in any::<String>()) {
            NodeFiles::default().record(&text);
        }
    }
}
