//! Sets of nodes: `--on` selects them, tables fold them.

use std::collections::{BTreeMap, HashMap};
use std::ops::RangeInclusive;

/// The reason where names cancel each other.
pub const NONE_LEFT: &str = "no node is left";

/// A selection that names no node, or cannot be read.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("--on {}: {reason}", told(.term))]
pub struct BadSelection {
    /// The part that is wrong.
    pub term: String,
    /// Why.
    pub reason: String,
}

/// The nodes of each group by its name.
pub type Groups = BTreeMap<String, Vec<String>>;

/// The nodes of `all` that an expression names, in the order of `all`.
///
/// `gpu1,gpu[03-05],@fast,!gpu04`: names, ranges with leading zeros, `@` before a group's name, `,` to join, `!` to take
/// away from what stands before it. An expression that starts with `!` takes away from all.
///
/// # Errors
/// [`BadSelection`] for a name that is no node or group, a range that cannot be read, or nothing left.
pub fn select(expression: &str, all: &[String], groups: &Groups) -> Result<Vec<String>, BadSelection> {
    let bad = |term: &str, reason: &str| BadSelection { term: term.into(), reason: reason.into() };
    let positions: HashMap<&str, usize> = all.iter().enumerate().map(|(i, name)| (name.as_str(), i)).collect();
    let mut chosen = vec![expression.trim_start().starts_with('!'); all.len()];
    for (takes, part) in terms(expression) {
        for name in expand(part).map_err(|reason| bad(part, &reason))? {
            let own = std::slice::from_ref(&name);
            let members = match name.strip_prefix('@') {
                None => own,
                Some(group) => {
                    groups.get(group).map(Vec::as_slice).ok_or_else(|| bad(part, &no_group(group, groups)))?
                }
            };
            for name in members {
                let position = positions.get(name.as_str());
                let position = position
                    .ok_or_else(|| bad(part, &format!("no node is named {} (nodes: {})", told(name), fold(all))))?;
                chosen[*position] = !takes;
            }
        }
    }
    let names: Vec<String> = all.iter().zip(chosen).filter(|(_, c)| *c).map(|(n, _)| n.clone()).collect();
    if names.is_empty() { Err(bad(expression, NONE_LEFT)) } else { Ok(names) }
}

/// The parts of an expression, each with whether it takes away.
fn terms(expression: &str) -> impl Iterator<Item = (bool, &str)> {
    split(expression).into_iter().flat_map(|term| {
        // `a!b` is `a` without `b`, as it is in ClusterShell
        let added = usize::from(!term.starts_with('!'));
        term.split('!').filter(|part| !part.is_empty()).enumerate().map(move |(i, part)| (i >= added, part))
    })
}

/// The groups that an expression names, as far as they can be read.
pub fn groups_in(expression: &str) -> impl Iterator<Item = String> {
    let parts = terms(expression).filter_map(|(_, part)| part.strip_prefix('@'));
    parts.filter_map(|part| Ranges::parse(part).ok()).flat_map(Ranges::names)
}

fn no_group(name: &str, groups: &Groups) -> String {
    let there: Vec<String> = groups.keys().map(|group| format!("@{group}")).collect();
    let name = told(name);
    match &there[..] {
        [] => format!("there is no group {name}: the inventory has no [groups]"),
        there => format!("there is no group {name} (groups: {})", there.join(", ")),
    }
}

/// What somebody wrote, as it may stand in a message: in quotes with escapes where it could disturb a terminal.
fn told(text: &str) -> String {
    let escaped = text.escape_debug().to_string();
    if escaped == text { text.to_owned() } else { format!("{text:?}") }
}

/// Splits at commas that are not in brackets.
pub fn split(expression: &str) -> Vec<&str> {
    let mut parts = Vec::new();
    let (mut depth, mut start) = (0usize, 0);
    for (i, c) in expression.char_indices() {
        match c {
            '[' => depth += 1,
            ']' => depth = depth.saturating_sub(1),
            ',' if depth == 0 => {
                parts.push(expression[start..i].trim());
                start = i + 1;
            }
            _ => {}
        }
    }
    parts.push(expression[start..].trim());
    parts.retain(|p| !p.is_empty());
    parts
}

