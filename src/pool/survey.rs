//! The survey of a pool: the nodes that are their owners' and let this operator log in, and the round trips between
//! them.

use crate::cluster::each_node::for_each_node;
use crate::cluster::fleet::Fleet;
use crate::cluster::member::Member;
use crate::cluster::target::Target;
use crate::error::{Error, ErrorKind, NodeError};
use crate::event::{Events, Message, Step};
use crate::inventory::Node;
use crate::pool::choice::RoundTrips;
use crate::pool::format::{PoolNode, is_for_others};
use crate::pool::owner;
use crate::pool::round_trips::{self, NO_PYTHON, PoolEndpoint};
use crate::transport::node::RunAs;
use schemars::JsonSchema;
use serde::Serialize;
use ssh_key::public::KeyData;
use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, UdpSocket};
use std::time::Duration;
use tokio::net::lookup_host;
use tokio::time::timeout;

/// The time that the resolution of a name may take.
const RESOLUTION: Duration = Duration::from_secs(5);

/// The place from which round trips of a node are measured.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum MeasuringPoint {
    /// On the node itself.
    Node,
    /// On this machine: the node could not measure.
    Here,
}

/// A node as a member has published it.
#[derive(Clone, Copy)]
pub struct PublishedNode<'a> {
    /// The node as it was published.
    pub node: &'a PoolNode,
    /// The key that has signed it.
    pub key: &'a KeyData,
}

/// A node that is its owner's.
#[derive(Clone)]
pub struct MeasuredNode<'a> {
    /// The node as it was published.
    pub node: &'a PoolNode,
    /// The place from which its round trips were measured.
    pub measured_from: MeasuringPoint,
}

/// The operator and the connections of a survey.
#[derive(Clone, Copy)]
pub struct Surveyor<'a> {
    /// The owner that this operator is.
    pub own: Option<&'a str>,
    /// The login on the nodes of others, if it is not that of the ssh configuration.
    pub user: Option<&'a str>,
    /// The nodes and settings of the command.
    pub target: &'a Target,
    /// The connections.
    pub fleet: &'a Fleet,
    /// The events to which progress is reported.
    pub events: &'a Events,
}

/// The result of a survey of the candidates.
#[derive(Default)]
pub struct Survey<'a> {
    /// The nodes that can be used.
    pub reached: Vec<MeasuredNode<'a>>,
    /// The others, and why.
    pub left_out: Vec<(&'a PoolNode, String)>,
    /// The round trips between the reached nodes, by their indices.
    pub round_trips: RoundTrips,
}

/// Logs in to each node, where it has the host key that was published and its root says that it is its owner's, and
/// measures the round trips between these.
///
/// # Errors
/// When this operator's own machine is at fault.
pub async fn survey<'a>(published: &[PublishedNode<'a>], surveyor: Surveyor<'_>) -> Result<Survey<'a>, Error> {
    let Surveyor { own, events, target, .. } = surveyor;
    let mut left_out = Vec::new();
    let mut targets = Vec::new();
    let is_here =
        for_each_node(published.to_vec(), async |PublishedNode { node, .. }| leads_here(&node.host).await).await;
    for (published, is_here) in published.iter().zip(is_here) {
        // one's own machine may be one of one's own nodes
        match is_here && own != Some(published.node.owner.as_str()) {
            true => left_out.push((
                published.node,
                format!("its host {} leads to this machine, or is local to each one", published.node.host),
            )),
            false => targets.push(*published),
        }
    }
    if targets.is_empty() {
        return Ok(Survey { left_out, ..Survey::default() });
    }
    let logins = log_in(&targets, surveyor).await?;
    let prove = async |(PublishedNode { node, key }, login): (PublishedNode<'a>, Result<Member, NodeError>)| {
        let proof = prove(node, key, login, events).await;
        (node, proof)
    };
    let mut proven: Vec<(&PoolNode, Member)> = Vec::new();
    for (node, proof) in for_each_node(targets.into_iter().zip(logins).collect(), prove).await {
        match proof {
            Ok(member) => proven.push((node, member)),
            Err(error) => {
                left_out.push((node, error.message.clone()));
                events.warn(Message::Failure(error));
            }
        }
    }
    left_out.extend(keep_distinct(&mut proven, own));
    let (measured_from, round_trips) = measure(&proven, target.cluster().network.is_some(), events).await;
    let reached = proven.iter().zip(measured_from);
    let reached = reached.map(|((node, _), measured_from)| MeasuredNode { node, measured_from }).collect();
    Ok(Survey { reached, left_out, round_trips })
}

/// Returns whether a host is this machine, or each machine itself: no other owner's node. A name may be resolved in
/// another way later; then the host key is another one.
async fn leads_here(host: &str) -> bool {
    let addresses = timeout(RESOLUTION, lookup_host((host, 9))).await;
    addresses
        .into_iter()
        .flatten()
        .flatten()
        .any(|address| !is_for_others(&address.ip().to_string()) || is_own(address.ip()))
}

