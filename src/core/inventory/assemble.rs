//! From the text to an [`Inventory`]: which tables and fields there are, their defaults, and what must fit together.

use super::check;
use super::fault::{Faults, quoted, without_mark};
use super::reader::{Hint, NO_HINT, Report, Section, Span, integer, within};
use super::{Cluster, Gpus, Inventory, Node};
use std::collections::{HashMap, HashSet};
use std::hash::Hash;
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;
use toml::Spanned;
use toml::de::{DeTable, DeValue};

/// The tables of an inventory.
pub const TABLES: &[&str] = &["cluster", "defaults", "node"];

/// The fields of `[cluster]`.
pub const CLUSTER_FIELDS: &[&str] = &[
    "name",
    "image",
    "port",
    "worker",
    "master",
    "ssh_dir",
    "projects_dir",
    "jobs_dir",
    "key_type",
    "controller",
    "shm_size",
    "ssh_config",
    "connect_timeout_s",
    "command_timeout_s",
    "start_timeout_s",
    "stop_grace_s",
];

/// The fields of `[defaults]`: those of a node that many nodes may share.
pub const DEFAULTS_FIELDS: &[&str] = &["user", "ssh_port", "identity", "gpus", "slots", "interface"];

/// The fields of `[[node]]`.
pub const NODE_FIELDS: &[&str] =
    &["host", "name", "user", "ssh_port", "identity", "gpus", "slots", "address", "interface", "master"];

/// The tables, as they are written, that have a field.
fn tables_with(field: &str) -> Vec<&'static str> {
    [("[cluster]", CLUSTER_FIELDS), ("[defaults]", DEFAULTS_FIELDS), ("[[node]]", NODE_FIELDS)]
        .into_iter()
        .filter(|(_, fields)| fields.contains(&field))
        .map(|(table, _)| table)
        .collect()
}

/// Reads an inventory; see [`Inventory::parse`]. `home` stands for `~`.
pub(super) fn inventory(text: &str, file: &Path, home: Option<&Path>) -> Result<Inventory, Faults> {
    let text = without_mark(text);
    let mut report = Report::new(text);
    let (document, errors) = DeTable::parse_recoverable(text);
    if !is_walkable(&errors, &mut report) {
        return Err(report.into_faults(file));
    }
    let root = Section::open("", TABLES, 0..0, document.get_ref(), tables_with, &mut report);
    let paths = Paths { base: file.parent().unwrap_or(Path::new("")), home };
    let cluster = cluster(&open_table(&root, "cluster", CLUSTER_FIELDS, &mut report), paths, &mut report);
    let defaults = Shared::read(&open_table(&root, "defaults", DEFAULTS_FIELDS, &mut report), paths, &mut report);
    let nodes = nodes(&root, &defaults, paths, &mut report);
    if report.is_clean() { Ok(Inventory { cluster, nodes }) } else { Err(report.into_faults(file)) }
}

/// Reports what keeps the text from being TOML, and whether the rest of it can be judged all the same.
///
/// It can after a duplicate key, where the parser keeps the first and loses nothing else. After anything else it has
/// guessed, and what seems wrong or missing may not be: those faults would only mislead.
fn is_walkable(errors: &[toml::de::Error], report: &mut Report<'_>) -> bool {
    let mut walkable = true;
    let mut lines = HashSet::new();
    for error in errors {
        let span = error.span().unwrap_or_default();
        if error.message() == "duplicate key" {
            let key = report.source(&span);
            report.at(span, format!("duplicate key `{key}`; it is already defined above"));
            continue;
        }
        walkable = false;
        // What follows on the same line is mostly the echo of the first.
        if lines.insert(report.line(&span)) {
            let found = match error.message().contains("expected") {
                true => format!(", found {}", report.found_here(&span)),
                false => String::new(),
            };
            report.at(span, format!("not TOML: {}{found}", error.message()));
        }
    }
    walkable
}

/// Where paths of the operator's machine start.
#[derive(Clone, Copy)]
struct Paths<'p> {
    base: &'p Path,
    home: Option<&'p Path>,
}

