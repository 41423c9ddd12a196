//! Sets of nodes: `--on` selects them, tables fold them.

use regex::Regex;
use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::sync::LazyLock;

/// The most names that one term may stand for, and the most machines of an inventory; more are a mistyped range.
pub const MOST_NAMES: usize = 10_000;

/// The most bytes of a name that comes from a range; no host name is longer.
const LONGEST_NAME: usize = 255;

/// The nodes of each group by its name.
pub type Groups = BTreeMap<String, Vec<String>>;

/// Returns the nodes of `all` that an expression names, in the order of `all`.
///
/// `gpu1,gpu[03-05],r[1-2]n[1-8/2],@fast,!gpu04`: names, ranges with leading zeros and steps, `@` before a group's
/// name, `,` to join, `!` to remove from what precedes it. An expression that begins with `!` removes from all.
///
/// # Errors
/// A message about a name that is no node or group, a range that cannot be parsed, or nothing left.
pub fn select(expression: &str, all: &[String], groups: &Groups) -> Result<Vec<String>, String> {
    let positions: HashMap<&str, usize> = all.iter().enumerate().map(|(i, name)| (name.as_str(), i)).collect();
    let mut chosen = vec![expression.trim_start().starts_with('!'); all.len()];
    for (removes, part) in terms(expression) {
        for name in expand(part)? {
            let members = match name.strip_prefix('@') {
                None => std::slice::from_ref(&name),
                Some(group) => groups.get(group).ok_or_else(|| no_group(group, groups))?,
            };
            for name in members {
                let unknown = || format!("no node is named {} (nodes: {})", printable(name), fold(all));
                chosen[*positions.get(name.as_str()).ok_or_else(unknown)?] = !removes;
            }
        }
    }
    let names: Vec<String> =
        all.iter().zip(chosen).filter(|(_, chosen)| *chosen).map(|(name, _)| name.clone()).collect();
    if names.is_empty() { Err("no node is left".to_owned()) } else { Ok(names) }
}

/// The parts of an expression, each with whether it removes nodes.
fn terms(expression: &str) -> impl Iterator<Item = (bool, &str)> {
    split(expression).into_iter().flat_map(|term| {
        // `a!b` is `a` without `b`, as it is in ClusterShell
        let added = usize::from(!term.starts_with('!'));
        term.split('!').filter(|part| !part.is_empty()).enumerate().map(move |(i, part)| (i >= added, part))
    })
}

/// Returns the groups that an expression names, as far as it can be parsed.
pub fn groups_in(expression: &str) -> impl Iterator<Item = String> {
    terms(expression).filter_map(|(_, part)| expand(part.strip_prefix('@')?).ok()).flatten()
}

fn no_group(name: &str, groups: &Groups) -> String {
    let name = printable(name);
    if groups.is_empty() {
        return format!("there is no group {name}: the inventory has no [groups]");
    }
    let known: Vec<String> = groups.keys().map(|group| format!("@{group}")).collect();
    format!("there is no group {name} (groups: {})", known.join(", "))
}

/// Returns a text for a message: in quotes with escapes if it could disturb a terminal.
pub fn printable(text: &str) -> String {
    if text.escape_debug().eq(text.chars()) { text.to_owned() } else { format!("{text:?}") }
}

/// Splits at commas that are not in brackets.
pub fn split(expression: &str) -> Vec<&str> {
    let mut depth = 0usize;
    let parts = expression.split(|c| {
        match c {
            '[' => depth += 1,
            ']' => depth = depth.saturating_sub(1),
            _ => {}
        }
        c == ',' && depth == 0
    });
    parts.map(str::trim).filter(|part| !part.is_empty()).collect()
}

/// Returns the names that a term stands for: `gpu[01-03,7]`, every second one with `gpu[1-7/2]`, each with each in
/// `r[1-2]n[1-4]`, or a name alone.
///
/// # Errors
/// A message about a range that cannot be parsed or is empty, or names that are too many or too long.
pub fn expand(term: &str) -> Result<Vec<String>, String> {
    expand_with(term, numbers)
}

/// Returns the same where `values` reads what is in a pair of brackets, given how many values there may be.
///
/// # Errors
/// As [`expand`], and what `values` refuses.
pub fn expand_with(
    term: &str,
    values: impl Fn(&str, usize) -> Result<Vec<String>, String>,
) -> Result<Vec<String>, String> {
    let (mut names, mut rest) = (vec![String::new()], term);
    while let Some((before, behind)) = rest.split_once('[') {
        let (ranges, after) = behind.split_once(']').ok_or("a bracket is not closed")?;
        names = product(&names, before, &values(ranges, MOST_NAMES / names.len().max(1))?)?;
        rest = after;
    }
    product(&names, rest, &[String::new()])
}

