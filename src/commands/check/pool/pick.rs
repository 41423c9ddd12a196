//! `hvdctl pool pick`.

use crate::cli::{HostsFormat, PoolPick};
use crate::cluster::operator::{host_name, now};
use crate::commands::Outcome;
use crate::commands::check::pool::pool_of;
use crate::commands::nodes::hosts;
use crate::commands::shared::context::Context;
use crate::error::Error;
use crate::inventory::{Cluster, Node, USER};
use crate::model::grade::NodeKind;
use crate::pool::choice::{Distance, NodeGroup, milliseconds};
use crate::pool::contents::PoolContents;
use crate::pool::format::PoolNode;
use crate::pool::inventory;
use crate::pool::pick::{LeftOutCandidate, PickRequest, PoolChoice, pick};
use crate::pool::survey::{MeasuredNode, MeasuringPoint};
use crate::text::units::{count, stamp};
use schemars::JsonSchema;
use serde::Serialize;

/// The number of left-out candidates that are shown without `-v`.
const MOST_LISTED: usize = 5;

/// `pool pick`.
#[derive(Debug, Serialize, JsonSchema)]
pub struct PoolPickDocument {
    /// The output without `--json`.
    pub text: String,
    /// The distance of the nodes from each other: `lan` below 2 ms, `region` below 20 ms, else `wan`.
    pub distance: Distance,
    /// The longest round trip between two of them in microseconds; 0 for a single node.
    pub longest_us: u64,
    /// The kind of the nodes.
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
    /// The place from which its round trips were measured.
    pub measured_from: MeasuringPoint,
    /// The node that its owner has signed.
    pub node: PoolNode,
}

/// `pool pick`.
pub async fn run(options: &PoolPick, context: &Context) -> Result<Outcome, Error> {
    if let Some(user) = &options.user {
        USER.read(user).map_err(|why| Error::usage(format!("--user: {why}"), "see hvdctl pool pick --help"))?;
    }
    if options.format == Some(HostsFormat::SlurmConf) {
        return Err(hosts::without_choice());
    }
    let pool = pool_of(context)?;
    let contents = PoolContents::read(pool, context.site()).await?;
    let PoolPick { np, user, master, .. } = options;
    let request = PickRequest { np: *np, user: user.as_deref(), master: master.as_deref() };
    let choice = pick(pool, &contents, request, context.site()).await?;
    note_left_out(&choice.left_out, context);
    let mut cluster = context.target.cluster().clone();
    // the inventory that is printed may lie in another directory
    cluster.ssh_config = cluster.ssh_config.map(|file| std::path::absolute(&file).unwrap_or(file));
    Ok(outcome(options, &cluster, choice))
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
    let PoolChoice { name, own, group, nodes: picked, unmeasured, left_out } = choice;
    let published: Vec<&PoolNode> = picked.iter().map(|picked| picked.node).collect();
    let nodes = inventory::nodes(&published, options.user.as_deref(), own.as_deref(), cluster.network);
    let nodes: Vec<(Node, &PoolNode)> = nodes.into_iter().zip(published.iter().copied()).collect();
    let NodeGroup { slots, distance, longest, .. } = group;
    let text = match options.format {
        Some(format) => {
            let nodes: Vec<_> = nodes.iter().map(|(node, published)| (node.clone(), Some(published.slots))).collect();
            hosts::outcome(cluster, format, &nodes, None).text.to_string()
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
            if unmeasured > 0 {
                let pairs = count(nodes.len() * (nodes.len() - 1) / 2, "pair");
                let why = "they do not reach each other's sshd, which the encrypted network does not need";
                about.push(format!("{unmeasured} of {pairs} measured over {}: {why}", host_name()));
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
        let group =
            NodeGroup { nodes: vec![0, 1], slots: 16, distance: Distance::Lan, longest: Duration::from_millis(1) };
        let choice = PoolChoice { name: "pool".into(), own: None, group, nodes, unmeasured: 0, left_out: Vec::new() };
        let options = PoolPick { np: 16, user: None, master: None, format: None };
        let text = outcome(&options, &Inventory::local("node1", "image").cluster, choice).text.to_string();
        let line = format!("1 of them measured from {}: they lack python3, or did not answer in time", host_name());
        assert_eq!(text.matches(&line).count(), 1, "{text}");
    }
}
