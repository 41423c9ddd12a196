//! `hvdctl image`.

pub mod build;
pub mod pull;

use super::Outcome;
use super::context::{ConnectedNodes, Context, node_rows};
use crate::cli::{ImagePush, ImageStatus};
use crate::cluster::each_node::NodeResults;
use crate::cluster::member::Member;
use crate::cluster::operator::host_name;
use crate::cluster::target::Target;
use crate::delivery::image::{ImageDelivery, Origin};
use crate::delivery::push::Receiver;
use crate::delivery::source::{self, Source};
use crate::document::{NodeEntry, Nodes};
use crate::error::{Error, NodeError, Verdict};
use crate::event::{Events, Step};
use crate::image::archive::Fault;
use crate::image::file::{ImageFile, STDIN};
use crate::image::names::repository_and_tag;
use crate::image::status::{NodeImage, are_equal, common, missing_layers};
use crate::inventory::{IMAGE, Inventory};
use crate::runtime::Image;
use crate::text::nodeset;
use crate::text::table::table;
use crate::text::units::{self, human};
use futures_util::FutureExt;
use schemars::JsonSchema;
use serde::Serialize;
use std::path::Path;
use std::sync::Arc;
use std::time::SystemTime;

/// The image of a node. `ok` is false if it is missing, or is not the one that most nodes have.
#[derive(Debug, Serialize, JsonSchema)]
pub struct ImageStatusNode {
    /// The image's name.
    pub image: String,
    /// Its id on the node, or null if the node does not have it.
    pub id: Option<String>,
    /// The hash of its layers and environment, which is the same on all nodes that have the same image; else null.
    pub content: Option<String>,
    /// Its bytes as the engine counts them, or null.
    pub size: Option<u64>,
    /// Its platform, e.g. `linux/amd64`, or null.
    pub platform: Option<String>,
    /// When it was built, or null if that is unknown.
    pub created: Option<String>,
    /// How many layers the node lacks of the image that most nodes have.
    pub lacking_layers: usize,
}

/// What `image push` did on a node.
#[derive(Debug, Serialize, JsonSchema)]
pub struct ImagePushNode {
    /// Whether the node did not have the image.
    pub changed: bool,
    /// How many bytes of it were sent to the node.
    pub sent: u64,
}

/// `image status`.
pub async fn status(options: &ImageStatus, context: &Context) -> Result<Outcome, Error> {
    let Context { target, events, .. } = context;
    let image = image_name(options.name.as_deref(), target)?;
    let observe = async |member: Member| {
        let _step = events.begin(&member.node.name, Step::OBSERVING);
        let own = member.runtime().await?.image(image).await?;
        Ok((member.node.name, own))
    };
    let NodeResults { ok, failed } = context.connect().await?.then(events, observe).await;
    Ok(status_outcome(image, &ok, &failed, SystemTime::now()))
}

/// Returns the image that was named, or that of the cluster.
///
/// # Errors
/// If no image can have this name.
pub(super) fn image_name<'a>(named: Option<&'a str>, target: &'a Target) -> Result<&'a str, Error> {
    let Some(image) = named else { return Ok(&target.cluster().image) };
    IMAGE.read(image).map_err(|why| {
        let message = format!("{} is no name of an image: {why}", nodeset::printable(image));
        Error::usage(message, "name it as docker images does")
    })?;
    Ok(image)
}

