//! `hvdctl data`.

use super::Outcome;
use super::context::{ConnectedNodes, Context, node_rows};
use crate::cli::{DataPush, DataRm};
use crate::cluster::each_node::NodeResults;
use crate::cluster::member::Member;
use crate::cluster::observation::{ObservedNode, check_permissions};
use crate::cluster::target::Target;
use crate::data::transfer::{self, Data, DataOnNode, NodeData, PushSummary};
use crate::delivery::data::{DataDelivery, DataGiven, Recipient};
use crate::document::{NodeEntry, Nodes};
use crate::error::{Error, NodeError, Verdict};
use crate::event::{Phase, Step};
use crate::inventory::NAME;
use crate::paths::DATA;
use crate::start::capacity::check_unallocated;
use crate::sync::files::ProjectFiles;
use crate::sync::project;
use crate::text::nodeset::{self, printable, with_count};
use crate::text::table::table;
use crate::text::units::{age, count, human};
use crate::worker::spec::data_obstacle;
use anyhow::Context as _;
use schemars::JsonSchema;
use serde::Serialize;
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

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
    /// How many files there are.
    pub files: u64,
    /// Their bytes.
    pub size: u64,
    /// The seconds since they were pushed, or null.
    pub age_s: Option<u64>,
    /// The directory that they came from, `USER@HOST#MACHINE:DIRECTORY`.
    pub origin: String,
}

/// What `data push` did on a node.
#[derive(Debug, Serialize, JsonSchema)]
pub struct DataPushNode {
    /// Whether the node lacked something.
    pub changed: bool,
    /// How many files and links were sent to the node.
    pub files: usize,
    /// How many bytes of them.
    pub sent: u64,
    /// How many bytes this machine sent to the node for that. Less than `sent` if other nodes passed them on; more, by names and headers,
    /// if not.
    pub from_operator: u64,
    /// How many files an interrupted push had sent before.
    pub resumed: usize,
    /// How many files and directories were removed.
    pub removed: usize,
}

/// What `data rm` did on a node.
#[derive(Debug, Serialize, JsonSchema)]
pub struct DataRmNode {
    /// Whether the node had the data.
    pub changed: bool,
    /// Whether others have files in the directory, which stay.
    pub left: bool,
}

/// `data push`.
pub async fn push(options: &DataPush, context: &Context) -> Result<Outcome, Error> {
    let Context { target, events, session, .. } = context;
    let (cluster, cancellation) = (target.cluster(), &session.cancellation);
    let root =
        project::find_directory(&options.directory, "data", "name the directory, e.g. hvdctl data push ./imagenet")?;
    let name = &name_of(options.name.as_deref(), &root)?;
    check_mounts(target)?;
    let reading = tokio::spawn(read(root, options.name.is_some()));
    let ConnectedNodes { nodes, offline } = context.connect_or_skip(options.skip_offline).await?;
    events.phase(Phase::Reading);
    let data = &cancellation.run(async { reading.await.context("cannot read the data")? }).await?;
    data.notes(name).into_iter().for_each(|note| events.note(note));
    let nodes = observe(nodes, context).await?;
    check_separate(&nodes.ok)?;
    let on_node = |observed: &ObservedNode| observed.member.clone();
    let compare = async |observed: ObservedNode| {
        let member = on_node(&observed);
        let comparing = NodeData { cluster, transport: &member.transport, name }.compare(data);
        let (state, change) = events.step(observed.name(), Step::read("comparing the data"), comparing).await?;
        Ok(Recipient { observed, state, change })
    };
    let comparing = async { Ok(nodes.then(events, compare).await) };
    let compared: NodeResults<Recipient> = cancellation.run(comparing).await?;
    let is_replaced = |recipient: &&Recipient| recipient.state.is_present && !recipient.state.is_same;
    let replaced = compared.ok.iter().filter(is_replaced).map(|recipient| recipient.observed.clone());
    check_unused(&replaced.collect::<Vec<_>>(), name, "push them under another name with --as NAME, or wait")?;
    check_origins(&compared.ok, name, context).await?;
    if compared
        .ok
        .iter()
        .any(|recipient| recipient.observed.facts.storage.pushed.get(name).is_none_or(|data| data.inode.is_none()))
    {
        events.note(format!("the next job, or hvdctl up, recreates the workers: they mount the data at {DATA}"));
    }
    let delivery = DataDelivery { name, data, site: context.site() };
    let NodeResults { ok, failed } = delivery.run(compared).await?;
    let nodes = NodeResults { ok: ok.into_iter().map(|(node, given)| entry(&node, given)).collect(), failed };
    Ok(pushed(name, nodes, &offline))
}

