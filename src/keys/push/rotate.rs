//! `keys rotate`: a new pair in the old one's place. The cluster launches at every moment of it: the new key is let in
//! everywhere before the master uses it, and the old one goes only when the master no longer does.

use super::{base64, distribute, make, master, observe_all, push, usual};
use crate::cluster::nodes::Member;
use crate::cluster::session::Session;
use crate::error::{Error, NodeError};
use crate::event::Events;
use crate::inventory::{Cluster, Inventory};
use crate::keys::files::{Described, KEY_NAMES, Keyring, Keys, Kind, StagedPair, bare, describe, is_ours, our_key};
use crate::node::facts::Facts;
use crate::runtime::spec::private_key_name;
use crate::transport::node::Script;

pub(super) const STAGE: &str = concat!(
    include_str!("../../scripts/put_file.sh"),
    include_str!("../../scripts/keys_lock.sh"),
    include_str!("../../scripts/keys_stage.sh")
);
pub(super) const SWITCH: &str =
    concat!(include_str!("../../scripts/keys_lock.sh"), include_str!("../../scripts/keys_switch.sh"));

/// How a rotation ended.
#[derive(Debug)]
pub struct Rotated {
    /// The pair that the cluster uses now.
    pub pair: Option<Described>,
    /// Whether it is another than before. Not so where an earlier rotation had put it in place.
    pub switched: bool,
    /// Nodes that let in exactly this key.
    pub done: Vec<String>,
    /// Nodes that do not yet.
    pub failed: Vec<NodeError>,
    /// What is left to do.
    pub left: Option<String>,
}

/// Rotates, or finishes an interrupted rotation.
///
/// # Errors
/// Before anything was changed; or when the master failed at the switch, in which case the old key still holds.
pub async fn rotate(
    inventory: &Inventory,
    members: &[Member],
    wanted: Option<Kind>,
    session: &Session,
    events: &Events,
) -> Result<Rotated, Error> {
    let cluster = &inventory.cluster;
    let nodes = observe_all(cluster, members, session, events).await?;
    let (member, facts) = master(inventory, &nodes)?;
    let ring = Keyring::read(cluster, facts);
    if let Some(owner) = ring.belongs_to_another(&cluster.name) {
        return Err(Error::check(
            format!("the pair on {} is that of the cluster {owner}, which shares the directory", member.node.name),
            "rotate it from that cluster's inventory, or give this one an ssh_dir of its own",
        ));
    }
    let next = match &ring.next {
        Some(next) => {
            events.note(format!("going on with the rotation that was begun: {}", name_of(&next.public)));
            next.clone()
        }
        None => stage(cluster, member, facts, &ring, wanted.unwrap_or(usual(cluster)), session, events).await?,
    };

    let replaced = KEY_NAMES.into_iter().find(|name| *name != next.name && is_ours(facts, name, &cluster.name));
    let transport = member.transport.clone();
    let name = member.node.name.clone();
    let keys = Keys::both(&ring, &next.public);
    let (pushed, failed) = distribute(inventory, nodes, keys, session, events).await?;
    if !failed.is_empty() {
        return Ok(Rotated {
            pair: ring.described(),
            switched: false,
            done: pushed.into_iter().map(|p| p.node).collect(),
            failed,
            left: Some("the old key still holds everywhere; fix that, and hvdctl keys rotate goes on".to_owned()),
        });
    }
    events.note(format!("both keys are let in on {} nodes", pushed.len()));
    session.cancellation.check()?;

    let script = Script::new(SWITCH)
        .with("ssh_dir", &cluster.ssh_dir)
        .with("new", next.name)
        .with("public", &next.public)
        .with("old", replaced.unwrap_or_default());
    transport.script(&script, "put the new pair in place").await.map_err(|error| Error::Nodes {
        failed: vec![
            error.hint("both keys are let in everywhere, so launches work; hvdctl keys rotate goes on from here"),
        ],
        done: pushed.len() - 1,
    })?;
    events.note(format!("{name} launches with the new key: {}", name_of(&next.public)));
    session.progress.did(&name, "launches with the new key");
    // from now on a push lets in nothing but the new key
    let (pushed, failed) = push(inventory, members, session, events).await?;
    pushed.iter().for_each(|node| session.progress.done(&node.node));
    if pushed.len() + failed.len() < members.len() {
        session.progress.failed(&failed);
        session.cancellation.check()?;
    }
    let mut left = None;
    if failed.is_empty() {
        events.note(format!("the old key is let in nowhere on {} nodes", pushed.len()));
    } else {
        left = Some("the old key is still let in there: hvdctl keys push takes it out".to_owned());
    }
    let done = pushed.into_iter().map(|p| p.node).collect();
    Ok(Rotated { pair: describe(&next.public), switched: !next.in_place, done, failed, left })
}

/// Makes the new pair and writes it beside the one in use. A pair that another hvdctl has staged meanwhile is kept.
async fn stage(
    cluster: &Cluster,
    member: &Member,
    facts: &Facts,
    ring: &Keyring,
    wanted: Kind,
    session: &Session,
    events: &Events,
) -> Result<StagedPair, Error> {
    let node = &member.node.name;
    let Some(current) = &ring.current else {
        return Err(Error::check(format!("{node} has no key pair to rotate"), "hvdctl keys push"));
    };
    let name = private_key_name(wanted.key_type);
    let exists = [name.to_owned(), format!("{name}.pub")].iter().any(|file| facts.key_files.contains_key(file));
    if name != current.name && exists && !is_ours(facts, name, &cluster.name) {
        return Err(Error::check(
            format!("{}/{name} on {node} is not the cluster's, and the new pair would have its place", cluster.ssh_dir),
            "move it away, or rotate to the other --type",
        ));
    }
    let made = session.cancellation.run(make(cluster, wanted, node, events)).await?;
    let script = Script::new(STAGE)
        .with("ssh_dir", &cluster.ssh_dir)
        .with("name", name)
        .with("private", &base64(made.private.expose()))
        .with("public", &base64(&format!("{}\n", made.public)));
    let tried = "stage the new pair";
    let output = member.transport.script(&script, tried).await?;
    let answer = String::from_utf8_lossy(&output);
    let (staged, public) = answer.trim().split_once(' ').unwrap_or_default();
    match KEY_NAMES.into_iter().find(|name| *name == staged && our_key(public, &cluster.name).is_some()) {
        Some(name) => {
            events.note(format!("{node} has a new pair, not yet in use: {}", name_of(public)));
            session.progress.did(node, "has a new pair, not yet in use");
            Ok(StagedPair { name, public: public.to_owned(), in_place: false })
        }
        None => Err(NodeError::failed(node, tried, format!("it answered {answer:?}"))
            .hint("another cluster that shares the directory may be rotating its pair")
            .into()),
    }
}

/// A key as messages name it.
fn name_of(public: &str) -> String {
    describe(public).map_or_else(|| bare(public), |described| described.to_string())
}
