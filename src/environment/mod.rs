//! Virtualenvs of the login on all nodes, for ranks that are processes of the login.
//!
//! [`source`] reads here what is to be installed, and [`wheels`] the wheels of a directory. [`probe`] is what a node
//! has, [`plan`] decides what is done there, [`make`] does it, [`listing`] and [`removal`] are the other two commands.

pub mod listing;
pub mod make;
pub mod plan;
pub mod probe;
pub mod pylock;
pub mod removal;
pub mod requirements;
pub mod source;
pub mod wheels;

use crate::error::Error;
use crate::inventory::{Cluster, NAME};
use crate::text::nodeset::printable;

/// Where the virtualenvs of a cluster lie on each node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EnvPlace {
    /// hvdctl's directory.
    pub state_dir: String,
    /// The lines that the login's shell runs before anything is installed.
    pub activate: String,
}

impl EnvPlace {
    /// Returns the place of a cluster whose ranks are processes of the login.
    ///
    /// # Errors
    /// If its ranks are in containers, which have an image.
    pub fn of(cluster: &Cluster) -> Result<EnvPlace, Error> {
        // a stand-in until the inventory has `runtime`, `state_dir` and `activate`
        Ok(EnvPlace { state_dir: format!("/var/tmp/hvdctl-{}", cluster.name), activate: String::new() })
    }

    /// Returns the directory of a virtualenv.
    pub fn directory(&self, name: &str) -> String {
        format!("{}/env/{name}", self.state_dir)
    }

    /// Returns the line for `activate` in the inventory.
    pub fn activation(&self, name: &str) -> String {
        format!("source {}/bin/activate", self.directory(name))
    }

    /// Returns whether the inventory activates a virtualenv.
    pub fn is_activated(&self, name: &str) -> bool {
        self.activate.contains(&format!("{}/", self.directory(name)))
    }
}

/// Checks that a virtualenv can have this name, which is that of a directory on the nodes.
///
/// # Errors
/// If it cannot.
pub fn check_name(name: &str) -> Result<(), Error> {
    let wrong =
        |why| Error::usage(format!("{} is no name of a virtualenv: {why}", printable(name)), "choose another one");
    NAME.read(name).map(drop).map_err(wrong)
}