pub(super) fn status_outcome(
    image: &str,
    nodes: &[(String, Option<Image>)],
    failed: &[NodeError],
    now: SystemTime,
) -> Outcome {
    let all: Vec<NodeImage<'_>> = nodes.iter().map(|(node, own)| (node.as_str(), own.as_ref())).collect();
    let common = common(&all);
    let lacks = |own: Option<&Image>| common.map(|common| missing_layers(own, common));
    let row = |own: Option<&Image>| {
        let text = |text: &dyn Fn(&Image) -> String| own.map_or_else(|| "–".to_owned(), text);
        vec![
            own.map_or_else(|| "missing".to_owned(), |own| short(&own.id)),
            text(&|own| own.content.clone().unwrap_or_default()),
            text(&|own| human(own.size)),
            text(&|own| own.platform.clone()),
            text(&|own| own.created.as_deref().and_then(|created| age(created, now)).unwrap_or_else(|| "–".into())),
            match (lacks(own), common) {
                (Some(count @ 1..), Some(common)) => format!("{count} of {} layers", common.layers.len()),
                _ => "–".to_owned(),
            },
        ]
    };
    let alike = nodeset::alike(all.iter().map(|(node, own)| (row(*own), *node)));
    let rows = alike.into_iter().map(|(cells, nodes)| [vec![with_count(&nodes)], cells].concat());
    let unread = failed.iter().map(|error| {
        vec![error.node.clone(), if error.is_unreachable() { "unreachable" } else { "failed" }.to_owned()]
    });
    let header = ["NODES", "IMAGE", "CONTENT", "SIZE", "PLATFORM", "AGE", "LACKS"];
    let mut text = format!("{image}\n{}", table(&header, rows.chain(unread)));
    let is_good = are_equal(&all);
    if !is_good {
        text.push_str("hint: hvdctl image push gives all nodes the same image\n");
    }
    let entry = |(node, own): &(String, Option<Image>)| {
        let (lacking_layers, own) = (lacks(own.as_ref()).unwrap_or(0), own.as_ref());
        let details = ImageStatusNode {
            image: image.to_owned(),
            id: own.map(|own| own.id.clone()),
            content: own.and_then(|own| own.content.clone()),
            size: own.map(|own| own.size),
            platform: own.map(|own| own.platform.clone()),
            created: own.and_then(|own| own.created.clone()),
            lacking_layers,
        };
        let is_same =
            own.is_some() && own.and_then(|own| own.content.as_ref()) == common.and_then(|c| c.content.as_ref());
        NodeEntry::new(node, is_same, details)
    };
    let entries = nodes.iter().map(entry).chain(failed.iter().map(NodeEntry::failed)).collect();
    Outcome::new(Verdict::of_check(is_good, nodes.len(), failed), text, Nodes { nodes: entries })
}

fn short(id: &str) -> String {
    id.trim_start_matches("sha256:").chars().take(12).collect()
}

/// Formats a set of nodes with its size.
pub(super) fn with_count(nodes: &[&str]) -> String {
    if nodes.len() == 1 { nodes[0].to_owned() } else { format!("{} ({})", nodeset::fold(nodes), nodes.len()) }
}

/// Formats how long ago an image was built, in its largest unit.
fn age(created: &str, now: SystemTime) -> Option<String> {
    Some(units::age(now.duration_since(humantime::parse_rfc3339(created).ok()?).ok()?.as_secs()))
}

/// How skopeo and podman name files and directories.
const NOTATIONS: [&str; 4] = ["oci:", "oci-archive:", "docker-archive:", "dir:"];

/// Where an image is taken from.
pub(super) enum SourceChoice {
    /// A node that has it, or else this machine's engine.
    Anywhere,
    /// This machine's engine.
    Local,
    /// A node of the inventory.
    Node(String),
    /// An archive on this machine.
    File(ImageFile),
}

impl SourceChoice {
    /// # Errors
    /// If it names neither a node nor a file, or a file that is no image.
    async fn open(from: Option<&str>, inventory: &Inventory, events: &Events) -> Result<SourceChoice, Error> {
        let Some(from) = from else { return Ok(SourceChoice::Anywhere) };
        if from == "local" {
            return Ok(SourceChoice::Local);
        }
        if inventory.nodes.iter().any(|node| node.name == from) {
            return Ok(SourceChoice::Node(from.to_owned()));
        }
        let path = Path::new(from);
        if from == STDIN || path.exists() {
            return ImageFile::open(path, events).await.map(SourceChoice::File);
        }
        if from.starts_with("docker://") {
            return Err(Error::usage(
                format!("--from {}: a registry is no source of a push", nodeset::printable(from)),
                "hvdctl image pull IMAGE lets every node pull it",
            ));
        }
        if NOTATIONS.iter().any(|notation| from.starts_with(notation)) {
            return Err(Error::usage(
                format!("--from {}: it takes the file or directory alone", nodeset::printable(from)),
                "leave out what is before the colon, and the tag behind the path",
            ));
        }
        let message = format!("--from {}: there is no node and no file of this name", nodeset::printable(from));
        Err(Error::usage(message, "name a node of the inventory, a file of docker save, or local"))
    }
}

/// `image push`.
pub async fn push(options: &ImagePush, context: &Context) -> Result<Outcome, Error> {
    let target = &context.target;
    let image = image_name(options.name.as_deref(), target)?;
    if repository_and_tag(image).is_none() {
        return Err(Error::usage(
            format!("{image} has no tag, and a node would have no name for it"),
            match image.split_once('@') {
                Some((name, _)) => format!(
                    "push it under its tag (hvdctl image push {name}), and name that in the inventory; only a registry gives digests: \
                     hvdctl image pull"
                ),
                None => "give the image a name (docker tag), and push that".to_owned(),
            },
        ));
    }
    // before any node is locked: to unpack takes a while
    let opening = SourceChoice::open(options.from.as_deref(), &target.inventory, &context.events);
    let from = context.session.cancellation.run(opening).await?;
    let ConnectedNodes { nodes, offline } = context.connect_or_skip(options.skip_offline).await?;
    let nodes = context.lock_each(nodes).await?;
    Ok(pushed(give(&from, image, nodes, context).await?, &offline))
}

