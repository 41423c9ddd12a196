//! A job's outputs as the nodes list them, and where they go on the operator's machine.

use crate::text::digest::in_hex;
use std::collections::{BTreeMap, BTreeSet};

/// The directory in the target where `fetch` keeps its lock, its list of what it fetched, and unfinished files.
pub const STATE_DIR: &str = ".hvdctl-fetch";

/// A file or link that a job wrote.
#[derive(Debug, Clone, PartialEq)]
pub enum Output {
    /// A file.
    File {
        /// Its hash in hex; empty until [`NodeOutputs::add_hashes`].
        hash: String,
        /// Permission bits.
        mode: u32,
        /// Bytes.
        size: u64,
        /// Time of modification in seconds since the epoch, by the node's clock.
        time: f64,
    },
    /// A symbolic link with its target.
    Link(String),
}

impl Output {
    /// Whether both have the same contents.
    fn is_like(&self, other: &Output) -> bool {
        match (self, other) {
            (Output::File { hash, .. }, Output::File { hash: other, .. }) => hash == other,
            (Output::Link(target), Output::Link(other)) => target == other,
            _ => false,
        }
    }
}

/// A project's directory on one node.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct NodeOutputs {
    /// Its name; None if the node has none.
    pub directory: Option<String>,
    /// What jobs may have written: everything that is not known to be as it was uploaded.
    pub outputs: BTreeMap<String, Output>,
    /// Names that cannot be written here, for messages.
    pub odd: Vec<String>,
    /// The node's messages about files that it could not read.
    pub unread: Vec<String>,
    /// Kind and hash of what was uploaded, `KIND HASH`.
    uploaded: BTreeMap<String, String>,
}

impl NodeOutputs {
    /// Reads the records of `fetch_list.sh`.
    pub fn parse(listed: &[u8]) -> NodeOutputs {
        let mut found = NodeOutputs::default();
        let mut unchanged = BTreeSet::new();
        let mut link = None;
        for record in listed.split(|b| *b == 0) {
            let Ok(record) = std::str::from_utf8(record) else {
                if !record.starts_with(b"had ") {
                    let name = record.splitn(5, |b| *b == b' ').last().unwrap_or_default();
                    found.odd.push(String::from_utf8_lossy(name).into_owned());
                }
                continue;
            };
            let (kind, rest) = record.split_once(' ').unwrap_or((record, ""));
            let mut fields = rest.splitn(4, ' ');
            let mut next = || fields.next().unwrap_or_default();
            match kind {
                "directory" => found.directory = Some(rest.to_owned()),
                "had" => {
                    let (kind, _, hash, name) = (next(), next(), next(), next());
                    found.uploaded.insert(name.to_owned(), format!("{kind} {hash}"));
                }
                "same" => drop(unchanged.insert(rest)),
                "file" => {
                    let (mode, size, time, name) = (next(), next(), next(), next());
                    if let (Ok(mode), Ok(size), Ok(time)) = (u32::from_str_radix(mode, 8), size.parse(), time.parse()) {
                        let file = Output::File { hash: String::new(), mode, size, time };
                        found.outputs.insert(name.to_owned(), file);
                    }
                }
                "link" => link = Some(rest),
                "to" => {
                    if let Some(name) = link.take() {
                        found.outputs.insert(name.to_owned(), Output::Link(rest.to_owned()));
                    }
                }
                _ => {}
            }
        }
        found.odd.extend(found.outputs.keys().filter(|name| !is_inside(name)).cloned());
        found.outputs.retain(|name, _| is_inside(name) && !unchanged.contains(name.as_str()));
        found
    }

    /// Returns names and sizes of the files.
    pub fn files(&self) -> impl Iterator<Item = (&str, u64)> {
        self.outputs.iter().filter_map(|(name, output)| match output {
            Output::File { size, .. } => Some((name.as_str(), *size)),
            Output::Link(_) => None,
        })
    }