/// Returns each name followed by a text and each value. Thousands of names must not multiply a text of any length.
fn product(names: &[String], text: &str, values: &[String]) -> Result<Vec<String>, String> {
    let is_alone = names.len() * values.len() == 1;
    if !is_alone && names.iter().any(|name| name.len() + text.len() > LONGEST_NAME) {
        return Err(format!("a name with a range has at most {LONGEST_NAME} bytes"));
    }
    let joined = |name: &String| values.iter().map(|value| format!("{name}{text}{value}")).collect::<Vec<_>>();
    Ok(names.iter().flat_map(joined).collect())
}

/// The numbers of `01-03,7,1-9/2`, with their leading zeros.
fn numbers(ranges: &str, most: usize) -> Result<Vec<String>, String> {
    let mut found = Vec::new();
    for range in ranges.split(',') {
        let (bounds, step) = range.split_once('/').map_or((range, None), |(bounds, step)| (bounds, Some(step)));
        let (low, high) = bounds.split_once('-').unwrap_or((bounds, bounds));
        let (from, to, width) = (number(low)?, number(high)?, low.len());
        let step = step.map_or(Ok(1), number)?;
        if from > to {
            return Err(format!("the range {range} is empty"));
        }
        if step == 0 {
            return Err(format!("the range {range} has steps of 0"));
        }
        if found.len() + ((to - from) / step) as usize >= most {
            return Err(format!("with the range {range} there are more than {MOST_NAMES} names"));
        }
        found.extend((from..=to).step_by(step as usize).map(|n| format!("{n:0width$}")));
    }
    Ok(found)
}

/// Parses up to 9 digits.
fn number(text: &str) -> Result<u32, String> {
    let good = (1..10).contains(&text.len()) && text.bytes().all(|b| b.is_ascii_digit());
    good.then(|| text.parse().ok()).flatten().ok_or_else(|| format!("{text:?} is not a number of up to 9 digits"))
}

/// Folds names for people: `node1 node2 node3 gpu` → `gpu,node[1-3]`, and several racks alike → `rack[1-2]-gpu[1-4]`.
/// Addresses and names of digits alone stay whole.
pub fn fold(names: &[impl AsRef<str>]) -> String {
    let mut folded = terms_of(names.iter().map(AsRef::as_ref).collect());
    folded.sort();
    folded.join(",")
}

/// Formats a set of nodes with its size.
pub fn with_count(nodes: &[&str]) -> String {
    if nodes.len() == 1 { nodes[0].to_owned() } else { format!("{} ({})", fold(nodes), nodes.len()) }
}

/// The terms of folded names: by their last number, then what comes before it in the same way where the rest is the
/// same.
fn terms_of(names: BTreeSet<&str>) -> Vec<String> {
    static NUMBERED: LazyLock<Regex> =
        LazyLock::new(|| Regex::new("^([^.:]*[^.:0-9])([0-9]{1,9})([^.:0-9]*)$").expect("a valid pattern"));
    let numbered = |name| NUMBERED.captures(name).map(|parts| parts.extract::<3>().1);
    // one leading zero shows that all numbers of as many digits have a fixed width
    let padded: HashSet<(&str, &str, usize)> = names
        .iter()
        .filter_map(|name| numbered(name))
        .filter(|[_, number, _]| number.len() > 1 && number.starts_with('0'))
        .map(|[prefix, number, suffix]| (prefix, suffix, number.len()))
        .collect();
    let mut folded = Vec::new();
    let mut groups: BTreeMap<(&str, &str, usize), BTreeSet<u32>> = BTreeMap::new();
    for name in names {
        match numbered(name).map(|[prefix, number, suffix]| (prefix, suffix, number.len(), number.parse())) {
            Some((prefix, suffix, digits, Ok(number))) => {
                let width = if padded.contains(&(prefix, suffix, digits)) { digits } else { 0 };
                groups.entry((prefix, suffix, width)).or_default().insert(number);
            }
            _ => folded.push(name.to_owned()),
        }
    }
    let mut prefixes: BTreeMap<String, BTreeSet<&str>> = BTreeMap::new();
    for ((prefix, suffix, width), numbers) in groups {
        prefixes.entry(format!("{}{suffix}", ranges(&numbers, width))).or_default().insert(prefix);
    }
    for (rest, prefixes) in prefixes {
        folded.extend(terms_of(prefixes).into_iter().map(|prefix| format!("{prefix}{rest}")));
    }
    folded
}

