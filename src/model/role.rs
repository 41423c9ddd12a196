//! The roles of a job: several programs that start, end and are recorded as one job, each with a launcher and ranks of
//! its own.
//!
//! A rank has two numbers. Its *rank in the role* is that which its launcher gives it. Its *rank in the job* is unique
//! among all roles: the ranks of a node are consecutive, in the order of the roles. Logs, results and messages use the
//! latter; [`RankOfRole`] has both.

use super::launcher::{Controller, LauncherName};
use crate::text::argument::ProgramArgument;
use crate::text::nodeset;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};
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
    /// A file exists, and was written since the rank was started.
    File {
        /// Its path, relative to the working directory.
        path: String,
    },
}

/// A role, as a job's record has it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
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
    /// The number of GPUs (or of slots, where there are none) of each rank.
    #[serde(default = "one")]
    pub gpus: u32,
    /// The effect of its end.
    pub ends: Ends,
}

fn one() -> u32 {
    1
}

#[cfg(test)]
impl RecordedRole {
    /// Returns a role that `env` starts.
    pub fn example(name: &str, ends: Ends) -> RecordedRole {
        let command = vec![ProgramArgument::from("true")];
        RecordedRole { name: name.into(), launcher: LauncherName::Env, controller: None, command, gpus: 1, ends }
    }
}

/// The place of a rank in its role, as documents have it next to its rank in the job.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, JsonSchema)]
pub struct RankOfRole {
    /// The name of its role; only in a job with roles.
    pub role: String,
    /// Its rank in the role.
    #[serde(rename = "role_rank")]
    pub rank: u32,
}

/// As in `[trainer 0 node1]`.
impl fmt::Display for RankOfRole {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.role, self.rank)
    }
}

/// Formats a rank for lists and brackets: `3`, in a job with roles `trainer 0`.
pub fn label(rank: u32, role: Option<&RankOfRole>) -> String {
    role.map_or_else(|| rank.to_string(), RankOfRole::to_string)
}

/// Formats a rank for sentences: `rank 3`, in a job with roles `rank 0 of trainer`.
pub fn name(rank: u32, role: Option<&RankOfRole>) -> String {
    names([(rank, role)])
}

/// Formats ranks for sentences: `ranks 0-2,7`, in a job with roles `ranks 0-2 of trainer, rank 0 of generator`.
pub fn names<'a>(ranks: impl IntoIterator<Item = (u32, Option<&'a RankOfRole>)>) -> String {
    let ordered: BTreeMap<u32, Option<&RankOfRole>> = ranks.into_iter().collect();
    let mut by_role: Vec<(Option<&str>, BTreeSet<u32>)> = Vec::new();
    for (rank, role) in ordered {
        let (name, rank) = role.map_or((None, rank), |role| (Some(&*role.role), role.rank));
        match by_role.iter_mut().find(|(other, _)| *other == name) {
            Some((_, ranks)) => drop(ranks.insert(rank)),
            None => by_role.push((name, BTreeSet::from([rank]))),
        }
    }
    let of_role = |(role, ranks): &(Option<&str>, BTreeSet<u32>)| {
        let several = if ranks.len() == 1 { "" } else { "s" };
        let role = role.map_or_else(String::new, |role| format!(" of {role}"));
        format!("rank{several} {}{role}", nodeset::fold_numbers(ranks))
    };
    by_role.iter().map(of_role).collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranks_are_named_by_role_in_the_order_of_the_job() {
        let of = |role: &str, rank| Some(RankOfRole { role: role.into(), rank });
        assert_eq!((name(3, None), label(3, None)), ("rank 3".into(), "3".into()));
        let generator = of("generator", 1);
        assert_eq!(name(5, generator.as_ref()), "rank 1 of generator");
        assert_eq!(label(5, generator.as_ref()), "generator 1");
        assert_eq!(names([0, 1, 2, 7].map(|rank| (rank, None))), "ranks 0-2,7");
        let ranks = [(5, generator), (0, of("trainer", 0)), (2, of("generator", 0)), (4, of("trainer", 2))];
        let named = names(ranks.iter().map(|(rank, role)| (*rank, role.as_ref())));
        assert_eq!(named, "ranks 0,2 of trainer, ranks 0-1 of generator");
    }
}