fn entry(node: &str, DataGiven { pushed, from_operator }: DataGiven) -> NodeEntry<DataPushNode> {
    let changed = pushed.is_some();
    let PushSummary { sent: files, bytes: sent, resumed, removed } = pushed.unwrap_or_default();
    NodeEntry::new(node, true, DataPushNode { changed, files, sent, from_operator, resumed, removed })
}

/// Asks before the data of another directory are replaced.
///
/// # Errors
/// If the answer is no.
async fn check_origins(recipients: &[Recipient], name: &str, context: &Context) -> Result<(), Error> {
    let other = |recipient: &Recipient| recipient.state.replaces.clone().filter(|_| !recipient.state.is_same);
    let others: Vec<(String, &str)> =
        recipients.iter().filter_map(|recipient| Some((other(recipient)?, recipient.name()))).collect();
    if others.is_empty() {
        return Ok(());
    }
    let nodes: Vec<&str> = others.iter().map(|(_, node)| *node).collect();
    let origins: BTreeSet<String> = others.iter().map(|(origin, _)| printable(origin)).collect();
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

/// Locks and observes nodes. Those whose directories other users can change have failed.
async fn observe(nodes: NodeResults<Member>, context: &Context) -> Result<NodeResults<ObservedNode>, Error> {
    let nodes = context.observe_each(context.lock_each(nodes).await?).await?;
    let check = async |observed: ObservedNode| {
        check_permissions(context.target.cluster(), observed.name(), &observed.facts, &["data"])?;
        Ok(observed)
    };
    Ok(nodes.then(&context.events, check).await)
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

fn check_name(name: &str, hint: &str) -> Result<(), Error> {
    let wrong = |why| Error::usage(format!("{} is no name of data: {why}", printable(name)), hint);
    NAME.read(name).map(drop).map_err(wrong)
}

/// Checks that the inventory mounts nothing where the data would be mounted.
fn check_mounts(target: &Target) -> Result<(), Error> {
    for node in target.nodes() {
        if let Some(obstacle) = data_obstacle(target.cluster(), &node) {
            let message =
                format!("{}: the inventory mounts {obstacle} in the containers, and data at {DATA}", node.name);
            return Err(Error::usage(message, "mount it at another path in the inventory"));
        }
    }
    Ok(())
}

/// Reads a directory of data.
async fn read(root: PathBuf, replaces: bool) -> Result<Data, Error> {
    let (origin, shown) = (project::origin(&root), root.display().to_string());
    let files = tokio::task::spawn_blocking(move || ProjectFiles::read_data(&root)).await;
    let files = files.context("cannot read the data")??;
    if files.manifest.0.is_empty() {
        return Err(Error::usage(format!("{shown} is empty"), "name a directory with files"));
    }
    Ok(Data { files, origin, replaces })
}

/// Checks that no two nodes would write to the same directory.
fn check_separate(nodes: &[ObservedNode]) -> Result<(), Error> {
    for node in nodes {
        if let Some(cause) = &node.facts.storage.shared_unknown {
            let message = format!("{}: cannot find out which directories nodes share: {cause}", node.name());
            return Err(Error::check(message, "see hvdctl doctor"));
        }
        if let Some(shared) = node.facts.storage.shared.iter().find(|shared| shared.what == "data") {
            let names: BTreeSet<&str> = shared.with.iter().map(String::as_str).chain([node.name()]).collect();
            let names: Vec<&str> = names.into_iter().collect();
            let message = format!("{} is one directory on {}", shared.path, nodeset::fold(&names));
            return Err(Error::check(message, "write to it by other means: jobs on all of these nodes may read it"));
        }
    }
    Ok(())
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

pub(super) fn pushed(name: &str, nodes: NodeResults<NodeEntry<DataPushNode>>, offline: &[NodeError]) -> Outcome {
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
        text.push_str(&format!("ranks read the data as {DATA}/{name}\n"));
    }
    Outcome::of_nodes(text, nodes, offline)
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
    Ok(status_outcome(&ok, &failed))
}

pub(super) fn status_outcome(nodes: &[(String, Vec<DataOnNode>)], failed: &[NodeError]) -> Outcome {
    let of = |listed: &[DataOnNode], name: &str| listed.iter().find(|data| data.name == name).cloned();
    let names: BTreeSet<&str> = nodes.iter().flat_map(|(_, data)| data).map(|data| data.name.as_str()).collect();
    let content = |data: &Option<DataOnNode>| {
        data.as_ref().filter(|data| data.state == "complete").and_then(|data| data.hash.clone())
    };
    // the content that most nodes have
    let common = |name: &str| {
        let all = nodeset::alike(nodes.iter().map(|(node, listed)| (content(&of(listed, name)), node)));
        all.into_iter()
            .filter(|(content, _)| content.is_some())
            .max_by_key(|(_, nodes)| nodes.len())
            .and_then(|(c, _)| c)
    };
    let (mut rows, mut odd) = (Vec::new(), BTreeSet::new());
    for name in &names {
        let common = common(name);
        let is_odd = |listed: &[DataOnNode]| common.is_none() || content(&of(listed, name)) != common;
        odd.extend(nodes.iter().filter(|(_, listed)| is_odd(listed)).map(|(node, _)| node.as_str()));
        let alike = nodes.iter().map(|(node, listed)| (row(of(listed, name).as_ref()), node.as_str()));
        for (cells, nodes) in nodeset::alike(alike) {
            rows.push([vec![(*name).to_owned(), with_count(&nodes)], cells].concat());
        }
    }
    rows.extend(failed.iter().map(|error| {
        vec!["–".into(), error.node.clone(), if error.is_unreachable() { "unreachable" } else { "failed" }.to_owned()]
    }));
    let mut text = match rows.is_empty() {
        true => "no data were pushed\n".to_owned(),
        false => table(&["NAME", "NODES", "STATE", "CONTENT", "SIZE", "FILES", "AGE"], rows),
    };
    if !odd.is_empty() {
        text.push_str("hint: hvdctl data push DIR gives all nodes the same data\n");
    }
    let entry =
        |(node, listed): &(String, Vec<DataOnNode>)| {
            let data = listed.iter().cloned().map(|DataOnNode { name, state, hash, files, size, age, origin }| {
                DataEntry { name, state, hash, files, size, age_s: age, origin }
            });
            NodeEntry::new(node, !odd.contains(node.as_str()), DataStatusNode { data: data.collect() })
        };
    let entries = nodes.iter().map(entry).chain(failed.iter().map(NodeEntry::failed)).collect();
    Outcome::new(Verdict::of_check(odd.is_empty(), nodes.len(), failed), text, Nodes { nodes: entries })
}

/// Returns the cells of data on a node.
fn row(data: Option<&DataOnNode>) -> Vec<String> {
    let Some(DataOnNode { state, hash: Some(hash), files, size, age: seconds, .. }) = data else {
        return vec![data.map_or("missing", |data| &data.state).to_owned()];
    };
    let content = hash.chars().take(12).collect();
    vec![state.clone(), content, human(*size), files.to_string(), seconds.map_or_else(|| "–".into(), age)]
}

/// `data rm`.
pub async fn remove(options: &DataRm, context: &Context) -> Result<Outcome, Error> {
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
        let transfer::Removal { is_changed: changed, is_left: left } =
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

pub(super) fn removed(nodes: NodeResults<NodeEntry<DataRmNode>>, offline: &[NodeError]) -> Outcome {
    let text = node_rows(&nodes.ok, |node| match (node.changed, node.left) {
        (false, _) => "nothing to remove".to_owned(),
        (true, false) => "removed".to_owned(),
        (true, true) => "removed; files of others in the directory stay".to_owned(),
    });
    Outcome::of_nodes(text, nodes, offline)
}
