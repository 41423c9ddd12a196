//! From the text to an [`Inventory`]: its tables, and what must fit together in them.

use super::check;
use super::fault::{FaultReport, Faults, quoted, without_mark};
use super::layout;
use super::nodes::{nodes, separate_mounts};
use super::reader::{Section, typed};
use super::{Bench, Cluster, Inventory, Pool, Slurm};
use crate::text::nodeset::{Groups, groups_in, select};
use serde_json::Value;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use toml::de::DeTable;

/// The most groups; those that name others are resolved in quadratic time.
const MOST_GROUPS: usize = 256;

/// Reads an inventory; see [`Inventory::parse`].
pub(super) fn inventory(text: &str, file: &Path) -> Result<Inventory, Faults> {
    let text = without_mark(text);
    let report = FaultReport::new(text);
    let (document, errors) = DeTable::parse_recoverable(text);
    let inventory = if is_readable(errors, &report) { read(document.get_ref(), file, &report) } else { None };
    inventory.filter(|_| report.count() == 0).ok_or_else(|| report.into_faults(file))
}

/// Reads all tables. `None` where not all nodes could be read; it cannot be known then whether a group names a node.
fn read(document: &DeTable<'_>, file: &Path, report: &FaultReport<'_>) -> Option<Inventory> {
    let root = Section::read("", 0..0, document, report);
    let mut cluster = cluster(&root);
    let bench: Bench = typed(root.table("bench").map(|section| section.values).unwrap_or_default());
    // one without fields is none, as in the example
    let mut pool: Option<Pool> = root.table("pool").filter(|section| !section.is_empty()).map(|section| {
        section.require("path", check::POOL_DIRECTORY.expected);
        typed(section.values)
    });
    let slurm: Option<Slurm> =
        root.table("slurm").filter(|section| !section.is_empty()).map(|section| typed(section.values));
    let is_only_slurm = slurm.is_some() && root.value("node").is_none();
    let defaults = root.table("defaults").map(|section| {
        separate_mounts(&section, &cluster);
        layout::check_node(&section, &cluster);
        section.values
    });
    let mut nodes = if is_only_slurm { Vec::new() } else { nodes(&root, &defaults.unwrap_or_default(), &cluster)? };
    if cluster.network.is_some() && nodes.len() > 1 {
        nodes.iter_mut().for_each(|node| node.interface = Some(cluster.network_interface.clone()));
    }
    let names: Vec<String> = nodes.iter().map(|node| node.name.clone()).collect();
    let groups = groups(&root, &names);
    let node_files = nodes.iter_mut().flat_map(|node| [&mut node.identity, &mut node.container.env_file]);
    for path in node_files.chain([&mut cluster.ssh_config]).flatten() {
        *path = resolved(path, file);
    }
    if let Some(Pool { key, allowed_signers, .. }) = &mut pool {
        for path in key.iter_mut().chain([allowed_signers]) {
            *path = resolved(path, file);
        }
    }
    let inventory = Inventory { cluster, bench, pool, slurm, nodes, groups };
    Some(if is_only_slurm { inventory.under_slurm() } else { inventory })
}

/// A path on the operator's machine: `~/` is the home directory, and a relative one starts from the inventory's
/// directory.
fn resolved(path: &Path, inventory: &Path) -> PathBuf {
    match (path.strip_prefix("~"), std::env::home_dir()) {
        (Ok(rest), Some(home)) => home.join(rest),
        _ => inventory.parent().unwrap_or(Path::new("")).join(path),
    }
}

/// Reports TOML errors, and returns whether the rest of the file can still be checked.
///
/// It can after a duplicate key, where the parser keeps the first and loses nothing else. After anything else it has
/// guessed, and what seems wrong or missing may not be: those faults would only mislead.
fn is_readable(mut errors: Vec<toml::de::Error>, report: &FaultReport<'_>) -> bool {
    let span = |error: &toml::de::Error| error.span().unwrap_or_default();
    let is_readable = errors.iter().all(|error| error.message() == "duplicate key");
    // what follows on the same line is mostly a consequence of the first
    errors.sort_by_key(|error| report.line(&span(error)));
    errors.dedup_by_key(|error| report.line(&span(error)));
    errors.iter().for_each(|error| report.at(span(error), format!("not TOML: {}", error.message())));
    is_readable
}

/// Reads the cluster; where a field is wrong, its default stands in, for the checks that follow.
fn cluster(root: &Section<'_>) -> Cluster {
    root.require("cluster", "a table [cluster] with at least a `name`");
    let Some(mut section) = root.table("cluster") else { return Cluster::default() };
    section.require("name", check::NAME.expected);
    let given = std::mem::take(&mut section.values);
    layout::check_cluster(&section, &given);
    let mut cluster: Cluster = typed(given);
    cluster.place_state(|field| section.value(field).is_some());
    // both containers are on the master; keys must not lie in what is uploaded or purged with projects and jobs
    let [worker, master] = [("worker", &cluster.worker), ("master", &cluster.master)];
    let network = cluster.network.map(|_| ("network_interface", &cluster.network_interface));
    let containers = [worker, master].into_iter().flat_map(|other| network.map(|network| [network, other]));
    let containers = containers.chain([[worker, master]]);
    let (ssh, projects) = (("ssh_dir", &cluster.ssh_dir), ("projects_dir", &cluster.projects_dir));
    let (jobs, data) = (("jobs_dir", &cluster.jobs_dir), ("data_dir", &cluster.data_dir));
    let directories = [[ssh, projects], [ssh, jobs], [projects, jobs], [ssh, data], [projects, data], [jobs, data]];
    for [(one, first), (other, second)] in containers.chain(directories) {
        if Path::new(first).starts_with(second) || Path::new(second).starts_with(first) {
            let field = if section.value(other).is_some() { other } else { one };
            let (first, second) = (quoted(first), quoted(second));
            section.fault(field, &format!("`{one}` and `{other}` must not overlap, found {first} and {second}"));
        }
    }
    cluster
}

/// Returns the nodes of each group.
fn groups(root: &Section<'_>, nodes: &[String]) -> Groups {
    let Some(Value::Object(read)) = root.values.get("groups") else { return Groups::new() };
    if read.len() > MOST_GROUPS {
        root.fault("groups", &format!("expected at most {MOST_GROUPS} groups, found {}", read.len()));
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
            Err(why) => fault(name, format!("expected nodes, found {}; {}", quoted(&text), why)),
        }
    }
    if let Some(name) = open.keys().next() {
        let names: Vec<String> = open.keys().map(|name| format!("@{name}")).collect();
        fault(name, format!("these groups refer to each other in a cycle: {}", names.join(", ")));
    }
    groups
}
