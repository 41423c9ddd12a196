//! The nodes of an inventory: each `[[node]]` over `[defaults]`, ranges as many nodes, and what must fit together.

use super::assemble::{NODE_FIELDS, port, tables_with};
use super::check;
use super::container::Part;
use super::fault::quoted;
use super::reader::{Hint, NO_HINT, Report, Section, Span, integer, within};
use super::{Gpus, Node, Paths};
use crate::text::nodeset::Ranges;
use std::collections::{HashMap, HashSet};
use std::hash::Hash;
use std::net::IpAddr;
use std::path::PathBuf;
use toml::Spanned;
use toml::de::{DeTable, DeValue};

/// More machines than this are a range mistyped.
const MOST: usize = 10_000;

/// What `[defaults]` and `[[node]]` have in common.
pub(super) struct Shared {
    user: Option<String>,
    ssh_port: Option<u16>,
    identity: Option<PathBuf>,
    jump: Option<String>,
    gpus: Option<Gpus>,
    slots: Option<u32>,
    interface: Option<String>,
    container: Part,
}

impl Shared {
    pub(super) fn read(section: &Section<'_, '_>, paths: Paths<'_>, report: &mut Report<'_>) -> Shared {
        Shared {
            user: section.text("user", check::USER, report, check::user),
            ssh_port: port(section, "ssh_port", report),
            identity: section.text("identity", check::FILE, report, |text| paths.file(text)),
            jump: section.text("jump", check::JUMP, report, check::jump),
            gpus: gpus(section, report),
            slots: section.read("slots", "a number of slots from 1 to 1024", report, |value| {
                integer(value).map(|number| count(number, 1))
            }),
            interface: section.text("interface", check::INTERFACE, report, check::interface),
            container: Part::read(section, paths, report),
        }
    }
}

/// A number, a word, or a list of indices and UUIDs.
fn gpus(section: &Section<'_, '_>, report: &mut Report<'_>) -> Option<Gpus> {
    let is_list =
        matches!(section.value("gpus").map(Spanned::get_ref), Some(DeValue::Array(items)) if !items.is_empty());
    if !is_list {
        return section.read("gpus", check::GPUS, report, |value| match value {
            DeValue::String(text) => Some(check::gpus(text)),
            DeValue::Array(_) => Some(Err("an empty one is written \"none\"".into())),
            value => integer(value).map(|number| count(number, 0).map(Gpus::Count)),
        });
    }
    let mut known = HashSet::new();
    let list = section.list("gpus", check::GPU, report, |value| {
        let gpu = match value {
            DeValue::String(text) => check::gpu(text),
            value => integer(value)?.map_or(Err(NO_HINT), |index| check::gpu(&index.to_string())),
        };
        Some(gpu.and_then(|gpu| match known.insert(gpu.clone()) {
            true => Ok(gpu),
            false => Err("it is there already".into()),
        }))
    });
    list.map(Gpus::List)
}

