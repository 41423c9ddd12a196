//! The virtualenvs of a node.

use super::EnvPlace;
use super::probe::MadeEnv;
use crate::error::NodeError;
use crate::inventory::Node;
use crate::transport::node::{Script, Transport};
use std::collections::{BTreeMap, BTreeSet};

const LIST: &str = concat!(
    include_str!("../scripts/node/close.sh"),
    include_str!("../scripts/node/permissions.sh"),
    include_str!("../scripts/env/common.sh"),
    include_str!("../scripts/env/activate.sh"),
    include_str!("../scripts/env/list.sh")
);

/// A virtualenv of a node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ListedEnv {
    /// Its name.
    pub name: String,
    /// `complete`, `incomplete`, `creating`, or `broken` if its Python does not run.
    pub state: String,
    /// Its contents, if it is complete or broken.
    pub made: Option<MadeEnv>,
    /// The seconds since it was made.
    pub age: Option<u64>,
}

/// A node and its virtualenvs.
pub type NodeEnvs = (String, Vec<ListedEnv>);

/// Lists the virtualenvs of a node.
///
/// # Errors
/// If the node does not answer.
pub async fn list(place: &EnvPlace, node: &Node, transport: &Transport) -> Result<Vec<ListedEnv>, NodeError> {
    let script = Script::new(LIST).with("state_dir", &place.state_dir);
    let script = script.with("activate", &place.activation_before(node));
    let listed = transport.script_as_login(&script, "list the virtualenvs").await?;
    Ok(parse(&String::from_utf8_lossy(&listed)))
}

fn parse(text: &str) -> Vec<ListedEnv> {
    let mut all: Vec<ListedEnv> = Vec::new();
    for line in text.lines() {
        let (key, value) = line.split_once(' ').unwrap_or((line, ""));
        if key == "env" {
            let (name, state) = value.split_once(' ').unwrap_or((value, "incomplete"));
            all.push(ListedEnv { name: name.to_owned(), state: state.to_owned(), made: None, age: None });
            continue;
        }
        let Some(last) = all.last_mut() else { continue };
        if key == "now" {
            let age = |made: &MadeEnv| Some(value.parse::<u64>().ok()?.saturating_sub(made.time));
            last.age = last.made.as_ref().and_then(age);
        } else {
            let mut made = last.made.take().unwrap_or_default();
            let is_known = made.take(key, value);
            last.made = (is_known || made != MadeEnv::default()).then_some(made);
        }
    }
    all
}

/// Returns the virtualenv of this name.
pub fn named<'a>(listed: &'a [ListedEnv], name: &str) -> Option<&'a ListedEnv> {
    listed.iter().find(|env| env.name == name)
}

/// Returns the names of all.
pub fn names(nodes: &[NodeEnvs]) -> BTreeSet<&str> {
    nodes.iter().flat_map(|(_, listed)| listed).map(|env| env.name.as_str()).collect()
}

/// Returns the nodes of which a virtualenv is not complete, or not the one that most nodes have.
pub fn odd_nodes(nodes: &[NodeEnvs]) -> BTreeSet<&str> {
    let mut odd = BTreeSet::new();
    for name in names(nodes) {
        let same = |env: &ListedEnv| {
            let made = env.made.as_ref().filter(|_| env.state == "complete")?;
            Some((made.hash.clone(), made.content.clone(), super::probe::minor_version(&made.python).to_owned()))
        };
        let of = |listed: &[ListedEnv]| named(listed, name).and_then(same);
        let mut counts: BTreeMap<_, usize> = BTreeMap::new();
        nodes.iter().filter_map(|(_, listed)| of(listed)).for_each(|is| *counts.entry(is).or_default() += 1);
        let most = counts.iter().max_by_key(|(_, count)| **count).map(|(is, _)| is.clone());
        odd.extend(
            nodes.iter().filter(|(_, listed)| of(listed) != most || most.is_none()).map(|(node, _)| node.as_str()),
        );
    }
    odd
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "env default complete\ntool uv 0.13.9\nhash 1f0c\npython 3.11.7\ncontent 77\nsize 2048\n\
                        time 100\nsource ana@desk:/r.txt\nnow 160\nenv gpu incomplete\nnow 160\n";

    #[test]
    fn the_lines_of_the_script_are_read() {
        let all = parse(TEXT);
        assert_eq!(all.iter().map(|env| env.name.as_str()).collect::<Vec<_>>(), ["default", "gpu"]);
        let first = named(&all, "default").unwrap();
        assert_eq!((first.state.as_str(), first.age), ("complete", Some(60)));
        let made = first.made.as_ref().unwrap();
        assert_eq!((made.tool.as_str(), made.size, made.source.as_str()), ("uv 0.13.9", 2048, "ana@desk:/r.txt"));
        assert_eq!((all[1].state.as_str(), all[1].age, &all[1].made), ("incomplete", None, &None));
        assert_eq!(parse("x y\n"), []);
    }

    #[test]
    fn a_node_is_odd_if_it_has_another_one_than_most() {
        let of = |change: (&str, &str)| parse(&TEXT.split("env gpu").next().unwrap().replace(change.0, change.1));
        let with = |other: Vec<ListedEnv>| {
            let same = || of(("", ""));
            let nodes = [("n1".to_owned(), same()), ("n2".to_owned(), other), ("n3".to_owned(), same())];
            odd_nodes(&nodes).into_iter().map(str::to_owned).collect::<Vec<_>>()
        };
        assert_eq!(with(of(("3.11.7", "3.11.9"))), [""; 0], "an update within the version");
        for change in [("1f0c", "2f0c"), ("content 77", "content 78"), ("3.11.7", "3.12.0"), ("complete", "broken")] {
            assert_eq!(with(of(change)), ["n2"], "{change:?}");
        }
        assert_eq!(with(Vec::new()), ["n2"]);
        assert_eq!(odd_nodes(&[("n1".to_owned(), parse("env x incomplete\nnow 1\n"))]).len(), 1);
    }
}
