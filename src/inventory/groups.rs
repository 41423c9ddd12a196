//! `[groups]`: names for sets of nodes, each an expression as for `--on`, in which other groups may stand.

use super::check;
use super::fault::{Report, quoted};
use super::reader::{Section, Span, refusal};
use crate::text::nodeset::{Groups, NONE_LEFT, groups_in, select};
use std::collections::{BTreeMap, BTreeSet, HashMap};
use toml::de::DeValue;

/// More groups than this are none.
pub(super) const MOST: usize = 256;

const EXPECTED: &str = "nodes as for --on, like \"gpu[01-08],!gpu03\", or a list of such";

/// One group as it is written: its parts with their places.
struct Definition {
    span: Span,
    parts: Vec<(Span, String)>,
}

/// The nodes of each group. Where the nodes' names are not known for sure, only the form is judged.
pub(super) fn groups(root: &Section<'_, '_>, nodes: Option<&Vec<String>>, report: &mut Report<'_>) -> Groups {
    let Some(value) = root.value("groups") else { return Groups::new() };
    let DeValue::Table(table) = value.get_ref() else {
        let message = format!("expected one table [groups], found {}", report.found(value, true));
        root.fault("groups", &message, report);
        return Groups::new();
    };
    if table.len() > MOST {
        let message = format!("expected at most {MOST} groups, found {}", table.len());
        root.fault("groups", &message, report);
        return Groups::new();
    }
    let mut definitions = BTreeMap::new();
    let mut good = true;
    for (key, value) in table {
        let name = key.get_ref();
        if let Err(hint) = check::NAME.check(name) {
            let expected = format!("a name of {}", check::NAME.expected);
            report.at(key.span(), format!("groups: {}", refusal(&expected, &quoted(name), &hint)));
            good = false;
        }
        let items = match value.get_ref() {
            DeValue::Array(items) if !items.is_empty() => items.iter().collect(),
            _ => vec![value],
        };
        let mut parts = Vec::new();
        for item in items {
            match item.get_ref() {
                DeValue::String(text) => parts.push((item.span(), text.to_string())),
                _ => {
                    let found = report.found(item, true);
                    report.at(item.span(), format!("groups.{}: expected {EXPECTED}, found {found}", shown(name)));
                    good = false;
                }
            }
        }
        definitions.insert(name.to_string(), Definition { span: key.span(), parts });
    }
    match nodes {
        Some(nodes) if good => resolve(&definitions, nodes, report),
        _ => Groups::new(),
    }
}

fn shown(name: &str) -> String {
    if check::NAME.check(name).is_ok() { name.to_owned() } else { quoted(name) }
}

/// Goes from the groups without others in them to those that consist of these.
fn resolve(definitions: &BTreeMap<String, Definition>, nodes: &[String], report: &mut Report<'_>) -> Groups {
    let mut awaited: HashMap<&str, Vec<String>> = HashMap::new();
    for (name, definition) in definitions {
        let parts = definition.parts.iter().flat_map(|(_, part)| groups_in(part));
        let known: BTreeSet<String> = parts.filter(|group| definitions.contains_key(group)).collect();
        awaited.insert(name, known.into_iter().collect());
    }
    // an unknown name is told by the selection, which has to know all names for that
    let empty: Groups = definitions.keys().map(|name| (name.clone(), Vec::new())).collect();
    let mut groups = empty;
    let mut done: HashMap<&str, bool> = HashMap::new();
    loop {
        let ready = |name: &&String| {
            !done.contains_key(name.as_str()) && awaited[name.as_str()].iter().all(|g| done.contains_key(g.as_str()))
        };
        let Some(name) = definitions.keys().find(ready) else { break };
        let definition = &definitions[name];
        // whatever is wrong with a group is told there, and not again where it is used
        let usable = awaited[name.as_str()].iter().all(|group| done[group.as_str()]);
        let members = if usable { members(name, definition, nodes, &groups, report) } else { None };
        done.insert(name, members.is_some());
        groups.insert(name.clone(), members.unwrap_or_default());
    }
    // what still waits is part of a circle, or waits for one
    while let Some(start) = definitions.keys().find(|name| !done.contains_key(name.as_str())) {
        let mut way = vec![start.as_str()];
        while let Some(next) = awaited[way[way.len() - 1]].iter().find(|group| !done.contains_key(group.as_str())) {
            if let Some(at) = way.iter().position(|name| name == next) {
                let mut circle: Vec<String> = way[at..].iter().map(|name| format!("@{name}")).collect();
                circle.push(format!("@{next}"));
                let message =
                    format!("groups.{next}: expected a group that is no part of itself, found {}", circle.join(" → "));
                report.at(definitions[next.as_str()].span.clone(), message);
                break;
            }
            way.push(next);
        }
        done.extend(way.into_iter().map(|name| (name, false)));
    }
    groups
}

/// The nodes of one group; the parts of a list go one after the other, so that `!` takes away from those before it.
fn members(
    name: &str,
    definition: &Definition,
    nodes: &[String],
    groups: &Groups,
    report: &mut Report<'_>,
) -> Option<Vec<String>> {
    let mut good = true;
    // each by itself first, for its own place
    for (span, part) in &definition.parts {
        let alone = select(part.trim_start().trim_start_matches('!'), nodes, groups);
        if let Err(bad) = alone.or_else(|bad| if bad.reason == NONE_LEFT { Ok(Vec::new()) } else { Err(bad) }) {
            let message = format!("groups.{name}: expected {EXPECTED}, found {}; {}", quoted(part), bad.reason);
            report.at(span.clone(), message);
            good = false;
        }
    }
    let whole: Vec<&str> = definition.parts.iter().map(|(_, part)| part.as_str()).collect();
    match select(&whole.join(","), nodes, groups) {
        Ok(members) => Some(members),
        Err(bad) if good => {
            report.at(definition.span.clone(), format!("groups.{name}: {}", bad.reason));
            None
        }
        Err(_) => None,
    }
}
