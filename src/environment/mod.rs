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
use crate::inventory::{Cluster, NAME, Node};
use crate::text::nodeset::printable;

/// The place of a cluster's virtualenvs on each node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EnvPlace {
    /// hvdctl's directory.
    pub state_dir: String,
}

impl EnvPlace {
    /// Returns the place of a cluster whose ranks are processes of the login.
    ///
    /// # Errors
    /// If its ranks are in containers, which have an image.
    pub fn of(cluster: &Cluster) -> Result<EnvPlace, Error> {
        if cluster.can().images {
            return Err(Error::usage(
                "virtualenvs are for nodes without containers, but the inventory has runtime = \"container\"",
                "containers get packages from their image: use `setup` in a project's hvdctl.toml (hvdctl image \
                 build); or set runtime = \"process\" in [cluster]",
            ));
        }
        Ok(EnvPlace { state_dir: cluster.state_dir() })
    }

    /// Returns the directory of a virtualenv.
    pub fn directory(&self, name: &str) -> String {
        format!("{}/env/{name}", self.state_dir)
    }

    /// Returns the line for `activate` in the inventory.
    pub fn activation(&self, name: &str) -> String {
        format!("source {}/bin/activate", self.directory(name))
    }

    /// Returns the lines of `activate` that a node runs before a virtualenv is made there: those that activate one of
    /// hvdctl's are for ranks.
    pub fn activation_before(&self, node: &Node) -> String {
        let own = self.directory("");
        let lines = node.container.activate.iter().filter(|line| !line.contains(&own));
        lines.map(String::as_str).collect::<Vec<_>>().join("\n")
    }

    /// Returns whether the inventory activates a virtualenv on a node.
    pub fn is_activated(&self, name: &str, node: &Node) -> bool {
        let program = format!("{}/bin/activate", self.directory(name));
        node.container.activate.iter().any(|line| line.contains(&program))
    }
}

/// Checks that a virtualenv can have this name, which is that of a directory on the nodes.
///
/// # Errors
/// If it cannot.
pub fn check_name(name: &str) -> Result<(), Error> {
    let wrong = |why| {
        Error::usage(format!("{} is not a valid name for a virtualenv: {why}", printable(name)), "choose another one")
    };
    NAME.read(name).map(drop).map_err(wrong)
}