/// `gpu[01-03,7]` → `gpu01 gpu02 gpu03 gpu7`, each made only when it is asked for.
///
/// # Errors
/// In words: a range that cannot be read, or is empty or too long.
pub fn expand(term: &str) -> Result<impl Iterator<Item = String> + '_, String> {
    Ok(Ranges::parse(term)?.names())
}

/// The most nodes that one pair of brackets may name.
const LONGEST: usize = 100_000;

/// A term as it is written, before its names are made.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Ranges<'t> {
    prefix: &'t str,
    suffix: &'t str,
    /// The numbers and how many digits they have at least; `None` for a term without brackets.
    numbers: Option<Vec<(RangeInclusive<u32>, usize)>>,
    len: usize,
}

impl<'t> Ranges<'t> {
    /// Reads `gpu[01-03,7]`, or a name alone.
    ///
    /// # Errors
    /// In words: a range that cannot be read, or is empty or too long.
    pub fn parse(term: &'t str) -> Result<Ranges<'t>, String> {
        let Some((prefix, rest)) = term.split_once('[') else {
            return Ok(Ranges { prefix: term, suffix: "", numbers: None, len: 1 });
        };
        let (ranges, suffix) = rest.split_once(']').ok_or("a bracket is not closed")?;
        let mut numbers = Vec::new();
        let mut len = 0;
        for range in ranges.split(',') {
            let (low, high) = range.split_once('-').unwrap_or((range, range));
            let (from, to) = (number(low)?, number(high)?);
            len += to.checked_sub(from).map_or(LONGEST, |more| more as usize) + 1;
            if len > LONGEST {
                return Err(format!("the range {range} is empty or too long"));
            }
            numbers.push((from..=to, low.len()));
        }
        Ok(Ranges { prefix, suffix, numbers: Some(numbers), len })
    }

    /// For how many names it stands.
    #[allow(clippy::len_without_is_empty)] // never for none
    pub fn len(&self) -> usize {
        self.len
    }

    /// The names.
    pub fn names(self) -> impl Iterator<Item = String> + 't {
        let Ranges { prefix, suffix, numbers, .. } = self;
        let plain = numbers.is_none().then(|| prefix.to_owned());
        let numbered = numbers
            .into_iter()
            .flatten()
            .flat_map(move |(numbers, width)| numbers.map(move |n| format!("{prefix}{n:0width$}{suffix}")));
        plain.into_iter().chain(numbered)
    }
}

/// Digits and nothing else, as many as [`fold`] writes: the width of a number is that of its text.
fn number(text: &str) -> Result<u32, String> {
    let good = (1..10).contains(&text.len()) && text.bytes().all(|b| b.is_ascii_digit());
    good.then(|| text.parse().ok()).flatten().ok_or_else(|| format!("{text:?} is no number of up to 9 digits"))
}

/// Folds names for people: `node1 node2 node3 gpu` → `gpu,node[1-3]`.
pub fn fold(names: &[String]) -> String {
    let mut plain = Vec::new();
    // (prefix, suffix, digits) → numbers as written
    let mut written: BTreeMap<(&str, &str, usize), Vec<&str>> = BTreeMap::new();
    for name in names {
        let digit = |c: char| c.is_ascii_digit();
        let end = name.rfind(digit).map(|i| i + 1);
        let start = end.map(|end| name[..end].trim_end_matches(digit).len());
        // an address or a name of digits alone reads better whole
        match start.zip(end).filter(|(start, end)| *start > 0 && end - start < 10 && !name.contains(['.', ':'])) {
            Some((start, end)) => {
                let key = (&name[..start], &name[end..], end - start);
                written.entry(key).or_default().push(&name[start..end]);
            }
            None => plain.push(name.clone()),
        }
    }
    // one leading zero says that the whole group is written with a fixed width
    let mut numbered: BTreeMap<(&str, &str, usize), Vec<u32>> = BTreeMap::new();
    for ((prefix, suffix, digits), numbers) in written {
        let fixed = digits > 1 && numbers.iter().any(|n| n.starts_with('0'));
        let group = numbered.entry((prefix, suffix, if fixed { digits } else { 0 })).or_default();
        group.extend(numbers.iter().filter_map(|n| n.parse::<u32>().ok()));
    }
    for ((prefix, suffix, width), mut numbers) in numbered {
        numbers.sort_unstable();
        numbers.dedup();
        let mut ranges: Vec<String> = Vec::new();
        let mut i = 0;
        while i < numbers.len() {
            let mut j = i;
            while j + 1 < numbers.len() && numbers[j + 1] == numbers[j] + 1 {
                j += 1;
            }
            let from = format!("{:0width$}", numbers[i]);
            ranges.push(if i == j { from } else { format!("{from}-{:0width$}", numbers[j]) });
            i = j + 1;
        }
        let single = ranges.len() == 1 && !ranges[0].contains('-');
        plain.push(if single {
            format!("{prefix}{}{suffix}", ranges[0])
        } else {
            format!("{prefix}[{}]{suffix}", ranges.join(","))
        });
    }
    plain.sort();
    plain.join(",")
}

