//! Which nodes of a pool can be reached, and the round trips between them.

use super::context::Context;
use super::pool::only;
use crate::checks::pool::RoundTrips;
use crate::cluster::each_node::for_each_node;
use crate::cluster::member::Member;
use crate::error::{Error, NodeError};
use crate::event::{Events, Message, Step};
use crate::inventory::Node;
use crate::pool::format::PoolNode;
use crate::pool::round_trips::{self, Endpoint, NO_PYTHON, NodeAnswer};
use crate::transport::node::RunAs;
use schemars::JsonSchema;
use serde::Serialize;
use std::collections::BTreeMap;
use std::time::Duration;

/// Where round trips of a node are measured.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum MeasuringPoint {
    /// On the node itself.
    Node,
    /// On this machine: the login failed, or the node could not measure.
    Here,
}

/// A candidate that can be reached, with what is known of it.
#[derive(Clone)]
pub(super) struct MeasuredNode<'a> {
    pub(super) node: &'a PoolNode,
    pub(super) measured_from: MeasuringPoint,
    /// Whether this operator can log in.
    pub(super) has_login: bool,
}

/// A candidate, and how this machine reaches it.
struct Contact<'a> {
    owner: &'a str,
    endpoint: Endpoint,
    login: Result<Member, NodeError>,
    /// The round trip from this machine, where the login failed; `None` also if the node does not answer.
    from_here: Option<Duration>,
}

/// What was measured of a candidate.
pub(super) struct NodeMeasurement {
    has_login: bool,
    /// What all logins to one machine have in common, if it answered.
    machine: Option<String>,
    times: RoundTripTimes,
    /// Why nothing was measured on the node itself.
    failure: Option<NodeError>,
}

/// The round trips of a candidate, as far as they could be measured.
enum RoundTripTimes {
    /// From the node to others, by their numbers; `None`: it cannot connect.
    FromNode(BTreeMap<usize, Option<Duration>>),
    /// From this machine to the node.
    FromHere(Duration),
    /// The node cannot be reached.
    Unreached,
}

/// What was measured of all candidates.
pub(super) struct Survey<'a> {
    pub(super) reached: Vec<MeasuredNode<'a>>,
    /// Machines that were published later under another host, with the owner who did that.
    pub(super) repeated: Vec<(&'a PoolNode, &'a str)>,
    pub(super) unreached: Vec<&'a PoolNode>,
    /// Those between the reached ones, by their places.
    pub(super) round_trips: RoundTrips,
}