impl Paths<'_> {
    fn file(&self, text: &str) -> Result<PathBuf, Hint> {
        check::file(text, self.base, self.home)
    }
}

/// One of the tables that are there once, or a stand-in with no fields.
fn open_table<'a, 't>(
    root: &Section<'a, 't>,
    name: &'static str,
    fields: &'static [&'static str],
    report: &mut Report<'_>,
) -> Section<'a, 't> {
    match root.value(name).map(|value| (value, value.get_ref())) {
        Some((value, DeValue::Table(table))) => {
            return Section::open(name, fields, value.span(), table, tables_with, report);
        }
        Some((value, _)) => {
            let message = format!("expected one table [{name}], found {}", report.found(value, true));
            root.fault(name, value.span(), &message, report);
        }
        None if name == "cluster" && !root.is_meant(name) => {
            report.lacking("cluster: missing; expected a table [cluster] with at least a `name`");
        }
        None => {}
    }
    Section::absent(name, fields)
}

/// The cluster; where a field is wrong, its default stands in, for the checks that follow.
fn cluster(section: &Section<'_, '_>, paths: Paths<'_>, report: &mut Report<'_>) -> Cluster {
    let mut cluster = Cluster::default();
    section.require("name", check::NAME, report);

    let mut text = |name: &str, expected: &str, accept: fn(&str) -> Result<String, Hint>, into: &mut String| {
        if let Some(value) = section.text(name, expected, report, accept) {
            *into = value;
        }
    };
    text("name", check::NAME, check::name, &mut cluster.name);
    text("image", check::IMAGE, check::image, &mut cluster.image);
    text("worker", check::CONTAINER, check::container, &mut cluster.worker);
    text("master", check::CONTAINER, check::container, &mut cluster.master);
    text("ssh_dir", check::FOLDER, check::folder, &mut cluster.ssh_dir);
    text("projects_dir", check::FOLDER, check::folder, &mut cluster.projects_dir);
    text("jobs_dir", check::FOLDER, check::folder, &mut cluster.jobs_dir);

    if let Some(port) = port(section, "port", report) {
        cluster.port = port;
    }
    if let Some(key_type) = section.text("key_type", check::KEY_TYPE, report, check::key_type) {
        cluster.key_type = key_type;
    }
    if let Some(controller) = section.text("controller", check::CONTROLLER, report, check::controller) {
        cluster.controller = controller;
    }
    let shm_size = section.read("shm_size", check::SIZE, report, |value| match value {
        DeValue::String(text) => Some(check::size_text(text)),
        value => integer(value).map(check::size),
    });
    if let Some(shm_size) = shm_size {
        cluster.shm_size = shm_size;
    }
    cluster.ssh_config = section.text("ssh_config", check::FILE, report, |text| paths.file(text));

    let mut seconds = |name: &str, least: u64, most: u64, into: &mut Duration| {
        let expected = format!("{least} to {most} whole seconds");
        if let Some(seconds) = section.whole(name, &expected, least..most + 1, report) {
            *into = Duration::from_secs(seconds);
        }
    };
    seconds("connect_timeout_s", 1, 600, &mut cluster.connect_timeout);
    seconds("command_timeout_s", 1, 86_400, &mut cluster.command_timeout);
    seconds("start_timeout_s", 1, 86_400, &mut cluster.start_timeout);
    seconds("stop_grace_s", 0, 3600, &mut cluster.stop_grace);

    distinct_containers(&cluster, section, report);
    separate_folders(&cluster, section, report);
    cluster
}

/// Both containers are on the master, so one name cannot serve both.
fn distinct_containers(cluster: &Cluster, section: &Section<'_, '_>, report: &mut Report<'_>) {
    if cluster.worker == cluster.master {
        let name = if section.span("master").is_some() { "master" } else { "worker" };
        let message =
            format!("expected different names for `worker` and `master`, found {} for both", quoted(&cluster.master));
        section.fault(name, section.span_or_heading(name), &message, report);
    }
}

