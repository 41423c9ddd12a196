//! A job's outputs as the nodes list them, and where they go on the operator's machine.

use crate::sync::manifest::parents;
use crate::text::digest::in_hex;
use std::collections::{BTreeMap, BTreeSet};

/// The directory in the target where `fetch` keeps its lock, its list of what it fetched, and unfinished files.
pub const STATE_DIR: &str = ".hvdctl-fetch";

/// The ending of the name of a file that would otherwise act here.
const ASIDE: &str = ".fetched";

/// The names of files and directories on which hvdctl, or a program that it starts, acts wherever they are.
const ACTIVE: [&str; 8] =
    [STATE_DIR, ".docker", ".git", ".gitignore", ".hvdctlignore", ".ssh", "hvdctl.toml", "inventory.toml"];

/// The files that hvdctl, or a program that it starts, acts on without being told to. A node chooses none of them: one
/// that comes from a node gets another name.
#[derive(Debug, Clone, Default)]
pub struct ActiveFiles {
    /// The paths below the target directory of files that the inventory and `hvdctl.toml` name.
    pub named: BTreeSet<String>,
}

impl ActiveFiles {
    /// Returns the path below the target directory for what has this name on a node.
    pub fn path(&self, name: &str) -> String {
        let aside = |part: &str| if is_active(part) { format!("{part}{ASIDE}") } else { part.to_owned() };
        let path = name.split('/').map(aside).collect::<Vec<_>>().join("/");
        let is_named = self.named.iter().any(|named| is_same_name(named, name));
        if is_named && path == name { format!("{path}{ASIDE}") } else { path }
    }
}

fn is_active(part: &str) -> bool {
    ACTIVE.iter().any(|active| is_same_name(active, part))
}

/// Returns whether two names may be the same file: some file systems do not distinguish cases, or ignore characters
/// without a width (HFS+).
fn is_same_name(one: &str, other: &str) -> bool {
    let without_width = |c: &char| matches!(c, '\u{200c}'..='\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{206a}'..='\u{206f}' | '\u{feff}');
    let folded =
        |name: &str| name.chars().filter(|c| !without_width(c)).flat_map(char::to_lowercase).collect::<String>();
    folded(one) == folded(other)
}

/// Returns a line for each file or directory that got another name: its path on the node and here.
pub fn set_aside<'a>(downloads: impl Iterator<Item = &'a Download>) -> BTreeSet<String> {
    let line = |download: &'a Download| {
        let (mut name, mut path) = (download.name.rsplit('/'), download.path.rsplit('/'));
        let parts: Vec<_> = name.by_ref().zip(path.by_ref()).collect();
        // the directory that has another name stands for all that is in it
        let end = parts.iter().rposition(|(name, path)| name != path && path.strip_suffix(ASIDE) == Some(name))?;
        let to =
            |path: &str| path.rsplit('/').skip(end).collect::<Vec<_>>().into_iter().rev().collect::<Vec<_>>().join("/");
        Some(format!("{} of {} as {}", to(&download.name), download.node, to(&download.path)))
    };
    downloads.filter_map(line).collect()
}

