//! `hvdctl pool` and `hvdctl pool pick`.

use super::Outcome;
use super::context::Context;
use super::hosts;
use crate::checks::pool::{Candidate, Distance, Group, RoundTrips, pick as pick_group};
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

/// How many candidates that were not picked are shown without `-v`.
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
    /// The candidates that were not picked, and why.
    pub left_out: Vec<LeftOut>,
}

/// A node that was picked.
#[derive(Debug, Serialize, JsonSchema)]
pub struct PickedNode {
    /// Its name in the inventory that is printed.
    pub name: String,
    /// Where its round trips were measured.
    pub measured: Measured,
    /// What its owner has signed.
    pub node: PoolNode,
}

/// Where round trips of a node were measured.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Measured {
    /// On the node itself.
    Node,
    /// On this machine: the login failed, or the node could not measure.
    Here,
}

/// A node that was not picked.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, JsonSchema)]
pub struct LeftOut {
    /// Its owner.
    pub owner: String,
    /// The owner's name for it.
    pub node: String,
    /// Why.
    pub reason: String,
}

impl LeftOut {
    fn new(node: &PoolNode, reason: impl Into<String>) -> LeftOut {
        LeftOut { owner: node.owner.clone(), node: node.node.clone(), reason: reason.into() }
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
            table(&["OWNER", "NODE", "GRADE", "SLOTS", "SEEN", "KIND", "STATE"], rows)
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
    let seen = format!("{} ago", age(now.saturating_sub(*published)));
    vec![owner.clone(), node.clone(), grade.to_string(), slots.to_string(), seen, kind.to_string(), state]
}

/// A candidate with what is known of it.
pub(super) struct Measurement<'a> {
    pub(super) node: &'a PoolNode,
    /// How it was measured; `None` if it cannot be reached at all.
    pub(super) measured: Option<Measured>,
    /// Whether this operator can log in.
    pub(super) has_login: bool,
    /// What all logins to one machine have in common, if it answered.
    pub(super) machine: Option<String>,
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
    let (nodes, twice) = distinct(&files);
    let mut left_out: Vec<LeftOut> = twice.into_iter().map(|(node, by)| published_later(node, by)).collect();
    let mut usable = Vec::new();
    for node in nodes {
        match candidate(node, true).obstacle() {
            Some(why) => left_out.push(LeftOut::new(node, why)),
            None => usable.push(node),
        }
    }
    let (measured, round_trips) = session.cancellation.run(measure(&usable, options.user.as_deref(), context)).await?;
    let repeated = repeated(&measured);
    for (number, by) in &repeated {
        left_out.push(published_later(usable[*number], &usable[*by].owner));
    }
    let is_reached = |number: &usize| measured[*number].measured.is_some() && !repeated.contains_key(number);
    let reached: Vec<usize> = (0..usable.len()).filter(is_reached).collect();
    for Measurement { node, .. } in measured.iter().filter(|measured| measured.measured.is_none()) {
        left_out.push(LeftOut::new(node, "it cannot be reached"));
    }
    let candidates: Vec<Candidate> =
        reached.iter().map(|number| candidate(usable[*number], measured[*number].has_login)).collect();
    let round_trips = round_trips.only(&reached);
    let group = pick_group(&candidates, &round_trips, options.np).map_err(|shortage| {
        let listed: String = left_out
            .iter()
            .map(|LeftOut { owner, node, reason }| format!("\n    {node} of {owner}: {reason}"))
            .collect();
        let message = format!("no group of nodes has {}; {shortage}{listed}", count(options.np as usize, "slot"));
        Error::check(
            message,
            "hvdctl pool lists the nodes; use fewer ranks, or ask the owners of others to publish theirs",
        )
    })?;
    let picked: Vec<&Measurement<'_>> = group.nodes.iter().map(|number| &measured[reached[*number]]).collect();
    let rest = (0..reached.len()).filter(|number| !group.nodes.contains(number)).map(|number| {
        let reason = reason(number, &candidates, &round_trips, &group);
        LeftOut::new(usable[reached[number]], reason)
    });
    left_out.extend(rest);
    note_left_out(&left_out, context);
    let mut cluster = context.target.cluster().clone();
    // the inventory that is printed may lie in another directory
    cluster.ssh_config = cluster.ssh_config.map(|file| std::path::absolute(&file).unwrap_or(file));
    Ok(outcome(options, &cluster, &picked, (group, left_out)))
}

