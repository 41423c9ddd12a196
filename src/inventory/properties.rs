//! Whatever the text, reading it does not panic, and what is refused is refused at places that exist.

use super::{Faults, Inventory, names};
use proptest::prelude::*;
use std::path::Path;

pub(super) const EXAMPLE: &str = include_str!("../../inventory.example.toml");

fn parse(text: &str) -> Result<Inventory, Faults> {
    Inventory::parse(text, Path::new("inventory.toml"))
}

/// The example with the fields in force that it only shows.
pub(super) fn example_in_full() -> String {
    let in_force = |line: &'static str| {
        line.strip_prefix("# ").filter(|rest| !rest.starts_with(' ') && rest.contains(" = ")).unwrap_or(line)
    };
    EXAMPLE.lines().map(in_force).collect::<Vec<_>>().join("\n")
}

/// Nothing panics, and what is refused is refused with places that exist.
fn judge(text: &str) -> Result<(), TestCaseError> {
    let Err(faults) = parse(text) else { return Ok(()) };
    let text = text.strip_prefix('\u{feff}').unwrap_or(text);
    let lines: Vec<&str> = text.split('\n').collect();
    prop_assert!(!faults.faults.is_empty());
    for fault in &faults.faults {
        prop_assert!((1..=lines.len()).contains(&fault.line), "{fault:?}");
        let length = lines[fault.line - 1].chars().count();
        prop_assert!((1..=length + 1).contains(&fault.column), "{fault:?}");
        prop_assert!(!fault.message.chars().any(char::is_control), "{fault:?}");
        if let Some(excerpt) = &fault.excerpt {
            let (line, mark) = excerpt.split_once('\n').expect("two lines");
            prop_assert!(!line.chars().chain(mark.chars()).any(char::is_control), "{fault:?}");
            prop_assert!(mark.ends_with('^'), "{fault:?}");
        }
    }
    let shown = faults.to_string();
    prop_assert!(shown.starts_with("inventory.toml: ") && !shown.ends_with('\n'));
    Ok(())
}

