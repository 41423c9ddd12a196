//! The variables of the ranks that a document may have with their values.

use super::ExportedVariable;
use crate::error::Error;
use crate::inventory::Node;
use crate::secret::is_secret_value;
use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;

/// A variable of the command line: `NAME=VALUE`, or `NAME` for one whose value is nowhere in the document.
pub type GivenVariable = (String, Option<String>);

/// Returns the variables of the ranks: those of the inventory, over them those of their role, and over these those of the
/// command line. `files`: the names in each `env_file` of the inventory; `file`: those of `--env-file`.
///
/// # Errors
/// Variables that differ between the nodes.
pub fn variables(
    nodes: &[Node],
    files: &BTreeMap<PathBuf, BTreeSet<String>>,
    role: &BTreeMap<String, String>,
    file: &BTreeSet<String>,
    given: &[GivenVariable],
) -> Result<BTreeMap<String, ExportedVariable>, Error> {
    let of_node = |node: &Node| {
        let names = node.container.env_file.as_ref().and_then(|path| files.get(path)).into_iter().flatten();
        let mut all: BTreeMap<String, ExportedVariable> =
            names.map(|name| (name.clone(), ExportedVariable::Secret)).collect();
        let own = node.container.env.iter();
        all.extend(own.map(|(name, value)| (name.clone(), of_value(name, Some(value)))));
        all
    };
    let mut all = nodes.first().map(of_node).unwrap_or_default();
    if let Some(other) = nodes.iter().find(|node| of_node(node) != all) {
        return Err(Error::usage(
            format!(
                "the variables of {} differ from those of {}, but all ranks get the same",
                other.name, nodes[0].name
            ),
            "set `env` and `env_file` in [defaults], or select nodes of one kind with --on",
        ));
    }
    all.extend(role.iter().map(|(name, value)| (name.clone(), of_value(name, Some(value)))));
    all.extend(file.iter().map(|name| (name.clone(), ExportedVariable::Secret)));
    all.extend(given.iter().map(|(name, value)| (name.clone(), of_value(name, value.as_ref()))));
    Ok(all)
}

/// Returns a variable with its value, unless there is none or it is named like a secret.
fn of_value(name: &str, value: Option<&String>) -> ExportedVariable {
    match value {
        None => ExportedVariable::Secret,
        Some(value) if is_secret_value(name, value) => ExportedVariable::Withheld,
        Some(value) => ExportedVariable::Value(value.clone()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::inventory::Inventory;

    #[test]
    fn values_that_may_be_secret_are_left_out() {
        let mut node = Inventory::local("node1", "app").nodes.remove(0);
        node.container.env_file = Some("e".into());
        for (name, value) in [("A", "1"), ("B", "2"), ("DB_PASSWORD", "hidden")] {
            node.container.env.insert(name.into(), value.into());
        }
        let names = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect::<BTreeSet<String>>();
        let files = BTreeMap::from([(PathBuf::from("e"), names(&["A", "C"]))]);
        let given = [
            ("E", Some("5")),
            ("F", None),
            ("HF_TOKEN", Some("hidden")),
            ("MONKEY", Some("6")),
            ("MAX_TOKENS", Some("7")),
            ("API_TOKENS", Some("a,b")),
            ("HF_TOKEN2", Some("hidden")),
            ("TOKENIZERS_PARALLELISM", Some("false")),
            ("PASSWORD", Some("1234")),
        ];
        let given = given.map(|(name, value)| (name.to_owned(), value.map(str::to_owned)));
        let of_role = ["B", "C", "E", "R"].map(|name| (name.to_owned(), "role".to_owned())).into();
        let nodes = [node.clone(), node.clone()];
        let found = variables(&nodes, &files, &of_role, &names(&["B", "D"]), &given).unwrap();
        let shown: Vec<String> = found
            .iter()
            .map(|(name, value)| match value {
                ExportedVariable::Value(value) => format!("{name}={value}"),
                ExportedVariable::Secret => name.clone(),
                ExportedVariable::Withheld => format!("{name}?"),
            })
            .collect();
        assert_eq!(
            shown.join(" "),
            "A=1 API_TOKENS? B C=role D DB_PASSWORD? E=5 F HF_TOKEN? HF_TOKEN2? MAX_TOKENS=7 MONKEY=6 PASSWORD? \
             R=role TOKENIZERS_PARALLELISM=false"
        );
        let other = Node { name: "node2".into(), ..Inventory::local("node2", "app").nodes.remove(0) };
        let error = variables(&[node, other], &files, &BTreeMap::new(), &names(&[]), &[]).unwrap_err().to_string();
        assert!(error.starts_with("the variables of node2 differ from those of node1"), "{error}");
    }
}
