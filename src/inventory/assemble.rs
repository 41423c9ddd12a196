//! From the text to an [`Inventory`]: its tables, and what must fit together in them.

use super::check;
use super::fault::{Faults, Report, quoted, without_mark};
use super::fields::{self, CLUSTER_FIELDS, DEFAULTS_FIELDS, TABLES};
use super::groups::groups;
use super::kind::Context;
use super::nodes::nodes;
use super::reader::Section;
use super::{Cluster, Inventory};
use serde::de::DeserializeOwned;
use serde_json::{Map, Value};
use std::collections::HashSet;
use std::path::{Path, PathBuf};
use toml::de::{DeTable, DeValue};

/// Reads an inventory; see [`Inventory::parse`]. `home` stands for `~`.
pub(super) fn inventory(text: &str, file: &Path, home: Option<&Path>) -> Result<Inventory, Faults> {
    let text = without_mark(text);
    let mut report = Report::new(text);
    let (document, errors) = DeTable::parse_recoverable(text);
    if !is_walkable(&errors, &mut report) {
        return Err(report.into_faults(file));
    }
    let root = Section::open("", TABLES, 0..0, document.get_ref(), &mut report);
    let context = Context { home, jobs_dir: "" };
    let mut cluster = cluster(&root, context, &mut report);
    let context = Context { jobs_dir: &cluster.jobs_dir, ..context };
    let defaults = open_table(&root, "defaults", DEFAULTS_FIELDS, &mut report);
    let defaults = defaults.read(fields::defaults(), context, &mut report).values;
    let (mut nodes, certain) = nodes(&root, &defaults, context, &mut report);
    let names: Vec<String> = nodes.iter().map(|node| node.name.clone()).collect();
    let groups = groups(&root, certain.then_some(&names), &mut report);
    if !report.is_clean() {
        return Err(report.into_faults(file));
    }
    let node_files = nodes.iter_mut().flat_map(|node| [&mut node.identity, &mut node.container.env_file]);
    for path in node_files.chain([&mut cluster.ssh_config]).flatten() {
        *path = resolved(path, file, home);
    }
    Ok(Inventory { cluster, nodes, groups })
}

/// A path on the operator's machine: `~/` is `home`, and a relative one starts from the inventory's directory.
fn resolved(path: &Path, inventory: &Path, home: Option<&Path>) -> PathBuf {
    match (path.strip_prefix("~"), home) {
        (Ok(rest), Some(home)) => home.join(rest),
        _ => inventory.parent().unwrap_or(Path::new("")).join(path),
    }
}

/// Values that were read, as what they make together. A field that is absent or was refused has its default.
pub(super) fn typed<T: DeserializeOwned>(values: Map<String, Value>) -> T {
    serde_json::from_value(Value::Object(values)).expect("the reader accepts what the types take")
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

/// One of the tables that are there once, or a stand-in with no fields.
fn open_table<'a, 't>(
    root: &Section<'a, 't>,
    name: &'static str,
    fields: &'static [&'static str],
    report: &mut Report<'_>,
) -> Section<'a, 't> {
    match root.value(name).map(|value| (value, value.get_ref())) {
        Some((value, DeValue::Table(table))) => {
            return Section::open(name, fields, value.span(), table, report);
        }
        Some((value, _)) => {
            let message = format!("expected one table [{name}], found {}", report.found(value, true));
            root.fault(name, &message, report);
        }
        None if name == "cluster" && !root.is_meant(name) => {
            report.lacking("cluster: missing; expected a table [cluster] with at least a `name`");
        }
        None => {}
    }
    Section::absent(name)
}

/// The cluster; where a field is wrong, its default stands in, for the checks that follow.
fn cluster(root: &Section<'_, '_>, context: Context<'_>, report: &mut Report<'_>) -> Cluster {
    let section = open_table(root, "cluster", CLUSTER_FIELDS, report);
    section.require("name", check::NAME.expected, report);
    let mut section = section.read(fields::CLUSTER.iter(), context, report);
    let cluster = typed(std::mem::take(&mut section.values));
    distinct_containers(&cluster, &section, report);
    separate_directories(&cluster, &section, report);
    cluster
}

/// Both containers are on the master, so one name cannot serve both.
fn distinct_containers(cluster: &Cluster, section: &Section<'_, '_>, report: &mut Report<'_>) {
    if cluster.worker == cluster.master {
        let name = if section.span("master").is_some() { "master" } else { "worker" };
        let message =
            format!("expected different names for `worker` and `master`, found {} for both", quoted(&cluster.master));
        section.fault(name, &message, report);
    }
}

/// Keys must not lie in what is shipped or purged with projects and jobs, nor any two of these in each other.
fn separate_directories(cluster: &Cluster, section: &Section<'_, '_>, report: &mut Report<'_>) {
    let directories =
        [("ssh_dir", &cluster.ssh_dir), ("projects_dir", &cluster.projects_dir), ("jobs_dir", &cluster.jobs_dir)];
    for (index, (name, directory)) in directories.iter().enumerate() {
        for (other, otherwise) in &directories[..index] {
            if Path::new(directory).starts_with(otherwise) || Path::new(otherwise).starts_with(directory) {
                // The one that is written down is the one to change.
                let (name, directory, other, otherwise) = match section.span(name) {
                    Some(_) => (name, directory, other, otherwise),
                    None => (other, otherwise, name, directory),
                };
                let message = format!(
                    "expected a directory apart from `{other}` ({}), found {}",
                    quoted(otherwise),
                    quoted(directory)
                );
                section.fault(name, &message, report);
            }
        }
    }
}
