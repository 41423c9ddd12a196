//! The origin of an image that is pushed: a file, this machine's engine, or a node that has it.

use super::push::Receiver;
use crate::cluster::member::Member;
use crate::cluster::operator::host_name;
use crate::cluster::site::Site;
use crate::cluster::target::Target;
use crate::error::Error;
use crate::event::Events;
use crate::image::file::{ImageFile, STDIN};
use crate::inventory::Inventory;
use crate::runtime::{ContainerEngine, Image};
use crate::text::nodeset;
use std::path::Path;

/// The prefixes with which skopeo and podman name files and directories.
const NOTATIONS: [&str; 4] = ["oci:", "oci-archive:", "docker-archive:", "dir:"];

/// The source that was chosen for an image.
pub enum SourceChoice {
    /// A node that has it, or else this machine's engine.
    Anywhere,
    /// This machine's engine.
    Local,
    /// A node of the inventory.
    Node(String),
    /// An archive on this machine.
    File(ImageFile),
}

/// An engine that has the image.
pub struct Origin {
    /// The engine.
    pub engine: ContainerEngine,
    /// The image there.
    pub image: Image,
    /// The name of its machine.
    pub name: String,
    /// The node; `None` for this machine, and for a node that is not locked, because no relay is started there.
    pub member: Option<Member>,
}

impl SourceChoice {
    /// Returns what an operator has named, and opens it if it is a file.
    ///
    /// # Errors
    /// If it names neither a node nor a file, or a file that is no image.
    pub async fn open(from: Option<&str>, inventory: &Inventory, events: &Events) -> Result<SourceChoice, Error> {
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
                format!("--from {}: a push cannot copy from a registry", nodeset::printable(from)),
                "hvdctl image pull IMAGE lets every node pull it",
            ));
        }
        if NOTATIONS.iter().any(|notation| from.starts_with(notation)) {
            return Err(Error::usage(
                format!("--from {}: it takes only the file or directory", nodeset::printable(from)),
                "leave out what is before the colon, and the tag after the path",
            ));
        }
        let message = format!("--from {}: no node or file has this name", nodeset::printable(from));
        Err(Error::usage(message, "name a node of the inventory, a file of docker save, or local"))
    }

    /// Returns the engine that has the image; `None` for a file.
    ///
    /// # Errors
    /// If there is none, or the nodes have different images and none was chosen.
    pub(super) async fn origin(
        &self,
        image: &str,
        receivers: &[Receiver],
        site: Site<'_>,
    ) -> Result<Option<Origin>, Error> {
        match self {
            SourceChoice::File(_) => Ok(None),
            SourceChoice::Local => {
                let local = Origin::here(image, site).await.map(Some);
                local.map_err(|why| missing(image, &format!("not taken from this machine: {why}")))
            }
            SourceChoice::Node(node) => {
                if let Some(receiver) = receivers.iter().find(|receiver| receiver.name() == node) {
                    let origin = Origin::of(receiver).map(Some);
                    return origin.ok_or_else(|| missing(image, &format!("not on {node}")));
                }
                let only = site.target.only([node.clone()]);
                let found = Origin::on(&site.fleet.all(&only, site.events).await?, image).await?;
                // it is not locked, so that no relay is started there
                let found = found.map(|origin| Some(Origin { member: None, ..origin }));
                found.ok_or_else(|| missing(image, &format!("not on {node}")))
            }
            SourceChoice::Anywhere => anywhere(image, receivers, site).await,
        }
    }
}

impl Origin {
    /// Returns this machine's engine, or why it gives no image.
    pub async fn here(image: &str, site: Site<'_>) -> Result<Origin, String> {
        let name = Some(host_name()).filter(|name| !name.is_empty()).unwrap_or("localhost".into());
        let unusable = |cause: String| format!("this machine's engine cannot be queried: {cause}");
        let asking = async {
            let target = Target::new(Inventory::local(&name, image), None)?;
            // an engine that is not installed here is no failure of a node
            let (quiet, _) = Events::channel();
            let found = Origin::on(&site.fleet.here().all(&target, &quiet).await?, image).await?;
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

    /// Returns the engine of the first of these nodes, if it has the image.
    async fn on(members: &[Member], image: &str) -> Result<Option<Origin>, Error> {
        let Some(member) = members.first() else { return Ok(None) };
        let engine = member.engine().await?;
        let own = engine.image(image).await?;
        let name = member.node.name.clone();
        Ok(own.map(|image| Origin { engine, image, name, member: Some(member.clone()) }))
    }

    fn of(receiver: &Receiver) -> Option<Origin> {
        let (engine, name) = (receiver.engine.clone(), receiver.name().to_owned());
        let member = Some(receiver.member.clone());
        receiver.image.clone().map(|image| Origin { engine, image, name, member })
    }
}

/// Returns the receiver that has the image if all that have one have the same, or this machine's engine if none has it.
async fn anywhere(image: &str, receivers: &[Receiver], site: Site<'_>) -> Result<Option<Origin>, Error> {
    let having: Vec<_> = receivers.iter().filter_map(|r| Some((r.image.as_ref()?.content.clone(), r))).collect();
    let alike = nodeset::alike(having);
    let names = |nodes: &[&Receiver]| nodeset::fold(&nodes.iter().map(|node| node.name()).collect::<Vec<_>>());
    let place = match &alike[..] {
        [] => "on no selected node".to_owned(),
        [(_, nodes)] => {
            // what another owner's node has runs on no other node unless the operator names it
            let is_source = |receiver: &&&Receiver| receiver.member.node.is_source();
            let sources: Vec<&Receiver> = nodes.iter().filter(is_source).copied().collect();
            let listed = sources.iter().find(|receiver| receiver.is_listed).or(sources.first());
            match listed {
                Some(receiver) => return Ok(Origin::of(receiver)),
                None => format!("only on nodes of other owners ({})", names(nodes)),
            }
        }
        _ => {
            let text = |(content, nodes): &(Option<String>, Vec<&Receiver>)| {
                format!("{} has {}", names(nodes), content.as_deref().unwrap_or("another"))
            };
            let texts: Vec<String> = alike.iter().map(text).collect();
            let message = format!("the nodes have different images {image}: {}", texts.join(", "));
            return Err(Error::check(message, "choose one with --from NODE"));
        }
    };
    Origin::here(image, site).await.map(Some).map_err(|why| missing(image, &format!("{place}; {why}")))
}

fn missing(image: &str, place: &str) -> Error {
    let hint =
        "see where it is: hvdctl image status; name another source with --from NODE, --from FILE or --from local";
    Error::check(format!("the image {image} is {place}"), hint)
}
