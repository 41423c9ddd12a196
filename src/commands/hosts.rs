//! `hvdctl hosts`.

use super::output::{self, HostsNode, NodeEntry};
use super::{Context, Outcome, unless_signalled};
use crate::cli::{self, Format};
use crate::cluster::nodes::{Target, all, connect_all, facts, for_each_node};
use crate::error::{Error, exit};
use crate::inventory::export::{self, Host};
use crate::inventory::{Cluster, Node};
use crate::node::network;
use std::collections::BTreeMap;

/// `hosts`.
pub async fn run(options: &cli::Hosts, context: Context) -> Result<Outcome, Error> {
    let Context { target, events, cancel, .. } = context;
    let nodes = target.nodes();
    let mut slots: BTreeMap<String, u32> =
        nodes.iter().filter_map(|node| Some((node.name.clone(), network::known_slots(node)?))).collect();
    // only the others have to be asked
    let selected = nodes.iter().map(|node| node.name.clone()).filter(|name| !slots.contains_key(name)).collect();
    let unknown = Target { selected, ..target.clone() };
    if !unknown.selected.is_empty() && options.format != Format::Ssh {
        let asked = unless_signalled(&cancel, async {
            let members = connect_all(&unknown, &events).await?;
            let seen = for_each_node(members, async |member| {
                let facts = facts(unknown.cluster(), &member).await?;
                Ok((member.node.name.clone(), network::slots(&member.node, &facts)))
            });
            all(&events, seen.await)
        });
        slots.extend(asked.await?);
    }
    let hosts: Vec<(Node, Option<u32>)> =
        nodes.into_iter().map(|node| (node.clone(), slots.get(&node.name).copied())).collect();
    Ok(outcome(target.cluster(), options.format, &hosts))
}

/// The nodes with their slots; without, where nobody wants to know.
pub(super) fn outcome(cluster: &Cluster, format: Format, nodes: &[(Node, Option<u32>)]) -> Outcome {
    let hosts: Vec<Host<'_>> =
        nodes.iter().map(|(node, slots)| Host { node, slots: slots.unwrap_or_default() }).collect();
    let text = match format {
        Format::Horovod => format!("{}\n", export::horovod(&hosts)),
        Format::Mpi | Format::Deepspeed => export::hostfile(&hosts),
        Format::Ssh => export::ssh(cluster, &hosts),
        Format::Env => export::env(&hosts),
        Format::Torchrun => export::torchrun(&hosts),
        Format::Slurm => format!("{}\n", export::slurm(&hosts)),
        Format::TfConfig => export::tf_config(&hosts),
    };
    let entries = nodes
        .iter()
        .zip(&hosts)
        .map(|((node, slots), host)| {
            let (host, reached_by) = (node.host.clone(), host.reached_by().to_string());
            NodeEntry::new(&node.name, true, HostsNode { host, reached_by, slots: *slots, master: node.master })
        })
        .collect();
    Outcome::new(exit::OK, text.clone(), &output::Hosts { ok: true, text, nodes: entries }, Vec::new())
}
