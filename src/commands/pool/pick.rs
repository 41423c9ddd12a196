//! `hvdctl pool pick`.

use crate::cli::PoolPick;
use crate::cluster::operator::{host_name, now, operator};
use crate::commands::Outcome;
use crate::commands::context::Context;
use crate::commands::hosts;
use crate::commands::pool::publish::read_key;
use crate::commands::pool::{NO_HOST_KEY, PoolContents, pool_of, read};
use crate::error::Error;
use crate::inventory::{Cluster, Node, Pool, USER};
use crate::model::grade::NodeKind;
use crate::pool::choice::{Candidate, Distance, Group, Shortage, milliseconds, obstacle, pick as pick_group, reason};
use crate::pool::format::PoolNode;
use crate::pool::inventory::{self, cluster_name};
use crate::pool::signers::AllowedSigners;
use crate::pool::survey::{MeasuredNode, MeasuringPoint, PublishedNode, Survey, Surveyor, survey};
use crate::pool::verification::{FileState, PoolFile};
use crate::text::units::{count, stamp};
use schemars::JsonSchema;
use serde::Serialize;
use ssh_key::PublicKey;
use std::fs;

/// How many candidates that were left out are shown without `-v`.
const MOST_LISTED: usize = 5;

/// `pool pick`.
#[derive(Debug, Serialize, JsonSchema)]
pub struct PoolPickDocument {
    /// What is printed without `--json`.
    pub text: String,
    /// How far the nodes are from each other: `lan` below 2 ms, `region` below 20 ms, else `wan`.
    pub distance: Distance,
    /// The longest round trip between two of them in microseconds; 0 for a single node.
    pub longest_us: u64,
    /// What the nodes are.
    pub kind: NodeKind,
    /// Their slots.
    pub slots: u32,
    /// The nodes, the master first, then the best.
    pub nodes: Vec<PickedNode>,
    /// The nodes that were left out, and why.
    pub left_out: Vec<LeftOutCandidate>,
}

/// A node that was picked.
#[derive(Debug, Serialize, JsonSchema)]
pub struct PickedNode {
    /// Its name in the inventory that is printed.
    pub name: String,
    /// Where its round trips were measured.
    pub measured_from: MeasuringPoint,
    /// What its owner has signed.
    pub node: PoolNode,
}

/// A node of a pool that was left out.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, JsonSchema)]
pub struct LeftOutCandidate {
    /// Its owner.
    pub owner: String,
    /// The owner's name for it.
    pub node: String,
    /// Why.
    pub reason: String,
}

impl LeftOutCandidate {
    fn new(node: &PoolNode, reason: impl Into<String>) -> LeftOutCandidate {
        LeftOutCandidate { owner: node.owner.clone(), node: node.node.clone(), reason: reason.into() }
    }
}

/// What `pool pick` has picked.
pub(crate) struct PoolChoice<'a> {
    /// The name of the cluster.
    pub(in crate::commands) name: String,
    /// Who picks.
    pub(in crate::commands) own: Option<String>,
    pub(in crate::commands) group: Group,
    /// The nodes of the group, in its order.
    pub(in crate::commands) nodes: Vec<MeasuredNode<'a>>,
    pub(in crate::commands) left_out: Vec<LeftOutCandidate>,
}

/// Who this operator is among the members.
struct Own {
    owner: Result<String, String>,
    /// What no other member has.
    identity: String,
}

impl Own {
    fn of(pool: &Pool, signers: &AllowedSigners) -> Own {
        let key = read_key(pool);
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

/// Which nodes may be the master.
struct Masters<'a> {
    owner: Option<&'a str>,
    /// The only one of the owner's.
    name: Option<&'a str>,
}

impl<'a> Masters<'a> {
    /// Those of this operator, or the named node.
    ///
    /// # Errors
    /// If there is no such node.
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
                    None => format!("--master: whose node {name} is not known"),
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
                "there is no master: {why}. The master gets the cluster's private key, with which its owner is root in the workers \
                 of all others{}",
                listed(left_out)
            ),
            "publish a node of yours (hvdctl grade --publish; [pool] needs your key or owner), or name a node whose owner may have \
             that: --master OWNER/NODE",
        )
    }
}