/// Gives an image to those of these locked nodes that lack it.
///
/// # Errors
/// If there is no image to give, or the command is cancelled.
pub(super) async fn give(
    from: &SourceChoice,
    image: &str,
    nodes: NodeResults<Member>,
    context: &Context,
) -> Result<NodeResults<NodeEntry<ImagePushNode>>, Error> {
    let Context { target, events, session, .. } = context;
    let observe = async |member| Receiver::observe(member, image, &target.cluster().name, events).await;
    let observing = async { Ok(nodes.then(events, observe).await) };
    let receivers: NodeResults<Receiver> = session.cancellation.run(observing).await?;
    if receivers.ok.is_empty() {
        return Ok(NodeResults { ok: Vec::new(), failed: receivers.failed });
    }
    let origin = session.cancellation.run(origin(from, image, &receivers.ok, context)).await?;
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
        return give_file(archive, image, receivers, context).boxed_local().await;
    }
    let delivery = ImageDelivery { image, origin: origin.as_ref(), file: None, site: context.site() };
    delivered(&delivery, receivers).boxed_local().await
}

async fn delivered(
    delivery: &ImageDelivery<'_>,
    receivers: NodeResults<Receiver>,
) -> Result<NodeResults<NodeEntry<ImagePushNode>>, Error> {
    let NodeResults { ok, failed } = delivery.run(receivers).await?;
    let entry = |(node, sent): (String, Option<u64>)| {
        let details = ImagePushNode { changed: sent.is_some(), sent: sent.unwrap_or(0) };
        NodeEntry::new(&node, true, details)
    };
    Ok(NodeResults { ok: ok.into_iter().map(entry).collect(), failed })
}

