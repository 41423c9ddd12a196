//! The roles of a job: several programs that start, end and are recorded as one job, each with a launcher and ranks of
//! its own.
//!
//! A rank has two numbers. Its *rank in the role* is that which its launcher gives it. Its *rank in the job* is unique
//! among all roles: the ranks of a node are consecutive, in the order of the roles. Logs, results and messages use the
//! latter; [`RankOfRole`] has both.

use super::launcher::{Controller, LauncherName};
use crate::text::argument::ProgramArgument;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::fmt;

/// The effect of the end of a role's ranks on the job.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(tag = "kind", rename_all = "snake_case")]
#[schemars(rename = "RoleEnd")]
pub enum Ends {
    /// The job ends with its exit code.
    Job,
    /// Its ranks are asked to end when those of another role have ended.
    With {
        /// The number of that role.
        role: usize,
    },
    /// If it fails, it is started again while the other roles go on. If it ends with 0, nothing follows.
    Restarts {
        /// How often.
        times: u32,
    },
}

/// The condition under which a rank of a role is ready for those of other roles.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum ReadyWhen {
    /// An HTTP server answers with a status below 400.
    Http {
        /// Its URL. The host is left out: `http://:$PORT_HTTP/health`.
        url: String,
    },
    /// Something accepts connections to a port of the role.
    Port {
        /// The name of the port.
        name: String,
    },
    /// The rank has written a line that contains this text.
    Line {
        /// The text.
        text: String,
    },
    /// A file exists.
    File {
        /// Its path, relative to the working directory.
        path: String,
    },
}

/// A role, as a job's record has it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[schemars(rename = "Role")]
pub struct RecordedRole {
    /// Its name.
    pub name: String,
    /// The launcher of its ranks.
    pub launcher: LauncherName,
    /// Horovod's controller, if the launcher is `horovodrun`.
    pub controller: Option<Controller>,
    /// The program and its arguments, byte for byte.
    pub command: Vec<ProgramArgument>,
    /// The effect of its end.
    pub ends: Ends,
}

/// A rank of a job with roles.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RankOfRole<'a> {
    /// The name of its role.
    pub role: &'a str,
    /// Its rank in the role.
    pub rank: u32,
}

/// As in `[trainer 0 node1]`.
impl fmt::Display for RankOfRole<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.role, self.rank)
    }
}