fn published_later(node: &PoolNode, by: &str) -> LeftOut {
    LeftOut::new(node, format!("{by} has published the same machine later"))
}

/// Returns the numbers of the nodes that are a machine under another host, each with that of the one that was published last.
fn repeated(measured: &[Measurement<'_>]) -> BTreeMap<usize, usize> {
    let mut newest: BTreeMap<&str, usize> = BTreeMap::new();
    let known = || measured.iter().enumerate().filter_map(|(number, of)| Some((number, of.machine.as_deref()?)));
    for (number, machine) in known() {
        let first = newest.entry(machine).or_insert(number);
        if measured[number].node.published > measured[*first].node.published {
            *first = number;
        }
    }
    known().map(|(number, machine)| (number, newest[machine])).filter(|(number, kept)| number != kept).collect()
}

/// Reports the candidates that were not picked; without `-v` only the first.
fn note_left_out(left_out: &[LeftOut], context: &Context) {
    let most = if context.verbose > 0 { left_out.len() } else { MOST_LISTED };
    for LeftOut { owner, node, reason } in &left_out[..most.min(left_out.len())] {
        context.events.note(format!("left out {node} of {owner}: {reason}"));
    }
    if left_out.len() > most {
        context.events.note(format!("left out {} more: -v shows all", left_out.len() - most));
    }
}

fn candidate(node: &PoolNode, has_login: bool) -> Candidate {
    Candidate { kind: node.kind.clone(), grade: node.grade, score: node.score, slots: node.slots, has_login }
}

/// Returns why a candidate is not in the group.
fn reason(number: usize, candidates: &[Candidate], round_trips: &RoundTrips, group: &Group) -> String {
    let kind = &candidates[number].kind;
    if *kind != candidates[group.nodes[0]].kind {
        return format!("another kind: {kind}");
    }
    let trips = || group.nodes.iter().map(|member| round_trips.between(number, *member));
    if trips().any(|trip| trip.is_none()) {
        return "no connection between it and a node of the group".into();
    }
    match trips().flatten().max().filter(|longest| Distance::of(*longest) > group.distance) {
        Some(longest) => format!("{} from the group", milliseconds(longest)),
        None => format!("not needed (grade {})", candidates[number].grade),
    }
}

fn milliseconds(time: Duration) -> String {
    format!("{:.2} ms", time.as_secs_f64() * 1000.0)
}

/// Measures the round trips: on each node that lets this operator log in, to all others; to those that do not, on this machine.
async fn measure<'a>(
    nodes: &[&'a PoolNode],
    user: Option<&str>,
    context: &Context,
) -> Result<(Vec<Measurement<'a>>, RoundTrips), Error> {
    let Context { target, fleet, events, .. } = context;
    let endpoint = |(number, node): (usize, &&PoolNode)| Endpoint { number, host: node.host.clone(), port: node.port };
    let endpoints: Vec<Endpoint> = nodes.iter().enumerate().map(endpoint).collect();
    let mut round_trips = RoundTrips::default();
    let mut measured: Vec<Measurement<'_>> =
        nodes.iter().map(|node| Measurement { node, measured: None, has_login: false, machine: None }).collect();
    if nodes.is_empty() {
        return Ok((measured, round_trips));
    }
    // the failures are shown as warnings: the command goes on without the node
    let (quiet, _) = Events::channel();
    // a space is in no name of an inventory's node, so none is mixed up
    let node = |(number, node): (usize, &&PoolNode)| Node {
        name: format!("{} of {}", node.node, node.owner),
        host: node.host.clone(),
        user: user.map(str::to_owned),
        ssh_port: Some(node.port),
        master: number == 0,
        ..Node::default()
    };
    let members = fleet
        .connect(&only(&target.inventory, unique(nodes.iter().enumerate().map(node)))?, RunAs::Login, &quiet)
        .await?;
    // a node that cannot be reached from here is no target for the others
    let here = for_each_node(endpoints.iter().zip(&members).collect(), async |(endpoint, member)| match member {
        Ok(_) => None,
        Err(_) => round_trips::from_here(endpoint).await,
    });
    let here: Vec<Option<Duration>> = here.await;
    let is_target = |endpoint: &&Endpoint| members[endpoint.number].is_ok() || here[endpoint.number].is_some();
    let targets: Vec<&Endpoint> = endpoints.iter().filter(is_target).collect();
    let from_nodes = for_each_node(members.iter().enumerate().collect(), async |(number, member)| {
        let member = member.as_ref().map_err(NodeError::clone)?;
        let others: Vec<Endpoint> =
            targets.iter().filter(|target| target.number != number).map(|target| (*target).clone()).collect();
        let measuring = round_trips::from_node(&member.transport, &others);
        events.step(&member.node.name, Step::read("measuring round trips"), measuring).await
    });
    let from_nodes: Vec<Result<_, NodeError>> = from_nodes.await;
    for (number, result) in from_nodes.into_iter().enumerate() {
        measured[number].has_login = members[number].is_ok();
        match result {
            Ok(NodeAnswer { machine, times }) => {
                measured[number].measured = Some(Measured::Node);
                measured[number].machine = machine;
                times.into_iter().for_each(|(to, time)| round_trips.add(number, to, time));
            }
            Err(error) => {
                let time = match here[number] {
                    Some(time) => Some(time),
                    // it lets log in, and measures nothing
                    None if members[number].is_ok() => round_trips::from_here(&endpoints[number]).await,
                    None => None,
                };
                if let Some(time) = time {
                    measured[number].measured = Some(Measured::Here);
                    round_trips.add_from_here(number, time);
                }
                let owner = &nodes[number].owner;
                let error = match members[number].is_err() {
                    // what helps with one's own nodes is nothing for those of others
                    true => {
                        let hint = format!("ask {owner} for a login, and set its user with --user or in ~/.ssh/config");
                        NodeError { hints: vec![hint], ..error }
                    }
                    false if error.message.contains(NO_PYTHON) => {
                        error.hint(format!("ask {owner} to install python3 there"))
                    }
                    false => error,
                };
                events.warn(Message::Failure(error));
            }
        }
    }
    Ok((measured, round_trips))
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

pub(super) fn outcome(
    options: &PoolPick,
    cluster: &Cluster,
    picked: &[&Measurement<'_>],
    (group, left_out): (Group, Vec<LeftOut>),
) -> Outcome {
    let published: Vec<&PoolNode> = picked.iter().map(|measured| measured.node).collect();
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
                let is_meant =
                    |of: &&&Measurement<'_>| of.measured == Some(Measured::Here) && of.has_login == has_login;
                let from_here = picked.iter().filter(is_meant).count();
                if from_here > 0 {
                    about.push(format!("{from_here} of them measured from {}: {why}", host_name()));
                }
            }
            inventory::text(&cluster_name(&operator()), cluster, &nodes, &about)
        }
    };
    let entry = |((node, published), measured): (&(Node, &PoolNode), &&Measurement<'_>)| PickedNode {
        name: node.name.clone(),
        measured: measured.measured.unwrap_or(Measured::Here),
        node: (*published).clone(),
    };
    let document = PoolPickDocument {
        text: text.clone(),
        distance,
        longest_us: u64::try_from(longest.as_micros()).unwrap_or(u64::MAX),
        kind: published[0].kind.clone(),
        slots,
        nodes: nodes.iter().zip(picked).map(entry).collect(),
        left_out,
    };
    Outcome::ok(text, document)
}