/// `pool pick`.
pub async fn pick(options: &PoolPick, context: &Context) -> Result<Outcome, Error> {
    let Context { events, session, .. } = context;
    if let Some(user) = &options.user {
        USER.read(user).map_err(|why| Error::usage(format!("--user: {why}"), "see hvdctl pool pick --help"))?;
    }
    let PoolContents { files, signers, .. } = read(context).await?;
    let ignored = files.iter().filter(|file| file.state != FileState::Valid).count();
    if ignored > 0 {
        let are = if ignored == 1 { "file of the pool is" } else { "files of the pool are" };
        events.note(format!("{ignored} {are} not valid and left out: hvdctl pool shows why"));
    }
    let valid: Vec<PublishedNode<'_>> =
        files.iter().filter_map(PoolFile::valid_node).map(|(node, key)| PublishedNode { node, key }).collect();
    let own = Own::of(pool_of(context)?, &signers);
    let masters =
        Masters::of(options.master.as_deref(), &own, &valid.iter().map(|valid| valid.node).collect::<Vec<_>>())?;
    let (nodes, mut left_out) = candidates(valid);
    if !nodes.iter().any(|published| masters.has(published.node)) {
        return Err(masters.missing(&own, &left_out));
    }
    let (own_name, user) = (own.owner.as_deref().ok(), options.user.as_deref());
    let surveyor = Surveyor { own: own_name, user, target: &context.target, fleet: &context.fleet, events };
    let surveying = survey(&nodes, surveyor);
    let Survey { reached, left_out: unusable, round_trips } = session.cancellation.run(surveying).await?;
    left_out.extend(unusable.into_iter().map(|(node, why)| LeftOutCandidate::new(node, why)));
    let candidates: Vec<Candidate> = reached.iter().map(|reached| candidate(reached.node, &masters)).collect();
    let group = pick_group(&candidates, &round_trips, options.np).map_err(|shortage| match shortage {
        Shortage::NoMaster => masters.missing(&own, &left_out),
        shortage => Error::check(
            format!("no group of nodes has {}; {shortage}{}", count(options.np as usize, "slot"), listed(&left_out)),
            "hvdctl pool lists the nodes; use fewer ranks, or ask the owners of others to publish theirs",
        ),
    })?;
    let rest = (0..reached.len()).filter(|number| !group.nodes.contains(number));
    left_out.extend(
        rest.map(|number| {
            LeftOutCandidate::new(reached[number].node, reason(number, &candidates, &round_trips, &group))
        }),
    );
    note_left_out(&left_out, context);
    let nodes = group.nodes.iter().map(|number| reached[*number].clone()).collect();
    let mut cluster = context.target.cluster().clone();
    // the inventory that is printed may lie in another directory
    cluster.ssh_config = cluster.ssh_config.map(|file| std::path::absolute(&file).unwrap_or(file));
    let name = cluster_name(&operator(), &own.identity);
    Ok(outcome(options, &cluster, PoolChoice { name, own: own.owner.ok(), group, nodes, left_out }))
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

/// Reports the candidates that were left out; without `-v` only the first.
fn note_left_out(left_out: &[LeftOutCandidate], context: &Context) {
    let most = if context.verbose > 0 { left_out.len() } else { MOST_LISTED };
    for LeftOutCandidate { owner, node, reason } in &left_out[..most.min(left_out.len())] {
        context.events.note(format!("left out {node} of {owner}: {reason}"));
    }
    if left_out.len() > most {
        context.events.note(format!("left out {} more: -v shows all", left_out.len() - most));
    }
}

pub(crate) fn outcome(options: &PoolPick, cluster: &Cluster, choice: PoolChoice<'_>) -> Outcome {
    let PoolChoice { name, own, group, nodes: picked, left_out } = choice;
    let published: Vec<&PoolNode> = picked.iter().map(|picked| picked.node).collect();
    let nodes: Vec<(Node, &PoolNode)> = inventory::nodes(&published, options.user.as_deref(), own.as_deref())
        .into_iter()
        .zip(published.iter().copied())
        .collect();
    let Group { slots, distance, longest, .. } = group;
    let text = match options.format {
        Some(format) => {
            let nodes: Vec<_> = nodes.iter().map(|(node, published)| (node.clone(), Some(published.slots))).collect();
            hosts::outcome(cluster, format, &nodes, None).text
        }
        None => {
            let mut about = vec![
                format!("hvdctl pool pick -np {}, {}", options.np, stamp(now())),
                format!(
                    "{} of {}; {} for {}",
                    count(nodes.len(), "node"),
                    published[0].kind,
                    count(slots as usize, "slot"),
                    count(options.np as usize, "rank")
                ),
            ];
            if nodes.len() > 1 {
                about.push(format!("round trips between them: {distance} (the longest: {})", milliseconds(longest)));
            }
            let from_here = picked.iter().filter(|picked| picked.measured_from == MeasuringPoint::Here).count();
            if from_here > 0 {
                let why = "they lack python3, or did not answer in time";
                about.push(format!("{from_here} of them measured from {}: {why}", host_name()));
            }
            inventory::text(&name, cluster, &nodes, &about)
        }
    };
    let entry = |((node, published), picked): (&(Node, &PoolNode), &MeasuredNode<'_>)| PickedNode {
        name: node.name.clone(),
        measured_from: picked.measured_from,
        node: (*published).clone(),
    };
    let document = PoolPickDocument {
        text: text.clone(),
        distance,
        longest_us: u64::try_from(longest.as_micros()).unwrap_or(u64::MAX),
        kind: published[0].kind.clone(),
        slots,
        nodes: nodes.iter().zip(&picked).map(entry).collect(),
        left_out,
    };
    Outcome::ok(text, document)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::inventory::Inventory;
    use crate::pool::format::tests::node;
    use std::time::Duration;

    #[test]
    fn the_inventory_says_why_nodes_were_measured_from_here() {
        let node = node();
        let measured = |measured_from| MeasuredNode { node: &node, measured_from };
        let nodes = [MeasuringPoint::Here, MeasuringPoint::Node].map(measured).to_vec();
        let group = Group { nodes: vec![0, 1], slots: 16, distance: Distance::Lan, longest: Duration::from_millis(1) };
        let choice = PoolChoice { name: "pool".into(), own: None, group, nodes, left_out: Vec::new() };
        let options = PoolPick { np: 16, user: None, master: None, format: None };
        let text = outcome(&options, &Inventory::local("node1", "image").cluster, choice).text;
        let line = format!("1 of them measured from {}: they lack python3, or did not answer in time", host_name());
        assert_eq!(text.matches(&line).count(), 1, "{text}");
    }
}
