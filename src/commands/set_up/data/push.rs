//! `hvdctl data push`.

use super::{check_unused, observe};
use crate::cli::DataPush;
use crate::cluster::each_node::NodeResults;
use crate::commands::Outcome;
use crate::commands::shared::context::{ConnectedNodes, Context, node_rows};
use crate::data::checks::{check_mounts, check_name, check_separate};
use crate::data::transfer::{Data, PushSummary};
use crate::delivery::data::{DataDelivery, DataGiven, Recipient};
use crate::document::NodeEntry;
use crate::error::{Error, NodeError};
use crate::event::Phase;
use crate::sync::project;
use crate::text::nodeset::{self, printable};
use crate::text::units::{count, human};
use anyhow::Context as _;
use schemars::JsonSchema;
use serde::Serialize;
use std::collections::BTreeSet;
use std::path::Path;

/// The result of `data push` on a node.
#[derive(Debug, Serialize, JsonSchema)]
pub struct DataPushNode {
    /// True if the node lacked something.
    pub changed: bool,
    /// The number of files and links that were sent to the node.
    pub files: usize,
    /// Their size in bytes.
    pub sent: u64,
    /// Bytes that this machine sent to the node for that: fewer than `sent` if other nodes passed them on, otherwise
    /// more because of names and headers.
    pub from_operator: u64,
    /// The number of files that an interrupted push had sent before.
    pub resumed: usize,
    /// The number of files and directories that were removed.
    pub removed: usize,
}

/// `data push`.
pub async fn run(options: &DataPush, context: &Context) -> Result<Outcome, Error> {
    let Context { target, events, session, .. } = context;
    let root =
        project::find_directory(&options.directory, "data", "name the directory, e.g. hvdctl data push ./imagenet")?;
    let name = &name_of(options.name.as_deref(), &root)?;
    check_mounts(target)?;
    let reading = tokio::spawn(Data::read(root, options.name.is_some()));
    let ConnectedNodes { nodes, offline } = context.connect_or_skip(options.skip_offline).await?;
    events.phase(Phase::Reading);
    let data = &session.cancellation.run(async { reading.await.context("cannot read the data")? }).await?;
    data.notes(name).into_iter().for_each(|note| events.note(note));
    let nodes = observe(nodes, context).await?;
    check_separate(&nodes.ok)?;
    let delivery = DataDelivery { name, data, site: context.site() };
    let compared = delivery.compare(nodes).await?;
    let replaced = compared.ok.iter().filter(|recipient| recipient.is_replaced());
    let replaced: Vec<_> = replaced.map(|recipient| recipient.observed.clone()).collect();
    check_unused(&replaced, name, "push them under another name with --as NAME, or wait")?;
    check_origins(&compared.ok, name, context).await?;
    let place = target.cluster().layout(&target.cluster().worker).data;
    if target.cluster().can().mounts && compared.ok.iter().any(|recipient| !recipient.has_directory(name)) {
        events.note(format!("the next job, or hvdctl up, recreates the workers: they mount the data at {place}"));
    }
    let NodeResults { ok, failed } = delivery.run(compared).await?;
    let nodes = NodeResults { ok: ok.into_iter().map(|(node, given)| entry(&node, given)).collect(), failed };
    Ok(outcome(&format!("{place}/{name}"), nodes, &offline))
}

/// Returns the name that was chosen, or that of the directory.
///
/// # Errors
/// If it cannot be the name of a directory on the nodes.
fn name_of(chosen: Option<&str>, root: &Path) -> Result<String, Error> {
    let own = root.file_name().unwrap_or_default().to_string_lossy();
    let name = chosen.unwrap_or(&own);
    check_name(name, if chosen.is_some() { "choose another one" } else { "name the data with --as NAME" })?;
    Ok(name.to_owned())
}

/// Asks before the data of another directory are replaced.
///
/// # Errors
/// If the answer is no.
async fn check_origins(recipients: &[Recipient], name: &str, context: &Context) -> Result<(), Error> {
    let others = recipients.iter().filter_map(|recipient| Some((recipient.replaced_origin()?, recipient.name())));
    let (origins, nodes): (BTreeSet<String>, Vec<&str>) =
        others.map(|(origin, node)| (printable(origin), node)).unzip();
    if nodes.is_empty() {
        return Ok(());
    }
    let origins = origins.into_iter().collect::<Vec<_>>().join(", ");
    let what = format!("the data {name} on {}, pushed from {origins}", nodeset::fold(&nodes));
    if context.accepts(&format!("replace {what}?")).await? {
        return Ok(());
    }
    Err(Error::check(
        format!("these would replace {what}"),
        "choose another name with --as NAME, or pass -y to replace them",
    ))
}

fn entry(node: &str, DataGiven { pushed, from_operator }: DataGiven) -> NodeEntry<DataPushNode> {
    let changed = pushed.is_some();
    let PushSummary { sent: files, bytes: sent, resumed, removed } = pushed.unwrap_or_default();
    NodeEntry::new(node, true, DataPushNode { changed, files, sent, from_operator, resumed, removed })
}

pub(crate) fn outcome(place: &str, nodes: NodeResults<NodeEntry<DataPushNode>>, offline: &[NodeError]) -> Outcome {
    let mut text = node_rows(&nodes.ok, |node| match node {
        DataPushNode { changed: false, .. } => "unchanged".to_owned(),
        DataPushNode { files, sent, resumed, removed, .. } => {
            let mut text = format!("pushed {}, {}", count(*files, "file"), human(*sent));
            if *resumed > 0 {
                text += &format!("; {} had arrived before", count(*resumed, "file"));
            }
            if *removed > 0 {
                text += &format!("; removed {removed}");
            }
            text
        }
    });
    let from_operator: u64 =
        nodes.ok.iter().filter_map(|node| node.result.as_ref()).map(|node| node.from_operator).sum();
    if from_operator > 0 {
        text.push_str(&format!("this machine sent {}\n", human(from_operator)));
    }
    if !nodes.ok.is_empty() {
        text.push_str(&format!("ranks read the data as {place}\n"));
    }
    Outcome::of_nodes(text, nodes, offline)
}
