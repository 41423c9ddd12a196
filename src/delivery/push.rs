//! Gives nodes an image: each node's engine pulls it, from this process or from a relay, and proves that it is the
//! same.

use super::registry::{Guest, Registry};
use super::relay::deployment::{self, Relay};
use super::source::Source;
use crate::cluster::member::Member;
use crate::error::{ErrorKind, NodeError};
use crate::event::{Events, Step};
use crate::image::archive::{Compression, SavedImage};
use crate::image::names::{is_relay, is_temporary, repository_and_tag};
use crate::model::engine::EngineName;
use crate::runtime::{ContainerEngine, Image};
use crate::text::units::human;
use crate::transport::node::{Exposed, Script};
use futures_util::FutureExt;
use std::collections::BTreeSet;
use std::io;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::Semaphore;
use tokio::time::timeout;

const SPACE: &str = include_str!("../scripts/image/space.sh");
const FORWARDING: &str = include_str!("../scripts/node/sshd_forwarding.sh");

/// The number of nodes that pull at the same time. They share this machine's uplink: with more of them all would end
/// later, and an interrupted one would have wasted more.
const CONCURRENT_PULLS: usize = 8;

/// The number of other versions of an image that are compared with it.
const MAX_VERSIONS: usize = 16;

/// The longest time that a cancelled push takes to remove the temporary name of its image on a node.
const REMOVE_LIMIT: Duration = Duration::from_secs(10);

/// A node before a push.
#[derive(Clone)]
pub struct Receiver {
    /// The node.
    pub member: Member,
    /// Its engine.
    pub engine: ContainerEngine,
    /// The image of this name that it has.
    pub image: Option<Image>,
    /// Set if it had the image under another name only.
    pub is_renamed: bool,
    /// The layers of this image and of others of its repository.
    known: BTreeSet<String>,
    /// Set if its engine lists the image. One with containerd's store does not if it keeps the image only unpacked, and
    /// cannot export it.
    pub is_listed: bool,
    /// Set if a stopped push has left a relay there.
    has_relay: bool,
}

impl Receiver {
    /// Observes a node that is locked, and removes the names that a killed push has left there.
    ///
    /// # Errors
    /// With the engine's message.
    pub async fn observe(member: Member, image: &str, cluster: &str, events: &Events) -> Result<Receiver, NodeError> {
        let _step = events.begin(&member.node.name, Step::OBSERVING);
        let engine = member.engine().await?;
        let own = engine.image(image).await?;
        let repository = repository_and_tag(image).map(|(repository, _)| repository);
        let is_version = |name: &String| repository_and_tag(name).map(|(repository, _)| repository) == repository;
        let mut known: BTreeSet<String> = own.iter().flat_map(|image| image.layers.clone()).collect();
        let (mut versions, mut is_listed) = (0, false);
        let mut has_relay = deployment::is_left(&engine.containers().await?, cluster);
        for listed in engine.images().await? {
            for name in listed.names.iter().filter(|name| is_temporary(name, cluster)) {
                engine.remove_name(name).await?;
            }
            is_listed |= own.as_ref().is_some_and(|own| own.id == listed.id);
            has_relay |= listed.names.iter().any(|name| is_relay(name, cluster));
            if versions < MAX_VERSIONS && listed.names.iter().any(is_version) {
                versions += 1;
                known.extend(engine.image(&listed.id).await?.into_iter().flat_map(|image| image.layers));
            }
        }
        Ok(Receiver { member, engine, image: own, is_renamed: false, known, is_listed, has_relay })
    }

    /// Returns the node's name.
    pub fn name(&self) -> &str {
        &self.member.node.name
    }

    /// Returns whether the node lacks an image of this content.
    pub fn lacks(&self, content: &str) -> bool {
        self.image.as_ref().and_then(|image| image.content.as_deref()) != Some(content)
    }

    /// Names an image that the node has under another name, so that nothing has to be sent.
    ///
    /// # Errors
    /// With the engine's message.
    pub async fn adopt(mut self, other: &Image, image: &str) -> Result<Receiver, NodeError> {
        let is_lacking = other.content.as_deref().is_some_and(|content| self.lacks(content));
        if let Some((repository, tag)) = repository_and_tag(image).filter(|_| is_lacking)
            && self.engine.image(&other.id).await?.is_some_and(|own| own.content == other.content)
        {
            self.engine.tag(&other.id, repository, tag).await?;
            self.image = self.engine.image(image).await?;
            self.is_renamed = true;
        }
        Ok(self)
    }

    /// Returns how many bytes of an image on another node it lacks, about: engines do not say how large layers are.
    pub fn missing_bytes(&self, image: &Image) -> u64 {
        let (all, missing) =
            (image.layers.len(), image.layers.iter().filter(|layer| !self.known.contains(*layer)).count());
        image.size / (all.max(1) as u64) * missing as u64
    }

    /// Returns how many bytes of a source it lacks.
    pub fn missing_of(&self, source: &Source) -> u64 {
        source.missing_bytes(|diff_id| self.known.contains(diff_id))
    }

