//! The files in which nodes keep their earlier benchmarks. A file that cannot be read or written is reported, and is
//! never a failure.

use crate::bench::verdict::past;
use crate::bench::verdict::past::{LARGEST, Sent, Unreadable};
use crate::cluster::each_node::for_each_node;
use crate::cluster::observation::ObservedNode;
use crate::event::{Events, Message, Step};
use crate::inventory::Cluster;
use crate::transport::node::Script;
use std::collections::BTreeMap;

const READ: &str = include_str!("../../scripts/bench/past_read.sh");
const WRITE: &str = concat!(
    include_str!("../../scripts/node/close.sh"),
    include_str!("../../scripts/node/permissions.sh"),
    include_str!("../../scripts/bench/past_write.sh")
);

/// The earlier benchmarks of some nodes.
pub struct Past {
    /// By node; `None` for one whose file must not be replaced.
    sent: Vec<Option<Sent>>,
    /// Set if the files are replaced even by nothing.
    is_forgotten: bool,
}

impl Past {
    /// Returns the past of so many nodes whose earlier benchmarks are forgotten.
    pub fn forgotten(nodes: usize) -> Past {
        Past { sent: vec![Some(Sent::new()); nodes], is_forgotten: true }
    }

    /// Reads the files of these nodes. One that cannot be read is reported, and the node then has no past.
    pub async fn read(cluster: &Cluster, nodes: &[ObservedNode], events: &Events) -> Past {
        let read = for_each_node(nodes.iter().collect(), async |node: &ObservedNode| {
            let _step = events.begin(node.name(), Step::read("reading its earlier benchmarks"));
            let script = Script::new(READ)
                .with("jobs_dir", &cluster.jobs_dir)
                .with("cluster", &cluster.name)
                // one more than there may be
                .with("most", &(LARGEST + 2).to_string());
            let unknown = |why: &str| events.note(Message::of(node.name(), format!("no earlier benchmarks: {why}")));
            let text = match node.member.transport.script(&script, "read its earlier benchmarks").await {
                Ok(text) => text,
                Err(error) => {
                    unknown(&error.message);
                    return None;
                }
            };
            match std::str::from_utf8(&text)
                .map_err(|_| Unreadable::Damaged)
                .and_then(|text| past::parse(text, node.name()))
            {
                Ok(sent) => Some(sent),
                Err(Unreadable::Newer(format)) => {
                    unknown(&format!("they were written by a newer hvdctl, in format {format}"));
                    None
                }
                Err(Unreadable::Foreign(other)) => {
                    unknown(&format!("their file belongs to {other}, and is replaced"));
                    Some(Sent::new())
                }
                Err(Unreadable::Damaged) => {
                    unknown("their file is damaged, and is replaced");
                    Some(Sent::new())
                }
            }
        });
        Past { sent: read.await, is_forgotten: false }
    }

    /// Returns all bandwidths by the names of sender and receiver.
    pub fn bandwidths(&self, nodes: &[ObservedNode]) -> BTreeMap<(String, String), Vec<f64>> {
        let of = |(node, sent): (&ObservedNode, &Option<Sent>)| {
            let from = node.name().to_owned();
            let sent = sent.clone().unwrap_or_default().into_iter();
            sent.map(move |(to, values)| ((from.clone(), to), values)).collect::<Vec<_>>()
        };
        nodes.iter().zip(&self.sent).flat_map(of).collect()
    }

    /// Adds bandwidths to the files of these nodes, by the indices of sender and receiver.
    pub async fn write(
        self,
        cluster: &Cluster,
        nodes: &[ObservedNode],
        latest: &BTreeMap<(usize, usize), f64>,
        events: &Events,
    ) {
        let text = |(index, sent): (usize, Option<Sent>)| {
            let own = latest.iter().filter(|((from, _), _)| *from == index);
            let own: BTreeMap<String, f64> =
                own.map(|((_, to), value)| (nodes[*to].name().to_owned(), *value)).collect();
            (self.is_forgotten || !own.is_empty())
                .then_some((&nodes[index], past::with(nodes[index].name(), sent?, &own)))
        };
        let texts: Vec<(&ObservedNode, String)> =
            self.sent.into_iter().enumerate().filter_map(|(index, sent)| text((index, sent))).collect();
        for_each_node(texts, async |(node, text): (&ObservedNode, String)| {
            let _step = events.begin(node.name(), Step::write("keeping its bandwidths"));
            let script = Script::new(WRITE)
                .with("jobs_dir", &cluster.jobs_dir)
                .with("cluster", &cluster.name)
                .with("past", &text);
            let written = node.member.transport.script(&script, "keep its bandwidths for later benchmarks").await;
            written.map(drop).unwrap_or_else(|error| events.warn(error));
        })
        .await;
    }
}
