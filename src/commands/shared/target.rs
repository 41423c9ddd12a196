//! The nodes that a command works on: those of an inventory, or this machine alone.

use crate::cli::{Command, Description, FOR_SLURM, Global, NodeUse, SchedulerChoice};
use crate::cluster::fleet::Fleet;
use crate::cluster::operator::host_name;
use crate::cluster::target::Target;
use crate::commands::shared::inventory_file::InventoryFile;
use crate::error::{Error, NodeError};
use crate::event::Events;
use crate::inventory::{Cluster, Inventory};
use crate::text::quote;
use crate::transport::node::{RunAs, Script, TransportKind};
use crate::transport::sudo::SudoPasswords;
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
        Ok::<_, Error>(Arc::new(SudoPasswords::new(global.ask_sudo_pass, !global.yes, inventory, events).await?))
    };
    if let Some(file) = InventoryFile::find(global) {
        if global.image.is_some() {
            return Err(Error::usage("--image cannot be used with an inventory", "set cluster.image in the inventory"));
        }
        let inventory = file.load(events)?;
        let is_scheduled = !inventory.cluster.can().choose_nodes;
        if global.scheduler == Some(SchedulerChoice::Slurm) || is_scheduled && global.scheduler.is_none() {
            return under_slurm(inventory.under_slurm(), global, events).await;
        }
        if is_scheduled {
            return Err(Error::usage("--scheduler ssh needs nodes, but the inventory has no [[node]]", "add them"));
        }
        let target = Target::new(inventory, global.on.as_deref())?;
        let sudo = sudo(&target.inventory).await?;
        return Ok((target, Fleet::over_ssh(global.strict, sudo, events)));
    }
    if global.scheduler == Some(SchedulerChoice::Slurm) {
        return under_slurm(Inventory::local_slurm(&host_name()), global, events).await;
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

/// Checks that a command is also for jobs of a site's Slurm, if that chooses their nodes.
///
/// # Errors
/// One that is about the nodes themselves.
pub fn check_command(cluster: &Cluster, command: &Command, description: &Description) -> Result<(), Error> {
    if cluster.can().choose_nodes || description.is_for_slurm {
        return Ok(());
    }
    if matches!(command, Command::Notebook(_)) {
        return Err(Error::usage(
            "a notebook is not possible under Slurm, which may start a job when its user is gone",
            "start JupyterLab within an allocation (salloc, then srun --pty jupyter lab), and programs on all nodes from \
             there with hvdctl run; or bypass Slurm with --scheduler ssh",
        ));
    }
    Err(Error::usage(
        "this command manages workers, keys or nodes; under Slurm there is nothing to manage, because Slurm starts \
         what a job needs",
        format!("use {FOR_SLURM}; or bypass Slurm with --scheduler ssh"),
    ))
}

/// Returns the selected nodes of the inventory for a command that contacts none; without an inventory, this machine
/// with the image that was named.
///
/// # Errors
/// A wrong inventory or selection.
pub fn without_contact(global: &Global, events: &Events) -> Result<Target, Error> {
    let inventory = match InventoryFile::find(global) {
        Some(_) if global.image.is_some() => {
            return Err(Error::usage("--image cannot be used with an inventory", "set cluster.image in the inventory"));
        }
        Some(file) => file.load(events)?,
        None => Inventory::local("localhost", &named_image(global).unwrap_or(DEFAULT_IMAGE.to_owned())),
    };
    let target = Target::new(inventory, global.on.as_deref())?;
    target.refuse_roles()?;
    Ok(target)
}

/// Returns the login node of the inventory's Slurm, and how it is reached, for a command that is about the jobs there
/// as well as those on the nodes; `None` if there is none, or if the command is about one of the two only.
///
/// # Errors
/// When the login node does not answer.
pub async fn also_under_slurm(
    inventory: &Inventory,
    global: &Global,
    events: &Events,
) -> Result<Option<(Target, Fleet)>, Error> {
    if inventory.slurm.is_none()
        || !inventory.cluster.can().choose_nodes
        || global.scheduler.is_some()
        || global.on.is_some()
    {
        return Ok(None);
    }
    under_slurm(inventory.clone().under_slurm(), global, events).await.map(Some)
}

/// Returns the login node of a cluster of Slurm, and how it is reached. hvdctl's files are in its user's home
/// directory, unless the inventory names another one.
async fn under_slurm(mut inventory: Inventory, global: &Global, events: &Events) -> Result<(Target, Fleet), Error> {
    if let Some(on) = &global.on {
        let hint = "choose them by --sbatch=--nodelist=… or --sbatch=--constraint=…";
        return Err(Error::usage(format!("--on {on}: Slurm chooses the nodes of a job"), hint));
    }
    let is_here = inventory.slurm.as_ref().is_none_or(|slurm| slurm.host.is_none());
    let fleet = || match is_here {
        true => Fleet::over(TransportKind::Local, Arc::default(), events),
        false => Fleet::over_ssh(global.strict, Arc::default(), events),
    };
    let directory = match &inventory.cluster.state_dir {
        Some(directory) => directory.clone(),
        None => format!("{}/.hvdctl", home(&Target::new(inventory.clone(), None)?, &fleet(), events).await?),
    };
    inventory.place_under(&directory);
    Ok((Target::new(inventory, None)?, fleet()))
}

/// Returns the home directory of the user on the login node.
async fn home(target: &Target, fleet: &Fleet, events: &Events) -> Result<String, Error> {
    let operation = "find the home directory";
    let login = fleet.connect(target, RunAs::Login, events).await?.into_iter().next();
    let member = login.ok_or_else(|| Error::Local("there is no login node".to_owned()))??;
    let found = member.transport.script_as_login(&Script::new("printf %s \"$HOME\""), operation).await?;
    let home = String::from_utf8_lossy(&found).into_owned();
    // it becomes a part of command lines, and of variables with several paths
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "/_.@+-".contains(c);
    if home.starts_with('/') && home.chars().all(is_plain) {
        return Ok(home);
    }
    let cause = format!("{} is not a path of letters, digits, `_`, `.`, `@`, `+` and `-`", quote::readable(&home));
    let hint = "set slurm.state_dir to another directory that all nodes share";
    Err(NodeError::failed(&member.node.name, operation, cause).hint(hint).into())
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
