//! `hvdctl keys rotate`.

use super::{distribution, kind};
use crate::cli::Rotate;
use crate::cluster::member::Member;
use crate::commands::Outcome;
use crate::commands::shared::context::{ConnectedNodes, Context};
use crate::document::{NoDetails, NodeEntry, entries};
use crate::error::{Error, NodeError, Verdict};
use crate::inventory::KeyType;
use crate::keys::files::KeyKind;
use crate::keys::push::RotationResult;
use crate::mesh::connect;
use crate::schedule::queue::key;
use crate::text::nodeset;
use schemars::JsonSchema;
use serde::Serialize;

/// `keys rotate`.
#[derive(Debug, Serialize, JsonSchema)]
pub struct KeysRotate {
    /// False if no other key pair was put in place.
    pub switched: bool,
    /// The type of the key pair in use, `rsa` or `ed25519`; null if it is not known.
    #[serde(rename = "type")]
    pub key_type: Option<KeyType>,
    /// Its size.
    pub bits: Option<u32>,
    /// Its fingerprint.
    pub fingerprint: Option<String>,
    /// The nodes.
    pub nodes: Vec<NodeEntry<NoDetails>>,
}

/// `keys rotate`.
pub async fn run(options: &Rotate, context: &Context) -> Result<Outcome, Error> {
    let Context { target, session, .. } = context;
    let wanted = kind(&options.pair, target.cluster().key_type)?;
    if target.selected.len() < target.inventory.nodes.len() {
        return Err(Error::usage(
            "keys rotate needs all nodes: one that is left out would not accept the new key",
            "leave out --on; --skip-offline skips unreachable nodes",
        ));
    }
    let ConnectedNodes { nodes, offline } = context.connect_or_skip(options.skip_offline).await?;
    let members = nodes.all()?;
    let Some(master) = members.iter().find(|member| member.node.master) else {
        // it has the pair
        return Err(Error::Unreachable(offline));
    };
    session.lock_all(&members).await?;
    let rotating = distribution(context);
    let has_slurm = key::exists(target.cluster(), master);
    let (done, has_slurm) = tokio::join!(rotating.rotate(&members, wanted), has_slurm);
    let mut done = done?;
    if done.left.is_none() && done.failed.is_empty() {
        // the pair was replaced, whatever fails now
        let renewed = match has_slurm {
            Ok(false) => Ok(Vec::new()),
            Ok(true) => renew_slurm(master, &members, context).await,
            Err(error) => Err(error),
        };
        done.failed =
            renewed.unwrap_or_else(|error| vec![error.hint("hvdctl slurm up gives Slurm's daemons their key")]);
        if target.cluster().network.is_some() {
            done.failed.extend(renew_network(&members, context).await?);
        }
    }
    session.progress.failed(&done.failed);
    session.cancellation.check()?;
    Ok(outcome(done, wanted, &offline))
}

/// Gives the cluster's queue a new key, too. Returns the nodes that do not have it.
async fn renew_slurm(master: &Member, members: &[Member], context: &Context) -> Result<Vec<NodeError>, NodeError> {
    let Context { target, session, events, .. } = context;
    let renewed = key::renew(target.cluster(), master, members, events).await?;
    let have: Vec<&str> = renewed.ok.iter().map(String::as_str).collect();
    have.iter().for_each(|node| session.progress.record(node, "replaced the key of Slurm's daemons"));
    events.note(format!("{}: Slurm's daemons have a new key", nodeset::with_count(&have)));
    Ok(renewed.failed.into_iter().map(|error| error.hint("hvdctl slurm up gives it the new key")).collect())
}

/// Gives the encrypted network new keys, too. Returns the nodes that do not reach the others with them.
async fn renew_network(members: &[Member], context: &Context) -> Result<Vec<NodeError>, Error> {
    let Context { target, session, events, .. } = context;
    let renewed = connect::rotate(target.cluster(), members, events).await?;
    let have: Vec<&str> = renewed.ok.iter().map(String::as_str).collect();
    have.iter().for_each(|node| session.progress.record(node, "replaced its key of the encrypted network"));
    if !have.is_empty() {
        events.note(format!("{}: new keys of the encrypted network", nodeset::with_count(&have)));
    }
    Ok(renewed.failed.into_iter().map(|error| error.hint("hvdctl up connects it again")).collect())
}

pub(in crate::commands) fn outcome(done: RotationResult, wanted: Option<KeyKind>, offline: &[NodeError]) -> Outcome {
    let accepts = if done.switched { "accepts the new key only" } else { "accepts the key" };
    let mut text = String::new();
    match &done.left {
        Some(left) => text.push_str(&format!("{left}\n")),
        None => text.extend(done.done.iter().map(|node| format!("{node}: {accepts}\n"))),
    }
    if let Some(pair) = &done.pair {
        text.push_str(&format!("the cluster's pair is {pair}\n"));
    }
    if done.left.is_none() && !done.switched {
        text.push_str("this finished an earlier rotation; to make a new pair, run hvdctl keys rotate again\n");
    }
    if let Some(kind) =
        wanted.filter(|kind| done.left.is_none() && done.pair.as_ref().is_some_and(|pair| !kind.is(pair)))
    {
        text.push_str(&format!("it is not of the requested type; to change it: {}\n", kind.rotation()));
    }
    for error in offline {
        text.push_str(&format!("{} was skipped: run hvdctl keys push when it is reachable\n", error.node));
    }
    let verdict = Verdict::Nodes { done: done.done.len(), failed: &done.failed };
    let nodes = entries(done.done.iter().map(|node| NodeEntry::new(node, true, NoDetails {})), &done.failed);
    let details = KeysRotate {
        switched: done.switched,
        key_type: done.pair.as_ref().map(|pair| pair.key_type),
        bits: done.pair.as_ref().map(|pair| pair.bits),
        fingerprint: done.pair.as_ref().map(|pair| pair.fingerprint.clone()),
        nodes: nodes.into_iter().chain(offline.iter().map(NodeEntry::skipped)).collect(),
    };
    Outcome::new(verdict, text, details)
}
