//! The fields as a JSON Schema, from which editors complete and check the file, and as a table for people.

use super::fields::{self, Field};
use super::kind::{ValueKind, record};
use super::{Bench, Cluster, Node, Pool, Slurm};
use serde_json::{Map, Value, json};

/// Returns a JSON Schema (draft 7, which TOML editors know), as text.
///
/// It cannot express all that the reader checks, such as conflicts between fields.
pub fn schema() -> String {
    let groups = fields::of("").into_iter().map(|field| (field.name.to_owned(), property(field, &Value::Null)));
    let mut properties: Map<String, Value> = groups.collect();
    for (name, required, description) in [
        ("cluster", &["name"][..], "Settings of the whole cluster."),
        ("bench", &[], "Requirements on the cluster that `bench` checks."),
        ("pool", &["path"], "The pool in which `grade --publish` and `pool` exchange nodes with other owners."),
        (
            "slurm",
            &[],
            "A Slurm cluster to which jobs are submitted if the inventory has no [[node]], or with --scheduler slurm.",
        ),
        (
            "defaults",
            &[],
            "Defaults for the nodes; each [[node]] may override them. A list there replaces the list here; env and \
             ulimits are merged name by name.",
        ),
        ("node", &["host"], "One machine, or a range of them."),
    ] {
        let defaults = defaults(name);
        let fields = fields::of(name).into_iter().map(|field| (field.name.to_owned(), property(field, &defaults)));
        let mut table = record(Value::Object(fields.collect()), required);
        table["description"] = description.into();
        if name == "node" {
            let about = "The machines. The first is the master unless another has master = true.";
            table = json!({ "description": about, "type": "array", "minItems": 1, "items": table });
        }
        properties.insert(name.to_owned(), table);
    }
    let mut schema = record(Value::Object(properties), &["cluster"]);
    schema["$schema"] = "http://json-schema.org/draft-07/schema#".into();
    schema["title"] = "hvdctl inventory".into();
    schema["description"] = "The machines of a cluster, and how hvdctl reaches and sets them up.".into();
    format!("{schema:#}\n")
}

fn property(field: &Field, defaults: &Value) -> Value {
    let mut rules = field.kind.schema();
    rules["description"] = field.doc.into();
    if let Some(default) = default(field, defaults) {
        rules["default"] = default;
    }
    rules
}

/// The default of each field of a table.
fn defaults(table: &str) -> Value {
    match table {
        "cluster" => json!(Cluster::default()),
        "bench" => json!(Bench::default()),
        "pool" => json!(Pool::default()),
        "slurm" => json!(Slurm::default()),
        _ => json!(Node::default()),
    }
}

