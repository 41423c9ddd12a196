//! `hvdctl keys`. This file has `keys generate` and `keys push`, and what the subcommands have in common.

pub mod rotate;
pub mod status;

use crate::cli::{Generate, KeysPush, NewPair};
use crate::cluster::each_node::NodeResults;
use crate::commands::Outcome;
use crate::commands::shared::context::Context;
use crate::document::NodeEntry;
use crate::error::Error;
use crate::inventory::KeyType;
use crate::keys::files::{KeyKind, WrongMode};
use crate::keys::first_login;
use crate::keys::push::{GenerateResult, KeyDistribution, PushResult, without_master};
use schemars::JsonSchema;
use serde::Serialize;

fn distribution(context: &Context) -> KeyDistribution<'_> {
    KeyDistribution { inventory: &context.target.inventory, session: &context.session, events: &context.events }
}

/// Returns the kind of pair that was asked for, if one was.
fn kind(pair: &NewPair, usual: KeyType) -> Result<Option<KeyKind>, Error> {
    pair.kind(usual).map_err(|why| Error::usage(why, "leave out --bits, or add --type rsa"))
}

/// `keys generate`.
pub async fn generate(options: &Generate, context: &mut Context) -> Result<Outcome, Error> {
    let wanted = kind(&options.pair, context.target.cluster().key_type)?;
    let master = context.target.inventory.master().name.clone();
    if !context.target.selected.contains(&master) {
        return Err(without_master(&context.target.inventory));
    }
    // the other nodes are not involved, and need not be reachable
    context.target.selected = vec![master];
    let members = context.connect_and_lock().await?;
    let done = distribution(context).generate(&members, wanted).await?;
    context.session.progress.done(&done.node);
    context.session.cancellation.check()?;
    Ok(generated(done))
}

pub(in crate::commands) fn generated(done: GenerateResult) -> Outcome {
    let text = if done.generated {
        format!("{}: generated a key pair: {}\nto distribute it: hvdctl keys push\n", done.node, done.pair)
    } else {
        format!("nothing to do: {} has a key pair: {}\n", done.node, done.pair)
    };
    Outcome::ok(text, done)
}

/// The result of `keys push` on a node.
#[derive(Debug, Serialize, JsonSchema)]
pub struct KeysPushNode {
    /// True if anything was written.
    pub changed: bool,
    /// The files that were written.
    pub written: Vec<String>,
    /// The files that were removed.
    pub removed: Vec<String>,
    /// The files and directories with a wrong owner or mode, as they were before.
    pub repaired: Vec<WrongMode>,
}

/// `keys push`.
pub async fn push(options: &KeysPush, context: &Context) -> Result<Outcome, Error> {
    let session = &context.session;
    if options.first_login {
        session.cancellation.run(first_login::install(&context.target, &context.fleet, &context.events)).await?;
    }
    let members = context.connect_and_lock().await?;
    let distribution = distribution(context);
    let results = distribution.push(distribution.observe(&members).await?).await?;
    results.ok.iter().for_each(|node| session.progress.done(&node.node));
    session.progress.failed(&results.failed);
    session.cancellation.check()?;
    Ok(pushed(results))
}

pub(in crate::commands) fn pushed(NodeResults { ok, failed }: NodeResults<PushResult>) -> Outcome {
    let (mut text, mut nodes) = (String::new(), Vec::new());
    for PushResult { node, changes } in &ok {
        let what = if changes.is_empty() { "unchanged".to_owned() } else { changes.to_string() };
        text.push_str(&format!("{node}: {what}\n"));
        let written = changes.puts.iter().map(|put| put.name.clone()).collect();
        let (removed, repaired) = (changes.removes.clone(), changes.repairs.clone());
        let details = KeysPushNode { changed: !changes.is_empty(), written, removed, repaired };
        nodes.push(NodeEntry::new(node, true, details));
    }
    if failed.is_empty() && ok.iter().all(|node| node.changes.is_empty()) {
        text.push_str("nothing to do: the keys on all nodes are correct\n");
    }
    Outcome::of_nodes(text, NodeResults { ok: nodes, failed }, &[])
}
