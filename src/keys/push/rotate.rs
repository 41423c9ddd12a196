//! `keys rotate`: a new pair in the old one's place. The cluster launches at every moment of it: the new key is let in
//! everywhere before the master uses it, and the old one goes only when the master no longer does.

use super::{again, base64, bring, look, make, master, tell, usual};
use crate::cluster::nodes::{Member, split};
use crate::cluster::session::Session;
use crate::error::{Error, NodeError};
use crate::event::Events;
use crate::inventory::{Cluster, Inventory};
use crate::keys::files::{Described, Files, KEY_NAMES, Keyring, Keys, Kind, Next, bare, describe, our_key, our_keys};
use crate::node::facts::Facts;
use crate::runtime::spec::private_key_name;
use crate::text::nodeset;
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
    /// Whether it is another than before. Not so where an earlier rotation had come that far, and only its end was made
    /// up for.
    pub switched: bool,
    /// Nodes that let exactly this key in.
    pub done: Vec<String>,
    /// Nodes that do not yet.
    pub failed: Vec<NodeError>,
    /// What is left, in words.
    pub left: Option<String>,
}

/// Rotates, or finishes a rotation that was broken off. Told after each step.
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
    let seen = session.cancellation.run(look(cluster, members, events)).await?;
    let (member, facts) = master(inventory, &seen)?;
    let ring = Keyring::read(cluster, facts);
    if let Some(owner) = ring.belongs_to_another(&cluster.name) {
        return Err(Error::check(
            format!("the pair on {} is that of the cluster {owner}, which shares the directory", member.node.name),
            "rotate it from that cluster's inventory, or give this one an ssh_dir of its own",
        ));
    }
    let next = match &ring.next {
        Some(next) => {
            events.note(format!("going on with the rotation that was begun: {}", told(&next.public)));
            next.clone()
        }
        None => {
            let stale = stale(cluster, &ring, &seen);
            if !stale.is_empty() {
                events.note(format!(
                    "finishing the last rotation: an earlier key is let in on {}",
                    nodeset::fold(&stale)
                ));
                tell(inventory, &seen, events);
                return finish(inventory, members, false, session, events).await;
            }
            stage(cluster, member, facts, &ring, wanted.unwrap_or(usual(cluster)), session, events).await?
        }
    };
    tell(inventory, &seen, events);

    let mut let_in: Vec<String> = ring.current.iter().filter_map(|held| held.public.clone()).collect();
    let_in.push(next.public.clone());
    let_in.dedup();
    let keys = Keys { let_in, keep_ours: true, files: Files::Left };
    // the master's directory has the staged files by now, which none of this looks at
    let link = member.transport.clone();
    let name = member.node.name.clone();
    let (pushed, failed) = split(events, bring(inventory, seen, keys, session, events).await?);
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
        .with("old", next.replaces.unwrap_or_default());
    link.script(&script, "put the new pair in place").await.map_err(|error| Error::Nodes {
        failed: vec![
            error.hint("both keys are let in everywhere, so launches work; hvdctl keys rotate goes on from here"),
        ],
        done: pushed.len() - 1,
    })?;
    events.note(format!("{name} launches with the new key: {}", told(&next.public)));
    session.progress.did(&name, "launches with the new key");
    finish(inventory, members, !next.in_place, session, events).await
}

/// Lets in nothing but the master's key.
async fn finish(
    inventory: &Inventory,
    members: &[Member],
    switched: bool,
    session: &Session,
    events: &Events,
) -> Result<Rotated, Error> {
    let cluster = &inventory.cluster;
    let seen = session.cancellation.run(look(cluster, members, events)).await?;
    let ring = Keyring::read(cluster, &master(inventory, &seen)?.1);
    let Some(keys) = Keys::to_push(&ring).filter(|_| ring.next.is_none()) else {
        return Err(Error::check(
            "another rotation was begun meanwhile",
            "hvdctl keys status, then hvdctl keys rotate",
        ));
    };
    let pair = ring.described();
    let (pushed, failed) = split(events, bring(inventory, seen, keys, session, events).await?);
    pushed.iter().for_each(|node| session.progress.done(&node.node));
    if pushed.len() + failed.len() < members.len() {
        session.progress.failed(&failed);
        session.cancellation.check()?;
    }
    let left = if failed.is_empty() {
        events.note(format!("the old key is let in nowhere on {} nodes", pushed.len()));
        None
    } else {
        Some("the old key is still let in there: hvdctl keys rotate takes it out".to_owned())
    };
    Ok(Rotated { pair, switched, done: pushed.into_iter().map(|p| p.node).collect(), failed, left })
}

/// Makes the new pair and lays it beside the one in use. Where another hvdctl did so since we looked, that one holds.
async fn stage(
    cluster: &Cluster,
    member: &Member,
    facts: &Facts,
    ring: &Keyring,
    wanted: Kind,
    session: &Session,
    events: &Events,
) -> Result<Next, Error> {
    let node = &member.node.name;
    let Some(current) = &ring.current else {
        return Err(Error::check(format!("{node} has no key pair to rotate"), "hvdctl keys push"));
    };
    let name = private_key_name(wanted.key_type);
    let foreign = |file: &String| {
        let public = facts.key_files.get(&format!("{name}.pub")).map(|f| f.text.trim_end()).unwrap_or_default();
        facts.key_files.contains_key(file) && our_key(public, &cluster.name).is_none()
    };
    if name != current.name && [name.to_owned(), format!("{name}.pub")].iter().any(foreign) {
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
    let output = member.transport.script(&script, "lay the new pair beside the old one").await.map_err(again)?;
    let words = String::from_utf8_lossy(&output);
    let (there, public) = words.trim().split_once(' ').unwrap_or_default();
    let ours = our_key(public, &cluster.name).is_some();
    match KEY_NAMES.into_iter().find(|n| *n == there && ours) {
        Some(name) => {
            events.note(format!("{node} has a new pair, not yet in use: {}", told(public)));
            session.progress.did(node, "has a new pair, not yet in use");
            let replaces = Some(current.name).filter(|old| *old != name);
            Ok(Next { name, public: public.to_owned(), in_place: false, replaces })
        }
        None => Err(NodeError::failed(node, "lay the new pair beside the old one", format!("it answered {words:?}"))
            .hint("another cluster that shares the directory may be rotating its pair")
            .into()),
    }
}

/// Nodes that let another key of the cluster in than the master's.
fn stale(cluster: &Cluster, ring: &Keyring, seen: &[(Member, Facts)]) -> Vec<String> {
    let Some(public) = ring.current.as_ref().and_then(|held| held.public.as_deref()) else { return Vec::new() };
    let key = bare(public);
    let stale = seen.iter().filter(|(_, facts)| our_keys(facts, &cluster.name).iter().any(|k| *k != key));
    stale.map(|(member, _)| member.node.name.clone()).collect()
}

fn told(public: &str) -> String {
    describe(public).map_or_else(|| bare(public), |described| described.to_string())
}
