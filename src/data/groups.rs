//! Groups of nodes that are sent the same data, which then cross the operator's link once.

use crate::sync::manifest::{Manifest, ManifestEntry, Selection};

/// Nodes that are sent the same.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Group {
    /// The positions of the nodes.
    pub nodes: Vec<usize>,
    /// All that one of them lacks.
    pub sent: Selection,
    /// The bytes that this saves, compared with sending each of them only what it lacks.
    pub saved: u64,
}

/// Groups nodes by what is missing on each. After an interrupted push every node lacks other files, so nodes of a group
/// may lack different ones: each is sent all that one of them lacks. A node joins a group only if what the group is
/// sent then is at most twice of what the node lacks, and at most twice of what the group was sent before.
pub fn groups(manifest: &Manifest, missing: &[Selection]) -> Vec<Group> {
    let bytes = |selection: &Selection| {
        manifest.select(selection).map(|(_, entry): (_, &ManifestEntry)| entry.size()).sum::<u64>()
    };
    let mut order: Vec<(usize, u64)> = missing.iter().map(bytes).enumerate().collect();
    order.sort_by_key(|(_, bytes)| std::cmp::Reverse(*bytes));
    let mut groups: Vec<(Group, u64)> = Vec::new();
    for (node, own) in order {
        let selection = &missing[node];
        let joined = groups.iter_mut().find_map(|(group, all)| {
            let sent = group.sent.or(selection);
            let sum = if sent == group.sent { *all } else { bytes(&sent) };
            let is_alike = own.saturating_mul(2) >= sum && all.saturating_mul(2) >= sum;
            is_alike.then_some((group, all, sent, sum))
        });
        match joined {
            Some((group, all, sent, sum)) => {
                group.nodes.push(node);
                (group.sent, group.saved) = (sent, (group.saved + *all + own).saturating_sub(sum));
                *all = sum;
            }
            None => groups.push((Group { nodes: vec![node], sent: selection.clone(), saved: 0 }, own)),
        }
    }
    let mut groups: Vec<Group> = groups.into_iter().map(|(group, _)| group).collect();
    groups.iter_mut().for_each(|group| group.nodes.sort_unstable());
    groups
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nodes_that_lack_mostly_the_same_are_sent_the_same() {
        let file =
            |(name, size): (&str, u64)| (name.to_owned(), ManifestEntry::File { hash: [0; 32], mode: 0o644, size });
        let manifest = Manifest([("a", 10), ("b", 10), ("c", 10), ("d", 100)].into_iter().map(file).collect());
        let all = manifest.all();
        let lacks = |names: &str| {
            let has = manifest.0.iter().filter(|(name, _)| !names.contains(name.as_str()));
            let has = has.map(|(name, entry)| (name.clone(), Manifest([(name.clone(), entry.clone())].into()).text()));
            // records without the name, as nodes report them
            let has = has.map(|(name, text)| (name.clone(), text.trim_end_matches(&format!(" {name}\0")).to_owned()));
            manifest.missing(&has.collect())
        };
        assert_eq!((lacks("abcd"), manifest.select(&lacks("b")).count()), (all, 1));
        let of = |nodes: &[&str]| {
            let missing: Vec<Selection> = nodes.iter().map(|names| lacks(names)).collect();
            groups(&manifest, &missing)
                .into_iter()
                .map(|group| {
                    let names: String = manifest.select(&group.sent).map(|(name, _)| name.as_str()).collect();
                    format!("{:?} {names} {}", group.nodes, group.saved)
                })
                .collect::<Vec<_>>()
        };
        assert_eq!(of(&[]), [""; 0]);
        assert_eq!(of(&["abcd", "abcd", "abcd"]), ["[0, 1, 2] abcd 260"]);
        // one that was interrupted later than the other
        assert_eq!(of(&["cd", "bcd"]), ["[0, 1] bcd 110"]);
        assert_eq!(of(&["ab", "bc"]), ["[0, 1] abc 10"]);
        // a new node, and two that lack little
        assert_eq!(of(&["a", "abcd", "a"]), ["[1] abcd 0", "[0, 2] a 10"]);
        assert_eq!(of(&["a", "b"]), ["[0, 1] ab 0"]);
        assert_eq!(of(&["ab", "c", "d"]), ["[2] d 0", "[0] ab 0", "[1] c 0"]);
    }
}
