//! What a project consists of, as text that both ends can hash: how operator and nodes agree that they have the same tree.

use crate::core::hash::{Hash, Hasher, hex, in_hex};
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
    pub fn missing(&self, had: &Had) -> BTreeSet<String> {
        let same = |name: &str, entry: &Entry| {
            let record = had.records.get(name).filter(|_| !had.unsure && !had.changed.contains(name));
            record.is_some_and(|record| *record == entry.head())
        };
        let mut missing = BTreeSet::new();
        for (name, _) in self.0.iter().filter(|(name, entry)| !same(name, entry)) {
            let folders = name.match_indices('/').map(|(at, _)| name[..at].to_owned());
            missing.extend(folders.filter(|folder| self.0.contains_key(folder)));
            missing.insert(name.clone());
        }
        missing
    }

    /// How many entries a node has that are no part of the project any more.
    pub fn gone(&self, had: &Had) -> usize {
        had.records.keys().filter(|name| !self.0.contains_key(*name)).count()
    }

    /// Files and links among these names, and the files' bytes.
    pub fn size<'a>(&self, names: impl IntoIterator<Item = &'a String>) -> (usize, u64) {
        names.into_iter().fold((0, 0), |(count, bytes), name| match self.0.get(name) {
            Some(Entry::File { size, .. }) => (count + 1, bytes + size),
            Some(Entry::Link { .. }) => (count + 1, bytes),
            _ => (count, bytes),
        })
    }

    /// The names of the files among these entries and those of the links, `./NAME` and ended by NUL each, in order.
    pub fn names(&self, names: &BTreeSet<String>) -> [Vec<u8>; 2] {
        let [mut files, mut links] = [Vec::new(), Vec::new()];
        for (name, entry) in self.those(names) {
            let list = match entry {
                Entry::File { .. } => &mut files,
                Entry::Link { .. } => &mut links,
                Entry::Folder { .. } => continue,
            };
            list.extend_from_slice(format!("./{name}\0").as_bytes());
        }
        [files, links]
    }

    /// The hash of what a node reads in these files and links where they have arrived: of the hashes in hex of the files of
    /// [`Manifest::names`], and of what readlink says.
    pub fn arrived(&self, names: &BTreeSet<String>) -> String {
        let mut hasher = Hasher::default();
        contents(self.those(names).map(|(_, entry)| entry), &mut hasher);
        hex(&hasher.finish())
    }

    fn those(&self, names: &BTreeSet<String>) -> impl Iterator<Item = (&String, &Entry)> + Clone {
        self.0.iter().filter(|(name, _)| names.contains(*name))
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
    use crate::core::hash::hash;
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
            let missing = new.missing(&had);
            // a node that replaces what is missing and removes what is gone has the new tree
            let mut after = old.clone();
            after.0.retain(|name, _| new.0.contains_key(name));
            for name in &missing { after.0.insert(name.clone(), new.0[name].clone()); }
            prop_assert_eq!(after.tree_hash(), new.tree_hash());
            prop_assert_eq!(new.gone(&had), old.0.keys().filter(|n| !new.0.contains_key(*n)).count());
            // nothing else is sent, but the folders that it is in
            for name in &missing {
                let inside = missing.iter().any(|other| other.starts_with(&format!("{name}/")));
                prop_assert!(inside || old.0.get(name).map(Entry::head) != Some(new.0[name].head()));
            }
            prop_assert!(old.missing(&had).is_empty());

            if !old.0.is_empty() {
                let name = old.0.keys().nth(touched.index(old.0.len())).unwrap();
                let mut changed = had.clone();
                changed.changed(name);
                prop_assert!(old.missing(&changed).contains(name));
            }
            let mut unsure = had;
            unsure.unsure();
            prop_assert_eq!(new.missing(&unsure).len(), new.0.len());
        }

        #[test]
        fn hashes_tell_trees_apart(a in tree(), b in tree()) {
            let all = |tree: &Manifest| tree.0.keys().cloned().collect();
            let same = a.0.len() == b.0.len()
                && a.0.iter().zip(&b.0).all(|((n, e), (m, f))| n == m && e.head() == f.head());
            prop_assert_eq!(a.tree_hash() == b.tree_hash(), same);
            let listed: Vec<u8> = a.names(&all(&a)).concat();
            let listed: Vec<_> = listed.split(|b| *b == 0).filter(|name| !name.is_empty()).map(<[u8]>::to_vec).collect();
            let of = |file: bool| a.0.iter().filter(move |(_, entry)| match entry {
                Entry::File { .. } => file,
                Entry::Link { .. } => !file,
                Entry::Folder { .. } => false,
            });
            let wanted: Vec<_> = of(true).chain(of(false)).map(|(name, _)| format!("./{name}").into_bytes()).collect();
            prop_assert_eq!(listed, wanted);
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
