//! Finds directories of the cluster that nodes have in common. Every node keeps files of its own there, under the same
//! names.

use crate::cluster::each_node::for_each_node;
use crate::cluster::member::Member;
use crate::error::NodeError;
use crate::node::facts::Facts;
use crate::node::storage::{NodeDirectory, SharedDirectory};
use crate::random;
use crate::transport::node::Script;

const SCRIPT: &str = include_str!("../scripts/node/shared.sh");
const OPERATION: &str = "find out which directories nodes share";

/// The file systems that one node alone can mount, as `stat` names them.
const LOCAL: [&str; 14] = [
    "ext2/ext3",
    "xfs",
    "btrfs",
    "zfs",
    "f2fs",
    "tmpfs",
    "ramfs",
    "overlay",
    "overlayfs",
    "reiserfs",
    "jfs",
    "bcachefs",
    "msdos",
    "exfat",
];

/// Finds the directories that the nodes share, and adds them to what is known of these nodes. Contacts only nodes that
/// may share one: those where it is on a file system that several machines can mount.
pub async fn find_shared(mut nodes: Vec<(&Member, &mut Facts)>) {
    let all: Vec<&Facts> = nodes.iter().map(|(_, facts)| &**facts).collect();
    let suspects: Vec<_> = all.iter().map(|facts| suspects(facts, &all)).collect();
    let mut touched: Vec<usize> = (0..nodes.len()).filter(|i| !suspects[*i].is_empty()).collect();
    let mut marked = touched.clone();
    let nonce = random::id();
    let mut found: Vec<(usize, Result<Vec<SharedDirectory>, NodeError>)> = Vec::new();
    for step in ["mark", "look", "clear"] {
        let others = marked.iter().map(ToString::to_string).collect::<Vec<_>>().join(" ");
        let asked = if step == "clear" { &touched } else { &marked };
        let run = async |i: usize| {
            let directories: String = suspects[i].iter().map(|d| format!("{} {}\n", d.what, d.path)).collect();
            let script = Script::new(SCRIPT).with("step", step).with("nonce", &nonce).with("me", &i.to_string());
            let script = script.with("others", &others).with("directories", directories.trim_end_matches('\n'));
            (i, nodes[i].0.transport.script(&script, OPERATION).await)
        };
        let results = for_each_node(asked.clone(), run).await;
        for (i, result) in results {
            match result {
                Ok(output) if step == "look" => {
                    let name = |number: usize| nodes.get(number).map(|(member, _)| member.node.name.clone());
                    found.push((i, Ok(parse(&output, &suspects[i], name))));
                }
                Ok(_) => {}
                // what was found stays, and a later command removes the marks
                Err(_) if step == "clear" => {}
                Err(error) => {
                    // one that has failed may have marked some of its directories
                    marked.retain(|number| *number != i || step == "look");
                    touched.retain(|number| *number != i || !error.is_unreachable());
                    found.push((i, Err(error)));
                }
            }
        }
    }
    for (i, result) in found {
        match result {
            Ok(shared) => nodes[i].1.storage.shared.extend(shared),
            Err(error) => nodes[i].1.storage.shared_unknown = Some(error.message),
        }
    }
}

/// Returns the directories of a node that may be those of another node, too.
fn suspects(facts: &Facts, all: &[&Facts]) -> Vec<NodeDirectory> {
    let is_local = |directory: &NodeDirectory| LOCAL.contains(&directory.file_system.as_str());
    let may_be_one = |a: &NodeDirectory, b: &NodeDirectory| a.what == b.what && !is_local(a) && !is_local(b);
    let others =
        || all.iter().filter(|other| !std::ptr::eq(**other, facts)).flat_map(|other| &other.storage.directories);
    facts
        .storage
        .directories
        .iter()
        // root writes marks there
        .filter(|_| facts.permissions.exposed.is_empty())
        .filter(|directory| others().any(|other| may_be_one(directory, other)))
        .cloned()
        .collect()
}

/// Reads `WHAT NUMBER` lines; `name` returns that of the node with a number.
fn parse(output: &[u8], directories: &[NodeDirectory], name: impl Fn(usize) -> Option<String>) -> Vec<SharedDirectory> {
    let output = String::from_utf8_lossy(output);
    let with = |what: &str| {
        let lines = output.lines().filter_map(|line| line.split_once(' ')).filter(|(of, _)| *of == what);
        lines.filter_map(|(_, number)| name(number.parse().ok()?)).collect::<Vec<_>>()
    };
    let shared = directories.iter().map(|directory| SharedDirectory {
        what: directory.what.clone(),
        path: directory.path.clone(),
        with: with(&directory.what),
    });
    shared.filter(|shared| !shared.with.is_empty()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use std::path::Path;
    use std::process::Command;

    #[test]
    fn only_directories_that_may_be_one_are_suspect() {
        let facts = |text: &str| Facts::parse(text);
        let suspect = |a: &str, b: &str| {
            let (a, b) = (facts(a), facts(b));
            suspects(&a, &[&a, &b]).iter().map(|directory| directory.what.clone()).collect::<Vec<_>>()
        };
        let local = "directory jobs ext2/ext3 /opt/jobs\ndirectory projects nfs /opt/my projects\n";
        assert_eq!(suspect(local, "directory jobs ext2/ext3 /opt\ndirectory projects xfs /opt\n"), [""; 0]);
        assert_eq!(suspect(local, "directory jobs nfs /opt\ndirectory projects nfs /opt\n"), ["projects"]);
        let remote = "directory jobs fuseblk /jobs\n";
        assert_eq!(suspect(remote, "directory jobs UNKNOWN(0x19830326) /jobs\n"), ["jobs"]);
        assert_eq!(suspect(remote, local), [""; 0]);
    }

    /// Runs the script on "nodes" whose directories of jobs are these, and returns which of them each node shares.
    fn found(places: &[&Path]) -> Vec<String> {
        let run = |step: &str| {
            let on = |(i, place): (usize, &&Path)| {
                let others: Vec<String> = (0..places.len()).map(|i| i.to_string()).collect();
                let script = Script::new(SCRIPT).with("step", step).with("nonce", "n1").with("me", &i.to_string());
                let script = script.with("others", &others.join(" "));
                let script = script.with("directories", &format!("jobs {}", place.display()));
                let output = Command::new("sh").arg("-c").arg(script.whole()).output().unwrap();
                assert!(output.status.success(), "{output:?}");
                String::from_utf8(output.stdout).unwrap()
            };
            places.iter().enumerate().map(on).collect::<Vec<_>>()
        };
        let _ = run("mark");
        let found = run("look");
        let _ = run("clear");
        found
    }

    #[test]
    fn a_directory_that_two_nodes_have_is_found_and_left_as_it_was() {
        let dir = tempfile::tempdir().unwrap();
        let (a, b) = (dir.path().join("a b"), dir.path().join("b"));
        [&a, &b].into_iter().for_each(|path| fs::create_dir(path).unwrap());
        assert_eq!(found(&[&a, &b, &a]), ["jobs 2\n", "", "jobs 0\n"]);
        assert_eq!(found(&[&a, &b]), ["", ""]);
        assert!([&a, &b].iter().all(|path| fs::read_dir(path).unwrap().count() == 0));
        let directory = NodeDirectory { what: "jobs".into(), file_system: "nfs".into(), path: "/jobs".into() };
        let shared = parse(b"jobs 1\nssh 1\njobs 7\n", &[directory], |i| (i == 1).then(|| "node2".to_owned()));
        assert_eq!(shared, [SharedDirectory { what: "jobs".into(), path: "/jobs".into(), with: vec!["node2".into()] }]);
    }
}
