//! `hvdctl env rm`.

use crate::cli::EnvRm;
use crate::cluster::each_node::NodeResults;
use crate::cluster::member::Member;
use crate::commands::Outcome;
use crate::commands::context::{ConnectedNodes, Context, node_rows};
use crate::document::NodeEntry;
use crate::environment::removal::remove;
use crate::environment::{EnvPlace, check_name};
use crate::error::{Error, NodeError};
use crate::event::Step;
use crate::text::nodeset;
use schemars::JsonSchema;
use serde::Serialize;

/// The result of `env rm` on a node.
#[derive(Debug, Serialize, JsonSchema)]
pub struct EnvRmNode {
    /// True if the node had the virtualenv.
    pub changed: bool,
}

/// `env rm`.
pub async fn run(options: &EnvRm, context: &Context) -> Result<Outcome, Error> {
    let Context { target, events, session, .. } = context;
    let (place, name) = (EnvPlace::of(target.cluster())?, &options.name);
    check_name(name)?;
    context.confirm(&format!("remove the virtualenv {name} from {}?", nodeset::fold(&target.selected))).await?;
    let ConnectedNodes { nodes, offline } = context.connect_or_skip(options.skip_offline).await?;
    let nodes = context.lock_each(nodes).await?;
    let removing = async |member: Member| {
        let node = &member.node.name;
        let step = Step::write("removing the virtualenv");
        let changed = events.step(node, step, remove(&place, name, &member.transport)).await?;
        session.progress.record(node, format!("removed the virtualenv {name}"));
        session.progress.done(node);
        Ok(NodeEntry::new(node, true, EnvRmNode { changed }))
    };
    session.cancellation.check()?;
    // a node that removes files is waited for
    let nodes = nodes.then(events, removing).await;
    session.progress.failed(&nodes.failed);
    session.cancellation.check()?;
    let has_changed = |node: &NodeEntry<EnvRmNode>| node.result.as_ref().is_some_and(|result| result.changed);
    if nodes.failed.is_empty() && !nodes.ok.iter().any(has_changed) {
        return Err(Error::check(
            format!("no selected node has a virtualenv {name}"),
            "hvdctl env list shows the names",
        ));
    }
    Ok(outcome(nodes, &offline))
}

pub(crate) fn outcome(nodes: NodeResults<NodeEntry<EnvRmNode>>, offline: &[NodeError]) -> Outcome {
    let text = node_rows(&nodes.ok, |node| if node.changed { "removed" } else { "nothing to remove" }.to_owned());
    Outcome::of_nodes(text, nodes, offline)
}