/// A number of GPUs or slots.
fn count(number: Option<u64>, least: u64) -> Result<u32, Hint> {
    within(number, least..1025).and_then(|number| u32::try_from(number).map_err(|_| NO_HINT))
}

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
    fn read(section: Section<'a, 't>, defaults: &Shared, paths: Paths<'_>, report: &mut Report<'_>) -> Self {
        section.require("host", check::HOST, report);
        let hosts = each(&section, "host", check::HOST, report, check::host);
        let length = hosts.as_ref().map(Vec::len);
        let names = as_many(
            &section,
            "name",
            each(&section, "name", check::NODE_NAME, report, check::node_name),
            length,
            report,
        );
        let addresses = each(&section, "address", check::ADDRESS, report, check::address);
        let addresses = as_many(&section, "address", addresses, length, report);
        let own = Shared::read(&section, paths, report);
        let master = section.flag("master", report);
        if let (Some(true), Some(length @ 2..), Some(span)) = (master, length, section.span("master")) {
            let message =
                format!("expected a [[node]] of its own for the master, found one that stands for {length} machines");
            section.fault("master", span, &message, report);
        }

        let refused_user = own.user.is_none() && section.value("user").is_some();
        let refused_port = own.ssh_port.is_none() && section.value("ssh_port").is_some();
        let has_name = section.value("name").is_some();
        let has_host = hosts.is_some();
        let common = Node {
            name: String::new(),
            host: String::new(),
            user: own.user.or_else(|| defaults.user.clone()),
            ssh_port: own.ssh_port.or(defaults.ssh_port),
            identity: own.identity.or_else(|| defaults.identity.clone()),
            jump: own.jump.or_else(|| defaults.jump.clone()),
            gpus: own.gpus.or_else(|| defaults.gpus.clone()).unwrap_or(Gpus::Auto),
            slots: own.slots.or(defaults.slots),
            address: None,
            interface: own.interface.or_else(|| defaults.interface.clone()),
            container: own.container.over(&defaults.container),
            master: false,
        };
        let hosts = hosts.unwrap_or_else(|| vec![String::new()]);
        let node = |(index, host): (usize, String)| {
            let name = names.as_ref().and_then(|names| names.get(index).cloned());
            let name = name.unwrap_or_else(|| if has_name { String::new() } else { host.clone() });
            let address = addresses.as_ref().and_then(|addresses| addresses.get(index).copied());
            Node { name, host, address, ..common.clone() }
        };
        let nodes = hosts.into_iter().enumerate().map(node).collect();
        let is_certain = has_host && !refused_user && !refused_port;
        Draft { section, nodes, has_host, has_name, is_certain, master }
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

/// The values of a field in which `[1-16]` may stand: all good, or none.
fn each<T>(
    section: &Section<'_, '_>,
    name: &str,
    expected: &str,
    report: &mut Report<'_>,
    accept: fn(&str) -> Result<T, Hint>,
) -> Option<Vec<T>> {
    section.text(name, expected, report, |text| {
        // an address of IPv6 in brackets is no range, and the check has a word for it
        let inside = text.split_once('[').map(|(_, rest)| rest.split(']').next().unwrap_or(rest));
        if inside.is_none_or(|inside| inside.contains(':')) {
            return Ok(vec![accept(text)?]);
        }
        let ranges = Ranges::parse(text)?;
        match ranges.len() {
            length if length > MOST => {
                Err(format!("it stands for {length}, and an inventory has at most {MOST} machines").into())
            }
            _ => ranges.names().map(|one| accept(&one)).collect(),
        }
    })
}

/// Values beside a range of hosts: one for each of them.
fn as_many<T>(
    section: &Section<'_, '_>,
    name: &str,
    values: Option<Vec<T>>,
    hosts: Option<usize>,
    report: &mut Report<'_>,
) -> Option<Vec<T>> {
    let (values, Some(span)) = (values?, section.span(name)) else { return None };
    match hosts {
        Some(hosts) if hosts != values.len() => {
            let message = format!("expected as many as hosts ({hosts}), found {}", values.len());
            section.fault(name, span, &message, report);
            None
        }
        _ => Some(values),
    }
}

/// The nodes over their defaults, with one of them the master; and whether their names are all known.
pub(super) fn nodes(
    root: &Section<'_, '_>,
    defaults: &Shared,
    paths: Paths<'_>,
    report: &mut Report<'_>,
) -> (Vec<Node>, bool) {
    let mut drafts: Vec<Draft<'_, '_>> = Vec::new();
    let mut machines = 0;
    for (span, table) in node_tables(root, report) {
        let section = Section::open("node", NODE_FIELDS, span, table, tables_with, report);
        let draft = Draft::read(section, defaults, paths, report);
        machines += draft.nodes.len();
        if machines > MOST {
            let span = draft.section.span_or_heading("host");
            let message = format!("expected an inventory of at most {MOST} machines, and these are more");
            draft.section.fault("host", span, &message, report);
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
    let mut refuse = |value: &Spanned<DeValue<'_>>, expected: &str, found: Option<&str>| {
        let found = found.map_or_else(|| report.found(value, true), str::to_owned);
        root.fault("node", value.span(), &format!("{expected}, found {found}"), report);
    };
    match value.get_ref() {
        DeValue::Array(items) if items.is_empty() => refuse(value, EXPECTED, Some("an empty array")),
        DeValue::Array(items) => {
            let mut tables = Vec::new();
            for item in items {
                match item.get_ref() {
                    DeValue::Table(table) => tables.push((item.span(), table)),
                    _ => refuse(item, "expected one table [[node]] for each machine", None),
                }
            }
            return tables;
        }
        DeValue::Table(table) => {
            refuse(value, "expected [[node]] with two brackets, once for each machine", Some("a single table"));
            return vec![(value.span(), table)];
        }
        _ => refuse(value, EXPECTED, None),
    }
    Vec::new()
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
            section.fault("host", host, &message, report);
        }
        if let Some((twice, line)) = same_name {
            let cure = if draft.has_name { "" } else { "; give each of them a `name`" };
            let message = format!("duplicate node {}; line {line} has the same name{cure}", quoted(twice));
            section.fault(field, name, &message, report);
        }
        if let Some((twice, line)) = same_address {
            let which = if draft.nodes.len() > 1 { format!(" ({twice})") } else { String::new() };
            let message = format!("expected an address of its own, found that of line {line}{which}");
            section.fault("address", own, &message, report);
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
            draft.section.fault("master", draft.section.span_or_heading("master"), &message, report);
        }
        return first_of(master);
    }
    if let (Some(draft), true) = (drafts.first(), drafts.iter().all(|draft| draft.master == Some(false))) {
        let message = "expected one node that may be the master, found false on every node";
        draft.section.fault("master", draft.section.span_or_heading("master"), message, report);
    }
    first_of(drafts.iter().position(|draft| draft.master.is_none()).unwrap_or(0))
}