/// Keys must not lie in what is shipped or purged with projects and runs, nor any two of these in each other.
fn separate_folders(cluster: &Cluster, section: &Section<'_, '_>, report: &mut Report<'_>) {
    let folders =
        [("ssh_dir", &cluster.ssh_dir), ("projects_dir", &cluster.projects_dir), ("jobs_dir", &cluster.jobs_dir)];
    for (index, (name, folder)) in folders.iter().enumerate() {
        for (other, otherwise) in &folders[..index] {
            if Path::new(folder).starts_with(otherwise) || Path::new(otherwise).starts_with(folder) {
                // The one that is written down is the one to change.
                let (name, folder, other, otherwise) = match section.span(name) {
                    Some(_) => (name, folder, other, otherwise),
                    None => (other, otherwise, name, folder),
                };
                let message =
                    format!("expected a folder apart from `{other}` ({}), found {}", quoted(otherwise), quoted(folder));
                section.fault(name, section.span_or_heading(name), &message, report);
            }
        }
    }
}

/// A TCP port.
fn port(section: &Section<'_, '_>, name: &str, report: &mut Report<'_>) -> Option<u16> {
    let port = section.whole(name, "a port from 1 to 65535", 1..65536, report)?;
    u16::try_from(port).ok()
}

/// What `[defaults]` and `[[node]]` have in common.
struct Shared {
    user: Option<String>,
    ssh_port: Option<u16>,
    identity: Option<PathBuf>,
    gpus: Option<Gpus>,
    slots: Option<u32>,
    interface: Option<String>,
}

impl Shared {
    fn read(section: &Section<'_, '_>, paths: Paths<'_>, report: &mut Report<'_>) -> Shared {
        let gpus = section.read("gpus", "a number of GPUs from 0 to 1024 or \"auto\"", report, |value| match value {
            DeValue::String(text) => Some(if text == "auto" { Ok(Gpus::Auto) } else { Err(NO_HINT) }),
            value => integer(value).map(|number| count(number, 0).map(Gpus::Count)),
        });
        Shared {
            user: section.text("user", check::USER, report, check::user),
            ssh_port: port(section, "ssh_port", report),
            identity: section.text("identity", check::FILE, report, |text| paths.file(text)),
            gpus,
            slots: section.read("slots", "a number of slots from 1 to 1024", report, |value| {
                integer(value).map(|number| count(number, 1))
            }),
            interface: section.text("interface", check::INTERFACE, report, check::interface),
        }
    }
}

/// A number of GPUs or slots.
fn count(number: Option<u64>, least: u64) -> Result<u32, Hint> {
    within(number, least..1025).and_then(|number| u32::try_from(number).map_err(|_| NO_HINT))
}

/// A node as far as it could be read.
struct Draft<'a, 't> {
    section: Section<'a, 't>,
    node: Node,
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
        let host = section.text("host", check::HOST, report, check::host);
        let name = section.text("name", check::NODE_NAME, report, check::node_name);
        let own = Shared::read(&section, paths, report);
        let address = section.text("address", check::ADDRESS, report, check::address);
        let master = section.flag("master", report);

        let refused_user = own.user.is_none() && section.value("user").is_some();
        let refused_port = own.ssh_port.is_none() && section.value("ssh_port").is_some();
        let has_name = section.value("name").is_some();
        let has_host = host.is_some();
        let host = host.unwrap_or_default();
        let node = Node {
            name: name.unwrap_or_else(|| if has_name { String::new() } else { host.clone() }),
            host,
            user: own.user.or_else(|| defaults.user.clone()),
            ssh_port: own.ssh_port.or(defaults.ssh_port),
            identity: own.identity.or_else(|| defaults.identity.clone()),
            gpus: own.gpus.or(defaults.gpus).unwrap_or(Gpus::Auto),
            slots: own.slots.or(defaults.slots),
            address,
            interface: own.interface.or_else(|| defaults.interface.clone()),
            master: false,
        };
        let is_certain = has_host && !refused_user && !refused_port;
        Draft { section, node, has_host, has_name, is_certain, master }
    }

    /// Two nodes with the same key are the same machine: DNS and addresses do not care how they are written.
    fn machine(&self) -> Option<(String, Option<u16>, Option<&str>)> {
        let host = match self.node.host.parse::<IpAddr>() {
            Ok(address) => address.to_string(),
            Err(_) => self.node.host.to_ascii_lowercase(),
        };
        self.is_certain.then_some((host, self.node.ssh_port, self.node.user.as_deref()))
    }
}

