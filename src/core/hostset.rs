//! Sets of nodes: `--on` selects them, tables fold them.

use std::collections::BTreeMap;

/// A selection that names no node, or cannot be read.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("--on {term}: {reason}")]
pub struct BadSelection {
    /// The part that is wrong.
    pub term: String,
    /// Why.
    pub reason: String,
}

/// The nodes of `all` that an expression names, in the order of `all`.
///
/// `gpu1,gpu[03-05],!gpu04`: names, ranges with leading zeros, `,` to join, `!` to take away from what stands before
/// it. An expression that starts with `!` takes away from all.
///
/// # Errors
/// [`BadSelection`] for a name that is no node, a range that cannot be read, or nothing left.
pub fn select(expression: &str, all: &[String]) -> Result<Vec<String>, BadSelection> {
    let bad = |term: &str, reason: &str| BadSelection { term: term.into(), reason: reason.into() };
    let mut chosen = vec![expression.trim_start().starts_with('!'); all.len()];
    for term in split(expression) {
        // `a!b` is `a` without `b`, as it is in ClusterShell
        let mut takes = term.starts_with('!');
        for part in term.split('!').filter(|p| !p.is_empty()) {
            for name in expand(part).map_err(|reason| bad(part, &reason))? {
                let position = all.iter().position(|n| *n == name);
                let position =
                    position.ok_or_else(|| bad(part, &format!("no node is named {name} (nodes: {})", fold(all))))?;
                chosen[position] = !takes;
            }
            takes = true;
        }
    }
    let names: Vec<String> = all.iter().zip(chosen).filter(|(_, c)| *c).map(|(n, _)| n.clone()).collect();
    if names.is_empty() { Err(bad(expression, "no node is left")) } else { Ok(names) }
}

/// Splits at commas that are not in brackets.
fn split(expression: &str) -> Vec<&str> {
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

/// `gpu[01-03,7]` → `gpu01 gpu02 gpu03 gpu7`.
fn expand(term: &str) -> Result<Vec<String>, String> {
    let Some((prefix, rest)) = term.split_once('[') else { return Ok(vec![term.to_owned()]) };
    let (ranges, suffix) = rest.split_once(']').ok_or("a bracket is not closed")?;
    let mut names = Vec::new();
    for range in ranges.split(',') {
        let (low, high) = range.split_once('-').unwrap_or((range, range));
        let number = |s: &str| s.parse::<u32>().map_err(|_| format!("{s:?} is no number"));
        let (from, to) = (number(low)?, number(high)?);
        if from > to || to - from >= 100_000 {
            return Err(format!("the range {range} is empty or too long"));
        }
        names.extend((from..=to).map(|n| format!("{prefix}{n:0width$}{suffix}", width = low.len())));
    }
    Ok(names)
}

/// Folds names for people: `node1 node2 node3 gpu` → `gpu,node[1-3]`.
pub fn fold(names: &[String]) -> String {
    let mut plain = Vec::new();
    // (prefix, suffix, digits) → numbers as written
    let mut written: BTreeMap<(&str, &str, usize), Vec<&str>> = BTreeMap::new();
    for name in names {
        let end = name.rfind(|c: char| c.is_ascii_digit()).map(|i| i + 1);
        let start = end.map(|end| name[..end].rfind(|c: char| !c.is_ascii_digit()).map_or(0, |i| i + 1));
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
            assert_eq!(select(expression, &all).unwrap(), names(expected), "{expression}");
        }
        assert_eq!(
            select("gpu1", &all).unwrap_err().to_string(),
            "--on gpu1: no node is named gpu1 (nodes: gpu[01-03,10],head)"
        );
        for bad in ["gpu[01-", "gpu[a-b]", "gpu[3-1]", "head,!head", "", "gpu[0-4294967295]"] {
            assert!(select(bad, &all).is_err(), "{bad}");
        }
    }

    proptest! {
        #[test]
        fn what_is_folded_selects_the_same(picks in prop::collection::vec(any::<bool>(), 24)) {
            let all: Vec<String> = (0..12).map(|i| format!("n{i}")).chain((0..12).map(|i| format!("gpu{i:02}-a"))).collect();
            let some: Vec<String> = all.iter().zip(&picks).filter(|(_, p)| **p).map(|(n, _)| n.clone()).collect();
            prop_assume!(!some.is_empty());
            prop_assert_eq!(select(&fold(&some), &all).unwrap(), some);
        }

        #[test]
        fn anything_is_read_or_refused(expression in ".{0,40}") {
            let _ = select(&expression, &["a".to_owned()]);
        }
    }
}
