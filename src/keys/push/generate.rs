//! `keys generate`: the pair on the master, and nothing anywhere else.

use super::{master, observe_all, pair, usual, write};
use crate::cluster::nodes::Member;
use crate::cluster::session::Session;
use crate::error::Error;
use crate::event::Events;
use crate::inventory::Inventory;
use crate::keys::files::{Changes, CurrentPair, Described, Keyring, Kind, MasterPair, Put, describe};
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
    let nodes = observe_all(cluster, members, session, events).await?;
    let (member, facts) = master(inventory, &nodes)?;
    let node = member.node.name.clone();
    let ring = Keyring::read(cluster, facts);
    let mut puts = Vec::new();
    let pair = match &ring.current {
        Some(CurrentPair { name, public: Some(public) }) => MasterPair { name, public: public.clone(), new: None },
        _ => {
            let kind = wanted.unwrap_or(usual(cluster));
            let pair = session.cancellation.run(pair(cluster, member, &ring, kind, events)).await?;
            let text = Secret::plain(format!("{}\n", pair.public));
            puts.extend(pair.new.clone().map(|text| Put { name: pair.name.to_owned(), text }));
            puts.push(Put { name: format!("{}.pub", pair.name), text });
            pair
        }
    };
    let described = describe(&pair.public).ok_or_else(|| {
        Error::check(
            format!("what lies on {node} as the cluster's public key is none: {}", pair.public),
            format!("remove it from {} there; `hvdctl keys push` writes it again", cluster.ssh_dir),
        )
    })?;
    if let Some(kind) = wanted.filter(|kind| !kind.is(&described)) {
        return Err(Error::check(format!("{node} has a pair of another kind: {described}"), kind.rotation()));
    }
    if !puts.is_empty() {
        write(cluster, member, facts, &Changes { puts, ..Changes::default() }).await?;
    }
    Ok(Generated { node, pair: described, made: pair.new.is_some() })
}