/// A file or link that a job wrote.
#[derive(Debug, Clone, PartialEq)]
pub enum JobOutput {
    /// A file.
    File {
        /// Its hash in hex; empty until [`NodeOutputs::add_hashes`], and for a file of a container.
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

impl JobOutput {
    /// Returns a key that is equal for outputs with the same contents.
    pub fn content(&self) -> String {
        match self {
            JobOutput::File { hash, .. } => hash.clone(),
            JobOutput::Link(target) => format!("link:{}", in_hex(target.as_bytes())),
        }
    }

    /// Returns the target of a link; `None` for a file.
    pub fn link(&self) -> Option<&str> {
        if let JobOutput::Link(target) = self { Some(target) } else { None }
    }

    /// Returns the bytes of a file; 0 for a link.
    pub fn size(&self) -> u64 {
        if let JobOutput::File { size, .. } = self { *size } else { 0 }
    }
}

/// A project's directory on one node.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct NodeOutputs {
    /// Its name; `None` if the node has none.
    pub directory: Option<String>,
    /// Possible outputs: every file that is not known to be unchanged since the upload.
    pub outputs: BTreeMap<String, JobOutput>,
    /// Names that cannot be written here, for messages.
    pub odd: Vec<String>,
    /// The node's messages about files that it could not read.
    pub unread: Vec<String>,
    /// [`JobOutput::content`] of what was uploaded.
    uploaded: BTreeMap<String, String>,
}

impl NodeOutputs {
    /// Reads the records of `fetch/list.sh`.
    pub fn parse(listed: &[u8]) -> NodeOutputs {
        let mut found = NodeOutputs::default();
        let (mut unchanged, mut link) = (BTreeSet::new(), "");
        let listed = String::from_utf8_lossy(listed);
        for record in listed.split('\0') {
            let fields: Vec<&str> = record.splitn(5, ' ').collect();
            match fields[..] {
                ["directory", .., name] => found.directory = Some(name.to_owned()),
                ["had", "f", _, hash, name] => drop(found.uploaded.insert(name.to_owned(), hash.to_owned())),
                ["had", "l", _, hash, name] => drop(found.uploaded.insert(name.to_owned(), format!("link:{hash}"))),
                ["same", .., name] => drop(unchanged.insert(name)),
                ["file", mode, size, time, name] => {
                    if let (Ok(mode), Ok(size), Ok(time)) = (u32::from_str_radix(mode, 8), size.parse(), time.parse()) {
                        let file = JobOutput::File { hash: String::new(), mode, size, time };
                        found.outputs.insert(name.to_owned(), file);
                    }
                }
                ["link", .., name] => link = name,
                ["to", .., target] => drop(found.outputs.insert(link.to_owned(), JobOutput::Link(target.to_owned()))),
                _ => {}
            }
        }
        let is_utf8 = |text: &str| !text.contains(char::REPLACEMENT_CHARACTER);
        let is_odd = |name: &String, output: &JobOutput| {
            !is_inside(name) || !is_utf8(name) || matches!(output, JobOutput::Link(target) if !is_utf8(target))
        };
        found.odd =
            found.outputs.iter().filter(|(name, output)| is_odd(name, output)).map(|(name, _)| name.clone()).collect();
        found.outputs.retain(|name, output| !is_odd(name, output) && !unchanged.contains(name.as_str()));
        found
    }

    /// Keeps what may go into a project: files that were written since this time, by the node's clock, but none of
    /// git's own, which may be programs that git starts. What another node than the `first` wrote replaces nothing
    /// there.
    pub fn keep_for_project(&mut self, time: f64, first: bool) {
        self.outputs.retain(|name, output| {
            let is_new = matches!(output, JobOutput::File { time: written, .. } if *written >= time);
            is_new && !name.split('/').any(|part| is_same_name(part, ".git"))
        });
        if !first {
            self.uploaded.clear();
        }
    }

    /// Leaves out these files, given by name with size and time of modification, as far as they have not changed.
    pub fn leave_out(&mut self, copies: &BTreeMap<String, (u64, f64)>) {
        // the node prints microseconds or finer
        let is_copy = |name: &String, found: u64, written: f64| {
            copies.get(name).is_some_and(|(size, time)| *size == found && (time - written).abs() < 1e-3)
        };
        self.outputs.retain(
            |name, output| !matches!(output, JobOutput::File { size, time, .. } if is_copy(name, *size, *time)),
        );
    }

    /// Returns names and sizes of the files.
    pub fn files(&self) -> impl Iterator<Item = (&str, u64)> {
        self.outputs.iter().filter_map(|(name, output)| match output {
            JobOutput::File { size, .. } => Some((name.as_str(), *size)),
            JobOutput::Link(_) => None,
        })
    }

