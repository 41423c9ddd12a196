//! The relays of a push, as hvdctl sees them: it starts them, tells them their sources, asks how far they are, and
//! removes them.

use super::order::{predecessors, stall_limit};
use super::package::{self, ARGUMENT, PROGRAM, Package, SPOOL};
use super::protocol::{ExportResult, MAX_SILENCE, RelayAnswer, RelayReport, RelayRequest, Upstream};
use crate::cluster::member::Member;
use crate::cluster::observation::facts;
use crate::delivery::manifest::BlobDescription;
use crate::delivery::registry::{Guest, PEERS};
use crate::delivery::source::Source;
use crate::error::NodeError;
use crate::event::transfer::TransferProgress;
use crate::event::{Events, Message, Step};
use crate::image::names::{is_relay, relay_repository, sha256, temporary_repository};
use crate::inventory::Inventory;
use crate::model::engine::EngineName;
use crate::node::network;
use crate::random::token;
use crate::runtime::container::ContainerSummary;
use crate::runtime::spec::{ContainerSpec, LABEL_SPEC, Mount, Role};
use crate::runtime::{ContainerEngine, EXPORT_SILENCE, Image, RootArchive, Runtime};
use crate::transport::node::{Dialogue, Exposed};
use futures_util::future::join_all;
use hyper::body::Bytes;
use std::collections::BTreeSet;
use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock, PoisonError};
use std::time::Duration;
use tokio::sync::{Mutex, watch};
use tokio::task::JoinHandle;
use tokio::time::{sleep, timeout};

/// The path at which a relay finds the socket of its node's engine.
const SOCKET: &str = "/engine.sock";

/// The time between two questions how far a relay is.
const PERIOD: Duration = Duration::from_secs(1);

/// The longest time until a relay answers, and until a container of one runs.
const ANSWER_LIMIT: Duration = Duration::from_secs(30);

/// The most failures of a relay that are shown.
const MOST_FAILURES: usize = 100;

/// The parameters that all relays of a push share.
pub struct Deployment<'a> {
    inventory: &'a Inventory,
    /// A hash of the pushed content: a container for other content has nothing that can be reused.
    content: String,
    platform: String,
    archive: Bytes,
    libraries: Vec<PathBuf>,
    /// The digest of the only layer of the relays' own image, and its name.
    layer: String,
    image: String,
    /// The URL at which engines get the archive of that image from a running relay.
    url: OnceLock<String>,
    authorization: String,
    events: &'a Events,
}

/// The parts of its node that a relay can access.
pub enum NodeAccess {
    /// Nothing.
    None,
    /// Its engine, which exports an image.
    Engine,
    /// A directory in which it spools, and where the pipe is to which it writes.
    Spool(String),
}

/// The contents that relays pass on: an image, or streams.
#[derive(Debug, Clone, Default)]
pub struct RelayContents {
    manifest: String,
    config: String,
    layers: Vec<BlobDescription>,
    streams: Vec<BlobDescription>,
}

impl RelayContents {
    /// Blobs with names that have the form of a digest, which those who read them verify.
    pub fn of_streams(streams: Vec<BlobDescription>) -> RelayContents {
        RelayContents { streams, ..RelayContents::default() }
    }

    /// An image.
    ///
    /// # Errors
    /// If its documents are no text.
    pub fn of_image(source: &Source) -> Result<RelayContents, String> {
        let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).map_err(|error| error.to_string());
        let (manifest, config) = (text(&source.contents().manifest)?, text(&source.image.config)?);
        Ok(RelayContents { manifest, config, layers: source.layers.clone(), streams: Vec::new() })
    }
}

/// A relay that runs.
pub struct Relay {
    node: String,
    engine: ContainerEngine,
    repository: String,
    engine_port: u16,
    peers: SocketAddr,
    poll: Arc<Poll>,
    status: watch::Receiver<RelayStatus>,
    asking: JoinHandle<()>,
    /// The tunnel from the node to this process.
    operator: Option<(Guest, Exposed)>,
}

