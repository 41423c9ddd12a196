//! Delivers a directory of data to locked nodes: by relays where these pay, else from this process.

use super::context::Context;
use super::output::NodeEntry;
use crate::cluster::each_node::{NodeResults, each_node, for_each_node};
use crate::cluster::member::Member;
use crate::cluster::observation::ObservedNode;
use crate::error::{Error, ErrorKind, NodeError};
use crate::event::Step;
use crate::event::transfer::TransferProgress;
use crate::image::manifest::Description;
use crate::image::names::sha256;
use crate::image::push::expose;
use crate::image::registry::{Contents, Generated, Registry, Stored};
use crate::image::relay::deployment::{self, Deployment, NodeAccess, Relay, RelayContents};
use crate::image::relay::order::{Offer, pays};
use crate::image::relay::package;
use crate::image::relay::relays::Relays;
use crate::sync::data::{ChangeSet, Data, DataState, NodeData, PushSummary, RELAY_PIPE};
use crate::sync::groups::{Group, groups};
use crate::sync::manifest::Selection;
use crate::sync::parcel::Parcel;
use crate::text::units::human;
use crate::transport::node::Process;
use futures_util::FutureExt;
use futures_util::future::join_all;
use hyper::body::Bytes;
use schemars::JsonSchema;
use serde::Serialize;
use std::collections::HashMap;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::{Instant, interval, timeout};

/// What `data push` did on a node.
#[derive(Debug, Serialize, JsonSchema)]
pub struct DataPushNode {
    /// Whether the node lacked something.
    pub changed: bool,
    /// How many files and links were sent to the node.
    pub files: usize,
    /// How many bytes of them.
    pub sent: u64,
    /// How many bytes this machine sent to the node for that. Less than `sent` if other nodes passed them on; more, by names and headers,
    /// if not.
    pub from_operator: u64,
    /// How many files an interrupted push had sent before.
    pub resumed: usize,
    /// How many files and directories were removed.
    pub removed: usize,
}

/// The longest time that a push that was given up takes to remove its relay from a node.
const REMOVE_LIMIT: Duration = Duration::from_secs(10);

/// The time between two reports of how far a relay is.
const PERIOD: Duration = Duration::from_millis(500);

/// The delivery of data.
pub(super) struct DataDelivery<'a> {
    /// Their name on the nodes.
    pub name: &'a str,
    pub data: &'a Data,
    pub context: &'a Context,
}

/// A node, what it has of the data, and what it is sent.
pub(super) struct Recipient {
    pub observed: ObservedNode,
    pub state: DataState,
    pub change: ChangeSet,
}

impl Recipient {
    pub fn name(&self) -> &str {
        self.observed.name()
    }
}

/// The relays of nodes that are sent the same, and what they receive from this process.
struct DataRelays<'a> {
    relays: Relays<'a>,
    /// The name of the stream, the digest of its head.
    stream: String,
    /// The bytes of its head.
    head: u64,
    /// All of its bytes.
    length: u64,
    source: Arc<Generated>,
    _registry: Registry,
}