    /// Adds the hashes of `fetch_hash.sh`. Files without one are gone by now; what is as it was uploaded is no output.
    pub fn add_hashes(&mut self, hashed: &[u8]) {
        let hashed = String::from_utf8_lossy(hashed);
        let is_hash = |text: &str| text.len() == 64 && text.bytes().all(|byte| byte.is_ascii_hexdigit());
        let records = hashed.split('\0').filter_map(|record| record.split_once(' '));
        let hashes: BTreeMap<&str, &str> =
            records.filter(|(hash, _)| is_hash(hash)).map(|(hash, name)| (name, hash)).collect();
        let uploaded = &self.uploaded;
        self.outputs.retain(|name, output| {
            let now = match output {
                Output::File { hash, .. } => {
                    let Some(now) = hashes.get(name.as_str()) else { return false };
                    (*now).clone_into(hash);
                    format!("f {now}")
                }
                Output::Link(target) => format!("l {}", in_hex(target.as_bytes())),
            };
            uploaded.get(name) != Some(&now)
        });
    }
}

/// Returns whether a name stays below the directory that it is joined to, and out of [`STATE_DIR`].
fn is_inside(name: &str) -> bool {
    let mut parts = name.split('/');
    parts.clone().next() != Some(STATE_DIR) && parts.all(|part| !matches!(part, "" | "." | ".."))
}

/// An output to be fetched.
#[derive(Debug, Clone, PartialEq)]
pub struct Item {
    /// Its path below the target directory.
    pub path: String,
    /// The node that has it.
    pub node: String,
    /// Its name there.
    pub name: String,
    /// What it is.
    pub output: Output,
}

/// Decides what goes where. The outputs of the first node, that of rank 0, keep their names; another node's do too, unless something
/// else has that path or one of its directories: then they go below the node's name. What is the same on several nodes is
/// fetched once.
///
/// # Errors
/// If two outputs would have the same path.
pub fn plan(found: &[(String, NodeOutputs)]) -> Result<Vec<Item>, String> {
    let mut taken: BTreeMap<String, Item> = BTreeMap::new();
    for (node, found) in found {
        for (name, output) in &found.outputs {
            let item = |path: String| Item { path, node: node.clone(), name: name.clone(), output: output.clone() };
            match taken.get(name) {
                Some(there) if there.output.is_like(output) => continue,
                None if is_free(&taken, name) => drop(taken.insert(name.clone(), item(name.clone()))),
                _ => {
                    let aside = format!("{node}/{name}");
                    if taken.contains_key(&aside) || !is_free(&taken, &aside) {
                        return Err(format!("{name} of {node} has no place: another output is called {aside}"));
                    }
                    taken.insert(aside.clone(), item(aside));
                }
            }
        }
    }
    Ok(taken.into_values().collect())
}