/// A line for each text, in the order in which they first come, with the nodes that share it folded and counted:
/// `node[01-16] (16): unchanged`.
pub fn rows(told: impl IntoIterator<Item = (String, String)>) -> String {
    let told = told.into_iter().map(|(node, text)| (text, node));
    alike(told).iter().map(|(text, nodes)| format!("{}: {text}\n", counted(nodes))).collect()
}

/// The same for texts of whole lines: one that has several stands below its nodes, moved in. Who said nothing is not told.
pub fn blocks(told: impl IntoIterator<Item = (String, String)>) -> String {
    let told = told.into_iter().filter(|(_, text)| !text.is_empty()).map(|(node, text)| (text, node));
    let block = |(text, nodes): &(String, Vec<String>)| match text.trim_end_matches('\n') {
        line if !line.contains('\n') => format!("{}: {line}\n", counted(nodes)),
        lines => {
            let lines: String = lines.split('\n').map(|line| format!("  {line}\n")).collect();
            format!("{}:\n{lines}", counted(nodes))
        }
    };
    alike(told).iter().map(block).collect()
}

/// Groups nodes by equal value, in the order in which the values first come.
pub fn alike<V: PartialEq, N>(nodes: impl IntoIterator<Item = (V, N)>) -> Vec<(V, Vec<N>)> {
    let mut groups: Vec<(V, Vec<N>)> = Vec::new();
    for (value, node) in nodes {
        match groups.iter_mut().find(|(other, _)| *other == value) {
            Some((_, nodes)) => nodes.push(node),
            None => groups.push((value, vec![node])),
        }
    }
    groups
}

