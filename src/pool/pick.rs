//! Picks the nodes of a job from a pool: who may be the master, which nodes can be used, and the best group of them.

use super::choice::{Candidate, NodeGroup, PoolShortage, obstacle, pick as pick_group, reason};
use super::contents::PoolContents;
use super::format::PoolNode;
use super::inventory::cluster_name;
use super::key::Key;
use super::signers::AllowedSigners;
use super::survey::{MeasuredNode, MeasuringPoint, PublishedNode, Survey, Surveyor, survey};
use super::verification::{FileState, PoolFile};
use crate::cluster::operator::{now, operator};
use crate::cluster::site::Site;
use crate::error::Error;
use crate::inventory::Pool;
use crate::text::units::count;
use schemars::JsonSchema;
use serde::Serialize;
use ssh_key::PublicKey;
use std::fs;

/// The reason why a node of an older hvdctl is not picked.
pub const NO_HOST_KEY: &str = "no ssh host key; publish it again with a newer hvdctl";

/// A request for nodes of a pool.
#[derive(Clone, Copy)]
pub struct PickRequest<'a> {
    /// The number of ranks.
    pub np: u32,
    /// The login on the nodes of others, if it is not that of the ssh configuration.
    pub user: Option<&'a str>,
    /// The node that is the master, as `NODE` or `OWNER/NODE`.
    pub master: Option<&'a str>,
}

/// A node of a pool that was left out.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, JsonSchema)]
pub struct LeftOutCandidate {
    /// Its owner.
    pub owner: String,
    /// The owner's name for it.
    pub node: String,
    /// The reason why it was left out.
    pub reason: String,
}

impl LeftOutCandidate {
    fn new(node: &PoolNode, reason: impl Into<String>) -> LeftOutCandidate {
        LeftOutCandidate { owner: node.owner.clone(), node: node.node.clone(), reason: reason.into() }
    }
}

/// The nodes that were picked from a pool.
pub struct PoolChoice<'a> {
    /// The name of the cluster.
    pub name: String,
    /// The owner that the operator is, if it is known.
    pub own: Option<String>,
    /// The group of reached nodes that was chosen, and its distance.
    pub group: NodeGroup,
    /// The nodes of the group, in its order.
    pub nodes: Vec<MeasuredNode<'a>>,
    /// The number of pairs of these of which neither could measure the other, although one could measure.
    pub unmeasured: usize,
    /// The nodes that were left out, and why.
    pub left_out: Vec<LeftOutCandidate>,
}

/// The identity of this operator among the members.
struct Own {
    owner: Result<String, String>,
    /// A text that is unique to this operator.
    identity: String,
}

impl Own {
    fn of(pool: &Pool, signers: &AllowedSigners) -> Own {
        let key = Key::read(pool);
        let owner = match (&pool.owner, &key) {
            (Some(owner), _) => Ok(owner.clone()),
            (None, Err(error)) => Err(error.to_string()),
            (None, Ok(key)) => match &signers.owners(key.public(), now() as u64)[..] {
                [owner] => Ok(owner.clone()),
                [] => Err("no member has your key".into()),
                several => Err(format!("your key has several names: {}", several.join(", "))),
            },
        };
        let public = key.ok().and_then(|key| PublicKey::from(key.public().clone()).to_openssh().ok());
        let identity = public.unwrap_or_else(|| fs::read_to_string("/etc/machine-id").unwrap_or_default());
        Own { owner, identity }
    }
}

/// The nodes that may be the master.
struct Masters<'a> {
    owner: Option<&'a str>,
    /// The only one of the owner's.
    name: Option<&'a str>,
}