impl DataDelivery<'_> {
    fn on<'a>(&'a self, member: &'a Member) -> NodeData<'a> {
        NodeData { cluster: self.context.target.cluster(), transport: &member.transport, name: self.name }
    }

    /// Gives the data to the nodes that lack something of them. Where a push fails, or the command is cancelled, nothing is put into place
    /// later.
    ///
    /// # Errors
    /// If the command is cancelled.
    pub async fn run(&self, compared: NodeResults<Recipient>) -> Result<NodeResults<NodeEntry<DataPushNode>>, Error> {
        let session = &self.context.session;
        let is_lacking = |recipient: &&Recipient| !recipient.state.is_same;
        let members = compared.ok.iter().filter(is_lacking).map(|recipient| recipient.observed.member.clone());
        let mut given_up: Vec<Member> = members.collect();
        let results = session.cancellation.run_until_signal(self.deliver(compared).boxed()).await;
        if let Ok(results) = &results {
            given_up.retain(|member| results.failed.iter().any(|error| error.node == member.node.name));
        }
        for_each_node(given_up, async |member| self.stop(&member).await).await;
        let results = results?;
        session.progress.failed(&results.failed);
        Ok(results)
    }

    /// Ends what is left of a push on a node.
    async fn stop(&self, member: &Member) {
        let Context { target, events, session, .. } = self.context;
        let node = &member.node.name;
        // where the lock was lost, another command may push already
        let is_lost = session.cancellation.lost_on(node).now_or_never().is_some();
        if is_lost || !member.transport.is_connected().await {
            return;
        }
        let _step = events.begin(node, Step::write("stopping the push"));
        let remove = async { deployment::remove(&member.runtime().await?, &target.cluster().name).await };
        let _ = timeout(REMOVE_LIMIT, remove).await;
        if let Err(error) = self.on(member).stop().await {
            events.note(error);
        }
    }

    async fn deliver(&self, compared: NodeResults<Recipient>) -> Result<NodeResults<NodeEntry<DataPushNode>>, Error> {
        let Context { target, session, .. } = self.context;
        let cluster = &target.cluster().name;
        let order: Vec<String> = compared.ok.iter().map(|recipient| recipient.name().to_owned()).collect();
        let (having, lacking): (Vec<_>, Vec<_>) =
            compared.ok.into_iter().partition(|recipient| recipient.state.is_same);
        // what a push that was killed has left
        let left =
            having.iter().filter(|recipient| deployment::is_left(&recipient.observed.runtime.containers, cluster));
        let left = left.map(|recipient| recipient.observed.runtime.engine.clone()).collect();
        for_each_node(left, async |engine| timeout(REMOVE_LIMIT, deployment::remove(&engine, cluster)).await).await;
        let unchanged = |recipient: Recipient| {
            session.progress.done(recipient.name());
            entry(recipient.name(), None, 0)
        };
        let mut results = NodeResults { ok: having.into_iter().map(unchanged).collect(), failed: compared.failed };
        let missing: Vec<Selection> = lacking.iter().map(|recipient| recipient.change.sent().clone()).collect();
        let mut lacking: Vec<Option<Recipient>> = lacking.into_iter().map(Some).collect();
        let mut give = Vec::new();
        for group in groups(&self.data.files.manifest, &missing) {
            let recipients = group.nodes.iter().filter_map(|at| lacking[*at].take()).collect();
            give.push(self.give_group(recipients, group).boxed());
        }
        for given in join_all(give).await {
            results.ok.extend(given.ok);
            results.failed.extend(given.failed);
        }
        results.ok.sort_by_key(|entry| order.iter().position(|name| *name == entry.node));
        Ok(results)
    }

    /// Gives nodes the data, all at once.
    async fn give_group(&self, recipients: Vec<Recipient>, group: Group) -> NodeResults<NodeEntry<DataPushNode>> {
        let Context { events, session, .. } = self.context;
        let relays = self.start_relays(&recipients, &group).boxed().await;
        let give = async |recipient: Recipient| {
            let node = recipient.name();
            session.progress.record(node, format!("began to push {}", self.name));
            // the others go on without a node that is lost
            let given = tokio::select! {
                biased;
                lost = session.cancellation.lost_on(node) => Err(lost),
                given = self.give_one(&recipient, &group.sent, relays.as_ref()).boxed() => given,
            }?;
            session.progress.done(node);
            events.done(node, format!("has {}", self.name));
            Ok(given)
        };
        let given = each_node(recipients, events, give).await;
        if let Some(mut relays) = relays {
            let (own, received) = relays.relays.sums().await;
            events.note(format!("relays received {}, of which this machine sent {}", human(received), human(own)));
            relays.relays.keep(|_| false).await;
        }
        given
    }

    /// Starts relays if they save bytes, and links them.
    async fn start_relays(&self, recipients: &[Recipient], group: &Group) -> Option<DataRelays<'_>> {
        let Context { target, events, .. } = self.context;
        let unusable = |cause: String| events.note(format!("each node receives the data from this machine: {cause}"));
        let receivers = recipients.len() as u64;
        // elsewhere no engine runs this program
        package::platform()?;
        let relay = package::size().map_err(|error| unusable(error.to_string())).ok()?;
        let missing = group.saved.checked_div(receivers.saturating_sub(1))?;
        if !pays(Offer { receivers, missing, on_node: None, relay }) {
            return None;
        }
        let parcel = Parcel::new(&self.data.files, &group.sent);
        let (stream, head, length) = (sha256(parcel.head()), parcel.head().len() as u64, parcel.length());
        let deployment = Deployment::new(&target.inventory, stream.clone(), events).await;
        let deployment = deployment.map_err(|error| unusable(format!("there are no relays: {error}"))).ok()?;
        let start = async |recipient: &Recipient| {
            let (member, state) = (&recipient.observed.member, &recipient.state);
            let change = recipient.change.in_group(&self.data.files, &group.sent);
            let directory = self.on(member).prepare_relay(self.data, state, &change, length).await?;
            deployment.start(member, NodeAccess::Spool(directory)).await
        };
        // the engines of the other nodes get the relay from the first one
        let (first, others) = recipients.split_at(1);
        let mut started = for_each_node(first.iter().collect(), start).await;
        started.extend(for_each_node(others.iter().collect(), start).await);
        let mut relays = Relays::new(deployment, started, "the data", events);
        let source = Generated::new(length, move |offset| parcel.stream(offset));
        let blobs = HashMap::from([(stream.clone(), Stored::Generated(Arc::clone(&source)))]);
        let registry = Registry::start(Contents { manifest: Bytes::new(), blobs }, &target.cluster().name).await;
        if let Ok(registry) = &registry {
            let admit = async |node: String| {
                let failed = |cause: String| NodeError::failed(&node, "forward a port for the data", cause);
                let guest = registry.admit().map_err(|error| failed(error.to_string()))?;
                let recipient = recipients.iter().find(|recipient| recipient.name() == node);
                let recipient = recipient.ok_or_else(|| failed("the node receives nothing".into()))?;
                Ok((guest, expose(&recipient.observed.member, registry.port(), "the data").await?))
            };
            relays.connect(admit).await;
            let streams = vec![Description { digest: stream.clone(), length }];
            relays.link(None, Ok(RelayContents::of_streams(streams))).await;
        }
        match registry {
            Ok(registry) if relays.count() > 1 => {
                Some(DataRelays { relays, stream, head, length, source, _registry: registry })
            }
            other => {
                let cause = other.err().map_or_else(|| "too few relays run".to_owned(), |error| error.to_string());
                unusable(cause);
                relays.keep(|_| false).await;
                None
            }
        }
    }

    /// Gives one node the data, by its relay if it has one, and otherwise, or if that fails, from this process. `sent`: what all nodes of
    /// the group are sent by relays.
    async fn give_one(
        &self,
        recipient: &Recipient,
        sent: &Selection,
        relays: Option<&DataRelays<'_>>,
    ) -> Result<NodeEntry<DataPushNode>, NodeError> {
        let Context { target, events, .. } = self.context;
        let Recipient { observed: ObservedNode { member, runtime, .. }, change, .. } = recipient;
        let (node, cluster) = (recipient.name(), &target.cluster().name);
        let relay = relays.and_then(|relays| Some((relays, relays.relays.of(node)?)));
        if let Some((relays, relay)) = relay {
            let of_group = change.in_group(&self.data.files, sent);
            let error = match self.give_by(relays, relay, member, &of_group).boxed().await {
                Ok(()) => return Ok(entry(node, Some(of_group.summary), relay.from_operator())),
                Err(error) => error,
            };
            if let Some(cause) = relays.source.failed().now_or_never() {
                return Err(self.on(member).broken(&cause));
            }
            if !member.transport.is_connected().await {
                return Err(error);
            }
            // with it ends what the node's script still receives, and nothing more is sent to a node whose disk is full
            let _ = timeout(REMOVE_LIMIT, deployment::remove(&runtime.engine, cluster)).await;
            if error.kind == ErrorKind::NoSpace {
                return Err(error);
            }
            let error = NodeError { hints: Vec::new(), ..error };
            events.note(format!("{error}\n  {node} receives the data from this machine"));
            let comparing = self.on(member).compare(self.data);
            let (state, rest) = events.step(node, Step::read("comparing the data"), comparing).await?;
            let sent = if state.is_same { 0 } else { self.on(member).push(self.data, &rest, events).await? };
            return Ok(entry(node, Some(rest.summary), relay.from_operator() + sent));
        }
        if deployment::is_left(&runtime.containers, cluster) {
            deployment::remove(&runtime.engine, cluster).await?;
        }
        let from_operator = self.on(member).push(self.data, change, events).await?;
        Ok(entry(node, Some(change.summary.clone()), from_operator))
    }

    /// Lets a node take the data from its relay.
    async fn give_by(
        &self,
        relays: &DataRelays<'_>,
        relay: &Relay,
        member: &Member,
        change: &ChangeSet,
    ) -> Result<(), NodeError> {
        let (events, on_node) = (&self.context.events, self.on(member));
        let _step = on_node.step(change, events);
        let DataRelays { stream, head, length, source, .. } = relays;
        let pipe = format!("{}/{RELAY_PIPE}", on_node.relay_directory());
        let process: Process = on_node.start(self.data, change, &pipe).await?;
        let mut ended = process.finish(&[]).boxed();
        let mut feeding = pin!(relay.feed(stream, *head, RELAY_PIPE));
        tokio::select! {
            fed = &mut feeding => fed.map_err(|cause| on_node.failed(cause))?,
            early = &mut ended => {
                // the relay's answer would be taken for that to another request
                let _ = feeding.await;
                return on_node.check(self.data, early);
            }
        }
        let mut progress = TransferProgress::new(&member.node.name, events);
        let (mut ticks, limit) = (interval(PERIOD), on_node.end_limit(self.data));
        let (mut received, mut since) = (0, Instant::now());
        loop {
            tokio::select! {
                biased;
                cause = source.failed() => return Err(on_node.broken(&cause)),
                ended = &mut ended => return on_node.check(self.data, ended),
                cause = relay.useless() => return Err(on_node.failed(cause)),
                _ = ticks.tick() => {}
            }
            if relay.received() > received {
                (received, since) = (relay.received(), Instant::now());
            }
            progress.report("pushing", received, *length);
            if since.elapsed() > limit {
                let cause = format!("no progress for {} s", limit.as_secs());
                return Err(on_node.failed(cause).kind(ErrorKind::TimedOut));
            }
        }
    }
}

/// `pushed`: what was done, if anything; `from_operator`: the bytes that this process sent.
fn entry(node: &str, pushed: Option<PushSummary>, from_operator: u64) -> NodeEntry<DataPushNode> {
    let changed = pushed.is_some();
    let PushSummary { sent: files, bytes: sent, resumed, removed } = pushed.unwrap_or_default();
    NodeEntry::new(node, true, DataPushNode { changed, files, sent, from_operator, resumed, removed })
}
