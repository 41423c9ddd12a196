//! Delivers an image to locked nodes: by relays where these pay, else from this process.

use super::context::Context;
use super::output::{ImagePushNode, NodeEntry};
use crate::cluster::nodes::{Member, NodeResults, for_each_node};
use crate::error::Error;
use crate::image::push::{Push, Receiver};
use crate::image::relay::formation::{Chain, Plan};
use crate::image::source::Source;
use crate::runtime::{Image, Runtime};
use crate::text::units::human;
use futures_util::FutureExt;

/// An engine that has the image.
pub(super) struct Origin {
    pub engine: Runtime,
    pub image: Image,
    pub name: String,
    /// The node; `None` for this machine.
    pub member: Option<Member>,
}

/// The delivery of an image.
pub(super) struct Delivery<'a> {
    pub image: &'a str,
    /// The engine that has it; `None` for a file.
    pub origin: Option<&'a Origin>,
    pub context: &'a Context,
}

/// From where nodes receive the image.
struct Ways<'a> {
    chain: Option<Chain<'a>>,
    /// What the relays pass on.
    relayed: &'a Push<'a>,
    /// What nodes without a relay get.
    direct: &'a Push<'a>,
}

impl Delivery<'_> {
    /// Gives the image to those that lack it. `file`: the image, if it comes from one. When the command is cancelled, the engines stop
    /// pulling, and what they have is removed.
    ///
    /// # Errors
    /// If there is no image to give, or the command is cancelled.
    pub async fn run(
        &self,
        file: Option<Source>,
        receivers: NodeResults<Receiver>,
    ) -> Result<NodeResults<NodeEntry<ImagePushNode>>, Error> {
        let Context { target, session, .. } = self.context;
        let cluster = &target.cluster().name;
        let all = receivers.ok.clone();
        let results = session.cancellation.run_until_signal(self.deliver(file, receivers).boxed()).await;
        if results.is_err() {
            for_each_node(all, async |receiver: Receiver| receiver.clean(cluster).await).await;
        }
        let results = results?;
        session.progress.failed(&results.failed);
        Ok(results)
    }

    async fn deliver(
        &self,
        file: Option<Source>,
        receivers: NodeResults<Receiver>,
    ) -> Result<NodeResults<NodeEntry<ImagePushNode>>, Error> {
        let Delivery { image, origin, context: Context { target, events, .. } } = self;
        let of_origin = || origin.and_then(|origin| origin.image.content.clone());
        let content = file.as_ref().map(|source| source.image.content.clone()).or_else(of_origin);
        let lacks = |receiver: &Receiver| content.as_deref().is_none_or(|content| receiver.lacks(content));
        let order: Vec<String> = receivers.ok.iter().map(|receiver| receiver.name().to_owned()).collect();
        let (lacking, having): (Vec<Receiver>, Vec<Receiver>) = receivers.ok.into_iter().partition(lacks);
        let mut results = self.leave(having).await;
        results.failed.extend(receivers.failed);
        if lacking.is_empty() {
            return Ok(results);
        }
        let here = match (file, origin) {
            (None, Some(Origin { member: None, .. })) => Some(self.spool().boxed().await?),
            (file, _) => file,
        };
        let plan = Plan {
            inventory: &target.inventory,
            image,
            content: content.as_deref().unwrap_or_default(),
            receivers: &lacking,
            origin: origin.and_then(|origin| Some((origin.member.as_ref()?, &origin.image))),
            events,
        };
        let (mut chain, exported) = plan.start(here.as_ref()).boxed().await.unzip();
        let source = match exported.flatten().or(here) {
            Some(source) => source,
            None => self.spool().boxed().await?,
        };
        let relayed = self.begin(&source).await?;
        if let Some(chain) = &mut chain {
            chain.link(&relayed).boxed().await;
        }
        // a node without a relay gets nothing from the node that has the image
        let has_relay = |receiver: &Receiver| chain.as_ref().is_some_and(|chain| chain.of(receiver.name()).is_some());
        let spooled = match source.is_here() || lacking.iter().all(has_relay) {
            true => None,
            false => Some(self.spool().boxed().await?),
        };
        let direct = match &spooled {
            Some(source) => Some(self.begin(source).await?),
            None => None,
        };
        let direct = direct.as_ref().unwrap_or(&relayed);
        let given = self.give(lacking.clone(), Ways { chain, relayed: &relayed, direct }).boxed().await;
        results.ok.extend(given.ok);
        results.failed.extend(given.failed);
        results.ok.sort_by_key(|entry| order.iter().position(|name| *name == entry.node));
        Ok(results)
    }

    /// Gives nodes the image, all at once.
    async fn give(&self, lacking: Vec<Receiver>, ways: Ways<'_>) -> NodeResults<NodeEntry<ImagePushNode>> {
        let Delivery { image, context: Context { target, events, session, .. }, .. } = self;
        let Ways { chain, relayed, direct } = ways;
        let give = async |receiver: Receiver| {
            let relay = chain.as_ref().and_then(|chain| chain.of(receiver.name()));
            let push = if relay.is_some() { relayed } else { direct };
            // the others go on without a node that is lost
            let sent = tokio::select! {
                biased;
                lost = session.cancellation.lost_on(receiver.name()) => Err(lost),
                sent = push.deliver(&receiver, relay).boxed() => sent,
            }?;
            if relay.is_none() {
                receiver.remove_relay(&target.cluster().name).await?;
            }
            session.progress.record(receiver.name(), format!("pushed {image}"));
            session.progress.done(receiver.name());
            events.done(receiver.name(), format!("has {image}"));
            Ok(entry(&receiver, Some(sent)))
        };
        let given = NodeResults { ok: lacking, failed: Vec::new() }.then(events, give).await;
        if let Some(chain) = chain {
            let (own, received) = chain.sums();
            events.note(format!("{} sent by this machine, {} received by relays", human(own), human(received)));
            let done: Vec<&str> = given.ok.iter().map(|entry| entry.node.as_str()).collect();
            chain.end(&done).boxed().await;
        }
        given
    }

    /// Leaves nodes that have the image as they are, except for what a push that was stopped has left there.
    async fn leave(&self, having: Vec<Receiver>) -> NodeResults<NodeEntry<ImagePushNode>> {
        let Context { target, events, session, .. } = self.context;
        let leave = async |receiver: Receiver| {
            receiver.remove_relay(&target.cluster().name).await?;
            session.progress.done(receiver.name());
            Ok(entry(&receiver, receiver.is_renamed.then_some(0)))
        };
        NodeResults { ok: having, failed: Vec::new() }.then(events, leave).await
    }

    async fn begin<'s>(&'s self, source: &'s Source) -> Result<Push<'s>, Error> {
        let Context { target, events, .. } = self.context;
        let push = Push::begin(self.image, source, &target.cluster().name, events).await;
        push.map_err(|error| Error::Local(format!("cannot serve the image on 127.0.0.1: {error}")))
    }

    /// Takes the image to this machine.
    async fn spool(&self) -> Result<Source, Error> {
        let events = &self.context.events;
        match self.origin {
            Some(Origin { engine, image, name, .. }) => {
                Source::from_engine(engine, self.image, image, name, events).await
            }
            None => Err(Error::Local(format!("there is no image {} to deliver", self.image))),
        }
    }
}

/// `sent`: how many bytes, if anything was done.
fn entry(receiver: &Receiver, sent: Option<u64>) -> NodeEntry<ImagePushNode> {
    NodeEntry::new(receiver.name(), true, ImagePushNode { changed: sent.is_some(), sent: sent.unwrap_or(0) })
}
