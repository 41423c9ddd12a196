//! The nodes that a command works on: those of an inventory, or this machine alone.

use crate::cli::Global;
use crate::cluster::nodes::{Target, host_name};
use crate::error::Error;
use crate::event::Events;
use crate::inventory::Inventory;
use crate::runtime::Runtime;
use crate::transport::node::{Transport, TransportKind};
use crate::transport::sudo::Sudo;
use std::path::PathBuf;
use std::sync::Arc;

/// The image of the tutorial.
pub const DEFAULT_IMAGE: &str = "horovod/horovod:latest";
/// The image that `scripts/image/build` builds.
pub const BUILT_IMAGE: &str = "hvdctl-lab/horovod:latest";

/// Returns the selected nodes of the inventory; without an inventory, this machine.
///
/// # Errors
/// A wrong inventory or selection; no inventory for a command that needs one.
pub async fn target(global: &Global, works_locally: bool, events: &Events) -> Result<Target, Error> {
    let sudo = Arc::new(Sudo::new(global.ask_sudo_pass, !global.yes, events).await?);
    if let Some(file) = inventory_file(global) {
        if global.image.is_some() {
            return Err(Error::usage("--image cannot be used with an inventory", "set cluster.image in the inventory"));
        }
        let target = Target::new(Inventory::load(&file)?, global.on.as_deref(), false)?;
        return Ok(Target { strict: global.strict, sudo, ..target });
    }
    if !works_locally {
        return Err(Error::usage("there is no inventory", "write one with hvdctl init, or name one with -i"));
    }
    let name = Some(host_name()).filter(|n| !n.is_empty() && !n.starts_with('(')).unwrap_or("localhost".into());
    let image = local_image(global, &name, &sudo, events).await?;
    events.note(format!("no inventory: using this machine alone ({name}), image {image}"));
    let target = Target::new(Inventory::local(&name, &image), global.on.as_deref(), true)?;
    Ok(Target { sudo, ..target })
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

/// Returns the image for this machine alone: the one that was named; else that of the tutorial; else, if only that is here, the
/// one that `scripts/image/build` builds.
async fn local_image(global: &Global, name: &str, sudo: &Sudo, events: &Events) -> Result<String, Error> {
    let named = global.image.clone().or_else(|| std::env::var("HVDCTL_IMAGE").ok().filter(|image| !image.is_empty()));
    if let Some(image) = named {
        return Ok(image);
    }
    let inventory = Inventory::local(name, DEFAULT_IMAGE);
    let (cluster, node) = (&inventory.cluster, &inventory.nodes[0]);
    let transport = Transport::open(cluster, node, TransportKind::Local, sudo, events).await?;
    let runtime = Runtime::connect(&Arc::new(transport)).await?;
    for image in [DEFAULT_IMAGE, BUILT_IMAGE] {
        if runtime.image(image).await?.is_some() {
            return Ok(image.to_owned());
        }
    }
    Ok(DEFAULT_IMAGE.to_owned())
}
