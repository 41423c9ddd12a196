//! The nodes of an inventory: each `[[node]]` over `[defaults]`, ranges as many nodes, and what must fit together.

use super::check;
use super::fault::quoted;
use super::layout;
use super::reader::{Section, found, typed};
use super::{Cluster, Node};
use crate::text::nodeset::MOST_NAMES;
use serde_json::{Map, Value, json};
use std::collections::HashMap;
use std::net::IpAddr;
use std::path::Path;
use toml::de::DeValue;

/// The fields by which a machine is known. Where one is refused, no other fault of the node can be judged.
const IDENTITY: [&str; 6] = ["host", "name", "user", "ssh_port", "jump", "address"];

/// A section `[[node]]` with its machines: one node, or as many as its range of hosts.
struct NodeSection<'a> {
    section: Section<'a>,
    nodes: Vec<Node>,
}

/// Reads the nodes, with one of them the master; `None` where not all could be read.
pub(super) fn nodes(root: &Section<'_>, defaults: &Map<String, Value>, cluster: &Cluster) -> Option<Vec<Node>> {
    let sections = sections(root);
    let all = sections.len();
    let (mut entries, mut machines) = (Vec::new(), 0);
    for section in sections {
        let Some(entry) = entry(section, defaults, cluster) else { continue };
        machines += entry.nodes.len();
        if machines > MOST_NAMES {
            entry.section.fault("host", &format!("an inventory has at most {MOST_NAMES} machines"));
            return None;
        }
        entries.push(entry);
    }
    unique(&entries);
    master(&mut entries);
    (entries.len() == all).then(|| entries.into_iter().flat_map(|entry| entry.nodes).collect())
}

/// Reads each `[[node]]`.
fn sections<'a>(root: &Section<'a>) -> Vec<Section<'a>> {
    root.require("node", "at least one [[node]] with a `host`");
    let Some(value) = root.value("node") else { return Vec::new() };
    let Some(items) = value.get_ref().as_array().filter(|items| !items.is_empty()) else {
        let found = found(value, root.report);
        root.fault("node", &format!("expected [[node]] with two brackets, once for each machine, found {found}"));
        return Vec::new();
    };
    let mut sections = Vec::new();
    for item in items {
        match item.get_ref() {
            DeValue::Table(table) => sections.push(Section::read("node", item.span(), table, root.report)),
            _ => {
                let found = found(item, root.report);
                root.report.at(item.span(), format!("node: expected a table for each machine, found {found}"));
            }
        }
    }
    sections
}

/// Makes the nodes of one `[[node]]`, or reports what does not fit together in it.
fn entry<'a>(mut section: Section<'a>, defaults: &Map<String, Value>, cluster: &Cluster) -> Option<NodeSection<'a>> {
    section.require("host", check::HOST.expected);
    separate_mounts(&section, cluster);
    layout::check_node(&section, cluster);
    let is_refused = |field: &str| section.value(field).is_some() && !section.values.contains_key(field);
    if section.value("host").is_none() || IDENTITY.into_iter().any(is_refused) {
        return None;
    }
    let before = section.report.count();
    let mut own = std::mem::take(&mut section.values);
    let [hosts, names, addresses] = ["host", "name", "address"].map(|field| match own.remove(field) {
        Some(Value::Array(values)) => values,
        _ => Vec::new(),
    });
    let count = hosts.len();
    for (field, found) in [("name", names.len()), ("address", addresses.len())] {
        if found != 0 && found != count {
            section.fault(field, &format!("expected as many as hosts ({count}), found {found}"));
        }
    }
    if count > 1 && own.get("master") == Some(&Value::Bool(true)) {
        let found = format!("found one that stands for {count} machines");
        section.fault("master", &format!("expected a [[node]] of its own for the master, {found}"));
    }
    if section.report.count() > before {
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
    Some(NodeSection { section, nodes })
}

/// Refuses mounts over the cluster's own directory in every container.
pub(super) fn separate_mounts(section: &Section<'_>, cluster: &Cluster) {
    let mounts = section.values.get("mounts").and_then(Value::as_array).into_iter().flatten();
    for target in mounts.filter_map(|mount| mount["target"].as_str()) {
        if Path::new(target).starts_with(&cluster.jobs_dir) {
            section.fault("mounts", &format!("{} in the container is reserved for hvdctl", quoted(target)));
        }
    }
}

/// A node's values over the defaults: a list replaces theirs, a table is merged into theirs name by name.
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

/// Returns the form of a host that is the same however it is written: `::ffff:10.0.0.1` is 10.0.0.1, and a full name
/// may end with a dot.
pub fn canonical_host(host: &str) -> String {
    let name = || host.trim_end_matches('.').to_lowercase();
    host.parse::<IpAddr>().map_or_else(|_| name(), |address| address.to_canonical().to_string())
}

/// Reports nodes that are the same machine or cannot be distinguished: of each `[[node]]` the first fault.
fn unique(entries: &[NodeSection<'_>]) {
    let mut known = HashMap::new();
    'entries: for NodeSection { section, nodes } in entries {
        let (named_by, same_name) = match section.value("name") {
            Some(_) => ("name", "name"),
            None => ("host", "name; give each a `name`"),
        };
        for node in nodes {
            let machine = json!([canonical_host(&node.host), node.ssh_port, node.user, node.jump]).to_string();
            let address = node.address.map(|address| address.to_string());
            let keys = [
                ("host", "host, port and user", &node.host, Some(machine)),
                (named_by, same_name, &node.name, Some(node.name.clone())),
                ("address", "address", &node.name, address),
                ("endpoint", "endpoint", &node.name, node.endpoint.as_deref().map(str::to_lowercase)),
            ];
            for (kind, (field, what, shown, key)) in keys.into_iter().enumerate() {
                let Some(key) = key else { continue };
                let span = section.span(field);
                if let Some(first) = known.insert((kind, key), span) {
                    let (line, shown) = (section.report.line(&first), quoted(shown));
                    section.fault(field, &format!("duplicate node {shown}; line {line} has the same {what}"));
                    continue 'entries;
                }
            }
        }
    }
}

/// Chooses the master: the node with `master = true`, else the first without `master = false`.
fn master(entries: &mut [NodeSection<'_>]) {
    let is_master = |entry: &NodeSection<'_>| entry.section.value("master").and_then(|value| value.get_ref().as_bool());
    let mut masters = entries.iter().filter(|entry| is_master(entry) == Some(true));
    if let Some(NodeSection { section, .. }) = masters.next() {
        let line = section.report.line(&section.span("master"));
        let message = format!("expected one master, found a second one; the first is on line {line}");
        masters.for_each(|other| other.section.fault("master", &message));
    } else if let Some(first) = entries.iter_mut().find(|entry| is_master(entry).is_none()) {
        first.nodes[0].master = true;
    } else if let Some(first) = entries.first() {
        first.section.fault("master", "expected a node that may be the master, found `master = false` on every node");
    }
}
