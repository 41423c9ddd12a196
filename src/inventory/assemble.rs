//! From the text to an [`Inventory`]: which tables and fields there are, their defaults, and what must fit together.

use super::check;
use super::fault::{Faults, quoted, without_mark};
use super::groups::groups;
use super::nodes::{Shared, nodes};
use super::reader::{Hint, Report, Section, integer};
use super::{Cluster, Inventory, Paths};
use std::collections::HashSet;
use std::path::Path;
use std::time::Duration;
use toml::de::{DeTable, DeValue};

/// The tables of an inventory.
pub const TABLES: &[&str] = &["cluster", "defaults", "groups", "node"];

/// The fields of `[cluster]`.
pub const CLUSTER_FIELDS: &[&str] = &[
    "name",
    "image",
    "pull",
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
    "stall_timeout_s",
    "idle_margin_s",
    "restart_pause_s",
    "worker_idle_s",
    "keep_alive_s",
];

/// The fields of `[defaults]`: those of a node that many nodes may share.
pub const DEFAULTS_FIELDS: &[&str] = &[
    "user",
    "ssh_port",
    "identity",
    "jump",
    "gpus",
    "slots",
    "interface",
    "mounts",
    "devices",
    "ulimits",
    "env",
    "env_file",
];

/// The fields of `[[node]]`.
pub const NODE_FIELDS: &[&str] = &[
    "host",
    "name",
    "user",
    "ssh_port",
    "identity",
    "jump",
    "gpus",
    "slots",
    "address",
    "interface",
    "mounts",
    "devices",
    "ulimits",
    "env",
    "env_file",
    "master",
];

/// The tables, as they are written, that have a field.
pub(super) fn tables_with(field: &str) -> Vec<&'static str> {
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
    let base = file.parent().unwrap_or(Path::new(""));
    let paths = Paths { base, home, jobs_dir: "" };
    let cluster = cluster(&open_table(&root, "cluster", CLUSTER_FIELDS, &mut report), paths, &mut report);
    let paths = Paths { jobs_dir: &cluster.jobs_dir, ..paths };
    let defaults = Shared::read(&open_table(&root, "defaults", DEFAULTS_FIELDS, &mut report), paths, &mut report);
    let (nodes, certain) = nodes(&root, &defaults, paths, &mut report);
    let names: Vec<String> = nodes.iter().map(|node| node.name.clone()).collect();
    let groups = groups(&root, certain.then_some(&names), &mut report);
    if report.is_clean() { Ok(Inventory { cluster, nodes, groups }) } else { Err(report.into_faults(file)) }
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

    if let Some(pull) = section.text("pull", check::PULL, report, check::pull) {
        cluster.pull = pull;
    }
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
    seconds("stall_timeout_s", 0, 604_800, &mut cluster.stall_timeout);
    seconds("idle_margin_s", 0, 86_400, &mut cluster.idle_margin);
    seconds("restart_pause_s", 0, 300, &mut cluster.restart_pause);
    seconds("worker_idle_s", 5, 86_400, &mut cluster.worker_idle);
    seconds("keep_alive_s", 1, 600, &mut cluster.keep_alive);

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
pub(super) fn port(section: &Section<'_, '_>, name: &str, report: &mut Report<'_>) -> Option<u16> {
    let port = section.whole(name, "a port from 1 to 65535", 1..65536, report)?;
    u16::try_from(port).ok()
}
