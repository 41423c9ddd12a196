//! Delivers a directory of data to locked nodes: by relays where these pay, else from this process.

use super::manifest::BlobDescription;
use super::push::expose;
use super::registry::{Contents, Generated, Registry, Stored};
use super::relay::deployment;
use super::relay::deployment::{Deployment, NodeAccess, Relay, RelayContents};
use super::relay::order::{Offer, pays};
use super::relay::package;
use super::relay::relays::Relays;
use super::run::{Cargo, run};
use crate::cluster::each_node::{NodeResults, for_each_node};
use crate::cluster::member::Member;
use crate::cluster::observation::ObservedNode;
use crate::cluster::site::Site;
use crate::data::groups::{Group, groups};
use crate::data::parcel::Parcel;
use crate::data::transfer::{ChangeSet, Data, DataState, NodeData, PushSummary, RELAY_PIPE};
use crate::error::{Error, ErrorKind, NodeError};
use crate::event::Step;
use crate::event::transfer::TransferProgress;
use crate::image::names::sha256;
use crate::sync::manifest::Selection;
use crate::transport::node::Process;
use futures_util::FutureExt;
use futures_util::future::LocalBoxFuture;
use hyper::body::Bytes;
use std::collections::HashMap;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::{Instant, interval, timeout};

/// The result of a delivery of data on a node.
#[derive(Debug)]
pub struct DataGiven {
    /// The entries that were sent and removed; `None` if the node had the data.
    pub pushed: Option<PushSummary>,
    /// The bytes that this process sent to it.
    pub from_operator: u64,
}

/// The longest time that a push that was given up takes to remove its relay from a node.
const REMOVE_LIMIT: Duration = Duration::from_secs(10);

/// The time between two reports of how far a relay is.
const PERIOD: Duration = Duration::from_millis(500);

/// The delivery of data.
pub struct DataDelivery<'a> {
    /// Their name on the nodes.
    pub name: &'a str,
    /// The data.
    pub data: &'a Data,
    /// The nodes and connections with which the delivery works.
    pub site: Site<'a>,
}

/// A node, what it has of the data, and what it is sent.
pub struct Recipient {
    /// The node.
    pub observed: ObservedNode,
    /// The state of the data there.
    pub state: DataState,
    /// The changes to be made there.
    pub change: ChangeSet,
}

impl Recipient {
    /// Returns the node's name.
    pub fn name(&self) -> &str {
        self.observed.name()
    }

    /// Returns whether it has other data of this name, which a job may read.
    pub fn is_replaced(&self) -> bool {
        self.state.is_present && !self.state.is_same
    }

    /// Returns where its data of this name came from, if these would replace them and are from another place.
    pub fn replaced_origin(&self) -> Option<&str> {
        self.state.replaces.as_deref().filter(|_| !self.state.is_same)
    }

    /// Returns whether it has the directory that workers mount.
    pub fn has_directory(&self, name: &str) -> bool {
        self.observed.facts.storage.pushed.get(name).is_some_and(|data| data.inode.is_some())
    }
}

