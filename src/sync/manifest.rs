//! What a project consists of, as text that both ends can hash: how operator and nodes agree that they have the same tree.

use crate::text::digest::{Hash, Hasher, hex, in_hex};
use std::collections::{BTreeMap, BTreeSet};

/// One thing in a project.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Entry {
    /// A regular file.
    File {
        /// The hash of its contents.
        hash: Hash,
        /// Permission bits.
        mode: u32,
        /// Bytes.
        size: u64,
    },
    /// A symbolic link; it is shipped as a link, wherever it leads.
    Link {
        /// Its text.
        target: String,
    },
    /// A folder.
    Folder {
        /// Permission bits.
        mode: u32,
    },
}

impl Entry {
    /// Type and permission bits in one number as `stat --format %f` says them (stat(2)).
    fn raw_mode(&self) -> u32 {
        match self {
            Entry::File { mode, .. } => 0o100_000 | mode,
            Entry::Folder { mode } => 0o040_000 | mode,
            // Linux has no other mode for links
            Entry::Link { .. } => 0o120_777,
        }
    }

    /// What stands before the name in a record: kind, mode, and the hash of a file's contents or a link's target.
    fn head(&self) -> String {
        match self {
            Entry::File { hash, mode, .. } => format!("f {mode:o} {}", hex(hash)),
            Entry::Folder { mode } => format!("d {mode:o} -"),
            Entry::Link { target } => format!("l - {}", in_hex(target.as_bytes())),
        }
    }
}

/// All of a project by relative path, in the order of the names' bytes. No path is empty or starts with `/`, and every
/// folder that another entry is in is an entry too.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Manifest(pub BTreeMap<String, Entry>);

/// Some of a manifest's entries: of each, in their order, whether it is one of them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Part(Vec<bool>);

/// What a node had when it was shipped to last, and what has become of that.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Had {
    records: BTreeMap<String, String>,
    changed: BTreeSet<String>,
    unsure: bool,
}

impl Manifest {
    /// The records, `KIND MODE HASH NAME` each and ended by NUL, as the nodes keep them.
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

    /// The hash of the whole tree: that of [`Manifest::text`].
    pub fn tree_hash(&self) -> String {
        in_hex(&self.text())
    }

    /// Which entries a node lacks or has otherwise; each with the folders that it is in.
    pub fn missing(&self, had: &Had) -> Part {
        let same = |name: &str, entry: &Entry| {
            let record = had.records.get(name).filter(|_| !had.unsure && !had.changed.contains(name));
            record.is_some_and(|record| *record == entry.head())
        };
        let mut missing = Part(self.0.iter().map(|(name, entry)| !same(name, entry)).collect());
        let mut folders = BTreeSet::new();
        for (name, _) in self.those(&missing) {
            let mut inside = name.as_str();
            while let Some((folder, _)) = inside.rsplit_once('/') {
                if !folders.insert(folder) {
                    break; // then those that it is in are known too
                }
                inside = folder;
            }
        }
        for (name, is_missing) in self.0.keys().zip(&mut missing.0).filter(|(_, is_missing)| !**is_missing) {
            *is_missing = folders.contains(name.as_str());
        }
        missing
    }

    /// The entries of a part, in order.
    pub fn those(&self, part: &Part) -> impl Iterator<Item = (&String, &Entry)> + Clone {
        self.0.iter().zip(&part.0).filter_map(|(entry, is_one)| is_one.then_some(entry))
    }

    /// How many entries a node has that are no part of the project any more.
    pub fn gone(&self, had: &Had) -> usize {
        had.records.keys().filter(|name| !self.0.contains_key(*name)).count()
    }

    /// Files and links of a part, and the files' bytes.
    pub fn size(&self, part: &Part) -> (usize, u64) {
        self.those(part).fold((0, 0), |(count, bytes), (_, entry)| match entry {
            Entry::File { size, .. } => (count + 1, bytes + size),
            Entry::Link { .. } => (count + 1, bytes),
            Entry::Folder { .. } => (count, bytes),
        })
    }

    /// The bytes of all files.
    pub fn bytes(&self) -> u64 {
        self.0.values().map(|entry| if let Entry::File { size, .. } = entry { *size } else { 0 }).sum()
    }

    /// The names of the links of a part, `./NAME` and ended by NUL each, in order.
    pub fn links(&self, part: &Part) -> Vec<u8> {
        let links = self.those(part).filter(|(_, entry)| matches!(entry, Entry::Link { .. }));
        links.flat_map(|(name, _)| format!("./{name}\0").into_bytes()).collect()
    }