/// Measures the round trips: on each node that lets this operator log in, to all others; to those that do not, on this
/// machine. Returns a measurement of each node.
pub(super) async fn measure<'a>(
    nodes: &[&'a PoolNode],
    user: Option<&str>,
    context: &Context,
) -> Result<Vec<NodeMeasurement>, Error> {
    let events = &context.events;
    if nodes.is_empty() {
        return Ok(Vec::new());
    }
    let logins = log_in(nodes, user, context).await?;
    let contact = async |(number, (node, login)): (usize, (&&'a PoolNode, Result<Member, NodeError>))| {
        let endpoint = Endpoint { number, host: node.host.clone(), port: node.port };
        let from_here = if login.is_ok() { None } else { round_trips::from_here(&endpoint).await };
        let owner: &'a str = &node.owner;
        Contact { owner, endpoint, login, from_here }
    };
    let contacts: Vec<Contact<'a>> = for_each_node(nodes.iter().zip(logins).enumerate().collect(), contact).await;
    // a node that cannot be reached from here is no target for the others
    let is_target = |contact: &&Contact<'_>| contact.login.is_ok() || contact.from_here.is_some();
    let targets: Vec<Endpoint> = contacts.iter().filter(is_target).map(|contact| contact.endpoint.clone()).collect();
    let measuring = async |contact: &Contact<'_>| measure_node(contact, &targets, events).await;
    let measurements: Vec<NodeMeasurement> = for_each_node(contacts.iter().collect(), measuring).await;
    let failures = measurements.iter().filter_map(|measurement| measurement.failure.clone());
    failures.for_each(|error| events.warn(Message::Failure(error)));
    Ok(measurements)
}

/// Logs in to each node. A failure is no error, and is shown later.
async fn log_in(
    nodes: &[&PoolNode],
    user: Option<&str>,
    context: &Context,
) -> Result<Vec<Result<Member, NodeError>>, Error> {
    let Context { target, fleet, .. } = context;
    // a space is in no name of an inventory's node, so none is mixed up
    let node = |(number, node): (usize, &&PoolNode)| Node {
        name: format!("{} of {}", node.node, node.owner),
        host: node.host.clone(),
        user: user.map(str::to_owned),
        ssh_port: Some(node.port),
        master: number == 0,
        ..Node::default()
    };
    let nodes = unique(nodes.iter().enumerate().map(node));
    let (quiet, _) = Events::channel();
    fleet.connect(&only(&target.inventory, nodes)?, RunAs::Login, &quiet).await
}

/// Measures on a node, or to it from this machine.
async fn measure_node(contact: &Contact<'_>, targets: &[Endpoint], events: &Events) -> NodeMeasurement {
    let Contact { owner, endpoint, login, from_here } = contact;
    let (from_here, failure) = match login {
        Ok(member) => {
            let others: Vec<Endpoint> =
                targets.iter().filter(|target| target.number != endpoint.number).cloned().collect();
            let measuring = round_trips::from_node(&member.transport, &others);
            match events.step(&member.node.name, Step::read("measuring round trips"), measuring).await {
                Ok(NodeAnswer { machine, times }) => {
                    let times = RoundTripTimes::FromNode(times);
                    return NodeMeasurement { has_login: true, machine, times, failure: None };
                }
                Err(error) => {
                    let error = match error.message.contains(NO_PYTHON) {
                        true => error.hint(format!("ask {owner} to install python3 there")),
                        false => error,
                    };
                    (round_trips::from_here(endpoint).await, error)
                }
            }
        }
        Err(error) => {
            // what helps with one's own nodes is nothing for those of others
            let hint = format!("ask {owner} for a login, and set its user with --user or in ~/.ssh/config");
            (*from_here, NodeError { hints: vec![hint], ..error.clone() })
        }
    };
    let times = from_here.map_or(RoundTripTimes::Unreached, RoundTripTimes::FromHere);
    NodeMeasurement { has_login: login.is_ok(), machine: None, times, failure: Some(failure) }
}

/// Merges the measurements of the nodes.
pub(super) fn merge<'a>(nodes: &[&'a PoolNode], measurements: Vec<NodeMeasurement>) -> Survey<'a> {
    let (mut reached, mut repeated, mut unreached) = (Vec::new(), Vec::new(), Vec::new());
    let newest = newest(nodes, &measurements);
    let (mut round_trips, mut numbers) = (RoundTrips::default(), Vec::new());
    for (number, (node, measurement)) in nodes.iter().zip(measurements).enumerate() {
        let NodeMeasurement { has_login, machine, times, .. } = measurement;
        if let Some(by) = machine.and_then(|machine| newest.get(&machine)).filter(|by| **by != number) {
            repeated.push((*node, nodes[*by].owner.as_str()));
            continue;
        }
        let measured_from = match times {
            RoundTripTimes::FromNode(times) => {
                times.into_iter().for_each(|(to, time)| round_trips.add(number, to, time));
                MeasuringPoint::Node
            }
            RoundTripTimes::FromHere(time) => {
                round_trips.add_from_here(number, time);
                MeasuringPoint::Here
            }
            RoundTripTimes::Unreached => {
                unreached.push(*node);
                continue;
            }
        };
        numbers.push(number);
        reached.push(MeasuredNode { node, measured_from, has_login });
    }
    Survey { reached, repeated, unreached, round_trips: round_trips.only(&numbers) }
}

/// Returns for each machine the number of the node that was published last of those that are it.
fn newest(nodes: &[&PoolNode], measurements: &[NodeMeasurement]) -> BTreeMap<String, usize> {
    let mut newest: BTreeMap<String, usize> = BTreeMap::new();
    for (number, measurement) in measurements.iter().enumerate() {
        let Some(machine) = &measurement.machine else { continue };
        let last = newest.entry(machine.clone()).or_insert(number);
        if nodes[number].published > nodes[*last].published {
            *last = number;
        }
    }
    newest
}

/// Makes the names of nodes unique: one owner may publish two clusters.
fn unique(nodes: impl Iterator<Item = Node>) -> Vec<Node> {
    let mut nodes: Vec<Node> = nodes.collect();
    for at in 1..nodes.len() {
        if nodes[..at].iter().any(|other| other.name == nodes[at].name) {
            nodes[at].name = format!("{} at {}", nodes[at].name, nodes[at].host);
        }
    }
    nodes
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pool::format::tests::node;

    #[test]
    fn round_trips_are_those_of_the_nodes_that_can_be_reached() {
        let nodes = ["lost", "one", "two", "three"].map(|name| PoolNode { node: name.into(), ..node() });
        let nodes: Vec<&PoolNode> = nodes.iter().collect();
        let ms = Duration::from_millis;
        let measured = |times, has_login| NodeMeasurement { has_login, machine: None, times, failure: None };
        let from_node = |times: [(usize, Option<Duration>); 2]| RoundTripTimes::FromNode(times.into());
        let survey = merge(
            &nodes,
            vec![
                measured(RoundTripTimes::Unreached, false),
                measured(from_node([(2, Some(ms(5))), (3, None)]), true),
                measured(RoundTripTimes::FromHere(ms(7)), false),
                measured(RoundTripTimes::FromHere(ms(2)), true),
            ],
        );
        let found: Vec<_> =
            survey.reached.iter().map(|n| (n.node.node.as_str(), n.measured_from, n.has_login)).collect();
        let (node, here) = (MeasuringPoint::Node, MeasuringPoint::Here);
        assert_eq!(found, [("one", node, true), ("two", here, false), ("three", here, true)]);
        assert_eq!(survey.unreached, [nodes[0]]);
        let between = [(0, 1), (0, 2), (1, 2)].map(|(one, other)| survey.round_trips.between(one, other));
        assert_eq!(between, [Some(ms(5)), None, Some(ms(9))]);
    }
}
