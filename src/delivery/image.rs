//! Delivers an image to locked nodes.

use super::origin::{Origin, SourceChoice};
use super::push::{self, Push, Receiver, free_space};
use super::relay::chain::{Chain, ChainPlan};
use super::run::{Cargo, run};
use super::source::{self, Source};
use crate::cluster::each_node::NodeResults;
use crate::cluster::member::Member;
use crate::cluster::site::Site;
use crate::error::{Error, ErrorKind, NodeError};
use crate::image::archive::ArchiveFault;
use crate::image::file::ImageFile;
use crate::text::nodeset;
use futures_util::FutureExt as _;
use futures_util::future::LocalBoxFuture;
use std::sync::Arc;
use tokio::sync::OnceCell;

/// The results of a delivery: the bytes of the image that each node was sent, if anything was done there.
pub type ImageGiven = NodeResults<(String, Option<u64>)>;

/// The delivery of an image.
struct ImageDelivery<'a> {
    /// The image's name.
    image: &'a str,
    /// The engine that has it; `None` for a file.
    origin: Option<&'a Origin>,
    /// The image, if it comes from a file.
    file: Option<Arc<Source>>,
    site: Site<'a>,
}

/// A sender that gives nodes the image. The relays pass on what `relayed` has; nodes without a relay get the image from
/// this process. If only a node has it, this process fetches it when the first of them needs it.
pub(super) struct ImageSender<'a> {
    chain: Option<Chain<'a>>,
    relayed: Push<'a>,
    taken: OnceCell<Result<Arc<Source>, String>>,
    direct: OnceCell<Push<'a>>,
}

/// Gives an image to those of these locked nodes that lack it. When the command is cancelled, the engines stop pulling,
/// and what they have is removed.
///
/// # Errors
/// If there is no image to give, or the command is cancelled.
pub async fn give(
    from: &SourceChoice,
    image: &str,
    nodes: NodeResults<Member>,
    site: Site<'_>,
) -> Result<ImageGiven, Error> {
    let Site { session, events, .. } = site;
    let observe = async |member| Receiver::observe(member, image, &site.cluster().name, events).await;
    let observing = async { Ok(nodes.then(events, observe).await) };
    let receivers: NodeResults<Receiver> = session.cancellation.run(observing).await?;
    if receivers.ok.is_empty() {
        return Ok(NodeResults { ok: Vec::new(), failed: receivers.failed });
    }
    let origin = session.cancellation.run(from.origin(image, &receivers.ok, site)).await?;
    let receivers = match &origin {
        Some(Origin { image: own, .. }) => {
            receivers.then(events, async |receiver| receiver.adopt(own, image).await).await
        }
        None => receivers,
    };
    session.cancellation.check()?;
    if receivers.ok.is_empty() {
        return Ok(NodeResults { ok: Vec::new(), failed: receivers.failed });
    }
    if let SourceChoice::File(archive) = from {
        return give_file(archive, image, receivers, site).boxed_local().await;
    }
    let delivery = ImageDelivery { image, origin: origin.as_ref(), file: None, site };
    run(&delivery, receivers).boxed_local().await
}