    /// Removes the relay that a stopped push has left.
    ///
    /// # Errors
    /// With the engine's message.
    pub async fn remove_relay(&self, cluster: &str) -> Result<(), NodeError> {
        if self.has_relay { deployment::remove(&self.engine.clone().into(), cluster).await } else { Ok(()) }
    }
}

/// Removes what a push that was stopped has left on a node, as far as that takes no time; the next push removes the
/// rest.
pub async fn clean(member: &Member, cluster: &str) {
    let clean = async {
        let engine = member.engine().await?;
        for listed in engine.images().await? {
            for name in listed.names.iter().filter(|name| is_temporary(name, cluster)) {
                engine.remove_name(name).await?;
            }
        }
        Ok::<(), NodeError>(())
    };
    let _ = timeout(REMOVE_LIMIT, clean).await;
}

/// Returns the free bytes for images on a node, and the directory that has them.
///
/// # Errors
/// If they are unknown.
pub async fn free_space(member: &Member) -> Result<(u64, String), NodeError> {
    let info = member.engine().await?.info().await?;
    let directories: Vec<String> = [Some(info.root_dir), info.image_dir].into_iter().flatten().collect();
    let script = Script::new(SPACE).with("directories", &directories.join("\n"));
    let operation = "read the free space for images";
    let printed = member.transport.script(&script, operation).await?;
    let printed = String::from_utf8_lossy(&printed);
    let failed = |cause: String| NodeError::failed(&member.node.name, operation, cause);
    let mut least: Option<(u64, &str)> = None;
    for line in printed.lines().filter_map(|line| line.split_once(' ')) {
        let free = line.0.parse().map_err(|error| failed(format!("{error}: {}", line.0)))?;
        least = least.filter(|(other, _)| *other <= free).or(Some((free, line.1)));
    }
    let least = least.ok_or_else(|| failed("df printed none".into()))?;
    Ok((least.0, least.1.to_owned()))
}

/// Lets a port of the node lead to the registry at a port of this machine. If sshd refuses that, the error has the
/// lines of its configuration. `what`: what the registry serves.
///
/// # Errors
/// If no port of the node may lead here.
pub async fn expose(member: &Member, port: u16, what: &str) -> Result<Exposed, NodeError> {
    let transport = &member.transport;
    let refused = match transport.expose(port, &format!("forward a port for {what}")).await {
        Err(error) if error.kind == ErrorKind::Failed => error,
        result => return result,
    };
    let lines = transport.script(&Script::new(FORWARDING), "read the configuration of sshd").await.unwrap_or_default();
    let lines = String::from_utf8_lossy(&lines);
    Err(match lines.trim() {
        "" => refused.hint(
            "`restrict` or `no-port-forwarding` in the user's authorized_keys may forbid it; or install python3 on the \
             node",
        ),
        lines => refused.hint(format!(
            "install python3 on the node, or allow it in the configuration of sshd (AllowTcpForwarding yes), then \
             systemctl reload ssh: {}",
            lines.replace('\n', "; ")
        )),
    })
}

/// Returns whether an engine of this version reads layers that zstd has compressed. One whose version says nothing is
/// believed to.
fn reads_zstd(version: &str) -> bool {
    !version.split('.').next().and_then(|major| major.parse().ok()).is_some_and(|major: u32| (17..23).contains(&major))
}

/// The push of one image to many nodes.
pub struct Push<'a> {
    image: &'a str,
    source: Arc<Source>,
    registry: Registry,
    pulling: Semaphore,
    events: &'a Events,
}

