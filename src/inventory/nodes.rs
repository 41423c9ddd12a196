//! The nodes of an inventory: each `[[node]]` over `[defaults]`, ranges as many nodes, and what must fit together.

use super::Node;
use super::assemble::typed;
use super::check::{self, Rule};
use super::fault::{Report, quoted};
use super::fields::{self, NODE_FIELDS};
use super::kind::Context;
use super::reader::{Checked, Section, Span};
use crate::text::nodeset::Ranges;
use serde::de::DeserializeOwned;
use serde_json::{Map, Value};
use std::collections::HashMap;
use std::hash::Hash;
use std::net::IpAddr;
use toml::de::{DeTable, DeValue};

/// The most machines; more are a range mistyped.
const MOST: usize = 10_000;

/// Host, port, user and jump hosts: what tells machines apart.
type Machine<'a> = (String, Option<u16>, Option<&'a str>, Option<&'a str>);

/// The nodes of one `[[node]]` as far as they could be read: one, or as many as its range of hosts.
struct Draft<'a, 't> {
    section: Section<'a, 't>,
    nodes: Vec<Node>,
    /// Whether `host` is there and good.
    has_host: bool,
    /// Whether `name` is there, good or not; otherwise it is the host.
    has_name: bool,
    /// Whether host, port and user together say which machine it is.
    is_certain: bool,
    master: Option<bool>,
}

impl<'a, 't> Draft<'a, 't> {
    fn read(
        section: Section<'a, 't>,
        defaults: &Map<String, Value>,
        context: Context<'_>,
        report: &mut Report<'_>,
    ) -> Self {
        section.require("host", check::HOST.expected, report);
        let mut section = section.read(fields::node(), context, report);
        let is_certain = !["user", "ssh_port"].iter().any(|field| section.is_refused(field));
        let has_name = section.value("name").is_some();
        let mut values = std::mem::take(&mut section.values);
        let hosts: Option<Vec<String>> = take(&mut values, "host");
        let has_host = hosts.is_some();
        let length = hosts.as_ref().map(Vec::len);
        let names: Vec<String> = as_many(&section, "name", &mut values, length, report);
        let addresses: Vec<IpAddr> = as_many(&section, "address", &mut values, length, report);
        let master = take(&mut values, "master");
        if let (Some(true), Some(length @ 2..)) = (master, length) {
            let message =
                format!("expected a [[node]] of its own for the master, found one that stands for {length} machines");
            section.fault("master", &message, report);
        }
        let common: Node = typed(over(defaults, values));
        let node = |(index, host): (usize, String)| Node {
            name: names.get(index).unwrap_or(if has_name { const { &String::new() } } else { &host }).clone(),
            address: addresses.get(index).copied(),
            host,
            ..common.clone()
        };
        let nodes = hosts.unwrap_or_else(|| vec![String::new()]).into_iter().enumerate().map(node).collect();
        Draft { section, nodes, has_host, has_name, is_certain: has_host && is_certain, master }
    }

    /// Two nodes with the same key are the same machine: DNS and addresses do not care how they are written.
    fn machine<'n>(&self, node: &'n Node) -> Option<Machine<'n>> {
        let host = match node.host.parse::<IpAddr>() {
            Ok(address) => address.to_string(),
            Err(_) => node.host.to_ascii_lowercase(),
        };
        self.is_certain.then_some((host, node.ssh_port, node.user.as_deref(), node.jump.as_deref()))
    }
}