/// Gives nodes the image of an archive: to those of each platform the one that it has for that.
///
/// # Errors
/// If it is no archive of the image, or the command is cancelled.
async fn give_file(
    archive: &ImageFile,
    image: &str,
    receivers: NodeResults<Receiver>,
    site: Site<'_>,
) -> Result<ImageGiven, Error> {
    let Site { events, session, .. } = site;
    let order: Vec<String> = receivers.ok.iter().map(|receiver| receiver.name().to_owned()).collect();
    let mut results = NodeResults { ok: Vec::new(), failed: receivers.failed };
    let by_platform =
        nodeset::alike(receivers.ok.into_iter().map(|receiver| (receiver.engine.platform.clone(), receiver)));
    // all are read before a node gets anything
    let (mut sources, mut lacking) = (Vec::new(), Vec::new());
    for (platform, receivers) in by_platform {
        let read = async { Ok(Source::from_file(archive, image, &platform).await) };
        match session.cancellation.run(read).await? {
            Ok(source) => sources.push((source, receivers)),
            Err(fault @ ArchiveFault::Platform { .. }) => lacking.extend(receivers.into_iter().map(|receiver| {
                let operation = format!("push the image {image}");
                NodeError::failed(receiver.name(), &operation, &fault).hint(source::hint(&fault))
            })),
            Err(fault) => {
                let hint = source::hint(&fault);
                return Err(Error::Local(format!("cannot read {}: {fault}\n  hint: {hint}", archive.shown)));
            }
        }
    }
    if let Some(other) = sources.iter().find_map(|(source, _)| source.image.other_name.as_ref()) {
        let (shown, other) = (&archive.shown, nodeset::printable(other));
        events.note(format!("{shown} names its image {other}; the nodes get it as {image}"));
    }
    lacking.iter().for_each(|error| events.failed(error));
    results.failed.extend(lacking);
    session.progress.failed(&results.failed);
    for (source, receivers) in sources {
        let delivery = ImageDelivery { image, origin: None, file: Some(Arc::new(source)), site };
        let receivers = NodeResults { ok: receivers, failed: Vec::new() };
        let given = run(&delivery, receivers).boxed_local().await?;
        results.ok.extend(given.ok);
        results.failed.extend(given.failed);
    }
    results.ok.sort_by_key(|(node, _)| order.iter().position(|name| name == node));
    Ok(results)
}

impl ImageDelivery<'_> {
    /// Returns the hash of what is delivered, if it is known before the image is taken.
    fn content(&self) -> Option<&str> {
        match (&self.file, self.origin) {
            (Some(source), _) => Some(&source.image.content),
            (None, origin) => origin.and_then(|origin| origin.image.content.as_deref()),
        }
    }

    /// Takes the image to this machine.
    async fn take(&self) -> Result<Arc<Source>, Error> {
        match self.origin {
            Some(Origin { engine, image, name, .. }) => {
                Source::from_engine(engine, self.image, image, name, self.site.events).await.map(Arc::new)
            }
            None => Err(Error::Local(format!("there is no image {} to deliver", self.image))),
        }
    }

    async fn push(&self, source: Arc<Source>) -> Result<Push<'_>, Error> {
        let push = Push::begin(self.image, source, &self.site.cluster().name, self.site.events).await;
        push.map_err(|error| Error::Local(format!("cannot serve the image on 127.0.0.1: {error}")))
    }

    /// Starts relays where these pay, and what they pass on.
    async fn start<'s>(&'s self, receivers: &'s [Receiver]) -> Result<ImageSender<'s>, Error> {
        let here = match (&self.file, self.origin) {
            (None, Some(Origin { member: None, .. })) => Some(self.take().boxed_local().await?),
            (file, _) => file.clone(),
        };
        let plan = ChainPlan {
            inventory: &self.site.target.inventory,
            image: self.image,
            content: self.content().unwrap_or_default(),
            receivers,
            origin: self.origin.and_then(|origin| Some((origin.member.as_ref()?, &origin.image))),
            events: self.site.events,
        };
        let (mut chain, exported) = plan.start(here.as_deref()).boxed_local().await.unzip();
        let pushing = async {
            let source = match exported.flatten().map(Arc::new).or(here) {
                Some(source) => source,
                None => self.take().boxed_local().await?,
            };
            self.push(source).await
        };
        let relayed = match pushing.boxed_local().await {
            Ok(push) => push,
            Err(error) => {
                if let Some(chain) = chain {
                    chain.end(&[]).boxed_local().await;
                }
                return Err(error);
            }
        };
        if let Some(chain) = &mut chain {
            chain.link(&relayed).boxed_local().await;
        }
        Ok(ImageSender { chain, relayed, taken: OnceCell::new(), direct: OnceCell::new() })
    }

    /// Gives one node the image, by its relay if it has one, and otherwise, or if that fails twice, from this process.
    async fn give_one<'s>(&'s self, receiver: &Receiver, sender: &ImageSender<'s>) -> Result<u64, NodeError> {
        let relay = sender.chain.as_ref().and_then(|chain| chain.of(receiver.name()));
        if let Some(relay) = relay {
            let mut is_first = true;
            let error = loop {
                match sender.relayed.deliver_by(relay, receiver).boxed_local().await {
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
            self.site.events.note(format!("{error}\n  {} receives the image from this machine", receiver.name()));
        } else {
            receiver.remove_relay(&self.site.cluster().name).await?;
        }
        self.direct(receiver, sender).await?.deliver(receiver).boxed_local().await
    }

    /// Returns what gives a node the image from this process.
    async fn direct<'p, 's>(
        &'s self,
        receiver: &Receiver,
        sender: &'p ImageSender<'s>,
    ) -> Result<&'p Push<'s>, NodeError> {
        if sender.relayed.source().is_here() {
            return Ok(&sender.relayed);
        }
        // a node that is gone needs nothing
        free_space(&receiver.member).await?;
        let failed = |cause: &str| NodeError::failed(receiver.name(), &format!("push the image {}", self.image), cause);
        let take = async || self.take().boxed_local().await.map_err(|error| error.to_string());
        let source = sender.taken.get_or_init(take).await.as_ref().map_err(|cause| failed(cause))?;
        let push = sender.direct.get_or_try_init(|| self.push(Arc::clone(source)));
        push.await.map_err(|error| failed(&error.to_string()))
    }
}