/// The last known status of a relay.
#[derive(Debug, Clone, Default)]
struct RelayStatus {
    report: RelayReport,
    /// The reason why it no longer answers.
    lost: Option<String>,
}

impl RelayStatus {
    fn is_useless(&self) -> bool {
        self.lost.is_some() || self.report.is_cut_off
    }
}

impl Drop for Relay {
    fn drop(&mut self) {
        // with the conversation the relay ends
        self.asking.abort();
    }
}

impl<'a> Deployment<'a> {
    /// Prepares relays for a push.
    ///
    /// # Errors
    /// If no engine runs this program, or it cannot be read.
    pub async fn new(inventory: &'a Inventory, content: String, events: &'a Events) -> io::Result<Deployment<'a>> {
        let platform = package::platform().ok_or_else(|| io::Error::other("no engine runs this hvdctl"))?;
        let Package { libraries, archive, digest: layer } =
            tokio::task::spawn_blocking(Package::make).await.map_err(io::Error::other)??;
        let image = format!("{}:{}", relay_repository(&inventory.cluster.name), &layer[7..19]);
        let authorization = format!("Bearer {}", token());
        let (archive, url) = (archive.into(), OnceLock::new());
        Ok(Deployment { inventory, content, platform, archive, libraries, layer, image, url, authorization, events })
    }

    /// Starts the relay of a node.
    ///
    /// # Errors
    /// If the node cannot run it, or it does not answer.
    pub async fn start(&self, member: &Member, access: NodeAccess) -> Result<Relay, NodeError> {
        let (node, cluster) = (&member.node, &self.inventory.cluster);
        let failed = |cause: String| NodeError::failed(&node.name, "start a relay", cause);
        let engine = member.engine().await?;
        // its import names images otherwise, and what an engine made of a relay could not be verified
        if engine.name == EngineName::Podman {
            return Err(failed("relays need Docker, but the node has Podman".to_owned()));
        }
        if engine.platform != self.platform {
            return Err(failed(format!("this hvdctl is for {}, the node is {}", self.platform, engine.platform)));
        }
        let _step = self.events.begin(&node.name, Step::write("starting a relay"));
        let address = network::place(self.inventory, node, &facts(cluster, member).await?).map_err(failed)?.address;
        let mount = |source, target: &str| Mount { source, target: target.to_owned(), read_only: false };
        let mount = match access {
            NodeAccess::None => None,
            NodeAccess::Engine => engine.socket().map(|socket| mount(socket, SOCKET)),
            NodeAccess::Spool(directory) => Some(mount(directory, SPOOL)),
        };
        let spec = self.spec(member, mount);
        let started = self.start_container(&engine, &spec, address).await;
        if started.is_err() {
            let _ = remove(&engine.into(), &cluster.name).await;
        }
        started
    }

    async fn start_container(
        &self,
        engine: &ContainerEngine,
        spec: &ContainerSpec,
        address: IpAddr,
    ) -> Result<Relay, NodeError> {
        let (node, cluster) = (engine.node().to_owned(), &self.inventory.cluster.name);
        let failed = |cause: String| NodeError::failed(&node, "start a relay", cause);
        self.prepare(engine, spec).await?;
        let process = engine.start_attached(&spec.name, "start a relay").await?;
        let dialogue = Mutex::new(Dialogue::new(process));
        let random = token();
        let repository = temporary_repository(cluster, &random);
        let listen = RelayRequest::Listen {
            address,
            cluster: cluster.clone(),
            repository: repository.clone(),
            authorization: self.authorization.clone(),
        };
        let (engine_port, peers) = match ask(&dialogue, &listen).await.map_err(failed)? {
            RelayAnswer::Listening { engine, peers } => (engine, SocketAddr::new(address, peers)),
            other => return Err(failed(format!("it answered {other:?}"))),
        };
        if self.url.get().is_none() {
            let offer = RelayRequest::OfferPackage { address, libraries: self.libraries.clone() };
            // without it every engine gets the image from here
            if let Ok(RelayAnswer::Offered { url }) = ask(&dialogue, &offer).await {
                let _ = self.url.set(url);
            }
        }
        let (poll, status) = Poll::new(&node, dialogue, self.events);
        let asking = tokio::spawn(poll_status(Arc::clone(&poll)));
        let engine = engine.clone();
        Ok(Relay { node, engine, repository, engine_port, peers, poll, status, asking, operator: None })
    }

    fn spec(&self, member: &Member, mount: Option<Mount>) -> ContainerSpec {
        let cluster = &self.inventory.cluster;
        let content: String = self.content.chars().rev().take(12).collect();
        let name = format!("hvdctl-relay-{}-{content}", cluster.name);
        let mut relay = ContainerSpec::new(cluster, &member.node, Role::Relay, name);
        relay.spec.image.clone_from(&self.image);
        relay.spec.command = [PROGRAM, ARGUMENT].map(str::to_owned).to_vec();
        relay.spec.extra_mounts = mount.into_iter().collect();
        relay.spec.devices.clear();
        relay.spec.cap_add = Some(Vec::new());
        relay
    }

    /// Creates the container of a relay. One that a stopped push has left is used again: it has what that has received.
    async fn prepare(&self, engine: &ContainerEngine, spec: &ContainerSpec) -> Result<(), NodeError> {
        let mut is_there = false;
        for container in engine.containers().await? {
            if !container.is(Role::Relay) || !container.belongs_to(&self.inventory.cluster.name) {
                continue;
            }
            if container.name == spec.name && container.label(LABEL_SPEC) == Some(&spec.spec.hash()) {
                engine.kill(&container.id).await?;
                is_there = true;
            } else {
                engine.remove(&container.id).await?;
            }
        }
        self.import(engine).await?;
        if !is_there {
            engine.create(spec).await?;
        }
        Ok(())
    }

    /// Gives an engine the relays' own image: from a relay that runs, which saves this machine's link, else from here.
    /// It runs as root, and not everyone on the nodes' network is to choose what does: its digest is verified.
    async fn import(&self, engine: &ContainerEngine) -> Result<(), NodeError> {
        if self.is_intact(engine).await? {
            return Ok(());
        }
        if let Some(url) = self.url.get()
            && engine.import(&self.image, RootArchive::Url(url)).await.is_ok()
            && self.is_intact(engine).await?
        {
            return Ok(());
        }
        engine.import(&self.image, RootArchive::Bytes(self.archive.clone())).await?;
        match self.is_intact(engine).await? {
            true => Ok(()),
            false => {
                let cause = format!("the engine made another layer of it than {}", self.layer);
                Err(NodeError::failed(engine.node(), "start a relay", cause))
            }
        }
    }

    async fn is_intact(&self, engine: &ContainerEngine) -> Result<bool, NodeError> {
        match engine.image(&self.image).await? {
            Some(image) if image.layers == [self.layer.as_str()] => Ok(true),
            Some(_) => engine.remove_name(&self.image).await.map(|()| false),
            None => Ok(false),
        }
    }

    /// Lets the relay of a node spool the image that the node's engine has.
    ///
    /// # Errors
    /// If the engine does not export it.
    pub async fn export(&self, relay: &Relay, image: &Image, name: &str) -> Result<Source, NodeError> {
        let failed = |cause: String| NodeError::failed(&relay.node, &format!("export the image {name}"), cause);
        let request = RelayRequest::Export { socket: SOCKET.into(), image: name.to_owned() };
        ask(&relay.poll.dialogue, &request).await.map_err(failed)?;
        let mut transfer = TransferProgress::new(&relay.node, self.events);
        let mut status = relay.status.clone();
        loop {
            let before = status.borrow_and_update().clone();
            if let Some(cause) = before.lost {
                return Err(failed(cause));
            }
            match before.report.image {
                Some(ExportResult::Image(described)) => return Ok(Source::from_relay(described)),
                Some(ExportResult::Failed { cause }) => return Err(failed(cause)),
                None => {}
            }
            let done = before.report.exported;
            transfer.report(&format!("exporting {name}"), done, image.size.max(done));
            let is_new =
                |now: &RelayStatus| now.report.exported > done || now.report.image.is_some() || now.lost.is_some();
            let late = |_| failed(format!("no progress for {} s", EXPORT_SILENCE.as_secs()));
            timeout(EXPORT_SILENCE, status.wait_for(is_new)).await.map_err(late)?.map_err(|e| failed(e.to_string()))?;
        }
    }

    /// Tells relays their sources: each receives from those before it, and from what they begin with. That is `origin`,
    /// or this process where a port of the node may lead to it. Returns the failures of those that do not answer.
    pub async fn link<'r>(
        &self,
        relays: &'r [Relay],
        origin: Option<&Relay>,
        contents: &RelayContents,
    ) -> Vec<NodeError> {
        let request = |(position, relay): (usize, &'r Relay)| {
            let peer = |other: &Relay| Upstream {
                name: other.node.clone(),
                address: other.peers,
                repository: PEERS.into(),
                authorization: Some(self.authorization.clone()),
            };
            let operator = relay.operator.as_ref().map(|(guest, exposed)| Upstream {
                name: "the operator".into(),
                address: (Ipv4Addr::LOCALHOST, exposed.port).into(),
                repository: guest.repository().to_owned(),
                authorization: None,
            });
            let mut upstreams: Vec<Upstream> = predecessors(position).into_iter().map(|at| peer(&relays[at])).collect();
            upstreams.extend(origin.map(peer).or(operator));
            let RelayContents { manifest, config, layers, streams } = contents.clone();
            let stall_s = stall_limit(position).as_secs();
            (&*relay.poll, RelayRequest::Serve { manifest, config, layers, streams, upstreams, stall_s })
        };
        ask_all(relays.iter().enumerate().map(request)).await
    }

    /// Ends a relay and removes what it leaves on its node.
    ///
    /// # Errors
    /// With the engine's message.
    pub async fn end(&self, relay: Relay) -> Result<(), NodeError> {
        let engine = relay.engine.clone();
        drop(relay);
        remove(&engine.into(), &self.inventory.cluster.name).await
    }
}

