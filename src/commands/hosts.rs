//! `hvdctl hosts`.

use super::best::{self, BestRequest, ChosenNodes, choose};
use super::{Context, Outcome};
use crate::checks::{fold, preflight};
use crate::cli::{self, Format};
use crate::cluster::each_node::each_node;
use crate::cluster::observation::{ObservedNode, check_gpus, facts};
use crate::document::NodeEntry;
use crate::error::Error;
use crate::grade::best::Choice;
use crate::inventory::export::{self, ExportedHost};
use crate::inventory::{Cluster, Node};
use crate::node::network;
use schemars::JsonSchema;
use serde::Serialize;
use std::collections::BTreeMap;

/// `hosts`.
#[derive(Debug, Serialize, JsonSchema)]
pub struct HostsDocument {
    /// What is printed without `--json`.
    pub text: String,
    /// The nodes.
    pub nodes: Vec<NodeEntry<HostsNode>>,
    /// Why these; null without `--best`.
    pub best: Option<Choice>,
}

/// A node as `hosts` has it.
#[derive(Debug, Serialize, JsonSchema)]
pub struct HostsNode {
    /// The host that ssh connects to.
    pub host: String,
    /// The `address` of the inventory, else `host`.
    pub reached_by: String,
    /// The slots; null with `--format ssh` if they are not known.
    pub slots: Option<u32>,
    /// Whether it is the master.
    pub master: bool,
}

/// `hosts`.
pub async fn run(options: &cli::Hosts, context: &Context) -> Result<Outcome, Error> {
    let Context { target, fleet, events, .. } = context;
    if let Some(nodes) = options.best {
        let request = BestRequest { nodes, per_node: None };
        let ChosenNodes { choice, nodes } = choose(request, context, events).await?;
        best::report(&choice, events);
        let node = |ObservedNode { member, facts, .. }: &ObservedNode| {
            (member.node.clone(), Some(network::slots(&member.node, facts)))
        };
        let nodes: Vec<_> = nodes.iter().map(node).collect();
        return Ok(outcome(target.cluster(), options.format, &nodes, Some(choice)));
    }
    let nodes = target.nodes();
    let known = nodes.iter().filter_map(|node| Some((node.name.clone(), network::known_slots(node)?)));
    let mut slots: BTreeMap<String, u32> = known.collect();
    // only nodes whose slots the inventory does not give are contacted
    let unknown = target.only(nodes.iter().map(|node| node.name.clone()).filter(|name| !slots.contains_key(name)));
    if !unknown.selected.is_empty() && options.format != Format::Ssh {
        let results = each_node(fleet.all(&unknown, events).await?, events, async |member| {
            let facts = facts(unknown.cluster(), &member).await?;
            check_gpus(&member.node, &facts)?;
            let unused = preflight::accelerators(&member.node, &facts);
            Ok((member.node.name.clone(), network::slots(&member.node, &facts), unused))
        });
        let found = results.await.all()?;
        let unused = found.iter().filter_map(|(_, _, unused)| unused.clone()).collect();
        fold(unused).iter().for_each(|finding| events.warn(finding));
        slots.extend(found.into_iter().map(|(node, slots, _)| (node, slots)));
    }
    let with_slots = nodes.into_iter().map(|node| (node.clone(), slots.get(&node.name).copied()));
    Ok(outcome(target.cluster(), options.format, &with_slots.collect::<Vec<_>>(), None))
}

/// `nodes`: with their slots, if the format needs them. `best`: why these.
pub(super) fn outcome(
    cluster: &Cluster,
    format: Format,
    nodes: &[(Node, Option<u32>)],
    best: Option<Choice>,
) -> Outcome {
    let hosts: Vec<ExportedHost<'_>> =
        nodes.iter().map(|(node, slots)| ExportedHost { node, slots: slots.unwrap_or_default() }).collect();
    let text = match format {
        Format::Horovod => format!("{}\n", export::horovod(&hosts)),
        Format::Mpi | Format::Deepspeed => export::hostfile(&hosts),
        Format::Ssh => export::ssh(cluster, &hosts),
        Format::Env => export::env(&hosts),
        Format::Torchrun => export::torchrun(&hosts),
        Format::Slurm => format!("{}\n", export::slurm(&hosts)),
        Format::TfConfig => export::tf_config(&hosts),
    };
    let entries = nodes.iter().zip(&hosts).map(|((node, slots), host)| {
        let (host, reached_by) = (node.host.clone(), host.reached_by().to_string());
        NodeEntry::new(&node.name, true, HostsNode { host, reached_by, slots: *slots, master: node.master })
    });
    Outcome::ok(text.clone(), HostsDocument { text, nodes: entries.collect(), best })
}
