//! `hvdctl pool` and `hvdctl pool pick`.

use super::Outcome;
use super::context::Context;
use super::hosts;
use crate::checks::pool::{Candidate, Distance, Group, RoundTrips, milliseconds, obstacle, pick as pick_group, reason};
use crate::cli::PoolPick;
use crate::cluster::each_node::for_each_node;
use crate::cluster::member::Member;
use crate::cluster::operator::{host_name, now, operator};
use crate::cluster::target::Target;
use crate::error::{Error, NodeError};
use crate::event::{Events, Message, Step};
use crate::inventory::{Cluster, Inventory, Node, Pool, USER};
use crate::model::grade::NodeKind;
use crate::pool::directory::{Listing, MOST_FILES, PoolDirectory};
use crate::pool::format::PoolNode;
use crate::pool::inventory::{self, cluster_name};
use crate::pool::round_trips::{self, Endpoint, NO_PYTHON, NodeAnswer};
use crate::pool::signers::AllowedSigners;
use crate::pool::verification::{FileState, PoolFile, Verifier, distinct};
use crate::render::table::table;
use crate::text::units::{age, count, stamp};
use crate::transport::node::RunAs;
use schemars::JsonSchema;
use serde::Serialize;
use std::collections::BTreeMap;
use std::fs::File;
use std::io::Read;
use std::time::Duration;

/// The most bytes of the file of allowed signers.
const LARGEST_SIGNERS: u64 = 1 << 20;

/// How many candidates that were left out are shown without `-v`.
const MOST_LISTED: usize = 5;

/// `pool`.
#[derive(Debug, Serialize, JsonSchema)]
pub struct PoolDocument {
    /// The files of the pool: valid ones first.
    pub files: Vec<PoolEntry>,
    /// Whether the pool has more files than are read.
    pub is_cut: bool,
}

/// A file of a pool.
#[derive(Debug, Serialize, JsonSchema)]
pub struct PoolEntry {
    /// The name of the file.
    pub file: String,
    /// What it is. Only a `valid` one is ever picked.
    pub state: FileState,
    /// Why it is not valid, or null.
    pub reason: Option<String>,
    /// What its owner has signed; null if nothing in it can be believed.
    pub node: Option<PoolNode>,
}

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

/// Where round trips of a node are measured.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum MeasuringPoint {
    /// On the node itself.
    Node,
    /// On this machine: the login failed, or the node could not measure.
    Here,
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

/// The machine of a pool, connected.
pub(super) struct PoolMachine(Member);

impl PoolMachine {
    /// Logs in to it.
    ///
    /// # Errors
    /// When it cannot be reached.
    pub(super) async fn connect(pool: &Pool, context: &Context) -> Result<PoolMachine, Error> {
        let Context { target, fleet, events, .. } = context;
        let here = fleet.here();
        let (fleet, node) = match pool.machine() {
            Some(node) => (fleet, node),
            None => (&here, Node { name: format!("pool on {}", host_name()), master: true, ..Node::default() }),
        };
        let mut members = fleet.connect(&only(&target.inventory, vec![node])?, RunAs::Login, events).await?;
        match members.pop() {
            Some(member) => Ok(PoolMachine(member.map_err(Error::Pool)?)),
            None => Err(Error::Local("the pool has no machine".into())),
        }
    }

    /// Returns its name in messages.
    pub(super) fn name(&self) -> &str {
        &self.0.node.name
    }

    /// Returns the pool's directory there.
    pub(super) fn directory<'a>(&'a self, pool: &'a Pool) -> PoolDirectory<'a> {
        PoolDirectory { transport: &self.0.transport, path: &pool.path }
    }
}

/// Returns what selects these nodes, with the settings of the inventory's cluster.
fn only(inventory: &Inventory, nodes: Vec<Node>) -> Result<Target, Error> {
    Target::new(Inventory { nodes, groups: Default::default(), ..inventory.clone() }, None)
}

/// Returns the pool of the inventory.
///
/// # Errors
/// If it has none.
pub(super) fn pool_of(context: &Context) -> Result<&Pool, Error> {
    let none = || Error::usage("the inventory has no [pool]", "docs/pool.md has the steps to set one up");
    context.target.inventory.pool.as_ref().ok_or_else(none)
}

/// Reads the members, and reports the lines that grant nothing.
///
/// # Errors
/// If the file cannot be read, or no line of it grants anything.
pub(super) fn read_signers(pool: &Pool, events: &Events) -> Result<AllowedSigners, Error> {
    let file = &pool.allowed_signers;
    let shown = file.display();
    let hint =
        "one line for each member: ana@example.com namespaces=\"hvdctl-pool\" ssh-ed25519 AAAA...; see docs/pool.md";
    let read = || {
        let mut bytes = Vec::new();
        File::open(file)?.take(LARGEST_SIGNERS + 1).read_to_end(&mut bytes)?;
        Ok(String::from_utf8_lossy(&bytes).into_owned())
    };
    let text: std::io::Result<String> = read();
    let text = text.map_err(|error| Error::usage(format!("cannot read the members in {shown}: {error}"), hint))?;
    if text.len() as u64 > LARGEST_SIGNERS {
        return Err(Error::usage(format!("{shown} is larger than 1 MiB"), hint));
    }
    let signers = AllowedSigners::parse(&text);
    for (line, why) in &signers.faults {
        events.warn(format!("{shown}:{line}: this line adds no member: {why}"));
    }
    if signers.is_empty() {
        return Err(Error::usage(format!("{shown} names no member"), hint));
    }
    Ok(signers)
}

