//! The form of the file as a JSON Schema, from which editors complete and check it.

/// A JSON Schema (draft 7, which TOML editors know).
///
/// It cannot say all that the reader checks: what fits together, or whether an address is one. The tests hold both against
/// each other: every field, every default, what is taken and what is refused.
pub const SCHEMA: &str = include_str!("schema.json");

#[cfg(test)]
mod tests {
    use super::super::{CLUSTER_FIELDS, DEFAULTS_FIELDS, Inventory, NODE_FIELDS, TABLES};
    use super::super::{properties, refusals};
    use super::SCHEMA;
    use regex::Regex;
    use serde_json::{Map, Value};
    use std::path::Path;

    fn schema() -> Value {
        serde_json::from_str(SCHEMA).expect("JSON")
    }

    /// Whether the schema takes a file. A keyword that is not known here panics.
    fn takes(schema: &Value, text: &str) -> bool {
        let table: toml::Table = text.parse().expect("TOML");
        fits(schema, schema, &serde_json::to_value(table).expect("JSON"))
    }

    fn fits(root: &Value, schema: &Value, value: &Value) -> bool {
        let rules = schema.as_object().expect("an object");
        rules.iter().all(|(keyword, rule)| holds(root, rules, keyword, rule, value))
    }

    fn holds(root: &Value, rules: &Map<String, Value>, keyword: &str, rule: &Value, value: &Value) -> bool {
        let of = |schema: &Value, value: &Value| fits(root, schema, value);
        let list = || rule.as_array().expect("a list");
        let matches = |pattern: &str, text: &str| Regex::new(pattern).expect("a pattern").is_match(text);
        let at_most = |least: Option<usize>| least.is_none_or(|n| n as u64 <= rule.as_u64().expect("a number"));
        let at_least = |most: Option<usize>| most.is_none_or(|n| n as u64 >= rule.as_u64().expect("a number"));
        match keyword {
            "$schema" | "title" | "description" | "default" | "definitions" => true,
            "$ref" => {
                assert_eq!(rules.len(), 1, "what stands beside a $ref does not count");
                of(root.pointer(&rule.as_str().expect("a reference")[1..]).expect("its target"), value)
            }
            "type" => match rule {
                Value::Array(types) => types.iter().any(|one| is(one, value)),
                one => is(one, value),
            },
            "enum" => list().contains(value),
            "anyOf" => list().iter().any(|schema| of(schema, value)),
            "allOf" => list().iter().all(|schema| of(schema, value)),
            "pattern" => value.as_str().is_none_or(|text| matches(rule.as_str().expect("text"), text)),
            "minLength" => at_least(value.as_str().map(|text| text.chars().count())),
            "maxLength" => at_most(value.as_str().map(|text| text.chars().count())),
            "minimum" => value.as_i64().is_none_or(|n| n >= rule.as_i64().expect("a number")),
            "maximum" => value.as_i64().is_none_or(|n| n <= rule.as_i64().expect("a number")),
            "minItems" => at_least(value.as_array().map(Vec::len)),
            "maxItems" => at_most(value.as_array().map(Vec::len)),
            "maxProperties" => at_most(value.as_object().map(Map::len)),
            "uniqueItems" => value.as_array().is_none_or(|all| (1..all.len()).all(|i| !all[..i].contains(&all[i]))),
            "items" => value.as_array().is_none_or(|all| all.iter().all(|item| of(rule, item))),
            "required" => value
                .as_object()
                .is_none_or(|has| list().iter().all(|name| has.contains_key(name.as_str().expect("a name")))),
            "properties" | "patternProperties" | "propertyNames" | "additionalProperties" => {
                value.as_object().is_none_or(|has| {
                    has.iter().all(|(name, value)| {
                        let named = rules.get("properties").and_then(|all| all.get(name));
                        let patterns = rules.get("patternProperties").and_then(Value::as_object).into_iter().flatten();
                        let mut patterns = patterns.filter(|(pattern, _)| matches(pattern, name));
                        match keyword {
                            "properties" => named.is_none_or(|schema| of(schema, value)),
                            "patternProperties" => patterns.all(|(_, schema)| of(schema, value)),
                            "propertyNames" => of(rule, &Value::String(name.clone())),
                            _ if named.is_some() || patterns.next().is_some() => true,
                            _ => rule.as_bool().unwrap_or_else(|| of(rule, value)),
                        }
                    })
                })
            }
            other => panic!("{other} is not known here"),
        }
    }

    fn is(name: &Value, value: &Value) -> bool {
        match name.as_str().expect("a type") {
            "object" => value.is_object(),
            "array" => value.is_array(),
            "string" => value.is_string(),
            "integer" => value.is_i64() || value.is_u64(),
            "boolean" => value.is_boolean(),
            other => panic!("{other} is not known here"),
        }
    }

    /// A field's schema with what its references say.
    fn resolved(root: &Value, schema: &Value) -> Map<String, Value> {
        let mut own = schema.as_object().expect("an object").clone();
        let all_of = own.remove("allOf").unwrap_or(Value::Array(Vec::new()));
        let referred = own.remove("$ref").map(|name| serde_json::json!({ "$ref": name }));
        for part in all_of.as_array().expect("a list").iter().chain(&referred) {
            let target = root.pointer(&part["$ref"].as_str().expect("a reference")[1..]).expect("its target");
            for (keyword, rule) in resolved(root, target) {
                own.entry(keyword).or_insert(rule);
            }
        }
        own
    }

