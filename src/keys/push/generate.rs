//! `keys generate`: the pair on the master, and nothing anywhere else.

use super::{look, master, pair, usual, write};
use crate::cluster::nodes::Member;
use crate::cluster::session::Session;
use crate::error::Error;
use crate::event::Events;
use crate::inventory::Inventory;
use crate::keys::files::{Changes, Described, Files, Keyring, Keys, Kind, Put, describe};
use crate::secret::Secret;

/// What lies on the master now.
#[derive(Debug)]
pub struct Generated {
    /// The master's name.
    pub node: String,
    /// The pair.
    pub pair: Described,
    /// Whether it was made just now.
    pub made: bool,
}

/// Makes the pair where the master, the only member here, has none. `wanted`: of this kind; else as the inventory says.
///
/// # Errors
/// When a pair of another kind is there.
pub async fn generate(
    inventory: &Inventory,
    members: &[Member],
    wanted: Option<Kind>,
    session: &Session,
    events: &Events,
) -> Result<Generated, Error> {
    let cluster = &inventory.cluster;
    let seen = session.cancellation.run(look(cluster, members, events)).await?;
    let (member, facts) = master(inventory, &seen)?;
    let node = member.node.name.clone();
    let ring = Keyring::read(cluster, facts);
    let keys = match (&ring.current, Keys::to_push(&ring)) {
        (Some(_), Some(keys)) => keys,
        _ => session.cancellation.run(pair(cluster, member, &ring, wanted.unwrap_or(usual(cluster)), events)).await?,
    };
    let public = keys.let_in.first().map(String::as_str).unwrap_or_default();
    let there = describe(public).ok_or_else(|| {
        Error::check(
            format!("what lies on {node} as the cluster's public key is none: {public}"),
            format!("remove it from {} there; `hvdctl keys push` writes it again", cluster.ssh_dir),
        )
    })?;
    if let Some(kind) = wanted.filter(|kind| !kind.is(&there)) {
        return Err(Error::check(format!("{node} has a pair of another kind: {there}"), kind.rotation()));
    }
    let (puts, made) = puts(&keys, &ring);
    if !puts.is_empty() {
        write(cluster, member, facts, &Changes { puts, ..Changes::default() }).await?;
    }
    Ok(Generated { node, pair: there, made })
}

/// The pair's files that are missing, and whether the private half is one of them.
fn puts(keys: &Keys, ring: &Keyring) -> (Vec<Put>, bool) {
    let Files::Pair { name, public, new } = &keys.files else { return (Vec::new(), false) };
    let private = new.iter().map(|text| Put { name: (*name).to_owned(), mode: "600", text: text.clone() });
    let mut puts: Vec<Put> = private.collect();
    if ring.current.as_ref().is_none_or(|held| held.public.is_none()) {
        puts.push(Put { name: format!("{name}.pub"), mode: "644", text: Secret::plain(format!("{public}\n")) });
    }
    (puts, new.is_some())
}
