//! `hvdctl hosts`.

use crate::checks::{fold, preflight};
use crate::cli::{self, HostsFormat};
use crate::cluster::each_node::each_node;
use crate::cluster::observation::{ObservedNode, check_gpus, facts};
use crate::commands::shared::best::{self, BestRequest, ChosenNodes, choose};
use crate::commands::{Context, Outcome};
use crate::document::NodeEntry;
use crate::error::Error;
use crate::grade::best::Choice;
use crate::inventory::export::{self, ExportedHost};
use crate::inventory::{Cluster, Node};
use crate::node::network;
use crate::schedule::queue::config::{SlurmNode, for_administrators};
use crate::schedule::queue::containers::slurm_node;
use schemars::JsonSchema;
use serde::Serialize;
use std::collections::BTreeMap;

/// `hosts`.
#[derive(Debug, Serialize, JsonSchema)]
pub struct HostsDocument {
    /// The output without `--json`.
    pub text: String,
    /// The nodes.
    pub nodes: Vec<NodeEntry<HostsNode>>,
    /// The choice of these nodes, with its reasons; null without `--best`.
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
    /// True if it is the master.
    pub master: bool,
}

/// `hosts`.
pub async fn run(options: &cli::Hosts, context: &Context) -> Result<Outcome, Error> {
    let Context { target, fleet, events, .. } = context;
    if options.format == HostsFormat::SlurmConf {
        if options.best.is_some() {
            return Err(without_choice());
        }
        return slurm_conf(context).await;
    }
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
    if !unknown.selected.is_empty() && options.format != HostsFormat::Ssh {
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

/// Returns the error of `slurm-conf` for nodes that were chosen: their machines are not asked then.
pub(crate) fn without_choice() -> Error {
    Error::usage("slurm-conf describes the nodes of the inventory", "hvdctl hosts --format slurm-conf")
}

/// `hosts --format slurm-conf`: nodes with the cores and GPUs that they have.
async fn slurm_conf(context: &Context) -> Result<Outcome, Error> {
    let Context { target, fleet, events, session, .. } = context;
    let asked = async {
        let results = each_node(fleet.all(target, events).await?, events, async |member| {
            let facts = facts(target.cluster(), &member).await?;
            check_gpus(&member.node, &facts)?;
            let described = slurm_node(&target.inventory, &member.node, &facts, facts.cores)?;
            let slots = network::slots(&member.node, &facts);
            Ok(((member.node, Some(slots)), described))
        });
        results.await.all()
    };
    let found = session.cancellation.run(asked).await?;
    let (nodes, described): (Vec<_>, Vec<SlurmNode>) = found.into_iter().unzip();
    Ok(document(for_administrators(&target.cluster().name, &described), &nodes, None))
}

/// `nodes`: with their slots, if the format needs them. `best`: why these.
pub(in crate::commands) fn outcome(
    cluster: &Cluster,
    format: HostsFormat,
    nodes: &[(Node, Option<u32>)],
    best: Option<Choice>,
) -> Outcome {
    let hosts: Vec<ExportedHost<'_>> =
        nodes.iter().map(|(node, slots)| ExportedHost { node, slots: slots.unwrap_or_default() }).collect();
    let text = match format {
        HostsFormat::Horovod => format!("{}\n", export::horovod(&hosts)),
        HostsFormat::Mpi | HostsFormat::Deepspeed => export::hostfile(&hosts),
        HostsFormat::Ssh => export::ssh(cluster, &hosts),
        HostsFormat::Env => export::env(&hosts),
        HostsFormat::Torchrun => export::torchrun(&hosts),
        HostsFormat::Slurm => format!("{}\n", export::slurm(&hosts)),
        HostsFormat::SlurmConf => unreachable!("slurm_conf prints it"),
        HostsFormat::TfConfig => export::tf_config(&hosts),
    };
    document(text, nodes, best)
}

/// Returns the result that is printed as `text`.
fn document(text: String, nodes: &[(Node, Option<u32>)], best: Option<Choice>) -> Outcome {
    let entries = nodes.iter().map(|(node, slots)| {
        let reached_by = ExportedHost { node, slots: slots.unwrap_or_default() }.reached_by();
        let host = node.host.clone();
        NodeEntry::new(&node.name, true, HostsNode { host, reached_by, slots: *slots, master: node.master })
    });
    Outcome::ok(text.clone(), HostsDocument { text, nodes: entries.collect(), best })
}