/// Returns whether an address is this machine's: what is sent there would be sent from it. Nothing is sent.
fn is_own(address: IpAddr) -> bool {
    let any: IpAddr = if address.is_ipv4() { [0; 4].into() } else { [0; 16].into() };
    let source = UdpSocket::bind((any, 0)).and_then(|socket| {
        socket.connect((address, 9))?;
        socket.local_addr()
    });
    source.is_ok_and(|source| source.ip() == address)
}

/// Logs in to each node. A failure is shown later.
async fn log_in(
    nodes: &[PublishedNode<'_>],
    Surveyor { user, target, fleet, .. }: Surveyor<'_>,
) -> Result<Vec<Result<Member, NodeError>>, Error> {
    // a space is in no name of an inventory's node, so none is mixed up
    let node = |(number, PublishedNode { node, .. }): (usize, &PublishedNode<'_>)| Node {
        name: format!("{} of {}", node.node, node.owner),
        host: node.host.clone(),
        user: user.map(str::to_owned),
        ssh_port: Some(node.port),
        owner: Some(node.owner.clone()),
        host_key: node.host_key.clone(),
        master: number == 0,
        ..Node::default()
    };
    let nodes = unique(nodes.iter().enumerate().map(node));
    let (quiet, _) = Events::channel();
    fleet.connect(&target.of_nodes(nodes), RunAs::Login, &quiet).await
}

/// Checks that a node is its owner's.
async fn prove(
    PoolNode { owner, .. }: &PoolNode,
    key: &KeyData,
    login: Result<Member, NodeError>,
    events: &Events,
) -> Result<Member, NodeError> {
    // what helps with one's own nodes is nothing for those of others
    let ask = |what: &str| vec![format!("ask {owner} {what}")];
    let member = login.map_err(|error| {
        let hints =
            ask("for a login, and set its user with --user or in ~/.ssh/config; or to publish it again (hvdctl \
            grade --publish)");
        NodeError { hints, ..error }
    })?;
    let proving = owner::prove(&member.transport, key);
    let proof = events.step(&member.node.name, Step::read("checking its owner"), proving).await;
    proof.map_err(|error| NodeError { hints: ask("to publish it again (hvdctl grade --publish)"), ..error })?;
    Ok(member)
}

/// Leaves each machine once: of several nodes with one host key the operator's own, else the first by name. Returns the
/// others, and why.
fn keep_distinct<'a, T>(nodes: &mut Vec<(&'a PoolNode, T)>, own: Option<&str>) -> Vec<(&'a PoolNode, String)> {
    let key = |node: &PoolNode| {
        let PoolNode { owner, cluster, node: name, .. } = node;
        (own != Some(owner.as_str()), owner.clone(), cluster.clone(), name.clone())
    };
    let mut first: BTreeMap<Option<&'a str>, &'a PoolNode> = BTreeMap::new();
    for (node, _) in nodes.iter() {
        let known = first.entry(node.host_key.as_deref()).or_insert(node);
        if key(node) < key(known) {
            *known = node;
        }
    }
    let mut repeated = Vec::new();
    nodes.retain(|(node, _)| {
        let same = first[&node.host_key.as_deref()];
        let is_kept = std::ptr::eq(same, *node);
        if !is_kept {
            let why = format!("the same machine as {} of {}: they have one ssh host key", same.node, same.owner);
            repeated.push((*node, why));
        }
        is_kept
    });
    repeated
}

/// Measures on each node the round trips to all others, and to all nodes on this machine if one of them could not.
/// `has_network`: an encrypted network finds a way between nodes that cannot connect to each other, so such a round trip
/// counts as one that could not be measured.
async fn measure(
    nodes: &[(&PoolNode, Member)],
    has_network: bool,
    events: &Events,
) -> (Vec<MeasuringPoint>, RoundTrips) {
    let endpoint = |(number, (node, _)): (usize, &(&PoolNode, Member))| PoolEndpoint {
        number,
        host: node.host.clone(),
        port: node.port,
    };
    let endpoints: Vec<PoolEndpoint> = nodes.iter().enumerate().map(endpoint).collect();
    let on_node = async |(number, (node, member)): (usize, &(&PoolNode, Member))| {
        let others: Vec<PoolEndpoint> = endpoints.iter().filter(|target| target.number != number).cloned().collect();
        let measuring = round_trips::from_node(&member.transport, &others);
        let measured = events.step(&member.node.name, Step::read("measuring round trips"), measuring).await;
        measured.map_err(|error| match error.kind == (ErrorKind::CommandFailed { status: NO_PYTHON }) {
            true => error.hint(format!("ask {} to install python3 there", node.owner)),
            false => error,
        })
    };
    let (mut measured_from, mut round_trips) = (Vec::new(), RoundTrips::default());
    for (number, measured) in for_each_node(nodes.iter().enumerate().collect(), on_node).await.into_iter().enumerate() {
        measured_from.push(if measured.is_ok() { MeasuringPoint::Node } else { MeasuringPoint::Here });
        match measured {
            Ok(times) => times
                .into_iter()
                .filter(|(_, time)| time.is_some() || !has_network)
                .for_each(|(to, time)| round_trips.add(number, to, time)),
            Err(error) => events.warn(Message::Failure(error)),
        }
    }
    if !round_trips.are_complete(nodes.len()) {
        let from_here = async |(target, (_, member)): (PoolEndpoint, &(&PoolNode, Member))| {
            let time = match round_trips::from_here(&target).await {
                None if has_network => round_trips::by_login(&member.transport).await,
                time => time,
            };
            (target.number, time)
        };
        for (number, time) in for_each_node(endpoints.into_iter().zip(nodes).collect(), from_here).await {
            time.into_iter().for_each(|time| round_trips.add_from_here(number, time));
        }
    }
    (measured_from, round_trips)
}