/// Formats numbers as ranges: `0-3,7`.
pub fn fold_numbers(numbers: &BTreeSet<u32>) -> String {
    ranges(numbers, 1).trim_matches(['[', ']']).to_owned()
}

/// Numbers as ranges in brackets; one alone has none.
fn ranges(numbers: &BTreeSet<u32>, width: usize) -> String {
    let mut ranges: Vec<(u32, u32)> = Vec::new();
    for &number in numbers {
        match ranges.last_mut() {
            Some((_, high)) if *high + 1 == number => *high = number,
            _ => ranges.push((number, number)),
        }
    }
    let text = |(low, high): &(u32, u32)| match low == high {
        true => format!("{low:0width$}"),
        false => format!("{low:0width$}-{high:0width$}"),
    };
    let is_single = matches!(ranges[..], [(low, high)] if low == high);
    let text = ranges.iter().map(text).collect::<Vec<_>>().join(",");
    if is_single { text } else { format!("[{text}]") }
}

/// Formats texts, in the order in which they first come, with the nodes that share each folded and counted:
/// `node[01-16] (16): unchanged`. Several lines are indented below their nodes. Nodes without text are left out.
pub fn rows(texts: impl IntoIterator<Item = (String, String)>) -> String {
    let texts = texts.into_iter().filter(|(_, text)| !text.is_empty()).map(|(node, text)| (text, node));
    let row = |(text, nodes): (String, Vec<String>)| {
        let nodes = if let [node] = &nodes[..] { node.clone() } else { format!("{} ({})", fold(&nodes), nodes.len()) };
        match text.trim_end_matches('\n') {
            line if !line.contains('\n') => format!("{nodes}: {line}\n"),
            lines => format!("{nodes}:\n  {}\n", lines.replace('\n', "\n  ")),
        }
    };
    alike(texts).into_iter().map(row).collect()
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
            ("gpu[01-03/2]", "gpu01 gpu03"),
            ("gpu[0][1,3]", "gpu01 gpu03"),
        ] {
            assert_eq!(select(expression, &all, &none()).unwrap(), names(expected), "{expression}");
        }
        assert_eq!(select("gpu1", &all, &none()).unwrap_err(), "no node is named gpu1 (nodes: gpu[01-03,10],head)");
        for (long, range) in [("gpu[0-99999]", "0-99999"), ("gpu[0-4999,5000-10000]", "5000-10000")] {
            let expected = format!("with the range {range} there are more than 10000 names");
            assert_eq!(select(long, &all, &none()).unwrap_err(), expected);
        }
        for written in ["gpu01\0", "\u{1b}[31m", "@\u{1b}]0;x\u{7}", "\u{202e}gpu", "gpu[\u{1b}]", "gpu[1-2]\r"] {
            let why = select(written, &all, &none()).unwrap_err();
            assert!(!why.contains(|c: char| c.is_control() || c == '\u{202e}'), "{why:?}");
        }
        for bad in ["gpu[01-", "gpu[a-b]", "gpu[3-1]", "head,!head", "", "gpu[0-4294967295]", "gpu[+1-2]", "gpu[0][1"] {
            assert!(select(bad, &all, &none()).is_err(), "{bad}");
        }
    }

    #[test]
    fn terms_as_clush_and_slurm_write_them() {
        for (term, expected) in [
            ("gpu[1-8/2]", "gpu1 gpu3 gpu5 gpu7"),
            ("gpu[1-8/3,10]", "gpu1 gpu4 gpu7 gpu10"),
            ("gpu[08-12/2]", "gpu08 gpu10 gpu12"),
            ("gpu[1-2/9]", "gpu1"),
            ("rack[1-2]-gpu[1-2]", "rack1-gpu1 rack1-gpu2 rack2-gpu1 rack2-gpu2"),
            ("r[1-2]n[01-02].lan", "r1n01.lan r1n02.lan r2n01.lan r2n02.lan"),
            ("[1-2][3,5]", "13 15 23 25"),
            ("a[1]b[2]c[3]", "a1b2c3"),
        ] {
            assert_eq!(expand(term).unwrap(), names(expected), "{term}");
        }
        assert_eq!(expand("n[0-99][0-99]").unwrap().len(), MOST_NAMES);
        for (term, expected) in [
            ("n[0-99][0-100]", "with the range 0-100 there are more than 10000 names"),
            ("n[0-999][0-9,10]", "with the range 10 there are more than 10000 names"),
            ("n[0-99999999/2]", "with the range 0-99999999/2 there are more than 10000 names"),
            ("n[1-2/0]", "the range 1-2/0 has steps of 0"),
            ("n[1-2/]", "\"\" is not a number of up to 9 digits"),
            ("n[1-2/-1]", "\"-1\" is not a number of up to 9 digits"),
            ("n[1-2][", "a bracket is not closed"),
            ("n[1-2][]", "\"\" is not a number of up to 9 digits"),
        ] {
            assert_eq!(expand(term).unwrap_err(), expected, "{term}");
        }
    }

    #[test]
    fn names_with_several_numbers_fold_by_all_of_them() {
        for (all, expected) in [
            ("rack1-gpu1 rack1-gpu2 rack2-gpu1 rack2-gpu2", "rack[1-2]-gpu[1-2]"),
            ("rack1-gpu1 rack1-gpu2 rack2-gpu1", "rack1-gpu[1-2],rack2-gpu1"),
            ("r1n01 r2n01 r3n01", "r[1-3]n01"),
            ("r08n1 r09n1 r10n1 r11n2", "r11n2,r[08-10]n1"),
            ("a1b1c1 a1b2c1 a2b1c1 a2b2c1", "a[1-2]b[1-2]c1"),
        ] {
            assert_eq!(fold(&names(all)), expected);
        }
    }

    #[test]
    fn hundreds_of_rows_are_few() {
        let row = |i: u32| {
            let text = match i {
                17 => "recreated hworker (image)",
                3 | 190 => "unchanged",
                _ => "started hworker",
            };
            (format!("gpu{i:03}"), text.to_owned())
        };
        assert_eq!(
            rows((1..=200).map(row)),
            "gpu[001-002,004-016,018-189,191-200] (197): started hworker\ngpu[003,190] (2): unchanged\n\
             gpu017: recreated hworker (image)\n"
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
            format!("{}[1-9999]", "x".repeat(100_000)),
            format!("[1-9999]{}", "x".repeat(100_000)),
            format!("[1-9999]{}", "[1]".repeat(100_000)),
            format!("gpu{}", "[1-9]".repeat(100_000)),
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
        let refused = |expression: &str, groups: &Groups| select(expression, &all, groups).unwrap_err();
        assert_eq!(refused("@fats", &groups), "there is no group fats (groups: @fast, @r1, @r2)");
        assert_eq!(refused("@fast", &none()), "there is no group fast: the inventory has no [groups]");
        assert_eq!(refused("@fast,!@fast", &groups), "no node is left");
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
        fn racks_that_are_folded_select_the_same(picks in prop::collection::vec(any::<bool>(), 36), wide in any::<bool>()) {
            let place = |i: u32| if wide { format!("r{:02}-n{}.a", 8 + i / 6, i % 6) } else { format!("r{}n{:02}", 8 + i / 6, 8 + i % 6) };
            let all: Vec<String> = (0..36).map(place).collect();
            let some: Vec<String> = all.iter().zip(&picks).filter(|(_, p)| **p).map(|(n, _)| n.clone()).collect();
            prop_assume!(!some.is_empty());
            prop_assert_eq!(select(&fold(&some), &all, &none()).unwrap(), some);
        }

        #[test]
        fn a_term_is_the_product_of_its_brackets(
            parts in prop::collection::vec(("[a-z-]{0,3}", 0u32..20, 0u32..9, 1u32..5, 1usize..4), 1..4),
        ) {
            let mut expected = vec![String::new()];
            let mut term = String::new();
            for (text, from, more, step, width) in parts {
                term += &format!("{text}[{from:0width$}-{:0width$}/{step}]", from + more);
                let numbers: Vec<u32> = (from..=from + more).filter(|n| (n - from) % step == 0).collect();
                let width = format!("{from:0width$}").len();
                expected = expected.iter().flat_map(|name| numbers.iter().map(move |n| (name.clone(), *n)))
                    .map(|(name, n)| format!("{name}{text}{n:0width$}")).collect();
            }
            prop_assert_eq!(expand(&term).unwrap(), expected);
        }

        #[test]
        fn no_term_has_more_names_than_an_inventory(term in "[a-b]?(\\[[0-9]{1,5}-[0-9]{1,5}(/[0-9])?(,[0-9]{1,3}-[0-9]{4})?\\][a-b]?){1,4}") {
            if let Ok(names) = expand(&term) {
                prop_assert!((1..=MOST_NAMES).contains(&names.len()));
            }
        }

        #[test]
        fn anything_is_read_or_refused(expression in ".{0,40}") {
            let _ = select(&expression, &["a".to_owned()], &none());
            let _ = groups_in(&expression).count();
        }
    }
}
