//! `hvdctl data`. This file has `data rm` and `data status`, and what the subcommands have in common.

pub mod push;

use crate::cli::DataRm;
use crate::cluster::each_node::NodeResults;
use crate::cluster::member::Member;
use crate::cluster::observation::{ObservedNode, check_permissions};
use crate::commands::Outcome;
use crate::commands::shared::context::{ConnectedNodes, Context, node_rows};
use crate::data::checks::{check_name, check_separate};
use crate::data::status::{NodeListing, named, names, odd_nodes};
use crate::data::transfer::{self, DataOnNode, NodeData, Removal};
use crate::document::{NodeEntry, Nodes};
use crate::error::{Error, NodeError, Verdict};
use crate::event::Step;
use crate::start::capacity::check_unallocated;
use crate::text::nodeset::{self, with_count};
use crate::text::result::ResultText;
use crate::text::table::{Column, Table, key, text};
use crate::text::units::{age, human};
use schemars::JsonSchema;
use serde::Serialize;

/// Locks and observes nodes. Those whose directories other users can change have failed.
async fn observe(nodes: NodeResults<Member>, context: &Context) -> Result<NodeResults<ObservedNode>, Error> {
    let nodes = context.observe_each(context.lock_each(nodes).await?).await?;
    let check = async |observed: ObservedNode| {
        check_permissions(context.target.cluster(), observed.name(), &observed.facts, &["data"])?;
        Ok(observed)
    };
    Ok(nodes.then(&context.events, check).await)
}

/// Checks that no job on these nodes may read the data, which are about to change.
fn check_unused(nodes: &[ObservedNode], name: &str, instead: &str) -> Result<(), Error> {
    check_unallocated(nodes).map_err(|error| match error {
        Error::Allocated(conflict) => {
            let message = format!("{conflict}\na job may read the data {name}, which would change");
            Error::check(message, format!("{instead}; hvdctl stop ends a job"))
        }
        error => error,
    })
}

/// The result of `data rm` on a node.
#[derive(Debug, Serialize, JsonSchema)]
pub struct DataRmNode {
    /// True if the node had the data.
    pub changed: bool,
    /// True if files of others remain in the directory.
    pub left: bool,
}

/// `data rm`.
pub async fn rm(options: &DataRm, context: &Context) -> Result<Outcome, Error> {
    let Context { target, events, session, .. } = context;
    let (cluster, name) = (target.cluster(), &options.name);
    check_name(name, "hvdctl data status shows the names")?;
    context.confirm(&format!("remove the data {name} from {}?", nodeset::fold(&target.selected))).await?;
    let ConnectedNodes { nodes, offline } = context.connect_or_skip(options.skip_offline).await?;
    let nodes = observe(nodes, context).await?;
    check_separate(&nodes.ok)?;
    let having = nodes.ok.iter().filter(|observed| observed.facts.storage.pushed.contains_key(name)).cloned();
    check_unused(&having.collect::<Vec<_>>(), name, "wait")?;
    let remove = async |observed: ObservedNode| {
        let (node, member) = (observed.name(), observed.member.clone());
        let removing = NodeData { cluster, transport: &member.transport, name }.remove();
        let Removal { is_changed: changed, is_left: left } =
            events.step(node, Step::write("removing the data"), removing).await?;
        session.progress.record(node, format!("removed {name}"));
        session.progress.done(node);
        Ok(NodeEntry::new(node, true, DataRmNode { changed, left }))
    };
    session.cancellation.check()?;
    // a node that removes files is waited for
    let nodes = nodes.then(events, remove).await;
    session.progress.failed(&nodes.failed);
    session.cancellation.check()?;
    let has_changed = |node: &NodeEntry<DataRmNode>| node.result.as_ref().is_some_and(|result| result.changed);
    if nodes.failed.is_empty() && !nodes.ok.iter().any(has_changed) {
        let message =
            format!("no selected node has data {name} that hvdctl has pushed for the cluster {}", cluster.name);
        return Err(Error::check(message, "hvdctl data status shows the names"));
    }
    Ok(removed(nodes, &offline))
}

pub(crate) fn removed(nodes: NodeResults<NodeEntry<DataRmNode>>, offline: &[NodeError]) -> Outcome {
    let text = node_rows(&nodes.ok, |node| match (node.changed, node.left) {
        (false, _) => "nothing to remove".to_owned(),
        (true, false) => "removed".to_owned(),
        (true, true) => "removed; files in the directory that hvdctl did not push stay".to_owned(),
    });
    Outcome::of_nodes(text, nodes, offline)
}

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
pub async fn status(context: &Context) -> Result<Outcome, Error> {
    let Context { target, events, .. } = context;
    let list = async |member: Member| {
        let listing = transfer::list(target.cluster(), &member.transport);
        let listed = events.step(&member.node.name, Step::read("comparing the data"), listing).await?;
        Ok((member.node.name, listed))
    };
    let NodeResults { ok, failed } = context.connect().await?.then(events, list).await;
    Ok(listed(&ok, &failed))
}

pub(crate) fn listed(nodes: &[NodeListing], failed: &[NodeError]) -> Outcome {
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
