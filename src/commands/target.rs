//! The nodes that a command works on: those of an inventory, or this machine alone.

use crate::cli::{Global, NodeUse};
use crate::cluster::fleet::Fleet;
use crate::cluster::operator::host_name;
use crate::cluster::target::Target;
use crate::error::Error;
use crate::event::Events;
use crate::inventory::Inventory;
use crate::transport::node::TransportKind;
use crate::transport::sudo::Sudo;
use std::path::PathBuf;
use std::sync::Arc;

/// The image of the tutorial.
pub const DEFAULT_IMAGE: &str = "horovod/horovod:latest";
/// The image that `scripts/image/build` builds.
pub const BUILT_IMAGE: &str = "hvdctl-lab/horovod:latest";

/// Returns the selected nodes of the inventory, and how they are reached; without an inventory, this machine.
///
/// # Errors
/// A wrong inventory or selection; no inventory for a command that needs one.
pub async fn target(global: &Global, nodes: NodeUse, events: &Events) -> Result<(Target, Fleet), Error> {
    let sudo = async |inventory: &Inventory| {
        Ok::<_, Error>(Arc::new(Sudo::new(global.ask_sudo_pass, !global.yes, inventory, events).await?))
    };
    if let Some(file) = inventory_file(global) {
        if global.image.is_some() {
            return Err(Error::usage("--image cannot be used with an inventory", "set cluster.image in the inventory"));
        }
        let target = Target::new(Inventory::load(&file)?, global.on.as_deref())?;
        let sudo = sudo(&target.inventory).await?;
        return Ok((target, Fleet::over_ssh(global.strict, sudo, events)));
    }
    if nodes == NodeUse::OfInventory {
        return Err(Error::usage("there is no inventory", "write one with hvdctl init, or name one with -i"));
    }
    let name = Some(host_name()).filter(|n| !n.is_empty() && !n.starts_with('(')).unwrap_or("localhost".into());
    let sudo = sudo(&Inventory::local(&name, DEFAULT_IMAGE)).await?;
    let fleet = || Fleet::over(TransportKind::Local, Arc::clone(&sudo), events);
    if std::env::var_os("HVDCTL_RUNTIME").is_some_and(|runtime| runtime == "process") {
        events.note(format!("no inventory: using this machine alone ({name}), without containers"));
        return Ok((Target::new(Inventory::local_processes(&name), global.on.as_deref())?, fleet()));
    }
    let (image, fleet) = match named_image(global) {
        Some(image) => (image, fleet()),
        None => {
            let first = fleet();
            match find_image(&name, &first, events).await? {
                DEFAULT_IMAGE => (DEFAULT_IMAGE.to_owned(), first),
                // root may be a container of the image
                other => (other.to_owned(), fleet()),
            }
        }
    };
    events.note(format!("no inventory: using this machine alone ({name}), image {image}"));
    Ok((Target::new(Inventory::local(&name, &image), global.on.as_deref())?, fleet))
}

/// Returns `-i` or `$HVDCTL_INVENTORY`, else the first of the usual files that exists.
fn inventory_file(global: &Global) -> Option<PathBuf> {
    let config = || {
        let xdg = std::env::var_os("XDG_CONFIG_HOME").map(PathBuf::from).filter(|path| path.is_absolute());
        Some(xdg.or_else(|| Some(std::env::home_dir()?.join(".config")))?.join("hvdctl/inventory.toml"))
    };
    let usual = || [Some("inventory.toml".into()), config()].into_iter().flatten().find(|path: &PathBuf| path.exists());
    global.inventory.clone().or_else(usual)
}

/// Returns the image that was named.
fn named_image(global: &Global) -> Option<String> {
    global.image.clone().or_else(|| std::env::var("HVDCTL_IMAGE").ok().filter(|image| !image.is_empty()))
}

/// Returns an image that this machine has: that of the tutorial; else, if only that is here, the one that
/// `scripts/image/build` builds.
async fn find_image(name: &str, fleet: &Fleet, events: &Events) -> Result<&'static str, Error> {
    let target = Target::new(Inventory::local(name, DEFAULT_IMAGE), None)?;
    for member in fleet.all(&target, events).await? {
        let runtime = member.runtime().await?;
        for image in [DEFAULT_IMAGE, BUILT_IMAGE] {
            if runtime.image(image).await?.is_some() {
                return Ok(image);
            }
        }
    }
    Ok(DEFAULT_IMAGE)
}