impl Relay {
    /// Returns the name of its node.
    pub fn node(&self) -> &str {
        &self.node
    }

    /// Lets it receive from this process, too.
    pub fn connect(&mut self, guest: Guest, exposed: Exposed) {
        self.operator = Some((guest, exposed));
    }

    /// Returns whether it may receive from this process.
    pub fn is_connected(&self) -> bool {
        self.operator.is_some()
    }

    /// Returns the name under which its node's engine pulls the image with this manifest.
    pub fn reference(&self, manifest: &[u8]) -> String {
        format!("127.0.0.1:{}/{}@{}", self.engine_port, self.repository, sha256(manifest))
    }

    /// Returns the bytes that it has received, as it last reported.
    pub fn received(&self) -> u64 {
        self.status.borrow().report.received
    }

    /// Asks it how many bytes it has received, unless it has ended.
    pub async fn count(&self) -> u64 {
        if self.status.borrow().lost.is_some() {
            return self.received();
        }
        self.poll.ask().await;
        self.received()
    }

    /// Returns the bytes that this process has sent to it.
    pub fn from_operator(&self) -> u64 {
        self.operator.as_ref().map_or(0, |(guest, _)| guest.sent())
    }

    /// Returns whether it runs and has a source, as far as this process knows.
    pub fn is_useful(&self) -> bool {
        !self.status.borrow().is_useless()
    }

