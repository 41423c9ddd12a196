//! Obstacles to pushing data to nodes, or to removing them.

use crate::cluster::observation::ObservedNode;
use crate::cluster::target::Target;
use crate::error::Error;
use crate::inventory::NAME;
use crate::paths::DATA;
use crate::text::nodeset::{self, printable};
use crate::worker::spec::data_obstacle;
use std::collections::BTreeSet;

/// Checks that data can have this name, which is that of a directory on the nodes.
///
/// # Errors
/// If they cannot, with this hint.
pub fn check_name(name: &str, hint: &str) -> Result<(), Error> {
    let wrong = |why| Error::usage(format!("{} is not a valid name for data: {why}", printable(name)), hint);
    NAME.read(name).map(drop).map_err(wrong)
}

/// Checks that the inventory mounts nothing where the data would be mounted.
///
/// # Errors
/// The first node of which that is not so.
pub fn check_mounts(target: &Target) -> Result<(), Error> {
    for node in target.nodes() {
        if let Some(obstacle) = data_obstacle(target.cluster(), &node) {
            let message =
                format!("{}: the inventory mounts {obstacle} in the containers, and data at {DATA}", node.name);
            return Err(Error::usage(message, "mount it at another path in the inventory"));
        }
    }
    Ok(())
}

/// Checks that no two nodes would write to the same directory.
///
/// # Errors
/// If two would, or it cannot be found out.
pub fn check_separate(nodes: &[ObservedNode]) -> Result<(), Error> {
    for node in nodes {
        if let Some(cause) = &node.facts.storage.shared_unknown {
            let message = format!("{}: cannot find out which directories nodes share: {cause}", node.name());
            return Err(Error::check(message, "see hvdctl doctor"));
        }
        if let Some(shared) = node.facts.storage.shared.iter().find(|shared| shared.what == "data") {
            let names: BTreeSet<&str> = shared.with.iter().map(String::as_str).chain([node.name()]).collect();
            let names: Vec<&str> = names.into_iter().collect();
            let message = format!("{} is one directory on {}", shared.path, nodeset::fold(&names));
            return Err(Error::check(message, "write to it by other means: jobs on all of these nodes may read it"));
        }
    }
    Ok(())
}
