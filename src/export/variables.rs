//! Which variables of the ranks a document may have with their values.

use super::ExportedVariable;
use crate::error::Error;
use crate::inventory::Node;
use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;

/// Parts of the names of variables that nobody but their owner should read.
const SECRET: [&str; 7] = ["TOKEN", "SECRET", "PASSWORD", "PASSWD", "PASSPHRASE", "CREDENTIAL", "API_KEY"];

/// A variable of the command line: `NAME=VALUE`, or `NAME` for one whose value is nowhere in the document.
pub type GivenVariable = (String, Option<String>);

/// Returns the variables of the ranks: those of the inventory, and over them those of the command line. `files`: the
/// names in each `env_file` of the inventory; `file`: those of `--env-file`.
///
/// # Errors
/// Variables that differ between the nodes.
pub fn variables(
    nodes: &[Node],
    files: &BTreeMap<PathBuf, BTreeSet<String>>,
    file: BTreeSet<String>,
    given: &[GivenVariable],
) -> Result<BTreeMap<String, ExportedVariable>, Error> {
    let of_node = |node: &Node| {
        let names = node.container.env_file.as_ref().and_then(|path| files.get(path)).into_iter().flatten();
        let mut all: BTreeMap<String, ExportedVariable> =
            names.map(|name| (name.clone(), ExportedVariable::Secret)).collect();
        let own = node.container.env.iter();
        all.extend(own.map(|(name, value)| (name.clone(), ExportedVariable::Value(value.clone()))));
        all
    };
    let mut all = nodes.first().map(of_node).unwrap_or_default();
    if let Some(other) = nodes.iter().find(|node| of_node(node) != all) {
        return Err(Error::usage(
            format!(
                "the variables of {} differ from those of {}, and all ranks get the same",
                other.name, nodes[0].name
            ),
            "set `env` and `env_file` in [defaults], or select nodes of one kind with --on",
        ));
    }
    all.extend(file.into_iter().map(|name| (name, ExportedVariable::Secret)));
    let value = |(name, value): &GivenVariable| {
        let value = value.clone().filter(|_| !is_secret(name));
        (name.clone(), value.map_or(ExportedVariable::Secret, ExportedVariable::Value))
    };
    all.extend(given.iter().map(value));
    Ok(all)
}

/// Returns whether a variable is named like a secret.
fn is_secret(name: &str) -> bool {
    let name = name.to_ascii_uppercase();
    SECRET.iter().any(|part| name.contains(part)) || name.ends_with("_KEY") || name == "KEY"
}
