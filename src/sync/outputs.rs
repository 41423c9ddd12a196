//! What runs wrote, as their nodes tell of it, and where it goes on the operator's machine.

use crate::text::digest::in_hex;
use std::collections::{BTreeMap, BTreeSet};

/// The folder in the target where fetching keeps what it has so far, and what it fetched.
pub const STATE_DIR: &str = ".hvdctl-fetch";

/// A file or link that a run wrote.
#[derive(Debug, Clone, PartialEq)]
pub enum Output {
    /// A file.
    File {
        /// Its hash in hex; empty before it was asked for.
        hash: String,
        /// Permission bits.
        mode: u32,
        /// Bytes.
        size: u64,
        /// When it was written, in seconds since the epoch by the node's clock.
        time: f64,
    },
    /// A symbolic link, by its text.
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

/// A project's folder on one node.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Found {
    /// Its name; none where there is none.
    pub folder: Option<String>,
    /// What may be a run's: all that is not known to be as it was shipped.
    pub outputs: BTreeMap<String, Output>,
    /// Names that cannot be brought here, for people.
    pub odd: Vec<String>,
    /// What the node said of files that it could not read.
    pub unread: Vec<String>,
    /// Kind and hash of what was shipped.
    shipped: BTreeMap<String, (String, String)>,
}

impl Found {
    /// Reads what `fetch_look.sh` says.
    pub fn read(said: &[u8]) -> Found {
        let mut found = Found::default();
        let mut same = BTreeSet::new();
        let mut link = None;
        for record in said.split(|b| *b == 0) {
            let (word, rest) = split(record);
            let Ok(rest) = std::str::from_utf8(rest) else {
                // as names are told that no text can have
                let name = rest.splitn(4, |b| *b == b' ').last().unwrap_or_default();
                found.odd.extend((word != b"had").then(|| String::from_utf8_lossy(name).into_owned()));
                continue;
            };
            match word {
                b"folder" => found.folder = Some(rest.to_owned()),
                b"had" => {
                    let mut parts = rest.splitn(4, ' ');
                    if let (Some(kind), Some(_), Some(hash), Some(name)) =
                        (parts.next(), parts.next(), parts.next(), parts.next())
                    {
                        found.shipped.insert(name.to_owned(), (kind.to_owned(), hash.to_owned()));
                    }
                }
                b"same" => drop(same.insert(rest.to_owned())),
                b"file" => {
                    let mut parts = rest.splitn(4, ' ');
                    let mut next = || parts.next().unwrap_or_default();
                    let (mode, size, time, name) = (next(), next(), next(), next());
                    if let (Ok(mode), Ok(size), Ok(time)) = (u32::from_str_radix(mode, 8), size.parse(), time.parse()) {
                        let file = Output::File { hash: String::new(), mode, size, time };
                        found.outputs.insert(name.to_owned(), file);
                    }
                }
                b"link" => link = Some(rest.to_owned()),
                b"to" => {
                    if let Some(name) = link.take() {
                        found.outputs.insert(name, Output::Link(rest.to_owned()));
                    }
                }
                _ => {}
            }
        }
        let odd: Vec<String> = found.outputs.keys().filter(|name| !is_inside(name)).cloned().collect();
        for name in odd {
            found.outputs.remove(&name);
            found.odd.push(name);
        }
        found.outputs.retain(|name, _| !same.contains(name));
        found
    }

    /// The files whose contents have to be known.
    pub fn files(&self) -> impl Iterator<Item = (&str, u64)> {
        self.outputs.iter().filter_map(|(name, output)| match output {
            Output::File { size, .. } => Some((name.as_str(), *size)),
            Output::Link(_) => None,
        })
    }

    /// Takes in what `fetch_hash.sh` says; what it did not say is gone by now, and what is as it was shipped is none of the run's.
    pub fn hashed(&mut self, said: &[u8]) {
        let mut hashes: BTreeMap<String, String> = BTreeMap::new();
        for record in said.split(|b| *b == 0) {
            let record = String::from_utf8_lossy(record);
            // it becomes the name of a file here
            if let Some((hash, name)) = record.split_once(' ')
                && hash.len() == 64
                && hash.bytes().all(|byte| byte.is_ascii_hexdigit())
            {
                hashes.insert(name.to_owned(), hash.to_owned());
            }
        }
        let shipped = &self.shipped;
        self.outputs.retain(|name, output| {
            let (kind, now) = match output {
                Output::File { hash, .. } => match hashes.remove(name) {
                    Some(now) => {
                        hash.clone_from(&now);
                        ("f", now)
                    }
                    None => return false,
                },
                Output::Link(target) => ("l", in_hex(target.as_bytes())),
            };
            !shipped.get(name).is_some_and(|(was, hash)| was == kind && *hash == now)
        });
    }
}

