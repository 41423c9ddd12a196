//! `hvdctl env`. This file has `env list` and `env rm`.

pub mod create;

use crate::cli::{Env, EnvRm};
use crate::cluster::each_node::NodeResults;
use crate::cluster::member::Member;
use crate::commands::Outcome;
use crate::commands::shared::context::{ConnectedNodes, Context, node_rows};
use crate::document::{NodeEntry, Nodes};
use crate::environment::listing::{self, ListedEnv, NodeEnvs, named, names, odd_nodes};
use crate::environment::removal::remove;
use crate::environment::{EnvPlace, check_name};
use crate::error::{Error, NodeError, Verdict};
use crate::event::Step;
use crate::text::nodeset::{self, with_count};
use crate::text::result::ResultText;
use crate::text::table::{Column, Table, key, note, text};
use crate::text::units::{age, human};
use schemars::JsonSchema;
use serde::Serialize;

/// Runs a command of the group.
pub async fn run(command: &Env, context: &Context) -> Result<Outcome, Error> {
    match command {
        Env::Create(options) => create::run(options, context).await,
        Env::List => list(context).await,
        Env::Rm(options) => rm(options, context).await,
    }
}

/// The virtualenvs of a node. `ok` is false if one is not complete, or not the one that most nodes have.
#[derive(Debug, Serialize, JsonSchema)]
pub struct EnvListNode {
    /// Each of them.
    pub environments: Vec<EnvEntry>,
}

/// A virtualenv. Values that are not known of an incomplete one are null.
#[derive(Debug, Serialize, JsonSchema)]
pub struct EnvEntry {
    /// The name.
    pub name: String,
    /// `complete`; `incomplete` if it was interrupted; `creating` while a command makes it; `broken` if its Python does
    /// not run.
    pub state: String,
    /// The version of its Python.
    pub python: Option<String>,
    /// The program that installed the packages.
    pub tool: Option<String>,
    /// The hash of the file, the options and the wheels that it was made from.
    pub hash: Option<String>,
    /// The hash of the names and versions of its packages, which is the same on all nodes that have the same ones.
    pub content: Option<String>,
    /// Its size in bytes.
    pub size: Option<u64>,
    /// The seconds since it was made.
    pub age_s: Option<u64>,
    /// The file that it was made from, `USER@HOST:FILE`.
    pub source: Option<String>,
}

/// `env list`.
async fn list(context: &Context) -> Result<Outcome, Error> {
    let Context { target, events, .. } = context;
    let place = EnvPlace::of(target.cluster())?;
    let of_node = async |member: Member| {
        let step = Step::read("listing the virtualenvs");
        let listed =
            events.step(&member.node.name, step, listing::list(&place, &member.node, &member.transport)).await?;
        Ok((member.node.name, listed))
    };
    let NodeResults { ok, failed } = context.connect().await?.then(events, of_node).await;
    Ok(listed(&ok, &failed))
}

pub(crate) fn listed(nodes: &[NodeEnvs], failed: &[NodeError]) -> Outcome {
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
        true => "there are no virtualenvs\n".into(),
        false => Table::new(COLUMNS, rows).into(),
    };
    if !odd.is_empty() {
        text.push_str("hint: hvdctl env create FILE --name NAME gives all nodes the same one\n");
    }
    let entry = |(node, listed): &NodeEnvs| {
        let environments = listed.iter().map(details).collect();
        NodeEntry::new(node, !odd.contains(node.as_str()), EnvListNode { environments })
    };
    let entries = nodes.iter().map(entry).chain(failed.iter().map(NodeEntry::failed)).collect();
    Outcome::new(Verdict::of_check(odd.is_empty(), nodes.len(), failed), text, Nodes { nodes: entries })
}

const COLUMNS: [Column; 8] =
    [text("NAME"), text("NODES"), key("STATE"), key("PYTHON"), key("PACKAGES"), key("SIZE"), key("AGE"), note("FROM")];

/// Returns the cells of a virtualenv of a node.
fn row(env: Option<&ListedEnv>) -> Vec<String> {
    let Some(ListedEnv { state, made: Some(made), age: seconds, .. }) = env else {
        return vec![env.map_or("missing", |env| &env.state).to_owned()];
    };
    let content = made.content.chars().take(12).collect();
    let age = seconds.map_or_else(|| "–".into(), age);
    vec![state.clone(), made.python.clone(), content, human(made.size), age, nodeset::printable(&made.source)]
}

fn details(env: &ListedEnv) -> EnvEntry {
    let ListedEnv { name, state, made, age } = env.clone();
    let text = |of: fn(&crate::environment::probe::MadeEnv) -> &String| made.as_ref().map(|made| of(made).clone());
    EnvEntry {
        name,
        state,
        python: text(|made| &made.python),
        tool: text(|made| &made.tool),
        hash: text(|made| &made.hash),
        content: text(|made| &made.content),
        size: made.as_ref().map(|made| made.size),
        age_s: age,
        source: text(|made| &made.source),
    }
}

/// The result of `env rm` on a node.
#[derive(Debug, Serialize, JsonSchema)]
pub struct EnvRmNode {
    /// True if the node had the virtualenv.
    pub changed: bool,
}

/// `env rm`.
async fn rm(options: &EnvRm, context: &Context) -> Result<Outcome, Error> {
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
    Ok(removed(nodes, &offline))
}

pub(crate) fn removed(nodes: NodeResults<NodeEntry<EnvRmNode>>, offline: &[NodeError]) -> Outcome {
    let text = node_rows(&nodes.ok, |node| if node.changed { "removed" } else { "nothing to remove" }.to_owned());
    Outcome::of_nodes(text, nodes, offline)
}
