//! `hvdctl data status`.

use crate::cluster::each_node::NodeResults;
use crate::cluster::member::Member;
use crate::commands::Outcome;
use crate::commands::context::Context;
use crate::data::status::{NodeListing, named, names, odd_nodes};
use crate::data::transfer::{self, DataOnNode};
use crate::document::{NodeEntry, Nodes};
use crate::error::{Error, NodeError, Verdict};
use crate::event::Step;
use crate::text::nodeset::{self, with_count};
use crate::text::result::ResultText;
use crate::text::table::{Column, Table, key, text};
use crate::text::units::{age, human};
use schemars::JsonSchema;
use serde::Serialize;

/// The data of a node. `ok` is false if they are not complete, or not those that most nodes have.
#[derive(Debug, Serialize, JsonSchema)]
pub struct DataStatusNode {
    /// Each of them.
    pub data: Vec<DataEntry>,
}

/// Data that were pushed.
#[derive(Debug, Serialize, JsonSchema)]
pub struct DataEntry {
    /// The name.
    pub name: String,
    /// `complete`; `incomplete` if a push was interrupted; `changed` or `removed` if others did that on the node.
    pub state: String,
    /// The hash of all files, which is the same on all nodes that have the same data; null if they are incomplete.
    pub hash: Option<String>,
    /// The number of files.
    pub files: u64,
    /// Their size in bytes.
    pub size: u64,
    /// The seconds since they were pushed, or null.
    pub age_s: Option<u64>,
    /// The directory that they came from, `USER@HOST#MACHINE:DIRECTORY`.
    pub origin: String,
}

/// `data status`.
pub async fn run(context: &Context) -> Result<Outcome, Error> {
    let Context { target, events, .. } = context;
    let list = async |member: Member| {
        let listing = transfer::list(target.cluster(), &member.transport);
        let listed = events.step(&member.node.name, Step::read("comparing the data"), listing).await?;
        Ok((member.node.name, listed))
    };
    let NodeResults { ok, failed } = context.connect().await?.then(events, list).await;
    Ok(outcome(&ok, &failed))
}

pub(crate) fn outcome(nodes: &[NodeListing], failed: &[NodeError]) -> Outcome {
    let odd = odd_nodes(nodes);
    let mut rows = Vec::new();
    for name in names(nodes) {
        let alike = nodes.iter().map(|(node, listed)| (row(named(listed, name)), node.as_str()));
        for (cells, nodes) in nodeset::alike(alike) {
            rows.push([vec![name.to_owned(), with_count(&nodes)], cells].concat());
        }
    }
    rows.extend(failed.iter().map(|error| {
        vec!["–".into(), error.node.clone(), if error.is_unreachable() { "unreachable" } else { "failed" }.to_owned()]
    }));
    let mut text: ResultText = match rows.is_empty() {
        true => "no data were pushed\n".into(),
        false => Table::new(COLUMNS, rows).into(),
    };
    if !odd.is_empty() {
        text.push_str("hint: hvdctl data push DIR gives all nodes the same data\n");
    }
    let entry =
        |(node, listed): &NodeListing| {
            let data = listed.iter().cloned().map(|DataOnNode { name, state, hash, files, size, age, origin }| {
                DataEntry { name, state, hash, files, size, age_s: age, origin }
            });
            NodeEntry::new(node, !odd.contains(node.as_str()), DataStatusNode { data: data.collect() })
        };
    let entries = nodes.iter().map(entry).chain(failed.iter().map(NodeEntry::failed)).collect();
    Outcome::new(Verdict::of_check(odd.is_empty(), nodes.len(), failed), text, Nodes { nodes: entries })
}

const COLUMNS: [Column; 7] =
    [text("NAME"), text("NODES"), key("STATE"), key("CONTENT"), key("SIZE"), key("FILES"), key("AGE")];

/// Returns the cells of data on a node.
fn row(data: Option<&DataOnNode>) -> Vec<String> {
    let Some(DataOnNode { state, hash: Some(hash), files, size, age: seconds, .. }) = data else {
        return vec![data.map_or("missing", |data| &data.state).to_owned()];
    };
    let content = hash.chars().take(12).collect();
    vec![state.clone(), content, human(*size), files.to_string(), seconds.map_or_else(|| "–".into(), age)]
}
