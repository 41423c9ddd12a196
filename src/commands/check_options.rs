//! The options of the jobs that check something.

use super::context::Context;
use crate::cli::Launching;
use crate::error::Error;
use crate::job::supervision::WatchOptions;
use crate::launch::env_file::EnvFiles;
use crate::launch::placement::{MapBy, RankCount};
use crate::start::request::{JobOptions, ResourceRequest, check_ranks};
use std::collections::BTreeMap;
use std::time::Duration;

/// Returns the options of a check: a job with one rank on every slot or with `np` ranks, which is stopped when it takes
/// longer than `limit`.
///
/// # Errors
/// A controller for another launcher than `horovodrun`; more ranks than slots, if the inventory gives all slots.
pub fn options_of_check(
    np: Option<u32>,
    launching: &Launching,
    limit: Duration,
    context: &Context,
) -> Result<JobOptions, Error> {
    let Context { target, verbose, .. } = context;
    let cluster = target.cluster();
    let ranks = np.map(RankCount::exactly);
    check_ranks(target, ranks, None)?;
    Ok(JobOptions {
        resources: ResourceRequest { ranks, map_by: MapBy::Slot, per_node: None },
        submission: launching.sbatch.clone(),
        restarts: 0,
        elastic: None,
        changes: None,
        launcher: launching.launcher(None, cluster)?,
        controller: launching.controller(cluster.controller),
        bind: cluster.bind,
        stall_timeout: Duration::ZERO,
        log_max: None,
        log_progress: false,
        env: BTreeMap::new(),
        env_files: EnvFiles::new(),
        watch: WatchOptions {
            output: *verbose > 0,
            launcher_output: *verbose > 1,
            limit: Some(limit),
            ..WatchOptions::default()
        },
    })
}