/// A sender of one difference to nodes, with relays that pass it on if there are any.
pub(super) struct DataSender<'a> {
    sent: Selection,
    relays: Option<DataRelays<'a>>,
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
        NodeData { cluster: self.site.cluster(), transport: &member.transport, name: self.name }
    }

    /// Compares the data with what nodes have of them.
    ///
    /// # Errors
    /// If the command is cancelled.
    pub async fn compare(&self, nodes: NodeResults<ObservedNode>) -> Result<NodeResults<Recipient>, Error> {
        let Site { events, session, .. } = self.site;
        let compare = async |observed: ObservedNode| {
            let comparing = self.on(&observed.member).compare(self.data);
            let (state, change) = events.step(observed.name(), Step::read("comparing the data"), comparing).await?;
            Ok(Recipient { observed, state, change })
        };
        session.cancellation.run(async { Ok(nodes.then(events, compare).await) }).await
    }

    /// Gives the data to the nodes that lack something of them.
    ///
    /// # Errors
    /// If the command is cancelled.
    pub async fn run(&self, compared: NodeResults<Recipient>) -> Result<NodeResults<(String, DataGiven)>, Error> {
        run(self, compared).boxed_local().await
    }

    /// Ends what is left of a push on a node.
    async fn stop(&self, member: &Member) {
        let Site { events, session, .. } = self.site;
        let node = &member.node.name;
        // where the lock was lost, another command may push already
        let is_lost = session.cancellation.lost_on(node).now_or_never().is_some();
        if is_lost || !member.transport.is_connected().await {
            return;
        }
        let _step = events.begin(node, Step::write("stopping the push"));
        let remove = async { deployment::remove(&member.runtime().await?, &self.site.cluster().name).await };
        let _ = timeout(REMOVE_LIMIT, remove).await;
        if let Err(error) = self.on(member).stop().await {
            events.note(error);
        }
    }

    /// Starts relays if they save bytes, and links them.
    async fn start_relays(&self, recipients: &[Recipient], group: &Group) -> Option<DataRelays<'_>> {
        let Site { target, events, .. } = self.site;
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
        let registry = Registry::start(Contents { manifest: Bytes::new(), blobs }, &self.site.cluster().name).await;
        if let Ok(registry) = &registry {
            let admit = async |node: String| {
                let failed = |cause: String| NodeError::failed(&node, "forward a port for the data", cause);
                let guest = registry.admit();
                let recipient = recipients.iter().find(|recipient| recipient.name() == node);
                let recipient = recipient.ok_or_else(|| failed("the node receives nothing".into()))?;
                Ok((guest, expose(&recipient.observed.member, registry.port(), "the data").await?))
            };
            relays.connect(admit).await;
            let streams = vec![BlobDescription { digest: stream.clone(), length }];
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

    /// Gives one node the data, by its relay if it has one, and otherwise, or if that fails, from this process.
    async fn give_one(
        &self,
        recipient: &Recipient,
        DataSender { sent, relays }: &DataSender<'_>,
    ) -> Result<DataGiven, NodeError> {
        let events = self.site.events;
        let Recipient { observed: ObservedNode { member, runtime, .. }, change, .. } = recipient;
        let (node, cluster) = (recipient.name(), &self.site.cluster().name);
        let relay = relays.as_ref().and_then(|relays| Some((relays, relays.relays.of(node)?)));
        if let Some((relays, relay)) = relay {
            let of_group = change.in_group(&self.data.files, sent);
            let error = match self.give_by(relays, relay, member, &of_group).boxed_local().await {
                Ok(()) => return Ok(given(of_group.summary, relay.from_operator())),
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
            return Ok(given(rest.summary, relay.from_operator() + sent));
        }
        if deployment::is_left(&runtime.containers, cluster) {
            deployment::remove(&runtime.engine, cluster).await?;
        }
        let from_operator = self.on(member).push(self.data, change, events).await?;
        Ok(given(change.summary.clone(), from_operator))
    }

    /// Lets a node take the data from its relay.
    async fn give_by(
        &self,
        relays: &DataRelays<'_>,
        relay: &Relay,
        member: &Member,
        change: &ChangeSet,
    ) -> Result<(), NodeError> {
        let (events, on_node) = (self.site.events, self.on(member));
        let _step = on_node.step(change, events);
        let DataRelays { stream, head, length, source, .. } = relays;
        let pipe = format!("{}/{RELAY_PIPE}", on_node.relay_directory());
        let process: Process = on_node.start(self.data, change, &pipe).await?;
        let mut ended = process.finish(&[]).boxed_local();
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

fn given(pushed: PushSummary, from_operator: u64) -> DataGiven {
    DataGiven { pushed: Some(pushed), from_operator }
}

impl Cargo for DataDelivery<'_> {
    type Receiver = Recipient;
    type Part = Group;
    type Sender<'s>
        = DataSender<'s>
    where
        Self: 's;
    type Given = DataGiven;

    fn site(&self) -> Site<'_> {
        self.site
    }

    fn name(&self) -> &str {
        self.name
    }

    fn member<'r>(&self, recipient: &'r Recipient) -> &'r Member {
        &recipient.observed.member
    }

    fn is_on(&self, recipient: &Recipient) -> bool {
        recipient.state.is_same
    }

    fn leave(&self, recipient: Recipient) -> LocalBoxFuture<'_, Result<DataGiven, NodeError>> {
        async move {
            let (runtime, cluster) = (&recipient.observed.runtime, &self.site.cluster().name);
            if deployment::is_left(&runtime.containers, cluster) {
                let _ = timeout(REMOVE_LIMIT, deployment::remove(&runtime.engine, cluster)).await;
            }
            Ok(DataGiven { pushed: None, from_operator: 0 })
        }
        .boxed_local()
    }

    fn parts(&self, lacking: Vec<Recipient>) -> Vec<(Vec<Recipient>, Group)> {
        let missing: Vec<Selection> = lacking.iter().map(|recipient| recipient.change.sent().clone()).collect();
        let mut lacking: Vec<Option<Recipient>> = lacking.into_iter().map(Some).collect();
        let groups = groups(&self.data.files.manifest, &missing).into_iter();
        groups.map(|group| (group.nodes.iter().filter_map(|at| lacking[*at].take()).collect(), group)).collect()
    }

    fn begin<'s>(
        &'s self,
        recipients: &'s [Recipient],
        group: Group,
    ) -> LocalBoxFuture<'s, Result<DataSender<'s>, Error>> {
        async move {
            let relays = self.start_relays(recipients, &group).await;
            Ok(DataSender { sent: group.sent, relays })
        }
        .boxed_local()
    }

    fn give<'s: 'a, 'a>(
        &'s self,
        recipient: &'a Recipient,
        sender: &'a DataSender<'s>,
    ) -> LocalBoxFuture<'a, Result<DataGiven, NodeError>> {
        self.site.session.progress.record(recipient.name(), format!("began to push {}", self.name));
        self.give_one(recipient, sender).boxed_local()
    }

    fn end<'s>(&'s self, sender: DataSender<'s>, _failed: &'s [NodeError]) -> LocalBoxFuture<'s, ()> {
        async move {
            if let Some(DataRelays { mut relays, .. }) = sender.relays {
                relays.report().await;
                relays.keep(|_| false).await;
            }
        }
        .boxed_local()
    }

    fn give_up<'a>(&'a self, member: &'a Member, _is_whole: bool) -> LocalBoxFuture<'a, ()> {
        self.stop(member).boxed_local()
    }
}