/// The nodes over their defaults, with one of them the master.
fn nodes(root: &Section<'_, '_>, defaults: &Shared, paths: Paths<'_>, report: &mut Report<'_>) -> Vec<Node> {
    let mut drafts: Vec<Draft<'_, '_>> = Vec::new();
    for (span, table) in node_tables(root, report) {
        let section = Section::open("node", NODE_FIELDS, span, table, tables_with, report);
        drafts.push(Draft::read(section, defaults, paths, report));
    }
    unique(&drafts, report);
    let master = master(&drafts, report);
    let mut nodes: Vec<Node> = drafts.into_iter().map(|draft| draft.node).collect();
    if let Some(node) = nodes.get_mut(master) {
        node.master = true;
    }
    nodes
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

/// Reports nodes that are the same machine or cannot be told apart.
fn unique(drafts: &[Draft<'_, '_>], report: &mut Report<'_>) {
    let (mut machines, mut names, mut addresses) = (HashMap::new(), HashMap::new(), HashMap::new());
    for draft in drafts {
        let (section, node) = (&draft.section, &draft.node);
        let host = section.span_or_heading("host");
        if let Some(line) = draft.machine().and_then(|machine| seen(&mut machines, machine, &host, report)) {
            let message =
                format!("duplicate node {}; line {line} has the same host, port and user", quoted(&node.host));
            section.fault("host", host, &message, report);
            // Its name, taken from the host, and its address are the same fault again.
            if !draft.has_name {
                continue;
            }
        }
        let named = !node.name.is_empty() && (draft.has_name || draft.has_host);
        let field = if draft.has_name { "name" } else { "host" };
        let span = section.span_or_heading(field);
        if let Some(line) = named.then(|| seen(&mut names, node.name.as_str(), &span, report)).flatten() {
            let cure = if draft.has_name { "" } else { "; give each of them a `name`" };
            let message = format!("duplicate node {}; line {line} has the same name{cure}", quoted(&node.name));
            section.fault(field, span, &message, report);
        }
        let span = section.span_or_heading("address");
        if let Some(line) = node.address.and_then(|address| seen(&mut addresses, address, &span, report)) {
            let message = format!("expected an address of its own, found that of line {line}");
            section.fault("address", span, &message, report);
        }
    }
}

/// Notes a key, and gives the line where it was seen first if that was before.
fn seen<K: Eq + Hash>(known: &mut HashMap<K, Span>, key: K, span: &Span, report: &Report<'_>) -> Option<usize> {
    if let Some(first) = known.get(&key) {
        return Some(report.line(first));
    }
    known.insert(key, span.clone());
    None
}

/// The index of the master: the node that says so, else the first that does not say otherwise.
fn master(drafts: &[Draft<'_, '_>], report: &mut Report<'_>) -> usize {
    let mut masters = drafts.iter().enumerate().filter(|(_, draft)| draft.master == Some(true));
    if let Some((master, first)) = masters.next() {
        let line = report.line(&first.section.span_or_heading("master"));
        for (_, draft) in masters {
            let message = format!("expected one master, found a second one; the first is on line {line}");
            draft.section.fault("master", draft.section.span_or_heading("master"), &message, report);
        }
        return master;
    }
    if let (Some(draft), true) = (drafts.first(), drafts.iter().all(|draft| draft.master == Some(false))) {
        let message = "expected one node that may be the master, found false on every node";
        draft.section.fault("master", draft.section.span_or_heading("master"), message, report);
    }
    drafts.iter().position(|draft| draft.master.is_none()).unwrap_or(0)
}
