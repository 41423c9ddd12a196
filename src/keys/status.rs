//! Reads the keys of nodes for `keys status`.

use crate::cluster::each_node::NodeResults;
use crate::cluster::member::Member;
use crate::cluster::observation::{ObservedNode, engine, facts};
use crate::error::NodeError;
use crate::event::{Events, Step};
use crate::inventory::{Inventory, Node};
use crate::keys::files::{KeyReport, report};
use crate::node::facts::Facts;

/// The keys of nodes.
pub struct KeysObservation {
    /// The report on them.
    pub report: KeyReport,
    /// The nodes whose engines answered, for the logins between their workers.
    pub workers: Vec<ObservedNode>,
    /// The nodes whose keys could not be read.
    pub failed: Vec<NodeError>,
}

/// Reads the keys of all nodes at once. A node whose engine does not answer is in the report all the same.
pub async fn observe(inventory: &Inventory, members: NodeResults<Member>, events: &Events) -> KeysObservation {
    let cluster = &inventory.cluster;
    let read = async |member: Member| {
        let _step = events.begin(&member.node.name, Step::read("reading keys"));
        let (facts, runtime) = tokio::join!(facts(cluster, &member), engine(cluster, &member));
        // without an engine the keys can still be checked, but not the logins
        let (facts, runtime) = (facts?, runtime.ok());
        Ok(((member.node.clone(), facts.clone()), runtime.map(|runtime| ObservedNode::new(member, facts, runtime))))
    };
    let NodeResults { ok, failed } = members.then(events, read).await;
    let (observed, workers): (Vec<(Node, Facts)>, Vec<Option<ObservedNode>>) = ok.into_iter().unzip();
    let nodes: Vec<_> = observed.iter().map(|(node, facts)| (node, facts)).collect();
    KeysObservation { report: report(inventory, &nodes), workers: workers.into_iter().flatten().collect(), failed }
}