fn counted(nodes: &[String]) -> String {
    match nodes.len() {
        1 => nodes[0].clone(),
        count => format!("{} ({count})", fold(nodes)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn names(list: &str) -> Vec<String> {
        list.split(' ').map(str::to_owned).collect()
    }

    #[test]
    fn selections() {
        let all = names("gpu01 gpu02 gpu03 gpu10 head");
        for (expression, expected) in [
            ("head", "head"),
            ("gpu[01-03]", "gpu01 gpu02 gpu03"),
            ("gpu[01-02,10],head", "gpu01 gpu02 gpu10 head"),
            ("gpu[01-03]!gpu02", "gpu01 gpu03"),
            ("gpu[01-03],!gpu02", "gpu01 gpu03"),
            ("!head", "gpu01 gpu02 gpu03 gpu10"),
        ] {
            assert_eq!(select(expression, &all, &none()).unwrap(), names(expected), "{expression}");
        }
        assert_eq!(
            select("gpu1", &all, &none()).unwrap_err().to_string(),
            "--on gpu1: no node is named gpu1 (nodes: gpu[01-03,10],head)"
        );
        for written in ["gpu01\0", "\u{1b}[31m", "@\u{1b}]0;x\u{7}", "\u{202e}gpu", "gpu[\u{1b}]", "gpu[1-2]\r"] {
            let bad = select(written, &all, &none()).unwrap_err();
            for text in [bad.to_string(), bad.reason] {
                assert!(!text.contains(|c: char| c.is_control() || c == '\u{202e}'), "{text:?}");
            }
        }
        for bad in ["gpu[01-", "gpu[a-b]", "gpu[3-1]", "head,!head", "", "gpu[0-4294967295]", "gpu[+1-2]"] {
            assert!(select(bad, &all, &none()).is_err(), "{bad}");
        }
    }

    #[test]
    fn hundreds_of_rows_are_few() {
        let row = |i: u32| {
            let text = match i {
                17 => "recreate hworker (image)",
                3 | 190 => "unchanged",
                _ => "start hworker",
            };
            (format!("gpu{i:03}"), text.to_owned())
        };
        assert_eq!(
            rows((1..=200).map(row)),
            "gpu[001-002,004-016,018-189,191-200] (197): start hworker\ngpu[003,190] (2): unchanged\n\
             gpu017: recreate hworker (image)\n"
        );
        assert_eq!(rows([]), "");
    }

    #[test]
    fn letters_of_several_bytes_stand_before_numbers() {
        let all = names("knotenä1 knotenä2 ß");
        assert_eq!(fold(&all), "knotenä[1-2],ß");
        assert_eq!(select("knotenä[1-2]", &all, &none()).unwrap(), names("knotenä1 knotenä2"));
    }

    #[test]
    fn no_range_takes_the_memory() {
        let all = names("gpu1");
        for long in [
            format!("gpu[{}]", vec!["0-99999"; 10_000].join(",")),
            format!("gpu[{}1]", "0".repeat(100_000)),
            format!("gpu[{}1-99999]", "0".repeat(1_000)),
        ] {
            assert!(select(&long, &all, &none()).is_err());
        }
    }

    fn none() -> Groups {
        Groups::new()
    }

    #[test]
    fn groups_stand_for_their_nodes() {
        let names = |s: &str| s.split_whitespace().map(str::to_owned).collect::<Vec<_>>();
        let all = names("gpu01 gpu02 gpu03 head");
        let groups = Groups::from([
            ("fast".into(), names("gpu01 gpu02")),
            ("r1".into(), names("gpu03")),
            ("r2".into(), names("head")),
        ]);
        for (expression, expected) in [
            ("@fast", "gpu01 gpu02"),
            ("@fast!gpu01", "gpu02"),
            ("!@fast", "gpu03 head"),
            ("head,@fast,!@fast,gpu02", "gpu02 head"),
            ("@r[1-2]", "gpu03 head"),
        ] {
            assert_eq!(select(expression, &all, &groups).unwrap(), names(expected), "{expression}");
        }
        let refused = |expression: &str, groups: &Groups| select(expression, &all, groups).unwrap_err().to_string();
        assert_eq!(refused("@fats", &groups), "--on @fats: there is no group fats (groups: @fast, @r1, @r2)");
        assert_eq!(refused("@fast", &none()), "--on @fast: there is no group fast: the inventory has no [groups]");
        assert_eq!(refused("@fast,!@fast", &groups), "--on @fast,!@fast: no node is left");
        assert_eq!(groups_in("a,@b!@c[1-2],!@d").collect::<Vec<_>>(), ["b", "c1", "c2", "d"]);
    }

    proptest! {
        #[test]
        fn what_is_folded_selects_the_same(picks in prop::collection::vec(any::<bool>(), 24)) {
            let all: Vec<String> = (0..12).map(|i| format!("n{i}")).chain((0..12).map(|i| format!("gpu{i:02}-a"))).collect();
            let some: Vec<String> = all.iter().zip(&picks).filter(|(_, p)| **p).map(|(n, _)| n.clone()).collect();
            prop_assume!(!some.is_empty());
            prop_assert_eq!(select(&fold(&some), &all, &none()).unwrap(), some);
        }

        #[test]
        fn anything_is_read_or_refused(expression in ".{0,40}") {
            let _ = select(&expression, &["a".to_owned()], &none());
            let _ = groups_in(&expression).count();
        }
    }
}