    /// Adds the hashes of `fetch/hash.sh`. Files without one are gone by now; what is as it was uploaded is no output.
    pub fn add_hashes(&mut self, hashed: &[u8]) {
        let is_hash = |text: &str| text.len() == 64 && text.bytes().all(|byte| byte.is_ascii_hexdigit());
        let hashed = String::from_utf8_lossy(hashed);
        let records = hashed.split('\0').filter_map(|record| record.split_once(" *./"));
        for (new, name) in records.filter(|(hash, _)| is_hash(hash)) {
            if let Some(JobOutput::File { hash, .. }) = self.outputs.get_mut(name) {
                new.clone_into(hash);
            }
        }
        let uploaded = &self.uploaded;
        self.outputs.retain(|name, output| {
            let content = output.content();
            !content.is_empty() && uploaded.get(name) != Some(&content)
        });
    }
}

/// Returns whether a name stays below the directory that it is joined to, and out of [`STATE_DIR`].
pub fn is_inside(name: &str) -> bool {
    let mut parts = name.split('/');
    parts.clone().next() != Some(STATE_DIR) && parts.all(|part| !matches!(part, "" | "." | ".."))
}

/// An output that is to be fetched.
#[derive(Debug, Clone, PartialEq)]
pub struct Download {
    /// Its path below the target directory.
    pub path: String,
    /// The node that has it.
    pub node: String,
    /// Its name there.
    pub name: String,
    /// The output itself.
    pub output: JobOutput,
    /// [`JobOutput::content`] of what was uploaded under this path, if the job has changed that.
    pub uploaded: Option<String>,
}

/// Decides what goes where. The outputs of the first node, that of rank 0, keep their names; another node's do too,
/// unless something else has that path or one of its directories: then they go below the node's name. What is the same
/// on several nodes is fetched once. None of the `active` files is among them.
///
/// # Errors
/// If two outputs would have the same path.
pub fn plan(found: &[(String, NodeOutputs)], active: &ActiveFiles) -> Result<Vec<Download>, String> {
    let mut planned: BTreeMap<String, Download> = BTreeMap::new();
    for (node, found) in found {
        for (name, output) in &found.outputs {
            let own = active.path(name);
            let below_node = format!("{node}/{own}");
            let path = match planned.get(&own) {
                Some(other) if other.output.content() == output.content() => continue,
                None if is_free(&planned, &own) => own,
                _ if is_free(&planned, &below_node) => below_node,
                _ => return Err(format!("{name} of {node} cannot be stored: another output is called {below_node}")),
            };
            let uploaded = found.uploaded.get(name).filter(|_| path == *name).cloned();
            let (node, name, output) = (node.clone(), name.clone(), output.clone());
            planned.insert(path.clone(), Download { path, node, name, output, uploaded });
        }
    }
    Ok(planned.into_values().collect())
}

/// Returns whether nothing has this path, one of its directories, or a path below it.
fn is_free(planned: &BTreeMap<String, Download>, path: &str) -> bool {
    let below = format!("{path}/");
    !planned.contains_key(path)
        && !parents(path).any(|directory| planned.contains_key(directory))
        && !planned.range(below.clone()..).next().is_some_and(|(other, _)| other.starts_with(&below))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn file(hash: &str) -> JobOutput {
        JobOutput::File { hash: hash.into(), mode: 0o644, size: 1, time: 1.0 }
    }

    #[test]
    fn copies_and_what_is_old_are_left_out() {
        let listed = b"directory - - - p\0file 644 5 100.25 a\0file 644 5 200.5 b\0file 644 5 300.5 c\0link - - - l\0to - - - b\0\
            file 755 5 300.5 .git/hooks/pre-commit\0file 755 5 300.5 sub/.GIT/config\0had f 644 00 a\0";
        let mut found = NodeOutputs::parse(listed);
        found.keep_for_project(150.0, true);
        assert_eq!(found.outputs.keys().collect::<Vec<_>>(), ["b", "c"]);
        assert!(found.uploaded.contains_key("a"));
        found.keep_for_project(150.0, false);
        assert!(found.uploaded.is_empty());
        let copies = [("b", (5, 200.500_000_4)), ("c", (6, 300.5))];
        found.leave_out(&copies.map(|(name, about)| (name.to_owned(), about)).into());
        assert_eq!(found.outputs.keys().collect::<Vec<_>>(), ["c"]);
    }

    #[test]
    fn only_hashes_are_read_as_hashes() {
        let mut found =
            NodeOutputs::parse(b"directory - - - p\0file 644 1 1.0 a\0file 644 1 1.0 b\0file 644 1 1.0 c\0");
        let hash = in_hex(b"a");
        found.add_hashes(format!("{hash} *./a\0/home/me/.bashrc *./b\0../../x *./c\0").as_bytes());
        assert_eq!(found.outputs.keys().collect::<Vec<_>>(), ["a"]);
    }

    fn found(outputs: &[(&str, JobOutput)]) -> NodeOutputs {
        NodeOutputs {
            outputs: outputs.iter().map(|(n, o)| ((*n).to_owned(), o.clone())).collect(),
            ..NodeOutputs::default()
        }
    }

    #[test]
    fn listings_are_read() {
        let train = in_hex(b"train");
        let link = in_hex(b"a");
        let listed = format!(
            "directory - - - p\0had f 644 {train} train.py\0had f 644 x data\0had l - {link} old\0had d 755 - d\0same \
             - - - data\0\
             file 644 5 1.25 train.py\0file 644 9 1.5 data\0file 755 7 2.5 d/a b\nc\0link - - - old\0to - - - a\0link \
             - - - new\0to - - - ../x\0\
             file 644 1 1.0 ../out\0file 644 1 1.0 {STATE_DIR}/x\0noise\0"
        );
        let mut found = NodeOutputs::parse(&[listed.as_bytes(), b"file 644 1 1.0 \xff\0"].concat());
        assert_eq!(found.directory.as_deref(), Some("p"));
        assert_eq!(found.files().collect::<Vec<_>>(), [("d/a b\nc", 7), ("train.py", 5)]);
        assert_eq!(found.odd, ["../out", ".hvdctl-fetch/x", "\u{fffd}"]);
        let hash = in_hex(b"c");
        found.add_hashes(format!("{hash} *./d/a b\nc\0{train} *./train.py\0").as_bytes());
        let output = JobOutput::File { hash, mode: 0o755, size: 7, time: 2.5 };
        let outputs =
            BTreeMap::from([("d/a b\nc".to_owned(), output), ("new".to_owned(), JobOutput::Link("../x".into()))]);
        assert_eq!(found.outputs, outputs);
    }

    #[test]
    fn the_node_of_rank_0_goes_first() {
        let a = found(&[("best", file("1")), ("log", file("2")), ("d/x", file("3"))]);
        let b = found(&[("best", file("1")), ("log", file("9")), ("d", file("4")), ("own", file("5"))]);
        let plan = plan(&[("n1".into(), a), ("n2".into(), b)], &ActiveFiles::default()).unwrap();
        let short: Vec<(&str, &str)> = plan.iter().map(|item| (item.path.as_str(), item.node.as_str())).collect();
        assert_eq!(
            short,
            [("best", "n1"), ("d/x", "n1"), ("log", "n1"), ("n2/d", "n2"), ("n2/log", "n2"), ("own", "n2")]
        );
    }

    #[test]
    fn what_would_act_here_gets_another_name() {
        let active = ActiveFiles { named: ["ssh_config", "conf/team.env"].map(str::to_owned).into() };
        let outputs = [
            ("inventory.toml", "inventory.toml.fetched"),
            ("d/hvdctl.toml", "d/hvdctl.toml.fetched"),
            ("HVDctl.Toml", "HVDctl.Toml.fetched"),
            (".gi\u{200c}t/hooks/x", ".gi\u{200c}t.fetched/hooks/x"),
            ("lib/.git/config", "lib/.git.fetched/config"),
            (".gitignore", ".gitignore.fetched"),
            ("d/.hvdctlignore", "d/.hvdctlignore.fetched"),
            ("ssh_config", "ssh_config.fetched"),
            ("conf/team.env", "conf/team.env.fetched"),
            ("team.env", "team.env"),
            ("my_inventory.toml", "my_inventory.toml"),
            ("train.py", "train.py"),
        ];
        let mut node = found(&outputs.map(|(name, _)| (name, file("1"))));
        node.uploaded.insert("inventory.toml".into(), "0".into());
        let plan = plan(&[("n1".into(), node)], &active).unwrap();
        let paths: BTreeMap<_, _> = plan.iter().map(|item| (item.name.as_str(), item.path.as_str())).collect();
        assert_eq!(paths, outputs.into());
        assert!(plan.iter().all(|item| item.uploaded.is_none()), "it is another file than the uploaded one");
        let lines = set_aside(plan.iter());
        assert_eq!(lines.len(), 9, "{lines:?}");
        for line in ["lib/.git of n1 as lib/.git.fetched", "conf/team.env of n1 as conf/team.env.fetched"] {
            assert!(lines.contains(line), "{lines:?}");
        }
    }

    #[test]
    fn what_has_the_other_name_already_keeps_its_own_place() {
        let node = found(&[("inventory.toml", file("1")), ("inventory.toml.fetched", file("2"))]);
        let plan = plan(&[("n1".into(), node)], &ActiveFiles::default()).unwrap();
        let paths: Vec<&str> = plan.iter().map(|item| item.path.as_str()).collect();
        assert_eq!(paths, ["inventory.toml.fetched", "n1/inventory.toml.fetched"]);
    }

    proptest! {
        #[test]
        fn every_output_has_its_own_path(
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
            let Ok(items) = plan(&nodes, &ActiveFiles::default()) else { return Ok(()) };
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
        fn any_listing_is_read(listed in prop::collection::vec(any::<u8>(), 0..80)) {
            let mut found = NodeOutputs::parse(&listed);
            found.add_hashes(&listed);
        }
    }
}