impl<'a> Masters<'a> {
    /// Returns the nodes of this operator, or the named node.
    ///
    /// # Errors
    /// If there is no node with that name.
    fn of(named: Option<&'a str>, own: &'a Own, nodes: &[&'a PoolNode]) -> Result<Masters<'a>, Error> {
        // a name without an owner is that of one's own node: another member may publish the same name
        let own = own.owner.as_deref().ok();
        let Some(named) = named else { return Ok(Masters { owner: own, name: None }) };
        let (owner, name) = named.split_once('/').map_or((own, named), |(owner, name)| (Some(owner), name));
        let masters = Masters { owner, name: Some(name) };
        if !nodes.iter().any(|node| masters.has(node)) {
            return Err(Error::usage(
                match owner {
                    Some(owner) => format!("--master: the pool has no valid node {name} of {owner}"),
                    None => format!("--master: the owner of the node {name} is not known"),
                },
                "hvdctl pool lists the nodes; name one of another owner as OWNER/NODE",
            ));
        }
        Ok(masters)
    }

    fn has(&self, node: &PoolNode) -> bool {
        self.owner == Some(&node.owner) && self.name.is_none_or(|name| name == node.node)
    }

    /// Returns the error if none of them can be used.
    fn missing(&self, own: &Own, left_out: &[LeftOutCandidate]) -> Error {
        let why = match (self.name, &own.owner) {
            (Some(name), _) => format!("{name} of {} cannot be used", self.owner.unwrap_or_default()),
            (None, Ok(owner)) => format!("none of the nodes of {owner}, which are yours, can be used"),
            (None, Err(why)) => format!("which nodes are yours is not known: {why}"),
        };
        Error::check(
            format!(
                "there is no master: {why}. The master gets the cluster's private key, which makes its owner root in \
                 the workers of all others{}",
                listed(left_out)
            ),
            "publish a node of yours (hvdctl grade --publish; [pool] needs your key or owner), or name a node whose owner \
             may have that: --master OWNER/NODE",
        )
    }
}

/// Picks nodes.
///
/// # Errors
/// If there is no master, no group has enough slots, or the command is cancelled.
pub async fn pick<'a>(
    pool: &Pool,
    contents: &'a PoolContents,
    request: PickRequest<'_>,
    site: Site<'_>,
) -> Result<PoolChoice<'a>, Error> {
    let Site { target, fleet, session, events } = site;
    let ignored = contents.files.iter().filter(|file| file.state != FileState::Valid).count();
    if ignored > 0 {
        let are = if ignored == 1 { "file of the pool is" } else { "files of the pool are" };
        events.note(format!("{ignored} {are} not valid and left out: hvdctl pool shows why"));
    }
    let valid: Vec<PublishedNode<'_>> =
        contents.files.iter().filter_map(PoolFile::valid_node).map(|(node, key)| PublishedNode { node, key }).collect();
    let own = Own::of(pool, &contents.signers);
    let masters = Masters::of(request.master, &own, &valid.iter().map(|valid| valid.node).collect::<Vec<_>>())?;
    let (nodes, mut left_out) = candidates(valid);
    if !nodes.iter().any(|published| masters.has(published.node)) {
        return Err(masters.missing(&own, &left_out));
    }
    let surveyor = Surveyor { own: own.owner.as_deref().ok(), user: request.user, target, fleet, events };
    let surveying = survey(&nodes, surveyor);
    let Survey { reached, left_out: unusable, round_trips } = session.cancellation.run(surveying).await?;
    left_out.extend(unusable.into_iter().map(|(node, why)| LeftOutCandidate::new(node, why)));
    let candidates: Vec<Candidate> = reached.iter().map(|reached| candidate(reached.node, &masters)).collect();
    let group = pick_group(&candidates, &round_trips, request.np).map_err(|shortage| match shortage {
        PoolShortage::NoMaster => masters.missing(&own, &left_out),
        shortage => Error::check(
            format!("no group of nodes has {}; {shortage}{}", count(request.np as usize, "slot"), listed(&left_out)),
            "hvdctl pool lists the nodes; use fewer ranks, or ask other owners to publish theirs",
        ),
    })?;
    let rest = (0..reached.len()).filter(|number| !group.nodes.contains(number));
    left_out.extend(
        rest.map(|number| {
            LeftOutCandidate::new(reached[number].node, reason(number, &candidates, &round_trips, &group))
        }),
    );
    let pairs = group.nodes.iter().flat_map(|one| group.nodes.iter().map(move |other| (*one, *other)));
    let measures = |number: usize| reached[number].measured_from == MeasuringPoint::Node;
    let is_unmeasured = |(one, other): &(usize, usize)| {
        one < other && (measures(*one) || measures(*other)) && round_trips.is_over_here(*one, *other)
    };
    let unmeasured = pairs.filter(is_unmeasured).count();
    let nodes = group.nodes.iter().map(|number| reached[*number].clone()).collect();
    let name = cluster_name(&operator(), &own.identity);
    Ok(PoolChoice { name, own: own.owner.ok(), group, nodes, unmeasured, left_out })
}

/// Returns the nodes that may be picked, and those of valid files that may not.
fn candidates(valid: Vec<PublishedNode<'_>>) -> (Vec<PublishedNode<'_>>, Vec<LeftOutCandidate>) {
    let obstacle = |node: &PoolNode| obstacle(node.grade).or(node.host_key.is_none().then_some(NO_HOST_KEY));
    let left_out =
        valid.iter().filter_map(|PublishedNode { node, .. }| Some(LeftOutCandidate::new(node, obstacle(node)?)));
    let left_out = left_out.collect();
    (valid.into_iter().filter(|published| obstacle(published.node).is_none()).collect(), left_out)
}

fn candidate(node: &PoolNode, masters: &Masters<'_>) -> Candidate {
    let may_be_master = masters.has(node);
    let PoolNode { node: name, owner, kind, grade, score, slots, .. } = node.clone();
    Candidate { name, owner, may_be_master, kind, grade, score, slots }
}

/// Formats the candidates that were left out for an error, a line each.
fn listed(left_out: &[LeftOutCandidate]) -> String {
    let line =
        |LeftOutCandidate { owner, node, reason }: &LeftOutCandidate| format!("\n    {node} of {owner}: {reason}");
    left_out.iter().map(line).collect()
}
