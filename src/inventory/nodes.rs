//! The nodes of an inventory: each `[[node]]` over `[defaults]`, ranges as many nodes, and what must fit together.

use super::assemble::{separate_mounts, typed};
use super::check::{self, Checked, Rule};
use super::fault::{Report, quoted};
use super::reader::{Section, found};
use super::{Cluster, Node};
use crate::text::nodeset::Ranges;
use serde_json::{Map, Value, json};
use std::collections::HashMap;
use std::net::IpAddr;
use toml::de::DeValue;

/// The most machines; more are a range mistyped.
const MOST: usize = 10_000;

/// A `[[node]]` that says which machine it is: one node, or as many as its range of hosts.
struct Entry<'a, 't> {
    section: Section<'a, 't>,
    nodes: Vec<Node>,
}

/// Reads the nodes, with one of them the master; `None` where not all could be read.
pub(super) fn nodes(
    root: &Section<'_, '_>,
    defaults: &Map<String, Value>,
    cluster: &Cluster,
    report: &mut Report<'_>,
) -> Option<Vec<Node>> {
    let sections = sections(root, report);
    let all = sections.len();
    let (mut entries, mut machines) = (Vec::new(), 0);
    for section in sections {
        let Some(entry) = entry(section, defaults, cluster, report) else { continue };
        machines += entry.nodes.len();
        if machines > MOST {
            entry.section.fault("host", &format!("an inventory has at most {MOST} machines"), report);
            return None;
        }
        entries.push(entry);
    }
    unique(&entries, report);
    master(&mut entries, report);
    (entries.len() == all).then(|| entries.into_iter().flat_map(|entry| entry.nodes).collect())
}

/// Reads each `[[node]]`.
fn sections<'a, 't>(root: &Section<'a, 't>, report: &mut Report<'_>) -> Vec<Section<'a, 't>> {
    let mut sections = Vec::new();
    match root.value("node").map(|value| (value, value.get_ref())) {
        Some((_, DeValue::Array(items))) if !items.is_empty() => {
            for item in items {
                match item.get_ref() {
                    DeValue::Table(table) => sections.push(Section::read("node", item.span(), table, report)),
                    _ => {
                        let message = format!("node: expected a table for each machine, found {}", found(item, report));
                        report.at(item.span(), message);
                    }
                }
            }
        }
        Some((value, _)) => {
            let message =
                format!("expected [[node]] with two brackets, once for each machine, found {}", found(value, report));
            root.fault("node", &message, report);
        }
        None => root.require("node", "at least one [[node]] with a `host`", report),
    }
    sections
}

/// Makes the nodes of one `[[node]]`, or reports what does not fit together in it.
fn entry<'a, 't>(
    mut section: Section<'a, 't>,
    defaults: &Map<String, Value>,
    cluster: &Cluster,
    report: &mut Report<'_>,
) -> Option<Entry<'a, 't>> {
    section.require("host", check::HOST.expected, report);
    separate_mounts(&section, cluster, report);
    let is_refused = |field: &str| section.value(field).is_some() && !section.values.contains_key(field);
    let identity = ["host", "name", "user", "ssh_port", "jump", "address"];
    if section.value("host").is_none() || identity.into_iter().any(is_refused) {
        return None;
    }
    let before = report.count();
    let mut own = std::mem::take(&mut section.values);
    let [hosts, names, addresses] = ["host", "name", "address"].map(|field| match own.remove(field) {
        Some(Value::Array(values)) => values,
        _ => Vec::new(),
    });
    for (field, values) in [("name", &names), ("address", &addresses)] {
        if !values.is_empty() && values.len() != hosts.len() {
            let message = format!("expected as many as hosts ({}), found {}", hosts.len(), values.len());
            section.fault(field, &message, report);
        }
    }
    if hosts.len() > 1 && own.get("master") == Some(&Value::Bool(true)) {
        let count = hosts.len();
        let message =
            format!("expected a [[node]] of its own for the master, found one that stands for {count} machines");
        section.fault("master", &message, report);
    }
    if report.count() > before {
        return None;
    }
    let common = over(defaults, own);
    let node = |(index, host): (usize, &Value)| {
        let mut values = common.clone();
        values.insert("host".to_owned(), host.clone());
        values.insert("name".to_owned(), names.get(index).unwrap_or(host).clone());
        values.extend(addresses.get(index).map(|address| ("address".to_owned(), address.clone())));
        typed(values)
    };
    let nodes = hosts.iter().enumerate().map(node).collect();
    Some(Entry { section, nodes })
}

