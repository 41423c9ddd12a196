//! The examples of docs/json.md, and what follows from them: which keys and types a document has. A block that begins with
//! `json NAME` is an example of the document NAME, one with `json NAME/CASE` another of the same.

use serde_json::{Map, Value};
use std::collections::{BTreeMap, BTreeSet};

const TEXT: &str = include_str!("../../docs/json.md");

/// Every example with its name, the case included.
pub fn examples() -> Vec<(String, Value)> {
    let mut found = Vec::new();
    for block in TEXT.split("\n```json ").skip(1) {
        let (name, rest) = block.split_once('\n').unwrap();
        let text = rest.split("\n```").next().unwrap();
        let value =
            serde_json::from_str(text).unwrap_or_else(|e| panic!("docs/json.md: the example {name}: {e}\n{text}"));
        found.push((name.to_owned(), value));
    }
    assert!(!found.is_empty(), "docs/json.md has examples");
    found
}

/// What may stand in one place: text, a number and so on, a list, or an object with one of several sets of keys, each of which
/// has the same types in all of them.
#[derive(Debug, Default)]
struct Shape {
    scalars: BTreeSet<&'static str>,
    items: Option<Box<Shape>>,
    objects: BTreeSet<Vec<String>>,
    fields: BTreeMap<String, Shape>,
}

impl Shape {
    fn learn(&mut self, value: &Value, errors: &[Value]) {
        match value {
            Value::Array(values) => {
                let items = self.items.get_or_insert_default();
                values.iter().for_each(|value| items.learn(value, errors));
            }
            Value::Object(object) => {
                self.objects.insert(keys(object));
                let same = errors.iter().filter(|_| object.contains_key("tried")).filter_map(Value::as_object);
                for (key, value) in same.chain([object]).flatten() {
                    self.fields.entry(key.clone()).or_default().learn(value, errors);
                }
            }
            scalar => {
                self.scalars.insert(kind(scalar));
            }
        }
    }

    fn faults(&self, value: &Value, place: &str, faults: &mut Vec<String>) {
        match (value, &self.items) {
            (Value::Array(values), Some(items)) => {
                for (i, value) in values.iter().enumerate() {
                    items.faults(value, &format!("{place}[{i}]"), faults);
                }
            }
            (Value::Object(object), _) if self.objects.contains(&keys(object)) => {
                for (key, value) in object {
                    self.fields[key].faults(value, &format!("{place}.{key}"), faults);
                }
            }
            (Value::Object(object), _) => {
                faults.push(format!("{place}: no example has exactly the keys {}", keys(object).join(", ")));
            }
            (scalar, _) if self.scalars.contains(kind(scalar)) => {}
            _ => faults.push(format!("{place}: no example has {} there: {value}", kind(value))),
        }
    }
}

fn keys(object: &Map<String, Value>) -> Vec<String> {
    let mut keys: Vec<String> = object.keys().cloned().collect();
    keys.sort();
    keys
}

fn kind(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "true or false",
        Value::Number(_) => "a number",
        Value::String(_) => "text",
        Value::Array(_) => "a list",
        Value::Object(_) => "an object",
    }
}

/// The errors of nodes among the examples, which are the same in all documents.
fn errors(value: &Value, found: &mut Vec<Value>) {
    match value {
        Value::Array(values) => values.iter().for_each(|value| errors(value, found)),
        Value::Object(object) if object.contains_key("tried") => found.push(value.clone()),
        Value::Object(object) => object.values().for_each(|value| errors(value, found)),
        _ => {}
    }
}

/// In what a document differs from its examples, recursively: keys that are missing or too many, and types.
pub fn faults(name: &str, document: &Value) -> Vec<String> {
    let examples = examples();
    let mut all = Vec::new();
    examples.iter().for_each(|(_, value)| errors(value, &mut all));
    let mut shape = Shape::default();
    for (_, value) in examples.iter().filter(|(example, _)| example.split('/').next() == Some(name)) {
        shape.learn(value, &all);
    }
    let mut faults = Vec::new();
    shape.faults(document, name, &mut faults);
    faults
}