/// Gives nodes the image of an archive: to those of each platform the one that it has for that.
///
/// # Errors
/// If it is no archive of the image, or the command is cancelled.
async fn give_file(
    archive: &ImageFile,
    image: &str,
    receivers: NodeResults<Receiver>,
    context: &Context,
) -> Result<NodeResults<NodeEntry<ImagePushNode>>, Error> {
    let Context { events, session, .. } = context;
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
            Err(fault @ Fault::Platform { .. }) => lacking.extend(receivers.into_iter().map(|receiver| {
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
        let delivery = ImageDelivery { image, origin: None, file: Some(Arc::new(source)), site: context.site() };
        let receivers = NodeResults { ok: receivers, failed: Vec::new() };
        let given = delivered(&delivery, receivers).boxed_local().await?;
        results.ok.extend(given.ok);
        results.failed.extend(given.failed);
    }
    results.ok.sort_by_key(|entry| order.iter().position(|name| *name == entry.node));
    Ok(results)
}

/// Returns the engine that has the image; `None` for a file.
///
/// # Errors
/// If there is none, or the nodes have different images and none was chosen.
async fn origin(
    from: &SourceChoice,
    image: &str,
    receivers: &[Receiver],
    context: &Context,
) -> Result<Option<Origin>, Error> {
    let missing = |place: &str| {
        let hint =
            "see where it is: hvdctl image status; name another source with --from NODE, --from FILE or --from local";
        Error::check(format!("the image {image} is {place}"), hint)
    };
    let of_receiver = |receiver: &Receiver| {
        let (engine, name) = (receiver.engine.clone(), receiver.name().to_owned());
        let member = Some(receiver.member.clone());
        receiver.image.clone().map(|image| Origin { engine, image, name, member })
    };
    match from {
        SourceChoice::File(_) => Ok(None),
        SourceChoice::Local => {
            let local = local(image, context).await.map(Some);
            local.map_err(|why| missing(&format!("not taken from this machine: {why}")))
        }
        SourceChoice::Node(node) => {
            if let Some(receiver) = receivers.iter().find(|receiver| receiver.name() == node) {
                return of_receiver(receiver).map(Some).ok_or_else(|| missing(&format!("not on {node}")));
            }
            let only = context.target.only([node.clone()]);
            let found = found(image, &context.fleet.all(&only, &context.events).await?).await?;
            // it is not locked, so that no relay is started there
            let found = found.map(|origin| Some(Origin { member: None, ..origin }));
            found.ok_or_else(|| missing(&format!("not on {node}")))
        }
        SourceChoice::Anywhere => {
            let having: Vec<_> =
                receivers.iter().filter_map(|r| Some((r.image.as_ref()?.content.clone(), r))).collect();
            let alike = nodeset::alike(having);
            match &alike[..] {
                [] => {
                    let local = local(image, context).await.map(Some);
                    local.map_err(|why| missing(&format!("on no selected node; {why}")))
                }
                [(_, nodes)] => {
                    // what another owner's node has runs on no other node unless the operator names it
                    let is_source = |receiver: &&&Receiver| receiver.member.node.is_source();
                    let sources: Vec<&Receiver> = nodes.iter().filter(is_source).copied().collect();
                    if sources.is_empty() {
                        let names: Vec<&str> = nodes.iter().map(|receiver| receiver.name()).collect();
                        let place = format!("only on nodes of other owners ({})", nodeset::fold(&names));
                        let local = local(image, context).await.map(Some);
                        return local.map_err(|why| missing(&format!("{place}; {why}")));
                    }
                    let listed = sources.iter().find(|receiver| receiver.is_listed).or(sources.first());
                    Ok(listed.and_then(|receiver| of_receiver(receiver)))
                }
                _ => {
                    let text = |(content, nodes): &(Option<String>, Vec<&Receiver>)| {
                        let names: Vec<&str> = nodes.iter().map(|receiver| receiver.name()).collect();
                        format!("{} has {}", nodeset::fold(&names), content.as_deref().unwrap_or("another"))
                    };
                    let texts: Vec<String> = alike.iter().map(text).collect();
                    let message = format!("the nodes have different images {image}: {}", texts.join(", "));
                    Err(Error::check(message, "choose one with --from NODE"))
                }
            }
        }
    }
}

/// Returns the engine of the first of these nodes, if it has the image.
async fn found(image: &str, members: &[Member]) -> Result<Option<Origin>, Error> {
    let Some(member) = members.first() else { return Ok(None) };
    let engine = member.runtime().await?;
    let own = engine.image(image).await?;
    let name = member.node.name.clone();
    Ok(own.map(|image| Origin { engine, image, name, member: Some(member.clone()) }))
}

/// Returns this machine's engine, or why it gives no image.
pub(super) async fn local(image: &str, context: &Context) -> Result<Origin, String> {
    let name = Some(host_name()).filter(|name| !name.is_empty()).unwrap_or("localhost".into());
    let unusable = |cause: String| format!("this machine's engine cannot be asked: {cause}");
    let asking = async {
        let target = Target::new(Inventory::local(&name, image), None)?;
        // an engine that is not installed here is no failure of a node
        let (quiet, _) = Events::channel();
        let found = found(image, &context.fleet.here().all(&target, &quiet).await?).await?;
        Ok(found.map(|origin| Origin { member: None, ..origin }))
    };
    match asking.await {
        Ok(origin) => origin.ok_or_else(|| "this machine does not have it".to_owned()),
        Err(Error::Nodes { failed, .. } | Error::Unreachable(failed)) if !failed.is_empty() => {
            Err(unusable(failed[0].message.clone()))
        }
        Err(error) => Err(unusable(error.to_string())),
    }
}

pub(super) fn pushed(nodes: NodeResults<NodeEntry<ImagePushNode>>, offline: &[NodeError]) -> Outcome {
    let mut text = node_rows(&nodes.ok, |node| match node.changed {
        true if node.sent == 0 => "named: it had the image under another name".to_owned(),
        true => format!("pushed, {} sent", human(node.sent)),
        false => "unchanged".to_owned(),
    });
    let changed = nodes.ok.iter().filter_map(|node| node.result.as_ref()).filter(|node| node.changed).count();
    if changed == 0 && nodes.failed.is_empty() {
        text.push_str("nothing to do: every node has this image\n");
    }
    Outcome::of_nodes(text, nodes, offline)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::{Duration, UNIX_EPOCH};

    #[test]
    fn ages_have_one_unit() {
        let at = |seconds| UNIX_EPOCH + Duration::from_secs(seconds);
        let of = |seconds: u64| age("1970-01-02T00:00:00.123456789Z", at(86_401 + seconds));
        let ages = [0, 3599, 3600, 172_799, 172_801].map(|seconds| of(seconds).unwrap());
        assert_eq!(ages, ["0 min", "59 min", "1 h", "47 h", "2 d"]);
        assert_eq!(age("never", at(0)), None);
        assert_eq!(age("1970-01-02T00:00:00Z", at(0)), None, "it was built in the future");
    }
}