/// Text that is closer to an inventory than noise is.
fn pieces() -> impl Strategy<Value = String> {
    let words = [
        "[cluster]",
        "[[node]]",
        "[defaults]",
        "[node]",
        "[[cluster]]",
        "[",
        "]",
        "{",
        "}",
        "=",
        ".",
        ",",
        "\n",
        "\r\n",
        "\r",
        " ",
        "\"",
        "'",
        "'''",
        "\"\"\"",
        "#",
        "\\",
        "\\u0000",
        "\0",
        "\u{feff}",
        "ü",
        "🎉",
        "host",
        "name",
        "port",
        "gpus",
        "shm_size",
        "master",
        "node",
        "cluster",
        "true",
        "false",
        "0",
        "-1",
        "0x",
        "1_0",
        "1e9",
        "nan",
        "inf",
        "99999999999999999999999",
        "2024-01-01",
        "'a'",
        "\"auto\"",
        "host = 'a'\n",
        "host = 'n[1-3]'\n",
        "[1-",
        "[groups]",
        "g = '@g'\n",
        "@",
        "mounts = [",
        "'/a:/b',",
        "ulimits",
        "env",
        "name = 'x'\n",
        "[[[[",
        "{a=",
    ];
    prop::collection::vec(prop::sample::select(words.to_vec()), 0..40).prop_map(|words| words.concat())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 512, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn any_text_is_judged(text in any::<String>()) {
        judge(&text)?;
    }

    #[test]
    fn any_pieces_are_judged(text in pieces()) {
        judge(&text)?;
    }

    #[test]
    fn any_value_of_any_field_is_judged(
        field in prop::sample::select([names("cluster"), names("node")].concat()),
        text in any::<String>(),
        number in any::<i64>(),
    ) {
        let text = toml::Value::String(text).to_string();
        for value in [text, number.to_string()] {
            for value in [&value, &format!("[{value}]"), &format!("{{ a = {value}, memlock = {value} }}")] {
                judge(&format!("[cluster]\n{field} = {value}\n[[node]]\n{field} = {value}\n[groups]\na = {value}\n"))?;
            }
        }
    }

    #[test]
    fn any_groups_are_resolved_or_refused(
        groups in prop::collection::vec("[@!]{0,2}([a-d]|n\\[[0-9]-[0-9]\\]|n[1-4])(,@[a-d])?", 1..5),
    ) {
        let lines: String = ["a", "b", "c", "d"].iter().zip(&groups).map(|(name, group)| format!("{name} = \
            '{group}'\n")).collect();
        let text = format!("cluster.name = 'lab'\n[groups]\n{lines}[[node]]\nhost = 'n[1-4]'\n");
        judge(&text)?;
        if let Ok(inventory) = parse(&text) {
            prop_assert!(inventory.groups.values().all(|members| !members.is_empty()), "{text}");
        }
    }

    #[test]
    fn what_a_group_names_is_told_without_harm(group in "[@!]{0,2}(a|n[1-4]|n\\[1-4\\])?(\\p{Cc}|\\p{Cf}|\\PC){0,3}") {
        let group = toml::Value::String(group);
        judge(&format!("cluster.name = 'lab'\n[[node]]\nhost = 'n[1-4]'\n[groups]\na = {group}\n"))?;
    }

    #[test]
    fn any_range_is_as_many_nodes(from in 0u32..300, count in 1u32..50, width in 1usize..4) {
        let range = format!("[{from:0width$}-{:0width$}]", from + count - 1);
        let text = format!("cluster.name = 'lab'\n[[node]]\nhost = 'n{range}.x'\nname = 'm{range}'\n");
        let inventory = parse(&text).map_err(|faults| TestCaseError::fail(faults.to_string()))?;
        prop_assert_eq!(inventory.nodes.len(), count as usize);
        for (node, number) in inventory.nodes.iter().zip(from..) {
            prop_assert_eq!(&node.host, &format!("n{number:0width$}.x"));
            prop_assert_eq!(&node.name, &format!("m{number:0width$}"));
        }
    }

    #[test]
    fn any_mutation_of_the_example_is_judged(
        edits in prop::collection::vec((any::<prop::sample::Index>(), 0..4u8, pieces(), any::<char>()), 1..6),
        full in any::<bool>(),
    ) {
        let mut text: Vec<char> = if full { example_in_full() } else { EXAMPLE.to_owned() }.chars().collect();
        for (index, kind, piece, c) in edits {
            if text.is_empty() {
                break;
            }
            let at = index.index(text.len());
            match kind {
                0 => text[at] = c,
                1 => { text.remove(at); }
                2 => { text.splice(at..at, piece.chars()); }
                _ => text.truncate(at.max(1)),
            }
        }
        judge(&text.into_iter().collect::<String>())?;
    }

    #[test]
    fn any_bytes_in_a_file_are_judged(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
        let file = tempfile::NamedTempFile::new().expect("a file");
        std::fs::write(file.path(), &bytes).expect("written");
        let _ = Inventory::load(file.path());
    }
}

#[test]
fn depth_and_size_are_no_trouble() {
    for text in [
        format!("a = {}", "[".repeat(100_000)),
        format!("a = {}{}", "[".repeat(100_000), "]".repeat(100_000)),
        format!("a = {}", "{a=".repeat(100_000)),
        format!("{} = 1", vec!["a"; 10_000].join(".")),
        format!("[{}]", vec!["a"; 10_000].join(".")),
        format!("{} = 1", "a".repeat(1_000_000)),
        "[[node]]\nhost = 'a'\nslots = 0\n".repeat(5_000),
        "x\n".repeat(50_000),
        "[[node]]\nhost = 'n[0-99999]'\n".repeat(5_000),
        format!("[[node]]\nhost = 'n[{}]'\n", "0-9999,".repeat(50_000)),
        "[[node]]\nhost = 'n[0-9999]'\n".repeat(500),
        format!("[groups]\n{}", (0..20_000).map(|n| format!("g{n} = '@g{}'\n", n + 1)).collect::<String>()),
    ] {
        judge(&text).unwrap_or_else(|error| panic!("{error}"));
    }
    let nodes: String = (0..5_000).map(|n| format!("[[node]]\nhost = 'node{n}'\n")).collect();
    assert_eq!(parse(&format!("cluster.name = 'lab'\n{nodes}")).expect("valid").nodes.len(), 5_000);
}