fn split(record: &[u8]) -> (&[u8], &[u8]) {
    let at = record.iter().position(|b| *b == b' ').unwrap_or(record.len());
    (&record[..at], record.get(at + 1..).unwrap_or_default())
}

/// Whether a name leads to a place below the folder that it is taken in, and not to our own.
fn is_inside(name: &str) -> bool {
    let mut parts = name.split('/');
    parts.clone().next() != Some(STATE_DIR) && parts.all(|part| !matches!(part, "" | "." | ".."))
}

/// Something to be fetched.
#[derive(Debug, Clone, PartialEq)]
pub struct Item {
    /// Where it goes, below the target folder.
    pub path: String,
    /// The node that has it.
    pub node: String,
    /// Its name there.
    pub name: String,
    /// What it is.
    pub output: Output,
}

/// What goes where. The first node is that of rank 0, and all of its is at its own place; another node's is there too, unless
/// there is something else at that place, or on the way to it: then it is below the node's name. What is the same on several
/// nodes is fetched once.
pub fn plan(found: &[(String, Found)]) -> Result<Vec<Item>, String> {
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

/// Whether nothing stands at a path, on the way to it, or below it.
fn is_free(taken: &BTreeMap<String, Item>, path: &str) -> bool {
    let below = format!("{path}/");
    let way = path.match_indices('/').map(|(at, _)| &path[..at]);
    !taken.contains_key(path)
        && way.into_iter().all(|folder| !taken.contains_key(folder))
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
        let mut found = Found::read(b"folder p\0file 644 1 1.0 a\0file 644 1 1.0 b\0file 644 1 1.0 c\0");
        let hash = in_hex(b"a");
        found.hashed(format!("{hash} a\0/home/me/.bashrc b\0../../x c\0").as_bytes());
        assert_eq!(found.outputs.keys().collect::<Vec<_>>(), ["a"]);
    }

    fn found(outputs: &[(&str, Output)]) -> Found {
        Found { outputs: outputs.iter().map(|(n, o)| ((*n).to_owned(), o.clone())).collect(), ..Found::default() }
    }

    #[test]
    fn what_a_node_says_is_read() {
        let train = in_hex(b"train");
        let link = in_hex(b"a");
        let said = format!(
            "folder p\0had f 644 {train} train.py\0had f 644 x data\0had l - {link} old\0had d 755 - d\0same data\0\
             file 644 5 1.25 train.py\0file 644 9 1.5 data\0file 755 7 2.5 d/a b\nc\0link old\0to a\0link new\0to ../x\0\
             file 644 1 1.0 ../out\0file 644 1 1.0 {STATE_DIR}/x\0noise\0"
        );
        let mut found = Found::read(&[said.as_bytes(), b"file 644 1 1.0 \xff\0"].concat());
        assert_eq!(found.folder.as_deref(), Some("p"));
        assert_eq!(found.files().collect::<Vec<_>>(), [("d/a b\nc", 7), ("train.py", 5)]);
        assert_eq!(found.odd, ["\u{fffd}", "../out", ".hvdctl-fetch/x"]);
        let hash = in_hex(b"c");
        found.hashed(format!("{hash} d/a b\nc\0{train} train.py\0").as_bytes());
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
            // a folder is no file on the same node
            let nodes: Vec<(String, Found)> = nodes.iter().enumerate().map(|(i, names)| {
                let names = names.iter().filter(|(name, _)| {
                    !names.keys().any(|other| other.starts_with(&format!("{name}/")))
                });
                (format!("n{i}"), Found { outputs: names.map(|(n, h)| (n.clone(), file(h))).collect(), ..Found::default() })
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
            let mut found = Found::read(&said);
            found.hashed(&said);
        }
    }
}