/// The value of a field that the file does not have, as it would be written there.
fn default(field: &Field, defaults: &Value) -> Option<Value> {
    let value = &defaults[field.name];
    match field.kind {
        ValueKind::Size => value.as_u64().map(|bytes| json!(format!("{}g", bytes >> 30))),
        // these are taken from the host, or chosen among the nodes
        ValueKind::Range(_) | ValueKind::Flag => None,
        _ if field.name == "name" || value.is_null() || value == "" => None,
        _ => Some(value.clone()),
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Inventory, TABLES, names, properties, refusals};
    use super::*;
    use regex::Regex;
    use std::fmt::Write as _;
    use std::path::Path;

    const DOCUMENT: &str = include_str!("../../docs/reference/inventory.md");

    /// The line that begins the generated part of the page.
    const MARK: &str = "<!-- generated from src/inventory/fields.rs -->\n";

    fn parsed() -> Value {
        serde_json::from_str(&schema()).expect("JSON")
    }

    /// Each table, as it is written, with its properties and the fields that it should have.
    fn tables(schema: &Value) -> [(&'static str, &Map<String, Value>, Vec<&'static str>); 6] {
        let properties = |pointer: &str| schema.pointer(pointer).and_then(Value::as_object).expect("properties");
        [
            ("[bench]", properties("/properties/bench/properties"), names("bench")),
            ("[cluster]", properties("/properties/cluster/properties"), names("cluster")),
            ("[defaults]", properties("/properties/defaults/properties"), names("defaults")),
            ("[[node]]", properties("/properties/node/items/properties"), names("node")),
            ("[pool]", properties("/properties/pool/properties"), names("pool")),
            ("[slurm]", properties("/properties/slurm/properties"), names("slurm")),
        ]
    }

    fn sorted<'a>(names: impl IntoIterator<Item = &'a str>) -> Vec<&'a str> {
        let mut names: Vec<&str> = names.into_iter().collect();
        names.sort_unstable();
        names
    }

    /// Returns true if one of a property's alternatives accepts a value, as far as type, words, range and pattern say.
    fn accepts(rules: &Value, value: &Value) -> bool {
        let alternatives = rules["anyOf"].as_array();
        let kind = match value {
            Value::String(_) => "string",
            Value::Number(number) if number.is_f64() => "number",
            Value::Number(_) => "integer",
            Value::Bool(_) => "boolean",
            Value::Array(_) => "array",
            _ => "object",
        };
        let has_type = match &rules["type"] {
            Value::Array(kinds) => kinds.iter().any(|name| name == kind),
            name => name.as_str().is_none_or(|name| name == kind || (name, kind) == ("number", "integer")),
        };
        let is_word = rules["enum"].as_array().is_none_or(|words| words.contains(value));
        let number = value.as_f64();
        let in_range = number.is_none_or(|number| {
            rules["minimum"].as_f64().is_none_or(|least| number >= least)
                && rules["exclusiveMinimum"].as_f64().is_none_or(|least| number > least)
                && rules["maximum"].as_f64().is_none_or(|most| number <= most)
        });
        let matches = match (rules["pattern"].as_str(), value.as_str()) {
            (Some(pattern), Some(text)) => Regex::new(pattern).expect("a pattern").is_match(text),
            _ => true,
        };
        has_type
            && is_word
            && in_range
            && matches
            && alternatives.is_none_or(|all| all.iter().any(|one| accepts(one, value)))
    }

    #[test]
    fn it_has_every_field_with_a_sentence_and_the_readers_default() {
        let schema = parsed();
        let properties = schema["properties"].as_object().expect("tables");
        assert_eq!(sorted(properties.keys().map(String::as_str)), TABLES);
        let smallest = "[cluster]\nname = 'lab'\n[[node]]\nhost = 'a'\n";
        let with_pool = format!("{smallest}[pool]\npath = '/pool'\n");
        let with_slurm = format!("{smallest}[slurm]\npartition = 'ml'\n");
        let parse = |text: &str| Inventory::parse(text, Path::new("i")).unwrap_or_else(|e| panic!("{e}"));
        for (table, properties, fields) in tables(&schema) {
            assert_eq!(sorted(properties.keys().map(String::as_str)), sorted(fields.iter().copied()), "{table}");
            for (field, rules) in properties {
                let sentence = rules["description"].as_str().unwrap_or_default();
                assert!(sentence.len() > 20 && sentence.ends_with('.'), "{table} {field}: {sentence:?}");
                let Some(default) = rules.get("default") else { continue };
                assert!(accepts(rules, default), "{table} {field}: {default}");
                let default: toml::Value = serde_json::from_value(default.clone()).expect("TOML");
                let line = format!("{field} = {default}\n");
                let text = match table {
                    "[cluster]" => smallest.replace("[[node]]", &format!("{line}[[node]]")),
                    "[bench]" | "[defaults]" => format!("{smallest}{table}\n{line}"),
                    _ => format!("{smallest}{line}"),
                };
                let (text, without) = match table {
                    "[pool]" => (format!("{with_pool}{line}"), with_pool.as_str()),
                    "[slurm]" => (format!("{with_slurm}{line}"), with_slurm.as_str()),
                    _ => (text, smallest),
                };
                assert_eq!(parse(&text), parse(without), "{table} {line}");
            }
        }
    }

    #[test]
    fn it_accepts_the_values_of_the_example() {
        let schema = parsed();
        let example: toml::Table = properties::example_in_full().parse().expect("TOML");
        let example = serde_json::to_value(example).expect("JSON");
        for (table, properties, _) in tables(&schema) {
            let sections = match table {
                "[[node]]" => example["node"].as_array().expect("nodes").iter().collect(),
                table => vec![&example[table.trim_matches(['[', ']'])]],
            };
            for (field, value) in sections.iter().flat_map(|section| section.as_object().expect("a table")) {
                assert!(accepts(&properties[field], value), "{table} {field} = {value}");
            }
        }
    }

    /// Most of what the reader refuses the schema refuses, too: wrong types, words and numbers, and strings by pattern.
    #[test]
    fn it_refuses_what_the_reader_refuses() {
        let schema = parsed();
        let (mut refused, mut all) = (0, 0);
        for (field, _, text) in refusals::files() {
            let Ok(document) = text.parse::<toml::Table>() else { continue };
            let (table, name) = field.split_once('.').expect("a table and a field");
            let section = if table == "node" { &document["node"][0] } else { &document[table] };
            let value = serde_json::to_value(&section[name]).expect("JSON");
            let is_table = |(written, _, _): &(&str, _, _)| written.trim_matches(['[', ']']) == table;
            let (_, properties, _) = tables(&schema).into_iter().find(is_table).expect("a table");
            all += 1;
            refused += usize::from(!accepts(&properties[name], &value));
        }
        assert!(refused * 2 > all, "{refused} of {all}");
    }

    /// The table of fields in the documentation; `UPDATE_DOCS=1 cargo test --lib inventory` regenerates it.
    #[test]
    fn the_documentation_has_every_field() {
        let (by_hand, _) = DOCUMENT.split_once(MARK).expect("a generated part");
        let mut text = format!("{by_hand}{MARK}");
        for (table, written) in [
            ("cluster", "[cluster]"),
            ("node", "[[node]]"),
            ("defaults", "[defaults]"),
            ("bench", "[bench]"),
            ("pool", "[pool]"),
            ("slurm", "[slurm]"),
        ] {
            let (fields, defaults) = (fields::of(table), defaults(table));
            let _ = write!(text, "\n## `{written}`\n\n");
            if table == "defaults" {
                let names: Vec<String> = fields.iter().map(|field| format!("`{}`", field.name)).collect();
                let _ = writeln!(text, "Defaults for the nodes; a `[[node]]` may override them: {}.", names.join(", "));
                continue;
            }
            text.push_str("| field | value | default | meaning |\n|---|---|---|---|\n");
            for field in fields {
                let default = default(field, &defaults).map_or("–".to_owned(), |value| format!("`{value}`"));
                let _ = writeln!(text, "| `{}` | {} | {default} | {} |", field.name, field.kind.expected(), field.doc);
            }
        }
        if std::env::var_os("UPDATE_DOCS").is_some() {
            let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/reference/inventory.md");
            std::fs::write(file, &text).expect("written");
        } else {
            assert_eq!(DOCUMENT, text, "run UPDATE_DOCS=1 cargo test --lib inventory");
        }
    }
}
