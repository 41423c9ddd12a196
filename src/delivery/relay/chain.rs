//! Forms the relays of a push to a chain. Nodes without a relay receive from this process, and a note says why.

use super::deployment::{Deployment, NodeAccess, Relay, RelayContents};
use super::order::{Offer, pays};
use super::package;
use super::relays::Relays;
use crate::cluster::each_node::for_each_node;
use crate::cluster::member::Member;
use crate::delivery::push::{Push, Receiver, free_space};
use crate::delivery::source::Source;
use crate::error::NodeError;
use crate::event::Events;
use crate::inventory::Inventory;
use crate::runtime::Image;
use crate::text::units::human;
use std::time::Duration;
use tokio::time::timeout;

/// The longest time that a cancelled push takes to remove the relay that had the image.
const REMOVE_LIMIT: Duration = Duration::from_secs(10);

/// A push that may use relays.
#[derive(Clone, Copy)]
pub struct ChainPlan<'a> {
    /// The cluster.
    pub inventory: &'a Inventory,
    /// The image's name.
    pub image: &'a str,
    /// Its content.
    pub content: &'a str,
    /// The nodes that lack it.
    pub receivers: &'a [Receiver],
    /// The node that has it, and the image there.
    pub origin: Option<(&'a Member, &'a Image)>,
    /// The events to which progress is reported.
    pub events: &'a Events,
}

/// The relays of a push.
pub struct Chain<'a> {
    plan: ChainPlan<'a>,
    /// The relays of the receivers.
    relays: Relays<'a>,
    /// The relay of the node that has the image.
    origin: Option<Relay>,
}

impl<'a> ChainPlan<'a> {
    /// Returns how many bytes a receiver lacks, about.
    fn missing(&self, source: Option<&Source>, receiver: &Receiver) -> u64 {
        match (source, self.origin) {
            (Some(source), _) => receiver.missing_of(source),
            (None, Some((_, image))) => receiver.missing_bytes(image),
            (None, None) => 0,
        }
    }

    /// Starts relays if they save bytes. If a node has the image, its relay reads it there; else `source` is the image
    /// on this machine.
    pub async fn start(self, source: Option<&Source>) -> Option<(Chain<'a>, Option<Source>)> {
        let ChainPlan { receivers, events, .. } = self;
        let unusable = |cause: String| events.note(format!("the image goes through this machine: {cause}"));
        // elsewhere no engine runs this program
        package::platform()?;
        let relay = package::size().map_err(|error| unusable(error.to_string())).ok()?;
        let missing = |receiver: &Receiver| self.missing(source, receiver);
        let most = receivers.iter().map(missing).max()?;
        let on_node = self.origin.map(|(_, image)| image.size);
        if !pays(Offer { receivers: receivers.len() as u64, missing: most, on_node, relay }) {
            return None;
        }
        let deployment = Deployment::new(self.inventory, self.content.to_owned(), events).await;
        let deployment = deployment.map_err(|error| unusable(format!("there are no relays: {error}"))).ok()?;
        // the engines of the other nodes get the relay from the first one
        let origin = self.start_origin(&deployment).await;
        let (first, others) = receivers.split_at(usize::from(origin.is_none()));
        let start = async |receiver: Receiver| self.start_at(&deployment, &receiver, missing(&receiver)).await;
        let mut started = for_each_node(first.to_vec(), start).await;
        let others = async { for_each_node(others.to_vec(), start).await };
        let (others, origin) = tokio::join!(others, self.export(&deployment, origin));
        started.extend(others);
        let (origin, exported) = origin.unzip();
        let relays = Relays::new(deployment, started, "the image", events);
        Some((Chain { plan: self, relays, origin }, exported))
    }

    async fn start_at(
        &self,
        deployment: &Deployment<'a>,
        receiver: &Receiver,
        missing: u64,
    ) -> Result<Relay, NodeError> {
        // as they are received by the relay, by the engine, and unpacked
        let needed = missing.saturating_mul(3);
        if check_space(&receiver.member, needed).await.is_err() {
            // an earlier relay may take it
            receiver.remove_relay(&self.inventory.cluster.name).await?;
            check_space(&receiver.member, needed).await?;
        }
        deployment.start(&receiver.member, NodeAccess::None).await
    }

    async fn start_origin(&self, deployment: &Deployment<'a>) -> Option<Relay> {
        let (member, image) = self.origin?;
        let started = async {
            // an engine writes the archive to a file of its own first
            check_space(member, image.size.saturating_mul(2)).await?;
            deployment.start(member, NodeAccess::Engine).await
        };
        started.await.map_err(|error| self.without_origin(&error)).ok()
    }

    async fn export(&self, deployment: &Deployment<'a>, origin: Option<Relay>) -> Option<(Relay, Source)> {
        let (relay, (_, image)) = origin.zip(self.origin)?;
        match deployment.export(&relay, image, self.image).await {
            Ok(source) => Some((relay, source)),
            Err(error) => {
                self.without_origin(&error);
                let _ = deployment.end(relay).await;
                None
            }
        }
    }

    fn without_origin(&self, error: &NodeError) {
        self.events.note(format!("{error}\n  the image goes through this machine"));
    }
}

async fn check_space(member: &Member, needed: u64) -> Result<(), NodeError> {
    let (free, directory) = free_space(member).await?;
    if free >= needed {
        return Ok(());
    }
    let cause = format!("{directory} has only {} free, but the image needs {}", human(free), human(needed));
    Err(NodeError::failed(&member.node.name, "start a relay", cause))
}

impl Chain<'_> {
    /// Tells the relays from where they receive. Those that have no source end.
    pub async fn link(&mut self, push: &Push<'_>) {
        let source = push.source();
        if source.is_here() {
            let receivers = self.plan.receivers;
            let admit = async |node: String| match receivers.iter().find(|receiver| receiver.name() == node) {
                Some(receiver) => push.admit(receiver).await,
                None => Err(NodeError::failed(&node, "start a relay", "the node receives nothing")),
            };
            self.relays.connect(admit).await;
        }
        self.relays.link(self.origin.as_ref(), RelayContents::of_image(source)).await;
    }

    /// Returns the relay of a node.
    pub fn of(&self, node: &str) -> Option<&Relay> {
        self.relays.of(node)
    }

    /// Ends the relays after a push, and notes what they saved. `kept` as of [`Chain::end`].
    pub async fn finish(self, kept: &[&str]) {
        self.relays.report().await;
        self.end(kept).await;
    }

    /// Ends the relays, and removes them, except for those of these nodes: they keep what they have received for the
    /// next push.
    pub async fn end(mut self, kept: &[&str]) {
        if let Some(origin) = self.origin.take() {
            let _ = timeout(REMOVE_LIMIT, self.relays.end_other(origin)).await;
        }
        self.relays.keep(|relay| kept.contains(&relay.node())).await;
    }
}