impl Cargo for ImageDelivery<'_> {
    type Receiver = Receiver;
    type Part = ();
    type Sender<'s>
        = ImageSender<'s>
    where
        Self: 's;
    type Given = Option<u64>;

    fn site(&self) -> Site<'_> {
        self.site
    }

    fn name(&self) -> &str {
        self.image
    }

    fn member<'r>(&self, receiver: &'r Receiver) -> &'r Member {
        &receiver.member
    }

    fn is_on(&self, receiver: &Receiver) -> bool {
        self.content().is_some_and(|content| !receiver.lacks(content))
    }

    fn leave(&self, receiver: Receiver) -> LocalBoxFuture<'_, Result<Option<u64>, NodeError>> {
        async move {
            receiver.remove_relay(&self.site.cluster().name).await?;
            Ok(receiver.is_renamed.then_some(0))
        }
        .boxed_local()
    }

    fn parts(&self, lacking: Vec<Receiver>) -> Vec<(Vec<Receiver>, ())> {
        if lacking.is_empty() { Vec::new() } else { vec![(lacking, ())] }
    }

    fn begin<'s>(&'s self, receivers: &'s [Receiver], (): ()) -> LocalBoxFuture<'s, Result<ImageSender<'s>, Error>> {
        self.start(receivers).boxed_local()
    }

    fn give<'s: 'a, 'a>(
        &'s self,
        receiver: &'a Receiver,
        sender: &'a ImageSender<'s>,
    ) -> LocalBoxFuture<'a, Result<Option<u64>, NodeError>> {
        async move {
            let sent = self.give_one(receiver, sender).await?;
            self.site.session.progress.record(receiver.name(), format!("pushed {}", self.image));
            Ok(Some(sent))
        }
        .boxed_local()
    }

    fn end<'s>(&'s self, sender: ImageSender<'s>, failed: &'s [NodeError]) -> LocalBoxFuture<'s, ()> {
        async move {
            let Some(chain) = sender.chain else { return };
            // where the disk is full, what was received is in the way
            let resumed = failed.iter().filter(|error| error.kind != ErrorKind::NoSpace);
            let resumed: Vec<&str> = resumed.map(|error| error.node.as_str()).collect();
            chain.finish(&resumed).await;
        }
        .boxed_local()
    }

    fn give_up<'a>(&'a self, member: &'a Member, is_whole: bool) -> LocalBoxFuture<'a, ()> {
        async move {
            if is_whole {
                push::clean(member, &self.site.cluster().name).await;
            }
        }
        .boxed_local()
    }
}