impl<'a> Push<'a> {
    /// Begins a push to nodes of a cluster.
    ///
    /// # Errors
    /// If this machine has no free port.
    pub async fn begin(image: &'a str, source: Arc<Source>, cluster: &str, events: &'a Events) -> io::Result<Push<'a>> {
        let registry = Registry::start(source.contents(), cluster).await?;
        Ok(Push { image, source, registry, pulling: Semaphore::new(CONCURRENT_PULLS), events })
    }

    /// Returns what is pushed.
    pub fn source(&self) -> &Source {
        &self.source
    }

    fn step(&self, receiver: &Receiver) -> impl Drop + use<> {
        self.events.begin(receiver.name(), Step::transfer(format!("pulling {}", self.image)))
    }

    /// Gives a node the image from its relay. Returns how many bytes of it were sent there.
    ///
    /// # Errors
    /// As [`Push::deliver`]; also if the relay ends, or has no source.
    pub async fn deliver_by(&self, relay: &Relay, receiver: &Receiver) -> Result<u64, NodeError> {
        self.check_platform(receiver)?;
        self.check_compression(receiver)?;
        self.check_space(receiver).await?;
        let _step = self.step(receiver);
        let reference = relay.reference(&self.source.contents().manifest);
        let received = tokio::select! {
            received = self.receive(receiver, &reference, || relay.received() > 0).boxed_local() => received,
            cause = relay.useless() => Err(self.failed(receiver, cause)),
        };
        let removed = receiver.engine.remove_name(&reference).await;
        received?;
        removed?;
        Ok(relay.count().await)
    }

    /// Gives a node the image from this process. Returns how many bytes of it were sent there.
    ///
    /// # Errors
    /// If the image is for another platform, the node has too little space, no port of it may lead here, its engine
    /// does not pull, or it then has another image.
    pub async fn deliver(&self, receiver: &Receiver) -> Result<u64, NodeError> {
        self.check_platform(receiver)?;
        self.check_compression(receiver)?;
        self.check_space(receiver).await?;
        let _permit = self.pulling.acquire().await.map_err(|error| self.failed(receiver, error))?;
        let _step = self.step(receiver);
        let (guest, exposed) = self.admit(receiver).await?;
        let reference = guest.reference(exposed.port);
        let received = self.receive(receiver, &reference, || guest.sent() > 0).boxed_local().await;
        let removed = receiver.engine.remove_name(&reference).await;
        received?;
        removed?;
        Ok(guest.sent())
    }

    /// Lets a node, or its relay, pull from this process.
    ///
    /// # Errors
    /// If no port of the node may lead here.
    pub async fn admit(&self, receiver: &Receiver) -> Result<(Guest, Exposed), NodeError> {
        let guest = self.registry.admit();
        Ok((guest, expose(&receiver.member, self.registry.port(), "the image").await?))
    }

    /// Lets the node's engine pull, and compares what it then has. `has_begun`: whether something was sent.
    async fn receive(
        &self,
        receiver: &Receiver,
        reference: &str,
        has_begun: impl Fn() -> bool,
    ) -> Result<(), NodeError> {
        let engine = &receiver.engine;
        engine.pull(reference, self.image, self.events).await.map_err(|error| match error.kind {
            ErrorKind::Failed if !has_begun() => error.hint(format!(
                "the engine must reach 127.0.0.1 of the node (a rootless one, or one in a virtual machine, does not); \
                 otherwise docker save IMAGE | ssh NODE {} load",
                engine.name.command()
            )),
            _ => error,
        })?;
        self.prove(receiver, reference).await?;
        let (repository, tag) = repository_and_tag(self.image).unwrap_or((self.image, "latest"));
        engine.tag(reference, repository, tag).await?;
        self.prove(receiver, self.image).await
    }

    async fn prove(&self, receiver: &Receiver, name: &str) -> Result<(), NodeError> {
        let found = receiver.engine.image(name).await?.and_then(|image| image.content);
        if found.as_deref() == Some(&self.source.image.content) {
            return Ok(());
        }
        let found = found.unwrap_or_else(|| "none".into());
        Err(self
            .failed(receiver, format!("the node now has the content {found} instead of {}", self.source.image.content)))
    }

    fn check_platform(&self, receiver: &Receiver) -> Result<(), NodeError> {
        let (needed, own) = (&self.source.image.platform, &receiver.engine.platform);
        if needed == own {
            return Ok(());
        }
        let own = if own.is_empty() { "unknown" } else { own };
        let failed = self.failed(receiver, format!("the image is for {needed}, but the node's platform is {own}"));
        Err(failed.hint(format!("push an image for {own} to this node, or leave it out with --on")))
    }

    fn check_compression(&self, receiver: &Receiver) -> Result<(), NodeError> {
        let SavedImage { layers, diff_ids, .. } = &self.source.image;
        let mut lacking = layers.iter().zip(diff_ids).filter(|(_, diff_id)| !receiver.known.contains(*diff_id));
        let version = &receiver.engine.version;
        // all versions of Podman read them
        let reads_it = receiver.engine.name == EngineName::Podman || reads_zstd(version);
        if reads_it || lacking.all(|(layer, _)| layer.compression != Compression::Zstd) {
            return Ok(());
        }
        let failed = format!("the image has layers compressed with zstd, which Docker {version} cannot read");
        Err(self.failed(receiver, failed).hint(format!(
            "update Docker there (23.0 can read them), or convert the image: skopeo copy oci-archive:FILE \
             docker-archive:NEW.tar:{}",
            self.image
        )))
    }

    /// Checks that the layers that the node seems to lack fit twice: as they are received, and unpacked.
    async fn check_space(&self, receiver: &Receiver) -> Result<(), NodeError> {
        let needed = 2 * receiver.missing_of(&self.source);
        let (free, directory) = free_space(&receiver.member).await?;
        if free >= needed {
            return Ok(());
        }
        let cause = format!("{directory} has only {} free, but the image needs {}", human(free), human(needed));
        let hint = format!("free space on that node: {0} system df, {0} image prune", receiver.engine.name.command());
        Err(self.failed(receiver, cause).kind(ErrorKind::NoSpace).hint(hint))
    }

    fn failed(&self, receiver: &Receiver, cause: impl std::fmt::Display) -> NodeError {
        NodeError::failed(receiver.name(), &format!("push the image {}", self.image), cause)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn engines_before_docker_23_do_not_read_zstd() {
        for (version, expected) in [
            ("20.10.24", false),
            ("17.03.2-ce", false),
            ("23.0.0", true),
            ("28.1.1", true),
            ("4.9.3", true),
            ("", true),
        ] {
            assert_eq!(reads_zstd(version), expected, "{version}");
        }
    }
}