    /// Waits until it is of no use, and returns why: it has ended, or has no source.
    pub async fn useless(&self) -> String {
        let mut status = self.status.clone();
        match status.wait_for(RelayStatus::is_useless).await.ok().map(|status| status.lost.clone()) {
            Some(None) => "no source sends what its relay lacks".to_owned(),
            ended => format!("its relay has ended: {}", ended.flatten().unwrap_or_default()),
        }
    }

    /// Lets it write a stream with a head of this many bytes to the pipe of this name in its spool, as a tar stream.
    ///
    /// # Errors
    /// If no program on the node reads the pipe.
    pub async fn feed(&self, stream: &str, head: u64, pipe: &str) -> Result<(), String> {
        let request = RelayRequest::Feed { stream: stream.to_owned(), head, pipe: Path::new(SPOOL).join(pipe) };
        ask(&self.poll.dialogue, &request).await.map(drop)
    }
}

/// Sends a request to a relay.
async fn ask(dialogue: &Mutex<Dialogue>, request: &RelayRequest) -> Result<RelayAnswer, String> {
    let request = serde_json::to_string(request).map_err(|error| error.to_string())?;
    let mut answer = String::new();
    let take = |line: &str| {
        line.clone_into(&mut answer);
        true
    };
    dialogue.lock().await.ask(&request, ANSWER_LIMIT, take).await?;
    match serde_json::from_str(&answer) {
        Ok(RelayAnswer::Failed { cause }) => Err(cause),
        Ok(answer) => Ok(answer),
        Err(error) => Err(format!("{error}: {answer}")),
    }
}