    #[test]
    fn it_has_every_field_of_the_reader_with_words_and_the_readers_default() {
        let schema = schema();
        let keys = |value: &Value| value.as_object().expect("an object").keys().cloned().collect::<Vec<_>>();
        let sorted = |names: &[&str]| {
            let mut names: Vec<String> = names.iter().map(|name| (*name).to_owned()).collect();
            names.sort();
            names
        };
        assert_eq!(keys(&schema["properties"]), sorted(TABLES));
        let smallest = "[cluster]\nname = 'lab'\n[[node]]\nhost = 'a'\n";
        let parse = |text: &str| Inventory::parse(text, Path::new("i")).unwrap_or_else(|e| panic!("{e}"));
        let default = parse(smallest);
        for (table, pointer, fields) in [
            ("[cluster]", "/properties/cluster/properties", CLUSTER_FIELDS),
            ("[defaults]", "/properties/defaults/properties", DEFAULTS_FIELDS),
            ("[[node]]", "/properties/node/items/properties", NODE_FIELDS),
        ] {
            let properties = schema.pointer(pointer).expect("its fields");
            assert_eq!(keys(properties), sorted(fields), "{table}");
            for field in fields {
                let rules = resolved(&schema, &properties[field]);
                let words = rules.get("description").and_then(Value::as_str).unwrap_or_default();
                assert!(words.len() > 20 && words.ends_with('.'), "{table} {field}: {words:?}");
                if let Some(value) = rules.get("default") {
                    let value: toml::Value = serde_json::from_value(value.clone()).expect("TOML");
                    let line = format!("{field} = {value}\n");
                    let text = match table {
                        "[cluster]" => smallest.replace("[[node]]", &format!("{line}[[node]]")),
                        "[defaults]" => format!("{smallest}[defaults]\n{line}"),
                        _ => format!("{smallest}{line}"),
                    };
                    assert_eq!(parse(&text), default, "{table} {line}");
                }
            }
        }
    }

    #[test]
    fn it_takes_what_the_reader_takes() {
        let schema = schema();
        let full = properties::example_in_full();
        let odd = "[cluster]\nname = 'lab'\nshm_size = 0x10000\nimage = '[::1]:5000/x@sha256:00112233445566778899aabbccddeeff'
            [groups]\na = '@b!n1'\nb = ['n[1-2]']
            [[node]]\nhost = 'n[1-2]'\naddress = '10.0.0.[1-2]'\nuser = 'D\\u'\ngpus = ['GPU-0a', 1, '2']
            mounts = ['/:/host:ro', { source = '/a:b', target = '/c', read_only = true }]\ndevices = ['/dev/a:r', '/dev/a:/dev/b:rwm']
            ulimits = { nofile = { soft = 1, hard = -1 }, memlock = -1 }\nenv = { A = 1, b_2 = '' }
            [[node]]\nhost = 'fe80::1%eth0'\nname = 'größe'\njump = 'ana@gate:2222,[fd00::1]:22'\ngpus = []\n";
        let odd = &odd.replace("gpus = []", "gpus = 'none'");
        for text in [properties::EXAMPLE, &full, odd] {
            Inventory::parse(text, Path::new("i")).unwrap_or_else(|e| panic!("{e}"));
            assert!(takes(&schema, text), "{text}");
        }
        assert!(!takes(&schema, "[cluster]\nname = 'lab'\n"), "no nodes");
        assert!(!takes(&schema, &odd.replace("name = 'lab'", "nom = 'lab'")));
    }

    /// What the reader refuses the schema refuses too, but for what patterns cannot say.
    #[test]
    fn it_refuses_what_the_reader_refuses() {
        let schema = schema();
        let mut taken = Vec::new();
        for (field, value, text) in refusals::files() {
            // JSON has no dates, and what is no number for TOML is none for the schema
            if text.parse::<toml::Table>().is_ok() && !value.starts_with("2024") && takes(&schema, &text) {
                taken.push(format!("{field} = {value}"));
            }
        }
        assert_eq!(taken.join("\n"), TAKEN.trim());
    }

    const TAKEN: &str = r#"
cluster.image = "a:b:c"
cluster.image = "a@sha256:xyz"
cluster.image = "a//b"
cluster.image = "a/Horovod"
cluster.ssh_dir = "/etc"
cluster.ssh_dir = "/root/.ssh"
cluster.jobs_dir = "/a/../b"
cluster.shm_size = "99999999999t"
cluster.ssh_config = "~bob/c"
node.host = "n[3-1]"
node.host = "n[0-99999]"
node.host = "a:22"
node.jump = "fd00::1"
node.jump = "gate:0"
node.jump = "[fd00::1]22"
node.gpus = [1, "1"]
node.address = "10.0.0.256"
node.address = "0.0.0.0"
node.address = "ff02::1"
node.mounts = ["/a/../b:/c"]
node.mounts = ["/a:/b\u0000"]
node.mounts = ["/a:/workspace"]
node.mounts = ["/a:/root/.ssh/x"]
node.mounts = ["/a:/opt/horovod/jobs"]
node.mounts = ["/a:/c", "/b:/c"]
node.devices = ["/dev/a:rr"]
node.devices = ["/dev/a", "/dev/b:/dev/a"]
node.ulimits = { nofile = { soft = 2, hard = 1 } }
node.ulimits = { nofile = { soft = -1, hard = 1 } }
node.env = { A = "\u0000" }
node.env = { HVDCTL_JOB = 1 }
node.env = { HOROVOD_LOCAL_RANK = 1 }
"#;
}
