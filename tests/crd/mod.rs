//! Validates an object against the structural schema of a custom resource as `kubectl apply --validate=strict` and the
//! API server do: types, required fields and values, and no field that the schema does not name.

use regex::Regex;
use serde_json::{Map, Value, json};
use std::collections::BTreeSet;

/// Returns what is wrong with an object, with the path of each fault.
pub fn faults(schema: &Value, object: &Value) -> Vec<String> {
    let mut schema = schema.clone();
    // the API server's own type, of which a CRD only says that it is an object
    schema["properties"]["metadata"] = json!({"type": "object", "required": ["name"], "properties": {
        "name": {"type": "string", "maxLength": 253, "pattern": "^[a-z0-9]([-a-z0-9.]*[a-z0-9])?$"},
        "namespace": {"type": "string"},
        "labels": {"type": "object", "additionalProperties": {"type": "string"}},
        "annotations": {"type": "object", "additionalProperties": {"type": "string"}},
    }});
    schema["required"] = json!(["apiVersion", "kind", "metadata", "spec"]);
    let mut found = Vec::new();
    check(&schema, object, "", &mut found);
    found
}

fn check(schema: &Value, value: &Value, path: &str, found: &mut Vec<String>) {
    if schema["x-kubernetes-int-or-string"] == true {
        if !(value.is_i64() || value.is_string()) {
            found.push(format!("{path}: {value} is neither an integer nor a string"));
        }
    } else if let Some(kind) = schema["type"].as_str() {
        let is_kind = match kind {
            "object" => value.is_object(),
            "array" => value.is_array(),
            "string" => value.is_string(),
            "boolean" => value.is_boolean(),
            "integer" => value.is_i64() || value.is_u64(),
            "number" => value.is_number(),
            other => panic!("{path}: the schema has the type {other}"),
        };
        if !is_kind {
            found.push(format!("{path}: {value} is no {kind}"));
            return;
        }
    }
    if schema["enum"].as_array().is_some_and(|values| !values.contains(value)) {
        found.push(format!("{path}: {value} is none of {}", schema["enum"]));
    }
    match value {
        Value::String(text) => check_text(schema, text, path, found),
        Value::Number(number) => {
            let is_less = schema["minimum"].as_f64().zip(number.as_f64()).is_some_and(|(least, number)| number < least);
            let is_too_long = schema["format"] == "int32" && number.as_i64().is_none_or(|n| i32::try_from(n).is_err());
            if is_less || is_too_long {
                found.push(format!("{path}: {number} is out of range"));
            }
        }
        Value::Array(items) => check_items(schema, items, path, found),
        Value::Object(object) => check_object(schema, object, path, found),
        Value::Null => found.push(format!("{path}: null")),
        Value::Bool(_) => {}
    }
}

fn check_text(schema: &Value, text: &str, path: &str, found: &mut Vec<String>) {
    let pattern = schema["pattern"].as_str();
    if pattern.is_some_and(|pattern| !Regex::new(pattern).unwrap().is_match(text)) {
        found.push(format!("{path}: {text:?} does not match {}", schema["pattern"]));
    }
    if schema["maxLength"].as_u64().is_some_and(|most| text.chars().count() as u64 > most) {
        found.push(format!("{path}: {text:?} is too long"));
    }
}

fn check_items(schema: &Value, items: &[Value], path: &str, found: &mut Vec<String>) {
    if schema["maxItems"].as_u64().is_some_and(|most| items.len() as u64 > most) {
        found.push(format!("{path}: {} items", items.len()));
    }
    for (at, item) in items.iter().enumerate() {
        check(&schema["items"], item, &format!("{path}[{at}]"), found);
    }
    if let Some(keys) = schema["x-kubernetes-list-map-keys"].as_array() {
        let mut seen = BTreeSet::new();
        for item in items {
            let of_key = |key: &Value| item[key.as_str().unwrap()].to_string();
            if !seen.insert(keys.iter().map(of_key).collect::<Vec<_>>()) {
                found.push(format!("{path}: {item} is there twice"));
            }
        }
    }
}

fn check_object(schema: &Value, object: &Map<String, Value>, path: &str, found: &mut Vec<String>) {
    for name in schema["required"].as_array().into_iter().flatten().filter_map(Value::as_str) {
        if !object.contains_key(name) {
            found.push(format!("{path}: {name} is missing"));
        }
    }
    for (name, value) in object {
        let path = format!("{path}.{name}");
        let known = schema["properties"]
            .get(name)
            .or_else(|| schema["additionalProperties"].is_object().then(|| &schema["additionalProperties"]));
        match known {
            Some(known) => check(known, value, &path, found),
            None if schema["x-kubernetes-preserve-unknown-fields"] == true => {}
            None => found.push(format!("{path}: unknown field")),
        }
    }
}
