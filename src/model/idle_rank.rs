//! Ranks that make no progress.

use super::role::{RankOfRole, names};
use crate::text::nodeset;
use crate::text::units::{clock, stamp};
use schemars::JsonSchema;
use serde::{Serialize, Serializer};
use std::collections::{BTreeMap, BTreeSet};

/// The most lines that describe what ranks do; each stands for all ranks that do the same.
const MAX_LINES: usize = 6;

/// A rank that makes no progress.
#[derive(Debug, Clone, PartialEq, Serialize, JsonSchema)]
pub struct IdleRank {
    /// The global rank.
    pub rank: u32,
    /// Its role, in a job with roles.
    #[serde(flatten)]
    pub role: Option<RankOfRole>,
    /// Its node.
    pub node: String,
    /// The time since which it has made no progress, in seconds since the epoch; in JSON RFC 3339 in UTC.
    #[serde(serialize_with = "rfc3339")]
    #[schemars(with = "String")]
    pub since: f64,
    /// Its activity meanwhile, as text.
    pub does: String,
}

fn rfc3339<S: Serializer>(seconds: &f64, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_str(&stamp(*seconds))
}

impl IdleRank {
    /// Parses `RANK SINCE WHAT`, as `waiting.py` stores it on a node; `None` if it is cut off.
    pub fn parse(node: &str, text: &str) -> Option<IdleRank> {
        let mut parts = text.splitn(3, ' ');
        let (rank, since) = (parts.next()?.parse().ok()?, parts.next()?.parse().ok()?);
        Some(IdleRank { rank, role: None, node: node.to_owned(), since, does: parts.next()?.to_owned() })
    }

    /// Returns its rank and role, for [`names`].
    fn named(&self) -> (u32, Option<&RankOfRole>) {
        (self.rank, self.role.as_ref())
    }
}

/// Formats ranks with their nodes: `ranks 0-2 on node[1-2]`.
pub fn with_nodes<'a>(idle: impl IntoIterator<Item = &'a IdleRank>) -> String {
    let (ranks, nodes): (Vec<_>, BTreeSet<&str>) = idle.into_iter().map(|idle| (idle.named(), &*idle.node)).unzip();
    format!("{} on {}", names(ranks), nodeset::fold(&Vec::from_iter(nodes)))
}

/// Formats since when the first of these ranks has been idle: `since 14:02 UTC`; `None` without ranks.
pub fn since(idle: &[IdleRank], now: f64) -> Option<String> {
    let since = idle.iter().map(|rank| rank.since).min_by(f64::total_cmp)?;
    Some(format!("since {}", clock(since, now)))
}

/// Summarizes which ranks are idle: `ranks 0-7 idle since 14:02 UTC`; `None` without ranks.
pub fn summary(idle: &[IdleRank], now: f64) -> Option<String> {
    Some(format!("{} idle {}", names(idle.iter().map(IdleRank::named)), since(idle, now)?))
}

/// Describes what ranks do, one text for all that do the same, those of the fewest ranks first: they are the likely
/// cause.
pub fn descriptions(idle: &[IdleRank]) -> Vec<String> {
    let mut groups: BTreeMap<&str, Vec<&IdleRank>> = BTreeMap::new();
    idle.iter().for_each(|rank| groups.entry(&rank.does).or_default().push(rank));
    let mut groups = Vec::from_iter(groups);
    groups.sort_by_key(|(_, ranks)| (ranks.len(), ranks[0].rank));
    let named = |ranks: &[&IdleRank]| with_nodes(ranks.iter().copied());
    let rest = groups.split_off(groups.len().min(MAX_LINES));
    let mut texts: Vec<String> = groups.iter().map(|(does, ranks)| format!("{}: {does}", named(ranks))).collect();
    if !rest.is_empty() {
        let mut others: Vec<&IdleRank> = rest.into_iter().flat_map(|(_, ranks)| ranks).collect();
        others.sort_by_key(|rank| rank.rank);
        texts.push(format!("{}: other things", named(&others)));
    }
    texts
}

#[cfg(test)]
mod tests {
    use super::*;

    fn idle(rank: u32, does: &str) -> IdleRank {
        let since = 1_795_262_584.0 + f64::from(rank);
        IdleRank { rank, role: None, node: format!("node{}", rank / 2 + 1), since, does: does.into() }
    }

    #[test]
    fn what_a_node_stores_is_parsed() {
        let parsed = IdleRank::parse("node2", "3 1795262587 waiting in read for data from /a b");
        assert_eq!(parsed, Some(idle(3, "waiting in read for data from /a b")));
        for cut in ["", "3", "3 1795262587", "x 1 y", "3 x y"] {
            assert_eq!(IdleRank::parse("node2", cut), None, "{cut}");
        }
    }

    #[test]
    fn ranks_that_do_the_same_are_one_text() {
        let ranks = [idle(0, "in futex"), idle(1, "in futex"), idle(2, "sleeping"), idle(3, "in futex")];
        assert_eq!(summary(&ranks, 1_795_262_600.0).unwrap(), "ranks 0-3 idle since 12:03 UTC");
        assert_eq!(summary(&ranks[2..3], 1_795_362_600.0).unwrap(), "rank 2 idle since 2026-11-21 12:03 UTC");
        assert_eq!(descriptions(&ranks), ["rank 2 on node2: sleeping", "ranks 0-1,3 on node[1-2]: in futex"]);
        assert_eq!((summary(&[], 0.0), descriptions(&[])), (None, Vec::new()));
        let many: Vec<IdleRank> = (0..100).map(|rank| idle(rank, &format!("in {rank}"))).collect();
        let texts = descriptions(&many);
        assert_eq!((texts.len(), &*texts[6]), (7, "ranks 6-99 on node[4-50]: other things"));
    }
}
