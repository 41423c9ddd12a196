//! The ranks and nodes of a job that are meant by `--role` and `--rank`.

use crate::error::Error;
use crate::record::list::Job;
use std::collections::BTreeSet;

/// Returns the ranks in the job that are meant; none for all. `ranks` are counted in the role, if one is named.
///
/// # Errors
/// If the job has no such role or rank.
pub fn wanted_ranks(job: &Job, role: Option<&str>, ranks: &[u32]) -> Result<BTreeSet<u32>, Error> {
    let Some(name) = role else {
        return match ranks.iter().find(|rank| **rank >= job.ranks) {
            Some(rank) => Err(Error::usage(
                format!("job {} has no rank {rank}", job.id),
                format!("its ranks are 0 to {}", job.ranks.saturating_sub(1)),
            )),
            None => Ok(ranks.iter().copied().collect()),
        };
    };
    let all: Vec<u32> = job.placement.ranks_of(number(job, name)?).collect();
    let in_job = |rank: &u32| {
        all.get(*rank as usize).copied().ok_or_else(|| {
            let last = all.len().saturating_sub(1);
            Error::usage(
                format!("job {} has no rank {rank} of {name}", job.id),
                format!("the ranks of {name} are 0 to {last}"),
            )
        })
    };
    if ranks.is_empty() { Ok(all.into_iter().collect()) } else { ranks.iter().map(in_job).collect() }
}

/// Returns the nodes that have ranks of a role; `None` for all.
///
/// # Errors
/// If the job has no such role.
pub fn wanted_nodes(job: &Job, role: Option<&str>) -> Result<Option<BTreeSet<String>>, Error> {
    let Some(name) = role else { return Ok(None) };
    let number = number(job, name)?;
    let has_some = job.placement.shares.iter().filter(|share| share.roles.get(number).is_some_and(|ranks| *ranks > 0));
    Ok(Some(has_some.map(|share| share.node.clone()).collect()))
}

/// Returns the number of a role.
fn number(job: &Job, name: &str) -> Result<usize, Error> {
    let roles = &job.placement.roles;
    roles.iter().position(|role| role.name == name).ok_or_else(|| {
        let names: Vec<&str> = roles.iter().map(|role| &*role.name).collect();
        match names.is_empty() {
            true => Error::usage(format!("job {} has no roles", job.id), "leave out --role"),
            false => Error::usage(
                format!("job {} has no role {name}", job.id),
                format!("its roles are {}", names.join(", ")),
            ),
        }
    })
}
