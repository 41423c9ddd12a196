//! `hvdctl pool pick`.

use super::Outcome;
use super::context::Context;
use super::hosts;
use super::pool::read;
use super::pool_survey::{MeasuredNode, MeasuringPoint, Survey, measure, merge};
use crate::checks::pool::{Candidate, Distance, Group, milliseconds, obstacle, pick as pick_group, reason};
use crate::cli::PoolPick;
use crate::cluster::operator::{host_name, now, operator};
use crate::error::Error;
use crate::inventory::{Cluster, Node, USER};
use crate::model::grade::NodeKind;
use crate::pool::format::PoolNode;
use crate::pool::inventory::{self, cluster_name};
use crate::pool::verification::{FileState, PoolFile, distinct};
use crate::text::units::{count, stamp};
use schemars::JsonSchema;
use serde::Serialize;

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
    /// The nodes, the best first.
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
pub(super) struct PoolChoice<'a> {
    pub(super) group: Group,
    /// The nodes of the group, in its order.
    pub(super) nodes: Vec<MeasuredNode<'a>>,
    pub(super) left_out: Vec<LeftOutCandidate>,
}

/// `pool pick`.
pub async fn pick(options: &PoolPick, context: &Context) -> Result<Outcome, Error> {
    let Context { events, session, .. } = context;
    if let Some(user) = &options.user {
        USER.read(user).map_err(|why| Error::usage(format!("--user: {why}"), "see hvdctl pool pick --help"))?;
    }
    let (files, _) = read(context).await?;
    let ignored = files.iter().filter(|file| file.state != FileState::Valid).count();
    if ignored > 0 {
        let are = if ignored == 1 { "file of the pool is" } else { "files of the pool are" };
        events.note(format!("{ignored} {are} not valid and left out: hvdctl pool shows why"));
    }
    let (nodes, mut left_out) = candidates(&files);
    let measurements = session.cancellation.run(measure(&nodes, options.user.as_deref(), context)).await?;
    let Survey { reached, repeated, unreached, round_trips } = merge(&nodes, measurements);
    left_out.extend(repeated.into_iter().map(|(node, by)| published_later(node, by)));
    left_out.extend(unreached.into_iter().map(|node| LeftOutCandidate::new(node, "it cannot be reached")));
    let candidates: Vec<Candidate> = reached.iter().map(candidate).collect();
    let group = pick_group(&candidates, &round_trips, options.np).map_err(|shortage| {
        let listed: String = left_out
            .iter()
            .map(|LeftOutCandidate { owner, node, reason }| format!("\n    {node} of {owner}: {reason}"))
            .collect();
        let message = format!("no group of nodes has {}; {shortage}{listed}", count(options.np as usize, "slot"));
        Error::check(
            message,
            "hvdctl pool lists the nodes; use fewer ranks, or ask the owners of others to publish theirs",
        )
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
    Ok(outcome(options, &cluster, PoolChoice { group, nodes, left_out }))
}

fn published_later(node: &PoolNode, by: &str) -> LeftOutCandidate {
    LeftOutCandidate::new(node, format!("{by} has published the same machine later"))
}

/// Returns the nodes that may be picked, and those of valid files that may not.
fn candidates(files: &[PoolFile]) -> (Vec<&PoolNode>, Vec<LeftOutCandidate>) {
    let (nodes, twice) = distinct(files);
    let twice = twice.into_iter().map(|(node, by)| published_later(node, by));
    let bad = nodes.iter().filter_map(|node| Some(LeftOutCandidate::new(node, obstacle(node.grade)?)));
    let left_out = twice.chain(bad).collect();
    (nodes.into_iter().filter(|node| obstacle(node.grade).is_none()).collect(), left_out)
}

fn candidate(MeasuredNode { node, has_login, .. }: &MeasuredNode<'_>) -> Candidate {
    let PoolNode { kind, grade, score, slots, .. } = node;
    Candidate { kind: kind.clone(), grade: *grade, score: *score, slots: *slots, has_login: *has_login }
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

pub(super) fn outcome(options: &PoolPick, cluster: &Cluster, choice: PoolChoice<'_>) -> Outcome {
    let PoolChoice { group, nodes: picked, left_out } = choice;
    let published: Vec<&PoolNode> = picked.iter().map(|picked| picked.node).collect();
    let nodes: Vec<(Node, &PoolNode)> =
        inventory::nodes(&published, options.user.as_deref()).into_iter().zip(published.iter().copied()).collect();
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
            for (has_login, why) in [
                (false, "your login fails there, and a job needs one"),
                (true, "they lack python3, or did not answer in time"),
            ] {
                let is_meant = |picked: &&MeasuredNode<'_>| {
                    picked.measured_from == MeasuringPoint::Here && picked.has_login == has_login
                };
                let from_here = picked.iter().filter(is_meant).count();
                if from_here > 0 {
                    about.push(format!("{from_here} of them measured from {}: {why}", host_name()));
                }
            }
            inventory::text(&cluster_name(&operator()), cluster, &nodes, &about)
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
        let here = |has_login| MeasuredNode { node: &node, measured_from: MeasuringPoint::Here, has_login };
        let group = Group { nodes: vec![0, 1], slots: 16, distance: Distance::Lan, longest: Duration::from_millis(1) };
        let choice = PoolChoice { group, nodes: vec![here(false), here(true)], left_out: Vec::new() };
        let options = PoolPick { np: 16, user: None, format: None };
        let text = outcome(&options, &Inventory::local("node1", "image").cluster, choice).text;
        for why in ["your login fails there, and a job needs one", "they lack python3, or did not answer in time"] {
            assert_eq!(text.matches(&format!("1 of them measured from {}: {why}", host_name())).count(), 1, "{text}");
        }
    }
}