    /// The hash of what a node reads in the files and links of a part where they have arrived: of the hashes in hex of the
    /// files, in the order of their names, and of what readlink says.
    pub fn arrived(&self, part: &Part) -> String {
        let mut hasher = Hasher::default();
        contents(self.those(part).map(|(_, entry)| entry), &mut hasher);
        hex(&hasher.finish())
    }

    /// The hash of what stat says where all is in its place, types and modes; and, if they are to be looked at as well, of the
    /// contents.
    pub fn placed(&self, contents_too: bool) -> String {
        let mut hasher = Hasher::default();
        for (name, entry) in &self.0 {
            hasher.update(format!("{:x} ./{name}\0", entry.raw_mode()));
        }
        if contents_too {
            contents(self.0.values(), &mut hasher);
        }
        hex(&hasher.finish())
    }
}

/// The hashes of the files one behind the other, then the links' targets.
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

impl Had {
    /// Takes in a record of a node's manifest; one that is none says nothing.
    pub fn record(&mut self, record: &str) {
        let mut spaces = record.match_indices(' ').map(|(at, _)| at);
        if let Some(at) = spaces.nth(2) {
            self.records.insert(record[at + 1..].to_owned(), record[..at].to_owned());
        }
    }

    /// A name whose file is not the one that was shipped, by inode, size, times or mode.
    pub fn changed(&mut self, name: &str) {
        self.changed.insert(name.to_owned());
    }

    /// Nothing is known of what is there.
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
            (0u32..0o1000).prop_map(|mode| Entry::Folder { mode }),
        ]
    }

    /// Trees whose names are all at the top or in the folder `d`.
    fn tree() -> impl Strategy<Value = Manifest> {
        prop::collection::btree_map("(d/)?[a-c \n*-]{1,2}", entry(), 0..8).prop_map(|mut entries| {
            if entries.keys().any(|name| name.starts_with("d/")) {
                entries.insert("d".into(), Entry::Folder { mode: 0o755 });
            }
            Manifest(entries)
        })
    }

    fn had(tree: &Manifest) -> Had {
        let mut had = Had::default();
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
                Entry::Folder { .. } => {}
            }
        }
        all
    }

    proptest! {
        #[test]
        fn what_is_missing_makes_the_tree(old in tree(), new in tree(), touched in any::<prop::sample::Index>()) {
            let had = had(&old);
            let missing: BTreeMap<_, _> = new.those(&new.missing(&had)).collect();
            // a node that replaces what is missing and removes what is gone has the new tree
            let mut after = old.clone();
            after.0.retain(|name, _| new.0.contains_key(name));
            after.0.extend(missing.iter().map(|(name, entry)| ((*name).clone(), (*entry).clone())));
            prop_assert_eq!(after.tree_hash(), new.tree_hash());
            prop_assert_eq!(new.gone(&had), old.0.keys().filter(|n| !new.0.contains_key(*n)).count());
            // nothing else is sent, but the folders that it is in
            for name in missing.into_keys() {
                let inside = new.those(&new.missing(&had)).any(|(other, _)| other.starts_with(&format!("{name}/")));
                prop_assert!(inside || old.0.get(name).map(Entry::head) != Some(new.0[name].head()));
            }
            prop_assert!(old.those(&old.missing(&had)).next().is_none());

            if !old.0.is_empty() {
                let name = old.0.keys().nth(touched.index(old.0.len())).unwrap();
                let mut changed = had.clone();
                changed.changed(name);
                prop_assert!(old.those(&old.missing(&changed)).any(|(missing, _)| missing == name));
            }
            let mut unsure = had;
            unsure.unsure();
            prop_assert_eq!(new.those(&new.missing(&unsure)).count(), new.0.len());
        }

        #[test]
        fn hashes_tell_trees_apart(a in tree(), b in tree()) {
            let all = |tree: &Manifest| tree.missing(&Had::default());
            let same = a.0.len() == b.0.len()
                && a.0.iter().zip(&b.0).all(|((n, e), (m, f))| n == m && e.head() == f.head());
            prop_assert_eq!(a.tree_hash() == b.tree_hash(), same);
            let listed = String::from_utf8(a.links(&all(&a))).unwrap();
            let links = a.0.iter().filter(|(_, entry)| matches!(entry, Entry::Link { .. }));
            prop_assert_eq!(listed, links.map(|(name, _)| format!("./{name}\0")).collect::<String>());
            let same_contents = contents_of(&a) == contents_of(&b);
            prop_assert_eq!(a.arrived(&all(&a)) == b.arrived(&all(&b)), same_contents);
            prop_assert_eq!(a.placed(true) == b.placed(true), same);
        }

        #[test]
        fn records_of_any_kind_are_read(text in any::<String>()) {
            Had::default().record(&text);
        }
    }
}
