//! `hvdctl data rm`.

use super::{check_unused, observe};
use crate::cli::DataRm;
use crate::cluster::each_node::NodeResults;
use crate::cluster::observation::ObservedNode;
use crate::commands::Outcome;
use crate::commands::context::{ConnectedNodes, Context, node_rows};
use crate::data::checks::{check_name, check_separate};
use crate::data::transfer::{NodeData, Removal};
use crate::document::NodeEntry;
use crate::error::{Error, NodeError};
use crate::event::Step;
use crate::text::nodeset;
use schemars::JsonSchema;
use serde::Serialize;

/// The result of `data rm` on a node.
#[derive(Debug, Serialize, JsonSchema)]
pub struct DataRmNode {
    /// True if the node had the data.
    pub changed: bool,
    /// True if files of others remain in the directory.
    pub left: bool,
}

/// `data rm`.
pub async fn run(options: &DataRm, context: &Context) -> Result<Outcome, Error> {
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
    Ok(outcome(nodes, &offline))
}

pub(crate) fn outcome(nodes: NodeResults<NodeEntry<DataRmNode>>, offline: &[NodeError]) -> Outcome {
    let text = node_rows(&nodes.ok, |node| match (node.changed, node.left) {
        (false, _) => "nothing to remove".to_owned(),
        (true, false) => "removed".to_owned(),
        (true, true) => "removed; files in the directory that hvdctl did not push stay".to_owned(),
    });
    Outcome::of_nodes(text, nodes, offline)
}