/// Makes the names of nodes unique: one owner may publish two clusters, and several machines behind ports of one host.
fn unique(nodes: impl Iterator<Item = Node>) -> Vec<Node> {
    let mut names = BTreeSet::new();
    let rename = |node: Node| {
        let Node { name, host, ssh_port, .. } = &node;
        let at = format!("{name} at {host}");
        let with_port = format!("{at}:{}", ssh_port.unwrap_or(22));
        let numbered = (2..).map(|number| format!("{with_port} ({number})"));
        let mut candidates = [name.clone(), at, with_port.clone()].into_iter().chain(numbered);
        let name = candidates.find(|name| names.insert(name.clone())).unwrap_or_default();
        Node { name, ..node }
    };
    nodes.map(rename).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pool::format::tests::node;

    #[test]
    fn a_machine_of_two_members_is_there_once_whoever_has_published_last() {
        let of = |owner: &str, name: &str, host_key: &str, published| PoolNode {
            owner: owner.into(),
            node: name.into(),
            host_key: Some(host_key.into()),
            published,
            ..node()
        };
        let nodes = [of("cai", "a", "1", 9), of("bob", "b", "1", 5), of("bob", "c", "2", 5), of("ana", "d", "3", 1)];
        let kept = |own| {
            let mut kept: Vec<_> = nodes.iter().map(|node| (node, ())).collect();
            let repeated = keep_distinct(&mut kept, own);
            let names: String = kept.iter().map(|(node, ())| node.node.as_str()).collect();
            let repeated: Vec<String> = repeated.iter().map(|(node, why)| format!("{}: {why}", node.node)).collect();
            (names, repeated)
        };
        let same = |one: &str, as_: &str| vec![format!("{one}: the same machine as {as_}: they have one ssh host key")];
        assert_eq!(kept(None), ("bcd".into(), same("a", "b of bob")));
        assert_eq!(kept(Some("ana")), ("bcd".into(), same("a", "b of bob")));
        assert_eq!(kept(Some("cai")), ("acd".into(), same("b", "a of cai")));
    }

    #[test]
    fn nodes_of_one_name_get_names_of_their_own() {
        let of = |host: &str, port| Node {
            name: "gpu1 of bob".into(),
            host: host.into(),
            ssh_port: Some(port),
            ..Node::default()
        };
        let nodes = [of("a.lab", 22), of("b.lab", 22), of("b.lab", 2222), of("b.lab", 2222), of("b.lab", 2222)];
        let named: Vec<(String, Option<u16>)> =
            unique(nodes.into_iter()).into_iter().map(|node| (node.name, node.ssh_port)).collect();
        let expected = [
            ("gpu1 of bob", 22),
            ("gpu1 of bob at b.lab", 22),
            ("gpu1 of bob at b.lab:2222", 2222),
            ("gpu1 of bob at b.lab:2222 (2)", 2222),
            ("gpu1 of bob at b.lab:2222 (3)", 2222),
        ];
        assert_eq!(named, expected.map(|(name, port)| (name.to_owned(), Some(port))));
    }

    #[tokio::test]
    async fn no_other_owners_node_is_this_machine() {
        for here in ["127.0.0.1", "localhost", "::1", "::ffff:127.0.0.1", "0.0.0.0", "169.254.0.9", "fe80::1"] {
            assert!(leads_here(here).await, "{here}");
        }
        // where there is a network
        let socket = UdpSocket::bind("0.0.0.0:0").unwrap();
        if socket.connect("192.0.2.1:9").is_ok() {
            let own = socket.local_addr().unwrap().ip().to_string();
            assert!(leads_here(&own).await, "{own}");
        }
        for other in ["192.0.2.1", "2001:db8::1", "no.invalid"] {
            assert!(!leads_here(other).await, "{other}");
        }
    }
}