/// Sends requests to relays, to all at once: those that do not answer take as long as one. Returns their failures.
async fn ask_all<'r>(requests: impl Iterator<Item = (&'r Poll, RelayRequest)>) -> Vec<NodeError> {
    let asked = requests.map(async |(poll, request)| {
        let answered = ask(&poll.dialogue, &request).await;
        answered.err().map(|cause| NodeError::failed(&poll.node, "start a relay", cause))
    });
    join_all(asked).await.into_iter().flatten().collect()
}

/// The conversation with a relay, and what is known of it.
struct Poll {
    node: String,
    dialogue: Mutex<Dialogue>,
    status: watch::Sender<RelayStatus>,
    /// The failures that were shown.
    reported: std::sync::Mutex<BTreeSet<String>>,
    events: Events,
}

impl Poll {
    fn new(node: &str, dialogue: Mutex<Dialogue>, events: &Events) -> (Arc<Poll>, watch::Receiver<RelayStatus>) {
        let (status, receiver) = watch::channel(RelayStatus::default());
        let (node, reported, events) = (node.to_owned(), std::sync::Mutex::default(), events.clone());
        (Arc::new(Poll { node, dialogue, status, reported, events }), receiver)
    }

    /// Asks the relay how far it is. It hands out each failure and its image once, so that every answer is taken here.
    /// Returns whether it goes on.
    async fn ask(&self) -> bool {
        let report = match ask(&self.dialogue, &RelayRequest::Status).await {
            Ok(RelayAnswer::Status(report)) => report,
            Ok(_) => return true,
            Err(cause) => {
                self.status.send_modify(|status| status.lost = Some(cause));
                return false;
            }
        };
        report.failures.iter().for_each(|failure| self.show(failure));
        self.status.send_modify(|status| {
            let image = report.image.clone().or(status.report.image.take());
            status.report = RelayReport { image, ..report };
        });
        true
    }

    fn show(&self, failure: &str) {
        let mut reported = self.reported.lock().unwrap_or_else(PoisonError::into_inner);
        if reported.len() < MOST_FAILURES && reported.insert(failure.to_owned()) {
            self.events.note(Message::of(&self.node, format!("relay: {failure}")));
        }
    }
}

/// Asks a relay how far it is, again and again: it ends if it hears nothing.
async fn poll_status(poll: Arc<Poll>) {
    const { assert!(PERIOD.as_secs() + ANSWER_LIMIT.as_secs() < MAX_SILENCE.as_secs()) };
    loop {
        sleep(PERIOD).await;
        if !poll.ask().await {
            return;
        }
    }
}