/// Takes a value out of those that were read.
fn take<T: DeserializeOwned>(values: &mut Map<String, Value>, name: &str) -> Option<T> {
    values.remove(name).and_then(|value| serde_json::from_value(value).ok())
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
pub(super) fn names(text: &str, rule: &Rule) -> Checked<Vec<String>> {
    // an IPv6 address in brackets is no range, and the rule has a hint for it
    let inside = text.split_once('[').map(|(_, rest)| rest.split(']').next().unwrap_or(rest));
    if inside.is_none_or(|inside| inside.contains(':')) {
        return rule.check(text).map(|()| vec![text.to_owned()]);
    }
    let ranges = Ranges::parse(text)?;
    match ranges.len() {
        length if length > MOST => {
            Err(format!("it stands for {length}, and an inventory has at most {MOST} machines").into())
        }
        _ => ranges.names().map(|one| rule.check(&one).map(|()| one)).collect(),
    }
}

/// Values beside a range of hosts: one for each of them, or none.
fn as_many<T: DeserializeOwned>(
    section: &Section<'_, '_>,
    name: &str,
    values: &mut Map<String, Value>,
    hosts: Option<usize>,
    report: &mut Report<'_>,
) -> Vec<T> {
    let values: Vec<T> = take(values, name).unwrap_or_default();
    match hosts {
        Some(hosts) if !values.is_empty() && hosts != values.len() => {
            let message = format!("expected as many as hosts ({hosts}), found {}", values.len());
            section.fault(name, &message, report);
            Vec::new()
        }
        _ => values,
    }
}

/// The nodes over their defaults, with one of them the master; and whether their names are all known.
pub(super) fn nodes(
    root: &Section<'_, '_>,
    defaults: &Map<String, Value>,
    context: Context<'_>,
    report: &mut Report<'_>,
) -> (Vec<Node>, bool) {
    let mut drafts: Vec<Draft<'_, '_>> = Vec::new();
    let mut machines = 0;
    for (span, table) in node_tables(root, report) {
        let section = Section::open("node", NODE_FIELDS, span, table, report);
        let draft = Draft::read(section, defaults, context, report);
        machines += draft.nodes.len();
        if machines > MOST {
            let message = format!("expected an inventory of at most {MOST} machines, and these are more");
            draft.section.fault("host", &message, report);
            break;
        }
        drafts.push(draft);
    }
    unique(&drafts, report);
    let master = master(&drafts, report);
    let certain = machines <= MOST && drafts.iter().all(|draft| draft.nodes.iter().all(|node| !node.name.is_empty()));
    let mut nodes: Vec<Node> = drafts.into_iter().flat_map(|draft| draft.nodes).collect();
    if let Some(node) = nodes.get_mut(master) {
        node.master = true;
    }
    (nodes, certain && machines > 0)
}

/// The tables of `[[node]]` with the places of their headings.
fn node_tables<'a, 't>(root: &Section<'a, 't>, report: &mut Report<'_>) -> Vec<(Span, &'a DeTable<'t>)> {
    const EXPECTED: &str = "expected at least one [[node]]";
    let Some(value) = root.value("node") else {
        if !root.is_meant("node") {
            report.lacking(format!("node: missing; {EXPECTED} with a `host`"));
        }
        return Vec::new();
    };
    let (items, expected, is_list) = match value.get_ref() {
        DeValue::Array(items) if !items.is_empty() => {
            (items.iter().collect(), "expected one table [[node]] for each machine", true)
        }
        DeValue::Table(_) => (vec![value], "expected [[node]] with two brackets, once for each machine", false),
        _ => (vec![value], EXPECTED, false),
    };
    let mut tables = Vec::new();
    for item in items {
        let table = item.get_ref().as_table();
        if table.is_none() || !is_list {
            report.at(item.span(), format!("node: {expected}, found {}", report.found(item, true)));
        }
        tables.extend(table.map(|table| (item.span(), table)));
    }
    tables
}

/// Reports nodes that are the same machine or cannot be told apart; of a range the first that is.
fn unique(drafts: &[Draft<'_, '_>], report: &mut Report<'_>) {
    let (mut machines, mut names, mut addresses) = (HashMap::new(), HashMap::new(), HashMap::new());
    for draft in drafts {
        let section = &draft.section;
        let field = if draft.has_name { "name" } else { "host" };
        let (host, name, own) =
            (section.span_or_heading("host"), section.span_or_heading(field), section.span_or_heading("address"));
        let (mut same_machine, mut same_name, mut same_address) = (None, None, None);
        for node in &draft.nodes {
            if let Some(line) = draft.machine(node).and_then(|machine| seen(&mut machines, machine, &host, report)) {
                same_machine.get_or_insert((&node.host, line));
                // Its name, taken from the host, and its address are the same fault again.
                if !draft.has_name {
                    continue;
                }
            }
            let named = !node.name.is_empty() && (draft.has_name || draft.has_host);
            if let Some(line) = named.then(|| seen(&mut names, node.name.as_str(), &name, report)).flatten() {
                same_name.get_or_insert((&node.name, line));
            }
            if let Some(line) = node.address.and_then(|address| seen(&mut addresses, address, &own, report)) {
                same_address.get_or_insert((address_of(node), line));
            }
        }
        if let Some((twice, line)) = same_machine {
            let message = format!("duplicate node {}; line {line} has the same host, port and user", quoted(twice));
            section.fault("host", &message, report);
        }
        if let Some((twice, line)) = same_name {
            let cure = if draft.has_name { "" } else { "; give each of them a `name`" };
            let message = format!("duplicate node {}; line {line} has the same name{cure}", quoted(twice));
            section.fault(field, &message, report);
        }
        if let Some((twice, line)) = same_address {
            let which = if draft.nodes.len() > 1 { format!(" ({twice})") } else { String::new() };
            let message = format!("expected an address of its own, found that of line {line}{which}");
            section.fault("address", &message, report);
        }
    }
}

fn address_of(node: &Node) -> String {
    node.address.map_or_else(String::new, |address| address.to_string())
}

/// Notes a key, and gives the line where it was seen first if that was before.
fn seen<K: Eq + Hash>(known: &mut HashMap<K, Span>, key: K, span: &Span, report: &Report<'_>) -> Option<usize> {
    if let Some(first) = known.get(&key) {
        return Some(report.line(first));
    }
    known.insert(key, span.clone());
    None
}

/// The index of the master among the nodes: the one that says so, else the first that does not say otherwise.
fn master(drafts: &[Draft<'_, '_>], report: &mut Report<'_>) -> usize {
    let first_of = |draft: usize| drafts[..draft].iter().map(|draft| draft.nodes.len()).sum();
    let mut masters = drafts.iter().enumerate().filter(|(_, draft)| draft.master == Some(true));
    if let Some((master, first)) = masters.next() {
        let line = report.line(&first.section.span_or_heading("master"));
        for (_, draft) in masters {
            let message = format!("expected one master, found a second one; the first is on line {line}");
            draft.section.fault("master", &message, report);
        }
        return first_of(master);
    }
    if let (Some(draft), true) = (drafts.first(), drafts.iter().all(|draft| draft.master == Some(false))) {
        let message = "expected one node that may be the master, found false on every node";
        draft.section.fault("master", message, report);
    }
    first_of(drafts.iter().position(|draft| draft.master.is_none()).unwrap_or(0))
}
