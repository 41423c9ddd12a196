//! Delivers an image to locked nodes: by relays where these pay, else from this process.

use super::context::Context;
use super::output::NodeEntry;
use crate::cluster::each_node::{NodeResults, for_each_node};
use crate::cluster::member::Member;
use crate::error::{Error, ErrorKind, NodeError};
use crate::image::push::{Push, Receiver, free_space};
use crate::image::relay::chain::{Chain, ChainPlan};
use crate::image::relay::deployment::Relay;
use crate::image::source::Source;
use crate::runtime::{Image, Runtime};
use crate::text::units::human;
use futures_util::FutureExt;
use schemars::JsonSchema;
use serde::Serialize;
use tokio::sync::OnceCell;

/// What `image push` did on a node.
#[derive(Debug, Serialize, JsonSchema)]
pub struct ImagePushNode {
    /// Whether the node did not have the image.
    pub changed: bool,
    /// How many bytes of it were sent to the node.
    pub sent: u64,
}

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

/// The image for nodes that receive it from this process: taken here when the first of them needs it, if only a node has it.
struct DirectPush<'a> {
    /// What the relays pass on.
    relayed: &'a Push<'a>,
    source: &'a OnceCell<Result<Source, String>>,
    push: OnceCell<Push<'a>>,
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
        let plan = ChainPlan {
            inventory: &target.inventory,
            image,
            content: content.as_deref().unwrap_or_default(),
            receivers: &lacking,
            origin: origin.and_then(|origin| Some((origin.member.as_ref()?, &origin.image))),
            events,
        };
        let (mut chain, exported) = plan.start(here.as_ref()).boxed().await.unzip();
        let source = match exported.flatten().or(here) {
            Some(source) => Ok(source),
            None => self.spool().boxed().await,
        };
        let begun = match &source {
            Ok(source) => self.begin(source).await,
            Err(error) => Err(Error::Local(error.to_string())),
        };
        let relayed = match begun {
            Ok(push) => push,
            Err(error) => {
                if let Some(chain) = chain {
                    chain.end(&[]).boxed().await;
                }
                return Err(source.err().unwrap_or(error));
            }
        };
        if let Some(chain) = &mut chain {
            chain.link(&relayed).boxed().await;
        }
        let spooled = OnceCell::new();
        let direct = DirectPush { relayed: &relayed, source: &spooled, push: OnceCell::new() };
        let given = self.give(lacking.clone(), chain, &direct).boxed().await;
        results.ok.extend(given.ok);
        results.failed.extend(given.failed);
        results.ok.sort_by_key(|entry| order.iter().position(|name| *name == entry.node));
        Ok(results)
    }

    /// Gives nodes the image, all at once.
    async fn give<'s>(
        &'s self,
        lacking: Vec<Receiver>,
        chain: Option<Chain<'_>>,
        direct: &DirectPush<'s>,
    ) -> NodeResults<NodeEntry<ImagePushNode>> {
        let Delivery { image, context: Context { events, session, .. }, .. } = self;
        let give = async |receiver: Receiver| {
            let relay = chain.as_ref().and_then(|chain| chain.of(receiver.name()));
            // the others go on without a node that is lost
            let sent = tokio::select! {
                biased;
                lost = session.cancellation.lost_on(receiver.name()) => Err(lost),
                sent = self.give_one(&receiver, relay, direct).boxed() => sent,
            }?;
            session.progress.record(receiver.name(), format!("pushed {image}"));
            session.progress.done(receiver.name());
            events.done(receiver.name(), format!("has {image}"));
            Ok(entry(&receiver, Some(sent)))
        };
        let given = NodeResults { ok: lacking, failed: Vec::new() }.then(events, give).await;
        if let Some(chain) = chain {
            let (own, received) = chain.sums().await;
            events.note(format!("relays received {}, of which this machine sent {}", human(received), human(own)));
            // where the disk is full, what was received is in the way
            let resumed = given.failed.iter().filter(|error| error.kind != ErrorKind::NoSpace);
            let resumed: Vec<&str> = resumed.map(|error| error.node.as_str()).collect();
            chain.end(&resumed).boxed().await;
        }
        given
    }

    /// Gives one node the image, by its relay if it has one, and otherwise, or if that fails twice, from this process.
    async fn give_one<'s>(
        &'s self,
        receiver: &Receiver,
        relay: Option<&Relay>,
        direct: &DirectPush<'s>,
    ) -> Result<u64, NodeError> {
        let Context { target, events, .. } = self.context;
        if let Some(relay) = relay {
            let mut is_first = true;
            let error = loop {
                match direct.relayed.deliver_by(relay, receiver).boxed().await {
                    // a wrong byte that its engine had was received again since
                    Err(error) if is_first && error.kind == ErrorKind::Failed && relay.is_useful() => is_first = false,
                    Err(error)
                        if error.kind != ErrorKind::NoSpace && receiver.member.transport.is_connected().await =>
                    {
                        break error;
                    }
                    result => return result,
                }
            };
            events.note(format!("{error}\n  {} receives the image from this machine", receiver.name()));
        } else {
            receiver.remove_relay(&target.cluster().name).await?;
        }
        self.direct(receiver, direct).await?.deliver(receiver).boxed().await
    }

    /// Returns what gives a node the image from this process.
    async fn direct<'p, 's>(
        &'s self,
        receiver: &Receiver,
        direct: &'p DirectPush<'s>,
    ) -> Result<&'p Push<'s>, NodeError> {
        if direct.relayed.source().is_here() {
            return Ok(direct.relayed);
        }
        // a node that is gone needs nothing
        free_space(&receiver.member).await?;
        let failed = |cause: &str| NodeError::failed(receiver.name(), &format!("push the image {}", self.image), cause);
        let spool = async || self.spool().boxed().await.map_err(|error| error.to_string());
        let source = direct.source.get_or_init(spool).await.as_ref().map_err(|cause| failed(cause))?;
        direct.push.get_or_try_init(|| self.begin(source)).await.map_err(|error| failed(&error.to_string()))
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