/// Returns whether a node has relays of a cluster, by its containers: those of a push that was stopped.
pub fn is_left(containers: &[ContainerSummary], cluster: &str) -> bool {
    containers.iter().any(|container| container.is(Role::Relay) && container.belongs_to(cluster))
}

/// Removes the relays of a cluster from a node that is locked: containers with what they have received, and images.
///
/// # Errors
/// With the engine's message.
pub async fn remove(engine: &Runtime, cluster: &str) -> Result<(), NodeError> {
    for container in engine.containers().await? {
        if container.is(Role::Relay) && container.belongs_to(cluster) {
            engine.remove(&container.id).await?;
        }
    }
    for listed in engine.images().await? {
        for name in listed.names.iter().filter(|name| is_relay(name, cluster)) {
            engine.remove_name(name).await?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::event::Event;
    use crate::inventory::Inventory;
    use crate::transport::node::{RunAs, Transport, TransportKind};

    /// The conversation with a shell script that stands in for a relay.
    async fn conversation(node: &str, script: &str, events: &Events) -> (Arc<Poll>, watch::Receiver<RelayStatus>) {
        let inventory = Inventory::local("here", "image");
        let opening = Transport::open_as_login(&inventory.cluster, &inventory.nodes[0], TransportKind::Local);
        let process = opening.await.unwrap().spawn(RunAs::Login, &["sh", "-c", script], "start a relay").await;
        Poll::new(node, Mutex::new(Dialogue::new(process.unwrap())), events)
    }

    #[tokio::test]
    async fn what_a_relay_reports_once_is_kept_whoever_asks() {
        let (events, shown) = Events::channel();
        let report = |failures: &str, image: &str| {
            format!(
                r#"read -r request; echo '{{"is":"status","received":7,"is_cut_off":false,"exported":0,"failures":[{failures}],"image":{image}}}'"#
            )
        };
        let image = r#"{"is":"failed","cause":"no space"}"#;
        let script = [report("\"node2: refused\"", image), report("\"node2: refused\"", "null")].join("\n");
        let (poll, status) = conversation("node1", &script, &events).await;
        assert!(poll.ask().await && poll.ask().await);
        let report = status.borrow().report.clone();
        assert_eq!(report.received, 7);
        assert!(matches!(&report.image, Some(ExportResult::Failed { cause }) if cause == "no space"), "{report:?}");
        assert!(!poll.ask().await, "it has ended");
        assert!(status.borrow().lost.is_some());
        let mut notes = Vec::new();
        while let Ok(event) = shown.receive(Duration::ZERO) {
            if let Event::Note(note) = event {
                notes.push(note.to_string());
            }
        }
        assert_eq!(notes, ["node1: relay: node2: refused"]);
    }

    #[tokio::test]
    async fn relays_are_asked_at_once() {
        let (events, _shown) = Events::channel();
        let dir = tempfile::tempdir().unwrap();
        let fifo = dir.path().join("fifo");
        assert!(std::process::Command::new("mkfifo").arg(&fifo).status().unwrap().success());
        let fifo = fifo.display();
        // the first one answers when the second one was asked
        let first = format!("read -r request; read -r go <'{fifo}'; echo '{{\"is\":\"done\"}}'");
        let second = format!("read -r request; echo go >'{fifo}'; echo '{{\"is\":\"failed\",\"cause\":\"full\"}}'");
        let (first, second) = (conversation("a", &first, &events).await.0, conversation("b", &second, &events).await.0);
        let failed = ask_all([&first, &second].map(|poll| (&**poll, RelayRequest::Status)).into_iter()).await;
        assert_eq!(failed.iter().map(|error| (&*error.node, &*error.message)).collect::<Vec<_>>(), [("b", "full")]);
    }
}