/// A node's values over the defaults: a list takes the place of theirs, a table goes over theirs name by name.
fn over(defaults: &Map<String, Value>, own: Map<String, Value>) -> Map<String, Value> {
    let mut values = defaults.clone();
    for (name, value) in own {
        match (values.get_mut(&name), value) {
            (Some(Value::Object(theirs)), Value::Object(own)) => theirs.extend(own),
            (_, value) => drop(values.insert(name, value)),
        }
    }
    values
}

/// The names that a text with `[1-16]` in it stands for.
pub(super) fn range(text: &str, rule: &Rule) -> Checked<Vec<String>> {
    // an IPv6 address in brackets is no range, and the rule has a hint for it
    let inside = text.split_once('[').map(|(_, rest)| rest.split(']').next().unwrap_or(rest));
    if inside.is_none_or(|inside| inside.contains(':')) {
        return rule.check(text).map(|()| vec![text.to_owned()]);
    }
    let ranges = Ranges::parse(text)?;
    if ranges.len() > MOST {
        return Err(format!("it stands for {}, and an inventory has at most {MOST} machines", ranges.len()));
    }
    ranges.names().map(|one| rule.check(&one).map(|()| one)).collect()
}

/// Reports nodes that are the same machine or cannot be told apart: of each `[[node]]` the first fault.
fn unique(entries: &[Entry<'_, '_>], report: &mut Report<'_>) {
    let mut known = HashMap::new();
    'entries: for Entry { section, nodes } in entries {
        let (named_by, same_name) = match section.value("name") {
            Some(_) => ("name", "name"),
            None => ("host", "name; give each a `name`"),
        };
        for node in nodes {
            // DNS and addresses do not care how they are written
            let host = node.host.parse::<IpAddr>().map_or(node.host.to_lowercase(), |address| address.to_string());
            let machine = json!([host, node.ssh_port, node.user, node.jump]).to_string();
            let address = node.address.map(|address| address.to_string());
            let keys = [
                ("host", "host, port and user", &node.host, Some(machine)),
                (named_by, same_name, &node.name, Some(node.name.clone())),
                ("address", "address", &node.name, address),
            ];
            for (kind, (field, what, shown, key)) in keys.into_iter().enumerate() {
                let Some(key) = key else { continue };
                let span = section.span(field);
                if let Some(first) = known.insert((kind, key), span.clone()) {
                    let line = report.line(&first);
                    let message = format!("duplicate node {}; line {line} has the same {what}", quoted(shown));
                    section.fault(field, &message, report);
                    continue 'entries;
                }
            }
        }
    }
}

/// Settles on the master: the node that says so, else the first that does not say otherwise.
fn master(entries: &mut [Entry<'_, '_>], report: &mut Report<'_>) {
    let says = |entry: &Entry<'_, '_>| entry.section.value("master").and_then(|value| value.get_ref().as_bool());
    let masters: Vec<_> = entries.iter().filter(|entry| says(entry) == Some(true)).collect();
    if let [first, others @ ..] = &masters[..] {
        let line = report.line(&first.section.span("master"));
        for other in others {
            let message = format!("expected one master, found a second one; the first is on line {line}");
            other.section.fault("master", &message, report);
        }
    } else if let Some(first) = entries.iter_mut().find(|entry| says(entry).is_none()) {
        first.nodes[0].master = true;
    } else if let Some(first) = entries.first() {
        first.section.fault("master", "expected one node that may be the master, found false on every node", report);
    }
}
