//! `[groups]`: names for sets of nodes, each an expression as for `--on`, which may contain other groups.

use super::fault::quoted;
use super::reader::Section;
use crate::text::nodeset::{Groups, groups_in, select};
use serde_json::Value;
use std::collections::BTreeMap;

/// The most groups.
const MOST: usize = 256;

/// Returns the nodes of each group.
pub(super) fn groups(root: &Section<'_>, nodes: &[String]) -> Groups {
    let Some(Value::Object(read)) = root.values.get("groups") else { return Groups::new() };
    if read.len() > MOST {
        root.fault("groups", &format!("expected at most {MOST} groups, found {}", read.len()));
        return Groups::new();
    }
    // the parts of a list go one after the other, so that `!` takes away from those before it
    let text = |value: &Value| match value {
        Value::Array(parts) => parts.iter().filter_map(Value::as_str).collect::<Vec<_>>().join(","),
        value => value.as_str().unwrap_or_default().to_owned(),
    };
    let mut open: BTreeMap<&str, String> = read.iter().map(|(name, value)| (name.as_str(), text(value))).collect();
    // all groups, for messages; those that are not resolved yet or cannot be have no nodes
    let mut groups: Groups = read.keys().map(|name| (name.clone(), Vec::new())).collect();
    let fault = |name: &str, message: String| {
        let group = root.value("groups").and_then(|table| table.get_ref().as_table()?.get(name));
        root.report.at(group.map(|value| value.span()).unwrap_or_default(), format!("groups.{name}: {message}"));
    };
    // each after those that it names
    let is_ready =
        |open: &BTreeMap<&str, String>, text: &str| groups_in(text).all(|named| !open.contains_key(&named[..]));
    while let Some(name) = open.iter().find(|(_, text)| is_ready(&open, text)).map(|(name, _)| *name) {
        let text = open.remove(name).unwrap_or_default();
        match select(&text, nodes, &groups) {
            Ok(members) => drop(groups.insert(name.to_owned(), members)),
            // what is wrong with a group is reported there, and not again where it is used
            Err(_) if groups_in(&text).any(|named| groups.get(&named).is_some_and(Vec::is_empty)) => {}
            Err(bad) => fault(name, format!("expected nodes, found {}; {}", quoted(&text), bad.reason)),
        }
    }
    if let Some(name) = open.keys().next() {
        let names: Vec<String> = open.keys().map(|name| format!("@{name}")).collect();
        fault(name, format!("these groups refer to each other in a cycle: {}", names.join(", ")));
    }
    groups
}