/// Returns whether nothing has this path, one of its directories, or a path below it.
fn is_free(taken: &BTreeMap<String, Item>, path: &str) -> bool {
    let below = format!("{path}/");
    let way = path.match_indices('/').map(|(at, _)| &path[..at]);
    !taken.contains_key(path)
        && way.into_iter().all(|directory| !taken.contains_key(directory))
        && !taken.range(below.clone()..).next().is_some_and(|(other, _)| other.starts_with(&below))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn file(hash: &str) -> Output {
        Output::File { hash: hash.into(), mode: 0o644, size: 1, time: 1.0 }
    }

    #[test]
    fn a_hash_is_nothing_but_a_hash() {
        let mut found = NodeOutputs::parse(b"directory p\0file 644 1 1.0 a\0file 644 1 1.0 b\0file 644 1 1.0 c\0");
        let hash = in_hex(b"a");
        found.add_hashes(format!("{hash} a\0/home/me/.bashrc b\0../../x c\0").as_bytes());
        assert_eq!(found.outputs.keys().collect::<Vec<_>>(), ["a"]);
    }

    fn found(outputs: &[(&str, Output)]) -> NodeOutputs {
        NodeOutputs {
            outputs: outputs.iter().map(|(n, o)| ((*n).to_owned(), o.clone())).collect(),
            ..NodeOutputs::default()
        }
    }

    #[test]
    fn what_a_node_says_is_read() {
        let train = in_hex(b"train");
        let link = in_hex(b"a");
        let said = format!(
            "directory p\0had f 644 {train} train.py\0had f 644 x data\0had l - {link} old\0had d 755 - d\0same data\0\
             file 644 5 1.25 train.py\0file 644 9 1.5 data\0file 755 7 2.5 d/a b\nc\0link old\0to a\0link new\0to ../x\0\
             file 644 1 1.0 ../out\0file 644 1 1.0 {STATE_DIR}/x\0noise\0"
        );
        let mut found = NodeOutputs::parse(&[said.as_bytes(), b"file 644 1 1.0 \xff\0"].concat());
        assert_eq!(found.directory.as_deref(), Some("p"));
        assert_eq!(found.files().collect::<Vec<_>>(), [("d/a b\nc", 7), ("train.py", 5)]);
        assert_eq!(found.odd, ["\u{fffd}", "../out", ".hvdctl-fetch/x"]);
        let hash = in_hex(b"c");
        found.add_hashes(format!("{hash} d/a b\nc\0{train} train.py\0").as_bytes());
        let output = Output::File { hash, mode: 0o755, size: 7, time: 2.5 };
        let outputs =
            BTreeMap::from([("d/a b\nc".to_owned(), output), ("new".to_owned(), Output::Link("../x".into()))]);
        assert_eq!(found.outputs, outputs);
    }

    #[test]
    fn the_node_of_rank_0_goes_first() {
        let a = found(&[("best", file("1")), ("log", file("2")), ("d/x", file("3"))]);
        let b = found(&[("best", file("1")), ("log", file("9")), ("d", file("4")), ("own", file("5"))]);
        let plan = plan(&[("n1".into(), a), ("n2".into(), b)]).unwrap();
        let short: Vec<(&str, &str)> = plan.iter().map(|item| (item.path.as_str(), item.node.as_str())).collect();
        assert_eq!(
            short,
            [("best", "n1"), ("d/x", "n1"), ("log", "n1"), ("n2/d", "n2"), ("n2/log", "n2"), ("own", "n2")]
        );
    }

    proptest! {
        #[test]
        fn everything_has_a_place_of_its_own(
            nodes in prop::collection::vec(
                prop::collection::btree_map("(n[0-2]/)?([ab]/)?[ab]", "[12]", 0..5), 1..4,
            )
        ) {
            // a directory is no file on the same node
            let nodes: Vec<(String, NodeOutputs)> = nodes.iter().enumerate().map(|(i, names)| {
                let names = names.iter().filter(|(name, _)| {
                    !names.keys().any(|other| other.starts_with(&format!("{name}/")))
                });
                (format!("n{i}"), NodeOutputs { outputs: names.map(|(n, h)| (n.clone(), file(h))).collect(), ..NodeOutputs::default() })
            }).collect();
            let Ok(items) = plan(&nodes) else { return Ok(()) };
            for item in &items {
                let below = format!("{}/", item.path);
                prop_assert!(items.iter().all(|other| !other.path.starts_with(&below)), "{:?}", items);
            }
            for (node, found) in &nodes {
                for (name, output) in &found.outputs {
                    let at = |path: &str| items.iter().find(|item| item.path == path && item.output == *output);
                    prop_assert!(at(name).or(at(&format!("{node}/{name}"))).is_some(), "{node} {name}: {items:?}");
                    if node == "n0" { prop_assert!(at(name).is_some()); }
                }
            }
        }

        #[test]
        fn anything_is_read(said in prop::collection::vec(any::<u8>(), 0..80)) {
            let mut found = NodeOutputs::parse(&said);
            found.add_hashes(&said);
        }
    }
}