/// Reads and judges the files of the pool, and reports when there are too many.
async fn read(context: &Context) -> Result<(Vec<PoolFile>, bool), Error> {
    let Context { events, session, .. } = context;
    let pool = pool_of(context)?;
    let signers = read_signers(pool, events)?;
    let reading = async {
        let machine = PoolMachine::connect(pool, context).await?;
        let directory = machine.directory(pool);
        events.step(machine.name(), Step::read("reading the pool"), directory.read()).await.map_err(Error::Pool)
    };
    let Listing { files, unread, is_cut } = session.cancellation.run(reading).await?;
    let verifier = Verifier { signers: &signers, now: now() as u64 };
    let judge = |(name, content): &(String, Vec<u8>)| PoolFile::judge(name, content, verifier);
    let mut files: Vec<PoolFile> = files.iter().map(judge).chain(unread).collect();
    files.sort_by(|one, other| {
        let key = |file: &PoolFile| {
            let node = file.node.as_ref();
            (
                file.state,
                node.map(|node| (node.owner.clone(), node.cluster.clone(), node.node.clone())),
                file.name.clone(),
            )
        };
        key(one).cmp(&key(other))
    });
    if is_cut {
        events.warn(format!("the pool has more than {MOST_FILES} files, of which that many are read"));
    }
    Ok((files, is_cut))
}

/// `pool`.
pub async fn list(context: &Context) -> Result<Outcome, Error> {
    let (files, is_cut) = read(context).await?;
    Ok(listed(files, is_cut, now() as u64))
}

pub(super) fn listed(files: Vec<PoolFile>, is_cut: bool, now: u64) -> Outcome {
    let text = match files.is_empty() {
        true => "the pool has no nodes; hvdctl grade --publish adds yours\n".to_owned(),
        false => {
            let rows = files.iter().map(|file| row(file, now));
            table(&["OWNER", "NODE", "GRADE", "SLOTS", "PUBLISHED", "KIND", "STATE"], rows)
        }
    };
    let entry = |PoolFile { name, state, reason, node }: PoolFile| {
        let reason = Some(reason).filter(|reason| !reason.is_empty());
        PoolEntry { file: name, state, reason, node }
    };
    Outcome::ok(text, PoolDocument { files: files.into_iter().map(entry).collect(), is_cut })
}

fn row(file: &PoolFile, now: u64) -> Vec<String> {
    let state = match file.state {
        FileState::Valid => "valid".to_owned(),
        state => format!("{state}: {}", file.reason),
    };
    let Some(node) = &file.node else {
        return vec!["–".into(), file.name.clone(), "–".into(), "–".into(), "–".into(), "–".into(), state];
    };
    let PoolNode { owner, node, grade, slots, published, kind, .. } = node;
    let published = format!("{} ago", age(now.saturating_sub(*published)));
    vec![owner.clone(), node.clone(), grade.to_string(), slots.to_string(), published, kind.to_string(), state]
}

/// A candidate that can be reached, with what is known of it.
#[derive(Clone)]
pub(super) struct MeasuredNode<'a> {
    pub(super) node: &'a PoolNode,
    pub(super) measured_from: MeasuringPoint,
    /// Whether this operator can log in.
    pub(super) has_login: bool,
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

/// A candidate, and how this machine reaches it.
struct Contact<'a> {
    owner: &'a str,
    endpoint: Endpoint,
    login: Result<Member, NodeError>,
    /// The round trip from this machine, where the login failed; `None` also if the node does not answer.
    from_here: Option<Duration>,
}

/// What was measured of a candidate.
struct NodeMeasurement {
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
struct Survey<'a> {
    reached: Vec<MeasuredNode<'a>>,
    /// Machines that were published later under another host, with the owner who did that.
    repeated: Vec<(&'a PoolNode, &'a str)>,
    unreached: Vec<&'a PoolNode>,
    /// Those between the reached ones, by their places.
    round_trips: RoundTrips,
}

/// Measures the round trips: on each node that lets this operator log in, to all others; to those that do not, on this
/// machine. Returns a measurement of each node.
async fn measure<'a>(
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
fn merge<'a>(nodes: &[&'a PoolNode], measurements: Vec<NodeMeasurement>) -> Survey<'a> {
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
    use crate::pool::format::tests::node;

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
